//! Slots of HMB-I/O: what a host has of them, and what it wants of them (docs/spec/hmb.md, "HMB-I/O"). How commands
//! pass through, is in `hmb_io.rs`.

use crate::host_memory::{Carved, Piece};
use nvmed_dma::View;
use nvmed_nvme::{HmbIoControl, HmbIoMetadata, HmbIoPlaces, HmbIoSlots, IoOpcode, Status, SubmissionEntry};
use nvmed_sys::Mapping;
use nvmed_units::Lba;
use zerocopy::{FromBytes, IntoBytes};

const PAGE_BYTES: u64 = HmbIoSlots::PAGE_BYTES as u64;
const METADATA_BYTES: usize = size_of::<HmbIoMetadata>();

/// Memory of the host; absent when it was unmapped.
type Held = Option<Piece>;
/// Where data begins.
pub(crate) type Data<'a> = (&'a Mapping, usize);

/// A slot that the host has.
#[derive(Debug)]
struct IoSlot {
    data: Held,
    /// The Read or Write that it does, while it does one.
    under_way: Option<SubmissionEntry>,
}

/// What is granted.
#[derive(Debug)]
pub(crate) struct HmbIo {
    pub granted: HmbIoSlots,
    metadata: Held,
    slots: Box<[IoSlot]>,
}

/// Commands since the controller was made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HmbIoCounts {
    pub reads: u64,
    pub writes: u64,
    pub errors: u64,
    pub ended: u64,
}

/// Why a command is refused, and the block that the error log names.
pub(crate) type Refusal = (Status, Lba);

pub(crate) fn refusal(status: Status) -> Refusal {
    (status.do_not_retry(), Lba(0))
}

/// The slot that a command names.
pub(crate) fn slot_of(entry: &SubmissionEntry) -> usize {
    entry.cdw10 as usize
}

impl HmbIo {
    /// What is carved, granted: the host learns from the control block where it is.
    pub fn new(carved: Carved) -> Self {
        let granted = HmbIoSlots { slots: carved.data.len() as u16, pages: carved.pages };
        let mut control = HmbIoControl::new(granted);
        for (slot, (place, piece)) in control.places.iter_mut().zip(&carved.data).enumerate() {
            let mut metadata = carved.metadata.place;
            metadata.offset += (slot * METADATA_BYTES) as u32;
            *place = HmbIoPlaces { metadata, data: piece.place };
        }
        carved.control.memory.write(carved.control.offset, control.as_bytes());
        let new = |piece| IoSlot { data: Some(piece), under_way: None };
        Self { granted, metadata: Some(carved.metadata), slots: carved.data.into_iter().map(new).collect() }
    }

    /// Lets go of what is not mapped any more.
    pub(crate) fn check(&mut self, view: &View) {
        let pieces = self.slots.iter_mut().map(|slot| &mut slot.data);
        for held in pieces.chain([&mut self.metadata]) {
            held.take_if(|piece| !piece.is_mapped(view));
        }
    }

    /// The slot that a command names begins what it wants.
    pub(crate) fn begin(&mut self, entry: &SubmissionEntry, io: SubmissionEntry) {
        self.slots[slot_of(entry)].under_way = Some(io);
    }

    /// What the slot does that a command names, if anything.
    pub(crate) fn under_way(&self, entry: &SubmissionEntry) -> Option<SubmissionEntry> {
        self.slots.get(slot_of(entry))?.under_way
    }

    /// It does that no more: what it was, and where its data lies, from the byte on with which its range begins in a
    /// page; if that is mapped.
    pub(crate) fn end(
        &mut self,
        entry: &SubmissionEntry,
        lba_shift: u32,
    ) -> Option<(SubmissionEntry, Option<Data<'_>>)> {
        let slot = self.slots.get_mut(slot_of(entry))?;
        let io = slot.under_way.take()?;
        let first = (io.lba().0 << lba_shift) % PAGE_BYTES;
        let data = slot.data.as_ref().map(|piece| (&*piece.memory, piece.offset + first as usize));
        Some((io, data))
    }

    /// The metadata of a slot, copied.
    fn metadata(&self, slot: usize) -> Result<HmbIoMetadata, Refusal> {
        let piece = self.metadata.as_ref().ok_or(refusal(Status::DATA_TRANSFER_ERROR))?;
        let mut bytes = [0; METADATA_BYTES];
        piece.memory.read(piece.offset + slot * METADATA_BYTES, &mut bytes);
        Ok(HmbIoMetadata::read_from_bytes(&bytes).expect("64 bytes are metadata"))
    }

    /// What a command of a slot is: the Read or Write that it stands for.
    pub(crate) fn io_entry(
        &self,
        entry: &SubmissionEntry,
        lba_shift: u32,
    ) -> Result<SubmissionEntry, Refusal> {
        let slot = slot_of(entry);
        let of_slot = self.slots.get(slot).ok_or(refusal(Status::INVALID_FIELD))?;
        if of_slot.under_way.is_some() {
            return Err(refusal(Status::SEQUENCE_ERROR));
        }
        let metadata = self.metadata(slot)?;
        let opcode = match metadata.kind {
            HmbIoMetadata::READ => IoOpcode::Read,
            kind if kind & !HmbIoMetadata::FUA == HmbIoMetadata::WRITE => IoOpcode::Write,
            _ => return Err(refusal(Status::INVALID_FIELD)),
        };
        let (first, bytes) = (u64::from(metadata.first), u64::from(metadata.bytes));
        let is_whole = |bytes: u64| bytes.trailing_zeros() >= lba_shift;
        let is_sound = metadata.sequence as u32 == entry.cdw11
            && first < PAGE_BYTES
            && bytes > 0
            && is_whole(first)
            && is_whole(bytes)
            && u64::from(metadata.nlp) == (first + bytes).div_ceil(PAGE_BYTES)
            && metadata.nlp <= self.granted.pages.into();
        if !is_sound {
            return Err(refusal(Status::INVALID_FIELD));
        }
        let lba = (metadata.lpn.checked_mul(PAGE_BYTES >> lba_shift))
            .and_then(|lba| lba.checked_add(first >> lba_shift))
            .ok_or(refusal(Status::LBA_OUT_OF_RANGE))?;
        let fua = metadata.kind & HmbIoMetadata::FUA != 0;
        let mut io = SubmissionEntry { opcode: opcode as u8, nsid: entry.nsid, ..SubmissionEntry::default() };
        (io.cdw10, io.cdw11) = (lba as u32, (lba >> 32) as u32);
        io.cdw12 = ((bytes >> lba_shift) - 1) as u32 | u32::from(fua) << nvmed_nvme::FUA_BIT;
        Ok(io)
    }
}
