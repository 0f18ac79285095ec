//! Versions of inodes: counts of changes in memory that other processes may read.
//!
//! An answer about an inode that was true while its version was settled is true as long as the version is the same
//! (docs/spec/shelf.md, "Versions"). A count has changes under way in its lower bits and those that are over above;
//! inodes share counts, so one may seem to have changed that did not.

use crate::hash::Keyed;
use crate::inode::Inode;
use core::fmt;
use core::num::NonZeroU64;
use nvmed_sys::Mapping;
use nvmed_sys::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;

/// In a count: one change under way. They are fewer than threads can be.
const UNDER_WAY: u64 = 1;
/// In a count: one change that is over. A [`Version`] has the count's place in the bits below.
const OVER: u64 = 1 << 20;

/// Counts of changes, in memory that whoever reads it has too.
pub struct Counts {
    memory: Arc<Mapping>,
    start: usize,
    bits: u32,
    keyed: Keyed,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key.
        f.debug_struct("Counts").field("start", &self.start).field("bits", &self.bits).finish_non_exhaustive()
    }
}

/// What a count was when no change was under way, with the count's place; never 0.
pub type Version = NonZeroU64;

impl Counts {
    /// 2 to the power of `bits` counts of 8 bytes in `memory` from `start` on, all 0, of which there are 4 or more;
    /// numbers are spread over them by `key`, those of which the highest bit is set over the upper half. Who reads the
    /// counts and does not know the key cannot tell whose they are, but of what he was told a version of.
    ///
    /// # Panics
    /// A mistake of ours: they are more than a version can name, or do not lie in the memory.
    #[must_use]
    pub fn new(memory: Arc<Mapping>, start: usize, bits: u32, key: [u64; 2]) -> Self {
        assert!(
            bits > 1 && 1 << bits <= OVER,
            "a version has no room for one of 2^{bits} places, in two halves"
        );
        assert!(
            start + (8 << bits) <= memory.len(),
            "2^{bits} counts from {start} on are outside of their memory"
        );
        Self { memory, start, bits, keyed: Keyed::new(key) }
    }

    fn place(&self, number: u64) -> u64 {
        let upper = number >> (u64::BITS - 1) << (self.bits - 1);
        upper | self.lower(self.keyed.hash(number, b""))
    }

    /// The place of a name in the directory with a number, whether it stands for something or not.
    fn place_of_name(&self, directory: u64, name: &[u8]) -> u64 {
        self.lower(self.keyed.hash(directory, name))
    }

    /// A place in the lower half.
    fn lower(&self, hash: u64) -> u64 {
        hash >> (u64::BITS - self.bits + 1)
    }

    fn at(&self, place: u64) -> &AtomicU64 {
        self.memory.u64(self.start + place as usize * 8)
    }

    /// What has this number changes from now on, until the answer is dropped: meanwhile it has no version, and then
    /// another.
    #[inline]
    pub fn change(&self, number: u64) -> Change<'_> {
        self.change_at(self.place(number))
    }

    /// As [`Counts::change`], of what a name stands for in the directory with this number.
    #[inline]
    pub(crate) fn change_of_name(&self, directory: u64, name: &[u8]) -> Change<'_> {
        self.change_at(self.place_of_name(directory, name))
    }

    fn change_at(&self, place: u64) -> Change<'_> {
        Change::begin(self.at(place), place)
    }

    /// What has this number changes from now on, until [`Counts::end`].
    pub fn begin(&self, number: u64) {
        core::mem::forget(self.change(number));
    }

    /// A change is over that [`Counts::begin`] began.
    pub fn end(&self, number: u64) {
        let place = self.place(number);
        drop(Change { count: self.at(place), place });
    }

    /// Makes a change of what has this number. Out of the way of a private mount's writes, which nobody counts.
    #[cold]
    #[inline(never)]
    pub(crate) fn counted<T>(&self, number: u64, change: impl FnOnce() -> T) -> T {
        let _under_way = self.change(number);
        change()
    }

    /// The version of what has this number, unless a change is under way.
    #[inline]
    #[must_use]
    pub fn settled(&self, number: u64) -> Option<Version> {
        self.settled_at(self.place(number))
    }

    /// As [`Counts::settled`], of what a name stands for in the directory with this number.
    #[inline]
    pub(crate) fn settled_name(&self, directory: u64, name: &[u8]) -> Option<Version> {
        self.settled_at(self.place_of_name(directory, name))
    }

    fn settled_at(&self, place: u64) -> Option<Version> {
        // Barrier V2: what was looked at before this is not newer than what the count says.
        fence(Ordering::Acquire);
        version(self.at(place).load(Ordering::SeqCst), place)
    }
}

fn version(count: u64, place: u64) -> Option<Version> {
    // One more than what is over, so that a count at which nothing happened yet is a version too.
    if count.is_multiple_of(OVER) { NonZeroU64::new(count.wrapping_add(OVER) | place) } else { None }
}

/// Whether counts that lie in `memory` from `start` on, 2 to the power of `bits`, say that nothing has changed since
/// there was this version.
#[inline]
#[must_use]
pub fn is_unchanged(memory: &Mapping, start: usize, bits: u32, since: Version) -> bool {
    let place = since.get() % OVER % (1 << bits);
    let count = memory.u64(start + place as usize * 8).load(Ordering::SeqCst);
    count.wrapping_add(OVER) == since.get() & !(OVER - 1)
}

