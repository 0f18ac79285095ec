//! A device in one string: `virtual:disk.img?media=dram,size=1G`.

mod error;
mod nvm;

pub use error::SpecError;
pub use nvm::{NvmBuffer, NvmSpec};

use crate::behaviour::Behaviour;
use crate::driver::DriverKeys;
use crate::profile::DriveProfile;
use nvmed_units::{is_beyond_bytes, parse_bytes};
use nvmed_vdev::Clock;
use nvmed_vfio::Address;
use std::fmt;
use std::path::Path;

/// What an engine may be called before a colon.
const NAMES: [&str; 8] =
    ["virtual", "nvmed", "lib_nvmed.so", "vfio", "vfio-user", "uring", "uring-cmd", "nvm"];
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
#[non_exhaustive]
pub enum DeviceSpec {
    /// `virtual:`, the default: our own controller, in this process.
    Virtual(VirtualSpec),
    /// `vfio:0000:01:00.0`: a controller on the PCI bus, by the kernel's VFIO.
    Vfio(VfioSpec),
    /// `vfio-user:/run/x.sock`: a controller in another process.
    VfioUser(VfioUserSpec),
    /// `uring:/dev/nvme0n1`, or a file: the kernel's block layer by io_uring.
    Uring(UringSpec),
    /// `uring-cmd:/dev/ng0n1`: NVMe commands through the kernel's driver.
    UringCmd(UringCmdSpec),
    /// `nvm:disk.img`: memory that keeps its bytes.
    Nvm(NvmSpec),
}

/// Our own controller, in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualSpec {
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
    /// `serial=`: 1 to 20 characters; absent, it comes with the image.
    pub serial: Option<String>,
    /// Clock, latencies and faults.
    pub behaviour: Behaviour,
    /// `hmb_io=`; it has one namespace.
    pub driver: DriverKeys,
}

/// A controller on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfioSpec {
    /// PCI address, as `0000:01:00.0`.
    pub address: String,
    /// `nsid=` and `hmb_io=`.
    pub driver: DriverKeys,
    /// `interrupts=on`: completions raise MSI-X interrupts; `off` polls.
    pub interrupts: bool,
}

/// A controller in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfioUserSpec {
    /// Path of its socket.
    pub socket: String,
    /// `nsid=` and `hmb_io=`.
    pub driver: DriverKeys,
}

/// A file or a block device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UringSpec {
    /// Its path.
    pub path: String,
    /// `size=`: bytes, for the creation of a file.
    pub size_bytes: Option<u64>,
    /// `direct=off`: through the page cache.
    pub direct: bool,
    /// `iopoll=on`: completions are polled for in the kernel.
    pub iopoll: bool,
    /// `calls=on`: each request is a system call of its own; absent, where io_uring would need a thread for it.
    pub calls: Option<bool>,
    /// `lba=`: 512 or 4096 bytes; as the kernel says where it is not given.
    pub lba_bytes: Option<u32>,
}

/// A namespace of the kernel's NVMe driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UringCmdSpec {
    /// Its character device.
    pub path: String,
}

impl Default for VirtualSpec {
    fn default() -> Self {
        Self {
            path: String::new(),
            medium: Medium::File,
            size_bytes: None,
            flush: FlushTo::Host,
            volatile: false,
            lba_bytes: 512,
            serial: None,
            behaviour: Behaviour::default(),
            driver: DriverKeys::default(),
        }
    }
}

impl Default for DeviceSpec {
    fn default() -> Self {
        Self::Virtual(VirtualSpec::default())
    }
}

/// One `key=value` of a device string.
type Setting<'a> = (&'a str, &'a str);

impl VirtualSpec {
    const OPTIONS: &str = "media=file|dram|null, size=1G, flush=host|process, write_cache=volatile|none, \
                           lba=512|4096, serial=TEXT, clock=inline|threaded|virtual, latency=200us, read_latency=80us, \
                           write_latency=20us, bandwidth=2G, profile=tlc|FILE, hmb=64M, hmb_min=4K, hmb_entries=16, \
                            hmb_use=map:60+read:30+write:10, hmb_io_slots=64, hmb_io=8, \
                           faults=drop:op=read+nth=3;delay:us=500";

