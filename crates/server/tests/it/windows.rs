//! Windows: what a client reads without a call is what it would read by one.

use crate::support::{Client, Shared, serve, serve_on, serve_with};
use nvmed_fs::{Allocate, OpenFlags, Whence};
use nvmed_stack::DeviceSpec;
use nvmed_wire::{Answer, Call, Control, Data, Handle, MediumView, Object, Seen, WindowView};
use proptest::prelude::*;
use rustix::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A window, over the medium if it is direct.
pub fn window(client: &Client, handle: Handle) -> WindowView {
    let fd = client.control(&Control::Window { handle }).unwrap().unwrap();
    let view = WindowView::open(fd.as_fd()).unwrap();
    if !view.is_direct() {
        return view;
    }
    let medium = client.control(&Control::Medium).unwrap().unwrap();
    view.over(Arc::new(MediumView::open(medium.as_fd()).unwrap()))
}

/// A server whose files lie in memory.
fn serve_in_memory(window_bytes: u64) -> Shared {
    serve_on(DeviceSpec::parse("nvm:?size=64M").unwrap(), window_bytes)
}

/// Reads as a client does: through the window, by a call where it has not all.
fn read(client: &Client, view: &WindowView, handle: Handle, offset: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    match view.read(&mut into, offset) {
        Seen::Bytes(len) => {
            into.truncate(len);
            into
        }
        Seen::Missing | Seen::Closed => client.pread(handle, offset, bytes as u32),
    }
}

#[test]
fn a_second_read_makes_no_call_and_sees_every_change() {
    second_read(&serve(), false);
}

#[test]
fn a_second_read_in_memory_makes_no_call_and_sees_every_change() {
    second_read(&serve_in_memory(1 << 20), true);
}

fn second_read(shared: &Shared, is_direct: bool) {
    let (reader, writer) = (Client::connect(shared), Client::connect(shared));
    let file = writer.create("file");
    writer.pwrite(file, 0, &[1; 10_000]);
    let mine = reader.open("file", OpenFlags::READ).unwrap();
    let view = window(&reader, mine);
    assert_eq!(view.is_direct(), is_direct);
    let mut byte = [0];
    assert_eq!(view.read(&mut byte, 5000), Seen::Missing);
    assert_eq!(reader.pread(mine, 0, 10_000), [1; 10_000]);
    assert_eq!((view.read(&mut byte, 9999), byte), (Seen::Bytes(1), [1]));
    writer.pwrite(file, 9999, &[2, 3]);
    assert_eq!((view.read(&mut byte, 9999), byte), (Seen::Bytes(1), [2]), "overwritten in place");
    assert_eq!((view.read(&mut byte, 10_000), byte), (Seen::Bytes(1), [3]), "and grown");
    let appends = writer.open("file", OpenFlags::READ_WRITE.with(OpenFlags::APPEND)).unwrap();
    assert_eq!(writer.write(appends, &[4]), 10_002);
    assert_eq!((view.read(&mut byte, 10_001), byte), (Seen::Bytes(1), [4]));
    let truncate = Call::Truncate { object: Object::Held(file), bytes: 9000 };
    assert_eq!(writer.call(&truncate), Answer::Done);
    assert_eq!(view.read(&mut byte, 9000), Seen::Bytes(0), "cut");
    assert_eq!(writer.call(&Call::Truncate { object: Object::Held(file), bytes: 10_000 }), Answer::Done);
    assert_eq!(read(&reader, &view, mine, 9500, 1), [0], "what was cut off does not come back");
    let punch = Allocate { keep_size: true, punch_hole: true, zero_range: false };
    let punch = Call::Allocate { handle: file, how: punch, offset: 0, bytes: 4096 };
    assert_eq!(writer.call(&punch), Answer::Done);
    assert_eq!(read(&reader, &view, mine, 10, 1), [0]);
    writer.open("file", OpenFlags::WRITE.with(OpenFlags::TRUNCATE)).unwrap();
    assert_eq!(view.read(&mut byte, 0), Seen::Bytes(0), "emptied by who opened it");
    writer.pwrite(file, 0, &[5; 8192]);
    assert_eq!(read(&reader, &view, mine, 8191, 2), [5]);
    writer.open("file", OpenFlags::READ.with(OpenFlags::TRUNCATE)).unwrap();
    assert_eq!(view.read(&mut byte, 0), Seen::Bytes(0), "the same without the right to write");
}

