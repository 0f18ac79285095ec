//! The store against a `BTreeMap`: whatever is done to both, they hold the same.

use crate::support::{Change, Model, contents, encode, get, open, play};
use core::ops::{Bound, ControlFlow};
use nvmed_kv::{Barrier, Batch, MemoryMedium, Options, Store};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<Change>),
    Commit,
    Checkpoint,
    Reopen,
    Check(Vec<u8>, Vec<u8>),
}

/// Few enough keys to meet again, of all lengths, some differing only at the end or in trailing zeroes.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0u16..400).prop_map(|n| [&[0; 7][..], &n.to_be_bytes(), b"\0name"].concat()),
        1 => prop::collection::vec(0u8..2, 0..6),
        3 => (0u16..500).prop_map(long_key),
        1 => (0u8..5, 1000usize..=1024).prop_map(|(n, length)| vec![n; length]),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let length = prop_oneof![3 => 0usize..100, 1 => 900usize..=1024];
    (key(), prop::option::weighted(0.7, (length, any::<u8>()).prop_map(|(length, n)| vec![n; length])))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop::collection::vec(change(), 0..30).prop_map(Step::Apply),
        2 => Just(Step::Commit),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
        4 => (key(), key()).prop_map(|(a, b)| Step::Check(a, b)),
    ]
}

fn between(store: &Store, from: Bound<&[u8]>, to: Bound<&[u8]>, down: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    match down {
        true => store.scan_reverse(from, to, &mut visit),
        false => store.scan(from, to, &mut visit),
    }
    .unwrap();
    all
}

fn check_ranges(store: &Store, model: &Model, a: &[u8], b: &[u8]) {
    assert_eq!(get(store, a), model.get(a).cloned());
    let (low, high) = (a.min(b), a.max(b));
    let bounds = [Bound::Included, Bound::Excluded];
    for from in bounds {
        for to in bounds {
            if low == high {
                continue;
            }
            let want: Vec<_> = model
                .range::<[u8], _>((from(low), to(high)))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(between(store, from(low), to(high), false), want);
            let down: Vec<_> = want.into_iter().rev().collect();
            assert_eq!(between(store, from(low), to(high), true), down);
        }
    }
}

fn run(steps: Vec<Step>) {
    let medium = Arc::new(MemoryMedium::new(3000));
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let mut store = open(medium.clone()).unwrap();
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Apply(changes) => {
                store.apply(&encode(&changes)).unwrap();
                play(&mut model, &changes);
            }
            Step::Commit => store.commit(store.applied(), Barrier::None).unwrap(),
            Step::Checkpoint => store.checkpoint().unwrap(),
            Step::Reopen => {
                store.close().unwrap();
                drop(store);
                store = open(medium.clone()).unwrap();
            }
            Step::Check(a, b) => check_ranges(&store, &model, &a, &b),
        }
    }
    assert_eq!(contents(&store), model);
    assert_eq!(store.verify(), Ok(model.len() as u64));
    store.checkpoint().unwrap();
    assert_eq!(contents(&store), model);
    assert_eq!(store.verify(), Ok(model.len() as u64));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_store_is_an_ordered_map(steps in prop::collection::vec(step(), 1..80)) {
        run(steps);
    }
}

/// Separators of a thousand bytes, three to a node: a deep tree of few records.
fn long_key(n: u16) -> Vec<u8> {
    [&[1; 1000][..], &n.to_be_bytes()].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_deep_tree_loses_nothing_when_subtrees_go_and_come(
        steps in prop::collection::vec((0u16..150, 1u16..50, 1u16..9, any::<bool>()), 1..100),
    ) {
        let medium = Arc::new(MemoryMedium::new(3000));
        Store::format(&*medium, &Options { log_blocks: Some(128), ..Options::default() }).unwrap();
        let store = open(medium).unwrap();
        let mut model = Model::new();
        for (first, count, stride, put) in steps {
            let keys = (first..first + count).step_by(usize::from(stride));
            let changes: Vec<_> = keys.map(|n| (long_key(n), put.then(|| vec![n as u8; 800]))).collect();
            for changes in changes.chunks(20) {
                store.apply(&encode(changes)).unwrap();
                play(&mut model, changes);
            }
            store.checkpoint().unwrap();
            for key in model.keys() {
                prop_assert!(get(&store, key).is_some(), "a key is lost");
            }
        }
        prop_assert_eq!(contents(&store), model.clone());
        prop_assert_eq!(store.verify(), Ok(model.len() as u64));
    }
}

#[test]
fn many_records_go_in_and_out_again() {
    let medium = Arc::new(MemoryMedium::new(20_000));
    Store::format(&*medium, &Options { log_blocks: Some(512), ..Options::default() }).unwrap();
    let store = open(medium.clone()).unwrap();
    let key = |n: u32| [&n.wrapping_mul(0x9e37_79b1).to_be_bytes()[..], b" and a name"].concat();
    let mut batch = Batch::new();
    for n in 0..100_000u32 {
        batch.clear();
        batch.put(&key(n), &n.to_le_bytes());
        store.apply(&batch).unwrap();
    }
    assert!(store.stats().checkpoints > 1, "{:?}", store.stats());
    assert_eq!(store.verify(), Ok(100_000));
    for n in (0..100_000u32).step_by(97) {
        assert_eq!(get(&store, &key(n)), Some(n.to_le_bytes().to_vec()));
    }
    for n in 0..100_000u32 {
        batch.clear();
        batch.delete(&key(n));
        store.apply(&batch).unwrap();
    }
    store.checkpoint().unwrap();
    assert_eq!(store.verify(), Ok(0));
    assert_eq!(store.stats().tree_blocks_used, 0, "an empty tree has no blocks");
}

#[test]
fn a_scan_may_change_the_store_it_walks() {
    let medium = Arc::new(MemoryMedium::new(2000));
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let store = open(medium).unwrap();
    for n in 0..3000u32 {
        store.apply(&encode(&[(n.to_be_bytes().to_vec(), Some(vec![7; 20]))])).unwrap();
    }
    let mut seen = 0;
    store
        .scan(Bound::Unbounded, Bound::Unbounded, &mut |key, _| {
            seen += 1;
            store.apply(&encode(&[(key.to_vec(), None)])).unwrap();
            if seen % 500 == 0 {
                store.checkpoint().unwrap();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, 3000);
    assert!(contents(&store).is_empty());
}
