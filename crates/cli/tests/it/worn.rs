//! A drive that has worn out below a file system: what was made durable can be read with every command, nothing is
//! written any more, and whoever wants to write is told why not.

use crate::scratch::{Ran, Scratch, have};

/// Cells of few cycles, and fast ones, so that little work wears them out.
const PROFILE: &str = r#"
[profile]
what = "wears out soon"
source = "this test"
typical_gb = 1
[geometry]
channels = 4
chips_per_channel = 1
dies_per_chip = 1
planes_per_die = 1
registers_per_plane = 2
[[block]]
page_kib = 4
pages_per_block = 16
pages_per_program = 1
read_us = 2
program_us = 5
erase_us = 10
endurance_cycles = 4
[bus]
read_mb_per_s = 1000
write_mb_per_s = 1000
sector_bytes = 512
[link]
read_mb_per_s = 3360
write_mb_per_s = 3360
[controller]
commands = 64
command_us = 1
[translation]
buffer_mib = 2
over_provisioning_percent = 28
victim = "greedy"
gc_blocks = 4
gc_idle_blocks = 8
idle_ms = 100
wear = "simple"
bad_blocks_ppm = 0
seed = 1
"#;

/// Writes until the drive refuses, then does one of each that still may work.
const WEAR: &str = "
import errno, os
def said(what, call):
    try: print(what, call(), flush=True)
    except OSError as error: print(what, errno.errorcode[error.errno], flush=True)
good = os.open('store/good', os.O_RDONLY)
file = os.open('store/file', os.O_RDWR | os.O_CREAT)
bytes = os.urandom(1 << 20)
def wear():
    for round in range(1000):
        os.pwrite(file, bytes, (round % 5) << 20); os.fsync(file)
said('wear', wear)
said('write', lambda: os.pwrite(file, b'more', 0))
said('create', lambda: os.open('store/new', os.O_WRONLY | os.O_CREAT))
said('unlink', lambda: os.unlink('store/good'))
said('sync', lambda: os.fsync(file))
said('read', lambda: os.pread(good, 4, 0))
said('cached', lambda: os.pread(file, 1 << 20, 0) == bytes)
said('read-only', lambda: os.statvfs('store').f_flag & os.ST_RDONLY)
";

fn run(scratch: &Scratch, how: &str, program: &[&str]) -> Ran {
    let mut command = scratch.nvmed(["run", how, "--device", "d.img", "--dir", "store", "--"]);
    Ran::from(command.args(program).output().unwrap())
}

/// The one line that says what is wrong with the drive.
fn is_told_once(err: &str) -> bool {
    let told = |line: &&str| line.contains("d.img: the file system is read-only: the device takes no writes");
    err.lines().filter(told).filter(|line| line.contains("can be read: copy them")).count() == 1
}

/// A drive that is worn out by a program, with a file from before.
fn worn_out(how: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.file("my.toml", PROFILE);
    scratch.file("good", "good".repeat(250_000));
    scratch.ok(["device", "create", "d.img", "--profile", "./my.toml", "--size", "16M"]);
    scratch.ok(["format", "d.img"]);
    scratch.ok(["cp", "good", "d.img:/good"]);
    let ran = run(&scratch, how, &["python3", "-c", WEAR]);
    let said = "wear EIO\nwrite EROFS\ncreate EROFS\nunlink EROFS\nsync EIO\nread b'good'\ncached True\nread-only 1\n";
    assert_eq!(ran.out, said, "{how}: {}", ran.err);
    assert!(is_told_once(&ran.err) && ran.err.contains("not everything"), "{how}: {}", ran.err);
    assert_ne!(ran.status, 0, "{how}: what the last fsync has not confirmed is lost");
    let smart = scratch.ok(["smart", "d.img"]);
    assert!(smart.contains("the medium is read-only"), "{smart}");
    scratch
}

#[test]
fn a_drive_that_has_worn_out_is_read_and_never_written() {
    if !have("python3") {
        return;
    }
    for how in ["--shared", "--private"] {
        let scratch = worn_out(how);
        let before = std::fs::read(scratch.path("d.img")).unwrap();
        for command in
            [&["ls", "d.img:/"][..], &["cat", "d.img:/good"], &["stat", "d.img:/good"], &["df", "d.img"]]
        {
            let ran = scratch.run(command);
            assert!(ran.status == 0 && is_told_once(&ran.err), "{command:?}: {}", ran.err);
        }
        assert_eq!(scratch.run(["cat", "d.img:/good"]).out.len(), 1_000_000);
        assert_eq!(scratch.run(["cp", "d.img:/good", "out"]).status, 0);
        assert!(std::fs::read(scratch.path("out")).unwrap() == std::fs::read(scratch.path("good")).unwrap());
        for command in [["fsck", "d.img"].as_slice(), &["fsck", "--repair", "d.img"]] {
            assert!(scratch.ok(command).contains("clean"), "{command:?}");
        }
        for command in [
            &["cp", "good", "d.img:/new"][..],
            &["rm", "d.img:/good"],
            &["mkdir", "d.img:/new"],
            &["mv", "d.img:/good", "d.img:/new"],
            &["trim", "d.img"],
        ] {
            scratch.fails(command, 1, "d.img: the file system is read-only: the device takes no writes");
        }
        let refused = "the device takes no writes, as a drive does that is worn out; nothing was changed";
        scratch.fails(["format", "--force", "d.img"], 4, refused);
        let ran = run(&scratch, how, &["cat", "store/good"]);
        assert_eq!((ran.out.len(), ran.status), (1_000_000, 0), "{how}: {}", ran.err);
        let ran = run(&scratch, how, &["sh", "-c", "cat store/good; echo more > store/new"]);
        assert_eq!(ran.out.len(), 1_000_000, "{how}: {}", ran.err);
        assert!(is_told_once(&ran.err) && ran.err.contains("Read-only file system"), "{how}: {}", ran.err);
        assert!(ran.status != 0 && !ran.err.contains("not everything"), "{how}: {}", ran.err);
        let smart = scratch.ok(["smart", "d.img"]);
        assert!(smart.contains(" 0 unsafe shutdowns"), "{how}: {smart}");
        assert!(std::fs::read(scratch.path("d.img")).unwrap() == before, "{how}: something was written");
        // What a repair would put right it says, and leaves.
        let mut damaged = before;
        let far = damaged.len() - 4096;
        damaged[far..].fill(0);
        std::fs::write(scratch.path("d.img"), damaged).unwrap();
        scratch.fails(["fsck", "--repair", "d.img"], 4, refused);
        assert_eq!(run(&scratch, how, &["cat", "store/good"]).status, 0);
    }
}
