//! mmap of files of ours: the kernel maps the file system's per-inode memfd, or the medium where the file lies
//! (`in_place`), and we remember where. A small piece that is mapped privately is a copy in the program's own memory,
//! which no table lists.
//!
//! Nothing is allocated under this module's lock: allocators call munmap. What the kernel has at an address of ours
//! changes under it alone.

use crate::calls::in_place::{self, Move, Wish};
use crate::edge::{Answer, fail, guard, host, reply};
use crate::find::backend::{File, Mapped};
use crate::find::table;
use crate::host::limit;
use crate::process::fence;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{off_t, size_t};
use nvmed_fs::{FileType, FsError};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Mapped pieces at once: the kernel's own default limit (`vm.max_map_count`).
const RANGES_MAX: usize = 65_530;
/// Ranges that one call may split, at its two ends.
const SPLIT: usize = 2;
pub(super) const PAGE_BYTES: usize = 4096;
/// What a process can do with memory; `PROT_SEM` means nothing on this machine, and is taken.
const PROTECTIONS: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | PROT_SEM;
const PROT_SEM: c_int = 8;
/// Bytes of a process's addresses.
const ADDRESSES: usize = 1 << 47;
/// A private mapping of no more bytes is a copy: one read, which a shared mount answers sooner than a mapping is made;
/// a read of 1 MiB takes two and a half times as long as the mapping. POSIX leaves open whether what is written to the
/// file later is seen in it.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// One mmap call's hold on a file.
pub(super) struct Backing {
    pub(super) file: File,
    pub(super) ino: u64,
    pub(super) mapped: Mapped,
    pub(super) shared: bool,
    pub(super) write: bool,
}

impl Backing {
    /// Holds a range of a file, in bytes, which is to be `executable` or not.
    fn new(
        file: &File,
        shared: bool,
        write: bool,
        range: core::ops::Range<u64>,
        executable: bool,
    ) -> Answer<Arc<Self>> {
        let _making = making();
        // Where the medium lies nothing may be executed from, perhaps.
        let memory = if executable { file.map(write) } else { Err(FsError::Busy) };
        let mapped = match memory {
            Err(FsError::Busy) => file.map_range(write, range)?,
            memory => memory?,
        };
        Ok(Arc::new(Self { file: file.clone(), ino: file.node().ino(), mapped, shared, write }))
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // What cannot be written back stays dirty in the cache; the next fsync reports it.
        let _ = self.file.unmap(self.write);
    }
}

/// Pages of the program's that are a file's.
pub(crate) struct Range {
    pub(super) start: usize,
    pub(super) end: usize,
    /// File offset of `start`.
    pub(super) offset: u64,
    pub(super) backing: Arc<Backing>,
    /// As the program has asked for it last; of what is mapped in place.
    pub(super) protection: c_int,
    /// The program may have stored to pages of its own: privately mapped in place, and writable at some time.
    pub(super) own_pages: bool,
    /// The kernel has it no more, and [`sweep`] drops it.
    pub(super) gone: bool,
}

impl Range {
    /// The part between two addresses in it.
    fn part(&self, start: usize, end: usize) -> Self {
        let offset = self.offset + (start - self.start) as u64;
        Self { start, end, offset, backing: Arc::clone(&self.backing), ..*self }
    }
}

static RANGES: Mutex<Vec<Range>> = Mutex::new(Vec::new());
/// Held while a file becomes mapped, and over a fork.
static MAKING: Mutex<()> = Mutex::new(());
/// How many there are: none, and no call here looks further.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What is mapped, while nobody changes it.
pub(crate) type Ranges = MutexGuard<'static, Vec<Range>>;

/// Nothing may be allocated or freed while it is held.
pub(crate) fn ranges() -> Ranges {
    RANGES.lock()
}

/// Keeps files from becoming mapped.
pub(crate) fn making() -> MutexGuard<'static, ()> {
    MAKING.lock()
}

