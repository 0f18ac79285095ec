//! The environment of a program that is executed: it gets the variables that load the wrapper, whatever the calling
//! program put into it or left out.

use crate::raw;
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;

/// What every descendant gets with the value that this process has, unless its environment names its own.
const KEPT: [&[u8]; 9] = [
    CONFIG,
    SETTINGS,
    b"NVMED_CONFIG_START",
    SERVER,
    b"NVMED_STATS",
    b"NVMED_TALLY",
    b"NVMED_BEYOND",
    b"NVMED_RUN_MEMORY",
    // Looked at by builds with deliberate mistakes alone.
    b"NVMED_MUTANT",
];
const CONFIG: &[u8] = b"WRAPPER_CONFIG";
const SETTINGS: &[u8] = b"NVMED_SETTINGS";
const SERVER: &[u8] = b"NVMED_SERVER";
const PRELOAD: &[u8] = b"LD_PRELOAD";
/// What tells one program how it was started; another one's is never handed on.
const ONCE: [&[u8]; 4] = [b"NVMED_CWD", b"NVMED_SESSION", EXECUTED, LIBRARIES];
/// Where a program of ours lies that runs from a copy.
pub(crate) const EXECUTED: &[u8] = b"NVMED_EXE";
/// Tells a program that is executed which copies its `LD_PRELOAD` names: lines of number, identity and path.
pub(crate) const LIBRARIES: &[u8] = b"NVMED_LIBRARIES";
/// The list of directories with libraries, which ld.so reads at the start alone.
pub(crate) const LIBRARY_PATH: &[u8] = b"LD_LIBRARY_PATH";

unsafe extern "C" {
    static mut environ: *mut *const c_char;
}

/// What this process was started with.
struct Learned {
    /// `NAME=value`, of the names in `KEPT`.
    kept: Vec<CString>,
    /// Our library as `LD_PRELOAD` named it, and by an absolute path.
    library: Option<(Vec<u8>, Vec<u8>)>,
    /// `LD_LIBRARY_PATH`, which counts as it was at the start.
    library_path: Vec<u8>,
}

/// Written while the library is loaded, by the one thread that there is; read only from then on. No lock: a child may
/// be forked while another thread reads.
static LEARNED: AtomicPtr<Learned> = AtomicPtr::new(ptr::null_mut());

static NOTHING: Learned = Learned { kept: Vec::new(), library: None, library_path: Vec::new() };

fn learned() -> &'static Learned {
    // SAFETY: null or a box that is never freed.
    unsafe { LEARNED.load(Ordering::Acquire).as_ref() }.unwrap_or(&NOTHING)
}

/// Puts `change`d knowledge in place; what was known before is leaked, a few times in the life of a process.
fn learn_also(change: impl FnOnce(&mut Learned)) {
    let known = learned();
    let (kept, library) = (known.kept.clone(), known.library.clone());
    let mut fresh = Box::new(Learned { kept, library, library_path: known.library_path.clone() });
    change(&mut fresh);
    LEARNED.store(Box::into_raw(fresh), Ordering::Release);
}

/// What follows `NAME=` in an entry of that name.
fn value<'a>(entry: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    entry.strip_prefix(name)?.strip_prefix(b"=")
}

fn names<'n>(entry: &[u8], names: &[&'n [u8]]) -> Option<&'n [u8]> {
    names.iter().copied().find(|name| value(entry, name).is_some())
}

/// `NAME=value` as a C string; values of ours hold no NUL.
pub(crate) fn entry(name: &[u8], value: &[u8]) -> Option<CString> {
    CString::new([name, b"=", value].concat()).ok()
}

/// The entries of an environment.
///
/// # Safety
/// `list` is null or a null-terminated list of C strings that lives for `'a`.
unsafe fn entries<'a>(list: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    let mut at = list;
    core::iter::from_fn(move || {
        // SAFETY: the caller's contract; `at` stops at the null.
        unsafe {
            let next = at.as_ref().copied().filter(|entry| !entry.is_null())?;
            at = at.add(1);
            Some(CStr::from_ptr(next))
        }
    })
}

