//! `nvmed serve` and `nvmed admin`: users, programs of theirs, and the ends of a server.

use crate::scratch::Ran;
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ALICE: u32 = 70_001;
const BOB: u32 = 70_002;
/// The wrapper, beside the command.
const LIBRARY: &str = "libnvmed_wrapper.so";

/// A directory that other users reach, with the programs in it, and a server.
struct Machine {
    dir: PathBuf,
    holder: Option<Child>,
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Machine {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("nvmed-machine-{name}-{}", std::process::id()));
        for part in ["", "run", "grants", "home"] {
            std::fs::create_dir_all(dir.join(part)).unwrap();
            mode(&dir.join(part), 0o755);
        }
        mode(&dir.join("home"), 0o777);
        let built = Path::new(env!("CARGO_BIN_EXE_nvmed"));
        let library = built.with_file_name(LIBRARY);
        assert!(library.exists(), "{}: cargo build -p nvmed-wrapper", library.display());
        // By another process: a child of another test's that inherits the copy open for writing makes it busy.
        assert!(Command::new("cp").args([built, &library, &dir]).status().unwrap().success());
        let machine = Self { dir, holder: None };
        machine.ok(&["format", "disk.img", "--size", "64M", "--fs-size", "48M"]);
        machine
    }

    fn nvmed(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.dir.join("nvmed"));
        command.args(arguments).current_dir(&self.dir).env_remove("WRAPPER_CONFIG").env_remove("LD_PRELOAD");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.nvmed(arguments).output().unwrap())
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
        ran.out
    }

    fn serving(&self, device: &str) -> Command {
        let mut command = self.nvmed(&["serve", device, "--cache", "8M"]);
        command.args(["--socket", "run/socket", "--grants", "grants/grants.toml"]);
        command
    }

    /// Starts the server, and waits until users can come.
    fn serve(&mut self) {
        self.serve_on("disk.img");
    }

    /// The same, on this device.
    fn serve_on(&mut self, device: &str) {
        let mut holder = self.serving(device).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("serving "), "{line}");
        self.holder = Some(holder);
    }

    /// The server's end: its status, and what it said.
    fn ended(&mut self) -> Ran {
        Ran::from(self.holder.take().unwrap().wait_with_output().unwrap())
    }

    #[track_caller]
    fn admin(&self, arguments: &[&str]) -> String {
        let ran =
            Ran::from(self.nvmed(&["admin", "--socket", "run/socket"]).args(arguments).output().unwrap());
        assert_eq!(ran.status, 0, "{arguments:?}: {}{}", ran.out, ran.err);
        ran.out
    }

    /// A program below ./store of a user's, in the directory that is everybody's; user none is who runs the test.
    fn program(&self, user: Option<u32>, tree: &str, script: &str) -> Command {
        let mut command = match user {
            None => Command::new(self.dir.join("nvmed")),
            Some(user) => as_user(user, &self.dir.join("nvmed")),
        };
        let (socket, store) = (self.dir.join("run/socket"), "./store");
        command.args(["run", "--dir", store, "--server"]).arg(socket);
        if !tree.is_empty() {
            command.args(["--tree", tree]);
        }
        command.args(["--", "sh", "-c", script]).current_dir(self.dir.join("home"));
        command.env_remove("WRAPPER_CONFIG").env_remove("LD_PRELOAD");
        command
    }

    fn shell(&self, user: Option<u32>, tree: &str, script: &str) -> Ran {
        Ran::from(self.program(user, tree, script).output().unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            tell(holder.id(), Signal::TERM);
            let _ = holder.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn as_user(user: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let id = user.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(program);
    command
}

fn tell(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

fn has_setpriv() -> bool {
    let there = Command::new("setpriv").arg("--version").output().is_ok();
    if !is_root() || !there {
        eprintln!("SKIPPED: needs root and setpriv, to be other users");
    }
    is_root() && there
}

#[test]
fn users_share_a_device_and_see_only_their_own() {
    if !has_setpriv() {
        return;
    }
    let mut machine = Machine::new("users");
    machine.serve();
    let (alice, bob) = (ALICE.to_string(), BOB.to_string());
    let grant = ["grant", "alice", "--tree", "/home/alice", "--user", &alice, "--write", "--capacity", "1M"];
    machine.admin(&grant);
    machine.admin(&["grant", "bob", "--tree", "/home/bob", "--user", &bob, "--write"]);
    machine.admin(&["grant", "p1", "--partition", "48M+8M", "--user", &alice, "--queues", "2"]);
    let made = machine.shell(
        Some(ALICE),
        "",
        "echo one > store/a; (cat store/a; echo two) | sort > store/b; cat store/b",
    );
    assert_eq!((made.status, &*made.out), (0, "one\ntwo\n"), "{}", made.err);
    let seen = machine.shell(
        Some(BOB),
        "",
        "ls -a store; cat store/a store/../store/home/alice/a; ln -s /home/alice/a store/l; cat store/l",
    );
    assert!(!seen.out.contains("one") && seen.status != 0, "{}", seen.out);
    let other = machine.shell(Some(BOB), "alice", "true");
    assert!(other.status == 125 && other.err.contains("granted"), "{}", other.err);
    let full = machine.shell(Some(ALICE), "", "dd if=/dev/zero of=store/big bs=64k count=32");
    assert!(full.status != 0 && full.err.contains("quota"), "{}", full.err);
    assert_eq!(machine.shell(Some(ALICE), "", "cat store/a").out, "one\n");
    // The whole is the owner's to see.
    assert_eq!(machine.shell(None, "", "cat store/home/alice/a").out, "one\n");
    let partition = format!("vfio-user:{}", machine.dir.join("run/p1.sock").display());
    let bench = |user| {
        let mut command = as_user(user, &machine.dir.join("nvmed"));
        Ran::from(command.args(["bench", &partition, "--count", "50"]).output().unwrap())
    };
    assert_eq!(bench(ALICE).status, 0);
    assert!(bench(BOB).err.contains("Permission denied"));
    for command in [&["status"][..], &["revoke", "bob"], &["drain"]] {
        let mut admin = as_user(BOB, &machine.dir.join("nvmed"));
        let ran = Ran::from(
            admin
                .args(["admin", "--socket"])
                .arg(machine.dir.join("run/socket"))
                .args(command)
                .output()
                .unwrap(),
        );
        assert!(ran.status == 1 && ran.err.contains("only root"), "{}", ran.err);
    }
    let grants = machine.admin(&["grants"]);
    assert!(grants.contains("alice") && grants.contains("bob") && grants.contains("p1"), "{grants}");
    machine.admin(&["revoke", "alice"]);
    assert_eq!(machine.shell(Some(ALICE), "", "cat store/a").status, 125);
    tell(machine.holder.as_ref().unwrap().id(), Signal::TERM);
    let ended = machine.ended();
    assert_eq!(ended.status, 0, "{}", ended.err);
    assert_eq!(std::fs::read_dir(machine.dir.join("run")).unwrap().count(), 0, "no socket is left");
    assert_eq!(machine.ok(&["cat", "disk.img:/home/alice/a"]), "one\n");
    machine.ok(&["fsck", "disk.img"]);
}

/// A user's word is believed where the grant says so; else the kernel's, which takes a privilege, counts.
#[test]
fn a_user_is_urgent_by_grant_or_by_the_kernels_word() {
    if !has_setpriv() {
        return;
    }
    let mut machine = Machine::new("urgent");
    let record = machine.dir.join("r.csv");
    let real_time = Command::new("ionice").args(["-c", "1", "true"]).status().is_ok_and(|ran| ran.success());
    if !real_time {
        eprintln!("SKIPPED: the kernel's word needs ionice, and CAP_SYS_NICE or CAP_SYS_ADMIN");
    }
    let alice = ALICE.to_string();
    for (grants, class, wishes, is_urgent) in [
        (false, "0", true, false),
        (true, "0", true, true),
        (true, "0", false, false),
        (false, "1", false, true),
    ] {
        if class == "1" && !real_time {
            continue;
        }
        machine.serve_on("virtual:disk.img?profile=tlc,record=r.csv");
        let grant = ["grant", "a", "--tree", "/a", "--user", &alice, "--write", "--urgent"];
        machine.admin(&grant[..if grants { 8 } else { 7 }]);
        let shown = machine.admin(&["grants"]);
        assert_eq!(shown.contains("write,urgent"), grants, "{shown}");
        let mut command = Command::new("ionice");
        command.args(["-c", class, "setpriv", "--reuid", &alice, "--regid", &alice, "--clear-groups"]);
        command.arg(machine.dir.join("nvmed")).args(["run", "--dir", "./store", "--server"]);
        command.arg(machine.dir.join("run/socket")).args(wishes.then_some("--urgent"));
        command.args(["--", "dd", "if=/dev/zero", "of=store/f", "bs=16k", "count=4", "conv=fsync"]);
        command.current_dir(machine.dir.join("home")).env_remove("WRAPPER_CONFIG").env_remove("LD_PRELOAD");
        let ran = Ran::from(command.output().unwrap());
        assert_eq!(ran.status, 0, "{}", ran.err);
        tell(machine.holder.as_ref().unwrap().id(), Signal::TERM);
        let ended = machine.ended();
        assert_eq!(ended.status, 0, "{}", ended.err);
        let text = std::fs::read_to_string(&record).unwrap();
        let urgent = text.lines().filter(|row| row.ends_with(",1")).count();
        let what = format!("granted: {grants}, class {class}, said: {wishes}");
        assert!(text.lines().count() > 3 && (urgent > 0) == is_urgent, "{urgent} urgent commands: {what}");
    }
}

#[test]
fn users_meet_at_a_fifo_as_its_mode_permits() {
    if !has_setpriv() {
        return;
    }
    let mut machine = Machine::new("fifo");
    machine.serve();
    for (name, user) in [("alice", ALICE), ("bob", BOB)] {
        machine.admin(&["grant", name, "--tree", "/both", "--user", &user.to_string(), "--write"]);
    }
    let reads =
        "chmod 755 store && mkfifo store/p && chmod 622 store/p && echo made && exec timeout 60 cat store/p";
    let mut reader = machine.program(Some(ALICE), "", reads).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "made");
    let refused = machine.shell(Some(BOB), "", "timeout 60 cat store/p");
    assert!(refused.status != 0 && refused.err.contains("Permission denied"), "{}", refused.err);
    let wrote = machine.shell(Some(BOB), "", "timeout 60 sh -c 'echo of another user > store/p'");
    assert_eq!((wrote.status, &*wrote.err), (0, ""));
    assert_eq!(lines.next().unwrap().unwrap(), "of another user");
    assert!(lines.next().is_none() && reader.wait().unwrap().success());
}

/// The line on standard error may be long gone when somebody asks.
#[test]
fn a_file_system_that_turned_read_only_is_shown_with_the_reason() {
    let mut machine = Machine::new("trouble");
    machine.serve();
    let told = |machine: &Machine| {
        let socket = machine.dir.join("run/socket");
        let socket = socket.to_str().unwrap();
        let shown = [
            machine.admin(&["status"]),
            machine.ok(&["stats", socket]),
            machine.ok(&["top", "--once", "--interval", "0.1", socket]),
        ];
        let json = [machine.admin(&["status", "--json"]), machine.ok(&["stats", "--json", socket])];
        let why =
            json.map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap()["trouble"].take());
        (shown, why)
    };
    let (shown, why) = told(&machine);
    assert!(why.iter().all(serde_json::Value::is_null), "{why:?}");
    assert!(shown.iter().all(|text| !text.contains("read-only")), "{shown:?}");
    let image = std::fs::OpenOptions::new().write(true).open(machine.dir.join("disk.img")).unwrap();
    image.set_len(16 << 20).unwrap();
    let ran = machine.shell(None, "", "head -c 24M /dev/zero > store/f; sync store/f; : > store/new");
    assert!(ran.status != 0 && ran.err.contains("Read-only file system"), "{}", ran.err);
    let (shown, why) = told(&machine);
    let text = why[0].as_str().unwrap_or_default();
    assert!(why[0] == why[1] && text.contains("could not be written"), "{why:?}");
    for shown in shown {
        // A frame of `top` cuts what is too long for it.
        assert!(shown.contains("read-only") && shown.contains(&text[..40]), "{shown}");
    }
}

#[test]
fn a_server_that_is_killed_loses_nothing_that_was_completed() {
    let mut machine = Machine::new("killed");
    machine.serve();
    let mut program =
        machine.program(None, "", "echo kept > store/f; echo said; cat; cat store/f || echo gone");
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "said");
    let status: serde_json::Value = serde_json::from_str(&machine.admin(&["status", "--json"])).unwrap();
    tell(u32::try_from(status["pid"].as_u64().unwrap()).unwrap(), Signal::KILL);
    let ended = machine.ended();
    assert!(ended.status == 1 && ended.err.contains("signal 9"), "{} {}", ended.status, ended.err);
    // Its clients are told, at once, and do not hang.
    drop(program.stdin.take());
    assert_eq!(lines.next().unwrap().unwrap(), "gone");
    assert!(program.wait().unwrap().success());
    assert_eq!(machine.ok(&["cat", "disk.img:/f"]), "kept\n");
    // The sockets that it left are no obstacle to the next.
    machine.serve();
    assert_eq!(machine.shell(None, "", "cat store/f").out, "kept\n");
}

