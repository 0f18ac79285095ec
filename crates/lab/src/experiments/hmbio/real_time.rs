//! Urgent requests in real time: our driver and a virtual drive with a thread of its own, beside the model's figures.

use super::device::{Device, Inside, WINDOWS};
use super::host::{Host, Load, Pace};
use super::matrix::{mean, percentile, prepared};
use super::path::Path;
use super::workload::{UrgentRequest, Workload};
use crate::cell::Cell;
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use nvmed_dice::Dice;
use nvmed_engine::nvme::{NvmeEngine, NvmeOptions};
use nvmed_flash::UNIT_BYTES;
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{
    Binding, Device as IoDevice, DeviceOptions, Flight, Handle, Operation, Request, Segment, Source, Ticket,
};
use nvmed_nvme::{DriveLog, LogPage};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Clock, Controller, ControllerConfig, HostMemoryConfig, InProcess, Media};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

const WORKLOADS: [&str; 2] = ["Amazon", "CallIn"];
/// Urgent requests of a run.
const REQUESTS: [usize; 2] = [40, 300];
/// The part of the data that is there: it is written before, in real time.
const PART: u64 = 256;
/// Requests of the load, by one thread, and entries of its queue: one thread of a machine with two processors keeps no
/// more of them under way.
const LOAD: Load = Load { threads: 1, depth: 1000, before_ns: 30_000_000 };
const QUEUE_DEPTH: u16 = 1024;
const SEED: u64 = 1;
/// The queue of the load, and that of the path *reserved*.
const SHARED: usize = 0;
const RESERVED: usize = 1;
/// Slots of HMB-I/O, and bytes of the memory that they are of.
const SLOTS: u16 = 64;
const LENT_BYTES: u64 = 32 << 20;
/// Bytes of one request of what fills the drive, and of the memory of all requests, which has room for the longest.
const FILL_BYTES: u32 = 1 << 20;
const MEMORY_BYTES: u32 = 16 << 20;
/// Whoever has nothing to do until later than this gives its processor away.
const NAP: Duration = Duration::from_micros(100);

const MEAN: &str = "mean ms, real over virtual time";
const P99: &str = "p99 ms, real over virtual time";
/// What is judged, since it knows no time: commands that went by slots, over the requests of the path.
const BY_SLOTS: &str = "commands by slots, over requests";

/// A driver with a drive that is full, and the memory of requests.
struct Rig {
    device: Arc<IoDevice>,
    memory: Segment,
    units: u64,
}

impl Rig {
    /// A drive with slots for whoever asks, and a driver that asks or does not.
    fn new(drive: &Device, hmb_io_slots: u16) -> Result<Self, LabError> {
        let failed = |what: String| LabError::missing(format!("no drive in real time: {what}"));
        let bytes = drive.units * UNIT_BYTES;
        let lent = HostMemoryConfig {
            bytes: LENT_BYTES,
            bytes_min: 4096,
            entries_max: 16,
            map_percent: 0,
            read_percent: 0,
            write_percent: 0,
        };
        let config = ControllerConfig {
            clock: Clock::Threaded,
            lba_bytes: UNIT_BYTES as u32,
            drive: Some(drive.profile.clone()),
            host_memory: Some(lent),
            hmb_io_slots: SLOTS,
            ..ControllerConfig::default()
        };
        let media = Media::null(bytes).map_err(|error| failed(error.to_string()))?;
        let transport =
            InProcess::new(Controller::new(config, media)).map_err(|error| failed(error.to_string()))?;
        let options = NvmeOptions { hmb_io_slots, ..NvmeOptions::default() };
        let engine =
            NvmeEngine::open_with(Arc::new(transport), options).map_err(|error| failed(error.to_string()))?;
        let options = DeviceOptions { queues: 2, depth: QUEUE_DEPTH };
        let device = IoDevice::open(Arc::new(engine), options).map_err(|error| failed(error.to_string()))?;
        let memory = Mapping::anonymous(MEMORY_BYTES as usize, Pages::Base);
        let memory = memory.map_err(|errno| LabError::Host { what: "memory".to_owned(), errno })?;
        let address = device.map(Arc::new(memory)).map_err(|error| failed(error.to_string()))?;
        let rig = Self { device, memory: Segment { address, bytes: MEMORY_BYTES }, units: drive.units };
        rig.fill().map_err(failed)?;
        rig.device.expect_urgent(Source::Told);
        Ok(rig)
    }

