//! `nvmed run --server`: the program's files are on the device of a server that runs already; this command
//! holds no device.

use crate::failure::{Failure, Status};
use crate::location::parse_spec;
use crate::run::arguments::Run;
use crate::run::{absolute, ended_both, preloaded, watch};
use crate::watch::Watch;
use nvmed_stack::{Config, DeviceSpec, Sharing};
use nvmed_wire::{Address, Control, ControlAnswer, SERVER_VARIABLE, Socket, SocketError, VERSION};
use rustix::io::Errno;
use std::path::Path;
use std::process::ExitCode;

/// What the settings of a client name as its device: one that holds nothing, and that nobody mounts by mistake.
///
/// # Errors
/// None: it is a device's name.
pub(crate) fn device() -> Result<DeviceSpec, Failure> {
    parse_spec("virtual:?media=null,size=4K")
}

/// Runs the program as a client of the server at `socket`, and answers its exit status.
///
/// # Errors
/// The server lets this user not in; the program could not be started.
pub(crate) fn run(
    arguments: &Run,
    mut config: Config,
    library: &Path,
    socket: &Path,
    watched: Option<Watch>,
) -> Result<ExitCode, Failure> {
    config.sharing = Some(Sharing::Shared);
    config.tree = arguments.tree.clone().or(config.tree);
    let socket = absolute(socket);
    let path = socket.to_str().ok_or_else(|| Failure::usage("run: the server's socket is not UTF-8"))?;
    try_door(&Address::Path(path.to_owned()), config.tree.as_deref().unwrap_or_default())?;
    let mut command = preloaded(arguments, &config, library)?;
    command.env(SERVER_VARIABLE, path);
    watched.iter().for_each(|watched| watched.tell(&mut command));
    ended_both(watch(command).map(ExitCode::from), watched, &config)
}

/// A server that refuses new sessions is told to the user now, not by each call of the program.
fn try_door(address: &Address, tree: &str) -> Result<(), Failure> {
    let refused = |what: &str| Failure::new(Status::Run, format!("run: {address}: {what}"));
    let gone = |error: SocketError| match error {
        SocketError::Host(Errno::NOENT | Errno::CONNREFUSED) => refused("no server is running there"),
        error => refused(&error.to_string()),
    };
    let socket = Socket::connect(address).map_err(gone)?;
    let tree = tree.as_bytes().to_vec();
    let hello = Control::Hello { version: VERSION, secret: Vec::new(), tree, again: None };
    socket.send(&hello, None).map_err(gone)?;
    let (answer, _) = socket.receive::<ControlAnswer>(None).map_err(gone)?;
    let ControlAnswer::Failed(errno) = answer else { return Ok(()) };
    Err(match Errno::from_raw_os_error(errno) {
        Errno::ACCESS => {
            refused("no such tree is granted to you; ask the administrator (`nvmed admin grant`)")
        }
        Errno::INVAL => refused("several trees are granted to you: say which, with --tree NAME"),
        Errno::NOENT | Errno::NOTDIR => refused("the tree's directory is missing; tell the administrator"),
        Errno::SHUTDOWN => refused("the server is about to end"),
        errno => refused(&errno.to_string()),
    })
}
