//! Descriptors that a host program never notices.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Quiet descriptors lie from here up: programs choose numbers below (a shell up to 255), and expect the
/// kernel to give them the lowest ones.
const NUMBER_MIN: RawFd = 512;
/// Where they lie under low limits (`ulimit -n`), the first that is free.
const NUMBERS_LESS: [RawFd; 5] = [NUMBER_MIN, 200, 100, 50, 25];
/// One past the largest number that can be known as quiet; a process with more descriptors open has
/// other worries.
const QUIET_NUMBER_MAX: RawFd = 65_536;

/// A bit for each number that is a living [`QuietFd`]'s; public for code that cannot call [`is_quiet`].
pub static QUIET: [AtomicU64; QUIET_NUMBER_MAX as usize / 64] =
    [const { AtomicU64::new(0) }; QUIET_NUMBER_MAX as usize / 64];

/// No [`QuietFd`] has ever had a smaller number; public as [`QUIET`] is.
pub static QUIET_LEAST: AtomicI32 = AtomicI32::new(QUIET_NUMBER_MAX);

fn bit(number: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(number).ok()?;
    QUIET.get(index / 64).map(|word| (word, 1 << (index % 64)))
}

/// Whether a descriptor number is a living [`QuietFd`]'s, which the host program must not close.
#[inline]
#[must_use]
pub fn is_quiet(number: RawFd) -> bool {
    number >= QUIET_LEAST.load(Ordering::Relaxed) && is_marked(number)
}

fn is_marked(number: RawFd) -> bool {
    bit(number).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// In a forked child, which closes what its parent's [`QuietFd`]s were: the number is free for the program.
pub fn forget_quiet(number: RawFd) {
    if let Some((word, bit)) = bit(number) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// The first quiet descriptor from `number` up.
#[must_use]
pub fn next_quiet(number: RawFd) -> Option<RawFd> {
    let from = usize::try_from(number).ok()?;
    (from / 64..QUIET.len()).find_map(|index| {
        let below = if index == from / 64 { (1u64 << (from % 64)) - 1 } else { 0 };
        let word = QUIET[index].load(Ordering::Relaxed) & !below;
        (word != 0).then(|| (index * 64) as RawFd + word.trailing_zeros() as RawFd)
    })
}

fn moved(fd: OwnedFd) -> OwnedFd {
    let high = NUMBERS_LESS.iter().find_map(|&least| rustix::io::fcntl_dupfd_cloexec(&fd, least).ok());
    high.unwrap_or(fd)
}

/// A descriptor out of the way of the program around us: its number is high, exec closes it, and
/// [`is_quiet`] knows it while it lives.
#[derive(Debug)]
pub struct QuietFd(OwnedFd);

impl QuietFd {
    /// Moves `fd` out of the way: as high as the host's limit on descriptors leaves room.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        let is_there = fd.as_raw_fd() >= NUMBER_MIN
            && rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).is_ok();
        let fd = if is_there { fd } else { moved(fd) };
        if let Some((word, bit)) = bit(fd.as_raw_fd()) {
            QUIET_LEAST.fetch_min(fd.as_raw_fd(), Ordering::Relaxed);
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(fd)
    }
}

impl Drop for QuietFd {
    fn drop(&mut self) {
        // Before the number is free again.
        forget_quiet(self.0.as_raw_fd());
    }
}

impl AsFd for QuietFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for QuietFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_number_is_free_again_and_the_high_one_is_known_while_it_lives() {
        let fd = rustix::fs::memfd_create("quiet", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let low = fd.as_raw_fd();
        let quiet = QuietFd::new(fd);
        let number = quiet.as_raw_fd();
        assert!(number >= NUMBER_MIN && is_quiet(number) && !is_quiet(low));
        assert!(rustix::io::write(&quiet, b"x").is_ok());
        assert!(next_quiet(0).is_some_and(|first| first <= number));
        assert_eq!(next_quiet(number), Some(number));
        assert!(next_quiet(number + 1).is_none_or(|next| next > number));
        drop(quiet);
        assert!(!is_quiet(number) && !is_quiet(-1) && !is_quiet(RawFd::MAX));
    }
}
