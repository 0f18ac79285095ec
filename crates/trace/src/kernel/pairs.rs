//! Events of the kernel's block layer, paired to requests.
//!
//! A request arrives when it comes into being, or with the first of those that were merged into it. Events belong
//! together by device, operation and first sector, first in, first out; never across another operation.

use super::KernelCounts;
use super::pages::{Event, KernelEvent};
use crate::request::{Catalogue, Op, Request};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Requests that are held because one that was issued before is not completed: what is older then never will be.
const HELD_MAX: usize = 65_536;

type Place = ((u32, u32), u8, u64);

fn place(event: &Event) -> Place {
    (event.device, event.op as u8, event.sector)
}

/// A request that was given to the device.
#[derive(Debug)]
struct Held {
    request: Request,
    /// Sectors that are not completed.
    left: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Issued,
    Completed,
    /// The device did not take it, and gets it again as another one.
    GivenBack,
}

/// Requests of events.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// Arrivals of what is not issued, by where it begins: when, and whose.
    arrivals: BTreeMap<Place, VecDeque<(u64, String)>>,
    /// Requests by where what is left of them begins, in the order of their issue: numbers.
    issued: HashMap<Place, VecDeque<u64>>,
    /// In the order of issue; the first one has the number `first`.
    held: VecDeque<Held>,
    first: u64,
    pub(super) counts: KernelCounts,
}

/// Takes the first of a list by place, which goes with its last.
fn take<T>(lists: &mut HashMap<Place, VecDeque<T>>, at: Place) -> Option<T> {
    let list = lists.get_mut(&at)?;
    let first = list.pop_front();
    if list.is_empty() {
        lists.remove(&at);
    }
    first
}

impl Pairs {
    pub(super) fn event(&mut self, event: &Event, names: &mut Catalogue) {
        self.counts.events += 1;
        match event.event {
            KernelEvent::Start => self.arrive(event),
            KernelEvent::Insert if self.arrivals.contains_key(&place(event)) => {}
            KernelEvent::Insert => self.arrive(event),
            KernelEvent::Issue => self.issue(event, names),
            KernelEvent::Complete => self.complete(event),
            KernelEvent::Requeue => self.give_back(event),
        }
    }

    fn arrive(&mut self, event: &Event) {
        self.arrivals.entry(place(event)).or_default().push_back((event.time_ns, event.process.clone()));
    }

    /// Gives a request to the device: what has arrived within its sectors was merged into it.
    fn issue(&mut self, event: &Event, names: &mut Catalogue) {
        let first = place(event);
        let last = (first.0, first.1, event.sector + u64::from(event.sectors.max(1)) - 1);
        let merged: Vec<Place> = self.arrivals.range(first..=last).map(|(place, _)| *place).collect();
        let mut arrived: Option<(u64, String)> = None;
        for place in merged {
            let Some(waiting) = self.arrivals.get_mut(&place) else { continue };
            let one = waiting.pop_front();
            if waiting.is_empty() {
                self.arrivals.remove(&place);
            }
            let is_earlier = |one: &(u64, String)| arrived.as_ref().is_none_or(|before| one.0 < before.0);
            if one.as_ref().is_some_and(is_earlier) {
                arrived = one;
            }
        }
        self.counts.without_arrival += u64::from(arrived.is_none());
        let (arrival_ns, process) = arrived.unwrap_or_else(|| (event.time_ns, event.process.clone()));
        let (major, minor) = event.device;
        let (offset, bytes) = (event.sector * 512, u64::from(event.sectors) * 512);
        let request = Request {
            device: names.devices.number(&format!("{major},{minor}")).unwrap_or(0),
            process: names.processes.number(&process).unwrap_or(0),
            start_ns: Some(event.time_ns),
            flags: event.flags,
            ..Request::new(event.op, offset, bytes, arrival_ns.min(event.time_ns))
        };
        let number = self.first + self.held.len() as u64;
        self.held.push_back(Held { request, left: event.sectors, state: State::Issued });
        self.issued.entry(first).or_default().push_back(number);
    }

