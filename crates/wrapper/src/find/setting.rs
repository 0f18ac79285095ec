//! What the configuration says, once for the whole process.

use crate::find::prefix::Prefix;
use crate::find::walk;
use crate::process::environment;
use crate::raw;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use nvmed_client::Address;
use nvmed_stack::{Behind, Config, Sharing, Surroundings};
use std::path::{Path, PathBuf};

/// Settings themselves, in the environment, below `nvmed run`.
const SETTINGS_VARIABLE: &str = nvmed_stack::config::SETTINGS_VARIABLE;
/// Where the configuration is, in the environment; as in the paper.
const CONFIG_VARIABLE: &core::ffi::CStr = c"WRAPPER_CONFIG";
/// `FILE:DIRECTORY`: where the relative paths of configuration FILE start. Set for our descendants,
/// which may run elsewhere.
const START_VARIABLE: &core::ffi::CStr = c"NVMED_CONFIG_START";
/// The configuration when the environment names none; as in the paper.
const CONFIG_DEFAULT: &str = "./default.conf";
/// Where the server of a shared mount listens; set by `nvmed run`.
const SERVER_VARIABLE: &core::ffi::CStr = c"NVMED_SERVER";
/// Where the machine's server listens.
const SERVER_PATH: &str = "/run/nvmed/socket";
/// The exit status of a program whose configuration cannot be used: `EX_CONFIG` of sysexits.h.
const EXIT_CONFIG: i32 = 78;

static SETTING: AtomicPtr<Setting> = AtomicPtr::new(ptr::null_mut());

/// What the configuration says, once for the whole process.
pub(crate) struct Setting {
    /// Which paths are ours.
    pub prefix: Prefix,
    /// The host's directory that answers in place of a file system of ours.
    pub hosted: Option<Hosted>,
    /// Where file calls are counted, if the run counts them.
    pub tally: Option<String>,
    /// What the run does with programs that we are not in.
    pub beyond: Option<Policy>,
    /// The whole of it.
    pub config: Config,
    /// What the environment says of the run.
    pub surroundings: Surroundings,
    /// Of a shared mount: where its server is.
    pub server: Option<Address>,
}

impl Setting {
    /// The device as a mounted disk is named: by its path.
    pub(crate) fn device_name(&self) -> &str {
        let path = self.config.device.path();
        if path.is_empty() { "nvmed" } else { path }
    }

    /// What becomes of system calls below libc.
    pub(crate) fn raw_syscalls(&self) -> nvmed_stack::RawSyscalls {
        self.config.raw_syscalls
    }

    /// Whether the program may set up rings of io_uring: where all files are the host's, or the user says so.
    pub(crate) fn allows_rings(&self) -> bool {
        self.hosted.is_some() || self.config.io_uring == nvmed_stack::IoUring::Allow
    }
}

/// Reads the configuration, when the library is loaded. The program ends if it cannot be used: going
/// on would write to the host what was meant for the device.
pub(crate) fn configure() {
    match load() {
        Ok(setting) => SETTING.store(Box::into_raw(Box::new(setting)), Ordering::Release),
        Err(why) => {
            raw::say(format_args!("{why}"));
            sys!(SYS_exit_group, EXIT_CONFIG);
        }
    }
}

fn load() -> Result<Setting, String> {
    let text = |error: &dyn core::fmt::Display| error.to_string();
    let named = variable(CONFIG_VARIABLE);
    let (config, announced) = match variable_of(SETTINGS_VARIABLE).filter(|_| named.is_none()) {
        Some(given) => {
            let config = Config::parse(&given, SETTINGS_VARIABLE, Path::new("/"));
            (config.map_err(|error| text(&error))?, None)
        }
        None => {
            let (config, file, base) = from_file(named.as_deref())?;
            (config, Some((file, base)))
        }
    };
    // Before anything is announced: bash brings a `setenv` of its own, and what it does to the list before the shell
    // has begun is its own affair.
    let server = if config.behind == Behind::Nvmedfs { server(&config)? } else { None };
    let surroundings = Surroundings {
        run_memory: variable_of(nvmed_stack::RUN_MEMORY_VARIABLE),
        statistics: variable_of(nvmed_stack::STATISTICS_VARIABLE).map(PathBuf::from),
        stamps: variable_of(nvmed_stack::STAMPS_VARIABLE),
        serves: false,
    };
    nvmed_mutant::set_by(variable_of);
    let tally = variable_of(nvmed_tally::TALLY_VARIABLE);
    let beyond = variable_of(nvmed_tally::BEYOND_VARIABLE).and_then(|text| Policy::parse(&text));
    if let Some((file, base)) = announced {
        announce(&file, &base);
    }
    let prefix = Prefix::new(&config.wrap_dir);
    Ok(match &config.behind {
        Behind::Nvmedfs => Setting { prefix, hosted: None, tally, beyond, config, surroundings, server },
        Behind::Host { dir } => {
            let hosted = Some(Hosted::new(&config.wrap_dir, dir));
            Setting { prefix: prefix.shown(), hosted, tally, beyond, config, surroundings, server }
        }
    })
}

