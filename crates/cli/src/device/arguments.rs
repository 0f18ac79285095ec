//! The command line of `nvmed device`.

use crate::arguments::size;
use clap::{Args, Subcommand};

/// What the pages of help of `nvmed device` end with.
pub const PROFILES: &str = "\
A PROFILE is a built-in one's name or a TOML file, whose name has a `/` or ends in .toml (docs/flash.md says what is in
it; a built-in one, in crates/stack/profiles, is a good beginning). A device takes it as an option:
`virtual:disk.img?profile=tlc`.

Example:
  nvmed device profiles
  nvmed device show tlc --size 64G
  nvmed device show ./my-drive.toml

Exit status: 0 done; 1 failed; 2 wrong arguments, no such profile, or one that makes no sense.";

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
    /// List the built-in profiles of drives: what they are, and where their numbers come from
    #[command(after_help = PROFILES)]
    Profiles(Profiles),
    /// Show what a drive of a profile has, and what it can do
    #[command(after_help = PROFILES)]
    Show(Show),
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
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}
