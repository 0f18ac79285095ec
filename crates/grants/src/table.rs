//! The administrator's table: a file that only its owner may write, replaced as a whole.

use crate::error::{FileCall, GrantError, Untrusted};
use crate::size::Size;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// Longest table in bytes: some ten thousand grants.
const TABLE_BYTES_MAX: u64 = 4 << 20;
/// Nobody but the owner reads or writes it: it says who may do what.
const MODE: u32 = 0o600;
/// Bits by which others than the owner could write.
const OTHERS_WRITE: u32 = 0o022;
/// What the table begins with.
const HEAD: &str = "# Who may use what of the device (docs/serve.md). `nvmed admin` replaces this file: comments do \
                    not last.\n\n";

/// A directory and everything below it, for some users and groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeGrant {
    /// The name by which a client asks for it.
    pub name: String,
    /// Its directory, from the file system's root.
    pub path: String,
    /// Users who may use it.
    #[serde(default)]
    pub users: Vec<u32>,
    /// Groups whose members may use it.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// Whether they may change anything; mode bits count besides.
    #[serde(default)]
    pub write: bool,
    /// Whether their calls pass others' on the way to the device when their programs say that they are urgent; else the
    /// kernel must say so of the process (I/O class real-time).
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub urgent: bool,
    /// Bytes of data that it holds at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Size>,
    /// Files, directories and links that it holds at most; with a capacity and none given, one for each 4 KiB of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
}

fn yes() -> bool {
    true
}

fn queues() -> u16 {
    4
}

/// A part of the device, as a device, for one user or group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionGrant {
    /// The name that its socket gets.
    pub name: String,
    /// Its first byte on the device.
    pub first: Size,
    /// Its size.
    pub size: Size,
    /// The user who may connect.
    pub user: u32,
    /// The socket's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Whether it may be written.
    #[serde(default = "yes")]
    pub write: bool,
    /// I/O queues at most.
    #[serde(default = "queues")]
    pub queues: u16,
    /// Bytes read and written a second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Size>,
}

/// All grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Of trees.
    #[serde(default, rename = "tree")]
    pub trees: Vec<TreeGrant>,
    /// Of partitions.
    #[serde(default, rename = "partition")]
    pub partitions: Vec<PartitionGrant>,
}

impl Table {
    /// Reads the table; without a file it is empty.
    ///
    /// # Errors
    /// [`GrantError::Untrusted`] when others than root and this process's user could have written it;
    /// [`GrantError::Syntax`], [`GrantError::Grant`] for what makes no sense; [`GrantError::File`].
    pub fn load(path: &Path) -> Result<Self, GrantError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Self::default()),
            Err(Errno::LOOP) => return Err(untrusted(path, Untrusted::Link)),
            opened => opened.map_err(failed(path, FileCall::Open))?,
        };
        check_directory(path)?;
        let stat = rustix::fs::fstat(&fd).map_err(failed(path, FileCall::Status))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(untrusted(path, Untrusted::NotAFile));
        }
        check_owner(path, &stat)?;
        Self::parse(&text(path, fd)?, path)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// [`GrantError::Syntax`], [`GrantError::Grant`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, GrantError> {
        let wrong = |error: toml::de::Error| GrantError::Syntax {
            path: path.display().to_string(),
            reason: error.to_string().trim_end().replace('\n', " "),
        };
        let table: Self = toml::from_str(text).map_err(wrong)?;
        table.check()?;
        Ok(table)
    }

    /// The text.
    #[must_use]
    pub fn to_text(&self) -> String {
        HEAD.to_owned() + &toml::to_string(self).expect("a table of strings and numbers is TOML")
    }

    /// Puts the table in the place of the file, durably and at once: a reader sees all of the old table or all of the
    /// new one.
    ///
    /// # Errors
    /// [`GrantError::File`], [`GrantError::Untrusted`]; the file is as it was.
    pub fn store(&self, path: &Path) -> Result<(), GrantError> {
        check_directory(path)?;
        let new = path.with_extension(format!("new.{}", std::process::id()));
        let written = write_new(&new, self.to_text().as_bytes())
            .and_then(|()| rustix::fs::rename(&new, path))
            .and_then(|()| sync_directory(path));
        written.map_err(|errno| {
            let _ = rustix::fs::unlink(&new);
            failed(path, FileCall::Write)(errno)
        })
    }
}

fn failed(path: &Path, call: FileCall) -> impl Fn(Errno) -> GrantError {
    let path = path.display().to_string();
    move |errno| GrantError::File { path: path.clone(), call, errno }
}

fn untrusted(path: &Path, reason: Untrusted) -> GrantError {
    GrantError::Untrusted { path: path.display().to_string(), reason }
}

/// Whether only root or this process's user could have written what has this status.
fn check_owner(path: &Path, stat: &Stat) -> Result<(), GrantError> {
    if stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(untrusted(path, Untrusted::Owner { uid: stat.st_uid }));
    }
    if stat.st_mode & OTHERS_WRITE != 0 {
        return Err(untrusted(path, Untrusted::Mode { mode: stat.st_mode & 0o7777 }));
    }
    Ok(())
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A user who may write the directory may exchange the table.
fn check_directory(path: &Path) -> Result<(), GrantError> {
    let directory = directory_of(path);
    let stat = rustix::fs::statat(rustix::fs::CWD, directory, AtFlags::empty())
        .map_err(failed(directory, FileCall::Status))?;
    check_owner(directory, &stat)
}

fn text(path: &Path, fd: OwnedFd) -> Result<String, GrantError> {
    let mut text = String::new();
    let read = File::from(fd).take(TABLE_BYTES_MAX + 1).read_to_string(&mut text);
    let broken = |reason: String| GrantError::Syntax { path: path.display().to_string(), reason };
    read.map_err(|error| broken(error.to_string()))?;
    if text.len() as u64 > TABLE_BYTES_MAX {
        return Err(broken(format!("it has more than {TABLE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(MODE))?);
    let host = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.write_all(bytes).map_err(host)?;
    file.sync_all().map_err(host)
}

fn sync_directory(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory_of(path), flags, Mode::empty())?;
    rustix::fs::fsync(fd.as_fd())
}
