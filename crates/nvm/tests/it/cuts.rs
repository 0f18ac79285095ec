//! What a cut of power may leave, by the record: whatever it is, what was promised is there.
//!
//! A word of 8 bytes is whole. Of a word's stores a prefix is left: all that a fence has made durable, and of the later
//! ones as many as chance says, each word for itself.

use crate::{Scratch, alone, file, ram};
use nvmed_dice::Dice;
use nvmed_engine::{Completion, Engine, Operation, QueueOptions, QueuePair, Request, Segment};
use nvmed_mutant::Mutant;
use nvmed_nvm::{Event, FlushTo, Memory, NvmEngine, Record, What};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;

const BYTES: usize = 1 << 20;
const WORD: usize = 8;

/// A store to a range, of bytes or of zeroes.
struct Stored {
    at: usize,
    bytes: Vec<u8>,
    /// Whether a fence that has returned covers it.
    durable: bool,
}

/// What was stored before the cut, in order, with what is durable.
fn stored(events: &[Event]) -> Vec<Stored> {
    let mut all: Vec<(Stored, u64, Option<usize>)> = Vec::new();
    let mut begun = Vec::new();
    for (index, event) in events.iter().enumerate() {
        match &event.what {
            What::Store { at, bytes } => {
                let stored = Stored { at: *at as usize, bytes: bytes.clone(), durable: false };
                all.push((stored, event.thread, None));
            }
            What::Zero { at, bytes } => {
                let stored = Stored { at: *at as usize, bytes: vec![0; *bytes as usize], durable: false };
                all.push((stored, event.thread, None));
            }
            What::Settle => {
                let mine = all
                    .iter_mut()
                    .filter(|(_, thread, settled)| *thread == event.thread && settled.is_none());
                mine.for_each(|(_, _, settled)| *settled = Some(index));
            }
            // All of what was stored is on its way, or the mistake would be the record's.
            What::WrittenBack { at, bytes } => {
                let stored = all.iter().rev().find(|(_, thread, _)| *thread == event.thread);
                let (stored, _, _) = stored.expect("what is written back was stored");
                assert_eq!((stored.at as u64, stored.bytes.len() as u64), (*at, *bytes));
            }
            What::FenceBegun { fence } => begun.push((*fence, index)),
            What::FenceDone { fence } => {
                let (_, at) = *begun.iter().find(|(number, _)| number == fence).expect("a fence that began");
                let covered =
                    all.iter_mut().filter(|(_, _, settled)| settled.is_some_and(|settled| settled < at));
                covered.for_each(|(stored, _, _)| stored.durable = true);
            }
            other => panic!("{other:?} is new to this test"),
        }
    }
    all.into_iter().map(|(stored, _, _)| stored).collect()
}

/// What is left of a medium of zeroes.
fn left(events: &[Event], dice: &mut Dice) -> Vec<u8> {
    let mut image = vec![0; BYTES];
    let mut words: std::collections::BTreeMap<usize, Vec<usize>> = std::collections::BTreeMap::new();
    let all = stored(events);
    for (index, stored) in all.iter().enumerate().filter(|(_, stored)| !stored.bytes.is_empty()) {
        for word in stored.at / WORD..=(stored.at + stored.bytes.len() - 1) / WORD {
            words.entry(word).or_default().push(index);
        }
    }
    for (word, stores) in words {
        let least = stores.iter().rposition(|&index| all[index].durable).map_or(0, |last| last + 1);
        let kept = least + dice.index(stores.len() - least + 1);
        for &index in &stores[..kept] {
            let stored = &all[index];
            let (from, to) =
                ((word * WORD).max(stored.at), (word * WORD + WORD).min(stored.at + stored.bytes.len()));
            image[from..to].copy_from_slice(&stored.bytes[from - stored.at..to - stored.at]);
        }
    }
    image
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes).expect("bytes");
    bytes
}

/// A step of a workload at random.
fn step(memory: &Memory, dice: &mut Dice) {
    let at = dice.roll(BYTES as u64 - 5000);
    match dice.roll(10) {
        0 => memory.settle(),
        1 => memory.fence().expect("a fence"),
        2 => memory.store_u64(at & !7, dice.next()).expect("a word"),
        3 => memory.zero(at, dice.roll(5000), dice.chance(50)).expect("zeroes"),
        _ => {
            let mut bytes = vec![0; dice.index(5000)];
            dice.fill(&mut bytes);
            memory.store(at, &bytes).expect("bytes");
        }
    }
}

/// Of files and of memory, whatever is stored is in the record: with nothing lost it is the medium.
#[test]
fn the_record_is_what_was_stored() {
    let _alone = alone();
    let scratch = Scratch::new();
    let options = file(&scratch.image(), Some(BYTES as u64), FlushTo::Process);
    for memory in [ram(BYTES as u64), Arc::new(Memory::open(options).expect("a file"))] {
        let record = Record::new();
        memory.record(Arc::clone(&record));
        let mut dice = Dice::of(&[19]);
        let mut all = Vec::new();
        for _ in 0..300 {
            step(&memory, &mut dice);
        }
        memory.fence().expect("a fence");
        all.extend(record.take());
        // Everything is durable: chance has no say.
        assert!(left(&all, &mut dice) == contents(&memory));
    }
}

