//! What a process that died had completed, from its memory into the file system.
//!
//! Three things may be in there and not on the device: batches of metadata, sizes, dirty pages. The
//! batches come first and go into the store before anything else does, as its log goes on with them.

use crate::core::{Core, MountParts};
use crate::error::FsError;
use crate::filesystem::FileSystem;
use crate::inode::Inode;
use crate::memory::{Memory, SizeLeft};
use crate::posted::{Change, Left};
use crate::status::Credentials;
use crate::view::View;
use core::ops::{Bound, ControlFlow};
use nvmed_cache::{Cache, Survivor};
use nvmed_layout::LayoutError;
use nvmed_layout::keys::{self, INO_END, PREFIX_BYTES_MAX};
use nvmed_layout::record::Entry;
use nvmed_layout::{FileType, ROOT};
use nvmed_units::{BLOCK_BYTES, ByteOffset, Ino};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A name, and the prefix of its directory.
struct Named {
    prefix: Vec<u8>,
    name: Vec<u8>,
}

/// Mounts a file system and writes what a dead process left in `dead` into it, durably.
///
/// `parts` has memory of its own. `dead` is not changed: after a failure it can be tried again. `posted` are changes
/// that its clients had posted, and that it has not made: they come last, in their order.
///
/// # Errors
/// Those of [`FileSystem::mount`]; what could not be written.
pub fn salvage(parts: MountParts, dead: &Memory, posted: &[Left]) -> Result<FileSystem, FsError> {
    let files = FileSystem { core: Core::mount_over(parts, Some(dead))?, view: View::default() };
    let core = &files.core;
    let left: Vec<SizeLeft> = dead.sizes_left().collect();
    let mut pages: Vec<Survivor> = Cache::survivors(&dead.mapping, dead.layout.cache()).collect();
    if core.options.read_only && !(left.is_empty() && pages.is_empty() && posted.is_empty()) {
        return Err(FsError::ReadOnly);
    }
    let numbers = left.iter().map(|size| size.ino).chain(pages.iter().map(|page| Ino(page.owner)));
    let numbers = numbers.chain(posted.iter().map(|left| left.ino));
    let found = core.salvageable(numbers.collect())?;
    let sizes = left.iter().filter_map(|left| found.get(&left.ino).map(|inode| (inode, left)));
    // A file that the device does not take keeps no other from being saved.
    let mut result = core.placed.restore_sizes(sizes);
    if core.placed.is_in_place() {
        // What no record tells of lies in blocks that others would be given next, and another attempt needs them.
        result?;
        result = core.meta.commit_all();
    }
    if !core.options.read_only {
        core.reap_orphans()?;
    }
    pages.sort_unstable_by_key(|page| (page.owner, page.page));
    for group in pages.chunk_by(|one, next| one.owner == next.owner) {
        if let Some(inode) = found.get(&Ino(group[0].owner)) {
            result = result.and(core.salvage_pages(inode, dead, group));
        }
    }
    for size in &left {
        if let Some(inode) = found.get(&size.ino) {
            // The change of the inode is this salvage; the other time a program may have set, to any.
            core.meta.touch(inode, None, Some(size.mtime_ns), None);
        }
    }
    core.promise_for(posted, &found);
    for left in posted {
        if let Some(inode) = found.get(&left.ino) {
            result = result.and(core.make_left(inode, left));
        }
    }
    found.values().for_each(|inode| core.placed.give_back_ahead(inode));
    let synced = files.sync();
    result.and(synced).map(|()| files)
}

impl Core {
    /// Makes a change that was posted.
    fn make_left(&self, inode: &Arc<Inode>, left: &Left) -> Result<(), FsError> {
        // It was permitted when it was posted.
        let who = &Credentials::ROOT;
        match left.change() {
            Some(Change::Write { offset, bytes }) => self.write_all(inode, bytes, ByteOffset(offset)),
            Some(Change::Times(times)) => self.utimens(inode, times, who),
            Some(Change::Owner { uid, gid }) => self.chown(inode, uid, gid, who),
            Some(Change::Mode(mode)) => self.chmod(inode, mode, who),
            None => Ok(()),
        }
    }

