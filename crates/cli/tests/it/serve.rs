//! `nvmed serve-device`: a device in one process, its user in another, and either may die.

use crate::scratch::Scratch;
use nvmed_engine::{Completion, DeviceError, Engine, Operation, QueueOptions, QueuePair, Request, Segment};
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{Binding, Source};
use nvmed_nvme::{DriveLog, LogPage};
use nvmed_stack::{DeviceSpec, Open, open_device, open_engine};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// Names the socket to a copy of this program that is to be a client and be killed.
const CLIENT: &str = "NVMED_TEST_CLIENT";
const WRITE: Operation = Operation::Write { fua: false };
/// How long what has to come may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A serving process.
struct Server {
    child: Child,
    line: String,
}

impl Server {
    fn start(scratch: &Scratch, device: &str) -> Self {
        let mut command = scratch.nvmed(["serve-device", device, "--socket", "s.sock"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("vfio-user:"), "it said {line:?}");
        Self { child, line }
    }

    fn end(mut self, signal: Signal) -> ExitStatus {
        self.send(signal);
        self.child.wait().unwrap()
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where the test did not end it; what was waited for is not killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An engine over the socket, a queue and a buffer.
struct Host {
    pair: Box<dyn QueuePair>,
    memory: Arc<Mapping>,
    base: DeviceAddress,
    engine: Arc<dyn Engine>,
}

impl Host {
    fn new(socket: &Path) -> Self {
        let spec = DeviceSpec::parse(&format!("vfio-user:{}", socket.display())).unwrap();
        let begun = Instant::now();
        let engine = loop {
            match open_engine(&spec, Open::Existing { locked_by_run: false }) {
                // A child that another test is starting has the last client's socket until it executes its program.
                Err(error) if error.errno() == Errno::BUSY && begun.elapsed() < PATIENCE => {
                    std::thread::yield_now();
                }
                opened => break opened.unwrap(),
            }
        };
        let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
        let base = engine.map(Arc::clone(&memory)).unwrap();
        let pair = engine.queue(QueueOptions::depth(32)).unwrap();
        Self { pair, memory, base, engine }
    }

    fn submit(&mut self, operation: Operation, tag: u64) {
        let data = [Segment { address: self.base.plus(tag % 16 * 4096), bytes: 4096 }];
        let request = Request { operation, lba: Lba(tag % 64 * 8), blocks: 8, data: &data, tag, stream: 0 };
        self.pair.submit(&request).unwrap();
        self.pair.ring();
    }

    /// Completions, as the library waits for them: sleep until something happens, then see whether the
    /// controller lives.
    fn collect(&mut self) -> Vec<Completion> {
        let mut done = Vec::with_capacity(32);
        for _ in 0..600 {
            let vector = self.pair.vector();
            let seen = self.engine.events(vector);
            if self.pair.poll(&mut done) > 0 {
                return done;
            }
            self.engine.wait(vector, seen, 100_000);
            self.pair.check();
        }
        panic!("nothing came for a minute");
    }

    fn run(&mut self, operation: Operation, tag: u64) -> Result<(), DeviceError> {
        self.submit(operation, tag);
        self.collect().pop().unwrap().result
    }
}

#[test]
fn a_file_system_on_a_served_device_lasts_as_its_image_does() {
    let scratch = Scratch::new();
    scratch.file("a", "what was written");
    scratch.file("d.img", "");
    std::fs::OpenOptions::new().write(true).open(scratch.path("d.img")).unwrap().set_len(64 << 20).unwrap();
    let server = Server::start(&scratch, "virtual:d.img");
    scratch.ok(["format", "vfio-user:s.sock"]);
    scratch.ok(["cp", "a", "vfio-user:s.sock:/a"]);
    assert_eq!(scratch.ok(["cat", "vfio-user:s.sock:/a"]), "what was written");
    let mut command = scratch.nvmed(["run", "-D", "vfio-user:s.sock", "-d", "store", "--", "sh", "-c"]);
    assert!(command.arg("echo more >> store/a").status().unwrap().success());
    scratch.fails(["cat", "d.img:/a"], 3, "in use");
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert!(!scratch.path("s.sock").exists(), "the socket is left behind");
    assert_eq!(scratch.ok(["cat", "d.img:/a"]), "what was writtenmore\n");
    scratch.ok(["fsck", "d.img"]);
}

#[test]
fn what_cannot_be_served_is_said() {
    let scratch = Scratch::new();
    let device = "virtual:?media=dram,size=16M";
    scratch.fails(["serve-device", "vfio-user:x.sock", "-s", "s.sock"], 2, "no virtual device");
    let simulated = "virtual:?media=dram,size=16M,clock=virtual";
    scratch.fails(["serve-device", simulated, "-s", "s.sock"], 2, "take clock=threaded");
    let asking = "virtual:?media=dram,size=64M,profile=tlc,hmb=8M,hmb_io_slots=8,hmb_io=4";
    scratch.fails(["serve-device", asking, "-s", "s.sock"], 2, "vfio-user:SOCKET?hmb_io=4");
    scratch.fails(["serve-device", device, "-s", "no/such/s.sock"], 1, "No such file");
    scratch.fails(["serve-device", device, "-s", &"s".repeat(200)], 1, "at most 107 bytes");
    scratch.file("plain", "mine");
    scratch.fails(["serve-device", device, "-s", "plain"], 1, "no socket, so it is left alone");
    assert_eq!(std::fs::read(scratch.path("plain")).unwrap(), b"mine");
    scratch.fails(["info", "vfio-user:s.sock"], 1, "start the server first");
    scratch.fails(["info", &format!("vfio-user:{}", "s".repeat(200))], 1, "at most 107 bytes");
    let server = Server::start(&scratch, device);
    assert!(server.line.contains("s.sock"));
    scratch.fails(["serve-device", device, "-s", "s.sock"], 3, "another server serves there");
    let client = Host::new(&scratch.path("s.sock"));
    scratch.fails(["info", "vfio-user:s.sock"], 3, "another client");
    drop(client);
    let begun = Instant::now();
    // As for `Host::new`.
    while scratch.run(["info", "vfio-user:s.sock"]).status == 3 && begun.elapsed() < PATIENCE {}
    scratch.ok(["info", "vfio-user:s.sock"]);
    scratch.fails(["info", "vfio-user:s.sock?nsid=7"], 1, "Invalid Namespace");
}

/// The client's driver lends memory to the served drive, and has slots of HMB-I/O there, by which an urgent program's
/// requests go.
#[test]
fn a_served_drive_has_slots_in_its_clients_memory() {
    let scratch = Scratch::new();
    let device = "virtual:?media=dram,size=64M,profile=tlc-urgent,hmb=8M,hmb_io_slots=8";
    let server = Server::start(&scratch, device);
    let client = "vfio-user:s.sock?hmb_io=4";
    // As for `Host::new`: a child of another test may have the last client's socket.
    let begun = Instant::now();
    while scratch.run(["info", client]).status == 3 && begun.elapsed() < PATIENCE {}
    let page = scratch.ok(["info", client]);
    for words in [
        "would like 8.0 MiB of the host's memory, and has 8.0 MiB in 2 ranges\n",
        "offers HMB-I/O: up to 8 slots in the host's memory\n",
        "urgent requests go by hmb-io: 4 slots of 128.0 KiB in the host's memory\n",
    ] {
        assert!(page.contains(words), "no {words:?} in {page}");
    }
    // The memory that it has lent is shared by descriptor, and the data passes through it.
    let spec =
        DeviceSpec::parse(&format!("vfio-user:{}?hmb_io=4", scratch.path("s.sock").display())).unwrap();
    let opened = loop {
        match open_device(&spec, Open::Existing { locked_by_run: false }) {
            Ok(device) => break device,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
    };
    let memory = Arc::new(Mapping::anonymous(1 << 16, Pages::Base).unwrap());
    let address = opened.map(Arc::clone(&memory)).unwrap();
    let page = |at: u64| [Segment { address: address.plus(at), bytes: 4096 }];
    let handle = opened.handle(Binding::Queue(0));
    opened.expect_urgent(Source::Told);
    memory.fill(0, 4096, 0x5a);
    caller::with(Urgency::Urgent, || handle.write(Lba(8), &page(0), false)).unwrap();
    caller::with(Urgency::Urgent, || handle.read(Lba(8), &page(8192))).unwrap();
    let mut read = [0; 4096];
    memory.read(8192, &mut read);
    assert_eq!(read, [0x5a; 4096]);
    let mut log = DriveLog::new_zeroed();
    opened.engine().log_page(LogPage::DRIVE.0, log.as_mut_bytes()).unwrap();
    assert_eq!((log.hmb_io_reads, log.hmb_io_writes, log.hmb_io_errors), (1, 1, 0));
    drop((handle, opened));
    server.end(Signal::TERM);
}

#[test]
fn a_server_that_is_killed_ends_every_request_and_the_next_one_takes_its_place() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, "virtual:?media=dram,size=16M,clock=threaded");
    let mut host = Host::new(&scratch.path("s.sock"));
    host.memory.fill(0, 1 << 16, 0x5a);
    (0..16).for_each(|tag| host.run(WRITE, tag).unwrap());
    // Requests are under way when it dies: some before, some that it never sees.
    server.send(Signal::STOP);
    (100..116).for_each(|tag| host.submit(WRITE, tag));
    server.end(Signal::KILL);
    let mut ended = Vec::new();
    while host.pair.outstanding() > 0 {
        ended.extend(host.collect());
    }
    let mut tags: Vec<_> = ended.iter().map(|done| done.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (100..116).collect::<Vec<_>>(), "each request ends once");
    assert!(ended.iter().all(|done| done.result.is_err()), "{:?}", ended[0].result);
    let said = ended[0].result.unwrap_err().to_string();
    assert!(said.contains("gone"), "{said}");
    assert!(host.engine.queue(QueueOptions::depth(8)).is_err());
    assert!(scratch.path("s.sock").exists(), "a killed server cannot remove its socket");
    scratch.fails(["info", "vfio-user:s.sock"], 1, "nobody serves there any more");
    let _next = Server::start(&scratch, "virtual:?media=dram,size=16M");
    Host::new(&scratch.path("s.sock")).run(Operation::Read, 1).unwrap();
}

/// No test of its own: the client that [`clients_that_are_killed_leave_the_device_to_the_next`] kills.
#[test]
fn client_to_be_killed() {
    let Some(socket) = std::env::var_os(CLIENT) else { return };
    let mut host = Host::new(Path::new(&socket));
    host.memory.fill(0, 1 << 16, 0x77);
    for tag in 0..u64::MAX {
        host.run(WRITE, tag).unwrap();
        if tag == 20 {
            println!("writing");
        }
    }
}

#[test]
fn clients_that_are_killed_leave_the_device_to_the_next() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, "virtual:?media=dram,size=16M");
    for _ in 0..3 {
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve::client_to_be_killed", "--nocapture"])
            .env(CLIENT, scratch.path("s.sock"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("writing")), "the client did not come so far");
        client.kill().unwrap();
        client.wait().unwrap();
        let mut host = Host::new(&scratch.path("s.sock"));
        host.run(Operation::Read, 3).unwrap();
        let mut bytes = [0; 4096];
        host.memory.read(3 * 4096, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0x77), "what the client had written is there");
    }
    assert_eq!(server.end(Signal::INT).code(), Some(0));
}

