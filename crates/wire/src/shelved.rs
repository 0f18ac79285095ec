//! A shelf as a client sees it: what was answered before, and is still so. Rules: docs/spec/shelf.md.

use crate::board::BoardView;
use crate::leaf;
use crate::memory;
use crate::shelf::{self, LEAF_NUMBERS, LEAVES, MAGIC, NAME_BYTES, PAGE, card, name};
use nvmed_fs::versions::{TRAIL_MAX, Version};
use nvmed_fs::{Follow, Stat};
use nvmed_mutant::Point;
use nvmed_sys::atomic::{Ordering, fence};
use nvmed_sys::{Mapping, Pages};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// An entry as it was looked at: where, and with which `seq`.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: usize,
    seq: u64,
}

/// The card of an inode.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    look: Look,
    /// The inode's version.
    pub version: Version,
    /// The status.
    pub stat: Stat,
    /// What the class may do, as access(2) has it: 4 reads, 2 writes, 1 executes.
    pub rights: u32,
    /// Whether it may be opened by a post.
    pub opens: bool,
    /// Whether it has no extended attributes.
    pub plain: bool,
}

/// What is at a path.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    versions: [u64; TRAIL_MAX],
    count: usize,
    /// None: there is nothing.
    pub card: Option<Card>,
}

/// An entry for a name.
#[derive(Clone, Copy, Debug)]
struct Name {
    /// 0: there is nothing.
    ino: u64,
    versions: [u64; TRAIL_MAX],
    count: usize,
}

/// The shelf of a session's class.
#[derive(Debug)]
pub struct ShelfView {
    memory: Mapping,
    leaves: usize,
    device: u64,
    renews_atime: bool,
    same_ids: bool,
}

