//! How often each eviction policy finds what is asked for: real traces and one made up, through the
//! real cache at several sizes, beside the best that any policy could do.

mod calls;
mod offline;
mod replay;
mod synthetic;
mod trace;

pub use offline::{belady, lru};
pub use replay::{Counts, replay};
pub use synthetic::zipf_and_scans;
pub use trace::{Trace, TraceError, files, load};

use nvmed_cache::EvictionPolicy;
use std::collections::HashMap;
use std::path::Path;

/// Cache sizes, in percent of the pages that a trace touches.
pub(crate) const SIZES_PERCENT: [u32; 3] = [1, 5, 10];
/// Fewest frames: in fewer, no policy has room for a thought.
const FRAMES_MIN: u32 = 16;
/// Accesses of the made-up workload, and of a quick run.
const SYNTHETIC_ACCESSES: u64 = 400_000;
const SYNTHETIC_ACCESSES_QUICK: u64 = 80_000;

/// One trace at one size.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// The trace.
    pub trace: String,
    /// How it was written down.
    pub format: &'static str,
    /// Requests in it, discards included.
    pub requests: u64,
    /// Pages, or parts of pages, that they read or write.
    pub accesses: u64,
    /// Distinct pages.
    pub footprint_pages: u64,
    /// Frames of the cache, in percent of the footprint.
    pub size_percent: u32,
    /// Frames of the cache; at least 16.
    pub frames: u32,
    /// Hits over accesses by policy.
    pub hit_ratio: Vec<(&'static str, f64)>,
    /// Hits of reads over reads by policy.
    pub read_hit_ratio: Vec<(&'static str, f64)>,
    /// Exact LRU, offline.
    pub lru: f64,
    /// The optimum, offline: no policy finds more (discards left out).
    pub belady: f64,
}

/// What a run found, and what it left out.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Findings {
    /// Traces by sizes.
    pub rows: Vec<Row>,
    /// Traces, or all of them, that were left out, with the reason; lines that were.
    pub notes: Vec<String>,
}

/// Replays every trace of a directory, and the made-up workload, which is always there.
///
/// # Errors
/// What the host says when it has no memory for a cache.
pub fn run(traces: Option<&Path>, quick: bool) -> Result<Findings, rustix::io::Errno> {
    let mut findings = Findings::default();
    let accesses = if quick { SYNTHETIC_ACCESSES_QUICK } else { SYNTHETIC_ACCESSES };
    measure(&zipf_and_scans(accesses), &mut findings)?;
    let Some(directory) = traces else {
        let note = "SKIPPED: real traces: no directory was given (--traces DIR or NVMED_TRACES)";
        findings.notes.push(note.to_owned());
        return Ok(findings);
    };
    let files = match files(directory) {
        Ok(files) => files,
        Err(error) => {
            findings.notes.push(format!("SKIPPED: real traces: {error}"));
            return Ok(findings);
        }
    };
    for path in files {
        match load(&path) {
            Ok(trace) => measure(&trace, &mut findings)?,
            Err(error) => findings.notes.push(format!("SKIPPED: {error}")),
        }
    }
    Ok(findings)
}

fn measure(trace: &Trace, findings: &mut Findings) -> Result<(), rustix::io::Errno> {
    if trace.lines_skipped > 0 {
        let Trace { name, format, lines_skipped, .. } = trace;
        findings.notes.push(format!("{name}: {lines_skipped} lines are not {format}'s"));
    }
    let mut numbers = HashMap::new();
    let number = |page| {
        let next = numbers.len() as u32;
        *numbers.entry(page).or_insert(next)
    };
    let accesses: Vec<u32> = trace.accesses().map(number).collect();
    let footprint = numbers.len();
    for size_percent in SIZES_PERCENT {
        let share = footprint as u64 * u64::from(size_percent) / 100;
        let frames = u32::try_from(share).unwrap_or(nvmed_cache::FRAMES_MAX).max(FRAMES_MIN);
        let mut row = Row {
            trace: trace.name.clone(),
            format: trace.format,
            requests: trace.requests.len() as u64,
            accesses: accesses.len() as u64,
            footprint_pages: footprint as u64,
            size_percent,
            frames,
            hit_ratio: Vec::new(),
            read_hit_ratio: Vec::new(),
            lru: lru(&accesses, frames as usize) as f64 / accesses.len() as f64,
            belady: belady(&accesses, frames as usize) as f64 / accesses.len() as f64,
        };
        for policy in EvictionPolicy::ALL {
            let counts = replay(trace, frames, policy)?;
            row.hit_ratio.push((policy.name(), counts.hit_ratio()));
            row.read_hit_ratio.push((policy.name(), counts.read_hit_ratio()));
        }
        findings.rows.push(row);
    }
    Ok(())
}

impl Findings {
    /// A table in Markdown: hit ratios in percent.
    #[must_use]
    pub fn to_table(&self) -> String {
        let names = EvictionPolicy::ALL.map(EvictionPolicy::name).join(" | ");
        let mut text = format!(
            "| trace | accesses | pages | size | {names} | LRU (offline) | optimum (offline) \
             |\n|---|---|---|---|{}---|---|\n",
            "---|".repeat(EvictionPolicy::ALL.len()),
        );
        for row in &self.rows {
            let ratios: Vec<String> =
                row.hit_ratio.iter().map(|(_, ratio)| format!("{:.1}", ratio * 100.0)).collect();
            text += &format!(
                "| {} | {} | {} | {} % | {} | {:.1} | {:.1} |\n",
                row.trace,
                row.accesses,
                row.footprint_pages,
                row.size_percent,
                ratios.join(" | "),
                row.lru * 100.0,
                row.belady * 100.0,
            );
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }
}
