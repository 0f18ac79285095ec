//! What tracefs hands out (docs/trace.md, "Recording"): up to the first zero byte the text that says where an event has
//! what, behind it pages of a ring buffer, which two processors share.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmed_trace::{KernelEvent, KernelLayout, KernelTrace};

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let (text, pages) = input.split_at(end);
    let text = String::from_utf8_lossy(text);
    let mut layout = KernelLayout::default();
    for (event, _) in KernelEvent::ALL {
        // A text that says too little is none.
        let _ = layout.add(event, &text);
    }
    let (one, other) = pages.split_at(pages.len() / 2);
    let mut trace = KernelTrace::new(layout, vec![one, other], 256);
    while let Ok(Some(request)) = trace.next() {
        assert!(request.checked().is_ok(), "a request that cannot be: {request:?}");
    }
});
