//! Posted changes: nobody sees that they made no call.

use crate::support::{self, PAGE, create, errno, serve};
use nvmed_client::{File, FileSystem, Object, Session};
use nvmed_dice::Dice;
use nvmed_fs::{Follow, FsError, OpenFlags, RenameFlags, Time, Whence};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const WRITE: OpenFlags = OpenFlags::WRITE.with(OpenFlags::CREATE);
const APPEND: OpenFlags = WRITE.with(OpenFlags::APPEND);

/// How many calls of these kinds the server has answered.
fn calls<const N: usize>(session: &Session, kinds: [&str; N]) -> [u64; N] {
    let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
    let counts = told["calls"].as_array().unwrap();
    kinds.map(|name| {
        let kind = counts.iter().find(|kind| kind["call"] == *name);
        kind.map_or(0, |kind| kind["count"].as_u64().unwrap())
    })
}

fn open(files: &FileSystem, name: &str, flags: OpenFlags) -> Arc<File> {
    files.open(&files.root(), name.as_bytes(), flags, 0o644).unwrap()
}

/// Has a session ask for its log, by as many writes as that takes.
fn settle(session: &Session) {
    let file = open(session.files(), "settled", WRITE);
    (0..8).for_each(|_| _ = file.write(b"settled").unwrap());
    drop(file);
}

fn whole(files: &FileSystem, name: &str) -> Vec<u8> {
    let file = open(files, name, OpenFlags::READ);
    let mut bytes = vec![0; 1 << 20];
    let read = file.read(&mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

fn size(files: &FileSystem, name: &str) -> u64 {
    files.stat(&files.root(), name.as_bytes(), Follow::Yes).unwrap().size
}

#[test]
fn a_new_file_is_written_and_described_without_a_call() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let files = session.files();
    let kinds = ["stat", "write", "chmod", "chown", "utimens", "write_posted", "change_posted"];
    let before = calls(&other, kinds);
    let file = open(files, "new", WRITE);
    assert_eq!(file.stat().unwrap().size, 0);
    (0..100).for_each(|_| _ = file.write(&[7; 100]).unwrap());
    file.pwrite(&[8; 100], 50).unwrap();
    files.chmod(Object::Open(&file), 0o640).unwrap();
    files.utimens(Object::Open(&file), [Time::At(5), Time::At(6)]).unwrap();
    let mut now = before;
    (now[5], now[6]) = (before[5] + 101, before[6] + 2);
    if rustix::process::geteuid().is_root() {
        files.chown(Object::Open(&file), Some(7), Some(8)).unwrap();
        now[6] += 1;
    }
    assert_eq!(calls(&other, kinds), now);
    let seen = other.files().stat(&other.files().root(), b"new", Follow::Yes).unwrap();
    assert_eq!(seen, file.stat().unwrap());
    assert_eq!((seen.size, seen.mode & 0o7777, seen.mtime_ns), (10_000, 0o640, 6));
    let bytes = whole(other.files(), "new");
    assert_eq!((bytes[49], bytes[50], bytes[149], bytes[150], bytes.len()), (7, 8, 8, 7, 10_000));
}

/// What somebody does to a file that another process writes by posts.
type Act<'a> = &'a dyn Fn(&FileSystem);

#[test]
fn who_opens_the_file_too_sees_each_write_from_then_on() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let acts: [(&str, Act<'_>); 6] = [
        ("read", &|files| assert_eq!(whole(files, "read"), [1; 10])),
        ("write", &|files| _ = open(files, "write", WRITE).pwrite(&[1; 10], 0).unwrap()),
        ("cut", &|files| files.truncate(Object::At(&files.root(), b"cut", Follow::Yes), 10).unwrap()),
        ("chmod", &|files| files.chmod(Object::At(&files.root(), b"chmod", Follow::Yes), 0o600).unwrap()),
        ("rename", &|files| {
            let root = files.root();
            files.rename(&root, b"rename", &root, b"renamed", RenameFlags::Replace).unwrap();
            files.rename(&root, b"renamed", &root, b"rename", RenameFlags::Replace).unwrap();
        }),
        ("held", &|files| {
            let node = files.lookup(&files.root(), b"held", Follow::Yes).unwrap();
            assert_eq!(node.stat().unwrap().size, 10);
        }),
    ];
    for (name, act) in acts {
        let file = open(session.files(), name, WRITE);
        file.write(&[1; 10]).unwrap();
        act(other.files());
        let reader = open(other.files(), name, OpenFlags::READ);
        for (round, byte) in (2..40).enumerate() {
            file.write(&[byte; 10]).unwrap();
            let mut read = [0; 10];
            assert_eq!(reader.pread(&mut read, 10 * (round as u64 + 1)).unwrap(), 10, "{name}");
            assert_eq!(read, [byte; 10], "{name}");
            assert_eq!(reader.seek(0, Whence::End).unwrap(), 10 * (round as u64 + 2), "{name}");
        }
    }
}

#[test]
fn a_new_file_is_posted_to_until_it_is_read() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let kinds = ["write", "write_posted"];
    let before = calls(&other, kinds);
    let file = create(session.files(), "journal");
    for byte in 1..=100 {
        file.write(&[byte; 100]).unwrap();
    }
    assert_eq!(calls(&other, kinds), [before[0], before[1] + 100]);
    let mut read = [0; 200];
    assert_eq!(file.pread(&mut read, 9_800).unwrap(), 200);
    assert_eq!((read[0], read[199]), (99, 100));
    file.pwrite(&[7; 10], 0).unwrap();
    assert_eq!(calls(&other, kinds), [before[0] + 1, before[1] + 100]);
    assert_eq!(file.pread(&mut read, 0).unwrap(), 200);
    assert_eq!((read[9], read[10]), (7, 1));
    // One that was there already is read and written as before.
    let again = create(session.files(), "journal");
    again.write(&[8; 10]).unwrap();
    assert_eq!(calls(&other, kinds), [before[0] + 2, before[1] + 100]);
}

