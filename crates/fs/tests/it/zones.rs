//! Zones: names that move with their directory, in one batch, whatever else goes on.

use crate::support::{BLOCK, Disk, memory};
use core::ops::ControlFlow;
use nvmed_dice::Dice;
use nvmed_fs::Object;
use nvmed_fs::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const ROOT: Credentials<'static> = Credentials::ROOT;
const MAKE: OpenFlags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);

fn create(files: &FileSystem, at: &Node, path: &[u8]) -> Arc<File> {
    files.open(at, path, MAKE, 0o644, &ROOT).expect("create")
}

fn mkdir(files: &FileSystem, at: &Node, path: &[u8]) -> Node {
    files.mkdir(at, path, 0o755, &ROOT).expect("mkdir");
    files.lookup(at, path, Follow::No, &ROOT).expect("lookup")
}

fn rename(files: &FileSystem, old: &str, new: &str) -> Result<(), FsError> {
    let root = files.root();
    files.rename(&root, old.as_bytes(), &root, new.as_bytes(), RenameFlags::Replace, &ROOT)
}

fn names(files: &FileSystem, directory: &Node) -> Vec<Vec<u8>> {
    let file = files.open_node(directory, OpenFlags::DIRECTORY, &ROOT).expect("it opens");
    let mut names = Vec::new();
    file.read_dir(&mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })
    .expect("it lists");
    names.split_off(2)
}

#[test]
fn a_directory_at_the_bound_is_re_keyed_and_one_beyond_it_is_not() {
    let disk = Disk::new(64 << 20);
    let files = disk.format_zones(8).mount();
    let root = files.root();
    for (name, count) in [("at", 8), ("beyond", 9)] {
        mkdir(&files, &root, name.as_bytes());
        for n in 0..count {
            create(&files, &root, format!("{name}/file{n}").as_bytes());
        }
    }
    let log = || files.store_stats().log_bytes;
    let mut bytes = BTreeMap::new();
    for name in ["at", "beyond"] {
        let (before, batches) = (log(), files.store_stats().batches);
        rename(&files, name, &format!("{name}-renamed")).unwrap();
        assert_eq!(files.store_stats().batches, batches + 1, "one batch");
        bytes.insert(name, log() - before);
    }
    assert!(bytes["at"] > 5 * bytes["beyond"], "{bytes:?}");
    let files = disk.remount(files);
    for (name, count) in [("at", 8), ("beyond", 9)] {
        let moved = files.lookup(&files.root(), format!("{name}-renamed").as_bytes(), Follow::No, &ROOT);
        assert_eq!(names(&files, &moved.unwrap()).len(), count);
    }
}

#[test]
fn names_have_any_bytes_and_keep_their_order() {
    for bound in [0, 64, ZONE_BOUND_NONE] {
        let disk = Disk::new(64 << 20);
        let files = disk.format_zones(bound).mount();
        let root = files.root();
        // Each of the bytes that a name may have, 255 times.
        let all: Vec<Vec<u8>> = (1..=255).filter(|&byte| byte != b'/').map(|byte| vec![byte; 255]).collect();
        let mixed: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
        for name in all.iter().chain([&mixed]) {
            let outer = mkdir(&files, &root, name);
            let inner = mkdir(&files, &outer, name);
            create(&files, &inner, name);
        }
        let files = disk.remount(files);
        let root = files.root();
        let mut expected: Vec<Vec<u8>> = all.into_iter().chain([mixed]).collect();
        expected.sort();
        assert_eq!(names(&files, &root), expected);
        for name in &expected {
            let path = [&name[..], &name[..], &name[..]].join(&b'/');
            let file = files.lookup(&root, &path, Follow::No, &ROOT).unwrap();
            assert_eq!(files.path_of(&file).unwrap(), [b"/", &path[..]].concat());
            files.rename(&root, name, &root, b"new", RenameFlags::Replace, &ROOT).unwrap();
            let path = [b"new", &name[..], &name[..]].join(&b'/');
            assert_eq!(files.lookup(&root, &path, Follow::No, &ROOT).unwrap().ino(), file.ino());
            files.rename(&root, b"new", &root, name, RenameFlags::Replace, &ROOT).unwrap();
        }
        disk.remount(files);
    }
}

