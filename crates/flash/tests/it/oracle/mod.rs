//! The model answers what its document says, by a second, naive reading of it (`naive.rs`), on random drives under
//! random loads; and it answers the same however it is asked.
//!
//! `FLASH_SEED=n` replays one seed, `FLASH_SEEDS=n` runs so many instead of the usual ones.

mod host_memory;
mod loads;
mod map;
mod medium;
mod moves;
mod naive;

use crate::drives::Dice;
use host_memory::Lending;
use loads::Case;
use naive::{Answer, COUNTS, simulate};
use nvmed_flash::{Command, Completion, FixedProfile, Flash, HostPages, Kind, Profile, Rate};
use std::collections::HashMap;
use std::sync::Mutex;

/// Seeds of a run, unless told otherwise.
const SEEDS: u64 = 200;

/// Runs a check for each seed, in two threads; says how to replay the one that failed.
fn for_each_seed(test: &str, check: impl Fn(u64) -> Result<(), String> + Sync) {
    let number =
        |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a seed is a number"));
    let seeds = match number("FLASH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FLASH_SEEDS").unwrap_or(SEEDS),
    };
    let run = |seed: u64| {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(seed)));
        let said = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(said)) => said,
            Err(_) => "it panicked; its words are above".to_owned(),
        };
        panic!(
            "\n\n*** seed {seed}: {said}\n*** replay: FLASH_SEED={seed} cargo test -p nvmed-flash --test it {test}\n"
        );
    };
    std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            let seeds = seeds.clone().filter(move |seed| seed % 2 == half);
            scope.spawn(move || seeds.for_each(run))
        });
        for half in halves {
            half.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        }
    });
}

/// How an owner asks; all ways get the same answer.
trait Asks {
    /// Before a command arrives at `time`.
    fn before(&mut self, flash: &mut Flash, time: u64, done: &mut dyn FnMut(Completion));

    /// After something happened; the owner may see what has passed between the drive and the host's memory.
    fn see_moves(&mut self, flash: &mut Flash);
}

/// Takes the completions until a time, as the document has it.
struct Plainly<'a>(&'a Lending);

impl Asks for Plainly<'_> {
    fn before(&mut self, flash: &mut Flash, time: u64, done: &mut dyn FnMut(Completion)) {
        while flash.next_due() <= time {
            flash.advance(time).into_iter().for_each(&mut *done);
            self.see_moves(flash);
        }
    }

    fn see_moves(&mut self, flash: &mut Flash) {
        while let Some(of) = flash.next_move() {
            if self.0.is_failing(of.time, of.what, of.is_put) {
                flash.move_failed(&of);
            }
        }
    }
}

/// Asks at random moments, and takes completions early, late, or at the end.
struct AnyHow(Dice);

impl Asks for AnyHow {
    fn before(&mut self, flash: &mut Flash, time: u64, done: &mut dyn FnMut(Completion)) {
        for _ in 0..self.0.roll(4) {
            let now = flash.now();
            let until = match self.0.roll(3) {
                0 => flash.next_due(),
                1 => time,
                _ => now + self.0.roll(time.saturating_sub(now).max(1)),
            };
            flash.advance(until.min(time)).into_iter().for_each(&mut *done);
        }
    }

    fn see_moves(&mut self, flash: &mut Flash) {
        for _ in 0..self.0.roll(3) {
            let _ = flash.next_move();
        }
    }
}

/// The model, and what changes for it.
struct Asked<'a> {
    flash: Flash,
    changes: &'a [(u64, Option<HostPages>)],
    under_way: HashMap<u32, usize>,
    completions: Vec<(usize, u64, bool)>,
}

impl Asked<'_> {
    fn done(&mut self, completion: Completion) {
        let number = self.under_way.remove(&completion.ticket.0).expect("a ticket completes once");
        self.completions.push((number, completion.time, completion.refused));
    }

    fn change(&mut self, (time, pages): (u64, Option<HostPages>)) {
        match pages {
            Some(pages) => self.flash.give_host_memory(time, pages),
            None => self.flash.end_host_memory(time),
        }
        self.changes = &self.changes[1..];
    }

    /// Before something at `time`.
    fn before(&mut self, time: u64, asks: &mut dyn Asks) {
        let mut done = Vec::new();
        while let Some(&change) = self.changes.first().filter(|change| change.0 <= time) {
            asks.before(&mut self.flash, change.0, &mut |completion| done.push(completion));
            self.change(change);
        }
        asks.before(&mut self.flash, time, &mut |completion| done.push(completion));
        done.into_iter().for_each(|completion| self.done(completion));
    }

    /// The next completion.
    fn wait(&mut self, asks: &mut dyn Asks) -> Option<Completion> {
        loop {
            let change = self.changes.first().copied();
            let until = change.map_or(u64::MAX, |change| change.0);
            if self.flash.next_due() <= until.min(u64::MAX - 1) {
                let completion = self.flash.advance(until);
                asks.see_moves(&mut self.flash);
                if let Some(completion) = completion {
                    self.done(completion);
                    return Some(completion);
                }
            } else {
                self.change(change?);
            }
        }
    }
}

