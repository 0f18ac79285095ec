//! S3-FIFO gives up the same frames in the same order as it did when it was first measured.

use nvmed_cache::{Cache, Claimed, DirtyPage, Layout, Object, Options, Outcome, PageState, Written};
use nvmed_dice::Dice;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Page;
use std::sync::Arc;

const PAGE: usize = 4096;
const FRAMES: u32 = 200;

struct Run {
    cache: Cache,
    objects: [Arc<Object>; 2],
    /// FNV-1a of the frames handed out, in order.
    frames: u64,
}

impl Run {
    fn new() -> Self {
        let table = Layout::table_bytes(FRAMES);
        let layout = Layout { table_offset: 0, frames_offset: table, frames: FRAMES };
        let mapping = Mapping::anonymous(table + FRAMES as usize * PAGE, Pages::Base).unwrap();
        let cache = Cache::new(Arc::new(mapping), layout, Options::dirty_limit(FRAMES / 2));
        Self { cache, objects: [Object::new(1), Object::new(2)], frames: 0xcbf2_9ce4_8422_2325 }
    }

    fn fill(&mut self, object: usize, page: Page) {
        let object = Arc::clone(&self.objects[object]);
        if let Claimed::Fill(claim) = self.cache.claim(&object, page).unwrap() {
            self.frames = (self.frames ^ claim.offset() as u64).wrapping_mul(0x100_0000_01b3);
            claim.publish(PageState { dirty: false, backed: true });
        }
    }

    fn write_back(&mut self, object: usize) {
        let mut pages: Vec<DirtyPage> = Vec::new();
        let mut pass = self.cache.write_back(&self.objects[object]);
        pass.take(Page::ALL, usize::MAX / 2, &mut pages);
        pass.complete(&pages, Outcome::Written);
    }

    fn step(&mut self, dice: &mut Dice, step: u64) {
        let object = dice.roll(2) as usize;
        // Most accesses to few pages, some to many, and a scan now and then.
        let page = Page(match dice.roll(10) {
            0..=5 => dice.roll(120),
            6..=8 => dice.roll(1000),
            _ => 2000 + step % 500,
        });
        match dice.roll(16) {
            0 => self.cache.write_back(&self.objects[object]).discard(page..page + 2),
            1..=4 => {
                while self.cache.write(&self.objects[object], page, 0, &[1]) == Written::Absent {
                    self.fill(object, page);
                }
            }
            _ => {
                while !self.cache.read(&self.objects[object], page, 0, &mut [0; 64]) {
                    self.fill(object, page);
                }
            }
        }
        if self.cache.over_limit() {
            (0..2).for_each(|object| self.write_back(object));
        }
    }
}

#[test]
fn the_frames_are_given_up_in_the_measured_order() {
    let (mut run, mut dice) = (Run::new(), Dice::new(7));
    (0..200_000).for_each(|step| run.step(&mut dice, step));
    let stats = run.cache.stats();
    assert_eq!((run.frames, stats.misses, stats.evictions), (0x9c46_6f1b_48e1_65dd, 113_102, 103_014));
}
