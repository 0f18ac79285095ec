//! The driver against the virtual controller: what is written is read, whatever its shape.

use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{
    Completion, DeviceError, Engine, Operation, QueueOptions, QueuePair, Request, Segment, Waited,
};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use proptest::prelude::*;
use std::sync::Arc;

const DEVICE_BYTES: u64 = 1 << 20;

fn engine(lba_bytes: u32, mdts: u8, clock: Clock) -> NvmeEngine {
    let config = ControllerConfig { lba_bytes, mdts, clock, ..ControllerConfig::default() };
    let controller = Controller::new(config, Media::ram(DEVICE_BYTES, Pages::Base).unwrap());
    NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap()
}

struct Host {
    memory: Arc<Mapping>,
    base: DeviceAddress,
}

impl Host {
    fn new(engine: &NvmeEngine) -> Self {
        let memory = Arc::new(Mapping::anonymous(2 << 20, Pages::Base).unwrap());
        let base = engine.map(Arc::clone(&memory)).unwrap();
        Self { memory, base }
    }
}

/// One request, to its end.
fn run(engine: &NvmeEngine, pair: &mut dyn QueuePair, request: &Request<'_>) -> Result<(), DeviceError> {
    pair.submit(request).unwrap();
    pair.ring();
    let mut out: Vec<Completion> = Vec::with_capacity(4);
    let mut quiet = 0;
    loop {
        let seen = engine.events(pair.vector());
        if pair.poll(&mut out) > 0 {
            assert_eq!((out.len(), out[0].tag), (1, request.tag));
            return out[0].result;
        }
        quiet += u32::from(engine.wait(pair.vector(), seen, 100_000) == Waited::Timeout);
        assert!(quiet < 100, "nothing came for 10 s");
    }
}

#[test]
fn the_geometry_is_the_controller_s() {
    for lba_bytes in [512, 4096] {
        let engine = engine(lba_bytes, 4, Clock::Inline);
        let geometry = engine.geometry();
        assert_eq!((geometry.lba_bytes, geometry.bytes()), (lba_bytes, DEVICE_BYTES));
        assert_eq!((geometry.transfer_bytes_max, geometry.queues_max), (64 << 10, 64));
        assert!(geometry.serial.starts_with("nvmed-"), "{}", geometry.serial);
        assert_eq!(engine.identify_namespace().unwrap().nsze, geometry.lba_count);
        let mut smart = [0; 512];
        engine.log_page(2, &mut smart).unwrap();
        assert!(engine.log_page(2, &mut [0; 6]).is_err());
        assert_eq!(engine.take_event().unwrap(), None);
    }
}

#[test]
fn a_controller_can_be_opened_again() {
    let config = ControllerConfig::default();
    let controller = Controller::new(config, Media::ram(DEVICE_BYTES, Pages::Base).unwrap());
    let transport = Arc::new(InProcess::new(controller).unwrap());
    for _ in 0..3 {
        let engine = NvmeEngine::open(Arc::<InProcess>::clone(&transport)).unwrap();
        let host = Host::new(&engine);
        let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
        let data = [Segment { address: host.base, bytes: 4096 }];
        let request =
            Request { operation: Operation::Read, lba: Lba(0), blocks: 8, data: &data, tag: 1, stream: 0 };
        run(&engine, &mut *pair, &request).unwrap();
        engine.shutdown().unwrap();
    }
}

#[test]
fn a_device_error_comes_with_its_block() {
    let engine = engine(512, 4, Clock::Inline);
    let host = Host::new(&engine);
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    host.memory.write(0, &[1; 512]);
    let data = [Segment { address: host.base, bytes: 512 }];
    let request =
        Request { operation: Operation::Compare, lba: Lba(7), blocks: 1, data: &data, tag: 3, stream: 0 };
    let error = run(&engine, &mut *pair, &request).unwrap_err();
    assert!(error.status.is(Status::COMPARE_FAILURE));
    assert_eq!((error.lba, error.errno()), (Lba(7), rustix::io::Errno::ILSEQ));
    // Memory that is not mapped: the controller says so, and the queue lives on.
    let data = [Segment { address: DeviceAddress(200 << 40), bytes: 512 }];
    let request =
        Request { operation: Operation::Read, lba: Lba(7), blocks: 1, data: &data, tag: 4, stream: 0 };
    assert!(run(&engine, &mut *pair, &request).unwrap_err().status.is(Status::DATA_TRANSFER_ERROR));
    run(
        &engine,
        &mut *pair,
        &Request { operation: Operation::Flush, lba: Lba(0), blocks: 0, data: &[], tag: 5, stream: 0 },
    )
    .unwrap();
}

