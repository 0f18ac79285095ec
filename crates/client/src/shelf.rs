//! Answers that make no call: from the shelf of the session's class (docs/spec/shelf.md).

use crate::core::{Core, STRANGE};
use crate::file::File;
use crate::link::Link;
use crate::node::{Holding, Node};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use nvmed_fs::versions::Version;
use nvmed_fs::{FileType, Follow, FsError, Object, OpenFlags, Stat};
use nvmed_mutant::{Mutant, Point};
use nvmed_wire::{
    Answer, BoardView, Call, ClientLane, Control, Found, Handle, POSTED_FLAGS, ShelfView, Spare,
};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::time::ClockId;
use std::sync::{Arc, OnceLock};

/// Calls about names, and reads, that a process makes before it asks for the shelf: one that makes few needs none.
const CALLS_BEFORE: u32 = 4;
/// An access time of so long ago is renewed by an open, which is a call then (relatime).
const ATIME_STALE_NS: i64 = 24 * 3600 * 1_000_000_000;

/// A process's shelf, and the slots in which it posts what it has opened by it.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// The first; one after a change of ids is behind it.
    seat: OnceLock<Seat>,
    calls: AtomicU32,
    /// A bit for each slot that is free.
    slots: AtomicU64,
    /// The second in which this process looked last whether the server is there.
    looked_s: AtomicI64,
}

#[derive(Debug)]
struct Seat {
    /// None: the server offers none.
    view: Option<ShelfView>,
    /// The process has other ids since.
    left: AtomicBool,
    next: OnceLock<Box<Seat>>,
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            seat: OnceLock::new(),
            calls: AtomicU32::new(0),
            slots: AtomicU64::new(u64::MAX),
            looked_s: AtomicI64::new(0),
        }
    }
}

impl Shelf {
    #[inline]
    fn last(&self) -> Option<&Seat> {
        let mut last = self.seat.get()?;
        while let Some(next) = last.next.get() {
            last = next;
        }
        Some(last)
    }

    /// The shelf, once the process has it.
    #[inline]
    pub fn view(&self) -> Option<&ShelfView> {
        self.last().filter(|seat| !seat.left.load(Ordering::SeqCst))?.view.as_ref()
    }

    /// The process is about to have other ids: what was answered to those before is not seen any more. The server hears
    /// of the ids after this.
    pub fn leave(&self) {
        let Some(last) = self.last() else { return };
        last.left.store(true, Ordering::SeqCst);
        self.calls.store(0, Ordering::Relaxed);
        if let Some(view) = &last.view {
            // Without memory it stays to be seen, and nothing looks at it.
            let _ = view.blank();
        }
    }

    fn put(&self, view: Option<ShelfView>) {
        let seat = Seat { view, left: AtomicBool::new(false), next: OnceLock::new() };
        // Set by who holds the socket; nobody else sets.
        match self.last() {
            None => drop(self.seat.set(seat)),
            Some(last) => drop(last.next.set(Box::new(seat))),
        }
    }

    fn take_slot(&self) -> Option<u32> {
        let mut free = self.slots.load(Ordering::Relaxed);
        while free != 0 {
            let rest = free & (free - 1);
            match self.slots.compare_exchange_weak(free, rest, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(free.trailing_zeros()),
                Err(now) => free = now,
            }
        }
        None
    }

    fn give_slot(&self, slot: u32) {
        let before = self.slots.fetch_or(1 << slot, Ordering::Release);
        // A second panic while one unwinds would end the process.
        assert!(before & (1 << slot) == 0 || std::thread::panicking(), "slot {slot} is given back twice");
    }
}

/// An open that was posted.
#[derive(Debug)]
pub(crate) struct Posted {
    slot: u32,
    /// Whose slot: a forked child has others.
    link: usize,
    flags: OpenFlags,
}

fn address(link: &Link) -> usize {
    core::ptr::from_ref(link) as usize
}

impl Link {
    /// The shelf, asked for at some call of many.
    #[inline]
    fn shelf_or_ask(&self) -> Option<&ShelfView> {
        if let Some(view) = self.shelf.view() {
            return Some(view);
        }
        self.ask_for_shelf();
        None
    }

    #[cold]
    fn ask_for_shelf(&self) {
        let shelf = &self.shelf;
        let is_asked = shelf.last().is_some_and(|seat| !seat.left.load(Ordering::Relaxed));
        if is_asked || shelf.calls.fetch_add(1, Ordering::Relaxed) + 1 < CALLS_BEFORE {
            return;
        }
        let Ok(mut talk) = self.socket() else { return };
        if shelf.last().is_some_and(|seat| !seat.left.load(Ordering::Relaxed)) {
            // Another thread has asked meanwhile.
            return;
        }
        let answer = talk.ask(&Control::Shelf, None);
        shelf.put(answer.ok().and_then(|(_, fd)| ShelfView::open(fd?.as_fd()).ok()));
    }