/// The files of all mappings; none is added while the caller holds [`making`].
pub(crate) fn files() -> Vec<File> {
    backings().iter().map(|backing| backing.file.clone()).collect()
}

/// As [`files`]: the holds on them.
pub(super) fn backings() -> Vec<Arc<Backing>> {
    let mut backings: Vec<Arc<Backing>> = Vec::with_capacity(COUNT.load(Ordering::Acquire) + 2);
    let ranges = ranges();
    // A range that is cut in the middle has become two; room for more would have to be allocated.
    let room = backings.capacity();
    backings.extend(ranges.iter().take(room).map(|range| Arc::clone(&range.backing)));
    drop(ranges);
    backings
}

/// Whether calls on addresses need to look for ranges of ours.
#[inline(always)]
fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0 && !fence::is_child()
}

/// Remembers a range. Others where it is are gone then, which [`sweep`] drops once the kernel has mapped it.
pub(super) fn add(range: Range) -> Answer<()> {
    // What is refused is dropped without the lock, since that makes calls.
    let refused = push(&mut ranges(), range);
    if refused.is_some() { fail(libc::ENOMEM) } else { Ok(()) }
}

/// Adds a range, or answers it where there is no room for it and for splitting others.
fn push(ranges: &mut Vec<Range>, range: Range) -> Option<Range> {
    if ranges.capacity() == 0 {
        // Untouched pages of it cost nothing.
        ranges.reserve_exact(RANGES_MAX);
    }
    if ranges.len() + SPLIT >= ranges.capacity() {
        return Some(range);
    }
    retire(ranges, range.start, range.end);
    ranges.push(range);
    COUNT.store(ranges.len(), Ordering::Release);
    None
}

/// Makes a call that takes away what the kernel has from `start` on, or from where it answers, and forgets what of ours
/// that was.
///
/// # Errors
/// The call's; nothing is forgotten then.
pub(super) fn taking(start: usize, len: usize, call: impl FnOnce() -> isize) -> Answer {
    let answer = {
        let mut ranges = ranges();
        let answer = call();
        if answer >= 0 {
            retire(&mut ranges, start, start.saturating_add(pages(len)));
        }
        answer
    };
    sweep();
    host(answer)
}

/// Splits ranges at two addresses, and has `change` change those between.
fn between(ranges: &mut Vec<Range>, start: usize, end: usize, mut change: impl FnMut(&mut Range)) {
    for index in 0..ranges.len() {
        let range = &mut ranges[index];
        if range.gone || range.end <= start || end <= range.start {
            continue;
        }
        let (from, to) = (range.start.max(start), range.end.min(end));
        let outside = [(range.start, from), (to, range.end)]
            .map(|(low, high)| (low < high).then(|| range.part(low, high)));
        range.offset += (from - range.start) as u64;
        (range.start, range.end) = (from, to);
        change(range);
        for part in outside.into_iter().flatten() {
            if ranges.len() < ranges.capacity() {
                ranges.push(part);
            } else {
                // Its pages stay mapped, and are no longer written back by address; it holds its file for good.
                core::mem::forget(part);
            }
        }
    }
    COUNT.store(ranges.len(), Ordering::Release);
}

/// The kernel has taken away what lay between two addresses.
fn retire(ranges: &mut Vec<Range>, start: usize, end: usize) {
    between(ranges, start, end, |range| range.gone = true);
}

/// Drops what is gone: each range without the lock, since its file may be written back.
pub(super) fn sweep() {
    loop {
        let gone = {
            let mut ranges = ranges();
            let gone = ranges.iter().position(|range| range.gone).map(|index| ranges.swap_remove(index));
            COUNT.store(ranges.len(), Ordering::Release);
            gone
        };
        if gone.is_none() {
            return;
        }
        in_place::release();
    }
}

