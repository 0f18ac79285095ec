//! Whose calls are urgent, by what arrives at the drive: all those of a handle that is set so, single calls, and no
//! others.

use nvmed_block::{Aio, ByteHandle, CacheOptions, Disk, DiskOptions, Route, Settings};
use nvmed_engine::nvme::NvmeEngine;
use nvmed_flash::{FixedProfile, Profile};
use nvmed_io::{Binding, Command, Device, DeviceOptions, Operation};
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, Controller, ControllerConfig, DriveEvent, InProcess, Media};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const BYTES: u64 = 4 << 20;
/// What all calls send where there is no cache: Flush, Write, Read, Compare, Write Zeroes, Dataset Management.
const OPCODES: [u8; 6] = [0, 1, 2, 5, 8, 9];

/// A disk, and what has come to its drive since the last look: opcodes, and whether it was urgent to the drive.
struct Watched {
    disk: Arc<Disk>,
    came: Arc<Mutex<Vec<(u8, bool)>>>,
}

impl Watched {
    fn new() -> Self {
        // 64 KiB a command, so that calls become several.
        let drive = Some(Profile::fixed(FixedProfile::default()));
        let config =
            ControllerConfig { clock: Clock::Virtual, drive, mdts: 4, ..ControllerConfig::default() };
        let controller = Controller::new(config, Media::ram(BYTES, Pages::Base).unwrap());
        let came = Arc::<Mutex<Vec<_>>>::default();
        let sink = Arc::clone(&came);
        controller.record_events(Box::new(move |event| {
            let arrival = event.and_then(DriveEvent::arrival);
            let arrived = arrival.map(|arrival| (arrival.opcode, arrival.command.urgent));
            sink.lock().unwrap().extend(arrived);
        }));
        let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
        let device = Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 8 }).unwrap();
        // No look at what the device holds: what comes is what a call has sent.
        let options = DiskOptions { pages: Pages::Base, overwrite: true };
        Self { disk: Disk::new(device, options), came }
    }

    fn handle(&self, direct: bool, urgent: bool) -> ByteHandle {
        let settings = Settings { direct, urgent, ..Settings::default() };
        self.disk.handle(Route::Bound(Binding::Spread), settings).unwrap()
    }

    /// What came: opcodes of urgent commands, and of others.
    fn came(&self) -> [BTreeSet<u8>; 2] {
        let came = std::mem::take(&mut *self.came.lock().unwrap());
        [true, false].map(|urgent| came.iter().filter(|one| one.1 == urgent).map(|one| one.0).collect())
    }
}

/// Each call of a handle once: the synchronous ones, aligned to blocks and not, and the asynchronous ones.
fn every_call(handle: &ByteHandle) {
    let mut data = vec![7; 8192];
    assert_eq!(handle.pwrite(&data, 0).unwrap(), 8192);
    assert_eq!(handle.pwrite(&data[..100], 33).unwrap(), 100);
    handle.flush().unwrap();
    assert_eq!(handle.pread(&mut data, 0).unwrap(), 8192);
    handle.write_zeroes(0, 4096).unwrap();
    handle.discard(8192, 4096).unwrap();
    handle.passthrough(&Command { opcode: 0, nsid: 1, ..Command::default() }, None).unwrap();
    let buffer = Arc::new(handle.disk().buffer(8192).unwrap());
    handle.read_buffer(&buffer, 0..8192, 0).unwrap();
    handle.compare_buffer(&buffer, 0..8192, 0).unwrap();
    handle.compare(&vec![0; 4096], 0).unwrap();
    let calls = [(Operation::Write { fua: false }, 0), (Operation::Read, 0), (Operation::Read, 11)];
    for (operation, offset) in calls {
        let aio = Aio { operation, offset, bytes: 4096, buffer: Some((Arc::clone(&buffer), 0)), user: 0 };
        handle.submit(aio).unwrap();
        reap(handle);
    }
    handle.submit(Aio { operation: Operation::Flush, offset: 0, bytes: 0, buffer: None, user: 0 }).unwrap();
    reap(handle);
}

/// Takes the only call that is under way.
fn reap(handle: &ByteHandle) {
    handle.ring();
    let mut done = Vec::new();
    while handle.reap(1, &mut done) == 0 {
        handle.wait();
    }
    done.pop().unwrap().result.unwrap();
}

#[test]
fn an_urgent_handle_sends_urgent_commands_and_nobody_else_does() {
    let watched = Watched::new();
    let (plain, urgent) = (watched.handle(true, false), watched.handle(true, true));
    let all = BTreeSet::from(OPCODES);
    let none = BTreeSet::new();
    every_call(&plain);
    assert_eq!(watched.came(), [none.clone(), all.clone()], "a normal handle beside an urgent one");
    every_call(&urgent);
    assert_eq!(watched.came(), [all.clone(), none.clone()], "every call of the urgent handle");
    plain.urgently(|| every_call(&plain));
    assert_eq!(watched.came(), [all.clone(), none.clone()], "single calls of a normal handle");
    let settings = urgent.settings();
    urgent.set(Settings { urgent: false, ..settings }).unwrap();
    every_call(&urgent);
    assert_eq!(watched.came(), [none, all], "it is so no longer");
}

/// A call of more commands than the queue has places: most of it is sent by whoever reaps it.
#[test]
fn what_is_sent_late_of_an_urgent_call_is_urgent() {
    let watched = Watched::new();
    let plain = watched.handle(true, false);
    let buffer = Arc::new(watched.disk.buffer(2 << 20).unwrap());
    let read = || {
        let buffer = Some((Arc::clone(&buffer), 0));
        plain.submit(Aio { operation: Operation::Read, offset: 0, bytes: 2 << 20, buffer, user: 0 }).unwrap();
    };
    plain.urgently(read);
    reap(&plain);
    let came = watched.came.lock().unwrap().clone();
    assert!(came.len() == 32 && came.iter().all(|&one| one == (2, true)), "{came:?}");
    watched.came.lock().unwrap().clear();
    read();
    reap(&plain);
    assert_eq!(watched.came(), [BTreeSet::new(), BTreeSet::from([2])], "the next one of the same handle");
}

/// What the cache has to do before an urgent call can return is urgent: to bring in what is missing, and to write back
/// what others have left.
#[test]
fn the_cache_works_urgently_for_an_urgent_handle() {
    let watched = Watched::new();
    let (plain, urgent) = (watched.handle(false, false), watched.handle(false, true));
    watched
        .disk
        .set_cache(Some(CacheOptions { pages: Pages::Base, ..CacheOptions::bytes(1 << 20) }))
        .unwrap();
    let mut page = vec![3; 4096];
    for (reader, sent) in [(&urgent, [BTreeSet::from([2]), BTreeSet::new()]), (&plain, Default::default())] {
        reader.pread(&mut page, 1 << 20).unwrap();
        assert_eq!(watched.came(), sent, "a miss is the first one's, and a hit nobody's");
    }
    plain.pread(&mut page, 2 << 20).unwrap();
    assert_eq!(watched.came(), [BTreeSet::new(), BTreeSet::from([2])]);
    for (who, is_urgent) in [(&urgent, true), (&plain, false)] {
        plain.pwrite(&page, 0).unwrap();
        assert_eq!(watched.came(), [BTreeSet::new(), BTreeSet::new()], "it is in the cache");
        who.flush().unwrap();
        let mut sent = [BTreeSet::from([0, 1]), BTreeSet::new()];
        if !is_urgent {
            sent.reverse();
        }
        assert_eq!(watched.came(), sent, "urgent: {is_urgent}");
    }
}
