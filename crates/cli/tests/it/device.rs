//! `nvmed device`: profiles are listed and shown, and a device of one is a device; what does not fit is one line.

use crate::scratch::Scratch;

#[test]
fn profiles_are_listed_with_their_sources() {
    let scratch = Scratch::new();
    let list = scratch.ok(["device", "profiles"]);
    assert_eq!(list.lines().count(), 10, "{list}");
    for (name, source) in
        [("tlc", "UT81NDQ512G8T"), ("hmbio", "Table 4"), ("emmc-hps", "IISWC'15"), ("pcm", "HotStorage'11")]
    {
        let line = list.lines().find(|line| line.starts_with(&format!("{name} ")));
        assert!(line.is_some_and(|line| line.contains(source)), "no {name} of {source} in {list}");
    }
    let json = scratch.ok(["device", "profiles", "--json"]);
    assert!(json.lines().all(|line| line.contains("\"source\":")) && json.lines().count() == 10, "{json}");
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
    assert!(scratch.ok(["device", "show", "emmc"]).contains("sleeps after 500 ms, wakes in 4 ms"));
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
