//! A device, a configuration and a wrapped directory, for tests that run real programs.

use nvmed_fs::{FileSystem, FormatOptions};
use nvmed_stack::{DeviceSpec, Open, open_device};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Size of the test devices: sparse.
const DEVICE_BYTES: u64 = 1 << 30;

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// One formatted device and the directory at which programs see it. Removed when dropped.
pub struct Bench {
    dir: PathBuf,
    device: String,
    mutant: Option<&'static str>,
}

impl Bench {
    /// A device with engine options such as `write_cache=volatile`; `None`, loudly, when a program of
    /// `needs` is not on this machine.
    pub fn new(options: &str, needs: &[&str]) -> Option<Self> {
        Self::with_config(options, "", needs)
    }

    /// As [`Bench::new`], with lines of configuration.
    pub fn with_config(options: &str, lines: &str, needs: &[&str]) -> Option<Self> {
        Self::sized(DEVICE_BYTES, options, lines, needs)
    }

    /// As [`Bench::with_config`], on a device of `bytes` bytes.
    pub fn sized(bytes: u64, options: &str, lines: &str, needs: &[&str]) -> Option<Self> {
        Self::by(("virtual", options), bytes, lines, needs)
    }

    /// As [`Bench::new`], on memory that keeps its bytes.
    pub fn in_place(options: &str, needs: &[&str]) -> Option<Self> {
        Self::by(("nvm", options), DEVICE_BYTES, "", needs)
    }

    fn by((engine, options): (&str, &str), bytes: u64, lines: &str, needs: &[&str]) -> Option<Self> {
        for program in needs {
            if !on_path(program) {
                eprintln!("SKIPPED: {program} is not on this machine; install it to run this test");
                return None;
            }
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("nvmed-test-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the test");
        let image = dir.join("disk.img").display().to_string();
        let plain = DeviceSpec::parse(&image).expect("a path is a device");
        let device = open_device(&plain, Open::Create { bytes }).expect("the device opens");
        FileSystem::format(&device, &FormatOptions::default()).expect("the device formats");
        device.shutdown().expect("the device shuts down");
        let device = format!("{engine}:{image}?{options}");
        let config = format!(
            "wrap_dir = {}\nfilesystem = nvmedfs\nstorage_dev = {device}\n{lines}\n",
            dir.join("on").display()
        );
        std::fs::write(dir.join("default.conf"), config).expect("the configuration is written");
        Some(Self { dir, device, mutant: None })
    }

    /// The same device under a build with a deliberate mistake switched on.
    pub fn mutant(mut self, name: &'static str) -> Self {
        self.mutant = Some(name);
        self
    }

    /// A directory of the host for the test's own files.
    pub fn host(&self) -> &Path {
        &self.dir
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("default.conf")
    }

    /// The path at which a wrapped program sees `name`.
    pub fn path(&self, name: &str) -> String {
        self.dir.join("on").join(name).display().to_string()
    }

    /// `command` under the wrapper.
    pub fn wrapped<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_PRELOAD", library()).env("WRAPPER_CONFIG", self.config());
        if let Some(name) = self.mutant {
            command.env("NVMED_MUTANT", name);
        }
        command
    }

    /// Runs a shell-free command line under the wrapper, in the test's host directory.
    pub fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(&self.dir);
        self.wrapped(&mut command).output().expect("the program starts")
    }

    /// Runs a command line that must succeed silently on standard error; answers its standard output.
    pub fn ok(&self, words: &[&str]) -> String {
        Self::well(words, &self.run(words))
    }

    /// Runs a command line in a shared run of its own.
    pub fn run_shared(&self, words: &[&str]) -> Output {
        let mut command = Command::new(nvmed());
        command.args(["run", "--shared", "--config"]).arg(self.config()).arg("--").args(words);
        command.current_dir(&self.dir).output().expect("nvmed starts")
    }

    /// As [`Bench::run_shared`], of what must succeed silently on standard error; answers its standard output.
    pub fn ok_shared(&self, words: &[&str]) -> String {
        Self::well(words, &self.run_shared(words))
    }

    fn well(words: &[&str], output: &Output) -> String {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{words:?}: {}: {errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Mounts the device in this process and lets the checker look at it.
    pub fn fsck(&self) {
        let plain = self.device.split('?').next().expect("a device string");
        let spec = DeviceSpec::parse(plain).expect("the test's own device string");
        let device = open_device(&spec, Open::Existing { locked_by_run: false }).expect("the device opens");
        let findings = nvmed_check::fsck(&device).expect("the checker runs");
        assert!(findings.is_empty(), "fsck found: {findings:?}");
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

/// The library that this test build made.
pub fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    let near = own.ancestors().skip(1).take(2).map(|dir| dir.join("libnvmed_wrapper.so"));
    near.into_iter().find(|path| path.exists()).expect("cargo has built libnvmed_wrapper.so beside the test")
}

/// The command that this build made.
pub fn nvmed() -> PathBuf {
    let near = library().with_file_name("nvmed");
    let near = if near.exists() { near } else { near.with_file_name("../nvmed") };
    assert!(near.exists(), "build the command first: cargo build -p nvmed-cli");
    near
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}
