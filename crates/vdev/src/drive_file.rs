//! The file beside an image in which a drive's state is kept (docs/spec/flash.md).

use crate::drive_error::DriveFileError;
use crate::drive_journal::{Found, Journals, group_bytes, life_record};
use crate::drive_layout::{
    Checkpoint, File, HEAD_MAGIC, HEADER_BYTES, HEADER_MAGIC, Head, Header, LIFE_COUNTERS, Layout, PAGE,
    PROFILE_BYTES_MAX, VERSION,
};
use crate::media::Media;
use nvmed_flash::{BLOCK_WORDS, Flash, Profile, Words};
use nvmed_image::Flush;
use nvmed_sys::QuietFd;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// What is behind the image's name.
const SUFFIX: &str = ".flash";
/// By how much the sequence grows at an opening. After a power cut the journals may have groups of the laps that come
/// next, whose heads were lost: those laps are not used again.
const OPENED: u64 = 1 << 10;

/// The state of a drive, as it is kept.
#[derive(Debug)]
pub struct DriveFile {
    path: PathBuf,
    fd: QuietFd,
    layout: Layout,
    journals: Journals,
    /// Of the checkpoint in whose journal records go: the one that counts, or the one that is under way.
    sequence: u64,
    /// The checkpoint that is under way.
    under_way: Option<UnderWay>,
    /// Bytes of its journal that are used.
    used: usize,
    /// How many are when [`Self::go_on`] has something to do.
    due_at: usize,
    /// A part of the map.
    part: Vec<u32>,
    flush: Flush,
    /// Something was written since the last [`Self::sync`].
    dirty: bool,
}

/// A checkpoint that is written in parts, while its drive goes on.
///
/// Its blocks and counters are those of the moment in which it, and its journal, began; its map is that of several
/// later ones. With what has changed since it began, both are that of now.
#[derive(Debug)]
struct UnderWay {
    life: [u64; LIFE_COUNTERS],
    blocks: Vec<u32>,
    /// Words of the map that are written.
    written: usize,
    /// Of them.
    checksum: u32,
}

