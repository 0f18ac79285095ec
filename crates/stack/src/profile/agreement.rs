//! Keys of a profile that do not agree with each other.

use super::document::{Block, Document, InPlace, Translation, Urgent, Wear};
use super::fault::ProfileFault;
use super::span::Text;
use nvmed_flash::UNIT_BYTES;

/// Planes of a drive, at most.
const PLANES_MAX: u64 = 4096;
/// Kinds of blocks, at most.
const KINDS_MAX: usize = 4;

/// What keys of different lines say together.
pub(crate) fn check(document: &Document, text: &Text<'_>) -> Result<(), ProfileFault> {
    let geometry = &document.geometry;
    let planes = [
        geometry.channels.0,
        geometry.chips_per_channel.0,
        geometry.dies_per_chip.0,
        geometry.planes_per_die.0,
    ];
    let planes: u64 = planes.map(u64::from).iter().product();
    if planes > PLANES_MAX {
        let what = format!("channels x chips x dies x planes are {planes}; at most {PLANES_MAX} do");
        return Err(text.wrong("geometry", 0, "", &what));
    }
    let bus = &document.bus;
    for (key, both) in [
        ("read_us_per_4kib", bus.read_us_per_4kib.is_some() && bus.read_mb_per_s.is_some()),
        ("write_us_per_4kib", bus.write_us_per_4kib.is_some() && bus.write_mb_per_s.is_some()),
    ] {
        if both {
            return Err(text.wrong("bus", 0, key, "the same is said in MB/s, too; leave one of the two out"));
        }
    }
    if let Some(sector) = bus.sector_bytes.filter(|sector| !UNIT_BYTES.is_multiple_of(sector.0.into())) {
        let what = format!("{} does not divide 4096; give a power of two", sector.0);
        return Err(text.wrong("bus", 0, "sector_bytes", &what));
    }
    let controller = &document.controller;
    if controller.low_power_ms.ns == 0 && controller.warm_up_ms.ns > 0 {
        return Err(text.wrong(
            "controller",
            0,
            "warm_up_ms",
            "a drive never sleeps without `low_power_ms`; give it",
        ));
    }
    if let Some(urgent) = &document.urgent {
        check_urgent(urgent, geometry.registers_per_plane.0, text)?;
    }
    if let Some(in_place) = &document.in_place {
        check_in_place(document, in_place, text)?;
    }
    if let Some(translation) = &document.translation {
        check_translation(translation, text)?;
        check_blocks(&document.blocks, text)?;
    } else if !document.blocks.is_empty() {
        return Err(text.wrong("block", 0, "", "blocks need `[translation]`, which says how they are used"));
    }
    Ok(())
}

fn check_in_place(document: &Document, in_place: &InPlace, text: &Text<'_>) -> Result<(), ProfileFault> {
    for (is, section) in
        [(!document.blocks.is_empty(), "block"), (document.translation.is_some(), "translation")]
    {
        if is {
            let what =
                "what is overwritten in place (`[in_place]`) has no blocks and no translation; leave one out";
            return Err(text.wrong(section, 0, "", what));
        }
    }
    whole_units("in_place", 0, in_place.page_kib.0, text)
}

fn check_urgent(urgent: &Urgent, registers: u32, text: &Text<'_>) -> Result<(), ProfileFault> {
    let wrong = |key, what: &str| Err(text.wrong("urgent", 0, key, what));
    if urgent.register && registers < 2 {
        return wrong(
            "register",
            "a plane has one register only; give 2 `registers_per_plane`, or leave it out",
        );
    }
    let shares = urgent.share_percent.is_some_and(|share| share.0 < 100);
    let ranks = [("register", urgent.register), ("inherit", urgent.inherit), ("share_percent", shares)];
    match ranks.into_iter().find(|(_, is_said)| *is_said && !urgent.rank) {
        Some((key, _)) => {
            wrong(key, "urgent commands have no rank without `rank = true`; give it, or leave this out")
        }
        None => Ok(()),
    }
}

