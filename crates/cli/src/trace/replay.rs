//! `nvmed trace replay`: a trace on a device, or calls on files made again.

mod calls;
mod leg;
mod progress;
mod result;

pub(crate) use calls::make_calls;

use super::arguments::Replay;
use crate::failure::{Failure, Status};
use crate::format::{held, refuse, refuse_read_only};
use crate::location::parse_spec;
use crate::paths::Paths;
use crate::status_line::StatusLine;
use crate::stop::{self, STOP};
use leg::Leg;
use nvmed_engine::Engine;
use nvmed_io::{Device, DeviceOptions};
use nvmed_replay::{Identity, Pacing, Remap, Replay as Replayer, ReplayError, ReplayOptions, State, Survey};
use nvmed_stack::{DeviceSpec, DriveProfile, Medium, Open, StackError};
use nvmed_trace::Catalogue;
use std::sync::Arc;

/// The command, in messages.
const COMMAND: &str = "trace replay";

/// Replays a trace.
///
/// # Errors
/// The trace cannot be read or the device not used, the device holds something, or what is asked for does not fit
/// them; requests failed, came late, or read what was not written; or it was stopped.
pub fn run(arguments: &Replay) -> Result<(), Failure> {
    if arguments.calls {
        return calls::replay_calls(arguments);
    }
    let name = arguments.target.to_string_lossy().into_owned();
    let spec = parse_spec(&name)?;
    check(arguments, &spec)?;
    let signals = stop::take(COMMAND)?;
    let contents = Contents::of(arguments)?;
    let engine = open(arguments, &spec, &name)?;
    let identity = identity(arguments, &spec, &contents, &*engine);
    let state = arguments.state.as_ref().map(|path| State::load(path, &identity));
    let mut state = state.transpose().map_err(|error| failure(&name, &error))?.flatten().unwrap_or_default();
    if state.done >= contents.survey.requests {
        let but = if arguments.verify { ", but not that all they wrote was read back" } else { "" };
        let what = format!("the state says that all requests are done{but}; remove it to begin anew");
        return Err(Failure::new(Status::Failed, format!("{COMMAND}: {what}")));
    }
    // Between two legs a device may have been given something else to hold.
    state.may_destroy |= arguments.destroy_data;
    protect((arguments, state.may_destroy), &spec, &contents.survey, (&engine, &name))?;
    let options = options(arguments, &state);
    let mut replayer =
        Replayer::new(&engine, &contents.survey, options).map_err(|error| failure(&name, &error))?;
    stop::watch(COMMAND, signals)?;
    if state.done == 0 && (arguments.fill || is_filled(&spec) && contents.survey.reads > 0) {
        let mut status = StatusLine::every(0);
        status.show(|_| format!("nvmed: {name}: written once before, so that reads find something"));
        let filled = replayer.fill(&STOP).map_err(|error| failure(&name, &error));
        status.end();
        filled?;
    }
    let bound_ns = result::bound_ns(arguments, &contents);
    let leg = Leg { arguments, contents: &contents, identity: &identity, state, bound_ns };
    let ended = leg.run(replayer)?;
    result::tell(arguments, &contents, (&spec, &name), &state, &ended)
}

/// What is in a trace, which was read once to know it.
pub(crate) struct Contents {
    /// What it asks for.
    pub survey: Survey,
    /// The names in all of it.
    pub names: Catalogue,
}

impl Contents {
    fn of(arguments: &Replay) -> Result<Self, Failure> {
        let mut survey = Survey::default();
        let (names, _) =
            super::files::read_once(&arguments.trace, &arguments.reading, |request| survey.push(request))?;
        Ok(Self { survey, names })
    }
}

/// What cannot work, before anything is opened.
fn check(arguments: &Replay, spec: &DeviceSpec) -> Result<(), Failure> {
    let usage = |what: &str| Err(Failure::usage(format!("{COMMAND}: {what}")));
    super::files::readable_again(&arguments.trace)?;
    if arguments.state.is_some() && !spec.is_lasting() {
        return usage("what is in this device ends with the command, so that --state could not go on there");
    }
    if arguments.realtime && nvmed_lab::machine::cores() < 2 {
        return usage("--realtime would keep the only processor from everything else");
    }
    keep_apart(arguments, spec)
}

