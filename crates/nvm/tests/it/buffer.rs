//! Buffers in front of slow media: the same bytes whatever comes and leaves, what a fence promises, pins, time, wear.

use crate::{Scratch, alone, file};
use nvmed_dice::Dice;
use nvmed_flash::{ArrayProfile, BlockKind, FixedProfile, Medium, Profile, Rate, TranslationProfile};
use nvmed_nvm::{
    BufferClock, BufferOptions, BufferStats, Extent, FlushTo, Hint, HintError, MediaProfile, Memory,
    MemoryOptions, Place, Prefetch, Record, What,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

pub(crate) const BYTES: u64 = 1 << 20;
pub(crate) const PAGE: u64 = 4096;

/// A medium with a read of 1 µs and a program of 10, 4 KiB/µs.
pub(crate) fn options(buffer: u64, fill_bytes: u64, log_percent: u32, kept: bool) -> BufferOptions {
    let link = Rate { bytes: 4096, ns: 1000 };
    let medium = Profile {
        commands: 64,
        medium: Medium::Fixed(FixedProfile { read_ns: 1000, write_ns: 10_000, link }),
    };
    let profile = MediaProfile { medium, program_bytes: 64, fill_bytes, log_percent, kept };
    BufferOptions { profile, bytes: buffer, clock: BufferClock::Virtual }
}

pub(crate) fn buffered(options: &BufferOptions) -> Memory {
    let place = Place::Ram { bytes: BYTES };
    let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process }).expect("memory");
    memory.buffered(options).expect("a buffer")
}

pub(crate) fn stats(memory: &Memory) -> BufferStats {
    memory.buffer_stats().expect("a buffer")
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes).expect("bytes");
    bytes
}

