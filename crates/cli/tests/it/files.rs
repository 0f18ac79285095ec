//! The subcommands that look into a device and change what is on it, against the host's own files.

use crate::scratch::Scratch;
use nvmed_fs::FileSystem;
use nvmed_io::Binding;
use nvmed_kv::{Barrier, Batch, DeviceMedium, Options, PendingMemory, Store};
use nvmed_stack::{DeviceSpec, Open, open_device};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Block;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

/// Every name below `dir` with what it is: the bytes of a file, the target of a link.
fn tree(dir: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(here) = waiting.pop() {
        for entry in std::fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            let meta = path.symlink_metadata().unwrap();
            let bytes = if meta.is_symlink() {
                std::fs::read_link(&path).unwrap().display().to_string().into_bytes()
            } else if meta.is_dir() {
                waiting.push(path);
                Vec::new()
            } else {
                std::fs::read(&path).unwrap()
            };
            found.insert(name, (meta.mode(), bytes));
        }
    }
    found
}

/// A tree with what trees have: sizes around block edges, holes, links, odd names, modes.
fn sample(scratch: &Scratch) {
    for (index, size) in [0, 1, 511, 4095, 4096, 4097, 131_072, 300_001].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..size).map(|byte| (byte * 7 + index) as u8).collect();
        scratch.file(&format!("src/deep/er/f{index}"), bytes);
    }
    scratch.file("src/with space", "x");
    scratch.file("src/.hidden", "h");
    scratch.file("src/übung", "ü");
    scratch.file(&format!("src/{}", "n".repeat(255)), "long");
    let sparse = std::fs::File::create(scratch.path("src/sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    symlink("deep/er/f1", scratch.path("src/link")).unwrap();
    symlink("nowhere", scratch.path("src/dangling")).unwrap();
    let tool = scratch.file("src/tool", "#!/bin/sh\n");
    std::fs::set_permissions(tool, std::fs::Permissions::from_mode(0o751)).unwrap();
    std::fs::create_dir(scratch.path("src/empty")).unwrap();
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let scratch = Scratch::with_device("256M");
    sample(&scratch);
    scratch.ok(["cp", "-rp", "src", "d.img:/dst"]);
    scratch.ok(["cp", "-rp", "d.img:/dst", "back"]);
    assert_eq!(tree(&scratch.path("src")), tree(&scratch.path("back")));
    let times = |dir: &str| scratch.path(dir).join("tool").metadata().unwrap().mtime_nsec();
    assert_eq!(times("src"), times("back"), "times are kept");
    assert!(scratch.path("back/sparse").metadata().unwrap().blocks() < 64, "holes are kept");
    assert!(scratch.ok(["fsck", "d.img"]).contains("clean"));
}

#[test]
fn copies_go_into_directories_and_between_devices() {
    let scratch = Scratch::with_device("64M");
    scratch.ok(["format", "e.img", "--size", "64M"]);
    scratch.file("a", "aa");
    scratch.file("b", "bb");
    scratch.ok(["mkdir", "d.img:/in"]);
    scratch.ok(["cp", "a", "b", "d.img:/in"]);
    scratch.ok(["cp", "-r", "d.img:/in", "e.img:/"]);
    assert_eq!(scratch.ok(["cat", "e.img:/in/a", "e.img:/in/b"]), "aabb");
    scratch.ok(["cp", "d.img:/in/a", "d.img:/in/c"]);
    assert_eq!(scratch.ok(["ls", "d.img:/in"]), "a\nb\nc\n");
    scratch.fails(["cp", "d.img:/in", "x"], 2, "add -r");
    scratch.fails(["cp", "a", "b", "d.img:/file"], 2, "existing directory");
    scratch.fails(["cp", "a", "b"], 2, "all files are on the host");
    scratch.fails(["cp", "d.img:/in/a", "d.img:/in/a"], 2, "are the same file");
    scratch.fails(["cp", "missing", "d.img:/x"], 1, "missing: No such file");
    scratch.fails(["cp", "d.img:/missing", "x"], 1, "d.img:/missing: ");
}

#[test]
fn a_directory_copied_into_itself_ends() {
    let scratch = Scratch::with_device("64M");
    scratch.ok(["mkdir", "-p", "d.img:/a/b"]);
    scratch.ok(["cp", "-r", "d.img:/a", "d.img:/a/b/c"]);
    assert_eq!(scratch.ok(["ls", "d.img:/a/b/c"]), "b\n");
    assert_eq!(scratch.ok(["ls", "d.img:/a/b/c/b"]), "");
}

#[test]
fn directories_are_made_and_removed() {
    let scratch = Scratch::with_device("64M");
    scratch.ok(["mkdir", "-p", "d.img:/a/b/c", "d.img:/a/b/c"]);
    scratch.fails(["mkdir", "d.img:/a"], 1, "exists already");
    scratch.fails(["mkdir", "d.img:/x/y"], 1, "no such file or directory");
    scratch.ok(["mkdir", "-m", "700", "d.img:/private"]);
    assert!(scratch.ok(["ls", "-ld", "d.img:/private"]).starts_with("drwx------"));
    scratch.fails(["rm", "d.img:/a"], 2, "add -r");
    scratch.ok(["rm", "-r", "d.img:/a"]);
    scratch.fails(["rm", "d.img:/a"], 1, "no such file");
    scratch.ok(["rm", "-f", "d.img:/a"]);
    scratch.fails(["rm", "-r", "d.img:/"], 2, "the root stays");
    assert_eq!(scratch.ok(["ls", "d.img"]), "private\n");
}

#[test]
fn files_are_moved() {
    let scratch = Scratch::with_device("64M");
    scratch.file("a", "aa");
    scratch.ok(["cp", "a", "d.img:/a"]);
    scratch.ok(["cp", "a", "d.img:/b"]);
    scratch.fails(["mv", "-n", "d.img:/a", "d.img:/b"], 1, "exists already");
    scratch.ok(["mv", "d.img:/a", "d.img:/b"]);
    scratch.ok(["mkdir", "d.img:/dir"]);
    scratch.ok(["mv", "d.img:/b", "d.img:/dir"]);
    assert_eq!(scratch.ok(["cat", "d.img:/dir/b"]), "aa");
    scratch.ok(["format", "e.img", "--size", "64M"]);
    scratch.fails(["mv", "d.img:/dir/b", "e.img:/b"], 2, "two devices");
    scratch.fails(["mv", "d.img:/dir", "d.img:/dir/in/itself"], 1, "d.img:/dir");
}

#[test]
fn status_is_told_for_people_and_programs() {
    let scratch = Scratch::with_device("64M");
    scratch.file("a", "12345");
    scratch.ok(["cp", "a", "d.img:/a"]);
    let long = scratch.ok(["ls", "-l", "d.img"]);
    assert!(long.starts_with("-rw") && long.contains(" 5 20") && long.ends_with(" a\n"), "{long}");
    assert!(scratch.ok(["stat", "d.img:/a"]).contains("regular file"));
    assert!(scratch.ok(["stat", "--json", "d.img:/a"]).contains("\"size\":5"));
    scratch.fails(["ls", "d.img:a"], 2, "write d.img:/a; a host file of that name is host:d.img:a");
    scratch.fails(["cp", "a", "d.img:b"], 2, "write d.img:/b");
    scratch.file("d.img:b", "67");
    scratch.ok(["cp", "host:d.img:b", "d.img:/b"]);
    assert_eq!(scratch.ok(["cat", "d.img:/b"]), "67");
    assert!(scratch.ok(["trim", "--minimum", "64K", "d.img"]).contains("MiB of free space"));
    assert_eq!(scratch.ok(["cat", "d.img:/a"]), "12345");
    let json = scratch.ok(["df", "--json", "d.img"]);
    assert!(json.starts_with('{') && json.contains("\"free\":"), "{json}");
    assert!(scratch.ok(["info", "d.img"]).contains("NVMe"));
    assert!(scratch.ok(["info", "--json", "d.img"]).contains("\"lba_bytes\":512"));
}

#[test]
fn df_has_the_columns_of_df() {
    let scratch = Scratch::with_device("64M");
    let table = |options: &[&str]| {
        let said = scratch.ok([&["df"], options, &["d.img"]].concat());
        said.lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let plain = table(&[]);
    assert_eq!(plain[0].join(" "), "Filesystem 1K-blocks Used Available Use% Mounted on");
    let number = |row: &[String], column: usize| row[column].parse::<u64>().unwrap();
    assert_eq!(number(&plain[1], 1), number(&plain[1], 2) + number(&plain[1], 3));
    assert!(
        plain[2].join(" ").starts_with("d.img: 64.0 MiB in all; 8.0 MiB are set aside"),
        "{:?}",
        plain[2]
    );
    let human = table(&["-h", "-T"]);
    assert_eq!(human[1].join(" "), "d.img nvmedfs 56M 0 56M 0% -");
    assert_eq!(table(&["-P"]).len(), 2, "nothing behind the table");
    assert_eq!(table(&["-B", "M", "--total"])[2].join(" "), "total 56 0 56 0% -");
    let inodes = table(&["-i"]);
    assert_eq!(inodes[0][1..5].join(" "), "Inodes IUsed IFree IUse%");
    assert_eq!((number(&inodes[1], 2), inodes.len()), (1, 2), "the root directory");
    assert!(scratch.ok(["df", "--help"]).contains("--human-readable"));
}

#[test]
fn every_command_has_help() {
    let scratch = Scratch::new();
    for command in
        ["format", "run", "ls", "cat", "cp", "mkdir", "rm", "mv", "stat", "df", "fsck", "trim", "info"]
    {
        let help = scratch.ok([command, "--help"]);
        assert!(help.contains("Usage: nvmed ") && help.contains("Exit status"), "{help}");
    }
}

/// A damaged superblock is written again, a plan says so first, and damage that is beyond repair changes nothing.
#[test]
fn fsck_repairs() {
    let scratch = Scratch::with_device("64M");
    scratch.file("a", "kept");
    scratch.ok(["cp", "a", "d.img:/a"]);
    assert_eq!(scratch.ok(["fsck", "--repair", "d.img"]), "d.img: clean\n");
    let path = scratch.path("d.img");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let ran = scratch.run(["fsck", "--repair", "-n", "d.img"]);
    assert!(ran.status == 1 && ran.out.contains("one superblock is damaged"), "{}{}", ran.out, ran.err);
    assert!(ran.out.ends_with("nothing was changed\n"), "{}", ran.out);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "a dry run changed something");
    let said = scratch.ok(["fsck", "--repair", "d.img"]);
    assert!(said.contains("one superblock is damaged") && said.ends_with("clean\n"), "{said}");
    assert_eq!(scratch.ok(["fsck", "--repair", "d.img"]), "d.img: clean\n");
    assert_eq!(scratch.ok(["cat", "d.img:/a"]), "kept");
}

/// The extents of the files of an image, as its metadata store has them: key, and first block.
fn extents(store: &Store) -> Vec<(Vec<u8>, u64)> {
    let start = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
    let mut found = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        if key.starts_with(&start) {
            found.push((key.to_vec(), u64::from_le_bytes(value[..8].try_into().unwrap())));
        }
        ControlFlow::Continue(())
    };
    store.scan(Bound::Unbounded, Bound::Unbounded, &mut visit).unwrap();
    found
}

