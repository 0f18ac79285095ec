//! What a replay found, for people and as JSON; and whether it was one.

use super::leg::Ended;
use super::{COMMAND, Contents, failure, is_written, pacing};
use crate::failure::{Failure, Status};
use crate::inspect::size;
use crate::output::Output;
use crate::trace::arguments::Replay;
use nvmed_chart::{short, time};
use nvmed_replay::{Pacing, Replayed, State, Times};
use nvmed_stack::DeviceSpec;
use serde_json::{Value, json};

/// The least lateness that a replay may have, nanoseconds.
const LATE_NS_MIN: u64 = 1_000_000;

/// Prints what was found, whatever became of the replay.
///
/// # Errors
/// It is no replay: stopped, failed, or late.
pub(super) fn tell(
    arguments: &Replay,
    contents: &Contents,
    (spec, name): (&DeviceSpec, &str),
    before: &State,
    ended: &Ended,
) -> Result<(), Failure> {
    let (replayed, state, all) = (&ended.replayed, &ended.state, contents.survey.requests);
    let bound_ns = bound_ns(arguments, contents);
    let device = spec.to_string();
    let facts = Facts { arguments, replayed, device: &device, before, state, all, bound_ns };
    let mut out = Output::new();
    out.text(&if arguments.json { format!("{:#}\n", facts.json(ended)) } else { facts.text() })?;
    out.finish()?;
    let failed = |what: String| Err(Failure::new(Status::Failed, format!("{COMMAND}: {name}: {what}")));
    if let Some(error) = &ended.error {
        return Err(failure(name, error));
    }
    if replayed.stopped && state.done != all {
        let asked = is_written(arguments, &contents.survey) && !state.may_destroy;
        let with = if asked { " with --destroy-data" } else { "" };
        let goes_on = match &arguments.state {
            Some(path) => format!("; the same command{with} goes on there, by {}", path.display()),
            None => String::new(),
        };
        return failed(format!("stopped after {} of {all} requests{goes_on}", state.done));
    }
    if !facts.is_checked() {
        let what = "stopped before all that was written was read back, so that it is not verified";
        return failed(what.to_owned());
    }
    match replayed.first_failure {
        Some(error) => {
            return failed(format!("{} requests failed; the first one: {error}", replayed.failed));
        }
        None if state.failed > 0 => {
            return failed(format!("{} requests failed, before this command went on", state.failed));
        }
        None => {}
    }
    if !state.is_on_time() {
        let cure = "take a lower --speed, a larger --depth, --realtime, or --closed; --late-bound sets another bound";
        return failed(format!(
            "requests were given to the device too late, so that this is no replay: {cure}"
        ));
    }
    Ok(())
}

/// How late 99 % of the requests may be.
pub(super) fn bound_ns(arguments: &Replay, contents: &Contents) -> u64 {
    let gap = contents.survey.median_gap_ns() as f64 / arguments.speed.unwrap_or(1.0);
    let asked = arguments.late_bound.map(|bound| u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX));
    asked.unwrap_or((gap as u64).max(LATE_NS_MIN))
}

/// What is told.
struct Facts<'a> {
    arguments: &'a Replay,
    replayed: &'a Replayed,
    device: &'a str,
    /// What earlier legs came to, and what all did.
    before: &'a State,
    state: &'a State,
    /// Requests of the trace.
    all: u64,
    bound_ns: u64,
}

/// Median, tails and longest.
fn times(times: &Times) -> String {
    if times.count() == 0 {
        return "-".to_owned();
    }
    let at = |percent| time(times.percentile_ns(percent) as f64);
    format!(
        "mean {}, median {}, p90 {}, p99 {}, p99.9 {}, max {}",
        time(times.mean_ns().unwrap_or(0.0)),
        at(50.0),
        at(90.0),
        at(99.0),
        at(99.9),
        time(times.max_ns() as f64)
    )
}

fn times_json(times: &Times) -> Value {
    let at = |percent| (times.count() > 0).then(|| times.percentile_ns(percent));
    json!({
        "count": times.count(), "mean_ns": times.mean_ns(), "p50_ns": at(50.0), "p90_ns": at(90.0),
        "p99_ns": at(99.0), "p999_ns": at(99.9), "max_ns": (times.count() > 0).then(|| times.max_ns()),
    })
}

