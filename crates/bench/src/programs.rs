//! Rows of whole programs, unmodified: git, PostgreSQL, RocksDB's `db_bench`.
//!
//! `NVMED_BENCH_QUICK=1` makes them short: that shows that they work, not how fast.

pub mod git;
pub mod postgresql;
pub mod rocksdb;
pub(crate) mod shell;

use crate::mounted::{KernelFs, Mounted, Ours};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::cgroup::MemoryGroup;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether only a short run was asked for.
pub(crate) fn quick() -> bool {
    std::env::var_os("NVMED_BENCH_QUICK").is_some()
}

/// Alternating rounds.
pub(crate) fn rounds() -> usize {
    if quick() { 1 } else { 5 }
}

/// Makes rows that were measured under the same conditions: name, unit, ours, rival, goal.
pub(crate) fn rows(
    conditions: &str,
) -> impl Fn(&str, &'static str, &Contender, Option<Contender>, Goal) -> Row + use<'_> {
    move |name, unit, ours, rival, goal| Row {
        name: name.to_owned(),
        unit,
        ours: ours.clone(),
        rival,
        goal,
        flushes_per_op: None,
        conditions: conditions.to_owned(),
    }
}

/// How a program is started on ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mount {
    Private,
    Shared,
}

/// Where a program's files lie.
pub(crate) enum Seat {
    Ours(Ours, Mount),
    Kernel(Mounted),
}

impl Seat {
    pub(crate) fn kernel(kind: KernelFs) -> Result<Self, String> {
        Ok(Self::Kernel(Mounted::new(kind)?))
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Ours(_, mount) => format!("ours, {mount:?} mount").to_lowercase(),
            Self::Kernel(place) => place.name.to_owned(),
        }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        match self {
            Self::Ours(ours, _) => ours.dir(),
            Self::Kernel(place) => place.dir.clone(),
        }
    }

    /// Nothing stays cached of what lies here: ours is mounted by each program anew, and so is the kernel's.
    pub(crate) fn forget(&self) -> Result<(), String> {
        match self {
            Self::Ours(..) => Ok(()),
            Self::Kernel(place) => place.remount(),
        }
    }

    /// `program`, whose files below [`Seat::dir`] are in this place.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Result<Command, String> {
        self.start(None, None, program.as_ref())
    }

    /// As [`Seat::command`]: in a memory group, or with its file calls timed into a file.
    pub(crate) fn start(
        &self,
        group: Option<&MemoryGroup>,
        stats: Option<&Path>,
        program: &Path,
    ) -> Result<Command, String> {
        let begin =
            |program: &Path| group.map_or_else(|| Command::new(program), |group| group.command(program));
        let tool = crate::mounted::tools()?.join("nvmed");
        let mut command = match self {
            Self::Kernel(_) if stats.is_none() => return Ok(begin(program)),
            Self::Kernel(place) => {
                let mut command = begin(&tool);
                command.args(["run", "--filesystem", "host", "--dir"]).arg(&place.dir);
                command
            }
            Self::Ours(ours, mount) => {
                let mut command = begin(&tool);
                let how = if *mount == Mount::Shared { "--shared" } else { "--private" };
                command.args(["run", how, "--config"]).arg(ours.config());
                command
            }
        };
        if let Some(file) = stats {
            command.arg("--stats").arg(file);
        }
        command.arg("--").arg(program);
        Ok(command)
    }
}

/// The contender with the highest median.
fn highest(contenders: &[Contender]) -> Option<Contender> {
    contenders.iter().max_by(|a, b| a.samples.median().total_cmp(&b.samples.median())).cloned()
}
