//! One block of a store is damaged after it was written: zeroed, overwritten, a bit of it turned over, replaced by
//! what it held before (a lost write), or hit by a write that was meant for another place. Whichever block it is,
//! what every append but the last made durable is there, or the store is refused and the block named; after a close,
//! all of it is.

use crate::support::{Dice, Model, Op, contents, encode, open, play};
use nvmed_kv::{Barrier, KvError, Medium, MediumError, MemoryMedium, Options, Store};
use nvmed_units::Block;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4096;
const BLOCKS: usize = 360;
const LOG: u64 = 64;

/// Remembers what each block held before its last writes, and the last write.
struct HistoryMedium {
    inner: MemoryMedium,
    /// Whether bytes are stored without their blocks.
    bytes_stored: bool,
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    /// What blocks held before each write to them, oldest first.
    before: Vec<(u64, Vec<u8>)>,
    /// The blocks of the log that the last append wrote, as it left them.
    last_append: Vec<(u64, Vec<u8>)>,
    /// What was stored is durable: the next store belongs to another append.
    fenced: bool,
}

impl HistoryMedium {
    fn new(blocks: usize) -> Arc<Self> {
        Self::of(blocks, false)
    }

    fn of(blocks: usize, bytes_stored: bool) -> Arc<Self> {
        let inner = MemoryMedium::new(blocks as u64);
        Store::format(&inner, &Options { log_blocks: Some(LOG as u32), identity: 5, ..Options::default() })
            .unwrap();
        Arc::new(Self { inner, bytes_stored, history: Mutex::default() })
    }

    /// The versions of `block` before the present one, newest first, three at most.
    fn versions(&self, block: u64) -> Vec<Vec<u8>> {
        let history = self.history.lock().unwrap();
        let of = history.before.iter().rev().filter(|(number, _)| *number == block);
        of.take(3).map(|(_, bytes)| bytes.clone()).collect()
    }

    fn last_append(&self) -> Vec<(u64, Vec<u8>)> {
        self.history.lock().unwrap().last_append.clone()
    }
}

impl Medium for HistoryMedium {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        self.inner.read(block, into)
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        let mut history = self.history.lock().unwrap();
        let mut written = Vec::new();
        for (number, bytes) in block.onward().zip(data.chunks_exact(BLOCK)) {
            let mut old = vec![0; BLOCK];
            self.inner.read(number, &mut old)?;
            history.before.push((number.0, old));
            written.push((number.0, bytes.to_vec()));
        }
        if (1..=LOG).contains(&block.0) {
            history.last_append = written;
        }
        self.inner.write(block, data, fua)
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.history.lock().unwrap().fenced = true;
        self.inner.flush()
    }

    fn stores_bytes(&self) -> bool {
        self.bytes_stored
    }

    fn store(&self, block: Block, within: usize, data: &[u8]) -> Result<(), MediumError> {
        let mut history = self.history.lock().unwrap();
        let mut bytes = vec![0; BLOCK];
        self.inner.read(block, &mut bytes)?;
        history.before.push((block.0, bytes.clone()));
        bytes[within..within + data.len()].copy_from_slice(data);
        if core::mem::take(&mut history.fenced) {
            history.last_append.clear();
        }
        history.last_append.retain(|(number, _)| *number != block.0);
        history.last_append.push((block.0, bytes.clone()));
        self.inner.write(block, &bytes, false)
    }
}

/// The damages of `block` in `image`, with a name each.
fn damages(medium: &HistoryMedium, image: &[u8], block: u64) -> Vec<(String, Vec<u8>)> {
    let at = block as usize * BLOCK;
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = image.to_vec();
        change(&mut bytes[at..at + BLOCK]);
        bytes
    };
    let mut all = vec![
        ("zeroed".to_owned(), with(&|block| block.fill(0))),
        ("overwritten".to_owned(), with(&|block| block.fill(0xa5))),
    ];
    for offset in [3, 9, 17, 24, 30, 100, 1000, 3000, 4095] {
        all.push((format!("bit of byte {offset}"), with(&|block| block[offset] ^= 16)));
    }
    for (age, old) in medium.versions(block).iter().enumerate() {
        all.push((format!("version {age} before"), with(&|block| block.copy_from_slice(old))));
    }
    // A block of the last append went here, and its own place holds what it held before.
    for (number, bytes) in medium.last_append() {
        let mut bad = with(&|block| block.copy_from_slice(&bytes));
        if number != block {
            let own = number as usize * BLOCK;
            bad[own..own + BLOCK].copy_from_slice(&medium.versions(number)[0]);
        }
        all.push((format!("write meant for block {number}"), bad));
    }
    all
}

