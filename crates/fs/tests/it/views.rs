//! What a view of a directory tree keeps its holder from, and what a bounded tree may use.

use crate::support::Disk;
use nvmed_fs::{
    Allocate, Credentials, FileSystem, Follow, FsError, Limits, Node, Object, OpenFlags, RenameFlags,
    SetXattr, Time,
};
use rustix::io::Errno;
use std::sync::Arc;

const BYTES: u64 = 64 << 20;
const ROOT: Credentials<'static> = Credentials::ROOT;
const PAGE: usize = 4096;
const MADE: OpenFlags = OpenFlags::CREATE.with(OpenFlags::READ_WRITE);

fn mounted() -> (Arc<Disk>, FileSystem) {
    let disk = Disk::new(BYTES);
    let files = disk.format().mount();
    (disk, files)
}

fn at(files: &FileSystem, path: &str) -> Node {
    files.lookup(&files.root(), path.as_bytes(), Follow::Yes, &ROOT).expect(path)
}

fn mkdirs(files: &FileSystem, paths: &[&str]) {
    for path in paths {
        files.mkdir(&files.root(), path.as_bytes(), 0o777, &ROOT).expect(path);
    }
}

fn make(files: &FileSystem, path: &str, bytes: &[u8]) {
    let file = files.open(&files.root(), path.as_bytes(), MADE, 0o666, &ROOT).expect(path);
    assert_eq!(file.pwrite(bytes, 0).expect(path), bytes.len());
}

fn errno<T>(result: Result<T, FsError>) -> Errno {
    result.err().map_or_else(|| panic!("it was permitted"), |error| error.errno())
}

/// A file system with `/a` (a tree), `/b` and a secret in it, and the view of `/a`.
fn two_trees() -> (Arc<Disk>, FileSystem, FileSystem) {
    let (disk, files) = mounted();
    mkdirs(&files, &["/a", "/a/d", "/b", "/b/d"]);
    make(&files, "/a/mine", b"mine");
    make(&files, "/b/secret", b"secret");
    // Small files lie in their records from then on, and have no blocks.
    files.sync().unwrap();
    let view = files.rooted(&at(&files, "/a"), false).unwrap();
    (disk, files, view)
}

#[test]
fn nothing_outside_a_tree_has_a_name_in_it() {
    let (_disk, files, view) = two_trees();
    let root = view.root();
    assert_eq!(root.ino(), at(&files, "/a").ino());
    for path in ["/b/secret", "b/secret", "/a/mine", "d/b/secret"] {
        assert_eq!(errno(view.stat(&root, path.as_bytes(), Follow::Yes, &ROOT)), Errno::NOENT, "{path}");
    }
    for path in ["..", "../b/secret", "/../b/secret", "d/../../b/secret", "/d/./../..//b/secret"] {
        let away = view.stat(&root, path.as_bytes(), Follow::Yes, &ROOT);
        assert!(matches!(away, Err(FsError::Away(_))), "{path}: {away:?}");
    }
    for (link, target) in [("up", "../b/secret"), ("deep", "d/../../b"), ("whole", "/b/secret")] {
        view.symlink(target.as_bytes(), &root, link.as_bytes(), &ROOT).unwrap();
        let away = view.open(&root, link.as_bytes(), OpenFlags::READ, 0, &ROOT).map(drop);
        assert!(matches!(away, Err(FsError::Away(_))), "{link}: {away:?}");
    }
    assert_eq!(view.path_of(&at(&files, "/a/d")).unwrap(), b"/d");
    assert_eq!(view.path_of(&root).unwrap(), b"/");
    assert_eq!(errno(view.path_of(&at(&files, "/b/d"))), Errno::NOENT);
    let mut dots = Vec::new();
    let list = view.open(&root, b"/", OpenFlags::READ, 0, &ROOT).unwrap();
    let mut tell = |entry: nvmed_fs::DirEntry<'_>| {
        dots.extend((entry.name == b"..").then_some(entry.ino));
        std::ops::ControlFlow::Continue(())
    };
    list.read_dir(&mut tell).unwrap();
    assert_eq!(dots, [root.ino()], "the number of the directory above is not told");
}

