//! I/O commands of the NVM command set (NVM 1.0, 3.2).

use crate::controller::Controller;
use crate::media::Span;
use crate::prp::PrpWalk;
use nvmed_dma::View;
use nvmed_flash::{Command, Kind};
use nvmed_nvme::{DsmRange, IoOpcode, Status, SubmissionEntry};
use nvmed_sys::Mapping;
use nvmed_units::Lba;
use zerocopy::FromBytes;

/// The one namespace.
pub(crate) const NSID: u32 = 1;
/// Directive type, in command dword 12 of a write.
const DIRECTIVE: u32 = 0xf << 20;
/// All namespaces, which Flush may name.
const NSID_ALL: u32 = u32::MAX;

impl Controller {
    /// Executes one I/O command; the status goes into its completion.
    #[inline]
    pub(crate) fn execute_io(&self, view: &View, entry: &SubmissionEntry) -> Status {
        let Some(opcode) = IoOpcode::from_code(entry.opcode) else {
            return Status::INVALID_OPCODE.do_not_retry();
        };
        if entry.nsid != NSID && !(opcode == IoOpcode::Flush && entry.nsid == NSID_ALL) {
            return Status::INVALID_NAMESPACE.do_not_retry();
        }
        if entry.flags != 0 {
            return Status::INVALID_FIELD.do_not_retry();
        }
        let done = match opcode {
            IoOpcode::Read => self.read(view, entry),
            IoOpcode::Write => self.write(view, entry),
            IoOpcode::Flush => self.media.flush(),
            IoOpcode::Compare => self.compare(view, entry),
            IoOpcode::WriteZeroes => self.write_zeroes(entry),
            IoOpcode::DatasetManagement => self.dataset_management(view, entry),
        };
        match done {
            Ok(()) => Status::SUCCESS,
            Err(status) => status,
        }
    }

    /// What a command is to a drive; `None` for one that does nothing there, since it fails.
    pub(crate) fn drive_command(&self, view: &View, entry: &SubmissionEntry) -> Option<Command> {
        let opcode = IoOpcode::from_code(entry.opcode)?;
        if entry.flags != 0 || entry.nsid != NSID && !(opcode == IoOpcode::Flush && entry.nsid == NSID_ALL) {
            return None;
        }
        let none = Span { offset: 0, bytes: 0 };
        let (kind, span) = match opcode {
            IoOpcode::Read | IoOpcode::Compare => (Kind::Read, self.transfer(entry).ok()?),
            IoOpcode::Write => {
                let fua = entry.fua() || !self.write_cache_enabled();
                (Kind::Write { fua }, self.transfer(entry).ok()?)
            }
            IoOpcode::Flush => (Kind::Flush, none),
            IoOpcode::WriteZeroes => (Kind::Deallocate, self.range(entry.lba(), entry.blocks()).ok()?),
            IoOpcode::DatasetManagement => (Kind::Deallocate, self.deallocated(view, entry).unwrap_or(none)),
        };
        Some(Command { kind, start: span.offset, bytes: span.bytes })
    }

    /// The first range of a Dataset Management that deallocates, with what follows it without a gap: a drive's command
    /// has one range.
    fn deallocated(&self, view: &View, entry: &SubmissionEntry) -> Option<Span> {
        if entry.cdw11 & DsmRange::DEALLOCATE == 0 {
            return None;
        }
        let mut list = [0; DsmRange::PER_COMMAND * size_of::<DsmRange>()];
        let ranges = self.ranges(view, entry, &mut list).ok()?;
        let mut all: Option<Span> = None;
        for range in ranges.filter(|range| range.blocks > 0) {
            let next = self.range(Lba(range.lba), range.blocks).ok()?;
            match &mut all {
                None => all = Some(next),
                Some(before) if before.end() == next.offset => before.bytes += next.bytes,
                Some(_) => break,
            }
        }
        all
    }

