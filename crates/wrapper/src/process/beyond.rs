//! Programs that the wrapper cannot be loaded into (static, set-user-ID) and that a program of the run executes: what
//! we tell the user of them, and what they find on the host where other programs see our directory.

use crate::edge::{Answer, fail};
use crate::find::setting::{self, Policy};
use crate::find::walk;
use crate::process::program::{Program, Target};
use crate::raw;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_tally::Beyond;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What such a program finds where `wrap_dir` is.
enum Finds {
    /// An empty directory that cannot be written to.
    Empty,
    /// The host has nothing there.
    Nothing,
    /// The host's directory.
    Hosts,
}

/// Descriptors of where a process is: its mount namespace, root and working directory.
struct Here {
    namespace: OwnedFd,
    root: OwnedFd,
    directory: OwnedFd,
}

/// Where a process was that now executes a program in a mount namespace of its own. An exec that succeeds leaves
/// nothing of it; one that fails drops it, and the process is where it was, for what it does then (a shell tries the
/// next directory of `PATH`). Of a process with several threads only the one that executes was elsewhere; its working
/// directory is its own from then on.
pub(crate) struct Left(Here);

impl Here {
    /// None where the host does not tell (no `/proc`).
    fn now() -> Option<Self> {
        let open = |path: &CStr, flags: c_int| {
            let fd = sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, 0);
            // SAFETY: the kernel has just given the number to this call, and nobody else has it.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as c_int) })
        };
        let directory = libc::O_PATH | libc::O_DIRECTORY;
        Some(Self {
            namespace: open(c"/proc/thread-self/ns/mnt", libc::O_RDONLY)?,
            root: open(c"/", directory)?,
            directory: open(c".", directory)?,
        })
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // It leads to the root of the namespace; the process's own may be another (chroot). The rights to all of it are
        // those that led away from here: where they do not suffice, the process stays where it is.
        if sys!(SYS_setns, self.0.namespace.as_raw_fd(), libc::CLONE_NEWNS) == 0 {
            sys!(SYS_fchdir, self.0.root.as_raw_fd());
            sys!(SYS_chroot, c".".as_ptr());
            sys!(SYS_fchdir, self.0.directory.as_raw_fd());
        }
    }
}

/// Before an exec, in the process that executes: a program that we are not in is said once a run, and kept from the
/// host's directory behind `wrap_dir` where this process may do so. The answer is to be kept until the exec has failed.
///
/// # Errors
/// `EACCES` where the run refuses such programs.
pub(crate) fn admit(program: &Program) -> Answer<Option<Left>> {
    let Some(why) = program.unreachable else { return Ok(None) };
    let Some(setting) = setting::setting().filter(|setting| setting.hosted.is_none()) else {
        return Ok(None);
    };
    if !is_executable(program) {
        // The kernel says so.
        return Ok(None);
    }
    let name = String::from_utf8_lossy(program.name());
    let dir = String::from_utf8_lossy(&setting.prefix.text);
    if setting.beyond.as_ref().is_some_and(|policy| policy.refused) {
        raw::say(format_args!(
            "{name} {why}, so the wrapper is not in it: this run refuses it (Permission denied)"
        ));
        return fail(libc::EACCES);
    }
    let (finds, left) = match walk::c_path(&setting.prefix.text) {
        Some(dir) => hide(&dir),
        None => (Finds::Hosts, None),
    };
    let finds = match finds {
        Finds::Empty => "finds an empty directory that it cannot write to",
        Finds::Nothing => "finds nothing, and what it makes there is the host's",
        Finds::Hosts => "finds the host's directory, and what it writes there is on the host",
    };
    let text = format!("{name} {why}, so the wrapper is not in it: in place of {dir} it {finds}");
    tell(setting.beyond.as_ref(), &text);
    Ok(left)
}

fn is_executable(program: &Program) -> bool {
    match &program.target {
        Target::Host { dirfd, path, flags } => {
            let flags = (flags & libc::AT_EMPTY_PATH) | libc::AT_EACCESS;
            sys!(SYS_faccessat2, *dirfd, path.as_ptr(), libc::X_OK, flags) == 0
        }
        Target::Memory { .. } | Target::Quiet { .. } => true,
    }
}

/// Tells `nvmed run`, or says it here, once, where it cannot be reached. Without one nothing is said.
fn tell(policy: Option<&Policy>, text: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let Some(policy) = policy else { return };
    match Beyond::open(&policy.page) {
        Ok(page) => page.tell(text.as_bytes()),
        _ if SAID.swap(true, Ordering::Relaxed) => {}
        _ => raw::say(format_args!("{text}")),
    }
}

/// Puts an empty directory over the host's, for this process and those that it makes. Where there is none it cannot be
/// done without making one, which the other programs of the run would meet; and without the right to mount it is not
/// done: a user namespace would grant it, but all files of other users then seem to be nobody's, and set-user-ID
/// programs stay who they were.
fn hide(dir: &CStr) -> (Finds, Option<Left>) {
    let mut found = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let nofollow = libc::AT_SYMLINK_NOFOLLOW;
    if sys!(SYS_newfstatat, libc::AT_FDCWD, dir.as_ptr(), found.as_mut_ptr(), nofollow) < 0 {
        return (Finds::Nothing, None);
    }
    // SAFETY: all its fields are integers.
    let kind = unsafe { found.assume_init() }.st_mode & libc::S_IFMT;
    let here = Here::now();
    if kind != libc::S_IFDIR || sys!(SYS_unshare, libc::CLONE_NEWNS) < 0 {
        return (Finds::Hosts, None);
    }
    let left = here.map(Left);
    // What the host mounts later is seen here too; what is mounted here is not the host's.
    let slave = libc::MS_REC | libc::MS_SLAVE;
    let none = core::ptr::null::<c_int>();
    let apart = sys!(SYS_mount, none, c"/".as_ptr(), none, slave, none);
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let options = c"size=4k,nr_inodes=1,mode=555";
    let name = c"nvmed";
    if apart < 0
        || sys!(SYS_mount, name.as_ptr(), dir.as_ptr(), c"tmpfs".as_ptr(), flags, options.as_ptr()) < 0
    {
        return (Finds::Hosts, None);
    }
    (Finds::Empty, left)
}
