//! Where what lies in a tally's memory. Native byte order: it never leaves the machine.
//!
//! | offset | what |
//! |---|---|
//! | 0 | magic u64; 8 version u32, kinds u32; 16 ring bytes a seat u64, 0 without records; 24 the clock at the start
//! u64 |
//! | 32 | calls that were to be recorded on the seat that threads share, u64; 40 numbers given to open files u64 |
//! | 4096 | seats, one after another: owner u64, 8: whether anybody ever had it u64; 16: process
//! u64, 24: its name, 16 bytes; from 64 on the kinds |
//! | a kind | errors u64, bytes u64, ns u64, longest ns u64, then the buckets, u64 each |
//! | after the seats | rings: written u64, lost u64; 64: read u64; 128: the records, in a circle |

use nvmed_units::Buckets;

/// Percentiles are right to a sixteenth, 6 %; up to 2^36 ns, 68 s: what is longer counts as that.
pub(crate) type Nanoseconds = Buckets<NS_STEPS, NS_GROUPS>;
pub(crate) const NS_STEPS: usize = 16;
pub(crate) const NS_GROUPS: usize = 33;

/// "NVMDTALY".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"NVMDTALY");
/// Changes with the layout.
pub(crate) const VERSION: u32 = 3;

pub(crate) const MAGIC_AT: usize = 0;
pub(crate) const VERSION_AT: usize = 8;
pub(crate) const KINDS_AT: usize = 12;
pub(crate) const RING_BYTES_AT: usize = 16;
pub(crate) const START_AT: usize = 24;
pub(crate) const LOST_AT: usize = 32;
pub(crate) const FILES_AT: usize = 40;

/// Threads that count at the same time without locked instructions, and one seat that the others share.
pub(crate) const SEATS: usize = 64;
/// The seat that threads share.
pub(crate) const SHARED_SEAT: usize = SEATS - 1;
pub(crate) const SEATS_AT: usize = 4096;
pub(crate) const OWNER_AT: usize = 0;
pub(crate) const USED_AT: usize = 8;
pub(crate) const PROCESS_AT: usize = 16;
pub(crate) const NAME_AT: usize = 24;
/// Bytes of a name: the kernel's TASK_COMM_LEN.
pub(crate) const NAME_BYTES: usize = 16;
pub(crate) const COUNTERS_AT: usize = 64;

pub(crate) const ERRORS_AT: usize = 0;
pub(crate) const BYTES_AT: usize = 8;
pub(crate) const NS_AT: usize = 16;
pub(crate) const LONGEST_AT: usize = 24;
pub(crate) const BUCKETS_AT: usize = 32;
/// One kind's counters, whole cache lines.
pub(crate) const KIND_BYTES: usize = (BUCKETS_AT + Nanoseconds::COUNT * 8).next_multiple_of(64);
/// One seat, whole pages: a seat that is never used takes no memory.
pub(crate) const SEAT_BYTES: usize =
    (COUNTERS_AT + super::CallKind::COUNT * KIND_BYTES).next_multiple_of(4096);

pub(crate) const RINGS_AT: usize = SEATS_AT + SEATS * SEAT_BYTES;
pub(crate) const WRITTEN_AT: usize = 0;
pub(crate) const RING_LOST_AT: usize = 8;
pub(crate) const READ_AT: usize = 64;
pub(crate) const RECORDS_AT: usize = 128;
/// Records of one thread that wait to be written out: 1 MiB is at least 1,900 calls with long paths, 10,000 without.
pub(crate) const RING_BYTES: usize = 1 << 20;
/// One ring with its head, whole pages.
pub(crate) const RING_SPAN: usize = (RECORDS_AT + RING_BYTES).next_multiple_of(4096);

/// Offset of a seat.
pub(crate) const fn seat_at(seat: usize) -> usize {
    SEATS_AT + seat * SEAT_BYTES
}

/// Offset of a seat's ring.
pub(crate) const fn ring_at(seat: usize) -> usize {
    RINGS_AT + seat * RING_SPAN
}

/// Bytes of a whole tally.
pub(crate) const fn bytes(records: bool) -> usize {
    if records { ring_at(SHARED_SEAT) } else { RINGS_AT }
}
