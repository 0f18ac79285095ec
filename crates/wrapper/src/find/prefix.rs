//! Which paths are ours, by their text.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Where a path lies, as far as its text tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lexical<'a> {
    /// In `wrap_dir`; what is left below it.
    Inside(&'a [u8]),
    /// Not in it, unless a symbolic link leads there.
    Outside,
    /// A `..` among the host's components: what it means depends on the links before it.
    Unsure,
}

/// `wrap_dir` in the forms in which paths may name it.
#[derive(Debug)]
pub(crate) struct Prefix {
    /// As configured: absolute, clean.
    pub text: Vec<u8>,
    /// With the symbolic links of its parents resolved, when that differs.
    real: Option<Vec<u8>>,
    /// Device and inode of the host's directory that `wrap_dir` hides, if there is one.
    host: Option<(u64, u64)>,
    /// The same of the directory above, once a call has needed it.
    above: OnceLock<Option<(u64, u64)>>,
}

/// Device and inode of a directory of the host's.
fn identity(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl Prefix {
    /// For an absolute, clean path.
    pub(crate) fn new(wrap_dir: &Path) -> Self {
        let text = wrap_dir.as_os_str().as_bytes().to_vec();
        let real = Self::resolve(&text).filter(|real| *real != text);
        Self { text, real, host: identity(wrap_dir), above: OnceLock::new() }
    }

    fn resolve(text: &[u8]) -> Option<Vec<u8>> {
        let cut = text.iter().rposition(|&byte| byte == b'/')?;
        let parent = if cut == 0 { b"/" } else { &text[..cut] };
        // A process's first look into /proc is dear, and nearly always there is no link.
        if !crate::find::walk::has_symlink(libc::AT_FDCWD, parent) {
            return None;
        }
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let fd = rustix::fs::open(parent, flags, rustix::fs::Mode::empty()).ok()?;
        let mut real = crate::find::walk::path_of_descriptor(rustix::fd::AsRawFd::as_raw_fd(&fd))?;
        if real != b"/" {
            real.push(b'/');
        }
        real.extend_from_slice(&text[cut + 1..]);
        Some(real)
    }

    /// The form without symbolic links, as the kernel would tell it.
    pub(crate) fn real_text(&self) -> &[u8] {
        self.real.as_deref().unwrap_or(&self.text)
    }

    /// The same, when the host's directory is not hidden but meant.
    pub(crate) fn shown(self) -> Self {
        Self { host: None, ..self }
    }

    /// Whether the host has a directory where `wrap_dir` is, which the host's own answers could be about.
    pub(crate) fn hides(&self) -> bool {
        self.host.is_some()
    }

    /// Whether these are the device and inode of the hidden directory.
    pub(crate) fn is_hidden(&self, dev: u64, ino: u64) -> bool {
        self.host == Some((dev, ino))
    }

    /// Whether these are the device and inode of the host's directory above `wrap_dir`.
    pub(crate) fn is_host_above(&self, dev: u64, ino: u64) -> bool {
        let parent = || Path::new(std::ffi::OsStr::from_bytes(&self.text)).parent().and_then(identity);
        *self.above.get_or_init(parent) == Some((dev, ino))
    }

    /// The last component of `wrap_dir`.
    pub(crate) fn name(&self) -> &[u8] {
        self.text.rsplit(|&byte| byte == b'/').next().unwrap_or(&[])
    }

    /// Where an absolute path lies.
    pub(crate) fn place<'a>(&self, path: &'a [u8]) -> Lexical<'a> {
        match inside(path, &self.text) {
            Lexical::Outside => self.real.as_deref().map_or(Lexical::Outside, |real| inside(path, real)),
            found => found,
        }
    }

    /// What of `wrap_dir` lies below `directory`, if it does: what a relative path must begin with.
    pub(crate) fn below(&self, directory: &[u8]) -> Option<&[u8]> {
        let strip = |whole| match inside(whole, directory) {
            Lexical::Inside(rest) => Some(rest),
            _ => None,
        };
        strip(self.text.as_slice()).or_else(|| self.real.as_deref().and_then(strip))
    }

    /// Whether `path` (absolute, clean) is `wrap_dir` itself.
    pub(crate) fn is(&self, path: &[u8]) -> bool {
        path == self.text || self.real.as_deref() == Some(path)
    }

    /// Whether `path` (absolute, clean) leads towards `wrap_dir`.
    pub(crate) fn is_above(&self, path: &[u8]) -> bool {
        self.below(path).is_some()
    }
}

