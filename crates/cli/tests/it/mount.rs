//! `nvmed mount`: the file system through the kernel, and what is left when its processes end.
//!
//! Needs root and FUSE; without them each test says that it was skipped.

use crate::scratch::{Ran, Scratch};
use nvmed_dice::Dice;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A mounted device, unmounted with the value.
struct Mounted {
    scratch: Scratch,
}

impl Mounted {
    /// Mounts a new device of `size`; none where mounting is not possible.
    fn new(size: &str, words: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED: a mount needs root and /dev/fuse");
            return None;
        }
        let scratch = Scratch::with_device(size);
        std::fs::create_dir(scratch.path("m")).unwrap();
        let mounted = Self { scratch };
        mounted.mount(words);
        Some(mounted)
    }

    #[track_caller]
    fn mount(&self, words: &str) {
        assert_eq!(self.scratch.ok(["mount", "-o", words, "d.img", "m"]), "");
    }

    #[track_caller]
    fn unmount(&self) {
        // A program that another test is just starting may still have our open files, until it is executed.
        for _ in 0..100 {
            let ran = self.scratch.run(["umount", "m"]);
            if ran.status != 3 {
                assert_eq!((ran.status, ran.err.as_str()), (0, ""));
                return;
            }
        }
        panic!("still in use");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path("m").join(name)
    }

    /// Holder and server.
    fn processes(&self) -> (u32, u32) {
        let mut value = [0; 16];
        let len = rustix::fs::lgetxattr(self.path(""), "system.nvmed.holder", &mut value[..]).unwrap();
        let holder: u32 = std::str::from_utf8(&value[..len]).unwrap().parse().unwrap();
        let children = std::fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).unwrap();
        (holder, children.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Kills server and holder. The holder stops first: it could save what the server leaves.
    fn kill_all(&self) {
        let (holder, server) = self.processes();
        kill(holder, rustix::process::Signal::STOP);
        kill(server, rustix::process::Signal::KILL);
        kill(holder, rustix::process::Signal::KILL);
        Self::wait_for(holder);
        Self::wait_for(server);
    }

    /// Waits until a process has ended.
    fn wait_for(pid: u32) {
        let Ok(process) = rustix::process::pidfd_open(
            rustix::process::Pid::from_raw(pid as i32).unwrap(),
            rustix::process::PidfdFlags::empty(),
        ) else {
            return;
        };
        let mut waited = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut waited, None).unwrap();
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.scratch.ok(["fsck", "d.img"]), "d.img: clean\n");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.scratch.path("m").join(".").exists() {
            let _ = self.scratch.run(["umount", "m"]);
        }
        let _ = rustix::mount::unmount(self.scratch.path("m"), rustix::mount::UnmountFlags::DETACH);
    }
}

fn kill(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn what_is_written_is_on_the_device_after_umount() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    std::fs::create_dir_all(mounted.path("a/b")).unwrap();
    std::fs::write(mounted.path("a/b/c"), b"text").unwrap();
    std::os::unix::fs::symlink("c", mounted.path("a/b/link")).unwrap();
    let types = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let ours =
        types.lines().find(|line| line.contains(mounted.path("").to_str().unwrap().trim_end_matches('/')));
    assert!(ours.unwrap().contains(" fuse.nvmed rw,nosuid,nodev,"), "{ours:?}");
    mounted.unmount();
    assert!(!mounted.path("a").exists());
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/a/b/link"]), "text");
    mounted.is_clean();
    mounted.mount("ro");
    assert_eq!(std::fs::read(mounted.path("a/b/c")).unwrap(), b"text");
    let refused = std::fs::write(mounted.path("new"), b"").unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::ROFS));
}

#[test]
fn a_killed_server_loses_no_completed_call() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    std::fs::write(mounted.path("synced"), b"synced").unwrap();
    File::open(mounted.path("synced")).unwrap().sync_all().unwrap();
    for number in 0..100 {
        std::fs::write(mounted.path(&format!("f{number}")), format!("text {number}")).unwrap();
    }
    let (holder, server) = mounted.processes();
    kill(server, rustix::process::Signal::KILL);
    Mounted::wait_for(holder);
    assert!(!mounted.path("synced").exists(), "the dead mount is gone");
    mounted.is_clean();
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/synced"]), "synced");
    for number in [0, 50, 99] {
        assert_eq!(mounted.scratch.ok(["cat", &format!("d.img:/f{number}")]), format!("text {number}"));
    }
    // And the device can be mounted again.
    mounted.mount("");
    assert_eq!(std::fs::read_dir(mounted.path("")).unwrap().count(), 101);
}

