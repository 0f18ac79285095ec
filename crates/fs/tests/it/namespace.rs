//! Random operations on names against a plain tree, against the host's kernel, and across power cuts.

use crate::support::Disk;
use crate::tree::{Op, Tree, deep_ops, look, ops, run, shape};
use nvmed_fs::{FileSystem, ZONE_BOUND_NONE};
use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::sync::Arc;

const BYTES: u64 = 16 << 20;

fn zone_bound() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 1, 2, 3, 8, 64, ZONE_BOUND_NONE])
}

/// Runs the operations on a file system and on the model, which must agree about each and about what is there
/// in the end, before and after a remount.
fn agree(ops: &[Op], bound: u32) -> Result<(), TestCaseError> {
    let disk = Disk::new(BYTES);
    let mut files = disk.format_zones(bound).mount();
    let mut model = Tree::default();
    for op in ops {
        if matches!(op, Op::Remount) {
            files = disk.remount(files);
        }
        let result = run(&files, op);
        if result == Err(None) {
            continue;
        }
        prop_assert_eq!(result.map_err(|errno| errno.unwrap()), model.run(op), "{:?}", op);
        // Long ways to the same places, so that their answers are remembered.
        for path in ["a", "b", "a/b", "b/a", "a/a/b", "a/a/a/b"].map(|path| "./".repeat(8) + path) {
            for follow in [true, false] {
                let found = look(&files, &path, follow);
                if found != Err(None) {
                    prop_assert_eq!(
                        found.map_err(|errno| errno.unwrap()),
                        model.look(&path, follow),
                        "{}",
                        path
                    );
                }
            }
        }
    }
    prop_assert_eq!(shape(&files), model.shape());
    let files = disk.remount(files);
    prop_assert_eq!(shape(&files), model.shape());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_file_system_is_a_tree(ops in ops(120, 1), bound in zone_bound()) {
        agree(&ops, bound)?;
    }

    #[test]
    fn deep_trees_stay_trees_when_their_parts_move(ops in deep_ops(120), bound in zone_bound()) {
        agree(&ops, bound)?;
    }

    #[test]
    fn after_a_power_cut_every_operation_happened_or_did_not(
        ops in prop_oneof![ops(60, 0), deep_ops(60)],
        bound in zone_bound(),
        cut in 0..40u64,
        coins in prop::collection::vec(any::<bool>(), 64),
    ) {
        let disk = Disk::new(BYTES);
        let files = disk.format_zones(bound).mount();
        disk.cut_after(cut);
        let mut model = Tree::default();
        // The states that a crash may leave: from the last one that was made durable on.
        let mut possible = vec![model.shape()];
        for op in &ops {
            match run(&files, op) {
                Ok(()) => {
                    model.run(op).expect("the model agrees");
                    if matches!(op, Op::Sync) {
                        possible.clear();
                    }
                    possible.push(model.shape());
                }
                Err(Some(Errno::IO)) => break,
                Err(_) => {}
            }
        }
        let mut flips = coins.iter().cycle();
        let after = disk.survivor(|| *flips.next().unwrap());
        drop(files);
        after.assert_sound();
        let files = after.mount();
        let found = shape(&files);
        prop_assert!(possible.contains(&found), "{found:#?} is none of {possible:#?}");
        after.remount(files);
    }
}

/// The kernel's answer to the same operation, below a directory of a tmpfs.
fn ask_kernel(directory: &rustix::fd::OwnedFd, op: &Op) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode;
    match op {
        Op::Create(path) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            rustix::fs::openat(directory, path.as_str(), flags, mode(0o644)).map(drop)
        }
        Op::Mkdir(path) => rustix::fs::mkdirat(directory, path.as_str(), mode(0o755)),
        Op::Symlink(target, path) => rustix::fs::symlinkat(target.as_str(), directory, path.as_str()),
        Op::Unlink(path) => rustix::fs::unlinkat(directory, path.as_str(), AtFlags::empty()),
        Op::Rmdir(path) => rustix::fs::unlinkat(directory, path.as_str(), AtFlags::REMOVEDIR),
        Op::Rename(old, new, flags) => {
            let flags = match flags {
                2 => RenameFlags::NOREPLACE,
                3 => RenameFlags::EXCHANGE,
                _ => RenameFlags::empty(),
            };
            rustix::fs::renameat_with(directory, old.as_str(), directory, new.as_str(), flags)
        }
        Op::Link(old, new) => {
            rustix::fs::linkat(directory, old.as_str(), directory, new.as_str(), AtFlags::empty())
        }
        Op::Chmod(path, bits) => rustix::fs::chmodat(directory, path.as_str(), mode(*bits), AtFlags::empty()),
        Op::Sync | Op::Remount => Ok(()),
    }
}

#[test]
fn the_kernel_gives_the_same_answers() {
    let base = format!("/dev/shm/nvmed-names-{}", std::process::id());
    if !rustix::process::geteuid().is_root() || std::fs::create_dir(&base).is_err() {
        eprintln!("SKIPPED: comparing with the kernel needs root and a tmpfs at /dev/shm");
        return;
    }
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let case = core::cell::Cell::new(0);
    let result = runner.run(&ops(80, 0), |ops| {
        case.set(case.get() + 1);
        let path = format!("{base}/{}", case.get());
        std::fs::create_dir(&path).expect("a directory on the tmpfs");
        let directory = rustix::fs::openat(CWD, path.as_str(), OFlags::DIRECTORY, Mode::empty());
        let directory = directory.expect("the directory opens");
        let disk: Arc<Disk> = Disk::new(BYTES);
        let files: FileSystem = disk.format().mount();
        for op in &ops {
            let ours = run(&files, op);
            if ours == Err(None) {
                continue;
            }
            let theirs = ask_kernel(&directory, op);
            prop_assert_eq!(ours.map_err(|errno| errno.unwrap()), theirs, "{:?} in {:?}", op, ops);
        }
        Ok(())
    });
    std::fs::remove_dir_all(&base).expect("the directory on the tmpfs goes");
    result.unwrap_or_else(|error| panic!("{error}"));
}
