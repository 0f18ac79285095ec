//! SIGINT and SIGTERM as a wish: the work ends early, with what there is. A second one ends the command.

use crate::failure::{Failure, Status};
use nvmed_sys::Signals;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by SIGINT and SIGTERM.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// Takes both signals: before anything starts a thread, so that no thread takes them.
///
/// # Errors
/// The host refuses.
pub(crate) fn take(command: &str) -> Result<Signals, Failure> {
    Signals::take(&[Signal::INT.as_raw(), Signal::TERM.as_raw()])
        .map_err(|error| Failure::new(Status::Failed, format!("{command}: {error}")))
}

/// Sets [`STOP`] at a signal.
///
/// # Errors
/// The host has no room for a thread.
pub(crate) fn watch(command: &str, signals: Signals) -> Result<(), Failure> {
    let waiting = move || {
        for _ in 0..2 {
            // A descriptor that cannot be read would leave a command that nothing ends.
            let _ = signals.next();
            if STOP.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        }
    };
    let thread = nvmed_sys::spawn_quiet("nvmed-signals", waiting);
    thread.map(drop).map_err(|error| Failure::new(Status::Failed, format!("{command}: {error}")))
}
