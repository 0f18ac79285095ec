//! `nvmed format`: an empty file system, on a device that holds nothing anybody would miss.

use crate::arguments::Format;
use crate::failure::{Failure, Status};
use crate::place::parse_spec;
use crate::signature;
use nvmed_block::{Disk, DiskOptions, Route, Settings};
use nvmed_fs::{FileSystem, FormatOptions};
use nvmed_io::{Binding, Device};
use nvmed_stack::{DeviceSpec, Open};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::sync::Arc;

/// Formats a device.
///
/// # Errors
/// It is in use, holds something and `--force` is absent, or cannot be written.
pub fn format(arguments: &Format) -> Result<(), Failure> {
    let name = arguments.device.to_string_lossy().into_owned();
    let spec = parse_spec(&name)?;
    if !spec.is_lasting() {
        return Err(Failure::usage(format!(
            "format: {name}: this medium ends with the command; format a file"
        )));
    }
    let device = match spec.file() {
        Some(path) => {
            let bytes = size(arguments, &spec, path, &name)?;
            nvmed_stack::open_device(&spec, Open::Create { bytes })?
        }
        None => existing(arguments, &spec, &name)?,
    };
    let options =
        FormatOptions { label: arguments.label.clone().unwrap_or_default(), ..FormatOptions::default() };
    FileSystem::format(&device, &options).map_err(|error| Failure::device(&name, &error))?;
    device.shutdown().map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))
}

/// A device that is no file, after a look at what it holds.
fn existing(arguments: &Format, spec: &DeviceSpec, name: &str) -> Result<Arc<Device>, Failure> {
    let device = nvmed_stack::open_device(spec, Open::Existing { locked_by_run: false })?;
    let disk = Disk::new(Arc::clone(&device), DiskOptions::default());
    let bytes = disk.bytes();
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
    let disk = Disk::new(Arc::clone(device), DiskOptions::default());
    let fail = |error| Failure::new(Status::Failed, format!("{name}: {error}"));
    let handle = disk.handle(Route::Bound(Binding::Spread), Settings::default()).map_err(fail)?;
    let held = signature::find(disk.bytes(), |offset, len| {
        let mut data = vec![0; len];
        handle.pread(&mut data, offset).map(|_| data)
    });
    held.map_err(fail)
}

/// What a device holds must not be lost by a slip.
pub fn refuse(command: &str, name: &str, held: &str, option: &str) -> Failure {
    Failure::new(Status::Device, format!("{command}: {name} holds {held}; {option} overwrites it"))
}

/// The size that the device is to have, after a look at what it holds now.
fn size(arguments: &Format, spec: &DeviceSpec, path: &str, name: &str) -> Result<u64, Failure> {
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
        return Err(refuse("format", name, held, "--force"));
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
