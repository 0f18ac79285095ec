//! Every request reaches the device once, where it belongs.

use crate::device::{BYTES, Device, Done};
use nvmed_dice::Dice;
use nvmed_replay::{Pacing, Remap, ReplayError, ReplayOptions};
use nvmed_trace::{Op, Request};

/// A trace with requests of all kinds and sizes, some of which are no whole blocks.
fn mixed(seed: u64, count: u64) -> Vec<Request> {
    let mut dice = Dice::new(seed);
    let mut requests = Vec::new();
    for number in 0..count {
        let op = [Op::Read, Op::Write, Op::Write, Op::Read, Op::Discard, Op::Flush][dice.index(6)];
        let bytes = match dice.roll(20) {
            _ if op == Op::Flush => 0,
            0 => 3 << 20,
            1 => 1 + dice.roll(5000),
            _ => 512 << dice.roll(8),
        };
        let offset = dice.roll((BYTES - bytes) / 512) * 512;
        requests.push(Request::new(op, if op == Op::Flush { 0 } else { offset }, bytes, number * 20_000));
    }
    requests
}

/// What the medium is asked for by a trace, as it is.
fn wanted(trace: &[Request]) -> Vec<Done> {
    let whole = |request: &Request| {
        let (first, end) = (request.offset / 512 * 512, request.end().next_multiple_of(512));
        Done { op: request.op, offset: first, bytes: end - first }
    };
    // A command moves 1 MiB at most.
    let part = |done: Done| {
        let most = if matches!(done.op, Op::Read | Op::Write) { 1 << 20 } else { u64::MAX };
        let count = done.bytes.div_ceil(most).max(1);
        (0..count).map(move |at| Done {
            offset: done.offset + at * most.min(done.bytes),
            bytes: most.min(done.bytes - at * most.min(done.bytes)),
            ..done
        })
    };
    trace.iter().map(whole).flat_map(part).collect()
}

#[test]
fn every_request_reaches_the_device_once_in_order() {
    for (pacing, depth) in [(Pacing::Open, 64), (Pacing::Closed(1), 3), (Pacing::Closed(8), 64)] {
        let trace = mixed(7, 400);
        let device = Device::good();
        let options = ReplayOptions { pacing, depth, ..ReplayOptions::default() };
        let (done, replayed, error) = device.replay(&trace, options);
        assert!(error.is_none(), "{error:?}");
        assert_eq!((done.len(), replayed.completed, replayed.failed, replayed.lost), (400, 400, 0, 0));
        let (asked, wanted) = (device.asked(), wanted(&trace));
        let differs = asked.iter().zip(&wanted).position(|(asked, wanted)| asked != wanted);
        assert_eq!((differs, asked.len()), (None, wanted.len()), "{pacing:?}");
        let odd =
            |request: &&Request| !request.offset.is_multiple_of(512) || !request.end().is_multiple_of(512);
        assert_eq!(replayed.widened, trace.iter().filter(odd).count() as u64);
        for (done, asked) in done.iter().zip(&trace) {
            assert_eq!((done.op, done.offset, done.bytes), (asked.op, asked.offset, asked.bytes));
            assert!(done.start_ns >= Some(done.arrival_ns) && done.finish_ns > done.start_ns, "{done:?}");
        }
        let sum = |op: Op| trace.iter().filter(|one| one.op == op).map(|one| one.bytes).sum::<u64>();
        assert_eq!((replayed.read_bytes, replayed.written_bytes), (sum(Op::Read), sum(Op::Write)));
    }
}

#[test]
fn what_is_written_does_not_compress_and_follows_from_the_seed() {
    let trace = [Request::new(Op::Write, 0, 1 << 20, 0), Request::new(Op::Write, 1 << 20, 1 << 20, 1)];
    let written = |seed: u64, verify: bool| {
        let device = Device::good();
        let (_, _, error) = device.replay(&trace, ReplayOptions { seed, verify, ..ReplayOptions::default() });
        assert!(error.is_none(), "{error:?}");
        device.medium.bytes()[..2 << 20].to_vec()
    };
    for verify in [false, true] {
        let bytes = written(3, verify);
        assert_eq!(bytes, written(3, verify));
        assert_ne!(bytes, written(4, verify));
        let mut counts = [0_u32; 256];
        bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        let share = f64::from(*counts.iter().max().unwrap()) / bytes.len() as f64;
        assert!(share < 0.05, "one byte in {share} of all places");
        // No 4 KiB are like others of the same request.
        let mut pages: Vec<&[u8]> = bytes[..1 << 20].chunks(4096).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 256);
    }
}

#[test]
fn requests_beyond_the_device_are_refused_or_moved() {
    let trace = [Request::new(Op::Write, BYTES - 512, 1024, 0), Request::new(Op::Read, 3 * BYTES, 512, 1)];
    let run = |remap: Remap, shift_bytes: u64| {
        let device = Device::good();
        let (_, replayed, error) =
            device.replay(&trace, ReplayOptions { remap, shift_bytes, ..ReplayOptions::default() });
        (device.asked(), replayed.moved, error)
    };
    let (log, _, error) = run(Remap::Refuse, 0);
    assert!(matches!(error, Some(ReplayError::Beyond { .. })) && log.is_empty(), "{error:?}");
    let (log, moved, error) = run(Remap::Modulo, 0);
    let done = |op, offset, bytes| Done { op, offset, bytes };
    assert!(error.is_none());
    assert_eq!(log, [done(Op::Write, BYTES - 512, 512), done(Op::Write, 0, 512), done(Op::Read, 0, 512)]);
    assert_eq!(moved, 2);
    let (log, ..) = run(Remap::Modulo, 1024);
    assert_eq!(log, [done(Op::Write, 512, 1024), done(Op::Read, 1024, 512)]);
    let (log, _, error) = run(Remap::Scale, 0);
    assert!(error.is_none() && log.iter().all(|one| one.offset + one.bytes <= BYTES), "{log:?}");
}