/// The next component and what follows it; `.` and doubled slashes are skipped.
pub(crate) fn component(mut path: &[u8]) -> Option<(&[u8], &[u8])> {
    loop {
        let start = path.iter().position(|&byte| byte != b'/')?;
        path = &path[start..];
        let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
        let (name, rest) = path.split_at(end);
        if name != b"." {
            return Some((name, rest));
        }
        path = rest;
    }
}

/// Whether a component of `path` is `..`.
pub(crate) fn has_parent(path: &[u8]) -> bool {
    // Whether there is a dot at all is found by words, not by bytes.
    let mut rest = if path.contains(&b'.') { path } else { b"" };
    while let Some((name, after)) = component(rest) {
        if name == b".." {
            return true;
        }
        rest = after;
    }
    false
}

/// Whether `path` lies in `prefix`, component by component; `prefix` is clean.
pub(crate) fn inside<'a>(path: &'a [u8], prefix: &[u8]) -> Lexical<'a> {
    // Most paths are spelled as `prefix` is.
    if let Some(rest @ ([] | [b'/', ..])) = path.strip_prefix(prefix) {
        return Lexical::Inside(without_slashes(rest));
    }
    let (mut path, mut prefix) = (path, prefix);
    while let Some((wanted, prefix_rest)) = component(prefix) {
        let Some((found, rest)) = component(path) else { return Lexical::Outside };
        if found != wanted {
            return if has_parent(path) { Lexical::Unsure } else { Lexical::Outside };
        }
        (path, prefix) = (rest, prefix_rest);
    }
    Lexical::Inside(without_slashes(path))
}

/// What is left below `wrap_dir`. A slash after its last component demands a directory, which it is.
fn without_slashes(rest: &[u8]) -> &[u8] {
    &rest[rest.iter().position(|&byte| byte != b'/').unwrap_or(rest.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_placed_by_component() {
        for (path, want) in [
            ("/uk", Lexical::Inside(b"".as_slice())),
            ("/uk/", Lexical::Inside(b"")),
            ("/uk//", Lexical::Inside(b"")),
            ("/uk//x/", Lexical::Inside(b"x/")),
            ("//uk//x", Lexical::Inside(b"x")),
            ("/./uk/./x/../y/", Lexical::Inside(b"./x/../y/")),
            ("/uk/../etc", Lexical::Inside(b"../etc")),
            ("/ukx/y", Lexical::Outside),
            ("/u", Lexical::Outside),
            ("/", Lexical::Outside),
            ("/tmp/uk", Lexical::Outside),
            ("/tmp/../uk/x", Lexical::Unsure),
            ("/tmp/..x/uk", Lexical::Outside),
        ] {
            assert_eq!(inside(path.as_bytes(), b"/uk"), want, "{path}");
        }
        assert_eq!(inside(b"/a/b", b"/a/b/c"), Lexical::Outside);
        assert_eq!(inside(b"b/c/x", b"b/c"), Lexical::Inside(b"x"));
    }

    #[test]
    fn what_is_left_below_a_directory() {
        let prefix = Prefix {
            text: b"/a/b/c".to_vec(),
            real: Some(b"/r/c".to_vec()),
            host: None,
            above: OnceLock::new(),
        };
        assert_eq!(prefix.below(b"/a"), Some(b"b/c".as_slice()));
        assert_eq!(prefix.below(b"/r"), Some(b"c".as_slice()));
        assert_eq!(prefix.below(b"/a/b/c"), Some(b"".as_slice()));
        assert_eq!(prefix.below(b"/a/x"), None);
        assert_eq!(prefix.name(), b"c");
    }
}
