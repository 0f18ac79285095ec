//! Queues: full ones, many, shared, dropped and made again.

use crate::Check;
use crate::bench::{Bench, Memory, WRITE, pattern, request};
use nvmed_engine::{Operation, SubmitError};
use std::sync::Mutex;

pub const CHECKS: &[(&str, Check)] = &[
    ("a full queue says NoSlot, then goes on", full),
    ("many outstanding requests complete once each", many),
    ("a poll takes no more than there is room for", small_polls),
    ("queues of several threads do not meet", threads),
    ("a queue serves threads that come and go", shared),
    ("queues are dropped while busy and made again", again),
    ("a request can be given up and completes once", cancelled),
];

fn full(bench: &Bench) {
    const DEPTH: u16 = 4;
    let mut pair = bench.queue(DEPTH);
    let memory = bench.memory(64 << 10);
    let bytes = bench.lba_bytes() as usize;
    bench.write(&mut *pair, &memory, 0, 1, 1);
    let data = [memory.segment(0, bytes)];
    for round in 0..20 {
        for tag in 0..u64::from(DEPTH) {
            pair.submit(&request(Operation::Read, 0, 1, &data, tag)).expect("a free slot");
        }
        let more = pair.submit(&request(Operation::Read, 0, 1, &data, 99));
        assert_eq!(more, Err(SubmitError::NoSlot), "round {round}");
        assert_eq!(pair.outstanding(), usize::from(DEPTH));
        pair.ring();
        let mut out = Vec::new();
        bench.reap(&mut *pair, &mut out, usize::from(DEPTH));
        let mut tags: Vec<_> = out.iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, [0, 1, 2, 3], "round {round}");
    }
    bench.verify(&mut *pair, &memory, 0, 1, 1);
}

/// Each of 32 places is written and read in turn, as fast as slots come free.
fn many(bench: &Bench) {
    const PLACES: usize = 32;
    const ROUNDS: u64 = 60;
    let mut pair = bench.queue(PLACES as u16);
    let memory = bench.memory(PLACES * 8192);
    let blocks = bench.blocks(8192);
    let mut seen = vec![0; PLACES];
    let (mut done, mut out) = (0, Vec::with_capacity(PLACES));
    for place in 0..PLACES {
        start(&mut *pair, bench, &memory, place, 0);
    }
    while done < PLACES as u64 * ROUNDS {
        bench.reap(&mut *pair, &mut out, 1);
        for completion in out.drain(..) {
            completion.result.expect("a good request");
            let (place, round) = ((completion.tag >> 32) as usize, completion.tag & 0xffff_ffff);
            assert_eq!(seen[place], round, "place {place} completed out of turn: twice, or never");
            seen[place] += 1;
            done += 1;
            if round % 2 == 1 {
                let wanted =
                    pattern(place as u64 * u64::from(blocks), blocks.into(), bench.lba_bytes(), round - 1);
                assert!(memory.bytes(place * 8192, 8192) == wanted, "place {place}, round {round}");
            }
            if round + 1 < ROUNDS {
                start(&mut *pair, bench, &memory, place, round + 1);
            }
        }
    }
    assert_eq!((pair.outstanding(), pair.poll(&mut Vec::with_capacity(8))), (0, 0));
}

/// Writes in even rounds, reads back in odd ones.
fn start(pair: &mut dyn nvmed_engine::QueuePair, bench: &Bench, memory: &Memory, place: usize, round: u64) {
    let blocks = bench.blocks(8192);
    let lba = place as u64 * u64::from(blocks);
    let operation = if round.is_multiple_of(2) {
        memory.mapping.write(place * 8192, &pattern(lba, blocks.into(), bench.lba_bytes(), round));
        WRITE
    } else {
        memory.mapping.fill(place * 8192, 8192, 0xee);
        Operation::Read
    };
    let data = [memory.segment(place * 8192, 8192)];
    pair.submit(&request(operation, lba, blocks, &data, (place as u64) << 32 | round)).expect("a slot");
    pair.ring();
}