/// The present value of a variable, as the program's own environment has it.
///
/// # Safety
/// As getenv(3): nobody changes the environment meanwhile.
pub(crate) unsafe fn present(name: &[u8]) -> Option<Vec<u8>> {
    // SAFETY: libc's variable, under the caller's contract.
    unsafe { in_list(environ.cast(), name) }
}

/// Remembers a value that descendants get.
pub(crate) fn keep(name: &[u8], value: &[u8]) {
    let Some(kept) = entry(name, value) else { return };
    learn_also(|known| {
        known.kept.retain(|old| names(old.to_bytes(), &[name]).is_none());
        known.kept.push(kept);
    });
}

/// Removes a variable that was meant for the start of this process alone, in place: bash has a `getenv` and an
/// `unsetenv` of its own, which know nothing until the shell has begun.
///
/// # Safety
/// The library is being loaded: the program's own code has not begun.
pub(crate) unsafe fn take(name: &[u8]) -> Option<Vec<u8>> {
    let mut taken = None;
    // SAFETY: the start's environment, a null-terminated list that is ours to shorten for now.
    unsafe {
        let (mut from, mut to) = (environ, environ);
        while let Some(&at) = from.as_ref().filter(|at| !at.is_null()) {
            match value(CStr::from_ptr(at).to_bytes(), name) {
                Some(found) => taken = taken.or_else(|| Some(found.to_vec())),
                None => {
                    to.write(at);
                    to = to.add(1);
                }
            }
            from = from.add(1);
        }
        if !to.is_null() {
            to.write(ptr::null());
        }
    }
    taken
}

/// Reads what descendants are to get.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn learn() {
    // SAFETY: the start's environment.
    for found in unsafe { entries(environ.cast()) } {
        if let Some(name) = names(found.to_bytes(), &KEPT) {
            keep(name, &found.to_bytes()[name.len() + 1..]);
        }
    }
    // SAFETY: as above.
    let library_path = unsafe { present(LIBRARY_PATH) }.unwrap_or_default();
    learn_also(|known| {
        known.library = library();
        known.library_path = library_path;
    });
}

/// `LD_LIBRARY_PATH` as the loader read it.
pub(crate) fn library_path() -> Vec<u8> {
    learned().library_path.clone()
}

/// The value of a variable in an environment that is handed to an exec call.
///
/// # Safety
/// `list` is null or a null-terminated list of C strings.
pub(crate) unsafe fn in_list(list: *const *const c_char, name: &[u8]) -> Option<Vec<u8>> {
    // SAFETY: the caller's contract.
    unsafe { entries(list) }.find_map(|entry| value(entry.to_bytes(), name)).map(<[u8]>::to_vec)
}

/// Our own file, as the loader was told and absolute: descendants may run elsewhere.
fn library() -> Option<(Vec<u8>, Vec<u8>)> {
    // SAFETY: zeroes are a Dl_info; the address is this function's own.
    let named = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let found = libc::dladdr(library as *const () as *const c_void, &raw mut info);
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        raw::bytes(info.dli_fname).to_vec()
    };
    let whole = match named.first() {
        Some(b'/') => named.clone(),
        _ => [crate::find::walk::kernel_cwd()?.as_slice(), b"/", &named].concat(),
    };
    Some((named, whole))
}

/// The items of `LD_PRELOAD`, which the loader splits at both.
fn split(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| b": ".contains(byte)).filter(|item| !item.is_empty())
}

/// `LD_PRELOAD` with our library before the program's, then `more`.
fn preload(given: Option<&[u8]>, library: &(Vec<u8>, Vec<u8>), more: &[Vec<u8>]) -> Option<CString> {
    let (named, whole) = library;
    let theirs: Vec<&[u8]> = split(given.unwrap_or_default()).collect();
    let is_ours = |item: &[u8]| item == named || item == whole;
    let present = theirs.iter().any(|item| is_ours(item));
    let mut items: Vec<&[u8]> = if present { Vec::new() } else { vec![whole] };
    items.extend(theirs.into_iter().map(|item| if is_ours(item) { whole.as_slice() } else { item }));
    // Before the libraries that follow: symbols of theirs are looked up in this order.
    items.extend(more.iter().map(Vec::as_slice));
    entry(PRELOAD, &items.join(&b':'))
}

