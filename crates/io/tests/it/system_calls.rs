//! A request over a device that works inside the doorbell makes no system call.
//!
//! The requests run in a thread with a seccomp filter that lets it exit and kills it at any other system call. So
//! the kernel itself counts, no privilege or tool is needed, and one call in a million would be seen. Clocks are
//! read in the vDSO, which is none. (Strict seccomp would do, but it forbids the processor's time stamp, too.)

use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Operation, Request, Segment};
use nvmed_io::{Binding, Device, DeviceOptions, Handle, HandleSettings, Scheduler};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::thread;

const STARTED: u8 = 1;
const REFUSED: u8 = 2;
const DONE: u8 = 3;

/// Lets this thread make no system call but exit(2), which ends it; whether the kernel can do that.
fn forbid_system_calls() -> bool {
    let step = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    // The number of the call is the first word of what the filter sees.
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_exit as u32, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_THREAD, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose pointer and length are those of `filter`, during the call; both
    // calls restrict this thread only.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    }
}

/// Runs `body` in a thread that may make no system call; whether it came to its end. `None`: the kernel has no
/// seccomp.
fn survives(body: impl FnOnce() + Send + 'static) -> Option<bool> {
    let (state, tid) = (Arc::new(AtomicU8::new(0)), Arc::new(AtomicI32::new(0)));
    let (mine, my_tid) = (Arc::clone(&state), Arc::clone(&tid));
    // Detached: it ends by a bare exit, or is killed; neither leaves a result to join.
    let _detached = thread::spawn(move || {
        // SAFETY: takes nothing, changes nothing.
        my_tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        if !forbid_system_calls() {
            mine.store(REFUSED, Ordering::SeqCst);
            return;
        }
        mine.store(STARTED, Ordering::SeqCst);
        body();
        mine.store(DONE, Ordering::SeqCst);
        // SAFETY: ends this thread only, at once; its stack and results are left to the end of the process.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
    while state.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    if state.load(Ordering::SeqCst) == REFUSED {
        return None;
    }
    let task = PathBuf::from(format!("/proc/self/task/{}", tid.load(Ordering::SeqCst)));
    while task.exists() {
        thread::yield_now();
    }
    Some(state.load(Ordering::SeqCst) == DONE)
}

fn device() -> (Arc<Device>, Segment) {
    let controller = Controller::new(ControllerConfig::default(), Media::ram(1 << 20, Pages::Base).unwrap());
    let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 16 }).unwrap();
    let memory = Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap());
    memory.fill(0, 4096, 1);
    let address = device.map(memory).unwrap();
    (device, Segment { address, bytes: 4096 })
}

fn requests(handle: &Handle, page: Segment) {
    let data = [page];
    let read = Request { operation: Operation::Read, lba: Lba(0), blocks: 8, data: &data, tag: 0, stream: 0 };
    for _ in 0..1000 {
        let read_ok = handle.read(Lba(0), &data).is_ok();
        let write_ok = handle.write(Lba(8), &data, true).is_ok();
        let ticket_ok = handle.submit(&read).is_ok_and(|ticket| handle.wait(ticket).is_ok());
        // A panic would make system calls, and be seen as one.
        assert!(read_ok && write_ok && ticket_ok && handle.flush().is_ok());
    }
}

#[test]
fn requests_make_no_system_call() {
    let Some(canary) = survives(thread::yield_now) else {
        println!("SKIPPED: this kernel has no seccomp, so system calls could not be counted");
        return;
    };
    assert!(!canary, "a system call went unseen: this test proves nothing here");
    for scheduler in [Scheduler::None, Scheduler::DEADLINE, Scheduler::Fair] {
        for binding in [Binding::Queue(0), Binding::Spread] {
            let (device, page) = device();
            device.set_scheduler(0, scheduler).unwrap();
            let handle = device.handle(binding);
            // What is done once a thread is not done here.
            requests(&handle, page);
            let inside = handle.clone();
            assert_eq!(survives(move || requests(&inside, page)), Some(true), "with {scheduler:?}");
            let settings =
                HandleSettings { on_reset: nvmed_io::OnReset::Replay, ..HandleSettings::default() };
            handle.set(settings).unwrap();
            // The first look at the clock finds the vDSO.
            requests(&handle, page);
            let inside = handle.clone();
            assert_eq!(survives(move || requests(&inside, page)), Some(true), "with a copy of each request");
        }
    }
}
