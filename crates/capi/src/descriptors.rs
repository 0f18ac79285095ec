//! Open files that C has: small numbers, above those of the kernel.

use crate::error::{Failure, call};
use crate::features::{COMPLETIONS, NVMED_PARAM_READAHEAD, NVMED_PARAM_URGENT, cut, set_io, unknown};
use crate::mounts::{Mounted, NvmedFs, User};
use crate::queue::{priority, scheduler};
use crate::table::check_fork;
use nvmed_files::{HandleSettings, OpenFile, OpenFlags, Policy, QueueSettings, Scheduler};
use nvmed_io::{OnReset, Priority};
use nvmed_sys::sync::{Arc, RwLock};
use std::ffi::{CStr, c_char, c_int};

/// Above every descriptor that the kernel gives (fs.nr_open is 2^20 unless somebody raised it).
const FIRST: usize = 1 << 24;
/// Open files of a process.
const COUNT_MAX: usize = 1 << 20;
/// Depth of a file's own queue unless it says otherwise.
const DEPTH: u16 = 128;

const NVMEDFS_DIRECT: u32 = 1;
const NVMEDFS_OWN_QUEUE: u32 = 2;
pub(crate) const NVMEDFS_URGENT: u32 = 4;
const NVMEDFS_PARAM_DIRECT: c_int = 1;
const NVMEDFS_PARAM_PREALLOC: c_int = 2;

/// An open file.
pub(crate) struct Open {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) user: User,
}

static OPEN: RwLock<Vec<Option<Arc<Open>>>> = RwLock::new(Vec::new());

/// `struct nvmedfs_policy`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NvmedFsPolicy {
    /// `NVMEDFS_DIRECT`, `NVMEDFS_OWN_QUEUE`, `NVMEDFS_URGENT`.
    pub flags: u32,
    /// `NVMED_COMPLETION_*`.
    pub completion: i32,
    /// `NVMED_PRIORITY_*`.
    pub priority: i32,
    /// `NVMED_SCHED_*`.
    pub scheduler: i32,
    /// Of the own queue.
    pub queue_depth: u32,
    /// 1 to 1000.
    pub weight: u32,
    /// Of writes.
    pub stream: u32,
    /// 0.
    pub reserved: [u32; 5],
}

#[cold]
fn unknown_descriptor(fd: c_int) -> Failure {
    Failure::new(libc::EBADF, format!("{fd} is no open file of nvmedfs: it was closed, or never was one"))
}

fn index(fd: c_int) -> Result<usize, Failure> {
    usize::try_from(fd).ok().and_then(|fd| fd.checked_sub(FIRST)).ok_or_else(|| unknown_descriptor(fd))
}

impl Open {
    pub(crate) fn of(fd: c_int) -> Result<Arc<Self>, Failure> {
        check_fork()?;
        let open = OPEN.read();
        let found = open.get(index(fd)?).and_then(Clone::clone);
        found.ok_or_else(|| unknown_descriptor(fd))
    }

    /// Gives it the lowest number that is free, as POSIX does.
    fn add(self) -> Result<c_int, Failure> {
        let mut open = OPEN.write();
        let free = open.iter().position(Option::is_none).unwrap_or(open.len());
        if free == COUNT_MAX {
            return Err(Failure::new(libc::EMFILE, format!("{COUNT_MAX} files are open")));
        }
        if free == open.len() {
            open.push(None);
        }
        open[free] = Some(Arc::new(self));
        Ok((FIRST + free) as c_int)
    }

    fn remove(fd: c_int) -> Result<Arc<Self>, Failure> {
        check_fork()?;
        let mut open = OPEN.write();
        let found = open.get_mut(index(fd)?).and_then(Option::take);
        found.ok_or_else(|| unknown_descriptor(fd))
    }
}

/// A path of C's.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte, and stays so.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a [u8], Failure> {
    if path.is_null() {
        return Err(Failure::new(libc::EFAULT, "the path is NULL"));
    }
    // SAFETY: not NULL, and the caller vouches for the rest.
    Ok(unsafe { CStr::from_ptr(path) }.to_bytes())
}

fn policy(wish: &NvmedFsPolicy) -> Result<Policy, Failure> {
    const KNOWN: u32 = NVMEDFS_DIRECT | NVMEDFS_OWN_QUEUE | NVMEDFS_URGENT;
    if wish.flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!("a file's flags {:#x} are not known", wish.flags & !KNOWN)));
    }
    let completion = usize::try_from(wish.completion).ok().and_then(|number| COMPLETIONS.get(number));
    let completion =
        completion.ok_or_else(|| Failure::invalid(format!("{} is no NVMED_COMPLETION", wish.completion)))?;
    let (priority, scheduler) = (priority(wish.priority)?, scheduler(wish.scheduler)?);
    let stream = u16::try_from(wish.stream).map_err(|_| Failure::invalid("a stream has 16 bits"))?;
    let own = wish.flags & NVMEDFS_OWN_QUEUE != 0;
    if !own && scheduler != Scheduler::None {
        return Err(Failure::invalid("a scheduler is of a queue: set NVMEDFS_OWN_QUEUE too"));
    }
    let weight = if wish.weight == 0 { HandleSettings::WEIGHT } else { wish.weight };
    let io =
        HandleSettings { completion: *completion, priority, weight, stream, ..HandleSettings::default() };
    let depth =
        if wish.queue_depth == 0 { DEPTH } else { u16::try_from(wish.queue_depth).unwrap_or(u16::MAX) };
    let merge = scheduler != Scheduler::None;
    let queue = own.then(|| QueueSettings { priority, scheduler, merge, ..QueueSettings::depth(depth) });
    let (direct, urgent) = (wish.flags & NVMEDFS_DIRECT != 0, wish.flags & NVMEDFS_URGENT != 0);
    Ok(Policy { direct, io: Some(io), queue, urgent, ..Policy::default() })
}

