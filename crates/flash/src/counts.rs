//! What a translation layer has done.

/// Units that a drive has written, and why, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Units that the host has written.
    pub host_units: u64,
    /// Units that were moved by garbage collection.
    pub moved_units: u64,
    /// Units of all programs, padding among them.
    pub programmed_units: u64,
    /// Programs.
    pub programs: u64,
    /// Pages that were read, for the host or to be moved, or of the map.
    pub page_reads: u64,
    /// Erases.
    pub erases: u64,
    /// Uses of map pages that were in the map cache, or had no entries.
    pub map_hits: u64,
    /// Uses of map pages that were not.
    pub map_misses: u64,
    /// Map pages that were read.
    pub map_reads: u64,
    /// Map pages that were written, without those that were moved.
    pub map_writes: u64,
    /// Map pages and units that were put into the host memory buffer.
    pub host_puts: u64,
    /// Map pages and units that came from there.
    pub host_gets: u64,
}

impl Counts {
    /// What was done since it was `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            host_units: self.host_units - before.host_units,
            moved_units: self.moved_units - before.moved_units,
            programmed_units: self.programmed_units - before.programmed_units,
            programs: self.programs - before.programs,
            page_reads: self.page_reads - before.page_reads,
            erases: self.erases - before.erases,
            map_hits: self.map_hits - before.map_hits,
            map_misses: self.map_misses - before.map_misses,
            map_reads: self.map_reads - before.map_reads,
            map_writes: self.map_writes - before.map_writes,
            host_puts: self.host_puts - before.host_puts,
            host_gets: self.host_gets - before.host_gets,
        }
    }

    /// Write amplification: what was programmed over what the host has written; 1 before it has written anything.
    #[must_use]
    pub fn amplification(&self) -> f64 {
        if self.host_units == 0 { 1.0 } else { self.programmed_units as f64 / self.host_units as f64 }
    }
}
