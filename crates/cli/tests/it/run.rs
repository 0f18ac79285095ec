//! `nvmed run`: unmodified programs on a device, and what is left when they end.

use crate::scratch::{Ran, Scratch, have};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn sqlite_keeps_its_rows_from_run_to_run() {
    if !have("sqlite3") {
        return;
    }
    let scratch = Scratch::with_device("64M");
    let made = scratch.on_device(["sqlite3", "store/a.db", "CREATE TABLE t(x); INSERT INTO t VALUES(7);"]);
    assert_eq!((made.status, made.err.as_str()), (0, ""));
    assert_eq!(scratch.on_device(["sqlite3", "store/a.db", "SELECT x FROM t"]).out, "7\n");
    assert!(!scratch.path("store").exists(), "nothing was written to the host");
    scratch.ok(["cp", "d.img:/a.db", "a.db"]);
    let mut host = Command::new("sqlite3");
    host.arg(scratch.path("a.db")).arg("PRAGMA integrity_check; SELECT x FROM t");
    let host = host.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&host.stdout), "ok\n7\n");
}

#[test]
fn the_papers_command_works_with_its_file() {
    if !have("sqlite3") {
        return;
    }
    let scratch = Scratch::with_device("64M");
    scratch.file(
        "default.conf",
        "wrap_dir = ./dbstore\n\nfilesystem = lib_ffs.so\nffs_prealloc = 128K\nffs_readahead = none\n\
         ffs_format = FALSE\n\nstorage_engine = lib_nvmed.so\nstorage_dev = d.img\n",
    );
    let library = std::path::Path::new(env!("CARGO_BIN_EXE_nvmed")).with_file_name("libnvmed_wrapper.so");
    let sqlite = |sql: &str| {
        let mut command = Command::new("sqlite3");
        command.args(["./dbstore/a.db", sql]).current_dir(scratch.path(""));
        Ran::from(
            command.env("WRAPPER_CONFIG", "./default.conf").env("LD_PRELOAD", &library).output().unwrap(),
        )
    };
    let made = sqlite("CREATE TABLE t(x); INSERT INTO t VALUES(8);");
    assert_eq!((made.status, made.err.as_str()), (0, ""));
    assert_eq!(sqlite("SELECT x FROM t").out, "8\n");
    // The same file, by its default name, through `nvmed run`.
    assert_eq!(scratch.ok(["run", "sqlite3", "dbstore/a.db", "SELECT x FROM t"]), "8\n");
}

#[test]
fn the_programs_status_is_ours() {
    let scratch = Scratch::with_device("64M");
    assert_eq!(scratch.on_device(["sh", "-c", "exit 42"]).status, 42);
    assert_eq!(scratch.on_device(["sh", "-c", "kill -KILL $$"]).status, 137);
    assert_eq!(scratch.on_device(["cat", "store/missing"]).status, 1);
    let missing = scratch.on_device(["no-such-program"]);
    assert_eq!((missing.status, missing.err.lines().count()), (127, 1), "{}", missing.err);
    let plain = scratch.file("plain", "text");
    assert_eq!(scratch.on_device([plain]).status, 126);
}

#[test]
fn a_static_program_is_refused_with_the_reason() {
    let scratch = Scratch::with_device("64M");
    let mut head = vec![0; 120];
    head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let program = scratch.file("static", head);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ran = scratch.on_device([&program]);
    assert_eq!(ran.status, 126);
    assert!(ran.err.contains("statically linked"), "{}", ran.err);
}

