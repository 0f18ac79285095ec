//! Many trials by several threads, with one answer.

use crate::trial::{Answer, Trial, TrialError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Threads, at most: more than any drive's map fits into memory for.
pub const WORKERS_MAX: usize = 64;

/// Runs trials on `workers` threads, 1 to [`WORKERS_MAX`], each of which takes the next one when it is ready. `each`
/// is told every answer with the number of its trial, as soon as it is there, in no order. Answers do not depend on
/// the threads: each trial has a drive of its own.
///
/// # Errors
/// What `each` says, or the first trial, by number, that has no answer; no further one is begun then.
pub fn sweep<E: From<TrialError>>(
    trials: &[Trial<'_>],
    workers: usize,
    mut each: impl FnMut(usize, Answer) -> Result<(), E>,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let (told, answers) = sync_channel(WORKERS_MAX);
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, WORKERS_MAX).min(trials.len()) {
            let (told, next) = (told.clone(), &next);
            scope.spawn(move || {
                loop {
                    // The number is all that threads share.
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(trial) = trials.get(number) else { break };
                    let answer = trial.run();
                    if answer.is_err() {
                        next.store(trials.len(), Ordering::Relaxed);
                    }
                    if told.send((number, answer)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(told);
        let mut failed: Option<(usize, E)> = None;
        for (number, answer) in answers {
            let result = answer.map_err(E::from).and_then(|answer| each(number, answer));
            if let Err(error) = result {
                next.store(trials.len(), Ordering::Relaxed);
                // All before the first that failed were begun, and are waited for.
                if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                    failed = Some((number, error));
                }
            }
        }
        failed.map_or(Ok(()), |(_, error)| Err(error))
    })
}

/// Which points no other one beats: none has both a shorter response and a higher utilization, nor one of them at the
/// same other one. Points are (response, utilization); one that is no number is not among them.
#[must_use]
pub fn front(points: &[(f64, f64)]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..points.len()).filter(|&at| is_point(points[at])).collect();
    // By response, of those with one response the best utilization first.
    order.sort_by(|&a, &b| points[a].0.total_cmp(&points[b].0).then(points[b].1.total_cmp(&points[a].1)));
    let mut on_front = vec![false; points.len()];
    let mut best: Option<(f64, f64)> = None;
    for at in order {
        let (response, utilization) = points[at];
        let is_same = best == Some((response, utilization));
        if is_same || best.is_none_or(|(_, most)| utilization > most) {
            on_front[at] = true;
            best = Some((response, utilization));
        }
    }
    on_front
}

fn is_point((response, utilization): (f64, f64)) -> bool {
    response.is_finite() && utilization.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::ANSWERS_VERSION;
    use crate::{Digested, Input};
    use nvmed_flash::{ArrayProfile, FixedProfile, Medium, Profile};
    use nvmed_trace::Options;
    use std::path::Path;

    fn digested(name: &str) -> Digested {
        Digested::of(Input::named(name, Path::new(""), Options::default()).unwrap()).unwrap().0
    }

    fn drive(channels: u32) -> Profile {
        let array = ArrayProfile {
            capacity_bytes: 64 << 20,
            channels,
            blocks: vec![nvmed_flash::BlockKind { per_plane: 200, pages: 128, ..Default::default() }],
            translation: Some(nvmed_flash::TranslationProfile { buffer_bytes: 0, ..Default::default() }),
            ..ArrayProfile::default()
        };
        Profile { commands: 1, medium: Medium::Array(Box::new(array)) }
    }

    fn answers(trials: &[Trial<'_>], workers: usize) -> Vec<Option<Answer>> {
        let mut all = vec![None; trials.len()];
        sweep(trials, workers, |number, answer| {
            assert!(all[number].replace(answer).is_none(), "trial {number} is answered twice");
            Ok::<(), TrialError>(())
        })
        .unwrap();
        all
    }

    #[test]
    fn one_two_and_eight_workers_answer_the_same() {
        let traces = ["synth:CallIn", "synth:CallIn?seed=2", "synth:CallOut"].map(digested);
        let drives = [1, 2, 3].map(drive);
        let trials: Vec<Trial<'_>> = drives
            .iter()
            .flat_map(|drive| traces.iter().map(move |trace| Trial { drive, is_used: true, trace }))
            .collect();
        let one = answers(&trials, 1);
        assert!(one.iter().all(|answer| answer.is_some_and(|answer| answer.requests > 1000)), "{one:?}");
        assert_ne!(one[0], one[1], "seeds make different traces");
        assert_ne!(one[0], one[3], "channels make different drives");
        for workers in [2, 8, 100] {
            assert_eq!(answers(&trials, workers), one, "{workers} workers");
        }
    }

    #[test]
    fn keys_tell_apart_what_can_be_answered_differently_and_nothing_else() {
        let (call, other, again) =
            (digested("synth:CallIn"), digested("synth:CallIn?seed=2"), digested("synth:CallIn"));
        let (one, two) = (drive(1), drive(2));
        let key = |drive, is_used, trace| Trial { drive, is_used, trace }.key();
        let keys = [
            key(&one, false, &call),
            key(&two, false, &call),
            key(&one, true, &call),
            key(&one, false, &other),
        ];
        assert!((0..4).all(|a| (0..a).all(|b| keys[a] != keys[b])), "{keys:?}");
        assert_eq!(key(&drive(1), false, &again), keys[0]);
    }

    /// Kept answers of another program must not be taken for those of this one.
    #[test]
    fn answers_that_have_changed_have_another_version() {
        let call = digested("synth:CallIn");
        let answer = Trial { drive: &drive(1), is_used: true, trace: &call }.run().unwrap();
        let known = Answer {
            requests: 1491,
            response_sum_ns: 1_462_986_799,
            p99_ns: 7_864_319,
            written_bytes: 27_942_912,
            host_units: 6822,
            programmed_units: 11_675,
            moved_units: 4853,
            erases: 93,
            refused: 0,
            beyond: 1486,
        };
        let words = "give ANSWERS_VERSION the next number, and this test the new answers";
        assert_eq!((ANSWERS_VERSION, answer), (2, known), "{words}");
    }

    #[test]
    fn the_first_trial_that_fails_ends_the_sweep() {
        let (call, mut changed) = (digested("synth:CallIn"), digested("synth:CallOut"));
        changed.digest ^= 1;
        let drive = Profile { commands: 1, medium: Medium::Fixed(FixedProfile::default()) };
        let good = Trial { drive: &drive, is_used: false, trace: &call };
        let bad = Trial { trace: &changed, ..good };
        let trials = [good, bad, good, bad, good, good, good, good, good, good, good, good];
        for workers in [1, 8] {
            let mut known = 0;
            let error = sweep(&trials, workers, |_, _| {
                known += 1;
                Ok::<(), TrialError>(())
            });
            let text = error.unwrap_err().to_string();
            assert!(text.starts_with("synth:CallOut: the trace has changed"), "{text}");
            assert!(workers > 1 || known == 1, "{known} answers after the one that failed");
        }
    }

    #[test]
    fn the_front_has_what_nothing_beats() {
        let points = [
            (3.0, 90.0),
            (1.0, 70.0),
            (2.0, 80.0),
            (2.0, 79.0),
            (2.5, 80.0),
            (3.0, 90.0),
            (4.0, f64::NAN),
            (9.0, 90.0),
        ];
        assert_eq!(front(&points), [true, true, true, false, false, true, false, false]);
        assert_eq!(front(&[]), Vec::<bool>::new());
    }
}
