//! A file system on a device in memory whose power can be cut.
#![allow(dead_code, reason = "each test binary uses its own part")]

use nvmed_check::Finding;
use nvmed_dice::Dice;
use nvmed_disk::{Fault, Image};
use nvmed_fs::{
    Credentials, FileSystem, FormatOptions, Memory, MemoryLayout, MountOptions, MountParts, OpenFlags,
    Superblock,
};
use nvmed_io::Device;
use nvmed_kv::{Medium, MediumError};
use nvmed_nvm::{FlushTo, MemoryOptions, NvmEngine, Place, What};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Block;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

pub use nvmed_disk::BLOCK;

/// Bytes that a cut of power leaves together.
pub const WORD: usize = 8;

/// The device, shared with whoever tests it.
pub struct Disk(Arc<nvmed_disk::Disk>);

impl core::ops::Deref for Disk {
    type Target = nvmed_disk::Disk;

    fn deref(&self) -> &nvmed_disk::Disk {
        &self.0
    }
}

impl Disk {
    pub fn new(bytes: u64) -> Arc<Self> {
        Self::of(Image::blank(bytes / BLOCK as u64))
    }

    fn of(image: Image) -> Arc<Self> {
        Arc::new(Self(nvmed_disk::Disk::prompt(image)))
    }

    pub fn writes(&self) -> u64 {
        self.counts().writes
    }

    /// Of the commands to come, number `first` (from 1) and some after it fail.
    pub fn fail(&self, first: u64, count: u64) {
        self.fail_with(Status::INTERNAL_ERROR, first, count);
    }

    /// As [`Disk::fail`], with that status.
    pub fn fail_with(&self, status: Status, first: u64, count: u64) {
        self.0.fail(Some(Fault { at: first, count, reads: false, status }));
    }

    /// The power goes after `writes` more writes.
    pub fn cut_after(&self, writes: u64) {
        self.fail(writes + 1, u64::MAX);
    }

    /// A device with what a power cut now leaves: of the cached sectors, those that `coin` keeps.
    pub fn survivor(&self, coin: impl FnMut() -> bool) -> Arc<Self> {
        Self::of(self.media().after_cut_by(coin))
    }

    /// A device with the same contents, nothing lost: another power-on after a clean end.
    pub fn copy(&self) -> Arc<Self> {
        Self::of(self.media().as_read())
    }

    pub fn device(&self) -> Arc<Device> {
        self.0.open(4).expect("the test disk opens")
    }

    /// Formats with a fixed identity.
    pub fn format(self: &Arc<Self>) -> &Arc<Self> {
        self.format_zones(nvmed_fs::ZONE_BOUND)
    }

    /// With a zone bound.
    pub fn format_zones(self: &Arc<Self>, zone_bound: u32) -> &Arc<Self> {
        let root = FormatOptions { uid: 0, gid: 0, ..FormatOptions::default() };
        let options = FormatOptions { uuid: Some([7; 16]), zone_bound, ..root };
        FileSystem::format(&self.device(), &options).expect("the test disk formats");
        self
    }

    pub fn mount(self: &Arc<Self>) -> FileSystem {
        self.mount_with(MountOptions::default(), 8 << 20)
    }

    pub fn mount_with(self: &Arc<Self>, options: MountOptions, cache_bytes: u64) -> FileSystem {
        self.try_mount(options, cache_bytes).expect("the file system mounts")
    }

    pub fn try_mount(
        self: &Arc<Self>,
        options: MountOptions,
        cache_bytes: u64,
    ) -> Result<FileSystem, nvmed_fs::FsError> {
        FileSystem::mount(MountParts {
            device: self.device(),
            bytes: None,
            memory: memory(cache_bytes),
            options,
        })
    }

    /// Unmounts, mounts again, and lets fsck look in between.
    pub fn remount(self: &Arc<Self>, files: FileSystem) -> FileSystem {
        files.unmount().expect("the file system unmounts");
        drop(files);
        self.assert_sound();
        self.mount()
    }

