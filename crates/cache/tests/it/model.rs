//! The cache against a flat array: whatever the order of calls, a file read through a small cache has
//! the bytes that were written, and memory of a dead process tells every dirty page.

use nvmed_cache::{
    Cache, Claimed, DirtyPage, EvictionPolicy, Layout, NoCleanFrame, Object, Options, Outcome, PageState,
    Written,
};
use nvmed_sys::{HUGE_BYTES, Mapping, Pages};
use nvmed_units::Page;
use proptest::prelude::*;
use std::sync::Arc;

const PAGE: usize = 4096;
/// Pages of the file: some in place, some in the first leaf, some further up the tree.
const WHERE: [Page; 24] = [
    Page(0),
    Page(1),
    Page(2),
    Page(3),
    Page(4),
    Page(5),
    Page(6),
    Page(7),
    Page(8),
    Page(9),
    Page(10),
    Page(11),
    Page(500),
    Page(511),
    Page(512),
    Page(513),
    Page(1000),
    Page(5000),
    Page(262_143),
    Page(262_144),
    Page(262_145),
    Page(1 << 30),
    Page(1 << 40),
    Page((1 << 44) - 1),
];

fn memory(frames: u32) -> (Arc<Mapping>, Layout) {
    let table = Layout::table_bytes(frames);
    let layout = Layout { table_offset: 4096, frames_offset: 4096 + table, frames };
    let mapping = Mapping::anonymous(4096 + table + frames as usize * PAGE, Pages::Base).unwrap();
    (Arc::new(mapping), layout)
}

/// A file on a device of pages, read and written through a cache as a file system would.
struct File {
    cache: Cache,
    object: Arc<Object>,
    device: Vec<[u8; PAGE]>,
}

impl File {
    fn new(frames: u32) -> Self {
        Self::with(frames, EvictionPolicy::default())
    }

    fn with(frames: u32, policy: EvictionPolicy) -> Self {
        let (mapping, layout) = memory(frames);
        let options = Options { policy, ..Options::dirty_limit(frames / 2) };
        let cache = Cache::new(mapping, layout, options);
        Self { cache, object: Object::new(42), device: vec![[0; PAGE]; WHERE.len()] }
    }

    fn fill(&mut self, at: usize) {
        for _ in 0..2 {
            match self.cache.claim(&self.object, WHERE[at]) {
                Ok(Claimed::Present) => return,
                Ok(Claimed::Fill(claim)) => {
                    claim.write(0, &self.device[at]);
                    claim.publish(PageState { dirty: false, backed: at.is_multiple_of(2) });
                    return;
                }
                Err(NoCleanFrame) => {}
            }
            self.write_back(0..WHERE.len(), Outcome::Written);
        }
        panic!("no frame after everything was written back");
    }

    fn write(&mut self, at: usize, offset: usize, bytes: &[u8]) {
        loop {
            match self.cache.write(&self.object, WHERE[at], offset, bytes) {
                Written::Done { .. } => return,
                Written::Absent => self.fill(at),
                Written::Unbacked => assert!(self.cache.back(&self.object, WHERE[at])),
            }
        }
    }

    fn read(&mut self, at: usize, offset: usize, into: &mut [u8]) {
        while !self.cache.read(&self.object, WHERE[at], offset, into) {
            self.fill(at);
        }
    }

    fn write_back(&mut self, which: core::ops::Range<usize>, outcome: Outcome) {
        let mut pages: Vec<DirtyPage> = Vec::new();
        let mut pass = self.cache.write_back(&self.object);
        pass.take(WHERE[which.start]..WHERE[which.end - 1] + 1, 1000, &mut pages);
        assert!(pages.windows(2).all(|pair| pair[0].page < pair[1].page), "ascending");
        if outcome == Outcome::Written {
            for page in &pages {
                let at = WHERE.iter().position(|known| *known == page.page).unwrap();
                self.cache.memory().read(page.offset, &mut self.device[at]);
            }
        }
        pass.complete(&pages, outcome);
    }

