//! A device string becomes a device with queues.

use crate::drive;
use crate::driver::DriverKeys;
use crate::error::StackError;
use crate::profile::SlowMedium;
use crate::record;
use crate::spec::{
    DeviceSpec, FlushTo, Medium, NvmSpec, SpecError, UringCmdSpec, UringSpec, VfioSpec, VfioUserSpec,
    VirtualSpec,
};
use nvmed_dma::Transport;
use nvmed_engine::Engine;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_io::{Device, DeviceOptions};
use nvmed_nvm::{BufferOptions, Memory, MemoryOptions, NvmEngine, Place, Prefetch};
use nvmed_stamps::Stamps;
use nvmed_sys::Pages;
use nvmed_uring::{UringCmdEngine, UringCmdOptions, UringEngine, UringOptions};
use nvmed_vdev::{Controller, ControllerConfig, FileOptions, Flush, InProcess, Media};
use nvmed_vfio::{Function, FunctionOptions, Host, VfioError};
use nvmed_vfio_user::{Client, ClientOptions};
use std::path::Path;
use std::sync::Arc;

/// I/O queues of a private mount. An inline controller works in the caller's thread, so more queues
/// than cores only cost memory; two let a flush and a read go at once on the smallest machines.
const QUEUES: usize = 4;
/// Commands in flight a queue: a full write-back batch of the cache.
const QUEUE_DEPTH: u16 = 128;

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It must exist. With `locked_by_run`, the image is locked by `nvmed run` above us.
    Existing {
        /// Whether the lock is held above us.
        locked_by_run: bool,
    },
    /// Its file is made, or grown to `bytes`.
    Create {
        /// Size of the device.
        bytes: u64,
    },
}

/// A device that is open, and what else reaches its bytes.
pub struct Opened {
    /// An engine with queues.
    pub device: Arc<Device>,
    /// The same bytes, where they are memory that can be stored to without commands (`nvm:`).
    pub bytes: Option<Arc<Memory>>,
}

/// Opens a device: an engine with queues.
///
/// # Errors
/// [`StackError`] naming the device and what is wrong with it.
pub fn open_device(spec: &DeviceSpec, open: Open) -> Result<Arc<Device>, StackError> {
    Ok(open_with_bytes(spec, open)?.device)
}

/// As [`open_device`], with the bytes themselves where they can be had.
///
/// # Errors
/// As [`open_device`].
pub fn open_with_bytes(spec: &DeviceSpec, open: Open) -> Result<Opened, StackError> {
    open_recorded_device(spec, open, None)
}

/// As [`open_with_bytes`], with its requests recorded at the probes that `stamps` wants.
///
/// # Errors
/// As [`open_device`].
pub(crate) fn open_recorded_device(
    spec: &DeviceSpec,
    open: Open,
    stamps: Option<&Arc<Stamps>>,
) -> Result<Opened, StackError> {
    let Reached { engine, bytes } = reach(spec, open, stamps)?;
    let engine = match stamps {
        Some(stamps) => nvmed_engine::recorded(engine, stamps),
        None => engine,
    };
    let options = DeviceOptions { queues: QUEUES, depth: QUEUE_DEPTH };
    let device =
        Device::open(engine, options).map_err(|error| StackError::Io { device: spec.to_string(), error })?;
    stamps.iter().for_each(|stamps| device.record(stamps));
    Ok(Opened { device, bytes })
}

/// Opens the engine that a device string names.
///
/// # Errors
/// [`StackError`] naming the device and what is wrong with it.
pub fn open_engine(spec: &DeviceSpec, open: Open) -> Result<Arc<dyn Engine>, StackError> {
    Ok(reach(spec, open, None)?.engine)
}

/// An engine by its trait, and what only its type could tell.
struct Reached {
    engine: Arc<dyn Engine>,
    bytes: Option<Arc<Memory>>,
}

impl From<Arc<dyn Engine>> for Reached {
    fn from(engine: Arc<dyn Engine>) -> Self {
        Self { engine, bytes: None }
    }
}

/// What a device string reaches. An existing image of another size than the string says is none that the user means.
fn reach(spec: &DeviceSpec, open: Open, stamps: Option<&Arc<Stamps>>) -> Result<Reached, StackError> {
    let reached = reach_any(spec, open, stamps)?;
    if let (Open::Existing { .. }, Some(said), Some(path)) = (open, spec.size_bytes(), spec.file()) {
        let found = reached.engine.geometry().bytes();
        if found != said {
            // Nothing was asked of it; that it does not end well is the smaller trouble.
            let _ = reached.engine.shutdown();
            let device = format!("{}:{path}", spec.engine());
            return Err(StackError::OtherSize { device, found, said });
        }
    }
    Ok(reached)
}

