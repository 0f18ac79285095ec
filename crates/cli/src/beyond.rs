//! Programs of a run that cannot be intercepted: said once, as soon as one starts, and counted.

use crate::failure::{Failure, Status};
use crate::run::own_path;
use nvmed_sys::QuietFd;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is told of them.
pub(crate) struct Beyond {
    page: Arc<nvmed_tally::Beyond>,
    /// Of a high number, so that the table of descriptors has its size before there is a second thread: the kernel takes
    /// milliseconds to let one grow that threads share.
    fd: QuietFd,
    said: Arc<AtomicBool>,
}

impl Beyond {
    /// Prepares to be told.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn begin() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(Status::Run, format!("run: {error}"));
        let (page, fd) = nvmed_tally::Beyond::create().map_err(|errno| failed(errno.into()))?;
        let fd = QuietFd::new(fd);
        let (page, said) = (Arc::new(page), Arc::new(AtomicBool::new(false)));
        let (waits, says) = (Arc::clone(&page), Arc::clone(&said));
        nvmed_sys::spawn_quiet("nvmed-beyond", move || say(&waits.wait(), &says)).map_err(failed)?;
        Ok(Self { page, fd, said })
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
    }
}

fn say(text: &str, said: &AtomicBool) {
    if !said.swap(true, Ordering::SeqCst) {
        eprintln!("nvmed: run: {text} (said once; --out-of-reach refuse forbids such programs)");
    }
}
