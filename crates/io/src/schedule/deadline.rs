//! The deadline order: Linux's `mq-deadline` (`block/mq-deadline.c`).

use super::node::{List, Nodes};
use nvmed_engine::Operation;

/// Requests of one direction in a row, in order of LBA (`fifo_batch`).
pub(super) const BATCH: u32 = 16;
/// How many batches of reads may pass a waiting write (`writes_starved`).
pub(super) const STARVED_MAX: u32 = 2;

const READ: usize = 0;
const WRITE: usize = 1;

/// One direction.
struct Side {
    /// In order of arrival.
    arrived: List,
    /// In order of LBA, then arrival.
    sorted: Vec<u32>,
    /// Blocks of the longest that was there since it was empty.
    longest: u64,
    expire_ns: u64,
}

impl Side {
    /// Those that may touch blocks between `first` and `end`: what begins before by more than the longest does not.
    fn near<'a>(&'a self, nodes: &Nodes, first: u64, end: u64) -> impl Iterator<Item = u32> + use<'a> {
        let before = |lba: u64| self.sorted.partition_point(|&index| nodes[index].lba.0 < lba);
        self.sorted[before(first.saturating_sub(self.longest))..before(end)].iter().copied()
    }
}

/// Reads before writes, in order of LBA, nothing forgotten.
pub(super) struct Deadline {
    sides: [Side; 2],
    /// The batch that is under way: its direction, how many were taken, and where the last one ended.
    direction: usize,
    taken: u32,
    at: u64,
    /// Batches of reads that passed waiting writes.
    starved: u32,
}

/// Compares read; all else, flushes too, is on the writes' side.
fn side_of(operation: Operation) -> usize {
    if matches!(operation, Operation::Read | Operation::Compare) { READ } else { WRITE }
}

impl Deadline {
    /// For `count` requests at most.
    pub(super) fn new(read_us: u32, write_us: u32, count: usize) -> Self {
        let side = |us: u32| Side {
            arrived: List::EMPTY,
            sorted: Vec::with_capacity(count),
            longest: 0,
            expire_ns: u64::from(us) * 1000,
        };
        Self { sides: [side(read_us), side(write_us)], direction: READ, taken: BATCH, at: 0, starved: 0 }
    }

    pub(super) fn insert(&mut self, nodes: &mut Nodes, index: u32) {
        let side = &mut self.sides[side_of(nodes[index].operation)];
        nodes[index].expires_ns = nodes[index].arrived_ns.saturating_add(side.expire_ns);
        side.arrived.insert(nodes, index);
        let before = if side.sorted.is_empty() { 0 } else { side.longest };
        side.longest = before.max(nodes[index].blocks.into());
        let key = |at: u32| (nodes[at].lba, nodes[at].serial);
        let at = side.sorted.partition_point(|&other| key(other) < key(index));
        side.sorted.insert(at, index);
    }

    /// Whose turn it is.
    pub(super) fn pick(&self, nodes: &Nodes, now: u64) -> Option<u32> {
        if self.taken < BATCH
            && let Some(next) = self.next_in_order(nodes, self.direction)
        {
            return Some(next);
        }
        let waiting = |side: usize| !self.sides[side].sorted.is_empty();
        let direction = match (waiting(READ), waiting(WRITE)) {
            (false, false) => return None,
            (true, false) => READ,
            (false, true) => WRITE,
            (true, true) => usize::from(self.starved >= STARVED_MAX),
        };
        let side = &self.sides[direction];
        let oldest = side.arrived.front()?;
        if nodes[oldest].expires_ns <= now {
            return Some(oldest);
        }
        self.next_in_order(nodes, direction).or(side.sorted.first().copied())
    }

    /// The next request of a direction at or behind where the last one ended.
    fn next_in_order(&self, nodes: &Nodes, direction: usize) -> Option<u32> {
        let sorted = &self.sides[direction].sorted;
        let at = sorted.partition_point(|&index| nodes[index].lba.0 < self.at);
        sorted.get(at).copied()
    }

    /// As [`Nodes::stopped_by`], where all that waits is here: looks only at what is near in the order by LBA, and for
    /// a flush at the oldest.
    pub(super) fn stopped_by(&self, nodes: &Nodes, index: u32) -> Option<u32> {
        let [reads, writes] = &self.sides;
        let later = &nodes[index];
        if later.operation == Operation::Flush {
            let older = |&at: &u32| nodes[at].serial < later.serial;
            return writes.arrived.iter(nodes).take_while(older).find(|&at| nodes.is_stop(at, index));
        }
        let (first, end) = (later.lba.0, later.end());
        let stop = nodes.oldest_stop(writes.near(nodes, first, end), index);
        if !later.writes() {
            return stop;
        }
        let read = nodes.oldest_stop(reads.near(nodes, first, end), index);
        [stop, read].into_iter().flatten().min_by_key(|&at| nodes[at].serial)
    }

    /// Notes that a request is the next to go: the one picked, or one that must go before it.
    pub(super) fn take(&mut self, nodes: &mut Nodes, index: u32) {
        let direction = side_of(nodes[index].operation);
        let continues = direction == self.direction && self.taken < BATCH && nodes[index].lba.0 >= self.at;
        if continues {
            self.taken += 1;
        } else {
            self.starved = match direction {
                READ if !self.sides[WRITE].sorted.is_empty() => self.starved + 1,
                _ => 0,
            };
            (self.direction, self.taken) = (direction, 1);
        }
        self.at = nodes[index].end();
        self.remove(nodes, index);
    }

    /// Takes a request out, to go with another or into another scheduler.
    pub(super) fn remove(&mut self, nodes: &mut Nodes, index: u32) {
        let side = &mut self.sides[side_of(nodes[index].operation)];
        side.arrived.remove(nodes, index);
        let key = |at: u32| (nodes[at].lba, nodes[at].serial);
        let at = side.sorted.partition_point(|&other| key(other) < key(index));
        debug_assert_eq!(side.sorted.get(at), Some(&index), "a waiting request is in its side's order");
        side.sorted.remove(at);
    }
}
