//! One client of a server: what it may ask, and what is answered.

use crate::capability::Capabilities;
use crate::error::ProtocolError;
use crate::link::Link;
use crate::message::{Command, DATA_BYTES_MAX, Header, Message};
use crate::payload::{DeviceInfo, DmaMap, DmaRange, DmaUnmap, IrqInfo, IrqSet, RawRegionInfo, RegionAccess};
use crate::payload::{RegionInfo, Version, irq, region, take, take_all};
use nvmed_dma::Distant;
use nvmed_sys::{Mapping, Pages};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, SealFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// A PCI device that a [`crate::Server`] serves. Regions and interrupts have the indices of linux/vfio.h.
///
/// Every number in a call was sent by the client: only that an access lies inside its region, and an interrupt
/// inside its type's count, is certain.
pub trait Device {
    /// Size and access of a region.
    fn region(&self, index: u32) -> RegionInfo;
    /// The descriptor by which [`RegionInfo::areas`] of a region are mapped.
    fn region_fd(&self, index: u32) -> Option<BorrowedFd<'_>> {
        let _ = index;
        None
    }
    /// Interrupts of a type.
    fn interrupts(&self, index: u32) -> u32;
    /// Reads a region.
    ///
    /// # Errors
    /// An errno for the client.
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;
    /// Writes a region.
    ///
    /// # Errors
    /// An errno for the client.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Shows memory to the device; the range overlaps no other.
    ///
    /// # Errors
    /// An errno for the client.
    fn map(&mut self, range: DmaRange, memory: Arc<Mapping>) -> Result<(), Errno>;
    /// Shows memory to the device that cannot be mapped: the device works on `copy`, which it has brought before each
    /// look and sent after each change, in calls of this trait only.
    ///
    /// # Errors
    /// An errno for the client; `EOPNOTSUPP` for a device that cannot do that.
    fn map_distant(
        &mut self,
        range: DmaRange,
        copy: Arc<Mapping>,
        distant: Arc<dyn Distant>,
    ) -> Result<(), Errno> {
        let _ = (range, copy, distant);
        Err(Errno::OPNOTSUPP)
    }
    /// Takes back exactly what was mapped. The device has let go of it when this returns.
    fn unmap(&mut self, range: DmaRange);
    /// Gives an interrupt its eventfd, or takes it away.
    ///
    /// # Errors
    /// An errno for the client.
    fn connect(&mut self, index: u32, vector: u32, fd: Option<OwnedFd>) -> Result<(), Errno>;
    /// Raises an interrupt because the client asked for it.
    ///
    /// # Errors
    /// An errno for the client.
    fn trigger(&mut self, index: u32, vector: u32) -> Result<(), Errno>;
    /// Resets the device; mapped memory and eventfds stay.
    fn reset(&mut self);
    /// Does what is due without a message, and says after how long something more will be. Called before the
    /// server sleeps.
    fn advance(&mut self) -> Option<Duration> {
        None
    }
}

/// What goes back.
enum Answer {
    Empty,
    Bytes(Vec<u8>),
    /// With the descriptor of a region.
    Region(Vec<u8>, u32),
}

/// A client and what it has given to the device.
pub(crate) struct Session {
    link: Arc<Link>,
    agreed: bool,
    ranges: BTreeMap<u64, Shown>,
}

/// Memory of the client.
struct Shown {
    range: DmaRange,
    /// The device's copy of it, where the client gave no descriptor.
    copy: Option<Arc<Mapping>>,
}

impl Session {
    /// # Errors
    /// The host has no descriptor left.
    pub fn new(client: OwnedFd) -> Result<Self, Errno> {
        Ok(Self { link: Arc::new(Link::new(client)?), agreed: false, ranges: BTreeMap::new() })
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket()
    }

    /// Whether there is something to do that no poll of the socket tells of.
    pub fn is_pending(&self) -> bool {
        self.link.has_command()
    }

    /// Gives back the memory of copies: between two messages the device needs none of them.
    fn release_copies(&self) {
        if self.link.take_copied() {
            for copy in self.ranges.values().filter_map(|shown| shown.copy.as_deref()) {
                // What is not given back is only memory.
                let _ = copy.release(0, copy.len());
            }
        }
    }

