//! A part of a device behind its own socket: what its user reaches, and what not.

use nvmed_block::{BlockError, ByteHandle, Disk, DiskOptions, Route, Settings};
use nvmed_io::{Binding, Command, Device, QueueSettings};
use nvmed_stack::{DeviceSpec, Open, PartitionOptions, ServedPartition, StackError, open_device};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

const DEVICE_BYTES: u64 = 64 << 20;
const FIRST: u64 = 16 << 20;
const BYTES: u64 = 8 << 20;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("nvmed-partition-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn whole() -> Arc<Device> {
    let spec = DeviceSpec::parse(&format!("virtual:?media=dram,size={DEVICE_BYTES}")).unwrap();
    open_device(&spec, Open::Existing { locked_by_run: false }).unwrap()
}

fn options(scratch: &Scratch) -> PartitionOptions {
    PartitionOptions {
        name: "p1".to_owned(),
        first: FIRST,
        bytes: BYTES,
        write: true,
        queues: 4,
        bytes_per_s: None,
        socket: scratch.0.join("p1.sock"),
        user: None,
        group: None,
    }
}

fn client(options: &PartitionOptions) -> Arc<Device> {
    let spec = DeviceSpec::parse(&format!("vfio-user:{}", options.socket.display())).unwrap();
    open_device(&spec, Open::Existing { locked_by_run: false }).unwrap()
}

fn bytes_of(device: &Arc<Device>) -> ByteHandle {
    let disk = Disk::new(Arc::clone(device), DiskOptions::default());
    disk.handle(Route::Bound(Binding::Spread), Settings::default()).unwrap()
}

#[test]
fn a_partition_is_a_device_of_its_own_inside_another() {
    let scratch = Scratch::new("inside");
    let device = whole();
    let outside = bytes_of(&device);
    outside.pwrite(&vec![0x55; DEVICE_BYTES as usize], 0).unwrap();
    let served = ServedPartition::open(&device, options(&scratch)).unwrap();
    let mode = std::fs::metadata(&served.options().socket).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody but its user connects");
    let inside_device = client(served.options());
    assert_eq!(inside_device.geometry().bytes(), BYTES);
    assert_ne!(inside_device.geometry().serial, device.geometry().serial);
    let inside = bytes_of(&inside_device);
    let pattern: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    // Unaligned in every way, over more than one command.
    inside.pwrite(&pattern, 12_345).unwrap();
    let mut seen = vec![0; pattern.len()];
    inside.pread(&mut seen, 12_345).unwrap();
    assert!(seen == pattern, "it reads what it wrote");
    outside.pread(&mut seen, FIRST + 12_345).unwrap();
    assert!(seen == pattern, "and it lies where the partition does");
    inside.write_zeroes(4096, 8192).unwrap();
    inside.discard(16_384, 8192).unwrap();
    inside.pread(&mut seen[..4096], 20_480).unwrap();
    assert!(seen[..4096].iter().all(|&byte| byte == 0), "what is deallocated reads as zeroes, not as it was");
    let flushes = device.stats().flushes;
    inside.flush().unwrap();
    assert!(device.stats().flushes > flushes, "a flush reaches the device");
    // The last byte, and the one after it.
    inside.pwrite(&[9], BYTES - 1).unwrap();
    assert!(matches!(inside.pwrite(&[9], BYTES), Err(BlockError::NoSpace { .. })));
    let mut edge = [0; 2];
    outside.pread(&mut edge, FIRST + BYTES - 1).unwrap();
    assert_eq!(edge, [9, 0x55]);
    outside.pread(&mut edge, FIRST - 1).unwrap();
    assert_eq!(edge, [0x55, 0x55]);
    let counted = served.counters();
    assert!(counted.bytes_written >= pattern.len() as u64, "{counted:?}");
    inside_device.shutdown().unwrap();
}

