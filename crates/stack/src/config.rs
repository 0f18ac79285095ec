//! The configuration file of the paper (NVMeDirect 2.0, "Config file example: default.conf"), with
//! keys of our own beside its seven.

use crate::keys::{ConfigLine, KEYS};
use crate::spared::Spared;
use crate::spec::{DeviceSpec, SpecError};
use nvmed_cache::EvictionPolicy;
use nvmed_fs::{Durability, Glob};
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};

/// Environment variable that holds settings themselves, as [`Config::to_text`] writes them, for programs below
/// `nvmed run`: they may run as a user who could read no file of ours.
pub const SETTINGS_VARIABLE: &str = "NVMED_SETTINGS";
/// Room for a configuration file; a larger one is not a configuration file.
const FILE_BYTES_MAX: usize = 64 << 10;
/// Cache of a private mount unless `cache_size` says otherwise.
pub(crate) const CACHE_BYTES_DEFAULT: u64 = 64 << 20;
/// Fewer frames than this cannot hold one large request and its neighbours.
pub const CACHE_BYTES_MIN: u64 = 1 << 20;
/// The cache's table has 32-bit frame numbers: 2^32 frames would be 16 TiB; one is plenty.
pub(crate) const CACHE_BYTES_MAX: u64 = 1 << 40;
/// Readahead window unless `ffs_readahead` says otherwise: what Linux uses.
pub(crate) const READAHEAD_BYTES_DEFAULT: u64 = 128 << 10;
/// Largest file in its inode record unless `ffs_inline` says otherwise, and at most.
pub(crate) const INLINE_BYTES_DEFAULT: u64 = 512;
pub(crate) const INLINE_BYTES_MAX: u64 = 800;
/// Largest readahead window and preallocation; beyond, one file starves the others.
pub(crate) const WINDOW_BYTES_MAX: u64 = 1 << 30;

/// Whose the file system is (`mount`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The process's own (`private`).
    Private,
    /// A server's, for many processes (`shared`).
    Shared,
}

/// What answers the calls below `wrap_dir` (`filesystem`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Our file system on the device (`nvmedfs`).
    Nvmedfs,
    /// A directory of the host's (`host`): calls are passed on, and can be counted and recorded.
    Host {
        /// Which (`storage_dev`, else `wrap_dir` itself).
        dir: PathBuf,
    },
}

/// What becomes of system calls that a program makes by its own instructions, below libc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RawSyscalls {
    /// The kernel takes them: on files of ours they fail.
    #[default]
    Off,
    /// The kernel hands each to the wrapper first (system call user dispatch).
    Dispatch,
    /// As `Dispatch` for programs in which such instructions are found, else as `Off`.
    Detect,
}

impl RawSyscalls {
    /// The values of the key, in the order of the variants.
    pub const NAMES: [&str; 3] = ["off", "dispatch", "detect"];
    pub(crate) const ALL: [Self; 3] = [Self::Off, Self::Dispatch, Self::Detect];

    /// The value that a name stands for.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(Self::ALL[Self::NAMES.iter().position(|&one| one == name)?])
    }

    /// The name of the value.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What becomes of rings that a program sets up (`io_uring`). The kernel carries their requests out, and has no file of
/// ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoUring {
    /// Setting one up fails with ENOSYS: programs do their requests otherwise, which works on files of ours.
    #[default]
    Refuse,
    /// They work on the host's files; requests on ours fail with EBADF.
    Allow,
}

impl IoUring {
    /// The values of the key, in the order of the variants.
    pub const NAMES: [&str; 2] = ["refuse", "allow"];
    pub(crate) const ALL: [Self; 2] = [Self::Refuse, Self::Allow];

    /// The value that a name stands for.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(Self::ALL[Self::NAMES.iter().position(|&one| one == name)?])
    }
}

