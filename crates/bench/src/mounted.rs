//! Places where a workload's files can lie: kernel file systems made for the occasion, and ours.
//!
//! A kernel place is undone when it is dropped, also by a panic, and by the supervisor otherwise.

use nvmed_lab::medium::{self, Zram};
use nvmed_lab::shell::run;
use nvmed_lab::undo::{self, HostResource};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// btrfs on zram.
    Btrfs,
}

/// A kernel file system, mounted.
pub struct Mounted {
    /// Its name in the table.
    pub name: &'static str,
    /// Where it is mounted.
    pub dir: PathBuf,
    held: Held,
}

/// What a mounted file system lies on, in the order in which it is undone.
enum Held {
    Tmpfs,
    OnZram(medium::Mounted, Zram),
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
        match kind {
            KernelFs::Tmpfs => Self::tmpfs("tmpfs", "tmpfs", "never", bytes),
            KernelFs::TmpfsHuge => Self::tmpfs("tmpfs huge=always", "tmpfs-huge", "always", bytes),
            KernelFs::Ext4 => Self::zram("ext4 on zram", "ext4", bytes),
            KernelFs::Xfs => Self::zram("xfs on zram", "xfs", bytes),
            KernelFs::Btrfs => Self::zram("btrfs on zram", "btrfs", bytes),
        }
    }

    fn tmpfs(name: &'static str, word: &str, huge: &str, bytes: u64) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("nvmed-bench-{}-{word}{number}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let options = format!("size={bytes},huge={huge}");
        let made = HostResource::Mount(dir.clone());
        undo::made(&made);
        if let Err(error) =
            run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&dir))
        {
            undo::forget(&made);
            let _ = std::fs::remove_dir(&dir);
            return Err(error.to_string());
        }
        Ok(Self { name, dir, held: Held::Tmpfs })
    }

    fn zram(name: &'static str, kind: &str, bytes: u64) -> Result<Self, String> {
        let zram = Zram::new(bytes)?;
        let mounted = medium::Mounted::made(&zram, kind)?;
        Ok(Self { name, dir: mounted.dir().to_owned(), held: Held::OnZram(mounted, zram) })
    }

    /// Unmounts and mounts it again, so that nothing of it is cached; a tmpfs stays as it is.
    ///
    /// # Errors
    /// A program still uses it.
    pub fn remount(&self) -> Result<(), String> {
        match &self.held {
            Held::Tmpfs => Ok(()),
            Held::OnZram(mounted, zram) => Ok(mounted.remount(zram)?),
        }
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
        if matches!(self.held, Held::Tmpfs) {
            undo::undo(&HostResource::Mount(self.dir.clone()));
        }
    }
}

/// Our place: an image in a tmpfs or a zram disk, seen by programs at a directory that exists for them only. What
/// belongs to it lies in a tmpfs.
pub struct Ours {
    tmpfs: Mounted,
    _zram: Option<Zram>,
    wrapper: PathBuf,
    probe: PathBuf,
}

impl Ours {
    /// Formats a device of `device_bytes` in a fresh tmpfs and writes its configuration.
    ///
    /// # Errors
    /// The release build is missing, or formatting failed.
    pub fn new(device_bytes: u64, cache_bytes: u64, cache_pages: &str) -> Result<Self, String> {
        let tmpfs = Mounted::tmpfs("ours, image in tmpfs", "ours", "never", PLACE_BYTES)?;
        let image = tmpfs.dir.join("disk.img");
        let size = format!("{device_bytes}");
        run(Command::new(tools()?.join("nvmed")).arg("format").arg(&image).args(["--size", &size]))?;
        let settings = format!(
            "storage_engine = virtual\nstorage_dev = {}\ncache_pages = {cache_pages}\ncache_dirty_limit = {}\n\
             writeback_seconds = 0\n",
            image.display(),
            cache_bytes - cache_bytes / 16,
        );
        Self::placed(tmpfs, None, cache_bytes, &settings)
    }

    /// Formats a file in a fresh tmpfs as memory that keeps its bytes ([`Ours::beside`] `disk.img`).
    ///
    /// # Errors
    /// As [`Ours::new`].
    pub(crate) fn on_memory(device_bytes: u64) -> Result<Self, String> {
        let tmpfs = Mounted::tmpfs("ours, memory in tmpfs", "ours", "never", PLACE_BYTES)?;
        let device = format!("nvm:{}?flush=process", tmpfs.dir.join("disk.img").display());
        let size = device_bytes.to_string();
        run(Command::new(tools()?.join("nvmed")).args(["format", &device, "--size", &size]))?;
        // Nothing is cached; of a shared mount it is how many windows there can be.
        Self::placed(tmpfs, None, 16 << 20, &format!("storage_dev = {device}\nwriteback_seconds = 0\n"))
    }

    /// Formats a zram disk of `device_bytes`, which is used by io_uring as any block device is. But for the size of the
    /// cache, the settings are those that nobody chose.
    ///
    /// # Errors
    /// As [`Ours::new`]; no zram.
    pub(crate) fn on_zram(device_bytes: u64, cache_bytes: u64) -> Result<Self, String> {
        Self::on_zram_with(device_bytes, cache_bytes, "")
    }

    /// As [`Ours::on_zram`], with more lines of settings.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn on_zram_with(device_bytes: u64, cache_bytes: u64, more: &str) -> Result<Self, String> {
        let zram = Zram::new(device_bytes)?;
        let tmpfs = Mounted::tmpfs("ours, zram by io_uring", "ours", "never", PLACE_BYTES)?;
        let device = zram.device();
        run(Command::new(tools()?.join("nvmed")).arg("format").arg(format!("uring:{}", device.display())))?;
        let settings = format!("storage_engine = uring\nstorage_dev = {}\n{more}", device.display());
        Self::placed(tmpfs, Some(zram), cache_bytes, &settings)
    }

    /// A drive of a profile, `device_bytes` large, which stays with its image in a fresh tmpfs. But for the size of the
    /// cache, the settings are those that nobody chose.
    ///
    /// # Errors
    /// As [`Ours::new`].
    pub(crate) fn on_drive(profile: &str, device_bytes: u64, cache_bytes: u64) -> Result<Self, String> {
        let tmpfs = Mounted::tmpfs("ours, drive in tmpfs", "ours", "never", device_bytes + (1 << 30))?;
        let (image, nvmed) = (tmpfs.dir.join("disk.img"), tools()?.join("nvmed"));
        let size = device_bytes.to_string();
        run(Command::new(&nvmed).args(["device", "create"]).arg(&image).args([
            "--profile",
            profile,
            "--size",
            &size,
        ]))?;
        run(Command::new(nvmed).arg("format").arg(&image))?;
        let settings = format!("storage_engine = virtual\nstorage_dev = {}\n", image.display());
        Self::placed(tmpfs, None, cache_bytes, &settings)
    }

    fn placed(tmpfs: Mounted, zram: Option<Zram>, cache_bytes: u64, settings: &str) -> Result<Self, String> {
        let config = format!(
            "wrap_dir = {}\nfilesystem = nvmedfs\ncache_size = {cache_bytes}\n{settings}",
            tmpfs.dir.join("on").display(),
        );
        std::fs::write(tmpfs.dir.join("default.conf"), config).map_err(|error| error.to_string())?;
        let tools = tools()?;
        let (wrapper, probe) = (tools.join("libnvmed_wrapper.so"), tools.join("nvmed-probe"));
        Ok(Self { tmpfs, _zram: zram, wrapper, probe })
    }

    /// A path on the host for what a measurement needs besides; it goes with this place.
    #[must_use]
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.tmpfs.dir.join(name)
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
