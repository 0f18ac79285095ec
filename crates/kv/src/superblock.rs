//! The superblock: what the whole store hangs from, in two slots far apart.

use crate::disk::{Disk, Structure};
use crate::layout::{Layout, PAGES_MAX, checksum, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::record::Since;
use crate::reference::{GENERATION_END, LEVEL_MAX, Reference, Root};
use crate::stream::{Position, Sequence};
use crate::{Flaw, KvError};
use nvmed_mutant::Mutant;
use nvmed_units::{BLOCK_BYTES, Block, bounded};

const MAGIC: &[u8; 8] = b"NVMEDKV1";
/// Changed when an older program could misread the store.
pub(crate) const VERSION: u32 = 3;
/// Of a pointer, which stands at the end of a region that is growing and says where the far superblock is.
const POINTER_MAGIC: &[u8; 8] = b"NVMEDKVP";
/// What is wrong with a lost slot.
const LOST_SLOT: &str = "one of the two superblocks is lost or damaged; the other one has everything";
const OLD_SLOT: &str = "one of the two superblocks is older than the other: power went while it was written, or its \
                        write was lost";
const SLOT_BITS: usize = 128;
/// Of the names of bitmap pages, four bytes each.
const PAGE_NAMES: usize = 256;
const EPOCH_FIRST: usize = 248;
const _: () = assert!(SLOT_BITS + PAGES_MAX as usize / 8 <= EPOCH_FIRST);
const _: () = assert!(EPOCH_FIRST + 8 <= PAGE_NAMES);
const _: () = assert!(PAGE_NAMES + 4 * PAGES_MAX as usize <= BLOCK_BYTES);
/// One superblock in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) identity: u64,
    pub(crate) revision: u64,
    pub(crate) layout: Layout,
    pub(crate) generation: u64,
    pub(crate) root: Option<Root>,
    pub(crate) used: u64,
    pub(crate) cursor: u64,
    pub(crate) head: Position,
    pub(crate) head_sequence: Sequence,
    pub(crate) epoch: u64,
    /// The first record that has at least that epoch; 0: unknown.
    pub(crate) epoch_first: Sequence,
    /// Bit `i`: the valid slot of bitmap page `i`.
    slots: Vec<u8>,
    /// The checksum of each bitmap page's valid version; 0: never written.
    names: Vec<u32>,
    /// Not on the medium: the slot, 0 or 1, that does not hold this tree. The other one is all there is.
    pub(crate) lost: Option<u64>,
    /// Not on the medium: what is wrong with that slot.
    pub(crate) flaw: Option<Flaw>,
}

impl Superblock {
    /// The superblock of an empty store.
    pub(crate) fn empty(identity: u64, layout: Layout) -> Self {
        let slots = vec![0; slot_bytes(&layout)];
        Self {
            identity,
            revision: 1,
            layout,
            generation: 0,
            root: None,
            used: 0,
            cursor: 0,
            head: Position(0),
            head_sequence: Sequence(0),
            epoch: 0,
            epoch_first: Sequence(0),
            slots,
            names: vec![0; layout.pages as usize],
            lost: None,
            flaw: None,
        }
    }

    pub(crate) fn slot(&self, page: u64) -> bool {
        self.slots[(page / 8) as usize] & (1 << (page % 8)) != 0
    }

    /// The checksum of the valid version of bitmap page `page`; none when it was never written.
    pub(crate) fn page_name(&self, page: u64) -> Option<u32> {
        Some(self.names[page as usize]).filter(|&name| name != 0)
    }

