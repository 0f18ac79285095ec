//! What a device holds, and what of it a power cut leaves.

use crate::words::{WORD, Words};
use nvmed_dice::Dice;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a block of the file system, and of an LBA here.
pub const BLOCK: usize = 4096;
/// Bytes that a device never tears.
pub const SECTOR: usize = 512;
pub(crate) const SECTORS: usize = BLOCK / SECTOR;
/// What an erased block reads as: flash, and a device that says nothing about deallocated blocks.
const ERASED: u8 = 0xff;
/// What a new device holds: nothing that anybody wrote.
const JUNK: u8 = 0xa5;

/// A block; the many images of a campaign share those that they have in common.
pub type Block = Arc<[u8; BLOCK]>;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks behind a queue of commands. A cut tears between sectors.
    Blocks,
    /// Memory that is stored to, and that commands are copies to. A cut tears between words of 8 bytes.
    Memory,
    /// As that, behind a small buffer, of which a cut leaves nothing: what is stored is what was written home.
    Buffered,
}

impl Kind {
    /// Bytes that a cut never tears.
    #[must_use]
    pub fn unit(self) -> usize {
        match self {
            Self::Blocks => SECTOR,
            Self::Memory | Self::Buffered => WORD,
        }
    }
}

/// A device's durable content: a base that many share, and what differs.
#[derive(Clone, Debug)]
pub struct Image {
    kind: Kind,
    base: Arc<Vec<Block>>,
    over: HashMap<u64, Block>,
}

impl Image {
    /// A device fresh from the factory, full of junk: who reads what nobody wrote shall see it.
    #[must_use]
    pub fn junk(blocks: u64) -> Self {
        Self::of(JUNK, blocks)
    }

    /// A device that holds zeroes.
    #[must_use]
    pub fn blank(blocks: u64) -> Self {
        Self::of(0, blocks)
    }

    fn of(byte: u8, blocks: u64) -> Self {
        let block: Block = Arc::new([byte; BLOCK]);
        Self { kind: Kind::Blocks, base: Arc::new(vec![block; blocks as usize]), over: HashMap::new() }
    }

    /// The same content, of another kind of device.
    #[must_use]
    pub fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// What many share, and what differs from it.
    pub(crate) fn parts(&self) -> (&Arc<Vec<Block>>, impl Iterator<Item = (u64, &Block)>) {
        (&self.base, self.over.iter().map(|(&number, block)| (number, block)))
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

    /// Replaces these words of a block.
    fn mix(&mut self, number: u64, data: &Block, kept: Words) {
        if kept == Words::ALL {
            self.set(number, Arc::clone(data));
        } else if kept != Words::NONE {
            let mut mixed = **self.block(number);
            kept.copy(&mut mixed, data);
            self.set(number, Arc::new(mixed));
        }
    }

    /// The same content with everything in the base: further copies are quick.
    #[must_use]
    pub fn settled(mut self) -> Self {
        let mut base = Arc::unwrap_or_clone(self.base);
        for (number, data) in self.over.drain() {
            base[number as usize] = data;
        }
        Self { kind: self.kind, base: Arc::new(base), over: HashMap::new() }
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
    /// Which words of each of them it is about; empty: all.
    pub words: Vec<Words>,
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
        Self { what: What::Discard, first, blocks: vec![erased; count as usize], words: Vec::new() }
    }

    /// Blocks `blocks`, with their numbers and the words that it is about.
    fn numbered<'a>(&'a self, blocks: &'a [Block]) -> impl Iterator<Item = (u64, &'a Block, Words)> {
        let words = self.words.iter().copied().chain(core::iter::repeat(Words::ALL));
        (self.first..).zip(blocks).zip(words).map(|((number, block), words)| (number, block, words))
    }
}

/// What a device does with one of its commands, by its number in the [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was sent: from now on it may be there after a cut, in whole or in part.
    Sent(usize),
    /// It was executed: later reads see it. Commands that lie over each other keep this order.
    Executed(usize),
    /// It completed: the sender knows of it.
    Completed(usize),
}

impl Event {
    /// The number of its command.
    #[must_use]
    pub fn command(self) -> usize {
        let (Self::Sent(number) | Self::Executed(number) | Self::Completed(number)) = self;
        number
    }
}

