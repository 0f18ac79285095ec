//! Instructions of a program's file call below the wrapper, on the user's side, counted by single steps.
//!
//! `nvmed-probe` makes a number of calls between two stops, and then twice as many; the difference is that many calls.
//! The file system is the process's own (a private mount), of which the device answers in other threads: those are not
//! counted. valgrind cannot run a program below the wrapper, which is why the kernel counts (ptrace(2),
//! `PTRACE_SINGLESTEP`).

use crate::instructions::of_one;
use crate::mounted::tools;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use nvmed_lab::shell::run;
use std::path::PathBuf;
use std::process::{Child, Command};

/// Calls of the first count. A step takes some microseconds.
const CALLS: u64 = 50;

/// Every kind of call that is counted, by the name that `nvmed-probe` has for it: on a file of the file system, on one
/// of a file system that lies on memory, and on one of the host's.
pub const KINDS: [&str; 18] = [
    "ours.pread",
    "ours.pwrite",
    "ours.read",
    "ours.lseek",
    "ours.fstat",
    "ours.stat",
    "ours.access",
    "ours.open_close",
    "memory.read_8k",
    "memory.overwrite_8k",
    "memory.append_4k_fsync",
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
        of_one(CALLS, |calls| self.counted(kind, calls))
    }

    /// Instructions between the two stops of a probe.
    fn counted(&self, kind: &str, calls: u64) -> Result<u64, String> {
        let mut probe = self.probe(kind, calls)?;
        let counted = between_stops(&probe);
        // Whatever happened, it ends here.
        let _ = probe.kill();
        let _ = probe.wait();
        counted
    }

    fn probe(&self, kind: &str, calls: u64) -> Result<Child, String> {
        let whose = kind.split_once('.').map_or(kind, |(whose, _)| whose);
        let dir = if whose == "host" { PathBuf::from("/etc") } else { self.mounted() };
        let config = self.config(if whose == "memory" { whose } else { "ours" });
        Command::new(self.tools.join("nvmed-probe"))
            .args(["counted", kind])
            .arg(dir)
            .arg(calls.to_string())
            .env("LD_PRELOAD", self.tools.join("libnvmed_wrapper.so"))
            .env("WRAPPER_CONFIG", config)
            .spawn()
            .map_err(|error| format!("nvmed-probe: {error}"))
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
