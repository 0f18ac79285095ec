//! File data against a vector of bytes: reads, writes, truncation, holes, through a small cache, over
//! remounts and after the process died.

use crate::support::{Disk, Ground, memory};
use nvmed_cache::EvictionPolicy;
use nvmed_fs::{
    Advice, Allocate, Credentials, File, FileSystem, FsError, Glob, Memory, MountOptions, MountParts,
    OpenFlags, Whence, salvage,
};
use nvmed_io::caller::{self, Urgency};
use proptest::prelude::*;
use std::sync::Arc;

const ROOT: Credentials<'static> = Credentials::ROOT;
/// 64 frames: most tests do not fit.
const SMALL_CACHE: u64 = 256 << 10;
const PUNCH: Allocate = Allocate { keep_size: true, punch_hole: true, zero_range: false };
const ZERO: Allocate = Allocate { keep_size: false, punch_hole: false, zero_range: true };
const KEEP: Allocate = Allocate { keep_size: true, punch_hole: false, zero_range: false };
const EXTEND: Allocate = Allocate { keep_size: false, punch_hole: false, zero_range: false };

fn open_with(files: &FileSystem, path: &[u8], flags: OpenFlags) -> Arc<File> {
    let flags = flags.with(OpenFlags::READ_WRITE).with(OpenFlags::CREATE);
    files.open(&files.root(), path, flags, 0o644, &ROOT).expect("the file opens")
}

fn open(files: &FileSystem, path: &[u8]) -> Arc<File> {
    open_with(files, path, OpenFlags::READ)
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.stat().size as usize + 100];
    let done = file.pread(&mut bytes, 0).expect("the file is read");
    bytes.truncate(done);
    bytes
}

/// A mount whose memory outlives it, with one open file.
struct World {
    ground: Ground,
    memory: Memory,
    options: MountOptions,
    files: Option<FileSystem>,
    file: Option<Arc<File>>,
}

impl World {
    fn new(options: MountOptions) -> Self {
        Self::on(Ground::disk(16 << 20), options)
    }

    fn on(ground: Ground, options: MountOptions) -> Self {
        let mut world = Self { ground, memory: memory(SMALL_CACHE), options, files: None, file: None };
        world.mount();
        world
    }

    fn parts(&self) -> MountParts {
        self.ground.parts(self.memory.clone(), self.options.clone())
    }

    fn mount(&mut self) {
        let files = FileSystem::mount(self.parts()).expect("the file system mounts");
        self.file = Some(open(&files, b"file"));
        self.files = Some(files);
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("the file is open")
    }

    fn files(&self) -> &FileSystem {
        self.files.as_ref().expect("it is mounted")
    }

    fn remount(&mut self) {
        self.file = None;
        self.files.take().expect("it is mounted").unmount().expect("it unmounts");
        self.ground.assert_sound();
        self.mount();
    }

    /// SIGKILL: nothing runs any more, the memory stays; somebody else salvages it.
    fn die(&mut self) {
        (self.file, self.files) = (None, None);
        let dead = core::mem::replace(&mut self.memory, memory(SMALL_CACHE));
        let files = salvage(self.parts(), &dead, &[]).expect("the memory is salvaged");
        files.unmount().expect("it unmounts");
        drop(files);
        self.ground.assert_sound();
        self.mount();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, len: usize, byte: u8 },
    Append { len: usize, byte: u8 },
    Read { at: u64, len: usize },
    Truncate { size: u64 },
    Allocate { how: Allocate, at: u64, len: u64 },
    Sync { data_only: bool },
    SyncRange { at: u64, len: u64 },
    Map { write: Option<(u64, u8)> },
    Seek,
    Remount,
    Die,
}

const FILE_MAX: u64 = 700_000;

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..FILE_MAX, 1 => (0..FILE_MAX / 4096).prop_map(|page| page * 4096), 1 => 0..20_000u64]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 1..5000usize, 1 => (1..20usize).prop_map(|pages| pages * 4096), 1 => 1..120_000usize]
}

fn step() -> impl Strategy<Value = Step> {
    step_of(|| place().boxed(), || length().boxed())
}

