//! Instructions of a call, on the user's side, counted by callgrind.
//!
//! `nvmed-calls` runs twice below valgrind, with a number of calls and with twice as many. Their difference is that
//! many calls, without what the program does before and after them. It is a count: one run is enough on any machine.

use nvmed_lab::shell::run;
use std::process::Command;

/// Calls of the first run. So many that log and tree have gone through several checkpoints.
const CALLS: u64 = 4_000;

/// Every kind of call that `nvmed-calls` knows.
pub const KINDS: [&str; 7] = ["fsync", "append", "create", "create_fsync", "commit", "put", "read"];

/// Which calls stand for the rows whose names begin so.
const ROWS: &[(&str, &str)] = &[
    ("sqlite.insert_delete", "commit"),
    ("sqlite.insert_wal", "append"),
    ("fs.create_fsync", "create_fsync"),
    ("kv.put", "put"),
    ("trace.record", "read"),
];

/// The calls that stand for a row, if it is one of durable calls.
#[must_use]
pub fn kind_of(row: &str) -> Option<&'static str> {
    ROWS.iter().find(|(name, _)| row.starts_with(name)).map(|(_, kind)| *kind)
}

/// Instructions of one call of a kind.
///
/// # Errors
/// valgrind is not there, or a run failed.
pub fn a_call(kind: &str) -> Result<f64, String> {
    of_one(CALLS, |calls| collected(kind, calls)).map_err(|error| format!("{kind}: {error}"))
}

/// Instructions of one of `calls` calls: `count` tells them of a run with so many, and of one with twice as many.
///
/// # Errors
/// Those of `count`; the longer run has fewer.
pub(crate) fn of_one(calls: u64, count: impl Fn(u64) -> Result<u64, String>) -> Result<f64, String> {
    let (once, twice) = (count(calls)?, count(2 * calls)?);
    let more =
        twice.checked_sub(once).ok_or_else(|| format!("{once} of {calls}, {twice} of twice as many"))?;
    Ok(more as f64 / calls as f64)
}

/// Instructions of a whole run.
fn collected(kind: &str, calls: u64) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = own.with_file_name("nvmed-calls");
    let file = std::env::temp_dir().join(format!("nvmed-bench-{}-callgrind", std::process::id()));
    let out = format!("--callgrind-out-file={}", file.display());
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", &out]).arg(program).args([kind, &calls.to_string()]);
    let ran = run(&mut valgrind).map_err(|error| error.to_string());
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()));
    let _ = std::fs::remove_file(&file);
    ran?;
    let total = text?.lines().find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok());
    total.ok_or_else(|| "callgrind gave no sum".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_the_calls_that_it_is_about() {
        assert_eq!(kind_of("fs.create_fsync.kernel"), Some("create_fsync"));
        assert_eq!(kind_of("fs.create_fsync_8t"), Some("create_fsync"));
        assert_eq!(kind_of("sqlite.insert_wal.tmpfs"), Some("append"));
        assert_eq!(kind_of("kv.get"), None);
        assert!(ROWS.iter().all(|(_, kind)| KINDS.contains(kind)));
    }
}
