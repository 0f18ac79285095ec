//! `nvmed run --shared`: a server beside the program, and what is left when either of them ends.
//!
//! The programs of these tests are this test program again: it speaks to the server itself, so that no wrapper has a
//! part in what is seen here.

use crate::scratch::{Scratch, have};
use crate::support::{Client, until};
use nvmed_dice::Dice;
use nvmed_fs::OpenFlags;
use nvmed_wire::{Address, Call, LaneError, SERVER_VARIABLE};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

/// Which part this program plays below `nvmed run`.
const PART: &str = "NVMED_TEST_PART";

fn client() -> Client {
    let address = std::env::var(SERVER_VARIABLE).expect("nvmed run says where its server is");
    Client::connect_to(&Address::parse(&address).expect("an address"))
}

fn append(client: &Client, text: &str) {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE).with(OpenFlags::APPEND);
    let file = client.open("/log", flags).unwrap();
    client.write(file, text.as_bytes());
    client.close(file);
}

/// This program again, in a part of its own.
fn part(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "shared::play", "--nocapture", "--quiet"]).env(PART, name);
    command
}

/// Not a test, but what the program does below `nvmed run`.
#[test]
fn play() {
    let Ok(part_name) = std::env::var(PART) else { return };
    match part_name.as_str() {
        "parent" => {
            let client = client();
            append(&client, "parent;");
            assert!(part("child").status().unwrap().success());
            append(&client, "parent again;");
        }
        "child" => append(&client(), "child;"),
        // Makes a process that outlives it.
        "leaver" => {
            let mut daemon = part("daemon").stdout(Stdio::piped()).spawn().unwrap();
            wait_for(&mut daemon, "held");
        }
        "daemon" => {
            let client = client();
            append(&client, "daemon;");
            eprintln_now("held");
            println_now("held");
            // Until the end of standard input, which the test keeps.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            append(&client, "late;");
        }
        // Writes until it is told that the server is gone.
        "writer" => {
            let client = client();
            let file = client.create("/file");
            let mut done = 0u64;
            loop {
                let write = Call::Write { handle: file, offset: Some(done * 8), bytes: 8, sync: false };
                let data = done.to_le_bytes();
                let ended = client.lane.call(&write, &data, &client.board, &|| !client.socket.is_gone());
                match ended {
                    Ok(_) => done += 1,
                    Err(LaneError::Gone) => break,
                    Err(other) => panic!("{other}"),
                }
                if done == 1000 {
                    println_now("busy");
                }
            }
            println_now(&format!("done {done}"));
        }
        other => panic!("no part {other}"),
    }
}

fn println_now(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
}

fn eprintln_now(line: &str) {
    eprintln!("{line}");
}

/// Reads until a line is `wanted`.
fn wait_for(child: &mut Child, wanted: &str) {
    let out = child.stdout.as_mut().unwrap();
    let mut lines = BufReader::with_capacity(1, out).lines();
    assert!(lines.any(|line| line.unwrap() == wanted), "no line {wanted}");
}

/// `nvmed run --shared` of a part.
fn run(scratch: &Scratch, name: &str) -> Command {
    let mut command = scratch.nvmed(["run", "--shared", "--device", "d.img", "--dir", "store", "--"]);
    let program = part(name);
    command.arg(program.get_program()).args(program.get_args()).env(PART, name);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The server that a run has started.
fn server_of(run: &Child) -> Pid {
    find_server(run).expect("a server")
}

/// The server of a run, if it is there.
pub fn find_server(run: &Child) -> Option<Pid> {
    let id = run.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let serves = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--serve\0"))
    };
    Pid::from_raw(children.split_whitespace().find(serves)?.parse().unwrap())
}

#[test]
fn the_processes_of_a_run_share_its_files() {
    let scratch = Scratch::with_device("64M");
    let ran = run(&scratch, "parent").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
    assert_eq!(scratch.ok(["cat", "d.img:/log"]), "parent;child;parent again;");
    scratch.ok(["fsck", "d.img"]);
}

