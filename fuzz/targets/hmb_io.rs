//! What a host does with slots of HMB-I/O, and with the buffer in which they lie.
#![no_main]

#[path = "../../crates/vdev/tests/it/host/mod.rs"]
mod host;
#[path = "../../crates/vdev/tests/it/slots/mod.rs"]
mod slots;

use libfuzzer_sys::fuzz_target;

// Steps of one byte each, and what each of them takes.
fuzz_target!(|input: &[u8]| {
    let _ = slots::player::play(input);
});
