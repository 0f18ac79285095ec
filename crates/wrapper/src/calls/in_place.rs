//! Files that are mapped where they lie: a mapping of the medium for each piece of a file, which follows the file as it
//! changes (docs/nvm-maps.md).
//!
//! What the kernel has at an address of ours changes while the table of ranges is locked: so nothing is put over memory
//! that is the program's again. Pieces are told by the file system under the file's lock, which is taken before the
//! table's.

use crate::calls::mapping::{self, Backing, Range, Ranges, pages, ranges, taking};
use crate::edge::{Answer, fail, host};
use crate::find::backend::Mapped;
use core::ffi::{c_int, c_void};
use nvmed_fs::{Lies, MapPiece, Mapper};
use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, OnceLock};
use rustix::fd::{AsRawFd, RawFd};
use rustix::fs::{MemfdFlags, SealFlags};

/// Flags of mmap(2) that bring pages, which has to wait until the pieces are there.
const BRINGS: c_int = libc::MAP_POPULATE | libc::MAP_LOCKED;
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

/// What an mmap call asks for.
pub(super) struct Wish {
    pub(super) place: *mut c_void,
    pub(super) len: usize,
    pub(super) protection: c_int,
    pub(super) flags: c_int,
    /// Offset in the file.
    pub(super) at: u64,
}

/// A memory file without a byte: a touch of its mapping is SIGBUS.
fn behind() -> Answer<RawFd> {
    static BEHIND: OnceLock<Option<QuietFd>> = OnceLock::new();
    let made = BEHIND.get_or_init(|| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("nvmed-behind", flags).ok()?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).ok()?;
        Some(QuietFd::new(fd))
    });
    made.as_ref().map_or_else(|| fail(libc::ENOMEM), |fd| Ok(fd.as_raw_fd()))
}

impl Backing {
    /// The medium, if the file is mapped in place.
    fn medium(&self) -> Option<RawFd> {
        match &self.mapped {
            Mapped::InPlace(fd) => Some(fd.as_raw_fd()),
            Mapped::Memory(_) => None,
        }
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.medium().is_some()
    }

    fn kind(&self) -> c_int {
        if self.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE }
    }
}

impl Range {
    fn is_in_place(&self) -> bool {
        !self.gone && self.backing.is_in_place()
    }

    /// Whether something between two addresses is of it, in place.
    fn is_in_place_between(&self, start: usize, end: usize) -> bool {
        self.is_in_place() && self.start < end && start < self.end
    }

    /// Has the kernel map what a piece of the file is, as far as it lies in the range.
    fn show(&self, piece: &MapPiece) -> Answer<()> {
        let Some(medium) = self.backing.medium() else { return Ok(()) };
        let from = piece.offset.max(self.offset);
        let end = (piece.offset + piece.bytes).min(self.offset + (self.end - self.start) as u64);
        if from >= end {
            return Ok(());
        }
        let (start, len) = (self.start + (from - self.offset) as usize, (end - from) as usize);
        let flags = self.backing.kind() | libc::MAP_FIXED;
        let mapped = match piece.lies {
            Lies::At(at) => {
                let at = at + (from - piece.offset);
                sys!(SYS_mmap, start, len, self.protection, flags, medium, at)
            }
            // Memory that nobody else sees: the kernel has one page of zeroes for all of it.
            Lies::Nowhere if !(self.backing.shared && self.backing.write) => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
                sys!(SYS_mmap, start, len, self.protection, flags, -1, 0usize)
            }
            Lies::Nowhere | Lies::Behind => {
                sys!(SYS_mmap, start, len, self.protection, flags, behind()?, 0usize)
            }
        };
        host(mapped).map(drop)
    }
}

