//! Where what lies in the memory of stamps. Native byte order: it never leaves the machine.
//!
//! | offset | what |
//! |---|---|
//! | 0 | magic u64; 8 version u64; 16 requests that a ring holds u64, a power of two; 24 clock u64; 32 probes u64;
//! |   | 40 PID namespace of the maker u64 |
//! | 64 | requests that found no ring, u64 |
//! | 4096 | rings, one after another, each whole pages |
//! | a ring | owner u64; 64: written u64, lost u64; 128: read u64; 4096: the requests, in a circle |
//! | a request | u64 each: arrival, start and finish in ticks; offset; bytes (56 bits), operation (7), failed (1) |

/// "NVMDSTMP".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"NVMDSTMP");
/// Changes with the layout.
pub(crate) const VERSION: u64 = 2;

pub(crate) const MAGIC_AT: usize = 0;
pub(crate) const VERSION_AT: usize = 8;
pub(crate) const REQUESTS_AT: usize = 16;
pub(crate) const CLOCK_AT: usize = 24;
pub(crate) const PROBES_AT: usize = 32;
/// Inode of the PID namespace of the process that made the memory; 0 if it is not known.
pub(crate) const NAMESPACE_AT: usize = 40;
/// On a line of its own: several producers write it.
pub(crate) const RINGLESS_AT: usize = 64;

/// Rings: a process with a device of four queues has twelve.
pub(crate) const RINGS: usize = 64;
/// Where the first ring is.
const RINGS_AT: usize = PAGE_BYTES;
const PAGE_BYTES: usize = 4096;

/// Who has the ring: its process, above it the probe; 0 is nobody. One that has left is marked, and one whose number is
/// of another PID namespace than the maker's: nobody can be asked whether that process lives.
pub(crate) const OWNER_AT: usize = 0;
pub(crate) const OWNER_PROBE_SHIFT: u32 = 32;
pub(crate) const OWNER_HAS_LEFT: u64 = 1 << 63;
pub(crate) const OWNER_IS_FOREIGN: u64 = 1 << 62;
/// The producer's line.
pub(crate) const WRITTEN_AT: usize = 64;
pub(crate) const LOST_AT: usize = 72;
/// The reader's line.
pub(crate) const READ_AT: usize = 128;
/// The requests of a ring.
pub(crate) const CIRCLE_AT: usize = PAGE_BYTES;

/// Words of a request.
pub(crate) const WORDS: usize = 5;
/// Bytes of a request.
pub(crate) const REQUEST_BYTES: usize = WORDS * 8;
const _: () = assert!(REQUEST_BYTES <= 64);
/// Bits of a request's bytes, below its operation.
pub(crate) const BYTES_BITS: u32 = 56;
/// Set in the word of the operation: the request has failed.
pub(crate) const HAS_FAILED: u64 = 1 << 63;

/// Bytes of a ring of so many requests.
const fn ring_bytes(requests: usize) -> usize {
    CIRCLE_AT + (requests * REQUEST_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Offset of a ring.
pub(crate) const fn ring_at(ring: usize, requests: usize) -> usize {
    RINGS_AT + ring * ring_bytes(requests)
}

/// Bytes of all.
pub(crate) const fn bytes(requests: usize) -> usize {
    ring_at(RINGS, requests)
}
