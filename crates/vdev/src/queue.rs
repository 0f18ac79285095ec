//! Submission and completion queues in host memory (Base 2.0, 3.3).

use crate::counters::Counters;
use nvmed_dma::{DeviceAddress, DmaFault, View};
use nvmed_nvme::{CompletionEntry, SubmissionEntry};
use nvmed_sys::Mapping;
use nvmed_units::{Halves, Lba};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::FromBytes;

const SQ_ENTRY: u64 = size_of::<SubmissionEntry>() as u64;
const CQ_ENTRY: u64 = size_of::<CompletionEntry>() as u64;

/// Where a queue lies in host memory, looked up once and not for each entry.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    base: DeviceAddress,
    bytes: usize,
    /// `None`: nothing, or several mappings in a row; each entry is looked up.
    whole: Option<(Arc<Mapping>, usize)>,
}

impl QueueMemory {
    fn new(base: DeviceAddress, bytes: usize, view: &View) -> Self {
        Self { base, bytes, whole: view.hold(base, bytes).ok() }
    }

    /// Looks the queue up again, after `view` has changed.
    pub fn refresh(&mut self, view: &View) {
        self.whole = view.hold(self.base, self.bytes).ok();
    }

    /// The memory of `len` bytes at `offset`.
    #[inline]
    fn at<'a>(&'a self, view: &'a View, offset: u64, len: usize) -> Result<(&'a Mapping, usize), DmaFault> {
        match &self.whole {
            Some((memory, begin)) => Ok((memory, begin + offset as usize)),
            None => view.resolve(self.base.plus(offset), len),
        }
    }
}

/// A submission queue, seen from the controller.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub id: u16,
    /// QPRIO.
    pub class: usize,
    pub memory: QueueMemory,
    pub entries: u16,
    pub head: u16,
    pub tail: u16,
    pub counters: Counters,
}

impl SubmissionQueue {
    pub fn new((id, class): (u16, usize), (base, entries): (DeviceAddress, u16), view: &View) -> Self {
        let memory = QueueMemory::new(base, usize::from(entries) * SQ_ENTRY as usize, view);
        Self { id, class, memory, entries, head: 0, tail: 0, counters: Counters::default() }
    }

    /// Takes the command at the head, or `None` when the queue is empty. `Err` when its memory is gone.
    #[inline]
    pub fn fetch(&mut self, view: &View) -> Option<Result<SubmissionEntry, DmaFault>> {
        if self.head == self.tail {
            return None;
        }
        let mut bytes = [0; SQ_ENTRY as usize];
        let found = self.memory.at(view, u64::from(self.head) * SQ_ENTRY, bytes.len());
        let brought = found.and_then(|(memory, at)| {
            view.fetch(memory, at, bytes.len())?;
            memory.read(at, &mut bytes);
            Ok(())
        });
        if let Err(fault) = brought {
            return Some(Err(fault));
        }
        self.head = if self.head + 1 == self.entries { 0 } else { self.head + 1 };
        let entry = SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes are an entry");
        Some(Ok(entry))
    }
}

impl SubmissionQueue {
    /// First block and number of blocks of the command that is `ahead` behind the head, if it is there and one
    /// that reads or writes. What the host has written there may still change: it is a guess.
    #[inline]
    pub fn ahead(&self, ahead: u16, view: &View) -> Option<(Lba, u32)> {
        let left =
            if self.tail >= self.head { self.tail - self.head } else { self.tail + self.entries - self.head };
        if left < ahead {
            return None;
        }
        let index = self.head + ahead - 1;
        let index = if index >= self.entries { index - self.entries } else { index };
        let at = u64::from(index) * SQ_ENTRY;
        let (memory, at) = self.memory.at(view, at, SQ_ENTRY as usize).ok()?;
        let dword = |number: usize| u32::from_le(memory.u32(at + 4 * number).load(Ordering::Relaxed));
        let lba = u64::from(dword(10)) | u64::from(dword(11)) << 32;
        Some((Lba(lba), (dword(12) & 0xffff) + 1))
    }
}

/// A completion queue, seen from the controller.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub memory: QueueMemory,
    pub entries: u16,
    pub tail: u16,
    pub phase: bool,
    /// The interrupt vector, if interrupts are enabled.
    pub vector: Option<u16>,
}

impl CompletionQueue {
    pub fn new((base, entries): (DeviceAddress, u16), vector: Option<u16>, view: &View) -> Self {
        let memory = QueueMemory::new(base, usize::from(entries) * CQ_ENTRY as usize, view);
        Self { memory, entries, tail: 0, phase: true, vector }
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
        view: &View,
        entry: CompletionEntry,
        status: nvmed_nvme::Status,
    ) -> Result<(), DmaFault> {
        let entry = entry.with_status(status, self.phase);
        let (memory, at) = self.memory.at(view, u64::from(self.tail) * CQ_ENTRY, CQ_ENTRY as usize)?;
        // As words, not as bytes of the entry: it was just put together, and a processor reads back at once only what
        // it has written as one.
        for (number, dword) in [entry.result, entry.result_high, entry.dword2()].into_iter().enumerate() {
            memory.u32(at + 4 * number).store(dword.to_le(), Ordering::Relaxed);
        }
        view.send(memory, at, 12)?;
        // Release: the host that sees the phase tag (acquire) sees the rest of the entry and the data.
        memory.u32(at + 12).store(entry.dword3().to_le(), Ordering::Release);
        view.send(memory, at + 12, 4)?;
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
        self.0.load(Ordering::SeqCst).low()
    }

    pub fn set(&self, head: u16) {
        self.0.store(u32::from(head), Ordering::Release);
    }
}
