//! The admin queue: one command at a time, each with an end (NVMe Base 2.0, 5).

use super::handshake::{AdminQueues, Patience};
use super::ring::{CQE_BYTES, Region, Ring, SQE_BYTES, Shape};
use crate::{Command, EngineError, Priority, QueueFault, Transfer};
use nvmed_dma::Transport;
use nvmed_nvme::{
    AdminOpcode, AsyncEvent, Cns, ENABLE_HOST_MEMORY, FeatureId, MEMORY_RETURN, Status, SubmissionEntry,
};
use nvmed_sys::Pages;
use nvmed_units::{CommandId, DeviceAddress, Halves, NamespaceId, QueueId};
use std::sync::Arc;

/// Entries of each admin queue: one command, one event request, and room to see a fault in.
const ENTRIES: u16 = 16;
/// Bytes of the buffer for what admin commands answer: the largest structure of Identify.
pub(super) const DATA_BYTES: usize = 4096;
const CQ_OFFSET: usize = 4096;
const DATA_OFFSET: usize = 2 * 4096;
const _: () = assert!(ENTRIES as usize * SQE_BYTES <= CQ_OFFSET);
const _: () = assert!(ENTRIES as usize * CQE_BYTES <= DATA_OFFSET - CQ_OFFSET);
/// How long an admin command may take, as Linux has it (`admin_timeout`).
const TIMEOUT_MS: u32 = 60_000;
/// How long an Abort may take: one that hangs is answered by a reset, for which somebody waits.
const ABORT_TIMEOUT_MS: u32 = 5_000;
/// How long the return of the host's memory may take before a shutdown, which ends its use in any case.
const RETURN_TIMEOUT_MS: u32 = 5_000;
/// Set in the identifier of the event request, clear in all others.
const EVENT_CID: u16 = 0x8000;

/// Maps memory that a device reaches.
pub(super) fn region(transport: &Arc<dyn Transport>, bytes: usize) -> Result<Region, EngineError> {
    let memory = transport.memory(bytes, Pages::Base);
    let memory = Arc::new(memory.map_err(|errno| EngineError::Memory { bytes, errno })?);
    let address = transport.map(Arc::clone(&memory)).map_err(EngineError::Map)?;
    Ok(Region { memory, address, transport: Arc::clone(transport) })
}

/// The admin queue pair and a page for answers.
pub(super) struct Admin {
    ring: Ring,
    cid: u16,
    fault: Option<QueueFault>,
    /// Whether the event request is with the controller.
    armed: bool,
    event: Option<AsyncEvent>,
}

impl Admin {
    /// Queues in fresh memory, not yet known to the controller.
    pub(super) fn new(transport: &Arc<dyn Transport>, stride: u32) -> Result<Self, EngineError> {
        let region = region(transport, DATA_OFFSET + DATA_BYTES)?;
        let shape = Shape {
            queue: QueueId(0),
            sq_entries: ENTRIES,
            cq_entries: ENTRIES,
            sq_offset: 0,
            cq_offset: CQ_OFFSET,
            stride,
        };
        Ok(Self { ring: Ring::new(region, shape), cid: 0, fault: None, armed: false, event: None })
    }

    /// What the controller must be told before it is enabled.
    pub(super) fn queues(&self) -> AdminQueues {
        let base = self.ring.region().address;
        AdminQueues { submission: base, completion: base.plus(CQ_OFFSET as u64), entries: ENTRIES }
    }

    fn data(&self) -> DeviceAddress {
        self.ring.region().address.plus(DATA_OFFSET as u64)
    }

    /// Begins again with empty queues, for a controller that is disabled.
    pub(super) fn restart(&mut self) {
        self.ring.restart();
        (self.fault, self.armed, self.event) = (None, false, None);
    }

    /// Takes no more commands: the controller did not come back.
    pub(super) fn fail(&mut self, fault: QueueFault) {
        self.fault.get_or_insert(fault);
    }

    /// Sends one command and waits for its end; answers dword 0 of the completion.
    fn run(&mut self, command: &'static str, entry: SubmissionEntry) -> Result<u32, EngineError> {
        self.run_for(TIMEOUT_MS, command, entry)
    }

    fn run_for(
        &mut self,
        timeout_ms: u32,
        command: &'static str,
        mut entry: SubmissionEntry,
    ) -> Result<u32, EngineError> {
        let failed = |fault| EngineError::Queue { command, fault };
        if let Some(fault) = self.fault {
            return Err(failed(fault));
        }
        self.cid = (self.cid + 1) % EVENT_CID;
        entry.cid = self.cid;
        self.ring.push(&entry);
        self.ring.ring();
        let done = self.await_cid(self.cid, timeout_ms).map_err(|fault| {
            self.fault = Some(fault);
            failed(fault)
        })?;
        let Done { result, status } = done;
        if status.is_success() { Ok(result) } else { Err(EngineError::Command { command, status }) }
    }

