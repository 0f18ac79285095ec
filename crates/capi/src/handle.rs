//! Handles.

use crate::device::answer_to;
use crate::error::{Failure, call};
use crate::features;
use crate::queue::{NvmedQueue, Queue};
use crate::table::Table;
use nvmed_block::{Access, ByteHandle, Route, Settings};
use nvmed_io::{Binding, Completions, HandleSettings, Operation};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const HANDLE_DIRECT_IO: c_int = 1;
pub(crate) const HANDLE_SYNC_IO: c_int = 2;
pub(crate) const HANDLE_HINT_DMEM: c_int = 4;
pub(crate) const HANDLE_MQ: c_int = 8;
pub(crate) const HANDLE_INTERRUPT: c_int = 16;

/// Queues of one handle: more than a device has make no sense.
const QUEUES_MAX: usize = 4096;

/// Chooses a queue: `nvmed_mq_func`.
pub type Choose = extern "C" fn(*mut NvmedHandle, u8, u64, usize) -> *mut NvmedQueue;

/// A handle on one or several queues.
pub(crate) struct Handle {
    pub(crate) bytes: ByteHandle,
    pub(crate) queues: Vec<Arc<Queue>>,
    pub(crate) mq: bool,
}

/// `struct nvmed_handle_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Requests.
    pub reads: u64,
    /// Requests.
    pub writes: u64,
    /// Requests.
    pub flushes: u64,
    /// Requests.
    pub discards: u64,
    /// Requests.
    pub write_zeroes: u64,
    /// Requests.
    pub compares: u64,
    /// Bytes of reads.
    pub bytes_read: u64,
    /// Bytes of writes.
    pub bytes_written: u64,
    /// Requests that failed.
    pub errors: u64,
    /// 0.
    pub reserved: [u64; 3],
}

/// `NVMED_HANDLE`, of which C holds names only.
pub enum NvmedHandle {}

static HANDLES: Table<Handle> = Table::new(3, "handle (NVMED_HANDLE *)");

