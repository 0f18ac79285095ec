//! One mounted file system, from a configuration.

use crate::config::{Behind, Config};
use crate::device::{Open, Opened, open_recorded_device, open_with_bytes};
use crate::error::StackError;
use crate::flusher::Flusher;
use crate::run::{RunMemory, State};
use crate::spec::DeviceSpec;
use crate::statistics::{self, Calls};
use nvmed_fs::posted::{LEDGER_BYTES, LOG_BYTES, Log};
use nvmed_fs::{FileSystem, FormatOptions, FsError, Memory, MemoryLayout, MountOptions, MountParts};
use nvmed_io::{Device, Source, caller};
use nvmed_stamps::Stamps;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::ops::Deref;
use std::path::PathBuf;

/// A mounted file system and what keeps it going. Dropping it without [`Mount::unmount`] is what a
/// crash of the process is.
pub struct Mount {
    files: FileSystem,
    device: Arc<Device>,
    medium: Option<std::sync::Arc<nvmed_nvm::Memory>>,
    name: String,
    run: Option<RunMemory>,
    flusher: Mutex<Option<Flusher>>,
    statistics: Option<PathBuf>,
    /// File calls that the edge above answered.
    pub calls: Calls,
}

impl Deref for Mount {
    type Target = FileSystem;

    fn deref(&self) -> &FileSystem {
        &self.files
    }
}

/// What the environment says to a mount.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Path of the memory of `nvmed run`, from [`crate::RUN_MEMORY_VARIABLE`].
    pub run_memory: Option<String>,
    /// Where to append a line of statistics at the end, from [`crate::STATISTICS_VARIABLE`].
    pub statistics: Option<PathBuf>,
    /// Path of the memory in which requests are recorded, from [`crate::STAMPS_VARIABLE`].
    pub stamps: Option<String>,
    /// Whether this process answers calls of others, and says of each whether its caller is urgent. Its own threads are
    /// nobody then, and lose the I/O class that they have; else each is as urgent as its class.
    pub serves: bool,
}

/// Mounts what `config` describes, in this process.
///
/// # Errors
/// [`StackError`]; nothing is left open or changed.
pub fn mount(config: &Config, surroundings: Surroundings) -> Result<Mount, StackError> {
    if config.behind != Behind::Nvmedfs {
        return Err(StackError::NoDevice);
    }
    nvmed_mutant::set_by(|name| std::env::var(name).ok());
    let name = config.device.to_string();
    if surroundings.serves {
        // All threads are started by this one. A kernel that does not do it leaves the requests of our own threads more
        // urgent on the host's device than they need be.
        let _ = nvmed_sys::unset_io_class();
    }
    let run = surroundings.run_memory.as_deref().map(RunMemory::join).transpose()?;
    if let Some(run) = &run {
        run.claim(&name)?;
        salvage(config, run)?;
    }
    let locked_by_run = run.is_some();
    let stamps = surroundings.stamps.as_deref().map(join_stamps).transpose()?;
    let spec = run.as_ref().map_or_else(|| config.device.clone(), |run| run.device(&config.device));
    let opened = open_recorded_device(&spec, Open::Existing { locked_by_run }, stamps.as_ref())?;
    if let Some(bytes) = &opened.bytes
        && let Err(error) = bytes.check_maps()
    {
        let _ = opened.device.shutdown();
        return Err(error.into());
    }
    let files = mount_on(&opened, config, run.as_ref()).inspect_err(|_| {
        // What is wrong with the file system is the error that counts.
        let _ = opened.device.shutdown();
    })?;
    let Opened { device, bytes: medium } = opened;
    if config.urgent_programs && !surroundings.serves {
        caller::are_urgent_here();
    }
    let mut asked = (!surroundings.serves).then(|| Arc::clone(&device));
    if let Some(device) = asked.take_if(|_| caller::of_thread().is_urgent()) {
        // The settings say so, or the program was started with the I/O class real-time, which its threads inherit;
        // some may have another.
        device.expect_urgent(Source::Threads);
    }
    let flusher = Flusher::start(&files, config.writeback_seconds, asked);
    let (flusher, statistics) = (Mutex::new(Some(flusher)), surroundings.statistics);
    Ok(Mount { files, device, medium, name, run, flusher, statistics, calls: Calls::default() })
}

fn join_stamps(path: &str) -> Result<std::sync::Arc<Stamps>, StackError> {
    let fail = |errno| StackError::Stamps { path: path.to_owned(), errno };
    let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
    Stamps::join(QuietFd::new(fd).as_fd()).map(std::sync::Arc::new).map_err(fail)
}

fn mount_on(opened: &Opened, config: &Config, run: Option<&RunMemory>) -> Result<FileSystem, StackError> {
    let name = config.device.to_string();
    let memory = match run {
        Some(run) => run.memory(),
        None => private_memory(config)?,
    };
    // A medium that goes with its run holds what the run has put there, and was new when that began. Elsewhere the
    // caller would find nothing in it, and lose what he puts there: it is refused.
    if config.format || run.is_some() && !config.device.is_lasting() {
        format_if_blank(&opened.device, &name)?;
    }
    run.iter().for_each(|run| run.begin());
    let parts = parts(opened, memory, config);
    FileSystem::mount(parts).map_err(|error| {
        run.iter().for_each(|run| run.end());
        StackError::Fs { device: name, error }
    })
}

/// Writes to the device what a dead program had completed in the run's memory.
///
/// # Errors
/// [`StackError`]; the memory is kept, so that a later attempt can succeed.
pub fn salvage(config: &Config, run: &RunMemory) -> Result<(), StackError> {
    salvage_watched(config, run, |_| {})
}

