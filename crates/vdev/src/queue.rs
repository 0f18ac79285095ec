//! Submission and completion queues in host memory (Base 2.0, 3.3).

use crate::log::Counters;
use nvmed_dma::{AddressSpace, DeviceAddress};
use nvmed_nvme::{CompletionEntry, SubmissionEntry};
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::{FromBytes, IntoBytes};

const SQ_ENTRY: u64 = size_of::<SubmissionEntry>() as u64;
const CQ_ENTRY: u64 = size_of::<CompletionEntry>() as u64;

/// A submission queue, seen from the controller.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub id: u16,
    pub base: DeviceAddress,
    pub entries: u16,
    pub head: u16,
    pub tail: u16,
    pub counters: Counters,
}

impl SubmissionQueue {
    pub fn new(id: u16, base: DeviceAddress, entries: u16) -> Self {
        Self { id, base, entries, head: 0, tail: 0, counters: Counters::default() }
    }

    /// Takes the command at the head, or `None` when the queue is empty. `Err` when its memory is gone.
    #[inline]
    pub fn fetch(&mut self, space: &AddressSpace) -> Option<Result<SubmissionEntry, nvmed_dma::DmaFault>> {
        if self.head == self.tail {
            return None;
        }
        let address = self.base.plus(u64::from(self.head) * SQ_ENTRY);
        let mut bytes = [0; SQ_ENTRY as usize];
        if let Err(fault) =
            space.resolve(address, bytes.len()).map(|(memory, at)| memory.read(at, &mut bytes))
        {
            return Some(Err(fault));
        }
        self.head = if self.head + 1 == self.entries { 0 } else { self.head + 1 };
        let entry = SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes are an entry");
        Some(Ok(entry))
    }
}

/// A completion queue, seen from the controller.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub base: DeviceAddress,
    pub entries: u16,
    pub tail: u16,
    pub phase: bool,
}

impl CompletionQueue {
    pub fn new(base: DeviceAddress, entries: u16) -> Self {
        Self { base, entries, tail: 0, phase: true }
    }

    /// Whether one more entry would overwrite one that the host has not consumed, `head` being its doorbell.
    pub fn is_full(&self, head: u16) -> bool {
        let next = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
        next == head
    }

    /// Writes an entry at the tail; the caller has made sure that there is room.
    #[inline]
    pub fn post(
        &mut self,
        space: &AddressSpace,
        entry: CompletionEntry,
        status: nvmed_nvme::Status,
    ) -> Result<(), nvmed_dma::DmaFault> {
        let entry = entry.with_status(status, self.phase);
        let address = self.base.plus(u64::from(self.tail) * CQ_ENTRY);
        let (memory, at) = space.resolve(address, CQ_ENTRY as usize)?;
        memory.write(at, &entry.as_bytes()[..12]);
        // Release: the host that sees the phase tag (acquire) sees the rest of the entry and the data.
        memory.u32(at + 12).store(entry.dword3().to_le(), Ordering::Release);
        self.tail += 1;
        if self.tail == self.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
        Ok(())
    }
}

/// A completion queue's head as the host's doorbell has it, written without the queue's lock.
#[derive(Debug, Default)]
pub(crate) struct HeadDoorbell(AtomicU32);

impl HeadDoorbell {
    pub fn get(&self) -> u16 {
        self.0.load(Ordering::SeqCst) as u16
    }

    pub fn set(&self, head: u16) {
        self.0.store(u32::from(head), Ordering::Release);
    }
}
