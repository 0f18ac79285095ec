//! The one file system of this process: the mount at the first touch, the end.

use crate::calls::in_place::Shows;
use crate::edge::{self, Answer, Fail, host};
use crate::find::backend::{Files, Node};
use crate::find::{credentials, cwd, placeholder, private, setting, waiting};
use crate::process::fence;
use crate::raw;
use crate::watch;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use nvmed_client::{ClientError, Session, Welcome};
use nvmed_fs::Stat;
use nvmed_stack::{RunMemory, Unfinished};
use nvmed_sys::QuietFd;
use rustix::thread::futex;

const IDLE: u32 = 0;
const MOUNTING: u32 = 1;
const MOUNTED: u32 = 2;
const ENDED: u32 = 3;
/// As [`MOUNTING`], and another thread waits for its end.
const AWAITED: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(IDLE);
/// The thread that mounts, so that it does not wait for itself, and its process, so that a copy of its memory does not
/// wait for it.
static MOUNTER: AtomicU32 = AtomicU32::new(0);
static MOUNTING_IN: AtomicU32 = AtomicU32::new(0);
/// The session of a shared mount.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());
/// Whether a failed mount has been reported.
static SAID: AtomicBool = AtomicBool::new(false);

/// The file system, mounted now if this is the first touch.
///
/// # Errors
/// `EIO` in a forked child and after the end; otherwise what the mount answered.
#[inline]
pub(crate) fn files() -> Answer<Files> {
    if STATE.load(Ordering::Acquire) == MOUNTED && !fence::is_child() {
        return Ok(match private::mount() {
            Some(mount) => Files::Private(mount),
            // SAFETY: one of the two was published before the state, and lives for ever.
            None => Files::Shared(unsafe { (*SESSION.load(Ordering::Acquire)).files() }),
        });
    }
    touch(Silence::Never)
}

/// Of which failures of a mount nothing is said.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Silence {
    Never,
    /// No server is there.
    NoServer,
}

#[cold]
fn touch(silence: Silence) -> Answer<Files> {
    if fence::is_child() {
        fence::report();
        return edge::fail(libc::EIO);
    }
    match begin_mounting() {
        Ok(()) => {}
        Err(MOUNTED) => return files(),
        // After the end, or a call of a signal handler, or of the stack itself, inside the mount.
        Err(_) => return edge::fail(libc::EIO),
    }
    let mounted = edge::caught(|| if waiting::number().is_some() { go_on() } else { mount(silence) });
    if mounted.is_err() {
        fence::lower();
    }
    end_mounting(if mounted.is_ok() { MOUNTED } else { IDLE });
    mounted?;
    files()
}

/// From [`IDLE`] to [`MOUNTING`], which is this thread's until [`end_mounting`]; waits while another thread is there.
/// The error is the state in place of it.
fn begin_mounting() -> Result<(), u32> {
    loop {
        match STATE.compare_exchange(IDLE, MOUNTING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(state @ (MOUNTING | AWAITED)) => {
                if MOUNTER.load(Ordering::Relaxed) == thread() || fence::is_child() {
                    return Err(state);
                }
                if is_copied() {
                    forget_mounting();
                } else {
                    wait_for_mounting();
                }
            }
            Err(state) => return Err(state),
        }
    }
    MOUNTER.store(thread(), Ordering::Relaxed);
    MOUNTING_IN.store(sys!(SYS_getpid) as u32, Ordering::Relaxed);
    Ok(())
}

/// Until the thread that mounts has done so, or not.
fn wait_for_mounting() {
    let said = STATE.compare_exchange(MOUNTING, AWAITED, Ordering::Relaxed, Ordering::Relaxed);
    if matches!(said, Ok(_) | Err(AWAITED)) {
        let _ = futex::wait(&STATE, futex::Flags::PRIVATE, AWAITED, None);
    }
}

fn end_mounting(state: u32) {
    MOUNTER.store(0, Ordering::Relaxed);
    MOUNTING_IN.store(0, Ordering::Relaxed);
    // A fork where nothing is mounted comes here twice: nobody is woken who does not wait.
    if STATE.swap(state, Ordering::AcqRel) == AWAITED {
        let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX >> 1);
    }
}

/// `KCMP_VM` of linux/kcmp.h.
const KCMP_VM: c_int = 1;

/// Whether the thread that mounts is one of a process of which this one's memory is a copy. A process that shares the
/// memory of its parent (`CLONE_VM`) has another number too, and its parent goes on mounting.
fn is_copied() -> bool {
    let (of, own) = (MOUNTING_IN.load(Ordering::Relaxed), sys!(SYS_getpid) as u32);
    if of == 0 || of == own || fence::stands() {
        return false;
    }
    // Here the thread holds the state for a fork, or is about to raise the fence. Where the kernel does not compare
    // memory it is taken for a copy.
    sys!(SYS_kcmp, own, of, KCMP_VM, 0, 0) != 0
}

/// Where nothing is mounted: keeps it so until [`let_mount`], so that a child finds it so as well. Waits for a mount
/// that another thread has begun.
pub(crate) fn hold_unmounted() -> bool {
    begin_mounting().is_ok()
}