/// Shells, bash with its own `getenv` and `setenv` among them, on our controller and on the kernel's block layer.
#[test]
fn a_shell_runs_on_every_engine_that_needs_no_hardware() {
    for device in ["d.img", "uring:u.img", "uring:u.img?direct=off", "nvm:m.img", "nvm:m.img?flush=process"] {
        let scratch = Scratch::new();
        scratch.ok(["format", device, "--size", "64M"]);
        for shell in ["dash", "bash"].into_iter().filter(|shell| have(shell)) {
            // Nothing but the shell's own commands: a private mount is one process's.
            let write = "cd store && echo one > $0 && echo two >> $0 && read x < $0 && echo got $x";
            let run = ["run", "--private", "--device", device, "--dir", "store", "--", shell, "-c"];
            assert_eq!(scratch.ok(run.into_iter().chain([write, shell])), "got one\n", "{device} {shell}");
            let file = format!("store/{shell}");
            let read = ["run", "--device", device, "--dir", "store", "--", "cat", &file];
            assert_eq!(scratch.ok(read), "one\ntwo\n", "{device} {shell}");
        }
        scratch.ok(["fsck", device]);
    }
}

/// An image has no mark of who made it: what one engine wrote, each other one reads, and goes on.
#[test]
fn an_image_is_the_same_for_every_engine() {
    let scratch = Scratch::new();
    let engines = ["nvm:d.img", "virtual:d.img", "uring:d.img?direct=off", "nvm:d.img?flush=process"];
    scratch.ok(["format", engines[0], "--size", "64M"]);
    for (turn, device) in engines.into_iter().enumerate() {
        scratch.file("text", device);
        let own = format!("{device}:/{turn}");
        scratch.ok(["cp", "text", &own]);
        for (before, written) in engines.iter().enumerate().take(turn + 1) {
            assert_eq!(scratch.ok(["cat", &format!("{device}:/{before}")]), *written, "{device}");
        }
        scratch.ok(["fsck", device]);
    }
}

/// Kills a run as a whole, its holder before that can save what the others leave, and waits until all of it is gone.
fn kill_run(mut holder: std::process::Child) {
    let pid = rustix::process::Pid::from_child(&holder);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let number = holder.id();
    let children = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children")).unwrap();
    let children: Vec<_> = children
        .split_whitespace()
        .map(|child| rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap())
        .map(|child| rustix::process::pidfd_open(child, rustix::process::PidfdFlags::empty()).unwrap())
        .collect();
    assert!(!children.is_empty(), "a run has children");
    for child in &children {
        rustix::process::pidfd_send_signal(child, rustix::process::Signal::KILL).unwrap();
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
    for child in &children {
        rustix::event::poll(&mut [rustix::event::PollFd::new(child, rustix::event::PollFlags::IN)], None)
            .unwrap();
    }
}

/// A run that is killed amid its writes leaves what was synced, and a whole file system, to every engine: on memory
/// what it stored in place, on blocks what its log has.
#[test]
fn a_killed_run_leaves_the_same_to_every_engine() {
    if !have("python3") {
        return;
    }
    let engines =
        ["nvm:d.img", "uring:d.img?direct=off", "nvm:d.img?flush=process", "virtual:d.img", "nvm:d.img"];
    let script = "
import os, sys
turn = sys.argv[1]
for at in range(int(turn)):
    assert open(f'store/kept{at}').read() == str(at) * 50000, at
with open('store/kept' + turn, 'w') as file:
    file.write(turn * 50000)
    file.flush()
    os.fsync(file.fileno())
torn = os.open('store/torn', os.O_RDWR | os.O_CREAT)
print('synced', flush=True)
while True:
    os.ftruncate(torn, 0)
    for at in range(64):
        os.pwrite(torn, b'torn' * 3000, at * 12001)
    os.rename('store/torn', 'store/torn' + turn)
    os.rename('store/torn' + turn, 'store/torn')
";
    for how in ["--private", "--shared"] {
        let scratch = Scratch::new();
        scratch.ok(["format", engines[0], "--size", "64M"]);
        for (turn, device) in engines.into_iter().enumerate() {
            let (turn, run) = (turn.to_string(), ["run", how, "--device", device, "--dir", "store", "--"]);
            let mut command = scratch.nvmed(run.into_iter().chain(["python3", "-c", script, &turn]));
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "synced\n", "{how} {device}, turn {turn}");
            kill_run(child);
            for other in engines {
                assert_eq!(scratch.ok(["fsck", other]), format!("{other}: clean\n"), "after {device}, {how}");
                let kept = scratch.ok(["cat", &format!("{other}:/kept{turn}")]);
                assert!(kept == turn.repeat(50_000), "{how}: {other} reads something else after {device}");
            }
        }
    }
}

