//! Traces that are like a description. docs/trace.md says how, and what is exact.

mod busy;
mod clock;
mod model;
mod places;
mod pool;
mod recency;
mod several;
mod spread;
mod totals;
mod touched;

pub use model::Model;
pub use several::{DeviceModel, Several};

use crate::request::{OFFSET_MAX, TIME_NS_MAX};
use crate::{Op, Request};
use busy::BusyPeriods;
use clock::{Clock, Sums, Times};
use model::Sized;
use nvmed_dice::Dice;
use places::{Places, Size};
use pool::Pool;

/// Service times that are not told, of a device that serves one request after another: this part of the responses.
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
    /// No request waits, but their responses take longer than the trace.
    #[error(
        "no request waits for another, but responses take {response_s} s of {duration_s} s: that needs a lower rate"
    )]
    Alone {
        /// Sum of the response times.
        response_s: f64,
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
    /// The trace lasts longer than any.
    #[error("it would last {0} s, more than 2^62 ns: a higher rate")]
    Long(f64),
    /// The range ends where no device has bytes.
    #[error("its requests would reach beyond 2^56 bytes: a smaller footprint")]
    Wide,
}

/// A trace that is made as it is read. The same model and seed give the same requests. Its memory grows with the number
/// of different offsets, and of one that is like another with its working set.
#[derive(Debug)]
pub struct Synthesis {
    model: Model,
    dice: Dice,
    sizes: Pool<Sized>,
    places: Places,
    device: Device,
    /// Whether a request finishes at a known time.
    finishes_known: bool,
    /// Requests that need not wait are left, where the trace says it without times.
    told_no_wait: Option<u64>,
    left: u64,
    discards_left: u64,
    flushes_left: u64,
    last: Option<Request>,
}

/// How requests are served.
#[derive(Debug)]
enum Device {
    /// One after another.
    Serial(Box<Clock>),
    /// Several at once.
    Parallel(Box<BusyPeriods>),
}

impl Device {
    fn next(&mut self, usual_ns: f64, dice: &mut Dice) -> Times {
        match self {
            Self::Serial(clock) => clock.next(usual_ns, dice),
            Self::Parallel(periods) => periods.next(usual_ns, dice),
        }
    }
}

impl Synthesis {
    /// A trace of a model.
    ///
    /// # Errors
    /// The services take longer than the trace, or responses of which none waits do; its range has too few places; or
    /// it would last longer or reach farther than a trace does.
    pub fn of(model: &Model, seed: u64) -> Result<Self, SynthError> {
        let totals = &model.totals;
        let mut dice = Dice::of(&[seed, totals.requests, totals.units]);
        let slots = model.range.1 / totals.granule;
        let starts = totals.requests - totals.hits;
        // Where nothing says how full the range is, half of it is left free.
        let spare = if model.reuse.is_some() { 1 } else { 2 };
        if slots / spare < starts && totals.requests > totals.sequential + 1 {
            let needed_bytes = spare * starts * totals.granule;
            return Err(SynthError::Range { starts, needed_bytes, range_bytes: model.range.1 });
        }
        check_bounds(model)?;
        let sizes = model.sizes(&mut dice);
        let usual_ns = sizes.iter().map(|&(size, count)| model.usual_ns(size) * count as f64).sum();
        let mut places = Places::new(
            totals.granule,
            (model.range.0, slots),
            totals.requests,
            (totals.sequential, totals.hits),
        );
        if let Some(reuse) = &model.reuse {
            places = places.with_reuse(reuse.clone(), (totals.requests, totals.units * totals.granule));
        }
        let device = device(model, usual_ns, &mut dice)?;
        let (discards_left, flushes_left, _) = model.others();
        let finishes_known = totals.response_ns.is_some();
        Ok(Self {
            model: model.clone(),
            sizes: Pool::of(sizes),
            places,
            device,
            finishes_known,
            told_no_wait: totals.no_wait.filter(|_| !finishes_known),
            left: totals.requests,
            discards_left,
            flushes_left,
            last: None,
            dice,
        })
    }

    /// A discard or a flush, now and then, so that all of them are among the requests. It arrives with the request
    /// before it and ends with it: it takes the device no time of its own.
    fn other(&mut self) -> Option<Request> {
        let (others, last) = (self.discards_left + self.flushes_left, self.last?);
        if others == 0 || self.dice.roll(self.left + others) >= others {
            return None;
        }
        let times = |op, offset, bytes| Request {
            start_ns: last.start_ns,
            finish_ns: last.finish_ns,
            ..Request::new(op, offset, bytes, last.arrival_ns)
        };
        if self.dice.roll(others) < self.flushes_left {
            self.flushes_left -= 1;
            return Some(times(Op::Flush, 0, 0));
        }
        self.discards_left -= 1;
        let (_, _, bytes) = self.model.others();
        let (first, range) = self.model.range;
        let granule = self.model.totals.granule;
        let offset = first + self.dice.roll(range.saturating_sub(bytes) / granule + 1) * granule;
        Some(times(Op::Discard, offset, bytes))
    }