/// A step of a workload, made to a plain copy too.
pub(crate) fn step(memory: &Memory, plain: &mut [u8], dice: &mut Dice) {
    let at = dice.roll(BYTES - 20_000);
    let len = if dice.chance(50) { dice.index(300) } else { dice.index(20_000) };
    let range = at as usize..at as usize + len;
    match dice.roll(12) {
        0 => memory.fence().expect("a fence"),
        1 => memory.settle(),
        2 => {
            memory.zero(at, len as u64, dice.chance(50)).expect("zeroes");
            plain[range].fill(0);
        }
        3 => {
            let word = dice.next();
            memory.store_u64(at & !7, word).expect("a word");
            plain[(at & !7) as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
        4 => {
            let hint =
                [Hint::WillNeed, Hint::Sequential, Hint::Random, Hint::DontNeed, Hint::Normal][dice.index(5)];
            memory.advise(at, len as u64, hint).expect("a hint");
        }
        5 | 6 => {
            let mut found = vec![0; len];
            memory.read(at, &mut found).expect("bytes");
            assert!(found == plain[range], "{len} bytes at {at}");
        }
        _ => {
            let mut bytes = vec![0; len];
            dice.fill(&mut bytes);
            memory.store(at, &bytes).expect("bytes");
            plain[range].copy_from_slice(&bytes);
        }
    }
}

/// Whatever is brought, evicted, written home, discarded and hinted at: the bytes are those of a plain copy, and after
/// the last fence the file has them without a buffer.
#[test]
fn the_bytes_are_those_of_a_medium_without_a_buffer() {
    for (seed, buffer, fill, log, kept) in [
        (0, 128 << 10, 4096, 30, false),
        (1, 64 << 10, 4096, 75, true),
        (2, 64 << 10, 4096, 0, false),
        (3, 256 << 10, 32_768, 50, false),
        (4, 16_384, 16_384, 0, true),
        (5, 2 << 20, 4096, 10, true),
    ] {
        let scratch = Scratch::new();
        let memory = Memory::open(file(&scratch.image(), Some(BYTES), FlushTo::Process)).expect("a file");
        let mut options = options(buffer, fill, log, kept);
        // A medium that does few things at once: what comes ahead is met while somebody waits for room.
        options.profile.medium.commands = 1 << seed;
        let memory = memory.buffered(&options).expect("a buffer");
        let (mut plain, mut dice) = (vec![0; BYTES as usize], Dice::of(&[seed]));
        for _ in 0..1500 {
            step(&memory, &mut plain, &mut dice);
        }
        assert!(contents(&memory) == plain, "seed {seed}");
        assert_eq!(stats(&memory).evictions > 100, buffer < BYTES, "seed {seed}: {:?}", stats(&memory));
        memory.fence().expect("a fence");
        drop(memory);
        assert!(std::fs::read(scratch.image()).expect("the file") == plain, "seed {seed}");
    }
}

/// Data, a fence, and what points to it, again and again, in a buffer so small that what points leaves it at once:
/// after a cut at any event, what points on the medium points to what is there, and all that a fence covers is there.
#[test]
fn what_is_written_home_is_in_the_order_of_fences() {
    let _alone = alone();
    for kept in [false, true] {
        let memory = buffered(&options(8192, 4096, 0, kept));
        let record = Record::new();
        memory.record(Arc::clone(&record));
        for turn in 1..60_u64 {
            memory.store(turn * PAGE + 100, &[turn as u8; 200]).expect("bytes");
            memory.fence().expect("a fence");
            memory.store_u64(8 * turn, turn).expect("a word");
            // What points leaves the buffer before any fence.
            memory.read((100 + turn) * PAGE, &mut [0; 8192]).expect("bytes");
            memory.read((110 + turn) * PAGE, &mut [0; 8192]).expect("bytes");
        }
        memory.fence().expect("a fence");
        if !cfg!(debug_assertions) {
            return;
        }
        let (mut home, mut fenced, mut pointed) = (vec![0_u8; BYTES as usize], 0, 0);
        for event in record.take() {
            match event.what {
                What::WrittenHome { at, bytes } => home[at as usize..][..bytes.len()].copy_from_slice(&bytes),
                What::FenceDone { .. } => {
                    fenced += 1;
                    let last = fenced.min(59);
                    let data = &home[(last * PAGE + 100) as usize..][..200];
                    assert!(data.iter().all(|&byte| byte == last as u8), "fence {fenced}");
                    let word = home[8 * (fenced as usize - 1)..][..8].try_into().expect("a word");
                    assert_eq!(u64::from_le_bytes(word), fenced - 1, "fence {fenced}");
                }
                _ => {}
            }
            for turn in 1..60_u64 {
                if home[8 * turn as usize] == turn as u8 {
                    pointed += u64::from(turn > fenced.saturating_sub(1));
                    let data = &home[(turn * PAGE + 100) as usize..][..200];
                    assert!(
                        data.iter().all(|&byte| byte == turn as u8),
                        "a word points to what is not there"
                    );
                }
            }
        }
        assert_eq!(fenced, 60);
        assert!(pointed > 50, "a word was home before its fence {pointed} times");
    }
}

/// The death of a process is no cut of power: what was settled is in the file, though no fence was made.
#[test]
fn what_was_settled_outlives_the_process() {
    let _alone = alone();
    let scratch = Scratch::new();
    for kept in [false, true] {
        let memory = Memory::open(file(&scratch.image(), Some(BYTES), FlushTo::Process)).expect("a file");
        let memory = memory.buffered(&options(64 << 10, 4096, 0, kept)).expect("a buffer");
        memory.store(5000, &[7 + u8::from(kept); 8192]).expect("bytes");
        memory.settle();
        assert!(
            std::fs::read(scratch.image()).expect("the file")[5000..13_192] == [7 + u8::from(kept); 8192]
        );
        assert_eq!(stats(&memory).programs, 0);
        memory.fence().expect("a fence");
        assert_eq!(stats(&memory).programs, if kept { 0 } else { 3 }, "pages");
    }
}

/// Memory that is pinned stays where it is, whatever else comes; one that would pin more than half is refused; and who
/// discards it waits.
#[test]
fn what_is_pinned_neither_leaves_nor_is_discarded() {
    let memory = Arc::new(buffered(&options(64 << 10, 4096, 0, true)));
    memory.store(5000, &[7; 8192]).expect("bytes");
    let pinned = memory.pin(5000, 8192).expect("a pin");
    let look = |byte: u8| {
        let (bytes, at) = pinned.memory();
        let mut found = [0; 8192];
        bytes.read(at, &mut found);
        assert!(found == [byte; 8192]);
    };
    for page in 0..BYTES / PAGE {
        memory.read(page * PAGE, &mut [0; 64]).expect("bytes");
    }
    assert!(stats(&memory).evictions > 200);
    memory.advise(0, BYTES, Hint::DontNeed).expect("a hint");
    look(7);
    assert!(memory.pin(BYTES / 2, 5 * 4096).is_ok(), "8 of 16 frames");
    assert!(memory.pin(BYTES / 2, 6 * 4096).is_err(), "9 of 16 frames");
    let (told, begun) = mpsc::channel();
    let done = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let (memory, done) = (Arc::clone(&memory), Arc::clone(&done));
        move || {
            told.send(()).expect("somebody listens");
            memory.zero(0, 64 << 10, true).expect("zeroes");
            done.store(true, Ordering::SeqCst);
        }
    });
    begun.recv().expect("it begins");
    for _ in 0..2000 {
        look(7);
        std::thread::yield_now();
    }
    assert!(!done.load(Ordering::SeqCst), "a discard has not waited");
    drop(pinned);
    other.join().expect("the discard");
    let mut found = [1; 8192];
    memory.read(5000, &mut found).expect("bytes");
    assert!(found == [0; 8192]);
}

