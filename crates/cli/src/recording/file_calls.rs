//! Requests of file calls: what reads, writes or syncs.
//!
//! A file has places on one device by the GiB, in the order of their first use, so that what follows in a file follows
//! on the device, and two files have nothing in common.

use nvmed_tally::{CallKind, File, Record};
use nvmed_trace::{Op, Request};
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// Bits of the bytes that a file gets a place for at once.
const PIECE_BITS: u32 = 30;
/// Pieces that the bytes of a call can lie in: a call moves less than 2 GiB.
const PIECES_OF_A_CALL: usize = 3;
/// Pieces that there can be: 2^50 bytes.
const PIECES_MAX: usize = 1 << 20;
/// Open files whose positions are known, at least: those that were closed are forgotten when there are more.
const CLOSED_MAX: usize = 1 << 16;

/// What is known of files.
#[derive(Default)]
pub(super) struct FileCalls {
    open: HashMap<File, OpenFile>,
    /// Files that were closed; another descriptor of them may be open.
    closed: VecDeque<File>,
    /// By name and GiB.
    pieces: HashMap<(u64, u64), u64>,
}

/// An open file.
#[derive(Clone, Copy)]
struct OpenFile {
    /// The process that has opened it; none once that is gone.
    process: Option<u32>,
    /// Stands for its name.
    name: u64,
    position: u64,
}

impl FileCalls {
    /// The requests that a call is; none for what moves no bytes, and for what failed. Several for one that goes on in
    /// another GiB of its file, whose place is elsewhere.
    pub(super) fn requests(&mut self, call: &Record) -> Vec<Request> {
        if call.errno != 0 || call.result < 0 {
            return Vec::new();
        }
        let done = call.result.cast_unsigned();
        match call.kind {
            CallKind::OPEN | CallKind::INHERIT => {
                let process = Some(call.pid);
                self.open.insert(call.file, OpenFile { process, name: self.name(call), position: 0 });
                Vec::new()
            }
            CallKind::CLOSE => {
                self.close(call.file);
                Vec::new()
            }
            CallKind::LSEEK => {
                self.file(call).position = done;
                Vec::new()
            }
            CallKind::READ | CallKind::PREAD | CallKind::READV => self.transfer(Op::Read, call, done),
            CallKind::WRITE | CallKind::PWRITE | CallKind::WRITEV => self.transfer(Op::Write, call, done),
            CallKind::FSYNC | CallKind::FDATASYNC | CallKind::SYNC | CallKind::SYNC_RANGE => {
                vec![timed(Request::new(Op::Flush, 0, 0, call.at_ns), call)]
            }
            _ => Vec::new(),
        }
    }

    fn transfer(&mut self, op: Op, call: &Record, bytes: u64) -> Vec<Request> {
        // An offset of -1 is the position (preadv2).
        let named = call.offset.and_then(|offset| u64::try_from(offset).ok());
        let file = self.file(call);
        let offset = named.unwrap_or(file.position);
        if named.is_none() {
            file.position = offset.saturating_add(bytes);
        }
        let name = file.name;
        let (mut requests, mut at, end) = (Vec::new(), offset, offset.saturating_add(bytes));
        // A call moves less than 2 GiB, but what it says that it has moved is the program's word.
        while at < end && requests.len() < PIECES_OF_A_CALL {
            let piece_end = ((at >> PIECE_BITS) + 1) << PIECE_BITS;
            let bytes = end.min(piece_end) - at;
            let place = self.place(name, at);
            requests.extend(place.map(|place| timed(Request::new(op, place, bytes, call.at_ns), call)));
            at += bytes;
        }
        requests
    }

    /// Files of processes that are gone, and that nobody has seen closed, are as good as closed.
    pub(super) fn forget_processes(&mut self, is_dead: impl Fn(u32) -> bool) {
        let processes: HashSet<u32> = self.open.values().filter_map(|file| file.process).collect();
        let dead: HashSet<u32> = processes.into_iter().filter(|process| is_dead(*process)).collect();
        let is_of_dead = |file: &OpenFile| file.process.is_some_and(|process| dead.contains(&process));
        let files: Vec<File> =
            self.open.iter().filter(|(_, file)| is_of_dead(file)).map(|(file, _)| *file).collect();
        files.into_iter().for_each(|file| self.close(file));
    }

    /// A file that nobody has seen opened has its number for a name.
    fn file(&mut self, call: &Record) -> &mut OpenFile {
        let new = OpenFile { process: Some(call.pid), name: call.file.into(), position: 0 };
        self.open.entry(call.file).or_insert(new)
    }

    fn name(&self, call: &Record) -> u64 {
        let mut hasher = DefaultHasher::new();
        let directory = self.open.get(&call.directory).filter(|_| call.directory != 0);
        directory.map(|directory| directory.name).hash(&mut hasher);
        call.path.hash(&mut hasher);
        hasher.finish()
    }

    fn close(&mut self, file: File) {
        // A child may have it open still.
        let Some(open) = self.open.get_mut(&file) else { return };
        open.process = None;
        self.closed.push_back(file);
        if self.closed.len() > CLOSED_MAX
            && let Some(oldest) = self.closed.pop_front()
        {
            self.open.remove(&oldest);
        }
    }

