//! How many requests a device has at each time, in bins of time.

use super::{COLUMN_NS, COLUMNS};
use crate::Request;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most requests under way whose ends are held, of all devices together: 8 MiB, and far more than devices take.
const HELD_MAX: u32 = 1 << 20;

/// What all courses may still hold.
#[derive(Clone, Debug)]
pub(super) struct Room {
    held: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { held: HELD_MAX }
    }
}

/// A device's queue depth in a bin of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DepthBin {
    /// The mean over the bin's time.
    pub mean: f64,
    /// The most at any time of it. Of a request whose finish is not known, only its arrival counts.
    pub most: u64,
}

/// How many requests a device has, in service and waiting, from the trace's first arrival to this device's last finish.
#[derive(Clone, Debug)]
pub struct DepthCourse {
    device: u32,
    requests: u64,
    /// Whether any request says when it finished: else nothing is known of the depth.
    is_told: bool,
    column_ns: u64,
    /// The sum of the depth's times, in ns, and the most, column by column.
    bins: Vec<(u128, u64)>,
    /// When those finish that have arrived; all times are since the trace's first arrival.
    ends_ns: BinaryHeap<Reverse<u64>>,
    /// Up to here all is counted.
    now_ns: u64,
}

impl DepthCourse {
    pub(super) fn new(device: u32) -> Self {
        let (bins, ends_ns) = (Vec::new(), BinaryHeap::new());
        Self { device, requests: 0, is_told: false, column_ns: COLUMN_NS, bins, ends_ns, now_ns: 0 }
    }

    /// Takes the device's next request, of a trace that begins so.
    pub(super) fn push(&mut self, begin_ns: u64, request: &Request, room: &mut Room) {
        let arrival_ns = request.arrival_ns.saturating_sub(begin_ns);
        self.end_until(arrival_ns, room);
        self.advance(arrival_ns);
        self.requests += 1;
        let column = self.column(self.now_ns);
        let bin = &mut self.bins[column];
        bin.1 = bin.1.max(self.ends_ns.len() as u64 + 1);
        let Some(finish_ns) = request.finish_ns else { return };
        self.is_told = true;
        // Where there is no room, what ends first counts as if it had ended.
        if room.held > 0 {
            room.held -= 1;
        } else if self.ends_ns.pop().is_none() {
            return;
        }
        self.ends_ns.push(Reverse(finish_ns.saturating_sub(begin_ns)));
    }

    /// Those end that finish by then.
    fn end_until(&mut self, time_ns: u64, room: &mut Room) {
        while let Some(&Reverse(end_ns)) = self.ends_ns.peek().filter(|end| end.0 <= time_ns) {
            self.advance(end_ns);
            self.ends_ns.pop();
            room.held += 1;
        }
    }

    /// The depth stays as it is up to then.
    fn advance(&mut self, time_ns: u64) {
        let depth = self.ends_ns.len() as u64;
        if depth > 0 && time_ns > self.now_ns {
            let last = self.column(time_ns - 1);
            for column in (self.now_ns / self.column_ns) as usize..=last {
                let begin_ns = column as u64 * self.column_ns;
                let end_ns = begin_ns.saturating_add(self.column_ns).min(time_ns);
                let bin = &mut self.bins[column];
                bin.0 += u128::from(depth) * u128::from(end_ns - begin_ns.max(self.now_ns));
                bin.1 = bin.1.max(depth);
            }
        }
        self.now_ns = self.now_ns.max(time_ns);
    }

    /// The column of a time, which is there then.
    fn column(&mut self, time_ns: u64) -> usize {
        while time_ns / self.column_ns >= COLUMNS as u64 {
            self.column_ns *= 2;
            let halved = self.bins.chunks(2).map(|pair| {
                let of = |bin: usize| pair.get(bin).copied().unwrap_or_default();
                (of(0).0 + of(1).0, of(0).1.max(of(1).1))
            });
            self.bins = halved.collect();
        }
        let column = (time_ns / self.column_ns) as usize;
        self.bins.resize(self.bins.len().max(column + 1), (0, 0));
        column
    }

    /// The course with the ends of all requests; nothing, if no request tells its finish.
    pub(super) fn finished(&self) -> Option<Self> {
        let mut all = self.is_told.then(|| self.clone())?;
        all.end_until(u64::MAX, &mut Room { held: 0 });
        Some(all)
    }

    /// The device's number.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// How many requests it had, discards and flushes among them.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Width of a bin.
    #[must_use]
    pub fn bin_ns(&self) -> u64 {
        self.column_ns
    }

