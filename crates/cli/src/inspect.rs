//! `nvmed fsck`, `info` and `trim`: what a device is, holds, and whether it is sound.

use crate::arguments::{Fsck, Info, Trim};
use crate::clock;
use crate::drive::{self, buffer_facts, buffer_line};
use crate::failure::{Failure, Status};
use crate::format::refuse_read_only;
use crate::location::Location;
use crate::output::Output;
use crate::volume::{Use, Volumes};
use nvmed_check::Finding;
use nvmed_engine::EngineError;
use nvmed_fs::{FileSystem, FsError, LayoutError, Superblock, VERSION};
use nvmed_io::{Device, Source, UrgentPath};
use nvmed_nvme::DriveIdentity;
use nvmed_stack::{DeviceSpec, Open};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;

/// Discards the free space of a file system, and says how much it was.
///
/// # Errors
/// The device cannot be mounted, or knows no such command.
pub fn trim(arguments: &Trim) -> Result<(), Failure> {
    let mut volumes = Volumes::default();
    let location = Location::parse_device(&arguments.device)?;
    let Location::Device { name, .. } = &location else { return Ok(()) };
    let told = volumes.at(&location, Use::Write)?.files().trim(arguments.minimum);
    let told = told.map_err(|error| Failure::device(name, &error))?;
    let mut out = Output::new();
    out.text(&format!("{name}: {} of free space are the device's to reuse\n", size(told)))?;
    out.finish()?;
    volumes.unmount()
}

/// A size with the unit in which it has one to four digits before the point.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

/// What `info` tells.
struct Facts {
    name: String,
    spec: DeviceSpec,
    device: Arc<Device>,
    /// Version of the specification, if it is an NVMe device.
    nvme: Option<String>,
    /// What it says of itself, if it is a virtual drive.
    drive: Option<DriveIdentity>,
    /// Bytes of the host's memory that it would like.
    host_memory_bytes: u64,
    /// The way of urgent requests.
    urgent: UrgentPath,
    files: Result<Superblock, FsError>,
}

/// Shows a device's controller, namespace and file system; it need not hold one.
///
/// # Errors
/// The device cannot be opened, or does not say what it is.
pub fn info(arguments: &Info) -> Result<(), Failure> {
    let location = Location::parse_device(&arguments.device)?;
    let Location::Device { name, spec, .. } = location else {
        return Err(Failure::usage(format!("info: {location}: not a device")));
    };
    let device = nvmed_stack::open_device(&spec, Open::Existing { locked_by_run: false })?;
    let (nvme, drive, host_memory_bytes) = match device.engine().identify_controller() {
        // Base 2.0, 3.1.3.2: major, minor and tertiary version number.
        Ok(page) => (
            Some(format!("{}.{}.{}", page.ver >> 16, page.ver >> 8 & 0xff, page.ver & 0xff)),
            DriveIdentity::of(&page.vendor),
            u64::from(page.hmpre) * 4096,
        ),
        Err(EngineError::Unsupported { .. }) => (None, None, 0),
        Err(error) => return Err(Failure::new(Status::Failed, format!("{name}: {error}"))),
    };
    let files = FileSystem::probe(&device);
    // Made and not only looked up: a device may have no queue left for it.
    let urgent = device.expect_urgent(Source::Told);
    let facts = Facts { name, spec: *spec, device, nvme, drive, host_memory_bytes, urgent, files };
    let mut out = Output::new();
    out.text(&if arguments.json { facts.json() } else { facts.page() })?;
    out.finish()?;
    let ended = facts.device.shutdown();
    ended.map_err(|error| Failure::new(Status::Failed, format!("{}: {error}", facts.name)))
}

/// What a path of urgent requests is, in a line.
fn path(path: UrgentPath) -> String {
    let what = match path {
        UrgentPath::HmbIo { slots, slot_bytes } => {
            return format!("{path}: {slots} slots of {} in the host's memory", size(slot_bytes.into()));
        }
        UrgentPath::Wrr => "a queue of the class urgent",
        UrgentPath::Reserved => "a queue of their own, of no rank",
        UrgentPath::None => "the queues of all others",
    };
    format!("{path}: {what}")
}

