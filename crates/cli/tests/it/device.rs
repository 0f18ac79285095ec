//! `nvmed device`: profiles are listed and shown, and a device of one is a device; what does not fit is one line.

use crate::scratch::Scratch;

#[test]
fn profiles_are_listed_with_their_sources() {
    let scratch = Scratch::new();
    let list = scratch.ok(["device", "profiles"]);
    let parts: Vec<_> = list.split("\n\n").collect();
    assert_eq!(parts.iter().map(|part| part.lines().count()).collect::<Vec<_>>(), [12, 6], "{list}");
    assert!(
        parts[0].starts_with("drives, for virtual:") && parts[1].starts_with("media behind a DRAM buffer")
    );
    let names: Vec<_> = parts[1].lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["dram", "pcm", "reram", "cxl-flash", "nand"]);
    for (name, source) in
        [("tlc", "UT81NDQ512G8T"), ("hmbio", "Table 4"), ("emmc-hps", "IISWC'15"), ("pcm", "HotStorage'11")]
    {
        let line = list.lines().find(|line| line.starts_with(&format!("{name} ")));
        assert!(line.is_some_and(|line| line.contains(source)), "no {name} of {source} in {list}");
    }
    let json = scratch.ok(["device", "profiles", "--json"]);
    assert!(json.lines().all(|line| line.contains("\"source\":")) && json.lines().count() == 16, "{json}");
    let of = |kind: &str| json.lines().filter(|line| line.contains(&format!("\"kind\":\"{kind}\""))).count();
    assert_eq!((of("drive"), of("memory")), (11, 5), "{json}");
}

/// Memory behind a buffer is shown too; where a drive has its name, when it is asked for.
#[test]
fn memory_behind_a_buffer_is_shown() {
    let scratch = Scratch::new();
    let page = scratch.ok(["device", "show", "cxl-flash"]);
    for words in
        ["nvm:FILE?profile=cxl-flash,buffer=64M", "as the drive slc", "75 % of it; at least buffer=16384"]
    {
        assert!(page.contains(words), "no {words:?} in {page}");
    }
    let drive = scratch.ok(["device", "show", "pcm"]);
    assert!(drive.ends_with("also memory behind a buffer: `nvmed device show --memory pcm`\n"), "{drive}");
    let page = scratch.ok(["device", "show", "--memory", "pcm"]);
    assert!(page.contains("read 305 ns, write 500 ns; link 2300 MB/s"), "{page}");
    let json = scratch.ok(["device", "show", "--memory", "pcm", "--json"]);
    assert!(json.contains("\"read_ns\":305") && json.contains("\"kept\":true"), "{json}");
    let own =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../stack/profiles/memory/reram.toml"));
    scratch.file("my.toml", own.unwrap());
    assert!(scratch.ok(["device", "show", "./my.toml"]).contains("memory behind a DRAM buffer: nvm:FILE"));
    scratch.fails(["device", "show", "nand", "--size", "1G"], 2, "leave out --size");
    scratch.fails(
        ["device", "show", "--memory", "tlc"],
        2,
        "no profile is called `tlc`; there are dram, pcm, reram",
    );
}

/// The profile in docs/nvm-buffer.md is one, and a device that has it says what stands before the medium.
#[test]
fn the_document_s_own_medium_is_one_and_is_told_of_a_device() {
    let scratch = Scratch::new();
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nvm-buffer.md")).unwrap();
    let profile = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    scratch.file("my-medium.toml", profile);
    let device = "nvm:m.img?profile=./my-medium.toml,buffer=1M,clock=waited,prefetch=device";
    scratch.ok(["format", device, "--size", "64M"]);
    let file = scratch.path("my-medium.toml");
    let line =
        format!("buffer      1.0 MiB before the medium {}, clock=waited, prefetch=device", file.display());
    for command in ["info", "identify"] {
        let page = scratch.ok([command, device]);
        assert!(page.lines().any(|said| said == line), "{page}");
        let json = scratch.ok([command, device, "--json"]);
        assert!(json.contains("\"buffer\":{") && json.contains("\"clock\":\"waited\""), "{json}");
        assert!(!scratch.ok([command, "nvm:m.img"]).contains("buffer "), "it has none");
    }
}