/// Settings of one mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Absolute path below which calls are ours.
    pub wrap_dir: PathBuf,
    /// Whose the file system is (`mount`); none is what the command that starts the program prefers.
    pub sharing: Option<Sharing>,
    /// The tree of a server that is meant (`tree`); none leaves it to the server.
    pub tree: Option<String>,
    /// Which file system is behind it.
    pub behind: Behind,
    /// Bytes allocated ahead of a growing file (`ffs_prealloc`); 0 is none.
    pub prealloc_bytes: u64,
    /// Largest readahead window (`ffs_readahead`); 0 is none.
    pub readahead_bytes: u64,
    /// Format the device at the first mount if it is blank (`ffs_format`). A device that holds a file
    /// system, ours included, is never formatted by a configuration file.
    pub format: bool,
    /// Which device (`storage_engine` and `storage_dev`).
    pub device: DeviceSpec,
    /// Bytes of block cache (`cache_size`).
    pub cache_bytes: u64,
    /// Whether cache frames should lie on huge pages (`cache_pages = huge`).
    pub cache_huge: bool,
    /// In which order the cache gives up clean pages (`cache_policy`).
    pub cache_policy: EvictionPolicy,
    /// Dirty bytes at which writers start to write back (`cache_dirty_limit`).
    pub dirty_limit_bytes: u64,
    /// Bytes of the pages that a shared mount's clients read without a call (`lease_size`); none is as much as the
    /// cache.
    pub lease_bytes: Option<u64>,
    /// What spares the processes of a run their calls (`spare_calls`).
    pub spared: Spared,
    /// What a SIGKILL costs (`durability`).
    pub durability: Durability,
    /// Whether the device is told of freed blocks once they are durably free (`discard`).
    pub discard: bool,
    /// Files whose calls are urgent, by path inside the file system (`urgent`).
    pub urgent_files: Vec<Glob>,
    /// Whether the threads of programs are urgent callers whatever their I/O class (`urgent_programs`); a server that
    /// does not trust its clients asks the kernel all the same.
    pub urgent_programs: bool,
    /// Bytes up to which a file lies in its inode record (`ffs_inline`); 0 is none.
    pub inline_bytes: u64,
    /// Seconds after which dirty data is written back unasked (`writeback_seconds`); 0 is never.
    pub writeback_seconds: u32,
    /// What becomes of system calls below libc (`raw_syscalls`).
    pub raw_syscalls: RawSyscalls,
    /// What becomes of rings that the program sets up (`io_uring`).
    pub io_uring: IoUring,
}

/// A configuration that cannot be used, with where and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "the configuration file {file} cannot be read: {errno}; set WRAPPER_CONFIG to one, or use `nvmed run`"
    )]
    Unreadable {
        /// The file.
        file: String,
        /// The host's answer.
        errno: rustix::io::Errno,
    },
    /// The file is no configuration file.
    #[error("{file}: {what}; a configuration file holds lines `key = value`")]
    NotText {
        /// The file.
        file: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A line is wrong.
    #[error("{file}:{line}: {what}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what would be right.
        what: String,
    },
    /// A key that has no default is absent.
    #[error("{file}: `{key}` is not set; {hint}")]
    Missing {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// An example.
        hint: &'static str,
    },
}

/// The values as written, each with its line, before they are put together.
pub(crate) struct Draft<'a> {
    pub(crate) file: &'a str,
    pub(crate) base: &'a Path,
    pub(crate) config: Config,
    pub(crate) wrap_dir_set: bool,
    pub(crate) host: bool,
    pub(crate) engine: Option<(usize, String)>,
    pub(crate) device: Option<(usize, String)>,
    pub(crate) seen: Vec<&'a str>,
}

