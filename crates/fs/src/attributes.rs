//! Mode, owner, times, size by path, and the permission to ask for them.

use crate::core::Core;
use crate::error::FsError;
use crate::inode::Inode;
use crate::metadata::times::stripped;
use crate::paths::{Miss, Question};
use crate::permission::{self, WRITE};
use crate::resolve::Last;
use crate::status::{Credentials, Follow, MODE_BITS, MODE_SETGID, Stat, Time};
use crate::versions::{Trail, Walked};
use crate::view::Start;
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_units::BLOCK_BYTES;
use std::sync::Arc;

/// First of the device numbers that no kernel driver has: its majors end at 511.
const DEV_MAJOR_FIRST: u32 = 0x800;

impl Core {
    /// The inode at a path.
    ///
    /// # Errors
    /// Those of resolution; [`FsError::NotFound`].
    pub(crate) fn at(
        &self,
        at: Start<'_>,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<Arc<Inode>, FsError> {
        let question = Question { at: at.at, root: at.view.root_ino(), path, follow, who };
        match self.paths.find(&question, Arc::clone) {
            Ok(inode) => Ok(inode),
            Err(miss) => self.walk(&question, at, miss),
        }
    }

    /// The status of the inode at a path.
    ///
    /// # Errors
    /// As [`Core::at`].
    #[inline]
    pub(crate) fn status_at(
        &self,
        at: Start<'_>,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<Stat, FsError> {
        let question = Question { at: at.at, root: at.view.root_ino(), path, follow, who };
        match self.paths.find(&question, |inode| self.status(inode)) {
            Ok(status) => Ok(status),
            Err(miss) => Ok(self.status(&*self.walk(&question, at, miss)?)),
        }
    }

    fn walk(
        &self,
        question: &Question<'_>,
        at: Start<'_>,
        miss: Option<Miss>,
    ) -> Result<Arc<Inode>, FsError> {
        let _namespace = self.names_read();
        let inode = self.resolve(at, question.path, Last::from(question.follow), question.who)?.found()?;
        if let Some(miss) = miss {
            self.paths.learn(question, &miss, &inode);
        }
        Ok(inode)
    }

    /// The inode at a path, and on which directories the answer depends, also that there is none.
    ///
    /// # Errors
    /// As [`Core::at`].
    pub(crate) fn trace(
        &self,
        at: Start<'_>,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
        trail: &mut Trail,
    ) -> Result<Arc<Inode>, FsError> {
        let _namespace = self.names_read();
        // A directory that is moved out of the view answers nothing: its place belongs to the trail. Of one that is not
        // in the view the caller hears nothing, and no version of what is above it.
        if at.view.root().is_some() {
            let mut above = Arc::clone(at.at);
            while above.ino != at.view.root_ino() {
                trail.enters(&above);
                let Some(next) = above.parent() else {
                    trail.lose();
                    break;
                };
                above = next;
            }
        }
        self.resolve_along(at, path, Last::from(follow), who, trail)?.found()
    }

    /// The device number: stable for a file system, and no kernel device's.
    pub(crate) fn device_number(&self) -> u64 {
        let uuid = &self.meta.superblock.uuid;
        let word = u32::from_le_bytes([uuid[0], uuid[1], uuid[2], uuid[3]]);
        let (major, minor) = (DEV_MAJOR_FIRST + (word >> 21), word & 0xf_ffff);
        rustix::fs::makedev(major, minor)
    }

    /// Units of 512 bytes that a file without blocks has in its record: with none, tools take it for a hole.
    fn inline_512(&self, inode: &Inode, blocks: u64) -> u64 {
        let inline = blocks == 0 && inode.data.residence.is_in_record();
        if inline { inode.size.load(Ordering::Relaxed).min(BLOCK_BYTES as u64).div_ceil(512) } else { 0 }
    }

    /// The status of an inode.
    pub(crate) fn status(&self, inode: &Inode) -> Stat {
        let [atime_ns, mtime_ns, ctime_ns, btime_ns] = inode.times_ns();
        let is_directory = inode.kind == FileType::Directory;
        let size = if is_directory { BLOCK_BYTES as u64 } else { inode.size.load(Ordering::Acquire) };
        let blocks = inode.blocks() + self.meta.blocks_promised(inode);
        Stat {
            dev: self.device_number(),
            ino: inode.ino.0,
            mode: inode.mode(),
            nlink: inode.nlink(),
            uid: inode.uid(),
            gid: inode.gid(),
            rdev: inode.rdev,
            size,
            blocks_512: blocks * (BLOCK_BYTES as u64 / 512) + self.inline_512(inode, blocks),
            block_bytes: BLOCK_BYTES as u32,
            atime_ns,
            mtime_ns,
            ctime_ns,
            btime_ns,
        }
    }

