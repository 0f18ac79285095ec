//! What a handle can be told at run time (NVMeDirect's handle parameters; TCE'17, III.B).

use crate::error::{InvalidSetting, IoError};
use crate::schedule::Rights;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
pub use nvmed_engine::Priority;

/// How results are waited for. What each costs: `docs/io.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Completions {
    /// Look some forty times, then let others run, then sleep until the device's event. For devices that
    /// answer within a microsecond or two, and for machines with few cores.
    #[default]
    Adaptive,
    /// Look without a pause until it is there. Lowest latency; a core each waiting thread. On a machine
    /// with fewer cores than such threads they starve each other.
    Poll,
    /// Sleep a learnt share of the latency, then look. Learnt for each kind and size of request.
    Hybrid,
    /// A thread of the device looks for everybody, at a pace that follows how many requests of which
    /// size are outstanding; callers sleep until it wakes them.
    Thread,
    /// Sleep until the queue's interrupt. On a queue without interrupts: as [`Completions::Adaptive`].
    Interrupt,
}

impl Completions {
    /// Every way, in the order of declaration.
    pub const ALL: [Self; 5] = [Self::Adaptive, Self::Poll, Self::Hybrid, Self::Thread, Self::Interrupt];
}

/// What happens to requests that were with the device when it was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnReset {
    /// They fail: they may have been done or not.
    #[default]
    Fail,
    /// Reads, writes, flushes, Write Zeroes and discards are sent once more: doing them twice is doing them
    /// once. Compares and passthrough commands fail. Tickets keep a copy of their segments for it.
    Replay,
}

/// The most that a handle gets on a queue with [`crate::Scheduler::Fair`]; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes a second. A request without data counts as one of 4096 bytes.
    pub bytes_per_s: u64,
    /// Requests a second.
    pub requests_per_s: u64,
}

/// The settings of a handle; its clones share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleSettings {
    /// How results are waited for.
    pub completion: Completions,
    /// Urgent requests pass all others of a queue with a scheduler; High, Medium and Low count fourfold, twice
    /// and once in [`crate::Scheduler::Fair`]. A handle of several queues prefers those of its priority.
    pub priority: Priority,
    /// Share of a queue with [`crate::Scheduler::Fair`], 1 to [`HandleSettings::WEIGHT_MAX`].
    pub weight: u32,
    /// The most that it gets there.
    pub rate: Option<Rate>,
    /// Stream of its writes (directive specific identifier; Base 2.0, 8.7.3); 0 is none.
    pub stream: u16,
    /// Microseconds after which a request is aborted, and the device reset if that does not help; at least
    /// [`HandleSettings::TIMEOUT_US_MIN`]. It counts from when somebody first waits long for it.
    pub timeout_us: u64,
    /// What happens to its requests when the device was reset.
    pub on_reset: OnReset,
}

impl HandleSettings {
    /// Weight of a handle that nobody gave one.
    pub const WEIGHT: u32 = 100;
    /// Largest weight: a share that is a thousandth of another's is as good as none.
    pub const WEIGHT_MAX: u32 = 1000;
    /// Linux gives an NVMe command 30 s; a virtual device's flush may have to wait for a slow disk of the
    /// host, and 120 s is what Linux takes for a hang there.
    pub const TIMEOUT_US: u64 = 120_000_000;
    /// Shorter than that, an ordinary pause of the host's scheduler looks like a dead device.
    pub const TIMEOUT_US_MIN: u64 = 1_000;

    /// Whether the values make sense.
    ///
    /// # Errors
    /// [`IoError::Setting`].
    pub(crate) fn check(&self) -> Result<(), IoError> {
        if self.weight == 0 || self.weight > Self::WEIGHT_MAX {
            return Err(InvalidSetting::Weight { weight: self.weight }.into());
        }
        if self.timeout_us < Self::TIMEOUT_US_MIN {
            return Err(InvalidSetting::Timeout { timeout_us: self.timeout_us }.into());
        }
        if self.rate.is_some_and(|rate| rate == Rate::default()) {
            return Err(InvalidSetting::Rate.into());
        }
        Ok(())
    }
}

impl Default for HandleSettings {
    fn default() -> Self {
        Self {
            completion: Completions::default(),
            priority: Priority::default(),
            weight: Self::WEIGHT,
            rate: None,
            stream: 0,
            timeout_us: Self::TIMEOUT_US,
            on_reset: OnReset::default(),
        }
    }
}

