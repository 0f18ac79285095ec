//! Buffers, and which memory of C's is one.

use crate::device::{Device, NvmedDevice};
use crate::error::{Failure, call};
use crate::mounts::{Mounted, NvmedFs, User};
use crate::table::check_fork;
use nvmed_block::Buffer;
use nvmed_sys::sync::{Arc, RwLock};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

const PAGE_BYTES: usize = 4096;

/// A buffer that C has.
struct Lent {
    _owner: Owner,
    memory: Arc<Buffer>,
}

/// Who must stay as long as a buffer is lent.
enum Owner {
    Device(Arc<Device>),
    Mount { _user: User },
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Self::Device(device) = self {
            device.buffers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Gives C a buffer.
fn lend(owner: Owner, memory: Buffer) -> *mut c_void {
    let memory = Arc::new(memory);
    let address = memory.address();
    let lent = Lent { _owner: owner, memory };
    LENT.write().insert(address as usize, lent);
    address.cast()
}

/// See `nvmedfs.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_get_buffer(fs: *mut NvmedFs, num_pages: c_uint) -> *mut c_void {
    call(core::ptr::null_mut(), || {
        let mounted = Mounted::of(fs)?;
        let memory = mounted.files.buffer(num_pages as usize * PAGE_BYTES)?;
        Ok(lend(Owner::Mount { _user: User::new(&mounted) }, memory))
    })
}

/// All buffers that C has, by address.
static LENT: RwLock<BTreeMap<usize, Lent>> = RwLock::new(BTreeMap::new());

/// The buffer that `len` bytes at an address lie in, and where in it they begin. None for foreign memory.
pub(crate) fn find(address: usize, len: usize) -> Option<(Arc<Buffer>, usize)> {
    let lent = LENT.read();
    let (start, lent) = lent.range(..=address).next_back()?;
    let at = address - start;
    let inside = at.checked_add(len).is_some_and(|end| end <= lent.memory.len());
    inside.then(|| (Arc::clone(&lent.memory), at))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_get_buffer(device: *mut NvmedDevice, num_pages: c_uint) -> *mut c_void {
    call(core::ptr::null_mut(), || {
        let device = Device::of(device)?;
        let memory = device.disk.buffer(num_pages as usize * PAGE_BYTES)?;
        device.buffers.fetch_add(1, Ordering::SeqCst);
        Ok(lend(Owner::Device(device), memory))
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_put_buffer(buffer: *mut c_void) {
    if buffer.is_null() {
        return;
    }
    call((), || {
        check_fork()?;
        let lent = LENT.write().remove(&(buffer as usize));
        // Requests that use it at this moment keep the memory until they are done.
        let text = || format!("{buffer:p} is no buffer of nvmed_get_buffer, or was put back before");
        lent.map(|_| ()).ok_or_else(|| Failure::invalid(text()))
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// `addresses` is NULL or has room for one number for each page under the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_virt_to_phys(
    device: *mut NvmedDevice,
    addr: *const c_void,
    addresses: *mut u64,
    num_bytes: usize,
) -> c_int {
    call(-1, || {
        let device = Device::of(device)?;
        let (buffer, at) = find(addr as usize, num_bytes)
            .filter(|(buffer, _)| device.disk.owns(buffer))
            .ok_or_else(|| Failure::new(libc::EFAULT, format!("{addr:p} is in no buffer of this device")))?;
        if addresses.is_null() || num_bytes == 0 {
            return Err(Failure::invalid("no bytes, or no place for their addresses"));
        }
        let first = buffer.segment(at..at + num_bytes)?.address.0;
        let pages = (at % PAGE_BYTES + num_bytes).div_ceil(PAGE_BYTES);
        for page in 0..pages {
            // The first address may lie inside its page, as a PRP entry has it.
            let address = if page == 0 {
                first
            } else {
                (first & !(PAGE_BYTES as u64 - 1)) + (page * PAGE_BYTES) as u64
            };
            // SAFETY: the caller vouches for room for as many numbers as pages; they are aligned as C aligns them.
            unsafe { addresses.add(page).write(address) };
        }
        Ok(pages as c_int)
    })
}
