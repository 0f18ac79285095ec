//! `FTSENT` of fts(3): one file of a hierarchy, as programs read it.

use crate::calls::stat::{lstat, stat};
use crate::edge::{Answer, Fail};
use crate::raw;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::mem::offset_of;
use core::ptr;

// fts.h: what `info` says.
pub(crate) const FTS_D: u16 = 1;
const FTS_DC: u16 = 2;
const FTS_DEFAULT: u16 = 3;
pub(crate) const FTS_DNR: u16 = 4;
pub(crate) const FTS_DOT: u16 = 5;
pub(crate) const FTS_DP: u16 = 6;
pub(crate) const FTS_ERR: u16 = 7;
const FTS_F: u16 = 8;
pub(crate) const FTS_INIT: u16 = 9;
const FTS_NS: u16 = 10;
pub(crate) const FTS_NSOK: u16 = 11;
pub(crate) const FTS_SL: u16 = 12;
pub(crate) const FTS_SLNONE: u16 = 13;
// fts.h: what `instruction` says.
pub(crate) const FTS_AGAIN: u16 = 1;
pub(crate) const FTS_FOLLOW: u16 = 2;
pub(crate) const FTS_NOINSTR: u16 = 3;
pub(crate) const FTS_SKIP: u16 = 4;
/// The level of what stands above the paths that a program names.
pub(crate) const ROOT_PARENT_LEVEL: i16 = -1;
/// The level of the paths that a program names.
pub(crate) const ROOT_LEVEL: i16 = 0;

/// A program's order of entries: glibc calls it with two `const FTSENT **`.
pub(crate) type Compare = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;

/// `FTSENT` of fts.h, whose name goes on behind it. On x86-64 `FTSENT64` is the same.
#[repr(C)]
pub(crate) struct Entry {
    pub cycle: *mut Self,
    pub parent: *mut Self,
    pub link: *mut Self,
    number: c_long,
    pointer: *mut c_void,
    pub access_path: *mut c_char,
    path: *mut c_char,
    pub errno: c_int,
    link_fd: c_int,
    pub path_len: u16,
    pub name_len: u16,
    inode: u64,
    pub device: u64,
    links: u64,
    pub level: i16,
    pub info: u16,
    flags: u16,
    pub instruction: u16,
    status: *mut libc::stat,
    name: [c_char; 1],
}

const NAME_OFFSET: usize = offset_of!(Entry, name);
const _: () = assert!(NAME_OFFSET == 112 && size_of::<Entry>() == 120 && offset_of!(Entry, status) == 104);

/// An entry whose paths are those of the walk, with a name of its own; `free_list` frees it.
///
/// # Errors
/// `ENOMEM`; `ENAMETOOLONG` when its length is no number of 16 bits.
pub(crate) fn made(name: &[u8], path: *mut c_char, parent: *mut Entry, level: i16) -> Answer<*mut Entry> {
    let name_len = u16::try_from(name.len()).map_err(|_| Fail::Errno(libc::ENAMETOOLONG))?;
    // The status lies behind the name. What a program copies of an entry is never less than an entry.
    let status_at = (NAME_OFFSET + name.len() + 1).next_multiple_of(align_of::<Entry>());
    // SAFETY: calloc takes any size; zeros are a valid entry and a valid status.
    let entry = unsafe { libc::calloc(1, status_at + size_of::<libc::stat>()) }.cast::<Entry>();
    if entry.is_null() {
        return Err(Fail::Errno(libc::ENOMEM));
    }
    // SAFETY: made just above, with room for the name and its NUL, which calloc wrote, and for an aligned status.
    unsafe {
        (*entry).parent = parent;
        (*entry).access_path = path;
        (*entry).path = path;
        (*entry).name_len = name_len;
        (*entry).level = level;
        (*entry).instruction = FTS_NOINSTR;
        (*entry).status = entry.byte_add(status_at).cast();
        name_of(entry).copy_from_nonoverlapping(name.as_ptr(), name.len());
    }
    Ok(entry)
}

/// Where the name begins.
///
/// # Safety
/// `entry` is one that [`made`] made.
pub(crate) unsafe fn name_of(entry: *mut Entry) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe { entry.cast::<u8>().add(NAME_OFFSET) }
}

