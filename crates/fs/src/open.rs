//! Opening (open(2)).

use crate::core::Core;
use crate::error::FsError;
use crate::file::File;
use crate::inode::Inode;
use crate::namespace::Recipe;
use crate::permission::{self, READ, WRITE};
use crate::resolve::Last;
use crate::status::{Credentials, OpenFlags};
use crate::view::{Start, View};
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_mutant::Mutant;
use std::sync::Arc;

impl OpenFlags {
    /// What happens at a symbolic link in last place.
    fn last(self) -> Last {
        let stays = self.has(Self::NOFOLLOW) || self.has(Self::CREATE.with(Self::EXCLUSIVE));
        match (self.has(Self::CREATE), stays) {
            (true, stays) => Last::Create { follow: !stays },
            (false, true) => Last::Stay,
            (false, false) => Last::Follow,
        }
    }

    /// The permissions that the access mode asks for.
    pub(crate) fn wanted(self) -> u32 {
        // Access mode 3 asks for both and gives neither (open(2), "access mode 3").
        if self.0 & 3 == 3 {
            return READ | WRITE;
        }
        let read = if self.reads() { READ } else { 0 };
        let write = if self.writes() || self.has(Self::TRUNCATE) { WRITE } else { 0 };
        read | write
    }
}

/// The bits that say what an open file is for (`O_ACCMODE`).
const ACCESS_MODES: OpenFlags = OpenFlags::WRITE.with(OpenFlags::READ_WRITE);

