//! A region that is full of keys and values of every shape: nothing is lost, and deleting works.

use crate::support::{Dice, Model, contents, encode, open};
use nvmed_kv::{KvError, MemoryMedium, Options, Store};
use std::sync::Arc;

/// Zeroes of all lengths, long ones that differ late, paths, numbers; values up to eight blocks.
fn record(random: &mut Dice, shape: u64) -> (Vec<u8>, Vec<u8>) {
    let shape = if shape < 4 { shape } else { random.roll(4) };
    let n = random.roll(5000);
    let key = match shape {
        0 => vec![0; (n % 200) as usize],
        1 => [&vec![5; [8, 60, 500, 1000][n as usize % 4]][..], &n.to_be_bytes()].concat(),
        2 => format!("zone-{}/directory-{:03}/file-{n:05}", n % 2, n % 40).into_bytes(),
        _ => n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
    };
    let len = match random.roll(20) {
        0 => random.roll(32_769),
        1 => 900 + random.roll(200),
        2..5 => random.roll(1000),
        _ => random.roll(120),
    };
    (key, vec![n as u8; len as usize])
}

#[test]
fn a_full_region_of_any_keys_can_be_emptied() {
    for shape in 0..5 {
        let mut random = Dice::new(31 + shape);
        let medium = Arc::new(MemoryMedium::new(500 + 100 * shape));
        Store::format(&*medium, &Options { log_blocks: Some(64), ..Options::default() }).unwrap();
        let store = open(medium.clone()).unwrap();
        let mut model = Model::new();
        let mut refused = 0;
        for _ in 0..2500 {
            if refused == 20 {
                break;
            }
            let (key, value) = record(&mut random, shape);
            match store.apply(&encode(&[(key.clone(), Some(value.clone()))])) {
                Ok(_) => drop(model.insert(key, value)),
                Err(KvError::Full) => refused += 1,
                Err(error) => panic!("shape {shape}, {} records: {error}", model.len()),
            }
        }
        assert!(contents(&store) == model, "shape {shape}");
        assert_eq!(store.verify(), Ok(model.len() as u64), "shape {shape}");
        let mut keys: Vec<_> = model.keys().cloned().collect();
        while !keys.is_empty() {
            let key = keys.swap_remove(random.roll(keys.len() as u64) as usize);
            let batch = encode(&[(key, None), (b"counter".to_vec(), Some(vec![1; 30]))]);
            store.apply(&batch).unwrap_or_else(|error| panic!("shape {shape}, {} left: {error}", keys.len()));
        }
        store.checkpoint().unwrap();
        assert_eq!(store.verify(), Ok(1), "shape {shape}");
        assert_eq!(store.stats().tree_blocks_used, 1, "shape {shape}");
    }
}
