//! Power is cut at every write. What a store holds afterwards is the state after some batch, at or after
//! the last one whose commit returned; every block of it is sound; and it goes on from there.
//!
//! The fault model is `crate::support::VolatileMedium`'s: what was not flushed or written with FUA may be there,
//! sector by sector, or where bytes are stored word by word, in any of its versions; so may any part of the write that
//! is cut.

use crate::support::{Dice, Model, Op, VolatileMedium, contents, encode, open, play};
use core::ops::{Bound, ControlFlow};
use nvmed_kv::{Barrier, KvError, Medium, MediumError, MemoryMedium, Options, Sequence, Snapshot, Store};
use nvmed_units::Block;
use std::sync::Arc;

/// Blocks of the store when it is made, and those that the medium has.
const BLOCKS_AT_FIRST: usize = 480;
const BLOCKS: u64 = 640;

/// Batches in the order of their sequences.
type History = Vec<Vec<Op>>;

fn formatted() -> Vec<u8> {
    let medium = VolatileMedium::new(vec![0; BLOCKS as usize * 4096], u64::MAX);
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    medium.after_power_cut(&mut Dice::new(1))
}

/// A store that has room to grow, over old data.
fn formatted_small() -> Vec<u8> {
    let medium = VolatileMedium::new(vec![0; BLOCKS_AT_FIRST * 4096], u64::MAX);
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let mut image = medium.after_power_cut(&mut Dice::new(1));
    image.resize(BLOCKS as usize * 4096, 0xa5);
    image
}

/// Batches of one length often: leftovers of the log then lie exactly where later batches end.
fn batch(random: &mut Dice, sequence: u64) -> Vec<Op> {
    let operations = if random.roll(3) == 0 { 1 + random.roll(11) } else { 3 };
    let mut ops = Vec::new();
    for _ in 0..operations {
        let n = random.roll(300);
        let key = |n: u64| format!("key{n:03}").into_bytes();
        let value = |length: usize| [&sequence.to_be_bytes()[..], &vec![n as u8; length]].concat();
        ops.push(match random.roll(50) {
            0..10 => Op::Delete(key(n)),
            10 => Op::DeleteRange(key(n), key(n + random.roll(40))),
            // In blocks of their own.
            11 => Op::Put(format!("long{}", n % 4).into_bytes(), value(1000 + random.roll(5000) as usize)),
            // Once a batch: two do not fit the log of this store.
            12 if n < 30 && ops.iter().all(|op| !matches!(op, Op::Put(key, _) if key == b"longest")) => {
                Op::Put(b"longest".to_vec(), value(32_768 - 8))
            }
            _ => Op::Put(key(n), value(200)),
        });
    }
    ops
}

fn barrier(random: &mut Dice) -> Barrier {
    [Barrier::None, Barrier::Before, Barrier::After][random.roll(3) as usize]
}

/// Applies and commits until `batches` are applied or the power goes; answers the last durable batch.
fn work(store: &Store, history: &mut History, batches: u64, random: &mut Dice) -> (u64, Result<(), KvError>) {
    let mut durable = history.len() as u64;
    let outcome = (|| {
        let mut then = None;
        for _ in 0..batches {
            match random.roll(60) {
                // A snapshot keeps blocks from being reused; what it saw stays.
                0 => then = Some((store.snapshot(), history.len())),
                1 => check_snapshot(then.take(), history)?,
                2 => _ = store.grow()?,
                _ => {}
            }
            let changes = batch(random, store.applied().0 + 1);
            // Before the call: a batch whose `apply` fails may be in the log, if a checkpoint failed after it.
            history.push(changes);
            let sequence = store.apply(&encode(history.last().unwrap())).inspect_err(|_| {
                history.pop();
            })?;
            assert_eq!(sequence, Sequence(history.len() as u64));
            match random.roll(40) {
                0 => store.checkpoint()?,
                1..20 => store.commit(sequence, barrier(random))?,
                _ => continue,
            }
            durable = sequence.0;
        }
        store.close()?;
        durable = store.applied().0;
        Ok(())
    })();
    (durable, outcome)
}