/// Around the size up to which a file lies in its record.
fn small_step() -> impl Strategy<Value = Step> {
    let place = || prop_oneof![6 => 0..900u64, 2 => Just(512u64), 1 => 3000..9000u64].boxed();
    let length = || prop_oneof![6 => 1..700usize, 1 => Just(512usize), 1 => 1..9000usize].boxed();
    step_of(place, length)
}

fn step_of(
    place: impl Fn() -> BoxedStrategy<u64>,
    length: impl Fn() -> BoxedStrategy<usize>,
) -> impl Strategy<Value = Step> {
    let how = prop_oneof![Just(PUNCH), Just(ZERO), Just(KEEP), Just(EXTEND)];
    prop_oneof![
        8 => (place(), length(), 1u8..).prop_map(|(at, len, byte)| Step::Write { at, len, byte }),
        3 => (length(), 1u8..).prop_map(|(len, byte)| Step::Append { len, byte }),
        6 => (place(), length()).prop_map(|(at, len)| Step::Read { at, len }),
        3 => place().prop_map(|size| Step::Truncate { size }),
        3 => (how, place(), length())
            .prop_map(|(how, at, len)| Step::Allocate { how, at, len: len as u64 }),
        2 => any::<bool>().prop_map(|data_only| Step::Sync { data_only }),
        1 => (place(), length()).prop_map(|(at, len)| Step::SyncRange { at, len: len as u64 }),
        1 => prop::option::of((place(), 1u8..)).prop_map(|write| Step::Map { write }),
        2 => Just(Step::Seek),
        1 => Just(Step::Remount),
        1 => Just(Step::Die),
    ]
}

/// What a call does to the bytes.
fn put(model: &mut Vec<u8>, at: u64, len: usize, byte: u8) {
    let (at, end) = (at as usize, at as usize + len);
    if model.len() < end {
        model.resize(end, 0);
    }
    model[at..end].fill(byte);
}

/// The holes and data that the file tells of must agree with the bytes, and cover the file.
fn check_seek(file: &File, model: &[u8]) {
    let size = model.len() as u64;
    let mut at = 0;
    while at < size {
        let data = match file.seek(at as i64, Whence::Data) {
            Ok(data) => data,
            Err(FsError::NoData) => size,
            Err(error) => panic!("{error}"),
        };
        assert!(
            data >= at && model[at as usize..data as usize].iter().all(|byte| *byte == 0),
            "data in a hole"
        );
        if data == size {
            break;
        }
        at = file.seek(data as i64, Whence::Hole).unwrap();
        assert!(at > data && at <= size);
    }
    assert!(matches!(file.seek(size as i64, Whence::Hole), Err(FsError::NoData)));
}

fn map(world: &World, write: Option<(u64, u8)>, model: &mut [u8]) {
    let file = world.file();
    let mapped = file.map(write.is_some()).unwrap();
    let mut bytes = vec![0xee; model.len()];
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pread(&mapped.fd, &mut bytes[done..], done as u64).unwrap();
    }
    assert!(bytes == model, "the mapping has the file's bytes");
    if let Some((at, byte)) = write.filter(|(at, _)| *at < model.len() as u64) {
        // What a store through the mapping does to the memfd.
        assert_eq!(rustix::io::pwrite(&mapped.fd, &[byte], at).unwrap(), 1);
        model[at as usize] = byte;
        let mut found = [0];
        assert_eq!(file.pread(&mut found, at).unwrap(), 1);
        assert_eq!(found[0], byte, "a read sees the store");
    }
    // And a write is seen in the mapping.
    if let Some(last) = model.last_mut() {
        let at = bytes.len() as u64 - 1;
        file.pwrite(&[0x5a], at).unwrap();
        *last = 0x5a;
        let mut found = [0];
        assert_eq!(rustix::io::pread(&mapped.fd, &mut found, at).unwrap(), 1);
        assert_eq!(found[0], 0x5a, "the mapping sees the write");
    }
    file.unmap(write.is_some()).unwrap();
}

