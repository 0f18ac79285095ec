//! A replay that was stopped goes on where it was.

use crate::device::{Device, Done, survey};
use nvmed_replay::{Identity, Outcome, Pacing, ReplayError, ReplayOptions, State};
use nvmed_trace::{Op, Request};
use std::path::PathBuf;

fn trace(count: u64) -> Vec<Request> {
    let request = |number: u64| {
        let asked = Request::new(
            if number.is_multiple_of(3) { Op::Write } else { Op::Read },
            number * 512,
            512,
            7 + number * 30_000,
        );
        Request { finish_ns: Some(asked.arrival_ns + 10_000), ..asked }
    };
    (0..count).map(request).collect()
}

#[test]
fn all_legs_together_are_the_whole_trace() {
    for pacing in [Pacing::Open, Pacing::Closed(4), Pacing::Dependent] {
        let trace = trace(300);
        let device = Device::good();
        let mut options = ReplayOptions { pacing, ..ReplayOptions::default() };
        let mut all = Vec::new();
        for stop_after in [100, 57, usize::MAX] {
            let (done, replayed, error) = device.replay_until(&trace, options, stop_after);
            assert!(error.is_none(), "{error:?}");
            assert_eq!(replayed.completed, done.len() as u64, "what is under way is done before the end");
            options.done += done.len() as u64;
            options.legs += 1;
            options.elapsed_ns = done.iter().filter_map(|one| one.finish_ns).max().unwrap();
            all.extend(done);
        }
        let asked = |one: &Request| Done { op: one.op, offset: one.offset, bytes: one.bytes };
        let wanted: Vec<Done> = trace.iter().map(asked).collect();
        assert!(device.asked() == wanted, "{pacing:?}: another order, or not each once");
        assert!(all.iter().map(asked).eq(wanted), "{pacing:?}");
        // In the time of one replay.
        assert!(all.windows(2).all(|pair| pair[0].arrival_ns <= pair[1].arrival_ns), "{pacing:?}");
        if pacing == Pacing::Open {
            assert!(all.iter().zip(&trace).all(|(done, asked)| done.arrival_ns == asked.arrival_ns));
        }
    }
}

/// A file that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn identity() -> Identity {
    let target = "uring:/dev/x\nnvme0, 1 byte".to_owned();
    Identity { trace: survey(&trace(3)).digest(), target, options: "Open".to_owned(), seed: 1 }
}

#[test]
fn a_state_comes_back_and_belongs_to_one_replay() {
    let file = Scratch::new("state");
    assert_eq!(State::load(&file.0, &identity()).unwrap(), None);
    let state = State {
        done: 12,
        legs: 3,
        elapsed_ns: u64::MAX,
        failed: 4,
        left_out: 5,
        timed: 6,
        late: 7,
        rows: 8,
        may_destroy: true,
    };
    State::default().save(&file.0, &identity()).unwrap();
    state.save(&file.0, &identity()).unwrap();
    assert_eq!(State::load(&file.0, &identity()).unwrap(), Some(state));
    for (other, word) in [
        (Identity { trace: 1, ..identity() }, "another trace"),
        (Identity { target: "uring:/dev/y".to_owned(), ..identity() }, "another target"),
        (Identity { options: "Closed(1)".to_owned(), ..identity() }, "other options"),
        (Identity { seed: 2, ..identity() }, "another seed"),
    ] {
        let refused = State::load(&file.0, &other);
        assert!(
            matches!(refused, Err(ReplayError::OtherState { what, .. }) if what == word),
            "{word}: {refused:?}"
        );
    }
}

#[test]
fn what_an_earlier_leg_did_counts_at_the_end() {
    let asked =
        |late_ns: u64| Request { start_ns: Some(100 + late_ns), ..Request::new(Op::Write, 0, 512, 100) };
    let done = |late_ns: u64| Request { finish_ns: Some(9000), ..asked(late_ns) };
    let mut state = State::default();
    state.push(&done(11), Outcome::Completed, Some(10));
    assert!(!state.is_on_time(), "its only request was late");
    (0..98).for_each(|_| state.push(&done(10), Outcome::Completed, Some(10)));
    assert!(!state.is_on_time(), "one of 99");
    // What was never given to the device was given to it neither late nor in time.
    state.push(&asked(0), Outcome::LeftOut, Some(10));
    assert!(!state.is_on_time());
    state.push(&asked(0), Outcome::Failed, Some(10));
    assert!(state.is_on_time(), "one of 100");
    assert_eq!((state.done, state.failed, state.left_out, state.timed, state.late), (101, 1, 1, 100, 1));
    assert_eq!(state.elapsed_ns, 9000);
    state.push(&done(1 << 40), Outcome::Completed, None);
    assert_eq!((state.done, state.timed, state.late), (102, 100, 1), "a closed loop has no deadlines");
}

#[test]
fn fuzz_a_damaged_state_is_refused() {
    let file = Scratch::new("damaged");
    let state = State { done: 12, legs: 3, elapsed_ns: 99, ..State::default() };
    state.save(&file.0, &identity()).unwrap();
    let good = std::fs::read(&file.0).unwrap();
    for at in 0..good.len() - 1 {
        for damaged in [good[..at].to_vec(), [&good[..at], &[good[at] ^ 4], &good[at + 1..]].concat()] {
            std::fs::write(&file.0, &damaged).unwrap();
            let loaded = State::load(&file.0, &identity());
            assert!(matches!(loaded, Err(ReplayError::NoState { .. })), "{at}: {loaded:?}");
        }
    }
    let missing = file.0.join("below");
    assert!(matches!(state.save(&missing, &identity()), Err(ReplayError::State { .. })));
}
