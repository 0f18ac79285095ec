//! Instructions of a program's file call below the wrapper, on the user's side, counted by single steps.
//!
//! `nvmed-probe` makes a number of calls between two stops, and then twice as many; the difference is that many calls.
//! The file system is the process's own (a private mount), of which the device answers in other threads, or that of a
//! server (a shared mount), whose threads are none of the program's: those are not counted. valgrind cannot run a
//! program below the wrapper, which is why the kernel counts (ptrace(2), `PTRACE_SINGLESTEP`).

use crate::instructions::of_one;
use crate::mounted::tools;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use nvmed_lab::shell::run;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Calls of the first count. A step takes some microseconds.
const CALLS: u64 = 50;
/// The same of calls that copy 64 KiB or more: each byte is a step, though it does not count.
const LARGE_CALLS: u64 = 2;

/// Every kind of call that is counted, by the name that `nvmed-probe` has for it: on a file of the file system, on one
/// of a file system that lies on memory, on one of that by a shared mount, and on one of the host's.
pub const KINDS: [&str; 23] = [
    "ours.pread",
    "ours.pwrite",
    "ours.read",
    "ours.lseek",
    "ours.fstat",
    "ours.stat",
    "ours.access",
    "ours.open_close",
    "memory.read_8k",
    "memory.read_64k",
    "memory.read_1m",
    "memory.overwrite_8k",
    "memory.append_4k_fsync",
    "shared.read_8k",
    "shared.read_64k",
    "shared.read_1m",
    "host.pread",
    "host.lseek",
    "host.fstat",
    "host.stat",
    "host.access",
    "host.open_close",
    "host.poll",
];

/// What a probe runs on: a file system in a file, another in a file that is memory, and the wrapper's configuration of
/// each.
pub struct Ground {
    dir: PathBuf,
    tools: PathBuf,
}

impl Ground {
    /// Makes it.
    ///
    /// # Errors
    /// The programs beside this one are not all there, or there is no room.
    pub fn new() -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("nvmed-bench-{}-steps", std::process::id()));
        let ground = Self { dir, tools: tools()? };
        std::fs::create_dir_all(&ground.dir).map_err(|error| format!("{}: {error}", ground.dir.display()))?;
        let image = ground.dir.join("image").display().to_string();
        for (kind, device) in
            [("ours", image.clone()), ("memory", format!("nvm:{image}-memory?flush=process"))]
        {
            run(Command::new(ground.tools.join("nvmed")).args(["format", "--size", "64M", &device]))?;
            let text = format!("storage_dev={device}\nwrap_dir={}\n", ground.mounted().display());
            let config = ground.config(kind);
            std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
        }
        Ok(ground)
    }

    /// Instructions of one call of a kind.
    ///
    /// # Errors
    /// ptrace(2) is not allowed, or the probe failed.
    pub fn a_call(&self, kind: &str) -> Result<f64, String> {
        let is_large = kind.ends_with("read_64k") || kind.ends_with("read_1m");
        of_one(if is_large { LARGE_CALLS } else { CALLS }, |calls| self.counted(kind, calls))
    }

    /// Instructions between the two stops of a probe.
    fn counted(&self, kind: &str, calls: u64) -> Result<u64, String> {
        let whose = kind.split_once('.').map_or(kind, |(whose, _)| whose);
        let dir = if whose == "host" { PathBuf::from("/etc") } else { self.mounted() };
        if whose == "shared" {
            return self.counted_in_run(kind, &dir, calls);
        }
        let config = self.config(if whose == "memory" { whose } else { "ours" });
        let mut probe = probe(&self.tools, kind, &dir, calls);
        probe.env("LD_PRELOAD", self.tools.join("libnvmed_wrapper.so")).env("WRAPPER_CONFIG", config);
        counted_of(probe)
    }

    /// As [`Ground::counted`], below a shared mount: who counts is a program of the run too.
    fn counted_in_run(&self, kind: &str, dir: &Path, calls: u64) -> Result<u64, String> {
        let mut inside = Command::new(self.tools.join("nvmed"));
        inside.args(["run", "--shared", "--config"]).arg(self.config("memory")).arg("--");
        inside.arg(std::env::current_exe().map_err(|error| error.to_string())?);
        inside.args([INSIDE, kind]).arg(dir).arg(calls.to_string());
        let told = run(&mut inside).map_err(|error| error.to_string())?;
        told.trim().parse().map_err(|_| format!("{kind}: it said {told:?}"))
    }

    /// Where the file system is, for the probe alone.
    fn mounted(&self) -> PathBuf {
        self.dir.join("on")
    }

    fn config(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{kind}.conf"))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The first argument of the benchmark that counts within a run: a kind, a directory and how many calls follow.
pub const INSIDE: &str = "--instructions-inside";

/// Counts within a run, and says how many.
///
/// # Errors
/// As [`Ground::a_call`].
pub fn count_inside(kind: &str, dir: &str, calls: &str) -> Result<(), String> {
    let calls = calls.parse().map_err(|_| format!("`{calls}` is not a number"))?;
    println!("{}", counted_of(probe(&tools()?, kind, Path::new(dir), calls))?);
    Ok(())
}

fn probe(tools: &Path, kind: &str, dir: &Path, calls: u64) -> Command {
    let mut probe = Command::new(tools.join("nvmed-probe"));
    probe.args(["counted", kind]).arg(dir).arg(calls.to_string());
    probe
}

fn counted_of(mut probe: Command) -> Result<u64, String> {
    let mut probe = probe.spawn().map_err(|error| format!("nvmed-probe: {error}"))?;
    let counted = between_stops(&probe);
    // Whatever happened, it ends here.
    let _ = probe.kill();
    let _ = probe.wait();
    counted
}

/// Lets a probe run to its first stop, and counts its steps to the second.
fn between_stops(probe: &Child) -> Result<u64, String> {
    let pid = Pid::from_raw(probe.id().cast_signed());
    match stop(pid)? {
        Signal::SIGUSR1 => {}
        other => return Err(format!("nvmed-probe: {other} before the first call")),
    }
    let (mut steps, mut before) = (0, 0);
    loop {
        ptrace::step(pid, None).map_err(|errno| format!("a step: {errno}"))?;
        match stop(pid)? {
            Signal::SIGTRAP => {
                // A repeated instruction stops at itself each time, and is one.
                let at = ptrace::getregs(pid).map_err(|errno| format!("its registers: {errno}"))?.rip;
                steps += u64::from(at != before);
                before = at;
            }
            Signal::SIGUSR1 => return Ok(steps),
            other => return Err(format!("nvmed-probe: {other} after {steps} steps")),
        }
    }
}

/// The signal at which a probe stops.
fn stop(pid: Pid) -> Result<Signal, String> {
    match waitpid(pid, None) {
        Ok(WaitStatus::Stopped(_, signal)) => Ok(signal),
        Ok(other) => Err(format!("nvmed-probe does not stop: {other:?}")),
        Err(errno) => Err(format!("nvmed-probe: {errno}")),
    }
}
