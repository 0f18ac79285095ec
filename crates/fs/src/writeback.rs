//! Dirty pages to the device: blocks are allocated here, in runs, and the record that tells of data is
//! written after the data (design decision 9).

use crate::alloc::Run;
use crate::core::Core;
use crate::error::FsError;
use crate::extent::Place;
use crate::file::File;
use crate::filesystem::FileSystem;
use crate::fill::push_frame;
use crate::inode::Inode;
use crate::record::Extent;
use crate::status::{Kind, OpenFlags};
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_cache::{DirtyPage, Outcome};
use nvmed_io::Segment;
use nvmed_units::{BLOCK_BYTES, Lba};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pages written in one step, 4 MiB: each step is one batch of records at most.
const STEP_PAGES: usize = 1024;
/// Pieces of newly written blocks in one step: each touches bitmap and extent records, and a batch has
/// a limit.
const STEP_PIECES: usize = 64;
/// Pages that a writer over the limit writes back before it goes on.
const RELIEF_PAGES: usize = 1024;
/// Entries of the list of dirty inodes between two looks for those that are clean again.
const LIST_SLACK: usize = 4096;

/// Inodes that may have something to write, oldest first.
#[derive(Default)]
pub(crate) struct DirtyList(Mutex<List>);

#[derive(Default)]
struct List {
    inodes: VecDeque<Listed>,
    purge_at: usize,
}

struct Listed {
    inode: Arc<Inode>,
    since_ns: i64,
}

impl DirtyList {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    block: u64,
    under: Under,
}

/// What a step is to write.
#[derive(Default)]
struct Plan {
    placed: Vec<Placed>,
    /// Blocks allocated for it.
    runs: Vec<Run>,
    /// Runs, and pieces of blocks that were allocated and never written.
    pieces: usize,
}

