//! The exec family: which program runs, with which environment, and which descriptors of ours it inherits.

use crate::calls::descriptor;
use crate::calls::stat::look;
use crate::edge::flags::{NAME, NOWHERE};
use crate::edge::given::{self, Room};
use crate::edge::{Answer, Fail, caught, errno_of, fail, finish, host};
use crate::find::route::{Route, answer_on_path};
use crate::find::{cwd, mount, setting};
use crate::loader::library::{self, Passed};
use crate::loader::needed;
use crate::process::beyond;
use crate::process::environment::{self, Environment};
use crate::process::heir::{self, Handover};
use crate::process::program::{self, Named, Program, Target};
use crate::raw;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use rustix::fd::AsRawFd;
use std::ffi::CString;

/// A list of C strings that ends with a null.
pub(crate) type List = *const *const c_char;

/// Before the program is replaced by another: what it wrote must be on the device, because the next
/// program mounts anew.
fn leave() {
    if setting::is_shared() {
        return;
    }
    mount::settle();
    if let Some(fd) = descriptor::first_inherited().filter(|&fd| fd <= libc::STDERR_FILENO) {
        raw::say(format_args!(
            "descriptor {fd} is a file of this process's private mount; the program that it executes cannot \
             use it (Bad file descriptor)"
        ));
    }
}

/// What goes along with a program that is executed. Dropped when the exec has failed: everything is then as before.
pub(crate) struct Luggage {
    environment: Environment,
    /// What the program gave; the environment points into it.
    _given: Strings,
    _libraries: Vec<Passed>,
    /// What of a shared mount goes along.
    _handover: Option<Handover>,
}

impl Luggage {
    /// # Errors
    /// `EFAULT`, `E2BIG`, `EMFILE`.
    fn pack(program: &Program, given: List, heir: impl FnOnce() -> Answer<Option<Handover>>) -> Answer<Self> {
        let mut once: Vec<CString> = Vec::new();
        say_unreachable(program, cwd::is_ours());
        if let Some(path) = &program.path {
            once.extend(environment::entry(environment::EXECUTED, path));
        }
        let given = Strings::of(given)?;
        // SAFETY: a list of our own, here and below.
        let library_path =
            unsafe { environment::in_list(given.as_ptr(), environment::LIBRARY_PATH) }.unwrap_or_default();
        let copies = match &program.elf {
            Some(elf) if elf.interpreter.is_some() => {
                needed::of_program(elf, program.path.as_deref(), &library_path)
            }
            _ => Vec::new(),
        };
        let libraries = library::pass(&copies)?;
        // After all that looks at files of ours: from here on none is touched.
        let handover = if program.unreachable.is_none() { heir()? } else { None };
        match &handover {
            Some(handover) => once.push(handover.entry.clone()),
            None => once.extend(cwd::entry()),
        }
        if !libraries.is_empty() {
            let lines: Vec<&[u8]> = libraries.iter().map(|passed| passed.line.as_slice()).collect();
            once.extend(environment::entry(environment::LIBRARIES, &lines.join(&b'\n')));
        }
        let names: Vec<Vec<u8>> = libraries.iter().map(|passed| passed.name.clone()).collect();
        // SAFETY: as above.
        let environment = unsafe { Environment::new(given.as_ptr(), once, &names) };
        Ok(Self { environment, _given: given, _libraries: libraries, _handover: handover })
    }

    /// The environment, as execve(2) takes it.
    pub(crate) fn environment(&self) -> List {
        self.environment.as_ptr()
    }
}

/// For a program that libc spawns: nothing of ours takes part but its environment and, where there is one, its heir.
///
/// # Errors
/// `EFAULT`, `E2BIG`, `EMFILE`.
pub(crate) fn pack(program: &Program, given: List, heir: Option<Handover>) -> Answer<Luggage> {
    caught(|| Luggage::pack(program, given, || Ok(heir)))
}

/// A program that the wrapper cannot be loaded into, though something of ours goes along to it.
fn say_unreachable(program: &Program, in_our_directory: bool) {
    let Some(why) = program.unreachable else { return };
    let descriptor = descriptor::first_inherited();
    let name = String::from_utf8_lossy(program.name());
    match descriptor {
        Some(fd) => raw::say(format_args!(
            "{name} {why}, so the wrapper is not in it: its descriptor {fd}, a file of ours, fails with EBADF"
        )),
        None if in_our_directory => raw::say(format_args!(
            "{name} {why}, so the wrapper is not in it: it starts in the host's directory, not in ours"
        )),
        None => {}
    }
}

