use super::*;
use nvmed_dice::Dice;
use nvmed_flash::{ArrayProfile, Command, Flash, Kind, Medium, UNIT_BYTES};
use rustix::fs::{FileType, Mode};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn named(name: &str) -> DriveProfile {
    DriveProfile::named(name).unwrap_or_else(|fault| panic!("{fault}"))
}

fn array(profile: &Profile) -> &ArrayProfile {
    match &profile.medium {
        Medium::Array(array) => array,
        _ => panic!("every profile has dies"),
    }
}

/// Whether a profile counts its blocks, and so has one size.
fn is_fixed(profile: &DriveProfile) -> bool {
    profile.drive(profile.usual_bytes() + MIB).is_err()
}

#[test]
fn each_profile_makes_drives_of_every_size() {
    for name in DriveProfile::names() {
        let profile = named(name);
        let sizes = [64 * MIB, 65 * MIB + 4096, 256 * MIB, GIB, 5 * GIB / 2, profile.usual_bytes()];
        for bytes in sizes.into_iter().filter(|&bytes| bytes <= profile.usual_bytes()) {
            let drive = profile.drive(bytes).unwrap_or_else(|fault| panic!("{fault}"));
            assert_eq!(array(&drive).capacity_bytes, bytes);
            assert!(array(&drive).room().usable_units >= bytes / UNIT_BYTES, "{name}, {bytes}");
            if bytes <= 5 * GIB / 2 || is_fixed(&profile) && bytes <= 32 * GIB {
                Flash::new(&drive).unwrap_or_else(|error| panic!("{name}, {bytes} bytes: {error}"));
            }
        }
        if !is_fixed(&profile) {
            // As much as the layer's tables address; their memory would be gigabytes.
            let drive = profile.drive(2 << 40).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(drive.check().is_ok() && array(&drive).room().usable_units >= (2 << 40) / UNIT_BYTES);
        }
    }
}

#[test]
fn over_provisioning_is_what_the_profile_says() {
    for (name, percent) in [("slc", 28.0), ("mlc", 7.0), ("tlc", 7.0), ("hmbio", 7.0)] {
        for bytes in [GIB, 16 * GIB, 1 << 40] {
            let drive = named(name).drive(bytes).unwrap();
            let held = array(&drive).room().held_units as f64 * UNIT_BYTES as f64;
            let measured = (held / bytes as f64 - 1.0) * 100.0;
            // A plane has whole blocks, and on a drive of a GiB few of them.
            let more = if bytes == GIB { 1.5 } else { 0.5 };
            assert!((percent..percent + more).contains(&measured), "{name}, {bytes}: {measured}");
        }
    }
}

#[test]
fn small_drives_have_smaller_blocks_and_then_fewer_planes() {
    let shape = |bytes| {
        let drive = named("tlc").drive(bytes).unwrap();
        let array = array(&drive).clone();
        (array.channels, array.dies, array.planes, array.blocks[0].pages, array.blocks[0].erase_ns)
    };
    assert_eq!(shape(1 << 40), (8, 4, 4, 2304, 15_000_000));
    let (channels, dies, planes, pages, erase_ns) = shape(GIB);
    assert_eq!((channels, dies, planes), (8, 4, 4));
    assert_eq!(erase_ns, (15_000_000 * u64::from(pages)).div_ceil(2304), "of {pages} pages");
    let (channels, dies, planes, ..) = shape(64 * MIB);
    assert_eq!((channels, dies, planes), (8, 1, 1));
}

/// Keeps up to `depth` commands under way, until `count` are done; answers nanoseconds a command, of the second half.
fn pace(flash: &mut Flash, depth: u32, count: u64, mut next: impl FnMut() -> Command) -> f64 {
    let (mut sent, mut done, mut under_way) = (0, 0, 0);
    let (mut now, mut half) = (flash.now(), 0);
    while done < count {
        while sent < count && under_way < depth {
            let _ = flash.arrive(now, &next());
            (sent, under_way) = (sent + 1, under_way + 1);
        }
        now = flash.advance(u64::MAX).expect("what is under way completes").time;
        (done, under_way) = (done + 1, under_way - 1);
        if done == count / 2 {
            half = now;
        }
    }
    (now - half) as f64 / (count - count / 2) as f64
}

fn command(is_read: bool, start: u64, bytes: u64) -> Command {
    Command {
        kind: if is_read { Kind::Read } else { Kind::Write { fua: false } },
        start,
        bytes,
        urgent: false,
    }
}

