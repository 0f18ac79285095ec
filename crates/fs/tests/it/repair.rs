//! Records of a file system changed at random, with good checksums: a repair makes it sound, and what was not touched
//! keeps its bytes. Also when the power goes in the middle.

use crate::support::Disk;
use nvmed_check::{Wreck, fsck, plan_repair};
use nvmed_dice::Dice;
use nvmed_fs::{Credentials, FileSystem, Follow, FormatOptions, FsError, MountOptions, Object, OpenFlags};
use nvmed_io::Binding;
use nvmed_kv::{Barrier, Batch, DeviceMedium, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{Block, Page};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

const ROOT: Credentials<'static> = Credentials::ROOT;

/// What a path has: bytes of a file, or a link's target.
type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

fn write(files: &FileSystem, path: &str, bytes: &[u8], tree: &mut Tree) {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), path.as_bytes(), flags, 0o644, &ROOT).unwrap();
    assert_eq!(file.pwrite(bytes, 0).unwrap(), bytes.len());
    tree.insert(path.as_bytes().to_vec(), bytes.to_vec());
}

/// A file system with some of everything.
fn build(zone_bound: u32) -> (Arc<Disk>, Tree) {
    let disk = Disk::new(32 << 20);
    let options =
        FormatOptions { zone_bound, uid: 0, gid: 0, uuid: Some([7; 16]), ..FormatOptions::default() };
    FileSystem::format(&disk.device(), &options).unwrap();
    let files = disk.mount();
    let (root, mut tree) = (files.root(), Tree::new());
    for directory in ["a", "a/b", "a/b/c", "d", "many"] {
        files.mkdir(&root, directory.as_bytes(), 0o755, &ROOT).unwrap();
    }
    for (number, path) in ["top", "a/one", "a/b/two", "a/b/c/three", "d/four"].iter().enumerate() {
        write(&files, path, &vec![number as u8 + 1; 10_000 + number * 3000], &mut tree);
        write(&files, &format!("{path}.small"), format!("small {number}").as_bytes(), &mut tree);
    }
    for number in 0..12 {
        write(&files, &format!("many/{number}"), &[number; 5000], &mut tree);
    }
    // Extents in records of their own: every other page of a file.
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&root, b"d/sparse", flags, 0o644, &ROOT).unwrap();
    let mut bytes = vec![0; 12 * 8192];
    for page in 0..12 {
        file.pwrite(&[9; 4096], page * 8192).unwrap();
        file.fsync().unwrap();
        bytes[page as usize * 8192..page as usize * 8192 + 4096].fill(9);
    }
    bytes.truncate(11 * 8192 + 4096);
    tree.insert(b"d/sparse".to_vec(), bytes);
    files.link(Object::At(&root, b"top", Follow::No), &root, b"a/again", &ROOT).unwrap();
    tree.insert(b"a/again".to_vec(), tree[b"top".as_slice()].clone());
    files.symlink(b"a/one", &root, b"short", &ROOT).unwrap();
    files.symlink(&[b'x'; 1500], &root, b"long", &ROOT).unwrap();
    let set = |name: &[u8], bytes: usize| {
        files
            .set_xattr(
                Object::At(&root, b"top", Follow::Yes),
                name,
                &vec![5; bytes],
                nvmed_fs::SetXattr::Any,
                &ROOT,
            )
            .unwrap();
    };
    set(b"user.short", 10);
    set(b"user.long", 2500);
    drop(file);
    files.unmount().unwrap();
    (disk, tree)
}

fn store(disk: &Arc<Disk>) -> Store {
    let device = disk.device();
    let superblock = FileSystem::probe(&device).unwrap();
    let blocks = Block(superblock.meta_first)..Block(superblock.data_first);
    let medium = DeviceMedium::new(&device, device.handle(Binding::Spread), blocks).unwrap();
    assert_eq!(superblock.meta_runs.len(), 1, "metadata has not grown");
    let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
    let pending = PendingMemory { memory, offset: 0, len: 1 << 20 };
    Store::open(Arc::new(medium), pending, &nvmed_kv::Options::default()).unwrap()
}

