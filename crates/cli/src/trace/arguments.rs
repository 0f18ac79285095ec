//! The command line of `nvmed trace`.

use crate::arguments::{size, time};
use clap::{ArgGroup, Args, Subcommand};
use nvmed_trace::{FORMATS, Format, Op, Selection, Tolerance};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// A page of help of `nvmed trace`, which ends with these examples.
macro_rules! page {
    ($($example:literal)+) => {
        concat!(
            "\
A trace's format is told by its content, whatever its name is, and what gzip has packed is unpacked. NAME is also the
files NAME.blktrace.0, NAME.blktrace.1, … of blktrace, joined, and - is standard input. docs/trace.md says what each
format has.

Example:
",
            $("  nvmed trace ", $example, "\n",)+
            "
Exit status: 0 done; 1 failed, no trace, or too many malformed lines; 2 wrong arguments."
        )
    };
}

/// What the page of help of `nvmed trace` itself ends with.
pub const TRACES: &str = page!(
    "record --device /dev/sda -o git.parquet -- git clone project copy"
    "show mysql.load.gz --rows 5"
    "convert sda sda.fio --to fio"
    "analyse mysql.load.gz --html report.html"
    "synthesise Twitter --seed 7 -o twitter.parquet"
    "simulate twitter.parquet --profile emmc --profile emmc-hps"
    "sweep pages.toml synth:Music synth:Booting -o pages.results --html pages.html"
    "replay twitter.parquet 'virtual:?media=dram,size=32G' --speed 10"
);
const RECORD: &str = page!(
    "record --device /dev/sda -o git.parquet -- git clone project copy"
    "record -o boot.fio --to fio -- sh -c 'make; sync'"
);
const FORMAT_LIST: &str = page!("formats");
const SHOW: &str = page!(
    "show mysql.load.gz --rows 5"
    "show sda --op write --process postgres --from 60s --until 61s"
);
const CONVERT: &str = page!(
    "convert mysql.load.gz mysql.parquet"
    "convert sda sda.fio --to fio"
    "convert all.parquet one.csv --to csv --device 8,16"
    "convert old.trace new.parquet --format disksim"
);
const ANALYSE: &str = page!(
    "analyse mysql.load.gz mssql.load.gz"
    "analyse mysql.load.gz --html report.html"
    "analyse phone1 phone2 --characteristics"
    "analyse sda --device 8,0 --processes --reuse"
);
const SYNTHESISE: &str = page!(
    "synthesise Twitter --seed 7 -o twitter.parquet"
    "synthesise --like mysql.load.gz --rate 2 -o faster.parquet"
);
const SIMULATE: &str = page!(
    "simulate twitter.parquet --profile emmc --profile emmc-8ps --profile emmc-hps"
    "simulate twitter.parquet --profile emmc -o served.parquet"
);
const SWEEP: &str = page!("sweep pages.toml synth:Music synth:Booting -o pages.results --html pages.html");

/// What the page of help of `nvmed trace replay` ends with.
pub const REPLAYS: &str = "\
TARGET is what `nvmed bench` takes: virtual:…, uring:FILE or uring:/dev/…, vfio:…, vfio-user:…, nvm:FILE. A trace
that writes loses what the device holds. SIGINT ends a replay after what is under way. docs/trace.md, \"Replay\", says
what is due when, and what is checked.

Examples:
  nvmed trace replay mysql.parquet 'virtual:?media=dram,size=4G'
  nvmed trace replay mysql.parquet uring:/dev/nvme0n1 --destroy-data --remap scale --speed 2 -o again.parquet
  nvmed trace replay mysql.parquet uring:/dev/nvme0n1 --destroy-data --closed 32 --verify --state mysql.state
  nvmed trace replay --calls --prepare twitter.mobigen /mnt/a && nvmed trace replay --calls twitter.mobigen /mnt/a
  nvmed run -D disk.img -d ./store --trace calls.parquet -- nvmed trace replay --calls calls.tsv ./store --open

Exit status: 0 done; 1 failed, stopped, or no replay since requests came late; 2 wrong arguments; 3 the device is in
use; 4 the device holds something, and --destroy-data is absent.";

