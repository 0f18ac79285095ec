//! What a device holds, and what of it a power cut leaves.

use crate::dice::Dice;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a block of the file system, and of an LBA here.
pub const BLOCK: usize = 4096;
/// Bytes that a device never tears.
pub const SECTOR: usize = 512;
const SECTORS: usize = BLOCK / SECTOR;
/// What an erased block reads as: flash, and a device that says nothing about deallocated blocks.
const ERASED: u8 = 0xff;
/// What a new device holds: nothing that anybody wrote.
const JUNK: u8 = 0xa5;

/// A block; the many images of a campaign share those that they have in common.
pub type Block = Arc<[u8; BLOCK]>;

/// A device's durable content: a base that many share, and what differs.
#[derive(Clone, Debug)]
pub struct Image {
    base: Arc<Vec<Block>>,
    over: HashMap<u64, Block>,
}

impl Image {
    /// A device fresh from the factory, full of junk: who reads what nobody wrote shall see it.
    #[must_use]
    pub fn junk(blocks: u64) -> Self {
        let junk: Block = Arc::new([JUNK; BLOCK]);
        Self { base: Arc::new(vec![junk; blocks as usize]), over: HashMap::new() }
    }

    /// Blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.base.len() as u64
    }

    /// A block.
    #[must_use]
    pub fn block(&self, number: u64) -> &Block {
        self.over.get(&number).unwrap_or(&self.base[number as usize])
    }

    /// Replaces a block.
    pub fn set(&mut self, number: u64, data: Block) {
        self.over.insert(number, data);
    }

    /// The same content with everything in the base: further copies are quick.
    #[must_use]
    pub fn settled(mut self) -> Self {
        let mut base = Arc::unwrap_or_clone(self.base);
        for (number, data) in self.over.drain() {
            base[number as usize] = data;
        }
        Self { base: Arc::new(base), over: HashMap::new() }
    }
}

/// A command that changes something.
#[derive(Clone, Debug)]
pub struct Command {
    /// What it does.
    pub what: What,
    /// Its first block.
    pub first: u64,
    /// The blocks as they are to be.
    pub blocks: Vec<Block>,
}

/// Kinds of commands that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Write, durable after a flush.
    Write,
    /// Write, durable at once.
    WriteFua,
    /// The blocks lose their content.
    Discard,
    /// What was written before is durable.
    Flush,
}

impl Command {
    /// A discard: afterwards the blocks read as erased, the worst that a device may answer.
    #[must_use]
    pub fn discard(first: u64, count: u64) -> Self {
        let erased: Block = Arc::new([ERASED; BLOCK]);
        Self { what: What::Discard, first, blocks: vec![erased; count as usize] }
    }

    fn numbered(&self) -> impl Iterator<Item = (u64, &Block)> {
        (self.first..).zip(&self.blocks)
    }
}

/// A device with a volatile write cache.
#[derive(Clone, Debug)]
pub struct Volatile {
    durable: Image,
    /// Written and not flushed: command, block, content; in the order of writing.
    cached: Vec<(u64, u64, Block)>,
    newest: HashMap<u64, Block>,
    commands: u64,
}

impl Volatile {
    /// Everything in the image is durable.
    #[must_use]
    pub fn new(durable: Image) -> Self {
        Self { durable, cached: Vec::new(), newest: HashMap::new(), commands: 0 }
    }

    /// What is durable.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Whether a cut could lose anything.
    #[must_use]
    pub fn has_cached(&self) -> bool {
        !self.cached.is_empty()
    }

    /// A block as it is read now.
    #[must_use]
    pub fn block(&self, number: u64) -> &Block {
        self.newest.get(&number).unwrap_or_else(|| self.durable.block(number))
    }

    /// Executes a command.
    pub fn run(&mut self, command: &Command) {
        self.commands += 1;
        match command.what {
            What::Write | What::Discard => self.cache(command),
            What::WriteFua => {
                for (number, data) in command.numbered() {
                    if self.newest.remove(&number).is_some() {
                        // What was cached for the block before is superseded, not merely covered.
                        self.cached.retain(|(_, cached, _)| *cached != number);
                    }
                    self.durable.set(number, Arc::clone(data));
                }
            }
            What::Flush => {
                for (_, number, data) in self.cached.drain(..) {
                    self.durable.set(number, data);
                }
                self.newest.clear();
            }
        }
    }

