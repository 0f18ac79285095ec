//! Rows of the driver with the inline controller: no file system, no cache.

use crate::files::ROUNDS;
use crate::row::{Contender, Goal, Row};
use nvmed_dice::Dice;
use nvmed_engine::Segment;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_io::{Binding, Device, DeviceOptions, Handle};
use nvmed_lab::medium::Zram;
use nvmed_lab::samples::Samples;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use rustix::fs::{Mode, OFlags};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the random set: far beyond the processor's caches.
pub(crate) const SET_BYTES: u64 = 1 << 30;
/// Operations of one slice, and slices of one round; the round's figure is the median slice.
pub(crate) const OPS: usize = 20_000;
pub(crate) const SLICES: usize = 15;
pub(crate) const BLOCK: usize = 4096;

/// A device over `media` and one page of memory that it reaches.
fn device(media: Media) -> Result<(Handle, Segment), String> {
    let controller = Controller::new(ControllerConfig::default(), media);
    let transport = InProcess::new(controller).map_err(|error| error.to_string())?;
    let engine = NvmeEngine::open(Arc::new(transport)).map_err(|error| error.to_string())?;
    let options = DeviceOptions { queues: 1, depth: 32 };
    let device = Device::open(Arc::new(engine), options).map_err(|error| error.to_string())?;
    let page = Arc::new(Mapping::anonymous(BLOCK, Pages::Base).map_err(|error| error.to_string())?);
    let address = device.map(page).map_err(|error| error.to_string())?;
    Ok((device.handle(Binding::Queue(0)), Segment { address, bytes: BLOCK as u32 }))
}

/// The median slice of `one`, called with a random block number, in nanoseconds a call.
pub(crate) fn round(mut one: impl FnMut(u64) -> Result<(), String>) -> Result<f64, String> {
    let blocks = SET_BYTES / BLOCK as u64;
    let mut dice = Dice::new(1);
    let mut slices = Samples::default();
    for _ in 0..SLICES {
        let begin = Instant::now();
        for _ in 0..OPS {
            one(dice.roll(blocks))?;
        }
        slices.push(begin.elapsed().as_nanos() as f64 / OPS as f64);
    }
    Ok(slices.median())
}

fn read_round(handle: &Handle, page: Segment) -> Result<f64, String> {
    let lbas = u64::from(handle.device().geometry().lba_bytes);
    round(|block| handle.read(Lba(block * BLOCK as u64 / lbas), &[page]).map_err(|error| error.to_string()))
}

/// Random 4 KiB reads at depth 1: the whole driver and an inline controller over memory, against the
/// kernel's direct reads of a zram disk with incompressible data.
pub fn randread() -> Result<Vec<Row>, String> {
    let zram = Zram::filled(SET_BYTES)?;
    let (handle, page) = device(Media::ram(SET_BYTES, Pages::Huge).map_err(|error| error.to_string())?)?;
    touch(&handle, page)?;
    let direct = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let fd = rustix::fs::open(zram.device(), direct, Mode::empty()).map_err(|error| error.to_string())?;
    let buffer = Mapping::anonymous(BLOCK, Pages::Base).map_err(|error| error.to_string())?;
    let (mut ours, mut rival) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        ours.push(read_round(&handle, page)?);
        rival.push(round(|block| direct_read(&fd, &buffer, block))?);
    }
    Ok(vec![Row {
        name: "driver.randread_4k".to_owned(),
        unit: "ns",
        ours: Contender { name: "driver + inline controller, DRAM medium".to_owned(), samples: ours },
        rival: Some(Contender { name: "pread O_DIRECT on zram".to_owned(), samples: rival }),
        goal: Goal::Ratio(0.4),
        flushes_per_op: None,
        conditions: format!(
            "4 KiB random reads of {SET_BYTES} bytes, depth 1, one thread; {ROUNDS} rounds, median of {SLICES} slices \
             of {OPS}"
        ),
    }])
}

/// One command without its data copy.
pub fn nocopy() -> Result<Vec<Row>, String> {
    let (handle, page) = device(Media::null(SET_BYTES).map_err(|error| error.to_string())?)?;
    let ours = (0..ROUNDS).map(|_| read_round(&handle, page)).collect::<Result<Samples, _>>()?;
    Ok(vec![Row {
        name: "driver.command_without_copy".to_owned(),
        unit: "ns",
        ours: Contender { name: "driver + inline controller, null medium".to_owned(), samples: ours },
        rival: None,
        goal: Goal::Figure(100.0),
        flushes_per_op: None,
        conditions: format!(
            "4 KiB reads, depth 1, media=null, through an I/O handle; {ROUNDS} rounds, median of {SLICES} slices of \
             {OPS}"
        ),
    }])
}

/// Writes every block once, so that no read meets a page that was never there.
fn touch(handle: &Handle, page: Segment) -> Result<(), String> {
    let lbas = u64::from(handle.device().geometry().lba_bytes);
    for block in 0..SET_BYTES / BLOCK as u64 {
        let lba = Lba(block * BLOCK as u64 / lbas);
        handle.write(lba, &[page], false).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[allow(unsafe_code, reason = "a page-aligned buffer for O_DIRECT is raw memory")]
fn direct_read(fd: &rustix::fd::OwnedFd, buffer: &Mapping, block: u64) -> Result<(), String> {
    use rustix::fd::AsRawFd;
    // SAFETY: `buffer` is a mapping of at least `BLOCK` bytes that lives during the call.
    let n =
        unsafe { libc::pread(fd.as_raw_fd(), buffer.address().cast(), BLOCK, (block * BLOCK as u64) as i64) };
    if n == BLOCK as isize { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}