#[test]
fn memory_that_is_no_medium_is_told_in_one_line() {
    let scratch = Scratch::new();
    scratch.file("short.img", "short");
    for (device, status, words) in [
        ("nvm:", 2, "as in `nvm:disk.img`"),
        ("nvm:none.img", 4, "make it with `nvmed format"),
        ("nvm:short.img", 4, "5 bytes is no device size"),
        ("nvm:?size=1000", 4, "1000 bytes is no device size"),
        ("nvm:?size=8E", 4, "no memory for a device of 9223372036854775808 bytes: File too large"),
        ("nvm:short.img?flush=disk", 2, "engine nvm knows: size=1G, flush=host|process|dax"),
    ] {
        scratch.fails(["info", device], status, words);
    }
    // What cannot be made leaves no file.
    let small = "new.img?profile=nand,buffer=16384: a buffer of 16384 bytes, of which the write log has 8150, has \
                 no room for a fill of 16384 bytes; give at least buffer=32768";
    for (device, size, words) in [
        ("nvm:new.img?profile=nand,buffer=8K", "64M", "give at least buffer=32768"),
        ("nvm:new.img?profile=nand,buffer=16K", "64M", small),
        ("nvm:new.img?profile=./none.toml,buffer=1M", "64M", "none.toml: No such file"),
        ("nvm:new.img", "1E", "File too large"),
        ("nvm:new.img?flush=dax", "64M", "leave out flush=dax, or put the file on persistent memory"),
    ] {
        let ran = scratch.run(["format", device, "--size", size]);
        if device.ends_with("dax") && ran.status == 0 {
            println!(
                "SKIPPED: the temporary directory is on persistent memory, where flush=dax is not refused"
            );
            continue;
        }
        assert!(ran.err.contains(words) && ran.err.lines().count() == 1, "{device}: {}", ran.err);
        assert!(!scratch.path("new.img").exists(), "{device} left a file");
    }
    scratch.ok(["format", "nvm:m.img", "--size", "64M"]);
    let twice = [
        "run",
        "--device",
        "nvm:m.img",
        "--dir",
        "store",
        "--",
        env!("CARGO_BIN_EXE_nvmed"),
        "ls",
        "nvm:m.img",
    ];
    scratch.fails(twice, 3, "is in use by nvmed");
    scratch.file("foreign.img", vec![7; 16 << 20]);
    scratch.fails(["ls", "nvm:foreign.img"], 4, "holds no nvmed file system");
    scratch.fails(["format", "nvm:foreign.img"], 4, "--force overwrites it");
    scratch.file("foreign.img", vec![7; (16 << 20) + 1]);
    scratch.fails(["ls", "nvm:foreign.img"], 4, "16777217 bytes is no device size");
}

/// A file or a node that is missing has one status, whichever engine would drive it and whichever command asks for it.
#[test]
fn a_device_that_is_missing_is_told_alike() {
    let scratch = Scratch::new();
    for device in ["none.img", "nvm:none.img", "uring:none.img", "uring-cmd:none"] {
        for command in [
            &["info", device][..],
            &["bench", device],
            &["ls", device],
            &["run", "-D", device, "-d", "store", "true"],
            &["run", "--private", "-D", device, "-d", "store", "true"],
        ] {
            scratch.fails(command.iter().copied(), 4, "No such file or directory");
        }
    }
}

