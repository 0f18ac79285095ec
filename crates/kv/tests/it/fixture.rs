//! Images of released formats stay readable.
//!
//! A fixture is the blocks of an image that are not zero: number (8 bytes, little-endian), then 4096 bytes.
//! `NVMED_WRITE_FIXTURE=1 cargo test -p nvmed-kv --test it fixture` writes it anew; do that only with a new version.

use crate::support::{Model, Op, contents, encode, open, play};
use nvmed_kv::{Barrier, KvError, MemoryMedium, Options, Store};
use std::sync::Arc;

const BLOCKS: u64 = 260;
const BLOCK: usize = 4096;
fn path(version: u32) -> String {
    format!("{}/tests/fixtures/v{version}.blocks", env!("CARGO_MANIFEST_DIR"))
}

/// What was put into the image of version 3: inner nodes, a nested tree, long values, a range that is gone,
/// a region that grew, and a log.
fn build(store: &Store) -> Model {
    let mut model = Model::new();
    for n in 0..110u8 {
        let mut ops = vec![
            Op::Put(format!("key{n:03}").into_bytes(), vec![n; usize::from(n)]),
            Op::Put([b"directory/of/many/", &[n][..]].concat(), vec![n; 30]),
        ];
        match n {
            40 => ops.push(Op::Put(b"long".to_vec(), (0..9000u32).map(|at| at as u8).collect())),
            60 => ops.push(Op::DeleteRange(b"key030".to_vec(), b"key040".to_vec())),
            105 => ops.push(Op::DeleteRange(b"key050".to_vec(), b"key055".to_vec())),
            _ if n % 5 == 4 => ops.push(Op::Delete(format!("key{:03}", n - 1).into_bytes())),
            _ => {}
        }
        let sequence = store.apply(&encode(&ops)).unwrap();
        play(&mut model, &ops);
        if n == 50 || n == 100 {
            store.checkpoint().unwrap();
            store.grow().unwrap();
        }
        store.commit(sequence, Barrier::None).unwrap();
    }
    model
}

fn new_image() -> (Vec<u8>, Model) {
    let small = MemoryMedium::new(BLOCKS - 10);
    Store::format(&small, &Options { identity: 0x6e76_6d65_6421, ..Options::default() }).unwrap();
    let mut bytes = small.to_bytes();
    bytes.resize(BLOCKS as usize * BLOCK, 0);
    let medium = Arc::new(MemoryMedium::from_bytes(bytes));
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
fn the_image_of_version_3_is_read() {
    let (image, model) = new_image();
    if std::env::var_os("NVMED_WRITE_FIXTURE").is_some() {
        std::fs::write(path(3), pack(&image)).unwrap();
    }
    let old = unpack(&std::fs::read(path(3)).unwrap());
    let store = open(Arc::new(MemoryMedium::from_bytes(old))).unwrap();
    assert!(contents(&store) == model);
    assert_eq!(store.verify(), Ok(model.len() as u64));
}

#[test]
fn images_of_older_versions_are_refused_with_a_way_out() {
    for version in [1, 2] {
        let old = unpack(&std::fs::read(path(version)).unwrap());
        let refused = open(Arc::new(MemoryMedium::from_bytes(old))).err().unwrap();
        assert_eq!(refused, KvError::Version { found: version, known: 3 });
        let message = refused.to_string();
        assert!(
            message.contains(&format!("version {version}")) && message.contains("format anew"),
            "{message}"
        );
    }
    // The first superblock is lost: the other one says the same.
    let mut half = unpack(&std::fs::read(path(2)).unwrap());
    half[..BLOCK].fill(0);
    let refused = open(Arc::new(MemoryMedium::from_bytes(half))).err().unwrap();
    assert_eq!(refused, KvError::Version { found: 2, known: 3 });
}
