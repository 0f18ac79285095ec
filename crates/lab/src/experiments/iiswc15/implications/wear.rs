//! Implication 4: how evenly blocks wear, and what it costs to see to it.

use super::{PLANES, SEED, Trace, Tried, changed, prepared};
use crate::advice::{Advice, Evidence, Judgement};
use crate::error::LabError;
use crate::experiment::Effort;
use crate::samples::Samples;
use nvmed_dice::Dice;
use nvmed_flash::{ArrayProfile, Profile, UNIT_BYTES, Wear};
use nvmed_replay::Simulated;
use nvmed_trace::{Op, Request};

/// Of so many units of the traces, and of the drive, there is one.
const SCALE: u64 = 128;
/// Blocks of a plane of the smaller drive, and their pages.
const BLOCKS: u32 = 512;
const PAGES: u32 = 16;
/// How often blocks are erased on average; in the second half of it the speed of wear is measured.
const ERASES: u64 = 12;
/// The same of a short run, on fewer blocks.
const QUICK_ERASES: u64 = 4;
const QUICK_BLOCKS: u32 = 64;
/// Writes after which the drive is looked at, at least: that takes as long as some of them.
const LOOK_EACH: usize = 4096;
/// Erases that the most worn block of a plane may be ahead.
const SPREAD: u32 = 4;
/// Erases that a block survives: the profile's.
const ENDURANCE: f64 = 3000.0;
const YEAR_S: f64 = 365.25 * 86_400.0;
/// Years that a phone's drive has to last while its owner uses it for some hours a day, and these hours.
const YEARS: f64 = 5.0;
const HOURS: f64 = 4.0;

const LEVELLING: [Wear; 3] = [Wear::Off, Wear::Simple, Wear::Full { spread: SPREAD }];
const LIVES: [&str; 6] =
    ["full same y", "simple same y", "off same y", "full else y", "simple else y", "off else y"];
const WEAR: [&str; 7] = [
    "per GB full",
    "per GB simple",
    "spread simple",
    "spread full",
    "WAF simple",
    "WAF full",
    "WAF full else",
];
const FULL: usize = 0;
const SIMPLE: usize = 1;
const FULL_ELSEWHERE: usize = 3;
const SIMPLE_ELSEWHERE: usize = 4;
const WEAR_SPREAD: [usize; 2] = [2, 3];
const WAF: [usize; 2] = [4, 5];

/// What a drive is like that was written to for long.
#[derive(Clone, Copy)]
struct Worn {
    /// Erases of the most worn block for each byte that the whole drive's host writes.
    erases_a_byte: f64,
    /// Erases of the most worn block less those of the least worn one.
    spread: f64,
    amplification: f64,
}

/// A drive with a part of the units.
fn part(effort: &Effort, wear: Wear) -> Result<Profile, LabError> {
    let change = |array: &mut ArrayProfile| {
        let (kind, translation) = (&mut array.blocks[0], &mut array.translation);
        (kind.per_plane, kind.pages) = (if effort.quick { QUICK_BLOCKS } else { BLOCKS }, PAGES);
        kind.endurance = 0;
        translation.iter_mut().for_each(|translation| {
            (translation.wear, translation.gc_idle_blocks) = (wear, 0);
        });
        // The profile's over-provisioning, of what is held.
        array.capacity_bytes = array.room().held_units * 100 / 107 * UNIT_BYTES;
    };
    changed(effort, "emmc", PLANES, change)
}

/// The units of a trace's writes that are of the part, in their order.
fn sample(trace: &Trace) -> Vec<u64> {
    let writes = trace.requests.iter().filter(|request| request.op == Op::Write);
    let units = writes.flat_map(|request| request.offset / UNIT_BYTES..request.end().div_ceil(UNIT_BYTES));
    units.filter(|&unit| Dice::of(&[SEED, unit]).roll(SCALE) == 0).collect()
}

/// Writes a trace's units again and again, in the same place or elsewhere each time.
fn worn(effort: &Effort, profile: &Profile, units: &[u64], elsewhere: bool) -> Result<Worn, LabError> {
    let mut simulation = prepared(profile, true, &[])?;
    let nvmed_flash::Medium::Array(array) = &profile.medium else {
        return Err(LabError::missing("a drive of dies"));
    };
    let (places, blocks) =
        (array.logical_units(), u64::from(array.blocks[0].per_plane * array.planes_total()));
    let erases = blocks * if effort.quick { QUICK_ERASES } else { ERASES };
    let mut half: Option<Simulated> = None;
    let (mut time, mut unseen) = (0, 0);
    for round in 0.. {
        for &unit in units {
            let place = Dice::of(&[unit, if elsewhere { round } else { 0 }]).roll(places);
            simulation.push(&Request::new(Op::Write, place * UNIT_BYTES, UNIT_BYTES, time), &mut |_| ());
            time = simulation.settle(&mut |_| ());
        }
        unseen += units.len();
        if unseen < LOOK_EACH {
            continue;
        }
        unseen = 0;
        let done = simulation.so_far();
        if half.is_none() && done.counts.erases >= erases / 2 {
            half = Some(done);
        }
        if let Some(half) = half.filter(|_| done.counts.erases >= erases) {
            return Ok(between(&half, &done));
        }
    }
    Err(LabError::missing("a trace that writes"))
}

