//! That the file below a medium was cut short, told once, when a call first fails for it.

use nvmed_image::Image;
use nvmed_sys::sync::OnceLock;
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file that was cut short under its medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub path: String,
    /// Bytes that it has.
    pub left: u64,
    /// Bytes that the medium has.
    pub bytes: u64,
}

type Tell = dyn Fn(&Cut) + Send + Sync;

/// Who is told.
#[derive(Default)]
pub(crate) struct Listener {
    tell: OnceLock<Box<Tell>>,
    told: AtomicBool,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("told", &self.told).finish_non_exhaustive()
    }
}

impl Listener {
    /// The first one is told from now on.
    pub(crate) fn set(&self, tell: impl Fn(&Cut) + Send + Sync + 'static) {
        let _ = self.tell.set(Box::new(tell));
    }

    /// A call on the image has failed: if that is since the file was cut short, it is told, once.
    #[cold]
    pub(crate) fn failed(&self, image: &Image, path: &str) {
        let Some(tell) = self.tell.get() else { return };
        let Ok(stat) = rustix::fs::fstat(image.as_fd()) else { return };
        let (left, bytes) = (stat.st_size as u64, image.bytes());
        if left < bytes && !self.told.swap(true, Ordering::Relaxed) {
            tell(&Cut { path: path.to_owned(), left, bytes });
        }
    }
}
