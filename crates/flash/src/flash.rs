//! A drive: commands arrive and complete.

use crate::activity::Activity;
use crate::command::{Command, Completion, Kind, Ticket};
use crate::counts::Counts;
use crate::drive::Drive;
use crate::fixed::Fixed;
use crate::host_memory::{HostPages, Move};
use crate::layer::Layer;
use crate::profile::{Medium, Profile, ProfileError, UNIT_BYTES, WRITE_BYTES_MAX};
use crate::state::{DriveWear, StateError};
use crate::tables::{Tables, Words};
use core::ops::Range;

/// A drive's time. Its owner says what arrives when, and asks what has completed.
#[derive(Debug)]
pub struct Flash<W = Vec<u32>> {
    machine: Machine<W>,
    /// Tickets that no command has.
    free: Vec<u32>,
    /// Until when everything has happened.
    now: u64,
}

#[derive(Debug)]
enum Machine<W> {
    Fixed(Fixed),
    Array(Box<Drive<W>>),
}

impl Flash {
    /// An empty drive, with tables on the heap.
    ///
    /// # Errors
    /// The profile describes no drive.
    pub fn new(profile: &Profile) -> Result<Self, ProfileError> {
        profile.check()?;
        Self::with_tables(profile, Tables::on_heap(profile))
    }
}

impl<W: Words> Flash<W> {
    /// An empty drive, with tables in memory that the owner gives, of the [`crate::table_sizes`].
    ///
    /// # Errors
    /// The profile describes no drive.
    ///
    /// # Panics
    /// When the tables have other sizes.
    pub fn with_tables(profile: &Profile, tables: Tables<W>) -> Result<Self, ProfileError> {
        profile.check()?;
        let machine = match &profile.medium {
            Medium::Fixed(fixed) => Machine::Fixed(Fixed::new(*fixed, profile.commands as usize)),
            Medium::Array(array) => Machine::Array(Box::new(Drive::new(array, profile.commands, tables)?)),
        };
        Ok(Self { machine, free: (0..profile.tickets()).rev().collect(), now: 0 })
    }

    /// Whether the drive takes one more command now, an urgent one or another ([`crate::UrgentProfile`]). What it does
    /// not take waits, and arrives at the time of the completion that makes room.
    #[inline]
    #[must_use]
    pub fn takes(&self, urgent: bool) -> bool {
        match &self.machine {
            Machine::Fixed(_) => !self.free.is_empty(),
            Machine::Array(drive) => drive.takes(urgent, self.free.len()),
        }
    }

    /// Until when everything has happened: an arrival is no earlier.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// A command arrives at `time`, or at [`Self::now`] if that is later. What happens until then has happened before.
    /// Its completion comes from [`Self::advance`].
    ///
    /// # Panics
    /// When the drive does not take it ([`Self::takes`]), when a Read or Write goes beyond the capacity, or a Write has
    /// more than [`crate::WRITE_BYTES_MAX`].
    #[inline]
    pub fn arrive(&mut self, time: u64, command: &Command) -> Ticket {
        let ticket = Ticket(self.free.pop().expect("the owner has asked whether the drive takes a command"));
        match &mut self.machine {
            Machine::Fixed(fixed) => {
                self.now = self.now.max(time);
                fixed.arrive(self.now, ticket, command);
            }
            Machine::Array(drive) => {
                drive.check(command);
                drive.run(&mut self.now, time, true);
                drive.arrive(self.now, ticket, command);
            }
        }
        ticket
    }

    /// When something happens next inside the drive, perhaps a completion; `u64::MAX` if nothing will.
    #[inline]
    #[must_use]
    pub fn next_due(&self) -> u64 {
        match &self.machine {
            Machine::Fixed(fixed) => fixed.next_due(),
            Machine::Array(drive) => drive.next_due(self.now),
        }
    }

