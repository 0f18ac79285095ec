//! Who is let in where, on a real file system with a partition behind it.

use nvmed_block::{Disk, DiskOptions, Route, Settings};
use nvmed_fs::{Credentials, FileSystem, Follow, FormatOptions, FsError, OpenFlags, RenameFlags};
use nvmed_grants::{Asker, GrantError, Keeper, PartitionGrant, Quota, Size, Table, TreeGrant};
use nvmed_io::Binding;
use nvmed_server::Admitted;
use nvmed_stack::{Config, DeviceSpec, Mount, Open, Surroundings, open_device};
use rustix::io::Errno;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const FS_BYTES: u64 = 48 << 20;
const DEVICE_BYTES: u64 = 64 << 20;
const ALICE: u32 = 70_001;
const BOB: u32 = 70_002;
const STAFF: u32 = 70_100;

struct House {
    dir: PathBuf,
    mount: Mount,
}

impl House {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("nvmed-keeper-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let spec = DeviceSpec::parse(&dir.join("disk.img").display().to_string()).unwrap();
        let device = open_device(&spec, Open::Create { bytes: DEVICE_BYTES }).unwrap();
        let options = FormatOptions { bytes: Some(FS_BYTES), mode: 0o755, ..FormatOptions::default() };
        FileSystem::format(&device, &options).unwrap();
        device.shutdown().unwrap();
        drop(device);
        let mut config = Config::new(dir.join("store"), spec);
        config.cache_bytes = 8 << 20;
        let mount = nvmed_stack::mount(&config, Surroundings::default()).unwrap();
        Self { dir, mount }
    }

    fn keeper(&self) -> Result<Keeper, GrantError> {
        Keeper::open(&self.dir.join("grants.toml"), &self.dir, &self.mount, self.mount.device())
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn tree(name: &str, path: &str, users: &[u32], write: bool) -> TreeGrant {
    let (name, path) = (name.to_owned(), path.to_owned());
    let users = users.to_vec();
    TreeGrant { name, path, users, groups: vec![], write, urgent: false, capacity: None, inodes: None }
}

fn who(uid: u32) -> Asker<'static> {
    Asker { uid, gid: uid, groups: &[] }
}

fn credentials(uid: u32) -> Credentials<'static> {
    Credentials { uid, gid: uid, groups: &[], permitted: false }
}

fn refusal(result: Result<Admitted, FsError>) -> Errno {
    result.err().expect("it was let in").errno()
}

const MADE: OpenFlags = OpenFlags::CREATE.with(OpenFlags::READ_WRITE);

#[test]
fn each_user_has_what_was_granted_and_nothing_else() {
    let house = House::new("each");
    let keeper = house.keeper().unwrap();
    assert_eq!(refusal(keeper.admit(&who(ALICE), b"")), Errno::ACCESS, "without a grant nobody is let in");
    keeper.grant_tree(tree("alice", "/home/alice", &[ALICE], true)).unwrap();
    keeper.grant_tree(tree("bob", "/home/bob", &[BOB], true)).unwrap();
    keeper.grant_tree(TreeGrant { groups: vec![STAFF], ..tree("staff", "/staff", &[], false) }).unwrap();
    let alice = keeper.admit(&who(ALICE), b"").unwrap();
    assert_eq!(&*alice.tree, "alice");
    let root = alice.files.root();
    let file = alice.files.open(&root, b"/secret", MADE, 0o600, &credentials(ALICE)).unwrap();
    file.pwrite(b"secret", 0).unwrap();
    let whole = keeper.files();
    assert_eq!(
        whole.stat(&whole.root(), b"/home/alice/secret", Follow::No, &Credentials::ROOT).unwrap().size,
        6
    );
    for name in [&b"bob"[..], b"staff", b"nobody", b"..", b"/home/bob", b"alice/../bob", b"alice\0"] {
        assert_eq!(refusal(keeper.admit(&who(ALICE), name)), Errno::ACCESS, "{name:?}");
    }
    // One group more, and there are two: then it must be said which.
    let member = Asker { uid: BOB, gid: BOB, groups: &[5, STAFF] };
    assert_eq!(refusal(keeper.admit(&member, b"")), Errno::INVAL);
    let staff = keeper.admit(&member, b"staff").unwrap();
    let refused = staff.files.open(&staff.files.root(), b"new", MADE, 0o600, &Credentials::ROOT).map(drop);
    assert_eq!(refused.unwrap_err().errno(), Errno::ROFS);
    // Who owns the server has the device anyway.
    assert_eq!(&*keeper.admit(&who(0), b"").unwrap().tree, "");
    keeper.revoke("alice").unwrap();
    assert_eq!(refusal(keeper.admit(&who(ALICE), b"alice")), Errno::ACCESS);
    assert!(matches!(keeper.revoke("alice"), Err(GrantError::Unknown { .. })));
    keeper.drain();
    assert_eq!(refusal(keeper.admit(&who(BOB), b"bob")), Errno::SHUTDOWN);
    assert_eq!(refusal(keeper.admit(&who(0), b"")), Errno::SHUTDOWN);
}

#[test]
fn a_link_in_the_way_to_a_tree_leads_nowhere() {
    let house = House::new("link");
    let keeper = house.keeper().unwrap();
    keeper.grant_tree(tree("bob", "/bob", &[BOB], true)).unwrap();
    keeper.grant_tree(tree("alice", "/bob/alice", &[ALICE], true)).unwrap();
    keeper.grant_tree(tree("secret", "/secret", &[0], true)).unwrap();
    let bob = keeper.admit(&who(BOB), b"").unwrap().files;
    let root = bob.root();
    // Bob owns the directory above, and exchanges hers.
    bob.rename(&root, b"alice", &root, b"was", RenameFlags::Replace, &credentials(BOB)).unwrap();
    for target in [&b"/secret"[..], b"../secret", b"was"] {
        bob.symlink(target, &root, b"alice", &credentials(BOB)).unwrap();
        assert_eq!(refusal(keeper.admit(&who(ALICE), b"alice")), Errno::NOTDIR, "{target:?}");
        bob.unlink(&root, b"alice", &credentials(BOB)).unwrap();
    }
    assert_eq!(refusal(keeper.admit(&who(ALICE), b"alice")), Errno::NOENT);
}

