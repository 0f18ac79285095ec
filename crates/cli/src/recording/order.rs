//! Requests in the order of their arrivals: they come in that of their ends.

use nvmed_trace::{Catalogue, Request, Sink, TraceError};

/// Requests that are held at least, once there are so many: one that arrived before as many others had ended is late.
const WINDOW: usize = 1 << 17;

/// What is put in order, and where it goes.
pub(super) struct Order {
    held: Vec<Request>,
    /// Arrival of the last one that was written.
    written_ns: u64,
    late: u64,
    /// Gone after a failure.
    sink: Result<Sink, Option<TraceError>>,
}

impl Order {
    pub(super) fn new(sink: Sink) -> Self {
        Self { held: Vec::with_capacity(2 * WINDOW), written_ns: 0, late: 0, sink: Ok(sink) }
    }

    /// Takes a request of a trace with these names.
    pub(super) fn push(&mut self, request: Request, names: &Catalogue) {
        if request.arrival_ns < self.written_ns {
            self.late += 1;
            return;
        }
        self.held.push(request);
        if self.held.len() == 2 * WINDOW {
            self.write(WINDOW, names);
        }
    }

    /// Writes the first `count`.
    fn write(&mut self, count: usize, names: &Catalogue) {
        self.held.sort_by_key(|request| request.arrival_ns);
        for request in self.held.drain(..count) {
            self.written_ns = request.arrival_ns;
            if let Ok(sink) = &mut self.sink
                && let Err(error) = sink.write(&request, names)
            {
                // What was written goes with the sink; the program goes on, and the user is told at its end.
                self.sink = Err(Some(error));
            }
        }
    }

    /// Writes the rest; how many were too late.
    ///
    /// # Errors
    /// The host did not take it all; nothing is left then.
    pub(super) fn finish(mut self, names: &Catalogue) -> Result<u64, TraceError> {
        self.write(self.held.len(), names);
        match self.sink {
            Ok(sink) => sink.finish(names).map(|_| self.late),
            Err(error) => Err(error.expect("a failure is told once, at the end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_trace::{FORMATS, Op, Options, Source};

    fn at(arrival_ns: u64) -> Request {
        Request { device: 1, ..Request::new(Op::Read, 0, 4096, arrival_ns) }
    }

    #[test]
    fn requests_are_written_as_they_arrived_and_one_that_is_too_late_is_counted() {
        let path = std::env::temp_dir().join(format!("nvmed-order-{}", std::process::id()));
        let mut names = Catalogue::default();
        names.devices.number("queue");
        let mut order = Order::new(Sink::create(&path, &FORMATS[0]).unwrap());
        let count = 3 * WINDOW as u64;
        // In pairs the wrong way round, and one that is as far off as it may be.
        (1..count).for_each(|number| order.push(at(10 * (number ^ 1)), &names));
        order.push(at(5), &names);
        assert_eq!(order.finish(&names).unwrap(), 1);
        let mut source = Source::open(&path, &Options::default()).unwrap();
        let (mut last, mut found) = (0, 0);
        while let Some(request) = source.next().unwrap() {
            assert!(request.arrival_ns >= last);
            (last, found) = (request.arrival_ns, found + 1);
        }
        assert_eq!((found, source.counts().malformed), (count - 1, 0));
        std::fs::remove_file(&path).unwrap();
    }
}