fn between(half: &Simulated, done: &Simulated) -> Worn {
    let bytes = (done.written_bytes - half.written_bytes) * SCALE;
    Worn {
        erases_a_byte: f64::from(done.wear.erases_max - half.wear.erases_max) / bytes as f64,
        spread: f64::from(done.wear.erases_max - done.wear.erases_min),
        amplification: done.counts.since(half.counts).amplification(),
    }
}

pub(super) fn tried(effort: &Effort, traces: &[Trace]) -> Result<Tried, LabError> {
    let drives = LEVELLING.map(|wear| part(effort, wear));
    let mut wear = Evidence::new("Wear of the most worn block, spread and write amplification", &WEAR)
        .drawing(FULL, Some(SIMPLE));
    let mut lives = Evidence::new("Years until a block is worn out, day and night", &LIVES)
        .with_medians(0..LIVES.len())
        .drawing(SIMPLE, None);
    for trace in traces {
        let units = sample(trace);
        if units.is_empty() {
            wear.push(&trace.name, [f64::NAN; WEAR.len()]);
            lives.push(&trace.name, [f64::NAN; LIVES.len()]);
            continue;
        }
        let mut all = Vec::new();
        for elsewhere in [false, true] {
            for drive in drives.iter().rev() {
                let drive = drive.as_ref().map_err(|error| LabError::missing(error.to_string()))?;
                all.push(worn(effort, drive, &units, elsewhere)?);
            }
        }
        let written: u64 = trace.requests.iter().filter(|one| one.op == Op::Write).map(|one| one.bytes).sum();
        let a_second = written as f64 / (trace.duration_ns() as f64 / 1e9);
        lives.push(&trace.name, all.iter().map(|worn| ENDURANCE / worn.erases_a_byte / a_second / YEAR_S));
        let [full, simple, .., elsewhere, _, _] = &all[..] else { continue };
        wear.push(
            &trace.name,
            [
                full.erases_a_byte * 1e9,
                simple.erases_a_byte * 1e9,
                simple.spread,
                full.spread,
                simple.amplification,
                full.amplification,
                elsewhere.amplification,
            ],
        );
    }
    Ok(Tried { advice: advice(wear, lives), compared: (FULL, SIMPLE, "erases a GB") })
}

fn advice(wear: Evidence, lives: Evidence) -> Advice {
    let gain = |full, simple| super::median_ratio(&lives, full, simple);
    let (same, elsewhere) = (gain(FULL, SIMPLE), gain(FULL_ELSEWHERE, SIMPLE_ELSEWHERE));
    let least = |column: usize| {
        let life =
            |(name, years): &(String, Vec<Option<f64>>)| years[column].map(|years| (years, name.clone()));
        lives
            .rows
            .iter()
            .filter_map(life)
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::NAN, "-".to_owned()))
    };
    let (years, trace) = least(SIMPLE);
    let years_enough = YEARS * HOURS / 24.0;
    let too_short = lives.column(SIMPLE).filter(|&years| years < years_enough).count();
    let told: Samples = lives.column(SIMPLE).collect();
    Advice {
        name: "implication 4: wear levelling".to_owned(),
        paper: "accesses go to different places, so a simple strategy is sufficient".to_owned(),
        judgement: Judgement::of(&[too_short == 0, same < 1.5, elsewhere < 1.5]),
        advice: if too_short == 0 {
            "Simple wear levelling outlasts the phone with all of these traces; full levelling is for drives that \
             are written more."
                .to_owned()
        } else {
            format!(
                "Level fully, since {too_short} of {} traces that stay in one place wear blocks out too soon without \
                 it; put what it moves into the most worn free blocks, or it is moved again.",
                told.len()
            )
        },
        found: format!(
            "Full levelling lasts {same:.1} times as long as simple when a trace is repeated in one place, \
             {elsewhere:.2} times when elsewhere each time (medians); erases differ by {:.0} with simple and {:.0} \
             with full; write amplification {:.2} and {:.2}; at its own rate, day and night, the trace that wears \
             most ({trace}) lasts {years:.2} years with simple levelling, {:.2} with full",
            wear.median(WEAR_SPREAD[0]),
            wear.median(WEAR_SPREAD[1]),
            wear.median(WAF[0]),
            wear.median(WAF[1]),
            least(FULL).0,
        ),
        departs: format!(
            "weak locality within a trace says nothing about the rest of the drive, whose data stays where it is: \
             simple levelling spreads erases over free blocks alone; too soon is before {YEARS:.0} years of {HOURS:.0} \
             hours a day"
        ),
        evidence: vec![wear, lives],
    }
}
