//! What every policy must keep, whatever its order: no dirty page is given up, a full cache is full, one
//! page goes for one that comes. And what a scan does to each.

use nvmed_cache::{
    Cache, Claim, Claimed, DirtyPage, EvictionPolicy, Layout, Object, Options, Outcome, PageState, Written,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Page;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE: usize = 4096;
const PAGES: u64 = 40;

fn cache(frames: u32, policy: EvictionPolicy) -> Cache {
    let table = Layout::table_bytes(frames);
    let layout = Layout { table_offset: 0, frames_offset: table, frames };
    let mapping = Mapping::anonymous(table + frames as usize * PAGE, Pages::Base).unwrap();
    Cache::new(Arc::new(mapping), layout, Options { policy, ..Options::dirty_limit(frames / 2) })
}

#[derive(Clone, Debug)]
enum Step {
    Read(Page),
    Write(Page),
    WriteBack {
        from: Page,
        to: Page,
        ok: bool,
    },
    Discard(Page),
    /// Holds a claim over the next steps.
    Hold(Page),
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    // Low pages more often than high ones.
    let page = || (0..PAGES, 0..PAGES).prop_map(|(one, other)| Page(one.min(other)));
    prop_oneof![
        8 => page().prop_map(Step::Read),
        4 => page().prop_map(Step::Write),
        1 => (page(), 0..PAGES, any::<bool>())
            .prop_map(|(from, pages, ok)| Step::WriteBack { from, to: from + pages, ok }),
        1 => page().prop_map(Step::Discard),
        1 => page().prop_map(Step::Hold),
        1 => Just(Step::Release),
    ]
}

/// What must be in the cache, and what may be.
struct Model<'a> {
    cache: &'a Cache,
    object: &'a Arc<Object>,
    frames: usize,
    dirty: BTreeSet<Page>,
    held: Vec<Claim<'a>>,
}

impl<'a> Model<'a> {
    fn resident(&self) -> BTreeSet<Page> {
        (0..PAGES).map(Page).filter(|page| self.cache.has(self.object, *page)).collect()
    }

    /// Claims a missing page; none when the cache is full, which it may only say when it is.
    fn claim(&mut self, page: Page) -> Option<Claim<'a>> {
        let before = self.resident();
        let evictions = self.cache.stats().evictions;
        let claimed = self.cache.claim(self.object, page);
        let after = self.resident();
        let evicted = self.cache.stats().evictions - evictions;
        assert!(after.is_superset(&self.dirty), "a dirty page was given up");
        assert!(before.is_superset(&after) && before.len() as u64 - after.len() as u64 == evicted);
        let firm = self.dirty.len() + self.held.len();
        match claimed {
            Ok(Claimed::Fill(claim)) => {
                assert!(firm < self.frames);
                assert_eq!(evicted, u64::from(before.len() + self.held.len() == self.frames));
                Some(claim)
            }
            Ok(Claimed::Present) => panic!("page {page} was missing"),
            Err(_) => {
                assert_eq!((firm, evicted), (self.frames, 0), "full, with clean pages in it");
                None
            }
        }
    }

    fn fill(&mut self, page: Page) -> bool {
        if self.held.iter().any(|claim| claim.page() == page) {
            return false;
        }
        if !self.cache.has(self.object, page) {
            let Some(claim) = self.claim(page) else { return false };
            claim.publish(PageState { dirty: false, backed: true });
        }
        true
    }

    fn write_back(&mut self, from: Page, to: Page, ok: bool) {
        let mut pages: Vec<DirtyPage> = Vec::new();
        let mut pass = self.cache.write_back(self.object);
        pass.take(from..to, PAGES as usize, &mut pages);
        pass.complete(&pages, if ok { Outcome::Written } else { Outcome::Failed });
        let taken: BTreeSet<Page> = pages.iter().map(|page| page.page).collect();
        assert_eq!(taken, self.dirty.range(from..to).copied().collect());
        if ok {
            self.dirty.retain(|page| !taken.contains(page));
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Read(page) => {
                if self.fill(page) {
                    assert!(self.cache.read(self.object, page, 0, &mut [0; 16]));
                }
            }
            Step::Write(page) => {
                if self.fill(page) {
                    let written = self.cache.write(self.object, page, 0, &[1; 16]);
                    assert!(matches!(written, Written::Done { .. }));
                    self.dirty.insert(page);
                }
            }
            Step::WriteBack { from, to, ok } => self.write_back(from, to, ok),
            Step::Discard(page) => {
                // Discarding waits for fillers; here they are on the same thread.
                if self.held.iter().all(|claim| claim.page() != page) {
                    self.cache.write_back(self.object).discard(page..page + 1);
                    self.dirty.remove(&page);
                }
            }
            Step::Hold(page) => {
                let held = self.held.iter().any(|claim| claim.page() == page);
                if !held && !self.cache.has(self.object, page) {
                    let claim = self.claim(page);
                    self.held.extend(claim);
                }
            }
            Step::Release => self.held.clear(),
        }
    }
}