/// As a database writes its file: what it reads by a window between its writes is what it wrote.
#[test]
fn a_file_that_is_read_too_is_posted_to_while_it_is_only_written() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let files = session.files();
    // Larger than the shelf has room for, so that it has a window.
    let pages = 40_u64;
    create(files, "db").pwrite(&vec![1; pages as usize * 4096], 0).unwrap();
    let db = open(files, "db", OpenFlags::READ_WRITE);
    let mut page = [0; 100];
    let before = calls(&other, ["write_posted"])[0];
    let mut wrote = 0;
    for round in 0..300_u64 {
        // At first many reads for each write, then many writes, then one of each, which are calls.
        let (reads, writes) = [(20, 1), (1, 70), (1, 1)][(round / 100) as usize];
        let at = round % (pages - 8) * 4096;
        for _ in 0..writes {
            wrote += 1;
            db.pwrite(&[(wrote % 251) as u8; 30_000], at).unwrap();
        }
        for _ in 0..reads {
            assert_eq!(db.pread(&mut page, at + 29_900).unwrap(), 100);
            assert_eq!(page, [(wrote % 251) as u8; 100], "round {round}");
        }
    }
    let end = pages * 4096;
    for more in 1..=200 {
        db.pwrite(&[9; 10], end + 10 * (more - 1)).unwrap();
        assert!(more % 50 != 0 || db.seek(0, Whence::End).unwrap() == end + 10 * more);
    }
    let posted = calls(&other, ["write_posted"])[0] - before;
    assert!(posted > 100, "{posted} of {} were posted", wrote + 200);
    assert_eq!(whole(other.files(), "db"), whole(files, "db"));
    // Who maps it sees all, and nothing is posted beside a mapping.
    let mapped = db.map(true).unwrap();
    let before = calls(&other, ["write_posted"])[0];
    (0..200).for_each(|_| assert_eq!(db.pwrite(&[5; 10], 0).unwrap(), 10));
    assert_eq!(calls(&other, ["write_posted"])[0], before);
    drop(mapped);
}

