//! The host's storage fails below a live run: the image is cut short, its file system is full, its disk answers errors.
//! The server and the program go on, calls say what happened, and what can be saved is.

use crate::scratch::{Ran, Scratch, have};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the programs of these tests share: `said` prints what a call answers, or its error.
const HEAD: &str = "
import errno, os, subprocess, sys
def said(what, call):
    try: print(what, call(), flush=True)
    except OSError as error: print(what, errno.errorcode[error.errno], flush=True)
def create(): open('store/new', 'w').close()
";

fn python(scratch: &Scratch, how: &str, device: &str, script: &str) -> Ran {
    let mut command =
        scratch.nvmed(["run", how, "--device", device, "--dir", "store", "--", "python3", "-c"]);
    Ran::from(command.arg(format!("{HEAD}{script}")).output().unwrap())
}

fn length(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// Every line of a program's errors that says that the file system has turned read-only.
fn notices(ran: &Ran) -> usize {
    ran.err.lines().filter(|line| line.contains("has turned read-only: ")).count()
}

#[test]
fn an_image_that_is_truncated_under_a_run_costs_what_was_cut_off() {
    if !have("python3") {
        return;
    }
    for how in ["--shared", "--private"] {
        let scratch = Scratch::with_device("64M");
        let script = "
small = open('store/small', 'wb+', buffering=0)
small.write(b'old!' * 2048)
large = open('store/large', 'wb+', buffering=0)
large.write(b'0123' * (10 << 20)); os.sync(); os.fsync(large.fileno())
os.pwrite(small.fileno(), b'new!' * 2048, 0)
os.truncate('d.img', 32 << 20)
said('write', lambda: os.pwrite(large.fileno(), b'4567' * 1024, 36 << 20))
said('sync', lambda: os.fsync(large.fileno()))
said('create', create)
said('again', lambda: os.pwrite(small.fileno(), b'no', 0))
said('cached', lambda: os.pread(large.fileno(), 4, 36 << 20))
said('names', lambda: sorted(os.listdir('store')))
said('read-only', lambda: os.statvfs('store').f_flag & os.ST_RDONLY)
";
        let ran = python(&scratch, how, "d.img", script);
        let said = "write 4096\nsync EIO\ncreate EROFS\nagain EROFS\ncached b'4567'\n\
                    names ['large', 'small']\nread-only 1\n";
        assert_eq!(ran.out, said, "{how}: {}", ran.err);
        assert_eq!(notices(&ran), 1, "{how}: {}", ran.err);
        assert!(!ran.err.contains("signal"), "{how}: {}", ran.err);
        assert!(!ran.err.contains("is saved\n"), "{how}: it is not: {}", ran.err);
        assert!(ran.err.contains("not everything"), "{how}: {}", ran.err);
        assert_ne!(ran.status, 0, "{how}: something is lost");
        length(&scratch.path("d.img"), 64 << 20);
        is_mended(&scratch, "d.img");
        let small = scratch.ok(["cat", "d.img:/small"]);
        assert!(small == "new!".repeat(2048), "{how}: what was written before the cut, and fits, is there");
    }
}

/// On memory each call that needs what is gone says so at once, no touch of it is a signal, and the rest goes on.
#[test]
fn memory_that_is_truncated_under_a_run_costs_what_was_cut_off() {
    if !have("python3") {
        return;
    }
    for how in ["--shared", "--private"] {
        let scratch = Scratch::new();
        scratch.ok(["format", "nvm:d.img", "--size", "64M"]);
        let script = "
small = open('store/small', 'wb+', buffering=0)
small.write(b'old!' * 2048)
large = open('store/large', 'wb+', buffering=0)
large.write(b'0123' * (10 << 20)); os.fsync(large.fileno())
os.truncate('d.img', 32 << 20)
said('write', lambda: os.pwrite(large.fileno(), b'4567' * 1024, 36 << 20))
said('read', lambda: os.pread(large.fileno(), 4, 36 << 20))
said('early', lambda: os.pread(large.fileno(), 4, 0))
said('small', lambda: os.pwrite(small.fileno(), b'new!' * 2048, 0))
said('sync', lambda: os.fsync(small.fileno()))
said('create', create)
";
        let ran = python(&scratch, how, "nvm:d.img", script);
        let said = "write EIO\nread EIO\nearly b'0123'\nsmall 8192\nsync None\ncreate None\n";
        assert_eq!((ran.out.as_str(), ran.status), (said, 0), "{how}: {}", ran.err);
        let told = "d.img: its file has been cut short to 33554432 of 67108864 bytes: calls on what is gone answer EIO";
        assert!(ran.err.contains(told) && ran.err.lines().count() == 1, "{how}: once: {}", ran.err);
        assert!(ran.err.contains("truncate -s 67108864 "), "{how}: {}", ran.err);
        scratch.fails(["ls", "nvm:d.img"], 4, "was the image truncated?");
        length(&scratch.path("d.img"), 64 << 20);
        is_mended(&scratch, "nvm:d.img");
        assert!(scratch.ok(["cat", "nvm:d.img:/small"]) == "new!".repeat(2048), "{how}");
        assert_eq!(scratch.ok(["ls", "nvm:d.img"]), "large\nnew\nsmall\n", "{how}");
    }
}

/// What the program maps is the medium itself: a touch of what is gone is a signal of its own, and both that and what
/// became of the device are told.
#[test]
fn a_program_that_maps_what_was_cut_off_ends_by_a_signal_which_is_told() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::new();
    scratch.ok(["format", "nvm:d.img", "--size", "64M"]);
    let script = "
import mmap
large = open('store/large', 'wb+', buffering=0)
large.write(b'0123' * (10 << 20)); os.fsync(large.fileno())
view = mmap.mmap(large.fileno(), 40 << 20, prot=mmap.PROT_READ)
os.truncate('d.img', 32 << 20)
print(view[39 << 20])
";
    let ran = python(&scratch, "--private", "nvm:d.img", script);
    assert_eq!((ran.out.as_str(), ran.status), ("", 125), "{}", ran.err);
    let told = ran.err.lines().last().unwrap_or_default();
    assert!(told.contains("was the image truncated?"), "{}", ran.err);
    assert!(told.ends_with("(the program has ended by signal 7)"), "{}", ran.err);
}