#[test]
fn a_file_that_somebody_stores_into_by_mmap_has_no_window() {
    let shared = serve();
    let client = Client::connect(&shared);
    let file = client.create("file");
    client.pwrite(file, 0, &[1; 4096]);
    let view = window(&client, file);
    client.pread(file, 0, 1);
    let memory = client.control(&Control::Map { handle: file, write: true }).unwrap().unwrap();
    assert!(!view.is_open());
    assert_eq!(client.control(&Control::Window { handle: file }).err(), Some(libc::EBUSY));
    rustix::io::pwrite(&memory, &[9], 100).unwrap();
    assert_eq!(client.pread(file, 100, 1), [9], "a store is seen at once");
    assert_eq!(client.call(&Call::Unmap { handle: file, write: true }), Answer::Done);
    assert_eq!(client.call(&Call::Unmap { handle: file, write: true }), Answer::Failed(libc::EINVAL));
    let view = window(&client, file);
    assert_eq!(read(&client, &view, file, 100, 1), [9]);
}

#[test]
fn what_a_dead_process_stored_by_mmap_is_the_files() {
    let shared = serve();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let file = client.create("file");
    client.pwrite(file, 0, &[1; 4096]);
    let memory = client.control(&Control::Map { handle: file, write: true }).unwrap().unwrap();
    let child = Client::adopt(client.heir(&[(3, file)], false).unwrap());
    drop(client);
    rustix::io::pwrite(&memory, &[9], 100).unwrap();
    drop((child, memory));
    crate::support::until("both are gone", || shared.service.sessions() == 1);
    let file = other.open("file", OpenFlags::READ).unwrap();
    assert_eq!(other.pread(file, 100, 1), [9]);
    // Nobody has it mapped any more, or there were no window.
    window(&other, file);
}

#[test]
fn a_window_is_for_who_may_read_and_nobody_can_write_it() {
    let shared = serve();
    let client = Client::connect(&shared);
    client.create("file");
    let blind = client.open("file", OpenFlags::WRITE).unwrap();
    assert_eq!(client.control(&Control::Window { handle: blind }).err(), Some(libc::EACCES));
    assert_eq!(client.control(&Control::Map { handle: blind, write: false }).err(), Some(libc::EACCES));
    let file = client.open("file", OpenFlags::READ).unwrap();
    assert_eq!(client.control(&Control::Map { handle: file, write: true }).err(), Some(libc::EACCES));
    for question in [Control::Window { handle: file }, Control::Map { handle: file, write: false }] {
        let fd = client.control(&question).unwrap().unwrap();
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err() && rustix::fs::ftruncate(&fd, 0).is_err());
    }
    let directory = client.open("/", OpenFlags::READ).unwrap();
    assert_eq!(client.control(&Control::Window { handle: directory }).err(), Some(libc::EOPNOTSUPP));
}

#[test]
fn the_oldest_pages_make_room() {
    let shared = serve_with(1 << 20);
    let client = Client::connect(&shared);
    let file = client.create("file");
    for part in 0..3 {
        client.pwrite(file, part << 20, &vec![part as u8 + 1; 1 << 20]);
    }
    let view = window(&client, file);
    let mut byte = [0];
    for part in 0..3u8 {
        let start = u64::from(part) << 20;
        assert_eq!(client.pread(file, start, 1 << 20)[0], part + 1);
        assert_eq!((view.read(&mut byte, start + 500_000), byte), (Seen::Bytes(1), [part + 1]));
    }
    assert_eq!(view.read(&mut byte, 500_000), Seen::Missing, "given back");
    assert_eq!(read(&client, &view, file, 500_000, 1), [1]);
}

