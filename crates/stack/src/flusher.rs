//! The thread that writes back dirty data that no program has synced, as a kernel does, settles the metadata
//! log when nothing was appended to it for a while, makes memory present that the cache uses next, and, where callers
//! may be urgent, writes back ahead of writers. It starts another one that reads ahead, once readers wait long for what
//! they read in order.

use nvmed_fs::FileSystem;
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{Device, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many times a period the thread looks: dirty data is at most a period and a quarter old.
const LOOKS_PER_PERIOD: u32 = 4;
/// The longest time between two looks at the log, which is settled at the second one that finds nothing new (within a
/// second of the last append), and at the I/O class of threads.
const LOG_LOOK: Duration = Duration::from_millis(500);

/// Writes back dirty data older than a period, and settles the log, until dropped. It parks in between and takes no
/// signal.
pub(crate) struct Flusher {
    _worker: Option<Worker>,
}

impl Flusher {
    /// Starts for `files`; no thread at all when `period_s` is 0 or the host has none left: data is
    /// then written back by writers over the limit, by fsync and at the end, and the log is settled at the end.
    ///
    /// Where threads of this process are the callers, and none is urgent yet, `asked` is their device: it is told when
    /// one has become urgent, by ioprio_set(2) or by `ionice -p`.
    pub fn start(files: &FileSystem, period_s: u32, mut asked: Option<Arc<Device>>) -> Self {
        let period = Duration::from_secs(u64::from(period_s));
        let files = files.clone();
        let work = move |stop: &AtomicBool| {
            let look = period / LOOKS_PER_PERIOD;
            files.made_present_by(std::thread::current());
            files.relieved_by(std::thread::current());
            let (mut looked, mut settled, mut more) = (Instant::now(), Instant::now(), false);
            let mut reader = None;
            loop {
                let rest =
                    (look.saturating_sub(looked.elapsed())).min(LOG_LOOK.saturating_sub(settled.elapsed()));
                std::thread::park_timeout(if more { Duration::ZERO } else { rest });
                if stop.load(Ordering::Acquire) {
                    break;
                }
                files.make_present();
                if reader.is_none() && files.wants_read_ahead() {
                    reader = read_ahead_of(&files);
                }
                more = files.guarded(|| files.relieve_ahead()).unwrap_or(false);
                if looked.elapsed() >= look {
                    looked = Instant::now();
                    // A failure stays with the frames, which stay dirty, and is reported by the
                    // next fsync of each open description.
                    // One that fails a check of our own memory turns the file system read-only.
                    let _ = files.guarded(|| files.write_back_older_than(period));
                }
                if settled.elapsed() >= LOG_LOOK {
                    settled = Instant::now();
                    if let Some(device) = asked.take_if(|_| caller::may_be_urgent_here()) {
                        device.expect_urgent(Source::Threads);
                    }
                    // Either kind of failure turns the file system read-only, which is told.
                    let _ = files.guarded(|| files.settle_if_quiet());
                }
            }
        };
        Self { _worker: (period_s > 0).then(|| Worker::start("nvmed-flush", work)).flatten() }
    }
}

/// Fills windows that readers are about to come to; without a thread left in the host, they wait for them.
fn read_ahead_of(files: &FileSystem) -> Option<Worker> {
    let files = files.clone();
    Worker::start("nvmed-ahead", move |stop| {
        files.read_ahead_by(std::thread::current());
        while !stop.load(Ordering::Acquire) {
            // What fails a check of our own memory turns the file system read-only.
            if !files.guarded(|| files.read_ahead()).unwrap_or(false) {
                std::thread::park();
            }
        }
    })
}

/// A thread that works for everybody until this is dropped, which unparks it.
struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// None where the host has no thread left.
    fn start(name: &str, work: impl FnOnce(&AtomicBool) + Send + 'static) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // It inherits the I/O class of the thread that starts it.
        let thread =
            nvmed_sys::spawn_quiet(name, move || caller::with(Urgency::Normal, || work(&stopped))).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread has been reported by its hook; there is nothing to add to it.
            let _ = thread.join();
        }
    }
}