/// The same, with one change under way since: nothing but that one has changed.
#[inline]
#[must_use]
pub fn is_unchanged_but_for_one(memory: &Mapping, start: usize, bits: u32, since: Version) -> bool {
    let place = since.get() % OVER % (1 << bits);
    let count = memory.u64(start + place as usize * 8).load(Ordering::SeqCst);
    count.wrapping_add(OVER - UNDER_WAY) == since.get() & !(OVER - 1)
}

/// A change under way.
#[derive(Debug)]
pub struct Change<'a> {
    count: &'a AtomicU64,
    place: u64,
}

impl<'a> Change<'a> {
    #[inline]
    fn begin(count: &'a AtomicU64, place: u64) -> Self {
        count.fetch_add(UNDER_WAY, Ordering::SeqCst);
        // Barrier V1, pairs with V2: who sees anything of the change sees that it is under way, or over.
        fence(Ordering::Release);
        Self { count, place }
    }

    /// The change is over: the version now, unless others are under way.
    #[must_use]
    pub fn end(self) -> Option<Version> {
        let change = core::mem::ManuallyDrop::new(self);
        version(change.over(), change.place)
    }

    #[inline]
    fn over(&self) -> u64 {
        let more = OVER - UNDER_WAY;
        let before = self.count.fetch_add(more, Ordering::SeqCst);
        // A second panic while one unwinds would end the process.
        let is_counted = !before.is_multiple_of(OVER) || std::thread::panicking();
        assert!(is_counted, "a change is over that was not under way");
        before.wrapping_add(more)
    }
}

impl Drop for Change<'_> {
    #[inline]
    fn drop(&mut self) {
        self.over();
    }
}

/// Versions that a [`Trail`] has room for: one for each directory, and one of the last name.
pub const TRAIL_MAX: usize = 17;

/// On what the answer to a look-up depends: versions of the directories that were looked into, and of the names there
/// that led to no directory.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    versions: [u64; TRAIL_MAX],
    count: usize,
    lost: bool,
    listed: Option<Version>,
}

impl Trail {
    /// The versions; none when they were too many, when something there was being changed, or when the file system
    /// shows no versions. What a symbolic link holds has none: it never changes.
    #[must_use]
    pub fn versions(&self) -> Option<&[u64]> {
        if self.lost || self.count == 0 { None } else { Some(&self.versions[..self.count]) }
    }

    /// The version, with all its names, of the directory in which the last one was looked for.
    #[must_use]
    pub fn listed(&self) -> Option<Version> {
        self.listed
    }

    /// The answer depends on what cannot be told here.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    fn note(&mut self, version: Option<Version>) {
        match version {
            // The last directory is looked into twice.
            Some(version) if self.versions[..self.count].last() == Some(&version.get()) => {}
            Some(version) if self.count < TRAIL_MAX => {
                self.versions[self.count] = version.get();
                self.count += 1;
            }
            _ => self.lost = true,
        }
    }
}

/// Who hears where a resolution goes.
pub(crate) trait Walked {
    /// A directory is looked into.
    fn enters(&mut self, directory: &Inode);
    /// A name there stands for what is no directory that is entered next: that one would be where it is named.
    fn asks_for(&mut self, directory: &Inode, name: &[u8]);
}

/// Nobody.
impl Walked for () {
    #[inline]
    fn enters(&mut self, _: &Inode) {}
    #[inline]
    fn asks_for(&mut self, _: &Inode, _: &[u8]) {}
}

impl Walked for Trail {
    fn enters(&mut self, directory: &Inode) {
        self.note(directory.way_version());
    }

    fn asks_for(&mut self, directory: &Inode, name: &[u8]) {
        self.listed = directory.version();
        self.note(directory.name_version(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;

    fn counts(bits: u32) -> (Arc<Mapping>, Counts) {
        let memory = Arc::new(Mapping::anonymous(8192, Pages::Base).unwrap());
        (Arc::clone(&memory), Counts::new(memory, 4096, bits, [12_345, 67_890]))
    }

    #[test]
    fn a_version_stands_until_something_changes() {
        let (memory, counts) = counts(9);
        let stands = |version| is_unchanged(&memory, 4096, 9, version);
        let first = counts.settled(7).unwrap();
        assert!(stands(first), "nothing has changed yet");
        let change = counts.change(7);
        assert!(!stands(first) && counts.settled(7).is_none(), "one is under way");
        let other = counts.change(7);
        assert_eq!(other.end(), None, "another one is");
        let second = change.end().unwrap();
        assert!(!stands(first) && stands(second) && counts.settled(7) == Some(second));
        // All places are inside, whatever the numbers.
        (0..1 << 12).for_each(|number| drop(counts.change(number)));
        assert!(!stands(second));
    }

    #[test]
    #[should_panic(expected = "a change is over that was not under way")]
    fn a_change_that_was_not_counted_is_our_mistake() {
        drop(Change { count: &AtomicU64::new(OVER), place: 0 });
    }

    #[test]
    #[should_panic(expected = "a change is over that was not under way")]
    fn a_change_that_did_not_begin_is_our_mistake() {
        let _ = Change { count: &AtomicU64::new(OVER), place: 0 }.end();
    }

    #[test]
    #[should_panic(expected = "2^10 counts from 4096 on are outside of their memory")]
    fn counts_outside_of_their_memory_are_our_mistake() {
        counts(10);
    }
}
