//! The controller: properties, enabling, shutdown, reset (Base 2.0, 3.1.3, 3.5 to 3.7).

use crate::admin::AdminState;
use crate::arbiter::URGENT;
use crate::config::{Clock, ControllerConfig};
use crate::counters::{Counters, ErrorLog};
use crate::directive::{StreamUse, Streams};
use crate::drive::Drive;
use crate::group::Group;
use crate::kept::KeptDrive;
use crate::media::Media;
use crate::pending::Pending;
use crate::probe::Doorbells;
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::time::Time;
use nvmed_dma::Bell;
use nvmed_dma::{AddressSpace, DeviceAddress, Distant, MapError};
use nvmed_image::Identity;
use nvmed_nvme::register::{self, AdminQueueAttributes, Capabilities, Configuration, ControllerStatus};
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_sys::{Mapping, QuietFd};
use nvmed_units::Halves;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Shutdown Status: complete.
const SHST_COMPLETE: u32 = 2;

/// What makes a controller another than one that works at once.
pub(crate) mod shape {
    /// It has a drive, whose commands take time.
    pub(crate) const DRIVE: u8 = 1;
    /// A fault has stopped it.
    pub(crate) const STOPPED: u8 = 2;
    /// It says so.
    pub(crate) const FATAL: u8 = 4;
    /// A reset does not help.
    pub(crate) const STICKY: u8 = 8;
    /// It was pulled out.
    pub const GONE: u8 = 16;
    /// Its requests are recorded.
    pub(crate) const RECORDED: u8 = 32;
}

/// Who serves a tail doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Who rings it.
    AtOnce,
    /// The device thread.
    ByThread,
    /// The drive: with a thread, or without.
    ByDrive,
    /// One of these, when the probe has noted the time.
    Recorded,
}

impl Served {
    /// Who serves those of a controller, whether or not its requests are recorded.
    pub fn of(config: &ControllerConfig) -> Self {
        match config.clock {
            _ if config.drive.is_some() => Self::ByDrive,
            Clock::Threaded => Self::ByThread,
            Clock::Inline | Clock::Virtual => Self::AtOnce,
        }
    }
}

/// The writable properties.
#[derive(Debug, Default)]
struct Properties {
    interrupt_mask: u32,
    aqa: AdminQueueAttributes,
    asq: u64,
    acq: u64,
}

/// A virtual NVMe controller with one namespace.
///
/// Locks are taken in the order properties, group 0, drive, group N, and then one of admin state, streams, error log,
/// retired counters, bells, the drive's doorbells
/// and what it has done for the admin queue. Nobody holds two groups N.
pub struct Controller {
    pub(crate) config: ControllerConfig,
    /// What tells it from other devices.
    pub(crate) identity: Identity,
    pub(crate) serial: String,
    pub(crate) media: Media,
    pub(crate) space: AddressSpace,
    pub(crate) lba_shift: u32,
    /// Logical blocks; see [`Controller::lba_count`].
    pub(crate) lbas: AtomicU64,
    /// Held while the size changes.
    pub(crate) resizing: Mutex<()>,
    properties: Mutex<Properties>,
    cc: AtomicU32,
    status: AtomicU32,
    /// Groups, by completion queue.
    pub(crate) groups: Box<[Group]>,
    /// Submission queue to completion queue, plus one; 0 is no such queue.
    pub(crate) routes: Box<[AtomicU32]>,
    /// Counters of deleted queues.
    pub(crate) retired: Mutex<Counters>,
    /// What the device thread has to look at, where there is one.
    pub(crate) pending: Pending,
    pub(crate) admin: Mutex<AdminState>,
    pub(crate) streams: Mutex<Streams>,
    pub(crate) errors: Mutex<ErrorLog>,
    /// Why commands may complete otherwise than at once, see [`shape`].
    pub(crate) shape: AtomicU8,
    pub(crate) time: Time,
    /// What makes I/O commands take time, if they do.
    pub(crate) drive: Option<Box<Drive>>,
    /// Who serves tail doorbells.
    pub(crate) served: Served,
    /// The probe, where requests are recorded.
    pub(crate) doorbells: Option<Box<Doorbells>>,
    /// Outstanding commands of all groups, and one more if there is a drive: zero if no time has to be kept.
    pub(crate) outstanding: AtomicU32,
    /// The Volatile Write Cache feature, where the write path looks.
    write_cache: AtomicBool,
    /// Rung for the host when completions were posted: one a vector.
    pub(crate) bells: Box<[Bell]>,
    /// Rung for the device thread when doorbells were.
    pub(crate) rung: Bell,
    /// When it was made, by its clock.
    pub(crate) made_ns: u64,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.rest_drive();
    }
}