fn records(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store.scan(Bound::Unbounded, Bound::Unbounded, &mut visit).unwrap();
    all
}

#[derive(Clone, Debug)]
enum Damage {
    Delete(prop::sample::Index),
    Flip(prop::sample::Index, prop::sample::Index, u8),
    Swap(prop::sample::Index, prop::sample::Index),
    Cut(prop::sample::Index, prop::sample::Index),
    Rename(prop::sample::Index, prop::sample::Index, u8),
    Put(Vec<u8>, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let any_index = any::<prop::sample::Index>;
    prop_oneof![
        3 => any_index().prop_map(Damage::Delete),
        5 => (any_index(), any_index(), 0u8..8).prop_map(|(at, byte, bit)| Damage::Flip(at, byte, bit)),
        2 => (any_index(), any_index()).prop_map(|(one, other)| Damage::Swap(one, other)),
        1 => (any_index(), any_index()).prop_map(|(at, byte)| Damage::Cut(at, byte)),
        2 => (any_index(), any_index(), 0u8..8).prop_map(|(at, byte, bit)| Damage::Rename(at, byte, bit)),
        1 => (prop::collection::vec(any::<u8>(), 0..30), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(key, value)| Damage::Put(key, value)),
    ]
}

/// Damages the metadata; answers the keys that were changed.
fn apply(disk: &Arc<Disk>, damages: &[Damage]) -> Vec<Vec<u8>> {
    let store = store(disk);
    let all = records(&store);
    let mut batch = Batch::new();
    let mut changed = Vec::new();
    for damage in damages {
        match damage {
            Damage::Delete(at) => {
                let (key, _) = at.get(&all);
                batch.delete(key);
                changed.push(key.clone());
            }
            Damage::Flip(at, byte, bit) => {
                let (key, mut value) = at.get(&all).clone();
                if !value.is_empty() {
                    let byte = byte.index(value.len());
                    value[byte] ^= 1 << bit;
                }
                batch.put(&key, &value);
                changed.push(key);
            }
            Damage::Swap(one, other) => {
                let ((key, value), (other_key, other_value)) = (one.get(&all), other.get(&all));
                batch.put(key, other_value);
                batch.put(other_key, value);
                changed.extend([key.clone(), other_key.clone()]);
            }
            Damage::Cut(at, byte) => {
                let (key, value) = at.get(&all);
                batch.put(key, &value[..byte.index(value.len() + 1)]);
                changed.push(key.clone());
            }
            Damage::Rename(at, byte, bit) => {
                let (key, value) = at.get(&all);
                let mut new = key.clone();
                let byte = byte.index(new.len());
                new[byte] ^= 1 << bit;
                batch.delete(key);
                batch.put(&new, value);
                changed.extend([key.clone(), new]);
            }
            Damage::Put(key, value) => {
                batch.put(key, value);
                changed.push(key.clone());
            }
        }
    }
    let last = store.apply(&batch).unwrap();
    store.commit(last, Barrier::None).unwrap();
    store.close().unwrap();
    changed
}

fn repair(disk: &Arc<Disk>) -> Result<Vec<String>, FsError> {
    let device = disk.device();
    let plan = plan_repair(&device)?;
    let lines = plan.lines().to_vec();
    plan.carry_out(&device)?;
    Ok(lines)
}

/// Whether a change of these keys can matter to a path's bytes: those of names on the way to it, of zones and of its
/// inode.
fn is_touched(path: &[u8], ino: u64, changed: &[Vec<u8>]) -> bool {
    let steps: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    changed.iter().any(|key| {
        let tag = key.first() == Some(&0xff);
        let chunk =
            |at: usize| key.get(at..at + 8).map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
        if tag {
            return chunk(8) == Some(ino) && key.get(7) != Some(&3);
        }
        // A name anywhere that is called as a step of the path: which directory it is in is of no matter here.
        let name = key.rsplit(|byte| *byte == 0).next().unwrap_or(&[]);
        steps.contains(&name)
    })
}

/// Numbers that a plan says several inodes had, or several names of directories.
fn disputed(plan: &[String]) -> BTreeSet<u64> {
    let number = |line: &String| {
        let said = ["two inodes have the number ", "is a second name of directory "];
        let (_, rest) = said.iter().find_map(|said| line.split_once(said))?;
        rest.split(':').next()?.parse().ok()
    };
    plan.iter().filter_map(number).collect()
}

/// Every file that was not touched has its bytes; whatever else is there can be listed and read.
fn check(disk: &Arc<Disk>, tree: &Tree, inos: &BTreeMap<Vec<u8>, u64>, changed: &[Vec<u8>], plan: &[String]) {
    let found = fsck(&disk.device()).unwrap();
    assert_eq!(found, [], "after {plan:#?}");
    let again = plan_repair(&disk.device()).unwrap();
    assert_eq!((again.lines(), again.records()), (&[][..], (0, 0)), "a second repair has nothing to do");
    drop(again);
    let files = disk.mount();
    let mut contents = Vec::new();
    walk(&files, b".", 0, &mut contents);
    let disputed = disputed(plan);
    for (path, bytes) in tree.iter().filter(|(path, _)| !is_touched(path, inos[*path], changed)) {
        // Of two that have one number nobody knows whose it was: what is in the one may then be found in the other.
        if ways(path).any(|way| disputed.contains(&inos[way])) {
            assert!(contents.contains(bytes), "{}: lost; {plan:#?}", String::from_utf8_lossy(path));
            continue;
        }
        let file = files.open(&files.root(), path, OpenFlags::READ, 0, &ROOT);
        let file =
            file.unwrap_or_else(|error| panic!("{}: {error}; {plan:#?}", String::from_utf8_lossy(path)));
        let mut read = vec![0; bytes.len() + 10];
        let count = file.pread(&mut read, 0).unwrap();
        assert!(read[..count] == bytes[..], "{}: other bytes; {plan:#?}", String::from_utf8_lossy(path));
    }
    write(&files, "new", b"works on", &mut Tree::new());
    files.unmount().unwrap();
}

fn walk(files: &FileSystem, path: &[u8], depth: u32, contents: &mut Vec<Vec<u8>>) {
    assert!(depth < 40, "directories in a circle");
    let directory =
        files.open(&files.root(), path, OpenFlags::READ.with(OpenFlags::DIRECTORY), 0, &ROOT).unwrap();
    let mut names = Vec::new();
    let mut tell = |entry: nvmed_fs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    };
    directory.read_dir(&mut tell).unwrap();
    for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
        let below = [path, b"/", &name].concat();
        let stat = files.stat(&files.root(), &below, Follow::No, &ROOT).unwrap();
        match stat.kind() {
            nvmed_fs::FileType::Directory => walk(files, &below, depth + 1, contents),
            nvmed_fs::FileType::File => {
                let file = files.open(&files.root(), &below, OpenFlags::READ, 0, &ROOT).unwrap();
                let mut bytes = vec![0; 1 << 17];
                let count = file.pread(&mut bytes, 0).unwrap();
                bytes.truncate(count);
                contents.push(bytes);
            }
            nvmed_fs::FileType::Symlink => {
                drop(files.readlink(Object::At(&files.root(), &below, Follow::No), &ROOT).unwrap())
            }
            _ => {}
        }
    }
}

