//! A range of memory mapped from the kernel, shared with whoever else has it.

use crate::QuietFd;
use crate::guard::Guard;
use crate::sync::{Mutex, OnceLock};
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Which pages should stand behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The base page size, 4 KiB.
    Base,
    /// Transparent huge pages where the kernel has them (`MADV_HUGEPAGE`, [`Mapping::gather`]); base pages otherwise.
    Huge,
}

/// Memory that others may write while we read it.
///
/// Bytes move in and out by copies; words by atomics. No reference to the bytes ever exists, so a
/// device or a second process that writes them at the same moment makes a copy stale, not unsound.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Anonymous memory of this process alone.
    private: bool,
    /// Which pages should stand behind it.
    pages: Pages,
    /// How often in a row [`Mapping::gather`] found the kernel without a huge page, or slow.
    misses: AtomicU32,
    /// What another process maps to reach the same bytes.
    backing: OnceLock<Backing>,
    /// A forked child does not inherit the pages.
    fork_forbidden: AtomicBool,
    /// Whoever has the file may cut it short.
    guard: Option<Guard>,
    /// What stands for its bytes in a model.
    #[cfg(feature = "model")]
    pub(crate) words: Option<crate::model::Words>,
}

/// The file behind a mapping.
#[derive(Debug)]
struct Backing {
    fd: QuietFd,
    offset: u64,
}

// SAFETY: `base` is an address of a mapping that lives until `Drop`; every access through it is a
// raw copy or an atomic, which tolerate other threads.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; no method hands out a reference to non-atomic memory.
unsafe impl Sync for Mapping {}

/// A huge page of x86-64, and of most arm64, and the alignment given to huge mappings.
pub const HUGE_BYTES: usize = 2 << 20;
/// madvise(2), since Linux 6.1.
const MADV_COLLAPSE: i32 = 25;
/// Of a processor's time, for one huge page: a kernel that takes longer moves much memory for it.
const GATHERED_IN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Huge pages in a row that were not there, or slow to come, after which a mapping is given no more.
const MISSES_MAX: u32 = 4;

/// A mistake of the caller's. Out of line with its words, which every access would else make ready.
#[cold]
#[inline(never)]
fn outside(offset: usize, len: usize, there: usize) -> ! {
    panic!("{len} bytes at {offset} of a mapping of {there} bytes")
}

/// Held while memory is made shareable, which happens at set-up and is rare.
static SHARING: Mutex<()> = Mutex::new(());