/// `nvmed trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// What to do
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// What `nvmed trace` does.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum TraceCommand {
    /// Record what the kernel's block layer does while a command runs (root; tracefs)
    #[command(after_help = RECORD)]
    Record(Record),
    /// List the formats of traces: which are read and written, and what their times are
    #[command(after_help = FORMAT_LIST)]
    Formats,
    /// Show the requests with which a trace begins
    #[command(after_help = SHOW)]
    Show(Show),
    /// Write a trace in another format
    #[command(after_help = CONVERT)]
    Convert(Convert),
    /// Say what traces are like: the tables of IISWC'15 and more, side by side
    #[command(after_help = ANALYSE)]
    Analyse(Analyse),
    /// Make a trace from a row of these tables, or like another trace
    #[command(after_help = SYNTHESISE)]
    Synthesise(Synthesise),
    /// Give a trace to simulated drives: response times, space, write amplification, erases
    #[command(after_help = SIMULATE)]
    Simulate(Simulate),
    /// Give traces to all drives of a grid, and show which are beaten by no other one
    #[command(after_help = SWEEP)]
    Sweep(Sweep),
    /// Give a trace to a device, at its times or as fast as it goes; or make the calls of a trace again
    #[command(after_help = REPLAYS)]
    Replay(Replay),
}

/// How a trace is read.
#[derive(Debug, Args)]
pub struct Reading {
    /// Format of the trace; absent, it is told by the content
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub format: Option<&'static Format>,
    /// Give up after so many malformed lines: a number, or `all`; absent, 100, or 1 % if that is more
    #[arg(long, value_name = "N", value_parser = tolerance)]
    pub malformed: Option<Tolerance>,
    /// Only requests of the device of this name; given more than once, of all of these
    #[arg(long = "device", value_name = "NAME", help_heading = "Selection")]
    pub of_devices: Vec<String>,
    /// Only requests of the process of this name; given more than once, of all of these
    #[arg(long = "process", value_name = "NAME", help_heading = "Selection")]
    pub of_processes: Vec<String>,
    /// Only reads, writes, discards or flushes; given more than once, all of these
    #[arg(long = "op", value_name = "OP", value_parser = op, help_heading = "Selection")]
    pub of_ops: Vec<Op>,
    /// Only requests that arrive at this time or later, as `show` counts it: `1.5s`, `20ms`, `7ns`
    #[arg(long = "from", value_name = "TIME", value_parser = stamp, help_heading = "Selection")]
    pub arrives_from: Option<u64>,
    /// Only requests that arrive before this time
    #[arg(long = "until", value_name = "TIME", value_parser = stamp, help_heading = "Selection")]
    pub arrives_until: Option<u64>,
}

impl Reading {
    /// Which requests are used.
    pub fn selection(&self) -> Selection {
        Selection {
            devices: self.of_devices.clone(),
            processes: self.of_processes.clone(),
            ops: self.of_ops.clone(),
            from_ns: self.arrives_from,
            until_ns: self.arrives_until,
        }
    }
}

/// `nvmed trace record`.
#[derive(Debug, Args)]
pub struct Record {
    /// The disk, or a partition, which stands for its disk; absent, all of them
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<PathBuf>,
    /// The file to write, which is there when it is whole
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Format to write
    #[arg(long = "to", value_name = "FORMAT", default_value = "parquet", value_parser = format)]
    pub to_format: &'static Format,
    /// Bytes of the kernel's buffer for each processor
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = size)]
    pub buffer: u64,
    /// The command; what it leaves to be written back later is not seen, unless it ends with `sync`
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// `nvmed trace show`.
#[derive(Debug, Args)]
pub struct Show {
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Requests to show; after these no more is read
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: u64,
    /// How it is read
    #[command(flatten)]
    pub reading: Reading,
}

/// `nvmed trace convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// The trace
    #[arg(value_name = "IN")]
    pub from: PathBuf,
    /// The file to write, which is there when it is whole
    #[arg(value_name = "OUT")]
    pub to: PathBuf,
    /// How it is read
    #[command(flatten)]
    pub reading: Reading,
    /// Format to write
    #[arg(long = "to", value_name = "FORMAT", default_value = "parquet", value_parser = format)]
    pub to_format: &'static Format,
}

