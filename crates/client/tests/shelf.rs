//! The shelf: names, status and bytes that make no call are what a call would answer, whatever others do.

mod support;

use nvmed_client::{FileSystem, Object, Session};
use nvmed_dice::Dice;
use nvmed_fs::{Credentials, Follow, FsError, OpenFlags, RenameFlags, Stat, Time, Whence};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{NEW, PAGE, Shared, create, errno, serve};

/// How many calls of these kinds the server has answered.
fn calls<'a>(session: &Session, kinds: &[&'a str]) -> Vec<(&'a str, u64)> {
    let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
    let counts = told["calls"].as_array().unwrap();
    let count = |name: &&'a str| {
        let kind = counts.iter().find(|kind| kind["call"] == **name);
        (*name, kind.map_or(0, |kind| kind["count"].as_u64().unwrap()))
    };
    kinds.iter().map(count).collect()
}

/// Has a session ask for its shelf: by as many calls as that takes.
fn settle(session: &Session) {
    let (files, root) = (session.files(), session.files().root());
    for _ in 0..8 {
        let _ = files.stat(&root, b"not there", Follow::Yes);
    }
}

fn stat(files: &FileSystem, path: &[u8]) -> Result<Stat, FsError> {
    files.stat(&files.root(), path, Follow::Yes)
}

fn whole(files: &FileSystem, path: &[u8]) -> Result<Vec<u8>, FsError> {
    let file = files.open(&files.root(), path, OpenFlags::READ, 0)?;
    let mut bytes = vec![0; 200_000];
    let read = file.read(&mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

#[test]
fn what_was_asked_before_makes_no_call() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    files.mkdir(&root, b"dir", 0o755).unwrap();
    create(files, "dir/file").write(&[7; 3 * PAGE]).unwrap();
    settle(&session);
    let round = || {
        assert_eq!(stat(files, b"dir/file").unwrap().size, 3 * PAGE as u64);
        assert_eq!(whole(files, b"dir/file").unwrap(), [7; 3 * PAGE]);
        assert_eq!(errno(stat(files, b"dir/none")), Errno::NOENT);
        assert_eq!(errno(files.open(&root, b"dir/none", OpenFlags::READ, 0)), Errno::NOENT);
        files.access(Object::At(&root, b"dir/file", Follow::Yes), 4, false).unwrap();
        let file = files.open(&root, b"dir/file", OpenFlags::READ, 0).unwrap();
        assert_eq!(file.stat().unwrap(), stat(files, b"dir/file").unwrap());
        assert_eq!(file.seek(0, Whence::End).unwrap(), 3 * PAGE as u64);
    };
    // A read renews the access time until the clock has moved on from the change.
    support::until("the access time is newer", || {
        round();
        let stat = stat(files, b"dir/file").unwrap();
        stat.atime_ns > stat.ctime_ns
    });
    (0..2).for_each(|_| round());
    let kinds = ["stat", "open", "read", "access", "seek", "claim", "lookup", "close"];
    let before = calls(&other, &kinds);
    (0..100).for_each(|_| round());
    assert_eq!(calls(&other, &kinds), before);
}

/// What is done to a file by name.
type Change<'a> = &'a dyn Fn(&[u8]);

#[test]
fn an_open_that_was_posted_outlives_its_name_and_its_rights() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    settle(&session);
    let theirs = other.files();
    let remove: [(&str, Change<'_>); 3] = [
        ("unlink", &|name| theirs.unlink(&theirs.root(), name).unwrap()),
        ("rename", &|name| {
            create(theirs, "new").write(b"new").unwrap();
            theirs.rename(&theirs.root(), b"new", &theirs.root(), name, RenameFlags::Replace).unwrap();
        }),
        ("chmod", &|name| theirs.chmod(Object::At(&theirs.root(), name, Follow::Yes), 0).unwrap()),
    ];
    for (name, remove) in remove {
        create(theirs, name).write(&[5; 2 * PAGE]).unwrap();
        (0..3).for_each(|_| drop(whole(files, name.as_bytes()).unwrap()));
        let opens = calls(&other, &["open"]);
        let file = files.open(&root, name.as_bytes(), OpenFlags::READ, 0).unwrap();
        let closed = files.open(&root, name.as_bytes(), OpenFlags::READ, 0).unwrap();
        assert_eq!(calls(&other, &["open"]), opens, "{name}: they were posted");
        remove(name.as_bytes());
        drop(closed);
        let mut bytes = [0; 3 * PAGE];
        assert_eq!(file.pread(&mut bytes, 0).unwrap(), 2 * PAGE, "{name}");
        assert_eq!(bytes[..2 * PAGE], [5; 2 * PAGE], "{name}");
        let nlink = file.stat().unwrap().nlink;
        assert_eq!(nlink, u32::from(name == "chmod"), "{name}");
        drop(file);
        match name {
            "unlink" => assert_eq!(errno(stat(files, b"unlink")), Errno::NOENT),
            "rename" => assert_eq!(whole(files, b"rename").unwrap(), b"new"),
            _ => assert_eq!(stat(files, b"chmod").unwrap().mode & 0o777, 0),
        }
    }
    let used = || shared.service.mount().statfs();
    let before = used();
    drop(session);
    support::until("what was unlinked is gone", || used().blocks_free >= before.blocks_free);
}

#[test]
fn the_status_of_what_was_just_opened_makes_no_call_until_it_changes() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let file = create(session.files(), "file");
    let before = calls(&other, &["stat"]);
    assert_eq!(file.stat().unwrap().size, 0);
    assert_eq!(calls(&other, &["stat"]), before);
    let theirs = create(other.files(), "file");
    theirs.write(b"bytes").unwrap();
    assert_eq!(file.stat().unwrap(), theirs.stat().unwrap(), "another process has written");
    assert_eq!(file.stat().unwrap().size, 5);
}

