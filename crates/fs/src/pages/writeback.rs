//! When dirty pages go to the device, and which, of the files that are listed; and the calls that make files durable.
//! How they go is in `convoy`.

use crate::bytes::Data;
use crate::error::FsError;
use crate::filedata::Quiet;
use crate::inode::Inode;
use crate::map::Mappings;
use crate::pages::Pages;
use crate::pages::convoy::{Part, Pool};
use crate::unrecorded::Listed;
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_io::caller::{self, Urgency};
use nvmed_layout::FileType;
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

/// Pages written in one step, 4 MiB: each step is one batch of records at most.
const STEP_PAGES: usize = 1024;
/// As [`STEP_PAGES`], 1 MiB, of an urgent caller, and of who writes what one waits for.
const STEP_PAGES_URGENT: usize = 256;
/// As [`STEP_PAGES`], 16 MiB, of others beside urgent callers: a flush of each step waits for programs on all dies, and
/// leaves word lines of all of them part empty.
const STEP_PAGES_BESIDE: usize = 4096;
/// Pages of a file that is written together with others; one with more is a step of its own.
const GROUP_PAGES: usize = 64;
/// Files written together at most: one batch tells of all of them.
const GROUP_FILES: usize = 256;
/// What a file's records take in a batch, generously.
const FILE_RECORD_BYTES: usize = 1024;
/// Pages that a writer over the limit writes back before it goes on.
pub(super) const RELIEF_PAGES: usize = 1024;
/// As [`RELIEF_PAGES`], of an urgent caller without a frame.
const RELIEF_PAGES_URGENT: usize = 16;

/// What an attempt to make frames clean has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relief {
    /// Some are clean.
    Wrote,
    /// There is nothing to write, or others are writing it.
    Idle,
    /// The device took nothing of what was tried.
    Refused,
}

impl Pages {
    /// Writes some dirty pages back, the oldest inode's first, passing over inodes that somebody else
    /// writes. The caller may hold one inode's `grow`, no claim.
    ///
    /// What a device has refused is not sent again with each call: writers over the limit are asked to do this again
    /// when [`RELIEF_PAGES`] more are dirty. The next try is one page, and each that is taken allows twice as many: a
    /// host that is full takes what lies in blocks that it has. So what is tried in vain is at most as much as what was
    /// written, and a few commands for each call of a program.
    #[cold]
    pub(super) fn relieve(&self) -> Relief {
        let most = if self.is_forced() { RELIEF_PAGES_URGENT } else { RELIEF_PAGES };
        self.relieve_by(most)
    }

    /// As [`Pages::relieve`], after a write where callers may be urgent. Each step of write-back waits for a flush
    /// there: so a thread that nobody waits for begins at half of the limit. An urgent caller leaves it to others, but
    /// where they do not keep up; what he writes for them has no rank.
    #[cold]
    pub(super) fn relieve_beside_urgent(&self) {
        if !self.cache.nears_limit() && !self.cache.over_limit() {
            return;
        }
        if let Some(thread) = self.relief.get() {
            thread.unpark();
        }
        if self.is_forced() {
            if self.cache.far_over_limit() {
                caller::with(Urgency::Normal, || self.relieve_by(RELIEF_PAGES));
            }
        } else if self.cache.over_limit() && !self.steps.await_end() {
            self.relieve_by(RELIEF_PAGES);
        }
    }

    /// Writes a step back ahead of writers where callers may be urgent, if half of the limit is dirty; whether more
    /// than that is dirty still.
    pub(crate) fn relieve_ahead(&self) -> bool {
        let ahead = || self.device.has_urgent() && self.cache.nears_limit();
        ahead() && self.relieve_by(STEP_PAGES_BESIDE) == Relief::Wrote && ahead()
    }

    /// Has `thread` be unparked when [`Pages::relieve_ahead`] has something to do.
    pub(crate) fn relieved_by(&self, thread: std::thread::Thread) {
        // One is enough; the first one stays.
        let _ = self.relief.set(thread);
    }

