//! A call as its server has it: copied out of the lane.

use crate::lane::{DATA_BYTES_MAX, LaneError, MESSAGE_BYTES_MAX};
use crate::message::Call;

/// Where the copy of a lane's data begins.
const ALIGN: usize = 4096;
/// A lane that was not used for a while does not keep more than this for data.
const DATA_BYTES_KEPT: usize = 64 << 10;

/// A call as the server has it: its own copy, which the client cannot change any more.
#[derive(Debug)]
pub struct Request {
    /// The call.
    pub message: Message,
    /// Its data, and room for the answer's.
    pub data: Data,
    /// Whether the client says that its caller is urgent.
    pub is_urgent: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            message: Message { bytes: vec![0; MESSAGE_BYTES_MAX], len: 0 },
            data: Data::default(),
            is_urgent: false,
        }
    }
}

impl Request {
    /// Its lane has ended: what it keeps for the next one is little.
    pub fn rest(&mut self) {
        self.data.slept();
    }
}

/// The copy of a lane's message.
#[derive(Debug)]
pub struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: usize,
}

impl Message {
    /// The call.
    ///
    /// # Errors
    /// [`LaneError::Message`].
    pub fn call(&self) -> Result<Call<'_>, LaneError> {
        match postcard::take_from_bytes(&self.bytes[..self.len]) {
            Ok((call, [])) => Ok(call),
            _ => Err(LaneError::Message),
        }
    }
}

/// The copy of a lane's data, and room for an answer's. It grows to what was needed so far.
#[derive(Debug, Default)]
pub struct Data {
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: usize,
}

impl Data {
    /// What came with the call.
    #[must_use]
    pub fn given(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        let start = self.start();
        &self.bytes[start..start + self.len]
    }

    /// Room for `bytes`, at most the data area's; it holds what was there before, and begins at a page's boundary, as
    /// direct I/O wants it.
    ///
    /// # Panics
    /// A mistake of the caller's: it is more than the data area has.
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= DATA_BYTES_MAX, "{bytes} bytes in a lane's data area of {DATA_BYTES_MAX}");
        if self.bytes.len() < bytes + ALIGN {
            let mut grown = vec![0; bytes + ALIGN];
            let start = start(&grown);
            grown[start..start + self.len].copy_from_slice(self.given());
            self.bytes = grown;
        }
        let start = self.start();
        &mut self.bytes[start..start + bytes]
    }

    /// Makes `bytes` what came with a call.
    ///
    /// # Panics
    /// As [`Data::room`].
    pub fn give(&mut self, bytes: &[u8]) {
        self.len = 0;
        self.room(bytes.len()).copy_from_slice(bytes);
        self.len = bytes.len();
    }

    fn start(&self) -> usize {
        start(&self.bytes)
    }

    /// Nobody has called for long.
    pub(crate) fn slept(&mut self) {
        if self.bytes.len() > DATA_BYTES_KEPT {
            *self = Self::default();
        }
    }
}

/// Where the first page in a buffer begins.
fn start(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr().wrapping_neg() % ALIGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "1048577 bytes in a lane's data area of 1048576")]
    fn more_data_than_the_area_has_is_our_mistake() {
        Data::default().room(DATA_BYTES_MAX + 1);
    }
}