/// Threads that store, read and check what is theirs while others fence and hint, in a buffer with too few frames.
#[test]
fn threads_find_what_they_stored() {
    let memory = buffered(&options(32_768, 4096, 50, true));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let memory = &memory;
                scope.spawn(move || {
                    let mut dice = Dice::of(&[thread]);
                    let mut mine = vec![0_u8; (BYTES / 4) as usize];
                    for turn in 0..1500 {
                        // Every fourth line: neighbours are in the same pages.
                        let line = dice.roll(BYTES / 256);
                        let at = line * 256 + thread * 64;
                        let mut found = [0; 64];
                        memory.read(at, &mut found).expect("bytes");
                        let known = &mut mine[line as usize * 64..][..64];
                        assert!(found == *known, "thread {thread}, turn {turn}");
                        known.fill(turn as u8);
                        memory.store(at, known).expect("bytes");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut dice = Dice::of(&[9]);
            while !over.load(Ordering::SeqCst) {
                memory.fence().expect("a fence");
                memory.advise(dice.roll(BYTES), 50_000, Hint::WillNeed).expect("a hint");
                memory.advise(dice.roll(BYTES), 50_000, Hint::DontNeed).expect("a hint");
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok));
    });
}

/// Reads all of it from the front to the back, 4 KiB at a time.
fn read_through(hint: Option<Hint>) -> BufferStats {
    let memory = buffered(&options(128 << 10, 4096, 0, true));
    let memory = memory.prefetching(if hint.is_some() { Prefetch::Hints } else { Prefetch::Off });
    if let Some(hint) = hint {
        memory.advise(0, BYTES, hint).expect("a hint");
    }
    (0..BYTES / PAGE).for_each(|page| memory.read(page * PAGE, &mut [0; 4096]).expect("bytes"));
    stats(&memory)
}

/// Time is the model's and depends on the calls alone; a hint that is right saves most of it, and is counted.
#[test]
fn a_right_hint_saves_time_and_a_virtual_clock_repeats() {
    let pages = BYTES / PAGE;
    let plain = read_through(None);
    assert_eq!(plain, read_through(None));
    assert_eq!((plain.fills, plain.fills_ahead), (pages, 0));
    // A microsecond of the link and one of the cells, one after the other.
    assert_eq!(plain.now_ns, pages * 2000);
    assert_eq!(read_through(Some(Hint::Random)), plain);
    for hint in [Hint::Sequential, Hint::WillNeed] {
        let hinted = read_through(Some(hint));
        assert_eq!(hinted, read_through(Some(hint)));
        assert_eq!(hinted.fills + hinted.fills_ahead, pages, "{hint:?}: {hinted:?}");
        assert_eq!((hinted.used_ahead, hinted.wasted_ahead), (hinted.fills_ahead, 0), "{hint:?}: {hinted:?}");
        assert!(hinted.used_ahead > pages * 9 / 10, "{hint:?}: {hinted:?}");
        // What is left is the link's time.
        assert!(hinted.now_ns < pages * 1050, "{hint:?}: {hinted:?}");
    }
    let memory = buffered(&options(128 << 10, 4096, 0, true));
    memory.advise(BYTES / 2, BYTES, Hint::WillNeed).expect("beyond the end");
    // From the back to the front: not in order.
    (0..64).rev().for_each(|page| memory.read(page * PAGE, &mut [0; 4096]).expect("bytes"));
    let wrong = stats(&memory);
    assert_eq!((wrong.fills, wrong.fills_ahead, wrong.used_ahead), (64, 30, 0), "{wrong:?}");
    assert_eq!(wrong.wasted_ahead, 30, "{wrong:?}");
}

