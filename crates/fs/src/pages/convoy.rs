//! Dirty pages of one file, or of several together, on their way to the device: blocks are allocated here, in
//! runs that go on from file to file; what lies side by side on the device is one write; and one batch of
//! records, written after the data, tells of all of it (decision 6).

use crate::blocks::alloc::{Near, Run};
use crate::blocks::reservation::Taken;
use crate::bytes::Data;
use crate::error::FsError;
use crate::extent::{BlockMapping, Extents};
use crate::inode::{Inode, State};
use crate::metadata::change::Change;
use crate::metadata::promises::PagePromise;
use crate::pages::Pages;
use crate::pages::fill::Framed;
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_cache::{DirtyPage, Outcome, WriteBack};
use nvmed_io::Operation;
use nvmed_io::caller::{self, Urgency};
use nvmed_layout::record::{ENTRY_RECORD_BYTES_MAX, Extent, RECORD_BYTES_USUAL, Record, Tail};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::{Arc, MutexGuard};
use nvmed_units::{Block, Ino, Page};

/// Pieces of newly written blocks of one file in one step: each touches bitmap and extent records, and a batch
/// has a limit.
const STEP_PIECES: usize = 64;

/// Pages, 1 MiB, of a write that is made durable itself: a longer one is several commands, and one flush does for all.
const DURABLE_PAGES_MAX: usize = 256;

/// What lies under a page that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// A block with data of the file: written over.
    Written,
    /// A block that was allocated and never written.
    Unwritten,
    /// A block allocated just now.
    Fresh,
}

/// A page and the block it goes to.
#[derive(Clone, Copy, Debug)]
struct Placed {
    page: DirtyPage,
    block: Block,
    under: Under,
}

/// What a step is to write of one file.
#[derive(Default)]
struct Plan {
    placed: Vec<Placed>,
    /// Blocks allocated for it.
    runs: Vec<Run>,
    /// The file's bytes, for its record to hold: no page has a place then.
    inline: Option<Arc<[u8]>>,
    /// Runs, and pieces of blocks that were allocated and never written.
    pieces: usize,
    /// Whether its writes are durable themselves (FUA), so that no flush has to cover them.
    forced: bool,
    /// Whether a flush has covered them already.
    flushed: bool,
}

impl Plan {
    fn is_fresh(&self) -> bool {
        self.placed.iter().any(|placed| placed.under != Under::Written)
    }

    /// Whether the batch of records that show its data wants a flush before it.
    fn wants_flush(&self) -> bool {
        if self.forced || self.flushed {
            return false;
        }
        let early = Mutant::UnwrittenShownEarly.is_made();
        self.is_fresh() && !(early && self.placed.iter().all(|placed| placed.under != Under::Fresh))
    }

    /// Whether it is one write to the device, over blocks that the records tell of as they are.
    fn is_one_overwrite(&self) -> bool {
        let beside = |two: &[Placed]| two[0].block + 1 == two[1].block;
        self.placed.len() <= DURABLE_PAGES_MAX && !self.is_fresh() && self.placed.windows(2).all(beside)
    }

    /// The pages go to blocks side by side from `block` on.
    fn place(&mut self, pages: &[DirtyPage], block: Block, under: Under) {
        let placed = pages.iter().zip(0..).map(|(page, at)| Placed { page: *page, block: block + at, under });
        self.placed.extend(placed);
    }

    /// Pages side by side in the file and on the device, with blocks of one kind under them.
    fn extents(&self, under: Under) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for placed in self.placed.iter().filter(|placed| placed.under == under) {
            match extents.last_mut() {
                Some(last)
                    if last.logical_end() == placed.page.page && last.physical_end() == placed.block =>
                {
                    last.blocks += 1;
                }
                _ => extents.push(Extent {
                    logical: placed.page.page,
                    physical: placed.block,
                    blocks: 1,
                    flags: 0,
                }),
            }
        }
        extents
    }
}

/// One file's part of a step. Whoever made it ends it by [`Pages::deliver`] or [`Pages::give_up`].
pub(super) struct Part<'a> {
    inode: &'a Arc<Inode>,
    pass: WriteBack<'a>,
    taken: Vec<DirtyPage>,
    plan: Plan,
    /// The size that the record is to tell.
    size: u64,
}

