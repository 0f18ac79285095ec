//! A request to a block device, and the names in a trace.

use std::collections::HashMap;

/// Longest request that is taken for one, but for a Discard.
const REQUEST_BYTES_MAX: u64 = 4 << 30;
/// Devices end here.
pub(crate) const OFFSET_MAX: u64 = 1 << 56;
/// Times end here, in the year 2262: the native format's are signed.
pub(crate) const TIME_NS_MAX: u64 = i64::MAX as u64;
/// Most devices, and processes, of one trace.
const NAMES_MAX: usize = 1 << 20;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Says that bytes are not needed any more.
    Discard,
    /// Makes durable what was written before.
    Flush,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Flush];

    /// One of two things, by what it does to bytes; none of what reads and writes nothing.
    pub(crate) fn either<T>(self, read: T, write: T) -> Option<T> {
        match self {
            Self::Read => Some(read),
            Self::Write => Some(write),
            Self::Discard | Self::Flush => None,
        }
    }

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Flush => "flush",
        }
    }
}

/// What a request says besides: bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u32);

impl Flags {
    /// It completes when it is durable (Force Unit Access).
    pub const FUA: Self = Self(1);
    /// Somebody waits for it.
    pub const SYNC: Self = Self(2);
    /// It is a file system's own.
    pub const META: Self = Self(4);
    /// Nobody has asked for it yet.
    pub const AHEAD: Self = Self(8);

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it has all bits of another.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A request to a block device. Times are nanoseconds from the trace's zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// To which device: an index of its trace's [`Names`].
    pub device: u32,
    /// Whose it is: an index, as well.
    pub process: u32,
    /// What it does.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 of a Flush only.
    pub bytes: u64,
    /// When it was put into the queue.
    pub arrival_ns: u64,
    /// When it was given to the device.
    pub start_ns: Option<u64>,
    /// When the device had done it.
    pub finish_ns: Option<u64>,
    /// Whether it could not be served at once, where the trace says it itself.
    pub waited: Option<bool>,
    /// What it says besides.
    pub flags: Flags,
}

/// What is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It has no bytes.
    #[error("it has no bytes")]
    Empty,
    /// It is longer than any request.
    #[error("{0} bytes are more than a request has (4 GiB)")]
    Long(u64),
    /// It is beyond what any device has.
    #[error("it ends beyond 2^56 bytes")]
    Beyond,
    /// It is given to the device before it arrives, or is done before that.
    #[error("its times go back")]
    Times,
    /// A time of it is beyond all that a trace has.
    #[error("it has a time beyond 2^63 ns")]
    Ages,
}

impl Request {
    /// A request that arrives at `arrival_ns`, of which no more is known.
    #[must_use]
    pub fn new(op: Op, offset: u64, bytes: u64, arrival_ns: u64) -> Self {
        Self {
            device: 0,
            process: 0,
            op,
            offset,
            bytes,
            arrival_ns,
            start_ns: None,
            finish_ns: None,
            waited: None,
            flags: Flags::default(),
        }
    }

    /// Itself, if it can be a request.
    ///
    /// # Errors
    /// It has no bytes, too many, ends beyond any device, or its times go back or are beyond all that can be.
    pub fn checked(self) -> Result<Self, RequestError> {
        self.check().map(|()| self)
    }

    /// Whether it can be a request.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), RequestError> {
        if self.bytes == 0 && self.op != Op::Flush {
            return Err(RequestError::Empty);
        }
        if self.bytes > REQUEST_BYTES_MAX && self.op != Op::Discard {
            return Err(RequestError::Long(self.bytes));
        }
        if self.offset.checked_add(self.bytes).is_none_or(|end| end > OFFSET_MAX) {
            return Err(RequestError::Beyond);
        }
        let last = self.arrival_ns.max(self.start_ns.unwrap_or(0)).max(self.finish_ns.unwrap_or(0));
        if last > TIME_NS_MAX {
            return Err(RequestError::Ages);
        }
        let started = self.start_ns.unwrap_or(self.arrival_ns);
        if started < self.arrival_ns || self.finish_ns.is_some_and(|finish| finish < started) {
            return Err(RequestError::Times);
        }
        Ok(())
    }

    /// The byte after its last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// How long the device took.
    #[must_use]
    pub fn service_ns(&self) -> Option<u64> {
        Some(self.finish_ns? - self.start_ns?)
    }

    /// How long it took from its arrival on.
    #[must_use]
    pub fn response_ns(&self) -> Option<u64> {
        Some(self.finish_ns? - self.arrival_ns)
    }
}

/// Names of devices, or of processes; number 0 is the one that is not told.
#[derive(Clone, Debug)]
pub struct Names {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Default for Names {
    fn default() -> Self {
        Self { names: vec![String::new()], numbers: HashMap::from([(String::new(), 0)]) }
    }
}

impl Names {
    /// The number of a name, which is a new one if it was not seen before; `None` when there are too many.
    pub fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(&number) = self.numbers.get(name) {
            return Some(number);
        }
        if self.names.len() == NAMES_MAX {
            return None;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// Whether a device or process is called so.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// The name of a number; of none that was given, the one that is not told.
    #[must_use]
    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }

    /// How many there are, the one that is not told among them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len()
    }
}

/// The names in a trace.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// Of its devices.
    pub devices: Names,
    /// Of its processes.
    pub processes: Names,
}
