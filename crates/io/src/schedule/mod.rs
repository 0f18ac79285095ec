//! The order in which a queue gives requests to the device.
//!
//! In: requests with the rights of their handles. Out: the next one for the device, adjacent ones joined; at its
//! end, the completion slots of all that went with it. Bounds: a fixed number of nodes, allocated when a queue gets a
//! scheduler; a push, a pick and an end allocate nothing.
//!
//! What is promised of order, whichever the scheduler: of one handle, a request that touches the blocks of
//! an earlier one is not given to the device before it if either writes, and a flush not before an earlier
//! write. That is what the device sees without a scheduler, too; what it does first is its own affair.

mod deadline;
mod fair;
mod merge;
mod node;

#[cfg(test)]
mod tests;

pub(crate) use node::Rights;

use crate::error::IoError;
use crate::limits::Limits;
use crate::parts::PART_SEGMENTS;
use crate::queue::Scheduler;
use crate::replay::{REPLAYS_MAX, is_idempotent, was_reset};
use crate::slots::Overdue;
use deadline::Deadline;
use fair::Fair;
use node::{List, NONE, Nodes, State};
use nvmed_engine::{Request, Segment};
use nvmed_units::DeviceAddress;

/// Marks the tag of a request that came out of here; the rest is its node.
pub(crate) const NODE_TAG: u64 = 1 << 63;
/// Requests of a scheduler that are with the device at once, at most. Order can only be chosen among those that
/// wait here; 32 keep the flash of today's drives busy.
const WINDOW_MAX: u16 = 32;
/// Urgent requests in a row, when others wait: then one of those goes.
const URGENT_RUN_MAX: u32 = 16;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pick {
    Node(u32),
    /// Nobody's before this time.
    Later(u64),
    Nothing,
}

enum Policy {
    Fifo(List),
    Deadline(Deadline),
    Fair(Fair),
}

/// How a request of a node ended.
pub(crate) struct EndOfNode {
    pub(crate) slot: usize,
    pub(crate) handle: u32,
    /// `None`: it waits once more, after a reset.
    pub(crate) result: Option<Result<(), IoError>>,
}

/// A request that waited and now goes.
pub(crate) struct Departure {
    pub(crate) slot: usize,
    pub(crate) handle: u32,
    pub(crate) waited_ns: u64,
    /// It goes as part of another.
    pub(crate) joined: bool,
}

/// The requests of one queue that wait, or went from here.
pub(crate) struct Backlog {
    nodes: Nodes,
    policy: Policy,
    scheduler: Scheduler,
    merge: bool,
    urgent: List,
    urgent_run: u32,
    /// Requests with the device, and how many there may be on a queue of `depth` commands.
    sent: usize,
    window: usize,
    depth: u16,
    /// Nodes in use, by handle.
    held: Vec<usize>,
    /// One whose turn it was, and for which the device had no slot.
    ready: Option<u32>,
    later_ns: Option<u64>,
    limits: Limits,
    /// Segments of the request that goes.
    room: [Segment; PART_SEGMENTS],
    room_used: usize,
    /// Since when requests are overdue, by node.
    overdue: Box<[Overdue]>,
}

impl Backlog {
    /// For `count` requests, on a queue of `depth` commands.
    pub(crate) fn new(scheduler: Scheduler, merge: bool, count: usize, depth: u16, limits: Limits) -> Self {
        Self {
            nodes: Nodes::new(count),
            policy: Self::policy(scheduler, count, limits),
            scheduler,
            merge,
            urgent: List::EMPTY,
            urgent_run: 0,
            sent: 0,
            window: Self::window(scheduler, merge, depth),
            depth,
            held: Vec::new(),
            ready: None,
            later_ns: None,
            limits,
            room: [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS],
            room_used: 0,
            overdue: vec![Overdue::Unseen; count].into(),
        }
    }

    fn policy(scheduler: Scheduler, count: usize, limits: Limits) -> Policy {
        match scheduler {
            Scheduler::None => Policy::Fifo(List::EMPTY),
            Scheduler::Deadline { read_us, write_us } => {
                Policy::Deadline(Deadline::new(read_us, write_us, count))
            }
            Scheduler::Fair => Policy::Fair(Fair::new(1 << limits.lba_shift)),
        }
    }

    /// How many requests may be with the device: where nothing is to be chosen, as many as it takes.
    fn window(scheduler: Scheduler, merge: bool, depth: u16) -> usize {
        let most = if scheduler == Scheduler::None && !merge { depth } else { WINDOW_MAX };
        depth.min(most).max(1).into()
    }

