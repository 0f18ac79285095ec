//! fcntl, and the locks that come through it, flock and lockf.

use crate::calls::descriptor;
use crate::edge::{self, Answer, fail, finish, given, guard, host, inside, reply};
use crate::find::backend::File;
use crate::find::mount;
use crate::find::table::{self, Body};
use crate::host::hosted;
use crate::raw::O_LARGEFILE;
use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::off_t;
use nvmed_fs::{FileType, LockHeld, LockKind, LockOwner, LockRange, OpenFlags, Wait};

// fcntl.h of Linux, not in the `libc` crate for this target.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_GETOWN_EX: c_int = 16;
const F_GETOWNER_UIDS: c_int = 17;
const F_GET_RW_HINT: c_int = 1024 + 11;
/// Signals that there are (`_NSIG`).
const SIGNALS: u32 = 64;
const F_DUPFD_QUERY: c_int = 1024 + 3;
const F_CREATED_QUERY: c_int = 1024 + 4;
/// "Again, and again", which asks for nothing alone (fcntl.h, `DN_MULTISHOT`).
const DN_MULTISHOT: u32 = 1 << 31;
/// What was a lock that others had to obey: Linux takes it, says so in its log, and does nothing.
const LOCK_MAND: c_int = 32;

/// What an open file keeps of the flags that it was opened with: O_CREAT, O_EXCL, O_NOCTTY and O_TRUNC are of the
/// moment, bits without a meaning are dropped (Linux, `do_dentry_open` and `VALID_OPEN_FLAGS`).
const KEPT_FLAGS: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_TMPFILE
    | libc::O_NOFOLLOW
    | libc::O_NOATIME;

/// Whether this process ever took a POSIX record lock on a file of ours: if not, closing drops none.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// In a forked child: record locks stay with the parent.
pub(crate) fn begin_without_locks() {
    LOCKED.store(false, Ordering::Relaxed);
}

/// In a program that was executed: the process keeps its record locks.
pub(crate) fn begin_with_locks() {
    LOCKED.store(true, Ordering::Relaxed);
}

/// Until a signal with a handler comes.
const UNTIL_A_SIGNAL: Wait<'static> = Wait::Until(&inside::is_waiting);

/// What closing a descriptor does to the process's record locks on the file.
pub(crate) fn drop_record_locks(file: &File) {
    if LOCKED.load(Ordering::Relaxed) {
        file.closed_by_process();
    }
}

hook! {
    /// fcntl(2)
    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        if !table::is_ours(fd) {
            let answer = descriptor::unless_quiet(fd, || sys!(SYS_fcntl, fd, command, argument));
            let copies = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
            return reply(if copies { hosted::copied(fd, answer) } else { answer });
        }
        match command {
            libc::F_SETLKW | libc::F_OFD_SETLKW => finish(waiting_on(fd, |body| {
                on_description(body, command, argument)
            })),
            _ => guard(|| on_ours(fd, command, argument)),
        }
    }
}

/// A call on a descriptor of ours that may wait for a lock: behind a handler it goes on with the same description.
fn waiting_on(fd: c_int, call: impl Fn(&Body) -> Answer) -> Answer {
    let mut known = None;
    edge::restarting(|| {
        let pinned = table::pin(fd)?;
        match *known.get_or_insert(pinned.identity()) == pinned.identity() {
            true => call(&pinned),
            // Closed by the handler, or another thread.
            false => fail(libc::EBADF),
        }
    })
}

/// fcntl on a descriptor of ours.
fn on_ours(fd: c_int, command: c_int, argument: c_long) -> Answer {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            descriptor::duplicate(fd, || sys!(SYS_fcntl, fd, command, argument))
        }
        // The kernel's entry has the flag that exec looks at.
        libc::F_GETFD | libc::F_SETFD => {
            table::pin_unfenced(fd)?;
            host(sys!(SYS_fcntl, fd, command, argument))
        }
        _ => on_description(&*table::pin(fd)?, command, argument),
    }
}

fn on_description(body: &Body, command: c_int, argument: c_long) -> Answer {
    match (command, &body.file) {
        // The kernel sets O_PATH's own flags apart.
        (libc::F_GETFL, None) => Ok(body.path_flags as isize),
        (F_CREATED_QUERY, None) => Ok(0),
        (F_DUPFD_QUERY, _) => is_same(body, argument as c_int),
        // Whatever else is asked for, known or not, is not for O_PATH.
        _ => on_file(body, body.file()?, command, argument),
    }
}

