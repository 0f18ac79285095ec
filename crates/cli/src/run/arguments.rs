//! The command line of `nvmed run`.

use crate::arguments::size;
use crate::recording::TraceAt;
use clap::Args;
use nvmed_stamps::{REQUESTS_DEFAULT, REQUESTS_MAX};
use std::ffi::OsString;
use std::path::PathBuf;

/// What the page of help of `nvmed run` ends with.
pub const STATUS: &str = "\
Examples:
  nvmed format disk.img --size 1G
  nvmed run -D disk.img -d ./files -- sqlite3 files/a.db 'create table t (x)'
  nvmed run -D disk.img -d ./files -- bash
  nvmed run -D 'nvm:?size=1G' -d ./files -- bash
  nvmed run --filesystem host -d . --summary -- make
  nvmed run -D disk.img -d ./files --trace t.parquet -- sqlite3 files/a.db 'select * from t'

Exit status: the program's own; 128 + N if signal N ended it; 125 if nvmed failed, 126 if the program
cannot be started, 127 if there is none; 2 wrong arguments or configuration; 3 the device is in use;
4 the device is missing, or holds no nvmed file system.

A device in memory (`nvm:?size=1G`, `virtual:?media=dram,size=1G`) is new, gets a file system by itself, and goes when
the run ends; with --private, `nvm:` is that of all programs of the run, and `virtual:` is each one's own.";

/// `nvmed run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Configuration file; else the one that WRAPPER_CONFIG names, else ./default.conf
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory below which files lie on the device (wrap_dir); it need not exist
    #[arg(short, long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The device (storage_engine and storage_dev)
    #[arg(short = 'D', long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Cache size (cache_size): 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache: Option<u64>,
    /// One file system for all processes that the program starts: a server beside it holds the device (mount = shared).
    /// That is the default
    #[arg(long)]
    pub shared: bool,
    /// The file system in the program's own process: fastest, and for one process at a time (mount = private)
    #[arg(long, conflicts_with = "shared")]
    pub private: bool,
    /// What answers below DIR: our file system on the device, or the host's own, whose calls can be seen (filesystem)
    #[arg(long, value_name = "WHICH", value_parser = ["nvmedfs", "host"])]
    pub filesystem: Option<String>,
    /// With --filesystem host: the directory behind DIR, if it is another (storage_dev)
    #[arg(long, value_name = "DIR")]
    pub host_dir: Option<PathBuf>,
    /// Write what was done, counted and timed, to FILE as lines of JSON when the program has ended
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Print the table of file calls to standard error when the program has ended, and which of them asked the server
    #[arg(long)]
    pub summary: bool,
    /// Write each file call to FILE as a line of text (docs/seeing.md)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Record what our own stack does: requests with their arrival, start and finish, into FILE (Parquet), for `nvmed
    /// trace analyse FILE` (docs/trace.md)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// With --trace: where, separated by commas; everywhere if absent
    #[arg(long, value_name = "WHERE", requires = "trace", value_delimiter = ',')]
    pub trace_at: Vec<TraceAt>,
    /// With --trace: requests that each ring holds until they are written; what finds no room is lost and counted
    #[arg(long, value_name = "N", requires = "trace", value_parser = trace_buffer, default_value_t = REQUESTS_DEFAULT)]
    pub trace_buffer: usize,
    /// The programs' calls pass others on the way to the device, as if started by `ionice -c 1` (urgent_programs);
    /// with --server only where the grant has `urgent`
    #[arg(long)]
    pub urgent: bool,
    /// System calls that the program makes by its own instructions: off, dispatch (to the wrapper) or detect
    #[arg(long, value_name = "HOW", value_parser = raw_syscalls)]
    pub raw_syscalls: Option<nvmed_stack::RawSyscalls>,
    /// io_uring, whose requests the kernel carries out: refuse (ENOSYS, so that programs do without) or allow (requests
    /// on files below DIR fail with EBADF)
    #[arg(long, value_name = "HOW", value_parser = io_uring)]
    pub io_uring: Option<nvmed_stack::IoUring>,
    /// A program that another one starts and that cannot be intercepted (static, set-user-ID): say so once, or refuse
    /// it
    #[arg(long, value_name = "HOW", value_parser = ["warn", "refuse"], default_value = "warn")]
    pub out_of_reach: String,
    /// What the environment tells the program of that
    #[arg(skip)]
    pub beyond: Option<OsString>,
    /// Use the file system of a server that runs (`nvmed serve`): its socket, as /run/nvmed/socket
    #[arg(long, value_name = "PATH")]
    #[arg(conflicts_with_all = ["device", "cache", "private", "shared", "filesystem", "stats"])]
    pub server: Option<PathBuf>,
    /// With --server: which of the trees that are granted; the only one if absent
    #[arg(long, value_name = "NAME", requires = "server")]
    pub tree: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM [ARGS]")]
    pub program: Vec<OsString>,
}

fn trace_buffer(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=REQUESTS_MAX).contains(number));
    number.ok_or_else(|| format!("it is a number from 1 to {REQUESTS_MAX}"))
}

fn io_uring(text: &str) -> Result<nvmed_stack::IoUring, String> {
    let names = nvmed_stack::IoUring::NAMES.join(" or ");
    nvmed_stack::IoUring::named(text).ok_or_else(|| format!("it is {names}"))
}

fn raw_syscalls(text: &str) -> Result<nvmed_stack::RawSyscalls, String> {
    let names = nvmed_stack::RawSyscalls::NAMES.join(" or ");
    nvmed_stack::RawSyscalls::named(text).ok_or_else(|| format!("it is {names}"))
}
