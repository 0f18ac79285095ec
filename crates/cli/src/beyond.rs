//! Programs of a run that the wrapper cannot be loaded into: the command tells the user once, as soon as one starts,
//! and counts them. And the directory that such a program has made on the host, at the path where other programs see
//! the device.

use crate::failure::{Failure, Status};
use crate::run::own_path;
use nvmed_sys::QuietFd;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is told of them.
pub(crate) struct Beyond {
    page: Arc<nvmed_tally::Beyond>,
    /// Of a high number, so that the table of descriptors has its size before there is a second thread: the kernel
    /// takes milliseconds to let one grow that threads share.
    fd: QuietFd,
    said: Arc<AtomicBool>,
    /// The directory of the run, where the host had nothing there at the beginning.
    absent: Option<PathBuf>,
}

impl Beyond {
    /// Prepares to be told, in a run whose programs see the device at `dir`.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn begin(dir: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(Status::Run, format!("run: {error}"));
        let (page, fd) = nvmed_tally::Beyond::create().map_err(|errno| failed(errno.into()))?;
        let fd = QuietFd::new(fd);
        let (page, said) = (Arc::new(page), Arc::new(AtomicBool::new(false)));
        let (waits, says) = (Arc::clone(&page), Arc::clone(&said));
        nvmed_sys::spawn_quiet("nvmed-beyond", move || say(&waits.wait(), &says)).map_err(failed)?;
        let absent = (!is_there(dir)).then(|| dir.to_owned());
        Ok(Self { page, fd, said, absent })
    }

    /// What the program's environment says: how such programs are treated, and where to tell of them.
    pub(crate) fn told(&self, how: &str) -> OsString {
        let mut text = OsString::from(how);
        text.push(":");
        text.push(own_path(&self.fd));
        text
    }

    /// After the run.
    pub(crate) fn end(&self, summary: bool) {
        if let Some(text) = self.page.told() {
            say(&text, &self.said);
        }
        let count = self.page.count();
        if summary && count > 0 {
            eprintln!("{count} starts of programs that cannot be intercepted, whose calls are not counted");
        }
        if let Some(dir) = self.absent.as_deref().filter(|dir| is_there(dir)) {
            eprintln!(
                "nvmed: run: {} was made on the host during this run, by a program that the wrapper is not in: what \
                 lies there is not on the device",
                dir.display()
            );
        }
    }
}

/// Whether the host has anything at a path.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn say(text: &str, said: &AtomicBool) {
    if !said.swap(true, Ordering::SeqCst) {
        eprintln!("nvmed: run: {text} (said once; --out-of-reach refuse forbids such programs)");
    }
}