pub(crate) fn open(
    fs: *mut NvmedFs,
    path: &[u8],
    flags: c_int,
    mode: u32,
    policy: &Policy,
) -> Result<Open, Failure> {
    let mounted = Mounted::of(fs)?;
    let user = User::new(&mounted);
    let file = mounted.files.open(path, OpenFlags(flags as u32), mode & 0o7777, policy)?;
    Ok(Open { file, user })
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_open(
    fs: *mut NvmedFs,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { nvmedfs_open_policy(fs, path, flags, mode, core::ptr::null()) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte; `wish` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_open_policy(
    fs: *mut NvmedFs,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    wish: *const NvmedFsPolicy,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller vouches.
        let path = unsafe { self::path(path) }?;
        // SAFETY: as the caller vouches, not NULL then.
        let wish = (!wish.is_null()).then(|| unsafe { wish.read() });
        let policy = wish.as_ref().map(policy).transpose()?.unwrap_or_default();
        open(fs, path, flags, mode, &policy)?.add()
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_close(fd: c_int) -> c_int {
    call(-1, || {
        drop(Open::remove(fd)?);
        Ok(0)
    })
}

fn no_handle() -> Failure {
    Failure::invalid("the file has no handle of its own: open it with O_DIRECT or a policy")
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_get_param(fd: c_int, param: c_int) -> c_int {
    use crate::features::{
        NVMED_PARAM_COMPLETION, NVMED_PARAM_PRIORITY, NVMED_PARAM_RATE_IOPS, NVMED_PARAM_RATE_KIB,
        NVMED_PARAM_REPLAY, NVMED_PARAM_STREAM, NVMED_PARAM_TIMEOUT_MS, NVMED_PARAM_WEIGHT,
    };
    call(-1, || {
        let open = Open::of(fd)?;
        match param {
            NVMEDFS_PARAM_DIRECT => return Ok(open.file.is_direct().into()),
            NVMED_PARAM_URGENT => return Ok(open.file.file().is_urgent().into()),
            _ => {}
        }
        let io = open.file.settings().ok_or_else(no_handle)?;
        let rate = io.rate.unwrap_or_default();
        Ok(match param {
            NVMED_PARAM_COMPLETION => {
                COMPLETIONS.iter().position(|one| *one == io.completion).unwrap_or(0) as c_int
            }
            NVMED_PARAM_PRIORITY => io.priority as c_int,
            NVMED_PARAM_STREAM => io.stream.into(),
            NVMED_PARAM_WEIGHT => cut(io.weight.into()),
            NVMED_PARAM_TIMEOUT_MS => cut(io.timeout_us / 1000),
            NVMED_PARAM_REPLAY => (io.on_reset == OnReset::Replay).into(),
            NVMED_PARAM_RATE_IOPS => cut(rate.requests_per_s),
            NVMED_PARAM_RATE_KIB => cut(rate.bytes_per_s >> 10),
            _ => return Err(unknown(param)),
        })
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_set_param(fd: c_int, param: c_int, value: c_int) -> c_int {
    call(-1, || {
        let open = Open::of(fd)?;
        if param == NVMEDFS_PARAM_DIRECT {
            return open.file.set_direct(value != 0).map(|()| 0).map_err(|_| no_handle());
        }
        let bytes = || u64::try_from(value).map_err(|_| Failure::invalid(format!("{value} bytes")));
        match param {
            NVMED_PARAM_READAHEAD => {
                open.file.file().set_readahead(bytes()?);
                return Ok(0);
            }
            NVMEDFS_PARAM_PREALLOC => {
                open.file.file().preallocate(Some(bytes()?))?;
                return Ok(0);
            }
            NVMED_PARAM_URGENT => {
                open.file.file().set_urgent(value != 0);
                return Ok(0);
            }
            _ => {}
        }
        let mut io = open.file.settings().ok_or_else(no_handle)?;
        let wrong = || {
            Failure::invalid(format!("{value} makes no sense for {param:#x}, or there is no such feature"))
        };
        let count = u64::try_from(value).map_err(|_| wrong())?;
        set_io(&mut io, param, count).ok_or_else(wrong)?;
        open.file.set_settings(io)?;
        Ok(0)
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_direct_align(fd: c_int) -> c_int {
    call(-1, || Ok(Open::of(fd)?.file.direct_align() as c_int))
}

const _: () = assert!(Priority::Urgent as u8 == 0);