#[test]
fn a_drive_is_shown_with_what_it_can_do() {
    let scratch = Scratch::new();
    let page = scratch.ok(["device", "show", "hmbio"]);
    for words in [
        "33.5 GiB (35999711232 bytes)",
        "8 channels x 4 chips x 1 dies x 1 planes",
        "256 pages of 4.0 KiB",
        "4 KiB read 100 us, 4 KiB write 840 us",
        "(133333 a second)",
        "no write buffer",
    ] {
        assert!(page.contains(words), "no {words:?} in {page}");
    }
    assert!(!page.contains("smaller"), "{page}");
    let page = scratch.ok(["device", "show", "tlc", "--size", "64M"]);
    assert!(
        page.contains("1 of 4 dies, 1 of 4 planes, ") && page.contains("64.0 MiB (67108864 bytes)"),
        "{page}"
    );
    let json = scratch.ok(["device", "show", "emmc", "--json"]);
    assert!(json.contains("\"commands\":1,") && json.contains("\"read_4k_ns\":282880.0"), "{json}");
    assert!(
        scratch
            .ok(["device", "show", "emmc"])
            .contains("; packs up to 63 writes that wait; sleeps after 500 ms, wakes in 4 ms")
    );
    let page = scratch.ok(["device", "show", "dram", "--size", "1G"]);
    assert!(
        page.contains("overwritten in place: read 30 ns") && !page.contains("over-provisioning"),
        "{page}"
    );
}

#[test]
fn what_is_no_profile_is_said_in_a_line() {
    let scratch = Scratch::new();
    scratch.fails(["device", "show", "qlc"], 2, "no profile is called `qlc`; there are dram, xpoint");
    scratch.fails(["device", "show", "./none.toml"], 1, "./none.toml: No such file or directory");
    scratch.fails(["device", "show", "./"], 1, "./: Is a directory");
    scratch.fails(["device", "show", "tlc", "--size", "1M"], 2, "the least size is");
    scratch.fails(["device", "show", "emmc", "--size", "1T"], 2, "the largest size is 30504M");
    scratch.file("my.toml", "[profile]\nwhat = 3\n");
    scratch.fails(["device", "show", "my.toml"], 2, "my.toml:2: `profile.what`: 3 is not a line");
}

#[test]
fn a_device_has_a_profile() {
    let scratch = Scratch::new();
    scratch.ok(["format", "virtual:d.img?profile=tlc", "--size", "64M"]);
    scratch.file("a", "text");
    scratch.ok(["cp", "a", "virtual:d.img?profile=tlc:/a"]);
    assert_eq!(scratch.ok(["cat", "d.img:/a"]), "text");
    scratch.fails(["info", "virtual:d.img?profile=tlc,latency=1us"], 2, "leave it out, or `latency`");
    scratch.fails(["info", "virtual:d.img?profile=qlc"], 2, "no profile is called `qlc`");
    scratch.fails(["info", "virtual:d.img?profile=my.toml"], 2, "my.toml: No such file");
    // No file is made of a size that no such drive has.
    scratch.fails(["format", "virtual:e.img?profile=tlc", "--size", "3M"], 2, "the least size is");
    assert!(!scratch.path("e.img").exists());
}

