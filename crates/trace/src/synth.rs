//! Traces that are like a description. docs/trace.md says how, and what is exact.

mod clock;
mod model;
mod places;
mod pool;
mod spread;
mod totals;

pub use model::Model;

use crate::Request;
use clock::{Clock, Sums};
use model::Sized;
use nvmed_dice::Dice;
use places::Places;
use pool::Pool;

/// Told service times without a start: this part of the response times.
const SERVICE_OF_RESPONSE: f64 = 0.7;
/// Busiest that a device is on which one request is served after another.
const BUSY_MAX: f64 = 0.98;

/// What cannot be synthesised.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A cell is not told that a trace cannot do without.
    #[error("{0} is not told, or is 0")]
    Missing(&'static str),
    /// A cell is no number that a trace has.
    #[error("{0} is {1}")]
    Absurd(&'static str, f64),
    /// The services take longer than the trace.
    #[error("services take {service_s} s of {duration_s} s: one after another, that needs a lower rate")]
    Busy {
        /// Sum of the service times.
        service_s: f64,
        /// Duration of the trace.
        duration_s: f64,
    },
    /// Responses are shorter than services.
    #[error("a mean response of {response_ms} ms is shorter than the mean service of {service_ms} ms")]
    Order {
        /// Mean service time.
        service_ms: f64,
        /// Mean response time.
        response_ms: f64,
    },
    /// There are too few places for the requests that begin at one of their own.
    #[error(
        "{starts} different offsets need a range of {needed_bytes} bytes, not {range_bytes}: a larger footprint"
    )]
    Range {
        /// Offsets that differ.
        starts: u64,
        /// What they need.
        needed_bytes: u64,
        /// What there is.
        range_bytes: u64,
    },
}

/// A trace that is made as it is read. The same model and seed give the same requests. Its memory grows with the number
/// of different offsets.
#[derive(Debug)]
pub struct Synthesis {
    model: Model,
    dice: Dice,
    sizes: Pool<Sized>,
    places: Places,
    clock: Clock,
    /// Whether a request finishes at a known time.
    finishes_known: bool,
    left: u64,
}

impl Synthesis {
    /// A trace of a model.
    ///
    /// # Errors
    /// The services take longer than the trace, or its range has too few places.
    pub fn of(model: &Model, seed: u64) -> Result<Self, SynthError> {
        let totals = &model.totals;
        let mut dice = Dice::of(&[seed, totals.requests, totals.units]);
        let slots = model.range.1 / totals.granule;
        let starts = totals.requests - totals.hits;
        if slots / 2 < starts && totals.requests > totals.sequential + 1 {
            let needed_bytes = 2 * starts * totals.granule;
            return Err(SynthError::Range { starts, needed_bytes, range_bytes: model.range.1 });
        }
        let sizes = model.sizes(&mut dice);
        let usual_ns = sizes.iter().map(|&(size, count)| model.usual_ns(size) * count as f64).sum();
        let places = Places::new(
            totals.granule,
            (model.range.0, slots),
            totals.requests,
            (totals.sequential, totals.hits),
        );
        let clock = clock(model, usual_ns, &mut dice)?;
        Ok(Self {
            model: model.clone(),
            sizes: Pool::of(sizes),
            places,
            clock,
            finishes_known: totals.response_ns.is_some(),
            left: totals.requests,
            dice,
        })
    }
}

/// The times of a model whose requests take so long at the device's usual speed.
fn clock(model: &Model, usual_ns: f64, dice: &mut Dice) -> Result<Clock, SynthError> {
    let totals = &model.totals;
    let duration_ns = totals.duration_ns as f64;
    let (service_ns, response_ns) = match (totals.service_ns, totals.response_ns) {
        (Some(service_ns), Some(response_ns)) => (service_ns as f64, response_ns as f64),
        // When service begins is not told: any time will do that leaves the device enough.
        (_, Some(response_ns)) => {
            let response_ns = response_ns as f64;
            ((response_ns * SERVICE_OF_RESPONSE).min(duration_ns * 0.8), response_ns)
        }
        _ => (0.0, 0.0),
    };
    if service_ns > duration_ns * BUSY_MAX && service_ns > 0.0 {
        return Err(SynthError::Busy { service_s: service_ns / 1e9, duration_s: duration_ns / 1e9 });
    }
    if response_ns < service_ns {
        let mean_ms = |sum_ns: f64| sum_ns / totals.requests as f64 / 1e6;
        return Err(SynthError::Order { service_ms: mean_ms(service_ns), response_ms: mean_ms(response_ns) });
    }
    let no_wait = if totals.response_ns.is_some() {
        totals.no_wait.unwrap_or(totals.requests)
    } else {
        totals.requests
    };
    let idle = model.idle(no_wait - 1, (duration_ns - service_ns) as u64, dice);
    let long = idle.iter().filter(|&&(value, _)| value >= clock::LONG_NS).map(|&(_, count)| count).sum();
    let sums = Sums { requests: totals.requests, no_wait, service_ns, response_ns, usual_ns, long };
    Ok(Clock::new(sums, Pool::of(idle)))
}

impl Iterator for Synthesis {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.left = self.left.checked_sub(1)?;
        let (offset, preferred) = self.places.next(&mut self.dice);
        let found = preferred
            .and_then(|bytes| self.sizes.take((bytes, true)).or_else(|| self.sizes.take((bytes, false))));
        let size = found.or_else(|| self.sizes.draw(&mut self.dice))?;
        self.places.placed(offset, size.0);
        let times = self.clock.next(self.model.usual_ns(size), &mut self.dice);
        let known = self.finishes_known;
        Some(Request {
            start_ns: (known && self.model.starts_known).then_some(times.start_ns),
            finish_ns: known.then_some(times.finish_ns),
            ..Request::new(Model::op(size), offset, size.0, times.arrival_ns)
        })
    }
}
