//! What all nodes and files of a client process share: the connection to the server.

use crate::link::{Link, NO_ROOM, Reply, Talk};
use nvmed_fs::FsError;
use nvmed_sys::ForkLock;
use nvmed_wire::{Answer, BoardView, Call, Control, Handle, MediumView};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Core {
    /// The server's; the same for all processes.
    pub board: BoardView,
    /// The medium, once a window says where on it a file lies. Taken by who holds the socket, which a fork waits for.
    medium: ForkLock<Option<Arc<MediumView>>>,
    first: Link,
}

/// An answer of another kind than the call has.
pub(crate) const STRANGE: FsError = FsError::Host(Errno::PROTO);

impl Core {
    pub fn new(board: BoardView, first: Link) -> Self {
        Self { board, medium: ForkLock::new(None), first }
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

    /// The medium, mapped when it is first wanted; `talk` is the socket.
    ///
    /// # Errors
    /// The server has none for this process; the host has no room for a mapping.
    pub(crate) fn medium(&self, talk: &mut Talk<'_>) -> Result<Arc<MediumView>, FsError> {
        let mut medium = self.medium.lock();
        if let Some(medium) = medium.as_ref().filter(|medium| !medium.is_left()) {
            return Ok(Arc::clone(medium));
        }
        let (_, fd) = talk.ask(&Control::Medium, None)?;
        let opened = Arc::new(MediumView::open(fd.ok_or(NO_ROOM)?.as_fd())?);
        *medium = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// The process is about to have other ids: what the ids before could read of the medium is not seen any more. The
    /// caller has the socket, if there is one.
    pub(crate) fn leave_medium(&self) {
        self.medium.lock().iter().for_each(|medium| medium.leave());
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
