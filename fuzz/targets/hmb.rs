//! What a host lends to a drive, and what it does with that meanwhile.
#![no_main]

#[path = "../../crates/vdev/tests/it/host/mod.rs"]
mod host;
#[path = "../../crates/vdev/tests/it/lender/mod.rs"]
mod lender;

use libfuzzer_sys::fuzz_target;

// Steps of one byte each, and what each of them takes.
fuzz_target!(|input: &[u8]| {
    let _ = lender::play(input);
});
