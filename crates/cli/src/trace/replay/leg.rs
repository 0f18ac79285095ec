//! One leg of a replay: a thread that reads, one that replays, and this one, which writes, and shows how far it is.

use super::progress::Progress;
use super::{COMMAND, Contents};
use crate::failure::{Failure, Status};
use crate::stop::STOP;
use crate::trace::arguments::Replay;
use nvmed_lab::machine::now_ns;
use nvmed_lab::seat::Seat;
use nvmed_replay::{Fed, Feed, Identity, Outcome, Replay as Replayer, ReplayError, Replayed, State, Survey};
use nvmed_trace::{Options, Request, Sink, Source, TraceError};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

/// Requests that go from thread to thread together.
const BATCH: usize = 512;
/// Batches between two threads: a second's worth at 100,000 requests a second, since a reader takes what it has read
/// in pieces of up to 131,072.
const BATCHES: usize = 512;
/// How often this thread looks whether it is time for something.
const LOOK: Duration = Duration::from_millis(100);
/// How often the state is kept.
const STATE_NS: u64 = 5_000_000_000;

/// What a leg came to.
pub(super) struct Ended {
    pub replayed: Replayed,
    pub error: Option<ReplayError>,
    /// What all legs came to.
    pub state: State,
}

/// A request that is done.
type Done = (Request, Outcome);

/// One leg of a replay.
pub(super) struct Leg<'a> {
    pub arguments: &'a Replay,
    pub contents: &'a Contents,
    pub identity: &'a Identity,
    /// Where it begins.
    pub state: State,
    /// How late a request may be, nanoseconds.
    pub bound_ns: u64,
}

/// The replaying thread's ends of the channels.
struct Link {
    requests: Receiver<Vec<Request>>,
    batch: std::vec::IntoIter<Request>,
    done: SyncSender<Vec<Done>>,
    pending: Vec<Done>,
}

impl Link {
    fn flush(&mut self) {
        if !self.pending.is_empty() {
            // Without anybody there, the replay is told to stop.
            let _ = self.done.send(std::mem::replace(&mut self.pending, Vec::with_capacity(BATCH)));
        }
    }
}

impl Feed for Link {
    fn next(&mut self) -> Fed {
        loop {
            if let Some(request) = self.batch.next() {
                return Fed::Request(request);
            }
            match self.requests.try_recv() {
                Ok(batch) => self.batch = batch.into_iter(),
                Err(TryRecvError::Empty) => return Fed::NotYet,
                Err(TryRecvError::Disconnected) => return Fed::End,
            }
        }
    }

    fn done(&mut self, request: &Request, outcome: Outcome) {
        self.pending.push((*request, outcome));
        if self.pending.len() == BATCH {
            self.flush();
        }
    }

    fn pause(&mut self) {
        self.flush();
    }
}

impl Leg<'_> {
    /// Replays what is left of the trace.
    ///
    /// # Errors
    /// The trace cannot be read again, or results or state not be written.
    pub fn run(&self, replayer: Replayer) -> Result<Ended, Failure> {
        let source = crate::trace::files::open(&self.arguments.trace, &self.arguments.reading)?;
        let (to_replay, requests) = sync_channel(BATCHES);
        let (done, results) = sync_channel(BATCHES);
        // A replay begins with what the channel holds, so that the reader's first pieces do not hold it up.
        let (is_ahead, ahead) = sync_channel(1);
        let mut keeper = Keeper::new(self)?;
        let mut link =
            Link { requests, batch: Vec::new().into_iter(), done, pending: Vec::with_capacity(BATCH) };
        let (read, (replayed, ended)) = std::thread::scope(|scope| {
            let reader = scope.spawn(move || self.read(source, &to_replay, is_ahead));
            let realtime = self.arguments.realtime;
            let replay = scope.spawn(move || {
                let _seat = realtime.then(|| Seat::take(0, true));
                // A host that refuses lets sleeps end 50 us later.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                let _ = ahead.recv();
                let ended = replayer.run(&mut link, &STOP);
                link.flush();
                ended
            });
            keeper.keep(&results);
            drop(results);
            let panicked = "a thread of the replay does not panic";
            (reader.join().expect(panicked), replay.join().expect(panicked))
        });
        let survey = read.map_err(crate::trace::files::failure)?;
        if !replayed.stopped && ended.is_ok() && survey.digest() != self.contents.survey.digest() {
            let path = self.arguments.trace.display();
            let what = "the trace was changed while it was replayed, so that this is no replay of it";
            return Err(Failure::new(Status::Failed, format!("{COMMAND}: {path}: {what}")));
        }
        let is_checked = !self.arguments.verify || replayed.is_read_back;
        let state = keeper.finish(ended.is_ok(), is_checked)?;
        Ok(Ended { replayed, error: ended.err(), state })
    }

    /// Reads the trace, and passes on what is chosen and not done. `is_ahead` goes when the channel is full, or all was
    /// read.
    fn read(
        &self,
        mut source: Source,
        to_replay: &SyncSender<Vec<Request>>,
        is_ahead: SyncSender<()>,
    ) -> Result<Survey, TraceError> {
        let mut is_ahead = Some(is_ahead);
        let mut survey = Survey::default();
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(request) = source.next()? {
            survey.push(&request);
            if survey.requests <= self.state.done {
                continue;
            }
            batch.push(request);
            if batch.len() < BATCH {
                continue;
            }
            let whole = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            let whole = match to_replay.try_send(whole) {
                Ok(()) => continue,
                Err(TrySendError::Full(whole) | TrySendError::Disconnected(whole)) => whole,
            };
            is_ahead = None;
            if to_replay.send(whole).is_err() {
                return Ok(survey);
            }
        }
        drop(is_ahead);
        let _ = to_replay.send(batch);
        Ok(survey)
    }
}

