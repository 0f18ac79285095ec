//! Engines: a block device behind queue pairs.
//!
//! In: [`Request`]s over device-visible memory. Out: [`Completion`]s, each exactly once, with the
//! device's status. Neighbours: `nvme` and `dma` below; whoever binds handles to queues above.
//! Invariants: nothing on submit or poll allocates, waits or formats; what a device answers is checked
//! and, when it makes no sense, an error of the whole queue, never a panic.
//! Source: NVMe Base 2.0 and NVM Command Set 1.0; NVMeDirect (TCE'17, III.B) for handles over queues.
#![forbid(unsafe_code)]

mod cursor;
mod error;
pub mod nvme;
mod recorded;
mod request;
mod slot;

pub use cursor::Cursor;
pub use error::{DeviceError, EngineError, InvalidRequest, QueueFault, SubmitError};
pub use nvmed_dma::Waited;
pub use nvmed_nvme::AsyncEvent;
pub use recorded::{op_of, recorded};
pub use request::{
    Command, Completion, Operation, Priority, QueueOptions, Request, Segment, Transfer, UrgentPath,
    check_segments,
};
pub use slot::{Commands, QUEUE_DEPTH_MAX, Slots};

use nvmed_nvme::{AdminOpcode, Cns, IdentifyController, IdentifyNamespace, LogPage, SmartLog};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// What a device is, read once when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in one logical block, 512 or 4096.
    pub lba_bytes: u32,
    /// Logical blocks of the namespace.
    pub lba_count: u64,
    /// Bytes that one command moves at most; longer requests become several commands.
    pub transfer_bytes_max: u32,
    /// Commands that one queue pair holds at most.
    pub queue_depth_max: u16,
    /// Queue pairs that can exist at once.
    pub queues_max: u16,
    /// Whether completed writes may be lost by a power cut before a flush.
    pub volatile_write_cache: bool,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
}

impl Geometry {
    /// Bytes of the namespace.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lba_count.saturating_mul(u64::from(self.lba_bytes))
    }
}

/// Memory of the host that a device has been lent (NVMe Base 2.0, 8.9, Host Memory Buffer).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemoryUse {
    /// Bytes of it; 0 if there is none.
    pub bytes: u64,
    /// In so many ranges.
    pub ranges: u32,
}

