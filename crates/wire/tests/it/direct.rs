//! Direct windows: what readers copy from the medium while the server's threads change it.

use nvmed_sys::{Mapping, Pages};
use nvmed_wire::{MediumView, Place, Seen, Window, WindowView};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;

/// A medium of blocks whose bytes are their numbers, and its reader.
fn medium(blocks: usize) -> (Mapping, Arc<MediumView>) {
    let medium = Mapping::shareable(blocks * PAGE, Pages::Base).unwrap();
    (0..blocks).for_each(|block| medium.fill(block * PAGE, PAGE, block as u8));
    let view = MediumView::open(medium.backing().unwrap().0).unwrap();
    (medium, Arc::new(view))
}

fn window(pages: u64, size: usize, medium: &Arc<MediumView>) -> (Window, WindowView) {
    let window = Window::direct(pages, size as u64).unwrap();
    window.resume();
    let view = WindowView::open(window.readers()).unwrap();
    assert!(view.is_direct());
    (window, view.over(Arc::clone(medium)))
}

/// Tells that pages lie in these blocks, or nowhere.
fn tell(window: &Window, blocks: &[Option<u64>]) {
    window.tell(0..blocks.len() as u64, |page| {
        Some((blocks[page as usize].map_or(Place::Zeroes, Place::Block), 1))
    });
}

#[test]
fn bytes_are_read_where_the_window_says() {
    let (_medium, view) = medium(64);
    let (window, reads) = window(64, 6 * PAGE - 100, &view);
    let mut into = vec![9; 8 * PAGE];
    assert_eq!(reads.read(&mut into, 0), Seen::Missing);
    // Two runs, a page of zeroes between them, and one that lies before the others.
    tell(&window, &[Some(7), Some(8), None, Some(20), Some(21), Some(3)]);
    assert_eq!(reads.read(&mut into, 0), Seen::Bytes(6 * PAGE - 100));
    let pages = [7, 8, 0, 20, 21, 3];
    let byte = |at: usize| pages[at / PAGE];
    assert!((0..6 * PAGE - 100).all(|at| into[at] == byte(at)), "all of it");
    assert!(into[6 * PAGE - 100..].iter().all(|&byte| byte == 9), "and nothing behind it");
    assert_eq!(reads.read(&mut into[..200], 2 * PAGE as u64 - 100), Seen::Bytes(200));
    assert!(into[..100].iter().all(|&byte| byte == 8) && into[100..200].iter().all(|&byte| byte == 0));
    // What was told stays; a page that is told of again is not asked for.
    window.tell(0..6, |page| panic!("page {page} is known"));
    // The block behind the last one that there is.
    window.tell(6..7, |_| Some((Place::Block(64), 1)));
    let change = window.begin_resize(|size| size..size);
    change.set_size(7 * PAGE as u64);
    change.end();
    assert_eq!(reads.read(&mut into[..1], 6 * PAGE as u64), Seen::Missing, "no medium has that");
}

/// Pages of a file that has three regions and a part of one.
const MANY: usize = 200;

