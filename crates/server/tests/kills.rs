//! Clients killed at any moment: nothing stays locked, leaked or half done, and no completed call is lost.
//!
//! A client is this test program again. It changes its own directory, one call after the other, and says each that was
//! completed. It is killed between two of them, or inside one; the test knows by a model what must be there then. 200
//! times; `NVMED_KILLS=5000` for more.

mod support;

use nvmed_dice::Dice;
use nvmed_fs::{LockKind, LockRange, OpenFlags, RenameFlags};
use nvmed_stack::{DeviceSpec, Open};
use nvmed_wire::{Address, Answer, Call, Control, Handle, LockClass, SERVER_VARIABLE};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Client, serve, serve_on, until};

/// What a client is told beside the server's address: its seed.
const SEED: &str = "NVMED_TEST_SEED";
const KILLS: u64 = 200;
/// Names that a client uses.
const NAMES: u64 = 6;
/// Ends a client that nobody kills.
const STEPS_MAX: u64 = 100_000;

/// The files of a client's directory.
type Model = BTreeMap<String, Vec<u8>>;

/// One change, made by one call, or something that changes nothing.
#[derive(Clone, Debug)]
enum Step {
    Create(String),
    Write { name: String, at: usize, bytes: usize, byte: u8 },
    Append { name: String, bytes: usize, byte: u8 },
    Rename(String, String),
    Unlink(String),
    Lock,
    Fork { name: String, byte: u8 },
    Send(String),
}

/// What a client does next: a function of its seed, and of what it has done.
fn next(dice: &mut Dice, model: &Model) -> Step {
    let name = |dice: &mut Dice| format!("f{}", dice.roll(NAMES));
    let wanted = name(dice);
    let (kind, at, bytes, byte) = (dice.roll(9), dice.roll(9000), dice.roll(6000), dice.roll(256));
    let (at, bytes, byte, other) = (at as usize, bytes as usize + 1, byte as u8, name(dice));
    if !model.contains_key(&wanted) {
        return if kind == 0 { Step::Lock } else { Step::Create(wanted) };
    }
    match kind {
        0 => Step::Lock,
        1 => Step::Unlink(wanted),
        2 | 3 => Step::Rename(wanted, other),
        4 => Step::Fork { name: wanted, byte },
        5 => Step::Send(wanted),
        6 => Step::Append { name: wanted, bytes, byte },
        _ => Step::Write { name: wanted, at, bytes, byte },
    }
}

fn apply(model: &mut Model, step: &Step) {
    match step {
        Step::Create(name) => {
            model.entry(name.clone()).or_default();
        }
        Step::Write { name, at, bytes, byte } => {
            let file = model.get_mut(name).unwrap();
            file.resize(file.len().max(at + bytes), 0);
            file[*at..at + bytes].fill(*byte);
        }
        Step::Append { name, bytes, byte } => {
            let file = model.get_mut(name).unwrap();
            file.resize(file.len() + bytes, *byte);
        }
        Step::Fork { name, byte } => model.get_mut(name).unwrap().push(*byte),
        Step::Rename(old, new) => {
            let file = model.remove(old).unwrap();
            model.insert(new.clone(), file);
        }
        Step::Unlink(name) => drop(model.remove(name)),
        Step::Lock | Step::Send(_) => {}
    }
}

const APPENDS: OpenFlags = OpenFlags(OpenFlags::READ_WRITE.0 | OpenFlags::APPEND.0);

