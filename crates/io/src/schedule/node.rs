//! Requests that wait for their turn, in a fixed number of nodes.

use crate::parts::PART_SEGMENTS;
use crate::settings::Rate;
use nvmed_engine::{Operation, Priority, Request, Segment};
use nvmed_units::{DeviceAddress, Lba};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Where a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Free,
    /// In a list, waiting.
    Queued,
    /// With the device, at the head of what became one request.
    Sent,
    /// With the device, in the request of another.
    Joined,
}

/// Whether a node was taken out of its list, to go to the device.
fn is_away(state: State) -> bool {
    matches!(state, State::Sent | State::Joined)
}

/// What a handle's settings say of its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) priority: Priority,
    pub(crate) weight: u32,
    pub(crate) rate: Rate,
    /// Whether it is sent again after a reset.
    pub(crate) replay: bool,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) state: State,
    pub(super) operation: Operation,
    pub(super) lba: Lba,
    pub(super) blocks: u32,
    pub(super) stream: u16,
    /// Where its result goes.
    pub(super) slot: u32,
    pub(super) handle: u32,
    /// Order of arrival.
    pub(super) serial: u64,
    pub(super) arrived_ns: u64,
    /// A deadline scheduler's.
    pub(super) expires_ns: u64,
    pub(super) urgent: bool,
    pub(super) replay: bool,
    /// It failed as part of a larger one: now it goes by itself.
    pub(super) alone: bool,
    /// How often it was sent again.
    pub(super) replays: u8,
    segments: u8,
    /// The next of those that went as one request.
    pub(super) joined: u32,
    next: u32,
    prev: u32,
}

impl Node {
    const FREE: Self = Self {
        state: State::Free,
        operation: Operation::Flush,
        lba: Lba(0),
        blocks: 0,
        stream: 0,
        slot: 0,
        handle: 0,
        serial: 0,
        arrived_ns: 0,
        expires_ns: 0,
        urgent: false,
        replay: false,
        alone: false,
        replays: 0,
        segments: 0,
        joined: NONE,
        next: NONE,
        prev: NONE,
    };

    /// The first block behind it.
    pub(super) fn end(&self) -> u64 {
        self.lba.0.saturating_add(u64::from(self.blocks))
    }

    /// Whether it changes what reads return.
    pub(super) fn writes(&self) -> bool {
        matches!(self.operation, Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Discard)
    }

    /// Whether a later request of the same handle must not pass it: one that touches the same blocks, if either
    /// writes, and a flush for a write before it.
    fn stops(&self, later: &Self) -> bool {
        if later.operation == Operation::Flush || self.operation == Operation::Flush {
            return later.operation == Operation::Flush && self.writes();
        }
        (self.writes() || later.writes()) && self.lba.0 < later.end() && later.lba.0 < self.end()
    }
}

/// A list of nodes, linked through them. A node is in one list at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE };

    pub(super) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Its nodes, the first that arrived first.
    pub(super) fn iter<'a>(&self, nodes: &'a Nodes) -> impl Iterator<Item = u32> + use<'a> {
        let there = |index: u32| (index != NONE).then_some(index);
        core::iter::successors(there(self.head), move |&index| there(nodes[index].next))
    }

    /// Puts a node before the first that arrived later; nearly always at the end.
    pub(super) fn insert(&mut self, nodes: &mut Nodes, index: u32) {
        let serial = nodes[index].serial;
        let mut after = self.tail;
        while after != NONE && nodes[after].serial > serial {
            after = nodes[after].prev;
        }
        let next = if after == NONE { self.head } else { nodes[after].next };
        (nodes[index].prev, nodes[index].next) = (after, next);
        *(if after == NONE { &mut self.head } else { &mut nodes[after].next }) = index;
        *(if next == NONE { &mut self.tail } else { &mut nodes[next].prev }) = index;
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, index: u32) {
        let Node { next, prev, .. } = nodes[index];
        *(if prev == NONE { &mut self.head } else { &mut nodes[prev].next }) = next;
        *(if next == NONE { &mut self.tail } else { &mut nodes[next].prev }) = prev;
        (nodes[index].next, nodes[index].prev) = (NONE, NONE);
    }
}

/// All nodes of a queue, and the segments of each.
pub(super) struct Nodes {
    nodes: Box<[Node]>,
    segments: Box<[[Segment; PART_SEGMENTS]]>,
    free: Vec<u32>,
    serial: u64,
    /// Nodes that wait, and those of them that change what reads return.
    queued: usize,
    writes: usize,
}

impl core::ops::Index<u32> for Nodes {
    type Output = Node;
    fn index(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }
}

impl core::ops::IndexMut<u32> for Nodes {
    fn index_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }
}

impl Nodes {
    pub(super) fn new(count: usize) -> Self {
        let none = Segment { address: DeviceAddress(0), bytes: 0 };
        Self {
            nodes: vec![Node::FREE; count].into(),
            segments: vec![[none; PART_SEGMENTS]; count].into(),
            free: (0..count as u32).rev().collect(),
            serial: 0,
            queued: 0,
            writes: 0,
        }
    }

