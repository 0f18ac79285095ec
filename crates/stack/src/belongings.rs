//! Which of the host's files are a device's.

use crate::profile::DriveProfile;
use crate::spec::DeviceSpec;
use nvmed_vdev::DriveFile;
use std::path::{Path, PathBuf};

impl DeviceSpec {
    /// The host's files that belong to it, each with what it is in messages: what holds its bytes (a node or a socket,
    /// too), the state of a drive beside it, and its profile. Whoever writes over one of them, loses it.
    #[must_use]
    pub fn belongings(&self) -> Vec<(PathBuf, &'static str)> {
        let mut all: Vec<_> =
            self.host_file().map(|path| (path.to_owned(), "the device")).into_iter().collect();
        match self {
            Self::Virtual(spec) => {
                all.extend(
                    self.host_file().map(|image| (DriveFile::beside(image), "the state of the drive")),
                );
                let profile = spec.behaviour.profile.iter().filter(|name| DriveProfile::is_file(name));
                all.extend(profile.map(|name| (name.into(), "the profile of the drive")));
            }
            Self::VfioUser(spec) => all.push(((&spec.socket).into(), "the device")),
            Self::Nvm(spec) => {
                let profile = spec.buffer.iter().map(|buffer| &buffer.profile);
                let profile = profile.filter(|name| DriveProfile::is_file(name));
                all.extend(profile.map(|name| (name.into(), "the profile of the medium")));
            }
            Self::Vfio(_) | Self::Uring(_) | Self::UringCmd(_) => {}
        }
        all
    }

    /// `record=`: the file that it writes besides.
    #[must_use]
    pub fn record_file(&self) -> Option<&Path> {
        match self {
            Self::Virtual(spec) => spec.behaviour.record.as_deref().map(Path::new),
            _ => None,
        }
    }
}
