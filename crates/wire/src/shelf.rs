//! A shelf: what the server has answered, in memory that clients of one class read (docs/spec/shelf.md).
//!
//! Here is the side that writes. Every entry begins with its `seq`, which is odd while the entry is written and another
//! one afterwards; what a reader copied between two looks at the same even `seq` is whole.

use crate::board::Board;
use crate::leaf::{self, Leaves, Pool, ShelfPages};
use crate::memory;
use core::hash::Hasher;
use core::ops::Range;
use nvmed_dice::Dice;
use nvmed_fs::versions::{TRAIL_MAX, Version};
use nvmed_fs::{Fold, Follow, Stat};
use nvmed_sys::atomic::{Ordering, fence};
use nvmed_sys::{HUGE_BYTES, Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of the longest listing, or target of a link, that lies on a shelf; and of a file that one read brings to it.
pub const SHELF_BYTES_AT_ONCE: usize = FILE_PAGES * PAGE;

pub(crate) const PAGE: usize = 4096;
/// Numbers of leaves that a card has room for, and a leaf.
pub(crate) const FILE_PAGES: usize = 32;
pub(crate) const LEAF_NUMBERS: usize = PAGE / 4;
/// Places of a set: with as many again free, one entry in ten thousand finds none.
pub(crate) const WAYS: usize = 8;

/// The head: a word that names this layout, whether reading renews access times, the file system's device number,
/// whether the class's real ids are its effective ones.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"nvmdshf6");
pub(crate) const RENEWS_ATIME: usize = 8;
pub(crate) const DEVICE: usize = 16;
pub(crate) const SAME_IDS: usize = 24;

/// Names that come to a shelf for each huge page that it, and then the board, is given.
const NAMES_A_HUGE_PAGE: usize = 256;
pub(crate) const NAME_BYTES: usize = 256;
const NAME_SETS: usize = 4096;
pub(crate) const CARD_BYTES: usize = 256;
const CARD_SETS: usize = 2048;
/// Cards that there is room for.
const CARDS_MAX: usize = CARD_SETS * WAYS;
/// First what tells the entries of a set apart, a word each in one line: who looks one up touches no other.
const NAME_KEYS: usize = 4096;
const CARD_KEYS: usize = NAME_KEYS + NAME_SETS * WAYS * 8;
pub(crate) const NAMES: usize = CARD_KEYS + CARDS_MAX * 8;
pub(crate) const CARDS: usize = NAMES + NAME_SETS * WAYS * NAME_BYTES;
pub(crate) const LEAVES: usize = (CARDS + CARDS_MAX * CARD_BYTES).next_multiple_of(HUGE_BYTES);

/// Of a name: where its words are.
pub(crate) mod name {
    pub(crate) const AT: usize = 8;
    /// Bytes of the path, versions (from bit 16 on), whether a link is followed (bit 32).
    pub(crate) const FORM: usize = 16;
    /// 0: there is none.
    pub(crate) const INO: usize = 24;
    pub(crate) const PATH: usize = 32;
    /// Bytes of the longest path that has a place, if it depends on one version.
    pub(crate) const PATH_BYTES_MAX: usize = super::NAME_BYTES - PATH - 8;

    /// Where the versions begin: behind a path of so many bytes.
    pub(crate) fn versions(path_bytes: usize) -> usize {
        PATH + path_bytes.next_multiple_of(8)
    }
}

/// Of a card: where its words are.
pub(crate) mod card {
    pub(crate) const VERSION: usize = 8;
    /// The status: 10 words, see `put_status`.
    pub(crate) const STATUS: usize = 16;
    /// What the class may do (bits 0 to 2, as access(2) has them), whether it may be opened by a post (bit 3), whether
    /// it has no extended attributes (bit 4).
    pub(crate) const RIGHTS: usize = STATUS + 8 * 10;
    /// The file's count when its bytes were copied, of what is no file the inode's version; 0: none are here.
    pub(crate) const BYTES_VERSION: usize = RIGHTS + 8;
    /// How many there are then, not all of which need be here.
    pub(crate) const BYTES: usize = BYTES_VERSION + 8;
    /// Numbers of leaves, u32: with the bytes, or with the numbers of those (`leaf::is_indexed`).
    pub(crate) const LEAVES: usize = BYTES + 8;
    const _: () = assert!(LEAVES + 4 * super::FILE_PAGES <= super::CARD_BYTES);
    /// In `RIGHTS`.
    pub(crate) const OPENS: u64 = 1 << 3;
    pub(crate) const PLAIN: u64 = 1 << 4;
}

/// By which the places of a path are found.
pub(crate) fn hash_of(at: u64, path: &[u8], follow: Follow) -> u64 {
    let mut fold = Fold::default();
    fold.write(path);
    fold.write_u64(at << 1 | u64::from(follow == Follow::Yes));
    fold.finish()
}

pub(crate) fn form_of(path: &[u8], versions: usize, follow: Follow) -> u64 {
    path.len() as u64 | (versions as u64) << 16 | u64::from(follow == Follow::Yes) << 32
}

/// Where the hash of a name is.
pub(crate) fn name_key(at: usize) -> usize {
    NAME_KEYS + (at - NAMES) / NAME_BYTES * 8
}

/// Where the inode number of a card is.
pub(crate) fn card_key(at: usize) -> usize {
    CARD_KEYS + card_number(at) * 8
}

/// The places of the set of a name.
pub(crate) fn name_set(hash: u64) -> impl Iterator<Item = usize> + Clone {
    set(hash, NAME_SETS).map(|place| NAMES + place * NAME_BYTES)
}

/// As [`name_set`], of a card.
pub(crate) fn card_set(ino: u64) -> impl Iterator<Item = usize> + Clone {
    set(nvmed_dice::mix(ino), CARD_SETS).map(card_at)
}

fn set(hash: u64, sets: usize) -> impl Iterator<Item = usize> + Clone {
    let set = hash as usize % sets * WAYS;
    set..set + WAYS
}

/// Where the card with a number is.
fn card_at(number: usize) -> usize {
    CARDS + number * CARD_BYTES
}

fn card_number(at: usize) -> usize {
    (at - CARDS) / CARD_BYTES
}

/// Words of a path, the last one filled up with zeroes.
pub(crate) fn words(path: &[u8]) -> impl Iterator<Item = u64> {
    path.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// What a card says of an inode.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Its status.
    pub stat: &'a Stat,
    /// Its version when all of this was so.
    pub version: Version,
    /// What the class may do, as access(2) has it: 4 reads, 2 writes, 1 executes.
    pub rights: u32,
    /// Whether it may be opened by a post.
    pub opens: bool,
    /// Whether it has no extended attributes.
    pub plain: bool,
}

/// What is read of an inode, and put on its card: a file's bytes, a directory's entries ([`crate::entries`]), a link's
/// target.
#[derive(Clone, Copy, Debug)]
pub struct CardBytes<'a> {
    /// From the start of a page on, to the end of one or of all bytes.
    pub bytes: &'a [u8],
    /// The number of the first page.
    pub first: usize,
    /// How many bytes there are in all, at most [`Shelf::file_bytes_max`].
    pub size: u64,
    /// The file's count before they were read; of what is no file, the inode's version.
    pub version: Version,
}

