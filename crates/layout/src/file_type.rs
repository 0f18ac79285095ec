//! What an inode is, and the numbers by which records and entries say it: those of `d_type` (readdir(3)).

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A named pipe; `DT_FIFO`. Names of this and of the kinds below can be made; what happens at them is
    /// the kernel's.
    Fifo = 1,
    /// A character device; `DT_CHR`.
    CharDevice = 2,
    /// A block device; `DT_BLK`.
    BlockDevice = 6,
    /// A socket; `DT_SOCK`.
    Socket = 12,
    /// A regular file; `DT_REG`.
    File = 8,
    /// A directory; `DT_DIR`.
    Directory = 4,
    /// A symbolic link; `DT_LNK`.
    Symlink = 10,
}

/// `S_IFMT`: the bits of `st_mode` that hold the kind.
pub const MODE_KIND: u32 = 0o170_000;

impl FileType {
    /// The kind as bits of `st_mode`.
    #[must_use]
    pub const fn mode(self) -> u32 {
        (self as u32) << 12
    }

    /// The kind that `d_type` names, if it is one of ours.
    #[must_use]
    pub const fn of(d_type: u8) -> Option<Self> {
        match d_type {
            1 => Some(Self::Fifo),
            2 => Some(Self::CharDevice),
            6 => Some(Self::BlockDevice),
            8 => Some(Self::File),
            4 => Some(Self::Directory),
            10 => Some(Self::Symlink),
            12 => Some(Self::Socket),
            _ => None,
        }
    }

    /// The kind of an `st_mode`; none for one of more than sixteen bits.
    #[must_use]
    pub fn of_mode(mode: u32) -> Option<Self> {
        u8::try_from(mode >> 12).ok().and_then(Self::of)
    }

    /// Whether it is made by `mknod` and has no data of ours.
    #[must_use]
    pub const fn is_special(self) -> bool {
        matches!(self, Self::Fifo | Self::CharDevice | Self::BlockDevice | Self::Socket)
    }

    /// The `d_type` of a directory entry.
    #[must_use]
    pub const fn d_type(self) -> u8 {
        self as u8
    }
}
