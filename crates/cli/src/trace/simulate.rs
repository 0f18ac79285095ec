//! `nvmed trace simulate`: a trace on simulated drives, side by side.

use super::arguments::Simulate;
use super::spare;
use crate::failure::{Failure, Status};
use crate::output::Output;
use crate::paths::Paths;
use nvmed_flash::Profile;
use nvmed_replay::{Simulated, Simulation};
use nvmed_report::Traced;
use nvmed_stack::DriveProfile;
use nvmed_trace::{Analysis, Catalogue, Cell, Request, Row, Sink, Summary, Timeline};
use serde_json::{Value, json};
use std::iter::from_fn;

/// What a drive did with the trace.
struct Found {
    profile: String,
    row: Row,
    simulated: Simulated,
    /// For the page.
    summary: Summary,
    timeline: Option<Timeline>,
}

/// Gives a trace to drives, and says what they did.
///
/// # Errors
/// The trace cannot be read, there is no such profile or drive, or the file cannot be written.
pub fn run(arguments: &Simulate) -> Result<(), Failure> {
    if arguments.output.is_some() && arguments.profile.len() > 1 {
        return Err(Failure::usage("--output has room for the times of one drive: name one --profile"));
    }
    let profiles = arguments.profile.iter().filter(|name| DriveProfile::is_file(name));
    let paths = profiles.fold(Paths::default(), |paths, file| paths.reads(file.as_ref(), "a profile"));
    let paths = paths.reads_trace(&arguments.file).writes(arguments.output.as_deref(), "-o");
    paths.writes(arguments.html.as_deref(), "--html").check("trace simulate")?;
    let drives = arguments.profile.iter().map(|name| drive(name, arguments.size));
    let drives = drives.collect::<Result<Vec<(Option<f64>, Profile)>, Failure>>()?;
    super::files::readable_again(&arguments.file)?;
    let known = super::files::read_once(&arguments.file, &arguments.reading, |_| {})?;
    let found = arguments
        .profile
        .iter()
        .zip(&drives)
        .map(|(name, (_, drive))| simulate(arguments, name, drive, &known));
    let found = found.collect::<Result<Vec<Found>, Failure>>()?;
    if let Some(path) = &arguments.html {
        let traced = found.iter().map(|one| Traced {
            summary: &one.summary,
            timeline: one.timeline.as_ref(),
            remarks: &[],
        });
        super::files::write_whole(path, &nvmed_report::report(&traced.collect::<Vec<_>>()))?;
    }
    let mut out = Output::new();
    if arguments.json {
        let drives: Vec<Value> = found.iter().map(Found::json).collect();
        let trace = arguments.file.display().to_string();
        out.text(&format!("{:#}\n", json!({ "trace": trace, "used": arguments.used, "drives": drives })))?;
    } else {
        out.text(&table(&found))?;
    }
    for (one, (spare, _)) in found.iter().zip(&drives) {
        if let Some(percent) = spare {
            let (name, what) = (&one.profile, spare::WHAT_IT_DOES);
            eprintln!("nvmed: {name}: --size leaves its flash as it is, {percent:.0} % of it spare: {what}");
        }
        let Simulated { refused, moved, .. } = one.simulated;
        if refused > 0 {
            let refused = super::files::counted(refused, "command");
            eprintln!("nvmed: {}: the drive is worn out, and refused {refused}", one.profile);
        }
        if moved > 0 {
            let moved = super::files::counted(moved, "request");
            eprintln!("nvmed: {}: {moved} beyond the end of the drive, moved to its beginning", one.profile);
        }
    }
    out.finish()
}

/// A drive, and how much of its flash is spare since its size is small, in percent.
fn drive(name: &str, size: Option<u64>) -> Result<(Option<f64>, Profile), Failure> {
    let failure = |fault: nvmed_stack::ProfileFault| Failure::usage(fault.to_string());
    let profile = DriveProfile::named(name).map_err(failure)?;
    let drive = profile.drive(size.unwrap_or_else(|| profile.usual_bytes())).map_err(failure)?;
    Ok((spare::percent(&profile, &drive), drive))
}

fn simulate(
    arguments: &Simulate,
    name: &str,
    drive: &Profile,
    (names, devices): &(Catalogue, u64),
) -> Result<Found, Failure> {
    let failed = |error: nvmed_flash::ProfileError| Failure::new(Status::Failed, format!("{name}: {error}"));
    let simulation = Simulation::new(drive, arguments.used).map_err(failed)?;
    let open = || super::files::open(&arguments.file, &arguments.reading);
    let (mut first, mut second) = (open()?, open()?);
    let sink = arguments.output.as_ref().map(|path| Sink::create(path, arguments.to_format));
    let mut sink = sink.transpose().map_err(super::files::failure)?;
    let mut analysis = Analysis::default();
    let mut timeline = arguments.html.as_ref().map(|_| Timeline::default());
    // One drive is one device: what waits for another request waits for any.
    let joined = |request: Request| match *devices {
        0 | 1 => request,
        _ => Request { device: 0, ..request },
    };
    let first = from_fn(|| first.next().transpose());
    let second = from_fn(|| second.next().map(|next| next.map(joined)).transpose());
    let write = |request: Request| {
        analysis.push(&request);
        timeline.iter_mut().for_each(|timeline| timeline.push(&request));
        sink.as_mut().map_or(Ok(()), |sink| sink.write(&request, names))
    };
    let simulated = simulation.serve(first, second, write).map_err(super::files::failure)?;
    if let Some(sink) = sink {
        let written = sink.finish(names).map_err(super::files::failure)?;
        if let Some(path) = &arguments.output {
            super::files::tell(path, arguments.to_format, &written);
        }
    }
    // On the page a drive is called what it was asked for by, and its devices and processes what the trace calls them.
    let summary = analysis.finish().named(name, &names.devices, &names.processes);
    Ok(Found { profile: name.to_owned(), row: summary.all.row.clone(), simulated, summary, timeline })
}

impl Found {
    fn json(&self) -> Value {
        let Simulated { requests, written_bytes, moved, refused, counts, .. } = self.simulated;
        json!({
            "profile": self.profile,
            "requests": requests,
            "mean_response_ms": self.row.get(Cell::Response),
            "mean_service_ms": self.row.get(Cell::Service),
            "nowait_pct": self.row.get(Cell::NoWait),
            "written_bytes": written_bytes,
            "space_utilisation_pct": 100.0 * self.simulated.utilization(),
            "write_amplification": counts.amplification(),
            "page_reads": counts.page_reads,
            "programs": counts.programs,
            "moved_units": counts.moved_units,
            "erases": counts.erases,
            "beyond_the_drive": moved,
            "refused": refused,
        })
    }
}

/// A line a drive.
fn table(found: &[Found]) -> String {
    let mut text = format!(
        "{:<12} {:>9} {:>11} {:>10} {:>9} {:>7} {:>6} {:>8}\n",
        "profile", "requests", "response ms", "service ms", "no wait %", "space %", "ampl.", "erases"
    );
    for one in found {
        let cell = |cell: Cell| one.row.get(cell).map_or("-".to_owned(), |value| format!("{value:.3}"));
        let (simulated, counts) = (&one.simulated, one.simulated.counts);
        text += &format!(
            "{:<12} {:>9} {:>11} {:>10} {:>9} {:>7.1} {:>6.2} {:>8}\n",
            one.profile,
            simulated.requests,
            cell(Cell::Response),
            cell(Cell::Service),
            cell(Cell::NoWait),
            100.0 * simulated.utilization(),
            counts.amplification(),
            counts.erases
        );
    }
    text
}
