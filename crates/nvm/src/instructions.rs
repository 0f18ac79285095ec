//! The instructions that store to memory which keeps its bytes: past the caches, out of them, and in order.
//!
//! Source: Intel SDM 1, 11.4.4 (non-temporal stores), 2A (CLFLUSH, CLFLUSHOPT, CLWB), 2B (SFENCE); AMD APM 1, 7.4.

use core::ptr;
use nvmed_mutant::Mutant;
use nvmed_sys::Mapping;
use nvmed_sys::door::{self, LINE_BYTES};

/// Bytes up to which ordinary stores that are written back take less than it takes to find the whole lines among them:
/// a record of a log, mostly.
const FEW_BYTES: usize = 4 * LINE_BYTES;

/// How this processor writes a line of its caches back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBack {
    /// CLWB: the line stays in the cache.
    #[cfg(target_arch = "x86_64")]
    Keep,
    /// CLFLUSHOPT: the line leaves the cache, in any order with others.
    #[cfg(target_arch = "x86_64")]
    Evict,
    /// CLFLUSH: the line leaves the cache, one after the other.
    #[cfg(target_arch = "x86_64")]
    EvictInOrder,
    /// Not known: the memory's bytes are what all processors see, which no write-back changes.
    #[cfg(not(target_arch = "x86_64"))]
    Unknown,
}

