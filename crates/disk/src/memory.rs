//! A device that is memory: what `nvm` says it stored, settled and fenced, as commands of the device's.
//!
//! A store is sent and executed at once, since whoever reads sees it, and completes when its thread has settled it. A
//! fence is a flush, which covers what had completed when it began. With a buffer in front of it, what is written home
//! is what is stored.

use crate::disk::DiskState;
use crate::media::{BLOCK, Block, Kind, Volatile, What};
use crate::words::Words;
use nvmed_flash::{FixedProfile, Medium, Profile};
use nvmed_nvm::{
    BufferClock, BufferOptions, Event, FlushTo, MediaProfile, Memory, MemoryOptions, Place, What as Done,
};
use nvmed_sys::sync::Arc;
use nvmed_sys::{Mapping, Pages};
use std::cell::{LazyCell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stores and fences that have not come to their end.
#[derive(Default)]
pub(crate) struct Open {
    stores: Vec<Stored>,
    /// Numbers that fences have in their medium, and in the trace.
    fences: Vec<(u64, usize)>,
}

/// A store that is not settled.
struct Stored {
    thread: u64,
    /// In the trace.
    number: usize,
    at: u64,
    bytes: u64,
    /// All its lines are on their way, once it is settled.
    reached: bool,
}

/// Devices' memories that a thread keeps for the next ones.
const KEPT_MAX: usize = 4;
/// Frames of the buffer that stands before some of them: few, so that most leave it while somebody still works.
const FRAMES: u64 = 32;
/// Bytes of a frame, as a page of flash has: some of its blocks are to be written home, and some not.
const FRAME_BYTES: u64 = 4 * BLOCK as u64;

thread_local! {
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

/// Memory that a device had: the next one of the same image is made of what differs.
struct Kept {
    memory: Arc<Mapping>,
    base: Arc<Vec<Block>>,
    /// What it holds in place of the base's blocks.
    over: HashMap<u64, Block>,
    /// Something was stored when the device was no more: any block may be another.
    strayed: Arc<AtomicBool>,
}

fn put(memory: &Mapping, number: u64, block: &Block) {
    memory.write(number as usize * BLOCK, &block[..]);
}

impl Kept {
    /// Memory of that size, with nothing in it or with what an earlier device left.
    fn take(base: &Arc<Vec<Block>>) -> Self {
        let kept = KEPT.with_borrow_mut(|kept| {
            // Nobody stores to it any more.
            let is_free = |kept: &Kept| kept.base.len() == base.len() && Arc::strong_count(&kept.memory) == 1;
            let same = kept.iter().position(|kept| is_free(kept) && Arc::ptr_eq(&kept.base, base));
            same.or_else(|| kept.iter().position(is_free)).map(|at| kept.swap_remove(at))
        });
        kept.unwrap_or_else(|| {
            let memory = Mapping::anonymous(base.len() * BLOCK, Pages::Huge);
            let memory = Arc::new(memory.expect("the host has memory for a device"));
            let strayed = Arc::new(AtomicBool::new(true));
            Self { memory, base: Arc::clone(base), over: HashMap::new(), strayed }
        })
    }

    /// Has it hold that base, and `over` in place of some of its blocks. The states of one workload have most of both
    /// in common: those blocks stay.
    fn become_that(&mut self, base: &Arc<Vec<Block>>, over: HashMap<u64, Block>) {
        let strayed = self.strayed.load(Ordering::Relaxed);
        let (was, is) = (&self.base, base);
        let before = |number: u64| self.over.get(&number).unwrap_or(&was[number as usize]);
        let now = |number: u64| over.get(&number).unwrap_or(&is[number as usize]);
        let one = |number: u64| {
            if strayed || !Arc::ptr_eq(before(number), now(number)) {
                put(&self.memory, number, now(number));
            }
        };
        if strayed || !Arc::ptr_eq(was, is) {
            (0..is.len() as u64).for_each(one);
        } else {
            self.over.keys().copied().for_each(one);
            over.keys().copied().filter(|number| !self.over.contains_key(number)).for_each(one);
        }
        (self.base, self.over) = (Arc::clone(base), over);
    }
}

/// A buffer of which the power leaves nothing. Nothing takes time.
fn front() -> BufferOptions {
    let medium = Profile { commands: 8, medium: Medium::Fixed(FixedProfile::default()) };
    let profile =
        MediaProfile { medium, program_bytes: 64, fill_bytes: FRAME_BYTES, log_percent: 10, kept: false };
    BufferOptions { profile, bytes: FRAMES * FRAME_BYTES, clock: BufferClock::Virtual }
}

/// What a device holds in place of the blocks of its base.
fn over(media: &Volatile) -> HashMap<u64, Block> {
    let (_, over) = media.durable().parts();
    over.chain(media.besides()).map(|(number, block)| (number, Arc::clone(block))).collect()
}

/// Memory that holds what `media` shows, if that is memory; none for blocks.
///
/// # Panics
/// When the host has none.
pub(crate) fn of(media: &Volatile) -> Option<(Arc<Mapping>, Arc<Memory>)> {
    if media.durable().kind() == Kind::Blocks {
        return None;
    }
    let (base, _) = media.durable().parts();
    let mut kept = Kept::take(base);
    kept.become_that(base, over(media));
    let mapping = kept.memory;
    let place = Place::Mapped { memory: Arc::clone(&mapping) };
    let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process });
    let mut memory = memory.expect("memory that is mapped is a medium");
    if media.durable().kind() == Kind::Buffered {
        memory = memory.buffered(&front()).expect("the host has memory for a buffer");
    }
    Some((mapping, Arc::new(memory)))
}

