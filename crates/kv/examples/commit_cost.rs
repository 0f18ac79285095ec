//! Commits of one record each on memory that is a device, with the log by blocks (`blocks`) or in place (`bytes`), for
//! a tool that counts instructions: the difference of two COUNTs is theirs. `cargo run --release --example commit_cost
//! bytes 2000`.

use nvmed_io::{Binding, Device, DeviceOptions};
use nvmed_kv::{Barrier, Batch, DeviceMedium, Options, PendingMemory, Store};
use nvmed_nvm::{FlushTo, Memory, MemoryOptions, NvmEngine, Place};
use nvmed_units::Block;
use std::sync::Arc;

/// About what an fsync of one file logs.
const VALUE_BYTES: usize = 180;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let in_place = arguments.next().expect("`blocks` or `bytes`") == "bytes";
    let count: u64 = arguments.next().and_then(|count| count.parse().ok()).expect("COUNT");
    let options = MemoryOptions { place: Place::Ram { bytes: 256 << 20 }, flush: FlushTo::Process };
    let memory = Arc::new(Memory::open(options).expect("memory"));
    let engine = NvmEngine::over(Arc::clone(&memory), 4096);
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: 32 }).expect("the device");
    let blocks = Block(0)..Block(DeviceMedium::device_blocks(&device).expect("blocks"));
    let medium = DeviceMedium::new(&device, device.handle(Binding::Queue(0)), blocks).expect("a medium");
    let medium = Arc::new(medium.with_bytes(in_place.then_some(memory)));
    Store::format(&*medium, &Options::default()).expect("format");
    let pending = PendingMemory::private().expect("memory");
    let store = Store::open(medium, pending, &Options::default()).expect("the store");
    let mut batch = Batch::new();
    for number in 0..count {
        batch.clear();
        batch.put(&(number % 64).to_be_bytes(), &[7; VALUE_BYTES]);
        let sequence = store.apply(&batch).expect("apply");
        store.commit(sequence, Barrier::None).expect("commit");
    }
    println!("{:?}", store.stats().written);
}
