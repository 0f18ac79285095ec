//! `-o`: how to mount, in the words of mount(8), and settings of the file system by their own names.

use std::path::PathBuf;

/// Threads that serve requests, unless `threads=` says otherwise. Several, because one that waits for the device
/// (an fsync, a read that misses) keeps its thread; idle ones cost a stack each.
const THREADS_DEFAULT: u16 = 8;
/// More would wait for each other.
const THREADS_MAX: u16 = 256;
/// Processors that `cpus=` may name.
const CPUS_MAX: usize = 1024;

/// All words, for the message that meets an unknown one.
const WORDS: &str = "ro, rw, allow_other, noallow_other, suid, nosuid, dev, nodev, exec, noexec, noatime, nonempty, \
                     threads=N, cpus=LIST, log=FILE, and the keys of the configuration file as key=value";
/// Words of /etc/fstab and mount(8) that change nothing here.
const IGNORED: [&str; 9] =
    ["defaults", "rw", "async", "atime", "relatime", "auto", "noauto", "nofail", "default_permissions"];

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Whether other users than the mounting one may use it; none: if root mounts.
    pub allow_other: Option<bool>,
    /// The kernel lets nothing be changed.
    pub read_only: bool,
    /// Whether setuid and setgid programs on it run as their owners.
    pub suid: bool,
    /// Whether device nodes on it work.
    pub dev: bool,
    /// Whether programs on it can be run.
    pub exec: bool,
    /// Whether reading is recorded in access times.
    pub atime: bool,
    /// Whether the directory may have entries, which the mount hides.
    pub nonempty: bool,
    /// Threads that serve requests.
    pub threads: u16,
    /// Processors that these threads are kept on; none: the host chooses.
    pub cpus: Vec<usize>,
    /// Where a process in the background writes what it has to say; none: to the system log.
    pub log: Option<PathBuf>,
    /// Settings of the file system: keys and values of the configuration file.
    pub settings: Vec<(String, String)>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            allow_other: None,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            atime: true,
            nonempty: false,
            threads: THREADS_DEFAULT,
            cpus: Vec::new(),
            log: None,
            settings: Vec::new(),
        }
    }
}

/// A word after `-o` that means nothing, or not that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word}: {what}")]
pub struct OptionError {
    /// As written.
    pub word: String,
    /// What is wrong and what would be right.
    pub what: String,
}

impl MountOptions {
    /// Reads words separated by commas; the last of two that contradict each other counts.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse(lists: &[String]) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for word in lists.iter().flat_map(|list| list.split(',')).map(str::trim) {
            match word.split_once('=') {
                Some((key, value)) => options.set(word, key.trim(), value.trim())?,
                None => options.switch(word)?,
            }
        }
        Ok(options)
    }

    fn switch(&mut self, word: &str) -> Result<(), OptionError> {
        match word {
            "ro" => self.read_only = true,
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            "suid" | "nosuid" => self.suid = word == "suid",
            "dev" | "nodev" => self.dev = word == "dev",
            "exec" | "noexec" => self.exec = word == "exec",
            "noatime" => self.atime = false,
            "nonempty" => self.nonempty = true,
            "rw" => self.read_only = false,
            "" => {}
            _ if IGNORED.contains(&word) || word.starts_with("x-") => {}
            _ => return Err(wrong(word, format!("unknown; known: {WORDS}"))),
        }
        Ok(())
    }

    fn set(&mut self, word: &str, key: &str, value: &str) -> Result<(), OptionError> {
        match key {
            "threads" => {
                let threads = value.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
                self.threads =
                    threads.ok_or_else(|| wrong(word, format!("a number from 1 to {THREADS_MAX}")))?;
            }
            "cpus" => {
                self.cpus = cpus(value)
                    .ok_or_else(|| wrong(word, "processors are numbers and ranges, as 0+2-3".to_owned()))?;
            }
            "log" => self.log = Some(PathBuf::from(value)),
            _ if key.starts_with("x-") => {}
            _ => {
                self.settings.retain(|(known, _)| known != key);
                self.settings.push((key.to_owned(), value.to_owned()));
            }
        }
        Ok(())
    }
}

fn wrong(word: &str, what: String) -> OptionError {
    OptionError { word: word.to_owned(), what }
}

/// `0+2-3`; a comma ends an option.
fn cpus(text: &str) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for part in text.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions, OptionError> {
        MountOptions::parse(&[text.to_owned()])
    }

    #[test]
    fn words_are_read() {
        let options =
            parse("defaults,ro,allow_other,suid,cpus=0+2-3,threads=2,log=/l,cache_size=1G").unwrap();
        assert!(options.read_only && options.suid && !options.dev && options.allow_other == Some(true));
        assert_eq!((&options.cpus[..], options.threads), (&[0, 2, 3][..], 2));
        assert_eq!(options.settings, [("cache_size".to_owned(), "1G".to_owned())]);
        assert_eq!(parse("ro,rw,suid,nosuid").unwrap(), MountOptions::default());
        assert_eq!(parse("").unwrap(), MountOptions::default());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, want) in [
            ("frobnicate", "frobnicate: unknown; known: ro, rw"),
            ("threads=0", "threads=0: a number from 1 to 256"),
            ("cpus=3-1", "cpus=3-1: processors are numbers and ranges"),
        ] {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.starts_with(want), "{said}");
        }
    }
}
