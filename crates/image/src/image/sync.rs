//! What was stored is made durable, and what could not be is never said to be.

use super::{Flush, Image, NO_PAGE};
use crate::span::Span;
use nvmed_nvme::Status;
use std::sync::atomic::Ordering;

/// What is to be made durable.
#[derive(Clone, Copy, Debug)]
pub struct Owed {
    /// No byte from here on was stored to.
    pub end: u64,
    /// By which call.
    pub call: SyncCall,
}

/// A call that makes bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncCall {
    /// None: they are where they have to be, as long as the file has them.
    None,
    /// `msync` of a run of pages.
    Run(Span),
    /// `fdatasync`.
    File,
}

/// Whether there is something to make persistent.
#[derive(Debug)]
pub(super) struct Syncing {
    /// The host failed to. It may have dropped what it could not write, so that a later success would lie:
    /// every flush fails from then on.
    pub(super) failed: bool,
}

impl Image {
    /// Makes what was written before durable, as far as [`Flush`] says.
    ///
    /// # Errors
    /// The host could not, now or before; or what was written since the last flush was cut off.
    pub fn flush(&self) -> Result<(), Status> {
        let call = match self.flush {
            Flush::Process => SyncCall::None,
            Flush::Host => SyncCall::File,
        };
        if call == SyncCall::None && !self.looks_cut() {
            return Ok(());
        }
        self.sync(|| {
            // Pairs with the swap in `touched`, which follows the copy: what this clears is in the page cache
            // before the call.
            let end = self.unflushed.swap(0, Ordering::AcqRel);
            (end > 0).then_some(Owed { end, call })
        })
    }

    /// Whether everything that was stored to is there, for stores of which no note was made.
    ///
    /// # Errors
    /// Something was cut off, now or before, or a sync failed.
    #[inline]
    pub fn check(&self) -> Result<(), Status> {
        if !self.looks_cut() {
            return Ok(());
        }
        let end = self.stored_end.load(Ordering::Relaxed);
        self.sync(|| Some(Owed { end, call: SyncCall::None }))
    }

    /// Makes durable what `owed` says, which is asked when it is this call's turn: one that finds nothing was preceded
    /// by the call which made that durable.
    ///
    /// # Errors
    /// The host could not, now or before; or something before [`Owed::end`] was cut off.
    pub fn sync(&self, owed: impl FnOnce() -> Option<Owed>) -> Result<(), Status> {
        let mut syncing = self.syncing.lock();
        if syncing.failed {
            return Err(Status::WRITE_FAULT);
        }
        let Some(Owed { end, call }) = owed() else { return Ok(()) };
        let synced = match call {
            SyncCall::None => true,
            // Of a file that was cut, some pages are no longer those of the mapping.
            SyncCall::Run(span) if !self.is_cut() => {
                self.stores.sync_range(span.offset as usize, span.bytes as usize).is_ok()
            }
            SyncCall::Run(_) | SyncCall::File => rustix::fs::fdatasync(&self.fd).is_ok(),
        };
        // What was written and cut off since is lost, and no later flush would say so.
        if synced && (!self.looks_cut() || self.reaches(end)) {
            return Ok(());
        }
        syncing.failed = true;
        Err(Status::WRITE_FAULT)
    }

    /// Whether something of the image is missing that was stored to: by a load from the last page of that. Where that
    /// page has been discarded the host is asked, until it or a later one is stored to again.
    #[inline]
    fn looks_cut(&self) -> bool {
        let last = self.last_page.load(Ordering::Acquire);
        if last == NO_PAGE {
            let end = self.stored_end.load(Ordering::Relaxed);
            return self.is_cut() || end > 0 && !self.reaches(end);
        }
        self.reads.u8(last as usize).load(Ordering::Relaxed);
        self.is_cut()
    }

    /// Whether the file has lost something since it was opened: bytes go by calls from then on.
    #[must_use]
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.stores.is_cut() || self.reads.is_cut()
    }
}
