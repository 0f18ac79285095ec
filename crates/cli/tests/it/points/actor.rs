//! The programs of a run: they append, replace, read, open, unlink and start others, and say what was done.

use super::record::{LOGS, REPLACED, count, edition, edition_of, record};
use nvmed_dice::Dice;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Error, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, exit};
use std::time::{Duration, UNIX_EPOCH};

/// Which part this program plays below `nvmed run`.
pub(super) const PART: &str = "NVMED_TEST_PART";
/// An actor's name, from which its dice come too.
const WHO: &str = "NVMED_TEST_WHO";
/// How many rounds it plays at most.
const ROUNDS: &str = "NVMED_TEST_ROUNDS";
/// The point at which a program is to end that it starts.
const HEIR: &str = "NVMED_TEST_HEIR";
/// The points at which actors are to end, one after the other.
pub(super) const STRIKES: &str = "NVMED_TEST_STRIKES";
/// What a process knows its point by.
pub(super) const POINT: &str = "NVMED_POINT";

const HOME: &str = "store";
/// Once it is there, actors play no further round.
const OVER: &str = "store/over";
/// Ends an actor that nobody ends.
const ROUNDS_MAX: u64 = 500;

type Done<T = ()> = io::Result<T>;

/// Says it in one write.
fn say(line: &str) {
    let mut out = io::stdout();
    writeln!(out, "+{line}").and_then(|()| out.flush()).unwrap();
}

fn wrong(what: impl ToString) -> Error {
    Error::other(what.to_string())
}

fn path(name: &str) -> String {
    format!("{HOME}/{name}")
}

struct Actor {
    who: String,
    dice: Dice,
    /// The number of the next record in each log.
    next: [u64; 2],
    /// Of the next edition.
    edition: u64,
    /// The replaced file as it was a while ago, open since.
    held: Option<(File, String)>,
    /// The point of programs that it starts.
    heir: Option<String>,
}

impl Actor {
    fn new(who: String) -> Self {
        let seeds: Vec<u64> = who.bytes().map(u64::from).collect();
        let heir = std::env::var(HEIR).ok();
        Self { who, dice: Dice::of(&seeds), next: [0; 2], edition: 0, held: None, heir }
    }

    fn play(&mut self, rounds: u64) -> Done {
        for _ in 0..rounds {
            if is_there(OVER)? {
                break;
            }
            let log = self.dice.index(2);
            self.append(log)?;
            self.look(log)?;
            self.replace()?;
            self.append(1 - log)?;
            self.look_at_replaced()?;
            if self.heir.is_some() || self.dice.roll(3) == 0 {
                self.start_another()?;
            }
        }
        Ok(())
    }

    fn open(&self, log: usize) -> Done<File> {
        OpenOptions::new().append(true).create(true).open(path(LOGS[log]))
    }

    fn append(&mut self, log: usize) -> Done {
        let mut file = self.open(log)?;
        for _ in 0..=self.dice.roll(8) {
            file.write_all(record(&self.who, self.next[log]).as_bytes())?;
            self.appended(log);
        }
        Ok(())
    }

    fn appended(&mut self, log: usize) {
        self.next[log] += 1;
        say(&format!("appended {} {log}", self.who));
    }

    /// Reads a log as it is at this moment.
    fn look(&self, log: usize) -> Done {
        let there = count(&fs::read_to_string(path(LOGS[log]))?).map_err(wrong)?;
        let own = there.get(&self.who).copied().unwrap_or(0);
        if own == self.next[log] {
            Ok(())
        } else {
            Err(wrong(format!("{own} of {} records", self.next[log])))
        }
    }

    /// Writes a new file, changes its mode and time, and renames it over the one that all look at. One more is
    /// unlinked.
    fn replace(&mut self) -> Done {
        let (own, text) = (path(&format!("c.{}", self.who)), edition(&self.who, self.edition));
        let (first, rest) = text.split_at(text.len() / 3);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&own)?;
        file.write_all(first.as_bytes())?;
        file.set_permissions(Permissions::from_mode(mode_of(self.edition)))?;
        file.write_all(rest.as_bytes())?;
        file.set_modified(UNIX_EPOCH + Duration::from_secs(self.edition))?;
        drop(file);
        fs::rename(own, path(REPLACED))?;
        self.edition += 1;
        say(&format!("replaced {}", self.who));
        let short = path(&format!("u.{}", self.who));
        fs::write(&short, &text)?;
        fs::remove_file(short)
    }

    /// Opens the replaced file again and again, as others replace it; what was opened stays what it was.
    fn look_at_replaced(&mut self) -> Done {
        for _ in 0..4 {
            let mut file = File::open(path(REPLACED))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            let (_, edition) = edition_of(&text).map_err(wrong)?;
            let status = file.metadata()?;
            if (status.mode() & 0o777, status.mtime()) != (mode_of(edition), edition as i64) {
                return Err(wrong(format!("edition {edition} has mode and time {status:?}")));
            }
            if let Some((mut held, before)) = self.held.replace((file, text)) {
                held.rewind()?;
                let mut again = String::new();
                held.read_to_string(&mut again)?;
                if again != before {
                    return Err(wrong(format!("{again:?} was {before:?}")));
                }
            }
        }
        let syncs = self.dice.roll(2) == 0;
        if let Some((held, _)) = self.held.as_ref().filter(|_| syncs) {
            // A call that takes more than a posted open.
            held.sync_all()?;
        }
        Ok(())
    }

    /// Has another program append through a descriptor of this one's.
    fn start_another(&mut self) -> Done {
        let mut command = Command::new("sh");
        command.args(["-c", "unset NVMED_POINT; exec printf %s \"$0\"", &record(&self.who, self.next[0])]);
        command.stdout(self.open(0)?).env_remove(POINT);
        command.envs(self.heir.iter().map(|point| (POINT, point)));
        let child = command.spawn()?;
        drop(command);
        let (is_struck, status) = ended(&child, || self.append(1))?;
        if is_struck {
            say("struck");
        }
        match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => self.appended(0),
            (None, Some(libc::SIGKILL)) if is_struck => {}
            _ => {
                // A call, which no shelf answers in the moment before the server's death is known.
                self.open(1)?;
                return Err(wrong(format!("the program that it started ended with {status:?}")));
            }
        }
        Ok(())
    }
}

