//! The directory that a file system is mounted on: whether it will do, who serves it, its end.

use crate::error::MountError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Extended attribute of every inode of a mount: the number of the process that ends last. It is not listed.
pub(crate) const HOLDER_ATTRIBUTE: &str = "system.nvmed.holder";
/// The program that mounts and unmounts for users other than root.
const HELPER: &str = "fusermount3";
const DEVICE: &str = "/dev/fuse";

/// A directory that will do.
#[derive(Clone, Debug)]
pub struct MountPoint(PathBuf);

impl MountPoint {
    /// Looks at a directory, and whether mounting is possible at all, before anything is touched.
    ///
    /// # Errors
    /// [`MountError::Directory`], [`MountError::NoFuse`], [`MountError::NotRoot`].
    pub fn check(dir: &Path, nonempty: bool) -> Result<Self, MountError> {
        fuse_is_there()?;
        let wrong = |what| Err(MountError::Directory { dir: dir.to_owned(), what });
        if is_dead(dir) {
            return wrong("a mount is left here whose process has died; `nvmed umount` it first");
        }
        let path = match dir.canonicalize() {
            Ok(path) => path,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => return wrong("there is no such directory; make it first"),
                errno => {
                    return Err(MountError::Host { dir: dir.to_owned(), errno: errno.unwrap_or(Errno::IO) });
                }
            },
        };
        if !path.is_dir() {
            return wrong("is not a directory");
        }
        if holder(&path).is_some() {
            return wrong("an nvmed file system is mounted here already");
        }
        match std::fs::read_dir(&path).map(|mut entries| entries.next().is_some()) {
            Ok(true) if !nonempty => {
                wrong("is not empty, and the mount would hide what it holds; `-o nonempty` allows it")
            }
            Ok(_) => Ok(Self(path)),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(MountError::Host { dir: path, errno })
            }
        }
    }

    /// The directory, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

fn fuse_is_there() -> Result<(), MountError> {
    match rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => return Err(MountError::NoFuse),
        Err(Errno::ACCESS | Errno::PERM) => return Err(MountError::Closed),
        Ok(_) if rustix::process::geteuid().is_root() => return Ok(()),
        _ => {}
    }
    let helper = Command::new(HELPER).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if helper.is_ok() { Ok(()) } else { Err(MountError::NotRoot) }
}

/// The process that serves the nvmed file system that is mounted on a directory, if there is one.
#[must_use]
pub fn holder(dir: &Path) -> Option<u32> {
    let mut value = [0u8; 16];
    let len = rustix::fs::lgetxattr(dir, HOLDER_ATTRIBUTE, &mut value[..]).ok()?;
    std::str::from_utf8(&value[..len]).ok()?.parse().ok()
}

/// Unmounts; `lazy` detaches it now, and it ends with its last user.
///
/// # Errors
/// [`MountError::Busy`], [`MountError::Directory`]; what the host said.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy { dir: dir.to_owned() }),
        Err(Errno::INVAL | Errno::NOENT) => {
            Err(MountError::Directory { dir: dir.to_owned(), what: "nothing is mounted here" })
        }
        Err(Errno::PERM) => by_helper(dir, lazy),
        Err(errno) => Err(MountError::Host { dir: dir.to_owned(), errno }),
    }
}

fn by_helper(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir);
    let output = command.output().map_err(|_| MountError::NotRoot)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(MountError::Busy { dir: dir.to_owned() });
    }
    Err(MountError::Session { dir: dir.to_owned(), error: std::io::Error::other(said) })
}

/// Whether the process that served a mount is gone and has left it behind.
#[must_use]
pub fn is_dead(dir: &Path) -> bool {
    // Not stat: the kernel may know the answer to that by heart.
    let asked = rustix::fs::lgetxattr(dir, HOLDER_ATTRIBUTE, &mut [0u8; 16][..]);
    matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED))
}
