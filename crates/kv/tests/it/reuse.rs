//! Circular reuse: a workload of many times the region's size runs in constant space, in bounded steps.

use crate::support::{Dice, Op, encode, pending};
use nvmed_kv::{Barrier, KvError, MemoryMedium, Options, Store};
use std::sync::Arc;

#[test]
fn fifty_times_the_region_in_constant_space_with_a_snapshot_held() {
    const BLOCKS: u64 = 1000;
    const FILES: u64 = 3000;
    for commit_blocks_max in [128, 512] {
        let medium = Arc::new(MemoryMedium::new(BLOCKS));
        let options = Options {
            log_blocks: Some(128),
            node_cache_bytes: 256 << 10,
            commit_blocks_max,
            ..Options::default()
        };
        Store::format(&*medium, &options).unwrap();
        let store = Store::open(medium.clone(), pending(1 << 20), &options).unwrap();
        let mut random = Dice::new(commit_blocks_max);
        let mut snapshot = store.snapshot();
        let (mut written, mut cut, mut used) = (0, 0, 0);
        while written < 50 * BLOCKS * 4096 {
            // As a file system does it: a name comes or goes, its parent and a counter change.
            let n = random.roll(FILES);
            let key = [b"directory/", &(n % 90).to_be_bytes()[..], &n.to_be_bytes()].concat();
            let mut ops = vec![Op::Put(b"counters".to_vec(), written.to_be_bytes().to_vec())];
            ops.push(match random.roll(4) {
                0 => Op::Delete(key),
                _ => Op::Put(key, vec![n as u8; 100 + random.roll(100) as usize]),
            });
            let batch = encode(&ops);
            written += batch.bytes() as u64 + 24;
            let sequence = store.apply(&batch).unwrap();
            if sequence.0.is_multiple_of(8) {
                store.commit(sequence, Barrier::None).unwrap();
            }
            if sequence.0.is_multiple_of(1000) {
                let stats = store.stats();
                used = used.max(stats.tree_blocks_used);
                assert!(stats.tree_blocks_used + stats.tree_blocks_pinned <= stats.tree_blocks);
                if let Err(error) = snapshot.get(b"counters", &mut Vec::new()) {
                    assert!(matches!(error, KvError::SnapshotTooOld { .. }), "{error}");
                    snapshot = store.snapshot();
                    cut += 1;
                }
            }
        }
        drop(snapshot);
        let stats = store.stats();
        eprintln!("{cut} snapshots were cut off; at most {used} blocks used; {stats:?}");
        assert!(stats.commit_blocks_worst > 0 && stats.commit_blocks_worst <= commit_blocks_max, "{stats:?}");
        assert!(stats.steps_forced * 50 <= stats.steps, "commits did not keep up: {stats:?}");
        assert!(stats.checkpoints > 20 && cut > 0, "{stats:?}");
        store.verify().unwrap();
    }
}

#[test]
fn ranges_that_hold_nothing_are_erased_in_bounded_steps() {
    let medium = Arc::new(MemoryMedium::new(20_000));
    let options = Options { log_blocks: Some(256), commit_blocks_max: 128, ..Options::default() };
    Store::format(&*medium, &options).unwrap();
    let store = Store::open(medium.clone(), pending(1 << 20), &options).unwrap();
    let key = |n: u32, last: u8| [&n.to_be_bytes()[..], &[last]].concat();
    for n in 0..8000 {
        store.apply(&encode(&[Op::Put(key(n, 0), vec![n as u8; 900])])).unwrap();
    }
    store.checkpoint().unwrap();
    assert!(store.stats().tree_blocks_used > 1600);
    // Between two keys each, all over the tree.
    let mut n = 0;
    let goal = store.stats().checkpoints + 2;
    while store.stats().checkpoints < goal {
        n = (n + 13) % 8000;
        let sequence = store.apply(&encode(&[Op::DeleteRange(key(n, 1), key(n, 2))])).unwrap();
        store.commit(sequence, Barrier::None).unwrap();
    }
    let stats = store.stats();
    assert!(stats.commit_blocks_worst <= 128, "{stats:?}");
    assert_eq!(store.verify(), Ok(8000));
}
