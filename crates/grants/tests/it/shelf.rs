//! What users of one device find without a call (docs/spec/shelf.md): each what he may see and nothing else, as long as
//! he may.

use crate::machine::{ALICE, BOB, Machine, as_user};
use crate::support::{Client, until};
use nvmed_client::{File, FileSystem, Session};
use nvmed_fs::{Follow, FsError, Object, OpenFlags, RenameFlags, Stat};
use nvmed_grants::{Quota, Request, Size, TreeGrant};
use nvmed_server::Limits;
use nvmed_wire::{Control, SHELF_BYTES_AT_ONCE};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const NEW: OpenFlags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
const DIRECTORY: OpenFlags = OpenFlags::READ.with(OpenFlags::DIRECTORY);
/// Behind names and cards, and the first leaves: of files, listings and targets.
const FILLED_BYTES: u64 = 16 << 20;

fn told(session: &Session) -> serde_json::Value {
    serde_json::from_str(&session.statistics().unwrap()).unwrap()
}

/// How many calls of any kind the server has answered.
fn calls(session: &Session) -> u64 {
    let told = told(session);
    told["calls"].as_array().unwrap().iter().map(|kind| kind["count"].as_u64().unwrap()).sum()
}

/// Classes that have a shelf, bytes of files on all, inodes that are kept.
fn shelves(session: &Session) -> [u64; 3] {
    let told = told(session);
    ["classes", "bytes", "kept"].map(|key| told["shelves"][key].as_u64().unwrap())
}

fn stat(files: &FileSystem, path: &str) -> Result<Stat, FsError> {
    files.stat(&files.root(), path.as_bytes(), Follow::Yes)
}

fn open(files: &FileSystem, path: &str) -> Result<Arc<File>, FsError> {
    files.open(&files.root(), path.as_bytes(), OpenFlags::READ, 0)
}

fn create(files: &FileSystem, path: &str, bytes: &[u8]) {
    let file = files.open(&files.root(), path.as_bytes(), NEW, 0o644).unwrap();
    assert_eq!(file.write(bytes).unwrap(), bytes.len());
}

fn whole(files: &FileSystem, path: &str) -> Vec<u8> {
    let file = open(files, path).unwrap();
    let mut bytes = vec![0; SHELF_BYTES_AT_ONCE];
    let read = file.read(&mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

fn errno<T>(result: Result<T, FsError>) -> Errno {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.errno(),
    }
}

/// Does the same until it makes no call any more: a read renews the access time until the clock has moved on.
fn until_no_call(what: &str, session: &Session, mut act: impl FnMut()) {
    until(what, || {
        let before = calls(session);
        act();
        calls(session) == before
    });
}

impl Machine {
    fn client(&self, user: u32, tree: &str) -> Session {
        let session = || Session::connect_tree(&self.address, tree.as_bytes()).unwrap();
        let session = if user == 0 { session() } else { as_user(user, session) };
        // It asks for its shelf at some call of many.
        (0..8).for_each(|_| assert_eq!(errno(stat(session.files(), "not there")), Errno::NOENT));
        session
    }

    /// The memory of a user's shelf, as a process has it that ends with this call.
    fn memory(&self, user: u32, tree: &str) -> OwnedFd {
        let ask = |client: Client| client.control(&Control::Shelf).unwrap().unwrap();
        as_user(user, || ask(self.session(tree)))
    }

    /// A tree of both users, in which each may change everything.
    fn grant_both(&self, name: &str) {
        let grant = TreeGrant {
            name: name.to_owned(),
            path: format!("/{name}"),
            users: vec![ALICE, BOB],
            groups: vec![],
            write: true,
            urgent: false,
            capacity: None,
            inodes: None,
        };
        self.ask(Request::GrantTree(grant));
        let root = self.client(0, "");
        let path = format!("/{name}");
        root.files().chmod(Object::At(&root.files().root(), path.as_bytes(), Follow::Yes), 0o777).unwrap();
    }
}

/// What is in the names, the cards and the first leaves of a shelf.
fn filled(memory: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; FILLED_BYTES as usize];
    assert_eq!(rustix::io::pread(memory, &mut bytes, 0), Ok(bytes.len()));
    bytes
}

