//! Snapshots and iterators against `BTreeMap`: what a snapshot sees does not change, whatever happens.

use crate::support::{Dice, Model, Op, contents, encode, get, pending, play};
use core::ops::{Bound, ControlFlow};
use nvmed_kv::{Barrier, Iter, KvError, MemoryMedium, Options, Sequence, Snapshot, Store};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

fn store(blocks: u64, options: &Options) -> Store {
    let medium = Arc::new(MemoryMedium::new(blocks));
    let options = Options { log_blocks: Some(64), node_cache_bytes: 0, ..options.clone() };
    Store::format(&*medium, &options).unwrap();
    Store::open(medium, pending(256 << 10), &options).unwrap()
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0u16..300).prop_map(|n| [b"directory/", &n.to_be_bytes()[..]].concat()),
        1 => prop::collection::vec(0u8..2, 0..6),
        1 => (0u16..50).prop_map(|n| [&[1; 700][..], &n.to_be_bytes()].concat()),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let length = prop_oneof![6 => 0usize..200, 1 => 900usize..=1024];
    prop_oneof![
        12 => (key(), length, any::<u8>()).prop_map(|(key, length, byte)| Op::Put(key, vec![byte; length])),
        4 => key().prop_map(Op::Delete),
        1 => (key(), key()).prop_map(|(a, b)| match RANGES {
            true => Op::DeleteRange(a.clone().min(b.clone()), a.max(b)),
            false => Op::Delete(a),
        }),
    ]
}

/// The tree does not take up ranges yet.
const RANGES: bool = true;

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<Op>),
    Commit,
    Checkpoint,
    Take,
    Drop(usize),
    Check(Vec<u8>, Vec<u8>),
    Walk(Vec<(u8, Vec<u8>)>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => prop::collection::vec(op(), 0..25).prop_map(Step::Apply),
        2 => Just(Step::Commit),
        2 => Just(Step::Checkpoint),
        3 => Just(Step::Take),
        1 => any::<usize>().prop_map(Step::Drop),
        2 => (key(), key()).prop_map(|(a, b)| Step::Check(a, b)),
        2 => prop::collection::vec((0u8..4, key()), 1..40).prop_map(Step::Walk),
    ]
}

fn all_of(
    snapshot: &Snapshot<'_>,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    down: bool,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    match down {
        true => snapshot.scan_reverse(from, to, &mut visit),
        false => snapshot.scan(from, to, &mut visit),
    }
    .unwrap();
    all
}

