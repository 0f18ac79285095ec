//! The file beside an image in which a drive's state is kept (docs/spec/flash.md).

use crate::drive_error::DriveFileError;
use crate::file::Flush;
use crate::media::Media;
use nvmed_flash::{BLOCK_WORDS, Flash, Profile, StateError, Words, table_sizes};
use nvmed_sys::{Mapping, QuietFd};
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const HEADER_MAGIC: [u8; 8] = *b"nvmedfls";
const HEAD_MAGIC: [u8; 8] = *b"nvmedchk";
pub(crate) const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16_384;
const PAGE: u64 = 4096;
/// A profile fits in the rest of the header.
pub(crate) const PROFILE_BYTES_MAX: usize = HEADER_BYTES - size_of::<Header>();
/// Journals are a quarter of the map, and within these.
const JOURNAL_BYTES_MIN: u64 = 1 << 20;
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Words of a group of records before its records: how many, lap, checksum, place.
const GROUP_WORDS: usize = 4;
/// The kind of a record of counters, which is the only one of its group.
const LIFE: u32 = 5;
/// Words of the map that are written at once.
const PART_WORDS: usize = 1 << 18;
/// What is behind the image's name.
const SUFFIX: &str = ".flash";

/// Counters of a drive's life, which its state keeps.
pub const LIFE_COUNTERS: usize = 16;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    checksum: u32,
    identity: [u8; 16],
    image_bytes: u64,
    map_units: u32,
    blocks: u32,
    journal_pages: u32,
    profile_bytes: u32,
}

const _: () = assert!(size_of::<Header>() == 56);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    checksum: u32,
    content_checksum: u32,
    sequence: u64,
    at_rest: u64,
    life: [u64; LIFE_COUNTERS],
}

/// Where the parts of the file are.
#[derive(Clone, Copy, Debug)]
struct Layout {
    map_words: usize,
    block_words: usize,
    journal_bytes: u64,
}

impl Layout {
    fn of(profile: &Profile, blocks: usize) -> Self {
        let (map_words, _) = table_sizes(profile);
        let quarter = (map_words as u64).next_multiple_of(PAGE);
        let journal_bytes = quarter.clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
        Self { map_words, block_words: blocks * BLOCK_WORDS, journal_bytes }
    }

    fn head(side: usize) -> u64 {
        HEADER_BYTES as u64 + side as u64 * PAGE
    }

    fn content_bytes(&self) -> u64 {
        ((self.map_words + self.block_words) as u64 * 4).next_multiple_of(PAGE)
    }

    fn content(&self, side: usize) -> u64 {
        Self::head(2) + side as u64 * self.content_bytes()
    }

    fn journals(&self) -> u64 {
        self.content(2)
    }

    fn bytes(&self) -> u64 {
        self.journals() + 2 * self.journal_bytes
    }
}

/// The state of a drive, as it is kept.
#[derive(Debug)]
pub struct DriveFile {
    path: PathBuf,
    fd: QuietFd,
    layout: Layout,
    /// Both journals.
    journals: Mapping,
    /// Of the checkpoint that counts.
    sequence: u64,
    /// Bytes of its journal that are used.
    used: usize,
    flush: Flush,
    /// Something was written since the last [`Self::sync`].
    dirty: bool,
}

/// What a file says of its drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveDescription {
    /// The profile that it was made with.
    pub profile: String,
    /// Bytes of its image.
    pub image_bytes: u64,
}

impl DriveFile {
    /// The file beside an image.
    ///
    /// A link to an image is that image.
    #[must_use]
    pub fn beside(image: &Path) -> PathBuf {
        let mut name = image.canonicalize().unwrap_or_else(|_| image.to_owned()).into_os_string();
        name.push(SUFFIX);
        name.into()
    }

    /// Whether there is a file beside an image, be it a link that leads nowhere.
    #[must_use]
    pub fn is_beside(image: &Path) -> bool {
        Self::beside(image).symlink_metadata().is_ok()
    }

