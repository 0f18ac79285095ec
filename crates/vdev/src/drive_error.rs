//! Why the state of a drive cannot be used: what, where, what to do.

use crate::drive_file::DriveFile;
use crate::drive_layout::{PROFILE_BYTES_MAX, VERSION};
use rustix::io::Errno;
use std::path::Path;

/// What is wrong with the state of a drive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveFileError {
    /// The host refuses.
    #[error("{path}: cannot {what}: {errno}")]
    Host {
        /// The file.
        path: String,
        /// What was to be done.
        what: &'static str,
        /// The host's answer.
        errno: Errno,
    },
    /// It is none, or damaged.
    #[error(
        "{path} {what}; the image's bytes are as they were: remove the file for a plain device, or make a new drive \
         of the image with `nvmed device create --again`"
    )]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// It is another image's.
    #[error(
        "{path} is the state of another image ({what}); `cp -a` copies an image with its identity; otherwise put it \
         back beside its own, or make a new drive of this one with `nvmed device create --again`"
    )]
    Foreign {
        /// The file.
        path: String,
        /// What differs.
        what: String,
    },
    /// Another version of nvmed wrote it.
    #[error("{path} has version {found} of the format, and this nvmed knows {VERSION}")]
    Version {
        /// The file.
        path: String,
        /// As found.
        found: u32,
    },
    /// The profile is too long to be kept.
    #[error(
        "the profile has {bytes} bytes, and the state of a drive has room for {PROFILE_BYTES_MAX}: shorten its comments"
    )]
    Profile {
        /// Of the text.
        bytes: usize,
    },
}

impl DriveFileError {
    /// There is no memory for the drive of an image.
    pub(crate) fn memory(image: &Path, errno: Errno) -> Self {
        let path = DriveFile::beside(image).display().to_string();
        Self::Host { path, what: "have memory for the drive's map", errno }
    }
}
