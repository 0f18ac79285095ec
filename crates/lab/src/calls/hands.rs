//! The steps of a plan, done. By the standard library and libc, so that a wrapper sees them.

use super::plan::{Name, Slot, Step};
use super::unlisted;
use nvmed_dice::mix;
use nvmed_sys::sync::Mutex;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, fchown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes of one read or write: a longer one is made in pieces.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// What memory must begin on for `O_DIRECT`.
const ALIGNMENT: usize = 4096;

/// An open file.
struct Held {
    file: File,
    name: Name,
    is_direct: bool,
}

/// Files that all threads of a replay have open.
pub(super) struct Files(Vec<Mutex<Option<Arc<Held>>>>);

impl Files {
    pub(super) fn new(slots: Slot) -> Self {
        Self((0..slots).map(|_| Mutex::new(None)).collect())
    }

    fn held(&self, slot: Slot) -> io::Result<Arc<Held>> {
        self.0[slot as usize].lock().clone().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

/// Memory that begins on a page.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    begin: usize,
}

impl Aligned {
    pub(super) fn new(bytes: usize) -> Self {
        let bytes = vec![0; bytes + ALIGNMENT];
        let begin = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, begin }
    }

    /// Bytes that do not compress.
    pub(super) fn noise(bytes: usize, seed: u64) -> Self {
        let mut noise = Self::new(bytes);
        for (number, word) in noise.whole_mut().chunks_mut(8).enumerate() {
            word.copy_from_slice(&mix(mix(seed) ^ number as u64).to_le_bytes()[..word.len()]);
        }
        noise
    }

    pub(super) fn whole(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.bytes.len() - ALIGNMENT]
    }

    fn whole_mut(&mut self) -> &mut [u8] {
        let end = self.begin + self.bytes.len() - ALIGNMENT;
        &mut self.bytes[self.begin..end]
    }
}

/// One thread of a replay.
pub(super) struct Hands<'a> {
    pub paths: &'a [PathBuf],
    /// Texts of symbolic links.
    pub names: &'a [Vec<u8>],
    pub files: &'a Files,
    /// Twice as much as the largest write.
    pub data: &'a Aligned,
    /// As much as the largest read.
    pub into: Aligned,
}

/// What a step has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub read: u64,
    pub written: u64,
}

