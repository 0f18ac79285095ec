//! Reading a directory, with positions that stay valid while it changes.
//!
//! A cookie is a count of entries told. The names told are kept, so that a listing can be taken up
//! again after any of them: the next entry is the one after that name in byte order, whatever became of
//! the name itself.

use crate::core::Core;
use crate::error::FsError;
use crate::inode::Inode;
use crate::status::DirEntry;
use core::ops::{Bound, ControlFlow};
use nvmed_layout::record::Entry;
use nvmed_layout::{Damage, FileType, keys};
use nvmed_units::Ino;

/// `.` and `..`.
const DOTS: usize = 2;
/// Entries read from the store at a time: the callback runs without its locks.
const ENTRIES_PER_READ: usize = 256;

/// The position in a listing, and the way back.
#[derive(Default)]
pub(crate) struct Listing {
    /// Entries told: the cookie of the last one.
    position: usize,
    /// The names told after the dots, one after the other.
    names: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

/// Entries read ahead.
#[derive(Default)]
struct Page {
    entries: Vec<(Ino, FileType, usize)>,
    names: Vec<u8>,
    damaged: bool,
}

impl Listing {
    /// The cookie of the last entry told.
    pub(crate) fn position(&self) -> u64 {
        self.position as u64
    }

    /// Bytes that the names told take.
    pub(crate) fn bytes(&self) -> usize {
        self.names.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// Goes on after the entry with this cookie; 0 begins anew. A cookie that was not told since the
    /// listing began goes on after the last that was.
    pub(crate) fn seek(&mut self, cookie: u64) {
        let told = self.ends.len() + DOTS;
        self.position = usize::try_from(cookie).unwrap_or(told).min(told);
        if cookie == 0 {
            self.names.clear();
            self.ends.clear();
        }
    }

    /// The name after which the listing goes on; empty at its start.
    fn last(&self) -> &[u8] {
        match self.position.checked_sub(DOTS + 1) {
            None => b"",
            Some(index) => {
                let start = if index == 0 { 0 } else { self.ends[index - 1] };
                &self.names[start..self.ends[index]]
            }
        }
    }

    fn told(&mut self, name: &[u8]) {
        let index = self.position - DOTS;
        if let Some(&end) = self.ends.get(index) {
            // Taken up again at an earlier place. The way is the same, or from here on a new one.
            let start = if index == 0 { 0 } else { self.ends[index - 1] };
            if &self.names[start..end] == name {
                self.position += 1;
                return;
            }
            self.ends.truncate(index);
            self.names.truncate(self.ends.last().copied().unwrap_or(0));
        }
        self.names.extend_from_slice(name);
        self.ends.push(self.names.len());
        self.position += 1;
    }

    /// Tells entries until `tell` breaks or there are no more; a removed directory has none. `root` is the
    /// directory that its caller takes for `/`.
    pub(crate) fn tell(
        &mut self,
        core: &Core,
        directory: &Inode,
        root: Ino,
        tell: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        if directory.nlink() == 0 {
            return Err(FsError::NotFound);
        }
        while self.position < DOTS {
            let (name, ino): (&[u8], Ino) = match self.position {
                0 => (b".", directory.ino),
                // Above the caller's root there is nothing.
                _ if directory.ino == root => (b"..", root),
                _ => (b"..", directory.parent().map_or(directory.ino, |above| above.ino)),
            };
            let cookie = self.position as u64 + 1;
            if tell(DirEntry { ino: ino.0, cookie, kind: FileType::Directory, name }).is_break() {
                return Ok(());
            }
            self.position += 1;
        }
        loop {
            let page = read_page(core, directory, self.last(), ENTRIES_PER_READ)?;
            let mut start = 0;
            for &(ino, kind, end) in &page.entries {
                let (name, cookie) = (&page.names[start..end], self.position as u64 + 1);
                if tell(DirEntry { ino: ino.0, cookie, kind, name }).is_break() {
                    return Ok(());
                }
                self.told(name);
                start = end;
            }
            if page.entries.len() < ENTRIES_PER_READ {
                return Ok(());
            }
        }
    }
}

/// An entry of a directory.
pub(crate) struct Listed {
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
    pub(crate) name: Vec<u8>,
}

/// The entries of a directory that follow the name `after`, at most so many.
pub(crate) fn entries_after(
    core: &Core,
    directory: &Inode,
    after: &[u8],
    most: usize,
) -> Result<Vec<Listed>, FsError> {
    let page = read_page(core, directory, after, most)?;
    let starts = std::iter::once(0).chain(page.entries.iter().map(|(_, _, end)| *end));
    let listed = |(start, &(ino, kind, end)): (usize, &(Ino, FileType, usize))| Listed {
        ino,
        kind,
        name: page.names[start..end].to_vec(),
    };
    Ok(starts.zip(&page.entries).map(listed).collect())
}

fn read_page(core: &Core, directory: &Inode, after: &[u8], most: usize) -> Result<Page, FsError> {
    // The names stay where they are until the page is read.
    let _namespace = core.names_read();
    let (from, to) =
        core.meta.with_prefix(directory, |prefix| (keys::entry(prefix, after), keys::entries_end(prefix)));
    let mut page = Page::default();
    core.meta.journal.store.scan(Bound::Excluded(&from), Bound::Excluded(&to), &mut |key, value| {
        match (keys::entry_parts(key), Entry::decode(value)) {
            (Some((_, name)), Some(Entry { ino, kind, .. })) => {
                page.names.extend_from_slice(name);
                page.entries.push((ino, kind, page.names.len()));
            }
            _ => page.damaged = true,
        }
        let enough = page.damaged || page.entries.len() >= most;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if page.damaged {
        return Err(Damage::Entry(directory.ino).into());
    }
    Ok(page)
}