#[test]
fn a_path_that_one_view_remembers_is_not_another_views() {
    let (_disk, files, view) = two_trees();
    // Long enough to be remembered whole, asked for often enough.
    let path = b"/./././././././././mine";
    for _ in 0..4 {
        assert!(view.stat(&view.root(), path, Follow::Yes, &ROOT).is_ok());
        // From the same held directory, whose `/` is another's.
        assert_eq!(errno(files.stat(&view.root(), path, Follow::Yes, &ROOT)), Errno::NOENT);
    }
}

#[test]
fn what_was_held_and_moved_out_leads_nowhere() {
    let (_disk, files, view) = two_trees();
    let root = files.root();
    let held = view.lookup(&view.root(), b"d", Follow::Yes, &ROOT).unwrap();
    make(&files, "/a/d/in", b"1");
    assert!(view.stat(&held, b"in", Follow::Yes, &ROOT).is_ok());
    files.rename(&root, b"/a/d", &root, b"/b/moved", RenameFlags::Replace, &ROOT).unwrap();
    for path in ["in", "../secret", "..", "../../b/secret", "."] {
        assert_eq!(errno(view.stat(&held, path.as_bytes(), Follow::Yes, &ROOT)), Errno::NOENT, "{path}");
    }
    assert_eq!(errno(view.open(&held, b"new", MADE, 0o666, &ROOT)), Errno::NOENT);
    assert_eq!(
        errno(view.link(Object::Held(&at(&files, "/b/secret")), &view.root(), b"got", &ROOT)),
        Errno::NOENT
    );
    assert!(view.rooted(&at(&files, "/b"), false).is_err(), "a view of a view is no wider");
}

#[test]
fn names_do_not_cross_a_views_border() {
    let (_disk, files, view) = two_trees();
    let root = view.root();
    let outside = at(&files, "/b");
    // Also when somebody hands it a directory that is not its own.
    assert_eq!(errno(view.stat(&outside, b"secret", Follow::Yes, &ROOT)), Errno::NOENT);
    assert_eq!(
        errno(view.link(Object::At(&outside, b"secret", Follow::No), &root, b"got", &ROOT)),
        Errno::NOENT
    );
    assert_eq!(
        errno(view.link(Object::At(&root, b"mine", Follow::No), &outside, b"put", &ROOT)),
        Errno::NOENT
    );
    for flags in [RenameFlags::Replace, RenameFlags::NoReplace, RenameFlags::Exchange] {
        assert_eq!(errno(view.rename(&root, b"mine", &outside, b"secret", flags, &ROOT)), Errno::NOENT);
        assert!(view.rename(&root, b"mine", &root, b"../b/secret", flags, &ROOT).is_err());
    }
    assert_eq!(errno(view.rmdir(&root, b"/", &ROOT)), Errno::BUSY);
    assert_eq!(files.stat(&files.root(), b"/b/secret", Follow::No, &ROOT).unwrap().size, 6);
}

/// Nothing that an inode has can be changed through a view that may not.
fn assert_no_change(files: &FileSystem, object: Object<'_>) {
    let now = [Time::Now, Time::Now];
    let changes = [
        files.chmod(object, 0, &ROOT),
        files.chown(object, Some(1), None, &ROOT),
        files.utimens(object, now, &ROOT),
        files.truncate(object, 0, &ROOT),
        files.set_xattr(object, b"user.a", b"1", SetXattr::Any, &ROOT),
        files.remove_xattr(object, b"user.a", &ROOT),
    ];
    assert!(changes.into_iter().all(|change| errno(change) == Errno::ROFS));
}

