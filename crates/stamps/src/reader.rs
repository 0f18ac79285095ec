//! What takes requests out of all rings.

use crate::layout as at;
use crate::stamped::{Probe, Stamped};
use crate::stamps::Stamps;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Clocks of two processors may differ by so many ticks: less than a millisecond.
const SKEW_TICKS: u64 = 1 << 20;

/// The one reader of all rings.
#[derive(Debug)]
pub struct Reader {
    stamps: Arc<Stamps>,
    /// Requests that were read, by ring: the words in memory are for the producers, and anybody's.
    read: Vec<u64>,
    /// As far as the last look went.
    seen: Vec<u64>,
    /// The look that a drain has not ended.
    look: Option<Look>,
}

/// A look at all rings: what was in them when it began, and had ended by then.
#[derive(Debug)]
struct Look {
    /// What ended later waits for the next look: another ring may have some of it that was not there yet.
    until: u64,
    /// By ring: who had it, and how much was written.
    rings: Vec<(u64, u64)>,
    /// As far as the look before went: what was there then has ended before this one.
    seen: Vec<u64>,
    /// The first request of each ring that has one, that which ended first on top.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
}

/// What a drain has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were handed out.
    pub taken: usize,
    /// Those that no producer can have written.
    pub malformed: usize,
    /// Whether the limit was reached before the look at the rings was over.
    pub has_more: bool,
}

/// What is next in a ring.
enum Next {
    /// Nothing that the look has.
    Nothing,
    /// What no producer can have written.
    Malformed,
    Request(Stamped),
}

impl Reader {
    /// The reader of rings of which nothing was read before.
    #[must_use]
    pub fn new(stamps: Arc<Stamps>) -> Self {
        Self { stamps, read: vec![0; at::RINGS], seen: vec![0; at::RINGS], look: None }
    }

    /// Hands out requests of all rings in the order in which they ended, with their probe and process: at most `limit`,
    /// and at most what the rings held when the look at them began, so that it ends. Where the limit comes first, the
    /// next drain goes on with this look.
    ///
    /// What ended after the look began is left for the next one, so that a drain hands out nothing that ended before
    /// what an earlier one has handed out, but for what a producer was putting meanwhile.
    pub fn drain(&mut self, limit: usize, each: &mut dyn FnMut(Probe, u32, &Stamped)) -> Drained {
        let mut drained = Drained::default();
        let mut look = self.look.take().unwrap_or_else(|| self.begin(&mut drained));
        while let Some(Reverse((_, ring))) = look.heads.pop() {
            if drained.taken + drained.malformed >= limit {
                look.heads.push(Reverse((0, ring)));
                drained.has_more = true;
                self.look = Some(look);
                return drained;
            }
            self.drain_ring(&mut look, ring, (limit, &mut drained), each);
        }
        self.seen = look.rings.into_iter().map(|(_, written)| written).collect();
        drained
    }

    /// Looks how much is in each ring.
    fn begin(&mut self, drained: &mut Drained) -> Look {
        // Before all rings.
        let until = self.stamps.clock().now();
        let seen = std::mem::take(&mut self.seen);
        let (rings, heads) = (Vec::with_capacity(at::RINGS), BinaryHeap::with_capacity(at::RINGS));
        let mut look = Look { until, rings, seen, heads };
        for ring in 0..at::RINGS {
            let (memory, base) = (self.stamps.memory(), self.stamps.ring_at(ring));
            // Before `written`: who has left writes no more, so what is seen after it is all.
            let owner = memory.u64(base + at::OWNER_AT).load(Acquire);
            let read = &mut self.read[ring];
            // Pairs with the producer's store.
            let written = if owner == 0 { *read } else { memory.u64(base + at::WRITTEN_AT).load(Acquire) };
            if written.wrapping_sub(*read) > self.stamps.requests() as u64 {
                drained.malformed += 1;
                *read = written;
            }
            look.rings.push((owner, written));
            if owner != 0 {
                self.go_on(&mut look, ring);
            }
        }
        look
    }