/// Keeps results and state.
struct Keeper<'a> {
    leg: &'a Leg<'a>,
    sink: Option<Sink>,
    state: State,
    /// Requests that were given to the sink, those of earlier legs among them, as far as their rows are there.
    given: u64,
    saved_ns: u64,
    progress: Progress,
    failed: Option<Failure>,
}

impl<'a> Keeper<'a> {
    fn new(leg: &'a Leg<'a>) -> Result<Self, Failure> {
        let output = leg.arguments.output.as_deref();
        let sink = output.map(|path| Sink::create(path, leg.arguments.to_format)).transpose();
        let mut keeper = Self {
            leg,
            sink: sink.map_err(crate::trace::files::failure)?,
            state: State { legs: leg.state.legs + 1, ..leg.state },
            given: 0,
            saved_ns: now_ns(),
            progress: Progress::new(leg.contents.survey.requests, leg.state.done),
            failed: None,
        };
        if let Some(path) = output.filter(|_| leg.state.done > 0) {
            keeper.copy_before(path)?;
        }
        Ok(keeper)
    }

    /// The results of earlier legs, whose file is there until this one replaces it.
    fn copy_before(&mut self, path: &Path) -> Result<(), Failure> {
        let options = Options { format: Some(self.leg.arguments.to_format), ..Options::default() };
        let failed = |error: TraceError| {
            let what = "has the results of the requests that the state says are done";
            let gone = Failure::new(Status::Failed, format!("{COMMAND}: {error}, but it {what}"));
            if let TraceError::Read { .. } = error { gone } else { crate::trace::files::failure(error) }
        };
        let mut source = Source::open(path, &options).map_err(failed)?;
        let mut names = self.leg.contents.names.clone();
        // A file with more rows is that of a command which was killed before it could say so in the state.
        let rows = self.leg.state.rows;
        while self.given < rows {
            let Some(request) = source.next().map_err(failed)? else {
                let (path, found) = (path.display(), self.given);
                return Err(Failure::new(
                    Status::Failed,
                    format!(
                        "{COMMAND}: {path}: the state says that it has the results of {rows} requests, and it has \
                         {found}; put the right file there, or remove the state to begin anew"
                    ),
                ));
            };
            let device = names.devices.number(source.names().devices.name(request.device));
            let process = names.processes.number(source.names().processes.name(request.process));
            let (device, process) = (device.unwrap_or(0), process.unwrap_or(0));
            let sink =
                self.sink.as_mut().map(|sink| sink.write(&Request { device, process, ..request }, &names));
            sink.transpose().map_err(crate::trace::files::failure)?;
            self.given += 1;
        }
        Ok(())
    }

    /// Takes results until there are no more.
    fn keep(&mut self, results: &Receiver<Vec<Done>>) {
        loop {
            match results.recv_timeout(LOOK) {
                Ok(batch) => self.take(&batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.progress.show(self.state.done);
            // With results in a file, the state must not be ahead of them.
            if self.sink.is_none() && now_ns() - self.saved_ns > STATE_NS {
                self.save();
            }
        }
        self.progress.end();
    }

    fn take(&mut self, batch: &[Done]) {
        let has_deadlines = self.leg.arguments.closed.is_none();
        for (request, outcome) in batch {
            self.state.push(request, *outcome, has_deadlines.then_some(self.leg.bound_ns));
            let Some(sink) = &mut self.sink else { continue };
            self.given += 1;
            if let Err(error) = sink.write(request, &self.leg.contents.names) {
                // The file that is meant is as it was.
                self.sink = None;
                self.failed = Some(crate::trace::files::failure(error));
                STOP.store(true, Ordering::Relaxed);
            }
        }
    }

    fn save(&mut self) {
        self.saved_ns = now_ns();
        let Some(path) = &self.leg.arguments.state else { return };
        if let Err(error) = self.state.save(path, self.leg.identity) {
            self.failed.get_or_insert(Failure::new(Status::Failed, format!("{COMMAND}: {error}")));
            STOP.store(true, Ordering::Relaxed);
        }
    }

    /// Results become a file, if they are whole, and the state says what they are; answers it. Its file is there for as
    /// long as a request is not done, or what was written is not read back.
    fn finish(mut self, is_whole: bool, is_checked: bool) -> Result<State, Failure> {
        let has_output = self.leg.arguments.output.is_some();
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        if let Some(sink) = self.sink.take().filter(|_| is_whole) {
            let written = sink.finish(&self.leg.contents.names).map_err(crate::trace::files::failure)?;
            self.state.rows = self.given.saturating_sub(written.left_out);
            if let Some(path) = &self.leg.arguments.output {
                crate::trace::files::tell(path, self.leg.arguments.to_format, &written);
            }
        }
        let is_end = is_checked && self.state.done == self.leg.contents.survey.requests;
        match &self.leg.arguments.state {
            Some(path) if is_end && is_whole => {
                // It is there if the replay was interrupted.
                let _ = std::fs::remove_file(path);
            }
            Some(_) if is_whole || !has_output => self.save(),
            _ => {}
        }
        self.failed.map_or(Ok(self.state), Err)
    }
}
