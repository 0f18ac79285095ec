//! Bad media: damaged blocks, foreign contents, failing reads and writes, and a region that is full.

use crate::support::{Dice, Model, Op, contents, encode, get, open, pending, play};
use core::ops::{Bound, ControlFlow};
use nvmed_kv::{Barrier, Batch, KvError, Medium, MediumError, MemoryMedium, Options, Store};
use nvmed_units::Block;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4096;

fn format(blocks: u64) -> Arc<MemoryMedium> {
    let medium = Arc::new(MemoryMedium::new(blocks));
    let options = Options { log_blocks: Some(64), identity: 77, ..Options::default() };
    Store::format(&*medium, &options).unwrap();
    medium
}

/// A medium with a tree of three levels and something in the log.
fn filled() -> Arc<MemoryMedium> {
    let medium = format(1500);
    let store = open(medium.clone()).unwrap();
    for n in 0..3000u32 {
        let key = [&n.to_be_bytes()[..], &[b'k'; 60]].concat();
        store.apply(&encode(&[(key, Some(vec![n as u8; 100]))])).unwrap();
    }
    store.checkpoint().unwrap();
    for n in 0..40u32 {
        store.apply(&encode(&[(n.to_be_bytes().to_vec(), Some(vec![n as u8; 500]))])).unwrap();
    }
    store.commit(store.applied(), Barrier::None).unwrap();
    medium
}

/// Everything a user might do; `Err` is the first thing that went wrong.
fn use_it(bytes: Vec<u8>) -> Result<(), KvError> {
    let store = open(Arc::new(MemoryMedium::from_bytes(bytes)))?;
    let mut value = Vec::new();
    for n in (0..3000u32).step_by(500) {
        store.get(&[&n.to_be_bytes()[..], &[b'k'; 60]].concat(), &mut value)?;
    }
    store.verify()?;
    let snapshot = store.snapshot();
    let sequence = store.apply(&encode(&[(vec![1; 9], None), (vec![2; 9], Some(vec![]))]))?;
    store.commit(sequence, Barrier::Before)?;
    store.grow()?;
    let from = 1000u32.to_be_bytes().to_vec();
    store.apply(&encode(&[Op::DeleteRange(from.clone(), 1100u32.to_be_bytes().to_vec())]))?;
    store.apply(&encode(&[Op::Put(b"long".to_vec(), vec![3; 20_000])]))?;
    store.checkpoint()?;
    let mut iter = store.iter(Bound::Unbounded, Bound::Unbounded);
    iter.seek(&from)?;
    (0..40).try_for_each(|_| iter.prev().map(|_| ()))?;
    (0..80).try_for_each(|_| iter.next().map(|_| ()))?;
    snapshot.scan_reverse(Bound::Unbounded, Bound::Unbounded, &mut |_, _| ControlFlow::Continue(()))?;
    store.verify()?;
    store.close()
}

#[test]
fn a_damaged_block_is_an_error_that_names_it() {
    let medium = filled();
    let good = medium.to_bytes();
    use_it(good.clone()).unwrap();
    let used: Vec<_> = (0..good.len() / BLOCK)
        .filter(|block| good[block * BLOCK..][..BLOCK].iter().any(|&byte| byte != 0))
        .collect();
    let mut named = BTreeSet::new();
    for &block in &used {
        for kind in 0..3 {
            let mut bad = good.clone();
            match kind {
                0 => bad[block * BLOCK + 1000] ^= 4,
                1 => bad[block * BLOCK..][..BLOCK].fill(0xa5),
                _ => bad[block * BLOCK..][..BLOCK].copy_from_slice(&good[used[1] * BLOCK..][..BLOCK]),
            }
            match use_it(bad) {
                Ok(()) => {}
                Err(KvError::Corrupt { block: found, structure, .. }) => {
                    assert_eq!(found.0, block as u64, "the wrong block is blamed");
                    named.insert((structure, found));
                }
                Err(other) => panic!("block {block}: {other}"),
            }
        }
    }
    let count = |structure: &str| named.iter().filter(|(found, _)| *found == structure).count();
    assert!(count("tree node") > 100 && count("bitmap page") == 1, "{named:?}");
}

