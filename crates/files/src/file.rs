//! An open file: synchronous and asynchronous calls by its policy.

use crate::files::Files;
use crate::policy::Policy;
use crate::ticket::{Ticket, Work};
use core::ops::Range;
use nvmed_block::Buffer;
use nvmed_fs::{DirectIo, File, FsError, OpenFlags, Whence};
use nvmed_io::{Binding, Handle, HandleSettings, QueueNumber};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a direct call's piece when its memory is not the device's: large enough that a request's cost is small
/// beside the copy.
const PIECE_BYTES: usize = 256 << 10;

/// An open file.
///
/// Its offset is its own; `Arc<OpenFile>` clones share it.
pub struct OpenFile {
    files: Arc<Files>,
    file: Option<Arc<File>>,
    handle: Option<Handle>,
    queue: Option<QueueNumber>,
    direct: AtomicBool,
    /// Where the next call without an offset begins, when the file is direct.
    offset: Mutex<u64>,
}

/// Counts what one piece of a call has moved; whether the call goes on. An error counts only when nothing was moved.
fn count(done: &mut usize, moved: Result<usize, FsError>, wanted: usize) -> Result<bool, FsError> {
    match moved {
        Ok(moved) => {
            *done += moved;
            Ok(moved == wanted)
        }
        Err(error) if *done == 0 => Err(error),
        Err(_) => Ok(false),
    }
}

/// Whether a call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl core::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OpenFile").field("ino", &self.file().node().ino()).finish_non_exhaustive()
    }
}

impl OpenFile {
    pub(crate) fn new(files: Arc<Files>, file: Arc<File>, policy: &Policy) -> Result<Self, FsError> {
        let device = Arc::clone(files.device());
        let queue = policy.queue.map(|settings| device.create_queue(settings)).transpose()?;
        // From here on, dropping it gives the queue back.
        let mut open = Self {
            files,
            file: Some(file),
            handle: None,
            queue,
            direct: AtomicBool::new(policy.direct),
            offset: Mutex::new(0),
        };
        // Of a path that a rule makes urgent it stays so.
        if policy.urgent {
            open.file().set_urgent(true);
        }
        if let Some(bytes) = policy.readahead_bytes {
            open.file().set_readahead(bytes);
        }
        if policy.prealloc_bytes.is_some() {
            open.file().preallocate(policy.prealloc_bytes)?;
        }
        if policy.has_handle() {
            let handle = device.bind(queue.map_or(Binding::Spread, Binding::Queue))?;
            let priority = policy.queue.map(|queue| queue.priority).unwrap_or_default();
            let own = HandleSettings { priority, ..handle.settings() };
            handle.set(policy.io.unwrap_or(own))?;
            open.file().set_handle(&handle);
            open.handle = Some(handle);
        }
        Ok(open)
    }

