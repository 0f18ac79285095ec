//! `nvmed fsck --salvage`: a copy of what can be read of a damaged file system.

use crate::failure::{Failure, Status};
use crate::output::Output;
use nvmed_fs::{Kind, Rescued, Wreck};
use nvmed_io::Device;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

/// Copies everything that can be read to a new directory; says what cannot.
///
/// # Errors
/// The directory exists or cannot be written; nothing at all can be read.
pub fn salvage(name: &str, device: &Arc<Device>, directory: &Path) -> Result<ExitCode, Failure> {
    let wreck = Wreck::open(device).map_err(|error| Failure::device(name, &error))?;
    std::fs::create_dir(directory).map_err(|error| host(directory, &error))?;
    let mut out = Output::new();
    let (mut copied, mut lost) = (0, u64::from(wreck.damage().is_some()));
    if let Some(damage) = wreck.damage() {
        out.text(&format!("{name}: {damage}; what it told of is lost\n"))?;
    }
    for rescued in wreck.entries() {
        let place = directory.join(OsStr::from_bytes(&rescued.path));
        let done = match rescued.kind {
            Kind::Directory => std::fs::create_dir(&place).map(|()| 0),
            Kind::Symlink => {
                std::os::unix::fs::symlink(OsStr::from_bytes(&rescued.target), &place).map(|()| 0)
            }
            Kind::File => copy(&wreck, &rescued, &place),
            _ => Err(Errno::NOTSUP.into()),
        };
        // One that the host does not take is no reason to leave the others.
        let said = match done {
            Ok(0) => None,
            Ok(bad) => Some(format!("{bad} pages cannot be read: they are zero")),
            Err(error) => Some(host(&place, &error).message),
        };
        if let Some(said) = said {
            out.text(&format!("{name}: {}: {said}\n", String::from_utf8_lossy(&rescued.path)))?;
            lost += 1;
            continue;
        }
        copied += 1;
    }
    out.text(&format!("{name}: {copied} files, directories and links are in {}\n", directory.display()))?;
    out.finish()?;
    let ended = device.shutdown();
    ended.map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))?;
    Ok(if lost == 0 { ExitCode::SUCCESS } else { ExitCode::from(Status::Failed as u8) })
}

fn host(place: &Path, error: &std::io::Error) -> Failure {
    Failure::host(PathBuf::from(place).display(), Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Copies a file, holes as holes; answers how many pages could not be read.
fn copy(wreck: &Wreck, rescued: &Rescued, place: &Path) -> std::io::Result<u64> {
    let file = std::fs::File::create_new(place)?;
    file.set_len(rescued.size)?;
    let (mut page, mut bad) = ([0; PAGE_BYTES as usize], 0);
    for number in wreck.pages(rescued) {
        if wreck.read_page(rescued, number, &mut page).is_err() {
            bad += 1;
            continue;
        }
        let offset = number * PAGE_BYTES;
        let bytes = rescued.size.saturating_sub(offset).min(PAGE_BYTES) as usize;
        file.write_all_at(&page[..bytes], offset)?;
    }
    file.set_permissions(std::fs::Permissions::from_mode(rescued.mode))?;
    Ok(bad)
}