/// A host's driver would not send these: the controller must refuse them all the same.
#[test]
fn commands_past_the_window_are_refused_by_the_controller() {
    let scratch = Scratch::new("past");
    let device = whole();
    let outside = bytes_of(&device);
    outside.pwrite(&vec![0x55; DEVICE_BYTES as usize], 0).unwrap();
    let served = ServedPartition::open(&device, options(&scratch)).unwrap();
    let inside_device = client(served.options());
    let inside = bytes_of(&inside_device);
    let blocks = BYTES / u64::from(inside_device.geometry().lba_bytes);
    let buffer = inside.disk().buffer(8192).unwrap();
    buffer.fill(0..8192, 0xaa).unwrap();
    let (write, read, zeroes) = (1, 2, 8);
    let below = 0u64.wrapping_sub(FIRST / u64::from(inside_device.geometry().lba_bytes));
    for lba in [blocks, blocks - 1, u64::MAX, u64::MAX - 7, below, below + blocks, 1 << 63] {
        for opcode in [write, read, zeroes] {
            let (cdw10, cdw11, cdw12) = (lba as u32, (lba >> 32) as u32, 7);
            let command = Command { opcode, nsid: 1, cdw10, cdw11, cdw12, ..Command::default() };
            let data = (opcode != zeroes).then_some((&buffer, 0..4096));
            assert!(inside.passthrough(&command, data).is_err(), "opcode {opcode} at LBA {lba}");
        }
    }
    let mut seen = [0; 4096];
    buffer.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0xaa; 4096], "nothing was read from there");
    let mut all = vec![0; DEVICE_BYTES as usize];
    outside.pread(&mut all, 0).unwrap();
    assert!(all.iter().all(|&byte| byte == 0x55), "nothing was written anywhere");
    inside_device.shutdown().unwrap();
}

#[test]
fn a_partition_to_read_refuses_what_writes() {
    let scratch = Scratch::new("read");
    let device = whole();
    bytes_of(&device).pwrite(&vec![0x55; DEVICE_BYTES as usize], 0).unwrap();
    let served =
        ServedPartition::open(&device, PartitionOptions { write: false, ..options(&scratch) }).unwrap();
    let inside_device = client(served.options());
    let inside = bytes_of(&inside_device);
    assert!(inside.pwrite(&[1; 4096], 0).is_err());
    assert!(inside.write_zeroes(0, 4096).is_err());
    assert!(inside.discard(0, 4096).is_err());
    let mut seen = [0; 4096];
    inside.pread(&mut seen, 0).unwrap();
    assert_eq!(seen, [0x55; 4096]);
    inside_device.shutdown().unwrap();
}

#[test]
fn queues_and_rate_are_what_was_given() {
    let scratch = Scratch::new("limits");
    let device = whole();
    let rate = Some(PartitionOptions::RATE_MIN);
    let limited = PartitionOptions { queues: 2, bytes_per_s: rate, ..options(&scratch) };
    let served = ServedPartition::open(&device, limited).unwrap();
    let inside_device = client(served.options());
    assert!(inside_device.geometry().queues_max <= 2);
    let more =
        (0..8).map(|_| inside_device.create_queue(QueueSettings::depth(8))).filter(Result::is_err).count();
    assert!(more >= 6, "{more} of eight more queues were refused");
    let begun = std::time::Instant::now();
    bytes_of(&inside_device).pwrite(&vec![1; 1 << 20], 0).unwrap();
    // A tenth passes at once, the rest at a megabyte a second.
    assert!(begun.elapsed() >= std::time::Duration::from_millis(800), "{:?}", begun.elapsed());
    inside_device.shutdown().unwrap();
}

#[test]
fn what_makes_no_sense_is_said_before_there_is_a_socket() {
    let scratch = Scratch::new("wrong");
    let device = whole();
    let good = options(&scratch);
    let wrong = [
        PartitionOptions { first: 1, ..good.clone() },
        PartitionOptions { bytes: 0, ..good.clone() },
        PartitionOptions { bytes: DEVICE_BYTES, ..good.clone() },
        PartitionOptions { first: u64::MAX - 4095, ..good.clone() },
        PartitionOptions { queues: 0, ..good.clone() },
        PartitionOptions { bytes_per_s: Some(1), ..good.clone() },
    ];
    for options in wrong {
        let refused = ServedPartition::open(&device, options.clone()).map(drop);
        assert!(matches!(refused, Err(StackError::Partition { .. })), "{options:?}: {refused:?}");
        assert!(!options.socket.exists());
    }
    drop(ServedPartition::open(&device, good.clone()).unwrap());
    assert!(!good.socket.exists(), "its end takes the socket away");
}