/// One change of one file or two, made through the mount and then in the model. An error says that the server
/// is dead; what the change was about may then be as before, as after, or (a write) half done.
fn change(root: &Path, dice: &mut Dice, model: &mut BTreeMap<String, Vec<u8>>) -> Result<(), [String; 2]> {
    let names = [0, 1].map(|_| format!("f{}", dice.roll(12)));
    let [path, other] = [0, 1].map(|index| root.join(&names[index]));
    let dead = |_| names.clone();
    let has = model.contains_key(&names[0]);
    match dice.roll(8) {
        0 if has => {
            std::fs::remove_file(path).map_err(dead)?;
            model.remove(&names[0]);
        }
        1 if has && names[0] != names[1] => {
            std::fs::rename(path, other).map_err(dead)?;
            let bytes = model.remove(&names[0]).unwrap();
            model.insert(names[1].clone(), bytes);
        }
        2 if has => {
            let size = dice.roll(30_000);
            let file = std::fs::OpenOptions::new().write(true).open(path).map_err(dead)?;
            file.set_len(size).map_err(dead)?;
            model.get_mut(&names[0]).unwrap().resize(size as usize, 0);
        }
        _ => {
            let mut options = std::fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).open(path).map_err(dead)?;
            let (at, bytes) = (dice.roll(20_000), vec![dice.roll(256) as u8; 1 + dice.roll(20_000) as usize]);
            file.write_all_at(&bytes, at).map_err(dead)?;
            let (held, end) = (model.entry(names[0].clone()).or_default(), at as usize + bytes.len());
            held.resize(held.len().max(end), 0);
            held[at as usize..end].copy_from_slice(&bytes);
        }
    }
    Ok(())
}

#[test]
fn whenever_a_server_is_killed_the_completed_calls_are_there() {
    let Some(mounted) = Mounted::new("64M", "writeback_seconds=0") else { return };
    let mut model = BTreeMap::new();
    // The calls come from the seed; the moment of the kill does not. NVMED_KILLS=n for more of them.
    let number =
        |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let seed = number("NVMED_SEED", 0x6e76_6d65_6421);
    let mut dice = Dice::new(seed);
    for round in 0..number("NVMED_KILLS", 4) {
        let (holder, server) = mounted.processes();
        // By descriptor: what comes after the end must not reach the directory below the mount.
        let held = File::open(mounted.path("")).unwrap();
        let root = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        let (done, last) = (AtomicU64::new(0), 20 + dice.roll(200));
        let doubtful = std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < last {
                    std::thread::yield_now();
                }
                kill(server, rustix::process::Signal::KILL);
            });
            loop {
                if let Err(names) = change(&root, &mut dice, &mut model) {
                    break names;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        Mounted::wait_for(holder);
        mounted.is_clean();
        mounted.mount("writeback_seconds=0");
        let told = std::fs::read_dir(mounted.path("")).unwrap();
        let names: BTreeSet<String> =
            told.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        for name in names.iter().chain(model.keys()).filter(|name| !doubtful.contains(name)) {
            let seen = std::fs::read(mounted.path(name)).ok();
            assert!(seen.as_ref() == model.get(name), "NVMED_SEED={seed}: {name} after kill {round}");
        }
        for name in doubtful {
            match std::fs::read(mounted.path(&name)) {
                Ok(bytes) => _ = model.insert(name, bytes),
                Err(_) => _ = model.remove(&name),
            }
        }
    }
}

#[test]
fn without_its_holder_a_server_saves_and_ends() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    std::fs::write(mounted.path("a"), b"text").unwrap();
    let (holder, server) = mounted.processes();
    kill(holder, rustix::process::Signal::KILL);
    // The server is told when the first of the thread that started it ends; the lock goes with the last one.
    Mounted::wait_for(holder);
    Mounted::wait_for(server);
    mounted.is_clean();
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/a"]), "text");
}

