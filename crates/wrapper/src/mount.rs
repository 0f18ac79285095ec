//! The one file system of this process: its configuration, the mount at the first touch, the end.

use crate::edge::{self, Answer, Fail};
use crate::prefix::Prefix;
use crate::{credentials, descriptor, fence, raw, walk};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use nvmed_fs::{FileSystem, Node, Stat};
use nvmed_stack::{Config, Mount, Surroundings};
use rustix::thread::futex;
use std::path::{Path, PathBuf};

/// Where the configuration is, in the environment; as in the paper.
const CONFIG_VARIABLE: &core::ffi::CStr = c"WRAPPER_CONFIG";
/// `FILE:DIRECTORY`: where the relative paths of configuration FILE start. Set for our descendants,
/// which may run elsewhere.
const START_VARIABLE: &core::ffi::CStr = c"NVMED_CONFIG_START";
/// The configuration when the environment names none; as in the paper.
const CONFIG_DEFAULT: &str = "./default.conf";
/// The exit status of a program whose configuration cannot be used: `EX_CONFIG` of sysexits.h.
const EXIT_CONFIG: i32 = 78;

const IDLE: u32 = 0;
const MOUNTING: u32 = 1;
const MOUNTED: u32 = 2;
const ENDED: u32 = 3;

static SETTING: AtomicPtr<Setting> = AtomicPtr::new(ptr::null_mut());
static STATE: AtomicU32 = AtomicU32::new(IDLE);
/// The thread that mounts, so that it does not wait for itself.
static MOUNTER: AtomicU32 = AtomicU32::new(0);
static MOUNT: AtomicPtr<Mount> = AtomicPtr::new(ptr::null_mut());
/// Whether a failed mount has been reported.
static SAID: AtomicBool = AtomicBool::new(false);

/// What the configuration says, once for the whole process.
pub(crate) struct Setting {
    /// Which paths are ours.
    pub prefix: Prefix,
    config: Config,
    surroundings: Surroundings,
}

/// Reads the configuration, when the library is loaded. The program ends if it cannot be used: going
/// on would write to the host what was meant for the device.
pub(crate) fn configure() {
    match load() {
        Ok(setting) => SETTING.store(Box::into_raw(Box::new(setting)), Ordering::Release),
        Err(why) => {
            raw::say(format_args!("{why}"));
            sys!(SYS_exit_group, EXIT_CONFIG);
        }
    }
}

fn load() -> Result<Setting, String> {
    let text = |error: &dyn core::fmt::Display| error.to_string();
    let here = nvmed_stack::config::working_directory().map_err(|error| text(&error))?;
    let named = variable(CONFIG_VARIABLE);
    let file = here.join(named.as_deref().unwrap_or(CONFIG_DEFAULT));
    let start = variable(START_VARIABLE);
    let base = match (&named, &start) {
        (Some(named), Some(start)) => start.strip_prefix(named).and_then(|rest| rest.strip_prefix(':')),
        _ => None,
    };
    let base = base.map_or(here, PathBuf::from);
    let config = Config::load_from(&file, &base).map_err(|error| text(&error))?;
    // Before anything is announced: bash brings a `setenv` of its own, after whose first call its own `getenv`
    // knows nothing of the environment until the shell has read it.
    let surroundings = Surroundings {
        run_memory: variable_of(nvmed_stack::RUN_MEMORY_VARIABLE),
        statistics: variable_of(nvmed_stack::STATISTICS_VARIABLE).map(PathBuf::from),
        #[cfg(feature = "mutants")]
        mutant: variable_of("NVMED_MUTANT"),
    };
    if named.as_deref() != file.to_str() || start.is_none() {
        announce(&file, &base);
    }
    Ok(Setting { prefix: Prefix::new(&config.wrap_dir), config, surroundings })
}

/// A variable of the environment. Values that are not UTF-8 name nothing of ours.
fn variable(name: &core::ffi::CStr) -> Option<String> {
    // SAFETY: the name is a C string; the answer is null or one, copied before anybody changes it:
    // the library is being loaded, so the program's own code has not begun.
    let value = unsafe { libc::getenv(name.as_ptr()).as_ref().map(|value| raw::bytes(value)) };
    value.and_then(|value| core::str::from_utf8(value).ok()).map(str::to_owned)
}

fn variable_of(name: &str) -> Option<String> {
    variable(&std::ffi::CString::new(name).ok()?)
}

