//! A store takes what its medium has got since, and power may be cut meanwhile.

use crate::support::{Dice, Model, Op, VolatileMedium, contents, encode, open, play};
use nvmed_kv::{Barrier, Medium, Options, Store};
use std::sync::Arc;

const SMALL: usize = 420;

fn filled(blocks: usize) -> (Vec<u8>, Model) {
    let medium = VolatileMedium::new(vec![0; blocks * 4096], u64::MAX);
    Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
    let store = open(medium.clone()).unwrap();
    let mut model = Model::new();
    for n in 0..300u32 {
        let ops = [Op::Put(n.wrapping_mul(0x9e37_79b1).to_be_bytes().to_vec(), vec![n as u8; 500])];
        let sequence = store.apply(&encode(&ops)).unwrap();
        play(&mut model, &ops);
        store.commit(sequence, Barrier::None).unwrap();
    }
    store.close().unwrap();
    drop(store);
    (medium.after_power_cut(&mut Dice::new(1)), model)
}

/// Old data where the store is to grow: it is no help, and no danger.
fn enlarged(image: &[u8], blocks: usize) -> Vec<u8> {
    let mut random = Dice::new(8);
    let mut bytes = image.to_vec();
    bytes.extend((bytes.len()..blocks * 4096).map(|_| random.next() as u8));
    bytes
}

#[test]
fn more_fits_after_it_grew_and_all_is_there() {
    // Into the same bitmap page, and across one more.
    for blocks in [1000, 33_500] {
        let (image, mut model) = filled(SMALL);
        let medium = VolatileMedium::new(enlarged(&image, blocks), u64::MAX);
        let store = open(medium.clone()).unwrap();
        let before = store.stats().tree_blocks;
        let more = store.grow().unwrap();
        assert!(more as usize >= blocks - SMALL - 6, "{more} more of {blocks}");
        assert_eq!(store.stats().tree_blocks, before + more);
        assert_eq!(store.grow(), Ok(0));
        for n in 0..1200u32 {
            let ops = [Op::Put([b"more", &n.to_be_bytes()[..]].concat(), vec![n as u8; 1000])];
            match store.apply(&encode(&ops)) {
                Ok(_) => play(&mut model, &ops),
                Err(error) => assert!(blocks == 1000 && n > 300, "{error} at {n}"),
            }
        }
        store.checkpoint().unwrap();
        assert_eq!(store.verify(), Ok(model.len() as u64));
        drop(store);
        // Either superblock may be lost.
        let image = medium.after_power_cut(&mut Dice::new(2));
        for lost in [None, Some(0), Some(blocks - 1)] {
            let mut bytes = image.clone();
            if let Some(lost) = lost {
                bytes[lost * 4096..][..4096].fill(0x5a);
            }
            let store = open(VolatileMedium::new(bytes, u64::MAX)).unwrap();
            assert!(contents(&store) == model, "without block {lost:?}");
        }
    }
}

#[test]
fn power_is_cut_at_every_write_of_growing() {
    const LARGE: usize = 33_500;
    let (image, model) = filled(SMALL);
    let image = enlarged(&image, LARGE);
    for at in 0..20 {
        for seed in 0..1 {
            let medium = VolatileMedium::new(image.clone(), at);
            let store = open(medium.clone()).unwrap();
            let grown = store.grow();
            let first = encode(&[Op::Put(b"first".to_vec(), b"after".to_vec())]);
            let done = store.apply(&first).and_then(|sequence| store.commit(sequence, Barrier::None));
            drop(store);
            let cut = medium.was_cut();
            let bytes = medium.after_power_cut(&mut Dice::new(seed));
            // The near superblock is lost, too: by the cut itself, when it was being written, or later. The
            // first two writes are a page of the bitmap and the pointer; before them there is no other.
            for lost in [None, Some(0)] {
                let mut bytes = bytes.clone();
                if let Some(lost) = lost.filter(|_| !cut || at >= 2) {
                    bytes[lost * 4096..][..4096].fill(0x5a);
                }
                let store = open(VolatileMedium::new(bytes, u64::MAX))
                    .unwrap_or_else(|error| panic!("write {at} seed {seed}: {error}"));
                let mut found = contents(&store);
                let first = found.remove(&b"first"[..]);
                assert!(found == model, "write {at} seed {seed}");
                assert!(first.is_some() || done.is_err(), "write {at} seed {seed}");
                store.grow().unwrap();
                assert!(store.stats().tree_blocks > 32_512);
                store.apply(&encode(&[Op::Put(b"second".to_vec(), vec![1; 900])])).unwrap();
                store.checkpoint().unwrap();
                store.verify().unwrap();
            }
            if !cut {
                assert!(grown.is_ok() && at > 4, "the test cuts nothing");
                return;
            }
        }
    }
}

