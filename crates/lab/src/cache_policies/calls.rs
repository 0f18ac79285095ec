//! A trace of file calls as requests to the files: each is a device of its own.
//!
//! `open` tells its descriptor last, `read` and `write` move along the file. Files are told apart by path, descriptors
//! that were open before by number.

use nvmed_trace::{CallWords, Op, Request};
use std::collections::HashMap;

/// Files, and how far they were read and written.
#[derive(Default)]
pub(super) struct Calls {
    paths: HashMap<String, u32>,
    open: HashMap<u64, Position>,
    sizes: HashMap<u32, u64>,
}

#[derive(Clone, Copy)]
struct Position {
    object: u32,
    offset: u64,
}

impl Calls {
    /// The request of a line, if it makes one; `None` for a line that is no call, or of which something is missing.
    pub(super) fn line(&mut self, line: &str) -> Option<Option<Request>> {
        let line = CallWords::of(line)?;
        let number = |at| line.number(at);
        let descriptor = || u64::try_from(number(0)?).ok();
        let op = if line.call.ends_with("read") { Op::Read } else { Op::Write };
        Some(match line.call {
            "open" => self.opened(&line)?,
            "read" | "write" => {
                let (descriptor, bytes) = (descriptor()?, number(1)?);
                let at = self.position(descriptor);
                let request = self.moved(op, at.object, at.offset, bytes);
                let offset = request.map_or(at.offset, |request| request.end());
                self.open.insert(descriptor, Position { offset, ..at });
                request
            }
            "pread" | "pwrite" => {
                let (offset, bytes) = (u64::try_from(number(1)?).ok()?, number(2)?);
                let object = self.position(descriptor()?).object;
                self.moved(op, object, offset, bytes)
            }
            "unlink" => {
                let object = self.object(line.arguments.first()?.trim_matches('"'));
                self.gone(object)
            }
            "close" => {
                self.open.remove(&descriptor()?);
                None
            }
            _ => None,
        })
    }

    fn object(&mut self, path: &str) -> u32 {
        let next = self.paths.len() as u32;
        *self.paths.entry(path.to_owned()).or_insert(next)
    }

    fn position(&mut self, descriptor: u64) -> Position {
        let object = self.object(&format!("descriptor {descriptor}"));
        *self.open.entry(descriptor).or_insert(Position { object, offset: 0 })
    }

    fn opened(&mut self, line: &CallWords<'_>) -> Option<Option<Request>> {
        let (path, flags) = (*line.arguments.first()?, *line.arguments.get(1)?);
        let descriptor = line.number(line.arguments.len() - 1)?;
        let Ok(descriptor) = u64::try_from(descriptor) else { return Some(None) };
        let object = self.object(path);
        let size = self.sizes.get(&object).copied().unwrap_or(0);
        let offset = if flags.contains("O_APPEND") { size } else { 0 };
        self.open.insert(descriptor, Position { object, offset });
        Some(if flags.contains("O_TRUNC") { self.gone(object) } else { None })
    }

    fn gone(&mut self, object: u32) -> Option<Request> {
        let size = self.sizes.remove(&object)?;
        request(Op::Discard, object, 0, size)
    }

    fn moved(&mut self, op: Op, object: u32, offset: u64, bytes: i64) -> Option<Request> {
        let request = request(op, object, offset, u64::try_from(bytes).ok()?)?;
        let size = self.sizes.entry(object).or_insert(0);
        *size = (*size).max(request.end());
        Some(request)
    }
}

fn request(op: Op, object: u32, offset: u64, bytes: u64) -> Option<Request> {
    Request { device: object, ..Request::new(op, offset, bytes, 0) }.checked().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_on_files_move_along_them() {
        use Op::{Discard, Read, Write};
        let text = "1 0 open /a O_WRONLY|O_CREAT 36\n1 0 write 36 4\n1 1 write 36 6\n2 2 stat64 \"/x\" 0\n\
                    2 3 pread 99 4096 30\n1 5 open /a O_RDONLY 40\n1 6 read 40 10\n1 6 read 40 -1\n\
                    1 7 open /a O_APPEND 41\n1 8 write 41 1\n1 8 close 41 0\n1 9 unlink \"/a\" 0\n1 9 open /b O_RDWR \
                    -1\n1 9 write 36 9223372036854775807\n1 9 pwrite 36 9223372036854775807 9223372036854775807\n";
        let mut calls = Calls::default();
        let found = text.lines().filter_map(|line| calls.line(line).expect("a call"));
        let found: Vec<_> = found.map(|one| (one.op, one.device, one.offset, one.bytes)).collect();
        // Object 0 is /a, another one the descriptor that was open before the trace began.
        let (a, before) = (found[0].1, found[2].1);
        assert_ne!(a, before);
        assert_eq!(
            found,
            [
                (Write, a, 0, 4),
                (Write, a, 4, 6),
                (Read, before, 4096, 30),
                (Read, a, 0, 10),
                (Write, a, 10, 1),
                (Discard, a, 0, 11),
            ]
        );
        assert!(
            ["1 0 read", "1 0 open /a", "x 0 read 1 1", "1 0 Read 1 1"]
                .iter()
                .all(|line| calls.line(line).is_none())
        );
    }
}
