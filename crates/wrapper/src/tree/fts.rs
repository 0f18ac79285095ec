//! fts(3): libc walks with calls of its own that no hook sees, so where files of ours take part the walk is ours.

use crate::edge::{Answer, fail, finish};
use crate::find::{above, cwd, setting};
use crate::raw;
use crate::tree::fts_entry::{Compare, Entry, FTS_AGAIN, FTS_FOLLOW, FTS_NOINSTR, FTS_SKIP};
use crate::tree::fts_stream::{FTS_LOGICAL, FTS_NAMEONLY, FTS_NOCHDIR, FTS_OPTIONMASK, Stream, Want};
use core::ffi::{CStr, c_char, c_int};

/// Whether libc's own walk would not do: a path is ours, or leads there, or libc's access paths, names in working
/// directories that we do not know it to have entered, would be taken for ours.
fn is_for_us(paths: &[&CStr], options: c_int) -> bool {
    let leads = |path: &CStr| above::leads_to_us(path.as_ptr());
    let is_moving = options & (FTS_NOCHDIR | FTS_LOGICAL) == 0;
    paths.iter().any(|path| leads(path)) || is_moving && (cwd::may_lead_to_us() || leads(c"."))
}

fn open(paths: &[&CStr], options: c_int, compare: Compare) -> Answer {
    if options & !FTS_OPTIONMASK != 0 {
        return fail(libc::EINVAL);
    }
    if paths.iter().any(|path| path.is_empty()) {
        return fail(libc::ENOENT);
    }
    let paths: Vec<&[u8]> = paths.iter().map(|path| path.to_bytes()).collect();
    Ok(Box::into_raw(Stream::over(&paths, options, compare)?) as isize)
}

pointer_replies! {
    Stream => core::ptr::null_mut();
    Entry => core::ptr::null_mut();
}

hook! {
    /// fts_open(3)
    fn fts_open(paths: *const *const c_char, options: c_int, compare: Compare) -> *mut Stream, next libc_fts_open {
        let mut named = Vec::new();
        while setting::setting().is_some() && !(*paths.add(named.len())).is_null() {
            named.push(CStr::from_ptr(*paths.add(named.len())));
        }
        if !is_for_us(&named, options) {
            return libc_fts_open(paths, options, compare);
        }
        finish(open(&named, options, compare))
    }
}

hook! {
    /// fts_read(3)
    fn fts_read(stream: *mut Stream) -> *mut Entry, next libc_fts_read {
        if !Stream::is_ours(stream) {
            return libc_fts_read(stream);
        }
        finish((*stream).read().map(|entry| entry as isize))
    }
}

hook! {
    /// fts_children(3)
    fn fts_children(stream: *mut Stream, instruction: c_int) -> *mut Entry, next libc_fts_children {
        if !Stream::is_ours(stream) {
            return libc_fts_children(stream, instruction);
        }
        let want = match instruction {
            0 => Want::Children,
            FTS_NAMEONLY => Want::Names,
            _ => return finish(fail(libc::EINVAL)),
        };
        finish((*stream).children(want).map(|entry| entry as isize))
    }
}

hook! {
    /// fts_set(3): glibc answers 1 on failure
    fn fts_set(stream: *mut Stream, entry: *mut Entry, instruction: c_int) -> c_int, next libc_fts_set {
        if !Stream::is_ours(stream) {
            return libc_fts_set(stream, entry, instruction);
        }
        match u16::try_from(instruction) {
            Ok(known @ (0 | FTS_AGAIN | FTS_FOLLOW | FTS_NOINSTR | FTS_SKIP)) => (*entry).instruction = known,
            _ => {
                raw::set_errno(libc::EINVAL);
                return 1;
            }
        }
        0
    }
}

hook! {
    /// fts_close(3)
    fn fts_close(stream: *mut Stream) -> c_int, next libc_fts_close {
        if !Stream::is_ours(stream) {
            return libc_fts_close(stream);
        }
        drop(Box::from_raw(stream));
        0
    }
}
