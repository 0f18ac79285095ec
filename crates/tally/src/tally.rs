//! The memory in which calls are counted, and the seats of the threads that count.

use crate::call_kind::CallKind;
use crate::layout::{self as at, Nanoseconds};
use crate::record::{self, Call, Record};
use crate::row::{Row, Sum};
use nvmed_sys::{Mapping, Pages, monotonic_ns};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Where one thread counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    number: u16,
    /// No other thread counts there, so that a load and a store are enough.
    alone: bool,
}

/// Counters of all kinds of calls, for any number of threads and processes.
#[derive(Debug)]
pub struct Tally {
    memory: Mapping,
    records: bool,
}

impl Tally {
    /// A tally of this process alone.
    ///
    /// # Errors
    /// The host's, when it has no memory.
    pub fn private() -> Result<Self, Errno> {
        let tally = Self { memory: Mapping::anonymous(at::bytes(false), Pages::Base)?, records: false };
        tally.begin();
        Ok(tally)
    }

    /// A tally in memory that other processes can join by the descriptor; with `records`, calls can be recorded too.
    ///
    /// # Errors
    /// The host's, when it has no memory.
    pub fn create(records: bool) -> Result<(Self, OwnedFd), Errno> {
        let fd = rustix::fs::memfd_create("nvmed-tally", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, at::bytes(records) as u64)?;
        let tally =
            Self { memory: Mapping::shared(fd.as_fd(), 0, at::bytes(records), Pages::Base)?, records };
        tally.begin();
        Ok((tally, fd))
    }

    /// Joins a tally that another process has made.
    ///
    /// # Errors
    /// `EPROTO` when the memory is none, or another version's; the host's.
    pub fn join(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let bytes = rustix::fs::fstat(fd)?.st_size;
        let records = bytes == at::bytes(true) as i64;
        if !records && bytes != at::bytes(false) as i64 {
            return Err(Errno::PROTO);
        }
        let tally = Self { memory: Mapping::shared(fd, 0, at::bytes(records), Pages::Base)?, records };
        let head = (tally.word(at::MAGIC_AT), tally.version(), tally.records());
        if head != (at::MAGIC, (at::VERSION, CallKind::COUNT as u32), records) {
            return Err(Errno::PROTO);
        }
        Ok(tally)
    }

    fn begin(&self) {
        self.memory.u32(at::VERSION_AT).store(at::VERSION, Relaxed);
        self.memory.u32(at::KINDS_AT).store(CallKind::COUNT as u32, Relaxed);
        let ring = if self.records { at::RING_BYTES as u64 } else { 0 };
        self.memory.u64(at::RING_BYTES_AT).store(ring, Relaxed);
        self.memory.u64(at::START_AT).store(monotonic_ns(), Relaxed);
        self.memory.u64(at::MAGIC_AT).store(at::MAGIC, Release);
    }

    fn word(&self, offset: usize) -> u64 {
        self.memory.u64(offset).load(Acquire)
    }

    fn version(&self) -> (u32, u32) {
        let half = |offset| self.memory.u32(offset).load(Relaxed);
        (half(at::VERSION_AT), half(at::KINDS_AT))
    }

    /// Whether calls are to be recorded.
    #[inline]
    #[must_use]
    pub fn records(&self) -> bool {
        self.records && self.word(at::RING_BYTES_AT) != 0
    }

