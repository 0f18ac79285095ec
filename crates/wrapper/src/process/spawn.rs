//! posix_spawn: libc's own makes the child by a clone that no hook sees. So where a file or a descriptor of ours takes
//! part it is done here, by our fork, the recorded actions and our exec. A working directory of ours that the child
//! inherits goes along with libc's as well, as an heir.

use crate::calls::descriptor;
use crate::edge::{Answer, caught, errno_of, fail, host};
use crate::find::cwd;
use crate::find::setting;
use crate::loader::image;
use crate::process::actions::{self, Action, Libcs};
use crate::process::exec::{self, List, Lookup};
use crate::process::program::{Program, Target};
use crate::process::{fork, heir};
use crate::raw;
use core::ffi::{CStr, c_char, c_int, c_short, c_void};
use core::mem::{MaybeUninit, size_of};
use libc::pid_t;
use nvmed_sys::QuietFd;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The kernel's set of signals: one bit each.
type Signals = u64;
/// Signals are numbered up to this.
const SIGNAL_MAX: c_int = 64;
/// The exit status of a child that could not become the program. posix_spawn reaps it; only a wait in another
/// thread could see the status before.
const EXIT_NOT_EXECUTED: c_int = 127;

/// `struct sigaction` as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Disposition {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: Signals,
}

/// What `posix_spawnattr_t` says.
#[derive(Default)]
pub(crate) struct Attributes {
    pub flags: c_int,
    pub mask: Signals,
    pub default: Signals,
    pub group: pid_t,
    pub policy: c_int,
    pub priority: c_int,
}

impl Attributes {
    /// # Safety
    /// Null, or an object that `posix_spawnattr_init` made.
    unsafe fn read(at: *const c_void) -> Self {
        if at.is_null() {
            return Self::default();
        }
        let at: *const libc::posix_spawnattr_t = at.cast();
        let mut read = Self::default();
        // SAFETY: the caller's contract; libc's sets of signals begin with the kernel's.
        unsafe {
            let mut flags: c_short = 0;
            let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
            let mut parameter = MaybeUninit::<libc::sched_param>::zeroed();
            libc::posix_spawnattr_getflags(at, &raw mut flags);
            read.flags = c_int::from(flags);
            libc::posix_spawnattr_getsigmask(at, set.as_mut_ptr());
            read.mask = set.as_ptr().cast::<Signals>().read();
            libc::posix_spawnattr_getsigdefault(at, set.as_mut_ptr());
            read.default = set.as_ptr().cast::<Signals>().read();
            libc::posix_spawnattr_getpgroup(at, &raw mut read.group);
            libc::posix_spawnattr_getschedpolicy(at, &raw mut read.policy);
            libc::posix_spawnattr_getschedparam(at, parameter.as_mut_ptr());
            read.priority = parameter.assume_init().sched_priority;
        }
        read
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Whether the child's effective ids are to be other ones than this process's.
    fn changes_ids(&self) -> bool {
        let are_real = sys!(SYS_geteuid) == sys!(SYS_getuid) && sys!(SYS_getegid) == sys!(SYS_getgid);
        self.has(libc::POSIX_SPAWN_RESETIDS) && !are_real
    }

    /// In the child, before the actions; in the order of libc's.
    fn apply(&self) -> Answer<()> {
        let priority = self.priority;
        if self.has(libc::POSIX_SPAWN_SETSCHEDULER) {
            host(sys!(SYS_sched_setscheduler, 0, self.policy, &raw const priority))?;
        } else if self.has(libc::POSIX_SPAWN_SETSCHEDPARAM) {
            host(sys!(SYS_sched_setparam, 0, &raw const priority))?;
        }
        if self.has(POSIX_SPAWN_SETSID) {
            host(sys!(SYS_setsid))?;
        }
        if self.has(libc::POSIX_SPAWN_SETPGROUP) {
            host(sys!(SYS_setpgid, 0, self.group))?;
        }
        if self.changes_ids() {
            host(sys!(SYS_setresuid, -1, sys!(SYS_getuid), -1))?;
            host(sys!(SYS_setresgid, -1, sys!(SYS_getgid), -1))?;
            crate::calls::identity::changed();
        }
        Ok(())
    }
}

/// `POSIX_SPAWN_SETSID` of spawn.h.
const POSIX_SPAWN_SETSID: c_int = 0x80;

/// Sets the mask of blocked signals; answers the one before.
pub(crate) fn block(mask: Signals) -> Signals {
    let mut before: Signals = 0;
    sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, size_of::<Signals>());
    before
}

/// Blocks more signals; answers the mask before.
pub(crate) fn block_also(set: Signals) -> Signals {
    let mut before: Signals = 0;
    sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, &raw mut before, size_of::<Signals>());
    before
}

