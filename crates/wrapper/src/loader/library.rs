//! Shared libraries that lie in our file system: the loader, which opens files below every hook, gets sealed copies.
//!
//! A copy stays open under its number for the life of the process, so that the same file is the same library to the
//! loader, which compares inodes.

use crate::edge::{Answer, host};
use crate::find::magic_link::{DESCRIPTORS, MagicLink};
use crate::find::route;
use crate::find::setting;
use crate::loader::image::{self, Identity, Opened};
use crate::loader::needed;
use crate::process::environment;
use crate::raw;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use nvmed_sys::QuietFd;
use nvmed_sys::sync::Mutex;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ffi::CString;

/// Libraries of ours that one process keeps: as many as large Python programs load, several times over. Further ones
/// load, but each time anew.
const KEPT_MAX: usize = 4096;

/// A library's copy.
struct Library {
    image: QuietFd,
    identity: Identity,
    /// Its path as the program sees it.
    path: Vec<u8>,
    /// The one that was kept before it.
    older: *const Library,
}

/// The one that was kept last. They are never closed; no lock, because a child may be forked while another
/// thread looks.
static LAST: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn libraries() -> impl Iterator<Item = &'static Library> {
    let mut at: *const Library = LAST.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: null, or a box that is never freed.
        let library = unsafe { at.as_ref() }?;
        at = library.older;
        Some(library)
    })
}

