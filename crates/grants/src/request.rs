//! An administrator's request to a server, and the server's reply: one line of JSON each.

use crate::keeper::Quota;
use crate::table::{PartitionGrant, TreeGrant};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest line in bytes: a table's worth.
pub(crate) const LINE_BYTES_MAX: u64 = 8 << 20;

/// What an administrator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// The server, its device and its file system.
    Status,
    /// All grants, and what is used of them.
    Grants,
    /// The sessions.
    Clients,
    /// Grants a tree, or changes a grant.
    GrantTree(TreeGrant),
    /// Grants a partition, or changes a grant.
    GrantPartition(PartitionGrant),
    /// Takes a grant away.
    Revoke {
        /// Its name.
        name: String,
    },
    /// Changes limits.
    Quota {
        /// Of which grant.
        name: String,
        /// Which.
        limits: Quota,
    },
    /// The server refuses new sessions, and ends with the last session. Answered at once, and the connection closed
    /// when it has ended.
    Drain,
}

/// What the server answers to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It was done; what was asked for.
    Done(serde_json::Value),
    /// It was not: why.
    Failed(String),
}

/// Asks the server whose administrator's socket is at a path, and waits for its answer; `told` is called with the
/// reply; with `wait`, this returns when the server has closed the connection.
///
/// # Errors
/// The host's, as text: nobody listens there, or it is not for us.
pub fn ask(socket: &Path, request: &Request, wait: bool, told: impl FnOnce(&Reply)) -> Result<Reply, String> {
    let wrong = |error: std::io::Error| {
        let what = match Errno::from_io_error(&error) {
            Some(Errno::ACCESS) => "only root and the server's user may administer it".to_owned(),
            Some(Errno::NOENT | Errno::CONNREFUSED) => "no server is running there".to_owned(),
            _ => error.to_string(),
        };
        format!("{}: {what}", socket.display())
    };
    let mut stream = UnixStream::connect(socket).map_err(wrong)?;
    let mut line = serde_json::to_string(request).map_err(|error| error.to_string())?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(wrong)?;
    let mut reader = BufReader::new(stream).take(LINE_BYTES_MAX);
    let mut answer = String::new();
    reader.read_line(&mut answer).map_err(wrong)?;
    if answer.is_empty() {
        return Err(format!("{}: the server has closed the connection", socket.display()));
    }
    let said = serde_json::from_str(&answer).map_err(|error| format!("{}: {error}", socket.display()))?;
    told(&said);
    if wait && matches!(said, Reply::Done(_)) {
        // Its end is the answer; how it comes is of no interest.
        let _ = reader.read_to_string(&mut answer);
    }
    Ok(said)
}
