//! A drive: commands arrive and complete.

use crate::command::{Command, Completion, Ticket};
use crate::drive::Drive;
use crate::fixed::Fixed;
use crate::layer::Counts;
use crate::profile::{Medium, Profile, ProfileError};

/// A drive's time. Its owner says what arrives when, and asks what has completed.
#[derive(Debug)]
pub struct Flash {
    machine: Machine,
    /// Tickets that no command has.
    free: Vec<u32>,
    /// Until when everything has happened.
    now: u64,
}

#[derive(Debug)]
enum Machine {
    Fixed(Fixed),
    Array(Box<Drive>),
}

impl Flash {
    /// A drive to which nothing has arrived yet.
    ///
    /// # Errors
    /// The profile describes no drive.
    pub fn new(profile: &Profile) -> Result<Self, ProfileError> {
        profile.check()?;
        let commands = profile.commands as usize;
        let machine = match &profile.medium {
            Medium::Fixed(fixed) => Machine::Fixed(Fixed::new(*fixed, commands)),
            Medium::Array(array) => Machine::Array(Box::new(Drive::new(array, commands)?)),
        };
        Ok(Self { machine, free: (0..profile.commands).rev().collect(), now: 0 })
    }

    /// Whether the drive takes one more command now. What it does not take waits, and arrives at the time of the
    /// completion that makes room.
    #[inline]
    #[must_use]
    pub fn takes(&self) -> bool {
        !self.free.is_empty()
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
    /// When the drive does not take it ([`Self::takes`]).
    #[inline]
    pub fn arrive(&mut self, time: u64, command: &Command) -> Ticket {
        let ticket = Ticket(self.free.pop().expect("the owner has asked whether the drive takes a command"));
        match &mut self.machine {
            Machine::Fixed(fixed) => {
                self.now = self.now.max(time);
                fixed.arrive(self.now, ticket, command);
            }
            Machine::Array(drive) => {
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

    /// Lets happen what is due at `until` or before, up to the next completion, which it answers. What waited for room
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

    /// What the translation layer has done since the drive was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        match &self.machine {
            Machine::Fixed(_) => Counts::default(),
            Machine::Array(drive) => drive.counts(),
        }
    }
}