fn small_polls(bench: &Bench) {
    let mut pair = bench.queue(16);
    let memory = bench.memory(8192);
    let data = [memory.segment(0, bench.lba_bytes() as usize)];
    for tag in 0..16 {
        pair.submit(&request(Operation::Read, tag, 1, &data, tag)).expect("a slot");
    }
    pair.ring();
    assert_eq!(pair.poll(&mut Vec::new()), 0, "no room, no completion");
    let mut tags = Vec::new();
    while tags.len() < 16 {
        let mut out = Vec::with_capacity(3);
        let room = out.capacity();
        bench.reap(&mut *pair, &mut out, 1);
        assert!(out.len() <= room, "{} completions in room for {room}", out.len());
        assert_eq!(pair.outstanding(), 16 - tags.len() - out.len());
        tags.extend(out.iter().map(|done| done.tag));
    }
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..16));
}

fn threads(bench: &Bench) {
    const THREADS: u64 = 4;
    let threads = THREADS.min(bench.geometry().queues_max.into());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut pair = bench.queue(8);
                let memory = bench.memory(64 << 10);
                let blocks = bench.blocks(64 << 10);
                for round in 0..25 {
                    let lba = (round * threads + thread) * u64::from(blocks) % (bench.engine.lba_count() / 2);
                    let lba = lba / u64::from(blocks) * u64::from(blocks);
                    let lba = if lba / u64::from(blocks) % threads == thread {
                        lba
                    } else {
                        thread * u64::from(blocks)
                    };
                    bench.write(&mut *pair, &memory, lba, blocks, thread * 1000 + round);
                    bench.verify(&mut *pair, &memory, lba, blocks, thread * 1000 + round);
                }
            });
        }
    });
}

/// What one thread submitted, another takes, also when the first has ended.
fn shared(bench: &Bench) {
    let pair = Mutex::new(bench.queue(32));
    let memory = bench.memory(32 * 4096);
    let blocks = bench.blocks(4096);
    for round in 0..5 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (pair, memory) = (&pair, &memory);
                scope.spawn(move || {
                    let mut pair = pair.lock().expect("no thread panicked");
                    for index in thread * 8..thread * 8 + 8 {
                        let lba = index * u64::from(blocks);
                        let bytes = pattern(lba, blocks.into(), bench.lba_bytes(), round);
                        memory.mapping.write(index as usize * 4096, &bytes);
                        let data = [memory.segment(index as usize * 4096, 4096)];
                        pair.submit(&request(WRITE, lba, blocks, &data, index)).expect("a slot");
                    }
                    pair.ring();
                });
            }
        });
        let mut pair = pair.lock().expect("no thread panicked");
        let mut out = Vec::new();
        bench.reap(&mut **pair, &mut out, 32);
        out.iter().for_each(|done| done.result.expect("a write whose thread has ended"));
        for index in 0..32 {
            bench.verify(&mut **pair, &memory, index * u64::from(blocks), blocks, round);
        }
    }
}

fn again(bench: &Bench) {
    let memory = bench.memory(64 << 10);
    let checked = bench.memory(64 << 10);
    let blocks = bench.blocks(64 << 10);
    bench.write(&mut *bench.queue(2), &checked, 0, blocks, 1);
    for round in 0..50 {
        let mut pair = bench.queue(8);
        let data = [memory.segment(0, 64 << 10)];
        for tag in 0..4 {
            pair.submit(&request(Operation::Read, 0, blocks, &data, tag)).expect("a slot");
        }
        if round % 2 == 0 {
            pair.ring();
        }
    }
    bench.verify(&mut *bench.queue(2), &checked, 0, blocks, 1);
}

fn cancelled(bench: &Bench) {
    let mut pair = bench.queue(16);
    let memory = bench.memory(64 << 10);
    let blocks = bench.blocks(64 << 10);
    bench.write(&mut *pair, &memory, 0, blocks, 1);
    pair.cancel(12345).expect("nothing has the tag, nothing happens");
    let data = [memory.segment(0, 64 << 10)];
    for tag in 0..8 {
        pair.submit(&request(Operation::Read, 0, blocks, &data, tag)).expect("a slot");
    }
    pair.ring();
    // A device may refuse: the request is where it was.
    let _ = pair.cancel(3);
    let _ = pair.cancel(7);
    let mut out = Vec::new();
    bench.reap(&mut *pair, &mut out, 8);
    let mut tags: Vec<_> = out.iter().map(|done| done.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7]);
    let others = out.iter().filter(|done| done.tag != 3 && done.tag != 7);
    others.for_each(|done| done.result.expect("nobody gave this one up"));
    bench.verify(&mut *pair, &memory, 0, blocks, 1);
}
