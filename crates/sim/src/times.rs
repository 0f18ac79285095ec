//! Which times an inode may show after a cut: those that were durable last, or any that it had since.

use crate::model::{Model, ROOT, Shape};
use crate::operation::{Done, Op, Step};
use nvmed_fs::{Credentials, FileSystem, Follow, Stat};
use std::collections::{BTreeMap, BTreeSet};

/// Times of access, of change of data, of change of the inode, in nanoseconds.
pub type Times = [i64; 3];

const NAMES: [&str; 3] = ["atime", "mtime", "ctime"];

/// The times of a status.
#[must_use]
pub fn of(stat: &Stat) -> Times {
    [stat.atime_ns, stat.mtime_ns, stat.ctime_ns]
}

/// The times of inodes after an operation, and what the clock showed before and after it.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    /// By inode; those that the operation cannot have changed need not be among them.
    pub times: Vec<(u64, Times)>,
    /// While the operation ran, the clock showed these times.
    pub clock: (i64, i64),
}

impl Touched {
    /// Looks at what an operation may have changed. The model has begun it.
    #[must_use]
    pub fn by(step: &Step, model: &Model, files: &FileSystem, clock: (i64, i64)) -> Self {
        let shape = model.shape();
        let all = step.done == Done::Failed || matches!(step.op, Op::Sync | Op::Age);
        let wanted: BTreeSet<u64> = match all {
            true => shape.inodes.keys().copied().collect(),
            false => concerned(step, model),
        };
        Self { times: look(&wanted, shape, files), clock }
    }

    /// Looks at everything that has a name.
    #[must_use]
    pub fn all(shape: &Shape, files: &FileSystem, clock: (i64, i64)) -> Self {
        Self { times: look(&shape.inodes.keys().copied().collect(), shape, files), clock }
    }
}

/// The inodes that an operation names, before it and after it, and the directories above them.
fn concerned(step: &Step, model: &Model) -> BTreeSet<u64> {
    let mut wanted = BTreeSet::from([step.ino, step.made]);
    let other = match &step.op {
        Op::Rename { to, .. } | Op::Link { to, .. } => Some(to.as_str()),
        _ => None,
    };
    let moments = model.moments();
    for shape in &moments[moments.len().saturating_sub(2)..] {
        for path in [step.op.path(), other].into_iter().flatten() {
            wanted.extend(shape.names.get(path));
            let above = path.rsplit_once('/').map(|(above, _)| above);
            wanted.extend(above.map_or(Some(&ROOT), |above| shape.names.get(above)));
        }
    }
    wanted
}

fn look(wanted: &BTreeSet<u64>, shape: &Shape, files: &FileSystem) -> Vec<(u64, Times)> {
    let mut paths: BTreeMap<u64, &str> = BTreeMap::from([(ROOT, ".")]);
    paths.extend(shape.names.iter().map(|(path, ino)| (*ino, path.as_str())));
    let stat = |path: &str| files.stat(&files.root(), path.as_bytes(), Follow::No, &Credentials::ROOT).ok();
    let found = wanted.iter().filter_map(|ino| Some((*ino, of(&stat(paths.get(ino)?)?))));
    found.collect()
}

/// What the times of one inode may be.
#[derive(Clone, Debug, Default)]
struct May {
    /// As they were after operations since they were durable last; the last ones are now.
    seen: Vec<Times>,
    /// Operations that changed them since then: a record may hold any time at which one ran.
    during: Vec<(i64, i64)>,
    /// Reads beside any operation, which change the time of access only.
    read: Vec<(i64, i64)>,
}

impl May {
    fn has(&self, at: usize, time: i64) -> bool {
        self.seen.iter().any(|seen| seen[at] == time)
            || self.during.iter().any(|(from, to)| (*from..=*to).contains(&time))
            || at == 0 && self.read.iter().any(|(from, to)| (*from..=*to).contains(&time))
    }

    fn durable(&mut self) {
        self.seen.drain(..self.seen.len().saturating_sub(1));
        self.during.clear();
        self.read.clear();
    }
}

/// What the times of all inodes may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clockwork {
    may: BTreeMap<u64, May>,
    /// Nothing is known of times any more.
    lost: bool,
}

impl Clockwork {
    /// Whether anything is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.lost
    }

    /// Nothing is known from now on.
    pub fn lose(&mut self) {
        (self.lost, self.may) = (true, BTreeMap::new());
    }

    /// An operation may have changed times.
    pub(crate) fn widen(&mut self, touched: &Touched) {
        if self.lost {
            return;
        }
        for (ino, times) in &touched.times {
            let may = self.may.entry(*ino).or_default();
            if may.seen.last() != Some(times) {
                may.seen.push(*times);
                may.during.push(touched.clock);
            }
        }
    }

    /// The times that an inode has now stay, whatever happens.
    pub fn durable(&mut self, ino: u64) {
        if let Some(may) = self.may.get_mut(&ino) {
            may.durable();
        }
    }

    /// Those of all inodes do.
    pub(crate) fn all_durable(&mut self) {
        self.may.values_mut().for_each(May::durable);
    }

    /// Whoever salvages a file that was changed stamps it with the time of the salvage.
    pub(crate) fn may_be_salvaged(&mut self, now: (i64, i64)) {
        self.may.values_mut().filter(|may| may.seen.len() > 1).for_each(|may| may.during.push(now));
    }

    /// An inode may have been read beside any operation.
    pub(crate) fn may_be_read(&mut self, ino: u64, clock: (i64, i64)) {
        if let Some(may) = self.may.get_mut(&ino) {
            may.read.push(clock);
        }
    }

    /// Only these inodes can still be seen.
    pub fn retain(&mut self, shape: &Shape) {
        self.may.retain(|ino, _| shape.inodes.contains_key(ino));
    }

    /// Whether an inode may show `times`; one that nothing is known of may show any.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, ino: u64, times: &Times) -> Result<(), String> {
        let Some(may) = self.may.get(&ino) else { return Ok(()) };
        for (at, name) in NAMES.iter().enumerate() {
            if !may.has(at, times[at]) {
                let seen: Vec<i64> = may.seen.iter().map(|seen| seen[at]).collect();
                let (time, during) = (times[at], &may.during);
                return Err(format!("{name} is {time}, none of {seen:?}, and not from within {during:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(ino: u64, times: Times, clock: (i64, i64)) -> Touched {
        Touched { times: vec![(ino, times)], clock }
    }

    #[test]
    fn what_was_durable_last_or_came_later_may_be_and_nothing_older() {
        let mut all = Clockwork::default();
        all.widen(&touched(7, [1, 1, 1], (0, 2)));
        all.widen(&touched(7, [5, 20, 20], (18, 20)));
        assert!(all.check(7, &[1, 20, 1]).is_ok() && all.check(7, &[0, 19, 20]).is_ok());
        assert!(all.check(7, &[3, 20, 20]).is_err(), "it never was so");
        all.durable(7);
        assert!(all.check(7, &[5, 20, 20]).is_ok());
        assert!(all.check(7, &[1, 20, 20]).is_err() && all.check(7, &[5, 19, 20]).is_err());
        all.widen(&touched(7, [5, 20, 20], (30, 31)));
        assert!(all.check(7, &[5, 30, 20]).is_err(), "nothing changed them");
        assert!(all.check(8, &[9, 9, 9]).is_ok(), "nothing is known of it");
    }
}
