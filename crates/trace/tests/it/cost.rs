//! What an analysis costs: by hand, since it takes a while.

use crate::scratch::{Scratch, write};
use nvmed_dice::Dice;
use nvmed_trace::{Analysis, Catalogue, Cell, Model, Op, Options, Request, Row, Source, Synthesis};

/// Times that a trace is analysed.
const ROUNDS: u64 = 40;

/// A line of /proc/self/status, in KiB.
fn status_kib(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value =
        status.lines().find_map(|text| text.strip_prefix(line)?.split_whitespace().next()?.parse().ok());
    value.unwrap_or(0)
}

/// How long this thread has had a processor: others that share it do not count.
fn processor_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0)
}

#[test]
#[ignore = "takes minutes: `cargo test --release -p nvmed-trace --test it -- --ignored --nocapture`"]
fn twice_the_requests_take_no_more_memory() {
    // On 64 GiB; half of the offsets are no multiples of 4 KiB, and more than are known exactly.
    let (mut dice, mut analysis) = (Dice::new(5), Analysis::default());
    let mut grow = |requests: std::ops::Range<u64>| {
        for number in requests {
            let offset = dice.roll(1 << 24) * 4096 + 512 * (number % 2);
            let op = if dice.chance(30) { Op::Read } else { Op::Write };
            analysis.push(&Request {
                start_ns: Some(number * 20_000 + 10),
                finish_ns: Some(number * 20_000 + 10 + dice.roll(30_000)),
                ..Request::new(op, offset, 4096 << dice.roll(4), number * 20_000)
            });
        }
        status_kib("VmHWM:")
    };
    let half = grow(0..50_000_000);
    let whole = grow(50_000_000..100_000_000);
    let summary = analysis.finish();
    assert_eq!(summary.all.row.get(Cell::Requests), Some(1e8));
    assert!(summary.all.temporal_locality_error_points < 1.0);
    println!("largest resident set: {half} KiB after 5*10^7 requests, {whole} KiB after 10^8");
    assert!(whole as f64 <= 1.05 * half as f64, "{half} KiB, then {whole} KiB");
}

#[test]
#[ignore = "prints, and checks nothing: `cargo test --release -p nvmed-trace --test it -- --ignored --nocapture`"]
fn a_request_takes_so_long() {
    for name in ["Twitter", "Installing"] {
        let model = Model::of(&Row::published_as(name).expect("it is published")).expect("it is a row");
        let requests: Vec<Request> = Synthesis::of(&model, 1).expect("it is possible").collect();
        for (what, reuse) in [("tables", false), ("tables and reuse distances", true)] {
            // Several traces one after another, as one.
            let analysis = Analysis::default();
            let mut analysis = if reuse { analysis.with_reuse() } else { analysis };
            let span_ns = requests.last().and_then(|last| last.finish_ns).unwrap_or(0);
            let begin_ns = processor_ns();
            for round in 0..ROUNDS {
                for request in &requests {
                    let later = |time_ns: u64| time_ns + round * span_ns;
                    analysis.push(&Request {
                        arrival_ns: later(request.arrival_ns),
                        start_ns: request.start_ns.map(later),
                        finish_ns: request.finish_ns.map(later),
                        ..*request
                    });
                }
            }
            let pushed = requests.len() as u64 * ROUNDS;
            let each_ns = (processor_ns() - begin_ns) as f64 / pushed as f64;
            println!("{name}, {what}: {pushed} requests, {each_ns:.0} ns of the processor each");
            assert_eq!(analysis.finish().all.row.get(Cell::Requests), Some(pushed as f64));
        }
    }
}

#[test]
#[ignore = "prints, and checks nothing: `cargo test --release -p nvmed-trace --test it -- --ignored --nocapture`"]
fn a_request_of_a_file_takes_so_long() {
    let scratch = Scratch::new();
    let path = scratch.path("twitter.parquet");
    let model = Model::of(&Row::published_as("Twitter").expect("it is published")).expect("it is a row");
    let once: Vec<Request> = Synthesis::of(&model, 1).expect("it is possible").collect();
    let span_ns = once.last().and_then(|last| last.finish_ns).unwrap_or(0);
    let round = |round: u64| {
        let later = move |time_ns: u64| time_ns + round * span_ns;
        once.iter().map(move |request| Request {
            arrival_ns: later(request.arrival_ns),
            start_ns: request.start_ns.map(later),
            finish_ns: request.finish_ns.map(later),
            ..*request
        })
    };
    let requests: Vec<Request> = (0..ROUNDS).flat_map(round).collect();
    write(&path, "parquet", &requests, &Catalogue::default());
    for analyses in [false, true] {
        let mut source = Source::open(&path, &Options::default()).expect("it is a trace");
        let mut analysis = Analysis::default();
        let begin_ns = processor_ns();
        while let Some(request) = source.next().expect("it is whole") {
            if analyses {
                analysis.push(&request);
            }
        }
        let each_ns = (processor_ns() - begin_ns) as f64 / requests.len() as f64;
        let what = if analyses { "read from Parquet and analysed" } else { "read from Parquet" };
        println!("{what}: {} requests, {each_ns:.0} ns of the processor each", requests.len());
    }
}
