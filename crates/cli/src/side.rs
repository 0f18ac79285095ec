//! A side of a copy, the host or a device: the calls that `cp` makes on either, so that one walk serves every
//! direction.

use crate::failure::Failure;
use crate::location::Location;
use std::rc::Rc;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a socket, a pipe: nothing that can be copied.
    Other,
}

/// The attributes of a file, as a side knows them.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device and inode number: the same for two names of one file.
    pub identity: (u64, u64),
    /// Last read, nanoseconds since 1970.
    pub atime_ns: i64,
    /// Last change of the data.
    pub mtime_ns: i64,
}

/// A tree of files: the host's, or a device's. Paths begin at its top, or at the directory that was entered.
pub trait Side<'a> {
    /// The same side from a directory on: what lies deep in it has no path that is too long.
    fn enter(&self, location: &Location) -> Result<Rc<dyn Side<'a> + 'a>, Failure>;
    /// What is at `location`; `None` if nothing is.
    fn look(&self, location: &Location, follow: bool) -> Result<Option<Attributes>, Failure>;
    /// The names in a directory, without `.` and `..`, sorted.
    fn names(&self, location: &Location) -> Result<Vec<Vec<u8>>, Failure>;
    /// Where a symbolic link leads.
    fn target(&self, location: &Location) -> Result<Vec<u8>, Failure>;
    /// Opens a file to read it.
    fn open<'d>(&'d self, location: &'d Location) -> Result<Box<dyn OpenFile + 'd>, Failure>;
    /// Makes a file, or empties an existing one, to write it; the umask is applied to `mode`.
    fn create<'d>(&'d self, location: &'d Location, mode: u32) -> Result<Box<dyn OpenFile + 'd>, Failure>;
    /// Makes a directory; the umask is applied to `mode`.
    fn make_directory(&self, location: &Location, mode: u32) -> Result<(), Failure>;
    /// Makes a symbolic link to `target`.
    fn make_link(&self, location: &Location, target: &[u8]) -> Result<(), Failure>;
    /// Gives `location` the owner, mode and times of `attributes`; an owner that may not be given is left.
    fn keep(&self, location: &Location, attributes: &Attributes) -> Result<(), Failure>;
}

/// An open file.
pub trait OpenFile {
    /// Reads at `offset`; 0 at the end.
    fn read(&mut self, into: &mut [u8], offset: u64) -> Result<usize, Failure>;
    /// Writes all of `data` at `offset`.
    fn write(&mut self, data: &[u8], offset: u64) -> Result<(), Failure>;
    /// Sets the size.
    fn resize(&mut self, bytes: u64) -> Result<(), Failure>;
}
