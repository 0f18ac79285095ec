//! Bringing pages into the cache: one call for the blocks of all, into frames wherever they are. What a page holds past
//! the end of the file may be anything: who makes the file grow zeroes it first.

use crate::error::FsError;
use crate::extent::BlockMapping;
use crate::filedata::{Io, Stream};
use crate::inode::Inode;
use crate::pages::Pages;
use crate::pages::writeback::Relief;
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_cache::{Claim, Claimed, PageState};
use nvmed_io::{Handle, Operation, Scatter};
use nvmed_sys::monotonic_ns;
use nvmed_units::{BLOCK_BYTES, Block, ByteOffset, Page};
use std::sync::Arc;

/// Rounds of looking for a frame in which nobody writes back, before giving up.
const ROUNDS_MAX: u32 = 10_000;
/// Rounds in which the device refuses what is to be written back, before giving up: each tries another file, and the
/// device may take the next one's pages.
const REFUSED_MAX: u32 = 4;

/// What pages lie on, and what the record holds of the file itself.
type Mappings = (Vec<BlockMapping>, Option<Arc<[u8]>>);

/// A block of the device, and where in the mapping the frame lies that holds its bytes, or is to.
#[derive(Clone, Copy)]
pub(super) struct Framed {
    pub(super) block: Block,
    pub(super) offset: usize,
}

impl Pages {
    /// Bytes that a reader wants are missing from the first of a range on.
    #[cold]
    pub(super) fn miss(
        &self,
        inode: &Arc<Inode>,
        stream: &Stream,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        let page = range.start.page();
        let wanted = (range.end.page_end() - page).min(self.fill_pages);
        let most = match stream.readahead_pages.load(Ordering::Relaxed) {
            u64::MAX => self.readahead_pages,
            pages => pages,
        };
        let window = stream.readahead.miss(page, wanted, most, self.fill_pages);
        let pages = window.pages;
        if window.ahead > 0 {
            self.ahead.want(inode, window.pages_ahead(), self.relief.get());
        }
        if !self.readahead_grows || most == 0 || pages < most {
            return self.fill(inode, window.start, pages);
        }
        let begin = monotonic_ns();
        self.fill(inode, window.start, pages)?;
        stream.readahead.took(pages, monotonic_ns() - begin);
        Ok(())
    }

    /// Fills a page, and as many of the following ones as are missing, inside the file and at hand.
    ///
    /// # Errors
    /// [`FsError::NoMemory`]; the device's and the store's.
    pub(super) fn fill(&self, inode: &Arc<Inode>, page: Page, pages: u64) -> Result<(), FsError> {
        let Claimed::Fill(first) = self.claim(inode, page)? else { return Ok(()) };
        let mut claims = Vec::with_capacity(pages as usize);
        claims.push(first);
        self.claim_more(inode, page + 1..page + pages, &mut claims);
        self.load_claimed(inode, claims)
    }

    /// Whether windows are wanted ahead of readers, and nobody fills them.
    pub(crate) fn wants_read_ahead(&self) -> bool {
        self.ahead.is_wanted()
    }

    /// `thread` calls [`Pages::read_ahead`] whenever it is unparked.
    pub(crate) fn read_ahead_by(&self, thread: std::thread::Thread) {
        self.ahead.filled_by(thread);
    }

    /// Fills what is missing of the next window that a reader is about to come to; whether there was one.
    pub(crate) fn read_ahead(&self) -> bool {
        let Some((inode, pages)) = self.ahead.next() else { return false };
        let mut claims = Vec::with_capacity((pages.end - pages.start) as usize);
        // Nobody takes the file away before its pages are claimed, for which he waits then.
        if let Some(_quiet) = inode.data.try_quiet()
            && !inode.reaped.load(Ordering::SeqCst)
        {
            self.claim_more(&inode, pages, &mut claims);
        }
        if !claims.is_empty() {
            // The reader finds missing what fails, tries himself, and is told.
            let _ = self.load_claimed(&inode, claims);
        }
        true
    }

