//! The controller: properties, enabling, doorbells (Base 2.0, 3.1.3 and 3.5).

use crate::admin::AdminState;
use crate::config::{Clock, ControllerConfig};
use crate::log::{Counters, ErrorLog};
use crate::media::Media;
use crate::queue::{CompletionQueue, HeadDoorbell, SubmissionQueue};
use crate::transport::Bell;
use nvmed_dma::{AddressSpace, DeviceAddress};
use nvmed_nvme::register::{self, AdminQueueAttributes, Capabilities, Configuration, ControllerStatus};
use nvmed_nvme::{AsyncEvent, CompletionEntry};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shutdown Status: complete.
const SHST_COMPLETE: u32 = 2;

/// The writable properties.
#[derive(Debug, Default)]
struct Properties {
    cc: Configuration,
    interrupt_mask: u32,
    aqa: AdminQueueAttributes,
    asq: u64,
    acq: u64,
}

/// A completion queue with the submission queues that complete to it: one lock for all of a command.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub cq: Option<CompletionQueue>,
    pub sqs: Vec<SubmissionQueue>,
}

/// A group's place, and what the host's head doorbell reaches without the lock.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub group: Mutex<Group>,
    pub head: HeadDoorbell,
    /// A submission queue waits for room in the completion queue.
    pub blocked: AtomicBool,
}

/// A virtual NVMe controller with one namespace.
///
/// Locks are taken in the order group 0, group N, admin state or error log.
pub struct Controller {
    pub(crate) config: ControllerConfig,
    pub(crate) media: Media,
    pub(crate) space: AddressSpace,
    pub(crate) lba_shift: u32,
    pub(crate) lba_count: u64,
    properties: Mutex<Properties>,
    status: AtomicU32,
    /// Groups, by completion queue.
    pub(crate) places: Box<[Place]>,
    /// Submission queue to completion queue, plus one; 0 is no such queue.
    pub(crate) routes: Box<[AtomicU32]>,
    /// Counters of deleted queues.
    pub(crate) retired: Mutex<Counters>,
    /// Tail doorbells that the device thread has not seen; the value's bit 31 says that there is one.
    tails: Box<[AtomicU32]>,
    pub(crate) admin: Mutex<AdminState>,
    pub(crate) errors: Mutex<ErrorLog>,
    /// The Volatile Write Cache feature, where the write path looks.
    write_cache: AtomicBool,
    /// Rung for the host when completions were posted, for the device when doorbells were.
    pub(crate) posted: Bell,
    pub(crate) rung: Bell,
}

const RUNG: u32 = 1 << 31;