fn carry_out(client: &Client, home: &str, step: &Step) {
    let path = |name: &String| format!("{home}/{name}");
    let with = |name, flags, act: &dyn Fn(Handle)| {
        let file = client.open(&path(name), flags).unwrap();
        act(file);
        client.post(file);
    };
    match step {
        Step::Create(name) => client.post(client.create(&path(name))),
        Step::Write { name, at, bytes, byte } => {
            with(name, OpenFlags::READ_WRITE, &|file| client.pwrite(file, *at as u64, &vec![*byte; *bytes]));
        }
        Step::Append { name, bytes, byte } => {
            with(name, APPENDS, &|file| {
                client.write(file, &vec![*byte; *bytes]);
            });
        }
        Step::Fork { name, byte } => with(name, APPENDS, &|file| {
            // What a fork is to the server; the child does the change.
            let child = Client::adopt(client.heir(&[(3, file)], false).unwrap());
            child.write(file, &[*byte]);
        }),
        Step::Rename(old, new) => {
            let (old, new) = (path(old), path(new));
            let call = Call::Rename {
                from: Handle::ROOT,
                old: old.as_bytes(),
                to: Handle::ROOT,
                new: new.as_bytes(),
                flags: RenameFlags::Replace,
            };
            assert_eq!(client.call(&call), Answer::Done);
        }
        Step::Unlink(name) => {
            let path = path(name);
            assert_eq!(client.call(&Call::Unlink { at: Handle::ROOT, path: path.as_bytes() }), Answer::Done);
        }
        Step::Lock => {
            let file = client.open("/shared", OpenFlags::READ_WRITE).unwrap();
            for class in [LockClass::Process, LockClass::Whole] {
                let kind = Some(LockKind::Exclusive);
                let taken = client.call(&Call::Lock { handle: file, class, range: LockRange::ALL, kind });
                assert!(matches!(taken, Answer::Done | Answer::Failed(libc::EAGAIN)), "{taken:?}");
            }
            client.close(file);
        }
        Step::Send(name) => with(name, OpenFlags::READ, &|file| {
            drop(client.control(&Control::Send { handle: file }).unwrap());
        }),
    }
}

/// Not a test, but the client that is killed.
#[test]
fn play() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let seed: u64 = seed.parse().unwrap();
    let address = Address::parse(&std::env::var(SERVER_VARIABLE).unwrap()).unwrap();
    let client = Client::connect_to(&address);
    let home = format!("/home{seed}");
    let made = client.call(&Call::Mkdir { at: Handle::ROOT, path: home.as_bytes(), mode: 0o755 });
    assert_eq!(made, Answer::Done);
    let (mut dice, mut model) = (Dice::new(seed), Model::new());
    // Raw, beside what the test harness prints: one byte for each completed step.
    let mut out = std::io::stderr();
    out.write_all(b".").unwrap();
    for _ in 0..STEPS_MAX {
        let step = next(&mut dice, &model);
        carry_out(&client, &home, &step);
        apply(&mut model, &step);
        out.write_all(b".").unwrap();
    }
}

fn look(client: &Client, home: &str) -> Model {
    let names = client.names(home);
    let read = |name: String| {
        let file = client.open(&format!("{home}/{name}"), OpenFlags::READ).unwrap();
        let mut bytes = Vec::new();
        while bytes.len() < client.size(file) as usize {
            bytes.extend(client.pread(file, bytes.len() as u64, 1 << 20));
        }
        client.close(file);
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// Starts a client, kills it some time after its `after`th step, and answers how many were completed.
fn kill_one(address: &Address, seed: u64, after: usize, spins: u64) -> u64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "play", "--nocapture", "--quiet"]);
    command.env(SEED, seed.to_string()).env(SERVER_VARIABLE, address.to_string());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = child.stderr.take().unwrap();
    let mut seen = vec![0; after + 1];
    said.read_exact(&mut seen).expect("it goes on until it is killed");
    for _ in 0..spins {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = Vec::new();
    said.read_to_end(&mut rest).unwrap();
    assert!(seen.iter().chain(&rest).all(|byte| *byte == b'.'), "{}", String::from_utf8_lossy(&rest));
    // The first dot is the directory's.
    (after + rest.len()) as u64
}

