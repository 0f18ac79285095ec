//! Who is urgent, by the drive's own record of its commands: programs of the class real-time below `nvmed run`,
//! `nvmed mount` and `nvmed serve`, and those whose user says so.

use crate::scratch::{Ran, Scratch};
use std::path::Path;
use std::process::Command;

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
