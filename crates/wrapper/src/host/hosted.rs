//! `filesystem = host`: calls below `wrap_dir` go to a directory of the host's: we see them, and the kernel answers.
//!
//! Descriptors stay the kernel's own, so whole process trees run as without us. Paths below `wrap_dir` are rewritten
//! where the directory behind is another; the names that the kernel answers (getcwd, realpath) are then that
//! directory's.

use crate::find::prefix::Lexical;
use crate::find::redirect::here;
use crate::find::setting::{self, Hosted};
use crate::find::walk;
use crate::stdio::standard;
use crate::watch::{self, is_watched};
use core::ffi::{c_int, c_uint};

/// Descriptors that a program inherits are looked for up to this number; a shell keeps its own at 255.
const INHERITED_MAX: c_int = 256;

/// A descriptor that a path call has just opened.
#[inline]
pub(crate) fn opened(fd: c_int) {
    if setting::is_hosted() {
        opened_where_on(fd);
    }
}

/// Apart, so that a run that hosts nothing does not look up this thread's words.
#[inline(never)]
fn opened_where_on(fd: c_int) {
    if here() {
        watch::opened(fd);
        standard::changed(fd);
    }
}

/// A duplicate that the kernel has made; answers what the kernel answered.
pub(crate) fn copied(old: c_int, answer: isize) -> isize {
    if setting::is_hosted() && answer >= 0 {
        let (fresh, number) = (answer as c_int, watch::number(old));
        if number != watch::number(fresh) {
            watch::mark(fresh, number);
            standard::changed(fresh);
        }
    }
    answer
}

/// Closes a descriptor of the host's.
pub(crate) fn close(fd: c_int) -> isize {
    if !is_watched(fd) {
        return sys!(SYS_close, fd);
    }
    watch::mark(fd, 0);
    let answer = sys!(SYS_close, fd);
    standard::changed(fd);
    answer
}

/// Closes, or marks, a range of descriptors of the host's.
pub(crate) fn close_range(first: c_uint, last: c_uint, flags: c_int) -> isize {
    if setting::is_hosted() && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        watch::forget(first, last);
    }
    let answer = sys!(SYS_close_range, first, last, flags);
    if setting::is_hosted() {
        (0..=2).for_each(standard::changed);
    }
    answer
}

/// When the library is loaded: descriptors of files below the directory behind, which the program inherits.
pub(crate) fn begin(hosted: &Hosted) {
    setting::begin_hosted();
    for fd in 0..INHERITED_MAX {
        if sys!(SYS_fcntl, fd, libc::F_GETFD) < 0 {
            continue;
        }
        let Some(path) = walk::path_of_descriptor(fd) else { continue };
        if matches!(hosted.prefix.place(&path), Lexical::Inside(_)) {
            watch::inherited(fd, &path);
            standard::changed(fd);
        }
    }
}
