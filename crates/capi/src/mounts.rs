//! File systems that C has mounted.

use crate::device::{answer_to, text, watch_exit};
use crate::error::{Failure, call};
use crate::table::{Table, check_fork, watch_forks};
use nvmed_files::{Config, DeviceSpec, Files};
use nvmed_fs::{FileSystem, FormatOptions, FsError};
use nvmed_stack::{Durability, Open, open_device};
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NVMEDFS_FORMAT_BLANK: u32 = 1;
const NVMEDFS_DURABLE_CALLS: u32 = 2;
const NVMEDFS_NO_READAHEAD: u32 = 4;

/// A mounted file system.
pub(crate) struct Mounted {
    pub(crate) files: Arc<Files>,
    /// Files, directories, buffers and calls under way.
    pub(crate) users: AtomicUsize,
}

/// `NVMEDFS`, of which C holds names only.
pub enum NvmedFs {}

static MOUNTS: Table<Mounted> = Table::new(4, "file system (NVMEDFS *)");

/// `struct nvmedfs_format_options`.
#[repr(C)]
pub struct NvmedFsFormat {
    /// Of a file that is made or grown.
    pub size: u64,
    /// For metadata.
    pub metadata_bytes: u64,
    /// 0.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// A name.
    pub label: [c_char; 72],
    /// 0.
    pub reserved2: [u64; 4],
}

/// `struct nvmedfs_mount_options`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct NvmedFsMount {
    /// Of the cache.
    pub cache_bytes: u64,
    /// `ffs_prealloc`.
    pub prealloc_bytes: u64,
    /// `ffs_readahead`.
    pub readahead_bytes: u64,
    /// At which writers write back.
    pub dirty_limit_bytes: u64,
    /// `NVMEDFS_FORMAT_BLANK` and so on.
    pub flags: u32,
    /// After which dirty data is written back.
    pub writeback_seconds: u32,
    /// 0.
    pub reserved: [u64; 4],
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        Self::new(error.errno().raw_os_error(), error.to_string())
    }
}

impl Mounted {
    pub(crate) fn of(name: *mut NvmedFs) -> Result<Arc<Self>, Failure> {
        MOUNTS.get(name as usize)
    }
}

/// Somebody who keeps a file system from being unmounted.
pub(crate) struct User(pub(crate) Arc<Mounted>);

