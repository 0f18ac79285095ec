//! A drive of a given size: how many blocks its planes have, and what becomes of it when that is little.
//!
//! Over-provisioning is what the good blocks hold beyond the capacity, without those that each group keeps free or open
//! ([`nvmed_flash::Room`]). On a small drive the blocks have fewer pages, so that a plane has some of them, and erases
//! take as much less time; when they would become too small, dies have fewer planes, then chips fewer dies, then
//! channels fewer chips. Channels stay, and so does all that is faster than an erase.

use super::fault::ProfileFault;
use nvmed_flash::{ArrayProfile, BlockKind, UNIT_BYTES};

/// Blocks that a plane's part of the capacity fills, before blocks get smaller: what the layer keeps free is little
/// beside them.
const BLOCKS_FULL: u64 = 128;
/// Blocks that it fills, before there are fewer planes.
const BLOCKS_LEAST: u64 = 8;
/// Programs of a block, at least.
const ROWS_LEAST: u64 = 16;
/// What blocks may hold beyond what they should, as a part of it, before other sizes of them are tried.
const EXCESS: u64 = 200;
/// Sizes of blocks that are tried.
const CANDIDATES: u32 = 32;
/// Units of a drive, at most: a map's entry has one bit for something else (`nvmed_flash`).
const UNITS_MAX: u64 = (1 << 31) - 2;
/// Pages of a block where blocks mean nothing.
const PAGES_IN_PLACE: u64 = 1 << 14;
const MILLION: u64 = 1_000_000;
const MIB: u64 = 1 << 20;

/// How a profile's size is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// All blocks are given, and so is the largest capacity.
    Fixed { capacity_bytes: u64 },
    /// Any; by kind of blocks, its share of the capacity in a million.
    Any { typical_bytes: u64, shares_ppm: Vec<u64>, spare_ppm: u64 },
    /// Any, overwritten in place.
    InPlace { typical_bytes: u64 },
}

impl Size {
    /// The capacity of a drive for which nobody gives one.
    pub fn usual_bytes(&self) -> u64 {
        match self {
            Self::Fixed { capacity_bytes } => *capacity_bytes,
            Self::Any { typical_bytes, .. } | Self::InPlace { typical_bytes } => *typical_bytes,
        }
    }

    /// The drive of a capacity: a template, whose blocks are counted. `name` is the profile's.
    pub fn fit(&self, name: &str, template: &ArrayProfile, bytes: u64) -> Result<ArrayProfile, ProfileFault> {
        if bytes == 0 || !bytes.is_multiple_of(UNIT_BYTES) {
            return Err(ProfileFault::Units { name: name.to_owned(), bytes });
        }
        let mut array = ArrayProfile { capacity_bytes: bytes, ..template.clone() };
        match self {
            Self::Fixed { capacity_bytes } if bytes > *capacity_bytes => {
                Err(ProfileFault::Large { name: name.to_owned(), bytes, most_mib: capacity_bytes / MIB })
            }
            Self::Fixed { .. } => Ok(array),
            Self::InPlace { .. } => in_place(name, array),
            Self::Any { shares_ppm, spare_ppm, .. } => {
                let most_mib = most_bytes(template, *spare_ppm) / MIB;
                if bytes > most_mib * MIB {
                    return Err(ProfileFault::Large { name: name.to_owned(), bytes, most_mib });
                }
                narrow(name, &mut array, shares_ppm, *spare_ppm)?;
                count(&mut array, shares_ppm, *spare_ppm);
                Ok(array)
            }
        }
    }
}

/// The capacity of a drive whose blocks are given, in whole MiB.
pub(crate) fn fixed_bytes(array: &ArrayProfile, spare_ppm: u64) -> u64 {
    let room = array.room();
    let units = (room.held_units * MILLION / (MILLION + spare_ppm)).min(room.usable_units);
    units * UNIT_BYTES / MIB * MIB
}

