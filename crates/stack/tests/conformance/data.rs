//! What is written is read, whatever its shape.

use crate::Check;
use crate::bench::{Bench, WRITE, pattern, request};
use nvmed_engine::{Operation, Segment};
use rustix::io::Errno;

pub const CHECKS: &[(&str, Check)] = &[
    ("every size is read back and its neighbours are left alone", sizes),
    ("segments with offsets are gathered and scattered", segments),
    ("the first and the last block can be written", edges),
    ("writes with FUA and flushes end well", durable),
    ("zeroed blocks read as zeroes", zeroes),
    ("discarded blocks can be written again", discard),
    ("a comparison tells equal from different", compare),
    ("memory is mapped and unmapped many times", mappings),
];

/// From one block to more than the device moves at once.
fn sizes(bench: &Bench) {
    let mut pair = bench.queue(8);
    let most = bench.blocks(bench.geometry().transfer_bytes_max.into());
    let limit = pair.request_blocks_max(Operation::Read).min(bench.blocks(8 << 20));
    let memory = bench.memory((limit + 2) as usize * bench.lba_bytes() as usize);
    for blocks in [1, 2, 3, 7, 8, 9, 16, 63, 129, most - 1, most, most + 1, 2 * most + 3] {
        let (blocks, lba) = (blocks.clamp(1, limit), 1000);
        bench.write(&mut *pair, &memory, lba - 1, 1, 7);
        bench.write(&mut *pair, &memory, lba + u64::from(blocks), 1, 8);
        bench.write(&mut *pair, &memory, lba, blocks, u64::from(blocks));
        bench.verify(&mut *pair, &memory, lba, blocks, u64::from(blocks));
        bench.verify(&mut *pair, &memory, lba - 1, 1, 7);
        bench.verify(&mut *pair, &memory, lba + u64::from(blocks), 1, 8);
    }
}

/// The first segment ends a page, those between are pages in any order, the last begins one.
fn segments(bench: &Bench) {
    const PAGES: usize = 40;
    let mut pair = bench.queue(8);
    let memory = bench.memory(PAGES * 4096);
    let plain = bench.memory(PAGES * 4096);
    for (offset, middle) in [(0, 0), (512, 1), (4, 0), (4, 3), (2048, 7), (4092, 2), (3584, 16), (1028, 30)] {
        let mut data = vec![memory.segment(4096 + offset, 4096 - offset)];
        // Backwards and with gaps, so that no two lie side by side.
        data.extend((0..middle).map(|page| memory.segment((PAGES - 1 - page) * 4096, 4096)));
        data.push(memory.segment(0, if offset == 0 { 4096 } else { offset }));
        let total: usize = data.iter().map(|segment| segment.bytes as usize).sum();
        let blocks = bench.blocks(total as u64);
        assert_eq!(blocks as usize * bench.lba_bytes() as usize, total);
        bench.write(&mut *pair, &plain, 64, blocks, offset as u64 + 1);
        memory.mapping.fill(0, PAGES * 4096, 0x5a);
        bench.run(&mut *pair, &request(Operation::Read, 64, blocks, &data, 3)).expect("a scattered read");
        let scattered = gathered(&memory, &data);
        assert!(scattered == pattern(64, blocks.into(), bench.lba_bytes(), offset as u64 + 1), "{data:?}");
        // The same segments, written elsewhere.
        bench.run(&mut *pair, &request(WRITE, 4096, blocks, &data, 4)).expect("a gathered write");
        assert!(bench.read(&mut *pair, &plain, 4096, blocks) == scattered, "{data:?}");
        // What lies before the first segment is not touched.
        assert!(memory.bytes(4096, offset).iter().all(|&byte| byte == 0x5a), "{data:?}");
    }
}

fn gathered(memory: &crate::bench::Memory, data: &[Segment]) -> Vec<u8> {
    let base = memory.base.0;
    data.iter().flat_map(|part| memory.bytes((part.address.0 - base) as usize, part.bytes as usize)).collect()
}

fn edges(bench: &Bench) {
    let mut pair = bench.queue(2);
    let memory = bench.memory(8192);
    let last = bench.engine.lba_count() - 1;
    for lba in [0, last] {
        bench.write(&mut *pair, &memory, lba, 1, 21);
        bench.verify(&mut *pair, &memory, lba, 1, 21);
    }
}

