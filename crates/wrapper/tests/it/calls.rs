//! Every shape of every call, from a C and a Python program, against what the manual pages say.

use crate::support::Bench;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Compiles a C program of this directory; `None`, loudly, without a compiler.
fn compiled(bench: &Bench, name: &str, options: &[&str]) -> PathBuf {
    let program = bench.host().join(name);
    let status = Command::new("cc")
        .args(["-w", "-o"])
        .arg(&program)
        .arg(source(&format!("c/{name}.c")))
        .args(options)
        .status()
        .expect("cc runs");
    assert!(status.success(), "{name}.c does not compile");
    program
}

fn all_calls_are_answered(options: &[&str]) {
    // In pages of the cache, and where they lie.
    for bench in [Bench::new("", &["cc"]), Bench::in_place("flush=process", &["cc"])].into_iter().flatten() {
        all_are_answered_on(&bench, options);
    }
}

fn all_are_answered_on(bench: &Bench, options: &[&str]) {
    let program = compiled(bench, "calls", options);
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let words = [program.to_str().unwrap(), &bench.path(""), host.to_str().unwrap()];
    assert_eq!(bench.ok(&[words[0], words[1].trim_end_matches('/'), words[2]]), "all calls answered\n");
    assert_eq!(bench.ok(&["cat", &bench.path("unflushed")]), "late", "exit flushes before the unmount");
    bench.fsck();
}

#[test]
fn a_c_program_gets_what_the_manual_says() {
    all_calls_are_answered(&[]);
}

/// Calls that fail do so as the kernel says: on the host without and with the wrapper, and on ours, private and shared.
#[test]
fn failures_are_those_of_the_host() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "failures", &[]).display().to_string();
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let host = host.display().to_string();
    let plain = Command::new(&program).arg(&host).stdin(Stdio::null()).output().expect("it starts");
    assert!(plain.status.success(), "{plain:?}");
    let expected = String::from_utf8(plain.stdout).expect("text");
    let ours = bench.path("");
    let ours = ours.trim_end_matches('/');
    // Standard input, which the program polls, is /dev/null each time.
    let script = format!("exec {program} $1 < /dev/null");
    let words = |dir| ["sh", "-c", script.as_str(), "sh", dir];
    let said = [
        bench.ok(&words(&host)),
        bench.ok(&words(ours)),
        bench.ok_shared(&words(&host)),
        bench.ok_shared(&words(ours)),
    ];
    for (said, where_) in said.iter().zip(["the host", "ours, private", "the host, shared", "ours, shared"]) {
        let wrong: Vec<_> = said.lines().zip(expected.lines()).filter(|(one, other)| one != other).collect();
        assert!(wrong.is_empty() && said.lines().count() == expected.lines().count(), "{where_}: {wrong:#?}");
    }
    bench.fsck();
}

/// Streams to read, whatever the size of their buffers, as on the host; each file is read with as few calls as can be.
#[test]
fn streams_are_those_of_the_host() {
    let Some(bench) = Bench::new("", &["cc", "sha256sum"]) else { return };
    let program = compiled(&bench, "streams", &[]).display().to_string();
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let host = host.display().to_string();
    let ours = bench.path("");
    let ours = ours.trim_end_matches('/');
    // A private mount has no children.
    for (child, shared) in [(None, false), (Some("child"), true)] {
        let words = |dir| [&[program.as_str(), dir][..], child.as_slice()].concat();
        let plain = Command::new(&program).args(&words(host.as_str())[1..]).output().expect("it starts");
        assert!(plain.status.success(), "{plain:?}");
        let expected = String::from_utf8(plain.stdout).expect("text");
        let said = if shared { bench.ok_shared(&words(ours)) } else { bench.ok(&words(ours)) };
        let wrong = said.lines().zip(expected.lines()).find(|(one, other)| one != other);
        assert!(wrong.is_none() && said.len() == expected.len(), "shared {shared}: {wrong:?}");
    }
    let script = format!("head -c 60000 /dev/zero > {ours}/some && sha256sum {ours}/some");
    bench.ok_shared(&["sh", "-c", &script]);
    let counted = Command::new(crate::support::nvmed())
        .args(["run", "--summary", "--config"])
        .arg(bench.config())
        .args(["--", "sha256sum", &format!("{ours}/some")])
        .output()
        .expect("nvmed starts");
    let table = String::from_utf8(counted.stderr).expect("text");
    let reads = table.lines().find(|line| line.ends_with(" read")).expect("it reads");
    assert_eq!(reads.split_whitespace().nth(3), Some("2"), "all of it, and its end: {table}");
    bench.fsck();
}