    /// Nodes that wait.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn count(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Copies a request of at most [`PART_SEGMENTS`] segments; it waits from now on.
    pub(super) fn add(
        &mut self,
        request: &Request<'_>,
        owner: (u32, u32),
        rights: &Rights,
        now: u64,
    ) -> Option<u32> {
        let index = self.free.pop()?;
        let count = request.data.len();
        assert!(count <= PART_SEGMENTS, "node {index} is to keep {count} segments");
        self.segments[index as usize][..count].copy_from_slice(request.data);
        self.serial += 1;
        self.queued += 1;
        self[index] = Node {
            state: State::Queued,
            operation: request.operation,
            lba: request.lba,
            blocks: request.blocks,
            stream: request.stream,
            slot: owner.0,
            handle: owner.1,
            serial: self.serial,
            arrived_ns: now,
            urgent: rights.priority == Priority::Urgent,
            replay: rights.replay,
            segments: request.data.len() as u8,
            ..Node::FREE
        };
        self.writes += usize::from(self[index].writes());
        Some(index)
    }

    pub(super) fn segments(&self, index: u32) -> &[Segment] {
        &self.segments[index as usize][..usize::from(self[index].segments)]
    }

    /// It goes to the device, alone or as part of another.
    pub(super) fn leave(&mut self, index: u32, state: State) {
        let before = self[index].state;
        assert!(before == State::Queued, "node {index} goes to the device, but it was {before:?}");
        self[index].state = state;
        self.queued -= 1;
        self.writes -= usize::from(self[index].writes());
    }

    /// It waits again.
    pub(super) fn come_back(&mut self, index: u32) {
        let before = self[index].state;
        assert!(is_away(before), "node {index} comes back from the device, but it was {before:?}");
        self[index].state = State::Queued;
        self[index].joined = NONE;
        self.queued += 1;
        self.writes += usize::from(self[index].writes());
    }

    /// It is over.
    pub(super) fn release(&mut self, index: u32) {
        let before = self[index].state;
        assert!(is_away(before), "node {index} is over, but it was {before:?}");
        self[index].state = State::Free;
        self.free.push(index);
    }

    /// Whether `later` must not pass `index`, which waits.
    pub(super) fn is_stop(&self, index: u32, later: u32) -> bool {
        let (node, later) = (&self[index], &self[later]);
        node.handle == later.handle && node.serial < later.serial && node.stops(later)
    }

    /// The oldest waiting request of the same handle that `index`, which waits too, must not pass. Each node is looked
    /// at, unless none that waits writes.
    pub(super) fn stopped_by(&self, index: u32) -> Option<u32> {
        if self.queued < 2 || self.writes == 0 {
            return None;
        }
        let waiting = (0..self.count()).filter(|&at| self[at].state == State::Queued);
        self.oldest_stop(waiting, index)
    }

    /// As [`Nodes::stopped_by`], among `waiting` nodes.
    pub(super) fn oldest_stop(&self, waiting: impl Iterator<Item = u32>, index: u32) -> Option<u32> {
        waiting.filter(|&at| self.is_stop(at, index)).min_by_key(|&at| self[at].serial)
    }

    /// A waiting request that may go together with others and for which `fits` holds.
    pub(super) fn find(&self, fits: impl Fn(u32, &Node) -> bool) -> Option<u32> {
        let mut all = (0..).zip(self.nodes.iter());
        all.find(|(at, node)| node.state == State::Queued && !node.alone && fits(*at, node)).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes, one of which waits.
    fn waiting() -> (Nodes, u32) {
        let mut nodes = Nodes::new(2);
        let flush =
            Request { operation: Operation::Flush, lba: Lba(0), blocks: 0, data: &[], tag: 0, stream: 0 };
        let index = nodes.add(&flush, (0, 0), &Rights::default(), 0).expect("two are free");
        (nodes, index)
    }

    #[test]
    #[should_panic(expected = "is to keep 65 segments")]
    fn a_node_keeps_a_request_that_was_cut() {
        let data = [Segment { address: DeviceAddress(0), bytes: 4096 }; PART_SEGMENTS + 1];
        let read =
            Request { operation: Operation::Read, lba: Lba(0), blocks: 520, data: &data, tag: 0, stream: 0 };
        Nodes::new(1).add(&read, (0, 0), &Rights::default(), 0);
    }

    #[test]
    #[should_panic(expected = "goes to the device, but it was Sent")]
    fn a_node_goes_to_the_device_once() {
        let (mut nodes, index) = waiting();
        nodes.leave(index, State::Sent);
        nodes.leave(index, State::Sent);
    }

    #[test]
    #[should_panic(expected = "comes back from the device, but it was Queued")]
    fn a_node_that_waits_does_not_come_back() {
        let (mut nodes, index) = waiting();
        nodes.come_back(index);
    }

    #[test]
    #[should_panic(expected = "is over, but it was Free")]
    fn a_node_is_over_once() {
        let (mut nodes, index) = waiting();
        nodes.leave(index, State::Joined);
        nodes.release(index);
        nodes.release(index);
    }
}