    /// The valid version of bitmap page `page` is the one with checksum `name`, in `slot`.
    pub(crate) fn name_page(&mut self, page: u64, slot: bool, name: u32) {
        assert!(name != 0, "a version of bitmap page {page} without a name");
        if self.slot(page) != slot {
            self.slots[(page / 8) as usize] ^= 1 << (page % 8);
        }
        self.names[page as usize] = name;
    }

    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        put_u32(&mut bytes, 8, VERSION);
        put_u64(&mut bytes, 16, self.identity);
        put_u64(&mut bytes, 24, self.revision);
        put_u64(&mut bytes, 32, self.layout.blocks);
        put_u32(&mut bytes, 40, bounded(self.layout.log_blocks, "a log has at most 6144 blocks"));
        put_u32(&mut bytes, 44, bounded(self.layout.pages, "a bitmap has at most 960 pages"));
        put_u64(&mut bytes, 48, self.generation);
        if let Some(root) = self.root {
            put_u64(&mut bytes, 56, root.node.block.0);
            put_u64(&mut bytes, 64, root.node.generation);
            put_u32(&mut bytes, 72, root.node.crc);
            put_u16(&mut bytes, 120, root.level);
        }
        put_u64(&mut bytes, 80, self.used);
        put_u64(&mut bytes, 88, self.cursor);
        put_u64(&mut bytes, 96, self.head.0);
        put_u64(&mut bytes, 104, self.head_sequence.0);
        put_u64(&mut bytes, 112, self.epoch);
        put_u64(&mut bytes, EPOCH_FIRST, self.epoch_first.0);
        bytes[SLOT_BITS..SLOT_BITS + self.slots.len()].copy_from_slice(&self.slots);
        for (index, &name) in self.names.iter().enumerate() {
            put_u32(&mut bytes, PAGE_NAMES + 4 * index, name);
        }
        let crc = crc32c::crc32c(&bytes[16..]);
        put_u32(&mut bytes, 12, crc);
        bytes
    }

    /// Reads `bytes`, found in block `block`.
    fn decode(block: Block, bytes: &[u8; BLOCK_BYTES]) -> Result<Self, Fault> {
        let damaged = |reason| Fault::Is(KvError::Corrupt { block, structure: "superblock", reason });
        if &bytes[..8] != MAGIC {
            return Err(Fault::Foreign);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(Fault::Is(KvError::Version { found: version, known: VERSION }));
        }
        if crc32c::crc32c(&bytes[16..]) != u32_at(bytes, 12) {
            return Err(damaged("checksum"));
        }
        let layout = Layout::of(u64_at(bytes, 32), u64::from(u32_at(bytes, 40)))
            .filter(|layout| layout.pages == u64::from(u32_at(bytes, 44)))
            .ok_or_else(|| damaged("the sizes of its regions"))?;
        let node = Reference {
            block: Block(u64_at(bytes, 56)),
            generation: u64_at(bytes, 64),
            crc: u32_at(bytes, 72),
        };
        let root = Root { node, level: u16_at(bytes, 120) };
        let mut this = Self::empty(u64_at(bytes, 16), layout);
        let slots = this.slots.len();
        this.revision = u64_at(bytes, 24);
        this.generation = u64_at(bytes, 48);
        this.root = (node.block != Block(0)).then_some(root);
        this.used = u64_at(bytes, 80);
        this.cursor = u64_at(bytes, 88);
        this.head = Position(u64_at(bytes, 96));
        this.head_sequence = Sequence(u64_at(bytes, 104));
        this.epoch = u64_at(bytes, 112);
        this.epoch_first = Sequence(u64_at(bytes, EPOCH_FIRST));
        this.slots.copy_from_slice(&bytes[SLOT_BITS..SLOT_BITS + slots]);
        for (index, name) in this.names.iter_mut().enumerate() {
            *name = u32_at(bytes, PAGE_NAMES + 4 * index);
        }
        let rootless = node.block == Block(0);
        if root.level > LEVEL_MAX
            || node.generation > this.generation
            || !(rootless || layout.is_tree_block(node.block))
        {
            return Err(damaged("the root of the tree"));
        }
        if this.used > layout.tree_blocks() || this.cursor > layout.tree_blocks() {
            return Err(damaged("the count of blocks in use"));
        }
        let last = u64::MAX / 2; // counters that no store reaches, so that sums with them cannot wrap
        if [this.head.0, this.head_sequence.0, this.epoch, this.epoch_first.0, this.revision, this.generation]
            .iter()
            .any(|&n| n > last)
            || this.generation >= GENERATION_END - 1
        {
            return Err(damaged("a counter"));
        }
        Ok(this)
    }

    /// The newest valid superblock on `disk`.
    pub(crate) fn load(disk: &Disk) -> Result<Self, KvError> {
        let medium = disk.blocks();
        let last = Layout::far_block(medium);
        if medium < 2 {
            return Err(KvError::NotAStore { last });
        }
        let near = Self::read(disk, Block(0));
        let far_block = near.as_ref().map_or(last, |near| near.layout.superblock(1));
        if far_block.0 >= medium {
            return Err(KvError::Truncated { stored: far_block.0 + 1, medium });
        }
        let far = match Self::read(disk, far_block) {
            Err(Fault::Foreign) if near.is_err() => {
                Self::follow(disk, far_block).or_else(|fault| Self::hinted(disk).ok_or(fault))
            }
            far => far,
        };
        let far = match &near {
            Ok(near) if far_block != last => near.grown_far(disk, last).map_or(far, Ok),
            _ => far,
        };
        let mut best = match (&near, &far) {
            (Ok(near), Ok(far)) if near.identity == far.identity && far.revision > near.revision => {
                far.clone()
            }
            (Ok(near), _) => near.clone(),
            (Err(_), Ok(far)) => far.clone(),
            (Err(Fault::Is(error)), Err(_)) | (Err(Fault::Foreign), Err(Fault::Is(error))) => {
                return Err(error.clone());
            }
            (Err(Fault::Foreign), Err(Fault::Foreign)) => return Err(KvError::NotAStore { last }),
        };
        let lost = |slot: &Result<Self, Fault>| !slot.as_ref().is_ok_and(|slot| slot.is_tree_of(&best));
        best.lost = [lost(&near), lost(&far)].iter().position(|&lost| lost).map(|slot| slot as u64);
        best.flaw = best.lost.map(|slot| {
            let old = [&near, &far][slot as usize].is_ok();
            let reason = if old { OLD_SLOT } else { LOST_SLOT };
            Flaw { block: best.layout.superblock(slot), structure: "superblock", reason }
        });
        let stored = best.layout.blocks;
        if stored > medium { Err(KvError::Truncated { stored, medium }) } else { Ok(best) }
    }

    /// The far superblock in the medium's block `last`, if the store has grown to there since `self`, the near one,
    /// was written. A medium that was enlarged, and whose store has not grown, has no superblock of it there: what it
    /// has may be anything, or a pointer.
    fn grown_far(&self, disk: &Disk, last: Block) -> Option<Self> {
        Self::read(disk, last).ok().filter(|far| {
            far.identity == self.identity && far.revision > self.revision && far.layout.superblock(1) == last
        })
    }

    /// Records of the log from that sequence on have at least that epoch.
    pub(crate) fn since(&self) -> Since {
        match self.epoch_first {
            Sequence(0) => Since::default(),
            sequence => Since { sequence, epoch: self.epoch },
        }
    }

    /// A record of the log has `epoch`: before it was written the far slot had that, so if this is less, the far
    /// slot has lost a write since.
    pub(crate) fn heed_epoch(&mut self, epoch: u64) {
        if epoch > self.epoch && self.lost.is_none() {
            let block = self.layout.superblock(1);
            self.lost = Some(1);
            self.flaw = Some(Flaw { block, structure: "superblock", reason: OLD_SLOT });
        }
        if epoch > self.epoch {
            (self.epoch, self.epoch_first) = (epoch, Sequence(0));
        }
    }

    /// Whether we differ from `other` by the epoch at most.
    fn is_tree_of(&self, other: &Self) -> bool {
        let Self { revision, epoch, epoch_first, .. } = *other;
        Self { revision, epoch, epoch_first, ..self.clone() } == *other
    }

    /// The superblock that a pointer in `block` leads to: power was cut while the region grew.
    fn follow(disk: &Disk, block: Block) -> Result<Self, Fault> {
        let mut bytes = [0; BLOCK_BYTES];
        disk.read(block, &mut bytes).map_err(Fault::Is)?;
        let (identity, far) = (u64_at(&bytes, 16), Block(u64_at(&bytes, 24)));
        let sound =
            &bytes[..8] == POINTER_MAGIC && checksum(identity, &[&bytes[16..32]]) == u32_at(&bytes, 12);
        if !sound || far >= block {
            return Err(Fault::Foreign);
        }
        Self::read(disk, far).and_then(|found| {
            let same = found.identity == identity && found.layout.superblock(1) == far;
            if same { Ok(found) } else { Err(Fault::Foreign) }
        })
    }

    /// The far superblock that the near one's size leads to, of which nothing else can be believed: a power cut may
    /// tear it where the medium is larger than the store, and words are what is not torn.
    fn hinted(disk: &Disk) -> Option<Self> {
        let mut bytes = [0; BLOCK_BYTES];
        disk.read(Block(0), &mut bytes).ok().filter(|()| &bytes[..8] == MAGIC)?;
        let far = u64_at(&bytes, 32).checked_sub(1).map(Block).filter(|far| far.0 < disk.blocks())?;
        Self::read(disk, far).ok().filter(|found| found.layout.superblock(1) == far)
    }

    /// Makes the store use all of `layout`, which is larger than its own. `self` is grown afterwards. New
    /// bitmap pages are none that was ever written: the first version of each goes to slot 1, since slot 0 may be where
    /// the far superblock still is.
    ///
    /// While the near superblock is being written, the far one is that of the old size, and a pointer at
    /// the end of the new size leads to it: one of the two is whole at any time.
    pub(crate) fn store_grown(&mut self, layout: Layout, disk: &Disk) -> Result<(), KvError> {
        assert!(layout.blocks > self.layout.blocks && layout.pages >= self.layout.pages, "a store shrinks");
        if self.lost.is_some() {
            // The pointer is to lead to a far one that is whole. Until it does, the near one must stay.
            self.store_far(disk)?;
        }
        let mut pointer = [0; BLOCK_BYTES];
        pointer[..8].copy_from_slice(POINTER_MAGIC);
        put_u64(&mut pointer, 16, self.identity);
        put_u64(&mut pointer, 24, self.layout.superblock(1).0);
        let crc = checksum(self.identity, &[&pointer[16..32]]);
        put_u32(&mut pointer, 12, crc);
        disk.write(Structure::Superblock, layout.superblock(1), &pointer, true)?;
        self.layout = layout;
        self.slots.resize(slot_bytes(&layout), 0);
        self.names.resize(layout.pages as usize, 0);
        self.store(disk)
    }

    fn read(disk: &Disk, block: Block) -> Result<Self, Fault> {
        let mut bytes = [0; BLOCK_BYTES];
        disk.read(block, &mut bytes).map_err(Fault::Is)?;
        Self::decode(block, &bytes)
    }

    /// Writes the next revision to both slots, first to the one that is lost; `self` is that revision
    /// afterwards, whatever happened.
    pub(crate) fn store(&mut self, disk: &Disk) -> Result<(), KvError> {
        self.revision += 1;
        let first = self.lost.unwrap_or(0);
        assert!(first < 2 && self.used <= self.layout.tree_blocks(), "{} blocks in use", self.used);
        let fua = !Mutant::SuperblockVolatile.is_made();
        let slots = if Mutant::FarSuperblockForgotten.is_made() { 1 } else { 2 };
        for slot in [first, 1 - first].into_iter().take(slots) {
            disk.write(Structure::Superblock, self.layout.superblock(slot), &self.encode(), fua)?;
        }
        self.lost = None;
        Ok(())
    }

    /// As `store`, to the far slot only, unless the near one is lost: enough for a new epoch. `store` then
    /// writes the near one first, so that one slot knows the epoch whatever is interrupted.
    pub(crate) fn store_far(&mut self, disk: &Disk) -> Result<(), KvError> {
        if self.lost == Some(0) {
            return self.store(disk);
        }
        self.revision += 1;
        disk.write(Structure::Superblock, self.layout.superblock(1), &self.encode(), true)?;
        self.lost = None;
        Ok(())
    }
}

