//! What a device is called in a trace that is written, where the format cannot say its name: no two devices of a file
//! are ever called the same.

use crate::request::{Catalogue, Names};
use std::collections::HashSet;

/// The kernel's device numbers: 12 bits of a major number, 20 of a minor one.
const MAJORS: u64 = 1 << 12;
const MINOR_BITS: u32 = 20;
const MINORS: u64 = 1 << MINOR_BITS;

/// How a format calls a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Labelling {
    /// By its name, whatever that is.
    Name,
    /// By its name in one line, without spaces at its ends.
    Line,
    /// By a number.
    Number,
    /// By major and minor number, `8,16`.
    Pair,
    /// By a word without spaces.
    Word,
    /// By a host and the number of a disk, `usr.0`.
    Disk,
    /// Not at all: all requests are one device's.
    No,
}

/// The number that a text is, if it is written as numbers are: `7` and `007` would be one number.
fn canonical(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && !name.contains(|letter: char| letter.is_whitespace() || letter.is_control())
}

fn is_disk(name: &str) -> bool {
    let disk = |disk| canonical(disk).is_some_and(|disk| u32::try_from(disk).is_ok());
    let host = |host: &str| !host.is_empty() && host.trim() == host && !host.contains([',', '\n', '\r']);
    name.rsplit_once('.').is_some_and(|(name, number)| host(name) && disk(number))
}

impl Labelling {
    /// Whether a name can stand in the file as it is, and is read as this name again.
    fn says(self, name: &str) -> bool {
        match self {
            Self::Name | Self::No => true,
            Self::Line => name.trim() == name && !name.contains(['\n', '\r']),
            Self::Number => canonical(name).is_some(),
            Self::Pair => device_numbers(name).is_some(),
            Self::Word => is_word(name),
            Self::Disk => is_disk(name),
        }
    }

    /// Something like a name that the format can say, another one for each attempt.
    fn instead(self, name: &str, index: u32, attempt: u64) -> String {
        let number = u64::from(index) + attempt;
        let again = |name: String| if attempt == 0 { name } else { format!("{name}_{attempt}") };
        let or = |name: &str, other: &str| if name.is_empty() { other.to_owned() } else { name.to_owned() };
        match self {
            Self::Name | Self::No => name.to_owned(),
            Self::Line => again(name.trim().replace(['\n', '\r'], " ")),
            Self::Number => number.to_string(),
            Self::Pair => format!("{},{}", number >> MINOR_BITS, number % MINORS),
            Self::Word => {
                let is_cut = |letter: char| letter.is_whitespace() || letter.is_control();
                again(or(name, "device").replace(is_cut, "_"))
            }
            Self::Disk => format!("{}.{number}", or(name, "host").replace([',', '\n', '\r'], "_").trim()),
        }
    }
}

/// Major and minor number that a label of [`Labelling::Pair`] has.
pub(crate) fn device_numbers(label: &str) -> Option<(u32, u32)> {
    let (major, minor) = label.split_once(',')?;
    let (major, minor) = (canonical(major)?, canonical(minor)?);
    (major < MAJORS && minor < MINORS).then_some((major as u32, minor as u32))
}

/// What the devices of one file are called in it.
#[derive(Debug)]
pub(crate) struct Labels {
    labelling: Labelling,
    /// By device.
    given: Vec<Option<String>>,
    taken: HashSet<String>,
    /// Attempts that were used up: names that differ only in what the format cannot say do not try them again.
    attempts: u64,
    devices: u64,
    renamed: Vec<(String, String)>,
}

impl Labels {
    pub(crate) fn new(labelling: Labelling) -> Self {
        Self {
            labelling,
            given: Vec::new(),
            taken: HashSet::new(),
            attempts: 1,
            devices: 0,
            renamed: Vec::new(),
        }
    }

    /// What a device is called, the same each time.
    pub(crate) fn of(&mut self, device: u32, names: &Catalogue) -> &str {
        let at = device as usize;
        if self.given.len() <= at {
            self.given.resize(at + 1, None);
        }
        if self.given[at].is_none() {
            let label = self.give(device, &names.devices);
            self.given[at] = Some(label);
        }
        self.given[at].as_deref().unwrap_or_default()
    }

    fn give(&mut self, device: u32, names: &Names) -> String {
        self.devices += 1;
        let name = names.name(device);
        if matches!(self.labelling, Labelling::Name | Labelling::No) {
            return name.to_owned();
        }
        if self.labelling.says(name) && self.taken.insert(name.to_owned()) {
            return name.to_owned();
        }
        let mut attempt = 0;
        let label = loop {
            let label = self.labelling.instead(name, device, attempt);
            // Nor what another device is called, whose turn comes later.
            if !names.knows(&label) && self.taken.insert(label.clone()) {
                break label;
            }
            attempt = self.attempts;
            self.attempts += 1;
        };
        if !name.is_empty() || attempt > 0 {
            self.renamed.push((name.to_owned(), label.clone()));
        }
        label
    }

    /// Name and label of those that have another label than their name.
    pub(crate) fn into_renamed(self) -> Vec<(String, String)> {
        self.renamed
    }

    /// Devices that have become one, which the format cannot tell apart; 0 or 1 when none have.
    pub(crate) fn joined(&self) -> u64 {
        if self.labelling == Labelling::No { self.devices } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(labelling: Labelling, names: &[&str]) -> Vec<String> {
        let mut catalogue = Catalogue::default();
        let numbers: Vec<u32> =
            names.iter().map(|name| catalogue.devices.number(name).expect("there is room")).collect();
        let mut labels = Labels::new(labelling);
        numbers.into_iter().map(|device| labels.of(device, &catalogue).to_owned()).collect()
    }

    #[test]
    fn no_two_devices_are_called_the_same() {
        use Labelling::{Disk, Line, Number, Pair, Word};
        let cases: [(Labelling, &[&str], &[&str]); 7] = [
            // The second device would be 2, which is the first one's name.
            (Number, &["2", "x"], &["2", "3"]),
            (Number, &["x", "1", "", "0", "007"], &["2", "1", "3", "0", "4"]),
            (Pair, &["0,2", "x", "4096,1", "8,1048576", "8,16"], &["0,2", "0,3", "0,5", "0,4", "8,16"]),
            (Word, &["a b", "a_b", "a\tb", "", "device"], &["a_b_1", "a_b", "a_b_2", "device_3", "device"]),
            (Disk, &["a,b", "a_b.1", "usr.0", "x.007"], &["a_b.2", "a_b.1", "usr.0", "x.007.4"]),
            (Line, &[" a", "a", "b\nc", "b c"], &["a_1", "a", "b c_2", "b c"]),
            (Labelling::Name, &["a\n", "a"], &["a\n", "a"]),
        ];
        for (labelling, names, wanted) in cases {
            let found = labels(labelling, names);
            assert_eq!(found.iter().collect::<HashSet<_>>().len(), names.len(), "{labelling:?}: {found:?}");
            assert_eq!(found, wanted, "{labelling:?}");
            let says = found.iter().all(|label| labelling.says(label));
            assert!(says, "{labelling:?} reads {found:?} as something else");
        }
    }

    #[test]
    fn many_names_that_become_one_do_not_take_long() {
        let names: Vec<String> = (0..20_000u32)
            .map(|number| {
                (0..15).map(|bit| if number >> bit & 1 == 0 { "a " } else { "a\t" }).collect::<String>() + "b"
            })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = labels(Labelling::Word, &names);
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), names.len());
    }
}
