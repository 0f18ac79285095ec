//! What a program meets at the limits: a full device, names too long, a wrong device.

use crate::support::Bench;

/// ENOSPC comes at the call that finds no room, nothing written before is lost, and deleting works.
#[test]
fn a_full_device_says_so_at_the_call_and_can_be_emptied() {
    let Some(bench) = Bench::sized(32 << 20, "", "", &["python3"]) else { return };
    let script = "
import errno, os, sys
ours = sys.argv[1]
whole, kept = os.urandom(1 << 20), []
try:
    for number in range(1000):
        name = '%s/f%d' % (ours, number)
        fd = os.open(name, os.O_CREAT | os.O_WRONLY)
        kept.append([name, 0])
        while kept[-1][1] < 1 << 20:
            kept[-1][1] += os.write(fd, whole[kept[-1][1]:])
        os.close(fd)
    raise SystemExit('the device never filled')
except OSError as error:
    assert error.errno == errno.ENOSPC, error
os.fsync(fd)
assert len(kept) > 10, kept
for name, size in kept:
    assert open(name, 'rb').read() == whole[:size], name
assert os.statvfs(ours).f_bavail < 512
for name, size in kept[::2]:
    os.unlink(name)
fd = os.open(ours + '/again', os.O_CREAT | os.O_WRONLY)
assert os.write(fd, whole) == 1 << 20
os.fsync(fd)
for name, size in kept[1::2]:
    assert open(name, 'rb').read() == whole[:size], name
    os.unlink(name)
os.unlink(ours + '/again')
print(os.listdir(ours))
";
    assert_eq!(bench.ok(&["python3", "-c", script, bench.path("").trim_end_matches('/')]), "[]\n");
    bench.fsck();
}

/// As many empty files as the metadata has room for.
#[test]
fn a_device_full_of_names_can_be_emptied() {
    let Some(bench) = Bench::sized(16 << 20, "", "", &["python3"]) else { return };
    let script = "
import errno, os, sys
ours, made = sys.argv[1], 0
try:
    while made < 1000000:
        os.close(os.open('%s/%s%d' % (ours, 'n' * 200, made), os.O_CREAT | os.O_WRONLY))
        made += 1
    raise SystemExit('the device never filled')
except OSError as error:
    assert error.errno == errno.ENOSPC, error
assert made > 1000, made
os.sync()
names = os.listdir(ours)
assert len(names) == made, (len(names), made)
for name in names:
    os.unlink(ours + '/' + name)
os.close(os.open(ours + '/last', os.O_CREAT | os.O_WRONLY))
";
    bench.ok(&["python3", "-c", script, bench.path("").trim_end_matches('/')]);
    assert_eq!(bench.ok(&["ls", &bench.path("")]), "last\n");
    bench.fsck();
}

#[test]
fn names_of_no_length_and_of_too_much() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = "
import errno, os, sys
ours = sys.argv[1]
def fails(number, call, *arguments):
    try: call(*arguments)
    except OSError as error: assert error.errno == number, error
    else: raise SystemExit('%s %s' % (call, arguments))
fails(errno.ENOENT, os.stat, '')
fails(errno.ENOENT, os.open, '', os.O_CREAT | os.O_WRONLY)
longest = 'n' * 255
os.mkdir(ours + '/' + longest)
assert os.listdir(ours) == [longest]
fails(errno.ENAMETOOLONG, os.mkdir, ours + '/' + longest + 'n')
fails(errno.ENAMETOOLONG, os.stat, ours + '/x' * 4096)
os.chdir(ours)
deep = 0
while deep < 40:
    os.mkdir(longest) if deep else None
    os.chdir(longest)
    deep += 1
open('bottom', 'w').write('b')
assert os.stat('bottom').st_size == 1
fails(errno.ENOENT, os.stat, '')
os.chdir('/')
os.chdir(ours)
for name in [b'\\xff\\xfe', b'new\\nline', b' ', b'-', b'\\x01']:
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    os.stat(name); os.unlink(name)
";
    bench.ok(&["python3", "-c", script, bench.path("").trim_end_matches('/')]);
    bench.ok(&["rm", "-r", &bench.path(&"n".repeat(255))]);
    bench.fsck();
}