#[test]
fn a_run_of_many_pages_is_read_as_they_are_now_whichever_of_them_changes() {
    let (medium, view) = medium(256);
    let (window, reads) = window(256, MANY * PAGE, &view);
    window.tell(0..MANY as u64, |page| Some((Place::Block(7 + page), MANY as u64 - page)));
    let mut into = vec![0; MANY * PAGE];
    let mut bytes: Vec<u8> = (7..).take(MANY).collect();
    let read_all = |into: &mut [u8], bytes: &[u8]| {
        into.fill(3);
        let seen = reads.read(into, 0);
        assert!(seen != Seen::Bytes(into.len()) || (0..into.len()).all(|at| into[at] == bytes[at / PAGE]));
        seen
    };
    let whole = Seen::Bytes(MANY * PAGE);
    assert_eq!(read_all(&mut into, &bytes), whole);
    for page in [0, 1, 15, 16, 62, 63, 64, 65, 128, 191, 192, 199] {
        let change = window.begin_change((page * PAGE) as u64..(page * PAGE + 1) as u64);
        assert_eq!(read_all(&mut into, &bytes), Seen::Missing, "page {page} is changing");
        let other = if page < 64 { 64..MANY } else { 0..64 };
        let seen = reads.read(&mut into[..other.len() * PAGE], (other.start * PAGE) as u64);
        assert_eq!(seen, Seen::Bytes(other.len() * PAGE), "page {page} changes in one region");
        bytes[page] = 255 - bytes[page];
        medium.fill((7 + page) * PAGE, PAGE, bytes[page]);
        change.end();
        assert_eq!(read_all(&mut into, &bytes), whole, "page {page} has changed");
    }
    // One that lies elsewhere.
    for page in [1, 64, 127, 199] {
        drop(window.begin_change(0..(MANY * PAGE) as u64));
        assert_eq!(read_all(&mut into, &bytes), Seen::Missing, "nobody knows where any of them lies");
        window.tell(0..MANY as u64, |at| match at {
            at if at < page => Some((Place::Block(7 + at), page - at)),
            at if at == page => Some((Place::Block(3), 1)),
            at => Some((Place::Block(7 + at), MANY as u64 - at)),
        });
        let before = std::mem::replace(&mut bytes[page as usize], 3);
        assert_eq!(read_all(&mut into, &bytes), whole, "page {page} lies elsewhere");
        bytes[page as usize] = before;
    }
    // One of a run that is not there, and told of again alone.
    drop(window.begin_change((70 * PAGE) as u64..(71 * PAGE) as u64));
    assert_eq!(read_all(&mut into, &bytes), Seen::Missing, "one page is not there");
    assert_eq!(reads.read(&mut into[..PAGE], 69 * PAGE as u64), Seen::Bytes(PAGE));
    assert_eq!(reads.read(&mut into[..PAGE], 70 * PAGE as u64), Seen::Missing);
    window.tell(70..71, |_| Some((Place::Block(5), 1)));
    bytes[70] = 5;
    bytes[199] = 3;
    assert_eq!(read_all(&mut into, &bytes), whole, "it lies elsewhere now");
}

#[test]
fn a_write_leaves_a_block_and_takes_zeroes_away() {
    let (medium, view) = medium(16);
    let (window, reads) = window(16, 2 * PAGE, &view);
    tell(&window, &[Some(5), None]);
    let mut into = [0; 2 * PAGE];
    let change = window.begin_change(10..PAGE as u64 + 10);
    assert_eq!(reads.read(&mut into, 0), Seen::Missing);
    medium.fill(5 * PAGE + 10, PAGE - 10, 77);
    change.write(10, &[77; PAGE]);
    change.end();
    assert_eq!(reads.read(&mut into[..PAGE], 0), Seen::Bytes(PAGE));
    assert!(into[..10].iter().all(|&byte| byte == 5) && into[10..PAGE].iter().all(|&byte| byte == 77));
    assert_eq!(reads.read(&mut into[..1], PAGE as u64), Seen::Missing, "it lies somewhere now");
    drop(window.begin_change(0..1));
    assert_eq!(reads.read(&mut into[..1], 0), Seen::Missing, "a change that failed leaves nothing");
}

#[test]
fn who_has_left_the_medium_sees_nothing_of_it() {
    let (_medium, view) = medium(16);
    let (window, reads) = window(16, PAGE, &view);
    tell(&window, &[Some(5)]);
    let mut into = [0; 10];
    assert_eq!((reads.read(&mut into, 0), into), (Seen::Bytes(10), [5; 10]));
    window.pause();
    assert_eq!(reads.read(&mut into, 0), Seen::Closed);
    assert!(!reads.is_open() && reads.size().is_none());
    window.resume();
    assert_eq!(reads.read(&mut into, 0), Seen::Bytes(10));
    view.leave();
    assert_eq!(reads.read(&mut into, 0), Seen::Closed);
    assert!(!reads.is_open());
    let unread = WindowView::open(window.readers()).unwrap();
    assert_eq!(unread.read(&mut into, 0), Seen::Missing, "without a medium there is nothing to be read");
    assert!(MediumView::open(rustix::fd::AsFd::as_fd(&empty())).is_err());
}

fn empty() -> rustix::fd::OwnedFd {
    rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}

