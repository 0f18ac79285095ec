//! The board: pages of the server's that every client reads. Layout: docs/spec/shared.md, "Lanes".

use crate::memory;
use crate::message::Mark;
use crate::parking::{self, wake_all};
use crate::shelf::HugePage;
use core::time::Duration;
use nvmed_fs::versions::{self, Counts, Version};
use nvmed_sys::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nvmed_sys::{HUGE_BYTES, Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;

const DEAD: usize = 0;
const LOCKS_RELEASED: usize = 4;
const CROWDED: usize = 8;
/// Whether clients may be given the medium to read.
const MEDIUM: usize = 12;
/// A count of changes of names and attributes, wherever: all of them are one thing's.
const NAMES: usize = 64;
const NAMES_BITS: u32 = 2;
const EVERYWHERE: u64 = 0;
/// Counts of changes of files' bytes. Files share them: a change of one may look like one of another. They have the
/// lower half, at the same places as their inodes' versions.
const FILES: usize = 4096;
const FILES_BITS: u32 = 20;
/// Versions of inodes, of directories on a path, and of names, which share them too.
const VERSIONS: usize = FILES + (8 << FILES_BITS);
const VERSIONS_BITS: u32 = 20;
const BOARD_BYTES: usize = (VERSIONS + (8 << VERSIONS_BITS)).next_multiple_of(HUGE_BYTES);

/// How long a look at what else runs is good for.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// The side that writes: the server, and the holder that says when the server is gone.
#[derive(Debug)]
pub struct Board {
    memory: Arc<Mapping>,
    readers: QuietFd,
    names: Counts,
    files: Counts,
    versions: Arc<Counts>,
    /// Whether a client was refused a lock since the last release that woke waiters.
    refused: AtomicBool,
    /// `/proc/loadavg`, where the host shows it, and when it was last read.
    load: Option<QuietFd>,
    looked_ns: AtomicU64,
    processors: u32,
    /// Its parts that were to become huge pages.
    gathered: AtomicU64,
}

impl Board {
    /// A new board.
    ///
    /// # Errors
    /// The host has no memory or descriptor left, or no `/proc`.
    pub fn new() -> Result<Self, Errno> {
        Self::of(Mapping::shareable(BOARD_BYTES, Pages::Huge)?)
    }

    /// A board that another process made; `fd` is its [`Board::writers`].
    ///
    /// # Errors
    /// As [`Board::new`]; `EINVAL` for what is no board.
    pub fn open(fd: OwnedFd) -> Result<Self, Errno> {
        memory::check_bytes(fd.as_fd(), BOARD_BYTES)?;
        Self::of(Mapping::backed(fd, 0, BOARD_BYTES, Pages::Huge)?)
    }

    fn of(memory: Mapping) -> Result<Self, Errno> {
        let readers = memory::read_only(&memory)?;
        let mut keys = [[0; 8]; 2];
        crate::address::random(keys.as_flattened_mut())?;
        // Spreads files and names over counts, so that no client knows whose a count is that it was not told of.
        let key = keys.map(u64::from_ne_bytes);
        let memory = Arc::new(memory);
        let counts = |start, bits| Counts::new(Arc::clone(&memory), start, bits, key);
        let load = rustix::fs::open("/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        Ok(Self {
            names: counts(NAMES, NAMES_BITS),
            files: counts(FILES, FILES_BITS),
            versions: Arc::new(counts(VERSIONS, VERSIONS_BITS)),
            memory,
            readers,
            refused: AtomicBool::new(false),
            load: load.map(QuietFd::new),
            looked_ns: AtomicU64::new(0),
            processors: memory::processors(),
            gathered: AtomicU64::new(0),
        })
    }

    /// The next part of it that becomes a huge page, if there is one left.
    pub(crate) fn next_huge_page(&self) -> Option<HugePage> {
        let begins =
            usize::try_from(self.gathered.fetch_add(1, Ordering::Relaxed)).ok()?.checked_mul(HUGE_BYTES)?;
        (begins < BOARD_BYTES).then(|| HugePage { memory: Arc::clone(&self.memory), begins })
    }

    /// The descriptor for another process that writes to the board.
    #[must_use]
    pub fn writers(&self) -> Option<BorrowedFd<'_>> {
        self.memory.backing().map(|(fd, _)| fd)
    }

    /// The descriptor for clients, which can only read the board.
    #[must_use]
    pub fn readers(&self) -> BorrowedFd<'_> {
        self.readers.as_fd()
    }

    /// The server is gone: every client's call ends, at once or within 20 ms.
    pub fn set_dead(&self) {
        self.memory.u32(DEAD).store(1, Ordering::SeqCst);
        wake_all(self.memory.u32(DEAD));
        self.memory.u32(LOCKS_RELEASED).fetch_add(1, Ordering::SeqCst);
        wake_all(self.memory.u32(LOCKS_RELEASED));
    }

    /// Clients of the server's own user may read the medium themselves ([`crate::MediumView`]).
    pub fn offer_medium(&self) {
        self.memory.u32(MEDIUM).store(1, Ordering::Relaxed);
    }

    /// The bytes of the file with this number change from now on, until the answer is dropped: meanwhile it has no
    /// mark, and then another.
    pub fn change(&self, file: u64) -> versions::Change<'_> {
        self.files.change(file)
    }

    /// The count of the file with this number now, unless its bytes are being changed.
    #[must_use]
    pub fn bytes_version(&self, file: u64) -> Option<Version> {
        self.files.settled(file)
    }

    /// Where a file system counts the changes of its inodes.
    #[must_use]
    pub fn versions(&self) -> &Arc<Counts> {
        &self.versions
    }

    /// As [`BoardView::has_version`].
    #[must_use]
    pub fn has_version(&self, since: Version) -> bool {
        versions::is_unchanged(&self.memory, VERSIONS, VERSIONS_BITS, since)
    }

    /// As [`Board::change`], of names and attributes: no file has a mark meanwhile.
    pub fn change_names(&self) -> versions::Change<'_> {
        self.names.change(EVERYWHERE)
    }

    /// The mark of a file whose own count is `file`, unless names or attributes are being changed.
    #[must_use]
    pub fn mark(&self, file: Version) -> Option<Mark> {
        self.names.settled(EVERYWHERE).map(|names| Mark { file, names })
    }

    /// A lock was refused. Said after the try and before its answer.
    pub fn lock_refused(&self) {
        self.refused.store(true, Ordering::SeqCst);
    }

    /// Says that a lock was released: clients that were refused one try again.
    pub fn lock_released(&self) {
        self.memory.u32(LOCKS_RELEASED).fetch_add(1, Ordering::SeqCst);
        // Whoever was refused before this word changed is woken; whoever is refused after it has read the new one.
        if self.refused.swap(false, Ordering::SeqCst) {
            wake_all(self.memory.u32(LOCKS_RELEASED));
        }
    }

    /// Whether more threads want to run than there are processors, so that one that only looks keeps another from
    /// working. Looked up once a millisecond at most, and shown to clients.
    #[inline]
    pub(crate) fn is_crowded(&self, now_ns: u64) -> bool {
        let before = self.looked_ns.load(Ordering::Relaxed);
        let old = now_ns.saturating_sub(before) >= LOOK_AGAIN_NS;
        if old
            && self.looked_ns.compare_exchange(before, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.look();
        }
        self.memory.u32(CROWDED).load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn look(&self) {
        let mut text = [0; 64];
        let read = self.load.as_ref().map_or(0, |load| rustix::io::pread(load, &mut text, 0).unwrap_or(0));
        // What cannot be read says nothing: a host without it is taken to have room.
        let crowded = running(&text[..read]).is_some_and(|running| running > self.processors);
        self.memory.u32(CROWDED).store(u32::from(crowded), Ordering::Relaxed);
    }
}