/// The settings where submitting and reaping threads find them without a lock. They are read one by one: a
/// request that is under way while they change may see some old and some new.
#[derive(Debug)]
pub(crate) struct Live {
    /// The stream, and above it the flags: all that submission looks at.
    hot: AtomicU32,
    completion: AtomicU8,
    priority: AtomicU8,
    on_reset: AtomicU8,
    weight: AtomicU16,
    bytes_per_s: AtomicU64,
    requests_per_s: AtomicU64,
    timeout_us: AtomicU64,
}

/// What a submission must know of its handle, in one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hot(u32);

impl Hot {
    /// The time of submission is noted.
    const STAMPED: u32 = 1 << 16;
    /// The completion thread reaps it.
    const SERVED: u32 = 1 << 17;
    /// A ticket keeps a copy of its segments.
    const KEPT: u32 = 1 << 18;
    /// Latency and the cost of waiting are noted.
    const MEASURED: u32 = 1 << 19;
    /// Its requests are recorded.
    const RECORDED: u32 = 1 << 20;
    /// Who submits may be urgent, and is asked.
    const ASKS: u32 = 1 << 21;
    /// Who submits was asked, and is urgent; never stored.
    const URGENT: u32 = 1 << 22;

    pub(crate) fn stream(self) -> u16 {
        self.0 as u16
    }

    /// Whether a synchronous call is lock, submit, ring, poll, unlock.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & (Self::STAMPED | Self::SERVED | Self::MEASURED | Self::RECORDED | Self::ASKS) == 0
    }

    /// Whether all that is to be done about a synchronous call besides is to ask its caller, and to record it.
    pub(crate) fn is_almost_plain(self) -> bool {
        self.0 & (Self::STAMPED | Self::SERVED | Self::MEASURED) == 0
    }

    /// Whether a request is given to its queue and no more.
    #[inline]
    pub(crate) fn is_only_put(self) -> bool {
        self.0 & (Self::RECORDED | Self::ASKS) == 0
    }

    #[inline]
    pub(crate) fn asks(self) -> bool {
        self.0 & Self::ASKS != 0
    }

    #[inline]
    pub(crate) fn is_urgent(self) -> bool {
        self.0 & Self::URGENT != 0
    }

    pub(crate) fn as_urgent(self) -> Self {
        Self(self.0 | Self::URGENT)
    }

    #[inline]
    pub(crate) fn is_recorded(self) -> bool {
        self.0 & Self::RECORDED != 0
    }

    /// Whether somebody wants to know how long its requests take.
    pub(crate) fn is_timed(self) -> bool {
        self.0 & (Self::STAMPED | Self::MEASURED) != 0
    }

    pub(crate) fn is_stamped(self) -> bool {
        self.0 & (Self::STAMPED | Self::MEASURED | Self::RECORDED) != 0
    }

    pub(crate) fn is_served(self) -> bool {
        self.0 & Self::SERVED != 0
    }

    pub(crate) fn is_kept(self) -> bool {
        self.0 & Self::KEPT != 0
    }

    pub(crate) fn is_measured(self) -> bool {
        self.0 & Self::MEASURED != 0
    }
}

impl Live {
    pub(crate) fn new() -> Self {
        let live = Self {
            hot: AtomicU32::new(0),
            completion: AtomicU8::new(0),
            priority: AtomicU8::new(0),
            on_reset: AtomicU8::new(0),
            weight: AtomicU16::new(0),
            bytes_per_s: AtomicU64::new(0),
            requests_per_s: AtomicU64::new(0),
            timeout_us: AtomicU64::new(0),
        };
        live.store(&HandleSettings::default());
        live
    }

    /// Takes new settings, which were checked.
    pub(crate) fn store(&self, settings: &HandleSettings) {
        let rate = settings.rate.unwrap_or_default();
        self.completion.store(settings.completion as u8, Ordering::Relaxed);
        self.priority.store(settings.priority as u8, Ordering::Relaxed);
        self.on_reset.store(settings.on_reset as u8, Ordering::Relaxed);
        self.weight.store(settings.weight as u16, Ordering::Relaxed);
        self.bytes_per_s.store(rate.bytes_per_s, Ordering::Relaxed);
        self.requests_per_s.store(rate.requests_per_s, Ordering::Relaxed);
        self.timeout_us.store(settings.timeout_us, Ordering::Relaxed);
        let completion = match settings.completion {
            Completions::Adaptive | Completions::Poll | Completions::Interrupt => 0,
            Completions::Hybrid => Hot::STAMPED,
            Completions::Thread => Hot::STAMPED | Hot::SERVED,
        };
        let kept = if settings.on_reset == OnReset::Replay { Hot::KEPT } else { 0 };
        let ours = u32::from(settings.stream) | completion | kept;
        let others = Hot::MEASURED | Hot::RECORDED | Hot::ASKS;
        let merge = |hot: u32| Some(hot & others | ours);
        let _ = self.hot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
    }