fn durable(bench: &Bench) {
    let mut pair = bench.queue(4);
    let memory = bench.memory(64 << 10);
    let blocks = bench.blocks(64 << 10);
    bench.run(&mut *pair, &request(Operation::Flush, 0, 0, &[], 9)).expect("a flush of nothing");
    memory.mapping.write(0, &pattern(128, blocks.into(), bench.lba_bytes(), 3));
    let data = [memory.segment(0, 64 << 10)];
    let fua = Operation::Write { fua: true };
    bench.run(&mut *pair, &request(fua, 128, blocks, &data, 10)).expect("a write with FUA");
    bench.write(&mut *pair, &memory, 4096, blocks, 4);
    bench.run(&mut *pair, &request(Operation::Flush, 0, 0, &[], 11)).expect("a flush");
    bench.verify(&mut *pair, &memory, 128, blocks, 3);
    bench.verify(&mut *pair, &memory, 4096, blocks, 4);
}

fn zeroes(bench: &Bench) {
    let mut pair = bench.queue(8);
    let memory = bench.memory(4 << 20);
    for (bytes, fua) in [(4096, false), (8192, true), (192 << 10, false), (3 << 20, true)] {
        let blocks = bench.blocks(bytes);
        let around = blocks + 2;
        bench.write(&mut *pair, &memory, 100, around, bytes);
        let zero = request(Operation::WriteZeroes { fua }, 101, blocks, &[], 5);
        if !bench.run_if_offered(&mut *pair, &zero) {
            println!("       (no write zeroes)");
            return;
        }
        assert!(bench.read(&mut *pair, &memory, 101, blocks).iter().all(|&byte| byte == 0), "{bytes} bytes");
        bench.verify(&mut *pair, &memory, 100, 1, bytes);
        bench.verify(&mut *pair, &memory, 101 + u64::from(blocks), 1, bytes);
        bench.write(&mut *pair, &memory, 101, blocks, 6);
        bench.verify(&mut *pair, &memory, 101, blocks, 6);
    }
}

fn discard(bench: &Bench) {
    let mut pair = bench.queue(4);
    let memory = bench.memory(1 << 20);
    let blocks = bench.blocks(512 << 10);
    bench.write(&mut *pair, &memory, 199, blocks + 2, 1);
    if !bench.run_if_offered(&mut *pair, &request(Operation::Discard, 200, blocks, &[], 5)) {
        println!("       (no discard)");
        return;
    }
    // What is there now is the device's choice; that it can be read and written is not.
    bench.read(&mut *pair, &memory, 200, blocks);
    bench.verify(&mut *pair, &memory, 199, 1, 1);
    bench.verify(&mut *pair, &memory, 200 + u64::from(blocks), 1, 1);
    bench.write(&mut *pair, &memory, 200, blocks, 2);
    bench.verify(&mut *pair, &memory, 200, blocks, 2);
}

fn compare(bench: &Bench) {
    let mut pair = bench.queue(8);
    let memory = bench.memory(256 << 10);
    for bytes in [4096, 128 << 10] {
        let blocks = bench.blocks(bytes as u64);
        bench.write(&mut *pair, &memory, 300, blocks, 9);
        let data = [memory.segment(0, bytes)];
        let same = request(Operation::Compare, 300, blocks, &data, 6);
        if !bench.run_if_offered(&mut *pair, &same) {
            println!("       (no compare)");
            return;
        }
        memory.mapping.write(bytes - 1, &[0x11]);
        let error = bench.run(&mut *pair, &same).expect_err("a difference in the last byte");
        assert_eq!((error.errno(), error.operation), (Errno::ILSEQ, Operation::Compare));
        bench.verify(&mut *pair, &memory, 300, blocks, 9);
    }
}

fn mappings(bench: &Bench) {
    const ROUNDS: u32 = 400;
    let mut pair = bench.queue(2);
    let kept = bench.memory(4096);
    bench.write(&mut *pair, &kept, 10, bench.blocks(4096), 1);
    // More often than any engine has places for mappings at once.
    for round in 0..ROUNDS {
        let memory = bench.memory(if round % 8 == 0 { 2 << 20 } else { 8192 });
        bench.verify(&mut *pair, &memory, 10, bench.blocks(4096), 1);
    }
    bench.verify(&mut *pair, &kept, 10, bench.blocks(4096), 1);
}