#[test]
fn a_drive_has_memory_of_its_host() {
    let scratch = Scratch::new();
    let ram = "virtual:?media=dram,size=64M";
    for (options, line) in [
        ("profile=tlc,hmb=64M", "would like 64.0 MiB of the host's memory, and has 64.0 MiB in 16 ranges\n"),
        (
            "profile=tlc,hmb=6M,hmb_entries=1",
            "would like 6.0 MiB of the host's memory, and has 6.0 MiB in 1 ranges\n",
        ),
        ("profile=tlc,hmb=1G,hmb_min=1G", "would like 1.0 GiB of the host's memory, and has none\n"),
    ] {
        let page = scratch.ok(["info", &format!("{ram},{options}")]);
        assert!(page.contains(line), "{page}");
    }
    assert!(!scratch.ok(["info", &format!("{ram},profile=tlc")]).contains("host's memory"));
    let json = scratch.ok(["info", "--json", &format!("{ram},profile=tlc,hmb=8M")]);
    let expected = "\"host_memory\":{\"wanted_bytes\":8388608,\"bytes\":8388608,\"ranges\":2}";
    assert!(json.contains(expected), "{json}");
    let page = scratch.ok(["info", &format!("{ram},profile=tlc,hmb=8M,hmb_io_slots=4")]);
    assert!(page.contains("            offers HMB-I/O: up to 4 slots in the host's memory\n"), "{page}");
    for (options, wrong) in [
        ("hmb=1G", "only a drive of NAND"),
        ("profile=dram,hmb=1G", "only a drive of NAND"),
        ("profile=tlc,hmb=1G,hmb_use=map:100", "leave `map` out of `hmb_use`"),
        ("profile=tlc,hmb_entries=3", "device option `hmb`: it is missing"),
        ("profile=tlc,hmb=1K", "device option `hmb=1K`"),
    ] {
        scratch.fails(["info", &format!("{ram},{options}")], 2, wrong);
    }
    // A file on a drive that stays, through a buffer that is smaller than it.
    scratch.ok(["device", "create", "d.img", "--profile", "slc", "--size", "64M"]);
    scratch.ok(["format", "d.img"]);
    scratch.file("a", "text\n".repeat(100_000));
    scratch.ok(["cp", "a", "virtual:d.img?hmb=64K:/a"]);
    assert_eq!(scratch.ok(["cat", "virtual:d.img?hmb=64K:/a"]).len(), 500_000);
    let page = scratch.ok(["smart", "virtual:d.img?hmb=64K"]);
    assert!(page.contains("host memory  64.0 KiB used; "), "{page}");
    let json = scratch.ok(["smart", "--json", "virtual:d.img?hmb=64K"]);
    assert!(json.contains("\"host_memory_bytes\":65536,"), "{json}");
}

#[test]
fn a_drive_stays_with_its_image() {
    let scratch = Scratch::new();
    let made = scratch.ok(["device", "create", "d.img", "--profile", "slc", "--size", "64M"]);
    assert_eq!(made, "d.img: a drive of 64.0 MiB, new\n");
    scratch.ok(["format", "d.img"]);
    scratch.file("a", "text\n".repeat(100_000));
    scratch.ok(["cp", "a", "d.img:/a"]);
    assert_eq!(scratch.ok(["cat", "d.img:/a"]).len(), 500_000);
    let smart = scratch.ok(["smart", "d.img"]);
    assert!(smart.contains("0 unsafe shutdowns") && smart.contains("write amplification "), "{smart}");
    assert!(smart.contains("power        4 cycles"), "{smart}");
    let json = scratch.ok(["smart", "d.img", "--json"]);
    assert!(json.contains("\"flash\":{\"write_amplification\":"), "{json}");
    // What the drive is like is said by the file beside the image, and by nothing else.
    let there = "is a drive that was made by `nvmed device create`, 67108864 bytes; leave out ";
    scratch.fails(["info", "virtual:d.img?profile=tlc"], 2, &format!("{there}`profile`"));
    scratch.fails(["info", "virtual:d.img?latency=1us"], 2, &format!("{there}`latency` and `bandwidth`"));
    scratch.fails(
        ["device", "create", "d.img", "--profile", "tlc"],
        4,
        "d.img is a drive already; --again makes",
    );
    scratch.fails(
        ["device", "create", "d.img", "--profile", "tlc", "--size", "48M", "--again"],
        2,
        "no drive of 50331648",
    );
    // Made anew, it has no history, and its bytes are there.
    assert_eq!(
        scratch.ok(["device", "precondition", "d.img"]),
        "d.img: a drive of 64.0 MiB, as after long use\n"
    );
    assert_eq!(scratch.ok(["cat", "d.img:/a"]).len(), 500_000);
    scratch.ok(["device", "create", "d.img", "--profile", "tlc", "--again", "--used"]);
    assert_eq!(scratch.ok(["cat", "d.img:/a"]).len(), 500_000);
    assert!(scratch.ok(["fsck", "d.img"]).contains("clean"));
    // A copy without the file is a plain device; the file beside another image is refused.
    std::fs::copy(scratch.path("d.img"), scratch.path("e.img")).unwrap();
    assert_eq!(scratch.ok(["cat", "e.img:/a"]).len(), 500_000);
    std::fs::copy(scratch.path("d.img.flash"), scratch.path("e.img.flash")).unwrap();
    scratch.fails(
        ["cat", "e.img:/a"],
        4,
        "e.img.flash is the state of another image (it has another identity)",
    );
    std::fs::write(scratch.path("d.img.flash"), "nonsense").unwrap();
    scratch.fails(
        ["cat", "d.img:/a"],
        4,
        "d.img.flash is no state of a drive; the image's bytes are as they were",
    );
    std::fs::remove_file(scratch.path("d.img.flash")).unwrap();
    std::os::unix::fs::symlink("nowhere", scratch.path("d.img.flash")).unwrap();
    scratch.fails(
        ["cat", "d.img:/a"],
        4,
        "d.img.flash is a link to a file that is not there; the image's bytes",
    );
    scratch.fails(["device", "create", "d.img", "--profile", "slc"], 4, "d.img is a drive already");
    std::fs::remove_file(scratch.path("d.img.flash")).unwrap();
    assert_eq!(scratch.ok(["cat", "d.img:/a"]).len(), 500_000);
    scratch.fails(["device", "precondition", "d.img"], 4, "d.img is a plain device without a drive's state");
}