#[test]
fn fuzz_an_image() {
    let good = filled().to_bytes();
    let mut random = Dice::new(11);
    for _ in 0..400 {
        let mut bad = good.clone();
        for _ in 0..=random.roll(8) {
            let block = random.roll(good.len() as u64 / BLOCK as u64) as usize;
            for _ in 0..=random.roll(64) {
                bad[block * BLOCK + random.roll(BLOCK as u64) as usize] = random.next() as u8;
            }
        }
        let _ = use_it(bad);
    }
}

#[test]
fn foreign_media_get_a_clear_message() {
    let message = |bytes: Vec<u8>| open(Arc::new(MemoryMedium::from_bytes(bytes))).err().unwrap().to_string();
    assert!(message(vec![0; 100 * BLOCK]).contains("no key-value store here"));
    assert!(message(vec![]).contains("no key-value store here"));
    let good = format(500).to_bytes();
    assert!(message(good[..400 * BLOCK].to_vec()).contains("500 blocks but the medium only 400"));
    let mut newer = good.clone();
    for block in [0, 499] {
        newer[block * BLOCK + 8] = 4;
    }
    assert!(message(newer).contains("version 4; this program reads version 3: use a newer"));
    let small = MemoryMedium::new(50);
    let refused = Store::format(&small, &Options::default()).unwrap_err();
    assert!(refused.to_string().contains("the medium has 50"), "{refused}");
    let refused = Store::open(format(500), pending(4096), &Options::default()).err().unwrap();
    assert!(refused.to_string().contains("pending log"), "{refused}");
}

#[test]
fn what_is_too_long_is_refused_and_nothing_of_it_applied() {
    let store = open(format(500)).unwrap();
    let mut batch = Batch::new();
    batch.put(b"good", b"");
    batch.put(&[0; 1025], b"");
    assert_eq!(store.apply(&batch), Err(KvError::KeyTooLong { bytes: 1025 }));
    batch.clear();
    batch.put(b"good", &[0; 70_000]);
    assert_eq!(store.apply(&batch), Err(KvError::ValueTooLong { bytes: 70_000 }));
    batch.clear();
    while batch.bytes() <= store.batch_bytes_max() {
        batch.put(b"good", &[0; 1024]);
    }
    assert!(matches!(store.apply(&batch), Err(KvError::BatchTooLarge { .. })));
    assert_eq!(get(&store, b"good"), None);
    batch.clear();
    while batch.bytes() + 1033 <= store.batch_bytes_max() {
        batch.put(b"good", &[0; 1024]);
    }
    store.apply(&batch).unwrap();
}

#[test]
fn when_it_is_full_deleting_still_works() {
    for (blocks, key_bytes, value_bytes) in [(420, 20, 200), (420, 1000, 900), (600, 12, 0), (3000, 20, 300)]
    {
        let medium = format(blocks);
        let store = open(medium.clone()).unwrap();
        let key = |n: u64| {
            let mut key = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes().to_vec();
            key.resize(key_bytes, b'x');
            key
        };
        let fill = |from: u64| {
            for n in from.. {
                match store.apply(&encode(&[(key(n), Some(vec![n as u8; value_bytes]))])) {
                    Ok(_) => {}
                    Err(KvError::Full) => return n,
                    Err(error) => panic!("{error}"),
                }
            }
            unreachable!("a store is never endless");
        };
        let count = fill(0);
        let used = store.stats().tree_blocks_used * BLOCK as u64;
        assert!(
            count * (key_bytes + value_bytes) as u64 > used / 3,
            "full with {count} records in {used} bytes"
        );
        assert_eq!(store.verify(), Ok(count));
        // Deleting as a file system does it: a record goes, others are written.
        for n in 0..count / 2 {
            let mut batch = encode(&[(key(n), None), (key(count - 1), Some(vec![9; value_bytes]))]);
            batch.put(b"counters", &n.to_le_bytes());
            store.apply(&batch).unwrap_or_else(|error| panic!("delete {n} of {count}: {error}"));
        }
        assert_eq!(store.verify(), Ok(count - count / 2 + 1));
        let again = fill(count) - count;
        assert!(again > count / 4, "only {again} records fit after {} were deleted", count / 2);
        let all = contents(&store);
        store.close().unwrap();
        drop(store);
        assert!(contents(&open(medium).unwrap()) == all);
    }
}

/// Fails the write, read or flush that a countdown reaches.
struct FailingMedium {
    inner: MemoryMedium,
    countdown: AtomicI64,
    failed: Mutex<Option<&'static str>>,
}