    /// As [`Disk::assert_sound`], right after a power cut: of a superblock that was being written the other copy
    /// counts.
    pub fn assert_sound_after_cut(self: &Arc<Self>) {
        let mut findings = nvmed_check::fsck(&self.device()).expect("fsck reads the device");
        findings.retain(|finding| !matches!(finding, Finding::Copy(lost) if lost.is_superblock()));
        assert!(findings.is_empty(), "fsck found {findings:#?}");
    }

    pub fn assert_sound(self: &Arc<Self>) {
        let findings = nvmed_check::fsck(&self.device()).expect("fsck reads the device");
        assert!(findings.is_empty(), "fsck found {findings:#?}");
    }
}

/// What a file system of a test lies on.
pub enum Ground {
    /// A device in memory whose power can be cut: the bytes of files are in pages of the cache.
    Disk(Arc<Disk>),
    /// Memory that keeps its bytes: those of files are where they stay.
    Medium(Arc<nvmed_nvm::Memory>),
}

impl Ground {
    /// A formatted one.
    pub fn disk(bytes: u64) -> Self {
        let disk = Disk::new(bytes);
        disk.format();
        Self::Disk(disk)
    }

    /// A formatted one.
    pub fn medium(bytes: u64) -> Self {
        Self::on_medium(Place::Ram { bytes }, &[])
    }

    /// A formatted one in a file, with the file.
    pub fn medium_in_file(bytes: u64) -> (Self, File) {
        let file = File::from(memfd_create("medium", MemfdFlags::CLOEXEC).expect("the host has memory"));
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        (Self::on_medium(Place::File { path, size: Some(bytes), lock: true }, &[]), file)
    }

    /// A formatted one that held these bytes.
    pub fn medium_of(held: &[u8]) -> Self {
        Self::on_medium(Place::Ram { bytes: held.len() as u64 }, held)
    }

    fn on_medium(place: Place, held: &[u8]) -> Self {
        let options = MemoryOptions { place, flush: FlushTo::Process };
        let medium = nvmed_nvm::Memory::open(options).expect("the host has memory");
        medium.store(0, held).expect("the medium takes bytes");
        let ground = Self::Medium(Arc::new(medium));
        let root = FormatOptions { uid: 0, gid: 0, ..FormatOptions::default() };
        FileSystem::format(&ground.device(), &root).expect("the medium formats");
        ground
    }

    pub fn device(&self) -> Arc<Device> {
        match self {
            Self::Disk(disk) => disk.device(),
            Self::Medium(medium) => {
                let engine = NvmEngine::over(Arc::clone(medium), 512);
                let options = nvmed_io::DeviceOptions { queues: 2, depth: 64 };
                Device::open(Arc::new(engine), options).expect("the medium opens")
            }
        }
    }

    pub fn parts(&self, memory: Memory, options: MountOptions) -> MountParts {
        let bytes = match self {
            Self::Disk(_) => None,
            Self::Medium(medium) => Some(Arc::clone(medium)),
        };
        MountParts { device: self.device(), bytes, memory, options }
    }

    pub fn mount(&self, cache_bytes: u64) -> FileSystem {
        let parts = self.parts(memory(cache_bytes), MountOptions::default());
        FileSystem::mount(parts).expect("the file system mounts")
    }

    /// As [`Disk::remount`].
    pub fn remount(&self, files: FileSystem) -> FileSystem {
        self.end(files);
        self.mount(8 << 20)
    }

    /// Unmounts, and lets fsck look.
    pub fn end(&self, files: FileSystem) {
        files.unmount().expect("the file system unmounts");
        drop(files);
        self.assert_sound();
    }

    pub fn assert_sound(&self) {
        let findings = nvmed_check::fsck(&self.device()).expect("fsck reads the device");
        assert!(findings.is_empty(), "fsck found {findings:#?}");
    }
}

