//! A PCI function as a host driver's transport.

use crate::address::Address;
use crate::error::VfioError;
use crate::group::{self, Attachment};
use crate::host::Host;
use crate::interrupt::Vector;
use crate::ioctl;
use crate::iova::{Aperture, Iovas, PAGE};
use crate::watch::{Watch, Watched};
use nvmed_dma::{DeviceAddress, MapError, Transport, Waited};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_sys::{Mapping, Registers};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

/// The PCI command register (PCI Local Bus 3.0, 6.2.2) and its bits memory space and bus master.
const PCI_COMMAND: u64 = 4;
const PCI_MEMORY: u16 = 1 << 1;
const PCI_BUS_MASTER: u16 = 1 << 2;
/// Registers that NVMe has at least: the properties, and the admin queue's doorbells (NVMe over PCIe 1.0, 3.1).
const REGISTERS_MIN: u64 = 0x1000 + 8;
/// Registers mapped at most: the properties, doorbells of 64 Ki queues at the usual stride, with room for more.
const REGISTERS_MAX: u64 = 16 << 20;
/// Vectors asked for beside the admin queue's, where the machine has more processors.
const VECTORS_IO_MAX: usize = ioctl::VECTORS_MAX - 1;
/// The longest sleep between looks without interrupts: about what a flash read takes.
const NAP_US: u32 = 100;
/// What the registers of a device that is gone read as.
const ABSENT: u32 = u32::MAX;

/// How a function is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionOptions {
    /// Have completions raise MSI-X interrupts, a vector for the admin queue and one a processor; without, every
    /// wait is a sleep between looks.
    pub interrupts: bool,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self { interrupts: true }
    }
}

/// What is mapped for the device.
struct Mapped {
    iovas: Iovas,
    /// By address. The memory cannot go away while the device reaches it.
    memory: BTreeMap<u64, Arc<Mapping>>,
}

/// An NVMe controller on the PCI bus, in this process's hands.
///
/// Dropping it hands the function back to vfio-pci, which resets it and ends all its DMA.
pub struct Function {
    // Fields are dropped in this order: the thread, the registers, then the device, then its memory.
    _watch: Watch,
    watched: Arc<Watched>,
    registers: Registers,
    attachment: Attachment,
    mapped: Mutex<Mapped>,
    address: Address,
    mappings_max: usize,
    can_reset: bool,
}

impl Function {
    /// Takes the function at `address`, which vfio-pci must have: resets it, lets it do DMA to what will be
    /// mapped, and connects its interrupts.
    ///
    /// # Errors
    /// [`VfioError`] says what is missing.
    pub fn open(host: &Host, address: Address, options: FunctionOptions) -> Result<Self, VfioError> {
        let attachment = group::attach(host, address)?;
        let device = attachment.device.as_fd();
        let info = ioctl::device_info(device).map_err(|errno| failed("VFIO_DEVICE_GET_INFO", errno))?;
        if info.flags & ioctl::DEVICE_PCI == 0 {
            return Err(VfioError::Unsuitable { address, reason: "VFIO calls it no PCI device".to_owned() });
        }
        let can_reset = info.flags & ioctl::DEVICE_RESET != 0;
        if can_reset {
            ioctl::reset(device).map_err(|errno| failed("VFIO_DEVICE_RESET", errno))?;
        }
        let registers = map_registers(&attachment, address)?;
        enable_dma(&attachment)?;
        let aperture = aperture(&attachment, address)?;
        let vectors = if options.interrupts { vectors(&attachment)? } else { Vec::new() };
        let watched = Watched::new(vectors).map_err(|errno| failed("making an eventfd", errno))?;
        listen(&attachment, &watched);
        let watched = Arc::new(watched);
        let watch = Watch::start(Arc::clone(&watched)).map_err(|error| {
            failed("starting a thread for the device", Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
        })?;
        let mapped = Mutex::new(Mapped { iovas: Iovas::new(&aperture), memory: BTreeMap::new() });
        let mappings_max = aperture.mappings_max;
        Ok(Self { _watch: watch, watched, registers, attachment, mapped, address, mappings_max, can_reset })
    }

    /// Where the function is.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Whether the kernel asked for the device, or its bus reported that it failed: registers read as absent from
    /// then on, and whoever holds this should drop it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.watched.is_gone()
    }

    /// Resets the function by its bus, below NVMe's own reset: for a controller that does not answer. Its
    /// registers are as after power-on; interrupts and mappings stay.
    ///
    /// # Errors
    /// The function has no reset, or it failed.
    pub fn reset(&self) -> Result<(), VfioError> {
        if !self.can_reset {
            let reason = "it offers no function level reset".to_owned();
            return Err(VfioError::Unsuitable { address: self.address, reason });
        }
        ioctl::reset(self.attachment.device.as_fd()).map_err(|errno| failed("VFIO_DEVICE_RESET", errno))?;
        enable_dma(&self.attachment)
    }