    /// Hands out requests of a ring until another one has an earlier one.
    fn drain_ring(
        &mut self,
        look: &mut Look,
        ring: usize,
        (limit, drained): (usize, &mut Drained),
        each: &mut dyn FnMut(Probe, u32, &Stamped),
    ) {
        let owner = look.rings[ring].0;
        let probe = Probe::ALL.get((owner >> at::OWNER_PROBE_SHIFT & 0xff) as usize);
        let others = look.heads.peek().map_or(u64::MAX, |Reverse((finish, _))| *finish);
        while drained.taken + drained.malformed < limit {
            match (probe, self.next(look, ring)) {
                (_, Next::Nothing) => break,
                (_, Next::Request(request)) if request.finish > others => break,
                (Some(&probe), Next::Request(request)) => {
                    each(probe, owner as u32, &request);
                    drained.taken += 1;
                }
                _ => drained.malformed += 1,
            }
            self.read[ring] = self.read[ring].wrapping_add(1);
            // Room for the producer as soon as there is some.
            let read_at = self.stamps.ring_at(ring) + at::READ_AT;
            self.stamps.memory().u64(read_at).store(self.read[ring], Release);
        }
        self.go_on(look, ring);
    }

    /// Puts a ring where its next request has its turn; one that is empty, and whose producer has left, is free.
    fn go_on(&mut self, look: &mut Look, ring: usize) {
        let (owner, written) = look.rings[ring];
        match self.next(look, ring) {
            Next::Request(request) => look.heads.push(Reverse((request.finish, ring))),
            Next::Malformed => look.heads.push(Reverse((0, ring))),
            Next::Nothing if self.read[ring] == written => {
                let base = self.stamps.ring_at(ring);
                self.stamps.memory().u64(base + at::READ_AT).store(written, Release);
                if owner & at::OWNER_HAS_LEFT != 0 {
                    self.free(base);
                }
            }
            Next::Nothing => (),
        }
    }

    /// The next request of a ring.
    fn next(&self, look: &Look, ring: usize) -> Next {
        let (read, (owner, written)) = (self.read[ring], look.rings[ring]);
        if read == written || owner == 0 {
            return Next::Nothing;
        }
        let place = (read & (self.stamps.requests() as u64 - 1)) as usize;
        let first = self.stamps.ring_at(ring) + at::CIRCLE_AT + place * at::REQUEST_BYTES;
        let words = std::array::from_fn(|word| self.stamps.memory().u64(first + word * 8).load(Relaxed));
        let Some(request) = Stamped::of(words) else { return Next::Malformed };
        let until = look.until.saturating_add(SKEW_TICKS);
        // It was there before this look began, so it cannot have ended after it.
        let was_seen = (look.seen[ring].wrapping_sub(read) as i64) > 0;
        match request.finish {
            finish if finish <= look.until => Next::Request(request),
            finish if finish > until && was_seen => Next::Malformed,
            _ if was_seen => Next::Request(request),
            _ => Next::Nothing,
        }
    }

    /// Nobody has the ring any more.
    fn free(&self, base: usize) {
        self.stamps.memory().u64(base + at::OWNER_AT).store(0, Release);
    }

