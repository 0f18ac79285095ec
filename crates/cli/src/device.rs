//! `nvmed device`: drives that virtual devices can be like.

pub mod arguments;
mod memory;

use crate::failure::{Failure, Status};
use crate::inspect::size;
use crate::location::parse_spec;
use crate::output::Output;
use arguments::{Create, DeviceCommand, Profiles, Replay, Show};
use nvmed_flash::{ArrayProfile, BlockKind, Medium, Profile, Rate, UNIT_BYTES, UrgentProfile};
use nvmed_stack::{
    DeviceSpec, DriveProfile, Figures, NewDrive, ProfileFault, SlowMedium, VirtualSpec, Work, create_drive,
    precondition_drive,
};
use serde_json::json;

/// Lists or shows profiles.
///
/// # Errors
/// There is no such profile, it makes no sense, or no drive of it has the size.
pub fn device(command: &DeviceCommand) -> Result<(), Failure> {
    match command {
        DeviceCommand::Create(arguments) => create(arguments),
        DeviceCommand::Precondition(arguments) => {
            made(&arguments.image, &precondition_drive(&image(&arguments.image)?)?, true)
        }
        DeviceCommand::Profiles(arguments) => profiles(arguments),
        DeviceCommand::Replay(arguments) => replay(arguments),
        DeviceCommand::Show(arguments) => show(arguments),
    }
}

fn refused(fault: ProfileFault) -> Failure {
    let status = if matches!(fault, ProfileFault::File { .. }) { Status::Failed } else { Status::Usage };
    Failure::new(status, format!("device: {fault}"))
}

/// The image that a name is, with or without its engine.
fn image(name: &str) -> Result<String, Failure> {
    match parse_spec(name)? {
        DeviceSpec::Virtual(spec)
            if spec == (VirtualSpec { path: spec.path.clone(), ..VirtualSpec::default() }) =>
        {
            Ok(spec.path)
        }
        _ => {
            let message =
                format!("device: {name}: a drive is made of an image, which is named without options");
            Err(Failure::new(Status::Usage, message))
        }
    }
}

fn create(arguments: &Create) -> Result<(), Failure> {
    let image = image(&arguments.image)?;
    let profile = DriveProfile::named(&arguments.profile).map_err(refused)?;
    let drive = create_drive(&NewDrive {
        image: &image,
        profile: &profile,
        size_bytes: arguments.size,
        again: arguments.again,
        used: arguments.used,
    });
    made(&arguments.image, &drive?, arguments.used)
}

/// Says what was made.
fn made(image: &str, drive: &Profile, used: bool) -> Result<(), Failure> {
    let Medium::Array(array) = &drive.medium else { return Ok(()) };
    let mut out = Output::new();
    let state = if used { "as after long use" } else { "new" };
    out.text(&format!("{image}: a drive of {}, {state}\n", size(array.capacity_bytes)))?;
    out.finish()
}

fn replay(arguments: &Replay) -> Result<(), Failure> {
    let DeviceSpec::Virtual(spec) = parse_spec(&arguments.device)? else {
        let message = format!("device: {}: only a virtual device replays", arguments.device);
        return Err(Failure::new(Status::Usage, message));
    };
    let found = nvmed_stack::replay(&spec, &arguments.file)?;
    let mut out = Output::new();
    if arguments.json {
        let first = found.first.map(|first| {
            json!({
                "line": first.line, "recorded_ns": first.recorded_ns, "replayed_ns": first.replayed_ns,
            })
        });
        let facts = json!({
            "commands": found.commands, "buffer_changes": found.buffer_changes, "others": found.others,
            "first": first,
        });
        out.text(&format!("{facts}\n"))?;
    } else if found.first.is_none() {
        let changes = match found.buffer_changes {
            0 => String::new(),
            changes => format!("{changes} changes of the host memory buffer, "),
        };
        out.text(&format!("{changes}{} commands, each due when it was\n", found.commands))?;
    }
    out.finish()?;
    let Some(first) = found.first else { return Ok(()) };
    let message = format!(
        "device: {}: {} of {} commands are due at other times; the first in line {}, recorded {} ns, replayed {} ns",
        arguments.file.display(),
        found.others,
        found.commands,
        first.line,
        first.recorded_ns,
        first.replayed_ns
    );
    Err(Failure::new(Status::Failed, message))
}

