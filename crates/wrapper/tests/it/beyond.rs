//! Programs that the wrapper cannot be loaded into, started by another program of the run.

use crate::support::{Bench, nvmed};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A static program, and one of the host's directories where the mount is, with a file in it.
fn prepared(bench: &Bench) -> Option<PathBuf> {
    let program = bench.host().join("beyond");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/beyond.c");
    let made = Command::new("cc").args(["-D_GNU_SOURCE", "-static", "-o"]).arg(&program).arg(source).status();
    if !made.expect("cc starts").success() {
        eprintln!(
            "SKIPPED: cc links nothing statically here; install libc's static library to run this test"
        );
        return None;
    }
    std::fs::create_dir(bench.path("")).expect("a directory");
    std::fs::write(bench.path("hosts"), "the host's").expect("a file");
    Some(program)
}

fn run(bench: &Bench, options: &[&str], script: &str) -> Output {
    let mut command = Command::new(nvmed());
    command.arg("run").args(options).arg("--config").arg(bench.config());
    command.args(["--", "dash", "-c", script, "dash", &bench.path("new")]);
    command.current_dir(bench.host()).output().expect("nvmed starts")
}

/// A program's copy. Another process makes it: what this one had open to write, a child of another test could have too,
/// and the kernel executes no file that is open to be written.
fn install(program: &Path, copy: &Path) {
    let status = Command::new("install").args(["-m", "755"]).args([program, copy]).status();
    assert!(status.expect("install starts").success(), "{} is not copied", program.display());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What the host has in the directory.
fn on_host(bench: &Bench) -> Vec<String> {
    let entries = std::fs::read_dir(bench.path("")).expect("the host's directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

const WAYS: [&str; 5] = [
    "./beyond $1",
    "env -i ./beyond $1",
    "(./beyond $1; true) 2> /dev/null",
    "./script $1",
    "python3 -c 'import subprocess, sys; subprocess.run([\"./beyond\", sys.argv[1]], close_fds=False)' $1",
];

#[test]
fn a_static_program_is_named_once_and_kept_from_the_hosts_directory() {
    for private in [&["--private"][..], &[]] {
        let Some(bench) = Bench::new("", &["cc", "dash", "python3"]) else { return };
        let Some(program) = prepared(&bench) else { return };
        let script = bench.host().join("script");
        let words = bench.host().join("script.text");
        std::fs::write(&words, format!("#!{}\n", program.display())).expect("a text");
        install(&words, &script);
        let options = [private, &["--summary"]].concat();
        let all = WAYS.join("; ") + "; [ -e $1 ] || echo absent";
        let output = run(&bench, &options, &all);
        let errors = text(&output.stderr);
        assert_eq!(errors.matches("is statically linked").count(), 1, "{errors}");
        assert!(
            errors.contains("nvmed: run: ") && errors.contains("beyond is statically linked"),
            "{errors}"
        );
        assert!(errors.contains(&format!("{} starts of programs", WAYS.len())), "{errors}");
        // Whoever may mount hides the host's directory; elsewhere the line says that it is reached.
        if errors.contains("finds an empty directory") {
            // The fourth way names the script itself, which is there.
            assert!(
                text(&output.stdout).lines().all(|line| ["EROFS", "EEXIST", "absent"].contains(&line)),
                "{output:?}"
            );
            assert_eq!(on_host(&bench), ["hosts"]);
            assert_eq!(std::fs::read_to_string(bench.path("hosts")).expect("a file"), "the host's");
        } else {
            assert!(errors.contains("finds the host's directory"), "{errors}");
            eprintln!("SKIPPED: a part: this user may not mount, so nothing hides the host's directory");
        }
        bench.fsck();
    }
}

/// Whoever tries to execute one and goes on (its arguments are too long) sees the host as before.
#[test]
fn a_program_whose_exec_fails_is_where_it_was() {
    let Some(bench) = Bench::new("", &["cc", "dash", "python3"]) else { return };
    if prepared(&bench).is_none() {
        return;
    }
    let script = bench.host().join("tries.py");
    let text_of_it = "
import os, sys
def here(): return os.readlink('/proc/self/ns/mnt'), os.getcwd(), os.stat('.').st_ino, os.stat('/').st_ino
os.mkdir('inner'); os.chdir('inner')
before = here()
try: os.execv('../beyond', ['../beyond', 'x' * 200_000])
except OSError as error: print(error.strerror)
print(here() == before)
open(sys.argv[1], 'w').write('ours')
print(open(sys.argv[1]).read())
";
    std::fs::write(&script, text_of_it).expect("a script");
    let output = run(&bench, &[], "exec python3 tries.py $1");
    assert_eq!(text(&output.stdout), "Argument list too long\nTrue\nours\n", "{output:?}");
    if !text(&output.stderr).contains("finds an empty directory") {
        eprintln!("SKIPPED: this user may not mount, so nothing is hidden");
    }
    assert_eq!(on_host(&bench), ["hosts"]);
}

/// Where the host has nothing, nothing can be hidden: what such a program makes there is named when the run ends.
#[test]
fn a_directory_that_a_static_program_makes_on_the_host_is_named() {
    for private in [&["--private"][..], &[]] {
        let Some(bench) = Bench::new("", &["cc", "dash"]) else { return };
        if prepared(&bench).is_none() {
            return;
        }
        std::fs::remove_dir_all(bench.path("")).expect("the host's directory goes");
        let script = "./beyond $1; ls ${1%/*}; ./beyond $1 ${1%/*}; ls ${1%/*}";
        let output = run(&bench, private, script);
        let errors = text(&output.stderr);
        assert_eq!(text(&output.stdout), "ENOENT\nmade\n", "{output:?}");
        let line = "was made on the host during this run, by a program that the wrapper is not in";
        assert_eq!(errors.matches(line).count(), 1, "{errors}");
        assert_eq!(on_host(&bench), ["new"]);
        // It was there before the next run, which says nothing of it.
        let errors = text(&run(&bench, private, "ls ${1%/*}").stderr);
        assert!(errors.is_empty(), "{errors}");
    }
}

#[test]
fn a_run_can_refuse_what_it_cannot_intercept() {
    let Some(bench) = Bench::new("", &["cc", "dash", "python3"]) else { return };
    if prepared(&bench).is_none() {
        return;
    }
    for way in ["./beyond $1", WAYS[4]] {
        let output = run(&bench, &["--out-of-reach", "refuse"], way);
        let errors = text(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(
            errors.contains("is statically linked") && errors.contains("this run refuses it"),
            "{errors}"
        );
        assert!(errors.contains("Permission denied"), "{errors}");
    }
    assert_eq!(on_host(&bench), ["hosts"]);
    // What can be intercepted is not.
    let output = run(&bench, &["--out-of-reach", "refuse"], "echo ours > $1; cat $1");
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("ours\n", ""));
}

/// The loader preloads nothing into a program with ids of its own: also when it is the first.
#[test]
fn a_program_with_ids_of_its_own_is_named() {
    let Some(bench) = Bench::new("", &["dash", "env"]) else { return };
    let other = bench.host().join("other");
    install(Path::new("/bin/true"), &other);
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(&other, Some(1), Some(1)).expect("another owner");
    } else {
        eprintln!("SKIPPED: only root can make a program with ids of another");
        return;
    }
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o6755)).expect("its mode");
    let inner = text(&run(&bench, &[], "./other").stderr);
    let mut command = Command::new(nvmed());
    command.args(["run", "--config"]).arg(bench.config()).arg("--").arg(&other);
    let first = command.current_dir(bench.host()).output().expect("nvmed starts");
    for errors in [inner, text(&first.stderr)] {
        assert!(errors.contains("runs with ids of its own") && errors.contains("finds nothing"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    assert!(first.status.success() && !Path::new(&bench.path("")).exists());
}
