//! Data that is not what was written.

use crate::device::{Device, Wrong};
use nvmed_dice::Dice;
use nvmed_replay::{Found, Pacing, ReplayError, ReplayOptions};
use nvmed_trace::{Op, Request};

const VERIFY: ReplayOptions = ReplayOptions {
    pacing: Pacing::Open,
    speed: 1.0,
    depth: 64,
    remap: nvmed_replay::Remap::Refuse,
    shift_bytes: 0,
    verify: true,
    seed: 9,
    done: 0,
    legs: 0,
    elapsed_ns: 0,
};

/// Requests so close to each other that those of one place overlap in time.
fn crowded(count: u64) -> Vec<Request> {
    let mut dice = Dice::new(5);
    let request = |number| {
        let op = [Op::Read, Op::Write, Op::Write, Op::Read, Op::Discard][dice.index(5)];
        Request::new(op, dice.roll(64) * 4096, 4096 * (1 + dice.roll(4)), number * 5000)
    };
    (0..count).map(request).collect()
}

#[test]
fn requests_that_overlap_in_place_and_time_have_one_answer() {
    let trace = crowded(2000);
    let device = Device::good();
    let (done, replayed, error) = device.replay(&trace, VERIFY);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(done.len(), 2000);
    assert!(replayed.held > 100 && replayed.checked_blocks > 1000, "{replayed:?}");
    // A held one is late, and nothing overtakes it.
    assert_eq!(device.asked().iter().filter(|one| one.op == Op::Discard).count(), {
        trace.iter().filter(|one| one.op == Op::Discard).count()
    });
}

#[test]
fn a_difference_ends_the_replay_and_is_named() {
    let write = |offset: u64, at: u64| Request::new(Op::Write, offset, 4096, at * 1_000_000);
    let read = |offset: u64, at: u64| Request::new(Op::Read, offset, 4096, at * 1_000_000);
    let trace = [write(0, 0), write(8192, 1), write(0, 2), read(8192, 3), read(0, 4), read(0, 5)];
    let run = |wrong: Wrong, trace: &[Request]| {
        let (done, _, error) = Device::new("", wrong).replay(trace, VERIFY);
        match error {
            Some(ReplayError::Differs { offset, version, found }) => (done.len(), offset, version, found),
            other => panic!("{wrong:?}: {other:?}"),
        }
    };
    // The fifth request, which found it, counts as done.
    assert_eq!(run(Wrong::Flip(1030), &trace), (5, 1024, 2, Found::Foreign));
    assert_eq!(run(Wrong::Flip(1500), &trace), (5, 1024, 2, Found::Damaged { at: 476 }));
    assert_eq!(run(Wrong::Stale(0), &trace), (5, 0, 2, Found::Other { offset: 0, version: 1 }));
    assert_eq!(run(Wrong::Astray(0, 8192), &trace).1, 8192);
    // Nothing reads it in the trace: it is found when all is read back.
    assert_eq!(run(Wrong::Flip(1500), &trace[..3]), (3, 1024, 2, Found::Damaged { at: 476 }));
}

#[test]
fn what_was_not_read_back_is_not_verified() {
    let trace: Vec<_> = (0..3).map(|at| Request::new(Op::Write, at * 4096, 4096, at * 1_000_000)).collect();
    let (_, replayed, error) = Device::good().replay(&trace, VERIFY);
    assert!(error.is_none() && replayed.is_read_back && !replayed.stopped, "{error:?}");
    assert_eq!(replayed.checked_blocks, 24);
    // Told to stop when the last request is done: nothing was read back.
    let (done, replayed, error) = Device::good().replay_until(&trace, VERIFY, 3);
    assert!(error.is_none() && !replayed.is_read_back && replayed.stopped, "{error:?}");
    assert_eq!((done.len(), replayed.checked_blocks), (3, 0));
    // Told to stop when the first block is being read back, which is that of another part than the last one.
    let device = Device::good();
    device.medium.stop_at_first_read();
    let (done, replayed, error) = device.replay(&trace_apart(), VERIFY);
    assert!(error.is_none() && !replayed.is_read_back && replayed.stopped, "{error:?}");
    assert_eq!((done.len(), replayed.checked_blocks), (2, 8));
}

/// Two writes that are not read back together.
fn trace_apart() -> Vec<Request> {
    vec![Request::new(Op::Write, 0, 4096, 0), Request::new(Op::Write, 8 << 20, 4096, 1_000_000)]
}

#[test]
fn what_was_not_written_is_not_judged() {
    let trace = [
        Request::new(Op::Read, 0, 4096, 0),
        Request::new(Op::Write, 0, 512, 1_000_000),
        Request::new(Op::Read, 0, 1024, 2_000_000),
        Request::new(Op::Discard, 0, 512, 3_000_000),
        Request::new(Op::Read, 0, 512, 4_000_000),
    ];
    let (_, replayed, error) = Device::good().replay(&trace, VERIFY);
    assert!(error.is_none(), "{error:?}");
    assert_eq!((replayed.checked_blocks, replayed.unchecked_blocks), (1, 8 + 1 + 1));
    // A write that failed has left anything.
    let device = Device::new("fail:status=0x281,op=write,nth=2", Wrong::Nothing);
    let trace = [
        Request::new(Op::Write, 0, 512, 0),
        Request::new(Op::Write, 0, 512, 1_000_000),
        Request::new(Op::Read, 0, 512, 2_000_000),
    ];
    let (_, replayed, error) = device.replay(&trace, VERIFY);
    assert!(error.is_none(), "{error:?}");
    assert_eq!((replayed.failed, replayed.checked_blocks, replayed.unchecked_blocks), (1, 0, 1));
}
