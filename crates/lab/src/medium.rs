//! Media of rivals: kernel block devices and files in memory, made for the occasion.
//!
//! Each is undone when it is dropped, also by a panic, and by the supervisor otherwise.

use crate::error::LabError;
use crate::shell::run;
use crate::undo::{self, HostResource};
use nvmed_dice::Dice;
use nvmed_fs::{FileSystem, FormatOptions};
use nvmed_stack::{DeviceSpec, Open, open_device};
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A zram disk, removed when dropped.
#[derive(Debug)]
pub struct Zram {
    number: u32,
}

impl Zram {
    /// Makes a disk of `bytes` bytes.
    ///
    /// # Errors
    /// [`LabError::Missing`]: no zram in this kernel, or no permission.
    pub fn new(bytes: u64) -> Result<Self, LabError> {
        let control = "/sys/class/zram-control/hot_add";
        let text = std::fs::read_to_string(control).map_err(|error| {
            LabError::missing(format!("zram needs root and its kernel module: {control}: {error}"))
        })?;
        let unexpected = || LabError::missing(format!("{control} said {text:?}"));
        let zram = Self { number: text.trim().parse().map_err(|_| unexpected())? };
        undo::made(&HostResource::Zram(zram.number));
        let size = format!("/sys/block/zram{}/disksize", zram.number);
        std::fs::write(&size, bytes.to_string())
            .map_err(|error| LabError::missing(format!("{size}: {error}")))?;
        Ok(zram)
    }

    /// A disk whose every page holds data that does not compress.
    ///
    /// # Errors
    /// As [`Zram::new`]; it cannot be written.
    pub fn filled(bytes: u64) -> Result<Self, LabError> {
        let zram = Self::new(bytes)?;
        fill(&zram.device(), bytes)?;
        Ok(zram)
    }

    /// Write requests and bytes written since it was made.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn writes(&self) -> Result<(u64, u64), LabError> {
        let told = self.told()?;
        Ok((told.writes, told.written_bytes))
    }

    /// What the kernel has counted since it was made.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn told(&self) -> Result<BlockCounts, LabError> {
        let path = format!("/sys/block/zram{}/stat", self.number);
        let text = std::fs::read_to_string(&path).map_err(|error| LabError::program(&path, &error))?;
        BlockCounts::of(&text).ok_or_else(|| LabError::missing(format!("{path} has no counts: {text:?}")))
    }

    /// Its block device.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        undo::undo(&HostResource::Zram(self.number));
    }
}

/// What a block device was asked for (Documentation/block/stat.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockCounts {
    /// Requests that read, write, discard and flush.
    pub operations: u64,
    /// Of those, the ones that write.
    writes: u64,
    /// Bytes that were read and written.
    pub bytes: u64,
    /// Of those, the ones that were written.
    written_bytes: u64,
}

impl BlockCounts {
    /// The counts in a line of `stat`. Kernels before 4.18 have no discards in it, those before 5.5 no flushes.
    fn of(line: &str) -> Option<Self> {
        let figures: Option<Vec<u64>> =
            line.split_ascii_whitespace().map(|figure| figure.parse().ok()).collect();
        let figures = figures?;
        let (reads, writes) = (*figures.first()?, *figures.get(4)?);
        let [read_bytes, written_bytes] = [figures.get(2)?, figures.get(6)?].map(|sectors| sectors * 512);
        let later = [11, 15].iter().filter_map(|&at| figures.get(at)).sum::<u64>();
        Some(Self {
            operations: reads + writes + later,
            writes,
            bytes: read_bytes + written_bytes,
            written_bytes,
        })
    }

    /// Operations and bytes since an earlier look.
    pub(crate) fn since(&self, before: &Self) -> (u64, u64) {
        (self.operations - before.operations, self.bytes - before.bytes)
    }
}

/// A file system of the kernel on a disk, mounted in a directory of its own; unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
}

impl Mounted {
    /// Makes and mounts the file system `name` on `zram`, nothing of it left to be initialised later.
    ///
    /// # Errors
    /// Missing permission or tools; nothing is left behind.
    pub fn made(zram: &Zram, name: &str) -> Result<Self, LabError> {
        let options: &[&str] = match name {
            "ext4" => &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            _ => &["-q", "-f"],
        };
        run(Command::new(format!("mkfs.{name}")).args(options).arg(zram.device()))?;
        let dir = std::env::temp_dir().join(format!("nvmed-lab-{}-zram{}", std::process::id(), zram.number));
        std::fs::create_dir_all(&dir).map_err(|error| LabError::program(dir.display(), &error))?;
        let made = HostResource::Mount(dir.clone());
        undo::made(&made);
        if let Err(error) = run(Command::new("mount").arg(zram.device()).arg(&dir)) {
            undo::forget(&made);
            let _ = std::fs::remove_dir(&dir);
            return Err(error);
        }
        Ok(Self { dir })
    }

    /// Unmounts and mounts it again, so that nothing of it is cached; `zram` is what it was made on.
    ///
    /// # Errors
    /// A program still uses it.
    pub fn remount(&self, zram: &Zram) -> Result<(), LabError> {
        run(Command::new("umount").arg(&self.dir))?;
        run(Command::new("mount").arg(zram.device()).arg(&self.dir))?;
        Ok(())
    }

