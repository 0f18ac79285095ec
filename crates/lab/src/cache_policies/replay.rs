//! A trace through the real cache, with a device that answers at once.

use super::trace::{PAGE_BYTES, Trace, pages};
use nvmed_cache::{
    Cache, Claimed, DirtyPage, EvictionPolicy, Layout, Object, Options, Outcome, PageState, Written,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_trace::{Op, Request};
use nvmed_units::Page;
use std::collections::HashMap;
use std::sync::Arc;

/// Pages written back in one go.
const BATCH_PAGES: usize = 1024;

/// What a replay found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages, or parts of pages, read.
    pub reads: u64,
    /// Those of them that were in the cache.
    pub read_hits: u64,
    /// Pages, or parts of pages, written.
    pub writes: u64,
    /// Those of them that were in the cache.
    pub write_hits: u64,
    /// Clean pages given up.
    pub evictions: u64,
}

impl Counts {
    /// Hits over accesses, 0 to 1.
    #[must_use]
    pub(crate) fn hit_ratio(&self) -> f64 {
        (self.read_hits + self.write_hits) as f64 / (self.reads + self.writes).max(1) as f64
    }

    /// Hits of reads over reads, 0 to 1.
    #[must_use]
    pub(crate) fn read_hit_ratio(&self) -> f64 {
        self.read_hits as f64 / self.reads.max(1) as f64
    }
}

struct Replay {
    cache: Cache,
    objects: HashMap<u32, Arc<Object>>,
    counts: Counts,
    bytes: Vec<u8>,
}

/// Replays a trace through a cache of `frames` frames, half of which may be dirty, as the block cache does:
/// a page that is missing is brought in, one that is written whole is not read first, and a writer who meets
/// too much dirt writes all of it back.
///
/// # Errors
/// What the host says when it has no memory.
pub fn replay(trace: &Trace, frames: u32, policy: EvictionPolicy) -> Result<Counts, rustix::io::Errno> {
    let table = Layout::table_bytes(frames);
    let layout = Layout { table_offset: 0, frames_offset: table, frames };
    let mapping = Mapping::anonymous(table + frames as usize * PAGE_BYTES as usize, Pages::Base)?;
    let options = Options { policy, ..Options::dirty_limit(frames / 2) };
    let cache = Cache::new(Arc::new(mapping), layout, options);
    let bytes = vec![0; PAGE_BYTES as usize];
    let mut replay = Replay { cache, objects: HashMap::new(), counts: Counts::default(), bytes };
    for request in &trace.requests {
        replay.request(request);
    }
    replay.counts.evictions = replay.cache.stats().evictions;
    Ok(replay.counts)
}

impl Replay {
    fn request(&mut self, request: &Request) {
        let new = || Object::new(u64::from(request.device));
        let object = Arc::clone(self.objects.entry(request.device).or_insert_with(new));
        let end = request.end();
        if request.op == Op::Flush {
            return;
        }
        if request.op == Op::Discard {
            // Pages that are gone in part stay.
            let whole = request.offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
            if whole.start < whole.end {
                self.cache.write_back(&object).discard(Page(whole.start)..Page(whole.end));
            }
            return;
        }
        for page in pages(request) {
            let start = request.offset.max(page * PAGE_BYTES);
            let stop = end.min((page + 1) * PAGE_BYTES);
            let (within, len) = ((start % PAGE_BYTES) as usize, (stop - start) as usize);
            if request.op == Op::Read {
                self.read(&object, Page(page), within, len);
            } else {
                self.write(&object, Page(page), within, len);
            }
        }
    }

    fn read(&mut self, object: &Arc<Object>, page: Page, within: usize, len: usize) {
        self.counts.reads += 1;
        let mut hit = true;
        while !self.cache.read(object, page, within, &mut self.bytes[..len]) {
            hit = false;
            self.fill(object, page, false);
        }
        self.counts.read_hits += u64::from(hit);
    }

    fn write(&mut self, object: &Arc<Object>, page: Page, within: usize, len: usize) {
        self.counts.writes += 1;
        let mut hit = true;
        while self.cache.write(object, page, within, &self.bytes[..len]) == Written::Absent {
            hit = false;
            if len == PAGE_BYTES as usize {
                self.fill(object, page, true);
                break;
            }
            self.fill(object, page, false);
        }
        self.counts.write_hits += u64::from(hit);
        if self.cache.over_limit() {
            self.relieve();
        }
    }

    fn fill(&mut self, object: &Arc<Object>, page: Page, dirty: bool) {
        loop {
            match self.cache.claim(object, page) {
                Ok(Claimed::Fill(claim)) => {
                    claim.publish(PageState { dirty, backed: true });
                    return;
                }
                Ok(Claimed::Present) => return,
                // One thread, no claim held: every frame is dirty.
                Err(_) => self.relieve(),
            }
        }
    }

    fn relieve(&self) {
        let mut pages: Vec<DirtyPage> = Vec::with_capacity(BATCH_PAGES);
        for object in self.objects.values() {
            let mut pass = self.cache.write_back(object);
            loop {
                pages.clear();
                pass.take(Page::ALL, BATCH_PAGES, &mut pages);
                if pages.is_empty() {
                    break;
                }
                pass.complete(&pages, Outcome::Written);
            }
        }
    }
}
