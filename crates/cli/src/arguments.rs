//! The command line.

use crate::run::arguments::Run;
use clap::{Args, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What every page of help ends with.
const PLACES: &str = "\
A DEVICE is a string: `disk.img`, or `virtual:disk.img?flush=process,lba=4096`.
A file on it is `DEVICE:/path`, as in `disk.img:/a/b`; a host file whose name contains `:/` is `host:NAME`.

Exit status: 0 done; 1 failed; 2 wrong arguments or configuration; 3 the device is in use;
4 the device does not hold what is needed (missing, no nvmed file system, another version, truncated;
`format`: something that would be lost).";

const FSCK: &str = "\
Without --repair nothing is changed. --repair reads all metadata into memory (about 400 bytes a file), says what is
wrong and what becomes of it, a line each, and then does it: names and inodes without each other (to /lost+found),
link counts, blocks of two files (one gets a copy; loudly, if there is no room for one), bitmap, counters, a damaged
superblock. It reads the data of the files that it puts right, and names those of which the device does not give all;
the others can be copied out. A repair that is interrupted can be made again. If the metadata store itself is damaged
nothing is changed: --salvage copies what can be read (all but what the damaged blocks told of), then format.

Example:
  nvmed fsck disk.img
  nvmed fsck --repair -n disk.img
  nvmed fsck --repair disk.img
  nvmed fsck --salvage ./rescued disk.img

Exit status: 0 nothing is wrong, or (--repair) no more; 1 something is wrong, cannot be read, or failed; 2 wrong
arguments; 3 the device is in use; 4 no nvmed file system of this version, or its metadata store is damaged.";

const MOUNT: &str = "\
Every program of the machine can use the mount, also those that `nvmed run` cannot serve (static binaries, raw
system calls). The kernel caches what is read and checks permissions; writes, names and fsync come to nvmed.
It ends by `nvmed umount DIR`, umount(8), or SIGTERM; a process that serves it and dies loses no completed call.

Words of -o: ro, suid, dev, noexec, noatime, nonempty, allow_other (as root: the default) and noallow_other,
threads=N (8), cpus=0+2-3 (processors for these threads; none: anywhere), log=FILE (else the system log), and
every key of the configuration file, as cache_size=256M or durability=device.

Example:
  nvmed format disk.img --size 1G
  nvmed mount disk.img /mnt
  nvmed umount /mnt

Exit status: 0 mounted (--foreground: ended); 1 failed; 2 wrong arguments; 3 the device is in use;
4 the device holds no nvmed file system.";

const UMOUNT: &str = "\
Saves everything, unmounts, and waits until the device is free for others. What cannot be saved stays mounted.
A mount whose process has died is taken away.

Exit status: 0 done; 1 failed; 2 wrong arguments; 3 in use.";

const WHOM: &str = "\
SERVER is a process of a run (or `nvmed run` itself), or a server's socket; without it, the only server there is. Of a
run without a server (--private, --filesystem host) that counts (--stats, --summary, --record) the file calls are shown.
Of a server, calls that it was asked for and those that its clients answered themselves are told apart.

Exit status: 0 done; 1 nobody to ask, or no answer; 2 wrong arguments.";

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

/// The command line of this process. One that is wrong, or asks for help, ends it.
///
/// That of `nvmed run`, which comes before each program, is read without a description of the other subcommands: of
/// what is wrong with it the whole of them tells.
pub(crate) fn parsed() -> Arguments {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == "run") {
        let run = Run::augment_args(clap::Command::new("run"));
        let matches = run.no_binary_name(true).try_get_matches_from(words);
        if let Ok(run) = matches.and_then(|matches| Run::from_arg_matches(&matches)) {
            return Arguments { command: Command::Run(run) };
        }
    }
    Arguments::parse()
}

