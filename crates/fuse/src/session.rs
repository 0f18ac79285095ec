//! The life of a mount, in the process that serves it.

use crate::error::MountError;
use crate::guarded::Guarded;
use crate::options::MountOptions;
use crate::place::{self, MountPoint};
use crate::server::Server;
use fuser::{Config as SessionConfig, MountOption, Session, SessionACL};
use nvmed_stack::{Config, Mount, Surroundings};
use nvmed_sys::Signals;
use rustix::process::Signal;
use rustix::thread::CpuSet;
use std::path::PathBuf;
use std::sync::Arc;

/// What is shown as the type: `fuse.nvmed`. The kernel takes it as an option; the crate knows it for the helper only.
const SUBTYPE: &str = "nvmed";

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The directory.
    pub place: MountPoint,
    /// How it is mounted.
    pub options: MountOptions,
    /// The process that ends last; others wait for its end after they have unmounted.
    pub holder: u32,
}

/// Mounts a device's file system on a directory and serves it until it is unmounted or a signal (SIGINT,
/// SIGTERM, SIGHUP) asks for the end. `ready` is called once the mount is there, with what is mounted.
///
/// Call it before the process has other threads: they would take the signals.
///
/// # Errors
/// [`MountError`]. After [`MountError::Unsaved`] and [`MountError::Broken`] the memory that `surroundings` name
/// is kept.
pub fn serve(
    config: &Config,
    surroundings: Surroundings,
    serving: &Serving,
    ready: impl FnOnce(&nvmed_stack::Mount),
) -> Result<(), MountError> {
    let dir = serving.place.path();
    let failed = |error| MountError::Session { dir: dir.to_owned(), error };
    let wanted = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let signals = Signals::take(&wanted).map_err(failed)?;
    let mount = Arc::new(nvmed_stack::mount(config, surroundings)?);
    let server = Server::new(&mount, serving.options.atime, serving.holder);
    let session = Session::new(Guarded(server), dir, &session_config(config, &serving.options));
    let served = session.map_err(failed).and_then(|session| {
        let ending = Ending { signals, dir: dir.to_owned(), mount: Arc::clone(&mount) };
        nvmed_sys::spawn_quiet("nvmed-signals", move || ending.wait()).map_err(failed)?;
        ready(&mount);
        stay_on(&serving.options.cpus);
        session.run().map_err(failed)
    });
    let saved = last_unmount(&mount);
    served?;
    saved
}

/// Saves everything. A check of our own memory that fails there is an error like the device's.
fn last_unmount(mount: &Mount) -> Result<(), MountError> {
    let device = mount.device_name().to_owned();
    match mount.guarded(|| mount.unmount()) {
        Some(saved) => saved.map_err(|error| MountError::Unsaved { device, error }),
        None => Err(MountError::Broken { device }),
    }
}

fn session_config(config: &Config, options: &MountOptions) -> SessionConfig {
    let as_root = rustix::process::geteuid().is_root();
    let mut mounted = vec![
        MountOption::FSName(config.device.to_string()),
        MountOption::CUSTOM(format!("subtype={SUBTYPE}")),
        MountOption::DefaultPermissions,
    ];
    let switches = [
        (options.read_only, MountOption::RO),
        (options.suid, MountOption::Suid),
        (options.dev, MountOption::Dev),
        (!options.exec, MountOption::NoExec),
        (!options.atime, MountOption::NoAtime),
    ];
    mounted.extend(switches.into_iter().filter(|(on, _)| *on).map(|(_, option)| option));
    let others = options.allow_other.unwrap_or(as_root);
    let mut session = SessionConfig::default();
    session.mount_options = mounted;
    session.acl = if others { SessionACL::All } else { SessionACL::Owner };
    session.n_threads = Some(usize::from(options.threads));
    session
}

/// Keeps this thread, and those that it starts, on some processors. One that does not exist is left out by the
/// host; if none is left, the threads run anywhere.
fn stay_on(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    // Slower is no reason to fail.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// What waits for a signal to end the mount.
struct Ending {
    signals: Signals,
    dir: PathBuf,
    mount: Arc<Mount>,
}

impl Ending {
    /// The first signal unmounts; a mount in use is detached, and ends with its last user; the second signal
    /// saves everything and ends the process.
    fn wait(&self) {
        let mut asked = false;
        // A descriptor that cannot be read leaves umount(8) as the way to end.
        while self.signals.next().is_ok() {
            if asked {
                let saved = last_unmount(&self.mount);
                if let Err(error) = &saved {
                    eprintln!("nvmed: {}: {error}", self.dir.display());
                }
                std::process::exit(i32::from(saved.is_err()));
            }
            asked = true;
            match place::unmount(&self.dir, false) {
                Ok(()) => return,
                Err(MountError::Busy { .. }) => {
                    eprintln!(
                        "nvmed: {} is in use: detached, it ends with its last user; another signal ends it now",
                        self.dir.display()
                    );
                    // Whoever can detach has just been told that it is busy; else the next signal ends it.
                    let _ = place::unmount(&self.dir, true);
                }
                Err(error) => eprintln!("nvmed: {error}"),
            }
        }
    }
}
