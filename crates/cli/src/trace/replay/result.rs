//! What a replay found, for people and as JSON; and whether it was one.

use super::leg::Ended;
use super::{COMMAND, Surveyed, failure, pacing};
use crate::failure::{Failure, Status};
use crate::inspect::size;
use crate::output::Output;
use crate::trace::arguments::Replay;
use nvmed_chart::{short, time};
use nvmed_replay::{Pacing, Replayed, Times};
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
    surveyed: &Surveyed,
    (spec, name): (&DeviceSpec, &str),
    before: u64,
    ended: &Ended,
) -> Result<(), Failure> {
    let bound_ns = bound_ns(arguments, surveyed);
    let replayed = &ended.replayed;
    let device = spec.to_string();
    let facts =
        Facts { arguments, replayed, device: &device, before, all: surveyed.survey.requests, bound_ns };
    let mut out = Output::new();
    out.text(&if arguments.json { format!("{:#}\n", facts.json(ended)) } else { facts.text() })?;
    out.finish()?;
    let failed = |what: String| Err(Failure::new(Status::Failed, format!("{COMMAND}: {name}: {what}")));
    if let Some(error) = &ended.error {
        return Err(failure(name, error));
    }
    if replayed.stopped && ended.done < surveyed.survey.requests {
        let goes_on = match &arguments.state {
            Some(path) => format!("; the same command goes on there, by {}", path.display()),
            None => String::new(),
        };
        return failed(format!(
            "stopped after {} of {} requests{goes_on}",
            ended.done, surveyed.survey.requests
        ));
    }
    if let Some(error) = replayed.first_failure {
        return failed(format!("{} requests failed; the first one: {error}", replayed.failed));
    }
    if !replayed.is_on_time(bound_ns) {
        let cure = "take a lower --speed, a larger --depth, --realtime, or --closed; --late-bound sets another bound";
        return failed(format!(
            "requests were given to the device too late, so that this is no replay: {cure}"
        ));
    }
    Ok(())
}

/// How late 99 % of the requests may be.
fn bound_ns(arguments: &Replay, surveyed: &Surveyed) -> u64 {
    let gap = surveyed.survey.median_gap_ns() as f64 / arguments.speed.unwrap_or(1.0);
    let asked = arguments.late_bound.map(|bound| u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX));
    asked.unwrap_or((gap as u64).max(LATE_NS_MIN))
}

/// What is told.
struct Facts<'a> {
    arguments: &'a Replay,
    replayed: &'a Replayed,
    device: &'a str,
    /// Requests of earlier legs.
    before: u64,
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
        "count": times.count(), "mean": times.mean_ns(), "p50": at(50.0), "p90": at(90.0), "p99": at(99.0),
        "p99.9": at(99.9), "max": (times.count() > 0).then(|| times.max_ns()),
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
        let before = if self.before > 0 { format!(", {} before", self.before) } else { String::new() };
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
        ];
        for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
            line("", format!("{count} {what}"));
        }
        if self.arguments.verify {
            line("verified", format!("{} blocks are what was written", self.replayed.checked_blocks));
        }
        if !self.replayed.is_on_time(self.bound_ns) {
            let late = time(self.replayed.lateness.percentile_ns(99.0) as f64);
            text += &format!(
                "not a replay: one request in a hundred was given to the device {late} or more after its time, and {} \
                 is the bound\n",
                time(self.bound_ns as f64)
            );
        }
        text
    }

    fn json(&self, ended: &Ended) -> Value {
        let Replayed { completed, failed, lost, left_out, widened, moved, held, .. } = *self.replayed;
        let is_whole = ended.error.is_none() && ended.done == self.all && failed == 0;
        json!({
            "trace": self.arguments.trace.display().to_string(), "target": self.device, "pacing": self.pacing(),
            "is_replay": is_whole && self.replayed.is_on_time(self.bound_ns),
            "error": ended.error.as_ref().map(ToString::to_string),
            "requests": self.all, "done_before": self.before, "done": ended.done,
            "completed": completed, "failed": failed, "lost": lost, "left_out": left_out,
            "widened": widened, "moved": moved, "held": held,
            "read_bytes": self.replayed.read_bytes, "written_bytes": self.replayed.written_bytes,
            "checked_blocks": self.replayed.checked_blocks, "unchecked_blocks": self.replayed.unchecked_blocks,
            "seconds": self.seconds(),
            "asked_per_s": self.replayed.asked_per_s(), "got_per_s": self.replayed.got_per_s(),
            "late_bound_ns": self.bound_ns,
            "lateness_ns": times_json(&self.replayed.lateness),
            "response_ns": times_json(&self.replayed.response),
            "service_ns": times_json(&self.replayed.service),
            "recorded_response_ns": times_json(&self.replayed.recorded_response),
            "recorded_service_ns": times_json(&self.replayed.recorded_service),
        })
    }
}
