//! The fixed medium: a bandwidth, then a latency.

use crate::command::{Command, Completion, Kind, Ticket};
use crate::line::Line;
use crate::link::Passage;
use crate::profile::FixedProfile;

/// Commands under way on a fixed medium. Reads leave in the order in which they came, and so do the others.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    profile: FixedProfile,
    link: Passage,
    reads: Line,
    others: Line,
}

impl Fixed {
    pub fn new(profile: FixedProfile, commands: usize) -> Self {
        Self {
            profile,
            link: Passage::new(profile.link),
            reads: Line::new(commands),
            others: Line::new(commands),
        }
    }

    #[inline]
    pub fn arrive(&mut self, now: u64, ticket: Ticket, command: &Command) {
        let mut end = now;
        if matches!(command.kind, Kind::Read | Kind::Write { .. }) {
            end = self.link.pass(now, command.bytes);
        }
        match command.kind {
            Kind::Read => {
                self.reads.enter(end.saturating_add(self.profile.read_ns), ticket.0);
            }
            _ => {
                // A Flush does not wait for the bytes of a Write before it, so its end may be before that one's.
                let end = end.saturating_add(self.profile.write_ns).max(self.others.last_due());
                self.others.enter(end, ticket.0);
            }
        }
    }

    #[inline]
    pub fn next_due(&self) -> u64 {
        self.reads.next_due().min(self.others.next_due())
    }

    /// Takes the next completion.
    #[inline]
    pub fn leave(&mut self) -> Option<Completion> {
        let time = self.next_due();
        let line = if self.reads.next_due() <= time { &mut self.reads } else { &mut self.others };
        line.leave().map(|ticket| Completion { ticket: Ticket(ticket), time, refused: false })
    }
}
