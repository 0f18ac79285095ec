//! What a drive of dies says of itself in Identify: its geometry, and which sizes suit it.

use crate::controller::Controller;
use nvmed_flash::{ArrayProfile, BlockKind, UNIT_BYTES};
use nvmed_nvme::{DriveBlocks, DriveIdentity, HmbIoControl, IdentifyNamespace};

impl Controller {
    /// The drive, for the vendor's bytes of Identify Controller.
    pub(crate) fn drive_identity(&self) -> Option<DriveIdentity> {
        let array = self.config.array()?;
        let drive = self.drive.as_ref()?;
        let name = &self.config.drive_name;
        let mut identity = DriveIdentity::default();
        put(&mut identity.profile, &name.profile);
        put(&mut identity.what, &name.what);
        identity.channels = array.channels;
        identity.chips = array.chips;
        identity.dies = array.dies;
        identity.planes = array.planes;
        identity.in_place = array.translation.is_none().into();
        identity.kept = drive.state.lock().kept.is_some().into();
        identity.buffer_bytes = array.translation.as_ref().map_or(0, |layer| layer.buffer_bytes);
        if self.config.hmb_io_slots > 0 {
            identity.hmb_io_version = HmbIoControl::VERSION;
            identity.hmb_io_slots = self.config.hmb_io_slots.into();
        }
        for (of, kind) in identity.blocks.iter_mut().zip(&array.blocks) {
            *of = DriveBlocks {
                per_plane: kind.per_plane,
                page_bytes: kind.page_bytes as u32,
                pages: kind.pages,
                pages_per_program: kind.pages_per_program,
            };
        }
        Some(identity)
    }

    /// Logical blocks that are allocated (NUSE): of a drive with a map, those that it maps; else all.
    pub(crate) fn used_blocks(&self) -> u64 {
        let mapped = self.drive.as_ref().and_then(|drive| drive.state.lock().flash.mapped_units());
        mapped.map_or(self.lba_count(), |units| (units * UNIT_BYTES) >> self.lba_shift)
    }

    /// The sizes that suit a drive (NVM 1.0, 5.8.2). NOIOB stays 0: the drive gathers what is written wherever it
    /// belongs, and pages of a command are read by themselves, so no boundary between blocks costs anything.
    pub(crate) fn tell_best_sizes(&self, array: &ArrayProfile, data: &mut IdentifyNamespace) {
        let blocks_less_one = |bytes: u64| ((bytes >> self.lba_shift) - 1).min(u16::MAX.into()) as u16;
        // A part of a unit of the map is read and written as a whole; in place, a part of a page is. On each plane of a
        // die the drive programs at once what it has gathered for one program, or a page.
        let (write, program) = match (&array.translation, array.blocks.first()) {
            (None, Some(kind)) => (kind.page_bytes, kind.page_bytes),
            _ => {
                let units = array.blocks.iter().map(BlockKind::row_units).max().unwrap_or(1);
                (UNIT_BYTES, u64::from(units) * UNIT_BYTES)
            }
        };
        let (write, best) = (blocks_less_one(write), blocks_less_one(program * u64::from(array.planes)));
        // Only whole units are unmapped.
        let deallocate = blocks_less_one(UNIT_BYTES);
        data.nsfeat |= IdentifyNamespace::NSFEAT_OPTPERF;
        (data.npwg, data.npwa) = (write, write);
        (data.npdg, data.npda) = (deallocate, deallocate);
        data.nows = best;
    }
}

/// A text with a NUL behind it, cut between characters.
fn put(field: &mut [u8], text: &str) {
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let len = ends.take_while(|&end| end < field.len()).last().unwrap_or(0);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}
