//! Files that are mapped where they lie, by who maps them for a program: what he is told lies where, and what stays.

use crate::support::Ground;
use nvmed_fs::*;
use nvmed_sys::QuietFd;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const WHO: &Credentials<'static> = &Credentials::ROOT;
const CACHE_BYTES: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Who maps: what he was told to show, and where programs may store.
#[derive(Default)]
struct Seen {
    shown: Mutex<Vec<MapPiece>>,
    stored_to: Mutex<Option<Range<u64>>>,
}

impl Mapper for Seen {
    fn show(&self, _ino: u64, piece: &MapPiece) {
        self.shown.lock().unwrap().push(*piece);
    }

    fn stored_to(&self, _ino: u64) -> Option<Range<u64>> {
        self.stored_to.lock().unwrap().clone()
    }
}

struct Bed {
    ground: Ground,
    files: FileSystem,
    seen: Arc<Seen>,
}

impl Bed {
    fn new() -> Self {
        let ground = Ground::medium_of(&vec![0xa5; 128 << 20]);
        let files = ground.mount(CACHE_BYTES);
        let seen = Arc::new(Seen::default());
        files.map_in_place_by(Arc::clone(&seen) as Arc<dyn Mapper>);
        Self { ground, files, seen }
    }

    fn file(&self, name: &str) -> Arc<File> {
        let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
        self.files.open(&self.files.root(), name.as_bytes(), flags, 0o644, WHO).unwrap()
    }

    fn free(&self) -> u64 {
        self.files.sync().unwrap();
        self.files.statfs().blocks_free
    }

    fn shown(&self) -> Vec<(u64, u64, Lies)> {
        let shown = core::mem::take(&mut *self.seen.shown.lock().unwrap());
        shown.iter().map(|piece| (piece.offset / PAGE, piece.bytes / PAGE, piece.lies)).collect()
    }

    fn end(self) {
        self.files.unmount().unwrap();
        drop(self.files);
        self.ground.assert_sound();
    }
}

fn in_place(file: &File, write: bool, pages: Range<u64>) -> Arc<QuietFd> {
    match file.map_range(write, pages.start * PAGE..pages.end * PAGE).unwrap() {
        Mapped::InPlace(medium) => medium,
        Mapped::Memory(_) => panic!("the file is mapped as memory of its own"),
    }
}

fn pieces(file: &File, write: bool, pages: Range<u64>) -> Vec<MapPiece> {
    let mut all = Vec::new();
    file.lay_out(write, pages.start * PAGE..pages.end * PAGE, &mut |piece| all.push(*piece)).unwrap();
    all
}

/// The bytes that a program would see there; none where it would get SIGBUS.
fn seen(medium: &QuietFd, pieces: &[MapPiece], at: u64, bytes: usize) -> Option<Vec<u8>> {
    let piece = pieces.iter().find(|piece| piece.offset <= at && at < piece.offset + piece.bytes)?;
    let mut found = vec![0; bytes];
    match piece.lies {
        Lies::Behind => return None,
        Lies::Nowhere => {}
        Lies::At(medium_at) => {
            assert_eq!(rustix::io::pread(medium, &mut found, medium_at + at - piece.offset).unwrap(), bytes);
        }
    }
    Some(found)
}

/// Holes are zeroes without a block, what lies behind the end is nobody's, and the end's page holds nothing else.
#[test]
fn a_file_that_is_read_is_where_it_lies() {
    let bed = Bed::new();
    let file = bed.file("file");
    file.pwrite(&[1; 3 * 4096], 0).unwrap();
    file.pwrite(&[2; 4096], 8 * PAGE).unwrap();
    // What was cut off is in the block still.
    file.truncate(8 * PAGE + 100).unwrap();
    let free = bed.free();
    let medium = in_place(&file, false, 0..16);
    let all = pieces(&file, false, 0..16);
    assert_eq!(seen(&medium, &all, 2 * PAGE + 5, 3), Some(vec![1; 3]));
    assert_eq!(seen(&medium, &all, 5 * PAGE, 3), Some(vec![0; 3]));
    assert_eq!(seen(&medium, &all, 8 * PAGE + 99, 2), Some(vec![2, 0]), "behind the end");
    assert_eq!(seen(&medium, &all, 9 * PAGE, 1), None);
    assert_eq!(free, bed.free(), "who reads allocates nothing");
    assert!(rustix::io::pwrite(&*medium, b"x", 0).is_err(), "and cannot store");
    file.unmap(false).unwrap();
    assert!(file.unmap(false).is_err());
    drop(file);
    bed.end();
}

