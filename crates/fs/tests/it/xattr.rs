//! Extended attributes against a map, over remounts, and the rules of xattr(7).

use crate::support::Disk;
use nvmed_fs::Object;
use nvmed_fs::*;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::BTreeMap;

const ROOT: &Credentials<'static> = &Credentials::ROOT;
const SOMEBODY: &Credentials<'static> = &Credentials { uid: 1000, gid: 1000, groups: &[], permitted: false };

fn make(files: &FileSystem, path: &[u8]) {
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    files.open(&files.root(), path, flags, 0o644, ROOT).unwrap();
}

fn set(files: &FileSystem, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), FsError> {
    files.set_xattr(Object::At(&files.root(), path, Follow::No), name, value, SetXattr::Any, ROOT)
}

fn get(files: &FileSystem, path: &[u8], name: &[u8], who: &Credentials<'_>) -> Result<Vec<u8>, FsError> {
    files.get_xattr(Object::At(&files.root(), path, Follow::No), name, who)
}

fn errno<T>(answer: Result<T, FsError>) -> Option<Errno> {
    answer.err().map(|error| error.errno())
}

#[derive(Clone, Debug)]
enum Step {
    Set { name: u8, len: usize, byte: u8, how: u8 },
    Remove { name: u8 },
    Write { len: usize },
    Remount,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0..100usize, 2 => 90..110usize, 2 => 900..3100usize, 1 => 0..40_000usize];
    prop_oneof![
        8 => (0u8..6, len, any::<u8>(), 0u8..4).prop_map(|(name, len, byte, how)| Step::Set { name, len, byte, how }),
        3 => (0u8..6).prop_map(|name| Step::Remove { name }),
        1 => (1usize..2000).prop_map(|len| Step::Write { len }),
        1 => Just(Step::Remount),
    ]
}

fn name_of(name: u8) -> Vec<u8> {
    [&b"user."[..], &[b'a' + name; 7]].concat()
}

fn run(steps: &[Step]) {
    let disk = Disk::new(16 << 20);
    let mut files = disk.format().mount();
    make(&files, b"f");
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Set { name, len, byte, how } => {
                let (name, value) = (name_of(*name), vec![*byte; *len]);
                let how = [SetXattr::Any, SetXattr::Any, SetXattr::Create, SetXattr::Replace][*how as usize];
                let answer =
                    files.set_xattr(Object::At(&files.root(), b"f", Follow::Yes), &name, &value, how, ROOT);
                let expected = match (how, model.contains_key(&name)) {
                    _ if *len > XATTR_VALUE_BYTES_MAX => Some(Errno::TOOBIG),
                    (SetXattr::Create, true) => Some(Errno::EXIST),
                    (SetXattr::Replace, false) => Some(Errno::NODATA),
                    _ => None,
                };
                assert_eq!(errno(answer), expected);
                if expected.is_none() {
                    model.insert(name, value);
                }
            }
            Step::Remove { name } => {
                let answer =
                    files.remove_xattr(Object::At(&files.root(), b"f", Follow::Yes), &name_of(*name), ROOT);
                let there = model.remove(&name_of(*name)).is_some();
                assert_eq!(errno(answer), (!there).then_some(Errno::NODATA));
            }
            Step::Write { len } => {
                let file = files.open(&files.root(), b"f", OpenFlags::WRITE, 0, ROOT).unwrap();
                file.pwrite(&vec![1; *len], 0).unwrap();
                file.fsync().unwrap();
            }
            Step::Remount => files = disk.remount(files),
        }
        let list = files.list_xattr(Object::At(&files.root(), b"f", Follow::Yes), ROOT).unwrap();
        let names: Vec<&[u8]> = list.split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
        assert_eq!(names, model.keys().map(Vec::as_slice).collect::<Vec<_>>());
        for (name, value) in &model {
            assert!(get(&files, b"f", name, ROOT).unwrap() == *value);
        }
    }
    files.unlink(&files.root(), b"f", ROOT).unwrap();
    disk.remount(files);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn attributes_are_a_map(steps in prop::collection::vec(step(), 1..40)) {
        run(&steps);
    }
}

