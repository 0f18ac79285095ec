//! Places where a workload's files can lie: kernel file systems made for the occasion, and ours.
//!
//! A kernel place is undone when it is dropped, also by a panic, and by the supervisor otherwise.

use nvmed_lab::medium::Zram;
use nvmed_lab::shell::run;
use nvmed_lab::undo::{self, HostResource};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of each zram disk and tmpfs: the largest set plus room for metadata.
const PLACE_BYTES: u64 = 3 << 30;

/// Which kernel file system, on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFs {
    /// tmpfs, base pages.
    Tmpfs,
    /// tmpfs, `huge=always`.
    TmpfsHuge,
    /// ext4 (ordered journal) on zram.
    Ext4,
    /// xfs on zram.
    Xfs,
}

/// A kernel file system, mounted.
pub struct Mounted {
    /// Its name in the table.
    pub name: &'static str,
    /// Where it is mounted.
    pub dir: PathBuf,
    zram: Option<Zram>,
}

impl Mounted {
    /// Makes and mounts a file system.
    ///
    /// # Errors
    /// Missing permission or tools; nothing is left behind.
    pub fn new(kind: KernelFs) -> Result<Self, String> {
        Self::sized(kind, PLACE_BYTES)
    }

    /// As [`Mounted::new`], on a disk of `bytes`.
    ///
    /// # Errors
    /// As [`Mounted::new`].
    pub fn sized(kind: KernelFs, bytes: u64) -> Result<Self, String> {
        let (name, word) = match kind {
            KernelFs::Tmpfs => ("tmpfs", "tmpfs"),
            KernelFs::TmpfsHuge => ("tmpfs huge=always", "tmpfs-huge"),
            KernelFs::Ext4 => ("ext4 on zram", "ext4"),
            KernelFs::Xfs => ("xfs on zram", "xfs"),
        };
        let dir = std::env::temp_dir().join(format!("nvmed-bench-{}-{word}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let mounted = match kind {
            KernelFs::Tmpfs => mount_tmpfs(&dir, "never", bytes).map(|()| None),
            KernelFs::TmpfsHuge => mount_tmpfs(&dir, "always", bytes).map(|()| None),
            KernelFs::Ext4 => mount_zram(
                &dir,
                bytes,
                "mkfs.ext4",
                &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            )
            .map(Some),
            KernelFs::Xfs => mount_zram(&dir, bytes, "mkfs.xfs", &["-q", "-f"]).map(Some),
        };
        match mounted {
            Ok(zram) => Ok(Self { name, dir, zram }),
            Err(message) => {
                undo::forget(&HostResource::Mount(dir.clone()));
                let _ = std::fs::remove_dir(&dir);
                Err(message)
            }
        }
    }

    /// Unmounts and mounts it again, so that nothing of it is cached; a tmpfs stays as it is.
    ///
    /// # Errors
    /// A program still uses it.
    pub fn remount(&self) -> Result<(), String> {
        let Some(zram) = &self.zram else { return Ok(()) };
        run(Command::new("umount").arg(&self.dir))?;
        run(Command::new("mount").arg(zram.device()).arg(&self.dir))?;
        Ok(())
    }

    /// The two kernel rivals of durable work.
    ///
    /// # Errors
    /// As [`Mounted::new`].
    pub fn kernel() -> Result<Vec<Self>, String> {
        Ok(vec![Self::new(KernelFs::Ext4)?, Self::new(KernelFs::Xfs)?])
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        undo::undo(&HostResource::Mount(self.dir.clone()));
        self.zram.take();
    }
}

fn mount_tmpfs(dir: &Path, huge: &str, bytes: u64) -> Result<(), String> {
    let options = format!("size={bytes},huge={huge}");
    undo::made(&HostResource::Mount(dir.to_owned()));
    run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir))?;
    Ok(())
}

fn mount_zram(dir: &Path, bytes: u64, mkfs: &str, options: &[&str]) -> Result<Zram, String> {
    let zram = Zram::new(bytes)?;
    run(Command::new(mkfs).args(options).arg(zram.device()))?;
    undo::made(&HostResource::Mount(dir.to_owned()));
    run(Command::new("mount").arg(zram.device()).arg(dir))?;
    Ok(zram)
}

