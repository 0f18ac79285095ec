//! A namespace of the kernel's NVMe driver as an engine: the kernel keeps the drive.

use crate::check::Limits;
use crate::command::CommandDrive;
use crate::error::{UringError, status};
use crate::geometry::read_line;
use crate::ioctl;
use crate::queue::{Queue, Shared};
use crate::ring::{Ring, RingSetup};
use crate::vectors::QUEUES_MAX;
use nvmed_engine::{
    ADMIN_BYTES_MAX, Command, Engine, EngineError, Geometry, Operation, QueueOptions, QueuePair, Transfer,
    Waited,
};
use nvmed_nvme::{AdminOpcode, Cns, FeatureId, IdentifyController, IdentifyNamespace, IoOpcode, Status};
use nvmed_sys::{Mapping, QuietFd};
use nvmed_units::DeviceAddress;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of one command unless the device or its driver takes less; see [`transfer_bytes`].
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Bytes of one command where the driver does not say: what every controller of today takes.
const TRANSFER_BYTES_SAFE: u32 = 128 << 10;
/// Commands in flight a queue at most.
const DEPTH_MAX: u16 = 1024;
/// Logical blocks that the 16-bit field of a command can count.
const FIELD_BLOCKS_MAX: u32 = 1 << 16;
/// DLFEAT bit 3: Write Zeroes may deallocate; bits 2:0 = 1: what is deallocated reads as zeroes.
const DLFEAT_WRITE_ZEROES: u8 = 1 << 3;

/// How to open a namespace's character device.
#[derive(Clone, Debug)]
pub struct UringCmdOptions {
    /// The node, as `/dev/ng0n1`.
    pub path: PathBuf,
    /// Keep mounts and other processes like this one out. Without, what the kernel writes to the
    /// namespace and what is written here do not know of each other: for looking only.
    pub lock: bool,
}

/// An open character device of a namespace (`/dev/ng0n1`).
#[derive(Debug)]
pub(crate) struct OpenNamespace {
    pub(crate) fd: QuietFd,
    locked: bool,
    /// The namespace's block device, claimed.
    _claim: Option<QuietFd>,
}

