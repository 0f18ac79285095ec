//! Who calls: whether what a thread submits now is urgent.
//!
//! A room above says it for a piece of work ([`with`]), which any number of calls may lie between; it is asked for
//! where a request is submitted, and only on a device with an urgent path ([`crate::Device::expect_urgent`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nvmed_sys::{IoClass, io_class_of, io_class_of_group};
use rustix::time::{ClockId, clock_gettime};

/// Processes whose urgency is remembered: more than make requests side by side on most machines. One that shares its
/// place with another is asked about more often.
const REMEMBERED: usize = 64;

/// Whether a caller may pass others on the way to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// As everybody.
    #[default]
    Normal,
    /// Before all others.
    Urgent,
}

impl Urgency {
    /// Whether it is [`Urgency::Urgent`].
    #[must_use]
    pub fn is_urgent(self) -> bool {
        self == Self::Urgent
    }

    /// [`Urgency::Urgent`] where that is so.
    #[must_use]
    pub fn of(is_urgent: bool) -> Self {
        if is_urgent { Self::Urgent } else { Self::Normal }
    }

    /// The more urgent of two.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::of(self.is_urgent() || other.is_urgent())
    }

    fn of_class(class: Result<IoClass, rustix::io::Errno>) -> Self {
        Self::of(class == Ok(IoClass::RealTime))
    }
}

thread_local! {
    /// What [`with`] said last. No destructor: this may run in a preloaded library, while the process ends.
    static TOLD: Cell<Option<Urgency>> = const { Cell::new(None) };
    /// What the kernel said of this thread when it was asked last, and in which second that was.
    static OWN: Cell<Option<(u32, Urgency)>> = const { Cell::new(None) };
}

/// Whether a thread of which nobody says anything is asked for its I/O class.
static ASKS_THREADS: AtomicBool = AtomicBool::new(false);

/// Whether the threads of this process are urgent whatever their I/O class.
static ALL_URGENT: AtomicBool = AtomicBool::new(false);

/// From now on every thread of this process is one of the class real-time to [`of_thread`]: its user wants it so, who
/// may have no privilege to set the class.
pub fn are_urgent_here() {
    ALL_URGENT.store(true, Ordering::Relaxed);
}

/// From now on a thread of this process of which nobody says anything is as urgent as its I/O class.
pub(crate) fn ask_threads() {
    ASKS_THREADS.store(true, Ordering::Relaxed);
}

/// A thread's urgency until this is dropped, whichever way the work ends: then it is what it was before.
#[derive(Debug)]
#[must_use = "what is dropped has ended"]
pub struct Told(Option<Urgency>);

impl Drop for Told {
    fn drop(&mut self) {
        TOLD.with(|told| told.set(self.0));
    }
}

/// Does `work` as somebody so urgent; afterwards, after a panic too, the thread is what it was before. Nested work is
/// what the innermost says.
pub fn with<T>(urgency: Urgency, work: impl FnOnce() -> T) -> T {
    let _told = begin(urgency);
    work()
}

/// As [`with`], until what this answers is dropped; of several, the last one first.
pub fn begin(urgency: Urgency) -> Told {
    Told(TOLD.with(|told| told.replace(Some(urgency))))
}

/// How urgent this thread is: as [`with`] said, else as its I/O class says where threads are asked
/// ([`crate::Source::Threads`]), else normal.
#[must_use]
pub fn now() -> Urgency {
    match TOLD.with(Cell::get) {
        Some(told) => told,
        None if ASKS_THREADS.load(Ordering::Relaxed) => of_thread(),
        None => Urgency::Normal,
    }
}

/// The second of the host's clock, counted since it was started. Whoever is asked for the class is believed until it
/// ends: a look costs some 5 ns where a question costs 100.
fn second() -> u32 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec as u32
}

/// Whether an urgent caller is here, on a device or medium where some may be: elsewhere nobody is asked.
#[inline]
#[must_use]
pub fn is_urgent_where(expected: bool) -> bool {
    expected && now().is_urgent()
}

/// How urgent this thread is by its I/O class: urgent is the class real-time (`ionice -c 1`). The kernel is asked once
/// a second and thread, so what is set later counts within a second.
#[must_use]
pub fn of_thread() -> Urgency {
    if ALL_URGENT.load(Ordering::Relaxed) {
        return Urgency::Urgent;
    }
    of_thread_in(second(), || Urgency::of_class(io_class_of(0)))
}

fn of_thread_in(second: u32, ask: impl FnOnce() -> Urgency) -> Urgency {
    OWN.with(|own| match own.get() {
        Some((asked, urgency)) if asked == second => urgency,
        _ => {
            let urgency = ask();
            own.set(Some((second, urgency)));
            urgency
        }
    })
}

