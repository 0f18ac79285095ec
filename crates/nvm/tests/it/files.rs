//! Files as media: what is no medium is told in a line, and a file that loses something ends no process.

use crate::{Scratch, file};
use nvmed_image::{FileOptions, Flush, Image, Piece, Span};
use nvmed_nvm::{FlushTo, Memory, MemoryOptions, NvmEngine, NvmError, NvmOptions, Place};
use nvmed_sys::{Mapping, Pages};
use rustix::fd::AsRawFd;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const BYTES: u64 = 4 << 20;

fn open(path: &Path, size: Option<u64>, flush: FlushTo) -> Result<Memory, NvmError> {
    Memory::open(file(path, size, flush))
}

#[test]
fn what_is_no_medium_is_told_in_one_line() {
    let scratch = Scratch::new();
    let image = scratch.image();
    let said = |path: &Path, flush| {
        let said = open(path, None, flush).expect_err("no medium").to_string();
        assert!(!said.contains('\n'), "{said}");
        said
    };
    assert!(said(&image, FlushTo::Host).contains("nvmed format"));
    assert!(said(&scratch.0, FlushTo::Host).contains("is a directory"));
    assert!(said(Path::new("/dev/null"), FlushTo::Host).contains("a character device"));
    std::fs::write(&image, [0; 5000]).expect("a file");
    assert!(said(&image, FlushTo::Host).contains("5000 bytes is no device size"));
    std::fs::write(&image, []).expect("a file");
    assert!(said(&image, FlushTo::Process).contains("0 bytes is no device size"));
    let ram = MemoryOptions { place: Place::Ram { bytes: 0 }, flush: FlushTo::Host };
    assert!(Memory::open(ram).expect_err("no bytes").to_string().contains("0 bytes is no device size"));
}

/// Where the file system is no DAX, it is refused and the file is as it was.
#[test]
fn memory_that_is_not_durable_is_not_said_to_be() {
    let scratch = Scratch::new();
    match open(&scratch.image(), Some(BYTES), FlushTo::Dax) {
        Ok(_) => println!("SKIPPED: {} is on a DAX file system", scratch.0.display()),
        Err(error) => {
            assert!(error.to_string().contains("(DAX, MAP_SYNC); leave out flush=dax"), "{error}");
            assert_eq!(error.errno(), rustix::io::Errno::OPNOTSUPP);
            drop(open(&scratch.image(), None, FlushTo::Host).expect("nobody has it"));
        }
    }
}

#[test]
fn a_medium_has_one_user_and_is_made_and_grown_and_never_cut() {
    let scratch = Scratch::new();
    for (size, want) in [(BYTES, BYTES), (2 * BYTES, 2 * BYTES), (BYTES, 2 * BYTES)] {
        let memory = open(&scratch.image(), Some(size), FlushTo::Host).expect("a file");
        assert_eq!(memory.bytes(), want);
        let second = open(&scratch.image(), None, FlushTo::Host).expect_err("in use").to_string();
        assert!(second.contains(&format!("(pid {})", std::process::id())), "{second}");
        let place = Place::File { path: scratch.image(), size: None, lock: false };
        drop(Memory::open(MemoryOptions { place, flush: FlushTo::Host }).expect("without a lock"));
    }
}

/// No header: what is stored is the file, and what is in the file is read.
#[test]
fn the_bytes_are_the_files() {
    let scratch = Scratch::new();
    let mut bytes: Vec<u8> = (0..BYTES).map(|at| (at / 512) as u8).collect();
    std::fs::write(scratch.image(), &bytes).expect("a file");
    let memory = open(&scratch.image(), None, FlushTo::Host).expect("a file");
    let mut found = vec![0; bytes.len()];
    memory.read(0, &mut found).expect("bytes");
    assert!(found == bytes);
    memory.store(1000, &[0xaa; 70_000]).expect("bytes");
    bytes[1000..71_000].fill(0xaa);
    memory.store_u64(BYTES - 8, 0x0102_0304_0506_0708).expect("a word");
    bytes[BYTES as usize - 8..].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
    memory.zero(200_000, 300_000, true).expect("zeroes");
    bytes[200_000..500_000].fill(0);
    memory.zero(600_001, 77, false).expect("zeroes");
    bytes[600_001..600_078].fill(0);
    memory.fence().expect("a fence");
    drop(memory);
    assert!(std::fs::read(scratch.image()).expect("the file") == bytes);
    let outside = std::panic::catch_unwind(|| {
        let memory = open(&scratch.image(), None, FlushTo::Host).expect("a file");
        memory.store(BYTES - 4, &[0; 8])
    });
    assert!(outside.is_err(), "bytes behind the end were stored");
}