impl Config {
    /// Settings for `device` seen at `wrap_dir`, everything else as by default.
    #[must_use]
    pub fn new(wrap_dir: PathBuf, device: DeviceSpec) -> Self {
        Self {
            wrap_dir,
            sharing: None,
            tree: None,
            behind: Behind::Nvmedfs,
            prealloc_bytes: 0,
            readahead_bytes: READAHEAD_BYTES_DEFAULT,
            format: false,
            device,
            cache_bytes: CACHE_BYTES_DEFAULT,
            cache_huge: true,
            cache_policy: EvictionPolicy::default(),
            dirty_limit_bytes: CACHE_BYTES_DEFAULT / 2,
            lease_bytes: None,
            spared: Spared::ALL,
            durability: Durability::Process,
            discard: false,
            urgent_files: Vec::new(),
            urgent_programs: false,
            inline_bytes: INLINE_BYTES_DEFAULT,
            writeback_seconds: 5,
            raw_syscalls: RawSyscalls::Off,
            io_uring: IoUring::Refuse,
        }
    }

    /// Reads a configuration file. Relative paths in it are taken from the working directory, as the
    /// paper's `./dbstore` is.
    ///
    /// # Errors
    /// [`ConfigError`], with file and line.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let base = working_directory()
            .map_err(|errno| ConfigError::Unreadable { file: path.display().to_string(), errno })?;
        Self::load_from(path, &base)
    }

    /// As [`Config::load`], with relative paths taken from `base`.
    ///
    /// # Errors
    /// [`ConfigError`], with file and line.
    pub fn load_from(path: &Path, base: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let unreadable = |errno| ConfigError::Unreadable { file: file.clone(), errno };
        let fd =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(unreadable)?;
        let mut bytes = vec![0; FILE_BYTES_MAX + 1];
        let mut len = 0;
        while len < bytes.len() {
            match rustix::io::read(&fd, &mut bytes[len..]).map_err(unreadable)? {
                0 => break,
                more => len += more,
            }
        }
        let not_text = |what| ConfigError::NotText { file: file.clone(), what };
        if len > FILE_BYTES_MAX {
            return Err(not_text("larger than 64 KiB"));
        }
        let text = std::str::from_utf8(&bytes[..len]).map_err(|_| not_text("not text"))?;
        Self::parse(text, &file, base)
    }

    /// Parses the text of a configuration; `file` names it in errors, relative paths start at `base`.
    ///
    /// # Errors
    /// [`ConfigError`], with file and line.
    pub fn parse(text: &str, file: &str, base: &Path) -> Result<Self, ConfigError> {
        let config = Self::new(PathBuf::new(), DeviceSpec::default());
        let (wrap_dir_set, host, engine, device) = (false, false, None, None);
        let mut draft = Draft { file, base, config, wrap_dir_set, host, engine, device, seen: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            draft.line(index + 1, line)?;
        }
        draft.finish()
    }

    /// The configuration as a file that [`Config::parse`] reads back to the same settings.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for key in &KEYS {
            if let Some(value) = (key.write)(self) {
                text += &format!("{} = {value}\n", key.name);
            }
        }
        text
    }

    /// Bytes of the pages that a shared mount's clients may read without a call.
    #[must_use]
    pub fn lease_bytes(&self) -> u64 {
        self.lease_bytes.unwrap_or(self.cache_bytes)
    }
}

impl<'a> Draft<'a> {
    pub(crate) fn wrong(&self, line: usize, what: impl Into<String>) -> ConfigError {
        ConfigError::Line { file: self.file.to_owned(), line, what: what.into() }
    }

    fn line(&mut self, number: usize, line: &'a str) -> Result<(), ConfigError> {
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        let Some((key, value)) = text.split_once('=') else {
            return Err(self.wrong(number, format!("`{text}` is not `key = value`")));
        };
        let (key, value) = (key.trim(), value.trim());
        if self.seen.contains(&key) {
            return Err(self.wrong(number, format!("`{key}` is set twice; keep one of the lines")));
        }
        self.seen.push(key);
        if value.is_empty() {
            return Err(self.wrong(number, format!("`{key}` has no value")));
        }
        let Some(known) = KEYS.iter().find(|known| known.name == key) else {
            let all = KEYS.map(|known| known.name).join(", ");
            return Err(self.wrong(number, format!("unknown key `{key}`; known: {all}")));
        };
        (known.read)(self, ConfigLine { line: number, key, value })
    }