/// A thread that finds places panics: whoever changes the pages then does not wait for it.
#[test]
fn pages_that_nobody_could_tell_of_are_absent() {
    let (_medium, view) = medium(16);
    let (window, reads) = window(16, 4 * PAGE, &view);
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        window
            .tell(0..4, |page| if page == 0 { Some((Place::Block(1), 1)) } else { panic!("found nothing") });
    }));
    assert!(told.is_err());
    window.begin_change(0..4 * PAGE as u64).end();
    let mut into = [0; 10];
    assert_eq!((reads.read(&mut into, 0), into), (Seen::Bytes(10), [1; 10]));
    assert_eq!(reads.read(&mut into, PAGE as u64), Seen::Missing);
    window.tell(0..4, |_| Some((Place::Block(u64::from(u32::MAX)), 4)));
    assert_eq!(reads.read(&mut into, PAGE as u64), Seen::Missing, "a block whose number does not fit");
}

/// Two regions.
const STRESS_PAGES: u64 = 128;
/// Pages of a read.
const READ_PAGES: u64 = 3;
/// Blocks of the medium.
const BLOCKS: u64 = 2048;
const STRESS_CHANGES: u64 = 50_000;
/// Reads between which the writer has done something: on a busy machine others say nothing.
const STRESS_READS: u64 = 1000;

/// Each page has one number all over. A writer raises it in place; from time to time it takes the pages' blocks away,
/// which another file gets at once, and gives them others. A reader sees whole pages of this file that are no older
/// than what was written before it read.
#[test]
fn a_torn_stale_or_foreign_page_is_never_read() {
    const FOREIGN: u64 = u64::MAX;
    let medium = Mapping::shareable(BLOCKS as usize * PAGE, Pages::Base).unwrap();
    let view = Arc::new(MediumView::open(medium.backing().unwrap().0).unwrap());
    let (window, reads) = window(STRESS_PAGES, STRESS_PAGES as usize * PAGE, &view);
    let page_of = |number: u64| number.to_le_bytes().repeat(PAGE / 8);
    let model = [const { AtomicU64::new(0) }; STRESS_PAGES as usize];
    let (done, seen, rounds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut round = 0;
            let mut into = [0; READ_PAGES as usize * PAGE];
            let mut page = 0;
            while !done.load(Ordering::Relaxed) {
                page = (page + 3) % (STRESS_PAGES - READ_PAGES);
                let least = model[page as usize].load(Ordering::SeqCst);
                if reads.read(&mut into, page * PAGE as u64) != Seen::Bytes(into.len()) {
                    continue;
                }
                for part in into.chunks(PAGE) {
                    assert!(part.chunks(8).all(|word| word == &part[..8]), "a torn page");
                    assert_ne!(part[..8], FOREIGN.to_le_bytes(), "another file's block");
                }
                let number = u64::from_le_bytes(into[..8].try_into().unwrap());
                assert!(number >= least, "page {page} is stale: {number}, not {least}");
                let before = std::mem::replace(&mut round, rounds.load(Ordering::Relaxed));
                seen.fetch_add(u64::from(round != before), Ordering::Relaxed);
            }
        });
        let mut first = 0;
        let place = |first: u64| move |page: u64| Some((Place::Block(first + page), STRESS_PAGES));
        window.tell(0..STRESS_PAGES, place(first));
        let mut round = 0;
        let is_enough = |round| round >= STRESS_CHANGES && seen.load(Ordering::Relaxed) >= STRESS_READS;
        while !is_enough(round) && !reader.is_finished() {
            round += 1;
            rounds.store(round, Ordering::Relaxed);
            let page = round % STRESS_PAGES;
            if round % 64 == 0 {
                let before = first;
                first = (first + 2 * STRESS_PAGES) % BLOCKS;
                // A cut and what is written again: the words are odd until the file has its other blocks.
                let change = window.begin_change(0..STRESS_PAGES * PAGE as u64);
                for page in 0..STRESS_PAGES {
                    medium.write((before + page) as usize * PAGE, &page_of(FOREIGN));
                    let number = model[page as usize].load(Ordering::SeqCst);
                    medium.write((first + page) as usize * PAGE, &page_of(number));
                }
                drop(change);
                window.tell(0..STRESS_PAGES, place(first));
                continue;
            }
            let change = window.begin_change(page * PAGE as u64..(page + 1) * PAGE as u64);
            medium.write((first + page) as usize * PAGE, &page_of(round));
            change.end();
            model[page as usize].store(round, Ordering::SeqCst);
        }
        done.store(true, Ordering::Relaxed);
    });
}
