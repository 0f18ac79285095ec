//! The end of a run whose device does not answer any more: when the user ends the run, the command waits a while, then
//! ends without saving, and says what is lost.

use crate::ending::Stat;
use nvmed_io::Device;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the write-back of a run that is to end may go without one completed command. Those of a device that works
/// take milliseconds; its own limit for one (120 s) is far longer than a user waits after a signal.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// How often it is looked. Looks are counted, not time: while this process is stopped or starved, it could not see
/// progress.
const LOOK: Duration = Duration::from_millis(250);

/// A write-back under way.
pub(crate) struct WriteBack {
    name: String,
    /// Once it is open.
    device: OnceLock<Arc<Device>>,
    over: AtomicBool,
}

impl WriteBack {
    /// One to the device of this name.
    pub(crate) fn to(name: impl ToString) -> Arc<Self> {
        Arc::new(Self { name: name.to_string(), device: OnceLock::new(), over: AtomicBool::new(false) })
    }

    /// This is the device.
    pub(crate) fn opened(&self, device: &Arc<Device>) {
        let _ = self.device.set(Arc::clone(device));
    }

    /// It is over: what the run still has to do is not the device's.
    pub(crate) fn over(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// From here on, the process ends with `status` and a line when nothing is done for [`STUCK_AFTER`].
    pub(crate) fn end_when_stuck(self: Arc<Self>, status: u8) {
        // Without a thread, the device's own limit ends it.
        let _ = nvmed_sys::spawn_quiet("nvmed-stall", move || {
            if !self.is_stuck() {
                return;
            }
            eprintln!(
                "nvmed: run: {}: no command has completed for {} s: the run ends before everything was saved; what \
                 fsync and sync have confirmed is on the device, what was written after that may be lost; find out why \
                 the device does not answer, then check it with `nvmed fsck`",
                self.name,
                STUCK_AFTER.as_secs()
            );
            std::process::exit(status.into());
        });
    }

    /// Waits until nothing has been done for [`STUCK_AFTER`], or until it is over.
    fn is_stuck(&self) -> bool {
        let (mut done, mut waited) = (self.done(), Duration::ZERO);
        while waited < STUCK_AFTER {
            std::thread::sleep(LOOK);
            if self.over.load(Ordering::Acquire) {
                return false;
            }
            let now = self.done();
            waited = if now != done || waits_for_the_host() { Duration::ZERO } else { waited + LOOK };
            done = now;
        }
        true
    }

    fn done(&self) -> u64 {
        self.device.get().map_or(0, |device| device.completed())
    }
}

/// Whether a thread of ours waits for a disk of the host's (state D), as one does that flushes an image into a slow
/// disk: one command may take minutes there, and nothing could end the process meanwhile.
fn waits_for_the_host() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.into_iter().any(|thread| Stat::read(&thread.path()).is_some_and(|stat| stat.state == 'D'))
}