/// What may be found: the last state, and unless it was closed since, the one before the last append.
struct Allowed {
    now: Model,
    before: Option<Model>,
}

fn examine(medium: &HistoryMedium, allowed: &Allowed, seed: u64) -> Vec<String> {
    let image = medium.inner.to_bytes();
    let mut wrong = Vec::new();
    for block in 1..=LOG {
        for (what, bytes) in damages(medium, &image, block) {
            let same = bytes == image;
            let message = match open(Arc::new(MemoryMedium::from_bytes(bytes))) {
                Ok(store) => {
                    let found = contents(&store);
                    let fine = found == allowed.now || allowed.before.as_ref() == Some(&found);
                    if fine { continue } else { format!("opened with {} records", found.len()) }
                }
                Err(KvError::Corrupt { structure: "log", .. }) if !same => continue,
                Err(error) => error.to_string(),
            };
            wrong.push(format!("seed {seed}, block {block} {what}: {message}"));
        }
    }
    wrong
}

/// Appends of all sizes, among them some that end where a block does; the store is closed and opened, left
/// and opened, and checkpoints go on.
fn play_a_life(seed: u64, bytes_stored: bool) -> Vec<String> {
    let medium = HistoryMedium::of(BLOCKS, bytes_stored);
    let mut random = Dice::new(seed);
    let mut store = open(medium.clone()).unwrap();
    let mut allowed = Allowed { now: Model::new(), before: None };
    let mut wrong = Vec::new();
    let appends = 3 + random.roll(60);
    for round in 0..appends {
        let style = random.roll(3);
        let used = (store.stats().log_bytes as usize) % 4072;
        let length = match random.roll(8) {
            // 24 bytes of a record, 5 of an operation, 2 of its key: it ends where a block does.
            0 | 1 => (4072 - used + 4072 * random.roll(2) as usize).saturating_sub(31),
            2 => 4000 + random.roll(9000) as usize,
            _ => random.roll(600) as usize,
        };
        let ops = [Op::Put(vec![b'k', random.roll(20) as u8], vec![round as u8; length])];
        let before = allowed.now.clone();
        let sequence = store.apply(&encode(&ops)).unwrap();
        let barrier = [Barrier::None, Barrier::Before, Barrier::After][random.roll(3) as usize];
        store.commit(sequence, barrier).unwrap();
        play(&mut allowed.now, &ops);
        allowed.before = Some(before);
        match random.roll(20) {
            0 => store.checkpoint().unwrap(),
            1 | 2 => {
                if style > 0 {
                    store.close().unwrap();
                    allowed.before = None;
                }
                drop(store);
                store = open(medium.clone()).unwrap();
            }
            _ => {}
        }
    }
    if random.roll(2) == 0 {
        store.close().unwrap();
        allowed.before = None;
    }
    drop(store);
    wrong.extend(examine(&medium, &allowed, seed));
    wrong
}

#[test]
fn whatever_one_block_of_the_log_suffers_only_the_last_append_may_go() {
    let lives = (1..9).flat_map(|seed| [(seed, false), (seed, true)]);
    let wrong: Vec<_> = lives.flat_map(|(seed, bytes_stored)| play_a_life(seed, bytes_stored)).collect();
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
}

