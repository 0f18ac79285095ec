//! What cannot work is refused by name, and harms nothing.

use crate::Check;
use crate::bench::{Bench, WRITE, pattern, request};
use nvmed_engine::{EngineError, InvalidRequest, Operation, QueueFault, QueueOptions, Request, SubmitError};
use nvmed_engine::{QueuePair, Segment};
use nvmed_units::DeviceAddress;

pub const CHECKS: &[(&str, Check)] = &[
    ("wrong requests are refused and say why", wrong),
    ("a request larger than the queue says so", too_large),
    ("memory that is not mapped is an error of the request", unmapped),
    ("a queue of an impossible depth is refused", depths),
    ("a queue as deep as it can be runs full", full),
    ("there are as many queues as the device says", all_queues),
    ("after a shutdown requests fail", shut_down),
    ("the geometry is one", geometry),
];

fn refused(pair: &mut dyn QueuePair, request: &Request<'_>) -> InvalidRequest {
    match pair.submit(request) {
        Err(SubmitError::Invalid { operation, lba, reason }) => {
            assert_eq!((operation, lba), (request.operation, request.lba));
            reason
        }
        other => panic!("{request:?} was answered with {other:?}"),
    }
}

fn wrong(bench: &Bench) {
    let mut pair = bench.queue(4);
    let memory = bench.memory(64 << 10);
    let (end, bytes) = (bench.engine.lba_count(), bench.lba_bytes() as usize);
    bench.write(&mut *pair, &memory, 0, 2, 77);
    let one = [memory.segment(0, bytes)];
    let two = [memory.segment(0, 2 * bytes)];
    let beyond = |blocks| InvalidRequest::OutOfRange { blocks, lba_count: end };
    let many = bench.blocks(16384);
    let gap = [memory.segment(0, 2048), memory.segment(8192, 16384 - 2048)];
    let odd = [memory.segment(2, bytes)];
    let late = [memory.segment(4096 - 512, 512), memory.segment(8196, 16384 - 512)];
    let none = [memory.segment(0, 0)];
    let length =
        |bytes: usize, wanted: usize| InvalidRequest::Length { bytes: bytes as u64, wanted: wanted as u64 };
    let misaligned = |index| InvalidRequest::Misaligned { index };
    for operation in [Operation::Read, WRITE] {
        let ask = |lba, blocks, data: &[Segment], pair: &mut dyn QueuePair| {
            refused(pair, &request(operation, lba, blocks, data, 1))
        };
        assert_eq!(ask(0, 0, &[], &mut *pair), InvalidRequest::Empty);
        assert_eq!(ask(end, 1, &one, &mut *pair), beyond(1));
        assert_eq!(ask(end - 1, 2, &two, &mut *pair), beyond(2));
        assert_eq!(ask(u64::MAX, 1, &one, &mut *pair), beyond(1));
        assert_eq!(ask(u64::MAX - 1, 2, &two, &mut *pair), beyond(2));
        assert_eq!(ask(1, u32::MAX, &one, &mut *pair), beyond(u32::MAX.into()));
        assert_eq!(ask(0, 2, &one, &mut *pair), length(bytes, 2 * bytes));
        assert_eq!(ask(0, 1, &two, &mut *pair), length(2 * bytes, bytes));
        assert_eq!(ask(0, 1, &[], &mut *pair), length(0, bytes));
        assert_eq!(ask(0, 1, &odd, &mut *pair), misaligned(0));
        assert_eq!(ask(0, many, &gap, &mut *pair), misaligned(0));
        assert_eq!(ask(0, many, &late, &mut *pair), misaligned(1));
        assert!(matches!(
            ask(0, 1, &none, &mut *pair),
            InvalidRequest::Misaligned { .. } | InvalidRequest::Length { .. }
        ));
    }
    refused(&mut *pair, &request(Operation::Flush, 0, 0, &one, 1));
    refused(&mut *pair, &request(Operation::Discard, end, 1, &[], 1));
    refused(&mut *pair, &request(Operation::WriteZeroes { fua: false }, end, 1, &[], 1));
    assert_eq!(pair.outstanding(), 0);
    assert_eq!(pair.poll(&mut Vec::with_capacity(4)), 0, "a refused request completed");
    bench.verify(&mut *pair, &memory, 0, 2, 77);
}

fn too_large(bench: &Bench) {
    let mut pair = bench.queue(1);
    let limit = u64::from(pair.request_blocks_max(Operation::Read));
    let wanted = limit + 1;
    let bytes = wanted * u64::from(bench.lba_bytes());
    if wanted > bench.engine.lba_count() || bytes > 16 << 20 {
        println!("       (no request is too large)");
        return;
    }
    let memory = bench.memory(bytes as usize);
    let data = [memory.segment(0, bytes as usize)];
    let reason = refused(&mut *pair, &request(Operation::Read, 0, wanted as u32, &data, 1));
    assert_eq!(reason, InvalidRequest::TooLarge { commands: 2, depth: 1 });
}

