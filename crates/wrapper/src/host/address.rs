//! Addresses of sockets that have a path (unix(7)).
//!
//! The host knows a socket that is bound to a name of ours by the name that it had for a moment in a directory of its
//! own. That name holds the path that the program gave, so a process that gets the host's address can read the
//! program's path in it, without a call.

use crate::edge::given;
use crate::find::magic_link::{DESCRIPTORS, MagicLink};
use core::ffi::c_int;
use core::mem::{MaybeUninit, offset_of, size_of};
use core::ops::Deref;
use libc::{sa_family_t, sockaddr, sockaddr_un, socklen_t};
use std::ffi::{CStr, CString};

/// Where the path begins.
const START: usize = offset_of!(sockaddr_un, sun_path);
/// Bytes of a path at most, with its NUL.
const PATH_BYTES: usize = size_of::<sockaddr_un>() - START;
/// What the host's names of our sockets begin with, and what stands for a slash in them.
const MARK: u8 = 2;

/// An address of our own making.
pub(crate) struct Address {
    given: sockaddr_un,
    len: socklen_t,
}

impl Address {
    /// The address that is a path; `None` when it is too long for one.
    pub(crate) fn of(path: &[u8]) -> Option<Self> {
        let mut given = sockaddr_un { sun_family: libc::AF_UNIX as sa_family_t, sun_path: [0; PATH_BYTES] };
        if path.len() >= PATH_BYTES {
            return None;
        }
        for (into, &byte) in given.sun_path.iter_mut().zip(path) {
            *into = byte.cast_signed();
        }
        Some(Self { given, len: (START + path.len() + 1) as socklen_t })
    }

    /// The address at which the host binds a socket, in the directory behind descriptor `fd`, and its name there.
    pub(crate) fn to_bind(fd: c_int, path: &[u8]) -> Option<(Self, CString)> {
        let slashes = path.iter().map(|&byte| if byte == b'/' { MARK } else { byte });
        let name: Vec<u8> = [MARK].into_iter().chain(slashes).collect();
        let within = |name: &[u8]| Self::of(&[MagicLink::of(fd).to_bytes(), b"/", name].concat());
        // A path that is too long is not told.
        let (address, name) = match within(&name) {
            Some(address) => (address, name),
            None => (within(&[MARK])?, vec![MARK]),
        };
        Some((address, CString::new(name).ok()?))
    }

    pub(crate) fn as_ptr(&self) -> *const sockaddr {
        (&raw const self.given).cast()
    }

    pub(crate) fn len(&self) -> socklen_t {
        self.len
    }
}

/// A path in an address, copied from there: calls with addresses may be made in a signal handler, which cannot
/// allocate.
pub(crate) struct SocketPath {
    /// NUL to the end; an address may have no room for that.
    bytes: [u8; PATH_BYTES + 1],
}

impl SocketPath {
    /// A path without its NUL, that is no longer than an address.
    fn of(path: &[u8]) -> Option<Self> {
        let mut bytes = [0; PATH_BYTES + 1];
        bytes.get_mut(..path.len()).filter(|room| room.len() <= PATH_BYTES)?.copy_from_slice(path);
        Some(Self { bytes })
    }

    /// The path to which a program of ours bound a socket that the host has bound to `path`.
    fn bound(path: &[u8]) -> Option<Self> {
        let rest = path.strip_prefix(DESCRIPTORS.as_bytes())?;
        let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let name = rest[digits..].strip_prefix(&[b'/', MARK]).filter(|name| !name.is_empty())?;
        let mut told = Self::of(name)?;
        told.bytes.iter_mut().filter(|byte| **byte == MARK).for_each(|byte| *byte = b'/');
        Some(told)
    }
}