/// `nvmed trace analyse`.
#[derive(Debug, Args)]
pub struct Analyse {
    /// Traces, which are shown side by side
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print JSON, with devices, processes and all classes of the distributions
    #[arg(long)]
    pub json: bool,
    /// Show processes, too
    #[arg(long, conflicts_with = "json")]
    pub processes: bool,
    /// Write a page of charts, too, which needs no other file
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Say of which traces the six characteristics of smartphone applications hold, and of which not
    #[arg(long, conflicts_with = "json")]
    pub characteristics: bool,
    /// Find reuse distances, too, which takes some microseconds a request
    #[arg(long)]
    pub reuse: bool,
    /// How they are read
    #[command(flatten)]
    pub reading: Reading,
}

/// `nvmed trace synthesise`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("description").required(true).args(["row", "like"])))]
pub struct Synthesise {
    /// An application or a combination of IISWC'15, as `Twitter` or `Music/FB`
    #[arg(value_name = "ROW")]
    pub row: Option<String>,
    /// A trace that it is to be like, each of its devices by itself; --device chooses among them
    #[arg(long, value_name = "FILE")]
    pub like: Option<PathBuf>,
    /// The same seed gives the same trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The file to write, which is there when it is whole
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// So many times the requests a second; response times and waiting stay, if they can
    #[arg(long, value_name = "X", default_value = "1", value_parser = factor)]
    pub rate: f64,
    /// So many times the range of offsets; the working set stays, if it has room
    #[arg(long, value_name = "X", default_value = "1", value_parser = factor)]
    pub footprint: f64,
    /// Format to write
    #[arg(long = "to", value_name = "FORMAT", default_value = "parquet", value_parser = format)]
    pub to_format: &'static Format,
    /// How the trace is read that it is to be like
    #[command(flatten)]
    pub reading: Reading,
}

/// `nvmed trace simulate`.
#[derive(Debug, Args)]
pub struct Simulate {
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A drive of this profile (of `nvmed device profiles`, or a file); several stand side by side
    #[arg(long, value_name = "PROFILE", required = true)]
    pub profile: Vec<String>,
    /// Bytes of each drive; absent, its profile's. What lies behind its end begins at its begin again
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Drives as after having been written at random for long, not new ones
    #[arg(long)]
    pub used: bool,
    /// A file for the requests with the drive's times, which is there when it is whole
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Format of that file
    #[arg(long = "to", value_name = "FORMAT", default_value = "parquet", value_parser = format)]
    pub to_format: &'static Format,
    /// Write a page of charts, too, with what requests meet on each drive side by side
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// How the trace is read
    #[command(flatten)]
    pub reading: Reading,
}

/// `nvmed trace sweep`.
#[derive(Debug, Args)]
pub struct Sweep {
    /// TOML: a base profile and axes of fields, as docs/trace.md has it
    #[arg(value_name = "SWEEP.toml")]
    pub file: PathBuf,
    /// Traces besides those of the file: files, or rows of the published tables, as synth:Music?seed=2
    #[arg(value_name = "TRACE")]
    pub traces: Vec<String>,
    /// Threads, each of which has a drive; absent, one a processor
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<usize>,
    /// A file that keeps what is found: the same command goes on from there
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a page with a chart of response time against space, too, which needs no other file
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// How trace files are read
    #[command(flatten)]
    pub reading: Reading,
}

