//! Hit ratios of the eviction policies on real traces.

use crate::cache_policies::{Findings, Row, SIZES_PERCENT, run};
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::samples::Samples;
use nvmed_cache::EvictionPolicy;
use std::path::PathBuf;

/// Each policy beside exact LRU, on the mean over the traces.
pub(crate) struct Policies;

/// The variable that names the directory of traces.
const TRACES: &str = "NVMED_TRACES";
/// Traces with fewer pages, or on which even the optimum finds less, say nothing of a policy.
const PAGES_MIN: u64 = 1000;
const OPTIMUM_MIN: f64 = 0.05;

impl Experiment for Policies {
    fn id(&self) -> &'static str {
        "cache.policies"
    }

    fn what(&self) -> &'static str {
        "page accesses that the cache answers, mean over the traces at 1, 5 and 10 % of their pages: each policy over \
         LRU"
    }

    /// A reader takes no lock, so the cache cannot keep the order of uses; this must not cost hits.
    fn goal(&self) -> Goal {
        Goal::AtLeast(1.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let traces = std::env::var_os(TRACES).map(PathBuf::from);
        let findings = run(traces.as_deref(), effort.quick)
            .map_err(|errno| LabError::host("memory for a cache", errno))?;
        let series = EvictionPolicy::ALL.map(|policy| series(policy, &findings)).to_vec();
        let mut limits = findings.notes.clone();
        limits.extend(findings.rows.iter().map(line));
        limits.push("LRU and the optimum are computed offline and know no dirty pages".to_owned());
        let method = format!(
            "{} traces through the cache itself, half of whose frames may be dirty, write-back of all when more are; \
             traces of {PAGES_MIN} pages or more on which the optimum finds 5 % or more are in the mean; \
             {TRACES} names their directory",
            findings.rows.len() / SIZES_PERCENT.len(),
        );
        Ok(Finding { cells: Vec::new(), series, method, limits })
    }
}

/// One policy beside LRU: a figure for each size.
fn series(policy: EvictionPolicy, findings: &Findings) -> Series {
    let means = |of: &dyn Fn(&Row) -> f64| -> Samples {
        SIZES_PERCENT.iter().map(|size| mean(findings, *size, of)).collect()
    };
    let ratio = |row: &Row| {
        let found = row.hit_ratio.iter().find(|(name, _)| *name == policy.name());
        found.map_or(f64::NAN, |(_, ratio)| *ratio)
    };
    Series {
        label: format!("cache_policy = {}", policy.name()),
        unit: "% hits".to_owned(),
        ours: Measured { name: policy.name().to_owned(), runs: means(&ratio) },
        rivals: vec![Measured { name: "exact LRU".to_owned(), runs: means(&|row| row.lru) }],
    }
}

fn mean(findings: &Findings, size_percent: u32, of: &dyn Fn(&Row) -> f64) -> f64 {
    let tells = |row: &&Row| {
        row.size_percent == size_percent && row.footprint_pages >= PAGES_MIN && row.belady >= OPTIMUM_MIN
    };
    let figures: Vec<f64> = findings.rows.iter().filter(tells).map(of).collect();
    100.0 * figures.iter().sum::<f64>() / figures.len() as f64
}

fn line(row: &Row) -> String {
    let ratios: Vec<String> =
        row.hit_ratio.iter().map(|(name, ratio)| format!("{name} {:.1}", ratio * 100.0)).collect();
    format!(
        "{} at {} % ({} frames): {}, LRU {:.1}, optimum {:.1}",
        row.trace,
        row.size_percent,
        row.frames,
        ratios.join(", "),
        row.lru * 100.0,
        row.belady * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(trace: &str, size_percent: u32, footprint_pages: u64, lru: f64, belady: f64) -> Row {
        Row {
            trace: trace.to_owned(),
            format: "synthetic",
            requests: 1,
            accesses: 1,
            footprint_pages,
            size_percent,
            frames: 16,
            hit_ratio: EvictionPolicy::ALL.iter().map(|policy| (policy.name(), lru * 2.0)).collect(),
            read_hit_ratio: Vec::new(),
            lru,
            belady,
        }
    }

    #[test]
    fn the_mean_is_of_traces_that_tell() {
        let mut rows = vec![row("tiny", 5, 999, 0.9, 0.9), row("hopeless", 5, 5000, 0.01, 0.04)];
        for size in SIZES_PERCENT {
            rows.push(row("one", size, 5000, 0.1, 0.5));
            rows.push(row("two", size, 5000, 0.3, 0.5));
        }
        let findings = Findings { rows, notes: Vec::new() };
        let series = series(EvictionPolicy::Sieve, &findings);
        assert!((series.ratio() - 2.0).abs() < 1e-9, "{series:?}");
        assert!(series.rivals[0].runs.figures().iter().all(|mean| (mean - 20.0).abs() < 1e-9));
    }
}
