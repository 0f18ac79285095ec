//! A profile's text becomes the template of a drive: what its keys say together.

use super::agreement;
use super::document::{Block, Document, InPlace, Translation, Urgent, Victim, Wear};
use super::fault::ProfileFault;
use super::number::{MegabytesPerSecond, Microseconds};
use super::size::{Size, fixed_bytes};
use super::span::Text;
use nvmed_flash::{
    ArrayProfile, BlockKind, MapCacheProfile, Medium, Profile, Rate, TranslationProfile, UNIT_BYTES,
    UrgentProfile,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A map's entry numbers up to 16 TiB of units.
const MAP_ENTRY_BYTES: u32 = 4;

/// What a profile says, once all of it makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Design {
    pub what: String,
    pub source: String,
    pub commands: u32,
    pub size: Size,
    /// All but the capacity and, where any is possible, the blocks of a plane.
    pub template: ArrayProfile,
}

impl Design {
    /// Reads a profile.
    pub fn read(text: &Text<'_>) -> Result<Self, ProfileFault> {
        let document: Document = toml::from_str(text.text).map_err(|error| text.parser(&error))?;
        agreement::check(&document, text)?;
        let mut template = template(&document);
        let size = match (&document.in_place, &document.translation) {
            (Some(_), _) => Size::InPlace { typical_bytes: typical_bytes(&document, text)? },
            (None, Some(translation)) => size(&document, translation, &mut template, text)?,
            (None, None) => {
                let what = "the profile needs `[in_place]`, or `[[block]]` and `[translation]`";
                return Err(text.wrong("translation", 0, "", what));
            }
        };
        let about = document.profile;
        let design = Self {
            what: about.what.0,
            source: about.source.0,
            commands: document.controller.commands.0,
            size,
            template,
        };
        design.drive(text.file, design.size.usual_bytes())?;
        Ok(design)
    }

    /// The drive of a capacity.
    pub fn drive(&self, name: &str, bytes: u64) -> Result<Profile, ProfileFault> {
        let array = self.size.fit(name, &self.template, bytes)?;
        let profile = Profile { commands: self.commands, medium: Medium::Array(Box::new(array)) };
        let checked = profile.check();
        checked.map_err(|error| ProfileFault::Drive { name: name.to_owned(), error })?;
        Ok(profile)
    }
}

fn typical_bytes(document: &Document, text: &Text<'_>) -> Result<u64, ProfileFault> {
    let Some(typical) = document.profile.typical_gb else {
        let what = "a drive of any size says which one is usual; give `typical_gb`";
        return Err(text.wrong("profile", 0, "typical_gb", what));
    };
    let bytes = (typical.0 * 1e9) as u64 / MIB * MIB;
    if bytes == 0 {
        return Err(text.wrong("profile", 0, "typical_gb", "it is less than a MiB; give more"));
    }
    Ok(bytes)
}

/// The size of a drive with blocks.
fn size(
    document: &Document,
    translation: &Translation,
    template: &mut ArrayProfile,
    text: &Text<'_>,
) -> Result<Size, ProfileFault> {
    let spare_ppm = (translation.over_provisioning_percent.0 * 1e4).round() as u64;
    if document.blocks[0].blocks_per_plane.is_none() {
        let shares = document.blocks.iter().map(|block| block.share_percent.map_or(100.0, |share| share.0));
        let shares_ppm = shares.map(|share| (share * 1e4).round() as u64).collect();
        return Ok(Size::Any { typical_bytes: typical_bytes(document, text)?, shares_ppm, spare_ppm });
    }
    if document.profile.typical_gb.is_some() {
        let what = "`blocks_per_plane` says the size of this drive; leave one of them out";
        return Err(text.wrong("profile", 0, "typical_gb", what));
    }
    template.capacity_bytes = UNIT_BYTES;
    let profile = Profile { commands: 1, medium: Medium::Array(Box::new(template.clone())) };
    profile.check().map_err(|error| text.wrong("block", 0, "blocks_per_plane", &error.to_string()))?;
    let capacity_bytes = fixed_bytes(template, spare_ppm);
    if capacity_bytes == 0 {
        let what = "the blocks have no room beyond what the translation layer keeps free; give more";
        return Err(text.wrong("block", 0, "blocks_per_plane", what));
    }
    Ok(Size::Fixed { capacity_bytes })
}

