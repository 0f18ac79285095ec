//! A store on a plain file: batches, range deletes, snapshots, iteration both ways, growth.
//!
//! `cargo run -p nvmed-kv --example tour [FILE]`; without FILE, one in the temporary directory, removed at the end.

use core::ops::Bound;
use nvmed_kv::{Barrier, Batch, FileMedium, FileOptions, Medium, Options, PendingMemory, Store};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

/// 8 MiB.
const BLOCKS: u64 = 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let path = given.clone().unwrap_or_else(|| std::env::temp_dir().join("nvmed-kv-tour"));
    let medium = Arc::new(FileMedium::create(&path, BLOCKS, &FileOptions::default())?);
    Store::format(&*medium, &Options { identity: 0x746f_7572, ..Options::default() })?;
    let store = Store::open(medium.clone(), PendingMemory::private()?, &Options::default())?;

    // A batch happens wholly or not at all; commits of many threads share one write of the log.
    let mut batch = Batch::new();
    for n in 0..1000u32 {
        batch.clear();
        batch.put(format!("{}/{n:04}", if n % 2 == 0 { "even" } else { "odd" }).as_bytes(), &n.to_le_bytes());
        store.apply(&batch)?;
    }
    store.commit(store.applied(), Barrier::None)?;

    // A snapshot sees what was there when it was taken.
    let before = store.snapshot();
    batch.clear();
    batch.delete_range(b"even/", b"even0"); // `0` follows `/`: everything that begins with `even/`
    let sequence = store.apply(&batch)?;
    store.commit(sequence, Barrier::None)?;
    let mut value = Vec::new();
    println!(
        "now {}, in the snapshot {}",
        store.get(b"even/0008", &mut value)?,
        before.get(b"even/0008", &mut value)?
    );

    // An iterator goes both ways and seeks.
    let mut iter = store.iter(Bound::Unbounded, Bound::Unbounded);
    for _ in 0..2 {
        println!("{:?}", iter.next()?.map(|(key, _)| String::from_utf8_lossy(key).into_owned()));
    }
    println!("{:?}", iter.seek(b"odd/05")?.map(|(key, _)| String::from_utf8_lossy(key).into_owned()));
    println!("{:?}", iter.prev()?.map(|(key, _)| String::from_utf8_lossy(key).into_owned()));
    drop(before);

    // The file may become larger while the store is open.
    medium.resize(2 * BLOCKS).map_err(|error| format!("cannot enlarge {}: {error}", path.display()))?;
    println!("{} blocks more, of {}", store.grow()?, medium.blocks());

    store.close()?;
    println!("{} records are sound; {:?}", store.verify()?, store.stats());
    if given.is_none() {
        std::fs::remove_file(&path)?;
    }
    Ok(())
}
