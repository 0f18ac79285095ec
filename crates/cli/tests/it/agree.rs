//! Several processes of a run do random things in turn, each of them in a directory of the device and in one of the
//! host: what one has done the next one sees, in both the same.

use crate::scratch::{Scratch, have};

/// Each process takes a lock on a file of the host, makes a few calls, and compares their answers.
const SCRIPT: &str = "
import errno, fcntl, os, random, stat, sys

BASES = ('store/tree', 'host/tree')
STEPS = 800

def outcome(call, base):
    try: return call(base)
    except OSError as error: return errno.errorcode[error.errno]

def told(status):
    # Sizes and links of directories are each file system's own affair.
    return (status.st_mode,) if stat.S_ISDIR(status.st_mode) else (status.st_mode, status.st_nlink, status.st_size)

def entries(of):
    with os.scandir(of) as all: return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in all)

def whole(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try: return entries(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else (told(os.fstat(fd)), os.read(fd, 1 << 16))
    finally: os.close(fd)

def write(path, size):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try: os.write(fd, b'x' * size)
    finally: os.close(fd)

class Player:
    def __init__(self, seed):
        self.dice, self.held = random.Random(seed), {}

    def path(self):
        names = self.dice.choices(['a', 'b', 'c', 'a-b'], k=self.dice.choice([1, 1, 2, 2, 3]))
        if self.dice.random() < 0.05: names.insert(1, '..')
        return '/'.join(names) + ('/' if self.dice.random() < 0.03 else '')

    def change(self):
        one, two, number = self.path(), self.path(), self.dice.randrange(1, 9000)
        at = lambda base, path: base + '/' + path
        return self.dice.choice([
            ('mkdir', one, lambda base: os.mkdir(at(base, one))),
            ('mkdir', two, lambda base: os.mkdir(at(base, two))),
            ('rmdir', one, lambda base: os.rmdir(at(base, one))),
            ('unlink', one, lambda base: os.unlink(at(base, one))),
            ('rename', (one, two), lambda base: os.rename(at(base, one), at(base, two))),
            ('link', (one, two), lambda base: os.link(at(base, one), at(base, two))),
            ('symlink', (two, one), lambda base: os.symlink(two, at(base, one))),
            ('chmod', one, lambda base: os.chmod(at(base, one), 0o700 | number % 0o100)),
            ('write', one, lambda base: write(at(base, one), number)),
            ('truncate', one, lambda base: os.truncate(at(base, one), number)),
        ])

    def look(self):
        one, number = self.path(), self.dice.randrange(4)
        at = lambda base: base + '/' + one
        def hold(base):
            fd = os.open(at(base), os.O_RDONLY | os.O_DIRECTORY)
            old, self.held[base, number] = self.held.get((base, number)), fd
            if old is not None: os.close(old)
        looks = [
            ('stat', one, lambda base: told(os.stat(at(base)))),
            ('lstat', one, lambda base: told(os.lstat(at(base)))),
            ('readlink', one, lambda base: os.readlink(at(base))),
            ('access', one, lambda base: os.access(at(base), os.R_OK)),
            ('read', one, lambda base: whole(at(base))),
            ('scandir', one, lambda base: entries(at(base))),
            ('hold', one, hold),
        ]
        if all((base, number) in self.held for base in BASES):
            fd = lambda base: self.held[base, number]
            looks += [
                ('list held', number, lambda base: sorted(os.listdir(fd(base)))),
                ('stat in held', one, lambda base: told(os.stat(one, dir_fd=fd(base)))),
                ('links of held', number, lambda base: os.fstat(fd(base)).st_nlink > 0),
            ]
        return self.dice.choice(looks)

    def play(self):
        turn = os.open('turn', os.O_RDWR)
        for step in range(STEPS):
            fcntl.flock(turn, fcntl.LOCK_EX)
            for _ in range(self.dice.randrange(1, 4)):
                what, where, call = self.change() if self.dice.random() < 0.4 else self.look()
                ours, theirs = (outcome(call, base) for base in BASES)
                if ours != theirs: sys.exit(f'step {step}, {what} {where}: {ours}, and on the host {theirs}')
            fcntl.flock(turn, fcntl.LOCK_UN)

for base in BASES: os.mkdir(base)
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        Player(int(sys.argv[1]) * 10 + number).play()
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
";

#[test]
fn what_one_process_has_done_the_next_one_sees_as_on_the_host() {
    if !have("python3") {
        return;
    }
    for seed in 0..3 {
        let scratch = Scratch::with_device("64M");
        scratch.file("turn", "");
        std::fs::create_dir(scratch.path("host")).unwrap();
        let ran = scratch.on_device(["python3", "-c", SCRIPT, &seed.to_string()]);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "seed {seed}");
        assert!(scratch.ok(["fsck", "d.img"]).contains("clean"), "seed {seed}");
    }
}

/// readdir(3) takes the ENOENT of getdents(2) for the end (POSIX.1-2017, rmdir: the directory has no entries).
#[test]
fn the_stream_of_a_removed_directory_is_empty() {
    if !have("python3") {
        return;
    }
    let script = "
import os
os.mkdir('store/gone')
fd = os.open('store/gone', os.O_RDONLY)
os.rmdir('store/gone')
print(os.listdir(fd))
";
    for how in ["--shared", "--private"] {
        let scratch = Scratch::with_device("64M");
        let words = ["run", how, "--device", "d.img", "--dir", "store", "--", "python3", "-c", script];
        assert_eq!(scratch.ok(words), "[]\n", "{how}");
    }
}