/// A path, and the directories on the way to it.
fn ways(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    ends.chain([path.len()]).map(|end| &path[..end])
}

/// The inode numbers of all paths, and of the directories on the way to them.
fn numbers(disk: &Arc<Disk>, tree: &Tree) -> BTreeMap<Vec<u8>, u64> {
    let files = disk.mount();
    let ino = |path: &[u8]| files.stat(&files.root(), path, Follow::No, &ROOT).unwrap().ino;
    let numbers = tree.keys().flat_map(|path| ways(path)).map(|path| (path.to_vec(), ino(path))).collect();
    files.unmount().unwrap();
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_damaged_is_put_right(
        bound in prop_oneof![Just(0), Just(4), Just(64)],
        damages in prop::collection::vec(damage(), 1..8),
    ) {
        let (disk, tree) = build(bound);
        let inos = numbers(&disk, &tree);
        let changed = apply(&disk, &damages);
        let plan = repair(&disk).unwrap();
        check(&disk, &tree, &inos, &changed, &plan);
    }

    #[test]
    fn a_repair_that_is_cut_off_can_be_made_again(
        bound in prop_oneof![Just(0), Just(4), Just(64)],
        damages in prop::collection::vec(damage(), 1..8),
        cut in 0u64..30,
        seed in any::<u64>(),
    ) {
        let (disk, tree) = build(bound);
        let inos = numbers(&disk, &tree);
        let changed = apply(&disk, &damages);
        let mut plan = plan_repair(&disk.device()).unwrap().lines().to_vec();
        disk.cut_after(cut);
        let _ = repair(&disk);
        let mut coin = Dice::new(seed);
        let disk = disk.survivor(|| coin.chance(50));
        plan.extend(repair(&disk).unwrap());
        check(&disk, &tree, &inos, &changed, &plan);
    }
}

