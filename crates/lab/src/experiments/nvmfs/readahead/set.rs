//! The files that are read, on an image in memory, and reading them through a mount.

use super::PROFILE;
use crate::error::LabError;
use nvmed_dice::Dice;
use nvmed_fs::{
    Advice, Credentials, File, FileSystem, FormatOptions, FsError, Memory as MountMemory, MemoryLayout,
    MountOptions, MountParts, OpenFlags, Whence,
};
use nvmed_io::{Device, DeviceOptions};
use nvmed_nvm::{
    BufferClock, BufferOptions, FlushTo, MediaProfile, Memory, MemoryOptions, NvmEngine, Place, Prefetch,
};
use nvmed_stack::SlowMedium;
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

const PAGE: u64 = 4096;
/// Scattered files.
const SCATTERED: u64 = 4;
/// Bytes of their extents, in pages.
const EXTENT_PAGES: [u64; 2] = [8, 64];
/// Memory of a mount: its log and what is not recorded.
const MOUNT_BYTES: u64 = 16 << 20;

/// A read of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub file: usize,
    pub offset: u64,
    pub bytes: u64,
}

/// What reading took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub ns: u64,
    pub ahead_percent: Option<f64>,
    pub wasted_percent: Option<f64>,
}

/// An image with files, and what stands before it.
pub(super) struct Set {
    image: Arc<Mapping>,
    options: BufferOptions,
    /// Where each page of each file lies.
    places: Vec<Vec<u64>>,
}

fn failed(error: impl std::fmt::Display) -> LabError {
    LabError::missing(format!("files on memory: {error}"))
}

/// The first bytes of a page of a file, by which it is found on the medium.
fn stamp(seed: u64, file: usize, page: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    let words = [0x9e37_79b9_7f4a_7c15 ^ seed, file as u64, page];
    bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

fn mount(memory: Memory, format: bool) -> Result<(FileSystem, Arc<Memory>), LabError> {
    let memory = Arc::new(memory);
    let engine = NvmEngine::over(Arc::clone(&memory), PAGE as u32);
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 64 }).map_err(failed)?;
    if format {
        FileSystem::format(&device, &FormatOptions::default()).map_err(failed)?;
    }
    let layout = MemoryLayout::new(MOUNT_BYTES);
    let mapping = Mapping::anonymous(layout.total_bytes(), Pages::Base).map_err(failed)?;
    let parts = MountParts {
        device,
        bytes: Some(Arc::clone(&memory)),
        memory: MountMemory { mapping: Arc::new(mapping), layout },
        options: MountOptions::default(),
    };
    Ok((FileSystem::mount(parts).map_err(failed)?, memory))
}

fn open(files: &FileSystem, file: usize, flags: OpenFlags) -> Result<Arc<File>, FsError> {
    files.open(&files.root(), format!("f{file}").as_bytes(), flags, 0o644, &Credentials::ROOT)
}

fn on(image: &Arc<Mapping>) -> Result<Memory, LabError> {
    let place = Place::Mapped { memory: Arc::clone(image) };
    Memory::open(MemoryOptions { place, flush: FlushTo::Process }).map_err(failed)
}

