//! What a call leaves in the record beside its counts: names, flags, places, and what a reader needs to know of the
//! process to understand them.
//!
//! A reader may want to make the calls again (`nvmed trace replay --calls`). So a call at the file's position has that
//! as its offset, whoever else moves it; a descriptor from before an exec is introduced with its file; and a thread
//! tells where its relative paths start before the first call that has one, and again when that has changed.

use super::{Probe, Thread, number, seat, seen, tally};
use crate::edge::caught;
use crate::edge::given::{self, Room};
use crate::find::{cwd, mount, table, walk};
use crate::raw;
use crate::tree::slot;
use crate::watch::shape::{About, Fails, Flagged, Opens, Other, Shape, WORDS};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, Ordering};
use nvmed_tally::{Call, CallKind, File, Seat, Tally, now_ns};
use std::borrow::Cow;

/// Grows with each change of the working directory: a thread that has told an older one tells it anew.
static DIRECTORY: AtomicU32 = AtomicU32::new(1);

/// The working directory is about to change.
pub(super) fn directory_changes() {
    DIRECTORY.fetch_add(1, Ordering::Relaxed);
}

/// Says which file a descriptor of ours is that has no number yet: this process has it from the program that executed
/// it, or opened it in a call that does not count by itself.
pub(super) fn introduce(thread: &Thread, shape: &Shape, words: &[usize]) {
    let descriptor = |at: u8| words.get(usize::from(at)).map_or(-1, |&word| word as c_int);
    let (one, other) = match shape.about {
        About::Descriptor(at) => (descriptor(at), -1),
        About::Descriptors(one, other) => (descriptor(one), descriptor(other)),
        About::At(from, _) => (descriptor(from), -1),
        About::Directory(_) | About::Path(_) | About::Inside => (-1, -1),
    };
    for fd in [one, other] {
        if table::is_ours(fd) && number(fd) == 0 {
            introduce_one(thread, fd);
        }
    }
}

#[cold]
fn introduce_one(thread: &Thread, fd: c_int) {
    super::opened(fd);
    let path =
        caught(|| Ok(crate::find::setting::absolute(&mount::files()?.path_of(&table::pin(fd)?.node)?)));
    // Of a file without a name only its number is known.
    inherited(thread, fd, &path.unwrap_or_default());
}

/// Records that the program has had a descriptor before its first call.
pub(super) fn inherited(thread: &Thread, fd: c_int, path: &[u8]) {
    let Some(tally) = tally().filter(|tally| tally.records()) else { return };
    let seat = seat(thread, tally);
    let call = Call {
        at_ns: now_ns(),
        pid: thread.pid.get(),
        tid: thread.tid.get(),
        kind: CallKind::INHERIT,
        file: number(fd),
        offset: position(fd),
        flags: flags_of_descriptor(fd),
        result: i64::from(fd),
        path,
        ..Call::default()
    };
    tally.record(seat, &call);
}

/// A path of the program's, and where it starts.
struct Name<'a> {
    directory: File,
    path: Cow<'a, [u8]>,
    is_from_working_directory: bool,
}

impl<'a> Name<'a> {
    const NONE: Self = Self { directory: 0, path: Cow::Borrowed(&[]), is_from_working_directory: false };

    fn of(room: &'a mut Room, dirfd: c_int, path: usize) -> Self {
        let path = match path as *const c_char {
            path if path.is_null() => &[][..],
            // What is not there has failed the call, or went behind it.
            path => room.name(path).map_or(&[][..], |path| path.to_bytes()),
        };
        let named = |directory| Self { directory, path: path.into(), is_from_working_directory: false };
        if path.first() == Some(&b'/') {
            return named(0);
        }
        if dirfd == libc::AT_FDCWD {
            return Self { is_from_working_directory: !path.is_empty(), ..named(0) };
        }
        match number(dirfd) {
            // A directory of the host's has no number: the path says where it is.
            0 => match walk::path_of_descriptor(dirfd).filter(|_| !path.is_empty()) {
                Some(directory) => Self { path: [&directory, &b"/"[..], path].concat().into(), ..named(0) },
                None => named(0),
            },
            directory => named(directory),
        }
    }
}

