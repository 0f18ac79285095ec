//! A small unmodified program: plain libc file calls in loops, timed from inside.
//!
//! It knows nothing of nvmed; run bare it measures the kernel, run under the wrapper it measures us.
//! Each mode prints one line per slice: nanoseconds per operation.

mod beside;
mod commits;
mod everyday;

use nvmed_dice::Dice;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::RawFd;
use std::time::Instant;

/// Bytes per operation.
const BLOCK: usize = 4096;
/// Bytes of a longer one.
const PIECE: usize = 8192;
/// Reads after which a shared mount has shown where the file lies.
const READS_BEFORE: usize = 4;
/// Bytes of a call that writes what is then read.
const WRITTEN: usize = 1 << 20;
/// Bytes of a call that reads it once: no more than what caches take for reading in place.
const READ: usize = 64 << 10;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let done = match words[..] {
        ["pread", file, bytes, slices, ops] => random(file, bytes, slices, ops, Mode::Read),
        ["pwrite", file, bytes, slices, ops] => random(file, bytes, slices, ops, Mode::Write),
        ["beside", image, file, bytes, slices, ops] => beside::beside(image, file, bytes, slices, ops),
        ["create", dir, files, dirs] => create(dir, files, dirs),
        ["foreign", call, slices, calls] => foreign(call, slices, calls),
        ["fstat", file, slices, ops, pause_us] => fstat(file, slices, ops, pause_us),
        ["echo", slices, ops, pause_us] => echo(slices, ops, pause_us),
        ["counted", call, dir, calls] => counted(call, dir, calls),
        ["calls", dir, slices, ref kinds @ ..] if !kinds.is_empty() => everyday::calls(dir, slices, kinds),
        ["pair", file, slices, slice_ms] => everyday::pair(file, slices, slice_ms),
        ["readers", dir, slices, slice_ms, ref counts @ ..] if !counts.is_empty() => {
            everyday::readers(dir, slices, slice_ms, counts)
        }
        ["commits", database, journal, rank, count, ref copy @ ..] => {
            commits::commits(database, journal, rank, count, copy)
        }
        ["copies", from, to, times] => commits::copies(from, to, times),
        ["nothing"] => Ok(()),
        _ => Err("usage: nvmed-probe pread|pwrite FILE BYTES SLICES OPS \
             | beside IMAGE FILE BYTES SLICES OPS | create DIR FILES DIRS \
             | foreign lseek|read|close SLICES CALLS | fstat FILE SLICES OPS PAUSE_US | echo SLICES OPS PAUSE_US \
             | counted CALL DIR CALLS | calls DIR SLICES KIND... | pair FILE SLICES SLICE_MS \
             | readers DIR SLICES SLICE_MS PROCESSES... \
             | commits DATABASE JOURNAL urgent|plain COUNT [FROM TO] | copies FROM TO TIMES | nothing"
            .into()),
    };
    if let Err(message) = done {
        eprintln!("nvmed-probe: {message}");
        std::process::exit(1);
    }
}

/// Where the pseudo-random sequence starts.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A block that does not compress, so that a compressing medium has no gift to give.
fn noise() -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    Dice::new(SEED).fill(&mut block);
    block
}