#[test]
fn a_file_that_is_cut_short_is_a_status_and_never_a_signal() {
    for flush in [FlushTo::Host, FlushTo::Process] {
        let scratch = Scratch::new();
        let memory = open(&scratch.image(), Some(BYTES), flush).expect("a file");
        memory.store(0, &vec![9; BYTES as usize]).expect("bytes");
        memory.fence().expect("a fence");
        let cut = std::fs::OpenOptions::new().write(true).open(scratch.image()).expect("the file");
        cut.set_len(BYTES / 2).expect("a cut");
        assert!(
            memory.fence().is_err() || flush == FlushTo::Host,
            "what was stored is gone, and nobody was told"
        );
        // With flush=host the first touch of what is gone.
        assert!(memory.store(BYTES - 4096, &[5; 4096]).is_err());
        let mut page = [0; 4096];
        assert!(memory.read(BYTES - 4096, &mut page).is_err());
        memory.read(4096, &mut page).expect("what is left");
        assert!(page == [9; 4096]);
        memory.store(4096, &[5; 4096]).expect("what is left can be stored to");
        assert!(memory.store(BYTES - 4096, &[5; 4096]).is_err());
        assert!(memory.store_u64(BYTES - 8, 5).is_err() && memory.zero(BYTES - 4096, 4096, false).is_err());
        assert_eq!(cut.metadata().expect("the file").len(), BYTES / 2, "nobody makes it longer");
        drop(memory);
        assert!(std::fs::read(scratch.image()).expect("the file")[4096..8192] == [5; 4096]);
    }
}

/// Stored, then cut off, then fenced: the fence does not say that it is there.
#[test]
fn what_was_cut_off_before_its_fence_is_told() {
    for flush in [FlushTo::Host, FlushTo::Process] {
        let scratch = Scratch::new();
        let memory = open(&scratch.image(), Some(BYTES), flush).expect("a file");
        memory.store(BYTES - 8192, &[1; 8192]).expect("bytes");
        memory.fence().expect("a fence");
        memory.store(BYTES - 8192, &[2; 4096]).expect("bytes");
        let cut = std::fs::OpenOptions::new().write(true).open(scratch.image()).expect("the file");
        cut.set_len(BYTES / 2).expect("a cut");
        for _ in 0..2 {
            assert!(memory.fence().is_err(), "{flush:?}");
        }
    }
}

/// Calls `test` where a file system of the host has 512 KiB.
fn on_a_small_host(test: impl FnOnce(&Scratch)) {
    let scratch = Scratch::new();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(&scratch.0);
    if !mount.status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: mounting a tmpfs of 512 KiB needs root");
        return;
    }
    let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&scratch)));
    let _ = Command::new("umount").arg(&scratch.0).status();
    assert!(tested.is_ok());
}

/// A full host file system is a status, never a signal, and what was there stays readable.
#[test]
fn a_full_host_is_a_status() {
    on_a_small_host(|scratch| {
        let memory = open(&scratch.image(), Some(BYTES), FlushTo::Process).expect("a file");
        let stored = (0..1024).map(|page| memory.store(page * 4096, &[9; 4096])).collect::<Vec<_>>();
        let there = stored.iter().filter(|stored| stored.is_ok()).count() as u64;
        assert!((1..1024).contains(&there), "{there} of 1024 pages fit into 512 KiB");
        assert_eq!(stored[1023], Err(nvmed_nvme::Status::CAPACITY_EXCEEDED));
        let mut page = [0; 4096];
        for (at, byte) in [(0, 9), (there - 1, 9), (1023, 0)] {
            memory.read(at * 4096, &mut page).expect("a page");
            assert!(page == [byte; 4096], "page {at}");
        }
        memory.fence().expect("a fence");
    });
}

