//! How far a replay has come, in a file: lines `key value`, and the CRC-32C of all before in the last one.

use crate::error::ReplayError;
use crate::feed::Outcome;
use nvmed_trace::{OutputFile, Request};
use std::io;
use std::path::Path;

/// Longest file that is taken for a state.
const BYTES_MAX: u64 = 64 << 10;
/// The first line.
const HEADER: &str = "nvmed replay 2";
/// Key of the last line.
const CRC: &str = "crc32c";

/// Which replay it is: a state of one is none of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Digest of the trace's requests ([`crate::Survey::digest`]).
    pub trace: u64,
    /// The device, on one line.
    pub target: String,
    /// What decides what is done with it, on one line.
    pub options: String,
    /// What is written follows from it.
    pub seed: u64,
}

/// How far a replay has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Requests that are done, none before them being not done.
    pub done: u64,
    /// Legs, this one among them.
    pub legs: u32,
    /// When the last of them was done, in nanoseconds of the replay's time.
    pub elapsed_ns: u64,
    /// Of those that are done, the ones to which the device said no.
    pub failed: u64,
    /// Of those, the ones that the device does not offer.
    pub left_out: u64,
    /// Of those, the ones that had a deadline.
    pub timed: u64,
    /// Of these, the ones that were given to the device later than the bound permits.
    pub late: u64,
    /// Requests in the file of results; a format may not be able to say all that are done.
    pub rows: u64,
    /// Whether the user has said that what the device holds may be lost.
    pub may_destroy: bool,
}

/// A value on one line.
fn plain(text: &str) -> String {
    text.replace(|letter: char| letter.is_control(), " ")
}

impl State {
    /// Takes a request that is done. With a bound, in nanoseconds, it had a deadline: its arrival.
    pub fn push(&mut self, request: &Request, outcome: Outcome, late_bound_ns: Option<u64>) {
        self.done += 1;
        let end = request.finish_ns.or(request.start_ns).unwrap_or(0);
        self.elapsed_ns = self.elapsed_ns.max(end);
        self.failed += u64::from(outcome == Outcome::Failed);
        self.left_out += u64::from(outcome == Outcome::LeftOut);
        if let Some(bound_ns) = late_bound_ns.filter(|_| outcome != Outcome::LeftOut) {
            let start_ns = request.start_ns.unwrap_or(request.arrival_ns);
            self.timed += 1;
            self.late += u64::from(start_ns.saturating_sub(request.arrival_ns) > bound_ns);
        }
    }

    /// Whether 99 % of the requests of all legs were given to the device within the bound. A closed loop has no
    /// deadlines, and is on time.
    #[must_use]
    pub fn is_on_time(&self) -> bool {
        u128::from(self.late) * 100 <= u128::from(self.timed)
    }

    /// The state of a replay in a file; none without a file.
    ///
    /// # Errors
    /// The host does not let us read it, it is no state, or that of another replay.
    pub fn load(path: &Path, identity: &Identity) -> Result<Option<Self>, ReplayError> {
        let failed = |error| ReplayError::State { path: path.to_owned(), error };
        let bad = |what| ReplayError::NoState { path: path.to_owned(), what };
        let metadata = match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed)?,
        };
        if !metadata.is_file() || metadata.len() > BYTES_MAX {
            return Err(bad("it is no short file"));
        }
        let text = String::from_utf8(std::fs::read(path).map_err(failed)?);
        let text = text.map_err(|_| bad("it is no text"))?;
        let (body, crc) =
            text.trim_end().rsplit_once('\n').ok_or_else(|| bad("its first line is another one"))?;
        if !body.starts_with(HEADER) {
            return Err(bad("its first line is another one"));
        }
        if crc != format!("{CRC} {:08x}", crc32c::crc32c(body.as_bytes())) {
            return Err(bad("its checksum is wrong"));
        }
        let value = |key: &str| {
            body.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
                .ok_or_else(|| bad("a line is missing"))
        };
        let is = [
            ("trace", format!("{:016x}", identity.trace), "another trace"),
            ("target", plain(&identity.target), "another target"),
            ("options", plain(&identity.options), "other options"),
            ("seed", identity.seed.to_string(), "another seed"),
        ];
        for (key, is, what) in is {
            if value(key)? != is {
                return Err(ReplayError::OtherState { path: path.to_owned(), what });
            }
        }
        let number = |key| value(key)?.parse::<u64>().map_err(|_| bad("a number is none"));
        let legs = u32::try_from(number("legs")?).map_err(|_| bad("a number is none"))?;
        let may_destroy = match number("may_destroy")? {
            flag @ 0..=1 => flag == 1,
            _ => return Err(bad("a number is none")),
        };
        Ok(Some(Self {
            done: number("done")?,
            legs,
            elapsed_ns: number("elapsed_ns")?,
            failed: number("failed")?,
            left_out: number("left_out")?,
            timed: number("timed")?,
            late: number("late")?,
            rows: number("rows")?,
            may_destroy,
        }))
    }

    /// Puts it into a file, which holds this state or the one before, whatever happens meanwhile.
    ///
    /// # Errors
    /// The host does not let us write it.
    pub fn save(&self, path: &Path, identity: &Identity) -> Result<(), ReplayError> {
        let Self { done, legs, elapsed_ns, failed, left_out, timed, late, rows, may_destroy } = *self;
        let body = format!(
            "{HEADER}\ntrace {:016x}\ntarget {}\noptions {}\nseed {}\ndone {done}\nlegs {legs}\nelapsed_ns \
             {elapsed_ns}\nfailed {failed}\nleft_out {left_out}\ntimed {timed}\nlate {late}\nrows {rows}\n\
             may_destroy {}",
            identity.trace,
            plain(&identity.target),
            plain(&identity.options),
            identity.seed,
            u8::from(may_destroy)
        );
        let text = format!("{body}\n{CRC} {:08x}\n", crc32c::crc32c(body.as_bytes()));
        let written = OutputFile::write(path, text.as_bytes());
        written.map_err(|error| ReplayError::State { path: path.to_owned(), error })
    }
}
