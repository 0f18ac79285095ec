//! How a virtual controller behaves: its clock, its latencies, its faults, as options of the device string.

use nvmed_units::parse_bytes;
use nvmed_vdev::{Clock, FaultError, FaultPlan, Latency};

/// Clock, latencies and faults of a virtual controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// `clock=`; without it, a medium with a latency has a thread, and one without has none.
    pub clock: Option<Clock>,
    /// `latency=`, `read_latency=`, `write_latency=`, `bandwidth=`.
    pub latency: Latency,
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
                self.latency.read_ns = nanoseconds(time)?;
                self.latency.write_ns = self.latency.read_ns;
            }
            ("read_latency", time) => self.latency.read_ns = nanoseconds(time)?,
            ("write_latency", time) => self.latency.write_ns = nanoseconds(time)?,
            ("bandwidth", bytes) => self.latency.bytes_per_s = parse_bytes(bytes).ok()?,
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
        let times = [("read_latency", self.latency.read_ns), ("write_latency", self.latency.write_ns)];
        options.extend(times.iter().filter(|(_, ns)| *ns > 0).map(|(key, ns)| format!("{key}={ns}ns")));
        if self.latency.bytes_per_s > 0 {
            options.push(format!("bandwidth={}", self.latency.bytes_per_s));
        }
        if !self.faults.is_empty() {
            options.push(format!("faults={}", self.faults));
        }
        options
    }

    /// The clock to take.
    #[must_use]
    pub fn clock(&self) -> Clock {
        let slow = self.latency != Latency::default();
        self.clock.unwrap_or(if slow { Clock::Threaded } else { Clock::Inline })
    }

    /// The rules of `faults`.
    ///
    /// # Errors
    /// [`FaultError`] names the rule that is not understood.
    pub fn plan(&self) -> Result<FaultPlan, FaultError> {
        FaultPlan::parse(&self.faults)
    }
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