/// Commands, and what became of them in which order. The power can be cut after each event.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In the order in which they were sent.
    pub commands: Vec<Command>,
    /// In the order in which they came.
    pub events: Vec<Event>,
    /// By number, what was in memory when a command was sent, where other threads can change it before the execution.
    /// What a cut in between leaves of the command is of that.
    pub as_sent: HashMap<usize, Vec<Block>>,
}

impl Trace {
    /// The commands in the order of their execution.
    pub fn executed(&self) -> impl Iterator<Item = &Command> {
        let executed = |event: &Event| match event {
            Event::Executed(number) => Some(&self.commands[*number]),
            _ => None,
        };
        self.events.iter().filter_map(executed)
    }
}

/// A block that was written and is not durable.
#[derive(Clone, Debug)]
struct Cached {
    /// Its command, counted over the device's life.
    command: u64,
    number: u64,
    data: Block,
    /// What of it is not durable, and not written over by what is.
    words: Words,
    /// How many commands had completed when its command did; none: it is still in flight.
    completed: Option<u64>,
}

/// A command that was sent and has not completed.
#[derive(Clone, Debug)]
struct Flight {
    /// Its number in the trace, and over the device's life.
    number: usize,
    command: u64,
    what: What,
    executed: bool,
    /// Of a flush: how many commands had completed when it was sent. It covers those.
    covers: u64,
}

/// A device with a volatile write cache, and what it is doing.
#[derive(Clone, Debug)]
pub struct Volatile {
    durable: Image,
    /// Executed and not durable, in the order of execution.
    cached: Vec<Cached>,
    newest: HashMap<u64, Block>,
    flights: Vec<Flight>,
    commands: u64,
    completed: u64,
}

impl Volatile {
    /// Everything in the image is durable.
    #[must_use]
    pub fn new(durable: Image) -> Self {
        Self {
            durable,
            cached: Vec::new(),
            newest: HashMap::new(),
            flights: Vec::new(),
            commands: 0,
            completed: 0,
        }
    }

    /// What is durable.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// What is read now in place of what is durable.
    pub(crate) fn besides(&self) -> impl Iterator<Item = (u64, &Block)> {
        self.newest.iter().map(|(&number, block)| (number, block))
    }

    /// The same, of another kind of device: whoever opens it next has another engine.
    #[must_use]
    pub fn of_kind(self, kind: Kind) -> Self {
        Self { durable: self.durable.of_kind(kind), ..self }
    }

    /// The same, with what is durable in the base of further copies.
    #[must_use]
    pub fn rebased(mut self) -> Self {
        self.durable = self.durable.settled();
        self
    }

    /// Whether a cut could lose anything.
    #[must_use]
    pub fn has_cached(&self) -> bool {
        !self.cached.is_empty() || self.flights.iter().any(|flight| flight.what != What::Flush)
    }

    /// Commands that change something and have not completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// A block as it is read now.
    #[must_use]
    pub fn block(&self, number: u64) -> &Block {
        self.newest.get(&number).unwrap_or_else(|| self.durable.block(number))
    }

    /// Goes on by one event of a trace.
    pub fn follow(&mut self, event: Event, trace: &Trace) {
        match event {
            Event::Sent(number) => self.send(number, trace.commands[number].what),
            Event::Executed(number) => self.execute(number, &trace.commands[number]),
            Event::Completed(number) => self.complete(number),
        }
    }

    /// Takes a command that is number `number` of a trace.
    pub fn send(&mut self, number: usize, what: What) {
        self.commands += 1;
        let (command, covers) = (self.commands, self.completed);
        self.flights.push(Flight { number, command, what, executed: false, covers });
    }

    /// Executes a command that was sent.
    pub fn execute(&mut self, number: usize, command: &Command) {
        let Some(flight) = self.flights.iter_mut().find(|flight| flight.number == number) else { return };
        flight.executed = true;
        if command.what == What::Flush {
            return;
        }
        for (number, data, words) in command.numbered(&command.blocks) {
            let data = Arc::clone(data);
            self.newest.insert(number, Arc::clone(&data));
            self.cached.push(Cached { command: flight.command, number, data, words, completed: None });
        }
    }

    /// Completes a command that was executed.
    pub fn complete(&mut self, number: usize) {
        let Some(at) = self.flights.iter().position(|flight| flight.number == number) else { return };
        let flight = self.flights.remove(at);
        self.completed += 1;
        match flight.what {
            What::Flush => {
                self.make_durable(|block| block.completed.is_some_and(|when| when <= flight.covers))
            }
            What::WriteFua => self.make_durable(|block| block.command == flight.command),
            What::Write | What::Discard => {
                let completed = Some(self.completed);
                // They lie beside each other, and mostly last.
                let others = |block: &&mut Cached| block.command != flight.command;
                let own = self.cached.iter_mut().rev().skip_while(others);
                own.take_while(|block| block.command == flight.command)
                    .for_each(|block| block.completed = completed);
            }
        }
        if self.cached.is_empty() {
            self.newest.clear();
        }
    }