    /// chmod.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]; the store's.
    pub(crate) fn chmod(&self, inode: &Arc<Inode>, mode: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        self.meta.writable()?;
        if inode.kind == FileType::Symlink {
            return Err(FsError::NotSupported);
        }
        permission::may_own(inode, who)?;
        let now = self.meta.now_ns();
        self.meta.alter(inode, |record| {
            let mut bits = mode & MODE_BITS;
            if !who.is_root() && !who.in_group(record.gid) {
                bits &= !MODE_SETGID;
            }
            record.mode = record.mode & !MODE_BITS | bits;
            record.ctime_ns = now;
            Ok(())
        })?;
        if inode.kind == FileType::Directory {
            self.paths.mistrust();
        }
        // What the host refuses it is asked for again at the next open.
        let _ = self.ends.permit(inode, who);
        self.meta.touch(inode, None, None, Some(now));
        Ok(())
    }

    /// chown: root gives files away; an owner gives them to groups of its own.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]; the store's.
    pub(crate) fn chown(
        &self,
        inode: &Arc<Inode>,
        uid: Option<u32>,
        gid: Option<u32>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.meta.writable()?;
        let owner = who.uid == inode.uid();
        let keeps_uid = uid.is_none_or(|uid| owner && uid == inode.uid());
        let own_group = gid.is_none_or(|gid| owner && (who.in_group(gid) || gid == inode.gid()));
        if !(who.is_root() || keeps_uid && own_group) {
            return Err(FsError::NotPermitted);
        }
        let now = self.meta.now_ns();
        self.meta.alter(inode, |record| {
            record.uid = uid.unwrap_or(record.uid);
            record.gid = gid.unwrap_or(record.gid);
            if inode.kind == FileType::File && (uid.is_some() || gid.is_some()) {
                record.mode = stripped(record.mode);
            }
            record.ctime_ns = now;
            Ok(())
        })?;
        if inode.kind == FileType::Directory {
            self.paths.mistrust();
        }
        let _ = self.ends.permit(inode, who);
        self.meta.touch(inode, None, None, Some(now));
        Ok(())
    }

    /// utimensat: the owner sets any times, who may write sets both to now.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`], [`FsError::Access`].
    pub(crate) fn utimens(
        &self,
        inode: &Arc<Inode>,
        times: [Time; 2],
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.meta.writable()?;
        match times {
            [Time::Omit, Time::Omit] => return Ok(()),
            [Time::Now, Time::Now] => {
                let writes = permission::may(inode, WRITE, who);
                permission::may_own(inode, who).or(writes)?;
            }
            _ => permission::may_own(inode, who)?,
        }
        let now = self.meta.now_ns();
        let [atime, mtime] = times.map(|time| match time {
            Time::Now => Some(now),
            Time::Omit => None,
            Time::At(ns) => Some(ns),
        });
        self.meta.touch(inode, atime, mtime, Some(now));
        Ok(())
    }

    /// Whether `who` may do `mask` to the inode; a read-only mount allows no writing.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::ReadOnly`], [`FsError::Invalid`].
    pub(crate) fn access(&self, inode: &Inode, mask: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        if mask & !7 != 0 {
            return Err(FsError::Invalid);
        }
        if mask & WRITE != 0 {
            self.meta.writable()?;
        }
        permission::may(inode, mask, who)
    }

    /// truncate by path: the file must be writable by `who`.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`], [`FsError::Invalid`], [`FsError::Access`]; the data path's.
    pub(crate) fn truncate_checked(
        &self,
        inode: &Arc<Inode>,
        bytes: u64,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.meta.writable()?;
        match inode.kind {
            FileType::Directory => return Err(FsError::IsDirectory),
            FileType::File => permission::may(inode, WRITE, who)?,
            _ => return Err(FsError::Invalid),
        }
        self.placed.truncate(inode, bytes)
    }
}