/// Makes an image lose one extent of its only file; answers the first block of another.
fn lose_an_extent(image: &Path) -> u64 {
    let spec = DeviceSpec::parse(&format!("virtual:{}", image.display())).unwrap();
    let device = open_device(&spec, Open::Existing { locked_by_run: false }).unwrap();
    let superblock = FileSystem::probe(&device).unwrap();
    let blocks = Block(superblock.meta_first)..Block(superblock.data_first);
    let medium = DeviceMedium::new(&device, device.handle(Binding::Spread), blocks).unwrap();
    let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
    let pending = PendingMemory { memory, offset: 0, len: 1 << 20 };
    let store = Store::open(Arc::new(medium), pending, &Options::default()).unwrap();
    let found = extents(&store);
    assert_eq!(found.len(), 12);
    let mut batch = Batch::new();
    batch.delete(&found[3].0);
    let last = store.apply(&batch).unwrap();
    store.commit(last, Barrier::None).unwrap();
    store.close().unwrap();
    drop(store);
    device.shutdown().unwrap();
    found[7].1
}

/// What a script learns from a repair: 0 that all is right and can be copied out, 1 that some of it cannot, 4 that
/// nothing was done.
#[test]
fn the_status_of_a_repair_says_what_is_left() {
    let scratch = Scratch::with_device("64M");
    let script = "for page in 0 2 4 6 8 10 12 14 16 18 20 22; do yes kept | dd of=store/f bs=4096 count=1 \
                  iflag=fullblock seek=$page conv=notrunc,fsync status=none || exit 1; done";
    assert_eq!(scratch.on_device(["sh", "-c", script]).err, "");
    let clean = scratch.run(["fsck", "--repair", "d.img"]);
    assert_eq!((clean.status, clean.out.as_str()), (0, "d.img: clean\n"));
    let path = scratch.path("d.img");
    let block = lose_an_extent(&path);
    std::fs::copy(&path, scratch.path("other.img")).unwrap();
    assert_eq!(scratch.run(["fsck", "d.img"]).status, 1);
    let repaired = scratch.run(["fsck", "--repair", "d.img"]);
    assert!(repaired.status == 0 && repaired.out.ends_with("; clean\n"), "{}{}", repaired.out, repaired.err);
    assert_eq!(scratch.run(["fsck", "d.img"]).status, 0);
    // A block of the same file is lost to the device.
    let lost =
        format!("virtual:other.img?faults=fail:status=0x281+op=read+lba={}..{}", block * 8, block * 8 + 8);
    let partly = scratch.run(["fsck", "--repair", &lost]);
    assert!(partly.status == 1 && partly.out.contains("cannot be copied out whole"), "{}", partly.out);
    assert!(partly.out.contains("\"f\" (inode "), "{}", partly.out);
    assert_eq!(scratch.run(["fsck", "other.img"]).status, 0, "its metadata is right");
    // No superblock is left, and it is not known where anything was.
    let image = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    image.set_len(0).unwrap();
    image.set_len(64 << 20).unwrap();
    let nothing = scratch.run(["fsck", "--repair", "d.img"]);
    assert!(nothing.status == 4 && nothing.err.lines().count() == 1, "{}{}", nothing.out, nothing.err);
}