/// Something that a program of the host's takes away again.
struct Undo(&'static str, Vec<PathBuf>);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Command::new(self.0).args(&self.1).status();
    }
}

fn does(program: &str, arguments: &[&str], path: &Path) -> bool {
    Command::new(program).args(arguments).arg(path).output().is_ok_and(|ran| ran.status.success())
}

#[test]
fn a_host_without_room_is_told_and_loses_nothing() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::new();
    let Some(_undo) = small_host(&scratch, "16m") else { return };
    scratch.ok(["format", "small/d.img", "--size", "64M"]);
    let script = "
first = open('store/first', 'wb+', buffering=0)
first.write(b'1111' * 1024); os.fsync(first.fileno())
large = open('store/large', 'wb+', buffering=0)
large.write(b'2222' * (6 << 20))
said('full', lambda: os.fsync(large.fileno()))
said('cached', lambda: os.pread(large.fileno(), 4, 23 << 20))
said('synced', lambda: os.pread(first.fileno(), 4, 0))
subprocess.run(['mount', '-o', 'remount,size=128m', 'small'], check=True)
said('room', lambda: os.fsync(large.fileno()))
said('create', create)
";
    let ran = python(&scratch, "--shared", "small/d.img", script);
    let said = "full ENOSPC\ncached b'2222'\nsynced b'1111'\nroom None\ncreate None\n";
    assert_eq!((ran.out.as_str(), ran.err.as_str(), ran.status), (said, "", 0));
    assert!(scratch.ok(["fsck", "small/d.img"]).contains("clean"));
    assert_eq!(scratch.ok(["cat", "small/d.img:/large"]).len(), 24 << 20);
}

/// A directory of the scratch's with `size` bytes for files, if there can be one.
fn small_host(scratch: &Scratch, size: &str) -> Option<Undo> {
    let small = scratch.path("small");
    std::fs::create_dir(&small).unwrap();
    if !does("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], &small) {
        println!("SKIPPED: mounting a tmpfs of {size} needs root");
        return None;
    }
    Some(Undo("umount", vec!["-l".into(), small]))
}

/// On memory below a full host a write is there for whoever reads it, or says that there is no room.
#[test]
fn memory_of_a_host_without_room_keeps_what_it_has_answered() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::new();
    let Some(_undo) = small_host(&scratch, "16m") else { return };
    let script = "
def block(i): return b'%08d' % i * 8192
file = os.open('store/f', os.O_RDWR | os.O_CREAT)
written = 0
try:
    while written < 64 << 20: written += os.write(file, block(written >> 16))
except OSError as error: print(errno.errorcode[error.errno], written > 8 << 20)
print(os.fstat(file).st_size == written)
wrong = [i for i in range(written >> 16) if os.pread(file, 1 << 16, i << 16) != block(i)]
print('wrong', len(wrong))
if 'synced' in sys.argv:
    for _ in range(2): said('sync', lambda: os.fsync(file))
