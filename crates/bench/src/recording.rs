//! Rows of recording in our own stack: what a command takes with a probe, beside the same without it.

use crate::ours::text;
use crate::row::{Contender, Goal, Row};
use nvmed_engine::Segment;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_io::{Binding, Device, DeviceOptions, Handle};
use nvmed_lab::machine::thread_cpu_ns;
use nvmed_lab::samples::Samples;
use nvmed_stamps::{Probe, Reader, Stamps};
use nvmed_sys::{Mapping, Pages, TickClock};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;

/// The rows: a probe each.
pub const NAMES: [&str; 3] = ["trace.record.handle", "trace.record.queue", "trace.record.device"];

/// The most that a probe may add to a command, nanoseconds: issue 17.
const MOST_NS: f64 = 50.0;
/// Slices of a contender, in turns with the other.
const ROUNDS: usize = 101;
/// Commands of a slice: fewer than a ring holds, which is emptied between two.
const COMMANDS: u64 = 16_384;
const BLOCK: usize = 4096;

/// A device without data, and a page that it reaches.
struct Bench {
    handle: Handle,
    page: Segment,
}

impl Bench {
    fn new(stamps: Option<&Arc<Stamps>>) -> Result<Self, String> {
        let config = ControllerConfig { stamps: stamps.cloned(), ..ControllerConfig::default() };
        let controller = Controller::new(config, Media::null(1 << 30).map_err(text)?);
        let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).map_err(text)?)).map_err(text)?;
        let engine: Arc<dyn nvmed_engine::Engine> = Arc::new(engine);
        let engine = stamps.map_or(Arc::clone(&engine), |stamps| nvmed_engine::recorded(engine, stamps));
        let device = Device::open(engine, DeviceOptions { queues: 1, depth: 32 }).map_err(text)?;
        stamps.iter().for_each(|stamps| device.record(stamps));
        let page = Arc::new(Mapping::anonymous(BLOCK, Pages::Base).map_err(text)?);
        let address = device.map(page).map_err(text)?;
        Ok(Self { handle: device.handle(Binding::Queue(0)), page: Segment { address, bytes: BLOCK as u32 } })
    }

    /// The processor's nanoseconds for a command of a slice.
    fn slice(&self) -> Result<f64, String> {
        let begin = thread_cpu_ns();
        for _ in 0..COMMANDS {
            self.handle.read(Lba(0), &[self.page]).map_err(text)?;
        }
        Ok((thread_cpu_ns() - begin) as f64 / COMMANDS as f64)
    }
}

/// What a look at the clock of the stamps takes, nanoseconds: a probe has two or three for each command.
fn look_ns(clock: TickClock) -> f64 {
    let begin = thread_cpu_ns();
    for _ in 0..COMMANDS {
        std::hint::black_box(clock.now());
    }
    (thread_cpu_ns() - begin) as f64 / COMMANDS as f64
}

/// One row a probe.
///
/// # Errors
/// The host has no memory; a request was lost, so that less was measured.
pub fn measure() -> Result<Vec<Row>, String> {
    NAMES.into_iter().zip(Probe::ALL).map(|(name, probe)| row(name, probe)).collect()
}

fn row(name: &str, probe: Probe) -> Result<Row, String> {
    let (stamps, _fd) = Stamps::create(&[probe], nvmed_stamps::REQUESTS_DEFAULT).map_err(text)?;
    let stamps = Arc::new(stamps);
    let mut reader = Reader::new(Arc::clone(&stamps));
    let (with, without) = (Bench::new(Some(&stamps))?, Bench::new(None)?);
    let (mut ours, mut rival) = (Samples::default(), Samples::default());
    let (mut found, mut looks) = (0, Samples::default());
    for _ in 0..ROUNDS {
        ours.push(with.slice()?);
        rival.push(without.slice()?);
        looks.push(look_ns(stamps.clock()));
        found += reader.drain(usize::MAX, &mut |_, _, _| ()).taken as u64;
    }
    if stamps.lost() > 0 || found != ROUNDS as u64 * COMMANDS {
        return Err(format!("{name}: {found} recorded, {} lost", stamps.lost()));
    }
    Ok(Row {
        name: name.to_owned(),
        unit: "ns",
        ours: Contender { name: format!("4 KiB read, recorded at the {}", probe.name()), samples: ours },
        rival: Some(Contender { name: "the same, not recorded".to_owned(), samples: rival }),
        goal: Goal::Excess(MOST_NS),
        flushes_per_op: None,
        conditions: format!(
            "handle, driver, inline controller, media=null, depth 1, one thread's processor time; {ROUNDS} slices of \
             {COMMANDS} in turns; rings emptied between them; a look at the clock of the stamps takes {:.1} ns here",
            looks.median()
        ),
    })
}
