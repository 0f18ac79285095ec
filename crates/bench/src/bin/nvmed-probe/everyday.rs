//! What programs do all day with small files, a call at a time; and two processes on one file.

use super::{BLOCK, SEED, WRITTEN, failed, fill, noise, number, open, path, pread, pwrite};
use nvmed_dice::Dice;
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Files of the tree, a directory's at a time, and their sizes: 17 KiB on average.
const DIRS: usize = 10;
const FILES_A_DIR: usize = 20;
const SMALLEST: usize = 1 << 10;
const LARGEST: usize = 33 << 10;
/// Bytes of a small read or write, within a file of `WRITTEN` bytes.
const SMALL: usize = 100;
/// Calls of a slice, of those that work on one file.
const CALLS: usize = 2_000;
/// Passes over the tree in a slice, of those that work on all of it.
const PASSES: usize = 5;

/// A tree of small files, all written and read once, and a file for small reads and writes.
struct Tree {
    dirs: Vec<CString>,
    files: Vec<CString>,
    fresh: Vec<CString>,
    fd: RawFd,
    buffer: Vec<u8>,
    dice: Dice,
}

impl Tree {
    fn new(root: &str) -> Result<Self, String> {
        let mut tree = Self {
            dirs: Vec::new(),
            files: Vec::new(),
            fresh: Vec::new(),
            fd: open(&format!("{root}/small.dat"), libc::O_RDWR | libc::O_CREAT)?,
            buffer: noise().repeat(LARGEST.div_ceil(BLOCK)),
            dice: Dice::new(SEED),
        };
        fill(tree.fd, WRITTEN / BLOCK, &super::Mode::Read)?;
        for dir in 0..DIRS {
            let name = format!("{root}/dir{dir}");
            tree.dirs.push(path(&name)?);
            // SAFETY: a NUL-terminated string that lives during the call.
            if unsafe { libc::mkdir(tree.dirs[dir].as_ptr(), 0o755) } != 0 {
                return Err(failed("mkdir"));
            }
            for file in 0..FILES_A_DIR {
                let name = format!("{name}/file{file:02}");
                let fd = open(&name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
                let bytes = SMALLEST + tree.dice.index(LARGEST - SMALLEST);
                pwrite(fd, &tree.buffer[..bytes], 0)?;
                close(fd)?;
                tree.files.push(path(&name)?);
                tree.fresh.push(path(&format!("{name}.new"))?);
            }
        }
        Ok(tree)
    }

    /// Calls of one slice.
    fn calls_of(&self, kind: &str) -> usize {
        match kind {
            "pread" | "pwrite" | "fchmod" => CALLS,
            "create" | "unlink" => self.files.len(),
            // Of an entry: its name and its attributes.
            _ => self.files.len() * PASSES,
        }
    }

    /// One slice of a kind.
    fn slice(&mut self, kind: &str) -> Result<(), String> {
        match kind {
            "stat" => self.of_all(|name, _| status(name)),
            "access" => {
                // SAFETY: `name` is NUL-terminated and lives during the call.
                self.of_all(|name, _| answered(unsafe { libc::access(name.as_ptr(), libc::R_OK) }, "access"))
            }
            "open_close" => self.of_all(|name, _| close(opened(name, libc::O_RDONLY)?)),
            "read_whole" => self.of_all(read_whole),
            "readdir" => (0..PASSES).try_for_each(|_| self.dirs.iter().try_for_each(list)),
            "pread" => (0..CALLS).try_for_each(|_| self.small(pread_small)),
            "pwrite" => (0..CALLS).try_for_each(|_| self.small(|fd, buffer, at| pwrite(fd, buffer, at))),
            "fchmod" => (0..CALLS).try_for_each(|_| {
                // SAFETY: a plain call on a descriptor of ours.
                answered(unsafe { libc::fchmod(self.fd, 0o644) }, "fchmod")
            }),
            "create" => self.fresh.iter().try_for_each(|name| {
                let fd = opened(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
                pwrite(fd, &self.buffer[..BLOCK], 0)?;
                close(fd)
            }),
            // SAFETY: `name` is NUL-terminated and lives during the call.
            "unlink" => self
                .fresh
                .iter()
                .try_for_each(|name| answered(unsafe { libc::unlink(name.as_ptr()) }, "unlink")),
            _ => Err(format!("`{kind}` is no kind of call")),
        }
    }

    fn of_all(
        &mut self,
        mut call: impl FnMut(&CString, &mut [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let (files, buffer) = (&self.files, &mut self.buffer);
        (0..PASSES).try_for_each(|_| files.iter().try_for_each(|name| call(name, buffer)))
    }

    fn small(&mut self, call: fn(RawFd, &mut [u8], usize) -> Result<(), String>) -> Result<(), String> {
        let at = self.dice.index(WRITTEN - SMALL);
        call(self.fd, &mut self.buffer[..SMALL], at)
    }
}

fn pread_small(fd: RawFd, buffer: &mut [u8], at: usize) -> Result<(), String> {
    pread(fd, buffer, at)
}

fn answered(answer: i32, what: &str) -> Result<(), String> {
    if answer == 0 { Ok(()) } else { Err(failed(what)) }
}

fn opened(name: &CString, flags: i32) -> Result<RawFd, String> {
    // SAFETY: `name` is NUL-terminated and lives during the call.
    let fd = unsafe { libc::open(name.as_ptr(), flags, 0o644) };
    if fd < 0 { Err(failed("open")) } else { Ok(fd) }
}

fn close(fd: RawFd) -> Result<(), String> {
    // SAFETY: `fd` is ours and closed once.
    answered(unsafe { libc::close(fd) }, "close")
}

fn status(name: &CString) -> Result<(), String> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `name` is NUL-terminated, `status` writable; both live during the call.
    answered(unsafe { libc::stat(name.as_ptr(), status.as_mut_ptr()) }, "stat")
}

/// As programs do that read a file at once.
fn read_whole(name: &CString, buffer: &mut [u8]) -> Result<(), String> {
    let fd = opened(name, libc::O_RDONLY)?;
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` is writable and lives during the call.
    answered(unsafe { libc::fstat(fd, status.as_mut_ptr()) }, "fstat")?;
    // SAFETY: fstat has filled it.
    let bytes = unsafe { status.assume_init() }.st_size as usize;
    // SAFETY: `buffer` is valid for writes of its length, which bounds the call.
    let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), bytes.min(buffer.len())) };
    if n != bytes as isize {
        return Err(failed("read"));
    }
    close(fd)
}

/// All entries of a directory with their attributes, as `ls -l` and `find` have them.
fn list(dir: &CString) -> Result<(), String> {
    // SAFETY: `dir` is NUL-terminated; the stream is used and closed here alone, an entry only before the next.
    unsafe {
        let stream = libc::opendir(dir.as_ptr());
        if stream.is_null() {
            return Err(failed("opendir"));
        }
        let fd = libc::dirfd(stream);
        let mut entries = 0;
        loop {
            let entry = libc::readdir(stream);
            if entry.is_null() {
                break;
            }
            let name = (*entry).d_name.as_ptr();
            if *name == b'.'.cast_signed() {
                continue;
            }
            let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
            answered(libc::fstatat(fd, name, status.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW), "fstatat")?;
            entries += 1;
        }
        answered(libc::closedir(stream), "closedir")?;
        if entries == FILES_A_DIR {
            Ok(())
        } else {
            Err(format!("{entries} entries in place of {FILES_A_DIR}"))
        }
    }
}

/// Slices of each kind of call on a tree made below `root`: a line `KIND NANOSECONDS` each. The first slice of a kind
/// is not told.
pub(crate) fn calls(root: &str, slices: &str, kinds: &[&str]) -> Result<(), String> {
    let slices = number(slices)?;
    let mut tree = Tree::new(root)?;
    // What is created is removed in the next slice of the other kind.
    let kinds =
        kinds.iter().map(|&kind| if kind == "create" { vec!["create", "unlink"] } else { vec![kind] });
    for together in kinds {
        for slice in 0..=slices {
            for &kind in &together {
                let begin = Instant::now();
                tree.slice(kind)?;
                let taken = begin.elapsed().as_nanos() as f64 / tree.calls_of(kind) as f64;
                if slice > 0 {
                    println!("{kind} {taken:.2}");
                }
            }
        }
    }
    close(tree.fd)
}

/// What processes share.
struct Shared {
    /// Other than zero, the reader ends; of many readers, when they end.
    over: AtomicU64,
    /// What readers have read.
    reads: AtomicU64,
}

impl Shared {
    fn new() -> Result<&'static Self, String> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, of the kernel's choice of place, never unmapped; zeroes are two atomics.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), size_of::<Self>(), access, flags, -1, 0);
            if at == libc::MAP_FAILED { Err(failed("mmap")) } else { Ok(&*at.cast::<Self>()) }
        }
    }
}

/// A child that does `what` and ends.
fn forked(what: impl FnOnce() -> Result<(), String>) -> Result<i32, String> {
    // SAFETY: this process has one thread of its own; the child ends without running what is the parent's.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(failed("fork"));
    }
    if child == 0 {
        let whole = what().is_ok();
        // SAFETY: takes a number.
        unsafe { libc::_exit(i32::from(!whole)) };
    }
    Ok(child)
}

fn await_end(child: i32) -> Result<(), String> {
    let mut status = 0;
    // SAFETY: `status` is writable; the child is ours.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if ended == child && status == 0 { Ok(()) } else { Err(format!("a child ended with {status}")) }
}

/// A pipe: the end to read and the end to write.
fn pipe() -> Result<[RawFd; 2], String> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is writable and has room for two descriptors.
    answered(unsafe { libc::pipe(ends.as_mut_ptr()) }, "pipe")?;
    Ok(ends)
}

/// Waits for a byte, or for the end of all that write.
fn await_byte(end: RawFd) -> Result<(), String> {
    let mut byte = 0u8;
    // SAFETY: one byte that is ours.
    if unsafe { libc::read(end, (&raw mut byte).cast(), 1) } < 0 { Err(failed("read")) } else { Ok(()) }
}

/// Waits for one byte of each of so many processes that alone have the other end.
fn await_all(end: RawFd, count: usize) -> Result<(), String> {
    let mut bytes = vec![0u8; count];
    let mut come = 0;
    while come < count {
        // SAFETY: bytes that are ours.
        let read = unsafe { libc::read(end, bytes.as_mut_ptr().cast(), count - come) };
        match usize::try_from(read) {
            Ok(0) => return Err("a reader has ended before it began".to_owned()),
            Ok(read) => come += read,
            Err(_) => return Err(failed("read")),
        }
    }
    Ok(())
}

/// Files that so many processes together read of one tree below `root` in a second, each all of it again and again
/// (stat, open, fstat, read whole, close): a line `PROCESSES FILES` a slice, for each number in `counts`.
pub(crate) fn readers(root: &str, slices: &str, slice_ms: &str, counts: &[&str]) -> Result<(), String> {
    let (slices, slice) = (number(slices)?, Duration::from_millis(number(slice_ms)? as u64));
    let mut tree = Tree::new(root)?;
    for count in counts {
        for _ in 0..slices {
            println!("{count} {}", read_together(&mut tree, number(count)?, slice)?);
        }
    }
    close(tree.fd)
}

fn read_together(tree: &mut Tree, count: usize, slice: Duration) -> Result<u64, String> {
    let (shared, ready, begin, base) = (Shared::new()?, pipe()?, pipe()?, Instant::now());
    let mut child = || {
        forked(|| {
            close(begin[1])?;
            read_from(tree, base, shared, (ready[1], begin[0]))
        })
    };
    let children = (0..count).map(|_| child()).collect::<Result<Vec<_>, _>>()?;
    close(ready[1])?;
    await_all(ready[0], children.len())?;
    // One that begins later ends with the others: they share the processors all the while.
    let end = base.elapsed() + slice;
    shared.over.store(end.as_micros() as u64, Ordering::Release);
    // All of them see the end of this pipe at once.
    close(begin[1])?;
    children.into_iter().try_for_each(await_end)?;
    [ready[0], begin[0]].into_iter().try_for_each(close)?;
    Ok((shared.reads.load(Ordering::Relaxed) as f64 / slice.as_secs_f64()) as u64)
}

/// One reader: a pass that is not timed, then as many as there is time for: until `over` microseconds from `base` on.
fn read_from(
    tree: &mut Tree,
    base: Instant,
    shared: &Shared,
    (ready, begin): (RawFd, RawFd),
) -> Result<(), String> {
    let Tree { files, buffer, .. } = tree;
    let mut of_each = |name: &CString| status(name).and_then(|()| read_whole(name, buffer));
    files.iter().try_for_each(&mut of_each)?;
    // SAFETY: one byte that is ours.
    answered(i32::from(unsafe { libc::write(ready, [1u8].as_ptr().cast(), 1) } != 1), "write")?;
    await_byte(begin)?;
    let (over, mut read) = (Duration::from_micros(shared.over.load(Ordering::Acquire)), 0u64);
    while base.elapsed() < over {
        for name in files.iter().cycle().skip(read as usize % files.len()).take(FILES_A_DIR) {
            of_each(name)?;
        }
        read += FILES_A_DIR as u64;
    }
    shared.reads.fetch_add(read, Ordering::Relaxed);
    Ok(())
}

/// Random 4 KiB writes by this process and reads by another, of one file of `WRITTEN` bytes: a line `WRITES READS` a
/// slice, calls a second each. The first slice is not told.
pub(crate) fn pair(file: &str, slices: &str, slice_ms: &str) -> Result<(), String> {
    let (slices, slice) = (number(slices)?, Duration::from_millis(number(slice_ms)? as u64));
    let fd = open(file, libc::O_RDWR | libc::O_CREAT)?;
    fill(fd, WRITTEN / BLOCK, &super::Mode::Read)?;
    let shared = Shared::new()?;
    let child = forked(|| read_until_told(file, shared))?;
    let block = noise();
    let mut dice = Dice::new(SEED);
    for number in 0..=slices {
        let (begin, read, mut writes) = (Instant::now(), shared.reads.load(Ordering::Relaxed), 0u64);
        while begin.elapsed() < slice {
            pwrite(fd, &block, dice.index(WRITTEN / BLOCK) * BLOCK)?;
            writes += 1;
        }
        let (seconds, read) = (begin.elapsed().as_secs_f64(), shared.reads.load(Ordering::Relaxed) - read);
        if number > 0 {
            println!("{:.0} {:.0}", writes as f64 / seconds, read as f64 / seconds);
        }
    }
    shared.over.store(1, Ordering::Relaxed);
    await_end(child)?;
    close(fd)
}

fn read_until_told(file: &str, shared: &Shared) -> Result<(), String> {
    let fd = open(file, libc::O_RDONLY)?;
    let (mut block, mut dice) = (noise(), Dice::new(SEED ^ 1));
    while shared.over.load(Ordering::Relaxed) == 0 {
        pread(fd, &mut block, dice.index(WRITTEN / BLOCK) * BLOCK)?;
        shared.reads.fetch_add(1, Ordering::Relaxed);
    }
    close(fd)
}