/// Whoever else opens the file, and ends what was granted: a process reads what it wrote, and finds the file as long.
#[test]
fn a_process_reads_its_own_writes_while_others_end_its_grants() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let pages = 40_u64;
    create(session.files(), "db").pwrite(&vec![1; pages as usize * 4096], 0).unwrap();
    let db = open(session.files(), "db", OpenFlags::READ_WRITE);
    let posted = || calls(&other, ["write_posted"])[0];
    let before = posted();
    // How many writes were made: the other one opens the file after some more each time. All, also when one fails.
    let made = AtomicU64::new(0);
    struct AllMade<'a>(&'a AtomicU64);
    impl Drop for AllMade<'_> {
        fn drop(&mut self) {
            self.0.store(u64::MAX, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _all_made = AllMade(&made);
        scope.spawn(|| {
            let mut dice = Dice::of(&[31]);
            let mut next = 0;
            while next < u64::MAX {
                next += 1 + dice.roll(200);
                while made.load(Ordering::Relaxed) < next {
                    std::thread::yield_now();
                }
                next = next.max(made.load(Ordering::Relaxed));
                drop(open(other.files(), "db", OpenFlags::READ));
            }
        });
        let mut end = pages * 4096;
        for round in 0..300_u64 {
            let byte = (round % 251) as u8;
            for _ in 0..80 + round % 20 {
                db.pwrite(&[byte; 20_000], round % 30 * 4096).unwrap();
                made.fetch_add(1, Ordering::Relaxed);
            }
            let mut read = [0; 100];
            db.pread(&mut read, round % 30 * 4096 + 19_900).unwrap();
            assert_eq!(read, [byte; 100], "round {round}");
            db.pwrite(&[byte], end).unwrap();
            end += 1;
            assert_eq!(db.seek(0, Whence::End).unwrap(), end, "round {round}");
        }
    });
    assert!(posted() > before, "nothing was posted");
}

#[test]
fn who_is_alone_again_posts_again() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let file = open(session.files(), "log", APPEND);
    let posted = || calls(&other, ["write_posted"])[0];
    let (mut all, mut reads) = (0, 0);
    for round in 0..2_000_u64 {
        file.write(&[1; 10]).unwrap();
        all += 10;
        if round.is_power_of_two() {
            assert_eq!(whole(other.files(), "log").len(), all);
            reads += 1;
        }
    }
    let posted = posted();
    assert!(posted > 1_000, "{posted} of 2000 were posted beside {reads} readers");
    assert_eq!(size(other.files(), "log"), all as u64);
}

#[test]
fn what_a_process_posted_before_its_end_is_there() {
    let shared = serve();
    let other = shared.session();
    for round in 0..50 {
        let session = shared.session();
        settle(&session);
        let name = format!("log{round}");
        let file = open(session.files(), &name, APPEND);
        (0..20).for_each(|_| _ = file.write(&[3; 500]).unwrap());
        // The kernel closes its socket; the server has not heard of it yet.
        core::mem::forget(file);
        drop(session);
        assert_eq!(size(other.files(), &name), 10_000);
    }
}

#[test]
fn a_full_device_refuses_before_it_has_agreed() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let mut written = HashMap::new();
    'full: for number in 0..64 {
        let name = format!("file{number}");
        let Ok(file) = session.files().open(&session.files().root(), name.as_bytes(), WRITE, 0o644) else {
            break;
        };
        for block in 0..400_u64 {
            match file.write(&[number as u8 + 1; PAGE]) {
                Ok(PAGE) => _ = written.insert(name.clone(), (block + 1) * PAGE as u64),
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC);
                    file.fsync().unwrap();
                    break 'full;
                }
            }
        }
        file.fsync().unwrap();
    }
    assert!(written.len() > 20, "{written:?}");
    for (name, bytes) in &written {
        assert_eq!(size(other.files(), name), *bytes, "{name}");
    }
    // What was promised ahead is free for others again, and there is room for all that was promised.
    let free = other.files().statfs().unwrap().blocks_free;
    let removed = size(other.files(), "file3") / PAGE as u64;
    other.files().unlink(&other.files().root(), b"file3").unwrap();
    session.files().sync().unwrap();
    support::until("the blocks are free", || other.files().statfs().unwrap().blocks_free >= free + removed);
}

