//! `filesystem = host`: calls below `wrap_dir` go to a directory of the host's, seen but not answered by us.
//!
//! Descriptors stay the kernel's own, so whole process trees run as without us. Paths below `wrap_dir` are rewritten where
//! the directory behind is another; the names that the kernel answers (getcwd, realpath) are then that directory's.

use crate::edge::given::{NO_MEMORY, Room};
use crate::edge::{Answer, inside};
use crate::find::cwd;
use crate::find::place::{self, Place, Touch};
use crate::find::prefix::{Lexical, Prefix, component};
use crate::find::setting::{self, Hosted, Setting};
use crate::find::walk::{self, Last};
use crate::stdio::standard;
use crate::tree::directory;
use crate::watch;
use core::cell::Cell;
use core::ffi::{c_char, c_int, c_uint};
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CString;

/// Whether the host answers in this process.
static ON: AtomicBool = AtomicBool::new(false);
/// Whether the kernel's working directory is one of those that are watched.
static INSIDE: AtomicBool = AtomicBool::new(false);
/// Descriptors that a program inherits are looked for up to this number; a shell keeps its own at 255.
const INHERITED_MAX: c_int = 256;

thread_local! {
    /// Whether the path call that this thread is in goes below `wrap_dir`.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the host answers.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether a descriptor is of a file below `wrap_dir`.
#[inline(always)]
pub(crate) fn is_watched(fd: c_int) -> bool {
    is_on() && watch::number(fd) != 0
}

/// Whether the path call that is under way goes below `wrap_dir`.
#[inline(always)]
pub(crate) fn here() -> bool {
    is_on() && HERE.get()
}

/// Where a path leads.
enum Leads {
    /// Not below `wrap_dir`.
    Elsewhere,
    /// Below it, by the path as it is.
    There,
    /// Below it, by what is left of the path.
    Rest(Vec<u8>),
}

/// Runs a path call: the host answers all of them.
pub(crate) fn in_place(
    setting: &Setting,
    hosted: &Hosted,
    (dirfd, path): (c_int, *const c_char),
    touch: Touch,
    run: &mut dyn FnMut(Place<'_>) -> Answer,
) -> Answer {
    let mut room = Room::new();
    let Ok(name) = room.name(path) else {
        return inside::outside(|| run(Place::Host { dirfd, path: NO_MEMORY }));
    };
    let (path, text) = (name.as_ptr(), name.to_bytes());
    let leads = leads(setting, hosted, dirfd, text, touch.last());
    let (dirfd, owned) = match &leads {
        Leads::Rest(rest) if hosted.elsewhere => (libc::AT_FDCWD, walk::c_path(&hosted.path(rest))),
        _ => (dirfd, None),
    };
    let path = owned.as_ref().map_or(path, |owned| owned.as_ptr());
    let before = HERE.replace(!matches!(leads, Leads::Elsewhere));
    if HERE.get() {
        watch::touch();
    }
    let answer = inside::outside(|| run(Place::Host { dirfd, path }));
    HERE.set(before);
    answer
}

fn leads(setting: &Setting, hosted: &Hosted, dirfd: c_int, path: &[u8], last: Last) -> Leads {
    let there = |inside: bool| if inside { Leads::There } else { Leads::Elsewhere };
    if path.first() == Some(&b'/') {
        return match setting.prefix.place(path) {
            Lexical::Inside(rest) => Leads::Rest(rest.to_vec()),
            Lexical::Unsure => followed(setting, b"/".to_vec(), path, last),
            Lexical::Outside if hosted.elsewhere => {
                there(matches!(hosted.prefix.place(path), Lexical::Inside(_)))
            }
            Lexical::Outside => there(place::descriptor_named(path).is_some_and(is_watched)),
        };
    }
    if dirfd != libc::AT_FDCWD {
        if is_watched(dirfd) || path.is_empty() {
            return there(is_watched(dirfd));
        }
        return match walk::path_of_descriptor(dirfd).filter(|_| names(path, setting.prefix.name())) {
            Some(base) => followed(setting, base, path, last),
            None => Leads::Elsewhere,
        };
    }
    if INSIDE.load(Ordering::Relaxed) {
        return Leads::There;
    }
    let Some(cwd::Cwd::Host { below }) = cwd::current() else { return Leads::Elsewhere };
    match cwd::place(below.as_deref(), path) {
        Lexical::Inside(rest) => Leads::Rest(rest.to_vec()),
        Lexical::Outside => Leads::Elsewhere,
        Lexical::Unsure => match walk::kernel_cwd() {
            Some(base) => followed(setting, base, path, last),
            None => Leads::Elsewhere,
        },
    }
}

fn followed(setting: &Setting, base: Vec<u8>, path: &[u8], last: Last) -> Leads {
    walk::enter(setting, base, path, last).map_or(Leads::Elsewhere, Leads::Rest)
}

fn names(path: &[u8], name: &[u8]) -> bool {
    let mut rest = path;
    while let Some((found, after)) = component(rest) {
        if found == name {
            return true;
        }
        rest = after;
    }
    false
}

/// Whether a path leads below `wrap_dir`, for calls that libc would make below every hook.
pub(crate) fn leads_in(dirfd: c_int, path: &[u8]) -> bool {
    let Some(setting) = setting::setting() else { return false };
    let Some(hosted) = &setting.hosted else { return false };
    !matches!(leads(setting, hosted, dirfd, path, Last::Follow), Leads::Elsewhere)
}

/// The path in the directory behind, if that is another than `wrap_dir`, for calls that libc makes below every hook.
pub(crate) fn behind(path: &[u8]) -> Option<CString> {
    let setting = setting::setting()?;
    let hosted = setting.hosted.as_ref().filter(|hosted| hosted.elsewhere)?;
    match leads(setting, hosted, libc::AT_FDCWD, path, Last::Follow) {
        Leads::Rest(rest) => walk::c_path(&hosted.path(&rest)),
        Leads::Elsewhere | Leads::There => None,
    }
}

/// A descriptor that a path call has just opened.
#[inline]
pub(crate) fn opened(fd: c_int) {
    if is_on() {
        opened_where_on(fd);
    }
}

/// Apart, so that where nothing is hosted nobody looks for this thread's words.
#[inline(never)]
fn opened_where_on(fd: c_int) {
    if here() {
        watch::opened(fd);
        standard::changed(fd);
    }
}

/// A duplicate that the kernel has made; answers what the kernel answered.
pub(crate) fn copied(old: c_int, answer: isize) -> isize {
    if is_on() && answer >= 0 {
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
    if is_on() && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        watch::forget(first, last);
    }
    let answer = sys!(SYS_close_range, first, last, flags);
    if is_on() {
        (0..=2).for_each(standard::changed);
    }
    answer
}

/// A directory stream of libc's is about to be closed.
pub(crate) fn forget(dir: *mut libc::DIR) {
    if is_on() {
        watch::mark(directory::descriptor_of(dir), 0);
    }
}

/// The kernel's working directory has changed.
pub(crate) fn moved(setting: &Setting, path: Option<&[u8]>) {
    if let Some(hosted) = &setting.hosted {
        let within =
            |prefix: &Prefix| matches!(path.map(|path| prefix.place(path)), Some(Lexical::Inside(_)));
        INSIDE.store(within(&hosted.prefix), Ordering::Relaxed);
    }
}

/// When the library is loaded: descriptors of files below the directory behind, which the program inherits.
pub(crate) fn begin(hosted: &Hosted) {
    ON.store(true, Ordering::Relaxed);
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
