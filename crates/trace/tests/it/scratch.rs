//! A directory of a test's own, and traces in it.

use nvmed_trace::{Catalogue, Format, Options, Request, Sink, Source, TraceError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A directory that goes away with the value.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let name = format!("trace-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// A device on which there is no room: one of our own, where we may have one, since a program of root that takes it
    /// for a file would take the machine's away.
    pub fn full(&self) -> PathBuf {
        let path = self.path("full");
        let (kind, rights) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::WUSR);
        let made = rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rights, rustix::fs::makedev(1, 7));
        if made.is_ok() && std::fs::File::options().write(true).open(&path).is_ok() {
            return path;
        }
        let _ = std::fs::remove_file(path);
        "/dev/full".into()
    }

    /// Names of all that is there.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn format(name: &str) -> &'static Format {
    Format::named(name).unwrap_or_else(|| panic!("no format {name}"))
}

/// Writes a trace; how many requests were left out.
pub fn write(path: &Path, name: &str, requests: &[Request], names: &Catalogue) -> u64 {
    let mut sink = Sink::create(path, format(name)).unwrap();
    requests.iter().for_each(|request| sink.write(request, names).unwrap());
    sink.finish(names).unwrap().left_out
}

/// All requests of a source that is read to its end.
pub fn rest(source: &mut Source) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    while let Some(request) = source.next()? {
        requests.push(request);
    }
    Ok(requests)
}

/// Opens and reads a trace.
pub fn read(path: &Path) -> (Source, Vec<Request>) {
    let mut source = Source::open(path, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    let requests = rest(&mut source).unwrap_or_else(|error| panic!("{error}"));
    (source, requests)
}

/// What is said of a trace that cannot be read.
pub fn said(path: &Path, options: &Options) -> String {
    let result = Source::open(path, options).and_then(|mut source| rest(&mut source));
    let said = result.expect_err("it cannot be read").to_string();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}