/// Between pipes and files of ours, private and shared, as between pipes and files of the host's.
#[test]
fn splices_are_those_of_the_host() {
    let Some(bench) = Bench::new("", &["cc", "timeout"]) else { return };
    let program = compiled(&bench, "splices", &["-pthread"]).display().to_string();
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let plain = Command::new(&program).arg(&host).output().expect("it starts");
    let expected = String::from_utf8(plain.stdout).expect("text");
    assert!(plain.status.success(), "{expected} {}", String::from_utf8_lossy(&plain.stderr));
    let ours = bench.path("");
    let words = ["timeout", "60", &program, ours.trim_end_matches('/')];
    for (said, mount) in [(bench.ok(&words), "private"), (bench.ok_shared(&words), "shared")] {
        let wrong: Vec<_> = said.lines().zip(expected.lines()).filter(|(one, other)| one != other).collect();
        assert!(wrong.is_empty() && said.lines().count() == expected.lines().count(), "{mount}: {wrong:#?}");
    }
    bench.fsck();
}

/// A handler that jumps out of a call that waits finds nothing of it: no descriptor, and no file that is held open.
/// What stands in for a file of ours is the process's that needs it.
#[test]
fn calls_leave_nothing_behind() {
    let Some(bench) = Bench::new("", &["cc", "timeout"]) else { return };
    let program = compiled(&bench, "leavings", &["-pthread"]).display().to_string();
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let plain = Command::new("timeout").args(["60", &program]).arg(&host).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&plain.stderr), "", "without the wrapper");
    let ours = bench.path("");
    let words = ["timeout", "60", &program, ours.trim_end_matches('/')];
    for said in [bench.ok(&words), bench.ok_shared(&words)] {
        assert_eq!(said, "nothing is left behind\n");
    }
    bench.fsck();
}

/// A pipe takes nothing back: what a full device has no room for must still be in it.
#[test]
fn a_splice_into_a_full_device_leaves_the_rest_in_the_pipe() {
    for shared in [false, true] {
        let Some(bench) = Bench::sized(32 << 20, "", "", &["cc", "timeout"]) else { return };
        let program = compiled(&bench, "splices", &["-pthread"]).display().to_string();
        let ours = bench.path("");
        let words = ["timeout", "60", &program, ours.trim_end_matches('/'), "full"];
        let said = if shared { bench.ok_shared(&words) } else { bench.ok(&words) };
        assert_eq!(said, "ENOSPC\nno byte is lost\n", "shared: {shared}");
        bench.fsck();
    }
}

/// `_FORTIFY_SOURCE` turns read into `__read_chk`, open into `__open_2`, …
#[test]
fn a_fortified_c_program_does_too() {
    all_calls_are_answered(&["-O2", "-D_FORTIFY_SOURCE=2"]);
}

/// libc's walk of the host, in many ways, is what ours is held against; `fts64_*` by the second build.
#[test]
fn hierarchies_are_walked_as_on_the_host() {
    for options in [&[][..], &["-D_FILE_OFFSET_BITS=64"]] {
        let Some(bench) = Bench::new("", &["cc"]) else { return };
        let program = compiled(&bench, "hierarchies", options);
        let host = bench.host().join("host");
        std::fs::create_dir(&host).expect("a directory of the host");
        let ours = bench.path("");
        let words =
            ["timeout", "60", program.to_str().unwrap(), ours.trim_end_matches('/'), host.to_str().unwrap()];
        assert_eq!(bench.ok(&words), "all hierarchies walked\n");
        bench.fsck();
    }
}

