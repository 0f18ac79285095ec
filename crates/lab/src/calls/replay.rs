//! A trace of file calls that is made again.

use super::hands::{Aligned, Files, Hands, PIECE_BYTES};
use super::order::Order;
use super::pace::{CallPacing, Clock, Lateness, bound_ns};
use super::plan::{Plan, Planned, Step};
use crate::error::LabError;
use nvmed_trace::{CallOptions, CallSource, Counts, FileCall, MalformedLine, TraceError};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Threads of a replay: of more that were recorded, some share one.
const THREADS_MAX: u32 = 64;
/// Largest file that is made before: one that was read beyond is shorter, and the reads there end early.
const BEFORE_BYTES_MAX: u64 = 16 << 30;
/// Calls that ended otherwise than in the recording and are told.
const DIFFERENCES_TOLD: usize = 10;

/// How calls are made again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// When.
    pub pacing: CallPacing,
    /// So many times as fast as they were recorded.
    pub speed: f64,
    /// Calls under way at most; none is as many threads as were recorded, up to 64.
    pub threads: Option<u32>,
    /// How late 99 of 100 calls may be, nanoseconds; none is the median time between calls, and at least 1 ms.
    pub late_ns: Option<u64>,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { pacing: CallPacing::Closed, speed: 1.0, threads: None, late_ns: None }
    }
}

/// The calls of a trace, and the files that they need.
#[derive(Debug)]
pub struct Replay {
    plan: Plan,
    /// Whether the trace says what calls answered, so that it can be compared.
    tells_answers: bool,
    counts: Counts,
    malformed: Vec<MalformedLine>,
}

/// A call that ended otherwise than in the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its line in the trace.
    pub line: u32,
    /// What it did.
    pub step: String,
    /// What differs.
    pub what: String,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Calls made.
    pub calls: u64,
    /// Of those, how many failed: most ask for what is not there.
    pub failed: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Calls that ended otherwise than in the recording, where that says how they ended.
    pub differing: u64,
    /// The first ten of them.
    pub differences: Vec<Difference>,
    /// How late calls were, where they have times.
    pub lateness: Lateness,
}

impl std::ops::AddAssign for Replayed {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.differing += other.differing;
        self.differences.extend(other.differences);
        self.differences.truncate(DIFFERENCES_TOLD);
        self.lateness.histogram.add(&other.lateness.histogram);
        self.lateness.beyond += other.lateness.beyond;
        self.lateness.bound_ns = self.lateness.bound_ns.max(other.lateness.bound_ns);
    }
}

impl Replay {
    /// Reads a trace.
    ///
    /// # Errors
    /// It cannot be read, too many of its lines are malformed, or there is no call in it.
    pub fn load(path: &Path, options: &CallOptions) -> Result<Self, TraceError> {
        let mut source = CallSource::open(path, options)?;
        let mut calls: Vec<(u64, FileCall)> = Vec::new();
        while let Some(call) = source.next()? {
            calls.push(call);
        }
        if calls.is_empty() {
            return Err(source.nothing());
        }
        let mut plan = Plan::of(calls, source.format());
        for (kind, count) in source.passed() {
            *plan.passed.entry(kind.clone()).or_insert(0) += count;
        }
        let tells_answers = source.format().tells_answers();
        let (counts, malformed) = (source.counts(), source.malformed().to_vec());
        Ok(Self { plan, tells_answers, counts, malformed })
    }

