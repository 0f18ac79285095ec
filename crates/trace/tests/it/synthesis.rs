//! Synthesised traces, analysed again.

use nvmed_dice::Dice;
use nvmed_trace::{
    Analysis, Cell, Characteristic, Model, Op, Part, Request, Row, SynthError, Synthesis, TimeClass, Verdict,
};

/// How far a cell may be off, as a share of it.
const TOLERANCE: f64 = 0.02;

fn analysed(requests: impl Iterator<Item = Request>) -> Part {
    let mut analysis = Analysis::default();
    requests.for_each(|request| analysis.push(&request));
    analysis.finish().devices.swap_remove(0)
}

fn synthesised(model: &Model, seed: u64) -> Vec<Request> {
    Synthesis::of(model, seed).expect("the model is possible").collect()
}

/// Requests obey a queue, and each can be a request.
fn check_queue(requests: &[Request]) {
    let (mut arrival, mut free) = (0, 0);
    for request in requests {
        let (start, finish) = (request.start_ns.expect("known"), request.finish_ns.expect("known"));
        assert!(request.checked().is_ok() && request.arrival_ns >= arrival && start >= free, "{request:?}");
        (arrival, free) = (request.arrival_ns, finish);
    }
}

#[test]
fn every_cell_of_every_row_is_met() {
    let mut missed = Vec::new();
    for row in Row::published() {
        let model = Model::of(&row).expect("it is a row");
        for seed in 0..4 {
            let requests = synthesised(&model, seed);
            check_queue(&requests);
            let found = analysed(requests.into_iter()).row;
            for (cell, told, found) in row.missed_by(&found, TOLERANCE) {
                missed.push(format!("{} {seed}: {} is {found:?}, not {told}", row.name, cell.name()));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn the_rows_that_contradict_themselves_are_found() {
    let mut found = Vec::new();
    for row in Row::published() {
        let torn = Model::contradictions(&row).expect("it is a row");
        found.extend(torn.iter().map(|(cell, ..)| format!("{} {}", row.name, cell.name())));
    }
    let expected = [
        "CallOut mean_kib",
        "GoogleMaps access_kib_per_s",
        "Messaging mean_write_kib",
        "Messaging write_bytes_pct",
        "Amazon arrival_per_s",
        "Amazon access_kib_per_s",
        "YouTube mean_kib",
        "Radio mean_kib",
        "Music/FB mean_read_kib",
        "Music/FB mean_write_kib",
        "Music/FB write_bytes_pct",
        "Radio/Msg mean_read_kib",
        "Radio/Msg mean_write_kib",
        "Radio/Msg write_bytes_pct",
    ];
    assert_eq!(found, expected);
}

/// The share of the times up to a limit.
fn up_to(classes: &[TimeClass], limit_ms: f64) -> f64 {
    let count = |limit_ms: f64| {
        let within = classes.iter().filter(|class| class.at_most_ms.unwrap_or(f64::INFINITY) <= limit_ms);
        within.map(|class| class.requests).sum::<u64>() as f64
    };
    100.0 * count(limit_ms) / count(f64::INFINITY)
}

/// The mean service time after gaps of such limits.
fn service_ms(classes: &[TimeClass], is_meant: fn(f64) -> bool) -> f64 {
    let meant = || classes.iter().filter(|class| is_meant(class.at_most_ms.unwrap_or(f64::INFINITY)));
    let requests = |class: &TimeClass| class.requests as f64;
    meant().map(|class| class.mean_ms * requests(class)).sum::<f64>() / meant().map(requests).sum::<f64>()
}

#[test]
fn distributions_are_those_of_the_papers_words() {
    let (mut rows, mut waits_behind) = (Vec::new(), 0);
    for row in Row::published() {
        let model = Model::of(&row).expect("it is a row");
        let requests = synthesised(&model, 9);
        let reads = requests.iter().filter(|request| request.op == Op::Read);
        assert!(reads.map(|request| request.bytes).max() <= Some(256 << 10), "{}", row.name);
        assert!(requests.iter().all(|request| request.bytes % 4096 == 0 && request.offset % 4096 == 0));
        let largest = requests.iter().map(|request| request.bytes / 1024).max();
        let told = row.get(Cell::Max).expect("told") as u64;
        assert_eq!(largest, Some(told.next_multiple_of(4)), "{}", row.name);
        let part = analysed(requests.into_iter());
        // Where waiting is long, it is a crowd that waits, not the device that is slow to start.
        waits_behind += u32::from(part.waiting.expect("times are known").max_ms > 20.0);
        if row.name == "Movie" {
            let (count, of) = (|at: usize| part.sizes[at].reads + part.sizes[at].writes, 4_781.0);
            assert!((count(3) + count(4)) as f64 / of > 0.65, "from 16 to 64 KiB: {:?}", part.sizes);
            assert!(up_to(&part.gaps, 1.0) > 50.0, "{:?}", part.gaps);
        }
        if row.get(Cell::Arrival).is_some_and(|rate| rate < 1.0) {
            // Characteristic 4: the device wakes up.
            let soon = service_ms(&part.service_after_gap, |at_most_ms| at_most_ms <= 512.0);
            let late = service_ms(&part.service_after_gap, |at_most_ms| at_most_ms > 1_024.0);
            assert!(late > 2.0 * soon, "{}: {late} ms after a second, else {soon} ms", row.name);
        }
        // Figure 5's words: the great majority within 16 ms, few above 128 ms.
        assert!(up_to(&part.response, 16.0) > 70.0 && up_to(&part.response, 128.0) > 97.0, "{}", row.name);
        rows.push(part.row);
    }
    assert!(waits_behind > 12, "{waits_behind}");
    rows.truncate(18);
    let single: Vec<f64> = rows.iter().filter_map(|row| row.get(Cell::SinglePage)).collect();
    assert_eq!(single.iter().filter(|share| (44.9..=57.4).contains(*share)).count(), 15, "{single:?}");
    let found = Characteristic::all(&rows);
    assert_eq!((found[1].verdict, found[5].verdict), (Verdict::Holds, Verdict::Holds), "{found:?}");
}

#[test]
fn a_seed_is_a_trace() {
    let model = Model::of(&Row::published_as("Twitter").expect("it is published")).expect("it is a row");
    assert_eq!(synthesised(&model, 5), synthesised(&model, 5));
    assert_ne!(synthesised(&model, 5), synthesised(&model, 6));
}

#[test]
fn rate_and_footprint_are_scaled() {
    let row = Row::published_as("Facebook").expect("it is published");
    let model = Model::of(&row).expect("it is a row").scaled(10.0, 0.25);
    let part = analysed(synthesised(&model, 1).into_iter());
    let near = |cell: Cell, factor: f64| {
        let (told, found) = (row.get(cell).expect("told"), part.row.get(cell).expect("known"));
        assert!(
            (found / (told * factor) - 1.0).abs() < TOLERANCE,
            "{cell:?}: {found}, not {factor} times {told}"
        );
    };
    near(Cell::Arrival, 10.0);
    near(Cell::Access, 10.0);
    for cell in [Cell::NoWait, Cell::Service, Cell::Response, Cell::Temporal, Cell::Spatial] {
        near(cell, 1.0);
    }
    assert!(part.end_offset_bytes <= (4 << 30) + (64 << 20), "{}", part.end_offset_bytes);
    let busy = Model::of(&row).expect("it is a row").scaled(1_000.0, 1.0);
    assert!(matches!(Synthesis::of(&busy, 1), Err(SynthError::Busy { .. })));
    let narrow = Model::of(&row).expect("it is a row").scaled(1.0, 1e-4);
    assert!(matches!(Synthesis::of(&narrow, 1), Err(SynthError::Range { .. })));
    assert!(matches!(Model::of(&Row::new("empty")), Err(SynthError::Missing(_))));
}

/// A trace like another: all cells within 2 %, sizes and gaps with shares that differ by few points.
fn check_like(what: &str, requests: Vec<Request>) {
    let part = analysed(requests.into_iter());
    let model = Model::like(&part).expect("there are requests");
    for seed in 0..3 {
        let found = analysed(synthesised(&model, seed).into_iter());
        let missed: Vec<_> = part
            .row
            .missed_by(&found.row, TOLERANCE)
            .into_iter()
            .filter(|missed| missed.0.is_of_tables())
            .collect();
        assert!(missed.is_empty(), "{what}, seed {seed}: {missed:?}");
        for (told, found) in part.sizes.iter().zip(&found.sizes) {
            assert!(
                told.reads.abs_diff(found.reads) <= 1 && told.writes.abs_diff(found.writes) <= 1,
                "{what}"
            );
        }
        for limit_ms in [1.0, 4.0, 16.0, 64.0] {
            let off = (up_to(&part.gaps, limit_ms) - up_to(&found.gaps, limit_ms)).abs();
            assert!(off < 12.0, "{what}: {off} points at {limit_ms} ms");
        }
    }
}

#[test]
fn a_trace_is_like_another() {
    for name in ["Amazon", "CameraVideo", "Movie", "FB/Msg"] {
        let model = Model::of(&Row::published_as(name).expect("it is published")).expect("it is a row");
        check_like(name, synthesised(&model, 77));
    }
    let mut dice = Dice::new(12);
    // Units of 512 bytes, and no times but arrivals.
    let mut now = 0;
    let random = |_| {
        now += dice.roll(3_000_000);
        let op = if dice.chance(20) { Op::Write } else { Op::Read };
        Request::new(op, dice.roll(1 << 22) * 512, 512 * (1 + dice.roll(40)), now)
    };
    check_like("arrivals only", (0..5_000).map(random).collect());
    // A log in extents of 6 writes, of which three of five are written once more, each with its sizes, some of
    // which are rare: more than four of five requests are sequential, and more than one of three is a hit.
    let mut log = Vec::new();
    for extent in 0..2_000 {
        let mut offset = extent << 24;
        let writes = (0..6).map(|_| {
            let bytes = if dice.chance(20) { 512 * (1 + dice.roll(5_000)) } else { 32_768 };
            offset += bytes;
            (offset - bytes, bytes)
        });
        let writes: Vec<(u64, u64)> = writes.collect();
        log.extend_from_slice(&writes);
        log.extend(writes.into_iter().filter(|_| extent % 5 < 3));
    }
    let write = |(number, &(offset, bytes)): (u64, &(u64, u64))| {
        Request::new(Op::Write, offset, bytes, number * 900_000)
    };
    check_like("a log", (0..).zip(&log).map(write).collect());
    // A file that is read through ten times: nearly all is sequential, and nine of ten requests are hits.
    let again = |number: u64| {
        let request = Request::new(Op::Read, number % 500 * 16_384, 16_384, number * 700_000);
        Request { start_ns: Some(number * 700_000), finish_ns: Some(number * 700_000 + 300_000), ..request }
    };
    check_like("a file again and again", (0..5_000).map(again).collect());
}
