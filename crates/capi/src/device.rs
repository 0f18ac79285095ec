//! Devices.

use crate::error::{Failure, call};
use crate::table::{Table, check_fork, watch_forks};
use nvmed_block::{CacheOptions, CacheStats, Disk, DiskOptions, EvictionPolicy, WritePolicy};
use nvmed_stack::{DeviceSpec, Open, open_device};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, Once};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Frames of the cache of a device that was opened without `NVMED_NO_CACHE`, unless told otherwise: 64 MiB.
const CACHE_FRAMES: u64 = 16_384;
const FRAME_BYTES: u64 = 4096;

pub(crate) const NVMED_NO_CACHE: c_int = 1;
pub(crate) const NVMED_CACHE_SIZE: c_int = 2;
pub(crate) const NVMED_CACHE_LAZY_INIT: c_int = 4;
pub(crate) const NVMED_CREATE: c_int = 8;
pub(crate) const NVMED_OVERWRITE: c_int = 16;
pub(crate) const NVMED_CACHE_WRITE_THROUGH: c_int = 0x100;
pub(crate) const NVMED_CACHE_DIRTY_LIMIT: c_int = 0x101;
pub(crate) const NVMED_CACHE_POLICY: c_int = 0x102;

/// `struct nvmed_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Bytes of the namespace.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub lba_bytes: u32,
    /// Bytes that one command moves.
    pub transfer_bytes: u32,
    /// Queues that can exist at once.
    pub queues_max: u32,
    /// Commands in a queue.
    pub queue_depth_max: u32,
    /// Whether a flush matters.
    pub volatile_cache: u32,
    /// 0.
    pub reserved: u32,
    /// Serial number.
    pub serial: [c_char; 24],
    /// Model.
    pub model: [c_char; 48],
    /// Firmware revision.
    pub firmware: [c_char; 16],
}

/// `struct nvmed_cache_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// See [`CacheStats`].
    pub frames: u64,
    /// See [`CacheStats`].
    pub hits: u64,
    /// See [`CacheStats`].
    pub misses: u64,
    /// See [`CacheStats`].
    pub evictions: u64,
    /// See [`CacheStats`].
    pub dirty: u64,
    /// See [`CacheStats`].
    pub write_backs: u64,
    /// See [`CacheStats`].
    pub write_backs_failed: u64,
    /// 0.
    pub reserved: u64,
}

/// How the cache is to be once it is needed.
#[derive(Clone, Copy, Debug)]
struct Wish {
    frames: u64,
    through: bool,
    dirty_frames: u64,
    /// An index into [`EvictionPolicy::ALL`].
    policy: usize,
}

/// An open device.
pub(crate) struct Device {
    pub(crate) disk: Arc<Disk>,
    /// Queues and buffers that C has of it.
    pub(crate) queues: AtomicUsize,
    pub(crate) buffers: AtomicUsize,
    wish: Mutex<Wish>,
}

/// `NVMED`, of which C holds names only.
pub enum NvmedDevice {}

static DEVICES: Table<Device> = Table::new(1, "device (NVMED *)");

impl Device {
    pub(crate) fn of(name: *mut NvmedDevice) -> Result<Arc<Self>, Failure> {
        DEVICES.get(name as usize)
    }

