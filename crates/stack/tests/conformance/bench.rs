//! What the checks share: an open engine, memory that it reaches, requests to their ends.

use nvmed_engine::{
    Completion, DeviceError, Engine, Geometry, InvalidRequest, Operation, QueueOptions, QueuePair, Request,
    Segment, SubmitError, Waited,
};
use nvmed_stack::{DeviceSpec, Open, open_engine};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;

/// One wait; and how many in vain are a device that does not answer.
const WAIT_US: u32 = 100_000;
const WAITS_MAX: u32 = 200;

/// An engine under test.
pub struct Bench {
    pub name: String,
    pub engine: Arc<dyn Engine>,
}

/// Memory that the device reaches while this lives.
pub struct Memory {
    pub mapping: Arc<Mapping>,
    pub base: DeviceAddress,
    engine: Arc<dyn Engine>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.engine.unmap(self.base);
    }
}

impl Memory {
    /// One segment.
    pub fn segment(&self, offset: usize, bytes: usize) -> Segment {
        Segment { address: self.base.plus(offset as u64), bytes: bytes as u32 }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mapping.read(offset, &mut bytes);
        bytes
    }
}

/// Bytes that name their place: block `lba` of generation `seed` looks like no other.
pub fn pattern(lba: u64, blocks: u64, lba_bytes: u32, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((blocks * u64::from(lba_bytes)) as usize);
    for block in lba..lba + blocks {
        for word in 0..u64::from(lba_bytes / 8) {
            let mut value = (block << 16 | word) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            value = (value ^ value >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bytes.extend_from_slice(&(value ^ value >> 29).to_le_bytes());
        }
    }
    bytes
}

/// A request on a device.
pub fn request(operation: Operation, lba: u64, blocks: u32, data: &[Segment], tag: u64) -> Request<'_> {
    Request { operation, lba: Lba(lba), blocks, data, tag, stream: 0 }
}

pub const WRITE: Operation = Operation::Write { fua: false };

impl Bench {
    pub fn open(name: &str) -> Self {
        let spec = DeviceSpec::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let open = match (spec.file(), spec.size_bytes()) {
            (Some(_), Some(bytes)) => Open::Create { bytes },
            _ => Open::Existing { locked_by_run: false },
        };
        let engine = open_engine(&spec, open).unwrap_or_else(|error| panic!("{name}: {error}"));
        let bench = Self { name: name.to_owned(), engine };
        assert!(bench.geometry().bytes() >= 32 << 20, "{name} is too small for the checks: 32 MiB");
        bench
    }

    pub fn geometry(&self) -> &Geometry {
        self.engine.geometry()
    }

    pub fn lba_bytes(&self) -> u32 {
        self.geometry().lba_bytes
    }

    /// `bytes` as blocks.
    pub fn blocks(&self, bytes: u64) -> u32 {
        (bytes / u64::from(self.lba_bytes())) as u32
    }

    pub fn memory(&self, bytes: usize) -> Memory {
        let mapping = Arc::new(self.engine.memory(bytes, Pages::Base).expect("memory"));
        let base = self.engine.map(Arc::clone(&mapping)).expect("memory is mapped");
        Memory { mapping, base, engine: Arc::clone(&self.engine) }
    }

    pub fn queue(&self, depth: u16) -> Box<dyn QueuePair> {
        let depth = depth.min(self.geometry().queue_depth_max);
        self.engine.queue(QueueOptions::depth(depth)).expect("a queue")
    }

    /// Polls and waits until `out` holds `wanted` completions.
    pub fn reap(&self, pair: &mut dyn QueuePair, out: &mut Vec<Completion>, wanted: usize) {
        out.reserve(wanted.saturating_sub(out.len()));
        let mut quiet = 0;
        while out.len() < wanted {
            let seen = self.engine.events(pair.vector());
            if pair.poll(out) > 0 {
                quiet = 0;
                continue;
            }
            quiet += u32::from(self.engine.wait(pair.vector(), seen, WAIT_US) == Waited::Timeout);
            assert!(quiet < WAITS_MAX, "{} of {wanted} completions came, then none for 20 s", out.len());
        }
    }

    /// One request, to its end.
    pub fn run(&self, pair: &mut dyn QueuePair, request: &Request<'_>) -> Result<(), DeviceError> {
        pair.submit(request).unwrap_or_else(|error| panic!("{error}"));
        pair.ring();
        let mut out = Vec::with_capacity(4);
        self.reap(pair, &mut out, 1);
        assert_eq!((out.len(), out[0].tag), (1, request.tag), "a completion of another request");
        assert_eq!(pair.outstanding(), 0);
        out[0].result
    }

    /// As [`Bench::run`], of an operation that a device need not have; whether it has.
    pub fn run_if_offered(&self, pair: &mut dyn QueuePair, request: &Request<'_>) -> bool {
        match pair.submit(request) {
            Err(SubmitError::Invalid { reason: InvalidRequest::Unsupported, .. }) => return false,
            other => other.unwrap_or_else(|error| panic!("{error}")),
        }
        pair.ring();
        let mut out = Vec::with_capacity(4);
        self.reap(pair, &mut out, 1);
        out[0].result.unwrap_or_else(|error| panic!("{error}"));
        true
    }

    /// Writes the pattern of `seed`.
    pub fn write(&self, pair: &mut dyn QueuePair, memory: &Memory, lba: u64, blocks: u32, seed: u64) {
        let bytes = pattern(lba, blocks.into(), self.lba_bytes(), seed);
        memory.mapping.write(0, &bytes);
        let data = [memory.segment(0, bytes.len())];
        self.run(pair, &request(WRITE, lba, blocks, &data, 1)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Reads blocks, through memory that held something else.
    pub fn read(&self, pair: &mut dyn QueuePair, memory: &Memory, lba: u64, blocks: u32) -> Vec<u8> {
        let bytes = blocks as usize * self.lba_bytes() as usize;
        memory.mapping.fill(0, bytes, 0xa5);
        let data = [memory.segment(0, bytes)];
        let read = request(Operation::Read, lba, blocks, &data, 2);
        self.run(pair, &read).unwrap_or_else(|error| panic!("{error}"));
        memory.bytes(0, bytes)
    }

    /// That blocks hold the pattern of `seed`.
    pub fn verify(&self, pair: &mut dyn QueuePair, memory: &Memory, lba: u64, blocks: u32, seed: u64) {
        let (found, wanted) =
            (self.read(pair, memory, lba, blocks), pattern(lba, blocks.into(), self.lba_bytes(), seed));
        let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "{blocks} blocks at {lba} are wrong from that byte on");
    }
}