impl<'a> CardBytes<'a> {
    /// All that there is, at most [`SHELF_BYTES_AT_ONCE`].
    #[must_use]
    pub fn whole(bytes: &'a [u8], version: Version) -> Self {
        Self { bytes, first: 0, size: bytes.len() as u64, version }
    }
}

/// A part of a shelf or of the board that is looked up so much that it is worth a huge page.
#[derive(Debug)]
pub struct HugePage {
    pub(crate) memory: Arc<Mapping>,
    pub(crate) begins: usize,
}

impl HugePage {
    /// Puts it there, if the kernel has one. It takes some hundred microseconds, and nobody waits for it who does not
    /// touch that part.
    pub fn gather(self) {
        self.memory.gather(self.begins);
    }
}

/// The memory of a shelf that has ended.
#[derive(Debug)]
pub struct LeftMemory(Arc<Mapping>);

impl LeftMemory {
    /// The host has it back, and who maps it sees zeroes. That takes the longer the more there was.
    pub fn release(self) {
        // What the host does not take now it has when nobody maps it any more.
        let _ = self.0.release(0, self.0.len());
    }
}

/// What the server knows of a card.
#[derive(Debug)]
struct Place {
    at: usize,
    leaves: Leaves,
}

/// The server's side; one thread writes at a time.
#[derive(Debug)]
pub struct Shelf {
    memory: Arc<Mapping>,
    readers: QuietFd,
    /// What is in each place for cards; 0 is nothing.
    cards: Vec<u64>,
    places: HashMap<u64, Place>,
    pool: Pool,
    dice: Dice,
    /// Says which entries are worth their places.
    board: Arc<Board>,
    /// Names that were put here so far.
    names_come: usize,
    /// Whether the kernel had a huge page when leaves were given the last one.
    has_huge_leaves: bool,
    has_ended: bool,
}

