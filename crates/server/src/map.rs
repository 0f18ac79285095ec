//! Mappings of files: the memory of each mapped file, and the descriptor by which clients map it.

use crate::description::Description;
use crate::service::Service;
use crate::share::{Resource, Share, User};
use nvmed_fs::FsError;
use nvmed_sys::sync::{Arc, Mutex};
use rustix::io::Errno;
use std::collections::HashMap;

/// The files that are mapped.
#[derive(Default)]
pub(crate) struct Maps(Mutex<HashMap<u64, Mapped>>);

struct Mapped {
    count: u64,
    /// Of the user that mapped the file first: a descriptor, and the bytes that it had then.
    _shares: [Share; 2],
}

impl Maps {
    /// One mapping more of a file with so many bytes; the first one is the user's.
    ///
    /// # Errors
    /// `ENFILE` or `ENOMEM` when he has his share.
    fn begin(&self, ino: u64, bytes: u64, user: &Arc<User>) -> Result<(), Errno> {
        let mut maps = self.0.lock();
        if let Some(mapped) = maps.get_mut(&ino) {
            mapped.count += 1;
            return Ok(());
        }
        let (file, mut memory) = (user.take(Resource::Map)?, user.none(Resource::Mapped));
        memory.grow(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        maps.insert(ino, Mapped { count: 1, _shares: [file, memory] });
        Ok(())
    }

    fn end(&self, ino: u64) {
        let mut maps = self.0.lock();
        let left = maps.get_mut(&ino).and_then(|mapped| {
            mapped.count = mapped.count.checked_sub(1)?;
            Some(mapped.count)
        });
        assert!(left.is_some(), "a mapping of file {ino} ends, which nobody has mapped");
        if left == Some(0) {
            maps.remove(&ino);
        }
    }
}

impl Service {
    /// Begins a mapping of a file, for [`nvmed_fs::MappedFile`]'s memory.
    ///
    /// # Errors
    /// [`FsError::Access`] as mmap(2) has it; `ENFILE` or `ENOMEM` past the user's limits; what [`nvmed_fs::File::map`]
    /// answers.
    pub(crate) fn begin_map(
        &self,
        description: &Description,
        write: bool,
        user: &Arc<User>,
    ) -> Result<nvmed_fs::MappedFile, FsError> {
        let flags = description.flags();
        if !flags.reads() || write && !flags.writes() {
            return Err(FsError::Access);
        }
        let ino = description.node().ino();
        self.end_grant(ino);
        self.maps.begin(ino, description.stat().blocks_512.saturating_mul(512), user)?;
        if write {
            self.windows.stored(ino);
        }
        let mapped = description.map(write).inspect_err(|_| {
            self.maps.end(ino);
            if write {
                self.windows.not_stored(ino);
            }
        });
        // One that began meanwhile; from here on none does.
        self.end_grant(ino);
        mapped
    }

    /// Ends a mapping that [`Service::begin_map`] began.
    ///
    /// # Errors
    /// What [`nvmed_fs::File::unmap`] answers.
    pub(crate) fn end_map(&self, description: &Description, write: bool) -> Result<(), FsError> {
        // What does not find room when the last mapping ends is lost, also room that is only promised.
        let may_lose = write && self.logs.are_granted();
        let gathered = if may_lose { self.with_room(|| description.gather()) } else { Ok(()) };
        let ended = gathered.and(description.unmap(write));
        self.maps.end(description.node().ino());
        if write {
            self.windows.not_stored(description.node().ino());
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a mapping of file 7 ends, which nobody has mapped")]
    fn a_mapping_that_ends_twice_is_our_mistake() {
        Maps::default().end(7);
    }
}
