//! Rows of SQLite that is urgent beside a bulk copy through the same mount, on a drive whose commands take time.
//!
//! `NVMED_BENCH_QUICK=1` makes them short: that shows that they work, not how fast.

use crate::mounted::{Ours, tools};
use crate::programs::{quick, rounds};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::machine::cores;
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use std::process::Command;
use std::time::Instant;

/// The rows.
pub const NAMES: [&str; 6] = [
    "urgent.sqlite_wal.p99",
    "urgent.sqlite_wal.copy",
    "urgent.sqlite_wal.gain",
    "urgent.sqlite_delete.p99",
    "urgent.sqlite_delete.copy",
    "urgent.sqlite_delete.gain",
];

/// The drive.
const PROFILE: &str = "tlc-urgent";
const DRIVE_BYTES: u64 = 8 << 30;
/// The file that is copied: sixteen times what the mount's cache holds.
const FILE_BYTES: u64 = 1 << 30;
const CACHE_BYTES: u64 = 64 << 20;
/// Transactions of a round of which there are times.
const COMMITS: usize = 500;
/// Copies of a round in which nothing else runs.
const COPIES: usize = 3;
/// Files that are SQLite's, where no program may have the I/O class.
const RULE: &str = "urgent = *.db *.db-wal *.db-journal\n";

/// What runs in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// SQLite and nothing else, with no rank.
    Alone,
    /// SQLite, which is urgent, beside the copy.
    Urgent,
    /// SQLite with no rank, beside the copy.
    Plain,
    /// The copy, and nothing else.
    Copy,
}

/// How SQLite is made urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// By `ionice -c 1`.
    Class,
    /// By the paths of its files.
    Rule,
}

/// What a phase has told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Microseconds of a commit.
    median: f64,
    p99: f64,
    /// MB a second of the copy.
    rate: f64,
    /// Processors that were busy.
    busy: f64,
}

impl Told {
    fn of(said: &str, busy: f64) -> Result<Self, String> {
        let mut told = Self { busy, ..Self::default() };
        if let Some(copied) = said.lines().find_map(|line| line.strip_prefix("copied ")) {
            let (bytes, seconds) = copied.split_once(' ').ok_or("a copy told too little")?;
            let number = |text: &str| text.parse::<f64>().map_err(|error| error.to_string());
            told.rate = number(bytes)? / number(seconds)? / 1e6;
        }
        let mut taken: Vec<f64> = said.lines().filter_map(|line| line.parse().ok()).collect();
        taken.sort_by(f64::total_cmp);
        if let Some(last) = taken.len().checked_sub(1) {
            (told.median, told.p99) = (taken[last / 2], taken[last * 99 / 100]);
        }
        Ok(told)
    }
}

/// Seconds of the processor that children of this process have taken which have ended.
fn children_seconds() -> Result<f64, String> {
    let text = std::fs::read_to_string("/proc/self/stat").map_err(|error| error.to_string())?;
    // After the name, which may have blanks: user and system time of children are the 14th and 15th field (proc(5)).
    let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(13).take(2));
    let ticks: Option<u64> = fields.and_then(|fields| fields.map(|field| field.parse::<u64>().ok()).sum());
    Ok(ticks.ok_or("/proc/self/stat told too little")? as f64 / 100.0)
}

/// A mount on the drive, with a file to copy.
struct Ground {
    ours: Ours,
    rank: Rank,
    databases: u32,
}

impl Ground {
    fn new() -> Result<Self, String> {
        let rank = if run(Command::new("ionice").args(["-c", "1", "true"])).is_ok() {
            Rank::Class
        } else {
            Rank::Rule
        };
        let ours = Ours::on_drive(PROFILE, DRIVE_BYTES, CACHE_BYTES)?;
        let ground = Self { ours, rank, databases: 0 };
        let to = format!("of={}", ground.ours.dir().join("bulk").display());
        let count = format!("count={}", FILE_BYTES >> 20);
        ground.start(Command::new("dd").args(["if=/dev/urandom", &to, "bs=1M", &count]), false)?;
        Ok(ground)
    }

    /// A program in a run of its own: what it said, and how many processors were busy meanwhile.
    fn start(&self, program: &Command, by_rule: bool) -> Result<(String, f64), String> {
        let config = self.ours.config();
        let mut whole = std::fs::read_to_string(&config).map_err(|error| error.to_string())?;
        if by_rule {
            whole += RULE;
        }
        let config = self.ours.beside("run.conf");
        std::fs::write(&config, whole).map_err(|error| error.to_string())?;
        let mut command = Command::new(tools()?.join("nvmed"));
        command.args(["run", "--shared", "--config"]).arg(config).arg("--");
        command.arg(program.get_program()).args(program.get_args());
        let (begin, before) = (Instant::now(), children_seconds()?);
        let said = run(&mut command)?;
        Ok((said, (children_seconds()? - before) / begin.elapsed().as_secs_f64()))
    }

