//! What the kernel's block layer says of requests, as tracefs hands it out: pages of ring buffers, one a processor.
//!
//! Sources: Documentation/trace/ring-buffer-design.rst and include/linux/ring_buffer.h (pages and entries);
//! Documentation/trace/events.rst (format files); include/trace/events/block.h (the events).

mod pages;
mod pairs;

pub use pages::{KernelEvent, KernelLayout};

use crate::request::{Catalogue, Request};
use pages::Processor;
use pairs::Pairs;
use std::io::{self, Read};

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelCounts {
    /// Events of the block layer.
    pub events: u64,
    /// Requests that were completed.
    pub requests: u64,
    /// Completions of requests whose issue was not seen: they were under way before, or it was lost.
    pub without_issue: u64,
    /// Requests that were issued and not completed, which are left out: they were under way at the end, or it was lost,
    /// or the times of both contradict each other.
    pub without_completion: u64,
    /// Requests whose arrival was not seen: they arrive when they are issued.
    pub without_arrival: u64,
}

/// Requests of what was recorded of all processors.
#[derive(Debug)]
pub struct KernelTrace<R> {
    layout: KernelLayout,
    processors: Vec<Processor<R>>,
    pairs: Pairs,
    names: Catalogue,
    has_ended: bool,
}

impl<R: Read> KernelTrace<R> {
    /// What was recorded of each processor: pages of so many bytes.
    #[must_use]
    pub fn new(layout: KernelLayout, processors: Vec<R>, page_bytes: usize) -> Self {
        let processors = processors.into_iter().map(|pages| Processor::new(pages, page_bytes)).collect();
        Self { layout, processors, pairs: Pairs::default(), names: Catalogue::default(), has_ended: false }
    }

    /// The next completed request, in the order in which they were issued; `None` at the end.
    ///
    /// # Errors
    /// The host does not let us read.
    #[allow(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            if let Some(request) = self.pairs.next(self.has_ended) {
                return Ok(Some(request));
            }
            if self.has_ended {
                return Ok(None);
            }
            self.has_ended = !self.step()?;
        }
    }

    /// Takes the event that happened first; false if there is none.
    fn step(&mut self) -> io::Result<bool> {
        let mut first: Option<(u64, usize)> = None;
        for (number, processor) in self.processors.iter_mut().enumerate() {
            let time = processor.next_time(&self.layout)?;
            first = [first, time.map(|time| (time, number))].into_iter().flatten().min();
        }
        let Some((_, number)) = first else { return Ok(false) };
        let event = self.processors[number].next();
        event.into_iter().for_each(|event| self.pairs.event(&event, &mut self.names));
        Ok(true)
    }

    /// Names of devices and processes, as far as it was read.
    #[must_use]
    pub fn names(&self) -> &Catalogue {
        &self.names
    }

    /// What was counted, as far as it was read.
    #[must_use]
    pub fn counts(&self) -> KernelCounts {
        self.pairs.counts
    }
}