impl Mapping {
    /// Zeroed private memory of `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// What `mmap` answers, `ENOMEM` in practice.
    pub fn anonymous(len: usize, pages: Pages) -> Result<Self, Errno> {
        let len = len.max(1).next_multiple_of(4096);
        if pages == Pages::Base {
            // SAFETY: a null hint lets the kernel place the mapping; no existing memory is touched.
            let base = unsafe {
                rustix::mm::mmap_anonymous(
                    ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )?
            };
            let mapping = Self::adopt(base, len, pages, None);
            // SAFETY: the range was mapped just above and is ours alone; the advice changes no bytes.
            // A kernel without huge pages refuses it, which is what was asked for anyway.
            let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxNoHugepage) };
            return Ok(mapping);
        }
        let len = len.next_multiple_of(HUGE_BYTES);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the place is of this length, and nobody else knows of it.
        let base = Self::placed(len, 0, |place| unsafe {
            rustix::mm::mmap_anonymous(place, len, protection, flags)
        })?;
        // SAFETY: `[base, base + len)` is ours; the advice changes no bytes. A refusal (no THP in
        // this kernel) leaves base pages, which are only slower.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxHugepage) };
        Ok(Self::adopt(base, len, pages, None))
    }

    /// What `map` makes, with `MAP_FIXED`, at a place of `len` bytes where it can have huge pages of a file from
    /// `offset` on: both are as far behind a multiple of one.
    fn placed(
        len: usize,
        offset: u64,
        map: impl FnOnce(*mut c_void) -> Result<*mut c_void, Errno>,
    ) -> Result<*mut c_void, Errno> {
        let len = len.next_multiple_of(4096);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint; the mapping touches no existing memory.
        let wide = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len + HUGE_BYTES, ProtFlags::empty(), flags)?
        };
        let behind = offset as usize % HUGE_BYTES;
        let lead = (behind + HUGE_BYTES - wide.addr() % HUGE_BYTES) % HUGE_BYTES;
        // SAFETY: `lead < HUGE_BYTES`, so head and tail lie inside the mapping made above and no
        // one else knows of them yet.
        let place = unsafe {
            if lead > 0 {
                rustix::mm::munmap(wide, lead)?;
            }
            let place = wide.byte_add(lead);
            rustix::mm::munmap(place.byte_add(len), HUGE_BYTES - lead)?;
            place
        };
        // If it fails, the place may be somebody else's by now: what is left of it stays.
        map(place)
    }

    /// Zeroed memory of `len` bytes, rounded up to whole pages, that another process can be given: see
    /// [`Mapping::backing`].
    ///
    /// # Errors
    /// What `memfd_create`, `ftruncate` or `mmap` answers.
    pub fn shareable(len: usize, pages: Pages) -> Result<Self, Errno> {
        let unit = if pages == Pages::Huge { HUGE_BYTES } else { 4096 };
        let len = len.max(1).next_multiple_of(unit);
        Self::backed(memory_file(len)?, 0, len, pages)
    }

    /// As [`Mapping::shared`], keeping the file for [`Mapping::backing`].
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn backed(fd: OwnedFd, offset: u64, len: usize, pages: Pages) -> Result<Self, Errno> {
        let mapping = Self::shared(fd.as_fd(), offset, len, pages)?;
        let fresh = mapping.backing.set(Backing { fd: QuietFd::new(fd), offset });
        debug_assert!(fresh.is_ok(), "a mapping just made has no backing");
        Ok(mapping)
    }

    /// The file behind the mapping and where in it the mapping begins; another process that maps them reaches
    /// the same bytes. None for private memory, and for [`Mapping::shared`], which does not keep its file.
    #[must_use]
    pub fn backing(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.backing.get().map(|backing| (backing.fd.as_fd(), backing.offset))
    }

    /// Makes private memory shareable where it lies: same address, same bytes, now of a file in memory. Bytes
    /// that somebody writes during the call may be lost, so it belongs where memory is set up. Nothing
    /// happens to memory that has a backing already.
    ///
    /// # Errors
    /// `ENOTSUP` for a mapping of a file that was not kept; what `memfd_create`, `write` or `mmap` answers.
    pub fn share(&self) -> Result<(), Errno> {
        let _one_at_a_time = SHARING.lock();
        if self.backing.get().is_some() {
            return Ok(());
        }
        if !self.private {
            return Err(Errno::NOTSUP);
        }
        let fd = memory_file(self.len)?;
        self.copy_to(&fd)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: `[base, base + len)` is our own mapping, page-aligned, and is replaced as a whole by one of
        // the same length and protection: raw copies and atomics through it stay valid, and no other kind
        // of reference to the bytes exists. The kernel replaces it in one step for other threads.
        unsafe { rustix::mm::mmap(self.base.as_ptr().cast(), self.len, protection, flags, &fd, 0)? };
        if self.fork_forbidden.load(Ordering::Relaxed) {
            self.forbid_fork()?;
        }
        let fresh = self.backing.set(Backing { fd: QuietFd::new(fd), offset: 0 });
        debug_assert!(fresh.is_ok(), "only the holder of the lock shares");
        Ok(())
    }

    /// Writes what is not zero to the same places of `fd`, so that untouched memory stays without pages.
    fn copy_to(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let mut page = [0; 4096];
        for offset in (0..self.len).step_by(4096) {
            self.read(offset, &mut page);
            if page.iter().any(|&byte| byte != 0) {
                let done = rustix::io::pwrite(fd, &page, offset as u64)?;
                if done != page.len() {
                    return Err(Errno::NOSPC);
                }
            }
        }
        Ok(())
    }

    /// `len` bytes of `fd` from `offset`, shared with every other mapping of them.
    ///
    /// Touching a page past the end of the file is a `SIGBUS`: the caller keeps the file long enough.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize, pages: Pages) -> Result<Self, Errno> {
        let base = Self::map(fd, (offset, len), ProtFlags::READ | ProtFlags::WRITE, pages)?;
        Ok(Self::adopt(base, len, pages, Some((fd, offset))))
    }

    /// As [`Mapping::shared`], for who only reads: a store to it is a `SIGSEGV`.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn read_only(fd: BorrowedFd<'_>, offset: u64, len: usize, pages: Pages) -> Result<Self, Errno> {
        let base = Self::map(fd, (offset, len), ProtFlags::READ, pages)?;
        Ok(Self::adopt(base, len, pages, Some((fd, offset))))
    }

    fn map(
        fd: BorrowedFd<'_>,
        (offset, len): (u64, usize),
        protection: ProtFlags,
        pages: Pages,
    ) -> Result<*mut c_void, Errno> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        if pages == Pages::Base || len < HUGE_BYTES {
            // SAFETY: a null hint; the mapping touches no existing memory.
            return unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, fd, offset) };
        }
        // SAFETY: the place is of this length, and nobody else knows of it.
        let base = Self::placed(len, offset, |place| unsafe {
            rustix::mm::mmap(place, len, protection, flags | MapFlags::FIXED, fd, offset)
        })?;
        // SAFETY: the range was mapped just above; the advice changes no bytes.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxHugepage) };
        Ok(base)
    }

    /// Puts zeroes that nobody else sees in the place of what was mapped to be read; the kernel does that in one step
    /// for other threads.
    ///
    /// # Errors
    /// What `mmap` answers: then it is as it was.
    pub fn blank(&self) -> Result<(), Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: `[base, base + len)` is our own mapping, page-aligned, and is replaced as a whole by one of the
        // same length: raw copies and atomic loads through it stay valid, and no other kind of reference to it exists.
        unsafe { rustix::mm::mmap_anonymous(self.base.as_ptr().cast(), self.len, ProtFlags::READ, flags)? };
        Ok(())
    }

    /// As [`Mapping::shared`], of a file of somebody who may cut it short: see [`crate::survive_cut_files`].
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn foreign(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        Ok(Self::shared(fd, offset, len, Pages::Base)?.guarded())
    }

    /// As [`Mapping::foreign`], for who only reads: a store to it is a `SIGSEGV`.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn foreign_read_only(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        Ok(Self::read_only(fd, offset, len, Pages::Base)?.guarded())
    }

    /// As [`Mapping::foreign`], of a file whose memory is durable itself: what is written back from the processor's
    /// caches is, with the host's notes of where it lies (`MAP_SYNC`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file has no such memory; what `mmap` answers.
    pub fn foreign_direct(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC | MapFlags::NORESERVE;
        // SAFETY: a null hint; the mapping touches no existing memory.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, fd, offset)? };
        Ok(Self::adopt(base, len, Pages::Base, Some((fd, offset))).guarded())
    }

    /// With what answers touches behind the end of its file.
    fn guarded(mut self) -> Self {
        self.guard = Guard::new(self.base.as_ptr().addr(), self.len);
        self
    }

    /// Whether a touch of this memory has met nothing, because its file was cut short or the host could not read it:
    /// from then on what is copied may be zeroes, and what is stored may be lost.
    #[must_use]
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_cut)
    }

    pub(crate) fn adopt(
        base: *mut c_void,
        len: usize,
        pages: Pages,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Self {
        Self {
            base: NonNull::new(base.cast()).expect("mmap never answers null on success"),
            len,
            private: file.is_none(),
            pages,
            misses: AtomicU32::new(0),
            #[cfg(feature = "model")]
            words: crate::model::Words::of(file),
            backing: OnceLock::new(),
            fork_forbidden: AtomicBool::new(false),
            guard: None,
        }
    }

    /// Bytes in the mapping.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping has no byte; it never has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, for those who hand it to the kernel or to a device.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[inline(always)]
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside {
            outside(offset, len, self.len);
        }
        // SAFETY: `offset + len <= self.len`, and one mapping is one allocation.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Asks the processor for the cache line at `offset`, to be written soon; nothing waits for it. An
    /// offset outside the mapping asks for nothing, so a guess will do.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            let line = self.at(offset, 1).cast::<i8>();
            // SAFETY: a prefetch changes no memory and never faults; the address is in the mapping by `at`.
            unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(line) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// As [`Mapping::prefetch`], for a line that is to be read.
    #[inline]
    pub fn prefetch_read(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            let line = self.at(offset, 1).cast::<i8>();
            // SAFETY: a prefetch changes no memory and never faults; the address is in the mapping by `at`.
            unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Whether `len` bytes at `offset` equal the bytes at `other_offset` of `other`.
    ///
    /// # Panics
    /// When either range is not inside its mapping.
    #[must_use]
    pub fn equal(&self, offset: usize, other: &Mapping, other_offset: usize, len: usize) -> bool {
        let (mut a, mut b) = ([0u8; 512], [0u8; 512]);
        (0..len).step_by(512).all(|done| {
            let part = (len - done).min(512);
            self.read(offset + done, &mut a[..part]);
            other.read(other_offset + done, &mut b[..part]);
            a[..part] == b[..part]
        })
    }

    /// Keeps a forked child from inheriting these pages (`MADV_DONTFORK`): memory a device writes
    /// must not be copied under it.
    ///
    /// # Errors
    /// What `madvise` answers.
    pub fn forbid_fork(&self) -> Result<(), Errno> {
        self.fork_forbidden.store(true, Ordering::Relaxed);
        // SAFETY: the range is ours; the advice changes no bytes in this process.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontFork) }
    }

    /// Leaves these pages out of core dumps (`MADV_DONTDUMP`), as far as the kernel can: what others keep there is not
    /// this process's to write down.
    pub fn keep_from_dumps(&self) {
        // SAFETY: as for `forbid_fork`.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontDump) };
    }

    /// Gives a forked child zeroes in place of these pages (`MADV_WIPEONFORK`): how it knows.
    ///
    /// # Errors
    /// What `madvise` answers; `EINVAL` for a mapping that is not private and anonymous.
    pub fn wipe_on_fork(&self) -> Result<(), Errno> {
        // SAFETY: as for `forbid_fork`.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxWipeOnFork) }
    }

    /// Makes the pages of a range present and writable at once, where the kernel can
    /// (`MADV_POPULATE_WRITE`); elsewhere each faults when it is first touched.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn populate(&self, offset: usize, len: usize) {
        let base = self.at(offset, len);
        // SAFETY: the range is ours by `at`; populating changes no bytes. Its failure (an older kernel, no
        // memory) leaves the pages to be faulted one by one.
        let _ = unsafe { rustix::mm::madvise(base.cast(), len, Advice::LinuxPopulateWrite) };
    }

    /// Makes the pages of a range that the file has present, to be read (`MADV_POPULATE_READ`), where the kernel can.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn populate_read(&self, offset: usize, len: usize) {
        let base = self.at(offset, len);
        // SAFETY: as for `populate`.
        let _ = unsafe { rustix::mm::madvise(base.cast(), len, Advice::LinuxPopulateRead) };
    }

    /// Puts one huge page behind [`HUGE_BYTES`] from `offset` on, a multiple of as many, of memory made with
    /// [`Mapping::shareable`] or [`Mapping::backed`] and [`Pages::Huge`], and makes it present (`MADV_COLLAPSE`, Linux
    /// 6.1), whatever is there of them. To touch its 4 KiB pages one by one takes three times as long, and in each
    /// other mapping as long again. False where the kernel has none to give, or takes long to find one again and
    /// again: all stays as it is.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn gather(&self, offset: usize) -> bool {
        let base = self.at(offset, HUGE_BYTES);
        let has_given_up = self.misses.load(Ordering::Relaxed) >= MISSES_MAX;
        if self.pages == Pages::Base || self.backing.get().is_none() || has_given_up {
            return false;
        }
        // Nothing is gathered where there is no page at all.
        self.populate(offset, 1);
        let begun = clock_gettime(ClockId::ThreadCPUTime);
        // SAFETY: the range is ours by `at`; its bytes stay as they are.
        let gathered = unsafe { libc::madvise(base.cast(), HUGE_BYTES, MADV_COLLAPSE) } == 0;
        let took = clock_gettime(ClockId::ThreadCPUTime) - begun;
        if gathered && took <= GATHERED_IN {
            self.misses.store(0, Ordering::Relaxed);
        } else {
            self.misses.fetch_add(1, Ordering::Relaxed);
        }
        gathered
    }

    /// Gives the pages that lie wholly in a range back to the kernel: private anonymous memory
    /// (`MADV_DONTNEED`) and shareable memory (`MADV_REMOVE`) read as zeroes from then on. Of any other shared
    /// mapping it only drops the page table entries.
    ///
    /// # Errors
    /// What `madvise` answers; `EINVAL` for locked pages.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn release(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let begin = offset.next_multiple_of(4096);
        let end = (offset + len) & !4095;
        let base = self.at(offset, len);
        if begin >= end {
            return Ok(());
        }
        let advice = if self.backing.get().is_some() { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: whole pages inside `[offset, offset + len)`, which is ours by `at`; no reference to their
        // bytes exists, so that others only see them change, as they may at any time.
        unsafe { rustix::mm::madvise(base.byte_add(begin - offset).cast(), end - begin, advice) }
    }

    /// Writes `len` bytes from `offset` to `at` of a file, by the kernel: pages that a memory file has not yet are
    /// not cleared before. How many arrived, where not all did.
    ///
    /// # Errors
    /// What pwrite(2) answers; `EFAULT` where the mapping's own file was cut short.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn write_out(&self, offset: usize, len: usize, to: BorrowedFd<'_>, at: u64) -> Result<usize, Errno> {
        let src = self.at(offset, len);
        // SAFETY: `src` is valid for `len` bytes by `at`. The slice is handed to the kernel, which copies what others
        // may be writing, is looked at by nobody here, and ends with this call.
        rustix::io::pwrite(to, unsafe { core::slice::from_raw_parts(src, len) }, at)
    }

    /// Writes changed pages of a shared file mapping back to the file, and waits.
    ///
    /// # Errors
    /// What `msync` answers.
    pub fn sync(&self) -> Result<(), Errno> {
        // SAFETY: the range is ours and stays mapped during the call.
        unsafe { rustix::mm::msync(self.base.as_ptr().cast(), self.len, MsyncFlags::SYNC) }
    }

    /// As [`Mapping::sync`], of the pages of a range.
    ///
    /// # Errors
    /// What `msync` answers.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn sync_range(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let begin = offset & !4095;
        let len = offset - begin + len;
        let base = self.at(begin, len);
        // SAFETY: the range is ours by `at`, begins on a page, and stays mapped during the call.
        unsafe { rustix::mm::msync(base.cast(), len, MsyncFlags::SYNC) }
    }
}

