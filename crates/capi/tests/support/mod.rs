//! Compiles C programs against the library that this test build made.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the static library needs of the system; the same as in `nvmed.pc.in`.
const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Shared,
    Static,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the test build: `libnvmed.so` or `libnvmed.a`.
pub fn library(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    let near = own.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    near.into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("cargo has built {name} beside the test"))
}

/// A directory of one test.
pub struct Bench {
    pub dir: PathBuf,
}

impl Bench {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the directory is made");
        for name in ["libnvmed.so", "libnvmed.so.0"] {
            std::os::unix::fs::symlink(library("libnvmed.so"), dir.join(name)).expect("the link is made");
        }
        Self { dir }
    }

    /// Compiles a C file with every warning an error.
    pub fn compile(&self, source: &Path, link: Link) -> PathBuf {
        let stem = source.file_stem().expect("a source has a name").to_string_lossy();
        let program = self.dir.join(format!("{stem}-{link:?}"));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(source);
        cc.arg("-I").arg(root().join("include"));
        match link {
            Link::Shared => cc.arg("-L").arg(&self.dir).arg("-lnvmed"),
            Link::Static => cc.arg(library("libnvmed.a")).args(SYSTEM_LIBRARIES),
        };
        succeed(&mut cc);
        program
    }

    /// Runs a program to its successful end.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> String {
        self.try_run(program, arguments).unwrap_or_else(|said| panic!("{program:?} {arguments:?}: {said}"))
    }

    /// Runs a program; what it says, and its errors when it fails.
    pub fn try_run(&self, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.dir).env("LD_LIBRARY_PATH", &self.dir);
        let output = command.output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        if output.status.success() { Ok(out) } else { Err(format!("{}\n{out}{err}", output.status)) }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("left for inspection: {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}