#[test]
fn a_reader_in_order_makes_few_calls() {
    let shared = serve();
    let client = Client::connect(&shared);
    let file = client.create("file");
    client.pwrite(file, 0, &vec![7; 512 << 10]);
    let view = window(&client, file);
    let (mut calls, mut byte) = (0, [0]);
    for page in 0..128 {
        if view.read(&mut byte, page * 4096) == Seen::Missing {
            client.pread(file, page * 4096, 4096);
            calls += 1;
        }
    }
    assert!(calls <= 8, "{calls} calls for 128 pages");
}

/// Readers check that a page is of one write, while writers write whole pages and cut the file.
#[test]
fn readers_never_see_half_of_a_write_or_an_old_one() {
    whole_writes(&serve());
    whole_writes(&serve_in_memory(1 << 20));
}

fn whole_writes(shared: &Shared) {
    const PAGES: u64 = 16;
    let stop = AtomicBool::new(false);
    let done = [const { AtomicU64::new(0) }; PAGES as usize];
    let writer = Client::connect(shared);
    let file = writer.create("file");
    for page in 0..PAGES {
        writer.pwrite(file, page * 4096, &[0; 4096]);
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let client = Client::connect(shared);
                let file = client.open("file", OpenFlags::READ).unwrap();
                let view = window(&client, file);
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    at = (at + 7) % PAGES;
                    let written = done[at as usize].load(Ordering::SeqCst);
                    let bytes = read(&client, &view, file, at * 4096, 4096);
                    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    assert!(bytes.chunks(8).all(|part| part == &bytes[..8]), "half of a write");
                    assert!(number >= written, "{number} after {written} was completed");
                }
            });
        }
        for number in 1..4000u64 {
            let page = number % PAGES;
            writer.pwrite(file, page * 4096, &number.to_le_bytes().repeat(512));
            done[page as usize].store(number, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_window_follows_writes_while_their_flags_change() {
    const WRITES: u64 = 2_000;
    const BYTES: u64 = 64;
    let shared = serve_with(8 << 20);
    let client = Client::connect(&shared);
    let handle = client.create("file");
    client.pwrite(handle, 0, &[0; (WRITES * BYTES) as usize]);
    let view = window(&client, handle);
    for page in 0..(WRITES * BYTES).div_ceil(4096) {
        client.pread(handle, page * 4096, 4096);
    }
    // Without lanes, so that calls meet more often.
    let session = &shared.service.list()[0];
    let answer = |call: Call<'_>, data: &mut Data| shared.service.answer(session, call, data);
    let write = |byte: u8| {
        let mut data = Data::default();
        data.give(&[byte; BYTES as usize]);
        answer(Call::Write { handle, offset: None, bytes: BYTES as u32, sync: false }, &mut data);
    };
    for round in 1..=200 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for flags in [OpenFlags::READ_WRITE.with(OpenFlags::APPEND), OpenFlags::READ_WRITE] {
                        answer(Call::SetFlags { handle, flags }, &mut Data::default());
                    }
                }
            });
            for at in 0..WRITES {
                let by = (at * BYTES) as i64;
                answer(Call::Seek { handle, by, whence: Whence::Set }, &mut Data::default());
                write(round);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(view.size(), Some(client.size(handle)));
        for offset in (0..WRITES * BYTES).step_by(4096) {
            let seen = read(&client, &view, handle, offset, 4096);
            assert!(seen == client.pread(handle, offset, 4096), "round {round}, the page at {offset}");
        }
    }
}

