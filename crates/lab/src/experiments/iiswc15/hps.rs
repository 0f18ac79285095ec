//! The case study (section V): pages of 4 KiB, of 8 KiB, and both in one plane.

use super::{applications, synthesised};
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::samples::Samples;
use nvmed_flash::{Medium, Profile};
use nvmed_replay::Simulation;
use nvmed_stack::DriveProfile;
use nvmed_trace::{Op, Request, Row};

/// The three devices of Table V: how the paper calls them, and their profiles.
pub(super) const DEVICES: [(&str, &str); 3] = [("4PS", "emmc"), ("8PS", "emmc-8ps"), ("HPS", "emmc-hps")];
pub(super) const FOUR: usize = 0;
pub(super) const EIGHT: usize = 1;
pub(super) const BOTH: usize = 2;
/// Planes that work at once: all of Table V's, and fewer.
const UNITS: [u32; 4] = [1, 2, 4, 8];

/// A device of Table V with so many planes at the same capacity, each behind a bus and in a die of its own as far as
/// Table V has them. The paper's simulation knows no low-power mode.
pub(super) fn device(profile: &str, units: u32) -> Result<Profile, LabError> {
    let failed = |error: nvmed_stack::ProfileFault| LabError::missing(error.to_string());
    let named = DriveProfile::named(profile).map_err(failed)?;
    let mut drive = named.drive(named.usual_bytes()).map_err(failed)?;
    if let Medium::Array(array) = &mut drive.medium {
        let before = array.channels * array.chips * array.dies * array.planes;
        array.channels = units.min(2);
        array.dies = (units / 2).clamp(1, 2);
        array.planes = (units / 4).clamp(1, 2);
        array.blocks.iter_mut().for_each(|kind| kind.per_plane *= before / units);
        array.low_power_ns = 0;
        // The traces were recorded below the driver that packs.
        array.packed_writes = 1;
    }
    Ok(drive)
}

/// What a device did with a trace.
#[derive(Clone, Default)]
struct Run {
    mean_response_ms: f64,
    utilization: f64,
    /// Of each request whether it is a write, its response in nanoseconds, and whether it had to wait.
    requests: Vec<(bool, u64, bool)>,
}

fn run(profile: &Profile, row: &Row, seed: u64) -> Result<Run, LabError> {
    let mut simulation =
        Simulation::new(profile, false).map_err(|error| LabError::missing(error.to_string()))?;
    simulation.prepare(synthesised(row, seed)?);
    let mut requests = Vec::new();
    let mut each = |done: Request| {
        let waited = done.start_ns != Some(done.arrival_ns);
        requests.push((done.op == Op::Write, done.response_ns().unwrap_or(0), waited));
    };
    synthesised(row, seed)?.for_each(|request| simulation.push(&request, &mut each));
    let simulated = simulation.finish(&mut each);
    let sum: u64 = requests.iter().map(|(_, response_ns, _)| response_ns).sum();
    let mean_response_ms = sum as f64 / requests.len() as f64 / 1e6;
    Ok(Run { mean_response_ms, utilization: simulated.utilization(), requests })
}

/// Runs of each device, by seed.
fn runs(row: &Row, units: u32, seeds: u64) -> Result<[Vec<Run>; 3], LabError> {
    let mut all: [Vec<Run>; 3] = Default::default();
    for (runs, (_, profile)) in all.iter_mut().zip(DEVICES) {
        let device = device(profile, units)?;
        *runs = (1..=seeds).map(|seed| run(&device, row, seed)).collect::<Result<_, _>>()?;
    }
    Ok(all)
}

fn samples(runs: &[Run], of: impl Fn(&Run) -> f64) -> Samples {
    runs.iter().map(of).collect()
}

/// One minus ours over theirs, in percent.
pub(super) fn gain(ours: f64, theirs: f64) -> f64 {
    100.0 * (1.0 - ours / theirs)
}

/// The mean of some values.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn seeds(effort: &Effort) -> u64 {
    if effort.quick { 1 } else { 5 }
}

const METHOD: &str = "18 synthesised traces on new devices of Table V, without a write buffer and without low-power \
     mode; a write is split into pages of 8 KiB and one of 4 KiB for what is left, a read goes where its data is, and \
     what is read first was written before by a request like it; pages go round the planes; one request at a time, as \
     eMMC 4.51 takes them; bus of 25 ns a byte";

/// Figure 8.
pub(crate) struct ResponseTime;

impl Experiment for ResponseTime {
    fn id(&self) -> &'static str {
        "iiswc15.fig8.mrt"
    }

    fn what(&self) -> &'static str {
        "mean response time with pages of 4 and 8 KiB over that with 4 KiB alone, one plane"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(1.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let rows = applications();
        let (mut series, mut limits) = (Vec::new(), Vec::new());
        for units in UNITS {
            let (mut gains, mut beside) = (Vec::new(), Vec::new());
            for row in &rows {
                let runs = runs(row, units, if units == 1 { seeds(effort) } else { 1 })?;
                let response = |device: usize| samples(&runs[device], |run| run.mean_response_ms);
                let medians = [FOUR, EIGHT, BOTH].map(|device| response(device).median());
                gains.push((gain(medians[BOTH], medians[FOUR]), row.name.as_str()));
                beside.push((medians[EIGHT] / medians[BOTH], row.name.as_str()));
                if units == 1 {
                    limits.push(unqueued(&row.name, &runs));
                    series.push(beside_it(row, "ms", FOUR, response));
                }
            }
            limits.push(spread(units, &mut gains, &mut beside));
        }
        limits.push("the paper prints 86 % for Booting, 24.0 % for Movie, 61.9 % as the mean".to_owned());
        Ok(Finding { series, cells: Vec::new(), method: METHOD.to_owned(), limits })
    }
}

