//! Whole jobs of unmodified programs, one warm session on each side.
//!
//! Each file system is on a zram disk of its own, ours by io_uring; a shell runs in each all the while, so that neither
//! making it nor mounting it is in the figures. Processor time is that of the shell's control group (of ours with the
//! server) and of the kernel's threads, of all cores. Other programs on the machine are not in it, but what the
//! kernel's threads do for them is.

use super::ground::Ground;
use super::{memory, told};
use crate::mounted::{KernelFs, Ours};
use crate::programs::shell::Shell;
use crate::programs::{Mount, Seat, rounds};
use crate::row::{Contender, Goal, Row, better};
use nvmed_lab::cgroup::ProcessorGroup;
use nvmed_lab::machine::kernel_threads_ns;
use nvmed_lab::samples::Samples;

/// A job: lines for a shell, in which D is the place, D/tree the tree that was copied there, SQL and REPOSITORY
/// files of the host's.
pub(super) struct Job {
    /// Its row, without what is measured of it.
    pub(super) row: &'static str,
    /// What is run before it, outside of the times: it leaves no trace of the round before.
    pub(super) before: &'static str,
    /// What is timed.
    pub(super) line: &'static str,
    /// Whether it writes; then the sync after it is a figure of its own.
    pub(super) writes: bool,
}

const fn job(row: &'static str, before: &'static str, line: &'static str, writes: bool) -> Job {
    Job { row, before, line, writes }
}

/// The jobs, in the order in which a round runs them.
pub(super) const JOBS: [Job; 18] = [
    job("everyday.jobs.cp_r", "rm -rf $D/copy", "cp -r $D/tree $D/copy", true),
    job("everyday.jobs.tar_c", "rm -f $D/tree.tar", "tar cf $D/tree.tar -C $D tree", true),
    job(
        "everyday.jobs.tar_x",
        "[ -e $D/tree.tar ] || tar cf $D/tree.tar -C $D tree; rm -rf $D/out; mkdir $D/out",
        "tar xf $D/tree.tar -C $D/out",
        true,
    ),
    job("everyday.jobs.rm_r", "[ -d $D/copy ] || cp -r $D/tree $D/copy", "rm -r $D/copy", true),
    job("everyday.jobs.sha256sum", "", "find $D/tree -type f -print0 | xargs -0 sha256sum", false),
    // It finds nothing, so that it reads all.
    job("everyday.jobs.grep_r", "", "! grep -r qzqxjkvwq $D/tree", false),
    job("everyday.jobs.find_size", "", "find $D/tree -size +100k", false),
    job("everyday.jobs.ls_lr", "", "ls -lR $D/tree", false),
    job(
        "everyday.jobs.git_clone",
        "rm -rf $D/clone",
        "git clone -q --no-hardlinks $REPOSITORY $D/clone",
        true,
    ),
    job("everyday.jobs.git_status", CLONED, "git -C $D/clone status --porcelain", false),
    job("everyday.jobs.git_log", CLONED, "git -C $D/clone log --stat", false),
    job("everyday.jobs.make", "make -s -C $D/units clean", "make -s -j2 -C $D/units", true),
    job("everyday.jobs.sqlite", "rm -f $D/a.db*", "sqlite3 $D/a.db <$SQL", true),
    job(
        "everyday.jobs.append",
        "rm -f $D/log; L=NqVwYS81VP7Hb1DX8pPd5khxE3pyIgKpaUnArl63XykWZeiNNC; \
         L=${L}iia3anXn9k3ksu9mI4ROnl89Sm995ytbxAk7jqevt0MLaMRTv",
        "i=0; while [ $i -lt 20000 ]; do echo $L >>$D/log; i=$((i + 1)); done",
        true,
    ),
    job("everyday.jobs.cksum", "", "find $D/tree -type f -print0 | xargs -0 cksum", false),
    job("everyday.jobs.sum", "", "find $D/tree -type f -print0 | xargs -0 sum", false),
    job("everyday.jobs.wc", "", "find $D/tree -type f -print0 | xargs -0 wc", false),
    job("everyday.jobs.head", "", "find $D/tree -type f -print0 | xargs -0 head -c1", false),
];
pub(super) const CLONED: &str = "[ -d $D/clone ] || git clone -q --no-hardlinks $REPOSITORY $D/clone";

/// The rows of all jobs in one: it is there when all were measured.
const ALL: &str = "everyday.jobs.all";

/// The rows' names.
pub const NAMES: [&str; JOBS.len() + 1] = {
    let mut names = [ALL; JOBS.len() + 1];
    let mut at = 0;
    while at < JOBS.len() {
        names[at] = JOBS[at].row;
        at += 1;
    }
    names
};