#[test]
fn a_change_of_many_pages_closes_the_window() {
    let shared = serve();
    let client = Client::connect(&shared);
    let file = client.create("file");
    let truncate = |bytes| Call::Truncate { object: Object::Held(file), bytes };
    assert_eq!(client.call(&truncate(1 << 36)), Answer::Done);
    let view = window(&client, file);
    let how = Allocate { keep_size: true, punch_hole: true, zero_range: false };
    let punch = |bytes| Call::Allocate { handle: file, how, offset: 0, bytes };
    assert_eq!(client.call(&punch(1 << 20)), Answer::Done);
    assert!(view.is_open(), "a small one does not");
    assert_eq!(client.call(&punch(1 << 36)), Answer::Done);
    assert!(!view.is_open());
    let view = window(&client, file);
    assert_eq!(client.call(&truncate(5)), Answer::Done);
    assert!(!view.is_open());
    assert_eq!(client.pread(file, 0, 10), [0; 5]);
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, bytes: usize, byte: u8 },
    Append { bytes: usize, byte: u8 },
    Truncate { bytes: u64 },
    Punch { at: u64, bytes: u64 },
    Read { at: u64, bytes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..60_000u64;
    prop_oneof![
        3 => (at(), 1..20_000usize, any::<u8>()).prop_map(|(at, bytes, byte)| Step::Write { at, bytes, byte }),
        1 => (1..10_000usize, any::<u8>()).prop_map(|(bytes, byte)| Step::Append { bytes, byte }),
        1 => at().prop_map(|bytes| Step::Truncate { bytes }),
        1 => (at(), 1..20_000u64).prop_map(|(at, bytes)| Step::Punch { at, bytes }),
        5 => (at(), 1..20_000usize).prop_map(|(at, bytes)| Step::Read { at, bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    /// One writes, another reads through a window: always what a vector of bytes says.
    #[test]
    fn a_window_is_the_file(steps in proptest::collection::vec(step(), 1..60)) {
        // Small enough that pages are given back.
        window_is_the_file(&serve_with(40 << 10), &steps)?;
        window_is_the_file(&serve_in_memory(1 << 20), &steps)?;
    }
}

fn window_is_the_file(shared: &Shared, steps: &[Step]) -> Result<(), TestCaseError> {
    let (reader, writer) = (Client::connect(shared), Client::connect(shared));
    let appends = OpenFlags::READ_WRITE.with(OpenFlags::CREATE).with(OpenFlags::APPEND);
    let (file, end) = (writer.create("file"), writer.open("file", appends).unwrap());
    let mine = reader.open("file", OpenFlags::READ).unwrap();
    let mut view = window(&reader, mine);
    let mut model = Vec::new();
    for step in steps {
        let step = step.clone();
        if !view.is_open() {
            // Closed by a large change, or since the file lies in its record.
            view = window(&reader, mine);
        }
        match step {
            Step::Write { at, bytes, byte } => {
                writer.pwrite(file, at, &vec![byte; bytes]);
                let to = at as usize + bytes;
                model.resize(model.len().max(to), 0);
                model[at as usize..to].fill(byte);
            }
            Step::Append { bytes, byte } => {
                model.resize(model.len() + bytes, byte);
                prop_assert_eq!(writer.write(end, &vec![byte; bytes]), model.len() as u64);
            }
            Step::Truncate { bytes } => {
                let call = Call::Truncate { object: Object::Held(file), bytes };
                prop_assert_eq!(writer.call(&call), Answer::Done);
                model.resize(bytes as usize, 0);
            }
            Step::Punch { at, bytes } => {
                let how = Allocate { keep_size: true, punch_hole: true, zero_range: false };
                let call = Call::Allocate { handle: file, how, offset: at, bytes };
                prop_assert_eq!(writer.call(&call), Answer::Done);
                let len = model.len();
                model[len.min(at as usize)..len.min((at + bytes) as usize)].fill(0);
            }
            Step::Read { at, bytes } => {
                let len = model.len();
                let there = &model[len.min(at as usize)..len.min(at as usize + bytes)];
                prop_assert_eq!(&read(&reader, &view, mine, at, bytes)[..], there);
            }
        }
    }
    Ok(())
}