impl Core {
    /// Opens the file at a path, making it if the flags say so.
    ///
    /// # Errors
    /// Those of open(2): [`FsError::Exists`], [`FsError::IsDirectory`], [`FsError::NotDirectory`],
    /// [`FsError::Loop`], [`FsError::NotPermitted`] for `O_NOATIME`; those of resolution; the store's.
    pub(crate) fn open_at(
        self: &Arc<Self>,
        at: Start<'_>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        if flags.has(OpenFlags::PATH) {
            return self.open_path(at, path, flags, who);
        }
        if flags.has(OpenFlags::TMPFILE) {
            return self.open_nameless(at, path, flags, mode, who);
        }
        let (inode, made) = if flags.has(OpenFlags::CREATE) {
            self.find_or_make(at, path, flags, mode, who)?
        } else {
            let _namespace = self.names_read();
            let inode = self.resolve(at, path, flags.last(), who)?.found()?;
            self.check_open(&inode, flags, at.view, who)?;
            inode.opens.fetch_add(1, Ordering::SeqCst);
            (inode, false)
        };
        self.opened(inode, flags, at.view, made)
    }

    /// Opens an inode that is held already; the caller's permissions count anew.
    ///
    /// # Errors
    /// As [`Core::open_at`]; [`FsError::NotFound`] once it is gone from the device.
    pub(crate) fn open_inode(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        flags: OpenFlags,
        view: &View,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        {
            let _namespace = self.names_read();
            if !flags.has(OpenFlags::PATH) {
                self.check_open(inode, flags, view, who)?;
            }
            if inode.reaped.load(Ordering::SeqCst) && inode.kind != FileType::Directory {
                return Err(FsError::NotFound);
            }
            inode.opens.fetch_add(1, Ordering::SeqCst);
        }
        self.opened(Arc::clone(inode), flags, view, false)
    }

    /// The description of an inode whose `opens` were counted already: dropping it counts back.
    fn opened(
        self: &Arc<Self>,
        inode: Arc<Inode>,
        flags: OpenFlags,
        view: &View,
        made: bool,
    ) -> Result<Arc<File>, FsError> {
        let opens = inode.opens.load(Ordering::SeqCst);
        assert!(opens > 0, "inode {} is opened and not counted as open", inode.ino);
        if inode.kind == FileType::File && Mutant::OpenForgotten.is_made() {
            inode.opens.fetch_sub(1, Ordering::SeqCst);
        }
        let once = if made { OpenFlags::ONCE.without(OpenFlags::CREATE) } else { OpenFlags::ONCE };
        let is_urgent = self.is_urgent_file(&inode);
        let file = File::new(Arc::clone(self), inode, flags.without(once), view.clone(), is_urgent);
        let file = Arc::new(file);
        if flags.has(OpenFlags::TRUNCATE) && !made && !flags.has(OpenFlags::PATH) {
            self.placed.truncate(&file.inode, 0)?;
        }
        if flags.reads() && !made {
            self.opened_to_read(&file.inode);
        }
        if flags.reads() && !made && file.stamps(flags) {
            self.meta.accessed_first(&file.inode);
        }
        Ok(file)
    }

    /// Whether a rule says that the calls of a file are urgent, which has no path unless it has a name.
    fn is_urgent_file(&self, inode: &Arc<Inode>) -> bool {
        let rules = &self.options.urgent_files;
        if rules.is_empty() || inode.kind != FileType::File {
            return false;
        }
        let _namespace = self.names_read();
        let path = self.path_of(inode, &View::default());
        path.is_ok_and(|path| rules.iter().any(|rule| rule.matches(&path)))
    }

    fn find_or_make(
        &self,
        at: Start<'_>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        who: &Credentials<'_>,
    ) -> Result<(Arc<Inode>, bool), FsError> {
        let _namespace = self.names_write();
        let place = self.resolve(at, path, flags.last(), who)?;
        let exclusive = flags.has(OpenFlags::EXCLUSIVE);
        if let Some(inode) = place.inode {
            if exclusive {
                return Err(FsError::Exists);
            }
            if inode.kind == FileType::Directory {
                return Err(FsError::IsDirectory);
            }
            self.check_open(&inode, flags, at.view, who)?;
            inode.opens.fetch_add(1, Ordering::SeqCst);
            return Ok((inode, false));
        }
        if flags.has(OpenFlags::DIRECTORY) {
            return Err(FsError::Invalid);
        }
        at.view.writable()?;
        let recipe = Recipe { kind: FileType::File, mode, target: b"", rdev: 0 };
        let inode = self.make(&place.directory, place.name(), &recipe, who)?;
        inode.opens.fetch_add(1, Ordering::SeqCst);
        Ok((inode, true))
    }

    fn open_path(
        self: &Arc<Self>,
        at: Start<'_>,
        path: &[u8],
        flags: OpenFlags,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        let last = if flags.has(OpenFlags::NOFOLLOW) { Last::Stay } else { Last::Follow };
        let inode = {
            let _namespace = self.names_read();
            let inode = self.resolve(at, path, last, who)?.found()?;
            if flags.has(OpenFlags::DIRECTORY) {
                inode.directory()?;
            }
            inode.opens.fetch_add(1, Ordering::SeqCst);
            inode
        };
        self.opened(inode, flags, at.view, false)
    }

    fn open_nameless(
        self: &Arc<Self>,
        at: Start<'_>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        who: &Credentials<'_>,
    ) -> Result<Arc<File>, FsError> {
        if !flags.writes() {
            return Err(FsError::Invalid);
        }
        at.view.writable()?;
        let inode = {
            let _namespace = self.names_write();
            let directory = self.resolve(at, path, flags.last(), who)?.found()?;
            directory.directory()?;
            let inode = self.make_nameless(&directory, mode, who)?;
            inode.opens.fetch_add(1, Ordering::SeqCst);
            inode
        };
        self.opened(inode, flags, at.view, true)
    }

    /// Whether an inode that exists may be opened so.
    fn check_open(
        &self,
        inode: &Inode,
        flags: OpenFlags,
        view: &View,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        // The fourth access mode asks whether one may read and write, and does neither (open(2)).
        let changes = flags.writes() || flags.has(ACCESS_MODES) || flags.has(OpenFlags::TRUNCATE);
        match inode.kind {
            FileType::Symlink if flags.has(OpenFlags::DIRECTORY) => return Err(FsError::NotDirectory),
            FileType::Symlink => return Err(FsError::Loop),
            FileType::Directory if changes => return Err(FsError::IsDirectory),
            kind if kind != FileType::Directory && flags.has(OpenFlags::DIRECTORY) => {
                return Err(FsError::NotDirectory);
            }
            _ => {}
        }
        permission::may(inode, flags.wanted(), who)?;
        if inode.kind.is_special() {
            // What a program would find behind it is the kernel's: `FileSystem::pipe` has it of a FIFO.
            return Err(FsError::NoDevice);
        }
        if inode.kind == FileType::Directory && flags.has(OpenFlags::DIRECT) {
            return Err(FsError::Invalid);
        }
        if changes {
            view.writable()?;
            self.meta.writable()?;
        }
        if flags.has(OpenFlags::NOATIME) {
            permission::may_own(inode, who)?;
        }
        Ok(())
    }
}
