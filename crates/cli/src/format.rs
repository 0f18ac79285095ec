//! `nvmed format`: an empty file system, on a device that holds no data of others (or with `--force`).

use crate::arguments::Format;
use crate::failure::{Failure, Status};
use crate::inspect::size as size_of;
use crate::location::parse_spec;
use crate::output::Output;
use nvmed_block::signature;
use nvmed_fs::{FileSystem, FormatOptions, Superblock, Trouble};
use nvmed_io::Device;
use nvmed_stack::{DeviceSpec, Open, StackError};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// A file system's smallest metadata region.
const METADATA_BYTES_MIN: u64 = 4 << 20;

/// Formats a device.
///
/// # Errors
/// It is in use, holds something and `--force` is absent, or cannot be written.
pub fn format(arguments: &Format) -> Result<(), Failure> {
    let name = arguments.device.to_string_lossy().into_owned();
    let spec = parse_spec(&name)?;
    if !spec.is_lasting() {
        return Err(Failure::usage(format!(
            "format: {name}: this medium ends with the command; format a file, or give it to `nvmed run`, `mount` or \
             `serve`, which make a file system on it"
        )));
    }
    let device = match spec.file() {
        Some(path) => {
            let bytes = size(arguments, &spec, path, &name)?;
            let new = !Path::new(path).exists();
            nvmed_stack::open_device(&spec, Open::Create { bytes }).inspect_err(|_| {
                // Without a byte it is no image, and nobody's.
                if new && std::fs::metadata(path).is_ok_and(|file| file.blocks() == 0) {
                    let _ = std::fs::remove_file(path);
                }
            })?
        }
        None => existing(arguments, &spec, &name)?,
    };
    refuse_read_only("format", &name, &device)?;
    let bytes = arguments.fs_size.unwrap_or_else(|| device.geometry().bytes());
    let default = FormatOptions::default();
    let options = FormatOptions {
        zone_bound: arguments.zone_bound.unwrap_or(default.zone_bound),
        bytes: arguments.fs_size,
        label: arguments.label.clone().unwrap_or_default(),
        meta_bytes: arguments.metadata_share.map(|percent| metadata_bytes(bytes, percent)),
        ..default
    };
    FileSystem::format(&device, &options).map_err(|error| Failure::device(&name, &error))?;
    let made = FileSystem::probe(&device).map_err(|error| Failure::device(&name, &error))?;
    device.shutdown().map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))?;
    tell(&name, &made)
}

/// What was made, in a line.
fn tell(name: &str, made: &Superblock) -> Result<(), Failure> {
    let bytes = |blocks: u64| size_of(blocks * nvmed_units::BLOCK_BYTES as u64);
    let label = if made.label.is_empty() { String::new() } else { format!(", label \"{}\"", made.label) };
    let mut out = Output::new();
    out.text(&format!(
        "{name}: an empty file system of {}: {} for data, {} for metadata{label}\n",
        bytes(made.blocks),
        bytes(made.data_blocks),
        bytes(made.meta_blocks)
    ))?;
    out.finish()
}

/// So many percent of a device, for metadata, but never less than a file system needs.
fn metadata_bytes(bytes: u64, percent: f64) -> u64 {
    // Hundredths of a percent: no device is so large that rounding shows.
    let share = u128::from(bytes) * (percent * 100.0) as u128 / 10_000;
    u64::try_from(share).unwrap_or(u64::MAX).max(METADATA_BYTES_MIN)
}

/// A device that is no file, after a look at what it holds.
fn existing(arguments: &Format, spec: &DeviceSpec, name: &str) -> Result<Arc<Device>, Failure> {
    let device = nvmed_stack::open_device(spec, Open::Existing { locked_by_run: false })?;
    let bytes = device.geometry().bytes();
    if arguments.size.is_some_and(|wanted| wanted != bytes) {
        return Err(Failure::usage(format!("format: {name} has {bytes} bytes; leave --size out")));
    }
    match held(&device, name)?.filter(|_| !arguments.force) {
        Some(held) => Err(refuse("format", name, held, "--force")),
        None => Ok(device),
    }
}

