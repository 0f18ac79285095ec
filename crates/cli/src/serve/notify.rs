//! What the service manager is told (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where it listens, if there is one.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Tells the service manager that started us, if one did. It takes our word or leaves it: a failure changes nothing
/// here.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os(VARIABLE) else { return };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = told {
        eprintln!("nvmed: serve: {VARIABLE}: {error}");
    }
}