fn run(world: &mut World, model: &mut Vec<u8>, step: &Step) {
    let size = model.len() as u64;
    match *step {
        Step::Write { at, len, byte } => {
            assert_eq!(world.file().pwrite(&vec![byte; len], at).unwrap(), len);
            put(model, at, len, byte);
        }
        Step::Append { len, byte } => {
            let end = open_with(world.files(), b"file", OpenFlags::APPEND);
            assert_eq!(end.write(&vec![byte; len]).unwrap(), len);
            assert_eq!(end.position(), size + len as u64);
            put(model, size, len, byte);
        }
        Step::Read { at, len } => {
            let mut bytes = vec![0xee; len];
            let done = world.file().pread(&mut bytes, at).unwrap();
            let expected = &model[model.len().min(at as usize)..model.len().min(at as usize + len)];
            assert!(bytes[..done] == *expected, "{len} bytes at {at}");
        }
        Step::Truncate { size } => {
            world.file().truncate(size).unwrap();
            model.resize(size as usize, 0);
        }
        Step::Allocate { how, at, len } => {
            world.file().fallocate(how, at, len).unwrap();
            if !how.keep_size && at + len > size {
                model.resize((at + len) as usize, 0);
            }
            if how.punch_hole || how.zero_range {
                let end = model.len().min((at + len) as usize);
                model[(at as usize).min(end)..end].fill(0);
            }
        }
        Step::Sync { data_only: true } => world.file().fdatasync().unwrap(),
        Step::Sync { data_only: false } => world.file().fsync().unwrap(),
        Step::SyncRange { at, len } => world.file().sync_range(at, len).unwrap(),
        Step::Map { write } => map(world, write, model),
        Step::Seek => check_seek(world.file(), model),
        Step::Remount => world.remount(),
        Step::Die => world.die(),
    }
    assert_eq!(world.file().stat().size, model.len() as u64);
}

fn run_all(options: MountOptions, steps: &[Step]) {
    run_all_on(World::new(options), steps);
}

fn run_all_on(mut world: World, steps: &[Step]) {
    let free = world.files().statfs().blocks_free;
    let mut model = Vec::new();
    for step in steps {
        run(&mut world, &mut model, step);
    }
    assert!(read_all(world.file()) == model, "the file after all");
    world.remount();
    assert!(read_all(world.file()) == model, "the file after a remount");
    world.file().truncate(0).unwrap();
    world.files().sync().unwrap();
    assert_eq!(world.files().statfs().blocks_free, free, "every block came back");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_file_is_its_bytes(steps in prop::collection::vec(step(), 1..60)) {
        run_all(MountOptions::default(), &steps);
    }

    #[test]
    fn a_file_is_its_bytes_in_place(steps in prop::collection::vec(step(), 1..60)) {
        run_all_on(World::on(Ground::medium(16 << 20), MountOptions::default()), &steps);
    }

    #[test]
    fn a_small_file_is_its_bytes_in_its_record_and_in_place(
        inline_bytes in prop::sample::select(vec![0u32, 100, 512, 800]),
        steps in prop::collection::vec(small_step(), 1..60),
    ) {
        let options = MountOptions { inline_bytes, ..MountOptions::default() };
        run_all_on(World::on(Ground::medium(16 << 20), options), &steps);
    }

    #[test]
    fn a_small_file_is_its_bytes_in_its_record_and_out_of_it(
        inline_bytes in prop::sample::select(vec![0u32, 100, 512, 800]),
        steps in prop::collection::vec(small_step(), 1..60),
    ) {
        run_all(MountOptions { inline_bytes, ..MountOptions::default() }, &steps);
    }

    #[test]
    fn a_file_is_its_bytes_with_preallocation_and_on_the_device(
        cache_policy in prop::sample::select(EvictionPolicy::ALL.to_vec()),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let options = MountOptions {
            cache_policy,
            prealloc_bytes: 100 << 10,
            durability: nvmed_fs::Durability::Device,
            ..MountOptions::default()
        };
        run_all(options.clone(), &steps);
        run_all_on(World::on(Ground::medium(16 << 20), options), &steps);
    }
}

#[test]
fn what_is_written_is_read_after_a_remount() {
    remounted(&Ground::disk(64 << 20));
    remounted(&Ground::medium(64 << 20));
}

fn remounted(ground: &Ground) {
    let files = ground.mount(8 << 20);
    let file = open(&files, b"a");
    assert_eq!(file.pwrite(b"hello", 10_000).unwrap(), 5);
    assert_eq!(file.stat().size, 10_005);
    let mut expected = vec![0; 10_000];
    expected.extend(b"hello");
    assert_eq!(read_all(&file), expected);
    drop(file);
    let files = ground.remount(files);
    assert_eq!(read_all(&open(&files, b"a")), expected);
}

