//! Files mapped into programs.
//!
//! The kernel maps a memfd that holds a copy of the file; it is made by the first map and goes with the
//! last. The file's placement stays what is written back and what outlives the process: a write goes to both, and
//! what programs stored into a writable mapping is found by comparing, at msync, fsync, unmap and
//! periodic write-back. Reads of a file that is mapped writable come from the memfd.

use crate::ZEROES;
use crate::bytes::{Bytes, Placement};
use crate::error::FsError;
use crate::filedata::{FileData, Growing, Map};
use crate::inode::{Inode, InodeTable};
use core::ops::Range;
use core::sync::atomic::{Ordering, fence};
use nvmed_mutant::Mutant;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SeekFrom};
use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

/// Bytes moved at once between a file's placement and the memfd.
const CHUNK_BYTES: usize = 64 << 10;

/// A mapped file: map `fd`, shared or private. It holds the file's bytes until every [`crate::File::map`] has
/// seen its [`crate::File::unmap`].
#[derive(Debug)]
pub struct MappedFile {
    /// The per-inode memfd.
    pub fd: Arc<QuietFd>,
}

fn write_all(fd: &QuietFd, mut bytes: &[u8], mut offset: ByteOffset) -> Result<(), FsError> {
    while !bytes.is_empty() {
        let done = rustix::io::pwrite(fd, bytes, offset.0)?;
        if done == 0 {
            return Err(FsError::Host(Errno::IO));
        }
        bytes = &bytes[done..];
        offset += done as u64;
    }
    Ok(())
}

/// Reads what is there; bytes past the end of the memfd stay as they are.
fn read_some(fd: &QuietFd, into: &mut [u8], offset: ByteOffset) -> Result<usize, FsError> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(fd, &mut into[done..], offset.0 + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(done)
}

/// Writers copy to the cache, then look whether the file is mapped, without a barrier in between: after
/// this call one that did not see the flag has finished its copy. The kernel runs the barrier on them.
fn settle_writers() {
    fence(Ordering::SeqCst);
    // A kernel without the command leaves a window of some nanoseconds between two racing threads.
    let _ = membarrier(MembarrierCommand::RegisterPrivateExpedited)
        .and_then(|()| membarrier(MembarrierCommand::PrivateExpedited));
}

/// Tells the kernel that this process maps files. Worth its while before the process has a second thread: after that it
/// takes the kernel 10 to 30 ms, which the first [`crate::File::map`] pays otherwise.
pub fn expect_maps() {
    // Where it fails, maps find out themselves.
    let _ = membarrier(MembarrierCommand::RegisterPrivateExpedited);
}

/// The mappings of files over any placement.
pub(crate) trait Mappings: Bytes {
    /// Maps a file; `write` when stores are to become the file's.
    ///
    /// # Errors
    /// The host's; what reading the file answers.
    fn map(&self, inode: &Arc<Inode>, write: bool) -> Result<Arc<QuietFd>, FsError> {
        self.map_held(&inode.data.grow(), inode, write)
    }

    /// As [`Mappings::map`], by who holds `grow`.
    ///
    /// # Errors
    /// [`FsError::Busy`] while the file is mapped where it lies.
    fn map_held(&self, grow: &Growing<'_>, inode: &Arc<Inode>, write: bool) -> Result<Arc<QuietFd>, FsError> {
        assert!(grow.is_of(&inode.data), "inode {} is mapped under another's lock", inode.ino);
        if inode.data.in_place.is_any() {
            return Err(FsError::Busy);
        }
        let mut map = inode.data.map();
        if map.is_none() {
            // From here on no write is only a copy; one that began before looks again when it is done.
            inode.data.mapped.store(true, Ordering::SeqCst);
            settle_writers();
            match self.copy_out(inode) {
                Ok(fd) => *map = Some(Box::new(Map { fd: Arc::new(fd), readers: 0, writers: 0 })),
                Err(error) => {
                    inode.data.mapped.store(false, Ordering::SeqCst);
                    return Err(error);
                }
            }
        }
        let map = map.as_mut().expect("it was just made");
        if write {
            map.writers += 1;
            if !inode.data.map_written.swap(true, Ordering::SeqCst) {
                self.maps_written().fetch_add(1, Ordering::SeqCst);
            }
        } else {
            map.readers += 1;
        }
        Ok(Arc::clone(&map.fd))
    }

    /// A memfd with the bytes of the file.
    fn copy_out(&self, inode: &Arc<Inode>) -> Result<QuietFd, FsError> {
        let fd = QuietFd::new(rustix::fs::memfd_create("nvmed-file", MemfdFlags::CLOEXEC)?);
        // Everybody may open a memfd anew, as it is made: who got this one to read would write.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let file_end = inode.end();
        rustix::fs::ftruncate(&fd, file_end.0)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = ByteOffset::FIRST;
        while let Some(data) = self.next_of(inode, at, true)?.filter(|data| *data < file_end) {
            let end = self.next_of(inode, data, false)?.unwrap_or(file_end).min(file_end);
            assert!(at <= data && data < end, "the data from {at} on are {data}..{end}");
            at = data;
            while at < end {
                let part = CHUNK_BYTES.min((end - at) as usize);
                self.read_inside(inode, &mut chunk[..part], at)?;
                write_all(&fd, &chunk[..part], at)?;
                at += part as u64;
            }
        }
        Ok(fd)
    }

