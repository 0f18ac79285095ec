//! The drive: Table 4's, with a geometry of ours, and what it can do in closed form.

use crate::error::LabError;
use nvmed_flash::{ArrayProfile, BLOCK_WORDS, Flash, Medium, Profile, UNIT_BYTES, UrgentProfile};
use nvmed_stack::{DriveProfile, Figures, Work};

/// The profile, and our assumption about it: dies on each of its channels.
const PROFILE: &str = "hmbio";
const CHANNEL_DIES: u32 = 2;
/// The part of the data that is there: places are chosen at random, and do not know how many there are.
const PART: u64 = 8;
/// Commands that the controller has fetched: twice the dies, and the paper's 16,384 entries less the 14,890 that wait.
pub(super) const WINDOWS: [u32; 2] = [32, 1494];

/// Places that are kept for urgent commands, where any are.
const PLACES: u32 = 16;

/// What a drive does for urgent pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inside {
    /// It has places beyond the window, for them alone.
    pub has_places: bool,
    /// They are the first at registers, cells and buses.
    pub is_ranked: bool,
    /// Each die has a second register, for them alone.
    pub has_register: bool,
    /// What is in a die in which one of them waits passes the bus before others.
    pub inherits: bool,
    /// Percent of a die's and of a channel's time that they may have beside others; 100: all.
    pub share_percent: u32,
}

impl Inside {
    /// Nothing: the order of fetches is all that makes them urgent.
    pub(super) const PLAIN: Self = Self {
        has_places: false,
        is_ranked: false,
        has_register: false,
        inherits: false,
        share_percent: 100,
    };
    /// Places of their own, and the first rank everywhere.
    pub(super) const FIRST: Self = Self { has_places: true, is_ranked: true, ..Self::PLAIN };
    /// Besides, a register of their own, and the bus for what is before them.
    pub(super) const REGISTER: Self = Self { has_register: true, inherits: true, ..Self::FIRST };

    /// In a word, behind the name of a path.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PLAIN => "",
            Self::FIRST => " first",
            Self::REGISTER => " register",
            _ => " capped",
        }
    }

    fn profile(self) -> Option<UrgentProfile> {
        (self != Self::PLAIN).then_some(UrgentProfile {
            places: if self.has_places { PLACES } else { 0 },
            rank: self.is_ranked,
            register: self.has_register,
            inherit: self.inherits,
            share_percent: self.share_percent,
        })
    }
}

/// A drive that takes so many commands.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub profile: Profile,
    /// Logical units; each has data.
    pub units: u64,
    /// Units of a block, and blocks of a plane that have data.
    block_units: u32,
    plane_blocks: u32,
    times: Times,
}

/// What its operations take, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub cell_ns: u64,
    pub program_ns: u64,
    pub out_ns: u64,
    pub in_ns: u64,
    pub channels: u32,
    pub channel_dies: u32,
}