/// The environment of a program that is executed.
pub(crate) struct Environment {
    /// Null-terminated.
    list: Vec<*const c_char>,
    _owned: Vec<CString>,
}

impl Environment {
    /// The program's, with ours. `once` are entries for this one start, `libraries` are preloaded after ours.
    ///
    /// # Safety
    /// `given` is null or a null-terminated list of C strings; both outlive the answer.
    pub(crate) unsafe fn new(given: *const *const c_char, once: Vec<CString>, libraries: &[Vec<u8>]) -> Self {
        let mut list: Vec<*const c_char> = Vec::new();
        let mut owned: Vec<CString> = Vec::new();
        let mut preloaded = None;
        let mut foreign = false;
        let learned = learned();
        let mut seen: Vec<&[u8]> = Vec::new();
        // SAFETY: the caller's contract.
        for found in unsafe { entries(given) } {
            let text = found.to_bytes();
            if names(text, &ONCE).is_some() {
                continue;
            }
            if let Some(value) = value(text, PRELOAD) {
                preloaded = preloaded.or(Some(value));
                continue;
            }
            if let Some(name) = names(text, &KEPT) {
                // getenv(3) finds the first.
                if seen.contains(&name) {
                    continue;
                }
                foreign |= [CONFIG, SETTINGS, SERVER].contains(&name)
                    && !learned.kept.iter().any(|kept| kept.to_bytes() == text);
                seen.push(name);
            }
            list.push(found.as_ptr());
        }
        if foreign {
            // Another configuration: our server is not its server.
            let ours = |&at: &*const c_char| {
                // SAFETY: the given entries, under the caller's contract.
                let text = unsafe { raw::bytes(at) };
                value(text, SERVER).is_some() && learned.kept.iter().any(|kept| kept.to_bytes() == text)
            };
            list.retain(|at| !ours(at));
        } else {
            let missing = |kept: &&CString| names(kept.to_bytes(), &seen).is_none();
            owned.extend(learned.kept.iter().filter(missing).cloned());
            owned.extend(once);
        }
        match &learned.library {
            Some(library) => owned.extend(preload(preloaded, library, libraries)),
            None => owned.extend(preloaded.and_then(|value| entry(PRELOAD, value))),
        }
        list.extend(owned.iter().map(|entry| entry.as_ptr()));
        list.push(ptr::null());
        Self { list, _owned: owned }
    }

    /// As execve(2) takes it.
    pub(crate) fn as_ptr(&self) -> *const *const c_char {
        self.list.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> (Vec<u8>, Vec<u8>) {
        (b"./w.so".to_vec(), b"/l/w.so".to_vec())
    }

    fn preloaded(given: Option<&[u8]>, more: &[Vec<u8>]) -> String {
        preload(given, &library(), more).expect("no NUL").into_string().expect("text")
    }

    #[test]
    fn our_library_is_preloaded_once_and_first_when_it_was_missing() {
        assert_eq!(preloaded(None, &[]), "LD_PRELOAD=/l/w.so");
        assert_eq!(preloaded(Some(b""), &[]), "LD_PRELOAD=/l/w.so");
        assert_eq!(preloaded(Some(b"a.so b.so"), &[]), "LD_PRELOAD=/l/w.so:a.so:b.so");
        assert_eq!(preloaded(Some(b"a.so:./w.so"), &[]), "LD_PRELOAD=a.so:/l/w.so");
        assert_eq!(
            preloaded(Some(b"/l/w.so"), &[b"/proc/self/fd/600".to_vec()]),
            "LD_PRELOAD=/l/w.so:/proc/self/fd/600"
        );
    }
}