/// A lock's content, also after a panic of another holder: every state in here is valid between statements.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// A controller over `media`, disabled, as after power-on.
    ///
    /// # Panics
    /// When `config` is outside its documented ranges.
    #[must_use]
    pub fn new(config: ControllerConfig, media: Media) -> Arc<Self> {
        config.check();
        let places = usize::from(config.queues_max) + 1;
        let lba_shift = config.lba_bytes.trailing_zeros();
        let lba_count = media.bytes() >> lba_shift;
        Arc::new(Self {
            lba_shift,
            lba_count,
            media,
            space: AddressSpace::default(),
            properties: Mutex::default(),
            status: AtomicU32::new(0),
            places: (0..places).map(|_| Place::default()).collect(),
            routes: (0..places).map(|_| AtomicU32::new(0)).collect(),
            retired: Mutex::default(),
            tails: (0..places).map(|_| AtomicU32::new(0)).collect(),
            admin: Mutex::new(AdminState::default()),
            errors: Mutex::default(),
            write_cache: AtomicBool::new(true),
            posted: Bell::default(),
            rung: Bell::default(),
            config,
        })
    }

    /// Commands and bytes since the controller was made, all queues together.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let live = |place: &Place| {
            let group = locked(&place.group);
            group.sqs.iter().map(|sq| sq.counters).fold(Counters::default(), Counters::plus)
        };
        // Not group 0: it executes no I/O command, and its lock is held while it makes a SMART log of these.
        self.places[1..].iter().map(live).fold(*locked(&self.retired), Counters::plus)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_mqes(u64::from(self.config.queue_entries_max) - 1)
            .with_cqr(1)
            .with_to(10)
            .with_css(1)
    }

    /// Reads a property. What does not exist reads as zero.
    #[must_use]
    pub fn read32(&self, offset: u32) -> u32 {
        let properties = || locked(&self.properties);
        match offset {
            register::CAP => self.capabilities().0 as u32,
            0x04 => (self.capabilities().0 >> 32) as u32,
            register::VS => register::VERSION_1_4,
            register::INTMS | register::INTMC => properties().interrupt_mask,
            register::CC => properties().cc.0,
            register::CSTS => self.status.load(Ordering::Acquire),
            register::AQA => properties().aqa.0,
            register::ASQ => properties().asq as u32,
            0x2c => (properties().asq >> 32) as u32,
            register::ACQ => properties().acq as u32,
            0x34 => (properties().acq >> 32) as u32,
            _ => 0,
        }
    }

    /// Writes a property or rings a doorbell. What is read-only or does not exist ignores it.
    #[inline]
    pub fn write32(&self, offset: u32, value: u32) {
        if offset >= register::DOORBELLS {
            self.doorbell(offset, value);
        } else {
            self.write_property(offset, value);
        }
    }

    fn write_property(&self, offset: u32, value: u32) {
        let low = |word: u64| word & !0xffff_ffff | u64::from(value);
        let high = |word: u64| word & 0xffff_ffff | u64::from(value) << 32;
        let mut properties = locked(&self.properties);
        match offset {
            register::INTMS => properties.interrupt_mask |= value,
            register::INTMC => properties.interrupt_mask &= !value,
            register::AQA => properties.aqa = AdminQueueAttributes(value & 0x0fff_0fff),
            register::ASQ => properties.asq = low(properties.asq),
            0x2c => properties.asq = high(properties.asq),
            register::ACQ => properties.acq = low(properties.acq),
            0x34 => properties.acq = high(properties.acq),
            register::CC => {
                // Linux since 5.19 writes CC once without EN and once with: only EN's edges act.
                let before = std::mem::replace(&mut properties.cc, Configuration(value));
                self.configure(&mut properties, before);
            }
            _ => {}
        }
    }

    fn configure(&self, properties: &mut Properties, before: Configuration) {
        match (before.en(), properties.cc.en()) {
            (0, 1) => self.enable(properties),
            (1, 0) => self.reset(),
            _ => {}
        }
        if properties.cc.shn() != 0 && before.shn() == 0 {
            // Shutdown complete even when the flush fails: the host is told by its own Flush.
            let _ = self.media.flush();
            self.change_status(|status| status.with_shst(SHST_COMPLETE));
        }
    }

    fn change_status(&self, change: impl Fn(ControllerStatus) -> ControllerStatus) {
        let before = ControllerStatus(self.status.load(Ordering::Acquire));
        self.status.store(change(before).0, Ordering::Release);
        self.posted.ring();
    }

    /// The controller cannot go on until it is reset.
    pub(crate) fn fail(&self) {
        self.change_status(|status| status.with_cfs(1));
    }

    fn enable(&self, properties: &Properties) {
        let cc = properties.cc;
        let (sq, cq) = (properties.aqa.asqs() as u16 + 1, properties.aqa.acqs() as u16 + 1);
        let (asq, acq) = (DeviceAddress(properties.asq), DeviceAddress(properties.acq));
        let reach = |base: DeviceAddress, entries: u16, bytes: usize| {
            base.0.is_multiple_of(4096) && self.space.resolve(base, usize::from(entries) * bytes).is_ok()
        };
        let sound = cc.css() == 0 && cc.mps() == 0 && cc.ams() == 0 && sq >= 2 && cq >= 2;
        if !sound || !reach(asq, sq, 64) || !reach(acq, cq, 16) {
            return self.fail();
        }
        let mut admin = locked(&self.places[0].group);
        admin.cq = Some(CompletionQueue::new(acq, cq));
        admin.sqs = vec![SubmissionQueue::new(0, asq, sq)];
        drop(admin);
        self.places[0].head.set(0);
        self.routes[0].store(1, Ordering::Release);
        self.change_status(|_| ControllerStatus::default().with_rdy(1));
    }

    /// Controller Level Reset (Base 2.0, 3.7.2): queues and outstanding events go, AQA, ASQ and ACQ stay.
    fn reset(&self) {
        for tail in &self.tails {
            tail.store(0, Ordering::Release);
        }
        for (place, route) in self.places.iter().zip(&self.routes) {
            route.store(0, Ordering::Release);
            let group = std::mem::take(&mut *locked(&place.group));
            let gone = group.sqs.iter().map(|sq| sq.counters).fold(Counters::default(), Counters::plus);
            let mut retired = locked(&self.retired);
            *retired = retired.plus(gone);
            drop(retired);
            place.head.set(0);
            place.blocked.store(false, Ordering::Release);
        }
        locked(&self.admin).reset();
        self.enable_write_cache(true);
        self.change_status(|_| ControllerStatus::default());
    }

    #[inline]
    fn doorbell(&self, offset: u32, value: u32) {
        let index = (offset - register::DOORBELLS) / 4;
        let queue = (index / 2) as usize;
        if queue >= self.places.len() {
            return self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        if index % 2 == 1 {
            self.head_doorbell(queue, value);
        } else if self.config.clock == Clock::Inline {
            self.tail_doorbell(queue, value);
        } else {
            self.tails[queue].store(value & 0xffff | RUNG, Ordering::Release);
            self.rung.ring();
        }
    }

    #[inline]
    fn head_doorbell(&self, queue: usize, value: u32) {
        let place = &self.places[queue];
        place.head.set(value as u16);
        // Pairs with the store of `blocked` before the second look at `head` in `has_room`: one of the two
        // sides sees the other's store.
        if place.blocked.swap(false, Ordering::SeqCst) {
            self.resume(queue);
        }
    }

    /// Goes on with the submission queues of a completion queue that has room again.
    #[cold]
    fn resume(&self, cq: usize) {
        if self.config.clock == Clock::Threaded {
            self.rung.ring();
        } else {
            let mut group = locked(&self.places[cq].group);
            for index in 0..group.sqs.len() {
                self.run(cq, &mut group, index);
            }
        }
    }

    #[inline]
    fn tail_doorbell(&self, queue: usize, value: u32) {
        let route = self.routes[queue].load(Ordering::Acquire);
        if route == 0 {
            return self.event(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        let cq = route as usize - 1;
        let mut group = locked(&self.places[cq].group);
        let Some(index) = group.sqs.iter().position(|sq| usize::from(sq.id) == queue) else { return };
        let sq = &mut group.sqs[index];
        if value >= u32::from(sq.entries) {
            drop(group);
            return self.event(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
        sq.tail = value as u16;
        self.run(cq, &mut group, index);
    }

    #[inline]
    fn run(&self, cq: usize, group: &mut Group, index: usize) {
        if cq == 0 { self.run_admin(group) } else { self.run_io(&self.places[cq], group, index) }
    }

    #[inline]
    fn run_io(&self, place: &Place, group: &mut Group, index: usize) {
        let Group { cq: Some(cq), sqs } = group else { return };
        let sq = &mut sqs[index];
        let mut posted = false;
        while sq.head != sq.tail && place.has_room(cq) {
            let Some(Ok(entry)) = sq.fetch(&self.space) else { return self.fail() };
            let status = self.execute_io(&entry);
            sq.counters.count(&entry, self.lba_shift, status);
            if !status.is_success() {
                locked(&self.errors).push(sq.id, &entry, status);
            }
            if cq.post(&self.space, completion(sq, entry.cid, 0), status).is_err() {
                return self.fail();
            }
            posted = true;
        }
        if posted && self.config.clock == Clock::Threaded {
            self.posted.ring();
        }
    }

    fn run_admin(&self, group: &mut Group) {
        loop {
            let Group { cq: Some(cq), sqs } = &mut *group else { return };
            let sq = &mut sqs[0];
            if sq.head == sq.tail || !self.places[0].has_room(cq) {
                return;
            }
            let Some(Ok(entry)) = sq.fetch(&self.space) else { return self.fail() };
            if let Some((result, status)) = self.execute_admin(&entry) {
                if !status.is_success() {
                    locked(&self.errors).push(0, &entry, status);
                }
                if cq.post(&self.space, completion(sq, entry.cid, result), status).is_err() {
                    return self.fail();
                }
                self.posted.ring();
            }
            self.deliver_events(group);
        }
    }

    /// Whether written data may stay in the medium's cache.
    #[inline]
    pub(crate) fn write_cache_enabled(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    pub(crate) fn enable_write_cache(&self, enabled: bool) {
        self.write_cache.store(enabled, Ordering::Release);
    }

    /// Records an asynchronous event and reports it if the host waits for one.
    fn event(&self, event: AsyncEvent) {
        locked(&self.admin).record(event);
        self.deliver_events(&mut locked(&self.places[0].group));
    }

    /// Completes held Asynchronous Event Requests: with recorded events, and those that were aborted.
    fn deliver_events(&self, group: &mut Group) {
        let Group { cq: Some(cq), sqs } = group else { return };
        while self.places[0].has_room(cq) {
            let Some((cid, result, status)) = locked(&self.admin).next_held() else { return };
            if cq.post(&self.space, completion(&sqs[0], cid, result), status).is_err() {
                return self.fail();
            }
            self.posted.ring();
        }
    }

    /// One round of the device thread: takes the doorbells that were rung; whether there were any.
    pub(crate) fn serve(&self) -> bool {
        let mut any = false;
        for (queue, tail) in self.tails.iter().enumerate() {
            let tail = tail.swap(0, Ordering::AcqRel);
            if tail & RUNG != 0 {
                any = true;
                self.tail_doorbell(queue, tail & 0xffff);
            }
        }
        for (cq, place) in self.places.iter().enumerate() {
            let mut group = locked(&place.group);
            for index in 0..group.sqs.len() {
                self.run(cq, &mut group, index);
            }
        }
        any
    }
}

impl Place {
    /// Whether one more entry fits; if not, the host's next head doorbell resumes the queue.
    #[inline]
    fn has_room(&self, cq: &CompletionQueue) -> bool {
        if !cq.is_full(self.head.get()) {
            return true;
        }
        self.blocked.store(true, Ordering::SeqCst);
        !cq.is_full(self.head.get())
    }
}

#[inline]
fn completion(sq: &SubmissionQueue, cid: u16, result: u32) -> CompletionEntry {
    CompletionEntry { result, sq_head: sq.head, sq_id: sq.id, cid, ..CompletionEntry::default() }
}