/// Forgets what lies between two addresses, and answers one piece of it; `None` when there is no more.
fn cut(start: usize, end: usize) -> Option<Range> {
    let mut ranges = ranges();
    let index = ranges.iter().position(|range| !range.gone && range.start < end && start < range.end)?;
    let whole = ranges.swap_remove(index);
    // One range less, at most two more: past the limit, the tail's pages stay mapped and are only no
    // longer written back by address.
    for (from, to) in [(whole.start, start), (end, whole.end)] {
        if from < to && ranges.len() < ranges.capacity() {
            ranges.push(whole.part(from, to));
        }
    }
    COUNT.store(ranges.len(), Ordering::Release);
    Some(whole.part(start.max(whole.start), end.min(whole.end)))
}

pub(super) fn pages(len: usize) -> usize {
    len.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}

/// A memory file with all of a file from `at` on, behind which is SIGBUS. None is made of a file that goes on behind
/// `bytes` bytes: mremap(2) may make its mapping larger.
fn copy(file: &File, at: u64, bytes: usize) -> Answer<OwnedFd> {
    let mut piece = Vec::new();
    if piece.try_reserve_exact(bytes + 1).is_err() {
        return fail(libc::ENOMEM);
    }
    piece.resize(bytes + 1, 0);
    let read = file.pread(&mut piece, at)?;
    if read > bytes {
        return fail(libc::EFBIG);
    }
    let fd = host(sys!(SYS_memfd_create, c"nvmed-copy".as_ptr(), libc::MFD_CLOEXEC))?;
    // SAFETY: made just above, and nobody else knows the number.
    let copy = unsafe { OwnedFd::from_raw_fd(fd as c_int) };
    let written = host(sys!(SYS_write, copy.as_raw_fd(), piece.as_ptr(), read))?;
    if written as usize == read { Ok(copy) } else { fail(libc::ENOMEM) }
}

/// # Errors
/// `EINVAL`, `ENOMEM`: what no process has room for.
fn check_length(len: usize) -> Answer<()> {
    match len {
        0 => fail(libc::EINVAL),
        1..ADDRESSES => Ok(()),
        _ => fail(libc::ENOMEM),
    }
}

fn map_ours(
    place: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    at: off_t,
) -> Answer {
    // In the kernel's order: what no file is mapped by, the descriptor, what no mapping is, what this file is not
    // mapped by.
    if at as usize & (PAGE_BYTES - 1) != 0 {
        return fail(libc::EINVAL);
    }
    let pinned = table::pin(fd)?;
    let file = pinned.file()?;
    if flags & libc::MAP_HUGETLB != 0 {
        return fail(libc::EINVAL);
    }
    check_length(len)?;
    let is_directory = pinned.node.kind() == FileType::Directory;
    let at_bytes = match u64::try_from(at) {
        Err(_) if !is_directory => return fail(libc::EOVERFLOW),
        bytes => bytes.unwrap_or(0),
    };
    let shared = match flags & libc::MAP_TYPE {
        // Of a file the kernel says it below, of its memory.
        libc::MAP_SHARED_VALIDATE if is_directory && flags & libc::MAP_SYNC != 0 => {
            return fail(libc::EOPNOTSUPP);
        }
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => true,
        libc::MAP_PRIVATE => false,
        _ => return fail(libc::EINVAL),
    };
    let write = shared && protection & libc::PROT_WRITE != 0;
    if !file.flags().reads() || write && !file.flags().writes() {
        return fail(libc::EACCES);
    }
    if is_directory {
        return fail(libc::ENODEV);
    }
    // What cannot be copied is mapped, or refused, as any other.
    if !shared
        && len <= COPIED_BYTES_MAX
        && limit::limit().is_none()
        && let Ok(copy) = copy(file, at_bytes, pages(len))
    {
        return placed(place, len, flags, || {
            sys!(SYS_mmap, place, len, protection, flags, copy.as_raw_fd(), 0usize)
        });
    }
    let bytes = at_bytes..at_bytes.saturating_add(pages(len) as u64);
    let backing = Backing::new(file, shared, write, bytes, protection & libc::PROT_EXEC != 0)?;
    let memory = match &backing.mapped {
        Mapped::Memory(memory) => memory.as_raw_fd(),
        Mapped::InPlace(_) => {
            return in_place::map(backing, &Wish { place, len, protection, flags, at: at_bytes });
        }
    };
    let start = placed(place, len, flags, || sys!(SYS_mmap, place, len, protection, flags, memory, at))?;
    let end = start as usize + pages(len);
    let own = Range {
        start: start as usize,
        end,
        offset: at_bytes,
        backing,
        protection,
        own_pages: false,
        gone: false,
    };
    add(own).inspect_err(|_| {
        sys!(SYS_munmap, start, len);
    })?;
    Ok(start)
}