#[test]
fn limits_hold_at_once_and_after_a_restart() {
    let house = House::new("limits");
    let keeper = house.keeper().unwrap();
    let small = TreeGrant { capacity: Some(Size(64 << 10)), ..tree("alice", "/alice", &[ALICE], true) };
    keeper.grant_tree(small.clone()).unwrap();
    let alice = keeper.admit(&who(ALICE), b"").unwrap().files;
    let file = alice.open(&alice.root(), b"f", MADE, 0o600, &credentials(ALICE)).unwrap();
    assert_eq!(file.pwrite(&[1; 128 << 10], 0).unwrap(), 64 << 10);
    assert_eq!(file.pwrite(&[1; 4096], 64 << 10).unwrap_err().errno(), Errno::DQUOT);
    assert_eq!(alice.statfs().blocks, 16);
    keeper.quota("alice", &Quota { capacity: Some(Size(80 << 10)), ..Quota::default() }).unwrap();
    assert_eq!(file.pwrite(&[1; 64 << 10], 64 << 10).unwrap(), 16 << 10, "in a session that is there");
    drop((file, alice));
    drop(keeper);
    let keeper = house.keeper().unwrap();
    let usage = keeper.usage(&small).unwrap();
    assert_eq!((usage.bytes, usage.limits.bytes), (80 << 10, 80 << 10));
    keeper.quota("alice", &Quota { capacity: Some(Size(0)), ..Quota::default() }).unwrap();
    let alice = keeper.admit(&who(ALICE), b"").unwrap().files;
    let file = alice.open(&alice.root(), b"f", MADE, 0o600, &credentials(ALICE)).unwrap();
    assert_eq!(file.pwrite(&[1; 4096], 1 << 20).unwrap(), 4096, "it was lifted");
    assert!(keeper.quota("bob", &Quota::default()).is_err());
    assert!(keeper.quota("alice", &Quota { rate: Some(Size(1 << 20)), ..Quota::default() }).is_err());
}

fn part(first: u64, size: u64) -> PartitionGrant {
    PartitionGrant {
        name: "p1".to_owned(),
        first: Size(first),
        size: Size(size),
        user: rustix::process::geteuid().as_raw(),
        group: None,
        write: true,
        queues: 2,
        rate: None,
    }
}

#[test]
fn partitions_lie_behind_the_file_system_and_come_back() {
    let house = House::new("parts");
    let keeper = house.keeper().unwrap();
    for wrong in [part(0, 1 << 20), part(FS_BYTES - 4096, 1 << 20), part(DEVICE_BYTES - 4096, 8192)] {
        assert!(matches!(keeper.grant_partition(wrong), Err(GrantError::Grant { .. })));
    }
    assert_eq!(keeper.table(), Table::default());
    keeper.grant_partition(part(FS_BYTES, 4 << 20)).unwrap();
    let socket = house.dir.join("p1.sock");
    let connect = || {
        let spec = DeviceSpec::parse(&format!("vfio-user:{}", socket.display())).unwrap();
        open_device(&spec, Open::Existing { locked_by_run: false })
    };
    let write = |byte: u8| {
        let device = connect().unwrap();
        let disk = Disk::new(device.clone(), DiskOptions::default());
        let handle = disk.handle(Route::Bound(Binding::Spread), Settings::default()).unwrap();
        let mut before = [0];
        handle.pread(&mut before, 4096).unwrap();
        handle.pwrite(&[byte; 8192], 0).unwrap();
        handle.flush().unwrap();
        drop((handle, disk));
        device.shutdown().unwrap();
        before[0]
    };
    assert_eq!(write(7), 0);
    assert_eq!(keeper.traffic("p1").map(|[_, writes, ..]| writes > 0), Some(true));
    drop(keeper);
    assert!(connect().is_err(), "its server is gone");
    let keeper = house.keeper().unwrap();
    assert_eq!(write(8), 7, "the same blocks");
    keeper.revoke("p1").unwrap();
    assert!(connect().is_err() && !socket.exists());
    assert!(house.keeper().unwrap().table().partitions.is_empty());
}

#[test]
fn a_change_that_cannot_be_kept_is_none() {
    let house = House::new("kept");
    let keeper = house.keeper().unwrap();
    keeper.grant_tree(tree("alice", "/alice", &[ALICE], true)).unwrap();
    // Others could exchange the table now: it is not written there.
    std::fs::set_permissions(&house.dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(keeper.grant_tree(tree("bob", "/bob", &[BOB], true)).is_err());
    assert!(keeper.revoke("alice").is_err());
    assert!(keeper.grant_partition(part(FS_BYTES, 1 << 20)).is_err());
    assert!(!house.dir.join("p1.sock").exists());
    assert!(keeper.admit(&who(BOB), b"bob").is_err() && keeper.admit(&who(ALICE), b"alice").is_ok());
    std::fs::set_permissions(&house.dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(keeper);
    assert_eq!(house.keeper().unwrap().table().trees.len(), 1);
    std::fs::write(house.dir.join("grants.toml"), "[[tree]]\nname = \"ali").unwrap();
    assert!(
        matches!(house.keeper().map(drop), Err(GrantError::Syntax { .. })),
        "a torn table lets nobody in"
    );
}
