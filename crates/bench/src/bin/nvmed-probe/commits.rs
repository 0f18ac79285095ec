//! The unmodified sqlite3 shell, one durable transaction at a time, and the unmodified `cp` beside it.

use super::number;
use nvmed_dice::Dice;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// What the shell says when a statement is done.
const DONE: &str = "done";

/// A sqlite3 shell with a database.
struct Shell {
    program: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    dice: Dice,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Shell {
    /// Starts one, of the I/O class real-time if it is to be urgent.
    fn start(database: &str, journal: &str, is_urgent: bool) -> Result<Self, String> {
        let mut command = Command::new(if is_urgent { "ionice" } else { "sqlite3" });
        if is_urgent {
            command.args(["-c", "1", "sqlite3"]);
        }
        command.args(["-batch", database]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().map_err(|error| format!("sqlite3: {error}"))?;
        let (to, from) = (program.stdin.take(), program.stdout.take());
        let (to, from) = to.zip(from).ok_or("sqlite3 has no pipes")?;
        let mut shell = Self { program, to, from: BufReader::new(from), dice: Dice::new(1) };
        shell.run(&format!(
            "PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY \
             KEY, v BLOB);"
        ))?;
        Ok(shell)
    }

    /// Has statements run.
    fn run(&mut self, statements: &str) -> Result<(), String> {
        self.to.write_all(format!("{statements}\n.print {DONE}\n").as_bytes()).map_err(text)?;
        let mut line = String::new();
        while line.trim_end() != DONE {
            line.clear();
            if self.from.read_line(&mut line).map_err(text)? == 0 {
                return Err(format!("sqlite3 ended at `{statements}`"));
            }
        }
        Ok(())
    }

    /// One transaction: microseconds from the statement to its end.
    fn commit(&mut self) -> Result<f64, String> {
        let mut statement = "INSERT INTO t(v) VALUES(x'".to_owned();
        for _ in 0..8 {
            write!(statement, "{:016x}", self.dice.next()).map_err(text)?;
        }
        statement += "');";
        let begin = Instant::now();
        self.run(&statement)?;
        Ok(begin.elapsed().as_nanos() as f64 / 1e3)
    }

    fn end(self) -> Result<(), String> {
        let Self { mut program, to, .. } = self;
        drop(to);
        let status = program.wait().map_err(text)?;
        if status.success() { Ok(()) } else { Err(format!("sqlite3: {status}")) }
    }
}

/// A copy that is begun anew whenever it has ended, and what it has copied so far.
struct Copies<'a> {
    from: &'a str,
    to: &'a str,
    bytes: u64,
    seconds: f64,
}

impl<'a> Copies<'a> {
    fn new(from: &'a str, to: &'a str) -> Self {
        Self { from, to, bytes: 0, seconds: 0.0 }
    }

    /// Copies once; meanwhile `beside` is called again and again.
    fn once(&mut self, mut beside: impl FnMut() -> Result<(), String>) -> Result<(), String> {
        let _ = std::fs::remove_file(self.to);
        let begin = Instant::now();
        let mut copy = Command::new("cp").args([self.from, self.to]).spawn().map_err(text)?;
        let status = loop {
            if let Some(status) = copy.try_wait().map_err(text)? {
                break status;
            }
            if let Err(message) = beside() {
                copy.wait().map_err(text)?;
                return Err(message);
            }
        };
        self.seconds += begin.elapsed().as_secs_f64();
        self.bytes += std::fs::metadata(self.to).map_err(text)?.len();
        if status.success() { Ok(()) } else { Err(format!("cp: {status}")) }
    }

    fn tell(&self) {
        println!("copied {} {}", self.bytes, self.seconds);
    }
}

/// `count` transactions of SQLite, the time of each on a line. With a file and where to copy it to, a copy of it runs
/// all the while, again and again, and what it has copied is told at the end.
pub fn commits(database: &str, journal: &str, rank: &str, count: &str, copy: &[&str]) -> Result<(), String> {
    let count = number(count)?;
    let mut shell = Shell::start(database, journal, rank == "urgent")?;
    let mut taken = Vec::with_capacity(2 * count);
    let mut commit = || {
        taken.push(shell.commit()?);
        Ok(taken.len())
    };
    match *copy {
        [] => while commit()? < count {},
        [from, to] => {
            let mut copies = Copies::new(from, to);
            let mut so_far = 0;
            while so_far < count {
                copies.once(|| commit().map(|now| so_far = now))?;
            }
            copies.tell();
        }
        _ => return Err("a copy has a file and where it goes".to_owned()),
    }
    shell.end()?;
    taken.iter().take(count).for_each(|us| println!("{us:.1}"));
    Ok(())
}

/// Copies of a file, one after the other, and nothing beside them.
pub fn copies(from: &str, to: &str, times: &str) -> Result<(), String> {
    let mut copies = Copies::new(from, to);
    for _ in 0..number(times)? {
        // As who has a transaction to make looks.
        copies.once(|| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            Ok(())
        })?;
    }
    copies.tell();
    Ok(())
}
