//! What one command does, from its first entry to its last completion.

use crate::buffers::{Buffer, Table, resolve};
use crate::sqe::IoVec;
use nvmed_engine::{Cursor, Operation, Segment};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use rustix::io::Errno;
use std::sync::Arc;

/// Memory of a request that lies in one mapping without a gap. It keeps the mapping alive.
pub(crate) struct Piece {
    pub(crate) buffer: Arc<Buffer>,
    offset: usize,
    bytes: usize,
}

/// Room for an NVMe command in a large entry.
pub(crate) const COMMAND_BYTES: usize = 80;

/// What the kernel is doing for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: it failed before.
    Fail(Status),
    /// Moving data between memory and device.
    Transfer,
    /// Making it durable.
    Sync,
    /// Zeroing by `fallocate`, range kept.
    ZeroRange,
    /// Zeroing by a hole.
    Punch,
    /// Zeroing by writing zeroes.
    WriteZeroes,
    /// Giving up a range.
    Discard,
    /// A command of the device's own set.
    Command,
}

/// One command.
pub(crate) struct Work {
    pub(crate) operation: Operation,
    pub(crate) step: Step,
    /// Where on the device the rest begins, and its length, in bytes.
    pub(crate) at: u64,
    pub(crate) left: u64,
    /// Somebody asked to give it up.
    pub(crate) cancelled: bool,
    /// Whether the last entry named its memory by number.
    pub(crate) by_number: bool,
    /// The NVMe command, where there is one.
    pub(crate) command: [u8; COMMAND_BYTES],
    pieces: Vec<Piece>,
    /// What the kernel is given: the pieces, or the scratch memory.
    iovecs: Vec<IoVec>,
    /// Vectors that are done.
    first: usize,
    /// Memory of our own: for a comparison, or for pieces that the device cannot reach where they lie.
    scratch: Option<Mapping>,
    bounced: bool,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            operation: Operation::Flush,
            step: Step::Sync,
            at: 0,
            left: 0,
            cancelled: false,
            by_number: false,
            command: [0; COMMAND_BYTES],
            // What most requests need, so that they allocate nothing.
            pieces: Vec::with_capacity(4),
            iovecs: Vec::with_capacity(4),
            first: 0,
            scratch: None,
            bounced: false,
        }
    }
}

impl Work {
    /// Begins a command of `bytes` bytes at `at`.
    pub(crate) fn begin(&mut self, operation: Operation, at: u64, bytes: u64) {
        (self.operation, self.at, self.left) = (operation, at, bytes);
        (self.first, self.bounced, self.cancelled) = (0, false, false);
        self.pieces.clear();
        self.iovecs.clear();
    }

    /// Lets go of the request's memory.
    pub(crate) fn end(&mut self) {
        self.pieces.clear();
    }

    /// Takes the command's memory off the request; whether all of it is mapped.
    #[inline]
    pub(crate) fn gather(&mut self, table: &Table, cursor: &mut Cursor<'_>, bytes: u64) -> bool {
        let mut left = bytes;
        let mut found = true;
        while left > 0 {
            let Some(Segment { address, bytes }) = cursor.next(left) else { return false };
            left -= u64::from(bytes);
            match resolve(table, address, bytes as usize) {
                Some((buffer, offset)) => self.add(buffer, offset, bytes as usize),
                None => found = false,
            }
        }
        found
    }

    #[inline]
    fn add(&mut self, buffer: &Arc<Buffer>, offset: usize, bytes: usize) {
        if let (Some(last), Some(vector)) = (self.pieces.last_mut(), self.iovecs.last_mut())
            && Arc::ptr_eq(&last.buffer, buffer)
            && last.offset + last.bytes == offset
        {
            last.bytes += bytes;
            vector.bytes += bytes as u64;
            return;
        }
        let base = buffer.memory.address().wrapping_add(offset) as u64;
        self.iovecs.push(IoVec { base, bytes: bytes as u64 });
        self.pieces.push(Piece { buffer: Arc::clone(buffer), offset, bytes });
    }

    /// Whether the device can reach all pieces where they lie.
    #[inline]
    pub(crate) fn is_aligned(&self, start: usize, length: usize) -> bool {
        self.iovecs.iter().all(|piece| {
            (piece.base as usize).is_multiple_of(start) && (piece.bytes as usize).is_multiple_of(length)
        })
    }

    /// Moves the command's data through memory of our own, of `room` bytes; with `copy`, filled with
    /// the pieces' data. The first use of it in a slot allocates.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn bounce(&mut self, room: usize, copy: bool) -> Result<(), Errno> {
        let scratch = match self.scratch.take() {
            Some(scratch) => scratch,
            None => Mapping::anonymous(room, Pages::Base)?,
        };
        self.bounced = true;
        self.iovecs.clear();
        self.iovecs.push(IoVec { base: scratch.address() as u64, bytes: self.left });
        if copy {
            let mut at = 0;
            for piece in &self.pieces {
                piece.buffer.memory.copy(piece.offset, &scratch, at, piece.bytes);
                at += piece.bytes;
            }
        }
        self.scratch = Some(scratch);
        Ok(())
    }

    /// Small data of our own for the device to read.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn hold(&mut self, room: usize, data: &[u8]) -> Result<(), Errno> {
        self.left = data.len() as u64;
        self.bounce(room, false)?;
        if let Some(scratch) = &self.scratch {
            scratch.write(0, data);
        }
        Ok(())
    }

    /// Gives bounced data to the pieces, or compares it with them.
    pub(crate) fn settle(&mut self) -> Status {
        let Some(scratch) = self.scratch.as_ref().filter(|_| self.bounced) else { return Status::SUCCESS };
        let mut at = 0;
        for piece in &self.pieces {
            match self.operation {
                Operation::Read | Operation::Passthrough { .. } => {
                    scratch.copy(at, &piece.buffer.memory, piece.offset, piece.bytes);
                }
                Operation::Compare if !scratch.equal(at, &piece.buffer.memory, piece.offset, piece.bytes) => {
                    return Status::COMPARE_FAILURE;
                }
                _ => {}
            }
            at += piece.bytes;
        }
        Status::SUCCESS
    }

    /// Data of `source`, again and again, for the rest of the command or `limit` bytes.
    pub(crate) fn repeat(&mut self, source: &Mapping, limit: u64) {
        (self.first, self.bounced) = (0, false);
        self.iovecs.clear();
        let mut left = self.left.min(limit);
        while left > 0 {
            let bytes = left.min(source.len() as u64);
            self.iovecs.push(IoVec { base: source.address() as u64, bytes });
            left -= bytes;
        }
    }

    /// Notes that `bytes` are done.
    pub(crate) fn advance(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.at += bytes;
        self.left -= bytes;
        let mut done = bytes;
        while let Some(vector) = self.iovecs.get_mut(self.first).filter(|_| done > 0) {
            let part = done.min(vector.bytes);
            vector.base += part;
            vector.bytes -= part;
            done -= part;
            if vector.bytes == 0 {
                self.first += 1;
            }
        }
    }

    /// Memory that is left to move.
    #[inline]
    pub(crate) fn vectors(&self) -> &[IoVec] {
        &self.iovecs[self.first..]
    }

    /// The one buffer that holds all memory, when it is one and not ours.
    #[inline]
    pub(crate) fn single(&self) -> Option<&Buffer> {
        match &self.pieces[..] {
            [piece] if !self.bounced => Some(&piece.buffer),
            _ => None,
        }
    }
}
