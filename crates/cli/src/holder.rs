//! The process that holds a device while a server of ours, its child, answers for it: the device's lock and the memory
//! in which completed calls live are the holder's, so that a server that dies loses none of them.

use crate::ending::Ending;
use crate::failure::{Failure, Status};
use crate::run::{own_path, probe, settings};
use crate::stall::WriteBack;
use nvmed_fs::{FileSystem, Trouble};
use nvmed_io::Device;
use nvmed_stack::{Config, Mount, RUN_MEMORY_VARIABLE, RunMemory};
use rustix::fd::OwnedFd;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

/// What is held.
pub(crate) struct Holder {
    memory: RunMemory,
    settings: OwnedFd,
}

impl Holder {
    /// Takes the device's lock, makes the memory, and sees that a file system is there.
    ///
    /// # Errors
    /// The device is in use, or holds no file system; the host has no memory.
    pub(crate) fn begin(config: &Config) -> Result<Self, Failure> {
        let holder = Self::begin_unseen(config)?;
        probe(config, &holder.memory)?;
        Ok(holder)
    }

    /// The same, for a server that is started at once, and says what is wrong with the device before anything else
    /// begins.
    ///
    /// # Errors
    /// The device is in use; the host has no memory.
    pub(crate) fn begin_unseen(config: &Config) -> Result<Self, Failure> {
        Ok(Self { memory: RunMemory::create(config)?, settings: settings(config)? })
    }

    /// With logs, in which a server's clients post writes.
    ///
    /// # Errors
    /// The host has no memory.
    pub(crate) fn with_logs(self) -> Result<Self, Failure> {
        Ok(Self { memory: self.memory.with_logs()?, ..self })
    }

    /// The path by which other processes read the settings while this one lives.
    pub(crate) fn settings(&self) -> PathBuf {
        own_path(&self.settings)
    }

    /// The path by which other processes find the memory while this one lives.
    pub(crate) fn memory(&self) -> PathBuf {
        self.memory.path()
    }

    /// This program again, as the server: with `--serve SETTINGS` before its own arguments, and a pipe for its first
    /// line.
    pub(crate) fn server(&self) -> Result<Command, std::io::Error> {
        let mut command = again(["--serve".into(), self.settings().into()])?;
        command.env(RUN_MEMORY_VARIABLE, self.memory()).stdout(Stdio::piped());
        Ok(command)
    }

    /// After the run: what it had completed and not written goes to the device, and signals may end that.
    ///
    /// # Errors
    /// As [`Holder::salvage`].
    pub(crate) fn save(&self, config: &Config, ending: Ending) -> Result<(), Failure> {
        if self.memory.is_idle() {
            // The server has saved everything: nothing is left that a signal could end.
            return Ok(());
        }
        let saved = WriteBack::to(&config.device);
        ending.leave_to_thread(Arc::clone(&saved));
        let outcome = self.salvage_to(config, |device| saved.opened(device));
        saved.over();
        outcome
    }

    /// After the server: what it had completed and not written goes to the device.
    ///
    /// # Errors
    /// The device's, with what it means: the memory goes with this process.
    pub(crate) fn salvage(&self, config: &Config) -> Result<(), Failure> {
        self.salvage_to(config, |_| {})
    }

    fn salvage_to(&self, config: &Config, opened: impl FnOnce(&Arc<Device>)) -> Result<(), Failure> {
        if !config.device.is_lasting() {
            return Ok(());
        }
        nvmed_stack::salvage_watched(config, &self.memory, opened).map_err(|error| {
            let why = Failure::from(error);
            Failure::new(
                why.status,
                format!(
                    "{}; not everything that completed calls wrote could be saved: what no fsync has confirmed may \
                     be lost",
                    why.message
                ),
            )
        })
    }
}

/// Says it in one line when a mount is read-only, or turns so, and when its device's file was cut short.
pub(crate) fn tell_trouble(command: &'static str, mount: &Mount) {
    mount.tell_cut(move |line| eprintln!("nvmed: {command}: {line}"));
    let (files, device) = (FileSystem::clone(mount), mount.device_name().to_owned());
    let tell = move |trouble: Trouble| eprintln!("nvmed: {command}: {}", trouble.notice(&device));
    if let Some(trouble) = mount.trouble() {
        return tell(trouble);
    }
    // Without a thread it is only not said: calls are refused all the same.
    let _ = nvmed_sys::spawn_quiet("nvmed-health", move || files.await_trouble().map(tell));
}

/// A panic in a server is one line, not Rust's page: a mistake of ours in one call is `EIO` for it.
pub(crate) fn tell_panics(command: &'static str) {
    nvmed_fs::tell_panics(move |line| eprintln!("nvmed: {command}: {line}"));
}

/// This program again, with the same arguments and `more` of them after the first, the command.
pub(crate) fn again<const N: usize>(more: [OsString; N]) -> Result<Command, std::io::Error> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut given = std::env::args_os().skip(1);
    command.args(given.next()).args(more).args(given);
    Ok(command)
}

/// The first line that a child writes; empty when it ends without one.
pub(crate) fn first_line(child: &mut Child) -> std::io::Result<String> {
    let mut line = String::new();
    if let Some(out) = &mut child.stdout {
        // Byte by byte is fine for one line, and leaves nothing in a buffer.
        BufReader::with_capacity(1, out).read_line(&mut line)?;
    }
    Ok(line)
}

/// The status of a server's end, as ours: it has said why.
pub(crate) fn status_of(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(Status::Failed as u8)
}