fn check_snapshot(then: Option<(Snapshot<'_>, usize)>, history: &History) -> Result<(), KvError> {
    let Some((snapshot, batches)) = then else {
        return Ok(());
    };
    let mut found = Model::new();
    let outcome = snapshot.scan(Bound::Unbounded, Bound::Unbounded, &mut |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    match outcome {
        Err(KvError::SnapshotTooOld { .. }) => return Ok(()),
        outcome => outcome?,
    }
    let mut model = Model::new();
    history[..batches].iter().for_each(|ops| play(&mut model, ops));
    assert!(found == model, "a snapshot of batch {batches} changed");
    Ok(())
}

/// Opens what a power cut left, checks it against `history`, of which `durable` batches were promised,
/// and shortens `history` to what is there.
fn reopen(medium: Arc<dyn Medium>, history: &mut History, durable: u64) -> Store {
    let store = open(medium).unwrap();
    let found = store.applied().0;
    assert!(found >= durable, "batch {durable} was durable, the store ends at {found}");
    assert!(found <= history.len() as u64, "the store invented batch {found}");
    history.truncate(found as usize);
    let mut model = Model::new();
    for changes in history.iter() {
        play(&mut model, changes);
    }
    let holds = contents(&store);
    assert!(holds == model, "the state is not that after batch {found}");
    assert_eq!(store.verify(), Ok(model.len() as u64));
    store
}

/// Cuts the power at write `first`, goes on, cuts it again at write `second` of the second life, goes on.
fn life(image: &[u8], seed: u64, batches: u64, first: u64, second: u64) -> (u64, bool) {
    life_on(image, seed, batches, (first, second), [false; 3])
}

/// As [`life`], on media of which the n-th life's stores bytes or does not.
fn life_on(
    image: &[u8],
    seed: u64,
    batches: u64,
    (first, second): (u64, u64),
    bytes_stored: [bool; 3],
) -> (u64, bool) {
    let mut history = History::new();
    let medium = VolatileMedium::of(image.to_vec(), first, bytes_stored[0]);
    let mut durable = 0;
    if let Ok(store) = open(medium.clone()) {
        // The same work every time, up to the cut.
        let (promised, outcome) = work(&store, &mut history, batches, &mut Dice::new(7));
        assert!(outcome.is_ok() || medium.was_cut(), "{outcome:?}");
        durable = promised;
    }
    let (writes, cut) = (medium.writes(), medium.was_cut());
    let mut random = Dice::new(seed);
    let mut image = medium.after_power_cut(&mut random);
    for (again, bytes_stored) in [second, u64::MAX].into_iter().zip(bytes_stored[1..].iter().copied()) {
        let medium = VolatileMedium::of(image, again, bytes_stored);
        let store = reopen(medium.clone(), &mut history, durable);
        durable = work(&store, &mut history, 12, &mut random).0;
        drop(store);
        image = medium.after_power_cut(&mut random);
    }
    reopen(VolatileMedium::new(image, u64::MAX), &mut history, durable);
    (writes, cut)
}

#[test]
fn power_is_cut_at_every_write() {
    let image = formatted_small();
    let batches = 350;
    let (writes, cut) = life(&image, 0, batches, u64::MAX, u64::MAX);
    assert!(!cut && writes > 200, "{writes} writes: the test cuts nothing");
    for at in 0..writes {
        for seed in 2 * at..2 * at + 2 {
            eprintln!("power cut at write {at}, seed {seed}");
            life(&image, seed, batches, at, seed % 9);
        }
    }
}

/// The log in place; and what one medium left, whole or cut, the other takes up.
#[test]
fn power_is_cut_at_every_write_where_bytes_are_stored() {
    let image = formatted_small();
    let batches = 80;
    for ways in [[true, true, true], [true, false, true], [false, true, false], [false, true, true]] {
        let (writes, cut) = life_on(&image, 0, batches, (u64::MAX, u64::MAX), ways);
        assert!(!cut && writes > 50, "{writes} writes: the test cuts nothing");
        for at in 0..writes {
            for seed in 2 * at..2 * at + 2 {
                eprintln!("{ways:?}, power cut at write {at}, seed {seed}");
                life_on(&image, seed, batches, (at, seed % 9), ways);
            }
        }
    }
}

#[test]
fn power_is_cut_while_checkpoints_go_in_small_steps() {
    // A tree of many leaves, so that what is in half a log takes several steps.
    let medium = VolatileMedium::new(vec![0; 2000 * 4096], u64::MAX);
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let store = open(medium.clone()).unwrap();
    let mut history = History::new();
    for n in 0..2500 {
        let ops = vec![Op::Put(format!("fill{:05}", n * 7919 % 10_000).into_bytes(), vec![n as u8; 400])];
        store.apply(&encode(&ops)).unwrap();
        history.push(ops);
    }
    store.checkpoint().unwrap();
    drop(store);
    let image = medium.after_power_cut(&mut Dice::new(3));
    // Now changes all over it.
    let touch = |n: usize| {
        let key = format!("fill{:05}", n * 7919 % 10_000).into_bytes();
        if n.is_multiple_of(3) { Op::Delete(key) } else { Op::Put(key, vec![1; 400]) }
    };
    let life = |cut_at: u64| {
        let mut history = history.clone();
        let medium = VolatileMedium::new(image.clone(), cut_at);
        let mut durable = history.len() as u64;
        let mut steps = 0;
        if let Ok(store) = open(medium.clone()) {
            for chunk in (0..1400).step_by(20) {
                let changes: Vec<_> = (chunk..chunk + 20).step_by(2).map(touch).collect();
                history.push(changes.clone());
                match store.apply(&encode(&changes)) {
                    Ok(sequence) if sequence.0.is_multiple_of(5) => {
                        if store.commit(sequence, Barrier::None).is_err() {
                            break;
                        }
                        durable = sequence.0;
                    }
                    Ok(_) => {}
                    Err(_) => {
                        history.pop();
                        break;
                    }
                }
            }
            if store.checkpoint().is_ok() {
                durable = history.len() as u64;
            }
            steps = store.stats().steps - store.stats().checkpoints;
        }
        let image = medium.after_power_cut(&mut Dice::new(cut_at));
        reopen(VolatileMedium::new(image, u64::MAX), &mut history, durable);
        (medium.writes(), medium.was_cut(), steps)
    };
    let (writes, cut, steps) = life(u64::MAX);
    assert!(!cut && writes > 30, "{writes} writes");
    assert!(steps > 0, "each checkpoint was one step");
    for at in 0..writes {
        eprintln!("power cut at write {at}");
        life(at);
    }
}

#[test]
fn a_format_that_was_cut_leaves_no_half_store() {
    let old = formatted();
    for at in 0..12 {
        for seed in 0..8 {
            let medium = VolatileMedium::new(old.clone(), at);
            let done = Store::format(&*medium, &Options { identity: 9, ..Options::default() }).is_ok();
            let image = medium.after_power_cut(&mut Dice::new(seed));
            match open(VolatileMedium::new(image, u64::MAX)) {
                Ok(store) => assert_eq!(store.verify(), Ok(0)),
                Err(error) => {
                    assert!(!done);
                    let damage = matches!(error, KvError::NotAStore { .. } | KvError::Corrupt { .. });
                    assert!(damage, "{error}");
                }
            }
        }
    }
}

#[test]
fn leftovers_of_an_interrupted_append_never_join_the_log() {
    let medium = Arc::new(MemoryMedium::from_bytes(formatted()));
    // Four records of 1018 bytes fill a log block's 4072: only there does a leftover follow at once,
    // since what is behind the end of the log within its block is zeroed by each append.
    let same_size = |n: u8| encode(&[Op::Put(vec![n], vec![n; 1018 - 24 - 5 - 1])]);
    let store = open(medium.clone()).unwrap();
    store.commit(store.apply(&same_size(0)).unwrap(), Barrier::None).unwrap();
    drop(store);
    let before = medium.to_bytes();
    let store = open(medium.clone()).unwrap();
    for n in 1..12 {
        store.apply(&same_size(n)).unwrap();
    }
    store.commit(store.applied(), Barrier::None).unwrap();
    drop(store);
    // Of that append only the first block is lost: batches 2 to 4 are gone, later ones are on the medium.
    let mut after = medium.to_bytes();
    after[4096..8192].copy_from_slice(&before[4096..8192]);
    let medium = Arc::new(MemoryMedium::from_bytes(after));
    let store = open(medium.clone()).unwrap();
    assert_eq!(store.applied(), Sequence(1));
    for n in 2..5 {
        let sequence = store.apply(&same_size(100 + n)).unwrap();
        assert_eq!(sequence, Sequence(n.into()));
        store.commit(sequence, Barrier::None).unwrap();
    }
    drop(store);
    assert_eq!(open(medium).unwrap().applied(), Sequence(4), "leftovers came back");
}

#[test]
fn the_log_never_laps_itself() {
    // More goes in without a commit than the log holds; a copy of the medium is opened all the while.
    let medium = Arc::new(MemoryMedium::new(3000));
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let store = open(medium.clone()).unwrap();
    let mut history = History::new();
    let mut random = Dice::new(5);
    for n in 0..700 {
        let changes = vec![Op::Put(format!("{:03}", random.roll(200)).into_bytes(), vec![n as u8; 1000])];
        store.apply(&encode(&changes)).unwrap();
        history.push(changes);
        if n % 7 == 0 {
            let copy = Arc::new(MemoryMedium::from_bytes(medium.to_bytes()));
            reopen(copy, &mut history.clone(), store.durable().0);
        }
    }
    assert!(store.stats().checkpoints > 1);
}

#[test]
fn either_superblock_may_be_lost() {
    for lost in [0, BLOCKS as usize - 1] {
        let medium = Arc::new(MemoryMedium::from_bytes(formatted()));
        let mut history = History::new();
        for round in 0..6 {
            let store = open(medium.clone()).unwrap();
            let mut random = Dice::new(round);
            let (durable, outcome) = work(&store, &mut history, 50, &mut random);
            outcome.unwrap();
            let mut bytes = medium.to_bytes();
            bytes[lost * 4096..][..4096].fill(0xa5);
            reopen(Arc::new(MemoryMedium::from_bytes(bytes)), &mut history.clone(), durable);
        }
    }
}

/// A device whose next flush fails, with a process that dies of it.
struct NoFlush(Arc<VolatileMedium>);

impl Medium for NoFlush {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        self.0.read(block, into)
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        self.0.write(block, data, fua)
    }

    fn flush(&self) -> Result<(), MediumError> {
        Err(MediumError { errno: 5 })
    }
}

#[test]
fn records_that_only_a_cache_held_are_durable_before_more_is_appended() {
    for seed in 0..16 {
        let medium = VolatileMedium::new(formatted(), u64::MAX);
        let mut history = History::new();
        let mut put = |store: &Store, bytes: usize| {
            let ops = vec![Op::Put(vec![history.len() as u8], vec![7; bytes])];
            let sequence = store.apply(&encode(&ops)).unwrap();
            history.push(ops);
            sequence
        };
        let store = open(Arc::new(NoFlush(medium.clone()))).unwrap();
        let first = put(&store, 100);
        store.commit(first, Barrier::None).unwrap();
        let second = put(&store, 9000);
        // The append is in the cache; the process dies before the flush.
        store.commit(second, Barrier::After).unwrap_err();
        drop(store);
        let store = open(medium.clone()).unwrap();
        assert_eq!(store.applied(), second);
        let third = put(&store, 100);
        store.commit(third, Barrier::None).unwrap();
        drop(store);
        let image = medium.after_power_cut(&mut Dice::new(seed));
        reopen(VolatileMedium::new(image, u64::MAX), &mut history, third.0);
    }
}