#[test]
fn a_drained_server_waits_for_who_is_there() {
    let mut machine = Machine::new("drained");
    machine.serve();
    let mut program = machine.program(None, "", "echo one > store/f; echo said; cat >> store/f");
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "said\n");
    let mut drain = machine.nvmed(&["admin", "--socket", "run/socket", "drain"]);
    let mut drain = drain.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(drain.stdout.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.starts_with("waiting for "), "{told}");
    let late = machine.shell(None, "", "cat store/f");
    assert!(late.status == 125 && late.err.contains("about to end"), "{}", late.err);
    assert!(drain.try_wait().unwrap().is_none(), "it waits");
    program.stdin.take().unwrap().write_all(b"two\n").unwrap();
    assert!(program.wait().unwrap().success());
    assert!(drain.wait().unwrap().success());
    let ended = machine.ended();
    assert_eq!(ended.status, 0, "{}", ended.err);
    assert_eq!(machine.ok(&["cat", "disk.img:/f"]), "one\ntwo\n");
}

#[test]
fn what_cannot_be_trusted_is_not_served() {
    let machine = Machine::new("trust");
    let refused = |words: &str| {
        let ran = Ran::from(machine.serving("disk.img").output().unwrap());
        assert!(ran.status == 2 && ran.err.contains(words), "{words}: {} {}", ran.status, ran.err);
        assert!(!machine.dir.join("run/socket").exists());
    };
    let grants = machine.dir.join("grants/grants.toml");
    std::fs::write(&grants, "[[tree]]\nname = \"al").unwrap();
    refused("grants.toml");
    let overlap = "[[partition]]\nname = \"p\"\nfirst = \"32M\"\nsize = \"1M\"\nuser = 0\n";
    std::fs::write(&grants, overlap).unwrap();
    refused("overlaps the file system");
    std::fs::write(&grants, "").unwrap();
    mode(&grants, 0o666);
    refused("not to be trusted");
    mode(&grants, 0o600);
    mode(&machine.dir.join("run"), 0o777);
    refused("others could exchange");
}

#[test]
fn a_service_manager_is_told_when_users_can_come() {
    let mut machine = Machine::new("notify");
    let socket = machine.dir.join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let mut holder =
        machine.serving("disk.img").env("NOTIFY_SOCKET", &socket).stdout(Stdio::null()).spawn().unwrap();
    let mut told = [0; 64];
    let len = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..len], b"READY=1");
    machine.admin(&["status"]);
    tell(holder.id(), Signal::TERM);
    let len = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..len], b"STOPPING=1");
    assert!(holder.wait().unwrap().success());
    machine.holder = None;
}