#[test]
fn a_full_device_says_so_at_the_write_and_deleting_works() {
    fill_up(&Ground::disk(16 << 20));
    fill_up(&Ground::medium(16 << 20));
}

fn fill_up(ground: &Ground) {
    let files = ground.mount(SMALL_CACHE);
    let chunk = vec![7; 64 << 10];
    let mut written = 0;
    let mut names = Vec::new();
    'full: for name in 0..100u8 {
        let file = open(&files, &[b'f', name + 1]);
        names.push([b'f', name + 1]);
        for _ in 0..16 {
            match file.write(&chunk) {
                Ok(done) if done == chunk.len() => written += done,
                Ok(_) => {}
                Err(FsError::NoSpace) => break 'full,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(written > 10 << 20, "only {written} bytes fitted");
    // What was accepted can be written: there is no late ENOSPC.
    files.sync().unwrap();
    for name in &names {
        let file = open(&files, name);
        assert!(read_all(&file).iter().all(|byte| *byte == 7));
        drop(file);
        files.unlink(&files.root(), name, &ROOT).unwrap();
    }
    let file = open(&files, b"again");
    for _ in 0..100 {
        assert_eq!(file.write(&chunk).unwrap(), chunk.len(), "freed blocks are used again");
    }
    drop(file);
    ground.remount(files);
}

#[test]
fn a_failed_write_back_is_told_once_to_each_description() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let (one, two) = (open(&files, b"a"), open(&files, b"a"));
    one.write(&[1; 8192]).unwrap();
    files.sync().unwrap();
    one.write(&[2; 8192]).unwrap();
    // The data alone: after a log that could not be written no sync succeeds any more.
    disk.fail(1, 1);
    assert!(one.fsync().is_err());
    assert!(two.fdatasync().is_err(), "the other description is told too");
    // The device refused data for another reason than room: nothing is changed any more, but it can be read.
    assert!(matches!(one.write(b"third"), Err(FsError::ReadOnly)));
    let third = files.open(&files.root(), b"a", OpenFlags::READ, 0, &ROOT).expect("it opens for reading");
    let all = [[1; 8192], [2; 8192]].concat();
    assert_eq!(read_all(&third), all, "the bytes are still there");
    // Each was told once; what it was told of stayed dirty, and has been written since.
    for file in [&one, &two, &third] {
        file.fsync().expect("the data is on the device");
    }
    drop((one, two, third));
    assert_eq!(read_all(&open(&disk.remount(files), b"a")), all);
}

/// Small data lies in the file's record: a failure to write it is one of the log, which every sync is told of.
#[test]
fn a_failed_write_of_small_data_fails_every_sync_and_can_be_read() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let (one, two) = (open(&files, b"a"), open(&files, b"a"));
    one.write(b"first").unwrap();
    files.sync().unwrap();
    one.write(b"second").unwrap();
    disk.fail(1, 1);
    for file in [&one, &two, &one, &two] {
        assert!(file.fsync().is_err(), "nothing is called durable any more");
    }
    assert!(matches!(one.write(b"third"), Err(FsError::ReadOnly)));
    let third = files.open(&files.root(), b"a", OpenFlags::READ, 0, &ROOT).expect("it opens for reading");
    assert_eq!(read_all(&third), b"firstsecond", "the bytes are still there");
    assert!(files.unmount().is_err(), "the end says that not everything is saved");
    drop((one, two, third, files));
    assert_eq!(read_all(&open(&disk.mount(), b"a")), b"first", "what was synced before");
}

