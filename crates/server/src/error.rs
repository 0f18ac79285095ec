//! Why a server cannot start, or has to end.

use rustix::io::Errno;

/// What keeps a server from serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The host refused a socket, memory, a descriptor or a thread.
    #[error("the server cannot have {what}: {errno}")]
    Host {
        /// What was asked for.
        what: &'static str,
        /// The host's answer.
        errno: Errno,
    },
    /// Another server listens there.
    #[error("{address}: another server is there; stop it, or choose another address")]
    Busy {
        /// Where.
        address: String,
    },
}

impl ServerError {
    /// For `map_err`: what was asked for when the host refused.
    pub(crate) fn host(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Host { what, errno }
    }
}
