//! What a drive is like. Profiles are values: whoever assembles a drive reads them from where he keeps them.

use crate::rate::Rate;

/// Bytes of a logical unit: what the map has an entry for.
pub const UNIT_BYTES: u64 = 4096;
/// Bytes of a write, at most: the smallest buffer has room for it.
pub const WRITE_BYTES_MAX: u64 = 2 << 20;
/// Channels × chips × dies × planes, at most.
pub const PLANES_MAX: u32 = 4096;
/// Planes of one die, at most.
pub const DIE_PLANES_MAX: usize = 8;
/// Commands in the drive at once, at most.
pub const COMMANDS_MAX: u32 = 1 << 20;
/// Places for urgent commands, at most.
pub const URGENT_PLACES_MAX: u32 = 1 << 16;
/// Kinds of blocks in a plane, at most.
pub const KINDS_MAX: usize = 4;
/// A read of the host's memory over PCIe, without its bytes. An assumption: of 64 bytes medians of 550 and 1,200 ns
/// were measured on two processors (Neugebauer et al., SIGCOMM 2018).
const HOST_MEMORY_NS: u64 = 900;
/// Most writes of a pack (JESD84-B451).
pub(crate) const PACKED_WRITES_MAX: u32 = 63;

/// A drive: what is common to all media, and the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Commands that the drive works on at once, 1 to [`COMMANDS_MAX`]; further ones wait in their queues.
    pub commands: u32,
    /// What takes time.
    pub medium: Medium,
}

/// What takes time in a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Medium {
    /// A latency, and one bandwidth for all.
    Fixed(FixedProfile),
    /// Dies behind buses.
    Array(Box<ArrayProfile>),
}

/// A medium that works on any number of commands at once. A command completes its latency after the last of its bytes
/// has passed, and bytes pass one command after another, in the order of their arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedProfile {
    /// Nanoseconds of a Read.
    pub read_ns: u64,
    /// Nanoseconds of everything else.
    pub write_ns: u64,
    /// What Reads and Writes share.
    pub link: Rate,
}

/// Dies of planes behind buses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayProfile {
    /// Bytes that a host sees; a multiple of [`UNIT_BYTES`].
    pub capacity_bytes: u64,
    /// Buses.
    pub channels: u32,
    /// Chips on a bus.
    pub chips: u32,
    /// Dies of a chip, each working by itself.
    pub dies: u32,
    /// Planes of a die, 1 to [`DIE_PLANES_MAX`].
    pub planes: u32,
    /// Page registers of a plane, 1 to 4.
    pub registers: u32,
    /// What each plane after the first adds to an operation of several.
    pub multi_plane_ns: u64,
    /// From a register to the controller.
    pub bus_out: Rate,
    /// From the controller to a register.
    pub bus_in: Rate,
    /// What a read transfers at least, and in multiples of: a code word. Divides [`UNIT_BYTES`].
    pub sector_bytes: u64,
    /// From the drive to the host.
    pub link_out: Rate,
    /// From the host to the drive.
    pub link_in: Rate,
    /// What a read of the host's memory takes before its bytes pass the link: the way there, and back.
    pub host_memory_ns: u64,
    /// From a command's arrival until it is looked at.
    pub command_ns: u64,
    /// After so long without a command the drive sleeps; 0 is never.
    pub low_power_ns: u64,
    /// Writes that wait and that the drive takes as one command, at most; 1: each by itself (JESD84-B451, packed
    /// commands).
    pub packed_writes: u32,
    /// What a sleeping drive adds to its next command.
    pub warm_up_ns: u64,
    /// How often in a row what waits may be overtaken.
    pub overtakes: u32,
    /// Kinds of blocks in each plane, by rising page size.
    pub blocks: Vec<BlockKind>,
    /// The translation layer; absent, pages are overwritten in place.
    pub translation: Option<TranslationProfile>,
    /// What urgent commands have of the drive; absent, they are as all others.
    pub urgent: Option<UrgentProfile>,
}

/// What a drive does for urgent commands (docs/flash.md, "Urgent commands").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrgentProfile {
    /// Urgent commands that the drive works on at once, beyond [`Profile::commands`]; 0: they have places of those.
    pub places: u32,
    /// They go first: at the host link, for room in the buffer, at planes, dies and buses.
    pub rank: bool,
    /// Of each plane's registers, at least 2, one is for their reads; only with `rank`.
    pub register: bool,
    /// What has a register of a plane for which one of their reads waits passes the bus before others; only with
    /// `rank`.
    pub inherit: bool,
    /// The percentage of a die's, and of a channel's, time that their reads may have while there are other commands, 1
    /// to 100 (no limit); less only with `rank`.
    pub share_percent: u32,
}