    /// Answers one message, if one is there; whether one was.
    ///
    /// # Errors
    /// The session is over: the client closed, reads nothing, or sent a message whose end is not known.
    pub fn step(&mut self, device: &mut dyn Device) -> Result<bool, ProtocolError> {
        self.release_copies();
        let message = match self.link.try_receive() {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(false),
            Err((error, due)) => {
                if let Some(header) = due {
                    // The session ends whether or not the client hears why.
                    let _ = self.reply(&header, Err(error.errno()), device);
                }
                return Err(error);
            }
        };
        let header = message.header;
        let answer = self.handle(device, message).map_err(|error| error.errno());
        self.reply(&header, answer, device)?;
        Ok(true)
    }

    fn reply(
        &self,
        asked: &Header,
        answer: Result<Answer, Errno>,
        device: &dyn Device,
    ) -> Result<(), ProtocolError> {
        if !asked.wants_reply() {
            return Ok(());
        }
        match answer {
            Ok(Answer::Empty) => self.link.reply(asked.reply(0), &[], &[]),
            Ok(Answer::Bytes(bytes)) => self.link.reply(asked.reply(bytes.len()), &bytes, &[]),
            Ok(Answer::Region(bytes, index)) => {
                let fds: Vec<_> = device.region_fd(index).into_iter().collect();
                self.link.reply(asked.reply(bytes.len()), &bytes, &fds)
            }
            Err(errno) => self.link.reply(asked.failure(errno), &[], &[]),
        }
    }

    fn handle(&mut self, device: &mut dyn Device, message: Message) -> Result<Answer, ProtocolError> {
        let Message { header, payload, fds } = message;
        let refused = |errno: Errno| ProtocolError::Socket { errno };
        let command = Command::from_number(header.command).ok_or(refused(Errno::NOSYS))?;
        if (command == Command::Version) == self.agreed {
            let why = "the first message agrees on a version, and only the first";
            return Err(ProtocolError::Value { what: "command", value: header.command.into(), why });
        }
        // SPDK sends the descriptor of what it unmaps along; it is closed.
        let takes_fds = matches!(command, Command::DmaMap | Command::DmaUnmap | Command::DeviceSetIrqs);
        if !fds.is_empty() && !takes_fds {
            let why = "descriptors that this command has no use for";
            return Err(ProtocolError::Value { what: "command", value: header.command.into(), why });
        }
        match command {
            Command::Version => self.version(&payload),
            Command::DmaMap => self.map(device, &payload, fds),
            Command::DmaUnmap => self.unmap(device, &payload),
            Command::DeviceGetInfo => device_info(&payload),
            Command::DeviceGetRegionInfo => region_info(device, &payload),
            Command::DeviceGetIrqInfo => irq_info(device, &payload),
            Command::DeviceSetIrqs => set_irqs(device, &payload, fds),
            Command::RegionRead => region_read(device, &payload),
            Command::RegionWrite => region_write(device, &payload),
            Command::DeviceReset if payload.is_empty() => {
                device.reset();
                Ok(Answer::Empty)
            }
            _ => Err(refused(Errno::OPNOTSUPP)),
        }
    }

    fn version(&mut self, payload: &[u8]) -> Result<Answer, ProtocolError> {
        let (version, json) = take::<Version>(payload, "a version")?;
        if version.major != Version::OURS.major {
            let why = "this server speaks 0.1";
            return Err(ProtocolError::Value { what: "major version", value: version.major.into(), why });
        }
        // We send the client at most one descriptor, and as many bytes as it asks for.
        self.link.limit(Capabilities::from_json(json)?.data_bytes_max);
        self.agreed = true;
        let agreed = Version { minor: version.minor.min(Version::OURS.minor), ..Version::OURS };
        let mut reply = agreed.as_bytes().to_vec();
        reply.extend(Capabilities::OURS.to_json());
        Ok(Answer::Bytes(reply))
    }

    fn map(
        &mut self,
        device: &mut dyn Device,
        payload: &[u8],
        mut fds: Vec<OwnedFd>,
    ) -> Result<Answer, ProtocolError> {
        let refused = |errno: Errno| ProtocolError::Socket { errno };
        let map = take_all::<DmaMap>(payload, "a DMA mapping")?;
        let range = map.range()?;
        let fd = fds.pop();
        if !fds.is_empty() {
            let why = "more than one descriptor";
            return Err(ProtocolError::Value { what: "DMA mapping", value: range.address, why });
        }
        let before = self.ranges.range(..range.address + range.bytes).next_back();
        if before.is_some_and(|(_, Shown { range: other, .. })| other.address + other.bytes > range.address) {
            return Err(refused(Errno::EXIST));
        }
        if self.ranges.len() >= Capabilities::OURS.dma_maps_max as usize {
            return Err(refused(Errno::NOSPC));
        }
        let copy = self.show(device, range, fd.map(|fd| (fd, map.offset))).map_err(refused)?;
        self.ranges.insert(range.address, Shown { range, copy });
        Ok(Answer::Empty)
    }