/// A device that hands out queue pairs.
pub trait Engine: Send + Sync {
    /// What the device is.
    fn geometry(&self) -> &Geometry;
    /// Logical blocks of the namespace now: it may have grown or shrunk since it was opened.
    fn lba_count(&self) -> u64 {
        self.geometry().lba_count
    }
    /// A new queue pair. Dropping it gives it back to the device.
    ///
    /// # Errors
    /// The device has no queue left or refused, the depth is 0 or above
    /// [`Geometry::queue_depth_max`], or the host has no memory.
    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError>;
    /// The path that [`Engine::urgent_queues`] makes, as far as the device is known to have one; no queue may be left
    /// when it is made.
    fn urgent_path(&self) -> UrgentPath {
        UrgentPath::None
    }
    /// Queue pairs of `depth` commands for requests that may pass others, in the order in which a request tries them.
    /// Empty: there is no way for them, or no queue is left.
    ///
    /// # Errors
    /// As [`Engine::queue`], but for [`EngineError::NoQueue`].
    fn urgent_queues(&self, depth: u16) -> Result<Vec<Box<dyn QueuePair>>, EngineError> {
        let priority = match self.urgent_path() {
            UrgentPath::Wrr | UrgentPath::HmbIo { .. } => Priority::Urgent,
            UrgentPath::Reserved => Priority::Medium,
            UrgentPath::None => return Ok(Vec::new()),
        };
        match self.queue(QueueOptions { priority, ..QueueOptions::depth(depth) }) {
            Ok(pair) => Ok(vec![pair]),
            Err(EngineError::NoQueue { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
    /// Shows memory to the device; the answer is page-aligned.
    ///
    /// # Errors
    /// [`EngineError::Map`].
    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError>;
    /// Memory of a kind that [`Engine::map`] takes; private memory of the process where any will do.
    ///
    /// # Errors
    /// [`EngineError::Memory`].
    fn memory(&self, bytes: usize, pages: Pages) -> Result<Mapping, EngineError> {
        Mapping::anonymous(bytes, pages).map_err(|errno| EngineError::Memory { bytes, errno })
    }
    /// Hides it again. Requests that use it must have completed.
    fn unmap(&self, address: DeviceAddress);
    /// Tells the device to get ready for the loss of power, and waits until it is. Queues fail from then
    /// on.
    ///
    /// # Errors
    /// The device is gone, failed, or took longer than it said.
    fn shutdown(&self) -> Result<(), EngineError>;
    /// Executes an administrative command and answers dword 0 of its completion. It is sent as it is:
    /// one that deletes a queue or formats the namespace does so.
    ///
    /// # Errors
    /// The device refused or failed, the data is longer than [`ADMIN_BYTES_MAX`], or the engine has no
    /// such commands.
    fn admin(&self, command: &Command, data: Transfer<'_>) -> Result<u32, EngineError> {
        let _ = (command, data);
        Err(EngineError::Unsupported { what: "an NVMe administrative command" })
    }
    /// The namespace's number, where there is one.
    fn namespace(&self) -> u32 {
        0
    }
    /// The controller's own description.
    ///
    /// # Errors
    /// The admin command failed.
    fn identify_controller(&self) -> Result<IdentifyController, EngineError> {
        let mut page = IdentifyController::new_zeroed();
        let command = identify(Cns::CONTROLLER, 0);
        self.admin(&command, Transfer::FromDevice(page.as_mut_bytes()))?;
        Ok(page)
    }
    /// The namespace's description.
    ///
    /// # Errors
    /// The admin command failed.
    fn identify_namespace(&self) -> Result<IdentifyNamespace, EngineError> {
        let mut page = IdentifyNamespace::new_zeroed();
        let command = identify(Cns::NAMESPACE, self.namespace());
        self.admin(&command, Transfer::FromDevice(page.as_mut_bytes()))?;
        Ok(page)
    }
    /// Fills `into` with a log page from its start; the length must be a multiple of 4, at most 4096.
    ///
    /// # Errors
    /// The admin command failed, or the length is wrong.
    fn log_page(&self, page: u8, into: &mut [u8]) -> Result<(), EngineError> {
        let bytes = into.len();
        if bytes == 0 || bytes > ADMIN_BYTES_MAX || !bytes.is_multiple_of(4) {
            return Err(EngineError::Buffer { bytes });
        }
        // NUMDL, 0's based; 1,024 dwords at most, so that the high half stays 0.
        let cdw10 = u32::from(page) | (bytes as u32 / 4 - 1) << 16;
        let opcode = AdminOpcode::GetLogPage as u8;
        let command = Command { opcode, nsid: u32::MAX, cdw10, ..Command::default() };
        self.admin(&command, Transfer::FromDevice(into)).map(|_| ())
    }
    /// Whether the device says that it takes no writes any more, as a drive does that is worn out (SMART / Health
    /// Information, critical warning bit 3). One that does not answer, or has no such log, does not say so.
    fn is_read_only(&self) -> bool {
        let mut log = SmartLog::new_zeroed();
        self.log_page(LogPage::SMART.0, log.as_mut_bytes()).is_ok() && log.is_read_only()
    }
    /// Resets the controller and brings it up again. Queue pairs live on: what was outstanding completes
    /// with [`QueueFault::Reset`], whether or not the device did it; then they work again.
    ///
    /// # Errors
    /// The controller did not come back: then every queue pair fails. Or the engine has no reset.
    fn reset(&self) -> Result<(), EngineError> {
        Err(EngineError::Unsupported { what: "a controller reset" })
    }
    /// The memory that the device has been lent, because it would like some.
    fn host_memory(&self) -> HostMemoryUse {
        HostMemoryUse::default()
    }
    /// An asynchronous event that the device told of since the last call, if one came. The engine has
    /// acted on it: a changed namespace was looked at again.
    ///
    /// # Errors
    /// The device failed.
    fn take_event(&self) -> Result<Option<AsyncEvent>, EngineError> {
        Ok(None)
    }
    /// See [`nvmed_dma::Transport::events`]; `vector` is [`QueuePair::vector`]'s.
    fn events(&self, vector: u16) -> u32;
    /// See [`nvmed_dma::Transport::wait`].
    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited;
    /// See [`nvmed_dma::Transport::event_fd`].
    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        let _ = vector;
        None
    }
    /// See [`nvmed_dma::Transport::now_ns`].
    fn now_ns(&self) -> u64 {
        nvmed_dma::monotonic_ns()
    }
}

/// Bytes that an administrative command moves at most: the largest structure of Identify.
pub const ADMIN_BYTES_MAX: usize = 4096;

/// Identify (Base 2.0, 5.17).
fn identify(cns: Cns, nsid: u32) -> Command {
    let opcode = AdminOpcode::Identify as u8;
    Command { opcode, nsid, cdw10: u32::from(cns.0), ..Command::default() }
}

/// One submission and one completion queue. Not shared: whoever shares it locks it.
pub trait QueuePair: Send {
    /// Puts a request into the queue; the device sees it at the next [`QueuePair::ring`]. The memory
    /// behind `request.data` belongs to the device until the completion.
    ///
    /// # Errors
    /// [`SubmitError::NoSlot`] is ordinary: poll, then try again. Otherwise the request, or the
    /// queue, can never work. Nothing was queued in either case.
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError>;
    /// Tells the device of all that was submitted: one doorbell.
    fn ring(&mut self);
    /// Appends finished requests to `out`, at most as many as `out` has room for without growing.
    /// Answers how many. Of a queue that failed, every outstanding request comes out as an error.
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize;
    /// Submits, rings and polls, for a caller who would do all three anyway.
    ///
    /// # Errors
    /// As [`QueuePair::submit`]; then nothing was rung or polled.
    fn execute(&mut self, request: &Request<'_>, out: &mut Vec<Completion>) -> Result<usize, SubmitError> {
        self.submit(request)?;
        self.ring();
        Ok(self.poll(out))
    }
    /// As [`QueuePair::submit`], for a command of any kind. `data` follows the rule of [`Segment`] and is at
    /// most [`Geometry::transfer_bytes_max`] long. Its completion carries dword 0.
    ///
    /// # Errors
    /// As [`QueuePair::submit`]; [`InvalidRequest::Unsupported`] where a device has no such commands.
    fn passthrough(&mut self, command: &Command, data: &[Segment], tag: u64) -> Result<(), SubmitError> {
        let _ = (command, data, tag);
        let (operation, lba) = (Operation::Passthrough { opcode: command.opcode }, Lba(0));
        Err(SubmitError::Invalid { operation, lba, reason: InvalidRequest::Unsupported })
    }
    /// Asks the device to give up a request. It still completes, by [`QueuePair::poll`]: aborted, or done
    /// if it was faster. Nothing happens when no request has the tag.
    ///
    /// # Errors
    /// The device did not take the question; the request is where it was.
    fn cancel(&mut self, tag: u64) -> Result<(), EngineError> {
        let _ = tag;
        Ok(())
    }
    /// The interrupt vector of this queue, for [`Engine::events`] and [`Engine::wait`].
    fn vector(&self) -> u16 {
        0
    }
    /// Requests submitted and not yet handed out by [`QueuePair::poll`].
    fn outstanding(&self) -> usize;
    /// Looks whether the device is still alive; if not, the queue fails. For those who wait for
    /// longer than a device takes.
    fn check(&mut self);
    /// Gives up on the device: every outstanding request fails with [`QueueFault::Timeout`].
    fn expire(&mut self);
    /// Logical blocks that one request of this kind covers at most, when every slot is free.
    fn request_blocks_max(&self, operation: Operation) -> u32;
}
