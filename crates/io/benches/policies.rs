//! What each completion policy costs: latency and processor time of 4 KiB reads at depth 1.
//!
//! `cargo bench -p nvmed-io --bench policies [LATENCY_US [ROUNDS]]`: a medium of 200 µs in real time, whose
//! device has a thread of its own, and one of 50 µs in simulated time, where processor time is the time spent
//! looking. The policies take turns in rounds, each with a device of its own. The goals for hybrid: at most 40 % of
//! polling's processor time in the calling thread, at most 1.15 times its median.

use nvmed_engine::Segment;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_io::{Binding, Completions, Device, DeviceOptions, Handle, HandleSettings, QueueSettings};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: u64 = 10;
const READS: u64 = 300;

struct Contender {
    completion: Completions,
    device: Arc<Device>,
    handle: Handle,
    page: Segment,
    thread_ns: u64,
}

fn contender(completion: Completions, clock: Clock, latency_us: u64) -> Contender {
    let fixed =
        FixedProfile { read_ns: latency_us * 1000, write_ns: latency_us * 1000, link: Rate::UNLIMITED };
    let drive = Some(Profile::fixed(fixed));
    let config = ControllerConfig { clock, drive, ..ControllerConfig::default() };
    let controller = Controller::new(config, Media::null(1 << 30).expect("nothing"));
    let transport = InProcess::new(controller).expect("a thread for the device");
    let engine = NvmeEngine::open(Arc::new(transport)).expect("our controller comes up");
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: 32 }).expect("a queue");
    // Only who sleeps on it wants the interrupt; the others would be woken by it before their time.
    let interrupts = matches!(completion, Completions::Adaptive | Completions::Interrupt);
    let settings = QueueSettings { interrupts, ..QueueSettings::depth(32) };
    let queue = device.create_queue(settings).expect("a queue");
    let handle = device.bind(Binding::Queue(queue)).expect("the queue is there");
    handle.set(HandleSettings { completion, ..HandleSettings::default() }).expect("settings");
    let page = Arc::new(Mapping::anonymous(4096, Pages::Base).expect("a page"));
    let address = device.map(page).expect("a mapping");
    Contender { completion, device, handle, page: Segment { address, bytes: 4096 }, thread_ns: 0 }
}

fn read(contender: &Contender, count: u64) {
    for n in 0..count {
        contender.handle.read(Lba(n * 8), &[contender.page]).expect("a read");
    }
}

/// The policies by turns; then a line for each.
fn race(clock: Clock, latency_us: u64, rounds: u64, policies: &[Completions]) {
    let mut all: Vec<Contender> = policies.iter().map(|&one| contender(one, clock, latency_us)).collect();
    for contender in &mut all {
        read(contender, READS);
        contender.handle.measure(true);
        contender.thread_ns = contender.device.thread_stats().cpu_ns;
    }
    for _ in 0..rounds {
        all.iter().for_each(|contender| read(contender, READS));
    }
    println!("  policy      median us      p99   p99.99   caller CPU us   thread CPU us   looking us");
    let mut first = None;
    for contender in &all {
        let measured = contender.handle.measured().expect("it measures");
        let count = measured.latency.count() as f64;
        let us = |percent| measured.latency.percentile_ns(percent) as f64 / 1000.0;
        let thread_ns = contender.device.thread_stats().cpu_ns - contender.thread_ns;
        let (caller, looked) = (measured.cpu_ns as f64, measured.looked_ns() as f64);
        let burnt = if clock == Clock::Virtual { looked } else { caller };
        let (median, burnt_of) = *first.get_or_insert((us(50.0), burnt));
        println!(
            "  {:10} {:10.1} {:8.1} {:8.1} {:15.2} {:15.2} {:12.2}   {:4.0} % of polling's, median {:.2} x",
            format!("{:?}", contender.completion),
            us(50.0),
            us(99.0),
            us(99.99),
            caller / count / 1000.0,
            thread_ns as f64 / count / 1000.0,
            looked / count / 1000.0,
            100.0 * burnt / burnt_of,
            us(50.0) / median,
        );
    }
    if let Some(contender) = all.iter().find(|one| one.completion == Completions::Thread) {
        idle(contender);
    }
}

/// What the completion thread costs while nothing is outstanding.
fn idle(contender: &Contender) {
    const SECONDS: u64 = 3;
    std::thread::sleep(Duration::from_millis(100));
    let before = contender.device.thread_stats();
    std::thread::sleep(Duration::from_secs(SECONDS));
    let after = contender.device.thread_stats();
    let share = (after.cpu_ns - before.cpu_ns) as f64 / (SECONDS as f64 * 1e9);
    println!(
        "  completion thread idle: {:.4} % CPU, {} looks in {SECONDS} s",
        100.0 * share,
        after.looks - before.looks
    );
}

fn main() {
    let mut numbers = std::env::args().filter_map(|arg| arg.parse().ok());
    let (latency_us, rounds) = (numbers.next().unwrap_or(200), numbers.next().unwrap_or(ROUNDS));
    println!("{latency_us} us medium, real time:");
    race(Clock::Threaded, latency_us, rounds, &Completions::ALL);
    println!("50 us medium, simulated time:");
    let alone = [Completions::Poll, Completions::Hybrid, Completions::Adaptive, Completions::Interrupt];
    race(Clock::Virtual, 50, rounds, &alone);
}
