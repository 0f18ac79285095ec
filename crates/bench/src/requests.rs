//! Rows of raw requests: handle, queue pair, driver and virtual controller, beside the kernel and beside a copy.

use crate::row::{Contender, Goal, Row};
use nvmed_engine::{Completion, Operation, QueueOptions, QueuePair, Request, Segment};
use nvmed_io::{Binding, Completions, Device, Handle, HandleSettings};
use nvmed_lab::duel::{Measured, Team, alternate, device, ours, series};
use nvmed_lab::load::Walk;
use nvmed_lab::machine::thread_cpu_ns;
use nvmed_lab::medium::Zram;
use nvmed_lab::recorder::Recorder;
use nvmed_lab::rival::{Contender as Rival, Copies};
use nvmed_lab::samples::Samples;
use nvmed_lab::seat::Seat;
use nvmed_lab::{Effort, Job, LabError, Load, Pattern};
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

/// Bytes of the set: far beyond the processor's caches.
const SET_BYTES: u64 = 1 << 30;
const EFFORT: Effort = Effort { quick: false };

fn randread(block_bytes: u32, depth: u16) -> Load {
    Load { pattern: Pattern::RANDREAD, block_bytes, depth, offset: 0, bytes: SET_BYTES, seed: 11 }
}

fn contender(of: &Measured) -> Contender {
    Contender { name: of.name.clone(), samples: of.runs.clone() }
}

fn polled(device: &Arc<Device>) -> Result<Handle, LabError> {
    let handle = device.handle(Binding::Queue(0));
    handle.set(HandleSettings { completion: Completions::Poll, ..handle.settings() })?;
    Ok(handle)
}

/// 4 KiB random reads at a depth, beside the kernel's ways to zram.
fn beside_zram(name: &str, text: &str, depth: u16, least: f64, zram: &Zram) -> Result<Row, LabError> {
    let load = randread(4096, depth);
    let opened = device(text, 1)?;
    let mut teams = vec![Team::new(text, vec![ours(polled(&opened)?, &load)?])];
    teams.extend(Team::kernels(&zram.device(), "zram", &load, 1)?);
    let found = series(name, "kIOPS", 1e-3, &mut teams, &EFFORT)?;
    let all: Vec<String> =
        found.rivals.iter().map(|rival| format!("{} {:.0}", rival.name, rival.runs.median())).collect();
    Ok(Row {
        name: name.to_owned(),
        unit: "kIOPS",
        ours: contender(&found.ours),
        rival: found.best_rival().map(contender),
        goal: Goal::Times(least),
        flushes_per_op: None,
        conditions: format!(
            "4 KiB random reads of {SET_BYTES} bytes, depth {depth}, handle polling, DRAM in huge frames; kernel on \
             zram, incompressible data, all: {}; core 0, SCHED_FIFO where permitted, a device thread on core 1; {} \
             rounds in turns, median of {} slices",
            all.join(", "),
            EFFORT.rounds(),
            EFFORT.slices()
        ),
    })
}

/// Depth 1, the device's work in the caller's thread.
pub fn inline() -> Result<Vec<Row>, String> {
    let zram = Zram::filled(SET_BYTES)?;
    let text = format!("virtual:?media=dram,size={SET_BYTES}");
    Ok(vec![beside_zram("io.randread_4k.inline.1", &text, 1, 3.5, &zram)?])
}

/// The device on the second core.
pub fn threaded() -> Result<Vec<Row>, String> {
    let zram = Zram::filled(SET_BYTES)?;
    let text = format!("virtual:?media=dram,size={SET_BYTES},clock=threaded");
    let mut rows = Vec::new();
    for (depth, least) in [(1, 1.5), (4, 2.5), (32, 3.0)] {
        rows.push(beside_zram(&format!("io.randread_4k.threaded.{depth}"), &text, depth, least, &zram)?);
    }
    Ok(rows)
}

