//! How far a stream reads ahead that a file of ours was opened for, to read only. libc reads a cookie stream in pieces
//! of its buffer, 8 KiB, however much the program asks for, and each piece is a call. So such a stream has a buffer as
//! large as its file, to a limit, and uses as much of it as the program reads in order.
//!
//! The buffer is libc's to free: it is allocated, and put into the stream, as libc's own is. Streams that write, and
//! those over descriptors that the program brings, keep libc's, since other processes see in which pieces they go on.

use core::cell::Cell;
use core::ffi::{c_char, c_int};
use libc::FILE;

/// Bytes of the buffer that libc makes for a stream without a status (`_IO_file_doallocate`).
const LIBC_BYTES: usize = libc::BUFSIZ as usize;
/// Bytes of the first read: most files are smaller.
const FIRST_BYTES: usize = 64 << 10;
/// Bytes of later ones: one call moves as much as readahead reads.
const BYTES_MAX: usize = 128 << 10;
/// Reads in order after a jump before pieces grow again. libc reads a piece for each jump, whole.
const IN_ORDER: u32 = 4;

/// `_IO_USER_BUF`: the stream's buffer is not libc's to free (libio.h).
const IO_USER_BUF: c_int = 1;

/// The beginning of `struct _IO_FILE`, which `getc_unlocked` of old programs reads (libio.h).
#[repr(C)]
struct Head {
    flags: c_int,
    read_ptr: *mut c_char,
    read_end: *mut c_char,
    read_base: *mut c_char,
    write_base: *mut c_char,
    write_ptr: *mut c_char,
    write_end: *mut c_char,
    buf_base: *mut c_char,
    buf_end: *mut c_char,
}

const _: () = assert!(core::mem::offset_of!(Head, buf_end) == 64);

/// A stream's own buffer. Used by the thread that has the stream's lock.
pub(super) struct Ahead {
    base: *mut c_char,
    /// Bytes of it that may be used.
    room: Cell<usize>,
    /// Reads in order since the last jump.
    in_order: Cell<u32>,
    jumped: Cell<bool>,
}

impl Ahead {
    /// Gives a stream that was just made a buffer for a file of `bytes`. None where libc's own holds the file, and its
    /// end, or where there is no memory for a larger one.
    ///
    /// # Safety
    /// `stream` is an open stream that nobody has used yet.
    pub(super) unsafe fn of(stream: *mut FILE, bytes: u64) -> Option<Self> {
        // One byte more, so that a read that brings the whole file need not be followed by one for its last byte. A
        // power of two, since libc goes to multiples of it.
        let room = usize::try_from(bytes)
            .map_or(BYTES_MAX, |bytes| bytes.min(BYTES_MAX - 1) + 1)
            .next_power_of_two();
        if room <= LIBC_BYTES {
            return None;
        }
        // SAFETY: libc frees what its own allocator gave, at the latest when it closes the stream. As long as the
        // stream has it, nobody else uses it.
        unsafe {
            let base: *mut c_char = libc::malloc(room).cast();
            if base.is_null() {
                return None;
            }
            if libc::setvbuf(stream, base, libc::_IOFBF, room.min(FIRST_BYTES)) != 0 {
                libc::free(base.cast());
                return None;
            }
            (*stream.cast::<Head>()).flags &= !IO_USER_BUF;
            Some(Self {
                base,
                room: Cell::new(room),
                in_order: Cell::new(IN_ORDER),
                jumped: Cell::new(false),
            })
        }
    }

    /// The stream has gone to a place that is not the beginning: what follows there may be small.
    pub(super) fn jumps(&self) {
        self.jumped.set(true);
    }

    /// How many of the `bytes` that libc asks for are read now, and how many it asks for the next time.
    ///
    /// libc's functions that read, `_IO_new_file_underflow` and `_IO_new_file_seekoff` (fileops.c), look at the
    /// buffer's end before this and after it, and do not keep it in between. The latter goes on to its place by itself
    /// when a read brings fewer bytes than lie before that.
    ///
    /// # Safety
    /// `stream` is the open stream of [`Ahead::of`], and the caller has its lock.
    pub(super) unsafe fn piece(&self, stream: *mut FILE, bytes: usize) -> usize {
        // SAFETY: the caller's contract.
        let Some(head) = (unsafe { self.head(stream) }) else { return bytes };
        let jumped = self.jumped.take();
        self.in_order.set(if jumped { 0 } else { self.in_order.get().saturating_add(1) });
        let piece = head.buf_end.addr() - self.base.addr();
        let next = match self.in_order.get() {
            0 => LIBC_BYTES,
            1..IN_ORDER => piece,
            _ => (2 * piece).min(self.room.get()),
        };
        head.buf_end = self.base.wrapping_add(next);
        if jumped { bytes.min(LIBC_BYTES) } else { bytes }
    }

    /// The stream is opened anew, for another file: it goes on with as much as libc would give it.
    ///
    /// # Safety
    /// As [`Ahead::piece`]; what the stream had read or not yet written is discarded.
    pub(super) unsafe fn end(&self, stream: *mut FILE) {
        // SAFETY: the caller's contract.
        let Some(head) = (unsafe { self.head(stream) }) else { return };
        let base = self.base;
        (head.read_base, head.read_ptr, head.read_end) = (base, base, base);
        (head.write_base, head.write_ptr, head.write_end) = (base, base, base);
        head.buf_end = base.wrapping_add(LIBC_BYTES);
        self.room.set(LIBC_BYTES);
    }

    /// The stream's fields, while the buffer is still this one: the program may have given another one.
    ///
    /// # Safety
    /// As [`Ahead::piece`]. The fields are not used beyond the next call of libc's on the stream.
    unsafe fn head<'a>(&self, stream: *mut FILE) -> Option<&'a mut Head> {
        // SAFETY: `struct _IO_FILE` begins so; the thread that has the lock alone changes it.
        let head = unsafe { &mut *stream.cast::<Head>() };
        (head.buf_base == self.base && head.flags & IO_USER_BUF == 0).then_some(head)
    }
}
