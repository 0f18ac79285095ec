//! Calls on files made again, below a directory.

use crate::failure::{Failure, Status};
use crate::output::Output;
use nvmed_lab::LabError;
use nvmed_lab::mobile::{Replay, Replayed};
use std::path::Path;

/// Makes a trace's calls again, or what was there before them; says nothing that differs from one file system to the
/// other unless their answers do.
///
/// # Errors
/// The trace cannot be read, or the files that were there cannot be made.
pub(crate) fn make_calls(
    command: &str,
    (prepare, times): (bool, u32),
    trace: &Path,
    dir: &Path,
) -> Result<(), Failure> {
    let failure = |error: LabError| Failure::new(Status::Failed, format!("{command}: {error}"));
    let replay = Replay::load(trace).map_err(failure)?;
    let mut directories = Replay::repetitions(dir, times);
    if prepare {
        return directories.try_for_each(|dir| replay.prepare(&dir)).map_err(failure);
    }
    let mut done = Replayed::default();
    directories.for_each(|dir| done += replay.run(&dir));
    let mut out = Output::new();
    out.text(&format!(
        "{} calls, {} failed, {} bytes read, {} bytes written\n",
        done.calls, done.failed, done.read_bytes, done.written_bytes
    ))?;
    out.finish()
}