    /// The open description below.
    ///
    /// # Panics
    /// Never: it is there until the drop.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        self.file.as_ref().expect("the description is there until the drop")
    }

    /// The file system that it is on.
    #[must_use]
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Whether it goes past the cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Has it go past the cache or through it from now on. Only a file that was opened direct, or with settings of its
    /// handle, has a handle to go past by.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for another.
    pub fn set_direct(&self, direct: bool) -> Result<(), FsError> {
        if direct && self.handle.is_none() {
            return Err(FsError::Invalid);
        }
        self.direct.store(direct, Ordering::Relaxed);
        Ok(())
    }

    /// What offsets and lengths of direct calls are multiples of, in bytes.
    #[must_use]
    pub fn direct_align(&self) -> u32 {
        self.file().direct_align()
    }

    /// The settings of its handle; none when it shares the mount's.
    #[must_use]
    pub fn settings(&self) -> Option<HandleSettings> {
        self.handle.as_ref().map(Handle::settings)
    }

    /// Changes the settings of its handle, for requests from now on.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it has none or they make no sense; no thread.
    pub fn set_settings(&self, settings: HandleSettings) -> Result<(), FsError> {
        let handle = self.handle.as_ref().ok_or(FsError::Invalid)?;
        handle.set(settings).map_err(|error| match error.errno() {
            rustix::io::Errno::INVAL => FsError::Invalid,
            _ => error.into(),
        })
    }

    /// What its handle asked of the device; none when it shares the mount's.
    #[must_use]
    pub fn io_stats(&self) -> Option<nvmed_io::Stats> {
        self.handle.as_ref().map(Handle::stats)
    }

    fn offset(&self) -> MutexGuard<'_, u64> {
        // A number is whole.
        self.offset.lock()
    }

    /// The handle, for a file that goes past the cache.
    fn past(&self) -> Option<&Handle> {
        self.handle.as_ref().filter(|_| self.is_direct())
    }

    fn check_aligned(&self, offset: u64, bytes: usize) -> Result<(), FsError> {
        let aligned = (offset | bytes as u64).is_multiple_of(self.direct_align().into());
        if aligned { Ok(()) } else { Err(FsError::Invalid) }
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// Those of pread(2); [`FsError::Invalid`] for a direct call that is not aligned.
    pub fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize, FsError> {
        let Some(handle) = self.past() else { return self.file().pread(into, offset) };
        self.check_aligned(offset, into.len())?;
        if into.is_empty() {
            return self.file().pread(into, offset);
        }
        let buffer = self.files.buffer(into.len().min(PIECE_BYTES))?;
        let mut done = 0;
        while done < into.len() {
            let piece = &mut into[done..];
            let bytes = piece.len().min(PIECE_BYTES);
            let segment = buffer.segment(0..bytes).map_err(|_| FsError::Invalid)?;
            let moved = match self.file().read_direct(handle, segment, offset + done as u64) {
                Ok(Some(flight)) => flight.wait().inspect(|&moved| {
                    // Inside: it holds as many bytes as were asked for.
                    let _ = buffer.read(0, &mut piece[..moved]);
                }),
                Ok(None) => self.file().pread(&mut piece[..bytes], offset + done as u64),
                Err(error) => Err(error),
            };
            if !count(&mut done, moved, bytes)? {
                break;
            }
        }
        Ok(done)
    }

    /// Writes at an offset. Fewer bytes than asked for are written only when room or the device gave out in between.
    ///
    /// # Errors
    /// Those of pwrite(2); [`FsError::Invalid`] for a direct call that is not aligned.
    pub fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize, FsError> {
        let Some(handle) = self.past() else { return self.file().pwrite(from, offset) };
        self.check_aligned(offset, from.len())?;
        if from.is_empty() || self.file().flags().has(OpenFlags::APPEND) {
            return self.file().pwrite_through(from, offset);
        }
        let buffer = self.files.buffer(from.len().min(PIECE_BYTES))?;
        let mut done = 0;
        for piece in from.chunks(PIECE_BYTES) {
            let at = offset.saturating_add(done as u64);
            let segment = buffer.segment(0..piece.len()).map_err(|_| FsError::Invalid)?;
            buffer.write(0, piece).map_err(|_| FsError::Invalid)?;
            let moved = match self.file().write_direct(handle, segment, at) {
                Ok(Some(flight)) => flight.wait(),
                Ok(None) => self.file().pwrite_through(piece, at),
                Err(error) => Err(error),
            };
            if !count(&mut done, moved, piece.len())? {
                break;
            }
        }
        Ok(done)
    }

    /// Reads at the file's offset, and moves it.
    ///
    /// # Errors
    /// As [`OpenFile::pread`].
    pub fn read(&self, into: &mut [u8]) -> Result<usize, FsError> {
        if self.past().is_none() {
            return self.file().read(into);
        }
        let mut place = self.take_place();
        let done = self.pread(into, *place)?;
        self.leave_place(&mut place, done)?;
        Ok(done)
    }

    /// Writes at the file's offset, with `O_APPEND` at the end, and moves it.
    ///
    /// # Errors
    /// As [`OpenFile::pwrite`].
    pub fn write(&self, from: &[u8]) -> Result<usize, FsError> {
        if self.past().is_none() || self.file().flags().has(OpenFlags::APPEND) {
            let written = self.file().write(from)?;
            if self.past().is_some() {
                // An empty write through: what was appended is on the device.
                self.file().pwrite_through(&[], 0)?;
            }
            return Ok(written);
        }
        let mut place = self.take_place();
        let done = self.pwrite(from, *place)?;
        self.leave_place(&mut place, done)?;
        Ok(done)
    }

    /// The offset, which lies in the description below, locked against other calls of this file.
    fn take_place(&self) -> MutexGuard<'_, u64> {
        let mut place = self.offset();
        *place = self.file().position();
        place
    }

    fn leave_place(&self, place: &mut u64, done: usize) -> Result<(), FsError> {
        let to = i64::try_from(*place + done as u64).map_err(|_| FsError::TooBig)?;
        *place = self.file().seek(to, Whence::Set)?;
        Ok(())
    }

    /// As [`OpenFile::pread`], or [`OpenFile::read`] without an offset, into memory that the device knows.
    ///
    /// # Errors
    /// As those; [`FsError::Invalid`] for a range that leaves the buffer.
    pub fn read_buffer(
        self: &Arc<Self>,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        offset: Option<u64>,
    ) -> Result<usize, FsError> {
        self.move_buffer(Direction::Read, buffer, range, offset)
    }

    /// As [`OpenFile::pwrite`], or [`OpenFile::write`] without an offset, from memory that the device knows.
    ///
    /// # Errors
    /// As those; [`FsError::Invalid`] for a range that leaves the buffer.
    pub fn write_buffer(
        self: &Arc<Self>,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        offset: Option<u64>,
    ) -> Result<usize, FsError> {
        if offset.is_none() && self.file().flags().has(OpenFlags::APPEND) {
            let mut bytes = vec![0; range.len()];
            buffer.read(range.start, &mut bytes).map_err(|_| FsError::Invalid)?;
            return self.write(&bytes);
        }
        self.move_buffer(Direction::Write, buffer, range, offset)
    }

    fn move_buffer(
        self: &Arc<Self>,
        direction: Direction,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        offset: Option<u64>,
    ) -> Result<usize, FsError> {
        if let Some(offset) = offset {
            return self.submit(direction, Arc::clone(buffer), range, offset).wait().result;
        }
        let mut place = self.take_place();
        let done = self.submit(direction, Arc::clone(buffer), range, *place).wait().result?;
        self.leave_place(&mut place, done)?;
        Ok(done)
    }

    /// Moves the offset.
    ///
    /// # Errors
    /// Those of lseek(2).
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64, FsError> {
        let _place = self.offset();
        self.file().seek(offset, whence)
    }

    /// Reads into several pieces, at an offset or at the file's.
    ///
    /// # Errors
    /// As [`OpenFile::pread`].
    pub fn readv(&self, into: &mut [IoSliceMut<'_>], offset: Option<u64>) -> Result<usize, FsError> {
        let mut done = 0;
        for piece in into.iter_mut().filter(|piece| !piece.is_empty()) {
            let moved = match offset {
                Some(offset) => self.pread(piece, offset.saturating_add(done as u64)),
                None => self.read(piece),
            };
            if !count(&mut done, moved, piece.len())? {
                break;
            }
        }
        Ok(done)
    }

    /// Writes several pieces as one, at an offset or at the file's.
    ///
    /// # Errors
    /// As [`OpenFile::pwrite`].
    pub fn writev(&self, from: &[IoSlice<'_>], offset: Option<u64>) -> Result<usize, FsError> {
        // One write, so that an append or a sync is one too.
        let all: Vec<u8> = from.iter().flat_map(|piece| piece.iter().copied()).collect();
        match offset {
            Some(offset) => self.pwrite(&all, offset),
            None => self.write(&all),
        }
    }

    /// Makes data and metadata durable.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn fsync(&self) -> Result<(), FsError> {
        self.file().fsync()
    }

    /// Begins to read `range` of `buffer` at an offset of the file. The buffer comes back with the result.
    pub fn submit_read(self: &Arc<Self>, buffer: Arc<Buffer>, range: Range<usize>, offset: u64) -> Ticket {
        self.submit(Direction::Read, buffer, range, offset)
    }

    /// Begins to write `range` of `buffer` at an offset of the file. The buffer comes back with the result.
    pub fn submit_write(self: &Arc<Self>, buffer: Arc<Buffer>, range: Range<usize>, offset: u64) -> Ticket {
        self.submit(Direction::Write, buffer, range, offset)
    }

    /// Begins to make durable what was written, and what was submitted, before.
    pub fn submit_fsync(self: &Arc<Self>) -> Ticket {
        let file = Arc::clone(self);
        self.in_order(move || file.fsync().map(|()| 0))
    }

    /// Begins a call of this file by a thread of the mount, after those before it.
    pub fn in_order(&self, call: impl FnOnce() -> Result<usize, FsError> + Send + 'static) -> Ticket {
        self.files.run(self.file().number(), call)
    }

    /// Begins a direct call by the device alone; none when it cannot be.
    fn begin(
        &self,
        direction: Direction,
        buffer: &Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Option<Arc<DirectIo>>, FsError> {
        let Some(handle) = self.past() else { return Ok(None) };
        self.check_aligned(offset, range.len())?;
        let segment = buffer.segment(range).map_err(|_| FsError::Invalid)?;
        if !segment.address.0.is_multiple_of(self.direct_align().into()) {
            return Ok(None);
        }
        match direction {
            Direction::Read => self.file().read_direct(handle, segment, offset),
            Direction::Write => self.file().write_direct(handle, segment, offset),
        }
    }

    fn submit(
        self: &Arc<Self>,
        direction: Direction,
        buffer: Arc<Buffer>,
        range: Range<usize>,
        offset: u64,
    ) -> Ticket {
        if range.start > range.end || range.end > buffer.len() {
            return Ticket::done(Err(FsError::Invalid), Some(buffer));
        }
        match self.begin(direction, &buffer, range.clone(), offset) {
            Ok(Some(flight)) => {
                return Ticket { work: Work::Direct(flight, Arc::clone(self)), buffer: Some(buffer) };
            }
            Ok(None) => {}
            Err(error) => return Ticket::done(Err(error), Some(buffer)),
        }
        let (file, own) = (Arc::clone(self), Arc::clone(&buffer));
        let mut ticket = self.in_order(move || file.copy(direction, &own, range, offset));
        ticket.buffer = Some(buffer);
        ticket
    }

    /// A call between a buffer and the file through memory of our own, piece by piece.
    fn copy(
        &self,
        direction: Direction,
        buffer: &Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<usize, FsError> {
        let mut piece = vec![0; range.len().min(PIECE_BYTES)];
        let mut done = 0;
        loop {
            let bytes = (range.len() - done).min(PIECE_BYTES);
            let (at, start) = (offset.saturating_add(done as u64), range.start + done);
            let moved = match direction {
                Direction::Read => self.pread(&mut piece[..bytes], at).inspect(|&moved| {
                    // Inside: the range was checked.
                    let _ = buffer.write(start, &piece[..moved]);
                }),
                Direction::Write => {
                    buffer.read(start, &mut piece[..bytes]).map_err(|_| FsError::Invalid)?;
                    self.pwrite(&piece[..bytes], at)
                }
            };
            if !count(&mut done, moved, bytes)? || done == range.len() {
                return Ok(done);
            }
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // The description lets go of the handle, and the handle of the queue. Requests of others that still use it
        // make the queue busy: it then ends with the device.
        self.file = None;
        self.handle = None;
        if let Some(queue) = self.queue.take() {
            let _ = self.files.device().destroy_queue(queue);
        }
    }
}