    /// One mapping fewer.
    ///
    /// # Errors
    /// [`FsError::Invalid`] without such a mapping; as for a write.
    fn unmap(&self, inode: &Arc<Inode>, write: bool) -> Result<(), FsError> {
        let grow = inode.data.grow();
        let gathered = if write { self.gather(&grow, inode, ByteOffset::ALL) } else { Ok(()) };
        let mut held = inode.data.map();
        let Some(map) = held.as_mut() else { return Err(FsError::Invalid) };
        let count = if write { &mut map.writers } else { &mut map.readers };
        *count = count.checked_sub(1).ok_or(FsError::Invalid)?;
        let written = map.writers > 0;
        let gone = !written && map.readers == 0;
        if !written && inode.data.map_written.swap(false, Ordering::SeqCst) {
            let files = self.maps_written().fetch_sub(1, Ordering::SeqCst);
            assert!(files > 0, "inode {} was not counted as mapped to be written", inode.ino);
        }
        if gone {
            *held = None;
            inode.data.mapped.store(false, Ordering::SeqCst);
        }
        gathered
    }

    /// Brings what programs stored into their mappings of an inode into its placement.
    ///
    /// # Errors
    /// As for a write.
    fn gather_mapped(&self, inode: &Arc<Inode>, range: Range<ByteOffset>) -> Result<(), FsError> {
        if inode.data.map_written.load(Ordering::Acquire) {
            self.gather(&inode.data.grow(), inode, range)?;
        }
        Ok(())
    }

    /// As [`Mappings::gather_mapped`], for all inodes.
    ///
    /// # Errors
    /// The first that occurred; the others were tried.
    fn gather_all_mapped(&self, inodes: &InodeTable) -> Result<(), FsError> {
        if self.maps_written().load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let mapped = inodes.collect(|inode| inode.data.map_written.load(Ordering::Relaxed));
        let gather =
            |result: Result<(), FsError>, inode| result.and(self.gather_mapped(inode, ByteOffset::ALL));
        mapped.iter().fold(Ok(()), gather)
    }

    /// As [`Mappings::gather_mapped`], by who holds `grow`.
    ///
    /// # Errors
    /// As for a write.
    fn gather(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "stores into inode {} are gathered under another's lock", inode.ino);
        let fd = match &*inode.data.map() {
            Some(map) if map.writers > 0 => Arc::clone(&map.fd),
            _ => return Ok(()),
        };
        let end = range.end.page_end().start().min(inode.end());
        let mut at = range.start.page().start();
        let (mut stored, mut cached) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        let mut changed = false;
        while at < end {
            // A hole of the memfd was never stored to, and is one of the file's: holes are copied as such.
            at = match rustix::fs::seek(&fd, SeekFrom::Data(at.0)) {
                Ok(data) => ByteOffset(data).page().start(),
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let part = CHUNK_BYTES.min(at.until(end) as usize);
            let part = read_some(&fd, &mut stored[..part], at)?;
            if part == 0 {
                break;
            }
            changed |= self.gather_chunk(grow, inode, at, &stored[..part], &mut cached[..part])?;
            at += part as u64;
        }
        if changed {
            self.modified(inode);
        }
        Ok(())
    }

    /// Writes the pages of a chunk that differ from the file's into it; whether there were any.
    fn gather_chunk(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        at: ByteOffset,
        stored: &[u8],
        cached: &mut [u8],
    ) -> Result<bool, FsError> {
        self.read_inside(inode, cached, at)?;
        let mut changed = false;
        for (index, (stored, cached)) in
            stored.chunks(BLOCK_BYTES).zip(cached.chunks(BLOCK_BYTES)).enumerate()
        {
            if stored != cached {
                let at = at + (index * BLOCK_BYTES) as u64;
                self.write(grow, inode, stored, at).map_err(|short| short.why)?;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Reads from the memory that programs store into.
    ///
    /// # Errors
    /// The host's.
    #[cold]
    fn read_mapped(&self, inode: &Arc<Inode>, into: &mut [u8], offset: ByteOffset) -> Result<usize, FsError> {
        let rest = offset.until(inode.end());
        let len = into.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let fd = inode.data.map().as_ref().map(|map| Arc::clone(&map.fd));
        match fd {
            Some(fd) => read_some(&fd, &mut into[..len], offset),
            // Unmapped at this moment: the placement has everything.
            None => self.read_inside(inode, &mut into[..len], offset).map(|()| len),
        }
    }
}

impl<P: Placement> Mappings for P {}

impl FileData {
    /// A write that is also seen by those who have the file mapped. The caller holds `grow`.
    pub(crate) fn write_mapped(&self, from: &[u8], offset: ByteOffset) -> Result<(), FsError> {
        match self.mapped.load(Ordering::SeqCst).then(|| self.map()).as_deref() {
            Some(Some(map)) => write_all(&map.fd, from, offset),
            _ => Ok(()),
        }
    }

    /// The file ends somewhere else: the memfd does, too. The kernel sees to SIGBUS past the end.
    pub(crate) fn resize_mapped(&self, end: ByteOffset) -> Result<(), FsError> {
        match &*self.map() {
            Some(map) => Ok(rustix::fs::ftruncate(&map.fd, end.0)?),
            None => Ok(()),
        }
    }

    /// A range of the file became a hole.
    pub(crate) fn punch_mapped(&self, range: Range<ByteOffset>) -> Result<(), FsError> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match &*self.map() {
            Some(map) => Ok(rustix::fs::fallocate(&map.fd, how, range.start.0, range.end - range.start)?),
            None => Ok(()),
        }
    }

    /// What lies behind the end of the file in its last page is zero from now on. The caller holds `grow`.
    pub(crate) fn zero_mapped_tail(&self, end: ByteOffset) -> Result<(), FsError> {
        let within = end.within();
        if within == 0 || Mutant::TailNotZeroed.is_made() {
            return Ok(());
        }
        self.write_mapped(&ZEROES[within..], end)
    }
}
