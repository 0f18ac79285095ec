//! A STORE of the command line: a file, or a device, with a key-value store on it.

use crate::failure::{Failure, Status};
use crate::format::{held, refuse};
use crate::kv::arguments::Making;
use crate::location::parse_spec;
use nvmed_block::signature;
use nvmed_io::{Binding, Device};
use nvmed_kv::{
    DeviceMedium, FileMedium, FileOptions, KvError, Medium, OpenError, Options, PendingMemory, Store,
};
use nvmed_lab::Time;
use nvmed_stack::{DeviceSpec, Open};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Block;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

/// Memory for batches that are not in the log yet.
const PENDING_BYTES: usize = 4 << 20;

/// Where a store lies.
pub struct StoreSpec {
    name: String,
    backing: Backing,
}

enum Backing {
    File,
    Device(DeviceSpec),
}

/// What a store lies on, open.
struct Ground {
    medium: Arc<dyn Medium>,
    device: Option<Arc<Device>>,
}

/// An open store.
pub struct Opened {
    name: String,
    store: Store,
    device: Option<Arc<Device>>,
    time: Time,
}

impl StoreSpec {
    /// Reads an argument: a device string if it begins with an engine, else a path.
    ///
    /// # Errors
    /// The string names no device of this version.
    pub fn parse(argument: &OsStr) -> Result<Self, Failure> {
        let name = argument.to_string_lossy().into_owned();
        let engine = name.split_once(':').is_some_and(|(engine, _)| {
            !engine.is_empty() && engine.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        });
        let backing = if engine { Backing::Device(parse_spec(&name)?) } else { Backing::File };
        Ok(Self { name, backing })
    }

    /// Whether what is put there is there after the command.
    pub fn is_lasting(&self) -> bool {
        match &self.backing {
            Backing::File => true,
            Backing::Device(spec) => spec.is_lasting(),
        }
    }

    fn failed(&self, error: impl std::fmt::Display) -> Failure {
        Failure::new(Status::Failed, format!("kv: {}: {error}", self.name))
    }

    /// Opens the store that is there.
    ///
    /// # Errors
    /// There is none, it is in use, or it cannot be read.
    pub fn open(&self, options: &Options) -> Result<Opened, Failure> {
        let ground = self.ground(None)?;
        self.open_on(ground, options)
    }

    /// Opens the store that is there; with `--create` or on a medium that ends with the command, one is made first
    /// where nothing is.
    ///
    /// # Errors
    /// As [`StoreSpec::open`].
    pub fn open_or_make(&self, making: &Making, options: &Options) -> Result<Opened, Failure> {
        let lasting = self.is_lasting();
        if !making.create && lasting {
            return self.open(options);
        }
        let missing = match self.path() {
            Some(path) => self.size_of(path)?.is_none_or(|bytes| bytes == 0),
            None => false,
        };
        let ground = self.ground(if missing { making.size } else { None })?;
        if missing || !lasting || self.found(&ground)?.is_none() {
            self.write_empty(&ground, options)?;
        }
        self.open_on(ground, options)
    }

    /// Makes an empty store; answers its blocks.
    ///
    /// # Errors
    /// Something is there that would be lost and `force` is not set; it is in use; it cannot be written.
    pub fn format(&self, size: Option<u64>, force: bool, options: &Options) -> Result<u64, Failure> {
        if !self.is_lasting() {
            let why = "this medium ends with the command; format a file";
            return Err(Failure::usage(format!("kv format: {}: {why}", self.name)));
        }
        let size = match self.path() {
            Some(path) => Some(self.size_to_be(path, size, force)?),
            None => None,
        };
        let ground = self.ground(size)?;
        if let Some(found) = self.found(&ground)?.filter(|_| !force) {
            return Err(refuse("kv format", &self.name, found, "--force"));
        }
        self.write_empty(&ground, options)?;
        let blocks = ground.medium.blocks();
        self.leave(ground)?;
        Ok(blocks)
    }

    fn write_empty(&self, ground: &Ground, options: &Options) -> Result<(), Failure> {
        let mut identity = [0; 8];
        rustix::rand::getrandom(&mut identity, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Failure::host("random numbers", errno))?;
        let options = Options { identity: u64::from_le_bytes(identity), ..options.clone() };
        Store::format(&*ground.medium, &options).map_err(|error| self.kv(&error))
    }

    fn open_on(&self, ground: Ground, options: &Options) -> Result<Opened, Failure> {
        let no_memory = |errno| Failure::host("memory for the log", errno);
        let memory = Mapping::anonymous(PENDING_BYTES, Pages::Base).map_err(no_memory)?;
        let pending = PendingMemory { memory: Arc::new(memory), offset: 0, len: PENDING_BYTES };
        let store = Store::open(ground.medium, pending, options).map_err(|error| self.kv(&error))?;
        let simulated = matches!(&self.backing, Backing::Device(spec) if spec.is_simulated());
        let time = ground.device.clone().filter(|_| simulated).map_or(Time::Host, Time::Device);
        Ok(Opened { name: self.name.clone(), store, device: ground.device, time })
    }

    /// The file, if it is one.
    fn path(&self) -> Option<&Path> {
        match &self.backing {
            Backing::File => Some(Path::new(&self.name)),
            Backing::Device(spec) => spec.file().map(Path::new),
        }
    }