/// Blocks side by side for files that have none yet. What no file drew goes back with it.
pub(super) struct Pool<'a> {
    taken: Option<Taken<'a>>,
    /// Blocks that the files still to come need at most; all are promised.
    wanted: u64,
    group: Option<u32>,
}

impl<'a> Part<'a> {
    /// Takes up to `pages_max` dirty pages of a range. The caller holds the inode's `io`.
    pub(super) fn take(of: &'a Pages, inode: &'a Arc<Inode>, pages: Range<Page>, pages_max: usize) -> Self {
        // What is dirty when the pages are taken is at least what made this size.
        let size = inode.size.load(Ordering::Acquire);
        let object = &inode.data.object;
        let mut pass = of.cache.write_back(object);
        let mut taken = Vec::with_capacity((object.dirty_pages() as usize).min(pages_max));
        if pages.start > Page::FIRST && inode.data.residence.is_in_record() {
            // A file that gets its first block has all of them in extents: page 0 goes with it.
            pass.take(Page(0)..Page(1), pages_max.min(1), &mut taken);
        }
        pass.take(pages, pages_max, &mut taken);
        Self { inode, pass, taken, plan: Plan::default(), size }
    }

    /// Pages taken.
    pub(super) fn pages(&self) -> usize {
        self.taken.len()
    }

    /// Whether every page taken has a place.
    pub(super) fn is_whole(&self) -> bool {
        self.plan.inline.is_some() || self.plan.placed.len() == self.taken.len()
    }

    /// Where the next step goes on.
    pub(super) fn next(&self) -> Page {
        let rest = self.taken.get(self.plan.placed.len()).filter(|_| !self.is_whole()).map(|page| page.page);
        rest.unwrap_or_else(|| self.taken.last().map_or(Page::END, |page| page.page + 1))
    }

    /// The size that the record may tell once what is placed was written: the file's, if nothing else is
    /// dirty, else as far as the pages reach.
    fn settle_size(&mut self) {
        if self.plan.inline.is_some() {
            // Everything before the size that was read first is in the page that was taken after it.
            return;
        }
        if !self.is_whole() || self.inode.data.object.next_dirty(Page::FIRST).is_some() {
            let reached = self.plan.placed.last().map_or(Page::FIRST, |last| last.page.page + 1);
            self.size = self.size.min(reached.start().0);
        }
    }
}

impl Pool<'_> {
    /// For files with `wanted` pages together.
    pub(super) fn new(wanted: u64) -> Self {
        Self { taken: None, wanted, group: None }
    }
}

impl Pages {
    /// Whether what is written now is to be durable itself: of an urgent caller, who would wait for everybody's data in
    /// the device's cache if his commit had a flush.
    pub(super) fn is_forced(&self) -> bool {
        self.device.has_urgent_here()
    }

