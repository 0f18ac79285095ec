//! The host memory buffer as a cache of the mapping table: reads at random beside the formula of hit rates.

use crate::cell::Cell;
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use nvmed_dice::Dice;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_flash::{Medium, Profile, UNIT_BYTES};
use nvmed_io::{Binding, Device, DeviceOptions, Handle, IoError, Segment};
use nvmed_nvme::{DriveLog, LogPage};
use nvmed_stack::DriveProfile;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Clock, Controller, ControllerConfig, HostMemoryConfig, InProcess, Media};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// The profile, whose map is put into flash here.
const PROFILE: &str = "tlc";
/// Bytes of the drive, in a short run and in a whole one: small, so that its map is read often.
const BYTES: [u64; 2] = [256 << 20, 1 << 30];
/// The mapping table over the part of it for which the drive has memory.
const TABLE_OVER_DRAM: u64 = 8;
/// Bytes of an entry of the table.
const ENTRY_BYTES: u64 = 4;
/// What the host lends, over that memory: none, a part, and the rest of the table.
const LENT_OVER_DRAM: [u64; 4] = [0, 1, 3, 7];
/// Reads that are measured, likewise, and reads before them for each page of the map.
const READS: [u64; 2] = [20_000, 100_000];
const READS_BEFORE: u64 = 32;
/// Bytes of a request of what fills the drive.
const FILL_BYTES: u32 = 1 << 20;
const SEED: u64 = 1;

/// Columns.
const MEAN: &str = "mean us, found over formula";
const GETS: &str = "map pages from the host's memory, % of reads";

/// A drive whose memory has room for a part of its map.
fn drive(bytes: u64) -> Result<Profile, LabError> {
    let failed = |error: nvmed_stack::ProfileFault| LabError::missing(error.to_string());
    let named = DriveProfile::named(PROFILE).map_err(failed)?;
    let dram_bytes = bytes / UNIT_BYTES * ENTRY_BYTES / TABLE_OVER_DRAM;
    // The last section of the profile is that of the translation layer.
    let text = format!("{}\nmap_cache_bytes = {dram_bytes}\nmap_entry_bytes = {ENTRY_BYTES}\n", named.text());
    DriveProfile::read(PROFILE, &text).and_then(|profile| profile.drive(bytes)).map_err(failed)
}

/// What a read takes, by the formula, in nanoseconds.
struct Formula {
    /// All of the map at hand, on an idle drive.
    idle_ns: f64,
    /// One more page operation, for the map.
    map_read_ns: f64,
    /// A slot's way from the host.
    get_ns: f64,
    /// Pages of the table, and those for which the drive has memory.
    table: u64,
    dram: u64,
}

impl Formula {
    fn of(profile: &Profile) -> Result<Self, LabError> {
        let nothing = || LabError::missing(format!("the profile {PROFILE} has no map in flash"));
        let Medium::Array(array) = &profile.medium else { return Err(nothing()) };
        let cache = array.translation.as_ref().and_then(|layer| layer.map_cache).ok_or_else(nothing)?;
        let cells = &array.blocks[0].read_ns;
        let cells_ns = cells.iter().sum::<u64>() as f64 / cells.len() as f64;
        let map_read_ns = cells_ns + array.bus_out.time_of(UNIT_BYTES) as f64;
        Ok(Self {
            idle_ns: array.command_ns as f64 + map_read_ns + array.link_out.time_of(UNIT_BYTES) as f64,
            map_read_ns,
            get_ns: (array.link_in.time_of(UNIT_BYTES) + array.host_memory_ns) as f64,
            table: array.map_pages(),
            dram: cache.pages(),
        })
    }

    /// The part of the table that is in memory of so many pages that the host has lent. One of its slots has none of it
    /// when a read looks: what leaves the cache has taken it, before what comes from another one has left that.
    fn lent(&self, pages: u64) -> f64 {
        pages.saturating_sub(1) as f64 / self.table as f64
    }

    /// Each page of the table is as likely as any other, so a part of it that is held somewhere is hit as often.
    fn mean_ns(&self, pages: u64) -> f64 {
        let in_dram = self.dram as f64 / self.table as f64;
        let nowhere = 1.0 - in_dram - self.lent(pages);
        self.idle_ns + self.lent(pages) * self.get_ns + nowhere * self.map_read_ns
    }
}

/// A full drive in simulated time, and our driver, which has lent it what it asks for.
struct Rig {
    device: Arc<Device>,
    handle: Handle,
    memory: Segment,
    units: u64,
}