/// What the model does with a list of arrivals, and of changes of the host's memory.
fn model(
    profile: &Profile,
    load: &[(u64, Command)],
    changes: &[(u64, Option<HostPages>)],
    asks: &mut dyn Asks,
) -> Answer {
    let flash = Flash::new(profile).expect("the profile describes a drive");
    let mut asked = Asked { flash, changes, under_way: HashMap::new(), completions: Vec::new() };
    let mut at = 0;
    for (number, &(time, command)) in load.iter().enumerate() {
        at = time.max(at);
        asked.before(at, asks);
        while !asked.flash.takes(command.urgent) {
            // A completion before the arrival has made room already; a later one lets it arrive.
            let Some(completion) = asked.wait(asks) else { break };
            at = at.max(completion.time);
        }
        if !asked.flash.takes(command.urgent) {
            break;
        }
        asked.before(at, asks);
        let ticket = asked.flash.arrive(at, &command);
        assert!(asked.under_way.insert(ticket.0, number).is_none(), "a ticket is free when it is given");
    }
    while asked.wait(asks).is_some() {}
    let Asked { flash, completions, .. } = asked;
    let counts = flash.counts();
    let counts = [
        counts.host_units,
        counts.moved_units,
        counts.programmed_units,
        counts.programs,
        counts.page_reads,
        counts.erases,
        counts.map_hits,
        counts.map_misses,
        counts.map_reads,
        counts.map_writes,
        counts.host_puts,
        counts.host_gets,
    ];
    Answer { completions, counts }
}

/// Whether two answers are the same, and where they part.
fn compare(load: &[(u64, Command)], expected: &Answer, answer: &Answer) -> Result<(), String> {
    let (one, other) = (&expected.completions, &answer.completions);
    if let Some(at) = (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at)) {
        let tell = |completion: Option<&(usize, u64, bool)>| match completion {
            Some(&(number, time, refused)) => {
                format!("command {number} ({:?}) completes at {time}, refused: {refused}", load[number])
            }
            None => "nothing completes any more".to_owned(),
        };
        let (expected, answer) = (tell(one.get(at)), tell(other.get(at)));
        return Err(format!("completion {at} of {}: expected: {expected}; but: {answer}", load.len()));
    }
    if expected.counts != answer.counts {
        return Err(format!("counts: expected {:?}, but {:?}", expected.counts, answer.counts));
    }
    Ok(())
}

#[test]
fn the_model_does_what_its_document_says() {
    let reached = Mutex::new(([0; COUNTS], 0));
    for_each_seed("oracle::the_model", |seed| {
        let case = Case::new(seed);
        let expected = simulate(&case.array, case.room as usize, &case.load, &case.lending);
        let mut asks = Plainly(&case.lending);
        compare(
            &case.load,
            &expected,
            &model(&case.profile(), &case.load, &case.lending.changes, &mut asks),
        )?;
        let done = expected.completions.len();
        if done < case.load.len() {
            let left = case.load.len() - done;
            let (blocks, layer) = (&case.array.blocks, &case.array.translation);
            return Err(format!("{left} commands never complete, with {blocks:?} and {layer:?}"));
        }
        let mut reached = reached.lock().unwrap();
        reached.0.iter_mut().zip(expected.counts).for_each(|(sum, count)| *sum += count);
        reached.1 += expected.completions.iter().filter(|(_, _, refused)| *refused).count();
        Ok(())
    });
    let (counts, refused) = reached.into_inner().unwrap();
    println!("{counts:?}, refused: {refused}");
    if std::env::var("FLASH_SEED").or(std::env::var("FLASH_SEEDS")).is_err() {
        // The loads reach what they are for.
        let each = [100, 50, 100, 50, 50, 5, 50, 20, 20, 20, 20, 20].map(|count| count * SEEDS.min(50));
        assert!(counts.iter().zip(each).all(|(&count, least)| count > least), "little happened: {counts:?}");
        assert!(refused > 0, "no drive was worn out");
    }
}

#[test]
fn it_answers_the_same_however_it_is_asked() {
    for_each_seed("oracle::it_answers", |seed| {
        let mut case = Case::new(seed);
        // What is not asked for is taken for done.
        case.lending.fails = 0;
        let ask = |asks: &mut dyn Asks| model(&case.profile(), &case.load, &case.lending.changes, asks);
        let expected = ask(&mut Plainly(&case.lending));
        (0..3).try_for_each(|way| compare(&case.load, &expected, &ask(&mut AnyHow(Dice(seed * 3 + way)))))
    });
}

#[test]
fn a_fixed_medium_does_what_its_document_says() {
    for_each_seed("oracle::a_fixed", |seed| {
        let mut dice = Dice(seed);
        let (read_ns, write_ns) = (dice.between(1, 3) * 1000, dice.between(1, 5000));
        let link = dice.of(&[Rate::UNLIMITED, Rate::per_second(20_000_000_000), Rate { bytes: 7, ns: 3 }]);
        let load = Case::new(seed).load;
        // When the last byte has passed, in parts of a nanosecond; when the last one of others than reads completes.
        let (mut passed, mut other) = (0_u128, 0);
        let mut completions = Vec::new();
        for (number, &(time, command)) in load.iter().enumerate() {
            let mut end = time;
            let moves = matches!(command.kind, Kind::Read | Kind::Write { .. });
            if moves && !link.is_unlimited() {
                let of = u128::from(link.bytes);
                passed =
                    (u128::from(time) * of).max(passed) + u128::from(command.bytes) * u128::from(link.ns);
                end = passed.div_ceil(of) as u64;
            }
            if command.kind == Kind::Read {
                completions.push((end + read_ns, 0, number));
            } else {
                other = other.max(end + write_ns);
                completions.push((other, 1, number));
            }
        }
        completions.sort_unstable();
        let completions = completions.into_iter().map(|(time, _, number)| (number, time, false)).collect();
        let expected = Answer { completions, counts: [0; COUNTS] };
        let profile = Profile::fixed(FixedProfile { read_ns, write_ns, link });
        compare(&load, &expected, &model(&profile, &load, &[], &mut Plainly(&Lending::default())))?;
        compare(&load, &expected, &model(&profile, &load, &[], &mut AnyHow(Dice(seed))))
    });
}
