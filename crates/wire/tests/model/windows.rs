//! Direct windows: a client copies from the medium while the server's threads change files there
//! (docs/spec/shared.md, "Direct windows").

use crate::{fails_without, holds};
use nvmed_sys::atomic::{AtomicU32, Ordering};
use nvmed_sys::model::{Barrier, thread};
use nvmed_sys::{Mapping, Pages};
use nvmed_wire::{MediumView, Place, Seen, Window, WindowView};
use std::sync::Arc;

const WINDOW: &str = include_str!("../../src/window.rs");
const REGION: &str = include_str!("../../src/region.rs");
const DIRECT: &str = include_str!("../../src/direct.rs");

const PAGE: u64 = 4096;
/// Of bytes that are in the file, before and after a change.
const BEFORE: [u8; 2] = [1, 2];
const AFTER: [u8; 2] = [3, 4];
/// Of bytes that are another file's; blocks that nobody has written are zeroes.
const FOREIGN: [u8; 2] = [8, 9];

struct Side {
    medium: Mapping,
    window: Window,
}

impl Side {
    fn put(&self, block: u64, bytes: [u8; 2]) {
        self.medium.write((block * PAGE) as usize, &bytes);
    }

    /// The pages lie side by side from this block on.
    fn tell(&self, block: u64) {
        self.window.tell(0..self.window.pages(), |page| Some((Place::Block(block + page), u64::MAX)));
    }
}

/// A window of so many pages, which are all of the file, and who reads the first bytes of the first one. In a model a
/// region has two: of one page nobody says that they lie side by side.
fn pair(pages: u64) -> (Side, impl Fn() -> Option<[u8; 2]> + Send) {
    let (side, read) = side(pages);
    (side, move || read(0))
}

/// As [`pair`], with who reads the first bytes of a page.
fn side(pages: u64) -> (Side, impl Fn(u64) -> Option<[u8; 2]> + Send) {
    let medium = Mapping::shareable(16 * PAGE as usize, Pages::Base).unwrap();
    let window = Window::direct(pages, pages * PAGE).unwrap();
    window.resume();
    let seen = Arc::new(MediumView::open(medium.backing().unwrap().0).unwrap());
    let view = WindowView::open(window.readers()).unwrap().over(seen);
    let side = Side { medium, window };
    let read = move |page: u64| {
        let mut into = [0; 2];
        (view.read(&mut into, page * PAGE) == Seen::Bytes(2)).then_some(into)
    };
    // A model that learns of a word unwinds, and what is dropped then knows its words already.
    (0..pages).for_each(|page| assert!(!side.window.has(page)));
    assert_eq!(read(0), None);
    side.put(4, BEFORE);
    side.tell(4);
    (side, read)
}

/// A page is written in place while it is copied.
fn written(pages: u64) {
    let (side, read) = pair(pages);
    let reading = thread::spawn(read);
    let change = side.window.begin_change(0..2);
    side.put(4, AFTER);
    change.end();
    let read = reading.join().unwrap();
    assert!(matches!(read, None | Some(BEFORE | AFTER)), "a page that is torn: {read:?}");
}

/// The file is cut, its block is another file's, and it has one elsewhere.
fn moved(pages: u64) {
    let (side, read) = pair(pages);
    let reading = thread::spawn(read);
    drop(side.window.begin_change(0..pages * PAGE));
    side.put(4, FOREIGN);
    side.put(6, AFTER);
    side.tell(6);
    let read = reading.join().unwrap();
    assert!(matches!(read, None | Some(BEFORE | AFTER)), "another file's bytes: {read:?}");
}

/// One thread tells of a region while another takes its second page away, whose block is another file's then.
/// `told`: it was told of before.
fn told_meanwhile(told: bool) {
    let (side, read) = side(2);
    side.put(5, BEFORE);
    if !told {
        drop(side.window.begin_change(0..2 * PAGE));
    }
    let (side, is_moved) = (Arc::new(side), Arc::new(AtomicU32::new(0)));
    let telling = {
        let (side, is_moved) = (Arc::clone(&side), Arc::clone(&is_moved));
        thread::spawn(move || {
            // As the file has it: who has a page's word finds where it lies.
            let is_moved = || is_moved.load(Ordering::Relaxed) != 0;
            side.window.tell(0..2, |page| match page {
                0 => Some((Place::Block(4), if is_moved() { 1 } else { 2 })),
                _ => Some((Place::Block(if is_moved() { 9 } else { 5 }), 1)),
            });
        })
    };
    let reading = thread::spawn(move || read(1));
    let change = side.window.begin_change(PAGE..2 * PAGE);
    side.put(9, AFTER);
    is_moved.store(1, Ordering::Relaxed);
    drop(change);
    side.put(5, FOREIGN);
    let read = reading.join().unwrap();
    telling.join().unwrap();
    assert!(matches!(read, None | Some(BEFORE | AFTER)), "another file's bytes: {read:?}");
}

const W1: Barrier = ("window.rs", WINDOW, "Barrier W1");
const W2: Barrier = ("window.rs", WINDOW, "Barrier W2");
const W4: Barrier = ("region.rs", REGION, "Barrier W4");
const W5: Barrier = ("window.rs", WINDOW, "Barrier W5");
const R1: Barrier = ("direct.rs", DIRECT, "Barrier R1");
const R2: Barrier = ("direct.rs", DIRECT, "Barrier R2");
const R3: Barrier = ("region.rs", REGION, "Barrier R3");
const R4: Barrier = ("region.rs", REGION, "Barrier R4");
const R5: Barrier = ("region.rs", REGION, "Barrier R5");
const R6: Barrier = ("direct.rs", DIRECT, "Barrier R6");

/// None of this fails without W3: W2, just before it, is a full barrier in a model.
#[test]
fn a_page_that_is_written_is_never_torn() {
    for pages in [1, 2] {
        holds(Some(2), move || written(pages));
        for barrier in [W1, W2, R1, R2, R3, R4] {
            fails_without(&[barrier], "a page that is torn", Some(2), move || written(pages));
        }
    }
}

#[test]
fn a_block_that_is_another_files_by_now_is_never_read() {
    for pages in [1, 2] {
        holds(Some(2), move || moved(pages));
        let of_run = [W4, R5];
        let run = if pages == 2 { &of_run[..] } else { &[] };
        for barrier in [W2, R1, R2, R3, R4, R6].iter().chain(run) {
            let barrier = *barrier;
            fails_without(&[barrier], "another file's bytes", Some(2), move || moved(pages));
        }
    }
}

/// A third thread tells, and finds a part of the region taken away.
#[test]
fn who_tells_while_a_part_is_taken_away_tells_of_no_other_files_block() {
    for (told, preemptions, barriers) in [(false, Some(1), &[W2, R3, R4, R6][..]), (true, Some(2), &[W5])] {
        holds(preemptions, move || told_meanwhile(told));
        for barrier in barriers {
            let says = "another file's bytes";
            fails_without(&[*barrier], says, preemptions, move || told_meanwhile(told));
        }
    }
}