/// Looks at everything and believes nothing: errors are answers, panics and circles are not.
fn look(files: &FileSystem, path: &[u8], depth: u32, left: &mut u32) {
    let Ok(directory) = files.open(&files.root(), path, OpenFlags::READ.with(OpenFlags::DIRECTORY), 0, &ROOT)
    else {
        return;
    };
    let mut names = Vec::new();
    let _ = directory.read_dir(&mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    });
    for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
        // Directories may lie in each other by damage: what is looked at is bounded.
        if *left == 0 || depth > 20 {
            return;
        }
        *left -= 1;
        let below = [path, b"/", &name].concat();
        if let Ok(file) = files.open(&files.root(), &below, OpenFlags::READ, 0, &ROOT) {
            let mut bytes = vec![0; 1 << 17];
            let _ = file.pread(&mut bytes, 0);
            let _ = (
                file.stat(),
                file.seek(0, nvmed_fs::Whence::Data),
                file.files().list_xattr(Object::Open(&file), &ROOT),
            );
        }
        let _ = files.readlink(Object::At(&files.root(), &below, Follow::No), &ROOT);
        look(files, &below, depth + 1, left);
    }
}

/// Damage that nobody has repaired: reading and changing answer errors, and go on.
fn survive(disk: &Arc<Disk>) {
    let _ = fsck(&disk.device());
    if let Ok(plan) = plan_repair(&disk.device()) {
        let _ = (plan.lines().len(), plan.records());
    }
    if let Ok(wreck) = Wreck::open(&disk.device()) {
        for rescued in wreck.entries() {
            let mut page = [0; 4096];
            let _ = wreck
                .pages(&rescued)
                .first()
                .map(|first| wreck.read_page(&rescued, *first, &mut page).is_ok());
        }
    }
    let Ok(files) = disk.try_mount(nvmed_fs::MountOptions::default(), 8 << 20) else { return };
    look(&files, b".", 0, &mut 500);
    let root = files.root();
    let _ = files.open(&root, b"fresh", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o644, &ROOT).map(
        |file| {
            let _ = (file.pwrite(&[1; 10_000], 0), file.fsync());
        },
    );
    let _ = files.unlink(&root, b"top", &ROOT);
    let _ = files.rename(&root, b"a", &root, b"moved", nvmed_fs::RenameFlags::default(), &ROOT);
    let _ = files.unmount();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Records with good checksums that say anything.
    #[test]
    fn fuzz_damaged_records_are_survived(
        bound in prop_oneof![Just(0), Just(4), Just(64)],
        damages in prop::collection::vec(damage(), 1..12),
    ) {
        let (disk, _) = build(bound);
        apply(&disk, &damages);
        survive(&disk);
    }

    /// Images with any bytes anywhere.
    #[test]
    fn fuzz_images_are_survived(
        pokes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..4096, prop::collection::vec(any::<u8>(), 1..64)),
            1..20,
        ),
    ) {
        let (disk, _) = build(64);
        let superblock = FileSystem::probe(&disk.device()).unwrap();
        // Where something is: superblocks, log, bitmap and tree of the store, the first data.
        let is_used = |block: &u64| disk.peek(*block).iter().any(|&byte| byte != 0);
        let blocks: Vec<u64> = (0..superblock.blocks).filter(is_used).collect();
        for (at, offset, bytes) in &pokes {
            disk.poke(*at.get(&blocks), |block| {
                let end = (offset + bytes.len()).min(block.len());
                block[*offset..end].copy_from_slice(&bytes[..end - offset]);
            });
        }
        survive(&disk);
    }
}