impl WriteBack {
    /// What this processor has (CPUID leaf 7: EBX bits 24 and 23; CLFLUSH every one of x86-64 has).
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of_processor() -> Self {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        // Newer compilers have no need of `unsafe` for these.
        #[allow(unused_unsafe, reason = "1.88 needs it")]
        // SAFETY: every processor of x86-64 has CPUID, and leaf 7 is asked for where leaf 0 says that there is one.
        let features = unsafe { if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 } };
        match (features >> 24 & 1, features >> 23 & 1) {
            (1, _) => Self::Keep,
            (_, 1) => Self::Evict,
            _ => Self::EvictInOrder,
        }
    }

    /// What this processor has: none that is known.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn of_processor() -> Self {
        Self::Unknown
    }

    /// Whether what was stored can be made durable without the host.
    pub(crate) fn reaches_medium(self) -> bool {
        cfg!(target_arch = "x86_64")
    }

    /// Writes the line at `address` back, in no order with other lines.
    ///
    /// # Safety
    /// The address is of mapped memory.
    #[inline]
    unsafe fn line(self, address: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: all three take any mapped address, aligned or not, and change no byte that a program can see. The
        // processor was asked for the first two.
        unsafe {
            match self {
                Self::Keep => {
                    core::arch::asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags));
                }
                Self::Evict => {
                    core::arch::asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags));
                }
                Self::EvictInOrder => core::arch::x86_64::_mm_clflush(address),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }

    /// Writes the lines of `bytes` bytes at `at` back.
    #[inline]
    fn lines(self, memory: &Mapping, at: usize, bytes: usize) {
        let end = at + bytes;
        assert!(end <= memory.len(), "lines up to {end} of {} bytes", memory.len());
        let mut line = at & !(LINE_BYTES - 1);
        while line < end {
            // SAFETY: the address is before `end`, so inside the mapping, which lives as long as `memory` is borrowed.
            unsafe { self.line(memory.address().add(line)) }
            line += LINE_BYTES;
        }
    }

    /// Stores an aligned word, which is there as a whole or not at all, and writes its line back.
    #[inline]
    pub(crate) fn store_word(self, memory: &Mapping, at: usize, word: u64) {
        memory.u64(at).store(word, nvmed_sys::atomic::Ordering::Release);
        self.lines(memory, at, 8);
    }

    /// Copies `bytes` bytes at `from_at` of `from` to `at` of `memory`: whole lines past the caches, what is ragged by
    /// ordinary stores that are written back.
    ///
    /// # Panics
    /// When a range is not inside its mapping.
    pub(crate) fn copy(self, memory: &Mapping, at: usize, from: &Mapping, from_at: usize, bytes: usize) {
        let inside = from_at.checked_add(bytes).is_some_and(|end| end <= from.len());
        assert!(inside, "{bytes} bytes at {from_at} of a mapping of {} bytes", from.len());
        // SAFETY: the source is inside its mapping, by the assertion, and lives as long as it is borrowed.
        unsafe { self.store_all(memory, at, from.address().add(from_at), bytes) }
    }

    /// As [`WriteBack::copy`], of a slice.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    #[inline]
    pub(crate) fn write(self, memory: &Mapping, at: usize, bytes: &[u8]) {
        if bytes.len() <= FEW_BYTES {
            memory.write(at, bytes);
            return self.lines(memory, at, written_back(at as u64, bytes.len() as u64) as usize);
        }
        // SAFETY: a slice is valid for its length, and lives during the call.
        unsafe { self.store_all(memory, at, bytes.as_ptr(), bytes.len()) }
    }

    /// As [`WriteBack::write`], of a buffer that may be a program's; how many bytes arrived, from the first on. That it
    /// is fewer may also be the fault of `memory`, whose next touch says so.
    ///
    /// # Panics
    /// As [`WriteBack::write`].
    pub(crate) fn take(self, memory: &Mapping, at: usize, bytes: &[u8]) -> usize {
        // SAFETY: only the door reads the slice, which need not be there.
        unsafe { self.store(memory, at, bytes.as_ptr(), bytes.len()) }
    }

    /// Stores `bytes` zeroes.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub(crate) fn zero(self, memory: &Mapping, at: usize, bytes: usize) {
        static ZEROES: [u8; 4096] = [0; 4096];
        for done in (0..bytes).step_by(ZEROES.len()) {
            self.write(memory, at + done, &ZEROES[..(bytes - done).min(ZEROES.len())]);
        }
    }

    /// Stores all of it.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes` bytes, and no Rust reference to the bytes of `memory` exists.
    #[inline]
    unsafe fn store_all(self, memory: &Mapping, at: usize, from: *const u8, bytes: usize) {
        // SAFETY: by the contract.
        let arrived = unsafe { self.store(memory, at, from, bytes) };
        if arrived < bytes {
            // The source is there: it is the medium that was not. Outside the door its touch is answered by what guards
            // the mapping.
            // SAFETY: as in `store`, which has made the assertion.
            unsafe { ptr::copy(from.add(arrived), memory.address().add(at + arrived), bytes - arrived) }
            self.lines(memory, at + arrived, bytes - arrived);
        }
    }

    /// Stores what is there of `from`; how many bytes arrived, from the first on, whose lines are written back.
    ///
    /// # Safety
    /// `from` has `bytes` bytes that are there or that only the door may find missing, and no Rust reference to the
    /// bytes of `memory` exists.
    unsafe fn store(self, memory: &Mapping, at: usize, from: *const u8, bytes: usize) -> usize {
        let inside = at.checked_add(bytes).is_some_and(|end| end <= memory.len());
        assert!(inside, "{bytes} bytes at {at} of a mapping of {} bytes", memory.len());
        if (at | bytes).is_multiple_of(LINE_BYTES) {
            // SAFETY: as below, of whole lines alone.
            let arrived = unsafe { door::stream(memory.address().add(at), from, bytes) };
            if arrived == bytes {
                return bytes;
            }
        }
        let head = (at.next_multiple_of(LINE_BYTES) - at).min(bytes);
        let lines = (bytes - head) / LINE_BYTES * LINE_BYTES;
        // SAFETY: `head`, `lines` and what follows are inside the mapping, by the assertion; `at + head` is a multiple
        // of a line wherever `lines` is not 0, since mappings begin on pages. Bytes of a mapping are reached by raw
        // copies and atomics only, so that a reader at the same time gets a mixture and nothing worse. A caller who
        // copies within one medium gets a mixture where the ranges overlap: the routines are no more than loads and
        // stores.
        let (whole, arrived) = unsafe {
            let to = memory.address().add(at);
            let begun = if head > 0 { head - door::transfer(to, from, head) } else { 0 };
            if begun < head {
                (0, begun)
            } else {
                let whole = head + door::stream(to.add(head), from.add(head), lines);
                // The ragged end; or the line of which a part was not there.
                let rest = (bytes - whole).min(LINE_BYTES);
                let left = if rest > 0 { door::transfer(to.add(whole), from.add(whole), rest) } else { 0 };
                (whole, whole + rest - left)
            }
        };
        if head > 0 {
            self.lines(memory, at, arrived.min(head));
        }
        if arrived > whole.max(head) && !Mutant::WrongRange.is_made() {
            self.lines(memory, at + whole, arrived - whole);
        }
        arrived
    }
}

