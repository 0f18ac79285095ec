//! Sync, async, direct and buffered calls of files with different policies, mixed, against a vector of bytes.

use nvmed_files::{
    Completions, Config, DeviceSpec, Files, FsError, HandleSettings, OpenFile, OpenFlags, Policy,
    QueueSettings, Scheduler, Ticket, Whence,
};
use proptest::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const FILE_MAX: u64 = 400_000;
/// Requests take a while, so that calls really are under way while others are made.
const SLOW: &str = "virtual:?media=dram,size=64M,clock=threaded,latency=30us";
const FAST: &str = "virtual:?media=dram,size=64M";

fn mount(device: &str) -> Arc<Files> {
    let mut config = Config::new(PathBuf::from("/"), DeviceSpec::parse(device).expect("a device"));
    config.format = true;
    config.cache_bytes = 1 << 20;
    config.cache_huge = false;
    config.writeback_seconds = 0;
    Files::mount(&config).expect("it mounts")
}

fn policies() -> Vec<(OpenFlags, Policy)> {
    let interrupts = HandleSettings { completion: Completions::Interrupt, ..HandleSettings::default() };
    let deadline = QueueSettings { scheduler: Scheduler::DEADLINE, merge: true, ..QueueSettings::depth(32) };
    vec![
        (OpenFlags::READ_WRITE, Policy::default()),
        (OpenFlags::READ_WRITE, Policy::DIRECT),
        (OpenFlags::READ_WRITE, Policy { queue: Some(deadline), ..Policy::DIRECT }),
        (OpenFlags::READ_WRITE.with(OpenFlags::DSYNC), Policy { io: Some(interrupts), ..Policy::default() }),
        (OpenFlags::READ_WRITE.with(OpenFlags::DSYNC), Policy::DIRECT),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, at: u64, bytes: usize, byte: u8, wait: bool },
    Read { file: usize, at: u64, bytes: usize, wait: bool },
    Truncate { size: u64 },
    Sync { file: usize, wait: bool },
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..5usize, 0..FILE_MAX, 1..60_000usize, any::<bool>());
    prop_oneof![
        5 => (place(), any::<u8>())
            .prop_map(|((file, at, bytes, wait), byte)| Step::Write { file, at, bytes, byte, wait }),
        5 => place().prop_map(|(file, at, bytes, wait)| Step::Read { file, at, bytes, wait }),
        1 => (0..FILE_MAX).prop_map(|size| Step::Truncate { size }),
        1 => (0..5usize, any::<bool>()).prop_map(|(file, wait)| Step::Sync { file, wait }),
        1 => Just(Step::Wait),
    ]
}

struct Pending {
    ticket: Ticket,
    range: Range<u64>,
    /// What a read is to answer; a write has nothing.
    expected: Option<Vec<u8>>,
    bytes: usize,
}

impl Pending {
    fn end(self) {
        let finished = self.ticket.wait();
        let done = finished.result.expect("the call works");
        if let Some(expected) = self.expected {
            let mut data = vec![0xee; done];
            finished.buffer.expect("its buffer").read(0, &mut data).expect("inside");
            assert!(data == expected, "{:?}: other bytes, or {done} of them", self.range);
        } else {
            assert_eq!(done, self.bytes, "{:?}", self.range);
        }
    }
}

struct World {
    files: Arc<Files>,
    open: Vec<Arc<OpenFile>>,
    model: Vec<u8>,
    pending: Vec<Pending>,
}

impl World {
    fn new(device: &str) -> Self {
        let files = mount(device);
        let open = policies().into_iter().map(|(flags, policy)| {
            files.open(b"/file", flags.with(OpenFlags::CREATE), 0o644, &policy).expect("it opens")
        });
        Self { open: open.collect(), files, model: Vec::new(), pending: Vec::new() }
    }

