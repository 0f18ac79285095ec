//! C programs against the library, shared and static.

mod support;

use std::process::Command;
use support::{Bench, Link, root};

/// The examples do what they say, and check it themselves.
#[test]
fn the_examples_run() {
    let bench = Bench::new();
    for link in [Link::Shared, Link::Static] {
        for (name, says) in [
            ("hello", "hello, device"),
            ("aio", "0 errors"),
            ("policies", "durable write"),
            ("files", "64 blocks read, 0 bad"),
        ] {
            let program = bench.compile(&root().join(format!("examples/c/{name}.c")), link);
            let said = bench.run(&program, &[]);
            assert!(said.contains(says), "{name} said {said:?}");
        }
    }
}

/// Bytes outlive the program in an image, and the paper's names work.
#[test]
fn an_image_keeps_what_was_written() {
    let bench = Bench::new();
    let hello = bench.compile(&root().join("examples/c/hello.c"), Link::Shared);
    std::fs::File::create(bench.dir.join("disk.img")).unwrap().set_len(1 << 20).unwrap();
    bench.run(&hello, &["virtual:disk.img"]);
    let image = std::fs::read(bench.dir.join("disk.img")).unwrap();
    assert!(image[1000..].starts_with(b"hello, device\n"));
}

/// A program that forgets to close loses nothing by ending in an orderly way.
#[test]
fn what_was_written_survives_exit() {
    let bench = Bench::new();
    let program = bench.compile(&root().join("crates/capi/tests/c/leaves.c"), Link::Shared);
    for (how, left) in [("return", "return"), ("callback", "CALLback"), ("child", "CHILD")] {
        let image = bench.dir.join(format!("{how}.img"));
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        bench.run(&program, &[&format!("virtual:{how}.img"), how]);
        let bytes = std::fs::read(&image).unwrap();
        assert!(bytes[5000..].starts_with(left.as_bytes()), "{how}: {:?}", &bytes[5000..5010]);
    }
}

/// By the record of the drive: what is urgent by a handle, a flag, a policy or a feature passes others, and what is not
/// does not.
#[test]
fn what_c_calls_urgent_is_urgent_at_the_drive() {
    let bench = Bench::new();
    let program = bench.compile(&root().join("crates/capi/tests/c/urgent.c"), Link::Shared);
    let device = "virtual:?media=dram,size=64M,profile=tlc,record=r.csv";
    let is_urgent = |starter: &[&str], way: &str| {
        let program = program.display().to_string();
        let words = [starter, &[&*program, device, way]].concat();
        bench.run(words[0].as_ref(), &words[1..]);
        let record = std::fs::read_to_string(bench.dir.join("r.csv")).unwrap();
        // Only the program's own write is of 96 blocks.
        let is_it =
            |row: &&str| matches!(row.split(',').collect::<Vec<_>>()[..], [_, _, "1", _, _, "96", ..]);
        let rows: Vec<_> = record.lines().filter(is_it).collect();
        assert_eq!(rows.len(), 1, "{way}: {record}");
        rows[0].ends_with(",1")
    };
    for way in ["handle", "aio", "file-policy", "file-feature", "file-aio"] {
        assert!(is_urgent(&[], way), "{way}");
    }
    for way in ["plain", "aio-plain", "file-plain", "file-aio-plain"] {
        assert!(!is_urgent(&[], way), "{way}");
    }
    let real_time = ["ionice", "-c", "1"];
    let has_real_time =
        Command::new("ionice").args(["-c", "1", "true"]).status().is_ok_and(|it| it.success());
    if !has_real_time {
        println!("SKIPPED: the I/O class real-time needs ionice, and CAP_SYS_NICE or CAP_SYS_ADMIN");
        return;
    }
    for way in ["plain", "aio-plain", "file-plain", "file-aio-plain"] {
        assert!(is_urgent(&real_time, way), "{way}: its threads are of the class real-time");
    }
}

