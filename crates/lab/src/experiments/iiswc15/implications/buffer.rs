//! Implication 3: memory in the device.

use super::{
    MATTERS, PLANES, Trace, Tried, changed, largest_ratio, less_percent, mean_ms, median_ratio, prepared,
    serve,
};
use crate::advice::{Advice, Evidence, Judgement};
use crate::error::LabError;
use crate::experiment::Effort;
use nvmed_flash::{ArrayProfile, Medium, Profile, Rate, UNIT_BYTES};
use nvmed_trace::{Op, Request};
use std::collections::{BTreeMap, HashMap};

/// Sizes of a buffer, bytes; the last one has no limit.
const SIZES: [u64; 7] = [0, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, u64::MAX];
/// Those with a response.
const TIMED: [usize; 5] = [0, 1, 3, 4, 5];
/// Sizes of the model's write buffer.
const WRITE_BUFFERS: [u64; 2] = [2 << 20, 16 << 20];
/// Operations that the flash works on at once for a request.
const INSIDE: u32 = 4096;

const RESPONSES: [&str; 8] = [
    "none ms",
    "64 KiB ms",
    "1 MiB ms",
    "4 MiB ms",
    "16 MiB ms",
    "no buffer ms",
    "2 MiB writes ms",
    "16 MiB writes ms",
];
const NONE: usize = 0;
const SMALL: usize = 1;
const LARGE: usize = 4;
const PLAIN: usize = 5;
const EARLY: [usize; 2] = [6, 7];
const HITS: [&str; 12] = [
    "R 64K %", "R 256K %", "R 1M %", "R 4M %", "R 16M %", "R any %", "W 64K %", "W 256K %", "W 1M %",
    "W 4M %", "W 16M %", "W any %",
];
const READS_4M: usize = 3;
const READS_ANY: usize = 5;
const WRITES_4M: usize = 9;
const WRITES_ANY: usize = 11;

/// Units in memory; the one that was used least recently leaves.
#[derive(Default)]
struct Lru {
    units_max: usize,
    /// When each was used, and whether flash has something older.
    units: HashMap<u64, (u64, bool)>,
    by_time: BTreeMap<u64, u64>,
    time: u64,
}

impl Lru {
    /// Uses a unit: whether it was there, and the dirty one that leaves for it.
    fn touch(&mut self, unit: u64, is_write: bool) -> (bool, Option<u64>) {
        self.time += 1;
        let before = self.units.get(&unit).copied();
        if let Some((time, _)) = before {
            self.by_time.remove(&time);
        }
        let is_dirty = is_write || before.is_some_and(|(_, is_dirty)| is_dirty);
        self.units.insert(unit, (self.time, is_dirty));
        self.by_time.insert(self.time, unit);
        let mut leaves = None;
        if self.units.len() > self.units_max
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            let (_, is_dirty) = self.units.remove(&oldest).unwrap_or_default();
            leaves = is_dirty.then_some(oldest);
        }
        (before.is_some(), leaves)
    }
}

/// Units that were looked for and found: of reads and of writes.
#[derive(Clone, Copy, Default)]
struct Hits {
    units: [u64; 2],
    found: [u64; 2],
}

impl Hits {
    fn percent(&self, of: usize) -> f64 {
        100.0 * self.found[of] as f64 / self.units[of] as f64
    }
}

/// Adds a unit to extents that flash is to do, the last of which it may prolong.
fn add(work: &mut Vec<Request>, op: Op, unit: u64) {
    match work.iter_mut().rev().find(|one| one.op == op) {
        Some(last) if last.end() == unit * UNIT_BYTES => last.bytes += UNIT_BYTES,
        _ => work.push(Request::new(op, unit * UNIT_BYTES, UNIT_BYTES, 0)),
    }
}

