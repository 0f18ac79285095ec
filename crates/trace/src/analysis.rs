//! What a trace is like, in one pass over its requests: Tables III and IV of IISWC'15, its distributions, and more.
//! docs/trace.md has the definitions.

mod bursts;
mod classes;
mod load;
mod part;
mod quantiles;
mod reuse;
mod sketch;
mod starts;
mod tally;
mod units;
mod working;

pub use bursts::Burstiness;
pub(crate) use classes::{SIZES, size_class};
pub use reuse::{HitRatio, ReuseDistances};
pub use working::{WindowSet, WorkingSet};

use crate::summary::{Depth, OTHERS, Part};
use crate::{Op, Provenance, Request, Summary};
use bursts::Bursts;
use load::Load;
use reuse::Reuse;
use starts::Starts;
use tally::{Context, Tally};
use working::Working;

/// Devices that are analysed: each takes some 10 KiB, and more where it is touched and where its times are.
const DEVICES_MAX: usize = 1 << 16;
/// Processes that are analysed each by itself, the one that is not told among them: each takes 4 KiB,
/// and more where its times are.
const PROCESSES_MAX: usize = 1 << 12;

/// Devices with reuse distances of their own.
const REUSE_DEVICES_MAX: u32 = 64;

/// An analysis that goes on. Its memory does not grow with the number of requests, but with the places that they touch,
/// up to a limit.
#[derive(Debug, Default)]
pub struct Analysis {
    devices: Vec<Option<Box<Device>>>,
    processes: Vec<Option<Box<Tally>>>,
    /// All processes beyond those.
    other_processes: Option<Box<Tally>>,
    starts_room: starts::Room,
    working_room: working::Room,
    quantiles_room: quantiles::Room,
    load_room: load::Room,
    reuse: Option<Reuse>,
    /// Devices that may still have reuse distances of their own.
    reuse_room: u32,
    out_of_order: u64,
    left_out: u64,
}

/// What a device's requests are to each other.
#[derive(Debug)]
struct Device {
    tally: Tally,
    starts: Starts,
    working: Working,
    bursts: Bursts,
    load: Load,
    reuse: Option<Box<Reuse>>,
    /// The end of the last read or write, in bytes.
    last_end: Option<u64>,
    /// The latest arrival of a read or write.
    last_arrival_ns: Option<u64>,
    /// When all that has arrived has finished, as far as that is known.
    busy_until_ns: Option<u64>,
    /// When all writes that have arrived have finished.
    writes_until_ns: u64,
}

impl Analysis {
    /// Finds reuse distances, too: some 150 to 400 ns more for each 4 KiB that is touched.
    #[must_use]
    pub fn with_reuse(self) -> Self {
        Self { reuse: Some(Reuse::default()), ..self }
    }

    /// Finds reuse distances of each device, too, of the first 64 that have requests: 30 MiB of memory each, where it
    /// touches much.
    #[must_use]
    pub fn with_reuse_of_devices(self) -> Self {
        Self { reuse_room: REUSE_DEVICES_MAX, ..self }
    }

    /// Takes the next request. Requests of one device come in the order of their arrivals.
    pub fn push(&mut self, request: &Request) {
        let number = request.device as usize;
        if number >= DEVICES_MAX {
            self.left_out += 1;
            return;
        }
        let device = slot(&mut self.devices, number)
            .get_or_insert_with(|| Box::new(Device::new(request, &mut self.reuse_room)));
        if device.last_arrival_ns.is_some_and(|last_ns| request.arrival_ns < last_ns) {
            self.out_of_order += 1;
        }
        let process = match request.process as usize {
            0 => None,
            process if process >= PROCESSES_MAX => Some(self.other_processes.get_or_insert_default()),
            process => Some(slot(&mut self.processes, process).get_or_insert_default()),
        };
        let depth = device.load.arrive(request, &mut self.load_room);
        if matches!(request.op, Op::Discard | Op::Flush) {
            device.tally.push_other(request);
            process.into_iter().for_each(|tally| tally.push_other(request));
        } else {
            let context = device.context(request, depth, &mut self.starts_room);
            let room = &mut self.quantiles_room;
            device.tally.push(request, &context, room);
            process.into_iter().for_each(|tally| tally.push(request, &context, room));
            device.bursts.push(request.arrival_ns);
            let touched = (request.offset, request.offset.saturating_add(request.bytes));
            device.working.touch(request.arrival_ns, touched, &mut self.working_room);
            self.reuse.iter_mut().chain(device.reuse.as_deref_mut()).for_each(|reuse| reuse.push(request));
        }
        device.after(request);
    }

