//! Our file system through the library, made for a measurement.

use nvmed_fs::{Credentials, FileSystem, FormatOptions, OpenFlags};
use nvmed_stack::{Config, DeviceSpec, Mount, Open, Surroundings, open_device};

/// Who makes the calls.
pub const WHO: &Credentials<'static> = &Credentials::ROOT;
/// Open for writing, made anew.
pub const CREATE: OpenFlags = OpenFlags((libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY).cast_unsigned());
/// Open a directory to list it.
pub const LIST: OpenFlags = OpenFlags((libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOATIME).cast_unsigned());

/// Any error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Formats the device that `spec` describes, made with `bytes` if it is an image.
///
/// # Errors
/// The device's.
pub fn format(spec: &DeviceSpec, bytes: Option<u64>, options: &FormatOptions) -> Result<(), String> {
    let open = bytes.map_or(Open::Existing { locked_by_run: false }, |bytes| Open::Create { bytes });
    let device = open_device(spec, open).map_err(text)?;
    FileSystem::format(&device, options).map_err(text)?;
    device.shutdown().map_err(text)
}

/// Mounts it with a cache of `cache_bytes`.
///
/// # Errors
/// The mount's.
pub fn mount(spec: &DeviceSpec, cache_bytes: u64) -> Result<Mount, String> {
    let mut config = Config::new("/unused".into(), spec.clone());
    (config.cache_bytes, config.dirty_limit_bytes) = (cache_bytes, cache_bytes / 2);
    nvmed_stack::mount(&config, Surroundings::default()).map_err(text)
}

/// An image in `/dev/shm`, removed when dropped.
pub struct Image {
    /// Its device.
    pub spec: DeviceSpec,
    path: std::path::PathBuf,
}

impl Image {
    /// A freshly formatted file system of `bytes`.
    ///
    /// # Errors
    /// As [`format()`].
    pub fn formatted(word: &str, bytes: u64, options: &FormatOptions) -> Result<Self, String> {
        let path =
            std::path::PathBuf::from(format!("/dev/shm/nvmed-bench-{}-{word}.img", std::process::id()));
        let spec = DeviceSpec::parse(&path.display().to_string()).map_err(text)?;
        nvmed_lab::undo::made(&nvmed_lab::undo::HostResource::File(path.clone()));
        format(&spec, Some(bytes), options)?;
        Ok(Self { spec, path })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        nvmed_lab::undo::undo(&nvmed_lab::undo::HostResource::File(self.path.clone()));
    }
}