fn profiles(arguments: &Profiles) -> Result<(), Failure> {
    let mut out = Output::new();
    if !arguments.json {
        out.text("drives, for virtual:FILE?profile=NAME and `nvmed device create`\n")?;
    }
    for name in DriveProfile::names() {
        let profile = DriveProfile::named(name).map_err(refused)?;
        let (what, source) = (profile.what(), profile.source());
        if arguments.json {
            let usual = profile.usual_bytes();
            out.text(&format!(
                "{}\n",
                json!({
                    "name": name, "kind": "drive", "what": what, "source": source, "usual_bytes": usual
                })
            ))?;
        } else {
            out.text(&format!("{name:<10} {what} ({source})\n"))?;
        }
    }
    if !arguments.json {
        out.text(&format!("\n{}\n", memory::HEAD))?;
    }
    for name in SlowMedium::names() {
        let medium = SlowMedium::named(name).map_err(refused)?;
        out.text(&if arguments.json {
            format!("{}\n", memory::facts(name, &medium))
        } else {
            format!("{name:<10} {} ({})\n", medium.what(), medium.source())
        })?;
    }
    out.finish()
}

/// The profile of memory that is to be shown: one that is asked for as such, or is no drive's.
fn memory_of(arguments: &Show) -> Result<Option<SlowMedium>, ProfileFault> {
    let found = SlowMedium::named(&arguments.profile);
    if arguments.memory {
        return found.map(Some);
    }
    // Of a text that is neither, what is wrong with it as a drive is told.
    Ok(if DriveProfile::named(&arguments.profile).is_ok() { None } else { found.ok() })
}

fn show(arguments: &Show) -> Result<(), Failure> {
    if let Some(medium) = memory_of(arguments).map_err(refused)? {
        if arguments.size.is_some() {
            let why = "this is memory behind a buffer, as large as its file; leave out --size";
            return Err(Failure::usage(format!("device: {}: {why}", arguments.profile)));
        }
        let mut out = Output::new();
        out.text(&if arguments.json {
            format!("{}\n", memory::facts(&arguments.profile, &medium))
        } else {
            memory::page(&arguments.profile, &medium)
        })?;
        return out.finish();
    }
    let profile = DriveProfile::named(&arguments.profile).map_err(refused)?;
    let drive = profile.drive(arguments.size.unwrap_or(profile.usual_bytes())).map_err(refused)?;
    let (Medium::Array(array), Some(figures)) = (&drive.medium, Figures::of(&drive)) else {
        return Err(Failure::new(
            Status::Failed,
            format!("device: profile `{}` has no dies", profile.name()),
        ));
    };
    let mut out = Output::new();
    out.text(&if arguments.json {
        facts(&profile, &drive, array, &figures)
    } else {
        page(&profile, &drive, array, &figures)
    })?;
    if !arguments.json && SlowMedium::names().any(|name| name == profile.name()) {
        let name = profile.name();
        out.text(&format!(
            "             also memory behind a buffer: `nvmed device show --memory {name}`\n"
        ))?;
    }
    out.finish()
}

/// Over-provisioning in percent; none where pages are overwritten in place.
fn spare(array: &ArrayProfile) -> Option<f64> {
    let held = array.room().held_units as f64 / array.logical_units() as f64;
    array.translation.as_ref().map(|_| (held - 1.0) * 100.0)
}

fn raw_bytes(array: &ArrayProfile) -> u64 {
    array.room().raw_units * UNIT_BYTES
}

/// What urgent commands have of a drive.
fn told_of_urgent(urgent: &UrgentProfile) -> String {
    let mut told = match urgent.places {
        0 => "places of all commands".to_owned(),
        places => format!("{places} places of their own"),
    };
    for (is_so, what) in [
        (urgent.rank, "go first"),
        (urgent.register, "a register of each plane for their reads"),
        (urgent.inherit, "what is before them passes the bus first"),
    ] {
        if is_so {
            told += &format!("; {what}");
        }
    }
    if urgent.share_percent < 100 {
        told +=
            &format!("; their reads have at most {} % of a die's and a channel's time", urgent.share_percent);
    }
    told
}

