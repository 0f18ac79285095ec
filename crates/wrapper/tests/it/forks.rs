//! Every way to make a process, mixed with every state of what it has of a mount: the files are there as on the host.

use crate::support::{Bench, nvmed};
use nvmed_dice::Dice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The ways of `c/forks.c`: fork, vfork, _Fork, clone, clone and clone3 by number, posix_spawn, system, exec, daemon.
const WAYS: &[u8] = b"fvFcr3syed";
/// Its states: nothing, a file touched, one opened and kept, a directory entered, the kept file closed.
const STATES: &[u8] = b".tock";
/// Walks of four ways, beside all of two.
const DEEP: usize = 300;
const SEED: u64 = 12;

/// A walk whose closes follow an open: what cannot be done does nothing.
fn walk(states: &[u8], ways: &[u8]) -> String {
    let mut open = false;
    let mut text = String::new();
    for (&state, &way) in states.iter().zip(ways) {
        let state = match state {
            b'k' if !open => b'.',
            b'o' if open => b'.',
            state => state,
        };
        open = (open || state == b'o') && state != b'k';
        text.extend([char::from(state), char::from(way)]);
    }
    text + "$"
}

/// All walks of two ways, and a sample of those of four.
fn walks(ways: &[u8], deep: usize) -> Vec<String> {
    let mut all = Vec::new();
    for &first in ways {
        for &second in ways {
            for begin in [b'.', b't', b'o', b'c'] {
                for between in [b'.', b't'] {
                    all.push(walk(&[begin, between], &[first, second]));
                }
            }
        }
    }
    let mut random = Dice::new(SEED);
    for _ in 0..deep {
        let states: Vec<u8> = (0..4).map(|_| *random.pick(STATES).unwrap()).collect();
        let taken: Vec<u8> = (0..4).map(|_| *random.pick(ways).unwrap()).collect();
        all.push(walk(&states, &taken));
    }
    all.sort();
    all.dedup();
    all
}

/// What a walk says where every call succeeds.
fn all_well(walk: &str) -> String {
    let mut said = String::new();
    let mut open = false;
    for (at, state) in walk.chars().enumerate().filter(|(at, _)| at % 2 == 0) {
        match state {
            '$' if open => said += "h0 e0 ",
            '$' => said += "e0 ",
            '.' => {}
            state => write!(said, "{state}0 ").expect("a string takes all"),
        }
        open = (open || state == 'o') && state != 'k';
        assert!(at < walk.len());
    }
    said
}

fn compiled(bench: &Bench) -> String {
    compiled_of(bench, "forks")
}

fn compiled_of(bench: &Bench, name: &str) -> String {
    let program = bench.host().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let options = ["-O1", "-Wall", "-Werror", "-pthread", "-o"];
    let status = Command::new("cc").args(options).arg(&program).arg(source).status();
    assert!(status.expect("cc starts").success(), "cc failed");
    program.display().to_string()
}

/// The list of walks, in a file of the host's.
fn list(bench: &Bench, walks: &[String]) -> String {
    let list = bench.host().join("walks");
    std::fs::write(&list, walks.join("\n") + "\n").expect("the walks are written");
    list.display().to_string()
}

/// What each walk said in place of what was expected.
fn differences(output: &Output, expected: impl Fn(&str) -> String) -> (usize, String) {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut wrong = String::new();
    let mut count = 0;
    for line in text.lines() {
        let (walk, said) = line.split_once(' ').expect("a walk and what it said");
        count += 1;
        let expected = expected(walk);
        if said != expected {
            writeln!(wrong, "{walk}: {said}in place of {expected}").expect("a string takes all");
        }
    }
    (count, wrong)
}

#[test]
fn every_mixture_of_ways_to_make_a_process_has_its_files() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench);
    let walks = walks(WAYS, DEEP);
    // The directory is the mount's root, which is there.
    let root = bench.path("");
    let output = bench.run_shared(&[&program, root.trim_end_matches('/'), &list(&bench, &walks)]);
    let (count, wrong) = differences(&output, all_well);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(wrong.is_empty() && errors.is_empty(), "{wrong}{errors}");
    assert_eq!(count, walks.len(), "{output:?}");
    bench.fsck();
}

/// The same walks on the host: what they expect is what a kernel does.
#[test]
fn the_walks_are_right_on_the_host() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench);
    let walks = walks(WAYS, 50);
    let dir = bench.host().join("plain");
    std::fs::create_dir(&dir).expect("a directory");
    let output = Command::new(program).arg(dir).arg(list(&bench, &walks)).output().expect("it starts");
    let (count, wrong) = differences(&output, all_well);
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(count, walks.len(), "{output:?}");
}