    /// Makes these blocks durable. What was executed before for the same places is superseded.
    fn make_durable(&mut self, is_covered: impl Fn(&Cached) -> bool) {
        let mut places: HashMap<u64, Words> = HashMap::new();
        let mut left = Vec::new();
        for block in core::mem::take(&mut self.cached).into_iter().rev() {
            let superseded = places.get(&block.number).copied().unwrap_or(Words::NONE);
            let words = block.words.without(superseded);
            if words == Words::NONE {
                continue;
            }
            if is_covered(&block) {
                places.insert(block.number, superseded.with(words));
                self.durable.mix(block.number, &block.data, words);
            } else {
                left.push(Cached { words, ..block });
            }
        }
        left.reverse();
        self.cached = left;
    }

    /// The sender is gone: what was executed completes, what was only sent is given up.
    pub fn abandon(&mut self) {
        for flight in core::mem::take(&mut self.flights).into_iter().filter(|flight| flight.executed) {
            let number = flight.number;
            self.flights.push(flight);
            self.complete(number);
        }
    }

    /// What a power cut now leaves. Of the commands of `trace` that are in flight, each is at the mercy of the
    /// cut, whatever it asked for, and so is their order.
    #[must_use]
    pub fn after_cut(&self, trace: &Trace, manner: Manner, dice: &mut Dice) -> Image {
        let mut image = self.durable.clone();
        let mut sent: Vec<&Flight> = self.flights.iter().filter(|flight| !flight.executed).collect();
        for last in (1..sent.len()).rev() {
            sent.swap(last, dice.roll(last as u64 + 1) as usize);
        }
        let sent = sent.into_iter().flat_map(|flight| {
            let command = &trace.commands[flight.number];
            let blocks = trace.as_sent.get(&flight.number).unwrap_or(&command.blocks);
            command.numbered(blocks).map(|(number, data, words)| (flight.command, number, data, words))
        });
        let executed =
            self.cached.iter().map(|block| (block.command, block.number, &block.data, block.words));
        let all: Vec<(u64, u64, &Block, Words)> = executed.chain(sent).collect();
        let mut keeper = Keeper::new(manner, self.durable.kind, all.len(), dice);
        for (index, (command, number, data, words)) in all.iter().enumerate() {
            let kept = keeper.words(index, *command, dice);
            image.mix(*number, data, kept.within(*words));
        }
        image
    }

    /// What a power cut now leaves, when nothing is in flight: of what is not durable, each sector that `keeps` says.
    #[must_use]
    pub fn after_cut_by(&self, mut keeps: impl FnMut() -> bool) -> Image {
        let mut image = self.durable.clone();
        for block in &self.cached {
            let kept = Words::of_sectors((0..SECTORS).map(|sector| u8::from(keeps()) << sector).sum());
            image.mix(block.number, &block.data, kept.within(block.words));
        }
        image
    }

    /// Changes a durable block behind everybody's back.
    pub(crate) fn set(&mut self, number: u64, data: Block) {
        self.durable.set(number, data);
    }

