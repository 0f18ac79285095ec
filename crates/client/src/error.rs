//! Why there is no session.

use nvmed_wire::SocketError;
use rustix::io::Errno;

/// Why a process cannot use the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No server listens there.
    #[error("no server listens at the address of the shared mount ({0}); is it still running?")]
    NoServer(Errno),
    /// It hung up, or died.
    #[error("the server of the shared mount is gone")]
    Gone,
    /// Its answer makes no sense.
    #[error(
        "the server of the shared mount answers what this library does not understand; are both of one version of \
         nvmed?"
    )]
    Protocol,
    /// It refuses.
    #[error("the server of the shared mount refuses this process: {}", refusal(*.0))]
    Refused(Errno),
    /// The host refuses memory or a descriptor.
    #[error("the host refused memory or a descriptor for the session with the server: {0}")]
    Host(Errno),
}

fn refusal(errno: Errno) -> String {
    match errno {
        Errno::PROTO => "the library and the server are of different versions of nvmed".to_owned(),
        Errno::ACCESS | Errno::PERM => "permission denied".to_owned(),
        errno => errno.to_string(),
    }
}

impl ClientError {
    /// The errno that a program gets.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(errno) | Self::Host(errno) => *errno,
            Self::NoServer(_) | Self::Gone | Self::Protocol => Errno::IO,
        }
    }
}

impl From<SocketError> for ClientError {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Gone => Self::Gone,
            SocketError::Host(errno) => Self::Host(errno),
            _ => Self::Protocol,
        }
    }
}