/// A sound file system is left as it is.
#[test]
fn there_is_nothing_to_repair() {
    for bound in [0, 4, 64] {
        let (disk, tree) = build(bound);
        let writes = disk.writes();
        let plan = plan_repair(&disk.device()).unwrap();
        assert_eq!((plan.lines(), plan.records()), (&[][..], (0, 0)), "bound {bound}");
        plan.carry_out(&disk.device()).unwrap();
        assert_eq!(disk.writes(), writes);
        let inos = numbers(&disk, &tree);
        check(&disk, &tree, &inos, &[], &[]);
    }
}

/// Either superblock may be lost.
#[test]
fn a_lost_superblock_is_written_again() {
    let (disk, tree) = build(64);
    let last = FileSystem::probe(&disk.device()).unwrap().blocks - 1;
    for block in [0, last] {
        disk.poke(block, |bytes| bytes[100..600].fill(0xee));
        let plan = repair(&disk).unwrap();
        assert!(plan[0].contains("superblock"), "{plan:?}");
        assert_eq!(disk.peek(0), disk.peek(last));
    }
    let inos = numbers(&disk, &tree);
    check(&disk, &tree, &inos, &[], &[]);
}

/// A block of the log that was durable is damaged: no mount, no repair, and a salvage of what came before.
#[test]
fn a_damaged_log_is_told_and_salvaged() {
    let disk = Disk::new(32 << 20);
    let (files, mut tree) = (disk.format().mount(), Tree::new());
    for number in 0..100 {
        write(&files, &format!("file{number:03}"), &[number; 5000], &mut tree);
        files.sync().unwrap();
    }
    // The mount is not ended: what happened is in the log.
    let disk = disk.copy();
    let meta = FileSystem::probe(&disk.device()).unwrap();
    let log: Vec<u64> =
        (meta.meta_first..meta.data_first).filter(|&block| disk.peek(block).starts_with(b"KVLB")).collect();
    let damaged = log[log.len() / 2];
    disk.poke(damaged, |bytes| bytes[2000] ^= 1);
    let refused = disk.try_mount(MountOptions::default(), 8 << 20).err().unwrap().to_string();
    assert!(refused.contains("(log) is damaged") && refused.contains("--salvage"), "{refused}");
    assert_eq!(plan_repair(&disk.device()).err().map(|error| error.to_string()), Some(refused.clone()));
    let findings = fsck(&disk.device()).unwrap();
    assert!(findings.len() == 1 && findings[0].to_string().contains("(log)"), "{findings:?}");
    let wreck = Wreck::open(&disk.device()).unwrap();
    assert!(wreck.damage().is_some_and(|damage| refused.contains(damage)));
    let found: Vec<_> = wreck.entries().collect();
    assert!((10..100).contains(&found.len()), "{} files of 100", found.len());
    let mut page = [0; 4096];
    // Of the last one the log may tell no more than its name.
    for file in &found[..found.len() - 1] {
        wreck.read_page(file, Page::FIRST, &mut page).unwrap();
        assert!(page[..] == tree[&file.name][..4096], "{}", String::from_utf8_lossy(&file.name));
    }
}

/// Changes records of the store.
fn change(disk: &Arc<Disk>, which: impl Fn(&[u8]) -> bool) -> usize {
    let store = store(disk);
    let mut batch = Batch::new();
    let gone: Vec<_> = records(&store).into_iter().filter(|(key, _)| which(key)).collect();
    gone.iter().for_each(|(key, _)| batch.delete(key));
    let last = store.apply(&batch).unwrap();
    store.commit(last, Barrier::None).unwrap();
    store.close().unwrap();
    gone.len()
}

