//! Inodes that the kernel knows.
//!
//! Every answer that names an inode (lookup, create, readdirplus …) counts one; a FORGET takes counts back.
//! While there are counts, the kernel may ask for the inode by its number, whatever became of its name.

use crate::error::NotHeld;
use fuser::INodeNo;
use nvmed_fs::Node;
use nvmed_sys::sync::{Mutex, MutexGuard};
use std::collections::HashMap;

/// More than the threads that serve one mount.
const SHARDS: usize = 16;

/// One inode and how often the kernel was told of it.
struct Known {
    node: Node,
    lookups: u64,
}

/// The inodes that the kernel knows, by number.
pub(crate) struct Nodes {
    shards: [Mutex<HashMap<u64, Known>>; SHARDS],
}

impl Nodes {
    /// Only the root, which the kernel never forgets.
    pub(crate) fn new(root: Node) -> Self {
        let nodes = Self { shards: core::array::from_fn(|_| Mutex::default()) };
        nodes.enter(&root);
        nodes
    }

    fn shard(&self, ino: u64) -> MutexGuard<'_, HashMap<u64, Known>> {
        // Counts are changed in one step: a panic leaves them whole.
        self.shards[ino as usize % SHARDS].lock()
    }

    /// The inode of a number.
    ///
    /// # Errors
    /// The kernel was never told of it, or has forgotten it.
    pub(crate) fn get(&self, ino: INodeNo) -> Result<Node, NotHeld> {
        self.shard(ino.0).get(&ino.0).map(|known| known.node.clone()).ok_or(NotHeld)
    }

    /// The kernel is about to be told of an inode.
    pub(crate) fn enter(&self, node: &Node) {
        let ino = node.ino();
        self.shard(ino).entry(ino).or_insert_with(|| Known { node: node.clone(), lookups: 0 }).lookups += 1;
    }

    /// The kernel takes `lookups` counts back.
    pub(crate) fn forget(&self, ino: INodeNo, lookups: u64) {
        if ino == INodeNo::ROOT {
            return;
        }
        let mut shard = self.shard(ino.0);
        let Some(known) = shard.get_mut(&ino.0) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        let gone = if known.lookups == 0 { shard.remove(&ino.0) } else { None };
        // The last holder of an inode may have work to do: not while others wait for the shard.
        drop(shard);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_fs::{Credentials, Follow, OpenFlags};
    use nvmed_stack::{Config, Surroundings};

    #[test]
    fn an_inode_is_held_as_long_as_it_is_counted() {
        let device = nvmed_stack::DeviceSpec::parse("virtual:?media=dram,size=64M").unwrap();
        let config = Config { format: true, cache_bytes: 4 << 20, ..Config::new("/m".into(), device) };
        let mount = nvmed_stack::mount(&config, Surroundings::default()).unwrap();
        let (root, who) = (mount.root(), Credentials::ROOT);
        let nodes = Nodes::new(root.clone());
        drop(mount.open(&root, b"a", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o600, &who).unwrap());
        let node = mount.lookup(&root, b"a", Follow::No, &who).unwrap();
        let ino = INodeNo(node.ino());
        assert!(nodes.get(ino).is_err(), "the kernel has not been told of it");
        (0..3).for_each(|_| nodes.enter(&node));
        mount.unlink(&root, b"a", &who).unwrap();
        nodes.forget(ino, 2);
        assert_eq!(nodes.get(ino).unwrap().stat().nlink, 0, "its status is told though its name is gone");
        nodes.forget(ino, 1);
        assert!(nodes.get(ino).is_err());
        // More than was counted, and of what is not held: a kernel that is wrong does no harm.
        nodes.forget(ino, 1);
        nodes.forget(INodeNo::ROOT, 99);
        assert!(nodes.get(INodeNo::ROOT).is_ok());
        let held: usize = nodes.shards.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(held, 1);
    }
}