    fn at(&mut self, number: u64) -> Option<&mut Held> {
        self.held.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Completes what was issued first at this place, or a first part of it.
    fn complete(&mut self, event: &Event) {
        let at = place(event);
        let Some(number) = take(&mut self.issued, at) else {
            // A flush is a request of the kernel's own; the one that asked for it completes besides, never issued.
            self.counts.without_issue += u64::from(event.op != Op::Flush);
            return;
        };
        let Some(held) = self.at(number) else { return };
        held.left = held.left.saturating_sub(event.sectors);
        held.request.finish_ns = Some(event.time_ns);
        if held.left > 0 {
            // The rest begins where this part ends.
            let rest = (at.0, at.1, at.2 + u64::from(event.sectors));
            self.issued.entry(rest).or_default().push_back(number);
        } else {
            held.state = State::Completed;
        }
    }

    /// The device did not take it: it waits as if it had not been issued.
    fn give_back(&mut self, event: &Event) {
        let at = place(event);
        let Some(number) = take(&mut self.issued, at) else { return };
        let Some(held) = self.at(number) else { return };
        held.state = State::GivenBack;
        let arrival = (held.request.arrival_ns, event.process.clone());
        self.arrivals.entry(at).or_default().push_front(arrival);
    }

    /// The next request in the order of issue, if it is completed; `all`: or if it never will be.
    pub(super) fn next(&mut self, all: bool) -> Option<Request> {
        loop {
            let state = self.held.front()?.state;
            if state == State::Issued && !all && self.held.len() <= HELD_MAX {
                return None;
            }
            let Held { request, .. } = self.held.pop_front()?;
            self.first += 1;
            match state {
                State::Completed if request.checked().is_ok() => {
                    self.counts.requests += 1;
                    return Some(request);
                }
                State::Completed | State::Issued => self.counts.without_completion += 1,
                State::GivenBack => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, KernelEvent, Pairs};
    use crate::request::{Catalogue, Flags, Op, Request};

    fn event(time_ns: u64, event: KernelEvent, op: Op, (sector, sectors): (u64, u32)) -> Event {
        let process = format!("p{time_ns}");
        Event { time_ns, event, device: (8, 0), op, flags: Flags::default(), sector, sectors, process }
    }

    /// The requests of events, and what was counted.
    fn pairs(events: &[Event]) -> (Vec<Request>, Pairs, Catalogue) {
        let (mut pairs, mut names, mut found) = (Pairs::default(), Catalogue::default(), Vec::new());
        for event in events {
            pairs.event(event, &mut names);
            found.extend(std::iter::from_fn(|| pairs.next(false)));
        }
        found.extend(std::iter::from_fn(|| pairs.next(true)));
        (found, pairs, names)
    }

    fn times(requests: &[Request]) -> Vec<(u64, u64, u64, u64)> {
        let times =
            |one: &Request| (one.offset / 512, one.arrival_ns, one.start_ns.unwrap(), one.finish_ns.unwrap());
        requests.iter().map(times).collect()
    }

    #[test]
    fn what_is_merged_arrives_with_the_first_of_it() {
        use KernelEvent::{Complete, Insert, Issue, Start};
        let (found, pairs, names) = pairs(&[
            event(1, Start, Op::Write, (8, 8)),
            event(2, Start, Op::Write, (0, 8)),
            event(3, Start, Op::Read, (0, 8)),
            event(4, Insert, Op::Write, (0, 8)),
            event(5, Issue, Op::Write, (0, 16)),
            event(6, Issue, Op::Read, (0, 8)),
            event(7, Complete, Op::Read, (0, 8)),
            event(9, Complete, Op::Write, (0, 16)),
        ]);
        // The write, whose first part arrived at 1, and the read at the same place: in the order of issue.
        assert_eq!(times(&found), [(0, 1, 5, 9), (0, 3, 6, 7)]);
        assert_eq!((found[0].bytes, found[0].op, found[1].op), (16 * 512, Op::Write, Op::Read));
        assert_eq!(
            (names.processes.name(found[0].process), names.devices.name(found[0].device)),
            ("p1", "8,0")
        );
        let counts = pairs.counts;
        assert_eq!((counts.events, counts.requests, counts.without_arrival), (8, 2, 0));
    }

    #[test]
    fn a_request_ends_with_its_last_part_and_is_issued_again_if_it_was_given_back() {
        use KernelEvent::{Complete, Issue, Requeue, Start};
        let (found, pairs, _) = pairs(&[
            event(1, Start, Op::Read, (0, 16)),
            event(2, Issue, Op::Read, (0, 16)),
            event(3, Requeue, Op::Read, (0, 16)),
            event(4, Issue, Op::Read, (0, 16)),
            event(5, Complete, Op::Read, (0, 8)),
            event(6, Complete, Op::Read, (8, 8)),
        ]);
        assert_eq!(times(&found), [(0, 1, 4, 6)]);
        assert_eq!((pairs.counts.without_issue, pairs.counts.without_completion), (0, 0));
    }

    #[test]
    fn what_has_no_partner_is_counted() {
        use KernelEvent::{Complete, Issue};
        let (found, pairs, _) = pairs(&[
            event(1, Complete, Op::Write, (64, 8)),
            event(2, Issue, Op::Write, (0, 8)),
            event(3, Issue, Op::Write, (0, 8)),
            event(4, Complete, Op::Write, (0, 8)),
            // Of another operation: it is not its end.
            event(5, Complete, Op::Discard, (0, 8)),
            event(6, Complete, Op::Flush, (0, 0)),
        ]);
        assert_eq!(times(&found), [(0, 2, 2, 4)]);
        let counts = pairs.counts;
        assert_eq!((counts.without_issue, counts.without_completion, counts.without_arrival), (2, 1, 2));
    }
}
