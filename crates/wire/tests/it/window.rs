//! Windows: what readers see while the server's threads change, fill and give back.

use nvmed_wire::{Seen, Window, WindowView};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;

fn fill_with(window: &Window, page: u64, byte: u8) -> bool {
    window.fill(page, |into| {
        into.fill(byte);
        true
    })
}

#[test]
fn a_page_that_is_there_is_read_and_others_are_missing() {
    let window = Window::new(4, 3 * PAGE as u64 + 100).unwrap();
    let view = WindowView::open(window.readers()).unwrap();
    let mut into = [0; 2 * PAGE];
    assert_eq!(view.read(&mut into[..10], 0), Seen::Missing);
    assert!(fill_with(&window, 0, 1) && fill_with(&window, 1, 2) && fill_with(&window, 3, 4));
    assert_eq!(view.read(&mut into, 100), Seen::Missing, "page 2 is not there");
    assert_eq!(view.read(&mut into[..PAGE], 100), Seen::Bytes(PAGE));
    assert!(
        into[..PAGE - 100].iter().all(|&byte| byte == 1) && into[PAGE - 100..PAGE].iter().all(|&b| b == 2)
    );
    assert_eq!(view.read(&mut into, 3 * PAGE as u64), Seen::Bytes(100), "the file ends there");
    assert_eq!(view.read(&mut into, 4 * PAGE as u64), Seen::Bytes(0));
    window.give_back(0..1);
    assert_eq!(view.read(&mut into[..10], 0), Seen::Missing);
    assert!(!window.has(0) && window.has(1));
    window.close();
    assert_eq!(view.read(&mut into[..10], PAGE as u64), Seen::Closed);
}

#[test]
fn readers_see_nothing_of_a_change_before_it_ends() {
    let window = Window::new(4, 2 * PAGE as u64).unwrap();
    let view = WindowView::open(window.readers()).unwrap();
    fill_with(&window, 0, 1);
    let mut into = [0; 8];
    let change = window.begin_change(10..PAGE as u64 + 10);
    assert_eq!(view.read(&mut into, 0), Seen::Missing);
    change.write(10, &[9; 10]);
    // Page 1 is not there, and so is not copied to.
    change.write(PAGE as u64, &[9; 10]);
    change.end();
    assert_eq!(view.read(&mut into, 6), Seen::Bytes(8));
    assert_eq!(into, [1, 1, 1, 1, 9, 9, 9, 9]);
    assert!(!window.has(1));
    drop(window.begin_change(0..1));
    assert_eq!(view.read(&mut into, 0), Seen::Missing, "a change that failed leaves nothing");
}

#[test]
fn a_size_change_is_seen_whole() {
    let window = Window::new(4, 100).unwrap();
    let view = WindowView::open(window.readers()).unwrap();
    window.fill(0, |into| {
        into[..100].fill(7);
        true
    });
    let change = window.begin_resize(|size| size..size + 50);
    change.write(100, &[8; 50]);
    change.set_size(150);
    change.end();
    let mut into = [0; 200];
    assert_eq!(view.read(&mut into, 0), Seen::Bytes(150));
    assert!(into[..100].iter().all(|&byte| byte == 7) && into[100..150].iter().all(|&byte| byte == 8));
}

#[test]
fn a_client_cannot_write_into_a_window() {
    let window = Window::new(4, 100).unwrap();
    let fd = window.readers();
    assert!(nvmed_sys::Mapping::shared(fd, 0, PAGE, nvmed_sys::Pages::Base).is_err());
    assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
    assert!(rustix::fs::ftruncate(fd, 0).is_err());
}

#[test]
fn what_is_no_window_is_refused() {
    let fd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let open = || WindowView::open(rustix::fd::AsFd::as_fd(&fd)).is_err();
    assert!(open());
    rustix::fs::ftruncate(&fd, 8192).unwrap();
    assert!(open(), "no pages");
    rustix::io::pwrite(&fd, &5u64.to_le_bytes(), 16).unwrap();
    assert!(open(), "shorter than its pages");
    rustix::io::pwrite(&fd, &u64::MAX.to_le_bytes(), 16).unwrap();
    assert!(open(), "more pages than there can be");
}

