//! The controller behind a socket: what a client sees, and what becomes of what a client leaves.

use nvmed_dma::Transport;
use nvmed_nvme::register;
use nvmed_sys::{Mapping, Pages};
use nvmed_vdev::{Controller, ControllerConfig, Media, PciFunction};
use nvmed_vfio_user::{Client, ClientOptions, ProtocolError, Server, Stop, irq, region};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A served controller; ends with its value.
struct Served {
    path: PathBuf,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nvmed-{}-{name}.sock", std::process::id()));
        let media = Media::ram(1 << 20, Pages::Base).unwrap();
        let mut function = PciFunction::new(Controller::new(ControllerConfig::default(), media)).unwrap();
        let mut server = Server::bind(&path).unwrap();
        let stop = server.stop();
        let thread = std::thread::spawn(move || server.run(&mut function).unwrap());
        Self { path, stop, thread: Some(thread) }
    }

    fn connect(&self) -> Client {
        Client::connect(&self.path, ClientOptions::default()).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok(), "the server panicked");
        assert!(std::thread::panicking() || !self.path.exists(), "the socket is still there");
    }
}

#[test]
fn registers_read_the_same_in_every_width() {
    let served = Served::new("registers");
    let client = served.connect();
    let cap = client.read64(register::CAP);
    assert_eq!(cap, u64::from(client.read32(0)) | u64::from(client.read32(4)) << 32);
    assert_eq!(client.read32(register::VS), register::VERSION_1_4);
    let mut bytes = [0; 11];
    client.region_read(region::BAR0, 5, &mut bytes).unwrap();
    let mut want = cap.to_le_bytes()[5..].to_vec();
    want.extend(register::VERSION_1_4.to_le_bytes());
    want.extend([0; 4]);
    assert_eq!(bytes[..], want);
    client.write64(register::ASQ, 0x1234_5678_9abc_d000);
    assert_eq!(client.read64(register::ASQ), 0x1234_5678_9abc_d000);
    assert_eq!(client.read32(u32::MAX - 3), u32::MAX, "beyond BAR0");
    assert_eq!(client.vectors(), 32);
}

#[test]
fn a_client_is_alone_and_leaves_nothing_behind() {
    let served = Served::new("alone");
    let first = served.connect();
    let memory = Arc::new(Mapping::anonymous(8192, Pages::Base).unwrap());
    first.map(Arc::clone(&memory)).unwrap();
    first.write32(register::AQA, 0x000f_000f);
    let refused = Client::connect(&served.path, ClientOptions::default()).unwrap_err();
    assert_eq!(refused.errno(), rustix::io::Errno::BUSY, "{refused}");
    assert!(!first.is_gone(), "the second client disturbed the first");
    drop(first);
    let second = served.connect();
    // The same device address is free again.
    second.map(memory).unwrap();
    assert_eq!(second.read32(register::CC), 0);
}

#[test]
fn a_reset_by_message_by_configuration_space_or_by_register_is_a_reset() {
    let served = Served::new("reset");
    let client = served.connect();
    let memory = Arc::new(Mapping::shareable(16_384, Pages::Base).unwrap());
    let base = client.map(memory).unwrap();
    let resets: [&dyn Fn(); 3] = [
        &|| client.reset().unwrap(),
        &|| client.region_write(region::CONFIG, 0x68, &[0, 0x80]).unwrap(),
        &|| client.write32(register::CC, 0),
    ];
    for reset in resets {
        client.write32(register::AQA, 0x000f_000f);
        client.write64(register::ASQ, base.0);
        client.write64(register::ACQ, base.0 + 8192);
        client.write32(register::CC, 0x0046_0001);
        assert_eq!(client.read32(register::CSTS) & 3, 1, "it did not become ready");
        reset();
        assert_eq!(client.read32(register::CSTS) & 3, 0, "it is still ready");
    }
}

#[test]
fn what_the_device_does_not_have_is_refused() {
    let served = Served::new("refused");
    let client = served.connect();
    let refused = |result: Result<(), ProtocolError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, ProtocolError::Refused { .. }), "{error}");
        assert!(!client.is_gone());
    };
    refused(client.region_read(region::BAR0, 1 << 14, &mut [0; 4]));
    refused(client.region_read(region::BAR0, u64::MAX - 1, &mut [0; 4]));
    refused(client.region_read(region::BAR0 + 1, 0, &mut [0; 4]));
    refused(client.region_read(region::COUNT, 0, &mut [0; 4]));
    refused(client.region_write(region::BAR0, 2, &[0; 4]));
    refused(client.region_write(region::BAR0, 0, &[0; 3]));
    assert_eq!(client.read32(register::VS), register::VERSION_1_4);
    assert_eq!(irq::MSIX, 2);
}
