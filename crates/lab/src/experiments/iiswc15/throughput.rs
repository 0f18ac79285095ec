//! Throughput by request size (Figure 3).

use super::hps::DEVICES;
use super::{served, synthesised};
use crate::cell::Cell;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use nvmed_flash::{Profile, UNIT_BYTES};
use nvmed_stack::DriveProfile;
use nvmed_trace::{Op, Request, Row};

/// Bytes of the paper's MB, which it does not define.
const MB: f64 = 1e6;
/// What the paper prints: direction, KiB, MB/s.
const PRINTED: [(&str, u64, f64); 5] = [
    ("read", 4, 13.94),
    ("read", 256, 99.65),
    ("write", 4, 5.18),
    ("write", 256, 19.0),
    ("write", 16_384, 56.15),
];
/// What our devices have otherwise than the paper's phone.
const DEPARTURES: [&str; 2] = [
    "departure: the paper measured the eMMC of a Nexus 5, and Table V's devices are those of its simulation. 8 planes \
     that program 4 KiB in 1.385 ms are 23.7 MB/s, 8 KiB in 1.491 ms 44.0 MB/s, and two buses of 25 ns a byte 80 MB/s \
     (our assumption): none of them has 99.65 MB/s of reads and 56.15 of writes",
    "departure: a single page takes 0.29 ms to read and 0.79 ms to write in the paper, less than Table V's program \
     alone (1.385 ms): the phone's eMMC has something that Table V has not, such as a buffer, or cells in SLC mode",
];
/// Requests that make a class one of which something can be said.
const REQUESTS_LEAST: u64 = 20;

/// Figure 3.
pub(crate) struct Throughput;

/// Requests of sizes up to 4 KiB, 8 KiB and so on, each up to twice the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    requests: u64,
    /// Sum of each one's bytes by its service time, MB/s.
    rates: f64,
}

/// Reads, or writes, by class.
#[derive(Clone, Debug, Default)]
struct Curve(Vec<Class>);

impl Curve {
    fn push(&mut self, request: &Request) {
        let Some(service_ns) = request.start_ns.zip(request.finish_ns).map(|(start, finish)| finish - start)
        else {
            return;
        };
        let class = request.bytes.div_ceil(UNIT_BYTES).max(1).next_power_of_two().ilog2() as usize;
        self.0.resize(self.0.len().max(class + 1), Class::default());
        self.0[class].requests += 1;
        self.0[class].rates += request.bytes as f64 / service_ns.max(1) as f64 * 1e9 / MB;
    }

    /// Mean rates of the classes that have enough requests, with their limits in KiB.
    fn points(&self) -> Vec<(u64, f64)> {
        let told = self.0.iter().enumerate().filter(|(_, class)| class.requests >= REQUESTS_LEAST);
        told.map(|(at, class)| (4 << at, class.rates / class.requests as f64)).collect()
    }

    /// The mean rate of requests up to so many KiB.
    fn rate(&self, kib: u64) -> f64 {
        self.points().iter().find(|(limit, _)| *limit == kib).map_or(f64::NAN, |(_, rate)| *rate)
    }
}

/// The reads and the writes of all 25 traces with the times of a device.
fn curves(profile: &Profile, seeds: u64) -> Result<[Curve; 2], LabError> {
    let mut curves: [Curve; 2] = Default::default();
    let mut each = |done: Request| match done.op {
        Op::Read => curves[0].push(&done),
        Op::Write => curves[1].push(&done),
        Op::Discard | Op::Flush => {}
    };
    for row in Row::published() {
        for seed in 1..=seeds {
            served(profile, false, synthesised(&row, seed)?, synthesised(&row, seed)?, &mut each)?;
        }
    }
    Ok(curves)
}

impl Experiment for Throughput {
    fn id(&self) -> &'static str {
        "iiswc15.fig3.throughput"
    }

    fn what(&self) -> &'static str {
        "throughput of larger requests over that of smaller ones, at the sizes whose figures the paper prints"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(1.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let seeds = if effort.quick { 1 } else { 5 };
        let (mut series, mut cells, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        for (name, profile) in DEVICES {
            let failed = |fault: nvmed_stack::ProfileFault| LabError::missing(fault.to_string());
            let named = DriveProfile::named(profile).map_err(failed)?;
            let curves = curves(&named.drive(named.usual_bytes()).map_err(failed)?, seeds)?;
            for (direction, curve) in ["read", "write"].into_iter().zip(&curves) {
                let points = curve.points();
                let points: Vec<String> =
                    points.iter().map(|(kib, rate)| format!("{kib} KiB {rate:.2}")).collect();
                limits.push(format!("{name}, {direction}s up to, MB/s: {}", points.join(", ")));
                let printed: Vec<_> = PRINTED.into_iter().filter(|(of, ..)| *of == direction).collect();
                for &(_, kib, paper) in &printed {
                    cells.push(Cell::new(
                        name,
                        &format!("{direction} {kib} KiB, MB/s"),
                        paper,
                        curve.rate(kib),
                    ));
                }
                series.extend(
                    printed.windows(2).map(|pair| grows(name, curve, direction, [pair[0].1, pair[1].1])),
                );
            }
        }
        limits.extend(DEPARTURES.map(str::to_owned));
        let method = format!(
            "25 synthesised traces, seeds 1 to {seeds}, on new devices of Table V (with the profiles' low-power mode \
             and packed writes, one request at a time); the paper's \"average access rate of requests with that \
             size\" is taken for the mean of each request's bytes by its service time, of classes whose limits double \
             and that have at least {REQUESTS_LEAST} requests"
        );
        Ok(Finding { series, cells, method, limits })
    }
}

/// Larger requests beside smaller ones.
fn grows(name: &str, curve: &Curve, direction: &str, [small, large]: [u64; 2]) -> Series {
    let of = |kib: u64| Measured {
        name: format!("{direction}s up to {kib} KiB"),
        runs: [curve.rate(kib)].into_iter().collect(),
    };
    Series {
        label: format!("{name}, {direction}s up to {large} KiB"),
        unit: "MB/s".to_owned(),
        ours: of(large),
        rivals: vec![of(small)],
    }
}

#[cfg(test)]
mod tests {
    use super::{Curve, REQUESTS_LEAST};
    use nvmed_trace::{Op, Request};

    #[test]
    fn a_curve_has_the_mean_rates_of_the_classes_with_enough_requests() {
        let mut curve = Curve::default();
        let mut push = |bytes: u64, service_ns: u64| {
            let request = Request::new(Op::Read, 0, bytes, 7);
            curve.push(&Request { start_ns: Some(1007), finish_ns: Some(1007 + service_ns), ..request });
        };
        for _ in 0..REQUESTS_LEAST / 2 {
            push(4096, 1_000_000);
            push(4096, 2_000_000);
            push(16384, 1_000_000);
            push(12288, 1_000_000);
            push(65536, 1_000_000);
        }
        let points = curve.points();
        let want = [(4, (4.096 + 2.048) / 2.0), (16, (16.384 + 12.288) / 2.0)];
        assert_eq!(points.len(), 2, "{points:?}");
        assert!(points.iter().zip(want).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-9), "{points:?}");
        assert!(curve.rate(64).is_nan());
    }
}