    /// As [`Pages::relieve`], by up to so many pages.
    fn relieve_by(&self, pages_max: usize) -> Relief {
        let relief_pages = self.relief_pages.load(Ordering::Relaxed);
        let most = if relief_pages == RELIEF_PAGES { pages_max } else { relief_pages.min(pages_max) };
        let mut tries = self.unrecorded.len();
        let mut refused = 0;
        while tries > 0 && refused < most {
            let group = self.unlist_group(most, |is_first| self.unrecorded.unlist_unspared(is_first));
            // A bound: the list may have grown since.
            tries = tries.saturating_sub(group.len());
            if group.is_empty() {
                break;
            }
            let mut wrote = false;
            let left = self.write_together(&group);
            for (index, listed) in group.into_iter().enumerate() {
                let mut done = !left.contains(&index);
                if !done
                    && let Some(quiet) = listed.inode.data.try_quiet()
                    && let dirty = listed.inode.data.object.dirty_pages() as usize
                    && dirty > 0
                {
                    done = self.write_back_some(&quiet, &listed.inode, Page::ALL, most, Data::Cached).is_ok();
                    refused += if done { 0 } else { dirty.min(most) };
                }
                wrote |= done;
                self.unrecorded.relist(listed, done);
            }
            if wrote {
                self.relief_pages.store((2 * relief_pages).min(RELIEF_PAGES), Ordering::Relaxed);
                self.cache.resume();
                return Relief::Wrote;
            }
        }
        if refused == 0 {
            return Relief::Idle;
        }
        self.relief_pages.store(1, Ordering::Relaxed);
        self.cache.put_off(RELIEF_PAGES as u64);
        Relief::Refused
    }

    /// The listed inodes that `unlist` answers, which is told whether it is the first: as many as go together, up to
    /// the one with which they have `pages_max` pages.
    fn unlist_group(&self, pages_max: usize, unlist: impl Fn(bool) -> Option<Listed>) -> Vec<Listed> {
        let files_max = (self.meta.journal.store.batch_bytes_max() / FILE_RECORD_BYTES).clamp(1, GROUP_FILES);
        let mut group = Vec::new();
        let mut pages = 0;
        while group.len() < files_max && pages < pages_max as u64 {
            let Some(listed) = unlist(group.is_empty()) else { break };
            pages += listed.inode.data.object.dirty_pages();
            group.push(listed);
        }
        group
    }

    /// Writes what is dirty of several files back as one step: large writes, one batch. Nobody is waited for.
    /// Answers those of which something is left, in ascending order: they have many pages, somebody else is
    /// at them, or it failed, which whoever writes them one by one is told.
    fn write_together(&self, group: &[Listed]) -> Vec<usize> {
        let _step = self.steps.begin();
        let mut left = Vec::new();
        let mut parts = Vec::with_capacity(group.len());
        for (index, listed) in group.iter().enumerate() {
            let inode = &listed.inode;
            let few = inode.data.object.dirty_pages() <= GROUP_PAGES as u64;
            match inode.data.try_quiet().filter(|_| few && group.len() > 1) {
                Some(_) if inode.reaped.load(Ordering::SeqCst) => {}
                Some(quiet) => parts.push((index, quiet, Part::take(self, inode, Page::ALL, GROUP_PAGES))),
                None => left.push(index),
            }
        }
        let pooled = parts.iter().filter(|(index, ..)| self.is_pooled(&group[*index].inode));
        let mut pool = Pool::new(pooled.map(|(.., part)| part.pages() as u64).sum());
        let (mut numbers, mut quiets, mut planned) = (Vec::new(), Vec::new(), Vec::new());
        for (index, quiet, mut part) in parts {
            if self.plan(&mut part, Some(&mut pool)).is_ok() {
                if !part.is_whole() {
                    left.push(index);
                }
                numbers.push(index);
                quiets.push(quiet);
                planned.push(part);
            } else {
                self.give_up(part);
                left.push(index);
            }
        }
        drop(pool);
        let sent = self.send(&planned, Data::Cached).and_then(|()| self.settle_step(&mut planned));
        if sent.and_then(|()| self.log(&planned)).is_ok() {
            planned.into_iter().for_each(|part| self.deliver(part));
        } else {
            planned.into_iter().for_each(|part| self.give_up(part));
            left.extend(&numbers);
        }
        for index in numbers {
            // Nobody else records a size while its `io` is held; one that is busy is looked at again later.
            let inode = &group[index].inode;
            if let Some(recorded) = inode.try_lock().map(|state| state.record().size) {
                self.unrecorded.size_recorded(inode, recorded);
            }
        }
        drop(quiets);
        left.sort_unstable();
        left.dedup();
        left
    }

