//! A workload that checks itself, on any engine: what was written by seed is read back, by another queue,
//! after a flush, and after a reset of the controller.
//!
//! As `conformance`, it takes devices from `NVMED_TEST_DEVICES`, whose contents are destroyed, and otherwise
//! makes one in memory. `SEED=N` replays a run. `verify --outside DEVICE` has the device read into memory that
//! it was not given, and prints where that was: whether it was stopped is for the IOMMU's log to say.
//! `verify --until-gone DEVICE` reads until the device is taken away.

use nvmed_dice::Dice;
use nvmed_engine::{Completion, Engine, Operation, QueueOptions, QueuePair, Request, Segment, Waited};
use nvmed_stack::{DeviceSpec, Open, open_engine};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;

/// The part of the device that is used, in bytes, and the units in which it is written.
const SPAN: u64 = 8 << 20;
const UNIT: u64 = 4096;
const UNITS: u64 = SPAN / UNIT;
/// Units of one request at most, and requests in flight.
const RUN_UNITS_MAX: u64 = 32;
const DEPTH: u16 = 16;
/// One wait, and how many in vain are a device that does not answer: 20 s.
const WAIT_US: u32 = 100_000;
const WAITS_MAX: u32 = 200;

/// The bytes of unit `unit` in its `generation`.
fn fill(unit: u64, generation: u64, bytes: &mut Vec<u8>) {
    let mut words = Dice::new(unit << 32 ^ generation);
    bytes.extend((0..UNIT / 8).flat_map(|_| words.next().to_le_bytes()));
}

struct Workload {
    engine: Arc<dyn Engine>,
    memory: Arc<Mapping>,
    base: DeviceAddress,
    /// The generation of every unit: 0 was never written here.
    model: Vec<u64>,
    random: Dice,
}

/// Bytes of the memory of one request.
const SLOT: u64 = RUN_UNITS_MAX * UNIT;

impl Workload {
    fn new(engine: Arc<dyn Engine>, seed: u64) -> Self {
        let bytes = (SLOT * u64::from(DEPTH)) as usize;
        let memory = Arc::new(engine.memory(bytes, Pages::Huge).expect("memory"));
        let base = engine.map(Arc::clone(&memory)).expect("memory is mapped");
        Self { engine, memory, base, model: vec![0; UNITS as usize], random: Dice::new(seed) }
    }

