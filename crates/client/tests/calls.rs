//! The calls of a session: what one process does, and what another sees of it.

mod support;

use core::ops::ControlFlow;
use nvmed_client::Session;
use nvmed_fs::{
    Advice, Allocate, FileType, Follow, FsError, LockKind, LockRange, Object, OpenFlags, RenameFlags,
    SetXattr, Time, Wait, Whence,
};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use support::{NEW, PAGE, create, errno, serve, until};

#[test]
fn names_are_made_found_listed_and_removed() {
    let shared = serve();
    let session = shared.session();
    let files = session.files();
    let root = files.root();
    files.mkdir(&root, b"dir", 0o755).unwrap();
    let dir = files.lookup(&root, b"dir", Follow::Yes).unwrap();
    assert_eq!((dir.kind(), dir.stat().unwrap().mode & 0o777), (FileType::Directory, 0o755));
    create(files, "dir/file").write(b"text").unwrap();
    files.symlink(b"file", &dir, b"link").unwrap();
    files.link(Object::At(&dir, b"file", Follow::No), &root, b"second").unwrap();
    assert_eq!(files.readlink(Object::At(&dir, b"link", Follow::No)).unwrap(), b"file");
    assert_eq!(files.stat(&dir, b"link", Follow::Yes).unwrap().size, 4);
    assert_eq!(files.stat(&root, b"second", Follow::Yes).unwrap().nlink, 2);
    assert_eq!(files.path_of(&dir).unwrap(), b"/dir");
    files.rename(&root, b"second", &dir, b"third", RenameFlags::Replace).unwrap();
    files.chmod(Object::At(&dir, b"third", Follow::Yes), 0o600).unwrap();
    files.utimens(Object::At(&dir, b"third", Follow::Yes), [Time::At(5), Time::At(7)]).unwrap();
    let stat = files.stat(&dir, b"file", Follow::Yes).unwrap();
    assert_eq!((stat.mode & 0o777, stat.atime_ns, stat.mtime_ns), (0o600, 5, 7));
    assert!(files.access(Object::At(&dir, b"file", Follow::Yes), 4, true).is_ok());
    assert_eq!(errno(files.rmdir(&root, b"dir")), Errno::NOTEMPTY);
    assert_eq!(errno(files.lookup(&root, b"none", Follow::Yes)), Errno::NOENT);
    assert!(
        matches!(files.lookup(&root, b"../up", Follow::Yes), Err(FsError::Away(rest)) if *rest == *b"../up")
    );
    assert_eq!(errno(files.unlink(&root, &[b'x'; 5000])), Errno::NAMETOOLONG);
    for name in [&b"file"[..], b"link", b"third"] {
        files.unlink(&dir, name).unwrap();
    }
    files.rmdir(&root, b"dir").unwrap();
    assert_eq!(files.statfs().unwrap().name_bytes_max, 255);
}

