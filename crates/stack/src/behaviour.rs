//! How a virtual controller behaves: its clock, its latencies, its faults, as options of the device string.

use crate::host_memory::HostMemoryKeys;
use crate::profile::{DriveProfile, ProfileFault};
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_units::parse_bytes;
use nvmed_vdev::{Clock, ControllerConfig, FaultError, FaultPlan};

/// Clock, latencies, profile and faults of a virtual controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// `clock=`; without it, a medium with a latency has a thread, and one without has none.
    pub clock: Option<Clock>,
    /// `latency=`, `read_latency=`, `write_latency=`, `bandwidth=`.
    pub fixed: FixedProfile,
    /// `profile=`: the name of a built-in profile, or the path of a file. It takes the place of the latencies.
    pub profile: Option<String>,
    /// `record=`: the file that what arrives at the drive is written into.
    pub record: Option<String>,
    /// `hmb=`, `hmb_min=`, `hmb_entries=`, `hmb_use=`, `hmb_io_slots=`: what the drive asks its host's memory for.
    pub host_memory: Box<HostMemoryKeys>,
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
            ("profile", name) if !name.is_empty() => self.profile = Some(name.to_owned()),
            ("record", file) if !file.is_empty() => self.record = Some(file.to_owned()),
            ("faults", rules) => rules.trim().clone_into(&mut self.faults),
            _ => return self.host_memory.set((key, value)),
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
        options.extend(self.profile.iter().map(|name| format!("profile={name}")));
        options.extend(self.record.iter().map(|file| format!("record={file}")));
        options.extend(self.host_memory.options());
        if !self.faults.is_empty() {
            options.push(format!("faults={}", self.faults));
        }
        options
    }

    /// The clock to take.
    #[must_use]
    pub fn clock(&self) -> Clock {
        let slow = self.has_times() || self.profile.is_some();
        self.clock.unwrap_or(if slow { Clock::Threaded } else { Clock::Inline })
    }

    fn has_times(&self) -> bool {
        self.fixed != FixedProfile::default()
    }

    /// Whether it says twice how long commands take.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.profile.is_some() && self.has_times()
    }

    /// The drive of its latencies, if it has any.
    pub(crate) fn fixed(&self) -> Option<Profile> {
        self.has_times().then(|| Profile::fixed(self.fixed))
    }

    /// Makes a controller the drive of a capacity whose times commands take, if they take time.
    ///
    /// # Errors
    /// [`ProfileFault`]: there is no such profile, it makes no sense, or no drive of it has this capacity.
    pub(crate) fn give_drive(
        &self,
        capacity_bytes: u64,
        config: &mut ControllerConfig,
    ) -> Result<(), ProfileFault> {
        match &self.profile {
            Some(name) => DriveProfile::named(name)?.give_drive(capacity_bytes, config)?,
            None => config.drive = self.fixed(),
        }
        Ok(())
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
