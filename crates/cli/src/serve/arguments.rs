//! The command lines of servers and of their administrator.

use crate::arguments::{region, size};
use clap::{Args, Subcommand};
use nvmed_grants::Size;
use std::ffi::OsString;
use std::path::PathBuf;

/// What the page of help of `nvmed serve` ends with.
pub const SERVE: &str = "\
Stays in the foreground; one line on standard output says that users can come. Who may use what is granted: see
`nvmed admin`, and docs/serve.md. SIGTERM ends it: what is open is cut off, everything is saved. A server that
dies loses no completed call; what it had not written is written when it is started again, or at once by the
process that holds the device for it.

Example:
  nvmed format disk.img --size 100G --fs-size 64G
  nvmed serve disk.img &
  nvmed admin grant alice --tree /home/alice --user alice --write --capacity 10G

Exit status: 0 ended by a signal or drained; 1 failed; 2 wrong arguments, configuration or grants; 3 the device or the
socket is in use; 4 the device holds no nvmed file system.";

/// What the page of help of `nvmed admin` ends with.
pub const ADMIN: &str = "\
Example:
  nvmed admin status
  nvmed admin grant alice --tree /home/alice --user alice --write --capacity 10G
  nvmed admin grant p1 --partition 64G+4G --user bob --queues 2 --rate 100M
  nvmed admin quota alice --capacity 20G
  nvmed admin revoke p1

Exit status: 0 done; 1 refused, or no server is running; 2 wrong arguments.";

/// What the page of help of `nvmed serve-device` ends with.
pub const SERVE_DEVICE: &str = "\
One line on standard output says that the socket is there. One client at a time has the device, a second
one is told that it is busy; a client that ends, however it ends, leaves a device that is reset. The socket
belongs to the user who made it (mode 0600) and is removed at the end.

Example:
  nvmed serve-device 'virtual:?media=dram,size=1G' --socket /run/user/1000/nvmed.sock &
  nvmed format vfio-user:/run/user/1000/nvmed.sock

Exit status: 0 ended by a signal; 1 failed; 2 wrong arguments; 3 the device or the socket is in use.";

/// `nvmed serve-device`.
#[derive(Debug, Args)]
pub struct ServeDevice {
    /// The device: `virtual:disk.img`, `virtual:?media=dram,size=1G`
    pub device: OsString,
    /// The socket to make; the next program then uses the device `vfio-user:PATH`
    #[arg(short, long, value_name = "PATH")]
    pub socket: PathBuf,
}

/// `nvmed serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The socket to make; partitions and the administrator's socket lie beside it [default: /run/nvmed/socket]
    #[arg(short, long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Who may use what; `nvmed admin` replaces it
    #[arg(short, long, value_name = "FILE", default_value = "/etc/nvmed/grants.toml")]
    pub grants: PathBuf,
    /// Cache size (cache_size): 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache: Option<u64>,
    /// The device, or a configuration file FILE.conf
    pub device: OsString,
    /// Serve with the settings of FILE, for the process that holds the device
    #[arg(long, hide = true, value_name = "FILE")]
    pub serve: Option<PathBuf>,
}

/// `nvmed admin`.
#[derive(Debug, Args)]
pub struct Admin {
    /// The server's socket [default: /run/nvmed/socket]
    #[arg(short, long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// One JSON object
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub command: AdminCommand,
}

/// What `nvmed admin` does.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum AdminCommand {
    /// Show the server, its device and its file system
    Status,
    /// List all grants, and what is used of them
    Grants,
    /// List the sessions
    Clients,
    /// Grant a directory tree or a partition; a grant of that name is replaced, and its sessions end
    Grant(Grant),
    /// Take a grant away: its sessions end
    Revoke {
        /// Its name
        name: String,
    },
    /// Change limits of a grant; 0 lifts one
    Quota(Limits),
    /// Refuse new sessions, wait for the end of those that are there, and end the server
    Drain,
}

/// `nvmed admin grant`.
#[derive(Debug, Args)]
pub struct Grant {
    /// By which it is asked for
    pub name: String,
    /// A directory of the file system, which is made if it is missing
    #[arg(long, value_name = "PATH", required_unless_present = "partition", conflicts_with = "partition")]
    pub tree: Option<String>,
    /// Bytes of the device behind the file system, as 64G+4G
    #[arg(long, value_name = "FIRST+SIZE", value_parser = region)]
    pub partition: Option<(u64, u64)>,
    /// Whose it is, by name or number; of a tree, several
    #[arg(long, value_name = "USER")]
    pub user: Vec<String>,
    /// Groups whose it is
    #[arg(long, value_name = "GROUP")]
    pub group: Vec<String>,
    /// A tree may be changed
    #[arg(long, conflicts_with = "partition")]
    pub write: bool,
    /// Programs that say that they are urgent (`nvmed run --urgent`) pass others on the way to the device
    #[arg(long, conflicts_with = "partition")]
    pub urgent: bool,
    /// A partition may be read only
    #[arg(long, conflicts_with = "tree")]
    pub read_only: bool,
    /// Bytes that a tree holds at most
    #[arg(long, value_name = "SIZE", conflicts_with = "partition")]
    pub capacity: Option<Size>,
    /// Files, directories and links that a tree holds at most
    #[arg(long, value_name = "N", conflicts_with = "partition")]
    pub inodes: Option<u64>,
    /// I/O queues of a partition at most
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "tree")]
    pub queues: u16,
    /// Bytes that a partition's user reads and writes a second at most
    #[arg(long, value_name = "SIZE", conflicts_with = "tree")]
    pub rate: Option<Size>,
}

/// `nvmed admin quota`.
#[derive(Debug, Args)]
pub struct Limits {
    /// Of which grant
    pub name: String,
    /// Bytes that a tree holds at most
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Size>,
    /// Files, directories and links that a tree holds at most
    #[arg(long, value_name = "N")]
    pub inodes: Option<u64>,
    /// Bytes that a partition's user reads and writes a second at most
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
}