#[test]
fn a_move_that_makes_paths_too_long_for_keys_makes_a_zone() {
    for bound in [64, ZONE_BOUND_NONE] {
        let disk = Disk::new(64 << 20);
        let files = disk.format_zones(bound).mount();
        let root = files.root();
        let long = |byte: u8| vec![byte; 250];
        let deep = [long(b'a'), long(b'b'), long(b'c')].join(&b'/');
        let tree = [&b"tree"[..], &long(b'x'), &long(b'y')].join(&b'/');
        for path in [&deep, &tree] {
            for end in (0..=path.len()).filter(|end| path.get(*end).is_none_or(|byte| *byte == b'/')) {
                files.mkdir(&root, &path[..end], 0o755, &ROOT).expect("mkdir");
            }
        }
        create(&files, &root, &[&tree[..], b"/file"].concat());
        let moved = [&deep[..], b"/tree"].concat();
        files.rename(&root, b"tree", &root, &moved, RenameFlags::Replace, &ROOT).expect("rename");
        let files = disk.remount(files);
        let root = files.root();
        let file = [&moved[..], &tree[4..], b"/file"].concat();
        files.stat(&root, &file, Follow::No, &ROOT).expect("the file went along");
        files.mkdir(&root, b"other", 0o755, &ROOT).unwrap();
        files.mkdir(&root, b"other/one", 0o755, &ROOT).unwrap();
        files.rename(&root, &moved, &root, b"other/one", RenameFlags::Exchange, &ROOT).expect("exchange");
        let file = [&b"other/one"[..], &tree[4..], b"/file"].concat();
        files.stat(&root, &file, Follow::No, &ROOT).expect("the file came along");
        drop(root);
        disk.remount(files);
    }
}

#[test]
fn trees_may_be_deeper_than_a_path_is_long() {
    for (bound, step) in [(64, &b"x"[..]), (3, &[b'y'; 200]), (ZONE_BOUND_NONE, &[1; 100])] {
        let disk = Disk::new(128 << 20);
        let files = disk.format_zones(bound).mount();
        let mut at = files.root();
        let mut depth = 0;
        while depth * (step.len() + 1) <= 2 * PATH_BYTES_MAX {
            create(&files, &at, b"file");
            at = mkdir(&files, &at, step);
            depth += 1;
        }
        let deepest = at.ino();
        files.rename(&files.root(), step, &files.root(), b"moved", RenameFlags::Replace, &ROOT).unwrap();
        let long = [b"/moved".to_vec(), [b"/", step].concat().repeat(depth - 1)].concat();
        assert_eq!(files.path_of(&at).unwrap(), long);
        drop(at);
        let files = disk.remount(files);
        let mut at = files.lookup(&files.root(), b"moved", Follow::No, &ROOT).unwrap();
        for _ in 1..depth {
            files.lookup(&at, b"file", Follow::No, &ROOT).expect("the file is there");
            at = files.lookup(&at, step, Follow::No, &ROOT).expect("the next step is there");
        }
        assert_eq!(at.ino(), deepest);
        drop(at);
        disk.remount(files);
    }
}

/// Every file by path: its inode and its bytes.
fn contents(files: &FileSystem, at: &Node, path: &str, all: &mut BTreeMap<String, (u64, Vec<u8>)>) {
    for name in names(files, at) {
        let node = files.lookup(at, &name, Follow::No, &ROOT).expect("what is listed is there");
        let path = format!("{path}/{}", String::from_utf8(name).expect("the names are letters"));
        if node.kind() == FileType::Directory {
            contents(files, &node, &path, all);
            continue;
        }
        let file = files.open_node(&node, OpenFlags::READ, &ROOT).expect("it opens");
        let mut bytes = vec![0; file.stat().size as usize];
        assert_eq!(file.pread(&mut bytes, 0).expect("it is read"), bytes.len());
        all.insert(path, (node.ino(), bytes));
    }
}

