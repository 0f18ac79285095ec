//! The client's side: from a socket path to a device with registers, memory and interrupts.

use crate::capability::Capabilities;
use crate::error::{ClientError, ProtocolError};
use crate::interrupt::Vector;
use crate::message::{Command, FDS_MAX, Header, Message};
use crate::payload::{
    DeviceInfo, IrqInfo, IrqSet, RawRegionInfo, RegionAccess, RegionInfo, Version, irq, region,
};
use crate::payload::{take, take_all};
use crate::socket::{Connection, Deadline, send};
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::IntoBytes;

/// How a device behind a socket is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// A server that leaves a message unanswered for so long counts as gone. A register read may stand behind
    /// the doorbell of a flush, which takes what the disk of the server's host takes.
    pub reply_timeout_ms: u32,
    /// Interrupt vectors to ask for, at most: each is a descriptor here and there.
    pub vectors_max: u16,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { reply_timeout_ms: 10_000, vectors_max: 32 }
    }
}

/// Bits of the PCI command register: memory space, bus master, no pin interrupt (PCI Local Bus 3.0, 6.2.2).
const PCI_COMMAND: u16 = 1 << 1 | 1 << 2 | 1 << 10;
/// Where it is in configuration space.
const PCI_COMMAND_OFFSET: u64 = 4;
/// The largest BAR0 that is believed: 32-bit offsets reach it, and no controller has so many doorbells.
const BAR0_BYTES_MAX: u64 = 1 << 30;
/// Properties end and doorbells begin here (NVMe over PCIe Transport 1.0, 3.1.2).
pub(crate) const DOORBELLS: u32 = 0x1000;
/// Where device addresses begin: beyond what a server may take for small numbers, and never 0.
pub(crate) const ADDRESS_MIN: u64 = 1 << 32;

/// Gives messages their ids; whoever holds it sends.
#[derive(Debug, Default)]
struct Sender {
    id: u16,
}

/// Memory that the server has mapped.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    pub next: u64,
    pub live: BTreeMap<u64, Arc<Mapping>>,
}

/// A part of BAR0 that is reached without messages.
#[derive(Debug)]
pub(crate) struct Window {
    pub offset: u64,
    pub memory: Mapping,
}

/// A device that another process serves.
///
/// When that process dies, or answers nonsense, the device is gone for good: registers read as all ones and
/// waits end, as after a surprise removal.
#[derive(Debug)]
pub struct Client {
    /// Where replies come from; one request at a time.
    replies: Mutex<Connection>,
    /// Taken for the length of a send, also while somebody else waits for a reply.
    sender: Mutex<Sender>,
    /// The socket once more, to send by and to wait for its end.
    socket: QuietFd,
    path: String,
    options: ClientOptions,
    server: Capabilities,
    gone: AtomicBool,
    resettable: bool,
    pub(crate) bar0_bytes: u64,
    pub(crate) windows: Vec<Window>,
    pub(crate) vectors: Vec<Vector>,
    pub(crate) ranges: Mutex<Ranges>,
}

impl Client {
    /// Connects to the device served at `path`: version, regions, interrupts, bus mastering.
    ///
    /// # Errors
    /// [`ClientError`]: nobody serves there, the server refuses or breaks the protocol, or the device has no
    /// registers.
    pub fn connect(path: &Path, options: ClientOptions) -> Result<Self, ClientError> {
        let shown = path.display().to_string();
        Self::from_socket(connect(path, &shown)?, shown, options)
    }