    /// Shows memory to the device; answers the device's copy of it, where there is no file to map.
    fn show(
        &self,
        device: &mut dyn Device,
        range: DmaRange,
        file: Option<(OwnedFd, u64)>,
    ) -> Result<Option<Arc<Mapping>>, Errno> {
        // A range that the device may not write is memory of the client that no device is meant to reach,
        // such as a guest's ROM: it is noted, and not shown.
        if !range.read || !range.write {
            return Ok(None);
        }
        if let Some((fd, offset)) = file {
            let memory = open_memory(fd, offset, range.bytes)?;
            return device.map(range, Arc::new(memory)).map(|()| None);
        }
        let copy = Arc::new(Mapping::anonymous(range.bytes as usize, Pages::Base)?);
        device.map_distant(range, Arc::clone(&copy), Arc::clone(&self.link) as Arc<dyn Distant>)?;
        Ok(Some(copy))
    }

    fn unmap(&mut self, device: &mut dyn Device, payload: &[u8]) -> Result<Answer, ProtocolError> {
        let unmap = take_all::<DmaUnmap>(payload, "a DMA unmapping")?;
        unmap.check()?;
        if unmap.flags == DmaUnmap::ALL {
            self.unmap_all(device);
            return Ok(Answer::Bytes(payload.to_vec()));
        }
        match self.ranges.get(&unmap.address) {
            Some(shown) if shown.range.bytes == unmap.bytes => {}
            _ => return Err(ProtocolError::Socket { errno: Errno::NOENT }),
        }
        self.ranges.remove(&unmap.address).into_iter().for_each(|shown| take_back(device, shown.range));
        Ok(Answer::Bytes(payload.to_vec()))
    }

    fn unmap_all(&mut self, device: &mut dyn Device) {
        std::mem::take(&mut self.ranges).into_values().for_each(|shown| take_back(device, shown.range));
    }

    /// The client is gone: the device forgets all that was the client's.
    pub fn end(mut self, device: &mut dyn Device) {
        // First, so that nothing reaches the memory while it is taken back.
        device.reset();
        self.unmap_all(device);
        for index in 0..irq::COUNT {
            let count = device.interrupts(index);
            disconnect(device, index, 0, count);
        }
    }
}

fn take_back(device: &mut dyn Device, range: DmaRange) {
    if range.read && range.write {
        device.unmap(range);
    }
}

/// Maps memory of the client. The file must be as long as it says; where it can be sealed, it stays so.
fn open_memory(fd: OwnedFd, offset: u64, bytes: u64) -> Result<Mapping, Errno> {
    let stat = rustix::fs::fstat(&fd)?;
    let long_enough = u64::try_from(stat.st_size).is_ok_and(|size| size >= offset + bytes);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !long_enough {
        return Err(Errno::INVAL);
    }
    // Where it cannot be sealed, it may be cut short, which the mapping outlives in a process that asked for it.
    let _ = rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK);
    Mapping::foreign(fd.as_fd(), offset, bytes as usize)
}

fn device_info(payload: &[u8]) -> Result<Answer, ProtocolError> {
    take_all::<DeviceInfo>(payload, "a device info")?.check_room()?;
    let info = DeviceInfo {
        argsz: size_of::<DeviceInfo>() as u32,
        flags: DeviceInfo::PCI | DeviceInfo::RESET,
        regions: region::COUNT,
        irqs: irq::COUNT,
    };
    Ok(Answer::Bytes(info.as_bytes().to_vec()))
}

fn region_info(device: &dyn Device, payload: &[u8]) -> Result<Answer, ProtocolError> {
    let (asked, _) = take::<RawRegionInfo>(payload, "a region info")?;
    asked.check_room()?;
    if asked.index >= region::COUNT {
        return Err(ProtocolError::Value {
            what: "region",
            value: asked.index.into(),
            why: "no such region",
        });
    }
    let info = device.region(asked.index);
    Ok(Answer::Region(info.reply(asked.index, asked.argsz), asked.index))
}