impl FailingMedium {
    fn step(&self, what: &'static str) -> Result<(), MediumError> {
        if self.countdown.fetch_sub(1, Ordering::SeqCst) == 0 {
            *self.failed.lock().unwrap() = Some(what);
            return Err(MediumError { errno: 28 });
        }
        Ok(())
    }
}

impl Medium for FailingMedium {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        self.step("read").and_then(|()| self.inner.read(block, into))
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        let what = if (1..=64).contains(&block.0) {
            "log"
        } else if fua {
            "superblock"
        } else {
            "node or page"
        };
        self.step(what).and_then(|()| self.inner.write(block, data, fua))
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.step("flush").and_then(|()| self.inner.flush())
    }
}

#[test]
fn a_failed_call_to_the_medium_is_an_error_and_nothing_acknowledged_is_lost() {
    let image = filled().to_bytes();
    let mut kinds = BTreeSet::new();
    for at in 0..300 {
        let inner = MemoryMedium::from_bytes(image.clone());
        let medium = Arc::new(FailingMedium { inner, countdown: at.into(), failed: Mutex::default() });
        let Ok(store) = open(medium.clone()) else {
            continue;
        };
        let mut durable = 0;
        let mut errors = 0;
        for n in 0..30u8 {
            let Ok(sequence) = store.apply(&encode(&[(vec![n], Some(vec![n; 100]))])) else {
                errors += 1;
                continue;
            };
            let barrier = [Barrier::None, Barrier::Before, Barrier::After][usize::from(n % 3)];
            match store.commit(sequence, barrier) {
                Ok(()) if n % 10 == 9 => errors += usize::from(store.checkpoint().is_err()),
                Ok(()) => {}
                Err(_) => errors += 1,
            }
            durable = store.durable().0;
        }
        let failed = medium.failed.lock().unwrap().take();
        let Some(kind) = failed else {
            break;
        };
        // One superblock that cannot be read is what the other is for.
        assert!(errors > 0 || at < 2, "a failed {kind} at call {at} went unnoticed");
        kinds.insert(kind);
        let retry = store.checkpoint();
        match kind {
            // The log is whole: a later checkpoint does what this one could not.
            "node or page" | "read" => assert_eq!(retry, Ok(()), "{kind} at call {at}"),
            // After a flush that failed nobody knows what is durable: the next one that succeeds says nothing of
            // what was written before.
            _ => {
                assert!(matches!(retry, Err(KvError::Failed { errno: 28 })), "{kind} at call {at}: {retry:?}")
            }
        }
        drop(store);
        let store = open(Arc::new(MemoryMedium::from_bytes(medium.inner.to_bytes()))).unwrap();
        assert!(store.applied().0 >= durable, "{kind} at call {at}");
        store.verify().unwrap();
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["flush", "log", "node or page", "read", "superblock"]);
}

/// Fails each request with a chance of one in `every`, from a seed.
struct UnreliableMedium {
    inner: MemoryMedium,
    every: u64,
    random: Mutex<Dice>,
}

impl UnreliableMedium {
    fn step(&self) -> Result<(), MediumError> {
        let hit = self.every > 0 && self.random.lock().unwrap().roll(self.every) == 0;
        if hit { Err(MediumError { errno: 5 }) } else { Ok(()) }
    }
}

impl Medium for UnreliableMedium {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        self.step().and_then(|()| self.inner.read(block, into))
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        // The first sector arrives: a failed write may leave anything.
        if let Err(error) = self.step() {
            let mut torn = vec![0; BLOCK];
            self.inner.read(block, &mut torn)?;
            torn[..512].copy_from_slice(&data[..512]);
            self.inner.write(block, &torn, fua)?;
            return Err(error);
        }
        self.inner.write(block, data, fua)
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.step().and_then(|()| self.inner.flush())
    }
}