/// As [`salvage`]; `opened` is given the device as soon as it is open, and may count what it does from then on.
///
/// # Errors
/// Those of [`salvage`].
pub fn salvage_watched(
    config: &Config,
    run: &RunMemory,
    opened: impl FnOnce(&Arc<Device>),
) -> Result<(), StackError> {
    if run.state() == State::Idle {
        return Ok(());
    }
    if matches!(config.device, DeviceSpec::Virtual(_)) && !config.device.is_lasting() {
        // The medium has gone with the dead process, and what is left is the cache of a file system that is nowhere.
        run.end();
        return Ok(());
    }
    let name = config.device.to_string();
    let found = open_with_bytes(&run.device(&config.device), Open::Existing { locked_by_run: true })?;
    opened(&found.device);
    let saved = salvage_to(&found, config, run);
    // Whatever could be saved: the next attempt opens it anew.
    let ended = found.device.shutdown();
    saved?;
    ended.map_err(|error| StackError::Io { device: name, error })?;
    run.end();
    Ok(())
}

fn salvage_to(opened: &Opened, config: &Config, run: &RunMemory) -> Result<(), StackError> {
    let fail = |error| StackError::Fs { device: config.device.to_string(), error };
    let memory = private_memory(config)?;
    let parts = parts(opened, memory, config);
    let posted = run.posted().map_err(|errno| fail(errno.into()))?;
    let files = nvmed_fs::salvage(parts, &run.memory(), &posted).map_err(fail)?;
    files.unmount().map_err(fail)
}

impl Mount {
    /// Writes everything back, marks the file system clean and closes the device, also when something could not be
    /// written: it takes no requests from then on.
    ///
    /// # Errors
    /// What could not be written. Under `nvmed run` its memory is kept, and another attempt opens the device anew.
    pub fn unmount(&self) -> Result<(), FsError> {
        drop(self.flusher.lock().take());
        let saved = self.files.unmount();
        // A mount has one end: without this, its device would count it as a loss of power.
        let ended = self.device.shutdown().map_err(FsError::from);
        saved.and(ended)?;
        if let Some(path) = &self.statistics {
            // Statistics that cannot be written are no reason to fail the program that they are about.
            let _ = statistics::append(path, self.calls.get(), &self.device.stats());
        }
        if let Some(run) = &self.run {
            run.end();
        }
        Ok(())
    }

    /// The log of posted writes with this number, below [`crate::LOGS`], which outlives this process where the run's
    /// memory does; none where every program has a mount of its own.
    ///
    /// # Errors
    /// The host has no room for it.
    pub fn log(&self, number: usize) -> Result<Option<Log>, FsError> {
        let Some(run) = &self.run else {
            let memory = Mapping::shareable(LOG_BYTES, Pages::Base)?;
            let ledger = Mapping::anonymous(LEDGER_BYTES, Pages::Base)?;
            return Ok(Some(Log::new(memory, Arc::new(ledger), 0)));
        };
        Ok(run.log(number)?)
    }

    /// A descriptor through which the medium can be read and nothing else, where the bytes of files lie in memory that
    /// another process can map; as many bytes as the device has.
    #[must_use]
    pub fn medium_readers(&self) -> Option<OwnedFd> {
        self.medium.as_ref()?.readers()
    }

    /// Has `tell` told, once, in a line, when a call first fails since the device's file was cut short under the mount.
    /// It is called where that call is made.
    pub fn tell_cut(&self, tell: impl Fn(&str) + Send + Sync + 'static) {
        let Some(medium) = &self.medium else { return };
        let device = self.name.clone();
        medium.tell_cut(move |cut| {
            let nvmed_nvm::Cut { path, left, bytes } = cut;
            tell(&format!(
                "{device}: its file has been cut short to {left} of {bytes} bytes: calls on what is gone answer EIO; \
                 `truncate -s {bytes} {path}` gives it that length again, with zeroes for what is lost; then mend it \
                 with `nvmed fsck --repair`"
            ));
        });
    }

    /// The device's string.
    #[must_use]
    pub fn device_name(&self) -> &str {
        &self.name
    }

    /// The device below, for its statistics.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

fn parts(opened: &Opened, memory: Memory, config: &Config) -> MountParts {
    let Opened { device, bytes } = opened;
    MountParts { device: Arc::clone(device), bytes: bytes.clone(), memory, options: options(config) }
}

fn options(config: &Config) -> MountOptions {
    MountOptions {
        prealloc_bytes: config.prealloc_bytes,
        readahead_bytes: config.readahead_bytes,
        dirty_limit_bytes: config.dirty_limit_bytes,
        cache_policy: config.cache_policy,
        durability: config.durability,
        discard: config.discard,
        urgent_files: config.urgent_files.clone(),
        inline_bytes: config.inline_bytes as u32,
        ..MountOptions::default()
    }
}

fn private_memory(config: &Config) -> Result<Memory, StackError> {
    let layout = MemoryLayout::new(config.cache_bytes);
    let bytes = layout.total_bytes();
    let pages = if config.cache_huge { Pages::Huge } else { Pages::Base };
    let fail = |errno| StackError::Memory { bytes, errno };
    let mapping = Mapping::anonymous(bytes, pages).map_err(fail)?;
    mapping.forbid_fork().map_err(fail)?;
    Ok(Memory { mapping: Arc::new(mapping), layout })
}

fn format_if_blank(device: &Arc<Device>, name: &str) -> Result<(), StackError> {
    let fail = |error| StackError::Fs { device: name.to_owned(), error };
    if FileSystem::is_blank(device).map_err(fail)? {
        FileSystem::format(device, &FormatOptions::default()).map_err(fail)?;
    }
    Ok(())
}
