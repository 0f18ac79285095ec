//! I/O commands of the NVM command set (NVM 1.0, 3.2).

use crate::controller::Controller;
use crate::io_error::IoError;
use crate::probe::Fetched;
use crate::prp::PrpWalk;
use nvmed_dma::View;
use nvmed_flash::{Command, Kind};
use nvmed_image::Span;
use nvmed_nvme::{DsmRange, IoOpcode, Status, SubmissionEntry};
use nvmed_stamps::Op;
use nvmed_sys::Mapping;
use nvmed_units::Lba;
use zerocopy::FromBytes;

/// The one namespace.
pub(crate) const NSID: u32 = 1;
/// Directive type, in command dword 12 of a write.
const DIRECTIVE: u32 = 0xf << 20;
/// All namespaces, which Flush may name.
const NSID_ALL: u32 = u32::MAX;

/// What an I/O command is in a record of commands, if it is one that we know.
#[inline]
pub(crate) fn recorded_op(entry: &SubmissionEntry) -> Option<Op> {
    Some(match IoOpcode::from_code(entry.opcode)? {
        IoOpcode::Read | IoOpcode::Compare => Op::Read,
        IoOpcode::Write | IoOpcode::WriteZeroes if entry.fua() => Op::DurableWrite,
        IoOpcode::Write | IoOpcode::WriteZeroes => Op::Write,
        IoOpcode::Flush => Op::Flush,
        IoOpcode::DatasetManagement => Op::Discard,
    })
}

impl Controller {
    /// Executes one I/O command: the status, which goes into its completion, and the first block in error.
    #[inline]
    pub(crate) fn execute_io(&self, view: &View, entry: &SubmissionEntry) -> (Status, Lba) {
        let Some(opcode) = IoOpcode::from_code(entry.opcode) else {
            return (Status::INVALID_OPCODE.do_not_retry(), Lba(0));
        };
        if entry.nsid != NSID && !(opcode == IoOpcode::Flush && entry.nsid == NSID_ALL) {
            return (Status::INVALID_NAMESPACE.do_not_retry(), Lba(0));
        }
        if entry.flags != 0 {
            return (Status::INVALID_FIELD.do_not_retry(), Lba(0));
        }
        let done = match opcode {
            IoOpcode::Read => self.read(view, entry),
            IoOpcode::Write => self.write(view, entry),
            IoOpcode::Flush => self.media.flush().map_err(IoError::from),
            IoOpcode::Compare => self.compare(view, entry),
            IoOpcode::WriteZeroes => self.write_zeroes(entry),
            IoOpcode::DatasetManagement => self.dataset_management(view, entry),
        };
        match done {
            Ok(()) => (Status::SUCCESS, Lba(0)),
            Err(IoError { status, lba }) => (status, lba),
        }
    }

    /// As [`Self::execute_io`], of a Read or Write whose data lies in one piece.
    pub(crate) fn execute_at(&self, entry: &SubmissionEntry, memory: &Mapping, at: usize) -> (Status, Lba) {
        let done = self.transfer(entry).and_then(|span| {
            if entry.opcode == IoOpcode::Read as u8 {
                return self.load(span.offset, memory, at, span.bytes as usize);
            }
            self.store(span.offset, memory, at, span.bytes as usize)?;
            self.end_write(entry, span)
        });
        done.map_or_else(|error| (error.status, error.lba), |()| (Status::SUCCESS, Lba(0)))
    }

