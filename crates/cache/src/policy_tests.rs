//! Each policy against a plain model of its paper: lists that are searched and shifted.

use super::*;
use crate::ghost::Ghost;
use nvmed_sys::Pages;
use proptest::prelude::*;

const FRAMES: u32 = 16;
/// Pages that come and go; more than frames, so that the ghost queue is asked.
const KEYS: u64 = 40;

/// A policy as its authors wrote it down. Frames stand in vectors, oldest first.
trait Model {
    fn insert(&mut self, frame: u32, key: Key);
    fn rejoin(&mut self, frame: u32);
    fn remove(&mut self, frame: u32);
    /// The frame that the search ends at, with the counters changed on the way.
    fn find(&mut self, uses: &mut [u8]) -> Option<u32>;
    fn evicted(&mut self, frame: u32, key: Key);
    fn pass(&mut self, frame: u32);
}

fn drop_from(queue: &mut Vec<u32>, frame: u32) -> bool {
    let at = queue.iter().position(|one| *one == frame);
    at.map(|at| queue.remove(at)).is_some()
}

struct S3FifoModel {
    small: Vec<u32>,
    main: Vec<u32>,
    ghost: Ghost,
}

impl Model for S3FifoModel {
    fn insert(&mut self, frame: u32, key: Key) {
        let queue = if self.ghost.take(key.owner, key.page) { &mut self.main } else { &mut self.small };
        queue.push(frame);
    }

    fn rejoin(&mut self, frame: u32) {
        self.small.push(frame);
    }

    fn remove(&mut self, frame: u32) {
        assert!(drop_from(&mut self.small, frame) != drop_from(&mut self.main, frame));
    }

    fn find(&mut self, uses: &mut [u8]) -> Option<u32> {
        loop {
            if self.small.len() > 1 || self.main.is_empty() {
                let frame = *self.small.first()?;
                if uses[frame as usize] < 2 {
                    return Some(frame);
                }
                uses[frame as usize] = 0;
                self.main.push(self.small.remove(0));
            } else {
                let frame = self.main[0];
                if uses[frame as usize] == 0 {
                    return Some(frame);
                }
                uses[frame as usize] -= 1;
                self.main.rotate_left(1);
            }
        }
    }

    fn evicted(&mut self, frame: u32, key: Key) {
        if self.small.contains(&frame) {
            self.ghost.insert(key.owner, key.page);
        }
        self.remove(frame);
    }

    fn pass(&mut self, frame: u32) {
        let queue = if self.small.contains(&frame) { &mut self.small } else { &mut self.main };
        drop_from(queue, frame);
        queue.push(frame);
    }
}

/// CLOCK, and with `keeps_place` SIEVE.
struct MarkModel {
    queue: Vec<u32>,
    fresh: [bool; FRAMES as usize],
    hand: usize,
    keeps_place: bool,
}

impl Model for MarkModel {
    fn insert(&mut self, frame: u32, _: Key) {
        self.fresh[frame as usize] = true;
        self.queue.push(frame);
    }

    fn rejoin(&mut self, frame: u32) {
        self.queue.push(frame);
    }

    fn remove(&mut self, frame: u32) {
        let at = self.queue.iter().position(|one| *one == frame).expect("the frame is in the queue");
        self.queue.remove(at);
        self.hand -= usize::from(at < self.hand);
        if self.hand == self.queue.len() {
            // The hand was on the newest frame: it starts again.
            self.hand = 0;
        }
    }

    fn find(&mut self, uses: &mut [u8]) -> Option<u32> {
        loop {
            let frame = *self.queue.get(self.hand)?;
            let own = u8::from(core::mem::take(&mut self.fresh[frame as usize]));
            if uses[frame as usize] <= own {
                self.fresh[frame as usize] = own == 1;
                return Some(frame);
            }
            uses[frame as usize] = 0;
            self.pass(frame);
        }
    }

    fn evicted(&mut self, frame: u32, _: Key) {
        self.remove(frame);
    }

    fn pass(&mut self, _: u32) {
        if self.keeps_place {
            self.hand = (self.hand + 1) % self.queue.len();
        } else {
            self.queue.rotate_left(1);
        }
    }
}