    /// Cuts all units into runs, in a random order.
    fn runs(&mut self) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < UNITS {
            let len = (1 + self.random.roll(RUN_UNITS_MAX)).min(UNITS - at);
            runs.push((at, len));
            at += len;
        }
        for index in (1..runs.len()).rev() {
            runs.swap(index, self.random.roll(index as u64 + 1) as usize);
        }
        runs
    }

    /// Sends one request a run, as many at once as there are slots; `done` looks at the memory of each.
    fn drive(
        &self,
        pair: &mut dyn QueuePair,
        operation: Operation,
        runs: &[(u64, u64)],
        done: impl Fn(usize, u64, u64),
    ) {
        let lba_bytes = u64::from(self.engine.geometry().lba_bytes);
        let mut out: Vec<Completion> = Vec::with_capacity(DEPTH.into());
        let mut free: Vec<u64> = (0..u64::from(DEPTH)).collect();
        let mut waiting = runs.iter();
        let mut flying = vec![(0, 0); DEPTH.into()];
        loop {
            while let Some(slot) = free.pop() {
                let Some(&(unit, len)) = waiting.next() else {
                    free.push(slot);
                    break;
                };
                let data = [Segment { address: self.base.plus(slot * SLOT), bytes: (len * UNIT) as u32 }];
                self.prepare(operation, slot, unit, len);
                let (lba, blocks) = (Lba(unit * UNIT / lba_bytes), (len * UNIT / lba_bytes) as u32);
                let request = Request { operation, lba, blocks, data: &data, tag: slot, stream: 0 };
                pair.submit(&request).expect("a slot is free");
                flying[slot as usize] = (unit, len);
            }
            pair.ring();
            if free.len() == usize::from(DEPTH) {
                return;
            }
            self.reap(pair, &mut out);
            for completion in out.drain(..) {
                completion.result.unwrap_or_else(|error| panic!("{error}"));
                let (unit, len) = flying[completion.tag as usize];
                done((completion.tag * SLOT) as usize, unit, len);
                free.push(completion.tag);
            }
        }
    }

    fn prepare(&self, operation: Operation, slot: u64, unit: u64, len: u64) {
        let at = (slot * SLOT) as usize;
        if operation == Operation::Read {
            return self.memory.fill(at, (len * UNIT) as usize, 0xa5);
        }
        let mut bytes = Vec::new();
        (unit..unit + len).for_each(|unit| fill(unit, self.model[unit as usize], &mut bytes));
        self.memory.write(at, &bytes);
    }

    fn reap(&self, pair: &mut dyn QueuePair, out: &mut Vec<Completion>) {
        let mut quiet = 0;
        loop {
            let seen = self.engine.events(pair.vector());
            if pair.poll(out) > 0 {
                return;
            }
            quiet += u32::from(self.engine.wait(pair.vector(), seen, WAIT_US) == Waited::Timeout);
            assert!(quiet < WAITS_MAX, "no completion for 20 s");
        }
    }

    /// Writes a share of all runs anew.
    fn write(&mut self, pair: &mut dyn QueuePair, generation: u64, every: u64) {
        let runs: Vec<_> = self.runs().into_iter().filter(|_| self.random.roll(every) == 0).collect();
        for &(unit, len) in &runs {
            self.model[unit as usize..(unit + len) as usize].fill(generation);
        }
        self.drive(pair, Operation::Write { fua: false }, &runs, |_, _, _| {});
    }

    /// Reads everything and compares it with the model.
    fn verify(&mut self, pair: &mut dyn QueuePair, when: &str) {
        let runs = self.runs();
        self.drive(pair, Operation::Read, &runs, |at, unit, len| {
            let (mut found, mut wanted) = (vec![0; (len * UNIT) as usize], Vec::new());
            self.memory.read(at, &mut found);
            (unit..unit + len).for_each(|unit| fill(unit, self.model[unit as usize], &mut wanted));
            let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
            assert_eq!(wrong, None, "{when}: byte of {len} units from unit {unit}");
        });
    }

    fn flush(&self, pair: &mut dyn QueuePair) {
        let flush =
            Request { operation: Operation::Flush, lba: Lba(0), blocks: 0, data: &[], tag: 7, stream: 0 };
        pair.submit(&flush).expect("a slot is free");
        pair.ring();
        let mut out = Vec::with_capacity(1);
        self.reap(pair, &mut out);
        out[0].result.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn open(device: &str) -> Arc<dyn Engine> {
    let spec = DeviceSpec::parse(device).unwrap_or_else(|error| panic!("{device}: {error}"));
    open_engine(&spec, Open::Existing { locked_by_run: false }).unwrap_or_else(|error| panic!("{error}"))
}

/// The workload; whether the engine has a reset, too.
fn run(device: &str, seed: u64) -> bool {
    let engine = open(device);
    let queue = || engine.queue(QueueOptions::depth(DEPTH)).expect("a queue");
    let (mut first, mut second) = (queue(), queue());
    let mut work = Workload::new(Arc::clone(&engine), seed);
    work.write(&mut *first, 1, 1);
    work.verify(&mut *first, "as it was written");
    work.verify(&mut *second, "by another queue");
    work.write(&mut *second, 2, 3);
    work.flush(&mut *second);
    work.verify(&mut *first, "after a flush");
    let reset = engine.reset().is_ok();
    if reset {
        work.verify(&mut *first, "after a reset");
        work.write(&mut *first, 3, 2);
        work.verify(&mut *second, "written after a reset");
    }
    engine.unmap(work.base);
    reset
}

/// Has the device write into memory that is mapped no more.
fn outside(device: &str) {
    let engine = open(device);
    let mut pair = engine.queue(QueueOptions::depth(DEPTH)).expect("a queue");
    let work = Workload::new(Arc::clone(&engine), 1);
    work.memory.fill(0, UNIT as usize, 0x5a);
    engine.unmap(work.base);
    let data = [Segment { address: work.base, bytes: UNIT as u32 }];
    let blocks = (UNIT / u64::from(engine.geometry().lba_bytes)) as u32;
    let read = Request { operation: Operation::Read, lba: Lba(0), blocks, data: &data, tag: 1, stream: 0 };
    pair.submit(&read).expect("a slot is free");
    pair.ring();
    let mut out = Vec::with_capacity(1);
    work.reap(&mut *pair, &mut out);
    let mut bytes = vec![0; UNIT as usize];
    work.memory.read(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0x5a), "the device wrote where it must not");
    println!("{:x}", work.base.0);
}

/// Reads until the device is gone, as one that its kernel wants back must be, and prints what is said then.
fn until_gone(device: &str) {
    let engine = open(device);
    let mut pair = engine.queue(QueueOptions::depth(DEPTH)).expect("a queue");
    let work = Workload::new(Arc::clone(&engine), 1);
    let data = [Segment { address: work.base, bytes: UNIT as u32 }];
    let blocks = (UNIT / u64::from(engine.geometry().lba_bytes)) as u32;
    let read = Request { operation: Operation::Read, lba: Lba(0), blocks, data: &data, tag: 1, stream: 0 };
    let mut out = Vec::with_capacity(1);
    println!("reading");
    loop {
        if let Err(error) = pair.submit(&read) {
            return println!("{error}");
        }
        pair.ring();
        while pair.outstanding() > 0 {
            let seen = engine.events(pair.vector());
            if pair.poll(&mut out) > 0 {
                break;
            }
            if engine.wait(pair.vector(), seen, WAIT_US) == Waited::Timeout {
                pair.check();
            }
        }
        if let Some(Err(error)) = out.drain(..).map(|completion| completion.result).next() {
            return println!("{error}");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [flag, device] if flag == "--outside" => return outside(device),
        [flag, device] if flag == "--until-gone" => return until_gone(device),
        _ => {}
    }
    if arguments.iter().any(|argument| argument == "--list") {
        return println!("verify: test");
    }
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let devices = std::env::var("NVMED_TEST_DEVICES");
    for device in devices.unwrap_or_else(|_| "virtual:?media=dram,size=16M".to_owned()).split_whitespace() {
        println!("verify {device}: SEED={seed}");
        let reset = run(device, seed);
        println!("ok     {device}: {SPAN} bytes verified{}", if reset { ", over a reset" } else { "" });
    }
}
