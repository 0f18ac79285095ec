//! The threads that serve lanes. One whose lane has ended waits for the next one: a program that begins and ends in a
//! millisecond shall not wait for a thread, and memory, to be made for it.

use crate::answer::data_bytes;
use crate::peer::Peer;
use crate::service::Service;
use crate::session::Session;
use nvmed_io::caller;
use nvmed_mutant::Point;
use nvmed_sys::sync::{Arc, Condvar, Mutex};
use nvmed_wire::{Answer, Board, LaneError, Request, ServerLane};
use rustix::io::Errno;

/// Threads that wait for their next lane; of more, each ends with its lane.
const WAITING_MAX: usize = 8;

/// The threads that serve lanes, and those that wait for one.
#[derive(Default)]
pub(crate) struct Served {
    threads: Mutex<Threads>,
    none: Condvar,
}

#[derive(Default)]
struct Threads {
    serving: usize,
    waiting: Vec<Arc<Waiting>>,
    ended: bool,
}

/// A thread that has served a lane to its end.
struct Waiting {
    next: Mutex<Next>,
    called: Condvar,
    left: Mutex<Option<Left>>,
}

enum Next {
    Waits,
    Job(Job),
    Ends,
}

/// What serves a lane to its end, and what is left of it.
pub(crate) type Job = Box<dyn FnOnce(&mut Request) -> Option<Left> + Send>;

/// A lane that is served no more, whose memory another one may have.
pub(crate) struct Left {
    pub lane: Arc<ServerLane>,
    /// The one user whose processes have had it.
    pub of: Arc<Peer>,
}

/// A thread for a new lane: one that waited, or none.
pub(crate) struct Seat(Option<Arc<Waiting>>);

impl Served {
    /// One more thread that serves, until the answer is dropped.
    pub fn begin(self: &Arc<Self>) -> Counted {
        self.threads.lock().serving += 1;
        Counted(Arc::clone(self))
    }

    pub fn count(&self) -> usize {
        self.threads.lock().serving
    }

    /// A lane for a process of `peer`, and a thread for it. Its memory is that of a lane which processes with the same
    /// ids have had, if there is one: what they left in it is theirs.
    ///
    /// # Errors
    /// The host has no memory or descriptor left.
    pub fn lane(&self, board: &Arc<Board>, peer: &Peer) -> Result<(ServerLane, Seat), Errno> {
        let mut threads = self.threads.lock();
        let fits = |waiting: &Arc<Waiting>| {
            waiting.left.lock().as_ref().is_some_and(|left| left.of.has_ids_of(peer))
        };
        let fitting = threads.waiting.iter().rposition(fits).map(|at| threads.waiting.swap_remove(at));
        let left = fitting.as_ref().and_then(|waiting| waiting.left.lock().take());
        let seat = Seat(fitting.or_else(|| threads.waiting.pop()));
        drop(threads);
        // Somebody else may look at it still.
        let lane = match left.and_then(|left| Arc::into_inner(left.lane)) {
            Some(lane) => lane.renewed(),
            None => ServerLane::new(Arc::clone(board))?,
        };
        Ok((lane, seat))
    }

    /// Has a thread do the job.
    ///
    /// # Errors
    /// The host has no thread left.
    pub fn serve(self: &Arc<Self>, mut seat: Seat, job: Job) -> Result<(), std::io::Error> {
        if let Some(waiting) = seat.0.take() {
            waiting.call(Next::Job(job));
            return Ok(());
        }
        let served = Arc::clone(self);
        let work = move || {
            let mut request = Request::default();
            let mut next = Some(job);
            while let Some(job) = next {
                let left = job(&mut request);
                request.rest();
                next = served.next(left);
            }
        };
        nvmed_sys::spawn_quiet("nvmed-lane", work).map(drop)
    }

    /// Waits for the next job; none when this thread is to end.
    fn next(&self, left: Option<Left>) -> Option<Job> {
        let waiting = Arc::new(Waiting {
            next: Mutex::new(Next::Waits),
            called: Condvar::default(),
            left: Mutex::new(left),
        });
        {
            let mut threads = self.threads.lock();
            if threads.ended || threads.waiting.len() >= WAITING_MAX {
                return None;
            }
            threads.waiting.push(Arc::clone(&waiting));
        }
        let next = waiting.next.lock();
        let mut next = waiting.called.wait_while(next, |next| matches!(next, Next::Waits));
        match std::mem::replace(&mut *next, Next::Ends) {
            Next::Job(job) => Some(job),
            _ => None,
        }
    }

    /// Waits until none serves: the lanes were closed, and each thread ends after the call that it is at. None serves
    /// after it.
    pub(crate) fn end(&self) {
        let threads = self.threads.lock();
        let mut threads = self.none.wait_while(threads, |threads| threads.serving > 0);
        threads.ended = true;
        let waiting = std::mem::take(&mut threads.waiting);
        drop(threads);
        waiting.iter().for_each(|waiting| waiting.call(Next::Ends));
    }
}

impl Waiting {
    fn call(&self, next: Next) {
        *self.next.lock() = next;
        self.called.notify_one();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Nobody has needed it.
        if let Some(waiting) = &self.0 {
            waiting.call(Next::Ends);
        }
    }
}

/// A thread that serves a lane, counted.
pub(crate) struct Counted(Arc<Served>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut threads = self.0.threads.lock();
        // A second panic while one unwinds would end the server.
        assert!(threads.serving > 0 || std::thread::panicking(), "no thread serves a lane, and one ends");
        threads.serving = threads.serving.saturating_sub(1);
        if threads.serving == 0 {
            self.0.none.notify_all();
        }
    }
}

/// Answers the calls of a lane until it is closed.
///
/// # Errors
/// [`LaneError`] for what a client of ours does not write.
pub(crate) fn serve(
    service: &Service,
    session: &Session,
    lane: &ServerLane,
    request: &mut Request,
) -> Result<(), LaneError> {
    // What the client has posted is made while it does something else, so that its next call finds it made.
    let mut meanwhile = || {
        let _ = service.mount.guarded(|| service.take_posted_writes_of(session));
        // What it may not say is found out with its next call.
        let _ = service.take_posts(session, lane);
        service.mount.guarded(|| service.bring_one(session)).unwrap_or(false)
    };
    while lane.next(request, &mut meanwhile)? {
        Point::CallTaken.reached();
        let urgency = service.urgency_of(session, request.is_urgent);
        let Request { message, data, .. } = request;
        let call = message.call()?;
        service.take_posts(session, lane)?;
        // A mistake of ours in one call is that call's failure, not a client that waits for ever.
        let answered = service.mount.guarded(|| match urgency {
            Some(urgency) => caller::with(urgency, || service.answer(session, call, data)),
            None => service.answer(session, call, data),
        });
        Point::CallDone.reached();
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
