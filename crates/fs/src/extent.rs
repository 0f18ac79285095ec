//! Where a file's blocks lie: its extents in memory, in the inode's record, in records of their own.

use crate::blocks::alloc::Run;
use crate::extent_map::ExtentMap;
use core::ops::Range;
use nvmed_layout::record::{EXTENT_UNWRITTEN, Extent};
use nvmed_units::{Block, Page};

/// Blocks of the longest extent, 128 MiB: so many bitmap records one extent touches, and a batch has a
/// limit.
pub(crate) const EXTENT_BLOCKS_MAX: u32 = 1 << 15;

/// What a page of a file lies on, and how far that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockMapping {
    /// Nothing, up to this page.
    Hole {
        /// One past the last page of the hole.
        end: Page,
    },
    /// A block of the device.
    Block {
        /// The page's block.
        block: Block,
        /// One past the last page of the extent.
        end: Page,
        /// Reads as zeroes.
        unwritten: bool,
    },
}

/// Where the bytes of a file lie, as far as it is known. Whoever copies from or to a block without a command holds the
/// lock on this to read, and whoever takes blocks away or gives them holds it to write: so nobody copies what is
/// somebody else's by then.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    /// What the records say; loaded at the first use.
    pub(crate) recorded: Option<Extents>,
    /// Blocks with data of the file that no record says so of yet, behind all that have data.
    pub(crate) fresh: Option<Fresh>,
    /// Blocks that the records have behind the end of the file, as never written, for what is appended next.
    pub(crate) room: Option<Extent>,
}

impl Whereabouts {
    /// What a page lies on; none while the records were not asked.
    #[inline]
    pub(crate) fn mapping(&self, page: Page) -> Option<BlockMapping> {
        match self.fresh {
            None => Some(self.recorded.as_ref()?.mapping(page)),
            Some(fresh) => self.mapping_with(&fresh.extent, page),
        }
    }

    fn mapping_with(&self, fresh: &Extent, page: Page) -> Option<BlockMapping> {
        if fresh.pages().contains(&page) {
            let block = fresh.physical + (page - fresh.logical);
            return Some(BlockMapping::Block { block, end: fresh.logical_end(), unwritten: false });
        }
        Some(match self.recorded.as_ref()?.mapping(page) {
            BlockMapping::Hole { end } if page < fresh.logical => {
                BlockMapping::Hole { end: end.min(fresh.logical) }
            }
            mapping => mapping,
        })
    }

    /// The block of the first of some pages, if it is known that all of them have blocks with data, side by side.
    #[inline]
    pub(crate) fn written(&self, pages: Range<Page>) -> Option<Block> {
        let extent = match &self.fresh {
            Some(fresh) if fresh.extent.logical <= pages.start => &fresh.extent,
            _ => self.recorded.as_ref()?.map.up_to(pages.start)?,
        };
        let is_whole = pages.end <= extent.logical_end() && extent.flags & EXTENT_UNWRITTEN == 0;
        is_whole.then(|| extent.physical + (pages.start - extent.logical))
    }

    /// As [`Extents::goal`].
    pub(crate) fn goal(&self, page: Page) -> Option<Block> {
        let fresh = self.fresh.map(|fresh| fresh.extent).filter(|fresh| fresh.logical < page);
        fresh.map(|fresh| fresh.physical_end()).or_else(|| self.recorded.as_ref()?.goal(page))
    }
}

/// Blocks with data that no record says so of, side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    /// Where they are.
    pub(crate) extent: Extent,
    /// So many of the first are recorded as never written: they were room of the file, and go with its record.
    pub(crate) of_room: u32,
}

impl Fresh {
    /// Those before a page.
    pub(crate) fn before(&self, page: Page) -> Option<Self> {
        let extent = self.extent.before(page)?;
        Some(Self { extent, of_room: self.of_room.min(extent.blocks) })
    }

    /// Those from a page on.
    pub(crate) fn behind(&self, page: Page) -> Option<Self> {
        let extent = self.extent.behind(page)?;
        Some(Self { extent, of_room: self.of_room.saturating_sub(self.extent.blocks - extent.blocks) })
    }

    /// These with those behind them; none where they lie elsewhere.
    pub(crate) fn joined(&self, more: &Self) -> Option<Self> {
        let is_next = self.extent.logical_end() == more.extent.logical
            && self.extent.physical_end() == more.extent.physical;
        // Room begins where the record ends.
        let is_all_room = self.of_room == self.extent.blocks;
        let blocks = self.extent.blocks + more.extent.blocks;
        (is_next && (is_all_room || more.of_room == 0)).then_some(Self {
            extent: Extent { blocks, ..self.extent },
            of_room: self.of_room + more.of_room,
        })
    }

