//! What no device can do faster: a copy.

use super::Contender;
use crate::error::LabError;
use crate::load::{Load, Walk};
use nvmed_sys::{Mapping, Pages};

/// The medium alone: a block copied out of memory, drawn as the load draws it.
pub struct Copies {
    from: Mapping,
    to: Mapping,
    walk: Walk,
    block_bytes: usize,
}

impl Copies {
    /// For a load, over touched memory of its region's size in huge frames.
    ///
    /// # Errors
    /// The host gives no memory.
    pub fn new(load: &Load) -> Result<Self, LabError> {
        let fail = |errno| LabError::host("memory to copy", errno);
        let from = Mapping::anonymous(load.bytes as usize, Pages::Huge).map_err(fail)?;
        from.fill(0, from.len(), 0x5a);
        let to = Mapping::anonymous(load.block_bytes as usize, Pages::Huge).map_err(fail)?;
        to.fill(0, to.len(), 0);
        let walk = Walk::new(&Load { offset: 0, ..*load });
        Ok(Self { from, to, walk, block_bytes: load.block_bytes as usize })
    }
}

impl Contender for Copies {
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        for _ in 0..count {
            let step = self.walk.step();
            self.from.copy(step.offset as usize, &self.to, 0, self.block_bytes);
        }
        Ok(())
    }
}