/// Our directory is in the listings of the one above it, and on the way of walks from there, as on the host: whether
/// the host has a directory there or not.
#[test]
fn what_lies_above_us_lists_us() {
    for (how, hidden) in [("off", false), ("dispatch", false), ("off", true)] {
        let Some(bench) = Bench::with_config("", &format!("raw_syscalls = {how}"), &["cc", "timeout"]) else {
            return;
        };
        let program = compiled(&bench, "above", &[]).display().to_string();
        let above = bench.host().join("high/low");
        std::fs::create_dir_all(&above).expect("directories of the host");
        let dir = above.display().to_string();
        let mut words = vec!["timeout", "60", &program, &dir, "on", "inside"];
        let plain = Command::new(words[0]).args(&words[1..]).output().expect("it starts");
        assert_eq!(
            String::from_utf8_lossy(&plain.stdout),
            "listed everywhere\n",
            "without the wrapper: {plain:?}"
        );
        if !hidden {
            std::fs::remove_dir_all(above.join("on")).expect("what the program has made goes");
        }
        let config = std::fs::read_to_string(bench.config()).expect("the configuration");
        let moved = config.replace(bench.path("").trim_end_matches('/'), &format!("{dir}/on"));
        std::fs::write(bench.config(), moved).expect("the configuration is written");
        if how == "dispatch" {
            words.push("by instructions, too");
        }
        assert_eq!(bench.ok(&words), "listed everywhere\n", "{how}, hidden: {hidden}");
        assert_eq!(bench.ok_shared(&words), "listed everywhere\n", "{how}, hidden: {hidden}, shared");
        bench.fsck();
    }
}

/// Mounts, message catalogues, logins and backtraces, on the host and on ours.
#[test]
fn files_that_libc_opens_for_itself_are_found() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "databases", &["-rdynamic"]).display().to_string();
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let (ours, host) = (bench.path(""), host.display().to_string());
    let ours = ours.trim_end_matches('/');
    assert_eq!(bench.ok(&[&program, ours, &host]), "all databases read\n");
    // Translations are not; where there are any, one line says so.
    assert_eq!(bench.ok(&[&program, ours, &host, "C"]), "");
    let output = bench.run(&[&program, ours, &host, "C.UTF-8"]);
    if output.status.code() == Some(77) {
        eprintln!("SKIPPED in part: this machine has no locale C.UTF-8, so nothing is translated");
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.lines().count() == 1, "{errors}");
        assert!(errors.starts_with(&format!("nvmed: bindtextdomain {ours}: ")), "{errors}");
    }
    bench.fsck();
}

/// The same programs where the host has the files, which are only seen.
#[test]
fn walks_and_databases_of_the_host_are_left_as_they_are() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let dir = bench.host();
    let config = dir.join("host.conf");
    let text = format!("wrap_dir = {}\nfilesystem = host\n", dir.join("seen").display());
    std::fs::write(&config, text).expect("the configuration is written");
    for (name, wanted) in [("hierarchies", "all hierarchies walked\n"), ("databases", "all databases read\n")]
    {
        let program = compiled(&bench, name, &["-rdynamic"]);
        let dirs = ["seen", "host"].map(|side| dir.join(side));
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).expect("a directory of the host"));
        let mut command = Command::new("timeout");
        command.arg("60").arg(&program).args(&dirs).arg("host");
        let output = bench.wrapped(&mut command).env("WRAPPER_CONFIG", &config).output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
        dirs.iter().for_each(|dir| std::fs::remove_dir_all(dir).expect("its files go"));
    }
}

/// What README.md says of system calls: the program dies of one.
#[test]
fn calls_on_what_is_cached_make_no_system_call() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "quiet", &[]).display().to_string();
    let root = bench.path("");
    let told = |shared: bool, call: &str| {
        let words = [program.as_str(), call, root.as_str()];
        if shared { bench.run_shared(&words) } else { bench.run(&words) }
    };
    for call in ["pread", "pwrite", "read", "write", "preadv", "fstat", "stat"] {
        let output = told(false, call);
        if output.status.code() == Some(77) {
            eprintln!("SKIPPED: this machine has no seccomp filters, so nobody counts system calls");
            return;
        }
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "private, {call}: {output:?}");
    }
    let output = told(true, "pread");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "shared, pread: {output:?}");
}