    /// The bytes of a command's range.
    #[inline]
    fn range(&self, lba: Lba, blocks: u32) -> Result<Span, Status> {
        let (lba, blocks) = (lba.0, u64::from(blocks));
        let end = lba.checked_add(blocks).filter(|&end| end <= self.lba_count());
        if end.is_none() {
            return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        Ok(Span { offset: lba << self.lba_shift, bytes: blocks << self.lba_shift })
    }

    /// As [`Self::range`], for a command that transfers its range.
    #[inline]
    fn transfer(&self, entry: &SubmissionEntry) -> Result<Span, Status> {
        let span = self.range(entry.lba(), entry.blocks())?;
        if span.bytes > self.config.transfer_bytes_max() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        Ok(span)
    }

    /// Calls `step(medium offset, host memory, offset in it, length)` for each piece of the data. Pages that
    /// follow each other in host memory are one piece: a long copy is faster than many short ones.
    #[inline]
    fn pieces(
        &self,
        (view, entry): (&View, &SubmissionEntry),
        span: Span,
        mut step: impl FnMut(u64, &Mapping, usize, usize) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let mut walk = PrpWalk::new(view, entry, span.bytes);
        let mut at = span.offset;
        let mut next = walk.next().transpose()?;
        while let Some((address, mut len)) = next {
            let (memory, host) = view.resolve(address, len).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let room = memory.len() - host;
            next = walk.next().transpose()?;
            while let Some((page, more)) = next
                && page.0 == address.0.wrapping_add(len as u64)
                && len + more <= room
            {
                len += more;
                next = walk.next().transpose()?;
            }
            step(at, memory, host, len)?;
            at += len as u64;
        }
        Ok(())
    }

    /// As [`Self::pieces`], of data that the host gives.
    #[inline]
    fn given(
        &self,
        (view, entry): (&View, &SubmissionEntry),
        span: Span,
        mut step: impl FnMut(u64, &Mapping, usize, usize) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.pieces((view, entry), span, |at, memory, host, len| {
            view.fetch(memory, host, len).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            step(at, memory, host, len)
        })
    }

    #[inline]
    fn read(&self, view: &View, entry: &SubmissionEntry) -> Result<(), Status> {
        let span = self.transfer(entry)?;
        self.pieces((view, entry), span, |at, memory, host, len| {
            self.media.read(at, memory, host, len)?;
            view.send(memory, host, len).map_err(|_| Status::DATA_TRANSFER_ERROR)
        })
    }

    #[inline]
    fn write(&self, view: &View, entry: &SubmissionEntry) -> Result<(), Status> {
        let span = self.transfer(entry)?;
        if entry.cdw12 & DIRECTIVE != 0 {
            self.streams.lock().write(entry, span.bytes)?;
        }
        // A piece of odd alignment ends within a sector, which a volatile cache keeps or loses as a whole.
        if !entry.prp1.is_multiple_of(512) && self.media.wants_sectors() {
            return self.write_staged(view, entry, span);
        }
        self.given((view, entry), span, |at, memory, host, len| self.media.write(at, memory, host, len))?;
        self.end_write(entry, span)
    }

    #[cold]
    fn write_staged(&self, view: &View, entry: &SubmissionEntry, span: Span) -> Result<(), Status> {
        let stage = self.stage(span.bytes)?;
        self.given((view, entry), span, |at, memory, host, len| {
            memory.copy(host, &stage, (at - span.offset) as usize, len);
            Ok(())
        })?;
        self.media.write(span.offset, &stage, 0, span.bytes as usize)?;
        self.end_write(entry, span)
    }

    #[inline]
    fn end_write(&self, entry: &SubmissionEntry, span: Span) -> Result<(), Status> {
        if entry.fua() || !self.write_cache_enabled() {
            self.media.flush_range(span)?;
        }
        Ok(())
    }

    fn stage(&self, bytes: u64) -> Result<Mapping, Status> {
        Mapping::anonymous(bytes as usize, nvmed_sys::Pages::Base).map_err(|_| Status::INTERNAL_ERROR)
    }

    fn compare(&self, view: &View, entry: &SubmissionEntry) -> Result<(), Status> {
        let span = self.transfer(entry)?;
        let stage = self.stage(span.bytes)?;
        self.media.read(span.offset, &stage, 0, span.bytes as usize)?;
        self.given((view, entry), span, |at, memory, host, len| {
            let same = memory.equal(host, &stage, (at - span.offset) as usize, len);
            if same { Ok(()) } else { Err(Status::COMPARE_FAILURE.do_not_retry()) }
        })
    }

    fn write_zeroes(&self, entry: &SubmissionEntry) -> Result<(), Status> {
        let span = self.range(entry.lba(), entry.blocks())?;
        self.media.zero(span, entry.deallocate())?;
        self.end_write(entry, span)
    }

    /// The ranges of a Dataset Management, read into `list`.
    fn ranges<'a>(
        &self,
        view: &View,
        entry: &SubmissionEntry,
        list: &'a mut [u8; DsmRange::PER_COMMAND * size_of::<DsmRange>()],
    ) -> Result<impl Iterator<Item = DsmRange> + use<'a>, Status> {
        let count = (entry.cdw10 & 0xff) as usize + 1;
        let bytes = count * size_of::<DsmRange>();
        self.given((view, entry), Span { offset: 0, bytes: bytes as u64 }, |at, memory, host, len| {
            memory.read(host, &mut list[at as usize..at as usize + len]);
            Ok(())
        })?;
        let ranges = list[..bytes].chunks_exact(size_of::<DsmRange>());
        Ok(ranges.filter_map(|range| DsmRange::read_from_bytes(range).ok()))
    }

    fn dataset_management(&self, view: &View, entry: &SubmissionEntry) -> Result<(), Status> {
        let mut list = [0; DsmRange::PER_COMMAND * size_of::<DsmRange>()];
        let ranges: Vec<DsmRange> = self.ranges(view, entry, &mut list)?.collect();
        for range in &ranges {
            self.range(Lba(range.lba), range.blocks)?;
        }
        if entry.cdw11 & DsmRange::DEALLOCATE == 0 {
            return Ok(());
        }
        for range in ranges.iter().filter(|range| range.blocks > 0) {
            self.media.zero(self.range(Lba(range.lba), range.blocks)?, true)?;
        }
        Ok(())
    }
}