/// Shows what a file has at a range of it in all that one call has mapped.
pub(super) fn lay_out(backing: &Arc<Backing>, from: u64, bytes: usize) -> Answer<()> {
    let mut shown = Ok(());
    backing.file.lay_out(backing.write, from..from + bytes as u64, &mut |piece| {
        let ranges = ranges();
        let own = ranges.iter().filter(|range| !range.gone && Arc::ptr_eq(&range.backing, backing));
        for range in own {
            let result = range.show(piece);
            if shown.is_ok() {
                shown = result;
            }
        }
    })?;
    shown
}

/// mmap(2) of a file that is mapped in place.
///
/// # Errors
/// Those of mmap(2); `ENOSPC` where stores would find no room.
pub(super) fn map(backing: Arc<Backing>, wish: &Wish) -> Answer {
    let Wish { place, len, protection, flags, at } = *wish;
    let bytes = pages(len);
    let own_pages = !backing.shared && protection & libc::PROT_WRITE != 0;
    let range = |start: usize| Range {
        start,
        end: start + bytes,
        offset: at,
        backing: Arc::clone(&backing),
        protection,
        own_pages,
        gone: false,
    };
    let fixed = flags & libc::MAP_FIXED != 0;
    if fixed && place.addr() & (mapping::PAGE_BYTES - 1) != 0 {
        return fail(libc::EINVAL);
    }
    // The kernel says whether it takes what was asked. Pieces go straight over what is at a fixed place: others may be
    // looking at it.
    let hint = if fixed { core::ptr::null_mut() } else { place };
    let first = flags & !BRINGS & !libc::MAP_FIXED;
    let made = host(sys!(SYS_mmap, hint, len, protection, first, behind()?, 0usize))? as usize;
    if fixed {
        sys!(SYS_munmap, made, len);
    }
    let start = if fixed { place.addr() } else { made };
    if let Err(failure) = mapping::add(range(start)) {
        if !fixed {
            sys!(SYS_munmap, made, len);
        }
        return Err(failure);
    }
    let laid = lay_out(&backing, at, bytes);
    // What the range has replaced was not to be seen by anybody else until now.
    mapping::sweep();
    if let Err(failure) = laid {
        let _ = taking(start, bytes, || sys!(SYS_munmap, start, bytes));
        return Err(failure);
    }
    if flags & BRINGS != 0 {
        let how = if protection & libc::PROT_WRITE == 0 { MADV_POPULATE_READ } else { MADV_POPULATE_WRITE };
        sys!(SYS_madvise, start, bytes, how);
        if flags & libc::MAP_LOCKED != 0 {
            sys!(SYS_mlock, start, bytes);
        }
    }
    Ok(start as isize)
}

/// An mremap call.
pub(super) struct Move {
    pub(super) old: usize,
    pub(super) old_len: usize,
    pub(super) new_len: usize,
    pub(super) flags: c_int,
    pub(super) place: usize,
}

/// What is mapped in place where a call of mremap(2) begins.
struct Moved {
    backing: Arc<Backing>,
    offset: u64,
    end: usize,
    protection: c_int,
    own_pages: bool,
}

/// mremap(2), where something is mapped in place: the kernel would show what lies behind it on the medium. None where
/// nothing is.
pub(super) fn mremap(asked: &Move) -> Option<Answer> {
    let end = asked.old.saturating_add(pages(asked.old_len).max(1));
    let found = {
        let ranges = ranges();
        let mut touched = ranges.iter().filter(|range| range.is_in_place_between(asked.old, end));
        let range = touched.find(|range| range.start <= asked.old && end <= range.end);
        match range {
            Some(range) => Moved {
                backing: Arc::clone(&range.backing),
                offset: range.offset + (asked.old - range.start) as u64,
                end: range.end,
                protection: range.protection,
                own_pages: range.own_pages,
            },
            None => {
                let is_any = ranges.iter().any(|range| range.is_in_place_between(asked.old, end));
                return is_any.then(|| fail(libc::EFAULT));
            }
        }
    };
    Some(moved(asked, &found))
}