/// Keeps the memory of a device that is no more.
pub(crate) fn keep(memory: Arc<Mapping>, strayed: &Arc<AtomicBool>, media: &Volatile) {
    let (base, _) = media.durable().parts();
    let (base, over) = (Arc::clone(base), over(media));
    let kept = Kept { memory, base, over, strayed: Arc::clone(strayed) };
    KEPT.with_borrow_mut(|all| {
        all.truncate(KEPT_MAX - 1);
        all.insert(0, kept);
    });
}

impl DiskState {
    /// Something was done to the memory.
    pub(crate) fn stored(&mut self, event: Event) {
        let Event { thread, what } = event;
        let is_behind = self.media().durable().kind() == Kind::Buffered;
        match what {
            // In the buffer, until it is written home.
            Done::Store { .. } | Done::WrittenBack { .. } if is_behind => {}
            Done::WrittenHome { at, bytes } => {
                self.store(thread, at, bytes.len() as u64, Some(&bytes));
                self.open.stores.iter_mut().rev().take(1).for_each(|stored| stored.reached = true);
            }
            Done::Zero { at, bytes } if is_behind => {
                // What is no whole frame is stored to the buffer.
                let (begin, end) =
                    (at.next_multiple_of(FRAME_BYTES), (at + bytes) / FRAME_BYTES * FRAME_BYTES);
                self.store(thread, begin, end.saturating_sub(begin), None);
            }
            Done::Store { at, bytes } => self.store(thread, at, bytes.len() as u64, Some(&bytes)),
            Done::Zero { at, bytes } => self.store(thread, at, bytes, None),
            Done::WrittenBack { at, bytes } => {
                let mine = |stored: &&mut Stored| stored.thread == thread && stored.at == at;
                if let Some(stored) = self.open.stores.iter_mut().rev().find(mine) {
                    stored.reached = bytes == stored.bytes;
                }
            }
            Done::Settle => self.settle(|stored| stored.thread == thread && stored.reached),
            Done::FenceBegun { fence } => {
                let number = self.send(What::Flush, 0);
                self.execute(number, Vec::new(), Vec::new());
                self.open.fences.push((fence, number));
            }
            Done::FenceDone { fence } => {
                if let Some(at) = self.open.fences.iter().position(|(number, _)| *number == fence) {
                    let (_, number) = self.open.fences.swap_remove(at);
                    self.complete(number);
                }
            }
            other => panic!("the device knows nothing of {other:?}"),
        }
    }