/// The kernel maps by `call` at a place of its own, or at a fixed one, where something of ours may go.
fn placed(place: *mut c_void, len: usize, flags: c_int, call: impl FnOnce() -> isize) -> Answer {
    if flags & libc::MAP_FIXED != 0 && any() { taking(place.addr(), len, call) } else { host(call()) }
}

hook! {
    /// mmap(2)
    fn mmap(place: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t)
        -> *mut c_void {
        let answer: isize = if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && table::is_ours(fd) {
            guard(|| map_ours(place, len, protection, flags, fd, at))
        } else if flags & libc::MAP_FIXED != 0 && any() {
            guard(|| taking(place.addr(), len, || sys!(SYS_mmap, place, len, protection, flags, fd, at)))
        } else {
            reply(sys!(SYS_mmap, place, len, protection, flags, fd, at))
        };
        answer as *mut c_void
    }
}

hook! {
    /// munmap(2)
    fn munmap(start: *mut c_void, len: size_t) -> c_int {
        if any() {
            return guard(|| taking(start as usize, len, || sys!(SYS_munmap, start, len)));
        }
        reply(sys!(SYS_munmap, start, len))
    }
}

/// Calls `each` with file and range of what of ours lies between two addresses, without the lock.
fn for_each(start: usize, end: usize, mut each: impl FnMut(&File, u64, u64) -> Answer<()>) -> Answer<bool> {
    let mut from = start;
    loop {
        let next = {
            let ranges = ranges();
            let found = ranges.iter().filter(|range| !range.gone && range.start < end && from < range.end);
            found.min_by_key(|range| range.start).map(|range| {
                let low = from.max(range.start);
                let bytes = end.min(range.end) - low;
                let offset = range.offset + (low - range.start) as u64;
                (Arc::clone(&range.backing), offset, bytes as u64, range.end)
            })
        };
        let Some((backing, offset, bytes, reached)) = next else { return Ok(from > start) };
        if backing.shared {
            each(&backing.file, offset, bytes)?;
        }
        from = reached;
        if from >= end {
            return Ok(true);
        }
    }
}

hook! {
    /// msync(2)
    fn msync(start: *mut c_void, len: size_t, flags: c_int) -> c_int {
        let is_sync = flags & (libc::MS_SYNC | libc::MS_ASYNC) == libc::MS_SYNC;
        let end = (start as usize).saturating_add(pages(len));
        // Of the medium the kernel looks whether it is mapped; what a sync of it is the file system says.
        let is_ours = is_sync && any() && in_place::covers(start as usize, end);
        let asked = if is_ours { flags & !libc::MS_SYNC | libc::MS_ASYNC } else { flags };
        let answer = sys!(SYS_msync, start, len, asked);
        if answer < 0 || !any() {
            return reply(answer);
        }
        guard(|| {
            for_each(start as usize, end, |file, offset, bytes| {
                if flags & libc::MS_SYNC != 0 {
                    file.msync(offset, bytes)?;
                }
                Ok(())
            })?;
            Ok(0)
        })
    }
}

hook! {
    /// mprotect(2): pages that become writable count as written from then on
    fn mprotect(start: *mut c_void, len: size_t, protection: c_int) -> c_int {
        // What means nothing is the kernel's to refuse, before anything is made writable.
        if protection & !PROTECTIONS == 0 && any() {
            return guard(|| protect(start as usize, len, protection));
        }
        reply(sys!(SYS_mprotect, start, len, protection))
    }
}

