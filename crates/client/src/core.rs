//! What all nodes and files of a client process share: the connection to the server.

use crate::link::{Link, Reply, Talk};
use nvmed_fs::FsError;
use nvmed_wire::{Answer, BoardView, Call, Handle};
use rustix::io::Errno;

#[derive(Debug)]
pub(crate) struct Core {
    /// The server's; the same for all processes.
    pub board: BoardView,
    first: Link,
}

/// An answer of another kind than the call has.
pub(crate) const STRANGE: FsError = FsError::Host(Errno::PROTO);

impl Core {
    pub fn new(board: BoardView, first: Link) -> Self {
        Self { board, first }
    }

    /// This process's link: behind those of the processes from which it was forked.
    #[inline]
    pub fn link(&self) -> &Link {
        let mut link = &self.first;
        while let Some(next) = link.next.get() {
            link = next;
        }
        link
    }

    /// Makes a call with data.
    ///
    /// # Errors
    /// What the server answers; `EIO` once it is gone.
    #[inline]
    pub(crate) fn call_with(&self, call: &Call<'_>, data: &[u8]) -> Result<Reply<'_>, FsError> {
        self.link().call(&self.board, call, data)
    }

    /// Makes a call.
    ///
    /// # Errors
    /// As [`Core::call_with`].
    #[inline]
    pub fn call(&self, call: &Call<'_>) -> Result<Reply<'_>, FsError> {
        self.call_with(call, &[])
    }

    /// Makes a call that is answered by its being done.
    ///
    /// # Errors
    /// As [`Core::call_with`].
    pub fn done(&self, call: &Call<'_>) -> Result<(), FsError> {
        match self.call(call)?.answer {
            Answer::Done => Ok(()),
            _ => Err(STRANGE),
        }
    }

    /// Makes a call that is answered by bytes.
    ///
    /// # Errors
    /// As [`Core::call_with`].
    pub fn bytes(&self, call: &Call<'_>) -> Result<Vec<u8>, FsError> {
        let reply = self.call(call)?;
        match reply.answer {
            Answer::Data(_) => Ok(reply.to_vec()),
            _ => Err(STRANGE),
        }
    }

    /// Gives a handle up: by a post, without waiting, unless another process has to learn of it at once (`is_told`).
    pub(crate) fn let_go(&self, handle: Handle, is_told: bool) {
        if is_told || !self.link().post(handle) {
            // Without a server nothing is held.
            let _ = self.done(&Call::Close { handle, last: true, record_locks: false });
        }
    }

    /// The socket.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub(crate) fn talk(&self) -> Result<Talk<'_>, FsError> {
        self.link().socket()
    }
}
