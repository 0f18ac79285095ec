//! Bad media: damaged blocks, foreign contents, failing reads and writes, and a region that is full.

mod support;

use nvmed_kv::{Barrier, Batch, KvError, Medium, MediumError, MemoryMedium, Options, Store};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use support::{Random, contents, encode, get, open, pending};

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
    let sequence = store.apply(&encode(&[(vec![1; 9], None), (vec![2; 9], Some(vec![]))]))?;
    store.commit(sequence, Barrier::Before)?;
    store.checkpoint()?;
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
                    assert_eq!(found, block as u64, "the wrong block is blamed");
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
    let mut random = Random::new(11);
    for _ in 0..400 {
        let mut bad = good.clone();
        for _ in 0..=random.below(8) {
            let block = random.below(good.len() as u64 / BLOCK as u64) as usize;
            for _ in 0..=random.below(64) {
                bad[block * BLOCK + random.below(BLOCK as u64) as usize] = random.next() as u8;
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
        newer[block * BLOCK + 8] = 2;
    }
    assert!(message(newer).contains("version 2; this program knows version 1"));
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
    for (blocks, key_bytes, value_bytes) in [(420, 20, 200), (420, 1000, 900), (1000, 12, 0), (3000, 20, 300)]
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

    fn read(&self, block: u64, into: &mut [u8]) -> Result<(), MediumError> {
        self.step("read").and_then(|()| self.inner.read(block, into))
    }

    fn write(&self, block: u64, data: &[u8], fua: bool) -> Result<(), MediumError> {
        let what = if (1..=64).contains(&block) {
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
            "log" | "superblock" => assert!(matches!(retry, Err(KvError::Failed { errno: 28 })), "{retry:?}"),
            _ => {}
        }
        drop(store);
        let store = open(Arc::new(MemoryMedium::from_bytes(medium.inner.to_bytes()))).unwrap();
        assert!(store.applied().0 >= durable, "{kind} at call {at}");
        store.verify().unwrap();
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["flush", "log", "node or page", "read", "superblock"]);
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