/// A drive on which all until `span` was written, by commands of `bytes`.
fn written(drive: &Profile, span: u64, bytes: u64) -> Flash {
    let mut flash = Flash::new(drive).unwrap();
    let mut at = 0;
    pace(&mut flash, drive.commands.min(64), span / bytes, || {
        at += bytes;
        command(false, at - bytes, bytes)
    });
    pace(&mut flash, 1, 1, || Command { kind: Kind::Flush, start: 0, bytes: 0, urgent: false });
    flash
}

/// What a drive does in the model.
fn simulated(drive: &Profile, work: Work) -> f64 {
    let bytes = work.bytes();
    let is_read = matches!(work, Work::RandomRead | Work::StreamRead);
    let span = if drive.commands == 1 { 64 * MIB } else { 768 * MIB };
    let mut flash = if is_read { written(drive, span, bytes) } else { Flash::new(drive).unwrap() };
    // Page after page: with pure chance some planes are idle while others have much to do.
    let stride = if is_read { bytes.max(array(drive).blocks[0].page_bytes) } else { bytes };
    let mut at = 0;
    let pace = pace(&mut flash, drive.commands, span / bytes, || {
        at += stride;
        let turns = at / span;
        command(is_read, (at + turns * bytes) % span, bytes)
    });
    bytes as f64 / pace * 1e9
}

/// Of two numbers, how far the first is from the second.
fn off(said: f64, is: f64) -> f64 {
    (said / is - 1.0).abs()
}

#[test]
fn figures_are_those_of_the_model() {
    for name in DriveProfile::names() {
        let profile = named(name);
        let drive = profile.drive(profile.usual_bytes().min(GIB)).unwrap();
        let figures = Figures::of(&drive).unwrap();
        for work in Work::ALL {
            let (said, is) = (figures.rate(work), simulated(&drive, work));
            assert!(off(said, is) < 0.01, "{name}, {work:?}: {said} bytes/s, in the model {is}");
        }
        let mut flash = written(&drive, 64 * MIB, UNIT_BYTES);
        for (is_read, said) in [(true, figures.read_ns), (false, figures.write_ns)] {
            let mut at = 0;
            let is = pace(&mut flash, 1, 2048, || {
                at += 5 * UNIT_BYTES;
                command(is_read, at, UNIT_BYTES)
            });
            assert!(off(said, is) < 0.01, "{name}, read {is_read}: {said} ns, in the model {is}");
        }
    }
}

#[test]
fn a_map_in_flash_is_shown_and_takes_its_room() {
    let profile = |bytes: u64| {
        let text = changed("seed = 1", &format!("seed = 1\nmap_cache_bytes = {bytes}"));
        DriveProfile::read("d.toml", &text).unwrap()
    };
    let whole = named("tlc");
    for bytes in [64 * MIB, GIB, 1 << 40, 2 << 40] {
        let drive = profile(64 << 10).drive(bytes).unwrap_or_else(|fault| panic!("{fault}"));
        let (with, without) = (array(&drive).room(), whole.drive(bytes).unwrap());
        assert!(
            with.raw_units > array(&without).room().raw_units,
            "{bytes}: blocks of its own, and map pages"
        );
        assert!(with.usable_units >= bytes / UNIT_BYTES);
        if bytes <= GIB {
            Flash::new(&drive).unwrap_or_else(|error| panic!("{bytes} bytes: {error}"));
        }
    }
    // 256 map pages, of which a quarter, and all, are in memory.
    for (bytes, lacks) in [(256 << 10, 0.75), (1 << 20, 0.0)] {
        let drive = profile(bytes).drive(GIB).unwrap();
        let figures = Figures::of(&drive).unwrap();
        let all = Figures::of(&whole.drive(GIB).unwrap()).unwrap();
        let map_read_ns = 73_000.0 + 4096.0 / 0.667;
        assert!(off(figures.read_ns, all.read_ns + lacks * map_read_ns) < 1e-9);
        let mut flash = written(&drive, GIB, 128 << 10);
        let mut dice = Dice::of(&[bytes]);
        let mut random = || command(true, dice.roll(GIB / UNIT_BYTES) * UNIT_BYTES, UNIT_BYTES);
        pace(&mut flash, 1, 4000, &mut random);
        let is = pace(&mut flash, 1, 80_000, &mut random);
        assert!(off(figures.read_ns, is) < 0.01, "{bytes}: {} ns, in the model {is}", figures.read_ns);
    }
}