fn moved(asked: &Move, found: &Moved) -> Answer {
    let Move { old, old_len, new_len, flags, place } = *asked;
    let (old_bytes, new_bytes) = (pages(old_len), pages(new_len));
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let page = mapping::PAGE_BYTES - 1;
    let overlaps = fixed && place < old + old_bytes && old < place + new_bytes;
    let is_odd = old & page != 0 || fixed && (place & page != 0 || flags & libc::MREMAP_MAYMOVE == 0);
    if new_len == 0 || is_odd || overlaps || flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) != 0 {
        return fail(libc::EINVAL);
    }
    if !fixed && old_bytes > 0 && new_bytes <= old_bytes {
        if new_bytes < old_bytes {
            let (tail, bytes) = (old + new_bytes, old_bytes - new_bytes);
            taking(tail, bytes, || sys!(SYS_munmap, tail, bytes))?;
        }
        return Ok(old as isize);
    }
    if !fixed && old_bytes > 0 && old + old_bytes == found.end && lengthened(found, new_bytes - old_bytes)? {
        return Ok(old as isize);
    }
    // Pages that are the program's own do not move with the file.
    if found.own_pages || flags & libc::MREMAP_MAYMOVE == 0 {
        return fail(libc::ENOMEM);
    }
    let kind = found.backing.kind() | if fixed { libc::MAP_FIXED } else { 0 };
    let wish = Wish {
        place: core::ptr::without_provenance_mut(if fixed { place } else { 0 }),
        len: new_len,
        protection: found.protection,
        flags: kind,
        at: found.offset,
    };
    let new = map(Arc::clone(&found.backing), &wish)?;
    if old_bytes > 0 {
        taking(old, old_bytes, || sys!(SYS_munmap, old, old_bytes))?;
    }
    Ok(new)
}

/// Makes a range longer where it is, if nothing lies behind it.
fn lengthened(found: &Moved, more: usize) -> Answer<bool> {
    let flags = found.backing.kind() | libc::MAP_FIXED_NOREPLACE;
    let start = found.end;
    let mut ranges = ranges();
    let made = sys!(SYS_mmap, start, more, found.protection, flags, behind()?, 0usize);
    if made != start as isize {
        if made >= 0 {
            // A kernel that does not know the flag.
            sys!(SYS_munmap, made, more);
        }
        return Ok(false);
    }
    let own =
        |range: &&mut Range| !range.gone && range.end == start && Arc::ptr_eq(&range.backing, &found.backing);
    let Some(range) = ranges.iter_mut().find(own) else {
        sys!(SYS_munmap, start, more);
        return Ok(false);
    };
    let from = range.offset + (range.end - range.start) as u64;
    range.end += more;
    drop(ranges);
    if let Err(failure) = lay_out(&found.backing, from, more) {
        let _ = taking(start, more, || sys!(SYS_munmap, start, more));
        return Err(failure);
    }
    Ok(true)
}

/// Whether all between two addresses is mapped in place, shared.
pub(super) fn covers(start: usize, end: usize) -> bool {
    let ranges = ranges();
    let mut at = start;
    while at < end {
        let next = ranges.iter().find(|range| range.is_in_place() && range.start <= at && at < range.end);
        match next {
            Some(range) => at = range.end,
            None => return false,
        }
    }
    true
}

/// Whether a child, which knows of no changes, would have the kernel show more of the medium by mremap(2).
pub(super) fn is_mapped(start: usize, bytes: usize) -> bool {
    let end = start.saturating_add(pages(bytes).max(1));
    ranges().iter().any(|range| range.is_in_place_between(start, end))
}

/// What children have that were forked while files were mapped in place: their mappings hold the files' blocks.
struct Children {
    /// A page that they have mapped, and this process has not.
    page: QuietFd,
    held: Vec<Arc<Backing>>,
}