#[test]
fn a_listing_tells_every_entry_once_wherever_it_is_broken_off() {
    let shared = serve();
    let session = shared.session();
    let files = session.files();
    for number in 0..300 {
        create(files, &format!("file{number:03}"));
    }
    let dir = files.open_node(&files.root(), OpenFlags::READ.with(OpenFlags::DIRECTORY)).unwrap();
    let mut names = Vec::new();
    loop {
        let mut taken = 0;
        dir.read_dir(&mut |entry| {
            if taken == 7 {
                return ControlFlow::Break(());
            }
            taken += 1;
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        if taken < 7 {
            break;
        }
    }
    names.sort();
    assert_eq!(names.len(), 302);
    names.dedup();
    assert_eq!(names.len(), 302, "an entry came twice");
    dir.seek(0, Whence::Set).unwrap();
    let mut first = Vec::new();
    dir.read_dir(&mut |entry| {
        first = entry.name.to_vec();
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(first, b".");
}

#[test]
fn a_file_is_written_and_read_at_its_offset_and_at_others() {
    let shared = serve();
    let session = shared.session();
    let files = session.files();
    let file = create(files, "file");
    assert_eq!(file.write(b"hello, ").unwrap(), 7);
    assert_eq!(file.write(b"world").unwrap(), 5);
    assert_eq!(file.position().unwrap(), 12);
    assert_eq!(file.seek(-5, Whence::End).unwrap(), 7);
    let mut into = [0; 100];
    assert_eq!(file.read(&mut into).unwrap(), 5);
    assert_eq!(&into[..5], b"world");
    assert_eq!(file.read(&mut into).unwrap(), 0);
    assert_eq!(errno(file.seek(-100, Whence::Current)), Errno::INVAL);
    assert_eq!(file.pwrite(b"W", 7).unwrap(), 1);
    assert_eq!(file.pread(&mut into, 0).unwrap(), 12);
    assert_eq!(&into[..12], b"hello, World");
    let log = files.open(&files.root(), b"file", OpenFlags::WRITE.with(OpenFlags::APPEND), 0).unwrap();
    assert_eq!((log.write(b"!").unwrap(), log.position().unwrap()), (1, 13));
    assert_eq!(errno(log.pread(&mut into, 0)), Errno::BADF);
    // More than a lane carries at once.
    let large: Vec<u8> = (0..(5 << 20) / 2).map(|byte: usize| (byte / 1000) as u8).collect();
    assert_eq!(file.pwrite(&large, 100).unwrap(), large.len());
    let mut back = vec![0; large.len() + 10];
    assert_eq!(file.pread(&mut back, 100).unwrap(), large.len());
    assert!(back[..large.len()] == large[..]);
    file.truncate(50).unwrap();
    file.fallocate(Allocate::default(), 0, 8192).unwrap();
    assert_eq!(file.stat().unwrap().size, 8192);
    file.fsync().unwrap();
    file.fdatasync().unwrap();
    file.pwrite(b"dirty", 0).unwrap();
    file.sync_range(0, 0).unwrap();
    assert_eq!(errno(file.sync_range(1, u64::MAX)), Errno::INVAL);
    files.sync().unwrap();
    file.set_flags(OpenFlags::APPEND).unwrap();
    assert!(file.flags().has(OpenFlags::APPEND) && file.flags().writes());
}

#[test]
fn attributes_come_back_and_go() {
    let shared = serve();
    let session = shared.session();
    let files = session.files();
    let file = create(files, "file");
    let node = file.node();
    let value = vec![7; 3000];
    files.set_xattr(Object::Held(&node), b"user.one", &value, SetXattr::Create).unwrap();
    assert_eq!(files.get_xattr(Object::Held(&node), b"user.one").unwrap(), value);
    assert_eq!(files.list_xattr(Object::Open(&file)).unwrap(), b"user.one\0");
    files.remove_xattr(Object::Held(&node), b"user.one").unwrap();
    assert_eq!(errno(files.get_xattr(Object::Held(&node), b"user.one")), Errno::NODATA);
}

#[test]
fn an_unlinked_file_lives_until_its_last_holder_lets_go() {
    let shared = serve();
    let session = shared.session();
    let files = session.files();
    let before = files.statfs().unwrap().blocks_free;
    let file = create(files, "file");
    file.write(&vec![1; 1 << 20]).unwrap();
    files.unlink(&files.root(), b"file").unwrap();
    assert_eq!(file.stat().unwrap().nlink, 0);
    let node = file.node();
    drop(file);
    assert_eq!(node.stat().unwrap().size, 1 << 20);
    drop(node);
    files.sync().unwrap();
    until("its blocks are free", || files.statfs().unwrap().blocks_free + 8 >= before);
}

/// How many closes were made, posted or not, and what is held, by the server's counters.
fn closes(session: &Session) -> (u64, u64) {
    let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
    let calls = told["calls"].as_array().unwrap().iter();
    let closes = calls
        .filter(|kind| ["close", "close_posted"].map(Into::into).contains(&kind["call"]))
        .map(|kind| kind["count"].as_u64().unwrap());
    let sessions = told["sessions"].as_array().unwrap().iter();
    (closes.sum(), sessions.map(|session| session["handles"].as_u64().unwrap()).sum())
}

/// How many calls of a kind were made, by the server's counters.
fn made(session: &Session, kind: &str) -> u64 {
    let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
    let calls = told["calls"].as_array().unwrap().iter();
    calls.filter(|call| call["call"] == kind).map(|call| call["count"].as_u64().unwrap()).sum()
}

#[test]
fn advice_about_reading_is_told_with_the_first_read_that_it_can_change() {
    let shared = serve();
    let session = shared.session();
    let files = session.files();
    create(files, "file").write(&vec![1; 300 << 10]).unwrap();
    let open = || files.open(&files.root(), b"file", OpenFlags::READ, 0).unwrap();
    let mut room = vec![0; 300 << 10];
    let file = open();
    for advice in [Advice::Normal, Advice::Random, Advice::Sequential] {
        file.advise(advice, 0, 0).unwrap();
    }
    file.pread(&mut room[..8192], 0).unwrap();
    assert_eq!(made(&session, "advise"), 0, "a file's beginning is read the same");
    file.pread(&mut room[..8192], 200 << 10).unwrap();
    file.pread(&mut room, 0).unwrap();
    assert_eq!(made(&session, "advise"), 1, "the last advice, once");
    let file = open();
    file.advise(Advice::Random, 0, 0).unwrap();
    assert_eq!(made(&session, "advise"), 1);
    file.read(&mut room[..100]).unwrap();
    assert_eq!(made(&session, "advise"), 2, "without readahead the beginning is read otherwise");
    let file = open();
    file.advise(Advice::Sequential, 0, 0).unwrap();
    file.share();
    assert_eq!(made(&session, "advise"), 3, "another process does not know what this one has not told");
    file.advise(Advice::WillNeed, 0, 4096).unwrap();
    file.advise(Advice::DontNeed, 0, 0).unwrap();
    assert_eq!(made(&session, "advise"), 5, "what changes the cache is a call");
    let named = files.open(&files.root(), b"file", OpenFlags::PATH, 0).unwrap();
    let dir = files.open_node(&files.root(), OpenFlags::READ.with(OpenFlags::DIRECTORY)).unwrap();
    for advice in [Advice::Sequential, Advice::WillNeed] {
        assert_eq!(errno(named.advise(advice, 0, 0)), Errno::BADF);
        assert_eq!(errno(dir.advise(advice, 0, 0)), Errno::BADF);
    }
}

#[test]
fn what_was_closed_takes_no_room_and_is_held_by_nobody() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let (files, root) = (one.files(), one.files().root());
    let before = other.files().statfs().unwrap().blocks_free;
    for round in 1..=20 {
        let file = create(files, "file");
        file.write(&vec![1; 1 << 20]).unwrap();
        files.unlink(&root, b"file").unwrap();
        assert!(other.files().statfs().unwrap().blocks_free < before);
        drop(file);
        assert!(other.files().statfs().unwrap().blocks_free + 8 >= before, "round {round}");
    }
    // More at once than a lane has room for, by threads that have no lane yet.
    let closed = closes(&other).0;
    let many: Vec<_> = (0..600).map(|_| create(files, "file")).collect();
    std::thread::scope(|scope| {
        let mut rest = many.into_iter();
        for _ in 0..3 {
            let some: Vec<_> = rest.by_ref().take(200).collect();
            scope.spawn(move || drop(some));
        }
    });
    assert_eq!(closes(&other), (closed + 600, 0));
}

#[test]
fn who_waits_for_a_close_sees_it_at_once() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let theirs = create(other.files(), "file");
    let get = |what| {
        let (class, got): (_, Result<(), FsError>) = match what {
            0 => ("flock", theirs.flock(Some(LockKind::Exclusive), Wait::No)),
            1 => ("ofd", theirs.ofd_lock(LockRange::ALL, Some(LockKind::Exclusive), Wait::No)),
            _ => ("stored", {
                let mut byte = [0];
                theirs.pread(&mut byte, 1).unwrap();
                (byte == *b"s").then_some(()).ok_or(FsError::WouldBlock)
            }),
        };
        got.map_err(|error| format!("{class}: {error}"))
    };
    for what in 0..3 {
        let mine = create(one.files(), "file");
        match what {
            0 => mine.flock(Some(LockKind::Exclusive), Wait::No).unwrap(),
            1 => mine.ofd_lock(LockRange::ALL, Some(LockKind::Shared), Wait::No).unwrap(),
            _ => {
                mine.write(b"    ").unwrap();
                let fd = mine.map(true).unwrap().fd;
                let fd = rustix::fd::AsFd::as_fd(&*fd);
                let memory = nvmed_sys::Mapping::shared(fd, 0, PAGE, nvmed_sys::Pages::Base).unwrap();
                memory.write(1, b"s");
            }
        }
        drop(mine);
        get(what).unwrap();
        theirs.flock(None, Wait::No).unwrap();
        theirs.ofd_lock(LockRange::ALL, None, Wait::No).unwrap();
    }
}

#[test]
fn a_lock_excludes_another_process_and_its_release_wakes_it() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let (mine, theirs) = (create(one.files(), "file"), create(other.files(), "file"));
    let range = LockRange { start: 0, end: 10 };
    mine.posix_lock(range, Some(LockKind::Exclusive), Wait::No).unwrap();
    let refused = theirs.posix_lock(range, Some(LockKind::Shared), Wait::No);
    assert!(matches!(refused, Err(FsError::WouldBlock)));
    let held = theirs.posix_getlk(range, LockKind::Shared).unwrap();
    assert_eq!(held.map(|held| (held.kind, held.range)), Some((LockKind::Exclusive, range)));
    let asked = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let never = || {
            asked.fetch_add(1, Ordering::Relaxed);
            false
        };
        let waiter =
            scope.spawn(move || theirs.posix_lock(range, Some(LockKind::Exclusive), Wait::Until(&never)));
        until("it waits", || asked.load(Ordering::Relaxed) > 0);
        // The description stays; a close of any descriptor of the process lets go of its record locks.
        mine.closed_by_process();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_circle_of_waits_is_told_and_who_has_given_up_is_in_none() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let files = |session: &Session| (create(session.files(), "a"), create(session.files(), "b"));
    let ((mine, wanted), (mine_too, theirs)) = (files(&one), files(&other));
    let exclusive = Some(LockKind::Exclusive);
    mine.posix_lock(LockRange::ALL, exclusive, Wait::No).unwrap();
    theirs.posix_lock(LockRange::ALL, exclusive, Wait::No).unwrap();
    let (asked, gives_up) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let cancelled = || {
                asked.fetch_add(1, Ordering::Relaxed);
                gives_up.load(Ordering::Relaxed)
            };
            wanted.posix_lock(LockRange::ALL, exclusive, Wait::Until(&cancelled))
        });
        until("it waits", || asked.load(Ordering::Relaxed) > 0);
        let closes = mine_too.posix_lock(LockRange::ALL, exclusive, Wait::Until(&|| false));
        assert_eq!(errno(closes), Errno::DEADLK);
        gives_up.store(true, Ordering::Relaxed);
        assert!(matches!(waiter.join().unwrap(), Err(FsError::Interrupted)));
    });
    let waits = mine_too.posix_lock(LockRange::ALL, exclusive, Wait::Until(&|| true));
    assert!(matches!(waits, Err(FsError::Interrupted)), "nobody waits for it");
}

