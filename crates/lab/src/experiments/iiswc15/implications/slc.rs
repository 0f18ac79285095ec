//! Implication 5: blocks whose fast pages alone are used.

use super::{
    MATTERS, PLANES, Trace, Tried, changed, is_small_write, largest_ratio, less_percent, mean_ms,
    median_ratio, serve,
};
use crate::advice::{Advice, Evidence, Judgement};
use crate::error::LabError;
use crate::experiment::Effort;
use nvmed_flash::{ArrayProfile, BlockKind, Profile};

/// Blocks of a plane in SLC mode: 16 MiB of fast pages each on all planes together. The last ones are all of 4 KiB.
const BLOCKS: [u32; 4] = [8, 32, 128, 512];
/// The one that is tried on a used drive and with faster cells, too.
const MIDDLE: usize = 1;
/// Fast pages beside the mean of both: FEMU's times of L95B, lower and upper pages (FAST'18).
const PROGRAM: (u64, u64) = (2 * 850, 850 + 2300);
const READ: (u64, u64) = (2 * 48, 48 + 64);
/// Cells of one bit: program and read times of MT29F4G08ABADA.
const CELLS_NS: (u64, u64) = (200_000, 25_000);

const COLUMNS: [&str; 7] =
    ["HPS ms", "128 MiB ms", "512 MiB ms", "2 GiB ms", "8 GiB ms", "used HPS ms", "used 512 MiB ms"];
const SMALL: [&str; 8] = [
    "HPS ms",
    "128 MiB ms",
    "512 MiB ms",
    "2 GiB ms",
    "8 GiB ms",
    "used HPS ms",
    "used 512 MiB ms",
    "SLC cells ms",
];
const HPS: usize = 0;
const CHOSEN: usize = 1 + MIDDLE;
const USED: [usize; 2] = [5, 6];
const CELLS: usize = 7;

/// Puts so many blocks of a plane into SLC mode, with these program and read times if they are given.
fn slc(array: &mut ArrayProfile, blocks: u32, times: Option<(u64, u64)>) {
    let planes = u64::from(array.planes_total());
    let small = &mut array.blocks[0];
    let of = |ns: &[u64], (part, whole): (u64, u64)| ns.iter().map(|ns| ns * part / whole).collect();
    let fast = BlockKind {
        per_plane: blocks,
        pages: small.pages / 2,
        program_ns: times.map_or_else(|| of(&small.program_ns, PROGRAM), |(program_ns, _)| vec![program_ns]),
        read_ns: times.map_or_else(|| of(&small.read_ns, READ), |(_, read_ns)| vec![read_ns]),
        ..small.clone()
    };
    array.capacity_bytes -= u64::from(blocks * fast.pages) * fast.page_bytes * planes;
    small.per_plane -= blocks;
    // Of kinds with pages of one size, the last one is what writes of that size go to.
    match small.per_plane {
        0 => array.blocks[0] = fast,
        _ => array.blocks.insert(1, fast),
    }
}

pub(super) fn tried(effort: &Effort, traces: &[Trace]) -> Result<Tried, LabError> {
    let device = |blocks: Option<u32>, times| {
        changed(effort, "emmc-hps", PLANES, |array| {
            blocks.into_iter().for_each(|blocks| slc(array, blocks, times));
        })
    };
    let mut devices: Vec<(Profile, bool)> = vec![(device(None, None)?, false)];
    for blocks in BLOCKS {
        devices.push((device(Some(blocks), None)?, false));
    }
    devices.push((device(None, None)?, true));
    devices.push((device(Some(BLOCKS[MIDDLE]), None)?, true));
    devices.push((device(Some(BLOCKS[MIDDLE]), Some(CELLS_NS))?, false));
    let mut all = Evidence::new("Mean response of all requests", &COLUMNS)
        .with_medians(0..COLUMNS.len())
        .drawing(CHOSEN, Some(HPS));
    let mut small = Evidence::new("Mean response of writes of 4 KiB", &SMALL)
        .with_medians(0..SMALL.len())
        .drawing(CHOSEN, Some(HPS));
    for trace in traces {
        let mut means = Vec::new();
        for (device, is_used) in &devices {
            let served = serve(device, *is_used, &trace.requests)?.requests;
            means.push((mean_ms(&served, |_| true), mean_ms(&served, is_small_write)));
        }
        all.push(&trace.name, means.iter().take(COLUMNS.len()).map(|mean| mean.0));
        small.push(&trace.name, means.iter().map(|mean| mean.1));
    }
    Ok(Tried { advice: advice(all, small), compared: (CHOSEN, HPS, "ms") })
}

fn advice(all: Evidence, small: Evidence) -> Advice {
    let of = |table: &Evidence, ours, theirs| less_percent(median_ratio(table, ours, theirs), 1.0);
    let gains: Vec<f64> = (1..=BLOCKS.len()).map(|column| of(&all, column, HPS)).collect();
    let (small_gain, gain) = (of(&small, CHOSEN, HPS), of(&all, CHOSEN, HPS));
    let used = of(&all, USED[1], USED[0]);
    let (worst, times) = largest_ratio(&all, USED[1], USED[0]);
    let is_better = gain > 100.0 * MATTERS;
    // Half of the most that any size gains is the least that a smaller one has to reach.
    let most = gains.iter().copied().fold(f64::MIN, f64::max);
    let sizes = ["128 MiB", "512 MiB", "2 GiB", "8 GiB"];
    let enough = gains.iter().position(|&gain| gain >= 0.9 * most).map_or("-", |at| sizes[at]);
    Advice {
        name: "implication 5: SLC mode".to_owned(),
        paper: "small requests are most, so serving them quickly by fast pages alone could improve the whole, for \
            half the capacity"
            .to_owned(),
        judgement: Judgement::of(&[small_gain > 100.0 * MATTERS, is_better]),
        advice: if is_better {
            let empty = if times > 2.0 { "empty them when idle" } else { "leave what they have in them" };
            format!("Give small writes {enough} of fast pages, and {empty}; more costs capacity and brings no more.")
        } else {
            "Do not give capacity for fast pages: small writes gain, all together do not.".to_owned()
        },
        found: format!(
            "Medians of 25 traces: with 512 MiB of fast pages writes of 4 KiB take {small_gain:.0} % less and all \
             requests {gain:.0} % less ({}); on a used drive all take {used:.0} % less (but {worst}, which fills \
             them up, {times:.1} times as much); cells of one bit would make writes of 4 KiB {:.0} % shorter",
            sizes.iter().zip(&gains).map(|(size, gain)| format!("{size} {gain:.1} %")).collect::<Vec<_>>().join(", "),
            of(&small, CELLS, HPS),
        ),
        departs: "not half the capacity but as much as the fast pages hold: 1.6 % of 32 GiB for 512 MiB; nothing \
            is moved out of them, so what stays there for long fills them up"
            .to_owned(),
        evidence: vec![all, small],
    }
}
