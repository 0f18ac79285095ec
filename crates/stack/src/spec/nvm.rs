//! `nvm:` in a device string.

use super::{SpecError, lba_bytes, named};
use nvmed_nvm::FlushTo;
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
    /// Of memory that another process holds, that one's descriptor as a path; no part of the string.
    pub held: Option<PathBuf>,
}

impl NvmSpec {
    /// What is known, for messages.
    pub(super) const OPTIONS: &str = "size=1G, flush=host|process|dax, lba=512|4096";

    pub(super) fn new(path: &str) -> Self {
        let path = path.to_owned();
        Self { path, size_bytes: None, flush: FlushTo::Host, lba_bytes: 512, held: None }
    }

    /// Whether something says where its bytes are.
    pub(super) fn check(&self) -> Result<(), SpecError> {
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
            _ => return None,
        }
        Some(())
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
        options
    }
}
