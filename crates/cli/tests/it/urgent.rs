//! Who is urgent, by the drive's own record of its commands: programs of the class real-time below `nvmed run`,
//! `nvmed mount` and `nvmed serve`, and those whose user says so. And what a kill leaves of their writes.

use crate::scratch::{Ran, Scratch, have};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether this process may give the class real-time to programs.
fn has_real_time() -> bool {
    let has = Command::new("ionice").args(["-c", "1", "true"]).output().is_ok_and(|ran| ran.status.success());
    if !has {
        eprintln!("SKIPPED: the I/O class real-time needs ionice, and CAP_SYS_NICE or CAP_SYS_ADMIN");
    }
    has
}

/// Whether a mount is possible here.
fn has_fuse() -> bool {
    let has = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !has {
        eprintln!("SKIPPED: a mount needs root and /dev/fuse");
    }
    has
}

/// The device whose drive writes down in `r.csv` what comes.
const RECORDED: &str = "virtual:d.img?profile=tlc,record=r.csv";

/// Commands that the drive took since it was opened last, and how many of them came urgently.
#[track_caller]
fn commands(record: &Path) -> (usize, usize) {
    let text = std::fs::read_to_string(record).unwrap();
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    (rows.len(), rows.iter().filter(|row| row.ends_with(",1")).count())
}

/// Has a program write and sync a file: a command that `before` may begin.
fn synced(scratch: &Scratch, before: &[&str], file: &str) -> Command {
    let dd = format!("dd if=/dev/zero of={file} bs=16k count=4 conv=fsync status=none");
    let words = before.iter().copied().chain(["sh", "-c", &dd]);
    let words: Vec<_> = words.collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(scratch.path("."));
    command
}

#[track_caller]
fn done(mut command: Command) {
    let ran = Ran::from(command.output().unwrap());
    assert_eq!((ran.status, &*ran.err), (0, ""), "{command:?}: {}", ran.out);
}

#[test]
fn a_request_of_the_kernel_is_as_urgent_as_the_thread_that_it_is_for() {
    if !has_fuse() || !has_real_time() {
        return;
    }
    let scratch = Scratch::with_device("64M");
    std::fs::create_dir(scratch.path("m")).unwrap();
    let real_time: &[&str] = &["ionice", "-c", "1"];
    for (mounter, program, is_urgent) in
        [(&[][..], &[][..], false), (&[], real_time, true), (real_time, &[], false)]
    {
        let nvmed = env!("CARGO_BIN_EXE_nvmed");
        let words: Vec<_> = mounter.iter().copied().chain([nvmed, "mount", RECORDED, "m"]).collect();
        let mut mount = Command::new(words[0]);
        mount.args(&words[1..]).current_dir(scratch.path("."));
        done(mount);
        let reset = if mounter.is_empty() { &[][..] } else { &["ionice", "-c", "0"] };
        done(synced(&scratch, &[reset, program].concat(), "m/f"));
        scratch.ok(["umount", "m"]);
        let (all, urgent) = commands(&scratch.path("r.csv"));
        assert!(all > 2, "{all} commands");
        assert_eq!(urgent > 0, is_urgent, "{urgent} of {all} by {program:?}, mounted by {mounter:?}");
        assert!(urgent < all, "the mount's own are not: {urgent} of {all}");
    }
    assert_eq!(scratch.ok(["fsck", "d.img"]), "d.img: clean\n");
}

/// Below `nvmed run`, shared and private: who is urgent by the class of its threads, by the wish of its user and by a
/// rule, and that nobody else is, the server of a run of the class real-time among them.
#[test]
fn programs_are_urgent_by_class_by_wish_and_by_rule() {
    let scratch = Scratch::with_device("64M");
    let settings = format!("wrap_dir = ./s\nstorage_dev = {RECORDED}\nurgent = *.db\n");
    std::fs::write(scratch.path("ruled.conf"), settings).unwrap();
    let nvmed = env!("CARGO_BIN_EXE_nvmed");
    let run = |starter: &[&'static str], words: &[&'static str], program: &[&'static str], file: &str| {
        let before = [starter, &[nvmed, "run"], words, &["--"], program].concat();
        done(synced(&scratch, &before, file));
        let (all, urgent) = commands(&scratch.path("r.csv"));
        assert!(all > 2 && urgent < all, "mounting is not urgent: {urgent} of {all} of {before:?}");
        urgent > 0
    };
    let real_time: &[&str] = &["ionice", "-c", "1"];
    let reset: &[&str] = &["ionice", "-c", "0"];
    for way in ["--shared", "--private"] {
        let plain = [way, "-D", RECORDED, "-d", "s"];
        let wished = [&plain[..], &["--urgent"]].concat();
        let ruled = [way, "-c", "ruled.conf"];
        assert!(!run(&[], &plain, &[], "s/f"), "{way}: nobody is urgent");
        assert!(run(&[], &wished, &[], "s/f"), "{way}: its user wants it so");
        assert!(run(&[], &ruled, &[], "s/f.db"), "{way}: a rule says so");
        if has_real_time() {
            assert!(run(real_time, &plain, &[], "s/f"), "{way}: all of the run");
            assert!(run(&[], &plain, real_time, "s/f"), "{way}: a program of the run");
            assert!(!run(real_time, &plain, reset, "s/f"), "{way}: all of the run but the program");
        }
    }
    assert_eq!(scratch.ok(["fsck", "d.img"]), "d.img: clean\n");
}