impl ShelfView {
    /// The shelf behind a descriptor that came from the server.
    ///
    /// # Errors
    /// `EINVAL` for what is no shelf; what `mmap` answers.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        memory::check_bytes(fd, LEAVES)?;
        let bytes = usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::INVAL)?;
        let memory = Mapping::read_only(fd, 0, bytes, Pages::Huge)?;
        if memory.u64(0).load(Ordering::Acquire) != MAGIC {
            return Err(Errno::INVAL);
        }
        let renews_atime = memory.u64(shelf::RENEWS_ATIME).load(Ordering::Relaxed) != 0;
        let device = memory.u64(shelf::DEVICE).load(Ordering::Relaxed);
        let same_ids = memory.u64(shelf::SAME_IDS).load(Ordering::Relaxed) != 0;
        Ok(Self { memory, leaves: (bytes - LEAVES) / PAGE, device, renews_atime, same_ids })
    }

    /// Whether what the class may do by its effective ids, it may by its real ones too.
    #[must_use]
    pub fn same_ids(&self) -> bool {
        self.same_ids
    }

    /// Whether reads and opens renew access times.
    #[must_use]
    pub fn renews_atime(&self) -> bool {
        self.renews_atime
    }

    /// Nothing is on it any more, as far as this process sees.
    ///
    /// # Errors
    /// What `mmap` answers: then it is as it was.
    pub fn blank(&self) -> Result<(), Errno> {
        self.memory.blank()
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.memory.u64(at).load(Ordering::Relaxed)
    }

    /// Looks at an entry, unless it is being written, or was never.
    #[inline]
    fn look(&self, at: usize) -> Option<Look> {
        let seq = self.memory.u64(at).load(Ordering::Acquire);
        (seq != 0 && seq.is_multiple_of(2)).then_some(Look { at, seq })
    }

    /// Whether what was copied since is whole. Barrier S2, pairs with S1 and S3.
    #[inline]
    fn is_same(&self, look: Look) -> bool {
        fence(Ordering::Acquire);
        self.word(look.at) == look.seq
    }

    /// What is at `path` from the directory with the number `at`, unless that takes a call.
    #[must_use]
    pub fn find(&self, at: u64, path: &[u8], follow: Follow, board: &BoardView) -> Option<Found> {
        let whole = self.name(at, path, follow).and_then(|name| self.found(name, board));
        whole.or_else(|| self.found(self.name_in_two(at, path, follow)?, board))
    }

    fn found(&self, name: Name, board: &BoardView) -> Option<Found> {
        let card = if name.ino == 0 { None } else { Some(self.copy_card(name.ino)?) };
        let found = Found { versions: name.versions, count: name.count, card };
        self.stands(&found, board).then_some(found)
    }

    /// The last name of a path in the directory to which the rest leads.
    fn name_in_two(&self, at: u64, path: &[u8], follow: Follow) -> Option<Name> {
        let cut = path.iter().rposition(|byte| *byte == b'/')?;
        let (path, last) = (&path[..cut], &path[cut + 1..]);
        if matches!(last, b"." | b"..") {
            return None;
        }
        let directory = self.name(at, path, Follow::Yes).filter(|directory| directory.ino != 0)?;
        let mut name = self.name(directory.ino, last, follow)?;
        let count = name.count + directory.count;
        name.versions.get_mut(name.count..count)?.copy_from_slice(&directory.versions[..directory.count]);
        Some(Name { count, ..name })
    }

    fn name(&self, at: u64, path: &[u8], follow: Follow) -> Option<Name> {
        if path.is_empty() || path.len() > name::PATH_BYTES_MAX {
            return None;
        }
        let hash = shelf::hash_of(at, path, follow);
        let is_its = |entry: &usize| self.word(shelf::name_key(*entry)) == hash;
        shelf::name_set(hash).filter(is_its).find_map(|entry| {
            let look = self.look(entry)?;
            if !is_its(&look.at) || self.word(look.at + name::AT) != at {
                return None;
            }
            let form = self.word(look.at + name::FORM);
            let count = (form >> 16 & 0xffff) as usize;
            let fits = count <= TRAIL_MAX && name::versions(path.len()) + 8 * count <= NAME_BYTES;
            if form != shelf::form_of(path, count, follow) || !fits {
                return None;
            }
            let mut there = (look.at + name::PATH..).step_by(8).map(|at| self.word(at));
            if !shelf::words(path).all(|word| there.next() == Some(word)) {
                return None;
            }
            let mut name = Name { ino: self.word(look.at + name::INO), versions: [0; TRAIL_MAX], count };
            for (number, version) in name.versions[..count].iter_mut().enumerate() {
                *version = self.word(look.at + name::versions(path.len()) + 8 * number);
            }
            self.is_same(look).then_some(name)
        })
    }

    /// The card of an inode, unless its status takes a call.
    #[must_use]
    pub fn card(&self, ino: u64, board: &BoardView) -> Option<Card> {
        self.copy_card(ino).filter(|card| board.has_version(card.version))
    }

    fn copy_card(&self, ino: u64) -> Option<Card> {
        let look = self.card_of(ino)?;
        let version = Version::new(self.word(look.at + card::VERSION))?;
        let rights = self.word(look.at + card::RIGHTS);
        let stat = self.status(ino, look.at + card::STATUS);
        let card = Card {
            look,
            version,
            stat,
            rights: (rights & 7) as u32,
            opens: rights & card::OPENS != 0,
            plain: rights & card::PLAIN != 0,
        };
        self.is_same(look).then_some(card)
    }

    #[inline]
    fn card_of(&self, ino: u64) -> Option<Look> {
        let is_its = |at: &usize| self.word(shelf::card_key(*at)) == ino;
        let mut looks = shelf::card_set(ino).filter(is_its).filter_map(|at| self.look(at));
        looks.find(|look| is_its(&look.at))
    }

    fn status(&self, ino: u64, at: usize) -> Stat {
        let word = |number: usize| self.word(at + 8 * number);
        let half = |number: usize| (word(number) as u32, (word(number) >> 32) as u32);
        let ((mode, nlink), (uid, gid)) = (half(0), half(1));
        Stat {
            dev: self.device,
            ino,
            mode,
            nlink,
            uid,
            gid,
            rdev: word(2),
            size: word(3),
            blocks_512: word(4),
            block_bytes: word(5) as u32,
            atime_ns: word(6) as i64,
            mtime_ns: word(7) as i64,
            ctime_ns: word(8) as i64,
            btime_ns: word(9) as i64,
        }
    }

    /// Whether what was found is still so: nothing that it depends on has changed, and no card was taken back.
    #[must_use]
    pub fn stands(&self, found: &Found, board: &BoardView) -> bool {
        let card_stands =
            |card: &Card| self.word(card.look.at) == card.look.seq && board.has_version(card.version);
        let unchanged =
            |version: &u64| Version::new(*version).is_some_and(|version| board.has_version(version));
        found.card.as_ref().is_none_or(card_stands) && found.versions[..found.count].iter().all(unchanged)
    }

    /// Reads bytes of a file; none when that takes a call. Fewer than asked for only at its end.
    #[must_use]
    pub fn read(&self, ino: u64, into: &mut [u8], offset: u64, board: &BoardView) -> Option<usize> {
        let look = self.card_of(ino)?;
        let (bytes_version, size) = (self.bytes_version(look)?, self.word(look.at + card::BYTES));
        let version = self.version_to_read(look)?;
        let len = into.len().min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        self.copy(look, &mut into[..len], (offset, size))?;
        Point::BytesCopied.reached();
        (self.is_same(look) && board.has_bytes(bytes_version) && board.has_version(version)).then_some(len)
    }

    /// Whether a file's bytes are here, and who reads them renews the access time first.
    #[must_use]
    pub fn renews_first(&self, ino: u64, board: &BoardView) -> bool {
        let Some(look) = self.card_of(ino) else { return false };
        self.renews(look) && self.bytes_version(look).is_some_and(|version| board.has_bytes(version))
    }

    /// All that is read of a directory or of a symbolic link ([`crate::CardBytes`]); none when that takes a call.
    #[must_use]
    pub fn read_whole(&self, ino: u64, board: &BoardView) -> Option<Vec<u8>> {
        let look = self.card_of(ino)?;
        let bytes_version = self.bytes_version(look)?;
        let version = self.version_to_read(look)?;
        let size = self.word(look.at + card::BYTES);
        let len = usize::try_from(size).ok();
        let mut whole = vec![0; len.filter(|len| *len <= shelf::SHELF_BYTES_AT_ONCE)?];
        self.copy(look, &mut whole, (0, size))?;
        (self.is_same(look) && board.has_version(bytes_version) && board.has_version(version))
            .then_some(whole)
    }

    fn bytes_version(&self, look: Look) -> Option<Version> {
        Version::new(self.word(look.at + card::BYTES_VERSION))
    }

    /// The inode's version, unless who reads it renews the access time.
    fn version_to_read(&self, look: Look) -> Option<Version> {
        if self.renews(look) {
            return None;
        }
        Version::new(self.word(look.at + card::VERSION))
    }

    /// Whether who reads it renews the access time, as relatime has it.
    fn renews(&self, look: Look) -> bool {
        let status = |number: usize| self.word(look.at + card::STATUS + 8 * number) as i64;
        let (atime, mtime, ctime) = (status(6), status(7), status(8));
        self.renews_atime && (atime <= mtime || atime <= ctime)
    }

    /// Copies bytes of a card from an offset on, of `size` in all, which has so many.
    fn copy(&self, look: Look, into: &mut [u8], (offset, size): (u64, u64)) -> Option<()> {
        let is_indexed = leaf::is_indexed(size);
        let number =
            |at: usize| Some(self.memory.u32(at).load(Ordering::Relaxed)).filter(|leaf| self.has(*leaf));
        let on_card = |page: usize| number(look.at + card::LEAVES + page % shelf::FILE_PAGES * 4);
        let mut done = 0;
        while done < into.len() {
            let at = offset as usize + done;
            let page = at / PAGE;
            let leaf = if is_indexed {
                number(leaf::start_of(on_card(page / LEAF_NUMBERS)?) + page % LEAF_NUMBERS * 4)?
            } else {
                on_card(page)?
            };
            let part = (into.len() - done).min(PAGE - at % PAGE);
            self.memory.give(leaf::start_of(leaf) + at % PAGE, &mut into[done..done + part]);
            done += part;
        }
        Some(())
    }

    fn has(&self, leaf: u32) -> bool {
        (leaf as usize) < self.leaves
    }

    /// Whether a file of so many bytes, or of as many as its card says, has its bytes here, or will have when it is
    /// read again: not a large one that changes while it is read.
    #[must_use]
    pub fn has_room_for(&self, ino: u64, bytes: u64, board: &BoardView) -> bool {
        let look = self.card_of(ino);
        let bytes = look.map_or(bytes, |look| self.word(look.at + card::STATUS + 8 * 3));
        let has_some = |look| self.bytes_version(look).is_some_and(|version| board.has_bytes(version));
        bytes <= shelf::SHELF_BYTES_AT_ONCE as u64 || look.is_some_and(has_some)
    }
}
