//! Power is cut at every write. What a store holds afterwards is the state after some batch, at or after
//! the last one whose commit returned; every block of it is sound; and it goes on from there.
//!
//! The fault model is `support::VolatileMedium`'s: what was not flushed or written with FUA may be there,
//! sector by sector, in any of its versions; so may any part of the write that is cut.

mod support;

use nvmed_kv::{Barrier, KvError, Medium, MemoryMedium, Options, Sequence, Store};
use std::sync::Arc;
use support::{Change, Model, Random, VolatileMedium, contents, encode, open, play};

const BLOCKS: u64 = 420;

/// Batches in the order of their sequences.
type History = Vec<Vec<Change>>;

fn formatted() -> Vec<u8> {
    let medium = VolatileMedium::new(vec![0; BLOCKS as usize * 4096], u64::MAX);
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    medium.after_power_cut(&mut Random::new(1))
}

/// Batches of one length often: leftovers of the log then lie exactly where later batches end.
fn batch(random: &mut Random, sequence: u64) -> Vec<Change> {
    let operations = if random.below(3) == 0 { 1 + random.below(11) } else { 3 };
    let mut changes = Vec::new();
    for _ in 0..operations {
        let key = format!("key{:03}", random.below(300)).into_bytes();
        let deleted = random.below(5) == 0;
        let value = [&sequence.to_be_bytes()[..], &[random.next() as u8; 200]].concat();
        changes.push((key, (!deleted).then_some(value)));
    }
    changes
}

fn barrier(random: &mut Random) -> Barrier {
    [Barrier::None, Barrier::Before, Barrier::After][random.below(3) as usize]
}

/// Applies and commits until `batches` are applied or the power goes; answers the last durable batch.
fn work(
    store: &Store,
    history: &mut History,
    batches: u64,
    random: &mut Random,
) -> (u64, Result<(), KvError>) {
    let mut durable = history.len() as u64;
    let outcome = (|| {
        for _ in 0..batches {
            let changes = batch(random, store.applied().0 + 1);
            // Before the call: a batch whose `apply` fails may be in the log, if a checkpoint failed after it.
            history.push(changes);
            let sequence = store.apply(&encode(history.last().unwrap())).inspect_err(|_| {
                history.pop();
            })?;
            assert_eq!(sequence, Sequence(history.len() as u64));
            match random.below(40) {
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
    let mut history = History::new();
    let medium = VolatileMedium::new(image.to_vec(), first);
    let mut durable = 0;
    if let Ok(store) = open(medium.clone()) {
        // The same work every time, up to the cut.
        durable = work(&store, &mut history, batches, &mut Random::new(7)).0;
    }
    let (writes, cut) = (medium.writes(), medium.was_cut());
    let mut random = Random::new(seed);
    let mut image = medium.after_power_cut(&mut random);
    for again in [second, u64::MAX] {
        let medium = VolatileMedium::new(image, again);
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
    let image = formatted();
    let batches = 400;
    let (writes, cut) = life(&image, 0, batches, u64::MAX, u64::MAX);
    assert!(!cut && writes > 200, "{writes} writes: the test cuts nothing");
    for at in 0..writes {
        for seed in 2 * at..2 * at + 2 {
            eprintln!("power cut at write {at}, seed {seed}");
            life(&image, seed, batches, at, seed % 9);
        }
    }
}

#[test]
fn power_is_cut_while_checkpoints_go_in_small_steps() {
    // A tree that fills most of the region, so that each checkpoint has few free blocks to work with.
    let medium = VolatileMedium::new(formatted(), u64::MAX);
    let store = open(medium.clone()).unwrap();
    let mut history = History::new();
    loop {
        let n = history.len();
        let changes = vec![(format!("fill{:05}", n * 7919 % 10_000).into_bytes(), Some(vec![n as u8; 400]))];
        match store.apply(&encode(&changes)) {
            Ok(_) => history.push(changes),
            Err(KvError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    store.checkpoint().unwrap();
    let steps_before = store.stats().checkpoints;
    drop(store);
    assert!(history.len() > 500, "{} records filled the store", history.len());
    let image = medium.after_power_cut(&mut Random::new(3));
    // Now a delta that touches every leaf.
    let touch = |n: usize| {
        let key = format!("fill{:05}", n * 7919 % 10_000).into_bytes();
        (key, (!n.is_multiple_of(3)).then(|| vec![1; 400]))
    };
    let life = |cut_at: u64| {
        let mut history = history.clone();
        let medium = VolatileMedium::new(image.clone(), cut_at);
        let mut durable = history.len() as u64;
        if let Ok(store) = open(medium.clone()) {
            for chunk in (0..history.len()).step_by(20) {
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
        }
        let image = medium.after_power_cut(&mut Random::new(cut_at));
        reopen(VolatileMedium::new(image, u64::MAX), &mut history, durable);
        (medium.writes(), medium.was_cut())
    };
    let (writes, cut) = life(u64::MAX);
    assert!(!cut && writes > 30, "{writes} writes after {steps_before} checkpoints");
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
            let image = medium.after_power_cut(&mut Random::new(seed));
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
    // Four records of 1020 bytes fill a log block's 4080: only there does a leftover follow at once,
    // since what is behind the end of the log within its block is zeroed by each append.
    let same_size = |n: u8| encode(&[(vec![n], Some(vec![n; 1020 - 24 - 5 - 1]))]);
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
    let mut random = Random::new(5);
    for n in 0..700 {
        let changes = vec![(format!("{:03}", random.below(200)).into_bytes(), Some(vec![n as u8; 1000]))];
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
            let mut random = Random::new(round);
            let (durable, outcome) = work(&store, &mut history, 50, &mut random);
            outcome.unwrap();
            let mut bytes = medium.to_bytes();
            bytes[lost * 4096..][..4096].fill(0xa5);
            reopen(Arc::new(MemoryMedium::from_bytes(bytes)), &mut history.clone(), durable);
        }
    }
}
