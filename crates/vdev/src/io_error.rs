//! Why an I/O command failed, and where: the error log names the first block (Base 2.0, 5.16.1.2).

use crate::controller::Controller;
use nvmed_image::Span;
use nvmed_nvme::Status;
use nvmed_units::Lba;

/// Why an I/O command failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoError {
    pub status: Status,
    /// The first block in error; 0 of an error that is no block's.
    pub lba: Lba,
}

impl From<Status> for IoError {
    fn from(status: Status) -> Self {
        Self { status, lba: Lba(0) }
    }
}

impl Controller {
    /// An error of the block that has the byte `at`.
    pub(crate) fn error_at(&self, status: Status, at: u64) -> IoError {
        IoError { status, lba: Lba(at >> self.lba_shift) }
    }

    /// The error of a span with which `works` failed: it is tried again with fewer and fewer blocks, until one more is
    /// the first that fails. `works` is given bytes from the span's begin on, and may be called any number of times.
    #[cold]
    pub(crate) fn first_error(
        &self,
        status: Status,
        span: Span,
        mut works: impl FnMut(usize) -> Result<(), Status>,
    ) -> IoError {
        let first = span.offset >> self.lba_shift;
        let bytes_to = |block: u64| ((block << self.lba_shift).min(span.end()) - span.offset) as usize;
        // All before `good` work; up to `bad`, not all do.
        let (mut good, mut bad) = (first, ((span.end() - 1) >> self.lba_shift) + 1);
        while bad - good > 1 {
            let middle = good.midpoint(bad);
            if works(bytes_to(middle)).is_ok() { good = middle } else { bad = middle }
        }
        IoError { status, lba: Lba(good) }
    }
}