/// The subcommands.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum Command {
    /// Make an empty file system on a device
    #[command(after_help = PLACES)]
    Format(Format),
    /// Run a program whose files below a directory lie on a device
    #[command(after_help = crate::run::arguments::STATUS)]
    Run(Run),
    /// Mount a device's file system on a directory, for every program
    #[command(after_help = MOUNT)]
    Mount(Mount),
    /// Unmount what `nvmed mount` has mounted
    #[command(after_help = UMOUNT)]
    Umount(Umount),
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
    /// Check a file system, or repair one
    #[command(after_help = FSCK)]
    Fsck(Fsck),
    /// Tell a device that the contents of its file system's free space are not needed
    #[command(after_help = PLACES)]
    Trim(Trim),
    /// Show a device's controller, which virtual drive it is, its namespace and its file system
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
    /// Make virtual SSDs that stay, and show what they can be like
    #[command(after_help = crate::device::arguments::PROFILES)]
    Device(crate::device::arguments::Device),
    /// Show what a device says it is: controller, namespace, abilities, limits
    #[command(after_help = PLACES)]
    Identify(Identify),
    /// Show a device's health log
    #[command(after_help = PLACES)]
    Smart(Smart),
    /// Measure a device
    #[command(after_help = crate::bench::arguments::BENCH)]
    Bench(crate::bench::arguments::Bench),
    /// Run the papers' experiments again, beside the kernel
    #[command(after_help = LAB)]
    Lab(Lab),
    /// Block traces: record, show, convert, analyse, synthesise, simulate, sweep and replay them
    #[command(after_help = crate::trace::arguments::TRACES)]
    Trace(crate::trace::arguments::Trace),
    /// Keep keys and values in a file or on a device
    #[command(after_help = crate::kv::arguments::STORES)]
    Kv(crate::kv::arguments::Kv),
    /// Show what a server is doing, live
    #[command(after_help = WHOM)]
    Top(Top),
    /// Show a server's counters, once
    #[command(after_help = WHOM)]
    Stats(Stats),
    /// Serve a virtual device to another process over vfio-user, until SIGINT or SIGTERM
    #[command(after_help = crate::serve::arguments::SERVE_DEVICE)]
    ServeDevice(crate::serve::arguments::ServeDevice),
    /// Serve a device's file system, and partitions behind it, to several users
    #[command(after_help = crate::serve::arguments::SERVE)]
    Serve(crate::serve::arguments::Serve),
    /// Administer what `nvmed serve` serves: grants, sessions, limits
    #[command(after_help = crate::serve::arguments::ADMIN)]
    Admin(crate::serve::arguments::Admin),
}

/// `nvmed format`.
#[derive(Debug, Args)]
pub struct Format {
    /// The device; a file that does not exist is made, sparse, with --size
    pub device: OsString,
    /// Size of a new file, or to grow an existing one to: 64M, 1G; a drive's is said by `nvmed device create`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Size of the file system, at the start of the device: what is behind it is left for partitions (`nvmed serve`)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub fs_size: Option<u64>,
    /// Name of the file system, at most 64 bytes
    #[arg(long, value_name = "TEXT", value_parser = label)]
    pub label: Option<String>,
    /// Share of the device that is set aside for metadata, in percent; at least 4 MiB are
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub metadata_share: Option<f64>,
    /// Names below a directory above which it becomes a zone, which is renamed as one record; 0: each directory is one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub zone_bound: Option<u32>,
    /// Format even if the device holds something, which is lost; never a device that is in use
    #[arg(long)]
    pub force: bool,
}

/// `nvmed top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Print one interval as plain text; so also when not on a terminal
    #[arg(long)]
    pub once: bool,
    /// Time between two looks: 500ms, 2s; seconds without a unit
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = interval)]
    pub interval: f64,
    /// Whom to ask
    pub server: Option<OsString>,
}

/// `nvmed stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// As the server says it: one JSON object (docs/seeing.md)
    #[arg(long)]
    pub json: bool,
    /// Whom to ask
    pub server: Option<OsString>,
}

/// `nvmed mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// How to mount: words separated by commas, see below
    #[arg(short, value_name = "WORDS")]
    pub options: Vec<String>,
    /// Stay in the foreground; SIGINT unmounts
    #[arg(short, long)]
    pub foreground: bool,
    /// The device, or a configuration file FILE.conf
    pub device: OsString,
    /// An empty directory; the configuration file's wrap_dir if absent
    pub dir: Option<PathBuf>,
    /// Hold a mount that was started in the background
    #[arg(long, hide = true)]
    pub background: bool,
    /// Serve with the settings of FILE, for the process that holds them
    #[arg(long, hide = true, value_name = "FILE")]
    pub serve: Option<PathBuf>,
}

