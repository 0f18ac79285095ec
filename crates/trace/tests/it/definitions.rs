//! The analysis beside the definitions, written down once more and followed literally: in quadratic time.

use nvmed_dice::Dice;
use nvmed_trace::{Analysis, Cell, Op, Part, Percentiles, Request};
use std::collections::HashSet;

/// Requests of a seed: some devices and processes, sizes and offsets that are no multiple of 4 KiB, times that are not
/// known, several in service at once, and requests that arrive together.
fn requests(seed: u64) -> Vec<Request> {
    let mut dice = Dice::of(&[17, seed]);
    let (mut arrival_ns, mut end) = (dice.roll(1 << 40), 0);
    let step = *dice.pick(&[4096, 512]).expect("there are two");
    let told = dice.roll(4);
    // In every other trace times are whole milliseconds: things happen at one time.
    let unit_ns = if seed.is_multiple_of(2) { 1_000_000 } else { 1 };
    let coarse = |time_ns: u64| time_ns / unit_ns * unit_ns;
    let one = |_| {
        arrival_ns += dice.roll(3) * dice.next().checked_shr(25 + dice.roll(20) as u32).unwrap_or(0);
        let op = *dice
            .pick(&[Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::Discard, Op::Flush])
            .expect("some");
        let bytes = if op == Op::Flush { 0 } else { (1 + (dice.next() >> (54 + dice.roll(10)))) * step };
        let offset = if dice.chance(30) { end } else { dice.roll(40) * step + dice.roll(3) * (11 << 40) };
        end = offset + bytes;
        arrival_ns = coarse(arrival_ns);
        let start_ns = coarse(arrival_ns + dice.roll(3) * dice.roll(5_000_000));
        Request {
            device: dice.roll(3) as u32,
            process: dice.roll(3) as u32,
            start_ns: (told > 0).then_some(start_ns),
            finish_ns: (told > 1 || (told == 1 && dice.chance(50)))
                .then(|| coarse(start_ns + dice.roll(9_000_000))),
            waited: dice.chance(70).then(|| dice.chance(40)),
            ..Request::new(op, offset, bytes, arrival_ns)
        }
    };
    (0..300).map(one).collect()
}

/// A request with those of its device that came before it.
type Told<'a> = (&'a Request, Vec<&'a Request>);

fn transfers(request: &Request) -> bool {
    matches!(request.op, Op::Read | Op::Write)
}

/// Whether a request need not wait.
fn no_wait((request, before): &Told<'_>) -> Option<bool> {
    match request.finish_ns {
        Some(_) => {
            Some(before.iter().all(|other| other.finish_ns.is_none_or(|finish| finish <= request.arrival_ns)))
        }
        None => request.waited.map(|waited| !waited),
    }
}

/// The mean of what is told.
fn mean(values: &[Option<f64>]) -> Option<f64> {
    let told: Vec<f64> = values.iter().copied().flatten().collect();
    (!told.is_empty()).then(|| told.iter().sum::<f64>() / told.len() as f64)
}

/// The share of what is told that is so.
fn share(values: &[Option<bool>]) -> Option<f64> {
    mean(&values.iter().map(|value| value.map(|yes| if yes { 100.0 } else { 0.0 })).collect::<Vec<_>>())
}