/// A size in the string is what an image is made with: that of one that is there is not passed over.
#[test]
fn an_image_of_another_size_than_is_said_is_told() {
    let scratch = Scratch::new();
    for engine in ["virtual", "nvm", "uring"] {
        let image = format!("{engine}:{engine}.img");
        let ran = scratch.run(["format", &format!("{image}?size=64M")]);
        if engine == "uring" && ran.status != 0 {
            println!(
                "SKIPPED: the temporary directory has no direct I/O, or the host no io_uring: {}",
                ran.err
            );
            continue;
        }
        assert_eq!(ran.status, 0, "{}", ran.err);
        scratch.ok(["ls", &format!("{image}?size=64M")]);
        for command in ["ls", "info"] {
            let why = "has 67108864 bytes, and `size=1048576` is what it is made with";
            scratch.fails([command, &format!("{image}?size=1M")], 2, why);
        }
        scratch.ok(["format", &format!("{image}?size=128M"), "--force"]);
        scratch.ok(["ls", &image]);
    }
}

/// Memory that goes with the run is new, so that it can hold nothing else than the run's own file system.
#[test]
fn memory_without_a_file_gets_a_file_system_by_itself() {
    let scratch = Scratch::new();
    let script = "echo kept >store/a; cat store/a";
    for device in ["nvm:?size=64M", "nvm:?size=64M,profile=pcm,buffer=4M", "virtual:?media=dram,size=64M"] {
        for how in ["--shared", "--private"] {
            // Of a private mount on `virtual:` each program has its own.
            let script =
                if how == "--private" { "echo kept >store/a; read -r a <store/a; echo $a" } else { script };
            let ran = scratch.run(["run", how, "-D", device, "-d", "store", "--", "sh", "-c", script]);
            let found = (ran.status, ran.out.as_str(), ran.err.as_str());
            assert_eq!(found, (0, "kept\n", ""), "{how} {device}");
        }
        scratch.fails(["format", device], 2, "or give it to `nvmed run`");
        // Who does not run anything would find nothing there, and lose what he puts there.
        scratch.fails(["ls", device], 4, "begins and ends with this command, and holds no files");
    }
}

/// What a killed program had in a medium of its own has gone with it: the next one begins with its own.
#[test]
fn memory_of_a_killed_program_s_own_goes_with_it() {
    let scratch = Scratch::new();
    let script = "sh -c 'echo gone >store/a; kill -9 $$'; echo killed $?; \
                  sh -c 'echo new >store/b; read -r b <store/b; echo $b'";
    let device = "virtual:?media=dram,size=64M";
    let ran = scratch.run(["run", "--private", "-D", device, "-d", "store", "--", "sh", "-c", script]);
    assert_eq!((ran.status, ran.out.as_str()), (0, "killed 137\nnew\n"), "{}", ran.err);
}

/// What is wrong with a device is told before the program starts, whoever would open it.
#[test]
fn a_device_that_cannot_be_opened_is_told_before_the_program_starts() {
    let scratch = Scratch::new();
    let begun = ["touch", "begun"];
    for (device, status, words) in [
        ("nvm:?size=1000", 4, "1000 bytes is no device size"),
        ("nvm:?size=8E", 4, "no memory for a device of 9223372036854775808 bytes: File too large"),
        ("virtual:?media=dram,size=1000", 4, "1000 bytes is no device size"),
        ("nvm:?size=64M,profile=nand,buffer=16K", 2, "give at least buffer=32768"),
        ("nvm:none.img", 4, "make it with `nvmed format"),
    ] {
        for how in ["--shared", "--private"] {
            scratch.fails(
                ["run", how, "-D", device, "-d", "store", "--"].into_iter().chain(begun),
                status,
                words,
            );
            let conf = format!("wrap_dir = ./store\nffs_format = TRUE\nstorage_dev = {device}\n");
            scratch.file("a.conf", conf);
            scratch.fails(["run", how, "--config", "a.conf", "--"].into_iter().chain(begun), status, words);
        }
    }
    assert!(!scratch.path("begun").exists());
}

