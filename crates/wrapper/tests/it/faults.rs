//! What a program names and is not there is EFAULT, however it stands to SIGSEGV and SIGBUS: docs/spec/faults.md.

use crate::support::Bench;
use std::path::PathBuf;
use std::process::Command;

/// How the C program stands to the signals; it says what each is about.
const HOW: [&str; 6] = ["nothing", "handlers", "blocked", "ignored", "thread", "vfork"];

fn compiled(bench: &Bench) -> PathBuf {
    let program = bench.host().join("faults");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/faults.c");
    let status = Command::new("cc").args(["-w", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("cc runs").success(), "faults.c does not compile");
    program
}

/// The command line of one case, and what it says in the end.
fn case<'a>(program: &'a str, dir: &'a str, how: &'a str) -> ([&'a str; 5], String) {
    (["timeout", "120", program, dir, how], format!("faults answered: {how}\n"))
}

/// Without the wrapper: the program asks for what Linux does.
fn on_the_host_alone(bench: &Bench, program: &str, how: &str) {
    let dir = bench.host().join(how).display().to_string();
    let (words, said) = case(program, &dir, how);
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{how}, without the wrapper");
    assert_eq!(String::from_utf8_lossy(&output.stdout), said);
}

/// What the wrapper says of a private mount that children do not have is not the program's.
fn own_lines(errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(errors);
    text.lines().filter(|line| !line.contains("which holds the file system in private")).collect()
}

#[test]
fn names_that_are_not_there_are_efault_in_a_private_mount() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench).display().to_string();
    for how in HOW {
        on_the_host_alone(&bench, &program, how);
        // On the host's files under the wrapper, and on ours.
        let beside = bench.host().join(format!("beside-{how}")).display().to_string();
        for dir in [beside, bench.path(how)] {
            let (words, said) = case(&program, &dir, how);
            let output = bench.run(&words);
            assert_eq!(own_lines(&output.stderr), "", "{how} in {dir}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{how} in {dir}: {}", output.status);
        }
    }
    bench.fsck();
}

#[test]
fn names_that_are_not_there_are_efault_in_a_shared_mount() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench).display().to_string();
    for how in HOW {
        let dir = bench.path(how);
        let (words, said) = case(&program, &dir, how);
        assert_eq!(bench.ok_shared(&words), said);
    }
    bench.fsck();
}

#[test]
fn names_that_are_not_there_are_efault_by_instructions() {
    let Some(bench) = Bench::with_config("", "raw_syscalls = dispatch", &["cc"]) else { return };
    let program = compiled(&bench).display().to_string();
    on_the_host_alone(&bench, &program, "instructions");
    let dir = bench.path("instructions");
    let (words, said) = case(&program, &dir, "instructions");
    let output = bench.run(&words);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("the kernel does not dispatch system calls") {
        eprintln!("SKIPPED: this kernel has no system call user dispatch: {errors}");
        return;
    }
    assert_eq!(errors, "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{}", output.status);
    bench.fsck();
}