/// Of a metadata store with a damaged block everything is copied that the block did not tell of.
#[test]
fn fsck_salvages() {
    let scratch = Scratch::with_device("64M");
    for number in 0..400 {
        scratch.file(
            &format!("in/d{}/file{number:03}", number % 5),
            format!("{number}\n").repeat(3000 / (number % 7 + 1)),
        );
    }
    symlink("d1/file001", scratch.path("in/link")).unwrap();
    scratch.ok(["cp", "-r", "in", "d.img:/"]);
    scratch.ok(["fsck", "--salvage", "whole", "d.img"]);
    let same = |copy: &str, number: usize| {
        let name = format!("in/d{}/file{number:03}", number % 5);
        std::fs::read(scratch.path(format!("{copy}/{name}")))
            .is_ok_and(|bytes| bytes == std::fs::read(scratch.path(&name)).unwrap())
    };
    assert!((0..400).all(|number| same("whole", number)), "a sound file system is copied");
    assert_eq!(std::fs::read_link(scratch.path("whole/in/link")).unwrap(), Path::new("d1/file001"));
    // A leaf of the tree in which names lie.
    let path = scratch.path("d.img");
    let mut bytes = std::fs::read(&path).unwrap();
    let named = |block: &[u8]| {
        block.windows(4).filter(|part| part.starts_with(b"file") || part.starts_with(b"ile")).count() > 5
    };
    let mut blocks =
        bytes.chunks(4096).enumerate().filter(|(_, block)| block.starts_with(b"KVN") && named(block));
    let Some((leaf, _)) = blocks.next_back() else {
        return println!("SKIPPED: no leaf with names was found");
    };
    bytes[leaf * 4096 + 2000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    if scratch.run(["fsck", "d.img"]).status == 0 {
        return println!("SKIPPED: the leaf was not in use");
    }
    let repair = scratch.run(["fsck", "--repair", "d.img"]);
    assert!(repair.status == 4 && repair.err.contains("--salvage"), "{}", repair.err);
    let ran = scratch.run(["fsck", "--salvage", "part", "d.img"]);
    assert!(ran.status == 1 && ran.out.contains("damaged"), "{}{}", ran.out, ran.err);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "the device was changed");
    let found = walkdir(&scratch.path("part"));
    assert!(found > 100, "{found} files are left");
}