impl Set {
    /// Files of `bytes` bytes in one piece, and as many in scattered ones.
    pub(super) fn new(bytes: u64, buffer_bytes: u64, seed: u64) -> Result<Self, LabError> {
        let medium_bytes = bytes * 3;
        let image = Mapping::anonymous(medium_bytes as usize, Pages::Base).map_err(failed)?;
        let image = Arc::new(image);
        let profile =
            SlowMedium::named(PROFILE).and_then(|medium| medium.medium(medium_bytes)).map_err(failed)?;
        let options = BufferOptions { profile, bytes: buffer_bytes, clock: BufferClock::Virtual };
        let (files, _) = mount(on(&image)?, true)?;
        write(&files, bytes, seed).map_err(failed)?;
        files.unmount().map_err(failed)?;
        drop(files);
        let pages = |bytes: u64| vec![u64::MAX; (bytes / PAGE) as usize];
        let mut places = vec![pages(bytes)];
        places.resize_with(1 + SCATTERED as usize, || pages(bytes / SCATTERED));
        let mut found = [0; 24];
        let begin = stamp(seed, 0, 0);
        for at in (0..medium_bytes).step_by(PAGE as usize) {
            image.read(at as usize, &mut found);
            if found[..8] == begin[..8] {
                let word = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().unwrap_or_default());
                if let Some(place) =
                    places.get_mut(word(8) as usize).and_then(|file| file.get_mut(word(16) as usize))
                {
                    *place = at;
                }
            }
        }
        match places.iter().flatten().any(|&place| place == u64::MAX) {
            true => Err(failed("a page of a file is nowhere on the image")),
            false => Ok(Self { image, options, places }),
        }
    }

    pub(super) fn files(&self) -> usize {
        self.places.len()
    }

    pub(super) fn file_bytes(&self, file: usize) -> u64 {
        self.places[file].len() as u64 * PAGE
    }

    /// The median extent of the scattered files.
    pub(super) fn extent_kib(&self) -> f64 {
        let mut lengths = Vec::new();
        for file in &self.places[1..] {
            let pieces = file.chunk_by(|before, after| before + PAGE == *after);
            lengths.extend(pieces.map(|piece| piece.len() as f64 * PAGE as f64 / 1024.0));
        }
        lengths.into_iter().collect::<crate::samples::Samples>().median()
    }

    /// The medium behind the buffer.
    pub(super) fn profile(&self) -> &MediaProfile {
        &self.options.profile
    }

    /// Bytes of the medium.
    pub(super) fn bytes(&self) -> u64 {
        self.image.len() as u64
    }

    /// Frames of the buffer.
    pub(super) fn frames(&self) -> usize {
        self.options.frames() as usize
    }

    /// Bytes of these.
    pub(super) fn frame_bytes(&self) -> u64 {
        self.frames() as u64 * self.options.profile.fill_bytes
    }

    /// The frames of some calls in their order, without those that follow themselves.
    pub(super) fn future(&self, calls: &[Call]) -> Vec<u64> {
        let pages = calls.iter().flat_map(|call| {
            let pages = call.offset / PAGE..(call.offset + call.bytes).div_ceil(PAGE);
            pages.map(move |page| (call.file, page))
        });
        let mut frames: Vec<u64> = pages
            .map(|(file, page)| self.places[file][page as usize] / self.options.profile.fill_bytes)
            .collect();
        frames.dedup();
        frames
    }

    /// Makes calls on a new mount of the image, with nothing in the buffer. `announced`: the program says what it will
    /// read, so many calls ahead, or at once that it reads in order.
    pub(super) fn read(
        &self,
        calls: &[Call],
        prefetch: Prefetch,
        announced: Option<Option<usize>>,
    ) -> Result<Outcome, LabError> {
        let memory = on(&self.image)?.buffered(&self.options).map_err(failed)?.prefetching(prefetch);
        let (files, memory) = mount(memory, false)?;
        let stats = || memory.buffer_stats().ok_or_else(|| failed("there is no buffer"));
        let opened: Result<Vec<_>, FsError> = (0..self.files())
            .map(|file| {
                let file = open(&files, file, OpenFlags::READ)?;
                // What says where the file lies is at hand, whoever knows it.
                file.seek(0, Whence::Data)?;
                if announced == Some(None) {
                    file.advise(Advice::Sequential, 0, 0)?;
                }
                Ok(file)
            })
            .collect();
        let opened = opened.map_err(failed)?;
        let before = stats()?;
        let ahead = announced.flatten();
        let say = |call: &Call| opened[call.file].advise(Advice::WillNeed, call.offset, call.bytes);
        if let Some(ahead) = ahead {
            calls.iter().take(ahead).try_for_each(say).map_err(failed)?;
        }
        let mut into = vec![0; calls.iter().map(|call| call.bytes).max().unwrap_or(0) as usize];
        for (number, call) in calls.iter().enumerate() {
            if let Some(next) = ahead.and_then(|ahead| calls.get(number + ahead)) {
                say(next).map_err(failed)?;
            }
            let read =
                opened[call.file].pread(&mut into[..call.bytes as usize], call.offset).map_err(failed)?;
            if read as u64 != call.bytes {
                return Err(failed("a read was short"));
            }
        }
        let after = stats()?;
        let part = |part: u64, all: u64| (all > 0).then(|| part as f64 * 100.0 / all as f64);
        let used = after.used_ahead - before.used_ahead;
        let came = after.fills_ahead - before.fills_ahead;
        Ok(Outcome {
            ns: after.now_ns - before.now_ns,
            ahead_percent: part(used, used + after.fills - before.fills),
            // What has come and is not used when all is read is used by nobody.
            wasted_percent: part(came.saturating_sub(used), came),
        })
    }
}

/// Writes a file in one piece, and others in pieces that the allocator finds one after another.
fn write(files: &FileSystem, bytes: u64, seed: u64) -> Result<(), FsError> {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let put = |file: &File, number: usize, pages: std::ops::Range<u64>| {
        let mut all = vec![1; ((pages.end - pages.start) * PAGE) as usize];
        let chunks = all.chunks_mut(PAGE as usize).zip(pages.clone());
        chunks.for_each(|(chunk, page)| chunk[..24].copy_from_slice(&stamp(seed, number, page)));
        let written = file.pwrite(&all, pages.start * PAGE)?;
        if written == all.len() { Ok(()) } else { Err(FsError::NoSpace) }
    };
    let whole = open(files, 0, flags)?;
    for page in (0..bytes / PAGE).step_by(256) {
        put(&whole, 0, page..(page + 256).min(bytes / PAGE))?;
    }
    whole.fsync()?;
    let mut dice = Dice::of(&[seed]);
    let mut pieces = Vec::new();
    let mut scattered = Vec::new();
    for number in 1..=SCATTERED as usize {
        let file = open(files, number, flags)?;
        file.truncate(bytes / SCATTERED)?;
        scattered.push(file);
        let mut page = 0;
        while page < bytes / SCATTERED / PAGE {
            let length = EXTENT_PAGES[0] + dice.roll(EXTENT_PAGES[1] - EXTENT_PAGES[0] + 1);
            let end = (page + length).min(bytes / SCATTERED / PAGE);
            pieces.push((number, page..end));
            page = end;
        }
    }
    for left in (1..pieces.len()).rev() {
        pieces.swap(left, dice.index(left + 1));
    }
    for (number, pages) in pieces {
        put(&scattered[number - 1], number, pages)?;
    }
    scattered.iter().try_for_each(|file| file.fsync())
}
