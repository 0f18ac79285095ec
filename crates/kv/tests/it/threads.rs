//! Many threads on one store.

use crate::support::{contents, encode, get, open};
use core::ops::{Bound, ControlFlow};
use nvmed_kv::{Barrier, Medium, MediumError, MemoryMedium, Options, Store};
use nvmed_units::Block;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

fn store(blocks: u64) -> (Arc<MemoryMedium>, Store) {
    let medium = Arc::new(MemoryMedium::new(blocks));
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    (medium.clone(), open(medium).unwrap())
}

/// A medium whose log writes wait until they are let through, one by one.
struct GatedMedium {
    inner: MemoryMedium,
    gate: Mutex<(bool, u64, u64)>, // closed, arrived, let through
    changed: Condvar,
    flushes: AtomicU64,
}

impl GatedMedium {
    fn close(&self) {
        self.gate.lock().unwrap().0 = true;
    }

    fn open(&self) {
        self.gate.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn wait_for_arrival(&self, number: u64) {
        let mut gate = self.gate.lock().unwrap();
        while gate.1 < number {
            gate = self.changed.wait(gate).unwrap();
        }
    }
}

impl Medium for GatedMedium {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        self.inner.read(block, into)
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        let mut gate = self.gate.lock().unwrap();
        gate.1 += 1;
        self.changed.notify_all();
        while gate.0 {
            gate = self.changed.wait(gate).unwrap();
        }
        drop(gate);
        self.inner.write(block, data, fua)
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.inner.flush()
    }
}

fn gated() -> (Arc<GatedMedium>, Store) {
    let medium = Arc::new(GatedMedium {
        inner: MemoryMedium::new(2000),
        gate: Mutex::default(),
        changed: Condvar::new(),
        flushes: AtomicU64::new(0),
    });
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let store = open(medium.clone()).unwrap();
    // The first append also writes a superblock: have that behind us.
    let first = store.apply(&encode(&[(b"first".to_vec(), Some(vec![]))])).unwrap();
    store.commit(first, Barrier::None).unwrap();
    (medium, store)
}

#[test]
fn commits_that_wait_share_one_append() {
    let (medium, store) = gated();
    let before = store.stats();
    medium.close();
    let arrived = medium.gate.lock().unwrap().1;
    let entered = AtomicU64::new(0);
    let commit = |n: u8| {
        let sequence = store.apply(&encode(&[(vec![n], Some(vec![n; 100]))])).unwrap();
        entered.fetch_add(1, Ordering::SeqCst);
        store.commit(sequence, Barrier::Before).unwrap();
        assert!(store.durable() >= sequence);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| commit(0));
        medium.wait_for_arrival(arrived + 1);
        for n in 1..9 {
            scope.spawn(move || commit(n));
        }
        // All have applied; those that are not in `commit` yet will find the leader there.
        while entered.load(Ordering::SeqCst) < 9 {
            std::thread::yield_now();
        }
        medium.open();
    });
    let after = store.stats();
    assert!(after.log_appends - before.log_appends <= 3, "{after:?}");
    assert!(after.flushes - before.flushes <= 3, "{after:?}");
}

#[test]
fn nobody_who_reads_or_applies_waits_for_a_commit() {
    let (medium, store) = gated();
    medium.close();
    let arrived = medium.gate.lock().unwrap().1;
    let sequence = store.apply(&encode(&[(b"a".to_vec(), Some(b"1".to_vec()))])).unwrap();
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| store.commit(sequence, Barrier::None));
        medium.wait_for_arrival(arrived + 1);
        // The append hangs in the medium. This thread goes on, or the test never ends.
        assert_eq!(get(&store, b"a"), Some(b"1".to_vec()));
        store.apply(&encode(&[(b"b".to_vec(), Some(b"2".to_vec()))])).unwrap();
        assert_eq!(contents(&store).len(), 3);
        medium.open();
        committer.join().unwrap().unwrap();
    });
}

#[test]
fn a_batch_that_needs_a_flush_gets_it_whoever_commits_it() {
    let (medium, store) = gated();
    let flushes = || medium.flushes.load(Ordering::SeqCst);
    let batch = |n: u8| encode(&[(vec![n], Some(vec![]))]);
    let mut marked = batch(1);
    marked.require_flush();
    let before = flushes();
    let marked = store.apply(&marked).unwrap();
    let plain = store.apply(&batch(2)).unwrap();
    store.commit(plain, Barrier::None).unwrap();
    assert_eq!(flushes() - before, 1, "somebody else's commit named data that was not flushed");
    store.commit(marked, Barrier::Before).unwrap();
    assert_eq!(flushes() - before, 1, "it was flushed already");
    store.commit(marked, Barrier::After).unwrap();
    assert_eq!(flushes() - before, 2, "an overwrite with nothing to append is one flush");
    // Not marked, carried by a commit without a barrier: who asks for one still gets the flush.
    let plain = store.apply(&batch(3)).unwrap();
    store.commit(plain, Barrier::None).unwrap();
    store.commit(plain, Barrier::Before).unwrap();
    assert_eq!(flushes() - before, 3);
    store.commit(plain, Barrier::Before).unwrap();
    store.commit(plain, Barrier::None).unwrap();
    assert_eq!(flushes() - before, 3);
}

#[test]
fn readers_see_whole_batches_while_checkpoints_reuse_blocks() {
    // A region so small, and a node cache so small, that freed blocks are written again at once.
    let (_, store) = store(700);
    let pair = |n: u64, round: u64| {
        let value = [&round.to_be_bytes()[..], &[0; 300]].concat();
        let key = |side: u8| [&[side][..], &n.to_be_bytes()].concat();
        encode(&[(key(0), Some(value.clone())), (key(1), Some(value))])
    };
    for n in 0..150 {
        store.apply(&pair(n, 0)).unwrap();
    }
    store.checkpoint().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2u64 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut n = reader;
                while !done.load(Ordering::Relaxed) {
                    n = (n + 7) % 150;
                    // The right half is written with the left: read second, it is never older.
                    let side = |side: u8| get(store, &[&[side][..], &n.to_be_bytes()].concat()).unwrap();
                    let (left, right) = (side(0), side(1));
                    assert!(right[..8] >= left[..8], "half a batch was visible");
                    if n % 10 > 0 {
                        continue;
                    }
                    let mut count = 0;
                    store
                        .scan(Bound::Included(&[0]), Bound::Excluded(&[1]), &mut |_, _| {
                            count += 1;
                            ControlFlow::Continue(())
                        })
                        .unwrap();
                    assert_eq!(count, 150, "a scan missed keys that were there all the time");
                }
            });
        }
        for round in 1..600 {
            for n in (0..150).filter(|n| (n + round) % 3 == 0) {
                store.apply(&pair(n, round)).unwrap();
            }
            store.checkpoint().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(store.verify(), Ok(300));
}

#[test]
fn writers_of_many_threads_fill_the_log_many_times() {
    let (medium, store) = store(4000);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..1500u32 {
                    let key = [thread.to_be_bytes(), n.to_be_bytes()].concat();
                    let sequence = store.apply(&encode(&[(key, Some(vec![thread as u8; 200]))])).unwrap();
                    if n % 10 == 0 {
                        store.commit(sequence, Barrier::None).unwrap();
                    }
                }
            });
        }
    });
    store.close().unwrap();
    assert!(store.stats().checkpoints > 2);
    drop(store);
    let store = open(medium).unwrap();
    assert_eq!(contents(&store).len(), 6000);
    assert_eq!(store.verify(), Ok(6000));
}