/// Every call, used well and badly: the program asserts.
#[test]
fn every_call_keeps_its_contract() {
    let bench = Bench::new();
    let here = root().join("crates/capi/tests/c/contract.c");
    bench.run(&bench.compile(&here, Link::Static), &[]);
    let program = bench.compile(&here, Link::Shared);
    bench.run(&program, &[]);
    for device in [
        "virtual:?media=dram,size=16M,clock=threaded",
        "virtual:?media=dram,size=16M,lba=4096",
        "nvm:?size=16M",
    ] {
        bench.run(&program, &[device]);
    }
    match bench.try_run(&program, &["uring:uring.img?size=16M,direct=off"]) {
        Err(said) if said.contains("io_uring") => println!("SKIPPED: no io_uring here: {said}"),
        result => drop(result.unwrap()),
    }
}

/// Every call of nvmedfs.h, used well and badly: the program asserts.
#[test]
fn every_file_call_keeps_its_contract() {
    let bench = Bench::new();
    let here = root().join("crates/capi/tests/c/files.c");
    bench.run(&bench.compile(&here, Link::Static), &[]);
    let program = bench.compile(&here, Link::Shared);
    for device in [
        "virtual:?media=dram,size=64M,clock=threaded,latency=20us",
        "virtual:?media=dram,size=64M,lba=4096",
        "nvm:?size=64M",
    ] {
        bench.run(&program, &[device]);
    }
}

/// A program that forgets to unmount loses nothing by ending in an orderly way.
#[test]
fn files_survive_exit() {
    let bench = Bench::new();
    let program = bench.compile(&root().join("crates/capi/tests/c/files.c"), Link::Shared);
    std::fs::File::create(bench.dir.join("disk.img")).unwrap().set_len(64 << 20).unwrap();
    bench.run(&program, &["virtual:disk.img", "leave"]);
    let image = std::fs::read(bench.dir.join("disk.img")).unwrap();
    assert!(image.windows(5).any(|bytes| bytes == b"left\n"), "the data is on the device");
    // What is left is a file system that can be used again, with the file in it.
    bench.run(&program, &["virtual:disk.img"]);
}

/// A device that holds a file system can be read; every write is refused, with what is there and which flag allows it.
#[test]
fn a_file_system_is_overwritten_with_a_flag_only() {
    let bench = Bench::new();
    let image = bench.dir.join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let files = bench.compile(&root().join("crates/capi/tests/c/files.c"), Link::Shared);
    bench.run(&files, &["virtual:disk.img"]);
    let before = std::fs::read(&image).unwrap();
    let overwrite = bench.compile(&root().join("crates/capi/tests/c/overwrite.c"), Link::Shared);
    bench.run(&overwrite, &["virtual:disk.img", "refused", "an nvmed file system"]);
    assert!(std::fs::read(&image).unwrap() == before, "the file system is as it was");
    bench.run(&overwrite, &["virtual:disk.img", "allowed"]);
    bench.run(&overwrite, &["virtual:disk.img", "formatted"]);
}

/// The example of the README, exactly as printed, beside the file system that the README's first run made: twice.
#[test]
fn the_readme_can_be_run_twice() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let image = readme.lines().find_map(|line| line.strip_prefix("nvmed format ")).unwrap();
    let image = image.split(' ').next().unwrap();
    let bench = Bench::new();
    let source = bench.dir.join("readme.c");
    let tail = "return handle && nvmed_last_error_info(&(struct nvmed_error){ 0 }) != 0 ? 0 : 1;";
    std::fs::write(&source, format!("#include <nvmed.h>\nint main(void)\n{{\n{lines}{tail}\n}}\n")).unwrap();
    std::fs::File::create(bench.dir.join(image)).unwrap().set_len(64 << 20).unwrap();
    let files = bench.compile(&root().join("crates/capi/tests/c/files.c"), Link::Shared);
    bench.run(&files, &[&format!("virtual:{image}")]);
    let before = std::fs::read(bench.dir.join(image)).unwrap();
    let program = bench.compile(&source, Link::Shared);
    for _ in 0..2 {
        bench.run(&program, &[]);
        assert!(std::fs::read(bench.dir.join(image)).unwrap() == before, "the file system is as it was");
    }
}
