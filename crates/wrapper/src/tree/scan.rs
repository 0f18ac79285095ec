//! scandir, ftw and nftw: what libc does with calls of its own that no hook sees.

use crate::calls::open::open;
use crate::calls::real::{chdir, fchdir};
use crate::calls::stat::{fstatat, lstat, stat};
use crate::edge::{Answer, fail, finish};
use crate::find::above;
use crate::raw;
use crate::tree::directory;
use core::ffi::{c_char, c_int, c_void};
use core::ops::ControlFlow;
use libc::dirent;
use std::ffi::CString;

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

/// Reads a whole directory into memory that the program frees with `free`.
unsafe fn scan(
    dirfd: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: Filter,
    compare: Compare,
) -> c_int {
    let dir = directory::open_at(dirfd, path);
    if dir.is_null() {
        return -1;
    }
    let (mut kept, mut has_memory) = (Vec::<*mut dirent>::new(), true);
    let errno = raw::errno();
    // SAFETY: the stream was made above; the program's functions are called as scandir(3) says.
    unsafe {
        let failed = directory::each(dir, &mut |entry| {
            if filter.is_some_and(|filter| filter(entry) == 0) {
                return ControlFlow::Continue(());
            }
            let bytes = usize::from((*entry).d_reclen);
            let copy = libc::malloc(bytes).cast::<dirent>();
            if copy.is_null() {
                has_memory = false;
                return ControlFlow::Break(());
            }
            copy.cast::<u8>().copy_from_nonoverlapping(entry.cast(), bytes);
            kept.push(copy);
            ControlFlow::Continue(())
        });
        let array = libc::malloc((kept.len().max(1)) * size_of::<*mut dirent>()).cast::<*mut dirent>();
        if failed != 0 || !has_memory || array.is_null() {
            kept.iter().for_each(|&entry| libc::free(entry.cast()));
            libc::free(array.cast());
            raw::set_errno(if failed != 0 { failed } else { libc::ENOMEM });
            return -1;
        }
        array.copy_from_nonoverlapping(kept.as_ptr(), kept.len());
        if let Some(compare) = compare {
            type Raw = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;
            let compare = core::mem::transmute::<
                unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int,
                Raw,
            >(compare);
            libc::qsort(array.cast(), kept.len(), size_of::<*mut dirent>(), Some(compare));
        }
        raw::put_unseen(list, &array);
    }
    raw::set_errno(errno);
    kept.len() as c_int
}

hook! {
    /// scandir(3)
    fn scandir(path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare)
        -> c_int, next libc_scandir {
        if above::lists_ours(libc::AT_FDCWD, path) {
            return scan(libc::AT_FDCWD, path, list, filter, compare);
        }
        libc_scandir
            (path, list, filter, compare)
    }
}

hook! {
    /// scandirat(3)
    fn scandirat(
        dirfd: c_int, path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare,
    ) -> c_int, next libc_scandirat {
        if above::lists_ours(dirfd, path) {
            return scan(dirfd, path, list, filter, compare);
        }
        libc_scandirat
            (dirfd, path, list, filter, compare)
    }
}

/// `struct FTW`.
#[repr(C)]
pub(crate) struct Ftw {
    base: c_int,
    level: c_int,
}

type FtwFn = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;
type NftwFn = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut Ftw) -> c_int;

// ftw.h
const FTW_F: c_int = 0;
const FTW_D: c_int = 1;
const FTW_DNR: c_int = 2;
const FTW_NS: c_int = 3;
const FTW_SL: c_int = 4;
const FTW_DP: c_int = 5;
const FTW_SLN: c_int = 6;
const FTW_PHYS: c_int = 1;
const FTW_MOUNT: c_int = 2;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;
const FTW_SKIP_SUBTREE: c_int = 2;
const FTW_SKIP_SIBLINGS: c_int = 3;

/// Directories of a walk that are open at once at most; deeper trees are walked by name lists anyway.
const DEPTH_MAX: usize = 4096;

struct Walk<'a> {
    call: &'a mut dyn FnMut(*const c_char, *const libc::stat, c_int, &mut Ftw) -> c_int,
    flags: c_int,
    device: u64,
    /// The working directory of the caller, from which the paths count, with `FTW_CHDIR`.
    home: Option<c_int>,
}