/// After [`hold_unmounted`], in the parent and in the child.
pub(crate) fn let_mount() {
    end_mounting(IDLE);
}

fn thread() -> u32 {
    sys!(SYS_gettid) as u32
}

fn mount(silence: Silence) -> Answer<()> {
    let setting = setting::setting().ok_or(Fail::Errno(libc::EIO))?;
    prepare()?;
    if let Some(server) = &setting.server {
        let tree = setting.config.tree.as_deref().unwrap_or_default();
        let session = Session::connect_tree(server, tree.as_bytes()).map_err(|error| {
            let quiet = silence == Silence::NoServer && matches!(error, ClientError::NoServer(_));
            if !quiet && !SAID.swap(true, Ordering::Relaxed) {
                raw::say(format_args!("{error}"));
            }
            Fail::Errno(error.errno().raw_os_error())
        })?;
        SESSION.store(Box::into_raw(Box::new(session)), Ordering::Release);
        return Ok(());
    }
    credentials::refresh();
    let mount = nvmed_stack::mount(&setting.config, setting.surroundings.clone()).map_err(|error| {
        if !SAID.swap(true, Ordering::Relaxed) {
            raw::say(format_args!("{error}"));
        }
        Fail::Errno(error.errno().raw_os_error())
    })?;
    mount.map_in_place_by(nvmed_sys::sync::Arc::new(Shows));
    private::publish(mount);
    Ok(())
}

/// Counts one file call that was ours.
#[inline(always)]
pub(crate) fn count() {
    watch::touch();
    if let Some(mount) = private::mount() {
        mount.calls.count();
    }
}

/// The status of a held inode.
///
/// # Errors
/// Those of [`files`].
pub(crate) fn status(node: &Node) -> Answer<Stat> {
    files()?;
    Ok(node.stat()?)
}

/// Whether the file system is mounted in this very process.
pub(crate) fn is_mounted() -> bool {
    STATE.load(Ordering::Acquire) == MOUNTED && !fence::is_child()
}

/// The session with the server of a shared mount, once there is one.
pub(crate) fn session() -> Option<&'static Session> {
    // SAFETY: null or a session that lives for ever.
    if is_mounted() { unsafe { SESSION.load(Ordering::Acquire).as_ref() } } else { None }
}

/// Goes on with the session that the program before left, when the library is loaded: what it holds.
///
/// # Errors
/// The server's.
pub(crate) fn adopt(heir: QuietFd) -> Answer<Welcome> {
    let adopted = prepare().and_then(|()| adopted(heir));
    let (_, welcome) = adopted.inspect_err(|_| fence::lower())?;
    STATE.store(MOUNTED, Ordering::Release);
    Ok(welcome)
}

/// What a mount needs in this process.
fn prepare() -> Answer<()> {
    edge::panic_hook();
    if setting::setting().is_some_and(|setting| setting.config.urgent_programs) {
        // What a session's calls say of their callers; a mount of this process's own hears it from its settings.
        nvmed_io::caller::are_urgent_here();
    }
    fence::raise(setting::is_shared()).map_err(Fail::Errno)?;
    placeholder::prepare()
}

fn adopted(heir: QuietFd) -> Answer<(&'static Session, Welcome)> {
    let (session, welcome) =
        Session::adopt(heir).map_err(|error| Fail::Errno(error.errno().raw_os_error()))?;
    let session = Box::leak(Box::new(session));
    SESSION.store(session, Ordering::Release);
    Ok((session, welcome))
}

/// At the first touch of a process for which an heir waits: it waits on where the process has no room for a session.
fn go_on() -> Answer<()> {
    prepare()?;
    // What the server hands over needs a descriptor.
    let room = host(sys!(SYS_fcntl, placeholder::original(), libc::F_DUPFD_CLOEXEC, 0))?;
    sys!(SYS_close, room);
    let heir = waiting::take().ok_or(Fail::Errno(libc::EIO))?;
    let (session, welcome) = adopted(heir).inspect_err(|failure| {
        raw::say(format_args!(
            "the server does not let this process go on with the session that was left to it, so paths from its \
             working directory fail with EIO: {}",
            edge::words_of(failure)
        ));
    })?;
    if let Some(what) = &welcome.cwd {
        cwd::found(session.inherited(what)?.into());
    }
    Ok(())
}

/// Goes on with an heir that waits: the process is about to be two, or no longer the one for which it was made.
pub(crate) fn wake() {
    if waiting::may_be_there() {
        // What failed is said, and fails again where it matters.
        let _ = touch(Silence::Never);
    }
}

/// The heir that waits is of no use: the process has left the directory that it holds.
pub(crate) fn give_heir_up() {
    if waiting::may_be_there() && hold_unmounted() {
        drop(waiting::take());
        let_mount();
    }
}

/// Waits for what another thread mounts, if one does.
pub(crate) fn await_mounting() {
    if setting::is_shared() && hold_unmounted() {
        let_mount();
    }
}

/// An heir that waits on, whatever other threads touch, and that an exec leaves open.
pub(crate) struct Waits(pub c_int);