impl Hands<'_> {
    /// One step, which is the `number`th of all.
    pub(super) fn step(&mut self, step: Step, number: usize) -> io::Result<Moved> {
        let path = |name: Name| self.paths[name as usize].as_path();
        let none = |()| Moved::default();
        match step {
            Step::Open { name, slot, flags, mode } => {
                let held = Held {
                    file: open(path(name), flags, mode)?,
                    name,
                    is_direct: flags & libc::O_DIRECT != 0,
                };
                *self.files.0[slot as usize].lock() = Some(Arc::new(held));
                Ok(Moved::default())
            }
            Step::Close(slot) => {
                let held = self.files.0[slot as usize].lock().take();
                held.map(|_| Moved::default()).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
            }
            Step::Read { slot, offset, asked, done } => {
                let read = self.read(&*self.files.held(slot)?, offset, asked, done)?;
                Ok(Moved { read, written: 0 })
            }
            Step::Write { slot, offset, bytes } => {
                let written = self.write(&*self.files.held(slot)?, offset, bytes, number)?;
                Ok(Moved { read: 0, written })
            }
            Step::Copy { from, from_offset, to, to_offset, bytes } => {
                let (from, to) = (self.files.held(from)?, self.files.held(to)?);
                let moved = self.copy((&from, from_offset), (&to, to_offset), bytes, number)?;
                Ok(Moved { read: moved, written: moved })
            }
            Step::Sync { slot, data_only: true } => self.files.held(slot)?.file.sync_data().map(none),
            Step::Sync { slot, data_only: false } => self.files.held(slot)?.file.sync_all().map(none),
            Step::SyncRange { slot, offset, bytes } => {
                unlisted::sync_range(&self.files.held(slot)?.file, offset, bytes).map(none)
            }
            Step::ResizeOpen { slot, bytes } => self.files.held(slot)?.file.set_len(bytes).map(none),
            Step::Allocate { slot, flags, offset, bytes } => {
                unlisted::allocate(&self.files.held(slot)?.file, flags, offset, bytes).map(none)
            }
            Step::LookOpen(slot) => self.files.held(slot)?.file.metadata().map(|_| Moved::default()),
            Step::List(slot) => {
                let name = self.files.held(slot)?.name;
                std::fs::read_dir(path(name))?.try_for_each(|entry| entry.map(drop)).map(none)
            }
            Step::SetModeOpen(slot, mode) => {
                self.files.held(slot)?.file.set_permissions(Permissions::from_mode(mode)).map(none)
            }
            Step::TouchOpen(slot) => fchown(&self.files.held(slot)?.file, None, None).map(none),
            other => self.named(other).map(none),
        }
    }

    /// A step about names alone.
    fn named(&self, step: Step) -> io::Result<()> {
        let path = |name: Name| self.paths[name as usize].as_path();
        match step {
            Step::Resize { name, bytes } => unlisted::truncate(path(name), bytes),
            Step::Look(name) => std::fs::symlink_metadata(path(name)).map(drop),
            Step::Unlink(name) => std::fs::remove_file(path(name)),
            Step::RemoveDirectory(name) => std::fs::remove_dir(path(name)),
            Step::MakeDirectory(name, mode) => std::fs::DirBuilder::new().mode(mode).create(path(name)),
            Step::MakeFile(name, mode) => {
                OpenOptions::new().write(true).create_new(true).mode(mode).open(path(name)).map(drop)
            }
            Step::Rename(from, to, 0) => std::fs::rename(path(from), path(to)),
            Step::Rename(from, to, flags) => unlisted::rename(path(from), path(to), flags),
            Step::Link(from, to) => std::fs::hard_link(path(from), path(to)),
            Step::Symlink(name, text) => {
                let text: &std::ffi::OsStr =
                    std::os::unix::ffi::OsStrExt::from_bytes(&self.names[text as usize]);
                symlink(text, path(name))
            }
            Step::SetMode(name, mode) => std::fs::set_permissions(path(name), Permissions::from_mode(mode)),
            Step::Touch(name) => lchown(path(name), None, None),
            _ => Ok(()),
        }
    }

    fn read(&mut self, held: &Held, offset: u64, asked: u64, done: u64) -> io::Result<u64> {
        let into = self.into.whole_mut();
        if asked <= into.len() as u64 {
            return held.file.read_at(&mut into[..asked as usize], offset).map(|bytes| bytes as u64);
        }
        let mut read = 0;
        while read < done {
            let most = into.len().min(usize::try_from(done - read).unwrap_or(usize::MAX));
            let bytes = held.file.read_at(&mut into[..most], offset + read)?;
            if bytes == 0 {
                break;
            }
            read += bytes as u64;
        }
        Ok(read)
    }

    fn write(&self, held: &Held, offset: u64, bytes: u64, number: usize) -> io::Result<u64> {
        let most = self.data.whole().len() / 2;
        let mut written = 0;
        loop {
            let piece = usize::try_from(bytes - written).unwrap_or(usize::MAX).min(most);
            // Each write another piece of the same bytes, so that no two blocks are alike.
            let from = number % (most + 1);
            let from = if held.is_direct { from / ALIGNMENT * ALIGNMENT } else { from };
            let done = held.file.write_at(&self.data.whole()[from..][..piece], offset + written)?;
            written += done as u64;
            if written == bytes || done == 0 {
                return Ok(written);
            }
        }
    }

    fn copy(&mut self, from: (&Held, u64), to: (&Held, u64), bytes: u64, number: usize) -> io::Result<u64> {
        let whole = usize::try_from(bytes).unwrap_or(usize::MAX);
        match unlisted::copy_range((&from.0.file, from.1), (&to.0.file, to.1), whole) {
            // What this file system does not copy by itself is read and written.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EXDEV | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::EBADF)
                ) =>
            {
                let read = self.read(from.0, from.1, bytes, bytes)?;
                self.write(to.0, to.1, read, number)
            }
            copied => copied,
        }
    }
}

/// Opens as the trace says; a directory is opened to be read.
fn open(path: &Path, flags: i32, mode: u32) -> io::Result<File> {
    let access = flags & libc::O_ACCMODE;
    let mut options = OpenOptions::new();
    options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY);
    // What these two say, they say for the kernel; the standard library would refuse some of it. A link that is there
    // has a plan behind it, which has followed it.
    match options.custom_flags(flags & !libc::O_ACCMODE | libc::O_NOFOLLOW).mode(mode).open(path) {
        // A trace without flags has opened a directory.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => File::open(path),
        opened => opened,
    }
}