impl UnderWay {
    fn new<W: Words>(flash: &Flash<W>, life: [u64; LIFE_COUNTERS]) -> Self {
        Self { life, blocks: flash.block_words(), written: 0, checksum: 0 }
    }
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
        let journals = file.journals(&fd, &layout)?;
        let mut made = Self::over((path.clone(), fd), (layout, journals), 0, flush);
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
        let journals = file.journals(&fd, &layout)?;
        let kept = Checkpoint::newest(&file, &fd, &layout)?;
        let Found { records, life } =
            journals.read(kept.head.sequence as u32, kept.head.journal_begin as usize);
        let was_at_rest = kept.head.at_rest == 1 && records.is_empty();
        flash
            .restore(&kept.words[..layout.map_words], &kept.words[layout.map_words..], &records, !was_at_rest)
            .map_err(|error| file.state(&error))?;
        let life = life.unwrap_or(kept.head.life);
        let opened = Self::over((path.clone(), fd), (layout, journals), kept.head.sequence + OPENED, flush);
        Ok((opened, Loaded { was_at_rest, life }))
    }

    /// A file in which a checkpoint comes next.
    fn over(
        (path, fd): (PathBuf, OwnedFd),
        (layout, journals): (Layout, Journals),
        sequence: u64,
        flush: Flush,
    ) -> Self {
        Self {
            path,
            fd: QuietFd::new(fd),
            layout,
            journals,
            sequence,
            under_way: None,
            // No group fits until then: behind the last whole one there may be others.
            used: layout.journal_bytes as usize,
            due_at: usize::MAX,
            part: vec![0; layout.part_words()],
            flush,
            dirty: false,
        }
    }

    /// Keeps records in the journal; false if it has no room for them, and it is time for a [`Self::checkpoint`].
    #[inline]
    #[must_use]
    pub fn append(&mut self, records: &[u32]) -> bool {
        let behind = self.used + group_bytes(records.len());
        let fits = behind <= self.layout.journal_bytes as usize;
        if fits && !records.is_empty() {
            self.journals.write(self.sequence as u32, self.used, records);
            (self.used, self.dirty) = (behind, true);
        }
        fits
    }

    /// Keeps the counters, too, if the journal has room for them.
    pub(crate) fn append_life(&mut self, life: [u64; LIFE_COUNTERS]) {
        let _ = self.append(&life_record(life));
    }

    fn side(&self) -> usize {
        (self.sequence % 2) as usize
    }

    /// Does what is due since the journal has grown: keeps the counters, goes on with the checkpoint that is under way,
    /// or begins one when the journal is nearly full. Everything that has changed in `flash` must be in the journal.
    ///
    /// # Errors
    /// The host cannot write.
    #[inline]
    pub fn go_on<W: Words>(
        &mut self,
        flash: &Flash<W>,
        life: impl FnOnce() -> [u64; LIFE_COUNTERS],
    ) -> Result<(), DriveFileError> {
        if self.used < self.due_at {
            return Ok(());
        }
        self.step(flash, life())
    }

    #[cold]
    fn step<W: Words>(&mut self, flash: &Flash<W>, life: [u64; LIFE_COUNTERS]) -> Result<(), DriveFileError> {
        self.check_journals()?;
        self.append_life(life);
        match self.under_way.take() {
            Some(under_way) => return self.write_due(flash, under_way),
            None if self.used >= self.layout.next_at() => {
                self.sequence += 1;
                self.used = self.journals.go_on(self.sequence as u32, self.used);
                self.under_way = Some(UnderWay::new(flash, life));
                self.due_at = self.layout.part_at(0);
            }
            None => self.due_at = self.layout.step_at(self.used),
        }
        Ok(())
    }

    /// Writes the parts of the map that are due, each to the host's stable storage, so that none waits for many; ends
    /// the checkpoint with the last one.
    fn write_due<W: Words>(
        &mut self,
        flash: &Flash<W>,
        mut under_way: UnderWay,
    ) -> Result<(), DriveFileError> {
        while under_way.written < self.layout.map_words && self.layout.part_at(under_way.written) <= self.used
        {
            self.write_part(flash, &mut under_way)?;
            self.sync_file()?;
        }
        if under_way.written == self.layout.map_words {
            return self.finish(&under_way, 0, false);
        }
        self.due_at = self.layout.part_at(under_way.written);
        self.under_way = Some(under_way);
        Ok(())
    }

    fn write_part<W: Words>(
        &mut self,
        flash: &Flash<W>,
        under_way: &mut UnderWay,
    ) -> Result<(), DriveFileError> {
        let left = self.layout.map_words - under_way.written;
        let place = self.layout.content(self.side()) + under_way.written as u64 * 4;
        let words = self.part.len().min(left);
        let part = &mut self.part[..words];
        flash.map_words(under_way.written, part);
        under_way.checksum = crc32c::crc32c_append(under_way.checksum, part.as_bytes());
        under_way.written += words;
        File { path: &self.path }.write(&self.fd, part.as_bytes(), place)
    }

    /// Writes what a checkpoint has behind its map, and then its head: from then on it counts.
    fn finish(
        &mut self,
        under_way: &UnderWay,
        journal_begin: usize,
        at_rest: bool,
    ) -> Result<(), DriveFileError> {
        let file = File { path: &self.path };
        let blocks = under_way.blocks.as_bytes();
        let place = self.layout.content(self.side()) + self.layout.map_words as u64 * 4;
        file.write(&self.fd, blocks, place)?;
        self.sync_file()?;
        let mut head = Head {
            magic: HEAD_MAGIC,
            checksum: 0,
            content_checksum: crc32c::crc32c_append(under_way.checksum, blocks),
            sequence: self.sequence,
            at_rest: at_rest.into(),
            journal_begin: journal_begin as u32,
            life: under_way.life,
        };
        head.checksum = crc32c::crc32c(head.as_bytes());
        File { path: &self.path }.write(&self.fd, head.as_bytes(), Layout::head(self.side()))?;
        self.sync_file()?;
        self.due_at = self.layout.step_at(self.used);
        Ok(())
    }

    /// Writes map and blocks of `flash`, and the counters of its life, at once, where the older checkpoint is; also
    /// what has changed and is not in the journal.
    ///
    /// # Errors
    /// The host cannot write.
    pub fn checkpoint<W: Words>(
        &mut self,
        flash: &Flash<W>,
        life: [u64; LIFE_COUNTERS],
        at_rest: bool,
    ) -> Result<(), DriveFileError> {
        self.check_journals()?;
        if self.under_way.take().is_some() {
            // In its place, and behind what its journal has, which belongs to the one before it; and of another lap, so
            // that what follows does not.
            self.sequence += 2;
        } else {
            (self.sequence, self.used) = (self.sequence + 1, 0);
        }
        let mut whole = UnderWay::new(flash, life);
        while whole.written < self.layout.map_words {
            self.write_part(flash, &mut whole)?;
        }
        self.finish(&whole, self.used, at_rest)
    }

    /// Makes what was kept outlive the host, if a Flush does.
    ///
    /// # Errors
    /// The host cannot write.
    pub fn sync(&mut self) -> Result<(), DriveFileError> {
        if self.dirty {
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

    fn sync_file(&mut self) -> Result<(), DriveFileError> {
        self.dirty = false;
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
