//! What a process that died had completed, from its memory into the file system.
//!
//! Three things may be in there and not on the device: batches of metadata, sizes, dirty pages. The
//! batches come first and go into the store before anything else does, as its log goes on with them.

use crate::core::{Core, MountParts};
use crate::error::FsError;
use crate::filesystem::FileSystem;
use crate::inode::Inode;
use crate::memory::{Memory, SizeLeft};
use crate::status::Kind;
use core::sync::atomic::Ordering;
use nvmed_cache::{Cache, Survivor};
use nvmed_units::BLOCK_BYTES;
use std::sync::Arc;

/// Mounts a file system and writes what a dead process left in `dead` into it, durably.
///
/// `parts` has memory of its own. `dead` is not changed: after a failure it can be tried again.
///
/// # Errors
/// Those of [`FileSystem::mount`]; what could not be written.
pub fn salvage(parts: MountParts, dead: &Memory) -> Result<FileSystem, FsError> {
    let files = FileSystem(Core::mount_over(parts, Some(dead))?);
    let core = &files.0;
    let left: Vec<SizeLeft> = dead.sizes_left().collect();
    for size in &left {
        if let Some(inode) = core.salvageable(size.ino)? {
            core.truncate(&inode, size.size)?;
        }
    }
    let mut pages: Vec<Survivor> = Cache::survivors(&dead.mapping, dead.layout.cache()).collect();
    pages.sort_unstable_by_key(|page| (page.owner, page.page));
    for group in pages.chunk_by(|one, next| one.owner == next.owner) {
        if let Some(inode) = core.salvageable(group[0].owner)? {
            core.salvage_pages(&inode, dead, group)?;
        }
    }
    for size in &left {
        if let Some(inode) = core.salvageable(size.ino)? {
            core.touch(&inode, None, Some(size.mtime_ns), Some(size.mtime_ns));
        }
    }
    files.sync()?;
    Ok(files)
}

impl Core {
    /// The file with a number, unless it is gone: its record went, or its last name did.
    fn salvageable(&self, ino: u64) -> Result<Option<Arc<Inode>>, FsError> {
        match self.load(ino) {
            Ok(inode) => Ok(Some(inode).filter(|inode| inode.kind == Kind::File && inode.nlink() > 0)),
            Err(FsError::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn salvage_pages(&self, inode: &Arc<Inode>, dead: &Memory, pages: &[Survivor]) -> Result<(), FsError> {
        let size = inode.size.load(Ordering::Acquire);
        let mut bytes = [0; BLOCK_BYTES];
        for page in pages {
            let offset = page.page * BLOCK_BYTES as u64;
            let inside = size.saturating_sub(offset).min(BLOCK_BYTES as u64) as usize;
            dead.mapping.read(page.offset, &mut bytes);
            let mut done = 0;
            while done < inside {
                done += self.write_at(inode, &bytes[done..inside], offset + done as u64)?;
            }
        }
        Ok(())
    }
}