    /// Calls that are made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.plan.calls.iter().filter(|call| call.line != 0).count() as u64
    }

    /// Lines of the trace, and those that are malformed.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The first ten malformed lines.
    #[must_use]
    pub fn malformed(&self) -> &[MalformedLine] {
        &self.malformed
    }

    /// Calls that are not made, by what they are: they change nothing of a file system, or the trace does not tell
    /// enough of them.
    #[must_use]
    pub fn passed(&self) -> &BTreeMap<String, u64> {
        &self.plan.passed
    }

    /// The directories of `times` repetitions below `dir`.
    pub fn repetitions(dir: &Path, times: u32) -> impl Iterator<Item = PathBuf> {
        (0..times).map(move |number| dir.join(number.to_string()))
    }

    /// Makes what was there before the recording, below `dir`.
    ///
    /// # Errors
    /// The host's, or the file system's.
    pub fn prepare(&self, dir: &Path) -> Result<(), LabError> {
        let wrong = |path: &Path, error: io::Error| LabError::program(path.display(), &error);
        let make =
            |path: &Path| DirBuilder::new().recursive(true).create(path).map_err(|error| wrong(path, error));
        make(dir)?;
        let noise = Aligned::noise(PIECE_BYTES, 1);
        // A directory comes before what is in it.
        for (number, (path, bytes)) in self.plan.before.iter().enumerate() {
            let path = dir.join(std::ffi::OsStr::from_bytes(path));
            match bytes {
                None => make(&path)?,
                Some(bytes) => {
                    path.parent().map_or(Ok(()), make)?;
                    filled(&path, (*bytes).min(BEFORE_BYTES_MAX), noise.whole(), number)
                        .map_err(|error| wrong(&path, error))?;
                }
            }
        }
        Ok(())
    }

    /// Makes the calls, below `dir`. By the standard library and libc, so that a wrapper sees them.
    ///
    /// # Errors
    /// There is no such directory, or no thread.
    pub fn run(&self, dir: &Path, options: &ReplayOptions) -> Result<Replayed, LabError> {
        if !dir.is_dir() {
            let dir = dir.display();
            return Err(LabError::missing(format!(
                "{dir} is no directory; --prepare makes it, with what was there before"
            )));
        }
        let threads =
            options.threads.unwrap_or(THREADS_MAX).clamp(1, THREADS_MAX).min(self.plan.threads.max(1));
        let bound_ns = options.late_ns.unwrap_or_else(|| bound_ns(&self.plan.calls, options.speed));
        let names = &self.plan.names;
        let paths: Vec<PathBuf> =
            names.iter().map(|name| dir.join(std::ffi::OsStr::from_bytes(name))).collect();
        let data = Aligned::noise(
            self.largest(|step| match step {
                Step::Write { bytes, .. } | Step::Copy { bytes, .. } => *bytes,
                _ => 0,
            }) * 2,
            1,
        );
        let run = Run {
            replay: self,
            paths,
            files: Files::new(self.plan.slots),
            data,
            into_bytes: self.largest(|step| match step {
                Step::Read { asked, .. } => *asked,
                Step::Copy { bytes, .. } => *bytes,
                _ => 0,
            }),
            // One thread alone has its own order.
            order: (threads > 1 || options.pacing == CallPacing::Dependent)
                .then(|| Order::of(&self.plan.calls)),
            pacing: options.pacing,
            clock: Clock::begin(options.speed, bound_ns),
        };
        let done = Mutex::new(Replayed::default());
        let add = |replayed| *done.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += replayed;
        if threads == 1 {
            add(run.work(0..self.plan.calls.len()));
        } else {
            let mut shares: Vec<Vec<usize>> = vec![Vec::new(); threads as usize];
            for (index, call) in self.plan.calls.iter().enumerate() {
                shares[(call.thread % threads) as usize].push(index);
            }
            std::thread::scope(|scope| {
                shares.into_iter().for_each(|share| {
                    scope.spawn(|| add(run.work(share.into_iter())));
                });
            });
        }
        let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        done.differences.sort_by_key(|difference| difference.line);
        done.lateness = run.clock.lateness();
        Ok(done)
    }

    /// The largest of something, as far as one piece goes.
    fn largest(&self, of: impl Fn(&Step) -> u64) -> usize {
        let largest = self.plan.calls.iter().map(|call| of(&call.step)).max().unwrap_or(0);
        usize::try_from(largest).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)
    }
}

/// A file of so many bytes that do not compress.
fn filled(path: &Path, bytes: u64, noise: &[u8], number: usize) -> io::Result<()> {
    let file: File = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    // Another place of the noise in each file, and another phase in each piece.
    let from = number % ALIKE;
    let (mut written, piece) = (0, noise.len() - ALIKE);
    while written < bytes {
        let most = usize::try_from(bytes - written).unwrap_or(usize::MAX).min(piece);
        let done = file.write_at(&noise[from..][..most], written)?;
        if done == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        written += done as u64;
    }
    Ok(())
}

/// Places in the noise at which files begin.
const ALIKE: usize = 4093;

/// A replay that is under way.
struct Run<'a> {
    replay: &'a Replay,
    paths: Vec<PathBuf>,
    files: Files,
    data: Aligned,
    into_bytes: usize,
    order: Option<Order>,
    pacing: CallPacing,
    clock: Clock,
}