/// libaio, POSIX AIO and copies inside the kernel: on descriptors of ours, of the host, and both at once.
#[test]
fn requests_are_carried_out_and_told() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "requests", &["-pthread"]);
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let ours = bench.path("");
    let words =
        ["timeout", "60", program.to_str().unwrap(), ours.trim_end_matches('/'), host.to_str().unwrap()];
    assert_eq!(bench.ok(&words), "all requests answered\n");
    bench.fsck();
}

/// What one thread unmaps is not forgotten of another's mapping, which the kernel put there meanwhile.
#[test]
fn threads_that_map_and_unmap_lose_nothing() {
    for bench in [Bench::new("", &["cc"]), Bench::in_place("flush=process", &["cc"])].into_iter().flatten() {
        let program = compiled(&bench, "unmapped", &["-pthread"]).display().to_string();
        let ours = bench.path("");
        let ours = ours.trim_end_matches('/');
        assert_eq!(bench.ok(&[&program, ours]), "");
        assert_eq!(bench.ok(&[&program, ours, "check"]), "");
        bench.fsck();
    }
}

/// System calls by instructions of the program's own, under a setting of `raw_syscalls`.
fn raw_calls(how: &str) -> Option<std::process::Output> {
    let bench = Bench::with_config("", &format!("raw_syscalls = {how}"), &["cc"])?;
    let program = compiled(&bench, "raw", &["-pthread"]);
    let host = bench.host().display().to_string();
    let ours = bench.path("");
    let words = ["timeout", "60", program.to_str().unwrap(), ours.trim_end_matches('/'), &host];
    let output = bench.run(&words);
    bench.fsck();
    Some(output)
}

#[test]
fn calls_below_libc_are_ours_where_they_are_dispatched() {
    for how in ["dispatch", "detect"] {
        let Some(output) = raw_calls(how) else { return };
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("the kernel does not dispatch system calls") {
            eprintln!("SKIPPED: this kernel has no system call user dispatch: {errors}");
            return;
        }
        assert_eq!(String::from_utf8_lossy(&output.stdout), "raw calls answered\n", "{how}: {errors}");
        // The one line is the fence's, from the child that the program forks.
        assert_eq!(errors.lines().count(), 1, "{how}: {errors}");
    }
    let Some(output) = raw_calls("off") else { return };
    assert_ne!(output.status.code(), Some(0), "without dispatch the host is asked");
}

/// A program of Go's; `None`, loudly, where go builds none.
fn built_by_go(bench: &Bench, name: &str) -> Option<PathBuf> {
    let program = bench.host().join(name);
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(source(&format!("go/{name}.go")))
        .env("CGO_ENABLED", "1")
        .env("GO111MODULE", "off")
        .output()
        .expect("go runs");
    if !built.status.success() {
        eprintln!("SKIPPED: go builds no program here: {}", String::from_utf8_lossy(&built.stderr));
        return None;
    }
    Some(program)
}

#[test]
fn a_program_of_gos_runs_where_its_calls_are_detected() {
    let Some(bench) = Bench::with_config("", "raw_syscalls = detect", &["go", "cc"]) else { return };
    let Some(program) = built_by_go(&bench, "files") else { return };
    let words = ["timeout", "60", program.to_str().unwrap(), &bench.path("")];
    assert_eq!(bench.ok(&words), "entries 409\n");
    bench.fsck();
}

#[test]
fn processes_of_gos_have_directories_and_files_of_ours() {
    let Some(bench) = Bench::with_config("", "raw_syscalls = detect", &["go", "cc"]) else { return };
    let Some(program) = built_by_go(&bench, "processes") else { return };
    let (program, host) = (program.to_str().unwrap(), bench.host().join("host"));
    let plain = Command::new(program).arg(&host).output().expect("the program starts");
    let expected = String::from_utf8(plain.stdout).expect("text");
    assert!(plain.status.success() && expected.contains("says text"), "{expected}");
    let ours = bench.path("");
    let words = ["timeout", "60", program, ours.trim_end_matches('/')];
    assert_eq!(bench.ok_shared(&words), expected);
    bench.fsck();
}

