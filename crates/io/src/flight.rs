//! Calls that their callers do not wait for at once.

use crate::error::{IoError, SubmitError};
use crate::handle::Handle;
use crate::parts::Parts;
use crate::scatter::Spans;
use crate::ticket::Ticket;
use nvmed_engine::{Operation, Request, Segment};
use nvmed_units::{DeviceAddress, Lba};

/// A call that is under way while its caller does other things: what of it was not sent yet, and the tickets of the
/// rest. [`Flight::submit`], or [`Flight::enqueue`], sends as much as the queue has slots for, [`Flight::poll`] looks
/// for results; both are called again until [`Flight::is_landed`]. A caller that wants to sleep meanwhile takes a
/// ticket.
///
/// Until it has landed its memory is the device's. Dropping it before abandons its requests ([`Ticket::abandon`]).
#[derive(Debug)]
#[must_use = "a call has a result, and what was not sent of it waits for a slot"]
pub struct Flight {
    operation: Operation,
    /// What was not sent: blocks, how many of their later spans were sent all the same, and memory.
    unsent: Spans,
    gone: usize,
    memory: Option<Segment>,
    is_sent: bool,
    /// Almost every call is one request.
    ticket: Option<Ticket>,
    more: Vec<Ticket>,
    /// Tickets that were taken and not given back as results.
    taken: usize,
    error: Option<IoError>,
}

impl Flight {
    /// A call on no blocks yet. `memory` is that of all blocks, for operations that move or compare data.
    pub fn new(operation: Operation, memory: Option<Segment>) -> Self {
        Self {
            operation,
            unsent: Spans::default(),
            gone: 0,
            memory,
            is_sent: false,
            ticket: None,
            more: Vec::new(),
            taken: 0,
            error: None,
        }
    }

    /// Adds `blocks` logical blocks from `lba`, whose memory comes after that of the blocks before.
    ///
    /// # Panics
    /// There are no blocks.
    pub fn push(&mut self, lba: Lba, blocks: u64) {
        self.unsent.push(lba, blocks);
    }

    /// Sends as much as `handle` has slots for, cut into requests. The same handle, or a clone, each time.
    ///
    /// # Panics
    /// The memory is not as long as the blocks.
    pub fn submit(&mut self, handle: &Handle) {
        self.send(handle, true);
    }

    /// As [`Flight::submit`], without the doorbell ([`Handle::enqueue`]).
    ///
    /// # Panics
    /// As [`Flight::submit`].
    pub fn enqueue(&mut self, handle: &Handle) {
        self.send(handle, false);
    }

    fn send(&mut self, handle: &Handle, ring: bool) {
        if self.is_sent || self.error.is_some() {
            return;
        }
        let limits = &handle.shared.limits;
        let (operation, memory) = (self.operation, self.memory);
        let (lba, blocks) = self.unsent.first.map_or((Lba(0), 0), |first| (first.lba, first.blocks));
        let more = &self.unsent.more[self.gone..];
        let bytes = more.iter().fold(blocks, |sum, span| sum + span.blocks) << limits.lba_shift;
        let given = memory.map_or(0, |memory| u64::from(memory.bytes));
        assert!(
            bytes == given || !operation.has_data(),
            "{given} bytes of memory for {bytes} bytes of blocks"
        );
        let whole = Request { operation, lba, blocks: 0, data: memory.as_slice(), tag: 0, stream: 0 };
        let mut parts = Parts::new(&whole, blocks, limits).and(more);
        let (mut room, mut sent) = ([Segment { address: DeviceAddress(0), bytes: 0 }], 0_u64);
        while !parts.is_done() {
            let request = parts.longest(&mut room);
            match handle.put(&request, ring) {
                Ok(ticket) if self.ticket.is_none() => self.ticket = Some(ticket),
                Ok(ticket) => self.more.push(ticket),
                Err(SubmitError::NoSlot) => break,
                Err(refused) => return self.error = Some(IoError::refused(operation, request.lba, refused)),
            }
            sent += u64::from(request.blocks) << limits.lba_shift;
            parts.advance();
        }
        self.is_sent = parts.is_done();
        let (next, later) = parts.left();
        (self.gone, self.unsent.first) = (self.unsent.more.len() - later.len(), Some(next));
        if let Some(memory) = &mut self.memory {
            *memory = Segment { address: memory.address.plus(sent), bytes: memory.bytes - sent as u32 };
        }
    }

    /// Forgets what was not sent.
    pub fn call_off(&mut self) {
        self.is_sent = true;
    }

    /// Looks for results, and takes those that are there.
    pub fn poll(&mut self, handle: &Handle) {
        let Self { ticket, more, error, .. } = self;
        let mut is_flying = |ticket: &Ticket| match handle.poll(ticket) {
            None => true,
            Some(result) => {
                *error = error.or(result.err());
                false
            }
        };
        *ticket = ticket.take().filter(&mut is_flying);
        more.retain(is_flying);
    }

    /// The ticket of one request that is under way, to wait for it elsewhere; [`Flight::note`] brings its result.
    pub fn take(&mut self) -> Option<Ticket> {
        let ticket = self.ticket.take().or_else(|| self.more.pop())?;
        self.taken += 1;
        Some(ticket)
    }

    /// The result of a ticket that was taken.
    ///
    /// # Panics
    /// None was.
    pub fn note(&mut self, result: Result<(), IoError>) {
        assert!(self.taken > 0, "a result of a request that nobody waited for");
        self.taken -= 1;
        self.error = self.error.or(result.err());
    }

    /// Whether everything was sent, or is not to be sent after an error, and nothing is under way any more.
    #[must_use]
    pub fn is_landed(&self) -> bool {
        let is_over = self.is_sent || self.error.is_some();
        is_over && self.ticket.is_none() && self.more.is_empty() && self.taken == 0
    }

    /// What became of a call that has landed.
    ///
    /// # Errors
    /// That of the first request that failed; any of the others may have been done.
    pub fn result(&self) -> Result<(), IoError> {
        self.error.map_or(Ok(()), Err)
    }
}