/// Writers of one file may have overlapped; a page is one of theirs, and each knew the inode.
fn each_holds_its_own(files: &BTreeMap<String, (u64, Vec<u8>)>) {
    for (path, (ino, bytes)) in files {
        for word in bytes.chunks_exact(8) {
            let token = u64::from_le_bytes(word.try_into().unwrap());
            assert_eq!(token >> 32, *ino, "{path} has another file's bytes");
        }
    }
}

#[test]
fn files_are_written_back_while_their_directories_move() {
    const THREADS: u64 = 4;
    for bound in [0, 1, 2, 3, 8, 64] {
        let disk = Disk::new(128 << 20);
        let files = disk.format_zones(bound).mount();
        let root = files.root();
        for dir in ["a", "b", "a/a", "a/b", "b/a", "a/a/a"] {
            mkdir(&files, &root, dir.as_bytes());
        }
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (files, root) = (&files, &root);
                scope.spawn(move || {
                    let mut dice = Dice::new(thread * 1000 + u64::from(bound));
                    for round in 0..400u64 {
                        let mut path = |least: u64| {
                            let steps = least + dice.roll(4);
                            let steps: Vec<_> =
                                (0..steps).map(|_| ["a", "b"][dice.roll(2) as usize]).collect();
                            steps.join("/")
                        };
                        let (one, two) = (path(1), path(1));
                        match dice.roll(10) {
                            0..=3 => {
                                let name = format!("{one}/f{}", dice.roll(6));
                                if let Ok(file) = files.open(root, name.as_bytes(), MAKE, 0o644, &ROOT) {
                                    // The whole content is one number, over and over.
                                    let token = file.node().ino() << 32 | thread << 16 | round;
                                    let bytes = token.to_le_bytes().repeat(1 + dice.roll(1500) as usize);
                                    file.pwrite(&bytes, 0).expect("it is written");
                                    if dice.roll(3) == 0 {
                                        file.fsync().expect("it is synced");
                                    }
                                }
                            }
                            4 => drop(files.mkdir(root, one.as_bytes(), 0o755, &ROOT)),
                            5 => drop(files.link(
                                Object::At(root, format!("{one}/f0").as_bytes(), Follow::No),
                                root,
                                format!("{two}/g0").as_bytes(),
                                &ROOT,
                            )),
                            6 => drop(files.unlink(root, format!("{one}/f1").as_bytes(), &ROOT)),
                            7 => drop(files.rename(
                                root,
                                one.as_bytes(),
                                root,
                                two.as_bytes(),
                                RenameFlags::Exchange,
                                &ROOT,
                            )),
                            _ => drop(rename(files, &one, &two)),
                        }
                    }
                });
            }
        });
        let mut before = BTreeMap::new();
        contents(&files, &root, "", &mut before);
        each_holds_its_own(&before);
        drop(root);
        let files = disk.remount(files);
        let mut after = BTreeMap::new();
        contents(&files, &files.root(), "", &mut after);
        assert_eq!(before, after, "bound {bound}");
    }
}