impl User {
    pub(crate) fn new(mounted: &Arc<Mounted>) -> Self {
        mounted.users.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(mounted))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// At the end of the process: what was written and not unmounted.
pub(crate) fn leave() {
    for mounted in MOUNTS.all() {
        // Nobody is left who could be told.
        let _ = mounted.files.unmount();
    }
}

fn spec(device: &str) -> Result<DeviceSpec, Failure> {
    let spec = DeviceSpec::parse(device);
    spec.map_err(|error| Failure::invalid(format!("device `{device}`: {error}")))
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `device` is NULL or a string that ends in a zero byte; `options` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_format(device: *const c_char, options: *const NvmedFsFormat) -> c_int {
    call(-1, || {
        check_fork()?;
        // SAFETY: as the caller vouches.
        let name = unsafe { text(device) }?;
        // SAFETY: as the caller vouches, not NULL then.
        let options = (!options.is_null()).then(|| unsafe { options.read() });
        let (mut format, mut size) = (FormatOptions::default(), 0);
        if let Some(options) = options {
            let bytes = options.label.map(|byte| byte as u8);
            let label = CStr::from_bytes_until_nul(&bytes)
                .map_err(|_| Failure::invalid("nvmedfs_format: the label does not end in a zero byte"))?;
            format.label = label.to_string_lossy().into_owned();
            format.meta_bytes = (options.metadata_bytes > 0).then_some(options.metadata_bytes);
            size = options.size;
        }
        let spec = spec(name)?;
        let open = match (size, spec.size_bytes()) {
            (0, None) => Open::Existing { locked_by_run: false },
            (0, Some(bytes)) | (bytes, _) => Open::Create { bytes },
        };
        let device = open_device(&spec, open)?;
        FileSystem::format(&device, &format)?;
        device.shutdown()?;
        Ok(0)
    })
}

fn config(device: &str, options: &NvmedFsMount) -> Result<Config, Failure> {
    const KNOWN: u32 = NVMEDFS_FORMAT_BLANK | NVMEDFS_DURABLE_CALLS | NVMEDFS_NO_READAHEAD;
    if options.flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!(
            "nvmedfs_mount: flags {:#x} are not known",
            options.flags & !KNOWN
        )));
    }
    let mut config = Config::new(PathBuf::from("/"), spec(device)?);
    config.format = options.flags & NVMEDFS_FORMAT_BLANK != 0;
    if options.flags & NVMEDFS_DURABLE_CALLS != 0 {
        config.durability = Durability::Device;
    }
    if options.cache_bytes > 0 {
        config.cache_bytes = options.cache_bytes.max(nvmed_stack::config::CACHE_BYTES_MIN);
    }
    config.dirty_limit_bytes = match options.dirty_limit_bytes {
        0 => config.cache_bytes / 2,
        bytes => bytes,
    };
    config.prealloc_bytes = options.prealloc_bytes;
    if options.readahead_bytes > 0 {
        config.readahead_bytes = options.readahead_bytes;
    }
    if options.flags & NVMEDFS_NO_READAHEAD != 0 {
        config.readahead_bytes = 0;
    }
    if options.writeback_seconds > 0 {
        config.writeback_seconds = options.writeback_seconds;
    }
    Ok(config)
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `device` is NULL or a string that ends in a zero byte; `options` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mount(device: *const c_char, options: *const NvmedFsMount) -> *mut NvmedFs {
    call(core::ptr::null_mut(), || {
        check_fork()?;
        watch_forks();
        watch_exit();
        // SAFETY: as the caller vouches.
        let name = unsafe { text(device) }?;
        // SAFETY: as the caller vouches, not NULL then.
        let options = if options.is_null() { NvmedFsMount::default() } else { unsafe { options.read() } };
        let files = Files::mount(&config(name, &options)?)?;
        Ok(MOUNTS.add(Arc::new(Mounted { files, users: AtomicUsize::new(0) }))? as *mut NvmedFs)
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_unmount(fs: *mut NvmedFs) -> c_int {
    call(-1, || {
        let users = Mounted::of(fs)?.users.load(Ordering::SeqCst);
        if users > 0 {
            let text = format!(
                "{users} files, directories, buffers or calls of the file system are left; close them first"
            );
            return Err(Failure::new(libc::EBUSY, text));
        }
        let mounted = MOUNTS.remove(fs as usize)?;
        mounted.files.unmount()?;
        Ok(0)
    })
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_sync(fs: *mut NvmedFs) -> c_int {
    call(-1, || Ok(Mounted::of(fs)?.files.sync().map(|()| 0)?))
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `status` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_statfs(fs: *mut NvmedFs, status: *mut libc::statvfs) -> c_int {
    call(-1, || {
        let found = Mounted::of(fs)?.files.statfs();
        // SAFETY: a structure of integers, of which zero is a value.
        let mut answer: libc::statvfs = unsafe { core::mem::zeroed() };
        (answer.f_bsize, answer.f_frsize) = (found.block_bytes.into(), found.block_bytes.into());
        (answer.f_blocks, answer.f_bfree, answer.f_bavail) =
            (found.blocks, found.blocks_free, found.blocks_free);
        (answer.f_files, answer.f_ffree, answer.f_favail) = (found.files, found.files_free, found.files_free);
        (answer.f_fsid, answer.f_namemax) = (found.id, found.name_bytes_max.into());
        answer.f_flag = if found.read_only { libc::ST_RDONLY } else { 0 };
        // SAFETY: as the caller vouches.
        unsafe { answer_to(status, answer) }
    })
}
