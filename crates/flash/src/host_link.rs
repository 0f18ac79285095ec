//! What passes between a drive and its host's memory: when it does, and when the drive's owner moves its bytes.

use crate::calendar::NEVER;
use crate::drive::Drive;
use crate::host_memory::{HostPages, Move, Passing};
use crate::profile::UNIT_BYTES;
use crate::tables::Words;
use std::collections::VecDeque;

/// What is on its way, and what has passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostLink {
    /// What passes to the host, and from it: until when, in the order of these times.
    puts: VecDeque<(u64, Passing)>,
    gets: VecDeque<(u64, Passing)>,
    /// What has passed, and the owner was not told.
    passed: VecDeque<(Move, Passing)>,
    /// What he was told: it is done when he lets the drive go on.
    told: VecDeque<(Move, Passing)>,
}

impl HostLink {
    /// Whether the owner has something to move before the drive goes on.
    #[inline]
    pub(crate) fn has_passed(&self) -> bool {
        !self.passed.is_empty()
    }

    /// Whether something waits to be taken for done.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.passed.is_empty() || !self.told.is_empty()
    }

    fn next_due(&self) -> u64 {
        let due = |line: &VecDeque<(u64, Passing)>| line.front().map_or(NEVER, |&(end, _)| end);
        due(&self.puts).min(due(&self.gets))
    }
}

impl<W: Words> Drive<W> {
    /// The host has given memory; the drive had none.
    pub(crate) fn give_host_memory(&mut self, pages: HostPages) {
        let Some(layer) = &mut self.layer else { return };
        layer.give_host_memory(pages);
        self.calendar.make_room(self.host_resource + 1);
        self.host = Some(Box::default());
    }

    /// The host's memory is gone: what was to come from there is read from flash.
    pub(crate) fn end_host_memory(&mut self, now: u64) {
        self.settle_told(now);
        let Some(link) = self.host.take() else { return };
        self.calendar.set(self.host_resource, NEVER);
        let passed = link.passed.iter().filter(|(of, _)| !of.is_put).map(|&(_, passing)| passing);
        let gets: Vec<Passing> = passed.chain(link.gets.iter().map(|&(_, passing)| passing)).collect();
        let Some(layer) = &mut self.layer else { return };
        for (command, bytes) in layer.end_host_memory(&mut self.array, &gets) {
            self.send(now, command, bytes);
        }
        self.work(now);
    }

    /// What has passed, for the owner to move.
    pub(crate) fn next_move(&mut self) -> Option<Move> {
        let link = self.host.as_mut()?;
        let next = link.passed.pop_front()?;
        link.told.push_back(next);
        Some(next.0)
    }

    /// What the owner was told could not be moved.
    pub(crate) fn move_failed(&mut self, now: u64, of: &Move) {
        let Some(link) = &mut self.host else { return };
        let Some(at) = link.told.iter().position(|(told, _)| told == of) else { return };
        if let Some((of, passing)) = link.told.remove(at) {
            self.move_ended(now, &of, passing, false);
            self.work(now);
        }
    }

    /// What has passed is done, whether or not the owner was told: the drive goes on.
    pub(crate) fn settle_moves(&mut self, now: u64) {
        if let Some(link) = &mut self.host {
            let HostLink { passed, told, .. } = &mut **link;
            told.append(passed);
        }
        self.settle_told(now);
    }

    fn settle_told(&mut self, now: u64) {
        while let Some((of, passing)) = self.host.as_mut().and_then(|link| link.told.pop_front()) {
            self.move_ended(now, &of, passing, true);
            self.work(now);
        }
    }

    fn move_ended(&mut self, now: u64, of: &Move, passing: Passing, is_done: bool) {
        let Some(layer) = &mut self.layer else { return };
        if of.is_put {
            return layer.put_ended(of.slot, is_done);
        }
        if let Some((command, bytes)) = layer.get_ended(&mut self.array, passing, is_done) {
            self.send(now, command, bytes);
        }
        self.go_on(now);
    }

    /// Lets pass what the layer has for the host's memory, and wants from there.
    #[cold]
    pub(crate) fn begin_moves(&mut self, now: u64) {
        let (Some(link), Some(layer)) = (&mut self.host, &mut self.layer) else { return };
        let Some(memory) = &mut layer.host_memory else { return };
        for passing in memory.puts.drain(..) {
            link.puts.push_back((self.link_out.pass(now, UNIT_BYTES), passing));
        }
        for passing in memory.gets.drain(..) {
            // The whole slot: only so its checksum can be compared.
            let passed = self.link_in.pass(now, UNIT_BYTES);
            link.gets.push_back((passed.saturating_add(self.profile.host_memory_ns), passing));
        }
        self.calendar.set(self.host_resource, link.next_due());
    }

    /// Something has passed; of two at one time the put is first.
    #[cold]
    pub(crate) fn host_event(&mut self, now: u64) {
        let (Some(link), Some(layer)) = (&mut self.host, &self.layer) else { return };
        let is_put = link.puts.front().is_some_and(|&(end, _)| end <= now);
        let line = if is_put { &mut link.puts } else { &mut link.gets };
        let passing = line.pop_front().map(|(_, passing)| passing);
        self.calendar.set(self.host_resource, link.next_due());
        let Some(passing) = passing else { return };
        let Some(what) = layer.moved(passing.slot) else { return };
        link.passed.push_back((Move { time: now, slot: passing.slot, what, is_put }, passing));
    }
}
