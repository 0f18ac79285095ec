//! The namespace's size, which may change while the controller runs (Base 2.0, 5.2: notices).

use crate::controller::Controller;
use crate::io_command::NSID;
use nvmed_image::MediaError;
use nvmed_nvme::AsyncEvent;
use std::sync::atomic::Ordering;

/// Bytes of the Changed Namespace List: 1024 identifiers.
const LIST_BYTES: usize = 4096;

impl Controller {
    /// Logical blocks of the namespace now.
    #[inline]
    pub(crate) fn lba_count(&self) -> u64 {
        self.lbas.load(Ordering::Relaxed)
    }

    /// Changes the namespace's size, whose host is told by an event (Namespace Attribute Changed) if it wants
    /// such events. What is beyond a smaller size is lost; when this returns, no command touches it any more.
    ///
    /// # Errors
    /// The size is no whole number of pages, or more than the medium has room for; nothing has changed then.
    pub fn resize(&self, bytes: u64) -> Result<(), MediaError> {
        let _one = self.resizing.lock();
        let before = self.media.bytes();
        self.media.check_room(bytes)?;
        let room = self.config.drive_bytes();
        if bytes > room {
            return Err(MediaError::Room { bytes, room });
        }
        if bytes < before {
            self.lbas.store(bytes >> self.lba_shift, Ordering::Release);
            // Commands that saw the old size are done after this.
            self.settle();
        }
        self.media.resize(bytes)?;
        self.lbas.store(bytes >> self.lba_shift, Ordering::Release);
        if bytes != before {
            self.namespace_changed();
        }
        Ok(())
    }

    fn namespace_changed(&self) {
        let mut admin = self.admin.lock();
        admin.namespace_changed = true;
        let wanted = admin.features.namespace_event();
        drop(admin);
        if wanted {
            self.event(AsyncEvent::NAMESPACE_CHANGED);
        }
    }

    /// The Changed Namespace List (Base 2.0, 5.16.1.5), which reading empties.
    pub(crate) fn changed_namespaces(&self) -> Vec<u8> {
        let mut list = vec![0; LIST_BYTES];
        if self.admin.lock().namespace_changed {
            list[..4].copy_from_slice(&NSID.to_le_bytes());
        }
        list
    }
}
