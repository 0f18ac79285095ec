//! `git clone` of this repository: many small files, a pack, child processes that work on both.

use super::shell::{Shell, quoted};
use super::{Mount, Seat, rounds};
use crate::mounted::{KernelFs, Ours};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::{run, time};
use std::path::PathBuf;
use std::process::Command;

/// This repository, as a source to clone.
///
/// # Errors
/// This process does not run in it.
pub(crate) fn repository() -> Result<PathBuf, String> {
    let mut own = Command::new("git");
    own.args(["rev-parse", "--path-format=absolute", "--git-common-dir"]);
    let said = run(&mut own).map_err(|error| format!("run it in the repository: {error}"))?;
    Ok(PathBuf::from(said.trim()))
}

/// Clone with checkout, on the shared mount and on tmpfs. Each is mounted once; what starting and ending a mount takes
/// is a row of its own.
pub fn clone() -> Result<Vec<Row>, String> {
    let source = repository()?;
    let ours = Seat::Ours(Ours::new(3 << 30, 256 << 20, "huge")?, Mount::Shared);
    let mut nothing = Samples::default();
    for _ in 0..rounds() {
        nothing.push(time(&mut ours.command("true")?, None)? * 1e3);
    }
    let mut seats = Vec::new();
    for seat in [ours, Seat::kernel(KernelFs::Tmpfs)?] {
        seats.push((Shell::start(seat.command("sh")?)?, seat, Samples::default()));
    }
    for round in 0..rounds() {
        for (shell, seat, samples) in &mut seats {
            let copy = quoted(&seat.dir().join(format!("clone{round}")));
            let source = quoted(&source);
            samples.push(shell.run(&format!("git clone -q --no-hardlinks {source} {copy}"))? * 1e3);
            // It is what was checked out.
            shell.run(&format!("test -z \"$(git -C {copy} status --porcelain)\""))?;
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
                "git clone --no-hardlinks of {} with checkout, from one shell, both mounted all the while; \
                 {rounds} rounds",
                source.display()
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