    fn set(&mut self, setting: Setting<'_>) -> Option<()> {
        match setting {
            ("media", "file") => self.medium = Medium::File,
            ("media", "dram") => self.medium = Medium::Dram,
            ("media", "null") => self.medium = Medium::Null,
            ("flush", "host") => self.flush = FlushTo::Host,
            ("flush", "process") => self.flush = FlushTo::Process,
            ("write_cache", "volatile") => self.volatile = true,
            ("write_cache", "none") => self.volatile = false,
            ("lba", bytes) => self.lba_bytes = lba_bytes(bytes)?,
            ("serial", text) => self.serial = Some(serial(text)?),
            ("size", size) => self.size_bytes = Some(parse_bytes(size).ok()?),
            ("hmb_io", _) => return self.driver.set(setting),
            _ => return self.behaviour.set(setting),
        }
        Some(())
    }

    fn options(&self) -> Vec<String> {
        let plain = Self::default();
        let mut options = Vec::new();
        match self.medium {
            Medium::File => {}
            Medium::Dram => options.push("media=dram".to_owned()),
            Medium::Null => options.push("media=null".to_owned()),
        }
        options.extend(self.size_bytes.map(|bytes| format!("size={bytes}")));
        if self.flush != plain.flush {
            options.push("flush=process".to_owned());
        }
        if self.volatile {
            options.push("write_cache=volatile".to_owned());
        }
        if self.lba_bytes != plain.lba_bytes {
            options.push(format!("lba={}", self.lba_bytes));
        }
        options.extend(self.serial.iter().map(|text| format!("serial={text}")));
        options.extend(self.driver.options());
        options.extend(self.behaviour.options());
        options
    }
}

impl VfioSpec {
    const OPTIONS: &str = "nsid=1, interrupts=on|off, hmb_io=8";

    fn new(address: &str) -> Self {
        Self { address: address.to_owned(), driver: DriverKeys::default(), interrupts: true }
    }

    fn set(&mut self, setting: Setting<'_>) -> Option<()> {
        match setting {
            ("interrupts", value) => self.interrupts = switch(value)?,
            _ => return self.driver.set(setting),
        }
        Some(())
    }

    fn options(&self) -> Vec<String> {
        let mut options = self.driver.options();
        if !self.interrupts {
            options.push("interrupts=off".to_owned());
        }
        options
    }
}

impl VfioUserSpec {
    const OPTIONS: &str = "nsid=1, hmb_io=8";

    fn new(socket: &str) -> Self {
        Self { socket: socket.to_owned(), driver: DriverKeys::default() }
    }
}

impl UringSpec {
    const OPTIONS: &str = "size=1G, direct=on|off, iopoll=on|off, calls=on|off, lba=512|4096";

    fn new(path: &str) -> Self {
        let path = path.to_owned();
        Self { path, size_bytes: None, direct: true, iopoll: false, calls: None, lba_bytes: None }
    }

    fn set(&mut self, setting: Setting<'_>) -> Option<()> {
        match setting {
            ("size", size) => self.size_bytes = Some(parse_bytes(size).ok()?),
            ("direct", value) => self.direct = switch(value)?,
            ("iopoll", value) => self.iopoll = switch(value)?,
            ("calls", value) => self.calls = Some(switch(value)?),
            ("lba", bytes) => self.lba_bytes = Some(lba_bytes(bytes)?),
            _ => return None,
        }
        Some(())
    }

    fn options(&self) -> Vec<String> {
        let mut options: Vec<_> = self.size_bytes.map(|bytes| format!("size={bytes}")).into_iter().collect();
        if !self.direct {
            options.push("direct=off".to_owned());
        }
        if self.iopoll {
            options.push("iopoll=on".to_owned());
        }
        options.extend(self.calls.map(|on| format!("calls={}", if on { "on" } else { "off" })));
        options.extend(self.lba_bytes.map(|bytes| format!("lba={bytes}")));
        options
    }
}

