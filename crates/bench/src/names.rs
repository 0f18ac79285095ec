//! Rows of names and metadata: status, listings, renames, space, and durable creation by many threads.

use crate::mounted::{KernelFs, Mounted};
use crate::ours::{CREATE, Image, LIST, WHO, format, mount, text};
use crate::row::{Contender, Goal, Row, better};
use nvmed_dice::Dice;
use nvmed_fs::{Allocate, Follow, FormatOptions, RenameFlags};
use nvmed_lab::machine::{now_ns, thread_cpu_ns};
use nvmed_lab::medium::Zram;
use nvmed_lab::samples::Samples;
use nvmed_stack::{DeviceSpec, Mount};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::path::Path;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const ROUNDS: usize = 11;

/// Directories above the file of the status row.
const DEPTH: usize = 9;
const STATS: u64 = 100_000;

/// `stat` of a cached path of ten components.
pub fn stat() -> Result<Vec<Row>, String> {
    let image = Image::formatted("stat", GIB, &FormatOptions::default())?;
    let ours = mount(&image.spec, 64 * MIB)?;
    let tmpfs = Mounted::new(KernelFs::Tmpfs)?;
    let root = ours.root();
    let mut path = String::new();
    for level in 0..DEPTH {
        path.push_str(&format!("directory{level}/"));
        ours.mkdir(&root, path.as_bytes(), 0o755, WHO).map_err(text)?;
    }
    path.push_str("the-file");
    ours.open(&root, path.as_bytes(), CREATE, 0o644, WHO).map_err(text)?;
    let file = tmpfs.dir.join(&path);
    std::fs::create_dir_all(file.parent().ok_or("the file lies in a directory")?).map_err(text)?;
    std::fs::write(&file, b"").map_err(text)?;
    let directory = rustix::fs::open(&tmpfs.dir, OFlags::DIRECTORY, Mode::empty()).map_err(text)?;
    let c_path = std::ffi::CString::new(path.as_str()).map_err(text)?;
    let (mut a, mut b) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let begin = now_ns();
        for _ in 0..STATS {
            std::hint::black_box(ours.stat(&root, path.as_bytes(), Follow::Yes, WHO).map_err(text)?);
        }
        let middle = now_ns();
        for _ in 0..STATS {
            std::hint::black_box(rustix::fs::statat(&directory, &*c_path, AtFlags::empty()).map_err(text)?);
        }
        a.push((middle - begin) as f64 / STATS as f64);
        b.push((now_ns() - middle) as f64 / STATS as f64);
    }
    ours.unmount().map_err(text)?;
    Ok(vec![Row {
        name: "fs.stat_depth10".into(),
        unit: "ns",
        ours: Contender { name: "nvmed, library".into(), samples: a },
        rival: Some(Contender { name: "fstatat on tmpfs".into(), samples: b }),
        goal: Goal::Ratio(0.3),
        flushes_per_op: None,
        conditions: format!(
            "a path of ten components from an open directory, cached; {ROUNDS} rounds of {STATS} in turns"
        ),
    }])
}

const ENTRIES: usize = 100_000;

/// Listing a directory of 100,000 files.
pub fn readdir() -> Result<Vec<Row>, String> {
    let image = Image::formatted("readdir", 4 * GIB, &FormatOptions::default())?;
    let ours = mount(&image.spec, 64 * MIB)?;
    let tmpfs = Mounted::new(KernelFs::Tmpfs)?;
    let root = ours.root();
    ours.mkdir(&root, b"many", 0o755, WHO).map_err(text)?;
    let directory = tmpfs.dir.join("many");
    std::fs::create_dir(&directory).map_err(text)?;
    for index in 0..ENTRIES {
        // Not in the order of their names.
        let name = format!("file-{:08x}", (index as u32).wrapping_mul(0x9e37_79b1));
        ours.open(&root, format!("many/{name}").as_bytes(), CREATE, 0o644, WHO).map_err(text)?;
        std::fs::write(directory.join(&name), b"").map_err(text)?;
    }
    let (mut a, mut b) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let begin = now_ns();
        let mut count = 0;
        let open = ours.open(&root, b"many", LIST, 0, WHO).map_err(text)?;
        open.read_dir(&mut |entry| {
            count += usize::from(!std::hint::black_box(entry.name).starts_with(b"."));
            ControlFlow::Continue(())
        })
        .map_err(text)?;
        let middle = now_ns();
        let kernel = list(&directory)?;
        let end = now_ns();
        if (count, kernel) != (ENTRIES, ENTRIES) {
            return Err(format!("listed {count} and {kernel} of {ENTRIES} entries"));
        }
        a.push((middle - begin) as f64 / ENTRIES as f64);
        b.push((end - middle) as f64 / ENTRIES as f64);
    }
    ours.unmount().map_err(text)?;
    Ok(vec![Row {
        name: "fs.readdir_100k".into(),
        unit: "ns",
        ours: Contender { name: "nvmed, library".into(), samples: a },
        rival: Some(Contender { name: "getdents64 on tmpfs".into(), samples: b }),
        goal: Goal::Ratio(1.0),
        flushes_per_op: None,
        conditions: format!(
            "opening and listing a directory of {ENTRIES} files, per entry; {ROUNDS} rounds in turns"
        ),
    }])
}

