//! Asynchronous calls that are not over yet.

use crate::file::OpenFile;
use crate::worker::Job;
use nvmed_block::Buffer;
use nvmed_fs::{DirectIo, FsError};
use std::sync::Arc;

/// An asynchronous call. Its result is there once, for [`Ticket::wait`]; dropping it waits, since the call may use
/// memory until its end.
#[must_use = "a call has a result; wait for it"]
#[derive(Debug)]
pub struct Ticket {
    pub(crate) work: Work,
    pub(crate) buffer: Option<Arc<Buffer>>,
}

/// Who does it.
#[derive(Debug)]
pub(crate) enum Work {
    /// The device; the file's queue stays as long.
    Direct(Arc<DirectIo>, #[expect(dead_code, reason = "held, not looked at")] Arc<OpenFile>),
    /// A thread of the mount.
    Job(Arc<Job>),
    /// Nobody any more.
    Done(Option<Result<usize, FsError>>),
}

/// A call that is over.
#[derive(Debug)]
#[must_use]
pub struct Finished {
    /// What the synchronous call would have answered.
    pub result: Result<usize, FsError>,
    /// The memory of a read or write.
    pub buffer: Option<Arc<Buffer>>,
}

impl Ticket {
    /// A call that was over at once.
    pub(crate) fn done(result: Result<usize, FsError>, buffer: Option<Arc<Buffer>>) -> Self {
        Self { work: Work::Done(Some(result)), buffer }
    }

    /// Whether it is over. Looking is what drives a direct call on: the device's results are taken here.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.work {
            Work::Direct(flight, _) => flight.poll().is_some(),
            Work::Job(job) => job.is_done(),
            Work::Done(_) => true,
        }
    }

    /// Waits for the end, as the file's policy says.
    pub fn wait(mut self) -> Finished {
        let result = self.finish();
        Finished { result, buffer: self.buffer.take() }
    }

    fn finish(&mut self) -> Result<usize, FsError> {
        match core::mem::replace(&mut self.work, Work::Done(None)) {
            Work::Direct(flight, _) => flight.wait(),
            Work::Job(job) => job.wait(),
            // Only after it was taken, and then nobody asks.
            Work::Done(result) => result.unwrap_or(Ok(0)),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Whoever drops a ticket does not want its result.
        let _ = self.finish();
    }
}
