//! The NVMe host driver: one driver over whatever [`Transport`] reaches the controller.

mod admin;
mod admin_ring;
mod controller;
mod handshake;
mod hmb_io;
mod hmb_io_queue;
mod host_memory;
mod namespace;
mod prp;
mod queue;
mod ring;

use crate::{
    Command, Engine, EngineError, Geometry, HostMemoryUse, Priority, QUEUE_DEPTH_MAX, QueueFault,
    QueueOptions, QueuePair, Transfer, UrgentPath, Waited,
};
use controller::Controller;
use hmb_io_queue::HmbIoQueue;
use namespace::Namespace;
use nvmed_dma::Transport;
use nvmed_nvme::AsyncEvent;
use nvmed_nvme::register::{Capabilities, ControllerStatus};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, NamespaceId, QueueId};
use queue::NvmeQueue;
use ring::Shape;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

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

/// How a controller is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeOptions {
    /// The namespace.
    pub nsid: NamespaceId,
    /// Slots of HMB-I/O that the driver asks for, where the drive offers that (docs/spec/hmb.md, "HMB-I/O"), of
    /// namespace 1 only; 0, the default, is none: it lets the host write to a buffer that is enabled, which NVMe Base
    /// 2.0, 8.9, does not.
    pub hmb_io_slots: u16,
}

impl Default for NvmeOptions {
    fn default() -> Self {
        Self { nsid: NamespaceId(1), hmb_io_slots: 0 }
    }
}

/// An NVMe controller with one of its namespaces.
pub struct NvmeEngine {
    controller: Arc<Controller>,
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
        Self::open_with(transport, NvmeOptions::default())
    }

    /// As [`NvmeEngine::open`], with another namespace, or more that is asked of the controller.
    ///
    /// # Errors
    /// As [`NvmeEngine::open`].
    pub fn open_with(transport: Arc<dyn Transport>, options: NvmeOptions) -> Result<Self, EngineError> {
        let cap = handshake::capabilities(&*transport)?;
        let (controller, namespace, geometry) = Controller::open(transport, options)?;
        Ok(Self { controller: Arc::new(controller), namespace, geometry, cap })
    }

    /// Makes queue `queue` in fresh memory: entries, completions, then one PRP list a slot.
    fn create(&self, queue: QueueId, options: QueueOptions, vector: u16) -> Result<NvmeQueue, EngineError> {
        const PAGE: usize = 4096;
        let depth = options.depth;
        let sq_entries = depth + 1;
        let cq_entries_max = (self.cap.mqes() as u32).min(u32::from(QUEUE_DEPTH_MAX)) + 1;
        let cq_entries = (u32::from(sq_entries) * 2).min(cq_entries_max) as u16;
        let cq_offset = (usize::from(sq_entries) * ring::SQE_BYTES).next_multiple_of(PAGE);
        let lists_offset = (cq_offset + usize::from(cq_entries) * ring::CQE_BYTES).next_multiple_of(PAGE);
        let list_bytes = prp::list_bytes(self.geometry.transfer_bytes_max);
        let shape =
            Shape { queue, sq_entries, cq_entries, sq_offset: 0, cq_offset, stride: self.cap.dstrd() as u32 };
        let bytes = lists_offset + usize::from(depth) * list_bytes;
        let region = admin::region(&self.controller.transport, bytes)?;
        let ring = ring::Ring::new(region, shape);
        NvmeQueue::new(Arc::clone(&self.controller), ring, self.namespace, (options, vector), lists_offset)
    }

    /// A new queue pair, whose interrupt vector is `vector`, or as its number has it.
    fn pair(&self, options: QueueOptions, vector: Option<u16>) -> Result<NvmeQueue, EngineError> {
        options.depth_within(self.geometry.queue_depth_max)?;
        let number = self.controller.number(self.geometry.queues_max)?;
        let vector = vector.unwrap_or_else(|| self.controller.vector(number));
        let made = self.create(number, options, vector);
        if made.is_err() {
            self.controller.give_back(number);
        }
        made
    }

    /// A queue pair for requests that may pass others.
    fn urgent_pair(&self, depth: u16) -> Result<Box<dyn QueuePair>, EngineError> {
        let priority = if handshake::arbitrates(self.cap) { Priority::Urgent } else { Priority::Medium };
        let options = QueueOptions { priority, ..QueueOptions::depth(depth) };
        if self.controller.hmb_io().1.is_none() || !self.controller.take_slots() {
            return Ok(Box::new(self.pair(options, None)?));
        }
        // What goes by slots completes in the admin queue, of vector 0; a caller waits for one vector.
        match self.pair(options, Some(0)) {
            Ok(pair) => Ok(Box::new(HmbIoQueue::new(Arc::clone(&self.controller), self.namespace, pair))),
            Err(error) => {
                self.controller.give_slots_back();
                Err(error)
            }
        }
    }
}

impl Engine for NvmeEngine {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn lba_count(&self) -> u64 {
        self.controller.lba_count()
    }

    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        Ok(Box::new(self.pair(options, None)?))
    }

    fn urgent_path(&self) -> UrgentPath {
        match self.controller.hmb_io() {
            (_, Some(hmb_io)) => hmb_io.path(),
            (_, None) if handshake::arbitrates(self.cap) => UrgentPath::Wrr,
            (_, None) => UrgentPath::Reserved,
        }
    }

    fn urgent_queues(&self, depth: u16) -> Result<Vec<Box<dyn QueuePair>>, EngineError> {
        match self.urgent_pair(depth) {
            Ok(pair) => Ok(vec![pair]),
            Err(EngineError::NoQueue { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        if !self.controller.wants_slots() {
            return self.controller.transport.map(memory).map_err(EngineError::Map);
        }
        let address = self.controller.transport.map(Arc::clone(&memory)).map_err(EngineError::Map)?;
        self.controller.shown.add(address, memory);
        Ok(address)
    }

    fn memory(&self, bytes: usize, pages: Pages) -> Result<Mapping, EngineError> {
        let made = self.controller.transport.memory(bytes, pages);
        made.map_err(|errno| EngineError::Memory { bytes, errno })
    }

    fn unmap(&self, address: DeviceAddress) {
        if self.controller.wants_slots() {
            self.controller.shown.remove(address);
        }
        self.controller.transport.unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        self.controller.shutdown()
    }

    fn admin(&self, command: &Command, data: Transfer<'_>) -> Result<u32, EngineError> {
        self.controller.turn().execute(command, data)
    }

    fn namespace(&self) -> u32 {
        self.namespace.nsid.0
    }

    fn reset(&self) -> Result<(), EngineError> {
        self.controller.reset()
    }

    fn host_memory(&self) -> HostMemoryUse {
        self.controller.host_memory()
    }

    fn take_event(&self) -> Result<Option<AsyncEvent>, EngineError> {
        self.controller.take_event()
    }

    fn events(&self, vector: u16) -> u32 {
        self.controller.transport.events(vector)
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        self.controller.transport.wait(vector, seen, timeout_us)
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.controller.transport.event_fd(vector)
    }

    fn now_ns(&self) -> u64 {
        self.controller.transport.now_ns()
    }
}
