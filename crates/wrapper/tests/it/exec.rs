//! Programs, scripts and libraries that lie in our file system, and what a program that is executed gets of ours.

use crate::support::Bench;
use std::path::{Path, PathBuf};
use std::process::Command;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// Compiles a C file into a directory of the host's.
fn compiled(bench: &Bench, from: &Path, to: &str, options: &[&str]) -> String {
    let program = bench.host().join(to);
    let status = Command::new("cc").arg("-w").arg("-o").arg(&program).arg(from).args(options).status();
    assert!(status.expect("cc runs").success(), "{} does not compile", from.display());
    program.display().to_string()
}

/// The test's program, on the host and with us.
fn programs(bench: &Bench) -> (String, String) {
    let host = compiled(bench, &source("spawned.c"), "spawned", &["-ldl"]);
    let ours = bench.path("spawned");
    bench.ok(&["cp", &host, &ours]);
    (host, ours)
}

/// Runs a program of ours: something of the host's has to execute it.
fn run(bench: &Bench, words: &[&str]) -> String {
    bench.ok(&[&["env"], words].concat())
}

#[test]
fn a_program_runs_from_here_and_knows_its_name() {
    let Some(bench) = Bench::new("", &["cc", "cp", "env"]) else { return };
    let (_, ours) = programs(&bench);
    assert_eq!(run(&bench, &[&ours, "show", "a b", ""]), format!("spawned {ours} [a b] []\n"));
    // By a name below PATH.
    let path = format!("PATH={}:/usr/bin:/bin", bench.path("").trim_end_matches('/'));
    assert_eq!(run(&bench, &[&path, "spawned", "show"]), format!("spawned {ours}\n"));
    bench.ok(&["chmod", "-x", &ours]);
    let output = bench.run(&["env", &ours, "show"]);
    assert_eq!(output.status.code(), Some(126), "no permission: {output:?}");
    bench.fsck();
}

#[test]
fn a_failed_exec_leaves_everything_as_it_was() {
    let Some(bench) = Bench::new("", &["cc", "cp", "cat"]) else { return };
    let (host, _) = programs(&bench);
    bench.ok(&[&host, "failing", bench.path("").trim_end_matches('/')]);
    assert_eq!(bench.ok(&["cat", &bench.path("kept")]), "before after");
    bench.fsck();
}

/// A child that clone(2) makes as vfork does leaves the parent's descriptors, and its mount, alone.
#[test]
fn a_child_that_would_share_our_memory_does_not() {
    let Some(bench) = Bench::new("", &["cc", "cp", "cat"]) else { return };
    let (host, _) = programs(&bench);
    bench.ok(&[&host, "cloned", bench.path("").trim_end_matches('/')]);
    assert_eq!(bench.ok(&["cat", &bench.path("cloned")]), "ab");
    bench.fsck();
}

/// A program that makes an environment of its own still runs under the wrapper, told once.
#[test]
fn a_replaced_environment_keeps_ours() {
    let Some(bench) = Bench::new("", &["cc", "cp", "env", "cat", "perl", "python3"]) else { return };
    let (host, ours) = programs(&bench);
    bench.ok(&["cp", "/etc/passwd", &bench.path("f")]);
    let wanted = std::fs::read_to_string("/etc/passwd").expect("a file");
    assert_eq!(bench.ok(&["env", "-i", "cat", &bench.path("f")]), wanted);
    assert_eq!(
        bench.ok(&["env", "-u", "LD_PRELOAD", "-u", "WRAPPER_CONFIG", "cat", &bench.path("f")]),
        wanted
    );
    assert_eq!(bench.ok(&["env", "-i", "env", "-i", &host, "once"]), "1 1\n");
    assert_eq!(bench.ok(&["env", &host, "once"]), "1 1\n");
    // The user's own preload stays, behind ours.
    let said = bench.ok(&["env", "LD_PRELOAD=libdl.so.2", "env"]);
    let preload = said.lines().find(|line| line.starts_with("LD_PRELOAD=")).expect("preloaded");
    assert!(preload.ends_with("libnvmed_wrapper.so:libdl.so.2"), "{preload}");
    assert_eq!(run(&bench, &["-i", &ours, "show"]), format!("spawned {ours}\n"));
    let script = "import os, sys; os.execve('/bin/cat', ['cat', sys.argv[1]], {'A': 'b'})";
    assert_eq!(bench.ok(&["python3", "-c", script, &bench.path("f")]), wanted);
    bench.fsck();
}

