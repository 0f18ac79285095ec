//! What a device already holds, by the marks that file systems, volumes and files leave at fixed places.
//!
//! Offsets and magic numbers are those of each format's own documentation, as collected in
//! util-linux's libblkid.

use core::fmt;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// Bytes read from the front: ZFS keeps its uberblocks up to here.
const FRONT_BYTES: usize = 256 << 10;
/// Bytes read from the end: the 0.90 md superblock lies at most this far from it.
const BACK_BYTES: u64 = 128 << 10;

/// The mark that a device carries of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The name of what it holds, with an article.
    pub what: &'static str,
    /// The byte of the device at which its mark lies.
    pub offset: u64,
    /// Whether a device is what it is meant for: a file system, a volume, a partition table, swap, a store of
    /// ours. Other data (an archive, bytes of an unknown kind) may be what a program keeps on its own raw device.
    pub formatted: bool,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (its mark is at byte {})", self.what, self.offset)
    }
}

/// A mark: bytes at an offset from the front.
struct Mark {
    name: &'static str,
    offset: usize,
    magic: &'static [u8],
    formatted: bool,
}

const fn mark(name: &'static str, offset: usize, magic: &'static [u8]) -> Mark {
    Mark { name, offset, magic, formatted: true }
}

/// The mark of a file.
const fn data(name: &'static str, offset: usize, magic: &'static [u8]) -> Mark {
    Mark { name, offset, magic, formatted: false }
}

