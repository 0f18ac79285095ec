//! The row of files that are mapped where they lie: what the first touch of a mapped file costs.

use crate::files::ROUNDS;
use crate::ours::text;
use crate::row::{Contender, Goal, Row};
use nvmed_fs::{
    Credentials, File, FileSystem, FormatOptions, Lies, MapPiece, Mapped, Mapper, MemoryLayout, MountOptions,
    MountParts, OpenFlags,
};
use nvmed_io::{Device, DeviceOptions};
use nvmed_lab::samples::Samples;
use nvmed_nvm::{FlushTo, Memory, MemoryOptions, NvmEngine, Place};
use nvmed_sys::{Mapping, Pages};
use rustix::fd::AsFd;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The row.
pub const NAME: &str = "nvm.map_touch";

/// Bytes of the medium, and of the file on it.
const MEDIUM_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;

/// The file does not change while it is mapped.
struct Still;

impl Mapper for Still {
    fn show(&self, _ino: u64, _piece: &MapPiece) {}

    fn stored_to(&self, _ino: u64) -> Option<Range<u64>> {
        None
    }
}

/// A file of [`FILE_BYTES`] on memory.
fn file() -> Result<(FileSystem, Arc<File>), String> {
    let place = Place::Ram { bytes: MEDIUM_BYTES };
    let memory = Arc::new(Memory::open(MemoryOptions { place, flush: FlushTo::Process }).map_err(text)?);
    let engine = NvmEngine::over(Arc::clone(&memory), 512);
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: 32 }).map_err(text)?;
    FileSystem::format(&device, &FormatOptions::default()).map_err(text)?;
    let layout = MemoryLayout::new(1 << 20);
    let mapping = Arc::new(Mapping::anonymous(layout.total_bytes(), Pages::Base).map_err(text)?);
    let memory_of_mount = nvmed_fs::Memory { mapping, layout };
    let options = MountOptions::default();
    let parts = MountParts { device, bytes: Some(memory), memory: memory_of_mount, options };
    let files = FileSystem::mount(parts).map_err(text)?;
    files.map_in_place_by(Arc::new(Still));
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), b"file", flags, 0o644, &Credentials::ROOT).map_err(text)?;
    let written = file.pwrite(&vec![1; FILE_BYTES as usize], 0).map_err(text)?;
    if written as u64 != FILE_BYTES {
        return Err(format!("{written} bytes of {FILE_BYTES} were written"));
    }
    file.fsync().map_err(text)?;
    Ok((files, file))
}

/// Touches each page of a mapping.
fn touch(mapping: &Mapping) {
    let mut byte = [0];
    (0..mapping.len()).step_by(PAGE).for_each(|at| mapping.read(at, &mut byte));
}

/// Nanoseconds a page of a map in place, each of its pages touched once, and its end.
fn in_place(file: &File) -> Result<f64, String> {
    let begin = Instant::now();
    let Mapped::InPlace(medium) = file.map_range(false, 0..FILE_BYTES).map_err(text)? else {
        return Err("the file is not mapped where it lies".to_owned());
    };
    let mut pieces = Vec::new();
    file.lay_out(false, 0..FILE_BYTES, &mut |piece| pieces.push(*piece)).map_err(text)?;
    for piece in pieces {
        let Lies::At(at) = piece.lies else { return Err(format!("{piece:?} has no data")) };
        touch(&Mapping::read_only(medium.as_fd(), at, piece.bytes as usize, Pages::Base).map_err(text)?);
    }
    file.unmap(false).map_err(text)?;
    Ok(begin.elapsed().as_nanos() as f64 / (FILE_BYTES / PAGE as u64) as f64)
}

/// The same of memory of its own.
fn copied(file: &File) -> Result<f64, String> {
    let begin = Instant::now();
    let memory = file.map(false).map_err(text)?;
    touch(&Mapping::read_only(memory.fd.as_fd(), 0, FILE_BYTES as usize, Pages::Base).map_err(text)?);
    file.unmap(false).map_err(text)?;
    Ok(begin.elapsed().as_nanos() as f64 / (FILE_BYTES / PAGE as u64) as f64)
}

/// Mapping a file, the first touch of each of its pages, and unmapping it: where it lies, against memory of its own,
/// which is a copy.
///
/// # Errors
/// What the file system answers.
pub fn touches() -> Result<Vec<Row>, String> {
    let (_files, file) = file()?;
    let (mut ours, mut rival) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        ours.push(in_place(&file)?);
        rival.push(copied(&file)?);
    }
    Ok(vec![Row {
        name: NAME.to_owned(),
        unit: "ns",
        ours: Contender { name: "mapped where it lies".to_owned(), samples: ours },
        rival: Some(Contender { name: "a copy in memory of its own".to_owned(), samples: rival }),
        goal: Goal::Ratio(0.5),
        flushes_per_op: None,
        conditions: format!(
            "a page of 4 KiB of a file of {FILE_BYTES} bytes on memory, flush=process: mapped to be read, touched \
             once, unmapped; one thread, by calls of the file system; {ROUNDS} rounds, alternating"
        ),
    }])
}
