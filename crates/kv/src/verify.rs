//! Reading everything and believing nothing: the store's own check, for `fsck` and for tests.

use crate::guard::lock;
use crate::superblock::{Reference, Root, Superblock};
use crate::{KvError, Store};
use core::ops::{Bound, ControlFlow};

/// A subtree that is still to be checked: its keys are at or above `lower` and below `upper`.
struct Subtree {
    node: Reference,
    level: u16,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

impl Store {
    /// Reads every block in use and checks it; for `fsck`. Answers the number of records.
    ///
    /// # Errors
    /// The first damaged block, or the medium's.
    pub fn verify(&self) -> Result<u64, KvError> {
        // With the checkpointer held, no block of the tree is given up.
        let mut checkpointer = lock(&self.checkpointer);
        let superblock = lock(&self.superblock).clone();
        let mut blocks = 0;
        if let Some(root) = superblock.root {
            self.walk(&root, &mut |block| {
                blocks += 1;
                if checkpointer.space.is_used(&self.disk, &superblock, block)? {
                    return Ok(());
                }
                let reason = "a block of the tree is marked free";
                Err(KvError::Corrupt { block, structure: "bitmap page", reason })
            })?;
        }
        drop(checkpointer);
        if blocks != superblock.used {
            return Err(miscounted(&superblock));
        }
        let mut records = 0;
        self.scan(Bound::Unbounded, Bound::Unbounded, &mut |_, _| {
            records += 1;
            ControlFlow::Continue(())
        })?;
        Ok(records)
    }

    /// Checks the tree below `root`; `used` hears of every block.
    fn walk(&self, root: &Root, used: &mut dyn FnMut(u64) -> Result<(), KvError>) -> Result<(), KvError> {
        let whole = Subtree { node: root.node, level: root.level, lower: Vec::new(), upper: None };
        let mut open = vec![whole];
        while let Some(Subtree { node: want, level, lower, upper }) = open.pop() {
            used(want.block)?;
            let node = self.nodes.read(&self.disk, &want, level)?;
            let above = upper.as_deref().is_some_and(|upper| node.key(node.len() - 1) >= upper);
            if above || (level == 0 && node.key(0) < lower.as_slice()) {
                let reason = "keys outside of its parent's range";
                return Err(KvError::Corrupt { block: want.block, structure: "tree node", reason });
            }
            for index in (0..node.len()).take(if level == 0 { 0 } else { node.len() }) {
                // The first child takes all keys from our lower bound on.
                let lower = if index == 0 { lower.clone() } else { node.key(index).to_vec() };
                let next = (index + 1 < node.len()).then(|| node.key(index + 1).to_vec());
                let upper = next.or_else(|| upper.clone());
                open.push(Subtree { node: node.child(index), level: level - 1, lower, upper });
            }
        }
        Ok(())
    }
}

fn miscounted(superblock: &Superblock) -> KvError {
    let block = superblock.layout.superblock(0);
    KvError::Corrupt { block, structure: "superblock", reason: "the count of blocks in use" }
}
