//! The NVMe host driver: one driver over whatever [`Transport`] reaches the controller.

mod admin;
mod handshake;
mod namespace;
mod prp;
mod queue;
mod ring;
mod slot;

use crate::{Command, Engine, EngineError, Geometry, QueueFault, QueueOptions, QueuePair, Transfer, Waited};
use admin::Admin;
use namespace::Namespace;
use nvmed_dma::Transport;
use nvmed_nvme::register::{Capabilities, ControllerStatus};
use nvmed_nvme::{AsyncEvent, Cns, FeatureId, IdentifyController, IdentifyNamespace};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, NamespaceId, QueueId};
use queue::NvmeQueue;
use ring::Shape;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::FromBytes;

/// I/O queue pairs asked for: more than the cores of most machines, and few enough to count.
const QUEUES_WANTED: u16 = 64;
/// Commands in flight a queue at most: 64 KiB of entries and 2 MiB of PRP lists.
const DEPTH_MAX: u16 = 1024;
const _: () = assert!(DEPTH_MAX <= slot::SLOTS_MAX);

/// What the engine and its queues share. Dropped after the last of them, it disables the controller,
/// so that the device lets go of all memory.
struct Shared {
    transport: Arc<dyn Transport>,
    admin: Mutex<Admin>,
    timeout_ms: u32,
    /// Set when shut down: queues take nothing more.
    closed: AtomicBool,
    /// Queue numbers not in use.
    free: Mutex<Vec<u16>>,
}

impl Shared {
    fn admin(&self) -> MutexGuard<'_, Admin> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> MutexGuard<'_, Vec<u16>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a queue on the device. Its number is used again only when the device agreed.
    fn release(&self, queue: QueueId) {
        let gone = alive(&*self.transport).is_err() || self.closed.load(Ordering::Relaxed);
        if !gone && self.admin().delete_queues(queue).is_ok() {
            self.free().push(queue.0);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if handshake::status(&*self.transport) != ControllerStatus::GONE {
            // Nobody is left to tell; a controller that does not stop is found at the next open.
            let _ = handshake::disable(&*self.transport, self.timeout_ms);
        }
    }
}

/// Whether the controller is there, ready and has not failed.
///
/// # Errors
/// What it says of itself.
fn alive(transport: &dyn Transport) -> Result<(), QueueFault> {
    let csts = handshake::status(transport);
    if csts == ControllerStatus::GONE {
        return Err(QueueFault::Gone { csts: csts.0 });
    }
    if csts.cfs() == 1 {
        return Err(QueueFault::Fatal { csts: csts.0 });
    }
    if csts.rdy() == 0 {
        return Err(QueueFault::Gone { csts: csts.0 });
    }
    Ok(())
}

/// An NVMe controller with one of its namespaces.
pub struct NvmeEngine {
    shared: Arc<Shared>,
    namespace: Namespace,
    geometry: Geometry,
    cap: Capabilities,
}

impl NvmeEngine {
    /// Resets and enables the controller behind `transport`, and opens its namespace 1.
    ///
    /// # Errors
    /// The controller does not answer in its time, cannot be driven, or has no such namespace.
    pub fn open(transport: Arc<dyn Transport>) -> Result<Self, EngineError> {
        Self::open_namespace(transport, NamespaceId(1))
    }

    /// As [`NvmeEngine::open`], with another namespace.
    ///
    /// # Errors
    /// As [`NvmeEngine::open`].
    pub fn open_namespace(transport: Arc<dyn Transport>, nsid: NamespaceId) -> Result<Self, EngineError> {
        let cap = handshake::capabilities(&*transport)?;
        let timeout_ms = handshake::timeout_ms(cap);
        handshake::disable(&*transport, timeout_ms)?;
        let admin = Admin::new(&transport, cap.dstrd() as u32)?;
        let queues = admin.queues();
        let shared = Arc::new(Shared {
            transport,
            admin: Mutex::new(admin),
            timeout_ms,
            closed: AtomicBool::new(false),
            free: Mutex::default(),
        });
        handshake::enable(&*shared.transport, timeout_ms, &queues)?;
        let (namespace, geometry) = describe(&mut shared.admin(), cap, nsid)?;
        *shared.free() = (1..=geometry.queues_max).rev().collect();
        shared.admin().arm();
        Ok(Self { shared, namespace, geometry, cap })
    }