    /// Opens what the store lies on; a file is made, or grown to `size`.
    fn ground(&self, size: Option<u64>) -> Result<Ground, Failure> {
        match &self.backing {
            Backing::File => {
                let path = Path::new(&self.name);
                if let Some(bytes) = size {
                    self.grow(path, bytes)?;
                }
                let medium = FileMedium::open(path, &FileOptions::default())
                    .map_err(|error| self.host(error.errno()))?;
                Ok(Ground { medium: Arc::new(medium), device: None })
            }
            Backing::Device(spec) => {
                let open = match (size, spec.size_bytes()) {
                    (Some(bytes), _) => Open::Create { bytes },
                    _ => Open::Existing { locked_by_run: false },
                };
                let nvmed_stack::Opened { device, bytes } = nvmed_stack::open_with_bytes(spec, open)?;
                let whole = DeviceMedium::device_blocks(&device).and_then(|blocks| {
                    DeviceMedium::new(&device, device.handle(Binding::Spread), Block(0)..Block(blocks))
                });
                let medium = whole.map_err(|error: OpenError| self.failed(error))?.with_bytes(bytes);
                Ok(Ground { medium: Arc::new(medium), device: Some(device) })
            }
        }
    }

    /// What is on an open device or file, if it is something.
    fn found(&self, ground: &Ground) -> Result<Option<&'static str>, Failure> {
        if let Some(device) = &ground.device {
            return held(device, &self.name);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(self.name.as_str(), flags, Mode::empty())
            .map_err(|errno| Failure::host(&self.name, errno))?;
        let bytes =
            rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(|errno| Failure::host(&self.name, errno))?;
        let found = signature::find_in_file(&fd, bytes).map_err(|errno| Failure::host(&self.name, errno))?;
        Ok(found.map(|found| found.what))
    }

    /// Bytes of a file or block device; none if it is not there.
    fn size_of(&self, path: &Path) -> Result<Option<u64>, Failure> {
        match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => rustix::fs::seek(&fd, SeekFrom::End(0)).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
        .map_err(|errno| Failure::host(&self.name, errno))
    }

    /// The size that a file is to have; what it holds is looked at first, before it is made longer.
    fn size_to_be(&self, path: &Path, wanted: Option<u64>, force: bool) -> Result<u64, Failure> {
        let usage = |text: &str| Failure::usage(format!("kv format: {}: {text}", self.name));
        let bytes = self.size_of(path)?.unwrap_or(0);
        if bytes > 0 && !force {
            let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| Failure::host(&self.name, errno))?;
            let found = signature::find_in_file(&fd, bytes);
            if let Some(found) = found.map_err(|errno| Failure::host(&self.name, errno))? {
                return Err(refuse("kv format", &self.name, found.what, "--force"));
            }
        }
        match wanted {
            Some(wanted) if wanted < bytes => {
                Err(usage("it is longer than --size; remove it first, or leave --size out"))
            }
            Some(wanted) => Ok(wanted),
            None if bytes == 0 => Err(usage("nothing is there; give --size to make it, as in --size 256M")),
            None => Ok(bytes),
        }
    }

    /// Makes a file, or makes it longer.
    fn grow(&self, path: &Path, bytes: u64) -> Result<(), Failure> {
        let fail = |errno| Failure::host(&self.name, errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map_err(fail)?;
        let now = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(fail)?;
        if now < bytes { rustix::fs::ftruncate(&fd, bytes).map_err(fail) } else { Ok(()) }
    }

    fn host(&self, errno: i32) -> Failure {
        let errno = Errno::from_raw_os_error(errno);
        if matches!(errno, Errno::AGAIN | Errno::BUSY) {
            let text = format!("kv: {} is in use by another process; end that first", self.name);
            return Failure::new(Status::Busy, text);
        }
        let failure = Failure::host(&self.name, errno);
        if errno != Errno::NOENT {
            return failure;
        }
        Failure::new(
            Status::Device,
            format!("{}; `nvmed kv format {} --size 256M` makes it", failure.message, self.name),
        )
    }

    fn kv(&self, error: &KvError) -> Failure {
        failure(&self.name, error)
    }

    fn leave(&self, ground: Ground) -> Result<(), Failure> {
        let Ground { medium, device } = ground;
        drop(medium);
        device.map_or(Ok(()), |device| device.shutdown().map_err(|error| self.failed(error)))
    }
}

/// What a store answered, with its name.
pub fn failure(name: &str, error: &KvError) -> Failure {
    let status = match error {
        KvError::NotAStore { .. }
        | KvError::Version { .. }
        | KvError::Truncated { .. }
        | KvError::TooSmall { .. } => Status::Device,
        KvError::KeyTooLong { .. } | KvError::ValueTooLong { .. } | KvError::BatchTooLarge { .. } => {
            Status::Usage
        }
        _ => Status::Failed,
    };
    Failure::new(status, format!("kv: {name}: {error}"))
}

impl std::ops::Deref for Opened {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Opened {
    /// As the command line names it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whose time a measurement takes: of a device with a simulated clock, its own.
    pub fn time(&self) -> &Time {
        &self.time
    }

    /// A result of the store, as the command tells it.
    ///
    /// # Errors
    /// The store's.
    pub fn told<T>(&self, result: Result<T, KvError>) -> Result<T, Failure> {
        result.map_err(|error| failure(&self.name, &error))
    }

    /// Makes everything durable, leaves a short log, and closes the store.
    ///
    /// # Errors
    /// What could not be written.
    pub fn close(self) -> Result<(), Failure> {
        self.told(self.store.close())?;
        for flaw in self.store.flaws() {
            eprintln!("nvmed: {}: {flaw}; it was written again", self.name);
        }
        self.leave()
    }

    /// Lets go of a store in which nothing was changed.
    ///
    /// # Errors
    /// The device's.
    pub fn leave(self) -> Result<(), Failure> {
        let Self { name, store, device, .. } = self;
        drop(store);
        let Some(device) = device else { return Ok(()) };
        device.shutdown().map_err(|error| Failure::new(Status::Failed, format!("kv: {name}: {error}")))
    }
}