static CHILDREN: Mutex<Vec<Children>> = Mutex::new(Vec::new());
/// Generations of children that are told apart.
const CHILDREN_MAX: usize = 64;

/// What a thread that forks holds while files are mapped in place.
pub(crate) struct Forking {
    ranges: Option<Ranges>,
    making: Option<MutexGuard<'static, ()>>,
    children: Option<Children>,
    page: usize,
}

/// Before a fork: none where nothing is mapped in place. The child finds the table as it is now, and what is mapped in
/// place stays the files' until it has executed another program or ended.
pub(crate) fn before_fork() -> Option<Forking> {
    if !ranges().iter().any(Range::is_in_place) {
        return None;
    }
    release();
    let making = mapping::making();
    let mut held = mapping::backings();
    held.retain(|backing| backing.is_in_place());
    let mut children = CHILDREN.lock();
    let known = if children.len() < CHILDREN_MAX { None } else { children.pop() };
    drop(children);
    let children = match known {
        Some(mut known) => {
            known.held.append(&mut held);
            Some(known)
        }
        None => page_of_children().map(|page| Children { page, held }),
    };
    let page = children.as_ref().map_or(0, |children| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let page = children.page.as_raw_fd();
        sys!(SYS_mmap, 0usize, mapping::PAGE_BYTES, access, libc::MAP_SHARED, page, 0usize).max(0) as usize
    });
    Some(Forking { ranges: Some(ranges()), making: Some(making), children, page })
}

fn page_of_children() -> Option<QuietFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = QuietFd::new(rustix::fs::memfd_create("nvmed-children", flags).ok()?);
    rustix::fs::ftruncate(&fd, mapping::PAGE_BYTES as u64).ok()?;
    Some(fd)
}

impl Forking {
    /// In the parent.
    pub(crate) fn end(mut self) {
        drop((self.ranges.take(), self.making.take()));
        let Some(children) = self.children.take() else { return };
        if self.page == 0 {
            // Nobody could tell when the child is gone.
            return core::mem::forget(children);
        }
        sys!(SYS_munmap, self.page, mapping::PAGE_BYTES);
        CHILDREN.lock().push(children);
    }

    /// In the child, which makes no call of the file system: files are not unmapped.
    pub(crate) fn end_in_child(mut self) {
        drop((self.ranges.take(), self.making.take()));
        core::mem::forget(self);
    }
}

/// Lets go of what children had mapped that have executed another program since, or ended: the kernel forbids stores to
/// their page only when nobody has it mapped.
pub(super) fn release() {
    loop {
        let gone = {
            let Some(mut children) = CHILDREN.try_lock() else { return };
            let is_gone = |one: &Children| rustix::fs::fcntl_add_seals(&one.page, SealFlags::WRITE).is_ok();
            children.iter().position(is_gone).map(|index| children.swap_remove(index))
        };
        // Its files may be unmapped, without the lock.
        if gone.is_none() {
            return;
        }
    }
}

/// Has the mappings of this process show files as they change.
#[derive(Debug)]
pub(crate) struct Shows;

impl Mapper for Shows {
    fn show(&self, ino: u64, piece: &MapPiece) {
        let ranges = ranges();
        for range in ranges.iter().filter(|range| range.is_in_place() && range.backing.ino == ino) {
            // The program's own pages stay; POSIX leaves open whether such a mapping follows the file.
            if range.own_pages && piece.lies != Lies::Behind {
                continue;
            }
            // What the kernel has no room for stays as it was, whose blocks are the file's until it is unmapped.
            let _ = range.show(piece);
        }
    }

    fn stored_to(&self, ino: u64) -> Option<core::ops::Range<u64>> {
        let ranges = ranges();
        let stored = ranges.iter().filter(|range| {
            range.is_in_place() && range.backing.ino == ino && range.backing.shared && range.backing.write
        });
        let spans = stored.map(|range| range.offset..range.offset + (range.end - range.start) as u64);
        spans.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
    }
}
