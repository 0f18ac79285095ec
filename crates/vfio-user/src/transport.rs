//! The client as a [`Transport`]: what a host driver sees of the device.

use crate::client::{Client, DOORBELLS, Ranges, Window};
use crate::error::ProtocolError;
use crate::message::Command;
use crate::payload::{DmaMap, DmaUnmap, RegionAccess, region};
use nvmed_dma::{DeviceAddress, MapError, Transport, Waited};
use nvmed_sys::sync::{Arc, MutexGuard};
use nvmed_sys::{Mapping, Pages};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Device addresses are handed out in steps of this, so that huge pages stay huge for the server's tables.
const STEP: u64 = 2 << 20;
/// One past the last device address: what the narrowest common IOMMU has.
const ADDRESS_END: u64 = 1 << 48;

impl Client {
    /// The window that holds `bytes` at an offset of BAR0.
    fn window(&self, offset: u32, bytes: u64) -> Option<(&Window, usize)> {
        let offset = u64::from(offset);
        let inside = |window: &&Window| {
            offset >= window.offset && offset + bytes <= window.offset + window.memory.len() as u64
        };
        let window = self.windows.iter().find(inside)?;
        Some((window, (offset - window.offset) as usize))
    }

    fn bar0_read(&self, offset: u32, data: &mut [u8]) {
        if u64::from(offset) + data.len() as u64 > self.bar0_bytes {
            return data.fill(0xff);
        }
        if self.region_read(region::BAR0, u64::from(offset), data).is_err() {
            data.fill(0xff);
        }
    }

    /// A property is written before the call returns; a doorbell is on its way, before everything that is
    /// sent later.
    fn bar0_write(&self, offset: u32, data: &[u8]) {
        if u64::from(offset) + data.len() as u64 > self.bar0_bytes {
            return;
        }
        if offset >= DOORBELLS {
            let access =
                RegionAccess { offset: offset.into(), region: region::BAR0, count: data.len() as u32 };
            self.post(Command::RegionWrite, &[access.as_bytes(), data]);
        } else {
            // A refused write of a register is lost, as on a bus; a dead server shows by the next read.
            let _ = self.region_write(region::BAR0, u64::from(offset), data);
        }
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock()
    }

    fn map_range(&self, memory: &Mapping, address: u64) -> Result<(), ProtocolError> {
        let Some((fd, offset)) = memory.backing() else {
            return Err(ProtocolError::Socket { errno: Errno::NOTSUP });
        };
        let map = DmaMap {
            argsz: size_of::<DmaMap>() as u32,
            flags: DmaMap::READ | DmaMap::WRITE,
            offset,
            address,
            bytes: memory.len() as u64,
        };
        self.request(Command::DmaMap, &[map.as_bytes()], &[fd]).map(drop)
    }
}

impl Transport for Client {
    fn read32(&self, offset: u32) -> u32 {
        if self.is_gone() {
            return u32::MAX;
        }
        let mut data = [0; 4];
        self.bar0_read(offset, &mut data);
        u32::from_ne_bytes(data)
    }

    fn write32(&self, offset: u32, value: u32) {
        if let Some((window, at)) = self.window(offset, 4).filter(|(_, at)| at.is_multiple_of(4)) {
            // Release; the server reads the doorbell with acquire.
            return window.memory.u32(at).store(value, Ordering::Release);
        }
        // The system call that sends it orders memory as well; the fence says so to the compiler.
        fence(Ordering::Release);
        self.bar0_write(offset, &value.to_ne_bytes());
    }

    fn read64(&self, offset: u32) -> u64 {
        let mut data = [0; 8];
        self.bar0_read(offset, &mut data);
        u64::from_ne_bytes(data)
    }

    fn write64(&self, offset: u32, value: u64) {
        self.bar0_write(offset, &value.to_ne_bytes());
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        let len = memory.len();
        let refused = |errno| MapError::Refused { len, errno };
        // Private memory becomes shareable where it lies; a file's mapping that kept no descriptor cannot.
        memory.share().map_err(|errno| MapError::NotShareable { len, errno })?;
        let mut ranges = self.ranges();
        let limit = self.server().dma_maps_max as usize;
        if ranges.live.len() >= limit {
            return Err(MapError::Full { limit });
        }
        let address = ranges.next;
        let end = address.checked_add(len as u64).filter(|&end| end <= ADDRESS_END);
        let end = end.ok_or(refused(Errno::NOMEM))?.next_multiple_of(STEP);
        self.map_range(&memory, address).map_err(|error| refused(error.errno()))?;
        ranges.next = end;
        ranges.live.insert(address, memory);
        Ok(DeviceAddress(address))
    }

    fn memory(&self, bytes: usize, pages: Pages) -> Result<Mapping, Errno> {
        Mapping::shareable(bytes, pages)
    }

    fn unmap(&self, address: DeviceAddress) {
        let mut ranges = self.ranges();
        let Some(memory) = ranges.live.remove(&address.0) else { return };
        let unmap = DmaUnmap {
            argsz: size_of::<DmaUnmap>() as u32,
            flags: 0,
            address: address.0,
            bytes: memory.len() as u64,
        };
        // A server that refuses has not mapped it, or is dead.
        let _ = self.request(Command::DmaUnmap, &[unmap.as_bytes()], &[]);
    }

    fn vectors(&self) -> u16 {
        (self.vectors.len() as u16).max(1)
    }

    fn events(&self, vector: u16) -> u32 {
        self.vectors.get(usize::from(vector)).map_or(0, |vector| vector.events())
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let timeout = Duration::from_micros(u64::from(timeout_us));
        let event = match self.vectors.get(usize::from(vector)) {
            _ if self.is_gone() => true,
            Some(vector) => vector.wait(self.socket(), seen, timeout),
            None => self.wait_for_end(timeout),
        };
        if event { Waited::Event } else { Waited::Timeout }
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.vectors.get(usize::from(vector)).map(AsFd::as_fd)
    }
}

impl Client {
    /// Without interrupts, only the end of the server ends a wait early.
    fn wait_for_end(&self, timeout: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags};
        let mut polled = [PollFd::from_borrowed_fd(self.socket(), PollFlags::RDHUP)];
        // A wait cut short by a signal only makes the driver look once more.
        matches!(rustix::event::poll(&mut polled, Some(&crate::socket::timespec(timeout))), Ok(1..))
    }
}