    /// Lets happen what is due at `until` or before, up to the next completion, which it answers, or up to the next
    /// [`Self::next_move`], where the host has given memory. What waited for room
    /// then arrives at that completion's time, before the next call.
    #[inline]
    pub fn advance(&mut self, until: u64) -> Option<Completion> {
        let completion = match &mut self.machine {
            Machine::Fixed(fixed) => {
                let due = fixed.next_due();
                self.now = self.now.max(until.min(due));
                if due <= until { fixed.leave() } else { None }
            }
            Machine::Array(drive) => {
                drive.run(&mut self.now, until, false);
                drive.leave()
            }
        };
        self.free.extend(completion.map(|completion| completion.ticket.0));
        completion
    }

    /// Has ranges of bytes, each in its order, be in the cells, and answers when that is done: so that they are read as
    /// slowly as what was written lately is not. One command at a time: of several, dies take what comes first. Nothing
    /// is under way before.
    ///
    /// # Panics
    /// When a range goes beyond the capacity.
    pub fn fill(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) -> u64 {
        let writes = ranges.into_iter().flat_map(|range| {
            range.clone().step_by(WRITE_BYTES_MAX as usize).map(move |start| Command {
                kind: Kind::Write { fua: false },
                start,
                bytes: WRITE_BYTES_MAX.min(range.end - start),
                urgent: false,
            })
        });
        let flush = Command { kind: Kind::Flush, start: 0, bytes: 0, urgent: false };
        let mut now = self.now;
        for command in writes.chain([flush]) {
            let _ = self.arrive(now, &command);
            while self.advance(now).is_none() {
                now = now.max(self.next_due());
            }
        }
        now
    }

    /// Lets happen what is due at `until` or before, up to the next [`Self::next_move`]; completions wait for
    /// [`Self::advance`]. An owner who moves bytes does this before a command arrives at `until`, again and again until
    /// there is no move: what passes until a time has passed before what arrives then.
    pub fn reach(&mut self, until: u64) {
        if let Machine::Array(drive) = &mut self.machine {
            drive.run_to_move(&mut self.now, until);
        }
    }

    /// The host gives memory at `time`, or at [`Self::now`] if that is later, of so many slots: the drive uses them,
    /// which have nothing yet, until [`Self::end_host_memory`]. Nothing of a medium without a translation layer.
    ///
    /// # Panics
    /// When it has given some already.
    pub fn give_host_memory(&mut self, time: u64, pages: HostPages) {
        let Machine::Array(drive) = &mut self.machine else { return };
        assert!(drive.host.is_none(), "the host has given memory already");
        drive.run(&mut self.now, time, true);
        drive.give_host_memory(pages);
    }

    /// The host's memory is of no use any more from `time` on: no [`Move`] comes after this, and what was to come from
    /// there is read from flash. Nothing if the host has given none.
    pub fn end_host_memory(&mut self, time: u64) {
        let Machine::Array(drive) = &mut self.machine else { return };
        if drive.host.is_some() {
            drive.run(&mut self.now, time, true);
            drive.end_host_memory(self.now);
        }
    }

    /// What has passed between the drive and the host's memory: its owner moves the bytes before he lets the drive go
    /// on. To be asked after each [`Self::arrive`] and [`Self::advance`], until there is none. What is not asked for is
    /// taken for done.
    pub fn next_move(&mut self) -> Option<Move> {
        let Machine::Array(drive) = &mut self.machine else { return None };
        drive.next_move()
    }

    /// The bytes of a [`Self::next_move`] could not be moved, or are not those that were put there: the drive takes the
    /// slot for empty, and reads from flash what was to come.
    pub fn move_failed(&mut self, of: &Move) {
        if let Machine::Array(drive) = &mut self.machine {
            drive.move_failed(self.now, of);
        }
    }

    /// The bytes of a page of the map, as they are in flash: its entries, little-endian. Zeroes behind the last one.
    ///
    /// # Panics
    /// When the map is not in flash, or has no such page.
    pub fn map_page(&self, page: u32, into: &mut [u8; UNIT_BYTES as usize]) {
        let layer = self.layer().expect("a map page is of a drive with a map");
        layer.map_page(page, into);
    }

