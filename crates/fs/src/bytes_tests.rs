//! What calls make of byte ranges, over each placement: pages of the cache, the medium itself, and plain memory, of
//! which the bytes that are at hand come in stretches that no page begins or ends with.

use crate::broken_tests::support::{Disk, Ground};
use crate::bytes::{Bytes, Data, Placement, Short};
use crate::error::FsError;
use crate::filedata::{Growing, Stream};
use crate::inode::{Home, Inode};
use crate::map::Mappings;
use crate::{Credentials, OpenFlags};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use nvmed_dice::Dice;
use nvmed_layout::FileType;
use nvmed_layout::record::Record;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::{ByteOffset, Ino, Page};
use std::collections::HashSet;

/// Bytes of plain memory that are at hand together.
const STRETCH_BYTES: u64 = 1000;
/// What a disk of the tests, and plain memory, have room for at most.
const ROOM_BYTES: usize = 8 << 20;

/// The bytes of one file in plain memory. What lay behind its end before stays there.
#[derive(Default)]
struct Plain {
    held: Mutex<PlainBytes>,
    brought: AtomicUsize,
    maps_written: AtomicU32,
}

#[derive(Default)]
struct PlainBytes {
    bytes: Vec<u8>,
    /// Stretches that a copy finds.
    at_hand: HashSet<u64>,
}

impl PlainBytes {
    /// Bytes from an offset on that are at hand, `len` at most.
    fn reach(&self, at: ByteOffset, len: usize) -> usize {
        let at = at.0;
        let end = at + len as u64;
        let missing = (at / STRETCH_BYTES..).find(|stretch| !self.at_hand.contains(stretch));
        let reached = missing.map_or(end, |stretch| stretch * STRETCH_BYTES).min(end);
        reached.saturating_sub(at) as usize
    }
}

impl Placement for Plain {
    fn read(&self, _inode: &Inode, into: &mut [u8], at: ByteOffset) -> usize {
        let held = self.held.lock();
        let reach = held.reach(at, into.len());
        let there = held.bytes.get(at.0 as usize..).unwrap_or_default();
        let there = &there[..there.len().min(reach)];
        into[..there.len()].copy_from_slice(there);
        into[there.len()..reach].fill(0);
        reach
    }

    fn bring(
        &self,
        _inode: &Arc<Inode>,
        _stream: Option<&Stream>,
        range: Range<ByteOffset>,
    ) -> Result<(), FsError> {
        self.brought.fetch_add(1, Ordering::Relaxed);
        self.held.lock().at_hand.insert(range.start.0 / STRETCH_BYTES);
        Ok(())
    }

    fn overwrite(&self, _inode: &Arc<Inode>, from: &[u8], at: ByteOffset) -> usize {
        let mut held = self.held.lock();
        let reach = held.reach(at, from.len()).min(held.bytes.len().saturating_sub(at.0 as usize));
        if let Some(over) = held.bytes.get_mut(at.0 as usize..).filter(|_| reach > 0) {
            over[..reach].copy_from_slice(&from[..reach]);
        }
        reach
    }

    fn write(
        &self,
        _grow: &Growing<'_>,
        _inode: &Arc<Inode>,
        from: &[u8],
        at: ByteOffset,
    ) -> Result<(), Short> {
        let mut held = self.held.lock();
        let done = from.len().min(ROOM_BYTES.saturating_sub(at.0 as usize));
        let end = at.0 as usize + done;
        if held.bytes.len() < end {
            held.bytes.resize(end, 0);
        }
        held.bytes[end - done..end].copy_from_slice(&from[..done]);
        let whole = at.0.div_ceil(STRETCH_BYTES)..end as u64 / STRETCH_BYTES;
        held.at_hand.extend(whole);
        if done < from.len() { Err(Short { done, why: FsError::NoSpace }) } else { Ok(()) }
    }

    fn zero_tail(&self, _grow: &Growing<'_>, _inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        let mut held = self.held.lock();
        if let Some(tail) = held.bytes.get_mut(end.0 as usize..) {
            tail.fill(0);
        }
        Ok(())
    }

    fn grown(&self, inode: &Arc<Inode>, end: ByteOffset) {
        inode.size.store(end.0, Ordering::Release);
    }

    fn cut(&self, _grow: &Growing<'_>, inode: &Arc<Inode>, end: ByteOffset) -> Result<(), FsError> {
        inode.data.resize_mapped(end)?;
        inode.size.store(end.0, Ordering::Release);
        Ok(())
    }

    fn next_of(
        &self,
        _inode: &Arc<Inode>,
        at: ByteOffset,
        data: bool,
    ) -> Result<Option<ByteOffset>, FsError> {
        let end = ByteOffset(self.held.lock().bytes.len() as u64);
        Ok(if data { Some(at).filter(|at| *at < end) } else { Some(at.max(end)) })
    }

    fn settle(&self, inode: &Arc<Inode>, range: Range<ByteOffset>, _how: Data) -> Result<(), FsError> {
        self.gather_mapped(inode, range)
    }