/// What a cut leaves below a mapping goes with it, and what a program allocates behind the end stays.
#[test]
fn blocks_that_a_program_allocated_behind_the_end_outlive_the_mapping() {
    let bed = Bed::new();
    let keep = Allocate { keep_size: true, punch_hole: false, zero_range: false };
    for (allocates, left) in [(false, 4), (true, 4 + 28)] {
        let file = bed.file("file");
        let free = bed.free();
        file.pwrite(&[1; 32 * 4096], 0).unwrap();
        in_place(&file, false, 0..32);
        file.truncate(4 * PAGE).unwrap();
        if allocates {
            file.fallocate(keep, 4 * PAGE, 28 * PAGE).unwrap();
        }
        file.unmap(false).unwrap();
        assert_eq!(free - bed.free(), left, "pages, with allocation: {allocates}");
        file.truncate(0).unwrap();
        assert_eq!(free, bed.free());
    }
    bed.end();
}

/// Stores are the file's, holes have blocks, and what is read, written and mapped is the same memory.
#[test]
fn a_file_that_is_stored_to_has_a_block_for_each_page() {
    let bed = Bed::new();
    let file = bed.file("file");
    file.pwrite(b"small", 0).unwrap();
    file.truncate(64 * PAGE).unwrap();
    *bed.seen.stored_to.lock().unwrap() = Some(0..128 * PAGE);
    let medium = in_place(&file, true, 0..128);
    let all = pieces(&file, true, 0..128);
    assert_eq!(seen(&medium, &all, 0, 8), Some(b"small\0\0\0".to_vec()));
    for page in 0..64 {
        let piece =
            all.iter().find(|piece| (piece.offset..piece.offset + piece.bytes).contains(&(page * PAGE)));
        let Some(MapPiece { offset, lies: Lies::At(at), .. }) = piece else { panic!("{page}: {piece:?}") };
        assert_eq!(seen(&medium, &all, page * PAGE + 100, 10), Some(vec![0; 10]), "{page}");
        rustix::io::pwrite(&*medium, b"stored", at + page * PAGE - offset + 50).unwrap();
    }
    let mut found = [0; 6];
    file.pread(&mut found, 63 * PAGE + 50).unwrap();
    assert_eq!(&found, b"stored");
    file.pwrite(b"WRITE", 63 * PAGE + 51).unwrap();
    assert_eq!(seen(&medium, &all, 63 * PAGE + 50, 6), Some(b"sWRITE".to_vec()));
    // What a store left behind the end in its page is not the file's.
    let MapPiece { offset, lies: Lies::At(at), .. } = all[all.len() - 2] else { panic!("{all:?}") };
    file.truncate(63 * PAGE + 10).unwrap();
    rustix::io::pwrite(&*medium, b"behind", at + 63 * PAGE - offset + 20).unwrap();
    file.truncate(70 * PAGE).unwrap();
    file.pread(&mut found, 63 * PAGE + 20).unwrap();
    assert_eq!(found, [0; 6]);
    // Each page that the file grew by can be stored to.
    let shown = bed.shown();
    let grown: u64 =
        shown.iter().filter(|(_, _, lies)| matches!(lies, Lies::At(_))).map(|piece| piece.1).sum();
    assert!(grown >= 6 && !shown.iter().any(|piece| piece.2 == Lies::Nowhere), "{shown:?}");
    file.unmap(true).unwrap();
    drop(file);
    bed.end();
}

/// What is cut off is told, and its blocks are nobody else's until the last mapping is gone.
#[test]
fn what_was_cut_off_below_a_mapping_stays_the_files() {
    let bed = Bed::new();
    let (file, other) = (bed.file("file"), bed.file("other"));
    file.pwrite(&vec![1; 1 << 20], 0).unwrap();
    file.pwrite(&vec![1; 1 << 20], 1 << 20).unwrap();
    let medium = in_place(&file, false, 0..1024);
    in_place(&file, false, 0..1);
    let all = pieces(&file, false, 0..1024);
    file.truncate(10 * PAGE).unwrap();
    assert_eq!(bed.shown(), [(10, 502, Lies::Behind)]);
    // Nobody else is given what the program may have mapped, and the file's own bytes do not come back.
    other.pwrite(&vec![9; 100 << 20], 0).unwrap();
    bed.files.sync().unwrap();
    assert_eq!(seen(&medium, &all, 100 * PAGE, 4), Some(vec![1; 4]));
    other.truncate(0).unwrap();
    file.truncate(512 * PAGE).unwrap();
    let mut found = [7; 8];
    file.pread(&mut found, 100 * PAGE).unwrap();
    assert_eq!(found, [0; 8]);
    file.pwrite(b"new", 100 * PAGE).unwrap();
    file.pread(&mut found, 100 * PAGE).unwrap();
    assert_eq!(&found, b"new\0\0\0\0\0");
    file.truncate(10 * PAGE).unwrap();
    let free = bed.free();
    file.unmap(false).unwrap();
    assert_eq!(bed.free(), free, "a mapping is left");
    file.unmap(false).unwrap();
    assert_eq!(bed.free(), free + 502);
    drop((file, other));
    bed.end();
}