    /// What the state beside an image says of its drive; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn describe(image: &Path) -> Result<Option<DriveDescription>, DriveFileError> {
        let path = Self::beside(image);
        let file = File { path: &path };
        match rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) if Self::is_beside(image) => {
                Err(file.damaged("is a link to a file that is not there"))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(file.host("open it", errno)),
            Ok(fd) => {
                let (header, profile) = file.header(&fd)?;
                Ok(Some(DriveDescription { profile, image_bytes: header.image_bytes }))
            }
        }
    }

    /// Whether there is room for a profile of so many bytes.
    ///
    /// # Errors
    /// There is not.
    pub fn check_profile(text: &str) -> Result<(), DriveFileError> {
        if text.len() > PROFILE_BYTES_MAX {
            return Err(DriveFileError::Profile { bytes: text.len() });
        }
        Ok(())
    }

    /// Makes the file beside `image`, or makes it anew, with the state of `flash`, at rest.
    ///
    /// # Errors
    /// The host refuses, or the profile is too long.
    pub fn create<W: Words>(
        (image, media, flush): (&Path, &Media, Flush),
        (profile, text): (&Profile, &str),
        flash: &Flash<W>,
    ) -> Result<Self, DriveFileError> {
        Self::check_profile(text)?;
        let path = Self::beside(image);
        let file = File { path: &path };
        // Under another name until it is whole, so that what was there before is there until then.
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&new, flags, Mode::from_raw_mode(0o644));
        let fd = opened.map_err(|errno| file.host("make it", errno))?;
        let layout = Layout::of(profile, flash.block_words().len() / BLOCK_WORDS);
        // All of it, so that a full host is found out here.
        if let Err(errno) = rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, layout.bytes()) {
            let _ = rustix::fs::unlink(&new);
            return Err(file.host("give it room", errno));
        }
        let mut header = Header {
            magic: HEADER_MAGIC,
            version: VERSION,
            checksum: 0,
            identity: media.identity().bytes(),
            image_bytes: media.bytes(),
            map_units: layout.map_words as u32,
            blocks: (layout.block_words / BLOCK_WORDS) as u32,
            journal_pages: (layout.journal_bytes / PAGE) as u32,
            profile_bytes: text.len() as u32,
        };
        let mut page = vec![0; HEADER_BYTES];
        page[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        page[size_of::<Header>()..][..text.len()].copy_from_slice(text.as_bytes());
        header.checksum = crc32c::crc32c(&page);
        page[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        file.write(&fd, &page, 0)?;
        let journals = file.map(&fd, &layout)?;
        let fd = QuietFd::new(fd);
        let mut made = Self { path, fd, layout, journals, sequence: 0, used: 0, flush, dirty: false };
        made.checkpoint(flash, [0; LIFE_COUNTERS], true)?;
        let file = File { path: &made.path };
        rustix::fs::rename(&new, &made.path).map_err(|errno| file.host("give it its name", errno))?;
        file.sync_directory()?;
        Ok(made)
    }

    /// Opens the file beside `image` and gives `flash`, an empty drive of its profile, the state that was kept. Its
    /// journal takes nothing before the next checkpoint.
    ///
    /// # Errors
    /// The file is damaged, or another image's.
    pub fn open<W: Words>(
        (image, media, flush): (&Path, &Media, Flush),
        profile: &Profile,
        flash: &mut Flash<W>,
    ) -> Result<(Self, Loaded), DriveFileError> {
        let path = Self::beside(image);
        let file = File { path: &path };
        let opened =
            rustix::fs::open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        let fd = opened.map_err(|errno| file.host("open it", errno))?;
        let (header, _) = file.header(&fd)?;
        if header.identity != media.identity().bytes() {
            return Err(file.foreign("it has another identity".to_owned()));
        }
        if header.image_bytes != media.bytes() {
            let what =
                format!("an image of {} bytes, and this one has {}", header.image_bytes, media.bytes());
            return Err(file.foreign(what));
        }
        let layout = Layout::of(profile, flash.block_words().len() / BLOCK_WORDS);
        let sizes = (header.map_units as usize, header.blocks as usize * BLOCK_WORDS);
        if sizes != (layout.map_words, layout.block_words)
            || u64::from(header.journal_pages) * PAGE != layout.journal_bytes
        {
            return Err(file.damaged("is of a drive of another geometry than its profile says"));
        }
        let stat = rustix::fs::fstat(&fd).map_err(|errno| file.host("look at it", errno))?;
        if (stat.st_size as u64) < layout.bytes() {
            let what = format!("has {} bytes of {}: it was cut", stat.st_size, layout.bytes());
            return Err(file.damaged(&what));
        }
        let journals = file.map(&fd, &layout)?;
        let kept = Checkpoint::newest(&file, &fd, &layout)?;
        let side = (kept.head.sequence % 2) as usize;
        let Journal { records, life, .. } =
            read_journal(&journals, side * layout.journal_bytes as usize, &layout, kept.head.sequence);
        let was_at_rest = kept.head.at_rest == 1 && records.is_empty();
        flash
            .restore(&kept.words[..layout.map_words], &kept.words[layout.map_words..], &records, !was_at_rest)
            .map_err(|error| file.state(&error))?;
        let fd = QuietFd::new(fd);
        let (sequence, life) = (kept.head.sequence, life.unwrap_or(kept.head.life));
        // As if it were full: behind its last whole group there may be others.
        let used = layout.journal_bytes as usize;
        let opened = Self { path, fd, layout, journals, sequence, used, flush, dirty: false };
        Ok((opened, Loaded { was_at_rest, life }))
    }

    /// Keeps records in the journal; false if it has no room for them, and it is time for a checkpoint.
    #[inline]
    #[must_use]
    pub fn append(&mut self, records: &[u32]) -> bool {
        let bytes = (GROUP_WORDS + records.len()) * 4;
        let fits = self.used + bytes <= self.layout.journal_bytes as usize;
        if fits && !records.is_empty() {
            self.write_group(records);
        }
        fits
    }

    /// Keeps the counters, too, if the journal has room for them.
    pub(crate) fn append_life(&mut self, life: [u64; LIFE_COUNTERS]) {
        let mut words = [0; 1 + 2 * LIFE_COUNTERS];
        words[0] = LIFE << 24;
        words[1..].as_mut_bytes().copy_from_slice(life.as_bytes());
        let _ = self.append(&words);
    }

    fn write_group(&mut self, records: &[u32]) {
        let place = self.used;
        let lap = self.sequence as u32;
        let checksum = group_checksum(lap, place as u32, records);
        let at = self.side() * self.layout.journal_bytes as usize + place;
        let head = [records.len() as u32, lap, checksum, place as u32];
        self.journals.write(at + GROUP_WORDS * 4, records.as_bytes());
        // Last: a process that is killed before has written no group.
        self.journals.write(at, head.as_bytes());
        self.used += (GROUP_WORDS + records.len()) * 4;
        self.dirty = true;
    }

    fn side(&self) -> usize {
        (self.sequence % 2) as usize
    }

    /// Writes map and blocks of `flash`, and the counters of its life, where the older checkpoint is.
    ///
    /// # Errors
    /// The host cannot write.
    pub fn checkpoint<W: Words>(
        &mut self,
        flash: &Flash<W>,
        life: [u64; LIFE_COUNTERS],
        at_rest: bool,
    ) -> Result<(), DriveFileError> {
        let file = File { path: &self.path };
        self.check_journals()?;
        let sequence = self.sequence + 1;
        let side = (sequence % 2) as usize;
        let mut place = self.layout.content(side);
        let mut checksum = 0;
        let mut write = |words: &[u32]| {
            checksum = crc32c::crc32c_append(checksum, words.as_bytes());
            let written = file.write(&self.fd, words.as_bytes(), place);
            place += words.len() as u64 * 4;
            written
        };
        let mut part = vec![0; PART_WORDS.min(self.layout.map_words)];
        for first in (0..self.layout.map_words).step_by(PART_WORDS) {
            let part = &mut part[..PART_WORDS.min(self.layout.map_words - first)];
            flash.map_words(first, part);
            write(part)?;
        }
        write(&flash.block_words())?;
        self.sync_file()?;
        let mut head = Head {
            magic: HEAD_MAGIC,
            checksum: 0,
            content_checksum: checksum,
            sequence,
            at_rest: at_rest.into(),
            life,
        };
        head.checksum = crc32c::crc32c(head.as_bytes());
        file.write(&self.fd, head.as_bytes(), Layout::head(side))?;
        self.sync_file()?;
        (self.sequence, self.used, self.dirty) = (sequence, 0, false);
        Ok(())
    }

    /// Makes what was kept outlive the host, if a Flush does.
    ///
    /// # Errors
    /// The host cannot write.
    pub fn sync(&mut self) -> Result<(), DriveFileError> {
        if std::mem::take(&mut self.dirty) {
            self.sync_file()?;
        }
        self.check_journals()
    }

    /// Whether the journals' mapping is still the file's: whoever cuts the file takes it away.
    fn check_journals(&self) -> Result<(), DriveFileError> {
        if self.journals.is_cut() {
            return Err(File { path: &self.path }.host("go on with it, since it was cut", Errno::IO));
        }
        Ok(())
    }

    fn sync_file(&self) -> Result<(), DriveFileError> {
        if self.flush == Flush::Process {
            return Ok(());
        }
        rustix::fs::fdatasync(&self.fd).map_err(|errno| File { path: &self.path }.host("write it", errno))
    }
}

