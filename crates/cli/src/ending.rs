//! The processes of a run, and how a signal ends them.
//!
//! SIGTERM, SIGINT and SIGHUP that a process sends to `nvmed run` mean the whole run: every process of it gets the
//! signal, those that are there [`KILLED_AFTER`] later are killed, and what they have written is saved, as long as the
//! device answers ([`crate::stall`]). A second signal kills at once, and leaves the server [`HURRY`] to save. What a
//! terminal sends is the programs' own affair: they are in its foreground group, or not, as the shell among them wants
//! it.

use crate::failure::Status;
use crate::run::pass_on;
use crate::stall::WriteBack;
use nvmed_sys::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, set_child_subreaper,
    waitpid,
};
use std::collections::{HashMap, HashSet};
use std::io::Error;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Signals that end a run.
const ENDS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// Signals that somebody may send to us and mean the program.
const PASSED_ON: [i32; 3] = [libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
/// How long programs have to end by themselves.
const KILLED_AFTER: Duration = Duration::from_secs(5);
/// How long it is waited for what was killed: a process that waits for a disk of the host's cannot die before.
const LAST: Duration = Duration::from_secs(1);
/// How long the server has after a second signal.
const HURRY: Duration = Duration::from_millis(700);
/// Signals closer together are one: timeout(1) sends its own twice, to its child and to its group.
const ONE: Duration = Duration::from_millis(200);

/// What has become of a run that somebody wants to end.
pub(crate) struct Ending {
    signals: Signals,
    /// Signals that this process was told to ignore, as by nohup(1): a bit for each.
    ignored: u64,
    /// Not the run's: its server.
    server: Option<Pid>,
    /// Nor what this process had before the run, from the program that executed it.
    before: HashSet<Pid>,
    asked: Option<(i32, Instant)>,
    killed: Option<Instant>,
    hurried: Option<Instant>,
    /// No process is waited for any more.
    over: bool,
}

/// Gives this process, which a run's holder has started, the signals that the holder takes for itself, less those that
/// it takes as well.
///
/// # Errors
/// What the host answers.
pub(crate) fn let_through(taken: &[i32]) -> Result<(), Error> {
    let holders = [&ENDS[..], &PASSED_ON, &[libc::SIGCHLD]].concat();
    let others: Vec<i32> = holders.into_iter().filter(|number| !taken.contains(number)).collect();
    Signals::let_through(&others)
}

impl Ending {
    /// Takes the signals, and makes this process the parent of whatever loses its own below it.
    ///
    /// # Errors
    /// What the host answers.
    pub(crate) fn begin() -> Result<Self, Error> {
        let ignored = ignored();
        let signals = Signals::take(&[&ENDS[..], &PASSED_ON, &[libc::SIGCHLD]].concat())?;
        // Any number that is not 0 says yes.
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let before = children().collect();
        Ok(Self {
            signals,
            ignored,
            server: None,
            before,
            asked: None,
            killed: None,
            hurried: None,
            over: false,
        })
    }

    /// Lets a program that is to be started have its signals.
    pub(crate) fn release_in(&self, command: &mut Command) {
        self.signals.release_in(command);
    }

    /// This child is the server: it is told apart from the programs.
    pub(crate) fn spare(&mut self, server: &Child) {
        self.server = Pid::from_raw(server.id().cast_signed());
    }

    /// The signal that was asked to end the run by, if one was.
    pub(crate) fn asked(&self) -> Option<i32> {
        self.asked.map(|(number, _)| number)
    }

    /// Whether programs had to be killed.
    pub(crate) fn has_killed(&self) -> bool {
        self.killed.is_some()
    }

    /// Whether a second signal has come, and what it leaves the server has passed.
    pub(crate) fn gives_up(&self) -> bool {
        self.hurried.is_some_and(|since| since.elapsed() >= HURRY)
    }

    /// Waits until a child may have ended, something is to be read from `also`, or a time is up, and does meanwhile
    /// what signals ask for.
    ///
    /// # Errors
    /// What the host answers.
    pub(crate) fn wait(
        &mut self,
        program: Option<&Child>,
        also: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        loop {
            let now = Instant::now();
            if let Some((_, since)) = self.asked
                && self.killed.is_none()
                && now >= since + KILLED_AFTER
            {
                self.kill(now);
            }
            let fd = self.signals.as_fd();
            let mut fds = vec![PollFd::new(&fd, PollFlags::IN)];
            fds.extend(also.as_ref().map(|also| PollFd::new(also, PollFlags::IN)));
            let left = self.deadline().map(|deadline| deadline.saturating_duration_since(now));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let [signal, readable] =
                [0, 1].map(|index| fds.get(index).is_some_and(|fd| !fd.revents().is_empty()));
            if !signal {
                return Ok(());
            }
            let signal = self.signals.next()?;
            if signal.number == libc::SIGCHLD {
                self.reap(program);
                if self.killed.is_some() {
                    // What was started while the others were killed.
                    self.send(Signal::KILL);
                }
                return Ok(());
            } else if ENDS.contains(&signal.number) {
                // Before there is a program, a terminal's signal can mean nobody else.
                if signal.from_process || also.is_some() {
                    self.end(signal.number);
                    return Ok(());
                }
            } else if let Some(program) = program.filter(|_| signal.from_process) {
                pass_on(program, signal.number);
            }
            if readable {
                return Ok(());
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let kill = self.asked.filter(|_| self.killed.is_none()).map(|(_, since)| since + KILLED_AFTER);
        let last = self.killed.filter(|_| !self.over).map(|since| since + LAST);
        let hurry = self.hurried.map(|since| since + HURRY);
        [kill, last, hurry].into_iter().flatten().min()
    }

    /// Somebody wants the run to end.
    fn end(&mut self, number: i32) {
        let now = Instant::now();
        if self.ignored >> (number - 1) & 1 != 0 {
            return;
        }
        match self.asked {
            None => {
                self.asked = Some((number, now));
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.send(signal);
                }
                // One that is stopped takes it now.
                self.send(Signal::CONT);
            }
            Some((_, since)) if now < since + ONE => {}
            Some(_) => {
                self.hurried.get_or_insert(now);
                self.kill(now);
            }
        }
    }

    fn kill(&mut self, now: Instant) {
        self.killed.get_or_insert(now);
        self.send(Signal::KILL);
    }

    /// Sends a signal to every process of the run.
    fn send(&self, signal: Signal) {
        self.processes().into_iter().for_each(|process| process.send(signal));
    }

    /// Whether what was killed is given up: the program, too, may wait for a disk of the host's.
    pub(crate) fn leaves_the_program(&self) -> bool {
        self.gives_up() || self.killed.is_some_and(|since| since.elapsed() >= LAST)
    }

    /// Whether no process of the run is left, or none that dies.
    pub(crate) fn is_over(&mut self) -> bool {
        self.over = self.over || self.leaves_the_program() || self.processes().is_empty();
        self.over
    }

    /// The living processes below this one, whatever their sessions and groups, but for the server's and those that are
    /// older than the run.
    fn processes(&self) -> Vec<Process> {
        let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
        let mut dead = HashSet::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some(pid) = Pid::from_raw(pid) else { continue };
            let Some(stat) = Stat::read(&entry.path()) else { continue };
            children.entry(stat.parent).or_default().push(Process { pid, start: stat.start });
            if matches!(stat.state, 'Z' | 'X') {
                dead.insert(pid);
            }
        }
        let is_ours =
            |process: &Process| Some(process.pid) != self.server && !self.before.contains(&process.pid);
        let mut found = Vec::new();
        let mut parents = vec![std::process::id()];
        while let Some(parent) = parents.pop() {
            for process in children.remove(&parent).unwrap_or_default().into_iter().filter(is_ours) {
                parents.push(process.pid.as_raw_nonzero().get().cast_unsigned());
                if !dead.contains(&process.pid) {
                    found.push(process);
                }
            }
        }
        found
    }

    /// Takes the status of children that were others' before, so that they go.
    fn reap(&mut self, program: Option<&Child>) {
        let known = program.and_then(|program| Pid::from_raw(program.id().cast_signed()));
        for pid in children().filter(|pid| Some(*pid) != known && Some(*pid) != self.server) {
            if matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(Some(_))) {
                // Its number may be another's from now on.
                self.before.remove(&pid);
            }
        }
    }

    /// From here on, nobody looks at signals by [`Ending::wait`] any more: while this process saves what is left, one
    /// ends it when the device does not answer, a second one ends it at once.
    pub(crate) fn leave_to_thread(self, saved: Arc<WriteBack>) {
        let mut ending = Self { over: true, ..self };
        let mut saved = Some(saved);
        // Without a thread, no signal ends it before it is done.
        let _ = nvmed_sys::spawn_quiet("nvmed-signals", move || {
            loop {
                if let Some(saved) = saved.take_if(|_| ending.asked.is_some()) {
                    saved.end_when_stuck(Status::Run as u8);
                }
                if ending.hurried.is_some() || ending.wait(None, None).is_err() {
                    break;
                }
            }
            if ending.hurried.is_some() {
                std::process::exit(abandoned(ending.asked().unwrap_or(libc::SIGTERM)).into());
            }
        });
    }
}