#[test]
fn sync_flushes_once_and_an_overwrite_writes_no_log() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    // The first commit of a mount also writes a superblock of the store.
    open(&files, b"first").fsync().unwrap();
    let file = open(&files, b"a");
    file.write(&[1; 8192]).unwrap();
    let cost = |what: &dyn Fn()| {
        let before = (disk.writes(), disk.counts().flushes);
        what();
        (disk.writes() - before.0, disk.counts().flushes - before.1)
    };
    // Writes counted include flushes, each of which is a command that changes something.
    assert_eq!(cost(&|| file.fsync().unwrap()), (3, 1), "data, flush, log with FUA");
    assert_eq!(cost(&|| file.fsync().unwrap()), (0, 0), "nothing is dirty");
    file.pwrite(&[2; 4096], 0).unwrap();
    assert_eq!(cost(&|| file.fdatasync().unwrap()), (1, 0), "data with FUA");
    file.pwrite(&[2; 4096], 0).unwrap();
    file.sync_range(0, 0).unwrap();
    file.pwrite(&[3; 4096], 4096).unwrap();
    assert_eq!(
        cost(&|| file.fdatasync().unwrap()),
        (2, 1),
        "data with FUA, flush of what was written before"
    );
    file.pwrite(&[2; 4096], 0).unwrap();
    file.truncate(5000).unwrap();
    assert_eq!(cost(&|| file.fsync().unwrap()), (3, 1), "data, log, flush");
}

/// An urgent caller's sync has no flush, of fresh blocks and of blocks written over, since others flush what they have
/// written before the log tells of it. A power cut that takes all that is in the device's cache takes nothing of what
/// was synced, and what the log tells of others is there.
#[test]
fn an_urgent_sync_waits_for_no_flush() {
    let disk = Disk::new(32 << 20);
    disk.format();
    let files = disk.mount_with(MountOptions { urgent: true, ..MountOptions::default() }, SMALL_CACHE);
    let file = open(&files, b"file");
    file.fsync().unwrap();
    for round in 1..9_u8 {
        let others = round % 2 == 0;
        if others {
            let other = open(&files, b"other");
            other.pwrite(&[round; 70_000], 100_000 * u64::from(round)).unwrap();
            let before = disk.counts().flushes;
            other.sync_range(0, 0).unwrap();
            assert_eq!(disk.counts().flushes - before, 1, "round {round}");
        }
        let before = disk.counts().flushes;
        caller::with(Urgency::Urgent, || {
            file.pwrite(&[round; 40_000], 50_000).unwrap();
            file.pwrite(&[round; 8192], 200_000 + u64::from(round) * 8192).unwrap();
            file.pwrite(&[round; 4096], 0).unwrap();
            file.fsync().unwrap();
        });
        assert_eq!(disk.counts().flushes - before, 0, "round {round}");
        let after = disk.survivor(|| false).mount();
        if others {
            let kept = read_all(&open(&after, b"other"));
            assert!(kept[100_000 * usize::from(round)..] == [round; 70_000], "round {round}");
        }
        let kept = read_all(&open(&after, b"file"));
        assert!(kept[..4096] == [round; 4096] && kept[50_000..90_000] == [round; 40_000], "round {round}");
        assert!(kept[200_000 + usize::from(round) * 8192..] == [round; 8192], "round {round}");
    }
}

