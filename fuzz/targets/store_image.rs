//! The image of a key-value store with changed bytes and good checksums (docs/spec/kv.md): opened, read, changed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmed_kv::{Barrier, Batch, KvError, MemoryMedium, Options, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, LazyLock};

const BLOCK: usize = 4096;
/// Close to the smallest store.
const BLOCKS: u64 = 300;
const PENDING_BYTES: usize = 1 << 20;
const IDENTITY: u64 = 77;
/// Where superblocks and all other blocks have their checksums, and where what these cover begins.
const SUPERBLOCK_CRC: (usize, usize) = (12, 16);
const CRC: (usize, usize) = (4, 8);

/// A good image.
struct Image {
    bytes: Vec<u8>,
    /// Blocks that are not blank.
    used: Vec<usize>,
    /// Tree nodes, each after those that it refers to, with the places of its checksum in references to it.
    nodes: Vec<(usize, Vec<usize>)>,
}

static GOOD: LazyLock<Image> = LazyLock::new(|| {
    let medium = Arc::new(MemoryMedium::new(BLOCKS));
    let options = Options { log_blocks: Some(64), identity: IDENTITY, ..Options::default() };
    Store::format(&*medium, &options).expect("it fits");
    let store = open(Arc::clone(&medium)).expect("just formatted");
    let fill = |prefix: &[u8], keys: core::ops::Range<u8>, bytes| {
        let mut batch = Batch::new();
        keys.for_each(|n| batch.put(&[prefix, &[n]].concat(), &vec![n; bytes]));
        store.apply(&batch).expect("it fits");
    };
    // An inner node, a tree below the tree, values in blocks of their own; then a log.
    fill(b"", 0..100, 90);
    fill(b"one directory/", 0..100, 90);
    fill(b"long", 0..2, 5000);
    store.checkpoint().expect("it fits");
    fill(b"", 50..60, 500);
    store.commit(store.applied(), Barrier::None).expect("it fits");
    let bytes = medium.to_bytes();
    let block = |at: usize| &bytes[at * BLOCK..][..BLOCK];
    let used: Vec<_> = (0..BLOCKS as usize).filter(|&at| block(at).iter().any(|&byte| byte != 0)).collect();
    let nodes = used.iter().copied().filter(|&at| block(at).starts_with(b"KVND"));
    let nodes = children_first(nodes.map(|node| (node, references(&bytes, node))).collect());
    assert!(nodes.len() > 5, "{} tree nodes: too few to see them refer to each other", nodes.len());
    Image { used, nodes, bytes }
});

/// Where references to a node have its checksum: block, generation, checksum in the superblocks; a short one is
/// block, checksum, generation in 4, 4 and 6 bytes.
fn references(bytes: &[u8], node: usize) -> Vec<usize> {
    let head = &bytes[node * BLOCK..][..24];
    let (crc, block, generation) = (&head[4..8], &head[8..16], &head[16..24]);
    let long = [block, generation, crc].concat();
    let short = [&block[..4], crc, &generation[..6]].concat();
    let places = |wanted: Vec<u8>, crc_at| {
        let windows = bytes.windows(wanted.len()).enumerate();
        windows.filter(move |(_, window)| *window == wanted).map(move |(at, _)| at + crc_at)
    };
    places(long, 16).chain(places(short, 4)).collect()
}

fn children_first(mut left: Vec<(usize, Vec<usize>)>) -> Vec<(usize, Vec<usize>)> {
    let mut nodes = Vec::new();
    while !left.is_empty() {
        let holds = |node, (_, places): &(_, Vec<usize>)| places.iter().any(|at| at / BLOCK == node);
        let next = left.iter().position(|(node, _)| !left.iter().any(|other| holds(*node, other)));
        nodes.push(left.swap_remove(next.expect("a tree has no circles")));
    }
    assert!(nodes.iter().all(|(_, places)| !places.is_empty()), "nothing refers to a node: {nodes:?}");
    nodes
}

fn open(medium: Arc<MemoryMedium>) -> Result<Store, KvError> {
    let memory = Arc::new(Mapping::anonymous(PENDING_BYTES, Pages::Base).expect("the host has memory"));
    let pending = PendingMemory { memory, offset: 0, len: PENDING_BYTES };
    Store::open(medium, pending, &Options { node_cache_bytes: 64 << 10, ..Options::default() })
}

fn sealed(block: &mut [u8], (crc_at, covers): (usize, usize), seed: u32) {
    let end = if block.starts_with(b"KVLB") { 24 } else { BLOCK };
    let crc = crc32c::crc32c_append(seed, &block[covers..end]);
    block[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Makes all checksums right again but those of log records and of values, and those in references to nodes too.
fn seal(bytes: &mut [u8], good: &Image) {
    let seed = crc32c::crc32c(&IDENTITY.to_le_bytes());
    for (node, references) in &good.nodes {
        let block = &mut bytes[node * BLOCK..][..BLOCK];
        sealed(block, CRC, seed);
        let crc: [u8; 4] = block[CRC.0..CRC.1].try_into().expect("four bytes");
        references.iter().for_each(|at| bytes[*at..at + 4].copy_from_slice(&crc));
    }
    for &at in &good.used {
        // Values have no checksum of their own: theirs stays what the reference says.
        let (covers, seed) = match &good.bytes[at * BLOCK..][..4] {
            b"NVME" => (SUPERBLOCK_CRC, 0),
            b"KVLB" | b"KVBM" => (CRC, seed),
            _ => continue,
        };
        sealed(&mut bytes[at * BLOCK..][..BLOCK], covers, seed);
    }
}

/// Everything a user might do; an error is an answer.
fn use_it(bytes: Vec<u8>) -> Result<(), KvError> {
    let store = open(Arc::new(MemoryMedium::from_bytes(bytes)))?;
    for key in [&[50][..], b"one directory/\x07", b"long\x01"] {
        store.get(key, &mut Vec::new())?;
    }
    store.scan(Bound::Unbounded, Bound::Unbounded, &mut |_, _| ControlFlow::Continue(()))?;
    store.verify()?;
    let mut batch = Batch::new();
    batch.delete(&[7]);
    batch.put(b"one directory/new", &[1; 900]);
    batch.put(b"long\x01", &[1; 9000]);
    let sequence = store.apply(&batch)?;
    store.commit(sequence, Barrier::Before)?;
    store.checkpoint()?;
    store.close()
}

// Changes: which block that is in use, an offset in it, and a byte.
fuzz_target!(|input: &[u8]| {
    let good = &*GOOD;
    let mut bytes = good.bytes.clone();
    for &[block, low, high, byte] in input.as_chunks().0 {
        let block = good.used[usize::from(block) % good.used.len()];
        bytes[block * BLOCK + usize::from(u16::from_le_bytes([low, high])) % BLOCK] = byte;
    }
    seal(&mut bytes, good);
    let used = use_it(bytes);
    assert!(used.is_ok() || !input.is_empty(), "the undamaged image: {used:?}");
});