#[test]
fn when_all_are_killed_what_was_synced_is_there() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    std::fs::create_dir(mounted.path("d")).unwrap();
    std::fs::write(mounted.path("d/a"), b"text").unwrap();
    std::fs::rename(mounted.path("d/a"), mounted.path("d/b")).unwrap();
    File::open(mounted.path("d")).unwrap().sync_all().unwrap();
    File::open(mounted.path("d/b")).unwrap().sync_data().unwrap();
    mounted.kill_all();
    assert_eq!(mounted.scratch.ok(["umount", "m"]), "", "a dead mount is taken away");
    mounted.is_clean();
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/d/b"]), "text");
}

#[test]
fn fsync_of_the_root_saves_everything() {
    let Some(mounted) = Mounted::new("64M", "writeback_seconds=0") else { return };
    std::fs::create_dir(mounted.path("d")).unwrap();
    std::fs::write(mounted.path("d/a"), vec![7; 100_000]).unwrap();
    File::open(mounted.path("")).unwrap().sync_all().unwrap();
    mounted.kill_all();
    mounted.scratch.ok(["umount", "m"]);
    mounted.scratch.ok(["cp", "d.img:/d/a", "a"]);
    assert_eq!(std::fs::read(mounted.scratch.path("a")).unwrap(), vec![7; 100_000]);
}

#[test]
fn with_durability_device_even_that_loses_nothing() {
    let Some(mounted) = Mounted::new("64M", "durability=device") else { return };
    std::fs::write(mounted.path("a"), b"text").unwrap();
    mounted.kill_all();
    mounted.scratch.ok(["umount", "m"]);
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/a"]), "text");
}

#[test]
fn sigterm_unmounts_and_saves() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    std::fs::write(mounted.path("a"), b"text").unwrap();
    let (holder, _) = mounted.processes();
    kill(holder, rustix::process::Signal::TERM);
    Mounted::wait_for(holder);
    assert!(!mounted.path("a").exists());
    mounted.is_clean();
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/a"]), "text");
}

#[test]
fn umount_of_a_mount_in_use_is_refused() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let open = File::create(mounted.path("a")).unwrap();
    mounted.scratch.fails(["umount", "m"], 3, "in use");
    assert!(mounted.path("a").exists());
    drop(open);
    mounted.unmount();
    mounted.scratch.fails(["umount", "m"], 1, "no nvmed file system is mounted here");
}

#[test]
fn a_detached_mount_ends_with_its_last_user() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let mut open = File::create(mounted.path("a")).unwrap();
    let (holder, _) = mounted.processes();
    kill(holder, rustix::process::Signal::TERM);
    // It is detached at once or soon; the open file goes on working.
    while mounted.path("a").exists() {
        std::thread::yield_now();
    }
    open.write_all(b"late").unwrap();
    drop(open);
    Mounted::wait_for(holder);
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/a"]), "late");
}

#[test]
fn what_cannot_be_mounted_is_told() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let scratch = &mounted.scratch;
    scratch.file("plain", "");
    scratch.file("full/x", "");
    std::fs::create_dir(scratch.path("empty")).unwrap();
    scratch.fails(["mount", "d.img", "nowhere"], 1, "there is no such directory");
    scratch.fails(["mount", "d.img", "plain"], 1, "is not a directory");
    scratch.fails(["mount", "d.img", "full"], 1, "is not empty");
    scratch.fails(["mount", "d.img", "m"], 1, "is mounted here already");
    scratch.fails(["mount", "d.img", "empty"], 3, "in use");
    scratch.fails(["mount", "missing.img", "empty"], 4, "missing.img");
    scratch.fails(["mount", "-o", "frobnicate", "d.img", "empty"], 2, "unknown");
    scratch.fails(["mount", "-o", "cache_size=lots", "d.img", "empty"], 2, "cache_size");
    scratch.fails(["mount", "d.img"], 2, "no directory");
    scratch.file("zeroes.img", vec![0; 16 << 20]);
    scratch.fails(["mount", "zeroes.img", "empty"], 4, "no nvmed file system");
}

