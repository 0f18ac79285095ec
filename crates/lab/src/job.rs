//! One thread's load on a handle: the measured loop.

use crate::error::LabError;
use crate::load::{Load, Step, Walk};
use crate::recorder::Recorder;
use crate::verify::Verify;
use nvmed_dice::Dice;
use nvmed_engine::{Operation, Request, Segment};
use nvmed_io::{Handle, SubmitError, Ticket};
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

/// A request that is with the device.
struct Flight {
    ticket: Ticket,
    step: Step,
    begin_ns: u64,
}

/// A load on a handle, with everything that it needs: the loop itself allocates nothing.
pub struct Job {
    handle: Handle,
    memory: Arc<Mapping>,
    /// One of each request in flight.
    buffers: Vec<Segment>,
    flights: Vec<Option<Flight>>,
    walk: Walk,
    load: Load,
    lba_shift: u32,
    verify: Option<Arc<Verify>>,
    /// Where data is checked; empty without `verify`.
    scratch: Vec<u8>,
}

impl Job {
    /// Prepares `load` on `handle`: memory in huge frames, mapped and touched.
    ///
    /// # Errors
    /// The load does not fit the device, or there is no memory that it reaches.
    pub fn new(handle: Handle, load: Load, verify: Option<Arc<Verify>>) -> Result<Self, LabError> {
        let device = Arc::clone(handle.device());
        let lba_bytes = device.geometry().lba_bytes;
        load.check(device.lba_count().saturating_mul(u64::from(lba_bytes)), lba_bytes)?;
        let depth = usize::from(load.depth);
        let stride = (load.block_bytes as usize).next_multiple_of(4096);
        let memory = Arc::new(device.engine().memory(stride * depth, Pages::Huge)?);
        let address = device.map(Arc::clone(&memory))?;
        let buffer = |index: usize| Segment {
            address: address.plus((index * stride) as u64),
            bytes: load.block_bytes,
        };
        let scratch = if verify.is_some() { vec![0; load.block_bytes as usize] } else { Vec::new() };
        let job = Self {
            handle,
            memory,
            buffers: (0..depth).map(buffer).collect(),
            flights: (0..depth).map(|_| None).collect(),
            walk: Walk::new(&load),
            load,
            lba_shift: lba_bytes.trailing_zeros(),
            verify,
            scratch,
        };
        job.scatter();
        Ok(job)
    }

    /// Puts something that does not compress into the buffers.
    fn scatter(&self) {
        let mut dice = Dice::new(self.load.seed);
        for offset in (0..self.memory.len()).step_by(8) {
            self.memory.write(offset, &dice.next().to_le_bytes());
        }
    }

    /// Runs until `count` requests are done, or the recorder stops it.
    ///
    /// # Errors
    /// A request failed, or read data is not what was written.
    pub fn run(&mut self, count: u64, recorder: &Recorder) -> Result<(), LabError> {
        let result = if self.load.depth == 1 && self.verify.is_none() {
            self.one_by_one(count, recorder)
        } else {
            self.many(count, recorder)
        };
        // Whatever a failed loop has left.
        self.handle.drain();
        self.flights.fill_with(|| None);
        result
    }

    /// Depth 1: synchronous calls. The end of one is the beginning of the next.
    fn one_by_one(&mut self, count: u64, recorder: &Recorder) -> Result<(), LabError> {
        let data = [self.buffers[0]];
        let mut begin = recorder.stamp();
        for _ in 0..count {
            let step = self.walk.step();
            let lba = step.lba(self.lba_shift);
            if step.read {
                self.handle.read(lba, &data)?;
            } else {
                self.handle.write(lba, &data, false)?;
            }
            begin = recorder.done(step.read, begin);
            if recorder.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Deeper: every free place gets a request, one doorbell tells of them all, and the oldest is waited for.
    fn many(&mut self, count: u64, recorder: &Recorder) -> Result<(), LabError> {
        let depth = self.flights.len();
        let (mut started, mut done) = (0u64, 0u64);
        let mut now = recorder.stamp();
        while done < count {
            while started < count && started - done < depth as u64 && !recorder.is_stopped() {
                if !self.start((started % depth as u64) as usize, now)? {
                    break;
                }
                started += 1;
            }
            self.handle.ring();
            if started == done {
                break;
            }
            // The oldest is waited for; those behind it that are done are taken with it.
            loop {
                now = self.finish((done % depth as u64) as usize, recorder)?;
                done += 1;
                if done == started || !self.is_done((done % depth as u64) as usize) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Puts the next request into place `slot`; `false` when the queue has no room.
    fn start(&mut self, slot: usize, begin_ns: u64) -> Result<bool, LabError> {
        let before = self.walk.clone();
        let step = self.walk.step();
        let lba = step.lba(self.lba_shift);
        if let (Some(verify), false) = (&self.verify, step.read) {
            verify.fill(lba.0, &mut self.scratch);
            self.memory.write(self.memory_offset(slot), &self.scratch);
        }
        let operation = if step.read { Operation::Read } else { Operation::Write { fua: false } };
        let data = [self.buffers[slot]];
        let blocks = self.load.block_bytes >> self.lba_shift;
        let request = Request { operation, lba, blocks, data: &data, tag: 0, stream: 0 };
        match self.handle.enqueue(&request) {
            Ok(ticket) => {
                self.flights[slot] = Some(Flight { ticket, step, begin_ns });
                Ok(true)
            }
            Err(SubmitError::NoSlot) => {
                self.walk = before;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn memory_offset(&self, slot: usize) -> usize {
        slot * (self.load.block_bytes as usize).next_multiple_of(4096)
    }

    fn is_done(&self, slot: usize) -> bool {
        self.flights[slot].as_ref().is_some_and(|flight| self.handle.poll(&flight.ticket).is_some())
    }

    /// Waits for the request in place `slot`; answers when it was done.
    fn finish(&mut self, slot: usize, recorder: &Recorder) -> Result<u64, LabError> {
        let Some(Flight { ticket, step, begin_ns }) = self.flights[slot].take() else { return Ok(0) };
        self.handle.wait(ticket)?;
        let now = recorder.done(step.read, begin_ns);
        if let Some(verify) = &self.verify {
            let lba = step.lba(self.lba_shift).0;
            let lbas = u64::from(self.load.block_bytes >> self.lba_shift);
            if !step.read {
                verify.note(lba, lbas);
            } else if verify.is_written(lba, lbas) {
                self.memory
                    .read(slot * (self.load.block_bytes as usize).next_multiple_of(4096), &mut self.scratch);
                verify.check(lba, &self.scratch)?;
            }
        }
        Ok(now)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(first) = self.buffers.first() {
            self.handle.drain();
            self.handle.device().unmap(first.address);
        }
    }
}