    /// The monotonic clock when the tally was made, nanoseconds.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.word(at::START_AT)
    }

    /// A number for a file that was opened, from 1 on, unique among all who share the tally.
    #[must_use]
    pub fn number_file(&self) -> u32 {
        (self.memory.u64(at::FILES_AT).fetch_add(1, Relaxed) as u32).wrapping_add(1).max(1)
    }

    /// A seat for the calling thread: the one that it had before an exec, a free one, that of a thread that is dead,
    /// or the one that threads share. A thread that goes on counting as another (a forked child) takes a new one.
    #[must_use]
    pub fn sit(&self) -> Seat {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let owner = |seat| self.memory.u64(at::seat_at(seat) + at::OWNER_AT);
        let seats = || 0..at::SHARED_SEAT;
        let mine = seats().find(|&seat| owner(seat).load(Acquire) == own);
        let take = |seat: usize, from| owner(seat).compare_exchange(from, own, AcqRel, Relaxed).is_ok();
        let free = || seats().find(|&seat| owner(seat).load(Relaxed) == 0 && take(seat, 0));
        let left = || {
            seats().find(|&seat| {
                let before = owner(seat).load(Relaxed);
                !lives(before) && take(seat, before)
            })
        };
        let found = mine.or_else(free).or_else(left);
        let seat = found.unwrap_or(at::SHARED_SEAT);
        self.memory.u64(at::seat_at(seat) + at::USED_AT).store(1, Relaxed);
        Seat { number: seat as u16, alone: found.is_some() }
    }

    /// Says whose seat it is: a process, and the name of its program, of which 16 bytes are kept.
    pub fn name(&self, seat: Seat, process: u32, name: &[u8]) {
        if !seat.alone {
            return;
        }
        let base = at::seat_at(usize::from(seat.number));
        let mut bytes = [0; at::NAME_BYTES];
        let len = name.len().min(bytes.len());
        bytes[..len].copy_from_slice(&name[..len]);
        self.memory.u64(base + at::PROCESS_AT).store(0, Release);
        self.memory.write(base + at::NAME_AT, &bytes);
        self.memory.u64(base + at::PROCESS_AT).store(process.into(), Release);
    }

    /// The name of a process that has a seat, or had one that nobody has taken since; as it is said, whatever its
    /// letters.
    #[must_use]
    pub fn name_of(&self, process: u32) -> Option<String> {
        let of_seat = |seat: &usize| self.word(at::seat_at(*seat) + at::PROCESS_AT) == u64::from(process);
        let seat = (0..at::SHARED_SEAT).find(of_seat)?;
        let mut bytes = [0; at::NAME_BYTES];
        self.memory.read(at::seat_at(seat) + at::NAME_AT, &mut bytes);
        let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let is_still = of_seat(&seat) && !name.is_empty();
        is_still.then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// The thread counts no more on this seat.
    pub fn leave(&self, seat: Seat) {
        if seat.alone {
            self.memory.u64(at::seat_at(usize::from(seat.number)) + at::OWNER_AT).store(0, Release);
        }
    }

    /// Counts one call.
    #[inline]
    pub fn note(&self, seat: Seat, kind: CallKind, ns: u64, bytes: u64, failed: bool) {
        let base = at::seat_at(usize::from(seat.number)) + at::COUNTERS_AT + kind.index() * at::KIND_BYTES;
        self.add(seat, base + at::BUCKETS_AT + Nanoseconds::of(ns) * 8, 1);
        self.add(seat, base + at::NS_AT, ns);
        if bytes > 0 {
            self.add(seat, base + at::BYTES_AT, bytes);
        }
        if failed {
            self.add(seat, base + at::ERRORS_AT, 1);
        }
        let longest = self.memory.u64(base + at::LONGEST_AT);
        if ns > longest.load(Relaxed) {
            // On the shared seat another's may be lost, which was about as long.
            longest.store(ns, Relaxed);
        }
    }

    #[inline]
    fn add(&self, seat: Seat, offset: usize, by: u64) {
        let word = self.memory.u64(offset);
        if seat.alone {
            word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
        } else {
            word.fetch_add(by, Relaxed);
        }
    }

    /// Records one call, if calls are recorded. Where the ring is full, or the seat is the one that threads share, it
    /// is lost, and counted as such.
    #[inline]
    pub fn record(&self, seat: Seat, call: &Call<&[u8]>) {
        if !self.records {
            return;
        }
        if seat.alone {
            record::put(&self.memory, at::ring_at(usize::from(seat.number)), call);
        } else {
            self.memory.u64(at::LOST_AT).fetch_add(1, Relaxed);
        }
    }

    /// Hands out the records that wait, each thread's in order. One reader at a time; answers how many they were.
    pub fn drain(&self, each: &mut dyn FnMut(&Record)) -> usize {
        if !self.records {
            return 0;
        }
        (0..at::SHARED_SEAT).map(|seat| record::take_all(&self.memory, at::ring_at(seat), each)).sum()
    }

    /// Calls that were to be recorded and found no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        if !self.records {
            return 0;
        }
        let ring = |seat| self.word(at::ring_at(seat) + at::RING_LOST_AT);
        self.word(at::LOST_AT) + (0..at::SHARED_SEAT).map(ring).sum::<u64>()
    }

    /// The counts so far, of kinds that have any.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let rows = CallKind::ALL.iter().map(|&kind| Row { kind, sum: self.sum(kind) });
        rows.filter(|row| row.sum.count() > 0).collect()
    }

    fn sum(&self, kind: CallKind) -> Sum {
        let mut sum = Sum::default();
        // To look at a seat that nobody had would make its pages.
        let used = |seat: &usize| self.word(at::seat_at(*seat) + at::USED_AT) != 0;
        for seat in (0..at::SEATS).filter(used) {
            let base = at::seat_at(seat) + at::COUNTERS_AT + kind.index() * at::KIND_BYTES;
            let word = |offset| self.memory.u64(base + offset).load(Relaxed);
            sum.errors += word(at::ERRORS_AT);
            sum.bytes += word(at::BYTES_AT);
            sum.ns += word(at::NS_AT);
            sum.max_ns = sum.max_ns.max(word(at::LONGEST_AT));
            for (bucket, count) in sum.counts.iter_mut().enumerate() {
                *count += word(at::BUCKETS_AT + bucket * 8);
            }
        }
        sum
    }
}