/// Records that begin and end within frames, read in an order that is said some records ahead: whatever of a frame was
/// read for one record, it is there when the next one needs the rest.
#[test]
fn what_was_said_to_be_needed_stays_until_it_is_read() {
    const RECORD: u64 = 10_000;
    const AHEAD: usize = 6;
    let memory = buffered(&options(128 << 10, 4096, 0, true));
    let mut records: Vec<u64> = (0..BYTES / RECORD).collect();
    let mut dice = Dice::of(&[3]);
    (1..records.len()).rev().for_each(|left| records.swap(left, dice.index(left + 1)));
    let say = |record: &u64| memory.advise(record * RECORD, RECORD, Hint::WillNeed).expect("a hint");
    records.iter().take(AHEAD).for_each(say);
    for (number, record) in records.iter().enumerate() {
        records.iter().skip(number + AHEAD).take(1).for_each(say);
        memory.read(record * RECORD, &mut [0; RECORD as usize]).expect("bytes");
    }
    let stats = stats(&memory);
    assert_eq!((stats.fills, stats.wasted_ahead), (0, 0), "{stats:?}");
    // Of three or four frames a record, the first and the last may come twice.
    assert!(stats.fills_ahead < records.len() as u64 * 7 / 2, "{stats:?}");
}

/// Who reads something waits for a part of what others have said they need, not for all of it.
#[test]
fn who_waits_does_not_wait_for_all_that_comes_ahead() {
    let bytes = 8 << 20;
    let place = Place::Ram { bytes };
    let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process }).expect("memory");
    // A fill takes the link 16 us.
    let memory = memory.buffered(&options(bytes, 64 << 10, 0, true)).expect("a buffer");
    memory.advise(0, 7 << 20, Hint::WillNeed).expect("a hint");
    memory.read(bytes - PAGE, &mut [0; 4096]).expect("bytes");
    let waited = stats(&memory);
    assert!(waited.now_ns < 20 * 16_000, "{waited:?}");
    for page in 0..(7 << 20) / PAGE {
        memory.read(page * PAGE, &mut [0; 4096]).expect("bytes");
    }
    let all = stats(&memory);
    assert_eq!((all.fills, all.fills_ahead, all.used_ahead), (1, 112, 112), "{all:?}");
    assert!(all.now_ns < 114 * 16_000, "{all:?}");
}

/// 16 MiB behind a buffer of 8, in frames of 64 KiB: 16 are under way ahead, others wait in line.
fn in_line() -> Memory {
    let place = Place::Ram { bytes: 16 << 20 };
    let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process }).expect("memory");
    memory.buffered(&options(8 << 20, 64 << 10, 0, true)).expect("a buffer")
}