impl Deref for SocketPath {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// Room for the path in an address.
type Room = [MaybeUninit<u8>; PATH_BYTES];

/// The path in a socket address of the program's, if it has one: neither abstract nor of another family. An address
/// that is not there is the kernel's to refuse.
fn path_in(address: *const sockaddr, len: socklen_t, room: &mut Room) -> Option<&[u8]> {
    // The kernel refuses what is longer.
    let bytes = (len as usize).checked_sub(START).filter(|&bytes| bytes <= PATH_BYTES)?;
    if address.is_null() || c_int::from(given::get(address.cast::<sa_family_t>()).ok()?) != libc::AF_UNIX {
        return None;
    }
    let path = given::fill(&mut room[..bytes], address.cast::<u8>().wrapping_add(START)).ok()?;
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(bytes);
    (end > 0).then(|| &path[..end])
}

const fn room() -> Room {
    [MaybeUninit::uninit(); PATH_BYTES]
}

/// The path that a program means by an address; its own, when it was told the host's.
pub(crate) fn path(address: *const sockaddr, len: socklen_t) -> Option<SocketPath> {
    let mut room = room();
    let path = path_in(address, len, &mut room)?;
    SocketPath::bound(path).or_else(|| SocketPath::of(path))
}

/// Whether an address is a path.
pub(crate) fn is_path(address: *const sockaddr, len: socklen_t) -> bool {
    path_in(address, len, &mut room()).is_some()
}

/// Whether an address is this path as it stands.
pub(crate) fn is(address: *const sockaddr, len: socklen_t, path: &CStr) -> bool {
    path_in(address, len, &mut room()).is_some_and(|given| given == path.to_bytes())
}

/// Puts the path that a program bound in the place of the host's, in an address that the kernel has filled as far as
/// `room` bytes go; `len` says how long it is.
///
/// # Safety
/// The program wants an address of `room` bytes there, and its length at `len`.
pub(crate) unsafe fn tell(address: *mut sockaddr, room: socklen_t, len: *mut socklen_t) {
    let Some(filled) = given::get(len).ok().filter(|filled| *filled <= room) else { return };
    let mut copy = self::room();
    let Some(path) = path_in(address, filled, &mut copy).and_then(SocketPath::bound) else { return };
    let path = path.to_bytes_with_nul();
    // Shorter than what is there.
    // SAFETY: the caller's contract.
    unsafe {
        // What the kernel has just filled has gone meanwhile: nobody will look.
        let _ = given::put_bytes(address.cast::<u8>().wrapping_add(START), path);
        let _ = given::put(len, &((START + path.len()) as socklen_t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_is_told_tells_the_path() {
        for path in [&b"/srv/data/s"[..], b"s", b"./a/b", b"../s"] {
            let (address, name) = Address::to_bind(700, path).unwrap();
            let mut given = address.given;
            let mut len = address.len();
            let room = size_of::<sockaddr_un>() as socklen_t;
            assert_eq!(super::path(address.as_ptr(), len).unwrap().to_bytes(), path);
            // SAFETY: a whole address.
            unsafe { tell((&raw mut given).cast(), room, &raw mut len) };
            assert!(is((&raw const given).cast(), len, &CString::new(path).unwrap()));
            assert!(!name.to_bytes().contains(&b'/'));
        }
    }

    #[test]
    fn a_path_that_is_too_long_is_bound_and_not_told() {
        let (address, name) = Address::to_bind(700, &[b'x'; 100]).unwrap();
        assert_eq!(name.to_bytes(), [MARK]);
        let told = super::path(address.as_ptr(), address.len());
        assert_eq!(told.unwrap().to_bytes(), b"/proc/self/fd/700/\x02");
        assert!(Address::of(&[b'x'; PATH_BYTES]).is_none());
    }

    #[test]
    fn an_address_may_be_full_and_lie_anywhere() {
        let mut buffer = [b'x'; size_of::<sockaddr_un>() + 1];
        for at in [0, 1] {
            buffer[at..at + START].copy_from_slice(&(libc::AF_UNIX as sa_family_t).to_ne_bytes());
            let found = super::path(buffer[at..].as_ptr().cast(), size_of::<sockaddr_un>() as socklen_t);
            assert_eq!(found.unwrap().to_bytes(), [b'x'; PATH_BYTES]);
        }
    }

    #[test]
    fn what_is_cut_short_or_somebody_elses_stays() {
        for path in [&b"/proc/self/fd/x/\x02s"[..], b"/proc/self/fd/7/s", b"/run/socket"] {
            assert!(SocketPath::bound(path).is_none());
        }
        let (address, _) = Address::to_bind(700, b"/a/s").unwrap();
        let (mut given, mut len) = (address.given, address.len());
        // SAFETY: a whole address, of which the program has room for less.
        unsafe { tell((&raw mut given).cast(), 22, &raw mut len) };
        assert_eq!((len, given.sun_path), (address.len(), address.given.sun_path));
    }
}