    /// Bytes of one thread, or zeroes, from `at` on.
    fn store(&mut self, thread: u64, at: u64, length: u64, bytes: Option<&[u8]>) {
        if length == 0 {
            return;
        }
        let (first, end) = (at / BLOCK as u64, (at + length).div_ceil(BLOCK as u64));
        let (mut blocks, mut words) = (Vec::new(), Vec::new());
        // One for all of what is trimmed.
        let zeroed = LazyCell::new(|| Block::new([0; BLOCK]));
        for number in first..end {
            let start = number * BLOCK as u64;
            let within = at.max(start) - start..(at + length).min(start + BLOCK as u64) - start;
            let within = within.start as usize..within.end as usize;
            let bytes = bytes.map(|bytes| {
                let from = (start as usize + within.start) - at as usize;
                &bytes[from..from + within.len()]
            });
            let whole = match bytes {
                _ if within.len() < BLOCK => None,
                None => Some(Block::clone(&zeroed)),
                Some(bytes) => Block::try_from(Arc::<[u8]>::from(bytes)).ok(),
            };
            let block = whole.unwrap_or_else(|| {
                let mut block = Arc::clone(self.media().block(number));
                let part = &mut Arc::make_mut(&mut block)[within.clone()];
                match bytes {
                    Some(bytes) => part.copy_from_slice(bytes),
                    None => part.fill(0),
                }
                block
            });
            blocks.push(block);
            words.push(Words::of(within));
        }
        let number = self.send(What::Write, first);
        self.execute(number, blocks, words);
        self.open.stores.push(Stored { thread, number, at, bytes: length, reached: bytes.is_none() });
    }

    /// These stores are on their way.
    fn settle(&mut self, mut which: impl FnMut(&Stored) -> bool) {
        let settled: Vec<usize> =
            self.open.stores.extract_if(.., |stored| which(stored)).map(|stored| stored.number).collect();
        settled.into_iter().for_each(|number| self.complete(number));
    }

