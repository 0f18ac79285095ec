//! What each file call looks like to those who count: its kind, and which argument says what.

use nvmed_tally::Kind;

/// Stands for an argument that a call does not have.
const NO: u8 = u8::MAX;

/// How a call says which file it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The argument of this number is a descriptor.
    Descriptor(u8),
    /// The arguments of these numbers are descriptors: one of them is enough.
    Descriptors(u8, u8),
    /// A directory stream.
    Directory(u8),
    /// A path, from the working directory.
    Path(u8),
    /// A path from a directory descriptor.
    At(u8, u8),
    /// Nothing in its arguments tells: whoever finds out says so.
    Inside,
}

/// How a call says that it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fails {
    /// By -1 and errno; `MAP_FAILED` too.
    Minus,
    /// By a null pointer and errno.
    Null,
    /// By the error itself.
    Error,
    /// Not at all.
    Never,
}

/// What a call opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opens {
    Nothing,
    /// It answers a descriptor.
    Descriptor,
    /// It answers a stream of stdio.
    Stream,
    /// It answers a directory stream.
    Directory,
}

/// One file call.
#[derive(Debug)]
pub(crate) struct Shape {
    pub name: &'static str,
    pub kind: Kind,
    pub about: About,
    pub fails: Fails,
    pub opens: Opens,
    /// Whether what it answers is how many bytes it moved.
    pub moves: bool,
    bytes: u8,
    offset: u8,
}

impl Shape {
    const fn new(name: &'static str, kind: Kind, about: About) -> Self {
        let (fails, opens) = (Fails::Minus, Opens::Nothing);
        Self { name, kind, about, fails, opens, moves: false, bytes: NO, offset: NO }
    }

    const fn fd(name: &'static str, kind: Kind) -> Self {
        Self::new(name, kind, About::Descriptor(0))
    }

    const fn path(name: &'static str, kind: Kind) -> Self {
        Self::new(name, kind, About::Path(0))
    }

    const fn at(name: &'static str, kind: Kind) -> Self {
        Self::new(name, kind, About::At(0, 1))
    }

    const fn fails(self, fails: Fails) -> Self {
        Self { fails, ..self }
    }

    const fn opens(self, opens: Opens) -> Self {
        let fails = match opens {
            Opens::Nothing | Opens::Descriptor => Fails::Minus,
            Opens::Stream | Opens::Directory => Fails::Null,
        };
        Self { opens, fails, ..self }
    }

    /// It moves bytes, as many as it answers; `bytes` of them were asked for.
    const fn moves(self, bytes: u8) -> Self {
        Self { moves: true, bytes, ..self }
    }

    /// The argument that is a count of bytes.
    const fn sized(self, bytes: u8) -> Self {
        Self { bytes, ..self }
    }

    /// The argument that is a file offset.
    const fn from(self, offset: u8) -> Self {
        Self { offset, ..self }
    }

    /// The count of bytes that was asked for.
    pub(crate) fn bytes_of(&self, words: &[usize]) -> Option<i64> {
        words.get(usize::from(self.bytes)).map(|&word| word as i64)
    }

    /// The file offset that was named.
    pub(crate) fn offset_of(&self, words: &[usize]) -> Option<i64> {
        words.get(usize::from(self.offset)).map(|&word| word as i64)
    }
}

/// Arguments that are looked at are among the first so many.
pub(crate) const WORDS: usize = 6;