impl Run<'_> {
    /// Makes one thread's calls.
    fn work(&self, calls: impl Iterator<Item = usize>) -> Replayed {
        let plan = &self.replay.plan;
        let mut hands = Hands {
            paths: &self.paths,
            names: &plan.names,
            files: &self.files,
            data: &self.data,
            into: Aligned::new(self.into_bytes),
        };
        let mut done = Replayed::default();
        for index in calls {
            let call = &plan.calls[index];
            self.wait(index, call);
            let moved = hands.step(call.step, index);
            if let Some(order) = &self.order {
                order.done(index, self.clock.now_ns());
            }
            if call.line == 0 {
                continue;
            }
            done.calls += 1;
            if self.replay.tells_answers
                && let Some(what) = difference(call, &moved)
            {
                done.differing += 1;
                if done.differences.len() < DIFFERENCES_TOLD {
                    done.differences.push(Difference { line: call.line, step: self.shown(call.step), what });
                }
            }
            match moved {
                Ok(moved) => {
                    done.read_bytes += moved.read;
                    done.written_bytes += moved.written;
                }
                Err(_) => done.failed += 1,
            }
        }
        done
    }

    fn wait(&self, index: usize, call: &Planned) {
        let may_ns = self.order.as_ref().map_or(0, |order| order.wait(index));
        let zero_ns = self.replay.plan.calls[0].begin_ns;
        match (self.pacing, &self.order) {
            (CallPacing::Open, _) => self.clock.wait_until(self.clock.scaled(call.begin_ns - zero_ns)),
            (CallPacing::Dependent, Some(order)) => {
                let think_ns = order.think_ns(index, call.begin_ns, zero_ns);
                self.clock.wait_until(may_ns + self.clock.scaled(think_ns));
            }
            _ => {}
        }
    }

    /// A step, for people.
    fn shown(&self, step: Step) -> String {
        let text = format!("{step:?}");
        let name = match step {
            Step::Open { name, .. } | Step::Resize { name, .. } => name,
            Step::Look(name) | Step::Unlink(name) | Step::RemoveDirectory(name) | Step::Touch(name) => name,
            Step::MakeDirectory(name, _) | Step::MakeFile(name, _) | Step::SetMode(name, _) => name,
            Step::Rename(name, ..) | Step::Link(name, _) | Step::Symlink(name, _) => name,
            _ => return text.split(['(', ' ']).next().unwrap_or_default().to_owned(),
        };
        let what = text.split(['(', ' ']).next().unwrap_or_default();
        format!("{what} {}", self.paths[name as usize].display())
    }
}