    fn mapped(&self) -> MutexGuard<'_, Mapped> {
        // Address and memory are entered and left together, after the last call that can fail.
        self.mapped.lock()
    }

    fn container(&self) -> BorrowedFd<'_> {
        self.attachment.container.as_fd()
    }

    /// Makes `memory` visible at `iova`.
    fn show(&self, memory: &Arc<Mapping>, iova: DeviceAddress, bytes: u64) -> Result<(), Errno> {
        let vaddr = memory.address() as u64;
        // SAFETY: the range is the whole of `memory`, rounded up to the page that the kernel maps anyway. The
        // caller keeps a share of it until the address is unmapped or the container is closed, so it stays mapped;
        // a `Mapping` never gives out a reference to its bytes, and tolerates foreign writers.
        unsafe { ioctl::dma_map(self.container(), vaddr, iova.0, bytes) }
    }

    fn refused(&self, len: usize, errno: Errno) -> MapError {
        use rustix::process::{Resource, getrlimit};
        match errno {
            Errno::NOSPC => MapError::Full { limit: self.mappings_max },
            Errno::NOMEM | Errno::PERM => match getrlimit(Resource::Memlock).current {
                Some(limit) => MapError::Locked { len, limit },
                None => MapError::Refused { len, errno },
            },
            errno => MapError::Refused { len, errno },
        }
    }
}

fn failed(what: &str, errno: Errno) -> VfioError {
    VfioError::host(what, errno)
}

/// Maps BAR0, at least as much of it as has registers.
fn map_registers(attachment: &Attachment, address: Address) -> Result<Registers, VfioError> {
    let device = attachment.device.as_fd();
    let bar = ioctl::region(device, ioctl::REGION_BAR0).map_err(|errno| failed("finding BAR0", errno))?;
    if bar.size < REGISTERS_MIN || bar.flags & ioctl::REGION_MMAP == 0 {
        let reason = format!("its BAR0 has {} bytes that can be mapped; NVMe needs more", bar.size);
        return Err(VfioError::Unsuitable { address, reason });
    }
    let len = bar.size.min(REGISTERS_MAX) as usize;
    Registers::map(device, bar.offset, len).map_err(|errno| failed("mapping BAR0", errno))
}

/// Switches the function's registers and its DMA on, in its configuration space.
fn enable_dma(attachment: &Attachment) -> Result<(), VfioError> {
    let device = &attachment.device;
    let wrong = |errno| failed("switching the PCI function on in its command register", errno);
    let config = ioctl::region(device.as_fd(), ioctl::REGION_CONFIG).map_err(wrong)?;
    let mut command = [0; 2];
    let got = rustix::io::pread(device, &mut command, config.offset + PCI_COMMAND).map_err(wrong)?;
    let command = u16::from_le_bytes(command) | PCI_MEMORY | PCI_BUS_MASTER;
    let put =
        rustix::io::pwrite(device, &command.to_le_bytes(), config.offset + PCI_COMMAND).map_err(wrong)?;
    if (got, put) == (2, 2) { Ok(()) } else { Err(wrong(Errno::IO)) }
}

fn aperture(attachment: &Attachment, address: Address) -> Result<Aperture, VfioError> {
    let info = ioctl::iommu_info(attachment.container.as_fd())
        .map_err(|errno| failed("VFIO_IOMMU_GET_INFO", errno))?;
    let aperture = Aperture::parse(&info);
    if aperture.page_sizes & PAGE == 0 {
        let reason = format!("the IOMMU has no pages of 4 KiB (page sizes {:#x})", aperture.page_sizes);
        return Err(VfioError::Unsuitable { address, reason });
    }
    Ok(aperture)
}

