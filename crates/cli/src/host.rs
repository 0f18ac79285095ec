//! The host's side of a copy.

use crate::failure::Failure;
use crate::location::Location;
use crate::side::{Attributes, EntryKind, OpenFile, Side};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

/// The host's files, as the caller may reach them, from the working directory or from another one.
#[derive(Default)]
pub struct Host(Option<OwnedFd>);

impl Host {
    fn at(&self) -> BorrowedFd<'_> {
        self.0.as_ref().map_or(CWD, AsFd::as_fd)
    }
}

struct HostFile<'a> {
    fd: OwnedFd,
    location: &'a Location,
}

fn path(location: &Location) -> &OsStr {
    OsStr::from_bytes(location.path())
}

impl<'a> Side<'a> for Host {
    fn enter(&self, location: &Location) -> Result<Rc<dyn Side<'a> + 'a>, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entered = rustix::fs::openat(self.at(), path(location), flags, Mode::empty());
        Ok(Rc::new(Self(Some(entered.map_err(|errno| Failure::host(location, errno))?))))
    }

    fn look(&self, location: &Location, follow: bool) -> Result<Option<Attributes>, Failure> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match rustix::fs::statat(self.at(), path(location), flags) {
            Ok(stat) => Ok(Some(attributes(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Failure::host(location, errno)),
        }
    }

    fn names(&self, location: &Location) -> Result<Vec<Vec<u8>>, Failure> {
        let fail = |errno| Failure::host(location, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(self.at(), path(location), flags, Mode::empty()).map_err(fail)?;
        let mut names = Vec::new();
        for entry in Dir::new(directory).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn target(&self, location: &Location) -> Result<Vec<u8>, Failure> {
        let target = rustix::fs::readlinkat(self.at(), path(location), Vec::new());
        target.map(std::ffi::CString::into_bytes).map_err(|errno| Failure::host(location, errno))
    }

    fn open<'d>(&'d self, location: &'d Location) -> Result<Box<dyn OpenFile + 'd>, Failure> {
        open(self.at(), location, OFlags::RDONLY, 0)
    }

    fn create<'d>(&'d self, location: &'d Location, mode: u32) -> Result<Box<dyn OpenFile + 'd>, Failure> {
        open(self.at(), location, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, mode)
    }

    fn make_directory(&self, location: &Location, mode: u32) -> Result<(), Failure> {
        rustix::fs::mkdirat(self.at(), path(location), Mode::from_raw_mode(mode))
            .map_err(|errno| Failure::host(location, errno))
    }

    fn make_link(&self, location: &Location, target: &[u8]) -> Result<(), Failure> {
        rustix::fs::symlinkat(OsStr::from_bytes(target), self.at(), path(location))
            .map_err(|errno| Failure::host(location, errno))
    }

    fn keep(&self, location: &Location, attributes: &Attributes) -> Result<(), Failure> {
        let fail = |errno| Failure::host(location, errno);
        let owner = (rustix::fs::Uid::from_raw(attributes.uid), rustix::fs::Gid::from_raw(attributes.gid));
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::chownat(self.at(), path(location), Some(owner.0), Some(owner.1), no_follow) {
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(fail(errno)),
        }
        if attributes.kind != EntryKind::Symlink {
            let mode = Mode::from_raw_mode(attributes.mode);
            rustix::fs::chmodat(self.at(), path(location), mode, AtFlags::empty()).map_err(fail)?;
        }
        let time = |ns: i64| Timespec {
            tv_sec: ns.div_euclid(1_000_000_000),
            tv_nsec: ns.rem_euclid(1_000_000_000),
        };
        let times = Timestamps {
            last_access: time(attributes.atime_ns),
            last_modification: time(attributes.mtime_ns),
        };
        rustix::fs::utimensat(self.at(), path(location), &times, no_follow).map_err(fail)
    }
}

fn open<'a>(
    at: BorrowedFd<'_>,
    location: &'a Location,
    flags: OFlags,
    mode: u32,
) -> Result<Box<dyn OpenFile + 'a>, Failure> {
    let fd = rustix::fs::openat(at, path(location), flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
    let fd = fd.map_err(|errno| Failure::host(location, errno))?;
    Ok(Box::new(HostFile { fd, location }))
}

fn attributes(stat: &rustix::fs::Stat) -> Attributes {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let ns = |seconds: i64, ns: u64| seconds.saturating_mul(1_000_000_000).saturating_add_unsigned(ns);
    Attributes {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        identity: (stat.st_dev, stat.st_ino),
        atime_ns: ns(stat.st_atime, stat.st_atime_nsec),
        mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
    }
}

impl OpenFile for HostFile<'_> {
    fn read(&mut self, into: &mut [u8], offset: u64) -> Result<usize, Failure> {
        loop {
            match rustix::io::pread(&self.fd, &mut *into, offset) {
                Err(Errno::INTR) => {}
                // Pipes and terminals have no offsets: there `cp` reads on.
                Err(Errno::SPIPE) => {
                    return rustix::io::read(&self.fd, into)
                        .map_err(|errno| Failure::host(self.location, errno));
                }
                other => return other.map_err(|errno| Failure::host(self.location, errno)),
            }
        }
    }

    fn write(&mut self, data: &[u8], offset: u64) -> Result<(), Failure> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.fd, &data[done..], offset + done as u64) {
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Failure::host(self.location, errno)),
            }
        }
        Ok(())
    }

    fn resize(&mut self, bytes: u64) -> Result<(), Failure> {
        rustix::fs::ftruncate(&self.fd, bytes).map_err(|errno| Failure::host(self.location, errno))
    }
}
