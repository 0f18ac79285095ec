//! Physical Region Pages: where a command's data lies in host memory (Base 2.0, 4.1.1).

use nvmed_dma::{DeviceAddress, View};
use nvmed_image::PAGE_BYTES;
use nvmed_nvme::{Status, SubmissionEntry};
use nvmed_sys::Mapping;
use std::sync::atomic::Ordering;

/// Bytes of a list's entry.
const ENTRY_BYTES: u64 = 8;

/// The pieces of a command's data, one page at most each, in order.
pub(crate) struct PrpWalk<'a> {
    view: &'a View,
    left: u64,
    first: DeviceAddress,
    second: DeviceAddress,
    list: Option<List<'a>>,
    index: u64,
}

/// What is left of one page of a list.
struct List<'a> {
    memory: &'a Mapping,
    offset: usize,
    entries: usize,
}

impl<'a> PrpWalk<'a> {
    /// Starts at the command's data pointer, for `bytes` bytes.
    pub fn new(view: &'a View, entry: &SubmissionEntry, bytes: u64) -> Self {
        Self {
            view,
            left: bytes,
            first: DeviceAddress(entry.prp1),
            second: DeviceAddress(entry.prp2),
            list: None,
            index: 0,
        }
    }

    /// The next piece: device address and length.
    #[inline]
    pub fn next(&mut self) -> Option<Result<(DeviceAddress, usize), Status>> {
        if self.left == 0 {
            return None;
        }
        let address = match self.address() {
            Ok(address) => address,
            Err(status) => {
                self.left = 0;
                return Some(Err(status));
            }
        };
        let room = PAGE_BYTES - address.0 % PAGE_BYTES;
        let len = room.min(self.left);
        self.left -= len;
        self.index += 1;
        Some(Ok((address, len as usize)))
    }

    #[inline]
    fn address(&mut self) -> Result<DeviceAddress, Status> {
        match self.index {
            0 if self.first.0.is_multiple_of(4) => Ok(self.first),
            0 => Err(Status::PRP_OFFSET_INVALID.do_not_retry()),
            1 if self.left <= PAGE_BYTES => aligned(self.second),
            1 => {
                if !self.second.0.is_multiple_of(8) {
                    return Err(Status::PRP_OFFSET_INVALID.do_not_retry());
                }
                self.list = Some(self.page(self.second)?);
                self.listed()
            }
            _ => self.listed(),
        }
    }

    /// The next entry of the list; the last entry of a full page is the address of the next page.
    #[inline]
    fn listed(&mut self) -> Result<DeviceAddress, Status> {
        if self.list.as_ref().is_some_and(|list| list.entries == 1) && self.left > PAGE_BYTES {
            let next = aligned(self.load()?)?;
            self.list = Some(self.page(next)?);
        }
        aligned(self.load()?)
    }

    /// The entries from address `at` to the end of its page, as far as they are needed.
    fn page(&self, at: DeviceAddress) -> Result<List<'a>, Status> {
        let room = (PAGE_BYTES - at.0 % PAGE_BYTES) / ENTRY_BYTES;
        let entries = room.min(self.left.div_ceil(PAGE_BYTES)) as usize;
        let bytes = entries * ENTRY_BYTES as usize;
        let found = self.view.resolve(at, bytes);
        let brought = found.and_then(|(memory, offset)| {
            self.view.fetch(memory, offset, bytes)?;
            Ok((memory, offset))
        });
        let (memory, offset) = brought.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        Ok(List { memory, offset, entries })
    }

    #[inline]
    fn load(&mut self) -> Result<DeviceAddress, Status> {
        let list = self.list.as_mut().filter(|list| list.entries > 0).ok_or(Status::INTERNAL_ERROR)?;
        let entry = u64::from_le(list.memory.u64(list.offset).load(Ordering::Relaxed));
        (list.offset, list.entries) = (list.offset + ENTRY_BYTES as usize, list.entries - 1);
        Ok(DeviceAddress(entry))
    }
}

fn aligned(address: DeviceAddress) -> Result<DeviceAddress, Status> {
    if address.0.is_multiple_of(PAGE_BYTES) {
        Ok(address)
    } else {
        Err(Status::PRP_OFFSET_INVALID.do_not_retry())
    }
}
