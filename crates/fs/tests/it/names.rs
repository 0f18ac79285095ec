//! Names: what programs rely on, one behaviour a test.

use crate::support::Disk;
use nvmed_fs::Object;
use nvmed_fs::*;

const ROOT: Credentials<'static> = Credentials::ROOT;

fn fresh() -> (std::sync::Arc<Disk>, FileSystem, Node) {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    let root = files.root();
    (disk, files, root)
}

fn create(files: &FileSystem, path: &str) {
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE).with(OpenFlags::EXCLUSIVE);
    files
        .open(&files.root(), path.as_bytes(), flags, 0o644, &ROOT)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn errno<T>(result: Result<T, FsError>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.errno().raw_os_error(),
    }
}

#[test]
fn what_was_made_is_there_after_a_remount() {
    let (disk, files, root) = fresh();
    files.mkdir(&root, b"dir", 0o750, &ROOT).unwrap();
    create(&files, "dir/file");
    files.symlink(b"dir/file", &root, b"link", &ROOT).unwrap();
    let before = files.stat(&root, b"dir/file", Follow::No, &ROOT).unwrap();
    let files = disk.remount(files);
    let root = files.root();
    assert_eq!(files.stat(&root, b"link", Follow::Yes, &ROOT).unwrap(), before);
    assert_eq!(files.readlink(Object::At(&root, b"link", Follow::No), &ROOT).unwrap(), b"dir/file");
    let dir = files.stat(&root, b"dir", Follow::No, &ROOT).unwrap();
    assert_eq!((dir.mode, dir.nlink), (0o040_750, 2));
    assert_eq!(root.stat().nlink, 3);
}

#[test]
fn paths_are_resolved_as_posix_says() {
    let (_disk, files, root) = fresh();
    files.mkdir(&root, b"a", 0o755, &ROOT).unwrap();
    files.mkdir(&root, b"a/b/", 0o755, &ROOT).unwrap();
    create(&files, "a/b/file");
    files.symlink(b"a/b", &root, b"short", &ROOT).unwrap();
    files.symlink(b"../b/file", &root, b"a/b/back", &ROOT).unwrap();
    let ino = |path: &str| files.lookup(&root, path.as_bytes(), Follow::Yes, &ROOT).map(|node| node.ino());
    let file = ino("a/b/file").unwrap();
    for same in ["/a/b/file", "a//b///file", "a/./b/../b/file", "short/file", "short/../b/file", "a/b/back"] {
        assert_eq!(ino(same).unwrap(), file, "{same}");
    }
    assert_eq!(ino("short/").unwrap(), ino("a/b").unwrap());
    assert_eq!(ino("/").unwrap(), ino(".").unwrap());
    for (path, expected) in [
        ("", libc(Errno::NOENT)),
        ("a/none", libc(Errno::NOENT)),
        ("a/none/x", libc(Errno::NOENT)),
        ("a/b/file/", libc(Errno::NOTDIR)),
        ("a/b/file/x", libc(Errno::NOTDIR)),
        ("a/b/file/..", libc(Errno::NOTDIR)),
        ("a/b/file/.", libc(Errno::NOTDIR)),
    ] {
        assert_eq!(errno(ino(path)), expected, "{path:?}");
    }
}

use rustix::io::Errno;

fn libc(errno: Errno) -> i32 {
    errno.raw_os_error()
}

#[test]
fn names_and_paths_that_are_too_long_are_refused() {
    let (_disk, files, root) = fresh();
    let longest = [b'n'; NAME_BYTES_MAX];
    files.mkdir(&root, &longest, 0o755, &ROOT).unwrap();
    assert_eq!(errno(files.mkdir(&root, &[b'n'; 256], 0o755, &ROOT)), libc(Errno::NAMETOOLONG));
    assert_eq!(errno(files.lookup(&root, &[b'n'; 256], Follow::Yes, &ROOT)), libc(Errno::NAMETOOLONG));
    let path = b"./".repeat(2047);
    assert!(files.lookup(&root, &path, Follow::Yes, &ROOT).is_ok(), "4094 bytes");
    let path = b"./".repeat(2048);
    assert_eq!(errno(files.lookup(&root, &path, Follow::Yes, &ROOT)), libc(Errno::NAMETOOLONG));
    assert_eq!(errno(files.mkdir(&root, b"a\0b", 0o755, &ROOT)), libc(Errno::INVAL));
    let target = [b't'; 4095];
    files.symlink(&target, &root, b"long", &ROOT).unwrap();
    assert_eq!(files.readlink(Object::At(&root, b"long", Follow::No), &ROOT).unwrap(), target);
    assert_eq!(errno(files.symlink(&[b't'; 4096], &root, b"longer", &ROOT)), libc(Errno::NAMETOOLONG));
    assert_eq!(errno(files.symlink(b"", &root, b"none", &ROOT)), libc(Errno::NOENT));
    files.unlink(&root, b"long", &ROOT).unwrap();
}

