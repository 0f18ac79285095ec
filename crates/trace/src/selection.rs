//! Some of the requests of a trace.

use crate::format::time_ns;
use crate::request::{Catalogue, Names, Op, Request};

/// Which requests of a trace are wanted: those that every part of it has. An empty list and a time that is not there
/// mean all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Names of devices; the empty one is that of a device that is not told.
    pub devices: Vec<String>,
    /// Names of processes, in the same way.
    pub processes: Vec<String>,
    /// What they do.
    pub ops: Vec<Op>,
    /// They do not arrive before this, in nanoseconds from the trace's zero.
    pub from_ns: Option<u64>,
    /// They arrive before this.
    pub until_ns: Option<u64>,
}

impl Selection {
    /// The nanoseconds that a text means: a number and `s`, `ms`, `us` or `ns`; without one of these, seconds.
    #[must_use]
    pub fn time_ns(text: &str) -> Option<u64> {
        time_ns(text)
    }
}

/// Whether names are among those that are wanted, by their numbers.
#[derive(Clone, Debug)]
struct Wanted {
    names: Vec<String>,
    found: Vec<Option<bool>>,
}

impl Wanted {
    fn has(&mut self, number: u32, names: &Names) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let at = number as usize;
        if self.found.len() <= at {
            self.found.resize(at + 1, None);
        }
        *self.found[at].get_or_insert_with(|| self.names.iter().any(|name| name == names.name(number)))
    }
}

/// Chooses requests of one trace.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    devices: Wanted,
    processes: Wanted,
    ops: Vec<Op>,
    from_ns: u64,
    until_ns: u64,
}

impl Chooser {
    pub(crate) fn new(selection: &Selection) -> Self {
        let wanted = |names: &[String]| Wanted { names: names.to_vec(), found: Vec::new() };
        Self {
            devices: wanted(&selection.devices),
            processes: wanted(&selection.processes),
            ops: selection.ops.clone(),
            from_ns: selection.from_ns.unwrap_or(0),
            until_ns: selection.until_ns.unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn takes(&mut self, request: &Request, names: &Catalogue) -> bool {
        (self.from_ns..self.until_ns).contains(&request.arrival_ns)
            && (self.ops.is_empty() || self.ops.contains(&request.op))
            && self.devices.has(request.device, &names.devices)
            && self.processes.has(request.process, &names.processes)
    }
}
