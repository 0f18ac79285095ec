//! One superblock slot is lost, and power is cut while the other is written. The write that is cut may
//! leave nothing of a slot, so the one that was lost must be whole again before that.

use crate::support::{Dice, Model, Op, VolatileMedium, contents, encode, open, play};
use nvmed_kv::{Barrier, Options, Store};

const BLOCKS: usize = 1100;
const FAR: u64 = BLOCKS as u64 - 1;
const KEYS: u32 = 800;

fn rewrite(round: u32, keys: core::ops::Range<u32>) -> Vec<Op> {
    let key = |n: u32| n.wrapping_mul(0x9e37_79b1).to_be_bytes().to_vec();
    keys.map(|n| Op::Put(key(n), vec![(n + round) as u8; 300])).collect()
}

fn lose(bytes: &mut [u8], block: u64) {
    bytes[block as usize * 4096..][..4096].fill(0x5a);
}

/// A store whose tree is all over the region, so that a step soon uses what the one before freed; and
/// changes in its log.
fn filled() -> (Vec<u8>, Model) {
    let medium = VolatileMedium::new(vec![0; BLOCKS * 4096], u64::MAX);
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let store = open(medium.clone()).unwrap();
    let mut model = Model::new();
    let mut change = |round, from| {
        let ops = rewrite(round, from..from + 20);
        store.commit(store.apply(&encode(&ops)).unwrap(), Barrier::None).unwrap();
        play(&mut model, &ops);
    };
    (0..KEYS).step_by(20).for_each(|from| change(0, from));
    let mut random = Dice::new(5);
    for round in 1..60 {
        change(round, random.roll(u64::from(KEYS) / 20) as u32 * 20);
        store.checkpoint().unwrap();
    }
    (0..100).step_by(20).for_each(|from| change(4, from));
    assert!(store.stats().log_bytes > 30_000, "{:?}", store.stats());
    drop(store);
    (medium.after_power_cut(&mut Dice::new(1)), model)
}

/// Opens `image` and uses it in some way, with the power cut at each write in turn. A superblock that was
/// being written then is lost.
fn cut_everywhere(image: &[u8], model: &Model, what: &str, use_it: impl Fn(&Store)) {
    let mut cuts = [0; 2];
    for at in 0.. {
        let medium = VolatileMedium::new(image.to_vec(), at);
        let store = open(medium.clone()).unwrap();
        use_it(&store);
        drop(store);
        let mut bytes = medium.after_power_cut(&mut Dice::new(at));
        let Some(block) = medium.cut_block() else {
            break;
        };
        if block == 0 || block == FAR {
            lose(&mut bytes, block);
            cuts[usize::from(block == FAR)] += 1;
        }
        let store = open(VolatileMedium::new(bytes, u64::MAX))
            .unwrap_or_else(|error| panic!("{what}, write {at} to block {block}: {error}"));
        assert!(contents(&store) == *model, "{what}, write {at} to block {block}");
        assert_eq!(store.verify(), Ok(model.len() as u64), "{what}, write {at} to block {block}");
    }
    assert!(cuts[0] > 0 && cuts[1] > 0, "{what}: the test cuts no superblock");
}

/// The first use is a commit: it writes the superblock for its epoch. Or a checkpoint of what the log holds.
fn both_uses(image: &[u8], model: &Model, what: &str) {
    cut_everywhere(image, model, &format!("{what}, commit"), |store| {
        // The same again: whatever is durable, the contents are those.
        let same: Vec<_> =
            model.iter().take(10).map(|(key, value)| Op::Put(key.clone(), value.clone())).collect();
        if let Ok(sequence) = store.apply(&encode(&same)) {
            let _ = store.commit(sequence, Barrier::None);
        }
        let _ = store.checkpoint();
    });
    cut_everywhere(image, model, &format!("{what}, checkpoint"), |store| {
        let _ = store.checkpoint();
    });
}

#[test]
fn a_slot_that_was_lost_is_whole_before_the_other_is_written() {
    let (image, model) = filled();
    for lost in [0, FAR] {
        let mut image = image.clone();
        lose(&mut image, lost);
        both_uses(&image, &model, &format!("without block {lost}"));
    }
}

#[test]
fn a_slot_with_the_tree_before_is_whole_before_the_other_is_written() {
    let (image, _) = filled();
    let mut images = 0;
    for at in 0.. {
        // Steps of a checkpoint, power cut between the two slots of one that is not the last.
        let medium = VolatileMedium::new(image.clone(), at);
        let store = open(medium.clone()).unwrap();
        for from in (0..KEYS).step_by(20) {
            let ops = rewrite(5, from..from + 20);
            let Ok(sequence) = store.apply(&encode(&ops)) else { break };
            if store.commit(sequence, Barrier::None).is_err() {
                break;
            }
        }
        let steps = store.stats().steps;
        drop(store);
        if !medium.was_cut() {
            break;
        }
        if medium.cut_block() != Some(FAR) {
            continue;
        }
        let mut bytes = medium.after_power_cut(&mut Dice::new(at));
        // What the cut left there: the slot as it was.
        bytes[FAR as usize * 4096..].copy_from_slice(&medium.durable()[FAR as usize * 4096..]);
        let store = open(VolatileMedium::new(bytes.clone(), u64::MAX)).unwrap();
        let found = contents(&store);
        let (batches, records) = (store.stats().batches_recovered, found.len());
        drop(store);
        if batches > 0 && records > 0 && steps > 0 {
            images += 1;
            both_uses(&bytes, &found, &format!("cut at write {at}"));
        }
    }
    assert!(images > 0, "the test has no such image");
}
