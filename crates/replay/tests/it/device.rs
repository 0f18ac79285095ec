//! A virtual device that writes down what it is asked for, and feeds of requests.

use nvmed_engine::Engine;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_flash::{FixedProfile, Kind, Profile};
use nvmed_nvme::Status;
use nvmed_replay::{Fed, Feed, Outcome, Replay, ReplayError, ReplayOptions, Replayed, Survey};
use nvmed_trace::{Op, Request};
use nvmed_vdev::{
    Arrival, Backing, Clock, Controller, ControllerConfig, DriveEvent, FaultPlan, InProcess, Media,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of the device.
pub const BYTES: u64 = 16 << 20;
/// What a command takes.
pub const LATENCY_NS: u64 = 100_000;

/// Something that the drive was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub op: Op,
    pub offset: u64,
    pub bytes: u64,
}

/// What goes wrong on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// The byte at this offset is another one after each write.
    Flip(u64),
    /// Writes to the block at this offset go nowhere, after the first one.
    Stale(u64),
    /// Writes to the first block go to the second.
    Astray(u64, u64),
}

/// The medium.
#[derive(Debug)]
pub struct Medium {
    bytes: Mutex<Vec<u8>>,
    wrong: Mutex<(Wrong, u32)>,
    /// Tells a replay to stop.
    stop: AtomicBool,
    stops_at_read: AtomicBool,
}

#[derive(Clone, Debug)]
struct Shared(Arc<Medium>);

impl Medium {
    /// The replay is told to stop when the medium is read.
    pub fn stop_at_first_read(&self) {
        self.stops_at_read.store(true, Ordering::Relaxed);
    }

    /// What it holds.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl Backing for Shared {
    fn bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        self.0.stop.fetch_or(self.0.stops_at_read.load(Ordering::Relaxed), Ordering::Relaxed);
        into.copy_from_slice(&self.0.bytes.lock().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        let end = offset + from.len() as u64;
        let mut bytes = self.0.bytes.lock().unwrap();
        let mut wrong = self.0.wrong.lock().unwrap();
        match &mut *wrong {
            (Wrong::Stale(at), times) if *at == offset => {
                *times += 1;
                if *times > 1 {
                    return Ok(());
                }
            }
            (Wrong::Astray(at, other), _) if *at == offset => {
                bytes[*other as usize..][..from.len()].copy_from_slice(from);
                return Ok(());
            }
            _ => {}
        }
        bytes[offset as usize..][..from.len()].copy_from_slice(from);
        if let (Wrong::Flip(at), _) = &*wrong
            && (offset..end).contains(at)
        {
            bytes[*at as usize] ^= 1;
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, _release: bool) -> Result<(), Status> {
        self.0.bytes.lock().unwrap()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// The device, and what is below it.
pub struct Device {
    pub engine: Arc<dyn Engine>,
    pub medium: Arc<Medium>,
    arrivals: Arc<Mutex<Vec<(Done, u64, u64)>>>,
}

impl Device {
    /// A device in simulated time, with faults by their text.
    pub fn new(faults: &str, wrong: Wrong) -> Self {
        let fixed = FixedProfile { read_ns: LATENCY_NS, write_ns: LATENCY_NS, ..FixedProfile::default() };
        let config = ControllerConfig {
            clock: Clock::Virtual,
            drive: Some(Profile::fixed(fixed)),
            faults: FaultPlan::parse(faults).unwrap(),
            ..ControllerConfig::default()
        };
        let medium = Arc::new(Medium {
            bytes: Mutex::new(vec![0; BYTES as usize]),
            wrong: Mutex::new((wrong, 0)),
            stop: AtomicBool::new(false),
            stops_at_read: AtomicBool::new(false),
        });
        let media = Media::backed(Box::new(Shared(Arc::clone(&medium)))).unwrap();
        let controller = Controller::new(config, media);
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&arrivals);
        controller.record_events(Box::new(move |event| {
            let arrival = event.and_then(DriveEvent::arrival);
            let Some(Arrival { time_ns, command, due_ns, .. }) = arrival else { return };
            let op = match command.kind {
                Kind::Read => Op::Read,
                Kind::Write { .. } => Op::Write,
                Kind::Deallocate => Op::Discard,
                Kind::Flush => Op::Flush,
            };
            let done = Done { op, offset: command.start, bytes: command.bytes };
            seen.lock().unwrap().push((done, *time_ns, due_ns.unwrap_or(u64::MAX)));
        }));
        let transport = InProcess::new(controller).unwrap();
        let engine: Arc<dyn Engine> = Arc::new(NvmeEngine::open(Arc::new(transport)).unwrap());
        Self { engine, medium, arrivals }
    }

    /// One that works.
    pub fn good() -> Self {
        Self::new("", Wrong::Nothing)
    }

    /// What the drive was asked for, in the order of arrival.
    pub fn asked(&self) -> Vec<Done> {
        self.arrivals.lock().unwrap().iter().map(|(done, ..)| *done).collect()
    }

    /// When each command arrived and was due, in the device's time, in the order of arrival.
    pub fn times(&self) -> Vec<(u64, u64)> {
        self.arrivals.lock().unwrap().iter().map(|(_, arrival, due)| (*arrival, *due)).collect()
    }

    /// Replays requests that all belong to a trace.
    pub fn replay(
        &self,
        trace: &[Request],
        options: ReplayOptions,
    ) -> (Vec<Request>, Replayed, Option<ReplayError>) {
        self.replay_until(trace, options, usize::MAX)
    }

    /// The same; it is told to stop once so many are done.
    pub fn replay_until(
        &self,
        trace: &[Request],
        options: ReplayOptions,
        stop_after: usize,
    ) -> (Vec<Request>, Replayed, Option<ReplayError>) {
        let stop = &self.medium.stop;
        stop.store(false, Ordering::Relaxed);
        let mut list =
            List { left: trace[options.done as usize..].iter(), done: Vec::new(), stop, stop_after };
        match Replay::new(&self.engine, &survey(trace), options) {
            Ok(replay) => {
                let (replayed, ended) = replay.run(&mut list, stop);
                (list.done, replayed, ended.err())
            }
            Err(error) => (Vec::new(), Replayed::default(), Some(error)),
        }
    }
}

/// The survey of a trace.
pub fn survey(trace: &[Request]) -> Survey {
    let mut survey = Survey::default();
    trace.iter().for_each(|request| survey.push(request));
    survey
}

/// A feed of requests.
struct List<'a> {
    left: std::slice::Iter<'a, Request>,
    done: Vec<Request>,
    stop: &'a AtomicBool,
    stop_after: usize,
}

impl Feed for List<'_> {
    fn next(&mut self) -> Fed {
        self.left.next().map_or(Fed::End, |next| Fed::Request(*next))
    }

    fn done(&mut self, request: &Request, _: Outcome) {
        self.done.push(*request);
        if self.done.len() >= self.stop_after {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn pause(&mut self) {}
}

/// A request with a finish.
pub fn request(op: Op, offset: u64, bytes: u64, arrival_ns: u64, finish_ns: u64) -> Request {
    Request {
        start_ns: Some(arrival_ns),
        finish_ns: Some(finish_ns),
        ..Request::new(op, offset, bytes, arrival_ns)
    }
}