/// What docs/wrapper.md promises of a private mount: the process that touched it first has it, what was forked from
/// that is told EIO, what was executed besides EBUSY, and nobody else is told anything.
fn in_private(walk: &str) -> String {
    #[derive(Clone, Copy, PartialEq)]
    enum Has {
        Nothing,
        Mount,
        Fence,
    }
    let (mut has, mut holder) = (Has::Nothing, false);
    let mut said = String::new();
    for step in walk.chars() {
        match step {
            't' | '$' => {
                let errno = match has {
                    Has::Fence => libc::EIO,
                    Has::Nothing if holder => libc::EBUSY,
                    _ => 0,
                };
                if errno == 0 {
                    (has, holder) = (Has::Mount, true);
                }
                write!(said, "{}{errno} ", if step == '$' { 'e' } else { 't' }).expect("a string takes all");
            }
            // The program that follows mounts anew, if it was this process that had the mount.
            'e' => {
                holder &= has != Has::Mount;
                has = Has::Nothing;
            }
            's' | 'y' => has = Has::Nothing,
            '.' => {}
            _ if has == Has::Mount => has = Has::Fence,
            _ => {}
        }
    }
    said
}

#[test]
fn a_private_mount_tells_children_what_it_cannot_give_them() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled(&bench);
    let walks: Vec<String> = walks(b"fvFcr3sye", 200)
        .into_iter()
        .filter(|walk| {
            let states = || walk.bytes().step_by(2);
            states().all(|state| b".t$".contains(&state))
        })
        .collect();
    let root = bench.path("");
    let mut command = Command::new(&program);
    command
        .arg(root.trim_end_matches('/'))
        .arg(list(&bench, &walks))
        .env("FORKS_PRIVATE", "1")
        .current_dir(bench.host());
    let output = bench.wrapped(&mut command).output().expect("it starts");
    let (count, wrong) = differences(&output, in_private);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(wrong.is_empty(), "{wrong}{errors}");
    assert_eq!(count, walks.len(), "{output:?}");
    let lines = |part: &str| errors.lines().filter(|line| line.contains(part)).count();
    let told = |errno: i32| walks.iter().filter(|walk| in_private(walk).contains(&errno.to_string())).count();
    assert!(lines("holds the file system in private") >= told(libc::EIO), "{errors}");
    assert!(lines("is in use by") >= told(libc::EBUSY), "{errors}");
    bench.fsck();
}

/// The program dies of a futex call.
#[test]
fn a_fork_where_nothing_is_mounted_wakes_nobody() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled_of(&bench, "mounting");
    for output in [bench.run(&[&program, "fork"]), bench.run_shared(&[&program, "fork"])] {
        if output.status.code() == Some(77) {
            eprintln!("SKIPPED: this machine has no seccomp filters, so nobody counts futex calls");
            return;
        }
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

/// A process that shares its parent's memory, and has another number, takes the mount of a thread there for what it is.
/// The server is the test's, and does not answer: a second connection would be a second mount.
#[test]
fn a_process_that_shares_memory_waits_for_its_parents_mount() {
    let Some(bench) = Bench::new("", &["cc"]) else { return };
    let program = compiled_of(&bench, "mounting");
    let socket = bench.host().join("server");
    let server = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let server = server.expect("a socket");
    net::bind(&server, &SocketAddrUnix::new(&socket).expect("a short name")).expect("it has a name");
    net::listen(&server, 8).expect("it listens");
    let connects = |wait_s: i64| {
        let wait = Timespec { tv_sec: wait_s, tv_nsec: 0 };
        let found = poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&wait)).expect("a socket");
        // Not for the children of other tests, which would keep it open.
        (found > 0).then(|| net::accept_with(&server, SocketFlags::CLOEXEC).expect("a connection"))
    };
    let mut command = Command::new(program);
    command.arg("share").arg(bench.path("")).env("NVMED_SERVER", &socket).current_dir(bench.host());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut parent = bench.wrapped(&mut command).spawn().expect("it starts");
    let mounting = connects(60).expect("the thread mounts");
    parent.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
    let mut child = String::new();
    BufReader::new(parent.stdout.as_mut().expect("piped")).read_line(&mut child).expect("a line");
    let status = format!("/proc/{}/stat", child.trim());
    // Until it waits.
    while !std::fs::read_to_string(&status).expect("the child lives").contains(") S ") {
        std::thread::yield_now();
    }
    assert!(connects(0).is_none(), "the child mounts what its parent is mounting");
    // Both are refused now.
    drop((mounting, server));
    assert!(parent.wait().expect("it ends").success());
}

