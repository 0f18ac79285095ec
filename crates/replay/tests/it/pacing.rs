//! When requests reach the device, by its own record.

use crate::device::{Device, LATENCY_NS, request};
use nvmed_replay::{Pacing, ReplayError, ReplayOptions};
use nvmed_trace::{Op, Request};

/// Looks at simulated time between a deadline and a doorbell, 50 ns each.
const LOOKS_NS: u64 = 2000;

#[test]
fn an_open_loop_keeps_each_deadline_whatever_the_device_does() {
    // Gaps far shorter and far longer than the device's 100 us, at a date.
    let day = 1_398_406_382_000_000_000;
    let gaps = [0, 700, 50_000, 90_000_000, 0, 0, 123_456, 3_000_000_000, 5];
    let mut at = day;
    let trace = (0..90).map(|number| {
        at += gaps[number % gaps.len()] * 2;
        Request::new(Op::Read, 4096 * number as u64, 4096, at)
    });
    let trace: Vec<Request> = trace.collect();
    let device = Device::good();
    let (done, replayed, error) =
        device.replay(&trace, ReplayOptions { speed: 2.0, ..ReplayOptions::default() });
    assert!(error.is_none(), "{error:?}");
    let arrivals = device.times();
    let due = |number: usize| (trace[number].arrival_ns - day) / 2;
    for (number, done) in done.iter().enumerate() {
        let reached = arrivals[number].0 - arrivals[0].0;
        assert!(reached.abs_diff(due(number)) <= LOOKS_NS, "{number}: {reached}, due at {}", due(number));
        assert_eq!(done.arrival_ns, day + due(number), "results are in the time of the replay");
        let service = done.service_ns().unwrap();
        assert!((LATENCY_NS..LATENCY_NS + LOOKS_NS).contains(&service), "{service}");
    }
    assert!(replayed.lateness.max_ns() <= LOOKS_NS && replayed.lateness.count() == 90);
    assert!((1..=LOOKS_NS).contains(&replayed.lateness.percentile_ns(99.0)));
}

#[test]
fn a_device_that_has_no_room_makes_requests_late() {
    let trace: Vec<Request> = (0..100).map(|number| Request::new(Op::Read, 0, 512, number * 1000)).collect();
    let device = Device::good();
    let (_, replayed, error) = device.replay(&trace, ReplayOptions { depth: 4, ..ReplayOptions::default() });
    assert!(error.is_none(), "{error:?}");
    // Four in 100 us, so the last one is given at 24 × 100 us instead of 99 us.
    let latest = replayed.lateness.max_ns();
    assert!((2_290_000..2_320_000).contains(&latest), "{latest}");
    assert!(replayed.lateness.percentile_ns(99.0) > 1_000_000);
    // Response counts from the deadline, service from the submission.
    assert!(replayed.response.max_ns() > 2_390_000 && replayed.service.max_ns() < 120_000);
}

#[test]
fn a_closed_loop_has_never_more_under_way_and_never_fewer() {
    let trace: Vec<Request> =
        (0..200).map(|number| Request::new(Op::Read, number * 512, 512, number * 1_000_000_000)).collect();
    let device = Device::good();
    let options = ReplayOptions { pacing: Pacing::Closed(5), ..ReplayOptions::default() };
    let (done, replayed, error) = device.replay(&trace, options);
    assert!(error.is_none(), "{error:?}");
    let arrivals = device.times();
    for (number, &(arrival, _)) in arrivals.iter().enumerate() {
        let open = arrivals[..number].iter().filter(|(_, due)| *due > arrival).count();
        assert!(open < 5, "{open} others are under way when {number} comes");
    }
    let took = arrivals[199].1 - arrivals[0].0;
    assert!((40 * LATENCY_NS..42 * LATENCY_NS).contains(&took), "{took}");
    assert_eq!((replayed.lateness.count(), done.len()), (0, 200));
}

#[test]
fn a_dependent_request_comes_its_think_time_after_those_before_it() {
    // Recorded on a device of 10 us; this one takes 100.
    let trace = [
        request(Op::Read, 0, 512, 1_000_000, 1_010_000),
        request(Op::Read, 512, 512, 1_004_000, 1_014_000),
        // 3 us after both.
        request(Op::Read, 1024, 512, 1_017_000, 1_027_000),
        // Not after the third: it was not done when this came.
        request(Op::Read, 1536, 512, 1_020_000, 1_030_000),
        // 1 s after all.
        request(Op::Read, 2048, 512, 1_001_030_000, 1_001_040_000),
    ];
    let device = Device::good();
    let options = ReplayOptions { pacing: Pacing::Dependent, ..ReplayOptions::default() };
    let (done, replayed, error) = device.replay(&trace, options);
    assert!(error.is_none(), "{error:?}");
    let arrivals = device.times();
    let near = |at: u64, since: u64, think: u64| (at - since).abs_diff(think) <= LOOKS_NS;
    assert!(near(arrivals[1].0, arrivals[0].0, 4000), "{arrivals:?}");
    assert!(near(arrivals[2].0, arrivals[1].1, 3000), "{arrivals:?}");
    assert!(near(arrivals[3].0, arrivals[1].1, 6000), "{arrivals:?}");
    assert!(near(arrivals[4].0, arrivals[3].1, 1_000_000_000), "{arrivals:?}");
    assert_eq!((done.len(), replayed.lateness.count()), (5, 5));
    assert!(replayed.lateness.max_ns() <= LOOKS_NS, "{}", replayed.lateness.max_ns());
    let without = [trace[0], Request { finish_ns: None, ..trace[1] }];
    let (.., error) = device.replay(&without, options);
    assert!(matches!(error, Some(ReplayError::NoFinish { unfinished: 1, requests: 2 })), "{error:?}");
}
