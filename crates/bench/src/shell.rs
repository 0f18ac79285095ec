//! Programs run and timed from outside.

use std::process::{Command, Stdio};
use std::time::Instant;

/// Runs a host program to its end.
///
/// # Errors
/// What it wrote to standard error, when it failed or could not start.
pub fn run(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{shown}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{shown}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

/// Runs a program with `input` on its standard input; answers its wall time in seconds.
///
/// # Errors
/// As [`run`].
pub fn time(command: &mut Command, input: Option<&std::path::Path>) -> Result<f64, String> {
    let shown = format!("{command:?}");
    let stdin = match input {
        Some(path) => {
            std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?.into()
        }
        None => Stdio::null(),
    };
    let begin = Instant::now();
    let output = command.stdin(stdin).output().map_err(|error| format!("{shown}: {error}"))?;
    let seconds = begin.elapsed().as_secs_f64();
    if output.status.success() {
        return Ok(seconds);
    }
    Err(format!("{shown}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}
