//! How long planes have worked, and how many of them at once.

/// For how long planes have read, programmed or erased: until the last time that one of them began or ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Nanoseconds in which some plane worked.
    pub any_ns: u64,
    /// Nanoseconds in which more than one did.
    pub several_ns: u64,
    /// Nanoseconds of all planes together.
    pub plane_ns: u64,
}

impl Activity {
    /// What was done since it was `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            any_ns: self.any_ns - before.any_ns,
            several_ns: self.several_ns - before.several_ns,
            plane_ns: self.plane_ns - before.plane_ns,
        }
    }
}

/// The planes that work, and for how long they have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Working {
    planes: u64,
    since_ns: u64,
    activity: Activity,
}

impl Working {
    /// So many planes begin at `now`.
    #[inline]
    pub fn begin(&mut self, now: u64, planes: usize) {
        self.pass(now);
        self.planes += planes as u64;
    }

    /// So many planes end at `now`.
    #[inline]
    pub fn end(&mut self, now: u64, planes: usize) {
        self.pass(now);
        self.planes -= planes as u64;
    }

    pub fn activity(&self) -> Activity {
        self.activity
    }

    #[inline]
    fn pass(&mut self, now: u64) {
        let ns = now - std::mem::replace(&mut self.since_ns, now);
        self.activity.any_ns += if self.planes > 0 { ns } else { 0 };
        self.activity.several_ns += if self.planes > 1 { ns } else { 0 };
        self.activity.plane_ns += self.planes * ns;
    }
}