    /// Writes every unit once, one after another.
    fn fill(&self) -> Result<(), String> {
        let handle = self.device.handle(Binding::Queue(SHARED));
        let data = [Segment { bytes: FILL_BYTES, ..self.memory }];
        let step = u64::from(FILL_BYTES) / UNIT_BYTES;
        for unit in (0..self.units).step_by(step as usize) {
            let blocks = step.min(self.units - unit);
            let part = Segment { bytes: (blocks * UNIT_BYTES) as u32, ..data[0] };
            handle.write(Lba(unit), &[part], false).map_err(|error| error.to_string())?;
        }
        handle.flush().map_err(|error| error.to_string())
    }

    /// The handle of a path, and whether its caller is urgent.
    fn way(&self, path: Path) -> (Handle, Urgency) {
        match path {
            Path::Normal => (self.device.handle(Binding::Queue(SHARED)), Urgency::Normal),
            Path::Reserved => (self.device.handle(Binding::Queue(RESERVED)), Urgency::Normal),
            Path::Wrr | Path::HmbIo => (self.device.handle(Binding::Queue(SHARED)), Urgency::Urgent),
        }
    }

    /// Commands that went by slots so far.
    fn by_slots(&self) -> u64 {
        let mut log = DriveLog::new_zeroed();
        let read = self.device.engine().log_page(LogPage::DRIVE.0, log.as_mut_bytes());
        read.map_or(0, |()| log.hmb_io_reads + log.hmb_io_writes)
    }

    /// Latencies of the requests beside the load, in ms.
    fn run(&self, path: Path, requests: &[UrgentRequest]) -> Result<Vec<f64>, LabError> {
        let (is_over, is_full) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| self.load(&is_over, &is_full));
            while !is_full.load(Ordering::Acquire) {
                std::thread::sleep(NAP);
            }
            std::thread::sleep(Duration::from_nanos(LOAD.before_ns));
            let (handle, urgency) = self.way(path);
            let served = caller::with(urgency, || self.serve(&handle, requests));
            is_over.store(true, Ordering::Release);
            served
        })
    }

    /// Keeps reads of units at random under way until it is over.
    fn load(&self, is_over: &AtomicBool, is_full: &AtomicBool) {
        let handle = self.device.handle(Binding::Queue(SHARED));
        let data = [Segment { bytes: UNIT_BYTES as u32, ..self.memory }];
        let mut dice = Dice::of(&[SEED, 0x7265_616c]);
        let mut underway: VecDeque<Ticket> = VecDeque::with_capacity(LOAD.depth as usize);
        while !is_over.load(Ordering::Acquire) {
            let lba = Lba(dice.roll(self.units));
            let request =
                Request { operation: Operation::Read, lba, blocks: 1, data: &data, tag: 0, stream: 0 };
            if let Ok(ticket) = handle.submit(&request) {
                underway.push_back(ticket);
            }
            if underway.len() < LOAD.depth as usize {
                continue;
            }
            is_full.store(true, Ordering::Release);
            let oldest = underway.pop_front().map(|ticket| handle.wait(ticket));
            if oldest.is_some_and(|done| done.is_err()) {
                break;
            }
        }
        is_full.store(true, Ordering::Release);
        handle.drain();
    }

    /// Makes each request when it says; answers how long each took, in ms.
    fn serve(&self, handle: &Handle, requests: &[UrgentRequest]) -> Result<Vec<f64>, LabError> {
        let begin = Instant::now();
        let mut underway: Vec<(usize, Duration, Flight)> = Vec::new();
        let (mut next, mut took) = (0, vec![f64::NAN; requests.len()]);
        while next < requests.len() || !underway.is_empty() {
            let now = begin.elapsed();
            let arrival = requests.get(next).map(|request| Duration::from_nanos(request.arrival_ns));
            if arrival.is_some_and(|arrival| arrival <= now) {
                underway.push((next, arrival.unwrap_or(now), self.flight(&requests[next])));
                next += 1;
            } else if underway.is_empty() && arrival.is_some_and(|arrival| arrival > now + NAP) {
                std::thread::sleep(arrival.map_or(NAP, |arrival| arrival - now - NAP / 2));
                continue;
            }
            let mut failed = None;
            underway.retain_mut(|(number, arrival, flight)| {
                flight.submit(handle);
                flight.poll(handle);
                if !flight.is_landed() {
                    return true;
                }
                failed = failed.or(flight.result().err());
                took[*number] = (begin.elapsed() - *arrival).as_secs_f64() * 1e3;
                false
            });
            if let Some(error) = failed {
                return Err(LabError::missing(format!("a request failed: {error}")));
            }
            std::thread::yield_now();
        }
        Ok(took)
    }

    /// A request that nobody has sent. The drive is smaller than the trace's: places repeat.
    fn flight(&self, request: &UrgentRequest) -> Flight {
        let blocks = request.bytes.div_ceil(UNIT_BYTES).min(u64::from(MEMORY_BYTES) / UNIT_BYTES);
        let operation = if request.is_write { Operation::Write { fua: false } } else { Operation::Read };
        let memory = Segment { bytes: (blocks * UNIT_BYTES) as u32, ..self.memory };
        let mut flight = Flight::new(operation, Some(memory));
        let (mut at, mut left) = (request.start / UNIT_BYTES % self.units, blocks);
        while left > 0 {
            let some = left.min(self.units - at);
            flight.push(Lba(at), some);
            (at, left) = ((at + some) % self.units, left - some);
        }
        flight
    }
}

