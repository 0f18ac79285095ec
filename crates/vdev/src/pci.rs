//! The controller as a PCI function: configuration space and the MSI-X table (PCI Local Bus 3.0, chapter 6;
//! PCI Express Base 4.0, 7.5; NVMe over PCIe Transport 1.0, chapter 2).

use nvmed_nvme::register;

/// Bytes of configuration space with its extended part, which is empty.
pub(crate) const CONFIG_BYTES: u64 = 4096;
/// Bytes that hold something: the header and the capabilities.
const HEADER_BYTES: usize = 256;
/// Bytes of an entry of the MSI-X table (PCI 3.0, 6.8.2.5).
const MSIX_ENTRY_BYTES: usize = 16;
/// Entries of the MSI-X table, at most: a page of them, and a controller has no more vectors.
const MSIX_ENTRIES_MAX: u16 = 256;
/// Where in BAR4 the pending bits are; the table is before them.
const PENDING_OFFSET: u32 = 0x1000;
/// Bytes of BAR4.
pub(crate) const BAR4_BYTES: u64 = 0x2000;

/// 01h 08h 02h: mass storage, non-volatile memory, NVM Express (NVMe over PCIe Transport 1.0, 2.1.5).
const CLASS: [u8; 3] = [0x02, 0x08, 0x01];
/// PCI Vendor ID. An identity of our own would have to be bought, and those of QEMU's NVMe devices (8086:5845,
/// 1B36:0010) make Linux apply quirks: it does not believe their EUI-64. 1234h is nobody's; software devices use it.
pub(crate) const VENDOR: u16 = 0x1234;
/// PCI Device ID: "NV".
const DEVICE: u16 = 0x4e56;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const BAR4: usize = 0x20;
const CAPABILITIES: usize = 0x34;
const POWER: usize = 0x40;
const MSIX: usize = 0x50;
const EXPRESS: usize = 0x60;
/// Device Control of the PCI Express capability; its bit 15 resets the function.
const DEVICE_CONTROL: usize = EXPRESS + 8;

/// Configuration space and BAR4 of one function.
#[derive(Debug)]
pub(crate) struct PciSpace {
    config: [u8; HEADER_BYTES],
    /// Bits that a write changes.
    writable: [u8; HEADER_BYTES],
    table: Vec<u8>,
    /// Bytes of BAR0, a power of two.
    pub bar0_bytes: u64,
}

impl PciSpace {
    /// A function after power-on: `queues` pairs of doorbells `4 << stride` bytes apart, and `vectors`
    /// interrupts.
    pub fn new(queues: u16, stride: u8, vectors: u16) -> Self {
        let doorbells = (u64::from(queues) + 1) * 2 * (4 << stride);
        // NVMe over PCIe Transport 1.0, 2.1.10: the low 14 bits of BAR0's address are zero.
        let bar0_bytes = (u64::from(register::DOORBELLS) + doorbells).next_power_of_two().max(1 << 14);
        let vectors = vectors.clamp(1, MSIX_ENTRIES_MAX);
        let mut space = Self {
            config: [0; HEADER_BYTES],
            writable: [0; HEADER_BYTES],
            table: vec![0; usize::from(vectors) * MSIX_ENTRY_BYTES],
            bar0_bytes,
        };
        space.reset();
        space
    }