#[cold]
pub(super) fn record(
    (thread, tally, seat): (&Thread, &Tally, Seat),
    probe: &Probe,
    (kind, answer, errno): (CallKind, isize, c_int),
    now: u64,
) {
    let (shape, words) = (probe.shape, &probe.words);
    let word = |at: u8| words[usize::from(at)];
    let (mut room, mut other_room) = (Room::new(), Room::new());
    let name = match shape.about {
        About::Path(at) => Name::of(&mut room, libc::AT_FDCWD, word(at)),
        About::At(from, at) => Name::of(&mut room, word(from) as c_int, word(at)),
        _ => Name::NONE,
    };
    let other = match shape.other {
        Other::Path(at) => Name::of(&mut other_room, libc::AT_FDCWD, word(at)),
        Other::At(from, at) => Name::of(&mut other_room, word(from) as c_int, word(at)),
        Other::Nothing | Other::Copy { .. } => Name::NONE,
    };
    // A change of the directory was one already.
    if (name.is_from_working_directory || other.is_from_working_directory) && kind != CallKind::CHDIR {
        tell_directory((thread, tally, seat), probe.start_ns);
    }
    let opened = if errno == 0 { opened_by(shape, answer) } else { 0 };
    let points = shape.fails == Fails::Null || matches!(shape.about, About::Directory(_));
    let flags = flags_of(shape, words);
    let mut call = Call {
        at_ns: probe.start_ns,
        ns: now - probe.start_ns,
        pid: thread.pid.get(),
        tid: thread.tid.get(),
        kind,
        file: if opened != 0 { opened } else { probe.file },
        directory: name.directory,
        offset: began_at(shape, words, kind, if errno == 0 { answer } else { -1 }).or(shape.offset_of(words)),
        bytes: shape.bytes_of(words),
        // An address means nothing to a reader.
        result: if points { i64::from(answer != 0) } else { answer as i64 },
        errno,
        path: &*name.path,
        flags,
        mode: mode_of(shape, words, flags),
        to_directory: other.directory,
        to: &*other.path,
        ..Call::default()
    };
    if let About::At(..) = shape.about
        && call.path.is_empty()
        && call.file == 0
    {
        // AT_EMPTY_PATH: it is about the descriptor itself.
        (call.file, call.directory) = (call.directory, 0);
    }
    if let Other::Copy { from, to, from_at, to_at } = shape.other {
        let at = |at: u8| words.get(usize::from(at)).map_or(0, |&word| word);
        let (from, to) = (word(from) as c_int, word(to) as c_int);
        let done = if errno == 0 { answer as i64 } else { 0 };
        (call.file, call.offset) = (seen(from).unwrap_or(0), copied_at(from, at(from_at), done));
        (call.to_file, call.to_offset) = (seen(to).unwrap_or(0), copied_at(to, at(to_at), done));
    }
    tally.record(seat, &call);
}

/// Says where relative paths of this thread start, if that has changed since it was said.
fn tell_directory((thread, tally, seat): (&Thread, &Tally, Seat), at_ns: u64) {
    let present = DIRECTORY.load(Ordering::Relaxed);
    if thread.directory.replace(present) == present {
        return;
    }
    let ours = caught(cwd::path).unwrap_or_default();
    let Some(path) = ours.or_else(walk::kernel_cwd) else { return };
    let (pid, tid) = (thread.pid.get(), thread.tid.get());
    tally.record(seat, &Call { at_ns, pid, tid, kind: CallKind::CWD, path: &path[..], ..Call::default() });
}

/// The number of the file that a call has opened; 0 is none.
fn opened_by(shape: &Shape, answer: isize) -> File {
    match shape.opens {
        Opens::Nothing => 0,
        Opens::Descriptor => seen(answer as c_int).unwrap_or(0),
        // SAFETY: libc's stream, or ours, which was just made.
        Opens::Stream => seen(unsafe { raw::descriptor_of(answer as *mut _) }).unwrap_or(0),
        Opens::Directory => seen(slot::descriptor_of(answer as *mut _)).unwrap_or(0),
    }
}

