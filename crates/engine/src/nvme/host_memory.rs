//! Memory that is lent to a controller which would like some (Base 2.0, 8.9).

use super::admin::{AdminTurn, region};
use super::ring::Region;
use crate::{EngineError, HostMemoryUse};
use nvmed_dma::{MapError, Transport};
use nvmed_nvme::{HostMemoryDescriptor, IdentifyController};
use nvmed_sys::Mapping;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of a page: CC.MPS is 0.
const PAGE_BYTES: u64 = 4096;
/// What is lent at most: 128 MiB, as Linux has it (`max_host_mem_size_mb`).
const PAGES_MAX: u32 = (128 << 20) / PAGE_BYTES as u32;
/// Pages of a range, where the controller takes so many ranges: 4 MiB, as Linux has them as a rule.
const RANGE_PAGES: u32 = (4 << 20) / PAGE_BYTES as u32;
/// Ranges at most: the list is one page.
const RANGES_MAX: usize = PAGE_BYTES as usize / size_of::<HostMemoryDescriptor>();

/// The memory, which the controller may use while it is lent; given back to the host when this is dropped.
pub(super) struct HostMemory {
    ranges: Vec<(Region, u32)>,
    list: Region,
    pages: u32,
}

impl HostMemory {
    /// As much as a controller would like, or as the host gives; `None` if that is less than it needs, or it wants
    /// none.
    pub(super) fn new(transport: &Arc<dyn Transport>, controller: &IdentifyController) -> Option<Self> {
        let (wanted, needed) = (controller.hmpre.min(PAGES_MAX), controller.hmmin);
        if wanted == 0 || needed > wanted {
            return None;
        }
        let least = controller.hmminds.max(1);
        let ranges_max = match controller.hmmaxd {
            0 => RANGES_MAX,
            most => RANGES_MAX.min(most.into()),
        };
        let ranges = take_ranges(transport, wanted, (least, ranges_max));
        let pages = ranges.iter().map(|(_, pages)| pages).sum();
        if pages == 0 || pages < needed {
            return None;
        }
        let list = region(transport, PAGE_BYTES as usize).ok()?;
        for (at, (range, pages)) in ranges.iter().enumerate() {
            let descriptor = HostMemoryDescriptor { address: range.address.0, pages: *pages, reserved: 0 };
            list.memory.write(at * size_of::<HostMemoryDescriptor>(), descriptor.as_bytes());
        }
        Some(Self { ranges, list, pages })
    }

    /// Lends it to a controller that has none; `again` after a reset.
    ///
    /// # Errors
    /// The controller refused or failed: it has none then.
    pub(super) fn lend(&self, admin: &mut AdminTurn<'_>, again: bool) -> Result<(), EngineError> {
        admin.enable_host_memory((self.pages, again), (self.list.address, self.ranges.len() as u32))
    }

    /// The memory of the ranges, in the order of the list.
    pub(super) fn ranges(&self) -> impl ExactSizeIterator<Item = &Arc<Mapping>> {
        self.ranges.iter().map(|(region, _)| &region.memory)
    }

    /// What is lent.
    pub(super) fn what(&self) -> HostMemoryUse {
        HostMemoryUse { bytes: u64::from(self.pages) * PAGE_BYTES, ranges: self.ranges.len() as u32 }
    }
}

/// Memory of `wanted` pages in ranges of `least` pages or more, smaller ones where the host gives no larger ones; none
/// where it locks or maps no more at all.
fn take_ranges(
    transport: &Arc<dyn Transport>,
    wanted: u32,
    (least, ranges_max): (u32, usize),
) -> Vec<(Region, u32)> {
    let mut size = wanted.div_ceil(ranges_max as u32).max(RANGE_PAGES).max(least);
    let (mut left, mut ranges) = (wanted, Vec::new());
    while left > 0 && ranges.len() < ranges_max {
        let pages = size.min(left);
        if pages < least {
            break;
        }
        match region(transport, pages as usize * PAGE_BYTES as usize) {
            Ok(region) => {
                ranges.push((region, pages));
                left -= pages;
            }
            // Queues and data need what little there is.
            Err(EngineError::Map(MapError::Locked { .. } | MapError::Full { .. })) => return Vec::new(),
            Err(_) => size = pages / 2,
        }
    }
    ranges
}