    /// As after power-on. Addresses that the host gave the BARs are gone too.
    pub fn reset(&mut self) {
        (self.config, self.writable) = ([0; HEADER_BYTES], [0; HEADER_BYTES]);
        self.table.fill(0);
        for at in [0, 0x2c] {
            self.put(at, &VENDOR.to_le_bytes());
            self.put(at + 2, &DEVICE.to_le_bytes());
        }
        self.put(0x09, &CLASS);
        // A list of capabilities.
        self.put(STATUS, &[0x10, 0]);
        // Memory space, bus master, parity response, SERR#, no pin interrupt.
        self.allow(COMMAND, &[0x46, 0x05]);
        self.base_address(BAR0, self.bar0_bytes);
        self.base_address(BAR4, BAR4_BYTES);
        // The interrupt line is the host's notebook; there is no pin.
        self.allow(0x3c, &[0xff]);
        self.put(CAPABILITIES, &[POWER as u8]);
        self.power_management();
        self.msix();
        self.express();
        // All entries masked (PCI 3.0, 6.8.2.9).
        for entry in self.table.chunks_exact_mut(MSIX_ENTRY_BYTES) {
            entry[12] = 1;
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.config[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// A 64-bit memory BAR of `bytes`: the host finds its size by writing ones.
    fn base_address(&mut self, at: usize, bytes: u64) {
        self.put(at, &[0x04]);
        self.allow(at, &(!(bytes - 1)).to_le_bytes());
    }

    /// PCI Power Management 1.2, 3.2: only D0 and D3hot, and no state is lost on the way.
    fn power_management(&mut self) {
        self.put(POWER, &[0x01, MSIX as u8, 0x03, 0x00, 0x08, 0x00]);
        self.allow(POWER + 4, &[0x03]);
    }

    /// PCI 3.0, 6.8.2: table and pending bits in BAR4.
    fn msix(&mut self) {
        let last = (self.table.len() / MSIX_ENTRY_BYTES - 1) as u16;
        self.put(MSIX, &[0x11, EXPRESS as u8]);
        self.put(MSIX + 2, &last.to_le_bytes());
        self.put(MSIX + 4, &4u32.to_le_bytes());
        self.put(MSIX + 8, &(PENDING_OFFSET | 4).to_le_bytes());
        // Enable, and mask all.
        self.allow(MSIX + 2, &[0x00, 0xc0]);
    }

    /// PCIe 4.0, 7.5.3: an endpoint, version 2, with function level reset, on a link of one lane.
    fn express(&mut self) {
        self.put(EXPRESS, &[0x10, 0x00, 0x02, 0x00]);
        // Role-based error reporting, and function level reset.
        self.put(EXPRESS + 4, &(1u32 << 15 | 1 << 28).to_le_bytes());
        self.allow(DEVICE_CONTROL, &[0xff, 0x7f]);
        // Link capabilities and status: 2.5 GT/s, one lane.
        self.put(EXPRESS + 12, &0x11u32.to_le_bytes());
        self.put(EXPRESS + 18, &0x11u16.to_le_bytes());
    }

    /// Reads configuration space; what is beyond it reads as zero.
    pub(crate) fn read_config(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = place(offset, index).and_then(|at| self.config.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes configuration space, as far as it can be written; whether the host asked for a reset.
    pub(crate) fn write_config(&mut self, offset: u64, data: &[u8]) -> bool {
        let mut reset = false;
        for (index, &byte) in data.iter().enumerate() {
            let Some(at) = place(offset, index).filter(|&at| at < HEADER_BYTES) else { continue };
            self.config[at] = self.config[at] & !self.writable[at] | byte & self.writable[at];
            reset |= at == DEVICE_CONTROL + 1 && byte & 0x80 != 0;
        }
        reset
    }

    /// Reads BAR4: the table, and pending bits, of which there are none: an interrupt is sent or it is not due.
    pub(crate) fn read_bar4(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = place(offset, index).and_then(|at| self.table.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes the MSI-X table.
    pub(crate) fn write_bar4(&mut self, offset: u64, data: &[u8]) {
        for (index, &byte) in data.iter().enumerate() {
            let place = place(offset, index).and_then(|at| self.table.get_mut(at));
            place.into_iter().for_each(|place| *place = byte);
        }
    }
}

/// Where byte `index` of an access lies.
fn place(offset: u64, index: usize) -> Option<usize> {
    usize::try_from(offset).ok()?.checked_add(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &PciSpace, at: u64) -> u32 {
        let mut data = [0; 4];
        space.read_config(at, &mut data);
        u32::from_le_bytes(data)
    }

    #[test]
    fn a_driver_finds_the_class_the_sizes_and_the_capabilities() {
        let mut space = PciSpace::new(64, 0, 65);
        assert_eq!(word(&space, 8) >> 8, 0x01_08_02);
        space.write_config(0x10, &[0xff; 8]);
        assert_eq!((word(&space, 0x10), word(&space, 0x14)), (0xffff_c004, 0xffff_ffff));
        space.write_config(0x20, &[0xff; 8]);
        assert_eq!(word(&space, 0x20), 0xffff_e004);
        let mut found = Vec::new();
        let mut at = word(&space, 0x34) & 0xff;
        while at != 0 {
            let head = word(&space, at.into());
            found.push(head & 0xff);
            at = head >> 8 & 0xff;
        }
        assert_eq!(found, [0x01, 0x11, 0x10]);
        assert_eq!(word(&space, 0x50) >> 16, 64, "entries of the MSI-X table, minus one");
        assert_eq!((word(&space, 0x54), word(&space, 0x58)), (4, 0x1004));
    }

    #[test]
    fn bar0_holds_every_doorbell() {
        for (queues, stride, want) in [(1, 0, 1 << 14), (255, 0, 1 << 14), (255, 10, 4 << 20)] {
            assert_eq!(PciSpace::new(queues, stride, 1).bar0_bytes, want);
        }
    }

    #[test]
    fn what_is_read_only_stays_and_a_reset_is_told() {
        let mut space = PciSpace::new(64, 0, 65);
        let (identity, class) = (word(&space, 0), word(&space, 8));
        assert!(!space.write_config(0, &[0; 64]));
        assert_eq!((word(&space, 0), word(&space, 8)), (identity, class));
        assert!(!space.write_config(4, &[6, 4]));
        assert_eq!(word(&space, 4) & 0xffff, 0x0406);
        assert!(space.write_config(0x68, &[0, 0x80]));
        assert_eq!(word(&space, 0x68) & 0x8000, 0);
        assert!(!space.write_config(u64::MAX - 1, &[1, 1]));
        assert!(!space.write_config(4000, &[1; 96]));
        space.reset();
        assert_eq!(word(&space, 4) & 0xffff, 0);
    }

    #[test]
    fn the_interrupt_table_starts_masked_and_keeps_what_is_written() {
        let mut space = PciSpace::new(2, 0, 3);
        let mut entry = [0; 16];
        space.read_bar4(32, &mut entry);
        assert_eq!(entry[12], 1);
        space.write_bar4(32, &[7; 16]);
        space.read_bar4(32, &mut entry);
        assert_eq!(entry, [7; 16]);
        space.write_bar4(48, &[7; 16]);
        space.read_bar4(48, &mut entry);
        assert_eq!(entry, [0; 16]);
    }
}
