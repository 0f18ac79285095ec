//! What the kernel's block layer says of requests, as tracefs hands it out: pages of ring buffers, one a processor.
//!
//! Sources: Documentation/trace/ring-buffer-design.rst and include/linux/ring_buffer.h (pages and entries);
//! Documentation/trace/events.rst (format files); include/trace/events/block.h (the events).

mod pages;

pub use pages::{KernelEvent, KernelLayout};

use crate::intake::Intake;
use crate::pairing::{Event, Pairing, Stage, Unpaired};
use crate::request::{Catalogue, Request};
use pages::{Processor, Record};
use std::collections::HashMap;
use std::io::{self, Read};

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelCounts {
    /// Events of the block layer.
    pub events: u64,
    /// Requests that were given out.
    pub requests: u64,
    /// Places at which events were lost.
    pub holes: u64,
    /// Requests that cannot be, or are too late to be put in order; they are left out.
    pub malformed: u64,
    /// What has no partner.
    pub unpaired: Unpaired,
}

/// Requests of what was recorded of all processors.
///
/// Where one of them has lost events, nothing is told from what happened on any of them meanwhile: what was open before
/// is left out, and so are the events of that time.
#[derive(Debug)]
pub struct KernelTrace<R> {
    layout: KernelLayout,
    processors: Vec<Processor<R>>,
    pairing: Pairing,
    intake: Intake,
    /// Numbers of devices' names.
    devices: HashMap<(u32, u32), u32>,
    events: u64,
    holes: u64,
    /// Events were lost before this time, on some processor.
    lost_until_ns: u64,
    has_ended: bool,
}

impl<R: Read> KernelTrace<R> {
    /// What was recorded of each processor: pages of so many bytes.
    #[must_use]
    pub fn new(layout: KernelLayout, processors: Vec<R>, page_bytes: usize) -> Self {
        Self {
            layout,
            processors: processors.into_iter().map(|pages| Processor::new(pages, page_bytes)).collect(),
            pairing: Pairing::default(),
            intake: Intake::default(),
            devices: HashMap::new(),
            events: 0,
            holes: 0,
            lost_until_ns: 0,
            has_ended: false,
        }
    }

    /// The next request, in the order in which they arrived; `None` at the end.
    ///
    /// # Errors
    /// The host does not let us read.
    #[allow(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            if let Some(request) = self.intake.next() {
                return Ok(Some(request));
            }
            if self.has_ended {
                return Ok(None);
            }
            self.intake.forget();
            while !self.has_ended && !self.intake.is_full() {
                self.has_ended = !self.step()?;
            }
            if self.has_ended {
                self.pairing.end(&mut self.intake);
            }
            self.intake.settle(self.has_ended);
        }
    }

    /// Takes the event that happened first; false if there is none.
    fn step(&mut self) -> io::Result<bool> {
        let mut first: Option<(u64, usize)> = None;
        for (number, processor) in self.processors.iter_mut().enumerate() {
            let time = processor.next_time(&self.layout)?;
            // The page is read as soon as the event before it is taken: all others' later ones are still to come.
            if let Some(until_ns) = processor.take_hole() {
                self.holes += 1;
                self.lost_until_ns = self.lost_until_ns.max(until_ns);
                self.pairing.lose(until_ns, &mut self.intake);
            }
            first = [first, time.map(|time| (time, number))].into_iter().flatten().min();
        }
        let Some((time_ns, number)) = first else { return Ok(false) };
        let Some(record) = self.processors[number].next() else { return Ok(true) };
        self.events += 1;
        if time_ns < self.lost_until_ns {
            self.intake.counts.unpaired.beside_lost += 1;
        } else if self.pair(&record).is_err() {
            self.intake.counts.malformed += 1;
        }
        Ok(true)
    }

    fn pair(&mut self, record: &Record) -> Result<(), crate::Malformed> {
        let device = match self.devices.get(&record.device) {
            Some(&device) => device,
            None => {
                let (major, minor) = record.device;
                let device = self.intake.device(&format!("{major},{minor}"))?;
                self.devices.insert(record.device, device);
                device
            }
        };
        let arrives = matches!(record.stage, Stage::Queued | Stage::Issued);
        let event = Event {
            device,
            process: if arrives { self.intake.process(&record.process)? } else { 0 },
            stage: record.stage,
            op: record.op,
            flags: record.flags,
            offset: record.offset,
            bytes: record.bytes,
            time_ns: record.time_ns,
            has_failed: record.has_failed,
        };
        self.pairing.event(&event, &mut self.intake)
    }

    /// Names of devices and processes, as far as it was read.
    #[must_use]
    pub fn names(&self) -> &Catalogue {
        &self.intake.names
    }

    /// What was counted, as far as it was read.
    #[must_use]
    pub fn counts(&self) -> KernelCounts {
        let counts = self.intake.counts;
        KernelCounts {
            events: self.events,
            requests: counts.requests,
            holes: self.holes,
            malformed: counts.malformed,
            unpaired: counts.unpaired,
        }
    }
}