impl Plan {
    fn is_fresh(&self) -> bool {
        self.placed.iter().any(|placed| placed.under != Under::Written)
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

impl Core {
    /// An inode has something to write.
    pub(crate) fn list_dirty(&self, inode: &Arc<Inode>) {
        if !inode.data.listed.swap(true, Ordering::SeqCst) {
            let listed = Listed { inode: Arc::clone(inode), since_ns: self.now_ns() };
            let mut list = self.data.dirty.lock();
            list.inodes.push_back(listed);
            if list.inodes.len() > list.purge_at + LIST_SLACK {
                let purged = self.purge(&mut list);
                drop(list);
                // Outside: the last reference to an inode may go with it.
                drop(purged);
            }
        }
    }

    /// Takes inodes that were synced meanwhile off the list.
    fn purge(&self, list: &mut List) -> Vec<Listed> {
        let all = core::mem::take(&mut list.inodes);
        let mut clean = Vec::new();
        for listed in all {
            // An inode that becomes dirty right after this look lists itself anew.
            listed.inode.data.listed.store(false, Ordering::SeqCst);
            if self.data.wants_write(&listed.inode) && !listed.inode.data.listed.swap(true, Ordering::SeqCst)
            {
                list.inodes.push_back(listed);
            } else {
                clean.push(listed);
            }
        }
        list.purge_at = list.inodes.len();
        clean
    }

    /// The first listed inode, if it was listed in a time that `due` accepts; it is no longer listed.
    fn unlist(&self, due: &dyn Fn(i64) -> bool) -> Option<Listed> {
        let mut list = self.data.dirty.lock();
        let listed = list.inodes.front().is_some_and(|listed| due(listed.since_ns));
        let listed = if listed { list.inodes.pop_front() } else { None }?;
        listed.inode.data.listed.store(false, Ordering::SeqCst);
        Some(listed)
    }

    /// Puts an inode back that has more to write: in front with `first`, else at the end.
    fn relist(&self, listed: Listed, first: bool) {
        if self.data.wants_write(&listed.inode) && !listed.inode.data.listed.swap(true, Ordering::SeqCst) {
            let mut list = self.data.dirty.lock();
            if first { list.inodes.push_front(listed) } else { list.inodes.push_back(listed) }
        }
    }

    /// Writes some dirty pages back, the oldest inode's first, passing over inodes that somebody else
    /// writes; whether any were written. The caller may hold one inode's `grow`, no claim.
    #[cold]
    pub(crate) fn relieve(&self) -> bool {
        let tries = self.data.dirty.lock().inodes.len();
        for _ in 0..tries {
            let Some(listed) = self.unlist(&|_| true) else { return false };
            let wrote = match listed.inode.data.try_quiet() {
                Some(quiet) if listed.inode.data.object.dirty_pages() > 0 => {
                    self.write_back_some(&quiet, &listed.inode, 0..u64::MAX, RELIEF_PAGES).is_ok()
                }
                _ => false,
            };
            self.relist(listed, wrote);
            if wrote {
                return true;
            }
        }
        false
    }

    /// Writes everything of an inode back: pages, then the record with the size.
    ///
    /// # Errors
    /// The device's and the store's; what was not written stays dirty, and each open description is told.
    pub(crate) fn write_back(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        self.write_back_range(inode, 0..u64::MAX)
    }

    /// As [`Core::write_back`], for the pages of a range.
    pub(crate) fn write_back_range(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<(), FsError> {
        self.gather_mapped(inode, pages.clone())?;
        // Even when nothing is left: what somebody else writes at this moment is on the device then.
        let quiet = inode.data.quiet();
        if self.data.wants_write(inode) {
            self.write_back_some(&quiet, inode, pages, usize::MAX)?;
        }
        Ok(())
    }

    fn write_back_some(
        &self,
        _quiet: &MutexGuard<'_, ()>,
        inode: &Arc<Inode>,
        pages: Range<u64>,
        pages_max: usize,
    ) -> Result<(), FsError> {
        if inode.reaped.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut from = pages.start;
        let mut left = pages_max;
        while left > 0 {
            let step = left.min(STEP_PAGES);
            let next = self.write_step(inode, from..pages.end, step).inspect_err(|_| {
                inode.data.errors.fetch_add(1, Ordering::SeqCst);
            })?;
            let Some(next) = next else { break };
            from = next;
            left -= step;
        }
        self.record_size(inode)
    }

    /// Writes up to `pages_max` pages of a range; answers where to go on, none when nothing was left.
    fn write_step(
        &self,
        inode: &Arc<Inode>,
        pages: Range<u64>,
        pages_max: usize,
    ) -> Result<Option<u64>, FsError> {
        // What is dirty when the pages are taken is at least what made this size.
        let size = inode.size.load(Ordering::Acquire);
        let object = &inode.data.object;
        let mut pass = self.data.cache.write_back(object);
        let mut taken = Vec::with_capacity((object.dirty_pages() as usize).min(pages_max));
        pass.take(pages, pages_max, &mut taken);
        let Some(last) = taken.last() else { return Ok(None) };
        let last = last.page;
        let mut plan = Plan::default();
        let planned = self.plan(inode, &taken, &mut plan);
        let count = plan.placed.len();
        let written = match planned {
            Err(error) if count == 0 => Err(error),
            // As far as there was room; the next step tells the error if it lasts.
            _ => self.send(inode, &plan).and_then(|()| {
                let reached = (plan.placed[count - 1].page.page + 1) * BLOCK_BYTES as u64;
                let all = count == taken.len() && object.next_dirty(0).is_none();
                self.log(inode, &plan, if all { size } else { size.min(reached) })
            }),
        };
        if let Err(error) = written {
            plan.runs.iter().for_each(|run| self.return_blocks(*run));
            pass.complete(&taken, Outcome::Failed);
            return Err(error);
        }
        let (done, rest) = taken.split_at(count);
        pass.complete(done, Outcome::Written);
        pass.complete(rest, Outcome::Failed);
        Ok(Some(rest.first().map_or(last + 1, |page| page.page)))
    }

    /// Finds or allocates a block for each page, as far as [`STEP_PIECES`] reach.
    fn plan(&self, inode: &Arc<Inode>, pages: &[DirtyPage], plan: &mut Plan) -> Result<(), FsError> {
        plan.placed.reserve(pages.len());
        let mut at = 0;
        while at < pages.len() {
            let page = pages[at].page;
            let (place, goal) = {
                let mut state = inode.lock();
                self.with_extents(inode, &mut state, |_, extents| {
                    Ok((extents.place(page), extents.goal(page)))
                })?
            };
            let end = match place {
                Place::Block { end, .. } | Place::Hole { end } => end,
            };
            let near =
                |(index, next): &(usize, &DirtyPage)| next.page == page + *index as u64 && next.page < end;
            let count = pages[at..].iter().enumerate().take_while(near).count();
            match place {
                Place::Block { block, unwritten: false, .. } => {
                    plan.place(&pages[at..at + count], block, Under::Written);
                    at += count;
                }
                _ if plan.pieces == STEP_PIECES => return Ok(()),
                Place::Block { block, .. } => {
                    plan.place(&pages[at..at + count], block, Under::Unwritten);
                    plan.pieces += 1;
                    at += count;
                }
                Place::Hole { .. } => {
                    // Blocks of this step are not in the extents yet.
                    let goal = plan.placed.last().map(|last| last.block + 1).or(goal);
                    let run = self.allocate(inode, goal, page, count as u32)?;
                    plan.runs.push(run);
                    plan.pieces += 1;
                    plan.place(&pages[at..at + run.blocks as usize], run.start, Under::Fresh);
                    at += run.blocks as usize;
                }
            }
        }
        Ok(())
    }

    /// Takes promised blocks for pages from `page` on; past the end of a growing file, some more.
    fn allocate(&self, inode: &Inode, goal: Option<u64>, page: u64, want: u32) -> Result<Run, FsError> {
        let mut ahead = inode.data.prealloc();
        if let Some(run) = ahead.take() {
            if Some(run.start) == goal {
                let used = run.blocks.min(want);
                // These blocks had a promise of their own beside that of the pages.
                self.unreserve(u64::from(used));
                let rest = Run { start: run.start + u64::from(used), blocks: run.blocks - used };
                *ahead = (rest.blocks > 0).then_some(rest);
                return Ok(Run { start: run.start, blocks: used });
            }
            self.return_blocks(run);
            self.unreserve(u64::from(run.blocks));
        }
        let end = inode.size.load(Ordering::Relaxed).div_ceil(BLOCK_BYTES as u64);
        let grows = page + u64::from(want) >= end && inode.opens.load(Ordering::Relaxed) > 0;
        let more = if grows { self.data.prealloc_blocks } else { 0 };
        if more == 0 || self.reserve(u64::from(more)).is_err() {
            return self.take_blocks(goal, want);
        }
        let run = self.take_blocks(goal, want.saturating_add(more));
        let surplus = run.as_ref().map_or(0, |run| run.blocks.saturating_sub(want));
        self.unreserve(u64::from(more - surplus));
        let run = run?;
        let used = run.blocks - surplus;
        *ahead = (surplus > 0).then_some(Run { start: run.start + u64::from(used), blocks: surplus });
        Ok(Run { start: run.start, blocks: used })
    }

    /// Gives back what is allocated ahead of a file.
    pub(crate) fn drop_prealloc(&self, inode: &Inode) {
        if let Some(run) = inode.data.prealloc().take() {
            self.return_blocks(run);
            self.unreserve(u64::from(run.blocks));
        }
    }

    /// Writes the pages of a plan, those side by side on the device in one request.
    fn send(&self, inode: &Inode, plan: &Plan) -> Result<(), FsError> {
        let mut segments: Vec<Segment> = Vec::with_capacity(plan.placed.len());
        let mut rest = &plan.placed[..];
        while let Some(first) = rest.first() {
            let side_by_side = |(index, next): &(usize, &Placed)| next.block == first.block + *index as u64;
            let count = rest.iter().enumerate().take_while(side_by_side).count();
            segments.clear();
            for placed in &rest[..count] {
                push_frame(&mut segments, self.data.segment(placed.page.offset));
            }
            self.handle.write(Lba(first.block * self.lbas_per_block), &segments, false)?;
            rest = &rest[count..];
        }
        let ticket = self.order.wrote(plan.is_fresh());
        inode.data.ticket.fetch_max(ticket, Ordering::SeqCst);
        Ok(())
    }

    /// Records what a plan has written, if the record does not tell of it yet.
    fn log(&self, inode: &Arc<Inode>, plan: &Plan, size: u64) -> Result<(), FsError> {
        let mut state = inode.lock();
        let size = size.max(state.record().size);
        let fresh = plan.is_fresh();
        if !fresh && size == state.record().size {
            return Ok(());
        }
        // Within a block that the file had before, a larger size shows what the device has there: what was
        // cut off earlier, until the page that was written over it is durable.
        let ticket = inode.data.ticket.load(Ordering::SeqCst);
        let grows = size > state.record().size && self.order.is_open(ticket);
        if grows {
            self.order.exposes(ticket);
        }
        let mut record = inode.compose(&state);
        record.size = size;
        let logged = self.with_extents(inode, &mut state, |_, extents| {
            let mut change = self.change();
            if fresh {
                change.require_flush();
                plan.extents(Under::Fresh).into_iter().for_each(|extent| extents.insert(extent));
                for piece in plan.extents(Under::Unwritten) {
                    extents.mark(piece.logical..piece.logical_end(), false);
                }
                for run in &plan.runs {
                    change.use_run(*run)?;
                }
                extents.log(&mut change, inode.ino, &mut record);
            }
            if grows {
                change.require_flush();
            }
            change.put_inode(inode.ino, &record);
            change.apply()
        });
        if let Err(error) = logged {
            self.forget_extents(inode);
            self.touch(inode, None, None, None);
            return Err(error);
        }
        inode.publish(&mut state, record);
        let redeemed: u64 = plan.runs.iter().map(|run| u64::from(run.blocks)).sum();
        inode.data.promised.fetch_sub(redeemed, Ordering::SeqCst);
        Ok(())
    }

    /// Records the size, if no dirty page stands behind it any more.
    fn record_size(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let size = inode.size.load(Ordering::Acquire);
        if inode.lock().record().size != size && inode.data.object.next_dirty(0).is_none() {
            self.log(inode, &Plan::default(), size)?;
        }
        let recorded = inode.lock().record().size;
        self.size_recorded(inode, recorded);
        Ok(())
    }

    /// Writes all dirty data back.
    ///
    /// # Errors
    /// The first that occurred; the others were tried.
    pub(crate) fn write_back_all(&self) -> Result<(), FsError> {
        self.gather_all_mapped()?;
        self.write_back_due(&|_| true)
    }

    fn write_back_due(&self, due: &dyn Fn(i64) -> bool) -> Result<(), FsError> {
        let mut result = Ok(());
        let listed = self.data.dirty.lock().inodes.len();
        for _ in 0..listed {
            let Some(listed) = self.unlist(due) else { break };
            let written = self.write_back(&listed.inode);
            self.relist(listed, false);
            result = result.and(written);
        }
        result
    }

    /// Makes an inode durable: its data, its record if `times` or the data asks for it, and every
    /// change of metadata before.
    fn sync_inode(&self, inode: &Arc<Inode>, times: bool) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        if inode.kind == Kind::File {
            self.write_back(inode)?;
            inode.synced.store(true, Ordering::Relaxed);
        }
        if times && inode.is_late() {
            self.alter(inode, |_| Ok(()))?;
        }
        self.commit(inode.data.ticket.load(Ordering::SeqCst))
    }
}

impl File {
    /// Makes data and metadata of the file durable, and every metadata operation before this call.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] with `O_PATH`; what could not be written, which stays dirty. A failure
    /// of an earlier write-back is told once to each description that was open then.
    pub fn fsync(&self) -> Result<(), FsError> {
        self.sync(true)
    }

    /// As [`File::fsync`], without times.
    ///
    /// # Errors
    /// As [`File::fsync`].
    pub fn fdatasync(&self) -> Result<(), FsError> {
        self.sync(false)
    }

    fn sync(&self, times: bool) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) {
            return Err(FsError::BadDescriptor);
        }
        let synced = self.core.sync_inode(&self.inode, times);
        let errors = self.inode.data.errors.load(Ordering::SeqCst);
        let told = self.stream.errors_seen.swap(errors, Ordering::SeqCst);
        synced?;
        if told == errors { Ok(()) } else { Err(FsError::Host(rustix::io::Errno::IO)) }
    }