#[test]
fn what_is_promised_ahead_is_not_told_as_used() {
    let shared = serve();
    let session = shared.session();
    settle(&session);
    session.files().sync().unwrap();
    let free = || session.files().statfs().unwrap().blocks_free;
    let before = free();
    let many: Vec<_> = (0..20).map(|number| open(session.files(), &format!("f{number}"), WRITE)).collect();
    assert_eq!(free(), before);
    many.iter().for_each(|file| _ = file.write(&[1; 3 * PAGE]).unwrap());
    assert_eq!(free(), before - 60);
    drop(many);
    assert_eq!(free(), before - 60);
}

#[test]
fn a_grant_that_is_over_says_nothing_of_the_next_one_in_its_slot() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let first = open(session.files(), "first", WRITE);
    first.write(b"a").unwrap();
    // The grant is over, and the client has not heard of it.
    drop(open(other.files(), "first", OpenFlags::READ));
    let second = open(session.files(), "second", APPEND);
    (0..50).for_each(|_| _ = second.write(&[1; 100]).unwrap());
    first.write(b"b").unwrap();
    second.write(&[2; 100]).unwrap();
    assert_eq!((second.position().unwrap(), size(other.files(), "second")), (5100, 5100));
    assert_eq!(whole(other.files(), "first"), b"ab");
}

#[test]
fn no_file_reaches_farther_by_a_post_than_by_a_call() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let file = open(session.files(), "far", WRITE);
    file.write(b"near").unwrap();
    for offset in [nvmed_fs::FILE_BYTES_MAX - 3, 1 << 60, i64::MAX as u64 - 4] {
        assert_eq!(errno(file.pwrite(b"far.", offset)), Errno::FBIG, "{offset}");
    }
    file.write(b"er").unwrap();
    assert_eq!(whole(other.files(), "far"), b"nearer");
}

#[test]
fn stores_find_the_room_that_is_only_promised() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let files = other.files();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let mapped = files.open(&files.root(), b"mapped", flags, 0o644).unwrap();
    mapped.truncate(100 * PAGE as u64).unwrap();
    let filler = open(files, "filler", WRITE);
    while filler.write(&[1; 16 * PAGE]).is_ok() {}
    filler.truncate(filler.stat().unwrap().size - 160 * PAGE as u64).unwrap();
    files.sync().unwrap();
    // They take what is left, and write nothing.
    let _idle: Vec<_> = (0..2).map(|number| open(session.files(), &format!("idle{number}"), WRITE)).collect();
    let memory = mapped.map(true).unwrap();
    for page in 0..100 {
        rustix::io::pwrite(&*memory.fd, &[page + 1; PAGE], u64::from(page) * PAGE as u64).unwrap();
    }
    mapped.unmap(true).unwrap();
    let bytes = whole(files, "mapped");
    assert!(bytes.chunks(PAGE).enumerate().all(|(page, bytes)| bytes == [page as u8 + 1; PAGE]));
}

#[test]
fn descriptions_that_others_have_are_written_by_calls() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let (first, second) = (open(session.files(), "twice", WRITE), open(session.files(), "twice", APPEND));
    for _ in 0..10 {
        first.write(&[1; 10]).unwrap();
        second.write(&[2; 10]).unwrap();
    }
    // The one goes over what the other has appended, but for the last.
    let mut expected = vec![1; 100];
    expected.extend([2; 10]);
    assert_eq!(whole(other.files(), "twice"), expected);
    drop((first, second));
    let durable = open(session.files(), "durable", WRITE.with(OpenFlags::DSYNC));
    let before = calls(&other, ["write_posted"]);
    durable.write(&[1; 10]).unwrap();
    assert_eq!(calls(&other, ["write_posted"]), before);
}

#[test]
fn a_thread_that_finds_another_one_at_it_writes_all_the_same() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let file = open(session.files(), "threads", APPEND);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let file = &file;
            scope.spawn(move || (0..500).for_each(|_| assert_eq!(file.write(&[thread; 16]).unwrap(), 16)));
        }
    });
    let bytes = whole(other.files(), "threads");
    assert_eq!(bytes.len(), 4 * 500 * 16);
    assert!(bytes.chunks(16).all(|part| part.iter().all(|byte| *byte == part[0])), "appends are atomic");
    for thread in 1..=4 {
        assert_eq!(bytes.iter().filter(|byte| **byte == thread).count(), 500 * 16);
    }
}