fn keep(image: QuietFd, identity: Identity, path: Vec<u8>) {
    let library = Box::into_raw(Box::new(Library { image, identity, path, older: ptr::null() }));
    let mut last = LAST.load(Ordering::Acquire);
    loop {
        // SAFETY: the box is this thread's alone until it is published.
        unsafe { (*library).older = last };
        match LAST.compare_exchange(last, library, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(present) => last = present,
        }
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// A copy that the loader can take, and where the original lies.
pub(crate) struct Copy {
    /// `/proc/self/fd/N`.
    pub name: CString,
    /// The original's path.
    pub path: Vec<u8>,
    /// Held until the loader has opened it, where it is not kept.
    _image: Option<OwnedFd>,
}

/// The copy of an open library of ours, made if there is none yet.
///
/// # Errors
/// Those of [`image::copy`].
pub(crate) fn copy_of(file: &Opened) -> Answer<Copy> {
    let identity = Identity::of(&image::status(file.0)?);
    let path = file.path()?;
    if let Some(known) = libraries().find(|known| known.identity == identity && known.is_there()) {
        return Ok(Copy {
            name: MagicLink::of(known.image.as_raw_fd()).to_owned(),
            path: known.path.clone(),
            _image: None,
        });
    }
    let image = image::copy(file, identity.bytes, &path)?;
    if COUNT.load(Ordering::Relaxed) >= KEPT_MAX {
        return Ok(Copy { name: MagicLink::of(image.as_raw_fd()).to_owned(), path, _image: Some(image) });
    }
    let image = QuietFd::new(image);
    let name = MagicLink::of(image.as_raw_fd()).to_owned();
    keep(image, identity, path.clone());
    Ok(Copy { name, path, _image: None })
}

impl Library {
    /// Whether the number still is the copy's: a forked child may have closed what it inherited.
    fn is_there(&self) -> bool {
        let seals = sys!(SYS_fcntl, self.image.as_raw_fd(), libc::F_GET_SEALS);
        seals > 0 && seals & libc::F_SEAL_WRITE as isize != 0
    }
}

/// The path of a library of ours by the name under which the loader has it.
pub(crate) fn path_behind(name: &[u8]) -> Option<Vec<u8>> {
    let number =
        core::str::from_utf8(name.strip_prefix(DESCRIPTORS.as_bytes())?).ok()?.parse::<c_int>().ok()?;
    libraries().find(|known| known.image.as_raw_fd() == number).map(|known| known.path.clone())
}

/// `struct link_map` of link.h, as far as it is public.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *mut c_char,
}

/// Gives a loaded copy its original's name, for `dladdr` and backtraces, and for the loader's own comparisons.
///
/// # Safety
/// `handle` is an open library's.
unsafe fn rename(handle: *mut c_void, copy: &Copy, at_start: bool) {
    let Ok(path) = CString::new(copy.path.as_slice()) else { return };
    // SAFETY: glibc's handles are link maps; the loader frees the name when it unloads the library, with the same
    // `free` as the `strdup` here belongs to.
    unsafe {
        let map: *mut LinkMap = handle.cast();
        if (*map).name.is_null() || CStr::from_ptr((*map).name) != copy.name.as_c_str() {
            return;
        }
        let name = libc::strdup(path.as_ptr());
        if !name.is_null() {
            let before = core::mem::replace(&mut (*map).name, name);
            // What was loaded at the start has a name from the loader's own memory, and is never unloaded.
            if !at_start {
                libc::free(before.cast());
            }
        }
    }
}

/// Adopts the copies that the program which executed this one had preloaded.
///
/// # Safety
/// The library is being loaded: the program's own code has not begun.
pub(crate) unsafe fn begin() {
    libcs_dlerror();
    // SAFETY: the caller's contract.
    let Some(list) = (unsafe { environment::take(environment::LIBRARIES) }) else { return };
    for line in list.split(|&byte| byte == b'\n') {
        if let Some((fd, identity, path)) = parse(line) {
            let copy = Copy { name: MagicLink::of(fd).to_owned(), path: path.clone(), _image: None };
            // SAFETY: a name; nothing is loaded anew.
            unsafe {
                let handle = libc_dlopen()(copy.name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !handle.is_null() {
                    rename(handle, &copy, true);
                    libc::dlclose(handle);
                }
            }
            // SAFETY: whoever executed us left it open for this.
            let image = QuietFd::new(unsafe { OwnedFd::from_raw_fd(fd) });
            keep(image, identity, path);
        }
    }
}

/// A copy that goes along over an exec.
pub(crate) struct Passed {
    /// Open without CLOEXEC; closed again when the exec fails.
    _image: OwnedFd,
    /// What `LD_PRELOAD` calls it.
    pub name: Vec<u8>,
    /// Its line in the variable.
    pub line: Vec<u8>,
}

/// Makes copies ready for an exec. Those that are not kept, because there are too many, stay behind.
///
/// # Errors
/// `EMFILE`.
pub(crate) fn pass(copies: &[Copy]) -> Answer<Vec<Passed>> {
    let known = |copy: &Copy| libraries().find(|known| *MagicLink::of(known.image.as_raw_fd()) == *copy.name);
    let passed = |known: &Library| {
        let number =
            host(sys!(SYS_fcntl, known.image.as_raw_fd(), libc::F_DUPFD, image::NUMBER_MIN))? as c_int;
        // SAFETY: a duplicate that was just made.
        let image = unsafe { OwnedFd::from_raw_fd(number) };
        let Identity { inode, bytes, changed: [a, b, c, d] } = known.identity;
        let line = [format!("{number} {inode} {bytes} {a} {b} {c} {d} ").as_bytes(), &known.path].concat();
        Ok(Passed { _image: image, name: MagicLink::of(number).to_bytes().to_vec(), line })
    };
    copies.iter().filter_map(known).map(passed).collect()
}

fn parse(line: &[u8]) -> Option<(c_int, Identity, Vec<u8>)> {
    let mut words = line.splitn(8, |&byte| byte == b' ');
    let mut number = || core::str::from_utf8(words.next()?).ok()?.parse::<i64>().ok();
    let fd = c_int::try_from(number()?).ok()?;
    let (inode, bytes) = (number()?.cast_unsigned(), number()?.cast_unsigned());
    let changed = [number()?, number()?, number()?, number()?];
    Some((fd, Identity { inode, bytes, changed }, words.next()?.to_vec()))
}

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// libc's dlopen(3).
pub(crate) fn libc_dlopen() -> Open {
    next!(dlopen, fn(*const c_char, c_int) -> *mut c_void)
}

/// What becomes of a dlopen: libc's function goes on where `next` is not null, else `handle` is the answer.
#[repr(C)]
struct Fate {
    next: *mut c_void,
    handle: *mut c_void,
}

/// The copy for a path of ours; none for the host's, and for what cannot be read, of which the loader will say that it
/// is not there.
fn wanted(path: &[u8], caller: usize) -> Option<Copy> {
    setting::setting()?;
    let found = needed::find(path, caller)?;
    match copy_of(&found) {
        Ok(copy) => Some(copy),
        Err(failure) => {
            raw::say(format_args!(
                "{}: the library cannot be copied into memory for the dynamic loader, which will not find it: {}",
                String::from_utf8_lossy(path),
                crate::edge::words_of(&failure)
            ));
            None
        }
    }
}

/// Where the host has a library to which a directory or a link of ours leads: the loader does not find it by the path
/// as it is.
fn elsewhere(path: &CStr) -> Option<CString> {
    setting::setting().filter(|_| path.to_bytes().contains(&b'/'))?;
    let target = route::on_host_of(libc::AT_FDCWD, path)?.path;
    (*target != *path).then_some(target)
}

unsafe fn open_ours(
    path: *const c_char,
    caller: usize,
    load: &dyn Fn(*const c_char) -> *mut c_void,
) -> Option<*mut c_void> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program's C string.
    let given = unsafe { CStr::from_ptr(path) };
    if let Some(target) = elsewhere(given) {
        return Some(load(target.as_ptr()));
    }
    let copy = wanted(given.to_bytes(), caller)?;
    // Held until the library itself holds them.
    let needed: Vec<*mut c_void> = needed::of_library(&copy)
        .iter()
        .filter_map(|copy| {
            let handle = load(copy.name.as_ptr());
            // SAFETY: just opened.
            (!handle.is_null()).then(|| unsafe { rename(handle, copy, false) }).map(|()| handle)
        })
        .collect();
    let handle = load(copy.name.as_ptr());
    // A successful close would wipe out why this failed.
    if !handle.is_null() {
        // SAFETY: opened above.
        unsafe {
            needed.into_iter().for_each(|needed| _ = libc::dlclose(needed));
            rename(handle, &copy, false);
        }
    }
    Some(handle)
}

/// What becomes of a call of libc's function `next`, which `load` makes for another path.
unsafe fn fate(
    path: *const c_char,
    caller: usize,
    next: *mut c_void,
    load: &dyn Fn(*const c_char) -> *mut c_void,
) -> Fate {
    // SAFETY: the program's arguments, under `edge`'s contract.
    match unsafe { open_ours(path, caller, load) } {
        Some(handle) => Fate { next: ptr::null_mut(), handle },
        None => Fate { next, handle: ptr::null_mut() },
    }
}

unsafe extern "C" fn before_dlopen(path: *const c_char, flags: c_int, caller: usize) -> Fate {
    let next = libc_dlopen();
    // SAFETY: the program's arguments, under `edge`'s contract.
    unsafe { fate(path, caller, next as *mut c_void, &|name| next(name, flags)) }
}

unsafe extern "C" fn before_dlmopen(space: c_long, path: *const c_char, caller: usize, flags: c_int) -> Fate {
    let next = next!(dlmopen, fn(c_long, *const c_char, c_int) -> *mut c_void);
    // SAFETY: as above.
    unsafe { fate(path, caller, next as *mut c_void, &|name| next(space, name, flags)) }
}

/// dlopen(3) and dlmopen(3): where the library is the host's, libc's function goes on in our place, because what it
/// does depends on who calls it (run paths, namespaces).
macro_rules! loading {
    ($($name:ident => $before:ident;)*) => { $(
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            // Three words and the return address: the stack is aligned for the call. The caller is its third argument,
            // and what may have stood there its fourth.
            naked_asm!(
                "push rdi", "push rsi", "push rdx",
                "mov ecx, edx",
                "mov rdx, [rsp + 24]",
                "call {before}",
                "mov r11, rax", "mov rax, rdx",
                "pop rdx", "pop rsi", "pop rdi",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2: ret",
                before = sym $before,
            )
        }
    )* };
}
loading! {
    dlopen => before_dlopen;
    dlmopen => before_dlmopen;
}

