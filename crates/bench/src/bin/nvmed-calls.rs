//! A fixed number of durable calls in this process, to be counted from outside: `nvmed-calls KIND COUNT`.
//!
//! The device is our controller, in this process and in its memory, and works in the caller's thread. No thread writes
//! back by the clock. So every instruction of the process is on the user's side of a call, and the same in each run.

use nvmed_bench::ours::{CREATE, WHO, text};
use nvmed_engine::Segment;
use nvmed_fs::OpenFlags;
use nvmed_io::Binding;
use nvmed_kv::{Barrier, Batch, DeviceMedium, Options, PendingMemory, Store};
use nvmed_stack::{Config, DeviceSpec, Mount, Open, Surroundings, open_device};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use std::sync::Arc;

/// The device, with the room for the largest count that a row asks for.
const DEVICE: &str = "virtual:?media=dram,size=1G,clock=inline";
/// Cached data of the file system: all that the calls write.
const CACHE_BYTES: u64 = 256 << 20;
/// Blocks of the file that is written in place, and of the database.
const BLOCKS: u64 = 256;
const BLOCK: [u8; 4096] = [0xa5; 4096];
/// Files a directory, as in the row `fs.create_fsync`.
const FILES_A_DIRECTORY: u64 = 200;
/// A pair, as in the row `kv.put`: the value has another 512 bytes.
const KEY_BYTES: usize = 32;
const PENDING_BYTES: usize = 4 << 20;
/// Open for writing, made if it is not there.
const WRITE: OpenFlags = OpenFlags((libc::O_CREAT | libc::O_RDWR).cast_unsigned());

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_default();
    let count = arguments.next().and_then(|count| count.parse().ok());
    let done = match (kind.as_str(), count) {
        ("put", Some(count)) => puts(count),
        ("read", Some(count)) => reads(count),
        ("fsync" | "append" | "create" | "create_fsync" | "commit", Some(count)) => files(&kind, count),
        _ => Err("usage: nvmed-calls fsync|append|create|create_fsync|commit|put|read COUNT".to_owned()),
    };
    if let Err(message) = done {
        eprintln!("nvmed-calls: {message}");
        std::process::exit(1);
    }
}

fn files(kind: &str, count: u64) -> Result<(), String> {
    let mut config = Config::new("/unused".into(), DeviceSpec::parse(DEVICE).map_err(text)?);
    (config.cache_bytes, config.dirty_limit_bytes) = (CACHE_BYTES, CACHE_BYTES / 2);
    (config.format, config.writeback_seconds) = (true, 0);
    let mount = nvmed_stack::mount(&config, Surroundings::default()).map_err(text)?;
    let call: fn(&Mount, u64) -> Result<(), String> = match kind {
        "fsync" => return overwrite(&mount, count),
        "append" => return append(&mount, count),
        "create" => |mount, index| create(mount, index).map(drop),
        "create_fsync" => |mount, index| create(mount, index)?.fsync().map_err(text),
        _ => {
            overwrite(&mount, BLOCKS)?;
            commit
        }
    };
    (0..count).try_for_each(|index| call(&mount, index))
}

/// Writes a block in place, then fsync.
fn overwrite(mount: &Mount, count: u64) -> Result<(), String> {
    let file = mount.open(&mount.root(), b"database", WRITE, 0o644, WHO).map_err(text)?;
    for index in 0..BLOCKS {
        file.pwrite(&BLOCK, index * BLOCK.len() as u64).map_err(text)?;
    }
    file.fsync().map_err(text)?;
    for index in 0..count {
        file.pwrite(&BLOCK, index * 7 % BLOCKS * BLOCK.len() as u64).map_err(text)?;
        file.fsync().map_err(text)?;
    }
    Ok(())
}

/// Writes a block at the end, then fsync: a write-ahead log.
fn append(mount: &Mount, count: u64) -> Result<(), String> {
    let file = mount.open(&mount.root(), b"log", CREATE, 0o644, WHO).map_err(text)?;
    for _ in 0..count {
        file.write(&BLOCK).map_err(text)?;
        file.fsync().map_err(text)?;
    }
    Ok(())
}

/// Makes a file of a block; its directory too if it is the first there.
fn create(mount: &Mount, index: u64) -> Result<Arc<nvmed_fs::File>, String> {
    let directory = format!("d{:04}", index / FILES_A_DIRECTORY);
    let root = mount.root();
    if index.is_multiple_of(FILES_A_DIRECTORY) {
        mount.mkdir(&root, directory.as_bytes(), 0o755, WHO).map_err(text)?;
    }
    let path = format!("{directory}/file{index:07}");
    let file = mount.open(&root, path.as_bytes(), CREATE, 0o644, WHO).map_err(text)?;
    file.write(&BLOCK).map_err(text)?;
    Ok(file)
}

/// A database's commit with a rollback journal: journal, database, and the journal's end.
fn commit(mount: &Mount, index: u64) -> Result<(), String> {
    let root = mount.root();
    let database = mount.open(&root, b"database", WRITE, 0o644, WHO).map_err(text)?;
    let journal = mount.open(&root, b"database-journal", CREATE, 0o644, WHO).map_err(text)?;
    journal.write(&BLOCK[..512]).map_err(text)?;
    journal.write(&BLOCK).map_err(text)?;
    journal.fsync().map_err(text)?;
    database.pwrite(&BLOCK, index * 7 % BLOCKS * BLOCK.len() as u64).map_err(text)?;
    database.fsync().map_err(text)?;
    drop(journal);
    mount.unlink(&root, b"database-journal", WHO).map_err(text)
}

/// Reads of 4 KiB by a handle, of which nothing is copied: the way of a command.
fn reads(count: u64) -> Result<(), String> {
    let spec = DeviceSpec::parse("virtual:?media=null,size=1M").map_err(text)?;
    let device = open_device(&spec, Open::Existing { locked_by_run: false }).map_err(text)?;
    let page = Arc::new(Mapping::anonymous(BLOCK.len(), Pages::Base).map_err(text)?);
    let address = device.map(page).map_err(text)?;
    let data = [Segment { address, bytes: BLOCK.len() as u32 }];
    let handle = device.handle(Binding::Queue(0));
    (0..count).try_for_each(|_| handle.read(Lba(0), &data).map_err(text))
}

/// Durable puts of a new pair each.
fn puts(count: u64) -> Result<(), String> {
    let spec = DeviceSpec::parse(DEVICE).map_err(text)?;
    let device = open_device(&spec, Open::Existing { locked_by_run: false }).map_err(text)?;
    let blocks = DeviceMedium::device_blocks(&device).map_err(text)?;
    let medium = DeviceMedium::new(
        &device,
        device.handle(Binding::Spread),
        nvmed_units::Block(0)..nvmed_units::Block(blocks),
    )
    .map_err(text)?;
    let options = Options::default();
    Store::format(&medium, &options).map_err(text)?;
    let memory = Mapping::anonymous(PENDING_BYTES, Pages::Base).map_err(text)?;
    let pending = PendingMemory { memory: Arc::new(memory), offset: 0, len: PENDING_BYTES };
    let store = Store::open(Arc::new(medium), pending, &options).map_err(text)?;
    let mut key = [0; KEY_BYTES];
    for index in 0..count {
        // Scattered, and each once: an odd factor is a permutation of 64 bits.
        key[..8].copy_from_slice(&index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        let mut batch = Batch::new();
        batch.put(&key, &BLOCK[..512]);
        let applied = store.apply(&batch).map_err(text)?;
        store.commit(applied, Barrier::None).map_err(text)?;
    }
    Ok(())
}