/// A rank, no places, no limit.
impl Default for UrgentProfile {
    fn default() -> Self {
        Self { places: 0, rank: true, register: false, inherit: false, share_percent: 100 }
    }
}

/// Blocks of one kind, in each plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockKind {
    /// Blocks in a plane.
    pub per_plane: u32,
    /// Bytes of a page; a multiple of [`UNIT_BYTES`].
    pub page_bytes: u64,
    /// Pages of a block.
    pub pages: u32,
    /// Pages that one program writes: a word line of cells with several bits.
    pub pages_per_program: u32,
    /// Nanoseconds from the cells to a register, by page; repeats over a block.
    pub read_ns: Vec<u64>,
    /// Nanoseconds from registers to the cells, by program; repeats over a block.
    pub program_ns: Vec<u64>,
    /// Nanoseconds of an erase.
    pub erase_ns: u64,
    /// Erases that a block survives; 0 is without limit.
    pub endurance: u32,
}

/// The flash translation layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslationProfile {
    /// Bytes of data that wait in memory to be programmed; 0: a write completes when it is programmed.
    pub buffer_bytes: u64,
    /// Whose valid units are moved.
    pub victim: Victim,
    /// A plane with so many free blocks, or fewer, is collected; at least 3.
    pub gc_blocks: u32,
    /// An idle drive collects until so many are free in each plane; 0 is not at all.
    pub gc_idle_blocks: u32,
    /// How long a drive is without a command before it collects.
    pub idle_ns: u64,
    /// How wear is spread.
    pub wear: Wear,
    /// Bad blocks from the start, in a million.
    pub bad_ppm: u32,
    /// Which ones.
    pub seed: u64,
    /// The map is in flash, and this much of it in memory; absent, all of it is in memory.
    pub map_cache: Option<MapCacheProfile>,
}

/// Memory for a part of the map, which is in flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCacheProfile {
    /// Bytes of it; whole map pages of [`UNIT_BYTES`] are used.
    pub bytes: u64,
    /// Bytes of an entry, 1 to [`UNIT_BYTES`].
    pub entry_bytes: u32,
}

impl MapCacheProfile {
    /// Entries of a map page.
    #[must_use]
    pub fn entries(&self) -> u64 {
        UNIT_BYTES / u64::from(self.entry_bytes)
    }

    /// Map pages that fit.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.bytes / UNIT_BYTES
    }
}

/// One plane behind a bus that takes no time, of one block kind ([`BlockKind`]'s default), without a translation layer
/// and of no capacity: what else a drive is, its maker says.
impl Default for ArrayProfile {
    fn default() -> Self {
        Self {
            capacity_bytes: 0,
            channels: 1,
            chips: 1,
            dies: 1,
            planes: 1,
            registers: 1,
            multi_plane_ns: 0,
            bus_out: Rate::UNLIMITED,
            bus_in: Rate::UNLIMITED,
            sector_bytes: 512,
            link_out: Rate::UNLIMITED,
            link_in: Rate::UNLIMITED,
            host_memory_ns: HOST_MEMORY_NS,
            command_ns: 0,
            low_power_ns: 0,
            packed_writes: 1,
            warm_up_ns: 0,
            overtakes: 16,
            blocks: vec![BlockKind::default()],
            translation: None,
            urgent: None,
        }
    }
}

/// 16 blocks of 16 pages of 4 KiB, as fast as MLC's, that wear never out.
impl Default for BlockKind {
    fn default() -> Self {
        Self {
            per_plane: 16,
            page_bytes: UNIT_BYTES,
            pages: 16,
            pages_per_program: 1,
            read_ns: vec![40_000],
            program_ns: vec![200_000],
            erase_ns: 3_000_000,
            endurance: 0,
        }
    }
}

/// A buffer of 4 MiB, greedy collection only when it must be, dynamic wear levelling, no bad blocks.
impl Default for TranslationProfile {
    fn default() -> Self {
        Self {
            buffer_bytes: 4 << 20,
            victim: Victim::Greedy,
            gc_blocks: 3,
            gc_idle_blocks: 0,
            idle_ns: 0,
            wear: Wear::Simple,
            bad_ppm: 0,
            seed: 1,
            map_cache: None,
        }
    }
}

/// Which block is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The one with the fewest valid units.
    Greedy,
    /// The one with the best (1 − u) ÷ 2u × age (Kawaguchi, Nishioka and Motoda, USENIX 1995).
    CostBenefit,
}

/// How wear is spread over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wear {
    /// Not: the block that has been free for longest is next.
    Off,
    /// The least worn free block is next.
    Simple,
    /// Besides, when a free block was erased by more than this more often than the least worn one with data, that data
    /// is moved into it.
    Full {
        /// Erases.
        spread: u32,
    },
}