    /// Waits for calls under way whose order towards one of `range` would matter.
    fn settle(&mut self, range: &Range<u64>, writes: bool) {
        let (waiting, rest): (Vec<_>, Vec<_>) = self.pending.drain(..).partition(|pending| {
            (writes || pending.expected.is_none())
                && pending.range.start < range.end
                && range.start < pending.range.end
        });
        self.pending = rest;
        waiting.into_iter().for_each(Pending::end);
    }

    /// The place of a call, in whole blocks if the file is direct.
    fn fit(&self, file: usize, at: u64, bytes: usize) -> (u64, usize) {
        if !self.open[file].is_direct() {
            return (at, bytes);
        }
        let align = u64::from(self.open[file].direct_align());
        (at / align * align, bytes.next_multiple_of(align as usize))
    }

    fn expected(&self, at: u64, bytes: usize) -> Vec<u8> {
        let at = (at as usize).min(self.model.len());
        self.model[at..(at + bytes).min(self.model.len())].to_vec()
    }

    fn write(&mut self, file: usize, (at, bytes): (u64, usize), byte: u8, wait: bool) {
        let end = at + bytes as u64;
        // One that grows the file changes what every read answers.
        let grows = end > self.model.len() as u64;
        self.settle(&if grows { 0..u64::MAX } else { at..end }, true);
        let data = vec![byte; bytes];
        if wait {
            assert_eq!(self.open[file].pwrite(&data, at).expect("it is written"), bytes);
        } else {
            let buffer = self.files.buffer(bytes).expect("a buffer");
            buffer.write(0, &data).expect("inside");
            let ticket = self.open[file].submit_write(Arc::new(buffer), 0..bytes, at);
            self.pending.push(Pending { ticket, range: at..end, expected: None, bytes });
        }
        if grows {
            self.settle(&(0..u64::MAX), true);
            self.model.resize(end as usize, 0);
        }
        self.model[at as usize..end as usize].fill(byte);
    }

    fn read(&mut self, file: usize, (at, bytes): (u64, usize), wait: bool) {
        let range = at..at + bytes as u64;
        self.settle(&range, false);
        let expected = self.expected(at, bytes);
        if wait {
            let mut data = vec![0xee; bytes];
            let done = self.open[file].pread(&mut data, at).expect("it is read");
            assert!(data[..done] == expected, "{range:?}, file {file}: other bytes, or {done} of them");
        } else {
            let buffer = Arc::new(self.files.buffer(bytes).expect("a buffer"));
            let ticket = self.open[file].submit_read(buffer, 0..bytes, at);
            self.pending.push(Pending { ticket, range, expected: Some(expected), bytes });
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Write { file, at, bytes, byte, wait } => {
                self.write(file, self.fit(file, at, bytes), byte, wait)
            }
            Step::Read { file, at, bytes, wait } => self.read(file, self.fit(file, at, bytes), wait),
            Step::Truncate { size } => {
                self.settle(&(0..u64::MAX), true);
                self.files.truncate(b"file", size).expect("it is cut");
                self.model.resize(size as usize, 0);
            }
            Step::Sync { file, wait: true } => self.open[file].fsync().expect("it is synced"),
            Step::Sync { file, wait: false } => {
                let ticket = self.open[file].submit_fsync();
                self.pending.push(Pending { ticket, range: 0..0, expected: None, bytes: 0 });
            }
            Step::Wait => self.settle(&(0..u64::MAX), true),
        }
    }

