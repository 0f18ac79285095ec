//! Workloads of several threads on one file system, cut like the others.
//!
//! Each thread works in a directory of its own, so that what is promised of it does not depend on what the others
//! are doing at the same moment; commits, write-back, checkpoints, the cache, freed blocks and the queue of the device
//! are shared. Of names and attributes there is one order: what a thread's sync makes durable includes the changes
//! that had returned to other threads before it was called, and no change survives without those that had returned
//! before it was called.

use crate::chooser::Chooser;
use crate::cuts::{Case, Failure, Oracle, Plan, Tally, examine_media, panic_text};
use crate::model::Model;
use crate::mount::mount;
use crate::operation::{Done, Op, Step};
use crate::recording::Setting;
use crate::runner::{Runner, wind_clock};
use crate::schedule::Schedule;
use crate::survey::Survey;
use crate::times::Touched;
use nvmed_dice::Dice;
use nvmed_disk::{Disk, Event, Manner, Trace, Volatile, What};
use nvmed_fs::{Durability, FileType};
use nvmed_sys::sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Outcomes from here on: of a workload of several threads.
pub const THREADS: u64 = 2000;
/// Of so many seeds one has a workload of several threads besides.
const EVERY: u64 = 2;
/// Threads of a workload.
const COUNT_MIN: u64 = 2;
const COUNT_MAX: u64 = 4;
/// Operations of all threads together while recording.
const STEPS: u64 = 72;
/// In percent, how many of them are an fsync, besides those of chance.
const SYNCS: u64 = 15;
/// Operations before it at most, and the log that ends them: a checkpoint is near then.
const WARM_UP_MAX: u64 = 3000;
const LOG_BYTES_DUE: u64 = 64 * 4072;
const LOG_BYTES_LEFT: u64 = 12_000;

/// An operation of a thread begins or ends, after so many events of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    thread: usize,
    step: usize,
    ends: bool,
    events: u64,
}

/// A thread.
struct Worker {
    number: usize,
    top: String,
    runner: Runner,
    model: Model,
    chooser: Chooser,
    dice: Dice,
    steps: Vec<Step>,
}

/// A recorded workload of several threads.
pub struct Recording {
    setting: Setting,
    media: Volatile,
    trace: Trace,
    /// Of each thread: what was promised at the beginning, and what it did then.
    models: Vec<Model>,
    steps: Vec<Vec<Step>>,
    notes: Vec<Note>,
    /// How often a thread waited for another one.
    pub waited: u64,
}

fn top(number: usize) -> String {
    format!("t{number}")
}

/// Whether an operation stays in the thread's directory, and its promise does not depend on other threads.
fn is_own(op: &Op, top: &str) -> bool {
    let below = |path: &str| path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
    match op {
        // What another thread's sync takes over of a mapping is nobody's promise.
        Op::MapStore { .. } | Op::Msync { .. } | Op::Unmap { .. } => false,
        Op::Rename { from, to, .. } | Op::Link { from, to } => below(from) && below(to),
        Op::SyncDirectory { path } => path == top || below(path),
        _ => op.path().is_none_or(below),
    }
}

impl Worker {
    fn next(&mut self) -> Op {
        let files = self.model.shape().paths(FileType::File);
        if let Some(&path) = self.dice.pick(&files)
            && self.dice.chance(SYNCS)
        {
            return Op::Fsync { path: path.clone() };
        }
        loop {
            let op = self.chooser.next(&self.model, &mut self.dice);
            if is_own(&op, &self.top) {
                return op;
            }
        }
    }

    /// Does one operation; `note` is told when it begins and when it has returned.
    fn step(&mut self, op: Op, note: &dyn Fn(usize, bool) -> u64) -> Result<(), String> {
        let ino = op.path().and_then(|path| self.model.shape().at(path)).map_or(0, |(ino, _)| ino);
        let (row, number) = (op.row(&self.model), self.steps.len());
        let before = note(number, false);
        let made = self.runner.run(&op, &self.model);
        let events = (before, note(number, true));
        let made = made.map_err(|wrong| format!("thread {}: {op:?}: {wrong}", self.number))?;
        let (done, touched) = (Done::Well, Touched::default());
        let step = Step { op, ino, made, row, events, done, left: None, touched };
        self.model.begin(&step);
        self.model.end(&step);
        self.steps.push(step);
        Ok(())
    }
}

