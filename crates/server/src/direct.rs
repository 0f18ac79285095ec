//! Direct windows: where files lie in memory, they say where in place of keeping copies (docs/spec/shared.md, "Direct
//! windows").

use crate::description::Description;
use crate::peer::Peer;
use crate::window::{PAGE, Shown, Windows};
use nvmed_fs::{FsError, Location};
use nvmed_stack::Mount;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_wire::Place;
use rustix::fd::OwnedFd;
use std::collections::HashSet;
use std::ops::Range;

/// Pages whose places come at a time, 16 MiB: a reader makes one call for so much, and a writer waits some 60 us.
const GROUP_PAGES: u64 = 4096;
/// Pages of a window's memory that their entries take, and their regions.
const GROUP_COST: u64 = nvmed_wire::direct_bytes(GROUP_PAGES).div_ceil(PAGE);

/// The medium, where the files of a mount lie in memory that clients may map.
pub(crate) struct Medium {
    /// It can be read through this, and nothing else.
    readers: QuietFd,
    /// The ids with which the server itself has opened it.
    own: Peer,
}

impl Medium {
    /// Of a mount; none where the files lie elsewhere, or nobody but the server can reach them.
    pub fn of(mount: &Mount) -> Option<Self> {
        let readers = QuietFd::new(mount.medium_readers()?);
        Some(Self { readers, own: Peer::own().ok()? })
    }

    /// Whether a client may have it: one that is the very user that the server is, with the same groups, could open it
    /// itself.
    pub fn is_for(&self, peer: &Peer) -> bool {
        peer.has_ids_of(&self.own)
    }
}

/// What a direct window has besides the window.
#[derive(Default)]
pub(crate) struct Places {
    /// Descriptions through which clients have it. Without any it is paused: a file that nobody has open may lose its
    /// blocks without a change of its window.
    viewers: Mutex<usize>,
    /// Groups of pages whose places were told.
    groups: Mutex<HashSet<u64>>,
}

impl Places {
    /// Pages of memory that its entries take, about.
    fn cost(&self) -> u64 {
        self.groups.lock().len() as u64 * GROUP_COST
    }
}

/// A description through which clients have a direct window. It is dropped before the description's file is closed.
pub(crate) struct Viewer(Arc<Shown>);

impl Viewer {
    /// One more, of a window that is open for ever or paused.
    fn new(shown: &Arc<Shown>, places: &Places) -> Self {
        let mut viewers = places.viewers.lock();
        if *viewers == 0 {
            shown.resume();
        }
        *viewers += 1;
        Self(Arc::clone(shown))
    }

    fn is_of(&self, shown: &Arc<Shown>) -> bool {
        Arc::ptr_eq(&self.0, shown)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let Some(places) = &self.0.places else { return };
        let mut viewers = places.viewers.lock();
        *viewers = viewers.saturating_sub(1);
        if *viewers == 0 {
            self.0.pause();
        }
    }
}

impl Description {
    /// Its clients have this direct window from now on.
    pub(crate) fn views(&self, shown: &Arc<Shown>) {
        let Some(places) = &shown.places else { return };
        let mut viewers = self.viewers.lock();
        if !viewers.iter().any(|viewer| viewer.is_of(shown)) {
            // Of those that were closed its clients have asked for another.
            let closed = std::mem::take(&mut *viewers);
            viewers.push(Viewer::new(shown, places));
            drop(viewers);
            drop(closed);
        }
    }
}

impl Windows {
    /// The medium for a client that may read it.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] where there is none for it; the host has no descriptor.
    pub fn medium(&self, peer: &Peer) -> Result<OwnedFd, FsError> {
        let medium =
            self.medium.as_ref().filter(|medium| medium.is_for(peer)).ok_or(FsError::NotSupported)?;
        Ok(rustix::io::fcntl_dupfd_cloexec(&medium.readers, 0)?)
    }

    /// Whether a client's window on a file may be direct.
    pub(crate) fn may_be_direct(&self, peer: &Peer, description: &Description) -> bool {
        let is_for = self.medium.as_ref().is_some_and(|medium| medium.is_for(peer));
        // Of an empty file nobody knows yet where it will lie.
        is_for && matches!(description.location(0), Ok(Some(_)) | Err(FsError::NoData))
    }

    /// A client has read these bytes by a call: where they and those around them lie comes into the window.
    pub(crate) fn tell_places(
        &self,
        description: &Description,
        (shown, places): (&Arc<Shown>, &Places),
        bytes: &Range<u64>,
    ) {
        if bytes.is_empty() {
            return;
        }
        let groups = bytes.start / PAGE / GROUP_PAGES..=(bytes.end - 1) / PAGE / GROUP_PAGES;
        for group in groups {
            let is_new = !places.groups.lock().contains(&group);
            if is_new && !self.has_room_for_places(shown) {
                return;
            }
            let start = group * GROUP_PAGES;
            let end = shown.size().div_ceil(PAGE).min(start + GROUP_PAGES);
            let mut moved = false;
            shown.tell(start..end, |page| match description.location(page * PAGE) {
                Ok(Some(Location::At { offset, bytes })) => Some((Place::Block(offset / PAGE), bytes / PAGE)),
                Ok(Some(Location::Zeroes { bytes })) => Some((Place::Zeroes, bytes / PAGE)),
                Ok(None) => {
                    moved = true;
                    None
                }
                // The call that reads it says why.
                Err(_) => None,
            });
            places.groups.lock().insert(group);
            if moved {
                // It lies in its record now: another window has copies.
                self.end(description.node().ino(), shown);
                return;
            }
        }
    }

    /// Whether a direct window may take memory for another group: the oldest of the others go for it.
    fn has_room_for_places(&self, shown: &Arc<Shown>) -> bool {
        let cost = |shown: &Arc<Shown>| shown.places.as_ref().map_or(0, Places::cost);
        if cost(shown) + GROUP_COST > self.pages_max {
            return false;
        }
        let mut files = self.files.write();
        while files.windows.values().map(cost).sum::<u64>() + GROUP_COST > self.pages_max {
            let other =
                |ino: &&u64| files.windows.get(ino).is_some_and(|it| cost(it) > 0 && !Arc::ptr_eq(it, shown));
            let Some(oldest) = files.order.iter().find(other).copied() else { break };
            self.close(&mut files, oldest);
        }
        true
    }
}