/// The first that matches names the device, so longer and rarer marks stand first.
const MARKS: [Mark; 47] = [
    mark("an nvmed file system", 0, b"NVMEDFS"),
    mark("an nvmed key-value store", 0, b"NVMEDKV"),
    mark("an xfs file system", 0, b"XFSB"),
    mark("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    mark(
        "a bcachefs file system",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    mark("a bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    mark("an f2fs file system", 1024, b"\x10\x20\xf5\xf2"),
    mark("an erofs file system", 1024, b"\xe2\xe1\xf5\xe0"),
    mark("a squashfs file system", 0, b"hsqs"),
    mark("a reiserfs file system", 0x1_0034, b"ReIsErFs"),
    mark("a reiserfs file system", 0x1_0034, b"ReIsEr2Fs"),
    mark("a jfs file system", 0x8000, b"JFS1"),
    mark("an ISO 9660 file system", 0x8001, b"CD001"),
    mark("an ntfs file system", 3, b"NTFS    "),
    mark("an exfat file system", 3, b"EXFAT   "),
    mark("a vfat file system", 82, b"FAT32   "),
    mark("a vfat file system", 54, b"FAT16   "),
    mark("a vfat file system", 54, b"FAT12   "),
    mark("a swap area", 4096 - 10, b"SWAPSPACE2"),
    mark("a swap area", 16384 - 10, b"SWAPSPACE2"),
    mark("a swap area", 65536 - 10, b"SWAPSPACE2"),
    mark("a LUKS volume", 0, b"LUKS\xba\xbe"),
    mark("a LUKS volume", 16384, b"SKUL\xba\xbe"),
    mark("an LVM physical volume", 0, b"LABELONE"),
    mark("an LVM physical volume", 512, b"LABELONE"),
    mark("an LVM physical volume", 1024, b"LABELONE"),
    mark("an LVM physical volume", 1536, b"LABELONE"),
    mark("a Ceph BlueStore device", 0, b"bluestore block device"),
    mark("a member of an md RAID", 0, b"\xfc\x4e\x2b\xa9"),
    mark("a member of an md RAID", 4096, b"\xfc\x4e\x2b\xa9"),
    mark("a GPT partition table", 512, b"EFI PART"),
    mark("a GPT partition table", 4096, b"EFI PART"),
    data("an SQLite database", 0, b"SQLite format 3\0"),
    data("a qcow2 disk image", 0, b"QFI\xfb"),
    data("a VMDK disk image", 0, b"KDMV"),
    data("a VHDX disk image", 0, b"vhdxfile"),
    data("a VirtualBox disk image", 0x40, b"\x7f\x10\xda\xbe"),
    data("a tar archive", 257, b"ustar"),
    data("a zip archive", 0, b"PK\x03\x04"),
    data("gzip data", 0, b"\x1f\x8b\x08"),
    data("xz data", 0, b"\xfd7zXZ\0"),
    data("zstd data", 0, b"\x28\xb5\x2f\xfd"),
    data("bzip2 data", 0, b"BZh"),
    data("7-zip data", 0, b"7z\xbc\xaf\x27\x1c"),
    data("a program", 0, b"\x7fELF"),
    data("a PDF document", 0, b"%PDF-"),
    data("a PNG picture", 0, b"\x89PNG\r\n\x1a\n"),
];

/// What a device of `bytes` bytes holds; `None` when it holds nothing but zeroes. `read` answers up to so
/// many bytes from an offset.
///
/// # Errors
/// It cannot be read.
pub fn find<E>(
    bytes: u64,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Option<Signature>, E> {
    let front = read(0, usize::try_from(bytes).unwrap_or(FRONT_BYTES).min(FRONT_BYTES))?;
    let back_from = bytes.saturating_sub(BACK_BYTES) & !0xfff;
    let back = read(back_from, usize::try_from(bytes - back_from).unwrap_or(0))?;
    Ok(in_front(&front).or_else(|| in_back(&back, back_from, bytes)).or_else(|| unknown(&front)))
}

/// As [`find`], in a file.
///
/// # Errors
/// It cannot be read.
pub fn find_in_file(fd: impl AsFd, bytes: u64) -> Result<Option<Signature>, Errno> {
    find(bytes, |offset, len| read_at(&fd, offset, len))
}

fn read_at(fd: &impl AsFd, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(fd, &mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn in_front(front: &[u8]) -> Option<Signature> {
    let plain = MARKS.iter().find(|mark| at(front, mark.offset, mark.magic)).map(|mark| Signature {
        what: mark.name,
        offset: mark.offset as u64,
        formatted: mark.formatted,
    });
    plain.or_else(|| ext(front)).or_else(|| zfs(front)).or_else(|| mbr(front))
}

fn formatted(what: &'static str, offset: u64) -> Signature {
    Signature { what, offset, formatted: true }
}

fn at(bytes: &[u8], offset: usize, magic: &[u8]) -> bool {
    bytes.get(offset..offset + magic.len()) == Some(magic)
}

/// ext2, ext3 and ext4 share a magic number; features tell them apart (ext4 disk layout, "Super Block").
fn ext(front: &[u8]) -> Option<Signature> {
    if !at(front, 0x438, b"\x53\xef") {
        return None;
    }
    let word =
        |offset: usize| front.get(offset..offset + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (compatible, incompatible) = (word(0x45c)?, word(0x460)?);
    // Extents, 64-bit, flexible groups; any other new feature is ext4's too.
    let what = match (incompatible & !0x16 != 0, compatible & 4 != 0) {
        (true, _) => "an ext4 file system",
        (false, true) => "an ext3 file system",
        (false, false) => "an ext2 file system",
    };
    Some(formatted(what, 0x438))
}

/// A ZFS label's ring of uberblocks starts 128 KiB into it (ZFS on-disk specification, 1.3.3).
fn zfs(front: &[u8]) -> Option<Signature> {
    let mut ring = (128 << 10..FRONT_BYTES).step_by(1024);
    let magic = 0x00ba_b10c_u64;
    ring.find(|&offset| at(front, offset, &magic.to_le_bytes()) || at(front, offset, &magic.to_be_bytes()))
        .map(|offset| formatted("a zfs pool member", offset as u64))
}

/// A partition table has its mark and at least one entry that makes sense: boot loaders of plain
/// file systems carry the mark too.
fn mbr(front: &[u8]) -> Option<Signature> {
    let entries = front.get(446..510)?;
    let good =
        entries.chunks(16).all(|entry| entry[0] & 0x7f == 0) && entries.chunks(16).any(|entry| entry[4] != 0);
    (at(front, 510, b"\x55\xaa") && good).then_some(formatted("an MBR partition table", 510))
}

/// Marks at the end: md RAID 0.90 and 1.0 (md(4), "SUPER-BLOCKS"), ours in its far copy.
fn in_back(back: &[u8], from: u64, bytes: u64) -> Option<Signature> {
    let md = b"\xfc\x4e\x2b\xa9";
    let old = (bytes & !0xffff).checked_sub(65536);
    let new = (bytes & !0xfff).checked_sub(8192);
    let here = |place: Option<u64>, magic: &[u8], what: &'static str| {
        let place = place
            .filter(|place| place.checked_sub(from).is_some_and(|offset| at(back, offset as usize, magic)))?;
        Some(formatted(what, place))
    };
    let raid = "a member of an md RAID";
    let last = (bytes & !0xfff).checked_sub(4096);
    here(old, md, raid)
        .or_else(|| here(new, md, raid))
        .or_else(|| here(last, b"NVMEDFS", "an nvmed file system (its first superblock is damaged)"))
}

/// Anything else that is not blank is somebody's data all the same.
fn unknown(front: &[u8]) -> Option<Signature> {
    let offset = front.iter().position(|&byte| byte != 0)? as u64;
    Some(Signature { what: "data of a kind that nvmed does not know", offset, formatted: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What `find` says of an image of 1 MiB with `magic` at `offset`.
    fn found(offset: usize, magic: &[u8]) -> Option<&'static str> {
        let mut image = vec![0; 1 << 20];
        image[offset..offset + magic.len()].copy_from_slice(magic);
        find_in(&image)
    }

    fn find_in(image: &[u8]) -> Option<&'static str> {
        whole(image).map(|found| found.what)
    }

    fn whole(image: &[u8]) -> Option<Signature> {
        let fd = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&fd, image, 0).unwrap();
        find_in_file(&fd, image.len() as u64).unwrap()
    }

    #[test]
    fn every_mark_is_found_under_its_name() {
        for mark in &MARKS {
            assert_eq!(found(mark.offset, mark.magic), Some(mark.name));
        }
    }

    /// What is meant for a device is told from what a program may keep on one of its own.
    #[test]
    fn files_are_told_from_file_systems() {
        let at = |offset: usize, magic: &[u8]| {
            let mut image = vec![0; 1 << 20];
            image[offset..offset + magic.len()].copy_from_slice(magic);
            whole(&image).map(|found| (found.formatted, found.offset))
        };
        assert_eq!(at(0, b"NVMEDFS2"), Some((true, 0)));
        assert_eq!(at(0x438, b"\x53\xef"), Some((true, 0x438)));
        assert_eq!(at((1 << 20) - 4096, b"NVMEDFS2"), Some((true, (1 << 20) - 4096)));
        assert_eq!(at(0, b"\x1f\x8b\x08"), Some((false, 0)));
        assert_eq!(at(1000, b"hello"), Some((false, 1000)));
    }

    #[test]
    fn marks_that_need_thought() {
        assert_eq!(found(0x438, b"\x53\xef"), Some("an ext2 file system"));
        let superblock = |compatible: u8, incompatible: u8| {
            let mut bytes = vec![0; 0x80];
            bytes[0x38..0x3a].copy_from_slice(b"\x53\xef");
            (bytes[0x5c], bytes[0x60]) = (compatible, incompatible);
            bytes
        };
        assert_eq!(found(0x400, &superblock(4, 2)), Some("an ext3 file system"));
        assert_eq!(found(0x400, &superblock(4, 0x42)), Some("an ext4 file system"));
        assert_eq!(found((128 << 10) + 4096, &0x00ba_b10c_u64.to_le_bytes()), Some("a zfs pool member"));
        assert_eq!(found((1 << 20) - 65536, b"\xfc\x4e\x2b\xa9"), Some("a member of an md RAID"));
        assert_eq!(found((1 << 20) - 8192, b"\xfc\x4e\x2b\xa9"), Some("a member of an md RAID"));
        let mut table = [0; 66];
        (table[4], table[64], table[65]) = (0x83, 0x55, 0xaa);
        assert_eq!(found(446, &table), Some("an MBR partition table"));
    }

    #[test]
    fn blank_is_blank_and_the_rest_is_data() {
        assert_eq!(find_in(&vec![0; 1 << 20]), None);
        assert_eq!(find_in(&[]), None);
        assert_eq!(find_in(b"dear diary"), Some("data of a kind that nvmed does not know"));
        let far = found((1 << 20) - 4096, b"NVMEDFS2");
        assert_eq!(far, Some("an nvmed file system (its first superblock is damaged)"));
    }

    proptest! {
        /// Any bytes of any length: an answer, no panic, and never "blank" for what is not.
        #[test]
        fn fuzz_any_image_is_answered(image in proptest::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert_eq!(find_in(&image).is_none(), image.iter().all(|&byte| byte == 0));
        }
    }
}
