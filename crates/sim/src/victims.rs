//! An image to be damaged: which of its blocks hold what, what they held before, and what may be shown without.

use crate::damage::{is_reported, junk, look};
use crate::model::{Model, Shape};
use crate::mount::mount;
use crate::operation::Done;
use crate::recording::Recording;
use crate::runner::wind_clock;
use crate::survey::Survey;
use nvmed_dice::Dice;
use nvmed_disk::{BLOCK, Block, Command, Disk, Event, Image, SECTOR, Volatile};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The log.
    Log,
    /// A bitmap page of the store.
    Bitmap,
    /// A node of the tree, or a part of a long value.
    Tree,
    /// One of the store's two superblocks.
    StoreSuperblock,
    /// One of the file system's.
    Superblock,
}

impl Class {
    /// Whether there are two, of which one is enough.
    #[must_use]
    pub(crate) fn is_superblock(self) -> bool {
        matches!(self, Self::StoreSuperblock | Self::Superblock)
    }
}

/// A damage: blocks as they are from now on.
pub struct Damage {
    /// One block, or two: what was meant for the second overwrote the first.
    pub blocks: Vec<(u64, Block)>,
    classes: Vec<Class>,
    /// A whole block of an earlier time took the place of the first.
    older: bool,
    /// What happened, in words.
    pub what: String,
}

impl Damage {
    /// What the damaged blocks are for.
    pub fn classes(&self) -> impl Iterator<Item = Class> {
        self.classes.iter().copied()
    }
}

/// An image, and what is known of it.
pub struct Base {
    image: Image,
    name: &'static str,
    whole: Survey,
    /// Blocks of metadata, with what was in them in the order of writing; the last one is now.
    blocks: BTreeMap<u64, Vec<Block>>,
    meta: Vec<Range<u64>>,
    /// Blocks that the last append to the log wrote, and the names that were before it or while it was made.
    last: BTreeSet<u64>,
    names: Vec<Arc<Shape>>,
    /// What files held before it, and every sector that was written to the device after it.
    before: BTreeMap<u64, Vec<u8>>,
    since: BTreeSet<Vec<u8>>,
    /// Allows all that was ever so since recording began.
    loose: Model,
    /// Whether it matters what is in a block.
    counts: BTreeMap<u64, bool>,
}

fn is_log(data: &Block) -> bool {
    data.starts_with(b"KVL")
}

