//! Engines: a block device behind queue pairs.
//!
//! In: [`Request`]s over device-visible memory. Out: [`Completion`]s, each exactly once, with the
//! device's status. Neighbours: `nvme` and `dma` below; whoever binds handles to queues above.
//! Invariants: nothing on submit or poll allocates, waits or formats; what a device answers is checked
//! and, when it makes no sense, an error of the whole queue, never a panic.
//! Source: NVMe Base 2.0 and NVM Command Set 1.0; NVMeDirect (TCE'17, III.B) for handles over queues.
#![forbid(unsafe_code)]

mod error;
pub mod nvme;
mod request;

pub use error::{DeviceError, EngineError, InvalidRequest, QueueFault, SubmitError};
pub use nvmed_dma::Waited;
pub use request::{Completion, Operation, Request, Segment};

use nvmed_nvme::{IdentifyController, IdentifyNamespace};
use nvmed_sys::Mapping;
use nvmed_units::DeviceAddress;
use std::sync::Arc;

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

/// A device that hands out queue pairs.
pub trait Engine: Send + Sync {
    /// What the device is.
    fn geometry(&self) -> &Geometry;
    /// A new queue pair for `depth` commands in flight. Dropping it gives it back to the device.
    ///
    /// # Errors
    /// The device has no queue left or refused, `depth` is 0 or above
    /// [`Geometry::queue_depth_max`], or the host has no memory.
    fn queue(&self, depth: u16) -> Result<Box<dyn QueuePair>, EngineError>;
    /// Shows memory to the device; the answer is page-aligned.
    ///
    /// # Errors
    /// [`EngineError::Map`].
    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError>;
    /// Hides it again. Requests that use it must have completed.
    fn unmap(&self, address: DeviceAddress);
    /// Tells the device to get ready for the loss of power, and waits until it is. Queues fail from then
    /// on.
    ///
    /// # Errors
    /// The device is gone, failed, or took longer than it said.
    fn shutdown(&self) -> Result<(), EngineError>;
    /// The controller's own description.
    ///
    /// # Errors
    /// The admin command failed.
    fn identify_controller(&self) -> Result<IdentifyController, EngineError>;
    /// The namespace's description.
    ///
    /// # Errors
    /// The admin command failed.
    fn identify_namespace(&self) -> Result<IdentifyNamespace, EngineError>;
    /// Fills `into` with a log page from its start; the length must be a multiple of 4, at most 4096.
    ///
    /// # Errors
    /// The admin command failed, or the length is wrong.
    fn log_page(&self, page: u8, into: &mut [u8]) -> Result<(), EngineError>;
    /// See [`nvmed_dma::Transport::events`].
    fn events(&self) -> u32;
    /// See [`nvmed_dma::Transport::wait`].
    fn wait(&self, seen: u32, timeout_us: u32) -> Waited;
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
