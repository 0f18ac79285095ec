//! syscall(2): programs that name a call by its number get the same answers.
//!
//! Most numbers are in `rows`, with the function that answers them; here are those whose form is not libc's.
//! `syscalls.txt` lists every other number with what is done; a test holds it against this file and the kernel's
//! header.

use crate::calls::descriptor::on_descriptor;
use crate::edge::{given, reply};
use crate::find::table;
use crate::hooks::*;
use crate::raw::{self, SYS_FCHMODAT2, SYS_GETXATTRAT, SYS_LISTXATTRAT, SYS_REMOVEXATTRAT, SYS_SETXATTRAT};
use core::ffi::{c_int, c_long};

macro_rules! numbers {
    (@held) => {
        true
    };
    (@named) => {
        false
    };
    ($($module:ident { $(
        $function:ident: $($gate:ident [$($name:ident)+] $takes:literal)? $(($($shape:tt)+))?
            $(@$about:ident $number:ident ($($word:literal),*))?;
    )* })*) => {
        /// The answer of a call whose number is in a row, by the row's function: words of arguments, each of the type
        /// that it wants.
        ///
        /// # Safety
        /// The words are a program's arguments for the call of this number.
        unsafe fn of_row(number: c_long, words: [usize; 6]) -> Option<c_long> {
            // SAFETY: the program's arguments for the call of this number, as for the function of its name.
            unsafe {
                match number {
                    $($($(
                        libc::$number => Some($module::$function($(words[$word] as _),*) as c_long),
                    )?)*)*
                    _ => None,
                }
            }
        }

        /// The numbers in rows, and whether the call is about descriptors alone.
        const OF_ROWS: &[(c_long, bool)] = &[$($($( (libc::$number, numbers!(@$about)), )?)*)*];
    };
}
rows!(numbers);

hook! {
    /// The old getdents, whose record has the kind at its end (getdents(2)).
    fn getdents(fd: c_int, buffer: *mut u8, size: usize) -> c_long {
        on_descriptor(fd, || sys!(SYS_getdents, fd, buffer, size), |body| {
            let put = |at, record: &[u8]| {
                let mut record = record.to_vec();
                let kind = record.remove(KIND_OFFSET);
                record.push(kind);
                given::put_bytes(buffer.wrapping_add(at), &record).is_ok()
            };
            Ok(directory::fill(body.file()?, size, put)? as isize)
        })
    }
}

/// Where the newer record has the kind.
const KIND_OFFSET: usize = 18;

/// Calls on sockets that a file's stand-in answers: of the placeholder the kernel would say what it says of a
/// descriptor that is open by path only.
const OF_SOCKETS: &[c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_listen,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
];

/// Calls on descriptors alone, as a bit for each number.
static ABOUT_DESCRIPTORS: [u64; 8] = {
    let mut bits = [0; 8];
    let mut index = 0;
    while index < OF_ROWS.len() + OF_SOCKETS.len() {
        let (number, held) =
            if index < OF_ROWS.len() { OF_ROWS[index] } else { (OF_SOCKETS[index - OF_ROWS.len()], true) };
        bits[number as usize / 64] |= (held as u64) << (number % 64);
        index += 1;
    }
    bits
};

/// Whether a call is about descriptors alone: it is the kernel's unless one of them is ours.
pub(crate) fn is_about_descriptors(number: c_long) -> bool {
    let Ok(number) = usize::try_from(number) else { return false };
    ABOUT_DESCRIPTORS.get(number / 64).is_some_and(|bits| bits >> (number % 64) & 1 != 0)
}