    /// An asynchronous event that the controller told of, if one came since the last call.
    ///
    /// # Errors
    /// The admin queue failed.
    pub fn take_event(&self) -> Result<Option<AsyncEvent>, EngineError> {
        self.shared.admin().take_event()
    }
}

/// Reads what controller and namespace say of themselves, and settles the number of queues.
fn describe(
    admin: &mut Admin,
    cap: Capabilities,
    nsid: NamespaceId,
) -> Result<(Namespace, Geometry), EngineError> {
    let controller = identify_controller(admin)?;
    let format = identify_namespace(admin, nsid)?;
    let namespace = Namespace::new(nsid, &controller, &format)?;
    let present = controller.vwc & 1 != 0;
    // A controller that cannot say whether its cache is on is taken to have it on.
    let cached = present && admin.get_feature(FeatureId::VolatileWriteCache).unwrap_or(1) & 1 != 0;
    let wanted = u32::from(QUEUES_WANTED) - 1;
    let granted = admin.set_feature(FeatureId::NumberOfQueues, wanted | wanted << 16)?;
    let queues_max = (granted & 0xffff).min(granted >> 16).min(wanted) as u16 + 1;
    let geometry = Geometry {
        lba_bytes: namespace.lba_bytes(),
        lba_count: namespace.lba_count,
        transfer_bytes_max: namespace.transfer_blocks_max * namespace.lba_bytes(),
        queue_depth_max: (cap.mqes() as u16).min(DEPTH_MAX),
        queues_max,
        volatile_write_cache: cached,
        serial: text(&controller.sn),
        model: text(&controller.mn),
        firmware: text(&controller.fr),
    };
    Ok((namespace, geometry))
}

fn identify_controller(admin: &mut Admin) -> Result<IdentifyController, EngineError> {
    let answer = admin.identify(Cns::CONTROLLER, NamespaceId(0))?;
    Ok(IdentifyController::read_from_bytes(&answer.0).expect("4096 bytes are one structure"))
}

fn identify_namespace(admin: &mut Admin, nsid: NamespaceId) -> Result<IdentifyNamespace, EngineError> {
    let answer = admin.identify(Cns::NAMESPACE, nsid)?;
    Ok(IdentifyNamespace::read_from_bytes(&answer.0).expect("4096 bytes are one structure"))
}

/// A field of padded ASCII; whatever is not printable becomes `?`.
fn text(field: &[u8]) -> String {
    let shown = field.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { byte as char } else { '?' });
    let whole: String = shown.collect();
    whole.trim_matches(|c| c == ' ' || c == '?').to_owned()
}

impl Engine for NvmeEngine {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        let depth = options.depth;
        let (depth_max, queues_max) = (self.geometry.queue_depth_max, self.geometry.queues_max);
        if !(1..=depth_max).contains(&depth) {
            return Err(EngineError::Depth { depth, depth_max });
        }
        let number = self.shared.free().pop().ok_or(EngineError::NoQueue { queues_max })?;
        let made = self.create(QueueId(number), options);
        if made.is_err() {
            self.shared.free().push(number);
        }
        Ok(Box::new(made?))
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        self.shared.transport.map(memory).map_err(EngineError::Map)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.shared.transport.unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        let _admin = self.shared.admin();
        if self.shared.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        handshake::shutdown(&*self.shared.transport)
    }

    fn admin(&self, command: &Command, data: Transfer<'_>) -> Result<u32, EngineError> {
        self.shared.admin().execute(command, data)
    }

    fn namespace(&self) -> u32 {
        self.namespace.nsid.0
    }

    fn events(&self, vector: u16) -> u32 {
        self.shared.transport.events(vector)
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        self.shared.transport.wait(vector, seen, timeout_us)
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.shared.transport.event_fd(vector)
    }

    fn now_ns(&self) -> u64 {
        self.shared.transport.now_ns()
    }

    fn memory(&self, bytes: usize, pages: Pages) -> Result<Mapping, EngineError> {
        self.shared.transport.memory(bytes, pages).map_err(|errno| EngineError::Memory { bytes, errno })
    }
}

impl NvmeEngine {
    /// Makes queue `queue` in fresh memory: entries, completions, then one PRP list a slot.
    fn create(&self, queue: QueueId, options: QueueOptions) -> Result<NvmeQueue, EngineError> {
        const PAGE: usize = 4096;
        let depth = options.depth;
        let sq_entries = depth + 1;
        let cq_entries = (u32::from(sq_entries) * 2).min(self.cap.mqes() as u32 + 1) as u16;
        let cq_offset = (usize::from(sq_entries) * ring::SQE_BYTES).next_multiple_of(PAGE);
        let lists_offset = (cq_offset + usize::from(cq_entries) * ring::CQE_BYTES).next_multiple_of(PAGE);
        let list_bytes = prp::list_bytes(self.geometry.transfer_bytes_max);
        let shape =
            Shape { queue, sq_entries, cq_entries, sq_offset: 0, cq_offset, stride: self.cap.dstrd() as u32 };
        let region = admin::region(&self.shared.transport, lists_offset + usize::from(depth) * list_bytes)?;
        self.shared.admin().create_queues(&shape, region.address)?;
        let ring = ring::Ring::new(region, shape);
        Ok(NvmeQueue::new(Arc::clone(&self.shared), ring, self.namespace, depth, lists_offset))
    }
}