/// How many bytes of a store of `bytes` at `at`, from the first on, are on their way: all, if no mistake is made.
#[inline]
pub(crate) fn written_back(at: u64, bytes: u64) -> u64 {
    let ragged = if Mutant::WrongRange.is_made() { (at + bytes) % LINE_BYTES as u64 } else { 0 };
    bytes.saturating_sub(ragged)
}

/// Waits until this thread's stores are on their way to the medium, and before all that it stores later.
#[inline]
pub(crate) fn drain() {
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe, reason = "1.88 needs it")]
    // SAFETY: SSE is a part of x86-64; the instruction takes nothing and changes nothing.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    // For the compiler, and for processors whose stores may pass each other.
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;

    /// Every way to begin and end in a line, with each way of writing back that the processor has.
    #[test]
    fn all_bytes_of_a_range_are_stored_and_no_other() {
        let memory = Mapping::anonymous(4096, Pages::Base).unwrap();
        let from = Mapping::anonymous(4096, Pages::Base).unwrap();
        let bytes: Vec<u8> = (0..4096).map(|at| (at % 251) as u8 + 1).collect();
        from.write(0, &bytes);
        let way = WriteBack::of_processor();
        for at in [0, 1, 8, 63, 64, 65, 4096 - 300] {
            for len in [0, 1, 7, 62, 63, 64, 65, 128, 129, 200, 300] {
                for by_slice in [false, true] {
                    memory.fill(0, 4096, 0);
                    if by_slice {
                        way.write(&memory, at, &bytes[3..3 + len]);
                    } else {
                        way.copy(&memory, at, &from, 3, len);
                    }
                    drain();
                    let mut found = vec![0; 4096];
                    memory.read(0, &mut found);
                    assert!(found[at..at + len] == bytes[3..3 + len], "{len} bytes at {at}");
                    assert!(
                        found[..at].iter().chain(&found[at + len..]).all(|&byte| byte == 0),
                        "{len} at {at}"
                    );
                }
            }
        }
        let arrived = way.take(&memory, 100, &bytes[..300]);
        assert_eq!(arrived, 300, "what is there arrives");
        assert!(memory.equal(100, &from, 0, 300));
        memory.fill(0, 4096, 7);
        way.zero(&memory, 5, 4090);
        way.store_word(&memory, 8, 0x0101_0101_0101_0101);
        let mut found = vec![0; 4096];
        memory.read(0, &mut found);
        assert!(found[..5] == [7; 5] && found[5..8] == [0; 3] && found[8..16] == [1; 8] && found[4095] == 7);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_way_of_writing_back_leaves_the_bytes() {
        let memory = Mapping::anonymous(4096, Pages::Base).unwrap();
        let ways = match WriteBack::of_processor() {
            WriteBack::Keep => &[WriteBack::Keep, WriteBack::Evict, WriteBack::EvictInOrder][..],
            WriteBack::Evict => &[WriteBack::Evict, WriteBack::EvictInOrder],
            WriteBack::EvictInOrder => &[WriteBack::EvictInOrder],
        };
        for &way in ways {
            memory.fill(0, 4096, 0);
            way.write(&memory, 100, &[9; 50]);
            drain();
            let mut found = [0; 50];
            memory.read(100, &mut found);
            assert_eq!(found, [9; 50], "{way:?}");
        }
    }
}
