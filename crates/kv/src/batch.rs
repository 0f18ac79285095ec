//! Changes that happen together or not at all, in the encoding that goes to the log.

use crate::{KEY_BYTES_MAX, KvError, VALUE_BYTES_MAX};

/// Bytes before the key of an operation: kind, key length, value length. (A range: its end is the value.)
const OPERATION_HEADER: usize = 5;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;

/// A list of changes for [`crate::Store::apply`]. Reuse one: after `clear` it keeps its memory.
///
/// Later operations on a key win over earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    puts: usize,
    refused: Option<KvError>,
    flush_first: bool,
    headroom: bool,
    spares_headroom: bool,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` to `value`. A key or value that is too long makes `apply` fail.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.put_joined([key, &[], &[]], value);
    }

    /// As [`Batch::put`], of the key that the parts make one after the other.
    #[inline]
    pub fn put_joined(&mut self, key: [&[u8]; 3], value: &[u8]) {
        self.puts += 1;
        self.push(PUT, key, value);
    }

    /// As [`Batch::put_joined`], of the value that `write` appends to what it is given. Nothing is put where `write`
    /// says no, which is answered.
    #[inline]
    pub fn put_written(&mut self, key: [&[u8]; 3], write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let start = self.bytes.len();
        self.push(PUT, key, &[]);
        let before = self.bytes.len();
        if !write(&mut self.bytes) {
            self.bytes.truncate(start);
            return false;
        }
        self.puts += 1;
        let bytes = self.bytes.len() - before;
        match length(bytes, VALUE_BYTES_MAX) {
            // A key that was refused was not put, and nothing of the batch counts.
            Some(value) if before > start => {
                self.bytes[start + 3..start + OPERATION_HEADER].copy_from_slice(&value.to_le_bytes());
            }
            Some(_) => {}
            None => _ = self.refused.get_or_insert(KvError::ValueTooLong { bytes }),
        }
        true
    }

    /// Removes `key`; it need not exist. The whole batch may then use the space kept for deleting.
    pub fn delete(&mut self, key: &[u8]) {
        self.headroom = true;
        self.push(DELETE, [key, &[], &[]], &[]);
    }

    /// Removes every key at or above `from` and below `to`; none, when `to` is not above `from`.
    ///
    /// One record of the log, however many keys there are. Of the batch, only what comes later is spared.
    pub fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        self.headroom = true;
        if to.len() > KEY_BYTES_MAX {
            self.refused.get_or_insert(KvError::KeyTooLong { bytes: to.len() });
        } else {
            self.push(DELETE_RANGE, [from, &[], &[]], to);
        }
    }

    /// Says that a value in this batch names data that was written but not flushed: whoever writes
    /// the batch to the log flushes first, whatever barrier it was asked for.
    pub fn require_flush(&mut self) {
        self.flush_first = true;
    }

    /// Lets the batch use the space kept for deleting, as one with a `delete` in it does.
    pub fn use_headroom(&mut self) {
        self.headroom = true;
    }

    /// Keeps the batch from the space kept for deleting, although it deletes: it moves keys, and frees nothing.
    pub fn spare_headroom(&mut self) {
        self.spares_headroom = true;
    }

    /// Forgets all operations and marks, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.puts = 0;
        (self.refused, self.flush_first) = (None, false);
        (self.headroom, self.spares_headroom) = (false, false);
    }

    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.refused.is_none()
    }

    /// Encoded bytes so far; see [`crate::Store::batch_bytes_max`].
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn push(&mut self, kind: u8, key: [&[u8]; 3], value: &[u8]) {
        let bytes = key.iter().map(|part| part.len()).sum();
        let (Some(key_bytes), Some(value_bytes)) =
            (length(bytes, KEY_BYTES_MAX), length(value.len(), VALUE_BYTES_MAX))
        else {
            let refusal = if bytes > KEY_BYTES_MAX {
                KvError::KeyTooLong { bytes }
            } else {
                KvError::ValueTooLong { bytes: value.len() }
            };
            self.refused.get_or_insert(refusal);
            return;
        };
        let mut header = [kind, 0, 0, 0, 0];
        header[1..3].copy_from_slice(&key_bytes.to_le_bytes());
        header[3..5].copy_from_slice(&value_bytes.to_le_bytes());
        self.bytes.reserve(OPERATION_HEADER + bytes + value.len());
        self.bytes.extend_from_slice(&header);
        for part in key {
            if !part.is_empty() {
                self.bytes.extend_from_slice(part);
            }
        }
        self.bytes.extend_from_slice(value);
    }

    /// The batch that was encoded as `operations`, by a process that died.
    ///
    /// What its data was flushed of is unknown, so it asks for a flush; that it was admitted once
    /// lets it use the headroom.
    pub(crate) fn from_encoded(operations: &[u8]) -> Self {
        let is_put = |operation: &Operation<'_>| matches!(operation, Operation::Put(..));
        let puts = Operations::new(operations).flatten().filter(is_put).count();
        Self {
            bytes: operations.to_vec(),
            puts,
            refused: None,
            flush_first: true,
            headroom: true,
            spares_headroom: false,
        }
    }

    /// The encoded operations, or why there are none.
    pub(crate) fn encoded(&self) -> Result<&[u8], KvError> {
        match &self.refused {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(&self.bytes),
        }
    }

    pub(crate) fn puts(&self) -> usize {
        self.puts
    }

    pub(crate) fn flush_first(&self) -> bool {
        self.flush_first
    }

    pub(crate) fn may_use_headroom(&self) -> bool {
        self.headroom && !self.spares_headroom
    }
}

fn length(bytes: usize, max: usize) -> Option<u16> {
    u16::try_from(bytes).ok().filter(|_| bytes <= max)
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    /// A key and its new value.
    Put(&'a [u8], &'a [u8]),
    /// A key goes.
    Delete(&'a [u8]),
    /// Every key at or above the first and below the second goes.
    DeleteRange(&'a [u8], &'a [u8]),
}

/// Reads encoded operations one by one. Yields `None` at the end, and an error on bytes that are not
/// operations, once.
pub(crate) struct Operations<'a> {
    rest: &'a [u8],
}

/// The bytes are no operations.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'a> Operations<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all of `bytes` is well-formed operations.
    pub(crate) fn are_valid(bytes: &'a [u8]) -> bool {
        Self::new(bytes).all(|operation| operation.is_ok())
    }

    fn take(&mut self) -> Option<Operation<'a>> {
        let (header, rest) = self.rest.split_at_checked(OPERATION_HEADER)?;
        let key_bytes = usize::from(u16::from_le_bytes([header[1], header[2]]));
        let value_bytes = usize::from(u16::from_le_bytes([header[3], header[4]]));
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return None;
        }
        let (key, rest) = rest.split_at_checked(key_bytes)?;
        let (value, rest) = rest.split_at_checked(value_bytes)?;
        self.rest = rest;
        match header[0] {
            PUT => Some(Operation::Put(key, value)),
            DELETE if value.is_empty() => Some(Operation::Delete(key)),
            DELETE_RANGE if value.len() <= KEY_BYTES_MAX => Some(Operation::DeleteRange(key, value)),
            _ => None,
        }
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let operation = self.take();
        if operation.is_none() {
            self.rest = &[];
        }
        Some(operation.ok_or(Malformed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn operations_come_out_as_they_went_in(
            changes in prop::collection::vec(
                (0u8..3, prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 0..40)),
                0..20,
            ),
        ) {
            let mut batch = Batch::new();
            let want: Vec<_> = changes
                .iter()
                .map(|(kind, key, value)| match kind {
                    0 => Operation::Put(key, value),
                    1 => Operation::Delete(key),
                    _ => Operation::DeleteRange(key, value),
                })
                .collect();
            for operation in &want {
                match operation {
                    Operation::Put(key, value) => batch.put(key, value),
                    Operation::Delete(key) => batch.delete(key),
                    Operation::DeleteRange(from, to) => batch.delete_range(from, to),
                }
            }
            let bytes = batch.encoded().unwrap();
            prop_assert!(Operations::are_valid(bytes));
            let read: Vec<_> = Operations::new(bytes).map(Result::unwrap).collect();
            prop_assert_eq!(read, want);
            if let Some((_, cut)) = bytes.split_last() {
                let shorter = &bytes[..cut.len()];
                let whole = Operations::new(shorter).flatten().count();
                prop_assert!(!Operations::are_valid(shorter) && whole < changes.len());
            }
        }

        #[test]
        fn what_is_written_is_what_is_put(
            key in prop::collection::vec(any::<u8>(), 0..40),
            cut in 0usize..40,
            value in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let (mut put, mut written) = (Batch::new(), Batch::new());
            put.put(b"first", b"one");
            written.put(b"first", b"one");
            let refuse = |out: &mut Vec<u8>| {
                out.extend_from_slice(b"nothing");
                false
            };
            prop_assert!(!written.put_written([b"no", b"", b""], refuse));
            put.put(&key, &value);
            let (left, right) = key.split_at(cut.min(key.len()));
            let write = |out: &mut Vec<u8>| {
                out.extend_from_slice(&value);
                true
            };
            prop_assert!(written.put_written([left, b"", right], write));
            prop_assert_eq!(put.encoded().unwrap(), written.encoded().unwrap());
            prop_assert_eq!(put.puts(), written.puts());
        }

        #[test]
        fn fuzz_operations(bytes in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..200)) {
            let ends = Operations::new(&bytes).take(300).count();
            prop_assert!(ends < 300, "reading never ends");
        }
    }

    #[test]
    fn what_is_written_too_long_is_refused_as_what_is_put_too_long() {
        let refused = |key: &[u8], bytes: usize| {
            let mut batch = Batch::new();
            batch.put_written([key, b"", b""], |out| {
                out.resize(out.len() + bytes, 0);
                true
            });
            batch.encoded().map(<[u8]>::len).map_err(|error| error.to_string())
        };
        let put = |key: &[u8], bytes: usize| {
            let mut batch = Batch::new();
            batch.put(key, &vec![0; bytes]);
            batch.encoded().map(<[u8]>::len).map_err(|error| error.to_string())
        };
        for (key, bytes) in
            [(KEY_BYTES_MAX, VALUE_BYTES_MAX), (1, VALUE_BYTES_MAX + 1), (KEY_BYTES_MAX + 1, 4)]
        {
            let key = vec![1; key];
            assert_eq!(refused(&key, bytes), put(&key, bytes));
        }
    }
}