fn walkdir(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { walkdir(&path) } else { 1 }).sum()
}

/// A tree far deeper than a path can say goes in, round, out and away again.
#[test]
fn a_deep_tree_is_copied_salvaged_and_removed() {
    const DEPTH: usize = 2100;
    let scratch = Scratch::with_device("256M");
    let deep = |top: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = rustix::fs::open(scratch.path(top), flags, Mode::empty()).unwrap();
        let mut depth = 0;
        while let Ok(below) = rustix::fs::openat(&at, "d", flags, Mode::empty()) {
            (at, depth) = (below, depth + 1);
        }
        (at, depth)
    };
    let rwx = Mode::from_raw_mode(0o755);
    std::fs::create_dir(scratch.path("src")).unwrap();
    let mut at = deep("src").0;
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&at, "d", rwx).unwrap();
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    rustix::fs::openat(&at, "leaf", OFlags::CREATE | OFlags::WRONLY, rwx).unwrap();
    scratch.ok(["cp", "-rp", "src", "d.img:/dst"]);
    scratch.ok(["fsck", "d.img"]);
    scratch.ok(["fsck", "--repair", "d.img"]);
    scratch.ok(["fsck", "--salvage", "saved", "d.img"]);
    scratch.ok(["cp", "-r", "d.img:/dst", "d.img:/again"]);
    scratch.ok(["rm", "-r", "d.img:/dst"]);
    scratch.ok(["cp", "-r", "d.img:/again", "back"]);
    for copy in ["saved/dst", "back"] {
        let (bottom, depth) = deep(copy);
        assert_eq!(depth, DEPTH, "{copy}");
        rustix::fs::statat(&bottom, "leaf", rustix::fs::AtFlags::empty()).unwrap();
    }
    scratch.ok(["rm", "-r", "d.img:/again"]);
    scratch.ok(["fsck", "d.img"]);
}