    fn measure(&mut self, journal: &str, phase: Phase) -> Result<Told, String> {
        let dir = self.ours.dir();
        let (from, to) = (dir.join("bulk"), dir.join("copy"));
        let mut probe = self.ours.probe();
        if phase == Phase::Copy {
            probe.arg("copies").args([from, to]).arg(COPIES.to_string());
            let (said, busy) = self.start(&probe, false)?;
            return Told::of(&said, busy);
        }
        let commits = if quick() { 50 } else { COMMITS };
        self.databases += 1;
        let database = dir.join(format!("{}.db", self.databases));
        let is_urgent = phase == Phase::Urgent;
        let rank = if is_urgent && self.rank == Rank::Class { "urgent" } else { "plain" };
        probe.arg("commits").arg(&database).args([journal, rank, &commits.to_string()]);
        if phase != Phase::Alone {
            probe.args([from, to]);
        }
        let (said, busy) = self.start(&probe, is_urgent && self.rank == Rank::Rule)?;
        self.check(&database, commits)?;
        Told::of(&said, busy)
    }

    /// The database is whole, in a mount of its own.
    fn check(&self, database: &std::path::Path, commits: usize) -> Result<(), String> {
        let mut check = Command::new("sqlite3");
        check.arg(database).arg("PRAGMA integrity_check; SELECT count(*) FROM t");
        let (said, _) = self.start(&check, false)?;
        let count: usize = said.strip_prefix("ok\n").and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        if count >= commits { Ok(()) } else { Err(format!("the database is wrong after the run: {said}")) }
    }
}

/// What the rounds of one journal mode have told, by phase.
struct Rounds {
    told: [Vec<Told>; 4],
}

const PHASES: [Phase; 4] = [Phase::Alone, Phase::Urgent, Phase::Plain, Phase::Copy];

impl Rounds {
    fn samples(&self, phase: Phase, figure: impl Fn(&Told) -> f64) -> Samples {
        self.told[phase as usize].iter().map(figure).collect()
    }

    fn median(&self, phase: Phase, figure: impl Fn(&Told) -> f64) -> f64 {
        self.samples(phase, figure).median()
    }
}

fn rows(journal: &str, names: &[&str], rank: Rank, rounds: &Rounds) -> Vec<Row> {
    let how = match rank {
        Rank::Class => "ionice -c 1".to_owned(),
        Rank::Rule => {
            format!("NO PRIVILEGE FOR ionice -c 1 (SKIPPED): the rule `{}` instead", RULE.trim_end())
        }
    };
    let busy = PHASES.map(|phase| rounds.median(phase, |told| told.busy));
    let medians =
        [Phase::Alone, Phase::Urgent, Phase::Plain].map(|phase| rounds.median(phase, |told| told.median));
    let conditions = format!(
        "sqlite3 ({how}), autocommit inserts of 64 random bytes, journal_mode={journal}, synchronous=FULL, {COMMITS} \
         a round, each from the statement to its end; cp of {} MiB within the mount, again and again; shared mount, \
         cache of {} MiB; drive of profile {PROFILE}, {} GiB, image in tmpfs, in real time; medians of a commit {:.0} \
         us alone, {:.0} urgent, {:.0} with no rank; processors busy of {}: {:.2} SQLite alone, {:.2} urgent beside, \
         {:.2} with no rank beside, {:.2} copy alone; {} rounds, each phase a run of its own",
        FILE_BYTES >> 20,
        CACHE_BYTES >> 20,
        DRIVE_BYTES >> 30,
        medians[0],
        medians[1],
        medians[2],
        cores(),
        busy[0],
        busy[1],
        busy[2],
        busy[3],
        rounds.told[0].len(),
    );
    let p99 = |name: &str, phase| Contender {
        name: name.to_owned(),
        samples: rounds.samples(phase, |told| told.p99),
    };
    let rate = |name: &str, phase| Contender {
        name: name.to_owned(),
        samples: rounds.samples(phase, |told| told.rate),
    };
    let (alone, urgent) = (p99("alone", Phase::Alone), p99("urgent, beside a copy", Phase::Urgent));
    let plain = p99("with no rank, beside a copy", Phase::Plain);
    let (copy, beside) = (rate("alone", Phase::Copy), rate("copy beside urgent SQLite", Phase::Urgent));
    let row = |name: &str, unit, ours: &Contender, rival, goal| Row {
        name: name.to_owned(),
        unit,
        ours: ours.clone(),
        rival: Some(rival),
        goal,
        flushes_per_op: None,
        conditions: conditions.clone(),
    };
    vec![
        row(names[0], "us, p99 of a commit", &urgent, alone, Goal::Ratio(2.0)),
        row(names[1], "MB/s", &beside, copy, Goal::Times(0.85)),
        row(names[2], "us, p99 of a commit", &urgent, plain, Goal::Ratio(1.0)),
    ]
}

/// SQLite alone, beside a copy with rank and without, and the copy alone; by journal mode.
///
/// # Errors
/// The release build or sqlite3 is missing, or a program failed.
pub fn measure(wanted: &str) -> Result<Vec<Row>, String> {
    let mut ground = Ground::new()?;
    let mut all = Vec::new();
    for (journal, names) in ["WAL", "DELETE"].into_iter().zip(NAMES.chunks(NAMES.len() / 2)) {
        if !names.iter().any(|name| name.starts_with(wanted)) {
            continue;
        }
        let mut told: [Vec<Told>; 4] = Default::default();
        for _ in 0..rounds() {
            for phase in PHASES {
                told[phase as usize].push(ground.measure(journal, phase)?);
            }
        }
        all.extend(rows(journal, names, ground.rank, &Rounds { told }));
    }
    Ok(all)
}
