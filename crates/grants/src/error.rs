//! What can be wrong with grants.

use nvmed_fs::FsError;
use nvmed_stack::StackError;
use rustix::io::Errno;

/// Why grants cannot be had, kept or changed. The text is one line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The table cannot be opened, read or written.
    #[error("{path}: {what}: {errno}")]
    File {
        /// Which.
        path: String,
        /// What was done with it.
        what: &'static str,
        /// What the host answered.
        errno: Errno,
    },
    /// Somebody else could have written the table.
    #[error(
        "{path} is not to be trusted: {what}; it must be root's or the server's own, and only its owner may write it"
    )]
    Untrusted {
        /// The table, or its directory.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The table makes no sense.
    #[error("{path}: {what}")]
    Syntax {
        /// Which.
        path: String,
        /// Where and why.
        what: String,
    },
    /// A grant makes no sense, or not beside the others.
    #[error("`{name}`: {what}")]
    Grant {
        /// Which.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// No grant has this name.
    #[error("no grant has the name `{name}`; `nvmed admin grants` lists them")]
    Unknown {
        /// The name.
        name: String,
    },
    /// A directory, or what is counted in it.
    #[error("`{name}`: {path}: {error}")]
    Tree {
        /// The grant.
        name: String,
        /// Its directory.
        path: String,
        /// What the file system answered.
        error: FsError,
    },
    /// The device or a socket.
    #[error(transparent)]
    Stack(#[from] StackError),
}