/// `nvmed umount`.
#[derive(Debug, Args)]
pub struct Umount {
    /// Detach it now; it ends with its last user, and nobody waits for that
    #[arg(short, long)]
    pub lazy: bool,
    /// Where it is mounted
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
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
#[command(disable_help_flag = true)]
pub struct Df {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Sizes in powers of 1024, as 1.5G
    #[arg(short, long)]
    pub human_readable: bool,
    /// Sizes in powers of 1000
    #[arg(short = 'H', long)]
    pub si: bool,
    /// Inodes in place of blocks; how many fit is estimated
    #[arg(short, long)]
    pub inodes: bool,
    /// Sizes in blocks of 1K: the default
    #[arg(short, overrides_with = "block_size")]
    pub kilobytes: bool,
    /// Sizes in blocks of SIZE
    #[arg(short = 'B', long, value_name = "SIZE", value_parser = block_size, overrides_with = "kilobytes")]
    pub block_size: Option<u64>,
    /// The columns of POSIX, and nothing behind the table
    #[arg(short = 'P', long)]
    pub portability: bool,
    /// The type of each file system
    #[arg(short = 'T', long)]
    pub print_type: bool,
    /// A line for all together
    #[arg(long)]
    pub total: bool,
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
    /// Put right what is wrong: says first what it will do, then does it
    #[arg(long)]
    pub repair: bool,
    /// With --repair: only say what it would do
    #[arg(short = 'n', long, requires = "repair")]
    pub dry_run: bool,
    /// Copy everything that can be read to a new directory, whatever is damaged; the device is not changed
    #[arg(long, value_name = "DIR", conflicts_with = "repair")]
    pub salvage: Option<PathBuf>,
    /// The device
    pub device: OsString,
}

/// `nvmed trim`.
#[derive(Debug, Args)]
pub struct Trim {
    /// Pass over free runs shorter than this: 64K, 1M
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub minimum: u64,
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
    /// Do the system calls of a mobigen trace again, below a directory
    Replay {
        /// Only make the files that were there before
        #[arg(long)]
        prepare: bool,
        /// How often, each time with files of its own in DIR/0, DIR/1, …
        #[arg(long, value_name = "N", default_value_t = 1)]
        times: u32,
        /// The trace: lines `thread microseconds call arguments result`
        #[arg(value_name = "TRACE")]
        trace: PathBuf,
        /// Where its files lie
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Name the results of a directory that miss their goals
    Check {
        /// Where they are
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
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

fn interval(text: &str) -> Result<f64, String> {
    let seconds = nvmed_units::parse_time(text).ok().map(|time| time.as_secs_f64());
    seconds
        .filter(|seconds| (0.1..=60.0).contains(seconds))
        .ok_or_else(|| "not a time from 0.1 to 60 seconds".to_owned())
}

pub fn time(text: &str) -> Result<Duration, String> {
    nvmed_units::parse_time(text).map_err(|_| "not a time such as 2s or 500ms".to_owned())
}

/// A size, or a unit alone: `M`.
fn block_size(text: &str) -> Result<u64, String> {
    let bytes = size(text).or_else(|_| size(&format!("1{text}")))?;
    if bytes > 0 { Ok(bytes) } else { Err("blocks have at least one byte".to_owned()) }
}

pub fn size(text: &str) -> Result<u64, String> {
    nvmed_units::parse_bytes(text).map_err(|_| "not a size such as 64M or 1.5G".to_owned())
}

/// `[OFFSET+]SIZE` in bytes.
pub fn region(text: &str) -> Result<(u64, u64), String> {
    let (offset, bytes) = text.split_once('+').unwrap_or(("0", text));
    Ok((size(offset)?, size(bytes)?))
}

fn label(text: &str) -> Result<String, String> {
    if text.len() <= nvmed_fs::LABEL_BYTES_MAX {
        return Ok(text.to_owned());
    }
    Err(format!("{} bytes; a label has at most {}", text.len(), nvmed_fs::LABEL_BYTES_MAX))
}

fn percent(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let share = share.filter(|share| (0.1..=90.0).contains(share));
    share.ok_or_else(|| "not a share from 0.1 to 90, in percent".to_owned())
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
