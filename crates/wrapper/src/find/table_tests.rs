use super::*;
use nvmed_fs::{Credentials, FileSystem, OpenFlags};
use nvmed_stack::{Config, DeviceSpec, Mount, Surroundings};
use std::sync::atomic::{AtomicBool, AtomicUsize};

fn mounted() -> Mount {
    let device = DeviceSpec::parse("virtual:?media=dram,size=64M").expect("a device");
    let mut config = Config::new("/ours".into(), device);
    (config.format, config.cache_bytes) = (true, 4 << 20);
    nvmed_stack::mount(&config, Surroundings::default()).expect("a mount")
}

fn body(files: &FileSystem, name: &str) -> Body {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), name.as_bytes(), flags, 0o600, &Credentials::ROOT).expect("a file");
    let file = File::Private(file);
    Body { node: file.node(), file: Some(file), path_flags: 0 }
}

/// Descriptors beyond any that the test process has.
const FIRST: c_int = 40_000;

#[test]
fn a_number_is_ours_until_it_is_removed_and_duplicates_keep_the_description() {
    let mount = mounted();
    let ino = {
        let body = body(&mount, "a");
        let ino = body.node.stat().expect("a status").ino;
        install(FIRST, describe(body)).expect("installed");
        ino
    };
    assert!(is_ours(FIRST) && !is_ours(FIRST + 1) && !is_ours(-1) && !is_ours(c_int::MAX));
    install(FIRST + 1, pin(FIRST).expect("pinned")).expect("duplicated");
    drop(remove(FIRST));
    assert!(pin(FIRST).is_err());
    assert_eq!(pin(FIRST + 1).expect("pinned").node.stat().expect("a status").ino, ino);
    let high = DIRECT as c_int * 2 + 7;
    install(high, pin(FIRST + 1).expect("pinned")).expect("installed high");
    assert_eq!(first_within(FIRST as u32 + 2, u32::MAX), Some(high));
    drop(remove(FIRST + 1));
    assert_eq!(pin(high).expect("pinned").node.stat().expect("a status").ino, ino);
    let old = remove(high).expect("it was ours");
    assert_eq!(old.node.stat().expect("a status").ino, ino, "still held");
    assert!(!is_ours(high));
}

/// Readers that lose every race with close and reopen find one of the two files whole, never a mixture,
/// and every description finds its way back to the pool.
#[test]
fn readers_race_with_close_and_reopen() {
    const SWAPS: usize = 20_000;
    let (mount, fd) = (mounted(), FIRST - 10);
    let inos = ["x", "y"].map(|name| body(&mount, name).node.stat().expect("a status").ino);
    let (stop, hits) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(pinned) = pin(fd) {
                        assert!(inos.contains(&pinned.node.stat().expect("a status").ino));
                        assert_eq!(
                            pinned.file.as_ref().expect("a file").node().stat().expect("a status").ino,
                            pinned.node.stat().expect("a status").ino
                        );
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        // On one processor all swaps may be over before a reader has run at all.
        let nobody_read =
            || hits.load(Ordering::Relaxed) == 0 && !readers.iter().any(|reader| reader.is_finished());
        let mut turn = 0;
        while turn < SWAPS || nobody_read() {
            install(fd, describe(body(&mount, ["x", "y"][turn % 2]))).expect("installed");
            if turn % 3 == 0 {
                drop(remove(fd));
            }
            turn += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(remove(fd));
    assert!(hits.load(Ordering::Relaxed) > 0, "the readers never won");
    // Other tests of this process hold a few; a leak would have made thousands.
    let pooled = POOL.lock().len();
    assert!((POOL_BATCH - 8..=POOL_BATCH * 2).contains(&pooled), "{pooled} in the pool");
}
