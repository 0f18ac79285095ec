//! The command line.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// What every page of help ends with.
const PLACES: &str = "\
A DEVICE is a string: `disk.img`, or `virtual:disk.img?flush=process,lba=4096`.
A file on it is `DEVICE:/path`, as in `disk.img:/a/b`; a host file whose name contains `:/` is `host:NAME`.

Exit status: 0 done; 1 failed; 2 wrong arguments or configuration; 3 the device is in use;
4 the device does not hold what is needed (no nvmed file system, another version, truncated;
`format`: something that would be lost).";

const RUN_STATUS: &str = "\
Exit status: the program's own; 128 + N if signal N ended it; 125 if nvmed failed, 126 if the program
cannot be started, 127 if there is none; 2 wrong arguments or configuration; 3 the device is in use;
4 the device holds no nvmed file system.";

const SERVE: &str = "\
One line on standard output says that the socket is there. One client at a time has the device, a second
one is told that it is busy; a client that ends, however it ends, leaves a device that is reset. The socket
belongs to the user who made it (mode 0600) and is removed at the end.

Example:
  nvmed serve-device 'virtual:?media=dram,size=1G' --socket /run/user/1000/nvmed.sock &
  nvmed format vfio-user:/run/user/1000/nvmed.sock

Exit status: 0 ended by a signal; 1 failed; 2 wrong arguments; 3 the device or the socket is in use.";

const LIST: &str = "\
Each device with who drives it, who uses it, what it can do and the strings by which it can be opened now.
Without a device, `virtual:disk.img` works everywhere.";

const BIND: &str = "\
Needs root, an IOMMU that is switched on, and `modprobe vfio-pci`. Nothing is changed when the drive is in use
(mounted, swap, RAID, LVM), or when other functions of its IOMMU group are driven by the kernel: the message
says which. The kernel's block devices of the controller go away until `nvmed unbind`.

Example:
  nvmed bind 0000:01:00.0
  nvmed info vfio:0000:01:00.0

Exit status: 0 done; 1 not possible; 2 wrong arguments; 3 in use.";

const UNBIND: &str = "\
The kernel's nvme driver takes the controller, and its block devices appear again. Refused while a process has
it open.

Exit status: 0 done; 1 not possible; 2 wrong arguments; 3 in use.";

const BENCH: &str = "\
On a terminal, a line shows the rates while it runs; SIGINT ends it early, with what was measured. A device
that ends with the command (media=dram) is filled first.

--verify writes a pattern made of seed and LBA, and reads it back: what a write pattern wrote, after the run;
with reads, every block that this run has written. A pattern of reads alone expects what an earlier
`nvmed bench --pattern write --verify --seed N` wrote.

Examples:
  nvmed bench 'virtual:?media=dram,size=1G' --depth 32
  nvmed bench uring:/dev/nvme0n1 --pattern read --bs 128K --time 30 --html nvme0n1.html

Exit status: 0 done; 1 failed, or data is not what was written; 2 wrong arguments; 3 the device is in use;
4 the device holds something, and --destroy-data is absent.";

const LAB: &str = "\
Each experiment runs us and the kernel's own paths in turns, in the same run, and judges the ratio. Memory disks
(zram) need root: without it an experiment is skipped, and says so.

Exit status: 0 done, and `check` found nothing; 1 failed, or a goal is missed; 2 wrong arguments.";