    /// Writes everything of an inode back: pages, then the record with the size.
    ///
    /// # Errors
    /// The device's and the store's; what was not written stays dirty, and each open description is told.
    pub(super) fn write_back(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        self.write_back_range(inode, ByteOffset::ALL, Data::Cached)
    }

    /// As [`Pages::write_back`], for a range of bytes.
    pub(super) fn write_back_range(
        &self,
        inode: &Arc<Inode>,
        range: Range<ByteOffset>,
        data: Data,
    ) -> Result<(), FsError> {
        self.gather_mapped(inode, range.clone())?;
        // Even when nothing is left: what somebody else writes at this moment is on the device then.
        let quiet = inode.data.quiet();
        if self.unrecorded.has(inode) {
            let pages = range.start.page()..range.end.page_end();
            self.write_back_some(&quiet, inode, pages, usize::MAX, data)?;
        }
        Ok(())
    }

    pub(super) fn write_back_some(
        &self,
        quiet: &Quiet<'_>,
        inode: &Arc<Inode>,
        pages: Range<Page>,
        pages_max: usize,
        data: Data,
    ) -> Result<(), FsError> {
        assert!(quiet.io().is_of(&inode.data), "inode {} is written back under another's lock", inode.ino);
        if inode.reaped.load(Ordering::SeqCst) {
            return Ok(());
        }
        // The record can tell of what lies past its size only when all that lies below is there, too.
        let recorded = ByteOffset(inode.lock().record().size).page();
        let grown = inode.data.object.next_dirty(recorded).unwrap_or(Page::END);
        let mut from = pages.start.min(grown);
        let mut left = pages_max;
        while left > 0 {
            let has_urgent = self.device.has_urgent();
            // Who waits for this file lends its rank from the next step on.
            let wanted = has_urgent && inode.data.is_wanted();
            let is_urgent = wanted || self.is_forced();
            let step = left.min(match (is_urgent, has_urgent) {
                (true, _) => STEP_PAGES_URGENT,
                (false, true) => STEP_PAGES_BESIDE,
                (false, false) => STEP_PAGES,
            });
            let write = || self.write_step(inode, from..pages.end, step, data);
            let written = if wanted { caller::with(Urgency::Urgent, write) } else { write() };
            let next = written.inspect_err(|error| {
                inode.data.errors.fetch_add(1, Ordering::SeqCst);
                self.meta.health.data_failed(inode.ino, error);
            })?;
            let Some(next) = next else { break };
            assert!(next >= from, "write-back goes on at page {next}, before {from}");
            from = next;
            left -= step;
        }
        self.record_size(inode)
    }

