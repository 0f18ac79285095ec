//! Why a line, a record or a row is no request.

use crate::request::RequestError;

/// A line or a record that is no request of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A column is not there.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// A column is no number, or one that is too large.
    #[error("its {0} is not a number in range")]
    Number(&'static str),
    /// What it does is not known.
    #[error("its operation is not known")]
    Op,
    /// It cannot be a request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A name is too long, or there are too many.
    #[error("it has a name of more than 255 bytes, or one more than the 2^20 that a trace may have")]
    Names,
    /// The line is too long.
    #[error("it is longer than 64 KiB")]
    Long,
    /// It comes too late to be put in order.
    #[error("it arrives before a request of its device that is more than 65,536 requests back")]
    Late,
    /// It begins as no line or record of the format does.
    #[error("it is not a line or a record of this format")]
    Foreign,
    /// Its path leads elsewhere.
    #[error("its path is not below the directory that was recorded")]
    Elsewhere,
    /// Nothing says which paths are meant.
    #[error("the file does not say which directory was recorded: --below DIR does")]
    NoDirectory,
    /// The file ends within it.
    #[error("the file ends in the middle of it")]
    Cut,
}
