//! Programs of a run, and its server, killed and stopped at the points of the protocols of shared memory: nothing that
//! was acknowledged is lost, a stopped program stops nobody, and what goes on goes on exactly (docs/spec/points.md).
//!
//! One or two at each point; `NVMED_KILLS=200` for more (`make kills`), `NVMED_SEED` for others.

mod actor;
mod record;

use crate::scratch::Scratch;
use crate::shared::find_server;
use crate::support::until;
use actor::{PART, POINT, STRIKES};
use nvmed_dice::Dice;
use nvmed_mutant::Point;
use record::{LOGS, REPLACED, Said};
use rustix::process::{Signal, kill_process};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Programs that are struck in one run at most: those of many would read what all before them have appended.
const STRIKES_MAX: u64 = 10;

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    Kill,
    Stop,
}

impl Strike {
    fn at(self, point: Point, arrival: u64) -> String {
        let how = if self == Self::Kill { "kill" } else { "stop" };
        format!("{point:?}:{arrival}:{how}")
    }
}

/// Not a test, but what the programs do below `nvmed run`.
#[test]
fn play() {
    actor::play();
}

/// This program again, in a part of its own.
fn part(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "points::play", "--nocapture", "--quiet"]).env(PART, name);
    command
}

/// A run of a part.
fn run(scratch: &Scratch, name: &str, mutant: Option<&str>) -> Command {
    let mut command = scratch.nvmed(["run", "--device", "d.img", "--dir", "store", "--"]);
    let program = part(name);
    command.arg(program.get_program()).args(program.get_args()).env(PART, name);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(mutant.map(|mutant| ("NVMED_MUTANT", mutant)));
    command
}

/// How often a point is reached in a run, and more often if nobody ends it.
fn arrivals(point: Point) -> u64 {
    match point {
        // Once for each process.
        Point::HeirAdopted | Point::SuccessorMade | Point::LogCleared => 1,
        Point::HeirMade | Point::HeirEntered | Point::HeirTold => 3,
        Point::ClaimAnswered | Point::SlotMarked | Point::NoteOpened => 6,
        _ => 40,
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn dice(of: u64) -> Dice {
    Dice::of(&[number("NVMED_SEED", 15), of])
}

/// What the device has must be what was said.
fn judge(scratch: &Scratch, said: &Said) -> Result<(), String> {
    let read = |name: &str| scratch.run(["cat", &format!("d.img:/{name}")]);
    let logs = LOGS.map(|name| read(name).out);
    let replaced = read(REPLACED);
    said.agrees_with(&logs, Some(replaced.out.as_str()))?;
    let checked = scratch.run(["fsck", "d.img"]);
    if checked.status == 0 { Ok(()) } else { Err(format!("{}{}", checked.out, checked.err)) }
}

/// Runs programs that are struck at their arrivals at a point.
fn strike_programs(
    (point, strike): (Point, Strike),
    arrivals: &[u64],
    mutant: Option<&str>,
) -> Result<(), String> {
    let scratch = Scratch::with_device("64M");
    let strikes: Vec<String> = arrivals.iter().map(|arrival| strike.at(point, *arrival)).collect();
    let ran = run(&scratch, "strikes", mutant).env(STRIKES, strikes.join(",")).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let said = Said::read(&out)?;
    if !ran.status.success() || !err.is_empty() {
        return Err(format!("{}: {err}", ran.status));
    }
    if said.struck != arrivals.len() {
        return Err(format!("{} of {} programs were struck", said.struck, arrivals.len()));
    }
    judge(&scratch, &said)
}

/// Runs two programs whose server is struck at an arrival at a point.
fn strike_server(
    (point, strike): (Point, Strike),
    arrival: u64,
    mutant: Option<&str>,
) -> Result<u64, String> {
    let scratch = Scratch::with_device("64M");
    let mut command = run(&scratch, "two", mutant);
    let mut child = command.env(POINT, strike.at(point, arrival)).spawn().unwrap();
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            from.read_to_string(&mut text).map(|_| text)
        })
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    let stopped = if strike == Strike::Stop { go_on(&mut child) } else { false };
    let status = child.wait().unwrap();
    let (out, err) = (out.join().unwrap().unwrap(), err.join().unwrap().unwrap());
    let said = Said::read(&out)?;
    let is_struck = match strike {
        Strike::Kill => err.contains("was ended by signal 9"),
        Strike::Stop => stopped && err.is_empty(),
    };
    if !is_struck || !status.success() {
        return Err(format!("arrival {arrival} was not reached: {status} {err}"));
    }
    judge(&scratch, &said)?;
    Ok(said.acknowledged())
}