    /// Everything that was written is on the disk.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn sync(&self) -> Result<(), LabError> {
        let dir = std::fs::File::open(&self.dir);
        let dir = dir.map_err(|error| LabError::program(self.dir.display(), &error))?;
        rustix::fs::syncfs(dir).map_err(|errno| LabError::host("syncfs", errno))
    }

    /// Where it is mounted.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        undo::undo(&HostResource::Mount(self.dir.clone()));
    }
}

/// A file system of ours on a zram disk, by the kernel's block layer: how it is opened.
///
/// # Errors
/// [`LabError::Program`]: the disk cannot be opened or formatted.
pub fn formatted(zram: &Zram) -> Result<DeviceSpec, LabError> {
    let text = format!("uring:{}", zram.device().display());
    let failed =
        |error: &dyn std::fmt::Display| LabError::Program { shown: text.clone(), reason: error.to_string() };
    let spec = DeviceSpec::parse(&text).map_err(|error| failed(&error))?;
    let device =
        open_device(&spec, Open::Existing { locked_by_run: false }).map_err(|error| failed(&error))?;
    FileSystem::format(&device, &FormatOptions::default()).map_err(|error| failed(&error))?;
    device.shutdown().map_err(|error| failed(&error))?;
    Ok(spec)
}

/// A loop device over a file in a tmpfs, removed when dropped.
#[derive(Debug)]
pub(crate) struct LoopDisk {
    device: PathBuf,
    file: PathBuf,
}

impl LoopDisk {
    /// Makes one of `bytes` bytes, filled as [`Zram::filled`].
    ///
    /// # Errors
    /// [`LabError::Missing`]: no permission, no `/dev/shm`, no losetup.
    pub fn filled(bytes: u64) -> Result<Self, LabError> {
        let file = PathBuf::from(format!("/dev/shm/nvmed-lab-{}.img", std::process::id()));
        let missing = |what: &dyn std::fmt::Display| LabError::missing(format!("a loop device: {what}"));
        undo::made(&HostResource::File(file.clone()));
        let sized = std::fs::File::create(&file).and_then(|new| new.set_len(bytes));
        let made = sized.map_err(|error| missing(&error)).and_then(|()| {
            run(Command::new("losetup").args(["-f", "--show"]).arg(&file)).map_err(|error| missing(&error))
        });
        let device = match made {
            Ok(text) => PathBuf::from(text.trim()),
            Err(error) => {
                undo::undo(&HostResource::File(file));
                return Err(error);
            }
        };
        undo::made(&HostResource::Loop(device.clone()));
        let disk = Self { device, file };
        fill(&disk.device, bytes)?;
        Ok(disk)
    }

    /// Its block device.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        undo::undo(&HostResource::Loop(self.device.clone()));
        undo::undo(&HostResource::File(self.file.clone()));
    }
}

/// A file in memory, removed when dropped: the kernel's shortest way to bytes, without a block device.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    path: PathBuf,
}

impl MemoryFile {
    /// Makes one of `bytes` bytes in `/dev/shm`, filled as [`Zram::filled`].
    ///
    /// # Errors
    /// There is no such place, or no room.
    pub fn filled(bytes: u64) -> Result<Self, LabError> {
        let path = PathBuf::from(format!("/dev/shm/nvmed-lab-{}.bytes", std::process::id()));
        undo::made(&HostResource::File(path.clone()));
        if let Err(error) = std::fs::File::create(&path) {
            undo::forget(&HostResource::File(path.clone()));
            return Err(LabError::program(path.display(), &error));
        }
        let file = Self { path };
        fill(&file.path, bytes)?;
        Ok(file)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        undo::undo(&HostResource::File(self.path.clone()));
    }
}

/// Bytes written at once.
const CHUNK: usize = 1 << 20;

/// Fills a device with data that does not compress.
///
/// # Errors
/// It cannot be opened or written.
pub fn fill(device: &Path, bytes: u64) -> Result<(), LabError> {
    let fail = |errno| LabError::host(device.display().to_string(), errno);
    let fd = rustix::fs::open(device, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
    let mut chunk = vec![0u8; CHUNK];
    let mut dice = Dice::new(1);
    for _ in 0..bytes.div_ceil(CHUNK as u64) {
        dice.fill(&mut chunk);
        let mut left = &chunk[..];
        while !left.is_empty() {
            let n = rustix::io::write(&fd, left).map_err(fail)?;
            left = &left[n..];
        }
    }
    rustix::fs::fsync(&fd).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::BlockCounts;

    #[test]
    fn operations_of_a_disk_are_all_kinds_that_its_kernel_counts() {
        // Reads, merged, sectors, ms; writes the same; under way, busy, waiting; discards the same; flushes, ms.
        let line = "     100 1 800 2 30 3 240 4 0 5 6 7 0 70 8 9 10\n";
        let counts = BlockCounts::of(line).unwrap();
        assert_eq!((counts.operations, counts.bytes), (100 + 30 + 7 + 9, (800 + 240) * 512));
        assert_eq!((counts.writes, counts.written_bytes), (30, 240 * 512));
        let old = BlockCounts::of("100 1 800 2 30 3 240 4 0 5 6").unwrap();
        assert_eq!(counts.since(&old), (16, 0));
        assert_eq!((BlockCounts::of("100 1 800 2"), BlockCounts::of("1 2 3 4 x 6 7")), (None, None));
    }
}
