//! A disk against an array of bytes: whatever mix of calls, positions and memory, both hold the same.

mod support;
mod urgent;

use nvmed_block::{
    Aio, BlockError, ByteHandle, CacheOptions, Disk, DiskOptions, EvictionPolicy, Route, Settings,
    WritePolicy,
};
use nvmed_dice::Dice;
use nvmed_io::{Binding, Operation};
use nvmed_sys::Pages;
use nvmed_vdev::Clock;
use proptest::prelude::*;
use std::io::{IoSlice, IoSliceMut, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use support::disk;

/// More pages than the smallest cache has frames.
const BYTES: u64 = 200 * 4096;
/// Where most calls go, so that they meet.
const BUSY: u64 = 40 * 4096;

#[derive(Clone, Debug)]
enum Call {
    Read { at: u64, len: usize, buffer: bool },
    Write { at: u64, len: usize, byte: u8, buffer: bool },
    Vector { at: u64, pieces: Vec<usize>, byte: u8 },
    Async { at: u64, len: usize, byte: u8, shift: usize },
    Zero { at: u64, len: u64 },
    Compare { at: u64, len: usize, buffer: bool, differs: bool },
    Cursor { at: u64, len: usize, byte: u8 },
    Flush,
    Switch { direct: bool, sync: bool },
    Cache(Option<CacheOptions>),
    Advise(u64, u64),
}

/// Offsets and lengths that like block and page edges, and the end of the device.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..BUSY / 512).prop_map(|block| block * 512),
        (0..BUSY / 4096).prop_map(|page| page * 4096),
        (0..BYTES / 4096).prop_map(|page| page * 4096),
        0..BUSY,
        0..BYTES + 100,
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        (0usize..40).prop_map(|blocks| blocks * 512),
        Just(4096),
        1usize..10_000,
        60_000usize..150_000
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let b = any::<bool>;
    prop_oneof![
        4 => (offset(), length(), b()).prop_map(|(at, len, buffer)| Call::Read { at, len, buffer }),
        6 => (offset(), length(), any::<u8>(), b())
            .prop_map(|(at, len, byte, buffer)| Call::Write { at, len, byte, buffer }),
        2 => (offset(), prop::collection::vec(0usize..3000, 0..6), any::<u8>())
            .prop_map(|(at, pieces, byte)| Call::Vector { at, pieces, byte }),
        3 => (offset(), length(), any::<u8>(), prop_oneof![Just(0usize), Just(512), 0usize..600])
            .prop_map(|(at, len, byte, shift)| Call::Async { at, len, byte, shift }),
        1 => (offset(), 0u64..50_000).prop_map(|(at, len)| Call::Zero { at, len }),
        2 => (offset(), 1usize..9000, b(), b())
            .prop_map(|(at, len, buffer, differs)| Call::Compare { at, len, buffer, differs }),
        2 => (offset(), length(), any::<u8>()).prop_map(|(at, len, byte)| Call::Cursor { at, len, byte }),
        1 => Just(Call::Flush),
        1 => (b(), b()).prop_map(|(direct, sync)| Call::Switch { direct, sync }),
        1 => cache().prop_map(Call::Cache),
        1 => (0..BYTES, 0..BYTES).prop_map(|(one, other)| Call::Advise(one, other)),
    ]
}

/// No cache, or the smallest one, so that pages come and go.
fn cache() -> impl Strategy<Value = Option<CacheOptions>> {
    let some = |(through, dirty_bytes, policy)| CacheOptions {
        pages: Pages::Base,
        policy,
        write: if through { WritePolicy::Through } else { WritePolicy::Back },
        dirty_bytes,
        ..CacheOptions::bytes(0)
    };
    let policy = prop::sample::select(EvictionPolicy::ALL.to_vec());
    prop::option::of((any::<bool>(), 0u64..100_000, policy).prop_map(some))
}

/// Bytes that tell where they belong, so that a shifted copy shows.
fn pattern(len: usize, byte: u8) -> Vec<u8> {
    (0..len).map(|at| byte.wrapping_add((at / 7) as u8)).collect()
}

struct Model {
    bytes: Vec<u8>,
}