#[test]
fn the_published_rates_come_out() {
    // HMB-I/O: 8 channels x 60 us; the text of docs/flash.md's table.
    let hmbio = named("hmbio");
    let figures = Figures::of(&hmbio.drive(hmbio.usual_bytes()).unwrap()).unwrap();
    assert!(off(figures.rate(Work::RandomRead) / 4096.0, 8.0 / 60e-6) < 1e-9);
    // Onyx: 38 us and 179 us. Optane: 2.4 GB/s.
    let pcm = Figures::of(&named("pcm").drive(GIB).unwrap()).unwrap();
    assert!(off(pcm.read_ns, 38e3) < 0.01 && off(pcm.write_ns, 179e3) < 0.01);
    let xpoint = Figures::of(&named("xpoint").drive(GIB).unwrap()).unwrap();
    assert!(off(xpoint.rate(Work::RandomRead), 2.4e9) < 1e-9);
    // IISWC'15: 32 GiB of cells in all three.
    for name in ["emmc", "emmc-8ps", "emmc-hps"] {
        assert_eq!(named(name).template().room().raw_units * UNIT_BYTES, 32 * GIB, "{name}");
    }
}

/// The built-in profile `tlc` with one text in place of another.
fn changed(from: &str, to: &str) -> String {
    let (_, tlc) = BUILT_IN.iter().find(|(name, _)| *name == "tlc").unwrap();
    assert_eq!(tlc.matches(from).count(), 1, "{from:?}");
    tlc.replace(from, to)
}

#[test]
fn what_makes_no_sense_is_said_with_its_place() {
    for (from, to, said) in LINES {
        let fault = DriveProfile::read("d.toml", &changed(from, to)).unwrap_err();
        assert_eq!(fault.to_string(), *said, "{from:?} -> {to:?}");
    }
}