/// The configuration of a file, the file, and where its relative paths start.
fn from_file(named: Option<&str>) -> Result<(Config, PathBuf, PathBuf), String> {
    let here = nvmed_stack::config::working_directory().map_err(|error| error.to_string())?;
    let file = here.join(named.unwrap_or(CONFIG_DEFAULT));
    let start = variable(START_VARIABLE);
    let base = match (named, &start) {
        (Some(named), Some(start)) => start.strip_prefix(named).and_then(|rest| rest.strip_prefix(':')),
        _ => None,
    };
    let base = base.map_or(here, PathBuf::from);
    let config = Config::load_from(&file, &base).map_err(|error| error.to_string())?;
    Ok((config, file, base))
}

/// The server of a shared mount: what the environment says, else the machine's if the configuration wants one.
fn server(config: &Config) -> Result<Option<Address>, String> {
    match variable(SERVER_VARIABLE) {
        Some(text) => match Address::parse(&text) {
            Some(address) => Ok(Some(address)),
            None => Err(format!(
                "{} names no server: it is NAME:SECRET or a path",
                SERVER_VARIABLE.to_string_lossy()
            )),
        },
        None if config.sharing == Some(Sharing::Shared) => Ok(Some(Address::Path(SERVER_PATH.to_owned()))),
        None => Ok(None),
    }
}

/// A variable of the environment. Values that are not UTF-8 name nothing of ours.
fn variable(name: &core::ffi::CStr) -> Option<String> {
    // SAFETY: the library is being loaded, so the program's own code has not begun.
    let value = unsafe { environment::present(name.to_bytes()) };
    value.and_then(|value| String::from_utf8(value).ok())
}

fn variable_of(name: &str) -> Option<String> {
    variable(&std::ffi::CString::new(name).ok()?)
}

/// Tells our descendants, wherever they run, which configuration this was and where it started.
fn announce(file: &Path, base: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let file = file.as_os_str().as_bytes();
    let start = [file, b":", base.as_os_str().as_bytes()].concat();
    for (name, value) in [(CONFIG_VARIABLE, file), (START_VARIABLE, &start)] {
        environment::keep(name.to_bytes(), value);
        if let Some(value) = walk::c_path(value) {
            // SAFETY: two C strings, copied by libc; the program's own code has not begun.
            unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
    }
}

/// The setting, once the library has been loaded in full.
#[inline(always)]
pub(crate) fn setting() -> Option<&'static Setting> {
    // SAFETY: null or a box that lives for ever.
    unsafe { SETTING.load(Ordering::Acquire).as_ref() }
}

/// Whether the file system is a server's.
pub(crate) fn is_shared() -> bool {
    setting().is_some_and(|setting| setting.server.is_some())
}

/// Whether the host answers in this process.
static HOSTED: AtomicBool = AtomicBool::new(false);

/// Whether the host answers.
#[inline(always)]
pub(crate) fn is_hosted() -> bool {
    HOSTED.load(Ordering::Relaxed)
}

/// The host answers from now on.
pub(crate) fn begin_hosted() {
    HOSTED.store(true, Ordering::Relaxed);
}

/// A path from our root as the host sees it.
pub(crate) fn absolute(path: &[u8]) -> Vec<u8> {
    let mut whole = setting().map(|setting| setting.prefix.text.clone()).unwrap_or_default();
    if path != b"/" {
        whole.extend_from_slice(path);
    }
    whole
}

/// The directory behind `wrap_dir`.
pub(crate) struct Hosted {
    /// Which paths lie in it.
    pub prefix: Prefix,
    /// Whether it is another than `wrap_dir`, so that paths are rewritten.
    pub elsewhere: bool,
}

impl Hosted {
    /// For two absolute, clean paths.
    fn new(wrap_dir: &Path, dir: &Path) -> Self {
        Self { prefix: Prefix::new(dir), elsewhere: dir != wrap_dir }
    }

    /// The path in the directory behind for what is left of one below `wrap_dir`.
    pub(crate) fn path(&self, rest: &[u8]) -> Vec<u8> {
        [self.prefix.text.as_slice(), b"/", rest].concat()
    }
}

/// What `nvmed run` wants done with programs that the wrapper cannot be loaded into, and where it is told of them.
pub(crate) struct Policy {
    /// They are not executed.
    pub refused: bool,
    /// Names the memory where it is told.
    pub page: String,
}

impl Policy {
    /// From the environment: `warn:PAGE` or `refuse:PAGE`.
    fn parse(text: &str) -> Option<Self> {
        let (what, page) = text.split_once(':')?;
        Some(Self { refused: what == "refuse", page: page.to_owned() })
    }
}
