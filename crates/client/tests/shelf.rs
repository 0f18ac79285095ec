//! The shelf: names, status and bytes that make no call are what a call would answer, whatever others do.

#[path = "shelf/bytes.rs"]
mod bytes;
#[path = "shelf/following.rs"]
mod following;
mod posted;
#[path = "shelf/spared.rs"]
mod spared;
mod support;

use core::ops::ControlFlow;
use nvmed_client::{File, FileSystem, Object, Received, Session};
use nvmed_dice::Dice;
use nvmed_fs::{
    Credentials, DirEntry, FileType, Follow, FsError, OpenFlags, RenameFlags, SetXattr, Time, Whence,
};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{NEW, PAGE, Shared, calls, create, errno, serve, settle, stat};

/// How many inodes shelves keep.
fn kept(session: &Session) -> u64 {
    let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
    told["shelves"]["kept"].as_u64().unwrap()
}

fn whole(files: &FileSystem, path: &[u8]) -> Result<Vec<u8>, FsError> {
    let file = files.open(&files.root(), path, OpenFlags::READ, 0)?;
    let mut bytes = vec![0; 200_000];
    let read = file.read(&mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

const DIRECTORY: OpenFlags = OpenFlags::READ.with(OpenFlags::DIRECTORY);

/// The next entries of an open directory, at most so many.
fn next_names(directory: &File, most: usize) -> Result<Vec<String>, FsError> {
    let mut names = Vec::new();
    directory.read_dir(&mut |entry| {
        if names.len() == most {
            return ControlFlow::Break(());
        }
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// All entries of a directory.
fn names(files: &FileSystem, path: &[u8]) -> Result<Vec<String>, FsError> {
    next_names(&*files.open(&files.root(), path, DIRECTORY, 0)?, usize::MAX)
}

#[test]
fn what_was_asked_before_makes_no_call() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    files.mkdir(&root, b"dir", 0o755).unwrap();
    create(files, "dir/file").write(&[7; 3 * PAGE]).unwrap();
    files.symlink(b"file", &root, b"dir/link").unwrap();
    settle(&session);
    let round = || {
        assert_eq!(stat(files, b"dir/file").unwrap().size, 3 * PAGE as u64);
        assert_eq!(stat(files, b"dir/link").unwrap().size, 3 * PAGE as u64);
        assert_eq!(names(files, b"dir").unwrap(), [".", "..", "file", "link"]);
        let link = Object::At(&root, b"dir/link", Follow::No);
        assert_eq!(files.readlink(link).unwrap(), b"file");
        let file = Object::At(&root, b"dir/file", Follow::Yes);
        assert_eq!(errno(files.get_xattr(file, b"security.capability")), Errno::NODATA);
        assert_eq!(errno(files.get_xattr(file, b"system.posix_acl_access")), Errno::OPNOTSUPP);
        assert_eq!(files.list_xattr(file).unwrap(), b"");
        assert_eq!(whole(files, b"dir/file").unwrap(), [7; 3 * PAGE]);
        assert_eq!(errno(stat(files, b"dir/none")), Errno::NOENT);
        assert_eq!(errno(files.open(&root, b"dir/none", OpenFlags::READ, 0)), Errno::NOENT);
        files.access(Object::At(&root, b"dir/file", Follow::Yes), 4, false).unwrap();
        let file = files.open(&root, b"dir/file", OpenFlags::READ, 0).unwrap();
        assert_eq!(file.stat().unwrap(), stat(files, b"dir/file").unwrap());
        assert_eq!(file.seek(0, Whence::End).unwrap(), 3 * PAGE as u64);
    };
    // A read renews the access time until the clock has moved on from the change.
    support::until("the access times are newer", || {
        round();
        let is_newer = |path: &&str| {
            let stat = files.stat(&root, path.as_bytes(), Follow::No).unwrap();
            stat.atime_ns > stat.ctime_ns
        };
        ["dir", "dir/file", "dir/link"].iter().all(is_newer)
    });
    (0..2).for_each(|_| round());
    let kinds = [
        "stat", "open", "read", "access", "seek", "claim", "lookup", "close", "readdir", "readlink", "xattr",
    ];
    let before = calls(&other, &kinds);
    (0..100).for_each(|_| round());
    assert_eq!(calls(&other, &kinds), before);
}

#[test]
fn names_below_many_directories_make_no_call_and_stand_when_those_are_read() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    settle(&session);
    let mut path = String::from("d");
    for _ in 0..14 {
        files.mkdir(&root, path.as_bytes(), 0o755).unwrap();
        path += "/d";
    }
    drop(create(files, &path));
    let directory = &path.as_bytes()[..path.len() - 2];
    stat(files, path.as_bytes()).unwrap();
    let before = stat(files, directory).unwrap().atime_ns;
    support::until("the listing has renewed the access time", || {
        names(files, directory).unwrap();
        other.files().stat(&other.files().root(), directory, Follow::Yes).unwrap().atime_ns > before
    });
    let before = calls(&other, &["stat"]);
    (0..9).for_each(|_| assert_eq!(stat(files, path.as_bytes()).unwrap().size, 0));
    assert_eq!(calls(&other, &["stat"]), before);
}

#[test]
fn names_that_come_and_go_beside_a_directory_spoil_nothing_below_it() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    files.mkdir(&root, b"project", 0o755).unwrap();
    files.mkdir(&root, b"project/tree", 0o755).unwrap();
    create(files, "project/tree/file").write(b"bytes").unwrap();
    settle(&session);
    let round = || {
        assert_eq!(stat(files, b"project/tree/file").unwrap().size, 5);
        assert_eq!(errno(stat(files, b"project/tree/none")), Errno::NOENT);
    };
    round();
    let made = || calls(&other, &["stat", "lookup"]).iter().map(|(_, count)| count).sum::<u64>();
    let before = made();
    let (others, at) = (other.files(), other.files().root());
    for name in ["project/copy", "project/tree2", "beside"] {
        others.mkdir(&at, name.as_bytes(), 0o755).unwrap();
        round();
        others.rmdir(&at, name.as_bytes()).unwrap();
        drop(create(others, name));
        round();
        others.rename(&at, name.as_bytes(), &at, b"moved", RenameFlags::Replace).unwrap();
        others.unlink(&at, b"moved").unwrap();
        round();
    }
    // Of 18 answers, those that share a count with one of these names may take a call.
    assert!(made() <= before + 3);
    // What leads there is another thing from then on.
    files.rename(&root, b"project/tree", &root, b"project/away", RenameFlags::Replace).unwrap();
    assert_eq!(errno(stat(files, b"project/tree/file")), Errno::NOENT);
    files.mkdir(&root, b"project/tree", 0o755).unwrap();
    assert_eq!(errno(stat(files, b"project/tree/file")), Errno::NOENT);
    files.rename(&root, b"project/away/file", &root, b"project/tree/file", RenameFlags::Replace).unwrap();
    assert_eq!(stat(files, b"project/tree/file").unwrap().size, 5);
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
fn a_directory_that_was_opened_by_a_post_outlives_its_name() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root, theirs) = (session.files(), session.files().root(), other.files());
    settle(&session);
    let remove: [(&str, Change<'_>); 2] = [
        ("rmdir", &|name| theirs.rmdir(&theirs.root(), name).unwrap()),
        ("rename", &|name| {
            theirs.mkdir(&theirs.root(), b"new", 0o755).unwrap();
            theirs.rename(&theirs.root(), b"new", &theirs.root(), name, RenameFlags::Replace).unwrap();
        }),
    ];
    let before = kept(&other);
    for (name, remove) in remove {
        theirs.mkdir(&theirs.root(), name.as_bytes(), 0o755).unwrap();
        (0..3).for_each(|_| drop(names(files, name.as_bytes()).unwrap()));
        let opens = calls(&other, &["open"]);
        let directory = files.open(&root, name.as_bytes(), DIRECTORY, 0).unwrap();
        assert_eq!(calls(&other, &["open"]), opens, "{name}: it was posted");
        remove(name.as_bytes());
        assert_eq!(directory.stat().unwrap().nlink, 0, "{name}");
        assert_eq!(errno(next_names(&directory, 9)), Errno::NOENT, "{name}");
        assert_eq!(errno(files.stat(&directory.node(), b"x", Follow::Yes)), Errno::NOENT, "{name}");
        assert_eq!(kept(&other), before, "{name}");
    }
}

#[test]
fn a_listing_goes_on_where_it_was_in_another_process() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root, theirs) = (session.files(), session.files().root(), other.files());
    settle(&session);
    files.mkdir(&root, b"dir", 0o755).unwrap();
    let name = |number: usize| format!("dir/{number:03}");
    (0..200).for_each(|number| drop(create(files, &name(number))));
    // At once, later, and not at all begun; from the shelf, and by calls.
    for (round, taken) in [0, 1, 2, 3, 120, 202].into_iter().enumerate() {
        support::until("the shelf has it", || {
            names(files, b"dir").unwrap();
            let before = calls(&other, &["readdir"]);
            names(files, b"dir").unwrap();
            calls(&other, &["readdir"]) == before
        });
        let directory = files.open(&root, b"dir", DIRECTORY, 0).unwrap();
        let all = names(files, b"dir").unwrap();
        let before = calls(&other, &["readdir"]);
        let told = next_names(&directory, taken).unwrap();
        assert_eq!(told, all[..taken.min(all.len())]);
        assert_eq!(calls(&other, &["readdir"]), before, "round {round}: the shelf has told it");
        // One that was told, the last that was, and one that was not, go; one comes before them.
        let gone = [told.len().saturating_sub(20), told.len() - usize::from(taken > 0), told.len() + 5];
        let gone: Vec<_> =
            gone.iter().filter_map(|&at| all.get(at)).filter(|name| name.as_str() > "..").collect();
        for name in &gone {
            let _ = theirs.unlink(&theirs.root(), format!("dir/{name}").as_bytes());
        }
        drop(create(theirs, &format!("dir/!{round}")));
        directory.share();
        let heir = session.heir(&[(9, directory.handle().unwrap())], None, false).unwrap();
        let (child, welcome) = Session::adopt(heir).unwrap();
        let Received::File(theirs) = child.inherited(&welcome.held[0].1).unwrap() else { panic!() };
        let rest = next_names(&theirs, usize::MAX).unwrap();
        let mut due: Vec<_> = all[told.len()..].iter().filter(|name| !gone.contains(name)).collect();
        if taken <= 2 {
            // It comes after the dots, which may be all that was told.
            due.retain(|name| **name != format!("!{round}"));
        }
        let rest: Vec<_> = rest.iter().filter(|name| **name != format!("!{round}")).collect();
        assert_eq!(rest, due, "round {round}, after {taken}");
    }
}