/// A real device's DMA is stopped by the IOMMU, of which the controller need not tell its driver.
fn unmapped(bench: &Bench) {
    if bench.name.starts_with("vfio:") {
        println!("       (the IOMMU's own test shows it)");
        return;
    }
    let mut pair = bench.queue(4);
    let memory = bench.memory(16 << 10);
    bench.write(&mut *pair, &memory, 5, 1, 5);
    let gone = bench.memory(4096).base;
    for address in [gone, DeviceAddress(0), DeviceAddress(!4095), memory.base.plus(1 << 30)] {
        let data = [Segment { address, bytes: bench.lba_bytes() }];
        for operation in [Operation::Read, WRITE] {
            let error = bench.run(&mut *pair, &request(operation, 5, 1, &data, 1));
            let error = error.expect_err("memory that is not there");
            assert_eq!(error.fault, None, "one bad request is no fault of the queue");
        }
    }
    bench.verify(&mut *pair, &memory, 5, 1, 5);
}

fn depths(bench: &Bench) {
    let most = bench.geometry().queue_depth_max;
    for depth in [0, most.saturating_add(1), u16::MAX] {
        match bench.engine.queue(QueueOptions::depth(depth)) {
            Err(EngineError::Depth { depth: found, depth_max }) => {
                assert_eq!((found, depth_max), (depth, most))
            }
            Err(other) => panic!("a queue of depth {depth} was refused with {other}"),
            Ok(_) => assert_eq!(depth, most, "a queue of depth {depth}"),
        }
    }
    drop(bench.queue(most));
    drop(bench.queue(1));
}

/// Blocks that the reads of a full queue are of.
const FULL_BLOCKS: u64 = 1024;

fn full(bench: &Bench) {
    let (most, bytes) = (usize::from(bench.geometry().queue_depth_max), bench.lba_bytes() as usize);
    let mut pair = bench.queue(most as u16);
    let memory = bench.memory((most + 1) * bytes);
    for lba in (0..FULL_BLOCKS).step_by(8) {
        bench.write(&mut *pair, &memory, lba, 8, 7);
    }
    for tag in 0..=most {
        let (lba, data) = (tag as u64 * 3 % FULL_BLOCKS, [memory.segment(tag * bytes, bytes)]);
        let taken = pair.submit(&request(Operation::Read, lba, 1, &data, tag as u64));
        assert_eq!(taken, if tag < most { Ok(()) } else { Err(SubmitError::NoSlot) }, "request {tag}");
    }
    pair.ring();
    let mut out = Vec::new();
    bench.reap(&mut *pair, &mut out, most);
    out.sort_unstable_by_key(|done| done.tag);
    assert!(out.iter().map(|done| done.tag).eq(0..most as u64), "each request ends once");
    for done in out {
        assert_eq!(done.result, Ok(()), "request {}", done.tag);
        let wanted = pattern(done.tag * 3 % FULL_BLOCKS, 1, bench.lba_bytes(), 7);
        assert!(memory.bytes(done.tag as usize * bytes, bytes) == wanted, "data of request {}", done.tag);
    }
}

fn all_queues(bench: &Bench) {
    let most = bench.geometry().queues_max;
    let memory = bench.memory(8192);
    let mut pairs: Vec<_> = (0..most).map(|_| bench.queue(2)).collect();
    match bench.engine.queue(QueueOptions::depth(2)) {
        Err(EngineError::NoQueue { queues_max }) => assert_eq!(queues_max, most),
        Err(other) => panic!("one queue too many was refused with {other}"),
        Ok(_) => panic!("more queues than the {most} that the device says"),
    }
    let last = pairs.last_mut().expect("a device has a queue");
    bench.write(&mut **last, &memory, 1, 1, 1);
    pairs.pop();
    pairs.push(bench.queue(2));
}

fn shut_down(bench: &Bench) {
    let mut pair = bench.queue(4);
    let memory = bench.memory(8192);
    bench.write(&mut *pair, &memory, 3, 1, 3);
    bench.engine.shutdown().expect("a shutdown");
    bench.engine.shutdown().expect("a second one changes nothing");
    let data = [memory.segment(0, bench.lba_bytes() as usize)];
    let refused = pair.submit(&request(Operation::Read, 3, 1, &data, 1));
    assert_eq!(refused, Err(SubmitError::Failed(QueueFault::Shutdown)));
    drop(pair);
}

fn geometry(bench: &Bench) {
    let geometry = bench.geometry();
    assert!(matches!(geometry.lba_bytes, 512 | 1024 | 2048 | 4096), "{geometry:?}");
    assert_eq!(bench.engine.lba_count(), geometry.lba_count);
    assert!(
        geometry.transfer_bytes_max >= 4096 && geometry.transfer_bytes_max.is_multiple_of(geometry.lba_bytes)
    );
    assert!(geometry.queue_depth_max >= 1 && geometry.queues_max >= 1, "{geometry:?}");
    assert!(!geometry.model.is_empty(), "{geometry:?}");
    let pair = bench.queue(4);
    for operation in [Operation::Read, WRITE, Operation::Discard] {
        assert!(pair.request_blocks_max(operation) >= geometry.transfer_bytes_max / geometry.lba_bytes);
    }
    let before = bench.engine.now_ns();
    assert!(bench.engine.now_ns() >= before);
}
