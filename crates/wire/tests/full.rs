//! A process that has no descriptor left. A test program of its own: the limit is the whole process's.

use nvmed_wire::{Control, Socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_message_whose_descriptor_finds_no_room_comes_without_it() {
    let (one, other) = Socket::pair().unwrap();
    let sent = rustix::fs::memfd_create("sent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    one.send(&Control::Lane, Some(rustix::fd::AsFd::as_fd(&sent))).unwrap();
    one.send(&Control::Statistics, None).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1), ..before }).unwrap();
    let came = other.receive::<Control>(None);
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(matches!(came, Ok((Control::Lane, None))), "{came:?}");
    assert!(matches!(other.receive::<Control>(None), Ok((Control::Statistics, None))));
}
