//! mmap of files of ours: the kernel maps the file system's per-inode memfd, and we remember where. A small piece that
//! is mapped privately is a copy in the program's own memory, which no table lists.
//!
//! Nothing is allocated under this module's lock: allocators call munmap.

use crate::edge::{Answer, fail, guard, host, reply};
use crate::find::backend::{File, Mapped};
use crate::find::table;
use crate::host::limit;
use crate::process::fence;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{off_t, size_t};
use nvmed_fs::FileType;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Mapped pieces at once: the kernel's own default limit (`vm.max_map_count`).
const RANGES_MAX: usize = 65_530;
const PAGE_BYTES: usize = 4096;
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
struct Backing {
    file: File,
    mapped: Mapped,
    shared: bool,
    write: bool,
}

impl Backing {
    fn new(file: &File, shared: bool, write: bool) -> Answer<Arc<Self>> {
        let _making = making();
        let mapped = file.map(write)?;
        Ok(Arc::new(Self { file: file.clone(), mapped, shared, write }))
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
    start: usize,
    end: usize,
    /// File offset of `start`.
    offset: u64,
    backing: Arc<Backing>,
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
    let mut backings: Vec<Arc<Backing>> = Vec::with_capacity(COUNT.load(Ordering::Acquire) + 2);
    let ranges = ranges();
    // A range that is cut in the middle has become two; room for more would have to be allocated.
    let room = backings.capacity();
    backings.extend(ranges.iter().take(room).map(|range| Arc::clone(&range.backing)));
    drop(ranges);
    backings.iter().map(|backing| backing.file.clone()).collect()
}

/// Whether calls on addresses need to look for ranges of ours.
#[inline(always)]
fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0 && !fence::is_child()
}

/// Remembers a range.
fn add(range: Range) -> Answer<()> {
    let mut ranges = ranges();
    if ranges.capacity() == 0 {
        // Untouched pages of it cost nothing.
        ranges.reserve_exact(RANGES_MAX);
    }
    if ranges.len() == ranges.capacity() {
        return fail(libc::ENOMEM);
    }
    ranges.push(range);
    COUNT.store(ranges.len(), Ordering::Release);
    Ok(())
}

/// Forgets what lies between two addresses, and answers one piece of it; `None` when there is no more.
fn cut(start: usize, end: usize) -> Option<Range> {
    let mut ranges = ranges();
    let index = ranges.iter().position(|range| range.start < end && start < range.end)?;
    let whole = ranges.swap_remove(index);
    let piece = |from: usize, to: usize| Range {
        start: from,
        end: to,
        offset: whole.offset + (from - whole.start) as u64,
        backing: Arc::clone(&whole.backing),
    };
    // One range less, at most two more: past the limit, the tail's pages stay mapped and are only no
    // longer written back by address.
    for (from, to) in [(whole.start, start), (end, whole.end)] {
        if from < to && ranges.len() < ranges.capacity() {
            ranges.push(piece(from, to));
        }
    }
    COUNT.store(ranges.len(), Ordering::Release);
    Some(piece(start.max(whole.start), end.min(whole.end)))
}

fn forget(start: usize, len: usize) {
    // Each piece is dropped, and so written back, without the lock.
    while let Some(piece) = cut(start, start.saturating_add(pages(len))) {
        drop(piece);
    }
}

fn pages(len: usize) -> usize {
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
        let start = host(sys!(SYS_mmap, place, len, protection, flags, copy.as_raw_fd(), 0usize))?;
        if flags & libc::MAP_FIXED != 0 && any() {
            forget(start as usize, len);
        }
        return Ok(start);
    }
    let backing = Backing::new(file, shared, write)?;
    let memory = backing.mapped.0.as_raw_fd();
    let start = host(sys!(SYS_mmap, place, len, protection, flags, memory, at))?;
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        forget(start as usize, len);
    }
    let range = Range { start: start as usize, end: start as usize + pages(len), offset: at_bytes, backing };
    add(range).inspect_err(|_| {
        sys!(SYS_munmap, start, len);
    })?;
    Ok(start)
}

hook! {
    /// mmap(2)
    fn mmap(place: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t)
        -> *mut c_void {
        let answer: isize = if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && table::is_ours(fd) {
            guard(|| map_ours(place, len, protection, flags, fd, at))
        } else {
            let answer = reply(sys!(SYS_mmap, place, len, protection, flags, fd, at));
            if answer != -1 && flags & libc::MAP_FIXED != 0 && any() {
                let _: isize = guard(|| {
                    forget(answer as usize, len);
                    Ok(0)
                });
            }
            answer
        };
        answer as *mut c_void
    }
}

hook! {
    /// munmap(2)
    fn munmap(start: *mut c_void, len: size_t) -> c_int {
        if len > 0 && start as usize & (PAGE_BYTES - 1) == 0 && any() {
            // Before the kernel may give the addresses to another thread's mapping of ours.
            let _: c_int = guard(|| {
                forget(start as usize, len);
                Ok(0)
            });
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
            let found = ranges.iter().filter(|range| range.start < end && from < range.end);
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
        let answer = sys!(SYS_msync, start, len, flags);
        if answer < 0 || !any() {
            return reply(answer);
        }
        guard(|| {
            for_each(start as usize, (start as usize).saturating_add(pages(len)), |file, offset, bytes| {
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
        if protection & libc::PROT_WRITE != 0 && protection & !PROTECTIONS == 0 && any() {
            let prepared: c_int = guard(|| prepare_writes(start as usize, (start as usize).saturating_add(pages(len))));
            if prepared < 0 {
                return prepared;
            }
        }
        reply(sys!(SYS_mprotect, start, len, protection))
    }
}

/// Turns read-only shared ranges into written ones.
fn prepare_writes(start: usize, end: usize) -> Answer {
    loop {
        let found = {
            let ranges = ranges();
            let read_only = |range: &&Range| range.backing.shared && !range.backing.write;
            let range = ranges.iter().filter(read_only).find(|range| range.start < end && start < range.end);
            range.map(|range| (Arc::clone(&range.backing), range.start))
        };
        let Some((old, at)) = found else { return Ok(0) };
        if !old.file.flags().writes() {
            return fail(libc::EACCES);
        }
        let fresh = Backing::new(&old.file, true, true)?;
        let mut ranges = ranges();
        match ranges.iter_mut().find(|range| range.start == at && Arc::ptr_eq(&range.backing, &old)) {
            // The old hold goes with `old`, after the lock.
            Some(range) => range.backing = fresh,
            None => return Ok(0),
        }
        drop(ranges);
    }
}

hook! {
    /// mremap(2)
    fn mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, place: *mut c_void)
        -> *mut c_void {
        let remap = || sys!(SYS_mremap, old, old_len, new_len, flags, place);
        if !any() {
            return reply(remap());
        }
        guard(|| moved(old as usize, old_len, new_len, remap))
    }
}

/// The kernel moves or resizes a mapping by `remap`, and so does what we remember: taken away before, because the
/// addresses may be another thread's at once.
fn moved(old: usize, old_len: usize, new_len: usize, remap: impl FnOnce() -> isize) -> Answer {
    let piece = cut(old, old.saturating_add(pages(old_len)));
    let new = match host(remap()) {
        Ok(new) => new as usize,
        Err(failure) => {
            // It stays where it was.
            piece.map_or(Ok(()), add)?;
            return Err(failure);
        }
    };
    forget(new, new_len);
    if let Some(piece) = piece {
        let end = new + pages(new_len);
        add(Range { start: new, end, offset: piece.offset, backing: Arc::clone(&piece.backing) })?;
    }
    Ok(new as isize)
}
