//! Fair shares: deficit round robin between handles (Shreedhar and Varghese, SIGCOMM 1995), each held to
//! its rate by a token bucket, kept as the time of its next token (GCRA: ITU-T I.371).

use super::Pick;
use super::node::{List, Node, Nodes, Rights};
use crate::settings::Rate;
use nvmed_engine::{Operation, Priority};

/// Bytes that a weight of 1 earns a round. The default, 100 at medium priority, earns 6,400: neighbours
/// take turns every other page or so.
const QUANTUM: u64 = 32;
/// Requests without data, and small ones, cost as much: what a device does for each is not only the bytes.
const COST_MIN: u64 = 4096;
/// A handle that was idle may send so much of its rate at once. Longer, and others feel its burst; shorter, and
/// a handle that sleeps between requests does not get its rate.
const BURST_NS: u64 = 10_000_000;

/// One handle's requests.
struct Flow {
    queue: List,
    /// Bytes that it may send in this round.
    deficit: i64,
    quantum: i64,
    rate: Rate,
    /// When the next byte, and the next request, is allowed.
    bytes_at: u64,
    requests_at: u64,
    /// Whether it has earned this round's share.
    paid: bool,
}

impl Flow {
    const NEW: Self = Self {
        queue: List::EMPTY,
        deficit: 0,
        quantum: 1,
        rate: Rate { bytes_per_s: 0, requests_per_s: 0 },
        bytes_at: 0,
        requests_at: 0,
        paid: false,
    };

    /// When it may send.
    fn ready_at(&self) -> u64 {
        self.bytes_at.max(self.requests_at)
    }

    /// Pays for a request.
    fn charge(&mut self, cost: u64, now: u64) {
        self.deficit = self.deficit.saturating_sub(cost as i64);
        let spend = |at: &mut u64, amount: u64, per_s: u64| {
            if let Some(ns) = (u128::from(amount) * 1_000_000_000).checked_div(per_s.into()) {
                *at = (*at).max(now.saturating_sub(BURST_NS)).saturating_add(ns as u64);
            }
        };
        spend(&mut self.bytes_at, cost, self.rate.bytes_per_s);
        spend(&mut self.requests_at, 1, self.rate.requests_per_s);
    }
}

/// All handles of a queue.
pub(super) struct Fair {
    /// By handle.
    flows: Vec<Flow>,
    /// Those with waiting requests; the first is being served.
    ring: Vec<u32>,
    lba_bytes: u64,
}

impl Fair {
    pub(super) fn new(lba_bytes: u32) -> Self {
        Self { flows: Vec::new(), ring: Vec::new(), lba_bytes: lba_bytes.into() }
    }

    /// Makes room for handles up to `handle`.
    pub(super) fn admit(&mut self, handle: u32) {
        let count = self.flows.len().max(handle as usize + 1);
        self.flows.resize_with(count, || Flow::NEW);
        self.ring.reserve(count - self.ring.len());
    }

    /// A number is given again: to another handle, with a bucket of its own.
    pub(super) fn forget(&mut self, handle: u32) {
        if let Some(flow) = self.flows.get_mut(handle as usize).filter(|flow| flow.queue.is_empty()) {
            *flow = Flow::NEW;
        }
    }

    fn cost(&self, node: &Node) -> u64 {
        let bytes = if node.operation.has_data() { u64::from(node.blocks) * self.lba_bytes } else { 0 };
        debug_assert!(node.operation != Operation::Flush || bytes == 0, "a flush has no blocks");
        bytes.max(COST_MIN)
    }

    /// Takes in a handle's settings as they are now.
    pub(super) fn allow(&mut self, handle: u32, rights: &Rights) {
        self.admit(handle);
        let factor = match rights.priority {
            Priority::Urgent | Priority::High => 4,
            Priority::Medium => 2,
            Priority::Low => 1,
        };
        let flow = &mut self.flows[handle as usize];
        flow.quantum = (u64::from(rights.weight.max(1)) * factor * QUANTUM) as i64;
        flow.rate = rights.rate;
        if rights.rate.bytes_per_s == 0 {
            flow.bytes_at = 0;
        }
        if rights.rate.requests_per_s == 0 {
            flow.requests_at = 0;
        }
    }