fn protect(start: usize, len: usize, protection: c_int) -> Answer {
    let end = start.saturating_add(pages(len));
    let write = protection & libc::PROT_WRITE != 0;
    if write {
        prepare_writes(start, end)?;
    }
    let mut ranges = ranges();
    let answer = sys!(SYS_mprotect, start, len, protection);
    if answer >= 0 && ranges.iter().any(|range| range.backing.is_in_place()) {
        between(&mut ranges, start, end, |range| {
            range.protection = protection;
            range.own_pages |= write && !range.backing.shared && range.backing.is_in_place();
        });
    }
    drop(ranges);
    host(answer)
}

/// Turns read-only shared ranges into written ones.
fn prepare_writes(start: usize, end: usize) -> Answer {
    loop {
        let found = {
            let ranges = ranges();
            let read_only = |range: &&Range| !range.gone && range.backing.shared && !range.backing.write;
            let range = ranges.iter().filter(read_only).find(|range| range.start < end && start < range.end);
            range
                .map(|range| (Arc::clone(&range.backing), range.start, range.offset, range.end - range.start))
        };
        let Some((old, at, offset, len)) = found else { return Ok(0) };
        if !old.file.flags().writes() {
            return fail(libc::EACCES);
        }
        let fresh = Backing::new(&old.file, true, true, offset..offset + len as u64, false)?;
        let is_own =
            |range: &&mut Range| !range.gone && range.start == at && Arc::ptr_eq(&range.backing, &old);
        match ranges().iter_mut().find(is_own) {
            // The old hold goes with `old`, after the lock.
            Some(range) => range.backing = Arc::clone(&fresh),
            None => return Ok(0),
        }
        if fresh.is_in_place() {
            in_place::lay_out(&fresh, offset, len)?;
        }
    }
}

hook! {
    /// mremap(2)
    fn mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, place: *mut c_void)
        -> *mut c_void {
        let remap = || sys!(SYS_mremap, old, old_len, new_len, flags, place);
        if COUNT.load(Ordering::Acquire) == 0 {
            return reply(remap());
        }
        guard(|| {
            if fence::is_child() {
                // It has its parent's mappings, and nobody to ask what lies behind them.
                let grows = old_len == 0 || new_len > old_len;
                let is_wrong = grows && in_place::is_mapped(old.addr(), old_len);
                return if is_wrong { fail(libc::ENOMEM) } else { host(remap()) };
            }
            let asked = Move { old: old.addr(), old_len, new_len, flags, place: place.addr() };
            match in_place::mremap(&asked) {
                Some(answer) => answer,
                None => moved(old.addr(), old_len, new_len, remap),
            }
        })
    }
}

/// The kernel moves or resizes a mapping by `remap`, and so does what we remember: taken away before, because the
/// addresses may be another thread's at once.
fn moved(old: usize, old_len: usize, new_len: usize, remap: impl FnOnce() -> isize) -> Answer {
    let piece = cut(old, old.saturating_add(pages(old_len)));
    let new = match remapped(new_len, remap) {
        Ok(new) => new as usize,
        Err(failure) => {
            // It stays where it was.
            piece.map_or(Ok(()), add)?;
            return Err(failure);
        }
    };
    if let Some(piece) = piece {
        let end = new + pages(new_len);
        add(Range { start: new, end, backing: Arc::clone(&piece.backing), ..piece })?;
    }
    Ok(new as isize)
}

/// As [`taking`], from where the call answers on.
fn remapped(len: usize, call: impl FnOnce() -> isize) -> Answer {
    let answer = {
        let mut ranges = ranges();
        let answer = call();
        if answer >= 0 {
            let start = answer as usize;
            retire(&mut ranges, start, start.saturating_add(pages(len)));
        }
        answer
    };
    sweep();
    host(answer)
}