fn has(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|there| there == what)
}

#[test]
fn what_a_user_asked_before_makes_no_call() {
    let Some(machine) = Machine::new("spared") else { return };
    let users = [("alice", ALICE), ("bob", BOB)];
    users.iter().for_each(|(name, user)| machine.grant(name, *user, true));
    let sessions = users.map(|(name, user)| (name, machine.client(user, "")));
    let round = |name: &str, session: &Session| {
        let files = session.files();
        assert_eq!(stat(files, "dir/file").unwrap().size, 3 * PAGE as u64);
        assert_eq!(errno(stat(files, "dir/none")), Errno::NOENT);
        assert_eq!(whole(files, "dir/file"), name.repeat(PAGE).as_bytes()[..3 * PAGE]);
        assert!(open(files, "dir").unwrap().stat().unwrap().nlink > 0);
    };
    for (name, session) in &sessions {
        let files = session.files();
        files.mkdir(&files.root(), b"dir", 0o755).unwrap();
        create(files, "dir/file", &name.repeat(PAGE).as_bytes()[..3 * PAGE]);
    }
    for _ in 0..3 {
        let all = || sessions.iter().for_each(|(name, session)| round(name, session));
        until_no_call("both find what they asked for", &sessions[0].1, all);
    }
    // A second process of a user's finds what the first one asked for.
    let other = machine.client(ALICE, "alice");
    until_no_call("so does another process", &other, || round("alice", &other));
}

#[test]
fn no_class_has_what_another_was_answered() {
    let Some(machine) = Machine::new("classes") else { return };
    machine.grant("alice", ALICE, true);
    machine.grant("bob", BOB, true);
    machine.grant("second", ALICE, true);
    machine.grant("second-to-read", BOB, false);
    let alice = machine.client(ALICE, "alice");
    let bob = machine.client(BOB, "bob");
    create(alice.files(), "hers alone", b"the bytes of hers");
    for _ in 0..4 {
        assert_eq!(whole(alice.files(), "hers alone"), b"the bytes of hers");
        assert_eq!(errno(stat(bob.files(), "hers alone")), Errno::NOENT);
        assert_eq!(errno(stat(bob.files(), "asked by him")), Errno::NOENT);
    }
    let memory = machine.memory(ALICE, "alice");
    for what in [&b"hers alone"[..], b"the bytes of hers"] {
        assert!(has(&filled(&memory), what), "this is where it would be found");
    }
    let inode = |memory: &OwnedFd| rustix::fs::fstat(memory).unwrap().st_ino;
    for (user, tree) in [(BOB, "bob"), (ALICE, "second"), (BOB, "second-to-read")] {
        let _one = machine.client(user, tree);
        let other = machine.memory(user, tree);
        assert_ne!(inode(&other), inode(&memory), "{tree}");
        let bytes = filled(&other);
        assert!(!has(&bytes, b"hers alone") || tree == "bob", "{tree}");
        assert!(!has(&bytes, b"the bytes of hers"), "{tree}");
        assert_eq!(has(&bytes, b"asked by him"), tree == "bob", "{tree}");
    }
}

#[test]
fn a_revoked_user_finds_nothing_more() {
    let Some(machine) = Machine::new("revoked") else { return };
    machine.grant("alice", ALICE, true);
    let session = machine.client(ALICE, "");
    let files = session.files();
    create(files, "file", b"hers");
    let mut opened = Vec::new();
    let act = || {
        assert_eq!(whole(files, "file"), b"hers");
        opened = vec![open(files, "file").unwrap(); 2];
    };
    until_no_call("it is all found without a call", &session, act);
    let memory = machine.memory(ALICE, "alice");
    assert!(has(&filled(&memory), b"file"));
    // Another quota takes nothing away.
    let limits = Quota { capacity: Some(Size(1 << 20)), ..Quota::default() };
    machine.ask(Request::Quota { name: "alice".to_owned(), limits });
    assert_eq!(whole(files, "file"), b"hers");
    machine.ask(Request::Revoke { name: "alice".to_owned() });
    let mut byte = [0];
    assert_eq!(errno(opened[0].stat()), Errno::IO);
    assert_eq!(errno(opened[0].pread(&mut byte, 0)), Errno::IO);
    assert_eq!(errno(stat(files, "file")), Errno::IO);
    assert_eq!(errno(open(files, "file")), Errno::IO);
    assert_eq!(errno(stat(files, "none")), Errno::IO);
    assert!(filled(&memory).iter().all(|byte| *byte == 0), "nor does who looks for himself");
    drop((opened, session));
    assert_eq!(shelves(&machine.client(0, "")), [1, 0, 0]);
}

