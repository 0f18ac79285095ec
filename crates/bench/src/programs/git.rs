//! `git clone` of this repository: many small files, a pack, child processes that work on both.

use super::{Mount, Seat, rounds};
use crate::place::{Kind, Ours};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::{run, time};
use std::process::Command;

/// Clone with checkout, on the shared mount and on tmpfs.
pub fn clone() -> Result<Vec<Row>, String> {
    let mut own = Command::new("git");
    own.args(["rev-parse", "--path-format=absolute", "--git-common-dir"]);
    let source =
        run(&mut own).map_err(|error| format!("run it in the repository: {error}"))?.trim().to_owned();
    let mut seats = Vec::new();
    for seat in
        [Seat::Ours(Ours::new(3 << 30, 256 << 20, "huge")?, Mount::Shared), Seat::kernel(Kind::Tmpfs)?]
    {
        seats.push((seat, Samples::default()));
    }
    for round in 0..rounds() {
        for (seat, samples) in &mut seats {
            let copy = seat.dir().join(format!("clone{round}"));
            let mut git = seat.command("git")?;
            samples.push(time(git.args(["clone", "-q", "--no-hardlinks", &source]).arg(&copy), None)? * 1e3);
            let mut status = seat.command("git")?;
            let said = run(status.arg("-C").arg(&copy).args(["status", "--porcelain"]))?;
            if !said.is_empty() {
                return Err(format!("{}: the clone is not what was checked out: {said}", seat.name()));
            }
        }
    }
    let mut all =
        seats.iter().map(|(seat, samples)| Contender { name: seat.name(), samples: samples.clone() });
    let (Some(ours), rival) = (all.next(), all.next()) else { return Ok(Vec::new()) };
    Ok(vec![Row {
        name: "programs.git_clone".to_owned(),
        unit: "ms",
        ours,
        rival,
        goal: Goal::Ratio(1.5),
        flushes_per_op: None,
        conditions: format!(
            "git clone --no-hardlinks of {source} with checkout; ours by nvmed run --shared, its start and end included; {} rounds",
            rounds()
        ),
    }])
}