/// Unmodified programs: a shell with its children, redirections, pipes and a program that lies on the device.
#[test]
fn a_shell_and_its_children_share_the_files() {
    let scratch = Scratch::with_device("64M");
    for shell in ["dash", "bash"].into_iter().filter(|shell| have(shell)) {
        let script = "cd store; echo b >f; echo a >>f; sort <f >g; { cat g; printf b; } >>f; cat f; rm f g; \
                      cp \"$(command -v cat)\" own; echo through | ./own; (cd .. && ls store)";
        let ran = scratch.on_device([shell, "-c", script]);
        assert_eq!((ran.status, ran.err.as_str(), ran.out.as_str()), (0, "", "b\na\na\nb\nbthrough\nown\n"));
        // A child has a log of its own, and grants of its parent's that are over.
        let script = "write() { for i in 1 2 3 4 5 6; do echo $1 >&$2; done; }; cd store; \
                      for i in 1 2 3 4 5; do echo >>warm; done; exec 3>>a; write parent 3; \
                      (for i in 1 2 3 4 5; do echo >>warm; done; exec 4>>b; write child 4; write child 3); \
                      write parent 3; uniq -c a; uniq -c b; rm a b warm; seq 50000 >c; cksum <c; rm c";
        let ran = scratch.on_device([shell, "-c", script]);
        let expected = "      6 parent\n      6 child\n      6 parent\n      6 child\n2937936293 288894\n";
        assert_eq!((ran.status, ran.err.as_str(), ran.out.as_str()), (0, "", expected));
        let ran = scratch.on_device(["store/own", "/dev/null"]);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "a program that lies on the device");
    }
    scratch.ok(["fsck", "d.img"]);
}

/// What a server that gives up root's rights does: its files are its own then, and root's are closed to it.
#[test]
fn a_process_that_changes_its_ids_is_somebody_else() {
    if !rustix::process::geteuid().is_root() || !have("setpriv") {
        println!("SKIPPED: it takes root, and setpriv");
        return;
    }
    let library = std::path::Path::new(env!("CARGO_BIN_EXE_nvmed")).with_file_name("libnvmed_wrapper.so");
    let mut reach = Command::new("setpriv");
    reach.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "test", "-r"]).arg(&library);
    if !reach.status().unwrap().success() {
        println!("SKIPPED: {} is closed to other users", library.display());
        return;
    }
    let scratch = Scratch::with_device("64M");
    let script =
        "echo secret > store/root; chmod 600 store/root; mkdir store/theirs; chown 65534:65534 store/theirs
                  setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '
                      cat store/root; echo own > store/theirs/file; : > store/root2' 2> store/said
                  grep -c 'Permission denied' store/said; stat -c '%u:%g %s' store/theirs/file";
    let ran = scratch.on_device(["sh", "-c", script]);
    assert_eq!((ran.status, ran.err.as_str(), ran.out.as_str()), (0, "", "2\n65534:65534 4\n"));
}

/// access(2) asks for the real ids, stat(2) for the effective ones: what the one was told is no answer to the other.
#[test]
fn the_real_ids_are_not_told_what_only_the_effective_ones_may_know() {
    if !rustix::process::geteuid().is_root() || !have("python3") {
        println!("SKIPPED: it takes root, and python3");
        return;
    }
    let scratch = Scratch::with_device("64M");
    let script = "
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir('store/closed', 0o700)
os.setreuid(65534, 0)
for _ in range(20):
    try: os.stat('store/closed/none')
    except FileNotFoundError: pass
for call in (libc.access, libc.eaccess):
    call(b'store/closed/none', os.F_OK)
    print(errno.errorcode[ctypes.get_errno()])
";
    let ran = scratch.on_device(["python3", "-c", script]);
    assert_eq!((ran.status, ran.err.as_str(), ran.out.as_str()), (0, "", "EACCES\nENOENT\n"));
}