#[test]
fn the_rules_of_the_name_spaces() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let root = files.root();
    make(&files, b"f");
    files.mkdir(&root, b"sticky", 0o1777, ROOT).unwrap();
    files.symlink(b"f", &root, b"link", ROOT).unwrap();
    for name in [&b"system.posix_acl_access"[..], b"other.x", b"plain"] {
        assert_eq!(errno(set(&files, b"f", name, b"")), Some(Errno::OPNOTSUPP), "{name:?}");
    }
    assert_eq!(errno(set(&files, b"f", b"user.", b"")), Some(Errno::INVAL));
    assert_eq!(errno(set(&files, b"f", &[b"user.", &[b'x'; 251][..]].concat(), b"")), Some(Errno::RANGE));
    assert_eq!(errno(set(&files, b"link", b"user.a", b"")), Some(Errno::PERM), "not on a link itself");
    set(&files, b"link", b"trusted.a", b"1").unwrap();
    for name in [&b"user.a"[..], b"trusted.a", b"security.a"] {
        set(&files, b"f", name, b"1").unwrap();
    }
    assert_eq!(get(&files, b"f", b"user.a", SOMEBODY).unwrap(), b"1");
    assert_eq!(get(&files, b"f", b"security.a", SOMEBODY).unwrap(), b"1");
    assert_eq!(errno(get(&files, b"f", b"trusted.a", SOMEBODY)), Some(Errno::NODATA));
    assert_eq!(
        files.list_xattr(Object::At(&root, b"f", Follow::Yes), SOMEBODY).unwrap(),
        b"security.a\0user.a\0"
    );
    let theirs = |name: &[u8], path: &[u8]| {
        errno(files.set_xattr(Object::At(&root, path, Follow::Yes), name, b"2", SetXattr::Any, SOMEBODY))
    };
    assert_eq!(theirs(b"user.a", b"f"), Some(Errno::ACCESS), "mode 644");
    assert_eq!(theirs(b"trusted.a", b"f"), Some(Errno::PERM));
    assert_eq!(theirs(b"security.a", b"f"), Some(Errno::PERM));
    assert_eq!(theirs(b"user.a", b"sticky"), Some(Errno::PERM), "only the owner of a sticky directory");
    files.chmod(Object::At(&root, b"f", Follow::Yes), 0o200, ROOT).unwrap();
    assert_eq!(errno(get(&files, b"f", b"user.a", SOMEBODY)), Some(Errno::ACCESS));
    let file = files.open(&root, b"f", OpenFlags::WRITE, 0, ROOT).unwrap();
    file.files().set_xattr(Object::Open(&file), b"user.b", &[7; 200], SetXattr::Create, ROOT).unwrap();
    assert_eq!(file.files().get_xattr(Object::Open(&file), b"user.b", ROOT).unwrap(), [7; 200]);
    file.files().remove_xattr(Object::Open(&file), b"user.b", ROOT).unwrap();
    assert_eq!(errno(file.files().get_xattr(Object::Open(&file), b"user.b", ROOT)), Some(Errno::NODATA));
    let path = files.open(&root, b"f", OpenFlags::PATH, 0, ROOT).unwrap();
    assert_eq!(errno(path.files().list_xattr(Object::Open(&path), ROOT)), Some(Errno::BADF));
    disk.remount(files);
}

#[test]
fn too_many_names_are_refused_and_links_keep_what_they_have() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    make(&files, b"f");
    let name = |number: usize| [&b"user."[..], &[b'x'; 200], number.to_string().as_bytes()].concat();
    let count = (0..100).take_while(|&number| set(&files, b"f", &name(number), b"value").is_ok()).count();
    assert!((3..50).contains(&count), "{count} names in a record");
    assert_eq!(errno(set(&files, b"f", &name(99), b"value")), Some(Errno::NOSPC));
    files.link(Object::At(&files.root(), b"f", Follow::No), &files.root(), b"g", ROOT).unwrap();
    files.rename(&files.root(), b"f", &files.root(), b"h", RenameFlags::Replace, ROOT).unwrap();
    let files = disk.remount(files);
    assert_eq!(get(&files, b"g", &name(1), ROOT).unwrap(), b"value");
    files.unlink(&files.root(), b"g", ROOT).unwrap();
    assert_eq!(get(&files, b"h", &name(1), ROOT).unwrap(), b"value");
    disk.remount(files);
}
