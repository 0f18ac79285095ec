//! What a mount says about files to memory behind a buffer, seen by what that brings ahead.

use crate::support::{Ground, memory, open};
use nvmed_flash::{FixedProfile, Medium, Profile, Rate};
use nvmed_fs::{Advice, Allocate, Credentials, File, FileSystem, FormatOptions, MountOptions, OpenFlags};
use nvmed_nvm::{
    BufferClock, BufferOptions, BufferStats, FlushTo, Hint, MediaProfile, MemoryOptions, Place, Prefetch,
};
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

const BYTES: u64 = 16 << 20;
const PAGE: u64 = 4096;
/// Bytes of each file, and of each of its pieces.
const FILE_BYTES: u64 = 1 << 20;
const PIECE_BYTES: u64 = 64 << 10;

/// An image with files that lie between each other.
fn image() -> Arc<Mapping> {
    let image = Arc::new(Mapping::anonymous(BYTES as usize, Pages::Base).expect("memory"));
    let ground = Ground::Medium(Arc::new(on(&image)));
    let root = FormatOptions { uid: 0, gid: 0, ..FormatOptions::default() };
    FileSystem::format(&ground.device(), &root).expect("the medium formats");
    let files = ground.mount(1 << 20);
    let both = ["one", "other"].map(|name| open(&files, name));
    both.iter().for_each(|file| file.truncate(FILE_BYTES).expect("a size"));
    // From the back to the front, by turns: no piece follows the one before it.
    for piece in (0..FILE_BYTES / PIECE_BYTES).rev() {
        for file in &both {
            let bytes = vec![piece as u8 + 1; PIECE_BYTES as usize];
            file.pwrite(&bytes, piece * PIECE_BYTES).expect("bytes");
        }
    }
    drop(both);
    files.unmount().expect("it unmounts");
    image
}

fn on(image: &Arc<Mapping>) -> nvmed_nvm::Memory {
    let place = Place::Mapped { memory: Arc::clone(image) };
    nvmed_nvm::Memory::open(MemoryOptions { place, flush: FlushTo::Process }).expect("memory")
}

/// A mount of an image with nothing in the buffer.
struct Cold {
    medium: Arc<nvmed_nvm::Memory>,
    files: FileSystem,
}

impl Cold {
    fn new(image: &Arc<Mapping>, prefetch: Prefetch) -> Self {
        let link = Rate { bytes: 4096, ns: 1000 };
        let fixed = FixedProfile { read_ns: 50_000, write_ns: 10_000, link };
        let profile = MediaProfile {
            medium: Profile { commands: 256, medium: Medium::Fixed(fixed) },
            program_bytes: 64,
            fill_bytes: 4096,
            log_percent: 0,
            kept: true,
        };
        let options = BufferOptions { profile, bytes: 4 << 20, clock: BufferClock::Virtual };
        let medium = Arc::new(on(image).buffered(&options).expect("a buffer").prefetching(prefetch));
        let parts = Ground::Medium(Arc::clone(&medium)).parts(memory(1 << 20), MountOptions::default());
        Self { files: FileSystem::mount(parts).expect("it mounts"), medium }
    }

    /// What is done meanwhile: fills that were waited for, and what came, was used, and left.
    fn while_it(&self, does: impl FnOnce()) -> BufferStats {
        let before = self.medium.buffer_stats().expect("a buffer");
        does();
        let now = self.medium.buffer_stats().expect("a buffer");
        let mut stats = now;
        stats.fills -= before.fills;
        stats.fills_ahead -= before.fills_ahead;
        stats.used_ahead -= before.used_ahead;
        stats.waited_ns -= before.waited_ns;
        stats.evictions -= before.evictions;
        stats
    }
}

fn read(file: &File, pages: impl Iterator<Item = u64>) {
    for page in pages {
        let mut bytes = [0; PAGE as usize];
        assert_eq!(file.pread(&mut bytes, page * PAGE).expect("bytes"), bytes.len());
        assert!(bytes == [(page * PAGE / PIECE_BYTES) as u8 + 1; PAGE as usize], "page {page}");
    }
}

const PAGES: u64 = FILE_BYTES / PAGE;

/// Who reads a file in order waits seldom, wherever it lies; where nobody listens, for each page.
#[test]
fn a_file_that_is_opened_is_read_ahead_over_its_extents() {
    let image = image();
    for (prefetch, ahead, least) in [(Prefetch::Hints, true, 250), (Prefetch::Off, false, 0)] {
        let cold = Cold::new(&image, prefetch);
        let file = open(&cold.files, "one");
        let done = cold.while_it(|| read(&file, 0..PAGES));
        assert_eq!(done.fills_ahead > 0, ahead, "{done:?}");
        assert!(done.used_ahead >= least && done.fills + done.used_ahead >= PAGES, "{done:?}");
        assert!(done.fills_ahead - done.used_ahead <= PAGES / 50, "{done:?}");
    }
}