/// What is written instead of what, and what is said of it.
const LINES: &[(&str, &str, &str)] = &[
    (
        "channels = 8 ",
        "channels = 99 ",
        "d.toml:10: `geometry.channels`: 99 is not a whole number from 1 to 64",
    ),
    (
        "channels = 8 ",
        "channels = \"8\" ",
        "d.toml:10: `geometry.channels`: \"8\" is not a whole number from 1 to 64",
    ),
    (
        "channels = 8 ",
        "chanels = 8 ",
        "d.toml:10: `geometry.chanels`: unknown field `chanels`, expected one of `channels`, \
         `chips_per_channel`, `dies_per_chip`, `planes_per_die`, `registers_per_plane`",
    ),
    (
        "typical_gb = 1000 ",
        "# ",
        "d.toml:4: `profile.typical_gb`: a drive of any size says which one is usual; give `typical_gb`",
    ),
    (
        "read_us = 73 ",
        "read_us = -1 ",
        "d.toml:20: `block.read_us`: -1 is not a time in microseconds, from 0 to an hour",
    ),
    (
        "read_us = 73 ",
        "read_us = [73, true] ",
        "d.toml:20: `block.read_us`: true is not a time in microseconds, from 0 to an hour",
    ),
    (
        "read_us = 73 ",
        "read_us = [] ",
        "d.toml:20: `block.read_us`: an empty list has no time; give one, or several that repeat",
    ),
    (
        "pages_per_block = 2304 ",
        "pages_per_block = 2303 ",
        "d.toml:18: `block.pages_per_block`: 2303 is no multiple of `pages_per_program`, 3",
    ),
    (
        "page_kib = 16 ",
        "page_kib = 18 ",
        "d.toml:17: `block.page_kib`: 18 is no multiple of 4, the KiB of a unit",
    ),
    (
        "wear_spread = 100 ",
        "#",
        "d.toml:46: `translation.wear`: \"full\" needs `wear_spread`, the erases by which blocks may differ",
    ),
    (
        "wear = \"full\" ",
        "wear = \"simple\" ",
        "d.toml:47: `translation.wear_spread`: it is for `wear = \"full\"` only; leave it out, or change \
         that",
    ),
    (
        "wear = \"full\" ",
        "wear = \"fully\" ",
        "d.toml:46: `translation.wear`: unknown variant `fully`, expected one of `off`, `simple`, `full`",
    ),
    ("victim = \"greedy\" ", "#", "d.toml:39: `translation`: missing field `victim`"),
    (
        "[translation]",
        "[transl]",
        "d.toml:39: `transl`: unknown field `transl`, expected one of `profile`, `geometry`, `bus`, `link`, \
         `controller`, `in_place`, `block`, `translation`, `urgent`",
    ),
    (
        "gc_idle_blocks = 6 ",
        "gc_idle_blocks = 4 ",
        "d.toml:44: `translation.gc_idle_blocks`: an idle drive collects until more than `gc_blocks` are \
         free; give more, or 0 for not at all",
    ),
    (
        "buffer_mib = 64 ",
        "buffer_mib = 1 ",
        "d.toml:40: `translation.buffer_mib`: 1 is less than the largest command; give 2 or more, or 0 for \
         no buffer",
    ),
    (
        "sector_bytes = 4096 ",
        "sector_bytes = 1000 ",
        "d.toml:28: `bus.sector_bytes`: 1000 does not divide 4096; give a power of two",
    ),
    (
        "sector_bytes = 4096 ",
        "read_us_per_4kib = 3 ",
        "d.toml:28: `bus.read_us_per_4kib`: the same is said in MB/s, too; leave one of the two out",
    ),
    (
        "command_us = 4 ",
        "warm_up_ms = 4 ",
        "d.toml:36: `controller.warm_up_ms`: a drive never sleeps without `low_power_ms`; give it",
    ),
    (
        "chips_per_channel = 1 ",
        "chips_per_channel = 64 ",
        "d.toml:9: `geometry`: channels x chips x dies x planes are 8192; at most 4096 do",
    ),
    (
        "read_mb_per_s = 667 ",
        "read_mb_per_s = 0 ",
        "d.toml:26: `bus.read_mb_per_s`: 0 is not a rate in MB/s, from 0.001 to 1000000; without this line \
         there is no limit",
    ),
    ("[geometry]", "[geometry", "d.toml:9: unclosed table, expected `]`"),
    (
        "seed = 1",
        "seed = 1\n[in_place]\npage_kib = 4\nread_us = 1\nwrite_us = 1",
        "d.toml:16: `block`: what is overwritten in place (`[in_place]`) has no blocks and no translation; \
         leave one out",
    ),
    (
        "seed = 1",
        "\"s\\ned\" = 1",
        "d.toml:49: `translation.s ed`: unknown field `s ed`, expected one of `buffer_mib`, \
         `over_provisioning_percent`, `victim`, `gc_blocks`, `gc_idle_blocks`, `idle_ms`, `wear`, `wear_spread`, \
         `bad_blocks_ppm`, `seed`, `map_cache_bytes`, `map_entry_bytes`",
    ),
    (
        "seed = 1",
        "seed = 1\nmap_cache_bytes = 4000",
        "d.toml:50: `translation.map_cache_bytes`: 4000 is not a whole number from 4096 to 4294967295",
    ),
    (
        "registers_per_plane = 2 ",
        "registers_per_plane = 1\n[urgent]\nrank = true\nregister = true #",
        "d.toml:17: `urgent.register`: a plane has one register only; give 2 `registers_per_plane`, or leave it out",
    ),
    (
        "seed = 1",
        "seed = 1\n[urgent]\nplaces = 4\nshare_percent = 10",
        "d.toml:52: `urgent.share_percent`: urgent commands have no rank without `rank = true`; give it, or leave this \
         out",
    ),
    (
        "seed = 1",
        "seed = 1\n[urgent]\nshares = 10",
        "d.toml:51: `urgent.shares`: unknown field `shares`, expected one of `places`, `rank`, `register`, `inherit`, \
         `share_percent`",
    ),
    (
        "seed = 1",
        "seed = 1\nmap_entry_bytes = 8",
        "d.toml:50: `translation.map_entry_bytes`: it is for a map in flash, with `map_cache_bytes`; give that, or \
         leave this out",
    ),
    (
        "what = \"TLC 3D NAND behind PCIe 3.0 x4\"",
        "what = \"\"",
        "d.toml:5: `profile.what`: \"\" is not a line of 1 to 200 characters",
    ),
    (
        "over_provisioning_percent = 7 ",
        "over_provisioning_percent = nan ",
        "d.toml:41: `translation.over_provisioning_percent`: NaN is not a number from 0 to 400",
    ),
    (
        "erase_us = 15000 ",
        "share_percent = 50\nerase_us = 15000 ",
        "d.toml:22: `block.share_percent`: the shares sum to 50, not to 100",
    ),
    (
        "erase_us = 15000 ",
        "blocks_per_plane = 3\nerase_us = 15000 ",
        "d.toml:7: `profile.typical_gb`: `blocks_per_plane` says the size of this drive; leave one of them \
         out",
    ),
];