/// 512-byte random reads a second of one core's time.
pub fn small() -> Result<Vec<Row>, String> {
    const COUNT: u64 = 200_000;
    /// As many as hide the medium's memory latency.
    const DEPTH: u16 = 32;
    let opened = device(&format!("virtual:?media=dram,size={SET_BYTES}"), 1)?;
    let measure = || -> Result<Samples, LabError> {
        let mut job = Job::new(polled(&opened)?, randread(512, DEPTH), None)?;
        let recorder = Recorder::default();
        let _seat = Seat::take(0, true);
        job.run(COUNT, &recorder)?;
        let rate = |_| {
            let before = thread_cpu_ns();
            job.run(COUNT, &recorder)?;
            Ok(COUNT as f64 * 1e3 / (thread_cpu_ns() - before) as f64)
        };
        (0..EFFORT.rounds() * EFFORT.slices()).map(rate).collect()
    };
    Ok(vec![Row {
        name: "io.randread_512.core".to_owned(),
        unit: "MIOPS a CPU second",
        ours: Contender { name: "inline, DRAM in huge frames".to_owned(), samples: measure()? },
        rival: None,
        goal: Goal::Least(3.0),
        flushes_per_op: None,
        conditions: format!(
            "512-byte random reads of {SET_BYTES} bytes, depth {DEPTH}, one core, a handle; runs of {COUNT}"
        ),
    }])
}

/// A queue pair without anything above it.
struct Pair {
    pair: Box<dyn QueuePair>,
    completions: Vec<Completion>,
    data: [Segment; 1],
    walk: Walk,
}

impl Rival for Pair {
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        for tag in 0..count {
            let step = self.walk.step();
            let request = Request {
                operation: Operation::Read,
                lba: step.lba(9),
                blocks: 8,
                data: &self.data,
                tag,
                stream: 0,
            };
            self.completions.clear();
            if self.pair.execute(&request, &mut self.completions)? != 1 {
                return Err(LabError::missing("an inline device completes within the doorbell"));
            }
            self.completions[0].result.map_err(nvmed_io::IoError::Device)?;
        }
        Ok(())
    }
}

/// What a handle without a scheduler adds to the queue pair.
pub fn handle_over_pair() -> Result<Vec<Row>, String> {
    let load = Load { bytes: 1 << 26, ..randread(4096, 1) };
    // Nothing is copied, so that nothing but the software is measured.
    let opened = device(&format!("virtual:?media=null,size={}", load.bytes), 1)?;
    let memory = Arc::new(Mapping::anonymous(4096, Pages::Base).map_err(|error| error.to_string())?);
    let address = opened.map(memory).map_err(|error| error.to_string())?;
    let pair = opened.engine().queue(QueueOptions::depth(32)).map_err(|error| error.to_string())?;
    let bare = Pair {
        pair,
        completions: Vec::with_capacity(32),
        data: [Segment { address, bytes: 4096 }],
        walk: Walk::new(&load),
    };
    let handle = opened.handle(Binding::Queue(0));
    let mut teams =
        [Team::new("handle", vec![ours(handle, &load)?]), Team::new("queue pair", vec![Box::new(bare)])];
    let measured = alternate(&mut teams, &EFFORT)?;
    let ns = |of: &Measured| Contender {
        name: of.name.clone(),
        samples: of.runs.figures().iter().map(|rate| 1e9 / rate).collect(),
    };
    Ok(vec![Row {
        name: "io.handle_over_pair".to_owned(),
        unit: "ns",
        ours: ns(&measured[0]),
        rival: Some(ns(&measured[1])),
        goal: Goal::Excess(30.0),
        flushes_per_op: None,
        conditions:
            "4 KiB reads, depth 1, media=null, inline; handle without scheduler beside QueuePair::execute; \
                     core 0, SCHED_FIFO where permitted"
                .to_owned(),
    }])
}

/// Sequential reads beside a copy of the same bytes.
pub fn sequential() -> Result<Vec<Row>, String> {
    let load = Load { pattern: Pattern::READ, block_bytes: 128 << 10, ..randread(4096, 1) };
    let opened = device(&format!("virtual:?media=dram,size={SET_BYTES}"), 1)?;
    let mut teams = [
        Team::new("inline, DRAM in huge frames", vec![ours(opened.handle(Binding::Queue(0)), &load)?]),
        Team::new("memcpy", vec![Box::new(Copies::new(&load)?)]),
    ];
    let found = series("read", "MB/s", 131_072e-6, &mut teams, &EFFORT)?;
    Ok(vec![Row {
        name: "io.seq_128k_over_memcpy".to_owned(),
        unit: "MB/s",
        ours: contender(&found.ours),
        rival: found.best_rival().map(contender),
        goal: Goal::Times(0.9),
        flushes_per_op: None,
        conditions: format!(
            "128 KiB sequential reads of {SET_BYTES} bytes, depth 1, beside copies of the same bytes out of huge frames"
        ),
    }])
}