#[test]
fn a_configuration_file_names_device_and_directory() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    mounted.unmount();
    let scratch = &mounted.scratch;
    scratch.file("my.conf", "wrap_dir = ./m\nstorage_dev = d.img\ncache_size = 8M\n");
    scratch.ok(["mount", "my.conf"]);
    std::fs::write(mounted.path("a"), b"").unwrap();
    mounted.unmount();
    assert_eq!(scratch.ok(["ls", "d.img:/"]), "a\n");
}

#[test]
fn a_mount_in_the_foreground_says_that_it_is_there_and_ends_by_sigint() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    mounted.unmount();
    let mut command = mounted.scratch.nvmed(["mount", "-f", "d.img", "m"]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0; 7];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"mounted");
    std::fs::write(mounted.path("a"), b"text").unwrap();
    kill(child.id(), rustix::process::Signal::INT);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    assert_eq!(mounted.scratch.ok(["cat", "d.img:/a"]), "text");
}

#[test]
fn a_removed_file_lives_as_long_as_it_is_open() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let free = || rustix::fs::statvfs(mounted.path("")).unwrap().f_bfree;
    let before = free();
    let path = mounted.path("a");
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"more", 8 << 20).unwrap();
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 8 << 20).unwrap();
    assert_eq!(&bytes, b"more");
    assert!(free() + 2048 <= before);
    drop(file);
    // The kernel releases it on its own time; a listing through the server comes after it.
    for _ in 0..1000 {
        if free() == before {
            break;
        }
        File::open(mounted.path("")).unwrap().sync_all().unwrap();
    }
    assert_eq!(free(), before);
}

#[test]
fn a_large_directory_is_listed_whole_while_it_changes() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let names: BTreeSet<String> = (0..3000).map(|number| format!("a file with number {number}")).collect();
    for name in &names {
        File::create(mounted.path(name)).unwrap();
    }
    let mut told = Vec::new();
    for (index, entry) in std::fs::read_dir(mounted.path("")).unwrap().enumerate() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if index % 100 == 0 {
            std::fs::write(mounted.path(&format!("new {index}")), b"").unwrap();
            std::fs::remove_file(mounted.path(&format!("new {index}"))).unwrap();
        }
        // With attributes, as `ls -l` asks for: the kernel then reads names and inodes together.
        assert!(entry.metadata().is_ok() || name.starts_with("new"));
        told.extend((!name.starts_with("new")).then_some(name));
    }
    assert_eq!(told.len(), names.len(), "each is told once");
    assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), names);
}

#[test]
fn renames_with_flags() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    std::fs::write(&a, b"a").unwrap();
    std::fs::write(&b, b"b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(Errno::INVAL));
    rename(RenameFlags::empty()).unwrap();
    assert!(!a.exists());
    assert_eq!(std::fs::read(&b).unwrap(), b"b");
}

#[test]
fn holes_and_direct_transfers() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let path = mounted.path("a");
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 8192, 8192).unwrap();
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(8192));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(8192)), Ok(16384));
    assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    let direct = rustix::fs::open(&path, OFlags::RDWR | OFlags::DIRECT, Mode::empty()).unwrap();
    // Pages of a mapping are aligned as a direct transfer wants it.
    let buffer = nvmed_sys::Mapping::anonymous(8192, nvmed_sys::Pages::Base).unwrap();
    let mut bytes = vec![0; 8192];
    buffer.fill(0, 8192, 9);
    buffer.read(0, &mut bytes);
    let aligned = |bytes: &[u8]| bytes.as_ptr().addr().is_multiple_of(512);
    let mut room = vec![0u8; 16384];
    let start = (0..512).find(|start| aligned(&room[*start..])).unwrap();
    let part = &mut room[start..start + 8192];
    part.copy_from_slice(&bytes);
    assert_eq!(rustix::io::pwrite(&direct, part, 8192), Ok(8192));
    assert_eq!(rustix::io::pwrite(&direct, &part[..100], 0), Err(Errno::INVAL));
    // What went past the kernel's cache is what it shows.
    let mut seen = vec![0; 8192];
    file.read_exact_at(&mut seen, 8192).unwrap();
    assert_eq!(seen, bytes);
}