impl Model {
    fn clip(&self, at: u64, len: usize) -> usize {
        len.min((self.bytes.len() as u64).saturating_sub(at) as usize)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<usize, ()> {
        let len = self.clip(at, data.len());
        if len == 0 && !data.is_empty() {
            return Err(());
        }
        if len > 0 {
            self.bytes[at as usize..at as usize + len].copy_from_slice(&data[..len]);
        }
        Ok(len)
    }

    fn read(&self, at: u64, len: usize) -> &[u8] {
        let len = self.clip(at, len);
        if len == 0 { &[] } else { &self.bytes[at as usize..at as usize + len] }
    }
}

fn wrote(result: Result<usize, BlockError>, wanted: Result<usize, ()>) {
    match (result, wanted) {
        (Ok(done), Ok(wanted)) => assert_eq!(done, wanted),
        (Err(BlockError::NoSpace { .. }), Err(())) => {}
        (result, wanted) => panic!("{result:?}, wanted {wanted:?}"),
    }
}

fn run(disk: &Arc<Disk>, handle: &ByteHandle, model: &mut Model, call: &Call) {
    match *call {
        Call::Read { at, len, buffer: false } => {
            let mut got = vec![0xee; len];
            let done = handle.pread(&mut got, at).unwrap();
            assert_eq!(&got[..done], model.read(at, len));
        }
        Call::Read { at, len, buffer: true } => {
            let buffer = disk.buffer(len.max(1)).unwrap();
            let done = handle.read_buffer(&buffer, 0..len, at).unwrap();
            let mut got = vec![0; done];
            buffer.read(0, &mut got).unwrap();
            assert_eq!(got, model.read(at, len));
        }
        Call::Write { at, len, byte, buffer } => {
            let data = pattern(len, byte);
            let done = if buffer {
                let buffer = disk.buffer(len + 512).unwrap();
                buffer.write(512, &data).unwrap();
                handle.write_buffer(&buffer, 512..512 + len, at)
            } else {
                handle.pwrite(&data, at)
            };
            wrote(done, model.write(at, &data));
        }
        Call::Vector { at, ref pieces, byte } => vectored(handle, model, at, pieces, byte),
        Call::Async { at, len, byte, shift } => {
            asynchronous(disk, handle, model, at, &pattern(len, byte), shift)
        }
        Call::Zero { at, len } => match handle.write_zeroes(at, len) {
            Ok(()) => model.bytes[at as usize..(at + len) as usize].fill(0),
            Err(BlockError::OutOfRange { .. }) => assert!(at + len > model.bytes.len() as u64),
            Err(error) => panic!("{error}"),
        },
        Call::Compare { at, len, buffer, differs } => compare(disk, handle, model, at, len, buffer, differs),
        Call::Cursor { at, len, byte } => cursor(handle, model, at, &pattern(len, byte)),
        Call::Flush => handle.flush().unwrap(),
        Call::Cache(options) => disk.set_cache(options).unwrap(),
        Call::Advise(one, other) => handle.advise(&[one..one + 20_000, other..other + 20_000]),
        Call::Switch { direct: past, sync } => {
            handle.set(Settings { direct: past, sync, ..handle.settings() }).unwrap()
        }
    }
}

fn vectored(handle: &ByteHandle, model: &mut Model, at: u64, pieces: &[usize], byte: u8) {
    let data = pattern(pieces.iter().sum(), byte);
    let mut rest = &data[..];
    let from: Vec<_> = pieces.iter().map(|len| IoSlice::new(rest.split_off(..*len).unwrap())).collect();
    wrote(handle.pwritev(&from, at), model.write(at, &data));
    let mut back: Vec<_> = pieces.iter().rev().map(|len| vec![0; *len]).collect();
    let mut into: Vec<_> = back.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
    let done = handle.preadv(&mut into, at).unwrap();
    assert_eq!(&back.concat()[..done], model.read(at, data.len()));
}

fn compare(
    disk: &Disk,
    handle: &ByteHandle,
    model: &Model,
    at: u64,
    len: usize,
    buffer: bool,
    differs: bool,
) {
    let len = model.clip(at, len);
    let mut data = model.read(at, len).to_vec();
    if differs && let Some(last) = data.last_mut() {
        *last ^= 1;
    }
    let memory = disk.buffer(len.max(1)).unwrap();
    memory.write(0, &data).unwrap();
    let at = if len == 0 { 0 } else { at };
    let same = if buffer { handle.compare_buffer(&memory, 0..len, at) } else { handle.compare(&data, at) };
    match same {
        Ok(()) => assert!(!differs || len == 0),
        Err(error) => {
            assert_eq!(error.errno(), rustix::io::Errno::ILSEQ);
            assert!(differs);
        }
    }
}

/// A write and a read at the position.
fn cursor(handle: &ByteHandle, model: &mut Model, at: u64, data: &[u8]) {
    let end = model.bytes.len() as u64;
    let at = at.min(end);
    assert_eq!(handle.seek(SeekFrom::End(at as i64 - end as i64)).unwrap(), at);
    let done = handle.write(data);
    let moved = *done.as_ref().unwrap_or(&0) as u64;
    wrote(done, model.write(at, data));
    assert_eq!(handle.seek(SeekFrom::Current(-(moved as i64))).unwrap(), at);
    let mut got = vec![0; data.len()];
    let done = handle.read(&mut got).unwrap();
    assert_eq!(&got[..done], model.read(at, data.len()));
}

/// Several writes at once, beside each other, then reads of the same.
fn asynchronous(
    disk: &Arc<Disk>,
    handle: &ByteHandle,
    model: &mut Model,
    at: u64,
    data: &[u8],
    shift: usize,
) {
    let len = data.len();
    let buffer = Arc::new(disk.buffer(2 * len + 2 * shift + 1).unwrap());
    buffer.write(shift, data).unwrap();
    let mut aio = Aio {
        operation: Operation::Write { fua: false },
        offset: at,
        bytes: len,
        buffer: Some((Arc::clone(&buffer), shift)),
        user: 1,
    };
    let mut done = Vec::new();
    handle.submit(aio.clone()).unwrap();
    handle.ring();
    assert!(handle.wait());
    assert_eq!(handle.reap(10, &mut done), 1);
    wrote(done[0].result, model.write(at, data));
    (aio.operation, aio.buffer, aio.user) = (Operation::Read, Some((Arc::clone(&buffer), shift + len)), 2);
    handle.submit(aio.clone()).unwrap();
    handle.submit(Aio { operation: Operation::Flush, bytes: 0, buffer: None, user: 3, ..aio }).unwrap();
    done.clear();
    while done.len() < 2 {
        assert!(handle.wait());
        handle.reap(10, &mut done);
    }
    assert_eq!(handle.outstanding(), 0);
    let read = done.iter().find(|done| done.aio.user == 2).unwrap().result.unwrap();
    let mut got = vec![0; read];
    buffer.read(shift + len, &mut got).unwrap();
    assert_eq!(got, model.read(at, len));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_are_those_on_an_array(
        calls in prop::collection::vec((call(), 0usize..3), 1..60),
        large_blocks in any::<bool>(),
        cache in cache(),
    ) {
        let lba_bytes = if large_blocks { 4096 } else { 512 };
        let disk = disk(BYTES, lba_bytes, Clock::Inline, DiskOptions::default());
        disk.set_cache(cache).unwrap();
        let handles = [
            disk.handle(Route::Bound(Binding::Spread), Settings::default()).unwrap(),
            disk.handle(Route::Bound(Binding::Queue(0)), Settings { direct: true, ..Settings::default() }).unwrap(),
            disk.handle(
                Route::Chosen(vec![Binding::Queue(0), Binding::Queue(1)], Arc::new(|access| access.offset as usize)),
                Settings::default(),
            ).unwrap(),
        ];
        let mut model = Model { bytes: vec![0; BYTES as usize] };
        for (call, handle) in &calls {
            run(&disk, &handles[*handle], &mut model, call);
        }
        let mut all = vec![0; BYTES as usize];
        prop_assert_eq!(handles[0].pread(&mut all, 0).unwrap(), all.len());
        prop_assert!(all == model.bytes);
    }
}

/// Threads write `GRAIN` bytes here and there, which lie between each other's, by every kind of call, while
/// `meanwhile` runs: each finds all of its own in the end.
fn neighbours<const GRAIN: usize>(
    clock: Clock,
    cache: Option<CacheOptions>,
    meanwhile: impl Fn(&Disk) + Sync,
) {
    const THREADS: usize = 4;
    const DISK: usize = 512 << 10;
    let disk = disk(DISK as u64, 512, clock, DiskOptions::default());
    disk.set_cache(cache).unwrap();
    let left = AtomicUsize::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (disk, left) = (&disk, &left);
            scope.spawn(move || {
                let _done = Done(left);
                neighbour::<GRAIN>(disk, thread, THREADS, DISK);
            });
        }
        while left.load(Ordering::SeqCst) > 0 {
            meanwhile(&disk);
            thread::yield_now();
        }
    });
}