    /// Whether the server is there, as far as one look a second tells: a process that makes no calls does not hear of
    /// its end otherwise. That the server has ended this session, as when its grant was revoked, is seen at once: then
    /// the first lane is closed. The answer was found before.
    #[inline]
    fn has_server(&self, board: &BoardView) -> bool {
        // Before the lane is touched, which a forked child has not.
        if !self.is_open() || self.lanes().first().is_none_or(ClientLane::is_closed) {
            return false;
        }
        let now_s = rustix::time::clock_gettime(ClockId::MonotonicCoarse).tv_sec;
        if self.shelf.looked_s.load(Ordering::Relaxed) != now_s {
            self.shelf.looked_s.store(now_s, Ordering::Relaxed);
            return self.is_alive() && !board.is_dead();
        }
        !board.is_dead()
    }

    /// Takes the slot of an open that is over.
    fn end_posted(&self, posted: &Posted, ino: u64) -> bool {
        let Some(lane) = self.lanes().first() else { return true };
        let cleared = lane.opens().clear(posted.slot, ino);
        if cleared {
            Point::OpenCleared.reached();
            self.shelf.give_slot(posted.slot);
        }
        cleared
    }
}

impl Core {
    /// An answer that makes no call; none once the server is gone.
    #[inline]
    pub(crate) fn answered<T>(&self, answer: T) -> Option<T> {
        let link = self.link();
        link.has_server(&self.board).then(|| {
            link.count(Spare::Name);
            answer
        })
    }

    #[inline]
    fn find(&self, at: &Node, path: &[u8], follow: Follow) -> Option<Found> {
        self.link().shelf_or_ask()?.find(at.ino(), path, follow, &self.board)
    }

    /// What the shelf says of a path.
    #[inline]
    pub(crate) fn find_shown(&self, at: &Node, path: &[u8], follow: Follow) -> Option<Found> {
        self.answered(self.find(at, path, follow)?)
    }

    /// Whether the class may do what `mask` says at a path; none takes a call, and so does whether it may write, which
    /// depends on more than the inode.
    pub(crate) fn access_shown(
        &self,
        (at, path, follow): (&Node, &[u8], Follow),
        mask: u32,
        real: bool,
    ) -> Option<Result<(), FsError>> {
        if real && !self.link().shelf_or_ask()?.same_ids() {
            // Those ids may search other directories, too.
            return None;
        }
        match self.find(at, path, follow)?.card {
            Some(card) if card.rights & mask == mask => self.answered(Ok(())),
            Some(_) => None,
            None => self.answered(Err(FsError::NotFound)),
        }
    }

    /// All that is read of a directory or a link.
    pub(crate) fn whole_shown(&self, ino: u64) -> Option<Vec<u8>> {
        let whole = self.link().shelf_or_ask()?.read_whole(ino, &self.board)?;
        self.answered(whole)
    }

    /// The target of the link at a path.
    pub(crate) fn target_shown(
        &self,
        at: &Node,
        path: &[u8],
        follow: Follow,
    ) -> Option<Result<Vec<u8>, FsError>> {
        let Some(card) = self.find(at, path, follow)?.card else {
            return self.answered(Err(FsError::NotFound));
        };
        let is_link = FileType::of_mode(card.stat.mode) == Some(FileType::Symlink);
        if is_link { self.whole_shown(card.stat.ino).map(Ok) } else { self.answered(Err(FsError::Invalid)) }
    }

    /// Whether something is there, and has no extended attributes; none takes a call.
    pub(crate) fn plain_shown(&self, object: &Object<'_, Node, File>) -> Option<Result<(), FsError>> {
        let card = match *object {
            Object::At(at, path, follow) => match self.find(at, path, follow)?.card {
                Some(card) => card,
                None => return self.answered(Err(FsError::NotFound)),
            },
            Object::Held(node) => self.link().shelf_or_ask()?.card(node.ino(), &self.board)?,
            // What it was opened for counts.
            Object::Open(_) => return None,
        };
        if card.plain { self.answered(Ok(())) } else { None }
    }

    /// The status of an inode that is held: `known`, while its version stands, or what the shelf says.
    #[inline]
    pub(crate) fn status_shown(&self, ino: u64, known: &(Stat, Option<Version>)) -> Option<Stat> {
        let stat = match known {
            (stat, Some(version)) if self.board.has_version(*version) => *stat,
            _ => self.link().shelf_or_ask()?.card(ino, &self.board)?.stat,
        };
        self.answered(stat)
    }

