//! One batch in the stream: a header, then its operations.

use crate::batch::Operations;
use crate::layout::{Seed, checksum, put_u32, put_u64, u32_at, u64_at};
use crate::stream::Sequence;
use nvmed_mutant::Mutant;
use nvmed_units::bounded;

/// Bytes of a record before its operations.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes of operations in one record at most: an eighth of the smallest sensible pending memory would
/// do for a file system's; a megabyte leaves room for bulk loads.
pub(crate) const OPERATION_BYTES_MAX: usize = 1 << 20;

/// An epoch that no store reaches, as in a superblock: the one after any that is read can be counted.
const EPOCH_END: u64 = u64::MAX / 2;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) crc: u32,
    pub(crate) bytes: usize,
    pub(crate) sequence: Sequence,
    pub(crate) epoch: u64,
}

/// The header for `operations` as they go to the stream.
pub(crate) fn seal(seed: Seed, sequence: Sequence, epoch: u64, operations: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    put_u32(&mut header, 4, bounded(operations.len(), "a batch is at most a megabyte"));
    put_u64(&mut header, 8, sequence.0);
    put_u64(&mut header, 16, epoch);
    let crc = seed.checksum(&[&header[4..], operations]);
    put_u32(&mut header, 0, crc);
    header
}

/// Records from `sequence` on have at least `epoch`. What an interrupted append left has less.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Since {
    pub(crate) sequence: Sequence,
    pub(crate) epoch: u64,
}

/// What a reader of a stream knows of the record to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) identity: u64,
    pub(crate) sequence: Sequence,
    pub(crate) epoch: u64,
    pub(crate) since: Since,
}

/// The next record of a stream.
pub(crate) enum Next<'a> {
    /// It is whole: its header and operations.
    Record(Header, &'a [u8]),
    /// It may be one; more bytes are needed to tell.
    Short,
    /// The stream ends here.
    End,
}

/// Looks for the `expected` record at the start of `bytes`.
pub(crate) fn next<'a>(bytes: &'a [u8], expected: &Expected) -> Next<'a> {
    let Some((header_bytes, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Next::Short;
    };
    let header = Header {
        crc: u32_at(header_bytes, 0),
        bytes: u32_at(header_bytes, 4) as usize,
        sequence: Sequence(u64_at(header_bytes, 8)),
        epoch: u64_at(header_bytes, 16),
    };
    let plausible = header.sequence == expected.sequence
        && (expected.epoch..EPOCH_END).contains(&header.epoch)
        && (header.sequence < expected.since.sequence || header.epoch >= expected.since.epoch)
        && header.bytes <= OPERATION_BYTES_MAX;
    if !plausible {
        return Next::End;
    }
    let Some(operations) = rest.get(..header.bytes) else {
        return Next::Short;
    };
    let whole = Mutant::LogChecksumIgnored.is_made()
        || checksum(expected.identity, &[&header_bytes[4..], operations]) == header.crc;
    if whole && Operations::are_valid(operations) { Next::Record(header, operations) } else { Next::End }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    const EXPECTED: Expected = Expected {
        identity: 5,
        sequence: Sequence(9),
        epoch: 2,
        since: Since { sequence: Sequence(0), epoch: 0 },
    };

    fn record(identity: u64, sequence: u64, epoch: u64, operations: &[u8]) -> Vec<u8> {
        [&seal(Seed::of(identity), Sequence(sequence), epoch, operations)[..], operations].concat()
    }

    fn is_record(bytes: &[u8]) -> bool {
        matches!(next(bytes, &EXPECTED), Next::Record(..))
    }

    #[test]
    fn only_the_expected_record_is_taken() {
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        let operations = batch.encoded().unwrap();
        let good = record(5, 9, 2, operations);
        assert!(is_record(&good) && is_record(&record(5, 9, 3, operations)));
        assert!(!is_record(&record(6, 9, 2, operations)), "another store's");
        assert!(!is_record(&record(5, 10, 2, operations)), "a gap");
        assert!(!is_record(&record(5, 9, 1, operations)), "of an earlier epoch");
        assert!(!is_record(&record(5, 9, u64::MAX, operations)), "of an epoch that no store reaches");
        assert!(!is_record(&record(5, 9, 2, b"no operation")), "a good checksum over nonsense");
        for length in 0..good.len() {
            assert!(matches!(next(&good[..length], &EXPECTED), Next::Short), "{length} bytes");
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_record(&bad), "bit {bit} went unnoticed");
        }
    }
}
