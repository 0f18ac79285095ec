//! Flash that a drive has beyond its capacity, where the capacity was made smaller and the flash was not.

use nvmed_flash::{Medium, Profile, UNIT_BYTES};
use nvmed_stack::DriveProfile;

/// What such flash does, in messages.
pub const WHAT_IT_DOES: &str =
    "collection is rarer than on a drive with less; `blocks_per_plane` says how much there is";

/// How much of a drive's flash is beyond its capacity, in percent; none where the flash is as the capacity wants it.
pub fn percent(profile: &DriveProfile, drive: &Profile) -> Option<f64> {
    let usual = profile.drive(profile.usual_bytes()).ok()?;
    let (flash, capacity) = bytes(drive)?;
    let (usual_flash, usual_capacity) = bytes(&usual)?;
    let is_left = flash == usual_flash && capacity < usual_capacity;
    is_left.then(|| 100.0 * (1.0 - capacity as f64 / flash as f64))
}

/// Bytes of flash and of capacity, of a drive with a translation layer.
fn bytes(drive: &Profile) -> Option<(u64, u64)> {
    let Medium::Array(array) = &drive.medium else { return None };
    array.translation.as_ref()?;
    Some((u64::from(array.planes_total()) * array.plane_units() * UNIT_BYTES, array.capacity_bytes))
}
