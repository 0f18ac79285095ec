//! A workload that is always there: popular pages by Zipf's law, with scans in between.

use super::trace::{PAGE_BYTES, Trace};
use nvmed_dice::Dice;
use nvmed_trace::{Op, Request};

/// Pages that are popular to different degrees.
const PAGES: u64 = 20_000;
/// Exponent of Zipf's law: block traces lie between 0.7 and 1.
const SKEW: f64 = 0.9;
/// Accesses between two scans, and pages of one, none of which comes again.
const SCAN_EVERY: u64 = 20_000;
const SCAN_PAGES: u64 = 2_000;
/// One access in so many is a write.
const WRITE_EVERY: u64 = 10;

/// A trace of `accesses` popular accesses and the scans between them; the same each time.
#[must_use]
pub fn zipf_and_scans(accesses: u64) -> Trace {
    let mut below = Vec::with_capacity(PAGES as usize);
    let mut sum = 0.0;
    for rank in 1..=PAGES {
        sum += (rank as f64).powf(-SKEW);
        below.push(sum);
    }
    let mut dice = Dice::new(1);
    let mut requests = Vec::new();
    for at in 0..accesses {
        let point = dice.roll(1 << 31) as f64 / (1u64 << 31) as f64 * sum;
        let rank = below.partition_point(|edge| *edge < point) as u64;
        // Popular pages lie all over the object: a multiplier without a factor in common with PAGES.
        let page = rank % PAGES * 7_919 % PAGES;
        let op = if dice.roll(WRITE_EVERY) == 0 { Op::Write } else { Op::Read };
        requests.push(Request::new(op, page * PAGE_BYTES, PAGE_BYTES, 0));
        if at % SCAN_EVERY == SCAN_EVERY - 1 {
            let first = PAGES + at / SCAN_EVERY * SCAN_PAGES;
            let pages = first..first + SCAN_PAGES;
            requests.extend(pages.map(|page| Request::new(Op::Read, page * PAGE_BYTES, PAGE_BYTES, 0)));
        }
    }
    Trace { name: "zipf-0.9-and-scans".to_owned(), format: "synthetic", requests, lines_skipped: 0 }
}