/// `on` or `off`.
fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// A serial number as Identify has room for it.
fn serial(value: &str) -> Option<String> {
    let fits = (1..=20).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| value.to_owned())
}

fn lba_bytes(value: &str) -> Option<u32> {
    match value {
        "512" => Some(512),
        "4096" => Some(4096),
        _ => None,
    }
}

/// Gives every option of `text` to `set`.
fn settings(
    text: &str,
    engine: &'static str,
    known: &'static str,
    mut set: impl FnMut(Setting<'_>) -> Option<()>,
) -> Result<(), SpecError> {
    let mut all: Vec<Setting<'_>> = Vec::new();
    for option in text.split(',').filter(|option| !option.is_empty()) {
        let unknown = || SpecError::Option { option: option.to_owned(), engine, known };
        let (key, value) = option.split_once('=').ok_or_else(unknown)?;
        if set((key, value)).is_none() {
            let why = wrong_size(key, value).ok_or_else(unknown)?;
            return Err(SpecError::Size { option: option.to_owned(), why, engine, known });
        }
        if let Some((_, before)) = all.iter().find(|(other, _)| *other == key) {
            let [before, after] = [before, value].map(|value| format!("{key}={value}"));
            return Err(SpecError::Twice { key: key.to_owned(), before, after });
        }
        all.push((key, value));
    }
    Ok(())
}

/// Why a size that is written as one cannot be that of an option, of those that are sizes.
fn wrong_size(key: &str, value: &str) -> Option<&'static str> {
    match (key, parse_bytes(value)) {
        ("size" | "buffer" | "bandwidth" | "hmb" | "hmb_min", Err(_)) if is_beyond_bytes(value) => {
            Some("that is more than 64 bits count, 16E less a byte")
        }
        ("buffer", Ok(0)) => {
            Some("a buffer of 0 bytes holds nothing; leave it out with `profile`, or give it some")
        }
        _ => None,
    }
}

/// What an engine needs to be told.
fn named(path: &str, engine: &'static str, example: &'static str) -> Result<(), SpecError> {
    if path.is_empty() { Err(SpecError::NoPath { engine, example }) } else { Ok(()) }
}

/// Whether there is a profile of the name; a file is read when the device is opened.
fn check_profile(behaviour: &Behaviour) -> Result<(), SpecError> {
    if behaviour.is_ambiguous() {
        return Err(SpecError::ProfileAndLatency);
    }
    behaviour.host_memory.check()?;
    match behaviour.profile.as_deref().filter(|name| !DriveProfile::is_file(name)) {
        Some(name) => {
            DriveProfile::named(name).map(drop).map_err(|fault| SpecError::UnknownProfile { fault })
        }
        None => Ok(()),
    }
}

impl DeviceSpec {
    /// Reads a device string: `[ENGINE:]PATH[?option,option…]`. Without an engine it is `virtual`.
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

    /// Whether a word before a colon names an engine.
    #[must_use]
    pub fn is_engine(word: &str) -> bool {
        NAMES.contains(&word)
    }

    /// Puts `storage_engine` and `storage_dev` of a configuration together. A device that names its
    /// engine itself may do so if the two agree.
    ///
    /// # Errors
    /// [`SpecError`].
    pub(crate) fn from_keys(engine: Option<&str>, location: &str) -> Result<Self, SpecError> {
        let Some(engine) = engine else { return Self::parse(location) };
        let name = engine.rsplit('/').next().unwrap_or(engine);
        let own = match name {
            "nvmed" | "lib_nvmed.so" => "virtual",
            name => name,
        };
        let location = location.strip_prefix(own).and_then(|rest| rest.strip_prefix(':')).unwrap_or(location);
        Self::from_engine(name, location)
    }