/// Entries of a kernel's directory, without `.` and `..`, by calls of 32 KiB as libc makes.
fn list(directory: &Path) -> Result<usize, String> {
    let open = rustix::fs::open(directory, OFlags::DIRECTORY, Mode::empty()).map_err(text)?;
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(open, &mut buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(text)?;
        count += usize::from(!std::hint::black_box(entry.file_name()).to_bytes().starts_with(b"."));
    }
    Ok(count)
}

/// The most CPU that a rename may take, in milliseconds.
const RENAME_MS: f64 = 5.0;
const ZONES: u64 = 100;

/// Renames of directories around the zone bound.
pub fn renames() -> Result<Vec<Row>, String> {
    let image = Image::formatted("renames", 4 * GIB, &FormatOptions::default())?;
    let ours = mount(&image.spec, 64 * MIB)?;
    let bound = u64::from(ours.superblock().zone_bound);
    let fill = |directory: &str, files: u64| -> Result<(), String> {
        ours.mkdir(&ours.root(), directory.as_bytes(), 0o755, WHO).map_err(text)?;
        for index in 0..files {
            let path = format!("{directory}/file-with-a-name-{index:06}");
            ours.open(&ours.root(), path.as_bytes(), CREATE, 0o644, WHO).map_err(text)?;
        }
        Ok(())
    };
    fill("below", bound.saturating_sub(1).max(1))?;
    fill("above", bound + 1)?;
    ours.mkdir(&ours.root(), b"hundred", 0o755, WHO).map_err(text)?;
    for zone in 0..ZONES {
        fill(&format!("hundred/zone{zone}"), bound + 1)?;
    }
    let rows = ["below", "above", "hundred"].map(|which| rename(&ours, which, bound));
    ours.unmount().map_err(text)?;
    rows.into_iter().collect()
}

fn rename(ours: &Mount, which: &str, bound: u64) -> Result<Row, String> {
    let root = ours.root();
    let mut samples = Samples::default();
    let (mut from, mut to) = (which.to_owned(), format!("{which}-renamed"));
    for _ in 0..ROUNDS {
        let batches = ours.store_stats().batches;
        let begin = thread_cpu_ns();
        ours.rename(&root, from.as_bytes(), &root, to.as_bytes(), RenameFlags::Replace, WHO).map_err(text)?;
        samples.push((thread_cpu_ns() - begin) as f64 / 1e6);
        let commits = ours.store_stats().batches - batches;
        if commits != 1 {
            return Err(format!("the rename of `{which}` took {commits} commits"));
        }
        std::mem::swap(&mut from, &mut to);
    }
    Ok(Row {
        name: format!("fs.rename_{which}"),
        unit: "ms",
        ours: Contender { name: "nvmed, one commit each".into(), samples },
        rival: None,
        goal: Goal::Figure(RENAME_MS),
        flushes_per_op: None,
        conditions: format!("CPU time of one rename, zone bound {bound}, {ROUNDS} renames to and fro"),
    })
}

const FILES: u64 = 1_000_000;
const PER_DIRECTORY: u64 = 1000;

/// Bytes of metadata for a million files with paths of 60 bytes.
pub fn space() -> Result<Vec<Row>, String> {
    let image = Image::formatted("space", 16 * GIB, &FormatOptions::default())?;
    let ours = mount(&image.spec, 64 * MIB)?;
    let root = ours.root();
    let before = ours.store_stats().tree_blocks_used;
    for index in 0..FILES {
        let directory = format!("archive/of-documents/number-{:05}", index / PER_DIRECTORY);
        if index == 0 {
            for above in ["archive", "archive/of-documents"] {
                ours.mkdir(&root, above.as_bytes(), 0o755, WHO).map_err(text)?;
            }
        }
        if index % PER_DIRECTORY == 0 {
            ours.mkdir(&root, directory.as_bytes(), 0o755, WHO).map_err(text)?;
        }
        // The order of names is not the order of creation.
        let path =
            format!("{directory}/a-document-{:010x}.text", index.wrapping_mul(0x9e37_79b9) & 0xff_ffff_ffff);
        debug_assert_eq!(path.len(), 60);
        let file = ours.open(&root, path.as_bytes(), CREATE, 0o644, WHO).map_err(text)?;
        file.fallocate(Allocate::default(), 0, 4096).map_err(text)?;
    }
    ours.unmount().map_err(text)?;
    // A held node holds the device.
    drop((root, ours));
    let ours = mount(&image.spec, 64 * MIB)?;
    let used = ours.store_stats().tree_blocks_used - before;
    ours.unmount().map_err(text)?;
    let samples: Samples = [(used * 4096) as f64 / FILES as f64].into_iter().collect();
    Ok(vec![Row {
        name: "fs.metadata_bytes".into(),
        unit: "bytes",
        ours: Contender { name: "nvmed, after a clean unmount".into(), samples },
        rival: None,
        goal: Goal::Figure(200.0),
        flushes_per_op: None,
        conditions: format!(
            "{FILES} files of one 4 KiB extent, paths of 60 bytes, {PER_DIRECTORY} a directory; blocks of the tree, \
             one run: a count"
        ),
    }])
}

