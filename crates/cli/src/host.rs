//! The host's side of a copy.

use crate::failure::Failure;
use crate::place::Place;
use crate::side::{Data, Entry, EntryKind, Side};
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
    place: &'a Place,
}

fn path(place: &Place) -> &OsStr {
    OsStr::from_bytes(place.path())
}

impl<'a> Side<'a> for Host {
    fn enter(&self, place: &Place) -> Result<Rc<dyn Side<'a> + 'a>, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entered = rustix::fs::openat(self.at(), path(place), flags, Mode::empty());
        Ok(Rc::new(Self(Some(entered.map_err(|errno| Failure::host(place, errno))?))))
    }

    fn look(&self, place: &Place, follow: bool) -> Result<Option<Entry>, Failure> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match rustix::fs::statat(self.at(), path(place), flags) {
            Ok(stat) => Ok(Some(entry(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Failure::host(place, errno)),
        }
    }

    fn names(&self, place: &Place) -> Result<Vec<Vec<u8>>, Failure> {
        let fail = |errno| Failure::host(place, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(self.at(), path(place), flags, Mode::empty()).map_err(fail)?;
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

    fn target(&self, place: &Place) -> Result<Vec<u8>, Failure> {
        let target = rustix::fs::readlinkat(self.at(), path(place), Vec::new());
        target.map(std::ffi::CString::into_bytes).map_err(|errno| Failure::host(place, errno))
    }

    fn open<'d>(&'d self, place: &'d Place) -> Result<Box<dyn Data + 'd>, Failure> {
        open(self.at(), place, OFlags::RDONLY, 0)
    }

    fn create<'d>(&'d self, place: &'d Place, mode: u32) -> Result<Box<dyn Data + 'd>, Failure> {
        open(self.at(), place, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, mode)
    }

    fn make_directory(&self, place: &Place, mode: u32) -> Result<(), Failure> {
        rustix::fs::mkdirat(self.at(), path(place), Mode::from_raw_mode(mode))
            .map_err(|errno| Failure::host(place, errno))
    }

    fn make_link(&self, place: &Place, target: &[u8]) -> Result<(), Failure> {
        rustix::fs::symlinkat(OsStr::from_bytes(target), self.at(), path(place))
            .map_err(|errno| Failure::host(place, errno))
    }

    fn keep(&self, place: &Place, entry: &Entry) -> Result<(), Failure> {
        let fail = |errno| Failure::host(place, errno);
        let owner = (rustix::fs::Uid::from_raw(entry.uid), rustix::fs::Gid::from_raw(entry.gid));
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::chownat(self.at(), path(place), Some(owner.0), Some(owner.1), no_follow) {
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(fail(errno)),
        }
        if entry.kind != EntryKind::Symlink {
            let mode = Mode::from_raw_mode(entry.mode);
            rustix::fs::chmodat(self.at(), path(place), mode, AtFlags::empty()).map_err(fail)?;
        }
        let time = |ns: i64| Timespec {
            tv_sec: ns.div_euclid(1_000_000_000),
            tv_nsec: ns.rem_euclid(1_000_000_000),
        };
        let times = Timestamps { last_access: time(entry.atime_ns), last_modification: time(entry.mtime_ns) };
        rustix::fs::utimensat(self.at(), path(place), &times, no_follow).map_err(fail)
    }
}

fn open<'a>(
    at: BorrowedFd<'_>,
    place: &'a Place,
    flags: OFlags,
    mode: u32,
) -> Result<Box<dyn Data + 'a>, Failure> {
    let fd = rustix::fs::openat(at, path(place), flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
    let fd = fd.map_err(|errno| Failure::host(place, errno))?;
    Ok(Box::new(HostFile { fd, place }))
}

fn entry(stat: &rustix::fs::Stat) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let ns = |seconds: i64, ns: u64| seconds.saturating_mul(1_000_000_000).saturating_add_unsigned(ns);
    Entry {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        identity: (stat.st_dev, stat.st_ino),
        atime_ns: ns(stat.st_atime, stat.st_atime_nsec),
        mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
    }
}

impl Data for HostFile<'_> {
    fn read(&mut self, into: &mut [u8], offset: u64) -> Result<usize, Failure> {
        loop {
            match rustix::io::pread(&self.fd, &mut *into, offset) {
                Err(Errno::INTR) => {}
                // Pipes and terminals have no offsets: there `cp` reads on.
                Err(Errno::SPIPE) => {
                    return rustix::io::read(&self.fd, into)
                        .map_err(|errno| Failure::host(self.place, errno));
                }
                other => return other.map_err(|errno| Failure::host(self.place, errno)),
            }
        }
    }

    fn write(&mut self, data: &[u8], offset: u64) -> Result<(), Failure> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.fd, &data[done..], offset + done as u64) {
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Failure::host(self.place, errno)),
            }
        }
        Ok(())
    }

    fn resize(&mut self, bytes: u64) -> Result<(), Failure> {
        rustix::fs::ftruncate(&self.fd, bytes).map_err(|errno| Failure::host(self.place, errno))
    }
}