/// The largest drive of a profile, on the safe side by a hundredth.
fn most_bytes(array: &ArrayProfile, spare_ppm: u64) -> u64 {
    let has_map_cache = array.translation.as_ref().is_some_and(|layer| layer.map_cache.is_some());
    let kept = if has_map_cache { 7 } else { 5 };
    let reserve: u64 = array.blocks.iter().map(|kind| kept * u64::from(kind.units())).sum();
    let bad_ppm: u64 = array.translation.as_ref().map_or(0, |translation| translation.bad_ppm.into());
    let good =
        UNITS_MAX.saturating_sub(reserve * u64::from(array.planes_total())) / MILLION * (MILLION - bad_ppm);
    good * 99 / 100 * MILLION / (MILLION + spare_ppm) * UNIT_BYTES
}

/// Units of a plane's part of the capacity that go to blocks of a share.
fn plane_units(array: &ArrayProfile, share_ppm: u64) -> u64 {
    (array.logical_units() * share_ppm).div_ceil(u64::from(array.planes_total()) * MILLION)
}

/// Programs after which the times of a block repeat.
fn pattern(kind: &BlockKind) -> u32 {
    let reads = (kind.read_ns.len() as u32).div_ceil(kind.pages_per_program);
    reads.max(kind.program_ns.len() as u32).clamp(1, kind.rows())
}

/// Programs of a block, at least: so many that units that no collection frees fit into the over-provisioning.
fn least_rows(kind: &BlockKind, spare_ppm: u64) -> u32 {
    let row = u64::from(kind.row_units());
    let scattered = ((row - 1) * (MILLION + spare_ppm)).checked_div(spare_ppm).unwrap_or(0);
    let rows = scattered.div_ceil(row).max(ROWS_LEAST).next_multiple_of(pattern(kind).into());
    rows.min(kind.rows().into()) as u32
}

fn least_units(kind: &BlockKind, spare_ppm: u64) -> u64 {
    u64::from(least_rows(kind, spare_ppm)) * u64::from(kind.row_units())
}

/// Takes planes, dies and chips away until each plane's part fills some blocks.
fn narrow(name: &str, array: &mut ArrayProfile, shares: &[u64], spare_ppm: u64) -> Result<(), ProfileFault> {
    let lacks = |array: &ArrayProfile| {
        let mut kinds = array.blocks.iter().zip(shares);
        kinds.any(|(kind, &share)| plane_units(array, share) < BLOCKS_LEAST * least_units(kind, spare_ppm))
    };
    while lacks(array) {
        let [planes, dies, chips] = [&mut array.planes, &mut array.dies, &mut array.chips];
        let Some(several) = [planes, dies, chips].into_iter().find(|number| **number > 1) else {
            let least = array.blocks.iter().zip(shares).map(|(kind, &share)| {
                BLOCKS_LEAST * least_units(kind, spare_ppm) * u64::from(array.channels) * MILLION
                    / share.max(1)
            });
            let least_mib = (least.max().unwrap_or(0) * UNIT_BYTES).div_ceil(MIB);
            let (bytes, channels) = (array.capacity_bytes, array.channels);
            return Err(ProfileFault::Small { name: name.to_owned(), bytes, channels, least_mib });
        };
        *several /= 2;
    }
    Ok(())
}

/// Gives blocks fewer pages where a plane's part fills few of them, and counts them.
fn count(array: &mut ArrayProfile, shares: &[u64], spare_ppm: u64) {
    let natural: Vec<(u32, u64)> = array.blocks.iter().map(|kind| (kind.rows(), kind.erase_ns)).collect();
    let parts: Vec<u64> = shares.iter().map(|&share| plane_units(array, share)).collect();
    for (kind, &part) in array.blocks.iter_mut().zip(&parts) {
        let fewer = part / BLOCKS_FULL / u64::from(kind.row_units());
        if fewer < kind.rows().into() {
            let (least, pattern) = (least_rows(kind, spare_ppm), pattern(kind));
            kind.pages = (fewer as u32 / pattern * pattern).max(least) * kind.pages_per_program;
        }
    }
    count_blocks(array, &parts, spare_ppm);
    if let [(rows, _)] = natural[..] {
        adjust(array, &parts, spare_ppm, rows);
    }
    for (kind, (rows, erase_ns)) in array.blocks.iter_mut().zip(natural) {
        kind.erase_ns = (u128::from(erase_ns) * u128::from(kind.rows())).div_ceil(u128::from(rows)) as u64;
    }
}

