//! The admin queue: a synchronous command at a time, each with an end (NVMe Base 2.0, 5).

use super::admin_ring::{AdminRing, Done, Owner, RINGS_BYTES};
use super::ring::{Region, Shape};
use crate::{Command, EngineError, Priority, QueueFault, Transfer};
use nvmed_dma::Transport;
use nvmed_nvme::{
    AdminOpcode, AsyncEvent, Cns, ENABLE_HOST_MEMORY, FeatureId, MEMORY_RETURN, SubmissionEntry,
};
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{CommandId, DeviceAddress, Halves, NamespaceId, QueueId};
use std::sync::Arc;

/// Bytes of the buffer for what admin commands answer: the largest structure of Identify.
pub(super) const DATA_BYTES: usize = 4096;
const DATA_OFFSET: usize = RINGS_BYTES;
/// How long an admin command may take, as Linux has it (`admin_timeout`).
const TIMEOUT_MS: u32 = 60_000;
/// How long an Abort may take: one that hangs is answered by a reset, for which somebody waits.
const ABORT_TIMEOUT_MS: u32 = 5_000;
/// How long the return of the host's memory may take before a shutdown, which ends its use in any case.
const RETURN_TIMEOUT_MS: u32 = 5_000;

/// Maps memory that a device reaches.
pub(super) fn region(transport: &Arc<dyn Transport>, bytes: usize) -> Result<Region, EngineError> {
    let memory = transport.memory(bytes, Pages::Base);
    let memory = Arc::new(memory.map_err(|errno| EngineError::Memory { bytes, errno })?);
    let address = transport.map(Arc::clone(&memory)).map_err(EngineError::Map)?;
    Ok(Region { memory, address, transport: Arc::clone(transport) })
}

/// The admin queue pair, which several threads use: its rings have a lock that nobody holds for long, and a
/// synchronous command has the *turn* through its whole wait. What needs no answer page needs no turn.
///
/// Whoever takes several of the locks takes the turn first, then that of Aborts, then the rings'.
pub(super) struct Admin {
    rings: AdminRing,
    page: Mutex<Page>,
    /// Held through an Abort: a controller takes few at once (ACL), and who waits for one waits for a reset else.
    aborting: Mutex<()>,
}

/// The page for what the command of the turn answers.
struct Page {
    memory: Arc<Mapping>,
    address: DeviceAddress,
}

impl Admin {
    /// Queues in fresh memory, not yet known to the controller.
    pub(super) fn new(transport: &Arc<dyn Transport>, stride: u32) -> Result<Self, EngineError> {
        let region = region(transport, DATA_OFFSET + DATA_BYTES)?;
        let page =
            Page { memory: Arc::clone(&region.memory), address: region.address.plus(DATA_OFFSET as u64) };
        let rings = AdminRing::new(region, stride);
        Ok(Self { rings, page: Mutex::new(page), aborting: Mutex::default() })
    }

    /// Waits for the turn. Until it is given back nobody else sends a synchronous command, and nobody resets.
    pub(super) fn turn(&self) -> AdminTurn<'_> {
        AdminTurn { admin: self, page: self.page.lock() }
    }

    /// The turn, if nobody has it.
    pub(super) fn try_turn(&self) -> Option<AdminTurn<'_>> {
        Some(AdminTurn { admin: self, page: self.page.try_lock()? })
    }

    pub(super) fn rings(&self) -> &AdminRing {
        &self.rings
    }

    /// Abort (Base 2.0, 5.1): asks the controller to give up a command. Whether it did, the command's own
    /// completion tells. It needs no turn, so that it does not wait for what may be the cause.
    pub(super) fn abort(&self, queue: QueueId, cid: u16) -> Result<(), EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::Abort as u8, CommandId(0), NamespaceId(0));
        entry.cdw10 = u32::from(queue.0) | u32::from(cid) << 16;
        let _alone = self.aborting.lock();
        answer_of("Abort", self.rings.run(Owner::Abort, ABORT_TIMEOUT_MS, entry)).map(|_| ())
    }
}

/// Dword 0 of what a command ended with.
fn answer_of(command: &'static str, done: Result<Done, QueueFault>) -> Result<u32, EngineError> {
    let Done { result, status } = done.map_err(|fault| EngineError::Queue { command, fault })?;
    if status.is_success() { Ok(result) } else { Err(EngineError::Command { command, status }) }
}

/// The turn: the right to send synchronous commands, one after another.
pub(super) struct AdminTurn<'a> {
    admin: &'a Admin,
    page: MutexGuard<'a, Page>,
}