/// What a buffer leaves for the flash to do for a request; counts what it finds.
fn left_over(lru: &mut Lru, request: &Request, hits: &mut Hits) -> Vec<Request> {
    let (mut work, is_write) = (Vec::new(), request.op == Op::Write);
    for unit in request.offset / UNIT_BYTES..request.end().div_ceil(UNIT_BYTES) {
        let (is_there, leaves) = lru.touch(unit, is_write);
        hits.units[usize::from(is_write)] += 1;
        hits.found[usize::from(is_write)] += u64::from(is_there);
        if !is_there && !is_write {
            add(&mut work, Op::Read, unit);
        }
        leaves.into_iter().for_each(|unit| add(&mut work, Op::Write, unit));
    }
    work
}

fn hits(trace: &Trace, bytes: u64) -> Hits {
    let mut lru = Lru { units_max: (bytes / UNIT_BYTES) as usize, ..Lru::default() };
    let mut hits = Hits::default();
    trace.requests.iter().for_each(|request| _ = left_over(&mut lru, request, &mut hits));
    hits
}

/// Mean response with a buffer before the flash: one request after another, each transferred over the link when the
/// flash has done its part.
fn buffered(flash: &Profile, link: Rate, trace: &Trace, bytes: u64) -> Result<f64, LabError> {
    let mut lru = Lru { units_max: (bytes / UNIT_BYTES) as usize, ..Lru::default() };
    let mut simulation = prepared(flash, false, &trace.requests)?;
    let begin = trace.requests.first().map_or(0, |first| first.arrival_ns);
    let (mut free_ns, mut sum_ns) = (begin, 0);
    for request in &trace.requests {
        let mut start_ns = free_ns.max(request.arrival_ns);
        for work in left_over(&mut lru, request, &mut Hits::default()) {
            simulation.push(&Request { arrival_ns: start_ns, ..work }, &mut |_| ());
        }
        start_ns = start_ns.max(simulation.settle(&mut |_| ()));
        free_ns = start_ns + link.time_of(request.bytes);
        sum_ns += free_ns - request.arrival_ns;
    }
    Ok(sum_ns as f64 / trace.requests.len() as f64 / 1e6)
}

/// The flash behind a buffer, which pays for the link itself; and the link.
fn behind_a_buffer(effort: &Effort) -> Result<(Profile, Rate), LabError> {
    let mut link = Rate::UNLIMITED;
    let cut = |array: &mut ArrayProfile| {
        link = std::mem::replace(&mut array.link_in, Rate::UNLIMITED);
        array.link_out = Rate::UNLIMITED;
    };
    let flash = changed(effort, "emmc", PLANES, cut)?;
    Ok((Profile { commands: INSIDE, ..flash }, link))
}

pub(super) fn tried(effort: &Effort, traces: &[Trace]) -> Result<Tried, LabError> {
    let (flash, link) = behind_a_buffer(effort)?;
    let plain = changed(effort, "emmc", PLANES, |_| ())?;
    let with_writes = |bytes| {
        let mut profile = plain.clone();
        if let Medium::Array(array) = &mut profile.medium {
            array.translation.iter_mut().for_each(|translation| translation.buffer_bytes = bytes);
        }
        profile
    };
    let mut responses = Evidence::new("Mean response by buffer", &RESPONSES)
        .with_medians(0..RESPONSES.len())
        .drawing(EARLY[0], Some(PLAIN));
    let mut found = Evidence::new("Units that a buffer has, of reads (R) and writes (W)", &HITS)
        .with_medians(0..HITS.len())
        .drawing(WRITES_4M, None);
    for trace in traces {
        let all = SIZES[1..].iter().map(|&bytes| hits(trace, bytes)).collect::<Vec<_>>();
        found.push(
            &trace.name,
            [0, 1].into_iter().flat_map(|of| all.iter().map(move |hits| hits.percent(of))),
        );
        let mut row = Vec::new();
        for size in TIMED {
            row.push(buffered(&flash, link, trace, SIZES[size])?);
        }
        let early = WRITE_BUFFERS.map(with_writes);
        for profile in std::iter::once(&plain).chain(&early) {
            row.push(mean_ms(&serve(profile, false, &trace.requests)?.requests, |_| true));
        }
        responses.push(&trace.name, row);
    }
    Ok(Tried { advice: advice(responses, found), compared: (EARLY[0], PLAIN, "ms") })
}