/// What the loader said last, by threads that asked: libc's own text lives until the thread's next call of it as well.
const SAID_MAX: usize = 16;
static SAID: Mutex<(usize, [Option<CString>; SAID_MAX])> = Mutex::new((0, [const { None }; SAID_MAX]));

type Said = unsafe extern "C" fn() -> *mut c_char;

/// Looked up before anything fails: a look-up that succeeds forgets why the call before it failed.
fn libcs_dlerror() -> Said {
    next!(dlerror, fn() -> *mut c_char)
}

hook! {
    /// dlerror(3): with the library's own name in place of its copy's number
    fn dlerror() -> *mut c_char {
        let said = libcs_dlerror()();
        if said.is_null() || !raw::bytes(said).starts_with(DESCRIPTORS.as_bytes()) {
            return said;
        }
        let text = raw::bytes(said);
        let end = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
        let named = path_behind(&text[..end]).and_then(|path| CString::new([&path, &text[end..]].concat()).ok());
        let Some(named) = named else { return said };
        let mut ring = SAID.lock();
        let at = ring.0 % SAID_MAX;
        ring.0 += 1;
        ring.1[at].insert(named).as_ptr().cast_mut()
    }
}

/// The path of the library of ours that holds an address, if one does.
pub(crate) fn around(address: usize) -> Option<Vec<u8>> {
    // SAFETY: zeroes are a Dl_info, and any address may be asked for.
    let name = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let found = libc::dladdr(address as *const c_void, &raw mut info);
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        raw::bytes(info.dli_fname).to_vec()
    };
    libraries().any(|known| known.path == name).then_some(name)
}

/// Opens a library by a path, if it is ours.
pub(crate) fn opened(path: &[u8]) -> Option<Opened> {
    let path = CString::new(path).ok()?;
    if !route::leads_to_us(libc::AT_FDCWD, &path) {
        return None;
    }
    // SAFETY: a C string.
    unsafe { Opened::new(libc::AT_FDCWD, path.as_ptr(), 0) }.ok().filter(Opened::is_ours)
}