/// One step of the model test: what, where, how much, and how the memory is cut.
#[derive(Clone, Debug)]
struct Step {
    what: usize,
    at: u64,
    blocks: u64,
    lead: u64,
    scatter: bool,
    byte: u8,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0usize..5, any::<u64>(), 1u64..400, 0u64..8, any::<bool>(), any::<u8>());
    let step = step.prop_map(|(what, at, blocks, lead, scatter, byte)| Step {
        what,
        at,
        blocks,
        lead,
        scatter,
        byte,
    });
    prop::collection::vec(step, 1..20)
}

/// Segments of `bytes` bytes: from an offset inside a page, and page by page backwards if scattered.
fn segments(base: DeviceAddress, lead: u64, bytes: u64, scatter: bool) -> Vec<Segment> {
    if !scatter {
        return vec![Segment { address: base.plus(lead), bytes: bytes as u32 }];
    }
    let mut out = vec![];
    let (mut done, mut page) = (0, 400);
    let mut offset = lead;
    while done < bytes {
        let here = (4096 - offset).min(bytes - done);
        out.push(Segment { address: base.plus(page * 4096 + offset), bytes: here as u32 });
        (done, page, offset) = (done + here, page - 1, 0);
    }
    out
}

fn fill(host: &Host, data: &[Segment], seed: u8) -> Vec<u8> {
    let mut all = vec![];
    for segment in data {
        let bytes: Vec<u8> =
            (0..segment.bytes).map(|n| (n as u8).wrapping_mul(31) ^ seed ^ (all.len() >> 9) as u8).collect();
        host.memory.write((segment.address.0 - host.base.0) as usize, &bytes);
        all.extend(bytes);
    }
    all
}

fn gather(host: &Host, data: &[Segment]) -> Vec<u8> {
    let mut all = vec![];
    for segment in data {
        let mut bytes = vec![0; segment.bytes as usize];
        host.memory.read((segment.address.0 - host.base.0) as usize, &mut bytes);
        all.extend(bytes);
    }
    all
}

fn against_model(lba_bytes: u32, mdts: u8, clock: Clock, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let engine = engine(lba_bytes, mdts, clock);
    let host = Host::new(&engine);
    let mut pair = engine.queue(QueueOptions::depth(250)).unwrap();
    let mut model = vec![0u8; DEVICE_BYTES as usize];
    let lbas = DEVICE_BYTES / u64::from(lba_bytes);
    for (tag, step) in steps.into_iter().enumerate() {
        let lba = step.at % lbas;
        let blocks = step.blocks.min(lbas - lba).min((1 << 20) / u64::from(lba_bytes));
        let (from, bytes) = ((lba * u64::from(lba_bytes)) as usize, (blocks * u64::from(lba_bytes)) as usize);
        let data = segments(host.base, step.lead * 512, bytes as u64, step.scatter);
        let request = |operation, data| Request {
            operation,
            lba: Lba(lba),
            blocks: blocks as u32,
            data,
            tag: tag as u64,
            stream: 0,
        };
        match step.what {
            0 | 1 => {
                let wanted = fill(&host, &data, step.byte);
                let fua = step.what == 1;
                run(&engine, &mut *pair, &request(Operation::Write { fua }, &data)).unwrap();
                model[from..from + bytes].copy_from_slice(&wanted);
            }
            2 => {
                let fua = step.byte % 2 == 0;
                run(&engine, &mut *pair, &request(Operation::WriteZeroes { fua }, &[])).unwrap();
                model[from..from + bytes].fill(0);
            }
            3 => {
                run(&engine, &mut *pair, &request(Operation::Discard, &[])).unwrap();
                model[from..from + bytes].fill(0);
            }
            _ => {
                fill(&host, &data, step.byte);
                run(&engine, &mut *pair, &request(Operation::Read, &data)).unwrap();
                prop_assert_eq!(&gather(&host, &data)[..], &model[from..from + bytes]);
                run(&engine, &mut *pair, &request(Operation::Compare, &data)).unwrap();
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Writes, zeroes, discards and reads of any size and shape, split or not, against a flat array.
    #[test]
    fn what_is_written_is_read(
        steps in steps(), small in any::<bool>(), mdts in 1u8..9, threaded in any::<bool>(),
    ) {
        let clock = if threaded { Clock::Threaded } else { Clock::Inline };
        against_model(if small { 512 } else { 4096 }, mdts, clock, steps)?;
    }
}
