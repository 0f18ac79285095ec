//! Requests as events, for formats that have a line or a record for each: in the order of their times; and the kernel's
//! letters of an operation (Documentation of blktrace(8) and blkparse(1)).

use crate::intake::WINDOW;
use crate::pairing::Stage;
use crate::request::{Flags, Op, Request};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Events that are held to be written in the order of their times.
const WRITTEN_LATER_MAX: usize = 4 * WINDOW;

/// Events of requests that are written, in the order of their times.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    events: BinaryHeap<Reverse<(u64, u64, Stage, usize)>>,
    requests: HashMap<usize, (Request, u8)>,
    next: usize,
    number: u64,
    last_ns: u64,
}

impl Unwritten {
    /// Adds a request's events; false if it arrives before an event that was written.
    pub(crate) fn put(&mut self, request: &Request) -> bool {
        if request.arrival_ns < self.last_ns {
            return false;
        }
        let stages = [
            (Stage::Queued, Some(request.arrival_ns)),
            (Stage::Issued, request.start_ns),
            (Stage::Completed, request.finish_ns),
        ];
        let mut events = 0;
        for (stage, time) in stages {
            let Some(time) = time else { continue };
            self.events.push(Reverse((time, self.number, stage, self.next)));
            self.number += 1;
            events += 1;
        }
        self.requests.insert(self.next, (*request, events));
        self.next += 1;
        true
    }

    /// The next event, if nothing that comes after `now_ns` can be before it.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<(Stage, u64, Request)> {
        let Reverse((time, ..)) = self.events.peek()?;
        if *time >= now_ns && self.events.len() <= WRITTEN_LATER_MAX {
            return None;
        }
        let Reverse((time, _, stage, which)) = self.events.pop()?;
        let (request, left) = self.requests.get_mut(&which)?;
        let request = *request;
        *left -= 1;
        if *left == 0 {
            self.requests.remove(&which);
        }
        self.last_ns = time;
        Some((stage, time, request))
    }
}

/// Operation and flags that the kernel's letters say (`WS`, `RA`, `FWFSM`); none of what reads and writes nothing.
pub(crate) fn rwbs(text: &str, bytes: u64) -> Option<(Op, Flags)> {
    let flushes = text.starts_with('F');
    let rest = text.strip_prefix('F').filter(|rest| rest.starts_with(['R', 'W', 'D', 'N'])).unwrap_or(text);
    let op = match rest.chars().next()? {
        // A flush before a write is the write's, and a request of its own when there is nothing to write.
        'W' | 'N' if bytes == 0 && flushes => Op::Flush,
        'F' => Op::Flush,
        'W' => Op::Write,
        'R' => Op::Read,
        'D' => Op::Discard,
        _ => return None,
    };
    let flag = |flags: Flags, letter| match letter {
        'F' => flags.and(Flags::FUA),
        'S' => flags.and(Flags::SYNC),
        'M' => flags.and(Flags::META),
        'A' => flags.and(Flags::AHEAD),
        _ => flags,
    };
    Some((op, rest.chars().skip(1).fold(Flags::default(), flag)))
}

/// The letters of a request.
pub(crate) fn letters(request: &Request) -> String {
    let mut text = match request.op {
        Op::Read => "R",
        Op::Write => "W",
        Op::Discard => "D",
        Op::Flush => "F",
    }
    .to_owned();
    for (flag, letter) in [(Flags::FUA, 'F'), (Flags::AHEAD, 'A'), (Flags::SYNC, 'S'), (Flags::META, 'M')] {
        if request.flags.has(flag) {
            text.push(letter);
        }
    }
    text
}