enum Mode {
    Read,
    Write,
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

fn path(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a path with a NUL byte".to_owned())
}

fn open(name: &str, flags: i32) -> Result<RawFd, String> {
    let name_c = path(name)?;
    // SAFETY: `name_c` is a NUL-terminated string that lives during the call.
    let fd = unsafe { libc::open(name_c.as_ptr(), flags, 0o644) };
    if fd < 0 { Err(failed(name)) } else { Ok(fd) }
}

fn pwrite(fd: RawFd, block: &[u8], at: usize) -> Result<(), String> {
    // SAFETY: `block` is valid for its length.
    let n = unsafe { libc::pwrite(fd, block.as_ptr().cast(), block.len(), at as i64) };
    if n == block.len() as isize { Ok(()) } else { Err(failed("pwrite")) }
}

fn pread(fd: RawFd, block: &mut [u8], at: usize) -> Result<(), String> {
    // SAFETY: `block` is valid for writes of its length.
    let n = unsafe { libc::pread(fd, block.as_mut_ptr().cast(), block.len(), at as i64) };
    if n == block.len() as isize { Ok(()) } else { Err(failed("pread")) }
}

/// Writes all blocks of a file, each with its number, and reads them once where `mode` reads: in a cache that was not
/// written through, everything is there after this.
fn fill(fd: RawFd, blocks: usize, mode: &Mode) -> Result<(), String> {
    let mut piece = noise().repeat(WRITTEN / BLOCK);
    for first in (0..blocks).step_by(WRITTEN / BLOCK) {
        let count = (blocks - first).min(WRITTEN / BLOCK);
        for (index, block) in piece.chunks_exact_mut(BLOCK).enumerate() {
            block[..8].copy_from_slice(&((first + index) as u64).to_le_bytes());
        }
        pwrite(fd, &piece[..count * BLOCK], first * BLOCK)?;
    }
    if matches!(mode, Mode::Read) {
        for first in (0..blocks).step_by(READ / BLOCK) {
            let count = (blocks - first).min(READ / BLOCK);
            pread(fd, &mut piece[..count * BLOCK], first * BLOCK)?;
        }
    }
    Ok(())
}

/// Random 4 KiB operations within the first `bytes` of `file`, which is written once beforehand.
fn random(file: &str, bytes: &str, slices: &str, ops: &str, mode: Mode) -> Result<(), String> {
    let (bytes, slices, ops) = (number(bytes)?, number(slices)?, number(ops)?);
    let blocks = bytes / BLOCK;
    let fd = open(file, libc::O_RDWR | libc::O_CREAT)?;
    fill(fd, blocks, &mode)?;
    let mut block = noise();
    let mut dice = Dice::new(SEED);
    for _ in 0..=slices {
        let begin = Instant::now();
        for _ in 0..ops {
            let at = dice.index(blocks) * BLOCK;
            match mode {
                Mode::Read => pread(fd, &mut block, at)?,
                Mode::Write => pwrite(fd, &block, at)?,
            }
        }
        println!("{:.2}", begin.elapsed().as_nanos() as f64 / ops as f64);
    }
    // SAFETY: `fd` is ours and closed once.
    unsafe { libc::close(fd) };
    std::io::stdout().flush().map_err(|error| error.to_string())
}

/// Cheap calls on a descriptor of the host's, or on none: what stands before the kernel is most of what differs.
fn foreign(call: &str, slices: &str, calls: &str) -> Result<(), String> {
    let (slices, calls) = (number(slices)?, number(calls)?);
    let fd = open("/dev/zero", libc::O_RDONLY)?;
    let mut byte = 0u8;
    for _ in 0..=slices {
        let begin = Instant::now();
        // SAFETY: plain calls on a descriptor of ours and on none; one byte that is ours.
        let whole = unsafe {
            match call {
                "lseek" => (0..calls).all(|_| libc::lseek(fd, 0, libc::SEEK_CUR) >= 0),
                "read" => (0..calls).all(|_| libc::read(fd, (&raw mut byte).cast(), 1) == 1),
                "close" => (0..calls).all(|_| libc::close(-1) == -1),
                _ => return Err(format!("`{call}` is lseek, read or close")),
            }
        };
        if !whole {
            return Err(failed(call));
        }
        println!("{:.2}", begin.elapsed().as_nanos() as f64 / calls as f64);
    }
    Ok(())
}

/// A number of calls of one kind between two stops, for a parent that counts what lies between (ptrace(2)). A call is
/// `ours.NAME` or `memory.NAME` on a file that is made in `dir`, or `host.NAME` on one that is there.
fn counted(call: &str, dir: &str, calls: &str) -> Result<(), String> {
    let calls = number(calls)?;
    let wrong = || format!("`{call}` is no ours.NAME, memory.NAME, shared.NAME or host.NAME");
    let (whose, name) = call.split_once('.').ok_or_else(wrong)?;
    let is_ours = whose != "host";
    let file = if is_ours { format!("{dir}/file") } else { format!("{dir}/passwd") };
    let flags = if is_ours { libc::O_RDWR | libc::O_CREAT } else { libc::O_RDONLY };
    let appends = if name.starts_with("append") { libc::O_APPEND } else { 0 };
    let fd = open(&file, flags | appends)?;
    let mut block = noise();
    let read = [("read_8k", PIECE), ("read_64k", READ), ("read_1m", WRITTEN)].into_iter();
    let read = read.filter(|(of, _)| *of == name).map(|(_, bytes)| bytes).next();
    let mut piece = noise().repeat(read.unwrap_or(PIECE) / BLOCK);
    if is_ours && read.is_none() {
        pwrite(fd, &piece, 0)?;
    } else if is_ours {
        // So large that a shared mount has it where it lies, and as a program finds it that has not written it.
        fill(fd, 2 * WRITTEN / BLOCK, &Mode::Read)?;
        // SAFETY: takes a descriptor of ours.
        unsafe { libc::fsync(fd) };
    }
    let file = path(&file)?;
    let (short, mut status) = (&mut block[..100], std::mem::MaybeUninit::<libc::stat>::uninit());
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: plain calls on a descriptor and a path of ours, with room that is ours.
    let mut once = || unsafe {
        match name {
            "pread" => libc::pread(fd, short.as_mut_ptr().cast(), short.len(), 0) == 100,
            "pwrite" => libc::pwrite(fd, short.as_ptr().cast(), short.len(), 0) == 100,
            "read" => libc::read(fd, short.as_mut_ptr().cast(), 1) == 1,
            "read_8k" | "read_64k" | "read_1m" => {
                libc::pread(fd, piece.as_mut_ptr().cast(), piece.len(), 0) == piece.len() as isize
            }
            "overwrite_8k" => libc::pwrite(fd, piece.as_ptr().cast(), PIECE, 0) == PIECE as isize,
            "append_4k_fsync" => {
                libc::write(fd, piece.as_ptr().cast(), BLOCK) == BLOCK as isize && libc::fsync(fd) == 0
            }
            "lseek" => libc::lseek(fd, 0, libc::SEEK_CUR) >= 0,
            "fstat" => libc::fstat(fd, status.as_mut_ptr()) == 0,
            "stat" => libc::stat(file.as_ptr(), status.as_mut_ptr()) == 0,
            "access" => libc::access(file.as_ptr(), libc::R_OK) == 0,
            "open_close" => libc::close(libc::open(file.as_ptr(), libc::O_RDONLY)) == 0,
            "poll" => libc::poll(&raw mut asked, 1, 0) == 1,
            _ => false,
        }
    };
    // The first is not like the others; of a shared mount, before there is a window.
    let mut whole = (0..if read.is_some() { READS_BEFORE } else { 1 }).all(|_| once());
    // SAFETY: the parent is told of this process's signals from here on, and asked for it.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    stop();
    for _ in 0..calls {
        whole &= once();
    }
    stop();
    if whole { Ok(()) } else { Err(failed(call)) }
}

/// Stops this process for the one that traces it.
fn stop() {
    // SAFETY: takes a number; the parent sees the signal before this process does.
    unsafe { libc::raise(libc::SIGUSR1) };
}

/// Calls timed alone, each after a pause: median and 99th percentile of each slice.
fn alone(
    slices: &str,
    ops: &str,
    pause_us: &str,
    mut call: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let (slices, ops, pause_us) = (number(slices)?, number(ops)?, number(pause_us)?);
    let mut taken = vec![0u128; ops];
    for _ in 0..=slices {
        for taken in &mut taken {
            if pause_us > 0 {
                std::thread::sleep(std::time::Duration::from_micros(pause_us as u64));
            }
            let begin = Instant::now();
            call()?;
            *taken = begin.elapsed().as_nanos();
        }
        taken.sort_unstable();
        println!("{} {}", taken[ops / 2], taken[ops * 99 / 100]);
    }
    Ok(())
}

/// Status of an open file.
fn fstat(file: &str, slices: &str, ops: &str, pause_us: &str) -> Result<(), String> {
    let fd = open(file, libc::O_RDWR | libc::O_CREAT)?;
    alone(slices, ops, pause_us, || {
        let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `status` is writable and lives during the call.
        if unsafe { libc::fstat(fd, status.as_mut_ptr()) } == 0 { Ok(()) } else { Err(failed("fstat")) }
    })?;
    // SAFETY: `fd` is ours and closed once.
    unsafe { libc::close(fd) };
    Ok(())
}

/// A byte to another process and back through two pipes: what the host takes to wake one and then the other.
fn echo(slices: &str, ops: &str, pause_us: &str) -> Result<(), String> {
    let (mut there, mut back) = ([0; 2], [0; 2]);
    // SAFETY: room for two descriptors each.
    if unsafe { libc::pipe(there.as_mut_ptr()) != 0 || libc::pipe(back.as_mut_ptr()) != 0 } {
        return Err(failed("pipe"));
    }
    // SAFETY: this process has one thread; the child makes plain calls alone, and ends without running what is the
    // parent's.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(failed("fork"));
    }
    let mut byte = 0u8;
    if child == 0 {
        // SAFETY: a byte that is ours, and descriptors of this process.
        unsafe {
            libc::close(there[1]);
            while libc::read(there[0], (&raw mut byte).cast(), 1) == 1
                && libc::write(back[1], (&raw const byte).cast(), 1) == 1
            {}
            libc::_exit(0);
        }
    }
    alone(slices, ops, pause_us, || {
        // SAFETY: as above.
        let whole = unsafe {
            libc::write(there[1], (&raw const byte).cast(), 1) == 1
                && libc::read(back[0], (&raw mut byte).cast(), 1) == 1
        };
        if whole { Ok(()) } else { Err(failed("a byte through a pipe")) }
    })?;
    // SAFETY: ours, closed once; the child ends when nobody writes to it, and is waited for.
    unsafe {
        libc::close(there[1]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    Ok(())
}

/// Create, write 4 KiB, fsync and close `files` files spread over `dirs` directories.
fn create(root: &str, files: &str, dirs: &str) -> Result<(), String> {
    let (files, dirs) = (number(files)?, number(dirs)?);
    for dir in 0..dirs {
        let name = path(&format!("{root}/{dir:03}"))?;
        // SAFETY: a NUL-terminated string that lives during the call.
        if unsafe { libc::mkdir(name.as_ptr(), 0o755) } != 0 {
            return Err(failed("mkdir"));
        }
    }
    let names: Vec<String> = (0..files).map(|i| format!("{root}/{:03}/file{i:06}", i % dirs)).collect();
    let block = noise();
    let begin = Instant::now();
    for name in &names {
        let fd = open(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
        pwrite(fd, &block, 0)?;
        // SAFETY: plain calls on a descriptor of ours.
        if unsafe { libc::fsync(fd) } != 0 || unsafe { libc::close(fd) } != 0 {
            return Err(failed("fsync or close"));
        }
    }
    println!("{:.2}", begin.elapsed().as_nanos() as f64 / files as f64);
    Ok(())
}