/// Many dirty pages of others are no work of an urgent caller, and his are none of theirs.
#[test]
fn an_urgent_caller_over_the_limit_leaves_write_back_to_others() {
    const LIMIT: usize = 64 << 10;
    let disk = Disk::new(32 << 20);
    disk.format();
    let options = MountOptions { urgent: true, dirty_limit_bytes: LIMIT as u64, ..MountOptions::default() };
    let files = disk.mount_with(options, SMALL_CACHE);
    let (own, bulk) = (open(&files, b"own"), open(&files, b"bulk"));
    let write = |file: &File, byte: u8, at: usize, bytes: usize| {
        file.pwrite(&vec![byte; bytes], at as u64).unwrap();
    };
    let urgently = |what: &dyn Fn()| caller::with(Urgency::Urgent, what);
    let cost = |what: &dyn Fn()| {
        let before = disk.counts();
        what();
        let now = disk.counts();
        (now.writes - before.writes, now.flushes - before.flushes, now.urgent - before.urgent)
    };
    urgently(&|| {
        write(&own, 1, 0, 8192);
        own.fsync().unwrap();
        write(&own, 2, 0, 8192);
    });
    write(&bulk, 1, 0, LIMIT - 8192);
    assert_eq!(cost(&|| urgently(&|| write(&own, 3, 8192, 8192))), (0, 0, 0));
    let (writes, flushes, urgent) = cost(&|| write(&bulk, 2, LIMIT, 4096));
    assert!(writes > 0 && flushes == 1 && urgent == 0, "{writes}, {flushes}, {urgent}");
    // His pages are still his to write.
    assert_eq!(cost(&|| urgently(&|| own.fsync().unwrap())).0, 3, "the pages in two runs, and the log");
    // If nobody else writes back, he does, for others: with no rank.
    let (writes, _, urgent) = cost(&|| urgently(&|| (0..30).for_each(|at| write(&bulk, 3, at * 8192, 8192))));
    assert!(writes > 0 && urgent == 0, "{writes}, {urgent}");
    drop(own);
    for urgent in [true, false] {
        let disk = Disk::new(32 << 20);
        disk.format();
        let options = MountOptions { urgent, dirty_limit_bytes: LIMIT as u64, ..MountOptions::default() };
        let files = disk.mount_with(options, SMALL_CACHE);
        let bulk = open(&files, b"bulk");
        write(&bulk, 1, 0, LIMIT / 2);
        let before = disk.counts();
        assert!(!files.relieve_ahead());
        assert_eq!(disk.counts().writes, before.writes, "half of the limit may be dirty");
        write(&bulk, 1, LIMIT / 2, 4096);
        assert!(!files.relieve_ahead());
        let wrote = (disk.counts().writes > before.writes, disk.counts().flushes - before.flushes);
        assert_eq!(
            wrote,
            (urgent, u64::from(urgent)),
            "as long as nobody is urgent, writers at the limit do it"
        );
        // What write-back has told of is durable when it was synced, and an urgent caller does not wait for it before.
        let own = open(&files, b"own");
        caller::with(Urgency::Urgent, || {
            own.fsync().unwrap();
            write(&bulk, 2, LIMIT, LIMIT / 2 + 4096);
            caller::with(Urgency::Normal, || files.relieve_ahead());
            let before = disk.counts();
            own.fsync().unwrap();
            assert!(!urgent || disk.counts().writes == before.writes, "the log tells of another file only");
            bulk.fsync().unwrap();
        });
        let kept = disk.survivor(|| false).mount();
        assert!(read_all(&open(&kept, b"bulk"))[LIMIT..] == [2; LIMIT / 2 + 4096]);
    }
}

#[test]
fn a_rule_by_path_makes_the_calls_of_a_file_urgent() {
    let disk = Disk::new(32 << 20);
    disk.format();
    let urgent_files = vec![Glob::new("*.db").unwrap()];
    let options = MountOptions { urgent_files, ..MountOptions::default() };
    let files = disk.mount_with(options.clone(), SMALL_CACHE);
    open(&files, b"first").fsync().unwrap();
    let contents = vec![1; 40_000];
    let cost = |what: &dyn Fn()| {
        let before = disk.counts();
        what();
        let now = disk.counts();
        (now.urgent - before.urgent, now.writes + now.blocks_read - before.writes - before.blocks_read)
    };
    let (ruled, other) = (open(&files, b"x.db"), open(&files, b"x.db2"));
    for file in [&ruled, &other] {
        file.pwrite(&contents, 0).unwrap();
    }
    let (urgent, all) = cost(&|| ruled.fsync().unwrap());
    assert!(urgent == all && all >= 2, "data and log: {urgent} of {all}");
    let (urgent, all) = cost(&|| other.fsync().unwrap());
    assert_eq!(
        (urgent, all),
        (1, 3),
        "the log's append, for which others may wait, and neither the data nor its flush"
    );
    for file in [&ruled, &other] {
        file.pwrite(&contents, 0).unwrap();
    }
    let (urgent, all) = cost(&|| ruled.sync_range(0, 0).unwrap());
    assert!(urgent == all && all >= 1, "what is written back is urgent: {urgent} of {all}");
    assert_eq!(cost(&|| other.sync_range(0, 0).unwrap()).0, 0);
    other.set_urgent(true);
    let (urgent, all) = cost(&|| {
        other.pwrite(&contents, 0).unwrap();
        other.sync_range(0, 0).unwrap();
    });
    assert!(other.is_urgent() && urgent == all && all >= 1, "who opened it says so: {urgent} of {all}");
    drop((ruled, other, files));
    let files = disk.mount_with(options, SMALL_CACHE);
    let misses = |name: &[u8]| {
        let file = open(&files, name);
        cost(&|| assert!(read_all(&file) == contents))
    };
    assert!(misses(b"x.db").0 > 0);
    let (urgent, all) = misses(b"x.db2");
    assert!(urgent == 0 && all > 0, "{urgent} of {all}");
}