    fn maps_written(&self) -> &AtomicU32 {
        &self.maps_written
    }

    fn modified(&self, _inode: &Arc<Inode>) {}
}

/// A new file over a placement, and how to have nothing of it at hand.
struct On<'a, P> {
    placement: &'a P,
    inode: &'a Arc<Inode>,
    forget: &'a dyn Fn(),
}

fn over_the_medium(test: fn(&On<'_, crate::in_place::InPlace>)) {
    let files = Ground::medium(ROOM_BYTES as u64).mount(1 << 20);
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), b"file", flags, 0o644, &Credentials::ROOT).unwrap();
    let (placement, inode) = (files.core.placed.in_place().unwrap(), &file.inode);
    let forget = || files.core.meta.forget_extents(inode);
    test(&On { placement, inode, forget: &forget });
}

impl<P: Placement> On<'_, P> {
    fn write(&self, from: &[u8], at: u64) -> usize {
        self.placement.write_at(self.inode, from, ByteOffset(at)).unwrap()
    }

    fn read(&self, len: usize, at: u64) -> Vec<u8> {
        let mut into = vec![0xaa; len];
        let stream = Stream::new(&self.inode.data);
        let done = self.placement.read_at(self.inode, &stream, &mut into, ByteOffset(at)).unwrap();
        into.truncate(done);
        into
    }

    fn truncate(&self, bytes: u64) {
        self.placement.truncate(self.inode, bytes).unwrap();
    }

    fn size(&self) -> u64 {
        self.inode.size.load(Ordering::Acquire)
    }

    /// Everything goes where it stays, and has to be brought by whoever reads next.
    fn settle(&self) {
        self.placement.settle(self.inode, ByteOffset::ALL, Data::Cached).unwrap();
        (self.forget)();
    }
}

fn over_pages(test: fn(&On<'_, crate::pages::Pages>)) {
    let disk = Disk::new(ROOM_BYTES as u64);
    let files = disk.format().mount();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), b"file", flags, 0o644, &Credentials::ROOT).unwrap();
    let (placement, inode) = (files.core.placed.pages(), &file.inode);
    let forget = || placement.forget_range(inode, Page::ALL);
    test(&On { placement, inode, forget: &forget });
}

