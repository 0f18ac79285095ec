//! Profiles of media that need a buffer in front of them (docs/nvm-buffer.md, "Profile").

use super::document::About;
use super::fault::ProfileFault;
use super::number::{MegabytesPerSecond, Microseconds, Whole};
use super::span::Text;
use super::{DriveProfile, file};
use nvmed_flash::{FixedProfile, Medium, Profile, Rate};
use nvmed_nvm::MediaProfile;
use serde::Deserialize;

/// The built-in profiles, by name.
const BUILT_IN: [(&str, &str); 5] = [
    ("dram", include_str!("../../profiles/memory/dram.toml")),
    ("pcm", include_str!("../../profiles/memory/pcm.toml")),
    ("reram", include_str!("../../profiles/memory/reram.toml")),
    ("cxl-flash", include_str!("../../profiles/memory/cxl-flash.toml")),
    ("nand", include_str!("../../profiles/memory/nand.toml")),
];

/// Commands that a medium with a latency works on at once.
const COMMANDS: u32 = 256;

/// A profile as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    profile: About,
    medium: Timed,
    buffer: Front,
}

/// When the medium is done.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timed {
    /// As this drive: a profile's name or file.
    drive: Option<String>,
    /// Else, a latency.
    read_us: Option<Microseconds>,
    write_us: Option<Microseconds>,
    /// Without it there is no limit.
    mb_per_s: Option<MegabytesPerSecond>,
    program_bytes: Whole<64, 4096>,
}

/// What stands before it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Front {
    fill_kib: Whole<4, 2048>,
    log_percent: Whole<0, 90>,
    kept: bool,
}

/// When a medium is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// After a latency, at the rate of a link.
    Fixed(FixedProfile),
    /// As a drive of this profile.
    Drive(Box<DriveProfile>),
}

/// What media of one kind are like; a size makes one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowMedium {
    what: String,
    source: String,
    pace: Pace,
    program_bytes: u64,
    fill_bytes: u64,
    log_percent: u32,
    kept: bool,
}