/// Runs a program; answers only when that failed.
///
/// # Errors
/// Those of execve(2).
///
/// # Safety
/// Lists of C strings, or null.
pub(crate) unsafe fn run(program: &Program, argv: List, given: List) -> Answer {
    // An exec that fails goes back to where the process was, after its answer.
    let _left = beyond::admit(program)?;
    leave();
    let luggage = match Luggage::pack(program, given, heir::for_exec) {
        // The kernel says what comes before that.
        Err(Fail::Errno(libc::EFAULT)) => None,
        luggage => Some(luggage?),
    };
    let mut words: Vec<*const c_char> = program.words.iter().map(|word| word.as_ptr()).collect();
    let argv = if words.is_empty() {
        argv
    } else {
        words.extend(after_first(argv)?);
        words.push(ptr::null());
        words.as_ptr()
    };
    let environment = luggage.as_ref().map_or(given::NO_MEMORY.cast(), Luggage::environment);
    let copy =
        |image: c_int| host(sys!(SYS_execveat, image, c"".as_ptr(), argv, environment, libc::AT_EMPTY_PATH));
    match &program.target {
        Target::Host { dirfd: libc::AT_FDCWD, path, flags: 0 } => {
            host(sys!(SYS_execve, path.as_ptr(), argv, environment))
        }
        Target::Host { dirfd, path, flags } => {
            host(sys!(SYS_execveat, *dirfd, path.as_ptr(), argv, environment, *flags))
        }
        Target::Memory { image } => copy(image.as_raw_fd()),
        Target::Quiet { image } => copy(image.as_raw_fd()),
    }
}

/// One exec of one name.
///
/// # Safety
/// As [`run`].
unsafe fn exec(named: &Named<'_>, argv: List, given: List) -> Answer {
    if setting::setting().is_none() {
        let answer = sys!(SYS_execveat, named.dirfd, named.path.as_ptr(), argv, given, named.flags);
        return host(answer);
    }
    let program = program::find(named)?;
    // SAFETY: the caller's contract.
    caught(|| unsafe { run(&program, argv, given) })
}

unsafe fn exec_path(path: *const c_char, argv: List, given: List) -> Answer {
    // SAFETY: the program's arguments, under `edge`'s contract.
    unsafe { exec(&Named::path(Room::new().name(path)?), argv, given) }
}

/// Where programs are looked for when the environment does not say: `_CS_PATH`.
const PATH_DEFAULT: &[u8] = b"/bin:/usr/bin";
/// Longest name of a file.
const NAME_BYTES_MAX: usize = 255;

/// How a program is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It is a path.
    Path,
    /// Along `PATH`, unless it has a slash: posix_spawnp(3).
    Search,
    /// The same, and what is neither a program nor has a `#!` line is a script of the shell's: execvp(3).
    SearchOrShell,
}

/// The paths under which a program may be, in order.
unsafe fn candidates(file: &CStr, lookup: Lookup) -> Answer<Vec<CString>> {
    let name = file.to_bytes();
    if name.is_empty() {
        return fail(libc::ENOENT);
    }
    if lookup == Lookup::Path || name.contains(&b'/') {
        return Ok(vec![file.to_owned()]);
    }
    if name.len() > NAME_BYTES_MAX {
        return fail(libc::ENAMETOOLONG);
    }
    // SAFETY: the program's own environment, which execvp(3) reads as well.
    let path = unsafe { environment::present(b"PATH") }.unwrap_or_else(|| PATH_DEFAULT.to_vec());
    let joined = |directory: &[u8]| {
        let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        CString::new([directory, separator, name].concat()).ok()
    };
    Ok(path.split(|&byte| byte == b':').filter_map(joined).collect())
}