/// What was found in a drive's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The drive was closed, and did not just end.
    pub was_at_rest: bool,
    /// Its counters at the last checkpoint.
    pub life: [u64; LIFE_COUNTERS],
}

/// A checkpoint that is whole.
struct Checkpoint {
    head: Head,
    /// Map, then blocks.
    words: Vec<u32>,
}

impl Checkpoint {
    /// The newest one.
    fn newest(file: &File<'_>, fd: impl AsFd + Copy, layout: &Layout) -> Result<Self, DriveFileError> {
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

/// What a journal has.
#[derive(Default)]
struct Journal {
    /// All records of the drive.
    records: Vec<u32>,
    /// Bytes of it that are used.
    used: usize,
    /// The counters that were kept last, if any were.
    life: Option<[u64; LIFE_COUNTERS]>,
}

fn read_journal(journals: &Mapping, begin: usize, layout: &Layout, sequence: u64) -> Journal {
    let mut journal = Journal::default();
    let end = layout.journal_bytes as usize;
    let mut group = Vec::new();
    while journal.used + GROUP_WORDS * 4 <= end {
        let place = journal.used;
        let mut head = [0_u32; GROUP_WORDS];
        journals.read(begin + place, head.as_mut_bytes());
        let [count, lap, checksum, at] = head;
        let behind = place + (GROUP_WORDS + count as usize) * 4;
        if lap != sequence as u32 || at as usize != place || count == 0 || behind > end {
            break;
        }
        group.resize(count as usize, 0);
        journals.read(begin + place + GROUP_WORDS * 4, group.as_mut_bytes());
        if group_checksum(lap, at, &group) != checksum {
            break;
        }
        match <[u32; 2 * LIFE_COUNTERS]>::try_from(&group[1..]) {
            Ok(words) if group[0] >> 24 == LIFE => {
                let mut life = [0; LIFE_COUNTERS];
                life.as_mut_bytes().copy_from_slice(words.as_bytes());
                journal.life = Some(life);
            }
            _ => journal.records.extend_from_slice(&group),
        }
        journal.used = behind;
    }
    journal
}

fn group_checksum(lap: u32, place: u32, records: &[u32]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c([lap, place].as_bytes()), records.as_bytes())
}

/// A file by its name, for what is said of it.
struct File<'a> {
    path: &'a Path,
}

