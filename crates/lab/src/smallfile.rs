//! Many small files: the micro-benchmark of TCE'17, IV.C.
//!
//! Files of one to four blocks of 4 KiB are created, deleted, read and appended to at random. A seed fixes the
//! operations, so every contender does the same. An operation that does not fit its file becomes the one that does:
//! a file that is not there is created, one that is there is appended to instead of created, a full one is read.

use crate::error::LabError;
use nvmed_dice::{Dice, mix};
use nvmed_fs::{Credentials, FsError, OpenFlags};
use nvmed_stack::Mount;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Bytes of one operation.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of the largest file: 16 KiB.
const BLOCKS_MAX: u8 = 4;
/// Files of one directory.
const PER_DIRECTORY: u64 = 1000;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Names that files may have.
    pub files: u64,
    /// Operations.
    pub ops: u64,
}

/// One operation on one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes it, with one block.
    Create(u64),
    /// Removes it.
    Delete(u64),
    /// Reads this block.
    Read(u64, u8),
    /// Appends the block of this number.
    Append(u64, u8),
}

/// The operations, in order.
pub struct Steps {
    size: Size,
    next: u64,
    /// Blocks of each file; 0: it is not there.
    blocks: Vec<u8>,
    seed: u64,
}

impl Steps {
    /// The operations of a seed.
    ///
    /// # Panics
    /// When there are more files than memory has bytes.
    #[must_use]
    pub fn new(size: Size, seed: u64) -> Self {
        let files = usize::try_from(size.files).expect("a byte a file fits memory");
        Self { size, next: 0, blocks: vec![0; files], seed }
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.next == self.size.ops {
            return None;
        }
        let dice = mix(mix(self.seed) ^ self.next);
        self.next += 1;
        let file = (dice >> 8) % self.size.files;
        let blocks = &mut self.blocks[file as usize];
        Some(match (dice % 4, *blocks) {
            (_, 0) => {
                *blocks = 1;
                Step::Create(file)
            }
            (0, _) => {
                *blocks = 0;
                Step::Delete(file)
            }
            (1 | 2, held) if held < BLOCKS_MAX => {
                *blocks += 1;
                Step::Append(file, held)
            }
            (_, held) => Step::Read(file, (dice >> 4) as u8 % held),
        })
    }
}

/// A file system that does the operations.
pub trait Files {
    /// Makes a directory.
    ///
    /// # Errors
    /// The file system's.
    fn make_directory(&mut self, path: &str) -> Result<(), LabError>;
    /// Does one operation on the file at `path`; `block` is what is written, and where is read to.
    ///
    /// # Errors
    /// The file system's; what is read is not as long as a block.
    fn step(&mut self, step: Step, path: &str, block: &mut [u8; BLOCK_BYTES]) -> Result<(), LabError>;
    /// Makes everything durable.
    ///
    /// # Errors
    /// The file system's.
    fn sync(&mut self) -> Result<(), LabError>;
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes written to files.
    pub data_bytes: u64,
}

/// Does all operations of a size and seed, and the final sync.
///
/// # Errors
/// The file system's.
pub fn run(files: &mut dyn Files, size: Size, seed: u64) -> Result<Done, LabError> {
    let mut done = Done::default();
    let mut block = [0; BLOCK_BYTES];
    let mut path = String::new();
    for directory in 0..size.files.div_ceil(PER_DIRECTORY) {
        files.make_directory(&format!("directory{directory:05}"))?;
    }
    for (number, step) in Steps::new(size, seed).enumerate() {
        let (Step::Create(file) | Step::Delete(file) | Step::Read(file, _) | Step::Append(file, _)) = step;
        path.clear();
        let formatted = std::fmt::Write::write_fmt(
            &mut path,
            format_args!("directory{:05}/small-file-{file:08}", file / PER_DIRECTORY),
        );
        debug_assert!(formatted.is_ok(), "memory does not refuse text");
        if matches!(step, Step::Create(_) | Step::Append(..)) {
            noise(seed ^ number as u64, &mut block);
            done.data_bytes += BLOCK_BYTES as u64;
        }
        files.step(step, &path, &mut block)?;
    }
    files.sync()?;
    Ok(done)
}

/// Bytes that do not compress, at little cost.
fn noise(seed: u64, block: &mut [u8; BLOCK_BYTES]) {
    Dice::new(mix(seed)).fill(block);
}

/// A kernel's file system.
pub struct Kernel {
    root: OwnedFd,
}

