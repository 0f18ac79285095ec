//! Rows of the unmodified sqlite3 shell.

use crate::files::{ROUNDS, durable_rows};
use crate::mounted::{KernelFs, Mounted, Ours};
use crate::row::Row;
use nvmed_dice::Dice;
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::{run, time};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Autocommit inserts a round.
const INSERTS: usize = 20_000;

/// A script of autocommit inserts whose values do not compress.
pub(crate) fn script(dir: &Path, journal: &str, inserts: usize) -> Result<PathBuf, String> {
    let mut text = format!(
        "PRAGMA journal_mode={journal};\nPRAGMA synchronous=FULL;\nCREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB);\n"
    );
    let mut dice = Dice::new(1);
    for id in 0..inserts {
        let mut value = String::new();
        for _ in 0..8 {
            write!(value, "{:016x}", dice.next()).map_err(|error| error.to_string())?;
        }
        writeln!(text, "INSERT INTO t VALUES({id}, x'{value}');").map_err(|error| error.to_string())?;
    }
    let path = dir.join(format!("insert-{journal}.sql"));
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn inserts(journal: &str) -> Result<Vec<Row>, String> {
    let ours = Ours::new(3 << 30, 256 << 20, "huge")?;
    let tmpfs = Mounted::new(KernelFs::Tmpfs)?;
    let kernel = Mounted::kernel()?;
    let sql = script(&tmpfs.dir, journal, INSERTS)?;
    let mut contenders: Vec<(&Mounted, Samples)> =
        kernel.iter().chain([&tmpfs]).map(|place| (place, Samples::default())).collect();
    let mut own = Samples::default();
    let mut flushes = 0.0;
    for index in 0..ROUNDS {
        let database = format!("{index}.db");
        let per_insert = 1e6 / INSERTS as f64;
        let mut sqlite = Command::new("sqlite3");
        own.push(time(ours.wrap(sqlite.arg(ours.dir().join(&database))), Some(&sql))? * per_insert);
        flushes += ours.flushes()? / INSERTS as f64 / ROUNDS as f64;
        let mut check = Command::new("sqlite3");
        let check =
            check.arg(ours.dir().join(&database)).arg("PRAGMA integrity_check; SELECT count(*) FROM t");
        let said = run(ours.wrap(check))?;
        if said != format!("ok\n{INSERTS}\n") {
            return Err(format!("the database is wrong after the run: {said}"));
        }
        let _ = ours.flushes();
        for (place, samples) in &mut contenders {
            let mut sqlite = Command::new("sqlite3");
            samples.push(time(sqlite.arg(place.dir.join(&database)), Some(&sql))? * per_insert);
        }
    }
    let conditions = format!(
        "sqlite3, {INSERTS} autocommit inserts of 64 random bytes, journal_mode={journal}, synchronous=FULL; {ROUNDS} \
         rounds"
    );
    let name = format!("sqlite.insert_{}", journal.to_ascii_lowercase());
    Ok(durable_rows(&name, "us", own, contenders, [0.5, 1.0], flushes, &conditions))
}

/// Inserts with a rollback journal.
pub fn delete() -> Result<Vec<Row>, String> {
    inserts("DELETE")
}

/// Inserts with a write-ahead log.
pub fn wal() -> Result<Vec<Row>, String> {
    inserts("WAL")
}