    /// Where a byte of a file is on the device; none when there are too many.
    fn place(&mut self, name: u64, offset: u64) -> Option<u64> {
        let count = self.pieces.len();
        let piece = (name, offset >> PIECE_BITS);
        if count == PIECES_MAX && !self.pieces.contains_key(&piece) {
            return None;
        }
        let first = *self.pieces.entry(piece).or_insert((count as u64) << PIECE_BITS);
        Some(first + (offset & ((1 << PIECE_BITS) - 1)))
    }
}

/// A call is served by the thread that makes it, so its service begins when it arrives.
fn timed(request: Request, call: &Record) -> Request {
    let finish_ns = Some(call.at_ns.saturating_add(call.ns));
    Request { start_ns: Some(call.at_ns), finish_ns, ..request }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: CallKind, file: File, result: i64) -> Record {
        Record { at_ns: 100, ns: 7, pid: 1, tid: 1, kind, file, result, ..Record::default() }
    }

    fn open(file: File, path: &str) -> Record {
        Record { path: path.into(), ..call(CallKind::OPEN, file, 3) }
    }

    fn places(calls: &mut FileCalls, records: &[Record]) -> Vec<(Op, u64, u64)> {
        let found = records.iter().flat_map(|record| calls.requests(record));
        found.map(|request| (request.op, request.offset, request.bytes)).collect()
    }

    #[test]
    fn calls_without_an_offset_go_on_where_the_last_one_of_the_open_file_ended() {
        let at = |offset| Record { offset: Some(offset), ..call(CallKind::PWRITE, 1, 10) };
        let found = places(
            &mut FileCalls::default(),
            &[
                open(1, "a"),
                call(CallKind::WRITE, 1, 100),
                call(CallKind::WRITEV, 1, 50),
                at(4096),
                call(CallKind::READ, 1, 6),
                call(CallKind::LSEEK, 1, 1000),
                call(CallKind::READ, 1, 0),
                call(CallKind::READ, 1, 5),
                Record { offset: Some(-1), ..call(CallKind::READV, 1, 5) },
                Record { errno: 5, ..call(CallKind::WRITE, 1, -1) },
                call(CallKind::FSYNC, 1, 0),
            ],
        );
        let want = [
            (Op::Write, 0, 100),
            (Op::Write, 100, 50),
            (Op::Write, 4096, 10),
            (Op::Read, 150, 6),
            (Op::Read, 1000, 5),
            (Op::Read, 1005, 5),
            (Op::Flush, 0, 0),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn a_file_has_the_same_places_each_time_it_is_opened_and_no_other_file_has_them() {
        let mut calls = FileCalls::default();
        let write = |file| call(CallKind::WRITE, file, 8);
        let found = places(
            &mut calls,
            &[
                open(1, "a"),
                open(2, "b"),
                write(1),
                write(2),
                call(CallKind::CLOSE, 1, 0),
                open(3, "a"),
                Record { offset: Some((5 << 30) + 3), ..call(CallKind::PWRITE, 3, 8) },
                write(3),
                // In a directory the same name is another file.
                open(4, "/dir"),
                Record { directory: 4, ..open(5, "a") },
                write(5),
            ],
        );
        let offsets: Vec<u64> = found.iter().map(|(_, offset, _)| *offset).collect();
        assert_eq!(offsets, [0, 1 << 30, (2 << 30) + 3, 0, 3 << 30]);
    }

    #[test]
    fn a_transfer_that_goes_on_in_another_gib_is_a_request_in_each() {
        let at = |file, offset| Record { offset: Some(offset), ..call(CallKind::PWRITE, file, 100) };
        let found = places(
            &mut FileCalls::default(),
            &[open(1, "a"), open(2, "b"), at(1, 0), at(2, 0), at(1, (1 << 30) - 40)],
        );
        let want = [(0, 100), (1 << 30, 100), ((1 << 30) - 40, 40), (2 << 30, 60)]
            .map(|(at, bytes)| (Op::Write, at, bytes));
        assert_eq!(found, want);
    }

    /// Programs that end without closing their files would fill the recorder's memory.
    #[test]
    fn files_of_processes_that_are_gone_are_kept_for_their_children_and_forgotten_when_there_are_many() {
        let mut calls = FileCalls::default();
        let of = |process, record| Record { pid: process, ..record };
        places(&mut calls, &[of(5, open(1, "a")), of(6, open(2, "b")), of(5, call(CallKind::WRITE, 1, 10))]);
        calls.forget_processes(|process| process == 5);
        assert_eq!(places(&mut calls, &[of(7, call(CallKind::WRITE, 1, 10))]), [(Op::Write, 10, 10)]);
        for file in 3..CLOSED_MAX as u32 + 10 {
            calls.requests(&of(7, open(file, "c")));
        }
        calls.forget_processes(|process| process == 7);
        assert_eq!(calls.open.len(), CLOSED_MAX + 1);
        assert!(calls.open.contains_key(&2), "its process lives");
    }
}