/// Calls whose form differs from the libc function's, each with its answer: the function `special`, and for the tests
/// the numbers that it takes.
macro_rules! special {
    (|$number:ident, $words:ident| $($($call:path)|+ => $answer:expr;)*) => {
        /// # Safety
        /// The words are a program's arguments for the call of this number.
        unsafe fn special($number: c_long, $words: [usize; 6]) -> Option<c_long> {
            // SAFETY: as in `of_row`.
            unsafe {
                match $number {
                    $($($call)|+ => $answer,)*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        const SPECIAL: &[c_long] = &[$($($call),+),*];
    };
}

special! { |number, words|
    // Three arguments; libc's have flags.
    libc::SYS_faccessat => Some(stat::faccessat(words[0] as _, words[1] as _, words[2] as _, 0).into());
    libc::SYS_fchmodat => Some(metadata::fchmodat(words[0] as _, words[1] as _, words[2] as _, 0).into());
    SYS_FCHMODAT2 => {
        Some(metadata::fchmodat2(words[0] as _, words[1] as _, words[2] as _, words[3] as _).into())
    };
    // The kernel answers errno like every call.
    libc::SYS_fadvise64 => {
        let errno = extent::posix_fadvise(words[0] as _, words[1] as _, words[2] as _, words[3] as _);
        Some(reply(-(errno as isize)))
    };
    libc::SYS_sync => {
        sync::sync();
        Some(0)
    };
    libc::SYS_openat2 => Some(openat2::openat2(words[0] as _, words[1] as _, words[2] as _, words[3]));
    libc::SYS_pselect6 => {
        let sets = [words[1] as _, words[2] as _, words[3] as _];
        Some(poll::pselect6_by_number(words[0] as _, sets, words[4] as _, words[5] as _).into())
    };
    libc::SYS_getdents => Some(getdents(words[0] as _, words[1] as _, words[2]));
    libc::SYS_io_submit | libc::SYS_io_getevents | aio::SYS_IO_PGETEVENTS | libc::SYS_io_destroy => {
        aio::by_number(number, words).map(reply)
    };
    libc::SYS_io_uring_setup => Some(reply(ring::by_number(words)));
    SYS_SETXATTRAT | SYS_GETXATTRAT | SYS_LISTXATTRAT | SYS_REMOVEXATTRAT => {
        Some(xattr::at_by_number(number, words))
    };
    libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
        fork::by_number(number, words).then(|| reply(fork::forking(|| raw::call(number, words))))
    };
    libc::SYS_setrlimit => Some(reply(limit::after(words[0], raw::call(number, words))));
    libc::SYS_prlimit64 => Some(reply(limit::after(words[1], raw::call(number, words))));
    libc::SYS_exit_group => {
        life::_exit(words[0] as _);
        None
    };
    libc::SYS_setuid | libc::SYS_setgid | libc::SYS_setreuid | libc::SYS_setregid | libc::SYS_setresuid
    | libc::SYS_setresgid | libc::SYS_setgroups | libc::SYS_setfsuid | libc::SYS_setfsgid => {
        let answer = raw::call(number, words);
        identity::changed();
        Some(reply(answer))
    };
}

/// The answer of a call that we know, errno set on failure; `None` for the kernel's own.
///
/// # Safety
/// The words are a program's arguments for the call of this number.
pub(crate) unsafe fn by_number(number: c_long, words: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller's contract.
    unsafe { of_row(number, words).or_else(|| special(number, words)).or_else(|| of_sockets(number, words)) }
}

/// The answer of a call on a socket that is none: a descriptor of ours.
fn of_sockets(number: c_long, mut words: [usize; 6]) -> Option<c_long> {
    let fd = words[0] as c_int;
    if !table::is_ours(fd) || !OF_SOCKETS.contains(&number) {
        return None;
    }
    words[0] = terminal::stand_in(fd) as usize;
    Some(reply(raw::call(number, words)))
}

hook! {
    /// syscall(2): variadic in C; a seventh word is read from the stack, where the caller's frame is
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let words = [a, b, c, d, e, f];
        by_number(number, words).unwrap_or_else(|| reply(raw::call(number, words)))
    }
}

#[cfg(test)]
#[path = "syscall_tests.rs"]
mod tests;
