//! A directory of a test's own, and the built programs run in it.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A directory that goes away with the value.
pub struct Scratch {
    dir: PathBuf,
}

/// What a program did.
pub struct Ran {
    /// Its exit status, or 128 and the signal.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Scratch {
    /// A new empty directory on the target directory's file system.
    pub fn new() -> Self {
        let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir }
    }

    /// A directory with a formatted device `d.img` of `size` in it.
    pub fn with_device(size: &str) -> Self {
        let scratch = Self::new();
        scratch.ok(["format", "d.img", "--size", size]);
        scratch
    }

    /// A path in it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes a file in it.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// `nvmed` with arguments, to be started here.
    pub fn nvmed<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.at_home(env!("CARGO_BIN_EXE_nvmed"));
        command.args(arguments);
        command
    }

    /// A program, to be started here.
    pub fn at_home(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).env_remove("WRAPPER_CONFIG").env_remove("LD_PRELOAD");
        command
    }

    /// Runs `nvmed`.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ran {
        Ran::from(self.nvmed(arguments).output().unwrap())
    }

    /// Runs `nvmed`, which must succeed, and answers its output.
    #[track_caller]
    pub fn ok<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
        ran.out
    }

    /// Runs `nvmed`, which must fail with `status` and one line that holds `words`.
    #[track_caller]
    pub fn fails<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>, status: i32, words: &str) {
        let ran = self.run(arguments);
        assert_eq!(ran.status, status, "{}", ran.err);
        assert!(ran.err.contains(words), "{:?} does not say {words:?}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "more than one line: {:?}", ran.err);
    }

    /// Runs a program under `nvmed run` with the device at `./store`.
    pub fn on_device<A: AsRef<OsStr>>(&self, program: impl IntoIterator<Item = A>) -> Ran {
        let mut command = self.nvmed(["run", "--device", "d.img", "--dir", "store", "--"]);
        Ran::from(command.args(program).output().unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let status = output.status;
        Self {
            status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Whether `program` is on this machine; if not, the test says that it is skipped.
pub fn have(program: &str) -> bool {
    let there = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(program).is_file());
    if !there {
        println!("SKIPPED: {program} is not installed");
    }
    there
}