/// The engine without a probe of its own; a virtual device has one.
fn reach_any(spec: &DeviceSpec, open: Open, stamps: Option<&Arc<Stamps>>) -> Result<Reached, StackError> {
    let name = || spec.to_string();
    let transport: Arc<dyn Transport> = match spec {
        DeviceSpec::Virtual(spec) => Arc::new(attach(spec, open, stamps)?),
        DeviceSpec::Uring(spec) => return Ok(uring(spec, open)?.into()),
        DeviceSpec::Nvm(spec) => return memory(spec, open),
        DeviceSpec::Vfio(spec) => Arc::new(take(spec).map_err(|error| StackError::Vfio { error })?),
        DeviceSpec::VfioUser(spec) => Arc::new(connect(spec)?),
        DeviceSpec::UringCmd(spec) => return Ok(uring_cmd(spec, open)?.into()),
    };
    let engine = NvmeEngine::open_with(transport, driver(spec).nvme())
        .map_err(|error| StackError::Engine { device: name(), error })?;
    let engine: Arc<dyn Engine> = Arc::new(engine);
    Ok(engine.into())
}

/// What the driver is asked to do with a controller.
fn driver(spec: &DeviceSpec) -> DriverKeys {
    match spec {
        DeviceSpec::Virtual(spec) => spec.driver,
        DeviceSpec::Vfio(spec) => spec.driver,
        DeviceSpec::VfioUser(spec) => spec.driver,
        DeviceSpec::Uring(_) | DeviceSpec::UringCmd(_) | DeviceSpec::Nvm(_) => DriverKeys::default(),
    }
}

/// A controller on the PCI bus.
fn take(spec: &VfioSpec) -> Result<Function, VfioError> {
    let options = FunctionOptions { interrupts: spec.interrupts };
    Function::open(&Host::default(), spec.address.parse()?, options)
}

/// A controller in another process.
fn connect(spec: &VfioUserSpec) -> Result<Client, StackError> {
    Client::connect(Path::new(&spec.socket), ClientOptions::default())
        .map_err(|error| StackError::Connect { error })
}

/// A virtual controller, in this process.
fn attach(spec: &VirtualSpec, open: Open, stamps: Option<&Arc<Stamps>>) -> Result<InProcess, StackError> {
    InProcess::new(controller(spec, open, stamps)?).map_err(|error| StackError::Thread { error })
}

/// A virtual controller, not yet attached to anything.
pub(crate) fn controller(
    spec: &VirtualSpec,
    open: Open,
    stamps: Option<&Arc<Stamps>>,
) -> Result<Arc<Controller>, StackError> {
    let controller = without_list(spec, open, stamps)?;
    if let Some(file) = &spec.behaviour.record {
        if !controller.has_drive() {
            return Err(StackError::Timeless { device: DeviceSpec::Virtual(spec.clone()).to_string() });
        }
        record::begin(&controller, file, spec.lba_bytes)?;
    }
    Ok(controller)
}

/// One that writes no list of what arrives at its drive.
fn without_list(
    spec: &VirtualSpec,
    open: Open,
    stamps: Option<&Arc<Stamps>>,
) -> Result<Arc<Controller>, StackError> {
    let name = || DeviceSpec::Virtual(spec.clone()).to_string();
    let plan = spec.behaviour.plan();
    let plan =
        plan.map_err(|error| StackError::Spec { device: name(), error: SpecError::Faults { error } })?;
    let mut config = ControllerConfig {
        lba_bytes: spec.lba_bytes,
        serial: spec.serial.clone(),
        clock: spec.behaviour.clock(),
        faults: plan,
        stamps: stamps.cloned(),
        ..ControllerConfig::default()
    };
    if let Some(drive) = drive::beside(spec)? {
        return drive.controller(spec, open, config);
    }
    let mut give_drive = |bytes| {
        let given = spec.behaviour.give_drive(bytes, &mut config);
        given.map_err(|fault| StackError::Profile { device: name(), fault })?;
        let asked = spec.behaviour.host_memory.ask(&mut config);
        asked.map_err(|error| StackError::Spec { device: name(), error })
    };
    if let Open::Create { bytes } = open {
        // Before a file is made that no drive of the profile fits.
        give_drive(bytes)?;
    }
    let medium = medium(spec, open)?;
    give_drive(medium.bytes())?;
    Ok(Controller::new(config, medium))
}