/// The name itself.
///
/// # Safety
/// `entry` is one that [`made`] made, and stays for `'a` with its name as it is.
pub(crate) unsafe fn name<'a>(entry: *mut Entry) -> &'a [u8] {
    // SAFETY: the caller's contract; the name has so many bytes.
    unsafe { core::slice::from_raw_parts(name_of(entry), usize::from((*entry).name_len)) }
}

/// Shortens the name to its last component, as it is told once the path is known.
///
/// # Safety
/// `entry` is one that [`made`] made.
pub(crate) unsafe fn keep_last_component(entry: *mut Entry) {
    // SAFETY: the caller's contract; the rest of a name and its NUL move within the name.
    unsafe {
        let name = name(entry);
        let Some(slash) = name.iter().rposition(|&byte| byte == b'/') else { return };
        if name.len() == 1 {
            return;
        }
        let rest = name.len() - slash - 1;
        let start = name_of(entry);
        start.copy_from(start.add(slash + 1), rest + 1);
        (*entry).name_len = rest as u16;
    }
}

/// Frees a list.
///
/// # Safety
/// Its entries are such that [`made`] made, and nobody uses them any more.
pub(crate) unsafe fn free_list(mut head: *mut Entry) {
    while !head.is_null() {
        // SAFETY: the caller's contract.
        unsafe {
            let next = (*head).link;
            libc::free(head.cast());
            head = next;
        }
    }
}

/// Links entries to a list in the program's order, or in theirs; its head.
///
/// # Safety
/// The entries are such that [`made`] made; `compare` is the program's function for them.
pub(crate) unsafe fn linked(entries: &mut [*mut Entry], compare: Compare) -> *mut Entry {
    if compare.is_some() && entries.len() > 1 {
        // SAFETY: an array of so many pointers; the program's function, called as fts(3) says.
        unsafe { libc::qsort(entries.as_mut_ptr().cast(), entries.len(), size_of::<*mut Entry>(), compare) };
    }
    let mut next = ptr::null_mut();
    for &entry in entries.iter().rev() {
        // SAFETY: the caller's contract.
        unsafe { (*entry).link = next };
        next = entry;
    }
    next
}

/// Looks at the file behind the access path, whose status and place it writes; what `info` is to say.
///
/// # Safety
/// `entry` is one that [`made`] made, with a C string as its access path, as have those above it.
pub(crate) unsafe fn look(entry: *mut Entry, follow: bool) -> u16 {
    // SAFETY: the caller's contract; the status is room behind the entry.
    unsafe {
        let (path, status) = ((*entry).access_path, (*entry).status);
        let mut dangles = false;
        if follow && stat(path, status) != 0 {
            let errno = raw::errno();
            if lstat(path, status) != 0 {
                return unseen(entry, errno);
            }
            dangles = true;
        } else if !follow && lstat(path, status) != 0 {
            return unseen(entry, raw::errno());
        }
        let found = &*status;
        (*entry).inode = found.st_ino;
        (*entry).device = found.st_dev;
        (*entry).links = found.st_nlink;
        match found.st_mode & libc::S_IFMT {
            _ if dangles => {
                raw::set_errno(0);
                FTS_SLNONE
            }
            libc::S_IFDIR => directory(entry),
            libc::S_IFLNK => FTS_SL,
            libc::S_IFREG => FTS_F,
            _ => FTS_DEFAULT,
        }
    }
}

unsafe fn unseen(entry: *mut Entry, errno: c_int) -> u16 {
    // SAFETY: `look`'s contract; zeros are a valid status.
    unsafe {
        (*entry).errno = errno;
        (*entry).status.write_bytes(0, 1);
    }
    FTS_NS
}

/// A directory, unless it is on the way to itself.
unsafe fn directory(entry: *mut Entry) -> u16 {
    // SAFETY: `look`'s contract: the parents are there, up to the one above the roots.
    unsafe {
        if matches!(name(entry), b"." | b"..") {
            return FTS_DOT;
        }
        let mut above = (*entry).parent;
        while (*above).level >= ROOT_LEVEL {
            if (*above).inode == (*entry).inode && (*above).device == (*entry).device {
                (*entry).cycle = above;
                return FTS_DC;
            }
            above = (*above).parent;
        }
    }
    FTS_D
}
