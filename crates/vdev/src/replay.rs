//! A record told to a fresh model of the drive, in simulated time: every command is due when it was.

use crate::recorder::{Arrival, BufferChange, DriveEvent};
use nvmed_flash::{Completion, Flash, Profile};

/// What a replay has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Commands.
    pub commands: u64,
    /// Changes of the host memory buffer.
    pub buffer_changes: u64,
    /// Commands that are due at another time than they were.
    pub others: u64,
    /// The first of them in the record.
    pub first: Option<OtherTime>,
}

/// A command that is due at another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherTime {
    /// Its number among all events, from 0.
    pub event: u64,
    /// When it was due, in nanoseconds of the device's clock.
    pub recorded_ns: u64,
    /// When it is due in the replay.
    pub replayed_ns: u64,
}

/// Why an event is none that this drive has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Time went back.
    #[error("it arrives before the one before it")]
    Early,
    /// The drive has no place for it.
    #[error("the drive takes no command at that time, so it is not the one of the record")]
    Full,
    /// The buffer was lent already.
    #[error("it lends a buffer that was lent before and has not ended")]
    Lent,
    /// No buffer was lent.
    #[error("it is about a buffer that was not lent")]
    NotLent,
    /// The move that failed is not made.
    #[error("the drive does not make that move then, so it is not the one of the record")]
    NoMove,
}

/// A model that is told what a drive has recorded.
#[derive(Debug)]
pub struct Replay {
    flash: Flash,
    /// By ticket: the event that has it, and when it was due.
    under_way: Vec<Option<(u64, Option<u64>)>>,
    /// Moves since the buffer was lent; absent while it is not.
    moves: Option<u64>,
    events: u64,
    last_ns: u64,
    found: Replayed,
}

impl Replay {
    /// A replay by a model of a profile, in the state in which the drive was when its record began.
    #[must_use]
    pub fn new(profile: &Profile, flash: Flash) -> Self {
        let under_way = vec![None; profile.tickets() as usize];
        Self { flash, under_way, moves: None, events: 0, last_ns: 0, found: Replayed::default() }
    }

    /// Tells it the next event. Commands are within the capacity of the drive.
    ///
    /// # Errors
    /// [`ReplayError`]: this drive has not recorded it, and the replay is of no use any more.
    pub fn tell(&mut self, event: &DriveEvent) -> Result<(), ReplayError> {
        let time_ns = event.time_ns();
        if time_ns < self.last_ns {
            return Err(ReplayError::Early);
        }
        self.last_ns = time_ns;
        match event {
            DriveEvent::Arrival(arrival) => self.arrive(arrival)?,
            DriveEvent::Buffer { change, .. } => self.change(time_ns, *change)?,
        }
        self.events += 1;
        Ok(())
    }

    fn arrive(&mut self, arrival: &Arrival) -> Result<(), ReplayError> {
        let Arrival { time_ns, command, due_ns, .. } = arrival;
        self.pass_until(*time_ns, None);
        if !self.flash.takes(command.urgent) {
            return Err(ReplayError::Full);
        }
        let ticket = self.flash.arrive(*time_ns, command);
        self.under_way[ticket.0 as usize] = Some((self.events, *due_ns));
        self.found.commands += 1;
        Ok(())
    }

    fn change(&mut self, time_ns: u64, change: BufferChange) -> Result<(), ReplayError> {
        match change {
            BufferChange::Lent(_) if self.moves.is_some() => return Err(ReplayError::Lent),
            BufferChange::Lent(pages) => {
                self.pass_until(time_ns, None);
                self.flash.give_host_memory(time_ns, pages);
                self.moves = Some(0);
            }
            _ if self.moves.is_none() => return Err(ReplayError::NotLent),
            BufferChange::Ended => {
                self.pass_until(time_ns, None);
                self.end_buffer(time_ns);
            }
            BufferChange::MoveFailed(number) => {
                if !self.pass_until(time_ns, Some(number)) {
                    return Err(ReplayError::NoMove);
                }
                self.end_buffer(time_ns);
            }
        }
        self.found.buffer_changes += 1;
        Ok(())
    }

    fn end_buffer(&mut self, time_ns: u64) {
        self.flash.end_host_memory(time_ns);
        self.moves = None;
    }

    /// Lets happen what is due until then, or until the move that failed then; whether there was that move.
    fn pass_until(&mut self, time_ns: u64, failed: Option<u64>) -> bool {
        while self.flash.next_due() <= time_ns {
            let done = self.flash.advance(time_ns);
            done.into_iter().for_each(|done| self.compare(done));
            while let Some(of) = self.flash.next_move() {
                let number = self.moves.map(|moves| moves + 1);
                self.moves = number;
                if number == failed && failed.is_some() {
                    self.flash.move_failed(&of);
                    return of.time == time_ns;
                }
            }
        }
        false
    }

    fn compare(&mut self, done: Completion) {
        let Some((event, due_ns)) = self.under_way[done.ticket.0 as usize].take() else { return };
        // Without one, the record ended before.
        let Some(recorded_ns) = due_ns.filter(|&due_ns| due_ns != done.time) else { return };
        self.found.others += 1;
        if self.found.first.is_none_or(|first| event < first.event) {
            self.found.first = Some(OtherTime { event, recorded_ns, replayed_ns: done.time });
        }
    }

    /// The record ends here: what is under way is done.
    #[must_use]
    pub fn end(mut self) -> Replayed {
        self.pass_until(u64::MAX - 1, None);
        self.found
    }
}
