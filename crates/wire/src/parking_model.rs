//! Time and sleeping in a model: no time goes by, so whoever sleeps is woken or never wakes.

use core::time::Duration;
use nvmed_sys::atomic::AtomicU32;
use nvmed_sys::model;
use rustix::io::Errno;

pub(crate) const ALONE: Duration = Duration::from_millis(20);

pub(crate) fn now_ns() -> u64 {
    0
}

pub(crate) fn sleep(word: &AtomicU32, seen: u32, _: Duration) -> Result<(), Errno> {
    model::sleep(word, seen);
    Ok(())
}

pub(crate) fn wake(word: &AtomicU32, _: u32) {
    model::wake(word);
}

pub(crate) fn wake_all(word: &AtomicU32) {
    model::wake(word);
}

pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    model::sleep(word, seen);
}

pub(crate) fn wait_either(word: &AtomicU32, seen: u32, _: &AtomicU32, _: u32, _: Duration) {
    model::sleep(word, seen);
}
