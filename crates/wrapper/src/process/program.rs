//! What an exec call is to run: the kernel's own program, or one that lies in our file system, where the kernel does
//! not see it.

use crate::calls::stat;
use crate::edge::{Answer, Fail, fail};
use crate::find::magic_link::MagicLink;
use crate::find::route::{self, HostPath};
use crate::find::table;
use crate::loader::elf::{self, Elf};
use crate::loader::image::{self, Opened};
use crate::process::{environment, script};
use crate::raw;
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use nvmed_sys::QuietFd;
use rustix::fd::OwnedFd;
use std::ffi::CString;

/// `AT_EXECFN` of a program that runs from a copy.
const BY_DESCRIPTOR: &[u8] = b"/dev/fd/";

/// Where this process's own program lies, if that is here.
static OWN: AtomicPtr<CString> = AtomicPtr::new(ptr::null_mut());

/// The path of this process's own program, if it lies in our file system: the kernel knows a copy without a name.
pub(crate) fn own() -> Option<&'static CStr> {
    // SAFETY: null or a box that is never freed.
    unsafe { OWN.load(Ordering::Acquire).as_ref() }.map(CString::as_c_str)
}

/// Whether a path is the kernel's name for this process's own program.
pub(crate) fn names_own(path: &[u8]) -> bool {
    match path {
        b"/proc/self/exe" | b"/proc/thread-self/exe" => true,
        _ => path == format!("/proc/{}/exe", sys!(SYS_getpid)).as_bytes(),
    }
}

/// Learns at the start what program this is, and gives the process its name.
///
/// # Safety
/// The library is being loaded: the program's own code has not begun.
pub(crate) unsafe fn begin() {
    // SAFETY: the caller's contract.
    let Some(path) = (unsafe { environment::take(environment::EXECUTED) }) else { return };
    // SAFETY: the kernel's own text, or null.
    let executed = unsafe {
        let name = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        !name.is_null() && raw::bytes(name).starts_with(BY_DESCRIPTOR)
    };
    // The variable may have passed by a program that we are not in.
    let Some(path) = CString::new(path).ok().filter(|_| executed) else { return };
    if let Ok(name) = CString::new(image::base_name(path.to_bytes())) {
        sys!(SYS_prctl, libc::PR_SET_NAME, name.as_ptr());
    }
    OWN.store(Box::into_raw(Box::new(path)), Ordering::Release);
}

/// What is executed in the end.
pub(crate) enum Target {
    /// A path of the kernel's, as execveat(2) takes it.
    Host { dirfd: c_int, path: CString, flags: c_int },
    /// A sealed copy.
    Memory { image: OwnedFd },
    /// A sealed copy in a child that is about to close what it inherited.
    Quiet { image: QuietFd },
}

impl Program {
    /// Whether it lies in our file system, or its script does.
    pub(crate) fn is_ours(&self) -> bool {
        self.path.is_some() || !self.words.is_empty()
    }

    /// What it is called where something is said of it.
    pub(crate) fn name(&self) -> &[u8] {
        match (&self.path, &self.target) {
            (Some(path), _) => path,
            (None, Target::Host { path, .. }) if !path.is_empty() => path.to_bytes(),
            _ => b"a program",
        }
    }

    /// Where the host has it, if it does.
    pub(crate) fn on_host(&self) -> Option<&CStr> {
        match &self.target {
            Target::Host { path, .. } => Some(path),
            Target::Memory { .. } | Target::Quiet { .. } => None,
        }
    }
}

/// A program that was found.
pub(crate) struct Program {
    pub target: Target,
    /// What stands before the arguments from the second on: interpreters and the script; empty for no script.
    pub words: Vec<CString>,
    /// Where it lies in our file system, as the program sees paths.
    pub path: Option<Vec<u8>>,
    /// What the loader will want; none where it could not be read.
    pub elf: Option<Elf>,
    /// Why our library will not be in it.
    pub unreachable: Option<&'static str>,
}

/// What an exec call names.
pub(crate) struct Named<'a> {
    pub dirfd: c_int,
    pub path: &'a CStr,
    pub flags: c_int,
}

impl<'a> Named<'a> {
    /// A path from the working directory.
    pub(crate) fn path(path: &'a CStr) -> Self {
        Self { dirfd: libc::AT_FDCWD, path, flags: 0 }
    }

