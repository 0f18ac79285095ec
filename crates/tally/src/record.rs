//! Calls one by one: how they lie in a ring, and the line of text that each becomes.
//!
//! A record in the ring is 96 bytes and two paths, padded to whole words: its length u32, kind u8, which of flags and
//! mode are there u8, bytes of path u16; then the clock, nanoseconds, process and thread, file and directory, offset,
//! bytes asked for, result, errno; bytes of the second path u16, flags, mode, the second file, its directory and its
//! offset. The writer is one thread, the reader another process: what it reads is copied first and then checked.

use crate::call_kind::CallKind;
use crate::layout as at;
use nvmed_sys::Mapping;
use std::fmt::Write;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a record before its path.
const HEAD_BYTES: usize = 96;
/// Longer paths are cut: the kernel's `PATH_MAX`.
const PATH_BYTES_MAX: usize = 4096;
/// Stands for a number that a call does not have.
const NONE: i64 = i64::MIN;
/// Which of a record's numbers are there.
const HAS_FLAGS: u8 = 1;
const HAS_MODE: u8 = 2;

/// Which open file a call is about: the number that it got when it was opened, 0 is none.
pub type File = u32;

/// One call. Its path is borrowed where the call is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<P> {
    /// The monotonic clock when it began, nanoseconds.
    pub at_ns: u64,
    /// How long it took, nanoseconds.
    pub ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// What kind of call.
    pub kind: CallKind,
    /// The open file that it is about, or that it opened.
    pub file: File,
    /// The open directory where a relative path starts.
    pub directory: File,
    /// The file offset that the call names.
    pub offset: Option<i64>,
    /// Bytes that it asked for.
    pub bytes: Option<i64>,
    /// What it answered.
    pub result: i64,
    /// Why it failed; 0 if it did not.
    pub errno: i32,
    /// The path that it names, as the program gave it.
    pub path: P,
    /// Flags that it was given: of open, rename, unlink, fallocate; of lseek, from where.
    pub flags: Option<u32>,
    /// Permissions that it was given.
    pub mode: Option<u32>,
    /// The other open file that it is about: what a copy goes to.
    pub to_file: File,
    /// The open directory where the other path starts, if that is relative.
    pub to_directory: File,
    /// The file offset in the other file.
    pub to_offset: Option<i64>,
    /// The other path: the new name of rename and link, the target of a symbolic link.
    pub to: P,
}

impl<P: Default> Default for Call<P> {
    fn default() -> Self {
        Self {
            at_ns: 0,
            ns: 0,
            pid: 0,
            tid: 0,
            kind: CallKind::OTHER,
            file: 0,
            directory: 0,
            offset: None,
            bytes: None,
            result: 0,
            errno: 0,
            path: P::default(),
            flags: None,
            mode: None,
            to_file: 0,
            to_directory: 0,
            to_offset: None,
            to: P::default(),
        }
    }
}

/// One call, as it is read back.
pub type Record = Call<Vec<u8>>;

impl Record {
    /// The names of a line's columns, separated by tabs.
    pub const COLUMNS: &'static str =
        "time_ns\tpid\ttid\tcall\tfile\tpath\toffset\tbytes\tresult\tns\tflags\tmode\tto\tto_offset";

    /// The line of text, without a newline: columns separated by tabs, `-` where a call has none. Times count from
    /// `start_ns`; a call that failed has its errno, negative, as its result.
    #[must_use]
    pub fn line(&self, start_ns: u64) -> String {
        let file = |file: File| if file == 0 { "-".to_owned() } else { format!("#{file}") };
        let number = |value: Option<i64>| value.map_or("-".to_owned(), |value| value.to_string());
        let to = if self.to_file == 0 { shown_path(self.to_directory, &self.to) } else { file(self.to_file) };
        let result = if self.errno == 0 { self.result } else { -i64::from(self.errno) };
        format!(
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{result}\t{}\t{}\t{}\t{to}\t{}",
            self.at_ns.saturating_sub(start_ns),
            self.pid,
            self.tid,
            self.kind.name(),
            file(self.file),
            shown_path(self.directory, &self.path),
            number(self.offset),
            number(self.bytes),
            self.ns,
            self.flags.map_or("-".to_owned(), |flags| format!("{flags:#x}")),
            self.mode.map_or("-".to_owned(), |mode| format!("{mode:#o}")),
            number(self.to_offset),
        )
    }

    /// A path as a line has it: `-`, or in quotes, with `"`, `\`, control bytes and those that are not ASCII as `\xNN`.
    #[must_use]
    pub fn shown(path: &[u8]) -> String {
        shown_path(0, path)
    }
}

