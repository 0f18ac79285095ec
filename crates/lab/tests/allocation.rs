//! The measured loop does not disturb what it measures: more requests are no more allocations.

use nvmed_io::Binding;
use nvmed_lab::duel::device;
use nvmed_lab::recorder::Recorder;
use nvmed_lab::verify::Verify;
use nvmed_lab::{Job, Load, Pattern, Time};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is the system allocator's, whose contract is the same; the counter is a plain cell
// of this thread without a destructor, so touching it never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations while `job` does `count` requests.
fn allocations(job: &mut Job, count: u64, recorder: &Recorder) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    job.run(count, recorder).unwrap();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn requests_of_a_load_do_not_allocate() {
    let device = device("virtual:?media=dram,size=16M", 1).unwrap();
    for depth in [1, 16] {
        for verified in [false, true] {
            let pattern = Pattern { sequential: false, reads_percent: 50 };
            let load = Load { pattern, block_bytes: 4096, depth, offset: 0, bytes: 16 << 20, seed: 3 };
            let verify = verified.then(|| Arc::new(Verify::new(3, 512, 0, 32768)));
            let mut job = Job::new(device.handle(Binding::Queue(0)), load, verify).unwrap();
            let recorder = Recorder::new(true, Time::Host);
            let few = allocations(&mut job, 64, &recorder);
            let many = allocations(&mut job, 6400, &recorder);
            assert_eq!(few, many, "depth {depth}, verified: {verified}");
            assert_eq!(recorder.done_so_far().0 + recorder.done_so_far().1, 6464, "all were done");
        }
    }
}
