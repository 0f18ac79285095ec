//! A hostile client's calls, one after the other, against the sessions of a server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmed_server::{Admission, Peer, Service, data_bytes};
use nvmed_stack::{Config, DeviceSpec, Surroundings};
use nvmed_wire::{Board, Call, DATA_BYTES_MAX, Request};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

const SECRET: [u8; 16] = [7; 16];

/// One mount for all inputs: what one of them leaves is the next one's start, as with a server.
fn service() -> &'static Service {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let spec = DeviceSpec::parse("virtual:?media=dram,size=64M").expect("a device");
        let mut config = Config::new(PathBuf::from("/"), spec);
        config.format = true;
        config.cache_bytes = 4 << 20;
        let mount = nvmed_stack::mount(&config, Surroundings::default()).expect("it mounts");
        let board = Arc::new(Board::new().expect("a board"));
        Service::new(mount, Admission::Secret(SECRET), board, 1 << 20)
    })
}

fuzz_target!(|input: &[u8]| {
    let service = service();
    let peer = Peer { pid: 1, uid: 1000, gid: 1000, groups: [].into(), real: (1000, 1000) };
    let session = service.begin(peer, &SECRET, b"").expect("a session");
    let mut data = Request::default().data;
    let mut rest = input;
    while let Ok((call, more)) = postcard::take_from_bytes::<Call<'_>>(rest) {
        data.give(&more[..more.len().min(100)]);
        let answer = service.answer(&session, call, &mut data);
        assert!(data_bytes(&answer) <= DATA_BYTES_MAX);
        rest = more;
    }
    service.end(&session);
    assert_eq!((service.sessions(), service.processes()), (0, 0), "nothing is left of it");
});
