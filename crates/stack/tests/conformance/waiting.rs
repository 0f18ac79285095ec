//! Waiting: what comes ends it, whoever waits.

use crate::Check;
use crate::bench::{Bench, request};
use nvmed_engine::{Operation, Waited};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

pub const CHECKS: &[(&str, Check)] = &[
    ("a completion ends the wait for it", wakes),
    ("a wait for nothing ends with its time", times_out),
    ("a descriptor for event loops tells of completions", descriptor),
];

/// Long, so that a wake-up that was lost is a failure and not only slow.
const LONG_US: u32 = 5_000_000;

fn wakes(bench: &Bench) {
    let mut pair = bench.queue(8);
    let memory = bench.memory(1 << 20);
    let blocks = bench.blocks(1 << 20).min(pair.request_blocks_max(Operation::Read));
    let data = [memory.segment(0, blocks as usize * bench.lba_bytes() as usize)];
    let mut out = Vec::with_capacity(8);
    for round in 0..200 {
        pair.submit(&request(Operation::Read, 0, blocks, &data, round)).expect("a slot");
        pair.ring();
        loop {
            let seen = bench.engine.events(pair.vector());
            if pair.poll(&mut out) > 0 {
                break;
            }
            let waited = bench.engine.wait(pair.vector(), seen, LONG_US);
            assert!(waited == Waited::Event || pair.poll(&mut out) == 0, "round {round}: a wake-up was lost");
        }
        out.drain(..).for_each(|done| assert_eq!((done.tag, done.result), (round, Ok(()))));
    }
}

fn times_out(bench: &Bench) {
    let pair = bench.queue(2);
    let mut quiet = 0;
    // Some waits may end early; not all of them.
    for _ in 0..50 {
        let seen = bench.engine.events(pair.vector());
        quiet += u32::from(bench.engine.wait(pair.vector(), seen, 1000) == Waited::Timeout);
    }
    if bench.name.contains("iopoll=on") {
        println!("       (a polled ring does not wait)");
    } else {
        assert!(quiet > 0, "every wait ended although nothing came");
    }
    // A vector that nobody has.
    assert_eq!(bench.engine.wait(60_000, bench.engine.events(60_000), 100), Waited::Timeout);
}

fn descriptor(bench: &Bench) {
    let mut pair = bench.queue(4);
    let Some(event) = bench.engine.event_fd(pair.vector()) else {
        println!("       (no descriptor)");
        return;
    };
    let memory = bench.memory(8192);
    let data = [memory.segment(0, bench.lba_bytes() as usize)];
    let mut out = Vec::with_capacity(4);
    for round in 0..20 {
        pair.submit(&request(Operation::Read, round, 1, &data, round)).expect("a slot");
        pair.ring();
        let mut fds = [PollFd::new(&event, PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 }));
        assert_eq!(ready, Ok(1), "round {round}: the descriptor tells nothing");
        let read = rustix::io::read(event, &mut [0; 8]);
        assert_eq!(read, Ok(8), "round {round}");
        bench.reap(&mut *pair, &mut out, 1);
        out.clear();
    }
}
