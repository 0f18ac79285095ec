//! File calls counted, timed and recorded, where `nvmed run` was given `--stats`, `--summary` or `--record`.
//!
//! `hook!` puts a probe around each hook whose row says what it counts. Switched off, it is one load and one branch. A
//! hook that is called from another is part of that one. A call counts if it is about a file below `wrap_dir`: the
//! descriptor in its arguments says so, or `find::route` when it has looked at the path.

mod recorded;
pub(crate) mod shape;

use crate::find::{setting, table};
use crate::raw;
use crate::tree::slot;
use crate::watch::shape::{About, Fails, Shape, WORDS};
use core::cell::Cell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use nvmed_sys::QuietFd;
use nvmed_tally::{CallKind, Seat, Tally, now_ns};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};

/// The memory in which this process counts its calls; null if the run counts none.
static TALLY: AtomicPtr<Tally> = AtomicPtr::new(ptr::null_mut());
/// Grows with each fork: a thread that sees another number than its own sits down anew.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// Descriptors whose files have numbers; those above have none.
const NUMBERED: usize = 65536;
/// The number of the file behind a descriptor; 0 is none.
static FILES: [AtomicU32; NUMBERED] = [const { AtomicU32::new(0) }; NUMBERED];

/// What one thread has to do with it. No destructor: it is used until the thread's very end.
struct Thread {
    /// The call that is being counted.
    probe: Cell<*mut Probe>,
    seat: Cell<Option<Seat>>,
    generation: Cell<u32>,
    pid: Cell<u32>,
    tid: Cell<u32>,
    /// Which working directory its records have told.
    directory: Cell<u32>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            probe: Cell::new(ptr::null_mut()),
            seat: Cell::new(None),
            generation: Cell::new(0),
            pid: Cell::new(0),
            tid: Cell::new(0),
            directory: Cell::new(0),
        }
    };
}

/// A call on its way, on the stack of the thread that makes it.
pub(crate) struct Probe {
    shape: &'static Shape,
    words: [usize; WORDS],
    start_ns: u64,
    file: u32,
    /// Whether it is about a file below `wrap_dir`.
    counts: bool,
}

/// An argument or an answer as a word, whatever its type: what is neither number nor pointer is 0.
pub(crate) struct Worded<'a, T>(pub &'a T);

/// For numbers and pointers.
pub(crate) trait AsWord {
    fn as_word(&self) -> usize;
}

impl<T: raw::Word + Copy> AsWord for Worded<'_, T> {
    #[inline(always)]
    fn as_word(&self) -> usize {
        (*self.0).word()
    }
}

/// For the rest: found one reference further out, so only when [`AsWord`] does not fit.
pub(crate) trait AsNothing {
    #[inline(always)]
    fn as_word(&self) -> usize {
        0
    }
}

impl<T> AsNothing for &Worded<'_, T> {}

/// The word of any value.
macro_rules! word_of {
    ($value:expr) => {{
        #[allow(unused_imports)]
        use $crate::watch::{AsNothing as _, AsWord as _};
        (&$crate::watch::Worded(&$value)).as_word()
    }};
}

fn tally() -> Option<&'static Tally> {
    // SAFETY: null, or a box that lives for ever.
    unsafe { TALLY.load(Ordering::Acquire).as_ref() }
}

/// Whether calls are counted.
#[inline(always)]
pub(crate) fn on() -> bool {
    !TALLY.load(Ordering::Relaxed).is_null()
}

