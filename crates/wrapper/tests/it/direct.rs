//! Shared runs on memory: programs read files where they lie, whatever happens to the server, the medium and others.

use crate::support::Bench;

/// What the scripts have in common: a file of 8 MiB, and how it is read.
const COMMON: &str = r#"
import os, signal, sys
MIB = 1 << 20
image, path = sys.argv[1], sys.argv[2]
def is_mapped():
    return any(line.split(maxsplit=5)[5:] == [image + "\n"] for line in open("/proc/self/maps"))
def write(number):
    for part in range(8):
        os.pwrite(fd, bytes([number]) * MIB, part * MIB)
def warm():
    for at in range(0, 8 * MIB, 4096):
        os.pread(fd, 8192, at)
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
write(1)
warm()
assert is_mapped(), "it reads no medium"
"#;

/// Runs a script below a shared run on memory; what it said, and whether the run ended well.
fn script(bench: &Bench, text: &str) -> (String, bool) {
    let (image, path) = (bench.host().join("disk.img").display().to_string(), bench.path("file"));
    let output = bench.run_shared(&["python3", "-c", &format!("{COMMON}{text}"), &image, &path]);
    let errors = String::from_utf8_lossy(&output.stderr);
    (format!("{}{errors}", String::from_utf8_lossy(&output.stdout)), output.status.success())
}

#[test]
fn programs_read_the_medium_and_one_that_is_killed_harms_nobody() {
    let Some(bench) = Bench::in_place("flush=process", &["python3"]) else { return };
    let text = r#"
pid = os.fork()
if pid == 0:
    while True:
        for at in range(0, 8 * MIB - 8192, 8192):
            data = os.pread(fd, 8192, at)
            for page in (data[:4096], data[4096:]):
                if page != page[:1] * len(page):
                    os._exit(1)
for number in range(2, 40):
    write(number)
    for at in range(100, 7 * MIB, MIB):
        assert os.pread(fd, 64 << 10, at) == bytes([number]) * (64 << 10)
    os.ftruncate(fd, MIB + 5)
    assert os.pread(fd, MIB, MIB) == bytes([number]) * 5
    write(number)
assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the reader has seen half of a page"
os.kill(pid, signal.SIGKILL)
assert os.waitpid(pid, 0)[1] == signal.SIGKILL
assert os.pread(fd, MIB, 7 * MIB) == bytes([39]) * MIB
print("well")
"#;
    assert_eq!(script(&bench, text), ("well\n".to_owned(), true));
    bench.fsck();
}

#[test]
fn after_the_servers_death_reads_are_errors_and_never_other_bytes() {
    let Some(bench) = Bench::in_place("flush=process", &["python3"]) else { return };
    let text = r#"
holder = os.getppid()
for child in open(f"/proc/{holder}/task/{holder}/children").read().split():
    if b"--serve" in open(f"/proc/{child}/cmdline", "rb").read().split(b"\0"):
        os.kill(int(child), signal.SIGKILL)
reads = 0
while True:
    try:
        assert os.pread(fd, 64 << 10, reads * 4096 % (7 * MIB)) == bytes([1]) * (64 << 10)
        reads += 1
    except OSError as error:
        print(error.strerror)
        break
"#;
    let (said, _) = script(&bench, text);
    assert!(said.starts_with("Input/output error\n"), "{said}");
    // The holder has written back what was completed.
    let read =
        ["python3", "-c", "import sys; print(set(open(sys.argv[1], 'rb').read()))", &bench.path("file")];
    assert_eq!(bench.ok_shared(&read), "{1}\n");
    bench.fsck();
}

#[test]
fn a_medium_that_its_owner_cuts_short_is_an_error_of_the_read() {
    let Some(bench) = Bench::in_place("flush=process", &["python3"]) else { return };
    let text = r#"
size = os.stat(image).st_size
os.truncate(image, 4096)
for at in (0, 4096 * 7 + 5, 7 * MIB):
    for bytes_read in (10, 8192, MIB):
        try:
            os.pread(fd, bytes_read, at)
            print("bytes")
        except OSError as error:
            assert error.errno == 5, error
print("alive")
"#;
    let (said, ended_well) = script(&bench, text);
    assert!(said.starts_with("alive\n") && !ended_well, "{said}");
}

#[test]
fn a_program_that_gives_its_ids_up_has_no_medium_any_more() {
    let Some(bench) = Bench::in_place("flush=process", &["python3"]) else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give its ids up; run this test as root");
        return;
    }
    let text = r#"
other = os.fork()
if other == 0:
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    assert not is_mapped(), "it has the medium of the user that it was"
    for round in range(3):
        warm()
    assert os.pread(fd, MIB, 5 * MIB - 9) == bytes([1]) * MIB
    assert not is_mapped()
    os._exit(0)
assert os.waitpid(other, 0)[1] == 0
# Where others read the file, all have copies of it.
write(2)
warm()
assert os.pread(fd, MIB, 5 * MIB - 9) == bytes([2]) * MIB
print("well")
"#;
    assert_eq!(script(&bench, text), ("well\n".to_owned(), true));
}