/// Whether a thread lives: one whose number was given to another thread since is taken for it.
fn lives(thread: u64) -> bool {
    let Some(thread) = i32::try_from(thread).ok().and_then(Pid::from_raw) else { return false };
    rustix::process::test_kill_process(thread) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(tally: &Tally, kind: CallKind) -> u64 {
        tally.rows().iter().find(|row| row.kind == kind).map_or(0, |row| row.sum.count())
    }

    #[test]
    fn what_is_noted_is_in_the_rows() {
        let tally = Tally::private().unwrap();
        let seat = tally.sit();
        tally.note(seat, CallKind::PREAD, 700, 4096, false);
        tally.note(seat, CallKind::PREAD, 90_000, 0, true);
        tally.note(seat, CallKind::FSYNC, 5, 0, false);
        let rows = tally.rows();
        assert_eq!(rows.iter().map(|row| row.kind).collect::<Vec<_>>(), [CallKind::PREAD, CallKind::FSYNC]);
        let sum = &rows[0].sum;
        assert_eq!((sum.count(), sum.errors, sum.bytes, sum.ns, sum.max_ns), (2, 1, 4096, 90_700, 90_000));
        assert_eq!(sum.percentile_ns(50.0), 703);
    }

    #[test]
    fn threads_and_joined_processes_count_into_one_table_and_none_is_lost() {
        let (tally, fd) = Tally::create(false).unwrap();
        let joined = Tally::join(fd.as_fd()).unwrap();
        // More threads than seats, so that some share one.
        let (threads, calls) = (at::SEATS + 8, 2000);
        let together = std::sync::Barrier::new(threads);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (tally, together) = (if thread % 2 == 0 { &tally } else { &joined }, &together);
                scope.spawn(move || {
                    let seat = tally.sit();
                    together.wait();
                    (0..calls).for_each(|_| tally.note(seat, CallKind::WRITE, 100, 1, false));
                });
            }
        });
        let rows = tally.rows();
        let want = (threads * calls) as u64;
        assert_eq!((rows[0].sum.count(), rows[0].sum.bytes, rows[0].sum.ns), (want, want, want * 100));
    }

    #[test]
    fn a_seat_is_kept_by_its_thread_and_taken_over_from_the_dead() {
        let tally = Tally::private().unwrap();
        let first = tally.sit();
        assert_eq!(tally.sit(), first);
        let others: Vec<Seat> = (0..at::SEATS * 2)
            .map(|_| std::thread::scope(|scope| scope.spawn(|| tally.sit()).join().unwrap()))
            .collect();
        assert!(others.iter().all(|seat| seat.alone && *seat != first), "{others:?}");
    }

    #[test]
    fn a_process_has_the_name_that_its_last_thread_said() {
        let tally = Tally::private().unwrap();
        assert_eq!(tally.name_of(7), None);
        tally.name(tally.sit(), 7, b"sh");
        tally.name(tally.sit(), 7, b"a-name-of-more-than-16-bytes");
        assert_eq!(tally.name_of(7).as_deref(), Some("a-name-of-more-t"));
        assert_eq!(tally.name_of(8), None);
    }

    #[test]
    fn memory_that_is_no_tally_is_refused() {
        let fd = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, at::bytes(false) as u64).unwrap();
        assert_eq!(Tally::join(fd.as_fd()).unwrap_err(), Errno::PROTO);
        rustix::fs::ftruncate(&fd, 10).unwrap();
        assert_eq!(Tally::join(fd.as_fd()).unwrap_err(), Errno::PROTO);
    }

    #[test]
    fn records_come_out_as_they_went_in_and_what_finds_no_room_is_counted() {
        let (tally, fd) = Tally::create(true).unwrap();
        let program = Tally::join(fd.as_fd()).unwrap();
        let seat = program.sit();
        let path = vec![b'p'; 300];
        let call = |result| Call { kind: CallKind::OPEN, result, path: path.as_slice(), ..Call::default() };
        (0..10).for_each(|result| program.record(seat, &call(result)));
        let mut seen = Vec::new();
        assert_eq!(tally.drain(&mut |record| seen.push((record.result, record.path.len()))), 10);
        assert_eq!(seen, (0..10).map(|result| (result, 300)).collect::<Vec<_>>());
        // Many times round the ring, never more than it holds.
        for round in 0..20 {
            (0..1000).for_each(|result| program.record(seat, &call(result)));
            let mut next = 0;
            tally.drain(&mut |record| {
                assert_eq!(record.result, next, "round {round}");
                next += 1;
            });
            assert_eq!((next, tally.lost()), (1000, 0));
        }
        (0..10_000).for_each(|result| program.record(seat, &call(result)));
        let kept = tally.drain(&mut |_| ());
        assert_eq!(kept as u64 + tally.lost(), 10_000);
        assert!(kept > 2000, "{kept}");
        assert_eq!(count(&tally, CallKind::OPEN), 0, "recording is not counting");
    }
}
