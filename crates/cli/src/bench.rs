//! `nvmed bench`: a load on a device, and what it did.

pub mod arguments;

use crate::bench::arguments::Bench;
use crate::failure::{Failure, Status};
use crate::format::{held, refuse};
use crate::location::parse_spec;
use crate::output::Output;
use crate::paths::Paths;
use crate::status_line::StatusLine;
use crate::stop::{self, STOP};
use nvmed_chart::{short, time};
use nvmed_dice::mix;
use nvmed_engine::EngineError;
use nvmed_io::{Binding, Completions, Device, DeviceOptions, Handle, Scheduler};
use nvmed_lab::machine::now_ns;
use nvmed_lab::recorder::Recorder;
use nvmed_lab::verify::{Verify, read_back};
use nvmed_lab::{Job, LabError, Load, Pattern, Report, RunLength, Tick, Time, measure};
use nvmed_stack::{DeviceSpec, Open};
use nvmed_trace::OutputFile;
use std::sync::Arc;

/// Commands that a queue holds at least: the fill of a device goes through it too.
const QUEUE_DEPTH_MIN: u16 = 32;
/// Bytes of one write when a device is filled.
const FILL_BYTES: u32 = 1 << 20;
/// The live line changes at most this often; faster cannot be read.
const LIVE_NS: u64 = 400_000_000;

/// Why a measurement in simulated time has one thread.
pub const ONE_THREAD: &str = "clock=virtual is simulated time, which passes for one thread";

/// Measures a device.
///
/// # Errors
/// It cannot be opened, holds something that would be lost, fails, or answers with other data.
pub fn bench(arguments: &Bench) -> Result<(), Failure> {
    let name = arguments.device.to_string_lossy().into_owned();
    let spec = parse_spec(&name)?;
    Paths::default().uses(&spec).writes(arguments.html.as_deref(), "--html").check("bench")?;
    let fail = |error: LabError| failure(&name, &error);
    let signals = stop::take("bench")?;
    let device = open(arguments, &spec)?;
    let load = load(arguments, &device);
    protect(arguments, &spec, &device, &name)?;
    let handles = handles(arguments, &device).map_err(|error| fail(error.into()))?;
    let verify = verify(arguments, &device, &load).map_err(fail)?;
    if !spec.is_lasting() {
        fill(&handles[0], &load, verify.as_deref()).map_err(fail)?;
    }
    let threads = handles.len() as u64;
    let job = |(index, handle): (usize, &Handle)| {
        Job::new(handle.clone(), load.share(index as u64, threads), verify.clone())
    };
    let mut jobs = handles.iter().enumerate().map(job).collect::<Result<Vec<_>, _>>().map_err(fail)?;
    stop::watch("bench", signals)?;
    let end = match arguments.count {
        Some(count) => RunLength::Count(count),
        None => RunLength::Time(arguments.time),
    };
    let mut status = StatusLine::every(LIVE_NS);
    let time = time_of(&spec, &device, threads)?;
    let taken = (!arguments.no_latency, &time);
    let measured = measure(&mut jobs, u64::from(load.block_bytes), end, taken, &STOP, |tick| {
        status.show(|_| live(tick))
    });
    status.end();
    let mut report = measured.map_err(fail)?;
    (report.device, report.load) = (spec.to_string(), describe(arguments, &load));
    if let Some(verify) = &verify {
        report.seed = Some(verify.seed());
        report.verified = report.reads;
        if load.pattern.writes() {
            report.verified += read_back(&handles[0], &load, verify).map_err(fail)?;
        }
    }
    drop(jobs);
    tell(arguments, &report)
}

/// Simulated time is the device's own; it passes for one thread.
fn time_of(spec: &DeviceSpec, device: &Arc<Device>, threads: u64) -> Result<Time, Failure> {
    match (spec.is_simulated(), threads) {
        (false, _) => Ok(Time::Host),
        (true, 1) => Ok(Time::Device(Arc::clone(device))),
        _ => Err(Failure::usage(format!("bench: {ONE_THREAD}; take --jobs 1"))),
    }
}

fn failure(name: &str, error: &LabError) -> Failure {
    let status = if matches!(error, LabError::Load(_)) { Status::Usage } else { Status::Failed };
    Failure::new(status, format!("bench: {name}: {error}"))
}

fn open(arguments: &Bench, spec: &DeviceSpec) -> Result<Arc<Device>, Failure> {
    let engine = nvmed_stack::open_engine(spec, Open::Existing { locked_by_run: false })?;
    let (depth, depth_max) = (arguments.depth, engine.geometry().queue_depth_max);
    if depth > depth_max {
        let error = EngineError::Depth { depth, depth_max };
        return Err(Failure::usage(format!("bench: {spec}: {error}")));
    }
    let options = DeviceOptions {
        queues: usize::from(arguments.jobs),
        depth: depth.max(QUEUE_DEPTH_MIN).min(depth_max),
    };
    Device::open(engine, options)
        .map_err(|error| Failure::new(Status::Failed, format!("bench: {spec}: {error}")))
}

