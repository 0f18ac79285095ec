//! Rows of memory as a device, by its block path: each command is a copy in the caller's thread.

use crate::driver::{BLOCK, OPS, SET_BYTES, SLICES, round};
use crate::files::ROUNDS;
use crate::ours::text;
use crate::row::{Contender, Goal, Row};
use nvmed_engine::Segment;
use nvmed_io::{Binding, Device, DeviceOptions, Handle};
use nvmed_lab::samples::Samples;
use nvmed_lab::undo::{self, HostResource};
use nvmed_nvm::{FlushTo, MemoryOptions, NvmEngine, NvmOptions, Place};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rows.
pub const NAMES: [&str; 4] = ["nvm.randread_4k", "nvm.randwrite_4k", "nvm.flush", "nvm.commit_4k"];

/// Bytes of the set of commits: they are of a file on a disk.
const COMMIT_BYTES: u64 = 64 << 20;
/// Commits of a round.
const COMMITS: u64 = 200;

/// A file, removed when dropped.
struct File(PathBuf);

impl File {
    fn new(dir: &Path) -> Self {
        let path = dir.join(format!("nvmed-bench-{}-nvm.img", std::process::id()));
        undo::made(&HostResource::File(path.clone()));
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        undo::undo(&HostResource::File(self.0.clone()));
    }
}

/// A file as memory, whose commands go through a handle, and the same file for the rival.
struct Bench {
    handle: Handle,
    page: Arc<Mapping>,
    segment: Segment,
    /// The rival's page.
    other: Mapping,
    fd: OwnedFd,
}

impl Bench {
    fn new(path: &Path, bytes: u64, flush: FlushTo) -> Result<Self, String> {
        let place = Place::File { path: path.to_owned(), size: Some(bytes), lock: true };
        let options = NvmOptions { memory: MemoryOptions { place, flush }, lba_bytes: 512 };
        let engine = NvmEngine::open(options).map_err(text)?;
        let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: 32 }).map_err(text)?;
        let page = Arc::new(Mapping::anonymous(BLOCK, Pages::Base).map_err(text)?);
        let segment = Segment { address: device.map(Arc::clone(&page)).map_err(text)?, bytes: BLOCK as u32 };
        let other = Mapping::anonymous(BLOCK, Pages::Base).map_err(text)?;
        other.fill(0, BLOCK, 1);
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(text)?;
        let bench = Self { handle: device.handle(Binding::Queue(0)), page, segment, other, fd };
        // No read meets a page that was never there.
        bench.page.fill(0, BLOCK, 1);
        (0..bytes / BLOCK as u64).try_for_each(|block| bench.write(block))?;
        Ok(bench)
    }

    /// On memory that another mapping of the same file shows the rival, every page of it present.
    fn with_rival() -> Result<(Self, Mapping, File), String> {
        let file = File::new(Path::new("/dev/shm"));
        let bench = Self::new(&file.0, SET_BYTES, FlushTo::Process)?;
        let rival = Mapping::shared(bench.fd.as_fd(), 0, SET_BYTES as usize, Pages::Base).map_err(text)?;
        rival.populate(0, SET_BYTES as usize);
        Ok((bench, rival, file))
    }

    fn lba(block: u64) -> Lba {
        Lba(block * BLOCK as u64 / 512)
    }

    fn read(&self, block: u64) -> Result<(), String> {
        self.handle.read(Self::lba(block), &[self.segment]).map_err(text)
    }

    fn write(&self, block: u64) -> Result<(), String> {
        self.handle.write(Self::lba(block), &[self.segment], false).map_err(text)
    }
}

fn conditions() -> String {
    format!(
        "4 KiB at random of {SET_BYTES} bytes of a file in /dev/shm, flush=process, depth 1, one thread, through an \
         I/O handle; {ROUNDS} rounds, median of {SLICES} slices of {OPS}"
    )
}

fn row(name: &str, ours: Samples, rival: Option<(&str, Samples)>, goal: Goal) -> Row {
    Row {
        name: name.to_owned(),
        unit: "ns",
        ours: Contender { name: "nvm, a file as memory".to_owned(), samples: ours },
        rival: rival.map(|(name, samples)| Contender { name: name.to_owned(), samples }),
        goal,
        flushes_per_op: None,
        conditions: conditions(),
    }
}

/// Random 4 KiB reads and writes against a copy from and to another mapping of the same file, page sizes and offsets
/// alike; and a flush, which is a command without a copy.
pub fn copies() -> Result<Vec<Row>, String> {
    let (bench, rival, _file) = Bench::with_rival()?;
    let [mut reads, mut copies_out, mut writes, mut copies_in, mut flushes] =
        [(); 5].map(|()| Samples::default());
    for _ in 0..ROUNDS {
        reads.push(round(|block| bench.read(block))?);
        copies_out.push(round(|block| {
            rival.copy(block as usize * BLOCK, &bench.other, 0, BLOCK);
            Ok(())
        })?);
        writes.push(round(|block| bench.write(block))?);
        copies_in.push(round(|block| {
            bench.other.copy(0, &rival, block as usize * BLOCK, BLOCK);
            Ok(())
        })?);
        flushes.push(round(|_| bench.handle.flush().map_err(text))?);
    }
    Ok(vec![
        row(NAMES[0], reads, Some(("memcpy from the same file's mapping", copies_out)), Goal::Ratio(1.3)),
        row(NAMES[1], writes, Some(("memcpy to the same file's mapping", copies_in)), Goal::Ratio(1.3)),
        row(NAMES[2], flushes, None, Goal::Figure(100.0)),
    ])
}

/// A 4 KiB write and its flush to the host's stable storage, against `pwrite` and `fdatasync` of the same file.
pub fn commit() -> Result<Vec<Row>, String> {
    let file = File::new(&std::env::temp_dir());
    let bench = Bench::new(&file.0, COMMIT_BYTES, FlushTo::Host)?;
    bench.handle.flush().map_err(text)?;
    let blocks = COMMIT_BYTES / BLOCK as u64;
    let bytes = [1; BLOCK];
    let timed = |one: &dyn Fn(u64) -> Result<(), String>| {
        let begin = std::time::Instant::now();
        (0..COMMITS).try_for_each(|turn| one(turn * 7919 % blocks))?;
        Ok::<f64, String>(begin.elapsed().as_nanos() as f64 / COMMITS as f64)
    };
    let (mut ours, mut rival) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        ours.push(timed(&|block| {
            bench.write(block)?;
            bench.handle.flush().map_err(text)
        })?);
        rival.push(timed(&|block| {
            rustix::io::pwrite(&bench.fd, &bytes, block * BLOCK as u64).map_err(text)?;
            rustix::fs::fdatasync(&bench.fd).map_err(text)
        })?);
    }
    let rival = Some(("pwrite and fdatasync of the same file", rival));
    let conditions = format!(
        "4 KiB write and flush, blocks of {COMMIT_BYTES} bytes that are allocated, of a file in {}, flush=host; \
         {ROUNDS} rounds of {COMMITS}",
        std::env::temp_dir().display()
    );
    Ok(vec![Row { conditions, ..row(NAMES[3], ours, rival, Goal::Ratio(1.1)) }])
}
