//! `git clone` of this repository: many small files, a pack, child processes that work on both.

use super::{Mount, Seat, rounds};
use crate::mounted::{KernelFs, Ours};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::{run, time};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// A shell in a place, which runs one line after the other: the place is mounted all the while.
struct Shell {
    shell: Child,
    lines: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Shell {
    fn start(seat: &Seat) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: a shell: {error}", seat.name());
        let mut command = seat.command("sh")?;
        command.args(["-c", "while IFS= read -r line; do eval \"$line\" </dev/null; echo $?; done"]);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let lines = shell.stdin.take();
        let said = shell.stdout.take().ok_or_else(|| "a shell without output".to_owned())?;
        Ok(Self { shell, lines, said: BufReader::new(said) })
    }

    /// Runs a line that writes nothing to standard output; how long it took, in milliseconds.
    fn time(&mut self, line: &str) -> Result<f64, String> {
        let failed = |error: std::io::Error| format!("{line}: {error}");
        let begin = Instant::now();
        let lines = self.lines.as_mut().ok_or("the shell has ended")?;
        writeln!(lines, "{line}").map_err(failed)?;
        let mut status = String::new();
        self.said.read_line(&mut status).map_err(failed)?;
        let taken = begin.elapsed().as_secs_f64() * 1e3;
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
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Clone with checkout, on the shared mount and on tmpfs. Each is mounted once; what starting and ending a mount takes
/// is a row of its own.
pub fn clone() -> Result<Vec<Row>, String> {
    let mut own = Command::new("git");
    own.args(["rev-parse", "--path-format=absolute", "--git-common-dir"]);
    let source =
        run(&mut own).map_err(|error| format!("run it in the repository: {error}"))?.trim().to_owned();
    let ours = Seat::Ours(Ours::new(3 << 30, 256 << 20, "huge")?, Mount::Shared);
    let mut nothing = Samples::default();
    for _ in 0..rounds() {
        nothing.push(time(&mut ours.command("true")?, None)? * 1e3);
    }
    let mut seats = Vec::new();
    for seat in [ours, Seat::kernel(KernelFs::Tmpfs)?] {
        seats.push((Shell::start(&seat)?, seat, Samples::default()));
    }
    for round in 0..rounds() {
        for (shell, seat, samples) in &mut seats {
            let copy = quoted(&seat.dir().join(format!("clone{round}")));
            let source = quoted(Path::new(&source));
            samples.push(shell.time(&format!("git clone -q --no-hardlinks {source} {copy}"))?);
            // It is what was checked out.
            shell.time(&format!("test -z \"$(git -C {copy} status --porcelain)\""))?;
        }
    }
    let contender = |(_, seat, samples): &(Shell, Seat, Samples)| Contender {
        name: seat.name(),
        samples: samples.clone(),
    };
    let rounds = rounds();
    Ok(vec![
        Row {
            name: "programs.git_clone".to_owned(),
            unit: "ms",
            ours: contender(&seats[0]),
            rival: Some(contender(&seats[1])),
            goal: Goal::Ratio(1.5),
            flushes_per_op: None,
            conditions: format!(
                "git clone --no-hardlinks of {source} with checkout, from one shell, both mounted all the while; \
                 {rounds} rounds"
            ),
        },
        Row {
            name: "programs.run_true".to_owned(),
            unit: "ms",
            ours: Contender { name: "nvmed run --shared -- true".to_owned(), samples: nothing },
            rival: None,
            goal: Goal::Figure(20.0),
            flushes_per_op: None,
            conditions: format!("start and end of a run: holder, server, mount, unmount; {rounds} rounds"),
        },
    ])
}
