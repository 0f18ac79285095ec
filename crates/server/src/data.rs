//! Calls that move data, or that are about an open description.

use crate::answer::Asker;
use crate::description::Description;
use crate::service::Service;
use crate::session::Session;
use nvmed_fs::{FsError, Node, OpenFlags};
use nvmed_wire::{Answer, Call, DATA_BYTES_MAX, Data, Handle, Mark, Object};
use std::num::NonZeroU64;

impl Service {
    /// Reads at an offset, or at the description's own, which moves.
    pub(crate) fn read(
        &self,
        session: &Session,
        handle: Handle,
        offset: Option<u64>,
        bytes: u32,
        data: &mut Data,
    ) -> Result<Answer, FsError> {
        let description = session.description(handle)?;
        self.end_grant(description.node().ino());
        let into = data.room((bytes as usize).min(DATA_BYTES_MAX));
        let Some(offset) = offset else {
            return Ok(Answer::Data(description.read(into)? as u32));
        };
        let version = self.before_read(session, &description);
        let read = description.pread(into, offset)?;
        self.windows.read(&description, offset..offset.saturating_add(read as u64));
        if let Some(version) = version {
            self.show_bytes(session, &description, (&into[..read], offset), version);
        }
        Ok(Answer::Data(read as u32))
    }

    /// Writes at an offset; without one at the description's own, or at the end with `O_APPEND`. With `sync` the file's
    /// bytes are durable then, or the next sync says why not.
    pub(crate) fn write(
        &self,
        session: &Session,
        handle: Handle,
        offset: Option<u64>,
        from: &[u8],
        sync: bool,
    ) -> Result<Answer, FsError> {
        let description = session.description(handle)?;
        self.end_grant(description.node().ino());
        let (written, offset, count) = self.write_there(&description, offset, from)?;
        let durable = if sync { self.sync_at_once(&description, count) } else { None };
        Ok(Answer::Written { bytes: written as u32, offset, durable })
    }

    /// How much was written, the offset after it, and the file's count then, unless others change it too.
    pub(crate) fn write_there(
        &self,
        description: &Description,
        offset: Option<u64>,
        from: &[u8],
    ) -> Result<(usize, u64, Option<NonZeroU64>), FsError> {
        let changing = self.windows.changing(description.node().ino());
        let appends = description.flags().has(OpenFlags::APPEND);
        if let Some(offset) = offset {
            let write = || description.pwrite(from, offset);
            let written = if appends {
                changing.append(description, from, write)?
            } else {
                changing.write(description, offset, from, write)?
            };
            return Ok((written, offset.saturating_add(written as u64), changing.end()));
        }
        let (written, offset) = if appends {
            let written = changing.append(description, from, || description.write(from))?;
            // Another process that shares the offset may have moved it on; who keeps it himself has it alone.
            (written, description.position())
        } else {
            description.at_offset(|offset| {
                changing.write(description, offset, from, || description.pwrite(from, offset))
            })?
        };
        Ok((written, offset, changing.end()))
    }

    /// Makes the file durable whose count was `count` after a write, and what fdatasync does besides; the mark that
    /// shows it. None when no mark would: nothing is done then, or it has failed, which the next sync says.
    fn sync_at_once(&self, description: &Description, count: Option<NonZeroU64>) -> Option<Mark> {
        let (mark, ino) = (self.board.mark(count?)?, description.node().ino());
        // In this order: what is stored, or owed, later than this look changes the mark.
        if self.windows.is_stored(ino) || description.owed().is_due() {
            return None;
        }
        if let Err(error) = description.fdatasync() {
            description.owed().owe(error.errno());
            drop(self.board.change(ino));
            return None;
        }
        Some(mark)
    }

    /// Sets the size of a file.
    pub(crate) fn truncate(&self, asker: &Asker<'_>, object: Object<'_>, bytes: u64) -> Result<(), FsError> {
        match object {
            Object::Held(handle) => {
                let description = asker.session.description(handle)?;
                self.resize(&description.node(), bytes, || description.truncate(bytes))
            }
            Object::Path { .. } => {
                let node = self.inode(asker, object)?;
                let files = asker.session.files();
                self.resize(&node, bytes, || {
                    files.truncate(nvmed_fs::Object::Held(&node), bytes, &asker.who())
                })
            }
        }
    }

    /// Lets `change` give a file the size `bytes`.
    pub(crate) fn resize<T>(
        &self,
        node: &Node,
        bytes: u64,
        change: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.end_grant(node.ino());
        let size = || node.stat().size;
        let changed = self.windows.change(node.ino(), |before| bytes.min(before)..before, change, size);
        // One that began meanwhile is of the size before.
        self.end_grant(node.ino());
        changed
    }

    /// Calls on an open description that move nothing.
    pub(crate) fn on_description(&self, session: &Session, call: Call<'_>) -> Result<Answer, FsError> {
        match call {
            Call::Seek { handle, by, whence } => {
                return session.description(handle)?.seek(by, whence).map(Answer::Count);
            }
            Call::Flags { handle } => {
                return Ok(Answer::Count(session.description(handle)?.flags().0.into()));
            }
            Call::SetFlags { handle, flags } => {
                let description = session.description(handle)?;
                self.end_grant(description.node().ino());
                // A write looks at them more than once, and the window is told what it saw first.
                let _unchanged = self.windows.unchanged(description.node().ino());
                description.set_flags(flags)?;
            }
            Call::Allocate { handle, how, offset, bytes } => {
                let description = session.description(handle)?;
                let node = description.node();
                self.end_grant(node.ino());
                let range = offset..offset.saturating_add(bytes);
                let change = || description.fallocate(how, offset, bytes);
                self.windows.change(node.ino(), |_| range, change, || node.stat().size)?;
            }
            Call::Advise { handle, advice, offset, bytes } => {
                session.description(handle)?.advise(advice, offset, bytes)?;
            }
            Call::Sync { handle, data_only } => self.sync(&*session.description(handle)?, data_only)?,
            Call::SyncAll => self.with_room(|| session.files().sync())?,
            Call::WriteBack { handle, offset, bytes } => {
                let description = session.description(handle)?;
                self.with_room(|| description.sync_range(offset, bytes))?;
            }
            Call::SyncMap { handle, offset, bytes } => {
                let description = session.description(handle)?;
                self.with_room(|| description.msync(offset, bytes))?;
            }
            Call::Unmap { handle, write } => self.unmap(session, handle, write)?,
            _ => return Err(FsError::NotSupported),
        }
        Ok(Answer::Done)
    }

    fn sync(&self, description: &Description, data_only: bool) -> Result<(), FsError> {
        if description.flags().has(OpenFlags::PATH) {
            return Err(FsError::BadDescriptor);
        }
        let owed = description.owed().told();
        let synced = self.with_room(|| if data_only { description.fdatasync() } else { description.fsync() });
        owed.map_or(synced, |errno| Err(FsError::Host(errno)))
    }

    fn unmap(&self, session: &Session, handle: Handle, write: bool) -> Result<(), FsError> {
        let description = session.description(handle)?;
        {
            let mut holds = session.holds();
            let count = holds.maps(handle)?.of(write);
            *count = count.checked_sub(1).ok_or(FsError::Invalid)?;
        }
        self.end_map(&description, write)
    }
}
