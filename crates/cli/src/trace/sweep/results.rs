//! The file of what a sweep has found: a line a cell, so that the sweep goes on where it was ended
//! (docs/trace.md, "Sweep").

use crate::failure::{Failure, Status};
use nvmed_replay::Answer;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The first line.
const HEAD: &str = "nvmed.sweep 1\n";
/// A line of ours is shorter; what is longer is damage.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines that are kept of a file: those of a hundred of the largest sweeps.
const LINES_MAX: usize = 1_000_000;

/// The file, held against other sweeps.
pub struct Results {
    path: PathBuf,
    file: File,
    /// Answers by key, and the keys in the order of the file.
    known: HashMap<u64, Answer>,
    order: Vec<u64>,
    /// Lines that were damaged.
    pub dropped: u64,
}

impl Results {
    /// Opens a file, or makes it, and reads what is in it.
    ///
    /// # Errors
    /// The host refuses, another sweep has it, or it is something else.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failure = |what: &str| Failure::new(Status::Failed, format!("{}: {what}", path.display()));
        let refused = |error: std::io::Error| host(path, &error);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(refused)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(failure("another sweep writes it; wait for it, or name another file"));
            }
            Err(errno) => return Err(Failure::host(path.display(), errno)),
        }
        // Another sweep may have put its last version there between our opening and its end.
        let (ours, there) = (file.metadata().map_err(refused)?, std::fs::metadata(path).map_err(refused)?);
        if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
            return Err(failure("another sweep has just ended in it; begin again"));
        }
        if !ours.is_file() {
            return Err(failure("it is no regular file; results are kept in one"));
        }
        let mut results =
            Self { path: path.to_owned(), file, known: HashMap::new(), order: Vec::new(), dropped: 0 };
        results.read().map_err(refused)?.map_err(failure)?;
        Ok(results)
    }

    /// Reads the lines, and leaves the file ready for more.
    fn read(&mut self) -> std::io::Result<Result<(), &'static str>> {
        let mut input = BufReader::new(self.file.try_clone()?);
        let mut head = Vec::new();
        input.by_ref().take(HEAD.len() as u64).read_to_end(&mut head)?;
        if !HEAD.as_bytes().starts_with(&head) {
            return Ok(Err("it holds something else than a sweep's results; name another file"));
        }
        if head.len() < HEAD.len() {
            // New, or ended within its first line.
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(HEAD.as_bytes())?;
            return Ok(Ok(()));
        }
        let mut end = HEAD.len() as u64;
        let mut line = Vec::new();
        loop {
            line.clear();
            input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            match parse(&line) {
                _ if line.is_empty() => break,
                Some((key, answer)) if self.order.len() < LINES_MAX => self.keep(key, answer),
                Some(_) => return Ok(Err("it holds more than a million lines; name another file")),
                None => self.dropped += 1,
            }
            let is_torn = (line.len() as u64) < LINE_BYTES_MAX && !line.ends_with(b"\n");
            end += if is_torn { 0 } else { line.len() as u64 };
        }
        // The next line must not join one that was not written to its end.
        self.file.set_len(end)?;
        self.file.seek(SeekFrom::Start(end))?;
        Ok(Ok(()))
    }

    fn keep(&mut self, key: u64, answer: Answer) {
        if self.known.insert(key, answer).is_none() {
            self.order.push(key);
        }
    }

    /// The answer of a key.
    pub fn get(&self, key: u64) -> Option<Answer> {
        self.known.get(&key).copied()
    }

    /// Keeps an answer: it is in the file when this returns.
    ///
    /// # Errors
    /// The host refuses.
    pub fn push(&mut self, key: u64, answer: &Answer) -> Result<(), Failure> {
        self.file.write_all(line(key, answer).as_bytes()).map_err(|error| host(&self.path, &error))?;
        self.keep(key, *answer);
        Ok(())
    }

    /// Writes the file again: first these keys, in their order, then the others.
    ///
    /// # Errors
    /// The host refuses; the file is as it was.
    pub fn finish(self, keys: impl Iterator<Item = u64>) -> Result<(), Failure> {
        let mut text = HEAD.to_owned();
        let mut left = self.known;
        for key in keys.chain(self.order) {
            if let Some(answer) = left.remove(&key) {
                text += &line(key, &answer);
            }
        }
        crate::trace::files::write_whole(&self.path, &text)
    }
}

fn host(path: &Path, error: &std::io::Error) -> Failure {
    Failure::host(path.display(), Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// An answer as JSON, with the units in the names.
pub fn json(answer: &Answer) -> Value {
    json!({
        "requests": answer.requests,
        "response_sum_ns": answer.response_sum_ns,
        "p99_ns": answer.p99_ns,
        "written_bytes": answer.written_bytes,
        "host_units": answer.host_units,
        "programmed_units": answer.programmed_units,
        "moved_units": answer.moved_units,
        "erases": answer.erases,
        "refused": answer.refused,
        "beyond": answer.beyond,
    })
}

fn line(key: u64, answer: &Answer) -> String {
    let text = format!("{key:016x} {}", json(answer));
    format!("{:08x} {text}\n", crc32c::crc32c(text.as_bytes()))
}

/// The key and the answer of a whole line.
fn parse(line: &[u8]) -> Option<(u64, Answer)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (sum, text) = line.split_once(' ')?;
    if u32::from_str_radix(sum, 16).ok()? != crc32c::crc32c(text.as_bytes()) {
        return None;
    }
    let (key, text) = text.split_once(' ')?;
    let told: Value = serde_json::from_str(text).ok()?;
    let number = |name: &str| told.get(name)?.as_u64();
    let answer = Answer {
        requests: number("requests")?,
        response_sum_ns: number("response_sum_ns")?,
        p99_ns: number("p99_ns")?,
        written_bytes: number("written_bytes")?,
        host_units: number("host_units")?,
        programmed_units: number("programmed_units")?,
        moved_units: number("moved_units")?,
        erases: number("erases")?,
        refused: number("refused")?,
        beyond: number("beyond")?,
    };
    Some((u64::from_str_radix(key, 16).ok()?, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_answer_again_and_no_other_line_is() {
        let answer = Answer { requests: 7, p99_ns: u64::MAX, erases: 3, ..Answer::default() };
        let whole = line(u64::MAX - 1, &answer);
        assert_eq!(parse(whole.as_bytes()), Some((u64::MAX - 1, answer)));
        let bytes = whole.as_bytes();
        for at in 0..bytes.len() {
            assert_eq!(parse(&bytes[..at]), None, "cut at {at}");
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 4;
            assert_eq!(parse(&damaged), None, "damaged at {at}");
        }
    }
    #[test]
    fn what_follows_a_torn_line_is_known_when_it_is_ended_again() {
        let path = std::env::temp_dir().join(format!("nvmed-sweep-{}", std::process::id()));
        let answer = |requests| Answer { requests, ..Answer::default() };
        let torn = format!("{HEAD}{}{}", line(1, &answer(1)), &line(2, &answer(2))[..40]);
        std::fs::write(&path, torn).unwrap();
        let open = || Results::open(&path).unwrap_or_else(|failure| panic!("{}", failure.message));
        let mut results = open();
        assert_eq!((results.get(1), results.get(2), results.dropped), (Some(answer(1)), None, 1));
        results.push(3, &answer(3)).unwrap_or_else(|failure| panic!("{}", failure.message));
        drop(results);
        let results = open();
        assert_eq!((results.get(1), results.get(3), results.dropped), (Some(answer(1)), Some(answer(3)), 0));
        std::fs::remove_file(&path).unwrap();
    }
}