/// Connects interrupts: MSI-X, or MSI where there is nothing better; none where the function has neither.
fn vectors(attachment: &Attachment) -> Result<Vec<Vector>, VfioError> {
    let device = attachment.device.as_fd();
    let wrong = |errno| failed("connecting interrupts", errno);
    let offered = |index| {
        let info = ioctl::irq(device, index).ok()?;
        (info.count > 0 && info.flags & ioctl::IRQ_EVENTFD != 0).then_some((index, info.count as usize))
    };
    let Some((index, count)) = offered(ioctl::IRQ_MSIX).or_else(|| offered(ioctl::IRQ_MSI)) else {
        return Ok(Vec::new());
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut wanted = count.min(1 + processors.min(VECTORS_IO_MAX));
    loop {
        let made: Result<Vec<_>, _> = (0..wanted).map(|_| Vector::new()).collect();
        let vectors = made.map_err(wrong)?;
        let fds: Vec<_> = vectors.iter().map(Vector::fd).collect();
        match ioctl::set_irqs(device, index, &fds) {
            Ok(()) => return Ok(vectors),
            // A machine that is short of vectors gives at least one.
            Err(_) if wanted > 1 => wanted /= 2,
            Err(errno) => return Err(wrong(errno)),
        }
    }
}

/// Has the kernel say when it wants the device back, and when its bus reports an error. Not every function
/// offers either.
fn listen(attachment: &Attachment, watched: &Watched) {
    for (index, fd) in [(ioctl::IRQ_ERROR, &watched.error), (ioctl::IRQ_REQUEST, &watched.request)] {
        if ioctl::irq(attachment.device.as_fd(), index).is_ok_and(|info| info.count > 0) {
            // Without it, the function works as well, and is missed only when it goes.
            let _ = ioctl::set_irqs(attachment.device.as_fd(), index, &[fd.as_fd()]);
        }
    }
}

/// Waits where nothing tells of completions: a short sleep, after which there may be some. The sleeps of a thread
/// add up, so that in the end it hears of as many timeouts as time has passed.
fn nap(timeout_us: u32) -> Waited {
    thread_local! {
        static SLEPT_US: Cell<u32> = const { Cell::new(0) };
    }
    let slice_us = timeout_us.min(NAP_US);
    std::thread::sleep(Duration::from_micros(u64::from(slice_us)));
    let slept_us = SLEPT_US.get().saturating_add(slice_us);
    let over = slept_us >= timeout_us;
    SLEPT_US.set(if over { slept_us - timeout_us } else { slept_us });
    if over { Waited::Timeout } else { Waited::Event }
}

impl Transport for Function {
    fn read32(&self, offset: u32) -> u32 {
        if self.watched.is_gone() || offset as usize + 4 > self.registers.len() {
            return ABSENT;
        }
        self.registers.read32(offset as usize)
    }

    #[inline]
    fn write32(&self, offset: u32, value: u32) {
        // A doorbell past the end belongs to a queue that the device does not have. A device that the kernel wants
        // back is told of nothing more, so that those who keep it busy notice.
        if offset as usize + 4 <= self.registers.len() && !self.watched.is_gone() {
            self.registers.write32(offset as usize, value);
        }
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        let len = memory.len();
        let bytes = (len as u64).next_multiple_of(PAGE);
        let mut mapped = self.mapped();
        let full = MapError::Full { limit: self.mappings_max };
        let iova = mapped.iovas.take(bytes, memory.address() as u64).ok_or(full)?;
        // The device writes where these pages are now: a child of fork must not make the kernel copy them.
        let shown = memory.forbid_fork().and_then(|()| self.show(&memory, iova, bytes));
        if let Err(errno) = shown {
            mapped.iovas.give_back(iova);
            return Err(self.refused(len, errno));
        }
        mapped.memory.insert(iova.0, memory);
        Ok(iova)
    }

    fn unmap(&self, address: DeviceAddress) {
        let mut mapped = self.mapped();
        if !mapped.memory.contains_key(&address.0) {
            return;
        }
        let bytes = (mapped.memory[&address.0].len() as u64).next_multiple_of(PAGE);
        // What the kernel did not unmap stays ours: its memory is kept and its address is not given out again.
        if ioctl::dma_unmap(self.container(), address.0, bytes) == Ok(bytes) {
            mapped.iovas.give_back(address);
            mapped.memory.remove(&address.0);
        }
    }

    fn vectors(&self) -> u16 {
        self.watched.vectors.len().max(1) as u16
    }

    fn events(&self, vector: u16) -> u32 {
        self.watched.vectors.get(usize::from(vector)).map_or(0, Vector::count)
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let timeout = Duration::from_micros(u64::from(timeout_us));
        match self.watched.vectors.get(usize::from(vector)) {
            Some(vector) => vector.wait(seen, timeout),
            None => nap(timeout_us),
        }
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        let vector = self.watched.vectors.get(usize::from(vector))?;
        let (fd, fresh) = vector.outside()?;
        if fresh {
            self.watched.relay(vector);
        }
        Some(fd)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // Interrupts end before their eventfds are closed. The kernel ends them with the device in any case.
        for index in [ioctl::IRQ_MSIX, ioctl::IRQ_MSI, ioctl::IRQ_ERROR, ioctl::IRQ_REQUEST] {
            let _ = ioctl::clear_irqs(self.attachment.device.as_fd(), index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_add_up_to_the_timeouts_that_are_told_of() {
        let told =
            |timeout_us: u32, naps: u32| (0..naps).filter(|_| nap(timeout_us) == Waited::Timeout).count();
        assert_eq!((told(NAP_US * 10, 20), told(1, 5)), (2, 5));
    }
}
