//! Models of what client and server say in words of shared memory: the code of both sides, in every order of their
//! steps, with every value that a load may find (docs/spec/models.md). Run by `make model`.

mod counts;
mod entries;
mod lanes;
mod log;
mod opens;
mod posts;
mod shelves;
mod windows;

use nvmed_mutant::Mutant;
use nvmed_sys::model::{Barrier, Model, weaken};
use std::panic;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Held by the model that runs: deliberate mistakes are the whole process's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn run(
    what: &str,
    preemptions: Option<usize>,
    model: impl Fn() + Send + Sync + 'static,
) -> Result<u64, String> {
    let begun = Instant::now();
    let found = Model { preemptions }.check(model);
    let seconds = begun.elapsed().as_secs_f64();
    match &found {
        Ok(runs) => println!("{what}: holds in {runs} runs, {seconds:.1} s"),
        Err(said) => println!("{what}: {said:?} after {seconds:.1} s"),
    }
    found
}

/// The model holds in every order with at most so many preemptions; with none, in every order.
fn holds(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let runs = run("as it is", preemptions, model).expect("it holds");
    assert!(runs > 1, "a model of one order shows nothing");
}

/// The model fails, and says so. What panics meanwhile is silent.
fn fails(what: &str, says: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    must_fail(what, says, preemptions, model);
}

fn must_fail(what: &str, says: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let found = run(what, preemptions, model);
    panic::set_hook(hook);
    let said = found.expect_err(what);
    assert!(said.contains(says), "{what}: {said}");
}

/// With this mistake the model fails, and says so.
fn fails_with(
    mutant: Mutant,
    says: &str,
    preemptions: Option<usize>,
    model: impl Fn() + Send + Sync + 'static,
) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    nvmed_mutant::set(Some(mutant));
    must_fail(&format!("{mutant:?}"), says, preemptions, model);
    nvmed_mutant::set(None);
}

/// Without these barriers the model fails, and says so.
fn fails_without(
    barriers: &[Barrier],
    says: &str,
    preemptions: Option<usize>,
    model: impl Fn() + Send + Sync + 'static,
) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    weaken(barriers);
    let names: Vec<_> = barriers.iter().map(|barrier| barrier.2).collect();
    must_fail(&format!("without {}", names.join(" and ")), says, preemptions, model);
    weaken(&[]);
}