    pub(crate) fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    /// Whether requests of every handle are to go through here: there is an order to be kept, or there are
    /// some that must not be passed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.scheduler != Scheduler::None || self.merge || self.has_waiting()
    }

    /// Whether a request waits for the device.
    pub(crate) fn has_waiting(&self) -> bool {
        self.nodes.queued() > 0 || self.ready.is_some()
    }

    /// When a request may go that may not yet.
    pub(crate) fn later_ns(&self) -> Option<u64> {
        self.later_ns
    }

    /// Whether `handle` may have `count` more nodes: as many as are free then. One that floods the queue gets
    /// half of them, two get a third each, and there is always room for another.
    pub(crate) fn has_room(&self, handle: u32, count: usize) -> bool {
        let held = self.held.get(handle as usize).copied().unwrap_or(0);
        held + count <= self.nodes.free()
    }

    /// Nodes that one request can have at most.
    pub(crate) fn most(&self) -> usize {
        self.overdue.len() / 2
    }

    /// Changes the order; what waits is taken over, oldest first.
    pub(crate) fn set(&mut self, scheduler: Scheduler, rights: impl Fn(u32) -> Rights) {
        self.scheduler = scheduler;
        self.window = Self::window(scheduler, self.merge, self.depth);
        self.policy = Self::policy(scheduler, self.overdue.len(), self.limits);
        self.later_ns = None;
        let mut waiting: Vec<u32> = (0..self.nodes.count())
            .filter(|&index| self.nodes[index].state == State::Queued && !self.nodes[index].urgent)
            .collect();
        waiting.sort_unstable_by_key(|&index| self.nodes[index].serial);
        for index in waiting {
            let handle = self.nodes[index].handle;
            self.allow(handle, &rights(handle));
            self.enter(index);
        }
    }

    /// A new handle, whose requests must find room.
    pub(crate) fn admit(&mut self, handle: u32) {
        self.held.resize(self.held.len().max(handle as usize + 1), 0);
        if let Policy::Fair(fair) = &mut self.policy {
            fair.forget(handle);
            fair.admit(handle);
        }
    }

    fn allow(&mut self, handle: u32, rights: &Rights) {
        if let Policy::Fair(fair) = &mut self.policy {
            fair.allow(handle, rights);
        }
    }

    /// Takes a request of at most [`PART_SEGMENTS`] segments for `owner`, a completion slot and a handle. `false`: no
    /// room.
    pub(crate) fn push(
        &mut self,
        request: &Request<'_>,
        owner: (u32, u32),
        rights: &Rights,
        now: u64,
    ) -> bool {
        if !self.has_room(owner.1, 1) {
            return false;
        }
        let Some(index) = self.nodes.add(request, owner, rights, now) else { return false };
        if let Some(held) = self.held.get_mut(owner.1 as usize) {
            *held += 1;
        }
        self.allow(owner.1, rights);
        self.enter(index);
        true
    }

    /// Puts a waiting node where it waits.
    fn enter(&mut self, index: u32) {
        let nodes = &mut self.nodes;
        if nodes[index].urgent {
            return self.urgent.insert(nodes, index);
        }
        match &mut self.policy {
            Policy::Fifo(list) => list.insert(nodes, index),
            Policy::Deadline(deadline) => deadline.insert(nodes, index),
            Policy::Fair(fair) => fair.insert(nodes, index),
        }
    }

    fn pick(&mut self, now: u64) -> Pick {
        let urgent = self.urgent.front();
        if let Some(index) = urgent.filter(|_| self.urgent_run < URGENT_RUN_MAX) {
            return Pick::Node(index);
        }
        let picked = match &mut self.policy {
            Policy::Fifo(list) => list.front().map_or(Pick::Nothing, Pick::Node),
            Policy::Deadline(deadline) => deadline.pick(&self.nodes, now).map_or(Pick::Nothing, Pick::Node),
            Policy::Fair(fair) => fair.pick(&self.nodes, now),
        };
        match (picked, urgent) {
            (Pick::Node(_), _) | (_, None) => picked,
            (_, Some(index)) => Pick::Node(index),
        }
    }

    /// The next request for the device, if it may have one now. Either [`Backlog::sent`] or
    /// [`Backlog::hold`] follows, or its end.
    pub(crate) fn next(&mut self, now: u64) -> Option<u32> {
        if self.sent >= self.window {
            return None;
        }
        self.later_ns = None;
        if let Some(head) = self.ready.take() {
            self.gather(head);
            return Some(head);
        }
        let mut index = match self.pick(now) {
            Pick::Node(index) => index,
            Pick::Later(at) => {
                self.later_ns = Some(at);
                return None;
            }
            Pick::Nothing => return None,
        };
        while !self.keeps_order()
            && let Some(older) = self.stopped_by(index)
        {
            index = older;
        }
        self.take(index, State::Sent, now);
        let joins = self.merge && self.nodes.queued() > 0 && !self.nodes[index].alone;
        let head = if joins { self.join(index, now) } else { index };
        self.gather(head);
        Some(head)
    }

    /// Whether what is picked is the oldest of its handle, so that nothing stops it. An order by LBA, and urgent
    /// requests, pass older ones.
    fn keeps_order(&self) -> bool {
        self.urgent.is_empty() && !matches!(self.policy, Policy::Deadline(_))
    }

    /// The oldest waiting request of the same handle that `index` must not pass.
    fn stopped_by(&self, index: u32) -> Option<u32> {
        match &self.policy {
            Policy::Deadline(deadline) if self.urgent.is_empty() => deadline.stopped_by(&self.nodes, index),
            _ => self.nodes.stopped_by(index),
        }
    }

    /// Takes a waiting node out, to go to the device.
    fn take(&mut self, index: u32, state: State, now: u64) {
        let nodes = &mut self.nodes;
        if nodes[index].urgent {
            self.urgent_run += 1;
            self.urgent.remove(nodes, index);
        } else {
            self.urgent_run = 0;
            match (&mut self.policy, state) {
                (Policy::Fifo(list), _) => list.remove(nodes, index),
                (Policy::Deadline(deadline), State::Joined) => deadline.remove(nodes, index),
                (Policy::Deadline(deadline), _) => deadline.take(nodes, index),
                (Policy::Fair(fair), _) => fair.take(nodes, index, now),
            }
        }
        nodes.leave(index, state);
    }

    /// What goes to the device for `head`, after [`Backlog::next`].
    pub(crate) fn request(&self, head: u32) -> Request<'_> {
        let node = &self.nodes[head];
        Request {
            operation: node.operation,
            lba: node.lba,
            blocks: self.chain(head).map(|index| self.nodes[index].blocks).sum(),
            data: &self.room[..self.room_used],
            tag: NODE_TAG | u64::from(head),
            stream: node.stream,
        }
    }

    /// The nodes that go as one request.
    fn chain(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(Some(head), |&at| Some(self.nodes[at].joined).filter(|&next| next != NONE))
    }

    /// The device has it; what that means for those that waited.
    pub(crate) fn sent(&mut self, head: u32, now: u64) -> impl Iterator<Item = Departure> + '_ {
        self.sent += 1;
        self.overdue[head as usize] = Overdue::Unseen;
        let this = &*self;
        this.chain(head).map(move |index| {
            let node = &this.nodes[index];
            Departure {
                slot: node.slot as usize,
                handle: node.handle,
                waited_ns: now.saturating_sub(node.arrived_ns),
                joined: index != head,
            }
        })
    }

    /// The device had no slot for it: it is the next.
    pub(crate) fn hold(&mut self, head: u32) {
        self.ready = Some(head);
    }

    /// The device is ready with `head`; answers the next of its nodes whose completion slot is to be told, until all
    /// are. A request of several that failed is taken apart, so that only what failed fails.
    pub(crate) fn end(
        &mut self,
        head: u32,
        result: Result<(), IoError>,
        was_sent: bool,
        each: impl FnMut(EndOfNode),
    ) {
        self.sent -= usize::from(was_sent);
        let mut each = each;
        if result.is_err()
            && let Some(held) = self.ready.take()
        {
            // What comes back may have to go before what was about to go.
            self.put_back(held);
        }
        let several = self.nodes[head].joined != NONE;
        let reset = result.as_ref().is_err_and(was_reset);
        let apart = several && result.as_ref().is_err_and(|error| !error.is_fault());
        let mut next = head;
        while next != NONE {
            let index = next;
            let node = &mut self.nodes[index];
            next = node.joined;
            let (slot, handle) = (node.slot as usize, node.handle);
            let again = reset && node.replay && node.replays < REPLAYS_MAX && is_idempotent(node.operation);
            if again || apart {
                node.replays += u8::from(again);
                node.alone |= apart;
                self.nodes.come_back(index);
                self.enter(index);
                if again {
                    each(EndOfNode { slot, handle, result: None });
                }
            } else {
                self.nodes.release(index);
                if let Some(held) = self.held.get_mut(handle as usize) {
                    *held -= 1;
                }
                each(EndOfNode { slot, handle, result: Some(result) });
            }
        }
    }

    /// What was about to go waits again.
    fn put_back(&mut self, head: u32) {
        let mut next = head;
        while next != NONE {
            let index = next;
            next = self.nodes[index].joined;
            self.nodes.come_back(index);
            self.enter(index);
        }
    }

    pub(crate) fn set_overdue(&mut self, index: u32, overdue: Overdue) {
        self.overdue[index as usize] = overdue;
    }

    /// Nodes there are.
    pub(crate) fn count(&self) -> u32 {
        self.nodes.count()
    }

    /// The handle of a request that is with the device, and since when it is overdue.
    pub(crate) fn pending_at(&self, index: u32) -> Option<(u32, Overdue)> {
        let node = &self.nodes[index];
        let sent = node.state == State::Sent && self.ready != Some(index);
        sent.then_some((node.handle, self.overdue[index as usize]))
    }
}