/// Exchanges what the kernel does with a signal.
pub(crate) fn dispose(signal: c_int, new: Option<&Disposition>) -> Disposition {
    let mut before = Disposition::default();
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    sys!(SYS_rt_sigaction, signal, new, &raw mut before, size_of::<Signals>());
    before
}

/// Handlers of the parent's must not run in the child.
fn reset_handlers(default: Signals) {
    for signal in 1..=SIGNAL_MAX {
        let wanted = default & (1 << (signal - 1)) != 0;
        if wanted || dispose(signal, None).handler > libc::SIG_IGN {
            dispose(signal, Some(&Disposition::default()));
        }
    }
}

/// What is to be spawned.
pub(crate) struct Plan<'a> {
    pub attributes: Attributes,
    pub actions: &'a [Action],
    pub argv: List,
    pub environment: List,
    /// The program's name, and how it is looked up.
    pub name: *const c_char,
    pub lookup: Lookup,
}

/// Spawns by a fork of our own.
///
/// # Errors
/// What kept the child from becoming the program.
///
/// # Safety
/// The plan's lists and names are the program's, under `edge`'s contract.
pub(crate) unsafe fn spawn(plan: &Plan<'_>, program: Option<Program>) -> Answer<pid_t> {
    // A program that is looked for in another directory is found there.
    let program = program.filter(|_| !plan.actions.iter().any(Action::moves));
    let (read, write) = pipe()?;
    // Until the child has done with the parent's handlers.
    let mask = block(Signals::MAX);
    let pid = fork::libc_fork();
    if pid == 0 {
        drop(read);
        // SAFETY: the caller's contract.
        unsafe { become_program(plan, program, QuietFd::new(write), mask) }
    }
    let errno = raw::errno();
    drop(write);
    let answer = if pid < 0 { fail(errno) } else { outcome(pid, &read) };
    block(mask);
    answer
}

/// A pipe that exec closes, out of the way of the program's own descriptors.
fn pipe() -> Answer<(OwnedFd, OwnedFd)> {
    let mut ends = [0 as c_int; 2];
    host(sys!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC))?;
    let up = |low: c_int| {
        let high = sys!(SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, image::NUMBER_MIN);
        if high >= 0 {
            sys!(SYS_close, low);
        }
        // SAFETY: made just above.
        unsafe { OwnedFd::from_raw_fd(if high >= 0 { high as c_int } else { low }) }
    };
    Ok((up(ends[0]), up(ends[1])))
}

/// What the child says: an errno, or nothing, because exec has closed its end.
fn outcome(pid: pid_t, read: &OwnedFd) -> Answer<pid_t> {
    let mut errno: c_int = 0;
    loop {
        match sys!(SYS_read, read.as_raw_fd(), &raw mut errno, size_of::<c_int>()) {
            n if n == size_of::<c_int>() as isize => break,
            n if n == -libc::EINTR as isize => {}
            _ => return Ok(pid),
        }
    }
    while sys!(SYS_wait4, pid, core::ptr::null::<c_int>(), 0, core::ptr::null::<u8>())
        == -libc::EINTR as isize
    {}
    fail(errno)
}

/// The child. It ends when it could not become the program.
unsafe fn become_program(plan: &Plan<'_>, program: Option<Program>, told: QuietFd, mask: Signals) -> ! {
    // SAFETY: the caller's contract.
    let failed = caught(|| unsafe { prepare_and_run(plan, program, mask) });
    if let Err(failure) = failed {
        let errno = errno_of(&failure);
        sys!(SYS_write, told.as_raw_fd(), &raw const errno, size_of::<c_int>());
    }
    loop {
        sys!(SYS_exit_group, EXIT_NOT_EXECUTED);
    }
}

unsafe fn prepare_and_run(plan: &Plan<'_>, program: Option<Program>, mask: Signals) -> Answer {
    let attributes = &plan.attributes;
    let default = if attributes.has(libc::POSIX_SPAWN_SETSIGDEF) { attributes.default } else { 0 };
    reset_handlers(default);
    attributes.apply()?;
    // Actions that close everything pass by it under its new number.
    let program = program.map(Program::quiet);
    for action in plan.actions {
        action.run()?;
    }
    block(if attributes.has(libc::POSIX_SPAWN_SETSIGMASK) { attributes.mask } else { mask });
    // SAFETY: the caller's contract.
    unsafe {
        match program {
            Some(program) => exec::run(&program, plan.argv, plan.environment),
            None => exec::search(plan.name, plan.argv, plan.environment, plan.lookup),
        }
    }
}