impl AdminTurn<'_> {
    /// The rings, for whoever resets the controller.
    pub(super) fn rings(&self) -> &AdminRing {
        &self.admin.rings
    }

    fn data(&self) -> DeviceAddress {
        self.page.address
    }

    /// Sends one command and waits for its end; answers dword 0 of the completion.
    fn run(&mut self, command: &'static str, entry: SubmissionEntry) -> Result<u32, EngineError> {
        self.run_for(TIMEOUT_MS, command, entry)
    }

    fn run_for(
        &mut self,
        timeout_ms: u32,
        command: &'static str,
        entry: SubmissionEntry,
    ) -> Result<u32, EngineError> {
        answer_of(command, self.rings().run(Owner::Turn, timeout_ms, entry))
    }

    /// A command as its sender encoded it, with its data by way of the answer page.
    pub(super) fn execute(&mut self, command: &Command, data: Transfer<'_>) -> Result<u32, EngineError> {
        let bytes = data.bytes();
        if bytes > DATA_BYTES || !bytes.is_multiple_of(4) {
            return Err(EngineError::Buffer { bytes });
        }
        let memory = Arc::clone(&self.page.memory);
        memory.fill(DATA_OFFSET, DATA_BYTES, 0);
        if let Transfer::ToDevice(data) = &data {
            memory.write(DATA_OFFSET, data);
        }
        let address = if bytes == 0 { DeviceAddress(0) } else { self.data() };
        let entry = command.entry().with_prps(address, DeviceAddress(0));
        let value = self.run("administrative command", entry)?;
        if let Transfer::FromDevice(data) = data {
            memory.read(DATA_OFFSET, data);
        }
        Ok(value)
    }

    /// Identify, into the answer page.
    pub(super) fn identify(&mut self, cns: Cns, nsid: NamespaceId) -> Result<Box<Answer>, EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::Identify as u8, CommandId(0), nsid)
            .with_prps(self.data(), DeviceAddress(0));
        entry.cdw10 = u32::from(cns.0);
        self.page.memory.fill(DATA_OFFSET, DATA_BYTES, 0);
        self.run("Identify", entry)?;
        Ok(self.answer())
    }

    /// The first `bytes` of a log page, a multiple of 4; reading it clears its event.
    pub(super) fn log_page(&mut self, page: u8, bytes: usize) -> Result<Box<Answer>, EngineError> {
        let mut entry =
            SubmissionEntry::new(AdminOpcode::GetLogPage as u8, CommandId(0), NamespaceId(u32::MAX))
                .with_prps(self.data(), DeviceAddress(0));
        // NUMDL, 0's based; 1,024 dwords at most, so that the high half stays 0.
        entry.cdw10 = u32::from(page) | (bytes as u32 / 4 - 1) << 16;
        self.page.memory.fill(DATA_OFFSET, DATA_BYTES, 0);
        self.run("Get Log Page", entry)?;
        Ok(self.answer())
    }

    /// On the heap: a program may open a device on a small stack.
    fn answer(&self) -> Box<Answer> {
        let mut answer = Box::new(Answer([0; DATA_BYTES]));
        self.page.memory.read(DATA_OFFSET, &mut answer.0);
        answer
    }

    pub(super) fn set_feature(&mut self, feature: FeatureId, value: u32) -> Result<u32, EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::SetFeatures as u8, CommandId(0), NamespaceId(0));
        (entry.cdw10, entry.cdw11) = (feature as u32, value);
        self.run("Set Features", entry)
    }

    /// Set Features, Host Memory Buffer (Base 2.0, 5.27.1.10): so many pages, in the ranges of a list with so many
    /// entries; `again` says that the controller had them before.
    pub(super) fn enable_host_memory(
        &mut self,
        (pages, again): (u32, bool),
        (list, entries): (DeviceAddress, u32),
    ) -> Result<(), EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::SetFeatures as u8, CommandId(0), NamespaceId(0));
        entry.cdw10 = FeatureId::HostMemoryBuffer as u32;
        entry.cdw11 = ENABLE_HOST_MEMORY | if again { MEMORY_RETURN } else { 0 };
        (entry.cdw12, entry.cdw13, entry.cdw14) = (pages, list.0.low(), list.0.high());
        entry.cdw15 = entries;
        self.run("Set Features", entry).map(|_| ())
    }

    /// Takes back what [`Self::enable_host_memory`] has lent.
    pub(super) fn disable_host_memory(&mut self) -> Result<(), EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::SetFeatures as u8, CommandId(0), NamespaceId(0));
        entry.cdw10 = FeatureId::HostMemoryBuffer as u32;
        self.run_for(RETURN_TIMEOUT_MS, "Set Features", entry).map(|_| ())
    }

    pub(super) fn get_feature(&mut self, feature: FeatureId) -> Result<u32, EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::GetFeatures as u8, CommandId(0), NamespaceId(0));
        entry.cdw10 = feature as u32;
        self.run("Get Features", entry)
    }

    /// Create I/O Completion Queue, then Submission Queue (Base 2.0, 5.4 and 5.5).
    pub(super) fn create_queues(
        &mut self,
        shape: &Shape,
        base: DeviceAddress,
        class: &Class,
    ) -> Result<(), EngineError> {
        /// The queue is one contiguous range.
        const CONTIGUOUS: u32 = 1;
        /// Completions raise an interrupt.
        const INTERRUPTS: u32 = 1 << 1;
        let id = u32::from(shape.queue.0);
        let interrupts = if class.interrupts { INTERRUPTS | u32::from(class.vector) << 16 } else { 0 };
        let mut entry = SubmissionEntry::new(AdminOpcode::CreateCq as u8, CommandId(0), NamespaceId(0))
            .with_prps(base.plus(shape.cq_offset as u64), DeviceAddress(0));
        (entry.cdw10, entry.cdw11) = (id | (u32::from(shape.cq_entries) - 1) << 16, CONTIGUOUS | interrupts);
        self.run("Create I/O Completion Queue", entry)?;
        let mut entry = SubmissionEntry::new(AdminOpcode::CreateSq as u8, CommandId(0), NamespaceId(0))
            .with_prps(base.plus(shape.sq_offset as u64), DeviceAddress(0));
        (entry.cdw10, entry.cdw11) =
            (id | (u32::from(shape.sq_entries) - 1) << 16, CONTIGUOUS | class.priority() | id << 16);
        let created = self.run("Create I/O Submission Queue", entry);
        if created.is_err() {
            // The completion queue alone is of no use; what failed first is what is reported.
            let _ = self.delete(AdminOpcode::DeleteCq, shape.queue);
        }
        created.map(|_| ())
    }

    /// Enables the streams directive of a namespace (Base 2.0, 5.8 and 8.7.2.3).
    ///
    /// # Errors
    /// The controller has none, or failed.
    pub(super) fn enable_streams(&mut self, nsid: NamespaceId) -> Result<(), EngineError> {
        /// Directive type Identify, operation Enable Directive.
        const ENABLE: u32 = 1;
        /// Enable; the type to enable: Streams.
        const STREAMS: u32 = 1 | 1 << 8;
        let mut entry = SubmissionEntry::new(AdminOpcode::DirectiveSend as u8, CommandId(0), nsid);
        (entry.cdw11, entry.cdw12) = (ENABLE, STREAMS);
        self.run("Directive Send", entry).map(|_| ())
    }

    /// Delete I/O Submission Queue, then Completion Queue; outstanding commands are aborted.
    pub(super) fn delete_queues(&mut self, queue: QueueId) -> Result<(), EngineError> {
        self.delete(AdminOpcode::DeleteSq, queue)?;
        self.delete(AdminOpcode::DeleteCq, queue)
    }

    fn delete(&mut self, opcode: AdminOpcode, queue: QueueId) -> Result<(), EngineError> {
        let mut entry = SubmissionEntry::new(opcode as u8, CommandId(0), NamespaceId(0));
        entry.cdw10 = u32::from(queue.0);
        self.run("Delete I/O Queue", entry).map(|_| ())
    }

    /// Asks the controller to tell of the next event (Base 2.0, 5.2).
    pub(super) fn arm(&mut self) {
        let opcode = AdminOpcode::AsyncEventRequest as u8;
        self.rings().arm(SubmissionEntry::new(opcode, CommandId(0), NamespaceId(0)));
    }

    /// The event that the controller told of, if one came; its log is read, so that the next can come.
    pub(super) fn take_event(&mut self) -> Result<Option<AsyncEvent>, EngineError> {
        let failed = |fault| EngineError::Queue { command: "Asynchronous Event Request", fault };
        let Some(event) = self.rings().take_event().map_err(failed)? else { return Ok(None) };
        self.log_page(event.log, 512)?;
        self.arm();
        Ok(Some(event))
    }
}

/// How a queue pair is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    pub(super) priority: Priority,
    pub(super) interrupts: bool,
    pub(super) vector: u16,
}

impl Class {
    /// QPRIO, in dword 11 of Create I/O Submission Queue (Base 2.0, figure 156).
    fn priority(self) -> u32 {
        let class = match self.priority {
            Priority::Urgent => 0,
            Priority::High => 1,
            Priority::Medium => 2,
            Priority::Low => 3,
        };
        class << 1
    }
}

/// What an admin command answered in memory.
pub(super) struct Answer(pub(super) [u8; DATA_BYTES]);
