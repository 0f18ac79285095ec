//! The working directory: its path is the one that it has when somebody wants it, and is not asked for before.

use crate::support::{Bench, nvmed};
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/cwd.py");
/// What the script does after it has entered a directory that was renamed then.
const WAYS: [&str; 5] = ["exec", "spawn", "system", "orphan", "removed"];

/// What was said, with the directory's own name taken out.
fn said(output: &Output, root: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).replace(root, "ROOT")
}

#[test]
fn a_renamed_or_removed_directory_is_told_as_on_the_host() {
    for way in WAYS {
        let Some(bench) = Bench::new("", &["python3"]) else { return };
        let host = bench.host().join("host");
        std::fs::create_dir(&host).expect("a directory of the host");
        let host = host.display().to_string();
        let plain = Command::new("python3").args([SCRIPT, way, &host]).output().expect("python3 starts");
        let expected = said(&plain, &host);
        assert!(expected.starts_with("ROOT/renamed/b\n"), "{way}: {expected}");
        let ours = bench.path("");
        let ours = ours.trim_end_matches('/');
        let words = ["python3", SCRIPT, way, ours];
        assert_eq!(said(&bench.run_shared(&words), ours), expected, "{way}, shared");
        if way == "system" {
            // The shell looks at its directory, which in a private mount is the process's that waits for it.
            continue;
        }
        bench.ok_shared(&["rm", "-r", &bench.path("renamed")]);
        assert_eq!(said(&bench.run(&words), ours), expected, "{way}, private");
        bench.fsck();
    }
}

#[test]
fn who_climbs_by_dots_finds_the_name_that_it_comes_from() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let host = host.display().to_string();
    let plain = Command::new("python3").args([SCRIPT, "climb", &host]).output().expect("python3 starts");
    let expected = said(&plain, &host);
    assert_eq!(expected, "ROOT/c\nTrue\nTrue 1\n[True]\n");
    let ours = bench.path("");
    let ours = ours.trim_end_matches('/');
    let words = ["python3", SCRIPT, "climb", ours];
    let looks = ["python3", "-c", "import os, sys; os.chdir(sys.argv[1]); print(os.listdir('..'))", ours];
    assert_eq!(said(&bench.run_shared(&words), ours), expected);
    assert_eq!(said(&bench.run(&words), ours), expected);
    // Where the host has such a directory itself, it is listed once.
    std::fs::create_dir(ours).expect("a directory of the host");
    assert_eq!(said(&bench.run_shared(&words), ours), expected);
    let listed = bench.ok(&looks);
    assert!(listed.matches("'on'").count() == 1, "{listed}");
    std::fs::remove_dir(ours).expect("nothing of ours is in it");
    bench.fsck();
}

/// A static program hands the environment on, and its own working directory is the kernel's.
#[test]
fn a_static_program_that_goes_elsewhere_takes_what_it_starts_along() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let (source, program) = (bench.host().join("goes.c"), bench.host().join("goes"));
    let text =
        "#include <unistd.h>\nint main(int n, char **w) { return chdir(w[1]) || execv(w[2], w + 2); }\n";
    std::fs::write(&source, text).expect("a source");
    let made = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!(
            "SKIPPED: cc links nothing statically here; install libc's static library to run this test"
        );
        return;
    }
    let elsewhere = bench.host().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory of the host");
    let removed = "mkdir e && cd e && rmdir ../e";
    for (into, shared) in [(":", true), (":", false), (removed, true)] {
        let script = format!(
            "cd {} && {into} && {} {} /usr/bin/touch made",
            bench.path(""),
            program.display(),
            elsewhere.display()
        );
        let words = ["sh", "-c", script.as_str()];
        let output = if shared { bench.run_shared(&words) } else { bench.run(&words) };
        assert!(output.status.success(), "{into}, shared {shared}: {output:?}");
        std::fs::remove_file(elsewhere.join("made")).expect("it is where the static program went");
    }
}

/// Steps down, each with its own chdir.
const DEPTH: usize = 300;

/// How often the server was asked for a path when a program had gone down so deep, and asked for its directory once.
#[test]
fn only_who_wants_the_path_asks_for_it() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = format!(
        "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range({DEPTH}):\n os.mkdir('d'); os.chdir('d')\n\
         print(len(os.getcwd()), flush=True); sys.stdin.read()"
    );
    let mut command = Command::new(nvmed());
    command.args(["run", "--shared", "--config"]).arg(bench.config()).arg("--");
    command.args(["python3", "-c", &script, &bench.path("")]).current_dir(bench.host());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nvmed starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), (bench.path("").len() - 1 + 2 * DEPTH).to_string());
    let told = Command::new(nvmed()).args(["stats", "--json", &child.id().to_string()]).output();
    let told = String::from_utf8(told.expect("nvmed starts").stdout).expect("text");
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let count = |call: &str| {
        let row = told["calls"].as_array().and_then(|calls| calls.iter().find(|row| row["call"] == call));
        row.and_then(|row| row["count"].as_u64()).unwrap_or(0)
    };
    assert!(count("mkdir") >= DEPTH as u64, "{told}");
    assert_eq!(count("path_of"), 1, "{told}");
    bench.fsck();
}
