//! The bytes of files where they stay, in memory that keeps its bytes: a [`crate::bytes::Placement`] without a cache.
//!
//! In: byte ranges. Out: copies from and to blocks, stores that are settled, changes of extents and sizes. What has a
//! block is copied in `placement`; first blocks are in `write`, what takes blocks away in `resize`, what a death left
//! in `restore`, what programs map in `maps`, what the medium is told of files in `hints`, stores that the
//! host has no memory for in `spare`.
//! Invariants: who copies from or to a block holds the file's extents, so that nobody takes it away meanwhile; all
//! bytes between the recorded size and the size were stored, in blocks that are recorded or in `fresh` ones.

mod hints;
pub(crate) mod location;
mod maps;
mod placement;
mod record;
mod resize;
mod restore;
mod room;
mod spare;
mod stripes;
mod write;

use crate::ZEROES;
use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::flight::DIRECT_ALIGN_MIN;
use crate::in_place::stripes::{STRIPE_BYTES, Stripe, Stripes};
use crate::inode::Inode;
use crate::mapper::Mapper;
use crate::memory::Memory;
use crate::metadata::Metadata;
use crate::options::{INLINE_BYTES_MAX, MountOptions};
use crate::unrecorded::Unrecorded;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_io::{Device, DeviceError, IoError, Operation};
use nvmed_layout::FileType;
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, OnceLock};
use nvmed_units::{BLOCK_BYTES, Block, ByteOffset, Lba, Page};

/// The bytes of files of a mount, on its medium.
pub(crate) struct InPlace {
    meta: Arc<Metadata>,
    medium: Arc<nvmed_nvm::Memory>,
    pub(crate) unrecorded: Unrecorded,
    stripes: Stripes,
    /// The medium has a buffer that listens to what is said of files.
    takes_hints: bool,
    /// Something was stored over bytes of files since a flush was asked for that covers all of them.
    stored: AtomicBool,
    /// Size of the largest file whose bytes its record holds.
    inline_bytes: u64,
    /// Inodes that programs may store into.
    maps_written: AtomicU32,
    /// Mappings in place that programs may store by.
    stored_to: AtomicU32,
    /// Who shows files where they lie.
    mapper: OnceLock<Arc<dyn Mapper>>,
    lba_bytes: u32,
}

/// Where bytes lie on the medium.
#[inline]
fn place(block: Block, within: usize) -> u64 {
    block.0 * BLOCK_BYTES as u64 + within as u64
}

impl InPlace {
    /// On the medium of a mount.
    pub(crate) fn new(
        meta: &Arc<Metadata>,
        (device, medium): (&Device, &Arc<nvmed_nvm::Memory>),
        memory: &Memory,
        options: &MountOptions,
    ) -> Self {
        Self {
            meta: Arc::clone(meta),
            medium: Arc::clone(medium),
            unrecorded: Unrecorded::new(meta, memory),
            stripes: Stripes::new(),
            takes_hints: medium.takes_hints(),
            stored: AtomicBool::new(false),
            inline_bytes: u64::from(options.inline_bytes.min(INLINE_BYTES_MAX)),
            maps_written: AtomicU32::new(0),
            stored_to: AtomicU32::new(0),
            mapper: OnceLock::new(),
            lba_bytes: device.geometry().lba_bytes,
        }
    }

    /// What a direct transfer is aligned to, in bytes: none begins here, but who asks for one keeps to the rule.
    pub(crate) fn direct_align(&self) -> u32 {
        self.lba_bytes.max(DIRECT_ALIGN_MIN)
    }

    /// What the medium answers, as an error of a device.
    #[cold]
    fn failed(&self, operation: Operation, at: u64, status: Status) -> FsError {
        let lba = Lba(at / u64::from(self.lba_bytes));
        FsError::Device(IoError::Device(DeviceError { operation, lba, status, fault: None }))
    }

    /// Copies bytes at `from` of the medium, which are those at `at` of a file, those of each stripe as they are when
    /// nobody stores to it: at most [`stripes::RANGE_BYTES`].
    #[inline]
    fn copy_out(&self, inode: &Inode, at: ByteOffset, from: u64, into: &mut [u8]) -> Result<(), Status> {
        let look = self.stripes.look(inode.ino, at..at + into.len() as u64);
        let memory = self.medium.present(from, into.len());
        let copied = memory.is_some_and(|memory| {
            memory.give(from as usize, into);
            !memory.is_cut()
        });
        look.each_spoiled(copied, |stripe, part| {
            let (start, end) = (at.until(part.start), at.until(part.end));
            self.copy_with_care(stripe, from + start, &mut into[start as usize..end as usize])
        })
    }