fn on_file(body: &Body, file: &File, command: c_int, argument: c_long) -> Answer {
    let lock = argument as *mut libc::flock;
    match command {
        // The kernel sets O_LARGEFILE in whatever a program of 64 bits opens.
        libc::F_GETFL => Ok((file.present_flags()?.0 as c_int & KEPT_FLAGS | O_LARGEFILE) as isize),
        libc::F_SETFL => {
            file.set_flags(OpenFlags(argument as u32))?;
            Ok(0)
        }
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            set_lock(file, command, &given::get(lock)?)
        }
        libc::F_GETLK | libc::F_OFD_GETLK => {
            let mut told = given::get(lock)?;
            get_lock(file, command, &mut told)?;
            // SAFETY: this command takes a `struct flock`, and is answered in it.
            unsafe { given::put(lock, &told) }?;
            Ok(0)
        }
        libc::F_GETOWN | F_GETSIG => Ok(0),
        F_SETSIG if argument as u32 > SIGNALS => fail(libc::EINVAL),
        libc::F_SETOWN | F_SETSIG => Ok(0),
        F_GETOWN_EX | F_GETOWNER_UIDS | F_GET_RW_HINT => nothing(argument as *mut [u32; 2]),
        F_CREATED_QUERY => Ok(isize::from(file.flags().has(OpenFlags::CREATE))),
        libc::F_NOTIFY => notify(body, argument as u32),
        libc::F_GETLEASE => Ok(libc::F_UNLCK as isize),
        libc::F_SETLEASE if body.node.kind() != FileType::File || !is_lease(argument as c_int) => {
            fail(libc::EINVAL)
        }
        libc::F_SETLEASE => fail(libc::EAGAIN),
        libc::F_ADD_SEALS if !file.flags().writes() => fail(libc::EPERM),
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => fail(libc::EBADF),
        _ => fail(libc::EINVAL),
    }
}

/// Signals go to nobody: of type and number 0, by no users (`struct f_owner_ex`; two numbers). Nothing is known of how
/// long what is written will live (a number of 64 bits).
fn nothing(into: *mut [u32; 2]) -> Answer {
    // SAFETY: these commands take room for two numbers, under `edge`'s contract.
    unsafe { given::put(into, &[0; 2]) }?;
    Ok(0)
}

fn is_lease(kind: c_int) -> bool {
    [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].contains(&kind)
}

/// Nobody tells of changes in a directory of ours, but there is nothing wrong in no longer wanting to hear.
fn notify(body: &Body, wanted: u32) -> Answer {
    match body.node.kind() {
        _ if wanted & !DN_MULTISHOT == 0 => Ok(0),
        FileType::Directory => fail(libc::EINVAL),
        _ => fail(libc::ENOTDIR),
    }
}

/// Whether another descriptor is of the same description.
fn is_same(body: &Body, other: c_int) -> Answer {
    if table::is_ours(other) {
        return Ok(isize::from(core::ptr::eq(body, &raw const *table::pin(other)?)));
    }
    host(sys!(SYS_fcntl, other, libc::F_GETFD))?;
    Ok(0)
}

/// The bytes that a `struct flock` names.
fn range(file: &File, lock: &libc::flock) -> Answer<LockRange> {
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => file.position()? as i64,
        libc::SEEK_END => file.stat()?.size as i64,
        _ => return fail(libc::EINVAL),
    };
    match base.checked_add(lock.l_start) {
        // Its last byte is beyond what offsets are for.
        Some(start) if start >= 0 && lock.l_len.saturating_sub(1) > i64::MAX - start => fail(libc::EOVERFLOW),
        Some(start) => Ok(LockRange::of(start, lock.l_len)?),
        None => fail(libc::EOVERFLOW),
    }
}

