//! Which libraries of ours a program or library needs: the loader looks for them below every hook, so they are found
//! here and handed to it as copies.

use crate::find::route;
use crate::loader::elf::{self, Elf};
use crate::loader::image::Opened;
use crate::loader::library::{self, Copy};
use crate::process::environment;
use crate::raw;
use std::ffi::CString;

/// Libraries that one program has from us: as many as ld.so's own limits let through in practice.
const LIBRARIES_MAX: usize = 512;

/// One search, over everything that is needed.
struct Search {
    /// `LD_LIBRARY_PATH`'s directories.
    library_path: Vec<Vec<u8>>,
    seen: Vec<Vec<u8>>,
    /// What was found, each after what it needs.
    found: Vec<Copy>,
}

/// The directory of a path.
fn directory(path: &[u8]) -> &[u8] {
    let cut = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &path[..cut]
}

fn directories(list: &[u8]) -> Vec<Vec<u8>> {
    let items = list.split(|byte| b":;".contains(byte)).filter(|item| !item.is_empty());
    items.map(<[u8]>::to_vec).collect()
}

/// A directory of a run path, with `$ORIGIN` in it; none if it needs an origin that is unknown.
fn expanded(item: &[u8], origin: Option<&[u8]>) -> Option<Vec<u8>> {
    for name in [&b"$ORIGIN"[..], b"${ORIGIN}"] {
        if let Some(rest) = item.strip_prefix(name) {
            return Some([origin?, rest].concat());
        }
    }
    Some(item.to_vec())
}

fn exists(path: &[u8]) -> bool {
    CString::new(path).is_ok_and(|path| sys!(SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) >= 0)
}

/// A library that was found in a directory, and whose it is.
enum FoundLibrary {
    Ours(Opened),
    Hosts,
}

fn in_directory(directory: &[u8], name: &[u8]) -> Option<FoundLibrary> {
    let path = [directory, b"/", name].concat();
    match library::opened(&path) {
        Some(file) => Some(FoundLibrary::Ours(file)),
        None => exists(&path).then_some(FoundLibrary::Hosts),
    }
}

impl Search {
    fn new(library_path: &[u8]) -> Self {
        Self { library_path: directories(library_path), seen: Vec::new(), found: Vec::new() }
    }

    /// A library that is needed, if the loader would have to find it with us.
    fn locate(&self, name: &[u8], elf: &Elf, origin: Option<&[u8]>) -> Option<Opened> {
        if name.contains(&b'/') {
            return library::opened(&expanded(name, origin)?);
        }
        let run_path = directories(elf.run_path.as_deref().unwrap_or_default());
        let run_path = run_path.iter().filter_map(|item| expanded(item, origin));
        let mut places = self.library_path.iter().cloned().chain(run_path);
        match places.find_map(|directory| in_directory(&directory, name))? {
            FoundLibrary::Ours(file) => Some(file),
            FoundLibrary::Hosts => None,
        }
    }

    fn collect(&mut self, elf: &Elf, origin: Option<&[u8]>) {
        for name in &elf.needed {
            if self.seen.contains(name) || self.seen.len() >= LIBRARIES_MAX {
                continue;
            }
            self.seen.push(name.clone());
            let Some(file) = self.locate(name, elf, origin) else { continue };
            let Some(inner) = elf::read(&|at, into| file.read_at(at, into)) else { continue };
            let Ok(copy) = library::copy_of(&file) else { continue };
            if inner.name.as_ref() != Some(name) {
                raw::say(format_args!(
                    "{}: a program needs this library by the name {}, which is not the library's own (DT_SONAME), so \
                     the dynamic loader will not find it here; put the library on the host",
                    String::from_utf8_lossy(&copy.path),
                    String::from_utf8_lossy(name)
                ));
                continue;
            }
            self.collect(&inner, Some(directory(&copy.path)));
            self.found.push(copy);
        }
    }
}

/// What a program needs of ours. `path`: where it lies, if that is here.
pub(crate) fn of_program(elf: &Elf, path: Option<&[u8]>, library_path: &[u8]) -> Vec<Copy> {
    let mut search = Search::new(library_path);
    let ours = |directory: &Vec<u8>| {
        CString::new(directory.as_slice()).is_ok_and(|path| route::leads_to_us(libc::AT_FDCWD, &path))
    };
    // A program of the host's has libraries here only if it was told so.
    if path.is_none() && !search.library_path.iter().any(ours) {
        return Vec::new();
    }
    search.collect(elf, path.map(directory));
    search.found
}

/// What a library of ours needs of ours, before it is loaded itself.
pub(crate) fn of_library(copy: &Copy) -> Vec<Copy> {
    let Some(file) = library::opened(&copy.path) else { return Vec::new() };
    let Some(elf) = elf::read(&|at, into| file.read_at(at, into)) else { return Vec::new() };
    let mut search = Search::new(&environment::library_path());
    search.collect(&elf, Some(directory(&copy.path)));
    search.found
}

/// The library that a dlopen of `name` from `caller` means, if it is ours.
pub(crate) fn find(name: &[u8], caller: usize) -> Option<Opened> {
    if name.contains(&b'/') {
        return library::opened(name);
    }
    let path = environment::library_path();
    let caller = library::around(caller);
    if path.is_empty() && caller.is_none() {
        return None;
    }
    let elf = caller
        .as_deref()
        .and_then(library::opened)
        .and_then(|file| elf::read(&|at, into| file.read_at(at, into)));
    Search::new(&path).locate(name, &elf.unwrap_or_default(), caller.as_deref().map(directory))
}
