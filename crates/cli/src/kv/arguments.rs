//! The command line of `nvmed kv`.

use crate::arguments::size;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

/// What every page of help of `nvmed kv` ends with.
pub const STORES: &str = "\
A STORE is a path of a plain file or block device, which is read and written by the kernel's file calls, or a
device string with an engine, as in `virtual:store.img`, `uring:/dev/nvme0n1`, `vfio:0000:01:00.0`.

Keys and values are bytes. As text, what is not printable ASCII is written `\\xNN`, and a backslash, tab, newline
`\\\\`, `\\t`, `\\n`; what is printed so can be given so. --hex takes and prints hexadecimal digits.

Exit status: 0 done; 1 failed, a key is missing (`get`), or damage was found (`check`); 2 wrong arguments;
3 the store is in use; 4 there is no store, or (`format`) something that would be lost.";

const FORMAT: &str = "\
Example:
  nvmed kv format store.kv --size 256M
  nvmed kv put store.kv colour green
  nvmed kv scan store.kv --prefix col";

const PUT: &str = "\
Example:
  nvmed kv put store.kv colour green
  nvmed kv put store.kv picture --value-from picture.png
  printf 'a\\t1\\nb\\t2\\n' | nvmed kv put store.kv --batch";

const BENCH: &str = "\
One line a phase: the pairs are put (each batch durable before the next, unless --no-sync), then read at random.
Threads share commits: eight that wait for the same append to the log make it together. Keys of a run without --keep
are removed again by one range delete. A medium that ends with the command (media=dram) is formatted first. With
clock=virtual times are the device's simulated ones, for one thread, and repeat exactly.

Example:
  nvmed kv bench 'virtual:?media=dram,size=1G' --threads 8 --pairs 200000
  nvmed kv bench store.kv --create --size 1G --value-bytes 512 --batch 100 --json";

/// `nvmed kv`.
#[derive(Debug, Args)]
pub struct Kv {
    /// What to do
    #[command(subcommand)]
    pub command: KvCommand,
}

/// What `nvmed kv` does.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum KvCommand {
    /// Make an empty store
    #[command(after_help = FORMAT)]
    Format(Format),
    /// Print the values of keys
    #[command(after_help = STORES)]
    Get(Get),
    /// Set a key, or many from standard input
    #[command(after_help = PUT)]
    Put(Put),
    /// Remove keys, or a range of them
    #[command(after_help = STORES)]
    Del(Del),
    /// Print keys and values in order
    #[command(after_help = STORES)]
    Scan(Scan),
    /// Show how full a store is
    #[command(after_help = STORES)]
    Stats(Stats),
    /// Read every block in use and check it; nothing is changed
    #[command(after_help = STORES)]
    Check(Check),
    /// Measure a store
    #[command(after_help = BENCH)]
    Bench(Bench),
}

/// How keys and values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Printable bytes as they are, others as `\xNN`
    Text,
    /// Hexadecimal digits
    Hex,
    /// One JSON object a line; bytes that are no UTF-8 in `key_hex`, `value_hex`
    Json,
}

/// A store that may have to be made.
#[derive(Debug, Args)]
pub struct Making {
    /// Make the store if there is none yet
    #[arg(long, requires = "size")]
    pub create: bool,
    /// Size of a file that is made: 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
}

/// `nvmed kv format`.
#[derive(Debug, Args)]
pub struct Format {
    /// The store
    pub store: OsString,
    /// Size of a new file, or to grow an existing one to: 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Bytes of the log, which bounds the time that a recovery takes; else an eighth, at most 32 MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub log: Option<u64>,
    /// Format even if something is there, which is lost
    #[arg(long)]
    pub force: bool,
}

/// `nvmed kv get`.
#[derive(Debug, Args)]
pub struct Get {
    /// The store
    pub store: OsString,
    /// Keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// Keys are given, and values printed, in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// Print values as they are, one after the other, without anything between them
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// One JSON object a key
    #[arg(long)]
    pub json: bool,
}

/// `nvmed kv put`.
#[derive(Debug, Args)]
pub struct Put {
    /// The store
    pub store: OsString,
    /// The key
    #[arg(required_unless_present = "batch")]
    pub key: Option<OsString>,
    /// Its value
    #[arg(required_unless_present_any = ["batch", "value_from"], conflicts_with = "value_from")]
    pub value: Option<OsString>,
    /// Take the value, as it is, from a file; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "batch")]
    pub value_from: Option<OsString>,
    /// Read lines of key, tab and value from standard input
    #[arg(long, conflicts_with_all = ["key", "value"])]
    pub batch: bool,
    /// Lines that are set together, or not at all
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "batch")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub atomic: u32,
    /// Keys and values are given in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// A store that may have to be made
    #[command(flatten)]
    pub making: Making,
}

/// `nvmed kv del`.
#[derive(Debug, Args)]
pub struct Del {
    /// The store
    pub store: OsString,
    /// Keys; one that is not there is no error
    #[arg(required_unless_present = "range", conflicts_with = "range", value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// Every key from FROM on that is below TO, at once
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    pub range: Option<Vec<OsString>>,
    /// Keys are given in hexadecimal
    #[arg(long)]
    pub hex: bool,
}

/// `nvmed kv scan`.
#[derive(Debug, Args)]
pub struct Scan {
    /// The store
    pub store: OsString,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// Keys below this one
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Keys that begin so
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<OsString>,
    /// From the last one down
    #[arg(long)]
    pub reverse: bool,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Keys only
    #[arg(long)]
    pub keys: bool,
    /// Only how many there are
    #[arg(long, conflicts_with = "keys")]
    pub count: bool,
    /// Keys are given in hexadecimal too, with --format hex or json
    #[arg(long)]
    pub hex: bool,
    /// How pairs are printed
    #[arg(long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    pub format: Form,
}

/// `nvmed kv stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// The store
    pub store: OsString,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `nvmed kv check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The store
    pub store: OsString,
}

/// `nvmed kv bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// The store
    pub store: OsString,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Pairs that are put, by all threads together
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub pairs: u64,
    /// Bytes of a key
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(16..=nvmed_kv::KEY_BYTES_MAX as i64))]
    pub key_bytes: u32,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=nvmed_kv::VALUE_BYTES_MAX as i64))]
    pub value_bytes: u32,
    /// Pairs that are put together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Random reads, by all threads together; as many as pairs if absent
    #[arg(long, value_name = "N")]
    pub reads: Option<u64>,
    /// Keys in ascending order; else in no order
    #[arg(long)]
    pub sequential: bool,
    /// Put without waiting that it is durable; one commit at the end
    #[arg(long)]
    pub no_sync: bool,
    /// Memory for tree nodes
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size)]
    pub cache: u64,
    /// Leave the pairs there
    #[arg(long)]
    pub keep: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// A store that may have to be made
    #[command(flatten)]
    pub making: Making,
}