#[test]
fn symbolic_links_lead_out_and_do_not_lead_in_circles() {
    let (_disk, files, root) = fresh();
    files.mkdir(&root, b"d", 0o755, &ROOT).unwrap();
    files.symlink(b"/etc", &root, b"d/out", &ROOT).unwrap();
    files.symlink(b"loop", &root, b"loop", &ROOT).unwrap();
    let away = |path: &str| match files.lookup(&root, path.as_bytes(), Follow::Yes, &ROOT) {
        Err(FsError::Away(rest)) => String::from_utf8(rest.to_vec()).unwrap(),
        other => panic!("{path}: {other:?}"),
    };
    assert_eq!(away("d/out"), "/etc");
    assert_eq!(away("d/out//passwd"), "/etc//passwd");
    assert_eq!(away(".."), "..");
    assert_eq!(away("d/../../x/y"), "../x/y");
    assert_eq!(errno(files.lookup(&root, b"loop", Follow::Yes, &ROOT)), libc(Errno::LOOP));
    assert_eq!(errno(files.lookup(&root, b"loop/x", Follow::No, &ROOT)), libc(Errno::LOOP));
    assert!(files.lookup(&root, b"loop", Follow::No, &ROOT).is_ok());
    create(&files, "d/end");
    for link in 0..41 {
        let target = if link == 0 { "end".to_owned() } else { format!("l{}", link - 1) };
        files.symlink(target.as_bytes(), &root, format!("d/l{link}").as_bytes(), &ROOT).unwrap();
    }
    assert!(files.lookup(&root, b"d/l39", Follow::Yes, &ROOT).is_ok(), "forty links");
    assert_eq!(errno(files.lookup(&root, b"d/l40", Follow::Yes, &ROOT)), libc(Errno::LOOP));
}

#[test]
fn open_flags_do_what_open_2_says() {
    let (_disk, files, root) = fresh();
    let open = |path: &str, flags: OpenFlags| files.open(&root, path.as_bytes(), flags, 0o644, &ROOT);
    let make = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    assert_eq!(errno(open("f", OpenFlags::READ)), libc(Errno::NOENT));
    let first = open("f", make).unwrap();
    assert_eq!(errno(open("f", make.with(OpenFlags::EXCLUSIVE))), libc(Errno::EXIST));
    assert_eq!(open("f", make).unwrap().stat().ino, first.stat().ino);
    assert_eq!(errno(open("f/", make)), libc(Errno::ISDIR));
    assert_eq!(errno(open("new/", make)), libc(Errno::ISDIR));
    assert_eq!(errno(open("f", OpenFlags::DIRECTORY)), libc(Errno::NOTDIR));
    files.mkdir(&root, b"d", 0o755, &ROOT).unwrap();
    assert_eq!(errno(open("d", OpenFlags::WRITE)), libc(Errno::ISDIR));
    assert_eq!(errno(open("d", OpenFlags::CREATE)), libc(Errno::ISDIR));
    assert!(open("d", OpenFlags::DIRECTORY).is_ok());
    files.symlink(b"target", &root, b"link", &ROOT).unwrap();
    assert_eq!(errno(open("link", OpenFlags::READ.with(OpenFlags::NOFOLLOW))), libc(Errno::LOOP));
    assert_eq!(errno(open("link", make.with(OpenFlags::EXCLUSIVE))), libc(Errno::EXIST));
    let path = open("link", OpenFlags::PATH.with(OpenFlags::NOFOLLOW)).unwrap();
    assert_eq!(path.stat().kind(), FileType::Symlink);
    assert_eq!(errno(path.files().chmod(Object::Open(&path), 0, &ROOT)), libc(Errno::BADF));
    let made = open("link", make).unwrap();
    assert_eq!(files.lookup(&root, b"target", Follow::No, &ROOT).unwrap(), made.node());
    assert_eq!(made.flags().0 & 3, OpenFlags::READ_WRITE.0);
    let again = open("link", make).unwrap();
    assert!(made.was_made() && !again.was_made());
    again.set_flags(OpenFlags::APPEND.with(OpenFlags::CREATE)).unwrap();
    assert!(again.flags().has(OpenFlags::APPEND) && !again.was_made());
}