impl Controller {
    /// A controller over `media`, disabled, as after power-on.
    ///
    /// # Panics
    /// When `config` is outside its documented ranges.
    #[must_use]
    pub fn new(config: ControllerConfig, media: Media) -> Arc<Self> {
        let drive = config.drive.as_ref().map(|profile| Box::new(Drive::new(profile)));
        Self::over(config, media, drive)
    }

    /// As [`Self::new`], with a drive of the config's profile whose state is kept.
    ///
    /// # Panics
    /// As [`Self::new`], and when the config names no profile.
    #[must_use]
    pub fn with_kept_drive(config: ControllerConfig, media: Media, drive: KeptDrive) -> Arc<Self> {
        let profile = config.drive.as_ref().expect("a kept drive has a profile");
        let error_entries = drive.kept.life.error_entries;
        let drive = Box::new(Drive::kept(profile, drive));
        let controller = Self::over(config, media, Some(drive));
        *controller.errors.lock() = ErrorLog::after(error_entries);
        controller
    }

    fn over(config: ControllerConfig, media: Media, drive: Option<Box<Drive>>) -> Arc<Self> {
        config.check();
        assert!(
            media.bytes() <= config.drive_bytes(),
            "a medium of {} bytes in a smaller drive",
            media.bytes()
        );
        let queues = usize::from(config.queues_max) + 1;
        let lba_shift = config.lba_bytes.trailing_zeros();
        let lba_count = media.bytes() >> lba_shift;
        let identity = media.identity();
        let time = Time::new(config.clock == Clock::Virtual);
        let doorbells = Doorbells::of(&config);
        let recorded = if doorbells.is_some() { shape::RECORDED } else { 0 };
        Arc::new(Self {
            serial: config.serial.clone().unwrap_or_else(|| identity.serial()),
            identity,
            lba_shift,
            lbas: AtomicU64::new(lba_count),
            resizing: Mutex::default(),
            media,
            space: AddressSpace::default(),
            properties: Mutex::default(),
            cc: AtomicU32::new(0),
            status: AtomicU32::new(0),
            groups: (0..queues).map(|_| Group::default()).collect(),
            routes: (0..queues).map(|_| AtomicU32::new(0)).collect(),
            retired: Mutex::default(),
            pending: Pending::new(queues),
            admin: Mutex::new(AdminState::default()),
            streams: Mutex::default(),
            errors: Mutex::default(),
            shape: AtomicU8::new(recorded | if drive.is_some() { shape::DRIVE } else { 0 }),
            made_ns: time.now_ns(),
            time,
            served: if doorbells.is_some() { Served::Recorded } else { Served::of(&config) },
            doorbells,
            outstanding: AtomicU32::new(u32::from(drive.is_some())),
            drive,
            write_cache: AtomicBool::new(true),
            bells: (0..queues).map(|_| Bell::default()).collect(),
            rung: Bell::watched(),
            config,
        })
    }