fn irq_info(device: &dyn Device, payload: &[u8]) -> Result<Answer, ProtocolError> {
    let asked = take_all::<IrqInfo>(payload, "an interrupt info")?;
    asked.check_room()?;
    if asked.index >= irq::COUNT {
        return Err(ProtocolError::Value {
            what: "irq",
            value: asked.index.into(),
            why: "no such interrupt",
        });
    }
    let count = device.interrupts(asked.index);
    let (argsz, flags) = (size_of::<IrqInfo>() as u32, if count > 0 { IrqInfo::EVENTFD } else { 0 });
    Ok(Answer::Bytes(IrqInfo { argsz, flags, index: asked.index, count }.as_bytes().to_vec()))
}

fn set_irqs(device: &mut dyn Device, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, ProtocolError> {
    let refused = |errno: Errno| ProtocolError::Socket { errno };
    let (set, booleans) = take::<IrqSet>(payload, "an interrupt setting")?;
    if set.index >= irq::COUNT {
        return Err(ProtocolError::Value { what: "irq", value: set.index.into(), why: "no such interrupt" });
    }
    let available = device.interrupts(set.index);
    set.check(available, booleans.len(), fds.len())?;
    if set.flags & IrqSet::TRIGGER == 0 {
        // MSI-X is masked in its table, which the client keeps for itself.
        return Err(refused(Errno::OPNOTSUPP));
    }
    if set.flags & IrqSet::EVENTFD != 0 && !fds.is_empty() {
        for (vector, fd) in (set.start..).zip(fds) {
            let fd = interrupt(fd).map_err(refused)?;
            device.connect(set.index, vector, Some(fd)).map_err(refused)?;
        }
    } else if set.flags & IrqSet::EVENTFD != 0 {
        disconnect(device, set.index, set.start, set.count);
    } else if set.count == 0 {
        disconnect(device, set.index, 0, available);
    } else {
        let wanted = |at: usize| booleans.get(at).is_none_or(|&wanted| wanted != 0);
        for at in (0..set.count as usize).filter(|&at| wanted(at)) {
            device.trigger(set.index, set.start + at as u32).map_err(refused)?;
        }
    }
    Ok(Answer::Empty)
}

/// A descriptor that can be written at any time without waiting: an eventfd, made non-blocking. Its owner sees
/// that too, as the flag belongs to what both descriptors name.
fn interrupt(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
    if name.to_bytes() != b"anon_inode:[eventfd]" {
        return Err(Errno::INVAL);
    }
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(fd)
}

fn disconnect(device: &mut dyn Device, index: u32, start: u32, count: u32) {
    for vector in start..start + count {
        // Nothing is given, so that nothing can be refused.
        let _ = device.connect(index, vector, None);
    }
}

/// An access that lies inside its region.
fn access<'a>(
    device: &dyn Device,
    payload: &'a [u8],
) -> Result<(RegionAccess, RegionInfo, &'a [u8]), ProtocolError> {
    let (access, data) = take::<RegionAccess>(payload, "a region access")?;
    let value = |what, value, why| Err(ProtocolError::Value { what, value, why });
    if access.region >= region::COUNT {
        return value("region", access.region.into(), "no such region");
    }
    let info = device.region(access.region);
    let end = access.offset.checked_add(u64::from(access.count));
    if access.count == 0 || end.is_none_or(|end| end > info.bytes) {
        return value("offset", access.offset, "the access leaves the region");
    }
    if access.count as usize > DATA_BYTES_MAX {
        return value("count", access.count.into(), "more than max_data_xfer_size");
    }
    Ok((access, info, data))
}

fn region_read(device: &mut dyn Device, payload: &[u8]) -> Result<Answer, ProtocolError> {
    let (access, info, rest) = access(device, payload)?;
    if !info.read || !rest.is_empty() {
        let why = "a region that cannot be read, or bytes too many";
        return Err(ProtocolError::Value { what: "region", value: access.region.into(), why });
    }
    let head = size_of::<RegionAccess>();
    let mut reply = vec![0; head + access.count as usize];
    reply[..head].copy_from_slice(access.as_bytes());
    let read = device.read(access.region, access.offset, &mut reply[head..]);
    read.map_err(|errno| ProtocolError::Socket { errno })?;
    Ok(Answer::Bytes(reply))
}

fn region_write(device: &mut dyn Device, payload: &[u8]) -> Result<Answer, ProtocolError> {
    let (access, info, data) = access(device, payload)?;
    if !info.write || data.len() != access.count as usize {
        let why = "a region that cannot be written, or not as many bytes as it says";
        return Err(ProtocolError::Value { what: "region", value: access.region.into(), why });
    }
    let written = device.write(access.region, access.offset, data);
    written.map_err(|errno| ProtocolError::Socket { errno })?;
    Ok(Answer::Bytes(access.as_bytes().to_vec()))
}