/// Bytes of each zram disk, and of our cache: more than all that the jobs write. The rivals' cache is the machine's
/// memory.
pub(super) const DISK_BYTES: u64 = 4 << 30;
pub(super) const CACHE_BYTES: u64 = 1 << 30;

/// What is measured of a job, its unit being milliseconds: word, goal of a job, goal of the geometric mean.
const MEASURES: [(&str, Goal, f64); 5] = [
    ("wall", Goal::Beside(1.0), 0.7),
    ("cpu", Goal::Ratio(1.1), 0.85),
    ("sync", Goal::Beside(1.0), 0.7),
    ("sync_cpu", Goal::Ratio(1.1), 0.85),
    // Wall time of both: a file system that writes while the job runs has a shorter sync.
    ("synced", Goal::Beside(1.0), 0.7),
];
/// How many of them a job has that writes nothing.
const WITHOUT_SYNC: usize = 2;

/// A place with its shell, its control group, and a job's figures there: of each measure.
struct Side {
    // In the order in which they must end.
    shell: Shell,
    group: ProcessorGroup,
    seat: Seat,
}

impl Side {
    fn new(seat: Seat) -> Result<Self, String> {
        let group = ProcessorGroup::new()?;
        Ok(Self { shell: Shell::start(group.command(&seat.command("sh")?))?, group, seat })
    }

    /// Runs a line: wall and processor time, in milliseconds.
    fn run(&mut self, line: &str) -> Result<[f64; 2], String> {
        let before = (self.group.used_ns()?, kernel_threads_ns());
        let wall = self.shell.run(line).map_err(|error| format!("{}: {error}", self.seat.name()))?;
        let used = (self.group.used_ns()?.saturating_sub(before.0)) as f64;
        // A kernel thread that has ended in between takes its time with it.
        let kernel = kernel_threads_ns().saturating_sub(before.1) as f64;
        Ok([wall * 1e3, (used + kernel) / 1e6])
    }

    /// What it holds in memory, in words.
    fn memory(&self) -> Result<String, String> {
        let bytes = match &self.seat {
            Seat::Ours(..) => memory::of_run(self.shell.pid())?,
            Seat::Kernel(place) => memory::of_files(&place.dir)?,
        };
        Ok(format!("{} {} MiB", self.seat.name(), bytes >> 20))
    }

    /// One round of a job.
    fn round(&mut self, job: &Job) -> Result<Vec<f64>, String> {
        if !job.before.is_empty() {
            self.run(job.before)?;
        }
        self.run("sync -f $D")?;
        let mut figures = self.run(job.line)?.to_vec();
        if job.writes {
            let sync = self.run("sync -f $D")?;
            figures.extend(sync);
            figures.push(figures[0] + sync[0]);
        }
        Ok(figures)
    }
}

/// A job's figures: of each side, of each measure.
type Figures = Vec<Vec<Samples>>;

/// The jobs that were asked for, on ours beside ext4, xfs and btrfs; tmpfs is told beside them.
pub fn measure(wanted: &str) -> Result<Vec<Row>, String> {
    let of_all = wanted.starts_with(ALL);
    let jobs: Vec<&Job> = JOBS.iter().filter(|job| of_all || super::asked(wanted, job.row)).collect();
    let ours = Ours::on_zram(DISK_BYTES, CACHE_BYTES)?;
    let ground = Ground::new(&ours)?;
    let mut sides = vec![Side::new(Seat::Ours(ours, Mount::Shared))?];
    for kind in [KernelFs::Ext4, KernelFs::Xfs, KernelFs::Btrfs, KernelFs::Tmpfs] {
        sides.push(Side::new(Seat::Kernel(crate::mounted::Mounted::sized(kind, DISK_BYTES)?))?);
    }
    for side in &mut sides {
        let dir = side.seat.dir().join("jobs");
        ground.prepare(&mut side.shell, &dir)?;
    }
    let mut figures: Vec<Figures> = Vec::new();
    for job in &jobs {
        let measures = if job.writes { MEASURES.len() } else { WITHOUT_SYNC };
        figures.push(vec![vec![Samples::default(); measures]; sides.len()]);
    }
    for _ in 0..rounds() {
        for (job, figures) in jobs.iter().zip(&mut figures) {
            for (side, samples) in sides.iter_mut().zip(figures) {
                for (samples, figure) in samples.iter_mut().zip(side.round(job)?) {
                    samples.push(figure);
                }
            }
        }
    }
    let names: Vec<String> = sides.iter().map(|side| side.seat.name()).collect();
    let held: Result<Vec<String>, String> = sides.iter().map(Side::memory).collect();
    let ground = format!(
        "D/tree is {}; memory after all jobs measured with it (ours: Pss of holder and server, with cache, windows and \
         shelves; the others: their files' pages in the page cache, without inodes, names and the file system's own): \
         {}",
        ground.told(),
        held?.join(", ")
    );
    let mut rows = Vec::new();
    for (job, figures) in jobs.iter().zip(&figures) {
        rows.extend(rows_of(job, figures, &names, &ground));
    }
    if jobs.len() == JOBS.len() {
        let means = means(&rows);
        rows.extend(means);
    }
    Ok(rows)
}