    /// Those that no record has at all.
    pub(crate) fn unrecorded(&self) -> Option<Extent> {
        self.extent.behind(self.extent.logical + u64::from(self.of_room))
    }
}

/// The extents of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    map: ExtentMap,
    /// Pages at which records of their own have changed.
    touched: Vec<Page>,
    blocks: u64,
}

impl Extents {
    /// Takes up an extent of the records; whether it lies behind those before.
    pub(crate) fn push(&mut self, extent: Extent) -> bool {
        let end = self.map.last().map_or(Page::FIRST, Extent::logical_end);
        self.blocks += u64::from(extent.blocks);
        self.map.insert(extent);
        extent.logical >= end
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Blocks in all of them.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All of them, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.map.values()
    }

    /// All of them, ascending, where they are few.
    #[inline]
    pub(crate) fn few(&self) -> Option<&[Extent]> {
        self.map.side_by_side()
    }

    /// Tells the pages at which records of their own have changed, each once, and the extents that begin there.
    pub(crate) fn touched(&mut self, mut tell: impl FnMut(Page, Option<&Extent>)) {
        self.touched.sort_unstable();
        self.touched.dedup();
        self.touched.iter().for_each(|logical| tell(*logical, self.map.get(*logical)));
    }

    /// What has changed is logged.
    pub(crate) fn logged(&mut self) {
        self.touched.clear();
    }

    /// What a page lies on.
    #[inline]
    pub(crate) fn mapping(&self, page: Page) -> BlockMapping {
        match self.map.up_to(page) {
            Some(extent) if page < extent.logical_end() => BlockMapping::Block {
                block: extent.physical + (page - extent.logical),
                end: extent.logical_end(),
                unwritten: extent.flags & EXTENT_UNWRITTEN != 0,
            },
            _ => BlockMapping::Hole { end: self.map.from(page).map_or(Page::END, |next| next.logical) },
        }
    }

    /// How many pages of a range have a block.
    pub(crate) fn blocks_in(&self, pages: &Range<Page>) -> u64 {
        let before = self.map.up_to(pages.start).filter(|extent| extent.logical < pages.start);
        let inside = self.map.within(pages.clone());
        let of = |extent: &Extent| extent.logical_end().min(pages.end) - extent.logical.max(pages.start);
        before.filter(|extent| extent.logical_end() > pages.start).into_iter().chain(inside).map(of).sum()
    }

    /// Whether a page has a block.
    pub(crate) fn has(&self, page: Page) -> bool {
        matches!(self.mapping(page), BlockMapping::Block { .. })
    }

    /// The block after that of the nearest page before, where the page would best lie.
    pub(crate) fn goal(&self, page: Page) -> Option<Block> {
        self.map.before(page).map(Extent::physical_end)
    }

    /// The last extent that begins before a page.
    pub(crate) fn last_before(&self, page: Page) -> Option<Extent> {
        self.map.before(page).copied()
    }

    /// Whether anything changed that is not logged yet.
    pub(crate) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The first extent with a page in a range.
    pub(crate) fn first_in(&self, pages: &Range<Page>) -> Option<Extent> {
        let before = self.map.up_to(pages.start).copied();
        before
            .filter(|extent| extent.logical_end() > pages.start)
            .or_else(|| self.map.from(pages.start).filter(|next| next.logical < pages.end).copied())
    }

    fn put(&mut self, extent: Extent) {
        self.blocks += u64::from(extent.blocks);
        self.touched.push(extent.logical);
        self.map.insert(extent);
    }

    fn take(&mut self, logical: Page) -> Option<Extent> {
        let extent = self.map.remove(logical)?;
        let rest = self.blocks.checked_sub(extent.blocks.into());
        self.blocks = rest.expect("a file has the blocks of its extents");
        self.touched.push(logical);
        Some(extent)
    }

    /// As a mistake of ours would leave it.
    #[cfg(test)]
    pub(crate) fn forget_count(&mut self) {
        self.blocks = 0;
    }

    /// Adds blocks to pages that have none; it joins with its neighbours where they go on.
    pub(crate) fn insert(&mut self, new: Extent) {
        assert!(new.blocks > 0, "an extent of no blocks at page {}", new.logical);
        let mut new = new;
        let before = self.map.up_to(new.logical);
        let ends = before.map_or(Page::FIRST, Extent::logical_end);
        let after = self.map.from(new.logical).copied();
        let begins = after.map_or(Page::END, |after| after.logical);
        let is_free = ends <= new.logical && new.logical_end() <= begins;
        assert!(is_free, "a page of {}..{} has a block already", new.logical, new.logical_end());
        if let Some(before) = before
            && joins(before, &new)
        {
            let before = *before;
            self.take(before.logical);
            new = Extent { blocks: before.blocks + new.blocks, ..before };
        }
        if let Some(after) = after
            && joins(&new, &after)
        {
            self.take(after.logical);
            new.blocks += after.blocks;
        }
        self.put(new);
    }