/// A profile that describes no drive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A number is outside its range.
    #[error("`{field}` is {value}; it is at least {least} and at most {most}")]
    Range {
        /// Which.
        field: &'static str,
        /// As given.
        value: u64,
        /// The least that makes sense.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A number is no multiple of another one.
    #[error("`{field}` is {value}, which is no multiple of {of}")]
    Multiple {
        /// Which.
        field: &'static str,
        /// As given.
        value: u64,
        /// Of what.
        of: u64,
    },
    /// The blocks have no room for the capacity and what the translation layer needs beyond.
    #[error(
        "{capacity} bytes and a reserve of {reserve} do not fit in blocks of {raw} bytes; give more blocks, more \
         over-provisioning or less capacity"
    )]
    Room {
        /// Bytes that the host sees.
        capacity: u64,
        /// Bytes that the translation layer needs beyond.
        reserve: u64,
        /// Bytes of all blocks.
        raw: u64,
    },
}

impl BlockKind {
    /// Units of a page.
    #[must_use]
    pub fn page_units(&self) -> u32 {
        (self.page_bytes / UNIT_BYTES) as u32
    }

    /// Programs of a block.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.pages / self.pages_per_program
    }

    /// Units of a program.
    #[must_use]
    pub fn row_units(&self) -> u32 {
        self.page_units() * self.pages_per_program
    }

    /// Units of a block.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.page_units() * self.pages
    }

    fn check(&self) -> Result<(), ProfileError> {
        range("block.per_plane", self.per_plane.into(), 1, 1 << 20)?;
        range("block.page_bytes", self.page_bytes, UNIT_BYTES, 1 << 18)?;
        multiple("block.page_bytes", self.page_bytes, UNIT_BYTES)?;
        range("block.pages", self.pages.into(), 1, 1 << 14)?;
        range("block.pages_per_program", self.pages_per_program.into(), 1, 16)?;
        multiple("block.pages", self.pages.into(), self.pages_per_program.into())?;
        range("block.read (how many times)", self.read_ns.len() as u64, 1, 1 << 14)?;
        range("block.program (how many times)", self.program_ns.len() as u64, 1, 1 << 14)?;
        for &ns in self.read_ns.iter().chain(&self.program_ns).chain([&self.erase_ns]) {
            duration("block: a time", ns)?;
        }
        Ok(())
    }
}

impl ArrayProfile {
    /// Dies of the drive.
    #[must_use]
    pub fn dies_total(&self) -> u32 {
        self.channels * self.chips * self.dies
    }

    /// Planes of the drive.
    #[must_use]
    pub fn planes_total(&self) -> u32 {
        self.dies_total() * self.planes
    }

    /// Commands that are in the drive at once, of which it works on so many; one more is taken to see whether it can be
    /// packed.
    pub(crate) fn tickets(&self, commands: u32) -> u32 {
        let others = if self.packed_writes > 1 { commands * self.packed_writes + 1 } else { commands };
        others + self.urgent.map_or(0, |urgent| urgent.places)
    }

    /// Units that a host sees.
    #[must_use]
    pub fn logical_units(&self) -> u64 {
        self.capacity_bytes / UNIT_BYTES
    }

    /// Pages of a map that is in flash; 0 where it is in memory.
    #[must_use]
    pub fn map_pages(&self) -> u64 {
        let cache = self.translation.as_ref().and_then(|translation| translation.map_cache);
        cache.map_or(0, |cache| self.logical_units().div_ceil(cache.entries()))
    }

    /// Units of all blocks of a plane.
    #[must_use]
    pub fn plane_units(&self) -> u64 {
        self.blocks.iter().map(|kind| u64::from(kind.per_plane) * u64::from(kind.units())).sum()
    }

    fn check(&self) -> Result<(), ProfileError> {
        range("capacity_bytes", self.capacity_bytes, UNIT_BYTES, u64::MAX)?;
        multiple("capacity_bytes", self.capacity_bytes, UNIT_BYTES)?;
        range("channels", self.channels.into(), 1, 64)?;
        range("chips", self.chips.into(), 1, 64)?;
        range("dies", self.dies.into(), 1, 64)?;
        range("planes", self.planes.into(), 1, DIE_PLANES_MAX as u64)?;
        range("channels x chips x dies x planes", self.planes_total().into(), 1, PLANES_MAX.into())?;
        range("registers", self.registers.into(), 1, 4)?;
        range("overtakes", self.overtakes.into(), 1, 1 << 20)?;
        range("packed_writes", self.packed_writes.into(), 1, PACKED_WRITES_MAX.into())?;
        range("sector_bytes", self.sector_bytes, 1, UNIT_BYTES)?;
        multiple("a unit of 4096 bytes", UNIT_BYTES, self.sector_bytes)?;
        let times =
            [self.multi_plane_ns, self.command_ns, self.warm_up_ns, self.low_power_ns, self.host_memory_ns];
        for ns in times {
            duration("a time", ns)?;
        }
        range("kinds of blocks", self.blocks.len() as u64, 1, KINDS_MAX as u64)?;
        self.blocks.iter().try_for_each(BlockKind::check)?;
        self.urgent.iter().try_for_each(|urgent| urgent.check(self.registers))?;
        match &self.translation {
            Some(translation) => translation.check(self),
            None => range("kinds of blocks, in place", self.blocks.len() as u64, 1, 1),
        }
    }
}