fn whole_units(section: &str, number: usize, page_kib: u32, text: &Text<'_>) -> Result<(), ProfileFault> {
    if page_kib.is_multiple_of(4) {
        return Ok(());
    }
    Err(text.wrong(
        section,
        number,
        "page_kib",
        &format!("{page_kib} is no multiple of 4, the KiB of a unit"),
    ))
}

fn check_translation(translation: &Translation, text: &Text<'_>) -> Result<(), ProfileFault> {
    let wrong = |key, what: &str| Err(text.wrong("translation", 0, key, what));
    if translation.buffer_mib.0 == 1 {
        return wrong("buffer_mib", "1 is less than the largest command; give 2 or more, or 0 for no buffer");
    }
    if (1..=translation.gc_blocks.0).contains(&translation.gc_idle_blocks.0) {
        let what =
            "an idle drive collects until more than `gc_blocks` are free; give more, or 0 for not at all";
        return wrong("gc_idle_blocks", what);
    }
    if translation.map_entry_bytes.is_some() && translation.map_cache_bytes.is_none() {
        let what = "it is for a map in flash, with `map_cache_bytes`; give that, or leave this out";
        return wrong("map_entry_bytes", what);
    }
    match (translation.wear, translation.wear_spread) {
        (Wear::Full, None) => {
            wrong("wear", "\"full\" needs `wear_spread`, the erases by which blocks may differ")
        }
        (Wear::Off | Wear::Simple, Some(_)) => {
            wrong("wear_spread", "it is for `wear = \"full\"` only; leave it out, or change that")
        }
        _ => Ok(()),
    }
}

fn check_blocks(blocks: &[Block], text: &Text<'_>) -> Result<(), ProfileFault> {
    if !(1..=KINDS_MAX).contains(&blocks.len()) {
        let what =
            format!("a drive has 1 to {KINDS_MAX} kinds of blocks (`[[block]]`), not {}", blocks.len());
        return Err(text.wrong("block", 0, "", &what));
    }
    let all_counted = blocks[0].blocks_per_plane.is_some();
    let mut page_kib = 0;
    for (number, block) in blocks.iter().enumerate() {
        let wrong = |key, what: &str| Err(text.wrong("block", number, key, what));
        whole_units("block", number, block.page_kib.0, text)?;
        if block.page_kib.0 <= page_kib {
            return wrong(
                "page_kib",
                "kinds of blocks are sorted, each with larger pages than the one before",
            );
        }
        page_kib = block.page_kib.0;
        let (pages, of) = (block.pages_per_block.0, block.pages_per_program.0);
        if !pages.is_multiple_of(of) {
            return wrong("pages_per_block", &format!("{pages} is no multiple of `pages_per_program`, {of}"));
        }
        for (key, times) in [("read_us", &block.read_us.0), ("program_us", &block.program_us.0)] {
            if times.len() > pages as usize {
                return wrong(
                    key,
                    &format!("{} times are more than a block has pages, {pages}", times.len()),
                );
            }
        }
        if block.blocks_per_plane.is_some() != all_counted {
            return wrong("blocks_per_plane", "either all kinds of blocks say it, or none");
        }
        match block.share_percent {
            Some(_) if all_counted => {
                return wrong("share_percent", "`blocks_per_plane` says it; leave one of them out");
            }
            None if !all_counted && blocks.len() > 1 => {
                return wrong(
                    "share_percent",
                    "with several kinds of blocks each says its share, in all 100",
                );
            }
            _ => {}
        }
    }
    let shares: Vec<f64> =
        blocks.iter().filter_map(|block| block.share_percent).map(|share| share.0).collect();
    let sum: f64 = shares.iter().sum();
    if !shares.is_empty() && (sum - 100.0).abs() > 1e-6 {
        return Err(text.wrong("block", 0, "share_percent", &format!("the shares sum to {sum}, not to 100")));
    }
    Ok(())
}