    fn layer(&self) -> Option<&Layer<W>> {
        match &self.machine {
            Machine::Fixed(_) => None,
            Machine::Array(drive) => drive.layer(),
        }
    }

    fn layer_mut(&mut self) -> Option<&mut Layer<W>> {
        match &mut self.machine {
            Machine::Fixed(_) => None,
            Machine::Array(drive) => drive.layer_mut(),
        }
    }

    /// What the translation layer has done since the drive was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.layer().map(Layer::counts).unwrap_or_default()
    }

    /// How long the drive's planes have worked since it was made; nothing of a medium without planes.
    #[must_use]
    pub fn activity(&self) -> Activity {
        match &self.machine {
            Machine::Fixed(_) => Activity::default(),
            Machine::Array(drive) => drive.activity(),
        }
    }

    /// Whether writes are refused: so many blocks are worn out that the rest has no room for the capacity.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.layer().is_some_and(Layer::is_read_only)
    }

    /// Makes an empty drive what it is after having been written at random for long, without simulating that: each unit
    /// is valid somewhere, and blocks have as many valid units as in the steady state.
    ///
    /// # Panics
    /// When anything has arrived before.
    pub fn precondition(&mut self) {
        assert!(self.now == 0, "only a new drive is preconditioned");
        self.layer_mut().into_iter().for_each(Layer::precondition);
    }

    /// Goes on counting from what was counted in lives before.
    pub fn set_counts(&mut self, counts: Counts) {
        self.layer_mut().into_iter().for_each(|layer| layer.counts = counts);
    }

    /// How worn the drive is.
    #[must_use]
    pub fn wear(&self) -> DriveWear {
        self.layer().map(Layer::wear).unwrap_or_default()
    }

    /// Logical units that have been written and not deallocated since; `None` where there is no map.
    #[must_use]
    pub fn mapped_units(&self) -> Option<u64> {
        self.layer().map(Layer::mapped_units)
    }

    /// Records what changes in flash from now on, for [`Self::records`].
    pub fn keep_records(&mut self) {
        self.layer_mut().into_iter().for_each(|layer| layer.records.kept = true);
    }

    /// What has changed since [`Self::clear_records`], in words of docs/spec/flash.md, "Records".
    #[inline]
    #[must_use]
    pub fn records(&self) -> &[u32] {
        self.layer().map_or(&[], |layer| layer.records.words())
    }

    /// The records have been written down.
    #[inline]
    pub fn clear_records(&mut self) {
        self.layer_mut().into_iter().for_each(|layer| layer.records.clear());
    }

    /// Logical units of the map; 0 where there is none.
    #[must_use]
    pub fn map_len(&self) -> usize {
        self.layer().map_or(0, |layer| layer.map.len())
    }

    /// Map entries from a logical unit on, as they are in flash; what only the buffer has is not in it.
    ///
    /// # Panics
    /// When there are not as many from there on.
    pub fn map_words(&self, first: usize, into: &mut [u32]) {
        assert!(first + into.len() <= self.map_len(), "units {first} + {} of {}", into.len(), self.map_len());
        self.layer().into_iter().for_each(|layer| layer.map_words(first, into));
    }

    /// The blocks: [`crate::BLOCK_WORDS`] each.
    #[must_use]
    pub fn block_words(&self) -> Vec<u32> {
        self.layer().map(Layer::block_words).unwrap_or_default()
    }

    /// Gives an empty drive the state that was written down: its map, its blocks, and the records since then. `torn`:
    /// the drive's last life ended while programs were under way, so rows that they may have spoilt are not used again.
    ///
    /// # Errors
    /// The words describe no state of this drive, which is of no use then.
    pub fn restore(
        &mut self,
        map: &[u32],
        blocks: &[u32],
        records: &[u32],
        torn: bool,
    ) -> Result<(), StateError> {
        match self.layer_mut() {
            Some(layer) => layer.restore(map, blocks, records, torn),
            None => Ok(()),
        }
    }
}
