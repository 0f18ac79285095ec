//! Paths where the host answers (`filesystem = host`): those below `wrap_dir` lead to the directory behind.

use crate::edge::given::{NO_MEMORY, Room};
use crate::edge::{Answer, inside};
use crate::find::cwd;
use crate::find::prefix::{Lexical, component};
use crate::find::route::{self, Route, Touch};
use crate::find::setting::{self, Hosted, Setting};
use crate::find::walk::{self, Last};
use crate::watch;
use core::cell::Cell;
use core::ffi::{c_char, c_int};
use std::ffi::{CStr, CString};

thread_local! {
    /// Whether the path call that this thread is in goes below `wrap_dir`.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the path call that is under way goes below `wrap_dir`.
#[inline(always)]
pub(crate) fn here() -> bool {
    setting::is_hosted() && HERE.get()
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
    run: &mut dyn FnMut(Route<'_>) -> Answer,
) -> Answer {
    let mut room = Room::new();
    let Ok(name) = room.name(path) else {
        return inside::outside(|| run(Route::Host { dirfd, path: NO_MEMORY }));
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
    let answer = inside::outside(|| run(Route::Host { dirfd, path }));
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
            Lexical::Outside => there(route::descriptor_named(path).is_some_and(watch::is_watched)),
        };
    }
    if dirfd != libc::AT_FDCWD {
        if watch::is_watched(dirfd) || path.is_empty() {
            return there(watch::is_watched(dirfd));
        }
        return match walk::path_of_descriptor(dirfd).filter(|_| names(path, setting.prefix.name())) {
            Some(base) => followed(setting, base, path, last),
            None => Leads::Elsewhere,
        };
    }
    if cwd::is_behind() {
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

/// One of the two paths of a call, where the host answers all of them: in the directory behind, if it leads there and
/// that is another than `wrap_dir`. A call of which one path leads there counts.
pub(crate) fn one_of_two(dirfd: c_int, path: &CStr, last: Last) -> Option<CString> {
    let setting = setting::setting()?;
    let hosted = setting.hosted.as_ref()?;
    let leads = leads(setting, hosted, dirfd, path.to_bytes(), last);
    if !matches!(leads, Leads::Elsewhere) {
        watch::touch();
    }
    match leads {
        Leads::Rest(rest) if hosted.elsewhere => walk::c_path(&hosted.path(&rest)),
        _ => None,
    }
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