impl Kernel {
    /// The one mounted at `dir`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn new(dir: &Path) -> Result<Self, LabError> {
        let open = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self { root: open.map_err(|errno| LabError::host(dir.display().to_string(), errno))? })
    }

    fn do_step(&self, step: Step, path: &str, block: &mut [u8; BLOCK_BYTES]) -> Result<(), Errno> {
        let open = |flags: OFlags| {
            rustix::fs::openat(&self.root, path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
        };
        let whole = |moved: usize| if moved == BLOCK_BYTES { Ok(()) } else { Err(Errno::IO) };
        match step {
            Step::Create(_) => {
                let file = open(OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?;
                whole(rustix::io::write(&file, block)?)
            }
            Step::Append(..) => {
                let file = open(OFlags::WRONLY | OFlags::APPEND)?;
                whole(rustix::io::write(&file, block)?)
            }
            Step::Read(_, at) => {
                let file = open(OFlags::RDONLY)?;
                whole(rustix::io::pread(&file, &mut block[..], u64::from(at) * BLOCK_BYTES as u64)?)
            }
            Step::Delete(_) => rustix::fs::unlinkat(&self.root, path, rustix::fs::AtFlags::empty()),
        }
    }
}

impl Files for Kernel {
    fn make_directory(&mut self, path: &str) -> Result<(), LabError> {
        rustix::fs::mkdirat(&self.root, path, Mode::RWXU).map_err(|errno| LabError::host(path, errno))
    }

    fn step(&mut self, step: Step, path: &str, block: &mut [u8; BLOCK_BYTES]) -> Result<(), LabError> {
        self.do_step(step, path, block).map_err(|errno| LabError::host(format!("{path}: {step:?}"), errno))
    }

    fn sync(&mut self) -> Result<(), LabError> {
        rustix::fs::syncfs(self.root.as_fd()).map_err(|errno| LabError::host("syncfs", errno))
    }
}

/// Ours, through the library.
pub struct Ours<'a>(pub &'a Mount);

impl Ours<'_> {
    /// Bytes moved.
    fn do_step(&self, step: Step, path: &str, block: &mut [u8; BLOCK_BYTES]) -> Result<usize, FsError> {
        let (root, who) = (self.0.root(), &Credentials::ROOT);
        let open =
            |flags: i32| self.0.open(&root, path.as_bytes(), OpenFlags(flags.cast_unsigned()), 0o600, who);
        match step {
            Step::Create(_) => open(libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY)?.write(block),
            Step::Append(..) => open(libc::O_WRONLY | libc::O_APPEND)?.write(block),
            Step::Read(_, at) => open(libc::O_RDONLY)?.pread(block, u64::from(at) * BLOCK_BYTES as u64),
            Step::Delete(_) => self.0.unlink(&root, path.as_bytes(), who).map(|()| BLOCK_BYTES),
        }
    }
}

impl Files for Ours<'_> {
    fn make_directory(&mut self, path: &str) -> Result<(), LabError> {
        self.0
            .mkdir(&self.0.root(), path.as_bytes(), 0o700, &Credentials::ROOT)
            .map_err(|error| LabError::host(path, error.errno()))
    }

    fn step(&mut self, step: Step, path: &str, block: &mut [u8; BLOCK_BYTES]) -> Result<(), LabError> {
        let refused = |errno| LabError::host(format!("{path}: {step:?}"), errno);
        match self.do_step(step, path, block) {
            Ok(BLOCK_BYTES) => Ok(()),
            Ok(_) => Err(refused(Errno::IO)),
            Err(error) => Err(refused(error.errno())),
        }
    }

    fn sync(&mut self) -> Result<(), LabError> {
        self.0.sync().map_err(|error| LabError::host("sync", error.errno()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_fits_its_file_and_all_kinds_occur() {
        let size = Size { files: 50, ops: 5000 };
        let mut blocks = [0u8; 50];
        let mut kinds = [0u64; 4];
        for step in Steps::new(size, 3) {
            match step {
                Step::Create(file) => {
                    assert_eq!(std::mem::replace(&mut blocks[file as usize], 1), 0, "{step:?}");
                    kinds[0] += 1;
                }
                Step::Delete(file) => {
                    assert_ne!(std::mem::take(&mut blocks[file as usize]), 0, "{step:?}");
                    kinds[1] += 1;
                }
                Step::Read(file, at) => {
                    assert!(at < blocks[file as usize], "{step:?}");
                    kinds[2] += 1;
                }
                Step::Append(file, at) => {
                    assert_eq!(blocks[file as usize], at, "{step:?}");
                    assert!(at > 0 && at < BLOCKS_MAX);
                    blocks[file as usize] += 1;
                    kinds[3] += 1;
                }
            }
        }
        assert!(kinds.iter().all(|&count| count > 500), "{kinds:?}");
        assert!(Steps::new(size, 3).eq(Steps::new(size, 3)), "a seed fixes the operations");
    }
}
