//! A served controller whose client shares no memory: queues, lists and data go by messages.

use nvmed_nvme::{IoOpcode, SubmissionEntry, register};
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, Controller, ControllerConfig, Media, PciFunction};
use nvmed_vfio_user::{Header, Server, Stop};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Longer than any answer takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const VERSION: u16 = 1;
const MAP: u16 = 2;
const READ: u16 = 9;
const WRITE: u16 = 10;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
/// Where the guest's memory begins for the device, and its size.
const BASE: u64 = 0x10_0000;
const BYTES: usize = 1 << 20;
/// Places in it: queues, a list of pages, data.
const ASQ: u64 = BASE;
const ACQ: u64 = BASE + 0x1000;
const SQ: u64 = BASE + 0x2000;
const CQ: u64 = BASE + 0x3000;
const LIST: u64 = BASE + 0x4000;
const DATA: u64 = BASE + 0x1_0000;
const COPY: u64 = BASE + 0x4_0000;

struct Served {
    path: PathBuf,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(name: &str, clock: Clock) -> Self {
        let path = std::env::temp_dir().join(format!("nvmed-{}-{name}.sock", std::process::id()));
        let config = ControllerConfig { clock, ..ControllerConfig::default() };
        let controller = Controller::new(config, Media::ram(4 << 20, Pages::Base).unwrap());
        let mut function = PciFunction::new(controller).unwrap();
        let mut server = Server::bind(&path).unwrap();
        let stop = server.stop();
        let thread = std::thread::spawn(move || server.run(&mut function).unwrap());
        Self { path, stop, thread: Some(thread) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok(), "the server panicked");
    }
}

/// A client with memory that only it can reach.
struct Guest {
    stream: UnixStream,
    memory: Vec<u8>,
    /// What it answers to a read of this address in place of the bytes.
    bad: Option<(u64, Bad)>,
    /// Accesses of the device, and the largest.
    accesses: usize,
    largest: usize,
    tails: [u32; 2],
}

#[derive(Clone, Copy, PartialEq)]
enum Bad {
    Refusal,
    Short,
}

impl Guest {
    fn connect(served: &Served, capabilities: &str) -> Self {
        let stream = UnixStream::connect(&served.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (memory, tails) = (vec![0; BYTES], [0; 2]);
        let mut guest = Self { stream, memory, bad: None, accesses: 0, largest: 0, tails };
        let version = [b"\0\0\x01\0{\"capabilities\":{", capabilities.as_bytes(), b"}}\0"].concat();
        guest.ask(VERSION, &version).unwrap();
        guest
    }

    fn send(&mut self, header: Header, payload: &[u8]) {
        self.stream.write_all(&[header.as_bytes(), payload].concat()).unwrap();
    }

    fn receive(&mut self) -> std::io::Result<(Header, Vec<u8>)> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        let header = Header::read_from_bytes(&header).unwrap();
        let mut payload = vec![0; header.bytes as usize - 16];
        self.stream.read_exact(&mut payload)?;
        Ok((header, payload))
    }

    /// Sends a command, serves what the device asks for, and answers the reply.
    fn ask(&mut self, command: u16, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        self.post(command, 0, payload);
        self.reply(command).expect("the server answers")
    }

    fn post(&mut self, command: u16, flags: u32, payload: &[u8]) {
        let bytes = 16 + payload.len() as u32;
        self.send(Header { id: 7, command, bytes, flags, errno: 0 }, payload);
    }

    fn reply(&mut self, command: u16) -> std::io::Result<Result<Vec<u8>, Errno>> {
        loop {
            let (header, payload) = self.receive()?;
            if header.is_command() {
                self.serve(&header, &payload);
            } else if header.flags & Header::ERROR != 0 {
                return Ok(Err(Errno::from_raw_os_error(header.errno as i32)));
            } else {
                assert_eq!((header.id, header.command), (7, command));
                return Ok(Ok(payload));
            }
        }
    }

