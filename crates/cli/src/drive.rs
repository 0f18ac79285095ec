//! What a virtual drive says of itself, and what a device string puts before memory, in words: lines and JSON for
//! `nvmed info` and `nvmed identify`.

use crate::inspect::size;
use nvmed_nvme::{DriveBlocks, DriveIdentity};
use nvmed_stack::{DeviceSpec, NvmBuffer};
use serde_json::{Value, json};

/// The kinds of blocks that a drive has; a device may write anything.
fn kinds(drive: &DriveIdentity) -> impl Iterator<Item = &DriveBlocks> {
    drive.blocks.iter().filter(|kind| kind.page_bytes > 0)
}

/// A text that ends with a NUL, without characters that a terminal would obey.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).chars().filter(|letter| !letter.is_control()).collect()
}

/// The drive, in lines that begin with a name of `width`.
pub fn lines(drive: &DriveIdentity, width: usize) -> String {
    let (profile, what) = (text(&drive.profile), text(&drive.what));
    let name = if profile.is_empty() { what } else { format!("{profile}: {what}") };
    let kept = if drive.kept != 0 { "kept beside its image" } else { "new at each opening" };
    let mut lines = format!("{:<width$}{name}; {kept}\n", "drive");
    let mut line = |text: &str| lines.push_str(&format!("{:width$}{text}\n", ""));
    line(&format!(
        "{} channels x {} chips x {} dies x {} planes",
        drive.channels, drive.chips, drive.dies, drive.planes
    ));
    for kind in kinds(drive) {
        let bytes = size(kind.page_bytes.into());
        if drive.in_place != 0 {
            line(&format!("pages of {bytes}, overwritten in place"));
            continue;
        }
        line(&format!(
            "{} blocks a plane, of {} pages of {bytes}, {} a program",
            kind.per_plane, kind.pages, kind.pages_per_program
        ));
    }
    if let Some(slots) = drive.offers_hmb_io() {
        line(&format!("offers HMB-I/O: up to {slots} slots in the host's memory"));
    }
    lines
}

/// The drive as JSON, with the names of `nvmed device show`.
pub fn facts(drive: &DriveIdentity) -> Value {
    let blocks = kinds(drive).filter(|_| drive.in_place == 0).map(|kind| {
        json!({
            "per_plane": kind.per_plane, "page_bytes": kind.page_bytes, "pages": kind.pages,
            "pages_per_program": kind.pages_per_program,
        })
    });
    let profile = Some(text(&drive.profile)).filter(|name| !name.is_empty());
    json!({
        "profile": profile, "what": text(&drive.what), "kept": drive.kept != 0, "in_place": drive.in_place != 0,
        "channels": drive.channels, "chips_per_channel": drive.chips, "dies_per_chip": drive.dies,
        "planes_per_die": drive.planes, "buffer_bytes": drive.buffer_bytes, "blocks": blocks.collect::<Vec<_>>(),
        "hmb_io_slots": drive.offers_hmb_io().unwrap_or(0),
    })
}

/// The buffer that a device string puts before memory.
fn buffer(spec: &DeviceSpec) -> Option<&NvmBuffer> {
    match spec {
        DeviceSpec::Nvm(spec) => spec.buffer.as_ref(),
        _ => None,
    }
}

/// What stands before the medium of an open device, as a line that begins with a name of `width`; none where nothing
/// does.
pub(crate) fn buffer_line(spec: &DeviceSpec, width: usize) -> String {
    let Some(front) = buffer(spec) else { return String::new() };
    let (clock, prefetch) = (front.clock.name(), front.prefetch.name());
    let (profile, bytes) = (&front.profile, size(front.bytes));
    format!("{:<width$}{bytes} before the medium {profile}, clock={clock}, prefetch={prefetch}\n", "buffer")
}

/// The same as JSON.
pub(crate) fn buffer_facts(spec: &DeviceSpec) -> Option<Value> {
    buffer(spec).map(|front| {
        json!({
            "profile": front.profile, "bytes": front.bytes, "clock": front.clock.name(),
            "prefetch": front.prefetch.name(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_writes_is_shown_without_a_panic() {
        let mut drive = DriveIdentity::default();
        drive.what = [0xff; 128];
        drive.profile[..4].copy_from_slice(b"a\x1b[\0");
        drive.blocks[3].page_bytes = u32::MAX;
        let lines = lines(&drive, 12);
        assert!(lines.starts_with("drive       a[: ") && !lines.contains('\x1b'), "{lines:?}");
        assert_eq!(facts(&drive)["profile"], "a[");
        assert_eq!(facts(&drive)["blocks"].as_array().unwrap().len(), 1);
    }
}
