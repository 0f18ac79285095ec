//! The parts of a drive's state (docs/spec/flash.md): where they are, and how they are read and written.

use crate::drive_error::DriveFileError;
use crate::drive_journal::Journals;
use nvmed_flash::{BLOCK_WORDS, Profile, StateError, table_sizes};
use nvmed_sys::Mapping;
use rustix::fd::AsFd;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

pub(crate) const HEADER_MAGIC: [u8; 8] = *b"nvmedfls";
pub(crate) const HEAD_MAGIC: [u8; 8] = *b"nvmedchk";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 16_384;
pub(crate) const PAGE: u64 = 4096;
/// A profile fits in the rest of the header.
pub(crate) const PROFILE_BYTES_MAX: usize = HEADER_BYTES - size_of::<Header>();
/// Journals are a quarter of the map, and within these.
const JOURNAL_BYTES_MIN: u64 = 1 << 20;
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// A checkpoint writes the map in so many parts, of whole pages, and larger ones in parts of 1 MiB: few enough that
/// making each of them durable costs little, and each small enough to hold the drive up for a moment only.
const PARTS: usize = 64;
const PART_WORDS_MAX: usize = 1 << 18;

/// Counters of a drive's life, which its state keeps.
pub const LIFE_COUNTERS: usize = 16;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub checksum: u32,
    pub identity: [u8; 16],
    pub image_bytes: u64,
    pub map_units: u32,
    pub blocks: u32,
    pub journal_pages: u32,
    pub profile_bytes: u32,
}

const _: () = assert!(size_of::<Header>() == 56);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Head {
    pub magic: [u8; 8],
    pub checksum: u32,
    pub content_checksum: u32,
    pub sequence: u64,
    pub at_rest: u32,
    /// Where what has changed since begins in its journal.
    pub journal_begin: u32,
    pub life: [u64; LIFE_COUNTERS],
}

const _: () = assert!(size_of::<Head>() == 160);

/// Where the parts of the file are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub map_words: usize,
    pub block_words: usize,
    pub journal_bytes: u64,
}

impl Layout {
    pub fn of(profile: &Profile, blocks: usize) -> Self {
        let (map_words, _) = table_sizes(profile);
        let quarter = (map_words as u64).next_multiple_of(PAGE);
        let journal_bytes = quarter.clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
        Self { map_words, block_words: blocks * BLOCK_WORDS, journal_bytes }
    }

    pub fn head(side: usize) -> u64 {
        HEADER_BYTES as u64 + side as u64 * PAGE
    }

    fn content_bytes(&self) -> u64 {
        ((self.map_words + self.block_words) as u64 * 4).next_multiple_of(PAGE)
    }

    pub fn content(&self, side: usize) -> u64 {
        Self::head(2) + side as u64 * self.content_bytes()
    }

    fn journals(&self) -> u64 {
        self.content(2)
    }

    pub fn bytes(&self) -> u64 {
        self.journals() + 2 * self.journal_bytes
    }

    /// Words of a part of the map.
    pub(crate) fn part_words(&self) -> usize {
        let page = PAGE as usize / 4;
        self.map_words.div_ceil(PARTS).next_multiple_of(page).clamp(page, PART_WORDS_MAX)
    }

    /// How much of its journal is used when a checkpoint of which so many words of the map are written goes on: so it
    /// is whole before half of the journal is.
    pub(crate) fn part_at(&self, written: usize) -> usize {
        (written as u64 * (self.journal_bytes / 2)).checked_div(self.map_words as u64).unwrap_or(0) as usize
    }

    /// How much of a journal is used, when so much is now, until the counters are kept again, or the next checkpoint
    /// begins.
    pub(crate) fn step_at(&self, used: usize) -> usize {
        (used + self.journal_bytes as usize / PARTS).min(self.next_at().max(used + 1))
    }

    /// How much of a journal is used when the next checkpoint begins. An eighth is left for a group that is large.
    pub(crate) fn next_at(&self) -> usize {
        (self.journal_bytes - self.journal_bytes / 8) as usize
    }
}

/// A checkpoint that is whole.
pub(crate) struct Checkpoint {
    pub head: Head,
    /// Map, then blocks.
    pub words: Vec<u32>,
}