    /// Writes all of it: what is missing says why.
    fn write_all(&self, inode: &Arc<Inode>, bytes: &[u8], at: ByteOffset) -> Result<(), FsError> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.placed.write_at(inode, &bytes[done..], at + done as u64)?;
        }
        Ok(())
    }

    /// Promises ahead what posted writes need, as their grants did: the host may have kept the memory. Without a
    /// promise the write says what is wrong.
    fn promise_for(&self, posted: &[Left], found: &HashMap<Ino, Arc<Inode>>) {
        let mut wanted = HashMap::new();
        for left in posted {
            if let Some(Change::Write { offset, bytes }) = left.change() {
                let end = ByteOffset(offset + bytes.len() as u64);
                *wanted.entry(left.ino).or_insert(0) += end.page_end() - ByteOffset(offset).page();
            }
        }
        for (ino, pages) in wanted {
            if let Some(inode) = found.get(&ino) {
                let _ = self.placed.promise_ahead(inode, pages);
            }
        }
    }

    /// The files with these numbers, but for those that are gone: their records went, or their last names did.
    ///
    /// A name leads to a number and not the other way. So this reads all names, once after a death that left
    /// data behind: about half a second for a million.
    fn salvageable(&self, mut wanted: HashSet<Ino>) -> Result<HashMap<Ino, Arc<Inode>>, FsError> {
        let mut found = HashMap::new();
        for &ino in &wanted {
            match self.meta.load_own(ino) {
                Ok(inode) => _ = found.insert(ino, inode),
                Err(FsError::Layout(LayoutError::Damaged(_))) => {}
                Err(error) => return Err(error),
            }
        }
        wanted.retain(|ino| !found.contains_key(ino));
        if !wanted.is_empty() {
            let names = self.names_of(&wanted)?;
            let _namespace = self.names_read();
            for ino in &wanted {
                if let Some(inode) = self.follow_names(*ino, &names)? {
                    found.insert(*ino, inode);
                }
            }
        }
        found.retain(|_, inode| inode.kind == FileType::File && inode.nlink() > 0);
        Ok(found)
    }

    /// Where the files with these numbers are named, and all zones.
    fn names_of(&self, wanted: &HashSet<Ino>) -> Result<HashMap<Ino, Named>, FsError> {
        let mut names = HashMap::new();
        let end = keys::zone(Ino(INO_END.0 - 1));
        self.meta.journal.store.scan(Bound::Unbounded, Bound::Excluded(&end), &mut |key, value| {
            if let (Some((prefix, name)), Some(entry)) = (keys::entry_parts(key), Entry::decode(value))
                && (entry.zone || wanted.contains(&entry.ino))
            {
                names.insert(entry.ino, Named { prefix: prefix.to_vec(), name: name.to_vec() });
            }
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    /// Walks from the root to the inode with a number. The caller holds the namespace.
    fn follow_names(&self, ino: Ino, names: &HashMap<Ino, Named>) -> Result<Option<Arc<Inode>>, FsError> {
        let mut steps = Vec::new();
        let mut at = ino;
        while at != ROOT {
            // More zones than there are is a circle, which only damage makes.
            let Some(named) = names.get(&at).filter(|_| steps.len() <= names.len() * PREFIX_BYTES_MAX) else {
                return Ok(None);
            };
            steps.push(named.name.clone());
            let mut prefix = &named.prefix[..];
            while let Some((above, name)) = keys::pop_step(prefix) {
                steps.push(name);
                prefix = above;
            }
            let Some(zone) = keys::zone_of(prefix) else { return Ok(None) };
            at = zone;
        }
        let mut inode = self.root();
        for name in steps.iter().rev() {
            match self.child(&inode, name) {
                Ok(Some(child)) => inode = child,
                Ok(None) | Err(FsError::Layout(LayoutError::Damaged(_)) | FsError::NotDirectory) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(inode).filter(|inode| inode.ino == ino))
    }

    fn salvage_pages(&self, inode: &Arc<Inode>, dead: &Memory, pages: &[Survivor]) -> Result<(), FsError> {
        let end = inode.end();
        let mut bytes = [0; BLOCK_BYTES];
        for page in pages {
            let offset = page.page.start();
            let inside = offset.until(end).min(BLOCK_BYTES as u64) as usize;
            dead.mapping.read(page.offset, &mut bytes);
            self.write_all(inode, &bytes[..inside], offset)?;
        }
        Ok(())
    }
}
