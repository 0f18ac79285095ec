//! Stores that the host has no memory for, of changes that were promised ahead: the page that is stored to gets a spare
//! block (`metadata/spare`), with what it has.
//!
//! Who promises ahead tells nobody where the page lay, or says that it moves ([`crate::File::pages_spared`]).

use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::filedata::Growing;
use crate::in_place::write::Piece;
use crate::in_place::{InPlace, place};
use crate::inode::Inode;
use crate::metadata::promises::PagePromise;
use core::sync::atomic::Ordering;
use nvmed_io::{DeviceError, IoError, Operation};
use nvmed_layout::record::{Extent, Tail};
use nvmed_nvme::Status;
use nvmed_sys::door;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset, Page};

/// Whether the host has no memory for a store.
fn lacks_memory(error: &FsError) -> bool {
    let FsError::Device(IoError::Device(DeviceError { status, .. })) = error else { return false };
    *status == Status::CAPACITY_EXCEEDED
}

impl InPlace {
    /// Promises pages of a file ahead, and memory on the host for each of them.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`]; the host has none.
    pub(crate) fn promise_ahead(&self, inode: &Inode, pages: u64) -> Result<(), FsError> {
        self.meta.promise_ahead(inode, pages)?;
        if !self.medium.is_file() {
            return Ok(());
        }
        self.meta.spare_for(inode, pages, &|run| {
            let at = place(run.start, 0);
            let secured = self.medium.allocate(at, u64::from(run.blocks) * BLOCK_BYTES as u64);
            secured.map_err(|status| self.failed(Operation::Write { fua: false }, at, status))
        })
    }

    /// Gives back what was promised ahead and not used.
    pub(crate) fn give_back_ahead(&self, inode: &Inode) {
        self.meta.give_back_ahead(inode);
        self.meta.give_back_spare(inode);
    }

    /// What a store has answered that the host may have had no memory for; if so, the piece goes to spare blocks as far
    /// as the file has some.
    pub(super) fn or_spare(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        piece: &Piece<'_>,
        stored: Result<usize, FsError>,
    ) -> Result<usize, FsError> {
        let spared = inode.data.spares.load(Ordering::SeqCst);
        let refused = match stored {
            Err(error) if spared > 0 && lacks_memory(&error) => error,
            stored => return stored,
        };
        // Once for all of it: the host would refuse each page.
        let part = piece.until(piece.at.page() + spared);
        self.spare_pages(grow, inode, &part)
            .map_err(|error| if lacks_memory(&error) { refused } else { error })?;
        Ok(part.from.len())
    }

    fn spare_pages(&self, grow: &Growing<'_>, inode: &Arc<Inode>, piece: &Piece<'_>) -> Result<(), FsError> {
        // What is recorded is in one place. Parts of this write before the piece may lie behind the file's end still.
        self.meta.drop_room(grow, inode)?;
        self.record_up_to(&inode.data.quiet(), inode, inode.end().max(piece.at))?;
        inode.data.residence.bar(grow);
        let inline = inode.lock().record().inline_data().cloned();
        if let Some(inline) = inline {
            let mut bytes = [0; BLOCK_BYTES];
            bytes[..inline.len()].copy_from_slice(&inline);
            self.put_spare(inode, Page::FIRST, &bytes, inode.end())?;
        }
        let mut done = 0;
        while done < piece.from.len() {
            let at = piece.at + done as u64;
            let page = at.page();
            let within = at.within();
            let part = &piece.from[done..piece.from.len().min(done + BLOCK_BYTES - within)];
            let mut bytes = [0; BLOCK_BYTES];
            if let BlockMapping::Block { block, unwritten: false, .. } = self.mapping(inode, page)? {
                if self.copy_in(inode, at, place(block, within), part).is_ok() {
                    self.note_stored(inode);
                    done += part.len();
                    continue;
                }
                let from = place(block, 0);
                let read = self.medium.read(from, &mut bytes);
                read.map_err(|status| self.failed(Operation::Read, from, status))?;
            }
            let into = &mut bytes[within..within + part.len()];
            let arrived = door::take(part, into);
            if arrived < part.len() {
                into[arrived..].fill(0);
                door::note(part.as_ptr().addr() + arrived);
            }
            self.put_spare(inode, page, &bytes, at + part.len() as u64)?;
            done += part.len();
        }
        Ok(())
    }

    /// Gives a page that no fresh block has a spare one with these bytes, in place of what it had, of a file that
    /// reaches `end` at least, as one batch.
    fn put_spare(
        &self,
        inode: &Arc<Inode>,
        page: Page,
        bytes: &[u8; BLOCK_BYTES],
        end: ByteOffset,
    ) -> Result<(), FsError> {
        let mut promise = PagePromise::made_ahead_or_now(&self.meta, inode, 1)?;
        let run = self.meta.take_spare(inode).ok_or(FsError::NoSpace)?;
        let to = place(run.start, 0);
        let stored = self.medium.store(to, bytes);
        self.medium.settle();
        let extent = Extent { logical: page, physical: run.start, blocks: 1, flags: 0 };
        stored
            .map_err(|status| self.failed(Operation::Write { fua: false }, to, status))
            .and_then(|()| {
                self.meta.edit(inode, 1, |change, extents, record| {
                    // What is written had a promise, of room for its records too.
                    change.use_headroom();
                    change.require_flush();
                    record.size = record.size.max(end.0);
                    if record.inline_data().is_some() {
                        record.tail = Tail::EMPTY;
                    }
                    let mut freed = Ok(());
                    extents.cut(page..page + 1, |piece| freed = change.free_run((&piece).into()));
                    freed?;
                    extents.insert(extent);
                    change.use_run(run)
                })
            })
            .inspect_err(|_| self.meta.blocks.give_back(run))?;
        promise.redeemed(1);
        Ok(())
    }
}