fn advice(responses: Evidence, found: Evidence) -> Advice {
    let ratio = |ours, theirs| median_ratio(&responses, ours, theirs);
    let (small, large) = (ratio(SMALL, NONE), ratio(LARGE, NONE));
    let (early, early_more) = (ratio(EARLY[0], PLAIN), ratio(EARLY[1], EARLY[0]));
    let (most, times) = largest_ratio(&responses, EARLY[0], EARLY[1]);
    let size_matters = ratio(LARGE, SMALL) < 1.0 - MATTERS;
    let few_hit = [READS_4M, WRITES_4M].into_iter().all(|column| found.median(column) < 50.0);
    let pays = early < 1.0 - MATTERS;
    let memory_pays = size_matters && large < early;
    let advice = match (pays, memory_pays) {
        (true, true) => {
            "Give it a buffer that completes writes early; memory for hits pays as well, up to what costs allow."
        }
        (true, false) => {
            "Give it a small buffer that completes writes early, 2 MiB are enough for most; do not buy memory for hits."
        }
        (false, true) => "Buy memory for hits; completing writes early brings little.",
        (false, false) => "Do without a buffer.",
    };
    Advice {
        name: "implication 3: RAM buffer".to_owned(),
        paper: "localities are weak, so a large buffer may not be of use, since few requests hit".to_owned(),
        judgement: Judgement::of(&[few_hit, !size_matters, !pays]),
        advice: advice.to_owned(),
        found: format!(
            "Medians of 25 traces: 4 MiB have {:.0} % of the units read and {:.0} % of those written, memory \
             without limit {:.0} and {:.0} %; a buffer of 64 KiB takes {:.0} % less than none, of 16 MiB {:.0} % \
             less; one of 2 MiB that completes writes when they are in memory {:.0} % less, of 16 MiB {:.1} % less \
             than that ({most}: {:.0} % less)",
            found.median(READS_4M),
            found.median(WRITES_4M),
            found.median(READS_ANY),
            found.median(WRITES_ANY),
            less_percent(small, 1.0),
            less_percent(large, 1.0),
            less_percent(early, 1.0),
            less_percent(early_more, 1.0),
            less_percent(1.0, times),
        ),
        departs: "the paper looks at hits alone; a buffer that completes a write before it is programmed needs \
            none, and the idle time between requests empties it; what is in it is lost with the power unless the \
            host flushes"
            .to_owned(),
        evidence: vec![responses, found],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_is_written_and_what_is_there_is_not_read() {
        let mut lru = Lru { units_max: 2, ..Lru::default() };
        let mut hits = Hits::default();
        let mut work = |op, unit: u64, units: u64| {
            let request = Request::new(op, unit * UNIT_BYTES, units * UNIT_BYTES, 0);
            let work = left_over(&mut lru, &request, &mut hits);
            work.iter()
                .map(|one| (one.op, one.offset / UNIT_BYTES, one.bytes / UNIT_BYTES))
                .collect::<Vec<_>>()
        };
        assert_eq!(work(Op::Write, 10, 2), []);
        // One is there; the other one takes the place of what was used longest ago.
        assert_eq!(work(Op::Read, 11, 2), [(Op::Read, 12, 1), (Op::Write, 10, 1)]);
        // What is clean leaves without a write.
        assert_eq!(work(Op::Read, 20, 2), [(Op::Read, 20, 2), (Op::Write, 11, 1)]);
        assert_eq!(work(Op::Write, 30, 4), [(Op::Write, 30, 2)]);
        assert_eq!((hits.units, hits.found), ([4, 6], [1, 0]));
    }
}