/// The kind of a `struct flock`, checked against how the file is open; `None` unlocks.
fn kind(file: &File, lock: &libc::flock) -> Answer<Option<LockKind>> {
    match c_int::from(lock.l_type) {
        libc::F_UNLCK => Ok(None),
        libc::F_RDLCK if file.flags().reads() => Ok(Some(LockKind::Shared)),
        libc::F_WRLCK if file.flags().writes() => Ok(Some(LockKind::Exclusive)),
        libc::F_RDLCK | libc::F_WRLCK => fail(libc::EBADF),
        _ => fail(libc::EINVAL),
    }
}

fn set_lock(file: &File, command: c_int, lock: &libc::flock) -> Answer {
    let (range, kind) = (range(file, lock)?, kind(file, lock)?);
    let waits = command == libc::F_SETLKW || command == libc::F_OFD_SETLKW;
    let wait = if waits { UNTIL_A_SIGNAL } else { Wait::No };
    if command == libc::F_SETLK || command == libc::F_SETLKW {
        LOCKED.store(true, Ordering::Relaxed);
        file.posix_lock(range, kind, wait)?;
    } else {
        if lock.l_pid != 0 {
            return fail(libc::EINVAL);
        }
        file.ofd_lock(range, kind, wait)?;
    }
    Ok(0)
}

fn get_lock(file: &File, command: c_int, lock: &mut libc::flock) -> Answer {
    let range = range(file, lock)?;
    let wanted = match c_int::from(lock.l_type) {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        _ => return fail(libc::EINVAL),
    };
    if command == libc::F_OFD_GETLK && lock.l_pid != 0 {
        return fail(libc::EINVAL);
    }
    let held = if command == libc::F_GETLK {
        file.posix_getlk(range, wanted)?
    } else {
        file.ofd_getlk(range, wanted)?
    };
    match held {
        None => lock.l_type = libc::F_UNLCK as i16,
        Some(held) => describe(&held, lock),
    }
    Ok(0)
}

fn describe(held: &LockHeld, lock: &mut libc::flock) {
    let shared = held.kind == LockKind::Shared;
    lock.l_type = if shared { libc::F_RDLCK } else { libc::F_WRLCK } as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = held.range.start as i64;
    let to_the_end = held.range.end == u64::MAX;
    lock.l_len = if to_the_end { 0 } else { (held.range.end - held.range.start) as i64 };
    lock.l_pid = match held.owner {
        LockOwner::Process(pid) => pid as i32,
        LockOwner::Description(_) => -1,
    };
}

hook! {
    /// flock(2)
    fn flock(fd: c_int, operation: c_int) -> c_int {
        if !table::is_ours(fd) {
            return reply(sys!(SYS_flock, fd, operation));
        }
        mount::count();
        finish(waiting_on(fd, |body| {
            if operation & LOCK_MAND != 0 {
                return Ok(0);
            }
            let wait = if operation & libc::LOCK_NB != 0 { Wait::No } else { UNTIL_A_SIGNAL };
            let kind = match operation & !libc::LOCK_NB {
                libc::LOCK_SH => Some(LockKind::Shared),
                libc::LOCK_EX => Some(LockKind::Exclusive),
                libc::LOCK_UN => None,
                _ => return fail(libc::EINVAL),
            };
            body.file()?.flock(kind, wait)?;
            Ok(0)
        }))
    }
}

hook! {
    /// lockf(3)
    fn lockf(fd: c_int, operation: c_int, len: off_t) -> c_int, next libc_lockf {
        if !table::is_ours(fd) {
            return libc_lockf(fd, operation, len);
        }
        let mut lock: libc::flock = core::mem::zeroed();
        lock.l_whence = libc::SEEK_CUR as i16;
        lock.l_len = len;
        lock.l_type = if operation == libc::F_ULOCK { libc::F_UNLCK } else { libc::F_WRLCK } as i16;
        finish(waiting_on(fd, |body| match operation {
            libc::F_ULOCK | libc::F_TLOCK => set_lock(body.file()?, libc::F_SETLK, &lock),
            libc::F_LOCK => set_lock(body.file()?, libc::F_SETLKW, &lock),
            libc::F_TEST => {
                let mut told = lock;
                get_lock(body.file()?, libc::F_GETLK, &mut told)?;
                if c_int::from(told.l_type) == libc::F_UNLCK { Ok(0) } else { fail(libc::EACCES) }
            }
            _ => fail(libc::EINVAL),
        }))
    }
}