fn policies() -> impl Strategy<Value = EvictionPolicy> {
    prop::sample::select(EvictionPolicy::ALL.to_vec())
}

proptest! {
    #[test]
    fn only_clean_pages_go_and_only_when_they_must(
        frames in 1u32..24,
        policy in policies(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let (cache, object) = (cache(frames, policy), Object::new(1));
        let dirty = BTreeSet::new();
        let mut model =
            Model { cache: &cache, object: &object, frames: frames as usize, dirty, held: Vec::new() };
        for step in &steps {
            model.step(step);
            prop_assert!(model.resident().is_superset(&model.dirty));
            prop_assert_eq!(cache.stats().dirty, model.dirty.len() as u64);
        }
    }
}

/// Reads a page, bringing it in if it is missing; whether it was there.
fn touch(cache: &Cache, object: &Arc<Object>, page: Page) -> bool {
    let mut hit = true;
    while !cache.read(object, page, 0, &mut [0; 64]) {
        hit = false;
        if let Claimed::Fill(claim) = cache.claim(object, page).unwrap() {
            claim.publish(PageState { dirty: false, backed: true });
        }
    }
    hit
}

/// Pages left of a hot set of 500, in a cache of 1000, after a scan of 10,000 that nothing interrupts.
fn left_after_scan(policy: EvictionPolicy) -> usize {
    let cache = cache(1000, policy);
    let (hot, scanned) = (Object::new(1), Object::new(2));
    for _ in 0..3 {
        (0..500).map(Page).for_each(|page| _ = touch(&cache, &hot, page));
    }
    (0..10_000).map(Page).for_each(|page| assert!(!touch(&cache, &scanned, page)));
    (0..500).map(Page).filter(|page| cache.has(&hot, *page)).count()
}

#[test]
fn a_scan_does_not_flush_the_hot_set_except_under_clock() {
    assert_eq!(left_after_scan(EvictionPolicy::S3Fifo), 500);
    assert_eq!(left_after_scan(EvictionPolicy::Sieve), 500);
    // Each lap of the hand costs a page its one chance: this is the price of CLOCK, and shows that the
    // scan is long enough to tell.
    assert_eq!(left_after_scan(EvictionPolicy::Clock), 0);
}

#[test]
fn a_scan_beside_a_hot_set_in_use_leaves_it_alone() {
    for policy in EvictionPolicy::ALL {
        let cache = cache(1000, policy);
        let (hot, scanned) = (Object::new(1), Object::new(2));
        for _ in 0..3 {
            (0..500).map(Page).for_each(|page| _ = touch(&cache, &hot, page));
        }
        let mut misses = 0;
        for page in (0..10_000).map(Page) {
            touch(&cache, &scanned, page);
            misses += u32::from(!touch(&cache, &hot, Page(page.0 * 7 % 500)));
        }
        assert!(misses <= 100, "{}: {misses} hot pages pushed out", policy.name());
    }
}

#[test]
fn each_policy_has_its_name() {
    for policy in EvictionPolicy::ALL {
        assert_eq!(EvictionPolicy::from_name(policy.name()), Some(policy));
    }
    assert_eq!(EvictionPolicy::from_name("lru"), None);
}
