//! What a process hands to its child, to the program it executes, and in a message.

mod support;

use nvmed_client::{Received, Session};
use nvmed_fs::{LockKind, LockRange, OpenFlags, Wait, Whence};
use rustix::fd::AsFd;
use rustix::io::Errno;
use support::{PAGE, create, errno, serve};

/// Runs `child` in a forked process that goes on with an heir of what `files` are; its answer is the exit status.
fn fork(session: &Session, files: &[&nvmed_client::File], child: impl FnOnce() -> u8) -> i32 {
    for file in files {
        file.share();
    }
    let held: Vec<_> = files.iter().map(|file| (-1, file.handle().unwrap())).collect();
    let heir = session.heir(&held, None, false).unwrap();
    session.before_fork();
    // SAFETY: libc's fork makes its allocator usable in the child, which takes no other lock of this process's
    // other threads, and ends without their destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = session.after_fork_in_child(Some(heir)).map_or(99, |()| child());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status.into()) };
    }
    session.after_fork();
    drop(heir);
    let mut status = 0;
    // SAFETY: `status` is writable and lives on this stack.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child ended by a signal: {status}");
    libc::WEXITSTATUS(status)
}

#[test]
fn parent_and_child_share_the_offset() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.write(b"parent.").unwrap();
    let status = fork(&session, &[&file], || {
        let same = file.position().is_ok_and(|at| at == 7);
        let wrote = file.write(b"child.").is_ok_and(|bytes| bytes == 6);
        u8::from(!(same && wrote))
    });
    assert_eq!(status, 0);
    assert_eq!(file.write(b"parent.").unwrap(), 7);
    let mut into = [0; 100];
    assert_eq!(file.pread(&mut into, 0).unwrap(), 20);
    assert_eq!(&into[..20], b"parent.child.parent.");
}

#[test]
fn a_child_reads_through_its_parents_windows_and_sees_what_changes() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.pwrite(&[1; 4 * PAGE], 0).unwrap();
    let mut into = [0; PAGE];
    for round in 0..20u64 {
        file.pread(&mut into, round % 4 * PAGE as u64).unwrap();
    }
    let status = fork(&session, &[&file], || {
        let mut into = [0; PAGE];
        let old = file.pread(&mut into, 0).is_ok() && into[0] == 1;
        let new = file.pwrite(&[2; PAGE], 0).is_ok() && file.pread(&mut into, 0).is_ok() && into[0] == 2;
        u8::from(!(old && new))
    });
    assert_eq!(status, 0);
    file.pread(&mut into, 0).unwrap();
    assert_eq!(into[0], 2);
}

#[test]
fn a_child_without_an_heir_has_errors_and_no_faults() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.write(b"text").unwrap();
    // SAFETY: as in `fork` above.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let before = file.pread(&mut [0; 4], 0).is_err_and(|error| error.errno() == Errno::IO);
        let refused = session.after_fork_in_child(None).is_err();
        let after = file.write(b"x").is_err_and(|error| error.errno() == Errno::IO);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(before && refused && after))) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable and lives on this stack.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    assert_eq!(file.write(b"!").unwrap(), 1, "the parent goes on");
}

#[test]
fn forks_while_other_threads_call() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (session, done) = (&session, &done);
            scope.spawn(move || {
                let file = create(session.files(), &format!("thread{thread}"));
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    file.write(&[1; 5000]).unwrap();
                    let mut into = [0; 5000];
                    file.pread(&mut into, 0).unwrap();
                    file.seek(0, Whence::Set).unwrap();
                }
            });
        }
        for _ in 0..20 {
            let status = fork(&session, &[&file], || u8::from(file.write(b"child").is_err()));
            assert_eq!(status, 0);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(file.stat().unwrap().size, 100);
}