    /// Writes a range of dirty pages back, without making it durable (`sync_file_range`); 0 bytes reach
    /// to the end of the file.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`], [`FsError::Invalid`]; what could not be written.
    pub fn sync_range(&self, offset: u64, bytes: u64) -> Result<(), FsError> {
        if self.flags().has(OpenFlags::PATH) || self.inode.kind != Kind::File {
            return Err(FsError::BadDescriptor);
        }
        if self.core.options.read_only {
            return Ok(());
        }
        let end = if bytes == 0 { u64::MAX } else { offset.checked_add(bytes).ok_or(FsError::Invalid)? };
        let pages = offset / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64);
        self.core.write_back_range(&self.inode, pages)
    }
}

impl FileSystem {
    /// Writes back data that has been dirty for longer than `age`, then makes durable what is on the
    /// device and in the store: called every so often, it bounds what a power cut can take.
    ///
    /// # Errors
    /// What could not be written; it stays dirty.
    pub fn write_back_older_than(&self, age: Duration) -> Result<(), FsError> {
        if self.0.options.read_only {
            return Ok(());
        }
        self.0.gather_all_mapped()?;
        let now = self.0.now_ns();
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        // A time to come means that somebody has set the clock back.
        let written = self.0.write_back_due(&|since| since > now || now.saturating_sub(since) >= age);
        self.0.commit_all()?;
        written
    }
}

impl Plan {
    /// The pages go to blocks side by side from `block` on.
    fn place(&mut self, pages: &[DirtyPage], block: u64, under: Under) {
        let placed = pages.iter().zip(block..).map(|(page, block)| Placed { page: *page, block, under });
        self.placed.extend(placed);
    }
}
