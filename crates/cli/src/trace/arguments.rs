//! The command line of `nvmed trace`.

use super::analyse::Analyse;
use super::simulate::Simulate;
use super::synthesise::Synthesise;
use clap::{Args, Subcommand};
use nvmed_trace::{FORMATS, Format, Tolerance};
use std::path::PathBuf;

/// What the pages of help of `nvmed trace` end with.
pub const TRACES: &str = "\
A trace's format is told by its content, whatever its name is, and what gzip has packed is unpacked. NAME is also the
files NAME.blktrace.0, NAME.blktrace.1, … of blktrace, joined. docs/trace.md says what each format has.

Example:
  nvmed trace formats
  nvmed trace show mysql.load.gz --rows 5
  nvmed trace convert mysql.load.gz mysql.parquet
  nvmed trace convert sda sda.fio --to fio
  nvmed trace analyse mysql.load.gz mssql.load.gz
  nvmed trace analyse mysql.load.gz --html report.html
  nvmed trace synthesise Twitter --seed 7 -o twitter.parquet
  nvmed trace synthesise --like mysql.load.gz --rate 2 -o faster.parquet
  nvmed trace simulate twitter.parquet --profile emmc --profile emmc-8ps --profile emmc-hps

Exit status: 0 done; 1 failed, no trace, or too many malformed lines; 2 wrong arguments.";

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
    /// List the formats of traces: which are read and written, and what their times are
    #[command(after_help = TRACES)]
    Formats,
    /// Show the requests with which a trace begins, and how many there are
    #[command(after_help = TRACES)]
    Show(Show),
    /// Write a trace in another format
    #[command(after_help = TRACES)]
    Convert(Convert),
    /// Say what traces are like: the tables of IISWC'15 and more, side by side
    #[command(after_help = TRACES)]
    Analyse(Analyse),
    /// Make a trace from a row of these tables, or like another trace
    #[command(after_help = TRACES)]
    Synthesise(Synthesise),
    /// Give a trace to simulated drives: response times, space, write amplification, erases
    #[command(after_help = TRACES)]
    Simulate(Simulate),
}

/// How a trace is read.
#[derive(Debug, Args)]
pub struct Reading {
    /// Format of the trace; absent, it is told by the content
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub format: Option<&'static Format>,
    /// Malformed lines at which it is given up: a number, or `all`; absent, 1 % and more than 100
    #[arg(long, value_name = "N", value_parser = tolerance)]
    pub malformed: Option<Tolerance>,
}

/// `nvmed trace show`.
#[derive(Debug, Args)]
pub struct Show {
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Requests to show
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

/// The format of a name.
///
/// # Errors
/// There is none.
pub fn format(name: &str) -> Result<&'static Format, String> {
    let names = || FORMATS.iter().map(Format::name).collect::<Vec<_>>().join(", ");
    Format::named(name).ok_or_else(|| format!("no format is called so; there are {}", names()))
}

fn tolerance(text: &str) -> Result<Tolerance, String> {
    match text {
        "all" => Ok(Tolerance::Lines(u64::MAX)),
        text => text.parse().map(Tolerance::Lines).map_err(|_| "it is a number, or `all`".to_owned()),
    }
}