/// `nvmed trace replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// The device; with --calls, the directory
    #[arg(value_name = "TARGET")]
    pub target: OsString,
    /// Each request is due at its arrival, whatever the device does; so it is if nothing else is said
    #[arg(long, conflicts_with_all = ["closed", "dependent"])]
    pub open: bool,
    /// N requests are under way, as fast as the device goes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    #[arg(conflicts_with_all = ["dependent", "speed"])]
    pub closed: Option<u32>,
    /// Each request is due its think time after those that had completed before it arrived
    #[arg(long)]
    pub dependent: bool,
    /// So many times as fast as it was recorded
    #[arg(long, value_name = "X", value_parser = factor)]
    pub speed: Option<f64>,
    /// Commands under way at most, and at most what a queue of the device holds
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    pub depth: u16,
    /// Requests beyond the device: `refuse`, `modulo` (from its begin again), or `scale` (all squeezed)
    #[arg(long, default_value = "refuse", value_parser = ["refuse", "modulo", "scale"], hide_possible_values = true)]
    pub remap: String,
    /// Bytes that are added to all offsets
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub offset: u64,
    /// Mark what is written, and compare what is read with it
    #[arg(long)]
    pub verify: bool,
    /// What is written follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write all of the device once before; one in memory without a profile is filled in any case
    #[arg(long)]
    pub fill: bool,
    /// Write even if the device holds something, which is lost
    #[arg(long)]
    pub destroy_data: bool,
    /// How late 99 % of the requests may be; absent, the median gap of arrivals, and at least 1 ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub late_bound: Option<Duration>,
    /// Replay on a core of its own ahead of ordinary threads, where the host permits it
    #[arg(long)]
    pub realtime: bool,
    /// Keep in FILE how far it has come, and go on there
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// A file for the requests with the device's times, which is there when it is whole
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Format of that file
    #[arg(long = "to", value_name = "FORMAT", default_value = "parquet", value_parser = format)]
    pub to_format: &'static Format,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The trace has calls on files (mobigen, or `nvmed run --record`), which are made again below the directory
    /// TARGET, in their order, as fast as it goes; with --open or --dependent at their times, with --closed N on N
    /// threads
    #[arg(long, conflicts_with_all = DEVICE_OPTIONS)]
    pub calls: bool,
    /// With --calls: only make the files that were there before
    #[arg(long, requires = "calls")]
    pub prepare: bool,
    /// With --calls: what the directory is called that was recorded, where the trace does not say it; given more than
    /// once, if it has several names
    #[arg(long, value_name = "DIR", requires = "calls")]
    pub below: Vec<PathBuf>,
    /// With --calls: how often, each time with files of its own in TARGET/0, TARGET/1, …
    #[arg(long, value_name = "N", default_value_t = 1, requires = "calls")]
    pub times: u32,
    /// How it is read
    #[command(flatten)]
    pub reading: Reading,
}

/// What says nothing of calls on files.
const DEVICE_OPTIONS: [&str; 17] = [
    "depth",
    "remap",
    "offset",
    "verify",
    "seed",
    "fill",
    "destroy_data",
    "realtime",
    "state",
    "output",
    "to_format",
    "json",
    "of_devices",
    "of_processes",
    "of_ops",
    "arrives_from",
    "arrives_until",
];

/// The format of a name.
///
/// # Errors
/// There is none.
pub fn format(name: &str) -> Result<&'static Format, String> {
    let names = || FORMATS.iter().map(Format::name).collect::<Vec<_>>().join(", ");
    Format::named(name).ok_or_else(|| format!("no format is called so; there are {}", names()))
}

fn op(text: &str) -> Result<Op, String> {
    let names = || Op::ALL.map(Op::name).join(", ");
    let named = Op::ALL.into_iter().find(|op| op.name() == text);
    named.ok_or_else(|| format!("it is one of {}", names()))
}

fn stamp(text: &str) -> Result<u64, String> {
    Selection::time_ns(text).ok_or_else(|| "it is a number with s, ms, us or ns".to_owned())
}

fn tolerance(text: &str) -> Result<Tolerance, String> {
    match text {
        "all" => Ok(Tolerance::Lines(u64::MAX)),
        text => text.parse().map(Tolerance::Lines).map_err(|_| "it is a number, or `all`".to_owned()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "it is a number".to_owned())?;
    if (1e-6..=1e6).contains(&factor) { Ok(factor) } else { Err("it is from 0.000001 to 1000000".to_owned()) }
}

fn workers(text: &str) -> Result<usize, String> {
    let most = nvmed_replay::WORKERS_MAX;
    let count = text.parse().ok().filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| format!("it is a number from 1 to {most}"))
}
