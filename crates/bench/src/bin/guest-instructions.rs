//! Instructions of a 4 KiB read: our driver through VFIO beside the kernel's NVMe driver, on the same kind of
//! device, in an emulated guest whose clock is its instruction counter (`tools/vm --icount`; `make bench-vm`).
//!
//! Counted are submission and completion, user and kernel, with the completion there before the first look. What
//! passes in between (idle, and the device) is not; what an interrupt costs is counted apart, by a loop of known length
//! that the interrupt breaks into. One line of JSON a row goes to standard output.

#[cfg(target_arch = "x86_64")]
fn main() {
    measure::all();
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("the guest's instruction counter is read as an x86-64 time stamp counter");
}

#[cfg(target_arch = "x86_64")]
mod measure {
    use nvmed_engine::{Completion, Engine, Operation, QueueOptions, QueuePair, Request, Segment};
    use nvmed_io::{Binding, Device, DeviceOptions};
    use nvmed_stack::{DeviceSpec, Open, open_engine};
    use nvmed_sys::{Mapping, Pages};
    use nvmed_units::Lba;
    use rustix::fd::{AsFd, AsRawFd, OwnedFd};
    use rustix::io_uring::{
        IoringEnterFlags, IoringRegisterOp, IoringSetupFlags, io_uring_enter, io_uring_params,
        io_uring_register, io_uring_setup,
    };
    use serde_json::json;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

    const BYTES: u32 = 4096;
    /// Reads measured a row, after as many that warm caches and predictors of the software.
    const READS: usize = 200;
    /// Looks for a completion before the device counts as dead, with a sleep before each.
    const LOOKS_MAX: u32 = 1_000_000;

