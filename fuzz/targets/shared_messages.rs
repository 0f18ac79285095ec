//! Messages of a shared mount, from either side: bytes are a message or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmed_wire::{Answer, Call, Control, ControlAnswer, entries};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(call) = postcard::from_bytes::<Call<'_>>(bytes) {
        let again = postcard::to_stdvec(&call).expect("a call");
        assert_eq!(postcard::from_bytes::<Call<'_>>(&again), Ok(call));
    }
    if let Ok(control) = postcard::from_bytes::<Control>(bytes) {
        let again = postcard::to_stdvec(&control).expect("a message");
        assert_eq!(postcard::from_bytes::<Control>(&again), Ok(control));
    }
    let _ = postcard::from_bytes::<Answer>(bytes);
    let _ = postcard::from_bytes::<ControlAnswer>(bytes);
    let _ = entries(bytes).count();
});