impl Facts {
    /// What the device has of the host's memory, if it would like any.
    fn host_memory(&self) -> String {
        let has = self.device.engine().host_memory();
        match (self.host_memory_bytes, has.bytes) {
            (0, _) => String::new(),
            (wanted, 0) => {
                format!("            would like {} of the host's memory, and has none\n", size(wanted))
            }
            (wanted, bytes) => format!(
                "            would like {} of the host's memory, and has {} in {} ranges\n",
                size(wanted),
                size(bytes),
                has.ranges
            ),
        }
    }

    fn page(&self) -> String {
        let geometry = self.device.geometry();
        let files = match &self.files {
            Ok(files) => format!(
                "format {VERSION}, label \"{}\", UUID {}, made {} UTC\n            {} of {} blocks for metadata, {} \
                 for data; zone bound {}",
                files.label,
                uuid(&files.uuid),
                clock::date(files.created_ns),
                files.meta_blocks,
                files.blocks,
                files.data_blocks,
                files.zone_bound
            ),
            Err(error) => format!("none: {error}"),
        };
        format!(
            "device      {}\ncontroller  {}{}, serial {}, firmware {}\n            \
             {} I/O queues of {} commands, {} a command, {} write cache\n            \
             urgent requests go by {}\n\
             {}{}{}namespace   {} in {} LBAs of {} bytes\nfile system {files}\n",
            self.name,
            self.nvme.as_ref().map_or(String::new(), |version| format!("NVMe {version}, ")),
            geometry.model,
            geometry.serial,
            geometry.firmware,
            geometry.queues_max,
            geometry.queue_depth_max,
            size(u64::from(geometry.transfer_bytes_max)),
            if geometry.volatile_write_cache { "volatile" } else { "no volatile" },
            path(self.urgent),
            self.drive.as_ref().map(|of| drive::lines(of, 12)).unwrap_or_default(),
            buffer_line(&self.spec, 12),
            self.host_memory(),
            size(geometry.bytes()),
            geometry.lba_count,
            geometry.lba_bytes,
        )
    }

    fn json(&self) -> String {
        let geometry = self.device.geometry();
        let mut facts = json!({
            "device": self.name,
            "model": geometry.model,
            "serial": geometry.serial,
            "firmware": geometry.firmware,
            "queues": geometry.queues_max,
            "queue_depth": geometry.queue_depth_max,
            "transfer_bytes": geometry.transfer_bytes_max,
            "volatile_write_cache": geometry.volatile_write_cache,
            "urgent_path": self.urgent.to_string(),
            "lba_bytes": geometry.lba_bytes,
            "lba_count": geometry.lba_count,
        });
        if let Some(version) = &self.nvme {
            facts["nvme"] = json!(version);
        }
        if let Some(buffer) = buffer_facts(&self.spec) {
            facts["buffer"] = buffer;
        }
        if let Some(of) = &self.drive {
            facts["drive"] = drive::facts(of);
        }
        if self.host_memory_bytes > 0 {
            let has = self.device.engine().host_memory();
            facts["host_memory"] =
                json!({ "wanted_bytes": self.host_memory_bytes, "bytes": has.bytes, "ranges": has.ranges });
        }
        if let Ok(files) = &self.files {
            facts["file_system"] = json!({
                "version": VERSION,
                "label": files.label,
                "uuid": uuid(&files.uuid),
                "created_ns": files.created_ns,
                "blocks": files.blocks,
                "meta_blocks": files.meta_blocks,
                "data_blocks": files.data_blocks,
                "zone_bound": files.zone_bound,
            });
        }
        format!("{facts}\n")
    }
}

