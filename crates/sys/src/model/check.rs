//! Running a model.

use super::{atomic, sleep, words};
use core::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

std::thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    static RUNS: Cell<u64> = const { Cell::new(0) };
}

/// The model has touched memory that it had no words for.
struct Anew;

pub(super) fn begin_anew() -> ! {
    panic::resume_unwind(Box::new(Anew))
}

/// Whether this thread is one of a model.
#[must_use]
pub fn is_running() -> bool {
    RUNNING.get()
}

/// How far a model goes.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// How often at most a thread is stopped in one run though it could go on; none: as often as it may be.
    pub preemptions: Option<usize>,
}

impl Model {
    /// Runs `model` in every order; how often it ran.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn check(self, model: impl Fn() + Send + Sync + 'static) -> Result<u64, String> {
        let model = Arc::new(model);
        words::forget_all();
        loop {
            RUNS.set(0);
            let model = Arc::clone(&model);
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = self.preemptions;
            builder.max_branches = 20_000;
            let run = move || {
                atomic::begin();
                words::begin();
                sleep::begin();
                RUNS.set(RUNS.get() + 1);
                model();
            };
            RUNNING.set(true);
            let ended = panic::catch_unwind(AssertUnwindSafe(|| builder.check(run)));
            RUNNING.set(false);
            match ended {
                Ok(()) => return Ok(RUNS.get()),
                Err(reason) if reason.is::<Anew>() => {}
                Err(reason) => return Err(told(&*reason)),
            }
        }
    }
}

fn told(reason: &(dyn core::any::Any + Send)) -> String {
    let text = reason.downcast_ref::<String>().cloned();
    text.or_else(|| reason.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
