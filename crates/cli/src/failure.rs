//! How a command fails: the line that it prints, and its exit status.

use nvmed_fs::FsError;
use nvmed_stack::StackError;
use rustix::io::Errno;
use std::fmt;
use std::process::ExitCode;

/// Exit statuses of every subcommand but `run`, which passes on the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// A file on a device is missing, the device is full, an operation failed; or `fsck` found damage.
    Failed = 1,
    /// Arguments or configuration are wrong; nothing was touched.
    Usage = 2,
    /// Another process has the device.
    Busy = 3,
    /// The device does not hold what the command needs: no image there, not ours, another version, truncated, or for
    /// `format`, something that would be lost.
    Device = 4,
    /// `run`: nvmed itself failed, before or after the program.
    Run = 125,
    /// `run`: the program exists and cannot be started.
    NotExecutable = 126,
    /// `run`: there is no such program.
    NotFound = 127,
    /// The reader of the output went away, as with `| head`; nothing is said.
    BrokenPipe = 141,
}

/// One line for a person, and an exit status for a script.
#[derive(Debug)]
pub struct Failure {
    /// How to exit.
    pub status: Status,
    /// What, where, what to do.
    pub message: String,
}

impl Failure {
    /// A failure with its status.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// Wrong arguments.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Status::Usage, message)
    }

    /// The host refused an operation on `place`.
    pub fn host(place: impl fmt::Display, errno: Errno) -> Self {
        let status = if errno == Errno::PIPE { Status::BrokenPipe } else { Status::Failed };
        Self::new(status, format!("{place}: {}", reason(errno)))
    }

    /// The file system refused an operation on `place`.
    pub fn device(place: impl fmt::Display, error: &FsError) -> Self {
        Self::new(status_of(error), format!("{place}: {error}"))
    }

    /// The same, of something whose path does not begin at the top: it is so many directories deep in what was asked
    /// for.
    #[must_use]
    pub fn so_deep(self, directories: usize) -> Self {
        Self { message: format!("{} ({directories} directories deep)", self.message), ..self }
    }

    /// The exit status for the shell.
    pub fn exit(&self) -> ExitCode {
        ExitCode::from(self.status as u8)
    }
}

impl From<StackError> for Failure {
    fn from(error: StackError) -> Self {
        let status = match &error {
            StackError::Config(_)
            | StackError::Spec { .. }
            | StackError::Profile { .. }
            | StackError::IsDrive { .. }
            | StackError::NoWear { .. }
            | StackError::Timeless { .. }
            | StackError::OtherSize { .. }
            | StackError::Shrinks { .. } => Status::Usage,
            StackError::Buffer { error, .. } if error.errno() == Errno::INVAL => Status::Usage,
            StackError::Fs { error, .. } => status_of(error),
            other if other.errno() == Errno::BUSY => Status::Busy,
            // A file or a device node that is missing is so for each engine alike.
            StackError::Uring { error } if error.errno() == Errno::NOENT => Status::Device,
            StackError::Media { .. }
            | StackError::DriveFile { .. }
            | StackError::NoDrive { .. }
            | StackError::AlreadyDrive { .. } => Status::Device,
            _ => Status::Failed,
        };
        Self::new(status, error.to_string())
    }
}

fn status_of(error: &FsError) -> Status {
    match error {
        FsError::Layout(_) => Status::Device,
        _ => Status::Failed,
    }
}

/// What an errno means, in the host's words, without its number.
pub fn reason(errno: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_fs::LayoutError;

    #[test]
    fn a_failure_is_one_line_with_its_place() {
        let failure = Failure::host("a/b", Errno::NOENT);
        assert_eq!(
            (failure.message.as_str(), failure.status),
            ("a/b: No such file or directory", Status::Failed)
        );
        let failure = Failure::device("disk.img", &LayoutError::Truncated { found: 1, expected: 2 }.into());
        assert!(failure.message.starts_with("disk.img: the device has 1 blocks"), "{}", failure.message);
        assert_eq!(failure.status, Status::Device);
    }
}