/// Counts a thread that ends, by a panic too.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn neighbour<const GRAIN: usize>(disk: &Arc<Disk>, thread: usize, threads: usize, bytes: usize) {
    const ROUNDS: usize = 1200;
    let settings = Settings { direct: thread.is_multiple_of(2), ..Settings::default() };
    let handle = disk.handle(Route::Bound(Binding::Spread), settings).unwrap();
    let buffer = Arc::new(disk.buffer(GRAIN).unwrap());
    let mut mine = vec![0u8; bytes / (GRAIN * threads)];
    let place = |grain: usize| ((grain * threads + thread) * GRAIN) as u64;
    let mut dice = Dice::new(thread as u64);
    for round in 0..ROUNDS {
        let random = dice.next();
        let grain = (random >> 33) as usize % mine.len();
        let at = place(grain);
        mine[grain] = if random >> 60 == 0 { 0 } else { round as u8 | 1 };
        match (random >> 40) % 4 {
            _ if mine[grain] == 0 => handle.write_zeroes(at, GRAIN as u64).unwrap(),
            0 => {
                buffer.fill(0..GRAIN, mine[grain]).unwrap();
                let operation = Operation::Write { fua: round % 3 == 0 };
                let buffer = Some((Arc::clone(&buffer), 0));
                handle.submit(Aio { operation, offset: at, bytes: GRAIN, buffer, user: 0 }).unwrap();
                let mut done = Vec::new();
                assert!(handle.wait() && handle.reap(1, &mut done) == 1 && done[0].result.is_ok());
            }
            1 => {
                buffer.fill(0..GRAIN, mine[grain]).unwrap();
                assert_eq!(handle.write_buffer(&buffer, 0..GRAIN, at).unwrap(), GRAIN);
            }
            _ => assert_eq!(handle.pwrite(&[mine[grain]; GRAIN], at).unwrap(), GRAIN),
        }
        if round % 50 == 0 {
            handle.flush().unwrap();
            handle.set(Settings { direct: !handle.settings().direct, ..handle.settings() }).unwrap();
        }
    }
    for (grain, byte) in mine.iter().enumerate() {
        let mut got = [0; GRAIN];
        handle.pread(&mut got, place(grain)).unwrap();
        assert_eq!(got, [*byte; GRAIN], "grain {grain} of thread {thread}");
    }
}