#[test]
fn direct_io_has_its_rules() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open_with(&files, b"a", OpenFlags::DIRECT);
    let bytes = vec![3; 16384];
    let skew = bytes.as_ptr().addr().next_multiple_of(4096) - bytes.as_ptr().addr();
    let page = &bytes[skew..skew + 4096];
    assert!(matches!(file.pwrite(&page[..100], 0), Err(FsError::Invalid)));
    assert!(matches!(file.pwrite(page, 100), Err(FsError::Invalid)));
    assert!(matches!(file.pwrite(&bytes[skew + 1..skew + 4097], 0), Err(FsError::Invalid)));
    let before = disk.writes();
    assert_eq!(file.pwrite(page, 4096).unwrap(), 4096);
    assert!(disk.writes() > before, "a direct write is on the device");
}

#[test]
fn files_closed_and_forgotten_come_back_from_the_device() {
    closed_and_forgotten(World::new(MountOptions::default()));
    closed_and_forgotten(World::on(Ground::medium(16 << 20), MountOptions::default()));
}

fn closed_and_forgotten(mut world: World) {
    for file in 0..300u32 {
        let name = format!("n{file}");
        open(world.files(), name.as_bytes()).write(&file.to_le_bytes().repeat(500)).unwrap();
    }
    world.die();
    for file in 0..300u32 {
        let name = format!("n{file}");
        assert_eq!(read_all(&open(world.files(), name.as_bytes())), file.to_le_bytes().repeat(500));
    }
}

#[test]
fn a_file_of_many_pieces_is_written_cut_and_freed_in_steps() {
    many_pieces(World::new(MountOptions::default()));
    many_pieces(World::on(Ground::medium(16 << 20), MountOptions::default()));
}

fn many_pieces(mut world: World) {
    let free = world.files().statfs().blocks_free;
    // Every other page: more runs than one batch takes, so more than one batch.
    for page in 0..400u64 {
        world.file().pwrite(&page.to_le_bytes().repeat(512), page * 8192).unwrap();
    }
    world.file().fsync().unwrap();
    world.remount();
    let check = |file: &File, pages: u64| {
        let bytes = read_all(file);
        for (page, bytes) in bytes.chunks(4096).enumerate().map(|(page, bytes)| (page as u64, bytes)) {
            let expected = if page % 2 == 0 { (page / 2).to_le_bytes() } else { [0; 8] };
            assert!(bytes.chunks(8).all(|word| word == &expected[..word.len()]), "page {page}");
        }
        assert_eq!(bytes.len() as u64, pages * 4096);
    };
    check(world.file(), 799);
    assert_eq!(world.file().stat().blocks_512, 400 * 8);
    world.file().truncate(301 * 4096).unwrap();
    check(world.file(), 301);
    world.die();
    check(world.file(), 301);
    world.file().fallocate(PUNCH, 4096, 300 * 4096).unwrap();
    assert_eq!(read_all(world.file())[4096..], vec![0; 300 * 4096]);
    world.remount();
    world.file = None;
    world.files().unlink(&world.files().root(), b"file", &ROOT).unwrap();
    world.files().sync().unwrap();
    assert_eq!(world.files().statfs().blocks_free, free);
}

#[test]
fn a_large_allocation_reads_as_zeroes_and_takes_writes_anywhere() {
    large_allocation(&Ground::disk(1 << 30));
    large_allocation(&Ground::medium(1 << 30));
}