    fn end(mut self) {
        self.pending.drain(..).for_each(Pending::end);
        for file in &self.open {
            let len = self.model.len().next_multiple_of(4096) + 4096;
            let mut data = vec![0xee; len];
            let done = file.pread(&mut data, 0).expect("it is read");
            assert!(data[..done] == self.model, "the whole file");
        }
        self.open.clear();
        self.files.unmount().expect("it unmounts");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_sees_what_the_others_wrote(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new(FAST);
        steps.iter().for_each(|step| world.run(step));
        world.end();
    }

    #[test]
    fn every_policy_sees_what_the_others_wrote_on_a_slow_device(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new(SLOW);
        steps.iter().for_each(|step| world.run(step));
        world.end();
    }
}

/// A direct file goes past the cache by its own handle, on a queue of its own if it wants one.
#[test]
fn a_file_moves_its_data_by_its_handle() {
    let files = mount(FAST);
    let queues = files.device().queues();
    let policy = Policy { queue: Some(QueueSettings::depth(8)), ..Policy::DIRECT };
    let file = files.open(b"f", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o600, &policy).unwrap();
    assert_eq!(files.device().queues(), queues + 1);
    file.pwrite(&[1; 8192], 0).unwrap();
    let before = file.io_stats().unwrap();
    assert!(before.writes > 0, "write-back of a file is its handle's too");
    file.pwrite(&[2; 4096], 4096).unwrap();
    let mut page = [0; 4096];
    file.pread(&mut page, 4096).unwrap();
    let after = file.io_stats().unwrap();
    assert_eq!((after.writes - before.writes, after.reads - before.reads, page), (1, 1, [2; 4096]));
    assert!(matches!(file.pread(&mut page, 1), Err(FsError::Invalid)), "alignment");
    assert!(matches!(file.pwrite(&page[..100], 0), Err(FsError::Invalid)), "alignment");
    file.set_direct(false).unwrap();
    assert_eq!(file.pread(&mut page[..10], 4090).unwrap(), 10);
    assert_eq!(page[..10], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    drop(file);
    assert_eq!(files.device().queues(), queues, "the queue ends with the file");
    let shared = files.open(b"f", OpenFlags::READ_WRITE, 0, &Policy::default()).unwrap();
    assert!(shared.settings().is_none() && matches!(shared.set_direct(true), Err(FsError::Invalid)));
}

/// The offset is one for direct and buffered calls, and an append is at the end.
#[test]
fn offsets_move() {
    let files = mount(FAST);
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(b"f", flags, 0o600, &Policy::DIRECT).unwrap();
    assert_eq!(file.write(&[1; 4096]).unwrap() + file.write(&[2; 4096]).unwrap(), 8192);
    assert_eq!(file.seek(-4096, Whence::Current).unwrap(), 4096);
    let mut page = [0; 4096];
    assert_eq!((file.read(&mut page).unwrap(), page), (4096, [2; 4096]));
    assert_eq!(file.read(&mut page).unwrap(), 0, "the end");
    let append = files.open(b"f", flags.with(OpenFlags::APPEND), 0, &Policy::DIRECT).unwrap();
    append.write(&[3; 512]).unwrap();
    assert_eq!(files.stat(b"f", nvmed_files::Follow::Yes).unwrap().size, 8704);
}

/// A link to an absolute path stays in the file system.
#[test]
fn paths_are_of_the_file_system() {
    let files = mount(FAST);
    files.mkdir(b"/d", 0o755).unwrap();
    files.symlink(b"/d/e", b"/link").unwrap();
    files.mkdir(b"d/e", 0o755).unwrap();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    drop(files.open(b"/link/f", flags, 0o644, &Policy::default()).unwrap());
    files.rename(b"/link/f", b"/../d/g", nvmed_files::RenameFlags::default()).unwrap();
    files.link(b"d/g", b"/link/h").unwrap();
    assert_eq!(files.stat(b"//d//e/h", nvmed_files::Follow::Yes).unwrap().nlink, 2);
    assert_eq!(files.readlink(b"link").unwrap(), b"/d/e");
    assert!(matches!(files.rmdir(b"d"), Err(FsError::NotEmpty)));
    files.unlink(b"d/g").unwrap();
    assert!(matches!(files.stat(b"", nvmed_files::Follow::Yes), Err(FsError::NotFound)));
}

/// Bytes of a write that no other request of these tests has.
const PIECE: usize = 48 << 10;

/// A file that was written before, and the mount that it is in.
struct Written<'a> {
    files: &'a Arc<Files>,
    flags: OpenFlags,
}

impl Written<'_> {
    fn open(&self, policy: &Policy) -> Arc<OpenFile> {
        self.files.open(b"f", self.flags, 0o600, policy).unwrap()
    }
}