#[test]
fn the_programs_status_is_the_runs() {
    let scratch = Scratch::with_device("64M");
    let run = |program: &[&str]| {
        let head = ["run", "--shared", "--device", "d.img", "--dir", "store", "--"];
        scratch.run(head.iter().chain(program))
    };
    assert_eq!(run(&["sh", "-c", "exit 42"]).status, 42);
    assert_eq!(run(&["sh", "-c", "kill -KILL $$"]).status, 137);
    let missing = run(&["no-such-program"]);
    assert_eq!((missing.status, missing.err.lines().count()), (127, 1), "{}", missing.err);
    std::fs::write(scratch.path("d.img"), vec![7; 1 << 20]).unwrap();
    let blank = run(&["true"]);
    assert!(blank.status != 0 && blank.err.lines().count() == 1, "{}", blank.err);
}

#[test]
fn a_killed_server_ends_every_call_and_loses_none_that_was_completed() {
    let scratch = Scratch::with_device("64M");
    let mut child = run(&scratch, "writer").spawn().unwrap();
    wait_for(&mut child, "busy");
    rustix::process::kill_process(server_of(&child), Signal::KILL).unwrap();
    let ended = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "the program's own status: {err}");
    assert!(err.contains("the server was ended by signal 9") && err.lines().count() == 1, "{err}");
    let done = out.lines().find_map(|line| line.strip_prefix("done ")).expect("it ended by itself");
    let done: u64 = done.parse().unwrap();
    let file = scratch.path("file");
    scratch.ok(["cp", "d.img:/file", "file"]);
    let bytes = std::fs::read(file).unwrap();
    assert!(bytes.len() as u64 >= done * 8, "{} bytes of {done} completed writes", bytes.len());
    for (index, number) in bytes.chunks_exact(8).enumerate() {
        assert_eq!(number, (index as u64).to_le_bytes());
    }
    scratch.ok(["fsck", "d.img"]);
}

/// Appends to two files by posts, and looks at one now and then, until the server is gone; says how often it has.
const POSTER: &str = r#"
for i in 1 2 3 4 5 6 7 8; do echo warm >>store/warm; done
exec 3>>store/a 4>>store/b; i=0
while printf %08d $i >&3 && printf %08d $i >&4; do
    i=$((i + 1)); [ $((i % 37)) != 0 ] || echo busy; [ $((i % 101)) != 0 ] || [ -s store/a ]
done 2>/dev/null
echo done $i
"#;

