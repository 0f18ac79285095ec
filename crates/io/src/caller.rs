//! Who calls: whether what a thread submits now is urgent.
//!
//! A room above says it for a piece of work ([`with`]), which any number of calls may lie between; it is asked for
//! where a request is submitted, and only on a device with an urgent path ([`crate::Device::expect_urgent`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_sys::{IoClass, io_class_of};

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
    /// What the kernel said of this thread, once it was asked.
    static OWN: Cell<Option<Urgency>> = const { Cell::new(None) };
}

/// Whether a thread of which nobody says anything is asked for its I/O class.
static ASKS_THREADS: AtomicBool = AtomicBool::new(false);

/// From now on a thread of this process of which nobody says anything is as urgent as its I/O class.
pub(crate) fn ask_threads() {
    ASKS_THREADS.store(true, Ordering::Relaxed);
}

/// Gives the thread back what it was, whichever way the work ends.
struct Restore(Option<Urgency>);

impl Drop for Restore {
    fn drop(&mut self) {
        TOLD.with(|told| told.set(self.0));
    }
}

/// Does `work` as somebody so urgent; afterwards, after a panic too, the thread is what it was before. Nested work is
/// what the innermost says.
pub fn with<T>(urgency: Urgency, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(TOLD.with(|told| told.replace(Some(urgency))));
    work()
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

/// How urgent this thread is by its I/O class: urgent is the class real-time (`ionice -c 1`). The kernel is asked once
/// a thread, so what is set later is not seen.
#[must_use]
pub fn of_thread() -> Urgency {
    OWN.with(|own| match own.get() {
        Some(urgency) => urgency,
        None => {
            let urgency = Urgency::of_class(io_class_of(0));
            own.set(Some(urgency));
            urgency
        }
    })
}

/// How urgent the first thread of another process, or another thread, is by its I/O class now; 0, and a number that
/// nobody has, is nobody, who is normal.
#[must_use]
pub fn of_process(pid: u32) -> Urgency {
    if pid == 0 { Urgency::Normal } else { Urgency::of_class(io_class_of(pid)) }
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
    }
}