/// Figure 7 for two workloads, in real time.
pub(crate) struct RealTime;

impl Experiment for RealTime {
    fn id(&self) -> &'static str {
        "hmbio.real_time"
    }

    fn what(&self) -> &'static str {
        "urgent requests beside a load by four paths, by our driver in real time, beside the model's figures"
    }

    fn goal(&self) -> Goal {
        // What needs more than eight slots goes by the urgent queue.
        Goal::AtLeast(0.9)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        (cell.column == BY_SLOTS).then_some(self.goal())
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let drive = Device::of_part(WINDOWS[0], Inside::FIRST, PART)?;
        let (with_slots, without) = (Rig::new(&drive, SLOTS)?, Rig::new(&drive, 0)?);
        let mut cells = Vec::new();
        for name in WORKLOADS {
            let count = REQUESTS[usize::from(!effort.quick)];
            let requests = prepared(&Workload::named(name)?, &drive, SEED, count)?;
            for path in Path::ALL {
                let rig = if path == Path::Wrr { &without } else { &with_slots };
                let before = rig.by_slots();
                let real = rig.run(path, &requests)?;
                let told = Host::new(&drive, path, LOAD, SEED)?.run(&requests, Pace::AsTold);
                let told: Vec<f64> = told.served.iter().map(|one| one.latency_ns as f64 / 1e6).collect();
                let row = format!("{name}, {}", path.name());
                cells.push(Cell::new(&row, MEAN, mean(&told), mean(&real)));
                cells.push(Cell::new(&row, P99, percentile(told, 99.0), percentile(real, 99.0)));
                if path == Path::HmbIo {
                    let by_slots = rig.by_slots() - before;
                    cells.push(Cell::new(&row, BY_SLOTS, requests.len() as f64, by_slots as f64));
                }
            }
        }
        let method = format!(
            "real time: our driver, a drive of the profile hmbio with a thread of its own and no bytes, which is full; \
             window of {}, 16 places for urgent commands and the first rank; one thread keeps {} reads of 4 KiB at \
             random under way; paths share the drive, in turns. Beside it the model in virtual time",
            WINDOWS[0], LOAD.depth
        );
        let limits = vec![
            "no time is judged: the load's thread, the drive's and the urgent one share this machine's processors, \
             and a thread that has no processor counts as latency"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_hmb_io_go_by_slots() {
        let outcome = crate::run(&RealTime, &Effort { quick: true });
        assert!(outcome.met, "{}", outcome.line());
        // By four paths: mean and p99, and what went by slots.
        assert_eq!(outcome.cells.len(), WORKLOADS.len() * (2 * Path::ALL.len() + 1));
    }
}