/// The writes of [`PIECE`] bytes that came to a drive while `work` used a mount on it: how many were urgent, and how
/// many were not.
fn pieces_of(work: impl FnOnce(&Written<'_>)) -> (usize, usize) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}-{}.csv", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let record = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let device = format!("virtual:?media=dram,size=64M,profile=tlc,record={}", record.display());
    let files = mount(&device);
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    work(&Written { files: &files, flags });
    files.unmount().unwrap();
    drop(files);
    let text = std::fs::read_to_string(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    let is_piece = |row: &&str| {
        let columns: Vec<_> = row.split(',').collect();
        columns[2] == "1" && columns[5] == (PIECE / 512).to_string()
    };
    let pieces: Vec<_> = text.lines().skip(1).filter(is_piece).collect();
    let urgent = pieces.iter().filter(|row| row.ends_with(",1")).count();
    (urgent, pieces.len() - urgent)
}

/// A way to use a mount: its name, how many pieces are to be urgent and how many are not, and what is done.
type Way<'a> = (&'a str, (usize, usize), &'a dyn Fn(&Written<'_>));

fn assert_ways(ways: &[Way<'_>]) {
    for (way, expected, work) in ways {
        assert_eq!(pieces_of(work), *expected, "{way}: urgent ones, and others");
    }
}

/// By the record of the drive: the data of an urgent file passes others, however it is written; that of others does
/// not, be it in the same mount.
#[test]
fn a_file_that_is_urgent_is_so_at_the_drive() {
    let urgent = Policy { urgent: true, ..Policy::default() };
    let past = Policy { urgent: true, ..Policy::DIRECT };
    let write = |file: &OpenFile| {
        assert_eq!(file.pwrite(&[5; PIECE], 0).unwrap(), PIECE);
        file.fsync().unwrap();
    };
    assert_ways(&[
        ("plain", (0, 1), &|written| write(&written.open(&Policy::default()))),
        ("urgent", (1, 0), &|written| write(&written.open(&urgent))),
        ("urgent and direct", (1, 0), &|written| write(&written.open(&past))),
        ("plain beside urgent", (1, 1), &|written| {
            let file = written.open(&urgent);
            write(&written.open(&Policy::default()));
            write(&file);
        }),
        ("urgent no longer", (1, 1), &|written| {
            let file = written.open(&urgent);
            write(&file);
            file.file().set_urgent(false);
            write(&file);
        }),
        ("urgent for one call", (1, 1), &|written| {
            let file = written.open(&Policy::default());
            written.files.urgently(|| write(&file));
            write(&file);
        }),
    ]);
}

/// An asynchronous call is as urgent as who begins it, whoever does it and waits for it.
#[test]
fn a_call_that_is_urgent_is_so_at_the_drive() {
    let submit = |written: &Written<'_>, file: &Arc<OpenFile>| {
        let buffer = Arc::new(written.files.buffer(PIECE).unwrap());
        let ticket = file.submit_write(buffer, 0..PIECE, 0);
        move || assert_eq!(ticket.wait().result.unwrap(), PIECE)
    };
    assert_ways(&[
        ("by a thread of the mount", (1, 1), &|written| {
            let file = written.open(&Policy::default());
            for is_urgent in [true, false] {
                submit(written, &file)();
                let sync = || file.submit_fsync();
                let ticket = if is_urgent { written.files.urgently(sync) } else { sync() };
                ticket.wait().result.unwrap();
            }
        }),
        ("by the device alone", (1, 2), &|written| {
            let file = written.open(&Policy::DIRECT);
            // The first one is of blocks that have to be found.
            submit(written, &file)();
            written.files.urgently(|| submit(written, &file))();
            submit(written, &file)();
        }),
    ]);
}
