//! An unmodified document store under YCSB's workload A: FMS'17, "MongoDB Results".

use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::medium::{Mounted, Zram, formatted};
use crate::samples::Samples;
use crate::ycsb::{Done, Workload};
use nvmed_tally::{TALLY_VARIABLE, Tally};
use rustix::fd::{AsRawFd, OwnedFd};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Throughput on the shared mount, on the kernel's file systems, and what an instant file system would give.
pub(crate) struct MongoDb;

/// The server's program, and the variable that names the directory in which `tools/need-mongodb` has put it.
const PROGRAM: &str = "secantusd-py";
const HOME: &str = "NVMED_MONGODB";
/// The disk of one round: records, the store's log and its checkpoints.
const DISK_BYTES: u64 = 2 << 30;
/// The store's own cache: less than the records, so that reads reach the file system too.
const STORE_CACHE: &str = "16M";
/// Our block cache, and as much again for windows.
const CACHE: &str = "256M";
/// How long the server may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

fn workload(effort: &Effort, seed: u64) -> Workload {
    // YCSB's default is one thread.
    match effort.quick {
        true => Workload { records: 3_000, operations: 1_000, threads: 1, seed },
        false => Workload { records: 20_000, operations: 6_000, threads: 1, seed },
    }
}

fn rounds(effort: &Effort) -> usize {
    if effort.quick { 1 } else { 3 }
}

/// Who keeps the store's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    /// Our file system, shared.
    Ours,
    /// A file system of the kernel's, as it is.
    Kernel(&'static str),
    /// The same, with its file calls timed.
    Timed(&'static str),
}

/// What one run says.
#[derive(Clone, Copy, Debug)]
struct Run {
    done: Done,
    /// Nanoseconds in file calls while the operations ran, where they were timed.
    calls_ns: Option<u64>,
}

impl Run {
    fn rate(&self) -> f64 {
        self.done.operations as f64 / self.done.seconds
    }

    /// Share of the time that was spent in file calls.
    fn share(&self) -> f64 {
        self.calls_ns.map_or(f64::NAN, |ns| ns as f64 / 1e9 / self.done.seconds)
    }
}

/// A server that runs; ended when dropped.
struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    /// Starts `command`, which listens at `at`, and waits until it does.
    fn start(mut command: Command, at: SocketAddr) -> Result<Self, LabError> {
        let shown = format!("{command:?}");
        let log = std::env::temp_dir().join(format!("nvmed-lab-{}-server.log", std::process::id()));
        let file = std::fs::File::create(&log).map_err(|error| LabError::program(log.display(), &error))?;
        let copy = file.try_clone().map_err(|error| LabError::program(log.display(), &error))?;
        command.stdin(Stdio::null()).stdout(copy).stderr(file);
        let child = command.spawn().map_err(|error| LabError::program(&shown, &error))?;
        let mut server = Self { child, at };
        let begin = Instant::now();
        while TcpStream::connect(at).is_err() {
            let ended = server.child.try_wait().ok().flatten();
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = said.lines().rev().take(5).collect();
                let reason = format!("it does not listen at {at}: {ended:?}: {}", last.join(" / "));
                return Err(LabError::Program { shown, reason });
            }
            std::thread::sleep(PAUSE);
        }
        let _ = std::fs::remove_file(&log);
        Ok(server)
    }

    /// Asks it to end, and waits until it has.
    fn end(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let begin = Instant::now();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        while begin.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(PAUSE);
        }
        // Of one that has ended, both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The server's program.
fn program() -> Result<PathBuf, LabError> {
    let named = std::env::var_os(HOME).map(|home| PathBuf::from(home).join("bin").join(PROGRAM));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)).chain(named).find(|path| path.exists());
    found.ok_or_else(|| {
        LabError::missing(format!(
            "no {PROGRAM}: tools/need-mongodb DIR installs it, then {HOME}=DIR names it"
        ))
    })
}

/// This very program, which can run others on our file system.
fn command() -> Result<PathBuf, LabError> {
    std::env::current_exe().map_err(|error| LabError::program("this program", &error))
}

/// A port that nobody listens at now.
fn port() -> Result<SocketAddr, LabError> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map_err(|error| LabError::program("a port", &error))
}

/// The server's own words.
fn server_words(program: &Path, store: &Path, at: SocketAddr) -> Vec<OsString> {
    let port = at.port().to_string();
    let words =
        ["--standalone", "--sync-on-commit", "--log-level", "ERROR", "--host", "127.0.0.1", "--port", &port];
    let cache = ["--cache-size", STORE_CACHE, "--storage-path"];
    let mut all = vec![program.into()];
    all.extend(words.iter().chain(&cache).map(OsString::from));
    all.push(store.into());
    all
}

/// One keeper on a fresh disk; nobody else's is there meanwhile.
fn round(keeper: Keeper, load: &Workload) -> Result<Run, LabError> {
    let zram = Zram::new(DISK_BYTES)?;
    match keeper {
        Keeper::Ours => ours(&zram, load),
        Keeper::Kernel(name) | Keeper::Timed(name) => {
            let mounted = Mounted::made(&zram, name)?;
            kernel(mounted.dir(), keeper != Keeper::Kernel(name), load)
        }
    }
}

fn ours(zram: &Zram, load: &Workload) -> Result<Run, LabError> {
    let spec = formatted(zram)?;
    let dir = std::env::temp_dir().join(format!("nvmed-lab-{}-mongodb", std::process::id()));
    let at = port()?;
    let mut run = Command::new(command()?);
    run.args(["run", "--shared", "--cache", CACHE, "--device", &spec.to_string(), "--dir"])
        .arg(&dir)
        .arg("--");
    run.args(server_words(&program()?, &dir.join("db"), at));
    let mut server = Server::start(run, at)?;
    load.load(server.at)?;
    let done = load.run(server.at)?;
    server.end();
    Ok(Run { done, calls_ns: None })
}

