//! Reading and writing.

use crate::cached::Uncalled;
use crate::core::STRANGE;
use crate::file::File;
use nvmed_fs::posted::{Change, Outcome, WRITE_BYTES_MAX};
use nvmed_fs::{FILE_BYTES_MAX, FileType, FsError, OpenFlags};
use nvmed_wire::{Answer, Call, DATA_BYTES_MAX, PAGES_GRANTED};
use rustix::io::Errno;

impl File {
    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::pread`].
    #[inline]
    pub fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize, FsError> {
        match self.read_cached(into, offset) {
            Uncalled::Bytes(bytes) => Ok(bytes),
            Uncalled::Nothing => self.read_there(into, offset),
            Uncalled::Dead => Err(FsError::Host(Errno::IO)),
        }
    }

    /// Reads at the offset and moves it.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::read`].
    #[inline]
    pub fn read(&self, into: &mut [u8]) -> Result<usize, FsError> {
        let here = self.with_offset(|offset| {
            let read = self.pread(into, *offset)?;
            *offset += read as u64;
            Ok(read)
        });
        match here {
            Some(read) => read,
            None => self.read_calls(into, None),
        }
    }

    /// Reads by calls, and asks for a window when that is worth it.
    #[cold]
    fn read_there(&self, into: &mut [u8], offset: u64) -> Result<usize, FsError> {
        self.ask_for_window(into.len(), offset);
        let read = self.read_calls(into, Some(offset))?;
        self.was_read(offset + read as u64);
        Ok(read)
    }

    fn read_calls(&self, into: &mut [u8], offset: Option<u64>) -> Result<usize, FsError> {
        self.tell_advice(offset);
        let mut done = 0;
        loop {
            let part = (into.len() - done).min(DATA_BYTES_MAX);
            let at = offset.map(|offset| offset + done as u64);
            let call = Call::Read { handle: self.handle()?, offset: at, bytes: part as u32 };
            let read = match self.core().call(&call) {
                Ok(reply) if matches!(reply.answer, Answer::Data(_)) => {
                    reply.data(&mut into[done..done + part])
                }
                Ok(_) => return Err(STRANGE),
                // What was read is read: the error comes again.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            };
            done += read;
            if read < part || done == into.len() {
                return Ok(done);
            }
        }
    }

    /// Writes at an offset (with `O_APPEND` at the end, as Linux does). Fewer bytes than asked for are written only
    /// when room or the device gave out in between.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::pwrite`].
    #[inline]
    pub fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize, FsError> {
        let expects_sync = self.rhythm.write();
        if !expects_sync && self.post_write(from, Some(offset)).is_some() {
            return Ok(from.len());
        }
        self.write_calls(from, Some(offset), expects_sync, &mut |_| {})
    }

    /// Writes at the offset (with `O_APPEND` at the end, atomically up to a lane's data area) and moves it.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::write`].
    #[inline]
    pub fn write(&self, from: &[u8]) -> Result<usize, FsError> {
        let here = self.with_offset(|offset| {
            if self.flags().has(OpenFlags::APPEND) {
                let expects_sync = self.rhythm.write();
                let posted = if expects_sync { None } else { self.post_write(from, None) };
                if let Some(end) = posted {
                    *offset = end;
                    return Ok(from.len());
                }
                return self.write_calls(from, None, expects_sync, &mut |after| *offset = after);
            }
            let written = self.pwrite(from, *offset)?;
            *offset += written as u64;
            Ok(written)
        });
        match here {
            Some(written) => written,
            None => self.write_calls(from, None, self.rhythm.write(), &mut |_| {}),
        }
    }

    /// `moved` is told the description's offset after each part that was written at it.
    fn write_calls(
        &self,
        from: &[u8],
        offset: Option<u64>,
        expects_sync: bool,
        moved: &mut dyn FnMut(u64),
    ) -> Result<usize, FsError> {
        let mut done = 0;
        loop {
            let part = (from.len() - done).min(DATA_BYTES_MAX);
            let at = offset.map(|offset| offset + done as u64);
            let sync = expects_sync && done + part == from.len();
            let call = Call::Write { handle: self.handle()?, offset: at, bytes: part as u32, sync };
            let answer = self.core().call_with(&call, &from[done..done + part]).map(|reply| reply.answer);
            let written = match answer {
                Ok(Answer::Written { bytes, offset, durable }) => {
                    moved(offset);
                    if let Some(mark) = durable {
                        self.rhythm.is_durable(mark);
                    }
                    (bytes as usize).min(part)
                }
                Ok(_) => return Err(STRANGE),
                // What was written is written: the error comes again.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            };
            done += written;
            if written < part || done == from.len() {
                return Ok(done);
            }
        }
    }

    /// Posts a write at an offset, without one at the end, if it may be posted: the offset after it. None takes a call.
    #[inline]
    fn post_write(&self, from: &[u8], offset: Option<u64>) -> Option<u64> {
        if from.is_empty() || from.len() > WRITE_BYTES_MAX {
            return None;
        }
        if self.holding.granted.get().is_none() && !self.is_granted_now() {
            return None;
        }
        self.holding.with_grant(|log, grant, progress| {
            let offset = if self.flags().has(OpenFlags::APPEND) { progress.end } else { offset? };
            let end = offset.checked_add(from.len() as u64).filter(|end| *end <= FILE_BYTES_MAX)?;
            let write = Change::Write { offset, bytes: from };
            for _ in 0..2 {
                let posted = match progress.new_pages(offset, end) {
                    new if new > progress.pages && log.stands(grant) => Outcome::Full,
                    new if new > progress.pages => Outcome::Over,
                    _ => log.post(grant, write),
                };
                match posted {
                    Outcome::Done => {
                        progress.wrote(offset, end);
                        return Some(end);
                    }
                    Outcome::Full if self.holding.renew() == Some(grant) => progress.pages = PAGES_GRANTED,
                    _ => break,
                }
            }
            None
        })
    }

    /// A description without a grant is written: asks for one, or first for a log, at some write of many.
    #[cold]
    fn is_granted_now(&self) -> bool {
        let (flags, posting) = (self.flags(), &self.core().link().posting);
        let may_post = flags.writes() && !flags.has_any(OpenFlags::WAITING);
        if !may_post || self.holding.kind != FileType::File {
            return false;
        }
        if !posting.has_log() {
            self.core().link().ask_for_log();
            return false;
        }
        self.holding.granted.wants_grant() && self.holding.renew().is_some()
    }
}
