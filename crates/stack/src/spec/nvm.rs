//! `nvm:` in a device string.

use super::{SpecError, lba_bytes, named};
use crate::profile::{DriveProfile, SlowMedium};
use nvmed_nvm::{BufferClock, FlushTo, Prefetch};
use nvmed_units::parse_bytes;
use std::path::PathBuf;

/// Memory that keeps its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmSpec {
    /// Path of the file that holds its bytes; empty of memory that goes with its holder, or its process.
    pub path: String,
    /// `size=`: bytes, for creation or for memory without a file.
    pub size_bytes: Option<u64>,
    /// `flush=`.
    pub flush: FlushTo,
    /// `lba=`: 512 or 4096 bytes.
    pub lba_bytes: u32,
    /// What stands in front of it.
    pub buffer: Option<NvmBuffer>,
    /// Of memory that another process holds, that one's descriptor as a path; no part of the string.
    pub held: Option<PathBuf>,
}

/// A buffer in front of memory that is slow or wears.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmBuffer {
    /// `profile=`: the name of a built-in profile of a medium, or the path of a file.
    pub profile: String,
    /// `buffer=`: its bytes.
    pub bytes: u64,
    /// `clock=`.
    pub clock: BufferClock,
    /// `prefetch=`: whose word counts for what comes ahead.
    pub prefetch: Prefetch,
}

impl NvmSpec {
    /// What is known, for messages.
    pub(super) const OPTIONS: &str = "size=1G, flush=host|process|dax, lba=512|4096, profile=nand|FILE, \
                                    buffer=64M, clock=virtual|waited, prefetch=off|device|hints";

    pub(super) fn new(path: &str) -> Self {
        let path = path.to_owned();
        Self { path, size_bytes: None, flush: FlushTo::Host, lba_bytes: 512, buffer: None, held: None }
    }

    /// Whether something says where its bytes are.
    pub(super) fn check(&self) -> Result<(), SpecError> {
        if let Some(buffer) = &self.buffer {
            if buffer.profile.is_empty() || buffer.bytes == 0 {
                return Err(SpecError::HalfBuffer);
            }
            if !DriveProfile::is_file(&buffer.profile) {
                SlowMedium::named(&buffer.profile).map_err(|fault| SpecError::UnknownProfile { fault })?;
            }
        }
        // Without a file it is in memory, as large as is said.
        if self.size_bytes.is_some() && self.flush != FlushTo::Dax {
            Ok(())
        } else {
            named(&self.path, "nvm", "nvm:disk.img")
        }
    }

    pub(super) fn set(&mut self, (key, value): (&str, &str)) -> Option<()> {
        match (key, value) {
            ("size", size) => self.size_bytes = Some(parse_bytes(size).ok()?),
            ("flush", "host") => self.flush = FlushTo::Host,
            ("flush", "process") => self.flush = FlushTo::Process,
            ("flush", "dax") => self.flush = FlushTo::Dax,
            ("lba", bytes) => self.lba_bytes = lba_bytes(bytes)?,
            ("profile", name) if !name.is_empty() => name.clone_into(&mut self.front().profile),
            ("buffer", size) => self.front().bytes = parse_bytes(size).ok().filter(|&bytes| bytes > 0)?,
            ("clock", "virtual") => self.front().clock = BufferClock::Virtual,
            ("clock", "waited") => self.front().clock = BufferClock::Waited,
            ("prefetch", "off") => self.front().prefetch = Prefetch::Off,
            ("prefetch", "device") => self.front().prefetch = Prefetch::Device,
            ("prefetch", "hints") => self.front().prefetch = Prefetch::Hints,
            _ => return None,
        }
        Some(())
    }

    fn front(&mut self) -> &mut NvmBuffer {
        self.buffer.get_or_insert_default()
    }

    pub(super) fn options(&self) -> Vec<String> {
        let mut options: Vec<_> = self.size_bytes.map(|bytes| format!("size={bytes}")).into_iter().collect();
        match self.flush {
            FlushTo::Host => {}
            FlushTo::Process => options.push("flush=process".to_owned()),
            FlushTo::Dax => options.push("flush=dax".to_owned()),
        }
        if self.lba_bytes != 512 {
            options.push(format!("lba={}", self.lba_bytes));
        }
        if let Some(buffer) = &self.buffer {
            options.push(format!("profile={}", buffer.profile));
            options.push(format!("buffer={}", buffer.bytes));
            if buffer.clock == BufferClock::Waited {
                options.push("clock=waited".to_owned());
            }
            match buffer.prefetch {
                Prefetch::Off => options.push("prefetch=off".to_owned()),
                Prefetch::Device => options.push("prefetch=device".to_owned()),
                Prefetch::Hints => {}
            }
        }
        options
    }
}