/// Memory is asked for by more than a page; where the host has no more, what is there already can be stored to.
#[test]
fn what_has_memory_is_stored_to_on_a_full_host() {
    on_a_small_host(|scratch| {
        let image = scratch.image();
        let file = std::fs::File::create(&image).expect("a file");
        file.set_len(BYTES).expect("a length");
        file.write_all_at(&[7; 4096], 5 * 4096).expect("a page");
        let mut ballast = std::fs::File::create(scratch.0.join("ballast")).expect("a file");
        while ballast.write_all(&[1; 4096]).is_ok() {}
        let memory = open(&image, None, FlushTo::Host).expect("a file");
        memory.store(5 * 4096 + 8, &[9; 64]).expect("there is memory");
        assert_eq!(memory.store(6 * 4096, &[9; 64]), Err(nvmed_nvme::Status::CAPACITY_EXCEEDED));
        memory.fence().expect("a fence");
        let mut found = [0; 3 * 4096];
        memory.read(4 * 4096, &mut found).expect("pages");
        let mut expected = [0; 3 * 4096];
        expected[4096..8192].fill(7);
        expected[4096 + 8..4096 + 72].fill(9);
        assert!(found == expected);
    });
}

#[test]
fn a_device_says_what_it_is() {
    let scratch = Scratch::new();
    let options =
        NvmOptions { memory: file(&scratch.image(), Some(BYTES), FlushTo::Process), lba_bytes: 4096 };
    let engine = NvmEngine::open(options).expect("a device");
    let geometry = nvmed_engine::Engine::geometry(&engine);
    assert_eq!((geometry.lba_bytes, geometry.bytes()), (4096, BYTES));
    assert_eq!(geometry.model, "memory (flush=process)");
}

/// Memory that another process holds is what it was when one that had it ends, however that ends.
#[test]
fn memory_that_is_held_outlives_its_user() {
    let held = Mapping::shareable(BYTES as usize, Pages::Base).expect("memory");
    let (descriptor, _) = held.backing().expect("a file");
    let path = Path::new("/proc/self/fd").join(descriptor.as_raw_fd().to_string());
    let options = |bytes| {
        let place = Place::Held { path: path.clone(), bytes };
        MemoryOptions { place, flush: FlushTo::Process }
    };
    let memory = Memory::open(options(BYTES)).expect("memory");
    assert_eq!((memory.bytes(), memory.is_file()), (BYTES, false));
    memory.store(1000, &[5; 100]).expect("bytes");
    // No fence, and nothing is dropped: as a process that is killed.
    std::mem::forget(memory);
    let mut bytes = [0; 100];
    Memory::open(options(BYTES)).expect("memory").read(1000, &mut bytes).expect("bytes");
    assert_eq!(bytes, [5; 100]);
    let longer = Memory::open(options(2 * BYTES)).expect_err("too short");
    assert_eq!(longer.errno(), rustix::io::Errno::FBIG);
    let place = Place::Held { path: "/proc/self/fd/none".into(), bytes: BYTES };
    let gone = Memory::open(MemoryOptions { place, flush: FlushTo::Process });
    let gone = gone.expect_err("nobody holds it").to_string();
    assert!(gone.contains("that `nvmed run` holds cannot be used") && !gone.contains('\n'), "{gone}");
}

/// What a file is read from has no address at which it could be changed.
#[test]
fn reads_are_from_memory_that_cannot_be_stored_to() {
    let scratch = Scratch::new();
    let options = FileOptions { path: scratch.image(), size: Some(BYTES), flush: Flush::Process, lock: true };
    let image = Image::open(options).expect("a file");
    image.write(0, &Mapping::anonymous(4096, Pages::Base).expect("memory"), 0, 4096).expect("bytes");
    let mut seen = 0;
    image
        .load(Span { offset: 0, bytes: 4096 }, |_, piece| {
            if let Piece::Memory { memory, .. } = piece {
                seen += 1;
                assert_eq!(rights(memory.address().addr()), "r--s");
            }
        })
        .expect("bytes");
    assert_eq!(seen, 1, "a chunk that was written is memory");
}

/// What may be done with the memory at an address (`/proc/self/maps`).
fn rights(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel's list");
    let holds = |line: &&str| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).expect("an address");
        range.is_some_and(|(begin, end)| (number(begin)..number(end)).contains(&address))
    };
    let line = maps.lines().find(holds).expect("a mapping");
    line.split_whitespace().nth(1).expect("rights").to_owned()
}
