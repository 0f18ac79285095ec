//! What a session holds: inodes and open descriptions, by handle.

use crate::description::{Description, Holding};
use crate::share::Share;
use nvmed_fs::{FileType, FsError, Node};
use nvmed_wire::Handle;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;

/// Handles of one session (docs/spec/shared.md, "Limits").
pub(crate) const HANDLES_MAX: usize = 1 << 20;
/// Handles that a session takes of its user's, and gives back, at a time: so an open or close touches nothing that
/// others use.
const AT_A_TIME: usize = 64;

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Thing {
    Inode(Node),
    Description(Arc<Description>),
}

/// What a handle stands for, held by a session or by a message.
pub(crate) enum HeldThing {
    Inode(Node),
    Description(Holding),
}

impl HeldThing {
    pub fn new(thing: Thing) -> Self {
        match thing {
            Thing::Inode(node) => Self::Inode(node),
            Thing::Description(description) => Self::Description(Holding::new(description)),
        }
    }

    /// Whether it is that thing.
    fn is(&self, thing: &Thing) -> bool {
        match (self, thing) {
            (Self::Inode(mine), Thing::Inode(other)) => mine == other,
            (Self::Description(mine), Thing::Description(other)) => Arc::ptr_eq(mine.description(), other),
            _ => false,
        }
    }

    pub fn thing(&self) -> Thing {
        match self {
            Self::Inode(node) => Thing::Inode(node.clone()),
            Self::Description(holding) => Thing::Description(Arc::clone(holding.description())),
        }
    }
}

/// Mappings of a held file in the session's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Maps {
    pub read: u32,
    pub write: u32,
}

impl Maps {
    /// The count of mappings made with this `write`.
    pub fn of(&mut self, write: bool) -> &mut u32 {
        if write { &mut self.write } else { &mut self.read }
    }
}

/// What one handle stands for, and how often the session has it.
pub(crate) struct Hold {
    held: HeldThing,
    count: u32,
    maps: Maps,
}

impl Hold {
    pub fn thing(&self) -> Thing {
        self.held.thing()
    }

    /// The mappings that are left.
    pub fn maps(&self) -> Maps {
        self.maps
    }
}

/// All that a session holds. After its end it holds nothing, and takes nothing.
pub(crate) struct Holds {
    by_handle: HashMap<Handle, Hold>,
    ended: bool,
    /// Of its user's handles; it may have some more than it uses.
    share: Share,
}

impl Holds {
    /// Nothing yet; `share` is of no handles.
    pub fn new(share: Share) -> Self {
        Self { by_handle: HashMap::new(), ended: false, share }
    }

    /// Holds `thing`, or holds it so many times more.
    ///
    /// # Errors
    /// `EMFILE` past the session's limit, `ENFILE` past its user's; `EIO` after the end.
    pub fn add(&mut self, handle: Handle, thing: Thing, count: u32) -> Result<(), FsError> {
        assert!(count > 0, "handle {} is held no times", handle.0);
        if self.ended {
            return Err(FsError::Host(Errno::IO));
        }
        if let Some(hold) = self.by_handle.get_mut(&handle) {
            assert!(hold.held.is(&thing), "handle {} stands for two things", handle.0);
            hold.count = hold.count.checked_add(count).ok_or(FsError::Host(Errno::MFILE))?;
            return Ok(());
        }
        if self.by_handle.len() >= HANDLES_MAX {
            return Err(FsError::Host(Errno::MFILE));
        }
        if self.by_handle.len() >= self.share.count() {
            self.share.grow(AT_A_TIME).or_else(|_| self.share.grow(1))?;
        }
        let held = HeldThing::new(thing);
        self.by_handle.insert(handle, Hold { held, count, maps: Maps::default() });
        let (holds, paid) = (self.by_handle.len(), self.share.count());
        assert!(holds <= paid, "a session holds {holds} handles, and has {paid} of its user's");
        Ok(())
    }

    /// What a handle stands for.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] when it is not held.
    pub fn get(&self, handle: Handle) -> Result<Thing, FsError> {
        self.by_handle.get(&handle).map(Hold::thing).ok_or(FsError::BadDescriptor)
    }

