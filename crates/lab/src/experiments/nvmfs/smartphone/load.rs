//! A workload of a smartphone as a medium of bytes sees it: its requests, and what a file system or a program could say
//! of them.

use super::super::super::iiswc15::synthesised;
use crate::error::LabError;
use core::ops::Range;
use nvmed_trace::{Op, Request, Row};
use std::collections::BTreeSet;

/// Bytes of a page: all offsets and lengths are whole ones.
pub(super) const PAGE: u64 = 4096;
/// Nothing that the workload does not touch is on the medium, but for so much behind each place that it touches, so
/// that what did not follow does not follow here.
const GRANULE: u64 = 64 << 10;

/// A request, at its place on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) arrival_ns: u64,
    pub(super) is_write: bool,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

impl Asked {
    pub(super) fn end(&self) -> u64 {
        self.at + self.bytes
    }
}

/// The beginning of a workload.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) name: String,
    pub(super) requests: Vec<Asked>,
    /// Bytes of the medium.
    pub(super) medium_bytes: u64,
    /// What lies in one piece, in order: all that the workload ever touches there.
    pub(super) pieces: Vec<Range<u64>>,
}

/// The places of a trace, each run of them with where it lies on the medium.
struct Places(Vec<(Range<u64>, u64)>);

impl Places {
    fn of(requests: &[Request]) -> Self {
        let touched: BTreeSet<u64> = requests
            .iter()
            .flat_map(|request| request.offset / GRANULE..request.end().div_ceil(GRANULE))
            .collect();
        let mut places: Vec<(Range<u64>, u64)> = Vec::new();
        let mut free = 0;
        for granule in touched {
            match places.last_mut() {
                Some((run, _)) if run.end == granule => run.end += 1,
                _ => {
                    free += u64::from(!places.is_empty());
                    places.push((granule..granule + 1, free));
                }
            }
            free += 1;
        }
        Self(places)
    }

    fn place(&self, offset: u64) -> u64 {
        let granule = offset / GRANULE;
        let (run, place) = &self.0[self.0.partition_point(|(run, _)| run.end <= granule)];
        (place + granule - run.start) * GRANULE + offset % GRANULE
    }

    fn bytes(&self) -> u64 {
        self.0.last().map_or(0, |(run, place)| (place + run.end - run.start) * GRANULE)
    }
}

/// Ranges in order, joined where they touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

impl Load {
    /// The first `count` requests of a trace like a row, from time 0 on.
    ///
    /// # Errors
    /// No trace is like it.
    pub(super) fn of(row: &Row, seed: u64, count: usize) -> Result<Self, LabError> {
        let is_meant = |request: &Request| matches!(request.op, Op::Read | Op::Write);
        let requests: Vec<Request> = synthesised(row, seed)?.filter(is_meant).take(count).collect();
        Ok(Self::made(&row.name, &requests))
    }

    /// As a trace has it.
    fn made(name: &str, requests: &[Request]) -> Self {
        let places = Places::of(requests);
        let begin_ns = requests.first().map_or(0, |first| first.arrival_ns);
        let requests: Vec<Asked> = requests
            .iter()
            .map(|request| Asked {
                arrival_ns: request.arrival_ns - begin_ns,
                is_write: request.op == Op::Write,
                at: places.place(request.offset),
                bytes: request.bytes,
            })
            .collect();
        let pieces = joined(requests.iter().map(|request| request.at..request.end()).collect());
        Self { name: name.to_owned(), requests, medium_bytes: places.bytes(), pieces }
    }

    /// The piece in which a place lies that is touched.
    pub(super) fn piece(&self, at: u64) -> usize {
        self.pieces.partition_point(|piece| piece.end <= at)
    }

    /// Bytes that are touched.
    pub(super) fn touched_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }

    /// Of a read that others follow at once, each where the one before it ended: the range of all of them. Nothing of
    /// the others.
    pub(super) fn announced(&self, number: usize) -> Option<Range<u64>> {
        let goes_on =
            |before: &Asked, next: &Asked| !before.is_write && !next.is_write && before.end() == next.at;
        let first = self.requests[number];
        if number > 0 && goes_on(&self.requests[number - 1], &first) {
            return None;
        }
        let run = self.requests[number..].windows(2).take_while(|pair| goes_on(&pair[0], &pair[1]));
        run.last().map(|pair| first.at..pair[1].end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows in the trace follows here, and nothing else does; a read that goes on is announced where it begins.
    #[test]
    fn places_keep_what_follows_and_what_does_not() {
        let far = 1 << 40;
        let request = |op, offset, arrival_ns| Request::new(op, offset, 2 * PAGE, arrival_ns);
        let load = Load::made(
            "a",
            &[
                request(Op::Read, far, 7),
                request(Op::Read, far + 2 * PAGE, 9),
                request(Op::Write, far + 4 * PAGE, 9),
                request(Op::Read, far + 2 * GRANULE, 10),
                request(Op::Read, 0, 11),
            ],
        );
        let at: Vec<u64> = load.requests.iter().map(|request| request.at).collect();
        let second = 2 * GRANULE;
        assert_eq!(at, [second, second + 2 * PAGE, second + 4 * PAGE, second + 2 * GRANULE, 0]);
        assert_eq!(load.medium_bytes, 5 * GRANULE);
        assert_eq!(load.requests[3].arrival_ns, 3);
        assert_eq!(load.pieces[1], second..second + 6 * PAGE);
        assert_eq!((load.pieces.len(), load.touched_bytes()), (3, 10 * PAGE));
        assert_eq!((load.piece(0), load.piece(second + 2 * PAGE)), (0, 1));
        assert_eq!(load.announced(0), Some(second..second + 4 * PAGE));
        assert!((1..5).all(|number| load.announced(number).is_none()));
    }

    /// All rows of applications make workloads, and a seed makes the same again.
    #[test]
    fn a_seed_makes_the_same_workload() {
        for row in Row::published().into_iter().take(18) {
            let [one, other] = [(); 2].map(|()| Load::of(&row, 3, 200).expect("a workload"));
            assert_eq!(one.requests, other.requests, "{}", row.name);
            assert_eq!(one.requests.len(), 200);
            let whole =
                |request: &Asked| request.at.is_multiple_of(PAGE) && request.bytes.is_multiple_of(PAGE);
            assert!(one.requests.iter().all(whole), "{}", row.name);
            assert!(one.requests.iter().all(|request| request.end() <= one.medium_bytes));
        }
    }
}