#[test]
fn a_listing_of_what_was_removed_is_shared_with_another_process() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root, theirs) = (session.files(), session.files().root(), other.files());
    settle(&session);
    files.mkdir(&root, b"dir", 0o755).unwrap();
    (0..9).for_each(|number| drop(create(files, &format!("dir/{number}"))));
    support::until("the shelf has it", || {
        let before = calls(&other, &["readdir"]);
        names(files, b"dir").unwrap();
        calls(&other, &["readdir"]) == before
    });
    let directory = files.open(&root, b"dir", DIRECTORY, 0).unwrap();
    assert_eq!(next_names(&directory, 4).unwrap(), [".", "..", "0", "1"]);
    for number in 0..9 {
        theirs.unlink(&theirs.root(), format!("dir/{number}").as_bytes()).unwrap();
    }
    theirs.rmdir(&theirs.root(), b"dir").unwrap();
    directory.share();
    let heir = session.heir(&[(9, directory.handle().unwrap())], None, false).unwrap();
    let (child, welcome) = Session::adopt(heir).unwrap();
    let Received::File(theirs) = child.inherited(&welcome.held[0].1).unwrap() else { panic!() };
    for directory in [&theirs, &directory] {
        assert_eq!(errno(next_names(directory, 9)), Errno::NOENT, "its place is the server's");
    }
}