/// Whether some thread of this process is of the class real-time, or one of another process of its group is: whether
/// it is worth asking each thread ([`crate::Source::Threads`]). One system call.
#[must_use]
pub fn may_be_urgent_here() -> bool {
    Urgency::of_class(io_class_of_group()).is_urgent()
}

/// How urgent the first thread of another process, or another thread, is by its I/O class now; 0, and a number that
/// nobody has, is nobody, who is normal.
#[must_use]
pub fn of_process(pid: u32) -> Urgency {
    if pid == 0 { Urgency::Normal } else { Urgency::of_class(io_class_of(pid)) }
}

/// What was last learnt of other processes and their threads: each is asked about once a second.
pub struct Processes {
    /// A number, the second in which it was asked about, in 31 bits, and whether it is urgent. No number is 0.
    asked: [AtomicU64; REMEMBERED],
}

impl Default for Processes {
    fn default() -> Self {
        Self { asked: [const { AtomicU64::new(0) }; REMEMBERED] }
    }
}

impl core::fmt::Debug for Processes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Processes").finish_non_exhaustive()
    }
}

impl Processes {
    /// As [`of_process`], as it was at some time of the running second.
    #[must_use]
    pub fn of(&self, pid: u32) -> Urgency {
        self.of_in(second(), pid, of_process)
    }

    fn of_in(&self, second: u32, pid: u32, ask: impl FnOnce(u32) -> Urgency) -> Urgency {
        if pid == 0 {
            return Urgency::Normal;
        }
        let place = &self.asked[pid as usize % REMEMBERED];
        let key = u64::from(pid) << 32 | u64::from(second << 1);
        let known = place.load(Ordering::Relaxed);
        if known & !1 == key {
            return Urgency::of(known & 1 == 1);
        }
        let urgency = ask(pid);
        place.store(key | u64::from(urgency.is_urgent()), Ordering::Relaxed);
        urgency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_counts_and_a_panic_gives_it_back() {
        assert_eq!(now(), Urgency::Normal);
        with(Urgency::Urgent, || {
            assert_eq!(now(), Urgency::Urgent);
            with(Urgency::Normal, || assert_eq!(now(), Urgency::Normal));
            let panicked = std::panic::catch_unwind(|| with(Urgency::Normal, || panic!("a test's panic")));
            assert!(panicked.is_err());
            assert_eq!(now(), Urgency::Urgent, "after the inner work, as before it");
        });
        assert_eq!(now(), Urgency::Normal);
    }

    #[test]
    fn nobody_is_normal() {
        assert_eq!(of_process(0), Urgency::Normal);
        assert_eq!(of_process(1 << 30), Urgency::Normal);
        let never = |_| panic!("the kernel takes 0 for the caller");
        assert_eq!(Processes::default().of_in(7, 0, never), Urgency::Normal);
    }

    #[test]
    fn a_thread_is_asked_again_in_the_next_second() {
        let first = || of_thread_in(1000, || Urgency::Normal);
        assert_eq!(first(), Urgency::Normal);
        assert_eq!(of_thread_in(1000, || Urgency::Urgent), Urgency::Normal, "it is believed for a second");
        assert_eq!(of_thread_in(1001, || Urgency::Urgent), Urgency::Urgent);
        assert_eq!(of_thread_in(1001, || Urgency::Normal), Urgency::Urgent);
    }

    #[test]
    fn each_process_is_asked_about_once_a_second() {
        let (processes, asked) = (Processes::default(), Cell::new(0));
        let of = |second, pid, urgency| {
            processes.of_in(second, pid, |_| {
                asked.set(asked.get() + 1);
                urgency
            })
        };
        assert_eq!(of(5, 70, Urgency::Urgent), Urgency::Urgent);
        assert_eq!(of(5, 70, Urgency::Normal), Urgency::Urgent);
        assert_eq!(of(5, 71, Urgency::Normal), Urgency::Normal);
        assert_eq!(of(5, 71, Urgency::Urgent), Urgency::Normal);
        assert_eq!(asked.get(), 2);
        // Another one at its place is never taken for it, nor it for the other one.
        let beside = 70 + REMEMBERED as u32;
        assert_eq!(of(5, beside, Urgency::Normal), Urgency::Normal);
        assert_eq!(of(5, 70, Urgency::Urgent), Urgency::Urgent);
        assert_eq!(of(6, 70, Urgency::Normal), Urgency::Normal, "what was set meanwhile counts");
        assert_eq!(asked.get(), 5);
    }
}