#[test]
fn a_drives_size_is_its_own() {
    let scratch = Scratch::new();
    scratch.ok(["device", "create", "d.img", "--profile", "slc", "--size", "64M"]);
    let there = "is a drive that was made by `nvmed device create`, 67108864 bytes; leave out ";
    // Whichever engine opens it, and whether it holds something or not.
    let size =
        format!("{there}--size, or make another drive of it with `nvmed device create --again --size`");
    for arguments in [
        &["format", "d.img", "--size", "128M", "--force"][..],
        &["format", "d.img", "--size", "64M"],
        &["format", "uring:d.img?direct=off", "--size", "32M"],
    ] {
        scratch.fails(arguments, 2, &size);
    }
    for command in ["info", "identify"] {
        scratch.fails([command, "virtual:d.img?size=128M"], 2, &format!("{there}`size`, or make another"));
    }
    assert!(scratch.ok(["info", "virtual:d.img?size=64M"]).contains("SLC NAND"));
    scratch.fails(["format", "virtual:d.img?size=128M", "--force"], 2, "with `nvmed device create --again`");
    scratch.ok(["format", "d.img"]);
    scratch.fails(["format", "d.img", "--size", "64M"], 2, &size);
}

#[test]
fn a_drive_says_what_it_is() {
    let scratch = Scratch::new();
    scratch.ok(["device", "create", "d.img", "--profile", "tlc", "--size", "1G"]);
    scratch.ok(["format", "d.img"]);
    let lines = "drive       tlc: TLC 3D NAND behind PCIe 3.0 x4; kept beside its image\n            \
                 8 channels x 1 chips x 4 dies x 4 planes\n            \
                 15 blocks a plane, of 51 pages of 16.0 KiB, 3 a program\n";
    for command in ["info", "identify"] {
        let page = scratch.ok([command, "d.img"]);
        assert!(
            page.contains("nvmed TLC 3D NAND behind PCIe 3.0 x4, serial") && page.contains(lines),
            "{page}"
        );
        let json = scratch.ok([command, "--json", "d.img"]);
        assert!(json.contains("\"drive\":{\"profile\":\"tlc\",\"what\":\"TLC 3D NAND"), "{json}");
        assert!(json.contains("\"kept\":true,\"in_place\":false,\"channels\":8,"), "{json}");
    }
    let page = scratch.ok(["identify", "d.img"]);
    assert!(
        page.contains("writes in multiples of 4.0 KiB, best 192.0 KiB; discards in multiples of 4.0 KiB"),
        "{page}"
    );
    // What the file system has written is used, and not more.
    assert!(page.contains("of 2097152 LBAs allocated") && !page.contains(" 2097152 of 2097152"), "{page}");
    // A drive of a profile that is not built in, and one that is not kept.
    let own = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../stack/profiles/slc.toml"));
    scratch.file("my.toml", own.unwrap().replace("SLC NAND, 4 KiB pages", "mine"));
    let page = scratch.ok(["info", "virtual:?media=dram,size=64M,profile=my.toml"]);
    assert!(
        page.contains("nvmed mine, serial") && page.contains("drive       mine; new at each opening\n"),
        "{page}"
    );
    let page = scratch.ok(["info", "virtual:?media=dram,size=64M,profile=dram"]);
    assert!(page.contains("pages of 4.0 KiB, overwritten in place"), "{page}");
    assert!(page.contains("urgent requests go by wrr: a queue of the class urgent\n"), "{page}");
    let plain = scratch.ok(["identify", "--json", "virtual:?media=dram,size=64M"]);
    assert!(
        plain.contains("\"drive\":null") && plain.contains("\"model\":\"nvmed virtual controller\""),
        "{plain}"
    );
}

