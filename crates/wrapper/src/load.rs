//! What the dynamic loader runs before the program's own code.

use crate::edge::fault;
use crate::find::{credentials, cwd, setting};
use crate::gate;
use crate::host::{hosted, limit};
use crate::loader::library;
use crate::process::{environment, fork, heir, life, program};
use crate::tier::dispatch;
use crate::watch;

/// Run by the dynamic loader before the program's own code.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Nothing is mounted here, and no thread made: a program that touches nothing of ours pays for reading
/// its configuration.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn load() {
    // SAFETY: the program's own code has not begun.
    unsafe { environment::learn() };
    setting::configure();
    if let Some(setting) = setting::setting() {
        watch::start(setting.tally.as_deref());
    }
    if setting::setting().is_some() {
        fault::begin();
    }
    // Where the host's own calls are to be seen, they go through the hooks.
    if setting::setting().is_none_or(|setting| setting.hosted.is_none()) {
        gate::open();
    }
    if setting::setting().is_some_and(|setting| setting.hosted.is_none()) {
        fork::watch();
    }
    if setting::is_shared() {
        heir::begin();
    }
    // SAFETY: as above.
    unsafe {
        library::begin();
        program::begin();
    }
    credentials::learn_umask();
    limit::learn();
    if let Some(setting) = setting::setting() {
        cwd::begin(setting);
        setting.hosted.iter().for_each(hosted::begin);
        dispatch::begin(setting.raw_syscalls());
    }
    life::begin();
}
