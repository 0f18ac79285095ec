//! `nvmed smart`: a device's own account of its health (SMART / Health Information; Base 2.0, 5.16.1.3).

use crate::arguments::Smart;
use crate::failure::{Failure, Status};
use crate::identify::celsius;
use crate::inspect::size;
use crate::location::parse_spec;
use crate::output::Output;
use nvmed_engine::EngineError;
use nvmed_nvme::{DriveLog, LogPage, SmartLog};
use nvmed_stack::Open;
use serde_json::{Value, json};
use zerocopy::{FromZeros, IntoBytes};

/// Critical warnings (figure 207, byte 0).
const WARNINGS: [&str; 6] = [
    "spare space is below its threshold",
    "a temperature is out of range",
    "reliability is degraded",
    "the medium is read-only",
    "the backup of volatile memory has failed",
    "the persistent memory region is read-only or unreliable",
];
/// Bytes of the unit in which data is counted.
const UNIT_BYTES: u128 = 512_000;

/// Shows a device's health log.
///
/// # Errors
/// It cannot be opened, has no such log, or does not answer.
pub fn smart(arguments: &Smart) -> Result<(), Failure> {
    let name = arguments.device.to_string_lossy().into_owned();
    let spec = parse_spec(&name)?;
    let engine = nvmed_stack::open_engine(&spec, Open::Existing { locked_by_run: false })?;
    let mut log = SmartLog::new_zeroed();
    engine.log_page(LogPage::SMART.0, log.as_mut_bytes()).map_err(|error| match error {
        EngineError::Unsupported { .. } => Failure::new(
            Status::Failed,
            format!("{name}: a health log is not offered by engine {}: no NVMe commands", spec.engine()),
        ),
        error => Failure::new(Status::Failed, format!("{name}: health log: {error}")),
    })?;
    let mut drive = DriveLog::new_zeroed();
    // Other devices have another page there, or none.
    let answered = engine.log_page(LogPage::DRIVE.0, drive.as_mut_bytes()).is_ok();
    let drive = Some(drive).filter(|drive| answered && drive.is_whole());
    let mut out = Output::new();
    out.text(&match (arguments.json, &drive) {
        (true, drive) => facts(&name, &log, drive.as_ref()),
        (false, drive) => page(&name, &log) + &drive.as_ref().map(flash_line).unwrap_or_default(),
    })?;
    out.finish()?;
    engine.shutdown().map_err(|error| Failure::new(Status::Failed, format!("{name}: {error}")))
}

/// What a virtual drive says of its flash.
fn flash_line(log: &DriveLog) -> String {
    let amplification = log
        .amplification()
        .map_or("nothing written yet".to_owned(), |of| format!("write amplification {of:.2}"));
    format!(
        "flash        {amplification}; {} erases, {} to {} of a block; {} of {} blocks bad\n",
        log.erases, log.erases_min, log.erases_max, log.bad_blocks, log.blocks
    ) + &host_memory_line(log)
        + &hmb_io_line(log)
}

/// What it does with its host's memory, if it has any, or had.
fn host_memory_line(log: &DriveLog) -> String {
    if (log.host_memory_bytes, log.host_given_up) == (0, 0) {
        return String::new();
    }
    format!(
        "host memory  {} used; {} pages put there, {} taken from there; given up {} times\n",
        size(log.host_memory_bytes),
        log.host_puts,
        log.host_gets,
        log.host_given_up
    )
}

/// What has passed through slots of that memory, if anything has, or can.
fn hmb_io_line(log: &DriveLog) -> String {
    let done = [log.hmb_io_reads, log.hmb_io_writes, log.hmb_io_errors, log.hmb_io_ended];
    if log.hmb_io_slots == 0 && done == [0; 4] {
        return String::new();
    }
    let [reads, writes, errors, ended] = done;
    format!(
        "HMB-I/O      {} slots; {reads} reads, {writes} writes, {errors} failed, {ended} ended before\n",
        log.hmb_io_slots
    )
}

/// 128 bits, the low half first.
fn wide(halves: [u64; 2]) -> u128 {
    u128::from(halves[0]) | u128::from(halves[1]) << 64
}

/// The warnings that are raised.
fn warnings(log: &SmartLog) -> Vec<&'static str> {
    let raised = |(bit, _): &(usize, &&str)| log.critical_warning >> bit & 1 == 1;
    WARNINGS.iter().enumerate().filter(raised).map(|(_, text)| *text).collect()
}