    fn cache(&mut self, command: &Command) {
        for (number, data) in command.numbered() {
            self.cached.push((self.commands, number, Arc::clone(data)));
            self.newest.insert(number, Arc::clone(data));
        }
    }

    /// What a power cut now leaves. `in_flight` had not completed: it is at the mercy of the cut, whatever
    /// it asked for.
    #[must_use]
    pub fn after_cut(&self, in_flight: Option<&Command>, manner: Manner, dice: &mut Dice) -> Image {
        let mut image = self.durable.clone();
        let next = self.commands + 1;
        let in_flight = in_flight.into_iter().flat_map(Command::numbered);
        let all: Vec<(u64, u64, &Block)> = self
            .cached
            .iter()
            .map(|(command, number, data)| (*command, *number, data))
            .chain(in_flight.map(|(number, data)| (next, number, data)))
            .collect();
        let mut keeper = Keeper::new(manner, &all, dice);
        for (index, (command, number, data)) in all.iter().enumerate() {
            let kept = keeper.sectors(index, *command, dice);
            match kept {
                0 => {}
                u8::MAX => image.set(*number, Arc::clone(data)),
                some => {
                    let mut mixed = **image.block(*number);
                    for sector in (0..SECTORS).filter(|sector| some >> sector & 1 != 0) {
                        let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                        mixed[bytes.clone()].copy_from_slice(&data[bytes]);
                    }
                    image.set(*number, Arc::new(mixed));
                }
            }
        }
        image
    }
}

/// How a cut treats what is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Nothing of it is there.
    Lost,
    /// All of it is there.
    Kept,
    /// Each sector is there or not.
    Sectors,
    /// Each block is there or not, now and then one is torn.
    Blocks,
    /// Each command is there or not: they were reordered.
    Commands,
    /// Everything up to a point is there; there, one block is torn.
    Prefix,
    /// Everything from a point on is there: the oldest was lost.
    Suffix,
    /// Nearly all sectors are there.
    Most,
    /// Hardly any sector is there.
    Few,
}

impl Manner {
    const ALL: [Self; 9] = [
        Self::Lost,
        Self::Kept,
        Self::Sectors,
        Self::Commands,
        Self::Prefix,
        Self::Blocks,
        Self::Suffix,
        Self::Most,
        Self::Few,
    ];

    /// The manner of the `outcome`-th outcome of a cut: the extremes come first, then all in turn.
    #[must_use]
    pub fn of(outcome: u64, dice: &mut Dice) -> Self {
        match outcome {
            0 => Self::Lost,
            1 => Self::Sectors,
            _ => Self::ALL[dice.roll(Self::ALL.len() as u64) as usize],
        }
    }
}

/// Decides sector by sector.
struct Keeper {
    manner: Manner,
    point: usize,
    command: u64,
    keeps: bool,
}

impl Keeper {
    fn new(manner: Manner, all: &[(u64, u64, &Block)], dice: &mut Dice) -> Self {
        Self { manner, point: dice.roll(all.len() as u64 + 1) as usize, command: 0, keeps: false }
    }

    /// The sectors that are kept, a bit each.
    fn sectors(&mut self, index: usize, command: u64, dice: &mut Dice) -> u8 {
        let all = |kept: bool| if kept { u8::MAX } else { 0 };
        match self.manner {
            Manner::Lost => 0,
            Manner::Kept => u8::MAX,
            Manner::Sectors => dice.next() as u8,
            Manner::Most => (dice.next() | dice.next() | dice.next()) as u8,
            Manner::Few => (dice.next() & dice.next() & dice.next()) as u8,
            Manner::Blocks if dice.chance(10) => dice.next() as u8,
            Manner::Blocks => all(dice.chance(50)),
            Manner::Commands => {
                if command != self.command {
                    (self.command, self.keeps) = (command, dice.chance(50));
                }
                all(self.keeps)
            }
            Manner::Prefix if index == self.point => dice.next() as u8,
            Manner::Prefix => all(index < self.point),
            Manner::Suffix if index == self.point => dice.next() as u8,
            Manner::Suffix => all(index > self.point),
        }
    }
}