/// A file in memory that can grow no shorter: whoever maps it need not fear `SIGBUS`.
fn memory_file(len: usize) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("nvmed", flags)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the addresses can be somebody else's.
        self.guard = None;
        // SAFETY: the range was mapped by us, no reference to it can outlive `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own range cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door;
    use core::sync::atomic::Ordering;

    #[test]
    fn bytes_and_words_are_the_same_memory() {
        let memory = Mapping::anonymous(8192, Pages::Base).unwrap();
        memory.write(4090, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let mut out = [0; 8];
        memory.read(4090, &mut out);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
        memory.u64(8).store(0x0807_0605_0403_0201, Ordering::Release);
        memory.read(8, &mut out);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
        memory.copy(8, &memory, 10, 8);
        assert!(memory.equal(10, &memory, 4090, 8));
    }

    #[test]
    fn nothing_is_given_behind_a_hole_and_what_is_before_it_once_more() {
        let memory = Mapping::anonymous(8192, Pages::Base).unwrap();
        memory.fill(0, 8192, 7);
        let mut into = [0; 12];
        door::note(into.as_ptr().addr() + 5);
        memory.give(0, &mut into[..8]);
        memory.give(8, &mut into[8..]);
        assert_eq!(into, [7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(door::lost(), Some(into.as_ptr().addr() + 5));
    }

    #[test]
    fn released_pages_read_as_zeroes_and_their_neighbours_stay() {
        let memory = Mapping::anonymous(16_384, Pages::Base).unwrap();
        memory.fill(0, 16_384, 7);
        memory.release(100, 12_000).unwrap();
        memory.release(16_000, 100).unwrap();
        let mut bytes = vec![0; 16_384];
        memory.read(0, &mut bytes);
        assert!(bytes[..4096].iter().chain(&bytes[8192..]).all(|&byte| byte == 7));
        assert!(bytes[4096..8192].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn shared_memory_keeps_its_bytes_and_is_seen_by_who_maps_its_file() {
        let private = Mapping::anonymous(16_384, Pages::Base).unwrap();
        private.write(5000, b"before");
        assert!(private.backing().is_none());
        private.share().unwrap();
        private.share().unwrap();
        for memory in [private, Mapping::shareable(16_384, Pages::Base).unwrap()] {
            let (fd, offset) = memory.backing().unwrap();
            let other = Mapping::shared(fd, offset, memory.len(), Pages::Base).unwrap();
            assert!(memory.equal(0, &other, 0, 16_384));
            other.write(9000, b"after");
            assert!(memory.equal(0, &other, 0, 16_384));
            memory.release(4096, 12_288).unwrap();
            assert_eq!(
                (other.u8(5000).load(Ordering::Relaxed), other.u8(9000).load(Ordering::Relaxed)),
                (0, 0)
            );
            assert_eq!(other.share(), Err(Errno::NOTSUP));
        }
    }

    #[test]
    fn shared_memory_kept_its_bytes() {
        let memory = Mapping::anonymous(2 << 20, Pages::Huge).unwrap();
        memory.write(1_000_000, b"before");
        memory.share().unwrap();
        let mut bytes = [0; 6];
        memory.read(1_000_000, &mut bytes);
        assert_eq!(&bytes, b"before");
    }

    #[test]
    fn a_range_that_leaves_the_mapping_is_refused() {
        let memory = Mapping::anonymous(4096, Pages::Base).unwrap();
        for (offset, len) in [(4096, 1), (4090, 8), (usize::MAX, 2)] {
            let read = std::panic::catch_unwind(|| memory.read(offset, &mut vec![0; len]));
            assert!(read.is_err(), "{len} bytes at {offset} were read");
        }
    }

    /// Bytes of huge pages behind a mapping of a file, as the kernel tells.
    fn huge_bytes(memory: &Mapping) -> usize {
        let head = format!("{:x}-", memory.address() as usize);
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = all.lines().skip_while(|line| !line.starts_with(&head));
        let line = lines.find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn what_is_gathered_is_a_huge_page_in_each_mapping_and_keeps_its_bytes() {
        let memory = Mapping::shareable(5 << 20, Pages::Huge).unwrap();
        let (fd, _) = memory.backing().unwrap();
        let others = [
            Mapping::read_only(fd, 0, memory.len(), Pages::Huge).unwrap(),
            Mapping::shared(fd, 4096, memory.len() - 4096, Pages::Huge).unwrap(),
        ];
        memory.write(3_000_000, b"before");
        let is_huge = memory.gather(HUGE_BYTES);
        memory.write(3_500_000, b"after");
        for (other, offset) in others.iter().zip([0, 4096]) {
            assert!(memory.equal(HUGE_BYTES, other, HUGE_BYTES - offset, HUGE_BYTES));
            let mut bytes = [0; 6];
            other.read(3_000_000 - offset, &mut bytes);
            assert_eq!((&bytes, huge_bytes(other)), (b"before", if is_huge { HUGE_BYTES } else { 0 }));
        }
        if !is_huge {
            println!("SKIPPED: the kernel gathers no huge pages");
        }
        let private = Mapping::anonymous(HUGE_BYTES, Pages::Huge).unwrap();
        let base = Mapping::shareable(HUGE_BYTES, Pages::Base).unwrap();
        assert!(!private.gather(0) && !base.gather(0), "no file, and not asked for");
    }

    #[test]
    fn huge_mappings_start_on_a_huge_page() {
        let memory = Mapping::anonymous(3 << 20, Pages::Huge).unwrap();
        assert_eq!(memory.address() as usize % HUGE_BYTES, 0);
        memory.write(memory.len() - 1, &[7]);
        assert_eq!(memory.u8(memory.len() - 1).load(Ordering::Relaxed), 7);
    }
}