/// Keeps a drive as it is now.
fn copy_drive(scratch: &Scratch) {
    for (from, to) in [("drive.img", "before.img"), ("drive.img.flash", "before.img.flash")] {
        let copied = std::process::Command::new("cp")
            .args(["-a", "--", &scratch.path(from).display().to_string()])
            .arg(scratch.path(to))
            .status();
        assert!(copied.unwrap().success());
    }
}

/// A threaded run records its arrivals; replayed in virtual time they are due at the same times.
#[test]
fn what_a_drive_has_recorded_is_due_at_the_same_times_again() {
    let scratch = Scratch::new();
    scratch.file("plain.img", vec![0; 64 << 20]);
    scratch.ok(["device", "create", "drive.img", "--profile", "tlc", "--size", "64M", "--used"]);
    let drives = [
        ("virtual:plain.img?profile=tlc,record=run.csv,clock=", "virtual:plain.img?profile=tlc"),
        ("virtual:drive.img?record=run.csv,clock=", "virtual:before.img"),
    ];
    for (device, as_it_was) in drives {
        for clock in ["threaded", "virtual"] {
            copy_drive(&scratch);
            let load = ["--pattern", "randrw", "--depth", "8", "--count", "2000", "--seed", "3"];
            let device = format!("{device}{clock}");
            scratch.ok(["bench", &device, "--destroy-data"].into_iter().chain(load));
            let said = scratch.ok(["device", "replay", as_it_was, "run.csv"]);
            assert!(said.ends_with(" commands, each due when it was\n"), "{said}");
            let commands: u64 = said.split(' ').next().unwrap().parse().unwrap();
            assert!(commands >= 2000, "{said}");
        }
    }
    let text = std::fs::read_to_string(scratch.path("run.csv")).unwrap();
    assert!(text.starts_with("time_ns,queue,opcode,fua,lba,blocks,due_ns,urgent\n"), "{text}");
    // One that is due a nanosecond later.
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut columns: Vec<_> = lines[9].split(',').map(str::to_owned).collect();
    columns[6] = (columns[6].parse::<u64>().unwrap() + 1).to_string();
    lines[9] = columns.join(",");
    scratch.file("later.csv", lines.join("\n"));
    let words = "1 of 2";
    scratch.fails(["device", "replay", "virtual:before.img", "later.csv"], 1, words);
    scratch.fails(
        ["device", "replay", "virtual:before.img", "later.csv"],
        1,
        "the first in line 10, recorded ",
    );
    for (line, words) in [
        ("1,1,2,0,0,8", "line 2: it is no command"),
        ("1,1,2,0,131072,8,9", "line 2: the drive has no such blocks"),
        ("1,1,1,0,0,99999,9", "line 2: the drive has no such blocks"),
        ("1,1,2,0,0,8,9\n0,1,2,0,0,8,9", "line 3: it arrives before the one before it"),
    ] {
        scratch.file("wrong.csv", format!("{}\n{line}\n", lines[0]));
        scratch.fails(["device", "replay", "virtual:before.img", "wrong.csv"], 1, words);
    }
    scratch.fails(["device", "replay", "virtual:plain.img", "run.csv"], 2, "its commands take no time");
    let timeless = "virtual:plain.img?record=run.csv";
    scratch.fails(["bench", timeless, "--time", "20ms"], 2, "its commands take no time");
}