    /// All of them.
    pub(crate) fn load(&self) -> HandleSettings {
        let rate = self.rate();
        HandleSettings {
            completion: self.completion(),
            priority: self.priority(),
            weight: self.weight(),
            rate: (rate != Rate::default()).then_some(rate),
            stream: self.hot().stream(),
            timeout_us: self.timeout_us(),
            on_reset: if self.replays() { OnReset::Replay } else { OnReset::Fail },
        }
    }

    #[inline]
    pub(crate) fn hot(&self) -> Hot {
        Hot(self.hot.load(Ordering::Relaxed))
    }

    pub(crate) fn measure(&self, on: bool) {
        if on {
            self.hot.fetch_or(Hot::MEASURED, Ordering::Relaxed);
        } else {
            self.hot.fetch_and(!Hot::MEASURED, Ordering::Relaxed);
        }
    }

    pub(crate) fn record(&self) {
        self.hot.fetch_or(Hot::RECORDED, Ordering::Relaxed);
    }

    /// From now on callers are asked.
    pub(crate) fn ask(&self) {
        self.hot.fetch_or(Hot::ASKS, Ordering::Relaxed);
    }

    pub(crate) fn completion(&self) -> Completions {
        use Completions::{Adaptive, Hybrid, Interrupt, Poll, Thread};
        let at = usize::from(self.completion.load(Ordering::Relaxed));
        [Adaptive, Poll, Hybrid, Thread, Interrupt].get(at).copied().unwrap_or_default()
    }

    pub(crate) fn priority(&self) -> Priority {
        let at = usize::from(self.priority.load(Ordering::Relaxed));
        let all = [Priority::Urgent, Priority::High, Priority::Medium, Priority::Low];
        all.get(at).copied().unwrap_or_default()
    }

    pub(crate) fn replays(&self) -> bool {
        self.on_reset.load(Ordering::Relaxed) == OnReset::Replay as u8
    }

    pub(crate) fn weight(&self) -> u32 {
        u32::from(self.weight.load(Ordering::Relaxed))
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate {
            bytes_per_s: self.bytes_per_s.load(Ordering::Relaxed),
            requests_per_s: self.requests_per_s.load(Ordering::Relaxed),
        }
    }

    /// What a scheduler must know.
    pub(crate) fn rights(&self) -> Rights {
        Rights { priority: self.priority(), weight: self.weight(), rate: self.rate(), replay: self.replays() }
    }

    pub(crate) fn timeout_us(&self) -> u64 {
        self.timeout_us.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_as_they_went_in() {
        let live = Live::new();
        assert_eq!(live.load(), HandleSettings::default());
        for completion in Completions::ALL {
            for priority in [Priority::Urgent, Priority::High, Priority::Medium, Priority::Low] {
                let settings = HandleSettings {
                    completion,
                    priority,
                    weight: 7,
                    rate: Some(Rate { bytes_per_s: 5, requests_per_s: 0 }),
                    stream: 0xbeef,
                    timeout_us: 5_000_000,
                    on_reset: OnReset::Replay,
                };
                live.store(&settings);
                assert_eq!(live.load(), settings);
            }
        }
    }

    #[test]
    fn senseless_settings_are_refused() {
        let good = HandleSettings::default();
        for (bad, want) in [
            (HandleSettings { weight: 0, ..good }, "a handle cannot have the weight 0; set 1 to 1000"),
            (HandleSettings { weight: 1001, ..good }, "a handle cannot have the weight 1001; set 1 to 1000"),
            (
                HandleSettings { timeout_us: 0, ..good },
                "a handle cannot have a timeout of 0 us; set at least 1000 us",
            ),
            (
                HandleSettings { rate: Some(Rate::default()), ..good },
                "the rate of a handle limits neither bytes nor requests; set one of them, or no rate",
            ),
        ] {
            let error = bad.check().expect_err("the setting makes no sense");
            assert!(matches!(error, IoError::Setting(_)), "{bad:?}: {error:?}");
            assert_eq!(error.to_string(), want);
        }
        assert!(good.check().is_ok());
    }
}