#[test]
fn a_nameless_file_gets_a_name_or_goes() {
    let (disk, files, root) = fresh();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::TMPFILE);
    let kept = files.open(&root, b".", flags, 0o600, &ROOT).unwrap();
    let lost = files.open(&root, b"/", flags, 0o600, &ROOT).unwrap();
    assert_eq!(kept.stat().nlink, 0);
    files.link(Object::Held(&kept.node()), &root, b"kept", &ROOT).unwrap();
    assert_eq!(kept.stat().nlink, 1);
    drop((kept, lost));
    assert_eq!(files.statfs().files - files.statfs().files_free, 2, "the root and the kept one");
    disk.remount(files);
}

#[test]
fn unlinked_files_live_until_their_last_close() {
    let (disk, files, root) = fresh();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&root, b"f", flags, 0o644, &ROOT).unwrap();
    let second = files.open(&root, b"f", OpenFlags::READ, 0, &ROOT).unwrap();
    files.unlink(&root, b"f", &ROOT).unwrap();
    assert_eq!(errno(files.open(&root, b"f", OpenFlags::READ, 0, &ROOT)), libc(Errno::NOENT));
    assert_eq!(file.stat().nlink, 0);
    assert!(files.path_of(&file.node()).is_err());
    let named_again = files.link(Object::Held(&second.node()), &root, b"f", &ROOT);
    assert_eq!(errno(named_again), libc(Errno::NOENT), "only O_TMPFILE is given a first name");
    let again = files.open_node(&file.node(), OpenFlags::READ, &ROOT).unwrap();
    let node = file.node();
    drop((file, second, again));
    assert_eq!(errno(files.open_node(&node, OpenFlags::READ, &ROOT)), libc(Errno::NOENT));
    assert_eq!(files.statfs().files - files.statfs().files_free, 1);
    disk.remount(files);
}

#[test]
fn a_crash_with_open_unlinked_files_leaves_nothing_behind() {
    let (disk, files, root) = fresh();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let open: Vec<_> = (0..20)
        .map(|number| files.open(&root, format!("f{number}").as_bytes(), flags, 0o644, &ROOT).unwrap())
        .collect();
    for number in 0..20 {
        files.unlink(&root, format!("f{number}").as_bytes(), &ROOT).unwrap();
    }
    files.sync().unwrap();
    let after = disk.survivor(|| false);
    after.assert_sound();
    let again = after.mount();
    for _ in 0..20 {
        again.sync().unwrap();
    }
    assert_eq!(again.statfs().files - again.statfs().files_free, 1);
    after.remount(again);
    drop(open);
}

#[test]
fn hard_links_share_one_inode() {
    let (disk, files, root) = fresh();
    files.mkdir(&root, b"d", 0o755, &ROOT).unwrap();
    create(&files, "f");
    files.link(Object::At(&root, b"f", Follow::No), &root, b"d/g", &ROOT).unwrap();
    assert_eq!(
        errno(files.link(Object::At(&root, b"f", Follow::No), &root, b"d/g", &ROOT)),
        libc(Errno::EXIST)
    );
    assert_eq!(errno(files.link(Object::At(&root, b"d", Follow::No), &root, b"e", &ROOT)), libc(Errno::PERM));
    assert_eq!(
        errno(files.link(Object::At(&root, b"f", Follow::No), &root, b"e/", &ROOT)),
        libc(Errno::NOENT)
    );
    files.chmod(Object::At(&root, b"d/g", Follow::Yes), 0o600, &ROOT).unwrap();
    let stat = files.stat(&root, b"f", Follow::No, &ROOT).unwrap();
    assert_eq!((stat.nlink, stat.mode & 0o777), (2, 0o600));
    files.unlink(&root, b"f", &ROOT).unwrap();
    let files = disk.remount(files);
    assert_eq!(files.stat(&files.root(), b"d/g", Follow::No, &ROOT).unwrap().nlink, 1);
}