    /// Commands and bytes since the controller was made, all queues together.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let live = |group: &Group| {
            let queues = group.queues.lock();
            queues.sqs.iter().map(|sq| sq.counters).fold(Counters::default(), Counters::plus)
        };
        // Not group 0: it executes no I/O command, and its lock is held while it makes a SMART log of these.
        // A queue that is deleted meanwhile may be missed this once; its lock is not taken under `retired`'s.
        let live = self.groups[1..].iter().map(live).fold(Counters::default(), Counters::plus);
        live.plus(*self.retired.lock())
    }

    /// What was written to each stream since the controller was made, by identifier.
    #[must_use]
    pub fn streams(&self) -> Vec<(u16, StreamUse)> {
        self.streams.lock().used()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_mqes(u64::from(self.config.queue_entries_max) - 1)
            .with_cqr(1)
            // Weighted round robin with urgent priority class.
            .with_ams(1)
            .with_to(10)
            .with_dstrd(u64::from(self.config.doorbell_stride))
            .with_css(1)
    }

    /// Lets the controller reach `memory` at an address of the host's choice, until [`Self::unmap_range`].
    ///
    /// # Errors
    /// What [`AddressSpace::map_at`] answers.
    pub fn map_at(&self, address: DeviceAddress, memory: Arc<Mapping>) -> Result<(), MapError> {
        self.space.map_at(address, memory)
    }

    /// As [`Self::map_at`], of memory that cannot be mapped: the controller works on `copy`.
    ///
    /// # Errors
    /// What [`AddressSpace::map_distant`] answers.
    pub fn map_distant(
        &self,
        address: DeviceAddress,
        copy: Arc<Mapping>,
        distant: Arc<dyn Distant>,
    ) -> Result<(), MapError> {
        self.space.map_distant(address, copy, distant)
    }

    /// Ends the controller's reach of the ranges within `len` bytes from `address`, whose bytes it answers.
    /// When it returns, no access to them is under way and the controller does not keep their memory.
    ///
    /// # Errors
    /// What [`AddressSpace::unmap_range`] answers; nothing has changed then.
    pub fn unmap_range(&self, address: DeviceAddress, len: u64) -> Result<u64, MapError> {
        let bytes = self.space.unmap_range(address, len)?;
        self.settle();
        Ok(bytes)
    }

    /// As [`Self::unmap_range`], of a mapping whose address was the space's choice.
    pub(crate) fn unmap(&self, address: DeviceAddress) {
        self.space.unmap(address);
        self.settle();
    }

    /// Waits until every queue has seen all that was changed before.
    pub(crate) fn settle(&self) {
        for group in &self.groups {
            group.queues.lock().refresh(&self.space);
        }
        self.settle_host_memory();
    }

    /// Interrupt vectors that completion queues can have: one for the admin queue, and one for each I/O queue.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.bells.len() as u16
    }

    /// The bell of a vector, whose rings count from now on.
    pub(crate) fn bell(&self, vector: u16) -> Option<&Bell> {
        let bell = self.bells.get(usize::from(vector))?;
        if !bell.watch() {
            // Bells are rung under their queues' locks.
            self.settle();
        }
        Some(bell)
    }

    /// Sends the interrupts of a vector to `fd`, an eventfd, from now on; `None` ends that. A write to the
    /// descriptor must not block. Answers whether there is such a vector.
    pub fn connect_interrupt(&self, vector: u16, fd: Option<OwnedFd>) -> bool {
        self.bell(vector).map(|bell| bell.connect(fd.map(QuietFd::new))).is_some()
    }

    /// Calls `change` for the vectors of `mask`'s bits.
    fn masked(&self, mask: u32, change: impl Fn(&Bell)) {
        self.bells
            .iter()
            .take(32)
            .enumerate()
            .filter(|(vector, _)| mask >> vector & 1 != 0)
            .for_each(|(_, bell)| change(bell));
    }

    /// Pulls the controller out: properties read as all ones, nothing completes any more. When it returns, the
    /// controller touches no memory of the host.
    pub fn remove(&self) {
        self.vanish();
        self.settle();
    }

    /// As [`Self::remove`], for a caller that holds a queue's lock.
    pub(crate) fn vanish(&self) {
        self.reshape(shape::GONE);
        self.bells.iter().for_each(Bell::nudge);
    }

    pub(crate) fn gone(&self) -> bool {
        self.shape.load(Ordering::Acquire) & shape::GONE != 0
    }

    pub(crate) fn reshape(&self, with: u8) {
        self.shape.fetch_or(with, Ordering::AcqRel);
    }

    /// What a reset does to a controller that a fault has stopped.
    fn cure(&self) {
        if self.shape.load(Ordering::Acquire) & shape::STICKY == 0 {
            self.shape.fetch_and(!(shape::STOPPED | shape::FATAL), Ordering::AcqRel);
        }
    }

    /// Reads a property. What does not exist reads as zero.
    #[must_use]
    pub fn read32(&self, offset: u32) -> u32 {
        if self.gone() {
            return u32::MAX;
        }
        let properties = || self.properties.lock();
        match offset {
            register::CAP => self.capabilities().0.low(),
            0x04 => self.capabilities().0.high(),
            register::VS => register::VERSION_1_4,
            register::INTMS | register::INTMC => properties().interrupt_mask,
            register::CC => self.cc.load(Ordering::Acquire),
            register::CSTS => self.status().0,
            register::AQA => properties().aqa.0,
            register::ASQ => properties().asq.low(),
            0x2c => properties().asq.high(),
            register::ACQ => properties().acq.low(),
            0x34 => properties().acq.high(),
            _ => 0,
        }
    }

    /// Writes a property or rings a doorbell. What is read-only, does not exist or is not 4-byte aligned
    /// ignores it.
    #[inline]
    pub fn write32(&self, offset: u32, value: u32) {
        if !offset.is_multiple_of(4) {
            return;
        }
        if offset >= register::DOORBELLS {
            self.doorbell(offset, value);
        } else {
            self.write_property(offset, value);
        }
    }

    fn write_property(&self, offset: u32, value: u32) {
        if self.gone() {
            return;
        }
        let low = |word: u64| word & !0xffff_ffff | u64::from(value);
        let high = |word: u64| word & 0xffff_ffff | u64::from(value) << 32;
        let mut properties = self.properties.lock();
        match offset {
            register::INTMS => {
                properties.interrupt_mask |= value;
                self.masked(value, Bell::mask);
            }
            register::INTMC => {
                properties.interrupt_mask &= !value;
                self.masked(value, Bell::unmask);
            }
            register::AQA => properties.aqa = AdminQueueAttributes(value & 0x0fff_0fff),
            register::ASQ => properties.asq = low(properties.asq),
            0x2c => properties.asq = high(properties.asq),
            register::ACQ => properties.acq = low(properties.acq),
            0x34 => properties.acq = high(properties.acq),
            register::CC => {
                // Linux since 5.19 writes CC once without EN and once with: only EN's edges act.
                let before = Configuration(self.cc.swap(value, Ordering::AcqRel));
                self.configure(&mut properties, before, Configuration(value));
            }
            _ => {}
        }
    }

    fn configure(&self, properties: &mut Properties, before: Configuration, cc: Configuration) {
        match (before.en(), cc.en()) {
            (0, 1) => self.enable(properties, cc),
            (1, 0) => {
                properties.interrupt_mask = 0;
                self.reset();
            }
            _ => {}
        }
        if cc.shn() != 0 && before.shn() == 0 {
            // Shutdown complete even when the flush fails: the host is told by its own Flush.
            let _ = self.media.flush();
            self.rest_drive();
            self.rest_recorder();
            self.change_status(|status| status.with_shst(SHST_COMPLETE));
        }
    }

    /// Controller Configuration as the host wrote it last.
    pub(crate) fn configuration(&self) -> Configuration {
        Configuration(self.cc.load(Ordering::Acquire))
    }

    pub(crate) fn status(&self) -> ControllerStatus {
        ControllerStatus(self.status.load(Ordering::Acquire))
    }

    fn change_status(&self, change: impl Fn(ControllerStatus) -> ControllerStatus) {
        let changed = |before| Some(change(ControllerStatus(before)).0);
        // The closure never refuses, so that this never fails.
        let _ = self.status.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
        self.bells.iter().for_each(Bell::nudge);
    }

    /// The controller cannot go on until it is reset.
    pub(crate) fn fail(&self) {
        self.change_status(|status| status.with_cfs(1));
    }

    fn enable(&self, properties: &Properties, cc: Configuration) {
        if self.config.faults.armed() && self.config.faults.refuses_ready() {
            return;
        }
        if self.shape.load(Ordering::Acquire) & shape::FATAL != 0 {
            return self.fail();
        }
        let (sq, cq) = (properties.aqa.asqs().low() + 1, properties.aqa.acqs().low() + 1);
        let (asq, acq) = (DeviceAddress(properties.asq), DeviceAddress(properties.acq));
        let view = self.space.view();
        let reach = |base: DeviceAddress, entries: u16, bytes: usize| {
            base.0.is_multiple_of(4096) && view.covers(base, usize::from(entries) * bytes)
        };
        let sound = cc.css() == 0 && cc.mps() == 0 && cc.ams() <= 1 && sq >= 2 && cq >= 2;
        if !sound || !reach(asq, sq, 64) || !reach(acq, cq, 16) {
            return self.fail();
        }
        // A doorbell that was rung while there was no queue never meets one.
        self.pending.clear();
        self.drive.iter().for_each(|drive| drive.clear());
        let group = &self.groups[0];
        let mut admin = group.queues.lock();
        admin.refresh(&self.space);
        let cq = CompletionQueue::new((acq, cq), Some(0), &admin.view);
        group.open(&mut admin, cq);
        admin.sqs = vec![SubmissionQueue::new((0, URGENT), (asq, sq), &admin.view)];
        drop(admin);
        self.routes[0].store(1, Ordering::Release);
        self.change_status(|_| ControllerStatus::default().with_rdy(1));
    }

    /// Controller Level Reset (Base 2.0, 3.7.2): queues and outstanding events go, AQA, ASQ and ACQ stay.
    fn reset(&self) {
        // Before the routes: a device thread that finds no route finds no doorbell either.
        self.pending.clear();
        self.close(0);
        // After group 0, whose lock an Abort holds when it takes this one.
        let drive = self.drive.as_ref().map(|drive| drive.stop());
        (1..self.groups.len()).for_each(|queue| self.close(queue));
        drop(drive);
        self.drive.iter().for_each(|drive| self.clear_admin_due(drive));
        self.admin.lock().reset();
        self.streams.lock().reset();
        self.enable_write_cache(true);
        self.cure();
        self.masked(u32::MAX, Bell::unmask);
        // Last: who sees RDY 0 knows that the controller touches no memory any more.
        self.change_status(|_| ControllerStatus::default());
    }

    /// Deletes the queues of a number, for a reset.
    fn close(&self, queue: usize) {
        let group = &self.groups[queue];
        self.routes[queue].store(0, Ordering::Release);
        let mut queues = group.queues.lock();
        self.outstanding.fetch_sub(queues.outstanding.len() as u32, Ordering::AcqRel);
        let gone = group.close(&mut queues);
        drop(queues);
        let mut retired = self.retired.lock();
        *retired = retired.plus(gone);
    }

    /// Whether written data may stay in the medium's cache.
    #[inline]
    pub(crate) fn write_cache_enabled(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    pub(crate) fn enable_write_cache(&self, enabled: bool) {
        self.write_cache.store(enabled, Ordering::Release);
    }
}