impl Drop for OpenNamespace {
    fn drop(&mut self) {
        if self.locked {
            // A child that was just forked has the descriptor too; see the file engine.
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl OpenNamespace {
    pub(crate) fn open(options: &UringCmdOptions) -> Result<Self, UringError> {
        let path = options.path.display().to_string();
        let fail = |errno| UringError::open(&path, errno);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::open(&options.path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM => UringError::Open {
                path: path.clone(),
                errno,
                hint: "; the node belongs to root: give yourself read and write permission on it (udev rule), \
                       or run as root",
            },
            errno => fail(errno),
        })?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(fail)?.st_mode);
        if kind != FileType::CharacterDevice {
            let what = if kind == FileType::BlockDevice { "a block device" } else { "no device" };
            let hint = "the passthrough node of /dev/nvme0n1 is /dev/ng0n1";
            return Err(UringError::Kind { path, what, hint });
        }
        let claim = if options.lock { claim(&options.path, &path)? } else { None };
        if options.lock {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(UringError::InUse { path, holder: "another process".to_owned() });
                }
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(Self { fd: QuietFd::new(fd), locked: options.lock, _claim: claim })
    }
}

/// The name of the block device of the namespace behind `/dev/ngXnY`.
fn block_name(path: &Path) -> Option<String> {
    let name = std::fs::canonicalize(path).ok()?.file_name()?.to_str()?.to_owned();
    name.strip_prefix("ng").map(|rest| format!("nvme{rest}"))
}

/// Claims the namespace's block device: a mount of it, or of a partition, excludes us, and we it.
fn claim(path: &Path, shown: &str) -> Result<Option<QuietFd>, UringError> {
    let Some(name) = block_name(path) else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL;
    match rustix::fs::open(format!("/dev/{name}"), flags, Mode::empty()) {
        Ok(fd) => Ok(Some(QuietFd::new(fd))),
        Err(Errno::BUSY) => {
            let holder = format!("a mount or another process, which has /dev/{name}");
            Err(UringError::InUse { path: shown.to_owned(), holder })
        }
        // A namespace without a block device, or one that this user may not even read.
        Err(_) => Ok(None),
    }
}

/// A namespace of the kernel's NVMe driver.
pub struct UringCmdEngine {
    node: Arc<OpenNamespace>,
    shared: Arc<Shared>,
    geometry: Geometry,
    nsid: u32,
    zeroes_deallocate: bool,
}

impl UringCmdEngine {
    /// Opens a namespace's character device.
    ///
    /// # Errors
    /// [`UringError`] says what is wrong with it and what to do.
    pub fn open(options: &UringCmdOptions) -> Result<Self, UringError> {
        let path = options.path.display().to_string();
        let node = OpenNamespace::open(options)?;
        let nsid = ioctl::namespace(node.fd.as_fd()).map_err(|errno| match errno {
            Errno::NOTTY => UringError::Kind {
                path: path.clone(),
                what: "no NVMe namespace's character device",
                hint: "they are named /dev/ng0n1; /dev/nvme0 is a controller's",
            },
            errno => describe(&path, "its namespace", errno),
        })?;
        let (controller, namespace) = identify(&node, nsid, &path)?;
        let geometry = geometry(&node, &options.path, &controller, &namespace)
            .map_err(|reason| UringError::Device { path, error: EngineError::Namespace { nsid, reason } })?;
        let mut limits = Limits::new(&geometry);
        limits.bare_blocks_max = FIELD_BLOCKS_MAX;
        for (operation, bit) in [
            (Operation::Compare, IdentifyController::ONCS_COMPARE),
            (Operation::WriteZeroes { fua: false }, IdentifyController::ONCS_WRITE_ZEROES),
            (Operation::Discard, IdentifyController::ONCS_DSM),
        ] {
            if controller.oncs & bit == 0 {
                limits.missing |= Limits::bit(operation);
            }
        }
        // What this process or kernel cannot do is told now: large entries are there since Linux 5.19.
        drop(Ring::new(1, RingSetup { iopoll: false, large: true })?);
        let zeroes_deallocate = namespace.dlfeat & 7 == 1 && namespace.dlfeat & DLFEAT_WRITE_ZEROES != 0;
        let (node, shared) = (Arc::new(node), Arc::new(Shared::new(limits)));
        Ok(Self { node, shared, geometry, nsid, zeroes_deallocate })
    }
}

fn describe(path: &str, what: &'static str, errno: Errno) -> UringError {
    let hint = match errno {
        Errno::ACCESS | Errno::PERM => {
            "; administrative commands need CAP_SYS_ADMIN, or Linux 6.2 and write permission on the node"
        }
        _ => "",
    };
    UringError::Describe { path: path.to_owned(), what, errno, hint }
}

/// Reads what controller and namespace say of themselves.
fn identify(
    node: &OpenNamespace,
    nsid: u32,
    path: &str,
) -> Result<(IdentifyController, IdentifyNamespace), UringError> {
    let ask = |cns: Cns, nsid: u32, page: &mut [u8]| {
        let opcode = AdminOpcode::Identify as u8;
        let command = Command { opcode, nsid, cdw10: u32::from(cns.0), ..Command::default() };
        let ended = ioctl::admin(node.fd.as_fd(), &command, &mut Transfer::FromDevice(page));
        let ended = ended.map_err(|errno| describe(path, "what it is (Identify)", errno))?;
        match Status(ended.status) {
            status if status.is_success() => Ok(()),
            status => {
                let error = EngineError::Command { command: "Identify", status };
                Err(UringError::Device { path: path.to_owned(), error })
            }
        }
    };
    let (mut controller, mut namespace) = (IdentifyController::new_zeroed(), IdentifyNamespace::new_zeroed());
    ask(Cns::CONTROLLER, 0, controller.as_mut_bytes())?;
    ask(Cns::NAMESPACE, nsid, namespace.as_mut_bytes())?;
    Ok((controller, namespace))
}

/// What the device is, if this engine can use it.
///
/// # Errors
/// Why not.
fn geometry(
    node: &OpenNamespace,
    path: &Path,
    controller: &IdentifyController,
    namespace: &IdentifyNamespace,
) -> Result<Geometry, &'static str> {
    let format = namespace.format().ok_or("its LBA format is not one of those that it lists")?;
    if format.ms != 0 {
        return Err("its blocks carry metadata, which this engine does not transfer");
    }
    if !(9..=12).contains(&format.lbads) {
        return Err("its blocks are not of 512 to 4096 bytes");
    }
    if namespace.nsze == 0 || namespace.nsze > u64::MAX >> format.lbads {
        return Err("it has no blocks, or more than 64 bits can count");
    }
    let present = controller.vwc & 1 != 0;
    Ok(Geometry {
        lba_bytes: 1 << format.lbads,
        lba_count: namespace.nsze,
        transfer_bytes_max: transfer_bytes(path, controller),
        queue_depth_max: DEPTH_MAX,
        queues_max: QUEUES_MAX,
        volatile_write_cache: present && cache_is_on(node),
        serial: text(&controller.sn),
        model: text(&controller.mn),
        firmware: text(&controller.fr),
    })
}