#[test]
fn errors_again_and_again_lose_nothing_that_was_acknowledged() {
    let mut lives = 0;
    for (seed, every) in [(1, 7), (2, 23), (3, 61), (4, 200), (5, 1000)] {
        let mut image = format(700).to_bytes();
        let mut history: Vec<Vec<Op>> = Vec::new();
        let mut random = Dice::new(seed);
        for _ in 0..12 {
            let medium = Arc::new(UnreliableMedium {
                inner: MemoryMedium::from_bytes(image),
                every,
                random: Mutex::new(random.clone()),
            });
            random.next();
            let mut durable = history.len() as u64;
            if let Ok(store) = open(medium.clone()) {
                lives += 1;
                for n in 0..60u8 {
                    let key = |n: u64| format!("key{n:03}").into_bytes();
                    let (a, b) = (random.roll(200), random.roll(200));
                    let ops = vec![match random.roll(6) {
                        0 => Op::DeleteRange(key(a), key(a + b % 9)),
                        1 => Op::Delete(key(a)),
                        2 => Op::Put(key(a % 3), vec![n; 5000]),
                        _ => Op::Put(key(a), vec![n; 300]),
                    }];
                    history.push(ops);
                    let Ok(sequence) = store.apply(&encode(history.last().unwrap())) else {
                        history.pop();
                        continue;
                    };
                    assert_eq!(sequence.0, history.len() as u64);
                    if store.commit(sequence, Barrier::Before).is_ok() {
                        durable = sequence.0;
                    }
                    if n % 20 == 19 && store.checkpoint().is_ok() {
                        durable = store.applied().0;
                    }
                }
            }
            image = medium.inner.to_bytes();
            let store = open(Arc::new(MemoryMedium::from_bytes(image.clone()))).unwrap();
            let found = store.applied().0;
            assert!(found >= durable && found <= history.len() as u64, "{found} of {durable}: seed {seed}");
            history.truncate(found as usize);
            let mut model = Model::new();
            history.iter().for_each(|ops| play(&mut model, ops));
            assert!(contents(&store) == model, "seed {seed}: not the state after batch {found}");
            assert_eq!(store.verify(), Ok(model.len() as u64), "seed {seed}");
        }
    }
    assert!(lives > 20, "only {lives} lives got as far as a store");
}

#[test]
fn a_mount_reads_few_blocks_whatever_the_number_of_keys() {
    for records in [100u32, 300_000] {
        let medium = Arc::new(MemoryMedium::new(40_000));
        Store::format(&*medium, &Options::default()).unwrap();
        let store = open(medium.clone()).unwrap();
        for n in 0..records {
            store.apply(&encode(&[(n.to_be_bytes().to_vec(), Some(vec![1; 90]))])).unwrap();
        }
        store.close().unwrap();
        drop(store);
        let store = open(medium).unwrap();
        assert!(store.stats().mount_blocks_read <= 36, "{:?}", store.stats());
        for n in [0, records / 2, records - 1] {
            assert!(get(&store, &n.to_be_bytes()).is_some());
        }
        assert!(store.stats().blocks_read <= 46, "{:?}", store.stats());
    }
}

/// A store whose log holds about 24 blocks, from appends of one block and of many, after `rounds` of as much;
/// the batches of the log, and the last append lies in one block.
fn with_a_log(rounds: u64) -> (Vec<u8>, Model, u64) {
    let medium = format(700);
    let store = open(medium.clone()).unwrap();
    let (mut random, mut model) = (Dice::new(rounds), Model::new());
    let mut change = |bytes: usize, commit: bool| {
        let ops =
            [Op::Put(format!("key{:02}", random.roll(60)).into_bytes(), vec![random.next() as u8; bytes])];
        let sequence = store.apply(&encode(&ops)).unwrap();
        play(&mut model, &ops);
        if commit {
            store.commit(sequence, Barrier::None).unwrap();
        }
    };
    for round in 0..=rounds {
        for n in 0..60 {
            change(if n % 20 == 19 { 18_000 } else { 700 }, n % 7 < 4);
        }
        if round < rounds {
            store.checkpoint().unwrap();
        }
    }
    change(10, true);
    while last_append(&medium.to_bytes()).len() > 1 {
        change(10, true);
    }
    let applied = store.applied().0;
    drop(store);
    (medium.to_bytes(), model, applied)
}

fn number(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
}

/// The blocks that the last append to the log wrote: those whose durable mark is the highest.
fn last_append(image: &[u8]) -> Vec<usize> {
    let blocks = image.chunks(BLOCK).enumerate().filter(|(_, block)| block.starts_with(b"KVLB"));
    let marks: Vec<_> = blocks.map(|(at, block)| (at, number(block, 16))).collect();
    let most = marks.iter().map(|(_, mark)| *mark).max();
    marks.iter().filter(|(_, mark)| Some(*mark) == most).map(|(at, _)| *at).collect()
}

