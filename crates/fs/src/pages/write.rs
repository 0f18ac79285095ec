//! Writes that the cache cannot take as they are: pages that are missing, new, or past the end.

use crate::ZEROES;
use crate::bytes::{Data, Short};
use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::filedata::Growing;
use crate::inode::Inode;
use crate::metadata::promises::PagePromise;
use crate::pages::Pages;
use nvmed_cache::{Claim, Claimed, PageState, Written};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Arc;
use nvmed_units::{BLOCK_BYTES, ByteOffset, Page};

/// A block promised for a page that has none; given back unless it was used.
struct Promise<'a> {
    pages: &'a Pages,
    inode: &'a Inode,
    used: bool,
    /// Whether it was made ahead, and is kept so if it is not used.
    ahead: bool,
}

impl<'a> Promise<'a> {
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`].
    fn make(pages: &'a Pages, inode: &'a Inode) -> Result<Self, FsError> {
        let made = PagePromise::made_ahead(&pages.meta, inode);
        let ahead = made.is_some();
        // Kept before the page is dirty: write-back redeems it from then on.
        made.map_or_else(|| PagePromise::make(&pages.meta, inode, 1), Ok)?.keep();
        Ok(Self { pages, inode, used: false, ahead })
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if !self.used {
            let promise = PagePromise::taken_back(&self.pages.meta, self.inode, 1);
            if self.ahead {
                promise.keep_ahead();
            }
        }
    }
}

impl Pages {
    /// Writes inside one page.
    fn write_page(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        page: Page,
        within: usize,
        from: &[u8],
    ) -> Result<(), FsError> {
        self.leave_record(grow, inode, page, within + from.len())?;
        let cache = &self.cache;
        let object = &inode.data.object;
        let mut promise: Option<Promise<'_>> = None;
        loop {
            let written = match &promise {
                Some(_) => cache.write_promised(object, page, within, from),
                None => cache.write(object, page, within, from),
            };
            match written {
                Written::Done { first_dirty, promise_used } => {
                    if let Some(promise) = &mut promise {
                        promise.used = promise_used;
                    }
                    if first_dirty {
                        self.unrecorded.list(inode);
                    }
                    return Ok(());
                }
                Written::Unbacked => match self.meta.mapping(inode, page)? {
                    // Allocated since the page was read: the block needs no promise.
                    BlockMapping::Block { .. } => _ = cache.back(object, page),
                    BlockMapping::Hole { .. } => promise = Some(Promise::make(self, inode)?),
                },
                Written::Absent => {
                    if let Claimed::Fill(claim) = self.claim(inode, page)? {
                        return self.write_claimed(inode, claim, (within, from), promise);
                    }
                }
            }
        }
    }

    /// Before a write that a record cannot hold: the file does not lie in its record any more from its next
    /// write-back on, so what is there becomes dirty.
    fn leave_record(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        page: Page,
        end: usize,
    ) -> Result<(), FsError> {
        let data = &inode.data;
        if page == Page::FIRST && end as u64 <= self.inline_bytes {
            return Ok(());
        }
        if data.residence.is_outside() {
            return Ok(());
        }
        // First the mark: a write-back that takes page 0 after it became dirty sees it.
        data.residence.bar(grow);
        // One that has taken it before shows it as dirty until the record has it.
        let held = self.cache.is_dirty(&data.object, Page::FIRST) || data.residence.is_in_record();
        if page > Page::FIRST && held {
            self.write_page(grow, inode, Page::FIRST, 0, &[])?;
        }
        Ok(())
    }

    /// Gives a file that lies in its record, or is about to, blocks instead.
    pub(super) fn write_out_of_record(&self, grow: &Growing<'_>, inode: &Arc<Inode>) -> Result<(), FsError> {
        inode.data.residence.bar(grow);
        // Who began to write it back before the mark has ended then.
        drop(inode.data.quiet());
        if inode.data.residence.is_in_record() {
            self.write_page(grow, inode, Page::FIRST, 0, &[])?;
            let quiet = inode.data.quiet();
            self.write_back_some(&quiet, inode, Page(0)..Page(1), 1, Data::Cached)?;
        }
        Ok(())
    }

    /// Fills a missing page with what it has and what is written to it. A page that is written whole, is
    /// a hole, or lies past the end is not read.
    fn write_claimed<'a>(
        &'a self,
        inode: &'a Arc<Inode>,
        claim: Claim<'a>,
        (within, from): (usize, &[u8]),
        mut promise: Option<Promise<'a>>,
    ) -> Result<(), FsError> {
        let mapping = self.meta.mapping(inode, claim.page())?;
        let hole = matches!(mapping, BlockMapping::Hole { .. });
        if hole && promise.is_none() {
            promise = Some(Promise::make(self, inode)?);
        }
        let inside = claim.page().start() < inode.end();
        match mapping {
            BlockMapping::Block { block, unwritten: false, .. } if inside && from.len() < BLOCK_BYTES => {
                self.load_page(inode, &claim, block)?;
            }
            BlockMapping::Hole { .. }
                if claim.page() == Page::FIRST && inode.data.residence.is_in_record() =>
            {
                let inline = inode.lock().record().inline_data().cloned();
                Self::load_hole(&claim, inline.as_deref());
            }
            _ => {
                let end = within + from.len();
                claim.zero(0, within);
                claim.zero(end, BLOCK_BYTES - end);
            }
        }
        claim.write(within, from);
        if let Some(promise) = &mut promise {
            promise.used = hole;
        }
        if claim.publish(PageState { dirty: true, backed: true }) {
            self.unrecorded.list(inode);
        }
        Ok(())
    }

    /// Writes page after page, anywhere in the file or behind its end.
    pub(super) fn write_pages(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        from: &[u8],
        at: ByteOffset,
    ) -> Result<(), Short> {
        assert!(grow.is_of(&inode.data), "inode {} is written under another's lock", inode.ino);
        let mut done = 0;
        while done < from.len() {
            let position = at + done as u64;
            let (page, within) = (position.page(), position.within());
            let part = (from.len() - done).min(BLOCK_BYTES - within);
            let written = self.write_page(grow, inode, page, within, &from[done..done + part]);
            written.map_err(|why| Short { done, why })?;
            done += part;
        }
        Ok(())
    }

    /// Before a file grows past its `end`: the rest of its last page is zero from now on, in the cache and, since the
    /// page becomes dirty, on the device before the new size is.
    pub(super) fn zero_last(
        &self,
        grow: &Growing<'_>,
        inode: &Arc<Inode>,
        end: ByteOffset,
    ) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "the end of inode {} is zeroed under another's lock", inode.ino);
        let (page, within) = (end.page(), end.within());
        if within == 0 || Mutant::TailNotZeroed.is_made() {
            return Ok(());
        }
        let needed = match self.meta.mapping(inode, page)? {
            BlockMapping::Block { unwritten, .. } => !unwritten || self.cache.has(&inode.data.object, page),
            BlockMapping::Hole { .. } if inode.data.residence.is_in_record() => {
                self.cache.has(&inode.data.object, page)
            }
            BlockMapping::Hole { .. } => self.cache.is_dirty(&inode.data.object, page),
        };
        if needed { self.write_page(grow, inode, page, within, &ZEROES[within..]) } else { Ok(()) }
    }
}