/// What libc's two functions are given.
struct Call {
    pid: *mut pid_t,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: List,
    environment: List,
}

type LibcsSpawn =
    unsafe extern "C" fn(*mut pid_t, *const c_char, *const c_void, *const c_void, List, List) -> c_int;

/// Has libc make the child, where no more of ours takes part than the environment and the working directory; none where
/// a fork of our own must.
///
/// In a private mount the child can use nothing of ours: then it is only the program that matters. One that we are not
/// in is looked at by the child itself, just before, and so is one that is found in another directory.
unsafe fn by_libc(
    call: &Call,
    actions: &[Action],
    attributes: &Attributes,
    program: Option<&Program>,
    libc: LibcsSpawn,
) -> Option<c_int> {
    let program = program.filter(|program| !program.is_ours() && program.unreachable.is_none())?;
    let is_shared = setting::is_shared();
    if is_shared && (descriptor::first_inherited().is_some() || actions.iter().any(Action::is_ours)) {
        return None;
    }
    let heir = if is_shared && cwd::is_ours() {
        // The server has to be told of other ids before the program begins, and of another directory that it is left.
        if attributes.changes_ids() || actions.iter().any(Action::moves) {
            return None;
        }
        match caught(heir::for_spawn) {
            Ok(Some(heir)) if actions.iter().any(|action| action.closes(heir.number)) => return None,
            Ok(heir) => heir,
            // Our fork says so, and the program runs.
            Err(_) => return None,
        }
    } else {
        None
    };
    let with_heir = match heir.as_ref().map(|heir| Libcs::with_heir(actions, heir.number)).transpose() {
        Ok(with_heir) => with_heir,
        Err(failure) => return Some(errno_of(&failure)),
    };
    let luggage = match exec::pack(program, call.environment, heir) {
        Ok(luggage) => luggage,
        Err(failure) => return Some(errno_of(&failure)),
    };
    let on_host = program.on_host().filter(|_| !actions.iter().any(Action::moves));
    let name = on_host.map_or(call.name, CStr::as_ptr);
    let actions = with_heir.as_ref().map_or(call.actions, Libcs::as_ptr);
    // SAFETY: the program's arguments, under `edge`'s contract, and an object like its own.
    Some(unsafe { libc(call.pid, name, actions, call.attributes, call.argv, luggage.environment()) })
}

/// Spawns here, or lets libc do it where nothing of ours takes part. Answers the error itself.
unsafe fn spawn_or_libc(call: &Call, lookup: Lookup, libc: LibcsSpawn) -> c_int {
    let &Call { pid, name, actions, attributes, argv, environment } = call;
    // SAFETY: the program's arguments, under `edge`'s contract.
    unsafe {
        if setting::setting().is_none() || name.is_null() {
            return libc(pid, name, actions, attributes, argv, environment);
        }
        let recorded = actions::recorded(actions);
        let program = match exec::find(name, lookup) {
            Ok(program) => Some(program),
            // Another directory has another program, perhaps.
            Err(_) if recorded.iter().any(Action::moves) => None,
            Err(failure) => return errno_of(&failure),
        };
        let attributes = Attributes::read(attributes);
        if let Some(answer) = by_libc(call, recorded, &attributes, program.as_ref(), libc) {
            return answer;
        }
        // In the child no handler stands that could tell what is not there.
        let strings = match exec::Strings::of(environment) {
            Ok(strings) => strings,
            Err(failure) => return errno_of(&failure),
        };
        let environment = strings.as_ptr();
        let plan = Plan { attributes, actions: recorded, argv, environment, name, lookup };
        match spawn(&plan, program) {
            Ok(child) => {
                if !pid.is_null() {
                    *pid = child;
                }
                0
            }
            Err(failure) => errno_of(&failure),
        }
    }
}

impl Program {
    /// The same in a child that closes what it inherited, where our copies are passed by.
    fn quiet(self) -> Self {
        match self.target {
            Target::Memory { image } => Self { target: Target::Quiet { image: QuietFd::new(image) }, ..self },
            _ => self,
        }
    }
}

hook! {
    /// posix_spawn(3): answers the error itself
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: List, environment: List,
    ) -> c_int, next libc_posix_spawn {
        let call = Call { pid, name: path, actions, attributes, argv, environment };
        spawn_or_libc(&call, Lookup::Path, libc_posix_spawn)
    }
}

hook! {
    /// posix_spawnp(3): answers the error itself
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: List, environment: List,
    ) -> c_int, next libc_posix_spawnp {
        let call = Call { pid, name: file, actions, attributes, argv, environment };
        spawn_or_libc(&call, Lookup::Search, libc_posix_spawnp)
    }
}
