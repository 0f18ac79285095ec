//! Between a replay and its trace: where requests come from, and where they go.

use nvmed_trace::Request;

/// What comes of asking for the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// The next one.
    Request(Request),
    /// It is being read.
    NotYet,
    /// There is none.
    End,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device did it.
    Completed,
    /// The device said no.
    Failed,
    /// The device offers no such command, so it was not given to it.
    LeftOut,
}

/// Where requests come from, and where those go that are done. It is asked between two looks at the device, so it
/// neither reads nor writes files itself.
pub trait Feed {
    /// The next request, in the order of arrivals.
    fn next(&mut self) -> Fed;
    /// A request that is done, in the order in which they came, with the device's stamps in the replay's time; one
    /// that failed, or was left out, has no finish.
    fn done(&mut self, request: &Request, outcome: Outcome);
    /// Nothing happens for a while.
    fn pause(&mut self);
}