/// How a call ended otherwise than in the recording, if it did.
fn difference(call: &Planned, moved: &io::Result<super::hands::Moved>) -> Option<String> {
    let moved = match (moved, call.errno) {
        (Err(error), 0) => return Some(format!("it failed here, and had not: {error}")),
        // Why it fails there is the file system's; that a name is not there is the trace's.
        (Ok(_), libc::ENOENT) => return Some("what it found here was not there in the recording".to_owned()),
        (_, errno) if errno != 0 => return None,
        (Err(_), _) => return None,
        (Ok(moved), _) => moved,
    };
    let (here, there, did) = match call.step {
        Step::Read { done, .. } => (moved.read, done, "read"),
        Step::Write { bytes, .. } | Step::Copy { bytes, .. } => (moved.written, bytes, "written"),
        _ => return None,
    };
    (here != there).then(|| format!("{here} bytes were {did} here, {there} in the recording"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
2 40 fsync 7 0
1 0 open \"/data/app/a.db\" O_RDWR|O_CREAT|O_LARGEFILE 7
1 10 pwrite 7 4096 100
1 20 pread 7 0 4096
1 30 open data/data O_RDWR|O_CREAT|O_EXCL|O_LARGEFILE 8
1 31 write 8 10
1 32 close 8 0
1 33 open data/data O_RDWR|O_CREAT|O_EXCL|O_LARGEFILE 8
1 50 access \"/data/app/a.db-wal\" -1
1 51 stat64 \"/data/app/old\" 0
1 52 unlink \"/data/app/old\" 0
1 53 open \"/data/app\" O_RDONLY|O_LARGEFILE 9
1 54 fsync 9 0
1 55 read 12 5
1 55 read 12 -1
1 56 open \"/data/app/only\" O_RDONLY|O_EXCL|O_CREAT -1
1 60 futex 1 2
";

    #[test]
    fn what_was_there_is_made_and_every_call_does_what_it_did() {
        let dir = std::env::temp_dir().join(format!("nvmed-lab-replay-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("trace"), TRACE).unwrap();
        let replay = Replay::load(&dir.join("trace"), &CallOptions::default()).unwrap();
        assert_eq!(replay.calls(), 15, "{replay:?}");
        assert_eq!(replay.passed().keys().map(String::as_str).collect::<Vec<_>>(), ["futex", "read"]);
        replay.prepare(&dir).unwrap();
        assert!(dir.join("data/app/old").exists() && !dir.join("data/app/a.db").exists());
        let done = replay.run(&dir, &ReplayOptions::default()).unwrap();
        let (size, old) =
            (std::fs::metadata(dir.join("data/app/a.db")).unwrap().len(), dir.join("data/app/old"));
        let gone = !old.exists();
        std::fs::remove_dir_all(&dir).unwrap();
        // The two that failed there fail here: access of the log, and open of `only`.
        assert_eq!((done.calls, done.failed, done.read_bytes, done.written_bytes), (15, 2, 4096 + 5, 110));
        assert_eq!((size, gone), (4196, true));
    }

    /// A trace of `nvmed run --record` below `/s`, read.
    fn recorded(name: &str, lines: &str) -> (PathBuf, Replay) {
        let dir = std::env::temp_dir().join(format!("nvmed-lab-calls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let head = "# nvmed calls 2: x\n# below \"/s\"\n";
        std::fs::write(dir.join("trace"), head.to_owned() + lines).unwrap();
        let replay = Replay::load(&dir.join("trace"), &CallOptions::default()).unwrap();
        replay.prepare(&dir).unwrap();
        (dir, replay)
    }

    #[test]
    fn threads_do_what_they_did_after_what_had_ended_by_then() {
        // Two threads hand one file to and fro: each call needs what the other one did before it.
        let mut lines = String::new();
        for round in 0..300u64 {
            let (at, one, two, file) = (round * 100, 1 + round % 2, 2 - round % 2, round + 1);
            lines += &format!(
                "{at}\t1\t{one}\topen\t#{file}\t\"/s/f\"\t-\t-\t3\t5\t0xc1\t0o600\t-\t-\n\
                 {}\t1\t{two}\twrite\t#{file}\t-\t0\t5\t5\t5\t-\t-\t-\t-\n\
                 {}\t1\t{one}\tclose\t#{file}\t-\t-\t-\t0\t5\t-\t-\t-\t-\n\
                 {}\t1\t{two}\tunlink\t-\t\"/s/f\"\t-\t-\t0\t5\t-\t-\t-\t-\n",
                at + 10,
                at + 20,
                at + 30,
            );
        }
        let (dir, replay) = recorded("threads", &lines);
        let closed = ReplayOptions::default();
        let dependent = ReplayOptions { pacing: CallPacing::Dependent, ..closed };
        let done = [closed, dependent].map(|options| replay.run(&dir, &options).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
        for done in done {
            assert_eq!(
                (done.calls, done.failed, done.written_bytes),
                (1200, 0, 1500),
                "{:?}",
                done.differences
            );
        }
    }

    #[test]
    fn what_ends_otherwise_is_told_with_its_line() {
        let line = |number: u32, call: &str| format!("{number}0\t1\t1\t{call}\n");
        let lines = line(1, "open\t#1\t\"/s/f\"\t-\t-\t3\t5\t0x42\t0o600\t-\t-")
            + &line(2, "write\t#1\t-\t0\t9\t9\t5\t-\t-\t-\t-")
            + &line(3, "read\t#1\t-\t4\t99\t5\t5\t-\t-\t-\t-")
            + &line(4, "truncate\t#1\t-\t-\t6\t0\t5\t-\t-\t-\t-")
            // As if another process had written.
            + &line(5, "read\t#1\t-\t4\t99\t5\t5\t-\t-\t-\t-")
            + &line(6, "stat\t-\t\"/s/f\"\t-\t-\t-2\t5\t-\t-\t-\t-");
        let (dir, replay) = recorded("otherwise", &lines);
        let done = replay.run(&dir, &ReplayOptions { pacing: CallPacing::Open, ..ReplayOptions::default() });
        std::fs::remove_dir_all(&dir).unwrap();
        let done = done.unwrap();
        let told: Vec<_> = done.differences.iter().map(|one| (one.line, one.what.as_str())).collect();
        assert_eq!(
            told,
            [
                (7, "2 bytes were read here, 5 in the recording"),
                (8, "what it found here was not there in the recording")
            ]
        );
        assert_eq!((done.differing, done.lateness.histogram.count()), (2, 7), "six calls, and a close");
    }
}