/// Each device that cannot be used is named, with what to do, once; the call fails with an errno that fits.
#[test]
fn devices_that_cannot_be_used() {
    let Some(bench) = Bench::new("", &["ls"]) else { return };
    let image = bench.host().join("disk.img");
    let said = |bench: &Bench| {
        let output = bench.run(&["ls", &bench.path(""), &bench.path("x")]);
        assert!(!output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<_> =
            text.lines().filter(|line| line.starts_with("nvmed: ")).map(str::to_owned).collect();
        assert_eq!(ours.len(), 1, "one line: {text}");
        assert!(ours[0].contains("disk.img"), "it names the device: {text}");
        ours[0].clone()
    };
    // Truncated: larger than nothing, smaller than the file system on it.
    let whole = std::fs::OpenOptions::new().write(true).open(&image).expect("the image");
    whole.set_len(64 << 20).expect("truncated");
    assert!(said(&bench).contains("truncated"));
    whole.set_len((64 << 20) + 100).expect("truncated");
    assert!(said(&bench).contains("multiple of 4096"));
    // Somebody else's.
    std::fs::write(&image, vec![0x5a; 64 << 20]).expect("written");
    assert!(said(&bench).contains("no nvmed file system"));
    std::fs::remove_file(&image).expect("removed");
    std::fs::create_dir(&image).expect("a directory");
    said(&bench);
}

/// `RLIMIT_FSIZE`, as the kernel obeys it: what fits is written, then EFBIG and SIGXFSZ; what does not grow is allowed.
#[test]
fn files_grow_up_to_the_limit_on_their_size() {
    let Some(bench) = Bench::new("", &["python3", "bash", "dd"]) else { return };
    let script = "
import errno, os, resource, signal, sys
path, told = sys.argv[1], []
signal.signal(signal.SIGXFSZ, lambda number, frame: told.append(number))
def too_large(call, *arguments):
    before = len(told)
    try:
        call(*arguments)
        raise SystemExit('%s went through' % call)
    except OSError as error:
        assert error.errno == errno.EFBIG, error
    for step in range(2):
        pass  # where Python runs handlers
    assert len(told) == before + 1, told
fd = os.open(path, os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 20000)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
os.ftruncate(fd, 10000)
too_large(os.pwrite, fd, b'x', 8192)
too_large(os.ftruncate, fd, 10001)
os.ftruncate(fd, 0)
assert os.write(fd, b'x' * 10000) == 8192
too_large(os.write, fd, b'x')
assert os.write(fd, b'') == 0
too_large(os.truncate, path, 8193)
too_large(os.posix_fallocate, fd, 8000, 193)
too_large(os.pwritev, fd, [b'a', b'b'], 9000)
assert os.pwritev(fd, [b'a', b'b'], 8191) == 1
append = os.open(path, os.O_WRONLY | os.O_APPEND)
too_large(os.write, append, b'x')
os.truncate(path, 8190)
assert os.write(append, b'xyz') == 2 and os.fstat(fd).st_size == 8192
resource.prlimit(0, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
assert os.write(append, b'xyz') == 3
";
    bench.ok(&["python3", "-c", script, &bench.path("f")]);
    // A program starts with the limit, and ends by the signal.
    let shell = format!("ulimit -f 8; exec dd if=/dev/zero of={} bs=1k count=9 status=none", bench.path("g"));
    let output = bench.run(&["bash", "-c", &shell]);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(25),
        "SIGXFSZ: {output:?}"
    );
    bench.fsck();
}

/// Under a low limit on descriptors ours lie above those that programs choose.
#[test]
fn few_descriptors_are_enough() {
    let Some(bench) = Bench::new("", &["bash"]) else { return };
    for most in [60, 256, 700] {
        let shell = format!(
            "ulimit -n {most}; cd {}; for n in 3 4 5 6 7 8 9 10 20; do eval \"exec $n>f$n\" && echo $n >&$n || exit \
             1; done; \
             read n <f20; echo $n",
            bench.path("")
        );
        bench.ok(&["mkdir", "-p", &bench.path("")]);
        assert_eq!(bench.ok(&["bash", "-c", &shell]), "20\n", "{most}");
    }
    bench.fsck();
}
