//! A device and its queues.

use crate::error::IoError;
use crate::handle::{Binding, Handle};
use crate::lane::Lane;
use crate::pace::{Next, Pace};
use crate::stats::Stats;
use nvmed_engine::{Engine, Geometry, Operation, QueueOptions};
use nvmed_sys::Mapping;
use nvmed_units::DeviceAddress;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many queues a device is opened with, and how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Queue pairs, at least 1; more than the device has is cut to what it has.
    pub queues: usize,
    /// Commands in flight a queue, at least 1; cut likewise.
    pub depth: u16,
}

/// An open device.
pub struct Device {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) lanes: Box<[Arc<Lane>]>,
    pub(crate) limits: Limits,
    handles: AtomicU32,
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device")
            .field("geometry", self.geometry())
            .field("queues", &self.lanes.len())
            .finish()
    }
}

/// How much a synchronous call asks for in one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) lba_shift: u32,
    data_blocks: u32,
    zero_blocks: u32,
    discard_blocks: u32,
}

impl Limits {
    fn new(geometry: &Geometry, most: impl Fn(Operation) -> u32) -> Self {
        /// A request asks for at most this share of a queue's slots, so that others fit beside it.
        const SHARE: u32 = 4;
        let lba_bytes = geometry.lba_bytes;
        let command = geometry.transfer_bytes_max / lba_bytes;
        let data = most(Operation::Read);
        let share = |most: u32| (most / SHARE).max(1);
        Self {
            lba_shift: lba_bytes.trailing_zeros(),
            data_blocks: if data / SHARE < command { data.min(command) } else { data / SHARE },
            zero_blocks: share(most(Operation::WriteZeroes { fua: false })),
            discard_blocks: share(most(Operation::Discard)),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(lba_bytes: u32, blocks: u32) -> Self {
        let lba_shift = lba_bytes.trailing_zeros();
        Self { lba_shift, data_blocks: blocks, zero_blocks: blocks, discard_blocks: blocks }
    }

    /// Logical blocks of one request.
    #[inline]
    pub(crate) fn blocks(&self, operation: Operation) -> u32 {
        match operation {
            Operation::WriteZeroes { .. } => self.zero_blocks,
            Operation::Discard | Operation::Flush | Operation::Passthrough { .. } => self.discard_blocks,
            Operation::Read | Operation::Write { .. } | Operation::Compare => self.data_blocks,
        }
    }
}

impl Device {
    /// Makes the queues.
    ///
    /// # Errors
    /// [`IoError::Options`] for no queue or no depth, [`IoError::Engine`] when the device refuses.
    pub fn open(engine: Arc<dyn Engine>, options: DeviceOptions) -> Result<Arc<Self>, IoError> {
        let geometry = engine.geometry();
        let depth = options.depth.min(geometry.queue_depth_max);
        let queues = options.queues.min(usize::from(geometry.queues_max));
        let pairs: Result<Vec<_>, _> =
            (0..queues).map(|_| engine.queue(QueueOptions::depth(depth))).collect();
        let pairs = pairs?;
        let first = pairs.first().ok_or(IoError::Options)?;
        let limits = Limits::new(geometry, |operation| first.request_blocks_max(operation));
        let lba_bytes = geometry.lba_bytes;
        let lanes = pairs.into_iter().map(|pair| Arc::new(Lane::new(pair, depth, lba_bytes))).collect();
        Ok(Arc::new(Self { engine, lanes, limits, handles: AtomicU32::new(0) }))
    }

    /// What the device is.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.engine.geometry()
    }

    /// The engine below: identify and log pages.
    #[must_use]
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// How many queues there are.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.lanes.len()
    }

    /// Shows memory to the device; the answer is page-aligned.
    ///
    /// # Errors
    /// [`IoError::Engine`].
    pub fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, IoError> {
        Ok(self.engine.map(memory)?)
    }

    /// Hides it again; requests that use it must have completed.
    pub fn unmap(&self, address: DeviceAddress) {
        self.engine.unmap(address);
    }

    /// A new handle. Its clones share its counts.
    #[must_use]
    pub fn handle(self: &Arc<Self>, binding: Binding) -> Handle {
        let id = self.handles.fetch_add(1, Ordering::Relaxed);
        for lane in &self.lanes {
            lane.lock().admit(id);
        }
        Handle::new(Arc::clone(self), binding, id)
    }

    /// What all handles asked for, together.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for lane in &self.lanes {
            all += lane.lock().stats_of_all();
        }
        all
    }

    /// Waits until everything submitted before is done, then tells the device to get ready for the loss
    /// of power. Requests fail from then on.
    ///
    /// # Errors
    /// [`IoError::Engine`].
    pub fn shutdown(&self) -> Result<(), IoError> {
        self.drain();
        Ok(self.engine.shutdown()?)
    }

    /// Waits until everything submitted before, by whichever handle, is done.
    pub(crate) fn drain(&self) {
        for lane in &self.lanes {
            let newest = lane.lock().tickets.newest();
            self.until(lane, |inner| inner.tickets.quiet_until(newest).then_some(()));
        }
    }

    /// Looks at a lane again and again until `found` finds something there. A device that answers
    /// nothing fails its requests in the end, so whoever waits for requests always ends.
    pub(crate) fn until<T>(
        &self,
        lane: &Lane,
        mut found: impl FnMut(&mut crate::lane::Inner) -> Option<T>,
    ) -> T {
        let mut pace = Pace::new();
        let mut next = Next::Look;
        loop {
            let seen = self.engine.events(lane.vector());
            let mut inner = lane.lock();
            match next {
                Next::Look => {}
                Next::Check => inner.pair.check(),
                Next::Expire => inner.pair.expire(),
            }
            inner.pair.ring();
            inner.reap();
            if let Some(thing) = found(&mut inner) {
                return thing;
            }
            drop(inner);
            next = pace.pause(&*self.engine, lane.vector(), seen);
        }
    }
}