/// Waits until the server of a run has stopped, has it go on, and ends the programs; whether it had.
fn go_on(run: &mut Child) -> bool {
    let mut stopped = None;
    until("the server stops", || {
        stopped = find_server(run).filter(|server| {
            let status = std::fs::read_to_string(format!("/proc/{}/stat", server.as_raw_nonzero()));
            status.is_ok_and(|status| status.contains(") T "))
        });
        stopped.is_some() || run.try_wait().unwrap().is_some()
    });
    let Some(server) = stopped else { return false };
    kill_process(server, Signal::CONT).unwrap();
    run.stdin.take().unwrap().write_all(b"over\n").unwrap();
    true
}

/// Strikes at each of a client's points.
fn strike_clients(strike: Strike, times: u64) {
    for point in Point::CLIENT {
        let mut dice = dice(point as u64);
        let mut left = times;
        while left > 0 {
            let now = left.min(STRIKES_MAX);
            let at: Vec<u64> = (0..now).map(|_| 1 + dice.roll(arrivals(point))).collect();
            let ended = strike_programs((point, strike), &at, None);
            assert_eq!(ended, Ok(()), "{strike:?} at {point:?}, arrivals {at:?}, {left} to come");
            left -= now;
        }
        println!("{point:?}: {times} times {strike:?}");
    }
}

/// Strikes at each of the server's points.
fn strike_servers(strike: Strike, times: u64) {
    for point in Point::SERVER {
        let mut dice = dice(point as u64);
        let mut acknowledged = 0;
        for round in 0..times {
            let arrival = 1 + dice.roll(arrivals(point));
            let ended = strike_server((point, strike), arrival, None);
            let ended =
                ended.map_err(|wrong| format!("{strike:?} {round} at {point:?}, arrival {arrival}: {wrong}"));
            acknowledged += ended.unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        // Where a server is ended before any program writes, nothing can be missing: those points have one arrival.
        assert!(
            acknowledged > 0 || arrivals(point) == 1 || times < 10,
            "{point:?}: nothing was acknowledged"
        );
        println!("{point:?}: {times} times {strike:?}, {acknowledged} records acknowledged");
    }
}

/// Whether this build has points; one without debug assertions has none.
fn are_there() -> bool {
    if !nvmed_mutant::ARE_MADE {
        println!(
            "SKIPPED: this build has no points; use a profile with debug assertions (make kills PROFILE=points)"
        );
    }
    nvmed_mutant::ARE_MADE
}

#[test]
fn a_program_that_is_killed_at_a_point_takes_nothing_along() {
    if !are_there() {
        return;
    }
    strike_clients(Strike::Kill, number("NVMED_KILLS", 2));
}

#[test]
fn a_program_that_is_stopped_at_a_point_stops_nobody_and_goes_on() {
    if !are_there() {
        return;
    }
    strike_clients(Strike::Stop, number("NVMED_KILLS", 1));
}

#[test]
fn a_server_that_is_killed_at_a_point_loses_nothing() {
    if !are_there() {
        return;
    }
    strike_servers(Strike::Kill, number("NVMED_KILLS", 1));
}

#[test]
fn a_server_that_is_stopped_at_a_point_goes_on() {
    if !are_there() {
        return;
    }
    strike_servers(Strike::Stop, number("NVMED_KILLS", 1).div_ceil(4));
}

/// Mistakes that these tests must notice, or they prove nothing.
#[test]
fn what_is_struck_shows_mistakes() {
    if !are_there() {
        return;
    }
    let at = (Point::OpenFound, Strike::Stop);
    let seen = strike_programs(at, &[5, 9], Some("SecondLookForgotten"));
    assert!(seen.as_ref().is_err_and(|wrong| wrong.starts_with("wrong victim")), "{seen:?}");
    // A change that is lost may be one of a file that is gone, or has no name yet that somebody was told of.
    let at = (Point::RecordCopied, Strike::Kill);
    // What was posted after it is there, or nothing was.
    let is_loss = |wrong: &str| wrong.contains("should be") || wrong.contains("records of");
    let mut seen = (1..=20).map(|arrival| strike_server(at, arrival, Some("LedgerCountedEarly")));
    assert!(seen.any(|ended| ended.is_err_and(|wrong| is_loss(&wrong))), "a ledger that counts too early");
}
