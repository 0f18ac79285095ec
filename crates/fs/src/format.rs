//! Making an empty file system.

use crate::error::FsError;
use crate::filesystem::FileSystem;
use crate::metadata::zone::ZONE_BOUND;
use crate::options::Clock;
use crate::status::MODE_BITS;
use nvmed_io::{Binding, Device};
use nvmed_kv::{Barrier, Batch, DeviceMedium, Medium, PendingMemory, Store};
use nvmed_layout::record::{Counters, Record};
use nvmed_layout::superblock::{Choice, META_BLOCKS_MIN, Superblock};
use nvmed_layout::{FileType, LayoutError, ROOT, copies, keys, region};
use nvmed_sys::host_clock;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{BLOCK_BYTES, Block};
use std::sync::Arc;

/// One block of metadata for this many blocks of the device, unless told otherwise.
const META_SHARE: u64 = 8;
/// Memory for the log of the two batches that a format writes: the least that a store takes.
const PENDING_BYTES: usize = 128 << 10;

/// Settings of a new file system.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// A name for people, at most 64 bytes.
    pub label: String,
    /// Its identity; none draws one.
    pub uuid: Option<[u8; 16]>,
    /// Bytes of the device, from its start, that the file system has; none is all of it.
    pub bytes: Option<u64>,
    /// Bytes for metadata; none is an eighth of the file system, at least 4 MiB.
    pub meta_bytes: Option<u64>,
    /// Names below a directory beyond which it gets a zone of its own: what renaming a directory costs at
    /// most. 0 makes every directory a zone, [`crate::ZONE_BOUND_NONE`] none.
    pub zone_bound: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permissions.
    pub mode: u32,
    /// The time of formatting comes from here.
    pub clock: Clock,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            uuid: None,
            bytes: None,
            meta_bytes: None,
            zone_bound: ZONE_BOUND,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o755,
            clock: host_clock,
        }
    }
}

fn random_uuid() -> Result<[u8; 16], FsError> {
    let mut uuid = [0; 16];
    let got = rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())?;
    debug_assert_eq!(got, uuid.len(), "getrandom(2) gives up to 256 bytes at once");
    // RFC 9562, 5.4: version 4, variant 10.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

impl FileSystem {
    /// Makes an empty file system on a device. Everything on it is lost.
    ///
    /// The superblocks go first and come last: a format that is cut off leaves no file system.
    ///
    /// # Errors
    /// [`FsError::Format`] when the device is too small or an option makes no sense; the device's.
    pub fn format(device: &Arc<Device>, options: &FormatOptions) -> Result<(), FsError> {
        let room = DeviceMedium::device_blocks(device)?;
        let blocks = options.bytes.map_or(room, |bytes| bytes / BLOCK_BYTES as u64);
        if blocks > room {
            return Err(FsError::Format("the device is smaller than the file system is to be"));
        }
        let default = (blocks / META_SHARE).max(META_BLOCKS_MIN);
        let meta_blocks = options.meta_bytes.map_or(default, |bytes| bytes / BLOCK_BYTES as u64);
        let uuid = options.uuid.map_or_else(random_uuid, Ok)?;
        let now = (options.clock)();
        let superblock = Superblock::lay_out(&Choice {
            blocks,
            meta_blocks,
            uuid,
            label: &options.label,
            zone_bound: options.zone_bound,
            created_ns: now,
        })?;
        let whole = DeviceMedium::new(device, device.handle(Binding::Spread), Block(0)..Block(blocks))?;
        let erased = [0; BLOCK_BYTES];
        region::store(&whole, Block(0), &erased)?;
        region::store(&whole, Block(blocks - 1), &erased)?;
        write_root(region::metadata(device, None, &superblock)?, &superblock, options, now)?;
        let block = superblock.encode();
        region::store(&whole, Block(blocks - 1), &block)?;
        region::store(&whole, Block(0), &block)?;
        Ok(whole.flush().map_err(LayoutError::from)?)
    }

    /// Whether both ends of a device are blank: nobody's superblock is there.
    ///
    /// # Errors
    /// The device's.
    pub fn is_blank(device: &Arc<Device>) -> Result<bool, FsError> {
        /// Superblocks of other file systems and partition tables begin within this many blocks.
        const LOOKED_AT: u64 = 32;
        let blocks = DeviceMedium::device_blocks(device)?;
        let whole = DeviceMedium::new(device, device.handle(Binding::Spread), Block(0)..Block(blocks))?;
        let mut head = vec![0; LOOKED_AT.min(blocks) as usize * BLOCK_BYTES];
        let mut tail = head.clone();
        region::fetch(&whole, Block(0), &mut head)?;
        region::fetch(&whole, Block(blocks - (tail.len() / BLOCK_BYTES) as u64), &mut tail)?;
        Ok(head.iter().chain(&tail).all(|&byte| byte == 0))
    }

    /// Reads the superblock of a device without mounting it.
    ///
    /// # Errors
    /// [`FsError::Layout`] when it holds none that this program can use; the
    /// device's.
    pub fn probe(device: &Arc<Device>) -> Result<Superblock, FsError> {
        Ok(copies::load(device, &device.handle(Binding::Spread))?.0)
    }
}

/// A store with the root directory and the counters.
fn write_root(
    region: DeviceMedium,
    superblock: &Superblock,
    options: &FormatOptions,
    now_ns: i64,
) -> Result<(), FsError> {
    let identity = u64::from_le_bytes(superblock.uuid[..8].try_into().expect("a UUID has sixteen bytes"));
    let settings = nvmed_kv::Options { identity, ..nvmed_kv::Options::default() };
    Store::format(&region, &settings)?;
    let memory = Arc::new(Mapping::anonymous(PENDING_BYTES, Pages::Base)?);
    let pending = PendingMemory { memory, offset: 0, len: PENDING_BYTES };
    let store = Store::open(Arc::new(region), pending, &settings)?;
    let root = Record::new(FileType::Directory, options.mode & MODE_BITS, options.uid, options.gid, now_ns);
    let counters = Counters {
        free_blocks: superblock.data_blocks,
        inodes: 1,
        next_ino: ROOT.next(),
        cursor: Block(superblock.data_first),
    };
    let mut batch = Batch::new();
    batch.put(&keys::inode(ROOT), &root.encode());
    batch.put(&keys::counters(), &counters.encode());
    let sequence = store.apply(&batch)?;
    store.commit(sequence, Barrier::None)?;
    store.close()?;
    Ok(())
}
