//! How much memory an analysis takes, and how long: by hand, since both take a while.

use nvmed_dice::Dice;
use nvmed_trace::{Analysis, Cell, Op, Request};

/// A line of /proc/self/status, in KiB.
fn status_kib(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|text| text.strip_prefix(line)?.split_whitespace().next()?.parse().ok());
    value.unwrap_or(0)
}

/// Analyses so many requests, half of whose starts are on 64 GiB and no multiples of 4 KiB.
fn analyse(requests: u64) -> u64 {
    let (mut dice, mut analysis) = (Dice::new(5), Analysis::default());
    for number in 0..requests {
        let offset = dice.roll(1 << 24) * 4096 + 512 * (number % 2);
        let op = if dice.chance(30) { Op::Read } else { Op::Write };
        let request = Request {
            start_ns: Some(number * 20_000 + 10),
            finish_ns: Some(number * 20_000 + dice.roll(30_000)),
            ..Request::new(op, offset, 4096 << dice.roll(4), number * 20_000)
        };
        analysis.push(&request);
    }
    let summary = analysis.finish();
    assert_eq!(summary.all.row.get(Cell::Requests), Some(requests as f64));
    assert!(summary.all.temporal_locality_error_points < 1.0);
    status_kib("VmHWM:")
}

#[test]
#[ignore = "takes minutes: `cargo test --release -p nvmed-trace --test it -- --ignored --nocapture`"]
fn twice_the_requests_take_no_more_memory() {
    let half = analyse(50_000_000);
    let whole = analyse(100_000_000);
    println!("largest resident set: {half} KiB at 5*10^7 requests, {whole} KiB at 10^8");
    assert!(whole as f64 <= 1.05 * half as f64, "{half} KiB, then {whole} KiB");
}
