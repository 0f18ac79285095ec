//! What a trace asks for, before anything of it is done.

use crate::digest::Digest;
use crate::times::Times;
use nvmed_trace::{Op, Request};

/// What was seen of a trace in one pass: whether a device can take it, and how fast it comes.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Requests.
    pub requests: u64,
    /// Of those, reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Discards.
    pub discards: u64,
    /// Flushes.
    pub flushes: u64,
    /// The byte behind the last one that is asked for.
    pub end_bytes: u64,
    /// The longest request but for discards, in bytes.
    pub longest_bytes: u64,
    /// The first arrival and the last one, in nanoseconds of the trace's time.
    pub first_ns: u64,
    /// See [`Survey::first_ns`].
    pub last_ns: u64,
    /// Requests without a finish.
    pub unfinished: u64,
    gaps: Times,
    digest: Digest,
}

impl Survey {
    /// Looks at the next request of the trace.
    pub fn push(&mut self, request: &Request) {
        if self.requests == 0 {
            (self.first_ns, self.last_ns) = (request.arrival_ns, request.arrival_ns);
        } else {
            self.gaps.note(request.arrival_ns.saturating_sub(self.last_ns));
        }
        self.requests += 1;
        self.last_ns = self.last_ns.max(request.arrival_ns);
        self.unfinished += u64::from(request.finish_ns.is_none());
        let count = match request.op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            Op::Discard => &mut self.discards,
            Op::Flush => &mut self.flushes,
        };
        *count += 1;
        if matches!(request.op, Op::Read | Op::Write) {
            self.longest_bytes = self.longest_bytes.max(request.bytes);
        }
        if request.op != Op::Flush {
            self.end_bytes = self.end_bytes.max(request.end());
        }
        self.digest.request(request);
        // Think times follow from the finish, and the recorded times that are told from both.
        self.digest.time(request.start_ns);
        self.digest.time(request.finish_ns);
    }

    /// Whether something is written or discarded.
    #[must_use]
    pub fn changes_data(&self) -> bool {
        self.writes + self.discards > 0
    }

    /// The median time between two arrivals, nanoseconds; 0 of fewer than two requests.
    #[must_use]
    pub fn median_gap_ns(&self) -> u64 {
        self.gaps.percentile_ns(50.0)
    }

    /// A number that another trace has as good as never: of what each request does, where and how, and its times.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest.value()
    }
}

#[cfg(test)]
mod tests {
    use super::Survey;
    use nvmed_trace::{Flags, Op, Request};

    #[test]
    fn a_survey_says_what_is_asked_for() {
        let requests = [
            Request::new(Op::Read, 4096, 512, 1000),
            Request { finish_ns: Some(1500), ..Request::new(Op::Write, 0, 8192, 1010) },
            Request::new(Op::Discard, 0, 1 << 40, 1020),
            Request::new(Op::Flush, 0, 0, 2000),
        ];
        let of = |requests: &[Request]| {
            let mut survey = Survey::default();
            requests.iter().for_each(|request| survey.push(request));
            survey
        };
        let found = of(&requests);
        assert_eq!((found.reads, found.writes, found.discards, found.flushes), (1, 1, 1, 1));
        assert_eq!((found.end_bytes, found.longest_bytes, found.unfinished), (1 << 40, 8192, 3));
        assert_eq!((found.first_ns, found.last_ns, found.median_gap_ns()), (1000, 2000, 10));
        assert!(found.changes_data() && !of(&requests[..1]).changes_data());
        let mut other = requests;
        other.swap(0, 1);
        assert_ne!(of(&other).digest(), found.digest(), "another order");
        for (what, other) in [
            ("FUA", Request { flags: Flags::FUA, ..requests[1] }),
            ("another start", Request { start_ns: Some(1500), ..requests[1] }),
            ("another finish", Request { finish_ns: Some(1501), ..requests[1] }),
            ("no finish", Request { finish_ns: None, ..requests[1] }),
        ] {
            let other = [requests[0], other, requests[2], requests[3]];
            assert_ne!(of(&other).digest(), found.digest(), "{what}");
        }
    }
}