impl Handle {
    pub(crate) fn of(name: *mut NvmedHandle) -> Result<Arc<Self>, Failure> {
        HANDLES.get(name as usize)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.handles.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// NVMe's opcode of an operation (NVM Command Set 1.0, figure 21).
pub(crate) fn opcode(operation: Operation) -> u8 {
    match operation {
        Operation::Flush => 0,
        Operation::Write { .. } => 1,
        Operation::Read => 2,
        Operation::Compare => 5,
        Operation::WriteZeroes { .. } => 8,
        Operation::Discard => 9,
        Operation::Passthrough { opcode } => opcode,
    }
}

/// The route over several queues. `own` will hold the handle's name once it has one.
fn route(names: Vec<usize>, bindings: Vec<Binding>, func: Option<Choose>, own: &Arc<AtomicUsize>) -> Route {
    let own = Arc::clone(own);
    let turn = AtomicUsize::new(0);
    Route::Chosen(
        bindings,
        Arc::new(move |access: &Access| match func {
            None => turn.fetch_add(1, Ordering::Relaxed),
            Some(func) => {
                let handle = own.load(Ordering::Relaxed) as *mut NvmedHandle;
                let bytes = usize::try_from(access.bytes).unwrap_or(usize::MAX);
                let chosen = func(handle, opcode(access.operation), access.offset, bytes) as usize;
                names.iter().position(|name| *name == chosen).unwrap_or(0)
            }
        }),
    )
}

fn create(
    names: Vec<usize>,
    flags: c_int,
    mq: bool,
    func: Option<Choose>,
) -> Result<*mut NvmedHandle, Failure> {
    const KNOWN: c_int = HANDLE_DIRECT_IO | HANDLE_SYNC_IO | HANDLE_HINT_DMEM | HANDLE_MQ | HANDLE_INTERRUPT;
    if flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!("a handle's flags {:#x} are not known", flags & !KNOWN)));
    }
    let queues = names.iter().map(|name| Queue::of(*name as *mut NvmedQueue));
    let queues: Vec<Arc<Queue>> = queues.collect::<Result<_, _>>()?;
    let device = Arc::clone(&queues[0].device);
    if queues.iter().any(|queue| !Arc::ptr_eq(&queue.device, &device)) {
        return Err(Failure::invalid("the queues of a handle are of one device"));
    }
    let direct = flags & HANDLE_DIRECT_IO != 0;
    if !direct {
        device.want_cache()?;
    }
    let bindings: Vec<_> = queues.iter().map(|queue| Binding::Queue(queue.number)).collect();
    let own = Arc::new(AtomicUsize::new(0));
    let route = match <[Binding; 1]>::try_from(bindings) {
        Ok([binding]) => Route::Bound(binding),
        Err(bindings) => route(names, bindings, func, &own),
    };
    let completion =
        if flags & HANDLE_INTERRUPT == 0 { Completions::Adaptive } else { Completions::Interrupt };
    let io = HandleSettings { completion, ..HandleSettings::default() };
    let settings = Settings { direct, sync: flags & HANDLE_SYNC_IO != 0, io, ..Settings::default() };
    let bytes = device.disk.handle(route, settings)?;
    for queue in &queues {
        queue.handles.fetch_add(1, Ordering::SeqCst);
    }
    let name = HANDLES.add(Arc::new(Handle { bytes, queues, mq }))?;
    own.store(name, Ordering::Relaxed);
    Ok(name as *mut NvmedHandle)
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_create(queue: *mut NvmedQueue, flags: c_int) -> *mut NvmedHandle {
    call(core::ptr::null_mut(), || create(vec![queue as usize], flags, false, None))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_create_handle(queue: *mut NvmedQueue, flags: c_int) -> *mut NvmedHandle {
    nvmed_handle_create(queue, flags)
}

/// See `nvmed.h`.
///
/// # Safety
/// `queues` is NULL or points to `num_queue` pointers; `func` is NULL or a function of that type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_handle_create_mq(
    queues: *mut *mut NvmedQueue,
    num_queue: c_int,
    flags: c_int,
    func: Option<Choose>,
) -> *mut NvmedHandle {
    call(core::ptr::null_mut(), || {
        let count = usize::try_from(num_queue).ok().filter(|count| (1..=QUEUES_MAX).contains(count));
        let count = count.ok_or_else(|| {
            Failure::invalid(format!("{num_queue} queues; 1 to {QUEUES_MAX} make a handle"))
        })?;
        if queues.is_null() {
            return Err(Failure::new(libc::EFAULT, "the array of queues is NULL"));
        }
        // SAFETY: not NULL; the caller vouches for `count` pointers, aligned as C aligns them, and unchanged during
        // this call. They are copied and never followed.
        let names = (0..count).map(|at| unsafe { queues.add(at).read() } as usize).collect();
        create(names, flags, true, func)
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_destroy(handle: *mut NvmedHandle) -> c_int {
    call(-1, || {
        let outstanding = Handle::of(handle)?.bytes.outstanding();
        if outstanding > 0 {
            let text =
                format!("{outstanding} asynchronous calls of the handle are not reaped; complete them first");
            return Err(Failure::new(libc::EBUSY, text));
        }
        HANDLES.remove(handle as usize)?;
        Ok(0)
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_destroy_mq(handle: *mut NvmedHandle) -> c_int {
    nvmed_handle_destroy(handle)
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_feature_get(handle: *mut NvmedHandle, feature: c_int) -> c_int {
    call(-1, || features::get(&*Handle::of(handle)?, feature))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_feature_set(handle: *mut NvmedHandle, feature: c_int, value: c_int) -> c_int {
    call(-1, || features::set(&*Handle::of(handle)?, feature, value).map(|()| 0))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_set_param(handle: *mut NvmedHandle, feature: c_int, value: c_int) -> c_int {
    nvmed_handle_feature_set(handle, feature, value)
}

/// See `nvmed.h`.
///
/// # Safety
/// `stats` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_get_handle_stats(handle: *mut NvmedHandle, stats: *mut Stats) -> c_int {
    call(-1, || {
        let counted = Handle::of(handle)?.bytes.stats();
        let answer = Stats {
            reads: counted.reads,
            writes: counted.writes,
            flushes: counted.flushes,
            discards: counted.discards,
            write_zeroes: counted.write_zeroes,
            compares: counted.compares,
            bytes_read: counted.bytes_read,
            bytes_written: counted.bytes_written,
            errors: counted.errors,
            reserved: [0; 3],
        };
        // SAFETY: as the caller vouches.
        unsafe { answer_to(stats, answer) }
    })
}
