//! The command line of `nvmed bench`.

use crate::arguments::{region, size, time};
use clap::Args;
use nvmed_lab::load::DEPTH_MAX;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What its page of help ends with.
pub const BENCH: &str = "\
On a terminal, a line shows the rates while it runs; SIGINT ends it early, with what was measured. A device
that ends with the command (media=dram) is filled first.

With clock=virtual the figures are in the device's simulated time, and repeat exactly with --count and --seed;
--time is the host's.

--verify writes a pattern made of seed and LBA, and reads it back: what a write pattern wrote, after the run;
with reads, every block that this run has written. A pattern of reads alone expects what an earlier
`nvmed bench --pattern write --verify --seed N` wrote.

Examples:
  nvmed bench 'virtual:?media=dram,size=1G' --depth 32
  nvmed bench uring:/dev/nvme0n1 --pattern read --bs 128K --time 30 --html nvme0n1.html

Exit status: 0 done; 1 failed, or data is not what was written; 2 wrong arguments; 3 the device is in use;
4 it is missing, or no image; or it holds something, and --destroy-data is absent.";

/// `nvmed bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// The device
    pub device: OsString,
    /// Which requests; rw and randrw mix reads and writes
    #[arg(long, default_value = "randread", value_parser = ["read", "write", "rw", "randread", "randwrite", "randrw"])]
    pub pattern: String,
    /// Reads in a hundred requests of rw and randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u8).range(1..100))]
    pub mix: u8,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    pub bs: u64,
    /// Requests in flight of each thread, 1 to 16383, and at most what a queue of the device holds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(DEPTH_MAX)))]
    pub depth: u16,
    /// Threads, each with a queue of its own while the device has some
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// How long to run: 2s, 500ms, 1m; seconds without a unit
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time, conflicts_with = "count")]
    pub time: Duration,
    /// Requests of each thread, however long they take
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Where on the device; all of it if absent
    #[arg(long, value_name = "[OFFSET+]SIZE", value_parser = region)]
    pub region: Option<(u64, u64)>,
    /// How results are waited for
    #[arg(long, default_value = "adaptive", value_parser = ["adaptive", "poll", "hybrid", "thread", "interrupt"])]
    pub completion: String,
    /// In which order a queue gives requests to the device
    #[arg(long, default_value = "none", value_parser = ["none", "deadline", "fair"])]
    pub scheduler: String,
    /// Check data against a pattern
    #[arg(long)]
    pub verify: bool,
    /// Where pattern and random numbers begin; else from the clock
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Write even if the device holds something, which is lost
    #[arg(long)]
    pub destroy_data: bool,
    /// Take no latencies: two looks at the clock less a request
    #[arg(long)]
    pub no_latency: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// A page with charts, which needs no other file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
