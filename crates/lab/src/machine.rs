//! What a figure cannot be read without, and clocks.

use rustix::time::ClockId;

/// Processor, number of cores and kernel.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{}, {} cores, Linux {}", model.trim_start_matches([' ', '\t', ':']), cores(), kernel.trim())
}

/// Processors that this process may use.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The load average of the last minute: what else ran.
#[must_use]
pub(crate) fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

fn clock(id: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(id);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Monotonic time, nanoseconds.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    clock(ClockId::Monotonic)
}

/// Processor time of this thread, nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    clock(ClockId::ThreadCPUTime)
}

/// Processor time of this process, all its threads, nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    clock(ClockId::ProcessCPUTime)
}

/// What one look at the clock costs, nanoseconds.
#[must_use]
pub(crate) fn stamp_ns() -> f64 {
    const LOOKS: u32 = 20_000;
    let begin = now_ns();
    for _ in 0..LOOKS {
        std::hint::black_box(now_ns());
    }
    (now_ns() - begin) as f64 / f64::from(LOOKS)
}