/// What was announced and waits in line does not come where it is not needed, is nowhere any more, or is zeroes.
#[test]
fn what_waits_in_line_is_taken_back() {
    const TOLD: u64 = 7 << 20;
    let all = Extent { position: 0, at: 0, bytes: TOLD };
    for way in ["a range", "bytes of an object", "an object", "zeroes"] {
        let memory = in_line();
        memory.object(7, &[all]).expect("an object");
        if way == "a range" {
            memory.advise(0, TOLD, Hint::WillNeed).expect("a hint");
        } else {
            memory.advise_object(7, 0, TOLD, Hint::WillNeed).expect("a hint");
        }
        assert_eq!(stats(&memory).fills_ahead, 16, "{way}");
        match way {
            "a range" => memory.advise(0, TOLD, Hint::DontNeed).expect("a hint"),
            "bytes of an object" => memory.advise_object(7, 0, TOLD, Hint::DontNeed).expect("a hint"),
            "an object" => memory.forget_object(7),
            _ => memory.zero(0, TOLD, true).expect("zeroes"),
        }
        // What is announced then comes next.
        memory.advise(8 << 20, TOLD, Hint::WillNeed).expect("a hint");
        (0..112).for_each(|frame| memory.read((8 << 20) + (frame << 16), &mut [0; 4096]).expect("bytes"));
        let done = stats(&memory);
        assert_eq!((done.fills, done.fills_ahead, done.used_ahead), (0, 16 + 112, 112), "{way}: {done:?}");
        assert!(done.now_ns < (16 + 114) * 16_000, "{way}: {done:?}");
    }
}

/// What one does not need any more comes for another one who has announced it.
#[test]
fn what_others_need_stays_in_line() {
    let read = |memory: &Memory, frames: std::ops::Range<u64>| {
        frames.for_each(|frame| memory.read((frame << 16) + (40 << 10), &mut [0; 4096]).expect("bytes"));
        let done = stats(memory);
        (done.fills, done.fills_ahead, done.used_ahead)
    };
    let memory = in_line();
    let half = (2 << 20) + (32 << 10);
    memory.advise(0, half, Hint::WillNeed).expect("a hint");
    memory.advise(half, 2 << 20, Hint::WillNeed).expect("a hint");
    memory.advise(0, half, Hint::DontNeed).expect("a hint");
    assert_eq!(read(&memory, 32..64), (0, 16 + 33, 32), "both have a part of the first frame");
    let memory = in_line();
    let extent = |at, bytes| Extent { position: 0, at, bytes };
    memory.object(7, &[extent(0, 4 << 20)]).expect("an object");
    memory.advise_object(7, 0, u64::MAX, Hint::WillNeed).expect("a hint");
    memory.object(8, &[extent(2 << 20, 2 << 20)]).expect("an object");
    memory.advise_object(8, 0, u64::MAX, Hint::WillNeed).expect("a hint");
    memory.forget_object(7);
    assert_eq!(read(&memory, 32..64), (0, 16 + 32, 32), "another object has the place by then");
}

/// Readers by turns, each in order: without a hint, frames come ahead of each as far as it has come.
#[test]
fn who_reads_in_order_is_seen_by_address() {
    let read = |prefetch: Prefetch| {
        let memory = buffered(&options(256 << 10, 4096, 0, true)).prefetching(prefetch);
        for page in 0..BYTES / PAGE / 4 {
            (0..4).for_each(|reader| {
                let at = reader * BYTES / 4 + page * PAGE;
                memory.read(at, &mut [0; 4096]).expect("bytes");
            });
        }
        stats(&memory)
    };
    let (off, device) = (read(Prefetch::Off), read(Prefetch::Device));
    assert_eq!((off.fills, off.fills_ahead, off.waited_ns), (BYTES / PAGE, 0, off.now_ns));
    assert!(device.used_ahead > BYTES / PAGE * 95 / 100 && device.wasted_ahead == 0, "{device:?}");
    assert!(device.now_ns < off.now_ns * 6 / 10, "{device:?} beside {off:?}");
    // At random, little comes: what follows by chance.
    let memory = buffered(&options(128 << 10, 4096, 0, true));
    let mut dice = Dice::of(&[3]);
    (0..2000).for_each(|_| memory.read(dice.roll(BYTES / PAGE / 2) * 2 * PAGE, &mut [0; 64]).expect("bytes"));
    assert_eq!(stats(&memory).fills_ahead, 0, "every second page: none follows another");
}