#[test]
fn a_view_to_read_changes_nothing() {
    let (_disk, files, _) = two_trees();
    let view = files.rooted(&at(&files, "/a"), true).unwrap();
    let root = view.root();
    let now = [Time::Now, Time::Now];
    let before = files.stat(&files.root(), b"/a/mine", Follow::No, &ROOT).unwrap();
    for flags in [
        OpenFlags::WRITE,
        OpenFlags::READ_WRITE,
        OpenFlags::TRUNCATE,
        OpenFlags::WRITE.with(OpenFlags::APPEND),
    ] {
        assert_eq!(errno(view.open(&root, b"mine", flags, 0, &ROOT)), Errno::ROFS);
    }
    assert_eq!(errno(view.open(&root, b"new", MADE, 0o666, &ROOT)), Errno::ROFS);
    let nameless = OpenFlags::TMPFILE.with(OpenFlags::READ_WRITE);
    assert_eq!(errno(view.open(&root, b".", nameless, 0o600, &ROOT)), Errno::ROFS);
    assert!(
        view.open(&root, b"mine", OpenFlags::CREATE, 0o666, &ROOT).is_ok(),
        "it is there: nothing is made"
    );
    assert_eq!(errno(view.mkdir(&root, b"new", 0o777, &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.mkdir(&root, b"d", 0o777, &ROOT)), Errno::EXIST, "as mkdir -p wants it");
    assert_eq!(errno(view.mknod(&root, b"new", 0o666, 0, &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.symlink(b"x", &root, b"new", &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.link(Object::At(&root, b"mine", Follow::No), &root, b"new", &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.link(Object::Held(&at(&files, "/a/mine")), &root, b"new", &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.rename(&root, b"mine", &root, b"new", RenameFlags::Replace, &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.unlink(&root, b"mine", &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.rmdir(&root, b"d", &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.chmod(Object::At(&root, b"mine", Follow::Yes), 0, &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.chown(Object::At(&root, b"mine", Follow::Yes), Some(1), None, &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.utimens(Object::At(&root, b"mine", Follow::Yes), now, &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.truncate(Object::At(&root, b"mine", Follow::Yes), 0, &ROOT)), Errno::ROFS);
    assert_eq!(errno(view.access(Object::At(&root, b"mine", Follow::Yes), 2, &ROOT)), Errno::ROFS);
    assert!(view.access(Object::At(&root, b"mine", Follow::Yes), 4, &ROOT).is_ok());
    let set = SetXattr::Any;
    assert_eq!(
        errno(view.set_xattr(Object::At(&root, b"mine", Follow::Yes), b"user.a", b"1", set, &ROOT)),
        Errno::ROFS
    );
    assert_eq!(
        errno(view.remove_xattr(Object::At(&root, b"mine", Follow::Yes), b"user.a", &ROOT)),
        Errno::ROFS
    );
    let held = view.lookup(&root, b"mine", Follow::Yes, &ROOT).unwrap();
    assert_eq!(errno(view.open_node(&held, OpenFlags::READ_WRITE, &ROOT)), Errno::ROFS);
    let file = view.open(&root, b"mine", OpenFlags::READ, 0, &ROOT).unwrap();
    // Held through it, and handed to who may write elsewhere, or there by another view.
    for held in [&held, &file.node()] {
        for others in [&view, &files, &files.rooted(&at(&files, "/b"), false).unwrap()] {
            assert_no_change(others, Object::Held(held));
            assert_eq!(errno(others.open_node(held, OpenFlags::READ_WRITE, &ROOT)), Errno::ROFS);
            assert_eq!(errno(others.link(Object::Held(held), &others.root(), b"new", &ROOT)), Errno::ROFS);
        }
    }
    let mine = files.open(&files.root(), b"/a/mine", OpenFlags::READ, 0, &ROOT).unwrap();
    for (through, open) in [(&file.files(), &file), (&files, &file), (&view, &mine)] {
        assert_no_change(through, Object::Open(open));
    }
    assert_eq!(errno(file.pwrite(b"x", 0)), Errno::BADF);
    assert!(file.map(true).is_err(), "nor by a mapping");
    assert_eq!(file.pread(&mut [0; 8], 0).unwrap(), 4);
    assert!(view.statfs().read_only && !files.statfs().read_only);
    let after = files.stat(&files.root(), b"/a/mine", Follow::No, &ROOT).unwrap();
    assert_eq!(after, before, "not even the time of access");
    assert!(view.rooted(&root, false).unwrap().statfs().read_only, "a view of a view may no more");
}

/// What a walk through the tree finds: blocks and inodes.
fn count(files: &FileSystem, directory: &Node) -> (u64, u64) {
    let list = files.open(directory, b".", OpenFlags::READ, 0, &ROOT).unwrap();
    let mut names = Vec::new();
    let mut tell = |entry: nvmed_fs::DirEntry<'_>| {
        names.extend((entry.name != b"." && entry.name != b"..").then(|| entry.name.to_vec()));
        std::ops::ControlFlow::Continue(())
    };
    list.read_dir(&mut tell).unwrap();
    names.iter().fold((0, 0), |(bytes, inodes), name| {
        let node = files.lookup(directory, name, Follow::No, &ROOT).unwrap();
        let (more, lower) = match node.kind() {
            nvmed_fs::FileType::Directory => count(files, &node),
            _ => (node.stat().blocks_512 / 8 * PAGE as u64, 0),
        };
        (bytes + more, inodes + lower + 1)
    })
}

fn check(files: &FileSystem, tree: &Node) {
    let usage = files.usage(tree).unwrap();
    assert_eq!((usage.bytes, usage.inodes), count(files, tree), "what is counted is what is there");
}

const LIMITS: Limits = Limits { bytes: 64 * PAGE as u64, inodes: 20 };

#[test]
fn a_bounded_tree_counts_what_happens_in_it() {
    let (disk, files, view) = two_trees();
    make(&files, "/a/d/before", &[1; 5 * PAGE]);
    files.sync().unwrap();
    let tree = at(&files, "/a");
    let usage = files.bound_tree(&tree, LIMITS).unwrap();
    assert_eq!((usage.bytes, usage.inodes), (5 * PAGE as u64, 3));
    let root = view.root();
    make(&view, "/d/sparse", b"x");
    let file = view.open(&root, b"/d/sparse", MADE, 0o666, &ROOT).unwrap();
    assert_eq!(file.pwrite(&[1; PAGE], 1 << 30).unwrap(), PAGE);
    check(&files, &tree);
    file.fallocate(Allocate { keep_size: true, ..Allocate::default() }, 0, 9 * PAGE as u64).unwrap();
    check(&files, &tree);
    files.sync().unwrap();
    check(&files, &tree);
    file.fallocate(
        Allocate { keep_size: true, punch_hole: true, ..Allocate::default() },
        PAGE as u64,
        4 * PAGE as u64,
    )
    .unwrap();
    check(&files, &tree);
    file.truncate(3).unwrap();
    check(&files, &tree);
    file.pwrite(&[2; 8 * PAGE], 0).unwrap();
    view.rename(&root, b"/d/sparse", &root, b"/other", RenameFlags::Replace, &ROOT).unwrap();
    view.link(Object::At(&root, b"/other", Follow::No), &root, b"/second", &ROOT).unwrap();
    view.unlink(&root, b"/other", &ROOT).unwrap();
    check(&files, &tree);
    view.unlink(&root, b"/second", &ROOT).unwrap();
    let left = files.usage(&tree).unwrap();
    assert_eq!(left.bytes, (5 + 8) * PAGE as u64, "open and without a name, it takes its room");
    drop(file);
    check(&files, &tree);
    make(&files, "/a/victim", &[1; 3 * PAGE]);
    make(&files, "/a/heir", &[1; 2 * PAGE]);
    view.rename(&root, b"/heir", &root, b"/victim", RenameFlags::Replace, &ROOT).unwrap();
    check(&files, &tree);
    view.unlink(&root, b"/d/before", &ROOT).unwrap();
    view.rmdir(&root, b"/d", &ROOT).unwrap();
    check(&files, &tree);
    let before = files.usage(&tree).unwrap();
    drop((view, root, tree));
    let files = disk.remount(files);
    let counted = files.bound_tree(&at(&files, "/a"), LIMITS).unwrap();
    assert_eq!(counted, before, "a new mount counts the same");
}

#[test]
fn beyond_its_bounds_nothing_is_changed() {
    let (_disk, files, view) = two_trees();
    let tree = at(&files, "/a");
    let root = view.root();
    files.bound_tree(&tree, LIMITS).unwrap();
    let file = view.open(&root, b"big", MADE, 0o666, &ROOT).unwrap();
    // As far as it goes, then not a byte.
    assert_eq!(file.pwrite(&vec![1; 80 * PAGE], 0).unwrap(), 64 * PAGE);
    assert_eq!(errno(file.pwrite(b"x", 64 * PAGE as u64)), Errno::DQUOT);
    assert_eq!(file.stat().size, 64 * PAGE as u64);
    files.sync().unwrap();
    assert_eq!(errno(file.pwrite(b"x", 64 * PAGE as u64)), Errno::DQUOT);
    assert_eq!(file.pwrite(&[2; PAGE], 0).unwrap(), PAGE, "what has its room may be written again");
    let keep = Allocate { keep_size: true, ..Allocate::default() };
    assert_eq!(errno(file.fallocate(keep, 64 * PAGE as u64, 1)), Errno::DQUOT);
    assert_eq!((view.statfs().blocks, view.statfs().blocks_free), (64, 0));
    assert!(files.statfs().blocks_free > 0);
    make(&files, "/b/other", &[1; 4 * PAGE]);
    file.truncate(PAGE as u64).unwrap();
    assert_eq!(view.statfs().blocks_free, 63);
    assert_eq!(file.pwrite(b"x", 64 * PAGE as u64).unwrap(), 1);
    let mut made = 0;
    let refused = loop {
        match view.mkdir(&root, format!("n{made}").as_bytes(), 0o777, &ROOT) {
            Ok(()) => made += 1,
            Err(error) => break error.errno(),
        }
    };
    assert_eq!((made, refused), (17, Errno::DQUOT), "three were there");
    let nameless = OpenFlags::TMPFILE.with(OpenFlags::READ_WRITE);
    assert_eq!(errno(view.open(&root, b".", nameless, 0o600, &ROOT)), Errno::DQUOT);
    view.rmdir(&root, b"n0", &ROOT).unwrap();
    drop(view.open(&root, b".", nameless, 0o600, &ROOT).unwrap());
    view.symlink(b"x", &root, b"link", &ROOT).unwrap();
    check(&files, &tree);
}

#[test]
fn fallocate_over_what_waits_in_the_cache_needs_no_more() {
    let (_disk, files, view) = two_trees();
    files.bound_tree(&at(&files, "/a"), LIMITS).unwrap();
    let file = view.open(&view.root(), b"f", MADE, 0o666, &ROOT).unwrap();
    assert_eq!(file.pwrite(&vec![1; 60 * PAGE], 0).unwrap(), 60 * PAGE);
    file.fallocate(Allocate::default(), 0, 64 * PAGE as u64).unwrap();
    assert_eq!(files.usage(&at(&files, "/a")).unwrap().bytes, 64 * PAGE as u64);
}

#[test]
fn what_is_counted_apart_stays_apart() {
    let (_disk, files, _) = two_trees();
    let root = files.root();
    files.bound_tree(&at(&files, "/a"), LIMITS).unwrap();
    let replace = RenameFlags::Replace;
    assert_eq!(errno(files.rename(&root, b"/b/secret", &root, b"/a/secret", replace, &ROOT)), Errno::XDEV);
    assert_eq!(errno(files.rename(&root, b"/a/mine", &root, b"/b/mine", replace, &ROOT)), Errno::XDEV);
    assert_eq!(errno(files.rename(&root, b"/a/d", &root, b"/b/dd", replace, &ROOT)), Errno::XDEV);
    let exchange = RenameFlags::Exchange;
    assert_eq!(errno(files.rename(&root, b"/a/mine", &root, b"/b/secret", exchange, &ROOT)), Errno::XDEV);
    assert_eq!(
        errno(files.link(Object::At(&root, b"/b/secret", Follow::No), &root, b"/a/got", &ROOT)),
        Errno::XDEV
    );
    mkdirs(&files, &["/a/d/e"]);
    assert!(files.bound_tree(&at(&files, "/a/d"), LIMITS).is_err(), "one inside the other");
    assert!(files.bound_tree(&root, LIMITS).is_err(), "one around the other");
    let wider = Limits { bytes: 1 << 20, ..LIMITS };
    assert_eq!(files.bound_tree(&at(&files, "/a"), wider).unwrap().limits, wider);
    check(&files, &at(&files, "/a"));
}

#[test]
fn two_writers_at_the_limit_get_no_more_than_it() {
    let (_disk, files, view) = two_trees();
    let tree = at(&files, "/a");
    files.bound_tree(&tree, Limits { bytes: 500 * PAGE as u64, inodes: 100 }).unwrap();
    let write = |name: &str| {
        let file = view.open(&view.root(), name.as_bytes(), MADE, 0o666, &ROOT).unwrap();
        let mut done = 0;
        while let Ok(more) = file.pwrite(&[7; 3 * PAGE], done) {
            done += more as u64;
        }
        file.fsync().unwrap();
        done / PAGE as u64
    };
    let names = ["one", "two", "three"];
    let written: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = names.map(|name| scope.spawn(move || write(name))).into_iter().collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(written, 500, "all of it, and not a block more");
    files.sync().unwrap();
    check(&files, &tree);
}