";
    for how in ["--shared", "--private"] {
        for device in ["nvm:small/d.img", "nvm:small/d.img?profile=nand,buffer=1M"] {
            for (synced, said) in [("", ""), ("synced", "sync None\nsync None\n")] {
                scratch.ok(["format", "nvm:small/d.img", "--size", "64M"]);
                let mut command = scratch.nvmed(["run", how, "--device", device, "--dir", "store", "--"]);
                command.args(["python3", "-c"]).arg(format!("{HEAD}{script}")).arg(synced);
                let ran = Ran::from(command.output().unwrap());
                assert_eq!(
                    ran.out,
                    format!("ENOSPC True\nTrue\nwrong 0\n{said}"),
                    "{how} {device}: {}",
                    ran.err
                );
                assert_eq!((ran.err.as_str(), ran.status), ("", 0), "{how} {device}");
                assert!(scratch.ok(["fsck", "nvm:small/d.img"]).contains("clean"));
                std::fs::remove_file(scratch.path("small/d.img")).unwrap();
            }
        }
    }
}

/// Writes `PAGES` pages of a file on a host that has just become full, and of which the file has no memory there yet. A
/// server that `DIES` has made none of them.
const POSTED: &str = "
import signal
kind, at, dies = sys.argv[1], int(sys.argv[2]), 'dies' in sys.argv
path = 'store/' + kind
def opened(): return os.open(path, os.O_WRONLY | os.O_CREAT)
warm = os.open('store/warm', os.O_WRONLY | os.O_CREAT)
for _ in range(16): os.write(warm, b'warm')
file = opened()
if kind == 'allocated': os.posix_fallocate(file, 0, 1 << 20)
if kind == 'hole': os.ftruncate(file, 1 << 20)
if kind == 'inline': os.write(file, b'inline')
if kind == 'log':
    for _ in range(8): os.write(file, b'entry' * 820); os.fsync(file)
os.fsync(file)
os.close(file)
expected = bytearray(open(path, 'rb').read())
file = opened()
with open('small/ballast', 'wb', buffering=0) as ballast:
    for bytes_each in [1 << 16, 1 << 12]:
        try:
            while True: ballast.write(bytes(bytes_each))
        except OSError: pass
children = open(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read().split()
server = [int(pid) for pid in children if int(pid) != os.getpid()][0]
if dies: os.kill(server, signal.SIGSTOP)
for i in range(4):
    part = b'%s%d' % (kind.encode(), i) * 6000
    part = part[:50000]
    expected[at:at + len(part)] = part if at <= len(expected) else bytes(at - len(expected)) + part
    assert os.pwrite(file, part, at) == len(part)
    at += len(part)
open('expected', 'wb').write(expected)
if dies:
    os.kill(server, signal.SIGKILL)
else:
    print(open(path, 'rb').read() == expected)
    for _ in range(2): said('sync', lambda: os.fsync(file))
";

/// What a process was told it may write without a call is there, though the host has become full before it is made.
#[test]
fn posted_writes_to_memory_of_a_host_that_becomes_full_are_there() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::new();
    let Some(_undo) = small_host(&scratch, "16m") else { return };
    let kinds = ["new 5000", "zeroes 4096", "allocated 0", "hole 5000", "inline 6", "log 32800"];
    for (kind, dies) in kinds.iter().flat_map(|kind| [(kind, ""), (kind, "dies")]) {
        scratch.ok(["format", "nvm:small/d.img", "--size", "64M"]);
        // Blocks with data of which the host has none.
        scratch.file("zeroes", vec![0; 1 << 20]);
        scratch.ok(["cp", "zeroes", "nvm:small/d.img:/zeroes"]);
        let sparse = ["--sparse=always", "small/d.img", "small/sparse.img"];
        let copied = Command::new("cp").args(sparse).current_dir(scratch.path(".")).status();
        assert!(copied.unwrap().success());
        std::fs::rename(scratch.path("small/sparse.img"), scratch.path("small/d.img")).unwrap();

        let mut command = scratch.nvmed(["run", "--device", "nvm:small/d.img", "--dir", "store", "--"]);
        command.args(["python3", "-c"]).arg(format!("{HEAD}{POSTED}")).args(kind.split(' ')).arg(dies);
        let ran = Ran::from(command.output().unwrap());
        let said = if dies.is_empty() { "True\nsync None\nsync None\n" } else { "" };
        assert_eq!((ran.out.as_str(), ran.status), (said, 0), "{kind} {dies}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), usize::from(!dies.is_empty()), "{kind} {dies}: {}", ran.err);
        std::fs::remove_file(scratch.path("small/ballast")).unwrap();
        assert!(scratch.ok(["fsck", "nvm:small/d.img"]).contains("clean"), "{kind} {dies}");
        let name = kind.split(' ').next().unwrap();
        scratch.ok(["cp", &format!("nvm:small/d.img:/{name}"), "found"]);
        let read = |name: &str| std::fs::read(scratch.path(name)).unwrap();
        assert!(read("found") == read("expected"), "{kind} {dies}");
        std::fs::remove_file(scratch.path("small/d.img")).unwrap();
    }
}

/// What was cut off held the far superblock: that is told, nothing else is wrong, and a repair writes it again.
fn is_mended(scratch: &Scratch, device: &str) {
    let told = scratch.run(["fsck", device]);
    assert!(told.status == 1 && told.out.lines().count() == 2, "{}{}", told.out, told.err);
    assert!(
        told.out.contains("one superblock is damaged") && told.out.contains("nothing is lost"),
        "{}",
        told.out
    );
    assert!(scratch.ok(["fsck", "--repair", device]).contains("clean"));
    assert!(scratch.ok(["fsck", device]).contains("clean"));
}

#[test]
fn a_loop_device_that_is_cut_short_answers_errors() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::new();
    let backing = scratch.file("backing", b"");
    length(&backing, 64 << 20);
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        println!("SKIPPED: no loop device (needs root and losetup)");
        return;
    };
    let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let undo = Undo("losetup", vec!["-d".into(), device.clone().into()]);
    let spec = format!("uring:{device}");
    scratch.ok(["format", &spec]);
    let script = "
