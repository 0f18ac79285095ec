//! What is wrong is said in one line with an exit status, and nothing is lost.

use crate::scratch::Scratch;

#[test]
fn what_is_no_device_of_ours_is_told_so() {
    let scratch = Scratch::new();
    scratch.fails(["ls", "missing.img"], 4, "missing.img");
    scratch.file("zeros.img", vec![0; 64 << 20]);
    scratch.fails(["ls", "zeros.img"], 4, "no nvmed file system");
    scratch.file("text.img", "dear diary");
    scratch.fails(["ls", "text.img"], 4, "text.img");
    scratch.fails(["ls", "warp:d.img"], 2, "unknown engine `warp`");
    scratch.fails(["ls", "tcp:host:4420"], 2, "not in this version");
    scratch.fails(["ls", "vfio:0000:ff:1f.7"], 1, "no PCI function 0000:ff:1f.7");
    scratch.fails(["ls", "d.img?speed=fast"], 2, "device option `speed=fast`");
}

#[test]
fn another_version_is_not_touched() {
    let scratch = Scratch::with_device("64M");
    let good = std::fs::read(scratch.path("d.img")).unwrap();
    // A later program writes its version with a checksum that is right, in both copies.
    let mut image = good.clone();
    for start in [0, good.len() - 4096] {
        let block = &mut image[start..start + 4096];
        block[8] += 1;
        let sum = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&sum.to_le_bytes());
    }
    scratch.file("d.img", &image);
    scratch.fails(["ls", "d.img"], 4, "format version 3");
    assert_eq!(std::fs::read(scratch.path("d.img")).unwrap(), image, "the image was changed");
}

#[test]
fn a_truncated_image_is_noticed_and_whole_again_when_it_grows_back() {
    let scratch = Scratch::with_device("64M");
    scratch.file("a", "kept");
    scratch.ok(["cp", "a", "d.img:/a"]);
    let whole = std::fs::read(scratch.path("d.img")).unwrap();
    let image = std::fs::OpenOptions::new().write(true).open(scratch.path("d.img")).unwrap();
    image.set_len(32 << 20).unwrap();
    scratch.fails(["ls", "d.img"], 4, "truncated");
    image.set_len((32 << 20) + 100).unwrap();
    assert_eq!(scratch.run(["ls", "d.img"]).status, 4);
    scratch.file("d.img", whole);
    assert_eq!(scratch.ok(["cat", "d.img:/a"]), "kept");
}

#[test]
fn a_full_device_says_so_and_can_be_emptied() {
    let scratch = Scratch::with_device("32M");
    let mut bytes = vec![0; 60 << 20];
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    scratch.file("big", &bytes);
    scratch.file("small", "kept");
    scratch.ok(["cp", "small", "d.img:/small"]);
    scratch.fails(["cp", "big", "d.img:/big"], 1, "no space left on the device");
    assert_eq!(scratch.ok(["cat", "d.img:/small"]), "kept");
    scratch.ok(["rm", "d.img:/big"]);
    scratch.file("half", &bytes[..10 << 20]);
    scratch.ok(["cp", "half", "d.img:/half"]);
    assert!(scratch.ok(["cat", "d.img:/half"]).len() > 1 << 20);
    assert!(scratch.ok(["fsck", "d.img"]).contains("clean"));
}

#[test]
fn names_without_length_and_of_too_much_length() {
    let scratch = Scratch::with_device("64M");
    let long = format!("d.img:/{}", "n".repeat(256));
    scratch.fails(["mkdir", long.as_str()], 1, "255 bytes");
    let path = format!("d.img:/{}", "d/".repeat(3000));
    scratch.fails(["mkdir", path.as_str()], 1, "4095");
    scratch.fails(["cat", ""], 2, "");
    scratch.fails(["mkdir", "d.img:/"], 1, "exists");
    assert_eq!(scratch.ok(["ls", "d.img"]), "");
}

#[test]
fn an_image_that_may_not_be_written() {
    let scratch = Scratch::with_device("64M");
    let path = scratch.path("d.img");
    let mut permissions = path.metadata().unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o444);
    std::fs::set_permissions(&path, permissions).unwrap();
    if std::fs::OpenOptions::new().write(true).open(&path).is_ok() {
        println!("SKIPPED: the tests run as root, who may write a read-only file");
        return;
    }
    scratch.fails(["mkdir", "d.img:/a"], 4, "d.img");
}

#[test]
fn settings_that_cannot_be_used() {
    let scratch = Scratch::with_device("64M");
    scratch.fails(["run", "true"], 2, "no settings");
    scratch.fails(["run", "-D", "d.img", "true"], 2, "give --dir too");
    scratch.fails(["run", "-d", "files", "true"], 2, "give --device too");
    for root in ["/", "//", "/."] {
        scratch.fails(["run", "-D", "d.img", "-d", root, "true"], 2, "a directory below it");
    }
    scratch.fails(["run", "-c", "missing.conf", "true"], 2, "missing.conf");
    for (text, words) in [
        ("wrap_dir = s\nstorage_dev = d.img\nspeed = 9\n", "bad.conf:3: unknown key `speed`"),
        ("wrap_dir = s\nstorage_dev = d.img\nffs_format = maybe\n", "bad.conf:3: "),
        ("wrap_dir = s\nstorage_engine = warp\nstorage_dev = d.img\n", "bad.conf:2: unknown engine"),
        ("storage_dev = d.img\n", "`wrap_dir` is not set"),
    ] {
        scratch.file("bad.conf", text);
        scratch.fails(["run", "-c", "bad.conf", "true"], 2, words);
    }
}
