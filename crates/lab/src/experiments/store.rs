//! The key-value store on three media: TCE'17 figure 7 and table 1.

use crate::duel::{Measured, Series, Team, device, series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::medium::{Mounted, Zram};
use crate::pairs::{Gets, Pairs, Puts, filled};
use crate::rival::Contender;
use crate::samples::Samples;
use nvmed_io::{Binding, Device};
use nvmed_kv::{DeviceMedium, FileMedium, FileOptions, Store};
use nvmed_units::Block;
use std::sync::Arc;

/// Throughput of Get.
pub(crate) struct Get;
/// Throughput of Put.
pub(crate) struct Put;
/// Latency of Get at the end of its distribution.
pub(crate) struct Tail;

/// The node cache: a share of the data, so that most reads reach the medium.
const MEMORY_SHARE: u64 = 10;
/// Of the medium that the tail is measured on.
const READ_US: u64 = 20;

fn pairs(effort: &Effort) -> Pairs {
    Pairs { count: if effort.quick { 50_000 } else { 1_000_000 } }
}

fn room_bytes(pairs: Pairs) -> u64 {
    (pairs.bytes() * 3).max(256 << 20).next_multiple_of(1 << 20)
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> LabError {
    LabError::Program { shown: what.to_owned(), reason: error.to_string() }
}

fn fill(medium: impl nvmed_kv::Medium + 'static, pairs: Pairs) -> Result<Arc<Store>, LabError> {
    filled(Arc::new(medium), pairs, (pairs.bytes() / MEMORY_SHARE) as usize)
}

fn on_device(text: &str, pairs: Pairs) -> Result<(Arc<Device>, Arc<Store>), LabError> {
    let device = device(text, 1)?;
    let blocks = DeviceMedium::device_blocks(&device).map_err(|error| failed(text, &error))?;
    let medium = DeviceMedium::new(&device, device.handle(Binding::Queue(0)), Block(0)..Block(blocks))
        .map_err(|error| failed(text, &error))?;
    let store = fill(medium, pairs)?;
    Ok((device, store))
}

/// Our store on our stack, on a file of ext4, and on a raw disk by io_uring; each does `load`.
fn compare(
    label: &str,
    effort: &Effort,
    load: fn(Arc<Store>, Pairs) -> Box<dyn Contender>,
) -> Result<Finding, LabError> {
    let pairs = pairs(effort);
    let bytes = room_bytes(pairs);
    let text = format!("virtual:?media=dram,size={bytes}");
    let (_ours, store) = on_device(&text, pairs)?;
    let mut teams = vec![Team::new(text, vec![load(store, pairs)])];
    let ext4 = Zram::new(bytes + bytes / 4)?;
    let mounted = Mounted::made(&ext4, "ext4")?;
    let file = mounted.dir().join("store");
    let medium = FileMedium::create(&file, bytes / 4096, &FileOptions { direct: true })
        .map_err(|error| failed("the store's file", &error))?;
    teams.push(Team::new("a file of ext4 on zram", vec![load(fill(medium, pairs)?, pairs)]));
    let raw = Zram::new(bytes)?;
    let (raw_device, store) = on_device(&format!("uring:{}?calls=off", raw.device().display()), pairs)?;
    teams.push(Team::new("raw zram by io_uring", vec![load(store, pairs)]));
    let found = series(label, "k operations/s", 1e-3, &mut teams, effort)?;
    drop((teams, raw_device));
    Ok(Finding {
        cells: Vec::new(), series: vec![found],
        method: format!(
            "the same store with {} pairs, sizes by Zipf's law, means 32 and 512 bytes, a node cache of a tenth of the \
             data; one thread; on our driver and virtual controller over DRAM, beside a file of ext4 (O_DIRECT) and a \
             raw disk, both zram, whose data does not compress; no medium has a latency of its own; in turns, {} \
             rounds of {} slices",
            pairs.count,
            effort.rounds(),
            effort.slices()
        ),
        limits: vec![
            "the paper's medium is an SSD, whose latency makes the ratios smaller; this kernel has no block device \
             with a simulated one"
                .to_owned(),
        ],
    })
}

impl Experiment for Get {
    fn id(&self) -> &'static str {
        "tce17.fig7.get"
    }

    fn what(&self) -> &'static str {
        "key-value Get: rate on our stack over the better of a file of ext4 and a raw disk by io_uring"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(1.12)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        compare("Get", effort, |store, pairs| Box::new(Gets::new(store, pairs)))
    }
}

impl Experiment for Put {
    fn id(&self) -> &'static str {
        "tce17.fig7.put"
    }

    fn what(&self) -> &'static str {
        "key-value Put, one commit for 64: rate on our stack over the better of a file of ext4 and a raw disk by \
         io_uring"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(1.17)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        compare("Put", effort, |store, pairs| Box::new(Puts::new(store, pairs)))
    }
}

impl Experiment for Tail {
    fn id(&self) -> &'static str {
        "tce17.table1.get_tail_us"
    }

    fn what(&self) -> &'static str {
        "key-value Get on a 20 us medium in virtual time: 99th over 90th percentile of its latency"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(1.5)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let pairs = pairs(effort);
        let text =
            format!("virtual:?media=dram,size={},clock=virtual,read_latency={READ_US}us", room_bytes(pairs));
        let (device, store) = on_device(&text, pairs)?;
        let mut gets = Gets::new(store, pairs);
        let mut latencies_us = Vec::new();
        for _ in 0..pairs.count / 10 {
            let begin = device.engine().now_ns();
            gets.one()?;
            latencies_us.push((device.engine().now_ns() - begin) as f64 / 1e3);
        }
        latencies_us.sort_by(f64::total_cmp);
        let at = |share: f64| latencies_us[(latencies_us.len() as f64 * share) as usize];
        let (p90, p95, p99) = (at(0.90), at(0.95), at(0.99));
        let measured = |name: &str, figure: f64| Measured {
            name: name.to_owned(),
            runs: [figure].into_iter().collect::<Samples>(),
        };
        let series = Series {
            label: "Get at p99 over p90".to_owned(),
            unit: "us".to_owned(),
            ours: measured("p99", p99),
            rivals: vec![measured("p90", p90)],
        };
        Ok(Finding {
            cells: Vec::new(), series: vec![series],
            method: format!(
                "{} random reads of {} pairs as in figure 7, node cache a tenth of the data, {text}: a read takes \
                 {READ_US} us of the device's time and the processor none; p90 {p90:.0}, p95 {p95:.0}, p99 {p99:.0} us",
                latencies_us.len(),
                pairs.count
            ),
            limits: vec![
                "the paper measures 23/25/59 us at p90/p95/p99 on its SSD, and 24/74/438 on ext4; queueing and the \
                 processor's share are not in virtual time"
                    .to_owned(),
            ],
        })
    }
}
