//! A plan of faults: which commands go wrong, and how. The same plan and the same commands give the same faults.

use nvmed_nvme::{IoOpcode, Status, SubmissionEntry};
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::Lba;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rules of one plan: a look at each for every command.
pub(crate) const FAULT_RULES_MAX: usize = 64;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultAction {
    /// The command is taken and never completes, until it is aborted. Whether it is executed before is the
    /// second choice of a device that fails.
    Drop {
        /// Executed, and only its completion is lost.
        executed: bool,
    },
    /// The command completes this much later.
    Delay {
        /// Nanoseconds.
        ns: u64,
    },
    /// The completion is posted twice.
    Duplicate,
    /// The completion is not what it should be.
    Corrupt(Corrupt),
    /// The command is not executed and completes with this status; the error log names the first block of it
    /// that the rule covers.
    Fail(Status),
    /// The controller completes nothing from here on; its properties can still be read.
    Stop,
    /// The controller is gone, as pulled out: properties read as all ones.
    Die,
    /// The controller says that it failed (CSTS.CFS), and stops.
    Fatal,
    /// The controller does not become ready when it is enabled.
    NotReady,
}

/// The part of a completion entry that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupt {
    /// The command identifier: one that no command has.
    Cid,
    /// The status: type 7h, code FFh, which the specification leaves to vendors.
    Status,
    /// The phase tag: the host does not see the entry.
    Phase,
    /// The submission queue identifier.
    SqId,
    /// The submission queue head: beyond every queue.
    Head,
}

/// The queues that a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultQueue {
    /// Every I/O submission queue.
    Io,
    /// One submission queue; 0 is the admin queue.
    One(u16),
}

/// One rule: an action, and the commands that it meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What goes wrong.
    pub action: FaultAction,
    /// Commands of which queues.
    pub queue: FaultQueue,
    /// Commands of this opcode only.
    pub opcode: Option<u8>,
    /// Commands only that read, write, compare or zero one of these logical blocks.
    pub lba: Option<Range<u64>>,
    /// The first match that is hit, from 1; those after it as `every` and `times` say. (A rule in text that says
    /// neither hits this one alone.)
    pub nth: u64,
    /// After that, every how many matches there is a hit; at least 1.
    pub every: u64,
    /// Hits after which the rule is spent; `None` never is.
    pub times: Option<u64>,
    /// [`FaultAction::Stop`] and [`FaultAction::Fatal`] outlive a controller reset.
    pub sticky: bool,
}

impl FaultRule {
    /// Every I/O command is met; an action that ends the controller happens once.
    #[must_use]
    pub fn new(action: FaultAction) -> Self {
        let once = matches!(action, FaultAction::Stop | FaultAction::Die | FaultAction::Fatal);
        Self {
            action,
            queue: FaultQueue::Io,
            opcode: None,
            lba: None,
            nth: 1,
            every: 1,
            times: once.then_some(1),
            sticky: false,
        }
    }

    fn matches(&self, queue: u16, entry: &SubmissionEntry) -> bool {
        let here = match self.queue {
            FaultQueue::Io => queue != 0,
            FaultQueue::One(number) => queue == number,
        };
        here && self.action != FaultAction::NotReady
            && self.opcode.is_none_or(|opcode| entry.opcode == opcode)
            && self.lba.as_ref().is_none_or(|range| queue != 0 && first_of(entry, range).is_some())
    }
}

/// The first block of a command that lies in `range`.
fn first_of(entry: &SubmissionEntry, range: &Range<u64>) -> Option<Lba> {
    use IoOpcode::{Compare, Read, Write, WriteZeroes};
    let opcode = IoOpcode::from_code(entry.opcode)?;
    let begin = entry.lba().0;
    let end = begin.saturating_add(u64::from(entry.blocks()));
    let met =
        matches!(opcode, Read | Write | Compare | WriteZeroes) && begin < range.end && range.start < end;
    met.then_some(Lba(begin.max(range.start)))
}