impl Checkpoint {
    /// The newest one.
    pub fn newest(file: &File<'_>, fd: impl AsFd + Copy, layout: &Layout) -> Result<Self, DriveFileError> {
        let mut heads = Vec::new();
        for side in 0..2 {
            let mut head = Head::new_zeroed();
            file.read(fd, head.as_mut_bytes(), Layout::head(side))?;
            let checksum = std::mem::take(&mut head.checksum);
            if head.magic == HEAD_MAGIC && checksum == crc32c::crc32c(head.as_bytes()) {
                heads.push(head);
            }
        }
        heads.sort_by_key(|head| std::cmp::Reverse(head.sequence));
        for head in heads {
            let mut words = vec![0; layout.map_words + layout.block_words];
            file.read(fd, words.as_mut_bytes(), layout.content((head.sequence % 2) as usize))?;
            if crc32c::crc32c(words.as_bytes()) == head.content_checksum {
                return Ok(Self { head, words });
            }
        }
        Err(file.damaged("is damaged: neither of its checkpoints is whole"))
    }
}

/// A file by its name, for what is said of it.
pub(crate) struct File<'a> {
    pub path: &'a Path,
}

impl File<'_> {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub fn host(&self, what: &'static str, errno: Errno) -> DriveFileError {
        DriveFileError::Host { path: self.name(), what, errno }
    }

    pub fn damaged(&self, what: &str) -> DriveFileError {
        DriveFileError::Damaged { path: self.name(), what: what.to_owned() }
    }

    pub fn foreign(&self, what: String) -> DriveFileError {
        DriveFileError::Foreign { path: self.name(), what }
    }

    pub fn state(&self, error: &StateError) -> DriveFileError {
        self.damaged(&format!("is damaged: {error}"))
    }

    /// The header, and the profile in it.
    pub fn header(&self, fd: impl AsFd) -> Result<(Header, String), DriveFileError> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.host("look at it", errno))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(self.damaged("is no regular file"));
        }
        let mut page = vec![0; HEADER_BYTES];
        self.read(fd, &mut page, 0)?;
        let (mut header, text) = Header::read_from_prefix(&page).expect("a header is shorter than its page");
        if header.magic != HEADER_MAGIC {
            return Err(self.damaged("is no state of a drive"));
        }
        if header.version != VERSION {
            return Err(DriveFileError::Version { path: self.name(), found: header.version });
        }
        let profile = text.get(..header.profile_bytes as usize).map(<[u8]>::to_vec);
        let checksum = std::mem::take(&mut header.checksum);
        page[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        let whole = checksum == crc32c::crc32c(&page);
        match profile.map(String::from_utf8) {
            Some(Ok(profile)) if whole => Ok((header, profile)),
            _ => Err(self.damaged("is damaged: its header is not whole")),
        }
    }

    /// Lets the file's name outlive a power cut.
    pub fn sync_directory(&self) -> Result<(), DriveFileError> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty());
        opened.and_then(rustix::fs::fsync).map_err(|errno| self.host("keep its name", errno))
    }

    pub(crate) fn journals(&self, fd: impl AsFd, layout: &Layout) -> Result<Journals, DriveFileError> {
        let bytes = layout.journal_bytes as usize;
        let mapping = Mapping::foreign(fd.as_fd(), layout.journals(), 2 * bytes);
        mapping.map(|mapping| Journals::new(mapping, bytes)).map_err(|errno| self.host("map it", errno))
    }

    pub fn read(&self, fd: impl AsFd, into: &mut [u8], mut at: u64) -> Result<(), DriveFileError> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&fd, &mut into[done..], at) {
                // What is cut off reads as zeroes, which nothing takes for whole.
                Ok(0) => return Ok(()),
                Ok(bytes) => (done, at) = (done + bytes, at + bytes as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.host("read it", errno)),
            }
        }
        Ok(())
    }

    pub fn write(&self, fd: impl AsFd, from: &[u8], mut at: u64) -> Result<(), DriveFileError> {
        let mut done = 0;
        while done < from.len() {
            match rustix::io::pwrite(&fd, &from[done..], at) {
                Ok(bytes) => (done, at) = (done + bytes, at + bytes as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.host("write it", errno)),
            }
        }
        Ok(())
    }
}
