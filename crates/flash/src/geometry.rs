//! Where units, pages, programs and blocks are.
//!
//! Physical units are numbered plane by plane, within a plane kind by kind, and within a kind block by block; blocks
//! so, too. A *group* is the blocks of one kind in one plane. Planes are numbered so that neighbours are on other
//! channels, then chips, then dies: plane p is of die p modulo the dies.

use crate::profile::{ArrayProfile, BlockKind};

/// A kind of blocks, and where its first ones are in a plane.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub kind: BlockKind,
    pub page_units: u32,
    pub row_units: u32,
    pub block_units: u32,
    pub rows: u32,
    first_block: u32,
    first_unit: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub shapes: Box<[Shape]>,
    pub planes: u32,
    pub dies: u32,
    plane_blocks: u32,
    plane_units: u32,
}

impl Geometry {
    pub fn new(profile: &ArrayProfile) -> Self {
        let (mut first_block, mut first_unit) = (0, 0);
        let shape = |kind: &BlockKind| {
            let shape = Shape {
                kind: kind.clone(),
                page_units: kind.page_units(),
                row_units: kind.row_units(),
                block_units: kind.units(),
                rows: kind.rows(),
                first_block,
                first_unit,
            };
            first_block += kind.per_plane;
            first_unit += kind.per_plane * kind.units();
            shape
        };
        let shapes: Box<[Shape]> = profile.blocks.iter().map(shape).collect();
        Self {
            shapes,
            planes: profile.planes_total(),
            dies: profile.dies_total(),
            plane_blocks: first_block,
            plane_units: first_unit,
        }
    }

    pub fn kinds(&self) -> usize {
        self.shapes.len()
    }

    pub fn groups(&self) -> usize {
        self.planes as usize * self.shapes.len()
    }

    pub fn blocks(&self) -> usize {
        self.planes as usize * self.plane_blocks as usize
    }

    pub fn units(&self) -> usize {
        self.planes as usize * self.plane_units as usize
    }

    /// The group of a plane's blocks of a kind.
    #[inline]
    pub fn group(&self, plane: u32, kind: usize) -> usize {
        plane as usize * self.shapes.len() + kind
    }

    #[inline]
    pub(crate) fn kind_of_group(&self, group: usize) -> usize {
        group % self.shapes.len()
    }

    #[inline]
    pub(crate) fn plane_of_group(&self, group: usize) -> u32 {
        (group / self.shapes.len()) as u32
    }

    #[inline]
    pub(crate) fn shape_of_group(&self, group: usize) -> &Shape {
        &self.shapes[self.kind_of_group(group)]
    }

    /// The group of a block.
    #[inline]
    pub fn group_of(&self, block: u32) -> usize {
        let (plane, at) = (block / self.plane_blocks, block % self.plane_blocks);
        let kind = self.shapes.iter().rposition(|shape| shape.first_block <= at).unwrap_or(0);
        self.group(plane, kind)
    }

    /// The blocks of a group.
    pub fn blocks_of(&self, group: usize) -> std::ops::Range<u32> {
        let shape = self.shape_of_group(group);
        let first = self.plane_of_group(group) * self.plane_blocks + shape.first_block;
        first..first + shape.kind.per_plane
    }

    /// The first unit of a block.
    #[inline]
    pub(crate) fn first_unit(&self, block: u32) -> u32 {
        let (plane, at) = (block / self.plane_blocks, block % self.plane_blocks);
        let shape = self.shapes.iter().rfind(|shape| shape.first_block <= at).unwrap_or(&self.shapes[0]);
        plane * self.plane_units + shape.first_unit + (at - shape.first_block) * shape.block_units
    }

    /// The block of a unit, its kind, and the unit's number in the block.
    #[inline]
    pub fn place(&self, unit: u32) -> Place {
        let (plane, at) = (unit / self.plane_units, unit % self.plane_units);
        let kind = self.shapes.iter().rposition(|shape| shape.first_unit <= at).unwrap_or(0);
        let shape = &self.shapes[kind];
        let at = at - shape.first_unit;
        let block = plane * self.plane_blocks + shape.first_block + at / shape.block_units;
        Place { plane, kind, block, at: at % shape.block_units }
    }
}

/// Where a physical unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub plane: u32,
    pub kind: usize,
    pub block: u32,
    /// Number of the unit in its block.
    pub at: u32,
}

#[cfg(test)]
mod tests {
    use super::{Geometry, Place};
    use crate::profile::tests::small;

    #[test]
    fn every_unit_is_found_in_its_block() {
        let geometry = Geometry::new(&small(&[(3, 2, 8), (2, 4, 4)]));
        let mut unit = 0;
        for block in 0..geometry.blocks() as u32 {
            let group = geometry.group_of(block);
            assert!(geometry.blocks_of(group).contains(&block));
            assert_eq!(geometry.first_unit(block), unit);
            let (plane, kind) = (geometry.plane_of_group(group), geometry.kind_of_group(group));
            for at in 0..geometry.shapes[kind].block_units {
                assert_eq!(geometry.place(unit), Place { plane, kind, block, at });
                unit += 1;
            }
        }
        assert_eq!(unit as usize, geometry.units());
    }
}
