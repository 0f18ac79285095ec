//! What one user may take of a server that several users share.

use crate::service::lock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What each user may have at a time, and how long anybody may say nothing (docs/spec/shared.md, "Limits").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions, heirs among them.
    pub sessions: usize,
    /// Lanes of all sessions together: each is 1 MiB and a thread.
    pub lanes: usize,
    /// Connections that have not said hello.
    pub silent: usize,
    /// After so long without a hello a connection ends.
    pub hello: Duration,
}

/// Far more than a process needs that waits for a processor.
const HELLO: Duration = Duration::from_secs(30);

impl Limits {
    /// Of a run: whatever ids its processes take on, they are one user's.
    pub const RUN: Self = Self { sessions: usize::MAX, lanes: usize::MAX, silent: usize::MAX, hello: HELLO };
    /// Of a machine's server: a quarter of what there is.
    pub const MACHINE: Self = Self { sessions: 1024, lanes: 2048, silent: 256, hello: HELLO };

    fn of(&self, kind: Kind) -> usize {
        match kind {
            Kind::Session => self.sessions,
            Kind::Lane => self.lanes,
            Kind::Silent => self.silent,
        }
    }
}

/// What is shared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Session,
    Lane,
    Silent,
}

/// What each user has.
#[derive(Debug)]
pub(crate) struct Shares {
    pub limits: Limits,
    /// By user, in the order of [`Kind`].
    taken: Mutex<HashMap<u32, [usize; 3]>>,
}

impl Shares {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default() })
    }

    /// One more of a kind for a user, until the answer is dropped.
    ///
    /// # Errors
    /// `EMFILE` when it has its share.
    pub fn take(self: &Arc<Self>, uid: u32, kind: Kind) -> Result<Share, Errno> {
        let mut taken = lock(&self.taken);
        let had = taken.get(&uid).map_or(0, |taken| taken[kind as usize]);
        if had >= self.limits.of(kind) {
            return Err(Errno::MFILE);
        }
        taken.entry(uid).or_default()[kind as usize] += 1;
        Ok(Share { shares: Arc::clone(self), uid, kind })
    }

    /// What all users have of a kind.
    pub fn all(&self, kind: Kind) -> usize {
        lock(&self.taken).values().map(|taken| taken[kind as usize]).sum()
    }
}

/// One of what a user has.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    uid: u32,
    kind: Kind,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = lock(&self.shares.taken);
        if let Some(user) = taken.get_mut(&self.uid) {
            user[self.kind as usize] -= 1;
            if *user == [0; 3] {
                taken.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_gone_is_forgotten() {
        let shares = Shares::new(Limits { sessions: 1, lanes: 2, ..Limits::MACHINE });
        let (session, lane) = (shares.take(1, Kind::Session).unwrap(), shares.take(1, Kind::Lane).unwrap());
        assert_eq!(shares.take(1, Kind::Session).unwrap_err(), Errno::MFILE);
        let other = shares.take(2, Kind::Session).unwrap();
        drop(session);
        drop(shares.take(1, Kind::Session).unwrap());
        drop((lane, other));
        assert!(lock(&shares.taken).is_empty());
    }
}