impl Shelf {
    /// An empty shelf with room for so many pages, of the file system with the number `device` ([`Stat::dev`]).
    /// `renews_atime`: reads renew access times; `same_ids`: the class's real ids are its effective ones.
    ///
    /// # Errors
    /// The host has no memory or descriptor left, or no `/proc`.
    pub fn new(
        board: &Arc<Board>,
        pages: usize,
        device: u64,
        (renews_atime, same_ids): (bool, bool),
    ) -> Result<Self, Errno> {
        let pages_max = u32::try_from(pages).unwrap_or(u32::MAX);
        let memory = Mapping::shareable(LEAVES + pages_max as usize * PAGE, Pages::Huge)?;
        let readers = memory::read_only(&memory)?;
        memory.u64(RENEWS_ATIME).store(u64::from(renews_atime), Ordering::Relaxed);
        memory.u64(SAME_IDS).store(u64::from(same_ids), Ordering::Relaxed);
        memory.u64(DEVICE).store(device, Ordering::Relaxed);
        memory.u64(0).store(MAGIC, Ordering::Release);
        let mut seed = [0; 8];
        crate::address::random(&mut seed)?;
        Ok(Self {
            memory: Arc::new(memory),
            readers,
            cards: vec![0; CARDS_MAX],
            places: HashMap::new(),
            pool: Pool::new(pages_max),
            dice: Dice::new(u64::from_ne_bytes(seed)),
            board: Arc::clone(board),
            names_come: 0,
            has_huge_leaves: true,
            has_ended: false,
        })
    }

