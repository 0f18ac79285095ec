//! Calls that make, remove and change names.

use crate::answer::{Asker, path};
use crate::service::Service;
use nvmed_fs::{self as fs, FsError};
use nvmed_wire::{Call, Object};

impl Service {
    /// Carries a call about names out.
    ///
    /// # Errors
    /// Those of the call's manual page.
    pub(crate) fn name(&self, asker: &Asker<'_>, call: Call<'_>) -> Result<(), FsError> {
        let (files, who) = (asker.session.files(), &asker.who());
        match call {
            Call::Mkdir { at, path: name, mode } => files.mkdir(&asker.node(at)?, path(name)?, mode, who),
            Call::Mknod { at, path: name, mode, rdev } => {
                files.mknod(&asker.node(at)?, path(name)?, mode, rdev, who)
            }
            Call::Symlink { target, at, path: name } => {
                files.symlink(path(target)?, &asker.node(at)?, path(name)?, who)
            }
            Call::Link { object: Object::Held(handle), to, new } => {
                files.link(fs::Object::Held(&asker.node(handle)?), &asker.node(to)?, path(new)?, who)
            }
            Call::Link { object: Object::Path { at, path: old, follow }, to, new } => {
                let (from, to) = (asker.node(at)?, asker.node(to)?);
                files.link(fs::Object::At(&from, path(old)?, follow), &to, path(new)?, who)
            }
            Call::Rmdir { at, path: name } => {
                let (at, name) = (asker.node(at)?, path(name)?);
                self.with_nothing_kept(|| files.rmdir(&at, name, who))
            }
            Call::Unlink { at, path: name } => {
                let (at, name) = (asker.node(at)?, path(name)?);
                self.with_nothing_kept(|| files.unlink(&at, name, who))
            }
            Call::Rename { from, old, to, new, flags } => {
                let (from, old, to, new) = (asker.node(from)?, path(old)?, asker.node(to)?, path(new)?);
                self.with_nothing_kept(|| files.rename(&from, old, &to, new, flags, who))
            }
            _ => Err(FsError::NotSupported),
        }
    }
}
