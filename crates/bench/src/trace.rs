//! Rows of traces: how fast they are analysed and simulated, beside blktrace's own tools, and in how much memory.
//!
//! Requests are those of the paper's Twitter (IISWC'15), synthesised, again and again as one trace.

use crate::files::ROUNDS;
use crate::flash::row;
use crate::mqsim::children_cpu_ns;
use crate::row::{Contender, Goal, Row};
use nvmed_dice::Dice;
use nvmed_lab::machine::thread_cpu_ns;
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use nvmed_lab::undo::{self, HostResource};
use nvmed_replay::Simulation;
use nvmed_stack::DriveProfile;
use nvmed_trace::{
    Analysis, Catalogue, Cell, Format, Model, Op, Options, Request, Row as Published, Sink, Source, Synthesis,
};
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The analysis's rows.
pub const ANALYSE: [&str; 4] =
    ["trace.analyse", "trace.analyse.decode", "trace.analyse.alone", "trace.analyse.reuse"];
/// The row beside blktrace's tools.
pub const BLKTRACE: &str = "trace.blkparse_btt";
/// The simulation's rows.
pub const SIMULATE: [&str; 2] = ["trace.simulate.median", "trace.simulate.slowest"];
/// The row of memory, which is measured only when it is asked for.
pub const MEMORY: &str = "trace.memory";

/// Requests that are analysed in a round.
const REQUESTS: usize = 2_000_000;
/// Requests whose reuse distances are found in a round.
const REUSED: usize = 200_000;
const UNIT: &str = "M requests a CPU second";

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The requests of a row of the paper.
fn synthesised(row: &Published) -> Result<Vec<Request>, String> {
    let model = Model::of(row).map_err(text)?;
    Ok(Synthesis::of(&model, 1).map_err(text)?.collect())
}

/// Twitter's requests, one round of them after another.
fn twitter(count: usize) -> Result<Vec<Request>, String> {
    let once = synthesised(&Published::published_as("Twitter").ok_or("Twitter is not published")?)?;
    let span_ns = once.last().and_then(|last| last.finish_ns).unwrap_or(0);
    let at = |number: usize| {
        let (round, request) = ((number / once.len()) as u64, once[number % once.len()]);
        let later = |time_ns: u64| time_ns + round * span_ns;
        Request {
            arrival_ns: later(request.arrival_ns),
            start_ns: request.start_ns.map(later),
            finish_ns: request.finish_ns.map(later),
            ..request
        }
    };
    Ok((0..count).map(at).collect())
}

/// A file that goes away.
struct Scratch(PathBuf);

impl Scratch {
    /// In memory.
    fn new(name: &str) -> Self {
        Self::within(Path::new("/dev/shm"), name)
    }

    /// On the disk, beside this program: what is measured there is too large for memory.
    fn on_disk(name: &str) -> Result<Self, String> {
        let this = std::env::current_exe().map_err(text)?;
        Ok(Self::within(this.parent().ok_or("this program has no directory")?, name))
    }

    fn within(directory: &Path, name: &str) -> Self {
        let path = directory.join(format!("nvmed-bench-{}-{name}", std::process::id()));
        undo::made(&HostResource::File(path.clone()));
        Self(path)
    }