#[test]
fn neighbours_in_a_block_keep_their_bytes() {
    for clock in [Clock::Threaded, Clock::Inline] {
        neighbours::<100>(clock, None, |_| ());
        neighbours::<512>(clock, None, |_| ());
    }
}

/// The same through a cache and past it.
#[test]
fn neighbours_in_a_page_keep_their_bytes() {
    for clock in [Clock::Threaded, Clock::Inline] {
        neighbours::<100>(clock, Some(CacheOptions::bytes(0)), |_| ());
        neighbours::<512>(clock, Some(CacheOptions::bytes(0)), |_| ());
        let through = CacheOptions { write: WritePolicy::Through, ..CacheOptions::bytes(0) };
        neighbours::<100>(clock, Some(through), |_| ());
        neighbours::<512>(clock, Some(through), |_| ());
    }
}

/// The same while the cache comes and goes.
#[test]
fn neighbours_keep_their_bytes_while_the_cache_is_switched() {
    for clock in [Clock::Threaded, Clock::Inline] {
        let switch = |disk: &Disk| {
            disk.set_cache(Some(CacheOptions::bytes(0))).unwrap();
            disk.write_back().unwrap();
            disk.set_cache(None).unwrap();
        };
        neighbours::<100>(clock, None, switch);
        neighbours::<512>(clock, None, switch);
    }
}