#[test]
fn a_killed_client_leaves_nothing_locked_leaked_or_half_done() {
    if std::env::var(SEED).is_ok() {
        return;
    }
    let kills = std::env::var("NVMED_KILLS").ok().map_or(KILLS, |text| text.parse().unwrap());
    let image = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kills-{}.img", std::process::id()));
    let _ = std::fs::remove_file(&image);
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let spec = DeviceSpec::parse(image.to_str().unwrap()).unwrap();
    let shared = serve_on(spec.clone(), 1 << 20);
    let judge = Client::connect(&shared);
    judge.close(judge.create("/shared"));
    let mut dice = Dice::new(kills);
    for seed in 0..kills {
        let done = kill_one(&shared.address, seed, dice.roll(60) as usize, dice.roll(200_000));
        until("its sessions and lanes end", || shared.service.sessions() == 1 && shared.service.lanes() == 1);
        check_locks(&judge, seed);
        let (mut steps, mut model) = (Dice::new(seed), Model::new());
        for _ in 0..done {
            let step = next(&mut steps, &model);
            apply(&mut model, &step);
        }
        let home = format!("/home{seed}");
        let there = look(&judge, &home);
        let step = next(&mut steps, &model);
        let mut further = model.clone();
        apply(&mut further, &step);
        assert!(there == model || there == further, "client {seed} after {done} steps, in {step:?}");
        remove(&judge, &home, &there);
    }
    until("no message is on its way", || shared.service.messages() == 0);
    assert_eq!((judge.names("/"), shared.service.processes()), (vec!["shared".to_owned()], 1));
    drop(judge);
    until("the last session ends", || shared.service.sessions() == 0 && shared.service.processes() == 0);
    shared.server.stop().stop();
    shared.server.wait();
    shared.service.mount().unmount().unwrap();
    drop(shared.service);
    let device = nvmed_stack::open_device(&spec, Open::Existing { locked_by_run: false }).unwrap();
    let found = nvmed_check::fsck(&device).unwrap();
    assert!(found.is_empty(), "{found:?}");
    device.shutdown().unwrap();
    std::fs::remove_file(image).unwrap();
}

#[test]
fn a_stopped_client_blocks_nobody() {
    if std::env::var(SEED).is_ok() {
        return;
    }
    let shared = serve();
    let judge = Client::connect(&shared);
    judge.close(judge.create("/shared"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "play", "--nocapture", "--quiet"]);
    command.env(SEED, "7").env(SERVER_VARIABLE, shared.address.to_string());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = child.stderr.take().unwrap();
    let pid = Pid::from_child(&child);
    for round in 0..50 {
        said.read_exact(&mut [0; 20]).expect("it goes on");
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        // Names only: a call that it has begun is done all the same, and may take one of the files away.
        judge.names("/home7");
        let file = judge.create("/home7/judge");
        judge.pwrite(file, round * 100, &[1; 100]);
        assert_eq!(judge.call(&Call::Sync { handle: file, data_only: false }), Answer::Done);
        judge.close(file);
        assert_eq!(judge.call(&Call::SyncAll), Answer::Done);
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Nobody else is there: every lock is to be had.
fn check_locks(judge: &Client, seed: u64) {
    let file = judge.open("/shared", OpenFlags::READ_WRITE).unwrap();
    for class in [LockClass::Process, LockClass::Whole] {
        let kind = Some(LockKind::Exclusive);
        let taken = judge.call(&Call::Lock { handle: file, class, range: LockRange::ALL, kind });
        assert_eq!(taken, Answer::Done, "client {seed} left a lock");
    }
    judge.close(file);
}

fn remove(judge: &Client, home: &str, there: &Model) {
    for name in there.keys() {
        let path = format!("{home}/{name}");
        assert_eq!(judge.call(&Call::Unlink { at: Handle::ROOT, path: path.as_bytes() }), Answer::Done);
    }
    assert_eq!(judge.call(&Call::Rmdir { at: Handle::ROOT, path: home.as_bytes() }), Answer::Done);
}
