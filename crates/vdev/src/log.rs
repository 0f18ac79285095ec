//! Log pages (Base 2.0, 5.16).

use crate::controller::Controller;
use crate::features::TEMPERATURE_K;
use nvmed_nvme::{AdminOpcode, DriveLog, LogPage, SmartLog};
use zerocopy::IntoBytes;

impl Controller {
    /// The bytes of a log page, whole.
    pub(crate) fn log_page(&self, page: LogPage) -> Option<Vec<u8>> {
        match page {
            LogPage::SUPPORTED => Some(supported(self.drive_log().is_some())),
            LogPage::ERROR => Some(self.errors.lock().encode()),
            LogPage::SMART => Some(self.smart_log().as_bytes().to_vec()),
            LogPage::FIRMWARE => Some(firmware_slots()),
            LogPage::CHANGED_NAMESPACES => Some(self.changed_namespaces()),
            LogPage::EFFECTS => Some(effects(self.config.hmb_io_slots > 0)),
            LogPage::DRIVE => self.drive_log().map(|log| log.as_bytes().to_vec()),
            _ => None,
        }
    }

    fn smart_log(&self) -> SmartLog {
        let counters = self.counters();
        let mut log = SmartLog::default();
        log.critical_warning = u8::from(self.admin.lock().features.temperature_warning()) << 1;
        log.temperature = TEMPERATURE_K.to_le_bytes();
        log.available_spare = 100;
        log.spare_threshold = 10;
        log.data_units_read[0] = counters.bytes_read.div_ceil(512_000);
        log.data_units_written[0] = counters.bytes_written.div_ceil(512_000);
        // Compare reads, as the specification counts.
        log.host_reads[0] = counters.reads + counters.compares;
        log.host_writes[0] = counters.writes;
        log.power_cycles[0] = 1;
        log.media_errors[0] = counters.media_errors;
        self.tell_drive(&mut log);
        log.error_entries[0] = self.errors.lock().count();
        log
    }

    /// What a drive of flash memory knows of itself.
    fn drive_log(&self) -> Option<DriveLog> {
        let state = self.drive.as_ref()?.state.lock();
        let (counts, wear) = (state.flash.counts(), state.flash.wear());
        (wear.blocks > 0).then(|| {
            let mut log = DriveLog::default();
            log.host_units = counts.host_units;
            log.programmed_units = counts.programmed_units;
            log.moved_units = counts.moved_units;
            log.programs = counts.programs;
            log.page_reads = counts.page_reads;
            log.erases = counts.erases;
            log.erases_min = wear.erases_min.into();
            log.erases_max = wear.erases_max.into();
            log.blocks = wear.blocks.into();
            log.bad_blocks = wear.bad_blocks.into();
            log.host_memory_bytes = state.host_memory_bytes();
            (log.host_puts, log.host_gets) = (counts.host_puts, counts.host_gets);
            log.host_given_up = state.host_memory.given_up;
            log.hmb_io_slots = state.hmb_io_granted().slots.into();
            let counts = state.hmb_io_counts;
            (log.hmb_io_reads, log.hmb_io_writes) = (counts.reads, counts.writes);
            (log.hmb_io_errors, log.hmb_io_ended) = (counts.errors, counts.ended);
            log
        })
    }

    /// What a drive knows of its wear, and of its life.
    fn tell_drive(&self, log: &mut SmartLog) {
        let Some(drive) = &self.drive else { return };
        {
            let state = drive.state.lock();
            let wear = state.flash.wear();
            if wear.blocks > 0 {
                log.available_spare = wear.spare_percent as u8;
                log.percentage_used = wear.used_percent.min(255) as u8;
            }
            log.critical_warning |= u8::from(log.available_spare < log.spare_threshold);
            log.critical_warning |= u8::from(state.kept.as_ref().is_some_and(|kept| !kept.is_whole())) << 2;
            log.critical_warning |= u8::from(state.flash.is_read_only()) << 3;
        }
        let Some(life) = self.life() else { return };
        log.data_units_read[0] = life.bytes_read.div_ceil(512_000);
        log.data_units_written[0] = life.bytes_written.div_ceil(512_000);
        log.host_reads[0] = life.reads;
        log.host_writes[0] = life.writes;
        log.power_cycles[0] = life.power_cycles;
        log.power_on_hours[0] = life.seconds / 3600;
        log.unsafe_shutdowns[0] = life.unsafe_shutdowns;
        log.media_errors[0] = life.media_errors;
    }
}

/// Supported Log Pages: a dword a page, bit 0 set.
fn supported(drive: bool) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    for page in 0..=5 {
        bytes[4 * page] = 1;
    }
    bytes[4 * usize::from(LogPage::DRIVE.0)] = u8::from(drive);
    bytes
}

/// Firmware Slot Information: slot 1 is active and holds this version.
fn firmware_slots() -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[0] = 1;
    bytes[8..16].copy_from_slice(&crate::identify::FIRMWARE);
    bytes
}

/// Commands Supported and Effects: a dword a command, admin first, then I/O from 1024; bit 0: supported,
/// bit 1: changes data.
fn effects(has_hmb_io: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for opcode in [0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x19, 0x1a] {
        bytes[4 * opcode] = 1;
    }
    bytes[4 * AdminOpcode::HmbIo as usize] = if has_hmb_io { 3 } else { 0 };
    for (opcode, effect) in [(0x00, 1), (0x01, 3), (0x02, 1), (0x05, 1), (0x08, 3), (0x09, 3)] {
        bytes[1024 + 4 * opcode] = effect;
    }
    bytes
}
