//! What a file has in its records: extents, size, and bytes of its own. Each change of them is one batch.

use crate::error::FsError;
use crate::extent::{BlockMapping, Extents};
use crate::inode::{Inode, State};
use crate::metadata::Metadata;
use crate::metadata::change::Change;
use core::ops::Range;
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_layout::record::{Extent, FLAG_KEYED_EXTENTS, Record, Tail};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

/// Extents changed in one batch, which has a limit.
const STEP_EXTENTS: usize = 64;

/// What a batch changes in the extents of a range.
type Step<'a> = dyn Fn(&mut Change<'_>, &mut Extents, Range<Page>) -> Result<(), FsError> + 'a;

impl Metadata {
    /// Lets `use_them` work on the extents of an inode, whose state the caller has locked.
    ///
    /// # Errors
    /// What loading them answers, and what `use_them` does.
    pub(crate) fn with_extents<T>(
        &self,
        inode: &Inode,
        state: &mut State,
        use_them: impl FnOnce(&mut State, &mut Extents) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let mut held = inode.data.extents.write();
        let extents = match &mut held.recorded {
            Some(extents) => extents,
            none => none.insert(self.load_extents(inode.ino, state.record())?),
        };
        use_them(state, extents)
    }

    /// What is known of an inode's extents may be wrong: they are loaded again.
    pub(crate) fn forget_extents(&self, inode: &Inode) {
        inode.data.extents.write().recorded = None;
    }

    /// The last description is being closed.
    pub(crate) fn closing(&self, inode: &Inode) {
        if inode.kind == FileType::File {
            self.drop_prealloc(inode);
            if inode.lock().record().flags & FLAG_KEYED_EXTENTS == 0 {
                // A small file's are in its record: no need to keep them twice.
                self.forget_extents(inode);
            }
        }
    }