/// A write of part of a block waits for an asynchronous write of the same block, which only the same thread
/// would reap: it must not wait for ever.
#[test]
fn a_partial_write_passes_an_unreaped_asynchronous_one() {
    let disk = disk(1 << 20, 512, Clock::Inline, DiskOptions::default());
    let handle = disk
        .handle(Route::Bound(Binding::Queue(0)), Settings { direct: true, ..Settings::default() })
        .unwrap();
    let buffer = Arc::new(disk.buffer(8192).unwrap());
    buffer.fill(0..8192, 7).unwrap();
    let aio = Aio {
        operation: Operation::Write { fua: false },
        offset: 0,
        bytes: 8192,
        buffer: Some((Arc::clone(&buffer), 0)),
        user: 0,
    };
    handle.submit(aio).unwrap();
    // Not rung: the device has not even seen it.
    assert_eq!(handle.pwrite(b"xyz", 100).unwrap(), 3);
    let mut got = [0; 5];
    handle.pread(&mut got, 99).unwrap();
    assert_eq!(&got, b"\x07xyz\x07");
    assert_eq!(handle.outstanding(), 1);
}

#[test]
fn a_handle_takes_so_many_asynchronous_calls_and_refuses_more() {
    let disk = disk(1 << 20, 512, Clock::Inline, DiskOptions::default());
    let handle = disk
        .handle(Route::Bound(Binding::Queue(0)), Settings { direct: true, ..Settings::default() })
        .unwrap();
    let buffer = Arc::new(disk.buffer(512).unwrap());
    let aio = Aio { operation: Operation::Read, offset: 0, bytes: 512, buffer: Some((buffer, 0)), user: 0 };
    for user in 0..nvmed_block::AIO_MAX as u64 {
        handle.submit(Aio { user, ..aio.clone() }).unwrap();
    }
    assert!(matches!(handle.submit(aio.clone()), Err(BlockError::Busy { .. })));
    let mut done = Vec::new();
    while done.len() < nvmed_block::AIO_MAX {
        assert!(handle.wait());
        handle.reap(32, &mut done);
    }
    let mut users: Vec<_> = done.iter().map(|done| done.aio.user).collect();
    users.sort_unstable();
    assert!(users.into_iter().eq(0..nvmed_block::AIO_MAX as u64), "each once");
    handle.submit(aio).unwrap();
}

#[test]
fn the_end_of_the_device_is_that_of_a_block_device() {
    let disk = disk(1 << 20, 512, Clock::Inline, DiskOptions::default());
    let handle = disk.handle(Route::Bound(Binding::Spread), Settings::default()).unwrap();
    let end = 1 << 20;
    assert_eq!(handle.pread(&mut [0; 10], end).unwrap(), 0);
    assert_eq!(handle.pread(&mut [0; 10], u64::MAX).unwrap(), 0);
    assert_eq!(handle.pread(&mut [0; 10], end - 4).unwrap(), 4);
    assert_eq!(handle.pwrite(&[1; 10], end - 4).unwrap(), 4);
    assert_eq!(handle.pwrite(&[1; 10], end).unwrap_err().errno(), rustix::io::Errno::NOSPC);
    assert_eq!(handle.pwrite(&[], u64::MAX).unwrap(), 0);
    assert_eq!(handle.discard(u64::MAX, 2).unwrap_err().errno(), rustix::io::Errno::INVAL);
    assert_eq!(handle.write_zeroes(end - 1, 2).unwrap_err().errno(), rustix::io::Errno::INVAL);
    for wrong in [SeekFrom::End(1), SeekFrom::Current(-1), SeekFrom::Start(u64::MAX), SeekFrom::End(i64::MIN)]
    {
        assert_eq!(handle.seek(wrong).unwrap_err().errno(), rustix::io::Errno::INVAL, "{wrong:?}");
    }
    assert_eq!(handle.seek(SeekFrom::End(0)).unwrap(), end);
}

#[test]
fn a_buffer_comes_back_to_the_pool() {
    let disk = disk(1 << 20, 512, Clock::Inline, DiskOptions::default());
    // A device takes a few hundred mappings in its life: buffers must not use them up.
    for round in 0..5000 {
        let buffers: Vec<_> = (0..4).map(|n| disk.buffer(1 << (12 + (round + n) % 10)).unwrap()).collect();
        buffers[0].fill(0..4096, 1).unwrap();
        assert!(buffers.iter().all(|buffer| (buffer.address() as usize).is_multiple_of(4096)));
    }
    assert!(disk.buffer(0).is_err() && disk.buffer(usize::MAX).is_err());
    let buffer = disk.buffer(100).unwrap();
    assert!(buffer.segment(50..101).is_err() && buffer.read(usize::MAX, &mut [0]).is_err());
}
