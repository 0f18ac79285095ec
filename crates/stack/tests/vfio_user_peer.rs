//! Both sides of our vfio-user against the crate `vfio_user` of rust-vmm: what only agrees with itself is not
//! the protocol.

use nvmed_dma::Transport;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Engine, Operation, QueueOptions, Request, Segment};
use nvmed_nvme::register;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, Media, PciFunction};
use nvmed_vfio_user::{Client, ClientOptions, Device, DmaRange, Server, irq, region};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion};

const DEVICE_BYTES: u64 = 4 << 20;

fn function() -> PciFunction {
    let media = Media::ram(DEVICE_BYTES, Pages::Base).unwrap();
    PciFunction::new(Controller::new(ControllerConfig::default(), media)).unwrap()
}

fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("nvmed-peer-{}-{name}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// Writes a pattern and reads it back, by interrupt.
fn work(client: Client) {
    let engine = NvmeEngine::open(Arc::new(client)).unwrap();
    assert_eq!(engine.geometry().bytes(), DEVICE_BYTES);
    let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
    let base = engine.map(Arc::clone(&memory)).unwrap();
    let bytes: Vec<u8> = (0..512 << 10).map(|at: u32| ((at * 7) >> 3) as u8).collect();
    memory.write(0, &bytes);
    let mut pair = engine.queue(QueueOptions::depth(8)).unwrap();
    let half = 512 << 10;
    for (operation, offset) in [(Operation::Write { fua: false }, 0), (Operation::Read, half)] {
        let data = [Segment { address: base.plus(offset), bytes: half as u32 }];
        let blocks = (half / 512) as u32;
        let request = Request { operation, lba: Lba(9), blocks, data: &data, tag: offset, stream: 0 };
        pair.submit(&request).unwrap();
        pair.ring();
        let mut done = Vec::with_capacity(1);
        for _ in 0..100 {
            let seen = engine.events(pair.vector());
            if pair.poll(&mut done) > 0 {
                break;
            }
            engine.wait(pair.vector(), seen, 100_000);
        }
        assert_eq!(done.len(), 1, "nothing came for 10 s");
        done[0].result.unwrap();
    }
    assert!(memory.equal(0, &memory, half as usize, half as usize));
}

/// Our device behind their server.
struct Behind(PciFunction);

fn host<T>(result: Result<T, Errno>) -> Result<T, std::io::Error> {
    result.map_err(Into::into)
}

impl ServerBackend for Behind {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), std::io::Error> {
        host(self.0.read(region, offset, data))
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        host(self.0.write(region, offset, data))
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        bytes: u64,
        fd: Option<File>,
    ) -> Result<(), std::io::Error> {
        assert_eq!(flags, DmaMapFlags::READ_WRITE);
        let fd = fd.expect("memory comes with a descriptor");
        let memory = Mapping::shared(fd.as_fd(), offset, bytes as usize, Pages::Base);
        let range = DmaRange { address, bytes, read: true, write: true };
        host(self.0.map(range, Arc::new(host(memory)?)))
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, bytes: u64) -> Result<(), std::io::Error> {
        self.0.unmap(DmaRange { address, bytes, read: true, write: true });
        Ok(())
    }

    fn reset(&mut self) -> Result<(), std::io::Error> {
        Device::reset(&mut self.0);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> Result<(), std::io::Error> {
        assert_eq!((flags, fds.len() as u32), (4 | 32, count), "eventfds to trigger");
        (start..).zip(fds).try_for_each(|(vector, fd)| host(self.0.connect(index, vector, Some(fd.into()))))
    }
}

fn irqs(backend: &Behind) -> Vec<IrqInfo> {
    let info = |index| IrqInfo { index, flags: 1, count: backend.0.interrupts(index) };
    (0..irq::COUNT).map(info).collect()
}

fn regions(backend: &Behind) -> Vec<ServerRegion> {
    let region = |index| {
        let bytes = backend.0.region(index).bytes;
        let mut region =
            ServerRegion { region_info: Default::default(), sparse_areas: vec![], mmap_fd: None };
        region.region_info.argsz = 32;
        region.region_info.index = index;
        region.region_info.flags = if bytes > 0 { 3 } else { 0 };
        region.region_info.size = bytes;
        region
    };
    (0..region::COUNT).map(region).collect()
}

#[test]
fn doorbells_that_their_server_lets_us_map_are_written_without_a_message() {
    let path = socket("mapped");
    let mut backend = Behind(function());
    let mut regions = regions(&backend);
    let bar0 = Mapping::shareable(1 << 14, Pages::Base).unwrap();
    let mut area = vfio_user::SparseArea { area: Default::default() };
    (area.area.offset, area.area.size) = (0x1000, 0x1000);
    regions[0].region_info.flags |= 4;
    regions[0].sparse_areas = vec![area];
    regions[0].mmap_fd = bar0.backing().map(|(fd, _)| fd.as_raw_fd());
    let server = vfio_user::Server::new(&path, true, irqs(&backend), regions).unwrap();
    let thread = std::thread::spawn(move || server.run(&mut backend).unwrap());
    let client = Client::connect(&path, ClientOptions::default()).unwrap();
    client.write32(0x1008, 77);
    client.write32(register::AQA, 0x0007_0007);
    assert_eq!(bar0.u32(0x1008).load(std::sync::atomic::Ordering::Acquire), 77);
    assert_eq!(bar0.u32(register::AQA as usize).load(std::sync::atomic::Ordering::Acquire), 0);
    assert_eq!(client.read32(register::AQA), 0x0007_0007);
    drop(client);
    thread.join().unwrap();
}

#[test]
fn our_client_drives_a_controller_behind_their_server() {
    let path = socket("theirs");
    let mut backend = Behind(function());
    let server = vfio_user::Server::new(&path, true, irqs(&backend), regions(&backend)).unwrap();
    let thread = std::thread::spawn(move || server.run(&mut backend).unwrap());
    work(Client::connect(&path, ClientOptions::default()).unwrap());
    thread.join().unwrap();
}

/// A controller of ours, served by us, until the value goes.
struct Ours {
    path: PathBuf,
    stop: nvmed_vfio_user::Stop,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Ours {
    fn new(name: &str) -> Self {
        let path = socket(name);
        let mut server = Server::bind(&path).unwrap();
        let (stop, mut function) = (server.stop(), function());
        let thread = Some(std::thread::spawn(move || server.run(&mut function).unwrap()));
        Self { path, stop, thread }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok());
    }
}

/// The handshake of a driver, by their client: admin queue, Identify Controller, interrupt.
#[test]
fn their_client_drives_our_controller() {
    let ours = Ours::new("ours");
    let mut client = vfio_user::Client::new(&ours.path).unwrap();
    assert_eq!(client.region(region::BAR0).unwrap().size, 1 << 14);
    let mut class = [0; 4];
    client.region_read(region::CONFIG, 8, &mut class).unwrap();
    assert_eq!(class[1..], [2, 8, 1], "an NVMe controller");
    let msix = client.get_irq_info(irq::MSIX).unwrap();
    assert_eq!((msix.count, msix.flags), (65, 1));
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    client.set_irqs(irq::MSIX, 4 | 32, 0, 1, &[event.as_raw_fd()]).unwrap();

    let memory = Mapping::shareable(16_384, Pages::Base).unwrap();
    let (fd, offset) = memory.backing().unwrap();
    client.dma_map(offset, 0x10_0000, 16_384, fd.as_raw_fd()).unwrap();
    let mut write = |at: u32, value: u64, bytes: usize| {
        client.region_write(region::BAR0, at.into(), &value.to_le_bytes()[..bytes]).unwrap();
    };
    write(register::AQA, 0x0007_0007, 4);
    write(register::ASQ, 0x10_0000, 8);
    write(register::ACQ, 0x10_1000, 8);
    write(register::CC, 0x0046_0001, 4);
    // Identify Controller, to the third page.
    let mut entry = [0u8; 64];
    entry[0] = 6;
    entry[2] = 0x55;
    entry[24..32].copy_from_slice(&0x10_2000u64.to_le_bytes());
    entry[40] = 1;
    memory.write(0, &entry);
    write(register::DOORBELLS, 1, 4);

    wait_for(&event);
    let mut completion = [0; 16];
    memory.read(4096, &mut completion);
    assert_eq!((completion[12], completion[14], completion[15]), (0x55, 1, 0), "CID, phase, status");
    let mut serial = [0; 6];
    memory.read(8192 + 4, &mut serial);
    assert_eq!(&serial, b"nvmed-");
    client.reset().unwrap();
    let mut status = [0; 4];
    client.region_read(region::BAR0, register::CSTS.into(), &mut status).unwrap();
    assert_eq!(status, [0; 4], "reset");
    client.dma_unmap(0x10_0000, 16_384).unwrap();
    client.shutdown().unwrap();
}

fn wait_for(event: &OwnedFd) {
    let mut polled = [rustix::event::PollFd::new(event, rustix::event::PollFlags::IN)];
    let limit = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut polled, Some(&limit)), Ok(1), "no interrupt for 10 s");
}

#[test]
fn after_their_client_ours_finds_a_controller_as_new() {
    let ours = Ours::new("both");
    let client = vfio_user::Client::new(&ours.path).unwrap();
    client.shutdown().unwrap();
    let client = Client::connect(&ours.path, ClientOptions::default()).unwrap();
    assert_eq!(client.read32(register::CC), 0);
    work(client);
}