    /// What a page lies on.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn mapping(&self, inode: &Inode, page: Page) -> Result<BlockMapping, FsError> {
        let mut state = inode.lock();
        self.with_extents(inode, &mut state, |_, extents| Ok(extents.mapping(page)))
    }

    /// Pages of a range that have no block.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn holes(&self, inode: &Inode, pages: Range<Page>) -> Result<u64, FsError> {
        let mut state = inode.lock();
        self.with_extents(inode, &mut state, |_, extents| {
            let (mut at, mut holes) = (pages.start, 0);
            while at < pages.end {
                at = match extents.mapping(at) {
                    BlockMapping::Block { end, .. } => end,
                    BlockMapping::Hole { end } => {
                        holes += end.min(pages.end) - at;
                        end
                    }
                };
            }
            Ok(holes)
        })
    }

    /// Records that the blocks `written` have data, which are the first of the file's room and go on with what has data
    /// before them, and a size that they reach; answers the size that the record has then. What is fresh is no more, as
    /// far as they reach. None: nothing has changed, and it takes more.
    ///
    /// It is what a file that is appended to and synced again and again asks for each time: all of it is done while
    /// what changes is held once.
    ///
    /// # Errors
    /// The store's. Nothing changed then.
    pub(crate) fn record_on(
        &self,
        inode: &Arc<Inode>,
        written: &Extent,
        size: u64,
    ) -> Result<Option<u64>, FsError> {
        let mut state = inode.lock();
        let mut held = inode.data.extents.write();
        let Some(extents) = held.recorded.as_mut().filter(|extents| !extents.is_touched()) else {
            return Ok(None);
        };
        if !extents.write_on(written) {
            return Ok(None);
        }
        let mut record = inode.compose(&state);
        record.size = record.size.max(size);
        let mut change = self.change();
        // What was written had a promise, of room for its records too.
        change.use_headroom();
        change.require_flush();
        change.put_extents(extents, inode.ino, &mut record);
        change.put_inode(inode, &record);
        if let Err(error) = change.apply() {
            held.recorded = None;
            drop(held);
            // The times are as unwritten as before.
            self.touch(inode, None, None, None);
            return Err(error);
        }
        held.fresh = held.fresh.and_then(|fresh| fresh.behind(written.logical_end()));
        drop(held);
        let recorded = record.size;
        inode.publish_extents(&mut state, record);
        Ok(Some(recorded))
    }

    /// Records that a file has at least `size` bytes; answers how many the record has then. Within a block that it had
    /// before, that shows what the device has there: what was cut off earlier, until what was written over it is
    /// durable, which `is_open` says it is not.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn record_size(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        is_open: impl FnOnce() -> bool,
    ) -> Result<u64, FsError> {
        let mut state = inode.lock();
        if size <= state.record().size {
            return Ok(state.record().size);
        }
        let mut record = inode.compose(&state);
        record.size = size;
        let mut change = self.change();
        // What was written had a promise, of room for its records too.
        change.use_headroom();
        if is_open() {
            change.require_flush();
        }
        change.put_inode(inode, &record);
        match change.apply() {
            Ok(_) => inode.publish(&mut state, record),
            Err(error) => {
                self.touch(inode, None, None, None);
                return Err(error);
            }
        }
        Ok(size)
    }

    /// Whether the device may still lose data of a file that a larger size in its record would show.
    pub(crate) fn growth_is_open(&self, inode: &Inode) -> bool {
        let ticket = inode.data.ticket.load(Ordering::SeqCst);
        self.journal.order.is_open(ticket) && !Mutant::GrowthNotFlushed.is_made()
    }

    /// Changes extents, and size and inline data in the record, as one batch. Nothing is written when nothing
    /// changes. The inode's account was charged for `charged` blocks that come.
    ///
    /// # Errors
    /// What `edit` answers; the store's. Nothing changed then.
    pub(crate) fn edit(
        &self,
        inode: &Arc<Inode>,
        charged: u64,
        edit: impl FnOnce(&mut Change<'_>, &mut Extents, &mut Record) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut state = inode.lock();
        let mut record = inode.compose(&state);
        let applied = self.with_extents(inode, &mut state, |state, extents| {
            let before = state.record();
            let mut change = self.change();
            edit(&mut change, extents, &mut record)?;
            if !extents.is_touched() && record.size == before.size && record.tail == before.tail {
                return Ok(false);
            }
            change.put_extents(extents, inode.ino, &mut record);
            change.put_inode(inode, &record);
            change.apply().map(|_| true)
        });
        match applied {
            Ok(true) => {
                inode.publish_charged(&mut state, record, charged);
                return Ok(());
            }
            Ok(false) => {}
            Err(_) => self.forget_extents(inode),
        }
        let before = state.record();
        let times = |record: &Record| [record.atime_ns, record.mtime_ns, record.ctime_ns];
        if times(&record) != times(before) {
            // The times are as unwritten as before.
            self.touch(inode, None, None, None);
        }
        applied.map(drop)
    }

    /// Frees the blocks of a range, the last first, in as many batches as it needs; with `file_end` lowers the recorded
    /// size with them.
    ///
    /// # Errors
    /// The store's; each batch is there as a whole or not.
    pub(crate) fn remove_blocks(
        &self,
        inode: &Arc<Inode>,
        pages: Range<Page>,
        file_end: Option<ByteOffset>,
    ) -> Result<(), FsError> {
        self.in_steps(inode, pages, file_end, &|change, extents, pages| {
            let mut freed = Ok(());
            extents.cut(pages, |piece| {
                freed =
                    core::mem::replace(&mut freed, Ok(())).and_then(|()| change.free_run((&piece).into()));
            });
            freed
        })
    }

    /// As [`Metadata::remove_blocks`] behind a new end, of a file whose blocks programs may still see: they stay the
    /// file's, and hold zeroes.
    ///
    /// # Errors
    /// As [`Metadata::remove_blocks`].
    pub(crate) fn hide_blocks(&self, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        self.in_steps(inode, end.page_end()..Page::END, Some(end), &|_, extents, pages| {
            extents.mark(pages, true);
            Ok(())
        })
    }

    /// Changes the extents of a range by `step`, the last first, in as many batches as that needs.
    fn in_steps(
        &self,
        inode: &Arc<Inode>,
        pages: Range<Page>,
        file_end: Option<ByteOffset>,
        step: &Step<'_>,
    ) -> Result<(), FsError> {
        let mut end = pages.end;
        loop {
            let mut start = pages.start;
            let done = self.edit(inode, 0, |change, extents, record| {
                start = step_start(extents, pages.start..end);
                let stepped = step(change, extents, start..end);
                if let Some(file_end) = file_end {
                    // Between two steps the file ends where its blocks do.
                    let reached = if start > pages.start { start.start() } else { ByteOffset::FIRST };
                    record.size = record.size.min(file_end.max(reached).0);
                }
                let first_goes = pages.start == Page::FIRST;
                cut_inline(
                    record,
                    file_end.unwrap_or(if first_goes { ByteOffset::FIRST } else { Page(1).start() }),
                );
                stepped
            });
            done?;
            if start <= pages.start {
                return Ok(());
            }
            assert!(start < end, "a step from page {start} to {end} frees nothing");
            end = start;
        }
    }
}

/// Keeps what lies before `end` of what the record holds of the file itself.
fn cut_inline(record: &mut Record, end: ByteOffset) {
    let Some(data) = record.inline_data() else { return };
    if end == ByteOffset::FIRST {
        record.tail = Tail::EMPTY;
    } else if end.0 < data.len() as u64 {
        record.tail = Tail::Data(data[..end.0 as usize].into());
    }
}

/// The parts of a range inside a file that do not fill a page, of which any may be empty.
pub(crate) fn edges(
    range: &Range<ByteOffset>,
    file_end: ByteOffset,
) -> impl Iterator<Item = (ByteOffset, ByteOffset)> {
    let (start, range_end, end) = (range.start, range.end, range.end.min(file_end));
    let first_end = start.page_end().start().min(end);
    let last_start = end.page().start().max(first_end);
    [(start, first_end), (last_start, end)].into_iter().filter(move |(from, to)| {
        // A last page that the range covers to its end is no edge.
        let whole = from.within() == 0 && range_end >= (from.page() + 1).start();
        from < to && !whole
    })
}

/// Where a step of freeing begins, so that it frees a bounded number of extents at the end of a range.
fn step_start(extents: &Extents, pages: Range<Page>) -> Page {
    let mut start = pages.end;
    for _ in 0..STEP_EXTENTS {
        match extents.last_before(start).filter(|extent| extent.logical_end() > pages.start) {
            Some(extent) => start = extent.logical.max(pages.start),
            None => return pages.start,
        }
    }
    start
}