/// Bytes in decimal units, as drives are sold.
fn amount(units: [u64; 2]) -> String {
    let mut value = wide(units).saturating_mul(UNIT_BYTES) as f64;
    for unit in ["B", "kB", "MB", "GB", "TB"] {
        if value < 1000.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} PB")
}

fn page(name: &str, log: &SmartLog) -> String {
    let raised = warnings(log);
    let health = if raised.is_empty() { "no warning".to_owned() } else { raised.join("; ") };
    let kelvin = u16::from_le_bytes(log.temperature);
    let temperature = if kelvin == 0 { "not measured".to_owned() } else { celsius(kelvin) };
    format!(
        "device       {name}\nhealth       {health}\ntemperature  {temperature}\n\
         wear         {} % of its life used; spare space {} %, threshold {} %\n\
         read         {} in {} commands\nwritten      {} in {} commands\n\
         errors       {} of the medium, {} in the error log\n\
         power        {} cycles, {} hours, {} unsafe shutdowns; busy {} minutes\n",
        log.percentage_used,
        log.available_spare,
        log.spare_threshold,
        amount(log.data_units_read),
        wide(log.host_reads),
        amount(log.data_units_written),
        wide(log.host_writes),
        wide(log.media_errors),
        wide(log.error_entries),
        wide(log.power_cycles),
        wide(log.power_on_hours),
        wide(log.unsafe_shutdowns),
        wide(log.busy_minutes),
    )
}

/// A count as JSON: exact up to 64 bits, which no device fills.
fn count(halves: [u64; 2]) -> Value {
    let value = wide(halves);
    u64::try_from(value).map_or_else(|_| Value::from(value as f64), Value::from)
}

fn facts(name: &str, log: &SmartLog, drive: Option<&DriveLog>) -> String {
    let mut facts = json!({
        "device": name,
        "critical_warning": log.critical_warning,
        "warnings": warnings(log),
        "temperature_kelvin": u16::from_le_bytes(log.temperature),
        "percentage_used": log.percentage_used,
        "available_spare": log.available_spare,
        "spare_threshold": log.spare_threshold,
        "data_units_read": count(log.data_units_read),
        "data_units_written": count(log.data_units_written),
        "host_reads": count(log.host_reads),
        "host_writes": count(log.host_writes),
        "busy_minutes": count(log.busy_minutes),
        "power_cycles": count(log.power_cycles),
        "power_on_hours": count(log.power_on_hours),
        "unsafe_shutdowns": count(log.unsafe_shutdowns),
        "media_errors": count(log.media_errors),
        "error_entries": count(log.error_entries),
    });
    if let Some(drive) = drive {
        facts["flash"] = json!({
            "write_amplification": drive.amplification(),
            "host_units": drive.host_units,
            "programmed_units": drive.programmed_units,
            "moved_units": drive.moved_units,
            "programs": drive.programs,
            "page_reads": drive.page_reads,
            "erases": drive.erases,
            "erases_min": drive.erases_min,
            "erases_max": drive.erases_max,
            "blocks": drive.blocks,
            "bad_blocks": drive.bad_blocks,
            "host_memory_bytes": drive.host_memory_bytes,
            "host_memory_puts": drive.host_puts,
            "host_memory_gets": drive.host_gets,
            "host_memory_given_up": drive.host_given_up,
            "hmb_io_slots": drive.hmb_io_slots,
            "hmb_io_reads": drive.hmb_io_reads,
            "hmb_io_writes": drive.hmb_io_writes,
            "hmb_io_errors": drive.hmb_io_errors,
            "hmb_io_ended": drive.hmb_io_ended,
        });
    }
    format!("{facts}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_128_bits_and_warnings_are_told() {
        let mut log = SmartLog::default();
        log.data_units_written = [0, 1];
        log.data_units_read = [2, 0];
        log.critical_warning = 0b1001;
        let text = page("d", &log);
        assert!(text.contains("read-only") && text.contains("spare space is below"), "{text}");
        assert!(text.contains("read         1.0 MB"), "{text}");
        assert!(facts("d", &log, None).contains("\"temperature_kelvin\":0"));
        log.data_units_written = [u64::MAX; 2];
        assert!(page("d", &log).contains("PB"), "a count at its end is no panic");
    }
}