/// A setting in which only the threads are rare.
fn setting(seed: u64) -> Setting {
    let mut setting = Setting::of(seed * 8 + 7);
    setting.blocks = 4096;
    setting
}

impl Recording {
    /// Runs the workload of a seed.
    ///
    /// # Errors
    /// The file system did something wrong without any cut.
    pub fn of(seed: u64) -> Result<Self, String> {
        wind_clock();
        let setting = setting(seed);
        let mut dice = Dice::of(&[seed, THREADS]);
        let count = (COUNT_MIN + dice.roll(COUNT_MAX - COUNT_MIN + 1)) as usize;
        let disk = Disk::with(Volatile::new(setting.formatted()?), &mut dice);
        let files = mount(&disk, setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
        let through = setting.options.durability == Durability::Device;
        let worker = |number: usize| {
            let mut model = Model::new(through, setting.kind);
            // Times that another thread writes late are by that thread's clock.
            model.forget_times();
            Worker {
                number,
                top: top(number),
                runner: Runner::new(files.clone()),
                model,
                chooser: Chooser::new(seed * COUNT_MAX + number as u64),
                dice: Dice::of(&[seed, THREADS, number as u64]),
                steps: Vec::new(),
            }
        };
        let mut workers: Vec<Worker> = (0..count).map(worker).collect();
        warm_up(&mut workers, &mut dice)?;
        disk.record();
        let (media, models) =
            (disk.media().rebased(), workers.iter().map(|worker| worker.model.clone()).collect());
        let schedule = Schedule::new(count, dice);
        let notes = Mutex::new(Vec::new());
        let steps = STEPS / count as u64;
        let ended: Vec<_> = std::thread::scope(|scope| {
            let work = |worker| scope.spawn(|| run(&schedule, &disk, &notes, worker, steps));
            let running: Vec<_> = workers.into_iter().map(work).collect();
            running.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut steps = Vec::new();
        let mut workers = Vec::new();
        for ended in ended {
            let worker = ended.map_err(|panic| format!("a thread: panic: {}", panic_text(&*panic)))??;
            steps.push(worker.steps.clone());
            workers.push(worker);
        }
        let trace = disk.take_trace();
        let notes = notes.into_inner();
        Ok(Self { setting, media, trace, models, steps, notes, waited: schedule.waited() })
    }

    /// What the threads did, and when.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("several threads: {:?}", self.setting);
        let mut from = 0;
        for note in &self.notes {
            for (number, event) in (1..).zip(&self.trace.events).skip(from).take(note.events as usize - from)
            {
                let command = &self.trace.commands[event.command()];
                let (what, first, blocks) = (command.what, command.first, command.blocks.len());
                text += &format!("\n    {number}: {event:?} {what:?} block {first} +{blocks}");
            }
            from = note.events as usize;
            let step = &self.steps[note.thread][note.step];
            text += &match note.ends {
                false => format!(
                    "\nthread {} calls {:?}, inode {}, made {}",
                    note.thread, step.op, step.ino, step.made
                ),
                true => format!("\nthread {} returned from step {}", note.thread, note.step),
            };
        }
        text
    }
}

/// Makes the directories, and goes on in them, one thread after the other, until a checkpoint is near.
fn warm_up(workers: &mut [Worker], dice: &mut Dice) -> Result<(), String> {
    let quiet = |_: usize, _: bool| 0;
    for worker in workers.iter_mut() {
        worker.step(Op::Mkdir { path: worker.top.clone() }, &quiet)?;
        worker.step(Op::Create { path: format!("{}/first", worker.top) }, &quiet)?;
    }
    let enough = LOG_BYTES_DUE - dice.roll(LOG_BYTES_LEFT);
    let most = if dice.chance(30) { dice.roll(60) } else { WARM_UP_MAX };
    let count = workers.len();
    for number in 0..most as usize {
        let worker = &mut workers[number % count];
        let op = worker.next();
        worker.step(op, &quiet)?;
        if worker.runner.files.store_stats().log_bytes > enough {
            break;
        }
    }
    for worker in workers {
        worker.step(Op::Sync, &quiet)?;
        worker.steps.clear();
    }
    Ok(())
}

/// One thread of a recording.
fn run(
    schedule: &Arc<Schedule>,
    disk: &Disk,
    notes: &Mutex<Vec<Note>>,
    mut worker: Worker,
    steps: u64,
) -> Result<Worker, String> {
    wind_clock();
    let thread = worker.number;
    let note = |step: usize, ends: bool| {
        let events = disk.recorded();
        notes.lock().push(Note { thread, step, ends, events });
        events
    };
    schedule.run(thread, || {
        for _ in 0..steps {
            let op = worker.next();
            worker.step(op, &note)?;
            nvmed_sys::sync::look();
        }
        Ok(worker)
    })
}

/// What is promised of all threads at some event.
struct Promises {
    models: Vec<Model>,
    /// Of each thread: the moment in which its last call that had returned left its names.
    returned: Vec<u64>,
    /// Of each thread's moments: what had returned to the others when the call that made it began.
    after: Vec<BTreeMap<u64, Vec<u64>>>,
    /// Of each thread: what had returned when its call began.
    begun: Vec<Vec<u64>>,
}

impl Promises {
    fn new(models: &[Model]) -> Self {
        let returned: Vec<u64> = models.iter().map(Model::now).collect();
        let begun = vec![returned.clone(); models.len()];
        Self { models: models.to_vec(), returned, after: vec![BTreeMap::new(); begun.len()], begun }
    }

    fn follow(&mut self, note: Note, step: &Step) {
        let thread = note.thread;
        if !note.ends {
            self.begun[thread].clone_from(&self.returned);
            let before = self.models[thread].now();
            self.models[thread].begin(step);
            if self.models[thread].now() > before {
                self.after[thread].insert(self.models[thread].now(), self.returned.clone());
            }
            return;
        }
        self.models[thread].end(step);
        self.returned[thread] = self.models[thread].now();
        if makes_names_durable(&step.op) {
            for other in (0..self.models.len()).filter(|&other| other != thread) {
                self.models[other].durable_to(self.begun[thread][other]);
            }
        }
    }
}

/// Whether a call makes durable every change of names that had returned before it.
fn makes_names_durable(op: &Op) -> bool {
    matches!(
        op,
        Op::Fsync { .. }
            | Op::Fdatasync { .. }
            | Op::SyncDirectory { .. }
            | Op::Sync
            | Op::Write { sync: Some(_), .. }
    )
}

impl Oracle for Promises {
    fn check(&self, found: &Survey) -> Result<(), String> {
        let known = |path: &&String| {
            let first = path.split('/').next().unwrap_or_default();
            (0..self.models.len()).any(|thread| top(thread) == first)
        };
        if let Some(stray) = found.shape.names.keys().find(|path| !known(path)) {
            return Err(format!("`{stray}` is nobody's"));
        }
        let mut seen = Vec::new();
        for (thread, model) in self.models.iter().enumerate() {
            let part = found.part(&top(thread));
            part.check(model).map_err(|why| format!("thread {thread}: {why}"))?;
            seen.push(model.when(&part.shape).unwrap_or_default());
        }
        for (thread, &(first, _)) in seen.iter().enumerate() {
            let Some(needs) = self.after[thread].get(&first) else { continue };
            for (other, (&needed, &(_, last))) in needs.iter().zip(&seen).enumerate() {
                if other != thread && last < needed {
                    return Err(format!(
                        "thread {thread} is at moment {first}, which began when thread {other} had returned from \
                         {needed}, and thread {other} is at {last}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Examines the workload of several threads that a seed has, if it has one.
pub fn examine_all(seed: u64, plan: &Plan, tally: &mut Tally, more: &mut dyn FnMut(u64) -> bool) {
    let wanted = plan.only.map_or(seed.is_multiple_of(EVERY), |(_, outcome)| outcome >= THREADS);
    if !wanted {
        return;
    }
    let failed = |why| Failure { case: Case { seed, cut: 0, outcome: THREADS }, why };
    match catch_unwind(AssertUnwindSafe(|| Recording::of(seed))) {
        Ok(Ok(recording)) => recording.examine(seed, plan, tally, more),
        Ok(Err(why)) => tally.failures.push(failed(format!("without any cut: {why}"))),
        Err(panic) => {
            tally.failures.push(failed(format!("without any cut: panic: {}", panic_text(&*panic))));
        }
    }
}

impl Recording {
    fn examine(&self, seed: u64, plan: &Plan, tally: &mut Tally, more: &mut dyn FnMut(u64) -> bool) {
        let (mut media, mut promises) = (self.media.clone(), Promises::new(&self.models));
        let mut notes = self.notes.iter().peekable();
        let offset = Dice::of(&[seed, THREADS]).roll(plan.stride);
        for (number, &event) in (1..).zip(&self.trace.events) {
            media.follow(event, &self.trace);
            while let Some(&note) = notes.next_if(|note| note.events <= number) {
                promises.follow(note, &self.steps[note.thread][note.step]);
            }
            let command = &self.trace.commands[event.command()];
            let outcomes = match event {
                Event::Completed(_) if media.has_cached() => plan.outcomes,
                Event::Completed(_) => 1,
                Event::Sent(_) => u64::from(command.what != What::Flush),
                Event::Executed(_) => 0,
            };
            let wanted = match plan.only {
                Some((cut, _)) => cut == number,
                None => (event.command() as u64 + 1) % plan.stride == offset,
            };
            let before = tally.states;
            for outcome in THREADS..THREADS + if wanted { outcomes } else { 0 } {
                if plan.only.is_none_or(|only| only == (number, outcome)) {
                    self.cut(Case { seed, cut: number, outcome }, &media, &promises, tally);
                }
            }
            if !more(tally.states - before) || tally.failures.len() > 3 {
                break;
            }
        }
    }

    fn cut(&self, case: Case, media: &Volatile, promises: &Promises, tally: &mut Tally) {
        let mut dice = Dice::of(&[case.seed, case.cut, case.outcome]);
        let manner = Manner::of(case.outcome + media.in_flight() as u64, &mut dice);
        let left = Volatile::new(media.after_cut(&self.trace, manner, &mut dice));
        tally.states += 1;
        tally.threads += 1;
        tally.in_flight += u64::from(media.in_flight() > 1);
        let found =
            catch_unwind(AssertUnwindSafe(|| examine_media(left, promises, &self.setting, &mut dice)));
        let why = match found {
            Ok(Ok(had)) => {
                tally.note(had);
                return;
            }
            Ok(Err(why)) => why,
            Err(panic) => format!("panic: {}", panic_text(&*panic)),
        };
        tally.failures.push(Failure { case, why: format!("several threads: {manner:?}: {why}") });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_run_of_several_threads() {
        let (mut waited, mut overlaps) = (0, 0);
        for seed in 0..6 {
            let (one, other) = (Recording::of(seed).unwrap(), Recording::of(seed).unwrap());
            assert_eq!(one.trace.events, other.trace.events, "seed {seed}");
            assert_eq!(one.notes, other.notes, "seed {seed}");
            assert_eq!(one.waited, other.waited, "seed {seed}");
            let blocks = |recording: &Recording| -> Vec<_> {
                recording
                    .trace
                    .commands
                    .iter()
                    .map(|command| (command.what, command.first, command.blocks.clone()))
                    .collect()
            };
            assert!(blocks(&one) == blocks(&other), "seed {seed}: other bytes were written");
            let within = |pair: &&[Note]| !pair[0].ends && pair[0].thread != pair[1].thread;
            let here = one.notes.windows(2).filter(within).count();
            println!(
                "seed {seed}: {here} calls began within others, {} waits, {} events",
                one.waited,
                one.trace.events.len()
            );
            overlaps += here;
            waited += one.waited;
        }
        assert!(overlaps > 0, "no call of a thread began within one of another");
        assert!(waited > 0, "no thread ever waited for another one");
    }
}
