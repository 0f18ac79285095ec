//! What clients asked their server for, and what they answered themselves (docs/seeing.md, "A server"): read from the
//! server's counters, and shown; and how the server of a run leaves the last ones to its holder.

use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Environment variable that tells a run's server the file for its last counters.
const COUNTERS_VARIABLE: &str = "NVMED_COUNTERS";

/// Calls of clients: those that a server answered, and the others.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Trips {
    /// Calls that a client made and waited for.
    pub round_trips: u64,
    /// Messages over sockets, by kind.
    pub messages: BTreeMap<String, u64>,
    pub spared: Spared,
}

/// Calls that were not made, by what made them needless; of reads the bytes too.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Spared {
    pub names: u64,
    pub shelf_reads: u64,
    pub shelf_bytes: u64,
    pub window_reads: u64,
    pub window_bytes: u64,
    pub opens: u64,
    pub closes: u64,
    pub writes: u64,
    pub changes: u64,
    pub syncs: u64,
}

impl Spared {
    /// Bytes that were read without a call.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.shelf_bytes.wrapping_add(self.window_bytes)
    }
}

impl Trips {
    /// Three lines for people.
    pub(crate) fn text(&self) -> String {
        let messages: u64 = self.messages.values().sum();
        let kinds: Vec<_> = self.messages.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
        let spared = &self.spared;
        format!(
            "calls of the server: {} round trips, {messages} messages{kinds}\n\
             without a call: {} names and statuses, {} reads from the shelf, {} reads from windows, {} syncs\n\
             posted: {} opens, {} closes, {} writes, {} changes\n",
            self.round_trips,
            spared.names,
            spared.shelf_reads,
            spared.window_reads,
            spared.syncs,
            spared.opens,
            spared.closes,
            spared.writes,
            spared.changes,
        )
    }
}

/// Memory for the last counters of a run's server, in the process that holds the device.
pub(crate) struct LastCounters(OwnedFd);

impl LastCounters {
    /// # Errors
    /// The host has no memory or descriptor left.
    pub(crate) fn begin() -> Result<Self, Errno> {
        rustix::fs::memfd_create("nvmed-counters", MemfdFlags::CLOEXEC).map(Self)
    }

    /// The memory, which the server finds by its path.
    pub(crate) fn memory(&self) -> &OwnedFd {
        &self.0
    }

    /// Tells the server the path.
    pub(crate) fn tell(server: &mut Command, path: &Path) {
        server.env(COUNTERS_VARIABLE, path);
    }

    /// What the server has left; none of a run without one, and of one that died.
    pub(crate) fn read(self) -> Option<Trips> {
        // The server's offset is another one.
        serde_json::from_reader(File::from(self.0)).ok()
    }
}

/// Whether this process, the server of a run, is to leave its last counters.
pub(crate) fn are_asked_for() -> bool {
    std::env::var_os(COUNTERS_VARIABLE).is_some()
}

/// Leaves the last counters of this process, the server of a run.
///
/// # Errors
/// The holder is gone.
pub(crate) fn leave(counters: &str) -> std::io::Result<()> {
    std::env::var_os(COUNTERS_VARIABLE).map_or(Ok(()), |file| std::fs::write(file, counters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mechanism_has_its_number_in_the_text() {
        let told = r#"{"round_trips": 12, "messages": {"lane": 3, "hello": 1}, "other": 0, "spared": {
            "names": 21, "shelf_reads": 22, "window_reads": 23, "syncs": 24, "opens": 25, "closes": 26, "writes": 27,
            "changes": 28}}"#;
        let trips: Trips = serde_json::from_str(told).unwrap();
        assert_eq!(
            trips.text(),
            "calls of the server: 12 round trips, 4 messages (hello 1, lane 3)\n\
             without a call: 21 names and statuses, 22 reads from the shelf, 23 reads from windows, 24 syncs\n\
             posted: 25 opens, 26 closes, 27 writes, 28 changes\n"
        );
    }
}