impl Waits {
    /// None where none waits.
    pub(crate) fn hold() -> Option<Self> {
        if !waiting::may_be_there() || !hold_unmounted() {
            return None;
        }
        let Some(number) = waiting::number() else {
            let_mount();
            return None;
        };
        sys!(SYS_fcntl, number, libc::F_SETFD, 0);
        Some(Self(number))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        sys!(SYS_fcntl, self.0, libc::F_SETFD, libc::FD_CLOEXEC);
        let_mount();
    }
}

/// Nothing of the client's is half done in another thread until [`after_fork`].
pub(crate) fn before_fork() {
    if let Some(session) = session() {
        session.before_fork();
    }
}

/// In the parent.
pub(crate) fn after_fork() {
    if let Some(session) = session() {
        session.after_fork();
    }
}

/// In the child: the heir's session takes the parent's place.
///
/// # Errors
/// There is none, or it cannot be used: the process stays behind the fence.
pub(crate) fn become_heir(heir: Option<QuietFd>) -> Answer<()> {
    // SAFETY: a fork follows `before_fork` only where a session was published.
    let session = unsafe { SESSION.load(Ordering::Acquire).as_ref() }.ok_or(Fail::Errno(libc::EIO))?;
    session.after_fork_in_child(heir).map_err(|error| Fail::Errno(error.errno().raw_os_error()))?;
    fence::renew();
    Ok(())
}

/// In a child that has no session yet: it gets one at its first touch, like a process of its own.
pub(crate) fn begin_afresh() {
    // The parent's socket is closed; nobody is to go on with it.
    let _ = become_heir(None);
    SESSION.store(ptr::null_mut(), Ordering::Release);
    STATE.store(IDLE, Ordering::Release);
    fence::lower();
}

/// In a child that was made while another thread connected, or was about to mount: it has not.
pub(crate) fn forget_mounting() {
    if matches!(STATE.load(Ordering::Acquire), MOUNTING | AWAITED)
        && (setting::is_shared() || !fence::is_child())
    {
        MOUNTER.store(0, Ordering::Relaxed);
        MOUNTING_IN.store(0, Ordering::Relaxed);
        fence::lower();
        STATE.store(IDLE, Ordering::Release);
    }
}

/// The process's ids have changed: the server asks the kernel again, or the session is of no use any more, because it
/// could do what the process no longer may.
pub(crate) fn identity_changed() {
    wake();
    if let (Some(session), Some(server)) =
        (session(), setting::setting().and_then(|setting| setting.server.as_ref()))
        && let Err(error) = session.again(server)
    {
        raw::say(format_args!(
            "the server does not know this process's new ids, so its calls fail with EIO: {error}"
        ));
        STATE.store(ENDED, Ordering::Release);
    }
}

/// Makes durable what any process has written to the file system, as sync(2): also of a process that has touched
/// nothing.
///
/// # Errors
/// What could not be written. Without a server, and without anything left by a dead process, there is nothing to do.
pub(crate) fn sync_all() -> Answer<()> {
    let Some(setting) = setting::setting().filter(|setting| setting.hosted.is_none()) else { return Ok(()) };
    if !is_mounted() && !fence::is_child() && setting.server.is_none() && !is_left(setting) {
        return Ok(());
    }
    match touch(Silence::NoServer) {
        Ok(files) => Ok(files.sync()?),
        Err(failure) => Err(failure),
    }
}

/// Whether a private mount's process has died and left what it had completed to the next mount. One that lives cannot
/// be reached, which is said.
fn is_left(setting: &setting::Setting) -> bool {
    let Some(path) = &setting.surroundings.run_memory else { return false };
    match RunMemory::join(path).map(|memory| memory.unfinished()) {
        Ok(Ok(Unfinished::Left)) => true,
        Ok(Ok(Unfinished::Of(holder))) => {
            if !SAID.swap(true, Ordering::Relaxed) {
                raw::say(format_args!(
                    "{holder} holds the file system in private: what it has written is not made durable by a sync \
                     of another process; use a shared mount (nvmed run)"
                ));
            }
            false
        }
        _ => false,
    }
}

/// Makes everything durable, before a call that ends this program's life in the process (exec).
pub(crate) fn settle() {
    if !setting::is_shared()
        && is_mounted()
        && let Ok(files) = files()
        && let Err(failure) = edge::caught(|| files.sync().map_err(Fail::from))
    {
        raw::say(format_args!("not everything could be saved: {}", edge::words_of(&failure)));
    }
}

/// Writes everything back and closes the device. Later calls on our paths fail with `EIO`.
pub(crate) fn end() {
    // A session ends with its process: what is written by later destructors still counts.
    if fence::is_child()
        || setting::is_shared()
        || STATE.compare_exchange(MOUNTED, ENDED, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return;
    }
    let Some(mount) = private::mount() else { return };
    let ended = edge::caught(|| {
        mount.unmount().map_err(|error| {
            raw::say(format_args!("not everything could be saved: {error}"));
            Fail::from(error)
        })
    });
    // Said above; an exit status is the program's own.
    let _ = ended;
}
