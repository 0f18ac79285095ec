//! The extents of a file in the order of their pages: a few of them side by side, many in a tree.

use core::ops::Range;
use nvmed_layout::record::Extent;
use nvmed_units::Page;
use std::collections::BTreeMap;

/// Extents that lie side by side, as many as most files have: to search a tree or to change one takes five times as
/// long.
const FEW: usize = 4;

/// Extents by their first pages, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentMap {
    few: [Extent; FEW],
    /// How many of `few` there are; none where there is a tree.
    count: usize,
    /// All of them, if they are more than a few.
    many: BTreeMap<Page, Extent>,
}

impl ExtentMap {
    #[inline]
    fn few(&self) -> &[Extent] {
        &self.few[..self.count]
    }

    /// All of them, ascending, where they lie side by side.
    #[inline]
    pub(crate) fn side_by_side(&self) -> Option<&[Extent]> {
        self.many.is_empty().then(|| self.few())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count + self.many.len()
    }

    /// All of them, ascending.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Extent> {
        self.few().iter().chain(self.many.values())
    }

    /// Those that begin within some pages, ascending.
    pub(crate) fn within(&self, pages: Range<Page>) -> impl Iterator<Item = &Extent> {
        let few = self.few().iter().filter(move |extent| (pages.start..pages.end).contains(&extent.logical));
        few.chain(self.many.range(pages).map(|(_, extent)| extent))
    }

    /// The one that begins at a page.
    pub(crate) fn get(&self, page: Page) -> Option<&Extent> {
        self.up_to(page).filter(|extent| extent.logical == page)
    }

    /// The last one.
    pub(crate) fn last(&self) -> Option<&Extent> {
        self.few().last().or_else(|| self.many.values().next_back())
    }

    /// The last one that begins at a page or before.
    #[inline]
    pub(crate) fn up_to(&self, page: Page) -> Option<&Extent> {
        if self.many.is_empty() {
            return self.few().iter().rev().find(|extent| extent.logical <= page);
        }
        self.many.range(..=page).next_back().map(|(_, extent)| extent)
    }

    /// The one that begins at a page, behind the one before it; none where they are not few.
    pub(crate) fn with_before(&mut self, page: Page) -> Option<(&mut Extent, &mut Extent)> {
        let at = self.few().iter().rposition(|extent| extent.logical == page)?;
        let (before, from) = self.few.split_at_mut(at);
        Some((before.last_mut()?, from.first_mut()?))
    }

    /// The last one that begins before a page.
    pub(crate) fn before(&self, page: Page) -> Option<&Extent> {
        if self.many.is_empty() {
            return self.few().iter().rev().find(|extent| extent.logical < page);
        }
        self.many.range(..page).next_back().map(|(_, extent)| extent)
    }

    /// The first one that begins at a page or behind.
    pub(crate) fn from(&self, page: Page) -> Option<&Extent> {
        if self.many.is_empty() {
            return self.few().iter().find(|extent| page <= extent.logical);
        }
        self.many.range(page..).next().map(|(_, extent)| extent)
    }

    /// Puts one in, in place of one that begins there.
    pub(crate) fn insert(&mut self, new: Extent) {
        let at = self.few().iter().position(|extent| new.logical <= extent.logical).unwrap_or(self.count);
        if self.few().get(at).is_some_and(|extent| extent.logical == new.logical) {
            self.few[at] = new;
        } else if self.many.is_empty() && self.count < FEW {
            self.few.copy_within(at..self.count, at + 1);
            self.few[at] = new;
            self.count += 1;
        } else {
            let few = self.few[..self.count].iter();
            self.many.extend(few.map(|extent| (extent.logical, *extent)));
            self.count = 0;
            self.many.insert(new.logical, new);
        }
    }

    /// Takes the one out that begins at a page.
    pub(crate) fn remove(&mut self, page: Page) -> Option<Extent> {
        if self.many.is_empty() {
            let at = self.few().iter().position(|extent| extent.logical == page)?;
            let gone = self.few[at];
            self.few.copy_within(at + 1..self.count, at);
            self.count -= 1;
            return Some(gone);
        }
        let gone = self.many.remove(&page);
        // Not as soon as they fit, since most that go come back in another form.
        if self.many.len() < FEW {
            let many = core::mem::take(&mut self.many);
            self.count = many.len();
            self.few.iter_mut().zip(many.into_values()).for_each(|(place, extent)| *place = extent);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;
    use nvmed_units::Block;

    fn extent(page: u64, blocks: u32) -> Extent {
        Extent { logical: Page(page), physical: Block(100 + page), blocks, flags: 0 }
    }

    #[test]
    fn it_answers_as_a_tree_does_whether_they_are_few_or_many() {
        let (mut map, mut tree) = (ExtentMap::default(), BTreeMap::new());
        let mut dice = Dice::new(7);
        let mut most = 0;
        for round in 0..5000 {
            let page = dice.index(12) as u64;
            // For a while they become many, and then few again.
            if dice.index(8) < if round % 400 < 200 { 6 } else { 2 } {
                let new = extent(page, 1 + dice.index(9) as u32);
                map.insert(new);
                tree.insert(new.logical, new);
            } else {
                assert_eq!(map.remove(Page(page)), tree.remove(&Page(page)));
            }
            most = most.max(tree.len());
            assert!(map.values().eq(tree.values()), "round {round}: {map:?}, not {tree:?}");
            assert_eq!((map.len(), map.last()), (tree.len(), tree.values().next_back()));
            assert_eq!(map.get(Page(page)), tree.get(&Page(page)));
            let last = |range| tree.range::<Page, (_, _)>(range).next_back().map(|(_, extent)| extent);
            use core::ops::Bound::{Excluded, Included, Unbounded};
            assert_eq!(map.up_to(Page(page)), last((Unbounded, Included(Page(page)))));
            assert_eq!(map.before(Page(page)), last((Unbounded, Excluded(Page(page)))));
            assert_eq!(map.from(Page(page)), tree.range(Page(page)..).next().map(|(_, extent)| extent));
            let some = Page(page)..Page(page + 4);
            assert!(map.within(some.clone()).eq(tree.range(some).map(|(_, extent)| extent)));
        }
        assert!(most > 2 * FEW, "{most} at most");
    }
}