fn pairs(model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn check(snapshot: &Snapshot<'_>, model: &Model, a: &[u8], b: &[u8]) {
    let mut value = Vec::new();
    for key in [a, b] {
        assert_eq!(snapshot.get(key, &mut value).unwrap(), model.contains_key(key), "{key:?}");
        assert_eq!(&value, model.get(key).unwrap_or(&Vec::new()));
    }
    let (low, high) = (a.min(b), a.max(b));
    if low < high {
        let want = model.range::<[u8], _>((Bound::Excluded(low), Bound::Included(high)));
        let want: Vec<_> = want.map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(all_of(snapshot, Bound::Excluded(low), Bound::Included(high), false), want);
        let down: Vec<_> = want.into_iter().rev().collect();
        assert_eq!(all_of(snapshot, Bound::Excluded(low), Bound::Included(high), true), down);
    }
}

/// Moves an iterator and a position in `model` alike.
fn walk(mut iter: Iter<'_>, model: &Model, moves: &[(u8, Vec<u8>)]) {
    let list = pairs(model);
    // The index of the place; -1 is before the first, the length past the last.
    let mut place = -1isize;
    for (kind, key) in moves {
        let found = match kind {
            0 => {
                place = list.partition_point(|(have, _)| have < key) as isize;
                iter.seek(key)
            }
            1 => {
                place = list.len() as isize - 1;
                iter.seek_to_last()
            }
            2 => {
                place = (place + 1).min(list.len() as isize);
                iter.next()
            }
            _ => {
                place = (place - 1).max(-1);
                iter.prev()
            }
        };
        let found = found.unwrap().map(|(key, value)| (key.to_vec(), value.to_vec()));
        let want = usize::try_from(place).ok().and_then(|place| list.get(place)).cloned();
        assert_eq!(found, want, "after {kind} {key:?}");
    }
}

fn run(steps: Vec<Step>) {
    let store = store(3000, &Options { commit_blocks_max: 128, ..Options::default() });
    let mut model = Model::new();
    let mut snapshots: Vec<(Snapshot<'_>, Model)> = Vec::new();
    for step in steps {
        match step {
            Step::Apply(ops) => {
                store.apply(&encode(&ops)).unwrap();
                play(&mut model, &ops);
            }
            Step::Commit => store.commit(store.applied(), Barrier::None).unwrap(),
            Step::Checkpoint => store.checkpoint().unwrap(),
            Step::Take => snapshots.push((store.snapshot(), model.clone())),
            Step::Drop(index) => {
                if !snapshots.is_empty() {
                    drop(snapshots.swap_remove(index % snapshots.len()));
                }
            }
            Step::Check(a, b) => {
                for key in [&a, &b] {
                    assert_eq!(get(&store, key), model.get(key).cloned(), "{key:?} now");
                }
                for (snapshot, model) in &snapshots {
                    check(snapshot, model, &a, &b);
                }
            }
            Step::Walk(moves) => {
                walk(store.iter(ALL.0, ALL.1), &model, &moves);
                if let Some((snapshot, model)) = snapshots.first() {
                    walk(snapshot.iter(ALL.0, ALL.1), model, &moves);
                }
            }
        }
    }
    assert_eq!(contents(&store), model);
    for (snapshot, model) in &snapshots {
        assert_eq!(all_of(snapshot, ALL.0, ALL.1, false), pairs(model), "batch {:?}", snapshot.sequence());
    }
    store.checkpoint().unwrap();
    for (snapshot, model) in &snapshots {
        assert_eq!(all_of(snapshot, ALL.0, ALL.1, false), pairs(model), "after a checkpoint");
    }
    drop(snapshots);
    store.checkpoint().unwrap();
    assert_eq!(store.verify(), Ok(model.len() as u64));
    assert_eq!(store.stats().snapshots, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_snapshot_sees_what_it_saw(steps in prop::collection::vec(step(), 1..70)) {
        run(steps);
    }

    #[test]
    fn an_iterator_stays_within_its_bounds(
        keys in prop::collection::btree_set(key(), 1..60),
        low in key(),
        high in key(),
        excluded in any::<bool>(),
        moves in prop::collection::vec((0u8..4, key()), 1..60),
    ) {
        let store = store(1000, &Options::default());
        let ops: Vec<_> = keys.iter().map(|key| Op::Put(key.clone(), b"value".to_vec())).collect();
        store.apply(&encode(&ops[..ops.len() / 2])).unwrap();
        store.checkpoint().unwrap();
        store.apply(&encode(&ops[ops.len() / 2..])).unwrap();
        let (low, high) = (low.clone().min(high.clone()), low.max(high));
        let kind = |key: _| if excluded { Bound::Excluded(key) } else { Bound::Included(key) };
        let inside = |key: &&Vec<u8>| match excluded {
            true => **key > low && **key < high,
            false => **key >= low && **key <= high,
        };
        let model: Model = keys.iter().filter(inside).map(|key| (key.clone(), b"value".to_vec())).collect();
        walk(store.iter(kind(low.as_slice()), kind(high.as_slice())), &model, &moves);
    }
}

fn put(store: &Store, n: u64, byte: u8) {
    let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    store.apply(&encode(&[Op::Put(key, vec![byte; 300])])).unwrap();
}

#[test]
fn a_snapshot_past_a_bound_is_cut_off_and_says_so() {
    let by_age =
        Options { snapshot_checkpoints_max: 3, snapshot_blocks_max: Some(u64::MAX), ..Options::default() };
    let by_blocks = Options { snapshot_blocks_max: Some(100), ..Options::default() };
    for (options, what) in [(by_age, "4 checkpoints (at most 3)"), (by_blocks, "(at most 100)")] {
        let store = store(3000, &options);
        (0..2000).for_each(|n| put(&store, n, 1));
        store.checkpoint().unwrap();
        let (old, mut value) = (store.snapshot(), Vec::new());
        let key = 5u64.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        assert_eq!(old.get(&key, &mut value), Ok(true));
        let mut error = None;
        for round in 0..10 {
            (0..2000).step_by(5).for_each(|n| put(&store, n, round));
            store.checkpoint().unwrap();
            error = old.get(&key, &mut value).err();
            if error.is_some() {
                break;
            }
            assert_eq!(value, vec![1; 300]);
        }
        let error = error.expect("it was never cut off");
        assert!(matches!(error, KvError::SnapshotTooOld { sequence: Sequence(2000), .. }), "{error:?}");
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(old.scan(ALL.0, ALL.1, &mut |_, _| ControlFlow::Continue(())), Err(error.clone()));
        assert_eq!(old.iter(ALL.0, ALL.1).next(), Err(error));
        assert_eq!((store.stats().snapshots, store.stats().tree_blocks_pinned), (0, 0));
        let young = store.snapshot();
        assert_eq!(young.get(&key, &mut value), Ok(true));
    }
}

#[test]
fn a_snapshot_never_makes_the_store_full() {
    let options = Options {
        snapshot_blocks_max: Some(u64::MAX),
        snapshot_checkpoints_max: u64::MAX,
        ..Options::default()
    };
    let store = store(500, &options);
    let mut random = Dice::new(3);
    let mut snapshot = store.snapshot();
    let mut cut = 0;
    for n in 0..20_000 {
        put(&store, random.roll(600), n as u8);
        if n % 20 == 0 {
            store.commit(store.applied(), Barrier::None).unwrap();
        }
        if n % 100 == 0 && snapshot.get(b"x", &mut Vec::new()).is_err() {
            snapshot = store.snapshot();
            cut += 1;
        }
    }
    drop(snapshot);
    assert!(cut > 3, "the snapshot was cut off {cut} times: the test makes nothing full");
    store.checkpoint().unwrap();
    store.verify().unwrap();
}

#[test]
fn snapshots_of_many_threads_see_whole_batches() {
    // Each batch moves an amount from one account to another: every snapshot has the same sum.
    const ACCOUNTS: u64 = 200;
    let store = store(1200, &Options { snapshot_checkpoints_max: 8, ..Options::default() });
    let key = |n: u64| [b"account/", &n.to_be_bytes()[..]].concat();
    let value = |amount: i64| [&amount.to_be_bytes()[..], &[0; 150]].concat();
    let ops: Vec<_> = (0..ACCOUNTS).map(|n| Op::Put(key(n), value(1000))).collect();
    for ops in ops.chunks(20) {
        store.apply(&encode(ops)).unwrap();
    }
    let (done, looked, cut) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    for _ in 0..3 {
                        let (mut sum, mut count) = (0, 0);
                        let outcome = snapshot.scan(ALL.0, ALL.1, &mut |_, value| {
                            sum += i64::from_be_bytes(value[..8].try_into().unwrap());
                            count += 1;
                            ControlFlow::Continue(())
                        });
                        match outcome {
                            Ok(()) => assert_eq!((count, sum), (ACCOUNTS, 1000 * ACCOUNTS as i64)),
                            Err(KvError::SnapshotTooOld { .. }) => _ = cut.fetch_add(1, Ordering::Relaxed),
                            Err(error) => panic!("{error}"),
                        }
                        looked.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut random = Dice::new(9);
        let mut amounts = vec![1000i64; ACCOUNTS as usize];
        for n in 0..30_000u64 {
            let (from, to) = (random.roll(ACCOUNTS) as usize, random.roll(ACCOUNTS) as usize);
            if from == to {
                continue;
            }
            amounts[from] -= 7;
            amounts[to] += 7;
            let ops = [from, to].map(|n| Op::Put(key(n as u64), value(amounts[n])));
            let sequence = store.apply(&encode(&ops)).unwrap();
            if n % 16 == 0 {
                store.commit(sequence, Barrier::None).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(looked.load(Ordering::Relaxed) > 10 && store.stats().checkpoints > 10, "{:?}", store.stats());
    assert_eq!(store.verify(), Ok(ACCOUNTS));
}
