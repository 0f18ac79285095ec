//! Scan pollution: reading much once does not push out what is read again and again.

use nvmed_cache::{Cache, Claimed, Layout, Object, Options, PageState};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Page;
use std::sync::Arc;

const PAGE: usize = 4096;

struct Bench {
    cache: Cache,
    misses: u64,
}

impl Bench {
    fn new(frames: u32) -> Self {
        let table = Layout::table_bytes(frames);
        let layout = Layout { table_offset: 0, frames_offset: table, frames };
        let mapping = Mapping::anonymous(table + frames as usize * PAGE, Pages::Base).unwrap();
        let options = Options::dirty_limit(frames / 2);
        Self { cache: Cache::new(Arc::new(mapping), layout, options), misses: 0 }
    }

    /// Reads a page in parts of `part` bytes.
    fn touch(&mut self, object: &Arc<Object>, page: Page, part: usize) {
        let mut bytes = vec![0; part];
        for offset in (0..PAGE).step_by(part) {
            while !self.cache.read(object, page, offset, &mut bytes) {
                if let Claimed::Fill(claim) = self.cache.claim(object, page).unwrap() {
                    claim.publish(PageState::default());
                    self.misses += 1;
                }
            }
        }
    }
}

/// Misses on a hot set of half the cache while a scan of ten times the cache runs beside it.
fn misses_during_scan(part: usize) -> u64 {
    let mut bench = Bench::new(1000);
    let (hot, scanned) = (Object::new(1), Object::new(2));
    for _ in 0..3 {
        (0..500).map(Page).for_each(|page| bench.touch(&hot, page, PAGE));
    }
    let mut hot_misses = 0;
    for page in (0..10_000).map(Page) {
        bench.touch(&scanned, page, part);
        let before = bench.misses;
        bench.touch(&hot, Page(page.0 * 7 % 500), PAGE);
        hot_misses += bench.misses - before;
    }
    hot_misses
}

#[test]
fn a_scan_leaves_the_hot_set_alone() {
    for part in [PAGE, 512] {
        let misses = misses_during_scan(part);
        assert!(misses <= 100, "a scan in parts of {part} bytes pushed {misses} hot pages out");
    }
}

#[test]
fn a_page_that_comes_back_soon_stays() {
    let mut bench = Bench::new(100);
    let object = Object::new(1);
    // A loop over 105 pages of a cache of 100: LRU and FIFO would miss every time.
    for _ in 0..20 {
        (0..105).map(Page).for_each(|page| bench.touch(&object, page, PAGE));
    }
    assert!(bench.misses < 20 * 105 / 2, "{} misses of {}", bench.misses, 20 * 105);
}

#[test]
fn eviction_is_deterministic() {
    let run = || {
        let mut bench = Bench::new(64);
        let object = Object::new(1);
        (0..5000u64).for_each(|step| bench.touch(&object, Page(step * step % 211), PAGE));
        (bench.misses, bench.cache.stats().evictions)
    };
    assert_eq!(run(), run());
}