impl SlowMedium {
    /// The profile of a name, or of a file.
    ///
    /// # Errors
    /// [`ProfileFault`]: there is none, or it makes no sense.
    pub fn named(name: &str) -> Result<Self, ProfileFault> {
        if DriveProfile::is_file(name) {
            return Self::read(name, &file(name)?);
        }
        let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) else {
            let known = BUILT_IN.map(|(name, _)| name).join(", ");
            return Err(ProfileFault::Unknown { name: name.to_owned(), known });
        };
        Self::read(name, text)
    }

    /// The profile of a text, which is called `name` in messages.
    fn read(name: &str, text: &str) -> Result<Self, ProfileFault> {
        let text = Text { file: name, text, has_lines: true };
        let said: Document = toml::from_str(text.text).map_err(|error| text.parser(&error))?;
        let wrong = |section, key, what: &str| text.wrong(section, 0, key, what);
        for (section, key, number) in [
            ("medium", "program_bytes", said.medium.program_bytes.0),
            ("buffer", "fill_kib", said.buffer.fill_kib.0),
        ] {
            if !number.is_power_of_two() {
                return Err(wrong(section, key, &format!("{number} is no power of two")));
            }
        }
        if said.profile.typical_gb.is_some() {
            return Err(wrong("profile", "typical_gb", "the medium is as large as its file; leave this out"));
        }
        let medium = said.medium;
        let pace = match (medium.drive, medium.read_us, medium.write_us) {
            (Some(drive), None, None) if medium.mb_per_s.is_none() => {
                let found = DriveProfile::named(&drive);
                Pace::Drive(Box::new(found.map_err(|fault| wrong("medium", "drive", &fault.to_string()))?))
            }
            (Some(_), ..) => {
                let what = "the drive says how long things take; leave out the drive, or `read_us`, `write_us` and \
                            `mb_per_s`";
                return Err(wrong("medium", "drive", what));
            }
            (None, Some(read), Some(write)) => Pace::Fixed(FixedProfile {
                read_ns: read.ns,
                write_ns: write.ns,
                link: medium.mb_per_s.map_or(Rate::UNLIMITED, |rate| rate.0),
            }),
            (None, ..) => {
                let what = "how long do things take? give `drive`, or `read_us` and `write_us`";
                return Err(wrong("medium", "", what));
            }
        };
        Ok(Self {
            what: said.profile.what.0,
            source: said.profile.source.0,
            pace,
            program_bytes: medium.program_bytes.0.into(),
            fill_bytes: u64::from(said.buffer.fill_kib.0) << 10,
            log_percent: said.buffer.log_percent.0,
            kept: said.buffer.kept,
        })
    }

    /// The names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// What kind of memory it is, in a line.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Where its numbers are from, in a line.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// When it is done.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Bytes that are programmed at once.
    #[must_use]
    pub fn program_bytes(&self) -> u64 {
        self.program_bytes
    }

    /// Bytes that one fill of the buffer brings.
    #[must_use]
    pub fn fill_bytes(&self) -> u64 {
        self.fill_bytes
    }

    /// The part of the buffer that is the write log.
    #[must_use]
    pub fn log_percent(&self) -> u32 {
        self.log_percent
    }

    /// Whether the buffer survives a cut of power.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Bytes of the smallest buffer in whole pages: it has room for one fill beside the write log.
    #[must_use]
    pub fn least_buffer_bytes(&self) -> u64 {
        nvmed_nvm::least_buffer_bytes(self.fill_bytes, self.log_percent)
    }

    /// The medium of a size.
    ///
    /// # Errors
    /// [`ProfileFault`]: no drive of it is so large.
    pub fn medium(&self, bytes: u64) -> Result<MediaProfile, ProfileFault> {
        let medium = match &self.pace {
            Pace::Fixed(fixed) => Profile { commands: COMMANDS, medium: Medium::Fixed(*fixed) },
            // A smaller medium is a part of the smallest drive.
            Pace::Drive(drive) => drive.drive(bytes).or_else(|fault| match fault {
                ProfileFault::Small { least_mib, .. } => drive.drive(least_mib << 20),
                fault => Err(fault),
            })?,
        };
        let &Self { program_bytes, fill_bytes, log_percent, kept, .. } = self;
        Ok(MediaProfile { medium, program_bytes, fill_bytes, log_percent, kept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::spoiled;
    use nvmed_dice::Dice;
    use nvmed_nvm::{BufferClock, BufferOptions, FlushTo, Memory, MemoryOptions, Place};

    #[test]
    fn built_in_profiles_make_media_of_any_size() {
        for (name, _) in BUILT_IN {
            let profile = SlowMedium::named(name).unwrap();
            for bytes in [4096, 64 << 20, 3 << 30] {
                let medium = profile.medium(bytes).unwrap();
                medium.medium.check().unwrap();
                assert!(medium.program_bytes <= medium.fill_bytes, "{name}");
            }
        }
    }

    /// Each text is a medium behind any buffer that keeps what it is given, or one line says why not.
    #[test]
    fn fuzz_any_text_is_a_medium_or_refused() {
        let (mut good, mut bad, mut small) = (0, 0, 0);
        for seed in 0..2000 {
            let mut dice = Dice::of(&[seed]);
            let (_, text) = BUILT_IN[dice.index(BUILT_IN.len())];
            let Some(text) = spoiled(text, &mut dice) else { continue };
            let size = 4096 << dice.roll(9);
            let made = SlowMedium::read("m.toml", &text).and_then(|medium| medium.medium(size));
            let profile = match made {
                Ok(profile) => profile,
                Err(fault) => {
                    bad += 1;
                    let said = fault.to_string();
                    assert!(!said.contains(char::is_control), "seed {seed}: {said:?}");
                    continue;
                }
            };
            let bytes = [dice.roll(1 << 20), 4096 << dice.roll(10), dice.next()][dice.index(3)];
            let memory =
                Memory::open(MemoryOptions { place: Place::Ram { bytes: size }, flush: FlushTo::Process });
            let memory =
                memory.unwrap().buffered(&BufferOptions { profile, bytes, clock: BufferClock::Virtual });
            let memory = match memory {
                Ok(memory) => memory,
                Err(error) => {
                    small += 1;
                    let said = error.to_string();
                    assert!(!said.contains(char::is_control), "seed {seed}: {said:?}");
                    continue;
                }
            };
            good += 1;
            for turn in 1..8_u8 {
                let at = dice.roll(size - 64);
                let mut found = [0; 64];
                memory.store(at, &[turn; 64]).unwrap();
                memory.fence().unwrap();
                memory.read(dice.roll(size - 64), &mut found).unwrap();
                memory.read(at, &mut found).unwrap();
                assert_eq!(found, [turn; 64], "seed {seed}");
            }
        }
        assert!(good > 300 && bad > 300 && small > 10, "{good} are media, {bad} are none, {small} need more");
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_line() {
        let said = |medium: &str, buffer: &str| {
            let head = "[profile]\nwhat = \"w\"\nsource = \"s\"\n";
            let said = SlowMedium::read("m.toml", &format!("{head}[medium]\n{medium}\n[buffer]\n{buffer}"));
            said.unwrap_err().to_string()
        };
        let (times, front) = ("read_us = 1\nwrite_us = 2", "fill_kib = 4\nlog_percent = 0\nkept = true");
        for (medium, buffer, want) in [
            ("program_bytes = 64", front, "m.toml:4: `medium`: how long do things take?"),
            (
                &format!("{times}\nprogram_bytes = 96")[..],
                front,
                "m.toml:7: `medium.program_bytes`: 96 is no power",
            ),
            (
                &format!("{times}\nprogram_bytes = 8192"),
                front,
                "m.toml:7: `medium.program_bytes`: 8192 is not",
            ),
            (
                &format!("{times}\nprogram_bytes = 64\ndrive = \"tlc\""),
                front,
                "m.toml:8: `medium.drive`: the drive says",
            ),
            (
                "drive = \"qlc\"\nprogram_bytes = 64",
                front,
                "m.toml:5: `medium.drive`: no profile is called `qlc`",
            ),
            (
                &format!("{times}\nprogram_bytes = 64"),
                "fill_kib = 4\nlog_percent = 95\nkept = true",
                "95 is not a whole",
            ),
            (
                &format!("{times}\nprogram_bytes = 64"),
                "fill_kib = 4\nlog_percent = 5",
                "missing field `kept`",
            ),
            (&format!("{times}\nprogram_bytes = 64\nspeed = 1"), front, "unknown field `speed`"),
        ] {
            let said = said(medium, buffer);
            assert!(said.contains(want) && !said.contains('\n'), "for {medium:?} it said {said:?}");
        }
    }
}