    fn await_cid(&mut self, cid: u16, timeout_ms: u32) -> Result<Done, QueueFault> {
        let transport = Arc::clone(&self.ring.region().transport);
        let mut patience = Patience::new(timeout_ms);
        loop {
            let seen = transport.events(0);
            if let Some(done) = self.look(Some(cid))? {
                return Ok(done);
            }
            super::alive(&*transport)?;
            if !patience.wait(&*transport, seen) {
                return Err(QueueFault::Timeout);
            }
        }
    }

    /// Takes completions until that of `wanted`; notes an event on the way.
    fn look(&mut self, wanted: Option<u16>) -> Result<Option<Done>, QueueFault> {
        while let Some(taken) = self.ring.take()? {
            let result = self.ring.result(&taken);
            self.ring.settle();
            if Some(taken.cid) == wanted {
                return Ok(Some(Done { result, status: taken.status }));
            }
            if !(self.armed && taken.cid == EVENT_CID) {
                return Err(QueueFault::UnknownCommand { cid: taken.cid });
            }
            self.armed = false;
            if taken.status.is_success() {
                let [kind, info, log, _] = result.to_le_bytes();
                self.event = Some(AsyncEvent { kind: kind & 7, info, log });
            }
        }
        Ok(None)
    }

    /// A command as its sender encoded it, with its data by way of the answer page.
    pub(super) fn execute(&mut self, command: &Command, data: Transfer<'_>) -> Result<u32, EngineError> {
        let bytes = data.bytes();
        if bytes > DATA_BYTES || !bytes.is_multiple_of(4) {
            return Err(EngineError::Buffer { bytes });
        }
        let memory = Arc::clone(&self.ring.region().memory);
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
    pub(super) fn identify(&mut self, cns: Cns, nsid: NamespaceId) -> Result<Answer, EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::Identify as u8, CommandId(0), nsid)
            .with_prps(self.data(), DeviceAddress(0));
        entry.cdw10 = u32::from(cns.0);
        self.ring.region().memory.fill(DATA_OFFSET, DATA_BYTES, 0);
        self.run("Identify", entry)?;
        Ok(self.answer())
    }

    /// The first `bytes` of a log page, a multiple of 4; reading it clears its event.
    pub(super) fn log_page(&mut self, page: u8, bytes: usize) -> Result<Answer, EngineError> {
        let mut entry =
            SubmissionEntry::new(AdminOpcode::GetLogPage as u8, CommandId(0), NamespaceId(u32::MAX))
                .with_prps(self.data(), DeviceAddress(0));
        // NUMDL, 0's based; 1,024 dwords at most, so that the high half stays 0.
        entry.cdw10 = u32::from(page) | (bytes as u32 / 4 - 1) << 16;
        self.ring.region().memory.fill(DATA_OFFSET, DATA_BYTES, 0);
        self.run("Get Log Page", entry)?;
        Ok(self.answer())
    }

    fn answer(&self) -> Answer {
        let mut answer = Answer([0; DATA_BYTES]);
        self.ring.region().memory.read(DATA_OFFSET, &mut answer.0);
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

    /// Abort (Base 2.0, 5.1): asks the controller to give up a command. Whether it did, the command's own
    /// completion tells.
    pub(super) fn abort(&mut self, queue: QueueId, cid: u16) -> Result<(), EngineError> {
        let mut entry = SubmissionEntry::new(AdminOpcode::Abort as u8, CommandId(0), NamespaceId(0));
        entry.cdw10 = u32::from(queue.0) | u32::from(cid) << 16;
        self.run_for(ABORT_TIMEOUT_MS, "Abort", entry).map(|_| ())
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
        if self.armed || self.fault.is_some() {
            return;
        }
        let opcode = AdminOpcode::AsyncEventRequest as u8;
        self.ring.push(&SubmissionEntry::new(opcode, CommandId(EVENT_CID), NamespaceId(0)));
        self.ring.ring();
        self.armed = true;
    }

    /// The event that the controller told of, if one came; its log is read, so that the next can come.
    pub(super) fn take_event(&mut self) -> Result<Option<AsyncEvent>, EngineError> {
        if let Err(fault) = self.look(None) {
            self.fault = Some(fault);
            return Err(EngineError::Queue { command: "Asynchronous Event Request", fault });
        }
        let Some(event) = self.event.take() else { return Ok(None) };
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

/// How an admin command ended.
struct Done {
    /// Dword 0 of the completion.
    result: u32,
    status: Status,
}

/// What an admin command answered in memory.
pub(super) struct Answer(pub(super) [u8; DATA_BYTES]);
