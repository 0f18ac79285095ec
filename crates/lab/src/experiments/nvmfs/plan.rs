//! What is done in a guest, and the regions of it.

use std::fmt::Write;

/// What a program does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Reads all of it; nothing of it is cached.
    Read,
    /// Overwrites all of it, whose blocks are allocated, and syncs it once, at the end.
    Overwrite,
    /// Appends to a new one, and syncs it after each call.
    Append,
}

/// A load: an operation on a file of a size, in calls of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub operation: Operation,
    /// Size of the file; what is appended is [`APPENDS`] calls.
    pub mib: u64,
    pub call_bytes: u64,
}

/// Calls of an append.
const APPENDS: u64 = 512;
/// The paper's buffer.
pub(super) const CALL_BYTES: u64 = 8192;

impl Load {
    /// Reads in the paper's calls.
    pub(super) fn read(mib: u64) -> Self {
        Self { operation: Operation::Read, mib, call_bytes: CALL_BYTES }
    }

    /// Overwrites in the paper's calls.
    pub(super) fn overwrite(mib: u64) -> Self {
        Self { operation: Operation::Overwrite, mib, call_bytes: CALL_BYTES }
    }

    /// Appends of 4 KiB.
    pub(super) const APPEND: Self = Self { operation: Operation::Append, mib: 0, call_bytes: 4096 };
}

/// Contenders and their regions, as lines for the guest's shell. Each group is a subshell: what cannot be had ends it,
/// and the next one goes on.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The lines.
    pub script: String,
    /// Whose each region is, and what is done in it, by its number.
    pub regions: Vec<(String, Load)>,
}

impl Plan {
    /// Begins a group, the first contender of which is `name`.
    pub(super) fn group(&mut self, name: &str, lines: &[&str]) {
        let _ = writeln!(self.script, "(contender='{name}'");
        self.lines(lines);
    }

    /// Lines of the group.
    pub(super) fn lines(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| _ = writeln!(self.script, "{line}"));
    }

    /// Regions of a contender; `words` are more of what `file-load` takes.
    pub(super) fn regions(&mut self, name: &str, words: &str, loads: &[Load]) {
        let _ = writeln!(self.script, "contender='{name}'");
        for load in loads {
            let id = self.regions.len();
            let (operation, file, size) = match load.operation {
                Operation::Read => ("read", format!("f{}", load.mib), load.mib),
                Operation::Overwrite => ("write", format!("f{}", load.mib), load.mib),
                Operation::Append => ("append", format!("a{id}"), APPENDS),
            };
            let _ =
                writeln!(self.script, "region {operation} {id} {file} {size} {} {words}", load.call_bytes);
            self.regions.push((name.to_owned(), *load));
        }
    }

    /// Ends the group.
    pub(super) fn end(&mut self) {
        self.script += ")\ngone\n";
    }
}