#[test]
fn an_open_that_was_posted_is_inherited() {
    let shared = serve();
    let session = shared.session();
    let (files, root) = (session.files(), session.files().root());
    create(files, "file").write(b"bytes").unwrap();
    settle(&session);
    (0..3).for_each(|_| drop(whole(files, b"file").unwrap()));
    let file = files.open(&root, b"file", OpenFlags::READ, 0).unwrap();
    file.seek(2, Whence::Set).unwrap();
    file.share();
    let heir = session.heir(&[(9, file.handle().unwrap())], None, true).unwrap();
    let (child, welcome) = Session::adopt(heir).unwrap();
    let nvmed_client::Received::File(theirs) = child.inherited(&welcome.held[0].1).unwrap() else { panic!() };
    let mut bytes = [0; 9];
    assert_eq!(theirs.read(&mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"tes");
    assert_eq!(theirs.present_flags().unwrap(), file.flags());
}

#[test]
fn files_that_are_more_than_there_is_room_for_are_read_right() {
    let shared = serve();
    let session = shared.session();
    let (files, root) = (session.files(), session.files().root());
    settle(&session);
    // The shelf has half of 1 MiB.
    let text = |number: usize| vec![number as u8; 1 + number * 173 % (8 * PAGE)];
    for number in 0..200 {
        create(files, &format!("f{number}")).write(&text(number)).unwrap();
    }
    let held: Vec<_> = (0..20).map(|number| (number, format!("f{number}"))).collect();
    let held: Vec<_> = held
        .iter()
        .map(|(number, name)| {
            (0..2).for_each(|_| drop(whole(files, name.as_bytes())));
            (*number, files.open(&root, name.as_bytes(), OpenFlags::READ, 0).unwrap())
        })
        .collect();
    let mut dice = Dice::new(1);
    for _ in 0..4_000 {
        let number = dice.index(200);
        assert_eq!(whole(files, format!("f{number}").as_bytes()).unwrap(), text(number));
        let (number, file) = dice.pick(&held).unwrap();
        let mut bytes = vec![0; 8 * PAGE];
        let read = file.pread(&mut bytes, 0).unwrap();
        assert_eq!(bytes[..read], text(*number));
    }
}

#[test]
fn files_that_are_more_than_there_are_cards_are_told_right() {
    let shared = serve();
    let session = shared.session();
    let (files, root) = (session.files(), session.files().root());
    settle(&session);
    let name = |number: usize| format!("f{number}");
    for number in 0..20_000 {
        let file = create(files, &name(number));
        assert_eq!(file.stat().unwrap().ino, stat(files, name(number).as_bytes()).unwrap().ino);
    }
    let held: Vec<_> =
        (0..50).map(|number| files.open(&root, name(number).as_bytes(), OpenFlags::READ, 0)).collect();
    for number in (0..20_000).rev() {
        let size = stat(files, name(number).as_bytes()).unwrap().size;
        drop(files.open(&root, name(number).as_bytes(), OpenFlags::READ, 0).unwrap());
        assert_eq!(size, 0);
    }
    for (number, file) in held.into_iter().enumerate() {
        files.unlink(&root, name(number).as_bytes()).unwrap();
        assert_eq!(file.unwrap().stat().unwrap().nlink, 0, "{number}");
    }
}

/// Changes something, by chance.
fn change(files: &FileSystem, dice: &mut Dice) {
    let root = files.root();
    let path = |dice: &mut Dice| {
        let depth = 1 + dice.index(3);
        let parts: Vec<_> = (0..depth).map(|_| *dice.pick(&["a", "b", "c"]).unwrap()).collect();
        parts.join("/")
    };
    let (one, two) = (path(dice), path(dice));
    let (one, two) = (one.as_bytes(), two.as_bytes());
    let at = Object::At(&root, one, Follow::Yes);
    // Most of these fail: a name is not there, or is a directory.
    let _ = match dice.roll(12) {
        0 => files.mkdir(&root, one, 0o755),
        1 => files.rmdir(&root, one),
        2 => files.unlink(&root, one),
        3 => files.rename(&root, one, &root, two, RenameFlags::Replace),
        4 => files.rename(&root, one, &root, two, RenameFlags::Exchange),
        5 => files.link(at, &root, two),
        6 => files.symlink(two, &root, one),
        7 => files.chmod(at, dice.roll(0o1000) as u32 | 0o700),
        8 => files.utimens(at, [Time::At(dice.roll(1 << 40) as i64), Time::Now]),
        9 => files.truncate(at, dice.roll(3 * PAGE as u64)),
        _ => files.open(&root, one, NEW, 0o644).and_then(|file| {
            let bytes = vec![dice.next() as u8; 1 + dice.index(3 * PAGE)];
            file.pwrite(&bytes, dice.roll(2 * PAGE as u64)).map(drop)
        }),
    };
}

/// What a session is told, and what the file system says, of every path that [`change`] touches.
fn compare(files: &FileSystem, shared: &Shared, seed: u64, step: usize) {
    let mount = shared.service.mount();
    let who = Credentials { uid: rustix::process::geteuid().as_raw(), ..Credentials::ROOT };
    let parts = ["a", "b", "c"];
    let mut paths: Vec<String> = parts.iter().map(|&one| one.to_owned()).collect();
    paths.extend(parts.iter().flat_map(|one| parts.iter().map(move |two| format!("{one}/{two}"))));
    paths.extend(["a/b/c", "c/b/a", "b/b/b", "a/../b", "a/.", "b/"].map(str::to_owned));
    for path in &paths {
        for follow in [Follow::Yes, Follow::No] {
            let told = files.stat(&files.root(), path.as_bytes(), follow).map_err(|error| error.errno());
            let is = mount.stat(&mount.root(), path.as_bytes(), follow, &who).map_err(|error| error.errno());
            assert_eq!(told, is, "seed {seed}, step {step}: {path}, {follow:?}");
        }
        let told = whole(files, path.as_bytes()).map_err(|error| error.errno());
        let file = mount.open(&mount.root(), path.as_bytes(), OpenFlags::READ, 0, &who);
        let is = file.map_err(|error| error.errno()).and_then(|file| {
            let mut bytes = vec![0; 200_000];
            let read = file.pread(&mut bytes, 0).map_err(|error| error.errno())?;
            bytes.truncate(read);
            Ok(bytes)
        });
        assert!(
            told == is,
            "seed {seed}, step {step}: bytes of {path}: {:?}",
            (told.map(|b| b.len()), is.map(|b| b.len()))
        );
    }
}

#[test]
fn what_is_told_is_what_a_call_would_answer_after_any_change() {
    for seed in 0..8 {
        let shared = serve();
        let (session, other) = (shared.session(), shared.session());
        settle(&session);
        let mut dice = Dice::of(&[seed]);
        for step in 0..150 {
            let by = if dice.chance(30) { &session } else { &other };
            (0..1 + dice.index(3)).for_each(|_| change(by.files(), &mut dice));
            if dice.chance(10) {
                other.files().sync().unwrap();
            }
            compare(session.files(), &shared, seed, step);
        }
    }
}

#[test]
fn a_name_that_others_replace_all_the_time_always_leads_to_one_whole_file() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let theirs = other.files();
    let put = |round: u32| {
        let name = format!("new{}", round % 3);
        let bytes = round.to_le_bytes().repeat(1 + round as usize % 700);
        create(theirs, &name).write(&bytes).unwrap();
        theirs
            .rename(&theirs.root(), name.as_bytes(), &theirs.root(), b"file", RenameFlags::Replace)
            .unwrap();
    };
    put(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut newest = 0;
                    while !over.load(Ordering::Relaxed) {
                        let bytes = whole(session.files(), b"file").unwrap();
                        let round = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                        assert!(bytes.chunks(4).all(|part| part == round.to_le_bytes()), "torn at {round}");
                        assert_eq!(bytes.len(), 4 * (1 + round as usize % 700), "cut at {round}");
                        assert!(round >= newest, "{round} after {newest}");
                        newest = round;
                    }
                })
            })
            .collect();
        (1..3_000).for_each(put);
        over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn nothing_is_told_once_the_server_is_gone() {
    let shared = serve();
    let session = shared.session();
    create(session.files(), "file").write(b"bytes").unwrap();
    settle(&session);
    (0..3).for_each(|_| drop(whole(session.files(), b"file").unwrap()));
    let file = session.files().open(&session.files().root(), b"file", OpenFlags::READ, 0).unwrap();
    shared.board.set_dead();
    assert_eq!(errno(stat(session.files(), b"file")), Errno::IO);
    assert_eq!(errno(file.pread(&mut [0], 0)), Errno::IO);
    assert_eq!(errno(file.stat()), Errno::IO);
}
