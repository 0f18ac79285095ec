//! The file system, and what the kernel holds of it: which inode, which description, whose.

use crate::error::Refusal;
use crate::handle::Handles;
use crate::node::Nodes;
use crate::place::HOLDER_ATTRIBUTE;
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, InitFlags, Request};
use nvmed_fs::{
    Allocate, Credentials, FileSystem, Follow, FsError, Node, Object, OpenFlags, RenameFlags, SetXattr, Time,
    Whence,
};
use nvmed_io::caller::{Processes, Urgency};
use nvmed_io::{Device, Source};
use nvmed_stack::Mount;
use nvmed_sys::sync::Arc;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Largest read or write of one request: what the kernel splits larger ones into (256 pages, its own default limit).
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way without a caller that waits (readahead, mapped pages, releases).
pub(crate) const BACKGROUND_MAX: u16 = 64;
/// What the kernel is asked for; a kernel that lacks one does without.
///
/// Not FUSE_ATOMIC_O_TRUNC: with it the file is cut when it is opened, and only then the kernel sees that it is a
/// program that runs and answers ETXTBSY. The program has lost its pages by then (pjdfstest, `open::etxtbsy`).
pub(crate) const ABILITIES: [InitFlags; 9] = [
    // Listing brings attributes along, when somebody asks for them.
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    // Lookups and listings of one directory go on side by side.
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // Cached pages are right until we say otherwise: without it a new mtime would throw them away.
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    // Writing takes setuid and setgid off here, so that the kernel need not ask before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    // Direct requests of several pages may be under way at once, and a file open for them may be mapped.
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_NO_EXPORT_SUPPORT,
];

pub(crate) type Answer<T> = Result<T, Refusal>;

/// The file system and what the kernel holds of it.
pub(crate) struct Server {
    pub(crate) files: FileSystem,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    /// Offset and length of direct I/O are multiples of this.
    direct_align: u64,
    /// Whether reading is recorded in access times; the kernel's own `noatime` says nothing about ours.
    atime: bool,
    /// The process that ends last, for whoever unmounts and wants to wait.
    holder: u32,
    device: Arc<Device>,
    callers: Processes,
}

/// Whoever asks: the kernel has permitted it.
pub(crate) fn who(request: &Request) -> Credentials<'static> {
    Credentials::permitted(request.uid(), request.gid())
}

/// For calls that make nothing: whose they are is of no interest.
pub(crate) const PERMITTED: Credentials<'static> = Credentials::permitted(0, 0);

fn is_direct(flags: i32) -> bool {
    OpenFlags(flags.cast_unsigned()).has(OpenFlags::DIRECT)
}

/// How the kernel is to treat an open file. What it has cached of it stays right: nobody else writes.
pub(crate) fn treatment(flags: i32) -> FopenFlags {
    if is_direct(flags) {
        FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    }
}

impl Server {
    pub(crate) fn new(mount: &Mount, atime: bool, holder: u32) -> Self {
        let (files, device) = ((**mount).clone(), Arc::clone(mount.device()));
        let nodes = Nodes::new(files.root());
        let direct_align = u64::from(device.geometry().lba_bytes).max(512);
        let callers = Processes::default();
        Self { files, nodes, handles: Handles::default(), direct_align, atime, holder, device, callers }
    }

    /// How urgent a request is that the kernel makes for a thread, 0 for none, by its number where the mount was made;
    /// nothing is said as long as nobody is urgent.
    pub(crate) fn urgency_of(&self, thread: u32) -> Option<Urgency> {
        let urgency = self.callers.of(thread);
        if !self.device.has_urgent() {
            if !urgency.is_urgent() {
                return None;
            }
            self.device.expect_urgent(Source::Told);
        }
        Some(urgency)
    }

    /// The flags that a description of ours keeps. Where a write goes (`O_APPEND`) the kernel knows, truncation is a
    /// request of its own; `O_DIRECT` can change later and comes with each request.
    pub(crate) fn kept(&self, flags: i32) -> OpenFlags {
        const KEPT: u32 = 3 | OpenFlags::SYNC.0 | OpenFlags::NOATIME.0;
        let kept = OpenFlags(flags.cast_unsigned() & KEPT);
        if self.atime { kept } else { kept.with(OpenFlags::NOATIME) }
    }

    /// The inode that a name stands for, counted.
    pub(crate) fn find(&self, parent: INodeNo, name: &OsStr) -> Answer<Node> {
        let parent = self.nodes.get(parent)?;
        let node = self.files.lookup(&parent, name.as_bytes(), Follow::No, &PERMITTED)?;
        self.nodes.enter(&node);
        Ok(node)
    }