    /// The instruction counter.
    fn now() -> u64 {
        // SAFETY: reads a counter; it touches no memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// Lets the device work: the processor idles.
    fn idle() {
        std::thread::sleep(std::time::Duration::from_micros(100));
    }

    fn median(values: &mut [u64]) -> u64 {
        values.sort_unstable();
        values[values.len() / 2]
    }

    /// A loop of `2 * turns` instructions.
    fn spin(turns: u64) {
        // SAFETY: counts a register down; no memory, no stack.
        unsafe {
            core::arch::asm!("2: dec {0}", "jnz 2b", inout(reg) turns => _, options(nomem, nostack));
        }
    }

    /// Turns of the loop until `word` is no longer `seen`, at most `limit`.
    #[inline(never)]
    fn turns_until(word: &AtomicU32, seen: u32, limit: u64) -> u64 {
        let mut turns = 0;
        while word.load(Ordering::Acquire) == seen && turns < limit {
            spin(64);
            turns += 1;
        }
        turns
    }

    /// Turns of the loop until `stop`, at most `limit`; `count` always says how many there were.
    #[inline(never)]
    fn turns_counted(count: &AtomicU64, stop: &AtomicBool, limit: u64) {
        let mut turns = 0;
        while !stop.load(Ordering::Relaxed) && turns < limit {
            spin(64);
            turns += 1;
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Ticks of a turn: the least of many samples, those into which no interrupt came.
    fn turn_ticks(run: impl Fn(u64)) -> f64 {
        const TURNS: u64 = 1000;
        let sample = || {
            let begun = now();
            run(TURNS);
            now() - begun
        };
        (0..50).map(|_| sample()).min().unwrap_or(0) as f64 / TURNS as f64
    }

    fn report(row: &str, what: &str, values: &mut [u64]) -> u64 {
        let middle = median(values);
        let spread = [values[values.len() / 20], values[values.len() - 1 - values.len() / 20]];
        let told = json!({
            "row": row, "what": what, "instructions": middle, "p5": spread[0], "p95": spread[1], "reads": values.len(),
        });
        println!("{told}");
        middle
    }

    /// Submission and completion of many reads, each `(submit, complete)` in ticks; reports their sum.
    fn row(name: &str, mut read: impl FnMut(u64) -> (u64, u64)) -> u64 {
        (0..READS as u64).for_each(|index| _ = read(index));
        let parts: Vec<_> = (0..READS as u64).map(read).collect();
        let part = |pick: fn(&(u64, u64)) -> u64| parts.iter().map(pick).collect::<Vec<_>>();
        report(name, "submission", &mut part(|p| p.0));
        report(name, "completion", &mut part(|p| p.1));
        report(name, "both", &mut part(|p| p.0 + p.1))
    }

    fn spec(device: &str) -> Arc<dyn Engine> {
        let spec = DeviceSpec::parse(device).expect("a device string");
        open_engine(&spec, Open::Existing { locked_by_run: false }).unwrap_or_else(|error| panic!("{error}"))
    }

    fn request(data: &[Segment], lba: u64, blocks: u32) -> Request<'_> {
        Request { operation: Operation::Read, lba: Lba(lba), blocks, data, tag: 1, stream: 0 }
    }

    /// Our queue pair.
    fn queue_pair(device: &str) -> u64 {
        let engine = spec(device);
        let mut pair = engine.queue(QueueOptions::depth(32)).expect("a queue");
        let memory = Arc::new(engine.memory(1 << 20, Pages::Huge).expect("memory"));
        let data = [Segment { address: engine.map(memory).expect("mapped"), bytes: BYTES }];
        let blocks = BYTES / engine.geometry().lba_bytes;
        let mut out: Vec<Completion> = Vec::with_capacity(4);
        row("queue pair (vfio)", |index| {
            let begun = now();
            pair.submit(&request(&data, index * u64::from(blocks), blocks)).expect("a slot");
            pair.ring();
            let submitted = now() - begun;
            (submitted, look(&mut *pair, &mut out))
        })
    }

    fn look(pair: &mut dyn QueuePair, out: &mut Vec<Completion>) -> u64 {
        for _ in 0..LOOKS_MAX {
            idle();
            out.clear();
            let begun = now();
            let count = pair.poll(out);
            let took = now() - begun;
            if count == 1 {
                out[0].result.expect("a read");
                return took;
            }
        }
        panic!("no completion");
    }

    /// Our handle over a queue.
    fn handle(device: &str) -> u64 {
        let engine = spec(device);
        let memory = Arc::new(engine.memory(1 << 20, Pages::Huge).expect("memory"));
        let data = [Segment { address: engine.map(memory).expect("mapped"), bytes: BYTES }];
        let blocks = BYTES / engine.geometry().lba_bytes;
        let device = Device::open(engine, DeviceOptions { queues: 1, depth: 32 }).expect("a device");
        let handle = device.handle(Binding::Spread);
        row("handle (vfio)", |index| {
            let begun = now();
            let ticket = handle.submit(&request(&data, index * u64::from(blocks), blocks)).expect("a slot");
            let submitted = now() - begun;
            for _ in 0..LOOKS_MAX {
                idle();
                let begun = now();
                let result = handle.poll(&ticket);
                let took = now() - begun;
                if let Some(result) = result {
                    result.expect("a read");
                    return (submitted, took);
                }
            }
            panic!("no completion");
        })
    }

    /// The kernel's own interface, used as well as it can be: registered file and buffer.
    struct Ring {
        fd: OwnedFd,
        rings: Mapping,
        entries: Mapping,
        buffer: Mapping,
        params: io_uring_params,
        _file: OwnedFd,
    }

    #[repr(C)]
    struct IoVec {
        base: *mut u8,
        len: usize,
    }

    impl Ring {
        fn new(path: &str, flags: IoringSetupFlags) -> Self {
            let file = open_direct(path);
            // SAFETY: all zeroes are a valid value of this plain structure, and what the kernel asks for.
            let mut params: io_uring_params = unsafe { core::mem::zeroed() };
            params.flags = flags;
            // SAFETY: `params` is a valid structure that the kernel reads and fills; it keeps no pointer.
            let fd = unsafe { io_uring_setup(8, &mut params) }.expect("a ring");
            let at =
                |offset| Mapping::shared(fd.as_fd(), offset, 4096, Pages::Base).expect("a ring's memory");
            let (rings, entries) = (at(0), at(0x1000_0000));
            let buffer = Mapping::anonymous(1 << 20, Pages::Huge).expect("memory");
            let vector = IoVec { base: buffer.address(), len: buffer.len() };
            let number = file.as_raw_fd();
            // SAFETY: one `iovec` of memory that lives as long as the ring, and one descriptor number, both
            // read during the call only.
            unsafe {
                io_uring_register(&fd, IoringRegisterOp::RegisterBuffers, (&raw const vector).cast(), 1)
                    .expect("a registered buffer");
                io_uring_register(&fd, IoringRegisterOp::RegisterFiles, (&raw const number).cast(), 1)
                    .expect("a registered file");
            }
            Self { fd, rings, entries, buffer, params, _file: file }
        }

        /// One read is entered; the ticks that took.
        fn submit(&self, index: u64) -> u64 {
            let begun = now();
            let tail = self.rings.u32(self.params.sq_off.tail as usize).load(Ordering::Relaxed);
            let slot = (tail & (self.params.sq_entries - 1)) as usize;
            let mut sqe = [0u8; 64];
            // IORING_OP_READ_FIXED with IOSQE_FIXED_FILE.
            (sqe[0], sqe[1]) = (4, 1);
            sqe[8..16].copy_from_slice(&(index * u64::from(BYTES)).to_ne_bytes());
            sqe[16..24].copy_from_slice(&(self.buffer.address() as u64).to_ne_bytes());
            sqe[24..28].copy_from_slice(&BYTES.to_ne_bytes());
            self.entries.write(slot * 64, &sqe);
            self.rings
                .u32(self.params.sq_off.array as usize + slot * 4)
                .store(slot as u32, Ordering::Relaxed);
            self.rings.u32(self.params.sq_off.tail as usize).store(tail.wrapping_add(1), Ordering::Release);
            // SAFETY: the entry names registered memory of this ring, and that is all the kernel follows.
            let entered = unsafe { io_uring_enter(&self.fd, 1, 0, IoringEnterFlags::empty()) };
            let took = now() - begun;
            assert_eq!(entered, Ok(1));
            took
        }

        /// Has the kernel look at the device.
        fn poll(&self) {
            // SAFETY: nothing is submitted; no pointer is passed.
            unsafe { io_uring_enter(&self.fd, 0, 0, IoringEnterFlags::GETEVENTS) }.expect("a look");
        }

        /// Takes the completion, if it is there.
        fn take(&self) -> bool {
            let head = self.rings.u32(self.params.cq_off.head as usize);
            let at = head.load(Ordering::Relaxed);
            if self.rings.u32(self.params.cq_off.tail as usize).load(Ordering::Acquire) == at {
                return false;
            }
            let slot = (at & (self.params.cq_entries - 1)) as usize;
            let result = self.rings.u32(self.params.cq_off.cqes as usize + slot * 16 + 8);
            assert_eq!(result.load(Ordering::Relaxed), BYTES, "a read");
            head.store(at.wrapping_add(1), Ordering::Release);
            true
        }
    }

    fn open_direct(path: &str) -> OwnedFd {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).expect("the kernel's block device")
    }

    /// io_uring on a queue of the kernel's driver that is polled.
    fn uring_polled(path: &str) -> u64 {
        let ring = Ring::new(path, IoringSetupFlags::IOPOLL);
        row("io_uring, polled queue (kernel)", |index| {
            let submitted = ring.submit(index);
            for _ in 0..LOOKS_MAX {
                idle();
                let begun = now();
                ring.poll();
                let there = ring.take();
                let took = now() - begun;
                if there {
                    return (submitted, took);
                }
            }
            panic!("no completion");
        })
    }

    /// io_uring on a queue with interrupts: the submission alone, and what the interrupt takes, which completes the
    /// read in the kernel. Reads that were done before the submission returned are left out.
    fn uring_interrupt(path: &str, turn: f64) -> u64 {
        const NAME: &str = "io_uring, interrupts (kernel)";
        let ring = Ring::new(path, IoringSetupFlags::empty());
        let (mut submissions, mut interrupts, mut takes) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..20 * READS as u64 {
            let submitted = ring.submit(index % 1024);
            let posted = ring.rings.u32(ring.params.cq_off.tail as usize);
            let before = ring.rings.u32(ring.params.cq_off.head as usize).load(Ordering::Relaxed);
            // The interrupt breaks into this; its instructions are what the turns do not explain.
            let begun = now();
            let turns = turns_until(posted, before, u64::MAX);
            let passed = now() - begun;
            let begun = now();
            assert!(ring.take());
            if turns > 0 && index >= READS as u64 {
                takes.push(now() - begun);
                submissions.push(submitted);
                interrupts.push(passed.saturating_sub((turns as f64 * turn) as u64));
            }
        }
        report(NAME, "submission", &mut submissions);
        report(NAME, "completion taken", &mut takes);
        report(NAME, "interrupt, with the completion in the kernel", &mut interrupts)
    }

    /// Work for the processor while a reader sleeps: it counts its turns, so that what it did not do is known.
    struct Idler {
        turns: Arc<AtomicU64>,
        stop: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Idler {
        fn start() -> Self {
            let (turns, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let (count, end) = (Arc::clone(&turns), Arc::clone(&stop));
            let thread = std::thread::spawn(move || {
                // SCHED_IDLE: whoever wakes takes the processor at once.
                // SAFETY: a plain structure on this stack, read during the call.
                unsafe {
                    let param = libc::sched_param { sched_priority: 0 };
                    assert_eq!(libc::sched_setscheduler(0, libc::SCHED_IDLE, &param), 0);
                }
                turns_counted(&count, &end, u64::MAX);
            });
            Self { turns, stop, thread: Some(thread) }
        }
    }

    impl Drop for Idler {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            if let Some(thread) = self.thread.take() {
                thread.join().expect("no panic");
            }
        }
    }

    /// Ticks of `work` that an idler beside it did not use, and whether the caller slept meanwhile.
    fn counted(idler: &Idler, turn: f64, work: impl FnOnce()) -> (u64, bool) {
        let slept = switches();
        let (begun, turns) = (now(), idler.turns.load(Ordering::Relaxed));
        work();
        let turns = idler.turns.load(Ordering::Relaxed) - turns;
        let ticks = now() - begun;
        (ticks.saturating_sub((turns as f64 * turn) as u64), switches() > slept)
    }

    /// How often this thread gave the processor away.
    fn switches() -> i64 {
        // SAFETY: all zeroes are a valid value; the call fills the structure, which lives on this stack.
        unsafe {
            let mut usage: libc::rusage = core::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
            usage.ru_nvcsw
        }
    }

    /// Reports a call that may sleep: apart, those that did not have to, and those that did.
    fn sleeper(name: &str, turn: f64, mut read: impl FnMut(u64)) -> u64 {
        let idler = Idler::start();
        let all: Vec<_> =
            (0..10 * READS as u64).map(|index| counted(&idler, turn, || read(index % 1024))).collect();
        let part = |slept: bool| {
            all[READS..].iter().filter(|one| one.1 == slept).map(|one| one.0).collect::<Vec<_>>()
        };
        let (mut there, mut waited) = (part(false), part(true));
        if !waited.is_empty() {
            report(name, "both, with interrupt and two switches", &mut waited);
        }
        if there.is_empty() { 0 } else { report(name, "both, with interrupt, no sleep", &mut there) }
    }

    /// `pread`. A read that is done before the call would sleep is submission, interrupt and completion.
    fn psync(path: &str, turn: f64) -> u64 {
        let file = open_direct(path);
        let buffer = Mapping::anonymous(1 << 20, Pages::Huge).expect("memory");
        sleeper("pread (kernel)", turn, |index| {
            let offset = (index * u64::from(BYTES)) as i64;
            // SAFETY: `BYTES` writable bytes of a mapping that outlives the call.
            let got =
                unsafe { libc::pread(file.as_raw_fd(), buffer.address().cast(), BYTES as usize, offset) };
            assert_eq!(got, BYTES as isize);
        })
    }

    /// Our queue pair, waiting for the interrupt.
    fn queue_pair_interrupt(device: &str, turn: f64) {
        let engine = spec(device);
        let mut pair = engine.queue(QueueOptions::depth(32)).expect("a queue");
        let memory = Arc::new(engine.memory(1 << 20, Pages::Huge).expect("memory"));
        let data = [Segment { address: engine.map(memory).expect("mapped"), bytes: BYTES }];
        let blocks = BYTES / engine.geometry().lba_bytes;
        let mut out: Vec<Completion> = Vec::with_capacity(4);
        sleeper("queue pair (vfio), by interrupt", turn, |index| {
            pair.submit(&request(&data, index * u64::from(blocks), blocks)).expect("a slot");
            pair.ring();
            loop {
                let seen = engine.events(pair.vector());
                if pair.poll(&mut out) == 1 {
                    break;
                }
                engine.wait(pair.vector(), seen, 1_000_000);
            }
            assert!(out.drain(..).all(|completion| completion.result.is_ok()));
        });
    }

    /// The rivals' instructions over ours.
    fn ratios(name: &str, ours: u64, polled: u64, pread: u64, interrupt: u64) {
        let over = |rival: u64| rival as f64 / ours as f64;
        let apart = over(pread.saturating_sub(interrupt));
        let hundredths = |ratio: f64| (ratio * 100.0).round() / 100.0;
        let told = json!({
            "row": "ratio",
            "over": name,
            "io_uring_polled": hundredths(over(polled)),
            "pread": hundredths(over(pread)),
            "pread_without_interrupt": hundredths(apart),
            "goal": 5.0,
            "met": over(polled).min(apart) >= 5.0,
        });
        println!("{told}");
    }

    pub fn all() {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [ours, kernel] = &arguments[..] else {
            eprintln!(
                "usage: guest-instructions vfio:ADDRESS?interrupts=off /dev/nvmeXnY, in a guest of tools/vm --icount"
            );
            std::process::exit(2);
        };
        let mut loops: Vec<u64> = (0..21)
            .map(|_| {
                let begun = now();
                spin(100_000);
                now() - begun
            })
            .collect();
        let loops = median(&mut loops);
        assert!(
            (200_000..201_000).contains(&loops),
            "a loop of 200,000 instructions took {loops} ticks: this guest's clock does not count instructions"
        );
        let never = AtomicU32::new(1);
        let turn = turn_ticks(|turns| _ = turns_until(&never, 1, turns));
        let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let idler_turn = turn_ticks(|turns| turns_counted(&count, &stop, turns));
        let pair = queue_pair(ours);
        let handle = handle(ours);
        let polled = uring_polled(kernel);
        let interrupt = uring_interrupt(kernel, turn);
        let pread = psync(kernel, idler_turn);
        queue_pair_interrupt(ours.trim_end_matches("?interrupts=off"), idler_turn);
        ratios("queue pair", pair, polled, pread, interrupt);
        ratios("handle", handle, polled, pread, interrupt);
    }
}
