//! What can be wrong with a profile, or with a size for it: one line that says where, what, and what would do.

use nvmed_flash::ProfileError;

/// A profile that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileFault {
    /// No built-in profile has this name.
    #[error(
        "no profile is called `{name}`; there are {known}, and files, whose names have a `/` or end in `.toml`"
    )]
    Unknown {
        /// As given.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("{file}: {what}")]
    File {
        /// Which.
        file: String,
        /// The host's answer, or what it holds instead.
        what: String,
    },
    /// The text makes no sense.
    #[error("{place}: {what}")]
    Text {
        /// File, line and keys.
        place: String,
        /// What is wrong there, and what would do.
        what: String,
    },
    /// A capacity that is no whole number of units.
    #[error(
        "profile `{name}`: a drive has whole units of 4096 bytes, not {bytes} bytes; give a size such as 1G"
    )]
    Units {
        /// Which profile.
        name: String,
        /// The capacity asked for.
        bytes: u64,
    },
    /// A capacity with too few blocks in a plane.
    #[error(
        "profile `{name}`: {bytes} bytes are too few for a drive of {channels} channels; the least size is {least_mib}M"
    )]
    Small {
        /// Which profile.
        name: String,
        /// The capacity asked for.
        bytes: u64,
        /// Channels, each of which needs blocks.
        channels: u32,
        /// The least, in MiB.
        least_mib: u64,
    },
    /// A capacity beyond what the drive has, or can have.
    #[error("profile `{name}`: {bytes} bytes are too many; the largest size is {most_mib}M")]
    Large {
        /// Which profile.
        name: String,
        /// The capacity asked for.
        bytes: u64,
        /// The most, in MiB.
        most_mib: u64,
    },
    /// The profile describes no drive.
    #[error("profile `{name}`: {error}")]
    Drive {
        /// Which profile.
        name: String,
        /// What is wrong.
        error: ProfileError,
    },
}

impl ProfileFault {
    /// What is wrong at a line of a file, and which keys lead there.
    pub(crate) fn text(file: &str, line: Option<usize>, keys: &str, what: &str) -> Self {
        let file = line.map_or(file.to_owned(), |line| format!("{file}:{line}"));
        let place = if keys.is_empty() { file } else { format!("{file}: `{}`", on_one_line(keys)) };
        Self::Text { place, what: on_one_line(what) }
    }
}

/// A text without what would break its line.
fn on_one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
