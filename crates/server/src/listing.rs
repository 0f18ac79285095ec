//! Directories, in portions that fit a lane.

use crate::answer::put;
use crate::service::Service;
use crate::session::Session;
use core::ops::ControlFlow;
use nvmed_fs::FsError;
use nvmed_wire::{Answer, DATA_BYTES_MAX, Data, Handle, put_entry};

impl Service {
    /// Entries from the description's offset on, as many as fit into `bytes`.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when there is an entry and it does not fit (getdents(2)).
    pub(crate) fn read_directory(
        &self,
        session: &Session,
        handle: Handle,
        bytes: u32,
        data: &mut Data,
    ) -> Result<Answer, FsError> {
        let description = session.description(handle)?;
        let room = (bytes as usize).min(DATA_BYTES_MAX);
        let mut entries = Vec::new();
        let mut full = false;
        description.tell(&session.user, &mut |entry| {
            full = !put_entry(&mut entries, room, &entry);
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if full && entries.is_empty() {
            return Err(FsError::Invalid);
        }
        Ok(Answer::Entries(put(data, &entries)))
    }
}
