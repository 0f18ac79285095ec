//! Waiting: what comes ends it, whoever waits.

use crate::Check;
use crate::bench::{Bench, request};
use nvmed_engine::{Operation, Waited};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;
use std::sync::atomic::{AtomicU32, Ordering};

pub const CHECKS: &[(&str, Check)] = &[
    ("a completion ends the wait for it", wakes),
    ("a wait ends also when another thread takes the completion", overtaken),
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

/// One thread waits for a change, another makes it and takes what it made: in whatever order they come.
fn overtaken(bench: &Bench) {
    const ROUNDS: u32 = 300;
    let mut pair = bench.queue(4);
    let (vector, memory) = (pair.vector(), bench.memory(8192));
    let mut once = || {
        let data = [memory.segment(0, bench.lba_bytes() as usize)];
        bench.run(&mut *pair, &request(Operation::Read, 0, 1, &data, 1)).expect("a read");
    };
    let before = bench.engine.events(vector);
    once();
    if bench.engine.events(vector) == before {
        println!("       (completions raise no event)");
        return;
    }
    if bench.name.contains("clock=virtual") {
        println!("       (time of its own: a wait moves it, and nobody sleeps)");
        return;
    }
    let turn = AtomicU32::new(0);
    let slept = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| (1..=ROUNDS).find(|&round| !sees_change(bench, vector, &turn, round)));
        for round in 1..=ROUNDS {
            while turn.load(Ordering::Acquire) != round && !waiter.is_finished() {
                std::thread::yield_now();
            }
            once();
            turn.store(0, Ordering::Release);
        }
        waiter.join().expect("the waiter")
    });
    assert_eq!(slept, None, "in that round a change was slept through");
}

/// Waits for the change that the other thread makes when `turn` is `round`; whether the wait ended by it.
fn sees_change(bench: &Bench, vector: u16, turn: &AtomicU32, round: u32) -> bool {
    let seen = bench.engine.events(vector);
    turn.store(round, Ordering::Release);
    let mut awake = true;
    while awake && bench.engine.events(vector) == seen {
        awake = bench.engine.wait(vector, seen, LONG_US) == Waited::Event;
    }
    // The other has taken its completion before the next look.
    while awake && turn.load(Ordering::Acquire) == round {
        std::thread::yield_now();
    }
    awake
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
