//! Where objects lie, as far as somebody has said: from a byte of the medium to the object that has it, and from bytes
//! of an object to the medium.
//!
//! What is said last counts: an extent takes what it covers from the objects that were said to have it. All of it is
//! hints, so a mistake costs time and no more.

use core::ops::Range;
use nvmed_image::Span;
use std::collections::{BTreeMap, HashMap};

/// Extents of one object that are remembered: the first ones.
pub(super) const OBJECT_EXTENTS_MAX: usize = 1 << 14;
/// Extents of all objects together, about 100 bytes each; of more the objects that were told of first are forgotten.
const EXTENTS_MAX: usize = 1 << 17;

/// Where bytes of an object lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first of them in the object, in bytes.
    pub position: u64,
    /// The first of them on the medium, in bytes.
    pub at: u64,
    /// How many, at least 1.
    pub bytes: u64,
}

impl Extent {
    /// One past its last byte of the object.
    fn end(&self) -> u64 {
        self.position + self.bytes
    }
}

/// A part of the medium that an object has, by its first byte.
#[derive(Clone, Copy, Debug)]
struct Owned {
    end: u64,
    object: u64,
    /// Of the first byte, in the object.
    position: u64,
}

#[derive(Debug)]
struct Object {
    age: u64,
    /// Rising, without overlaps.
    extents: Vec<Extent>,
}

/// A byte of the medium in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) object: u64,
    /// Of the byte, in the object.
    pub(super) position: u64,
    /// Where on the medium the extent ends.
    pub(super) end: u64,
}

/// The objects that are known.
#[derive(Debug, Default)]
pub(super) struct Objects {
    all: HashMap<u64, Object>,
    owned: BTreeMap<u64, Owned>,
    by_age: BTreeMap<u64, u64>,
    next_age: u64,
    /// Extents of all.
    count: usize,
}

impl Objects {
    /// Remembers where an object lies, in place of what was known of it.
    pub(super) fn define(&mut self, object: u64, extents: &[Extent]) {
        self.forget(object);
        let extents = extents[..extents.len().min(OBJECT_EXTENTS_MAX)].to_vec();
        while self.count + extents.len() > EXTENTS_MAX {
            let Some((_, &oldest)) = self.by_age.first_key_value() else { break };
            self.forget(oldest);
        }
        for extent in &extents {
            let end = extent.at + extent.bytes;
            self.cut(extent.at, end);
            self.owned.insert(extent.at, Owned { end, object, position: extent.position });
        }
        self.count += extents.len();
        self.by_age.insert(self.next_age, object);
        self.all.insert(object, Object { age: self.next_age, extents });
        self.next_age += 1;
    }

    /// Takes a range from who was said to have it.
    fn cut(&mut self, begin: u64, end: u64) {
        let before = self.owned.range(..begin).next_back().map(|(&at, &owned)| (at, owned));
        if let Some((at, owned)) = before.filter(|(_, owned)| owned.end > begin) {
            self.owned.insert(at, Owned { end: begin, ..owned });
            self.keep_rest(at, owned, end);
        }
        while let Some((&at, &owned)) = self.owned.range(begin..end).next() {
            self.owned.remove(&at);
            self.keep_rest(at, owned, end);
        }
    }

    /// What of a part lies behind `end`.
    fn keep_rest(&mut self, at: u64, owned: Owned, end: u64) {
        if owned.end > end {
            self.owned.insert(end, Owned { position: owned.position + (end - at), ..owned });
        }
    }

    /// Forgets an object, if it is known.
    pub(super) fn forget(&mut self, object: u64) {
        let Some(gone) = self.all.remove(&object) else { return };
        self.by_age.remove(&gone.age);
        self.count -= gone.extents.len();
        for extent in gone.extents {
            let parts = self.owned.range(extent.at..extent.at + extent.bytes);
            let of_it: Vec<u64> =
                parts.filter(|(_, owned)| owned.object == object).map(|(&at, _)| at).collect();
            for at in of_it {
                self.owned.remove(&at);
            }
        }
    }

