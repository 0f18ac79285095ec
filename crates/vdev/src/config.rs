//! What a controller is like.

use crate::fault::FaultPlan;
use crate::host_memory::HostMemoryConfig;
use nvmed_flash::{ArrayProfile, Medium, Profile};
use nvmed_nvme::HmbIoSlots;
use nvmed_stamps::Stamps;
use std::sync::Arc;

/// Entries of a submission or completion queue at most: 1 MiB and 256 KiB of a host's memory.
pub const QUEUE_ENTRIES_MAX: u16 = 16_384;

/// Who executes commands, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The doorbell's write does the work: nothing is outstanding when it returns. A command that a drive or a fault
    /// holds back completes within the next call of the transport after it is due (a doorbell of its queue, `events`,
    /// `now_ns`, `wait`), so that a host which only looks at its memory waits in vain.
    Inline,
    /// A thread of the device, parked while there is nothing to do and nothing is due.
    Threaded,
    /// Simulated time, without a thread: the same calls give the same times. The doorbell's write takes
    /// commands; time passes by looks ([`crate::VIRTUAL_LOOK_NS`] each) and by waiting, which jumps to the next
    /// completion that is due, or to the end of the wait. For one host thread at a time.
    Virtual,
}

/// What a drive is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveName {
    /// Name of its built-in profile; empty if it has another one.
    pub profile: String,
    /// What kind of drive it is, in a line.
    pub what: String,
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
    /// Entries of a queue, 2 to [`QUEUE_ENTRIES_MAX`]; one more than CAP.MQES. A host's memory, which it gives when it
    /// makes a queue: the controller has nothing for it.
    pub queue_entries_max: u16,
    /// Distance between doorbells, CAP.DSTRD: `4 << doorbell_stride` bytes; 0 to 10.
    pub doorbell_stride: u8,
    /// Who executes commands.
    pub clock: Clock,
    /// The drive whose times commands take; without one they complete at once.
    pub drive: Option<Profile>,
    /// What that drive is called.
    pub drive_name: DriveName,
    /// What that drive asks its host's memory for, if it is one with a translation layer; absent, it wants none.
    pub host_memory: Option<HostMemoryConfig>,
    /// Slots of that memory for HMB-I/O that are granted at most, up to [`HmbIoSlots::SLOTS_MAX`]; 0: it is
    /// not offered.
    pub hmb_io_slots: u16,
    /// What goes wrong; keep a clone to change it while the controller runs.
    pub faults: FaultPlan,
    /// Serial number, 1 to 20 printable ASCII characters. Absent, it is made from the medium's identity, and stays
    /// with an image.
    pub serial: Option<String>,
    /// Where requests are recorded, if they are.
    pub stamps: Option<Arc<Stamps>>,
    /// Model number: of more than 40 characters the first 40.
    pub model: String,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            lba_bytes: 512,
            mdts: 8,
            queues_max: 64,
            queue_entries_max: QUEUE_ENTRIES_MAX,
            doorbell_stride: 0,
            clock: Clock::Inline,
            drive: None,
            drive_name: DriveName::default(),
            host_memory: None,
            hmb_io_slots: 0,
            faults: FaultPlan::default(),
            serial: None,
            stamps: None,
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

    /// The drive, if it is one of dies.
    pub(crate) fn array(&self) -> Option<&ArrayProfile> {
        match &self.drive.as_ref()?.medium {
            Medium::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Bytes that the drive has, if it is one with so many: a namespace is no larger.
    pub(crate) fn drive_bytes(&self) -> u64 {
        self.array().map_or(u64::MAX, |array| array.capacity_bytes)
    }

    /// # Panics
    /// When a value is outside its documented range: they come from our own assembly, not from a host.
    pub(crate) fn check(&self) {
        assert!(matches!(self.lba_bytes, 512 | 4096), "LBA format of {} bytes", self.lba_bytes);
        assert!((1..=9).contains(&self.mdts), "MDTS {}", self.mdts);
        assert!((1..=255).contains(&self.queues_max), "{} queues", self.queues_max);
        assert!(
            (2..=QUEUE_ENTRIES_MAX).contains(&self.queue_entries_max),
            "{} entries",
            self.queue_entries_max
        );
        assert!(self.doorbell_stride <= 10, "doorbell stride {}", self.doorbell_stride);
        if let Some(Err(error)) = self.drive.as_ref().map(Profile::check) {
            panic!("a profile that its reader has not checked: {error}");
        }
        if let Some(host_memory) = &self.host_memory {
            host_memory.check();
            let has_layer = self.array().is_some_and(|array| array.translation.is_some());
            assert!(has_layer, "a host memory buffer for what is no drive of NAND");
        }
        let slots_max = if self.host_memory.is_some() { HmbIoSlots::SLOTS_MAX } else { 0 };
        assert!(self.hmb_io_slots <= slots_max, "{} slots for HMB-I/O", self.hmb_io_slots);
    }
}
