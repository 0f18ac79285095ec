//! The jobs that only read, with a cache on our side that has room for a quarter of the tree.

use super::ground::Ground;
use super::jobs::{CLONED, DISK_BYTES, JOBS, Job, read_row};
use crate::mounted::{KernelFs, Mounted, Ours};
use crate::programs::shell::Shell;
use crate::programs::{Mount, Seat, rounds};
use crate::row::Row;
use nvmed_lab::samples::Samples;

/// The rows' names begin with this; what follows is the job's.
pub const NAME: &str = "everyday.small";
/// What part of the tree's bytes the cache has, and so have windows; shelves have half as much.
const PART: u64 = 4;
/// The settings take whole MiB.
const UNIT: u64 = 1 << 20;

/// Wall time of each job that was asked for, beside ext4, xfs and btrfs, whose cache is the machine's memory.
pub fn measure(wanted: &str) -> Result<Vec<Row>, String> {
    let jobs: Vec<&Job> =
        JOBS.iter().filter(|job| !job.writes && super::asked(wanted, &named(job))).collect();
    let bytes = (Ground::tree_bytes()? / PART).next_multiple_of(UNIT);
    let ours = Ours::on_zram_with(DISK_BYTES, bytes, &format!("lease_size = {bytes}\n"))?;
    let ground = Ground::new(&ours)?;
    let mut seats = vec![Seat::Ours(ours, Mount::Shared)];
    for kind in [KernelFs::Ext4, KernelFs::Xfs, KernelFs::Btrfs] {
        seats.push(Seat::Kernel(Mounted::sized(kind, DISK_BYTES)?));
    }
    let mut shells = Vec::new();
    for seat in &seats {
        let mut shell = Shell::start(seat.command("sh")?)?;
        ground.prepare(&mut shell, &seat.dir().join("jobs"))?;
        shell.run(CLONED)?;
        shells.push(shell);
    }
    let mut figures = vec![vec![Samples::default(); seats.len()]; jobs.len()];
    for round in 0..=rounds() {
        for (job, figures) in jobs.iter().zip(&mut figures) {
            for (shell, samples) in shells.iter_mut().zip(figures) {
                let taken = shell.run(job.line)? * 1e3;
                // The first pass fills the caches.
                if round > 0 {
                    samples.push(taken);
                }
            }
        }
    }
    let names: Vec<String> = seats.iter().map(Seat::name).collect();
    let row = |(job, figures): (&&Job, &Vec<Samples>)| {
        let conditions = format!(
            "`{}` in one session each, after a pass; ours with cache_size and lease_size of {} MiB each, a quarter of \
             D/tree, and shelves of half as much, the rivals with the machine's memory; D/tree is {}",
            job.line,
            bytes / UNIT,
            ground.told()
        );
        read_row(named(job), &names, figures, &conditions)
    };
    Ok(jobs.iter().zip(&figures).map(row).collect())
}

fn named(job: &Job) -> String {
    job.row.replace("everyday.jobs", NAME)
}