/// All of a drive but its size.
fn template(document: &Document) -> ArrayProfile {
    let (geometry, controller) = (&document.geometry, &document.controller);
    let rate = |rate: Option<MegabytesPerSecond>| rate.map_or(Rate::UNLIMITED, |rate| rate.0);
    let blocks = match &document.in_place {
        Some(in_place) => vec![in_place_kind(in_place)],
        None => document.blocks.iter().map(kind).collect(),
    };
    let usual = ArrayProfile::default();
    ArrayProfile {
        capacity_bytes: 0,
        channels: geometry.channels.0,
        chips: geometry.chips_per_channel.0,
        dies: geometry.dies_per_chip.0,
        planes: geometry.planes_per_die.0,
        registers: geometry.registers_per_plane.0,
        multi_plane_ns: controller.multi_plane_us.ns,
        bus_out: bus_rate(document.bus.read_us_per_4kib, document.bus.read_mb_per_s),
        bus_in: bus_rate(document.bus.write_us_per_4kib, document.bus.write_mb_per_s),
        sector_bytes: document.bus.sector_bytes.map_or(512, |bytes| bytes.0.into()),
        link_out: rate(document.link.read_mb_per_s),
        link_in: rate(document.link.write_mb_per_s),
        host_memory_ns: document.link.host_memory_us.map_or(usual.host_memory_ns, |time| time.ns),
        command_ns: controller.command_us.ns,
        low_power_ns: controller.low_power_ms.ns,
        warm_up_ns: controller.warm_up_ms.ns,
        packed_writes: controller.packed_writes.0,
        overtakes: controller.overtakes.0,
        blocks,
        translation: document.translation.as_ref().map(translation),
        urgent: document.urgent.as_ref().map(urgent),
    }
}

fn urgent(said: &Urgent) -> UrgentProfile {
    UrgentProfile {
        places: said.places.map_or(0, |places| places.0),
        rank: said.rank,
        register: said.register,
        inherit: said.inherit,
        share_percent: said.share_percent.map_or(100, |share| share.0),
    }
}

/// A bus's rate, said as a time or as one; 0 is no time.
fn bus_rate(time: Option<Microseconds>, rate: Option<MegabytesPerSecond>) -> Rate {
    match (time, rate) {
        (Some(time), _) => Rate { bytes: UNIT_BYTES, ns: time.ns },
        (None, Some(rate)) => rate.0,
        (None, None) => Rate::UNLIMITED,
    }
}

fn in_place_kind(in_place: &InPlace) -> BlockKind {
    BlockKind {
        per_plane: 1,
        page_bytes: u64::from(in_place.page_kib.0) * KIB,
        pages: 1,
        pages_per_program: 1,
        read_ns: in_place.read_us.0.clone(),
        program_ns: in_place.write_us.0.clone(),
        erase_ns: 0,
        endurance: 0,
    }
}

fn kind(block: &Block) -> BlockKind {
    BlockKind {
        per_plane: block.blocks_per_plane.map_or(1, |blocks| blocks.0),
        page_bytes: u64::from(block.page_kib.0) * KIB,
        pages: block.pages_per_block.0,
        pages_per_program: block.pages_per_program.0,
        read_ns: block.read_us.0.clone(),
        program_ns: block.program_us.0.clone(),
        erase_ns: block.erase_us.ns,
        endurance: block.endurance_cycles.0,
    }
}

fn translation(said: &Translation) -> TranslationProfile {
    TranslationProfile {
        buffer_bytes: u64::from(said.buffer_mib.0) * MIB,
        victim: match said.victim {
            Victim::Greedy => nvmed_flash::Victim::Greedy,
            Victim::CostBenefit => nvmed_flash::Victim::CostBenefit,
        },
        gc_blocks: said.gc_blocks.0,
        gc_idle_blocks: said.gc_idle_blocks.0,
        idle_ns: said.idle_ms.ns,
        wear: match (said.wear, said.wear_spread) {
            (Wear::Off, _) => nvmed_flash::Wear::Off,
            (Wear::Simple, _) | (Wear::Full, None) => nvmed_flash::Wear::Simple,
            (Wear::Full, Some(spread)) => nvmed_flash::Wear::Full { spread: spread.0 },
        },
        bad_ppm: said.bad_blocks_ppm.0,
        seed: said.seed.0.into(),
        map_cache: said.map_cache_bytes.map(|bytes| MapCacheProfile {
            bytes: bytes.0.into(),
            entry_bytes: said.map_entry_bytes.map_or(MAP_ENTRY_BYTES, |bytes| bytes.0),
        }),
    }
}