/// A rule, and what it has seen.
#[derive(Debug)]
struct Active {
    rule: FaultRule,
    matched: u64,
    hits: u64,
}

impl Active {
    /// Counts a match; whether it is a hit.
    fn hit(&mut self) -> bool {
        self.matched += 1;
        let rule = &self.rule;
        let due = self.matched >= rule.nth && (self.matched - rule.nth).is_multiple_of(rule.every.max(1));
        let hit = due && rule.times.is_none_or(|times| self.hits < times);
        self.hits += u64::from(hit);
        hit
    }
}

/// What happens to one command; all rules together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verdict {
    /// Never completes; whether it is executed.
    pub dropped: Option<bool>,
    pub delay_ns: u64,
    pub duplicate: bool,
    pub corrupt: Option<Corrupt>,
    /// Status, and the block that it names; 0 of a command that names none.
    pub fail: Option<(Status, Lba)>,
    /// An action that ends the controller, and whether it is sticky.
    pub ends: Option<(FaultAction, bool)>,
}

impl Verdict {
    fn add(&mut self, rule: &FaultRule, entry: &SubmissionEntry) {
        match rule.action {
            FaultAction::Drop { executed } => self.dropped = Some(executed),
            FaultAction::Delay { ns } => self.delay_ns = self.delay_ns.saturating_add(ns),
            FaultAction::Duplicate => self.duplicate = true,
            FaultAction::Corrupt(part) => self.corrupt = Some(part),
            FaultAction::Fail(status) => {
                let lba = first_of(entry, rule.lba.as_ref().unwrap_or(&(0..u64::MAX)));
                self.fail = Some((status, lba.unwrap_or(Lba(0))));
            }
            FaultAction::Stop | FaultAction::Die | FaultAction::Fatal => {
                self.ends = Some((rule.action, rule.sticky));
            }
            FaultAction::NotReady => {}
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// There are rules: one load for a controller without.
    armed: AtomicBool,
    rules: Mutex<Vec<Active>>,
}

/// Rules for a controller, which a test keeps and changes while the controller runs. Clones are the same plan.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Shared>);

impl FaultPlan {
    /// Adds a rule; answers its number, for [`FaultPlan::hits`], or `None` when 64 are there.
    pub fn add(&self, rule: FaultRule) -> Option<usize> {
        let mut rules = self.0.rules.lock();
        if rules.len() >= FAULT_RULES_MAX {
            return None;
        }
        rules.push(Active { rule, matched: 0, hits: 0 });
        self.0.armed.store(true, Ordering::Release);
        Some(rules.len() - 1)
    }

    /// Takes all rules away. What they have done stays done.
    pub fn clear(&self) {
        let mut rules = self.0.rules.lock();
        self.0.armed.store(false, Ordering::Release);
        rules.clear();
    }

    /// How often a rule has hit; 0 for one that is not there.
    #[must_use]
    pub fn hits(&self, rule: usize) -> u64 {
        self.0.rules.lock().get(rule).map_or(0, |active| active.hits)
    }

    #[inline]
    pub(crate) fn armed(&self) -> bool {
        self.0.armed.load(Ordering::Relaxed)
    }

    /// What happens to a command; counts it.
    pub(crate) fn judge(&self, queue: u16, entry: &SubmissionEntry) -> Verdict {
        let mut verdict = Verdict::default();
        if self.armed() {
            for active in self.0.rules.lock().iter_mut() {
                if active.rule.matches(queue, entry) && active.hit() {
                    verdict.add(&active.rule, entry);
                }
            }
        }
        verdict
    }

    /// Whether enabling is to fail; counts it.
    pub(crate) fn refuses_ready(&self) -> bool {
        let mut rules = self.0.rules.lock();
        let mut refusing = rules.iter_mut().filter(|active| active.rule.action == FaultAction::NotReady);
        refusing.any(Active::hit)
    }
}
