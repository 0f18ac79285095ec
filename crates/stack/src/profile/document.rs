//! The text of a profile: its sections and keys, each with its unit in its name (docs/flash.md, "Profiles").

use super::number::{Line, MegabytesPerSecond, Microseconds, Milliseconds, Number, Times, Whole};
use serde::Deserialize;

/// A profile as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub profile: About,
    pub geometry: Geometry,
    #[serde(default)]
    pub bus: Bus,
    #[serde(default)]
    pub link: Link,
    pub controller: Controller,
    /// Pages that are overwritten in place: no blocks, no translation.
    pub in_place: Option<InPlace>,
    #[serde(default, rename = "block")]
    pub blocks: Vec<Block>,
    pub translation: Option<Translation>,
    pub urgent: Option<Urgent>,
}

/// What urgent commands have of the drive.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Urgent {
    /// Beyond `commands`.
    pub places: Option<Whole<0, { nvmed_flash::URGENT_PLACES_MAX }>>,
    #[serde(default)]
    pub rank: bool,
    /// Of each plane's, one.
    #[serde(default)]
    pub register: bool,
    #[serde(default)]
    pub inherit: bool,
    /// Absent, no limit.
    pub share_percent: Option<Whole<1, 100>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct About {
    pub what: Line,
    pub source: Line,
    /// Gigabytes, 10^9 bytes, where nobody says how large the drive is.
    pub typical_gb: Option<Number<0, 10_000>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Geometry {
    pub channels: Whole<1, 64>,
    pub chips_per_channel: Whole<1, 64>,
    pub dies_per_chip: Whole<1, 64>,
    pub planes_per_die: Whole<1, 8>,
    pub registers_per_plane: Whole<1, 4>,
}

/// Between a page register and the controller; what is not given has no limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bus {
    pub read_mb_per_s: Option<MegabytesPerSecond>,
    pub write_mb_per_s: Option<MegabytesPerSecond>,
    pub read_us_per_4kib: Option<Microseconds>,
    pub write_us_per_4kib: Option<Microseconds>,
    pub sector_bytes: Option<Whole<1, 4096>>,
}

/// Between the controller and the host; what is not given has no limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    pub read_mb_per_s: Option<MegabytesPerSecond>,
    pub write_mb_per_s: Option<MegabytesPerSecond>,
    /// A read of the host's memory, without its bytes.
    pub host_memory_us: Option<Microseconds>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Controller {
    pub commands: Whole<1, 1_048_576>,
    #[serde(default)]
    pub command_us: Microseconds,
    #[serde(default)]
    pub low_power_ms: Milliseconds,
    #[serde(default)]
    pub warm_up_ms: Milliseconds,
    #[serde(default = "not_packed")]
    pub packed_writes: Whole<1, 63>,
    #[serde(default)]
    pub multi_plane_us: Microseconds,
    #[serde(default = "overtakes")]
    pub overtakes: Whole<1, 1_048_576>,
}

/// Each write by itself.
fn not_packed() -> Whole<1, 63> {
    Whole(1)
}

/// Often enough that reads go before programs, and seldom enough that programs go on.
fn overtakes() -> Whole<1, 1_048_576> {
    Whole(16)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InPlace {
    pub page_kib: Whole<4, 256>,
    pub read_us: Times,
    pub write_us: Times,
}

/// Blocks of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Block {
    pub page_kib: Whole<4, 256>,
    pub pages_per_block: Whole<1, 16_384>,
    pub pages_per_program: Whole<1, 16>,
    pub read_us: Times,
    pub program_us: Times,
    pub erase_us: Microseconds,
    /// Erases; 0 is without limit.
    pub endurance_cycles: Whole<0, { u32::MAX }>,
    /// A drive of this size only.
    pub blocks_per_plane: Option<Whole<1, 1_048_576>>,
    /// Else, the part of the capacity that these blocks are made for.
    pub share_percent: Option<Number<1, 100>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Victim {
    Greedy,
    CostBenefit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wear {
    Off,
    Simple,
    Full,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Translation {
    pub buffer_mib: Whole<0, 65_536>,
    pub over_provisioning_percent: Number<0, 400>,
    pub victim: Victim,
    pub gc_blocks: Whole<3, 1_048_576>,
    pub gc_idle_blocks: Whole<0, 1_048_576>,
    pub idle_ms: Milliseconds,
    pub wear: Wear,
    /// Erases; with `wear = "full"`.
    pub wear_spread: Option<Whole<1, 1_048_576>>,
    pub bad_blocks_ppm: Whole<0, 200_000>,
    pub seed: Whole<0, { u32::MAX }>,
    /// Memory for pages of the map, which is in flash; at least one page. Else all of the map is in memory.
    pub map_cache_bytes: Option<Whole<4096, { u32::MAX }>>,
    /// With `map_cache_bytes`.
    pub map_entry_bytes: Option<Whole<1, 16>>,
}