#[test]
fn directories_go_only_when_empty_and_count_their_links() {
    let (disk, files, root) = fresh();
    files.mkdir(&root, b"d", 0o755, &ROOT).unwrap();
    files.mkdir(&root, b"d/e", 0o755, &ROOT).unwrap();
    let links = |path: &str| files.stat(&root, path.as_bytes(), Follow::No, &ROOT).unwrap().nlink;
    assert_eq!((links("."), links("d"), links("d/e")), (3, 3, 2));
    assert_eq!(errno(files.rmdir(&root, b"d", &ROOT)), libc(Errno::NOTEMPTY));
    assert_eq!(errno(files.rmdir(&root, b"d/.", &ROOT)), libc(Errno::INVAL));
    assert_eq!(errno(files.rmdir(&root, b"d/e/..", &ROOT)), libc(Errno::NOTEMPTY));
    assert_eq!(errno(files.rmdir(&root, b"/", &ROOT)), libc(Errno::BUSY));
    assert_eq!(errno(files.unlink(&root, b"d", &ROOT)), libc(Errno::ISDIR));
    create(&files, "f");
    assert_eq!(errno(files.rmdir(&root, b"f", &ROOT)), libc(Errno::NOTDIR));
    assert_eq!(errno(files.unlink(&root, b"f/", &ROOT)), libc(Errno::NOTDIR));
    let held = files.lookup(&root, b"d/e", Follow::No, &ROOT).unwrap();
    files.rmdir(&root, b"d/e/", &ROOT).unwrap();
    assert_eq!((links("."), links("d")), (3, 2));
    assert_eq!(held.stat().nlink, 0);
    assert_eq!(errno(files.mkdir(&held, b"x", 0o755, &ROOT)), libc(Errno::NOENT));
    assert_eq!(errno(files.path_of(&held)), libc(Errno::NOENT));
    assert_eq!(
        files.lookup(&held, b"..", Follow::No, &ROOT).unwrap().ino(),
        files.lookup(&root, b"d", Follow::No, &ROOT).unwrap().ino()
    );
    files.rmdir(&root, b"d", &ROOT).unwrap();
    assert_eq!(errno(files.lookup(&held, b"..", Follow::No, &ROOT)), libc(Errno::NOENT));
    files.chmod(Object::At(&held, b".", Follow::Yes), 0o700, &ROOT).unwrap();
    drop(held);
    disk.remount(files);
}