/// What a device with both sizes of pages does with a trace, and another one.
fn beside_it(row: &Row, unit: &str, rival: usize, runs: impl Fn(usize) -> Samples) -> Series {
    let of = |device: usize| Measured { name: DEVICES[device].0.to_owned(), runs: runs(device) };
    Series { label: row.name.clone(), unit: unit.to_owned(), ours: of(BOTH), rivals: vec![of(rival)] }
}

/// What requests gain that wait neither here nor there, which Table V bounds: two pages of 4 KiB beside one of 8 KiB.
fn unqueued(name: &str, runs: &[Vec<Run>; 3]) -> String {
    let gains = [false, true].map(|write| {
        let (mut ours, mut theirs) = (0, 0);
        for (both, four) in runs[BOTH][0].requests.iter().zip(&runs[FOUR][0].requests) {
            if both.0 == write && !both.2 && !four.2 {
                (ours, theirs) = (ours + both.1, theirs + four.1);
            }
        }
        if theirs == 0 { "-".to_owned() } else { format!("{:.1}", gain(ours as f64, theirs as f64)) }
    });
    format!(
        "{name}: requests that wait on neither take {} % less (reads; Table V allows {:.1}), {} % less (writes; {:.1})",
        gains[0],
        gain(244.0, 320.0),
        gains[1],
        gain(1491.0, 2770.0)
    )
}

fn spread(units: u32, gains: &mut [(f64, &str)], beside: &mut [(f64, &str)]) -> String {
    gains.sort_by(|a, b| a.0.total_cmp(&b.0));
    beside.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |of: &[(f64, &str)]| mean(of.iter().map(|(value, _)| *value));
    let ends = |of: &[(f64, &str)]| match of {
        [first, .., last] => format!("{:.2} ({}) to {:.2} ({})", first.0, first.1, last.0, last.1),
        _ => String::new(),
    };
    format!(
        "{units} planes: HPS takes {:.1} % less than 4PS as the mean, {} %; 8PS over HPS {:.3}, {}",
        mean(gains),
        ends(gains),
        mean(beside),
        ends(beside)
    )
}

/// Figure 9.
pub(crate) struct Space;

impl Experiment for Space {
    fn id(&self) -> &'static str {
        "iiswc15.fig9.space"
    }

    fn what(&self) -> &'static str {
        "space utilisation with pages of 4 and 8 KiB over that with 8 KiB alone"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(1.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let (mut series, mut limits) = (Vec::new(), Vec::new());
        for row in applications() {
            let runs = runs(&row, 8, seeds(effort))?;
            let used = |device: usize| samples(&runs[device], |run| 100.0 * run.utilization);
            series.push(beside_it(&row, "% of the flash", EIGHT, used));
            let (mut odd, mut writes, mut pages) = (0_u64, 0_u64, 0_u64);
            for request in synthesised(&row, 1)?.filter(|request| request.op == Op::Write) {
                let units = request.bytes / 4096;
                (odd, writes, pages) = (odd + units % 2, writes + 1, pages + units);
            }
            limits.push(format!(
                "{}: {:.1} % of the writes have an odd number of 4 KiB, so 8PS uses {:.1} % more",
                row.name,
                100.0 * odd as f64 / writes as f64,
                100.0 * odd as f64 / pages as f64
            ));
        }
        limits.push("the paper prints +24.2 % for Music, and +13.1 % as the mean".to_owned());
        Ok(Finding { series, cells: Vec::new(), method: METHOD.to_owned(), limits })
    }
}

#[cfg(test)]
mod tests {
    use super::{BOTH, DEVICES, EIGHT, FOUR, UNITS, device, run};
    use nvmed_trace::Row;

    #[test]
    fn both_sizes_of_pages_take_no_more_time_than_the_small_ones_and_no_more_space() {
        let row = Row::published_as("Messaging").unwrap();
        let [four, eight, both] =
            DEVICES.map(|(_, profile)| run(&device(profile, 1).unwrap(), &row, 1).unwrap());
        assert!(both.mean_response_ms <= four.mean_response_ms);
        assert!(
            both.utilization > 0.999 && eight.utilization < 0.95,
            "{} {}",
            both.utilization,
            eight.utilization
        );
        assert_eq!([FOUR, EIGHT, BOTH], [0, 1, 2]);
    }

    #[test]
    fn fewer_planes_hold_as_much() {
        for (_, profile) in DEVICES {
            let raw = UNITS.map(|units| {
                let nvmed_flash::Medium::Array(array) = device(profile, units).unwrap().medium else {
                    panic!("an array")
                };
                (array.channels * array.chips * array.dies * array.planes, array.room().raw_units)
            });
            assert_eq!(raw.map(|(planes, _)| planes), UNITS);
            assert!(raw.iter().all(|(_, units)| *units == raw[0].1), "{raw:?}");
        }
    }
}