    /// How often it is held.
    ///
    /// # Errors
    /// As [`Holds::get`].
    pub fn count(&self, handle: Handle) -> Result<u32, FsError> {
        self.by_handle.get(&handle).map(|hold| hold.count).ok_or(FsError::BadDescriptor)
    }

    /// The inode of a handle.
    ///
    /// # Errors
    /// As [`Holds::get`].
    pub fn node(&self, handle: Handle) -> Result<Node, FsError> {
        match &self.by_handle.get(&handle).ok_or(FsError::BadDescriptor)?.held {
            HeldThing::Inode(node) => Ok(node.clone()),
            HeldThing::Description(holding) => Ok(holding.description().node()),
        }
    }

    /// The open description of a handle.
    ///
    /// # Errors
    /// As [`Holds::get`]; the same for a held inode.
    pub fn description(&self, handle: Handle) -> Result<Arc<Description>, FsError> {
        match self.by_handle.get(&handle) {
            Some(Hold { held: HeldThing::Description(holding), .. }) => Ok(Arc::clone(holding.description())),
            _ => Err(FsError::BadDescriptor),
        }
    }

    /// Holds it once less; what is no longer held is for the caller to drop, outside of any lock.
    ///
    /// # Errors
    /// As [`Holds::get`].
    pub fn release(&mut self, handle: Handle) -> Result<Option<Hold>, FsError> {
        let hold = self.by_handle.get_mut(&handle).ok_or(FsError::BadDescriptor)?;
        hold.count -= 1;
        if hold.count > 0 {
            return Ok(None);
        }
        let gone = self.by_handle.remove(&handle);
        if self.share.count() >= self.by_handle.len() + 2 * AT_A_TIME {
            self.share.shrink(AT_A_TIME);
        }
        Ok(gone)
    }

    /// How many mappings of a held file the process has.
    ///
    /// # Errors
    /// As [`Holds::get`].
    pub fn maps(&mut self, handle: Handle) -> Result<&mut Maps, FsError> {
        self.by_handle.get_mut(&handle).map(|hold| &mut hold.maps).ok_or(FsError::BadDescriptor)
    }

    /// Whether the process has any held file mapped.
    pub(crate) fn are_mapped(&self) -> bool {
        self.by_handle.values().any(|hold| hold.maps != Maps::default())
    }

    /// Whether there are directories alone: telling of them waits for no writer, letting go of them frees no blocks.
    pub(crate) fn are_light(&self) -> bool {
        let is_directory =
            |hold: &Hold| matches!(&hold.held, HeldThing::Inode(node) if node.kind() == FileType::Directory);
        self.by_handle.values().all(is_directory)
    }

    /// The end of the session: everything that it held, for the caller to drop.
    pub fn end(&mut self) -> Vec<Hold> {
        self.ended = true;
        self.share.set(0);
        std::mem::take(&mut self.by_handle).into_values().collect()
    }

    /// How many handles are held.
    pub fn len(&self) -> usize {
        self.by_handle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::{Limits, Resource, Shares};

    fn holds() -> Holds {
        Holds::new(Shares::new(Limits::MACHINE).user(1).none(Resource::Handle))
    }

    #[test]
    #[should_panic(expected = "handle 1 is held no times")]
    fn a_handle_that_is_held_no_times_is_our_mistake() {
        let _ = holds().add(Handle(1), Thing::Inode(crate::toy_tests::mount().root()), 0);
    }

    #[test]
    #[should_panic(expected = "handle 1 stands for two things")]
    fn a_handle_that_stands_for_two_things_is_our_mistake() {
        let mut holds = holds();
        for mount in [crate::toy_tests::mount(), crate::toy_tests::mount()] {
            let _ = holds.add(Handle(1), Thing::Inode(mount.root()), 1);
        }
    }

    #[test]
    #[should_panic(expected = "a session holds 101 handles, and has 64 of its user's")]
    fn handles_that_nobody_pays_for_are_our_mistake() {
        let (mut holds, root) = (holds(), crate::toy_tests::mount().root());
        let hold = |holds: &mut Holds, handle| holds.add(Handle(handle), Thing::Inode(root.clone()), 1);
        (1..=100).for_each(|handle| hold(&mut holds, handle).unwrap());
        holds.share.set(0);
        let _ = hold(&mut holds, 101);
    }
}