/// The kernel takes a short answer for the end of the file: what the device has lost is an error, and the file as long
/// as it was.
#[test]
fn what_a_cut_device_has_lost_is_no_end_of_file() {
    const PAGES: usize = 256;
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let stamp = |page: usize| format!("page {page} of what is cut. ").repeat(200)[..4096].to_owned();
    let stored: String = (0..PAGES).map(stamp).collect();
    std::fs::write(mounted.path("a"), &stored).unwrap();
    mounted.unmount();
    // Nothing of it is in a cache then.
    mounted.mount("");
    let image = mounted.scratch.path("d.img");
    let bytes = std::fs::read(&image).unwrap();
    let cut = bytes.chunks(4096).position(|block| block == stamp(100).as_bytes()).unwrap();
    let device = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    device.set_len(cut as u64 * 4096).unwrap();
    let file = File::open(mounted.path("a")).unwrap();
    let (mut read, mut into) = (0, vec![0; 64 << 10]);
    let error = loop {
        match file.read_at(&mut into, read as u64) {
            Ok(more) => {
                assert!(more > 0 && into[..more] == stored.as_bytes()[read..read + more], "{more} at {read}");
                read += more;
            }
            Err(error) => break error,
        }
    };
    assert_eq!((error.raw_os_error(), read), (Some(Errno::IO.raw_os_error()), 100 * 4096));
    assert_eq!(std::fs::metadata(mounted.path("a")).unwrap().len(), stored.len() as u64);
    device.set_len(64 << 20).unwrap();
}

#[test]
fn extended_attributes() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let path = mounted.path("a");
    std::fs::write(&path, b"x").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.a", b"one", XattrFlags::empty()).unwrap();
    set("trusted.b", &[7; 20_000], XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.c", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(set("system.posix_acl_access", b"\x02\0\0\0", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    mounted.unmount();
    mounted.is_clean();
    mounted.mount("");
    let mut value = vec![0; 40_000];
    let get = |name: &str, room: &mut [u8]| rustix::fs::getxattr(&path, name, room);
    assert_eq!(get("user.a", &mut value), Ok(3));
    assert_eq!(get("trusted.b", &mut value[..100]), Err(Errno::RANGE));
    assert_eq!(get("trusted.b", &mut value), Ok(20_000));
    assert!(value[..20_000].iter().all(|byte| *byte == 7));
    let len = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
    let mut names: Vec<_> = value[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"trusted.b"[..], b"user.a"]);
    // Root's names are root's to see.
    let script = "import os,sys; print(os.listxattr(sys.argv[1]))";
    let mut other = std::process::Command::new("setpriv");
    other
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c", script])
        .arg("a");
    let seen = Ran::from(other.current_dir(mounted.path("")).output().unwrap());
    match seen.status {
        0 => assert_eq!(seen.out, "['user.a']\n"),
        _ => eprintln!("SKIPPED: /usr/bin/python3 as another user: {}", seen.err),
    }
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(get("user.a", &mut value), Err(Errno::NODATA));
}

#[test]
fn locks_tell_the_truth() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let path = mounted.path("a");
    let (one, two) = (File::create(&path).unwrap(), File::create(&path).unwrap());
    rustix::fs::flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    rustix::fs::flock(&one, FlockOperation::Unlock).unwrap();
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared).unwrap();
    // Record locks are a process's, so another process asks.
    rustix::fs::fcntl_lock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
    let taken = |path: &Path| {
        let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\n\
                      try: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError: sys.exit(7)";
        let status = std::process::Command::new("python3").args(["-c", script]).arg(path).status();
        status.ok().and_then(|status| status.code())
    };
    if let Some(code) = taken(&path) {
        assert_eq!(code, 7);
        drop(two); // Any close of the file by the process drops its locks.
        assert_eq!(taken(&path), Some(0));
    }
}