#[test]
fn a_listing_that_is_longer_than_a_call_can_be_taken_up_anywhere() {
    let shared = serve();
    let session = shared.session();
    let (files, root) = (session.files(), session.files().root());
    files.mkdir(&root, b"dir", 0o755).unwrap();
    (0..900).for_each(|number| drop(create(files, &format!("dir/{number:0200}"))));
    let directory = files.open(&root, b"dir", DIRECTORY, 0).unwrap();
    let mut cookies = Vec::new();
    let mut all = Vec::new();
    directory
        .read_dir(&mut |entry| {
            cookies.push(entry.cookie);
            all.push(String::from_utf8(entry.name.to_vec()).unwrap());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(all.len(), 902);
    for at in [901, 3, 700, 699, 0, 500] {
        directory.seek(cookies[at] as i64, Whence::Set).unwrap();
        assert_eq!(directory.position().unwrap(), cookies[at]);
        assert_eq!(next_names(&directory, 40).unwrap(), all[at + 1..all.len().min(at + 41)], "{at}");
    }
    directory.seek(0, Whence::Set).unwrap();
    drop(create(files, "dir/new"));
    assert_eq!(next_names(&directory, usize::MAX).unwrap().len(), 903, "it begins anew");
    assert_eq!(errno(directory.seek(0, Whence::End)), Errno::INVAL);
}

#[test]
fn a_file_has_no_entries_whatever_its_bytes_are() {
    let shared = serve();
    let session = shared.session();
    let (files, mount) = (session.files(), shared.service.mount());
    settle(&session);
    let mut bytes = Vec::new();
    let entry = DirEntry { ino: 7, cookie: 1, kind: FileType::File, name: b"name" };
    assert!(nvmed_wire::put_entry(&mut bytes, 100, &entry));
    let file = mount.open(&mount.root(), b"file", NEW, 0o644, &Credentials::ROOT).unwrap();
    file.pwrite(&bytes, 0).unwrap();
    let node = file.node();
    support::until("the shelf has its bytes, and both its counts are the same", || {
        // As those of a file of an earlier run are.
        while shared.board.bytes_version(node.ino()) < node.version() {
            drop(shared.board.change(node.ino()));
        }
        assert_eq!(whole(files, b"file").unwrap(), bytes);
        let before = calls(&session, &["read"]);
        assert_eq!(whole(files, b"file").unwrap(), bytes);
        calls(&session, &["read"]) == before && shared.board.bytes_version(node.ino()) == node.version()
    });
    let file = files.open(&files.root(), b"file", OpenFlags::READ, 0).unwrap();
    assert_eq!(errno(next_names(&file, 9)), Errno::NOTDIR);
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
    let _ = match dice.roll(14) {
        0 => files.mkdir(&root, one, 0o755),
        1 => files.rmdir(&root, one),
        2 => files.unlink(&root, one),
        3 => files.rename(&root, one, &root, two, RenameFlags::Replace),
        4 => files.rename(&root, one, &root, two, RenameFlags::Exchange),
        5 => files.link(at, &root, two),
        6 => files.symlink(two, &root, one),
        7 => files.chmod(at, dice.roll(0o1000) as u32 | 0o700),
        // An access time that is far ahead is not renewed.
        8 => files.utimens(at, [Time::At(dice.roll(1 << 62) as i64), Time::Now]),
        9 => files.truncate(at, dice.roll(3 * PAGE as u64)),
        10 => files.set_xattr(at, b"security.a", b"value", SetXattr::Any),
        11 => files.remove_xattr(at, b"security.a"),
        _ => files.open(&root, one, NEW, 0o644).and_then(|file| {
            let bytes = vec![dice.next() as u8; 1 + dice.index(3 * PAGE)];
            file.pwrite(&bytes, dice.roll(2 * PAGE as u64)).map(drop)
        }),
    };
}

/// What a session is told, and what the file system says, of every path that [`change`] touches.
fn compare(files: &FileSystem, shared: &Shared, seed: u64, step: usize) {
    let (mount, root) = (shared.service.mount(), files.root());
    let at_mount = mount.root();
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
        let listed = names(files, path.as_bytes()).map_err(|error| error.errno());
        let is =
            mount.open(&mount.root(), path.as_bytes(), DIRECTORY, 0, &who).map_err(|error| error.errno());
        let is = is.map(|directory| {
            let mut names = Vec::new();
            let tell = &mut |entry: DirEntry<'_>| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                ControlFlow::Continue(())
            };
            directory.read_dir(tell).unwrap();
            names
        });
        assert_eq!(listed, is, "seed {seed}, step {step}: entries of {path}");
        let link = Object::At(&root, path.as_bytes(), Follow::No);
        let told = files.readlink(link).map_err(|error| error.errno());
        let link = nvmed_fs::Object::At(&at_mount, path.as_bytes(), Follow::No);
        assert_eq!(told, mount.readlink(link, &who).map_err(|error| error.errno()), "{seed}, {step}: {path}");
        let link = Object::At(&root, path.as_bytes(), Follow::Yes);
        let told = files.list_xattr(link).map_err(|error| error.errno());
        let link = nvmed_fs::Object::At(&at_mount, path.as_bytes(), Follow::Yes);
        assert_eq!(
            told,
            mount.list_xattr(link, &who).map_err(|error| error.errno()),
            "{seed}, {step}: {path}"
        );
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
    let directory = session.files().open(&session.files().root(), b"/", DIRECTORY, 0).unwrap();
    assert_eq!(next_names(&directory, 1).unwrap(), ["."]);
    shared.board.set_dead();
    assert_eq!(errno(next_names(&directory, 1)), Errno::IO);
    assert_eq!(errno(stat(session.files(), b"file")), Errno::IO);
    assert_eq!(errno(file.pread(&mut [0], 0)), Errno::IO);
    assert_eq!(errno(file.stat()), Errno::IO);
}
