//! A trace on a drive, as a cell of a sweep: what is asked, and what is answered.

use crate::digest::Digest;
use crate::input::{Input, InputError, Reading};
use crate::times::Times;
use crate::{Simulated, Simulation};
use nvmed_flash::{Counts, Profile, ProfileError};

/// The version of what trials answer: another one than before as soon as any trial may answer something else, so that
/// nobody takes kept answers for those of this program.
pub(crate) const ANSWERS_VERSION: u64 = 2;

/// A trace that was read once, and is known by the digest of its requests.
#[derive(Clone, Debug)]
pub struct Digested {
    /// The trace.
    pub input: Input,
    /// The digest of its requests.
    pub digest: u64,
    /// How many they are.
    pub requests: u64,
    /// To how many devices; a trial gives those of all of them to one drive.
    pub devices: u64,
}

impl Digested {
    /// Reads a trace to its end; what was read says what was malformed.
    ///
    /// # Errors
    /// [`InputError`]: it cannot be read.
    pub fn of(input: Input) -> Result<(Self, Reading), InputError> {
        let (mut reading, mut requests) = (input.open()?, 0);
        for request in reading.by_ref() {
            request?;
            requests += 1;
        }
        Ok((Self { input, digest: reading.digest(), requests, devices: reading.devices() }, reading))
    }
}

/// A trace on a new drive of its own.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The drive.
    pub drive: &'a Profile,
    /// Whether the drive has been written at random for long before.
    pub is_used: bool,
    /// The trace.
    pub trace: &'a Digested,
}

/// What a drive did with a trace. Integers, so that it is the same wherever it is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Requests.
    pub requests: u64,
    /// Sum of their response times, nanoseconds.
    pub response_sum_ns: u64,
    /// Response time that 99 of 100 do not exceed, or at most 1/64 more, nanoseconds.
    pub p99_ns: u64,
    /// Bytes that the trace wrote.
    pub written_bytes: u64,
    /// Units that the host had programmed.
    pub host_units: u64,
    /// Units of all programs.
    pub programmed_units: u64,
    /// Units that collection moved.
    pub moved_units: u64,
    /// Blocks that were erased.
    pub erases: u64,
    /// Commands that a worn-out drive refused.
    pub refused: u64,
    /// Requests that lie beyond the drive's end, and were moved into it.
    pub beyond: u64,
}

/// Why a trial has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// The trace cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// There is no such drive.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The trace is another one than it was when it was read first.
    #[error("{0}: the trace has changed while it was read; begin again when nobody writes it any more")]
    Changed(String),
}

impl Trial<'_> {
    /// What the answer depends on, all of it, as a number.
    #[must_use]
    pub fn key(&self) -> u64 {
        let mut digest = Digest::default();
        digest.number(ANSWERS_VERSION);
        // Fields that a profile gets later are in its text, too.
        digest.text(&format!("{:?}", self.drive));
        digest.number(self.is_used.into());
        digest.number(self.trace.digest);
        digest.value()
    }

    /// Simulates it. Memory: the drive's map, and a bit for each unit that the trace uses, with a bound.
    ///
    /// # Errors
    /// [`TrialError`]: the trace cannot be read, or the profile is none.
    pub fn run(&self) -> Result<Answer, TrialError> {
        let [mut first, mut second] = [self.trace.input.open()?, self.trace.input.open()?];
        let mut responses = Times::default();
        let simulation = Simulation::new(self.drive, self.is_used)?;
        let simulated = simulation.serve(first.by_ref(), second.by_ref(), |done| {
            responses.note(done.response_ns().unwrap_or(0));
            Ok(())
        })?;
        if [first.digest(), second.digest()] != [self.trace.digest; 2] {
            return Err(TrialError::Changed(self.trace.input.name().to_owned()));
        }
        Ok(Answer::of(&simulated, &responses))
    }
}

impl Answer {
    fn of(simulated: &Simulated, responses: &Times) -> Self {
        let Simulated { requests, written_bytes, moved, refused, counts, .. } = *simulated;
        Self {
            requests,
            response_sum_ns: responses.sum_ns(),
            p99_ns: responses.bucket_ns(99.0),
            written_bytes,
            host_units: counts.host_units,
            programmed_units: counts.programmed_units,
            moved_units: counts.moved_units,
            erases: counts.erases,
            refused,
            beyond: moved,
        }
    }

    /// Mean response time, nanoseconds; 0 of a trace without requests.
    #[must_use]
    pub fn response_ns(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.response_sum_ns as f64 / self.requests as f64 }
    }

    /// What it was made of, as far as it is in it.
    fn simulated(&self) -> Simulated {
        let mut counts = Counts::default();
        (counts.host_units, counts.programmed_units) = (self.host_units, self.programmed_units);
        Simulated { written_bytes: self.written_bytes, counts, ..Simulated::default() }
    }

    /// As [`Simulated::utilization`].
    #[must_use]
    pub fn utilization(&self) -> f64 {
        self.simulated().utilization()
    }

    /// As [`Counts::amplification`].
    #[must_use]
    pub fn amplification(&self) -> f64 {
        self.simulated().counts.amplification()
    }
}
