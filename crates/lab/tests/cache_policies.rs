//! The replay is honest: it accounts for every access, no policy beats the optimum, what is left out is told.

use nvmed_cache::EvictionPolicy;
use nvmed_lab::cache_policies::{belady, load, lru, replay, run, zipf_and_scans};
use proptest::prelude::*;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nvmed-lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_access_counts_and_none_beats_the_optimum() {
    let trace = zipf_and_scans(30_000);
    let mut numbers = HashMap::new();
    let mut accesses = Vec::new();
    for page in trace.accesses() {
        let next = numbers.len() as u32;
        accesses.push(*numbers.entry(page).or_insert(next));
    }
    assert_eq!(numbers.len(), trace.footprint());
    let frames = (trace.footprint() / 20) as u32;
    let best = belady(&accesses, frames as usize);
    assert!(lru(&accesses, frames as usize) < best);
    for policy in EvictionPolicy::ALL {
        let counts = replay(&trace, frames, policy).unwrap();
        assert_eq!(counts.reads + counts.writes, accesses.len() as u64);
        let hits = counts.read_hits + counts.write_hits;
        assert!(hits <= best, "{}: {hits} hits, {best} are possible", policy.name());
        assert!(hits > best / 2, "{}: {hits} hits, {best} are possible", policy.name());
        assert_eq!(replay(&trace, frames, policy).unwrap(), counts, "the same each time");
        // With a frame for each page, only first accesses miss.
        let roomy = replay(&trace, trace.footprint() as u32 * 2, policy).unwrap();
        assert_eq!(roomy.read_hits + roomy.write_hits, (accesses.len() - trace.footprint()) as u64);
    }
}

#[test]
fn packed_traces_are_unpacked_and_bad_ones_told() {
    let scratch = Scratch::new("traces");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"0.5 ; 16 ; 8 ; W ; 0.0 ; 0.0\n1.0 ; 16 ; 8 ; R ; 0.0 ; 0.0\n").unwrap();
    let packed = packed.finish().unwrap();
    let good = load(&scratch.file("a.load.gz", &packed)).unwrap();
    assert_eq!((good.format, good.requests.len()), ("blkreplay", 2));
    scratch.file("cut.load.gz", &packed[..packed.len() - 9]);
    scratch.file("novel.txt", b"It was a dark and stormy night.\n");
    let findings = run(Some(&scratch.0), true).unwrap();
    assert_eq!(findings.rows.len(), 6, "the made-up workload and one trace, at three sizes each");
    for name in ["cut.load.gz", "novel.txt"] {
        let told = |note: &String| note.starts_with("SKIPPED") && note.contains(name);
        assert!(findings.notes.iter().any(told), "{name} in {:?}", findings.notes);
    }
}

#[test]
fn an_absent_directory_is_told_and_the_rest_runs() {
    for absent in [None, Some(Path::new("/no/such/traces"))] {
        let findings = run(absent, true).unwrap();
        assert_eq!(findings.rows.len(), 3);
        assert!(findings.notes.iter().any(|note| note.starts_with("SKIPPED: real traces")));
        assert!(findings.to_table().contains("zipf"));
    }
}

/// A line of one of the formats with any numbers in it, or anything.
fn line(format: usize) -> impl Strategy<Value = String> {
    let number = || prop_oneof![4 => (0u64..5000).boxed(), 1 => any::<u64>().boxed()];
    let kind = prop::sample::select(vec!["R", "W", "D"]);
    let call = prop::sample::select(vec!["read", "write", "pread", "pwrite", "unlink", "close", "open"]);
    let known =
        (number(), number(), number(), kind, call, 0..2u8).prop_map(move |(a, b, c, kind, call, bit)| {
            match format {
                0 => format!("0.5 ; {a} ; {b} ; {kind} ; 0 ; 0"),
                1 => format!("{a} {} {b} {c} {bit}", a % 4),
                2 => format!("{a}\t{b}\t{c}\t{bit}\t1.0\t1.0\t1.0\t1.0"),
                3 => format!("8,{bit} 1 1 0.5 7 D {kind} {a} + {b} [x]"),
                4 => format!("7 D {} {a} {b} 0.1", if bit == 0 { "write" } else { "discard" }),
                _ => format!("1 {a} {call} {} {b} {c}", a % 4),
            }
        });
    prop_oneof![8 => known, 1 => "\\PC{0,20}"]
}

proptest! {
    #[test]
    fn any_text_is_a_trace_that_can_be_replayed_or_none(
        lines in (0..6usize).prop_flat_map(|format| prop::collection::vec(line(format), 1..40)),
    ) {
        let scratch = Scratch::new("any");
        if let Ok(trace) = load(&scratch.file("any", lines.join("\n").as_bytes()))
            && trace.accesses().take(10_001).count() <= 10_000
        {
            let counts = replay(&trace, 16, EvictionPolicy::Sieve).unwrap();
            prop_assert_eq!(counts.reads + counts.writes, trace.accesses().count() as u64);
        }
    }
}
