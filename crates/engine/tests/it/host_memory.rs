//! The memory that a controller would like: how much the driver lends, and for how long.

use nvmed_dma::{MapError, Transport};
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Engine, HostMemoryUse, Waited};
use nvmed_flash::{ArrayProfile, BlockKind, Medium, Profile, TranslationProfile};
use nvmed_nvme::{DriveLog, LogPage};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use nvmed_vdev::{ControllerConfig, HostMemoryConfig, InProcess, Media};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::{FromZeros, IntoBytes};

const MIB: u64 = 1 << 20;

/// A controller whose host refuses mappings of more than so many bytes, and more than so many of them.
struct Stingy {
    inner: InProcess,
    bytes_max: usize,
    mappings_max: usize,
    /// Mappings that are there.
    mapped: AtomicUsize,
}

impl Transport for Stingy {
    fn read32(&self, offset: u32) -> u32 {
        self.inner.read32(offset)
    }
    fn write32(&self, offset: u32, value: u32) {
        self.inner.write32(offset, value);
    }
    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        if memory.len() > self.bytes_max {
            return Err(MapError::TooLarge { len: memory.len() as u64, limit: self.bytes_max as u64 });
        }
        if self.mapped.load(Ordering::Relaxed) == self.mappings_max {
            return Err(MapError::Full { limit: self.mappings_max });
        }
        let address = self.inner.map(memory)?;
        self.mapped.fetch_add(1, Ordering::Relaxed);
        Ok(address)
    }
    fn unmap(&self, address: DeviceAddress) {
        self.mapped.fetch_sub(1, Ordering::Relaxed);
        self.inner.unmap(address);
    }
    fn vectors(&self) -> u16 {
        self.inner.vectors()
    }
    fn events(&self, vector: u16) -> u32 {
        self.inner.events(vector)
    }
    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        self.inner.wait(vector, seen, timeout_us)
    }
}

fn drive(host_memory: HostMemoryConfig, (bytes_max, mappings_max): (usize, usize)) -> Arc<Stingy> {
    let array = ArrayProfile {
        capacity_bytes: 1 << 20,
        channels: 2,
        blocks: vec![BlockKind { per_plane: 32, ..BlockKind::default() }],
        translation: Some(TranslationProfile::default()),
        ..ArrayProfile::default()
    };
    let config = ControllerConfig {
        drive: Some(Profile { commands: 8, medium: Medium::Array(Box::new(array)) }),
        host_memory: Some(host_memory),
        ..ControllerConfig::default()
    };
    let controller = nvmed_vdev::Controller::new(config, Media::ram(1 << 20, Pages::Base).unwrap());
    let inner = InProcess::new(controller).unwrap();
    Arc::new(Stingy { inner, bytes_max, mappings_max, mapped: AtomicUsize::new(0) })
}

/// A drive that would like `bytes`, needs `bytes_min` of them, and takes so many ranges.
fn wants(bytes: u64, bytes_min: u64, entries_max: u16) -> HostMemoryConfig {
    HostMemoryConfig { bytes, bytes_min, entries_max, map_percent: 0, read_percent: 100, write_percent: 0 }
}

fn used_bytes(engine: &NvmeEngine) -> u64 {
    let mut log = DriveLog::new_zeroed();
    engine.log_page(LogPage::DRIVE.0, log.as_mut_bytes()).unwrap();
    log.host_memory_bytes
}

#[test]
fn a_drive_gets_what_it_would_like_as_far_as_the_host_has_it() {
    const PLENTY: usize = 1 << 30;
    for (wanted, bytes_max, bytes, ranges) in [
        (wants(64 * MIB, 4096, 16), PLENTY, 64 * MIB, 16),
        (wants(6 * MIB, 4096, 16), PLENTY, 6 * MIB, 2),
        (wants(4096, 4096, 1), PLENTY, 4096, 1),
        // No more than 128 MiB; larger ranges where it takes few of them.
        (wants(1024 * MIB, 4096, 0), PLENTY, 128 * MIB, 32),
        (wants(1024 * MIB, 4096, 2), PLENTY, 128 * MIB, 2),
        (wants(1024 * MIB, 256 * MIB, 0), PLENTY, 0, 0),
        // A host that maps no more than so much at once.
        (wants(8 * MIB, 4096, 0), 1 << 20, 8 * MIB, 8),
        (wants(8 * MIB, 4096, 4), 1 << 20, 4 * MIB, 4),
        (wants(8 * MIB, 6 * MIB, 4), 1 << 20, 0, 0),
    ] {
        let transport = drive(wanted, (bytes_max, usize::MAX));
        let engine = NvmeEngine::open(Arc::<Stingy>::clone(&transport)).unwrap();
        assert_eq!(engine.host_memory(), HostMemoryUse { bytes, ranges }, "{wanted:?}");
        assert_eq!(used_bytes(&engine), bytes, "{wanted:?}");
        // After a reset it is lent again.
        engine.reset().unwrap();
        assert_eq!((engine.host_memory().bytes, used_bytes(&engine)), (bytes, bytes), "{wanted:?}");
        drop(engine);
        assert_eq!(transport.mapped.load(Ordering::Relaxed), 0, "memory that stays with the device");
    }
}

#[test]
fn a_host_that_maps_no_more_keeps_what_it_has_for_queues() {
    // The admin queue is one mapping; 16 ranges and their list do not fit.
    let transport = drive(wants(64 * MIB, 4096, 16), (usize::MAX, 8));
    let engine = NvmeEngine::open(Arc::<Stingy>::clone(&transport)).unwrap();
    assert_eq!(engine.host_memory().bytes, 0);
    assert_eq!(transport.mapped.load(Ordering::Relaxed), 1);
}

#[test]
fn a_drive_that_is_shut_down_has_none_any_more() {
    let engine = NvmeEngine::open(drive(wants(MIB, 4096, 16), (usize::MAX, usize::MAX))).unwrap();
    assert_eq!(used_bytes(&engine), MIB);
    engine.shutdown().unwrap();
    assert_eq!(used_bytes(&engine), 0);
}