/// `ionice -p`, or ioprio_set(2), while a program runs that has used its files before: what it does seconds later is
/// urgent.
#[test]
fn a_program_may_become_urgent_while_it_runs() {
    if !has_real_time() {
        return;
    }
    let scratch = Scratch::with_device("64M");
    let settings = format!("wrap_dir = ./s\nstorage_dev = {RECORDED}\ndurability = device\n");
    std::fs::write(scratch.path("durable.conf"), settings).unwrap();
    let runs = |way: &str, change: &str| {
        let script = format!("echo 1 >s/f; {change}; while ((SECONDS < 3)); do echo 2 >>s/f; done");
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvmed"));
        command.args(["run", way, "-c", "durable.conf", "--", "bash", "-c", &script]);
        command.current_dir(scratch.path("."));
        done(command);
        commands(&scratch.path("r.csv")).1
    };
    for way in ["--shared", "--private"] {
        assert_eq!(runs(way, "true"), 0, "{way}: nobody is urgent");
        let urgent = runs(way, "ionice -c 1 -p $$");
        assert!(urgent > 0, "{way}: {urgent} commands were urgent");
    }
}

/// The states of blocks in the newest checkpoint beside an image (docs/spec/flash.md).
fn block_states(file: &Path) -> Vec<u8> {
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let sequence = |head: usize| u64::from_le_bytes(bytes[head + 16..head + 24].try_into().unwrap());
    let (map, blocks) = (word(40) as usize * 4, word(44) as usize * 8);
    let heads = [16_384, 16_384 + 4096];
    let newest = usize::from(sequence(heads[1]) > sequence(heads[0]));
    assert_eq!(&bytes[heads[newest]..][..8], b"nvmedchk");
    let begin = heads[1] + 4096 + newest * (map + blocks).next_multiple_of(4096) + map;
    (begin..begin + blocks).step_by(8).map(|block| (word(block + 4) >> 24) as u8).collect()
}

/// A page that says which of a file's it is.
fn numbered(number: usize) -> String {
    format!("{number:04095}\n")
}

/// Appends pages to `s/f` from a number on, and tells of each when it is durable.
const APPENDER: &str = "
import os, sys
file = os.open('s/f', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = int(sys.argv[1])
while True:
    os.write(file, b'%04095d\\n' % number); os.fsync(file)
    print(number, flush=True)
    number += 1
";

/// Runs [`APPENDER`] from page `first` on until it has told of page `last`, and kills everything that has the device
/// then. Answers the last page that it has told of.
fn killed_while_it_appends(scratch: &Scratch, way: &str, (first, last): (usize, usize)) -> usize {
    let mut run = scratch.nvmed(["run", way, "--urgent", "-D", "d.img", "-d", "s", "--"]);
    run.args(["python3", "-c", APPENDER, &first.to_string()]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut run = run.spawn().unwrap();
    let told = BufReader::new(run.stdout.take().unwrap()).lines();
    let mut told = told.map(|line| line.unwrap().parse::<usize>().unwrap());
    assert!(told.any(|number| number == last), "{way}: it goes on until it is killed");
    // The holder stops first: it could save what the others leave.
    let holder = run.id();
    kill(holder, Signal::STOP);
    let children = std::fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).unwrap();
    children.split_whitespace().for_each(|child| kill(child.parse().unwrap(), Signal::KILL));
    kill(holder, Signal::KILL);
    run.wait().unwrap();
    told.last().unwrap_or(last)
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// SIGKILL amid the urgent writes of a drive that stays: it has open blocks of a stream of their own then. Opened
/// again, it has all that was durable, and goes on in the same blocks.
#[test]
fn a_drive_that_is_killed_amid_urgent_writes_has_them_and_its_state() {
    const OPEN_FOR_URGENT: u8 = 6;
    if !have("python3") {
        return;
    }
    for way in ["--shared", "--private"] {
        let scratch = Scratch::new();
        scratch.ok(["device", "create", "d.img", "--profile", "tlc-urgent", "--size", "64M"]);
        scratch.ok(["format", "d.img"]);
        let mut written = 0;
        for (round, pages) in [7, 1, 30].into_iter().enumerate() {
            let told = killed_while_it_appends(&scratch, way, (written, written + pages - 1));
            let json = scratch.ok(["smart", "--json", "d.img"]);
            assert!(json.contains(&format!("\"unsafe_shutdowns\":{},", round + 1)), "{way}: {json}");
            let states = block_states(&scratch.path("d.img.flash"));
            assert!(states.contains(&OPEN_FOR_URGENT), "{way}, round {round}: {states:?}");
            assert_eq!(scratch.ok(["fsck", "d.img"]), "d.img: clean\n", "{way}, round {round}");
            let text = scratch.ok(["cat", "d.img:/f"]);
            written = text.len().div_ceil(4096);
            // The page that was being written may be there, too.
            assert!((told + 1..=told + 2).contains(&written), "{way}, round {round}: {written} of {told}");
            assert!(
                text == (0..written).map(numbered).collect::<String>(),
                "{way}, round {round}: other text"
            );
        }
    }
}