/// Whether `open` blames the damaged block `first`, or where a record in it begins; if not, every batch must be there.
fn is_found_or_harmless(bad: Vec<u8>, model: &Model, applied: u64, first: usize, what: &str) -> bool {
    match open(Arc::new(MemoryMedium::from_bytes(bad))) {
        Ok(store) => {
            assert_eq!(store.applied().0, applied, "{what} of log block {first}: batches vanished");
            assert!(contents(&store) == *model);
            false
        }
        Err(error @ KvError::Corrupt { block, structure: "log", .. }) => {
            // A record that crosses into the damaged block begins at most five blocks before.
            assert!((64 + first as u64 - block.0) % 64 <= 5, "{what} of block {first}: {error}");
            assert!(error.to_string().contains("--salvage"));
            true
        }
        Err(other) => panic!("{what} of log block {first}: {other}"),
    }
}

#[test]
fn damage_in_the_log_is_an_error_and_never_fewer_batches() {
    for rounds in 0..4 {
        let (good, model, applied) = with_a_log(rounds);
        let [tail] = last_append(&good)[..] else { panic!("one block") };
        let mut blamed = BTreeSet::new();
        for block in (1..=64).filter(|&block| block != tail) {
            let own = block * BLOCK..(block + 1) * BLOCK;
            for at in [0, 5, 9, 17, 24, 40, 333, 1000, 2048, 3000, 4095] {
                let mut bad = good.clone();
                bad[own.start + at] ^= 0x10;
                if is_found_or_harmless(bad, &model, applied, block, &format!("a flipped bit at {at}")) {
                    blamed.insert(block);
                }
            }
            for (what, from) in [("another block in place", tail), ("a lost write", 0)] {
                let mut bad = good.clone();
                bad[own.clone()].copy_from_slice(&good[from * BLOCK..][..BLOCK]);
                is_found_or_harmless(bad, &model, applied, block, what);
            }
            for run in [1, 2, 7, 15] {
                let mut bad = good.clone();
                let blocks: Vec<_> = (0..run).map(|n| (block - 1 + n) % 64 + 1).collect();
                if !blocks.contains(&tail) {
                    blocks.iter().for_each(|at| bad[at * BLOCK..][..BLOCK].fill(0));
                    let live = blamed.contains(&block);
                    let found = open(Arc::new(MemoryMedium::from_bytes(bad))).map(|store| store.applied().0);
                    assert!(!live || found.is_err(), "{run} blocks from {block} on: {found:?}");
                    assert!(
                        found.is_err() || found == Ok(applied),
                        "{run} blocks from {block} on: {found:?}"
                    );
                }
            }
        }
        assert!(blamed.len() >= 20, "round {rounds}: {blamed:?}");
    }
}

#[test]
fn a_damaged_log_can_be_read_up_to_the_damage() {
    let (good, _, applied) = with_a_log(0);
    let mut bad = good;
    bad[10 * BLOCK + 2000] ^= 1;
    let medium = Arc::new(MemoryMedium::from_bytes(bad.clone()));
    assert!(matches!(open(medium.clone()), Err(KvError::Corrupt { structure: "log", .. })));
    let options = Options { salvage: true, ..Options::default() };
    let store = Store::open(medium.clone(), pending(1 << 20), &options).unwrap();
    assert!((10..applied).contains(&store.applied().0));
    assert!(contents(&store).len() > 10);
    assert_eq!(store.verify(), Ok(contents(&store).len() as u64));
    let more = store.apply(&encode(&[(vec![1], Some(vec![]))]));
    assert!(matches!(more.and_then(|more| store.commit(more, Barrier::None)), Err(KvError::Failed { .. })));
    assert!(matches!(store.close(), Err(KvError::Failed { .. })));
    drop(store);
    assert!(medium.to_bytes() == bad, "something was written");
}

#[test]
fn a_store_formatted_over_one_with_the_same_identity_is_empty() {
    let (old, ..) = with_a_log(1);
    let medium = Arc::new(MemoryMedium::from_bytes(old));
    Store::format(&*medium, &Options { log_blocks: Some(64), identity: 77, ..Options::default() }).unwrap();
    let store = open(medium).unwrap();
    assert_eq!((store.applied().0, store.verify()), (0, Ok(0)));
}