#[test]
fn rename_replaces_exchanges_and_refuses_as_rename_2_says() {
    let (disk, files, root) = fresh();
    let rename = |old: &str, new: &str, flags| {
        files.rename(&root, old.as_bytes(), &root, new.as_bytes(), flags, &ROOT)
    };
    let (replace, no_replace, exchange) =
        (RenameFlags::Replace, RenameFlags::NoReplace, RenameFlags::Exchange);
    let ino = |path: &str| files.lookup(&root, path.as_bytes(), Follow::No, &ROOT).unwrap().ino();
    for dir in ["a", "a/sub", "b", "empty", "full"] {
        files.mkdir(&root, dir.as_bytes(), 0o755, &ROOT).unwrap();
    }
    for file in ["f", "g", "full/x"] {
        create(&files, file);
    }
    let f = ino("f");
    rename("f", "g", replace).unwrap();
    assert_eq!(ino("g"), f);
    assert_eq!(errno(rename("f", "g", replace)), libc(Errno::NOENT));
    for (old, new, flags, expected) in [
        ("a", "a/sub/x", replace, Errno::INVAL),
        ("a", "a/x", replace, Errno::INVAL),
        ("a/sub", "a", replace, Errno::NOTEMPTY),
        ("a", "g", replace, Errno::NOTDIR),
        ("g", "a", replace, Errno::ISDIR),
        ("a", "full", replace, Errno::NOTEMPTY),
        ("g", "full/x", no_replace, Errno::EXIST),
        ("g", "none", exchange, Errno::NOENT),
        ("a", "a/sub", exchange, Errno::INVAL),
        ("g/", "h", replace, Errno::NOTDIR),
        ("g", "h/", replace, Errno::NOTDIR),
        (".", "h", replace, Errno::BUSY),
        ("a", "b/..", replace, Errno::BUSY),
    ] {
        assert_eq!(errno(rename(old, new, flags)), libc(expected), "{old} to {new}");
    }
    let (a, sub, empty) = (ino("a"), ino("a/sub"), ino("empty"));
    rename("a", "empty", replace).unwrap();
    assert_eq!((ino("empty"), ino("empty/sub")), (a, sub));
    assert_ne!(empty, a);
    rename("empty/", "b/moved/", replace).unwrap();
    assert_eq!(ino("b/moved/sub/../.."), ino("b"));
    rename("b/moved/sub", "g", exchange).unwrap();
    assert_eq!((ino("g"), ino("b/moved/sub")), (sub, f));
    rename("g", "full/x", exchange).unwrap();
    files.link(Object::At(&root, b"b/moved/sub", Follow::No), &root, b"twin", &ROOT).unwrap();
    rename("twin", "b/moved/sub", replace).unwrap();
    assert_eq!(ino("twin"), f, "two names of one file: nothing happens");
    let held = files.lookup(&root, b"full/x", Follow::No, &ROOT).unwrap();
    assert_eq!(files.path_of(&held).unwrap(), b"/full/x");
    rename("full", "b/full", replace).unwrap();
    assert_eq!(files.path_of(&held).unwrap(), b"/b/full/x");
    drop(held);
    let files = disk.remount(files);
    let held = files.lookup(&files.root(), b"b/full/x", Follow::No, &ROOT).unwrap();
    assert_eq!(held.ino(), sub);
    assert_eq!(files.path_of(&held).unwrap(), b"/b/full/x");
}

#[test]
fn a_replaced_file_that_is_open_lives_on_without_a_name() {
    let (disk, files, root) = fresh();
    create(&files, "new");
    let old = files.open(&root, b"old", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o644, &ROOT).unwrap();
    files.rename(&root, b"new", &root, b"old", RenameFlags::Replace, &ROOT).unwrap();
    assert_eq!(old.stat().nlink, 0);
    assert_ne!(files.stat(&root, b"old", Follow::No, &ROOT).unwrap().ino, old.stat().ino);
    drop(old);
    disk.remount(files);
}

#[test]
fn a_path_that_led_somewhere_often_is_still_asked_for_permission() {
    let (_disk, files, root) = fresh();
    let owner = Credentials { uid: 1000, gid: 100, groups: &[], permitted: false };
    let member = Credentials { uid: 1001, gid: 101, groups: &[200], permitted: false };
    let stranger = Credentials { uid: 1001, gid: 101, groups: &[], permitted: false };
    for dir in ["outer-directory", "outer-directory/inner"] {
        files.mkdir(&root, dir.as_bytes(), 0o755, &ROOT).unwrap();
    }
    create(&files, "outer-directory/inner/file");
    let may = |who: &Credentials<'_>| {
        let answers: Vec<i32> = (0..4)
            .map(|_| errno(files.stat(&root, b"outer-directory/inner/file", Follow::No, who)))
            .collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        answers[0] == 0
    };
    let all = || [&ROOT, &owner, &member, &stranger].map(may);
    assert_eq!(all(), [true; 4]);
    files.chmod(Object::At(&root, b"outer-directory", Follow::Yes), 0o750, &ROOT).unwrap();
    assert_eq!(all(), [true, false, false, false]);
    files.chown(Object::At(&root, b"outer-directory", Follow::Yes), None, Some(200), &ROOT).unwrap();
    assert_eq!(all(), [true, false, true, false]);
    files.chown(Object::At(&root, b"outer-directory", Follow::Yes), Some(1000), None, &ROOT).unwrap();
    assert_eq!(all(), [true, true, true, false]);
    files.chmod(Object::At(&root, b"outer-directory/inner", Follow::Yes), 0o700, &ROOT).unwrap();
    assert_eq!(all(), [true, false, false, false]);
}