    /// Answers a copy of the device's.
    fn serve(&mut self, header: &Header, payload: &[u8]) {
        let number = |at: usize| u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap());
        let (address, count) = (number(0), number(8) as usize);
        let at = (address - BASE) as usize;
        (self.accesses, self.largest) = (self.accesses + 1, self.largest.max(count));
        match self.bad.filter(|bad| bad.0 == address) {
            Some((_, Bad::Refusal)) => return self.send(header.failure(Errno::FAULT), &[]),
            Some((_, Bad::Short)) => return self.send(header.reply(16), &payload[..16]),
            None => {}
        }
        match header.command {
            DMA_READ => {
                let answer = [&payload[..16], &self.memory[at..at + count]].concat();
                self.send(header.reply(answer.len()), &answer);
            }
            DMA_WRITE => {
                assert_eq!(payload.len(), 16 + count);
                self.memory[at..at + count].copy_from_slice(&payload[16..]);
                self.send(header.reply(16), &payload[..16]);
            }
            other => panic!("the device asks for command {other}"),
        }
    }

    fn map(&mut self) -> Result<Vec<u8>, Errno> {
        let payload = [[32u32, 3].as_bytes(), [0, BASE, BYTES as u64].as_bytes()].concat();
        self.ask(MAP, &payload)
    }

    fn register(&mut self, offset: u32, value: u32) {
        self.ask(WRITE, &write(offset, value)).unwrap();
    }

    fn at(&mut self, address: u64, bytes: usize) -> &mut [u8] {
        &mut self.memory[(address - BASE) as usize..][..bytes]
    }

    /// Sets the controller up and makes queue pair 1.
    fn start(&mut self) {
        self.map().unwrap();
        self.register(register::AQA, 0x0007_0007);
        for (offset, address) in [(register::ASQ, ASQ), (register::ACQ, ACQ)] {
            self.register(offset, address as u32);
            self.register(offset + 4, (address >> 32) as u32);
        }
        self.register(register::CC, 0x0046_0001);
        let status =
            self.ask(READ, &[&u64::from(register::CSTS).to_ne_bytes()[..], &words(&[0, 4])].concat());
        assert_eq!(status.unwrap()[16..], [1, 0, 0, 0], "it is ready");
        let create = |opcode: u8, prp1: u64, cdw11: u32| SubmissionEntry {
            opcode,
            prp1,
            cdw10: 7 << 16 | 1,
            cdw11,
            ..SubmissionEntry::default()
        };
        assert_eq!(self.command(0, create(5, CQ, 1)), 0);
        assert_eq!(self.command(0, create(1, SQ, 1 << 16 | 1)), 0);
    }

    /// Puts a command into a queue; answers the doorbell's message.
    fn queue(&mut self, queue: usize, entry: SubmissionEntry) -> Vec<u8> {
        let tail = self.tails[queue];
        let place = [ASQ, SQ][queue] + u64::from(tail) * 64;
        self.at(place, 64).copy_from_slice(entry.as_bytes());
        self.tails[queue] = (tail + 1) % 8;
        write(0x1000 + 8 * queue as u32, self.tails[queue])
    }

    /// Executes a command and answers its status, without the phase tag.
    fn command(&mut self, queue: usize, entry: SubmissionEntry) -> u16 {
        let slot = self.tails[queue];
        let doorbell = self.queue(queue, entry);
        self.ask(WRITE, &doorbell).unwrap();
        self.completion(queue, slot)
    }

    /// Status of the completion in a slot, which it takes.
    fn completion(&mut self, queue: usize, slot: u32) -> u16 {
        let place = [ACQ, CQ][queue] + u64::from(slot) * 16;
        let status = u16::from_le_bytes(self.at(place + 14, 2).try_into().unwrap());
        self.register(0x1004 + 8 * queue as u32, (slot + 1) % 8);
        status >> 1
    }

    /// A read or write of 15 pages from block 8 on, by a list of pages that lie in reverse order.
    fn transfer(&mut self, opcode: IoOpcode, data: u64) -> SubmissionEntry {
        let page = |index: u64| data + (14 - index) * 4096;
        for index in 1..15 {
            let place = LIST + (index - 1) * 8;
            self.at(place, 8).copy_from_slice(&page(index).to_le_bytes());
        }
        let (opcode, prp1, cdw12) = (opcode as u8, page(0), 15 * 8 - 1);
        SubmissionEntry { opcode, nsid: 1, prp1, prp2: LIST, cdw10: 8, cdw12, ..SubmissionEntry::default() }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A write of a 32-bit register of BAR0.
fn write(offset: u32, value: u32) -> Vec<u8> {
    [&u64::from(offset).to_ne_bytes()[..], &words(&[0, 4, value])].concat()
}

fn pattern() -> Vec<u8> {
    (0..15 * 4096u32).map(|index| (index % 251) as u8).collect()
}

#[test]
fn a_guest_that_shares_no_memory_has_its_disk() {
    let served = Served::new("distant", Clock::Inline);
    for (capabilities, largest) in [("", 65_536), ("\"max_data_xfer_size\":1000", 1000)] {
        let mut guest = Guest::connect(&served, capabilities);
        guest.start();
        let identify = SubmissionEntry { opcode: 6, prp1: DATA, cdw10: 1, ..SubmissionEntry::default() };
        assert_eq!(guest.command(0, identify), 0);
        assert!(guest.at(DATA + 24, 40).starts_with(b"nvmed"), "the model's name came");
        guest.at(DATA, 15 * 4096).copy_from_slice(&pattern());
        let entry = guest.transfer(IoOpcode::Write, DATA);
        assert_eq!(guest.command(1, entry), 0);
        let entry = guest.transfer(IoOpcode::Compare, DATA);
        assert_eq!(guest.command(1, entry), 0);
        let entry = guest.transfer(IoOpcode::Read, COPY);
        assert_eq!(guest.command(1, entry), 0);
        assert!(guest.at(COPY, 15 * 4096) == pattern(), "what was read is what was written");
        guest.at(DATA + 5000, 1)[0] ^= 1;
        let entry = guest.transfer(IoOpcode::Compare, DATA);
        assert_eq!(guest.command(1, entry) & 0x7ff, 0x285, "the device looked again: compare failure");
        assert!(guest.largest <= largest && guest.accesses > 60, "{} {}", guest.largest, guest.accesses);
    }
}

#[test]
fn doorbells_that_come_while_the_device_waits_for_memory_are_answered_in_their_order() {
    let served = Served::new("posted", Clock::Inline);
    let mut guest = Guest::connect(&served, "");
    guest.start();
    let entry = guest.transfer(IoOpcode::Write, DATA);
    let doorbells = [guest.queue(1, entry), guest.queue(1, entry), guest.queue(1, entry)];
    // All three lie in the socket before the first byte of memory is asked for.
    for doorbell in &doorbells {
        guest.post(WRITE, Header::NO_REPLY, doorbell);
    }
    guest.register(register::INTMC, 0);
    assert_eq!([0, 1, 2].map(|slot| guest.completion(1, slot)), [0; 3]);
}

#[test]
fn memory_that_the_guest_will_not_give_fails_the_command_alone() {
    let served = Served::new("refusal", Clock::Inline);
    let mut guest = Guest::connect(&served, "");
    guest.start();
    for (place, opcode) in [(DATA + 4096, IoOpcode::Write), (LIST, IoOpcode::Write), (COPY, IoOpcode::Read)] {
        let data = if opcode == IoOpcode::Read { COPY } else { DATA };
        guest.bad = Some((place, Bad::Refusal));
        let entry = guest.transfer(opcode, data);
        assert_eq!(guest.command(1, entry) & 0x7ff, 0x004, "data transfer error at {place:#x}");
        guest.bad = None;
        assert_eq!(guest.command(1, entry), 0);
    }
    // Without its queue the controller cannot go on, and says so.
    guest.bad = Some((SQ + u64::from(guest.tails[1]) * 64, Bad::Refusal));
    let entry = guest.transfer(IoOpcode::Read, COPY);
    let doorbell = guest.queue(1, entry);
    guest.ask(WRITE, &doorbell).unwrap();
    let status = guest.ask(READ, &[&u64::from(register::CSTS).to_ne_bytes()[..], &words(&[0, 4])].concat());
    assert_eq!(status.unwrap()[16] & 2, 2, "fatal status");
}

#[test]
fn a_guest_that_answers_nonsense_is_dropped_and_the_next_is_served() {
    let served = Served::new("nonsense", Clock::Inline);
    let mut guest = Guest::connect(&served, "");
    guest.start();
    guest.bad = Some((DATA + 4096, Bad::Short));
    let entry = guest.transfer(IoOpcode::Write, DATA);
    let doorbell = guest.queue(1, entry);
    guest.post(WRITE, 0, &doorbell);
    // The doorbell itself may still be answered.
    while guest.reply(WRITE).is_ok() {}
    let mut next = Guest::connect(&served, "");
    next.start();
    let entry = next.transfer(IoOpcode::Write, DATA);
    assert_eq!(next.command(1, entry), 0);
}

#[test]
fn a_controller_with_a_thread_of_its_own_refuses_such_memory() {
    let served = Served::new("threaded", Clock::Threaded);
    let mut guest = Guest::connect(&served, "");
    assert_eq!(guest.map(), Err(Errno::OPNOTSUPP));
}