/// Bytes of the slot bits.
fn slot_bytes(layout: &Layout) -> usize {
    usize::try_from(layout.pages.div_ceil(8)).expect("at most 120 bytes")
}

/// Why a block is no superblock that can be used.
enum Fault {
    /// Its magic is not ours.
    Foreign,
    /// It is ours, or cannot be read.
    Is(KvError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn sample() -> Superblock {
        let layout = Layout::plan(100_000, None).unwrap();
        let mut sample = Superblock::empty(77, layout);
        let node = Reference { block: Block(9000), generation: 3, crc: 0xdead_beef };
        sample.root = Some(Root { node, level: 2 });
        (sample.generation, sample.used, sample.cursor) = (3, 40, 41);
        (sample.head, sample.head_sequence, sample.epoch, sample.revision) =
            (Position(4081), Sequence(17), 4, 9);
        sample.name_page(2, true, 0x1234);
        sample
    }

    #[test]
    fn what_is_written_is_read() {
        let sample = sample();
        let read = Superblock::decode(Block(0), &sample.encode()).ok().unwrap();
        assert_eq!(read, sample);
        assert!(read.slot(2) && !read.slot(1));
        assert_eq!((read.page_name(2), read.page_name(1)), (Some(0x1234), None));
    }

    #[test]
    fn fuzz_a_superblock_with_a_good_checksum() {
        use crate::{MemoryMedium, Store};
        let medium = std::sync::Arc::new(MemoryMedium::new(1000));
        Store::format(&*medium, &Options::default()).unwrap();
        let good = medium.to_bytes();
        for at in (16..130).chain([256, 259, 300]) {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = byte;
                let crc = crc32c::crc32c(&bytes[16..BLOCK_BYTES]);
                put_u32(&mut bytes, 12, crc);
                bytes[999 * BLOCK_BYTES..].fill(0);
                let medium = std::sync::Arc::new(MemoryMedium::from_bytes(bytes));
                let memory = nvmed_sys::Mapping::anonymous(131_072, nvmed_sys::Pages::Base).unwrap();
                let pending = crate::PendingMemory { memory: memory.into(), offset: 0, len: 131_072 };
                let Ok(store) = Store::open(medium, pending, &Options::default()) else {
                    continue;
                };
                let mut batch = crate::Batch::new();
                batch.put(b"key", b"value");
                let _ = store.get(b"key", &mut Vec::new());
                let _ =
                    store.apply(&batch).and_then(|sequence| store.commit(sequence, crate::Barrier::After));
                let _ = (store.checkpoint(), store.verify(), store.close());
            }
        }
    }

    #[test]
    fn a_changed_bit_is_an_error_and_never_a_panic() {
        let good = sample().encode();
        for bit in 0..BLOCK_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(Block(0), &bytes).is_err(), "bit {bit} went unnoticed");
        }
    }
}