fn facts(profile: &DriveProfile, drive: &Profile, array: &ArrayProfile, figures: &Figures) -> String {
    let blocks = array.blocks.iter().filter(|_| array.translation.is_some()).map(|kind| {
        json!({
            "per_plane": kind.per_plane, "page_bytes": kind.page_bytes, "pages": kind.pages,
            "pages_per_program": kind.pages_per_program, "read_ns": kind.read_ns, "program_ns": kind.program_ns,
            "erase_ns": kind.erase_ns, "endurance_cycles": kind.endurance,
        })
    });
    let cached = array.translation.as_ref().and_then(|layer| layer.map_cache).map(|cache| cache.bytes);
    let facts = json!({
        "profile": profile.name(), "what": profile.what(), "source": profile.source(),
        "capacity_bytes": array.capacity_bytes, "raw_bytes": raw_bytes(array),
        "over_provisioning_percent": spare(array), "commands": drive.commands,
        "channels": array.channels, "chips_per_channel": array.chips, "dies_per_chip": array.dies,
        "planes_per_die": array.planes, "registers_per_plane": array.registers, "blocks": blocks.collect::<Vec<_>>(),
        "read_4k_ns": figures.read_ns, "write_4k_ns": figures.write_ns,
        "packed_writes": array.packed_writes, "map_cache_bytes": cached,
        "urgent": array.urgent.map(|urgent| json!({
            "places": urgent.places, "rank": urgent.rank, "register": urgent.register, "inherit": urgent.inherit,
            "share_percent": urgent.share_percent,
        })),
        "map_pages_bytes": array.map_pages() * UNIT_BYTES,
        "random_read_bytes_per_s": figures.rate(Work::RandomRead),
        "random_write_bytes_per_s": figures.rate(Work::RandomWrite),
        "stream_read_bytes_per_s": figures.rate(Work::StreamRead),
        "stream_write_bytes_per_s": figures.rate(Work::StreamWrite),
    });
    format!("{facts}\n")
}

fn page(profile: &DriveProfile, drive: &Profile, array: &ArrayProfile, figures: &Figures) -> String {
    let mut page =
        format!("profile      {}: {}\nsource       {}\n", profile.name(), profile.what(), profile.source());
    let mut line = |key: &str, text: &str| page.push_str(&format!("{key:<12} {text}\n"));
    line("capacity", &format!("{} ({} bytes)", size(array.capacity_bytes), array.capacity_bytes));
    if let Some(spare) = spare(array) {
        let raw = size(raw_bytes(array));
        line(
            "spare",
            &format!(
                "over-provisioning {spare:.1} %; {raw} of blocks, with those that are kept free or are bad"
            ),
        );
    }
    line(
        "geometry",
        &format!(
            "{} channels x {} chips x {} dies x {} planes; {} page registers a plane",
            array.channels, array.chips, array.dies, array.planes, array.registers
        ),
    );
    for kind in &array.blocks {
        line(if array.translation.is_some() { "blocks" } else { "pages" }, &kind_line(array, kind));
    }
    if let Some(text) = smaller(profile.template(), array) {
        line("smaller", &text);
    }
    line("bus", &format!("read {}, write {}; one a channel", rate(array.bus_out), rate(array.bus_in)));
    line("link", &format!("read {}, write {}", rate(array.link_out), rate(array.link_in)));
    line("controller", &controller(drive.commands, array));
    if let Some(urgent) = &array.urgent {
        line("urgent", &told_of_urgent(urgent));
    }
    if let Some(cache) = array.translation.as_ref().and_then(|translation| translation.map_cache) {
        let (bytes, map_bytes) = (cache.pages() * UNIT_BYTES, array.map_pages() * UNIT_BYTES);
        let part = (bytes as f64 / map_bytes as f64 * 100.0).min(100.0);
        line("map", &format!("in flash; {} of {} in memory, {part:.1} %", size(bytes), size(map_bytes)));
    }
    line("alone", &format!("4 KiB read {}, 4 KiB write {}", time(figures.read_ns), time(figures.write_ns)));
    line(
        "saturated",
        &format!(
            "4 KiB reads {}, 4 KiB writes {}",
            pace(figures, Work::RandomRead),
            pace(figures, Work::RandomWrite)
        ),
    );
    line(
        "streams",
        &format!(
            "128 KiB reads {}, writes {}",
            pace(figures, Work::StreamRead),
            pace(figures, Work::StreamWrite)
        ),
    );
    page
}