/// A virtual environment of Python's has such links; a build beside its source such paths.
#[test]
fn links_and_directories_of_ours_lead_to_programs_of_the_hosts() {
    let Some(bench) = Bench::new("", &["cc", "cp", "ln", "bash", "python3"]) else { return };
    let (host, _) = programs(&bench);
    let (library, _) = libraries(&bench);
    // It tells what /proc/self/exe does.
    let shown = format!("spawned {host}\n");
    let linked = bench.path("linked");
    bench.ok(&["ln", "-s", &host, &linked]);
    assert_eq!(run(&bench, &[&linked, "show"]), shown);
    bench.ok(&["ln", "-s", "/no/such/program", &bench.path("dangling")]);
    assert_eq!(bench.run(&["env", &bench.path("dangling")]).status.code(), Some(127));
    // As the host names it from a directory of ours.
    let above = format!("../{}", Path::new(&host).strip_prefix(bench.host()).expect("below").display());
    let inside = |command: &str| bench.ok(&["bash", "-c", "cd $0 && exec $1", &bench.path(""), command]);
    assert_eq!(inside(&format!("{above} show")), shown);
    std::fs::write(bench.host().join("script"), "#!/bin/sh\necho \"script $1\"\n").expect("a file");
    inside("chmod +x ../script");
    inside("ln -s ../script s");
    assert_eq!(inside("../script word"), "script word\n");
    assert_eq!(inside("./s word"), "script word\n");
    let script = "import os, sys; os.chdir(sys.argv[1])
for name in sys.argv[2:]: os.waitpid(os.posix_spawn(name, [name, 'show'], os.environ), 0)";
    let spawned = bench.ok(&["python3", "-c", script, &bench.path(""), "./linked", &above]);
    assert_eq!(spawned, shown.repeat(2));
    // The same library by both names: the host's, not a copy.
    let ours = bench.path("library.so");
    bench.ok(&["cp", &bench.path("lib/deps/libinner.so"), bench.host().to_str().expect("text")]);
    let path = format!("LD_LIBRARY_PATH={}", bench.host().display());
    bench.ok(&["ln", "-s", &library, &ours]);
    assert_eq!(run(&bench, &[&path, &host, "loaded", &ours]), format!("42 {library}\n"));
    bench.fsck();
}

fn script(bench: &Bench, name: &str, text: &str) -> String {
    let host = bench.host().join("script");
    std::fs::write(&host, text).expect("a file");
    let path = bench.path(name);
    bench.ok(&["cp", host.to_str().expect("text"), &path]);
    bench.ok(&["chmod", "755", &path]);
    path
}

#[test]
fn scripts_run_as_the_kernel_runs_them() {
    let Some(bench) = Bench::new("", &["cc", "cp", "env", "dash", "python3"]) else { return };
    let (_, ours) = programs(&bench);
    let plain = script(&bench, "plain", "#!/bin/dash\nprintf '<%s>' \"$0\" \"$@\"\n");
    assert_eq!(run(&bench, &[&plain, "a b", "c"]), format!("<{plain}><a b><c>"));
    // One argument, spaces and all; an interpreter of ours; an interpreter that is a script.
    let shown = script(&bench, "shown", &format!("#! {ours}  show  x y \n"));
    let with = |words: &str| format!("spawned {ours} {words}\n");
    let one = script(&bench, "one", &format!("#!{ours} show\n"));
    assert_eq!(run(&bench, &[&one, "last"]), with(&format!("[{one}] [last]")));
    let output = bench.run(&["env", &shown]);
    assert_eq!(output.status.code(), Some(2), "`show  x y` is one word, which the program does not know");
    let two = script(&bench, "two", &format!("#!{one} word\n"));
    assert_eq!(run(&bench, &[&two, "last"]), with(&format!("[{one}] [word] [{two}] [last]")));
    // Without a first line it is the caller's business: execvp gives it to the shell.
    let bare = script(&bench, "bare", "echo \"bare $1\"\n");
    assert_eq!(run(&bench, &[&bare, "word"]), "bare word\n");
    let missing = script(&bench, "missing", "#!/no/such/interpreter\n");
    assert_eq!(bench.run(&["env", &missing]).status.code(), Some(127));
    bench.fsck();
}

/// As deep as the kernel on this machine goes, and no deeper.
#[test]
fn interpreters_nest_as_deep_as_the_kernel_lets_them() {
    let Some(bench) = Bench::new("", &["cp", "env", "dash"]) else { return };
    let depth_on_host = (1..9).take_while(|&depth| {
        let name = |depth: u32| bench.host().join(format!("n{depth}"));
        let first = if depth == 1 { "/bin/true".to_owned() } else { name(depth - 1).display().to_string() };
        // By another process: a child of another test's that inherits the file open for writing makes it busy.
        let write = "printf '#!%s\\n' \"$2\" >\"$1\" && chmod 755 \"$1\"";
        let written = Command::new("sh").args(["-c", write, "sh"]).arg(name(depth)).arg(first).status();
        assert!(written.expect("a shell").success());
        Command::new(name(depth)).status().is_ok_and(|status| status.success())
    });
    let depth_on_host = depth_on_host.count();
    let depth_here = (1..9).take_while(|&depth| {
        let first = if depth == 1 { "/bin/true".to_owned() } else { bench.path(&format!("n{}", depth - 1)) };
        let path = script(&bench, &format!("n{depth}"), &format!("#!{first}\n"));
        bench.run(&["env", &path]).status.success()
    });
    assert_eq!(depth_here.count(), depth_on_host);
}