#[test]
fn an_older_copy_of_a_bitmap_page_is_an_error_before_a_block_is_taken_from_it() {
    let medium = HistoryMedium::new(2 * BLOCKS);
    let store = open(medium.clone()).unwrap();
    let mut model = Model::new();
    for round in 0..6u8 {
        let ops: Vec<_> = (0..40u8).map(|n| Op::Put(vec![round, n], vec![n; 900])).collect();
        store.apply(&encode(&ops)).unwrap();
        play(&mut model, &ops);
        store.checkpoint().unwrap();
    }
    drop(store);
    let image = medium.inner.to_bytes();
    let mut refused = 0;
    for page in [LOG + 1, LOG + 2] {
        for old in medium.versions(page) {
            let mut bytes = image.clone();
            bytes[page as usize * BLOCK..][..BLOCK].copy_from_slice(&old);
            let store = open(Arc::new(MemoryMedium::from_bytes(bytes))).unwrap();
            let ops: Vec<_> = (0..40u8).map(|n| Op::Put(vec![9, n], vec![n; 900])).collect();
            store.apply(&encode(&ops)).unwrap();
            match store.checkpoint() {
                Err(KvError::Corrupt { block, structure: "bitmap page", .. }) => {
                    assert_eq!(block.0, page);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
                // The other slot counts; or live blocks were handed out, and old keys lead to new nodes.
                Ok(()) => {
                    let mut now = model.clone();
                    play(&mut now, &ops);
                    assert!(contents(&store) == now, "live blocks were given out as free");
                    assert_eq!(store.verify(), Ok(now.len() as u64));
                }
            }
        }
    }
    assert!(refused > 0);
}

/// An image in which nothing is under way, with a tree and a log.
fn closed() -> (Arc<HistoryMedium>, Model) {
    let medium = HistoryMedium::new(BLOCKS);
    let mut model = Model::new();
    for life in 0..3u8 {
        let store = open(medium.clone()).unwrap();
        assert_eq!(store.flaws(), []);
        for n in 0..9u8 {
            let ops = [Op::Put(vec![life, n], vec![n; 700])];
            let sequence = store.apply(&encode(&ops)).unwrap();
            store.commit(sequence, Barrier::None).unwrap();
            play(&mut model, &ops);
            if n == 4 {
                store.checkpoint().unwrap();
            }
        }
        store.close().unwrap();
    }
    (medium, model)
}

#[test]
fn what_is_lost_of_two_copies_is_told_and_written_again() {
    let (medium, model) = closed();
    let image = medium.inner.to_bytes();
    let far = BLOCKS as u64 - 1;
    let tail: Vec<u64> = medium.last_append().iter().map(|(block, _)| *block).collect();
    assert!(tail.len() == 1, "a close ends with a write of the log's last block");
    let is_settled = |block: &u64| image[*block as usize * BLOCK..].starts_with(b"KVLS");
    let newest =
        |block: &u64| u64::from_le_bytes(image[*block as usize * BLOCK + 8..][..8].try_into().unwrap());
    let home = (1..LOG).filter(is_settled).max_by_key(newest).unwrap();
    let mut told = 0;
    for block in [0, far, home, LOG] {
        for (what, bytes) in damages(&medium, &image, block).into_iter().filter(|(_, bytes)| *bytes != image)
        {
            let name = format!("block {block} {what}");
            let medium = Arc::new(MemoryMedium::from_bytes(bytes.clone()));
            let store = open(medium.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(contents(&store) == model, "{name}");
            let flaws = store.flaws().to_vec();
            assert!(flaws.iter().all(|flaw| flaw.block == Block(block)), "{name}: {flaws:?}");
            // Bytes of a log block that no record is in, and an older copy that holds as much, say nothing.
            let harmless = block != 0
                && block != far
                && !["zeroed", "overwritten", "bit of byte 3", "bit of byte 1000"].contains(&&*what);
            assert!(
                !flaws.is_empty() || harmless || what.starts_with("version") || what.starts_with("write"),
                "{name}"
            );
            if flaws.is_empty() {
                continue;
            }
            told += 1;
            store.mend().unwrap();
            drop(store);
            let store = open(medium).unwrap();
            assert_eq!(store.flaws(), [], "{name}");
            assert!(contents(&store) == model, "{name}");
        }
    }
    assert!(told > 40, "{told}");
}

#[test]
fn a_superblock_whose_last_write_was_lost_is_told() {
    let (medium, model) = closed();
    let far = BLOCKS as u64 - 1;
    for block in [0, far] {
        for old in medium.versions(block) {
            let mut bytes = medium.inner.to_bytes();
            bytes[block as usize * BLOCK..][..BLOCK].copy_from_slice(&old);
            let store = open(Arc::new(MemoryMedium::from_bytes(bytes))).unwrap();
            assert!(contents(&store) == model);
            assert!(
                store.flaws().len() == 1 && store.flaws()[0].block == Block(block),
                "{:?}",
                store.flaws()
            );
        }
    }
}

#[test]
fn a_settled_log_is_written_no_more_and_a_quiet_one_is_settled() {
    let medium = HistoryMedium::new(BLOCKS);
    let store = open(medium.clone()).unwrap();
    let writes = || store.stats().written.log;
    store.settle_if_quiet().unwrap();
    assert_eq!(writes(), 0, "a new log is settled");
    for n in 0..5u8 {
        let sequence = store.apply(&encode(&[Op::Put(vec![n], vec![n; 90])])).unwrap();
        store.commit(sequence, Barrier::None).unwrap();
        assert_eq!((writes(), store.stats().flushes), (u64::from(n) * 3 + 1, 0), "one write an append");
        store.settle_if_quiet().unwrap();
        assert_eq!(writes(), u64::from(n) * 3 + 1, "something was appended since the last look");
        store.settle_if_quiet().unwrap();
        store.settle_if_quiet().unwrap();
        assert_eq!(writes(), u64::from(n) * 3 + 3);
    }
    let now = contents(&store);
    drop(store);
    let wrong = examine(&medium, &Allowed { now, before: None }, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Counts how often each block is read.
struct CountingMedium {
    inner: MemoryMedium,
    reads: Mutex<BTreeMap<u64, u64>>,
}

impl Medium for CountingMedium {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        let mut reads = self.reads.lock().unwrap();
        block.onward().take(into.len() / BLOCK).for_each(|block| *reads.entry(block.0).or_default() += 1);
        self.inner.read(block, into)
    }

    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
        self.inner.write(block, data, fua)
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.inner.flush()
    }
}

/// Long values are most of what there is to read where there are many: a check reads them once, one that a change in
/// the log hides included.
#[test]
fn a_check_reads_each_long_value_once() {
    const VALUES: u8 = 10;
    const HIDDEN: u8 = 3;
    let medium = HistoryMedium::new(BLOCKS);
    let store = open(medium.clone()).unwrap();
    for n in 1..=VALUES {
        store.apply(&encode(&[(vec![n], Some(vec![n; 5 * BLOCK]))])).unwrap();
    }
    store.checkpoint().unwrap();
    let hides = store.apply(&encode(&[(vec![HIDDEN], Some(b"short".to_vec()))])).unwrap();
    store.commit(hides, Barrier::After).unwrap();
    let mut image = medium.inner.to_bytes();
    drop(store);

    let inner = MemoryMedium::from_bytes(image.clone());
    let counting = Arc::new(CountingMedium { inner, reads: Mutex::default() });
    let store = open(counting.clone()).unwrap();
    assert_eq!(store.verify(), Ok(u64::from(VALUES)));
    let reads = counting.reads.lock().unwrap();
    let blocks = |n: u8| {
        let chunks = image.chunks_exact(BLOCK).enumerate();
        chunks.filter(move |(_, bytes)| bytes.iter().all(|&byte| byte == n)).map(|(number, _)| number)
    };
    for n in 1..=VALUES {
        let counts: Vec<u64> = blocks(n).map(|block| reads[&(block as u64)]).collect();
        assert_eq!(counts, [1; 5], "reads of the blocks of value {n}");
    }

    let lost = blocks(HIDDEN).next().expect("a block");
    image[lost * BLOCK] ^= 1;
    let store = open(Arc::new(MemoryMedium::from_bytes(image))).unwrap();
    assert!(matches!(store.verify(), Err(KvError::Corrupt { block, .. }) if block.0 == lost as u64));
}
