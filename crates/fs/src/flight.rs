//! Direct transfers under way, and who waits for their end.

use crate::error::FsError;
use crate::filedata::Io;
use crate::inode::Inode;
use crate::journal::Journal;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{Flight, Handle, Operation, Segment};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::{ByteOffset, Page};

/// Least alignment of offset, length and buffer under `O_DIRECT`, the smallest LBA format.
pub(crate) const DIRECT_ALIGN_MIN: u32 = 512;

/// The direct transfers of an inode that are under way.
#[derive(Default)]
pub(crate) struct Flights {
    count: AtomicU32,
    list: Mutex<Vec<Arc<DirectIo>>>,
}

/// A direct transfer. Its memory is the device's until [`DirectIo::wait`] has returned, or [`DirectIo::poll`] has
/// answered something; letting go of it ends nothing, since the file keeps it until then.
pub struct DirectIo {
    inode: Arc<Inode>,
    journal: Arc<Journal>,
    /// The open description, which stays open until the end.
    _open: Arc<dyn Any + Send + Sync>,
    handle: Handle,
    operation: Operation,
    pages: Range<Page>,
    bytes: usize,
    /// Of who began it, for what others send of it later.
    urgency: Urgency,
    progress: Mutex<Progress>,
}

struct Progress {
    flight: Flight,
    is_over: bool,
}

impl core::fmt::Debug for DirectIo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (operation, pages) = (self.operation, &self.pages);
        f.debug_struct("DirectIo")
            .field("operation", &operation)
            .field("pages", pages)
            .finish_non_exhaustive()
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<DirectIo>>> {
        // A push or a removal is whole at every step.
        self.list.lock()
    }

    /// Waits for the transfers under way that `which` accepts.
    fn settle(&self, which: impl Fn(&DirectIo) -> bool) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let flying: Vec<_> = self.lock().iter().filter(|flight| which(flight)).map(Arc::clone).collect();
        // A failure is told to whoever began the transfer.
        flying.iter().for_each(|flight| drop(flight.finish()));
    }

    /// Waits for all transfers under way.
    pub(crate) fn settle_all(&self) {
        self.settle(|_| true);
    }

    /// Whether a write of `page` is under way.
    fn writes(&self, page: Page) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.lock().iter().any(|flight| flight.writes(page))
    }
}

impl Inode {
    /// Before a claim of a page: waits for direct writes of it.
    #[inline]
    pub(crate) fn await_direct(&self, page: Page) {
        if self.data.flights.count.load(Ordering::Relaxed) > 0 {
            self.data.flights.settle(|flight| flight.writes(page));
        }
    }

    /// After a claim of a page: whether a direct write of it has begun meanwhile, so that the claim must be dropped.
    #[inline]
    pub(crate) fn is_overtaken(&self, page: Page) -> bool {
        // With the fence in `register`: either we see the transfer, or it sees the claim and waits for it.
        fence(Ordering::SeqCst);
        self.data.flights.writes(page)
    }
}

/// What a direct transfer asks for.
pub(crate) struct Wish {
    pub(crate) operation: Operation,
    pub(crate) data: Segment,
    pub(crate) offset: ByteOffset,
}

/// What a transfer is to do.
pub(crate) struct Transfer {
    pub(crate) handle: Handle,
    pub(crate) operation: Operation,
    pub(crate) pages: Range<Page>,
    pub(crate) bytes: usize,
    pub(crate) flight: Flight,
}

impl DirectIo {
    /// A transfer that others see from now on. The caller holds the inode's `io`.
    pub(crate) fn register(
        _io: &Io<'_>,
        (inode, journal): (&Arc<Inode>, &Arc<Journal>),
        open: Arc<dyn Any + Send + Sync>,
        what: Transfer,
    ) -> Arc<Self> {
        let Transfer { handle, operation, pages, bytes, flight } = what;
        let progress = Mutex::new(Progress { flight, is_over: false });
        let (inode, journal) = (Arc::clone(inode), Arc::clone(journal));
        let urgency = caller::now();
        let flight = Arc::new(Self {
            inode,
            journal,
            _open: open,
            handle,
            operation,
            pages,
            bytes,
            urgency,
            progress,
        });
        let flights = &flight.inode.data.flights;
        flights.lock().push(Arc::clone(&flight));
        flights.count.fetch_add(1, Ordering::SeqCst);
        // With the fence in `is_overtaken`.
        fence(Ordering::SeqCst);
        flight
    }

    /// Sends it off.
    pub(crate) fn start(&self) {
        self.send(&mut self.lock());
    }

    /// Sends what the queue has slots for; urgently if it is for an urgent caller, or an urgent one waits for it.
    fn send(&self, progress: &mut Progress) {
        caller::with(self.urgency.or(caller::now()), || progress.flight.submit(&self.handle));
    }

    /// Ends it, if nobody has sent it, before anything of it was sent.
    pub(crate) fn call_off(&self) {
        self.lock().flight.call_off();
        // Who claims a page of it may have sent it meanwhile, or ended it.
        let _ = self.finish();
    }

    fn writes(&self, page: Page) -> bool {
        matches!(self.operation, Operation::Write { .. }) && self.pages.contains(&page)
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Its requests are sent and noted by calls that do not panic in between.
        self.progress.lock()
    }

    /// Everything that the device was given has come back.
    fn end(&self, progress: &mut Progress) {
        progress.is_over = true;
        let inode = &self.inode;
        if matches!(self.operation, Operation::Write { .. }) {
            // Also of one that failed: some of it may have been written.
            let ticket = self.journal.order.wrote();
            inode.data.ticket.fetch_max(ticket, Ordering::SeqCst);
        }
        let flights = &inode.data.flights;
        flights.lock().retain(|flight| !core::ptr::eq(Arc::as_ptr(flight), self));
        flights.count.fetch_sub(1, Ordering::SeqCst);
    }

    fn result(&self, progress: &Progress) -> Result<usize, FsError> {
        Ok(progress.flight.result().map(|()| self.bytes)?)
    }

    fn finish(&self) -> Result<usize, FsError> {
        let mut progress = self.lock();
        while !progress.is_over {
            self.send(&mut progress);
            match progress.flight.take() {
                Some(ticket) => progress.flight.note(self.handle.wait(ticket)),
                None if progress.flight.is_landed() => self.end(&mut progress),
                // Others have all slots of the queue.
                None => nvmed_sys::sync::yield_now(),
            }
        }
        self.result(&progress)
    }

    /// Waits for the end; answers bytes moved: fewer than asked for at the end of the file.
    ///
    /// # Errors
    /// The device's. Blocks of a failed write hold what they held before, or what was to be written.
    pub fn wait(&self) -> Result<usize, FsError> {
        self.finish()
    }

    /// The result, if it is there.
    #[must_use]
    pub fn poll(&self) -> Option<Result<usize, FsError>> {
        // Who holds the lock for long waits for the end.
        let mut progress = self.progress.try_lock()?;
        if !progress.is_over {
            self.send(&mut progress);
            progress.flight.poll(&self.handle);
            if !progress.flight.is_landed() {
                return None;
            }
            self.end(&mut progress);
        }
        Some(self.result(&progress))
    }
}