/// Whether the write cache is on; a controller that does not say is taken to have it on.
fn cache_is_on(node: &OpenNamespace) -> bool {
    let (opcode, cdw10) = (AdminOpcode::GetFeatures as u8, FeatureId::VolatileWriteCache as u32);
    let command = Command { opcode, cdw10, ..Command::default() };
    let ended = ioctl::admin(node.fd.as_fd(), &command, &mut Transfer::None);
    ended.ok().filter(|ended| Status(ended.status).is_success()).is_none_or(|ended| ended.value & 1 != 0)
}

/// Bytes that one command may move: by the controller, and by the kernel, whose driver takes no command
/// with more bytes or scattered pages than it says; it does not cut what passes through.
fn transfer_bytes(path: &Path, controller: &IdentifyController) -> u32 {
    let mdts = u32::from(controller.mdts);
    let device = if mdts == 0 || mdts >= 8 { TRANSFER_BYTES_MAX } else { 4096 << mdts };
    let limit = |name: &str| {
        let block = block_name(path)?;
        read_line(&format!("/sys/block/{block}/queue/{name}")).ok()?.parse::<u32>().ok()
    };
    let host = limit("max_hw_sectors_kb").map(|kib| kib.saturating_mul(1024));
    // The first of the pages may be a part of one.
    let pages = limit("max_segments").map(|pages| pages.saturating_sub(1).saturating_mul(4096));
    let host = host.zip(pages).map_or(TRANSFER_BYTES_SAFE, |(bytes, pages)| bytes.min(pages));
    device.min(host).clamp(4096, TRANSFER_BYTES_MAX) & !4095
}

/// A field of padded ASCII; whatever is not printable becomes `?`.
fn text(field: &[u8]) -> String {
    let shown = field.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { byte as char } else { '?' });
    shown.collect::<String>().trim_matches([' ', '?']).to_owned()
}

/// A command's name in errors.
fn name(opcode: u8) -> &'static str {
    match AdminOpcode::from_code(opcode) {
        Some(AdminOpcode::Identify) => "Identify",
        Some(AdminOpcode::GetLogPage) => "Get Log Page",
        Some(AdminOpcode::GetFeatures) => "Get Features",
        Some(AdminOpcode::SetFeatures) => "Set Features",
        _ => "administrative command",
    }
}

impl Engine for UringCmdEngine {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        let depth = options.depth_within(DEPTH_MAX)?;
        let setup = RingSetup { iopoll: false, large: true };
        let ring = Ring::for_queue(depth, setup)?;
        let registered = ring.register_file(self.node.fd.as_fd()).is_ok();
        let drive = CommandDrive::new(Arc::clone(&self.node), registered, self.nsid, self.zeroes_deallocate);
        Ok(Box::new(Queue::new(Arc::clone(&self.shared), ring, None, drive, depth)?))
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        self.shared.buffers.map(memory).map_err(EngineError::Map)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.shared.buffers.unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        if self.shared.closed.swap(true, Ordering::Relaxed) || !self.geometry.volatile_write_cache {
            return Ok(());
        }
        let flush = Command { opcode: IoOpcode::Flush as u8, nsid: self.nsid, ..Command::default() };
        let ended = ioctl::bare(self.node.fd.as_fd(), &flush);
        let status = ended.map_or_else(|errno| status(errno, false), |ended| Status(ended.status));
        if status.is_success() { Ok(()) } else { Err(EngineError::Command { command: "Flush", status }) }
    }

    fn admin(&self, command: &Command, mut data: Transfer<'_>) -> Result<u32, EngineError> {
        let bytes = data.bytes();
        if bytes > ADMIN_BYTES_MAX || !bytes.is_multiple_of(4) {
            return Err(EngineError::Buffer { bytes });
        }
        let ended = ioctl::admin(self.node.fd.as_fd(), command, &mut data);
        let refused = |status| EngineError::Command { command: name(command.opcode), status };
        let ended = ended.map_err(|errno| refused(status(errno, true)))?;
        let status = Status(ended.status);
        if status.is_success() { Ok(ended.value) } else { Err(refused(status)) }
    }

    fn namespace(&self) -> u32 {
        self.nsid
    }

    fn events(&self, vector: u16) -> u32 {
        self.shared.vectors.events(vector)
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        self.shared.vectors.wait(vector, seen, timeout_us)
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.shared.vectors.event_fd(vector)
    }
}
