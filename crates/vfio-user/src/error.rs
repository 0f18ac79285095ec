//! What goes wrong between two processes.

use crate::message::Command;
use rustix::io::Errno;

/// A message that breaks the protocol, or did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A size that no message has.
    #[error("a message of {bytes} bytes (command {command}); 16 to 65,616 are possible")]
    Size {
        /// The command's number.
        command: u16,
        /// The size in its header.
        bytes: u32,
    },
    /// The structure behind the header is cut short.
    #[error("{what} of {bytes} bytes; it needs {needed}")]
    Short {
        /// The structure.
        what: &'static str,
        /// Bytes that came.
        bytes: usize,
        /// Bytes that it has.
        needed: usize,
    },
    /// A value outside its range.
    #[error("{what} is {value:#x}: {why}")]
    Value {
        /// The field.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The JSON of a version message.
    #[error("the capabilities cannot be read: {why}")]
    Capabilities {
        /// What is wrong with them.
        why: String,
    },
    /// Another message than the one that must come now.
    #[error("a reply to command {got} with id {got_id}, where command {command} with id {id} was asked")]
    Unexpected {
        /// Command that was sent.
        command: u16,
        /// Its id.
        id: u16,
        /// Command that came.
        got: u16,
        /// Its id.
        got_id: u16,
    },
    /// The peer answered that the command failed.
    #[error("it refused {}: {}", named(*.command), reason(*.errno))]
    Refused {
        /// The command's number.
        command: u16,
        /// Its errno; 0 if it gave none.
        errno: u32,
    },
    /// The peer closed the connection.
    #[error("it closed the connection")]
    Closed,
    /// The peer was silent.
    #[error("it did not answer within {timeout_ms} ms")]
    Timeout {
        /// How long we waited.
        timeout_ms: u32,
    },
    /// The host refused a call on the socket.
    #[error("the socket failed: {errno}")]
    Socket {
        /// The host's answer.
        errno: Errno,
    },
}

/// A command by its name in the specification's list, or by its number.
fn named(command: u16) -> String {
    match Command::from_number(command) {
        Some(known) => format!("the command {known:?}"),
        None => format!("command {command}"),
    }
}

fn reason(errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(number) if number > 0 => Errno::from_raw_os_error(number).to_string(),
        _ => "no reason given".to_owned(),
    }
}

impl ProtocolError {
    /// The errno with which a reply tells the peer.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Size { .. } => Errno::MSGSIZE,
            Self::Closed => Errno::PIPE,
            Self::Timeout { .. } => Errno::TIMEDOUT,
            Self::Socket { errno } => *errno,
            Self::Refused { errno, .. } => match i32::try_from(*errno) {
                Ok(number) if number > 0 => Errno::from_raw_os_error(number),
                _ => Errno::IO,
            },
            _ => Errno::INVAL,
        }
    }
}

/// Why a device behind a socket cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody there.
    #[error("no connection to the vfio-user server at {path}: {errno}{hint}")]
    Connect {
        /// The socket.
        path: String,
        /// The host's answer.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
    /// Another process has the device.
    #[error("{path}: another client has the device; one at a time can use it, so end that one first")]
    Busy {
        /// The socket.
        path: String,
    },
    /// The server broke the protocol, refused, or was silent.
    #[error("the vfio-user server at {path} while {doing}: {error}")]
    Protocol {
        /// The socket.
        path: String,
        /// The step.
        doing: &'static str,
        /// What happened.
        error: ProtocolError,
    },
    /// It is a device, but none that can be driven.
    #[error("the device at {path} cannot be used: {why}")]
    Unsuitable {
        /// The socket.
        path: String,
        /// What is missing.
        why: &'static str,
    },
    /// No descriptor or memory on our side.
    #[error("no {what} for the device at {path}: {errno}")]
    Host {
        /// The socket.
        path: String,
        /// What could not be had.
        what: &'static str,
        /// The host's answer.
        errno: Errno,
    },
}

impl ClientError {
    /// The errno with which a program's call fails.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Connect { errno, .. } | Self::Host { errno, .. } => *errno,
            Self::Protocol { error, .. } => error.errno(),
            Self::Busy { .. } => Errno::BUSY,
            Self::Unsuitable { .. } => Errno::NODEV,
        }
    }
}

/// Why a device cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The socket cannot be made.
    #[error("the vfio-user socket {path} cannot be made: {errno}{hint}")]
    Bind {
        /// The socket.
        path: String,
        /// The host's answer.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
    /// Waiting for clients failed.
    #[error("the server cannot wait for clients at {path}: {errno}")]
    Wait {
        /// The socket.
        path: String,
        /// The host's answer.
        errno: Errno,
    },
}

impl ServerError {
    /// The host's answer; a path that another server has is busy.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Bind { errno: Errno::ADDRINUSE, .. } => Errno::BUSY,
            Self::Bind { errno, .. } | Self::Wait { errno, .. } => *errno,
        }
    }
}
