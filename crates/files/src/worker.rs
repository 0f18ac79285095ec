//! Threads for what no device can be asked to do alone: asynchronous calls through the cache, fsync.

use nvmed_fs::FsError;
use nvmed_sys::sync::{Arc, Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Threads of one mount: calls of one file stay in order on one of them, calls of different files overlap.
const WORKERS: usize = 2;

type Call = Box<dyn FnOnce() -> Result<usize, FsError> + Send>;

/// One call.
pub(crate) struct Job {
    result: Mutex<Option<Result<usize, FsError>>>,
    over: Condvar,
    done: AtomicBool,
}

struct Lane {
    calls: Mutex<Calls>,
    more: Condvar,
}

#[derive(Default)]
struct Calls {
    waiting: VecDeque<(Arc<Job>, Call)>,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

/// The threads of a mount; each starts with its first call.
pub(crate) struct Workers([Arc<Lane>; WORKERS]);

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("done", &self.is_done()).finish()
    }
}

impl Job {
    fn new() -> Arc<Self> {
        Arc::new(Self { result: Mutex::new(None), over: Condvar::new(), done: AtomicBool::new(false) })
    }

    fn end(&self, result: Result<usize, FsError>) {
        *self.result.lock() = Some(result);
        self.done.store(true, Ordering::Release);
        self.over.notify_all();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Waits, and takes the result; a second time there is none, which is no failure of the call.
    pub(crate) fn wait(&self) -> Result<usize, FsError> {
        let mut result = self.result.lock();
        while !self.is_done() {
            result = self.over.wait(result);
        }
        result.take().unwrap_or(Ok(0))
    }
}

impl Lane {
    fn work(&self) {
        let mut calls = self.calls.lock();
        loop {
            if let Some((job, call)) = calls.waiting.pop_front() {
                drop(calls);
                job.end(call());
                calls = self.calls.lock();
            } else if calls.stop {
                return;
            } else {
                calls = self.more.wait(calls);
            }
        }
    }
}

impl Workers {
    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| Arc::new(Lane { calls: Mutex::default(), more: Condvar::new() })))
    }

    /// Has a thread make `call`; calls with the same `order` are made one after the other. Where the host gives no
    /// thread, and after [`Workers::stop`], it is made here.
    pub(crate) fn run(&self, order: u64, call: Call) -> Arc<Job> {
        let job = Job::new();
        let lane = &self.0[(order % WORKERS as u64) as usize];
        let mut calls = lane.calls.lock();
        if calls.thread.is_none() && !calls.stop {
            let own = Arc::clone(lane);
            calls.thread = nvmed_sys::spawn_quiet("nvmed-files", move || own.work()).ok();
        }
        if calls.thread.is_none() {
            drop(calls);
            job.end(call());
        } else {
            calls.waiting.push_back((Arc::clone(&job), call));
            drop(calls);
            lane.more.notify_one();
        }
        job
    }

    /// Waits for every call, and ends the threads.
    pub(crate) fn stop(&self) {
        for lane in &self.0 {
            let thread = {
                let mut calls = lane.calls.lock();
                calls.stop = true;
                calls.thread.take()
            };
            lane.more.notify_all();
            if let Some(thread) = thread
                && thread.thread().id() != std::thread::current().id()
            {
                // A panic in the thread was reported by its hook.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}
