//! Who may do what: POSIX.1-2017, 4.5 "File Access Permissions", with Linux's rules for root.

use crate::error::FsError;
use crate::inode::Inode;
use crate::status::{Credentials, MODE_STICKY};
use nvmed_layout::FileType;

/// `R_OK`.
pub(crate) const READ: u32 = 4;
/// `W_OK`.
pub(crate) const WRITE: u32 = 2;
/// `X_OK`: execute a file, search a directory.
pub(crate) const EXECUTE: u32 = 1;

/// Whether `who` may do all of `wanted` to an inode.
///
/// Root may read and write everything, search every directory, and execute what anyone may.
///
/// # Errors
/// [`FsError::Access`].
pub(crate) fn may(inode: &Inode, wanted: u32, who: &Credentials<'_>) -> Result<(), FsError> {
    let mode = inode.mode();
    let granted = if who.is_root() {
        let execute = inode.kind == FileType::Directory || mode & 0o111 != 0;
        READ | WRITE | if execute { EXECUTE } else { 0 }
    } else if who.uid == inode.uid() {
        mode >> 6
    } else if who.in_group(inode.gid()) {
        mode >> 3
    } else {
        mode
    };
    if wanted & !granted & 7 == 0 { Ok(()) } else { Err(FsError::Access) }
}

/// Whether `who` may add or remove names of a directory.
///
/// # Errors
/// [`FsError::Access`]; [`FsError::NotFound`] once the directory itself was removed.
pub(crate) fn may_change_names(directory: &Inode, who: &Credentials<'_>) -> Result<(), FsError> {
    if directory.nlink() == 0 { Err(FsError::NotFound) } else { may(directory, WRITE | EXECUTE, who) }
}

/// Whether `who` may remove or rename `victim`, a name of `directory`: in a sticky one only its owner,
/// the victim's owner and root.
///
/// # Errors
/// [`FsError::NotPermitted`], and those of [`may_change_names`].
pub(crate) fn may_remove(directory: &Inode, victim: &Inode, who: &Credentials<'_>) -> Result<(), FsError> {
    may_change_names(directory, who)?;
    let sticky = directory.mode() & MODE_STICKY != 0;
    if sticky && !who.is_root() && who.uid != victim.uid() && who.uid != directory.uid() {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Whether `who` may change the inode itself: its owner or root.
///
/// # Errors
/// [`FsError::NotPermitted`].
pub(crate) fn may_own(inode: &Inode, who: &Credentials<'_>) -> Result<(), FsError> {
    if who.is_root() || who.uid == inode.uid() { Ok(()) } else { Err(FsError::NotPermitted) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_layout::record::Record;
    use nvmed_units::Ino;

    fn inode(kind: FileType, mode: u32, uid: u32, gid: u32) -> Inode {
        let home = crate::inode::Home { own: false, dentry: None, zone: false };
        Inode::new(Ino(7), Record::new(kind, mode, uid, gid, 0), home)
    }

    #[test]
    fn one_class_of_bits_counts_and_no_other() {
        let file = inode(FileType::File, 0o047, 10, 20);
        let who = |uid, gid, groups| Credentials { uid, gid, groups, permitted: false };
        assert!(may(&file, READ, &who(10, 20, &[])).is_err(), "the owner has the owner's bits only");
        assert!(may(&file, READ, &who(11, 20, &[])).is_ok());
        assert!(may(&file, READ, &who(11, 21, &[5, 20])).is_ok(), "a supplementary group counts");
        assert!(may(&file, WRITE, &who(11, 20, &[])).is_err());
        assert!(may(&file, READ | WRITE | EXECUTE, &who(11, 21, &[])).is_ok());
    }

    #[test]
    fn root_executes_only_what_somebody_may() {
        assert!(may(&inode(FileType::File, 0, 1, 1), READ | WRITE, &Credentials::ROOT).is_ok());
        assert!(may(&inode(FileType::File, 0o600, 1, 1), EXECUTE, &Credentials::ROOT).is_err());
        assert!(may(&inode(FileType::File, 0o010, 1, 1), EXECUTE, &Credentials::ROOT).is_ok());
        assert!(may(&inode(FileType::Directory, 0, 1, 1), EXECUTE, &Credentials::ROOT).is_ok());
    }

    #[test]
    fn a_sticky_directory_protects_names() {
        let directory = inode(FileType::Directory, 0o1777, 1, 1);
        let file = inode(FileType::File, 0o666, 2, 2);
        let remove =
            |uid| may_remove(&directory, &file, &Credentials { uid, gid: 9, groups: &[], permitted: false });
        assert!(remove(0).is_ok() && remove(1).is_ok() && remove(2).is_ok());
        assert!(matches!(remove(3), Err(FsError::NotPermitted)));
    }
}