/// Who stores in order is no reader: nothing comes ahead of him, unless somebody has said so, nor of who reads what he
/// has just stored to.
#[test]
fn what_is_stored_to_has_nothing_come_ahead() {
    let store = |prefetch: Prefetch, object: bool| {
        let memory = buffered(&options(256 << 10, 16384, 0, true)).prefetching(prefetch);
        if object {
            memory.object(7, &[Extent { position: 0, at: 0, bytes: BYTES }]).expect("an object");
        }
        for page in 0..BYTES / PAGE {
            memory.store(page * PAGE, &[1; 512]).expect("room");
        }
        stats(&memory)
    };
    let off = store(Prefetch::Off, false);
    assert_eq!((off.fills, off.fills_ahead), (BYTES / 16384, 0));
    assert_eq!(store(Prefetch::Device, false), off);
    assert_eq!(store(Prefetch::Hints, true), off);
    let memory = buffered(&options(256 << 10, 16384, 0, true));
    memory.advise(0, BYTES, Hint::Sequential).expect("a hint");
    (0..BYTES / PAGE).for_each(|page| memory.store(page * PAGE, &[1; 512]).expect("room"));
    let told = stats(&memory);
    assert!(told.used_ahead > BYTES / 16384 * 9 / 10, "{told:?}");
}

/// The extents of an object of 64 pages, which lie from the back to the front of the medium, three pages each.
fn backwards() -> Vec<Extent> {
    let extent = |number: u64| Extent {
        position: number * 3 * PAGE,
        at: BYTES - (number + 1) * 5 * PAGE,
        bytes: 3 * PAGE,
    };
    (0..21).map(extent).collect()
}

/// Who reads an object has its frames come in its order, wherever they lie; the device alone sees no order in that.
#[test]
fn an_object_is_read_ahead_in_its_own_order() {
    let read = |prefetch: Prefetch, hint: Option<Hint>| {
        let memory = buffered(&options(128 << 10, 4096, 0, true)).prefetching(prefetch);
        memory.object(7, &backwards()).expect("an object");
        if let Some(hint) = hint {
            memory.advise_object(7, 0, u64::MAX, hint).expect("a hint");
        }
        for extent in backwards() {
            let pages = extent.at / PAGE..(extent.at + extent.bytes) / PAGE;
            pages.for_each(|page| memory.read(page * PAGE, &mut [0; 4096]).expect("bytes"));
        }
        stats(&memory)
    };
    let off = read(Prefetch::Off, Some(Hint::WillNeed));
    assert_eq!((off.fills, off.fills_ahead), (63, 0));
    let device = read(Prefetch::Device, Some(Hint::WillNeed));
    assert!(device.wasted_ahead + 40 > device.used_ahead && device.fills > 40, "{device:?}");
    for hint in [None, Some(Hint::Normal), Some(Hint::Sequential), Some(Hint::WillNeed)] {
        let known = read(Prefetch::Hints, hint);
        assert_eq!(known.wasted_ahead, 0, "{hint:?}: {known:?}");
        assert_eq!(known.fills, u64::from(hint != Some(Hint::WillNeed)), "{hint:?}: {known:?}");
        assert!(known.now_ns < 63 * 1100, "{hint:?}: {known:?}");
    }
    assert_eq!(read(Prefetch::Hints, Some(Hint::Random)).fills_ahead, 0);
}

