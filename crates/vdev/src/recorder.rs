//! What arrives at a drive, written down: the same list in a fresh model gives the same times.

use nvmed_flash::{Command, Ticket};
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

/// Is told arrivals, in their order, and `None` when the host has shut the controller down, and when there are no more.
/// It is called while commands wait.
pub type ArrivalSink = Box<dyn FnMut(Option<&Arrival>) + Send>;

/// Arrivals since the recording began.
pub(crate) struct Recorder {
    sink: ArrivalSink,
    /// Those that were not told: the first one is not due yet. As many as arrive until the slowest one is due.
    waiting: VecDeque<Arrival>,
    /// How many were told.
    told: u64,
    /// By ticket: the number of the arrival that has it, plus one; 0 is one from before.
    of_ticket: Vec<u64>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Recorder").field("told", &self.told).finish_non_exhaustive()
    }
}

impl Recorder {
    pub fn new(sink: ArrivalSink) -> Self {
        Self { sink, waiting: VecDeque::new(), told: 0, of_ticket: Vec::new() }
    }

    pub fn arrived(&mut self, arrival: Arrival, Ticket(ticket): Ticket) {
        self.waiting.push_back(arrival);
        let ticket = ticket as usize;
        if self.of_ticket.len() <= ticket {
            self.of_ticket.resize(ticket + 1, 0);
        }
        self.of_ticket[ticket] = self.told + self.waiting.len() as u64;
    }

    pub fn due(&mut self, time_ns: u64, Ticket(ticket): Ticket) {
        let number = self.of_ticket.get(ticket as usize).and_then(|number| number.checked_sub(1 + self.told));
        if let Some(arrival) = number.and_then(|at| self.waiting.get_mut(at as usize)) {
            arrival.due_ns = Some(time_ns);
        }
        while self.waiting.front().is_some_and(|first| first.due_ns.is_some()) {
            self.tell();
        }
    }

    /// The host has shut the controller down, and may end without another word.
    pub fn rest(&mut self) {
        (self.sink)(None);
    }

    fn tell(&mut self) {
        if let Some(arrival) = self.waiting.pop_front() {
            self.told += 1;
            (self.sink)(Some(&arrival));
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