fn flags_of(shape: &Shape, words: &[usize; WORDS]) -> Option<u32> {
    let word = |at: u8| words[usize::from(at)];
    match shape.flagged {
        Flagged::No => None,
        Flagged::Word(at) => Some(word(at) as u32),
        Flagged::Always(flags) => Some(flags),
        Flagged::Stream(at) => {
            Some(flags_of_stream(Room::new().name(word(at) as *const c_char).ok()?.to_bytes()))
        }
        Flagged::Behind(at) => Some(given::get(word(at) as *const u64).ok()? as u32),
    }
}

/// What fopen opens with for a mode (fopen(3), and glibc's letters).
fn flags_of_stream(mode: &[u8]) -> u32 {
    // What is behind a comma is an encoding.
    let mode = mode.split(|&letter| letter == b',').next().unwrap_or_default();
    let (alone, more) = match mode.first() {
        Some(b'w') => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        Some(b'a') => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => (libc::O_RDONLY, 0),
    };
    let access = if mode.contains(&b'+') { libc::O_RDWR } else { alone };
    let exclusive = if mode.contains(&b'x') { libc::O_EXCL } else { 0 };
    (access | more | exclusive) as u32
}

/// Permissions, where the call looks at them: open does only when it makes a file.
fn mode_of(shape: &Shape, words: &[usize; WORDS], flags: Option<u32>) -> Option<u32> {
    let creates = flags.is_some_and(|flags| {
        let flags = flags as c_int;
        flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE
    });
    match shape.flagged {
        _ if shape.kind == CallKind::OPEN && !creates => None,
        Flagged::Stream(_) => Some(0o666),
        Flagged::Behind(at) => {
            given::get((words[usize::from(at)] as *const u64).wrapping_add(1)).ok().map(|mode| mode as u32)
        }
        _ => shape.mode_of(words),
    }
}

/// Where a call began that read or wrote `done` bytes at the file's position: nobody else can tell, since other
/// processes may have moved it, or the file's end.
fn began_at(shape: &Shape, words: &[usize; WORDS], kind: CallKind, done: isize) -> Option<i64> {
    let About::Descriptor(at) = shape.about else { return None };
    let moves_position = shape.offset_of(words).is_none_or(|offset| offset == -1);
    let moves_bytes =
        matches!(kind, CallKind::READ | CallKind::WRITE | CallKind::READV | CallKind::WRITEV) && done >= 0;
    if !moves_bytes || !moves_position {
        return None;
    }
    let end = position(words[usize::from(at)] as c_int)?;
    end.checked_sub(done as i64).filter(|start| *start >= 0)
}

/// Where a copy of `done` bytes began in one of its files: before the offset behind `at`, or before the position.
fn copied_at(fd: c_int, at: usize, done: i64) -> Option<i64> {
    seen(fd)?;
    let end = if at == 0 { position(fd)? } else { given::get(at as *const i64).ok()? };
    end.checked_sub(done).filter(|start| *start >= 0)
}

/// The position of a file that has one.
fn position(fd: c_int) -> Option<i64> {
    if table::is_ours(fd) {
        let pinned = table::pin(fd).ok()?;
        return i64::try_from(pinned.file().ok()?.position().ok()?).ok();
    }
    let position = sys!(SYS_lseek, fd, 0, libc::SEEK_CUR) as i64;
    (position >= 0).then_some(position)
}

fn flags_of_descriptor(fd: c_int) -> Option<u32> {
    if table::is_ours(fd) {
        let pinned = table::pin(fd).ok()?;
        return Some(pinned.file().ok()?.flags().0);
    }
    u32::try_from(sys!(SYS_fcntl, fd, libc::F_GETFL)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_streams_are_flags_of_open() {
        let of = |mode: &str| flags_of_stream(mode.as_bytes()) as c_int;
        assert_eq!(of("r"), libc::O_RDONLY);
        assert_eq!(of("rb+"), libc::O_RDWR);
        assert_eq!(of("wx"), libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL);
        assert_eq!(of("a+,ccs=x"), libc::O_RDWR | libc::O_CREAT | libc::O_APPEND);
    }
}
