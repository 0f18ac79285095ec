//! How many requests a device has at a time, and for how long it has any in service.

use crate::Request;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most requests under way whose times are held, of all devices together: some 100 MiB, and far more than devices take.
const HELD_MAX: u32 = 1 << 22;

/// What all devices may still hold.
#[derive(Debug)]
pub(super) struct Room {
    held: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { held: HELD_MAX }
    }
}

/// The requests of one device that are under way when the latest one arrives.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// When those end that have arrived.
    ends_ns: BinaryHeap<Reverse<u64>>,
    /// Start and finish of those whose service begins behind the latest arrival: one that is still to come may begin
    /// before them.
    to_start_ns: BinaryHeap<Reverse<(u64, u64)>>,
    busy_ns: u64,
    /// Up to here it is known when the device was busy.
    covered_ns: u64,
}

impl Load {
    /// How many requests there are when this one arrives, with it.
    #[inline]
    pub(super) fn arrive(&mut self, request: &Request, room: &mut Room) -> u64 {
        let arrival_ns = request.arrival_ns;
        while self.ends_ns.peek().is_some_and(|end| end.0 <= arrival_ns) {
            self.ends_ns.pop();
            room.held += 1;
        }
        // What comes later starts no earlier than it arrives.
        while self.to_start_ns.peek().is_some_and(|next| next.0.0 <= arrival_ns) {
            self.serve_next(room);
        }
        let depth = self.ends_ns.len() as u64 + 1;
        if let Some(finish_ns) = request.finish_ns {
            self.hold_end(finish_ns, room);
            // Of a device that takes requests at once no start is told.
            let start_ns = request.start_ns.unwrap_or(arrival_ns);
            if start_ns <= arrival_ns {
                self.serve(start_ns, finish_ns);
            } else {
                self.hold_start(start_ns, finish_ns, room);
            }
        }
        depth
    }

    /// Where there is no room, what ends first counts as if it had ended.
    #[inline]
    fn hold_end(&mut self, finish_ns: u64, room: &mut Room) {
        if room.held > 0 {
            room.held -= 1;
        } else if self.ends_ns.pop().is_none() {
            return;
        }
        self.ends_ns.push(Reverse(finish_ns));
    }

    /// Where there is no room, what starts first counts as if nothing could start before it any more.
    #[inline]
    fn hold_start(&mut self, start_ns: u64, finish_ns: u64, room: &mut Room) {
        if room.held == 0 && !self.to_start_ns.is_empty() {
            self.serve_next(room);
        }
        if room.held == 0 {
            return self.serve(start_ns, finish_ns);
        }
        room.held -= 1;
        self.to_start_ns.push(Reverse((start_ns, finish_ns)));
    }

    #[inline]
    fn serve_next(&mut self, room: &mut Room) {
        if let Some(Reverse((start_ns, finish_ns))) = self.to_start_ns.pop() {
            room.held += 1;
            self.serve(start_ns, finish_ns);
        }
    }

    /// Services come in the order of their starts.
    #[inline]
    fn serve(&mut self, start_ns: u64, finish_ns: u64) {
        self.busy_ns += finish_ns.saturating_sub(start_ns.max(self.covered_ns));
        self.covered_ns = self.covered_ns.max(finish_ns);
    }

    /// For how long at least one request was in service.
    pub(super) fn finish(mut self, room: &mut Room) -> u64 {
        room.held += self.ends_ns.len() as u32;
        while !self.to_start_ns.is_empty() {
            self.serve_next(room);
        }
        self.busy_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn request(arrival_ns: u64, start_ns: u64, finish_ns: u64) -> Request {
        Request {
            start_ns: Some(start_ns),
            finish_ns: Some(finish_ns),
            ..Request::new(Op::Read, 0, 4096, arrival_ns)
        }
    }

    /// Depths and busy time of some requests.
    fn load(requests: &[Request], held: u32) -> (Vec<u64>, u64) {
        let (mut load, mut room) = (Load::default(), Room { held });
        let depths = requests.iter().map(|request| load.arrive(request, &mut room)).collect();
        let busy_ns = load.finish(&mut room);
        assert_eq!(room.held, held, "all room is given back");
        (depths, busy_ns)
    }

    #[test]
    fn services_that_overlap_are_busy_once() {
        // The third one overtakes the second; nothing is served from 30 to 40 and from 55 to 60.
        let requests = [request(0, 0, 30), request(10, 45, 55), request(20, 40, 50), request(60, 60, 61)];
        assert_eq!(load(&requests, 100), (vec![1, 2, 3, 1], 30 + 15 + 1));
        // A request that ends as another arrives is not there any more.
        assert_eq!(load(&[request(0, 0, 5), request(5, 5, 9)], 100), (vec![1, 1], 9));
    }

    #[test]
    fn without_room_nothing_is_counted_twice() {
        let requests: Vec<Request> =
            (0..100).map(|at| request(at, 1_000 + 10 * at, 2_000 + 10 * at)).collect();
        assert_eq!(load(&requests, 1_000), ((1..=100).collect(), 1_990));
        for held in [0, 1, 7] {
            let (depths, busy_ns) = load(&requests, held);
            assert!(depths.iter().all(|&depth| depth <= u64::from(held) + 1) && busy_ns <= 1_990, "{held}");
        }
    }
}
