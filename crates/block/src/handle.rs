//! A handle on a disk, and the calls on it.

use crate::aio::Flights;
use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::error::{BlockError, InvalidOption};
use crate::memory::Memory;
use crate::range::Mode;
use crate::readahead::Ahead;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{Binding, Command, Handle, HandleSettings, Operation, Source, Stats};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::{Lba, Page};
use std::io::{IoSlice, IoSliceMut, SeekFrom};

/// What a call is about to do: what a queue may be chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What it does.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Chooses among the queues of a handle: an index into them, counted modulo their number.
pub type Choice = Arc<dyn Fn(&Access) -> usize + Send + Sync>;

/// The queues of a handle.
#[derive(Clone)]
pub enum Route {
    /// As the binding says: one queue, or all of a device.
    Bound(Binding),
    /// One of these for each call, by choice.
    Chosen(Vec<Binding>, Choice),
}

impl core::fmt::Debug for Route {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bound(binding) => f.debug_tuple("Bound").field(binding).finish(),
            Self::Chosen(bindings, _) => f.debug_tuple("Chosen").field(bindings).finish_non_exhaustive(),
        }
    }
}

/// What can be changed while a handle is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Past the cache, if the disk has one.
    pub direct: bool,
    /// A write is durable when it returns.
    pub sync: bool,
    /// Its calls pass others on the way to the device, whoever makes them ([`ByteHandle::urgently`] does it for single
    /// calls).
    pub urgent: bool,
    /// Bytes read ahead of a sequential or advised reader at most, if there is a cache; 0 is off.
    pub readahead_bytes: u64,
    /// Waiting, priority, weight, rate, stream, timeout.
    pub io: HandleSettings,
}

impl Default for Settings {
    /// Through the cache if there is one, written back, and 128 KiB read ahead as by Linux.
    fn default() -> Self {
        let io = HandleSettings::default();
        Self { direct: false, sync: false, urgent: false, readahead_bytes: 128 << 10, io }
    }
}

/// A way to the bytes of a disk, with a position of its own.
///
/// Threads may share it. Calls that use the position take turns, as on a file descriptor.
pub struct ByteHandle {
    pub(crate) disk: Arc<Disk>,
    pub(crate) flights: Arc<Flights>,
    choice: Option<Choice>,
    position: Mutex<u64>,
    direct: AtomicBool,
    pub(crate) sync: AtomicBool,
    urgent: AtomicBool,
    ahead: Ahead,
    /// Failed write-backs that this handle was told of.
    failed_seen: AtomicU32,
}

impl core::fmt::Debug for ByteHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ByteHandle").field("settings", &self.settings()).finish_non_exhaustive()
    }
}

