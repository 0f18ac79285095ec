//! What a drive is told, written down: the same list in a fresh model gives the same times.

use nvmed_flash::{Command, HostPages, Ticket};
use std::collections::VecDeque;

/// A command that arrived at the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, in nanoseconds of the device's clock.
    pub time_ns: u64,
    /// Its submission queue; 0 is that of HMB-I/O, or of the Flush with which the drive rests.
    pub queue: u16,
    /// Its opcode; of HMB-I/O that of the Read or Write that it is.
    pub opcode: u8,
    /// What it is to the drive.
    pub command: Command,
    /// When it was due, if that has come.
    pub due_ns: Option<u64>,
}

/// What became of the host memory buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferChange {
    /// The drive uses so many slots from then on, which are empty.
    Lent(HostPages),
    /// It uses them no more.
    Ended,
    /// A move could not be made, and the drive uses the buffer no more: the number of the move, from 1 on since the
    /// buffer was lent.
    MoveFailed(u64),
}

/// Something that a drive was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveEvent {
    /// A command arrived.
    Arrival(Arrival),
    /// The host memory buffer changed.
    Buffer {
        /// When, in nanoseconds of the device's clock.
        time_ns: u64,
        /// What became of it.
        change: BufferChange,
    },
}

impl DriveEvent {
    /// When, in nanoseconds of the device's clock.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        match self {
            Self::Arrival(Arrival { time_ns, .. }) | Self::Buffer { time_ns, .. } => *time_ns,
        }
    }

    /// The command, if that is what it is.
    #[must_use]
    pub fn arrival(&self) -> Option<&Arrival> {
        match self {
            Self::Arrival(arrival) => Some(arrival),
            Self::Buffer { .. } => None,
        }
    }

    /// Whether it is known when it was due.
    fn is_over(&self) -> bool {
        self.arrival().is_none_or(|arrival| arrival.due_ns.is_some())
    }
}

/// Is told events, in their order, and `None` when the host has shut the controller down, and when there are no more.
/// It is called while commands wait.
pub type EventSink = Box<dyn FnMut(Option<&DriveEvent>) + Send>;

/// Events since the recording began.
pub(crate) struct Recorder {
    sink: EventSink,
    /// Those that were not told: the first one is a command that is not due yet. As many as come until the slowest one
    /// is due.
    waiting: VecDeque<DriveEvent>,
    /// How many were told.
    told: u64,
    /// By ticket: the number of the event that has it, plus one; 0 is one from before.
    of_ticket: Vec<u64>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Recorder").field("told", &self.told).finish_non_exhaustive()
    }
}

impl Recorder {
    pub fn new(sink: EventSink) -> Self {
        Self { sink, waiting: VecDeque::new(), told: 0, of_ticket: Vec::new() }
    }

    pub fn arrived(&mut self, arrival: Arrival, Ticket(ticket): Ticket) {
        self.waiting.push_back(DriveEvent::Arrival(arrival));
        let ticket = ticket as usize;
        if self.of_ticket.len() <= ticket {
            self.of_ticket.resize(ticket + 1, 0);
        }
        self.of_ticket[ticket] = self.told + self.waiting.len() as u64;
    }

    pub fn due(&mut self, time_ns: u64, Ticket(ticket): Ticket) {
        let number = self.of_ticket.get(ticket as usize).and_then(|number| number.checked_sub(1 + self.told));
        if let Some(DriveEvent::Arrival(arrival)) = number.and_then(|at| self.waiting.get_mut(at as usize)) {
            arrival.due_ns = Some(time_ns);
        }
        self.tell_all();
    }

    /// The host memory buffer has changed.
    pub fn changed(&mut self, time_ns: u64, change: BufferChange) {
        self.waiting.push_back(DriveEvent::Buffer { time_ns, change });
        self.tell_all();
    }

    /// The host has shut the controller down, and may end without another word.
    pub fn rest(&mut self) {
        (self.sink)(None);
    }

    /// Tells what waits for no command.
    fn tell_all(&mut self) {
        while self.waiting.front().is_some_and(DriveEvent::is_over) {
            self.tell();
        }
    }

    fn tell(&mut self) {
        if let Some(event) = self.waiting.pop_front() {
            self.told += 1;
            (self.sink)(Some(&event));
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        while !self.waiting.is_empty() {
            self.tell();
        }
        (self.sink)(None);
    }
}
