//! `nvmed format` makes a file system, and does not destroy what somebody would miss.

use crate::scratch::{Scratch, have};

#[test]
fn a_new_device_is_sparse_and_empty() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let said = scratch.ok(["format", "d.img", "--size", "1G", "--label", "first"]);
    assert!(said.starts_with("d.img: an empty file system of 1.0 GiB: "), "{said}");
    assert!(said.ends_with(" for metadata, label \"first\"\n") && said.lines().count() == 1, "{said}");
    let meta = std::fs::metadata(scratch.path("d.img")).unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 16 << 20, "{} bytes allocated", meta.blocks() * 512);
    assert_eq!(scratch.ok(["ls", "d.img"]), "");
    scratch.ok(["fsck", "d.img"]);
    assert!(scratch.ok(["info", "d.img"]).contains("first"));
}

#[test]
fn what_is_known_is_named_and_kept() {
    let scratch = Scratch::new();
    let mut xfs = vec![0; 16 << 20];
    xfs[..4].copy_from_slice(b"XFSB");
    for (bytes, words) in [
        (xfs, "holds an xfs file system; --force overwrites it"),
        (b"SQLite format 3\0 and so on".to_vec(), "holds an SQLite database"),
        (b"dear diary".to_vec(), "holds data of a kind that nvmed does not know"),
    ] {
        scratch.file("d.img", &bytes);
        scratch.fails(["format", "d.img", "--size", "64M"], 4, words);
        assert_eq!(std::fs::read(scratch.path("d.img")).unwrap(), bytes, "the file was changed");
    }
}

#[test]
fn our_own_file_system_is_kept_too_unless_forced() {
    let scratch = Scratch::with_device("64M");
    scratch.file("a", "kept");
    scratch.ok(["cp", "a", "d.img:/a"]);
    scratch.fails(["format", "d.img"], 4, "holds an nvmed file system");
    assert_eq!(scratch.ok(["cat", "d.img:/a"]), "kept");
    scratch.ok(["format", "--force", "d.img"]);
    assert_eq!(scratch.ok(["ls", "d.img"]), "");
}

#[test]
fn a_real_ext4_is_named() {
    if !have("mkfs.ext4") {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("d.img", vec![0; 8 << 20]);
    let made = std::process::Command::new("mkfs.ext4").arg("-Fq").arg(scratch.path("d.img")).status();
    assert!(made.unwrap().success());
    scratch.fails(["format", "d.img"], 4, "holds an ext4 file system");
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let scratch = Scratch::new();
    scratch.fails(["format", "d.img"], 2, "give --size");
    assert!(!scratch.path("d.img").exists());
    scratch.file("d.img", "");
    scratch.fails(["format", "d.img"], 2, "give --size");
    scratch.fails(["format", "virtual:?media=dram,size=64M"], 2, "ends with the command");
    assert_eq!(scratch.run(["format", "d.img", "--size", "much"]).status, 2);
    let small = scratch.run(["format", "d.img", "--size", "64K"]);
    assert!(small.status != 0 && small.err.contains("cannot format"), "{}", small.err);
    scratch.ok(["format", "d.img", "--size", "64M"]);
    scratch.fails(["format", "--force", "d.img", "--size", "32M"], 2, "remove the file first");
}

#[test]
fn a_directory_is_no_device() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("dir")).unwrap();
    scratch.fails(["format", "dir", "--size", "64M"], 1, "dir");
    scratch.fails(["format", "no/such/dir/d.img", "--size", "64M"], 4, "d.img");
}

#[test]
fn options_are_taken_and_shown() {
    let scratch = Scratch::new();
    let options = ["--label", "photos", "--metadata-share", "25%", "--zone-bound", "7"];
    scratch.ok(["format", "d.img", "--size", "64M"].iter().chain(&options));
    let said = scratch.ok(["info", "d.img"]);
    assert!(
        said.contains("label \"photos\"") && said.contains("4096 of 16384 blocks for metadata"),
        "{said}"
    );
    assert!(said.contains("zone bound 7"), "{said}");
    assert!(scratch.ok(["info", "--json", "d.img"]).contains("\"zone_bound\":7"));
    scratch.ok(["fsck", "d.img"]);
    for (option, value, words) in [
        ("--metadata-share", "95", "not a share from 0.1 to 90"),
        ("--zone-bound", "many", "invalid"),
        ("--label", &"x".repeat(65), "at most 64"),
    ] {
        let ran = scratch.run(["format", "e.img", "--size", "64M", option, value]);
        assert!(ran.status == 2 && ran.err.contains(words), "{option}: {}", ran.err);
        assert!(!scratch.path("e.img").exists());
    }
    let small = scratch.run(["format", "f.img", "--size", "8M", "--metadata-share", "90"]);
    assert!(small.status != 0 && small.err.contains("must leave"), "{}", small.err);
}
