//! `FTS` of fts(3): a hierarchy with files of ours, walked by hooked calls.
//!
//! The working directory stays: what libc calls `FTS_NOCHDIR` is always on, and a file's access path is its path, from
//! where the program was when it began.

use crate::edge::{Answer, Fail, fail};
use crate::raw;
use crate::tree::directory::{self, open_at};
use crate::tree::fts_entry::{
    self as entry, Compare, Entry, FTS_AGAIN, FTS_D, FTS_DNR, FTS_DOT, FTS_DP, FTS_ERR, FTS_FOLLOW, FTS_INIT,
    FTS_NOINSTR, FTS_NSOK, FTS_SKIP, FTS_SL, FTS_SLNONE, ROOT_LEVEL, ROOT_PARENT_LEVEL,
};
use core::ffi::{c_char, c_int};
use core::ops::ControlFlow;
use core::ptr;
use libc::dirent;

// fts.h: options.
const FTS_COMFOLLOW: c_int = 0x01;
pub(crate) const FTS_LOGICAL: c_int = 0x02;
pub(crate) const FTS_NOCHDIR: c_int = 0x04;
const FTS_NOSTAT: c_int = 0x08;
const FTS_PHYSICAL: c_int = 0x10;
const FTS_SEEDOT: c_int = 0x20;
const FTS_XDEV: c_int = 0x40;
pub(crate) const FTS_OPTIONMASK: c_int = 0xff;
pub(crate) const FTS_NAMEONLY: c_int = 0x100;
const FTS_STOP: c_int = 0x200;

/// Room for the longest path: entries tell lengths as numbers of 16 bits. It never moves, so neither do their paths.
const PATH_BYTES: usize = 1 << 16;

/// Where the array of our streams points, which is libc's own business: no stream of libc's can point here.
static OURS: u64 = 0;

/// `FTS` of fts.h. On x86-64 `FTS64` is the same.
#[repr(C)]
pub(crate) struct Stream {
    current: *mut Entry,
    child: *mut Entry,
    array: *const u64,
    device: u64,
    path: *mut c_char,
    root_fd: c_int,
    path_bytes: c_int,
    items: c_int,
    compare: Compare,
    options: c_int,
}

const _: () = assert!(size_of::<Stream>() == 72 && core::mem::offset_of!(Stream, options) == 64);

/// What is wanted of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// The next level of the walk.
    Walk,
    /// Entries to look at, and to walk later.
    Children,
    /// Their names.
    Names,
}

impl Stream {
    fn wants(&self, option: c_int) -> bool {
        self.options & option != 0
    }

    /// Ends the path after its first bytes, or after these, `/` and a name.
    fn write_path(&mut self, kept: usize, name: Option<&[u8]>) {
        let end = self.path.cast::<u8>().wrapping_add(kept);
        // SAFETY: the room of `PATH_BYTES` that the stream was made with: the lengths of paths are checked when entries
        // are made.
        unsafe {
            let Some(name) = name else { return end.write(0) };
            end.write(b'/');
            end.add(1).copy_from_nonoverlapping(name.as_ptr(), name.len());
            end.add(1 + name.len()).write(0);
        }
    }

    /// Bytes of a directory's path that those of what it holds begin with: without a slash at the end.
    unsafe fn kept(&self, directory: *mut Entry) -> usize {
        // SAFETY: an entry of this walk, whose path the room begins with.
        unsafe {
            let len = usize::from((*directory).path_len);
            let ends = len > 0 && self.path.add(len - 1).read() == b'/' as c_char;
            if ends { len - 1 } else { len }
        }
    }

    /// Begins with a path that the program named: what it tells from now on is in the walk's room.
    unsafe fn enter_root(&mut self, root: *mut Entry) {
        // SAFETY: a root of this walk; its name fits the room.
        unsafe {
            let name = entry::name(root);
            let bytes = self.path.cast::<u8>();
            bytes.copy_from_nonoverlapping(name.as_ptr(), name.len());
            bytes.add(name.len()).write(0);
            (*root).path_len = (*root).name_len;
            entry::keep_last_component(root);
            (*root).access_path = self.path;
            self.device = (*root).device;
        }
    }

    /// Frees what was read ahead of the directory at hand.
    fn drop_children(&mut self) {
        let children = core::mem::replace(&mut self.child, ptr::null_mut());
        // SAFETY: entries of this walk, which the program was told to be gone with this call.
        unsafe { entry::free_list(children) };
    }

