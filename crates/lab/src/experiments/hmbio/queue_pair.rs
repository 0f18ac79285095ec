//! A queue pair, as a host's driver has it: entries that wait for the controller, and requests that wait in the host.

use std::collections::VecDeque;

/// Entries of a submission queue (Table 4), of which one stays free.
const ENTRIES: u32 = 16_384;
/// Commands under way, at most: each has an identifier.
pub(super) const IDENTIFIERS: u32 = ENTRIES - 1;

/// Whose a command is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Owner {
    /// The load's.
    #[default]
    Load,
    /// An urgent request's, and which command of all.
    Urgent { request: u32, command: u32 },
}

/// A command, and when its owner issued it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub issued_ns: u64,
    pub owner: Owner,
}

/// A submission queue and its identifiers.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub class: usize,
    used: u32,
    /// In the submission queue.
    entries: VecDeque<Entry>,
    /// Without an identifier.
    in_host: VecDeque<Entry>,
}

impl QueuePair {
    pub(super) fn new(class: usize) -> Self {
        Self { class, used: 0, entries: VecDeque::new(), in_host: VecDeque::new() }
    }

    /// Takes a command; whether it is in the submission queue.
    #[inline]
    pub(super) fn submit(&mut self, entry: Entry) -> bool {
        let has_room = self.used < IDENTIFIERS;
        if has_room {
            self.used += 1;
            self.entries.push_back(entry);
        } else {
            self.in_host.push_back(entry);
        }
        has_room
    }

    /// The controller takes the next command.
    #[inline]
    pub(super) fn fetch(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    /// An identifier is free again; who has waited longest in the host gets it.
    #[inline]
    pub(super) fn complete(&mut self) -> Option<Entry> {
        self.used -= 1;
        self.in_host.pop_front()
    }

    #[inline]
    pub(super) fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Commands that wait in the submission queue.
    pub(super) fn entries(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Commands that wait in it or for it.
    pub(super) fn waiting_entries(&self) -> usize {
        self.entries.len() + self.in_host.len()
    }
}

/// How many commands wait in a submission queue, as a mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Waiting {
    /// Over time.
    pub counted: f64,
    /// By the paper's method: the queue's end less its head, as each completion entry tells it.
    pub by_method: f64,
    /// Completions at which the host looked.
    pub looks: u64,
}

/// Counts what waits in a submission queue.
#[derive(Debug)]
pub(super) struct Gauge {
    begin_ns: u64,
    last_ns: u64,
    entries: u32,
    entries_ns: f64,
    looks: u64,
    looked: u64,
}

impl Gauge {
    pub(super) fn new(now_ns: u64, entries: u32) -> Self {
        Self { begin_ns: now_ns, last_ns: now_ns, entries, entries_ns: 0.0, looks: 0, looked: 0 }
    }

    /// So many wait from now on.
    pub(super) fn is_now(&mut self, now_ns: u64, entries: u32) {
        self.entries_ns += f64::from(self.entries) * (now_ns - self.last_ns) as f64;
        (self.last_ns, self.entries) = (now_ns, entries);
    }

    /// The host looks, at a completion.
    pub(super) fn look(&mut self, entries: u32) {
        self.looks += 1;
        self.looked += u64::from(entries);
    }

    pub(super) fn end(mut self, now_ns: u64) -> Waiting {
        self.is_now(now_ns, self.entries);
        Waiting {
            counted: self.entries_ns / (now_ns - self.begin_ns) as f64,
            by_method: self.looked as f64 / self.looks as f64,
            looks: self.looks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entry_stays_free_and_who_waits_in_the_host_is_next() {
        let mut pair = QueuePair::new(0);
        let entry = |issued_ns| Entry { issued_ns, owner: Owner::Load };
        assert!((0..16_383).all(|at| pair.submit(entry(at))));
        assert!(!pair.submit(entry(16_383)));
        assert_eq!(pair.fetch(), Some(entry(0)));
        // Fetched is not done: there is no identifier yet.
        assert!(!pair.submit(entry(16_384)));
        assert_eq!(pair.complete(), Some(entry(16_383)));
        assert_eq!((pair.entries(), pair.waiting_entries()), (16_382, 16_383));
    }
}