#[test]
fn whenever_a_server_is_killed_what_was_posted_is_there() {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let mut dice = Dice::of(&[number("NVMED_SEED", 15)]);
    for round in 0..number("NVMED_KILLS", 6) {
        let scratch = Scratch::with_device("64M");
        let mut command = scratch.nvmed(["run", "-D", "d.img", "-d", "store", "--", "bash", "-c", POSTER]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        for _ in 0..=dice.roll(60) {
            wait_for(&mut child, "busy");
        }
        rustix::process::kill_process(server_of(&child), Signal::KILL).unwrap();
        let ended = child.wait_with_output().unwrap();
        let out = String::from_utf8_lossy(&ended.stdout);
        let done = out.lines().find_map(|line| line.strip_prefix("done ")).expect("it ended by itself");
        let done: usize = done.parse().unwrap();
        for file in ["a", "b"] {
            scratch.ok(["cp", &format!("d.img:/{file}"), file]);
            let bytes = std::fs::read_to_string(scratch.path(file)).unwrap();
            assert!(bytes.len() / 8 >= done, "kill {round}: {} of {done} writes of {file}", bytes.len() / 8);
            for (index, number) in bytes.as_bytes().chunks(8).enumerate() {
                assert_eq!(number, format!("{index:08}").as_bytes(), "kill {round}: {file}");
            }
        }
        scratch.ok(["fsck", "d.img"]);
    }
}

/// What spares calls can be left out, each by itself: the answers are the same, and more of them are calls.
#[test]
fn what_spares_calls_can_be_left_out() {
    let scratch = Scratch::with_device("64M");
    let script = "cd store; rm -rf d; mkdir d; for i in 1 2 3 4 5 6 7 8 9; do echo $i >d/$i; done
        exec 3>>d/log; for i in 1 2 3 4 5 6 7 8 9; do echo $i >&3; done
        for i in 1 2 3; do find d -type f | sort | xargs cat; done | sha256sum; $0 stats --json $PPID";
    let nvmed = env!("CARGO_BIN_EXE_nvmed");
    let mut calls = Vec::new();
    let mut said = Vec::new();
    for spared in ["all", "shelf,opens,ahead,windows", "shelf,writes", "none"] {
        let conf = format!(
            "wrap_dir = store\nstorage_engine = virtual\nstorage_dev = d.img\nspare_calls = {spared}\n"
        );
        scratch.file("spare.conf", &conf);
        let out = scratch.ok(["run", "-c", "spare.conf", "--shared", "--", "bash", "-euc", script, nvmed]);
        let (sum, told) = out.split_once('\n').unwrap();
        let told: serde_json::Value = serde_json::from_str(told).unwrap();
        let posted = ["writes", "changes"].map(|what| told["spared"][what].as_u64().unwrap());
        let is_posted = spared == "all" || spared.contains("writes");
        assert_eq!(posted.iter().sum::<u64>() > 0, is_posted, "{spared}: {told}");
        calls.push(told["round_trips"].as_u64().unwrap());
        said.push(sum.to_owned());
    }
    assert!(said.windows(2).all(|two| two[0] == two[1]), "{said:?}");
    assert!(calls[0] < calls[2] && calls[2] < calls[3], "{calls:?}");
    scratch.file("spare.conf", "wrap_dir = store\nstorage_dev = d.img\nspare_calls = shelf,x\n");
    let ran = scratch.run(["run", "-c", "spare.conf", "--", "true"]);
    assert!(ran.status == 2 && ran.err.contains("`x` is none of"), "{} {}", ran.status, ran.err);
}

#[test]
fn a_run_waits_for_the_processes_that_outlive_its_program() {
    let scratch = Scratch::with_device("64M");
    let mut child = run(&scratch, "leaver").spawn().unwrap();
    let stdin = child.stdin.take();
    let mut err = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(err.any(|line| line.unwrap() == "held"));
    let said = err.next().unwrap().unwrap();
    assert!(said.contains("1 process that it started still use"), "{said}");
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(scratch.ok(["cat", "d.img:/log"]), "daemon;late;");
}

#[test]
fn a_signal_ends_a_run_that_waits() {
    let scratch = Scratch::with_device("64M");
    let mut child = run(&scratch, "leaver").spawn().unwrap();
    let _stdin = child.stdin.take();
    let mut err = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(err.any(|line| line.unwrap().contains("waiting for their end")));
    // Not SIGINT: a shell has its background jobs ignore that, and then the run ignores it too.
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(scratch.ok(["cat", "d.img:/log"]), "daemon;");
    scratch.ok(["fsck", "d.img"]);
}

#[test]
fn a_killed_holder_leaves_a_device_that_is_whole() {
    let scratch = Scratch::with_device("64M");
    let mut child = run(&scratch, "writer").spawn().unwrap();
    wait_for(&mut child, "busy");
    let server = server_of(&child);
    child.kill().unwrap();
    child.wait().unwrap();
    // The server saves what there is, and ends.
    until("the server ends", || rustix::process::test_kill_process(server).is_err());
    scratch.ok(["fsck", "d.img"]);
    assert!(scratch.ok(["cat", "d.img:/file"]).len() >= 8000);
}

#[test]
fn statistics_of_a_shared_run_are_written() {
    let scratch = Scratch::with_device("64M");
    let mut command = scratch.nvmed(["run", "--shared", "--device", "d.img", "--dir", "store"]);
    let program = part("parent");
    command.args(["--stats", "stats", "--"]).arg(program.get_program()).args(program.get_args());
    assert!(command.env(PART, "parent").status().unwrap().success());
    let text = std::fs::read_to_string(scratch.path("stats")).unwrap();
    let line = text.lines().find(|line| line.contains("\"device\"")).expect("the mount's line");
    assert!(line.contains("\"calls\":") && !line.contains("\"calls\":0"), "{text}");
}
