//! Rows of completion policies: what waiting costs.

use crate::row::{Contender, Goal, Row};
use nvmed_engine::Segment;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_flash::{FixedProfile, Profile};
use nvmed_io::{
    Binding, Completions, Device, DeviceOptions, Handle, HandleSettings, IoError, Measured as Cost,
};
use nvmed_lab::machine::{now_ns, process_cpu_ns, thread_cpu_ns};
use nvmed_lab::samples::Samples;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: usize = 5;
const BLOCK: u32 = 4096;
const DEVICE_BYTES: u64 = 16 << 20;
/// How long an idle device is looked at.
const IDLE: Duration = Duration::from_secs(3);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A device whose reads take `read_ns`, a handle, and a page.
struct Slow {
    handle: Handle,
    page: Segment,
}

impl Slow {
    fn new(clock: Clock, read_ns: u64, completion: Completions) -> Result<Self, String> {
        let drive = Some(Profile::fixed(FixedProfile { read_ns, ..FixedProfile::default() }));
        let config = ControllerConfig { clock, drive, ..ControllerConfig::default() };
        let media = Media::ram(DEVICE_BYTES, Pages::Huge).map_err(text)?;
        let transport = InProcess::new(Controller::new(config, media)).map_err(text)?;
        let engine = NvmeEngine::open(Arc::new(transport)).map_err(text)?;
        let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: 32 }).map_err(text)?;
        let memory = Arc::new(Mapping::anonymous(BLOCK as usize, Pages::Base).map_err(text)?);
        let address = device.map(memory).map_err(text)?;
        let handle = device.handle(Binding::Queue(0));
        handle.set(HandleSettings { completion, ..handle.settings() }).map_err(text)?;
        Ok(Self { handle, page: Segment { address, bytes: BLOCK } })
    }

    fn reads(&self, count: u64) -> Result<(), String> {
        let one = |at: u64| self.handle.read(Lba(at * 8 % 4096), &[self.page]);
        (0..count).try_for_each(one).map_err(|error: IoError| text(error))
    }

    /// What `count` reads cost, after as many that teach the policy.
    fn cost(&self, count: u64) -> Result<Cost, String> {
        self.reads(count)?;
        self.handle.measure(true);
        self.reads(count)?;
        self.handle.measured().ok_or_else(|| "a handle that measures has measured".to_owned())
    }
}

/// Processor time and median latency of the hybrid policy beside polling's.
fn hybrid(
    names: [&str; 2],
    clock: Clock,
    read_ns: u64,
    count: u64,
    cpu: fn(&Cost) -> u64,
    conditions: &str,
) -> Result<Vec<Row>, String> {
    let poll = Slow::new(clock, read_ns, Completions::Poll)?;
    let hybrid = Slow::new(clock, read_ns, Completions::Hybrid)?;
    let mut cpus = [Samples::default(), Samples::default()];
    let mut medians = [Samples::default(), Samples::default()];
    for _ in 0..ROUNDS {
        for (index, slow) in [&hybrid, &poll].into_iter().enumerate() {
            let cost = slow.cost(count)?;
            cpus[index].push(cpu(&cost) as f64 / count as f64 / 1e3);
            medians[index].push(cost.latency.percentile_ns(50.0) as f64 / 1e3);
        }
    }
    let row = |name: &str, samples: &[Samples; 2], most: f64| Row {
        name: name.to_owned(),
        unit: "us",
        ours: Contender { name: "hybrid".to_owned(), samples: samples[0].clone() },
        rival: Some(Contender { name: "poll".to_owned(), samples: samples[1].clone() }),
        goal: Goal::Ratio(most),
        flushes_per_op: None,
        conditions: conditions.to_owned(),
    };
    Ok(vec![row(names[0], &cpus, 0.4), row(names[1], &medians, 1.15)])
}

/// A medium of 200 us, in real time.
pub fn hybrid_real() -> Result<Vec<Row>, String> {
    hybrid(
        ["io.hybrid.cpu_200us", "io.hybrid.latency_200us"],
        Clock::Threaded,
        200_000,
        1000,
        |cost| cost.cpu_ns,
        "4 KiB reads of a 200 us medium, depth 1, the device in a thread; processor time of the calling thread a read, \
         and median latency; 1000 reads a round after 1000 that teach",
    )
}

/// A medium of 50 us, in virtual time.
pub fn hybrid_virtual() -> Result<Vec<Row>, String> {
    hybrid(
        ["io.hybrid.cpu_50us_virtual", "io.hybrid.latency_50us_virtual"],
        Clock::Virtual,
        50_000,
        1000,
        Cost::looked_ns,
        "4 KiB reads of a 50 us medium, depth 1, in virtual time: a look costs 50 ns of it; time spent looking, which \
         is what a processor is kept busy for, and median latency",
    )
}

/// What the completion thread costs while nothing is asked for.
pub fn thread_idle() -> Result<Vec<Row>, String> {
    let slow = Slow::new(Clock::Threaded, 20_000, Completions::Thread)?;
    let mut shares = Samples::default();
    for _ in 0..3 {
        slow.reads(100)?;
        let (cpu, begin) = (process_cpu_ns(), now_ns());
        std::thread::sleep(IDLE);
        shares.push(100.0 * (process_cpu_ns() - cpu) as f64 / (now_ns() - begin) as f64);
    }
    Ok(vec![Row {
        name: "io.thread.idle_cpu".to_owned(),
        unit: "% of a core",
        ours: Contender {
            name: "process with a completion thread and a device thread".to_owned(),
            samples: shares,
        },
        rival: None,
        goal: Goal::Figure(1.0),
        flushes_per_op: None,
        conditions: "after 100 reads by the completion thread, nothing is asked for during 3 s".to_owned(),
    }])
}

/// What the calling thread uses while it sleeps for an interrupt.
pub fn interrupt() -> Result<Vec<Row>, String> {
    let slow = Slow::new(Clock::Threaded, 200_000_000, Completions::Interrupt)?;
    let mut shares = Samples::default();
    for _ in 0..ROUNDS {
        let (cpu, begin) = (thread_cpu_ns(), now_ns());
        slow.reads(1)?;
        shares.push(100.0 * (thread_cpu_ns() - cpu) as f64 / (now_ns() - begin) as f64);
    }
    Ok(vec![Row {
        name: "io.interrupt.wait_cpu".to_owned(),
        unit: "% of the wait",
        ours: Contender { name: "calling thread".to_owned(), samples: shares },
        rival: None,
        // Submission, two context switches and the wait's end: microseconds of 200 ms.
        goal: Goal::Figure(0.1),
        flushes_per_op: None,
        conditions: "one 4 KiB read of a 200 ms medium, the device in a thread".to_owned(),
    }])
}
