//! The processes of a run, and how a signal ends them.
//!
//! SIGTERM, SIGINT and SIGHUP that a process sends to `nvmed run` mean the whole run: every process of it gets the signal,
//! those that are there [`PATIENCE`] later are killed, and what they have written is saved. A second signal kills at once, and
//! leaves the server [`HURRY`] to save. What a terminal sends is the programs' own affair: they are in its foreground
//! group, or not, as the shell among them wants it.

use crate::run::pass_on;
use nvmed_sys::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use std::collections::{HashMap, HashSet};
use std::io::Error;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Signals that end a run.
const ENDS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// Signals that somebody may send to us and mean the program.
const PASSED_ON: [i32; 3] = [libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
/// How long programs have to end by themselves.
const PATIENCE: Duration = Duration::from_secs(5);
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

    /// The signals, for who starts the server.
    pub(crate) fn signals(&self) -> &Signals {
        &self.signals
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

    /// Waits until a child may have ended, something is to be read from `also`, or a time is up, and does meanwhile what
    /// signals ask for.
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
                && now >= since + PATIENCE
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
        let patience = self.asked.filter(|_| self.killed.is_none()).map(|(_, since)| since + PATIENCE);
        let last = self.killed.filter(|_| !self.over).map(|since| since + LAST);
        let hurry = self.hurried.map(|since| since + HURRY);
        [patience, last, hurry].into_iter().flatten().min()
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
        for pid in self.processes() {
            // It may have ended in between, or be another user's.
            let _ = kill_process(pid, signal);
        }
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

    /// The living processes below this one, whatever their sessions and groups, but for the server's and those that are older
    /// than the run.
    fn processes(&self) -> Vec<Pid> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut dead = HashSet::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some((state, parent)) = state_and_parent(pid) else { continue };
            children.entry(parent).or_default().push(pid);
            if matches!(state, 'Z' | 'X') {
                dead.insert(pid);
            }
        }
        let is_ours = |pid: &Pid| Some(*pid) != self.server && !self.before.contains(pid);
        let mut found = Vec::new();
        let mut parents = vec![std::process::id()];
        while let Some(parent) = parents.pop() {
            let below = children.remove(&parent).unwrap_or_default();
            for pid in below.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())).filter(is_ours) {
                let number = pid.as_raw_nonzero().get().cast_unsigned();
                parents.push(number);
                if !dead.contains(&number) {
                    found.push(pid);
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

    /// From here on, nobody looks at signals by [`Ending::wait`] any more: while this process saves what is left, a further one
    /// ends it.
    pub(crate) fn leave_to_thread(self) {
        let mut ending = Self { over: true, ..self };
        // Without a thread, no signal ends it before it is done.
        let _ = nvmed_sys::spawn_quiet("nvmed-signals", move || {
            while ending.hurried.is_none() && ending.wait(None, None).is_ok() {}
            if ending.hurried.is_some() {
                std::process::exit(abandoned(ending.asked().unwrap_or(libc::SIGTERM)).into());
            }
        });
    }
}

/// Says what a second signal costs; answers the exit status.
pub(crate) fn abandoned(signal: i32) -> u8 {
    eprintln!(
        "nvmed: run: ended by a second signal before everything was saved: what fsync and sync have confirmed is on the \
         device, what was written after that may be lost"
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

/// State and parent of a process (proc(5), `/proc/PID/stat`): its name, which may hold anything, ends at the last `)`.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Signals that this process ignores.
fn ignored() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