    /// What the trace is like.
    #[must_use]
    pub fn finish(mut self) -> Summary {
        let mut all = Tally::default();
        let mut unsure_error = 0f64;
        let mut devices = Vec::new();
        for (number, device) in self.devices.into_iter().enumerate() {
            let Some(mut device) = device else { continue };
            // Those that only the sketch knows are hits but for the first of each.
            let (distinct, error) = device.starts.in_sketch();
            device.tally.hits += (device.tally.unsure as f64 - distinct).max(0.0).round() as u64;
            device.tally.unsure = 0;
            all.merge(&device.tally);
            unsure_error = unsure_error.hypot(error);
            devices.push(device.finish(number as u32, error, &mut self.load_room));
        }
        let processes = self.processes.into_iter().enumerate();
        let processes = processes.filter_map(|(number, tally)| Some(Part::of(number as u32, &*tally?, 0.0)));
        let others = self.other_processes.map(|tally| Part::of(OTHERS, &tally, 0.0));
        // What is found of devices only is, of one, found of all.
        let all = match devices.as_slice() {
            [only] => Part { number: 0, ..Part::clone(only) },
            _ => Part::of(0, &all, unsure_error),
        };
        Summary {
            all,
            devices,
            processes: processes.chain(others).collect(),
            reuse: self.reuse.map(Reuse::finish),
            out_of_order: self.out_of_order,
            left_out: self.left_out,
            provenance: Provenance::default(),
        }
    }
}

/// The place of a number in a list, which grows to have it.
#[inline]
fn slot<T>(list: &mut Vec<Option<T>>, number: usize) -> &mut Option<T> {
    if number >= list.len() {
        list.resize_with(number + 1, || None);
    }
    &mut list[number]
}

impl Device {
    /// A device with its first request, which it has not been told yet.
    fn new(first: &Request, reuse_room: &mut u32) -> Self {
        let has_reuse = *reuse_room > 0;
        *reuse_room -= u32::from(has_reuse);
        Self {
            reuse: has_reuse.then(Box::default),
            tally: Tally::default(),
            starts: Starts::default(),
            working: Working::new(first.arrival_ns),
            bursts: Bursts::new(first.arrival_ns),
            load: Load::default(),
            last_end: None,
            last_arrival_ns: None,
            busy_until_ns: None,
            writes_until_ns: 0,
        }
    }

    /// What a read or write is to those before it.
    #[inline]
    fn context(&mut self, request: &Request, depth: u64, room: &mut starts::Room) -> Context {
        let arrival_ns = request.arrival_ns;
        let by_times =
            request.finish_ns.map(|_| self.busy_until_ns.is_none_or(|busy_ns| arrival_ns >= busy_ns));
        Context {
            depth,
            gap_ns: self.last_arrival_ns.map(|last_ns| arrival_ns.saturating_sub(last_ns)),
            idle_ns: self.busy_until_ns.and_then(|busy_ns| arrival_ns.checked_sub(busy_ns)),
            sequential: self.last_end == Some(request.offset),
            seen: self.starts.seen(request.offset, room),
            no_wait: by_times.or(request.waited.map(|waited| !waited)),
            beside_write: self.writes_until_ns > arrival_ns,
            overlaps: request
                .start_ns
                .zip(self.busy_until_ns)
                .is_some_and(|(start_ns, busy_ns)| busy_ns > start_ns),
        }
    }

    /// A request is one of those before the next.
    #[inline]
    fn after(&mut self, request: &Request) {
        if let Some(finish_ns) = request.finish_ns {
            self.busy_until_ns = Some(self.busy_until_ns.map_or(finish_ns, |busy_ns| busy_ns.max(finish_ns)));
        }
        if matches!(request.op, Op::Discard | Op::Flush) {
            return;
        }
        if request.op == Op::Write {
            self.writes_until_ns = self.writes_until_ns.max(request.finish_ns.unwrap_or(0));
        }
        self.last_end = Some(request.offset.saturating_add(request.bytes));
        let last_ns = self.last_arrival_ns.unwrap_or(0);
        self.last_arrival_ns = Some(last_ns.max(request.arrival_ns));
    }

    /// What it was like.
    fn finish(self, number: u32, unsure_error: f64, room: &mut load::Room) -> Part {
        let span_ns = self.tally.span_ns();
        let busy_pct = 100.0 * self.load.finish(room) as f64 / (self.tally.duration_ns() as f64).max(1.0);
        let part = Part::of(number, &self.tally, unsure_error);
        Part {
            depth: part.depth.map(|depth| Depth { utilisation_pct: Some(busy_pct), ..depth }),
            burstiness: self.bursts.finish(self.tally.requests(), span_ns),
            working_set: Some(self.working.finish(span_ns)),
            reuse: self.reuse.map(|reuse| reuse.finish()),
            ..part
        }
    }
}