/// Pieces of shell scripts. `$d` is the directory, which may be `.`; numbers are put in place of `%n` and names of
/// files in place of `%f` and `%g`.
const PIECES: &[&str] = &[
    "echo %n > $d/%f; cat $d/%f",
    "n=$(wc -l < $d/%f); echo lines=$n",
    ": > $d/%f; (echo sub %n > $d/%g; true); ls $d",
    "(echo a; (echo b; (echo c%n >> $d/%f))) | sort > $d/%g; cat $d/%f $d/%g",
    "printf '%s\\n' z y x w%n | sort | tee $d/%f | head -n 2",
    "cat > $d/%f <<END\nline one $((%n + 1))\n$(echo inner | tr a-z A-Z)\nEND\nwc -c < $d/%f",
    "cat <<'END' >> $d/%f\nplain $d $(not run)\nEND\ntail -n 1 $d/%f",
    "{ echo one; echo two >&2; } > $d/%f 2> $d/%g; cat $d/%g $d/%f",
    "exec 3> $d/%f; echo three >&3; (echo sub >&3); exec 3>&-; cat $d/%f",
    "exec 4<> $d/%f; echo rw%n >&4; exec 4>&-; cat $d/%f",
    "while read -r a b; do echo \"$b-$a\"; done < $d/%f > $d/%g; cat $d/%g",
    "echo p%n | while read -r l; do echo \"$l\" >> $d/%f; cat < $d/%f; done",
    "(sleep 0; echo job%n > $d/%f) & wait; cat $d/%f",
    "echo a > $d/%f & p=$!; echo b > $d/%g & wait $p; wait; ls $d | sort",
    "trap 'echo bye%n >> $d/%f' EXIT; echo trapped",
    "(trap 'echo left >> $d/%f' EXIT; echo in); cat $d/%f",
    "trap 'echo usr >> $d/%f' USR1; kill -USR1 $$; trap - USR1; cat $d/%f",
    "mkdir -p $d/sub%n && (cd $d/sub%n && echo here > f && pwd | sed 's/.*sub/sub/'); ls $d/sub%n",
    "cp $d/%f $d/%g && cmp $d/%f $d/%g && echo same",
    "mv $d/%f $d/%g; ls $d | wc -l; rm -f $d/%g",
    "x=$(cat $d/%f; echo $(echo deep | tr d D)); echo \"$x\"",
    "sed s/e/E/g $d/%f > $d/%g; grep -c . $d/%g",
    "for i in 1 2 3; do echo $i-%n; done >> $d/%f; tail -n 2 $d/%f",
    "f() { echo in f >> $d/%f; return %n; }; f; echo status $?",
    "find $d -type f | sed 's,.*/,,' | sort | xargs echo",
    "printf '1\\n2\\n3\\n' | xargs -n 1 sh -c 'echo x$1 > '$d'/x$1' sh; cat $d/x?",
    "env -i PATH=$PATH sh -c 'echo clean > '$d'/%f'; cat $d/%f",
    "nohup sh -c 'echo nohup%n' > $d/%f 2> /dev/null; cat $d/%f",
    "timeout 60 sh -c 'echo timed; cat' < $d/%f > $d/%g; cat $d/%g",
    "setsid sh -c 'echo session%n' > $d/%f; wait; cat $d/%f",
    "sh -c 'exec sh -c \"echo execed > '$d'/%f\"'; cat $d/%f",
    "umask 027; : > $d/u%n; stat -c %a $d/u%n; umask 022",
    "test -f $d/%f && echo is || echo is not; [ -s $d/%g ]; echo $?",
    "cat $d/none%n 2> $d/%f || echo failed; wc -l < $d/%f",
    "echo closed >&- 2> /dev/null || echo refused; echo %n > $d/%f <&-; cat $d/%f",
    "dd if=$d/%f of=$d/%g bs=3 count=%n 2> /dev/null; cat $d/%g; echo",
    "ln -s %f $d/l%n; cat $d/l%n 2>&1 | sed 's,.*/,,'; readlink $d/l%n",
    "echo $(ls $d | wc -l) $(ls $d | sort | head -n 1) | tee -a $d/%f",
    "(exec > $d/%f; echo redirected; sh -c 'echo child'; echo last); cat $d/%f",
    "{ cat $d/%f | cat | cat; } > $d/%g 2>&1; wc -c < $d/%g",
];
/// Bash alone understands these.
const BASH_PIECES: &[&str] = &[
    "cat <<< word%n > $d/%f; cat $d/%f",
    "diff <(sort $d/%f) <(sort $d/%g) > /dev/null; echo $?",
    // Nobody waits for a process that tee(1) writes to: it says itself that it is done.
    "echo tee%n | tee >(cat > $d/%f; : > $d/done) > /dev/null; until [ -e $d/done ]; do sleep 0.01; done; rm $d/done",
    "echo both &> $d/%f; cat $d/%f",
    "mapfile -t a < $d/%f; echo ${#a[@]}",
    "coproc cat; echo co%n >&${COPROC[1]}; read -r l <&${COPROC[0]}; echo $l > $d/%f; cat $d/%f; kill $COPROC_PID; \
     wait 2> /dev/null",
];
const NAMES: [&str; 4] = ["one", "two", "three", "four"];
const SCRIPTS: usize = 200;