    /// Which object has a byte of the medium.
    pub(super) fn find(&self, at: u64) -> Option<Found> {
        let (&begin, owned) = self.owned.range(..=at).next_back()?;
        let position = owned.position + (at - begin);
        (at < owned.end).then_some(Found { object: owned.object, position, end: owned.end })
    }

    /// Where an object ends; none of one that is not known.
    pub(super) fn end(&self, object: u64) -> Option<u64> {
        Some(self.all.get(&object)?.extents.last().map_or(0, Extent::end))
    }

    /// Where bytes of an object lie, in its order.
    pub(super) fn parts(&self, object: u64, range: Range<u64>) -> impl Iterator<Item = (u64, Span)> + '_ {
        let extents = self.all.get(&object).map_or(&[][..], |known| &known.extents);
        let first = extents.partition_point(|extent| extent.end() <= range.start);
        extents[first..].iter().take_while(move |extent| extent.position < range.end).map(move |extent| {
            let begin = extent.position.max(range.start);
            let bytes = extent.end().min(range.end) - begin;
            (begin, Span { offset: extent.at + (begin - extent.position), bytes })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(position: u64, at: u64, bytes: u64) -> Extent {
        Extent { position, at, bytes }
    }

    fn parts(objects: &Objects, object: u64, range: Range<u64>) -> Vec<(u64, u64, u64)> {
        objects.parts(object, range).map(|(position, span)| (position, span.offset, span.bytes)).collect()
    }

    #[test]
    fn bytes_are_found_both_ways() {
        let mut objects = Objects::default();
        objects.define(7, &[extent(0, 1000, 100), extent(100, 500, 50), extent(400, 2000, 10)]);
        assert_eq!(objects.find(549), Some(Found { object: 7, position: 149, end: 550 }));
        assert_eq!((objects.find(550), objects.find(499), objects.end(7)), (None, None, Some(410)));
        assert_eq!(parts(&objects, 7, 90..405), [(90, 1090, 10), (100, 500, 50), (400, 2000, 5)]);
        assert_eq!(parts(&objects, 7, 150..400), []);
        assert_eq!(parts(&objects, 8, 0..400), []);
        objects.forget(7);
        assert_eq!((objects.find(549), objects.end(7), objects.count), (None, None, 0));
    }

    #[test]
    fn who_is_said_last_to_have_a_byte_has_it() {
        let mut objects = Objects::default();
        objects.define(1, &[extent(0, 0, 100)]);
        objects.define(2, &[extent(5, 40, 20)]);
        let object = |objects: &Objects, at| objects.find(at).map(|found| (found.object, found.position));
        for (at, object_, position) in [(39, 1, 39), (40, 2, 5), (59, 2, 24), (60, 1, 60), (99, 1, 99)] {
            assert_eq!(object(&objects, at), Some((object_, position)), "at {at}");
        }
        // It takes its own and nothing of what others have there now.
        objects.forget(1);
        assert_eq!(
            (object(&objects, 39), object(&objects, 40), object(&objects, 60)),
            (None, Some((2, 5)), None)
        );
        objects.define(3, &[extent(0, 30, 100)]);
        assert_eq!((object(&objects, 40), object(&objects, 129)), (Some((3, 10)), Some((3, 99))));
        objects.forget(2);
        assert_eq!(object(&objects, 40), Some((3, 10)));
    }

    #[test]
    fn the_first_objects_are_forgotten_where_there_are_too_many_extents() {
        let mut objects = Objects::default();
        for object in 0..20 {
            let extents: Vec<_> =
                (0..20_000).map(|number| extent(number, (object * 20_000 + number) * 2, 1)).collect();
            objects.define(object, &extents);
            assert!(objects.count <= EXTENTS_MAX && objects.owned.len() <= EXTENTS_MAX);
        }
        assert_eq!(objects.end(11), None);
        assert_eq!(objects.end(12), Some(OBJECT_EXTENTS_MAX as u64), "its first ones");
    }
}
