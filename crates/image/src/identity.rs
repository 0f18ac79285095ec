//! What tells a device from all others: hosts take two with the same identifiers for two paths to one.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, readlink};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// The attribute that an image is made with: its identity in hexadecimal digits, since an image has no header.
const ATTRIBUTE: &str = "user.nvmed.identity";
/// Hexadecimal digits of an identity.
const DIGITS: usize = 32;
/// Controller identifiers from here on are reserved (Base 2.0, figure 275).
const CONTROLLER_IDS: u64 = 0xfff0;

/// 128 bits that no two media share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u128);

impl Identity {
    /// Of a medium that a serial number tells from all others.
    pub const NONE: Self = Self(0);

    /// As it is written down.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Of a medium that ends with its process.
    #[must_use]
    pub fn drawn() -> Self {
        let mut bytes = [0; 16];
        // Linux gives so few bytes always, once it has started.
        let _ = getrandom(&mut bytes, GetRandomFlags::empty());
        Self(u128::from_ne_bytes(bytes))
    }

    /// Of an image: its attribute; where it has none, its path without links. One that is being `made` is given an
    /// attribute; to look at another changes nothing.
    pub(crate) fn of_image(image: impl AsFd, made: bool) -> Self {
        let image = image.as_fd();
        let kept = Self::kept(image).or_else(|errno| if made { Self::keep(image) } else { Err(errno) });
        kept.unwrap_or_else(|_| Self::of_path(image))
    }

    /// What it was made with.
    fn kept(image: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut digits = [0; DIGITS];
        let found = fgetxattr(image, ATTRIBUTE, &mut digits)?;
        let text = core::str::from_utf8(&digits[..found]).ok().filter(|text| text.len() == DIGITS);
        text.and_then(|text| u128::from_str_radix(text, 16).ok()).map(Self).ok_or(Errno::BADMSG)
    }

    fn keep(image: BorrowedFd<'_>) -> Result<Self, Errno> {
        let drawn = Self::drawn();
        match fsetxattr(image, ATTRIBUTE, format!("{:032x}", drawn.0).as_bytes(), XattrFlags::CREATE) {
            Ok(()) => Ok(drawn),
            // Another process came first, or somebody else's attribute is there.
            Err(Errno::EXIST) => Self::kept(image),
            Err(errno) => Err(errno),
        }
    }

    fn of_path(image: BorrowedFd<'_>) -> Self {
        let link = format!("/proc/self/fd/{}", image.as_raw_fd());
        readlink(link, Vec::new()).map_or_else(
            |_| Self::drawn(),
            |path| {
                Self(
                    u128::from(fnv(path.as_bytes())) << 64
                        | u128::from(fnv(&[path.as_bytes(), b"/"].concat())),
                )
            },
        )
    }

    /// The serial number of a device that was given none: 20 characters.
    #[must_use]
    pub fn serial(self) -> String {
        format!("nvmed-{:014x}", self.0 >> 72)
    }

    /// Controller identifier: two controllers that were given one serial number are in one subsystem.
    #[must_use]
    pub fn controller(self) -> u16 {
        1 + (fnv(&self.0.to_le_bytes()) % (CONTROLLER_IDS - 1)) as u16
    }

    /// A locally administered identifier of the namespace. Two images that were given one serial number differ in
    /// it, and so do two copies of one image that were given two.
    #[must_use]
    pub fn eui64(self, serial: &str) -> [u8; 8] {
        let mut bytes = fnv(&[&self.0.to_le_bytes(), serial.as_bytes()].concat()).to_be_bytes();
        bytes[0] = 0x02;
        bytes
    }
}

/// FNV-1a of 64 bits, of which names are made that no two devices share.
#[must_use]
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