/// What the arguments ask for; the job checks it against the device.
fn load(arguments: &Bench, device: &Arc<Device>) -> Load {
    let bytes = device.lba_count().saturating_mul(u64::from(device.geometry().lba_bytes));
    let block_bytes = u32::try_from(arguments.bs).unwrap_or(u32::MAX);
    let (offset, bytes) = arguments.region.unwrap_or((0, bytes));
    Load {
        pattern: pattern(arguments),
        block_bytes,
        depth: arguments.depth,
        offset,
        bytes,
        seed: arguments.seed.unwrap_or_else(|| mix(now_ns()) >> 32),
    }
}

fn pattern(arguments: &Bench) -> Pattern {
    let reads_percent = match arguments.pattern.as_str() {
        "read" | "randread" => 100,
        "write" | "randwrite" => 0,
        _ => arguments.mix,
    };
    Pattern { sequential: !arguments.pattern.starts_with("rand"), reads_percent }
}

/// A device that holds something is not written by a slip.
fn protect(arguments: &Bench, spec: &DeviceSpec, device: &Arc<Device>, name: &str) -> Result<(), Failure> {
    if !pattern(arguments).writes() || arguments.destroy_data || !spec.is_lasting() {
        return Ok(());
    }
    match held(device, name)? {
        Some(what) => Err(refuse("bench", name, what, "--destroy-data")),
        None => Ok(()),
    }
}

/// A handle a thread, each with a queue while there are some.
fn handles(arguments: &Bench, device: &Arc<Device>) -> Result<Vec<Handle>, nvmed_io::IoError> {
    let completion = match arguments.completion.as_str() {
        "poll" => Completions::Poll,
        "hybrid" => Completions::Hybrid,
        "thread" => Completions::Thread,
        "interrupt" => Completions::Interrupt,
        _ => Completions::Adaptive,
    };
    let scheduler = match arguments.scheduler.as_str() {
        "deadline" => Scheduler::DEADLINE,
        "fair" => Scheduler::Fair,
        _ => Scheduler::None,
    };
    let queues = device.queues();
    (0..queues).try_for_each(|number| device.set_scheduler(number, scheduler))?;
    let handle = |job: u16| {
        let handle = device.handle(Binding::Queue(usize::from(job) % queues));
        handle.set(nvmed_io::HandleSettings { completion, ..handle.settings() })?;
        Ok(handle)
    };
    (0..arguments.jobs).map(handle).collect()
}

/// The pattern to check against. Reads alone expect that an earlier run has written it all.
fn verify(arguments: &Bench, device: &Arc<Device>, load: &Load) -> Result<Option<Arc<Verify>>, LabError> {
    if !arguments.verify {
        return Ok(None);
    }
    let lba_bytes = device.geometry().lba_bytes;
    load.check(device.lba_count().saturating_mul(u64::from(lba_bytes)), lba_bytes)?;
    let (first, lbas) = (load.offset / u64::from(lba_bytes), load.bytes / u64::from(lba_bytes));
    let verify = Verify::new(load.seed, lba_bytes, first, lbas);
    if !load.pattern.writes() {
        verify.note(first, lbas);
    }
    Ok(Some(Arc::new(verify)))
}

/// Writes the region of a device that ends with this command, so that no read meets memory that was never there.
fn fill(handle: &Handle, load: &Load, verify: Option<&Verify>) -> Result<(), LabError> {
    let mut fill = Load { pattern: Pattern::WRITE, depth: 1, ..*load };
    let large = u64::from(FILL_BYTES);
    if load.bytes.is_multiple_of(large) {
        fill.block_bytes = FILL_BYTES;
    }
    // The same pattern; what has been written is noted of the load's own writes only.
    let verify = verify.map(|verify| Arc::new(verify.unwritten()));
    Job::new(handle.clone(), fill, verify)?.run(fill.blocks(), &Recorder::default())
}

fn describe(arguments: &Bench, load: &Load) -> String {
    let mut text = format!(
        "{} of {} bytes, depth {}, {} threads, region {}+{}, completion {}, scheduler {}, seed {}",
        load.pattern.name(),
        load.block_bytes,
        load.depth,
        arguments.jobs,
        load.offset,
        load.bytes,
        arguments.completion,
        arguments.scheduler,
        load.seed
    );
    if !matches!(load.pattern.reads_percent, 0 | 100) {
        text += &format!(", {} % reads", load.pattern.reads_percent);
    }
    text
}

/// The line on a terminal while it runs.
fn live(tick: &Tick) -> String {
    format!(
        "{:6.1} s  {} IOPS  {:.1} MB/s  p50 {}  p99 {}  {:.2} cores",
        tick.at_s,
        short(tick.iops),
        tick.bytes_per_s / 1e6,
        time(tick.p50_ns as f64),
        time(tick.p99_ns as f64),
        tick.cores
    )
}

fn tell(arguments: &Bench, report: &Report) -> Result<(), Failure> {
    if let Some(path) = &arguments.html {
        OutputFile::write(path, report.html().as_bytes())
            .map_err(|error| Failure::new(Status::Failed, format!("bench: {}: {error}", path.display())))?;
    }
    let mut out = Output::new();
    out.text(&if arguments.json { report.json() } else { report.text() })?;
    out.finish()
}
