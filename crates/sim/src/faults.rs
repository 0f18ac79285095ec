//! Requests that fail: the k-th of a workload, once or from there on. What succeeded keeps its promise, what
//! failed may have happened or not, and the file system stays whole.

use crate::cuts::{self, Case, Failure, Tally, panic_text};
use crate::recording::{Session, Setting};
use nvmed_dice::Dice;
use nvmed_disk::{Fault, Manner, Trace};
use nvmed_nvme::Status;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Outcomes from here on: a request failed; the cut is the number of that request.
pub const FAULT: u64 = 300;
/// Kinds of faults: one request or all from there on, with reads or without, an error or no space.
const KINDS: u64 = 8;
/// Operations before the fault is set, and after.
const STEPS: (u64, u64) = (40, 40);
/// Requests that such a workload sends at most: the fault moves through all of them.
const REQUESTS_MAX: u64 = 400;

fn fault(kind: u64, at: u64) -> Fault {
    let status = if kind & 1 == 0 { Status::INTERNAL_ERROR } else { Status::CAPACITY_EXCEEDED };
    Fault { at, count: if kind & 2 == 0 { 1 } else { u64::MAX }, reads: kind & 4 != 0, status }
}

/// Runs the workload of a seed once for each request that it sends, with that request failing.
pub fn examine_all(
    seed: u64,
    stride: u64,
    only: Option<(u64, u64)>,
    tally: &mut Tally,
    more: &mut dyn FnMut(u64) -> bool,
) {
    for kind in 0..KINDS {
        let first = 1 + Dice::of(&[seed, kind, 0xfa]).roll(stride);
        for at in (first..REQUESTS_MAX).step_by(stride as usize) {
            let case = Case { seed, cut: at, outcome: FAULT + kind };
            if only.is_some_and(|only| only != (case.cut, case.outcome)) {
                continue;
            }
            let found = catch_unwind(AssertUnwindSafe(|| examine(seed, kind, at)));
            let why = match found {
                Ok(Ok(false)) => break, // the workload sends no more requests
                Ok(Ok(true)) => None,
                Ok(Err(why)) => Some(why),
                Err(panic) => Some(format!("panic: {}", panic_text(&*panic))),
            };
            tally.states += 1;
            tally.faults += 1;
            let fault = fault(kind, at);
            tally.failures.extend(why.map(|why| Failure { case, why: format!("{fault:?}: {why}") }));
            if !more(1) || tally.failures.len() > 3 {
                return;
            }
        }
    }
}

/// Whether the fault came.
fn examine(seed: u64, kind: u64, at: u64) -> Result<bool, String> {
    let mut setting = Setting::of(seed);
    setting.options.discard = false; // a device that refuses those is tested with the discards themselves
    let mut session = Session::begin(seed, &setting)?;
    for _ in 0..STEPS.0 {
        session.step(&|errno| errno == rustix::io::Errno::NOSPC)?;
    }
    session.disk.fail(Some(fault(kind, at)));
    session.model.forget_times();
    for _ in 0..STEPS.1 {
        session.step(&|_| true)?;
        if session.lost {
            break;
        }
    }
    let came = session.disk.counts().failed > 0;
    session.disk.fail(None);
    let mut dice = Dice::of(&[seed, kind, at]);
    let clean = dice.chance(50) && !session.lost && session.unmount().is_ok();
    let manner = if clean { Manner::Kept } else { Manner::of(2, &mut dice) };
    let image = session.disk.media().after_cut(&Trace::default(), manner, &mut dice);
    session.runner.forget_open();
    cuts::examine_image(image, &session.model, &setting, &mut dice).map(|_| came)
}
