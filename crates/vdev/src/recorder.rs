//! What arrives at a drive, written down: the same list in a fresh model gives the same times.

use nvmed_flash::{Command, Ticket};

/// A command that arrived at the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, in nanoseconds of the device's clock.
    pub time_ns: u64,
    /// What.
    pub command: Command,
    /// When it was due, if that has come.
    pub due_ns: Option<u64>,
}

/// Arrivals since the recording began.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    arrivals: Vec<Arrival>,
    /// By ticket: the arrival that has it, plus one; 0 is one from before.
    of_ticket: Vec<usize>,
}

impl Recorder {
    pub fn arrived(&mut self, time_ns: u64, command: Command, Ticket(ticket): Ticket) {
        self.arrivals.push(Arrival { time_ns, command, due_ns: None });
        let ticket = ticket as usize;
        if self.of_ticket.len() <= ticket {
            self.of_ticket.resize(ticket + 1, 0);
        }
        self.of_ticket[ticket] = self.arrivals.len();
    }

    pub fn due(&mut self, time_ns: u64, Ticket(ticket): Ticket) {
        let arrival = self.of_ticket.get(ticket as usize).and_then(|at| at.checked_sub(1));
        if let Some(arrival) = arrival.and_then(|at| self.arrivals.get_mut(at)) {
            arrival.due_ns = Some(time_ns);
        }
    }

    pub(crate) fn into_arrivals(self) -> Vec<Arrival> {
        self.arrivals
    }
}