const THREADS: usize = 8;
const FILES_A_THREAD: usize = 1000;
const CREATE_ROUNDS: usize = 5;

/// Creation and fsync by eight threads, each in a directory of its own.
pub fn create_many() -> Result<Vec<Row>, String> {
    let zram = Zram::new(3 * GIB)?;
    let spec = DeviceSpec::parse(&format!("uring:{}", zram.device().display())).map_err(text)?;
    format(&spec, None, &FormatOptions::default())?;
    let ours = mount(&spec, 256 * MIB)?;
    let places = Mounted::kernel()?;
    let mut own = Samples::default();
    let mut kernel: Vec<Samples> = places.iter().map(|_| Samples::default()).collect();
    let before = ours.store_stats();
    for round in 0..CREATE_ROUNDS {
        own.push(rate(|thread| create_ours(&ours, round, thread))?);
        for (place, samples) in places.iter().zip(&mut kernel) {
            samples.push(rate(|thread| create_kernel(&place.dir, round, thread))?);
        }
    }
    let after = ours.store_stats();
    ours.unmount().map_err(text)?;
    let created = (CREATE_ROUNDS * THREADS * FILES_A_THREAD) as f64;
    let rivals: Vec<Contender> = places
        .iter()
        .zip(kernel)
        .map(|(place, samples)| Contender { name: place.name.to_owned(), samples })
        .collect();
    Ok(vec![Row {
        name: "fs.create_fsync_8t".into(),
        unit: "us",
        ours: Contender { name: "nvmed on zram by io_uring".into(), samples: own },
        rival: better(&rivals),
        goal: Goal::Ratio(0.2),
        flushes_per_op: Some(
            (after.flushes + after.log_appends - before.flushes - before.log_appends) as f64 / created,
        ),
        conditions: format!(
            "create, write 4 KiB, fsync, close; {THREADS} threads of {FILES_A_THREAD} files, elapsed time a file; a \
             log append counts as a flush, it has FUA; {CREATE_ROUNDS} rounds in turns"
        ),
    }])
}

/// Microseconds a file when each thread makes its files.
fn rate(thread: impl Fn(usize) -> Result<(), String> + Sync) -> Result<f64, String> {
    let begin = now_ns();
    std::thread::scope(|scope| {
        let thread = &thread;
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || thread(number))).collect();
        threads.into_iter().try_for_each(|done| done.join().map_err(|_| "a thread panicked")?)
    })?;
    Ok((now_ns() - begin) as f64 / 1e3 / (THREADS * FILES_A_THREAD) as f64)
}

fn create_ours(ours: &Mount, round: usize, thread: usize) -> Result<(), String> {
    let root = ours.root();
    let directory = format!("round{round}-thread{thread}");
    ours.mkdir(&root, directory.as_bytes(), 0o755, WHO).map_err(text)?;
    for index in 0..FILES_A_THREAD {
        let path = format!("{directory}/file{index}");
        let file = ours.open(&root, path.as_bytes(), CREATE, 0o644, WHO).map_err(text)?;
        file.write(&block(index)).map_err(text)?;
        file.fsync().map_err(text)?;
    }
    Ok(())
}

fn create_kernel(dir: &Path, round: usize, thread: usize) -> Result<(), String> {
    use std::io::Write;
    let directory = dir.join(format!("round{round}-thread{thread}"));
    std::fs::create_dir(&directory).map_err(text)?;
    for index in 0..FILES_A_THREAD {
        let mut file = std::fs::File::create_new(directory.join(format!("file{index}"))).map_err(text)?;
        file.write_all(&block(index)).map_err(text)?;
        file.sync_all().map_err(text)?;
    }
    Ok(())
}

/// 4 KiB that do not compress.
fn block(index: usize) -> [u8; 4096] {
    let mut block = [0; 4096];
    Dice::new(index as u64).fill(&mut block);
    block
}