    fn finish(mut self) -> Result<Config, ConfigError> {
        let missing = |key, hint| ConfigError::Missing { file: self.file.to_owned(), key, hint };
        if !self.wrap_dir_set {
            return Err(missing("wrap_dir", "for example `wrap_dir = ./dbstore`"));
        }
        if self.host {
            return self.finish_host();
        }
        let Some((line, location)) = self.device.take() else {
            return Err(missing("storage_dev", "for example `storage_dev = disk.img`"));
        };
        let engine = self.engine.take();
        let spec = DeviceSpec::from_keys(engine.as_ref().map(|(_, name)| name.as_str()), &location);
        let spec = spec.map_err(|error| {
            let unknown = matches!(error, SpecError::UnknownEngine { .. });
            let line = if unknown { engine.as_ref().map_or(line, |(line, _)| *line) } else { line };
            self.wrong(line, error.to_string())
        })?;
        self.config.device = spec.absolute(self.base);
        Ok(self.config)
    }
}

impl Draft<'_> {
    /// `filesystem = host`: `storage_dev` is a directory, and there is no engine.
    fn finish_host(mut self) -> Result<Config, ConfigError> {
        if let Some((line, _)) = self.engine {
            return Err(self.wrong(line, "`filesystem = host` has no storage_engine; leave the line out"));
        }
        let dir = match &self.device {
            Some((_, location)) => absolute(self.base, location),
            None => self.config.wrap_dir.clone(),
        };
        self.config.behind = Behind::Host { dir };
        Ok(self.config)
    }
}

pub(crate) fn file_name(value: &str) -> &str {
    value.rsplit('/').next().unwrap_or(value)
}

