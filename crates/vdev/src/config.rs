//! What a controller is like.

/// Who executes commands, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The doorbell's write does the work: nothing is outstanding when it returns.
    Inline,
    /// A thread of the device, parked while there is nothing to do.
    Threaded,
}

/// Properties of a controller, fixed for its life.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Bytes of a logical block: 512 or 4096.
    pub lba_bytes: u32,
    /// Largest transfer of one command: `4096 << mdts` bytes; 1 to 9, since a command has 65,536 blocks.
    pub mdts: u8,
    /// I/O queue pairs, 1 to 255.
    pub queues_max: u16,
    /// Entries of a queue, 2 to 4096.
    pub queue_entries_max: u16,
    /// Distance between doorbells, CAP.DSTRD: `4 << doorbell_stride` bytes; 0 to 10.
    pub doorbell_stride: u8,
    /// Who executes commands.
    pub clock: Clock,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            lba_bytes: 512,
            mdts: 8,
            queues_max: 64,
            queue_entries_max: 1024,
            doorbell_stride: 0,
            clock: Clock::Inline,
            serial: "NVMED0001".to_owned(),
            model: "nvmed virtual controller".to_owned(),
        }
    }
}

impl ControllerConfig {
    /// Bytes of the largest transfer.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        4096 << self.mdts
    }

    /// # Panics
    /// When a value is outside its documented range: they come from our own assembly, not from a host.
    pub(crate) fn check(&self) {
        assert!(matches!(self.lba_bytes, 512 | 4096), "LBA format of {} bytes", self.lba_bytes);
        assert!((1..=9).contains(&self.mdts), "MDTS {}", self.mdts);
        assert!((1..=255).contains(&self.queues_max), "{} queues", self.queues_max);
        assert!((2..=4096).contains(&self.queue_entries_max), "{} entries", self.queue_entries_max);
        assert!(self.doorbell_stride <= 10, "doorbell stride {}", self.doorbell_stride);
    }
}
