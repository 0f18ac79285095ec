//! Bytes that somebody else wrote: damaged images, settings, device strings. Every answer is a value or
//! one line with an exit status, never a panic.

use crate::scratch::Scratch;
use nvmed_stack::config::absolute;
use nvmed_stack::{Config, DeviceSpec};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Smallest device, so that copying it for each case is cheap.
const DEVICE: &str = "8M";
/// A case starts four programs, so fewer are run than of cheap ones.
const CASES_SHARE: u32 = 16;
/// Damage of one case: the rest of a block or a byte of it, which block, where in it, and what.
type Damage = Vec<(bool, u16, u16, u8)>;

/// A device with a little of everything on it.
fn image() -> (Scratch, Vec<u8>) {
    let scratch = Scratch::with_device(DEVICE);
    for index in 0..40 {
        scratch.file(&format!("tree/d{}/f{index}", index % 5), vec![index; usize::from(index) * 300]);
    }
    std::os::unix::fs::symlink("d1/f1", scratch.path("tree/link")).unwrap();
    scratch.ok(["cp", "-r", "tree", "d.img:/tree"]);
    scratch.ok(["rm", "-r", "d.img:/tree/d0"]);
    let bytes = std::fs::read(scratch.path("d.img")).unwrap();
    (scratch, bytes)
}

/// Damages `bytes` in the blocks that were written, so that something reads the damage.
fn damage(bytes: &mut [u8], written: &[usize], damage: &Damage) {
    for &(whole, block, offset, value) in damage {
        let start = written[usize::from(block) % written.len()] * 4096;
        let at = start + usize::from(offset) % 4096;
        if whole {
            bytes[at..start + 4096].fill(value);
        } else {
            bytes[at] ^= value;
        }
    }
}

#[test]
fn fuzz_a_damaged_image_is_an_answer() {
    let (scratch, good) = image();
    let is_written = |block: &usize| good[block * 4096..][..4096].iter().any(|&byte| byte != 0);
    // Superblocks and metadata; data is nobody's to judge. docs/spec/fs.md, "Regions".
    let meta_end = 1 + u64::from_le_bytes(good[112..120].try_into().unwrap()) as usize;
    let last = good.len() / 4096 - 1;
    let written: Vec<usize> = (0..meta_end).chain([last]).filter(is_written).collect();
    let cases = Runs::default().cases / CASES_SHARE;
    let each = prop::collection::vec((any::<bool>(), any::<u16>(), any::<u16>(), 1..=u8::MAX), 1..4);
    let mut runner = TestRunner::new(Runs { cases, ..Runs::default() });
    let noticed = AtomicU32::new(0);
    let tested = runner.run(&each, |hits| {
        let mut bytes = good.clone();
        damage(&mut bytes, &written, &hits);
        std::fs::write(scratch.path("d.img"), bytes).unwrap();
        for arguments in [
            &["fsck", "d.img"][..],
            &["ls", "-l", "d.img:/tree/d1"],
            &["cat", "d.img:/tree/d1/f6", "d.img:/tree/d2/f37"],
            &["rm", "-r", "d.img:/tree"],
        ] {
            let ran = scratch.run(arguments);
            noticed.fetch_add(u32::from(ran.status != 0), Ordering::Relaxed);
            prop_assert!([0, 1, 4].contains(&ran.status), "{arguments:?}: {}\n{}", ran.status, ran.err);
            // One line for what was wrong, and one for each lost copy of two that was mended on the way.
            let others = ran.err.lines().filter(|line| !line.ends_with("it was written again"));
            prop_assert!(others.count() <= 1, "{arguments:?}: {}", ran.err);
        }
        Ok(())
    });
    tested.unwrap();
    assert!(noticed.into_inner() > 0, "no damage was ever noticed: it hits nothing that is read");
}

proptest! {
    #[test]
    fn fuzz_any_settings_are_answered(
        text in "(?s)((wrap_dir|ffs_prealloc|storage_dev|storage_engine|cache_size|x)? ?=? ?.{0,12}\n?){0,8}",
    ) {
        if let Ok(config) = Config::parse(&text, "any.conf", Path::new("/")) {
            let again = Config::parse(&config.to_text(), "again.conf", Path::new("/"));
            prop_assert_eq!(again.ok(), Some(config), "what is written is read back");
        }
    }

    /// Paths with bytes that mean something to a reader of settings.
    #[test]
    fn fuzz_paths_in_settings_are_kept(
        dir in "[ a/.?:#=,\\r\\x0b]{1,8}",
        device in "(uring:|vfio:|nvm:)?[ a/.?:#=,\\r\\x0b]{1,8}",
    ) {
        if let Ok(spec) = DeviceSpec::parse(&device) {
            let config = Config::new(absolute(Path::new("/"), dir), spec.absolute(Path::new("/")));
            let again = Config::parse(&config.to_text(), "again.conf", Path::new("/"));
            prop_assert_eq!(again.ok(), Some(config), "what is written is read back");
        }
    }

    #[test]
    fn fuzz_any_device_string_is_answered(
        text in "(virtual:|nvm:|vfio:|vfio:0000:01:00\\.[0-7])?.{0,12}(\\?[a-z]{0,6}=.{0,6})?",
    ) {
        if let Ok(spec) = DeviceSpec::parse(&text) {
            prop_assert_eq!(DeviceSpec::parse(&spec.to_string()).ok(), Some(spec), "what is shown is read back");
        }
    }
}