pub fn memory(cache_bytes: u64) -> Memory {
    let layout = MemoryLayout::new(cache_bytes);
    let mapping = Mapping::anonymous(layout.total_bytes(), Pages::Base).expect("the host has memory");
    Memory { mapping: Arc::new(mapping), layout }
}

/// The metadata region, for tests that forge records.
pub struct Region {
    disk: Arc<Disk>,
    superblock: Superblock,
}

impl Region {
    pub fn of(disk: &Arc<Disk>) -> Arc<Self> {
        let superblock = FileSystem::probe(&disk.device()).expect("its superblock is sound");
        Arc::new(Self { disk: Arc::clone(disk), superblock })
    }
}

impl Medium for Region {
    #[expect(clippy::misnamed_getters, reason = "the store's medium is the metadata region alone")]
    fn blocks(&self) -> u64 {
        self.superblock.meta_blocks
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        for (number, place) in (self.superblock.meta_first + block.0..).zip(into.chunks_mut(BLOCK)) {
            place.copy_from_slice(&self.disk.peek(number));
        }
        Ok(())
    }

    fn write(&self, block: Block, data: &[u8], _fua: bool) -> Result<(), MediumError> {
        for (number, bytes) in (self.superblock.meta_first + block.0..).zip(data.chunks(BLOCK)) {
            self.disk.poke(number, |place| place.copy_from_slice(bytes));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        Ok(())
    }
}

/// The file of a name, made if there is none.
pub fn open(files: &FileSystem, name: &str) -> Arc<nvmed_fs::File> {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    files.open(&files.root(), name.as_bytes(), flags, 0o644, &Credentials::ROOT).expect("the file opens")
}

/// What was stored to a medium, and how much of it is durable.
pub struct Stores {
    /// With all that is durable.
    image: Vec<u8>,
    /// Stored since, in order.
    open: Vec<(usize, Vec<u8>)>,
}

impl Stores {
    pub fn of(medium: &nvmed_nvm::Memory) -> Self {
        let mut image = vec![0; medium.bytes() as usize];
        medium.read(0, &mut image).expect("the medium is read");
        Self { image, open: Vec::new() }
    }

    /// One thread made it: what it had stored when a fence began was settled.
    pub fn take(&mut self, what: What) {
        match what {
            What::Store { at, bytes } => self.open.push((at as usize, bytes)),
            What::Zero { at, bytes } => self.open.push((at as usize, vec![0; bytes as usize])),
            What::FenceDone { .. } => {
                for (at, bytes) in self.open.drain(..) {
                    self.image[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            _ => {}
        }
    }

    /// The medium after a cut of power now that leaves all stores before a place and none behind.
    pub fn cut_at(&self, place: usize) -> Ground {
        let mut image = self.image.clone();
        for (at, bytes) in self.open.iter().filter(|(at, _)| *at < place) {
            image[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        Self::medium(&image)
    }

    /// The medium after a cut of power now: of each store that is open, each word for itself, with the chance in
    /// percent that `chance` answers for the store's place.
    pub fn cut_by(&self, mut chance: impl FnMut(usize, &mut Dice) -> u64, dice: &mut Dice) -> Ground {
        let mut image = self.image.clone();
        for (at, bytes) in &self.open {
            let chance = chance(*at, dice);
            let mut from = *at;
            while from < at + bytes.len() {
                let to = ((from / WORD + 1) * WORD).min(at + bytes.len());
                if dice.chance(chance) {
                    image[from..to].copy_from_slice(&bytes[from - at..to - at]);
                }
                from = to;
            }
        }
        Self::medium(&image)
    }

    fn medium(image: &[u8]) -> Ground {
        let place = Place::Ram { bytes: image.len() as u64 };
        let options = MemoryOptions { place, flush: FlushTo::Process };
        let medium = nvmed_nvm::Memory::open(options).expect("the host has memory");
        medium.store(0, image).expect("the medium takes bytes");
        Ground::Medium(Arc::new(medium))
    }
}