/// A hole that is punched below a mapping keeps its blocks, with zeroes in them.
#[test]
fn what_is_punched_below_a_mapping_is_zeroes() {
    let bed = Bed::new();
    let file = bed.file("file");
    file.pwrite(&vec![1; 1 << 20], 0).unwrap();
    let medium = in_place(&file, true, 0..256);
    let all = pieces(&file, true, 0..256);
    let punch = Allocate { keep_size: true, punch_hole: true, zero_range: false };
    file.fallocate(punch, 3 * PAGE + 100, 40 * PAGE).unwrap();
    for (at, expected) in [(3 * PAGE + 99, [1, 0]), (20 * PAGE, [0, 0]), (43 * PAGE + 99, [0, 1])] {
        assert_eq!(seen(&medium, &all, at, 2), Some(expected.to_vec()), "{at}");
        let mut found = [7; 2];
        file.pread(&mut found, at).unwrap();
        assert_eq!(found, expected, "{at}");
    }
    assert!(bed.shown().iter().all(|piece| matches!(piece.2, Lies::At(_))), "nothing went");
    file.unmap(true).unwrap();
    drop(file);
    bed.end();
}

/// What grows is shown where it is, whoever writes it.
#[test]
fn what_grows_below_a_mapping_is_shown() {
    let bed = Bed::new();
    let file = bed.file("file");
    let medium = in_place(&file, false, 0..1 << 18);
    assert_eq!(pieces(&file, false, 0..8), [MapPiece { offset: 0, bytes: 8 * PAGE, lies: Lies::Behind }]);
    let mut known: Vec<MapPiece> = Vec::new();
    for page in 0..300u64 {
        file.pwrite(&[page as u8 | 1; 4096], page * PAGE).unwrap();
        known.append(&mut bed.seen.shown.lock().unwrap());
        if page % 50 == 0 {
            file.fsync().unwrap();
        }
    }
    // A hole, and then what fills it.
    file.pwrite(b"far", 400 * PAGE).unwrap();
    file.pwrite(b"hole", 350 * PAGE).unwrap();
    known.append(&mut bed.seen.shown.lock().unwrap());
    known.reverse();
    for page in 0..300u64 {
        assert_eq!(seen(&medium, &known, page * PAGE + 7, 1), Some(vec![page as u8 | 1]), "{page}");
    }
    assert_eq!(seen(&medium, &known, 350 * PAGE, 5), Some(b"hole\0".to_vec()));
    assert_eq!(seen(&medium, &known, 349 * PAGE, 1), Some(vec![0]));
    assert_eq!(seen(&medium, &known, 400 * PAGE, 4), Some(b"far\0".to_vec()));
    file.unmap(false).unwrap();
    drop(file);
    bed.end();
}

/// A file is mapped in one form at a time: sparse ones that are stored to as memory of their own.
#[test]
fn a_file_is_mapped_in_one_form() {
    let bed = Bed::new();
    let file = bed.file("sparse");
    file.truncate(1 << 30).unwrap();
    let free = bed.free();
    let whole = 0..1u64 << 30;
    assert!(matches!(file.map_range(true, whole.clone()).unwrap(), Mapped::Memory(_)));
    assert!(
        matches!(file.map_range(false, 0..4096).unwrap(), Mapped::Memory(_)),
        "the memory is what they see"
    );
    file.unmap(true).unwrap();
    file.unmap(false).unwrap();
    assert_eq!(bed.free(), free);
    in_place(&file, false, 0..1);
    assert!(matches!(file.map(false), Err(FsError::Busy)));
    assert!(file.map_range(true, whole).is_err(), "it has no room for all of it");
    file.unmap(false).unwrap();
    drop(file);
    bed.end();
}