#[test]
fn a_tree_to_read_is_read_without_calls_and_without_a_trace() {
    let Some(machine) = Machine::new("to-read") else { return };
    machine.grant("alice", ALICE, false);
    let root = machine.client(0, "");
    create(root.files(), "alice/file", b"to read");
    let chmod = |mode| {
        let file = Object::At(&root.files().root(), b"alice/file", Follow::Yes);
        root.files().chmod(file, mode).unwrap();
    };
    chmod(0o666);
    let before = stat(root.files(), "alice/file").unwrap();
    let session = machine.client(ALICE, "");
    let files = session.files();
    let round = || {
        assert_eq!(whole(files, "file"), b"to read");
        let file = Object::At(&files.root(), b"file", Follow::Yes);
        files.access(file, 4, false).unwrap();
    };
    (0..3).for_each(|_| round());
    let made = calls(&root);
    (0..9).for_each(|_| round());
    assert_eq!(calls(&root), made, "no access time is older than it should be");
    let file = Object::At(&files.root(), b"file", Follow::Yes);
    assert_eq!(errno(files.access(file, 2, false)), Errno::ROFS);
    assert_eq!(errno(files.open(&files.root(), b"file", NEW, 0)), Errno::ROFS);
    assert_eq!(stat(root.files(), "alice/file").unwrap(), before, "nothing was renewed");
    // What was opened by a post is open to be read, also when the server takes it over.
    let opened = open(files, "file").unwrap();
    chmod(0o600);
    assert_eq!(errno(opened.write(b"x")), Errno::BADF);
    assert_eq!(opened.pread(&mut [0; 9], 0).unwrap(), 7);
    assert_eq!(errno(open(files, "file")), Errno::ACCESS);
}

#[test]
fn a_directory_that_leaves_a_users_tree_answers_nothing() {
    let Some(machine) = Machine::new("moved") else { return };
    machine.grant("alice", ALICE, true);
    let (root, session) = (machine.client(0, ""), machine.client(ALICE, ""));
    let (files, theirs) = (session.files(), root.files());
    files.mkdir(&files.root(), b"dir", 0o755).unwrap();
    create(files, "dir/file", b"hers");
    let directory = files.open(&files.root(), b"dir", DIRECTORY, 0).unwrap().node();
    let at = |name: &[u8]| files.stat(&directory, name, Follow::Yes);
    let rename = |from: &[u8], to: &[u8]| {
        theirs.rename(&theirs.root(), from, &theirs.root(), to, RenameFlags::Replace).unwrap();
    };
    for _ in 0..3 {
        until_no_call("it is on the shelf", &root, || assert_eq!(at(b"file").unwrap().size, 4));
        rename(b"alice/dir", b"away");
        // Nothing of it comes to the shelf either: she would learn when what is above it changes.
        let before = calls(&root);
        (0..3).for_each(|_| assert_eq!(errno(at(b"file")), Errno::NOENT));
        assert!(calls(&root) >= before + 3);
        rename(b"away", b"alice/dir");
        assert_eq!(at(b"file").unwrap().size, 4);
        // The tree's own directory may be anywhere.
        rename(b"alice", b"elsewhere");
        assert_eq!(at(b"file").unwrap().size, 4);
        rename(b"elsewhere", b"alice");
    }
}

/// What takes a file its name.
type Remove<'a> = &'a dyn Fn(&FileSystem, &[u8]);

