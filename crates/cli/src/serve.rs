//! Devices for other processes: `nvmed serve-device`, a virtual one; `nvmed serve`, one for several users.

pub mod admin;
pub mod arguments;
pub mod machine;
mod notify;

use crate::failure::{Failure, Status};
use crate::location::parse_spec;
use crate::output::Output;
use crate::serve::arguments::ServeDevice;
use nvmed_stack::{Open, ServedDevice};
use nvmed_sys::Signals;
use rustix::process::Signal;

/// Serves a device over vfio-user until a signal ends it.
///
/// # Errors
/// The device cannot be opened, the socket cannot be made, or waiting for clients fails.
pub fn serve_device(arguments: &ServeDevice) -> Result<(), Failure> {
    let name = arguments.device.to_string_lossy();
    let spec = parse_spec(&name)?;
    let socket = std::path::absolute(&arguments.socket)
        .map_err(|error| Failure::usage(format!("{}: {error}", arguments.socket.display())))?;
    let fail = |error| Failure::new(Status::Failed, format!("serve-device: {error}"));
    // Before the device starts a thread, so that no thread takes them.
    let signals = Signals::take(&[Signal::INT.as_raw(), Signal::TERM.as_raw()]).map_err(fail)?;
    // A client may cut short the memory that it has given us.
    nvmed_sys::survive_cut_files().map_err(fail)?;
    let open = Open::Existing { locked_by_run: false };
    let mut served = ServedDevice::open(&spec, open, &socket)?;
    let stop = served.stop();
    let waiting = move || {
        // A descriptor that cannot be read would leave a server that nothing ends.
        let _ = signals.next();
        stop.stop();
    };
    nvmed_sys::spawn_quiet("nvmed-signals", waiting).map_err(fail)?;
    let mut out = Output::new();
    out.text(&format!("serving {spec} at vfio-user:{}\n", socket.display()))?;
    out.finish()?;
    served.run()?;
    Ok(())
}