/// A cell of the requests `part`, by its definition.
fn cell(cell: Cell, all: &[&Request], part: &[Told<'_>]) -> Option<f64> {
    let kib = |told: &Told<'_>| told.0.bytes as f64 / 1024.0;
    let of =
        |op: Op| part.iter().filter(|told| told.0.op == op).map(|told| Some(kib(told))).collect::<Vec<_>>();
    let (reads, writes) = (of(Op::Read), of(Op::Write));
    let (data, count) = (part.iter().map(kib).sum::<f64>(), part.len() as f64);
    let first = all.iter().map(|request| request.arrival_ns).min()?;
    let last = all.iter().map(|request| request.finish_ns.unwrap_or(request.arrival_ns)).max()?;
    let seconds = (last - first) as f64 / 1e9;
    let each = |value: &dyn Fn(&Told<'_>) -> Option<f64>| mean(&part.iter().map(value).collect::<Vec<_>>());
    let shares =
        |value: &dyn Fn(&Told<'_>) -> Option<bool>| share(&part.iter().map(value).collect::<Vec<_>>());
    let before = |told: &Told<'_>| told.1.iter().rev().find(|other| transfers(other)).map(|other| **other);
    let value = match cell {
        Cell::Data => Some(data),
        Cell::Requests => Some(count),
        Cell::Max => part.iter().map(kib).reduce(f64::max),
        Cell::Mean => each(&|told| Some(kib(told))),
        Cell::MeanRead => mean(&reads),
        Cell::MeanWrite => mean(&writes),
        Cell::WriteRequests => shares(&|told| Some(told.0.op == Op::Write)),
        Cell::WriteBytes => Some(100.0 * writes.iter().flatten().sum::<f64>() / data),
        Cell::Duration => (count > 0.0).then_some(seconds),
        Cell::Arrival => Some(count / seconds),
        Cell::Access => Some(data / seconds),
        Cell::NoWait => shares(&no_wait),
        Cell::Service => each(&|told| told.0.service_ns().map(|ns| ns as f64 / 1e6)),
        Cell::Response => each(&|told| told.0.response_ns().map(|ns| ns as f64 / 1e6)),
        Cell::Spatial => shares(&|told| Some(before(told).is_some_and(|other| other.end() == told.0.offset))),
        Cell::Temporal => shares(&|(request, before)| {
            Some(before.iter().any(|other| transfers(other) && other.offset == request.offset))
        }),
        Cell::SinglePage => shares(&|told| Some(told.0.bytes <= 4096)),
        Cell::LongGaps => {
            shares(&|told| before(told).map(|other| told.0.arrival_ns - other.arrival_ns > 16_000_000))
        }
    };
    value.filter(|value| value.is_finite())
}

/// Compares a part with the definitions.
fn compare(what: &str, part: &Part, all: &[&Request], told: &[Told<'_>]) {
    for name in Cell::ALL {
        let (found, right) = (part.row.get(name), cell(name, all, told));
        let near = match (found, right) {
            (Some(found), Some(right)) => (found - right).abs() <= 1e-9 * right.abs().max(1.0),
            (found, right) => found == right,
        };
        assert!(near, "{what}: {name:?} is {found:?}, not {right:?}");
    }
    let beside: Vec<&Told<'_>> =
        told.iter().filter(|told| told.0.op == Op::Read && told.0.finish_ns.is_some()).collect();
    let under_way = |told: &&&Told<'_>| {
        let writes = told.1.iter().filter(|other| other.op == Op::Write);
        writes.filter_map(|other| other.finish_ns).any(|finish| finish > told.0.arrival_ns)
    };
    let number = beside.iter().filter(under_way).count();
    let right = (!beside.is_empty()).then(|| 100.0 * number as f64 / beside.len() as f64);
    assert_eq!(part.interference.map(|reads| reads.reads_beside_write_pct), right, "{what}");
    let waits = told.iter().filter_map(|told| Some(told.0.response_ns()? - told.0.service_ns()?));
    let most = waits.max().map(|ns| ns as f64 / 1e6);
    assert_eq!(part.waiting.map(|waiting| waiting.max_ms), most, "{what}");
    compare_percentiles(what, part, told);
}

/// Compares the numbers of requests at arrivals, and the share of the time in which a device serves any.
fn compare_depth(what: &str, part: &Part, all: &[&Request], told: &[Told<'_>], is_device: bool) {
    let found = |told: &Told<'_>| {
        let before = told.1.iter().filter_map(|other| other.finish_ns);
        told.0.finish_ns.map(|_| 1 + before.filter(|&finish_ns| finish_ns > told.0.arrival_ns).count() as u64)
    };
    let mut depths: Vec<u64> = told.iter().filter_map(found).collect();
    depths.sort_unstable();
    let at = |thousandths: usize| depths[(thousandths * depths.len()).div_ceil(1000) - 1];
    let right = (!depths.is_empty()).then(|| (at(500), at(900), at(990), at(1000)));
    assert_eq!(part.depth.map(|depth| (depth.p50, depth.p90, depth.p99, depth.max)), right, "{what}");
    let Some(utilisation_pct) = part.depth.and_then(|depth| depth.utilisation_pct) else {
        return assert!(!is_device || depths.is_empty(), "{what}");
    };
    // Between two neighbours of all these times nothing changes.
    let start = |request: &Request| request.start_ns.unwrap_or(request.arrival_ns);
    let served: Vec<(u64, u64)> =
        all.iter().filter_map(|request| Some((start(request), request.finish_ns?))).collect();
    let mut times: Vec<u64> = served.iter().flat_map(|&(start, finish)| [start, finish]).collect();
    times.sort_unstable();
    let is_busy = |from: u64| served.iter().any(|&(start, finish)| start <= from && from < finish);
    let spans = times.windows(2).filter(|span| is_busy(span[0]));
    let busy_ns: u64 = spans.map(|span| span[1] - span[0]).sum();
    let duration_s = part.row.get(Cell::Duration).expect("there are requests");
    let right = 100.0 * busy_ns as f64 / 1e9 / duration_s;
    assert!(is_device && (utilisation_pct - right).abs() < 1e-6, "{what}: {utilisation_pct}, not {right}");
}

/// Compares percentiles with those of the sorted times: exact ones are in a list.
fn compare_percentiles(what: &str, part: &Part, told: &[Told<'_>]) {
    let latencies = part.latencies.map(|latencies| latencies.each());
    let answered = told.iter().any(|told| told.0.finish_ns.is_some());
    assert_eq!(latencies.is_some(), answered, "{what}");
    for (kind, side, found) in latencies.into_iter().flatten() {
        let is_of = |op: Op| side == "all" || (side == "reads") == (op == Op::Read);
        let time = |request: &Request| match kind {
            "response" => request.response_ns(),
            "service" => request.service_ns(),
            _ => Some(request.response_ns()? - request.service_ns()?),
        };
        let times = told.iter().filter(|told| is_of(told.0.op)).filter_map(|told| time(told.0));
        let mut times: Vec<u64> = times.collect();
        times.sort_unstable();
        assert_eq!(found.is_some(), !times.is_empty(), "{what}: {side} {kind}");
        let values = found.iter().flat_map(Percentiles::values_ms);
        for (found_ms, thousandths) in values.zip([500, 900, 990, 999, 1000]) {
            let right_ms = times[(thousandths * times.len()).div_ceil(1000) - 1] as f64 / 1e6;
            let error = if thousandths == 1000 { 0.0 } else { 0.008 };
            let is_near = (right_ms..=right_ms * (1.0 + error)).contains(&found_ms);
            assert!(is_near, "{what}: {thousandths}/1000 of {side} {kind}: {found_ms}, not {right_ms}");
        }
    }
}

/// Compares the distinct units of a device, in windows of so many seconds.
fn compare_units(part: &Part, device: &[&Request], told: &[Told<'_>]) {
    let [first, .., last] = [device[0], device[device.len() - 1]].map(|request| request.arrival_ns);
    let Some(set) = &part.working_set else { panic!("a device has a working set") };
    let units = |told: &Told<'_>| told.0.offset / 4096..told.0.end().div_ceil(4096);
    // Those beyond 16 TiB are not counted.
    let counted = |&unit: &u64| unit < 1 << 32;
    let all: HashSet<u64> = told.iter().flat_map(units).filter(counted).collect();
    assert_eq!(set.distinct_kib, 4 * all.len() as u64);
    let beyond = told.iter().flat_map(units).filter(|unit| !counted(unit)).count() as u64;
    assert_eq!(set.not_counted_kib, 4 * beyond);
    for window in &set.windows {
        let number = |told: &Told<'_>| (told.0.arrival_ns - first) / (window.window_s * 1_000_000_000);
        let pairs =
            told.iter().flat_map(|told| units(told).filter(counted).map(move |unit| (number(told), unit)));
        let pairs: HashSet<(u64, u64)> = pairs.collect();
        let windows = (last - first) / (window.window_s * 1_000_000_000) + 1;
        let of_window = |number| pairs.iter().filter(|pair| pair.0 == number).count() as u64;
        let numbers: HashSet<u64> = pairs.iter().map(|pair| pair.0).collect();
        let most = numbers.into_iter().map(of_window).max();
        assert_eq!(Some(window.max_kib), most.map(|most| 4 * most));
        assert!((window.mean_kib - 4.0 * pairs.len() as f64 / windows as f64).abs() < 1e-6);
    }
}

#[test]
fn every_number_follows_from_its_definition() {
    for seed in 0..40 {
        let requests = requests(seed);
        let mut analysis = Analysis::default();
        requests.iter().for_each(|request| analysis.push(request));
        let summary = analysis.finish();
        let device =
            |at: usize| requests[..at].iter().filter(|other| other.device == requests[at].device).collect();
        let told: Vec<Told<'_>> = (0..requests.len()).map(|at| (&requests[at], device(at))).collect();
        let transfers = |which: &dyn Fn(&Request) -> bool| -> Vec<Told<'_>> {
            told.iter().filter(|told| transfers(told.0) && which(told.0)).cloned().collect()
        };
        let all = |which: &dyn Fn(&Request) -> bool| -> Vec<&Request> {
            requests.iter().filter(|request| which(request)).collect()
        };
        compare(&format!("seed {seed}"), &summary.all, &all(&|_| true), &transfers(&|_| true));
        compare_depth("all", &summary.all, &all(&|_| true), &transfers(&|_| true), false);
        for number in 0..3 {
            let (what, of) =
                (format!("seed {seed}, device {number}"), |request: &Request| request.device == number);
            compare(&what, &summary.devices[number as usize], &all(&of), &transfers(&of));
            compare_depth(&what, &summary.devices[number as usize], &all(&of), &transfers(&of), true);
            compare_units(&summary.devices[number as usize], &all(&of), &transfers(&of));
        }
        for number in 1..3 {
            let (what, of) =
                (format!("seed {seed}, process {number}"), |request: &Request| request.process == number);
            let process = &summary.processes[number as usize - 1];
            compare(&what, process, &all(&of), &transfers(&of));
            compare_depth(&what, process, &all(&of), &transfers(&of), false);
        }
    }
}

#[test]
fn extreme_requests_are_counted() {
    let mut dice = Dice::new(8);
    let mut analysis = Analysis::default().with_reuse();
    // The last time that a request can have.
    let end = i64::MAX as u64;
    let times = [0, 1, end / 2, end - 1, end];
    let mut pushed = 0;
    for number in 0..4_000 {
        let arrival_ns = *dice.pick(&times).expect("there are some");
        let bytes = *dice.pick(&[1, 511, 4096, 1 << 20]).expect("there are some");
        let offset = *dice.pick(&[0, 1, 1 << 44, (1 << 56) - (1 << 20)]).expect("there are some")
            + 4096 * dice.roll(3);
        let request = Request {
            device: *dice.pick(&[0, 7, 65_535, 65_536, u32::MAX]).expect("there are some"),
            process: *dice.pick(&[0, 4_095, 4_096, u32::MAX]).expect("there are some"),
            start_ns: dice.chance(80).then_some(arrival_ns),
            finish_ns: dice.chance(80).then_some(end),
            ..Request::new(Op::ALL[number % 3], offset, bytes, arrival_ns)
        };
        if let Ok(request) = request.checked() {
            pushed += u64::from(request.op != Op::Discard);
            analysis.push(&request);
        }
    }
    let summary = analysis.finish();
    let counted = summary.all.row.get(Cell::Requests).expect("always told") as u64;
    assert!(summary.out_of_order > 0 && summary.left_out > 0 && counted > 1_000, "{counted}");
    assert!(counted + summary.left_out >= pushed, "{counted} and {} of {pushed}", summary.left_out);
    assert_eq!(summary.devices.len(), 3);
    assert!(serde_json::to_string(&summary).is_ok());
}
