//! The memory of the map: slices that a drive's owner gives.

use crate::geometry::Geometry;
use crate::profile::{ArrayProfile, Medium, Profile};
use std::ops::DerefMut;

/// Memory for a table: a `Vec` in a simulator, huge pages in a device.
pub trait Words: DerefMut<Target = [u32]> + std::fmt::Debug {}

impl<W: DerefMut<Target = [u32]> + std::fmt::Debug> Words for W {}

/// The large tables of a drive. What is in them before is overwritten.
#[derive(Debug)]
pub struct Tables<W> {
    /// Logical to physical units; as many words as the capacity has units, and a map in flash has pages.
    pub map: W,
    /// Physical to logical units; as many as all blocks have units.
    pub owners: W,
}

impl Tables<Vec<u32>> {
    /// Tables on the heap, of the sizes that a profile wants.
    pub(crate) fn on_heap(profile: &Profile) -> Self {
        let (map, owners) = sizes(profile);
        Self { map: vec![0; map], owners: vec![0; owners] }
    }
}

/// How many words the map and its inverse of a drive have; none where there is no map.
#[must_use]
pub fn sizes(profile: &Profile) -> (usize, usize) {
    let Medium::Array(array) = &profile.medium else { return (0, 0) };
    if array.translation.is_none() {
        return (0, 0);
    }
    ((array.logical_units() + array.map_pages()) as usize, units_of(array))
}

fn units_of(array: &ArrayProfile) -> usize {
    Geometry::new(array).units()
}
