//! The page of traces that were made up: `cargo run -p nvmed-report --example made_up > made_up.html`.

use nvmed_dice::Dice;
use nvmed_report::{Traced, report};
use nvmed_trace::{Analysis, Names, Op, Request, Summary, Timeline};

fn main() {
    print!("{}", page(3));
}

/// The page of so many traces, of one without times and of one without requests.
pub fn page(count: u64) -> String {
    let mut all: Vec<(Summary, Timeline)> = (0..count).map(|seed| phone(seed, 4000, true)).collect();
    all.push(phone(count, 300, false));
    all.push(phone(count + 1, 0, true));
    let traces: Vec<Traced<'_>> = all
        .iter()
        .map(|(summary, timeline)| Traced { summary, timeline: Some(timeline), remarks: &[] })
        .collect();
    report(&traces)
}

/// A trace that is like a phone's: bursts, mostly small writes, a log and files, one request served at a time.
pub fn phone(seed: u64, requests: u64, timed: bool) -> (Summary, Timeline) {
    let mut dice = Dice::new(seed);
    let (mut analysis, mut timeline) = (Analysis::default().with_reuse(), Timeline::default());
    let (mut devices, mut processes) = (Names::default(), Names::default());
    let of_device = ["mmcblk0", "sdcard <1>"].map(|name| devices.number(name).unwrap_or(0));
    let named = |at| format!("com.example.application{at}</td><script>alert({at})</script>");
    let of_process: Vec<u32> = (0..30).map(|at| processes.number(&named(at)).unwrap_or(0)).collect();
    let (mut arrival_ns, mut free_ns, mut log) = (1_000_000_000, 0, 1 << 30);
    for _ in 0..requests {
        arrival_ns += if dice.chance(70) { dice.roll(3_000_000) } else { dice.roll(500_000_000) };
        let op = if dice.chance(30 + 10 * (seed % 5)) { Op::Read } else { Op::Write };
        let bytes = if dice.chance(50) { 4096 } else { 4096 << dice.roll(8) };
        let offset = match dice.roll(3) {
            0 => log,
            1 => dice.roll(64) * 4096,
            _ => (2 << 30) + dice.roll(1 << 18) * 4096,
        };
        log += if offset == log { bytes } else { 0 };
        let start_ns = arrival_ns.max(free_ns) + 20_000;
        let finish_ns =
            start_ns + 200_000 + bytes * if op == Op::Read { 10 } else { 40 } + dice.roll(100_000);
        free_ns = finish_ns;
        let request = Request {
            device: of_device[usize::from(dice.chance(10))],
            process: dice.pick(&of_process).copied().unwrap_or(0),
            start_ns: timed.then_some(start_ns),
            finish_ns: timed.then_some(finish_ns),
            ..Request::new(op, offset, bytes, arrival_ns)
        };
        analysis.push(&request);
        timeline.push(&request);
        if dice.chance(1) {
            analysis.push(&Request::new(Op::Flush, 0, 0, arrival_ns));
        }
    }
    let name = ["Messaging", "A <b>&amp; long-winded.application.name", "Movie"][seed as usize % 3];
    (analysis.finish().named(&format!("{name} {seed}"), &devices, &processes), timeline)
}