fn shown_path(directory: File, path: &[u8]) -> String {
    if path.is_empty() {
        return "-".to_owned();
    }
    let mut text = String::with_capacity(path.len() + 2);
    if directory != 0 {
        // A String takes all.
        let _ = write!(text, "#{directory}/");
    }
    text.push('"');
    for &byte in path {
        match byte {
            b' '..=b'~' if byte != b'"' && byte != b'\\' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push('"');
    text
}

fn span(paths_bytes: usize) -> usize {
    HEAD_BYTES + paths_bytes.next_multiple_of(8)
}

/// Puts one record into the ring at `ring`, by its one writer.
#[inline(never)]
pub(crate) fn put(memory: &Mapping, ring: usize, call: &Call<&[u8]>) {
    let cut = |path: &'_ [u8]| path.len().min(PATH_BYTES_MAX);
    let (path, to) = (&call.path[..cut(call.path)], &call.to[..cut(call.to)]);
    let bytes = span(path.len() + to.len());
    let written = memory.u64(ring + at::WRITTEN_AT).load(Relaxed);
    let read = memory.u64(ring + at::READ_AT).load(Acquire);
    if written.wrapping_sub(read) + bytes as u64 > at::RING_BYTES as u64 {
        let lost = memory.u64(ring + at::RING_LOST_AT);
        lost.store(lost.load(Relaxed) + 1, Relaxed);
        return;
    }
    let head = encode(call, bytes, (path.len(), to.len()));
    circle(written, HEAD_BYTES, |from, offset, len| memory.write(ring + offset, &head[from..from + len]));
    let after = written + HEAD_BYTES as u64;
    circle(after, path.len(), |from, offset, len| memory.write(ring + offset, &path[from..from + len]));
    let after = after + path.len() as u64;
    circle(after, to.len(), |from, offset, len| memory.write(ring + offset, &to[from..from + len]));
    memory.u64(ring + at::WRITTEN_AT).store(written + bytes as u64, Release);
}

/// The pieces of `len` bytes from the place `position` of a circle: where each begins among the bytes, its offset in
/// the ring, its length.
fn circle(position: u64, len: usize, mut each: impl FnMut(usize, usize, usize)) {
    let start = position as usize % at::RING_BYTES;
    let first = len.min(at::RING_BYTES - start);
    each(0, at::RECORDS_AT + start, first);
    if first < len {
        each(first, at::RECORDS_AT, len - first);
    }
}

fn encode(call: &Call<&[u8]>, bytes: usize, (path_bytes, to_bytes): (usize, usize)) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    let mut put = |from: usize, bytes: &[u8]| head[from..from + bytes.len()].copy_from_slice(bytes);
    put(0, &(bytes as u32).to_ne_bytes());
    let has = |bit: u8, is: bool| if is { bit } else { 0 };
    let has = has(HAS_FLAGS, call.flags.is_some()) | has(HAS_MODE, call.mode.is_some());
    put(4, &[call.kind.index() as u8, has]);
    put(6, &(path_bytes as u16).to_ne_bytes());
    put(8, &call.at_ns.to_ne_bytes());
    put(16, &call.ns.to_ne_bytes());
    put(24, &call.pid.to_ne_bytes());
    put(28, &call.tid.to_ne_bytes());
    put(32, &call.file.to_ne_bytes());
    put(36, &call.directory.to_ne_bytes());
    put(40, &call.offset.unwrap_or(NONE).to_ne_bytes());
    put(48, &call.bytes.unwrap_or(NONE).to_ne_bytes());
    put(56, &call.result.to_ne_bytes());
    put(64, &call.errno.to_ne_bytes());
    put(68, &(to_bytes as u16).to_ne_bytes());
    put(72, &call.flags.unwrap_or(0).to_ne_bytes());
    put(76, &call.mode.unwrap_or(0).to_ne_bytes());
    put(80, &call.to_file.to_ne_bytes());
    put(84, &call.to_directory.to_ne_bytes());
    put(88, &call.to_offset.unwrap_or(NONE).to_ne_bytes());
    head
}

/// Takes all records out of the ring at `ring`; answers how many. What is no record ends what the ring holds now.
pub(crate) fn take_all(memory: &Mapping, ring: usize, each: &mut dyn FnMut(&Record)) -> usize {
    let written = memory.u64(ring + at::WRITTEN_AT).load(Acquire);
    let mut read = memory.u64(ring + at::READ_AT).load(Relaxed);
    let mut taken = 0;
    while read != written {
        let mut head = [0; HEAD_BYTES];
        circle(read, HEAD_BYTES, |from, offset, len| memory.read(ring + offset, &mut head[from..from + len]));
        let waiting = written.wrapping_sub(read);
        let whole = |bytes: usize| bytes as u64 <= waiting && waiting <= at::RING_BYTES as u64;
        let Some((mut record, bytes)) = decode(&head).filter(|(_, bytes)| whole(*bytes)) else {
            read = written;
            break;
        };
        let mut after = read + HEAD_BYTES as u64;
        for path in [&mut record.path, &mut record.to] {
            circle(after, path.len(), |from, offset, len| {
                memory.read(ring + offset, &mut path[from..from + len])
            });
            after += path.len() as u64;
        }
        each(&record);
        taken += 1;
        read = read.wrapping_add(bytes as u64);
        // Room for the writer as soon as there is some.
        memory.u64(ring + at::READ_AT).store(read, Release);
    }
    memory.u64(ring + at::READ_AT).store(read, Release);
    taken
}

/// A record with paths of the right lengths, and its span; `None` for what a writer of ours cannot have written.
fn decode(head: &[u8; HEAD_BYTES]) -> Option<(Record, usize)> {
    let u32_at =
        |from: usize| u32::from_ne_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
    let u64_at = |from: usize| u64::from(u32_at(from)) | u64::from(u32_at(from + 4)) << 32;
    let i64_at = |from| u64_at(from).cast_signed();
    let option = |from| Some(i64_at(from)).filter(|value| *value != NONE);
    let u16_at = |from: usize| usize::from(u16::from_ne_bytes([head[from], head[from + 1]]));
    let (path_bytes, to_bytes) = (u16_at(6), u16_at(68));
    let bytes = u32_at(0) as usize;
    if path_bytes.max(to_bytes) > PATH_BYTES_MAX || bytes != span(path_bytes + to_bytes) {
        return None;
    }
    let record = Record {
        kind: CallKind::of(usize::from(head[4])),
        at_ns: u64_at(8),
        ns: u64_at(16),
        pid: u32_at(24),
        tid: u32_at(28),
        file: u32_at(32),
        directory: u32_at(36),
        offset: option(40),
        bytes: option(48),
        result: i64_at(56),
        errno: u32_at(64).cast_signed(),
        path: vec![0; path_bytes],
        flags: (head[5] & HAS_FLAGS != 0).then(|| u32_at(72)),
        mode: (head[5] & HAS_MODE != 0).then(|| u32_at(76)),
        to_file: u32_at(80),
        to_directory: u32_at(84),
        to_offset: option(88),
        to: vec![0; to_bytes],
    };
    Some((record, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;
    use proptest::prelude::*;

    #[test]
    fn a_line_has_a_column_for_each_name() {
        let call = Call {
            at_ns: 1500,
            ns: 812,
            pid: 7,
            tid: 8,
            kind: CallKind::OPEN,
            file: 3,
            directory: 2,
            bytes: Some(4096),
            result: 5,
            path: b"a \"b\"\xff".as_slice(),
            flags: Some(0x241),
            mode: Some(0o644),
            ..Call::default()
        };
        let (record, _) = decode(&encode(&call, span(call.path.len()), (call.path.len(), 0))).unwrap();
        let record = Record { path: call.path.to_vec(), ..record };
        let line = "500\t7\t8\topen\t#3\t#2/\"a \\x22b\\x22\\xff\"\t-\t4096\t5\t812\t0x241\t0o644\t-\t-";
        assert_eq!(record.line(1000), line);
        assert_eq!(record.line(0).split('\t').count(), Record::COLUMNS.split('\t').count());
        let failed = Record { errno: 2, file: 0, path: Vec::new(), flags: None, mode: None, ..record };
        assert_eq!(failed.line(0), "1500\t7\t8\topen\t-\t-\t-\t4096\t-2\t812\t-\t-\t-\t-");
    }

    #[test]
    fn both_paths_and_files_of_a_call_come_out_of_the_ring() {
        let memory = Mapping::anonymous(at::RING_SPAN, Pages::Base).unwrap();
        let renamed = Call {
            kind: CallKind::RENAME,
            path: b"old".as_slice(),
            to: b"new name".as_slice(),
            to_directory: 9,
            ..Call::default()
        };
        let copied =
            Call { kind: CallKind::COPY, file: 3, to_file: 4, to_offset: Some(70), ..Call::default() };
        // As often as the ring is gone round, so that a path lies across its end, too.
        let mut lines = Vec::new();
        for _ in 0..20_000 {
            put(&memory, 0, &renamed);
            put(&memory, 0, &copied);
            take_all(&memory, 0, &mut |record| {
                let line = record.line(0);
                let columns: Vec<&str> = line.split('\t').collect();
                lines.push([4, 5, 12, 13].map(|column| columns[column].to_owned()));
            });
        }
        assert_eq!(lines.len(), 40_000);
        assert!(lines.iter().step_by(2).all(|line| *line == ["-", "\"old\"", "#9/\"new name\"", "-"]));
        assert!(lines.iter().skip(1).step_by(2).all(|line| *line == ["#3", "-", "#4", "70"]));
    }

    proptest! {
        /// A program can write anything into its ring: the reader neither panics nor reads on for ever.
        #[test]
        fn a_ring_of_any_bytes_is_read_without_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            (written, read) in (any::<u64>(), any::<u64>()),
        ) {
            let memory = Mapping::anonymous(at::RING_SPAN, Pages::Base).unwrap();
            memory.write(at::RECORDS_AT, &bytes);
            // The reader's own word is its own; the writer's is anything.
            let read = read % (1 << 40);
            memory.u64(at::READ_AT).store(read, Relaxed);
            memory.u64(at::WRITTEN_AT).store(written, Relaxed);
            take_all(&memory, 0, &mut |_| ());
            prop_assert_eq!(memory.u64(at::READ_AT).load(Relaxed), written);
        }
    }
}