/// What the controller does with commands.
fn controller(commands: u32, array: &ArrayProfile) -> String {
    let buffer = array.translation.as_ref().map(|translation| match translation.buffer_bytes {
        0 => "; no write buffer".to_owned(),
        bytes => format!("; a write buffer of {}", size(bytes)),
    });
    let sleep = match array.low_power_ns {
        0 => String::new(),
        ns => format!("; sleeps after {}, wakes in {}", time(ns as f64), time(array.warm_up_ns as f64)),
    };
    let packs = match array.packed_writes {
        1 => String::new(),
        writes => format!("; packs up to {writes} writes that wait"),
    };
    let (command, buffer) = (time(array.command_ns as f64), buffer.unwrap_or_default());
    format!("{commands} commands at once, {command} each{buffer}{packs}{sleep}")
}

fn kind_line(array: &ArrayProfile, kind: &BlockKind) -> String {
    let times = |times: &[u64]| {
        let shown: Vec<_> = times.iter().take(4).map(|&ns| time(ns as f64)).collect();
        format!("{}{}", shown.join("/"), if times.len() > 4 { "/…" } else { "" })
    };
    let (read, program) = (times(&kind.read_ns), times(&kind.program_ns));
    if array.translation.is_none() {
        return format!("{}, overwritten in place: read {read}, write {program}", size(kind.page_bytes));
    }
    format!(
        "{} a plane, of {} pages of {}, {} a program: read {read}, program {program}, erase {}",
        kind.per_plane,
        kind.pages,
        size(kind.page_bytes),
        kind.pages_per_program,
        time(kind.erase_ns as f64)
    )
}

/// What a drive has less of than its profile says, since its capacity is small.
fn smaller(template: &ArrayProfile, array: &ArrayProfile) -> Option<String> {
    let parts = [
        ("chips", template.chips, array.chips),
        ("dies", template.dies, array.dies),
        ("planes", template.planes, array.planes),
    ];
    let pages =
        template.blocks.iter().zip(&array.blocks).map(|(kind, of)| ("pages a block", kind.pages, of.pages));
    let pages = pages.filter(|_| array.translation.is_some());
    let less: Vec<_> = parts.into_iter().chain(pages).filter(|(_, full, is)| is < full).collect();
    let text =
        less.iter().map(|(what, full, is)| format!("{is} of {full} {what}")).collect::<Vec<_>>().join(", ");
    (!less.is_empty()).then(|| format!("{text}, since the capacity is small for such a drive"))
}

/// A time, in the unit in which it has one to three digits before the point.
fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns => (ns / 1e6, "ms"),
    };
    let text = format!("{value:.2}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn rate(rate: Rate) -> String {
    if rate.is_unlimited() {
        return "without limit".to_owned();
    }
    format!("{:.0} MB/s", rate.bytes as f64 * 1e3 / rate.ns as f64)
}

fn pace(figures: &Figures, work: Work) -> String {
    let bytes_per_s = figures.rate(work);
    format!("{:.1} MB/s ({:.0} a second)", bytes_per_s / 1e6, bytes_per_s / work.bytes() as f64)
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_short() {
        let said = [30.0, 1700.0, 84_360.2, 2_300_000.0, 15e6].map(time);
        assert_eq!(said, ["30 ns", "1.7 us", "84.36 us", "2.3 ms", "15 ms"]);
    }
}