/// Our place: an image in a tmpfs, seen by programs at a directory that exists for them only.
pub struct Ours {
    tmpfs: Mounted,
    wrapper: PathBuf,
    probe: PathBuf,
}

impl Ours {
    /// Formats a device of `device_bytes` in a fresh tmpfs and writes its configuration.
    ///
    /// # Errors
    /// The release build is missing, or formatting failed.
    pub fn new(device_bytes: u64, cache_bytes: u64, cache_pages: &str) -> Result<Self, String> {
        let tmpfs = Mounted::mounted_as("ours")?;
        let tools = tools()?;
        let image = tmpfs.dir.join("disk.img");
        let size = format!("{device_bytes}");
        run(Command::new(tools.join("nvmed")).arg("format").arg(&image).args(["--size", &size]))?;
        let config = format!(
            "wrap_dir = {}\nfilesystem = nvmedfs\nstorage_engine = virtual\nstorage_dev = {}\n\
             cache_size = {cache_bytes}\ncache_pages = {cache_pages}\ncache_dirty_limit = {}\n\
             writeback_seconds = 0\n",
            tmpfs.dir.join("on").display(),
            image.display(),
            cache_bytes - cache_bytes / 16,
        );
        std::fs::write(tmpfs.dir.join("default.conf"), config).map_err(|error| error.to_string())?;
        let (wrapper, probe) = (tools.join("libnvmed_wrapper.so"), tools.join("nvmed-probe"));
        Ok(Self { tmpfs, wrapper, probe })
    }

    /// The directory below which files are ours.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.tmpfs.dir.join("on")
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.tmpfs.dir.join("default.conf")
    }

    /// The same command, run under the wrapper; it writes its statistics to a file.
    pub fn wrap<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("LD_PRELOAD", &self.wrapper)
            .env("WRAPPER_CONFIG", self.tmpfs.dir.join("default.conf"))
            .env("NVMED_STATS", self.statistics())
    }

    /// The same program and arguments, run in a shared mount: what a server beside it holds.
    #[must_use]
    pub fn share(&self, command: &Command) -> Command {
        let mut shared = Command::new(self.wrapper.with_file_name("nvmed"));
        shared.args(["run", "--shared", "--config"]).arg(self.tmpfs.dir.join("default.conf")).arg("--");
        shared.arg(command.get_program()).args(command.get_args());
        shared
    }

    /// The file that [`Ours::flushes`] reads, as `NVMED_STATS` names it to a program.
    #[must_use]
    pub fn statistics(&self) -> PathBuf {
        self.tmpfs.dir.join("statistics.json")
    }

    /// Device flushes of the programs run since the last call.
    ///
    /// # Errors
    /// No program has written statistics.
    pub fn flushes(&self) -> Result<f64, String> {
        let path = self.statistics();
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        std::fs::remove_file(&path).map_err(|error| error.to_string())?;
        let mut flushes = 0.0;
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let device = &value["device"];
            for key in ["flushes", "fua_writes"] {
                flushes += device[key].as_f64().ok_or_else(|| format!("no device.{key} in {line}"))?;
            }
        }
        Ok(flushes)
    }

    /// The probe program.
    #[must_use]
    pub fn probe(&self) -> Command {
        Command::new(&self.probe)
    }
}

impl Mounted {
    fn mounted_as(word: &str) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("nvmed-bench-{}-{word}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        if let Err(message) = mount_tmpfs(&dir, "never", PLACE_BYTES) {
            undo::forget(&HostResource::Mount(dir.clone()));
            return Err(message);
        }
        Ok(Self { name: "ours, image in tmpfs", dir, zram: None })
    }
}

/// Where this build's programs lie: beside the benchmark itself.
///
/// # Errors
/// One is missing.
pub(crate) fn tools() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let dir = own.parent().ok_or("the benchmark has no directory")?.to_owned();
    for needed in ["nvmed", "libnvmed_wrapper.so", "nvmed-probe", "nvmed-kvload"] {
        if !dir.join(needed).exists() {
            return Err(format!("{} is missing: run `make bench`", dir.join(needed).display()));
        }
    }
    Ok(dir)
}
