//! What kinds of file calls there are: the names under which they are counted.

/// A kind of file call. Calls that differ only in their C prototype (`open`, `openat`, `creat`) are one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKind(u8);

macro_rules! kinds {
    ($($name:ident $text:literal $what:literal;)*) => {
        #[repr(u8)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name,)* }

        impl CallKind {
            $(#[doc = $what] pub const $name: Self = Self(Number::$name as u8);)*
            /// All kinds, in the order in which they are printed when nothing else orders them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            const NAMES: &[&str] = &[$($text,)*];
        }
    };
}

kinds! {
    OPEN "open" "open, openat, creat, fopen.";
    CLOSE "close" "close, close_range, closedir.";
    READ "read" "read.";
    WRITE "write" "write.";
    PREAD "pread" "pread.";
    PWRITE "pwrite" "pwrite.";
    READV "readv" "readv, preadv, preadv2.";
    WRITEV "writev" "writev, pwritev, pwritev2.";
    LSEEK "lseek" "lseek.";
    FSYNC "fsync" "fsync.";
    FDATASYNC "fdatasync" "fdatasync.";
    SYNC "sync" "sync, syncfs.";
    SYNC_RANGE "sync_file_range" "sync_file_range.";
    TRUNCATE "truncate" "truncate, ftruncate.";
    ALLOCATE "fallocate" "fallocate, posix_fallocate.";
    ADVISE "fadvise" "posix_fadvise, readahead.";
    STAT "stat" "stat, lstat, fstatat, statx of a path.";
    FSTAT "fstat" "fstat.";
    ACCESS "access" "access, faccessat, euidaccess.";
    STATFS "statfs" "statfs, statvfs, pathconf with their f forms.";
    READDIR "readdir" "opendir, readdir, getdents64, seekdir.";
    UNLINK "unlink" "unlink, unlinkat, remove.";
    RMDIR "rmdir" "rmdir.";
    MKDIR "mkdir" "mkdir, mkdirat.";
    RENAME "rename" "rename, renameat, renameat2.";
    LINK "link" "link, linkat.";
    SYMLINK "symlink" "symlink, symlinkat.";
    READLINK "readlink" "readlink, readlinkat, realpath.";
    MKNOD "mknod" "mknod, mkfifo.";
    CHMOD "chmod" "chmod with its f, l and at forms.";
    CHOWN "chown" "chown with its f, l and at forms.";
    UTIMES "utimens" "utimensat and its older forms.";
    GETXATTR "getxattr" "getxattr, listxattr with their f and l forms.";
    SETXATTR "setxattr" "setxattr, removexattr with their f and l forms.";
    DUP "dup" "dup, dup2, dup3.";
    FCNTL "fcntl" "fcntl but for locks, ioctl.";
    LOCK "lock" "record locks by fcntl and lockf, flock; waiting included.";
    CHDIR "chdir" "chdir, fchdir, getcwd.";
    MMAP "mmap" "mmap of a file.";
    MUNMAP "munmap" "munmap, mremap of a file.";
    MSYNC "msync" "msync.";
    COPY "copy" "copy_file_range, sendfile, splice.";
    AIO "aio" "libaio's and POSIX's asynchronous calls.";
    INHERIT "inherit" "A descriptor that a program has from the one that executed it: recorded, never counted.";
    CWD "cwd" "No call: where relative paths of the thread start from here on; recorded, never counted.";
    OTHER "other" "Calls that have no kind of their own.";
}

impl CallKind {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Its name, as it is printed and recorded.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[usize::from(self.0)]
    }

    /// Its number, below [`CallKind::COUNT`].
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The kind of a number; [`CallKind::OTHER`] beyond the last.
    #[must_use]
    pub fn of(index: usize) -> Self {
        Self::ALL.get(index).copied().unwrap_or(Self::OTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_numbers_lead_back() {
        for (index, &kind) in CallKind::ALL.iter().enumerate() {
            assert_eq!((kind.index(), CallKind::of(index)), (index, kind));
            assert_eq!(
                CallKind::ALL.iter().filter(|other| other.name() == kind.name()).count(),
                1,
                "{}",
                kind.name()
            );
        }
        assert_eq!(CallKind::of(CallKind::COUNT), CallKind::OTHER);
    }
}