impl Device {
    /// The drive with a fetch window, which does nothing for urgent pages.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub(super) fn new(window: u32) -> Result<Self, LabError> {
        Self::with(window, Inside::PLAIN)
    }

    /// The drive with a fetch window, and what it does for urgent pages.
    ///
    /// # Errors
    /// The profile is not what this expects.
    pub(super) fn with(window: u32, inside: Inside) -> Result<Self, LabError> {
        Self::of_part(window, inside, PART)
    }

    /// As [`Self::with`], with such a part of the data.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub(super) fn of_part(window: u32, inside: Inside, part: u64) -> Result<Self, LabError> {
        let failed = |error: nvmed_stack::ProfileFault| LabError::missing(error.to_string());
        let named = DriveProfile::named(PROFILE).map_err(failed)?;
        let mut profile = named.drive(named.usual_bytes()).map_err(failed)?;
        profile.commands = window;
        let Medium::Array(array) = &mut profile.medium else {
            return Err(LabError::missing(format!("the profile {PROFILE} has no dies")));
        };
        let block_units = array.blocks[0].units();
        let blocks = array.blocks[0].per_plane * array.planes_total();
        let spare = blocks - array.logical_units().div_ceil(block_units.into()) as u32;
        (array.chips, array.dies, array.planes) = (CHANNEL_DIES, 1, 1);
        (array.registers, array.urgent) = (1 + u32::from(inside.has_register), inside.profile());
        let planes = array.planes_total();
        // Whole blocks on each plane.
        let plane_blocks = (array.logical_units() / part / u64::from(planes * block_units)) as u32;
        let units = u64::from(plane_blocks) * u64::from(planes * block_units);
        array.capacity_bytes = units * UNIT_BYTES;
        array.blocks[0].per_plane = plane_blocks + spare / planes;
        let times = Times::of(array);
        Ok(Self { profile, units, block_units, plane_blocks, times })
    }

    pub(super) fn times(&self) -> Times {
        self.times
    }

    /// The drive when all of its units were written once, one after another.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn filled(&self) -> Result<Flash, LabError> {
        let failed = |error: String| LabError::missing(format!("no drive of the profile {PROFILE}: {error}"));
        let mut flash = Flash::new(&self.profile).map_err(|error| failed(error.to_string()))?;
        let Medium::Array(array) = &self.profile.medium else { return Ok(flash) };
        let planes = array.planes_total();
        let (per_plane, rows) = (array.blocks[0].per_plane, array.blocks[0].rows());
        // Neighbours are on other planes.
        let place = |unit: u32| unit % planes * per_plane * self.block_units + unit / planes;
        let map: Vec<u32> = (0..self.units as u32).map(place).collect();
        let mut blocks = Vec::with_capacity((planes * per_plane) as usize * BLOCK_WORDS);
        for _ in 0..planes {
            blocks.extend((0..per_plane).flat_map(|at| [0, if at < self.plane_blocks { rows } else { 0 }]));
        }
        flash.restore(&map, &blocks, &[], false).map_err(|error| failed(error.to_string()))?;
        Ok(flash)
    }

    /// Reads of 4 KiB a second at saturation, in closed form.
    pub(super) fn saturated_per_s(&self) -> f64 {
        let figures = Figures::of(&self.profile);
        figures.map_or(f64::NAN, |figures| figures.rate(Work::RandomRead) / UNIT_BYTES as f64)
    }

    /// What a window reaches of that: its commands are at random on so many buses, of which some have none.
    pub(super) fn reached_per_s(&self) -> f64 {
        let (window, channels) = (f64::from(self.profile.commands), f64::from(self.times.channels));
        self.saturated_per_s() * window / (window + channels - 1.0)
    }
}

impl Times {
    fn of(array: &ArrayProfile) -> Self {
        let kind = &array.blocks[0];
        Self {
            cell_ns: kind.read_ns[0],
            program_ns: kind.program_ns[0],
            out_ns: array.bus_out.time_of(kind.page_bytes),
            in_ns: array.bus_in.time_of(kind.page_bytes),
            channels: array.channels,
            channel_dies: array.chips * array.dies,
        }
    }

    /// The part of the dies' time, or of the buses' if that is more, that so many pages took.
    pub(super) fn busier_share(&self, is_write: bool, pages: f64, span_ns: u64) -> f64 {
        let (die_ns, bus_ns) =
            if is_write { (self.program_ns, self.in_ns) } else { (self.cell_ns, self.out_ns) };
        let of_dies = die_ns as f64 / f64::from(self.channels * self.channel_dies);
        let of_buses = bus_ns as f64 / f64::from(self.channels);
        pages * of_dies.max(of_buses) / span_ns as f64
    }

    /// Reads that a channel cannot do for a program, at saturation: of the transfer all that the bus could; while the
    /// die programs, what the other dies do not make up for.
    pub(super) fn reads_for_program(&self) -> f64 {
        let bus = 1.0 / self.out_ns as f64;
        let others = f64::from(self.channel_dies - 1) / (self.cell_ns + self.out_ns) as f64;
        self.in_ns as f64 * bus + self.program_ns as f64 * (bus - others).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drive_is_the_papers_with_two_dies_a_channel() {
        let device = Device::new(WINDOWS[0]).unwrap();
        let times = device.times();
        assert_eq!(
            (times.cell_ns, times.program_ns, times.out_ns, times.in_ns),
            (40_000, 800_000, 60_000, 40_000)
        );
        assert_eq!((times.channels, times.channel_dies), (8, 2));
        // A bus of 60 us a page, eight times.
        assert!((device.saturated_per_s() - 133_333.3).abs() < 1.0, "{}", device.saturated_per_s());
        assert!((device.reached_per_s() / device.saturated_per_s() - 32.0 / 39.0).abs() < 1e-9);
        let flash = device.filled().unwrap();
        assert_eq!(flash.mapped_units(), Some(device.units));
    }
}
