//! How a virtual controller behaves: its clock, its latencies, its faults, as options of the device string.

use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_units::parse_bytes;
use nvmed_vdev::{Clock, FaultError, FaultPlan};

/// Clock, latencies and faults of a virtual controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// `clock=`; without it, a medium with a latency has a thread, and one without has none.
    pub clock: Option<Clock>,
    /// `latency=`, `read_latency=`, `write_latency=`, `bandwidth=`.
    pub fixed: FixedProfile,
    /// `faults=`, as written: rules of a [`FaultPlan`], their parts separated by `+`.
    pub faults: String,
}

impl Behaviour {
    pub(crate) fn set(&mut self, (key, value): (&str, &str)) -> Option<()> {
        match (key, value) {
            ("clock", "inline") => self.clock = Some(Clock::Inline),
            ("clock", "threaded") => self.clock = Some(Clock::Threaded),
            ("clock", "virtual") => self.clock = Some(Clock::Virtual),
            ("latency", time) => {
                self.fixed.read_ns = nanoseconds(time)?;
                self.fixed.write_ns = self.fixed.read_ns;
            }
            ("read_latency", time) => self.fixed.read_ns = nanoseconds(time)?,
            ("write_latency", time) => self.fixed.write_ns = nanoseconds(time)?,
            ("bandwidth", bytes) => self.fixed.link = rate(parse_bytes(bytes).ok()?),
            ("faults", rules) => rules.trim().clone_into(&mut self.faults),
            _ => return None,
        }
        Some(())
    }

    pub(crate) fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        match self.clock {
            None => {}
            Some(Clock::Inline) => options.push("clock=inline".to_owned()),
            Some(Clock::Threaded) => options.push("clock=threaded".to_owned()),
            Some(Clock::Virtual) => options.push("clock=virtual".to_owned()),
        }
        let times = [("read_latency", self.fixed.read_ns), ("write_latency", self.fixed.write_ns)];
        options.extend(times.iter().filter(|(_, ns)| *ns > 0).map(|(key, ns)| format!("{key}={ns}ns")));
        if !self.fixed.link.is_unlimited() {
            options.push(format!("bandwidth={}", self.fixed.link.bytes));
        }
        if !self.faults.is_empty() {
            options.push(format!("faults={}", self.faults));
        }
        options
    }

    /// The clock to take.
    #[must_use]
    pub fn clock(&self) -> Clock {
        let slow = self.fixed != FixedProfile::default();
        self.clock.unwrap_or(if slow { Clock::Threaded } else { Clock::Inline })
    }

    /// The drive whose times commands take, if they take time.
    #[must_use]
    pub fn drive(&self) -> Option<Profile> {
        (self.fixed != FixedProfile::default()).then(|| Profile::fixed(self.fixed))
    }

    /// The rules of `faults`.
    ///
    /// # Errors
    /// [`FaultError`] names the rule that is not understood.
    pub fn plan(&self) -> Result<FaultPlan, FaultError> {
        FaultPlan::parse(&self.faults)
    }
}

/// Bytes a second; 0 is no limit.
fn rate(bytes_per_s: u64) -> Rate {
    if bytes_per_s == 0 { Rate::UNLIMITED } else { Rate::per_second(bytes_per_s) }
}

/// A time with its unit: `500ns`, `200us`, `3ms`, `1s`.
fn nanoseconds(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
