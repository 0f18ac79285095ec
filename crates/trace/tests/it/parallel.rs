//! Traces of devices that serve several requests at once, synthesised and analysed again.

use nvmed_dice::Dice;
use nvmed_trace::{Analysis, Cell, DeviceModel, Model, Op, Request, Several, Summary, SynthError, Synthesis};

/// How far a cell may be off, as a share of it.
const TOLERANCE: f64 = 0.02;

fn analysed(requests: &[Request]) -> Summary {
    let mut analysis = Analysis::default().with_reuse();
    requests.iter().for_each(|request| analysis.push(request));
    analysis.finish()
}

fn model(summary: &Summary) -> Model {
    let model = Model::like(&summary.devices[0]).expect("there are requests");
    summary.reuse.as_ref().map_or(model.clone(), |reuse| model.with_reuse(reuse))
}

/// What a trace like another one misses.
fn missed(what: &str, requests: &[Request], seed: u64) -> Vec<String> {
    let told = analysed(requests);
    let again: Vec<Request> = Synthesis::of(&model(&told), seed).expect("it is possible").collect();
    let mut last_ns = 0;
    for request in &again {
        assert_eq!(request.checked(), Ok(*request), "{what}");
        assert!(request.arrival_ns >= last_ns, "{what}");
        last_ns = request.arrival_ns;
    }
    let found = analysed(&again);
    let (told, found) = (&told.devices[0], &found.devices[0]);
    assert_eq!((told.discards, told.flushes), (found.discards, found.flushes), "{what}");
    assert_eq!(told.waiting.is_some(), found.waiting.is_some(), "{what}");
    let mut missed: Vec<String> = Vec::new();
    for (cell, told, found) in told.row.missed_by(&found.row, TOLERANCE) {
        if cell.is_of_tables() {
            missed.push(format!("{what} {seed}: {} is {found:?}, not {told}", cell.name()));
        }
    }
    if let (Some(told), Some(found)) = (told.waiting, found.waiting)
        && (told.mean_in_system / found.mean_in_system - 1.0).abs() > 2.0 * TOLERANCE
    {
        missed.push(format!(
            "{what} {seed}: {} in the system, not {}",
            found.mean_in_system, told.mean_in_system
        ));
    }
    let units =
        |part: &nvmed_trace::Part| part.working_set.as_ref().expect("of a device").distinct_kib as f64;
    if (units(found) / units(told) - 1.0).abs() > 0.05 {
        missed.push(format!("{what} {seed}: {} KiB are touched, not {}", units(found), units(told)));
    }
    missed
}

/// What arrives is served by so many servers, by those that are free first; one in so many is slow.
fn served(requests: Vec<Request>, servers: usize, slow_pct: u64, dice: &mut Dice) -> Vec<Request> {
    let mut free_ns = vec![0; servers];
    let serve = |request: Request| {
        let server = (0..servers).min_by_key(|&server| free_ns[server]).expect("there is one");
        let start_ns = request.arrival_ns.max(free_ns[server]);
        let mut service_ns = 40_000 + request.bytes * 2 + dice.roll(60_000);
        if dice.chance(slow_pct) {
            service_ns += 3_000_000 + dice.roll(9_000_000);
        }
        free_ns[server] = start_ns + service_ns;
        Request { start_ns: Some(start_ns), finish_ns: Some(start_ns + service_ns), ..request }
    };
    requests.into_iter().map(serve).collect()
}

/// Requests with times between their arrivals that `gap` tells, to places that `place` tells.
fn arriving(
    count: u64,
    dice: &mut Dice,
    gap: impl Fn(u64, &mut Dice) -> u64,
    place: impl Fn(u64, &mut Dice) -> (u64, u64),
) -> Vec<Request> {
    let mut now_ns = 5_000;
    let one = |number| {
        now_ns += gap(number, dice);
        let (offset, bytes) = place(number, dice);
        let op = if dice.chance(30) { Op::Write } else { Op::Read };
        Request::new(op, offset, bytes, now_ns)
    };
    (0..count).map(one).collect()
}

/// Hot pages of 4 to 32 KiB, others, and now and then a run.
fn pages(_: u64, dice: &mut Dice) -> (u64, u64) {
    let page = if dice.chance(60) { dice.roll(400) * 8 } else { dice.roll(100_000) * 8 };
    (page * 4096, 4096 << dice.roll(4))
}