/// Joins the memory that the environment names. What cannot be joined is said: counts would miss this process.
pub(crate) fn start(path: Option<&str>) {
    let Some(path) = path else { return };
    let join = || {
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Tally::join(QuietFd::new(fd).as_fd())
    };
    match join() {
        Ok(tally) => {
            TALLY.store(Box::into_raw(Box::new(tally)), Ordering::Release);
            // SAFETY: a function that lives as long as the process.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        }
        Err(errno) => {
            raw::say(format_args!(
                "the file calls of this process are not counted, because the memory for counts at {path} cannot be \
                 joined: {errno}"
            ));
        }
    }
}

unsafe extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Begins to count a call; `false` if it is not one that counts by itself.
#[inline(never)]
pub(crate) fn begin(probe: &mut MaybeUninit<Probe>, shape: &'static Shape, words: &[usize]) -> bool {
    if shape.kind == CallKind::CHDIR {
        recorded::directory_changes();
    }
    THREAD.with(|thread| {
        let word = |at: u8| words.get(usize::from(at)).copied().unwrap_or(usize::MAX);
        let within = is_within(thread, probe);
        if !within && tally().is_some_and(Tally::records) {
            recorded::introduce(thread, shape, words);
        }
        let file = match shape.about {
            About::Descriptor(at) => seen(word(at) as c_int),
            About::Descriptors(one, other) => seen(word(one) as c_int).or_else(|| seen(word(other) as c_int)),
            About::Directory(at) => seen(slot::descriptor_of(word(at) as *mut _)),
            About::Path(_) | About::At(..) | About::Inside => None,
        };
        let by_descriptor = !matches!(shape.about, About::Path(_) | About::At(..) | About::Inside);
        if within {
            if file.is_some() {
                touch();
            }
            return false;
        }
        if file.is_none() && by_descriptor {
            return false;
        }
        let mut kept = [0; WORDS];
        let count = words.len().min(WORDS);
        kept[..count].copy_from_slice(&words[..count]);
        let counts = file.is_some();
        let file = file.unwrap_or(0);
        let probe = probe.write(Probe { shape, words: kept, start_ns: now_ns(), file, counts });
        thread.probe.set(probe);
        true
    })
}

/// Whether the thread is in a call that is being counted. One whose frame lies below the new one's has been left by a
/// jump (out of a signal handler): it is forgotten.
fn is_within(thread: &Thread, fresh: &MaybeUninit<Probe>) -> bool {
    let current = thread.probe.get() as usize;
    current != 0 && current > ptr::from_ref(fresh) as usize
}

/// The number of the file behind a descriptor, if it is one that counts.
#[inline(always)]
fn seen(fd: c_int) -> Option<u32> {
    if table::is_ours(fd) {
        let known = number(fd);
        // Inherited over an exec, or made inside another call.
        return Some(if known == 0 { opened(fd) } else { known });
    }
    Some(number(fd)).filter(|&number| number != 0 && setting::is_hosted())
}

/// Whether a descriptor is of a file below `wrap_dir`.
#[inline(always)]
pub(crate) fn is_watched(fd: c_int) -> bool {
    setting::is_hosted() && number(fd) != 0
}

/// The number of the file behind a descriptor; 0 if it has none.
#[inline(always)]
pub(crate) fn number(fd: c_int) -> u32 {
    FILES.get(fd as u32 as usize).map_or(0, |file| file.load(Ordering::Relaxed))
}

/// Gives the file that was just opened a number.
pub(crate) fn opened(fd: c_int) -> u32 {
    let number = tally().map_or(1, Tally::number_file);
    mark(fd, number);
    number
}

/// Makes the file behind a descriptor the one with this number.
pub(crate) fn mark(fd: c_int, number: u32) {
    if let Some(file) = FILES.get(fd as u32 as usize) {
        file.store(number, Ordering::Relaxed);
    }
}

/// The descriptors from `first` to `last` are no longer of files with numbers.
pub(crate) fn forget(first: u32, last: u32) {
    for file in FILES.iter().take((last as usize).saturating_add(1)).skip(first as usize) {
        file.store(0, Ordering::Relaxed);
    }
}

/// A descriptor that the program has from the one that executed it; only recorded.
pub(crate) fn inherited(fd: c_int, path: &[u8]) {
    opened(fd);
    THREAD.with(|thread| recorded::inherited(thread, fd, path));
}

/// The call that is under way is about a file below `wrap_dir`.
#[inline(always)]
pub(crate) fn touch() {
    if on() {
        THREAD.with(|thread| {
            // SAFETY: null, or the probe of a call that this thread is in.
            if let Some(probe) = unsafe { thread.probe.get().as_mut() } {
                probe.counts = true;
            }
        });
    }
}

/// The program jumps: the call that was under way never ends, and its probe's frame is the program's again.
pub(crate) fn left() {
    if on() {
        THREAD.with(|thread| thread.probe.set(ptr::null_mut()));
    }
}

/// Counts a call that has ended. The program's errno stays.
#[inline(never)]
pub(crate) fn end(probe: &mut MaybeUninit<Probe>, answer: usize) {
    let now = now_ns();
    // SAFETY: `begin` wrote it and answered so.
    let probe = unsafe { probe.assume_init_ref() };
    THREAD.with(|thread| {
        thread.probe.set(ptr::null_mut());
        if let Some(tally) = tally()
            && probe.counts
        {
            finish(thread, tally, probe, answer as isize, now);
        }
    });
}

fn finish(thread: &Thread, tally: &Tally, probe: &Probe, answer: isize, now: u64) {
    let shape = probe.shape;
    let errno = match shape.fails {
        Fails::Minus if answer == -1 => raw::errno(),
        Fails::Null if answer == 0 => raw::errno(),
        Fails::Error => answer as c_int,
        _ => 0,
    };
    let kind = kind_of(shape, &probe.words);
    let moved = if shape.moves && errno == 0 { answer as u64 } else { 0 };
    let seat = seat(thread, tally);
    tally.note(seat, kind, now - probe.start_ns, moved, errno != 0);
    if kind == CallKind::DUP && errno == 0 {
        mark(answer as c_int, probe.file);
    }
    if tally.records() {
        recorded::record((thread, tally, seat), probe, (kind, answer, errno), now);
    }
}

/// fcntl is several calls.
fn kind_of(shape: &Shape, words: &[usize; WORDS]) -> CallKind {
    match shape.command_of(words) {
        Some(libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => CallKind::DUP,
        Some(libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK) => CallKind::LOCK,
        Some(libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK) => CallKind::LOCK,
        _ => shape.kind,
    }
}

/// The thread's seat; a new one in a new thread and in a forked child.
fn seat(thread: &Thread, tally: &Tally) -> Seat {
    let generation = GENERATION.load(Ordering::Relaxed);
    if let Some(seat) = thread.seat.get().filter(|_| thread.generation.get() == generation) {
        return seat;
    }
    let seat = tally.sit();
    thread.seat.set(Some(seat));
    thread.generation.set(generation);
    thread.directory.set(0);
    thread.pid.set(sys!(SYS_getpid) as u32);
    thread.tid.set(sys!(SYS_gettid) as u32);
    if tally.records() {
        let mut name = [0_u8; 16];
        // What the kernel does not tell stays empty.
        sys!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr());
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        tally.name(seat, thread.pid.get(), &name[..len]);
    }
    seat
}