    /// Writes up to `pages_max` pages of a range; answers where to go on, none when nothing was left.
    fn write_step(
        &self,
        inode: &Arc<Inode>,
        pages: Range<Page>,
        pages_max: usize,
        data: Data,
    ) -> Result<Option<Page>, FsError> {
        let _step = self.steps.begin();
        let part = Part::take(self, inode, pages, pages_max);
        if part.pages() == 0 {
            return Ok(None);
        }
        let mut parts = [part];
        let [part] = &mut parts;
        let next = self.plan(part, None).map(|()| part.next());
        let early =
            Mutant::RecordBeforeData.is_made() || (Mutant::LogBeforeForced.is_made() && self.is_forced());
        let write = |parts: &mut [Part<'_>; 1]| match early {
            true => {
                self.log(parts).and_then(|()| self.meta.commit_all()).and_then(|()| self.send(parts, data))
            }
            false => {
                let sent = self.send(parts, data).and_then(|()| self.settle_step(parts));
                sent.and_then(|()| self.log(parts))
            }
        };
        let written = next.and_then(|next| write(&mut parts).map(|()| next));
        let [part] = parts;
        if written.is_ok() {
            self.deliver(part)
        } else {
            self.give_up(part)
        }
        written.map(Some)
    }

    /// Records the size, if no dirty page stands behind it any more.
    fn record_size(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let size = inode.size.load(Ordering::Acquire);
        if inode.lock().record().size != size && inode.data.object.next_dirty(Page::FIRST).is_none() {
            self.meta.record_size(inode, size, || self.meta.growth_is_open(inode))?;
        }
        let recorded = inode.lock().record().size;
        self.unrecorded.size_recorded(inode, recorded);
        Ok(())
    }

    /// Writes all dirty data back.
    ///
    /// # Errors
    /// The first that occurred; the others were tried.
    pub(crate) fn write_back_all(&self) -> Result<(), FsError> {
        self.gather_all_mapped(&self.meta.inodes)?;
        let before = self.unrecorded.next();
        let written = self.write_back_due(&|_| true);
        // Others may have taken some off the list first, and not be done.
        self.unrecorded.left_of(before).iter().fold(written, |done, inode| {
            let one = self.write_back(inode);
            done.and(one)
        })
    }

    pub(crate) fn write_back_due(&self, due: &dyn Fn(i64) -> bool) -> Result<(), FsError> {
        self.meta.grow_if_low();
        let mut result = Ok(());
        let mut listed = self.unrecorded.len();
        while listed > 0 {
            let group = self.unlist_group(STEP_PAGES, |_| self.unrecorded.unlist(due));
            // As above.
            listed = listed.saturating_sub(group.len());
            if group.is_empty() {
                break;
            }
            let left = self.write_together(&group);
            for (index, listed) in group.into_iter().enumerate() {
                if left.contains(&index) {
                    result = result.and(self.write_back(&listed.inode));
                }
                self.unrecorded.relist(listed, false);
            }
        }
        result
    }

    /// Makes an inode durable: its data, its record if `times` or the data asks for it, and every
    /// change of metadata before.
    pub(crate) fn sync_inode(&self, inode: &Arc<Inode>, times: bool) -> Result<(), FsError> {
        if self.meta.read_only {
            return Ok(());
        }
        if inode.kind == FileType::File {
            // A flush that has to come anyway does for this data too.
            let flushed = !self.meta.journal.order.is_open(inode.data.ticket.load(Ordering::SeqCst));
            let alone = flushed && !(times && inode.is_late()) && self.meta.journal.is_committed();
            self.write_back_range(inode, ByteOffset::ALL, if alone { Data::Durable } else { Data::Cached })?;
            inode.synced.store(true, Ordering::Relaxed);
            if self.is_forced() {
                inode.data.spared.store(true, Ordering::Relaxed);
            }
        }
        self.meta.record_times(inode, times)?;
        if inode.kind == FileType::Directory && Mutant::DirectorySyncForgotten.is_made() {
            return Ok(());
        }
        let (told, ticket) =
            (inode.data.told.load(Ordering::SeqCst), inode.data.ticket.load(Ordering::SeqCst));
        if self.is_forced() && self.meta.journal.keeps(told, ticket) {
            return Ok(());
        }
        self.meta.commit(ticket)
    }
}