#[test]
fn the_kernel_checks_permissions_and_new_files_belong_to_their_makers() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let as_nobody = |script: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--groups", "65534,7", "sh", "-c", script]);
        Ran::from(command.current_dir(mounted.path("")).output().unwrap())
    };
    std::fs::write(mounted.path("secret"), b"x").unwrap();
    std::fs::set_permissions(mounted.path("secret"), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_ne!(as_nobody("cat secret").status, 0);
    assert_ne!(as_nobody("touch new").status, 0);
    // A supplementary group counts.
    rustix::fs::chownat(
        CWD,
        mounted.path("secret"),
        None,
        Some(rustix::fs::Gid::from_raw(7)),
        AtFlags::empty(),
    )
    .unwrap();
    assert_eq!(as_nobody("cat secret").out, "x");
    let open = mounted.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o3777)).unwrap();
    std::os::unix::fs::chown(&open, None, Some(12)).unwrap();
    std::fs::write(open.join("root's"), b"").unwrap();
    assert_eq!(as_nobody("umask 027; touch open/f && mkdir open/d").status, 0);
    let (file, dir) =
        (std::fs::metadata(open.join("f")).unwrap(), std::fs::metadata(open.join("d")).unwrap());
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (65534, 12, 0o640));
    assert_eq!((dir.uid(), dir.gid(), dir.mode() & 0o7777), (65534, 12, 0o2750));
    assert_ne!(as_nobody("rm -f \"open/root's\"").status, 0, "the directory is sticky");
}

#[test]
fn threads_write_and_sync_their_own_files() {
    let Some(mounted) = Mounted::new("128M", "threads=4") else { return };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mounted = &mounted;
            scope.spawn(move || {
                let dir = mounted.path(&format!("t{thread}"));
                std::fs::create_dir(&dir).unwrap();
                for number in 0..50u8 {
                    let file = File::create(dir.join(format!("{number}"))).unwrap();
                    file.write_all_at(&vec![number; 5000], 0).unwrap();
                    if number % 5 == 0 {
                        file.sync_all().unwrap();
                    }
                    if number % 2 == 1 {
                        std::fs::rename(dir.join(format!("{number}")), dir.join(format!("r{number}")))
                            .unwrap();
                    }
                }
                rustix::fs::fsync(File::open(&dir).unwrap().as_fd()).unwrap();
            });
        }
    });
    mounted.unmount();
    mounted.is_clean();
    mounted.mount("");
    for thread in 0..4 {
        for number in 0..50u8 {
            let name = if number % 2 == 1 { format!("r{number}") } else { format!("{number}") };
            let bytes = std::fs::read(mounted.path(&format!("t{thread}/{name}"))).unwrap();
            assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == number));
        }
    }
}

#[test]
fn times_modes_and_sizes_are_set() {
    let Some(mounted) = Mounted::new("64M", "") else { return };
    let path = mounted.path("a");
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    file.set_len(10_000).unwrap();
    // After the size: changing that takes setuid off (docs/mount.md).
    file.set_permissions(std::fs::Permissions::from_mode(0o4755)).unwrap();
    drop(file);
    let stamp =
        |seconds: i64, nanoseconds: i64| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    for seconds in [-2, 0, 4_000_000_000] {
        let times = rustix::fs::Timestamps {
            last_access: stamp(seconds, 5),
            last_modification: stamp(seconds, 999_999_999),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let seen = rustix::fs::statat(CWD, &path, AtFlags::empty()).unwrap();
        assert_eq!((seen.st_atime, seen.st_atime_nsec), (seconds, 5));
        assert_eq!((seen.st_mtime, seen.st_mtime_nsec), (seconds, 999_999_999));
    }
    let seen = std::fs::metadata(&path).unwrap();
    assert_eq!((seen.len(), seen.mode() & 0o7777), (10_000, 0o4755));
    rustix::fs::mknodat(CWD, mounted.path("pipe"), rustix::fs::FileType::Fifo, Mode::from(0o600), 0).unwrap();
    let device = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(
        CWD,
        mounted.path("null"),
        rustix::fs::FileType::CharacterDevice,
        Mode::from(0o600),
        device,
    )
    .unwrap();
    assert_eq!(std::fs::metadata(mounted.path("null")).unwrap().rdev(), device);
    mounted.unmount();
    mounted.mount("dev");
    File::create(mounted.path("null")).unwrap().write_all(b"into nothing").unwrap();
}
