//! Wide characters on streams of ours: libc's wide streams read and write below every hook, and a cookie stream
//! of libc's is one of bytes. So these calls are made of byte calls, in the locale's encoding.

use crate::raw;
use crate::stdio;
use crate::stdio::format::{Arguments, variadic};
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{FILE, size_t, wchar_t};

/// What ends a wide stream, and what no character is.
const WEOF: c_uint = 0xffff_ffff;
/// Most bytes of a character in any encoding of libc's (`MB_LEN_MAX`).
const BYTES_MAX: usize = 16;
/// `mbrtowc`'s and `wcrtomb`'s answers that are no length.
const INVALID: usize = usize::MAX;
const INCOMPLETE: usize = usize::MAX - 1;
/// Characters of a formatted text: first tried, and given up at.
const TEXT_MIN: usize = 256;
const TEXT_MAX: usize = 1 << 26;

/// `mbstate_t`, at a character's beginning.
#[repr(C)]
#[derive(Default)]
struct Shift([u32; 2]);

/// `va_list` as it lies in memory.
type List = [u64; 3];

unsafe extern "C" {
    fn wcrtomb(into: *mut c_char, wide: wchar_t, shift: *mut Shift) -> size_t;
    fn mbrtowc(into: *mut wchar_t, from: *const c_char, count: size_t, shift: *mut Shift) -> size_t;
    fn vswprintf(into: *mut wchar_t, room: size_t, format: *const wchar_t, list: Arguments) -> c_int;
    fn fgetc(stream: *mut FILE) -> c_int;
    fn ungetc(byte: c_int, stream: *mut FILE) -> c_int;
    fn fwrite(from: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
}

/// The bytes of a character; `None`, with errno, if it has none in the locale.
fn bytes(wide: wchar_t) -> Option<([u8; BYTES_MAX], usize)> {
    let mut bytes = [0; BYTES_MAX];
    // SAFETY: room for the longest character, and a state of our own.
    let len = unsafe { wcrtomb(bytes.as_mut_ptr().cast(), wide, &mut Shift::default()) };
    (len != INVALID).then_some((bytes, len))
}

unsafe fn put(stream: *mut FILE, wide: wchar_t) -> bool {
    let Some((bytes, len)) = bytes(wide) else { return false };
    // SAFETY: an open stream of the program's, and `len` bytes.
    unsafe { fwrite(bytes.as_ptr().cast(), 1, len, stream) == len }
}

/// The next character; WEOF at the end, and with EILSEQ at bytes that are none.
unsafe fn get(stream: *mut FILE) -> c_uint {
    let mut bytes = [0u8; BYTES_MAX];
    for len in 1..=BYTES_MAX {
        // SAFETY: an open stream of the program's.
        let byte = unsafe { fgetc(stream) };
        if byte < 0 && len == 1 {
            return WEOF;
        }
        if byte < 0 {
            break;
        }
        bytes[len - 1] = byte as u8;
        let mut wide: wchar_t = 0;
        // SAFETY: `len` bytes, and a state of our own.
        match unsafe { mbrtowc(&raw mut wide, bytes.as_ptr().cast(), len, &mut Shift::default()) } {
            INCOMPLETE => {}
            INVALID => break,
            _ => return wide as c_uint,
        }
    }
    raw::set_errno(libc::EILSEQ);
    WEOF
}

hook! {
    /// fputwc(3)
    fn fputwc(wide: wchar_t, stream: *mut FILE) -> c_uint, next libc_fputwc {
        if !stdio::is_cookie(stream) {
            return libc_fputwc(wide, stream);
        }
        if put(stream, wide) { wide as c_uint } else { WEOF }
    }
}

hook! {
    /// fputws(3)
    fn fputws(text: *const wchar_t, stream: *mut FILE) -> c_int, next libc_fputws {
        if !stdio::is_cookie(stream) {
            return libc_fputws(text, stream);
        }
        let mut at = text;
        while *at != 0 {
            if !put(stream, *at) {
                return -1;
            }
            at = at.add(1);
        }
        1
    }
}

hook! {
    /// fgetwc(3)
    fn fgetwc(stream: *mut FILE) -> c_uint, next libc_fgetwc {
        if !stdio::is_cookie(stream) {
            return libc_fgetwc(stream);
        }
        get(stream)
    }
}

hook! {
    /// fgetws(3)
    fn fgetws(into: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t, next libc_fgetws {
        if !stdio::is_cookie(stream) {
            return libc_fgetws(into, room, stream);
        }
        let mut used = 0;
        while used + 1 < room.max(0) as usize {
            let wide = get(stream);
            if wide == WEOF {
                break;
            }
            into.add(used).write(wide as wchar_t);
            used += 1;
            if wide == c_uint::from(b'\n') {
                break;
            }
        }
        if used == 0 {
            return core::ptr::null_mut();
        }
        into.add(used).write(0);
        into
    }
}

hook! {
    /// ungetwc(3)
    fn ungetwc(wide: c_uint, stream: *mut FILE) -> c_uint, next libc_ungetwc {
        if !stdio::is_cookie(stream) {
            return libc_ungetwc(wide, stream);
        }
        let Some((bytes, len)) = bytes(wide as wchar_t).filter(|_| wide != WEOF) else { return WEOF };
        let back = |byte: &u8| unsafe { ungetc(c_int::from(*byte), stream) >= 0 };
        if bytes[..len].iter().rev().all(back) { wide } else { WEOF }
    }
}

hook! {
    /// fwide(3): what a stream of ours is asked to be, it serves
    fn fwide(stream: *mut FILE, mode: c_int) -> c_int, next libc_fwide {
        if !stdio::is_cookie(stream) {
            return libc_fwide(stream, mode);
        }
        mode
    }
}

hook! {
    /// vfwprintf(3): the text is made in memory first
    fn vfwprintf(stream: *mut FILE, format: *const wchar_t, list: Arguments) -> c_int, next libc_vfwprintf {
        if !stdio::is_cookie(stream) {
            return libc_vfwprintf(stream, format, list);
        }
        let mut room = TEXT_MIN;
        while room <= TEXT_MAX {
            let mut text: Vec<wchar_t> = vec![0; room];
            // Each try begins with the arguments anew.
            let mut copy = list.cast::<List>().read();
            let len = vswprintf(text.as_mut_ptr(), room, format, (&raw mut copy).cast());
            if len >= 0 {
                let whole = text[..len as usize].iter().all(|&wide| put(stream, wide));
                return if whole { len } else { -1 };
            }
            room *= 4;
        }
        raw::set_errno(libc::EOVERFLOW);
        -1
    }
}

hook! {
    /// vfwprintf(3), as compiled with _FORTIFY_SOURCE
    fn __vfwprintf_chk(stream: *mut FILE, flag: c_int, format: *const wchar_t, list: Arguments) -> c_int,
        next libc_vfwprintf_chk {
        if !stdio::is_cookie(stream) {
            return libc_vfwprintf_chk(stream, flag, format, list);
        }
        vfwprintf(stream, format, list)
    }
}

hook! {
    /// fgetws(3), as compiled with _FORTIFY_SOURCE
    fn __fgetws_chk(into: *mut wchar_t, size: size_t, room: c_int, stream: *mut FILE)
        -> *mut wchar_t, next libc_fgetws_chk {
        if !stdio::is_cookie(stream) {
            return libc_fgetws_chk(into, size, room, stream);
        }
        fgetws(into, room.min(c_int::try_from(size).unwrap_or(c_int::MAX)), stream)
    }
}

variadic! {
    __fwprintf_chk, 3, "rcx" => __vfwprintf_chk;
    fwprintf, 2, "rdx" => vfwprintf;
}
