//! The command line of `nvmed device`.

use crate::arguments::size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What the pages of help of `nvmed device` end with.
pub const PROFILES: &str = "\
A PROFILE is a built-in one's name or a TOML file, whose name has a `/` or ends in .toml (docs/flash.md says what is in
it; a built-in one, in crates/stack/profiles, is a good beginning). A device takes it as an option:
`virtual:disk.img?profile=tlc`. Media that stand behind a DRAM buffer have profiles of their own (docs/nvm-buffer.md,
crates/stack/profiles/memory), two of them with names of drives: `nvm:disk.img?profile=cxl-flash,buffer=64M`.

Example:
  nvmed device profiles
  nvmed device show tlc --size 64G
  nvmed device show ./my-drive.toml
  nvmed device show --memory pcm

Exit status: 0 done; 1 failed; 2 wrong arguments, no such profile, or one that makes no sense.";

/// What the pages of help of `nvmed device create` and `precondition` end with.
pub const DRIVES: &str = "\
IMAGE is made, or grows to the size; the bytes that it has stay. What the drive is like and has been through lies beside
it, in IMAGE.flash (docs/spec/flash.md), and whoever opens IMAGE finds it: move and copy both, since IMAGE alone is a
plain device. `nvmed info IMAGE` shows which drive it is, and `nvmed smart IMAGE` what it has been through.

Example:
  nvmed device create disk.img --profile tlc --size 64G
  nvmed format disk.img
  nvmed device precondition disk.img

Exit status: 0 done; 1 failed; 2 wrong arguments; 3 IMAGE is in use; 4 IMAGE is a drive already, or is none.";

/// What the page of help of `nvmed device replay` ends with.
pub const REPLAY: &str = "\
A device with the option `record=FILE` writes each command that arrives at its drive, and when it is due, as a line of
CSV; with `hmb=`, what becomes of its host memory buffer, too. When a command is due follows from the drive and this
list alone, on every clock. DEVICE is the drive as it was
when the record began: of a profile, it was empty; of an image that is a drive, take a copy made before (`cp -a` of
IMAGE and IMAGE.flash), which a replay does not change.

Example:
  nvmed bench 'virtual:disk.img?profile=tlc,record=run.csv' --depth 8
  nvmed device replay 'virtual:disk.img?profile=tlc' run.csv

Exit status: 0 every command is due when it was; 1 one is not, or it failed; 2 wrong arguments; 3 DEVICE is in use.";

/// `nvmed device create`.
#[derive(Debug, Args)]
pub struct Create {
    /// Image of the drive
    #[arg(value_name = "IMAGE")]
    pub image: String,
    /// What it is to be like: a built-in profile (`nvmed device profiles`), or a TOML file
    #[arg(long, value_name = "PROFILE")]
    pub profile: String,
    /// Capacity; absent, that of the image, or the profile's usual one
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// As after having been written at random for long
    #[arg(long)]
    pub used: bool,
    /// Also if IMAGE is a drive already: its history begins anew
    #[arg(long)]
    pub again: bool,
}

/// `nvmed device precondition`.
#[derive(Debug, Args)]
pub struct Precondition {
    /// Image of the drive
    #[arg(value_name = "IMAGE")]
    pub image: String,
}

/// `nvmed device`.
#[derive(Debug, Args)]
pub struct Device {
    /// What to do
    #[command(subcommand)]
    pub command: DeviceCommand,
}

/// What `nvmed device` does.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum DeviceCommand {
    /// Make a drive of an image: a device whose commands take a drive's time, and whose wear stays
    #[command(after_help = DRIVES)]
    Create(Create),
    /// Make a drive what it is after long use, at once; its history begins anew, the image's bytes stay
    #[command(after_help = DRIVES)]
    Precondition(Precondition),
    /// List the built-in profiles, of drives and of memory behind a buffer: what they are, and where their numbers are
    /// from
    #[command(after_help = PROFILES)]
    Profiles(Profiles),
    /// Replay what a drive has recorded, in simulated time, and compare when commands are due
    #[command(after_help = REPLAY)]
    Replay(Replay),
    /// Show what a drive of a profile has, and what it can do; or memory behind a buffer
    #[command(after_help = PROFILES)]
    Show(Show),
}

/// `nvmed device replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// The drive, as it was when the record began
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// What it has recorded
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `nvmed device profiles`.
#[derive(Debug, Args)]
pub struct Profiles {
    /// One JSON object a profile
    #[arg(long)]
    pub json: bool,
}

/// `nvmed device show`.
#[derive(Debug, Args)]
pub struct Show {
    /// A built-in profile, or a file
    #[arg(value_name = "PROFILE")]
    pub profile: String,
    /// Capacity of the drive: 64G, 960G; the profile's usual one if absent
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Of memory behind a buffer (`nvm:`), where a drive has that name too
    #[arg(long)]
    pub memory: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}