#[test]
fn permissions_are_checked_at_every_step() {
    let (_disk, files, root) = fresh();
    let user = Credentials { uid: 1000, gid: 100, groups: &[200], permitted: false };
    files.chmod(Object::At(&root, b".", Follow::Yes), 0o777, &ROOT).unwrap();
    files.mkdir(&root, b"closed", 0o700, &ROOT).unwrap();
    create(&files, "closed/f");
    assert_eq!(errno(files.stat(&root, b"closed/f", Follow::No, &user)), libc(Errno::ACCESS));
    assert_eq!(errno(files.stat(&root, b"closed", Follow::No, &user)), 0);
    assert_eq!(errno(files.mkdir(&root, b"closed/x", 0o755, &user)), libc(Errno::ACCESS));
    files.mkdir(&root, b"mine", 0o755, &user).unwrap();
    let mine = files.stat(&root, b"mine", Follow::No, &user).unwrap();
    assert_eq!((mine.uid, mine.gid), (1000, 100));
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    let file = files.open(&root, b"mine/readonly", flags, 0o400, &user).unwrap();
    assert!(file.flags().writes(), "the maker gets what it asked for");
    assert_eq!(errno(files.open(&root, b"mine/readonly", OpenFlags::WRITE, 0, &user)), libc(Errno::ACCESS));
    assert_eq!(
        errno(files.open(&root, b"mine/readonly", OpenFlags::READ.with(OpenFlags::TRUNCATE), 0, &user)),
        libc(Errno::ACCESS)
    );
    assert_eq!(
        errno(files.chown(Object::At(&root, b"mine", Follow::Yes), Some(0), None, &user)),
        libc(Errno::PERM)
    );
    files.chown(Object::At(&root, b"mine", Follow::Yes), None, Some(200), &user).unwrap();
    assert_eq!(
        errno(files.chown(Object::At(&root, b"mine", Follow::Yes), None, Some(300), &user)),
        libc(Errno::PERM)
    );
    let other = Credentials { uid: 1001, gid: 100, groups: &[], permitted: false };
    assert_eq!(errno(files.chmod(Object::At(&root, b"mine", Follow::Yes), 0o777, &other)), libc(Errno::PERM));
    assert_eq!(
        errno(files.utimens(Object::At(&root, b"mine", Follow::Yes), [Time::At(1); 2], &other)),
        libc(Errno::PERM)
    );
    assert_eq!(
        errno(files.utimens(Object::At(&root, b"mine", Follow::Yes), [Time::Now; 2], &other)),
        libc(Errno::ACCESS)
    );
    files.chmod(Object::At(&root, b".", Follow::Yes), 0o1777, &ROOT).unwrap();
    assert_eq!(errno(files.rmdir(&root, b"mine", &other)), libc(Errno::PERM), "sticky");
    assert_eq!(
        errno(files.rename(&root, b"mine", &root, b"yours", RenameFlags::Replace, &other)),
        libc(Errno::PERM)
    );
    assert_eq!(
        errno(files.access(Object::At(&root, b"mine/readonly", Follow::Yes), 2, &user)),
        libc(Errno::ACCESS)
    );
    assert_eq!(errno(files.access(Object::At(&root, b"mine/readonly", Follow::Yes), 4, &user)), 0);
    assert_eq!(errno(files.open(&root, b"closed", OpenFlags::READ.with(OpenFlags::NOATIME), 0, &ROOT)), 0);
    assert_eq!(
        errno(files.open(&root, b"mine", OpenFlags::READ.with(OpenFlags::NOATIME), 0, &other)),
        libc(Errno::PERM)
    );
}