/// A UUID in its usual form (RFC 9562, 4).
fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Checks a file system that nobody has mounted, and says what it found: a line each, then a verdict.
///
/// # Errors
/// The device cannot be opened or read, or holds no file system of ours.
pub fn fsck(arguments: &Fsck) -> Result<ExitCode, Failure> {
    let location = Location::parse_device(&arguments.device)?;
    let Location::Device { name, spec, .. } = location else {
        return Err(Failure::usage(format!("fsck: {location}: not a device")));
    };
    let device = nvmed_stack::open_device(&spec, Open::Existing { locked_by_run: false })?;
    if let Some(directory) = &arguments.salvage {
        return crate::salvage::salvage(&name, &device, directory);
    }
    if arguments.repair {
        return repair(arguments, &name, &device);
    }
    let findings = nvmed_check::fsck(&device).map_err(|error| Failure::device(&name, &error.into()))?;
    let mut out = Output::new();
    for finding in &findings {
        out.text(&format!("{name}: {finding}\n"))?;
    }
    let beyond = findings.iter().any(|finding| matches!(finding, Finding::Store { .. }));
    let verdict = match findings.len() {
        _ if beyond => {
            "damaged; copy what can be read with `nvmed fsck --salvage DIR`, then format".to_owned()
        }
        0 => "clean".to_owned(),
        1 if findings.iter().all(|finding| matches!(finding, Finding::Copy(_))) => {
            "nothing is lost; a mount or `nvmed fsck --repair` writes the lost copy again".to_owned()
        }
        1 => "1 contradiction; `nvmed fsck --repair` puts it right".to_owned(),
        many => format!("{many} contradictions; `nvmed fsck --repair` puts them right"),
    };
    out.text(&format!("{name}: {verdict}\n"))?;
    out.finish()?;
    let ended = device.shutdown();
    ended.map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))?;
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(Status::Failed as u8) })
}

/// Says what is wrong and what becomes of it, and does it.
fn repair(arguments: &Fsck, name: &str, device: &Arc<Device>) -> Result<ExitCode, Failure> {
    let fail = |error: LayoutError| Failure::device(name, &error.into());
    let plan = nvmed_check::plan_repair(device).map_err(|error| beyond_repair(name, error))?;
    let mut out = Output::new();
    for line in plan.lines() {
        out.text(&format!("{name}: {line}\n"))?;
    }
    let wrong = plan.lines().len();
    let unreadable = plan.unreadable().to_vec();
    for line in &unreadable {
        out.text(&format!("{name}: {line}\n"))?;
    }
    let (written, removed) = plan.records();
    if wrong == 0 {
        out.text(&format!("{name}: clean\n"))?;
    } else if arguments.dry_run {
        out.text(&format!(
            "{name}: {written} records would be written, {removed} removed; nothing was changed\n"
        ))?;
    } else {
        // The plan is there to be read whatever becomes of it.
        out.finish()?;
        refuse_read_only("fsck", name, device)?;
        plan.carry_out(device).map_err(fail)?;
        let left = nvmed_check::fsck(device).map_err(fail)?;
        out = Output::new();
        for finding in &left {
            out.text(&format!("{name}: still: {finding}\n"))?;
        }
        if !left.is_empty() {
            out.finish()?;
            return Err(Failure::new(
                Status::Failed,
                format!("fsck: {name}: {} contradictions are left", left.len()),
            ));
        }
        let but = match unreadable.len() {
            0 => String::new(),
            count => format!(", but {count} of the files named above cannot be copied out whole"),
        };
        out.text(&format!("{name}: repaired: {written} records written, {removed} removed; clean{but}\n"))?;
    }
    out.finish()?;
    let ended = device.shutdown();
    ended.map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))?;
    let done = (wrong == 0 || !arguments.dry_run) && unreadable.is_empty();
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::from(Status::Failed as u8) })
}

/// A damaged metadata store says so, and what is left to do.
fn beyond_repair(name: &str, error: LayoutError) -> Failure {
    let is_corrupt = matches!(error, LayoutError::Store(nvmed_kv::KvError::Corrupt { .. }));
    let failure = Failure::device(name, &error.into());
    if !is_corrupt {
        return failure;
    }
    let message = format!(
        "{}; a repair cannot put that right and has changed nothing: copy what can be read with `nvmed fsck --salvage \
         DIR {name}`, then format",
        failure.message
    );
    Failure::new(Status::Device, message)
}
