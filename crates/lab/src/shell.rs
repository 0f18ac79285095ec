//! Programs run and timed from outside.

use crate::error::LabError;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// The `nvmed` program: this one, or the one that lies beside it.
///
/// # Errors
/// [`LabError::Missing`]: there is none.
pub(crate) fn nvmed() -> Result<PathBuf, LabError> {
    let own = std::env::current_exe().map_err(|error| LabError::program("this program", &error))?;
    let path = own.with_file_name("nvmed");
    let there = path.exists().then_some(path);
    there.ok_or_else(|| LabError::missing(format!("no `nvmed` beside {}", own.display())))
}

/// Runs a host program to its end; answers what it wrote to standard output.
///
/// # Errors
/// What it wrote to standard error, when it failed or could not start.
pub fn run(command: &mut Command) -> Result<String, LabError> {
    let output = ended(command.stdin(Stdio::null()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program that reads `input`; answers what it wrote to standard output.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_with(command: &mut Command, input: &[u8]) -> Result<String, LabError> {
    let failed = |error: std::io::Error| LabError::program("memory for a program's input", &error);
    let fd = rustix::fs::memfd_create("nvmed-input", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(fd.map_err(|errno| failed(errno.into()))?);
    file.write_all(input).and_then(|()| file.rewind()).map_err(failed)?;
    let output = ended(command.stdin(file))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program with `input` on its standard input; answers its wall time in seconds.
///
/// # Errors
/// As [`run`].
pub fn time(command: &mut Command, input: Option<&Path>) -> Result<f64, LabError> {
    let stdin = match input {
        Some(path) => {
            let open = std::fs::File::open(path);
            open.map_err(|error| LabError::Program {
                shown: path.display().to_string(),
                reason: error.to_string(),
            })?
            .into()
        }
        None => Stdio::null(),
    };
    let begin = Instant::now();
    ended(command.stdin(stdin))?;
    Ok(begin.elapsed().as_secs_f64())
}

fn ended(command: &mut Command) -> Result<Output, LabError> {
    let shown = format!("{command:?}");
    let failed = |reason: String| LabError::Program { shown: shown.clone(), reason };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}