/// A link to somewhere else is worse than none: who repairs or salvages is told its name.
#[test]
fn a_link_whose_target_is_not_whole_is_named_and_not_made() {
    const TARGETS: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 5];
    for (first, left) in [(1, 1024), (0, 0)] {
        let (disk, tree) = build(64);
        let inos = numbers(&disk, &tree);
        let cut =
            change(&disk, |key| key.starts_with(&TARGETS) && key.last().is_some_and(|part| *part >= first));
        assert_eq!(cut, 2 - usize::from(first), "parts of the target of `long`");
        assert_eq!(fsck(&disk.device()).unwrap().len(), 1);
        let wreck = Wreck::open(&disk.device()).unwrap();
        let target = |name: &[u8]| wreck.entries().find(|entry| entry.name == name).unwrap().target;
        assert_eq!((target(b"long"), target(b"short")), (None, Some(b"a/one".to_vec())));
        let plan = repair(&disk).unwrap();
        let told = format!("\"long\" {left} of 1500 bytes are left");
        assert!(plan.len() == 1 && plan[0].contains(&told), "{plan:?}");
        assert_eq!(fsck(&disk.device()).unwrap(), []);
        let files = disk.mount();
        let gone = files.readlink(Object::At(&files.root(), b"long", Follow::No), &ROOT).unwrap_err();
        assert!(matches!(gone, FsError::NotFound), "{gone}");
        assert_eq!(files.readlink(Object::At(&files.root(), b"short", Follow::No), &ROOT).unwrap(), b"a/one");
        files.unmount().unwrap();
        check(&disk, &tree, &inos, &[], &[]);
    }
}

/// Every other page of a file, so that its extents have records of their own.
fn write_sparse(files: &FileSystem, name: &[u8], byte: u8) {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), name, flags, 0o644, &ROOT).unwrap();
    for page in 0..12 {
        file.pwrite(&[byte; 4096], page * 8192).unwrap();
        file.fsync().unwrap();
    }
}

/// The keys of a file's extents, and where they are: by page.
fn extents(disk: &Arc<Disk>, ino: u64) -> BTreeMap<u64, (Vec<u8>, u64)> {
    const EXTENTS: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
    let start = [EXTENTS, ino.to_be_bytes()].concat();
    let records = records(&store(disk)).into_iter().filter(|(key, _)| key.starts_with(&start));
    let extents = records.map(|(key, value)| {
        let page = u64::from_be_bytes(key[16..24].try_into().unwrap());
        (page, (key, u64::from_le_bytes(value[..8].try_into().unwrap())))
    });
    extents.collect()
}

/// Which pages of a file can be read, each of them with what it holds.
fn pages(files: &FileSystem, path: &[u8]) -> Vec<Option<u8>> {
    let file = files.open(&files.root(), path, OpenFlags::READ, 0, &ROOT).unwrap();
    let mut bytes = [0; 4096];
    (0..12).map(|page| file.pread(&mut bytes, page * 8192).ok().map(|_| bytes[0])).collect()
}