impl File<'_> {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn host(&self, what: &'static str, errno: Errno) -> DriveFileError {
        DriveFileError::Host { path: self.name(), what, errno }
    }

    fn damaged(&self, what: &str) -> DriveFileError {
        DriveFileError::Damaged { path: self.name(), what: what.to_owned() }
    }

    fn foreign(&self, what: String) -> DriveFileError {
        DriveFileError::Foreign { path: self.name(), what }
    }

    fn state(&self, error: &StateError) -> DriveFileError {
        self.damaged(&format!("is damaged: {error}"))
    }

    /// The header, and the profile in it.
    fn header(&self, fd: impl AsFd) -> Result<(Header, String), DriveFileError> {
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
    fn sync_directory(&self) -> Result<(), DriveFileError> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty());
        opened.and_then(rustix::fs::fsync).map_err(|errno| self.host("keep its name", errno))
    }

    fn map(&self, fd: impl AsFd, layout: &Layout) -> Result<Mapping, DriveFileError> {
        let journals = Mapping::foreign(fd.as_fd(), layout.journals(), 2 * layout.journal_bytes as usize);
        journals.map_err(|errno| self.host("map it", errno))
    }

    fn read(&self, fd: impl AsFd, into: &mut [u8], mut at: u64) -> Result<(), DriveFileError> {
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

    fn write(&self, fd: impl AsFd, from: &[u8], mut at: u64) -> Result<(), DriveFileError> {
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
