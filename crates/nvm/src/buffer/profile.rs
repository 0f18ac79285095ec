//! What a medium behind a buffer is like, as values: whoever opens one reads them from where he keeps them.

use super::model::{LINE_BYTES, PAGE_BYTES};
use crate::error::NvmError;

/// Bytes of a fill at most.
const FILL_BYTES_MAX: u64 = 2 << 20;
/// The part of the buffer that the write log can have, in percent.
const LOG_PERCENT_MAX: u32 = 90;

/// A medium that needs a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaProfile {
    /// When its reads and programs are done; it has at least the medium's bytes.
    pub medium: nvmed_flash::Profile,
    /// Bytes that are programmed at once: a power of two, 64 to 4,096.
    pub program_bytes: u64,
    /// Bytes of a fill: a power of two, 4 KiB to 2 MiB.
    pub fill_bytes: u64,
    /// The part of the buffer in which lines wait to be programmed, 0 to 90 percent; 0: pages are programmed whole as
    /// they leave the buffer.
    pub log_percent: u32,
    /// The buffer survives a cut of power; else a fence programs what waits in it.
    pub kept: bool,
}

/// How the time of a buffer passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BufferClock {
    /// It is a number, which what calls would have to wait moves on.
    #[default]
    Virtual,
    /// Calls wait.
    Waited,
}

impl BufferClock {
    /// As a device string has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Waited => "waited",
        }
    }
}

/// A buffer in front of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    /// What is behind it.
    pub profile: MediaProfile,
    /// Its bytes: frames, and the write log.
    pub bytes: u64,
    /// Its time.
    pub clock: BufferClock,
}

/// Bytes, in whole pages, of a buffer that has room for one fill beside a write log of `log_percent`, 0 to 90.
///
/// # Panics
/// When the log has all of the buffer, or more.
#[must_use]
pub fn least_buffer_bytes(fill_bytes: u64, log_percent: u32) -> u64 {
    assert!(log_percent <= LOG_PERCENT_MAX, "a log of {log_percent} percent leaves no frames");
    (fill_bytes * 100).div_ceil(100 - u64::from(log_percent)).next_multiple_of(PAGE_BYTES)
}

impl BufferOptions {
    /// Bytes of the write log, of which a line takes 72.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.bytes / 100 * u64::from(self.profile.log_percent)
    }

    /// How many frames there are room for.
    #[must_use]
    pub fn frames(&self) -> u64 {
        (self.bytes - self.log_bytes()) / self.profile.fill_bytes
    }

    /// Whether there can be such a buffer, before a file is made for it.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn check(&self) -> Result<(), NvmError> {
        let profile = &self.profile;
        let wrong = |what: &'static str, found: u64| Err(NvmError::MediaProfile { what, found });
        if !profile.program_bytes.is_power_of_two()
            || !(LINE_BYTES..=PAGE_BYTES).contains(&profile.program_bytes)
        {
            return wrong(
                "bytes programmed at once are a power of two from 64 to 4096",
                profile.program_bytes,
            );
        }
        if !profile.fill_bytes.is_power_of_two()
            || !(PAGE_BYTES..=FILL_BYTES_MAX).contains(&profile.fill_bytes)
        {
            return wrong("bytes of a fill are a power of two from 4096 to 2097152", profile.fill_bytes);
        }
        if profile.log_percent > LOG_PERCENT_MAX {
            return wrong("the log has 0 to 90 percent of the buffer", profile.log_percent.into());
        }
        if self.frames() == 0 {
            let least = least_buffer_bytes(profile.fill_bytes, profile.log_percent);
            let (bytes, log_bytes) = (self.bytes, self.log_bytes());
            return Err(NvmError::SmallBuffer { bytes, log_bytes, fill_bytes: profile.fill_bytes, least });
        }
        Ok(())
    }
}