/// Every hook that is a file call. A hook that is not here (`scandir`, `nftw`, `fts_read`, `glob`) is counted by the calls that it
/// makes itself.
const SHAPES: &[Shape] = &[
    Shape::path("open", Kind::OPEN).opens(Opens::Descriptor),
    Shape::at("openat", Kind::OPEN).opens(Opens::Descriptor),
    Shape::path("__open_2", Kind::OPEN).opens(Opens::Descriptor),
    Shape::at("__openat_2", Kind::OPEN).opens(Opens::Descriptor),
    Shape::path("creat", Kind::OPEN).opens(Opens::Descriptor),
    Shape::path("fopen", Kind::OPEN).opens(Opens::Stream),
    Shape::path("freopen", Kind::OPEN).opens(Opens::Stream),
    Shape::fd("close", Kind::CLOSE),
    Shape::fd("read", Kind::READ).moves(2),
    Shape::fd("__read_chk", Kind::READ).moves(2),
    Shape::fd("write", Kind::WRITE).moves(2),
    Shape::fd("pread", Kind::PREAD).moves(2).from(3),
    Shape::fd("__pread_chk", Kind::PREAD).moves(2).from(3),
    Shape::fd("pwrite", Kind::PWRITE).moves(2).from(3),
    Shape::fd("readv", Kind::READV).moves(NO),
    Shape::fd("writev", Kind::WRITEV).moves(NO),
    Shape::fd("preadv", Kind::READV).moves(NO).from(3),
    Shape::fd("pwritev", Kind::WRITEV).moves(NO).from(3),
    Shape::fd("preadv2", Kind::READV).moves(NO).from(3),
    Shape::fd("pwritev2", Kind::WRITEV).moves(NO).from(3),
    Shape::fd("lseek", Kind::LSEEK).from(1),
    Shape::fd("fsync", Kind::FSYNC),
    Shape::fd("fdatasync", Kind::FDATASYNC),
    Shape::fd("syncfs", Kind::SYNC),
    Shape::fd("sync_file_range", Kind::SYNC_RANGE).from(1).sized(2),
    Shape::fd("ftruncate", Kind::TRUNCATE).sized(1),
    Shape::path("truncate", Kind::TRUNCATE).sized(1),
    Shape::fd("fallocate", Kind::ALLOCATE).from(2).sized(3),
    Shape::fd("posix_fallocate", Kind::ALLOCATE).from(1).sized(2).fails(Fails::Error),
    Shape::fd("posix_fadvise", Kind::ADVISE).from(1).sized(2).fails(Fails::Error),
    Shape::fd("readahead", Kind::ADVISE).from(1).sized(2),
    Shape::path("stat", Kind::STAT),
    Shape::path("lstat", Kind::STAT),
    Shape::at("fstatat", Kind::STAT),
    Shape::fd("fstat", Kind::FSTAT),
    Shape::new("__xstat", Kind::STAT, About::Path(1)),
    Shape::new("__lxstat", Kind::STAT, About::Path(1)),
    Shape::new("__fxstat", Kind::FSTAT, About::Descriptor(1)),
    Shape::new("__fxstatat", Kind::STAT, About::At(1, 2)),
    Shape::at("statx", Kind::STAT),
    Shape::path("access", Kind::ACCESS),
    Shape::path("euidaccess", Kind::ACCESS),
    Shape::at("faccessat", Kind::ACCESS),
    Shape::path("statfs", Kind::STATFS),
    Shape::fd("fstatfs", Kind::STATFS),
    Shape::path("statvfs", Kind::STATFS),
    Shape::fd("fstatvfs", Kind::STATFS),
    Shape::path("opendir", Kind::READDIR).opens(Opens::Directory),
    Shape::new("closedir", Kind::CLOSE, About::Directory(0)),
    Shape::new("readdir", Kind::READDIR, About::Directory(0)).fails(Fails::Never),
    Shape::new("readdir_r", Kind::READDIR, About::Directory(0)).fails(Fails::Error),
    Shape::new("rewinddir", Kind::READDIR, About::Directory(0)).fails(Fails::Never),
    Shape::new("seekdir", Kind::READDIR, About::Directory(0)).fails(Fails::Never),
    Shape::fd("getdents64", Kind::READDIR).sized(2),
    Shape::fd("getdirentries", Kind::READDIR).sized(2),
    Shape::path("unlink", Kind::UNLINK),
    Shape::at("unlinkat", Kind::UNLINK),
    Shape::path("remove", Kind::UNLINK),
    Shape::path("rmdir", Kind::RMDIR),
    Shape::path("mkdir", Kind::MKDIR),
    Shape::at("mkdirat", Kind::MKDIR),
    Shape::path("rename", Kind::RENAME),
    Shape::at("renameat", Kind::RENAME),
    Shape::at("renameat2", Kind::RENAME),
    Shape::path("link", Kind::LINK),
    Shape::at("linkat", Kind::LINK),
    Shape::new("symlink", Kind::SYMLINK, About::Path(1)),
    Shape::new("symlinkat", Kind::SYMLINK, About::At(1, 2)),
    Shape::path("readlink", Kind::READLINK),
    Shape::path("__readlink_chk", Kind::READLINK),
    Shape::at("readlinkat", Kind::READLINK),
    Shape::at("__readlinkat_chk", Kind::READLINK),
    Shape::path("realpath", Kind::READLINK).fails(Fails::Null),
    Shape::path("__realpath_chk", Kind::READLINK).fails(Fails::Null),
    Shape::path("canonicalize_file_name", Kind::READLINK).fails(Fails::Null),
    Shape::path("mknod", Kind::MKNOD),
    Shape::at("mknodat", Kind::MKNOD),
    Shape::path("mkfifo", Kind::MKNOD),
    Shape::at("mkfifoat", Kind::MKNOD),
    Shape::new("__xmknod", Kind::MKNOD, About::Path(1)),
    Shape::new("__xmknodat", Kind::MKNOD, About::At(1, 2)),
    Shape::path("chmod", Kind::CHMOD),
    Shape::path("lchmod", Kind::CHMOD),
    Shape::at("fchmodat", Kind::CHMOD),
    Shape::fd("fchmod", Kind::CHMOD),
    Shape::path("chown", Kind::CHOWN),
    Shape::path("lchown", Kind::CHOWN),
    Shape::at("fchownat", Kind::CHOWN),
    Shape::fd("fchown", Kind::CHOWN),
    Shape::path("utime", Kind::UTIMES),
    Shape::path("utimes", Kind::UTIMES),
    Shape::path("lutimes", Kind::UTIMES),
    Shape::at("utimensat", Kind::UTIMES),
    Shape::at("futimesat", Kind::UTIMES),
    Shape::fd("futimes", Kind::UTIMES),
    Shape::fd("futimens", Kind::UTIMES),
    Shape::path("getxattr", Kind::GETXATTR),
    Shape::path("lgetxattr", Kind::GETXATTR),
    Shape::fd("fgetxattr", Kind::GETXATTR),
    Shape::path("listxattr", Kind::GETXATTR),
    Shape::path("llistxattr", Kind::GETXATTR),
    Shape::fd("flistxattr", Kind::GETXATTR),
    Shape::path("setxattr", Kind::SETXATTR),
    Shape::path("lsetxattr", Kind::SETXATTR),
    Shape::fd("fsetxattr", Kind::SETXATTR),
    Shape::path("removexattr", Kind::SETXATTR),
    Shape::path("lremovexattr", Kind::SETXATTR),
    Shape::fd("fremovexattr", Kind::SETXATTR),
    Shape::fd("dup", Kind::DUP).opens(Opens::Descriptor),
    Shape::fd("dup2", Kind::DUP).opens(Opens::Descriptor),
    Shape::fd("dup3", Kind::DUP).opens(Opens::Descriptor),
    Shape::fd("fcntl", Kind::FCNTL),
    Shape::fd("ioctl", Kind::FCNTL),
    Shape::fd("flock", Kind::LOCK),
    Shape::fd("lockf", Kind::LOCK),
    Shape::path("chdir", Kind::CHDIR),
    Shape::fd("fchdir", Kind::CHDIR),
    Shape::new("mmap", Kind::MMAP, About::Descriptor(4)).sized(1).from(5),
    Shape::new("munmap", Kind::MUNMAP, About::Inside).sized(1),
    Shape::new("mremap", Kind::MUNMAP, About::Inside).sized(2),
    Shape::new("msync", Kind::MSYNC, About::Inside).sized(1),
    Shape::new("copy_file_range", Kind::COPY, About::Descriptors(0, 2)).moves(4),
    Shape::new("sendfile", Kind::COPY, About::Descriptors(0, 1)).moves(3),
    Shape::new("splice", Kind::COPY, About::Descriptors(0, 2)).moves(4),
];

/// The shape of the hook of this name, if it is a file call.
pub(crate) const fn named(name: &str) -> Option<&'static Shape> {
    let mut at = 0;
    while at < SHAPES.len() {
        if same(SHAPES[at].name.as_bytes(), name.as_bytes()) {
            return Some(&SHAPES[at]);
        }
        at += 1;
    }
    None
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_found_by_its_whole_name_and_has_one_shape() {
        assert_eq!(named("pread").map(|shape| shape.kind), Some(Kind::PREAD));
        assert!(named("prea").is_none() && named("preadv3").is_none() && named("sigaction").is_none());
        for shape in SHAPES {
            assert_eq!(SHAPES.iter().filter(|other| other.name == shape.name).count(), 1, "{}", shape.name);
        }
    }

    #[test]
    fn arguments_lie_among_those_that_are_kept() {
        for shape in SHAPES {
            let about = match shape.about {
                About::Descriptor(at) | About::Descriptors(_, at) | About::Directory(at) => at,
                About::Path(at) | About::At(_, at) => at,
                About::Inside => 0,
            };
            let kept = |at: u8| at == NO || usize::from(at) < WORDS;
            assert!(kept(about) && kept(shape.bytes) && kept(shape.offset), "{}", shape.name);
        }
    }
}