/// Threads that run or want to, of `/proc/loadavg` (proc_loadavg(5)).
fn running(text: &[u8]) -> Option<u32> {
    let field = text.split(|&byte| byte == b' ').nth(3)?;
    let count = field.split(|&byte| byte == b'/').next()?;
    std::str::from_utf8(count).ok()?.parse().ok()
}

/// The side that reads: a client.
#[derive(Debug)]
pub struct BoardView {
    memory: Mapping,
}

impl BoardView {
    /// The board behind a descriptor that came from the server.
    ///
    /// # Errors
    /// `EINVAL` for what is no board; what `mmap` answers.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        memory::check_bytes(fd, BOARD_BYTES)?;
        Ok(Self { memory: Mapping::read_only(fd, 0, BOARD_BYTES, Pages::Huge)? })
    }

    /// Whether the server is gone.
    #[inline]
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.memory.u32(DEAD).load(Ordering::Relaxed) != 0
    }

    /// Whether the server may let this process read the medium itself, so that a window costs no copy of a file.
    #[inline]
    #[must_use]
    pub fn offers_medium(&self) -> bool {
        self.memory.u32(MEDIUM).load(Ordering::Relaxed) != 0
    }

    pub(crate) fn dead(&self) -> &AtomicU32 {
        self.memory.u32(DEAD)
    }

    /// Whether looking would keep others from working, the server among them.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.memory.u32(CROWDED).load(Ordering::Relaxed) != 0
    }

    /// Whether no change of the file that has this mark, or of names and attributes, has begun since.
    #[inline]
    #[must_use]
    pub fn is_unchanged(&self, mark: Mark) -> bool {
        self.has_bytes(mark.file) && versions::is_unchanged(&self.memory, NAMES, NAMES_BITS, mark.names)
    }

    /// Whether the bytes of the file that had this count ([`Board::bytes_version`]) are the same still.
    #[inline]
    #[must_use]
    pub(crate) fn has_bytes(&self, since: Version) -> bool {
        versions::is_unchanged(&self.memory, FILES, FILES_BITS, since)
    }

    /// Whether the inode, directory on a path, or name that had this version is the same still.
    #[inline]
    #[must_use]
    pub fn has_version(&self, since: Version) -> bool {
        versions::is_unchanged(&self.memory, VERSIONS, VERSIONS_BITS, since)
    }

    /// Whether the inode that had this version has one change under way since, and no other was made.
    #[must_use]
    pub fn has_version_but_for_one(&self, since: Version) -> bool {
        versions::is_unchanged_but_for_one(&self.memory, VERSIONS, VERSIONS_BITS, since)
    }

    /// Changes whenever a lock is released: read it before the try.
    #[must_use]
    pub fn locks_released(&self) -> u32 {
        self.memory.u32(LOCKS_RELEASED).load(Ordering::SeqCst)
    }

    /// Waits until [`BoardView::locks_released`] is no longer `seen`, a signal comes, or `timeout` is over.
    ///
    /// # Errors
    /// `EINTR` for a signal.
    pub fn wait_for_release(&self, seen: u32, timeout: Duration) -> Result<(), Errno> {
        match parking::sleep(self.memory.u32(LOCKS_RELEASED), seen, timeout) {
            Err(Errno::INTR) => Err(Errno::INTR),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(board: &Board) -> BoardView {
        BoardView::open(board.readers()).unwrap()
    }

    #[test]
    fn a_client_can_only_read_the_board() {
        let board = Board::new().unwrap();
        assert_eq!(Mapping::shared(board.readers(), 0, BOARD_BYTES, Pages::Base).err(), Some(Errno::ACCESS));
        assert!(rustix::io::pwrite(board.readers(), b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(board.readers(), 0).is_err());
    }

    #[test]
    fn a_mark_is_the_files_until_it_changes() {
        let board = Board::new().unwrap();
        let client = view(&board);
        let mark = |file| board.change(file).end().and_then(|count| board.mark(count)).unwrap();
        let (one, other) = (mark(7), mark(8));
        assert!(client.is_unchanged(one) && client.is_unchanged(other));
        let change = board.change(7);
        assert!(!client.is_unchanged(one), "one is under way");
        assert_eq!(board.change(7).end(), None, "what this one's bytes are is not known yet");
        let later = board.mark(change.end().unwrap()).unwrap();
        assert!(!client.is_unchanged(one) && client.is_unchanged(later) && client.is_unchanged(other));
        // Files may share a count, and none is outside the board.
        (0..1 << 20).for_each(|file| drop(board.change(file)));
        assert!(!client.is_unchanged(later));
        assert!(client.is_unchanged(mark(u64::MAX)));
    }

    #[test]
    fn no_file_has_a_mark_while_names_change() {
        let board = Board::new().unwrap();
        let client = view(&board);
        let count = board.change(7).end().unwrap();
        let before = board.mark(count).unwrap();
        let change = board.change_names();
        assert!(!client.is_unchanged(before));
        assert_eq!(board.mark(count), None);
        drop(change);
        assert!(!client.is_unchanged(before));
        assert!(client.is_unchanged(board.mark(count).unwrap()));
    }

    #[test]
    fn the_holder_tells_every_client_that_the_server_is_gone() {
        let server = Board::new().unwrap();
        let holder = Board::open(server.writers().unwrap().try_clone_to_owned().unwrap()).unwrap();
        let client = view(&server);
        assert!(!client.is_dead());
        let waiter = std::thread::spawn(move || {
            while !client.is_dead() {
                let _ = client.wait_for_release(client.locks_released(), Duration::from_secs(60));
            }
        });
        holder.set_dead();
        waiter.join().unwrap();
    }

    #[test]
    fn a_refused_lock_is_tried_again_after_the_release() {
        let board = Board::new().unwrap();
        let client = view(&board);
        let taken = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    let seen = client.locks_released();
                    if !taken.load(Ordering::SeqCst) {
                        break;
                    }
                    board.lock_refused();
                    client.wait_for_release(seen, Duration::from_secs(60)).unwrap();
                }
            });
            taken.store(false, Ordering::SeqCst);
            board.lock_released();
        });
    }
}