/// What a repair calls repaired can be copied out, or is named; a block that is lost keeps nothing else from being
/// repaired.
#[test]
fn what_cannot_be_read_of_repaired_files_is_named() {
    let disk = Disk::new(32 << 20);
    let files = disk.format().mount();
    files.mkdir(&files.root(), b"dir", 0o755, &ROOT).unwrap();
    for (name, byte) in [(&b"dir/one"[..], 1), (b"dir/two", 2), (b"dir/three", 3), (b"dir/four", 4)] {
        write_sparse(&files, name, byte);
    }
    let ino = |name: &[u8]| files.stat(&files.root(), name, Follow::No, &ROOT).unwrap().ino;
    let [one, two, three] = [&b"dir/one"[..], b"dir/two", b"dir/three"].map(ino);
    files.unmount().unwrap();
    // `two` says that blocks of `one` and `three` are its own, and one of its extents is lost.
    let (one, two, three) = (extents(&disk, one), extents(&disk, two), extents(&disk, three));
    let changes = [(4, Some(one[&4].1)), (8, Some(three[&8].1)), (20, None)];
    let store = store(&disk);
    let mut batch = Batch::new();
    let values: BTreeMap<_, _> = records(&store).into_iter().collect();
    for (page, block) in changes {
        let key = &two[&page].0;
        let mut value = values[key].clone();
        match block {
            Some(block) => {
                value[..8].copy_from_slice(&block.to_le_bytes());
                batch.put(key, &value);
            }
            None => batch.delete(key),
        }
    }
    let last = store.apply(&batch).unwrap();
    store.commit(last, Barrier::None).unwrap();
    store.close().unwrap();
    drop(store);
    // One of the shared blocks, and one that `two` has for itself, are lost to the device.
    disk.spoil(&[one[&4].1, two[&12].1]);
    let plan = plan_repair(&disk.device()).unwrap();
    let (told, unreadable) = (plan.lines().join("\n"), plan.unreadable().to_vec());
    plan.carry_out(&disk.device()).unwrap();
    assert_eq!(fsck(&disk.device()).unwrap(), []);
    assert!(told.contains("LOSES 1 that the device does not give"), "{told}");
    // Whichever of two keeps the block.
    let named = |name: &str| unreadable.iter().find(|line| line.starts_with(&format!("{name:?} (inode ")));
    let files = disk.mount();
    for (name, byte) in [("dir/one", 1), ("dir/two", 2), ("dir/three", 3), ("dir/four", 4)] {
        let pages = pages(&files, name.as_bytes());
        let bad: Vec<_> = (0..12).filter(|page| pages[*page].is_none()).collect();
        match named(name) {
            Some(line) => {
                let many = format!("does not give {} of its", bad.len());
                let first = format!("first at byte {}:", bad[0] * 8192);
                assert!(line.contains(&many) && line.contains(&first), "{bad:?}: {line}");
            }
            None => assert_eq!(bad, [0; 0], "{name} cannot be read, and is not named in {unreadable:?}"),
        }
        let wrong = pages.iter().flatten().filter(|found| **found != byte).count();
        assert!(wrong <= if byte == 2 { 3 } else { 1 }, "{name}: {pages:?}; {told}");
    }
    assert!(named("dir/two").is_some() && named("dir/four").is_none(), "{unreadable:?}");
}