    /// The kernel's program. None where the path leads to us.
    fn host(&self) -> Option<Target> {
        let HostPath { dirfd, path } = route::on_host_of(self.dirfd, self.path)?;
        Some(Target::Host { dirfd, path, flags: self.flags })
    }
}

fn status_at(named: &Named<'_>) -> Answer<libc::stat> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    let flags = named.flags & libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: a C string, and room for a status.
    if unsafe { stat::fstatat(named.dirfd, named.path.as_ptr(), found.as_mut_ptr(), flags) } != 0 {
        return fail(raw::errno());
    }
    // SAFETY: all its fields are integers.
    Ok(unsafe { found.assume_init() })
}

/// Finds what a call names, and follows `#!` lines as far as files of ours take part.
///
/// # Errors
/// Those of execve(2).
pub(crate) fn find(named: &Named<'_>) -> Answer<Program> {
    if named.path.is_empty() {
        return by_descriptor(named);
    }
    let mut words: Vec<CString> = Vec::new();
    let mut path = named.path.to_owned();
    for depth in 0..=script::DEPTH_MAX {
        let named = if depth == 0 { Named { path: &path, ..*named } } else { Named::path(&path) };
        let found = look(&named)?;
        let next = match found {
            Looked::End(program) => return Ok(Program { words, ..program }),
            Looked::Script { interpreter, argument, script } => {
                // The script's own word takes the place of the arguments' first, and so does an interpreter's that is
                // one.
                words.splice(
                    ..usize::from(!words.is_empty()),
                    [Some(interpreter.clone()), argument, Some(script)].into_iter().flatten(),
                );
                interpreter
            }
        };
        path = next;
    }
    fail(libc::ELOOP)
}

/// The program behind a descriptor: `fexecve`, `AT_EMPTY_PATH`.
fn by_descriptor(named: &Named<'_>) -> Answer<Program> {
    if named.flags & libc::AT_EMPTY_PATH == 0 {
        return fail(libc::ENOENT);
    }
    if !table::is_ours(named.dirfd) {
        let target = Target::Host { dirfd: named.dirfd, path: named.path.to_owned(), flags: named.flags };
        let unreachable = beyond_of(&MagicLink::of(named.dirfd), INTERPRETERS_MAX);
        return Ok(Program { unreachable, ..kernels(target) });
    }
    find(&Named::path(&MagicLink::of(named.dirfd)))
}

enum Looked {
    End(Program),
    Script { interpreter: CString, argument: Option<CString>, script: CString },
}

fn look(named: &Named<'_>) -> Answer<Looked> {
    let status = status_at(named)?;
    if status.st_mode & libc::S_IFMT == libc::S_IFLNK {
        return fail(libc::ELOOP);
    }
    if status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return fail(libc::EACCES);
    }
    // SAFETY: a C string.
    match unsafe { Opened::new(named.dirfd, named.path.as_ptr(), 0) } {
        Ok(file) if file.is_ours() => ours(named, &file, &status),
        Ok(file) => {
            // Between the open and this its directory may have been replaced by one of ours.
            let target = named.host().ok_or(Fail::Errno(libc::ENOENT))?;
            Ok(on_host(named, target, &file, &status))
        }
        // The kernel runs programs that cannot be read; ours are copied.
        Err(failure) => {
            let target = named.host().ok_or(failure)?;
            let unreachable = changes_ids(&status).then_some(OWN_IDS);
            Ok(Looked::End(Program { unreachable, ..kernels(target) }))
        }
    }
}

fn kernels(target: Target) -> Program {
    Program { target, words: Vec::new(), path: None, elf: None, unreachable: None }
}

fn head(file: &Opened) -> Vec<u8> {
    let mut head = vec![0; script::HEAD_BYTES];
    let got = file.read_at(0, &mut head);
    head.truncate(got);
    head
}

fn on_host(named: &Named<'_>, target: Target, file: &Opened, status: &libc::stat) -> Looked {
    let head = head(file);
    if let Some(line) = script::line(&head) {
        // A host's script is the kernel's, unless its interpreter is a file of ours.
        if let Some(found) = script_of(named, &line, None)
            && let Looked::Script { interpreter, .. } = &found
            && route::leads_to_us(libc::AT_FDCWD, interpreter)
        {
            return found;
        }
        let interpreter = CString::new(line.interpreter).ok();
        let unreachable = interpreter.and_then(|path| beyond_of(&path, INTERPRETERS_MAX));
        return Looked::End(Program { unreachable, ..kernels(target) });
    }
    let elf = elf::read(&|at, into| file.read_at(at, into));
    let unreachable = unreachable(elf.as_ref(), status, &head);
    Looked::End(Program { elf, unreachable, ..kernels(target) })
}

