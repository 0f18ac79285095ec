//! Traces of several devices, each like a model of its own.

use super::{Model, SynthError, Synthesis};
use crate::Request;
use crate::request::TIME_NS_MAX;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Between the seeds of two devices: 2^64 by the golden ratio, so that like models do not make like requests.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A device that is to be like a model.
#[derive(Clone, Debug)]
pub struct DeviceModel {
    /// The device's number.
    pub device: u32,
    /// When its first request arrives.
    pub begin_ns: u64,
    /// What it is like.
    pub model: Model,
}

/// A trace of several devices, made as it is read: each is the [`Synthesis`] of its model, and knows nothing of the
/// others but when it begins. Requests come in the order of their arrivals. The first device's are those that it would
/// have alone.
#[derive(Debug)]
pub struct Several {
    devices: Vec<(u32, u64, Synthesis)>,
    /// The next request of each device, by its arrival, and where the device stands in the list.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    /// The same requests, as the devices stand.
    waiting: Vec<Option<Request>>,
}

impl Several {
    /// A trace of these devices.
    ///
    /// # Errors
    /// As for [`Synthesis::of`], with the place of the device in the list.
    pub fn of(devices: &[DeviceModel], seed: u64) -> Result<Self, (usize, SynthError)> {
        let synthesis = |(at, one): (usize, &DeviceModel)| {
            let seed = seed.wrapping_add(SEED_STEP.wrapping_mul(at as u64));
            let synthesis = Synthesis::of(&one.model, seed).map_err(|error| (at, error))?;
            if one.begin_ns > TIME_NS_MAX / 2 {
                return Err((at, SynthError::Long(one.begin_ns as f64 / 1e9)));
            }
            Ok((one.device, one.begin_ns, synthesis))
        };
        let all = devices.iter().enumerate().map(synthesis).collect::<Result<Vec<_>, _>>()?;
        let mut several = Self { waiting: vec![None; all.len()], devices: all, next: BinaryHeap::new() };
        (0..several.devices.len()).for_each(|at| several.fetch(at));
        Ok(several)
    }

    /// Makes a device's next request.
    fn fetch(&mut self, at: usize) {
        let (device, begin_ns, synthesis) = &mut self.devices[at];
        self.waiting[at] = synthesis.next().map(|request| Request {
            device: *device,
            arrival_ns: request.arrival_ns + *begin_ns,
            start_ns: request.start_ns.map(|start_ns| start_ns + *begin_ns),
            finish_ns: request.finish_ns.map(|finish_ns| finish_ns + *begin_ns),
            ..request
        });
        self.next.extend(self.waiting[at].map(|request| Reverse((request.arrival_ns, at))));
    }
}

impl Iterator for Several {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let Reverse((_, at)) = self.next.pop()?;
        let request = self.waiting[at].take();
        self.fetch(at);
        request
    }
}
