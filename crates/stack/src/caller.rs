//! The ids of this process, with which the file system checks permissions.

use nvmed_fs::Credentials;
use rustix::fs::Mode;

/// User, groups and umask of this process, as they were when they were asked for.
#[derive(Clone, Debug)]
pub struct Caller {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    umask: u32,
}

impl Caller {
    /// This process.
    #[must_use]
    pub fn process() -> Self {
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
            umask: umask.as_raw_mode(),
        }
    }

    /// What the file system checks.
    #[must_use]
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials { permitted: false, uid: self.uid, gid: self.gid, groups: &self.groups }
    }

    /// Permissions that new files are not given.
    #[must_use]
    pub fn umask(&self) -> u32 {
        self.umask
    }
}