    /// As [`Client::connect`], over a connected stream socket; `name` is for messages.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn from_socket(fd: OwnedFd, name: String, options: ClientOptions) -> Result<Self, ClientError> {
        let shown = name;
        let host = |what, errno| ClientError::Host { path: shown.clone(), what, errno };
        let socket = rustix::io::fcntl_dupfd_cloexec(&fd, 0).map_err(|errno| host("descriptor", errno))?;
        let mut client = Self {
            replies: Mutex::new(Connection::new(fd)),
            sender: Mutex::default(),
            socket: QuietFd::new(socket),
            path: shown,
            options,
            server: Capabilities::OURS,
            gone: AtomicBool::new(false),
            resettable: false,
            bar0_bytes: 0,
            windows: Vec::new(),
            vectors: Vec::new(),
            ranges: Mutex::new(Ranges { next: ADDRESS_MIN, live: BTreeMap::new() }),
        };
        client.server = client.negotiate().map_err(|error| match error.errno() {
            Errno::BUSY => ClientError::Busy { path: client.path.clone() },
            _ => client.failed("agreeing on a version", error),
        })?;
        client.open_regions()?;
        client.open_interrupts()?;
        Ok(client)
    }

    fn failed(&self, doing: &'static str, error: ProtocolError) -> ClientError {
        ClientError::Protocol { path: self.path.clone(), doing, error }
    }

    fn unsuitable(&self, why: &'static str) -> ClientError {
        ClientError::Unsuitable { path: self.path.clone(), why }
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.options.reply_timeout_ms)
    }

    /// The socket, to see by it that the server is gone.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the server died or stopped making sense.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// What the server said that it takes.
    #[must_use]
    pub fn server(&self) -> Capabilities {
        self.server
    }

    /// Sends a command and waits for its reply. Every failure but a refusal ends the device.
    pub(crate) fn request(
        &self,
        command: Command,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, ProtocolError> {
        // Until the reply is there: replies come in the order of their commands.
        let mut replies = self.replies.lock();
        if self.is_gone() {
            return Err(ProtocolError::Closed);
        }
        let answer = self.exchange(&mut replies, command, payload, fds);
        if !matches!(answer, Ok(_) | Err(ProtocolError::Refused { .. })) {
            self.gone.store(true, Ordering::Release);
        }
        answer
    }

    /// Sends a command without waiting: messages arrive in order, as posted writes of a bus do.
    pub(crate) fn post(&self, command: Command, payload: &[&[u8]]) {
        if !self.is_gone() && self.send(command, Header::NO_REPLY, payload, &[], self.deadline()).is_err() {
            self.gone.store(true, Ordering::Release);
        }
    }

    fn send(
        &self,
        command: Command,
        flags: u32,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<Header, ProtocolError> {
        let mut sender = self.sender.lock();
        sender.id = sender.id.wrapping_add(1);
        let bytes = payload.iter().map(|part| part.len()).sum();
        let header = Header { flags, ..Header::command(sender.id, command, bytes) };
        send(self.socket(), &header, payload, fds, deadline)?;
        Ok(header)
    }

    fn negotiate(&self) -> Result<Capabilities, ProtocolError> {
        let json = Capabilities::OURS.to_json();
        let reply = self.request(Command::Version, &[Version::OURS.as_bytes(), &json], &[])?;
        let (version, json) = take::<Version>(&reply.payload, "a version")?;
        if version.major != Version::OURS.major || version.minor > Version::OURS.minor {
            let value = u64::from(version.major) << 16 | u64::from(version.minor);
            return Err(ProtocolError::Value { what: "the version", value, why: "we speak 0.1" });
        }
        Capabilities::from_json(json)
    }

    /// Finds BAR0 and lets the device use the bus.
    fn open_regions(&mut self) -> Result<(), ClientError> {
        let info = self.device_info().map_err(|error| self.failed("asking what it is", error))?;
        if info.flags & DeviceInfo::PCI == 0 || info.regions <= region::CONFIG {
            return Err(self.unsuitable("it is no PCI device"));
        }
        self.resettable = info.flags & DeviceInfo::RESET != 0;
        let asked = self.region_info(region::BAR0);
        let (bar0, fd) = asked.map_err(|error| self.failed("asking for BAR0", error))?;
        if !bar0.read || !bar0.write || !(0x1008..=BAR0_BYTES_MAX).contains(&bar0.bytes) {
            return Err(self.unsuitable("its BAR0 holds no NVMe registers"));
        }
        self.bar0_bytes = bar0.bytes;
        if let Some(fd) = fd {
            self.windows = windows(&bar0, &fd).map_err(|errno| ClientError::Host {
                path: self.path.clone(),
                what: "mapping of BAR0",
                errno,
            })?;
        }
        self.region_write(region::CONFIG, PCI_COMMAND_OFFSET, PCI_COMMAND.as_bytes())
            .map_err(|error| self.failed("enabling bus mastering", error))
    }

    fn device_info(&self) -> Result<DeviceInfo, ProtocolError> {
        let ask = DeviceInfo { argsz: size_of::<DeviceInfo>() as u32, ..DeviceInfo::default() };
        let reply = self.request(Command::DeviceGetInfo, &[ask.as_bytes()], &[])?;
        take(&reply.payload, "a device info").map(|(info, _)| info)
    }

    /// A region, and the descriptor to map it by, if there is one.
    fn region_info(&self, index: u32) -> Result<(RegionInfo, Option<OwnedFd>), ProtocolError> {
        // Room for the capabilities of every region that is believed, so that one question will do.
        let argsz = 4096;
        let ask = RawRegionInfo { argsz, index, ..RawRegionInfo::default() };
        let mut reply = self.request(Command::DeviceGetRegionInfo, &[ask.as_bytes()], &[])?;
        let (raw, info) = RawRegionInfo::parse(&reply.payload)?;
        if raw.index != index {
            let why = "the answer is about another region";
            return Err(ProtocolError::Value { what: "index", value: u64::from(raw.index), why });
        }
        let fd = reply.fds.drain(..).next().filter(|_| !info.areas.is_empty());
        Ok((info, fd))
    }

    /// Gives the server an eventfd for each vector.
    fn open_interrupts(&mut self) -> Result<(), ClientError> {
        let info = self.irq_info(irq::MSIX).map_err(|error| self.failed("asking for MSI-X", error))?;
        let count = info.count.min(u32::from(self.options.vectors_max));
        for _ in 0..count {
            let vector = Vector::new();
            let path = || self.path.clone();
            let what = "eventfd for each interrupt";
            self.vectors.push(vector.map_err(|errno| ClientError::Host { path: path(), what, errno })?);
        }
        self.connect_interrupts().map_err(|error| self.failed("setting up interrupts", error))
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, ProtocolError> {
        let ask = IrqInfo { argsz: size_of::<IrqInfo>() as u32, index, ..IrqInfo::default() };
        let reply = self.request(Command::DeviceGetIrqInfo, &[ask.as_bytes()], &[])?;
        take(&reply.payload, "an interrupt info").map(|(info, _)| info)
    }

    fn connect_interrupts(&self) -> Result<(), ProtocolError> {
        // As many descriptors at a time as the server takes, and as we send.
        let step = (self.server.fds_max as usize).clamp(1, FDS_MAX);
        for (index, part) in self.vectors.chunks(step).enumerate() {
            let set = IrqSet {
                argsz: size_of::<IrqSet>() as u32,
                flags: IrqSet::EVENTFD | IrqSet::TRIGGER,
                index: irq::MSIX,
                start: (index * step) as u32,
                count: part.len() as u32,
            };
            let fds: Vec<_> = part.iter().map(AsFd::as_fd).collect();
            self.request(Command::DeviceSetIrqs, &[set.as_bytes()], &fds)?;
        }
        Ok(())
    }

    /// Reads from a region, at most as much as a register or configuration space has.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ProtocolError> {
        let ask = RegionAccess { offset, region, count: data.len() as u32 };
        let reply = self.request(Command::RegionRead, &[ask.as_bytes()], &[])?;
        let (access, came) = take::<RegionAccess>(&reply.payload, "a region read")?;
        if access != ask || came.len() != data.len() {
            let why = "the answer is not what was asked";
            return Err(ProtocolError::Value { what: "region read", value: offset, why });
        }
        data.copy_from_slice(came);
        Ok(())
    }

    /// Writes to a region and waits until it is done.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), ProtocolError> {
        let ask = RegionAccess { offset, region, count: data.len() as u32 };
        let reply = self.request(Command::RegionWrite, &[ask.as_bytes(), data], &[])?;
        take_all::<RegionAccess>(&reply.payload, "a region write").map(drop)
    }

    /// Resets the device (`VFIO_USER_DEVICE_RESET`).
    ///
    /// # Errors
    /// [`ProtocolError`]; [`ProtocolError::Refused`] where the device has no reset.
    pub fn reset(&self) -> Result<(), ProtocolError> {
        if !self.resettable {
            let errno = Errno::OPNOTSUPP.raw_os_error().unsigned_abs();
            return Err(ProtocolError::Refused { command: Command::DeviceReset as u16, errno });
        }
        self.request(Command::DeviceReset, &[], &[]).map(drop)
    }
}