small = open('store/small', 'wb+', buffering=0)
small.write(b'old!' * 2048)
large = open('store/large', 'wb+', buffering=0)
large.write(b'0123' * (10 << 20)); os.sync()
os.pwrite(small.fileno(), b'new!' * 2048, 0)
os.truncate('backing', 32 << 20)
subprocess.run(['losetup', '-c', 'LOOP'], check=True)
os.pwrite(large.fileno(), b'4567' * 1024, 36 << 20)
said('sync', lambda: os.fsync(large.fileno()))
said('small', lambda: os.fsync(small.fileno()))
said('cached', lambda: os.pread(large.fileno(), 4, 36 << 20))
os.truncate('backing', 64 << 20)
subprocess.run(['losetup', '-c', 'LOOP'], check=True)
said('again', lambda: os.fsync(large.fileno()))
";
    let ran = python(&scratch, "--shared", &spec, &script.replace("LOOP", &device));
    // Linux says of a write behind the end of a block device that there is no room.
    let said = "sync ENOSPC\nsmall None\ncached b'4567'\nagain None\n";
    assert_eq!((ran.out.as_str(), ran.err.as_str(), ran.status), (said, "", 0));
    is_mended(&scratch, &spec);
    assert!(scratch.ok(["cat", &format!("{spec}:/small")]) == "new!".repeat(2048));
    drop(undo);
}

/// The client has answered for a write, and the file system has turned read-only before the server made it.
#[test]
fn a_write_that_was_answered_and_could_not_be_made_is_told_at_the_end() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::with_device("64M");
    let script = "
posted = open('store/posted', 'wb', buffering=0)
for _ in range(64): posted.write(b'kept')
other = open('store/other', 'wb', buffering=0)
other.write(b'data' * (1 << 20))
said('sync', lambda: os.fsync(other.fileno()))
said('write', lambda: posted.write(b'lost'))
if 'told' in sys.argv:
    said('told', lambda: os.fsync(posted.fileno()))
    said('again', lambda: os.fsync(posted.fileno()))
";
    let device = "virtual:d.img?faults=fail:status=0x281+op=write+times=1";
    // No later sync makes it, so each of them says so.
    for (told, said) in [("", ""), ("told", "told EROFS\nagain EROFS\n")] {
        let mut command = scratch.nvmed(["run", "--device", device, "--dir", "store", "--", "python3", "-c"]);
        let ran = Ran::from(command.arg(format!("{HEAD}{script}")).arg(told).output().unwrap());
        assert_eq!(ran.out, format!("sync EIO\nwrite 4\n{said}"), "{}", ran.err);
        assert_eq!(ran.err.contains("1 open file lost what"), told.is_empty(), "{}", ran.err);
        assert_eq!(notices(&ran), 1, "{}", ran.err);
        assert_eq!(ran.status, if told.is_empty() { 125 } else { 0 }, "{}", ran.err);
        assert_eq!(scratch.ok(["cat", "d.img:/posted"]), "kept".repeat(64));
    }
}