/// What is written becomes a file by a rename, so none of it may be what is read, or the device, or what else is
/// written.
fn keep_apart(arguments: &Replay, spec: &DeviceSpec) -> Result<(), Failure> {
    Paths::default()
        .uses(spec)
        .reads_trace(&arguments.trace)
        .writes(arguments.output.as_deref(), "-o")
        .writes(arguments.state.as_deref(), "--state")
        .check(COMMAND)
}

fn open(arguments: &Replay, spec: &DeviceSpec, name: &str) -> Result<Arc<dyn Engine>, Failure> {
    let opened = nvmed_stack::open_engine(spec, Open::Existing { locked_by_run: false });
    opened.map_err(|error| {
        let is_profile = matches!(error, StackError::Media { .. }) && DriveProfile::named(name).is_ok();
        if is_profile && !std::path::Path::new(name).exists() {
            let trace = arguments.trace.display();
            return Failure::usage(format!(
                "{COMMAND}: {name} is a profile, no device: nvmed trace simulate {trace} --profile {name}, or replay \
                 on 'virtual:?media=dram,size=SIZE,profile={name}'"
            ));
        }
        error.into()
    })
}

/// A device that holds something is not written by a slip; one that takes no writes is not asked to.
fn protect(
    (arguments, may_destroy): (&Replay, bool),
    spec: &DeviceSpec,
    survey: &Survey,
    (engine, name): (&Arc<dyn Engine>, &str),
) -> Result<(), Failure> {
    if !is_written(arguments, survey) || !spec.is_lasting() {
        return Ok(());
    }
    let look = DeviceOptions { queues: 1, depth: 1 };
    let device = Device::open(Arc::clone(engine), look).map_err(|error| failure(name, &error.into()))?;
    refuse_read_only(COMMAND, name, &device)?;
    match held(&device, name)?.filter(|_| !may_destroy) {
        Some(what) => Err(refuse(COMMAND, name, what, "--destroy-data")),
        None => Ok(()),
    }
}

/// Whether something of the device is lost by the replay.
fn is_written(arguments: &Replay, survey: &Survey) -> bool {
    survey.changes_data() || arguments.fill
}

/// Memory of this process that nothing was written into yet is not there: the first touch of it is slow. A drive with a
/// profile is left as new as it is.
fn is_filled(spec: &DeviceSpec) -> bool {
    let DeviceSpec::Virtual(spec) = spec else { return false };
    spec.medium == Medium::Dram && spec.behaviour.profile.is_none()
}

fn options(arguments: &Replay, state: &State) -> ReplayOptions {
    ReplayOptions {
        pacing: pacing(arguments),
        speed: arguments.speed.unwrap_or(1.0),
        depth: arguments.depth,
        remap: match arguments.remap.as_str() {
            "modulo" => Remap::Modulo,
            "scale" => Remap::Scale,
            _ => Remap::Refuse,
        },
        shift_bytes: arguments.offset,
        verify: arguments.verify,
        seed: arguments.seed,
        done: state.done,
        legs: state.legs,
        elapsed_ns: state.elapsed_ns,
    }
}

fn pacing(arguments: &Replay) -> Pacing {
    match arguments.closed {
        Some(most) => Pacing::Closed(most),
        None if arguments.dependent => Pacing::Dependent,
        None => Pacing::Open,
    }
}

/// What a state must agree with: everything that decides which bytes are written where, and when, and what is late.
fn identity(arguments: &Replay, spec: &DeviceSpec, contents: &Contents, engine: &dyn Engine) -> Identity {
    let geometry = engine.geometry();
    let Replay { remap, offset, verify, fill, .. } = arguments;
    let speed = arguments.speed.unwrap_or(1.0);
    Identity {
        trace: contents.survey.digest(),
        target: format!("{spec}, serial number {}, {} bytes", geometry.serial, geometry.bytes()),
        options: format!(
            "{:?} speed {speed} remap {remap} offset {offset} {:?} verify {verify} fill {fill} output {:?} to {} \
             late_bound_ns {}",
            pacing(arguments),
            arguments.reading.selection(),
            arguments.output,
            arguments.to_format.name(),
            result::bound_ns(arguments, contents)
        ),
        seed: arguments.seed,
    }
}

pub(crate) fn failure(name: &str, error: &ReplayError) -> Failure {
    Failure::new(Status::Failed, format!("{COMMAND}: {name}: {error}"))
}