#[test]
fn a_file_is_a_profile_or_a_line_says_why_not() {
    let dir = std::env::temp_dir().join(format!("nvmed-profile-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("my.toml");
    let name = path.to_str().unwrap();
    let said = || DriveProfile::named(name).map(drop).map_err(|fault| fault.to_string());
    assert_eq!(said(), Err(format!("{name}: No such file or directory")));
    std::fs::write(&path, changed("channels = 8 ", "channels = 4 ")).unwrap();
    assert_eq!(DriveProfile::named(name).unwrap().template().channels, 4);
    std::fs::write(&path, b"a = \"\xff\"").unwrap();
    assert_eq!(said(), Err(format!("{name}: is no text (byte 5 is no UTF-8); a profile is a TOML file")));
    std::fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
    let long = "is longer than any profile; a profile is a TOML file of at most 1 MiB";
    assert_eq!(said(), Err(format!("{name}: {long}")));
    // A pipe to which nobody writes, and a device: neither is waited for.
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let special = "is no regular file; a profile is a TOML file of at most 1 MiB";
    assert_eq!(said(), Err(format!("{name}: {special}")));
    let device = DriveProfile::named("/dev/zero").unwrap_err().to_string();
    assert_eq!(device, format!("/dev/zero: {special}"));
    let missing = DriveProfile::named("qlc").unwrap_err().to_string();
    assert!(missing.starts_with("no profile is called `qlc`; there are dram, xpoint, "), "{missing}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn sizes_that_no_drive_has_are_refused_with_one_that_does() {
    let said = |name: &str, bytes| named(name).drive(bytes).unwrap_err().to_string();
    assert_eq!(
        said("tlc", 1000),
        "profile `tlc`: a drive has whole units of 4096 bytes, not 1000 bytes; give a size such as 1G"
    );
    assert!(said("tlc", 0).contains("whole units"));
    for name in DriveProfile::names() {
        let profile = named(name);
        for bytes in [4 * MIB, 1 << 62] {
            let Err(fault) = profile.drive(bytes) else { continue };
            let (ProfileFault::Small { least_mib: mib, .. } | ProfileFault::Large { most_mib: mib, .. }) =
                fault
            else {
                panic!("{fault}")
            };
            assert!(profile.drive(mib * MIB).is_ok(), "{name}: {fault}");
        }
    }
    assert_eq!(
        said("emmc", 64 * GIB),
        "profile `emmc`: 68719476736 bytes are too many; the largest size is 30504M"
    );
}

/// A profile with parts taken away, doubled or exchanged, if it is still a text.
pub(in crate::profile) fn spoiled(text: &str, dice: &mut Dice) -> Option<String> {
    const PIECES: [&str; 12] = [
        "-1",
        "0",
        "1e300",
        "nan",
        "\"x\"",
        "[]",
        "[1, 2]",
        "99999999999999999999",
        "\n",
        "[[block]]",
        "{",
        "=",
    ];
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=dice.index(3) {
        let at = dice.index(bytes.len());
        let end = (at + 1 + dice.index(12)).min(bytes.len());
        match dice.index(4) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes[at] ^= 1 << dice.index(7),
            2 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                // In place of a number.
                let number = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at, |digit| at + digit);
                let end = number + bytes[number..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(number..end, PIECES[dice.index(PIECES.len())].bytes());
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Each such text is a profile, or one line says why not.
#[test]
fn fuzz_no_text_is_more_than_refused() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..4000 {
        let mut dice = Dice::of(&[seed]);
        let (_, text) = BUILT_IN[dice.index(BUILT_IN.len())];
        let Some(text) = spoiled(text, &mut dice) else { continue };
        match DriveProfile::read("d.toml", &text) {
            Ok(profile) => {
                good += 1;
                for bytes in [64 * MIB, 4 * GIB, profile.usual_bytes()] {
                    if let Ok(drive) = profile.drive(bytes) {
                        assert!(drive.check().is_ok() && Figures::of(&drive).is_some(), "seed {seed}");
                    }
                }
            }
            Err(fault) => {
                bad += 1;
                let said = fault.to_string();
                assert!(!said.contains(char::is_control) && said.contains("d.toml"), "seed {seed}: {said:?}");
            }
        }
    }
    assert!(good > 400 && bad > 400, "{good} are profiles, {bad} are not");
}