#[test]
fn a_full_device_refuses_a_zone_and_keeps_what_is_there() {
    let disk = Disk::new(9 << 20);
    let files = disk.format_zones(8).mount();
    let root = files.root();
    let mut made = BTreeSet::new();
    let mut full = 0;
    for n in 0..200_000u64 {
        let directory = format!("d{}", n / 12);
        if n % 12 == 0 {
            match files.mkdir(&root, directory.as_bytes(), 0o755, &ROOT) {
                Ok(()) => drop(made.insert(directory.clone())),
                Err(FsError::NoSpace) => full += 1,
                Err(error) => panic!("{error}"),
            }
        }
        let name = format!("{directory}/{n:0240}");
        match files.open(&root, name.as_bytes(), MAKE, 0o644, &ROOT) {
            Ok(_) => drop(made.insert(name)),
            Err(FsError::NoSpace | FsError::NotFound) => full += 1,
            Err(error) => panic!("{error}"),
        }
        if full > 40 {
            break;
        }
    }
    assert!(full > 40, "the device is never full");
    let found = |files: &FileSystem| {
        let mut all = BTreeMap::new();
        contents(files, &files.root(), "", &mut all);
        all.into_keys().map(|path| path[1..].to_owned()).collect::<BTreeSet<_>>()
    };
    let files_made: BTreeSet<String> = made.iter().filter(|path| path.contains('/')).cloned().collect();
    assert_eq!(found(&files), files_made);
    drop(root);
    let files = disk.remount(files);
    assert_eq!(found(&files), files_made);
    // Removing works on a full device, and makes room again.
    for path in files_made.iter().take(files_made.len() / 2) {
        files.unlink(&files.root(), path.as_bytes(), &ROOT).expect("unlink");
    }
    files.sync().expect("sync");
    mkdir(&files, &files.root(), b"more");
    for n in 0..20 {
        create(&files, &files.root(), format!("more/{n:0240}").as_bytes());
    }
    disk.remount(files);
}

#[test]
fn what_a_dead_process_wrote_is_found_where_its_name_went() {
    for bound in [0, 2, 64] {
        let disk = Disk::new(64 << 20);
        disk.format_zones(bound);
        let alive = memory(4 << 20);
        let parts = |memory: &Memory| MountParts {
            device: disk.device(),
            bytes: None,
            memory: memory.clone(),
            options: MountOptions::default(),
        };
        let files = FileSystem::mount(parts(&alive)).unwrap();
        let root = files.root();
        for dir in ["a", "a/b", "a/b/c"] {
            mkdir(&files, &root, dir.as_bytes());
        }
        let write = |path: &str| {
            let bytes = path.as_bytes().repeat(2000);
            assert_eq!(create(&files, &root, path.as_bytes()).pwrite(&bytes, 0).unwrap(), bytes.len());
        };
        write("a/b/c/synced");
        files.sync().unwrap();
        ["a/b/c/one", "a/b/two", "a/three", "four"].into_iter().for_each(write);
        files.link(Object::At(&root, b"four", Follow::No), &root, b"a/b/four", &ROOT).unwrap();
        rename(&files, "a/b", "moved").unwrap();
        write("moved/c/late");
        rename(&files, "moved/c", "a/c").unwrap();
        // The process dies: nothing of it runs any more, its memory stays.
        disk.cut_after(0);
        drop(root);
        drop(files);
        let disk = disk.survivor(|| true);
        let parts = MountParts {
            device: disk.device(),
            bytes: None,
            memory: memory(4 << 20),
            options: MountOptions::default(),
        };
        let files = salvage(parts, &alive, &[]).unwrap();
        let mut all = BTreeMap::new();
        contents(&files, &files.root(), "", &mut all);
        let expected = [
            ("/a/c/late", "moved/c/late"),
            ("/a/c/one", "a/b/c/one"),
            ("/a/c/synced", "a/b/c/synced"),
            ("/a/three", "a/three"),
            ("/four", "four"),
            ("/moved/four", "four"),
            ("/moved/two", "a/b/two"),
        ];
        let found: Vec<(&str, Vec<u8>)> =
            all.iter().map(|(path, (_, bytes))| (&path[..], bytes.clone())).collect();
        let expected: Vec<(&str, Vec<u8>)> =
            expected.iter().map(|(path, text)| (*path, text.as_bytes().repeat(2000))).collect();
        assert!(found == expected, "bound {bound}: {:?}", all.keys());
        disk.remount(files);
    }
}

