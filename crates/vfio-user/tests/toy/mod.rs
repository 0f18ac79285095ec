//! A device of 16 KiB of plain registers, served by a thread, and a client that writes its bytes by hand.

#![allow(dead_code, reason = "each test program uses its own part")]

use nvmed_sys::Mapping;
use nvmed_vfio_user::{Device, DmaRange, Header, RegionInfo, Server, Stop, irq, region};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

pub const BAR0_BYTES: u64 = 16 << 10;
pub const VECTORS: u32 = 4;
/// Longer than any answer takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// The device. What is asked of it must be inside it.
#[derive(Default)]
pub struct Toy {
    registers: Vec<u8>,
    maps: Vec<DmaRange>,
    connected: [bool; VECTORS as usize],
}

impl Device for Toy {
    fn region(&self, index: u32) -> RegionInfo {
        let bytes = match index {
            region::BAR0 => BAR0_BYTES,
            region::CONFIG => 256,
            _ => 0,
        };
        RegionInfo { bytes, read: true, write: true, ..RegionInfo::default() }
    }

    fn interrupts(&self, index: u32) -> u32 {
        if index == irq::MSIX { VECTORS } else { 0 }
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        assert!(offset + data.len() as u64 <= self.region(region).bytes, "a read outside");
        self.registers.resize(BAR0_BYTES as usize, 0);
        data.copy_from_slice(&self.registers[offset as usize..][..data.len()]);
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        assert!(offset + data.len() as u64 <= self.region(region).bytes, "a write outside");
        self.registers.resize(BAR0_BYTES as usize, 0);
        self.registers[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn map(&mut self, range: DmaRange, memory: Arc<Mapping>) -> Result<(), Errno> {
        // Every byte can be touched.
        memory.write(memory.len() - 1, &[1]);
        let apart = |other: &DmaRange| {
            range.address + range.bytes <= other.address || other.address + other.bytes <= range.address
        };
        assert!(self.maps.iter().all(apart), "two ranges overlap");
        self.maps.push(range);
        Ok(())
    }

    fn unmap(&mut self, range: DmaRange) {
        let at = self.maps.iter().position(|other| *other == range).expect("what is unmapped was mapped");
        self.maps.remove(at);
    }

    fn connect(&mut self, index: u32, vector: u32, fd: Option<OwnedFd>) -> Result<(), Errno> {
        assert_eq!(index, irq::MSIX);
        self.connected[vector as usize] = fd.is_some();
        Ok(())
    }

    fn trigger(&mut self, index: u32, vector: u32) -> Result<(), Errno> {
        assert!(index == irq::MSIX && vector < VECTORS);
        Ok(())
    }

    fn reset(&mut self) {
        self.registers.clear();
    }
}

/// A served toy; ends with its value.
pub struct Served {
    pub path: PathBuf,
    stop: Stop,
    thread: Option<JoinHandle<Toy>>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Served {
    pub fn new() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nvmed-toy-{}-{number}.sock", std::process::id()));
        let mut server = Server::bind(&path).unwrap();
        let stop = server.stop();
        let thread = std::thread::spawn(move || {
            let mut toy = Toy::default();
            server.run(&mut toy).unwrap();
            toy
        });
        Self { path, stop, thread: Some(thread) }
    }

    /// A client that has said nothing yet.
    pub fn open(&self) -> Raw {
        Raw::new(UnixStream::connect(&self.path).unwrap())
    }

    /// A client that has agreed on the version.
    pub fn greeted(&self) -> Raw {
        let mut raw = self.open();
        let reply = raw.ask(1, &[0, 0, 1, 0], &[]);
        assert_eq!(reply.unwrap()[..4], [0, 0, 1, 0], "version 0.1");
        raw
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let toy = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            let toy = toy.expect("the server panicked");
            assert!(toy.maps.is_empty(), "memory of a client that is gone: {:?}", toy.maps);
            assert_eq!(toy.connected, [false; VECTORS as usize], "an interrupt of a client that is gone");
        }
    }
}

/// A client without manners.
pub struct Raw {
    stream: UnixStream,
    id: u16,
}

impl Raw {
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, id: 0 }
    }

    /// Sends bytes as they are.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let mut rest = bytes;
        while !rest.is_empty() {
            // The server may have closed: that is for the test to see by what it reads.
            let sent =
                rustix::net::sendmsg(&self.stream, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL);
            let Ok(sent) = sent else { return };
            rest = &rest[sent..];
            control.clear();
        }
    }

    /// A command as bytes.
    pub fn message(&mut self, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
        self.id += 1;
        let bytes = 16 + payload.len() as u32;
        let header = Header { id: self.id, command, bytes, flags, errno: 0 };
        [header.as_bytes(), payload].concat()
    }

    /// Sends a command; the payload of its reply, or its errno.
    pub fn ask(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, Errno> {
        let message = self.message(command, 0, payload);
        self.send(&message, fds);
        let (header, payload) = self.receive().expect("a reply");
        assert_eq!((header.id, header.command), (self.id, command));
        if header.flags & Header::ERROR != 0 {
            assert_eq!(payload.len(), 0, "an error has a header only");
            return Err(Errno::from_raw_os_error(header.errno as i32));
        }
        Ok(payload)
    }

    /// The next message; None at the end.
    pub fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).ok()?;
        let header = Header::read_from_bytes(&head).unwrap();
        assert!(header.is_reply());
        let mut payload = vec![0; header.bytes as usize - 16];
        self.stream.read_exact(&mut payload).ok()?;
        Some((header, payload))
    }

    /// Says that nothing more comes, and reads what is left.
    pub fn finish(mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.flush();
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => {}
            // With what it had not read, the server's end is a reset.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Words one after the other, little-endian.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The payload of a DMA mapping or, without `offset`, of an unmapping.
pub fn dma(flags: u32, offset: Option<u64>, address: u64, bytes: u64) -> Vec<u8> {
    let mut payload = words(&[if offset.is_some() { 32 } else { 24 }, flags]);
    for value in offset.into_iter().chain([address, bytes]) {
        payload.extend(value.to_le_bytes());
    }
    payload
}

/// The head of a region access.
pub fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &words(&[region, count])].concat()
}
