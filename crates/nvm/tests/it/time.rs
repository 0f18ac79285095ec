//! A virtual clock that is let go on while nobody asks for anything.

use crate::buffer::{BYTES, PAGE, buffered, options, stats, step};
use nvmed_dice::Dice;
use nvmed_engine::Engine;
use nvmed_nvm::{
    BufferClock, BufferOptions, BufferStats, FlushTo, Hint, Memory, MemoryOptions, NvmEngine, Place,
};
use std::sync::Arc;

/// A fill of 64 KiB takes the link so long, and the cells once more before it.
const LINK_NS: u64 = 16_000;
const CELLS_NS: u64 = 1000;

fn memory() -> Memory {
    let place = Place::Ram { bytes: 16 << 20 };
    Memory::open(MemoryOptions { place, flush: FlushTo::Process }).expect("memory")
}

/// What was announced, and has waited in line, comes while nobody asks: each fill when the link is free for it.
#[test]
fn what_waits_in_line_comes_meanwhile() {
    let memory = memory().buffered(&options(8 << 20, 64 << 10, 0, true)).expect("a buffer");
    memory.advise(0, 7 << 20, Hint::WillNeed).expect("a hint");
    let read = |frame: u64| memory.read(frame << 16, &mut [0; 4096]).expect("bytes");
    assert_eq!(stats(&memory).fills_ahead, 16);
    memory.pass_until(CELLS_NS + 10 * LINK_NS);
    let some = stats(&memory);
    assert_eq!((some.now_ns, some.fills_ahead), (CELLS_NS + 10 * LINK_NS, 26));
    (0..10).for_each(read);
    assert_eq!((stats(&memory).waited_ns, stats(&memory).now_ns), (0, some.now_ns));
    // The next one is on its way, and is waited for.
    read(10);
    assert_eq!((stats(&memory).waited_ns, stats(&memory).late_ahead), (LINK_NS, 1));
    memory.pass_until(CELLS_NS + 112 * LINK_NS - 1);
    let all = stats(&memory);
    (0..111).for_each(read);
    assert_eq!((stats(&memory).waited_ns, all.fills_ahead), (LINK_NS, 112));
    read(111);
    let last = stats(&memory);
    assert_eq!((last.waited_ns, last.now_ns), (LINK_NS + 1, CELLS_NS + 112 * LINK_NS), "{last:?}");
    memory.pass_until(5);
    assert_eq!(stats(&memory), last, "that has passed");
}

/// What has to be programmed to make a place for what comes is programmed meanwhile, and nothing waits for the end.
#[test]
fn what_comes_takes_the_places_of_what_was_stored_meanwhile() {
    let memory = memory().buffered(&options(8 << 20, 64 << 10, 0, true)).expect("a buffer");
    (0..128).for_each(|frame| memory.store((8 << 20) + (frame << 16), &[1; 64 << 10]).expect("room"));
    assert_eq!(stats(&memory).now_ns, 0);
    memory.advise(0, 7 << 20, Hint::WillNeed).expect("a hint");
    // Each page that leaves is a program, of which the medium has 64 commands at once.
    memory.pass_until(1 << 30);
    let passed = stats(&memory);
    assert_eq!((passed.now_ns, passed.fills_ahead, passed.evictions), (1 << 30, 112, 112), "{passed:?}");
    (0..112).for_each(|frame| memory.read(frame << 16, &mut [0; 4096]).expect("bytes"));
    let read = stats(&memory);
    assert_eq!((read.waited_ns, read.now_ns, read.used_ahead), (0, 1 << 30, 112), "{read:?}");
}

/// A time that is reached at once, or by many small steps, leaves the same.
#[test]
fn steps_of_a_clock_add_up() {
    let run = |steps: u64| -> Vec<BufferStats> {
        let memory = buffered(&options(128 << 10, 4096, 25, true));
        let (mut plain, mut dice) = (vec![0; BYTES as usize], Dice::of(&[11]));
        let turn = |turn: u64| {
            let (from, until) = (stats(&memory).now_ns, 700 * turn * turn);
            (0..12).for_each(|_| step(&memory, &mut plain, &mut dice));
            memory.advise(dice.roll(BYTES), 40 * PAGE, Hint::WillNeed).expect("a hint");
            let part = until.saturating_sub(from) / steps;
            (1..steps).for_each(|number| memory.pass_until(from + number * part));
            memory.pass_until(until);
            stats(&memory)
        };
        (0..60).map(turn).collect()
    };
    let once = run(1);
    assert_eq!(once, run(7));
    let last = once.last().expect("a turn");
    assert!(last.programs > 0 && last.used_ahead > 0, "{last:?}");
}

/// Where there is no such clock, nothing happens.
#[test]
fn without_a_virtual_clock_nothing_passes() {
    memory().pass_until(u64::MAX);
    let idle = buffered(&options(128 << 10, 4096, 0, true));
    idle.pass_until(1 << 40);
    let passed = stats(&idle);
    assert_eq!((passed.now_ns, passed.fills, passed.waited_ns), (1 << 40, 0, 0));
    let waited = BufferOptions { clock: BufferClock::Waited, ..options(128 << 10, 4096, 0, true) };
    let waited = buffered(&waited);
    waited.pass_until(u64::MAX);
    assert!(stats(&waited).now_ns < 1 << 60, "its time comes by itself");
}

/// The engine's time is the buffer's, and what looks take: no time of the host's is in it, and where all is found in
/// the buffer it goes on, so that who waits for a time comes to it.
#[test]
fn the_engine_tells_the_time_of_a_virtual_clock() {
    let run = || {
        let memory = Arc::new(buffered(&options(128 << 10, 4096, 0, true)));
        let engine = NvmEngine::over(Arc::clone(&memory), 512);
        let mut times = vec![engine.now_ns()];
        for at in [0, 0, 8 * PAGE] {
            memory.read(at, &mut [0; 64]).expect("bytes");
            times.push(engine.now_ns());
        }
        times
    };
    // A fill has 1 us of cells and 1 us of link; a look has 50 ns.
    assert_eq!(run(), [0, 2050, 2100, 4150]);
    assert_eq!(run(), run());
    let host = NvmEngine::over(Arc::new(memory()), 512);
    let before = nvmed_sys::monotonic_ns();
    let now = host.now_ns();
    assert!((before..=nvmed_sys::monotonic_ns()).contains(&now), "without a buffer it is the host's");
}
