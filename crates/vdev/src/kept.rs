//! A drive whose state is kept beside its image, and its life: what SMART tells over all times that it was used.

use crate::counters::Counters;
use crate::drive_error::DriveFileError;
use crate::drive_file::DriveFile;
use crate::drive_layout::LIFE_COUNTERS;
use crate::media::Media;
use crate::recorder::{Arrival, Recorder};
use nvmed_flash::{Command, Counts, Flash, Kind, Profile, Tables, table_sizes};
use nvmed_image::Flush;
use nvmed_sys::Words;
use rustix::io::Errno;
use std::path::Path;

/// A drive with tables in huge pages.
pub(crate) type DriveFlash = Flash<Words>;

/// A drive of a profile, empty.
pub(crate) fn empty(profile: &Profile) -> Result<DriveFlash, Errno> {
    let (map, owners) = table_sizes(profile);
    let tables = Tables { map: Words::new(map)?, owners: Words::new(owners)? };
    Ok(Flash::with_tables(profile, tables).expect("the profile was checked"))
}

/// What a drive has been through, over all times that it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// How often it was opened.
    pub power_cycles: u64,
    /// How often it just ended, without having been closed.
    pub unsafe_shutdowns: u64,
    /// Seconds for which it was open.
    pub seconds: u64,
    /// Read and Compare commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Commands whose data could not be read or kept.
    pub media_errors: u64,
    /// Entries that its error log ever had.
    pub error_entries: u64,
}

impl Life {
    fn words(&self, counts: Counts) -> [u64; LIFE_COUNTERS] {
        [
            self.power_cycles,
            self.unsafe_shutdowns,
            self.seconds,
            self.reads,
            self.writes,
            self.bytes_read,
            self.bytes_written,
            self.media_errors,
            counts.host_units,
            counts.moved_units,
            counts.programmed_units,
            counts.programs,
            counts.page_reads,
            counts.erases,
            self.error_entries,
            0,
        ]
    }

    fn of(words: [u64; LIFE_COUNTERS]) -> (Self, Counts) {
        let life = Self {
            power_cycles: words[0],
            unsafe_shutdowns: words[1],
            seconds: words[2],
            reads: words[3],
            writes: words[4],
            bytes_read: words[5],
            bytes_written: words[6],
            media_errors: words[7],
            error_entries: words[14],
        };
        let mut counts = Counts::default();
        counts.host_units = words[8];
        counts.moved_units = words[9];
        counts.programmed_units = words[10];
        counts.programs = words[11];
        counts.page_reads = words[12];
        counts.erases = words[13];
        (life, counts)
    }

    /// With what a controller has counted since it was made, so many seconds ago, and the entries of its error log,
    /// which goes on counting.
    pub(crate) fn with(self, counters: &Counters, error_entries: u64, seconds: u64) -> Self {
        Self {
            error_entries,
            seconds: self.seconds + seconds,
            reads: self.reads + counters.reads + counters.compares,
            writes: self.writes + counters.writes,
            bytes_read: self.bytes_read + counters.bytes_read,
            bytes_written: self.bytes_written + counters.bytes_written,
            media_errors: self.media_errors + counters.media_errors,
            ..self
        }
    }
}

/// A drive and the file that keeps it.
#[derive(Debug)]
pub struct KeptDrive {
    pub(crate) flash: DriveFlash,
    pub(crate) kept: Kept,
}

/// What keeps a drive.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Absent once the host could not write it: what happens from then on is not kept.
    file: Option<DriveFile>,
    /// As it was when the controller was made.
    pub life: Life,
    /// The life, but for its seconds, with which it was kept at rest, if nothing has changed in flash since.
    at_rest: Option<Life>,
}

