//! Where a server listens.

use crate::message::SECRET_BYTES;
use core::fmt;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// The environment variable by which the processes of a run find its server.
pub const SERVER_VARIABLE: &str = "NVMED_SERVER";

/// Where a server listens, as `NVMED_SERVER` says it: `NAME:SECRET` of an abstract socket, with the secret in
/// hexadecimal, or an absolute path.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// A run's server.
    Abstract {
        /// The socket's name; it has neither `:` nor `/`.
        name: String,
        /// What shows that a process belongs to the run.
        secret: [u8; SECRET_BYTES],
    },
    /// The machine's server.
    Path(String),
}

impl Address {
    /// What an environment variable says; none if it says nothing that could be an address.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            return Some(Self::Path(text.to_owned()));
        }
        let (name, hex) = text.split_once(':')?;
        let digits = hex.as_bytes();
        let named = !name.is_empty() && !name.contains('/');
        if !named || digits.len() != 2 * SECRET_BYTES {
            return None;
        }
        let mut secret = [0; SECRET_BYTES];
        for (byte, pair) in secret.iter_mut().zip(digits.chunks(2)) {
            let digit = |of: u8| char::from(of).to_digit(16);
            *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
        }
        Some(Self::Abstract { name: name.to_owned(), secret })
    }

    /// A new address of a run, that nobody can guess.
    ///
    /// # Errors
    /// The host has no randomness.
    pub fn random() -> Result<Self, Errno> {
        let mut bytes = [0; 8 + SECRET_BYTES];
        random(&mut bytes)?;
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&bytes[8..]);
        let name: String = bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self::Abstract { name: format!("nvmed-{name}"), secret })
    }

    /// The secret that a client sends at the start of a session.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        match self {
            Self::Abstract { secret, .. } => secret,
            Self::Path(_) => &[],
        }
    }

    pub(crate) fn socket(&self) -> Result<SocketAddrUnix, Errno> {
        match self {
            Self::Abstract { name, .. } => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            Self::Path(path) => SocketAddrUnix::new(path.as_str()),
        }
    }
}

/// Fills `into` with random bytes.
///
/// # Errors
/// The host has none.
pub fn random(into: &mut [u8]) -> Result<(), Errno> {
    if cfg!(feature = "model") {
        // Each run of a model is to find the same.
        into.fill(1);
        return Ok(());
    }
    let mut done = 0;
    while done < into.len() {
        match rustix::rand::getrandom(&mut into[done..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.write_str(path),
            Self::Abstract { name, secret } => {
                write!(f, "{name}:")?;
                secret.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Without the secret.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "Address({path})"),
            Self::Abstract { name, .. } => write!(f, "Address({name}:…)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let run = Address::random().unwrap();
        assert_eq!(Address::parse(&run.to_string()), Some(run.clone()));
        assert_ne!(Address::random().unwrap(), run);
        let path = Address::parse("/run/nvmed/socket").unwrap();
        assert_eq!((path.to_string().as_str(), path.secret()), ("/run/nvmed/socket", &[][..]));
        assert!(!format!("{run:?}").contains(&run.to_string()[run.to_string().len() - 32..]));
        for bad in ["", "x", "x:", ":00", "x:zz", "a/b:00000000000000000000000000000000", "x:000"] {
            assert_eq!(Address::parse(bad), None, "{bad}");
        }
    }
}
