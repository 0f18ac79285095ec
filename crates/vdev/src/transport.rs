//! The in-process attachment of a controller, and its thread.

use crate::bell::Bell;
use crate::config::Clock;
use crate::controller::Controller;
use nvmed_dma::{DeviceAddress, MapError, Transport, Waited};
use nvmed_sys::Mapping;
use rustix::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

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
        self.controller.unmap(address);
    }

    fn vectors(&self) -> u16 {
        self.controller.vectors()
    }

    /// Rings are counted from the first look on, so that a host which never looks does not pay for them.
    fn events(&self, vector: u16) -> u32 {
        self.controller.bell(vector).map_or(0, Bell::count)
    }

    /// A vector that does not exist is never rung.
    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let timeout = Duration::from_micros(u64::from(timeout_us));
        let Some(bell) = self.controller.bell(vector) else {
            std::thread::sleep(timeout);
            return Waited::Timeout;
        };
        if bell.wait(seen, timeout) { Waited::Event } else { Waited::Timeout }
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.controller.bell(vector)?.descriptor()
    }
}
