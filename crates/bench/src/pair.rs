//! Rows of a bare queue pair on a drive in virtual time: driver, controller and flash model, on one processor.

use crate::flash::row;
use crate::row::{Contender, Goal, Row};
use nvmed_dice::Dice;
use nvmed_engine::{Completion, Engine, Operation, QueueOptions, QueuePair, Request, Segment};
use nvmed_lab::machine::thread_cpu_ns;
use nvmed_lab::samples::Samples;
use nvmed_nvme::{DriveLog, LogPage};
use nvmed_stack::{DeviceSpec, Open, open_engine};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// The rows.
pub const NAMES: [&str; 4] =
    ["flash.pair.read_4k", "flash.pair.read_512", "flash.pair.write_4k", "flash.pair.steady"];

const ROUNDS: usize = 5;
/// Commands of a round.
const COUNT: u64 = 300_000;
/// Commands under way.
const DEPTH: usize = 256;
/// Commands of one doorbell, as long as there are more to come.
const BATCH: usize = 16;
const BYTES: u64 = 2 << 30;
const LBA_BYTES: u64 = 512;
/// No time-out: a wait ends with the next completion.
const LONG_US: u32 = 1_000_000;

/// A queue pair, and memory for each command under way.
struct Pair {
    engine: Arc<dyn Engine>,
    pair: Box<dyn QueuePair>,
    data: Vec<[Segment; 1]>,
    free: Vec<usize>,
    completions: Vec<Completion>,
    dice: Dice,
    next: u64,
}

impl Pair {
    fn new(text: &str) -> Result<Self, String> {
        let spec = DeviceSpec::parse(text).map_err(|error| error.to_string())?;
        let engine =
            open_engine(&spec, Open::Existing { locked_by_run: false }).map_err(|error| error.to_string())?;
        let memory =
            Arc::new(Mapping::anonymous(DEPTH * 4096, Pages::Huge).map_err(|error| error.to_string())?);
        let address = engine.map(memory).map_err(|error| error.to_string())?;
        let pair = engine.queue(QueueOptions::depth(DEPTH as u16)).map_err(|error| error.to_string())?;
        let segment = |at: usize| [Segment { address: address.plus(at as u64 * 4096), bytes: 4096 }];
        Ok(Self {
            engine,
            pair,
            data: (0..DEPTH).map(segment).collect(),
            free: (0..DEPTH).collect(),
            completions: Vec::with_capacity(DEPTH),
            dice: Dice::new(5),
            next: 0,
        })
    }

    /// The processor's nanoseconds for one of `count` requests, [`DEPTH`] of them under way; blocks in order, or at
    /// random.
    fn run(&mut self, count: u64, operation: Operation, bytes: u32, at_random: bool) -> Result<f64, String> {
        let places = BYTES / u64::from(bytes);
        let begin = thread_cpu_ns();
        let (mut given, mut done) = (0, 0);
        while done < count {
            let mut new = false;
            // A doorbell for several, as a host with so many under way rings it.
            let is_time = self.free.len() >= BATCH || self.free.len() as u64 >= count - given;
            while is_time
                && given < count
                && let Some(slot) = self.free.pop()
            {
                let place = if at_random { self.dice.roll(places) } else { self.next % places };
                self.next += 1;
                let mut data = self.data[slot];
                data[0].bytes = bytes;
                let request = Request {
                    operation,
                    lba: Lba(place * u64::from(bytes) / LBA_BYTES),
                    blocks: bytes / LBA_BYTES as u32,
                    data: &data,
                    tag: slot as u64,
                    stream: 0,
                };
                self.pair.submit(&request).map_err(|error| error.to_string())?;
                (given, new) = (given + 1, true);
            }
            if new {
                self.pair.ring();
            }
            self.completions.clear();
            let seen = self.engine.events(self.pair.vector());
            if self.pair.poll(&mut self.completions) == 0 {
                self.engine.wait(self.pair.vector(), seen, LONG_US);
                self.pair.poll(&mut self.completions);
            }
            for completion in &self.completions {
                completion.result.as_ref().map_err(|error| error.to_string())?;
                self.free.push(completion.tag as usize);
                done += 1;
            }
        }
        Ok((thread_cpu_ns() - begin) as f64 / count as f64)
    }
}

/// The loads that a device without a drive gets, too: operation, bytes, and whether blocks are at random.
const LOADS: [(Operation, u32, bool); 3] = [
    (Operation::Read, 4096, true),
    (Operation::Read, 512, true),
    (Operation::Write { fua: false }, 4096, false),
];

/// Commands a second of processor time.
pub fn measure() -> Result<Vec<Row>, String> {
    let write = Operation::Write { fua: false };
    let plain = format!("virtual:?media=dram,size={BYTES},clock=virtual");
    let text = format!("{plain},profile=tlc");
    let mut pairs = [Pair::new(&text)?, Pair::new(&plain)?];
    for pair in &mut pairs {
        // Once in order, so that all is there.
        pair.run(BYTES / 4096, write, 4096, false)?;
    }
    let mut samples: [[Samples; 2]; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (samples, (operation, bytes, at_random)) in samples.iter_mut().zip(LOADS) {
            for (samples, pair) in samples.iter_mut().zip(&mut pairs) {
                samples.push(1e3 / pair.run(COUNT, operation, bytes, at_random)?);
            }
        }
    }
    let pages = if is_huge()? { "in huge pages" } else { "NOT in huge pages, which are not there" };
    let conditions = format!(
        "{text}, depth {DEPTH}, a doorbell for {BATCH}, a bare queue pair, one thread, memory {pages}; reads and the \
         steady state at random, other writes in order; {ROUNDS} rounds of {COUNT}"
    );
    let unit = "M commands a CPU second";
    let mut rows = Vec::new();
    for ((name, [ours, rival]), goal) in NAMES.into_iter().zip(samples).zip([1.0, 1.5, 0.7]) {
        let rival = Contender { name: "the same without a drive".to_owned(), samples: rival };
        let row = row(name, unit, "queue pair, TLC drive", ours, Goal::Least(goal), conditions.clone());
        rows.push(Row { rival: Some(rival), ..row });
    }
    let [mut pair, _] = pairs;
    pair.run(3 * BYTES / 4096, write, 4096, true)?;
    let (mut steady, mut amplification) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let before = pair.units()?;
        steady.push(1e3 / pair.run(COUNT, write, 4096, true)?);
        let after = pair.units()?;
        amplification.push((after.1 - before.1) as f64 / (after.0 - before.0) as f64);
    }
    let waf = amplification.median();
    let goal = Goal::Least(0.7 / (1.0 + 0.5 * (waf - 1.0)));
    let conditions = format!("{conditions}; write amplification {waf:.2}");
    rows.push(row(NAMES[3], unit, "queue pair, TLC drive", steady, goal, conditions));
    Ok(rows)
}

impl Pair {
    /// Units that were written, and that were programmed, so far.
    fn units(&self) -> Result<(u64, u64), String> {
        let mut log = DriveLog::new_zeroed();
        self.engine.log_page(LogPage::DRIVE.0, log.as_mut_bytes()).map_err(|error| error.to_string())?;
        Ok((log.host_units, log.programmed_units))
    }
}

/// Whether this process has the drive's memory in huge pages.
fn is_huge() -> Result<bool, String> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.unwrap_or(0) > BYTES / 1024 / 2)
}
