//! Many threads on few frames: a reader never sees half a write, or another page's bytes.

use nvmed_cache::{Cache, Claimed, Layout, Object, Options, Outcome, PageState, Written};
use nvmed_dice::Dice;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Page;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;
const FILES: usize = 2;
const PAGES: u64 = 40;
const FRAMES: u32 = 24;

struct World {
    cache: Cache,
    objects: Vec<Arc<Object>>,
    device: Vec<Mutex<Vec<u8>>>,
    wrong: AtomicU64,
    stop: AtomicBool,
}

/// Every word of a version of a page names file, page and version.
fn stamp(file: usize, page: Page, version: u32) -> Vec<u8> {
    let word = (file as u64) << 56 | page.0 << 32 | u64::from(version);
    word.to_le_bytes().repeat(WORDS)
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap())
}

impl World {
    fn new() -> Self {
        let table = Layout::table_bytes(FRAMES);
        let layout = Layout { table_offset: 0, frames_offset: table, frames: FRAMES };
        let mapping = Mapping::anonymous(table + FRAMES as usize * PAGE, Pages::Base).unwrap();
        let device = (0..FILES)
            .map(|file| Mutex::new((0..PAGES).flat_map(|page| stamp(file, Page(page), 0)).collect()))
            .collect();
        Self {
            cache: Cache::new(Arc::new(mapping), layout, Options::dirty_limit(FRAMES / 2)),
            objects: (0..FILES).map(|file| Object::new(file as u64)).collect(),
            device,
            wrong: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    fn fill(&self, file: usize, page: Page) {
        match self.cache.claim(&self.objects[file], page) {
            Ok(Claimed::Present) => {}
            Ok(Claimed::Fill(claim)) => {
                let at = page.0 as usize * PAGE;
                claim.write(0, &self.device[file].lock().unwrap()[at..at + PAGE]);
                claim.publish(PageState { dirty: false, backed: true });
            }
            Err(_) => self.write_back(file),
        }
    }

    fn write_back(&self, file: usize) {
        let mut pages = Vec::new();
        let mut pass = self.cache.write_back(&self.objects[file]);
        pass.take(Page(0)..Page(PAGES), 8, &mut pages);
        for page in &pages {
            let at = page.page.0 as usize * PAGE;
            let mut device = self.device[file].lock().unwrap();
            // What the device takes while somebody writes may be torn; the page is then dirty again.
            self.cache.memory().read(page.offset, &mut device[at..at + PAGE]);
        }
        pass.complete(&pages, Outcome::Written);
    }

    fn check(&self, file: usize, page: Page, bytes: &[u8]) {
        let first = word(bytes, 0);
        let right = first >> 32 == (file as u64) << 24 | page.0;
        if !right || (1..WORDS).any(|index| word(bytes, index) != first) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read_some(&self, seed: u64) {
        let mut bytes = vec![0; PAGE];
        let mut dice = Dice::new(seed);
        while !self.stop.load(Ordering::Relaxed) {
            let (file, page) = (dice.index(FILES), Page(dice.roll(PAGES)));
            if self.cache.read(&self.objects[file], page, 0, &mut bytes) {
                self.check(file, page, &bytes);
            } else {
                self.fill(file, page);
            }
        }
    }

    fn write_some(&self, file: usize, rounds: u32) {
        let mut dice = Dice::new(file as u64 + 99);
        for version in 1..=rounds {
            let page = Page(dice.roll(PAGES));
            let bytes = stamp(file, page, version);
            while let Written::Absent | Written::Unbacked =
                self.cache.write(&self.objects[file], page, 0, &bytes)
            {
                self.fill(file, page);
            }
            if self.cache.over_limit() {
                self.write_back(file);
            }
            if version % 64 == 0 {
                // Truncation: what is lost is lost, but never mixed up.
                let mut pass = self.cache.write_back(&self.objects[file]);
                pass.discard(Page(PAGES / 2)..Page(PAGES));
                drop(pass);
                let mut device = self.device[file].lock().unwrap();
                for page in (PAGES / 2..PAGES).map(Page) {
                    let at = page.0 as usize * PAGE;
                    device[at..at + PAGE].copy_from_slice(&stamp(file, page, version));
                }
            }
        }
    }
}

#[test]
fn a_reader_sees_one_version_of_the_right_page() {
    let world = World::new();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn({
                    let world = &world;
                    move || world.read_some(seed)
                })
            })
            .collect();
        let writers: Vec<_> = (0..FILES)
            .map(|file| {
                scope.spawn({
                    let world = &world;
                    move || world.write_some(file, 20_000)
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        world.stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(world.wrong.load(Ordering::Relaxed), 0, "torn or foreign pages were read");
    let dirty: u64 = world.objects.iter().map(|object| object.dirty_pages()).sum();
    assert_eq!(world.cache.stats().dirty, dirty);
    assert!(world.cache.stats().evictions > 100, "the test did evict");
}

#[test]
fn a_second_claimer_waits_for_the_first() {
    let world = World::new();
    let Ok(Claimed::Fill(claim)) = world.cache.claim(&world.objects[0], Page(3)) else {
        panic!("empty cache")
    };
    assert!(world.cache.try_claim(&world.objects[0], Page(3)).unwrap().is_none(), "readahead passes over it");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let found = world.cache.claim(&world.objects[0], Page(3));
            assert!(matches!(found, Ok(Claimed::Present)));
            let mut bytes = vec![0; PAGE];
            assert!(world.cache.read(&world.objects[0], Page(3), 0, &mut bytes));
            world.check(0, Page(3), &bytes);
        });
        claim.write(0, &stamp(0, Page(3), 1));
        claim.publish(PageState::default());
        waiter.join().unwrap();
    });
    assert_eq!(world.wrong.load(Ordering::Relaxed), 0);
}