/// `path` from `base`, without `.`, `..` and doubled slashes, by its text alone: the directory need
/// not exist on the host.
#[must_use]
pub fn absolute(base: &Path, path: impl AsRef<Path>) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in base.join(path).components() {
        match part {
            std::path::Component::Normal(name) => clean.push(name),
            std::path::Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

/// The working directory, by a raw system call.
///
/// # Errors
/// What `getcwd` answers.
pub fn working_directory() -> Result<PathBuf, rustix::io::Errno> {
    use std::os::unix::ffi::OsStringExt;
    let bytes = rustix::process::getcwd(Vec::new())?.into_bytes();
    Ok(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, "default.conf", Path::new("/home/u"))
    }

    #[test]
    fn the_papers_example_is_understood() {
        let config = parse(
            "wrap_dir = ./dbstore\n\nfilesystem = lib_ffs.so\nffs_prealloc = 128K\nffs_readahead = none\n\
             ffs_format = FALSE\n\nstorage_engine = lib_nvmed.so\nstorage_dev = disk.img\n",
        )
        .unwrap();
        assert_eq!(config.wrap_dir, Path::new("/home/u/dbstore"));
        assert_eq!((config.prealloc_bytes, config.readahead_bytes, config.format), (128 << 10, 0, false));
        assert_eq!(config.device.to_string(), "virtual:/home/u/disk.img");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut config = parse("wrap_dir=/w\nstorage_dev=virtual:/d.img?flush=process").unwrap();
        config.cache_huge = false;
        config.cache_policy = EvictionPolicy::Sieve;
        config.durability = Durability::Device;
        config.raw_syscalls = RawSyscalls::Detect;
        config.io_uring = IoUring::Allow;
        config.prealloc_bytes = 4096;
        config.discard = true;
        config.urgent_files = ["*.db", "/redo/*"].into_iter().filter_map(Glob::new).collect();
        assert_eq!(config.urgent_files.len(), 2);
        config.urgent_programs = true;
        config.inline_bytes = 0;
        config.tree = Some("alice".to_owned());
        assert_eq!(parse(&config.to_text()), Ok(config.clone()));
        for sharing in [Sharing::Private, Sharing::Shared] {
            config.sharing = Some(sharing);
            assert_eq!(parse(&config.to_text()), Ok(config.clone()));
        }
    }

    #[test]
    fn a_rule_by_path_has_patterns() {
        let too_long = "a".repeat(4097);
        for value in [&"*.db ".repeat(65), &too_long] {
            let said = parse(&format!("wrap_dir = /w\nstorage_dev = d.img\nurgent = {value}")).unwrap_err();
            let said = said.to_string();
            assert!(said.starts_with("default.conf:3: `urgent` is 1 to 64 patterns of paths"), "{said}");
        }
    }

    #[test]
    fn white_space_at_the_end_of_a_path_is_kept() {
        let device = DeviceSpec::parse("/disk ").unwrap();
        let config = Config::new(PathBuf::from("/store\t"), device);
        assert_eq!(parse(&config.to_text()), Ok(config));
    }

    #[test]
    fn the_host_can_be_the_file_system() {
        let config = parse("wrap_dir = ./w\nfilesystem = host\n").unwrap();
        assert_eq!(config.behind, Behind::Host { dir: PathBuf::from("/home/u/w") });
        let config = parse("storage_dev = data\nfilesystem = host\nwrap_dir = /w").unwrap();
        assert_eq!(config.behind, Behind::Host { dir: PathBuf::from("/home/u/data") });
        assert_eq!(parse(&config.to_text()), Ok(config));
        let said =
            parse("wrap_dir = /w\nfilesystem = host\nstorage_engine = virtual").unwrap_err().to_string();
        assert!(said.starts_with("default.conf:3: `filesystem = host` has no storage_engine"), "{said}");
    }

    #[test]
    fn errors_name_file_and_line() {
        let head = "wrap_dir = /w\nstorage_dev = d.img\n";
        for (tail, want) in [
            ("frobnicate = 1", "default.conf:3: unknown key `frobnicate`"),
            (
                "ffs_prealloc = lots",
                "default.conf:3: `ffs_prealloc` is a size such as 128K or 1G, not `lots`",
            ),
            ("\nffs_format = maybe", "default.conf:4: `ffs_format` is TRUE or FALSE, not `maybe`"),
            ("storage_engine = lib_spdk.so", "default.conf:3: unknown engine `lib_spdk.so`"),
            ("durability = eternal", "default.conf:3: `durability` is process or device, not `eternal`"),
            ("mount = both", "default.conf:3: `mount` is private or shared, not `both`"),
            ("urgent_programs = 1", "default.conf:3: `urgent_programs` is off or on, not `1`"),
            ("io_uring = maybe", "default.conf:3: `io_uring` is refuse or allow, not `maybe`"),
            ("cache_policy = lru", "default.conf:3: `cache_policy` is s3fifo or clock or sieve, not `lru`"),
            ("cache_size = 1", "default.conf:3: `cache_size` = 1 bytes is not within"),
            ("filesystem = ext4", "default.conf:3: unknown file system `ext4`"),
            ("wrap_dir = /x", "default.conf:3: `wrap_dir` is set twice"),
            ("just words", "default.conf:3: `just words` is not `key = value`"),
            ("ffs_format =", "default.conf:3: `ffs_format` has no value"),
        ] {
            let said = parse(&format!("{head}{tail}")).unwrap_err().to_string();
            assert!(said.starts_with(want), "for {tail:?} it said {said:?}");
        }
        let said = parse("storage_dev = d.img").unwrap_err().to_string();
        assert!(said.contains("`wrap_dir` is not set"), "{said}");
    }

    #[test]
    fn paths_are_cleaned_by_text() {
        let clean = |path| absolute(Path::new("/a/b"), path);
        assert_eq!(clean("./c//d/../e"), Path::new("/a/b/c/e"));
        assert_eq!(clean("/x/../../y/."), Path::new("/y"));
    }
}