fn over_plain_memory(test: fn(&On<'_, Plain>)) {
    let plain = Plain::default();
    let home = Home { own: true, dentry: None, zone: false };
    let inode = Arc::new(Inode::new(Ino(7), Record::new(FileType::File, 0o644, 0, 0, 0), home));
    let forget = || plain.held.lock().at_hand.clear();
    test(&On { placement: &plain, inode: &inode, forget: &forget });
}

macro_rules! on_all {
    ($($test:ident,)*) => {
        mod over_pages {
            $(#[test]
            fn $test() {
                super::over_pages(super::$test);
            })*
        }

        mod over_the_medium {
            $(#[test]
            fn $test() {
                super::over_the_medium(super::$test);
            })*
        }

        mod over_plain_memory {
            $(#[test]
            fn $test() {
                super::over_plain_memory(super::$test);
            })*
        }
    };
}

on_all! {
    holes_and_what_was_cut_off_read_as_zeroes,
    writes_across_ranges_are_what_a_vector_holds,
    the_caller_is_told_where_a_copy_ends,
    what_failed_half_way_is_there_as_far_as_it_says,
    readers_see_whole_writes_of_a_range,
    appends_do_not_overlap,
    what_is_stored_into_a_mapping_is_the_files,
}

fn holes_and_what_was_cut_off_read_as_zeroes<P: Placement>(on: &On<'_, P>) {
    on.write(b"end", 10_000);
    assert_eq!(on.size(), 10_003);
    assert_eq!(on.read(20_000, 0), [&[0; 10_000][..], b"end"].concat());
    assert_eq!(on.read(5, 10_003), b"");
    on.write(&[7; 9000], 0);
    for size in [8192, 100, 0] {
        on.truncate(size);
        on.truncate(9000);
        assert_eq!(
            on.read(9000, 0),
            [vec![7; size as usize], vec![0; 9000 - size as usize]].concat(),
            "{size}"
        );
        on.settle();
        assert_eq!(on.read(9000, size), vec![0; 9000 - size as usize], "{size}, settled");
    }
    on.truncate(3);
    on.write(b"x", 5000);
    assert_eq!(on.read(6000, 0), [&[0; 5000][..], b"x"].concat());
}

fn writes_across_ranges_are_what_a_vector_holds<P: Placement>(on: &On<'_, P>) {
    let mut dice = Dice::new(14);
    let mut model = Vec::new();
    for round in 0..400 {
        let (at, len) = (dice.index(30_000), dice.index(9000));
        match dice.roll(10) {
            0 => on.settle(),
            1 => {
                on.truncate(at as u64);
                model.resize(at, 0);
            }
            2..6 => {
                let from = vec![round as u8 | 1; len];
                assert_eq!(on.write(&from, at as u64), len);
                if len > 0 {
                    model.resize(model.len().max(at + len), 0);
                    model[at..][..len].copy_from_slice(&from);
                }
            }
            _ => {
                let there = model.get(at..).unwrap_or_default();
                assert!(on.read(len, at as u64) == there[..there.len().min(len)], "round {round}");
            }
        }
        assert_eq!(on.size(), model.len() as u64, "round {round}");
    }
    on.settle();
    assert!(on.read(40_000, 0) == model);
}

fn the_caller_is_told_where_a_copy_ends<P: Placement>(on: &On<'_, P>) {
    let (placement, inode) = (on.placement, on.inode);
    assert_eq!(placement.overwrite(inode, b"new", ByteOffset::FIRST), 0, "the file has no room for it yet");
    on.write(&[1; 20_000], 0);
    on.settle();
    let mut into = [0; 20_000];
    assert_eq!(placement.read(inode, &mut into, ByteOffset(50)), 0, "nothing is at hand");
    placement.bring(inode, None, ByteOffset(50)..ByteOffset(51)).unwrap();
    let copied = placement.read(inode, &mut into[..19_950], ByteOffset(50));
    assert!(copied >= 1, "the first byte of what was brought is");
    assert!(into[..copied].iter().all(|byte| *byte == 1));
    let stream = Stream::new(&inode.data);
    placement.bring(inode, Some(&stream), ByteOffset(0)..ByteOffset(1)).unwrap();
    assert!(
        placement.overwrite(inode, &[2; 20_000], ByteOffset::FIRST) >= 1,
        "what is at hand is written over"
    );
    assert_eq!(on.read(2, 0), [2, 2]);
}

fn what_failed_half_way_is_there_as_far_as_it_says<P: Placement>(on: &On<'_, P>) {
    on.write(&[1; 100], 0);
    let done = on.write(&vec![2; 2 * ROOM_BYTES], 50);
    assert!(done > 0 && done < 2 * ROOM_BYTES, "{done}");
    assert_eq!(on.size(), 50 + done as u64);
    let end = on.size();
    let failed = on.placement.write_at(on.inode, b"more", ByteOffset(end).page_end().start());
    assert!(matches!(failed, Err(FsError::NoSpace)), "{failed:?}");
    assert_eq!(on.size(), end, "and nothing came of it");
    assert_eq!(on.read(51, 0), [&[1; 50][..], &[2]].concat());
    assert!(on.read(9000, end - 9000) == [2; 9000]);
    on.truncate(0);
    assert_eq!(on.write(b"room again", 0), 10);
}

fn readers_see_whole_writes_of_a_range<P: Placement + Sync>(on: &On<'_, P>) {
    // Within a page and a stretch: what a placement copies at once.
    const AT: u64 = 8300;
    const LEN: usize = 500;
    on.write(&[0; LEN], AT);
    let (placement, inode) = (on.placement, on.inode);
    std::thread::scope(|threads| {
        for writer in 0..2u8 {
            threads.spawn(move || {
                for round in 0..500 {
                    let from = [writer | (round as u8) << 1; LEN];
                    assert_eq!(placement.write_at(inode, &from, ByteOffset(AT)).unwrap(), LEN);
                }
            });
        }
        for _ in 0..1000 {
            let read = on.read(LEN, AT);
            assert!(read.len() == LEN && read.iter().all(|byte| *byte == read[0]), "{read:?}");
        }
    });
}

fn appends_do_not_overlap<P: Placement + Sync>(on: &On<'_, P>) {
    const LEN: usize = 333;
    let (placement, inode) = (on.placement, on.inode);
    std::thread::scope(|threads| {
        for writer in 1..4u8 {
            threads.spawn(move || {
                for _ in 0..50 {
                    let (done, at) = placement.append(inode, &[writer; LEN]).unwrap();
                    assert!(done == LEN && at.0.is_multiple_of(LEN as u64));
                }
            });
        }
    });
    let all = on.read(200 * LEN, 0);
    assert_eq!(all.len(), 150 * LEN);
    for writer in 1..4 {
        let own = all.chunks(LEN).filter(|record| record.iter().all(|byte| *byte == writer));
        assert_eq!(own.count(), 50, "of writer {writer}");
    }
}

fn what_is_stored_into_a_mapping_is_the_files<P: Placement>(on: &On<'_, P>) {
    on.write(&[1; 10_000], 0);
    on.settle();
    let fd = on.placement.map(on.inode, true).unwrap();
    rustix::io::pwrite(&*fd, b"stored", 5000).unwrap();
    assert_eq!(on.read(6, 5000), b"stored", "a read sees it at once");
    on.write(b"written", 100);
    let mut mapped = [0; 7];
    rustix::io::pread(&*fd, &mut mapped, 100).unwrap();
    assert_eq!(&mapped, b"written", "and the program what others write");
    on.truncate(8000);
    on.placement.unmap(on.inode, true).unwrap();
    on.settle();
    assert_eq!(on.read(7, 100), b"written");
    assert_eq!(on.read(3007, 5000), [b"stored", &[1; 2994][..]].concat());
}