#[test]
fn what_a_latency_holds_back_comes_without_another_message() {
    let scratch = Scratch::new();
    for clock in ["inline", "threaded"] {
        let device = format!("virtual:?media=dram,size=16M,clock={clock},latency=20ms");
        let _server = Server::start(&scratch, &device);
        let mut host = Host::new(&scratch.path("s.sock"));
        (0..4).for_each(|tag| host.submit(Operation::Read, tag));
        // No message from here on: only the interrupt and memory are looked at.
        let mut done = Vec::with_capacity(4);
        for _ in 0..600 {
            let seen = host.engine.events(host.pair.vector());
            if host.pair.poll(&mut done) > 0 && host.pair.outstanding() == 0 {
                break;
            }
            host.engine.wait(host.pair.vector(), seen, 100_000);
        }
        assert_eq!(done.len(), 4, "clock={clock}: nothing came for a minute");
    }
}

#[test]
fn a_client_that_cuts_its_memory_short_harms_itself_only() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, "virtual:?media=dram,size=16M");
    let mut host = Host::new(&scratch.path("s.sock"));
    // Without seals, the server cannot keep it from being cut.
    let fd = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 16).unwrap();
    let memory = Mapping::backed(fd.try_clone().unwrap(), 0, 1 << 16, Pages::Base).unwrap();
    host.base = host.engine.map(Arc::new(memory)).unwrap();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    for operation in [Operation::Read, WRITE] {
        host.run(operation, 5).unwrap();
    }
    drop(host);
    Host::new(&scratch.path("s.sock")).run(Operation::Read, 5).unwrap();
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
}
