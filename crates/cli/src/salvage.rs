//! `nvmed fsck --salvage`: a copy of what can be read of a damaged file system.

use crate::failure::{Failure, Status};
use crate::output::Output;
use nvmed_check::{Rescued, Wreck};
use nvmed_fs::FileType;
use nvmed_io::Device;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

/// The directory of the host that the copy has come to. Names are made in the directory that is held, however deep it
/// is, and the way back is its own: no path is too long for that, and two descriptors are enough.
struct HostCursor {
    here: OwnedFd,
    /// The directories down to here: their names, and which ones lie above each.
    above: Vec<(Vec<u8>, (u64, u64))>,
}

impl HostCursor {
    fn begin(directory: &Path) -> Result<Self, Errno> {
        let here = rustix::fs::open(directory, DIRECTORY, Mode::empty())?;
        Ok(Self { here, above: Vec::new() })
    }

    /// Makes a directory, and goes there.
    fn down(&mut self, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::mkdirat(&self.here, name, Mode::from_raw_mode(0o777))?;
        let above = identity(&self.here)?;
        self.here = rustix::fs::openat(&self.here, name, DIRECTORY, Mode::empty())?;
        self.above.push((name.to_vec(), above));
        Ok(())
    }

    /// Goes back to where so many directories lie above.
    fn up(&mut self, depth: usize) -> Result<(), Errno> {
        while self.above.len() > depth
            && let Some((_, above)) = self.above.pop()
        {
            self.here = rustix::fs::openat(&self.here, "..", DIRECTORY, Mode::empty())?;
            if identity(&self.here)? != above {
                // Somebody moved it meanwhile.
                return Err(Errno::STALE);
            }
        }
        Ok(())
    }

    /// The path of a name here, for people.
    fn path(&self, name: &[u8]) -> String {
        let steps = self.above.iter().map(|(step, _)| step.as_slice()).chain([name]);
        String::from_utf8_lossy(&steps.collect::<Vec<_>>().join(&b'/')).into_owned()
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn identity(fd: impl AsFd) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Copies everything that can be read to a new directory; says what cannot.
///
/// # Errors
/// The directory exists or cannot be written; nothing at all can be read.
pub fn salvage(name: &str, device: &Arc<Device>, directory: &Path) -> Result<ExitCode, Failure> {
    let wreck = Wreck::open(device).map_err(|error| Failure::device(name, &error.into()))?;
    std::fs::create_dir(directory).map_err(|error| host(directory, &error))?;
    let place = PathBuf::from(directory);
    let fail = |errno| Failure::host(place.display(), errno);
    let mut cursor = HostCursor::begin(directory).map_err(fail)?;
    let mut out = Output::new();
    let (mut copied, mut lost) = (0, u64::from(wreck.damage().is_some()));
    if let Some(damage) = wreck.damage() {
        out.text(&format!("{name}: {damage}; what it told of is lost\n"))?;
    }
    // A directory that the host did not take, and what is in it.
    let mut missing: Option<usize> = None;
    for rescued in wreck.entries() {
        if missing.is_some_and(|depth| rescued.depth > depth) {
            lost += 1;
            continue;
        }
        cursor.up(rescued.depth).map_err(fail)?;
        missing = None;
        // One that the host does not take is no reason to leave the others.
        let Some(said) = copy(&wreck, &rescued, &mut cursor) else {
            copied += 1;
            continue;
        };
        let within = if rescued.kind == FileType::Directory {
            missing = Some(rescued.depth);
            ", and what is in it is left out"
        } else {
            ""
        };
        out.text(&format!("{name}: {}: {said}{within}\n", cursor.path(&rescued.name)))?;
        lost += 1;
    }
    out.text(&format!("{name}: {copied} files, directories and links are in {}\n", directory.display()))?;
    out.finish()?;
    let ended = device.shutdown();
    ended.map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))?;
    Ok(if lost == 0 { ExitCode::SUCCESS } else { ExitCode::from(Status::Failed as u8) })
}

fn host(place: &Path, error: &std::io::Error) -> Failure {
    Failure::host(place.display(), Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Makes one thing in the directory that was come to; what is wrong with it, if it is not as it was.
fn copy(wreck: &Wreck, rescued: &Rescued, cursor: &mut HostCursor) -> Option<String> {
    let done = match (rescued.kind, &rescued.target) {
        (FileType::Directory, _) => cursor.down(&rescued.name).map(|()| 0).map_err(std::io::Error::from),
        (FileType::Symlink, Some(target)) => {
            let made = rustix::fs::symlinkat(OsStr::from_bytes(target), &cursor.here, &*rescued.name);
            made.map(|()| 0).map_err(std::io::Error::from)
        }
        (FileType::Symlink, None) => {
            return Some("the target of this symbolic link is lost: it is left out".to_owned());
        }
        (FileType::File, _) => copy_file(wreck, rescued, cursor),
        _ => Err(Errno::NOTSUP.into()),
    };
    match done {
        Ok(0) => None,
        Ok(bad) => Some(format!("{bad} pages cannot be read: they are zero")),
        Err(error) => Some(crate::failure::reason(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
    }
}

/// Copies a file, holes as holes; answers how many pages could not be read.
fn copy_file(wreck: &Wreck, rescued: &Rescued, cursor: &HostCursor) -> std::io::Result<u64> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&cursor.here, &*rescued.name, flags, Mode::from_raw_mode(0o666))?;
    let file = std::fs::File::from(fd);
    file.set_len(rescued.size)?;
    let (mut page, mut bad) = ([0; PAGE_BYTES as usize], 0);
    for number in wreck.pages(rescued) {
        if wreck.read_page(rescued, number, &mut page).is_err() {
            bad += 1;
            continue;
        }
        let offset = number.start().0;
        let bytes = rescued.size.saturating_sub(offset).min(PAGE_BYTES) as usize;
        file.write_all_at(&page[..bytes], offset)?;
    }
    file.set_permissions(std::fs::Permissions::from_mode(rescued.mode))?;
    Ok(bad)
}