/// What a hint may say, and what is answered to one that makes no sense.
#[test]
fn hints_for_what_is_not_there_are_told() {
    let memory = buffered(&options(128 << 10, 4096, 0, true));
    let unknown = memory.advise_object(7, 0, 1, Hint::WillNeed).expect_err("a foreign object");
    assert_eq!((unknown, unknown.errno().raw_os_error()), (HintError::Unknown { object: 7 }, libc::ENOENT));
    let bad = |extents: &[Extent]| memory.object(7, extents).expect_err("no sense").errno().raw_os_error();
    let extent = |position, at, bytes| Extent { position, at, bytes };
    assert_eq!(bad(&[extent(0, BYTES - PAGE, PAGE + 1)]), libc::EINVAL, "beyond the end");
    assert_eq!(bad(&[extent(0, u64::MAX, 2)]), libc::EINVAL);
    assert_eq!(bad(&[extent(0, 0, 0)]), libc::EINVAL, "empty");
    assert_eq!(bad(&[extent(u64::MAX, 0, 2)]), libc::EINVAL);
    assert_eq!(bad(&[extent(PAGE, 0, PAGE), extent(PAGE, PAGE, PAGE)]), libc::EINVAL, "not behind the first");
    memory.object(7, &[extent(0, 0, PAGE)]).expect("an object");
    memory.advise_object(7, PAGE, u64::MAX, Hint::WillNeed).expect("beyond its end");
    assert_eq!(stats(&memory).fills_ahead, 0);
    memory.advise_object(7, 0, 1, Hint::WillNeed).expect("a hint");
    assert_eq!(stats(&memory).fills_ahead, 1);
    memory.forget_object(7);
    assert!(memory.advise_object(7, 0, 1, Hint::WillNeed).is_err());
    // Nobody listens: nothing is known, and nothing is refused.
    let memory = memory.prefetching(Prefetch::Device);
    assert!(!memory.takes_hints() && memory.advise_object(7, 0, 1, Hint::WillNeed).is_ok());
}

/// What an object has leaves without what others have in the same frames.
#[test]
fn an_object_that_is_not_needed_leaves_others_their_frames() {
    let memory = buffered(&options(256 << 10, 16_384, 0, true));
    let extent = Extent { position: 0, at: 2 * PAGE, bytes: 8 * PAGE };
    memory.object(7, &[extent]).expect("an object");
    memory.read(0, &mut [0; 12 * PAGE as usize]).expect("bytes");
    memory.advise_object(7, 0, u64::MAX, Hint::DontNeed).expect("a hint");
    assert_eq!((stats(&memory).fills, stats(&memory).evictions), (3, 1));
    // A part of a frame right before whole ones hides none of these.
    let memory = buffered(&options(256 << 10, 16_384, 0, true));
    let extent = |position: u64, at: u64, pages: u64| Extent { position, at, bytes: pages * PAGE };
    memory.object(7, &[extent(0, 4 * PAGE, 8), extent(8 * PAGE, 3 * PAGE, 1)]).expect("an object");
    memory.read(0, &mut [0; 12 * PAGE as usize]).expect("bytes");
    memory.advise_object(7, 0, u64::MAX, Hint::DontNeed).expect("a hint");
    assert_eq!((stats(&memory).fills, stats(&memory).evictions), (3, 2));
}

/// What came in vain leaves in time: it does not keep for good what comes ahead of readers from coming.
#[test]
fn what_came_in_vain_does_not_stop_what_is_read() {
    let memory = buffered(&options(128 << 10, 4096, 0, true));
    memory.advise(BYTES / 2, BYTES / 2, Hint::WillNeed).expect("a wrong hint");
    (0..BYTES / PAGE / 2).for_each(|page| memory.read(page * PAGE, &mut [0; 4096]).expect("bytes"));
    let done = stats(&memory);
    assert!(done.wasted_ahead >= 16 && done.used_ahead >= BYTES / PAGE / 4, "{done:?}");
}

/// A request waits once for all of its frames, whatever may come ahead of it.
#[test]
fn the_frames_of_a_request_come_together() {
    let memory = buffered(&options(128 << 10, 4096, 0, true)).prefetching(Prefetch::Off);
    memory.read(0, &mut [0; 8 * PAGE as usize]).expect("bytes");
    let done = stats(&memory);
    assert_eq!((done.fills, done.fills_ahead, done.now_ns), (8, 0, 8000 + 1000));
}

