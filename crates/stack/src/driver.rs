//! What our NVMe driver is asked to do with a controller, as options of the device string.

use nvmed_engine::nvme::NvmeOptions;
use nvmed_nvme::HmbIoSlots;
use nvmed_units::NamespaceId;

/// The options `nsid` and `hmb_io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverKeys {
    /// `nsid=`: namespace.
    pub nsid: u32,
    /// `hmb_io=`: slots of HMB-I/O that are asked for, 1 to 64; 0 is none.
    pub hmb_io_slots: u16,
}

impl Default for DriverKeys {
    fn default() -> Self {
        Self { nsid: 1, hmb_io_slots: 0 }
    }
}

impl DriverKeys {
    pub(crate) fn set(&mut self, (key, value): (&str, &str)) -> Option<()> {
        match key {
            "nsid" => self.nsid = value.parse().ok().filter(|&nsid| nsid > 0)?,
            "hmb_io" => self.hmb_io_slots = value.parse().ok().filter(|&n| n <= HmbIoSlots::SLOTS_MAX)?,
            _ => return None,
        }
        Some(())
    }

    pub(crate) fn options(self) -> Vec<String> {
        let plain = Self::default();
        let mut options = Vec::new();
        if self.nsid != plain.nsid {
            options.push(format!("nsid={}", self.nsid));
        }
        if self.hmb_io_slots != plain.hmb_io_slots {
            options.push(format!("hmb_io={}", self.hmb_io_slots));
        }
        options
    }

    /// As the driver takes them.
    pub(crate) fn nvme(self) -> NvmeOptions {
        NvmeOptions { nsid: NamespaceId(self.nsid), hmb_io_slots: self.hmb_io_slots }
    }
}