/// The rows of a job.
fn rows_of(job: &Job, figures: &Figures, names: &[String], ground: &str) -> Vec<Row> {
    let measures = MEASURES.iter().enumerate().take(figures[0].len());
    let row = |(at, (word, goal, _)): (usize, &(&str, Goal, f64))| {
        let contender =
            |side: usize| Contender { name: names[side].clone(), samples: figures[side][at].clone() };
        let all: Vec<Contender> = (0..names.len()).map(contender).collect();
        // tmpfs, the last, keeps nothing and is not among the rivals.
        let rival = better(&all[1..all.len() - 1]);
        let others: Vec<String> = all.iter().map(|one| told(&one.name, &one.samples)).collect();
        let what = match *word {
            "sync" | "sync_cpu" => "sync after ",
            "synced" => "with the sync after it, ",
            _ => "",
        };
        Row {
            name: format!("{}.{word}", job.row),
            unit: "ms",
            ours: all[0].clone(),
            rival,
            goal: *goal,
            flushes_per_op: None,
            conditions: format!(
                "{what}`{}` in one session each, warm; {ground}; {}; {} rounds",
                job.line,
                others.join(", "),
                rounds()
            ),
        }
    };
    measures.map(row).collect()
}

/// The row of a job that only reads: wall time of each side, ours first, beside the best of the others.
pub(super) fn read_row(name: String, names: &[String], figures: &[Samples], conditions: &str) -> Row {
    let all = names.iter().zip(figures);
    let all: Vec<Contender> =
        all.map(|(name, samples)| Contender { name: name.clone(), samples: samples.clone() }).collect();
    let others: Vec<String> = all.iter().map(|one| told(&one.name, &one.samples)).collect();
    Row {
        name,
        unit: "ms",
        ours: all[0].clone(),
        rival: better(&all[1..]),
        goal: Goal::Beside(1.0),
        flushes_per_op: None,
        conditions: format!("{conditions}; {}; {} rounds", others.join(", "), rounds()),
    }
}

/// The geometric means over all jobs, of each measure: ours and, of each job, its best rival's.
fn means(rows: &[Row]) -> Vec<Row> {
    let mean = |(word, _, most): &(&str, Goal, f64)| {
        let suffix = format!(".{word}");
        let of: Vec<&Row> = rows.iter().filter(|row| row.name.ends_with(&suffix)).collect();
        let rivals: Vec<&Samples> = of.iter().filter_map(|row| Some(&row.rival.as_ref()?.samples)).collect();
        Row {
            name: format!("{ALL}.{word}"),
            unit: "ms",
            ours: Contender {
                name: "ours, shared mount".to_owned(),
                samples: geometric(&of.iter().map(|row| &row.ours.samples).collect::<Vec<_>>()),
            },
            rival: Some(Contender { name: "best of each job".to_owned(), samples: geometric(&rivals) }),
            goal: Goal::Ratio(*most),
            flushes_per_op: None,
            conditions: format!("geometric mean of the {} rows {}*{suffix}", of.len(), "everyday.jobs."),
        }
    };
    MEASURES.iter().map(mean).collect()
}

/// Round by round, the geometric mean of several jobs' figures.
fn geometric(jobs: &[&Samples]) -> Samples {
    let rounds = jobs.iter().map(|samples| samples.len()).min().unwrap_or(0);
    let mean = |round: usize| {
        let logarithms: f64 = jobs.iter().map(|samples| samples.figures()[round].ln()).sum();
        (logarithms / jobs.len() as f64).exp()
    };
    (0..rounds).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_geometric_mean_is_taken_round_by_round() {
        let (a, b): (Samples, Samples) = ([1.0, 4.0].into_iter().collect(), [4.0, 9.0].into_iter().collect());
        let means = geometric(&[&a, &b]);
        let near = |at: usize, want: f64| (means.figures()[at] - want).abs() < 1e-9;
        assert!(means.len() == 2 && near(0, 2.0) && near(1, 6.0), "{means:?}");
    }
}