impl KeptDrive {
    /// A new drive of an image, of a profile that was checked and is kept as `text`; with `used`, one that has been
    /// written at random for long.
    ///
    /// # Errors
    /// The host refuses, or the profile is too long.
    pub fn create(
        (image, media, flush): (&Path, &Media, Flush),
        (profile, text): (&Profile, &str),
        used: bool,
    ) -> Result<Self, DriveFileError> {
        let mut flash = empty(profile).map_err(|errno| DriveFileError::memory(image, errno))?;
        if used {
            flash.precondition();
        }
        let file = DriveFile::create((image, media, flush), (profile, text), &flash)?;
        flash.keep_records();
        Ok(Self {
            flash,
            kept: Kept { file: Some(file), life: Life { power_cycles: 1, ..Life::default() }, at_rest: None },
        })
    }

    /// The drive that was made of an image, of the profile that its state names.
    ///
    /// # Errors
    /// The state is damaged, or another image's.
    pub fn open(
        (image, media, flush): (&Path, &Media, Flush),
        profile: &Profile,
    ) -> Result<Self, DriveFileError> {
        let mut flash = empty(profile).map_err(|errno| DriveFileError::memory(image, errno))?;
        let (mut file, loaded) = DriveFile::open((image, media, flush), profile, &mut flash)?;
        let (mut life, counts) = Life::of(loaded.life);
        life.power_cycles += 1;
        life.unsafe_shutdowns += u64::from(!loaded.was_at_rest);
        flash.set_counts(counts);
        // From here on the drive is not at rest, whatever becomes of it.
        file.checkpoint(&flash, life.words(counts), false)?;
        flash.keep_records();
        Ok(Self { flash, kept: Kept { file: Some(file), life, at_rest: None } })
    }
}

impl Kept {
    /// Keeps what has changed; `life` says what the drive has been through.
    #[inline]
    pub fn keep(&mut self, flash: &mut DriveFlash, life: impl FnOnce(Life) -> Life) {
        if flash.records().is_empty() {
            return;
        }
        self.at_rest = None;
        let Some(file) = &mut self.file else { return flash.clear_records() };
        let before = self.life;
        let life = |flash: &DriveFlash| life(before).words(flash.counts());
        let kept = if file.append(flash.records()) {
            file.go_on(flash, || life(flash))
        } else {
            file.checkpoint(flash, life(flash), false)
        };
        if kept.is_err() {
            self.file = None;
        }
        flash.clear_records();
    }

    /// Makes what was kept, and `life`, outlive the host, where a Flush does.
    pub fn sync(&mut self, flash: &DriveFlash, life: Life) {
        let Some(file) = &mut self.file else { return };
        let life = life.words(flash.counts());
        file.append_life(life);
        if file.go_on(flash, || life).and_then(|()| file.sync()).is_err() {
            self.file = None;
        }
    }

    /// Whether the host has kept all so far.
    pub fn is_whole(&self) -> bool {
        self.file.is_some()
    }

    /// Lets the drive program what it has, and keeps it at rest; once, if nothing happens.
    pub fn rest(&mut self, flash: &mut DriveFlash, mut recorder: Option<&mut Recorder>, life: Life) {
        let lived = Life { seconds: 0, ..life };
        let Some(file) = self.file.as_mut().filter(|_| self.at_rest != Some(lived)) else { return };
        let advance = |flash: &mut DriveFlash, recorder: &mut Option<&mut Recorder>| {
            let done = flash.advance(u64::MAX)?;
            if let Some(recorder) = recorder {
                recorder.due(done.time, done.ticket);
            }
            Some(done.ticket)
        };
        while !flash.takes(false) && advance(flash, &mut recorder).is_some() {}
        let command = Command { kind: Kind::Flush, start: 0, bytes: 0, urgent: false };
        let flush = flash.arrive(flash.now(), &command);
        if let Some(recorder) = &mut recorder {
            recorder
                .arrived(Arrival { time_ns: flash.now(), queue: 0, opcode: 0, command, due_ns: None }, flush);
        }
        while advance(flash, &mut recorder).is_some_and(|done| done != flush) {}
        // Nobody is there to be told. If the host cannot write, the drive is as if it had just ended.
        self.at_rest = file.checkpoint(flash, life.words(flash.counts()), true).is_ok().then_some(lived);
        flash.clear_records();
    }
}