/// A file or block device, by io_uring.
fn uring(spec: &UringSpec, open: Open) -> Result<Arc<dyn Engine>, StackError> {
    let options = UringOptions {
        path: spec.path.clone().into(),
        size: match open {
            Open::Create { bytes } => Some(bytes),
            Open::Existing { .. } => None,
        },
        direct: spec.direct,
        iopoll: spec.iopoll,
        calls: spec.calls,
        lba_bytes: spec.lba_bytes,
        lock: !matches!(open, Open::Existing { locked_by_run: true }),
    };
    let engine = UringEngine::open(&options).map_err(|error| StackError::Uring { error })?;
    Ok(Arc::new(engine))
}

/// Memory that keeps its bytes.
fn memory(spec: &NvmSpec, open: Open) -> Result<Reached, StackError> {
    let made = match open {
        Open::Create { bytes } => Some(bytes),
        Open::Existing { .. } => None,
    };
    let bytes = made.or(spec.size_bytes).unwrap_or(0);
    let place = if let Some(path) = spec.held.clone() {
        Place::Held { path, bytes }
    } else if spec.path.is_empty() {
        Place::Ram { bytes }
    } else {
        let lock = !matches!(open, Open::Existing { locked_by_run: true });
        Place::File { path: spec.path.clone().into(), size: made, lock }
    };
    let name = || DeviceSpec::Nvm(spec.clone()).to_string();
    let fail_buffer = |error| StackError::Buffer { device: name(), error };
    if let Some(bytes) = made {
        // Before a file is made that no such buffer stands before.
        buffer(spec, bytes)?.map_or(Ok(()), |options| options.check()).map_err(fail_buffer)?;
    }
    let mut memory = Memory::open(MemoryOptions { place, flush: spec.flush })?;
    if let Some(options) = buffer(spec, memory.bytes())? {
        memory = memory.buffered(&options).map_err(fail_buffer)?;
        memory =
            memory.prefetching(spec.buffer.as_ref().map_or_else(Prefetch::default, |said| said.prefetch));
    }
    let memory = Arc::new(memory);
    let engine = NvmEngine::over(Arc::clone(&memory), spec.lba_bytes);
    Ok(Reached { engine: Arc::new(engine), bytes: Some(memory) })
}

/// The buffer in front of memory of `bytes` bytes, where it has one.
fn buffer(spec: &NvmSpec, bytes: u64) -> Result<Option<BufferOptions>, StackError> {
    let Some(said) = &spec.buffer else { return Ok(None) };
    let profile = SlowMedium::named(&said.profile).and_then(|medium| medium.medium(bytes));
    let name = || DeviceSpec::Nvm(spec.clone()).to_string();
    let profile = profile.map_err(|fault| StackError::Profile { device: name(), fault })?;
    Ok(Some(BufferOptions { profile, bytes: said.bytes, clock: said.clock }))
}

/// A namespace of the kernel's NVMe driver.
fn uring_cmd(spec: &UringCmdSpec, open: Open) -> Result<Arc<dyn Engine>, StackError> {
    let lock = !matches!(open, Open::Existing { locked_by_run: true });
    let options = UringCmdOptions { path: spec.path.clone().into(), lock };
    let engine = UringCmdEngine::open(&options).map_err(|error| StackError::Uring { error })?;
    Ok(Arc::new(engine))
}

pub(crate) fn medium(spec: &VirtualSpec, open: Open) -> Result<Media, StackError> {
    let fail = |error| StackError::Media { error };
    let bytes = match open {
        Open::Create { bytes } => Some(bytes),
        Open::Existing { .. } => spec.size_bytes,
    };
    let missing = bytes.unwrap_or(0);
    let medium = match spec.medium {
        Medium::Dram => Media::ram(missing, Pages::Huge).map_err(fail)?,
        Medium::Null => Media::null(missing).map_err(fail)?,
        Medium::File => Media::file(FileOptions {
            path: spec.path.clone().into(),
            size: matches!(open, Open::Create { .. }).then_some(missing),
            flush: match spec.flush {
                FlushTo::Host => Flush::Host,
                FlushTo::Process => Flush::Process,
            },
            lock: !matches!(open, Open::Existing { locked_by_run: true }),
        })
        .map_err(fail)?,
    };
    Ok(if spec.volatile { Media::volatile(medium) } else { medium })
}