/// A user-space storage stack for NVMe: unmodified programs on a file system on a queue pair.
#[derive(Debug, Parser)]
#[command(name = "nvmed", version, after_help = PLACES, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum Command {
    /// Make an empty file system on a device
    #[command(after_help = PLACES)]
    Format(Format),
    /// Run a program whose files below a directory lie on a device
    #[command(after_help = RUN_STATUS)]
    Run(Run),
    /// List directories
    #[command(after_help = PLACES)]
    Ls(Ls),
    /// Write files to standard output
    #[command(after_help = PLACES)]
    Cat(Files),
    /// Copy files between a device and the host, or within and between devices
    #[command(after_help = PLACES)]
    Cp(Cp),
    /// Make directories
    #[command(after_help = PLACES)]
    Mkdir(Mkdir),
    /// Remove files
    #[command(after_help = PLACES)]
    Rm(Rm),
    /// Rename files, or move them to a directory, within a device
    #[command(after_help = PLACES)]
    Mv(Mv),
    /// Show what is known of files
    #[command(after_help = PLACES)]
    Stat(Stat),
    /// Show how full devices are
    #[command(after_help = PLACES)]
    Df(Df),
    /// Check a file system; nothing is changed
    #[command(after_help = PLACES)]
    Fsck(Fsck),
    /// Show a device's controller, namespace and file system
    #[command(after_help = PLACES)]
    Info(Info),
    /// List the NVMe devices of this machine: who drives and who uses them, how they can be opened
    #[command(after_help = LIST)]
    List(Devices),
    /// Give NVMe controllers to vfio-pci, so that nvmed can drive them itself
    #[command(after_help = BIND)]
    Bind(Function),
    /// Give NVMe controllers back to the kernel
    #[command(after_help = UNBIND)]
    Unbind(Function),
    /// Show what a device says it is: controller, namespace, abilities, limits
    #[command(after_help = PLACES)]
    Identify(Identify),
    /// Show a device's health log
    #[command(after_help = PLACES)]
    Smart(Smart),
    /// Measure a device
    #[command(after_help = BENCH)]
    Bench(Bench),
    /// Run the papers' experiments again, beside the kernel
    #[command(after_help = LAB)]
    Lab(Lab),
    /// Serve a virtual device to another process over vfio-user, until SIGINT or SIGTERM
    #[command(after_help = SERVE)]
    ServeDevice(ServeDevice),
}

/// `nvmed format`.
#[derive(Debug, Args)]
pub struct Format {
    /// The device; a file that does not exist is made, sparse, with --size
    pub device: OsString,
    /// Size of a new file, or to grow an existing one to: 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Name of the file system
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Format even if the device holds something, which is lost; never a device that is in use
    #[arg(long)]
    pub force: bool,
}

/// `nvmed run`.
#[derive(Debug, Args)]
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
    /// Write what was done, counted, to FILE as JSON when the program has ended
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM [ARGS]")]
    pub program: Vec<OsString>,
}

/// `nvmed ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// Mode, links, owner, group, size and time (UTC) before each name
    #[arg(short)]
    pub long: bool,
    /// Names that start with a dot too
    #[arg(short)]
    pub all: bool,
    /// Directories themselves, not what is in them
    #[arg(short)]
    pub directory: bool,
    /// DEVICE or DEVICE:/path
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<OsString>,
}

/// A subcommand that takes files only.
#[derive(Debug, Args)]
pub struct Files {
    /// DEVICE:/path
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<OsString>,
}

/// `nvmed cp`.
#[derive(Debug, Args)]
pub struct Cp {
    /// Copy directories with all that is in them; symbolic links stay links
    #[arg(short, short_alias = 'R')]
    pub recursive: bool,
    /// Keep times, and modes without regard to the umask; owners too, where that is permitted
    #[arg(short)]
    pub preserve: bool,
    /// Say what is copied
    #[arg(short)]
    pub verbose: bool,
    /// Sources and, last, the target; one side at least is DEVICE:/path
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    pub places: Vec<OsString>,
}

/// `nvmed mkdir`.
#[derive(Debug, Args)]
pub struct Mkdir {
    /// Missing parents too; an existing directory is no error
    #[arg(short)]
    pub parents: bool,
    /// Mode of the directories, in octal
    #[arg(short, value_name = "MODE", default_value = "777", value_parser = octal)]
    pub mode: u32,
    /// DEVICE:/path
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<OsString>,
}

/// `nvmed rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// Directories and all that is in them
    #[arg(short, short_alias = 'R')]
    pub recursive: bool,
    /// A missing file is no error
    #[arg(short)]
    pub force: bool,
    /// DEVICE:/path
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<OsString>,
}

