//! What a call of a shared mount costs, and a cached read, beside tmpfs in the same run:
//! `shared_cost [SET_MIB]...` (default 1 and 64). The server is a process of its own, without durability.

use nvmed_client::{Address, File, Session};
use nvmed_dice::Dice;
use nvmed_fs::{Follow, OpenFlags};
use nvmed_server::{Admission, Server, Service};
use nvmed_stack::{Config, DeviceSpec, Surroundings};
use nvmed_wire::Board;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const SLICES: usize = 15;
const OPS: usize = 20_000;

fn serve(bytes: u64) {
    let size = bytes * 2 + (256 << 20);
    let spec = DeviceSpec::parse(&format!("virtual:?media=dram,size={size}")).expect("a device");
    let mut config = Config::new(PathBuf::from("/"), spec);
    config.format = true;
    config.cache_bytes = 256 << 20;
    config.writeback_seconds = 0;
    let mount = nvmed_stack::mount(&config, Surroundings::default()).expect("a mount");
    let address = Address::random().expect("randomness");
    let admission = Admission::Secret(address.secret().try_into().expect("a secret"));
    let board = Arc::new(Board::new().expect("memory"));
    let service = Service::new(mount, admission, board, bytes + (64 << 20));
    let server = Server::start(Arc::new(service), &address).expect("a server");
    println!("{address}");
    let _ = std::io::stdin().read_line(&mut String::new());
    server.stop().stop();
    server.wait();
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn percentiles(what: &str, mut ns: Vec<u64>) {
    ns.sort_unstable();
    let at = |share: f64| ns[((ns.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    println!("{what}: median {:.2} us, p10 {:.2}, p90 {:.2}, p99 {:.2}", at(0.5), at(0.1), at(0.9), at(0.99));
}

fn timed(act: impl FnOnce()) -> u64 {
    let begun = Instant::now();
    act();
    begun.elapsed().as_nanos() as u64
}

fn round_trips(session: &Session, file: &File) {
    let stat = || {
        black_box(file.stat().expect("a status"));
    };
    (0..1000).for_each(|_| stat());
    percentiles("round trip (fstat), both running", (0..200_000).map(|_| timed(stat)).collect());
    let after = |pause: Duration| {
        (0..1000)
            .map(|_| {
                std::thread::sleep(pause);
                timed(stat)
            })
            .collect()
    };
    percentiles("round trip (fstat), both parked, a call each 0.2 ms", after(Duration::from_micros(200)));
    percentiles("round trip (fstat), both parked, a call each 3 ms", after(Duration::from_millis(3)));
    let root = session.files().root();
    let names = || {
        black_box(session.files().stat(&root, b"file", Follow::Yes).expect("a status"));
    };
    percentiles("stat of a name, both running", (0..50_000).map(|_| timed(names)).collect());
    let write = || {
        black_box(file.pwrite(&[1; PAGE], 0).expect("a write"));
    };
    percentiles("pwrite of 4 KiB, both running", (0..50_000).map(|_| timed(write)).collect());
    let log = session.files().open(&root, b"log", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o600);
    let log = log.expect("a file");
    let read = || {
        black_box(log.pread(&mut [0; PAGE], 0).expect("a read"));
    };
    percentiles("pread of nothing by a call, both running", (0..50_000).map(|_| timed(read)).collect());
    let open = || {
        drop(black_box(session.files().open(&root, b"file", OpenFlags::READ, 0).expect("a file")));
    };
    percentiles("open and close, both running", (0..50_000).map(|_| timed(open)).collect());
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let note = || {
        let file = session.files().open(&root, b"note", flags, 0o600).expect("a file");
        file.write(&[1; 100]).expect("a write");
    };
    percentiles(
        "open, write of 100 bytes and close, both running",
        (0..50_000).map(|_| timed(note)).collect(),
    );
}

fn fill(bytes: u64, write: impl Fn(&[u8], u64)) {
    let chunk: Vec<u8> = (0..1 << 20).map(|byte| (byte / 4096) as u8).collect();
    for offset in (0..bytes).step_by(1 << 20) {
        write(&chunk, offset);
    }
}

fn slice(bytes: u64, dice: &mut Dice, read: &dyn Fn(&mut [u8], u64)) -> f64 {
    let mut into = [0; PAGE];
    let begun = Instant::now();
    for _ in 0..OPS {
        read(&mut into, dice.roll(bytes / PAGE as u64) * PAGE as u64);
        black_box(&mut into);
    }
    begun.elapsed().as_nanos() as f64 / OPS as f64
}

fn reads(session: &Session, bytes: u64) {
    let root = session.files().root();
    let file = session
        .files()
        .open(&root, b"set", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o600)
        .expect("a file");
    fill(bytes, |chunk, offset| assert_eq!(file.pwrite(chunk, offset).expect("a write"), chunk.len()));
    let path = format!("/dev/shm/nvmed-shared-cost-{}", std::process::id());
    let rival = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("its name");
    fill(bytes, |chunk, offset| rival.write_all_at(chunk, offset).expect("a write"));
    let ours = |into: &mut [u8], offset| assert_eq!(file.pread(into, offset).expect("a read"), PAGE);
    let theirs = |into: &mut [u8], offset| assert_eq!(rival.read_at(into, offset).expect("a read"), PAGE);
    let mut into = [0; PAGE];
    for offset in (0..bytes).step_by(PAGE).cycle().take((bytes as usize / PAGE) * 2) {
        ours(&mut into, offset);
        theirs(&mut into, offset);
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let mut dice = Dice::new(88_172_645_463_325_252);
    for _ in 0..SLICES {
        a.push(slice(bytes, &mut dice, &ours));
        b.push(slice(bytes, &mut dice, &theirs));
    }
    let (a, b) = (median(a), median(b));
    println!("pread of 4 KiB of {} MiB: {a:.0} ns, tmpfs {b:.0} ns, ratio {:.2}", bytes >> 20, a / b);
    session.files().unlink(&root, b"set").expect("its name");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "serve") {
        return serve(arguments[1].parse().expect("bytes"));
    }
    let sets: Vec<u64> = arguments.iter().map(|mib| mib.parse::<u64>().expect("MiB") << 20).collect();
    let sets = if sets.is_empty() { vec![1 << 20, 64 << 20] } else { sets };
    let most = sets.iter().max().expect("a set").to_string();
    let own = std::env::current_exe().expect("this program");
    let mut server = Command::new(own)
        .args(["serve", &most])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut line = String::new();
    let _ = BufReader::new(server.stdout.take().expect("its output")).read_line(&mut line);
    let session = Session::connect(&Address::parse(line.trim()).expect("its address")).expect("a session");
    let file = session
        .files()
        .open(&session.files().root(), b"file", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o600)
        .expect("a file");
    round_trips(&session, &file);
    for bytes in sets {
        reads(&session, bytes);
    }
    if let Some(mut stdin) = server.stdin.take() {
        let _ = stdin.write_all(b"\n");
    }
    let _ = server.wait();
}