    fn wish(&self) -> MutexGuard<'_, Wish> {
        self.wish.lock()
    }

    /// Makes the cache if there is to be one and is none: a handle wants it.
    pub(crate) fn want_cache(&self) -> Result<(), Failure> {
        let wish = self.wish();
        if wish.frames > 0 && self.disk.cache_options().is_none() {
            self.disk.set_cache(Some(wish.options()))?;
        }
        Ok(())
    }

    fn feature(&self, feature: c_int) -> Result<c_int, Failure> {
        let wish = *self.wish();
        match feature {
            NVMED_CACHE_SIZE => Ok(c_int::try_from(wish.frames).unwrap_or(c_int::MAX)),
            NVMED_NO_CACHE => Ok(c_int::from(wish.frames == 0)),
            NVMED_CACHE_LAZY_INIT => Ok(1),
            NVMED_CACHE_WRITE_THROUGH => Ok(c_int::from(wish.through)),
            NVMED_CACHE_DIRTY_LIMIT => Ok(c_int::try_from(wish.dirty_frames).unwrap_or(c_int::MAX)),
            NVMED_CACHE_POLICY => Ok(wish.policy as c_int),
            _ => Err(unknown(feature)),
        }
    }

    fn set_feature(&self, feature: c_int, value: c_int) -> Result<(), Failure> {
        let count = u64::try_from(value);
        let count =
            count.map_err(|_| Failure::invalid(format!("{value} frames are not a number of frames")))?;
        let mut wish = self.wish();
        let mut new = *wish;
        match feature {
            NVMED_CACHE_SIZE => new.frames = count,
            NVMED_CACHE_WRITE_THROUGH => new.through = count != 0,
            NVMED_CACHE_DIRTY_LIMIT => new.dirty_frames = count,
            NVMED_CACHE_POLICY if count < EvictionPolicy::ALL.len() as u64 => new.policy = count as usize,
            NVMED_CACHE_LAZY_INIT => {}
            _ => return Err(unknown(feature)),
        }
        if self.disk.cache_options().is_some() {
            self.disk.set_cache((new.frames > 0).then(|| new.options()))?;
        }
        *wish = new;
        Ok(())
    }
}

impl Wish {
    fn options(&self) -> CacheOptions {
        CacheOptions {
            write: if self.through { WritePolicy::Through } else { WritePolicy::Back },
            dirty_bytes: self.dirty_frames * FRAME_BYTES,
            policy: EvictionPolicy::ALL[self.policy],
            ..CacheOptions::bytes(self.frames * FRAME_BYTES)
        }
    }
}

#[cold]
fn unknown(feature: c_int) -> Failure {
    Failure::invalid(format!("{feature:#x} is no feature of a device, or cannot be set"))
}

/// A C string as text.
///
/// # Safety
/// `text` is NULL or a string that ends in a zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::new(libc::EFAULT, "the device string is NULL"));
    }
    // SAFETY: not NULL, and the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid("the device string is not UTF-8"))
}

fn open(path: &str, flags: c_int) -> Result<Device, Failure> {
    const KNOWN: c_int = NVMED_NO_CACHE | NVMED_CACHE_LAZY_INIT | NVMED_CREATE | NVMED_OVERWRITE;
    if flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!("nvmed_open: flags {:#x} are not known", flags & !KNOWN)));
    }
    let spec = DeviceSpec::parse(path);
    let spec = spec.map_err(|error| Failure::invalid(format!("device `{path}`: {error}")))?;
    let how = if flags & NVMED_CREATE == 0 {
        Open::Existing { locked_by_run: false }
    } else {
        let bytes = spec.size_bytes();
        let bytes =
            bytes.ok_or_else(|| Failure::invalid(format!("device `{path}`: NVMED_CREATE needs size=")))?;
        Open::Create { bytes }
    };
    let options = DiskOptions { overwrite: flags & NVMED_OVERWRITE != 0, ..DiskOptions::default() };
    let disk = Disk::new(open_device(&spec, how)?, options);
    let frames = if flags & NVMED_NO_CACHE == 0 { CACHE_FRAMES } else { 0 };
    let wish = Mutex::new(Wish { frames, through: false, dirty_frames: 0, policy: 0 });
    Ok(Device { disk, queues: AtomicUsize::new(0), buffers: AtomicUsize::new(0), wish })
}

/// Runs when the process ends by `exit`, or by returning from `main`: what was written and not closed.
extern "C" fn leave() {
    // In a forked child every device is the parent's.
    if check_fork().is_err() {
        return;
    }
    // A panic must not leave the handler.
    let _ = std::panic::catch_unwind(crate::mounts::leave);
    for device in DEVICES.all() {
        // Nobody is left who could be told; a panic must not leave the handler.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if device.disk.write_back().is_ok() {
                let _ = device.disk.device().shutdown();
            }
        }));
    }
}

/// Has devices that are open at the end of the process written back.
pub(crate) fn watch_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler is a function of this library, which stays loaded until the handler has run (glibc runs
    // handlers of a library before it unloads it).
    ONCE.call_once(|| unsafe {
        libc::atexit(leave);
    });
}

