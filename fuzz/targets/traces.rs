//! Traces of strangers (docs/trace.md): the first byte chooses a format, Parquet among them, or that it be told by the
//! content; and lines of calls on files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmed_trace::{CallOptions, CallSource, CallWords, FORMATS, Options, Source, Tolerance, text_of_calls};

/// Longest text of calls.
const CALLS_BYTES_MAX: u64 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    // In memory, where there is any.
    let path = std::path::PathBuf::from(format!("/dev/shm/nvmed-fuzz-traces-{}", std::process::id()));
    std::fs::write(&path, bytes).expect("there is room in memory");
    let options = Options { format: FORMATS.get(usize::from(*choice)), tolerance: Tolerance::Lines(u64::MAX) };
    if let Ok(mut source) = Source::open(&path, &options) {
        while let Ok(Some(request)) = source.next() {
            assert!(request.checked().is_ok(), "a request that cannot be: {request:?}");
        }
    }
    let calls = CallOptions { format: options.format, tolerance: options.tolerance, below: vec![b"/store".to_vec()] };
    if let Ok(mut source) = CallSource::open(&path, &calls) {
        while let Ok(Some((_, call))) = source.next() {
            assert!(call.end_ns >= call.begin_ns, "a call that ends before it begins: {call:?}");
        }
    }
    if let Ok(text) = text_of_calls(&path, CALLS_BYTES_MAX) {
        for call in text.lines().filter_map(CallWords::of) {
            assert!(!call.call.is_empty(), "a call without a name: {call:?}");
            let _ = call.number(0);
        }
    }
});
