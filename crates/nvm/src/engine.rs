//! Memory behind queue pairs: what speaks blocks works on it unchanged.

use crate::error::NvmError;
use crate::medium::{FlushTo, MemoryOptions};
use crate::memory::Memory;
use crate::queue::Queue;
use nvmed_dma::{AddressSpace, Bell};
use nvmed_engine::{Engine, EngineError, Geometry, QueueOptions, QueuePair, Waited};
use nvmed_sys::Mapping;
use nvmed_sys::sync::Mutex;
use nvmed_units::DeviceAddress;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Queue pairs that can exist at once: a bit of a word each.
const QUEUES_MAX: u16 = 64;
/// Requests of a queue that were done and not handed out, as the driver of kernel devices has it.
const DEPTH_MAX: u16 = 1024;
/// What a caller who cuts by it cuts by; a request can be longer.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// What one look costs in simulated time, as of a virtual device.
const LOOK_NS: u64 = 50;

/// How to open memory as a device.
#[derive(Clone, Debug)]
pub struct NvmOptions {
    /// The medium.
    pub memory: MemoryOptions,
    /// Bytes of a logical block, 512 or 4096.
    pub lba_bytes: u32,
}

/// What an engine and its queues share.
pub(crate) struct Shared {
    pub(crate) memory: Arc<Memory>,
    pub(crate) space: AddressSpace,
    pub(crate) bells: Box<[Bell]>,
    pub(crate) lba_shift: u32,
    pub(crate) lba_count: u64,
    /// Set when shut down: queues take nothing more.
    pub(crate) closed: AtomicBool,
    /// Bits of the vectors that queues have.
    taken: Mutex<u64>,
    /// What looks at the time have taken, where it is that of a buffer with a virtual clock.
    looked_ns: AtomicU64,
}

impl Shared {
    pub(crate) fn take_vector(&self) -> Option<u16> {
        let mut taken = self.taken.lock();
        let free = taken.trailing_ones();
        if free == u32::from(QUEUES_MAX) {
            return None;
        }
        *taken |= 1 << free;
        Some(free as u16)
    }

    pub(crate) fn give_vector_back(&self, vector: u16) {
        *self.taken.lock() &= !(1 << vector);
    }

    /// The vector's bell, from now on with its rings counted.
    ///
    /// A queue pair has one user at a time. What was submitted before this call is found by the next poll, and who
    /// rings after that poll sees that rings count.
    fn bell(&self, vector: u16) -> Option<&Bell> {
        let bell = self.bells.get(usize::from(vector))?;
        bell.watch();
        Some(bell)
    }
}

/// Memory as a device: a command is done when it is submitted, by a copy.
pub struct NvmEngine {
    shared: Arc<Shared>,
    geometry: Geometry,
}

impl NvmEngine {
    /// Opens or makes the medium.
    ///
    /// # Errors
    /// [`NvmError`] says what is wrong with it and what to do.
    ///
    /// # Panics
    /// When a block is neither 512 nor 4,096 bytes long.
    pub fn open(options: NvmOptions) -> Result<Self, NvmError> {
        let memory = Memory::open(options.memory)?;
        Ok(Self::over(Arc::new(memory), options.lba_bytes))
    }

    /// A medium that is open already, in blocks of `lba_bytes` bytes.
    ///
    /// # Panics
    /// When these are neither 512 nor 4,096.
    #[must_use]
    pub fn over(memory: Arc<Memory>, lba_bytes: u32) -> Self {
        assert!(matches!(lba_bytes, 512 | 4096), "blocks of {lba_bytes} bytes");
        let geometry = geometry(&memory, lba_bytes);
        let shared = Shared {
            memory,
            space: AddressSpace::default(),
            bells: (0..QUEUES_MAX).map(|_| Bell::default()).collect(),
            lba_shift: lba_bytes.trailing_zeros(),
            lba_count: geometry.lba_count,
            closed: AtomicBool::new(false),
            taken: Mutex::new(0),
            looked_ns: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), geometry }
    }

    /// The medium, for who stores to it without commands.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.shared.memory
    }
}

fn geometry(memory: &Memory, lba_bytes: u32) -> Geometry {
    let flush = match memory.flush() {
        _ if !memory.is_file() => "no file",
        FlushTo::Host => "flush=host",
        FlushTo::Process => "flush=process",
        FlushTo::Dax => "flush=dax",
    };
    Geometry {
        lba_bytes,
        lba_count: memory.bytes() / u64::from(lba_bytes),
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        queue_depth_max: DEPTH_MAX,
        queues_max: QUEUES_MAX,
        volatile_write_cache: memory.is_file(),
        serial: memory.identity().serial(),
        model: format!("memory ({flush})"),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

impl Engine for NvmEngine {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        let depth = options.depth_within(DEPTH_MAX)?;
        let queue = Queue::new(&self.shared, depth).ok_or(EngineError::NoQueue { queues_max: QUEUES_MAX })?;
        Ok(Box::new(queue))
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        self.shared.space.map(memory).map_err(EngineError::Map)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.shared.space.unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        if self.shared.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let fenced = self.shared.memory.fence();
        fenced.map_err(|status| EngineError::Command { command: "the last fence", status })
    }

    fn events(&self, vector: u16) -> u32 {
        self.shared.bell(vector).map_or(0, Bell::count)
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let timeout = Duration::from_micros(timeout_us.into());
        match self.shared.bell(vector) {
            Some(bell) if bell.wait(seen, timeout) => Waited::Event,
            Some(_) => Waited::Timeout,
            None => {
                // A vector that nobody has is never rung.
                std::thread::sleep(timeout);
                Waited::Timeout
            }
        }
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.shared.bell(vector)?.descriptor()
    }

    /// Behind a buffer with a virtual clock, the buffer's time, and what looks have taken: the clock itself stands
    /// where everything is found in the buffer, and whoever waits for a time would wait for ever.
    fn now_ns(&self) -> u64 {
        match self.shared.memory.virtual_ns() {
            Some(now) => now + self.shared.looked_ns.fetch_add(LOOK_NS, Ordering::Relaxed),
            None => nvmed_dma::monotonic_ns(),
        }
    }
}