/// Why our library will not be in a program that the loader is careful with (AT_SECURE).
const OWN_IDS: &str = "runs with ids of its own (set-user-ID or set-group-ID)";

/// Why our library will not be in a program of the host's.
fn unreachable(elf: Option<&Elf>, status: &libc::stat, head: &[u8]) -> Option<&'static str> {
    match elf {
        Some(elf) if elf.interpreter.is_none() => Some("is statically linked"),
        Some(_) if changes_ids(status) => Some(OWN_IDS),
        None if elf::is_elf(head) => Some("is for another kind of machine"),
        _ => None,
    }
}

/// Interpreters of interpreters; Linux stops there (fs/exec.c, `exec_binprm`).
const INTERPRETERS_MAX: usize = 4;

/// The same of the program that the kernel runs for a path of the host's: the file, or the interpreter of a script.
fn beyond_of(path: &CStr, interpreters_max: usize) -> Option<&'static str> {
    let status = status_at(&Named::path(path)).ok()?;
    if status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    // SAFETY: a C string.
    let file =
        unsafe { Opened::new(libc::AT_FDCWD, path.as_ptr(), 0) }.ok().filter(|file| !file.is_ours())?;
    let head = head(&file);
    if let Some(line) = script::line(&head) {
        let interpreter = CString::new(line.interpreter).ok()?;
        return beyond_of(&interpreter, interpreters_max.checked_sub(1)?);
    }
    let elf = elf::read(&|at, into| file.read_at(at, into));
    unreachable(elf.as_ref(), &status, &head)
}

/// Whether the loader will be told to be careful (AT_SECURE), so that it preloads nothing.
fn changes_ids(status: &libc::stat) -> bool {
    let user = status.st_mode & libc::S_ISUID != 0 && status.st_uid != sys!(SYS_getuid) as u32;
    let both = libc::S_ISGID | libc::S_IXGRP;
    user || status.st_mode & both == both && status.st_gid != sys!(SYS_getgid) as u32
}

fn script_of(named: &Named<'_>, line: &script::Line<'_>, path: Option<&[u8]>) -> Option<Looked> {
    let script = match path {
        Some(path) => CString::new(path).ok()?,
        None if named.dirfd == libc::AT_FDCWD || named.path.to_bytes().first() == Some(&b'/') => {
            named.path.to_owned()
        }
        // As the kernel names it.
        None => {
            CString::new([format!("/dev/fd/{}/", named.dirfd).as_bytes(), named.path.to_bytes()].concat())
                .ok()?
        }
    };
    let interpreter = CString::new(line.interpreter).ok()?;
    let argument = line.argument.and_then(|argument| CString::new(argument).ok());
    Some(Looked::Script { interpreter, argument, script })
}

fn ours(named: &Named<'_>, file: &Opened, status: &libc::stat) -> Answer<Looked> {
    // SAFETY: a C string.
    if unsafe { stat::faccessat(named.dirfd, named.path.as_ptr(), libc::X_OK, libc::AT_EACCESS) } != 0 {
        return fail(raw::errno());
    }
    let head = head(file);
    if let Some(line) = script::line(&head) {
        let relative = named.dirfd != libc::AT_FDCWD && named.path.to_bytes().first() != Some(&b'/');
        let path = if relative { Some(file.path()?) } else { None };
        return script_of(named, &line, path.as_deref()).ok_or(Fail::Errno(libc::ENOEXEC));
    }
    if !elf::is_elf(&head) {
        return fail(libc::ENOEXEC);
    }
    let path = file.path().unwrap_or_else(|_| named.path.to_bytes().to_vec());
    let image = image::copy(file, status.st_size.max(0) as u64, &path)?;
    let elf = elf::read(&|at, into| file.read_at(at, into));
    let unreachable = match &elf {
        Some(elf) if elf.interpreter.is_none() => Some("is statically linked"),
        None => Some("is for another kind of machine"),
        _ => None,
    };
    if changes_ids(status) {
        raw::say(format_args!(
            "{}: its set-user-ID or set-group-ID bit does not count: it runs from a copy in memory",
            String::from_utf8_lossy(&path)
        ));
    }
    Ok(Looked::End(Program {
        target: Target::Memory { image },
        words: Vec::new(),
        path: Some(path),
        elf,
        unreachable,
    }))
}