impl Walk<'_> {
    fn wants(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Status and kind of a path, as nftw(3) classes it.
    fn class(&self, path: &CString) -> (libc::stat, c_int) {
        // SAFETY: a struct of integers; C strings and room of ours.
        unsafe {
            let mut status = core::mem::zeroed::<libc::stat>();
            let found = if self.wants(FTW_PHYS) {
                lstat(path.as_ptr(), &raw mut status)
            } else {
                stat(path.as_ptr(), &raw mut status)
            };
            if found != 0 {
                let dangling = !self.wants(FTW_PHYS) && lstat(path.as_ptr(), &raw mut status) == 0;
                return (status, if dangling { FTW_SLN } else { FTW_NS });
            }
            let class = match status.st_mode & libc::S_IFMT {
                libc::S_IFDIR => FTW_D,
                libc::S_IFLNK => FTW_SL,
                _ => FTW_F,
            };
            (status, class)
        }
    }

    /// Visits `path` and what is below; the first non-zero answer ends the walk.
    fn visit(&mut self, path: &CString, level: usize) -> c_int {
        let (status, class) = self.class(path);
        let text = path.as_bytes();
        let base = text.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut ftw = Ftw { base: base as c_int, level: level as c_int };
        if class != FTW_D {
            return self.tell(path, &status, class, &mut ftw);
        }
        if self.wants(FTW_MOUNT) && status.st_dev != self.device {
            return 0;
        }
        let Some(names) = names(path).filter(|_| level < DEPTH_MAX) else {
            return self.tell(path, &status, FTW_DNR, &mut ftw);
        };
        if !self.wants(FTW_DEPTH) {
            match self.tell(path, &status, FTW_D, &mut ftw) {
                0 => {}
                FTW_SKIP_SUBTREE if self.wants(FTW_ACTIONRETVAL) => return 0,
                answer => return answer,
            }
        }
        for name in names {
            let child = [text.strip_suffix(b"/").unwrap_or(text), b"/", &name].concat();
            let Ok(child) = CString::new(child) else { continue };
            match self.visit(&child, level + 1) {
                0 => {}
                FTW_SKIP_SIBLINGS if self.wants(FTW_ACTIONRETVAL) => break,
                answer => return answer,
            }
        }
        if self.wants(FTW_DEPTH) {
            return self.tell(path, &status, FTW_DP, &mut ftw);
        }
        0
    }

    fn tell(&mut self, path: &CString, status: &libc::stat, class: c_int, ftw: &mut Ftw) -> c_int {
        let Some(home) = self.home else { return (self.call)(path.as_ptr(), status, class, ftw) };
        // The function finds itself where the name is; a directory that is told after what it holds, too.
        let above = &path.as_bytes()[..ftw.base as usize];
        // SAFETY: a C string, and a descriptor of a directory.
        unsafe {
            if let Some(above) = crate::find::walk::c_path(above).filter(|above| !above.is_empty())
                && chdir(above.as_ptr()) != 0
            {
                return -1;
            }
            let answer = (self.call)(path.as_ptr(), status, class, ftw);
            if fchdir(home) != 0 && answer == 0 { -1 } else { answer }
        }
    }
}

/// The names in a directory, without `.` and `..`.
fn names(path: &CString) -> Option<Vec<Vec<u8>>> {
    let dir = directory::open_at(libc::AT_FDCWD, path.as_ptr());
    if dir.is_null() {
        return None;
    }
    let mut names = Vec::new();
    directory::each(dir, &mut |entry| {
        // SAFETY: a record holds a C string.
        let name = unsafe { raw::bytes((&raw const (*entry).d_name).cast()) };
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        ControlFlow::Continue(())
    });
    Some(names)
}

/// Walks a tree with files of ours.
unsafe fn walk(
    path: *const c_char,
    flags: c_int,
    call: &mut dyn FnMut(*const c_char, *const libc::stat, c_int, &mut Ftw) -> c_int,
) -> Answer {
    // SAFETY: the program's C string, under `edge`'s contract; a struct of integers.
    let (path, mut status) =
        unsafe { (core::ffi::CStr::from_ptr(path).to_owned(), core::mem::zeroed::<libc::stat>()) };
    // SAFETY: a C string and room of ours.
    if unsafe { fstatat(libc::AT_FDCWD, path.as_ptr(), &raw mut status, libc::AT_SYMLINK_NOFOLLOW) } != 0 {
        return fail(raw::errno());
    }
    let home = match flags & FTW_CHDIR {
        0 => None,
        // SAFETY: a C string.
        _ => Some(unsafe { open(c".".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0) }),
    };
    if home.is_some_and(|home| home < 0) {
        return fail(raw::errno());
    }
    let answer = Walk { call, flags, device: status.st_dev, home }.visit(&path, 0);
    if let Some(home) = home {
        let errno = raw::errno();
        // SAFETY: the descriptor opened above.
        unsafe { crate::calls::descriptor::close(home) };
        raw::set_errno(errno);
    }
    Ok(answer as isize)
}

hook! {
    /// ftw(3)
    fn ftw(path: *const c_char, call: FtwFn, descriptors: c_int) -> c_int, next libc_ftw {
        if !above::leads_to_us(path) {
            return libc_ftw(path, call, descriptors);
        }
        // ftw knows no links and no postorder.
        finish(walk(path, 0, &mut |path, status, class, _| match class {
            FTW_SLN => 0,
            class => call(path, status, class),
        }))
    }
}

hook! {
    /// nftw(3)
    fn nftw(path: *const c_char, call: NftwFn, descriptors: c_int, flags: c_int) -> c_int, next libc_nftw {
        if !above::leads_to_us(path) {
            return libc_nftw(path, call, descriptors, flags);
        }
        finish(walk(path, flags, &mut |path, status, class, ftw| call(path, status, class, ftw)))
    }
}