    /// Opens a file by a post, if the shelf has it: none takes a call.
    pub(crate) fn open_posted(
        self: &Arc<Self>,
        at: &Node,
        path: &[u8],
        flags: OpenFlags,
    ) -> Option<Result<Arc<File>, FsError>> {
        if flags.without(POSTED_FLAGS) != OpenFlags::READ {
            return None;
        }
        let wants_directory = flags.has(OpenFlags::DIRECTORY);
        let follow = if flags.has(OpenFlags::NOFOLLOW) { Follow::No } else { Follow::Yes };
        let found = self.find(at, path, follow)?;
        let Some(card) = found.card else { return self.answered(Err(FsError::NotFound)) };
        let link = self.link();
        if !link.has_server(&self.board) {
            return None;
        }
        let (view, lane) = (link.shelf.view()?, link.lanes().first()?);
        let is_directory = FileType::of_mode(card.stat.mode)? == FileType::Directory;
        let is_other = wants_directory && !is_directory;
        if !card.opens || is_other || view.renews_atime() && is_stale(card.stat.atime_ns) {
            return None;
        }
        let slot = link.shelf.take_slot()?;
        let flags = flags.without(OpenFlags::ONCE);
        let posted = Posted { slot, link: address(link), flags };
        let holding = Holding::posted(self, posted, &card)?;
        Point::OpenFound.reached();
        lane.opens().post(slot, card.stat.ino);
        Point::OpenPosted.reached();
        // After the post: see `Opens::post`. Its drop takes the post back.
        let is_same = link.shelf.view().is_some_and(|now| core::ptr::eq(now, view));
        let stands = view.stands(&found, &self.board) || Mutant::SecondLookForgotten.is_made();
        let is_open = is_same && stands;
        Point::OpenLooked.reached();
        // One that is taken back counts as opened and closed.
        link.count(Spare::Open);
        is_open.then(|| Ok(Arc::new(File::new(holding, flags, Some(0)))))
    }

    /// Holds a description for what was opened by a post.
    pub(crate) fn claim(&self, posted: &Posted, ino: u64) -> Result<Handle, FsError> {
        let link = self.link();
        let slot = posted.slot;
        if address(link) != posted.link {
            // Its process is another one.
            return Err(FsError::Host(Errno::IO));
        }
        let ask = || match self.call(&Call::Claim { slot, ino, flags: posted.flags })?.answer {
            Answer::Held { handle, .. } => Ok(handle),
            _ => Err(STRANGE),
        };
        let handle = ask()?;
        Point::ClaimAnswered.reached();
        if let Some(lane) = link.lanes().first()
            && lane.opens().free(slot)
        {
            // The server took it over after it had answered: that one is not needed.
            if let Ok(second) = ask() {
                self.let_go(second, false);
            }
        }
        link.shelf.give_slot(slot);
        Ok(handle)
    }

    /// What was opened by a post, and never claimed, is closed. Whether that made no call.
    pub(crate) fn close_posted(&self, posted: &Posted, ino: u64, is_told: bool) -> bool {
        let link = self.link();
        // A forked child's copy is not the process's that posted it, and has none of its lanes.
        if !link.is_open() || address(link) != posted.link {
            return false;
        }
        let cleared = link.end_posted(posted, ino);
        if !cleared && let Ok(handle) = self.claim(posted, ino) {
            self.let_go(handle, is_told);
        }
        cleared
    }
}

fn is_stale(atime_ns: i64) -> bool {
    let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
    let now_ns = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    now_ns.saturating_sub(atime_ns) >= ATIME_STALE_NS
}

impl File {
    /// Reads from the shelf; none when the call must be made.
    #[inline]
    pub(crate) fn read_shown(&self, into: &mut [u8], offset: u64) -> Option<usize> {
        let flags = self.flags();
        if self.holding.kind != FileType::File || !flags.reads() || flags.has(OpenFlags::DIRECT) {
            return None;
        }
        let (core, link, ino) = (self.core(), self.core().link(), self.holding.ino);
        let view = link.shelf_or_ask()?;
        let (read, is_spared) = match view.read(ino, into, offset, &core.board) {
            Some(read) => (read, true),
            None if self.holding.is_posted() && view.renews_first(ino, &core.board) => {
                // One call in place of three: for a description, the read, and its close.
                core.done(&Call::Accessed { ino }).ok()?;
                (link.shelf.view()?.read(ino, into, offset, &core.board)?, false)
            }
            None => return None,
        };
        if !link.has_server(&core.board) {
            return None;
        }
        if is_spared {
            link.count_read([Spare::ShelfRead, Spare::ShelfBytes], read);
        }
        Some(read)
    }

    /// Whether bytes that it reads have a place on the shelf, or will have: then it wants no window. `read_to`: it has
    /// so many, or more.
    pub(crate) fn is_shelved(&self, read_to: u64) -> bool {
        let core = self.core();
        core.link().shelf.view().is_some_and(|view| view.has_room_for(self.holding.ino, read_to, &core.board))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "slot 5 is given back twice")]
    fn a_slot_that_is_given_back_twice_is_our_mistake() {
        Shelf::default().give_slot(5);
    }

    #[test]
    fn slots_are_taken_once_each() {
        let shelf = Shelf::default();
        let mut taken: Vec<_> = core::iter::from_fn(|| shelf.take_slot()).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..64).collect::<Vec<_>>());
        shelf.give_slot(9);
        assert_eq!(shelf.take_slot(), Some(9));
    }
}
