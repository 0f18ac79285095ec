//! A device in one string: `virtual:disk.img?media=dram,size=1G` (design decision 4).

use nvmed_units::parse_bytes;
use std::fmt;
use std::path::Path;

/// Engines of this version, for messages.
const ENGINES: &str = "virtual (aliases nvmed, lib_nvmed.so)";

/// Where the bytes of a virtual device live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// In a file, persistent.
    File,
    /// In this process's memory, gone with it.
    Dram,
    /// Nowhere: commands succeed and move no data, to measure what is not the medium.
    Null,
}

/// What Flush does to a file medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushTo {
    /// `fdatasync`: the host's stable storage.
    Host,
    /// The host's page cache: survives the process, not the host.
    Process,
}

/// A device, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Path of the image; empty for a medium that has none.
    pub path: String,
    /// `media=`.
    pub medium: Medium,
    /// `size=`: bytes, for creation or for media without a file.
    pub size_bytes: Option<u64>,
    /// `flush=`.
    pub flush: FlushTo,
    /// `write_cache=volatile`: what was not flushed dies with the process, as in a power cut.
    pub volatile: bool,
    /// `lba=`: 512 or 4096 bytes.
    pub lba_bytes: u32,
    /// `clock=threaded`: commands are executed by the device's own thread.
    pub threaded: bool,
}

impl Default for DeviceSpec {
    fn default() -> Self {
        Self {
            path: String::new(),
            medium: Medium::File,
            size_bytes: None,
            flush: FlushTo::Host,
            volatile: false,
            lba_bytes: 512,
            threaded: false,
        }
    }
}

/// A device string that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No such engine.
    #[error("unknown engine `{name}`; this version has: {ENGINES}")]
    UnknownEngine {
        /// As written.
        name: String,
    },
    /// An engine of the plan that is not built yet.
    #[error("engine `{name}` is not in this version, which has: {ENGINES}; use a file, such as `disk.img`")]
    NotYet {
        /// As written.
        name: String,
    },
    /// An option is not known or its value is not.
    #[error("device option `{option}` is not understood; known: {OPTIONS}")]
    Option {
        /// As written.
        option: String,
    },
    /// A file medium needs a file.
    #[error("a device in a file needs its path, as in `virtual:disk.img`")]
    NoPath,
}

const OPTIONS: &str = "media=file|dram|null, size=1G, flush=host|process, write_cache=volatile|none, \
                       lba=512|4096, clock=inline|threaded";

impl DeviceSpec {
    /// Reads a device string: `[virtual:]PATH[?option,option…]`.
    ///
    /// # Errors
    /// [`SpecError`] says what is not understood.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let (engine, location) = match text.split_once(':') {
            Some((engine, rest)) if !engine.contains(['/', '.', '?']) => (Some(engine), rest),
            _ => (None, text),
        };
        Self::from_engine(engine.unwrap_or("virtual"), location)
    }

    /// Puts `storage_engine` and `storage_dev` of a configuration together. A device that names its
    /// engine itself may do so if the two agree.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn from_keys(engine: Option<&str>, location: &str) -> Result<Self, SpecError> {
        let Some(engine) = engine else { return Self::parse(location) };
        let name = engine.rsplit('/').next().unwrap_or(engine);
        let location = location.strip_prefix("virtual:").unwrap_or(location);
        Self::from_engine(name, location)
    }

    fn from_engine(engine: &str, location: &str) -> Result<Self, SpecError> {
        match engine {
            "virtual" | "nvmed" | "lib_nvmed.so" => {}
            "vfio" | "vfio-user" | "uring" | "uring-cmd" | "tcp" | "nvm" => {
                return Err(SpecError::NotYet { name: engine.to_owned() });
            }
            _ => return Err(SpecError::UnknownEngine { name: engine.to_owned() }),
        }
        let (path, options) = location.split_once('?').unwrap_or((location, ""));
        let mut spec = Self { path: path.to_owned(), ..Self::default() };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            spec.option(option)?;
        }
        if spec.path.is_empty() && spec.medium == Medium::File {
            return Err(SpecError::NoPath);
        }
        Ok(spec)
    }

    fn option(&mut self, option: &str) -> Result<(), SpecError> {
        match option {
            "media=file" => self.medium = Medium::File,
            "media=dram" => self.medium = Medium::Dram,
            "media=null" => self.medium = Medium::Null,
            "flush=host" => self.flush = FlushTo::Host,
            "flush=process" => self.flush = FlushTo::Process,
            "write_cache=volatile" => self.volatile = true,
            "write_cache=none" => self.volatile = false,
            "lba=512" => self.lba_bytes = 512,
            "lba=4096" => self.lba_bytes = 4096,
            "clock=inline" => self.threaded = false,
            "clock=threaded" => self.threaded = true,
            _ => {
                let size = option.strip_prefix("size=").and_then(|size| parse_bytes(size).ok());
                self.size_bytes = Some(size.ok_or_else(|| SpecError::Option { option: option.to_owned() })?);
            }
        }
        Ok(())
    }

    /// The same device with its path made absolute from `base`.
    #[must_use]
    pub fn absolute(mut self, base: &Path) -> Self {
        if !self.path.is_empty() {
            self.path = crate::config::absolute(base, &self.path).display().to_string();
        }
        self
    }

    /// The engine's name.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        "virtual"
    }

    /// What follows the engine's name: the path and the options that differ from the defaults.
    #[must_use]
    pub fn location(&self) -> String {
        let plain = Self::default();
        let mut options = Vec::new();
        match self.medium {
            Medium::File => {}
            Medium::Dram => options.push("media=dram".to_owned()),
            Medium::Null => options.push("media=null".to_owned()),
        }
        if let Some(bytes) = self.size_bytes {
            options.push(format!("size={bytes}"));
        }
        if self.flush != plain.flush {
            options.push("flush=process".to_owned());
        }
        if self.volatile {
            options.push("write_cache=volatile".to_owned());
        }
        if self.lba_bytes != plain.lba_bytes {
            options.push(format!("lba={}", self.lba_bytes));
        }
        if self.threaded {
            options.push("clock=threaded".to_owned());
        }
        let mark = if options.is_empty() { "" } else { "?" };
        format!("{}{mark}{}", self.path, options.join(","))
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.engine(), self.location())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_one_string_both_ways() {
        for text in [
            "virtual:disk.img",
            "virtual:/a/b.img?size=1073741824,flush=process,write_cache=volatile,lba=4096,clock=threaded",
            "virtual:?media=dram,size=65536",
        ] {
            assert_eq!(DeviceSpec::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(DeviceSpec::parse("disk.img?size=1G").unwrap().size_bytes, Some(1 << 30));
        assert_eq!(DeviceSpec::parse("./a:b.img").unwrap().path, "./a:b.img");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, want) in [
            ("warp:x", "unknown engine `warp`"),
            ("vfio:0000:01:00.0", "engine `vfio` is not in this version"),
            ("d.img?speed=fast", "device option `speed=fast`"),
            ("d.img?size=big", "device option `size=big`"),
            ("virtual:", "needs its path"),
        ] {
            let said = DeviceSpec::parse(text).unwrap_err().to_string();
            assert!(said.contains(want), "for {text:?} it said {said:?}");
        }
    }
}