fn kernel(dir: &Path, timed: bool, load: &Workload) -> Result<Run, LabError> {
    let at = port()?;
    let words = server_words(&program()?, &dir.join("db"), at);
    let watched = timed.then(|| Tally::create(false)).transpose();
    let watched = watched.map_err(|errno| LabError::host("memory for counts", errno))?;
    let mut run = match &watched {
        None => Command::new(&words[0]),
        Some((_, fd)) => {
            let mut run = Command::new(command()?);
            run.args(["run", "--filesystem", "host", "--dir"]).arg(dir).arg("--").arg(&words[0]);
            run.env(TALLY_VARIABLE, named(fd));
            run
        }
    };
    run.args(&words[1..]);
    let mut server = Server::start(run, at)?;
    load.load(server.at)?;
    let calls_ns =
        || watched.as_ref().map(|(tally, _)| tally.rows().iter().map(|row| row.sum.ns).sum::<u64>());
    let before = calls_ns();
    let done = load.run(server.at)?;
    let calls_ns = calls_ns().zip(before).map(|(after, before)| after - before);
    server.end();
    Ok(Run { done, calls_ns })
}

/// How another process names a descriptor of this one.
fn named(fd: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}

/// How much of what an instant file system would gain over ext4 is reached.
fn reached(ours: f64, ext4: f64, share: f64) -> f64 {
    let ideal = ext4 / (1.0 - share);
    (ours - ext4) / (ideal - ext4)
}

impl Experiment for MongoDb {
    fn id(&self) -> &'static str {
        "fms17.mongodb"
    }

    fn what(&self) -> &'static str {
        "YCSB A on an unmodified MongoDB-compatible server: how much of what an instant file system would gain over \
         ext4 is gained"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(0.7)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        program()?;
        let keepers = [Keeper::Ours, Keeper::Kernel("ext4"), Keeper::Kernel("xfs"), Keeper::Timed("ext4")];
        let mut runs: [Vec<Run>; 4] = Default::default();
        for seed in 0..rounds(effort) as u64 {
            for (&keeper, runs) in keepers.iter().zip(&mut runs) {
                runs.push(round(keeper, &workload(effort, seed))?);
            }
        }
        Ok(finding(effort, &runs))
    }
}

fn finding(effort: &Effort, [ours, ext4, xfs, timed]: &[Vec<Run>; 4]) -> Finding {
    let rates = |runs: &[Run]| runs.iter().map(Run::rate).collect::<Samples>();
    let shares: Samples = timed.iter().map(Run::share).collect();
    let share = shares.median();
    let parts = ours.iter().zip(ext4).zip(timed);
    let parts: Samples =
        parts.map(|((ours, ext4), timed)| reached(ours.rate(), ext4.rate(), timed.share())).collect();
    let whole: Samples = parts.figures().iter().map(|_| 1.0).collect();
    let measured = |name: &str, runs: Samples| Measured { name: name.to_owned(), runs };
    let gain = Series {
        label: "share of the possible gain".to_owned(),
        unit: "of 1".to_owned(),
        ours: measured("nvmed, shared, on zram", parts),
        rivals: vec![measured("an instant file system", whole)],
    };
    let rate = Series {
        label: "YCSB A".to_owned(),
        unit: "operations/s".to_owned(),
        ours: measured("nvmed, shared, on zram", rates(ours)),
        rivals: vec![measured("ext4 on zram", rates(ext4)), measured("xfs on zram", rates(xfs))],
    };
    let load = workload(effort, 0);
    let (mine, theirs) = (rates(ours).median(), rates(ext4).median());
    let method = format!(
        "{PROGRAM} (WiredTiger behind MongoDB's protocol, --sync-on-commit, --cache-size {STORE_CACHE}), {} records of \
         1 KB in ten fields, {} operations, half reads and half updates of one field, keys by Zipf's law (0.99, \
         scrambled), one thread, a driver of our own over one connection; each on a fresh zram disk of {} MiB, in \
         turns, {} rounds; ours: `nvmed run --shared --cache {CACHE}` on the disk by io_uring. On ext4 {:.1} % of the \
         time passed in file calls (a run of its own, {:.0} operations/s, by the wrapper with filesystem = host), so \
         an instant file system would give {:.0} operations/s. Ours over ext4: {:+.1} %; the paper's: +10.8 %",
        load.records,
        load.operations,
        DISK_BYTES >> 20,
        rounds(effort),
        100.0 * share,
        rates(timed).median(),
        theirs / (1.0 - share),
        100.0 * (mine / theirs - 1.0),
    );
    let limits = vec![
        "the paper: 10 million records and operations, MongoDB itself, an NVMe SSD".to_owned(),
        "the server is written in Python over WiredTiger: most of an operation is neither the store's nor the file \
         system's".to_owned(),
        "file calls of the store's own threads count too, though no operation waits for them: the possible gain is \
         overstated"
            .to_owned(),
    ];
    Finding { cells: Vec::new(), series: vec![gain, rate], method, limits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_possible_gain_is_the_time_in_file_calls() {
        // Half of ext4's time is file calls: twice its rate is all, one and a half times is half of it.
        assert!((reached(200.0, 100.0, 0.5) - 1.0).abs() < 1e-9);
        assert!((reached(150.0, 100.0, 0.5) - 0.5).abs() < 1e-9);
        assert!(reached(90.0, 100.0, 0.5) < 0.0, "slower than ext4 is no gain");
    }
}