const STRESS_PAGES: u64 = 4;
const STRESS_CHANGES: u64 = 200_000;

/// A file whose pages hold one number all over, and what looks at it through a window.
struct Stress {
    window: Window,
    /// What every later reader must see at least.
    model: Vec<AtomicU64>,
    /// What the file is: only changed inside a change of the window.
    file: Vec<Mutex<u64>>,
    written: AtomicBool,
    done: AtomicBool,
    seen: AtomicU64,
}

fn page_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE / 8)
}

impl Stress {
    fn write(&self, writer: u64) {
        for round in 0..STRESS_CHANGES {
            let page = (round * 7 + writer) % STRESS_PAGES;
            let change = self.window.begin_change(page * PAGE as u64..(page + 1) * PAGE as u64);
            let number = {
                let mut number = self.file[page as usize].lock().unwrap();
                *number += 1;
                *number
            };
            change.write(page * PAGE as u64, &page_of(number));
            if round % 50 == 0 {
                drop(change)
            } else {
                change.end()
            }
            self.model[page as usize].fetch_max(number, Ordering::SeqCst);
        }
    }

    fn fill_and_give_back(&self) {
        while !self.done.load(Ordering::Relaxed) {
            for page in 0..STRESS_PAGES {
                self.window.fill(page, |into| {
                    into.copy_from_slice(&page_of(*self.file[page as usize].lock().unwrap()));
                    true
                });
            }
            if !self.written.load(Ordering::Relaxed) {
                self.window.give_back(1..3);
            }
            std::thread::yield_now();
        }
    }

    fn read(&self) {
        let view = WindowView::open(self.window.readers()).unwrap();
        let mut into = [0; PAGE];
        let mut page = 0;
        while !self.done.load(Ordering::Relaxed) {
            page = (page + 1) % STRESS_PAGES;
            let least = self.model[page as usize].load(Ordering::SeqCst);
            if view.read(&mut into, page * PAGE as u64) == Seen::Bytes(PAGE) {
                let number = u64::from_le_bytes(into[..8].try_into().unwrap());
                assert_eq!(into[..], page_of(number)[..], "a torn page");
                assert!(number >= least, "page {page} is stale: {number}, not {least}");
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The reader has seen something, and what is there in the end is the file.
    fn end(&self) {
        self.written.store(true, Ordering::Relaxed);
        let view = WindowView::open(self.window.readers()).unwrap();
        let mut into = [0; PAGE];
        for (page, number) in self.file.iter().enumerate() {
            while view.read(&mut into, (page * PAGE) as u64) != Seen::Bytes(PAGE) {
                std::thread::yield_now();
            }
            assert_eq!(into[..], page_of(*number.lock().unwrap())[..]);
        }
        while self.seen.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Writers raise a page's number in a model first, and a reader sees whole pages whose number is no older than what the
/// model had before it read, whatever is filled and given back meanwhile.
#[test]
fn a_torn_or_stale_page_is_never_seen() {
    let stress = Stress {
        window: Window::new(STRESS_PAGES, STRESS_PAGES * PAGE as u64).unwrap(),
        model: (0..STRESS_PAGES).map(|_| AtomicU64::new(0)).collect(),
        file: (0..STRESS_PAGES).map(|_| Mutex::new(0)).collect(),
        written: AtomicBool::new(false),
        done: AtomicBool::new(false),
        seen: AtomicU64::new(0),
    };
    let stress = &stress;
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| scope.spawn(move || stress.write(writer)));
        scope.spawn(|| stress.fill_and_give_back());
        scope.spawn(|| stress.read());
        for writer in writers {
            writer.join().unwrap();
        }
        stress.end();
    });
}