impl Client {
    fn exchange(
        &self,
        replies: &mut Connection,
        command: Command,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, ProtocolError> {
        let deadline = self.deadline();
        let id = match self.send(command, 0, payload, fds, deadline) {
            Ok(header) => Some(header.id),
            // A server that does not want us may have said why before it closed.
            Err(ProtocolError::Closed) => None,
            Err(error) => return Err(error),
        };
        loop {
            let message = replies.receive(deadline)?;
            let got = message.header;
            let same = got.is_reply() && got.command == command as u16;
            if got.is_command() {
                self.refuse(&got, deadline)?;
            } else if same && got.flags & Header::ERROR != 0 {
                return Err(ProtocolError::Refused { command: got.command, errno: got.errno });
            } else if same && id == Some(got.id) {
                return Ok(message);
            } else {
                let (command, id) = (command as u16, id.unwrap_or(0));
                return Err(ProtocolError::Unexpected { command, id, got: got.command, got_id: got.id });
            }
        }
    }

    /// Answers a command of the server: all our memory can be mapped, so that none has to be copied by
    /// messages (`VFIO_USER_DMA_READ`, `VFIO_USER_DMA_WRITE`).
    fn refuse(&self, asked: &Header, deadline: Deadline) -> Result<(), ProtocolError> {
        if !asked.wants_reply() {
            return Ok(());
        }
        let _turn = self.sender.lock();
        send(self.socket(), &asked.failure(Errno::OPNOTSUPP), &[], &[], deadline)
    }
}

fn connect(path: &Path, shown: &str) -> Result<OwnedFd, ClientError> {
    let fail = |errno| ClientError::Connect {
        path: shown.to_owned(),
        errno,
        hint: match errno {
            Errno::NOENT => "; no such socket (start the server first, as in `nvmed serve-device`)",
            Errno::CONNREFUSED => "; nobody serves there any more (start the server again)",
            Errno::NAMETOOLONG => "; a socket's path has at most 107 bytes",
            Errno::AGAIN => "; too many clients wait for it",
            Errno::ACCESS | Errno::PERM => "; the socket belongs to somebody else",
            _ => "",
        },
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(fail)?;
    let address = SocketAddrUnix::new(path).map_err(fail)?;
    rustix::net::connect(&fd, &address).map_err(fail)?;
    Ok(fd)
}

/// Maps what of BAR0 can be mapped in whole pages and holds doorbells only: properties are read by message, so
/// that a dead server shows.
fn windows(info: &RegionInfo, fd: &OwnedFd) -> Result<Vec<Window>, Errno> {
    let mut windows = Vec::new();
    let end = rustix::fs::fstat(fd)?.st_size.max(0) as u64;
    for area in &info.areas {
        // Beyond the end of the file a touch is a SIGBUS: such an area is reached by messages.
        let inside = info.offset + area.offset + area.bytes <= end;
        if area.offset < u64::from(DOORBELLS)
            || area.bytes == 0
            || !area.bytes.is_multiple_of(4096)
            || !area.offset.is_multiple_of(4096)
            || !inside
        {
            continue;
        }
        let memory =
            Mapping::shared(fd.as_fd(), info.offset + area.offset, area.bytes as usize, Pages::Base)?;
        windows.push(Window { offset: area.offset, memory });
    }
    Ok(windows)
}
