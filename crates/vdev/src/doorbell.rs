//! Doorbells (PCIe Transport 1.0, 3.1.2), and who goes to work when one rings.

use crate::arbiter::{Arbiter, TURNS, Weights};
use crate::config::Clock;
use crate::controller::{Controller, Served};
use crate::drive::Drive;
use crate::group::Queues;
use crate::pending::RUNG;
use nvmed_nvme::{AsyncEvent, register};
use nvmed_sys::sync::MutexGuard;
use nvmed_units::Halves;
use std::sync::atomic::Ordering;

impl Controller {
    #[inline]
    pub(crate) fn doorbell(&self, offset: u32, value: u32) {
        let index = (offset - register::DOORBELLS) >> (2 + self.config.doorbell_stride);
        let queue = (index / 2) as usize;
        let value = value & 0xffff;
        if queue >= self.groups.len() {
            return self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        if index % 2 == 1 {
            self.head_doorbell(queue, value);
        } else {
            self.ring_tail(self.served, queue, value);
        }
    }

    /// A tail doorbell, for who serves it.
    #[inline]
    fn ring_tail(&self, served: Served, queue: usize, value: u32) {
        match served {
            Served::AtOnce => self.tail_doorbell(queue, value),
            Served::ByThread => self.leave_tail(queue, value),
            Served::ByDrive => self.slow_doorbell(queue, value),
            Served::Recorded => self.recorded_doorbell(queue, value),
        }
    }

    /// A tail doorbell of a controller whose requests are recorded.
    #[cold]
    fn recorded_doorbell(&self, queue: usize, value: u32) {
        self.doorbells.iter().for_each(|doorbells| doorbells.ring(queue, value));
        self.ring_tail(Served::of(&self.config), queue, value);
    }

    /// Leaves a tail to the device thread.
    fn leave_tail(&self, queue: usize, value: u32) {
        self.pending.values[queue].store(value | RUNG, Ordering::Release);
        self.pending.tails.set(queue);
        self.rung.ring();
    }

    /// A tail doorbell of a controller with a drive, which admin commands do not meet, but for those of HMB-I/O.
    fn slow_doorbell(&self, queue: usize, value: u32) {
        let is_timed = || self.config.hmb_io_slots > 0 && self.config.clock == Clock::Threaded;
        match &self.drive {
            Some(drive) if queue != 0 || is_timed() => self.drive_doorbell(drive, queue, value),
            _ if self.config.clock == Clock::Threaded => self.leave_tail(queue, value),
            _ => self.tail_doorbell(queue, value),
        }
    }

    #[inline]
    fn head_doorbell(&self, queue: usize, value: u32) {
        let group = &self.groups[queue];
        let entries = group.entries.load(Ordering::Acquire);
        if value >= entries {
            return self.event(if entries == 0 {
                AsyncEvent::INVALID_DOORBELL_REGISTER
            } else {
                AsyncEvent::INVALID_DOORBELL_VALUE
            });
        }
        group.head.set(value.low());
        // Pairs with the store in `has_room`: either that sees the head, or this sees `blocked`.
        if group.blocked.swap(false, Ordering::SeqCst) {
            self.resume(queue);
        }
    }

    /// Goes on with the submission queues of a completion queue that has room again.
    #[cold]
    fn resume(&self, cq: usize) {
        if self.config.clock == Clock::Threaded {
            self.pending.heads.set(cq);
            self.rung.ring();
        } else {
            self.run_all(cq);
        }
    }

    #[inline]
    fn tail_doorbell(&self, queue: usize, value: u32) {
        let route = self.routes[queue].load(Ordering::Acquire);
        if route == 0 {
            return self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        let cq = route as usize - 1;
        let mut queues = self.groups[cq].queues.lock();
        let Some(index) = queues.sqs.iter().position(|sq| usize::from(sq.id) == queue) else { return };
        let sq = &mut queues.sqs[index];
        if value >= u32::from(sq.entries) {
            drop(queues);
            return self.event(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
        sq.tail = value.low();
        self.run(cq, &mut queues, index);
    }

    /// Whether the host selected weighted round robin (CC.AMS).
    pub(crate) fn weighted(&self) -> bool {
        self.configuration().ams() == 1
    }

    pub(crate) fn weights(&self) -> Weights {
        Weights::new(self.admin.lock().features.arbitration())
    }

    /// One round of the device thread: takes the doorbells that were rung and completes what is due; whether
    /// there was anything.
    pub(crate) fn serve(&self, arbiter: &mut Arbiter) -> bool {
        // What was taken to the arbiter waits there even if the host has chosen another order since: its doorbell
        // does not ring again.
        if self.weighted() || !arbiter.is_empty() {
            return self.serve_weighted(arbiter);
        }
        let tails = self.pending.tails.take(|queue| self.serve_tail(queue));
        let heads = self.pending.heads.take(|cq| self.run_all(cq));
        self.advance() || tails || heads
    }

    /// As [`Self::serve`], with a drive. Its doorbells are before the admin queue's: who deletes a queue has rung it
    /// before.
    pub(crate) fn serve_drive(&self, drive: &Drive) -> bool {
        let worked = self.work(drive);
        let tails = self.pending.tails.take(|queue| self.serve_tail(queue));
        let heads = self.pending.heads.take(|cq| self.run_all(cq));
        self.advance() || worked || tails || heads
    }

    /// As [`Self::serve`], a turn of one queue at a time; between two turns the doorbells are looked at.
    fn serve_weighted(&self, arbiter: &mut Arbiter) -> bool {
        let mut any = self.collect(arbiter);
        if !arbiter.is_empty() {
            let weights = self.weights();
            for _ in 0..TURNS {
                let Some(turn) = arbiter.next(weights, [true; 2]) else { break };
                let (taken, more) = self.run_turn(turn);
                arbiter.took(turn.class, taken);
                if more {
                    arbiter.push(turn.queue, turn.class);
                }
                any = true;
                self.collect(arbiter);
            }
        }
        self.advance() || any
    }

    /// Takes the doorbells that were rung to the arbiter; those of the admin queue are served at once.
    fn collect(&self, arbiter: &mut Arbiter) -> bool {
        let tails = self.pending.tails.take(|queue| {
            if queue == 0 {
                self.serve_tail(queue);
            } else if let Some((_, queues, index)) = self.take_tail(queue) {
                let sq = &queues.sqs[index];
                arbiter.push(sq.id, sq.class);
            }
        });
        let heads = self.pending.heads.take(|cq| {
            if cq == 0 {
                return self.run_all(cq);
            }
            let mut queues = self.groups[cq].queues.lock();
            self.complete_due(cq, &mut queues);
            for sq in queues.sqs.iter().filter(|sq| sq.head != sq.tail) {
                arbiter.push(sq.id, sq.class);
            }
        });
        tails || heads
    }

    fn serve_tail(&self, queue: usize) {
        if let Some((cq, mut queues, index)) = self.take_tail(queue) {
            self.run(cq, &mut queues, index);
        }
    }

    /// As [`Self::tail_doorbell`], with the newest value, which is taken under the queue's lock: a value from
    /// before a reset never meets a queue from after it. Answers the completion queue, its group, and the
    /// queue's index in that, if there is something to do.
    fn take_tail(&self, queue: usize) -> Option<(usize, MutexGuard<'_, Queues>, usize)> {
        let value = &self.pending.values[queue];
        let route = self.routes[queue].load(Ordering::Acquire);
        if route == 0 {
            if value.swap(0, Ordering::AcqRel) & RUNG != 0 {
                self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
            }
            return None;
        }
        let cq = route as usize - 1;
        let mut queues = self.groups[cq].queues.lock();
        let Some(index) = queues.sqs.iter().position(|sq| usize::from(sq.id) == queue) else {
            // Deleted, or made anew elsewhere, between the two looks: look again in the next round.
            drop(queues);
            self.pending.tails.set(queue);
            return None;
        };
        let tail = value.swap(0, Ordering::AcqRel);
        let sq = &mut queues.sqs[index];
        if tail & RUNG == 0 {
            return None;
        }
        if tail & 0xffff >= u32::from(sq.entries) {
            drop(queues);
            self.event(AsyncEvent::INVALID_DOORBELL_VALUE);
            return None;
        }
        sq.tail = tail.low();
        Some((cq, queues, index))
    }

    /// Records an asynchronous event and reports it if the host waits for one. A controller that is not
    /// ready has no events: what is written to it then is the host's affair.
    #[cold]
    pub(crate) fn event(&self, event: AsyncEvent) {
        if self.status().rdy() == 0 {
            return;
        }
        self.admin.lock().record(event);
        self.deliver_events(&mut self.groups[0].queues.lock());
    }
}