    /// Marks blocks as written with which an extent begins that never was, where they go on with what the extent before
    /// it has, and leave some of theirs: the bound between two extents moves, and nothing else changes. False: nothing
    /// has changed, and it takes more.
    pub(crate) fn write_on(&mut self, new: &Extent) -> bool {
        let Some((before, unwritten)) = self.map.with_before(new.logical) else { return false };
        let begins = unwritten.flags & EXTENT_UNWRITTEN != 0 && unwritten.physical == new.physical;
        let left = unwritten.blocks.saturating_sub(new.blocks);
        if !begins || left == 0 || !joins(before, new) {
            return false;
        }
        before.blocks += new.blocks;
        let (logical, physical) = (new.logical_end(), new.physical_end());
        *unwritten = Extent { logical, physical, blocks: left, ..*unwritten };
        for page in [before.logical, new.logical, logical] {
            self.touched.push(page);
        }
        true
    }

    /// Takes the blocks of a range of pages away, telling each piece.
    pub(crate) fn cut(&mut self, pages: Range<Page>, mut gone: impl FnMut(Extent)) {
        assert!(pages.start <= pages.end, "pages {}..{} are cut", pages.start, pages.end);
        while let Some(extent) = self.first_in(&pages) {
            self.take(extent.logical);
            let from = pages.start.max(extent.logical);
            let to = pages.end.min(extent.logical_end());
            for (start, end) in [(extent.logical, from), (to, extent.logical_end())] {
                if start < end {
                    self.put(part(&extent, start, end));
                }
            }
            gone(part(&extent, from, to));
        }
    }

    /// Marks the blocks of a range as written, or as never written.
    pub(crate) fn mark(&mut self, pages: Range<Page>, unwritten: bool) {
        let flags = if unwritten { EXTENT_UNWRITTEN } else { 0 };
        let mut pieces = Vec::new();
        self.cut(pages, |piece| pieces.push(piece));
        for piece in pieces {
            self.insert(Extent { flags, ..piece });
        }
    }
}

/// Whether the second goes on where the first ends.
fn joins(first: &Extent, second: &Extent) -> bool {
    first.logical_end() == second.logical
        && first.physical_end() == second.physical
        && first.flags == second.flags
        && u64::from(first.blocks) + u64::from(second.blocks) <= u64::from(EXTENT_BLOCKS_MAX)
}

fn part(extent: &Extent, start: Page, end: Page) -> Extent {
    let is_inside = extent.logical <= start && start < end && end <= extent.logical_end();
    assert!(is_inside, "pages {start}..{end} of an extent from {} on", extent.logical);
    Extent {
        logical: start,
        physical: extent.physical + (start - extent.logical),
        blocks: u32::try_from(end - start).expect("a part is no longer than its extent"),
        flags: extent.flags,
    }
}

