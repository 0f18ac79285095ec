//! Trees that readers look at: while one does, no block of its tree is reused.

use crate::reference::Root;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::time::Duration;
use nvmed_sys::sync::{Arc, Condvar, Mutex};

/// The tree of one superblock.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) root: Option<Root>,
    pub(crate) generation: u64,
}

/// Who waits for readers.
#[derive(Default)]
pub(crate) struct Pins {
    awaited: AtomicBool,
    gate: Mutex<()>,
    changed: Condvar,
}

/// While it lives, no block of its tree is reused. For one call: a snapshot takes one for each.
pub(crate) struct Pin<'a> {
    pins: &'a Pins,
    /// Always there, until the pin goes.
    version: Option<Arc<Version>>,
}

impl Pins {
    /// A reader of `version`, which is the present one or a snapshot's, so that its blocks are safe now.
    pub(crate) fn pin(&self, version: &Arc<Version>) -> Pin<'_> {
        Pin { pins: self, version: Some(Arc::clone(version)) }
    }

    /// Waits until nobody but the caller has `version`; nobody new must come any more.
    pub(crate) fn wait(&self, version: &mut Arc<Version>) {
        let mut guard = self.gate.lock();
        assert!(!self.awaited.swap(true, SeqCst), "two wait for readers");
        while !is_alone(version) {
            // The time is for a processor that lets a reader's look at `awaited` pass its last act.
            (guard, _) = self.changed.wait_timeout(guard, Duration::from_millis(1));
        }
        self.awaited.store(false, SeqCst);
    }
}

/// Whether nobody else has `version`. What they read was read before.
pub(crate) fn is_alone(version: &mut Arc<Version>) -> bool {
    Arc::get_mut(version).is_some()
}

impl Pin<'_> {
    /// The root of the tree.
    pub(crate) fn root(&self) -> Option<Root> {
        self.version.as_ref().and_then(|version| version.root)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.version = None;
        if self.pins.awaited.load(SeqCst) {
            // Through the gate, so that who waits is either asleep or has not looked yet.
            drop(self.pins.gate.lock());
            self.pins.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "two wait for readers")]
    fn two_that_wait_are_our_mistake() {
        let pins = Pins { awaited: AtomicBool::new(true), ..Pins::default() };
        pins.wait(&mut Arc::new(Version { root: None, generation: 0 }));
    }
}
