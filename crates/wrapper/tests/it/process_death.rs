//! The death of a process is not a power cut: under `nvmed run`, whose memory holds the cache, a SIGKILL
//! loses no completed call.

use crate::support::Bench;
use nvmed_stack::{Config, RUN_MEMORY_VARIABLE, RunMemory, salvage};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Writes, extends, truncates, renames and unlinks without ever syncing, and says what is done.
const WRITER: &str = r#"
import os, sys
root = sys.argv[1]
os.mkdir(root + "/d")
for i in range(100000):
    name = "%s/d/f%d" % (root, i)
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    os.write(fd, bytes([i % 251]) * (i * 97 % 20000))
    os.pwrite(fd, b"head", 0)
    os.ftruncate(fd, i * 31 % 15000)
    os.close(fd)
    os.rename(name, name + ".done")
    if i % 3 == 0:
        os.unlink(name + ".done")
    print(i, flush=True)
"#;

/// Prints how many of the first N files are as they should be.
const CHECKER: &str = r#"
import os, sys
root, count = sys.argv[1], int(sys.argv[2])
right = 0
for i in range(count):
    name = "%s/d/f%d.done" % (root, i)
    if i % 3 == 0:
        right += not os.path.exists(name)
        continue
    want = bytearray(bytes([i % 251]) * (i * 97 % 20000))
    want[0:4] = b"head"
    size = i * 31 % 15000
    want = bytes(want[:size]) + bytes(max(0, size - len(want)))
    got = open(name, "rb").read()
    right += got == want
    if got != want:
        print(name, len(got), len(want), file=sys.stderr)
print(right)
"#;

const FILES: usize = 200;

fn write_until_killed(bench: &Bench, memory: Option<&RunMemory>) {
    let root = bench.path("");
    let mut command = Command::new("python3");
    bench.wrapped(command.args(["-c", WRITER, &root]));
    if let Some(memory) = memory {
        command.env(RUN_MEMORY_VARIABLE, memory.path());
    }
    let mut child = command.stdout(Stdio::piped()).spawn().expect("python3 starts");
    let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    assert_eq!(lines.map_while(Result::ok).take(FILES).count(), FILES, "the writer stopped early");
    child.kill().expect("the writer can be killed");
    child.wait().expect("the writer ends");
}

fn check(bench: &Bench, memory: Option<&RunMemory>) {
    let (root, count) = (bench.path(""), FILES.to_string());
    let mut command = Command::new("python3");
    bench.wrapped(command.args(["-c", CHECKER, &root, &count]));
    if let Some(memory) = memory {
        command.env(RUN_MEMORY_VARIABLE, memory.path());
    }
    let output = command.output().expect("python3 starts");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(said, count, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_holder_saves_what_a_killed_program_had_done() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let config = Config::load(&bench.config()).expect("the test's configuration");
    let memory = RunMemory::create(&config).expect("memory for a run");
    write_until_killed(&bench, Some(&memory));
    salvage(&config, &memory).expect("the holder writes it back");
    drop(memory);
    check(&bench, None);
    bench.fsck();
}

#[test]
fn the_next_program_of_the_run_finds_it_too() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let config = Config::load(&bench.config()).expect("the test's configuration");
    let memory = RunMemory::create(&config).expect("memory for a run");
    write_until_killed(&bench, Some(&memory));
    check(&bench, Some(&memory));
    drop(memory);
    bench.fsck();
}

#[test]
fn with_durability_device_nothing_is_lost_without_a_holder() {
    let Some(bench) = Bench::with_config("", "durability = device", &["python3"]) else { return };
    write_until_killed(&bench, None);
    check(&bench, None);
    bench.fsck();
}