/// Two libraries with us, of which one needs the other by its run path.
fn libraries(bench: &Bench) -> (String, String) {
    let inner = bench.host().join("inner.c");
    std::fs::write(&inner, "int inner(void) { return 42; }\n").expect("a file");
    let outer = bench.host().join("outer.c");
    std::fs::write(&outer, "int inner(void); int answer(void) { return inner(); }\n").expect("a file");
    let options = ["-shared", "-fPIC", "-Wl,-soname,libinner.so"];
    let inner = compiled(bench, &inner, "libinner.so", &options);
    let above = format!("-L{}", bench.host().display());
    let options =
        ["-shared", "-fPIC", "-Wl,-soname,libouter.so", &above, "-linner", "-Wl,-rpath,$ORIGIN/deps"];
    let outer = compiled(bench, &outer, "libouter.so", &options);
    bench.ok(&["mkdir", "-p", &bench.path("lib/deps")]);
    bench.ok(&["cp", &outer, &bench.path("lib/libouter.so")]);
    bench.ok(&["cp", &inner, &bench.path("lib/deps/libinner.so")]);
    std::fs::remove_file(&inner).expect("it is there");
    (outer, bench.path("lib/libouter.so"))
}

#[test]
fn libraries_load_from_here() {
    let Some(bench) = Bench::new("", &["cc", "cp", "python3"]) else { return };
    let (host, _) = programs(&bench);
    let (_, ours) = libraries(&bench);
    assert_eq!(bench.ok(&[&host, "loaded", &ours]), format!("42 {ours}\n"));
    let broken = bench.path("lib/broken.so");
    bench.ok(&["cp", "/etc/passwd", &broken]);
    let output = bench.run(&[&host, "loaded", &broken]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with(&format!("{broken}: ")), "the library's own name: {said}");
    // A bare name, by LD_LIBRARY_PATH.
    let list = format!("LD_LIBRARY_PATH={}", bench.path("lib"));
    assert_eq!(run(&bench, &[&list, &host, "loaded", "libouter.so"]), format!("42 {ours}\n"));
    bench.fsck();
}

#[test]
fn a_program_finds_the_libraries_that_it_needs_here() {
    let Some(bench) = Bench::new("", &["cc", "cp", "env"]) else { return };
    let (outer, _) = libraries(&bench);
    let main = bench.host().join("main.c");
    std::fs::write(
        &main,
        "#include <stdio.h>\nint answer(void); int main(void) { printf(\"%d\\n\", answer()); }\n",
    )
    .expect("a file");
    let above = format!("-L{}", bench.host().display());
    let options = [above.as_str(), "-louter", "-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN/lib"];
    let host = compiled(&bench, &main, "main", &options);
    std::fs::remove_file(outer).expect("it is there");
    bench.ok(&["cp", &host, &bench.path("main")]);
    assert_eq!(run(&bench, &[&bench.path("main")]), "42\n");
    // A program of the host's that is told to look here.
    let list = format!("LD_LIBRARY_PATH={}", bench.path("lib"));
    assert_eq!(run(&bench, &[&list, &host]), "42\n");
    bench.fsck();
}

/// An extension module of Python's own, copied here, is imported from here.
#[test]
fn python_imports_a_module_of_machine_code() {
    let Some(bench) = Bench::new("", &["python3", "cp"]) else { return };
    let find = "import _json; print(_json.__file__)";
    let Ok(output) = Command::new("python3").args(["-c", find]).output() else { return };
    let module = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !module.ends_with(".so") {
        eprintln!("SKIPPED: this Python has _json built in");
        return;
    }
    bench.ok(&["mkdir", &bench.path("modules")]);
    bench.ok(&["cp", &module, &bench.path("modules")]);
    let script = "import sys; sys.path.insert(0, sys.argv[1]); import _json; print(_json.__file__); \
                  print(_json.encode_basestring('a\"b'))";
    let here = bench.path("modules");
    let said = bench.ok(&["python3", "-c", script, &here]);
    let name = Path::new(&module).file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(said, format!("{here}/{name}\n\"a\\\"b\"\n"));
}

/// Where the wrapper cannot go, that is said, once, and only if something of ours was to go along.
#[test]
fn programs_out_of_reach_are_told_of() {
    let Some(bench) = Bench::new("", &["cc", "env", "dash"]) else { return };
    let text = bench.host().join("static.c");
    std::fs::write(&text, "#include <unistd.h>\nint main(void) { return write(1, \"x\\n\", 2) != 2; }\n")
        .expect("a file");
    let program = compiled(&bench, &text, "static", &["-static"]);
    assert_eq!(bench.ok(&["env", &program]), "x\n");
    bench.ok(&["mkdir", &bench.path("d")]);
    let output = bench.run(&["env", "-C", &bench.path("d"), &program]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("nvmed: ") && said.contains("is statically linked"), "{said}");
}
