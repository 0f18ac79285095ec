//! A server over memory, in this process.
#![allow(dead_code, reason = "each test file uses a part")]

use nvmed_client::{Address, File, FileSystem, Session};
use nvmed_fs::{Follow, FsError, OpenFlags, Stat};
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
    serve_with(1 << 20)
}

/// With windows of so many bytes, and half of that for shelves.
pub fn serve_with(windows_bytes: u64) -> Shared {
    serve_on("virtual:?media=dram,size=64M", windows_bytes)
}

/// On memory, where files are read in place.
pub fn serve_in_memory() -> Shared {
    serve_on("nvm:?size=64M", 1 << 20)
}

fn serve_on(device: &str, windows_bytes: u64) -> Shared {
    let spec = DeviceSpec::parse(device).unwrap();
    let mut config = Config::new(PathBuf::from("/"), spec);
    config.format = true;
    config.cache_bytes = 8 << 20;
    config.cache_huge = false;
    config.writeback_seconds = 0;
    let mount = nvmed_stack::mount(&config, Surroundings::default()).unwrap();
    let address = Address::random().unwrap();
    let admission = Admission::Secret(address.secret().try_into().unwrap());
    let board = Arc::new(Board::new().unwrap());
    let service = Arc::new(Service::new(mount, admission, Arc::clone(&board), windows_bytes));
    let server = Server::start(Arc::clone(&service), &address).unwrap();
    Shared { board, service, server, address }
}

/// How many calls of these kinds the server has answered.
pub fn calls<'a>(session: &Session, kinds: &[&'a str]) -> Vec<(&'a str, u64)> {
    let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
    let counts = told["calls"].as_array().unwrap();
    let count = |name: &&'a str| {
        let kind = counts.iter().find(|kind| kind["call"] == **name);
        (*name, kind.map_or(0, |kind| kind["count"].as_u64().unwrap()))
    };
    kinds.iter().map(count).collect()
}

/// Has a session ask for its shelf: by as many calls as that takes.
pub fn settle(session: &Session) {
    let (files, root) = (session.files(), session.files().root());
    for _ in 0..8 {
        let _ = files.stat(&root, b"not there", Follow::Yes);
    }
}

/// The status of what is at a path from the root.
pub fn stat(files: &FileSystem, path: &[u8]) -> Result<Stat, FsError> {
    files.stat(&files.root(), path, Follow::Yes)
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
