//! Adjacent requests become one: fewer commands, longer transfers.

use super::node::{NONE, Node, State};
use super::{Backlog, Policy};
use crate::parts::PART_SEGMENTS;
use nvmed_engine::{Operation, Segment};

/// Requests that become one, at most: 4 KiB each, they fill a usual transfer limit of 128 KiB.
const JOINED_MAX: usize = 32;
/// Segments after the first start on such a boundary, and all but the last end on one (PRP lists; NVMe Base
/// 2.0, 4.1.1).
const PAGE_BYTES: u64 = 4096;

/// Requests in order of LBA that go as one.
struct Chain {
    nodes: [u32; JOINED_MAX],
    count: usize,
    blocks: u32,
    segments: usize,
}

impl Chain {
    fn first(&self) -> u32 {
        self.nodes[0]
    }

    fn last(&self) -> u32 {
        self.nodes[self.count - 1]
    }
}

/// Where the memory of a segment ends.
fn end_of(segment: &Segment) -> u64 {
    segment.address.0.wrapping_add(u64::from(segment.bytes))
}

/// Whether memory that ends with `before` may go on with `after` in one request.
fn memory_joins(before: Option<&Segment>, after: Option<&Segment>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    let end = end_of(before);
    end == after.address.0 || (end.is_multiple_of(PAGE_BYTES) && after.address.0.is_multiple_of(PAGE_BYTES))
}

impl Backlog {
    /// Joins to `index`, which is about to go, what waits behind and before it; answers the head of what
    /// goes.
    pub(super) fn join(&mut self, index: u32, now: u64) -> u32 {
        let mut nodes = [NONE; JOINED_MAX];
        nodes[0] = index;
        let (blocks, segments) = (self.nodes[index].blocks, self.nodes.segments(index).len());
        let mut chain = Chain { nodes, count: 1, blocks, segments };
        while chain.count < JOINED_MAX {
            // Before it first: what was asked for in falling or mixed order then starts where it would have.
            let before = self.nodes.find(|at, node| self.joins(&chain, at, node, true, now));
            let front = before.is_some();
            let behind = || self.nodes.find(|at, node| self.joins(&chain, at, node, false, now));
            let Some(found) = before.or_else(behind) else { break };
            self.take(found, State::Joined, now);
            chain.blocks += self.nodes[found].blocks;
            chain.segments += self.nodes.segments(found).len();
            chain.nodes[chain.count] = found;
            chain.count += 1;
            if front {
                chain.nodes[..chain.count].rotate_right(1);
            }
        }
        self.link(&chain)
    }

    /// Whether a waiting request can go with a chain, before or behind it.
    fn joins(&self, chain: &Chain, at: u32, node: &Node, front: bool, now: u64) -> bool {
        let (first, last) = (&self.nodes[chain.first()], &self.nodes[chain.last()]);
        if node.operation != first.operation || node.stream != first.stream {
            return false;
        }
        let allowed = match &self.policy {
            Policy::Fair(fair) => node.urgent || fair.may_go(node, now),
            Policy::Fifo(_) | Policy::Deadline(_) => true,
        };
        if !allowed {
            return false;
        }
        if node.operation == Operation::Flush {
            // One flush makes durable what either would have.
            return !front && self.stopped_by(at).is_none();
        }
        let most = match node.operation.has_data() {
            true => self.limits.command_blocks,
            false => self.limits.blocks(node.operation),
        };
        let adjacent = if front { node.end() == first.lba.0 } else { last.end() == node.lba.0 };
        let mine = self.nodes.segments(at);
        adjacent
            && chain.blocks.checked_add(node.blocks).is_some_and(|blocks| blocks <= most)
            && chain.segments + mine.len() <= PART_SEGMENTS
            && if front {
                memory_joins(mine.last(), self.nodes.segments(chain.first()).first())
            } else {
                memory_joins(self.nodes.segments(chain.last()).last(), mine.first())
            }
            && self.stopped_by(at).is_none()
    }

    /// Makes a chain one request.
    fn link(&mut self, chain: &Chain) -> u32 {
        let nodes = &chain.nodes[..chain.count];
        for (at, &index) in nodes.iter().enumerate() {
            self.nodes[index].state = if at == 0 { State::Sent } else { State::Joined };
            self.nodes[index].joined = nodes.get(at + 1).copied().unwrap_or(NONE);
        }
        chain.first()
    }

    /// Puts the memory of all that goes with `head` into the room, what touches as one segment.
    pub(super) fn gather(&mut self, head: u32) {
        self.room_used = 0;
        let mut index = head;
        while index != NONE {
            for segment in self.nodes.segments(index) {
                match self.room[..self.room_used].last_mut() {
                    Some(last) if index != head && end_of(last) == segment.address.0 => {
                        last.bytes += segment.bytes;
                    }
                    _ => {
                        self.room[self.room_used] = *segment;
                        self.room_used += 1;
                    }
                }
            }
            index = self.nodes[index].joined;
        }
    }
}