/// Says what a second signal costs; answers the exit status.
pub(crate) fn abandoned(signal: i32) -> u8 {
    eprintln!(
        "nvmed: run: ended by a second signal before everything was saved: what fsync and sync have confirmed is on \
         the device, what was written after that may be lost"
    );
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The children of this process.
fn children() -> impl Iterator<Item = Pid> {
    let own = std::process::id();
    let text = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    let pids: Vec<_> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    pids.into_iter().filter_map(Pid::from_raw)
}

/// A process that was found; another one may have its number later.
struct Process {
    pid: Pid,
    start: u64,
}

impl Process {
    /// Sends it a signal, if it is there still.
    fn send(&self, signal: Signal) {
        let descriptor = pidfd_open(self.pid, PidfdFlags::empty());
        // The descriptor stays with one process, whoever gets its number; whether it is the one that was found is asked
        // after.
        let now = Stat::read(&Path::new("/proc").join(self.pid.to_string()));
        if now.is_none_or(|now| now.start != self.start) {
            return;
        }
        // It may have ended in between, or be another user's.
        let _ = match descriptor {
            Ok(descriptor) => pidfd_send_signal(descriptor, signal),
            // A kernel without (before 5.3), or no descriptor left.
            Err(_) => kill_process(self.pid, signal),
        };
    }
}

/// What the host tells of a process or of a thread (proc(5), `/proc/PID/stat`).
pub(crate) struct Stat {
    pub(crate) state: char,
    parent: u32,
    /// When it began, in ticks since the host did.
    start: u64,
}

impl Stat {
    /// Of the process or the thread whose directory this is.
    pub(crate) fn read(directory: &Path) -> Option<Self> {
        let text = std::fs::read(directory.join("stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // Its name, which may hold anything, ends at the last `)`; the fields from the third on follow, the 22nd is its
        // start.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
        Some(Self { state, parent, start: fields.nth(17)?.parse().ok()? })
    }
}

/// Signals that this process ignores.
fn ignored() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn whoever_has_the_number_of_a_process_that_has_ended_is_spared() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let start = Stat::read(&Path::new("/proc").join(pid.to_string())).unwrap().start;
        Process { pid, start: start - 1 }.send(Signal::KILL);
        Process { pid, start }.send(Signal::TERM);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