/// What a program says is passed on, and what it says last counts.
#[test]
fn what_programs_say_reaches_the_buffer() {
    let image = image();
    let cold = Cold::new(&image, Prefetch::Hints);
    let file = open(&cold.files, "one");
    file.advise(Advice::Random, 0, 0).expect("advice");
    assert_eq!(cold.while_it(|| read(&file, 0..32)).fills_ahead, 0, "at random");
    file.advise(Advice::Normal, 0, 0).expect("advice");
    assert!(cold.while_it(|| read(&file, 32..64)).fills_ahead > 16, "in order, as can be seen");
    let needed = cold.while_it(|| file.advise(Advice::WillNeed, 128 * PAGE, 40 * PAGE).expect("advice"));
    assert_eq!((needed.fills_ahead, needed.fills), (40, 0), "it comes before it is read");
    assert_eq!(cold.while_it(|| read(&file, 128..168)).fills, 0);
    let gone = cold.while_it(|| file.advise(Advice::DontNeed, 0, 0).expect("advice"));
    assert!(gone.evictions > 100, "{gone:?}");
    assert_eq!(cold.while_it(|| read(&file, 128..129)).fills, 1, "it is gone");
    let other = open(&cold.files, "other");
    other.advise(Advice::Sequential, 0, 0).expect("advice");
    // In the middle, where nobody has seen order yet.
    assert!(cold.while_it(|| read(&other, 100..101)).fills_ahead > 100);
}

/// Blocks that a file has lost are another's, who is told of at his next open; what is read is right all the time.
#[test]
fn blocks_that_go_are_forgotten() {
    let image = image();
    let cold = Cold::new(&image, Prefetch::Hints);
    let file = open(&cold.files, "one");
    read(&file, 0..64);
    let punch = Allocate { keep_size: true, punch_hole: true, zero_range: false };
    file.fallocate(punch, 0, FILE_BYTES / 2).expect("a hole");
    file.truncate(FILE_BYTES * 3 / 4).expect("a cut");
    let new = open(&cold.files, "new");
    (0..PAGES).for_each(|page| {
        let byte = (page * PAGE / PIECE_BYTES) as u8 + 1;
        new.pwrite(&[byte; PAGE as usize], page * PAGE).expect("bytes");
    });
    new.fsync().expect("a sync");
    read(&new, (0..PAGES).rev());
    read(&open(&cold.files, "new"), 0..PAGES);
    read(&file, PAGES / 2..PAGES * 3 / 4);
    read(&open(&cold.files, "one"), PAGES / 2..PAGES * 3 / 4);
    let mut hole = [1; PAGE as usize];
    file.pread(&mut hole, 0).expect("bytes");
    assert_eq!(hole, [0; PAGE as usize]);
}

/// Files of a directory that are read in its order come ahead; others do not.
#[test]
fn files_that_follow_in_a_directory_come_ahead() {
    const FILES: u64 = 40;
    let image = Arc::new(Mapping::anonymous(BYTES as usize, Pages::Base).expect("memory"));
    let ground = Ground::Medium(Arc::new(on(&image)));
    let root = FormatOptions { uid: 0, gid: 0, ..FormatOptions::default() };
    FileSystem::format(&ground.device(), &root).expect("the medium formats");
    let files = ground.mount(1 << 20);
    // None lies where the one before it ends.
    for file in (0..FILES).map(|file| file * 17 % FILES) {
        let bytes = [1; 3 * PAGE as usize];
        open(&files, &format!("{file:02}")).pwrite(&bytes, 0).expect("bytes");
    }
    files.mkdir(&files.root(), b"08a", 0o755, &Credentials::ROOT).expect("a directory among them");
    files.unmount().expect("it unmounts");
    let read_all = |cold: &Cold, order: &mut dyn Iterator<Item = u64>| {
        cold.while_it(|| {
            for file in order {
                read(&open(&cold.files, &format!("{file:02}")), 0..3);
                // As who walks a tree does.
                let flags = OpenFlags::READ.with(OpenFlags::DIRECTORY);
                cold.files.open(&cold.files.root(), b"08a", flags, 0, &Credentials::ROOT).expect("it opens");
            }
        })
    };
    let cold = Cold::new(&image, Prefetch::Hints);
    let done = read_all(&cold, &mut (0..FILES));
    assert!(done.fills <= 4 && done.used_ahead >= 3 * (FILES - 2), "in order: {done:?}");
    assert_eq!(done.fills_ahead, done.used_ahead, "nothing for nobody");
    let told_ns = done.waited_ns;
    let cold = Cold::new(&image, Prefetch::Hints);
    let done = read_all(&cold, &mut (0..FILES).rev());
    assert!(done.used_ahead <= 2 * FILES && done.fills >= FILES, "backwards: {done:?}");
    let cold = Cold::new(&image, Prefetch::Device);
    let done = read_all(&cold, &mut (0..FILES));
    assert!(done.waited_ns > 2 * told_ns, "nobody is told: {done:?}, where who is told waits {told_ns} ns");
}

/// Who has a file open while it grows is read ahead for as who opens it then.
#[test]
fn a_file_that_has_grown_since_it_was_opened_is_read_ahead() {
    let cold = Cold::new(&image(), Prefetch::Hints);
    let both = ["grows", "beside"].map(|name| {
        open(&cold.files, name);
        open(&cold.files, name)
    });
    for page in 0..PAGES {
        for file in &both {
            let byte = (page * PAGE / PIECE_BYTES) as u8 + 1;
            file.pwrite(&[byte; PAGE as usize], page * PAGE).expect("bytes");
        }
    }
    cold.medium.advise(0, BYTES, Hint::DontNeed).expect("advice");
    // From the middle on, over pieces of both. What it got last need not be known: less than an eighth.
    let done = cold.while_it(|| read(&both[0], 64..PAGES));
    assert!(done.used_ahead > 180 && done.fills_ahead - done.used_ahead < PAGES / 8, "{done:?}");
    let needed = cold.while_it(|| both[1].advise(Advice::WillNeed, 250 * PAGE, 6 * PAGE).expect("advice"));
    assert_eq!((needed.fills_ahead, needed.fills), (6, 0), "the end of the file is known");
}