impl ByteHandle {
    pub(crate) fn new(disk: Arc<Disk>, route: Route, settings: Settings) -> Result<Self, BlockError> {
        let (bindings, choice) = match route {
            Route::Bound(binding) => (vec![binding], None),
            Route::Chosen(bindings, _) if bindings.is_empty() => {
                return Err(InvalidOption::NoQueue.into());
            }
            Route::Chosen(bindings, choice) => (bindings, Some(choice)),
        };
        let io = bindings.into_iter().map(|binding| disk.device().bind(binding));
        disk.look();
        let handle = Self {
            flights: Flights::new(&disk, io.collect::<Result<_, _>>()?),
            ahead: Ahead::new(0),
            failed_seen: AtomicU32::new(disk.failed.load(Ordering::SeqCst)),
            disk,
            choice,
            position: Mutex::new(0),
            direct: AtomicBool::new(false),
            sync: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
        };
        handle.set(settings)?;
        Ok(handle)
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// What it is set to.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            direct: self.direct.load(Ordering::Relaxed),
            sync: self.sync.load(Ordering::Relaxed),
            urgent: self.urgent.load(Ordering::Relaxed),
            readahead_bytes: self.ahead.bytes(),
            io: self.flights.io[0].settings(),
        }
    }

    /// Sets it for the calls to come.
    ///
    /// # Errors
    /// [`BlockError::Io`] for a value that makes no sense; nothing has changed then.
    pub fn set(&self, settings: Settings) -> Result<(), BlockError> {
        for io in &self.flights.io {
            io.set(settings.io)?;
        }
        self.direct.store(settings.direct, Ordering::Relaxed);
        self.sync.store(settings.sync, Ordering::Relaxed);
        if settings.urgent {
            self.disk.device().expect_urgent(Source::Told);
        }
        self.urgent.store(settings.urgent, Ordering::Relaxed);
        self.ahead.set_bytes(settings.readahead_bytes);
        Ok(())
    }

    /// Tells which ranges of bytes will be read next, and in which order: a file's extents, from a caller above that
    /// knows them. A miss in one of them brings in the following ones too, up to the readahead of the settings.
    /// Replaces what was told before; more than [`crate::ADVICE_MAX`] ranges are cut.
    pub fn advise(&self, ranges: &[Range<u64>]) {
        self.ahead.advise(ranges);
    }

    /// Does `work` with its calls, the asynchronous ones that it submits among them, passing others on the way to the
    /// device.
    pub fn urgently<T>(&self, work: impl FnOnce() -> T) -> T {
        self.disk.device().expect_urgent(Source::Told);
        caller::with(Urgency::Urgent, work)
    }

    /// Does a call of this handle, urgently where its calls are.
    #[inline]
    pub(crate) fn ruled<T>(&self, call: impl FnOnce() -> T) -> T {
        if self.urgent.load(Ordering::Relaxed) { caller::with(Urgency::Urgent, call) } else { call() }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// The queue for a call.
    fn io(&self, operation: Operation, offset: u64, bytes: u64) -> &Handle {
        &self.flights.io[self.queue(operation, offset, bytes)]
    }

    pub(crate) fn queue(&self, operation: Operation, offset: u64, bytes: u64) -> usize {
        match &self.choice {
            None => 0,
            Some(choose) => choose(&Access { operation, offset, bytes }) % self.flights.io.len(),
        }
    }

    fn position(&self) -> MutexGuard<'_, u64> {
        self.position.lock()
    }

    /// Moves the position and answers it, in bytes from the start of the device.
    ///
    /// # Errors
    /// [`BlockError::Seek`] for a position before the start or past the end, as Linux has it for block devices.
    pub fn seek(&self, to: SeekFrom) -> Result<u64, BlockError> {
        let end = self.disk.bytes();
        let mut position = self.position();
        let (base, distance) = match to {
            SeekFrom::Start(at) if at <= end => (at, 0),
            SeekFrom::Start(at) => return Err(BlockError::Seek { base: at, distance: 0, end }),
            SeekFrom::Current(distance) => (*position, distance),
            SeekFrom::End(distance) => (end, distance),
        };
        let moved = base.checked_add_signed(distance).filter(|at| *at <= end);
        *position = moved.ok_or(BlockError::Seek { base, distance, end })?;
        Ok(*position)
    }

    /// Reads from the position on, and moves it. Fewer bytes come at the end of the device, and none past it.
    ///
    /// # Errors
    /// [`BlockError`]; after an error in the middle, the bytes before it.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, BlockError> {
        self.readv(&mut [IoSliceMut::new(into)])
    }

    /// As [`ByteHandle::read`], into several pieces of memory one after the other.
    ///
    /// # Errors
    /// As [`ByteHandle::read`].
    pub fn readv(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize, BlockError> {
        let mut position = self.position();
        let done = self.preadv(into, *position)?;
        *position += done as u64;
        Ok(done)
    }

    /// As [`ByteHandle::read`], from byte `offset` on; the position stays.
    ///
    /// # Errors
    /// As [`ByteHandle::read`].
    pub fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize, BlockError> {
        self.preadv(&mut [IoSliceMut::new(into)], offset)
    }

    /// As [`ByteHandle::readv`], from byte `offset` on; the position stays.
    ///
    /// # Errors
    /// As [`ByteHandle::read`].
    pub fn preadv(&self, into: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize, BlockError> {
        self.read_at(&mut Memory::Into(into), offset)
    }

    /// As [`ByteHandle::pread`], into a range of a registered buffer: without a copy if all is aligned to blocks.
    ///
    /// # Errors
    /// As [`ByteHandle::read`], and [`BlockError::BufferRange`].
    pub fn read_buffer(&self, into: &Buffer, range: Range<usize>, offset: u64) -> Result<usize, BlockError> {
        self.read_at(&mut Memory::buffer(into, range)?, offset)
    }

    /// As [`ByteHandle::read_buffer`], from the position on, which moves.
    ///
    /// # Errors
    /// As [`ByteHandle::read_buffer`].
    pub fn read_buffer_next(&self, into: &Buffer, range: Range<usize>) -> Result<usize, BlockError> {
        let mut position = self.position();
        let done = self.read_buffer(into, range, *position)?;
        *position += done as u64;
        Ok(done)
    }

    /// Writes from the position on, and moves it. Fewer bytes fit at the end of the device.
    ///
    /// # Errors
    /// [`BlockError`]; [`BlockError::NoSpace`] at the end; [`BlockError::Holds`] where a file system would be written
    /// over that [`crate::DiskOptions::overwrite`] does not give up. After an error in the middle, the bytes before it.
    pub fn write(&self, from: &[u8]) -> Result<usize, BlockError> {
        self.writev(&[IoSlice::new(from)])
    }

    /// As [`ByteHandle::write`], from several pieces of memory one after the other.
    ///
    /// # Errors
    /// As [`ByteHandle::write`].
    pub fn writev(&self, from: &[IoSlice<'_>]) -> Result<usize, BlockError> {
        let mut position = self.position();
        let done = self.pwritev(from, *position)?;
        *position += done as u64;
        Ok(done)
    }

    /// As [`ByteHandle::write`], from byte `offset` on; the position stays.
    ///
    /// # Errors
    /// As [`ByteHandle::write`].
    pub fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize, BlockError> {
        self.pwritev(&[IoSlice::new(from)], offset)
    }

    /// As [`ByteHandle::writev`], from byte `offset` on; the position stays.
    ///
    /// # Errors
    /// As [`ByteHandle::write`].
    pub fn pwritev(&self, from: &[IoSlice<'_>], offset: u64) -> Result<usize, BlockError> {
        self.write_at(&Memory::From(from), offset)
    }

    /// As [`ByteHandle::pwrite`], from a range of a registered buffer: without a copy if all is aligned to blocks.
    ///
    /// # Errors
    /// As [`ByteHandle::write`], and [`BlockError::BufferRange`].
    pub fn write_buffer(&self, from: &Buffer, range: Range<usize>, offset: u64) -> Result<usize, BlockError> {
        self.write_at(&Memory::buffer(from, range)?, offset)
    }

    /// As [`ByteHandle::write_buffer`], from the position on, which moves.
    ///
    /// # Errors
    /// As [`ByteHandle::write_buffer`].
    pub fn write_buffer_next(&self, from: &Buffer, range: Range<usize>) -> Result<usize, BlockError> {
        let mut position = self.position();
        let done = self.write_buffer(from, range, *position)?;
        *position += done as u64;
        Ok(done)
    }

    pub(crate) fn read_at(&self, memory: &mut Memory<'_, '_>, offset: u64) -> Result<usize, BlockError> {
        let left = self.disk.bytes().saturating_sub(offset);
        let len = memory.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        let io = self.io(Operation::Read, offset, len as u64);
        self.ruled(|| {
            if !self.is_direct() {
                return self.disk.read_cached(io, &self.ahead, memory, offset, len);
            }
            self.disk.settle(io, offset, len as u64)?;
            self.disk.read_direct(io, memory, 0, offset, len)
        })
    }

    pub(crate) fn write_at(&self, memory: &Memory<'_, '_>, offset: u64) -> Result<usize, BlockError> {
        let (wanted, end) = (memory.len(), self.disk.bytes());
        if wanted == 0 {
            return Ok(0);
        }
        self.disk.may_write()?;
        if offset >= end {
            return Err(BlockError::NoSpace { offset, bytes: wanted as u64, end });
        }
        let len = wanted.min(usize::try_from(end - offset).unwrap_or(usize::MAX));
        let fua = self.sync.load(Ordering::Relaxed);
        let io = self.io(Operation::Write { fua }, offset, len as u64);
        self.ruled(|| match self.is_direct() {
            true => self.disk.write_past(io, memory, offset, len, fua),
            false => self.disk.write_cached(io, memory, offset, len, fua),
        })
    }

    /// Makes every write that returned before durable.
    ///
    /// # Errors
    /// The device's; nothing is known of what is durable then. [`BlockError::WriteBack`], once for each handle, when
    /// data of the cache could not be written since the last flush; it was tried again now.
    pub fn flush(&self) -> Result<(), BlockError> {
        let io = self.io(Operation::Flush, 0, 0);
        self.ruled(|| {
            let cleaned = self.clean(io);
            io.flush()?;
            cleaned
        })
    }

    /// Writes the cache's dirty pages to the device, and tells of failures since the last time.
    pub(crate) fn clean(&self, io: &Handle) -> Result<(), BlockError> {
        let written = match self.disk.cache() {
            Some(cache) => cache.write_back(io, Page::ALL, false).map(|_| ()),
            None => Ok(()),
        };
        let failed = self.disk.failed.load(Ordering::SeqCst);
        let seen = self.failed_seen.swap(failed, Ordering::SeqCst);
        written?;
        if failed == seen { Ok(()) } else { Err(BlockError::WriteBack { count: failed.wrapping_sub(seen) }) }
    }

    /// Tells the device that a range is no longer needed: its blocks may read as anything from then on. Blocks that lie
    /// only partly in the range are left alone.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`], [`BlockError::Holds`], the device's.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.check(offset, bytes)?;
        let block = u64::from(self.disk.lba_bytes());
        let (first, last) = (offset.next_multiple_of(block), (offset + bytes) / block * block);
        if first >= last {
            return Ok(());
        }
        self.disk.may_write()?;
        let io = self.io(Operation::Discard, offset, bytes);
        self.ruled(|| {
            let _held = self.disk.lock_past(io, first, last - first)?;
            let shift = self.disk.lba_shift();
            Ok(io.discard(Lba(first >> shift), (last - first) >> shift)?)
        })
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`], [`BlockError::Holds`], the device's.
    pub fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.check(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.disk.may_write()?;
        let fua = self.sync.load(Ordering::Relaxed);
        let io = self.io(Operation::WriteZeroes { fua }, offset, bytes);
        self.ruled(|| {
            let _held = self.disk.lock_past(io, offset, bytes)?;
            self.disk.zero_direct(io, offset, bytes, fua)
        })
    }

    /// Compares the bytes at `offset` with `with`.
    ///
    /// # Errors
    /// [`BlockError::Different`], or the device's own status, both `EILSEQ`; [`BlockError::OutOfRange`].
    pub fn compare(&self, with: &[u8], offset: u64) -> Result<(), BlockError> {
        self.compare_at(&Memory::From(&[IoSlice::new(with)]), offset)
    }

    /// As [`ByteHandle::compare`], with a range of a registered buffer; aligned to blocks, the device compares.
    ///
    /// # Errors
    /// As [`ByteHandle::compare`], and [`BlockError::BufferRange`].
    pub fn compare_buffer(&self, with: &Buffer, range: Range<usize>, offset: u64) -> Result<(), BlockError> {
        self.compare_at(&Memory::buffer(with, range)?, offset)
    }

    pub(crate) fn compare_at(&self, memory: &Memory<'_, '_>, offset: u64) -> Result<(), BlockError> {
        let len = memory.len();
        self.check(offset, len as u64)?;
        if len == 0 {
            return Ok(());
        }
        let io = self.io(Operation::Compare, offset, len as u64);
        self.ruled(|| {
            self.disk.settle(io, offset, len as u64)?;
            self.disk.compare_direct(io, memory, offset, len)
        })
    }

    /// Sends a command as it is and waits for its end; answers dword 0 of its completion. The device reads or writes a
    /// range of a buffer of this disk, which begins on 4 bytes. The cache writes everything back and forgets it before,
    /// since nobody knows what the command does.
    ///
    /// # Errors
    /// [`BlockError::BufferRange`], [`BlockError::Options`] for another disk's buffer, the device's.
    pub fn passthrough(
        &self,
        command: &Command,
        data: Option<(&Buffer, Range<usize>)>,
    ) -> Result<u32, BlockError> {
        let segment = match data {
            Some((buffer, _)) if !self.disk.owns(buffer) => {
                return Err(InvalidOption::ForeignBuffer.into());
            }
            Some((buffer, range)) => Some(buffer.segment(range)?),
            None => None,
        };
        let io = self.io(Operation::Passthrough { opcode: command.opcode }, 0, 0);
        let _held = self.disk.lock(0..u64::MAX, Mode::Exclusive);
        if let Some(cache) = self.disk.cache() {
            self.ruled(|| cache.empty(io))?;
        }
        let result = self.ruled(|| io.passthrough(command, segment.as_slice()));
        self.disk.look_again();
        Ok(result?)
    }

    /// What this handle asked of the device.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        self.flights.io.iter().for_each(|io| all += io.stats());
        all
    }

    /// Checks that a range lies on the device.
    fn check(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let end = self.disk.bytes();
        let inside = offset.checked_add(bytes).is_some_and(|last| last <= end);
        if inside { Ok(()) } else { Err(BlockError::OutOfRange { offset, bytes, end }) }
    }
}

impl Drop for ByteHandle {
    fn drop(&mut self) {
        // The device still writes to the memory of what is under way.
        self.flights.drain();
    }
}
