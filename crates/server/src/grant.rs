//! Which processes get a session, and what of the file system it sees.

use crate::peer::Peer;
use nvmed_fs::{FileSystem, FsError};
use nvmed_wire::SECRET_BYTES;
use std::sync::Arc;

/// What a session sees.
#[derive(Clone)]
pub struct Admitted {
    /// The file system, or a view of it: every call of the session goes through this value.
    pub files: FileSystem,
    /// The grant by which it sees that; empty is none.
    pub tree: Arc<str>,
    /// Whether it is believed when it says that a caller of its is urgent; else the kernel must say so of its process.
    pub may_be_urgent: bool,
}

/// Decides about processes that ask for a session. Its answers may change while it is asked.
pub trait Gate: Send + Sync {
    /// What a process sees that asks for a tree by name; an empty name leaves the choice to the gate.
    ///
    /// # Errors
    /// [`FsError::Access`] when it is not let in, or why its tree is not to be had.
    fn admit(&self, peer: &Peer, tree: &[u8]) -> Result<Admitted, FsError>;

    /// Counts changes of its answers: one that was given before a change may be wrong after it.
    fn changes(&self) -> u64;
}

/// Which processes get a session at all.
#[derive(Clone)]
pub enum Admission {
    /// Those that know the secret: the processes of a run, whatever ids they take on. They see everything; owners and
    /// mode bits decide about their calls.
    Secret([u8; SECRET_BYTES]),
    /// Those that a gate lets in.
    Gate(Arc<dyn Gate>),
}

impl Admission {
    /// Whether the processes of one run are let in, which one user has started.
    pub(crate) fn is_run(&self) -> bool {
        matches!(self, Self::Secret(_))
    }

    /// The file system as a new session sees it, which asks for the directory `tree` as its root.
    ///
    /// # Errors
    /// [`FsError::Access`] when it is not let in, [`FsError::NotSupported`] for a tree of a run; the gate's.
    pub(crate) fn admit(
        &self,
        files: &FileSystem,
        secret: &[u8],
        tree: &[u8],
        peer: &Peer,
    ) -> Result<Admitted, FsError> {
        match self {
            Self::Secret(own) if own != secret => Err(FsError::Access),
            Self::Secret(_) if !tree.is_empty() => Err(FsError::NotSupported),
            Self::Secret(_) => {
                Ok(Admitted { files: files.clone(), tree: Arc::default(), may_be_urgent: true })
            }
            Self::Gate(gate) => gate.admit(peer, tree),
        }
    }

    /// Whether a process that has changed its ids may go on with what it sees.
    ///
    /// # Errors
    /// [`FsError::Access`]; the gate's.
    pub(crate) fn keep(&self, tree: &str, peer: &Peer) -> Result<(), FsError> {
        match self {
            Self::Secret(_) => Ok(()),
            Self::Gate(gate) if *gate.admit(peer, tree.as_bytes())?.tree == *tree => Ok(()),
            Self::Gate(_) => Err(FsError::Access),
        }
    }

    /// Counts changes of the answers.
    pub(crate) fn changes(&self) -> u64 {
        match self {
            Self::Secret(_) => 0,
            Self::Gate(gate) => gate.changes(),
        }
    }
}