impl Rig {
    fn new(profile: &Profile, bytes: u64, lent_pages: u64) -> Result<Self, LabError> {
        let failed = |what: String| LabError::missing(format!("no drive with a map in flash: {what}"));
        let lent = HostMemoryConfig {
            bytes: lent_pages * UNIT_BYTES,
            bytes_min: lent_pages * UNIT_BYTES,
            entries_max: 16,
            map_percent: 100,
            read_percent: 0,
            write_percent: 0,
        };
        let config = ControllerConfig {
            clock: Clock::Virtual,
            lba_bytes: UNIT_BYTES as u32,
            drive: Some(profile.clone()),
            host_memory: (lent_pages > 0).then_some(lent),
            ..ControllerConfig::default()
        };
        let media = Media::null(bytes).map_err(|error| failed(error.to_string()))?;
        let transport =
            InProcess::new(Controller::new(config, media)).map_err(|error| failed(error.to_string()))?;
        let engine = NvmeEngine::open(Arc::new(transport)).map_err(|error| failed(error.to_string()))?;
        let options = DeviceOptions { queues: 1, depth: 2 };
        let device = Device::open(Arc::new(engine), options).map_err(|error| failed(error.to_string()))?;
        let memory = Mapping::anonymous(FILL_BYTES as usize, Pages::Base);
        let memory = memory.map_err(|errno| LabError::Host { what: "memory".to_owned(), errno })?;
        let address = device.map(Arc::new(memory)).map_err(|error| failed(error.to_string()))?;
        let handle = device.handle(Binding::Queue(0));
        let memory = Segment { address, bytes: FILL_BYTES };
        let rig = Self { device, handle, memory, units: bytes / UNIT_BYTES };
        rig.fill().map_err(|error| failed(error.to_string()))?;
        Ok(rig)
    }

    /// Writes every unit once, one after another.
    fn fill(&self) -> Result<(), IoError> {
        let step = u64::from(FILL_BYTES) / UNIT_BYTES;
        for unit in (0..self.units).step_by(step as usize) {
            self.handle.write(Lba(unit), &[self.memory], false)?;
        }
        self.handle.flush()
    }

    /// Reads units at random, one after another.
    fn read(&self, dice: &mut Dice, count: u64) -> Result<(), LabError> {
        let unit = [Segment { bytes: UNIT_BYTES as u32, ..self.memory }];
        for _ in 0..count {
            let read = self.handle.read(Lba(dice.roll(self.units)), &unit);
            read.map_err(|error| LabError::missing(format!("a read failed: {error}")))?;
        }
        Ok(())
    }

    /// Map pages that have come from the host's memory so far.
    fn gets(&self) -> Result<u64, LabError> {
        let mut log = DriveLog::new_zeroed();
        let read = self.device.engine().log_page(LogPage::DRIVE.0, log.as_mut_bytes());
        read.map_err(|error| LabError::missing(format!("the drive's log cannot be read: {error}")))?;
        Ok(log.host_gets)
    }

    /// What a read takes as the host sees it, in nanoseconds, and for how many of a hundred a map page comes from the
    /// host's memory.
    fn measure(&self, dice: &mut Dice, count: u64) -> Result<(f64, f64), LabError> {
        let (gets, begin) = (self.gets()?, self.device.engine().now_ns());
        self.read(dice, count)?;
        let (end, after) = (self.device.engine().now_ns(), self.gets()?);
        Ok(((end - begin) as f64 / count as f64, (after - gets) as f64 / count as f64 * 100.0))
    }
}

/// What a map in flash costs reads at random, with a host memory buffer and without.
pub(super) struct MapFormula;

impl Experiment for MapFormula {
    fn id(&self) -> &'static str {
        "hmb.map_formula"
    }

    fn what(&self) -> &'static str {
        "reads at random of a drive with memory for an eighth of its map, by how much the host lends: mean over formula"
    }

    fn goal(&self) -> Goal {
        Goal::Within(3.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let size = usize::from(!effort.quick);
        let profile = drive(BYTES[size])?;
        let formula = Formula::of(&profile)?;
        let mut cells = Vec::new();
        for over_dram in LENT_OVER_DRAM {
            let lent = over_dram * formula.dram;
            let rig = Rig::new(&profile, BYTES[size], lent)?;
            let mut dice = Dice::new(SEED);
            // All that is dirty is written out, and what the host has lent is full.
            rig.read(&mut dice, READS_BEFORE * formula.table)?;
            let (mean_ns, gets) = rig.measure(&mut dice, READS[size])?;
            let row = format!("host memory {over_dram} x the drive's");
            cells.push(Cell::new(&row, MEAN, formula.mean_ns(lent) / 1e3, mean_ns / 1e3));
            cells.push(Cell::new(&row, GETS, formula.lent(lent) * 100.0, gets));
        }
        let method = format!(
            "profile {PROFILE}, {} MiB, full, in simulated time, our driver: {} reads of 4 KiB at random, one after \
             another; a table of {} pages of 4 KiB, memory of the drive for {}; formula: {:.2} us alone, {:.2} us of a \
             map page in flash, {:.2} us of one in the host's memory",
            BYTES[size] >> 20,
            READS[size],
            formula.table,
            formula.dram,
            formula.idle_ns / 1e3,
            formula.map_read_ns / 1e3,
            formula.get_ns / 1e3
        );
        let limits = vec![
            "the host's part of a read is some looks at the clock, 50 ns each; its processor time is not in it"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_saves_what_the_formula_says() {
        let outcome = crate::run(&MapFormula, &Effort { quick: true });
        assert!(outcome.met, "{}", outcome.line());
        let means: Vec<f64> =
            outcome.cells.iter().filter(|cell| cell.column == MEAN).map(|cell| cell.ours).collect();
        assert!(means.len() == LENT_OVER_DRAM.len() && means.is_sorted_by(|a, b| a > b), "{means:?}");
    }
}
