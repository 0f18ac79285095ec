//! Profiles of drives: TOML files, built in or a user's (docs/flash.md, "Profiles").

mod agreement;
mod change;
mod design;
mod document;
mod fault;
mod figures;
mod number;
mod size;
mod slow_medium;
mod span;

pub use fault::ProfileFault;
pub use figures::{Figures, Work};
pub use slow_medium::{Pace, SlowMedium};

use design::Design;
use nvmed_flash::Profile;
use nvmed_vdev::{ControllerConfig, DriveName};
use rustix::fs::OFlags;
use span::Text;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// The built-in profiles, by name.
const BUILT_IN: [(&str, &str); 11] = [
    ("dram", include_str!("../profiles/dram.toml")),
    ("xpoint", include_str!("../profiles/xpoint.toml")),
    ("pcm", include_str!("../profiles/pcm.toml")),
    ("slc", include_str!("../profiles/slc.toml")),
    ("mlc", include_str!("../profiles/mlc.toml")),
    ("tlc", include_str!("../profiles/tlc.toml")),
    ("tlc-urgent", concat!(include_str!("../profiles/tlc.toml"), include_str!("../profiles/urgent.toml"))),
    ("emmc", include_str!("../profiles/emmc.toml")),
    ("emmc-8ps", include_str!("../profiles/emmc-8ps.toml")),
    ("emmc-hps", include_str!("../profiles/emmc-hps.toml")),
    ("hmbio", include_str!("../profiles/hmbio.toml")),
];

/// No profile is longer: a mistaken name of a large file is not read to its end.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What drives of one kind are like; a size makes one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveProfile {
    name: String,
    text: String,
    design: Design,
}

impl DriveProfile {
    /// The names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Whether a name is that of a file: it has a `/`, or ends in `.toml`.
    #[must_use]
    pub fn is_file(name: &str) -> bool {
        name.contains('/') || name.ends_with(".toml")
    }

    /// The profile of a name, or of a file.
    ///
    /// # Errors
    /// [`ProfileFault`]: there is none, or it makes no sense.
    pub fn named(name: &str) -> Result<Self, ProfileFault> {
        if Self::is_file(name) {
            return Self::read(name, &file(name)?);
        }
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
        let Some((_, text)) = built_in else {
            let known = Self::names().collect::<Vec<_>>().join(", ");
            return Err(ProfileFault::Unknown { name: name.to_owned(), known });
        };
        Self::read(name, text)
    }

    /// The profile of a text, which is called `name` in messages.
    ///
    /// # Errors
    /// [`ProfileFault`]: what makes no sense, and where.
    pub fn read(name: &str, text: &str) -> Result<Self, ProfileFault> {
        let design = Design::read(&Text { file: name, text, has_lines: true })?;
        Ok(Self { name: name.to_owned(), text: text.to_owned(), design })
    }

    /// What it was asked for by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text that it was read from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What kind of drive it is, in a line.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.design.what
    }

    /// Where its numbers are from, in a line.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.design.source
    }

    /// Bytes of a drive whose size nobody says: the usual ones, or all there are, where the profile counts the blocks.
    #[must_use]
    pub fn usual_bytes(&self) -> u64 {
        self.design.size.usual_bytes()
    }

    /// The template of its drives, as the profile says it: capacity and blocks of a plane depend on the size.
    #[must_use]
    pub fn template(&self) -> &nvmed_flash::ArrayProfile {
        &self.design.template
    }

    /// The drive with a capacity, which [`nvmed_flash::Flash::new`] accepts.
    ///
    /// # Errors
    /// [`ProfileFault`]: it is no size for such a drive, and which one would do.
    pub fn drive(&self, capacity_bytes: u64) -> Result<Profile, ProfileFault> {
        self.design.drive(&self.name, capacity_bytes)
    }

    /// Makes a controller that drive, and says so in its model number.
    pub(crate) fn give_drive(
        &self,
        capacity_bytes: u64,
        config: &mut ControllerConfig,
    ) -> Result<(), ProfileFault> {
        let built_in = BUILT_IN.iter().find(|(_, text)| *text == self.text);
        let profile = built_in.map(|(name, _)| (*name).to_owned()).unwrap_or_default();
        config.drive = Some(self.drive(capacity_bytes)?);
        config.drive_name = DriveName { profile, what: self.what().to_owned() };
        config.model = format!("nvmed {}", self.what());
        Ok(())
    }
}

/// The text of a file.
fn file(path: &str) -> Result<String, ProfileFault> {
    let fail = |what: String| ProfileFault::File { file: path.to_owned(), what };
    let refused = |error: std::io::Error| {
        let text = error.to_string();
        fail(text.split(" (os error").next().unwrap_or(&text).to_owned())
    };
    let mut bytes = Vec::new();
    // The open of a named pipe waits for who writes to it, perhaps for ever.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(refused)?;
    let kind = file.metadata().map_err(refused)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(fail("is no regular file; a profile is a TOML file of at most 1 MiB".to_owned()));
    }
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fail("is longer than any profile; a profile is a TOML file of at most 1 MiB".to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        fail(format!(
            "is no text (byte {} is no UTF-8); a profile is a TOML file",
            error.utf8_error().valid_up_to()
        ))
    })
}

#[cfg(test)]
mod tests;
