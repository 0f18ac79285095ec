//! A shell that runs one line after the other, in a place that is mounted all the while.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// What the shell does: it evaluates each line and answers its status. What the line itself says goes nowhere.
const LOOP: &str = "while IFS= read -r line; do eval \"$line\" </dev/null >/dev/null; echo $?; done";

/// A shell in a place; it ends when dropped, and so does the mount that it runs in.
pub(crate) struct Shell {
    shell: Child,
    lines: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Shell {
    /// Starts it by the command that would start `sh` in that place.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        command.args(["-c", LOOP]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let lines = shell.stdin.take();
        let said = shell.stdout.take().ok_or_else(|| "a shell without output".to_owned())?;
        Ok(Self { shell, lines, said: BufReader::new(said) })
    }

    /// The process that was started: the shell, or the run that it is in.
    pub(crate) fn pid(&self) -> u32 {
        self.shell.id()
    }

    /// Runs a line; how long it took, in seconds.
    ///
    /// # Errors
    /// The line's status is not 0, or the shell has ended.
    pub(crate) fn run(&mut self, line: &str) -> Result<f64, String> {
        let failed = |error: std::io::Error| format!("{line}: {error}");
        let begin = Instant::now();
        let lines = self.lines.as_mut().ok_or("the shell has ended")?;
        writeln!(lines, "{line}").map_err(failed)?;
        let mut status = String::new();
        self.said.read_line(&mut status).map_err(failed)?;
        let taken = begin.elapsed().as_secs_f64();
        if status.trim() == "0" { Ok(taken) } else { Err(format!("{line}: it answered {status:?}")) }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It ends where its input does.
        self.lines.take();
        let _ = self.shell.wait();
    }
}

/// A path as a shell's word.
pub(crate) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
