//! Physical Region Pages: where a command's data lies in host memory (Base 2.0, 4.1.1).

use crate::media::PAGE_BYTES;
use nvmed_dma::{DeviceAddress, View};
use nvmed_nvme::{Status, SubmissionEntry};
use std::sync::atomic::Ordering;

/// The pieces of a command's data, one page at most each, in order.
pub(crate) struct PrpWalk<'a> {
    view: &'a View,
    left: u64,
    first: u64,
    second: u64,
    list: Option<u64>,
    index: u64,
}

impl<'a> PrpWalk<'a> {
    /// Starts at the command's data pointer, for `bytes` bytes.
    pub fn new(view: &'a View, entry: &SubmissionEntry, bytes: u64) -> Self {
        Self { view, left: bytes, first: entry.prp1, second: entry.prp2, list: None, index: 0 }
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
        let room = PAGE_BYTES - address % PAGE_BYTES;
        let len = room.min(self.left);
        self.left -= len;
        self.index += 1;
        Some(Ok((DeviceAddress(address), len as usize)))
    }

    #[inline]
    fn address(&mut self) -> Result<u64, Status> {
        match self.index {
            0 if self.first.is_multiple_of(4) => Ok(self.first),
            0 => Err(Status::PRP_OFFSET_INVALID.do_not_retry()),
            1 if self.left <= PAGE_BYTES => aligned(self.second),
            1 => {
                if !self.second.is_multiple_of(8) {
                    return Err(Status::PRP_OFFSET_INVALID.do_not_retry());
                }
                self.list = Some(self.second);
                self.listed()
            }
            _ => self.listed(),
        }
    }

    /// The next entry of the list; the last slot of a full page is the address of the next page.
    fn listed(&mut self) -> Result<u64, Status> {
        let mut at = self.list.ok_or(Status::INTERNAL_ERROR)?;
        if at % PAGE_BYTES == PAGE_BYTES - 8 && self.left > PAGE_BYTES {
            at = aligned(self.load(at)?)?;
        }
        self.list = Some(at.wrapping_add(8));
        aligned(self.load(at)?)
    }

    fn load(&self, at: u64) -> Result<u64, Status> {
        let fault = Status::DATA_TRANSFER_ERROR;
        let (memory, offset) = self.view.resolve(DeviceAddress(at), 8).map_err(|_| fault)?;
        Ok(u64::from_le(memory.u64(offset).load(Ordering::Relaxed)))
    }
}

fn aligned(address: u64) -> Result<u64, Status> {
    if address.is_multiple_of(PAGE_BYTES) {
        Ok(address)
    } else {
        Err(Status::PRP_OFFSET_INVALID.do_not_retry())
    }
}