impl Base {
    /// The image as a recording leaves it, with everything durable.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn running(recording: &Recording) -> Result<Self, String> {
        let events = recording.trace.events.len();
        let mut base = Self::of("running", read_after(recording, events).as_read(), recording)?;
        base.remember(&recording.media, recording.trace.executed());
        base.find_last_append(recording)?;
        Ok(base)
    }

    /// The same, mounted and unmounted.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn unmounted(recording: &Recording) -> Result<Self, String> {
        wind_clock();
        let media = read_after(recording, recording.trace.events.len());
        let disk = Disk::with(media, &mut Dice::of(&[recording.trace.events.len() as u64]));
        disk.record();
        let files = mount(&disk, recording.setting.options.clone()).map_err(|error| error.to_string())?;
        files.unmount().map_err(|error| error.to_string())?;
        let meta = files.superblock().meta_runs.clone();
        drop(files);
        let mut base = Self::of("unmounted", disk.media().as_read(), recording)?;
        // The mount may have made the region larger.
        base.meta = meta;
        let more = disk.take_trace();
        base.remember(&recording.media, recording.trace.executed().chain(more.executed()));
        Ok(base)
    }

    fn of(name: &'static str, image: Image, recording: &Recording) -> Result<Self, String> {
        let whole = look(image.clone(), &recording.setting).map_err(|ended| ended.to_string())?.survey;
        let mut loose = recording.model.clone();
        for step in &recording.steps {
            loose.begin(step);
            // What failed may have been done in part: what it left is known.
            if step.done == Done::Failed {
                loose.end(step);
            }
        }
        let (blocks, counts) = (BTreeMap::new(), BTreeMap::new());
        let (last, names, meta) = (BTreeSet::new(), Vec::new(), recording.meta.clone());
        let (before, since) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { image, name, whole, blocks, meta, last, names, before, since, loose, counts })
    }

    /// What was written where.
    fn remember<'a>(&mut self, first: &Volatile, trace: impl Iterator<Item = &'a Command>) {
        for number in self.places() {
            self.blocks.insert(number, vec![Arc::clone(first.block(number))]);
        }
        for command in trace {
            for (number, data) in (command.first..).zip(&command.blocks) {
                if let Some(versions) = self.blocks.get_mut(&number) {
                    versions.push(Arc::clone(data));
                }
            }
        }
        // What nobody ever wrote holds nothing.
        self.blocks.retain(|_, versions| versions.last().is_some_and(|now| **now != *junk()));
    }

    /// All blocks that metadata may be in.
    fn places(&self) -> Vec<u64> {
        let ends = [0, self.image.blocks() - 1];
        ends.into_iter().chain(self.meta.iter().cloned().flatten()).collect()
    }

    /// The last append is the writes to the log that end a recording, or come before what ends it.
    fn find_last_append(&mut self, recording: &Recording) -> Result<(), String> {
        let log = |command: &Command| command.blocks.first().is_some_and(is_log);
        let numbered = (0..).zip(&recording.trace.events);
        let executed: Vec<(usize, &Command)> = numbered
            .filter(|(_, event)| matches!(event, Event::Executed(_)))
            .map(|(at, event)| (at, &recording.trace.commands[event.command()]))
            .collect();
        let Some(end) = executed.iter().rposition(|(_, command)| log(command)) else { return Ok(()) };
        // Where the ring wraps an append is two writes: of one step, with nothing between.
        let step = recording.steps.iter().find(|step| step.events.1 > executed[end].0 as u64);
        let began = |at: usize| step.is_none_or(|step| step.events.0 <= executed[at].0 as u64);
        let mut start = end;
        while start > 0 && began(start - 1) && log(executed[start - 1].1) {
            start -= 1;
        }
        for (_, command) in &executed[start..=end] {
            self.last.extend(command.first..command.first + command.blocks.len() as u64);
        }
        for (_, command) in &executed[end + 1..] {
            let sectors = command.blocks.iter().flat_map(|block| block.chunks(SECTOR));
            self.since.extend(sectors.map(<[u8]>::to_vec));
        }
        let before = read_after(recording, executed[start].0).as_read();
        let before = look(before, &recording.setting).map_err(|ended| ended.to_string())?.survey;
        let mut names = vec![Arc::clone(recording.model.shape())];
        let mut model = recording.model.clone();
        for step in &recording.steps {
            model.begin(step);
            names.push(Arc::clone(model.shape()));
            model.end(step);
            names.push(Arc::clone(model.shape()));
        }
        let since = names.iter().position(|names| **names == before.shape);
        self.names = names.split_off(since.ok_or("before the last append it shows names that never were")?);
        self.before = before.contents;
        Ok(())
    }

    /// What is in a block now.
    #[must_use]
    pub fn block(&self, number: u64) -> &Block {
        self.image.block(number)
    }

    /// The image with a damage.
    #[must_use]
    pub fn with(&self, damage: &Damage) -> Image {
        let mut image = self.image.clone();
        damage.blocks.iter().for_each(|(number, data)| image.set(*number, Arc::clone(data)));
        image
    }

    /// What a block is for.
    #[must_use]
    pub fn class(&self, number: u64) -> Class {
        let store = [self.meta.first().map(|run| run.start), self.meta.last().map(|run| run.end - 1)];
        match &self.block(number)[..4] {
            _ if number == 0 || number == self.image.blocks() - 1 => Class::Superblock,
            _ if store.contains(&Some(number)) => Class::StoreSuperblock,
            [b'K', b'V', b'L', _] => Class::Log,
            b"KVBM" => Class::Bitmap,
            _ => Class::Tree,
        }
    }

    /// A damage of one block, of a structure that the dice choose.
    pub fn damage(&mut self, dice: &mut Dice) -> Option<Damage> {
        let class = *dice.pick(&[
            Class::Log,
            Class::Log,
            Class::Bitmap,
            Class::Bitmap,
            Class::Tree,
            Class::StoreSuperblock,
            Class::Superblock,
        ])?;
        let tail = class == Class::Log && dice.chance(50);
        let of_class = |number: &u64| self.class(*number) == class && (!tail || self.is_young(*number));
        let all: Vec<u64> = self.blocks.keys().copied().filter(of_class).collect();
        let number = *dice.pick(&all)?;
        // One that holds nothing that counts is passed over: three tries find one that does.
        let number = match self.counts(number) {
            true => number,
            false => (0..3).filter_map(|_| dice.pick(&all).copied()).find(|number| self.counts(*number))?,
        };
        self.damage_of(number, dice)
    }

    /// Whether a block is one of those of its kind that were written last.
    fn is_young(&self, number: u64) -> bool {
        self.last.contains(&number)
            || self.last.is_empty() && self.blocks.get(&number).is_some_and(|versions| versions.len() > 2)
    }

    fn damage_of(&self, number: u64, dice: &mut Dice) -> Option<Damage> {
        let versions = self.blocks.get(&number)?;
        let before: Vec<Block> = versions[..versions.len() - 1].to_vec();
        let previous = before.last().cloned().unwrap_or_else(junk);
        let mut bytes = **self.block(number);
        let (mut older, mut own) = (false, None);
        let what = match dice.roll(6) {
            0 => {
                let bit = dice.roll(BLOCK as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                format!("bit {bit} of block {number} flipped")
            }
            1 => {
                (bytes, older) = (*previous, true);
                format!("the last write of block {number} was lost")
            }
            2 => {
                bytes = [0; BLOCK];
                format!("block {number} was zeroed")
            }
            3 => {
                let age = dice.roll(before.len() as u64);
                (bytes, older) = (**before.get(age as usize)?, true);
                format!("block {number} is as it was {} writes ago", before.len() as u64 - age)
            }
            4 => {
                let sectors = 1 + dice.roll(7) as usize;
                bytes[..sectors * SECTOR].copy_from_slice(&previous[..sectors * SECTOR]);
                format!("the last write of block {number} was torn: {sectors} sectors are old")
            }
            _ => {
                let others: Vec<u64> = self.blocks.keys().copied().filter(|other| *other != number).collect();
                let other = *dice.pick(&others)?;
                let versions = self.blocks.get(&other)?;
                bytes = **versions.last()?;
                let old = versions.iter().rev().nth(1).cloned().unwrap_or_else(junk);
                own = Some((other, old));
                // The two superblocks hold the same: the newer one in the other's place is what a power cut leaves too.
                older = self.class(number).is_superblock() && self.class(other) == self.class(number);
                format!("what was for block {other} went to block {number}")
            }
        };
        if bytes == **self.block(number) {
            return None;
        }
        older |= before.iter().any(|before| **before == bytes);
        let blocks: Vec<(u64, Block)> = std::iter::once((number, Arc::new(bytes))).chain(own).collect();
        let classes: Vec<Class> = blocks.iter().map(|(number, _)| self.class(*number)).collect();
        let what = format!("{}, {classes:?}: {what}", self.name);
        Some(Damage { blocks, classes, older, what })
    }

    /// Whether it matters what is in a block: without it, the checker finds something, or other things are shown.
    fn counts(&mut self, number: u64) -> bool {
        if self.class(number).is_superblock() || self.class(number) == Class::Log {
            return true;
        }
        let mut image = self.image.clone();
        image.set(number, junk());
        *self.counts.entry(number).or_insert_with(|| is_reported(&image))
    }

    /// Whether `seen` may be shown without an error, after a damage.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn judge(&self, damage: &Damage, seen: &Survey) -> Result<(), String> {
        let why = match self.whole.same(seen) {
            Ok(()) => return Ok(()),
            Err(why) => why,
        };
        let tail = damage.blocks.iter().any(|(number, _)| self.last.contains(number));
        if tail
            && self.names.iter().any(|names| **names == seen.shape)
            && self.taken_back(seen).check(&self.loose).is_ok()
        {
            return Ok(());
        }
        let which = if tail { ", not those of before the last append either" } else { "" };
        Err(format!("other things are shown, and no error{which}: {why}"))
    }

    /// What is seen, without what others wrote to blocks that a file gave up with the last append: where that append is
    /// lost, the file has its blocks again, and they were free to be used since. Such a sector is one that the file
    /// has no more, or has otherwise, and that shows what was written after the append.
    fn taken_back(&self, seen: &Survey) -> Survey {
        let mut seen = seen.clone();
        for (ino, bytes) in &mut seen.contents {
            let Some(before) = self.before.get(ino) else { continue };
            let now = self.whole.contents.get(ino).map_or(&[][..], |now| now);
            for ((at, found), before) in
                (0..).step_by(SECTOR).zip(bytes.chunks_mut(SECTOR)).zip(before.chunks(SECTOR))
            {
                let given_up = now.get(at..at + before.len()) != Some(before);
                // The last sector of a file shows a part of what was written.
                let written = || self.since.iter().any(|sector| sector.starts_with(found));
                if found.len() == before.len() && given_up && written() {
                    found.copy_from_slice(before);
                }
            }
        }
        seen
    }

    /// Whether the checker has to find something where everything is shown that was there. Bytes of the log may count
    /// for nothing; a whole older superblock is what a power cut leaves between the writes of the two.
    #[must_use]
    pub(crate) fn must_be_reported(&self, damage: &Damage) -> bool {
        match damage.classes.first() {
            Some(class) if class.is_superblock() => !damage.older,
            Some(Class::Log) | None => false,
            Some(_) => true,
        }
    }
}

/// The device after so many events of a recording.
fn read_after(recording: &Recording, events: usize) -> Volatile {
    let mut media = recording.media.clone();
    recording.trace.events[..events].iter().for_each(|&event| media.follow(event, &recording.trace));
    media
}