impl From<&Extent> for Run {
    /// Its blocks on the device.
    fn from(extent: &Extent) -> Self {
        Self { start: extent.physical, blocks: extent.blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(logical: u64, physical: u64, blocks: u32, flags: u32) -> Extent {
        Extent { logical: Page(logical), physical: Block(physical), blocks, flags }
    }

    fn range(start: u64, end: u64) -> Range<Page> {
        Page(start)..Page(end)
    }

    #[test]
    fn neighbours_join_and_cuts_split() {
        let mut extents = Extents::default();
        extents.insert(extent(10, 100, 5, 0));
        extents.insert(extent(20, 110, 5, 0));
        extents.insert(extent(15, 105, 5, 0));
        assert_eq!(extents.map.len(), 1);
        assert_eq!(
            extents.mapping(Page(19)),
            BlockMapping::Block { block: Block(109), end: Page(25), unwritten: false }
        );
        assert_eq!(extents.mapping(Page(0)), BlockMapping::Hole { end: Page(10) });
        assert_eq!(extents.mapping(Page(25)), BlockMapping::Hole { end: Page::END });
        let mut gone = Vec::new();
        extents.cut(range(12, 14), |piece| gone.push(piece));
        assert_eq!(gone, [extent(12, 102, 2, 0)]);
        assert_eq!((extents.map.len(), extents.blocks), (2, 13));
        assert_eq!(extents.goal(Page(12)), Some(Block(102)));
        extents.mark(range(0, 11), true);
        assert_eq!(
            extents.mapping(Page(10)),
            BlockMapping::Block { block: Block(100), end: Page(11), unwritten: true }
        );
        extents.mark(range(0, 11), false);
        assert_eq!(extents.map.len(), 2, "joined again");
    }

    #[test]
    #[should_panic(expected = "a page of 18..22 has a block already")]
    fn a_page_before_others_has_one_block() {
        let mut extents = Extents::default();
        extents.insert(extent(20, 100, 5, 0));
        extents.insert(extent(18, 300, 4, 0));
    }

    #[test]
    #[should_panic(expected = "an extent of no blocks at page 18")]
    fn an_extent_has_blocks() {
        Extents::default().insert(extent(18, 300, 0, 0));
    }

    #[test]
    #[should_panic(expected = "are cut")]
    fn what_is_cut_begins_before_it_ends() {
        Extents::default().cut(range(9, 8), drop);
    }

    #[test]
    #[should_panic(expected = "pages 3..5 of an extent from 4 on")]
    fn a_part_lies_inside() {
        part(&extent(4, 100, 4, 0), Page(3), Page(5));
    }

    #[test]
    fn the_bound_moves_where_that_is_all_and_nothing_changes_elsewhere() {
        // Before the room, the room, and what of it is written.
        let (file, room) = (extent(2, 102, 3, 0), extent(5, 105, 8, EXTENT_UNWRITTEN));
        let moved = |before: Extent, room: Extent, new: Extent, far: usize| {
            let mut extents = Extents::default();
            extents.insert(before);
            extents.insert(room);
            (0..far as u64).for_each(|at| extents.insert(extent(100 + 2 * at, 500 + 3 * at, 1, 0)));
            extents.logged();
            let mut plain = extents.clone();
            let is_moved = extents.write_on(&new);
            if is_moved {
                plain.mark(new.pages(), false);
                plain.touched(|_, _| ());
                extents.touched(|_, _| ());
                assert_eq!(extents.touched, plain.touched, "{new:?}");
            }
            assert!(
                extents.iter().eq(plain.iter()) && extents.blocks == plain.blocks,
                "{new:?}: {extents:?}"
            );
            is_moved
        };
        for blocks in 1..=8 {
            let new = extent(5, 105, blocks, 0);
            assert_eq!(moved(file, room, new, 0), blocks < 8, "the last of it goes as any other");
            assert_eq!(moved(file, room, new, 2), blocks < 8);
            assert!(!moved(file, room, new, 9), "they are not few");
            assert!(!moved(extent(2, 99, 3, 0), room, new, 0), "the file lies elsewhere");
            assert!(
                !moved(file, extent(5, 105, 8, 0), extent(6, 106, blocks, 0), 0),
                "no extent begins there"
            );
        }
        assert!(!moved(file, room, extent(5, 105, 9, 0), 0), "more than the room");
        assert!(!moved(file, room, extent(5, 106, 2, 0), 0), "not the room's blocks");
        let long = extent(2, 102, EXTENT_BLOCKS_MAX, 0);
        let end = 2 + u64::from(EXTENT_BLOCKS_MAX);
        let behind = extent(end, 100 + end, 8, EXTENT_UNWRITTEN);
        assert!(!moved(long, behind, extent(end, 100 + end, 1, 0), 0), "no extent is longer");
        assert!(!moved(file, extent(5, 300, 8, 0), extent(5, 300, 2, 0), 0), "it is written");
    }

    proptest! {
        /// Against one entry a page.
        #[test]
        fn extents_are_an_array_of_blocks(
            steps in prop::collection::vec((0u64..60, 1u64..12, 0u8..4), 1..60),
        ) {
            let mut extents = Extents::default();
            let mut model: Vec<Option<(u64, bool)>> = vec![None; 80];
            let mut next = 1000;
            for (from, len, what) in steps {
                let to = from + len;
                if what == 0 {
                    extents.cut(range(from, to), |_| {});
                    model[from as usize..to as usize].fill(None);
                } else if what == 1 {
                    extents.mark(range(from, to), true);
                    for page in model[from as usize..to as usize].iter_mut().flatten() {
                        *page = (page.0, true);
                    }
                } else if model[from as usize..to as usize].iter().all(Option::is_none) {
                    extents.insert(extent(from, next, len as u32, 0));
                    for page in &mut model[from as usize..to as usize] {
                        *page = Some((next, false));
                        next += 1;
                    }
                    next += u64::from(what == 3);
                }
            }
            for (page, expected) in model.iter().enumerate() {
                let found = match extents.mapping(Page(page as u64)) {
                    BlockMapping::Block { block, unwritten, .. } => Some((block.0, unwritten)),
                    BlockMapping::Hole { .. } => None,
                };
                prop_assert_eq!(found, *expected, "page {}", page);
            }
            prop_assert_eq!(extents.blocks, model.iter().flatten().count() as u64);
            let all: Vec<Extent> = extents.map.values().copied().collect();
            prop_assert!(all.windows(2).all(|pair| !joins(&pair[0], &pair[1])), "neighbours are joined");
        }
    }
}