    fn from_engine(engine: &str, location: &str) -> Result<Self, SpecError> {
        let (path, options) = location.split_once('?').unwrap_or((location, ""));
        match engine {
            "virtual" | "nvmed" | "lib_nvmed.so" => {
                let mut spec = VirtualSpec { path: path.to_owned(), ..VirtualSpec::default() };
                settings(options, "virtual", VirtualSpec::OPTIONS, |setting| spec.set(setting))?;
                if spec.medium == Medium::File {
                    named(path, "virtual", "virtual:disk.img")?;
                }
                spec.behaviour.plan().map_err(|error| SpecError::Faults { error })?;
                if let Some(drive) = spec.behaviour.fixed() {
                    drive.check().map_err(|error| SpecError::Profile { error })?;
                }
                check_profile(&spec.behaviour)?;
                Ok(Self::Virtual(spec))
            }
            "vfio" => {
                named(path, "vfio", "vfio:0000:01:00.0")?;
                path.parse::<Address>().map_err(|error| SpecError::Address { error })?;
                let mut spec = VfioSpec::new(path);
                settings(options, "vfio", VfioSpec::OPTIONS, |setting| spec.set(setting))?;
                Ok(Self::Vfio(spec))
            }
            "vfio-user" => {
                named(path, "vfio-user", "vfio-user:/run/nvmed.sock")?;
                let mut spec = VfioUserSpec::new(path);
                settings(options, "vfio-user", VfioUserSpec::OPTIONS, |setting| spec.driver.set(setting))?;
                Ok(Self::VfioUser(spec))
            }
            "uring" => {
                named(path, "uring", "uring:/dev/nvme0n1")?;
                let mut spec = UringSpec::new(path);
                settings(options, "uring", UringSpec::OPTIONS, |setting| spec.set(setting))?;
                Ok(Self::Uring(spec))
            }
            "uring-cmd" => {
                named(path, "uring-cmd", "uring-cmd:/dev/ng0n1")?;
                settings(options, "uring-cmd", "none", |_| None)?;
                Ok(Self::UringCmd(UringCmdSpec { path: path.to_owned() }))
            }
            "nvm" => {
                let mut spec = NvmSpec::new(path);
                settings(options, "nvm", NvmSpec::OPTIONS, |setting| spec.set(setting))?;
                spec.check()?;
                Ok(Self::Nvm(spec))
            }
            "tcp" => Err(SpecError::NotYet { name: engine.to_owned() }),
            _ => Err(SpecError::UnknownEngine { name: engine.to_owned() }),
        }
    }

    /// The same device with its path, and those of its profile and its record, made absolute from `base`.
    #[must_use]
    pub fn absolute(mut self, base: &Path) -> Self {
        let absolute =
            |path: &mut String| *path = crate::config::absolute(base, &*path).display().to_string();
        if let Self::Virtual(spec) = &mut self {
            spec.behaviour.profile.iter_mut().filter(|name| DriveProfile::is_file(name)).for_each(absolute);
            spec.behaviour.record.iter_mut().for_each(absolute);
        }
        if let Self::Nvm(NvmSpec { buffer: Some(buffer), .. }) = &mut self
            && DriveProfile::is_file(&buffer.profile)
        {
            absolute(&mut buffer.profile);
        }
        self.path_mut().into_iter().filter(|path| !path.is_empty()).for_each(absolute);
        self
    }