/// See `nvmed.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_open(path: *const c_char, flags: c_int) -> *mut NvmedDevice {
    call(core::ptr::null_mut(), || {
        check_fork()?;
        watch_forks();
        watch_exit();
        // SAFETY: as the caller vouches.
        let path = unsafe { text(path) }?;
        Ok(DEVICES.add(Arc::new(open(path, flags)?))? as *mut NvmedDevice)
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_close(device: *mut NvmedDevice) -> c_int {
    call(-1, || {
        let open = Device::of(device)?;
        let (queues, buffers) = (open.queues.load(Ordering::SeqCst), open.buffers.load(Ordering::SeqCst));
        if queues > 0 || buffers > 0 {
            let text = format!(
                "the device has {queues} queues and {buffers} buffers; destroy and put them back first"
            );
            return Err(Failure::new(libc::EBUSY, text));
        }
        drop(open);
        let closed = DEVICES.remove(device as usize)?;
        let written = closed.disk.write_back();
        closed.disk.device().shutdown()?;
        written?;
        Ok(0)
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_feature_get(device: *mut NvmedDevice, feature: c_int) -> c_int {
    call(-1, || Device::of(device)?.feature(feature))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_feature_set(device: *mut NvmedDevice, feature: c_int, value: c_int) -> c_int {
    call(-1, || Device::of(device)?.set_feature(feature, value).map(|()| 0))
}

/// Text as a C array, cut to its length, with a zero byte at the end.
fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

/// See `nvmed.h`.
///
/// # Safety
/// `info` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_get_info(device: *mut NvmedDevice, info: *mut Info) -> c_int {
    call(-1, || {
        let device = Device::of(device)?;
        let geometry = device.disk.device().geometry();
        let answer = Info {
            bytes: device.disk.bytes(),
            lba_bytes: geometry.lba_bytes,
            transfer_bytes: geometry.transfer_bytes_max,
            queues_max: geometry.queues_max.into(),
            queue_depth_max: geometry.queue_depth_max.into(),
            volatile_cache: geometry.volatile_write_cache.into(),
            reserved: 0,
            serial: array(&geometry.serial),
            model: array(&geometry.model),
            firmware: array(&geometry.firmware),
        };
        // SAFETY: as the caller vouches.
        unsafe { answer_to(info, answer) }
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `stats` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_get_cache_stats(device: *mut NvmedDevice, stats: *mut Stats) -> c_int {
    call(-1, || {
        let CacheStats { frames, hits, misses, evictions, dirty, write_backs, write_backs_failed } =
            Device::of(device)?.disk.cache_stats().unwrap_or_default();
        let answer =
            Stats { frames, hits, misses, evictions, dirty, write_backs, write_backs_failed, reserved: 0 };
        // SAFETY: as the caller vouches.
        unsafe { answer_to(stats, answer) }
    })
}

/// Stores an answer where the caller wants it.
///
/// # Safety
/// `to` is NULL or can be written to.
pub(crate) unsafe fn answer_to<T>(to: *mut T, answer: T) -> Result<c_int, Failure> {
    if to.is_null() {
        return Err(Failure::new(libc::EFAULT, "the place for the answer is NULL"));
    }
    // SAFETY: not NULL, and the caller vouches for the rest.
    unsafe { to.write(answer) };
    Ok(0)
}

fn no_quota(device: *mut NvmedDevice) -> c_int {
    call(-1, || {
        Device::of(device)?;
        let text = "quotas by user need a server that shares the device among users; this version has none";
        Err(Failure::new(libc::ENOTSUP, text))
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_set_user_quota(
    device: *mut NvmedDevice,
    _uid: libc::uid_t,
    _num_queue: c_uint,
    _max: *mut c_uint,
    _current: *mut c_uint,
) -> c_int {
    no_quota(device)
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_get_user_quota(
    device: *mut NvmedDevice,
    _uid: libc::uid_t,
    _max: *mut c_uint,
    _current: *mut c_uint,
) -> c_int {
    no_quota(device)
}