/// Tries one candidate after the other until one is there; `attempt` answers what it found, or why not.
unsafe fn first<T>(
    file: *const c_char,
    lookup: Lookup,
    mut attempt: impl FnMut(&CStr) -> Answer<T>,
) -> Answer<T> {
    // SAFETY: the program's arguments, under `edge`'s contract.
    let candidates = unsafe { candidates(Room::new().name(file)?, lookup) }?;
    if let [only] = candidates.as_slice() {
        return attempt(only);
    }
    let mut denied = false;
    let mut last = libc::ENOENT;
    for candidate in candidates {
        match attempt(&candidate).map_err(|failure| errno_of(&failure)) {
            Ok(found) => return Ok(found),
            Err(libc::EACCES) => denied = true,
            Err(errno @ (libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT)) => {
                last = errno;
            }
            Err(errno) => return fail(errno),
        }
    }
    fail(if denied { libc::EACCES } else { last })
}

/// The program that an exec by this name would run.
///
/// # Errors
/// Those of execve(2).
///
/// # Safety
/// A C string, or null.
pub(crate) unsafe fn find(file: *const c_char, lookup: Lookup) -> Answer<Program> {
    let attempt = |path: &CStr| {
        let program = program::find(&Named::path(path))?;
        // The kernel would say so of the program, and the search go on.
        if let Target::Host { dirfd, path, flags: 0 } = &program.target {
            host(sys!(SYS_faccessat2, *dirfd, path.as_ptr(), libc::X_OK, libc::AT_EACCESS))?;
        }
        Ok(program)
    };
    // SAFETY: the caller's contract.
    unsafe { first(file, lookup, attempt) }
}

/// An exec by name: answers only when that failed.
///
/// # Errors
/// Those of execve(2).
///
/// # Safety
/// A C string, and lists of C strings, or null.
pub(crate) unsafe fn search(file: *const c_char, argv: List, given: List, lookup: Lookup) -> Answer {
    // SAFETY: the caller's contract.
    unsafe { first(file, lookup, |path| or_shell(path, argv, given, lookup)) }
}

unsafe fn or_shell(path: &CStr, argv: List, given: List, lookup: Lookup) -> Answer {
    // SAFETY: the caller's contract.
    let answer = unsafe { exec(&Named::path(path), argv, given) };
    if lookup != Lookup::SearchOrShell || !matches!(answer, Err(Fail::Errno(libc::ENOEXEC))) {
        return answer;
    }
    let mut words = vec![c"/bin/sh".as_ptr(), path.as_ptr()];
    words.extend(after_first(argv)?);
    words.push(ptr::null());
    // SAFETY: as above.
    unsafe { exec(&Named::path(c"/bin/sh"), words.as_ptr(), given) }
}

/// The words of a list without its first.
///
/// # Errors
/// As [`given::words`].
fn after_first(list: List) -> Answer<Vec<*const c_char>> {
    let words = given::words(list)?;
    Ok(words.get(1..).unwrap_or_default().to_vec())
}

/// A copy of a list of C strings of the program's.
pub(crate) struct Strings {
    list: Vec<*const c_char>,
    _owned: Vec<CString>,
}

impl Strings {
    /// # Errors
    /// `EFAULT`; `E2BIG` for more than any program may be given.
    pub(crate) fn of(list: List) -> Answer<Self> {
        let mut bytes = 0;
        let mut owned = Vec::new();
        for word in given::words(list)? {
            let word = given::string(word, ARGUMENT_BYTES_MAX)?;
            bytes += word.as_bytes_with_nul().len();
            if bytes > given::LIST_BYTES_MAX {
                return fail(libc::E2BIG);
            }
            owned.push(word);
        }
        let list = owned.iter().map(|word: &CString| word.as_ptr()).chain([ptr::null()]).collect();
        Ok(Self { list, _owned: owned })
    }

    pub(crate) fn as_ptr(&self) -> List {
        self.list.as_ptr()
    }
}

/// The kernel's limit for one string (`MAX_ARG_STRLEN`).
const ARGUMENT_BYTES_MAX: usize = 32 * 4096;

unsafe extern "C" {
    static environ: List;
}

hook! {
    /// execve(2)
    fn execve(path: *const c_char, argv: List, environment: List) -> c_int {
        finish(exec_path(path, argv, environment))
    }
}

hook! {
    /// execv(3)
    fn execv(path: *const c_char, argv: List) -> c_int {
        finish(exec_path(path, argv, environ))
    }
}

hook! {
    /// execvp(3)
    fn execvp(file: *const c_char, argv: List) -> c_int {
        finish(search(file, argv, environ, Lookup::SearchOrShell))
    }
}

hook! {
    /// execvpe(3)
    fn execvpe(file: *const c_char, argv: List, environment: List) -> c_int {
        finish(search(file, argv, environment, Lookup::SearchOrShell))
    }
}

