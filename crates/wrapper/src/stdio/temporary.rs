//! Temporary names: libc makes them with calls of its own, so ours are made here.

use crate::calls::name::mkdir;
use crate::calls::open::open;
use crate::calls::stat::{lstat, stat};
use crate::edge::{Answer, fail, finish};
use crate::find::redirect;
use crate::find::route::{self, Touch};
use crate::find::setting;
use crate::find::walk::Last;
use crate::raw;
use core::ffi::{c_char, c_int};

/// What a name's six letters are drawn from, as in glibc.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const PLACEHOLDER: &[u8] = b"XXXXXX";
/// Attempts before giving up, glibc's bound: 62^3.
const ATTEMPTS_MAX: usize = 238_328;

/// Fills the template's X's until `attempt` does not say that the name is taken.
unsafe fn make(
    template: *mut c_char,
    suffix: c_int,
    mut attempt: impl FnMut(*const c_char) -> c_int,
) -> Answer {
    // SAFETY: the program's template, a C string that it lets us change.
    let len = unsafe { raw::bytes(template) }.len();
    let Some(start) =
        usize::try_from(suffix).ok().and_then(|suffix| len.checked_sub(suffix + PLACEHOLDER.len()))
    else {
        return fail(libc::EINVAL);
    };
    // SAFETY: `start + 6 <= len`.
    let place =
        unsafe { core::slice::from_raw_parts_mut(template.add(start).cast::<u8>(), PLACEHOLDER.len()) };
    if place != PLACEHOLDER {
        return fail(libc::EINVAL);
    }
    for _ in 0..ATTEMPTS_MAX {
        let mut random = [0u8; PLACEHOLDER.len()];
        sys!(SYS_getrandom, random.as_mut_ptr(), random.len(), 0);
        for (letter, random) in place.iter_mut().zip(random) {
            *letter = LETTERS[usize::from(random) % LETTERS.len()];
        }
        let answer = attempt(template);
        if answer >= 0 {
            return Ok(answer as isize);
        }
        if raw::errno() != libc::EEXIST {
            return fail(raw::errno());
        }
    }
    fail(libc::EEXIST)
}

/// Whether the template's path can be ours: if so, our own calls decide at each attempt.
unsafe fn may_be_ours(template: *const c_char) -> bool {
    let Some(setting) = setting::setting() else { return false };
    // SAFETY: the program's C string, under `edge`'s contract.
    let path = unsafe { raw::bytes(template) };
    if setting.hosted.is_some() {
        return redirect::leads_in(libc::AT_FDCWD, path);
    }
    let found = crate::edge::caught(|| {
        Ok(route::find(setting, libc::AT_FDCWD, path, Touch::Change(Last::Keep))?.is_some()
            || crate::find::walk::leads_in(setting, libc::AT_FDCWD, path, Last::Keep).is_some())
    });
    found.unwrap_or(true)
}

unsafe fn make_file(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's template, under `edge`'s contract, here and below.
    if !unsafe { may_be_ours(template) } {
        // SAFETY: as above.
        return unsafe { libc_mkostemps(template, suffix, flags) };
    }
    let flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: as above.
    finish(unsafe { make(template, suffix, |path| open(path, flags, 0o600)) })
}

hook! {
    /// mkstemp(3)
    fn mkstemp(template: *mut c_char) -> c_int {
        make_file(template, 0, 0)
    }
}

hook! {
    /// mkostemp(3)
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
        make_file(template, 0, flags)
    }
}

hook! {
    /// mkstemps(3)
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        make_file(template, suffix, 0)
    }
}

hook! {
    /// mkostemps(3)
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, next libc_mkostemps {
        make_file(template, suffix, flags)
    }
}

hook! {
    /// mkdtemp(3)
    fn mkdtemp(template: *mut c_char) -> *mut c_char, next libc_mkdtemp {
        if !may_be_ours(template) {
            return libc_mkdtemp(template);
        }
        finish(make(template, 0, |path| mkdir(path, 0o700)).map(|_| template as isize))
    }
}

