//! Images of released formats stay readable.
//!
//! A fixture is the blocks of an image that are not zero: number (8 bytes, little-endian), then 4096 bytes.
//! `NVMED_WRITE_FIXTURE=1 cargo test -p nvmed-kv --test fixture` writes it anew; do that only with a new version.

mod support;

use nvmed_kv::{Barrier, MemoryMedium, Options, Store};
use std::sync::Arc;
use support::{Model, contents, encode, open, play};

const BLOCKS: u64 = 240;
const BLOCK: usize = 4096;
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/v1.blocks");

/// What was put into the image of version 1: a tree with an inner node, and a log.
fn build(store: &Store) -> Model {
    let mut model = Model::new();
    for n in 0..60u8 {
        let mut changes = vec![(format!("key{n:02}").into_bytes(), Some(vec![n; 100 + usize::from(n)]))];
        if n % 5 == 4 {
            changes.push((format!("key{:02}", n - 1).into_bytes(), None));
        }
        let sequence = store.apply(&encode(&changes)).unwrap();
        play(&mut model, &changes);
        if n == 49 {
            store.checkpoint().unwrap();
        }
        store.commit(sequence, Barrier::None).unwrap();
    }
    model
}

fn new_image() -> (Vec<u8>, Model) {
    let medium = Arc::new(MemoryMedium::new(BLOCKS));
    Store::format(&*medium, &Options { identity: 0x6e76_6d65_6421, ..Options::default() }).unwrap();
    let model = build(&open(medium.clone()).unwrap());
    (medium.to_bytes(), model)
}

fn pack(image: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (number, block) in image.chunks_exact(BLOCK).enumerate() {
        if block.iter().any(|&byte| byte != 0) {
            packed.extend_from_slice(&(number as u64).to_le_bytes());
            packed.extend_from_slice(block);
        }
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut image = vec![0; BLOCKS as usize * BLOCK];
    for entry in packed.chunks_exact(8 + BLOCK) {
        let number = u64::from_le_bytes(entry[..8].try_into().unwrap()) as usize;
        image[number * BLOCK..][..BLOCK].copy_from_slice(&entry[8..]);
    }
    image
}

#[test]
fn the_image_of_version_1_is_read() {
    let (image, model) = new_image();
    if std::env::var_os("NVMED_WRITE_FIXTURE").is_some() {
        std::fs::write(PATH, pack(&image)).unwrap();
    }
    let old = unpack(&std::fs::read(PATH).unwrap());
    let store = open(Arc::new(MemoryMedium::from_bytes(old))).unwrap();
    assert!(contents(&store) == model);
    assert_eq!(store.verify(), Ok(model.len() as u64));
}