    pub(super) fn insert(&mut self, nodes: &mut Nodes, index: u32) {
        let handle = nodes[index].handle;
        self.admit(handle);
        let flow = &mut self.flows[handle as usize];
        if flow.queue.is_empty() {
            self.ring.push(handle);
            // What it owes from merging stays; what it did not use does not.
            (flow.paid, flow.deficit) = (false, flow.deficit.min(0));
        }
        flow.queue.insert(nodes, index);
    }

    /// Whether the rate of a request's handle lets it go.
    pub(super) fn may_go(&self, node: &Node, now: u64) -> bool {
        self.flows.get(node.handle as usize).is_none_or(|flow| flow.ready_at() <= now)
    }

    /// Whose turn it is: goes round once, each handle earning its share as its turn comes; if nobody can pay, as
    /// many rounds as the first needs are paid at once.
    pub(super) fn pick(&mut self, nodes: &Nodes, now: u64) -> Pick {
        let mut later = u64::MAX;
        let mut rounds = i64::MAX;
        for _ in 0..self.ring.len() {
            let flow = &mut self.flows[self.ring[0] as usize];
            let Some(head) = flow.queue.front() else { break };
            if flow.ready_at() > now {
                later = later.min(flow.ready_at());
            } else {
                if !flow.paid {
                    (flow.paid, flow.deficit) = (true, flow.deficit.saturating_add(flow.quantum));
                }
                let (cost, flow) = (self.cost(&nodes[head]) as i64, &self.flows[self.ring[0] as usize]);
                if flow.deficit >= cost {
                    return Pick::Node(head);
                }
                let missing = cost.saturating_sub(flow.deficit);
                rounds = rounds.min(missing.saturating_add(flow.quantum - 1) / flow.quantum);
            }
            self.flows[self.ring[0] as usize].paid = false;
            self.ring.rotate_left(1);
        }
        if rounds == i64::MAX {
            return if later == u64::MAX { Pick::Nothing } else { Pick::Later(later) };
        }
        self.pay(rounds, nodes, now)
    }

    /// Pays `rounds` rounds to everybody who may go, after which somebody can.
    fn pay(&mut self, rounds: i64, nodes: &Nodes, now: u64) -> Pick {
        for &handle in &self.ring {
            let flow = &mut self.flows[handle as usize];
            if flow.ready_at() <= now {
                flow.deficit = flow.deficit.saturating_add(flow.quantum.saturating_mul(rounds));
                // The last of these rounds is the one that is under way.
                flow.paid = true;
            }
        }
        for _ in 0..self.ring.len() {
            let flow = &self.flows[self.ring[0] as usize];
            if let Some(head) = flow.queue.front()
                && flow.ready_at() <= now
                && flow.deficit >= self.cost(&nodes[head]) as i64
            {
                return Pick::Node(head);
            }
            self.flows[self.ring[0] as usize].paid = false;
            self.ring.rotate_left(1);
        }
        debug_assert!(false, "paying enough rounds lets somebody go");
        Pick::Nothing
    }

    /// A request goes: the one picked, or one that goes with it. Its handle pays.
    pub(super) fn take(&mut self, nodes: &mut Nodes, index: u32, now: u64) {
        let cost = self.cost(&nodes[index]);
        self.flows[nodes[index].handle as usize].charge(cost, now);
        self.remove(nodes, index);
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, index: u32) {
        let handle = nodes[index].handle;
        let flow = &mut self.flows[handle as usize];
        flow.queue.remove(nodes, index);
        if flow.queue.is_empty() {
            self.ring.retain(|&other| other != handle);
        }
    }
}