/// With a host memory buffer the record tells of that, too; what tells it wrongly is one line.
#[test]
fn what_a_drive_with_a_host_memory_buffer_has_recorded_is_due_at_the_same_times_again() {
    let scratch = Scratch::new();
    // A drive that is full, so that its reads come from flash.
    scratch.ok(["device", "create", "drive.img", "--profile", "tlc", "--size", "64M", "--used"]);
    let as_it_was = "virtual:before.img";
    for clock in ["threaded", "virtual"] {
        copy_drive(&scratch);
        let hmb = "hmb=1M,hmb_use=read:60+write:40";
        let device = format!("virtual:drive.img?{hmb},record=run.csv,clock={clock}");
        let load = ["--pattern", "randrw", "--depth", "8", "--count", "2000", "--seed", "3"];
        scratch.ok(["bench", &device, "--destroy-data"].into_iter().chain(load));
        let said = scratch.ok(["device", "replay", as_it_was, "run.csv"]);
        let is_so = said.starts_with("2 changes of the host memory buffer, 2")
            && said.ends_with(" commands, each due when it was\n");
        assert!(is_so, "{said}");
    }
    let json = scratch.ok(["device", "replay", as_it_was, "run.csv", "--json"]);
    assert!(json.contains("\"buffer_changes\":2,"), "{json}");
    let text = std::fs::read_to_string(scratch.path("run.csv")).unwrap();
    let first = "time_ns,queue,opcode,fua,lba,blocks,due_ns,urgent,map:0,read:153,write:102,failed_move";
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], first);
    assert!(lines[1].ends_with(",0,9,,,,,,0,153,102,"), "{}", lines[1]);
    // A drive that was never lent anything is another one.
    let without: Vec<&str> = lines.iter().copied().filter(|line| !line.contains(",0,9,,,,,,")).collect();
    scratch.file("without.csv", without.join("\n"));
    scratch.fails(["device", "replay", as_it_was, "without.csv"], 1, "without.csv: ");
    let lent = "5,0,9,,,,,,0,10,0,";
    for (lines, words) in [
        (vec!["5,0,9,,,,,,0,154,0,"], "line 2: it lends more slots than the first line says"),
        (vec![lent, lent], "line 3: it lends a buffer that was lent before"),
        (vec!["5,0,9,,,,,,,,,"], "line 2: it is about a buffer that was not lent"),
        (vec![lent, "9,0,9,,,,,,,,,1"], "line 3: the drive does not make that move then"),
        (vec![lent, "4,0,9,,,,,,,,,"], "line 3: it arrives before the one before it"),
        (vec!["5,0,9,,,,,,0,1"], "line 2: it is no command and no change of the host memory buffer"),
        (vec!["1,1,2,0,0,8,9,0"], "line 2: it is no command and no change of the host memory buffer"),
    ] {
        scratch.file("wrong.csv", format!("{first}\n{}\n", lines.join("\n")));
        scratch.fails(["device", "replay", as_it_was, "wrong.csv"], 1, words);
    }
    scratch.file("wrong.csv", format!("{}\n", first.replace("read:", "trim:")));
    scratch.fails(
        ["device", "replay", as_it_was, "wrong.csv"],
        1,
        "line 1: `trim:153` is no use of a host memory buffer",
    );
}

/// `record=` names a file that is written: what is there stays, unless it is a record.
#[test]
fn a_record_takes_the_place_of_nothing_else() {
    let scratch = Scratch::new();
    scratch.file("plain.img", vec![0; 16 << 20]);
    scratch.ok(["device", "create", "drive.img", "--profile", "tlc", "--size", "64M"]);
    scratch.file("trace.csv", "arrival_ns,op,offset_bytes,size_bytes\n0,write,0,4096\n");
    std::os::unix::fs::symlink("drive.img.flash", scratch.path("link")).unwrap();
    let kept = ["plain.img", "drive.img", "drive.img.flash", "trace.csv"];
    let read = || kept.map(|name| std::fs::read(scratch.path(name)).unwrap());
    let before = read();
    for (device, what) in [
        ("virtual:plain.img?profile=tlc,record=plain.img", "plain.img over the device"),
        ("virtual:drive.img?record=./drive.img", "drive.img over the device"),
        ("virtual:drive.img?record=link", "link over the state of the drive"),
    ] {
        scratch.fails(["bench", device, "--time", "20ms"], 2, what);
        scratch.fails(["trace", "replay", "trace.csv", device, "--destroy-data"], 2, what);
        scratch.fails(["run", "-D", device, "-d", "store", "--summary", "--", "true"], 2, what);
    }
    let device = "virtual:?media=dram,size=64M,profile=tlc,record=trace.csv";
    let what = "trace.csv over the trace; name another file";
    scratch.fails(["trace", "replay", "trace.csv", device], 2, what);
    let device = "virtual:?media=dram,size=64M,profile=tlc,record=r.csv";
    scratch.fails(["bench", device, "--html", "r.csv", "--time", "20ms"], 2, "over the device's record=");
    // Without a command's own look, the device looks at what is there.
    for file in ["plain.img", "trace.csv", "drive.img.flash"] {
        let device = format!("virtual:?media=dram,size=64M,profile=tlc,record={file}");
        scratch.fails(["identify", &device], 1, "it holds something else than a drive's record");
    }
    assert!(read() == before, "something was written over");
}
