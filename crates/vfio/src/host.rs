//! What the kernel says of itself in files: `/sys`, `/proc` and `/dev`, below a root.

use crate::VfioError;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The root of the kernel's files: `/`, or a copy of them.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self::at("/")
    }
}

impl Host {
    /// The kernel's files below `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the running kernel, whose devices can be opened.
    pub(crate) fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A file of `sys/`, as text without its line end; `None` when it is not there or not for us.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let bytes = std::fs::read(self.path(name)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// A number in a file, decimal or `0x…`.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let text = self.text(name)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The last part of what a symbolic link points to.
    pub(crate) fn link(&self, name: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// The names in a directory, sorted; none when it is not there.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(dir)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Writes to one of the kernel's files.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), VfioError> {
        let path = self.path(name);
        let opened = std::fs::OpenOptions::new().write(true).open(&path);
        let written = opened.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
        written.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            let what = format!("writing to {}", path.display());
            match errno {
                Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    VfioError::Denied { what, advice: "run this as root" }
                }
                _ => VfioError::host(what, errno),
            }
        })
    }
}