impl UrgentProfile {
    fn check(&self, registers: u32) -> Result<(), ProfileError> {
        range("urgent.places", self.places.into(), 0, URGENT_PLACES_MAX.into())?;
        let least = if self.rank { 1 } else { 100 };
        range("urgent.share_percent", self.share_percent.into(), least, 100)?;
        let most = u64::from(self.rank);
        range("urgent.inherit", self.inherit.into(), 0, most)?;
        range("urgent.register", self.register.into(), 0, most)?;
        range("registers, with urgent.register", registers.into(), 1 + u64::from(self.register), 4)
    }
}

impl TranslationProfile {
    fn check(&self, array: &ArrayProfile) -> Result<(), ProfileError> {
        range("gc_blocks", self.gc_blocks.into(), 3, 1 << 20)?;
        range("bad_ppm", self.bad_ppm.into(), 0, 200_000)?;
        duration("idle", self.idle_ns)?;
        if self.buffer_bytes != 0 {
            // The largest transfer of a command has to fit.
            range("buffer_bytes", self.buffer_bytes, WRITE_BYTES_MAX, 1 << 36)?;
        }
        if let Some(cache) = &self.map_cache {
            // One map page, at least; more than the whole map is as good as that.
            range("map_cache_bytes", cache.bytes, UNIT_BYTES, 1 << 40)?;
            range("map_entry_bytes", cache.entry_bytes.into(), 1, UNIT_BYTES)?;
        }
        let units = array.plane_units() * u64::from(array.planes_total());
        range("physical units", units, 1, (1 << 31) - 2)?;
        Ok(())
    }
}

impl Profile {
    /// A medium that works on any number of commands at once.
    #[must_use]
    pub fn fixed(fixed: FixedProfile) -> Self {
        Self { commands: 1 << 16, medium: Medium::Fixed(fixed) }
    }

    /// Commands that are in the drive at once, at most.
    #[must_use]
    pub fn tickets(&self) -> u32 {
        match &self.medium {
            Medium::Fixed(_) => self.commands,
            Medium::Array(array) => array.tickets(self.commands),
        }
    }

    /// Whether this is a drive.
    ///
    /// # Errors
    /// [`ProfileError`]: what makes no sense, and what would.
    pub fn check(&self) -> Result<(), ProfileError> {
        range("commands", self.commands.into(), 1, COMMANDS_MAX.into())?;
        match &self.medium {
            Medium::Fixed(fixed) => {
                duration("read_latency", fixed.read_ns)?;
                duration("write_latency", fixed.write_ns)
            }
            Medium::Array(array) => {
                array.check()?;
                let packed = u64::from(self.commands) * u64::from(array.packed_writes);
                range("commands x packed_writes", packed, 1, COMMANDS_MAX.into())
            }
        }
    }
}

/// Longer than any operation of a medium: an hour.
const DURATION_MAX_NS: u64 = 3_600_000_000_000;

fn duration(field: &'static str, ns: u64) -> Result<(), ProfileError> {
    range(field, ns, 0, DURATION_MAX_NS)
}

fn range(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), ProfileError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(ProfileError::Range { field, value, least, most })
    }
}

fn multiple(field: &'static str, value: u64, of: u64) -> Result<(), ProfileError> {
    if value.is_multiple_of(of) { Ok(()) } else { Err(ProfileError::Multiple { field, value, of }) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two channels of two dies of two planes; kinds of blocks by (blocks in a plane, units of a page, pages).
    pub(crate) fn small(kinds: &[(u32, u64, u32)]) -> ArrayProfile {
        let kind = |&(per_plane, page_units, pages): &(u32, u64, u32)| BlockKind {
            per_plane,
            page_bytes: page_units * UNIT_BYTES,
            pages,
            ..BlockKind::default()
        };
        ArrayProfile {
            capacity_bytes: 64 * UNIT_BYTES,
            channels: 2,
            dies: 2,
            planes: 2,
            blocks: kinds.iter().map(kind).collect(),
            ..ArrayProfile::default()
        }
    }
}