/// Tells our descendants, wherever they run, which configuration this was and where it started.
fn announce(file: &Path, base: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let file = file.as_os_str().as_bytes();
    let start = [file, b":", base.as_os_str().as_bytes()].concat();
    for (name, value) in [(CONFIG_VARIABLE, file), (START_VARIABLE, &start)] {
        if let Some(value) = walk::c_path(value) {
            // SAFETY: two C strings, copied by libc; the program's own code has not begun.
            unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
    }
}

/// The setting, once the library has been loaded in full.
#[inline(always)]
pub(crate) fn setting() -> Option<&'static Setting> {
    // SAFETY: null or a box that lives for ever.
    unsafe { SETTING.load(Ordering::Acquire).as_ref() }
}

/// The file system, mounted now if this is the first touch.
///
/// # Errors
/// `EIO` in a forked child and after the end; otherwise what the mount answered.
#[inline]
pub(crate) fn files() -> Answer<&'static FileSystem> {
    if STATE.load(Ordering::Acquire) == MOUNTED && !fence::is_child() {
        // SAFETY: published before the state, and it lives for ever.
        return Ok(unsafe { &*MOUNT.load(Ordering::Acquire) });
    }
    touch()
}

#[cold]
fn touch() -> Answer<&'static FileSystem> {
    loop {
        if fence::is_child() {
            fence::report();
            return edge::fail(libc::EIO);
        }
        match STATE.compare_exchange(IDLE, MOUNTING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(MOUNTED) => return files(),
            // A call of a signal handler, or of the stack itself, inside the mount.
            Err(MOUNTING) if MOUNTER.load(Ordering::Relaxed) == thread() => return edge::fail(libc::EIO),
            Err(MOUNTING) => {
                let _ = futex::wait(&STATE, futex::Flags::PRIVATE, MOUNTING, None);
            }
            Err(_) => return edge::fail(libc::EIO),
        }
    }
    MOUNTER.store(thread(), Ordering::Relaxed);
    let mounted = edge::caught(mount);
    MOUNTER.store(0, Ordering::Relaxed);
    STATE.store(if mounted.is_ok() { MOUNTED } else { IDLE }, Ordering::Release);
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX >> 1);
    mounted?;
    files()
}

fn thread() -> u32 {
    sys!(SYS_gettid) as u32
}

fn mount() -> Answer<()> {
    let setting = setting().ok_or(Fail::Errno(libc::EIO))?;
    edge::panic_hook();
    fence::raise().map_err(Fail::Errno)?;
    descriptor::prepare()?;
    credentials::refresh();
    let mount = nvmed_stack::mount(&setting.config, setting.surroundings.clone()).map_err(|error| {
        if !SAID.swap(true, Ordering::Relaxed) {
            raw::say(format_args!("{error}"));
        }
        Fail::Errno(error.errno().raw_os_error())
    })?;
    MOUNT.store(Box::into_raw(Box::new(mount)), Ordering::Release);
    Ok(())
}

/// Counts one file call that was ours.
#[inline(always)]
pub(crate) fn count() {
    // SAFETY: null or a mount that lives for ever.
    if let Some(mount) = unsafe { MOUNT.load(Ordering::Relaxed).as_ref() } {
        mount.calls.count();
    }
}

/// The status of a held inode.
///
/// # Errors
/// Those of [`files`].
pub(crate) fn status(node: &Node) -> Answer<Stat> {
    files()?;
    Ok(node.stat())
}

/// Whether the file system is mounted in this very process.
pub(crate) fn is_mounted() -> bool {
    STATE.load(Ordering::Acquire) == MOUNTED && !fence::is_child()
}

/// Makes everything durable, before a call that ends this program's life in the process (exec).
pub(crate) fn settle() {
    if is_mounted()
        && let Ok(files) = files()
        && let Err(failure) = edge::caught(|| files.sync().map_err(Fail::from))
    {
        raw::say(format_args!("not everything could be written back: errno {}", edge::errno_of(&failure)));
    }
}

/// Writes everything back and lets go of the device. Later calls on our paths fail with `EIO`.
pub(crate) fn end() {
    if fence::is_child()
        || STATE.compare_exchange(MOUNTED, ENDED, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return;
    }
    // SAFETY: the state was MOUNTED, so the pointer was published, and it lives for ever.
    let mount = unsafe { &*MOUNT.load(Ordering::Acquire) };
    let ended = edge::caught(|| {
        mount.unmount().map_err(|error| {
            raw::say(format_args!("not everything could be written back: {error}"));
            Fail::from(error)
        })
    });
    // Said above; an exit status is the program's own.
    let _ = ended;
}
