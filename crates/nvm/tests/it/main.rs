//! The tests of this crate from outside, in one program.

mod buffer;
mod cuts;
mod files;
mod program;
mod queues;
mod syncs;
mod time;
mod views;

use nvmed_nvm::{FlushTo, Memory, MemoryOptions, Place};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("nvmed-nvm-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }

    fn image(&self) -> PathBuf {
        self.0.join("disk.img")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn file(path: &Path, size: Option<u64>, flush: FlushTo) -> MemoryOptions {
    MemoryOptions { place: Place::File { path: path.to_owned(), size, lock: true }, flush }
}

fn ram(bytes: u64) -> Arc<Memory> {
    let options = MemoryOptions { place: Place::Ram { bytes }, flush: FlushTo::Process };
    Arc::new(Memory::open(options).expect("memory"))
}

/// Held by tests of which one makes a deliberate mistake, which is the whole process's.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