fn script(random: &mut Dice, bash: bool) -> String {
    // Every second one enters the directory, so that descendants have it from the shell; the others name it.
    let mut text = String::from(if random.roll(2) == 0 { "cd $1; d=.\n" } else { "d=$1\n" });
    text += "for f in one two three four; do echo first $f > $d/$f; done\n";
    // What touches nothing comes first as well: its children begin.
    if random.roll(2) == 0 {
        text = text.replace("for f", "(for f").replace("done", "done)");
    }
    for _ in 0..2 + random.roll(4) {
        let pieces = if bash && random.roll(4) == 0 { BASH_PIECES } else { PIECES };
        let piece = random.pick(pieces).unwrap();
        let (f, g) = (random.index(NAMES.len()), 1 + random.index(NAMES.len() - 1));
        let piece = piece
            .replace("%n", &random.roll(9).to_string())
            .replace("%f", NAMES[f])
            .replace("%g", NAMES[(f + g) % NAMES.len()]);
        text += &piece;
        text += "\n";
    }
    text
}

/// Files by their names below a directory, and what is in them.
fn tree(root: &Path, below: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(root.join(below)).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = below.join(entry.file_name());
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            into.insert(name.clone(), b"a directory".to_vec());
            tree(root, &name, into);
        } else if kind.is_symlink() {
            let to = std::fs::read_link(entry.path()).expect("a link");
            into.insert(name, to.into_os_string().into_encoded_bytes());
        } else {
            into.insert(name, std::fs::read(entry.path()).expect("a file"));
        }
    }
}

/// Runs each script with its directory below `$1`, and puts what it said below `$2`. It touches none of them.
const RUNNER: &str = r#"
on=$1 said=$2 scripts=$3
for s in $scripts/*; do
    name=${s##*/}
    mkdir -p $said
    /bin/mkdir $on/$name
    ${name%%-*} $s $on/$name < /dev/null > $said/$name.out 2> $said/$name.err
    echo $? >> $said/$name.out
done
/bin/cp -a $on $said/tree
"#;

#[test]
fn shell_scripts_leave_what_they_leave_on_the_host() {
    let Some(bench) = Bench::new("", &["bash", "dash"]) else { return };
    let at = |name: &str| bench.host().join(name);
    std::fs::create_dir(at("scripts")).expect("a directory");
    let mut random = Dice::new(SEED);
    for number in 0..SCRIPTS {
        let shell = if number % 2 == 0 { "dash" } else { "bash" };
        let path = at("scripts").join(format!("{shell}-{number:03}"));
        std::fs::write(path, script(&mut random, shell == "bash")).expect("the script is written");
    }
    std::fs::write(at("runner"), RUNNER).expect("the runner is written");
    std::fs::create_dir(at("plain")).expect("a directory");
    let words = |on: &Path, said: &str| -> Vec<String> {
        let paths = [at("runner"), on.to_owned(), at(said), at("scripts")];
        std::iter::once("dash".to_owned()).chain(paths.map(|path| path.display().to_string())).collect()
    };
    let hosts = words(&at("plain"), "by-host");
    let plain = Command::new(&hosts[0]).args(&hosts[1..]).output().expect("dash starts");
    let ours = words(&at("on"), "by-us");
    let mut command = Command::new(nvmed());
    command.args(["run", "--config"]).arg(bench.config()).arg("--").args(&ours);
    let wrapped = command.current_dir(bench.host()).output().expect("nvmed starts");
    let errors = String::from_utf8_lossy(&wrapped.stderr);
    assert!(plain.status.success() && wrapped.status.success() && errors.is_empty(), "{errors}");

    let found = |said: &str, on: &str| {
        let mut files = BTreeMap::new();
        tree(&at(said), Path::new(""), &mut files);
        let on = at(on).display().to_string();
        files.values_mut().for_each(|text| {
            *text = String::from_utf8_lossy(text).replace(&on, "HERE").into_bytes();
        });
        files
    };
    let (host, us) = (found("by-host", "plain"), found("by-us", "on"));
    let mut wrong = String::new();
    for (name, expected) in &host {
        let show = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        if us.get(name) != Some(expected) {
            let got = us.get(name).map_or("nothing".to_owned(), |text| show(text));
            writeln!(wrong, "{}: {got:?} in place of {:?}", name.display(), show(expected))
                .expect("a string");
        }
    }
    let more: Vec<_> = us.keys().filter(|name| !host.contains_key(*name)).collect();
    assert!(wrong.is_empty() && more.is_empty(), "{wrong}beside: {more:?}");
    assert!(host.len() > SCRIPTS * 6, "the scripts ran: {}", host.len());
    bench.fsck();
}