    /// What a command is to a drive; `None` for one that does nothing there, since it fails. A drive's command has one
    /// range: of a Dataset Management the others go to `further`, the next one last.
    pub(crate) fn drive_command(
        &self,
        view: &View,
        entry: &SubmissionEntry,
        further: &mut Vec<Span>,
    ) -> Option<Command> {
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
            IoOpcode::DatasetManagement => {
                *further = self.deallocated(view, entry).ok()?;
                (Kind::Deallocate, further.pop().unwrap_or(none))
            }
        };
        Some(Command { kind, start: span.offset, bytes: span.bytes, urgent: false })
    }

    /// A command of entry `at` of the queue `sq` was fetched; what is recorded of it, if anything is.
    #[inline]
    pub(crate) fn fetched(
        &self,
        view: &View,
        entry: &SubmissionEntry,
        (sq, at): (u16, u16),
    ) -> Option<Fetched> {
        let doorbells = self.doorbells.as_deref()?;
        let op = recorded_op(entry).filter(|_| sq != 0)?;
        let begun = Fetched::begin(doorbells, (sq, at), op)?;
        // What it is to a drive has the checks of all commands: one that fails has no place.
        let mut further = Vec::new();
        let command = self.drive_command(view, entry, &mut further)?;
        let bytes = command.bytes + further.iter().map(|span| span.bytes).sum::<u64>();
        Some(begun.of(command.start, bytes))
    }

    /// A command of HMB-I/O of entry `at` of the admin queue was fetched; what is recorded of it, if anything is, once
    /// its slot has told what it is.
    pub(crate) fn slot_fetched(&self, at: u16) -> Option<Fetched> {
        Fetched::begin(self.doorbells.as_deref()?, (0, at), Op::Read)
    }

    /// What a Dataset Management deallocates, the highest first; what touches or overlaps is one.
    #[cold]
    fn deallocated(&self, view: &View, entry: &SubmissionEntry) -> Result<Vec<Span>, IoError> {
        let mut list = [0; DsmRange::PER_COMMAND * size_of::<DsmRange>()];
        let ranges = self.ranges(view, entry, &mut list)?;
        let spans: Result<Vec<Span>, IoError> =
            ranges.map(|range| self.range(Lba(range.lba), range.blocks)).collect();
        let mut spans = spans?;
        spans.retain(|span| span.bytes > 0 && entry.cdw11 & DsmRange::DEALLOCATE != 0);
        spans.sort_unstable_by_key(|span| std::cmp::Reverse(span.offset));
        spans.dedup_by(|lower, higher| {
            let touches = higher.offset <= lower.end();
            if touches {
                *higher = Span { offset: lower.offset, bytes: lower.end().max(higher.end()) - lower.offset };
            }
            touches
        });
        Ok(spans)
    }

    /// The first block that a command of changes names.
    #[cold]
    pub(crate) fn first_block(&self, view: &View, entry: &SubmissionEntry) -> Lba {
        if IoOpcode::from_code(entry.opcode) != Some(IoOpcode::DatasetManagement) {
            return entry.lba();
        }
        let mut list = [0; DsmRange::PER_COMMAND * size_of::<DsmRange>()];
        let first = self.ranges(view, entry, &mut list).ok().and_then(|mut ranges| ranges.next());
        Lba(first.map_or(0, |range| range.lba))
    }

    /// The bytes of a command's range.
    #[inline]
    fn range(&self, lba: Lba, blocks: u32) -> Result<Span, IoError> {
        let (lba, blocks) = (lba.0, u64::from(blocks));
        let count = self.lba_count();
        if lba.checked_add(blocks).is_none_or(|end| end > count) {
            let status = Status::LBA_OUT_OF_RANGE.do_not_retry();
            return Err(IoError { status, lba: Lba(lba.max(count)) });
        }
        Ok(Span { offset: lba << self.lba_shift, bytes: blocks << self.lba_shift })
    }

    /// As [`Self::range`], for a command that transfers its range.
    #[inline]
    pub(crate) fn transfer(&self, entry: &SubmissionEntry) -> Result<Span, IoError> {
        let span = self.range(entry.lba(), entry.blocks())?;
        if span.bytes > self.config.transfer_bytes_max() {
            return Err(Status::INVALID_FIELD.do_not_retry().into());
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
        mut step: impl FnMut(u64, &Mapping, usize, usize) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
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
        mut step: impl FnMut(u64, &Mapping, usize, usize) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        self.pieces((view, entry), span, |at, memory, host, len| {
            view.fetch(memory, host, len).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            step(at, memory, host, len)
        })
    }

    #[inline]
    fn read(&self, view: &View, entry: &SubmissionEntry) -> Result<(), IoError> {
        let span = self.transfer(entry)?;
        self.pieces((view, entry), span, |at, memory, host, len| {
            self.load(at, memory, host, len)?;
            view.send(memory, host, len).map_err(|_| Status::DATA_TRANSFER_ERROR.into())
        })
    }

    /// Reads from the medium; an error is of the first block that cannot be read.
    #[inline]
    fn load(&self, at: u64, memory: &Mapping, host: usize, len: usize) -> Result<(), IoError> {
        let read = |len| self.media.read(at, memory, host, len);
        read(len).map_err(|status| self.first_error(status, Span::new(at, len), read))
    }

    /// Writes to the medium; an error is of the first block that cannot be written.
    #[inline]
    fn store(&self, at: u64, memory: &Mapping, host: usize, len: usize) -> Result<(), IoError> {
        let write = |len| self.media.write(at, memory, host, len);
        write(len).map_err(|status| self.first_error(status, Span::new(at, len), write))
    }

    /// Zeroes a range of the medium; an error is of the first block that cannot be zeroed.
    fn zero(&self, span: Span, release: bool) -> Result<(), IoError> {
        let zero = |len| self.media.zero(Span::new(span.offset, len), release);
        let bytes = span.bytes as usize;
        zero(bytes).map_err(|status| self.first_error(status, span, zero))
    }

    #[inline]
    fn write(&self, view: &View, entry: &SubmissionEntry) -> Result<(), IoError> {
        let span = self.transfer(entry)?;
        if entry.cdw12 & DIRECTIVE != 0 {
            self.streams.lock().write(entry, span.bytes)?;
        }
        // A piece of odd alignment ends within a sector, which a volatile cache keeps or loses as a whole.
        if !entry.prp1.is_multiple_of(512) && self.media.wants_sectors() {
            return self.write_staged(view, entry, span);
        }
        self.given((view, entry), span, |at, memory, host, len| self.store(at, memory, host, len))?;
        self.end_write(entry, span)
    }

    #[cold]
    fn write_staged(&self, view: &View, entry: &SubmissionEntry, span: Span) -> Result<(), IoError> {
        let stage = self.stage(span.bytes)?;
        self.given((view, entry), span, |at, memory, host, len| {
            memory.copy(host, &stage, (at - span.offset) as usize, len);
            Ok(())
        })?;
        self.store(span.offset, &stage, 0, span.bytes as usize)?;
        self.end_write(entry, span)
    }

    #[inline]
    fn end_write(&self, entry: &SubmissionEntry, span: Span) -> Result<(), IoError> {
        if entry.fua() || !self.write_cache_enabled() {
            let flushed = self.media.flush_range(span);
            flushed.map_err(|status| self.error_at(status, span.offset))?;
        }
        Ok(())
    }

    fn stage(&self, bytes: u64) -> Result<Mapping, Status> {
        Mapping::anonymous(bytes as usize, nvmed_sys::Pages::Base).map_err(|_| Status::INTERNAL_ERROR)
    }

    fn compare(&self, view: &View, entry: &SubmissionEntry) -> Result<(), IoError> {
        let span = self.transfer(entry)?;
        let stage = self.stage(span.bytes)?;
        self.load(span.offset, &stage, 0, span.bytes as usize)?;
        self.given((view, entry), span, |at, memory, host, len| {
            let failure = Status::COMPARE_FAILURE.do_not_retry();
            let same = |len| {
                let same = memory.equal(host, &stage, (at - span.offset) as usize, len);
                if same { Ok(()) } else { Err(failure) }
            };
            same(len).map_err(|status| self.first_error(status, Span::new(at, len), same))
        })
    }

    fn write_zeroes(&self, entry: &SubmissionEntry) -> Result<(), IoError> {
        let span = self.range(entry.lba(), entry.blocks())?;
        self.zero(span, entry.deallocate())?;
        self.end_write(entry, span)
    }

    /// The ranges of a Dataset Management, read into `list`.
    fn ranges<'a>(
        &self,
        view: &View,
        entry: &SubmissionEntry,
        list: &'a mut [u8; DsmRange::PER_COMMAND * size_of::<DsmRange>()],
    ) -> Result<impl Iterator<Item = DsmRange> + use<'a>, IoError> {
        let count = (entry.cdw10 & 0xff) as usize + 1;
        let bytes = count * size_of::<DsmRange>();
        self.given((view, entry), Span { offset: 0, bytes: bytes as u64 }, |at, memory, host, len| {
            memory.read(host, &mut list[at as usize..at as usize + len]);
            Ok(())
        })?;
        let ranges = list[..bytes].chunks_exact(size_of::<DsmRange>());
        Ok(ranges.filter_map(|range| DsmRange::read_from_bytes(range).ok()))
    }

    fn dataset_management(&self, view: &View, entry: &SubmissionEntry) -> Result<(), IoError> {
        let spans = self.deallocated(view, entry)?;
        spans.iter().rev().try_for_each(|&span| self.zero(span, true))
    }
}
