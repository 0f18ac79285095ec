//! Directories that C lists.

use crate::descriptors::{Open, open, path};
use crate::error::{Failure, call};
use crate::mounts::NvmedFs;
use crate::table::Table;
use core::cell::UnsafeCell;
use core::ops::ControlFlow;
use nvmed_files::{OpenFlags, Policy, Whence};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// `struct nvmedfs_dirent`.
#[repr(C)]
pub struct NvmedFsEntry {
    /// Inode number.
    pub d_ino: u64,
    /// Where the listing continues.
    pub d_off: i64,
    /// Bytes of this structure.
    pub d_reclen: u16,
    /// `DT_*`.
    pub d_type: u8,
    /// 0.
    pub reserved: [u8; 5],
    /// The name and a zero byte.
    pub d_name: [c_char; 256],
}

/// A directory being listed.
struct Directory {
    open: Open,
    /// What the last call answered; C's until the next call of the same directory, which C does not make at the same
    /// time (as with readdir(3)).
    entry: UnsafeCell<NvmedFsEntry>,
}

// SAFETY: `entry` is written only inside `nvmedfs_readdir`, whose caller vouches that no other thread lists the same
// directory meanwhile; no reference to it is ever made.
unsafe impl Sync for Directory {}

/// `NVMEDFS_DIR`, of which C holds names only.
pub enum NvmedFsDir {}

static DIRECTORIES: Table<Directory> = Table::new(5, "directory (NVMEDFS_DIR *)");

/// See `nvmedfs.h`.
///
/// # Safety
/// `path` is NULL or a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_opendir(fs: *mut NvmedFs, name: *const c_char) -> *mut NvmedFsDir {
    call(core::ptr::null_mut(), || {
        // SAFETY: as the caller vouches.
        let path = unsafe { path(name) }?;
        let flags = OpenFlags::READ.with(OpenFlags::DIRECTORY);
        let open = open(fs, path, flags.0 as c_int, 0, &Policy::default())?;
        let entry = NvmedFsEntry {
            d_ino: 0,
            d_off: 0,
            d_reclen: size_of::<NvmedFsEntry>() as u16,
            d_type: 0,
            reserved: [0; 5],
            d_name: [0; 256],
        };
        let directory = Directory { open, entry: UnsafeCell::new(entry) };
        Ok(DIRECTORIES.add(Arc::new(directory))? as *mut NvmedFsDir)
    })
}

/// See `nvmedfs.h`.
///
/// # Safety
/// No other thread lists the same directory meanwhile, and nobody looks at the last answer any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_readdir(dir: *mut NvmedFsDir) -> *mut NvmedFsEntry {
    call(core::ptr::null_mut(), || {
        let directory = DIRECTORIES.get(dir as usize)?;
        let to = directory.entry.get();
        let mut told = false;
        directory.open.file.file().read_dir(&mut |entry| {
            if told {
                return ControlFlow::Break(());
            }
            told = true;
            let count = entry.name.len().min(255);
            // SAFETY: the memory is the directory's, which the table or our `Arc` keeps; the caller vouches that nobody
            // else uses it now. A name has at most 255 bytes, so that it and the zero behind it fit.
            unsafe {
                (*to).d_ino = entry.ino;
                (*to).d_off = entry.cookie as i64;
                (*to).d_type = entry.kind.d_type();
                let name = (&raw mut (*to).d_name).cast::<u8>();
                core::ptr::copy_nonoverlapping(entry.name.as_ptr(), name, count);
                name.add(count).write(0);
            }
            ControlFlow::Continue(())
        })?;
        Ok(if told { to } else { core::ptr::null_mut() })
    })
}

fn seek(dir: *mut NvmedFsDir, offset: i64, whence: Whence) -> Result<i64, Failure> {
    let directory = DIRECTORIES.get(dir as usize)?;
    Ok(directory.open.file.file().seek(offset, whence)? as i64)
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_rewinddir(dir: *mut NvmedFsDir) {
    call((), || seek(dir, 0, Whence::Set).map(drop));
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_telldir(dir: *mut NvmedFsDir) -> i64 {
    call(-1, || seek(dir, 0, Whence::Current))
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_seekdir(dir: *mut NvmedFsDir, position: i64) {
    call((), || seek(dir, position, Whence::Set).map(drop));
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_closedir(dir: *mut NvmedFsDir) -> c_int {
    call(-1, || {
        drop(DIRECTORIES.remove(dir as usize)?);
        Ok(0)
    })
}