#[test]
fn a_sync_makes_durable_what_was_posted() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let file = open(session.files(), "synced", APPEND);
    for round in 1..100 {
        file.write(&[9; 64]).unwrap();
        file.fdatasync().unwrap();
        assert_eq!(size(other.files(), "synced"), 64 * round);
    }
    let log = open(session.files(), "other", WRITE);
    files_are_changed_and_synced(session.files(), &log);
}

/// Times of a file are durable with the sync of another one, also where the last one made no call.
fn files_are_changed_and_synced(files: &FileSystem, log: &File) {
    let database = create(files, "database");
    for _ in 0..10 {
        database.write(&[1; 8]).unwrap();
        database.fdatasync().unwrap();
    }
    log.write(b"x").unwrap();
    database.fdatasync().unwrap();
    assert_eq!(log.stat().unwrap().size, 1);
}

/// A file of the model: what it holds.
type Bytes = Vec<u8>;

/// What a process does, beside the same in a model: each answer is the model's, whoever did what before.
#[test]
fn many_processes_that_take_turns_see_what_the_model_says() {
    for seed in 0..12 {
        let shared = serve();
        let sessions: Vec<_> = (0..3).map(|_| shared.session()).collect();
        sessions.iter().for_each(settle);
        let mut dice = Dice::of(&[seed]);
        let mut model: HashMap<String, Bytes> = HashMap::new();
        let mut open_files: Vec<(String, bool, Arc<File>)> = Vec::new();
        for _ in 0..3_000 {
            let files = sessions[dice.roll(3) as usize].files();
            let name = format!("f{}", dice.roll(5));
            step(&mut dice, files, name, &mut model, &mut open_files);
        }
    }
}

fn step(
    dice: &mut Dice,
    files: &FileSystem,
    name: String,
    model: &mut HashMap<String, Bytes>,
    open_files: &mut Vec<(String, bool, Arc<File>)>,
) {
    let root = files.root();
    match dice.roll(12) {
        0 if open_files.len() < 12 => {
            let appends = dice.roll(2) == 0;
            let file = open(files, &name, if appends { APPEND } else { WRITE });
            model.entry(name.clone()).or_default();
            open_files.push((name, appends, file));
        }
        1 if !open_files.is_empty() => {
            open_files.swap_remove(dice.roll(open_files.len() as u64) as usize);
        }
        2 => {
            let cut = dice.roll(9_000);
            let done = files.truncate(Object::At(&root, name.as_bytes(), Follow::Yes), cut);
            match model.get_mut(&name) {
                Some(bytes) => {
                    done.unwrap();
                    bytes.resize(cut as usize, 0);
                }
                None => assert_eq!(errno(done), Errno::NOENT),
            }
        }
        3..=4 => match files.stat(&root, name.as_bytes(), Follow::Yes) {
            Ok(stat) => assert_eq!(stat.size, model[&name].len() as u64, "{name}"),
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOENT);
                assert!(!model.contains_key(&name), "{name} is there");
            }
        },
        5 if model.contains_key(&name) => assert!(whole(files, &name) == model[&name], "{name}"),
        _ if !open_files.is_empty() => {
            let at = dice.roll(open_files.len() as u64) as usize;
            let (name, appends, file) = &open_files[at];
            write(dice, file, *appends, model.get_mut(name).expect("it is open"));
        }
        _ => {}
    }
}

fn write(dice: &mut Dice, file: &File, appends: bool, bytes: &mut Bytes) {
    let len = [1, 100, 4_096, 70_000][dice.roll(4) as usize].min(300_000 - bytes.len().min(299_999));
    let piece = vec![dice.roll(255) as u8 + 1; len];
    let offset = if appends { bytes.len() } else { dice.roll(20_000) as usize };
    let written = if appends { file.write(&piece) } else { file.pwrite(&piece, offset as u64) };
    assert_eq!(written.map_err(|error: FsError| error.errno()), Ok(len));
    if bytes.len() < offset + len {
        bytes.resize(offset + len, 0);
    }
    bytes[offset..offset + len].copy_from_slice(&piece);
}