    /// Claims pages of a range that lie inside the file, as far as they are missing and at hand.
    fn claim_more<'a>(&'a self, inode: &'a Arc<Inode>, pages: Range<Page>, claims: &mut Vec<Claim<'a>>) {
        let end = inode.end().page_end().min(pages.end);
        for page in Page::each(pages.start..end.max(pages.start)) {
            match self.cache.try_claim(&inode.data.object, page) {
                Ok(Some(claim)) if !inode.is_overtaken(page) => claims.push(claim),
                // There already, being written directly, or no frame left for reading ahead.
                Ok(_) | Err(_) => break,
            }
        }
    }

    fn load_claimed(&self, inode: &Arc<Inode>, claims: Vec<Claim<'_>>) -> Result<(), FsError> {
        let (mappings, inline) = self.mappings(inode, &claims)?;
        self.load_pages(&self.handle_of(inode), claims, &mappings, inline.as_deref())
    }

    /// Reads missing pages, at most a quarter of the cache.
    ///
    /// # Errors
    /// As [`Pages::fill`].
    pub(crate) fn fill_range(&self, inode: &Arc<Inode>, pages: Range<Page>) -> Result<(), FsError> {
        let most = self.fill_pages;
        let mut page = pages.start;
        while page < pages.end.min(pages.start + most) {
            if self.cache.has(&inode.data.object, page) {
                page += 1;
            } else {
                // It fills as many as are missing side by side; those are passed over by the next rounds.
                self.fill(inode, page, (pages.end - page).min(most))?;
            }
        }
        Ok(())
    }

    /// Has the cache forget the clean pages of a range.
    pub(crate) fn forget_range(&self, inode: &Arc<Inode>, pages: Range<Page>) {
        let quiet = inode.data.quiet();
        let _ = self.forget_clean(quiet.io(), inode, pages);
    }

    /// As [`Pages::forget_range`]; whether none is left. The caller holds no claim.
    pub(super) fn forget_clean(&self, io: &Io<'_>, inode: &Arc<Inode>, pages: Range<Page>) -> bool {
        assert!(io.is_of(&inode.data), "pages of inode {} are forgotten under another's lock", inode.ino);
        self.cache.write_back(&inode.data.object).discard_clean(pages)
    }

    /// Claims a page, writing others back if there is no frame. The caller holds no claim.
    pub(super) fn claim<'a>(&'a self, inode: &'a Arc<Inode>, page: Page) -> Result<Claimed<'a>, FsError> {
        let (mut refused, mut idle) = (0, 0);
        while refused < REFUSED_MAX && idle < ROUNDS_MAX {
            inode.await_direct(page);
            match self.cache.claim(&inode.data.object, page) {
                // A direct write has begun in between, and waits for this claim to end.
                Ok(Claimed::Fill(claim)) if inode.is_overtaken(page) => {
                    drop(claim);
                    continue;
                }
                Ok(claimed) => return Ok(claimed),
                Err(_) => {}
            }
            match self.relieve() {
                Relief::Wrote => {}
                // Others write back, which takes what the device takes.
                Relief::Idle if self.steps.await_end() => {}
                // Others hold all clean frames at this moment.
                Relief::Idle => {
                    idle += 1;
                    nvmed_sys::sync::yield_now();
                }
                Relief::Refused => refused += 1,
            }
        }
        Err(FsError::NoMemory)
    }

    /// What claimed pages lie on, and what the record holds of the file itself.
    fn mappings(&self, inode: &Inode, claims: &[Claim<'_>]) -> Result<Mappings, FsError> {
        let mut state = inode.lock();
        let inline = state.record().inline_data().cloned();
        let mappings = self.meta.with_extents(inode, &mut state, |_, extents| {
            Ok(claims.iter().map(|claim| extents.mapping(claim.page())).collect())
        });
        mappings.map(|mappings| (mappings, inline))
    }

    /// Fills a claimed page that has no block: with what the record holds, or zeroes.
    pub(super) fn load_hole(claim: &Claim<'_>, inline: Option<&[u8]>) {
        let bytes = inline.filter(|_| claim.page() == Page::FIRST).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(BLOCK_BYTES)];
        claim.write(0, bytes);
        claim.zero(bytes.len(), BLOCK_BYTES - bytes.len());
    }

    /// Fills claimed pages and publishes them. What fails is an error only for the first page.
    fn load_pages(
        &self,
        handle: &Handle,
        claims: Vec<Claim<'_>>,
        mappings: &[BlockMapping],
        inline: Option<&[u8]>,
    ) -> Result<(), FsError> {
        assert_eq!(claims.len(), mappings.len(), "claimed pages and what they lie on");
        let written = |mapping: &BlockMapping| match *mapping {
            BlockMapping::Block { block, unwritten: false, .. } => Some(block),
            _ => None,
        };
        let mut pages = Vec::with_capacity(claims.len());
        for (claim, mapping) in claims.iter().zip(mappings) {
            pages.extend(written(mapping).map(|block| Framed { block, offset: claim.offset() }));
        }
        let mut loaded = pages.len();
        if let Err(error) = self.transfer_pages(handle, &pages, Operation::Read) {
            // A block that was only read ahead may be the bad one: the page that was asked for is tried alone.
            loaded = usize::from(mappings.first().and_then(written).is_some());
            if loaded == pages.len() {
                return Err(error);
            }
            self.transfer_pages(handle, &pages[..loaded], Operation::Read)?;
        }
        for (claim, mapping) in claims.into_iter().zip(mappings) {
            if written(mapping).is_none() {
                Self::load_hole(&claim, inline);
            } else if loaded == 0 {
                break;
            } else {
                loaded -= 1;
            }
            claim.publish(PageState { dirty: false, backed: matches!(mapping, BlockMapping::Block { .. }) });
        }
        Ok(())
    }

    /// Reads blocks into frames or writes frames to blocks: one call, which is cut below.
    ///
    /// # Errors
    /// The device's, of the first request that failed. None is under way any more, and any of them may have been done.
    pub(super) fn transfer_pages(
        &self,
        handle: &Handle,
        pages: &[Framed],
        operation: Operation,
    ) -> Result<(), FsError> {
        let mut list = Scatter::with_capacity(pages.len());
        let lbas = u32::try_from(self.lbas_per_block).expect("a block has eight logical blocks at most");
        for page in pages {
            list.push(page.block.lba(self.lbas_per_block), lbas, self.segment(page.offset));
        }
        Ok(handle.scatter(operation, &list)?)
    }

    /// Reads the block of one claimed page into its frame.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn load_page(&self, inode: &Inode, claim: &Claim<'_>, block: Block) -> Result<(), FsError> {
        let segment = [self.segment(claim.offset())];
        Ok(self.handle_of(inode).read(block.lba(self.lbas_per_block), &segment)?)
    }
}