#[test]
fn a_wait_for_a_lock_ends_when_it_is_cancelled_and_when_its_holder_dies() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let (mine, theirs) = (create(one.files(), "file"), create(other.files(), "file"));
    mine.flock(Some(LockKind::Exclusive), Wait::No).unwrap();
    let interrupted = AtomicBool::new(false);
    let until_then = || interrupted.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.flock(Some(LockKind::Shared), Wait::Until(&until_then)));
        interrupted.store(true, Ordering::Relaxed);
        assert!(matches!(waiter.join().unwrap(), Err(FsError::Interrupted)));
        let waiter = scope.spawn(|| theirs.flock(Some(LockKind::Shared), Wait::Until(&|| false)));
        // The process is gone, whatever it held.
        drop((mine, one));
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn two_that_convert_their_locks_do_not_wait_for_each_other() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let files = [create(one.files(), "file"), create(other.files(), "file")];
    for file in &files {
        file.flock(Some(LockKind::Shared), Wait::No).unwrap();
    }
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                file.flock(Some(LockKind::Exclusive), Wait::Until(&|| false)).unwrap();
                file.flock(None, Wait::No).unwrap();
            });
        }
    });
}

#[test]
fn what_is_mapped_is_the_file() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.write(&[1; PAGE]).unwrap();
    let mapped = file.map(true).unwrap();
    let memory =
        nvmed_sys::Mapping::shared(rustix::fd::AsFd::as_fd(&*mapped.fd), 0, PAGE, nvmed_sys::Pages::Base)
            .unwrap();
    assert_eq!(memory.u8(100).load(Ordering::Relaxed), 1);
    memory.write(10, b"stored");
    file.msync(0, PAGE as u64).unwrap();
    let mut into = [0; 6];
    file.pread(&mut into, 10).unwrap();
    assert_eq!(&into, b"stored");
    file.unmap(true).unwrap();
    assert_eq!(errno(file.unmap(true)), Errno::INVAL);
}

