//! A server over memory, in this process.
#![allow(dead_code, reason = "each test file uses a part")]

use nvmed_client::{Address, File, FileSystem, Session};
use nvmed_fs::{FsError, OpenFlags};
use nvmed_server::{Admission, Server, Service};
use nvmed_stack::{Config, DeviceSpec, Surroundings};
use nvmed_wire::Board;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;

pub const NEW: OpenFlags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
pub const PAGE: usize = 4096;

pub struct Shared {
    pub board: Arc<Board>,
    pub service: Arc<Service>,
    pub server: Server,
    pub address: Address,
}

pub fn serve() -> Shared {
    let spec = DeviceSpec::parse("virtual:?media=dram,size=64M").unwrap();
    let mut config = Config::new(PathBuf::from("/"), spec);
    config.format = true;
    config.cache_bytes = 8 << 20;
    config.cache_huge = false;
    config.writeback_seconds = 0;
    let mount = nvmed_stack::mount(&config, Surroundings::default()).unwrap();
    let address = Address::random().unwrap();
    let admission = Admission::Secret(address.secret().try_into().unwrap());
    let board = Arc::new(Board::new().unwrap());
    let service = Arc::new(Service::new(mount, admission, Arc::clone(&board), 1 << 20));
    let server = Server::start(Arc::clone(&service), &address).unwrap();
    Shared { board, service, server, address }
}

impl Shared {
    pub fn session(&self) -> Session {
        Session::connect(&self.address).unwrap()
    }
}

pub fn create(files: &FileSystem, name: &str) -> Arc<File> {
    files.open(&files.root(), name.as_bytes(), NEW, 0o644).unwrap()
}

pub fn errno<T>(result: Result<T, FsError>) -> Errno {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.errno(),
    }
}

/// Waits until something is so; fails after a long time.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed().as_secs() < 60, "not in a minute: {what}");
        std::thread::yield_now();
    }
}