hook! {
    /// mktemp(3): a name that is free now; an empty one when there is none
    fn mktemp(template: *mut c_char) -> *mut c_char, next libc_mktemp {
        if !may_be_ours(template) {
            return libc_mktemp(template);
        }
        let made = make(template, 0, |path| {
            let mut status: libc::stat = core::mem::zeroed();
            let found = lstat(path, &raw mut status) == 0;
            if found {
                raw::set_errno(libc::EEXIST);
            }
            if !found && raw::errno() == libc::ENOENT { 0 } else { -1 }
        });
        if made.is_err() {
            *template = 0;
            let _: c_int = finish(made);
        }
        template
    }
}

/// Where tempnam(3) looks for a directory when neither its argument nor TMPDIR is one: `P_tmpdir`.
const DIRECTORY: &[u8] = b"/tmp";
/// What tempnam(3) takes of its prefix, and what it takes without one.
const PREFIX_BYTES_MAX: usize = 5;
const PREFIX: &[u8] = b"file";

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

unsafe fn is_directory(path: &[u8]) -> bool {
    let Some(path) = crate::find::walk::c_path(path) else { return false };
    // SAFETY: a C string, and a struct of integers.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        stat(path.as_ptr(), &raw mut status) == 0 && status.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// A name in `directory` that is free now, in memory of malloc's; null when there is none.
unsafe fn free_name(directory: &[u8], prefix: &[u8]) -> *mut c_char {
    let prefix = &prefix[..prefix.len().min(PREFIX_BYTES_MAX)];
    let name = [directory, b"/", prefix, PLACEHOLDER, b"\0"].concat();
    // SAFETY: malloc takes any size; the copy fits and ends with a NUL.
    unsafe {
        let copy = libc::malloc(name.len()).cast::<c_char>();
        if copy.is_null() {
            return copy;
        }
        copy.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
        if *mktemp(copy) == 0 {
            libc::free(copy.cast());
            return core::ptr::null_mut();
        }
        copy
    }
}

hook! {
    /// tempnam(3): libc looks for directories and for names with calls of its own
    fn tempnam(directory: *const c_char, prefix: *const c_char) -> *mut c_char, next libc_tempnam {
        if setting::setting().is_none() {
            return libc_tempnam(directory, prefix);
        }
        let named = secure_getenv(c"TMPDIR".as_ptr());
        let given = [named.cast_const(), directory];
        let given = given.iter().filter(|path| !path.is_null()).map(|&path| raw::bytes(path));
        let chosen = given.map(<[u8]>::to_vec).chain([DIRECTORY.to_vec()]).find(|path| is_directory(path));
        let Some(chosen) = chosen else { return finish(fail(libc::ENOENT)) };
        let prefix = if prefix.is_null() || *prefix == 0 { PREFIX } else { raw::bytes(prefix) };
        free_name(chosen.strip_suffix(b"/").unwrap_or(&chosen), prefix)
    }
}

/// tmpnam(3)'s own buffer, `L_tmpnam` bytes.
struct Name(core::cell::UnsafeCell<[c_char; 20]>);

// SAFETY: tmpnam(3) without a buffer is for one thread.
unsafe impl Sync for Name {}

static NAME: Name = Name(core::cell::UnsafeCell::new([0; 20]));

hook! {
    /// tmpnam(3)
    fn tmpnam(buffer: *mut c_char) -> *mut c_char {
        let target = if buffer.is_null() { NAME.0.get().cast() } else { buffer };
        let name = free_name(DIRECTORY, PREFIX);
        if name.is_null() {
            return name;
        }
        // `/tmp/fileXXXXXX` and its NUL: less than L_tmpnam.
        libc::strcpy(target, name);
        libc::free(name.cast());
        target
    }
}

hook! {
    /// tmpnam_r: as tmpnam, but null for null
    fn tmpnam_r(buffer: *mut c_char) -> *mut c_char {
        if buffer.is_null() { buffer } else { tmpnam(buffer) }
    }
}