    /// Whether the next request waits, where the trace says so without times.
    fn waits(&mut self) -> Option<bool> {
        let no_wait = self.told_no_wait?;
        let waits = self.dice.roll(self.left + 1) >= no_wait;
        self.told_no_wait = Some(no_wait - u64::from(!waits));
        Some(waits)
    }
}

/// No request may lie or arrive where there can be none.
fn check_bounds(model: &Model) -> Result<(), SynthError> {
    let totals = &model.totals;
    if totals.duration_ns > TIME_NS_MAX / 2 {
        return Err(SynthError::Long(totals.duration_ns as f64 / 1e9));
    }
    // Requests may follow each other beyond the range.
    let bytes = totals.units.saturating_mul(totals.granule);
    let end = model.range.0.saturating_add(model.range.1).saturating_add(bytes);
    if end > OFFSET_MAX { Err(SynthError::Wide) } else { Ok(()) }
}

/// The device of a model whose requests take so long at its usual speed.
fn device(model: &Model, usual_ns: f64, dice: &mut Dice) -> Result<Device, SynthError> {
    let totals = &model.totals;
    let duration_ns = totals.duration_ns as f64;
    let response_ns = totals.response_ns.unwrap_or(0) as f64;
    let untold_ns = (response_ns * SERVICE_OF_RESPONSE).min(duration_ns * 0.8);
    let service_ns = match totals.service_ns {
        Some(sum_ns) if totals.response_ns.is_some() => sum_ns as f64,
        _ => untold_ns,
    };
    let no_wait = if totals.response_ns.is_some() {
        totals.no_wait.unwrap_or(totals.requests)
    } else {
        totals.requests
    };
    if response_ns < service_ns {
        let mean_ms = |sum_ns: f64| sum_ns / totals.requests as f64 / 1e6;
        return Err(SynthError::Order { service_ms: mean_ms(service_ns), response_ms: mean_ms(response_ns) });
    }
    if model.parallel {
        if no_wait == totals.requests && response_ns > duration_ns {
            let (response_s, duration_s) = (response_ns / 1e9, duration_ns / 1e9);
            return Err(SynthError::Alone { response_s, duration_s });
        }
        let periods = model.periods(no_wait, usual_ns, dice);
        return Ok(Device::Parallel(Box::new(BusyPeriods::new(periods))));
    }
    if service_ns > duration_ns * BUSY_MAX && service_ns > 0.0 {
        return Err(SynthError::Busy { service_s: service_ns / 1e9, duration_s: duration_ns / 1e9 });
    }
    let idle = model.idle(no_wait - 1, (duration_ns - service_ns) as u64, dice);
    let long = idle.iter().filter(|&&(value, _)| value >= clock::LONG_NS).map(|&(_, count)| count).sum();
    let sums = Sums { requests: totals.requests, no_wait, service_ns, response_ns, usual_ns, long };
    Ok(Device::Serial(Box::new(Clock::new(sums, Pool::of(idle)))))
}

impl Iterator for Synthesis {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if let Some(other) = self.other() {
            return Some(other);
        }
        self.left = self.left.checked_sub(1)?;
        let (offset, wish) = self.places.next(&mut self.dice);
        let found = match wish {
            Size::Of(bytes) => self.sizes.take((bytes, true)).or_else(|| self.sizes.take((bytes, false))),
            Size::Large => self.sizes.draw_end(true, &mut self.dice),
            Size::Small => self.sizes.draw_end(false, &mut self.dice),
            Size::Any => None,
        };
        let size = found.or_else(|| self.sizes.draw(&mut self.dice))?;
        self.places.placed(offset, size.0);
        let times = self.device.next(self.model.usual_ns(size), &mut self.dice);
        let known = self.finishes_known;
        let request = Request {
            start_ns: (known && self.model.starts_known).then_some(times.start_ns),
            finish_ns: known.then_some(times.finish_ns),
            waited: self.waits(),
            ..Request::new(Model::op(size), offset, size.0, times.arrival_ns)
        };
        self.last = Some(request);
        Some(request)
    }
}