    /// Makes something by `make` and finds it. The kernel keeps others from the directory meanwhile.
    pub(crate) fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce(&Node, &[u8]) -> Result<(), FsError>,
    ) -> Answer<Node> {
        make(&self.nodes.get(parent)?, name.as_bytes())?;
        self.find(parent, name)
    }

    pub(crate) fn set(
        &self,
        ino: INodeNo,
        owner: (Option<u32>, Option<u32>),
        mode: Option<u32>,
        size: Option<u64>,
        times: [Time; 2],
    ) -> Answer<Node> {
        let node = self.nodes.get(ino)?;
        if let Some(size) = size {
            self.files.truncate(Object::Held(&node), size, &PERMITTED)?;
        }
        if owner != (None, None) {
            self.files.chown(Object::Held(&node), owner.0, owner.1, &PERMITTED)?;
        }
        if let Some(mode) = mode {
            self.files.chmod(Object::Held(&node), mode, &PERMITTED)?;
        }
        self.files.utimens(Object::Held(&node), times, &PERMITTED)?;
        Ok(node)
    }

    pub(crate) fn open_file(&self, ino: INodeNo, flags: OpenFlags) -> Answer<FileHandle> {
        let file = self.files.open_node(&self.nodes.get(ino)?, flags, &PERMITTED)?;
        Ok(self.handles.keep(file))
    }

    /// The rule of `O_DIRECT`, as far as it can be seen from here: the buffer's address cannot.
    pub(crate) fn aligned(&self, flags: i32, offset: u64, bytes: usize) -> Answer<bool> {
        if !is_direct(flags) {
            return Ok(false);
        }
        if (offset | bytes as u64).is_multiple_of(self.direct_align) {
            Ok(true)
        } else {
            Err(Errno::EINVAL.into())
        }
    }

    pub(crate) fn take(&self, handle: FileHandle, offset: u64, into: &mut [u8], flags: i32) -> Answer<usize> {
        self.aligned(flags, offset, into.len())?;
        let file = self.handles.get(handle)?;
        let mut done = 0;
        // The kernel takes a short answer for the end of the file. After an error it asks for each page by itself.
        while done < into.len() {
            match file.pread(&mut into[done..], offset + done as u64)? {
                0 => break,
                more => done += more,
            }
        }
        Ok(done)
    }

    pub(crate) fn put(&self, handle: FileHandle, offset: u64, data: &[u8], flags: i32) -> Answer<usize> {
        let direct = self.aligned(flags, offset, data.len())?;
        let file = self.handles.get(handle)?;
        let written = file.pwrite(data, offset)?;
        if direct {
            // A direct write is on the device when it returns.
            file.sync_range(offset, written as u64)?;
        }
        Ok(written)
    }

    pub(crate) fn sync(&self, handle: FileHandle, datasync: bool) -> Answer<()> {
        let file = self.handles.get(handle)?;
        Ok(if datasync { file.fdatasync() } else { file.fsync() }?)
    }

    pub(crate) fn allocate(&self, handle: FileHandle, offset: u64, bytes: u64, mode: i32) -> Answer<()> {
        const KNOWN: i32 =
            libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let how = Allocate {
            keep_size: mode & libc::FALLOC_FL_KEEP_SIZE != 0,
            punch_hole: mode & libc::FALLOC_FL_PUNCH_HOLE != 0,
            zero_range: mode & libc::FALLOC_FL_ZERO_RANGE != 0,
        };
        Ok(self.handles.get(handle)?.fallocate(how, offset, bytes)?)
    }

    pub(crate) fn extended(&self, ino: INodeNo, name: &OsStr) -> Answer<Vec<u8>> {
        if name == HOLDER_ATTRIBUTE {
            return Ok(self.holder.to_string().into_bytes());
        }
        Ok(self.files.get_xattr(Object::Held(&self.nodes.get(ino)?), name.as_bytes(), &PERMITTED)?)
    }

    pub(crate) fn extend(&self, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32) -> Answer<()> {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::EINVAL.into()),
        };
        let node = self.nodes.get(ino)?;
        Ok(self.files.set_xattr(Object::Held(&node), name.as_bytes(), value, how, &PERMITTED)?)
    }

    pub(crate) fn seek(&self, handle: FileHandle, offset: i64, whence: i32) -> Answer<i64> {
        let whence = match whence {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            libc::SEEK_SET => Whence::Set,
            libc::SEEK_CUR => Whence::Current,
            libc::SEEK_END => Whence::End,
            _ => return Err(Errno::EINVAL.into()),
        };
        let to = self.handles.get(handle)?.seek(offset, whence)?;
        i64::try_from(to).map_err(|_| Errno::EOVERFLOW.into())
    }
}

pub(crate) fn rename_flags(flags: fuser::RenameFlags) -> Answer<RenameFlags> {
    match flags.bits() {
        0 => Ok(RenameFlags::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameFlags::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameFlags::Exchange),
        _ => Err(Errno::EINVAL.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_stack::{Config, Surroundings};

    /// `-o noatime` was told to the kernel alone, which leaves access times to us.
    #[test]
    fn without_atime_a_read_leaves_no_trace() {
        for atime in [false, true] {
            let device = nvmed_stack::DeviceSpec::parse("virtual:?media=dram,size=64M").unwrap();
            let config = Config { format: true, cache_bytes: 4 << 20, ..Config::new("/m".into(), device) };
            let mount = nvmed_stack::mount(&config, Surroundings::default()).unwrap();
            let server = Server::new(&mount, atime, 0);
            let how = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
            let file = server.files.open(&mount.root(), b"f", how, 0o600, &PERMITTED).unwrap();
            file.pwrite(b"bytes", 0).unwrap();
            server.files.utimens(Object::Held(&file.node()), [Time::At(1), Time::Omit], &PERMITTED).unwrap();
            server.nodes.enter(&file.node());
            let opened = server.open_file(INodeNo(file.node().ino()), server.kept(libc::O_RDONLY));
            let read = server.take(opened.ok().unwrap(), 0, &mut [0; 5], 0);
            assert!(matches!(read, Ok(5)));
            assert_eq!(file.stat().atime_ns == 1, !atime);
        }
    }
}