    /// Frees the rings of processes that are dead, as far as they are empty. A process whose number another one has got
    /// since is taken for it. Those of another PID namespace cannot be asked for by the number that they have there:
    /// their rings are theirs until they leave.
    pub fn reclaim(&mut self) {
        let memory = self.stamps.memory();
        for ring in 0..at::RINGS {
            let base = self.stamps.ring_at(ring);
            let owner = memory.u64(base + at::OWNER_AT).load(Acquire);
            let process = i32::try_from(owner as u32).ok().and_then(Pid::from_raw);
            let is_known = owner & at::OWNER_IS_FOREIGN == 0;
            let is_dead =
                is_known && process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH));
            if is_dead && memory.u64(base + at::WRITTEN_AT).load(Acquire) == self.read[ring] {
                self.free(base);
            }
        }
    }

    /// See [`Stamps::lost`].
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.stamps.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Producer};
    use nvmed_sys::Mapping;
    use proptest::prelude::*;
    use rustix::fd::AsFd;
    use std::collections::VecDeque;

    /// A request whose words all follow from one number, so that one that is torn is seen.
    fn request(number: u64) -> Stamped {
        let arrival = number * 10;
        let (start, finish) = (arrival + 1, arrival + 2);
        let (offset, bytes) = (number << 12, number & 0xffff);
        Stamped { op: Op::Write, offset, bytes, arrival, start, finish, has_failed: number % 2 == 1 }
    }

    fn stamps(requests: usize) -> Arc<Stamps> {
        Arc::new(Stamps::create(&Probe::ALL, requests).unwrap().0)
    }

    fn taken(reader: &mut Reader) -> Vec<(Probe, Stamped)> {
        let mut found = Vec::new();
        reader.drain(usize::MAX, &mut |probe, process, request| {
            assert_eq!(process, std::process::id());
            found.push((probe, *request));
        });
        found
    }

    #[test]
    fn another_process_reads_what_was_put_and_only_what_is_wanted_is_asked_for() {
        let (stamps, fd) = Stamps::create(&[Probe::Queue], 8).unwrap();
        let joined = Arc::new(Stamps::join(fd.as_fd()).unwrap());
        assert_eq!(Probe::ALL.map(|probe| joined.wants(probe)), [false, true, false]);
        let mut producer = joined.producer(Probe::Queue);
        let all = [Op::Read, Op::Write, Op::DurableWrite, Op::Discard, Op::Flush];
        let all = all.map(|op| Stamped { op, bytes: (1 << 56) - 1, offset: u64::MAX, ..request(7) });
        all.iter().for_each(|request| producer.put(request));
        let mut reader = Reader::new(Arc::new(stamps));
        assert_eq!(taken(&mut reader), all.map(|request| (Probe::Queue, request)));
    }

    #[test]
    fn a_clock_of_another_processor_that_is_behind_turns_no_time_back() {
        let stamps = stamps(8);
        let mut producer = stamps.producer(Probe::Device);
        producer.put(&Stamped { arrival: 100, start: 90, finish: 80, ..request(1) });
        let (_, found) = taken(&mut Reader::new(stamps))[0];
        assert_eq!((found.arrival, found.start, found.finish), (100, 100, 100));
    }

    #[test]
    fn memory_that_has_no_rings_is_refused() {
        for bytes in [0, 10, at::bytes(8)] {
            let fd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
            assert_eq!(Stamps::join(fd.as_fd()).unwrap_err(), Errno::PROTO, "{bytes} bytes");
        }
        let (stamps, fd) = Stamps::create(&Probe::ALL, 8).unwrap();
        stamps.memory().u64(at::REQUESTS_AT).store(1024, Relaxed);
        assert_eq!(Stamps::join(fd.as_fd()).unwrap_err(), Errno::PROTO, "rings beyond its end");
    }

    #[test]
    fn a_ring_is_used_again_when_its_producer_has_left_and_what_finds_none_is_lost() {
        let stamps = stamps(2);
        let mut reader = Reader::new(Arc::clone(&stamps));
        let mut all: Vec<Producer> = (0..at::RINGS).map(|_| stamps.producer(Probe::Handle)).collect();
        let mut late = stamps.producer(Probe::Handle);
        late.put(&request(1));
        assert_eq!((stamps.lost(), taken(&mut reader).len()), (1, 0));
        let mut left = all.pop().unwrap();
        left.put(&request(2));
        drop(left);
        // Not before what it has left is read.
        stamps.producer(Probe::Queue).put(&request(3));
        assert_eq!((stamps.lost(), taken(&mut reader).len()), (2, 1));
        stamps.producer(Probe::Queue).put(&request(4));
        assert_eq!(taken(&mut reader), [(Probe::Queue, request(4))]);
    }

    #[test]
    fn the_ring_of_a_dead_process_is_read_and_then_free() {
        let stamps = stamps(4);
        let mut reader = Reader::new(Arc::clone(&stamps));
        let mut producer = stamps.producer(Probe::Queue);
        producer.put(&request(1));
        std::mem::forget(producer);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let owner = stamps.memory().u64(stamps.ring_at(0) + at::OWNER_AT);
        owner.store(u64::from(child.id()) | 1 << at::OWNER_PROBE_SHIFT, Relaxed);
        reader.reclaim();
        assert_ne!(owner.load(Relaxed), 0, "a request of it is not read yet");
        let mut found = Vec::new();
        reader.drain(usize::MAX, &mut |_, process, request| found.push((process, *request)));
        assert_eq!(found, [(child.id(), request(1))]);
        reader.reclaim();
        assert_eq!(owner.load(Relaxed), 0);
    }

    #[test]
    fn a_ring_whose_writer_has_a_number_of_another_namespace_stays_its_writers() {
        let (stamps, fd) = Stamps::create(&Probe::ALL, 4).unwrap();
        // A namespace that is not this process's.
        stamps.memory().u64(at::NAMESPACE_AT).fetch_add(1, Relaxed);
        let joined = Arc::new(Stamps::join(fd.as_fd()).unwrap());
        let mut producer = joined.producer(Probe::Queue);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let owner = stamps.memory().u64(stamps.ring_at(0) + at::OWNER_AT);
        let of_child = owner.load(Relaxed) - u64::from(std::process::id()) + u64::from(child.id());
        owner.store(of_child, Relaxed);
        let mut reader = Reader::new(Arc::new(stamps));
        reader.reclaim();
        producer.put(&request(1));
        let _other = joined.producer(Probe::Queue);
        let mut found = Vec::new();
        reader.drain(usize::MAX, &mut |_, process, request| found.push((process, *request)));
        assert_eq!(found, [(child.id(), request(1))], "it writes on, in a ring of its own");
        drop(producer);
        reader.drain(usize::MAX, &mut |_, _, _| ());
        assert_eq!(joined.memory().u64(joined.ring_at(0) + at::OWNER_AT).load(Relaxed), 0, "it has left");
    }

    #[test]
    fn drains_of_a_limit_hand_out_what_is_in_all_rings_in_the_order_of_its_ends() {
        let stamps = stamps(64);
        let mut producers: Vec<Producer> = (0..5).map(|_| stamps.producer(Probe::Queue)).collect();
        (1..301).for_each(|number| producers[number as usize * 7 % 5].put(&request(number)));
        let mut reader = Reader::new(Arc::clone(&stamps));
        let (mut found, mut counts) = (Vec::new(), Vec::new());
        loop {
            let drained = reader.drain(90, &mut |_, _, request| found.push(request.offset >> 12));
            counts.push(drained.taken);
            // The look has begun: what comes now is of the next one.
            producers[0].put(&request(1000));
            if !drained.has_more {
                break;
            }
        }
        assert_eq!((counts, found), (vec![90, 90, 90, 30], (1..301).collect::<Vec<u64>>()));
        assert_eq!((taken(&mut reader).len(), stamps.lost()), (4, 0));
    }

    #[test]
    fn what_ended_after_the_look_began_waits_and_what_ends_in_a_far_future_is_malformed() {
        let stamps = stamps(8);
        let mut reader = Reader::new(Arc::clone(&stamps));
        let mut producer = stamps.producer(Probe::Queue);
        let mut other = stamps.producer(Probe::Queue);
        producer.put(&Stamped { finish: u64::MAX, ..request(1) });
        other.put(&request(2));
        producer.put(&request(3));
        let drain = |reader: &mut Reader| {
            let mut found = Vec::new();
            let drained = reader.drain(usize::MAX, &mut |_, _, request| found.push(request.offset >> 12));
            (found, drained.malformed)
        };
        assert_eq!(drain(&mut reader), (vec![2], 0));
        assert_eq!(drain(&mut reader), (vec![3], 1));
    }

    #[test]
    fn producers_at_work_tear_nothing_and_all_is_read_or_counted() {
        let (stamps, fd) = Stamps::create(&Probe::ALL, 64).unwrap();
        let mut reader = Reader::new(Arc::new(stamps));
        let (threads, each) = (4, 50_000);
        let left = std::sync::atomic::AtomicUsize::new(threads);
        let mut found = 0;
        std::thread::scope(|scope| {
            for thread in 0..threads as u64 {
                let joined = Arc::new(Stamps::join(fd.as_fd()).unwrap());
                let left = &left;
                scope.spawn(move || {
                    let mut producer = joined.producer(Probe::Queue);
                    (0..each).for_each(|number| producer.put(&request(thread << 20 | number)));
                    left.fetch_sub(1, Release);
                });
            }
            let mut next = vec![0; threads];
            loop {
                let is_last = left.load(Acquire) == 0;
                let drained = reader.drain(usize::MAX, &mut |_, _, found| {
                    let number = found.offset >> 12;
                    assert_eq!(*found, request(number));
                    let (thread, number) = ((number >> 20) as usize, number & 0xf_ffff);
                    assert!(number >= next[thread], "{number} of {thread} after {}", next[thread]);
                    next[thread] = number + 1;
                });
                assert_eq!(drained.malformed, 0);
                found += drained.taken as u64;
                if is_last {
                    break;
                }
            }
        });
        assert_eq!(found + reader.lost(), threads as u64 * each);
        assert!(found > 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put,
        Drain,
        Leave,
    }

    proptest! {
        /// Against a queue of a limited length.
        #[test]
        fn a_ring_is_a_queue_that_loses_what_it_has_no_room_for(
            steps in prop::collection::vec(
                prop_oneof![8 => Just(Step::Put), 2 => Just(Step::Drain), 1 => Just(Step::Leave)],
                0..400,
            ),
            capacity in prop::sample::select(vec![2_usize, 4, 16]),
        ) {
            let stamps = stamps(capacity);
            let mut reader = Reader::new(Arc::clone(&stamps));
            let mut producer = stamps.producer(Probe::Queue);
            let (mut model, mut lost, mut number) = (VecDeque::new(), 0, 0);
            // Rings that were left before the one in use, and are not read yet.
            let mut before = VecDeque::new();
            for step in steps {
                match step {
                    Step::Put => {
                        producer.put(&request(number));
                        if model.len() < capacity { model.push_back(number) } else { lost += 1 }
                        number += 1;
                    }
                    Step::Drain => {
                        let mut found: Vec<u64> =
                            taken(&mut reader).iter().map(|(_, found)| found.offset >> 12).collect();
                        found.sort_unstable();
                        before.append(&mut model);
                        prop_assert_eq!(found, before.drain(..).collect::<Vec<_>>());
                    }
                    Step::Leave => {
                        // At most as many rings as there are wait to be read.
                        taken(&mut reader);
                        model.clear();
                        before.clear();
                        producer = stamps.producer(Probe::Queue);
                    }
                }
                prop_assert_eq!(stamps.lost(), lost);
            }
        }

        /// A process can write anything into the memory: the reader neither panics nor reads on for ever.
        #[test]
        fn rings_of_any_words_are_read_without_harm(
            words in prop::collection::vec(any::<u64>(), 1..200),
            (owner, written, read) in (any::<u64>(), any::<u64>(), any::<u64>()),
            places in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let stamps = stamps(4);
            let memory: &Mapping = stamps.memory();
            let mut reader = Reader::new(Arc::clone(&stamps));
            for (word, place) in words.iter().zip(&places) {
                // Head and first rings, where the reader looks.
                memory.u64(8 * place.index(at::ring_at(3, 4) / 8)).store(*word, Relaxed);
            }
            let ring = stamps.ring_at(1);
            memory.u64(ring + at::OWNER_AT).store(owner, Relaxed);
            memory.u64(ring + at::WRITTEN_AT).store(written, Relaxed);
            memory.u64(ring + at::READ_AT).store(read, Relaxed);
            let drained = reader.drain(usize::MAX, &mut |_, _, request| {
                assert!(request.arrival <= request.start && request.start <= request.finish);
            });
            prop_assert!(drained.taken + drained.malformed <= 4 * at::RINGS);
            reader.reclaim();
        }
    }

    #[test]
    fn pages_of_rings_that_nobody_has_are_not_there() {
        let (stamps, fd) = Stamps::create(&Probe::ALL, 1 << 12).unwrap();
        let stamps = Arc::new(stamps);
        let _one = stamps.producer(Probe::Queue);
        Reader::new(Arc::clone(&stamps)).drain(usize::MAX, &mut |_, _, _| ());
        let kept = rustix::fs::fstat(&fd).unwrap().st_blocks as usize * 512;
        assert!(kept < 2 * (1 << 12) * at::REQUEST_BYTES + (at::RINGS + 2) * 4096, "{kept} bytes");
    }
}