fn servers(seed: u64) -> Vec<(&'static str, Vec<Request>)> {
    let mut dice = Dice::new(seed);
    let dice = &mut dice;
    let steady = arriving(4_000, dice, |_, dice| dice.roll(100_000), pages);
    let bursts = arriving(
        4_000,
        dice,
        |number, dice| if number % 50 == 0 { 20_000_000 } else { dice.roll(9_000) },
        pages,
    );
    let calm = arriving(3_000, dice, |_, dice| dice.roll(3_000_000), pages);
    let stamps = arriving(3_000, dice, |number, _| if number % 32 == 0 { 4_000_000 } else { 0 }, pages);
    let flood = arriving(4_000, dice, |_, dice| dice.roll(20_000), pages);
    vec![
        ("steady on 8", served(steady, 8, 1, dice)),
        ("bursts on 16", served(bursts, 16, 3, dice)),
        ("calm on 4", served(calm, 4, 10, dice)),
        ("equal stamps on 32", served(stamps, 32, 0, dice)),
        ("a flood on 2", served(flood, 2, 0, dice)),
    ]
}

#[test]
fn every_cell_of_a_server_is_met() {
    let mut found = Vec::new();
    for seed in 0..6 {
        for (what, requests) in servers(seed) {
            found.extend(missed(what, &requests, seed));
            // Of a trace that does not say when service begins the responses are met, and services are not made up.
            let unsure: Vec<Request> =
                requests.iter().map(|request| Request { start_ns: None, ..*request }).collect();
            found.extend(missed(&format!("{what}, no starts"), &unsure, seed));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The shares of touches that a cache of so many KiB, which evicts the least recently used, would hit.
fn hits(summary: &Summary, cache_kib: &[u64]) -> Vec<f64> {
    let reuse = summary.reuse.as_ref().expect("it was asked for");
    let at = |kib: &u64| reuse.hits.iter().rfind(|hit| hit.cache_kib <= *kib).map_or(0.0, |hit| hit.hit_pct);
    cache_kib.iter().map(at).collect()
}

#[test]
fn a_cache_hits_about_as_often() {
    let mut dice = Dice::new(8);
    // Most requests go to one of 40 pages, which move on; the working set is 20 times as large.
    let drifting = |number: u64, dice: &mut Dice| ((number / 20 + dice.roll(40)) * 8192, 8192);
    let recent = arriving(8_000, &mut dice, |_, dice| dice.roll(90_000), drifting);
    // The same pages in turn: a cache that is too small never hits.
    let turns = arriving(
        8_000,
        &mut dice,
        |_, dice| dice.roll(90_000),
        |number, _| (number * 7 % 800 * 40_960, 4096),
    );
    for (what, requests) in [("drifting", recent), ("in turn", turns)] {
        let told = analysed(&requests);
        let again: Vec<Request> = Synthesis::of(&model(&told), 2).expect("it is possible").collect();
        let sizes = [64, 256, 1024, 4096, 16_384];
        let (told, found) = (hits(&told, &sizes), hits(&analysed(&again), &sizes));
        let off = told.iter().zip(&found).map(|(told, found)| (told - found).abs()).fold(0.0, f64::max);
        assert!(off < 10.0, "{what}: {found:.1?} %, not {told:.1?} %");
    }
}

#[test]
fn discards_flushes_and_what_waits_without_times_are_kept() {
    let mut dice = Dice::new(4);
    let plain = arriving(2_000, &mut dice, |_, dice| dice.roll(90_000), pages);
    let timed = served(plain.clone(), 4, 2, &mut dice);
    let told = |request: Request| Request { waited: Some(request.offset.is_multiple_of(3)), ..request };
    for (what, requests) in [("timed", timed), ("waits are told", plain.into_iter().map(told).collect())] {
        let mut mixed = Vec::new();
        for (number, request) in requests.into_iter().enumerate() {
            mixed.push(request);
            if number % 20 == 0 {
                mixed.push(Request { op: Op::Discard, bytes: 1 << 20, waited: None, ..request });
            }
            if number % 7 == 0 {
                mixed.push(Request { op: Op::Flush, offset: 0, bytes: 0, waited: None, ..request });
            }
        }
        let missed = missed(what, &mixed, 3);
        assert!(missed.is_empty(), "{missed:#?}");
        let again: Vec<Request> =
            Synthesis::of(&model(&analysed(&mixed)), 3).expect("it is possible").collect();
        let discards: Vec<&Request> = again.iter().filter(|request| request.op == Op::Discard).collect();
        assert!(discards.len() == 100 && discards.iter().all(|discard| discard.bytes == 1 << 20), "{what}");
        // They are among the others, not in one place.
        let late = discards.iter().filter(|discard| discard.arrival_ns > again[again.len() / 2].arrival_ns);
        assert!((30..=70).contains(&late.count()), "{what}");
    }
}

#[test]
fn a_full_range_is_filled() {
    // Every page of a disk is written once, and then read at random.
    let mut dice = Dice::new(1);
    let place = |number: u64, dice: &mut Dice| {
        let page = if number < 1_000 { number * 377 % 1_000 } else { dice.roll(1_000) };
        ((page + 5) * 4096, 4096)
    };
    let requests = arriving(3_000, &mut dice, |_, dice| dice.roll(90_000), place);
    let missed = missed("full", &requests, 1);
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_faster_server_is_as_busy_with_each_request() {
    let mut dice = Dice::new(6);
    let requests = arriving(4_000, &mut dice, |_, dice| dice.roll(400_000), pages);
    let told = analysed(&served(requests, 8, 2, &mut dice));
    for rate in [0.1, 0.5, 3.0, 20.0] {
        let model = model(&told).scaled(rate, 1.0);
        let again: Vec<Request> = Synthesis::of(&model, 1).expect("several are served at once").collect();
        let found = analysed(&again).devices[0].row.clone();
        let missed = model.row("scaled").missed_by(&found, TOLERANCE);
        assert!(missed.iter().all(|missed| !missed.0.is_of_tables()), "{rate}: {missed:?}");
    }
    // Where none waits there is a limit.
    let alone = |number: u64| Request {
        finish_ns: Some(number * 1_000 + 900),
        ..Request::new(Op::Read, number * 4096, 4096, number * 1_000)
    };
    let alone = analysed(&(0..100).map(alone).collect::<Vec<_>>());
    let fast = Synthesis::of(&model(&alone).scaled(2.0, 1.0), 1);
    assert!(matches!(fast, Err(SynthError::Alone { .. })), "{fast:?}");
}

#[test]
fn a_hostile_trace_is_an_error_or_a_trace() {
    let empty = Analysis::default().finish();
    assert_eq!(Model::like(&empty.all).err(), Some(SynthError::Missing(Cell::Requests.name())));
    let times = |request: Request, start: u64, finish: u64| Request {
        start_ns: Some(start),
        finish_ns: Some(finish),
        ..request
    };
    let read = |offset, bytes, arrival_ns| Request::new(Op::Read, offset, bytes, arrival_ns);
    let far = (1 << 56) - 4096;
    let old = (1 << 63) - 2;
    let traces: Vec<(&str, Vec<Request>)> = vec![
        ("one", vec![read(0, 4096, 7)]),
        ("one with times", vec![times(read(512, 512, 7), 8, 9)]),
        ("one at no time", vec![times(read(512, 512, 7), 7, 7)]),
        ("one stamp", (0..300).map(|number| read(number * 512, 512, 9)).collect()),
        (
            "one stamp, served at once",
            (0..300).map(|number| times(read(number * 512, 512, 9), 9, 9)).collect(),
        ),
        (
            "one stamp, served",
            (0..300).map(|number| times(read(number * 512, 512, 9), 9, 50 + number)).collect(),
        ),
        ("one place", (0..300).map(|number| times(read(0, 4096, number), number, number + 900)).collect()),
        ("no bytes", (0..9).map(|number| read(number * 4096, 0, number)).collect()),
        ("some without bytes", (0..9).map(|number| read(number * 4096, number / 8 * 4096, number)).collect()),
        ("all that a device has", vec![read(0, 4096, 0), read(far, 4096, 1)]),
        ("all time", vec![times(read(0, 4096, 0), 0, old), times(read(0, 4096, 1), 1, old)]),
        ("a century", vec![times(read(0, 512, 0), 0, old / 3), times(read(512, 512, 1), 1, old / 3)]),
        ("4 GiB", (0..9).map(|number| times(read(number << 20, 4 << 30, number), 20, 21)).collect()),
    ];
    for (what, requests) in traces {
        let summary = analysed(&requests);
        let Ok(model) = Model::like(&summary.devices[0]) else {
            assert!(what.contains("bytes"), "{what}");
            continue;
        };
        for (rate, footprint) in
            [(1.0, 1.0), (1e6, 1e-6), (1e-6, 1e6), (0.0, 0.0), (-1.0, -1.0), (f64::NAN, f64::NAN)]
        {
            let made = Synthesis::of(&model.clone().scaled(rate, footprint), 1);
            let likely = rate == 1.0 && !["all that a device has", "all time"].contains(&what);
            assert!(made.is_ok() || !likely, "{what}: {made:?}");
            let Ok(made) = made else { continue };
            let again: Vec<Request> = made.take(requests.len() + 1).collect();
            assert_eq!(again.len(), requests.len(), "{what}");
            let whole = |request: &Request| request.checked() == Ok(*request);
            assert!(again.iter().all(whole), "{what} at {rate}: {again:?}");
        }
    }
}

/// Two devices, of which the second is another one and begins later: each is made again as it would be alone.
#[test]
fn several_devices_are_each_like_their_own() {
    let all = servers(3);
    let begin_ns = 40_000_000;
    let later = |request: &Request| Request {
        device: 7,
        arrival_ns: request.arrival_ns + begin_ns,
        start_ns: request.start_ns.map(|start_ns| start_ns + begin_ns),
        finish_ns: request.finish_ns.map(|finish_ns| finish_ns + begin_ns),
        ..*request
    };
    let mut requests: Vec<Request> = all[0].1.iter().copied().chain(all[2].1.iter().map(later)).collect();
    requests.sort_by_key(|request| request.arrival_ns);
    let of_devices = |requests: &[Request]| {
        let mut analysis = Analysis::default().with_reuse_of_devices();
        requests.iter().for_each(|request| analysis.push(request));
        analysis.finish().devices
    };
    let told = of_devices(&requests);
    let first_ns = told.iter().map(|part| part.first_arrival_ns).min().unwrap();
    let like = told.iter().map(|part| DeviceModel {
        device: part.number,
        begin_ns: part.first_arrival_ns - first_ns,
        model: Model::like(part).unwrap().with_reuse(part.reuse.as_ref().unwrap()),
    });
    let models: Vec<DeviceModel> = like.collect();
    let again: Vec<Request> = Several::of(&models, 5).unwrap().collect();
    assert!(again.is_sorted_by_key(|request| request.arrival_ns));
    let found = of_devices(&again);
    assert_eq!(found.iter().map(|part| part.number).collect::<Vec<_>>(), [0, 7]);
    assert_eq!(found[1].first_arrival_ns - found[0].first_arrival_ns, models[1].begin_ns);
    for (told, found) in told.iter().zip(&found) {
        let missed = told.row.missed_by(&found.row, TOLERANCE);
        assert!(missed.iter().all(|(cell, ..)| !cell.is_of_tables()), "{}: {missed:?}", told.number);
        // A cache hits as often as it would before this device, not before both.
        let hits = |part: &nvmed_trace::Part| part.reuse.as_ref().unwrap().hits[10].hit_pct;
        assert!((hits(told) - hits(found)).abs() < 10.0, "{} {}", hits(told), hits(found));
    }
    let alone: Vec<Request> = Synthesis::of(&models[0].model, 5).unwrap().collect();
    assert!(again.iter().filter(|request| request.device == 0).eq(&alone), "another seed");
    // Devices that are like one another do the same at other times and places.
    let twins = [0, 1].map(|device| DeviceModel { device, begin_ns: 0, ..models[0].clone() });
    let made: Vec<Request> = Several::of(&twins, 5).unwrap().collect();
    let of = |device| made.iter().filter(move |request| request.device == device);
    assert!(of(0).zip(of(1)).any(|(one, other)| one.offset != other.offset), "twins");
}