/// Directories in each other, beyond what a path can say, with one of them lost in the middle: it is made anew where it
/// was, or, if it named a zone, what was in it is in `lost+found`.
#[test]
fn a_deep_tree_is_checked_salvaged_and_repaired() {
    const DEPTH: usize = 5000;
    const ZONE: u8 = 1 << 5;
    for zone in [false, true] {
        let disk = Disk::new(256 << 20);
        let files = disk.format().mount();
        let mut at = files.root();
        for _ in 0..DEPTH {
            files.mkdir(&at, b"d", 0o755, &ROOT).unwrap();
            at = files.lookup(&at, b"d", Follow::No, &ROOT).unwrap();
        }
        let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
        files.open(&at, b"leaf", flags, 0o644, &ROOT).unwrap().pwrite(b"leaf", 0).unwrap();
        drop(at);
        files.unmount().unwrap();
        assert_eq!(fsck(&disk.device()).unwrap(), []);
        let leaf_depth = || {
            let wreck = Wreck::open(&disk.device()).unwrap();
            wreck.entries().find(|entry| entry.name == b"leaf").map(|leaf| leaf.depth)
        };
        assert_eq!(leaf_depth(), Some(DEPTH));
        let is_entry = |key: &[u8]| key[0] == 0 && key.ends_with(b"\0d");
        let all = records(&store(&disk)).into_iter();
        let mut entries = all.filter(|(key, value)| is_entry(key) && (value[0] & ZONE != 0) == zone);
        // One in the middle of a zone has steps above it there.
        let lost = entries.by_ref().filter(|(key, _)| key.len() > 30).nth(50).unwrap().0;
        assert_eq!(change(&disk, |key| key == lost), 1);
        assert!(!fsck(&disk.device()).unwrap().is_empty());
        let plan = repair(&disk).unwrap();
        let told = if zone { "made anew in /lost+found" } else { "is lost: it is made anew" };
        assert!(plan.iter().any(|line| line.contains(told)), "{plan:?}");
        assert_eq!(fsck(&disk.device()).unwrap(), []);
        let files = disk.mount();
        let mut at = files.root();
        let next = |at: &nvmed_fs::Node| files.lookup(at, b"d", Follow::No, &ROOT);
        let mut steps = 0;
        while let Ok(below) = next(&at) {
            (at, steps) = (below, steps + 1);
        }
        if zone {
            at = files.lookup(&files.root(), b"lost+found", Follow::No, &ROOT).unwrap();
            let listing = files.open_node(&at, OpenFlags::READ.with(OpenFlags::DIRECTORY), &ROOT).unwrap();
            let mut found = Vec::new();
            let mut tell = |entry: nvmed_fs::DirEntry<'_>| {
                found.push(entry.name.to_vec());
                ControlFlow::Continue(())
            };
            listing.read_dir(&mut tell).unwrap();
            let found = found.iter().find(|name| name.starts_with(b"#")).unwrap();
            at = files.lookup(&at, found, Follow::No, &ROOT).unwrap();
            steps += 1;
            while let Ok(below) = next(&at) {
                (at, steps) = (below, steps + 1);
            }
        }
        assert_eq!(steps, DEPTH, "no directory is missing");
        let file = files.open(&at, b"leaf", OpenFlags::READ, 0, &ROOT).unwrap();
        let mut bytes = [0; 4];
        assert_eq!((file.pread(&mut bytes, 0).unwrap(), &bytes), (4, b"leaf"));
        drop((file, at));
        files.unmount().unwrap();
    }
}

/// `bytes` with another prefix for the attributes but the first.
fn renamed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in 0..bytes.len().saturating_sub(6) {
        if [b"user.x", b"user.y"].contains(&bytes[at..at + 6].try_into().as_ref().unwrap()) {
            bytes[at + 1] = b'z';
        }
    }
    bytes
}

/// A listing shows such an attribute, and no call gives its value: who copies the file with what is listed fails.
#[test]
fn attributes_that_no_call_serves_are_told_and_removed() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    write(&files, "f", b"text", &mut Tree::new());
    for (name, bytes) in [("user.kept", 2000), ("user.xxxx", 20), ("user.yyyy", 3000)] {
        let (value, how) = (vec![7; bytes], nvmed_fs::SetXattr::Any);
        files
            .set_xattr(Object::At(&files.root(), b"f", Follow::Yes), name.as_bytes(), &value, how, &ROOT)
            .unwrap();
    }
    files.unmount().unwrap();
    drop(files);
    disk.assert_sound();
    let store = store(&disk);
    let mut batch = Batch::new();
    for (key, value) in records(&store) {
        if (renamed(&key), renamed(&value)) != (key.clone(), value.clone()) {
            batch.delete(&key);
            batch.put(&renamed(&key), &renamed(&value));
        }
    }
    store.commit(store.apply(&batch).unwrap(), Barrier::After).unwrap();
    drop(store);
    let found: Vec<String> = fsck(&disk.device()).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("\"uzer.xxxx\"") && found[1].contains("\"uzer.yyyy\""), "{found:?}");
    let plan = repair(&disk).unwrap();
    let told = |name: &str| plan.iter().filter(|line| line.contains(name)).count();
    assert!(told("uzer.xxxx") == 1 && told("uzer.yyyy") > 0 && told("user.kept") == 0, "{plan:?}");
    disk.assert_sound();
    let files = disk.mount();
    assert_eq!(
        files.list_xattr(Object::At(&files.root(), b"f", Follow::Yes), &ROOT).unwrap(),
        b"user.kept\0"
    );
    let kept = files.get_xattr(Object::At(&files.root(), b"f", Follow::Yes), b"user.kept", &ROOT).unwrap();
    assert!(kept == [7; 2000]);
}
