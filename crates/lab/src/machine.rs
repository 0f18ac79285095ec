//! What a figure cannot be read without, and clocks.

pub use nvmed_sys::monotonic_ns as now_ns;

use rustix::time::ClockId;
use std::path::Path;

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

/// Processor time that the kernel's own threads had so far, nanoseconds: write-back, journals, block layer. It is the
/// whole machine's, so a difference means something only where nothing else writes.
#[must_use]
pub fn kernel_threads_ns() -> u64 {
    let Ok(all) = std::fs::read_dir("/proc") else { return 0 };
    all.flatten().filter_map(|entry| kernel_thread_ns(&entry.path())).sum()
}

/// Of one process, if it is a thread of the kernel's.
fn kernel_thread_ns(process: &Path) -> Option<u64> {
    /// `PF_KTHREAD` of the flags in proc_pid_stat(5).
    const KERNEL_THREAD: u64 = 0x0020_0000;
    process.file_name()?.to_str()?.parse::<u32>().ok()?;
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The flags are the seventh word after the name, which may hold anything.
    let flags: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(6)?.parse().ok()?;
    if flags & KERNEL_THREAD == 0 {
        return None;
    }
    let scheduled = std::fs::read_to_string(process.join("schedstat")).ok()?;
    scheduled.split_ascii_whitespace().next()?.parse().ok()
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