    /// What clients are given.
    #[must_use]
    pub fn readers(&self) -> BorrowedFd<'_> {
        self.readers.as_fd()
    }

    fn set(&self, at: usize, word: u64) {
        self.memory.u64(at).store(word, Ordering::Relaxed);
    }

    /// Writes an entry: `write` stores its words.
    fn entry(&self, at: usize, write: impl FnOnce()) {
        let seq = self.memory.u64(at).load(Ordering::Relaxed);
        assert!(seq.is_multiple_of(2), "an entry at {at} is written twice at once");
        self.set(at, seq + 1);
        // Barrier S1, pairs with S2: who copies a new word sees the odd seq, or what comes after it.
        fence(Ordering::Release);
        write();
        self.memory.u64(at).store(seq + 2, Ordering::Release);
    }

    /// A name of the class's: what is at `path` from the directory `at`, on which versions that depends. None is an
    /// inode that is not there. The answer is to be made present once the shelf is nobody's any more.
    #[must_use]
    pub fn put_name(
        &mut self,
        (at, path): (u64, &[u8]),
        follow: Follow,
        ino: Option<u64>,
        versions: &[u64],
    ) -> Option<HugePage> {
        let end = name::versions(path.len()) + 8 * versions.len();
        let fits = !path.is_empty() && end <= NAME_BYTES && versions.len() <= TRAIL_MAX;
        if !fits || self.has_ended {
            return None;
        }
        let hash = hash_of(at, path, follow);
        let places = name_set(hash);
        let chance = self.dice.index(WAYS);
        let same = || places.clone().find(|entry| self.is_name(*entry, hash, (at, path), follow));
        let free = || places.clone().find(|entry| self.word(name_key(*entry)) == 0 && self.word(*entry) == 0);
        let stale = || places.clone().find(|entry| self.is_stale_name(*entry));
        let place = same().or_else(free).or_else(stale).or_else(|| places.clone().nth(chance));
        let place = place?;
        self.entry(place, || {
            self.set(name_key(place), hash);
            self.set(place + name::AT, at);
            self.set(place + name::FORM, form_of(path, versions.len(), follow));
            self.set(place + name::INO, ino.unwrap_or(0));
            for (number, version) in versions.iter().enumerate() {
                self.set(place + name::versions(path.len()) + 8 * number, *version);
            }
            for (number, word) in words(path).enumerate() {
                self.set(place + name::PATH + 8 * number, word);
            }
        });
        self.count_name()
    }

    /// One more name has come. What is looked up is spread over all that a shelf and the board have: the more there is,
    /// the more of both becomes huge pages, for a reader has to touch all of it.
    fn count_name(&mut self) -> Option<HugePage> {
        self.names_come += 1;
        if !self.names_come.is_multiple_of(NAMES_A_HUGE_PAGE) {
            return None;
        }
        let begins = (self.names_come / NAMES_A_HUGE_PAGE - 1) * HUGE_BYTES;
        if begins < LEAVES {
            return Some(HugePage { memory: Arc::clone(&self.memory), begins });
        }
        self.board.next_huge_page()
    }

    fn word(&self, at: usize) -> u64 {
        self.memory.u64(at).load(Ordering::Relaxed)
    }

    /// Whether an entry is that of a name, by all that tells names apart but the path itself.
    fn is_name(&self, entry: usize, hash: u64, (at, path): (u64, &[u8]), follow: Follow) -> bool {
        self.word(name_key(entry)) == hash
            && self.word(entry + name::AT) == at
            && self.word(entry + name::FORM) & 0x1_0000_ffff == form_of(path, 0, follow)
    }

    /// Whether there is an answer for a name of which nothing has changed since.
    #[must_use]
    pub fn has_name(&self, (at, path): (u64, &[u8]), follow: Follow) -> bool {
        let hash = hash_of(at, path, follow);
        let is_same = |entry: &usize| self.is_name(*entry, hash, (at, path), follow);
        !self.has_ended && name_set(hash).find(is_same).is_some_and(|entry| !self.is_stale_name(entry))
    }

    /// Whether a version that an entry depends on is another one by now.
    fn is_stale(&self, at: usize) -> bool {
        let version = Version::new(self.memory.u64(at).load(Ordering::Relaxed));
        version.is_none_or(|version| !self.board.has_version(version))
    }

    fn is_stale_name(&self, entry: usize) -> bool {
        let form = self.memory.u64(entry + name::FORM).load(Ordering::Relaxed);
        let (bytes, count) = ((form & 0xffff) as usize, (form >> 16 & 0xffff) as usize);
        (0..count).any(|number| self.is_stale(entry + name::versions(bytes) + 8 * number))
    }

    /// The inode that would give way to a card of `ino`, which has none yet and finds no free place: one of which a
    /// client would find nothing any more, or one that dice choose.
    pub fn gives_way(&mut self, ino: u64) -> Option<u64> {
        if self.has_ended || self.has_room_for(ino) {
            return None;
        }
        let chance = self.dice.index(WAYS);
        let stale = card_set(ino).find(|at| self.is_stale(at + card::VERSION));
        let place = stale.or_else(|| card_set(ino).nth(chance))?;
        Some(self.cards[card_number(place)])
    }

    /// Whether a card of `ino` would have a place.
    #[must_use]
    pub fn has_room_for(&self, ino: u64) -> bool {
        !self.has_ended && (self.places.contains_key(&ino) || self.free_place(ino).is_some())
    }

    fn free_place(&self, ino: u64) -> Option<usize> {
        card_set(ino).find(|at| self.cards[card_number(*at)] == 0)
    }

    /// The card of an inode, whatever was on it before; its bytes stay if `bytes` is none. False when there is no free
    /// place: see [`Shelf::gives_way`].
    pub fn put_card(
        &mut self,
        facts: &Facts<'_>,
        bytes: Option<CardBytes<'_>>,
        more: &mut impl ShelfPages,
    ) -> bool {
        let ino = facts.stat.ino;
        if self.has_ended {
            return false;
        }
        let Some(at) = self.places.get(&ino).map(|place| place.at).or_else(|| self.take_place(ino)) else {
            return false;
        };
        let pages = bytes.map(|bytes| self.fill(ino, &bytes, more));
        let flag = |is_so: bool, flag: u64| if is_so { flag } else { 0 };
        let rights =
            u64::from(facts.rights & 7) | flag(facts.opens, card::OPENS) | flag(facts.plain, card::PLAIN);
        self.entry(at, || {
            self.set(card_key(at), ino);
            self.set(at + card::VERSION, facts.version.get());
            self.put_status(at + card::STATUS, facts.stat);
            self.set(at + card::RIGHTS, rights);
            if let Some(pages) = pages {
                self.places[&ino].leaves.tell(&self.memory, at, pages);
            }
        });
        true
    }

    fn put_status(&self, at: usize, stat: &Stat) {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            two(stat.mode, stat.nlink),
            two(stat.uid, stat.gid),
            stat.rdev,
            stat.size,
            stat.blocks_512,
            u64::from(stat.block_bytes),
            stat.atime_ns as u64,
            stat.mtime_ns as u64,
            stat.ctime_ns as u64,
            stat.btime_ns as u64,
        ];
        for (number, word) in words.into_iter().enumerate() {
            self.set(at + 8 * number, word);
        }
    }

    fn take_place(&mut self, ino: u64) -> Option<usize> {
        let at = self.free_place(ino)?;
        self.cards[card_number(at)] = ino;
        // What was here before is blank, and its bytes are gone.
        self.places.insert(ino, Place { at, leaves: Leaves::default() });
        Some(at)
    }

    /// Bytes of the largest file that has any here.
    #[must_use]
    pub fn file_bytes_max(&self) -> u64 {
        leaf::file_bytes_max(self.pool.max())
    }

    /// Whether a page of a file is on its card, as of this count and so many bytes.
    #[must_use]
    pub fn has_page(&self, ino: u64, (version, size): (Version, u64), page: usize) -> bool {
        self.places.get(&ino).is_some_and(|place| place.leaves.is_of(version, size) && place.leaves.has(page))
    }

    /// Puts bytes in leaves of the card of `ino`, beside those of the same count; which pages the card is to tell.
    fn fill(&mut self, ino: u64, bytes: &CardBytes<'_>, more: &mut impl ShelfPages) -> Range<usize> {
        let end = bytes.first as u64 * PAGE as u64 + bytes.bytes.len() as u64;
        let is_whole = bytes.bytes.len().is_multiple_of(PAGE) && end <= bytes.size || end == bytes.size;
        assert!(is_whole, "bytes to {end} of {} do not end with a page", bytes.size);
        let is_of = |place: &&mut Place| place.leaves.is_of(bytes.version, bytes.size);
        if self.places.get_mut(&ino).filter(is_of).is_none() {
            self.drop_bytes(ino);
        }
        let Some(place) = self.places.get_mut(&ino) else { return 0..0 };
        // Not on the card meanwhile, so that it does not give way to itself.
        let mut leaves = match core::mem::take(&mut place.leaves) {
            leaves if leaves.is_of(bytes.version, bytes.size) => leaves,
            _ => Leaves::of(bytes.version, bytes.size),
        };
        let memory = Arc::clone(&self.memory);
        let is_filled = leaves.fill(&memory, (bytes.bytes, bytes.first), || self.free_leaf(more));
        self.places.entry(ino).and_modify(|place| place.leaves = leaves);
        if !is_filled {
            self.drop_bytes(ino);
            return 0..0;
        }
        bytes.first..bytes.first + bytes.bytes.len().div_ceil(PAGE)
    }

    fn free_leaf(&mut self, more: &mut impl ShelfPages) -> Option<u32> {
        if let Some(leaf) = self.take_leaf(more) {
            return Some(leaf);
        }
        if self.pool.taken() == 0 {
            return None;
        }
        // The bytes of a card that chance names give way: so a scan larger than the shelf finds some again.
        let start = self.dice.index(CARDS_MAX);
        let victim = (0..CARDS_MAX).find_map(|step| {
            let there = self.cards[(start + step) % CARDS_MAX];
            self.places.get(&there).is_some_and(|place| place.leaves.has_any()).then_some(there)
        })?;
        self.drop_bytes(victim);
        self.take_leaf(more)
    }

    fn take_leaf(&mut self, more: &mut impl ShelfPages) -> Option<u32> {
        let leaf = self.pool.take(more);
        if let Some(leaves) = self.pool.not_present(self.has_huge_leaves) {
            let (start, bytes) = (leaf::start_of(leaves.start), leaves.len() * PAGE);
            if bytes == HUGE_BYTES {
                self.has_huge_leaves = self.memory.gather(start);
            }
            if bytes < HUGE_BYTES || !self.has_huge_leaves {
                self.memory.populate(start, bytes);
            }
        }
        leaf
    }

    fn drop_bytes(&mut self, ino: u64) {
        let Some(place) = self.places.get_mut(&ino) else { return };
        let (at, leaves) = (place.at, core::mem::take(&mut place.leaves));
        self.entry(at, || self.set(at + card::BYTES_VERSION, 0));
        // Barrier S3, pairs with S2: who copies what is written there next sees the card's new seq.
        fence(Ordering::Release);
        self.pool.give(leaves.all());
    }

    /// Takes the card of an inode back: nobody reads or opens by it who looks again after this. Barrier O2.
    pub fn take_back(&mut self, ino: u64) {
        let Some(place) = self.places.remove(&ino) else { return };
        self.entry(place.at, || {
            self.set(card_key(place.at), 0);
            self.set(place.at + card::BYTES_VERSION, 0);
        });
        self.cards[card_number(place.at)] = 0;
        fence(Ordering::Release);
        self.pool.give(place.leaves.all());
        crate::opens::barrier();
    }

    /// Nobody is to read it any more: nothing is put here from now on. What is left is to be released, whoever has it
    /// mapped still.
    #[must_use]
    pub fn end(&mut self) -> LeftMemory {
        self.has_ended = true;
        self.places.clear();
        LeftMemory(Arc::clone(&self.memory))
    }

    /// Cards, and bytes of files on them.
    #[must_use]
    pub fn filled(&self) -> (usize, usize) {
        (self.places.len(), self.pool.taken() * PAGE)
    }
}