    /// The entries of the directory at hand, in order; null if there are none.
    unsafe fn build(&mut self, want: Want) -> Answer<*mut Entry> {
        // SAFETY: the current entry is a directory of this walk, at whose path the room's text ends.
        unsafe {
            let here = self.current;
            let dir = open_at(libc::AT_FDCWD, (*here).access_path);
            if dir.is_null() {
                return self.unreadable(want, raw::errno());
            }
            let kept = self.kept(here);
            let (mut entries, mut stopped) = (Vec::new(), None);
            let failed = directory::each(dir, &mut |record| {
                match self.found(kept, record, want) {
                    Ok(entry) if entry.is_null() => {}
                    Ok(entry) => entries.push(entry),
                    Err(failure) => stopped = Some(failure),
                }
                if stopped.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            self.write_path(usize::from((*here).path_len), None);
            if let Some(failure) = stopped {
                entry::free_list(entry::linked(&mut entries, None));
                (*here).info = FTS_ERR;
                self.options |= FTS_STOP;
                return Err(failure);
            }
            if failed != 0 && entries.is_empty() {
                return self.unreadable(want, failed);
            }
            // What could be read is walked; the directory's second visit then tells of the error.
            (*here).errno = failed;
            if entries.is_empty() && want == Want::Walk {
                (*here).info = FTS_DP;
            }
            Ok(entry::linked(&mut entries, self.compare))
        }
    }

    unsafe fn unreadable(&mut self, want: Want, errno: c_int) -> Answer<*mut Entry> {
        if want == Want::Walk {
            // SAFETY: the current entry is a directory of this walk.
            unsafe { ((*self.current).info, (*self.current).errno) = (FTS_DNR, errno) };
        }
        fail(errno)
    }

    /// The entry of a record of the directory at hand; null for one that is not told.
    unsafe fn found(&mut self, kept: usize, record: *const dirent, want: Want) -> Answer<*mut Entry> {
        // SAFETY: a record with a C string, valid until the next is read; the current entry is its directory.
        unsafe {
            let name = raw::bytes((&raw const (*record).d_name).cast());
            if matches!(name, b"." | b"..") && !self.wants(FTS_SEEDOT) {
                return Ok(ptr::null_mut());
            }
            let len = kept + 1 + name.len();
            let path_len = u16::try_from(len).map_err(|_| Fail::Errno(libc::ENAMETOOLONG))?;
            let level = (*self.current).level.saturating_add(1);
            let entry = entry::made(name, self.path, self.current, level)?;
            (*entry).path_len = path_len;
            let is_known = !matches!((*record).d_type, libc::DT_DIR | libc::DT_UNKNOWN);
            let unasked = is_known && self.wants(FTS_NOSTAT) && self.wants(FTS_PHYSICAL);
            (*entry).info = if unasked || want == Want::Names {
                FTS_NSOK
            } else {
                self.write_path(kept, Some(name));
                entry::look(entry, self.wants(FTS_LOGICAL))
            };
            Ok(entry)
        }
    }

    /// The entry that the walk comes to next; null at its end.
    ///
    /// # Errors
    /// `ENOMEM`, `ENAMETOOLONG`: the walk is over.
    ///
    /// # Safety
    /// The program has left its entries as they were, but for what fts(3) lets it change.
    pub(crate) unsafe fn read(&mut self) -> Answer<*mut Entry> {
        let here = self.current;
        if here.is_null() || self.wants(FTS_STOP) {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the current entry is one of this walk; here and below.
        unsafe {
            let instruction = core::mem::replace(&mut (*here).instruction, FTS_NOINSTR);
            if instruction == FTS_AGAIN
                || instruction == FTS_FOLLOW && matches!((*here).info, FTS_SL | FTS_SLNONE)
            {
                (*here).errno = 0;
                (*here).info = entry::look(here, instruction == FTS_FOLLOW || self.wants(FTS_LOGICAL));
                if (*here).info != FTS_D {
                    self.drop_children();
                }
                return Ok(here);
            }
            if (*here).info == FTS_D { self.descend(here, instruction) } else { Ok(self.next(here)) }
        }
    }

    /// From a directory to the first that it holds, or to itself where that is all.
    unsafe fn descend(&mut self, here: *mut Entry, instruction: u16) -> Answer<*mut Entry> {
        // SAFETY: an entry of this walk, the current one.
        unsafe {
            if instruction == FTS_SKIP || self.wants(FTS_XDEV) && (*here).device != self.device {
                self.drop_children();
                (*here).info = FTS_DP;
                return Ok(here);
            }
            if self.wants(FTS_NAMEONLY) {
                self.options &= !FTS_NAMEONLY;
                self.drop_children();
            }
            if self.child.is_null() {
                self.child = match self.build(Want::Walk) {
                    Err(failure) if self.wants(FTS_STOP) => return Err(failure),
                    Ok(first) if !first.is_null() => first,
                    // Empty, or not to be read: its visit says which.
                    _ => return Ok(here),
                };
            }
            // Instructions to the first are obeyed after its visit, as in glibc.
            self.current = core::mem::replace(&mut self.child, ptr::null_mut());
            let kept = self.kept(here);
            self.write_path(kept, Some(entry::name(self.current)));
            Ok(self.current)
        }
    }

    /// From an entry that is done to the one beside it, or to the directory above. Null at the end.
    unsafe fn next(&mut self, mut done: *mut Entry) -> *mut Entry {
        // SAFETY: entries of this walk; what is done is not told again, and its link and parent are read before it is
        // freed.
        unsafe {
            loop {
                let (beside, above) = ((*done).link, (*done).parent);
                libc::free(done.cast());
                self.current = beside;
                if beside.is_null() {
                    return self.ascend(above);
                }
                if (*beside).level == ROOT_LEVEL {
                    self.enter_root(beside);
                    return beside;
                }
                if (*beside).instruction == FTS_SKIP {
                    done = beside;
                    continue;
                }
                let kept = self.kept(above);
                self.write_path(kept, Some(entry::name(beside)));
                if (*beside).instruction == FTS_FOLLOW {
                    (*beside).instruction = FTS_NOINSTR;
                    (*beside).info = entry::look(beside, true);
                }
                return beside;
            }
        }
    }

    unsafe fn ascend(&mut self, above: *mut Entry) -> *mut Entry {
        // SAFETY: the parent of an entry of this walk; above the roots stands one that is never told.
        unsafe {
            if (*above).level == ROOT_PARENT_LEVEL {
                libc::free(above.cast());
                raw::set_errno(0);
                return ptr::null_mut();
            }
            self.write_path(usize::from((*above).path_len), None);
            (*above).info = if (*above).errno == 0 { FTS_DP } else { FTS_ERR };
        }
        self.current = above;
        above
    }

    /// What the directory at hand holds, or the roots before the walk; null where there is nothing to tell.
    ///
    /// # Errors
    /// Those of opendir(3) and readdir(3), `ENOMEM`, `ENAMETOOLONG`.
    ///
    /// # Safety
    /// As for [`Self::read`].
    pub(crate) unsafe fn children(&mut self, want: Want) -> Answer<*mut Entry> {
        raw::set_errno(0);
        if self.current.is_null() || self.wants(FTS_STOP) {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the current entry is one of this walk.
        unsafe {
            match (*self.current).info {
                FTS_INIT => return Ok((*self.current).link),
                FTS_D => {}
                _ => return Ok(ptr::null_mut()),
            }
            self.drop_children();
            self.options &= !FTS_NAMEONLY;
            self.options |= if want == Want::Names { FTS_NAMEONLY } else { 0 };
            self.child = self.build(want)?;
        }
        Ok(self.child)
    }

    /// A walk of these paths, none of which is empty.
    ///
    /// # Errors
    /// `ENOMEM`; `ENAMETOOLONG` where a path has no length of 16 bits.
    pub(crate) fn over(paths: &[&[u8]], options: c_int, compare: Compare) -> Answer<Box<Self>> {
        let mut stream = Self::new(options, compare)?;
        // SAFETY: the walk has not begun.
        unsafe { stream.begin(paths)? };
        Ok(stream)
    }

    /// Whose walk it is.
    ///
    /// # Safety
    /// A stream that `fts_open` answered, ours or libc's, which has the same fields.
    pub(crate) unsafe fn is_ours(stream: *mut Self) -> bool {
        // SAFETY: the caller's contract.
        unsafe { ptr::eq((*stream).array, &raw const OURS) }
    }

    /// A walk that has not begun: its current entry stands before the roots.
    fn new(options: c_int, compare: Compare) -> Answer<Box<Self>> {
        // SAFETY: calloc takes any size.
        let path = unsafe { libc::calloc(1, PATH_BYTES) }.cast::<c_char>();
        if path.is_null() {
            return fail(libc::ENOMEM);
        }
        let mut stream = Box::new(Self {
            current: ptr::null_mut(),
            child: ptr::null_mut(),
            array: &raw const OURS,
            device: 0,
            path,
            root_fd: -1,
            path_bytes: PATH_BYTES as c_int,
            items: 0,
            compare,
            options: options | FTS_NOCHDIR,
        });
        stream.current = entry::made(b"", path, ptr::null_mut(), ROOT_PARENT_LEVEL)?;
        let first = entry::made(b"", path, stream.current, ROOT_LEVEL)?;
        // SAFETY: made just above.
        unsafe { (*first).info = FTS_INIT };
        stream.current = first;
        Ok(stream)
    }

    /// Puts the paths that the program named at the walk's beginning.
    unsafe fn begin(&mut self, paths: &[&[u8]]) -> Answer<()> {
        let mut roots = Vec::with_capacity(paths.len());
        // SAFETY: the entry before the roots, and entries that are made here.
        unsafe {
            let above = (*self.current).parent;
            for path in paths {
                let root = match entry::made(path, self.path, above, ROOT_LEVEL) {
                    Ok(root) => root,
                    Err(failure) => {
                        entry::free_list(entry::linked(&mut roots, None));
                        return Err(failure);
                    }
                };
                (*root).access_path = entry::name_of(root).cast();
                (*root).info = match entry::look(root, self.wants(FTS_COMFOLLOW | FTS_LOGICAL)) {
                    FTS_DOT => FTS_D,
                    info => info,
                };
                roots.push(root);
            }
            if self.compare.is_some() {
                // Those that compare equal come as glibc has them: the last named first.
                roots.reverse();
            }
            (*self.current).link = entry::linked(&mut roots, self.compare);
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.drop_children();
        let mut at = self.current;
        // SAFETY: the current entry, those beside it, their parent, those beside that, and so on, are this walk's
        // alone.
        unsafe {
            while !at.is_null() {
                let next = if (*at).link.is_null() { (*at).parent } else { (*at).link };
                libc::free(at.cast());
                at = next;
            }
            libc::free(self.path.cast());
        }
    }
}