#[test]
fn an_executed_program_has_the_descriptors_the_offset_and_the_locks() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.write(b"before").unwrap();
    let range = LockRange { start: 0, end: 10 };
    file.posix_lock(range, Some(LockKind::Exclusive), Wait::No).unwrap();
    session.files().mkdir(&session.files().root(), b"dir", 0o755).unwrap();
    let dir = session.files().lookup(&session.files().root(), b"dir", nvmed_fs::Follow::Yes).unwrap();
    file.share();
    let heir = session
        .heir(&[(5, file.handle().unwrap()), (7, file.handle().unwrap())], Some(dir.handle().unwrap()), true)
        .unwrap();
    // Of the program before, exec leaves nothing but the heir; its values are not dropped.
    let before = std::mem::ManuallyDrop::new((session, file, dir));
    let (session, welcome) = Session::adopt(heir).unwrap();
    assert!(before.1.stat().is_err(), "its session has ended");
    let numbers: Vec<i32> = welcome.held.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [5, 7]);
    let Received::File(file) = session.inherited(&welcome.held[0].1).unwrap() else { panic!("it is a file") };
    assert_eq!(file.position().unwrap(), 6);
    file.write(b", after").unwrap();
    let other = shared.session();
    let theirs = create(other.files(), "file");
    assert!(
        theirs.posix_lock(range, Some(LockKind::Shared), Wait::No).is_err(),
        "the process has the lock still"
    );
    let Received::Node(cwd) = session.inherited(&welcome.cwd.unwrap()).unwrap() else {
        panic!("it is a directory")
    };
    assert_eq!(session.files().path_of(&cwd).unwrap(), b"/dir");
}

#[test]
fn more_open_files_than_one_message_names_are_inherited() {
    let shared = serve();
    let session = shared.session();
    // A message has room for about 16,000.
    let files: Vec<_> = (0..25_000).map(|_| create(session.files(), "file")).collect();
    let last = &files[files.len() - 1];
    last.write(b"parent.").unwrap();
    let all: Vec<&nvmed_client::File> = files.iter().map(|file| &**file).collect();
    let status = fork(&session, &all, || u8::from(last.write(b"child.").is_err()));
    assert_eq!(status, 0);
    assert_eq!(last.position().unwrap(), 13);
    let numbered: Vec<_> =
        (0i32..).zip(&files).map(|(number, file)| (number, file.handle().unwrap())).collect();
    let heir = session.heir(&numbered, None, true).unwrap();
    let _before = std::mem::ManuallyDrop::new((files, session));
    let (session, welcome) = Session::adopt(heir).unwrap();
    let told: Vec<_> = welcome.held.iter().map(|(number, what)| (*number, what.handle)).collect();
    assert_eq!(told, numbered);
    let (_, last) = welcome.held.last().unwrap();
    let Received::File(last) = session.inherited(last).unwrap() else { panic!("it is a file") };
    assert_eq!(last.position().unwrap(), 13);
}

#[test]
fn a_process_that_adopts_gets_its_lane_at_once() {
    let shared = serve();
    let session = shared.session();
    let has_lanes = |count: u64| {
        let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
        told["lanes"]["open"] == count
    };
    assert!(has_lanes(1));
    let root = session.files().root();
    let waiting = session.heir(&[], Some(root.handle().unwrap()), false).unwrap();
    assert!(has_lanes(1), "the parent's, and none for an heir that waits");
    let (heir, welcome) = Session::adopt(waiting).unwrap();
    assert_eq!(welcome.cwd.unwrap().handle, root.handle().unwrap());
    assert_eq!(heir.files().root().ino(), root.ino());
    assert!(has_lanes(2), "it is there before the first call");
    assert_eq!(heir.files().root().stat().unwrap().ino, root.ino());
    assert!(has_lanes(2));
}

#[test]
fn what_is_sent_is_received_by_another_process() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let mine = create(one.files(), "file");
    mine.write(b"hello").unwrap();
    mine.share();
    let token = one.send(mine.handle().unwrap()).unwrap();
    assert!(rustix::io::read(&token, &mut [0; 1]).is_err());
    let Received::File(theirs) = other.receive(token.as_fd()).unwrap() else { panic!("it is a file") };
    theirs.write(b", world").unwrap();
    assert_eq!(mine.position().unwrap(), 12, "one offset for both");
    let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(errno(other.receive(memory.as_fd()).map(drop)), Errno::BADF);
}

#[test]
fn ids_are_told_again() {
    let shared = serve();
    let session = shared.session();
    session.again(&shared.address).unwrap();
    let file = session.files().open(
        &session.files().root(),
        b"file",
        support::NEW.with(OpenFlags::EXCLUSIVE),
        0o600,
    );
    assert_eq!(file.unwrap().stat().unwrap().uid, rustix::process::geteuid().as_raw());
}

#[test]
fn more_than_an_exec_hands_on_is_refused_and_the_session_goes_on() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    let held: Vec<_> = (0..65_537).map(|number| (number, file.handle().unwrap())).collect();
    assert_eq!(errno(session.heir(&held, None, true)), Errno::TOOBIG);
    assert_eq!(file.write(b"on").unwrap(), 2);
    assert!(session.heir(&held[1..], None, true).is_ok());
}