hook! {
    /// fexecve(3)
    fn fexecve(fd: c_int, argv: List, environment: List) -> c_int {
        if fd < 0 || argv.is_null() || environment.is_null() {
            return finish(fail(libc::EINVAL));
        }
        finish(exec(&Named { dirfd: fd, path: c"", flags: libc::AT_EMPTY_PATH }, argv, environment))
    }
}

hook! {
    /// execveat(2)
    fn execveat(dirfd: c_int, path: *const c_char, argv: List, environment: List, flags: c_int) -> c_int {
        // What newer kernels know (AT_EXECVE_CHECK) is the host's alone; what none knows is looked at first.
        if flags & !(libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) != 0 {
            return finish(beyond_known(dirfd, path, argv, environment, flags));
        }
        let mut room = Room::new();
        finish(room.name(path).and_then(|path| exec(&Named { dirfd, path, flags }, argv, environment)))
    }
}

/// An execveat with flags that ours does not know: the kernel says whether it does. What it knows beyond them asks
/// whether the program may run, and runs nothing.
unsafe fn beyond_known(
    dirfd: c_int,
    path: *const c_char,
    argv: List,
    environment: List,
    flags: c_int,
) -> Answer {
    answer_on_path(dirfd, path, look(flags), &mut |route| match route {
        Route::Host { dirfd, path } => host(sys!(SYS_execveat, dirfd, path, argv, environment, flags)),
        Route::Ours(_) => {
            let answer = sys!(SYS_execveat, NOWHERE, NAME.as_ptr(), argv, environment, flags);
            if answer == -libc::EINVAL as isize {
                return fail(libc::EINVAL);
            }
            let known = flags & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW);
            match program::find(&Named { dirfd, path: Room::new().name(path)?, flags: known })? {
                // A link of ours to a program of the host's.
                Program { target: Target::Host { dirfd, path, flags: known }, words, .. }
                    if words.is_empty() =>
                {
                    host(sys!(SYS_execveat, dirfd, path.as_ptr(), argv, environment, flags | known))
                }
                _ => Ok(0),
            }
        }
    })
}

/// The words of a call that has them one by one: the first five from registers, the others from the stack.
unsafe fn listed(registers: List, stack: List) -> (Vec<*const c_char>, List) {
    let mut words = Vec::new();
    let mut index = 0;
    loop {
        // SAFETY: the caller of the C function ended its list with a null, which comes before the registers' or
        // the stack's words do.
        unsafe {
            let at = if index < REGISTERS { registers.add(index) } else { stack.add(index - REGISTERS) };
            words.push(*at);
            index += 1;
            if (*at).is_null() {
                let next =
                    if index < REGISTERS { registers.add(index) } else { stack.add(index - REGISTERS) };
                return (words, next);
            }
        }
    }
}

/// Registers that hold arguments from the second on.
const REGISTERS: usize = 5;

unsafe extern "C" fn run_execl(path: *const c_char, registers: List, stack: List) -> c_int {
    // SAFETY: as `variadic!` has it; the program's arguments.
    unsafe {
        let (words, _) = listed(registers, stack);
        execv(path, words.as_ptr())
    }
}

unsafe extern "C" fn run_execlp(file: *const c_char, registers: List, stack: List) -> c_int {
    // SAFETY: as above.
    unsafe {
        let (words, _) = listed(registers, stack);
        execvp(file, words.as_ptr())
    }
}

unsafe extern "C" fn run_execle(path: *const c_char, registers: List, stack: List) -> c_int {
    // SAFETY: as above; the environment follows the null.
    unsafe {
        let (words, environment) = listed(registers, stack);
        execve(path, words.as_ptr(), (*environment).cast())
    }
}

/// Variadic functions: what came in registers is put in a row, and the rest lies behind the return address.
macro_rules! variadic {
    ($($name:ident $run:ident)*) => { $(
        /// An exec call with its arguments one by one.
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            // Five words and the return address keep the stack aligned for the call.
            naked_asm!(
                "push r9", "push r8", "push rcx", "push rdx", "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {run}",
                "add rsp, 40",
                "ret",
                run = sym $run,
            )
        }
    )* };
}
variadic! {
    execl run_execl
    execlp run_execlp
    execle run_execle
}