fn model(policy: EvictionPolicy) -> Box<dyn Model> {
    let mark = |keeps_place| {
        Box::new(MarkModel { queue: Vec::new(), fresh: [false; FRAMES as usize], hand: 0, keeps_place })
    };
    match policy {
        EvictionPolicy::S3Fifo => {
            Box::new(S3FifoModel { small: Vec::new(), main: Vec::new(), ghost: Ghost::new(FRAMES - 1) })
        }
        EvictionPolicy::Clock => mark(false),
        EvictionPolicy::Sieve => mark(true),
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A page comes, in a frame that is free, or in one that is given up.
    Come(u64),
    Use(u32),
    /// The frame leaves the order or, if it had left, comes back.
    Toggle(u32),
    /// The frame offered next is dirty.
    Dirty,
    /// The frame offered next is busy.
    Busy,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..KEYS).prop_map(Step::Come),
        8 => (0..FRAMES).prop_map(Step::Use),
        1 => (0..FRAMES).prop_map(Step::Toggle),
        1 => Just(Step::Dirty),
        1 => Just(Step::Busy),
    ]
}

struct Both {
    order: Box<dyn Policy>,
    model: Box<dyn Model>,
    uses: Uses,
    counts: [u8; FRAMES as usize],
    keys: [Key; FRAMES as usize],
    ordered: [bool; FRAMES as usize],
    used: u32,
}

impl Both {
    fn new(policy: EvictionPolicy) -> Self {
        let bytes = Layout::table_bytes(FRAMES);
        let frames_offset = bytes.next_multiple_of(4096);
        let mapping = Mapping::anonymous(bytes, Pages::Base).expect("memory");
        let layout = Layout { table_offset: 0, frames_offset, frames: FRAMES };
        Self {
            order: policy.order(FRAMES),
            model: model(policy),
            uses: Uses::new(Arc::new(mapping), layout),
            counts: [0; FRAMES as usize],
            keys: [Key { owner: 1, page: Page::FIRST }; FRAMES as usize],
            ordered: [false; FRAMES as usize],
            used: 0,
        }
    }

    /// The next frame by both, which must be the same.
    fn offered(&mut self) -> Option<u32> {
        let wanted = self.model.find(&mut self.counts);
        let mut found = None;
        for _ in 0..self.order.begin() {
            match self.order.turn(&self.uses) {
                Turn::Offer(frame) => found = Some(frame),
                Turn::Spared => continue,
                Turn::Empty => {}
            }
            break;
        }
        assert_eq!(found, wanted);
        for frame in 0..self.used {
            assert_eq!(self.uses.get(frame), self.counts[frame as usize], "uses of frame {frame}");
        }
        found
    }

    fn come(&mut self, page: u64) {
        let frame = if self.used < FRAMES {
            self.used += 1;
            self.used - 1
        } else {
            let Some(frame) = self.offered() else { return };
            let key = self.keys[frame as usize];
            self.order.evicted(frame, Some(key));
            self.model.evicted(frame, key);
            frame
        };
        let key = Key { owner: 1, page: Page(page) };
        self.uses.set(frame, 0);
        self.counts[frame as usize] = 0;
        self.keys[frame as usize] = key;
        self.ordered[frame as usize] = true;
        self.order.insert(frame, key);
        self.model.insert(frame, key);
    }

    fn remove(&mut self, frame: u32) {
        self.order.remove(frame);
        self.model.remove(frame);
        self.ordered[frame as usize] = false;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Come(page) => self.come(page),
            Step::Use(frame) => {
                let count = &mut self.counts[frame as usize];
                *count = (*count + 1).min(Uses::MAX);
                self.uses.set(frame, *count);
            }
            Step::Toggle(frame) if frame >= self.used => {}
            Step::Toggle(frame) if self.ordered[frame as usize] => self.remove(frame),
            Step::Toggle(frame) => {
                self.order.rejoin(frame);
                self.model.rejoin(frame);
                self.ordered[frame as usize] = true;
            }
            Step::Dirty => {
                if let Some(frame) = self.offered() {
                    self.remove(frame);
                }
            }
            Step::Busy => {
                if let Some(frame) = self.offered() {
                    self.order.pass(frame);
                    self.model.pass(frame);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn every_policy_keeps_the_order_of_its_paper(
        policy in prop::sample::select(EvictionPolicy::ALL.to_vec()),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let mut both = Both::new(policy);
        steps.iter().for_each(|step| both.step(*step));
    }
}