    /// Finds or allocates a block for each page of a part, as far as [`STEP_PIECES`] reach; with `pool` it
    /// waits for no lock of the inode. An error when not even the first has one.
    pub(super) fn plan<'a>(
        &'a self,
        part: &mut Part<'_>,
        mut pool: Option<&mut Pool<'a>>,
    ) -> Result<(), FsError> {
        part.plan.forced = self.is_forced();
        part.plan.inline = self.inline_bytes(part);
        if part.plan.inline.is_some() {
            return Ok(());
        }
        let planned = self.plan_pages(part, &mut pool);
        let (placed, taken) = (part.plan.placed.len(), part.taken.len());
        assert!(placed <= taken, "{placed} blocks for {taken} pages");
        part.settle_size();
        match planned {
            Err(error) if part.plan.placed.is_empty() => Err(error),
            // As far as there was room; the next step tells the error if it lasts.
            _ => Ok(()),
        }
    }

    /// The bytes of a file that is to lie in its record: it is small, and has no block.
    fn inline_bytes(&self, part: &Part<'_>) -> Option<Arc<[u8]>> {
        let (inode, [page]) = (part.inode, part.taken.as_slice()) else { return None };
        // Blocks come to a file only under `io`, which the caller holds.
        let fits = page.page == Page::FIRST && part.size <= self.inline_bytes && inode.blocks() == 0;
        if !fits || part.size == 0 || inode.data.residence.is_barred() {
            return None;
        }
        let attributes = inode.try_lock()?.record().xattrs.as_ref().map_or(0, |bytes| bytes.len());
        if attributes + part.size as usize > ENTRY_RECORD_BYTES_MAX - RECORD_BYTES_USUAL {
            return None;
        }
        let mut bytes = vec![0; part.size as usize];
        self.cache.memory().read(page.offset, &mut bytes);
        Some(bytes.into())
    }

    fn plan_pages<'a>(
        &'a self,
        part: &mut Part<'_>,
        pool: &mut Option<&mut Pool<'a>>,
    ) -> Result<(), FsError> {
        let (inode, pages, plan) = (part.inode, &part.taken[..], &mut part.plan);
        plan.placed.reserve(pages.len());
        let mut at = 0;
        while at < pages.len() {
            let page = pages[at].page;
            let (mapping, goal) = {
                let mut state = if pool.is_some() { inode.try_lock() } else { Some(inode.lock()) };
                let state = state.as_mut().ok_or(FsError::Busy)?;
                self.meta.with_extents(inode, state, |_, extents| {
                    Ok((extents.mapping(page), extents.goal(page)))
                })?
            };
            let end = match mapping {
                BlockMapping::Block { end, .. } | BlockMapping::Hole { end } => end,
            };
            let near =
                |(index, next): &(usize, &DirtyPage)| next.page == page + *index as u64 && next.page < end;
            let count = pages[at..].iter().enumerate().take_while(near).count();
            match mapping {
                BlockMapping::Block { block, unwritten: false, .. } => {
                    plan.place(&pages[at..at + count], block, Under::Written);
                    at += count;
                }
                _ if plan.pieces == STEP_PIECES => return Ok(()),
                BlockMapping::Block { block, .. } => {
                    plan.place(&pages[at..at + count], block, Under::Unwritten);
                    plan.pieces += 1;
                    at += count;
                }
                BlockMapping::Hole { .. } => {
                    // Blocks of this step are not in the extents yet.
                    let goal = plan.placed.last().map(|last| last.block + 1).or(goal);
                    let want = u32::try_from(count).expect("a step takes few pages");
                    let run = match pool {
                        Some(pool) if self.is_pooled(inode) => self.draw(pool, inode, want)?,
                        _ => {
                            self.meta.allocate(inode, goal, (page, want), self.meta.prealloc_blocks(inode))?
                        }
                    };
                    plan.runs.push(run);
                    plan.pieces += 1;
                    plan.place(&pages[at..at + run.blocks as usize], run.start, Under::Fresh);
                    at += run.blocks as usize;
                }
            }
        }
        Ok(())
    }

    /// Whether a file's first blocks may come from a pool: it has none, and wants none ahead.
    pub(super) fn is_pooled(&self, inode: &Inode) -> bool {
        inode.blocks() == 0
            && (self.meta.prealloc_blocks(inode) == 0 || inode.opens.load(Ordering::Relaxed) == 0)
    }

    /// Blocks of the pool for a file.
    fn draw<'a>(&'a self, pool: &mut Pool<'a>, inode: &Inode, want: u32) -> Result<Run, FsError> {
        let mut taken = match pool.taken.take() {
            Some(taken) => taken,
            None => {
                let group = pool.group.or_else(|| self.meta.home(inode));
                let wanted = u32::try_from(pool.wanted).unwrap_or(u32::MAX).max(want);
                let run = self.meta.take_near(inode, Near { goal: None, group }, wanted)?;
                pool.group = Some(self.meta.blocks.group_of(run.start));
                // Its promise is that of the pages.
                self.meta.blocks.taken(run, self.meta.blocks.ledger.nothing())
            }
        };
        let run = taken.split(want);
        // A wish: files may have grown since it was summed up.
        pool.wanted = pool.wanted.saturating_sub(u64::from(run.blocks));
        pool.taken = Some(taken).filter(|taken| taken.run().blocks > 0);
        Ok(run)
    }

    /// Writes the pages of all parts in one call.
    pub(super) fn send(&self, parts: &[Part<'_>], data: Data) -> Result<(), FsError> {
        let mut pages: Vec<Framed> =
            Vec::with_capacity(parts.iter().map(|part| part.plan.placed.len()).sum());
        let placed = parts.iter().flat_map(|part| &part.plan.placed);
        pages.extend(placed.map(|placed| Framed { block: placed.block, offset: placed.page.offset }));
        if pages.is_empty() {
            return Ok(());
        }
        if !pages.is_sorted_by_key(|page| page.block) {
            pages.sort_unstable_by_key(|page| page.block);
        }
        let forced = parts.iter().any(|part| part.plan.forced);
        let fua = forced && !Mutant::ForcedVolatile.is_made();
        let operation = Operation::Write { fua };
        // Of several files, the mount's handle serves them together.
        match parts {
            [part] if data == Data::Durable && part.plan.is_one_overwrite() && !forced => {
                // It draws no ticket: no flush has to cover it.
                let fua = !Mutant::OverwriteVolatile.is_made();
                return self.transfer_pages(&self.handle_of(part.inode), &pages, Operation::Write { fua });
            }
            [part] if self.device.has_urgent() => self.transfer_beside_urgent(part.inode, &pages, operation),
            [part] => self.transfer_pages(&self.handle_of(part.inode), &pages, operation),
            _ => self.transfer_pages(&self.meta.handle, &pages, operation),
        }?;
        if parts.iter().all(|part| part.plan.forced) {
            return Ok(());
        }
        let ticket = self.meta.journal.order.wrote();
        if parts.iter().any(|part| part.plan.wants_flush()) {
            // The batch that tells of these parts has a flush before it: who waits for the batch needs no other.
            return Ok(());
        }
        for part in parts.iter().filter(|part| !part.plan.placed.is_empty()) {
            part.inode.data.ticket.fetch_max(ticket, Ordering::SeqCst);
        }
        Ok(())
    }

    /// As [`Pages::transfer_pages`], where callers are urgent: who waits for this file lends its rank to what is not
    /// with the device yet.
    fn transfer_beside_urgent(
        &self,
        inode: &Inode,
        pages: &[Framed],
        operation: Operation,
    ) -> Result<(), FsError> {
        let handle = self.handle_of(inode);
        pages.chunks(DURABLE_PAGES_MAX).try_for_each(|pages| {
            let write = || self.transfer_pages(&handle, pages, operation);
            if inode.data.is_wanted() { caller::with(Urgency::Urgent, write) } else { write() }
        })
    }

    /// Where callers are urgent, makes durable what a step has written before a batch tells of it. So no batch in the
    /// log asks for a flush that an urgent caller's commit would have to send, and wait for.
    pub(super) fn settle_step(&self, parts: &mut [Part<'_>]) -> Result<(), FsError> {
        if !self.device.has_urgent() || !parts.iter().any(|part| part.plan.wants_flush()) {
            return Ok(());
        }
        if !Mutant::StepNotFlushed.is_made() {
            self.meta.journal.flush_data()?;
        }
        parts.iter_mut().for_each(|part| part.plan.flushed = true);
        Ok(())
    }

    /// Records what the parts have written, where the records do not tell of it yet, as one batch. With more
    /// than one part no inode is waited for: [`FsError::Busy`].
    pub(super) fn log(&self, parts: &[Part<'_>]) -> Result<(), FsError> {
        let mut states: Vec<(&Part<'_>, MutexGuard<'_, State>)> = Vec::with_capacity(parts.len());
        for part in parts {
            let state = if parts.len() > 1 { part.inode.try_lock() } else { Some(part.inode.lock()) };
            let state = state.ok_or(FsError::Busy)?;
            let inline = part.plan.inline.is_some();
            if inline || part.plan.is_fresh() || part.size > state.record().size {
                states.push((part, state));
            }
        }
        if states.is_empty() {
            return Ok(());
        }
        match self.log_states(&mut states) {
            Ok(records) => {
                assert_eq!(records.len(), states.len(), "each file of a step has its record");
                let redeemed =
                    |part: &Part<'_>| part.plan.runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>();
                for ((part, state), record) in states.iter_mut().zip(records) {
                    part.inode.publish_charged(state, record, redeemed(part));
                }
                // When all of them are published, whatever a count says.
                for (part, _) in &states {
                    let purse = &part.inode.data.purse;
                    part.inode.counted(|| purse.redeemed(&self.meta.blocks.ledger, redeemed(part)));
                }
                Ok(())
            }
            Err(error) => {
                for (part, _) in &states {
                    self.meta.forget_extents(part.inode);
                    self.meta.touch(part.inode, None, None, None);
                }
                Err(error)
            }
        }
    }

    fn log_states(&self, states: &mut [(&Part<'_>, MutexGuard<'_, State>)]) -> Result<Vec<Record>, FsError> {
        let mut records = Vec::with_capacity(states.len());
        let mut change = self.meta.change();
        // What was written had a promise, of room for its records too.
        change.use_headroom();
        for (part, state) in &mut *states {
            let (inode, plan) = (part.inode, &part.plan);
            let mut record = inode.compose(state);
            // What was cut off earlier shows otherwise.
            if plan.inline.is_none() && part.size > record.size && self.meta.growth_is_open(inode) {
                change.require_flush();
            }
            record.size = record.size.max(part.size);
            if let Some(bytes) = &plan.inline {
                record.tail = Tail::Data(Arc::clone(bytes));
            }
            if plan.wants_flush() {
                change.require_flush();
            }
            if plan.is_fresh() {
                self.meta.with_extents(inode, state, |_, extents| {
                    plan.log(&mut change, extents, inode.ino, &mut record)
                })?;
            }
            change.put_inode(inode, &record);
            records.push(record);
        }
        let only_tells = states.iter().all(|(part, _)| part.plan.flushed);
        if only_tells {
            change.only_tell();
        }
        let sequence = change.apply()?;
        for (part, _) in states.iter().filter(|_| only_tells) {
            // Before the right to the inode is given back: its sync sees it.
            part.inode.data.told.fetch_max(sequence.0, Ordering::SeqCst);
        }
        Ok(records)
    }

    /// The parts were written and recorded.
    pub(super) fn deliver(&self, part: Part<'_>) {
        let mut part = part;
        if part.plan.inline.is_some() {
            let clean = part.taken.iter().filter(|page| part.pass.complete_elsewhere(page)).count() as u64;
            drop(PagePromise::taken_back(&self.meta, part.inode, clean));
            return;
        }
        let (done, rest) = part.taken.split_at(part.plan.placed.len());
        part.pass.complete(done, Outcome::Written);
        part.pass.complete(rest, Outcome::Failed);
        self.list_left(part.inode, rest);
    }

    /// Nothing of a part was recorded: its pages stay dirty.
    pub(super) fn give_up(&self, part: Part<'_>) {
        let mut part = part;
        part.plan.runs.iter().for_each(|run| self.meta.blocks.give_back(*run));
        let failed = if Mutant::ErrorMarksClean.is_made() { Outcome::Written } else { Outcome::Failed };
        part.pass.complete(&part.taken, failed);
        self.list_left(part.inode, &part.taken);
    }

    /// Pages are dirty again that were not while they were on their way: the inode may have lost its place in the list.
    fn list_left(&self, inode: &Arc<Inode>, pages: &[DirtyPage]) {
        if !pages.is_empty() {
            self.unrecorded.list(inode);
        }
    }
}

impl Plan {
    /// Puts the blocks into the extents, and both into a change.
    fn log(
        &self,
        change: &mut Change<'_>,
        extents: &mut Extents,
        ino: Ino,
        record: &mut Record,
    ) -> Result<(), FsError> {
        self.extents(Under::Fresh).into_iter().for_each(|extent| extents.insert(extent));
        for piece in self.extents(Under::Unwritten) {
            extents.mark(piece.logical..piece.logical_end(), false);
        }
        for run in &self.runs {
            change.use_run(*run)?;
        }
        let keeps_bytes = record.inline_data().is_none() || extents.has(Page::FIRST);
        assert!(keeps_bytes, "what the record of inode {ino} held has no block");
        change.put_extents(extents, ino, record);
        Ok(())
    }
}