/// What an open device holds, by the marks that it bears.
///
/// # Errors
/// It cannot be read.
pub fn held(device: &Arc<Device>, name: &str) -> Result<Option<&'static str>, Failure> {
    let held = nvmed_block::find_on(device);
    let held = held.map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))?;
    Ok(held.map(|found| found.what))
}

/// A device that takes no writes is left alone.
///
/// # Errors
/// The device says that it takes none.
pub(crate) fn refuse_read_only(command: &str, name: &str, device: &Device) -> Result<(), Failure> {
    if !device.engine().is_read_only() {
        return Ok(());
    }
    let why = format!("{command}: {name}: {}; nothing was changed", Trouble::Protected);
    Err(Failure::new(Status::Device, why))
}

/// What a device holds must not be lost by a slip.
pub fn refuse(command: &str, name: &str, held: &str, option: &str) -> Failure {
    Failure::new(Status::Device, format!("{command}: {name} holds {held}; {option} overwrites it"))
}

/// The size that the device is to have, after a look at what it holds now.
fn size(arguments: &Format, spec: &DeviceSpec, path: &str, name: &str) -> Result<u64, Failure> {
    if let Some(bytes) = nvmed_stack::drive_bytes(path)? {
        refuse_size_of_drive(arguments.size, bytes, path)?;
    }
    let wanted = arguments.size.or(spec.size_bytes());
    let fd = match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => {
            return wanted.ok_or_else(|| {
                Failure::usage(format!(
                    "format: {name}: no such file; give --size to make it, as in --size 1G"
                ))
            });
        }
        Err(errno) => return Err(Failure::host(format!("format: {name}"), errno)),
    };
    let fail = |errno| Failure::host(format!("format: {name}"), errno);
    refuse_in_use(&fd, spec, path, name)?;
    let bytes = match rustix::fs::seek(&fd, SeekFrom::End(0)) {
        Ok(bytes) => bytes,
        Err(errno) => {
            // Opening it the usual way fails too, and says what it is.
            nvmed_stack::open_device(spec, Open::Existing { locked_by_run: false })?;
            return Err(fail(errno));
        }
    };
    let held = if arguments.force { None } else { signature::find_in_file(&fd, bytes).map_err(fail)? };
    if let Some(held) = held {
        return Err(refuse("format", name, held.what, "--force"));
    }
    match wanted {
        Some(wanted) if wanted < bytes => Err(Failure::usage(format!(
            "format: {name} has {bytes} bytes, more than --size {wanted}; remove the file first, or leave --size out"
        ))),
        Some(wanted) => Ok(wanted),
        None if bytes == 0 => {
            Err(Failure::usage(format!("format: {name} is empty; give --size, as in --size 1G")))
        }
        None => Ok(bytes),
    }
}

/// A drive's size is in its state, and whoever makes the drive says it.
fn refuse_size_of_drive(wanted: Option<u64>, bytes: u64, path: &str) -> Result<(), Failure> {
    if wanted.is_none() {
        return Ok(());
    }
    let what = "--size, or make another drive of it with `nvmed device create --again --size`";
    Err(StackError::IsDrive { image: path.to_owned(), bytes, what }.into())
}

/// Another nvmed process holds a lock on the file; the kernel holds a block device for itself.
fn refuse_in_use(fd: &OwnedFd, spec: &DeviceSpec, path: &str, name: &str) -> Result<(), Failure> {
    let fail = |errno| Failure::host(format!("format: {name}"), errno);
    let stat = rustix::fs::fstat(fd).map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::BUSY) => {
                let why = "is in use by the kernel (mounted, swap, or part of a volume); end that first";
                return Err(Failure::new(Status::Busy, format!("format: {name} {why}")));
            }
            other => drop(other.map_err(fail)?),
        }
    }
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => rustix::fs::flock(fd, FlockOperation::Unlock).map_err(fail),
        Err(Errno::AGAIN) => {
            // Opening it the usual way fails too, and says who has it.
            nvmed_stack::open_device(spec, Open::Existing { locked_by_run: false })?;
            Err(Failure::new(Status::Busy, format!("format: {name} is in use by another process")))
        }
        Err(errno) => Err(fail(errno)),
    }
}
