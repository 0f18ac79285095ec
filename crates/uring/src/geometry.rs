//! What a file or block device is: its size, its alignment, what the kernel knows of it.

use crate::error::UringError;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, FileType, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

/// The smallest logical block.
pub(crate) const SECTOR_BYTES: u32 = 512;
/// The largest that is tried.
const PAGE_BYTES: u32 = 4096;

/// What the host says of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) block_device: bool,
    pub(crate) bytes: u64,
    /// Whether I/O goes past the page cache, and what it needs then: alignment of memory, and of
    /// offsets and lengths.
    pub(crate) direct: bool,
    pub(crate) memory_align: u32,
    pub(crate) offset_align: u32,
    /// Bytes that the disk behind it takes as one, where it says.
    pub(crate) whole_bytes: Option<u32>,
    /// Whether completed writes can be lost by a power cut.
    pub(crate) volatile: bool,
    pub(crate) serial: String,
    pub(crate) model: String,
}

/// Finds out what is behind `fd`, and switches it to direct I/O where that is asked for and possible.
///
/// # Errors
/// The host does not answer.
pub(crate) fn survey(fd: BorrowedFd<'_>, path: &str, direct: bool) -> Result<Host, UringError> {
    let fail = |errno| UringError::open(path, errno);
    let stat = rustix::fs::fstat(fd).map_err(fail)?;
    let block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let bytes = if block_device {
        rustix::fs::seek(fd, SeekFrom::End(0)).map_err(fail)?
    } else {
        stat.st_size.cast_unsigned()
    };
    let least = if block_device { rustix::fs::ioctl_blksszget(fd).map_err(fail)? } else { SECTOR_BYTES };
    let alignment = if direct { direct_alignment(fd, least) } else { None };
    let (memory_align, offset_align) = alignment.unwrap_or((1, least));
    let how = if alignment.is_some() { "direct" } else { "buffered" };
    let (model, serial) = if block_device {
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let name = attribute(major, minor, "device/model");
        let model = name.unwrap_or_else(|| format!("block device {major}:{minor}"));
        (model, attribute(major, minor, "device/serial").unwrap_or_default())
    } else {
        ("file".to_owned(), format!("{:x}-{}", stat.st_dev, stat.st_ino))
    };
    let disk = if block_device { stat.st_rdev } else { stat.st_dev };
    let volatile = !block_device || alignment.is_none() || write_back(stat.st_rdev);
    Ok(Host {
        block_device,
        bytes,
        direct: alignment.is_some(),
        memory_align,
        offset_align,
        whole_bytes: whole_bytes(disk),
        volatile,
        serial,
        model: format!("{model} ({how})"),
    })
}

/// Switches to direct I/O; answers the alignments of memory and of offsets, `None` where it is not
/// possible, and then the file is as before.
fn direct_alignment(fd: BorrowedFd<'_>, least: u32) -> Option<(u32, u32)> {
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT).ok()?;
    let back = || {
        // What was set before can be set again.
        let _ = rustix::fs::fcntl_setfl(fd, flags);
        None
    };
    let known = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let known = known.filter(|known| known.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    if let Some(known) = known {
        if known.stx_dio_offset_align == 0 {
            return back();
        }
        return Some((known.stx_dio_mem_align.max(4), known.stx_dio_offset_align.max(least)));
    }
    // A kernel or file system that does not say: what works is possible.
    let sizes = [SECTOR_BYTES, PAGE_BYTES].into_iter().filter(|&size| size >= least);
    sizes.into_iter().find(|&size| readable(fd, size)).map(|size| (size, size)).or_else(back)
}

/// Memory that every device can reach.
#[repr(align(4096))]
struct Aligned([u8; 2 * PAGE_BYTES as usize]);

/// Whether direct reads of `bytes` bytes work, offset and memory aligned to no more than that.
fn readable(fd: BorrowedFd<'_>, bytes: u32) -> bool {
    let mut memory = Aligned([0; 2 * PAGE_BYTES as usize]);
    let bytes = bytes as usize;
    rustix::io::pread(fd, &mut memory.0[bytes..2 * bytes], bytes as u64).is_ok()
}

/// `/sys/dev/block/MAJOR:MINOR/NAME`, also of the whole disk of a partition.
fn attribute(major: u32, minor: u32, name: &str) -> Option<String> {
    ["", "../"].iter().find_map(|up| {
        let text = read_line(&format!("/sys/dev/block/{major}:{minor}/{up}{name}")).ok()?;
        (!text.is_empty()).then_some(text)
    })
}

/// Bytes that the disk takes as one command, wherever its memory lies.
fn whole_bytes(device: rustix::fs::Dev) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let limit = |name| attribute(major, minor, name)?.parse::<u32>().ok();
    let bytes = limit("queue/max_sectors_kb")?.saturating_mul(1024);
    // The first of the pages may be a part of one.
    let pages = limit("queue/max_segments")?.saturating_sub(1).saturating_mul(PAGE_BYTES);
    Some(bytes.min(pages).max(PAGE_BYTES) & !(PAGE_BYTES - 1))
}

/// Whether the disk has a volatile write cache; one that does not say is taken to have one.
fn write_back(device: rustix::fs::Dev) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    attribute(major, minor, "queue/write_cache").is_none_or(|mode| mode != "write through")
}

/// The first line of a small file.
pub(crate) fn read_line(path: &str) -> Result<String, Errno> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    let mut text = [0; 256];
    let len = rustix::io::read(&fd, &mut text)?;
    let line = String::from_utf8_lossy(&text[..len]);
    Ok(line.lines().next().unwrap_or_default().trim().to_owned())
}

/// The kernel's release, for who asks which firmware a file has.
pub(crate) fn release() -> String {
    format!("Linux {}", rustix::system::uname().release().to_string_lossy())
}
