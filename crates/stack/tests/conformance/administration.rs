//! Commands of the device's own kind, where it has them, and the reset of the controller.

use crate::Check;
use crate::bench::{Bench, WRITE, request};
use nvmed_engine::{Command, Completion, EngineError, InvalidRequest, QueueFault, SubmitError, Transfer};
use nvmed_engine::{Operation, QueuePair};
use nvmed_nvme::{IoOpcode, Status};

pub const CHECKS: &[(&str, Check)] = &[
    ("the controller describes itself, or says that there is none", identify),
    ("commands pass through, or are refused", passthrough),
    ("a reset under load loses no request", reset),
];

fn identify(bench: &Bench) {
    let controller = match bench.engine.identify_controller() {
        Err(EngineError::Unsupported { .. }) => {
            let none = |answer| matches!(answer, Err(EngineError::Unsupported { .. }));
            assert!(none(bench.engine.identify_namespace().map(drop)));
            assert!(none(bench.engine.log_page(2, &mut [0; 512])));
            assert!(none(bench.engine.admin(&Command::default(), Transfer::None).map(drop)));
            println!("       (no controller)");
            return;
        }
        other => other.expect("Identify Controller"),
    };
    let model = String::from_utf8_lossy(&controller.mn);
    assert_eq!(model.trim(), bench.geometry().model);
    let namespace = bench.engine.identify_namespace().expect("Identify Namespace");
    assert_eq!(namespace.nsze, bench.engine.lba_count());
    let mut smart = [0; 512];
    bench.engine.log_page(2, &mut smart).expect("the SMART log");
    for bytes in [0, 6, 8192] {
        let wrong = bench.engine.log_page(2, &mut vec![0; bytes]);
        assert!(matches!(wrong, Err(EngineError::Buffer { bytes: found }) if found == bytes), "{wrong:?}");
    }
    let nonsense = Command { opcode: 0x7f, ..Command::default() };
    match bench.engine.admin(&nonsense, Transfer::None) {
        Err(EngineError::Command { status, .. }) => assert!(status.is(Status::INVALID_OPCODE), "{status}"),
        other => panic!("admin opcode 7Fh was answered with {other:?}"),
    }
    bench.engine.take_event().expect("events can be asked for");
}

fn passthrough(bench: &Bench) {
    let mut pair = bench.queue(4);
    let memory = bench.memory(64 << 10);
    let blocks = bench.blocks(16 << 10);
    bench.write(&mut *pair, &memory, 50, blocks, 5);
    let wanted = memory.bytes(0, 16 << 10);
    let nsid = bench.engine.namespace();
    let read =
        Command { opcode: IoOpcode::Read as u8, nsid, cdw10: 50, cdw12: blocks - 1, ..Command::default() };
    let data = [memory.segment(32 << 10, 16 << 10)];
    match pair.passthrough(&read, &data, 8) {
        Err(SubmitError::Invalid { reason: InvalidRequest::Unsupported, operation, .. }) => {
            assert_eq!(operation, Operation::Passthrough { opcode: 2 });
            println!("       (no passthrough)");
            return;
        }
        other => other.expect("a read that passes through"),
    }
    let done = finish(bench, &mut *pair);
    assert_eq!((done.tag, done.result), (8, Ok(())));
    assert!(memory.bytes(32 << 10, 16 << 10) == wanted, "what passed through is not what is there");
    let nonsense = Command { opcode: 0x7f, nsid, ..Command::default() };
    pair.passthrough(&nonsense, &[], 9).expect("it is the device that refuses");
    let error = finish(bench, &mut *pair).result.expect_err("opcode 7Fh");
    assert!(error.status.is(Status::INVALID_OPCODE), "{error}");
    assert_eq!(error.operation, Operation::Passthrough { opcode: 0x7f });
    bench.verify(&mut *pair, &memory, 50, blocks, 5);
}

fn finish(bench: &Bench, pair: &mut dyn QueuePair) -> Completion {
    pair.ring();
    let mut out = Vec::with_capacity(4);
    bench.reap(pair, &mut out, 1);
    out.pop().expect("one came")
}

fn reset(bench: &Bench) {
    const DEPTH: u64 = 16;
    let mut pair = bench.queue(DEPTH as u16);
    let memory = bench.memory(16 * 4096);
    let blocks = bench.blocks(4096);
    let kept = bench.memory(64 << 10);
    bench.write(&mut *pair, &kept, 2000, bench.blocks(64 << 10), 1);
    for round in 0..10 {
        for tag in 0..DEPTH {
            let data = [memory.segment(tag as usize * 4096, 4096)];
            let operation = if tag % 2 == 0 { Operation::Read } else { WRITE };
            let lba = tag * u64::from(blocks);
            pair.submit(&request(operation, lba, blocks, &data, tag)).expect("a slot");
        }
        if round % 3 != 2 {
            pair.ring();
        }
        match bench.engine.reset() {
            Err(EngineError::Unsupported { .. }) => {
                println!("       (no reset)");
                pair.ring();
                bench.reap(&mut *pair, &mut Vec::new(), DEPTH as usize);
                return;
            }
            other => other.expect("a reset"),
        }
        let mut out = Vec::new();
        bench.reap(&mut *pair, &mut out, DEPTH as usize);
        let mut tags: Vec<_> = out.iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..DEPTH), "round {round}: not each request exactly once");
        for done in &out {
            let fault = done.result.err().and_then(|error| error.fault);
            assert!(done.result.is_ok() || fault == Some(QueueFault::Reset), "round {round}: {done:?}");
        }
        bench.verify(&mut *pair, &kept, 2000, bench.blocks(64 << 10), 1);
    }
    let mut fresh = bench.queue(4);
    bench.verify(&mut *fresh, &kept, 2000, bench.blocks(64 << 10), 1);
}
