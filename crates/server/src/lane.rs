//! The thread that serves a lane.

use crate::answer::data_bytes;
use crate::service::Service;
use crate::session::Session;
use nvmed_sys::sync::{Arc, Condvar, Mutex};
use nvmed_wire::{Answer, LaneError, Request, ServerLane};
use rustix::io::Errno;

/// How many threads serve lanes.
#[derive(Default)]
pub(crate) struct Served {
    threads: Mutex<usize>,
    none: Condvar,
}

impl Served {
    /// One more, until the answer is dropped.
    pub fn begin(self: &Arc<Self>) -> Counted {
        *self.threads.lock() += 1;
        Counted(Arc::clone(self))
    }

    pub fn count(&self) -> usize {
        *self.threads.lock()
    }

    /// Waits until there is none: the lanes were closed, and each thread ends after the call that it is at.
    pub(crate) fn wait_for_none(&self) {
        let threads = self.threads.lock();
        let none = self.none.wait_while(threads, |threads| *threads > 0);
        drop(none);
    }
}

/// A thread that serves a lane, counted.
pub(crate) struct Counted(Arc<Served>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut threads = self.0.threads.lock();
        // A second panic while one unwinds would end the server.
        assert!(*threads > 0 || std::thread::panicking(), "no thread serves a lane, and one ends");
        *threads = threads.saturating_sub(1);
        if *threads == 0 {
            self.0.none.notify_all();
        }
    }
}

/// Answers the calls of a lane until it is closed.
///
/// # Errors
/// [`LaneError`] for what a client of ours does not write.
pub(crate) fn serve(service: &Service, session: &Session, lane: &ServerLane) -> Result<(), LaneError> {
    let mut request = Request::default();
    // What the client has posted is made while it does something else, so that its next call finds it made.
    let mut meanwhile = || {
        let _ = service.mount.guarded(|| service.take_posted_writes_of(session));
        // What it may not say is found out with its next call.
        let _ = service.take_posts(session, lane);
    };
    while lane.next(&mut request, &mut meanwhile)? {
        let Request { message, data } = &mut request;
        let call = message.call()?;
        service.take_posts(session, lane)?;
        // A mistake of ours in one call is that call's failure, not a client that waits for ever.
        let answered = service.mount.guarded(|| service.answer(session, call, data));
        if service.has_strange_posts(session) {
            return Err(LaneError::Log);
        }
        let answer = answered.unwrap_or(Answer::Failed(Errno::IO.raw_os_error()));
        lane.answer(&answer, data.room(data_bytes(&answer)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no thread serves a lane, and one ends")]
    fn a_thread_that_was_not_counted_is_our_mistake() {
        drop(Counted(Arc::default()));
    }
}