/// What a fence that returned covers is there after every cut, and what is not covered is torn and lost at times.
#[test]
fn a_cut_leaves_what_was_fenced_and_may_tear_the_rest() {
    let _alone = alone();
    let (mut torn, mut lost, mut kept) = (0, 0, 0);
    for seed in 0..200 {
        let mut dice = Dice::of(&[seed]);
        let memory = ram(BYTES as u64);
        let record = Record::new();
        memory.record(Arc::clone(&record));
        memory.store(4096, &[1; 100]).expect("bytes");
        memory.fence().expect("a fence");
        memory.store(4096, &[2; 100]).expect("bytes");
        memory.settle();
        let events = record.take();
        let image = left(&events, &mut dice);
        let old = image[4096..4196].iter().filter(|&&byte| byte == 1).count();
        let new = image[4096..4196].iter().filter(|&&byte| byte == 2).count();
        assert_eq!(old + new, 100, "seed {seed}: what was fenced is gone");
        assert!(
            image[4096..4192].chunks(WORD).all(|word| word.iter().all(|&byte| byte == word[0])),
            "a torn word"
        );
        torn += u32::from(old > 0 && new > 0);
        let begun = &events[..events.len() - 4];
        assert!(matches!(begun.last().expect("events").what, What::FenceBegun { .. }), "{begun:?}");
        let before = left(begun, &mut dice)[4096..4196].iter().filter(|&&byte| byte == 1).count();
        lost += u32::from(before == 0);
        kept += u32::from(before > 0);
    }
    assert!(torn > 100 && kept > 100, "{torn} torn, {lost} lost, {kept} kept of 200");
}

/// A device of memory with a record, and a page that it reaches.
struct Device {
    engine: NvmEngine,
    record: Arc<Record>,
    page: Arc<Mapping>,
    address: DeviceAddress,
}

impl Device {
    fn new() -> Self {
        let memory = ram(BYTES as u64);
        let record = Record::new();
        memory.record(Arc::clone(&record));
        let engine = NvmEngine::over(memory, 512);
        let page = Arc::new(Mapping::anonymous(8192, Pages::Base).expect("memory"));
        let address = engine.map(Arc::clone(&page)).expect("an address");
        Self { engine, record, page, address }
    }

    fn queue(&self) -> Box<dyn QueuePair> {
        self.engine.queue(QueueOptions::depth(4)).expect("a queue")
    }

    /// One request to its end.
    fn run(&self, pair: &mut dyn QueuePair, operation: Operation, lba: u64, blocks: u32) {
        let data = [Segment { address: self.address, bytes: blocks * 512 }];
        let data = if operation.has_data() { &data[..] } else { &[] };
        let request = Request { operation, lba: Lba(lba), blocks, data, tag: 1, stream: 0 };
        let mut out: Vec<Completion> = Vec::with_capacity(1);
        pair.execute(&request, &mut out).expect("a slot");
        out.pop().expect("done at once").result.expect("a good request");
    }
}

const WRITE: Operation = Operation::Write { fua: false };

/// One thread writes, another one flushes and then writes where the first thing is: after every cut, who finds the
/// pointer finds what it points to. Answers in how many states the pointer was there, or the seed in which it lied.
fn published(seeds: u64) -> Result<u32, u64> {
    let mut found = 0;
    for seed in 0..seeds {
        let mut dice = Dice::of(&[seed]);
        let device = Device::new();
        device.page.fill(0, 8192, 7);
        std::thread::scope(|scope| {
            scope.spawn(|| device.run(&mut *device.queue(), WRITE, 64, 16));
        });
        let mut other = device.queue();
        device.run(&mut *other, Operation::Flush, 0, 0);
        device.page.fill(0, 8192, 9);
        device.run(&mut *other, WRITE, 8, 1);
        let events = device.record.take();
        for cut in 0..=events.len() {
            let image = left(&events[..cut], &mut dice);
            if image[8 * 512..9 * 512].contains(&9) {
                found += 1;
                if image[64 * 512..80 * 512].iter().any(|&byte| byte != 7) {
                    return Err(seed);
                }
            }
        }
    }
    Ok(found)
}

#[test]
fn another_threads_flush_covers_a_write_that_has_completed() {
    let _alone = alone();
    let found = published(50).expect("a pointer to what is there");
    assert!(found > 50, "the pointer was there {found} times");
    if nvmed_mutant::ARE_MADE {
        nvmed_mutant::set(Some(Mutant::NotSettled));
        let lied = published(50);
        nvmed_mutant::set(None);
        assert!(lied.is_err(), "a write that is told of before it is settled went unnoticed");
    }
}

#[test]
fn what_is_written_with_fua_is_there_after_every_later_cut() {
    let _alone = alone();
    for (operation, byte) in [
        (Operation::Write { fua: true }, 5),
        (Operation::WriteZeroes { fua: true }, 0),
        (Operation::Discard, 0),
    ] {
        let device = Device::new();
        let mut pair = device.queue();
        device.page.fill(0, 8192, 3);
        device.run(&mut *pair, Operation::Write { fua: true }, 100, 16);
        device.page.fill(0, 8192, 5);
        device.run(&mut *pair, operation, 100, 16);
        if operation == Operation::Discard {
            device.run(&mut *pair, Operation::Flush, 0, 0);
        }
        let done = device.record.take();
        device.page.fill(0, 8192, 6);
        device.run(&mut *pair, WRITE, 200, 16);
        let events: Vec<_> = done.iter().cloned().chain(device.record.take()).collect();
        for cut in done.len()..=events.len() {
            let image = left(&events[..cut], &mut Dice::of(&[cut as u64]));
            assert!(
                image[100 * 512..116 * 512].iter().all(|&found| found == byte),
                "{operation:?}, cut {cut}"
            );
        }
    }
}