/// Memory without a file is the run's: a program that has the file system within itself and is killed leaves it to the
/// next one, with what it had synced on the medium and what it had not in the run's memory.
#[test]
fn memory_that_the_run_holds_outlives_a_killed_program() {
    let scratch = Scratch::new();
    scratch.file("memory.conf", "wrap_dir = ./store\nstorage_engine = nvm\nstorage_dev = nvm:?size=64M\n");
    let script = "dd if=/dev/zero of=store/b bs=64k count=40 conv=fsync status=none; \
                  sh -c 'echo kept >store/a; kill -9 $$'; echo killed $?; cat store/a; ls -s store/b";
    let ran = scratch.run(["run", "--private", "--config", "memory.conf", "--", "sh", "-c", script]);
    assert_eq!((ran.status, ran.out.as_str()), (0, "killed 137\nkept\n2560 store/b\n"), "{}", ran.err);
    let ran = scratch.run(["run", "--private", "--config", "memory.conf", "--", "ls", "store"]);
    assert_eq!((ran.status, ran.out.as_str()), (0, ""), "it goes with the run: {}", ran.err);
}

#[test]
fn signals_reach_the_program() {
    let scratch = Scratch::with_device("64M");
    let script = "trap 'echo caught; exit 3' TERM; echo ready; read -r x; read -r x";
    let mut command = scratch.nvmed(["run", "--device", "d.img", "--dir", "store", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "caught");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// A program that holds the device until its input ends, once it has said so.
fn holder(scratch: &Scratch) -> std::process::Child {
    let script = "import sys\nf = open('store/held', 'w')\nprint('held', flush=True)\nsys.stdin.read()\n";
    let mut command =
        scratch.nvmed(["run", "--device", "d.img", "--dir", "store", "--", "python3", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    child
}

#[test]
fn a_device_in_use_says_who_has_it() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::with_device("64M");
    let mut first = holder(&scratch);
    for arguments in [vec!["ls", "d.img"], vec!["format", "--force", "d.img"]] {
        scratch.fails(arguments, 3, "in use by");
    }
    let second = scratch.on_device(["cat", "store/held"]);
    assert_eq!((second.status, second.err.lines().count()), (3, 1), "{}", second.err);
    assert!(second.err.contains("in use by"), "{}", second.err);
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    assert_eq!(scratch.ok(["ls", "d.img"]), "held\n");
}

#[test]
fn what_a_killed_program_had_completed_is_there() {
    if !have("python3") {
        return;
    }
    for how in ["--private", "--shared"] {
        what_was_completed_before_a_kill_is_there(how);
    }
}

fn what_was_completed_before_a_kill_is_there(how: &str) {
    let scratch = Scratch::with_device("64M");
    let script = "import os, signal\n\
                  f = open('store/a', 'wb', buffering=0)\n\
                  for i in range(1000): f.write(b'%4d' % i * 256)\n\
                  os.mkdir('store/dir')\n\
                  os.rename('store/a', 'store/dir/b')\n\
                  os.kill(os.getpid(), signal.SIGKILL)\n";
    let run = ["run", how, "--device", "d.img", "--dir", "store", "--", "python3", "-c", script];
    assert_eq!(scratch.run(run).status, 137);
    let want: Vec<u8> = (0..1000).flat_map(|i| format!("{i:4}").repeat(256).into_bytes()).collect();
    assert!(
        scratch.ok(["cat", "d.img:/dir/b"]).into_bytes() == want,
        "{how}: the file's bytes are not what was written"
    );
    assert!(scratch.ok(["fsck", "d.img"]).contains("clean"));
}

#[test]
fn statistics_are_written_when_asked_for() {
    let scratch = Scratch::with_device("64M");
    let mut command =
        scratch.nvmed(["run", "--device", "d.img", "--dir", "store", "--stats", "s.json", "--"]);
    let mut child =
        command.args(["tee", "store/f"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[7; 10_000]).unwrap();
    assert!(child.wait().unwrap().success());
    let json = std::fs::read_to_string(scratch.path("s.json")).unwrap();
    scratch.fails(["run", "-D", "d.img", "-d", "s", "--stats", "no/such/dir/s", "true"], 125, "no/such/dir");
    assert!(json.contains("\"writes\"") && json.contains("\"flushes\""), "{json}");
}
