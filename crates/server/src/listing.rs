//! Directories, in portions that fit a lane.

use crate::answer::put;
use crate::service::Service;
use crate::session::Session;
use core::ops::ControlFlow;
use nvmed_fs::{FsError, Whence};
use nvmed_wire::{Answer, CardBytes, DATA_BYTES_MAX, Data, Handle, put_entry};

impl Service {
    /// Entries after a cookie, or from the description's own place on, as many as fit into `bytes`.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when there is an entry and it does not fit (getdents(2)).
    pub(crate) fn read_directory(
        &self,
        session: &Session,
        handle: Handle,
        (after, bytes): (Option<u64>, u32),
        data: &mut Data,
    ) -> Result<Answer, FsError> {
        let description = session.description(handle)?;
        if let Some(cookie) = after {
            description.seek(i64::try_from(cookie).map_err(|_| FsError::Invalid)?, Whence::Set)?;
        }
        let room = (bytes as usize).min(DATA_BYTES_MAX);
        let node = description.node();
        let (mut entries, mut full, mut version) = (Vec::new(), false, None);
        description.tell(&session.user, &mut |entry| {
            if entry.cookie == 1 {
                // All names are looked at later.
                version = node.version();
            }
            full = !put_entry(&mut entries, room, &entry);
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if full && entries.is_empty() {
            return Err(FsError::Invalid);
        }
        if let Some(version) = version.filter(|_| !full && node.stat().nlink > 0) {
            self.show_whole(session, &node, CardBytes::whole(&entries, version));
        }
        Ok(Answer::Entries { bytes: put(data, &entries), last: !full })
    }
}
