//! Where directory streams of ours lie: one static array, so that a `DIR *` tells by its address whose it is.

use core::ffi::c_int;
use core::sync::atomic::AtomicBool;
use libc::DIR;
use nvmed_sys::sync::{Mutex, MutexGuard};

/// Streams open at once. A program that walks a tree holds one a level.
const STREAMS_MAX: usize = 4096;
/// A stream over a descriptor of ours, or of the directory above.
pub(crate) struct Stream {
    pub fd: c_int,
    /// The descriptor is the host's, of the directory above ours.
    pub is_above: bool,
    /// `struct dirent`s one after another; 64-bit words so that they are aligned. None until the slot is
    /// used, so that the array of slots is zeros, which no file has to hold.
    pub buffer: Option<Box<[u64]>>,
    /// Bytes used and bytes told of `buffer`.
    pub filled: usize,
    pub told: usize,
    /// Where the listing stands after what was told: `telldir`.
    pub position: u64,
}

/// A place of a stream, which is what a `DIR *` of ours points to.
pub(crate) struct Slot {
    pub taken: AtomicBool,
    stream: Mutex<Stream>,
}

impl Slot {
    const fn free() -> Self {
        let stream = Stream { fd: 0, is_above: false, buffer: None, filled: 0, told: 0, position: 0 };
        Self { taken: AtomicBool::new(false), stream: Mutex::new(stream) }
    }
}

pub(crate) static STREAMS: [Slot; STREAMS_MAX] = [const { Slot::free() }; STREAMS_MAX];

/// The slot that a `DIR *` is, if it is ours.
pub(crate) fn slot(dir: *mut DIR) -> Option<&'static Slot> {
    let distance = (dir as usize).checked_sub(STREAMS.as_ptr() as usize)?;
    STREAMS.get(distance / size_of::<Slot>())
}

pub(crate) fn stream(slot: &Slot) -> MutexGuard<'_, Stream> {
    slot.stream.lock()
}

/// The descriptor of a stream, ours or libc's; -1 of none.
pub(crate) fn descriptor_of(dir: *mut DIR) -> c_int {
    match slot(dir) {
        _ if dir.is_null() => -1,
        Some(slot) => stream(slot).fd,
        // SAFETY: the program's open stream, under `edge`'s contract.
        None => unsafe { next!(dirfd, fn(*mut DIR) -> c_int)(dir) },
    }
}