#[test]
fn set_ids_go_with_a_change_of_owner_and_groups_are_inherited() {
    let (_disk, files, root) = fresh();
    create(&files, "f");
    files.chmod(Object::At(&root, b"f", Follow::Yes), 0o6755, &ROOT).unwrap();
    files.chown(Object::At(&root, b"f", Follow::Yes), Some(5), Some(6), &ROOT).unwrap();
    let stat = files.stat(&root, b"f", Follow::No, &ROOT).unwrap();
    assert_eq!((stat.mode & 0o7777, stat.uid, stat.gid), (0o755, 5, 6));
    let owner = Credentials { uid: 5, gid: 7, groups: &[], permitted: false };
    files.chmod(Object::At(&root, b"f", Follow::Yes), 0o2755, &owner).unwrap();
    assert_eq!(files.stat(&root, b"f", Follow::No, &ROOT).unwrap().mode & 0o7777, 0o755, "not in group 6");
    files.mkdir(&root, b"d", 0o777, &ROOT).unwrap();
    files.chown(Object::At(&root, b"d", Follow::Yes), None, Some(42), &ROOT).unwrap();
    files.chmod(Object::At(&root, b"d", Follow::Yes), 0o2777, &ROOT).unwrap();
    files.mkdir(&root, b"d/sub", 0o755, &owner).unwrap();
    let sub = files.stat(&root, b"d/sub", Follow::No, &ROOT).unwrap();
    assert_eq!((sub.gid, sub.mode & 0o7777), (42, 0o2755));
}

#[test]
fn times_are_set_told_and_kept() {
    fn clock() -> i64 {
        1_000_000_000_000_000_007
    }
    let disk = Disk::new(64 << 20);
    let options = MountOptions { clock, ..MountOptions::default() };
    let files = disk.format().mount_with(options, 8 << 20);
    let root = files.root();
    create(&files, "f");
    let stat = files.stat(&root, b"f", Follow::No, &ROOT).unwrap();
    assert_eq!([stat.atime_ns, stat.mtime_ns, stat.ctime_ns, stat.btime_ns], [clock(); 4]);
    files.utimens(Object::At(&root, b"f", Follow::No), [Time::At(-5), Time::Omit], &ROOT).unwrap();
    files.utimens(Object::At(&root, b"f", Follow::No), [Time::Omit, Time::At(77)], &ROOT).unwrap();
    let expected = files.stat(&root, b"f", Follow::No, &ROOT).unwrap();
    assert_eq!((expected.atime_ns, expected.mtime_ns, expected.ctime_ns), (-5, 77, clock()));
    let files = disk.remount(files);
    let root = files.root();
    assert_eq!(files.stat(&root, b"f", Follow::No, &ROOT).unwrap(), expected);
    let before = root.stat().mtime_ns;
    create(&files, "g");
    assert!(
        root.stat().mtime_ns > before && root.stat().ctime_ns > before,
        "a new name changes its directory"
    );
}

fn list(directory: &File, most: usize) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    let told = directory.read_dir(&mut |entry| {
        if names.len() == most {
            return core::ops::ControlFlow::Break(());
        }
        names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.cookie));
        core::ops::ControlFlow::Continue(())
    });
    told.unwrap();
    names
}

#[test]
fn a_listing_tells_every_lasting_entry_once_while_others_come_and_go() {
    let (_disk, files, root) = fresh();
    files.mkdir(&root, b"d", 0o755, &ROOT).unwrap();
    for number in 0..700 {
        create(&files, &format!("d/{number:04}"));
    }
    let directory = files.open(&root, b"d", OpenFlags::DIRECTORY, 0, &ROOT).unwrap();
    let mut seen = list(&directory, 301);
    assert_eq!(seen[0].0, ".");
    assert_eq!(seen[1].0, "..");
    // Remove what was told, the entry told last among them, and some that were not; add some.
    for number in (0..700).step_by(7) {
        files.unlink(&root, format!("d/{number:04}").as_bytes(), &ROOT).unwrap();
    }
    files.unlink(&root, format!("d/{}", seen[300].0).as_bytes(), &ROOT).unwrap();
    create(&files, "d/0000a");
    create(&files, "d/9999");
    seen.extend(list(&directory, usize::MAX));
    let mut names: Vec<_> = seen.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"9999"));
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "an entry was told twice");
    for number in (0..700).filter(|number| number % 7 != 0) {
        assert!(names.contains(&format!("{number:04}").as_str()), "{number:04} is missing");
    }
    // Back to a cookie: the same entries follow.
    let (_, cookie) = &seen[250];
    directory.seek(*cookie as i64, Whence::Set).unwrap();
    let following = list(&directory, 5);
    assert!(following[0].0 > seen[250].0);
    directory.seek(0, Whence::Set).unwrap();
    assert_eq!(list(&directory, 1)[0].0, ".");
}

