//! Calls to the server that the jobs make which only read, when everything was read before.

use super::asked;
use super::ground::Ground;
use super::jobs::{JOBS, Job};
use crate::mounted::{Ours, tools};
use crate::programs::shell::Shell;
use crate::programs::{Mount, Seat};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::shell::run;
use std::path::Path;
use std::process::Command;

/// The rows' names begin with this; what follows is the job's.
pub const NAME: &str = "everyday.trips";
/// Passes of a job: the last one is looked at.
const PASSES: u32 = 2;
/// Who asks the server says hello, and asks.
const MESSAGES_OF_ASKING: f64 = 2.0;

/// Round trips of each job's second pass, those on sockets included, for a call of its programs and for a file of the
/// tree.
pub fn measure(wanted: &str) -> Result<Vec<Row>, String> {
    let ours = Ours::new(4 << 30, 1 << 30, "huge")?;
    let ground = Ground::new(&ours)?;
    let stats = ours.beside("stats.json");
    let seat = Seat::Ours(ours, Mount::Shared);
    let dir = seat.dir().join("jobs");
    let mut shell = Shell::start(seat.command("sh")?)?;
    ground.prepare(&mut shell, &dir)?;
    let names = "cd /; git clone -q --no-hardlinks $REPOSITORY $D/clone; git -C $D/clone status";
    shell.run(names)?;
    drop(shell);
    let mut rows = Vec::new();
    for job in JOBS.iter().filter(|job| !job.writes) {
        let name = job.row.replace("everyday.jobs", NAME);
        if asked(wanted, &name) {
            rows.extend(second_pass(job, &name, &seat, &stats, &dir, ground.files)?);
        }
    }
    Ok(rows)
}

/// The two rows of a job, in a run of its own.
fn second_pass(
    job: &Job,
    name: &str,
    seat: &Seat,
    stats: &Path,
    dir: &Path,
    files: usize,
) -> Result<[Row; 2], String> {
    // One that is there would be added to.
    let _ = std::fs::remove_file(stats);
    let mut shell = Shell::start(seat.start(None, Some(stats), Path::new("sh"))?)?;
    shell.run(&format!("D={}", crate::programs::shell::quoted(dir)))?;
    let (mut before, mut after) = ([0.0; 2], [0.0; 2]);
    for _ in 0..PASSES {
        before = taken(&shell)?;
        shell.run(job.line)?;
        after = taken(&shell)?;
    }
    drop(shell);
    let calls = made(stats)? / f64::from(PASSES);
    let messages = after[1] - before[1] - MESSAGES_OF_ASKING;
    let trips = after[0] - before[0] + messages;
    let row = |word: &str, of: f64, goal| Row {
        name: format!("{name}.{word}"),
        unit: "trips",
        ours: Contender {
            name: "ours, shared mount".to_owned(),
            samples: [trips / of].into_iter().collect(),
        },
        rival: None,
        goal: Goal::Figure(goal),
        flushes_per_op: None,
        conditions: format!(
            "pass {PASSES} of `{}`: {trips} round trips, of which {messages} were messages on sockets, {calls} calls \
             of the programs (every pass the same), {files} files in the tree",
            job.line
        ),
    };
    Ok([row("call", calls, 0.02), row("file", files as f64, 0.1)])
}

/// Sum of the counts of the objects that are a kind of call.
fn sum<'a>(kinds: impl Iterator<Item = &'a serde_json::Value>) -> f64 {
    kinds.filter_map(|kind| kind["count"].as_f64()).sum()
}

/// Calls that the programs of a run have waited for, and messages on their sockets.
fn taken(shell: &Shell) -> Result<[f64; 2], String> {
    let mut command = Command::new(tools()?.join("nvmed"));
    let text = run(command.args(["stats", "--json"]).arg(shell.pid().to_string()))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let calls = value["round_trips"].as_f64().ok_or_else(|| format!("no round trips in {text:?}"))?;
    let messages = value["messages"].as_object().ok_or_else(|| format!("no messages in {text:?}"))?;
    Ok([calls, messages.values().filter_map(serde_json::Value::as_f64).sum()])
}

/// Calls that programs have made, as a run's `--stats` tells them.
fn made(stats: &Path) -> Result<f64, String> {
    let text = std::fs::read_to_string(stats).map_err(|error| format!("{}: {error}", stats.display()))?;
    let lines: Result<Vec<serde_json::Value>, _> = text.lines().map(serde_json::from_str).collect();
    let lines = lines.map_err(|error| error.to_string())?;
    // The lines that are a kind of call name it; in others `calls` is a sum.
    Ok(sum(lines.iter().filter(|line| line["call"].is_string())))
}
