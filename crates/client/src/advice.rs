//! A program's advice about how it reads, which is the description's and changes only how far the server reads ahead:
//! it is told with the first read that it can change, so that a small file's never costs a call.

use crate::file::File;
use core::sync::atomic::{AtomicU8, Ordering};
use nvmed_fs::{Advice, FileType, FsError, OpenFlags};
use nvmed_wire::Call;

/// Where a file's beginning ends, which is read the same with more readahead and without: windows double up to the
/// mount's, 128 KiB if nothing else was set, and a call reads as much as it asks for.
const BEGINNING_BYTES: u64 = 64 << 10;

const NOTHING: u8 = 0;
const NORMAL: u8 = 1;
const SEQUENTIAL: u8 = 2;
const RANDOM: u8 = 3;

/// What the program has said last and the server does not know yet. Racing threads give advice in either order.
#[derive(Debug, Default)]
pub(crate) struct Untold(AtomicU8);

impl File {
    /// Takes a program's advice. What only says how the program reads is not waited for.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::advise`].
    pub fn advise(&self, advice: Advice, offset: u64, bytes: u64) -> Result<(), FsError> {
        let untold = match advice {
            Advice::Normal => NORMAL,
            Advice::Sequential => SEQUENTIAL,
            Advice::Random => RANDOM,
            Advice::WillNeed | Advice::DontNeed => return self.advise_there(advice, offset, bytes),
        };
        if self.flags().has(OpenFlags::PATH) || self.holding.kind != FileType::File {
            return Err(FsError::BadDescriptor);
        }
        self.untold.0.store(untold, Ordering::Relaxed);
        Ok(())
    }

    fn advise_there(&self, advice: Advice, offset: u64, bytes: u64) -> Result<(), FsError> {
        self.core().done(&Call::Advise { handle: self.handle()?, advice, offset, bytes })
    }

    /// Tells what was not told yet, before a read at `offset`, if that can change it; none is the server's offset.
    #[inline]
    pub(crate) fn tell_advice(&self, offset: Option<u64>) {
        let untold = self.untold.0.load(Ordering::Relaxed);
        let is_in_beginning = offset.is_some_and(|offset| offset < BEGINNING_BYTES);
        if untold != NOTHING && (untold == RANDOM || !is_in_beginning) {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        let advice = match self.untold.0.swap(NOTHING, Ordering::Relaxed) {
            NORMAL => Advice::Normal,
            SEQUENTIAL => Advice::Sequential,
            RANDOM => Advice::Random,
            // Another thread has told it.
            _ => return,
        };
        // The server's end is the next call's to tell.
        let _ = self.advise_there(advice, 0, 0);
    }
}
