//! Queues.

use crate::device::{Device, NvmedDevice};
use crate::error::{Failure, call};
use crate::table::Table;
use nvmed_io::{Priority, QueueSettings, Scheduler};
use std::ffi::{c_int, c_uint};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const QUEUE_MANUAL_COMPLETION: c_int = 1;
pub(crate) const QUEUE_INTERRUPT: c_int = 2;

/// Commands in flight of a queue that nobody gave a depth.
const DEPTH: u16 = 128;

/// A queue of a device.
pub(crate) struct Queue {
    pub(crate) device: Arc<Device>,
    pub(crate) number: usize,
    /// Handles on it.
    pub(crate) handles: AtomicUsize,
}

/// `NVMED_QUEUE`, of which C holds names only.
pub enum NvmedQueue {}

static QUEUES: Table<Queue> = Table::new(2, "queue (NVMED_QUEUE *)");

impl Queue {
    pub(crate) fn of(name: *mut NvmedQueue) -> Result<Arc<Self>, Failure> {
        QUEUES.get(name as usize)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The handles on it are gone. Should the device refuse, the queue ends with the device.
        let _ = self.device.disk.device().destroy_queue(self.number);
        self.device.queues.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The class that a number means.
pub(crate) fn priority(number: c_int) -> Result<Priority, Failure> {
    match number {
        0 => Ok(Priority::Urgent),
        1 => Ok(Priority::High),
        2 => Ok(Priority::Medium),
        3 => Ok(Priority::Low),
        _ => Err(Failure::invalid(format!("{number} is no NVMED_PRIORITY"))),
    }
}

pub(crate) fn scheduler(number: c_int) -> Result<Scheduler, Failure> {
    match number {
        0 => Ok(Scheduler::None),
        1 => Ok(Scheduler::DEADLINE),
        2 => Ok(Scheduler::Fair),
        _ => Err(Failure::invalid(format!("{number} is no NVMED_SCHED"))),
    }
}

fn create(
    device: *mut NvmedDevice,
    flags: c_int,
    settings: QueueSettings,
) -> Result<*mut NvmedQueue, Failure> {
    const KNOWN: c_int = QUEUE_MANUAL_COMPLETION | QUEUE_INTERRUPT;
    if flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!("a queue's flags {:#x} are not known", flags & !KNOWN)));
    }
    let device = Device::of(device)?;
    let settings = QueueSettings { interrupts: flags & QUEUE_INTERRUPT != 0, ..settings };
    let number = device.disk.device().create_queue(settings)?;
    device.queues.fetch_add(1, Ordering::SeqCst);
    let queue = Queue { device, number, handles: AtomicUsize::new(0) };
    Ok(QUEUES.add(Arc::new(queue))? as *mut NvmedQueue)
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_queue_create(device: *mut NvmedDevice, flags: c_int) -> *mut NvmedQueue {
    call(core::ptr::null_mut(), || create(device, flags, QueueSettings::depth(DEPTH)))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_create_queue(device: *mut NvmedDevice, flags: c_int) -> *mut NvmedQueue {
    nvmed_queue_create(device, flags)
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_queue_create_opt(
    device: *mut NvmedDevice,
    flags: c_int,
    depth: c_uint,
    priority: c_int,
    scheduler: c_int,
) -> *mut NvmedQueue {
    call(core::ptr::null_mut(), || {
        let depth = if depth == 0 { DEPTH } else { u16::try_from(depth).unwrap_or(u16::MAX) };
        let (priority, scheduler) = (self::priority(priority)?, self::scheduler(scheduler)?);
        // Requests that wait in a scheduler are merged: that is what they wait for.
        let merge = scheduler != Scheduler::None;
        create(device, flags, QueueSettings { priority, scheduler, merge, ..QueueSettings::depth(depth) })
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_queue_destroy(queue: *mut NvmedQueue) -> c_int {
    call(-1, || {
        let handles = Queue::of(queue)?.handles.load(Ordering::SeqCst);
        if handles > 0 {
            return Err(Failure::new(
                libc::EBUSY,
                format!("the queue has {handles} handles; destroy them first"),
            ));
        }
        QUEUES.remove(queue as usize)?;
        Ok(0)
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_queue_set_scheduler(queue: *mut NvmedQueue, scheduler: c_int) -> c_int {
    call(-1, || {
        let queue = Queue::of(queue)?;
        queue.device.disk.device().set_scheduler(queue.number, self::scheduler(scheduler)?)?;
        Ok(0)
    })
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_queue_fd(queue: *mut NvmedQueue) -> c_int {
    call(-1, || {
        let queue = Queue::of(queue)?;
        let fd = queue.device.disk.device().event_fd(queue.number)?;
        let fd = fd.ok_or_else(|| Failure::new(libc::ENOTSUP, "this queue has no interrupt to wait for"))?;
        Ok(fd.as_raw_fd())
    })
}
