//! The kernel's links to what descriptors are of, `/proc/self/fd/N` (proc(5), symlink(7): magic links), made without
//! allocating: calls that may be made in a signal handler need them.

use core::ffi::{CStr, c_int};
use core::ops::Deref;

/// Where they are.
pub(crate) const DESCRIPTORS: &str = "/proc/self/fd/";
/// Bytes of the least number in digits.
const DIGITS_MAX: usize = "-2147483648".len();
/// Bytes of the longest, with its NUL.
const BYTES: usize = DESCRIPTORS.len() + DIGITS_MAX + 1;

/// The path by which the kernel finds what a descriptor is of; nothing behind one that is negative.
pub(crate) struct MagicLink {
    /// NUL to the end.
    bytes: [u8; BYTES],
}

impl MagicLink {
    pub(crate) fn of(fd: c_int) -> Self {
        let mut bytes = [0; BYTES];
        bytes[..DESCRIPTORS.len()].copy_from_slice(DESCRIPTORS.as_bytes());
        let start = DESCRIPTORS.len() + usize::from(fd < 0);
        bytes[DESCRIPTORS.len()..start].fill(b'-');
        let mut rest = fd.unsigned_abs();
        let digits = rest.checked_ilog10().unwrap_or(0) as usize + 1;
        for at in (start..start + digits).rev() {
            bytes[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Self { bytes }
    }
}

impl Deref for MagicLink {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_link() {
        for fd in [0, 7, 9, 10, 600, c_int::MAX, -1, c_int::MIN] {
            assert_eq!(MagicLink::of(fd).to_str(), Ok(format!("/proc/self/fd/{fd}").as_str()));
        }
    }
}