#[test]
fn a_hard_link_may_go_and_the_record_comes_home() {
    let disk = Disk::new(64 << 20);
    let files = disk.format_zones(3).mount();
    let root = files.root();
    mkdir(&files, &root, b"tmp");
    mkdir(&files, &root, b"new");
    for n in 0..20 {
        let (from, to) = (format!("tmp/{n}"), format!("new/{n}"));
        let file = create(&files, &root, from.as_bytes());
        file.pwrite(&[n; BLOCK], 0).unwrap();
        files.link(Object::At(&root, from.as_bytes(), Follow::No), &root, to.as_bytes(), &ROOT).unwrap();
        assert_eq!(file.stat().nlink, 2);
        files.unlink(&root, from.as_bytes(), &ROOT).unwrap();
        if n % 2 == 0 {
            file.fsync().unwrap();
        }
    }
    // The name that goes may be the one that is remembered.
    create(&files, &root, b"tmp/stays").pwrite(b"here", 0).unwrap();
    files.link(Object::At(&root, b"tmp/stays", Follow::No), &root, b"new/goes", &ROOT).unwrap();
    files.unlink(&root, b"new/goes", &ROOT).unwrap();
    files.chmod(Object::At(&root, b"tmp/stays", Follow::No), 0o600, &ROOT).unwrap();
    let files = disk.remount(files);
    let root = files.root();
    assert_eq!(files.stat(&root, b"tmp/stays", Follow::No, &ROOT).unwrap().mode & 0o777, 0o600);
    assert!(matches!(files.stat(&root, b"new/goes", Follow::No, &ROOT), Err(FsError::NotFound)));
    rename(&files, "new", "tmp/new").unwrap();
    for n in 0..20 {
        let path = format!("tmp/new/{n}");
        let file = files.open(&root, path.as_bytes(), OpenFlags::READ, 0, &ROOT).unwrap();
        let mut bytes = [0; BLOCK];
        assert_eq!(file.pread(&mut bytes, 0).unwrap(), BLOCK);
        assert!(bytes.iter().all(|byte| *byte == n), "{path}");
        assert_eq!(file.stat().nlink, 1);
        files.unlink(&root, path.as_bytes(), &ROOT).unwrap();
        assert_eq!(file.pread(&mut bytes, 0).unwrap(), BLOCK, "open without a name");
    }
    drop(root);
    disk.remount(files);
}

/// A tree that only grows deeper costs each of its directories little: not all the names that a zone may have.
#[test]
fn a_deep_tree_is_not_re_keyed_at_each_step() {
    for bound in [4, 64] {
        let logged = |deep: bool| {
            let disk = Disk::new(128 << 20);
            let files = disk.format_zones(bound).mount();
            let before = files.store_stats().written.log;
            let mut at = files.root();
            for number in 0..2000 {
                let name = if deep { b"d".to_vec() } else { format!("d{number}").into_bytes() };
                let made = mkdir(&files, &at, &name);
                at = if deep { made } else { at };
            }
            files.sync().expect("sync");
            let logged = files.store_stats().written.log - before;
            drop(at);
            let files = disk.remount(files);
            // Every directory on the way down can be moved: what it takes along is bounded.
            let (mut at, mut steps) = (files.root(), 0);
            while let (true, Ok(next)) = (deep, files.lookup(&at, b"d", Follow::No, &ROOT)) {
                files.rename(&at, b"d", &at, b"moved", RenameFlags::Replace, &ROOT).expect("rename");
                (at, steps) = (next, steps + 1);
            }
            assert_eq!(steps, if deep { 2000 } else { 0 });
            drop(at);
            disk.remount(files);
            logged
        };
        let (deep, flat) = (logged(true), logged(false));
        assert!(
            deep < 8 * flat,
            "bound {bound}: {deep} blocks of log for a deep tree, {flat} for a flat one"
        );
    }
}