/// A plane has whole blocks. If they hold more than they should, somewhat smaller or larger ones may hold it more
/// exactly; `rows_most` is the profile's.
fn adjust(array: &mut ArrayProfile, parts: &[u64], spare_ppm: u64, rows_most: u32) {
    let held = held_units(array, spare_ppm);
    let mut best = (array.room().held_units, array.clone());
    if best.0 - held <= held / EXCESS {
        return;
    }
    let kind = &array.blocks[0];
    let (rows, a_row, pattern) = (kind.rows(), kind.pages_per_program, pattern(kind));
    let least = least_rows(kind, spare_ppm).max(rows - rows / 8);
    let most = rows_most.min(rows + rows / 2);
    let step = ((most - least) / CANDIDATES).max(1).next_multiple_of(pattern);
    for rows in (least..=most).filter(|rows| rows.is_multiple_of(step)) {
        array.blocks[0].pages = rows * a_row;
        count_blocks(array, parts, spare_ppm);
        let held = array.room().held_units;
        if held < best.0 {
            best = (held, array.clone());
        }
    }
    *array = best.1;
}

/// Units that the blocks are to hold.
fn held_units(array: &ArrayProfile, spare_ppm: u64) -> u64 {
    (array.logical_units() * (MILLION + spare_ppm)).div_ceil(MILLION)
}

/// Counts the blocks of a plane, of a size that is known.
fn count_blocks(array: &mut ArrayProfile, parts: &[u64], spare_ppm: u64) {
    let bad_ppm: u64 = array.translation.as_ref().map_or(0, |translation| translation.bad_ppm.into());
    for (kind, part) in array.blocks.iter_mut().zip(parts) {
        let held = (part * (MILLION + spare_ppm) / MILLION) / u64::from(kind.units());
        kind.per_plane = ((held + 4) * MILLION / (MILLION - bad_ppm)).min(u64::from(u32::MAX)) as u32;
    }
    let logical = array.logical_units();
    let held = held_units(array, spare_ppm);
    // Which blocks are bad depends on how many there are.
    let a_block: u64 = array.blocks.iter().map(|kind| u64::from(kind.units())).sum();
    let planes = u64::from(array.planes_total());
    while planes * array.plane_units() <= UNITS_MAX {
        let room = array.room();
        let lacks = held.saturating_sub(room.held_units).max(logical.saturating_sub(room.usable_units));
        if lacks == 0 {
            return;
        }
        let more = (lacks / (planes * a_block)).max(1) as u32;
        array.blocks.iter_mut().for_each(|kind| kind.per_plane += more);
    }
}

/// Counts the pages of a plane, where blocks mean nothing.
fn in_place(name: &str, mut array: ArrayProfile) -> Result<ArrayProfile, ProfileFault> {
    let bytes = array.capacity_bytes;
    let planes = u64::from(array.planes_total());
    for kind in &mut array.blocks {
        let pages = bytes.div_ceil(kind.page_bytes).div_ceil(planes);
        let blocks = pages.div_ceil(PAGES_IN_PLACE);
        if blocks > 1 << 20 {
            let most_mib = (planes * kind.page_bytes * PAGES_IN_PLACE / MIB) << 20;
            return Err(ProfileFault::Large { name: name.to_owned(), bytes, most_mib });
        }
        (kind.pages, kind.per_plane) = (pages.min(PAGES_IN_PLACE) as u32, blocks as u32);
    }
    Ok(array)
}