fn large_allocation(ground: &Ground) {
    let files = ground.mount(SMALL_CACHE);
    let free = files.statfs().blocks_free;
    let file = open(&files, b"big");
    let mib = 1 << 20;
    file.fallocate(EXTEND, 0, 400 * mib).unwrap();
    assert_eq!((file.stat().size, file.stat().blocks_512), (400 * mib, 400 * mib / 512));
    assert_eq!(free - files.statfs().blocks_free, 400 * mib / 4096);
    for at in [0, 127 * mib, 128 * mib - 2, 256 * mib + 1, 400 * mib - 5] {
        file.pwrite(b"12345", at).unwrap();
    }
    drop(file);
    let files = ground.remount(files);
    let file = open(&files, b"big");
    let mut bytes = [9; 9];
    for at in [127 * mib, 128 * mib - 2, 256 * mib + 1] {
        assert_eq!(file.pread(&mut bytes, at - 2).unwrap(), 9);
        assert_eq!(&bytes, b"\0\x0012345\0\0");
    }
    let before = files.statfs().blocks_free;
    assert!(matches!(file.fallocate(EXTEND, 0, 1 << 40), Err(FsError::NoSpace)));
    assert_eq!(files.statfs().blocks_free, before, "it took nothing");
    file.truncate(0).unwrap();
    files.sync().unwrap();
    assert_eq!(files.statfs().blocks_free, free);
}

#[test]
fn advice_changes_what_is_read_ahead_and_what_stays() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount_with(MountOptions::default(), 8 << 20);
    let file = open(&files, b"f");
    file.pwrite(&vec![7; 1 << 20], 0).unwrap();
    files.sync().unwrap();
    let read = |file: &File, page: u64| {
        let before = disk.counts().blocks_read;
        assert_eq!(file.pread(&mut [0; 4096], page * 4096).unwrap(), 4096);
        disk.counts().blocks_read - before
    };
    assert_eq!(read(&file, 0), 0, "what was written is in the cache");
    file.advise(Advice::DontNeed, 0, 0).unwrap();
    assert!(read(&file, 0) > 1, "a reader from the start is read ahead");
    file.advise(Advice::DontNeed, 0, 0).unwrap();
    file.advise(Advice::Random, 0, 0).unwrap();
    assert_eq!((read(&file, 0), read(&file, 1), read(&file, 2)), (1, 1, 1));
    let before = disk.counts().blocks_read;
    file.advise(Advice::WillNeed, 100 * 4096, 10 * 4096).unwrap();
    assert_eq!(disk.counts().blocks_read - before, 10);
    assert_eq!((read(&file, 100), read(&file, 109), read(&file, 110)), (0, 0, 1));
    file.set_readahead(8 * 4096);
    assert_eq!((read(&file, 150), read(&file, 151)), (1, 4));
    file.pwrite(b"dirty", 200 * 4096).unwrap();
    file.advise(Advice::DontNeed, 0, 0).unwrap();
    assert_eq!(read(&file, 200), 1, "written back and forgotten");
    let nothing = files.open(&files.root(), b"f", OpenFlags::PATH, 0, &Credentials::ROOT).unwrap();
    assert!(matches!(nothing.advise(Advice::Normal, 0, 0), Err(FsError::BadDescriptor)));
}

#[test]
fn preallocation_can_be_set_for_one_file() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    let (one, two) = (open(&files, b"one"), open(&files, b"two"));
    one.preallocate(Some(1 << 20)).unwrap();
    let free = files.statfs().blocks_free;
    for page in 0..20 {
        for file in [&one, &two] {
            file.pwrite(&[page as u8; 4096], page * 4096).unwrap();
            file.fdatasync().unwrap();
        }
    }
    let held = free - files.statfs().blocks_free;
    assert!((276..=40 + 256).contains(&held), "{held} blocks: 40 written, and up to 1 MiB ahead of one");
    drop(one);
    assert_eq!(free - files.statfs().blocks_free, 40, "the rest came back at the last close");
    let files = disk.remount(files);
    assert!(read_all(&open(&files, b"one")).chunks(4096).zip(0u8..).all(|(page, byte)| page == [byte; 4096]));
}

#[test]
fn the_pieces_of_a_fragmented_file_are_read_together() {
    const PAGES: u64 = 32;
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    let file = open(&files, b"f");
    // From the end to the start: no page lies before its neighbour on the device.
    for page in (0..PAGES).rev() {
        file.pwrite(&[page as u8; 4096], page * 4096).unwrap();
        file.fdatasync().unwrap();
    }
    let forget = || file.advise(Advice::DontNeed, 0, 0).unwrap();
    forget();
    disk.take_together();
    let mut bytes = vec![0; PAGES as usize * 4096];
    assert_eq!(file.pread(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes.chunks(4096).zip(0u8..).all(|(page, byte)| page == [byte; 4096]));
    assert_eq!(disk.take_together(), 8, "several are under way at once, and no more than the limit");
}