    /// As [`InPlace::copy_out`], where nothing but one copy of one stripe is to be done; whether it was.
    #[inline]
    fn copy_usual(&self, inode: &Inode, at: ByteOffset, from: u64, into: &mut [u8]) -> bool {
        let Some(memory) = self.medium.present(from, into.len()) else { return false };
        let stripe = self.stripes.of(inode.ino, at);
        stripe.copied_once(|| memory.give(from as usize, into)) && !memory.is_cut()
    }

    /// Copies bytes of a stripe whatever that takes.
    #[inline(never)]
    fn copy_with_care(&self, stripe: &Stripe, from: u64, into: &mut [u8]) -> Result<(), Status> {
        stripe.copied(|| self.medium.give(from, into))
    }

    /// Copies bytes to `to` of the medium, which others may be copying as those at `at` of a file, and settles them.
    #[inline]
    fn copy_in(&self, inode: &Inode, at: ByteOffset, to: u64, from: &[u8]) -> Result<(), Status> {
        let left = (STRIPE_BYTES - at.0 % STRIPE_BYTES) as usize;
        let (first, rest) = from.split_at(left.min(from.len()));
        self.copy_in_one(self.stripes.of(inode.ino, at), to, first)?;
        let mut done = left as u64;
        for part in rest.chunks(STRIPE_BYTES as usize) {
            self.copy_in_one(self.stripes.of(inode.ino, at + done), to + done, part)?;
            done += part.len() as u64;
        }
        Ok(())
    }

    /// As [`InPlace::copy_in`], of one stripe.
    #[inline]
    fn copy_in_one(&self, stripe: &Stripe, to: u64, from: &[u8]) -> Result<(), Status> {
        let _storing = stripe.store();
        // What of a program's buffer is not there is told at the door, when the call ends.
        let stored = self.medium.take(to, from);
        self.medium.settle();
        stored.map(|_| ())
    }

    /// Zeroes what lies behind an end in its block, at `to` of the medium.
    fn zero_behind(&self, inode: &Inode, end: ByteOffset, to: u64) -> Result<(), FsError> {
        let stored = self.copy_in(inode, end, to, &ZEROES[end.within()..]);
        stored.map_err(|status| self.failed(Operation::Write { fua: false }, to, status))?;
        self.note_stored(inode);
        Ok(())
    }

    /// Bytes of a file were stored over and settled: its next sync, and one of all files, has a flush.
    #[inline]
    fn note_stored(&self, inode: &Inode) {
        // Barrier P4: a store of the flag that is left out was made by somebody whose flush has not begun, since the
        // bytes were settled, and then a locked operation was made, before this load.
        for flag in [&inode.data.stored, &self.stored] {
            if !flag.load(Ordering::SeqCst) {
                flag.store(true, Ordering::SeqCst);
            }
        }
    }

    /// What a page lies on.
    fn mapping(&self, inode: &Inode, page: Page) -> Result<BlockMapping, FsError> {
        loop {
            let found = inode.data.extents.read().mapping(page);
            match found {
                Some(mapping) => return Ok(mapping),
                None => self.load(inode)?,
            }
        }
    }

    /// Has the extents of a file at hand.
    fn load(&self, inode: &Inode) -> Result<(), FsError> {
        let mut state = inode.lock();
        self.meta.with_extents(inode, &mut state, |_, _| Ok(()))
    }

    /// The last description of a file is being closed: nobody appends to it any more.
    pub(crate) fn closing(&self, inode: &Arc<Inode>) {
        // Who was never synced has no room; one without a name goes with all its blocks.
        let may_have_room = inode.synced.load(Ordering::Relaxed) && inode.nlink() > 0;
        // Nobody is about to make room of what was taken ahead.
        let grow = may_have_room.then(|| inode.data.grow());
        if let Some(grow) = &grow {
            // What cannot be recorded as free stays, as after a power cut.
            let _ = self.meta.drop_room(grow, inode);
        }
        self.meta.closing(inode);
    }

    /// The inode leaves memory: what no record tells of goes, promises are given back.
    pub(crate) fn forget(&self, inode: &Arc<Inode>) {
        if inode.kind != FileType::File {
            return;
        }
        let opens = inode.opens.load(Ordering::SeqCst);
        assert_eq!(opens, 0, "inode {} leaves memory while it is open", inode.ino);
        let quiet = inode.data.quiet();
        self.drop_fresh(&quiet, inode, Page::FIRST);
        self.give_back_ahead(inode);
        self.meta.drop_prealloc(inode);
        self.unrecorded.forget(inode);
        self.forget_extents(inode);
        self.draw_ticket(inode);
        self.meta.journal.order.forget(inode.data.ticket.load(Ordering::SeqCst));
    }
}