impl Facts<'_> {
    fn pacing(&self) -> String {
        let speed = self.arguments.speed.unwrap_or(1.0);
        match pacing(self.arguments) {
            Pacing::Open => format!("open loop, speed {speed}"),
            Pacing::Closed(most) => format!("closed loop, {most} under way"),
            Pacing::Dependent => format!("by dependencies, speed {speed}"),
        }
    }

    /// Whether all was read back that must be.
    fn is_checked(&self) -> bool {
        !self.arguments.verify || self.replayed.is_read_back
    }

    /// Commands under way at most, where that is fewer than was asked for.
    fn depth(&self) -> Option<String> {
        let (depth, asked) = (self.replayed.depth, self.arguments.depth);
        let closed = self.arguments.closed.filter(|most| *most > u32::from(depth));
        if depth >= asked && closed.is_none() {
            return None;
        }
        let why = match closed {
            Some(most) if depth >= asked => format!("--closed asks for {most}, and --depth permits no more"),
            _ => {
                let memory = if self.arguments.verify { ", or the memory of --verify," } else { "" };
                format!("--depth asks for {asked}, and a queue of the target{memory} has no room for more")
            }
        };
        Some(format!("{depth} commands under way at most: {why}"))
    }

    /// Seconds from the first deadline, or submission, to the last completion.
    fn seconds(&self) -> f64 {
        let first = self.replayed.due_ns.or(self.replayed.submitted_ns).map_or(0, |(first, _)| first);
        self.replayed.end_ns.saturating_sub(first) as f64 / 1e9
    }

    fn text(&self) -> String {
        let Replayed { completed, failed, lost, left_out, .. } = *self.replayed;
        let mut text = String::new();
        let mut line = |head: &str, rest: String| text += &format!("{head:<12}{rest}\n");
        line("target", self.device.to_owned());
        line("pacing", self.pacing());
        if let Some(depth) = self.depth() {
            line("depth", depth);
        }
        let before = self.before.done;
        let before = if before > 0 { format!(", {before} before") } else { String::new() };
        line(
            "requests",
            format!("{} in all{before}: {completed} completed, {failed} failed, {lost} lost", self.all),
        );
        let (read, written) = (size(self.replayed.read_bytes), size(self.replayed.written_bytes));
        line("data", format!("{read} read, {written} written, in {:.3} s", self.seconds()));
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{}/s", short(rate)));
        if self.replayed.lateness.count() > 0 {
            let (asked, got) = (self.replayed.asked_per_s(), self.replayed.got_per_s());
            line("rate", format!("{} asked, {} got", rate(asked), rate(got)));
            line("lateness", times(&self.replayed.lateness));
        } else {
            line("rate", rate(self.replayed.got_per_s()));
        }
        line("response", times(&self.replayed.response));
        line("  recorded", times(&self.replayed.recorded_response));
        line("service", times(&self.replayed.service));
        line("  recorded", times(&self.replayed.recorded_service));
        let counts = [
            (self.replayed.widened, "requests were widened to whole blocks"),
            (self.replayed.moved, "requests lie elsewhere than in the trace"),
            (left_out, "discards were left out, which the device does not offer"),
            (self.replayed.held, "requests waited for one that they overlap"),
            (self.replayed.unchecked_blocks, "blocks were read whose content is not known"),
            (self.before.failed, "requests failed before this command went on"),
            (self.before.left_out, "discards were left out before that"),
        ];
        for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
            line("", format!("{count} {what}"));
        }
        if self.arguments.verify {
            let but = if self.is_checked() { "" } else { "; not all was read back" };
            line("verified", format!("{} blocks are what was written{but}", self.replayed.checked_blocks));
        }
        if !self.state.is_on_time() {
            let State { late, timed, .. } = self.state;
            text += &format!(
                "not a replay: {late} of {timed} requests were given to the device more than {} after their time, and \
                 one in a hundred may be\n",
                time(self.bound_ns as f64)
            );
        }
        text
    }

    fn json(&self, ended: &Ended) -> Value {
        let Replayed { completed, failed, lost, left_out, widened, moved, held, .. } = *self.replayed;
        let is_done = ended.error.is_none() && self.state.done == self.all && self.is_checked();
        let is_whole = is_done && failed == 0 && self.state.failed == 0;
        json!({
            "trace": self.arguments.trace.display().to_string(), "target": self.device, "pacing": self.pacing(),
            "is_replay": is_whole && self.state.is_on_time(),
            "error": ended.error.as_ref().map(ToString::to_string),
            "requests": self.all, "done_before": self.before.done, "done": self.state.done,
            "depth": self.replayed.depth,
            "all_legs": {
                "failed": self.state.failed, "left_out": self.state.left_out, "timed": self.state.timed,
                "late": self.state.late,
            },
            "completed": completed, "failed": failed, "lost": lost, "left_out": left_out,
            "widened": widened, "moved": moved, "held": held,
            "read_bytes": self.replayed.read_bytes, "written_bytes": self.replayed.written_bytes,
            "is_read_back": self.arguments.verify.then_some(self.replayed.is_read_back),
            "checked_blocks": self.replayed.checked_blocks, "unchecked_blocks": self.replayed.unchecked_blocks,
            "seconds": self.seconds(),
            "asked_per_s": self.replayed.asked_per_s(), "got_per_s": self.replayed.got_per_s(),
            "late_bound_ns": self.bound_ns,
            "lateness": times_json(&self.replayed.lateness),
            "response": times_json(&self.replayed.response),
            "service": times_json(&self.replayed.service),
            "recorded_response": times_json(&self.replayed.recorded_response),
            "recorded_service": times_json(&self.replayed.recorded_service),
        })
    }
}