    fn path_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Virtual(spec) => Some(&mut spec.path),
            Self::VfioUser(spec) => Some(&mut spec.socket),
            Self::Uring(spec) => Some(&mut spec.path),
            Self::UringCmd(spec) => Some(&mut spec.path),
            Self::Nvm(spec) => Some(&mut spec.path),
            Self::Vfio(_) => None,
        }
    }

    /// The file that holds the device's bytes and can be made: an image, or what io_uring opens.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Virtual(spec) if spec.medium == Medium::File => Some(&spec.path),
            Self::Uring(spec) => Some(&spec.path),
            Self::Nvm(spec) if !spec.path.is_empty() => Some(&spec.path),
            _ => None,
        }
    }

    /// Whether what is written stays when this process ends.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Virtual(spec) => spec.medium == Medium::File,
            Self::Nvm(spec) => !spec.path.is_empty(),
            _ => true,
        }
    }

    /// The host's file or device node behind it, where it has one.
    #[must_use]
    pub(crate) fn host_file(&self) -> Option<&Path> {
        let path = match self {
            Self::Virtual(spec) if spec.medium == Medium::File => &spec.path,
            Self::Uring(spec) => &spec.path,
            Self::UringCmd(spec) => &spec.path,
            Self::Nvm(spec) => &spec.path,
            _ => return None,
        };
        (!path.is_empty()).then(|| Path::new(path))
    }

    /// Whether its time is simulated: it passes by what one thread asks of it.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        match self {
            Self::Virtual(spec) => spec.behaviour.clock() == Clock::Virtual,
            Self::Nvm(spec) => {
                spec.buffer.as_ref().is_some_and(|front| front.clock == nvmed_nvm::BufferClock::Virtual)
            }
            _ => false,
        }
    }

    /// `size=`, where it is given.
    #[must_use]
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Virtual(spec) => spec.size_bytes,
            Self::Uring(spec) => spec.size_bytes,
            Self::Nvm(spec) => spec.size_bytes,
            _ => None,
        }
    }

    /// The engine's name.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Virtual(_) => "virtual",
            Self::Vfio(_) => "vfio",
            Self::VfioUser(_) => "vfio-user",
            Self::Uring(_) => "uring",
            Self::UringCmd(_) => "uring-cmd",
            Self::Nvm(_) => "nvm",
        }
    }

    /// The path, address or socket alone; empty of media in memory.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Virtual(spec) => &spec.path,
            Self::Vfio(spec) => &spec.address,
            Self::VfioUser(spec) => &spec.socket,
            Self::Uring(spec) => &spec.path,
            Self::UringCmd(spec) => &spec.path,
            Self::Nvm(spec) => &spec.path,
        }
    }

    /// What follows the engine's name: the path and the options that differ from the defaults.
    #[must_use]
    pub fn location(&self) -> String {
        let options = match self {
            Self::Virtual(spec) => spec.options(),
            Self::Vfio(spec) => spec.options(),
            Self::VfioUser(spec) => spec.driver.options(),
            Self::Uring(spec) => spec.options(),
            Self::UringCmd(_) => Vec::new(),
            Self::Nvm(spec) => spec.options(),
        };
        let path = self.path();
        // White space at the end belongs to the path, and a reader of settings takes it off: it does not stand last.
        let bare = options.is_empty() && !path.ends_with(char::is_whitespace);
        let mark = if bare { "" } else { "?" };
        format!("{path}{mark}{}", options.join(","))
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
    use crate::device::{Open, open_device};
    use nvmed_dice::Dice;

    #[test]
    fn a_device_is_one_string_both_ways() {
        for text in [
            "virtual:disk.img",
            "virtual:/a/b.img?size=1073741824,flush=process,write_cache=volatile,lba=4096,clock=threaded",
            "virtual:?media=dram,size=65536",
            "virtual:disk.img?lba=4096,serial=A-7",
            "virtual:?media=dram,size=65536,clock=virtual,read_latency=80000ns,bandwidth=1000",
            "virtual:d.img?faults=drop:op=read+lba=1..9;stop",
            "virtual:d.img?clock=virtual,profile=emmc-8ps",
            "virtual:d.img?profile=./my drive.toml,faults=stop",
            "virtual:d.img?profile=tlc,hmb=67108864,hmb_min=4096,hmb_entries=8,hmb_use=map:60+read:40,hmb_io_slots=8",
            "virtual:d.img?hmb_io=8,profile=tlc,hmb=1048576",
            "vfio:0000:01:00.0?nsid=2,hmb_io=64,interrupts=off",
            "vfio-user:/run/nvmed.sock",
            "vfio-user:/run/nvmed.sock?hmb_io=1",
            "uring:/dev/nvme0n1?iopoll=on",
            "uring:/dev/zram0?calls=off",
            "uring:disk.img?size=1048576,direct=off,lba=4096",
            "uring-cmd:/dev/ng0n1",
            "nvm:disk.img",
            "nvm:disk.img?size=1048576,flush=process,lba=4096",
            "nvm:/mnt/pmem/disk.img?flush=dax",
            "nvm:?size=1048576",
            "nvm:disk.img?profile=nand,buffer=1048576",
            "nvm:disk.img?flush=process,profile=my/medium.toml,buffer=4096,clock=waited,prefetch=off",
            "virtual:d.img ?",
        ] {
            assert_eq!(DeviceSpec::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(DeviceSpec::parse("disk.img?size=1G").unwrap().size_bytes(), Some(1 << 30));
        assert_eq!(DeviceSpec::parse("./a:b.img").unwrap().file(), Some("./a:b.img"));
        let absolute = |text| DeviceSpec::parse(text).unwrap().absolute(Path::new("/x")).to_string();
        assert_eq!(absolute("d.img?profile=tlc"), "virtual:/x/d.img?profile=tlc");
        assert_eq!(absolute("d.img?profile=my.toml"), "virtual:/x/d.img?profile=/x/my.toml");
    }

    /// What is shown is read back; and what makes no device, or none that the host has memory for, is one line.
    #[test]
    fn fuzz_any_memory_is_opened_or_refused() {
        const KEYS: [&str; 8] = ["size", "size", "flush", "lba", "profile", "buffer", "clock", "speed"];
        const VALUES: [&str; 24] = [
            "64K",
            "1M",
            "1G",
            "65536",
            "4096",
            "512",
            "1000",
            "0",
            "-1",
            "8E",
            "17179869184G",
            "",
            "host",
            "process",
            "dax",
            "virtual",
            "waited",
            "dram",
            "pcm",
            "cxl-flash",
            "nand",
            "none.toml",
            "=",
            "1M?",
        ];
        const SOUND: [&str; 6] =
            ["size=64K", "flush=process", "lba=4096", "profile=nand", "profile=pcm", "buffer=256K"];
        let (mut opened, mut refused) = (0, 0);
        for seed in 0..2000 {
            let mut dice = Dice::of(&[seed]);
            let path = if dice.chance(15) { "/none/d.img" } else { "" };
            let mut text = format!("nvm:{path}?size=1M");
            for _ in 0..dice.roll(5) {
                text += ",";
                if dice.chance(70) {
                    text += dice.pick(&SOUND).unwrap_or(&"");
                } else {
                    let pair = (dice.pick(&KEYS).unwrap_or(&""), dice.pick(&VALUES).unwrap_or(&""));
                    text += &format!("{}={}", pair.0, pair.1);
                }
            }
            let one_line = |said: String| {
                assert!(!said.contains(char::is_control) && !said.is_empty(), "`{text}`: {said:?}");
            };
            let spec = match DeviceSpec::parse(&text) {
                Ok(spec) => spec,
                Err(error) => {
                    one_line(error.to_string());
                    continue;
                }
            };
            assert_eq!(DeviceSpec::parse(&spec.to_string()), Ok(spec.clone()), "`{text}`");
            match open_device(&spec, Open::Existing { locked_by_run: false }) {
                Ok(device) => {
                    opened += 1;
                    assert!(spec.size_bytes().is_some() && device.geometry().lba_count > 0, "`{text}`");
                }
                Err(error) => {
                    refused += 1;
                    one_line(error.to_string());
                }
            }
        }
        assert!(opened > 50 && refused > 50, "{opened} were opened, {refused} were not");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, want) in [
            ("warp:x", "unknown engine `warp`"),
            ("tcp:host:4420", "engine `tcp` is not in this version"),
            ("vfio:", "as in `vfio:0000:01:00.0`"),
            ("vfio:eth0", "`eth0` is no PCI address"),
            ("nvm:", "as in `nvm:disk.img`"),
            ("nvm:?size=1M,flush=dax", "as in `nvm:disk.img`"),
            ("nvm:d.img?flush=disk", "engine nvm knows: size=1G, flush=host|process|dax"),
            ("nvm:d.img?profile=nand", "give `profile` and `buffer`, as in profile=nand,buffer=64M"),
            ("nvm:d.img?buffer=64M,clock=waited", "give `profile` and `buffer`"),
            ("nvm:d.img?profile=nand,buffer=1M,prefetch=on", "prefetch=off|device|hints"),
            ("nvm:d.img?profile=tape,buffer=64M", "no profile is called `tape`; there are dram, pcm, reram"),
            (
                "nvm:d.img?profile=nand,buffer=0",
                "device option `buffer=0`: a buffer of 0 bytes holds nothing",
            ),
            ("nvm:?size=99999999T", "device option `size=99999999T`: that is more than 64 bits count"),
            ("nvm:?size=1G,profile=nand,buffer=999999999999T", "`buffer=999999999999T`: that is more than"),
            ("d.img?size=16E", "device option `size=16E`: that is more than 64 bits count"),
            ("nvm:?size=1G,size=2G", "`size` is given twice, as `size=1G` and as `size=2G`; leave one out"),
            ("nvm:d.img?size=1G,lba=512,size=1G", "`size` is given twice"),
            ("d.img?clock=inline,clock=virtual", "`clock` is given twice"),
            ("uring:d.img?direct=on,direct=off", "`direct` is given twice"),
            ("vfio:0000:01:00.0?nsid=2,nsid=3", "`nsid` is given twice"),
            ("vfio-user:/run/s?hmb_io=2,hmb_io=3", "`hmb_io` is given twice"),
            ("uring-cmd:/dev/ng0n1?lba=512", "engine uring-cmd knows: none"),
            ("d.img?speed=fast", "device option `speed=fast`"),
            ("d.img?size=big", "device option `size=big`"),
            ("d.img?serial=", "device option `serial=`"),
            ("d.img?serial=twenty-one-characters", "device option `serial=twenty-one-characters`"),
            ("virtual:", "as in `virtual:disk.img`"),
            ("d.img?latency=200", "device option `latency=200`"),
            ("d.img?latency=3601s", "the device's times, in ns: `read_latency` is 3601000000000"),
            ("d.img?profile=", "device option `profile=`"),
            ("d.img?profile=qlc", "no profile is called `qlc`; there are dram, xpoint"),
            ("d.img?profile=tlc,latency=1us", "leave it out, or `latency` and `bandwidth`"),
            ("d.img?bandwidth=1G,profile=a/b", "leave it out, or `latency` and `bandwidth`"),
            ("d.img?hmb=4095", "device option `hmb=4095`"),
            ("d.img?hmb=17G", "device option `hmb=17G`"),
            ("d.img?hmb=1M,hmb_use=map", "device option `hmb_use=map`"),
            ("d.img?hmb=1M,hmb_use=map:50+map:50", "device option `hmb_use=map:50+map:50`"),
            ("d.img?hmb=1M,hmb_use=map:60+read:41", "more than 100 percent"),
            ("d.img?hmb=1M,hmb_min=2M", "`hmb_min` is more than that"),
            ("d.img?hmb_entries=2", "`hmb`: it is missing"),
            ("d.img?hmb_io_slots=2", "`hmb`: it is missing"),
            ("d.img?hmb=1M,hmb_io_slots=65", "device option `hmb_io_slots=65`"),
            ("d.img?hmb=1M,hmb_io_slots=0", "device option `hmb_io_slots=0`"),
            ("d.img?faults=drop:op=red", "fault rule `drop:op=red`: `op=red` is not understood"),
        ] {
            let said = DeviceSpec::parse(text).unwrap_err().to_string();
            assert!(said.contains(want), "for {text:?} it said {said:?}");
        }
    }
}