fn mode_of(edition: u64) -> u32 {
    0o600 | (edition % 64) as u32
}

fn is_there(path: &str) -> Done<bool> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        status => status.map(|_| true),
    }
}

/// Waits for a child, and does `meanwhile` when it has stopped, before it goes on. The answer is whether it was killed
/// or had stopped, which nobody does but the points, and how it ended.
fn ended(child: &Child, meanwhile: impl FnOnce() -> Done) -> Done<(bool, WaitStatus)> {
    let pid = Pid::from_child(child);
    let wait = || Ok::<_, Error>(waitpid(Some(pid), WaitOptions::UNTRACED)?.expect("it waits").1);
    let status = wait()?;
    if !status.stopped() {
        return Ok((status.terminating_signal() == Some(libc::SIGKILL), status));
    }
    let done = meanwhile();
    kill_process(pid, Signal::CONT)?;
    let status = wait()?;
    done.map(|()| (true, status))
}

/// This program again, as an actor.
fn actor(who: &str, rounds: u64) -> Command {
    let mut command = super::part("actor");
    command.env(WHO, who).env(ROUNDS, rounds.to_string()).env_remove(POINT);
    command
}

fn succeeded(child: &Child) -> Done {
    match ended(child, || Ok(()))? {
        (false, status) if status.exit_status() == Some(0) => Ok(()),
        (_, status) => Err(wrong(format!("an actor ended with {status:?}"))),
    }
}

/// Starts actors that are killed or stopped, one after the other, beside one that is not; and while one is stopped,
/// another one that has to come to its end.
fn strike_all() -> Done {
    let strikes = std::env::var(STRIKES).map_err(wrong)?;
    for (number, strike) in strikes.split(',').enumerate() {
        let peer = actor(&format!("peer{number}"), ROUNDS_MAX).spawn()?;
        let who = format!("victim{number}");
        let victim = if ["HeirAdopted", "SuccessorMade"].iter().any(|of_heirs| strike.starts_with(of_heirs)) {
            // It starts the one that is killed or stopped.
            actor(&who, 1).env(HEIR, strike).spawn()?
        } else {
            actor(&who, ROUNDS_MAX).env(POINT, strike).spawn()?
        };
        let (is_struck, status) = ended(&victim, || {
            succeeded(&actor(&format!("other{number}"), 3).spawn()?)?;
            File::create(OVER).map(drop)
        })?;
        if is_struck {
            say("struck");
        }
        if status.exit_status() != Some(0) {
            say(&format!("ended {who}"));
        }
        drop(File::create(OVER)?);
        succeeded(&peer)?;
        fs::remove_file(OVER)?;
    }
    Ok(())
}

/// Starts two actors, and ends them when a line comes from standard input.
fn play_two() -> Done {
    let two = ["one", "two"].map(|who| actor(who, ROUNDS_MAX).spawn());
    std::thread::spawn(|| {
        if io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0) {
            drop(File::create(OVER));
        }
    });
    two.into_iter().try_for_each(|child| succeeded(&child?))
}

/// Plays the part that the environment names, if any, and ends the process.
pub(super) fn play() {
    let Ok(part) = std::env::var(PART) else { return };
    let who = std::env::var(WHO).unwrap_or_default();
    let rounds = std::env::var(ROUNDS).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let played = match part.as_str() {
        "actor" => Actor::new(who.clone()).play(rounds),
        "strikes" => strike_all(),
        "two" => play_two(),
        _ => Err(wrong(format!("no part {part}"))),
    };
    match played {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EIO) => say(&format!("ended {who}")),
        Err(error) => say(&format!("wrong {who}: {error}")),
    }
    // Not the end of a test, which would print something.
    exit(0);
}
