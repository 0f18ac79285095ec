//! The in-process attachment of a controller, and its thread.

use crate::config::Clock;
use crate::controller::{Controller, locked};
use nvmed_dma::{DeviceAddress, MapError, Transport, Waited};
use nvmed_sys::Mapping;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Something that one side rings and the other waits for.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    count: AtomicU32,
    waiting: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Bell {
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    #[inline]
    pub fn ring(&self) {
        // Pairs with `wait`, which counts itself before it looks at `count`: either the waiter sees this, or
        // we see the waiter. Taking the lock waits until it sleeps.
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(locked(&self.lock));
            self.changed.notify_all();
        }
    }

    /// Waits until the count is no longer `seen`, at most `timeout`; whether it changed.
    pub fn wait(&self, seen: u32, timeout: Duration) -> bool {
        let guard = locked(&self.lock);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waited = self.changed.wait_timeout_while(guard, timeout, |()| self.count() == seen);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.count() != seen
    }
}

/// How long the device thread sleeps when nobody rings: a bound on the loss of a wake-up, not a period.
const IDLE: Duration = Duration::from_secs(1);

/// A controller in the host's own process.
///
/// Dropping it is pulling the device out: its thread ends.
pub struct InProcess {
    controller: Arc<Controller>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl InProcess {
    /// Attaches the controller; starts its thread if its clock has one.
    ///
    /// # Errors
    /// The host has no room for a thread.
    pub fn new(controller: Arc<Controller>) -> Result<Self, std::io::Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = match controller.config.clock {
            Clock::Inline => None,
            Clock::Threaded => {
                let (device, stop) = (Arc::clone(&controller), Arc::clone(&stop));
                Some(nvmed_sys::spawn_quiet("nvmed-vdev", move || serve(&device, &stop))?)
            }
        };
        Ok(Self { controller, stop, thread })
    }

    /// The controller.
    #[must_use]
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }
}

fn serve(device: &Controller, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let seen = device.rung.count();
        if !device.serve() {
            device.rung.wait(seen, IDLE);
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.controller.rung.ring();
        if let Some(thread) = self.thread.take() {
            // The thread has no result; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Transport for InProcess {
    fn read32(&self, offset: u32) -> u32 {
        self.controller.read32(offset)
    }

    #[inline]
    fn write32(&self, offset: u32, value: u32) {
        self.controller.write32(offset, value);
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        self.controller.space.map(memory)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.controller.space.unmap(address);
    }

    /// With an inline clock only admin completions and changes of status count: an I/O command has completed
    /// before its doorbell's write returns.
    fn events(&self, _vector: u16) -> u32 {
        self.controller.posted.count()
    }

    fn wait(&self, _vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let timeout = Duration::from_micros(u64::from(timeout_us));
        if self.controller.posted.wait(seen, timeout) { Waited::Event } else { Waited::Timeout }
    }
}