#[test]
fn reading_a_directory_needs_a_directory() {
    let (_disk, files, root) = fresh();
    create(&files, "f");
    let nothing = &mut |_: DirEntry<'_>| core::ops::ControlFlow::Continue(());
    let file = files.open(&root, b"f", OpenFlags::READ, 0, &ROOT).unwrap();
    assert_eq!(errno(file.read_dir(nothing)), libc(Errno::NOTDIR));
    let path = files.open(&root, b".", OpenFlags::PATH, 0, &ROOT).unwrap();
    assert_eq!(errno(path.read_dir(nothing)), libc(Errno::BADF));
    files.mkdir(&root, b"d", 0o755, &ROOT).unwrap();
    let gone = files.open(&root, b"d", OpenFlags::READ, 0, &ROOT).unwrap();
    files.rmdir(&root, b"d", &ROOT).unwrap();
    assert_eq!(errno(gone.read_dir(nothing)), libc(Errno::NOENT));
}

#[test]
fn locks_conflict_between_owners_and_go_with_them() {
    let (_disk, files, root) = fresh();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let open = || files.open(&root, b"f", flags, 0o644, &ROOT).unwrap();
    let (first, second) = (open(), open());
    let all = LockRange::ALL;
    first.posix_lock(10, all, Some(LockKind::Exclusive), Wait::No).unwrap();
    second.posix_lock(10, all, Some(LockKind::Exclusive), Wait::No).unwrap();
    assert_eq!(second.posix_getlk(11, all, LockKind::Shared).unwrap().owner, LockOwner::Process(10));
    assert_eq!(errno(second.ofd_lock(all, Some(LockKind::Shared), Wait::No)), libc(Errno::AGAIN));
    second.closed_by_process(10);
    assert!(first.posix_getlk(11, all, LockKind::Exclusive).is_none(), "any close drops them");
    first.flock(Some(LockKind::Exclusive), Wait::No).unwrap();
    assert_eq!(errno(second.flock(Some(LockKind::Shared), Wait::No)), libc(Errno::AGAIN));
    first.ofd_lock(all, Some(LockKind::Exclusive), Wait::No).unwrap();
    drop(first);
    second.flock(Some(LockKind::Exclusive), Wait::No).unwrap();
    second.ofd_lock(all, Some(LockKind::Exclusive), Wait::No).unwrap();
    let reader = files.open(&root, b"f", OpenFlags::READ, 0, &ROOT).unwrap();
    assert_eq!(errno(reader.posix_lock(1, all, Some(LockKind::Exclusive), Wait::No)), libc(Errno::BADF));
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let (disk, files, root) = fresh();
    create(&files, "f");
    files.unmount().unwrap();
    assert_eq!(errno(files.mkdir(&root, b"late", 0o755, &ROOT)), libc(Errno::ROFS), "unmounted");
    drop((files, root));
    let writes = disk.writes();
    let files = disk.mount_with(MountOptions { read_only: true, ..MountOptions::default() }, 8 << 20);
    let root = files.root();
    assert!(files.open(&root, b"f", OpenFlags::READ, 0, &ROOT).is_ok());
    let making = OpenFlags::WRITE.with(OpenFlags::CREATE);
    assert_eq!(errno(files.open(&root, b"g", making, 0o644, &ROOT)), libc(Errno::ROFS));
    assert_eq!(errno(files.open(&root, b"f", OpenFlags::WRITE, 0, &ROOT)), libc(Errno::ROFS));
    assert_eq!(errno(files.unlink(&root, b"f", &ROOT)), libc(Errno::ROFS));
    assert_eq!(errno(files.chmod(Object::At(&root, b"f", Follow::Yes), 0, &ROOT)), libc(Errno::ROFS));
    assert_eq!(errno(files.access(Object::At(&root, b"f", Follow::Yes), 2, &ROOT)), libc(Errno::ROFS));
    files.unmount().unwrap();
    assert_eq!(disk.writes(), writes);
}