    fn discard(&mut self, from: usize) {
        self.cache.write_back(&self.object).discard(WHERE[from]..Page::END);
        self.device[from..].fill([0; PAGE]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, offset: usize, len: usize, byte: u8 },
    Read { at: usize, offset: usize, len: usize },
    Zero { at: usize, offset: usize },
    WriteBack { from: usize, to: usize, ok: bool },
    Discard { from: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..WHERE.len();
    let range = || (0..PAGE).prop_flat_map(|offset| (Just(offset), 0..=PAGE - offset));
    prop_oneof![
        6 => (at(), range(), any::<u8>())
            .prop_map(|(at, (offset, len), byte)| Step::Write { at, offset, len, byte }),
        4 => (at(), range()).prop_map(|(at, (offset, len))| Step::Read { at, offset, len }),
        1 => (at(), 0..PAGE).prop_map(|(at, offset)| Step::Zero { at, offset }),
        2 => (at(), 1..8usize, any::<bool>()).prop_map(|(from, len, ok)| {
            Step::WriteBack { from, to: (from + len).min(WHERE.len()), ok }
        }),
        1 => at().prop_map(|from| Step::Discard { from }),
    ]
}

fn run(file: &mut File, model: &mut [[u8; PAGE]], step: &Step) {
    match *step {
        Step::Write { at, offset, len, byte } => {
            file.write(at, offset, &vec![byte; len]);
            model[at][offset..offset + len].fill(byte);
        }
        Step::Read { at, offset, len } => {
            let mut bytes = vec![0xaa; len];
            file.read(at, offset, &mut bytes);
            assert_eq!(bytes, model[at][offset..offset + len], "page {}", WHERE[at]);
        }
        Step::Zero { at, offset } => {
            if let Written::Done { .. } = file.cache.zero(&file.object, WHERE[at], offset, PAGE - offset) {
                model[at][offset..].fill(0);
            }
        }
        Step::WriteBack { from, to, ok } => {
            file.write_back(from..to, if ok { Outcome::Written } else { Outcome::Failed });
        }
        Step::Discard { from } => {
            file.discard(from);
            model[from..].fill([0; PAGE]);
        }
    }
}

proptest! {
    #[test]
    fn a_file_through_a_small_cache_is_a_flat_array(
        frames in 4u32..20,
        policy in prop::sample::select(EvictionPolicy::ALL.to_vec()),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut file = File::with(frames, policy);
        let mut model = vec![[0; PAGE]; WHERE.len()];
        for step in &steps {
            run(&mut file, &mut model, step);
            let dirty = file.cache.stats().dirty;
            prop_assert_eq!(dirty, file.object.dirty_pages());
            prop_assert!(dirty <= u64::from(frames));
        }
        // The process dies: the device has what was written back, the memory has the rest.
        let mapping = Arc::clone(file.cache.memory());
        let layout = memory(frames).1;
        let mut survivors = 0;
        for survivor in Cache::survivors(&mapping, layout) {
            prop_assert_eq!(survivor.owner, 42);
            let at = WHERE.iter().position(|page| *page == survivor.page).unwrap();
            mapping.read(survivor.offset, &mut file.device[at]);
            survivors += 1;
        }
        prop_assert_eq!(survivors, file.cache.stats().dirty);
        prop_assert!(file.device == model, "what survived is what was written");
        let again = Cache::new(Arc::clone(&mapping), layout, Options::dirty_limit(1));
        prop_assert_eq!(Cache::survivors(&mapping, layout).count(), 0);
        prop_assert_eq!(again.stats().dirty, 0);
    }
}

#[test]
fn a_full_cache_of_dirty_pages_says_so_and_recovers() {
    let mut file = File::new(4);
    for at in [0, 2, 4, 6] {
        file.write(at, 0, &[1; PAGE]);
    }
    assert!(file.cache.over_limit());
    assert!(matches!(file.cache.claim(&file.object, Page(99)), Err(NoCleanFrame)));
    assert!(matches!(file.cache.try_claim(&file.object, Page(99)), Err(NoCleanFrame)));
    file.write_back(0..WHERE.len(), Outcome::Failed);
    assert!(
        matches!(file.cache.claim(&file.object, Page(99)), Err(NoCleanFrame)),
        "a failed write frees nothing"
    );
    file.write_back(0..WHERE.len(), Outcome::Written);
    assert!(!file.cache.over_limit());
    assert!(matches!(file.cache.claim(&file.object, Page(99)), Ok(Claimed::Fill(_))));
}

#[test]
fn a_page_written_during_its_write_back_stays_dirty() {
    let mut file = File::new(4);
    file.write(0, 0, &[1; PAGE]);
    let mut pages = Vec::new();
    let mut pass = file.cache.write_back(&file.object);
    pass.take(Page(0)..Page(10), 10, &mut pages);
    assert_eq!((file.object.dirty_pages(), file.cache.is_dirty(&file.object, Page(0))), (0, true));
    assert_eq!(
        file.cache.write(&file.object, Page(0), 5, &[2]),
        Written::Done { first_dirty: true, promise_used: false }
    );
    pass.complete(&pages, Outcome::Written);
    drop(pass);
    assert_eq!((file.object.dirty_pages(), file.cache.stats().dirty), (1, 1));
    assert_eq!(Cache::survivors(file.cache.memory(), memory(4).1).count(), 1);
    file.write_back(0..1, Outcome::Written);
    assert_eq!((file.object.dirty_pages(), file.cache.stats().dirty), (0, 0));
    assert_eq!(file.device[0][4..7], [1, 2, 1]);
}

#[test]
fn a_dropped_object_gives_its_frames_back() {
    let mut file = File::new(4);
    file.write(0, 0, &[1; PAGE]);
    file.write(2, 0, &[1; PAGE]);
    file.object = Object::new(43);
    for at in 0..WHERE.len() {
        file.fill(at);
    }
    assert_eq!(file.cache.stats().dirty, 0);
}

#[test]
fn an_abandoned_claim_leaves_nothing() {
    let file = File::new(2);
    for page in (0..10).map(Page) {
        let Ok(Claimed::Fill(claim)) = file.cache.claim(&file.object, page) else { panic!("page {page}") };
        claim.write(0, &[9; PAGE]);
        drop(claim);
        assert!(!file.cache.has(&file.object, page));
    }
}

/// Bytes of huge pages behind a shared mapping, as the kernel tells; none where it has none to give.
fn huge_bytes(mapping: &Mapping) -> usize {
    let head = format!("{:x}-", mapping.address() as usize);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    let told = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
    told.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// Beyond the first frames their memory comes in huge pages, where the kernel has any, and the next one ahead.
#[test]
fn frames_keep_their_bytes_while_their_memory_becomes_huge_pages() {
    let frames = 2000;
    let layout = Layout { table_offset: 0, frames_offset: HUGE_BYTES, frames };
    let bytes = HUGE_BYTES + frames as usize * PAGE;
    let mapping = Arc::new(Mapping::shareable(bytes, Pages::Huge).unwrap());
    let cache = Cache::new(Arc::clone(&mapping), layout, Options::dirty_limit(frames));
    cache.made_present_by(std::thread::current());
    let object = Object::new(1);
    let tag = |page: u64| page.to_le_bytes();
    let mut huge = Vec::new();
    for page in 0..u64::from(frames) {
        let Ok(Claimed::Fill(claim)) = cache.claim(&object, Page(page)) else { panic!("page {page}") };
        claim.write(0, &tag(page).repeat(PAGE / 8));
        claim.publish(PageState { dirty: false, backed: true });
        cache.make_present();
        if page % 512 == 0 {
            huge.push(huge_bytes(&mapping) / HUGE_BYTES);
        }
    }
    for page in 0..u64::from(frames) {
        let mut whole = [0; PAGE];
        assert!(cache.read(&object, Page(page), 0, &mut whole));
        assert!(whole.chunks(8).all(|word| word == tag(page)), "page {page}");
    }
    // 2,000 frames are three whole huge pages and more; the first one is not asked for.
    if huge == [0; 4] {
        println!("SKIPPED: the kernel gives no huge pages");
    } else {
        assert_eq!(huge, [0, 2, 2, 2]);
    }
}
