//! The controller for others: a PCI function behind the vfio-user protocol.

use crate::config::Clock;
use crate::controller::Controller;
use crate::pci::{BAR4_BYTES, CONFIG_BYTES, PciSpace};
use crate::transport::InProcess;
use nvmed_dma::{DeviceAddress, Distant, MapError, Transport};
use nvmed_nvme::register;
use nvmed_sys::Mapping;
use nvmed_vfio_user::{Device, DmaRange, RegionInfo, irq, region};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// A controller as a PCI function, to be given to a [`nvmed_vfio_user::Server`]: registers in BAR0, the MSI-X
/// table in BAR4, one MSI-X vector for each vector of the controller.
///
/// Memory that a client maps and interrupts that it connects reach the controller directly. Bus mastering is
/// not looked at: a client that maps memory wants it reached.
pub struct PciFunction {
    attached: InProcess,
    space: PciSpace,
}

impl PciFunction {
    /// Attaches the controller; starts its thread if its clock has one.
    ///
    /// # Errors
    /// The host has no room for a thread.
    pub fn new(controller: Arc<Controller>) -> Result<Self, std::io::Error> {
        let config = &controller.config;
        let space = PciSpace::new(config.queues_max, config.doorbell_stride, controller.vectors());
        Ok(Self { attached: InProcess::new(controller)?, space })
    }

    /// The controller.
    #[must_use]
    pub fn controller(&self) -> &Arc<Controller> {
        self.attached.controller()
    }

    /// Copies the bytes of properties from `offset`; a property is read as a whole, and reading changes none.
    fn read_bar0(&self, offset: u64, data: &mut [u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let skip = (at % 4) as usize;
            let (part, next) = rest.split_at_mut(rest.len().min(4 - skip));
            // Beyond 4 GiB there are no properties, whatever a client asks for.
            let word = u32::try_from(at).map_or(0, |at| self.attached.read32(at & !3)).to_le_bytes();
            part.copy_from_slice(&word[skip..skip + part.len()]);
            at += part.len() as u64;
            rest = next;
        }
    }

    /// Writes whole 32-bit properties or doorbells (NVMe over PCIe Transport 1.0, 3.1: other widths are not
    /// allowed, and what they do is not defined).
    fn write_bar0(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if !offset.is_multiple_of(4) || !data.len().is_multiple_of(4) {
            return Err(Errno::INVAL);
        }
        for (at, word) in (offset..).step_by(4).zip(data.chunks_exact(4)) {
            let value = word.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
            self.attached.write32(u32::try_from(at).map_err(|_| Errno::INVAL)?, value);
        }
        Ok(())
    }
}

fn errno(error: MapError) -> Errno {
    match error {
        MapError::Overlap { .. } => Errno::EXIST,
        MapError::Full { .. } => Errno::NOSPC,
        _ => Errno::INVAL,
    }
}

impl Device for PciFunction {
    fn region(&self, index: u32) -> RegionInfo {
        let bytes = match index {
            region::BAR0 => self.space.bar0_bytes,
            region::BAR4 => BAR4_BYTES,
            region::CONFIG => CONFIG_BYTES,
            _ => 0,
        };
        RegionInfo { bytes, read: bytes > 0, write: bytes > 0, ..RegionInfo::default() }
    }

    fn interrupts(&self, index: u32) -> u32 {
        if index == irq::MSIX { self.controller().vectors().into() } else { 0 }
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match region {
            region::BAR0 => self.read_bar0(offset, data),
            region::BAR4 => self.space.read_bar4(offset, data),
            region::CONFIG => self.space.read_config(offset, data),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match region {
            region::BAR0 => self.write_bar0(offset, data)?,
            region::BAR4 => self.space.write_bar4(offset, data),
            region::CONFIG => {
                if self.space.write_config(offset, data) {
                    self.reset();
                }
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn map(&mut self, range: DmaRange, memory: Arc<Mapping>) -> Result<(), Errno> {
        self.controller().map_at(DeviceAddress(range.address), memory).map_err(errno)
    }

    /// With a thread of its own the controller would ask the client while the server waits for the client's next
    /// message.
    fn map_distant(
        &mut self,
        range: DmaRange,
        copy: Arc<Mapping>,
        distant: Arc<dyn Distant>,
    ) -> Result<(), Errno> {
        if self.controller().config.clock == Clock::Threaded {
            return Err(Errno::OPNOTSUPP);
        }
        self.controller().map_distant(DeviceAddress(range.address), copy, distant).map_err(errno)
    }

    fn unmap(&mut self, range: DmaRange) {
        let gone = self.controller().unmap_range(DeviceAddress(range.address), range.bytes);
        debug_assert_eq!(gone, Ok(range.bytes), "the server unmaps what it mapped");
    }

    fn connect(&mut self, index: u32, vector: u32, fd: Option<OwnedFd>) -> Result<(), Errno> {
        let vector = u16::try_from(vector).map_err(|_| Errno::INVAL)?;
        let known = index == irq::MSIX && self.controller().connect_interrupt(vector, fd);
        if known { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn trigger(&mut self, _index: u32, _vector: u32) -> Result<(), Errno> {
        // Only the controller raises its interrupts.
        Err(Errno::OPNOTSUPP)
    }

    fn reset(&mut self) {
        self.space.reset();
        self.attached.write32(register::CC, 0);
        self.attached.write32(register::INTMC, u32::MAX);
    }

    /// With an inline clock nobody else completes what a latency or a fault holds back.
    fn advance(&mut self) -> Option<Duration> {
        if self.controller().config.clock == Clock::Threaded {
            return None;
        }
        // Time is asked for its effect: a look completes what is due.
        let _ = self.attached.now_ns();
        Some(self.controller().until_due()).filter(|&due| due != Duration::MAX)
    }
}