#[test]
fn python_gets_what_its_library_promises() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let script = source("scripts/files.py");
    let output = bench.run(&[
        "python3",
        script.to_str().unwrap(),
        bench.path("").trim_end_matches('/'),
        host.to_str().unwrap(),
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    // The one line is the fence's, from the child that the script forks.
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("which holds the file system in private"), "{errors}");
    bench.fsck();
}

/// What slips past every hook, by system calls of its own, must fail loudly rather than read nothing
/// and lose writes.
#[test]
fn what_slips_past_fails_loudly() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "slips", &[]);
    let file = bench.path("f");
    assert_eq!(bench.ok(&[program.to_str().unwrap(), &file]), "everything that slipped failed\n");
}

/// Setting up a ring of io_uring fails below a file system of ours, in every way that can be hooked, so that programs
/// do without; it works where the user allows it, and where all files are the host's.
#[test]
fn rings_are_refused_unless_they_are_allowed() {
    let refused = "syscall 38\ninstruction 0\nio_uring_setup 38\nio_uring_queue_init 38\n\
                   io_uring_queue_init_params 38\nio_uring_queue_init_mem 38\n";
    for (line, is_refused) in [("", true), ("raw_syscalls = dispatch", true), ("io_uring = allow", false)] {
        let Some(bench) = Bench::with_config("", line, &["cc"]) else { return };
        let program = compiled(&bench, "rings", &[]).display().to_string();
        let plain = Command::new(&program).arg(bench.host().join("plain")).output().expect("it starts");
        let plain = String::from_utf8(plain.stdout).expect("text");
        if !plain.starts_with("syscall 0\n") {
            eprintln!("SKIPPED: the kernel has no io_uring for us: {plain}");
            return;
        }
        let output = bench.run(&[&program, &bench.path("f")]);
        let (said, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(said).expect("text");
        if is_refused {
            let instruction = if line.is_empty() { "instruction 0" } else { "instruction 38" };
            assert_eq!((said, &*errors), (refused.replace("instruction 0", instruction), ""), "{line}");
            continue;
        }
        let differ = |(one, other): &(&str, &str)| one != other && !other.ends_with("-1");
        let wrong: Vec<_> = said.lines().zip(plain.lines()).filter(differ).collect();
        assert!(wrong.is_empty() && said.lines().count() == 6, "{said}");
        assert!(errors.lines().count() == 1 && errors.contains("requests fail with EBADF"), "{errors}");
        let host = "filesystem = host\nwrap_dir = /nowhere\n";
        std::fs::write(bench.config(), host).expect("the configuration is written");
        let plain = bench.host().join("plain").display().to_string();
        assert!(bench.ok(&[&program, &plain]).starts_with("syscall 0\n"));
    }
}

/// A signal that comes in the middle of a call finds no lock that its handler would wait for.
#[test]
fn handlers_may_make_file_calls() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "signals", &[]);
    let output =
        bench.run(&["timeout", "60", program.to_str().unwrap(), bench.path("").trim_end_matches('/')]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(bench.ok(&["cat", &bench.path("b")]), "written");
    bench.fsck();
}

/// Waits that signals interrupt or restart, handlers that jump, threads that are cancelled.
#[test]
fn calls_are_interrupted_left_and_cancelled() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "interrupts", &["-pthread"]);
    let words =
        ["timeout", "60", program.to_str().unwrap(), bench.path("").trim_end_matches('/')].map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(bench.ok(&words), "all interrupts answered\n");
    bench.fsck();
}

/// The process ends while four threads are in the middle of everything; nothing hangs, nothing is torn.
#[test]
fn the_end_comes_while_threads_write() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench, "writers", &["-pthread"]);
    for milliseconds in ["20", "45", "80", "130"] {
        let words = ["timeout", "60", program.to_str().unwrap(), &bench.path(""), milliseconds];
        bench.ok(&words);
        bench.fsck();
    }
}
