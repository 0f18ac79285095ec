//! Programs of a run that no library can be loaded into: how many were started, and the first one's name, in a page
//! that the processes of the run share.

use core::sync::atomic::Ordering;
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::futex;

/// Environment variable that names the page, after what is done with such programs: `warn:/proc/PID/fd/N`.
pub const BEYOND_VARIABLE: &str = "NVMED_BEYOND";

const PAGE_BYTES: usize = 4096;
/// How many were started.
const COUNT: usize = 0;
/// Of the text: 0 none, 1 a process is writing it, 2 it is there. A futex word.
const STATE: usize = 4;
const TEXT_BYTES: usize = 8;
const TEXT: usize = 64;
const TEXT_BYTES_MAX: usize = 2048;

const WRITING: u32 = 1;
const WRITTEN: u32 = 2;

/// The page.
#[derive(Debug)]
pub struct Beyond {
    memory: Mapping,
}

impl Beyond {
    /// A new page, and its descriptor.
    ///
    /// # Errors
    /// The host has no memory or descriptor left.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let fd = rustix::fs::memfd_create("nvmed-beyond", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, PAGE_BYTES as u64)?;
        Ok((Self { memory: Mapping::shared(fd.as_fd(), 0, PAGE_BYTES, Pages::Base)? }, fd))
    }

    /// The page that another process has made.
    ///
    /// # Errors
    /// It cannot be reached; `EPROTO` for what is no such page.
    pub fn open(path: &str) -> Result<Self, Errno> {
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(QuietFd::new)?;
        if rustix::fs::fstat(&fd)?.st_size != PAGE_BYTES as i64 {
            return Err(Errno::PROTO);
        }
        Ok(Self { memory: Mapping::shared(fd.as_fd(), 0, PAGE_BYTES, Pages::Base)? })
    }

    /// One more was started. The first one's `text` stays.
    pub fn tell(&self, text: &[u8]) {
        self.memory.u32(COUNT).fetch_add(1, Ordering::Relaxed);
        let state = self.memory.u32(STATE);
        if state.compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        let text = &text[..text.len().min(TEXT_BYTES_MAX)];
        self.memory.write(TEXT, text);
        self.memory.u32(TEXT_BYTES).store(text.len() as u32, Ordering::Relaxed);
        state.store(WRITTEN, Ordering::Release);
        // Without a waiter, or a futex, it is read at the run's end.
        let _ = futex::wake(state, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// How many were started.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.memory.u32(COUNT).load(Ordering::Relaxed)
    }

    /// What was told of the first, in printable characters: any process of the run can write to the page.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        if self.memory.u32(STATE).load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        let bytes = self.memory.u32(TEXT_BYTES).load(Ordering::Relaxed) as usize;
        let mut text = vec![0; bytes.min(TEXT_BYTES_MAX)];
        self.memory.read(TEXT, &mut text);
        let text = String::from_utf8_lossy(&text);
        Some(text.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
    }

    /// Waits until something was told.
    pub fn wait(&self) -> String {
        loop {
            if let Some(text) = self.told() {
                return text;
            }
            let state = self.memory.u32(STATE);
            let seen = state.load(Ordering::Acquire);
            if seen != WRITTEN && futex::wait(state, futex::Flags::empty(), seen, None) == Err(Errno::NOSYS) {
                return String::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_named_and_all_are_counted() {
        let (page, fd) = Beyond::create().expect("a page");
        assert_eq!((page.count(), page.told()), (0, None));
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&fd));
        let other = Beyond::open(&path).expect("the page");
        other.tell(b"first\n\x1b[1m");
        page.tell(b"second");
        assert_eq!((page.count(), page.wait()), (2, "first??[1m".to_owned()));
        assert!(Beyond::open("/dev/null").is_err());
    }
}