#[test]
fn many_threads_call_at_once() {
    let shared = serve();
    let session = shared.session();
    let files = session.files();
    std::thread::scope(|scope| {
        for thread in 0..80u8 {
            scope.spawn(move || {
                let file = create(files, &format!("file{thread}"));
                for round in 0..20 {
                    file.pwrite(&[thread; 100], round * 100).unwrap();
                }
                let mut into = [0; 2000];
                assert_eq!(file.pread(&mut into, 0).unwrap(), 2000);
                assert!(into.iter().all(|&byte| byte == thread));
            });
        }
    });
}

#[test]
fn without_its_server_every_call_fails_at_once() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.write(&[1; 2 * PAGE]).unwrap();
    let mut into = [0; 100];
    for _ in 0..5 {
        file.pread(&mut into, 0).unwrap();
    }
    std::thread::scope(|scope| {
        let holder = shared.session();
        let held = create(holder.files(), "file");
        held.flock(Some(LockKind::Exclusive), Wait::No).unwrap();
        let waiter = scope.spawn(|| file.flock(Some(LockKind::Exclusive), Wait::Until(&|| false)));
        shared.board.set_dead();
        assert_eq!(errno(waiter.join().unwrap()), Errno::IO, "a wait for a lock");
    });
    assert_eq!(errno(file.pread(&mut into, 0)), Errno::IO, "a cached read");
    assert_eq!(errno(file.write(b"x")), Errno::IO);
    assert_eq!(errno(session.files().open(&session.files().root(), b"file", NEW, 0)), Errno::IO);
}

#[test]
fn a_stranger_is_refused() {
    let shared = serve();
    let nobody = nvmed_client::Address::random().unwrap();
    let error = nvmed_client::Session::connect(&nobody).unwrap_err();
    assert_eq!(error.errno(), Errno::IO);
    assert!(error.to_string().contains("no server listens"), "{error}");
    let text = shared.address.to_string();
    let wrong = format!("{}{}", &text[..text.len() - 2], if text.ends_with("00") { "01" } else { "00" });
    let stranger = nvmed_client::Address::parse(&wrong).unwrap();
    assert_eq!(nvmed_client::Session::connect(&stranger).unwrap_err().errno(), Errno::ACCESS);
}