/// `nvmed mv`.
#[derive(Debug, Args)]
pub struct Mv {
    /// Fail rather than replace an existing file
    #[arg(short)]
    pub no_replace: bool,
    /// Sources and, last, the new name or an existing directory
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    pub places: Vec<OsString>,
}

/// `nvmed stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// One JSON object a file
    #[arg(long)]
    pub json: bool,
    /// DEVICE:/path; symbolic links are shown, not followed
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<OsString>,
}

/// `nvmed df`.
#[derive(Debug, Args)]
pub struct Df {
    /// One JSON object a device, in bytes
    #[arg(long)]
    pub json: bool,
    /// The devices
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<OsString>,
}

/// `nvmed fsck`.
#[derive(Debug, Args)]
pub struct Fsck {
    /// The device
    pub device: OsString,
}

/// `nvmed info`.
#[derive(Debug, Args)]
pub struct Info {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// The device
    pub device: OsString,
}

/// `nvmed identify`.
#[derive(Debug, Args)]
pub struct Identify {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// The device
    pub device: OsString,
}

/// `nvmed smart`.
#[derive(Debug, Args)]
pub struct Smart {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// The device
    pub device: OsString,
}

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
    /// Requests in flight of each thread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: u16,
    /// Threads, each with a queue of its own while the device has some
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// Seconds to run
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, conflicts_with = "count")]
    pub time: f64,
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

/// `nvmed lab`.
#[derive(Debug, Args)]
pub struct Lab {
    /// What to do
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What `nvmed lab` does.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum LabCommand {
    /// Name the experiments and what their papers print
    List,
    /// Run experiments: one JSON file each, and a page, in a directory
    Run {
        /// Their names, or how they begin, or all
        #[arg(required = true, value_name = "ID")]
        names: Vec<String>,
        /// Small sets and few rounds: shows that it works, not how fast
        #[arg(long)]
        quick: bool,
        /// Where the results go
        #[arg(long, value_name = "DIR", default_value = "lab-results")]
        out: PathBuf,
    },
    /// Name the results of a directory that miss their goals
    Check {
        /// Where they are
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// `nvmed serve-device`.
#[derive(Debug, Args)]
pub struct ServeDevice {
    /// The device: `virtual:disk.img`, `virtual:?media=dram,size=1G`
    pub device: OsString,
    /// The socket to make; the next program then uses the device `vfio-user:PATH`
    #[arg(short, long, value_name = "PATH")]
    pub socket: PathBuf,
}

/// `nvmed list`.
#[derive(Debug, Args)]
pub struct Devices {
    /// One JSON object a device
    #[arg(long)]
    pub json: bool,
    /// Read the kernel's files below DIR: a copy of them, in tests
    #[arg(long, value_name = "DIR", hide = true)]
    pub root: Option<PathBuf>,
}

/// `nvmed bind` and `unbind`.
#[derive(Debug, Args)]
pub struct Function {
    /// PCI addresses, as 0000:01:00.0; `nvmed list` shows them
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
}

fn size(text: &str) -> Result<u64, String> {
    nvmed_units::parse_bytes(text).map_err(|_| "not a size such as 64M or 1G".to_owned())
}

/// `[OFFSET+]SIZE` in bytes.
fn region(text: &str) -> Result<(u64, u64), String> {
    let (offset, bytes) = text.split_once('+').unwrap_or(("0", text));
    Ok((size(offset)?, size(bytes)?))
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "not a mode such as 755".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_follows_the_program_is_its_own() {
        let line = ["nvmed", "run", "--dir", "d", "--", "sqlite3", "--help", "-c", "x"];
        let Command::Run(run) = Arguments::try_parse_from(line).unwrap().command else { panic!("run") };
        assert_eq!(run.program, ["sqlite3", "--help", "-c", "x"]);
        assert!(run.config.is_none());
    }
}