#[test]
fn what_another_user_removes_is_read_on_by_who_has_it_open() {
    let Some(machine) = Machine::new("removed") else { return };
    machine.grant_both("shared");
    let (alice, root) = (machine.client(ALICE, ""), machine.client(0, ""));
    let (bob, files) = (machine.client(BOB, ""), alice.files());
    let remove: [(&Session, &str, Remove<'_>); 3] = [
        (&bob, "file", &|theirs, path| theirs.unlink(&theirs.root(), path).unwrap()),
        (&bob, "file", &|theirs, path| {
            create(theirs, "new", b"new");
            theirs.rename(&theirs.root(), b"new", &theirs.root(), path, RenameFlags::Replace).unwrap();
        }),
        (&root, "shared/file", &|theirs, path| theirs.unlink(&theirs.root(), path).unwrap()),
    ];
    let mut open_still = Vec::new();
    for (round, (who, path, remove)) in remove.into_iter().enumerate() {
        let bytes = [round as u8; 2 * PAGE];
        create(who.files(), path, &bytes);
        if who.files().root().ino() == root.files().root().ino() {
            let file = Object::At(&who.files().root(), path.as_bytes(), Follow::Yes);
            who.files().chmod(file, 0o644).unwrap();
        }
        // All three keep it.
        until_no_call("all have it", &root, || {
            assert_eq!(whole(files, "file"), bytes);
            assert_eq!(whole(bob.files(), "file"), bytes);
            assert_eq!(whole(root.files(), "shared/file"), bytes);
        });
        let before = calls(&root);
        let opened = open(files, "file").unwrap();
        assert_eq!(calls(&root), before, "it was opened by a post");
        remove(who.files(), path.as_bytes());
        let mut read = [9; 3 * PAGE];
        assert_eq!(opened.pread(&mut read, 0).unwrap(), 2 * PAGE, "round {round}");
        assert_eq!(read[..2 * PAGE], bytes);
        assert_eq!(opened.stat().unwrap().nlink, 0);
        open_still.push(opened);
        let gone = root.files().unlink(&root.files().root(), b"shared/file");
        assert_eq!(gone.is_ok(), round == 1);
    }
}

#[test]
fn a_class_ends_with_its_last_session() {
    let Some(machine) = Machine::new("ended") else { return };
    machine.grant("alice", ALICE, true);
    let root = machine.client(0, "");
    until_no_call("root has what it has", &root, || assert!(stat(root.files(), "alice").is_ok()));
    let before = shelves(&root);
    // Of 128 pages she may have 32: what was not given back is missed after a few rounds.
    let path = |number: u64| format!("f{number}");
    for round in 0..12 {
        let (one, other) = (machine.client(ALICE, ""), machine.client(ALICE, ""));
        (0..5).for_each(|number| create(one.files(), &path(number), &[number as u8; 4 * PAGE]));
        let read = || {
            for number in 0..5 {
                assert_eq!(whole(other.files(), &path(number)), [number as u8; 4 * PAGE]);
            }
        };
        until_no_call("they are on her shelf", &root, read);
        drop(one);
        let now = shelves(&root);
        assert_eq!(now[0], before[0] + 1, "round {round}: the other one is there");
        assert!(now[1] >= before[1] + 20 * PAGE as u64 && now[2] >= before[2] + 5, "{now:?}");
        drop(other);
        until("nothing of it is left", || shelves(&root) == before);
    }
}

#[test]
fn classes_that_begin_and_end_meanwhile_keep_nobody_from_removing() {
    let Some(machine) = Machine::new("brief") else { return };
    machine.grant_both("shared");
    let root = machine.client(0, "");
    let files = root.files();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for user in [ALICE, BOB, ALICE] {
            let (machine, over) = (&machine, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let session = machine.client(user, "");
                    for number in 0..8 {
                        let path = format!("f{}", number % 4);
                        // One that is open is read to its end, whatever becomes of its name.
                        if let Ok(file) = open(session.files(), &path) {
                            assert_eq!(file.pread(&mut [0; PAGE], 0).unwrap(), 100, "{path}");
                        }
                    }
                }
            });
        }
        for round in 0..300 {
            let path = format!("shared/f{}", round % 4);
            create(files, "shared/new", &[1; 100]);
            let to = path.as_bytes();
            files.rename(&files.root(), b"shared/new", &files.root(), to, RenameFlags::Replace).unwrap();
            if round % 3 == 0 {
                files.unlink(&files.root(), to).unwrap();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    until("only root's class is left", || shelves(&root)[0] == 1);
}

#[test]
fn a_user_has_his_share_of_shelves_and_leaves_others_theirs() {
    let limits = Limits { shelves: 1, kept: 3, ..Limits::MACHINE };
    let Some(machine) = Machine::within("shelved", limits) else { return };
    machine.grant("alice", ALICE, true);
    machine.grant("second", ALICE, true);
    machine.grant("bob", BOB, true);
    let (bob, root) = (machine.client(BOB, ""), machine.client(0, ""));
    create(bob.files(), "his", &[8; 4 * PAGE]);
    until_no_call("he has his", &root, || assert_eq!(whole(bob.files(), "his"), [8; 4 * PAGE]));
    let [_, bytes, kept] = shelves(&root);
    let alice = machine.client(ALICE, "alice");
    let path = |number: u64| format!("f{number}");
    (0..40).for_each(|number| create(alice.files(), &path(number), &[number as u8; 4 * PAGE]));
    for _ in 0..4 {
        for number in 0..40 {
            assert_eq!(whole(alice.files(), &path(number)), [number as u8; 4 * PAGE]);
        }
    }
    let now = shelves(&root);
    let hers = (now[1] - bytes) / PAGE as u64;
    assert!((16..=32).contains(&hers), "a quarter of 128 pages: {hers}");
    assert_eq!(now[2] - kept, 3, "and three that she may open by posts");
    let second = machine.client(ALICE, "second");
    assert_eq!(shelves(&root)[0], now[0], "one shelf");
    create(second.files(), "file", b"by calls");
    let before = calls(&root);
    (0..3).for_each(|_| assert_eq!(whole(second.files(), "file"), b"by calls"));
    assert!(calls(&root) > before, "her second tree is served by calls");
    let before = calls(&root);
    assert_eq!(whole(bob.files(), "his"), [8; 4 * PAGE]);
    assert_eq!(calls(&root), before, "and his file is where it was");
    drop(alice);
    until("her first shelf is free", || shelves(&root)[0] < now[0]);
    let third = machine.client(ALICE, "second");
    until_no_call("her second tree may have it", &root, || assert!(stat(third.files(), "file").is_ok()));
}

#[test]
fn a_process_that_becomes_another_user_finds_what_that_one_may() {
    let Some(machine) = Machine::new("again") else { return };
    machine.grant_both("shared");
    let (root, session) = (machine.client(0, ""), machine.client(ALICE, ""));
    let files = session.files();
    create(files, "hers", b"hers");
    files.chmod(Object::At(&files.root(), b"hers", Follow::Yes), 0o600).unwrap();
    until_no_call("she reads it", &root, || assert_eq!(whole(files, "hers"), b"hers"));
    let opened = open(files, "hers").unwrap();
    let before = shelves(&root);
    as_user(BOB, || session.again(&machine.address)).unwrap();
    assert_eq!(shelves(&root)[0], before[0] - 1, "her class is over");
    let his = || {
        assert_eq!(stat(files, "hers").unwrap().size, 4);
        assert_eq!(errno(open(files, "hers")), Errno::ACCESS);
        let file = Object::At(&files.root(), b"hers", Follow::Yes);
        assert_eq!(errno(files.access(file, 4, false)), Errno::ACCESS);
        assert_eq!(opened.pread(&mut [0; 9], 0).unwrap(), 4, "what was open stays so");
    };
    (0..8).for_each(|_| his());
    assert_eq!(shelves(&root)[0], before[0], "he has his own");
    until_no_call("he finds what he asked for", &root, || {
        assert_eq!(errno(stat(files, "none")), Errno::NOENT);
    });
}
