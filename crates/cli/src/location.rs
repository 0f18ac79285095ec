//! `DEVICE:/path`: how the command line names a file on a device.

use crate::failure::Failure;
use nvmed_stack::DeviceSpec;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file, on a device or on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// On a device.
    Device {
        /// The device as written, for messages.
        name: String,
        /// The device.
        spec: Box<DeviceSpec>,
        /// Path from the file system's root; bytes, as names are.
        path: Vec<u8>,
    },
    /// On the host.
    Host(PathBuf),
}

impl Location {
    /// Reads an argument that may name either side: it is on a device if it contains `:/` after a
    /// device, and on the host otherwise, or if it starts with `host:`.
    ///
    /// # Errors
    /// The part before `:/` is no device.
    pub fn parse(argument: &OsStr) -> Result<Self, Failure> {
        let bytes = argument.as_bytes();
        if let Some(path) = bytes.strip_prefix(b"host:") {
            return Ok(Self::Host(PathBuf::from(OsStr::from_bytes(path))));
        }
        match split(bytes) {
            Some((device, path)) => Self::on_device(device, path),
            None => without_slash(argument).map(|()| Self::Host(PathBuf::from(argument))),
        }
    }

    /// Reads an argument that must name a device; without a path its root is meant.
    ///
    /// # Errors
    /// It names no device.
    pub fn parse_device(argument: &OsStr) -> Result<Self, Failure> {
        let bytes = argument.as_bytes();
        if let Some((device, path)) = split(bytes) {
            return Self::on_device(device, path);
        }
        without_slash(argument)?;
        Self::on_device(bytes, b"/")
    }

    fn on_device(device: &[u8], path: &[u8]) -> Result<Self, Failure> {
        let name = String::from_utf8_lossy(device).into_owned();
        if device.is_empty() {
            let path = String::from_utf8_lossy(path);
            return Err(Failure::usage(format!(":{path}: no device before the colon; write DEVICE:{path}")));
        }
        let spec = Box::new(parse_spec(&name)?);
        Ok(Self::Device { name, spec, path: path.to_vec() })
    }

    /// The path on its side.
    pub fn path(&self) -> &[u8] {
        match self {
            Self::Host(path) => path.as_os_str().as_bytes(),
            Self::Device { path, .. } => path,
        }
    }

    /// The same location with another name below it.
    pub fn join(&self, child: &[u8]) -> Self {
        match self {
            Self::Host(path) => Self::Host(path.join(OsStr::from_bytes(child))),
            Self::Device { name, spec, path } => {
                let mut path = path.clone();
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                path.extend_from_slice(child);
                Self::Device { name: name.clone(), spec: spec.clone(), path }
            }
        }
    }

    /// The location of the directory that it was joined to.
    pub fn leave(&mut self) {
        match self {
            Self::Host(path) => _ = path.pop(),
            Self::Device { path, .. } => {
                let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                path.truncate(end);
            }
        }
    }

    /// The same side, where paths begin anew.
    pub fn anew(&self) -> Self {
        match self {
            Self::Host(_) => Self::Host(PathBuf::new()),
            Self::Device { name, spec, .. } => {
                Self::Device { name: name.clone(), spec: spec.clone(), path: Vec::new() }
            }
        }
    }

    /// The last name of the path; `None` for a root, `.` or `..`.
    pub fn file_name(&self) -> Option<Vec<u8>> {
        let path = Path::new(OsStr::from_bytes(self.path()));
        path.file_name().map(|name| name.as_bytes().to_vec())
    }
}

/// `disk.img:a`, where `disk.img` is a file and `disk.img:a` is none, was meant as a file on the device.
fn without_slash(argument: &OsStr) -> Result<(), Failure> {
    let text = argument.to_string_lossy();
    match text.rsplit_once(':') {
        Some((device, _)) if DeviceSpec::is_engine(device) => Ok(()),
        Some((device, path)) if Path::new(device).is_file() && !Path::new(argument).exists() => {
            let meant = format!("write {device}:/{path}; a host file of that name is host:{text}");
            Err(Failure::usage(format!("{text}: a file on a device is named with `:/`: {meant}")))
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(path) => write!(f, "{}", path.display()),
            Self::Device { name, path, .. } => write!(f, "{name}:{}", String::from_utf8_lossy(path)),
        }
    }
}

/// Reads a device string and makes its path absolute.
///
/// # Errors
/// It names no device of this version.
pub fn parse_spec(name: &str) -> Result<DeviceSpec, Failure> {
    let spec = DeviceSpec::parse(name).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let here = std::env::current_dir().unwrap_or_else(|_| Path::new("/").to_path_buf());
    Ok(spec.absolute(&here))
}

/// Splits at the last `:/` that has a device before it. The colon after an engine's name is none:
/// `virtual:/tmp/d.img` is a device, `virtual:/tmp/d.img:/a` is `/a` on it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.windows(2).rposition(|pair| pair == b":/")?;
    let (device, path) = (&bytes[..at], &bytes[at + 1..]);
    let engine = !device.is_empty() && device.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'-');
    (!engine).then_some((device, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(argument: &str) -> (String, String) {
        match Location::parse(OsStr::new(argument)).unwrap() {
            Location::Device { name, path, .. } => (name, String::from_utf8(path).unwrap()),
            Location::Host(path) => ("host".to_owned(), path.display().to_string()),
        }
    }

    #[test]
    fn the_device_stands_before_the_colon() {
        for (argument, device, path) in [
            ("disk.img:/a/b", "disk.img", "/a/b"),
            ("/x/disk.img:/", "/x/disk.img", "/"),
            ("virtual:/x/d.img:/a", "virtual:/x/d.img", "/a"),
            ("d.img?flush=process:/a", "d.img?flush=process", "/a"),
            ("plain/file", "host", "plain/file"),
            ("host:odd:/name", "host", "odd:/name"),
            ("a:b", "host", "a:b"),
        ] {
            assert_eq!(parts(argument), (device.to_owned(), path.to_owned()), "{argument}");
        }
        let root = Location::parse_device(OsStr::new("virtual:/x/d.img")).unwrap();
        assert_eq!(root.to_string(), "virtual:/x/d.img:/");
    }

    #[test]
    fn names_are_bytes() {
        let location = Location::parse(OsStr::from_bytes(b"d.img:/\xff")).unwrap();
        assert_eq!(location.file_name(), Some(vec![0xff]));
        let Location::Device { path, .. } = location.join(b"\xfe") else { panic!("on a device") };
        assert_eq!(path, b"/\xff/\xfe");
    }

    #[test]
    fn what_is_no_device_is_a_usage_error() {
        for bad in [":/a", "warp:x:/a", "tcp:host:4420:/a"] {
            let failure = Location::parse(OsStr::new(bad)).unwrap_err();
            assert_eq!(failure.status, crate::failure::Status::Usage, "{bad}: {}", failure.message);
        }
    }
}