#[test]
fn a_new_group_that_begins_at_the_old_superblock_leaves_it_whole_till_the_end() {
    // 2 superblocks, 64 blocks of log, one whole group: the next one begins where slot 1 is.
    const FULL: usize = 2 + 64 + 32_514;
    let (image, model) = filled(FULL);
    let image = enlarged(&image, FULL + 500);
    let mut near_cut = false;
    for lost_before in [None, Some(FULL - 1)] {
        let mut image = image.clone();
        if let Some(lost) = lost_before {
            image[lost * 4096..][..4096].fill(0x5a);
        }
        for at in 0.. {
            let medium = VolatileMedium::new(image.clone(), at);
            let store = open(medium.clone()).unwrap();
            let grown = store.grow();
            drop(store);
            let Some(block) = medium.cut_block() else {
                assert!(grown.is_ok() && at >= 3);
                break;
            };
            let mut bytes = medium.after_power_cut(&mut Dice::new(at));
            if block == 0 {
                near_cut = true;
                bytes[..4096].fill(0x5a);
            }
            let store = open(VolatileMedium::new(bytes, u64::MAX))
                .unwrap_or_else(|error| panic!("write {at} to block {block}: {error}"));
            assert!(contents(&store) == model, "write {at}");
            store.grow().unwrap();
            store.apply(&encode(&[Op::Put(b"first".to_vec(), vec![1; 900])])).unwrap();
            store.checkpoint().unwrap();
            store.verify().unwrap();
        }
    }
    assert!(near_cut, "the test does not cut the near superblock");
}

#[test]
fn a_near_superblock_from_before_it_grew_does_not_hide_the_far_one() {
    // Within one bitmap page, across one more, and where the old far place is a page's slot afterwards.
    for (small, blocks) in [(SMALL, 1000), (SMALL, 33_500), (2 + 64 + 32_514, 2 + 64 + 32_514 + 500)] {
        let (image, mut model) = filled(small);
        let old = image[..4096].to_vec();
        let medium = VolatileMedium::new(enlarged(&image, blocks), u64::MAX);
        let store = open(medium.clone()).unwrap();
        store.grow().unwrap();
        let ops = [Op::Put(b"later".to_vec(), vec![7; 900])];
        store.apply(&encode(&ops)).unwrap();
        play(&mut model, &ops);
        store.checkpoint().unwrap();
        store.close().unwrap();
        drop(store);
        let mut image = medium.after_power_cut(&mut Dice::new(3));
        image[..4096].copy_from_slice(&old);
        let medium = VolatileMedium::new(image, u64::MAX);
        let store = open(medium.clone()).unwrap_or_else(|error| panic!("{blocks} blocks: {error}"));
        assert!(contents(&store) == model, "{blocks} blocks");
        // It is told, and written again: the far one may be lost then.
        assert_eq!(store.flaws().iter().map(|flaw| flaw.block.0).collect::<Vec<_>>(), [0]);
        store.checkpoint().unwrap();
        store.close().unwrap();
        drop(store);
        let mut image = medium.after_power_cut(&mut Dice::new(4));
        image[(blocks - 1) * 4096..].fill(0x5a);
        let store = open(VolatileMedium::new(image, u64::MAX)).unwrap();
        assert!(contents(&store) == model, "{blocks} blocks, without the far superblock");
    }
}

#[test]
fn a_medium_that_did_not_grow_is_left_alone() {
    let (image, _) = filled(SMALL);
    let medium = VolatileMedium::new(image, u64::MAX);
    let store = open(medium.clone() as Arc<dyn Medium>).unwrap();
    let writes = medium.writes();
    assert_eq!(store.grow(), Ok(0));
    assert_eq!(medium.writes(), writes);
}