/// An image that has bytes is read as slowly as the cells are, though nothing of it was written since it was opened.
#[test]
fn what_lies_on_a_drive_is_in_its_cells() {
    let scratch = Scratch::new();
    let filled = [7; 8 * PAGE as usize];
    let image = std::fs::File::create(scratch.image()).expect("a file");
    image.set_len(BYTES).expect("a size");
    std::os::unix::fs::FileExt::write_all_at(&image, &filled, BYTES / 2).expect("bytes");
    drop(image);
    let blocks = vec![BlockKind { per_plane: 32, ..BlockKind::default() }];
    let translation = Some(TranslationProfile::default());
    let array = ArrayProfile { capacity_bytes: BYTES, blocks, translation, ..ArrayProfile::default() };
    let mut options = options(256 << 10, 4096, 0, true);
    options.profile.medium = Profile { commands: 64, medium: Medium::Array(Box::new(array)) };
    let memory = Memory::open(file(&scratch.image(), None, FlushTo::Process)).expect("a file");
    let memory = memory.buffered(&options).expect("a buffer").prefetching(Prefetch::Off);
    assert_eq!((stats(&memory).now_ns, stats(&memory).drive_units), (0, 0), "before its time");
    memory.read(0, &mut [0; 64]).expect("a hole");
    let hole_ns = stats(&memory).now_ns;
    memory.read(BYTES / 2, &mut [0; 64]).expect("bytes");
    let data_ns = stats(&memory).now_ns - hole_ns;
    assert!(data_ns > hole_ns + 30_000, "{data_ns} ns, and {hole_ns} of a hole");
}

/// Lines wait together and are programmed once; a buffer that is lost with the power programs them at each fence.
#[test]
fn lines_are_programmed_together_and_wear_is_counted() {
    for (kept, programs, bytes) in [(true, 0, 0), (false, 20, 20 * 128)] {
        let memory = buffered(&options(256 << 10, 4096, 50, kept));
        for turn in 0..20 {
            // The same two lines, in pieces.
            (0..4).for_each(|part| memory.store(4096 + part * 32, &[turn; 32]).expect("bytes"));
            memory.fence().expect("a fence");
        }
        let done = stats(&memory);
        assert_eq!((done.programs, done.programmed_bytes), (programs, bytes), "{done:?}");
        assert_eq!(u64::from(done.worn_most), programs);
        assert_eq!(done.now_ns > 20 * 10_000, !kept, "who waits for programs: {done:?}");
    }
    // A page at a time: what leaves is programmed whole, once.
    let memory = buffered(&options(8192, 4096, 0, true)).prefetching(Prefetch::Off);
    for page in 0..10 {
        memory.store(page * PAGE, &[1; 64]).expect("bytes");
        memory.store(page * PAGE + 1000, &[1; 64]).expect("bytes");
    }
    let done = stats(&memory);
    assert_eq!((done.programs, done.programmed_bytes), (8, 8 * PAGE), "{done:?}");
}

#[test]
fn what_cannot_be_written_home_is_told_by_every_fence() {
    let scratch = Scratch::new();
    let memory = Memory::open(file(&scratch.image(), Some(BYTES), FlushTo::Process)).expect("a file");
    let memory = memory.buffered(&options(64 << 10, 4096, 0, true)).expect("a buffer");
    memory.store(BYTES - 4096, &[5; 4096]).expect("bytes");
    let cut = std::fs::OpenOptions::new().write(true).open(scratch.image()).expect("the file");
    cut.set_len(BYTES / 2).expect("a cut");
    assert!(memory.fence().is_err() && memory.fence().is_err());
}

#[test]
fn a_buffer_that_makes_no_sense_is_told_in_one_line() {
    let said = |options: &BufferOptions| {
        let memory =
            Memory::open(MemoryOptions { place: Place::Ram { bytes: BYTES }, flush: FlushTo::Process });
        let said = memory.expect("memory").buffered(options).expect_err("no sense").to_string();
        assert!(!said.contains('\n'), "{said}");
        said
    };
    let small = said(&options(40_000, 16_384, 75, true));
    assert!(small.contains("no room for a fill of 16384 bytes; give at least buffer=65536"), "{small}");
    assert!(said(&options(1 << 20, 5000, 0, true)).contains("a power of two from 4096 to 2097152, not 5000"));
    assert!(said(&options(1 << 20, 4096, 91, true)).contains("0 to 90 percent"));
    let mut odd = options(1 << 20, 4096, 0, true);
    odd.profile.program_bytes = 8192;
    assert!(said(&odd).contains("from 64 to 4096, not 8192"));
    odd = options(1 << 20, 4096, 0, true);
    odd.profile.medium.commands = 0;
    assert!(said(&odd).contains("makes no sense"));
}