    /// A trace in a format.
    fn with(self, format: &str, requests: &[Request], names: &Catalogue) -> Result<Self, String> {
        let format = Format::named(format).ok_or("there is no such format")?;
        let mut sink = Sink::create(&self.0, format).map_err(text)?;
        requests.iter().try_for_each(|request| sink.write(request, names)).map_err(text)?;
        match sink.finish(names).map_err(text)?.left_out {
            0 => Ok(self),
            left_out => Err(format!("{left_out} requests could not be written")),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        undo::undo(&HostResource::File(self.0.clone()));
    }
}

/// Processor time of some work on so many requests, as millions of them a second.
fn rate(requests: usize, work: impl FnOnce() -> Result<u64, String>) -> Result<f64, String> {
    let begin = thread_cpu_ns();
    let done = work()?;
    let cpu_ns = thread_cpu_ns() - begin;
    if done == requests as u64 {
        Ok(requests as f64 * 1e3 / cpu_ns as f64)
    } else {
        Err(format!("{done} of {requests} requests"))
    }
}

/// The requests of a summary.
fn finish(analysis: Analysis) -> u64 {
    analysis.finish().all.row.get(Cell::Requests).unwrap_or(0.0) as u64
}

/// Reads a trace; each request goes to `each`.
fn read(path: &Path, mut each: impl FnMut(&[Request])) -> Result<u64, String> {
    let mut source = Source::open(path, &Options::default()).map_err(text)?;
    loop {
        let batch = source.batch().map_err(text)?;
        if batch.is_empty() {
            return Ok(source.counts().requests);
        }
        each(batch);
    }
}

fn from_memory(requests: &[Request], mut analysis: Analysis) -> u64 {
    requests.iter().for_each(|request| analysis.push(request));
    finish(analysis)
}

/// Tables III and IV of a trace in Parquet, and what is part of it: decoding alone beside reading the bytes of the
/// file, and the analysis alone; and with reuse distances.
pub fn analyse() -> Result<Vec<Row>, String> {
    let requests = twitter(REQUESTS)?;
    let file = Scratch::new("trace.parquet").with("parquet", &requests, &Catalogue::default())?;
    let mut samples: [Samples; 5] = Default::default();
    for _ in 0..ROUNDS {
        let whole = rate(REQUESTS, || {
            let mut analysis = Analysis::default();
            read(&file.0, |batch| batch.iter().for_each(|request| analysis.push(request)))?;
            Ok(finish(analysis))
        })?;
        let decode = rate(REQUESTS, || read(&file.0, |batch| _ = black_box(batch)))?;
        let bytes = rate(REQUESTS, || {
            let bytes = std::fs::read(&file.0).map_err(text)?;
            black_box(bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
            Ok(REQUESTS as u64)
        })?;
        let alone = rate(REQUESTS, || Ok(from_memory(&requests, Analysis::default())))?;
        let reuse = rate(REUSED, || Ok(from_memory(&requests[..REUSED], Analysis::default().with_reuse())))?;
        for (samples, figure) in samples.iter_mut().zip([whole, decode, bytes, alone, reuse]) {
            samples.push(figure);
        }
    }
    let size = file.0.metadata().map_err(text)?.len() as f64 / REQUESTS as f64;
    let conditions = format!(
        "Twitter's requests (IISWC'15), synthesised, {REQUESTS} of them in Parquet of {size:.1} bytes a request in \
         memory, {REUSED} with reuse distances; one thread, its processor time; {ROUNDS} rounds, in turns"
    );
    let [whole, decode, bytes, alone, reuse] = samples;
    let of = |name, who: &str, samples, goal| row(name, UNIT, who, samples, goal, conditions.clone());
    let beside = |mut row: Row, name: &str, samples: &Samples| {
        row.rival = Some(Contender { name: name.to_owned(), samples: samples.clone() });
        row
    };
    Ok(vec![
        beside(of(ANALYSE[0], "decode and analyse", whole, Goal::Least(5.0)), "decode alone", &decode),
        beside(
            of(ANALYSE[1], "decode", decode, Goal::Least(10.0)),
            "the file's bytes read and added",
            &bytes,
        ),
        of(ANALYSE[2], "analyse", alone, Goal::Least(8.0)),
        of(ANALYSE[3], "analyse, with reuse distances", reuse, Goal::Least(1.0)),
    ])
}

/// `nvmed trace analyse` beside `blkparse` and `btt`, of the same file of blktrace, each as whole processes.
pub fn blkparse_btt() -> Result<Vec<Row>, String> {
    const COUNT: usize = 300_000;
    for tool in ["blkparse", "btt"] {
        if run(Command::new(tool).arg("-V")).is_err() {
            return Err(format!("there is no {tool}: install the package blktrace"));
        }
    }
    let requests = twitter(COUNT)?;
    let mut names = Catalogue::default();
    let device = names.devices.number("8,0").ok_or("there is no room for a name")?;
    let requests: Vec<Request> = requests.into_iter().map(|request| Request { device, ..request }).collect();
    let events = Scratch::new("trace.blktrace.0").with("blktrace", &requests, &names)?;
    let base = events.0.with_extension("").with_extension("");
    let dump = Scratch::new("trace.dump");
    let nvmed = std::env::current_exe().map_err(text)?.with_file_name("nvmed");
    let processor_s = |commands: &mut [Command]| -> Result<f64, String> {
        let before = children_cpu_ns()?;
        commands.iter_mut().try_for_each(|command| run(command).map(|_| ())).map_err(text)?;
        Ok((children_cpu_ns()? - before) as f64 / 1e9)
    };
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    // btt leaves files where it runs.
    let place = dump.0.with_extension("btt");
    std::fs::create_dir(&place).map_err(text)?;
    let measured = (0..ROUNDS).try_for_each(|_| {
        let mut analyse = Command::new(&nvmed);
        analyse.args(["trace", "analyse"]).arg(&base);
        ours.push(processor_s(&mut [analyse])?);
        let (mut blkparse, mut btt) = (Command::new("blkparse"), Command::new("btt"));
        blkparse.arg("-i").arg(&base).arg("-O").arg("-d").arg(&dump.0).current_dir(&place);
        // Without a name, what it found goes to its standard output.
        btt.arg("-i").arg(&dump.0).current_dir(&place);
        theirs.push(processor_s(&mut [blkparse, btt])?);
        Ok::<_, String>(())
    });
    std::fs::remove_dir_all(&place).map_err(text)?;
    measured?;
    let bytes = events.0.metadata().map_err(text)?.len();
    let conditions = format!(
        "{COUNT} requests of Twitter's as events of blktrace, {bytes} bytes in memory; processor time of whole \
         processes, in steps of 10 ms; {ROUNDS} rounds, in turns"
    );
    let mut row = row(BLKTRACE, "CPU s", "nvmed trace analyse", ours, Goal::Ratio(1.0 / 3.0), conditions);
    row.rival = Some(Contender { name: "blkparse and btt".to_owned(), samples: theirs });
    Ok(vec![row])
}

/// Drives of the paper's case study.
const DRIVES: [&str; 3] = ["emmc", "emmc-8ps", "emmc-hps"];
/// Rounds of all traces on all of them.
const SIMULATIONS: usize = 3;

/// Milliseconds that the simulation of a trace takes, of each of the 25 on each drive: the one in the middle, and the
/// slowest. A round is a figure.
pub fn simulate() -> Result<Vec<Row>, String> {
    let rows = Published::published();
    let traces = rows.iter().map(synthesised).collect::<Result<Vec<_>, _>>()?;
    let (mut middle, mut slowest) = (Samples::default(), Samples::default());
    let mut slow = String::new();
    for _ in 0..SIMULATIONS {
        let mut round: Vec<(f64, String)> = Vec::new();
        for drive in DRIVES {
            let named = DriveProfile::named(drive).map_err(text)?;
            let profile = named.drive(named.usual_bytes()).map_err(text)?;
            for (row, requests) in rows.iter().zip(&traces) {
                let begin = thread_cpu_ns();
                let pass = || requests.iter().copied().map(Ok::<_, String>);
                let simulation = Simulation::new(&profile, false).map_err(text)?;
                let done = simulation.serve(pass(), pass(), |request| {
                    black_box(request);
                    Ok(())
                })?;
                let _ = black_box(done);
                let cpu_ms = (thread_cpu_ns() - begin) as f64 / 1e6;
                round.push((cpu_ms, format!("{} on {drive}", row.name)));
            }
        }
        round.sort_by(|one, other| one.0.total_cmp(&other.0));
        middle.push(round.iter().map(|one| one.0).collect::<Samples>().median());
        let (most_ms, name) = round.pop().ok_or("there are no traces")?;
        slowest.push(most_ms);
        slow = name;
    }
    let conditions = format!(
        "the 25 traces of IISWC'15, Table III, synthesised, on {}, each with what it reads written before; processor \
         time of one thread; {SIMULATIONS} rounds; the slowest is {slow}",
        DRIVES.join(", ")
    );
    let of = |name, samples, most: f64| {
        row(name, "CPU ms a trace", "simulation", samples, Goal::Figure(most), conditions.clone())
    };
    Ok(vec![of(SIMULATE[0], middle, 100.0), of(SIMULATE[1], slowest, 500.0)])
}

/// The time between two looks at a process.
const LOOK: Duration = Duration::from_millis(20);

/// The largest resident set of a process that is run to its end, in MiB, and what it prints. What it grows by after the
/// last look is not seen.
fn peak_mib(command: &mut Command) -> Result<(f64, String), String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(text)?;
    let mut stdout = child.stdout.take().ok_or("the program has no output")?;
    let printed = std::thread::spawn(move || {
        let mut printed = String::new();
        stdout.read_to_string(&mut printed).map(|_| printed)
    });
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak_kib = 0.0f64;
    let ended = loop {
        let told = std::fs::read_to_string(&status).unwrap_or_default();
        let told = told.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
        peak_kib = told.and_then(|kib| kib.parse().ok()).map_or(peak_kib, |kib: f64| kib.max(peak_kib));
        if let Some(ended) = child.try_wait().map_err(text)? {
            break ended;
        }
        std::thread::sleep(LOOK);
    };
    let printed = printed.join().map_err(|_| "its output was not read")?.map_err(text)?;
    if ended.success() && peak_kib > 0.0 {
        Ok((peak_kib / 1024.0, printed))
    } else {
        Err(format!("{}: {ended}", command.get_program().display()))
    }
}

/// A request on 64 GiB: half of them are at offsets that are no multiples of 4 KiB, and more of these than are known
/// exactly.
fn scattered(dice: &mut Dice, number: u64) -> Request {
    let offset = dice.roll(1 << 24) * 4096 + 512 * (number % 2);
    let op = if dice.chance(30) { Op::Read } else { Op::Write };
    Request {
        start_ns: Some(number * 20_000 + 10),
        finish_ns: Some(number * 20_000 + 10 + dice.roll(30_000)),
        ..Request::new(op, offset, 4096 << dice.roll(4), number * 20_000)
    }
}

/// The largest resident set of `nvmed trace analyse` of so many requests, from Parquet in to its page and its numbers
/// out, in MiB; the file's bytes a request; and the error of the hits that it tells, in points.
fn peak_of_analysis(count: u64) -> Result<(f64, f64, f64), String> {
    let trace = Scratch::on_disk("memory.parquet")?;
    let names = Catalogue::default();
    let format = Format::named("parquet").ok_or("there is no such format")?;
    let mut sink = Sink::create(&trace.0, format).map_err(text)?;
    let mut dice = Dice::new(5);
    (0..count).try_for_each(|number| sink.write(&scattered(&mut dice, number), &names)).map_err(text)?;
    sink.finish(&names).map_err(text)?;
    let page = Scratch::on_disk("memory.html")?;
    let mut analyse = Command::new(std::env::current_exe().map_err(text)?.with_file_name("nvmed"));
    analyse.args(["trace", "analyse", "--json", "--html"]).arg(&page.0).arg(&trace.0);
    let (peak_mib, printed) = peak_mib(&mut analyse)?;
    let found: serde_json::Value = serde_json::from_str(&printed).map_err(text)?;
    let all = &found["traces"][0]["all"];
    let requests: u64 = ["reads", "writes"].iter().map(|side| sum(&all["sizes"], side)).sum();
    let error = all["temporal_locality_error_points"].as_f64().unwrap_or(f64::INFINITY);
    if requests != count || error >= 1.0 {
        return Err(format!("{requests} of {count} requests, hits within {error} points"));
    }
    let bytes = trace.0.metadata().map_err(text)?.len() as f64 / count as f64;
    Ok((peak_mib, bytes, error))
}

/// The sum of one field of all objects of a list.
fn sum(list: &serde_json::Value, field: &str) -> u64 {
    list.as_array().into_iter().flatten().filter_map(|each| each[field].as_u64()).sum()
}

/// The largest resident set of the analysis of 10^8 requests, beside that of half of them.
pub fn memory(wanted: &str) -> Result<Vec<Row>, String> {
    const COUNT: u64 = 100_000_000;
    if wanted != MEMORY {
        println!("SKIPPED: {MEMORY}: it takes minutes and 1 GB of the disk: `make bench ROW={MEMORY}`");
        return Ok(Vec::new());
    }
    let (half, ..) = peak_of_analysis(COUNT / 2)?;
    let (whole, bytes, error) = peak_of_analysis(COUNT)?;
    let conditions = format!(
        "`nvmed trace analyse --json --html` of {COUNT} requests in Parquet of {bytes:.1} bytes each, at random places \
         of 64 GiB, every second one 512 bytes behind a multiple of 4 KiB; hits within {error:.3} points; the largest \
         resident set of the whole process; one round"
    );
    let samples = |figure: f64| [figure].into_iter().collect::<Samples>();
    let mut row = row(MEMORY, "MiB", "10^8 requests", samples(whole), Goal::Ratio(1.05), conditions);
    row.rival = Some(Contender { name: "5 * 10^7 requests".to_owned(), samples: samples(half) });
    Ok(vec![row])
}