    /// As it is read now, all of it durable.
    #[must_use]
    pub fn as_read(&self) -> Image {
        let mut image = self.durable.clone();
        for (number, data) in &self.newest {
            image.set(*number, Arc::clone(data));
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
    /// Each sector is there or not; of memory, each word.
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

/// Decides sector by sector, or word by word.
struct Keeper {
    manner: Manner,
    kind: Kind,
    point: usize,
    command: u64,
    keeps: bool,
}

impl Keeper {
    fn new(manner: Manner, kind: Kind, all: usize, dice: &mut Dice) -> Self {
        Self { manner, kind, point: dice.roll(all as u64 + 1) as usize, command: 0, keeps: false }
    }

    /// What is kept of a block.
    fn words(&mut self, index: usize, command: u64, dice: &mut Dice) -> Words {
        let all = |kept: bool| if kept { Words::ALL } else { Words::NONE };
        // Of each sector, or of each word: whether the dice say so in any of so many throws, or in all of them.
        let torn = |any: u32, every: u32, dice: &mut Dice| {
            let mut throw = || {
                let once = |dice: &mut Dice| (0..any).fold(0, |bits, _| bits | dice.next());
                (0..every).fold(u64::MAX, |bits, _| bits & once(dice))
            };
            match self.kind {
                Kind::Blocks => Words::of_sectors(throw() as u8),
                Kind::Memory | Kind::Buffered => Words::of_each(throw),
            }
        };
        match self.manner {
            Manner::Lost => Words::NONE,
            Manner::Kept => Words::ALL,
            Manner::Sectors => torn(1, 1, dice),
            Manner::Most => torn(3, 1, dice),
            Manner::Few => torn(1, 3, dice),
            Manner::Blocks if dice.chance(10) => torn(1, 1, dice),
            Manner::Blocks => all(dice.chance(50)),
            Manner::Commands => {
                if command != self.command {
                    (self.command, self.keeps) = (command, dice.chance(50));
                }
                all(self.keeps)
            }
            Manner::Prefix | Manner::Suffix if index == self.point => torn(1, 1, dice),
            Manner::Prefix => all(index < self.point),
            Manner::Suffix => all(index > self.point),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn write(what: What, first: u64, byte: u8) -> Command {
        Command { what, first, blocks: vec![Arc::new([byte; BLOCK])], words: Vec::new() }
    }

    fn device(commands: Vec<Command>, events: &[Event]) -> (Volatile, Trace) {
        let trace = Trace { commands, events: events.to_vec(), ..Trace::default() };
        let mut media = Volatile::new(Image::junk(8));
        events.iter().for_each(|&event| media.follow(event, &trace));
        (media, trace)
    }

    /// The first bytes of two blocks after so many cuts: all pairs that can be.
    fn outcomes(media: &Volatile, trace: &Trace) -> HashSet<(u8, u8)> {
        let mut dice = Dice::of(&[1]);
        let cut = |_| {
            let image = media.after_cut(trace, Manner::Commands, &mut dice);
            (image.block(1)[0], image.block(2)[0])
        };
        (0..200).map(cut).collect()
    }

    #[test]
    fn a_flush_covers_what_had_completed_when_it_was_sent() {
        use Event::{Completed, Executed, Sent};
        let flush = Command { what: What::Flush, first: 0, blocks: Vec::new(), words: Vec::new() };
        let commands = vec![write(What::Write, 1, 1), write(What::Write, 2, 2), flush];
        let begin = [Sent(0), Executed(0), Completed(0), Sent(1), Executed(1)];
        let early = [Sent(2), Executed(2), Completed(1), Completed(2)];
        let (media, trace) = device(commands.clone(), &[&begin[..], &early].concat());
        assert_eq!(outcomes(&media, &trace), HashSet::from([(1, JUNK), (1, 2)]));
        let late = [Completed(1), Sent(2), Executed(2), Completed(2)];
        let (media, trace) = device(commands, &[&begin[..], &late].concat());
        assert_eq!(outcomes(&media, &trace), HashSet::from([(1, 2)]));
    }

    #[test]
    fn writes_in_flight_are_there_each_for_itself_and_durable_ones_are_for_good() {
        use Event::{Completed, Executed, Sent};
        let commands = vec![write(What::WriteFua, 1, 1), write(What::WriteFua, 2, 2)];
        let (media, trace) = device(commands.clone(), &[Sent(0), Sent(1), Executed(1)]);
        let all = HashSet::from([(JUNK, JUNK), (1, JUNK), (JUNK, 2), (1, 2)]);
        assert_eq!(outcomes(&media, &trace), all);
        let (media, trace) = device(commands, &[Sent(0), Sent(1), Executed(1), Completed(1)]);
        assert_eq!(outcomes(&media, &trace), HashSet::from([(JUNK, 2), (1, 2)]));
    }

    #[test]
    fn a_durable_write_supersedes_what_was_cached_before_it() {
        use Event::{Completed, Executed, Sent};
        let commands = vec![write(What::Write, 1, 1), write(What::WriteFua, 1, 2), write(What::Write, 1, 3)];
        let each = |number| [Sent(number), Executed(number), Completed(number)];
        let (media, trace) = device(commands, &[each(0), each(1), each(2)].concat());
        assert_eq!(outcomes(&media, &trace), HashSet::from([(2, JUNK), (3, JUNK)]));
        assert_eq!((media.block(1)[0], media.as_read().block(1)[0]), (3, 3));
    }
}