    /// The depth in each bin. The time of the last one ends with the last finish.
    #[must_use]
    pub fn bins(&self) -> Vec<DepthBin> {
        let time_ns = |column: usize| {
            let begin_ns = column as u64 * self.column_ns;
            self.now_ns.saturating_sub(begin_ns).clamp(1, self.column_ns)
        };
        let bins = self.bins.iter().enumerate();
        bins.map(|(column, &(sum, most))| DepthBin { mean: sum as f64 / time_ns(column) as f64, most })
            .collect()
    }

    /// When the last request has finished, or arrived, since the trace's first arrival.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Timeline};
    use nvmed_dice::Dice;

    fn request(device: u32, arrival_ns: u64, finish_ns: Option<u64>) -> Request {
        Request { device, finish_ns, ..Request::new(Op::Write, 0, 4096, arrival_ns) }
    }

    fn courses(requests: &[Request]) -> Vec<DepthCourse> {
        let mut timeline = Timeline::default();
        requests.iter().for_each(|request| timeline.push(request));
        timeline.depths()
    }

    #[test]
    fn bins_are_those_of_a_count_of_each_time() {
        for seed in 0..40 {
            let mut dice = Dice::new(seed);
            let (gap, response) = (1 << dice.roll(12), 1 << dice.roll(20));
            let mut arrival_ns = dice.roll(1 << 40);
            let requests: Vec<Request> = (0..300)
                .map(|_| {
                    arrival_ns += dice.roll(gap) * 100;
                    request(dice.roll(2) as u32, arrival_ns, Some(arrival_ns + dice.roll(response) * 100))
                })
                .collect();
            let begin_ns = requests[0].arrival_ns;
            for course in courses(&requests) {
                let own = || requests.iter().filter(|request| request.device == course.device());
                let times = |request: &Request| {
                    (request.arrival_ns - begin_ns, request.finish_ns.unwrap_or(0) - begin_ns)
                };
                let last_ns = own().map(|request| times(request).1).max().unwrap();
                assert_eq!((course.end_ns(), course.requests()), (last_ns, own().count() as u64));
                for (bin, found) in course.bins().into_iter().enumerate() {
                    let (begin, end) = (bin as u64 * course.bin_ns(), (bin as u64 + 1) * course.bin_ns());
                    let end = end.min(last_ns.max(begin + 1));
                    let within = |request: &Request| {
                        let (arrival, finish) = times(request);
                        finish.min(end).saturating_sub(arrival.max(begin))
                    };
                    let mean = own().map(within).sum::<u64>() as f64 / (end - begin) as f64;
                    assert!((found.mean - mean).abs() < 1e-9 * mean.max(1.0), "{bin}: {} {mean}", found.mean);
                    // The depth is greatest at an arrival, or is what the bin began with.
                    let arrivals = own().map(|request| times(request).0);
                    let open = |time: u64| {
                        own().filter(|request| times(request).0 <= time && times(request).1 > time).count()
                    };
                    let least = arrivals.filter(|&at| at >= begin && at < end).chain([begin]).map(open).max();
                    assert!(found.most >= least.unwrap() as u64 && found.most as f64 >= mean, "{bin}");
                }
            }
        }
    }

    #[test]
    fn a_queue_that_drains_is_seen_after_the_last_arrival() {
        let requests: Vec<Request> = (0..8).map(|at| request(0, 0, Some((at + 1) * 1024))).collect();
        let [course] = &courses(&requests)[..] else { panic!("one device") };
        let bins = course.bins();
        assert_eq!(bins.iter().map(|bin| bin.mean).collect::<Vec<_>>(), [8., 7., 6., 5., 4., 3., 2., 1.]);
        assert_eq!((bins[0].most, bins[7].most), (8, 1));
        // A request that finishes as another arrives is not there any more.
        let [course] = &courses(&[request(0, 0, Some(5)), request(0, 5, Some(9))])[..] else { panic!() };
        assert_eq!(course.bins(), [DepthBin { mean: 1.0, most: 1 }]);
    }

    #[test]
    fn what_has_no_finish_tells_nothing_and_what_is_far_has_a_place() {
        assert!(courses(&[request(0, 0, None), request(0, 9, None)]).is_empty());
        let far = courses(&[request(0, 0, Some(u64::MAX)), request(0, 7, None), request(0, u64::MAX, None)]);
        assert_eq!((far.len(), far[0].end_ns()), (1, u64::MAX));
        assert!(far[0].bins().len() <= COLUMNS && far[0].bins()[0].most == 2);
    }

    #[test]
    fn without_room_nothing_is_counted_twice() {
        let (mut course, mut room) = (DepthCourse::new(0), Room { held: 3 });
        (0..10).for_each(|at| course.push(0, &request(0, at, Some(1_000 + at)), &mut room));
        let course = course.finished().unwrap();
        assert!(course.bins().iter().all(|bin| bin.most <= 4), "{:?}", course.bins());
    }
}