    /// Nobody waits for what was stored and not settled: it may be durable or not, as what is settled.
    pub(crate) fn settle_all(&mut self) {
        self.settle(|_| true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, Image, Manner, Trace};
    use nvmed_dice::Dice;
    use nvmed_io::{Binding, Segment};
    use nvmed_units::Lba;

    const BLOCKS: u64 = 16;

    fn bytes_of(disk: &Disk, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        disk.bytes().expect("memory").read(number * BLOCK as u64, &mut bytes).expect("bytes");
        bytes
    }

    /// What is read is what the model shows, by stores and by commands; the next device has nothing of it.
    #[test]
    fn memory_holds_what_its_model_shows_and_is_clean_again_for_the_next_device() {
        let image = Image::junk(BLOCKS).of_kind(Kind::Memory);
        let first = Disk::new(image.clone());
        let memory = first.bytes().expect("memory");
        memory.store(4090, &[7; 100]).expect("bytes");
        memory.zero(9000, 5, false).expect("zeroes");
        let device = first.open(1).expect("a device");
        let data = Arc::new(Mapping::anonymous(BLOCK, Pages::Base).expect("memory"));
        data.fill(0, BLOCK, 3);
        let address = device.map(data).expect("mapped");
        let segment = [Segment { address, bytes: BLOCK as u32 }];
        device.handle(Binding::Queue(0)).write(Lba(5), &segment, true).expect("written");
        for number in 0..BLOCKS {
            assert!(bytes_of(&first, number) == first.peek(number), "block {number}");
        }
        assert!(
            first.peek(0)[4090..] == [7; 6] && first.peek(1)[..94] == [7; 94] && first.peek(5) == [3; BLOCK]
        );
        let left = first.media();
        // Stores after it is gone are those of nobody, and stay with nobody.
        drop((device, first));
        memory.store(9 * BLOCK as u64, &[9; 10]).expect("bytes");
        drop(memory);
        let next = Disk::new(image.clone());
        for number in 0..BLOCKS {
            assert!(bytes_of(&next, number) == **image.block(number), "block {number} is another's");
        }
        // What the next one has in common with it stays there.
        drop(next);
        for media in [left.clone(), Volatile::new(left.as_read()), Volatile::new(image.settled()), left] {
            let next = Disk::with(media.clone(), &mut Dice::of(&[1]));
            for number in 0..BLOCKS {
                assert!(bytes_of(&next, number) == **media.block(number), "block {number} is an older one");
            }
            next.bytes().expect("memory").store(4090 + 12 * BLOCK as u64, &[8; 10]).expect("bytes");
        }
    }

    /// Behind a buffer what was stored is lost until it is written home; what a fence followed is there, and what came
    /// home for another reason may be.
    #[test]
    fn a_cut_leaves_what_a_buffer_has_written_home() {
        let disk = Disk::new(Image::blank(4 * FRAMES * FRAME_BYTES / BLOCK as u64).of_kind(Kind::Buffered));
        let memory = disk.bytes().expect("memory");
        let stored = |disk: &Disk| disk.media().as_read().block(1)[7];
        memory.store(BLOCK as u64, &[1; 16]).expect("bytes");
        assert_eq!((stored(&disk), disk.media().has_cached()), (0, false), "it is in the buffer");
        memory.fence().expect("a fence");
        assert_eq!((stored(&disk), disk.media().has_cached()), (1, false), "it is durable");
        memory.store(BLOCK as u64, &[2; 16]).expect("bytes");
        memory.settle();
        assert_eq!((stored(&disk), disk.media().has_cached()), (2, true), "no fence has followed");
        memory.store(BLOCK as u64, &[3; 16]).expect("bytes");
        for frame in (1..4 * FRAMES).rev() {
            memory.read(frame * FRAME_BYTES, &mut [0; 8]).expect("bytes");
        }
        assert_eq!((stored(&disk), disk.media().has_cached()), (3, true), "it had to leave");
        memory.zero(BLOCK as u64, BLOCK as u64, false).expect("zeroes");
        assert_eq!((stored(&disk), disk.media().in_flight()), (3, 0), "zeroes of no frame go to the buffer");
        memory.zero(0, FRAME_BYTES + 16, false).expect("zeroes");
        assert_eq!((stored(&disk), disk.media().in_flight()), (0, 1), "zeroes go to the medium");
    }

    /// Words, not sectors: what is not settled may be there in part, what a fence has followed is there.
    #[test]
    fn a_cut_tears_stores_between_words() {
        let disk = Disk::new(Image::blank(BLOCKS).of_kind(Kind::Memory));
        let memory = disk.bytes().expect("memory");
        memory.store(8, &[1; 16]).expect("bytes");
        memory.fence().expect("a fence");
        memory.store(16, &[2; 16]).expect("bytes");
        let mut dice = Dice::of(&[3]);
        let mut seen = std::collections::BTreeSet::new();
        let (media, trace) = (disk.media(), Trace::default());
        let mut settled = media.clone();
        settled.abandon();
        for _ in 0..100 {
            let cut = settled.after_cut(&trace, Manner::Sectors, &mut dice);
            let block = cut.block(0);
            assert_eq!(block[8..16], [1; 8], "it was durable");
            seen.insert((block[16], block[24]));
        }
        assert_eq!(seen, [(1, 0), (1, 2), (2, 0), (2, 2)].into());
    }
}
