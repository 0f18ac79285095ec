//! The jobs that only read, each in a fresh session with nothing cached: ours is mounted anew, and so are the rivals.

use super::ground::Ground;
use super::jobs::{CACHE_BYTES, CLONED, DISK_BYTES, JOBS, Job, read_row};
use crate::mounted::{KernelFs, Mounted, Ours};
use crate::programs::shell::{Shell, quoted};
use crate::programs::{Mount, Seat, rounds};
use crate::row::Row;
use nvmed_lab::samples::Samples;

/// The rows' names begin with this; what follows is the job's.
pub const NAME: &str = "everyday.cold";

/// Wall time of each job that was asked for, beside ext4, xfs and btrfs. tmpfs has nothing but its cache.
pub fn measure(wanted: &str) -> Result<Vec<Row>, String> {
    let jobs: Vec<&Job> =
        JOBS.iter().filter(|job| !job.writes && super::asked(wanted, &named(job))).collect();
    let ours = Ours::on_zram(DISK_BYTES, CACHE_BYTES)?;
    let ground = Ground::new(&ours)?;
    let mut seats = vec![Seat::Ours(ours, Mount::Shared)];
    for kind in [KernelFs::Ext4, KernelFs::Xfs, KernelFs::Btrfs] {
        seats.push(Seat::Kernel(Mounted::sized(kind, DISK_BYTES)?));
    }
    for seat in &seats {
        let mut shell = Shell::start(seat.command("sh")?)?;
        ground.prepare(&mut shell, &seat.dir().join("jobs"))?;
        // The first status writes the index; from then on nothing does.
        shell.run(&format!("{CLONED}; git -C $D/clone status --porcelain; sync -f $D"))?;
    }
    let mut figures = vec![vec![Samples::default(); seats.len()]; jobs.len()];
    for _ in 0..rounds() {
        for (job, figures) in jobs.iter().zip(&mut figures) {
            for (seat, samples) in seats.iter().zip(figures) {
                samples.push(cold(seat, job)?);
            }
        }
    }
    let names: Vec<String> = seats.iter().map(Seat::name).collect();
    let row = |(job, figures): (&&Job, &Vec<Samples>)| {
        let conditions = format!(
            "`{}` in a session of its own, in a place that was just mounted, wall time without the mount; D/tree is {}",
            job.line,
            ground.told()
        );
        read_row(named(job), &names, figures, &conditions)
    };
    Ok(jobs.iter().zip(&figures).map(row).collect())
}

fn named(job: &Job) -> String {
    job.row.replace("everyday.jobs", NAME)
}

/// One pass in a place that has just been mounted, in milliseconds.
fn cold(seat: &Seat, job: &Job) -> Result<f64, String> {
    seat.forget()?;
    let mut shell = Shell::start(seat.command("sh")?)?;
    // It answers when the place is mounted, and touches nothing there.
    shell.run(&format!("D={}", quoted(&seat.dir().join("jobs"))))?;
    let seconds = shell.run(job.line).map_err(|error| format!("{}: {error}", seat.name()))?;
    Ok(seconds * 1e3)
}
