//! Files of traces: opened and written, and what is said of them.

use super::arguments::Reading;
use crate::failure::{Failure, Status};
use crate::paths::place;
use nvmed_trace::{
    Catalogue, Counts, Format, MalformedLine, Options, OutputFile, Request, Source, TraceError, Unpaired,
    Written, shown,
};
use std::collections::HashSet;
use std::path::Path;

/// What is said of a trace that cannot be read or written.
pub(super) fn failure(error: TraceError) -> Failure {
    let status = if matches!(error, TraceError::OnlyRead(_)) { Status::Usage } else { Status::Failed };
    let with = match error {
        TraceError::Calls { .. } => " (nvmed trace replay --calls)",
        TraceError::OnlyRead(_) => " (nvmed trace formats has those that are written)",
        _ => "",
    };
    Failure::new(status, shown(&error.to_string()) + with)
}

/// Opens a trace as it is to be read.
///
/// # Errors
/// It is no trace.
pub(super) fn open(path: &Path, reading: &Reading) -> Result<Source, Failure> {
    let options = Options { format: reading.format, tolerance: reading.malformed.unwrap_or_default() };
    let source = Source::open(place(path), &options).map_err(failure)?;
    Ok(source.selecting(&reading.selection()))
}

/// Reads a trace once before it is used, and says what of it is not, and that its devices become one. The names in all
/// of it, and of how many devices its requests are.
///
/// # Errors
/// The trace cannot be read.
pub(super) fn read_once(
    path: &Path,
    reading: &Reading,
    mut each: impl FnMut(&Request),
) -> Result<(Catalogue, u64), Failure> {
    let mut source = open(path, reading)?;
    let mut devices = HashSet::new();
    while let Some(request) = source.next().map_err(failure)? {
        each(&request);
        devices.insert(request.device);
    }
    report(path, &source);
    let devices = devices.len() as u64;
    tell_devices(path, devices);
    Ok((source.names().clone(), devices))
}

/// Refuses what can be read only once, before anything is opened.
///
/// # Errors
/// It is a pipe, a socket or a terminal.
pub(super) fn readable_again(path: &Path) -> Result<(), Failure> {
    if !nvmed_replay::is_stream(place(path)) {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::usage(format!(
        "{path}: a trace is read more than once here, and a pipe cannot be; save it first"
    )))
}

/// Writes a text, which is there when it is whole.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    OutputFile::write(path, text.as_bytes()).map_err(|error| {
        Failure::new(Status::Failed, format!("{}: {error}; nothing was left there", path.display()))
    })
}

/// `1 line`, `2 lines`, `3 processes`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let ending = match (count, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{ending}")
}

/// Devices whose other names are told; of more, how many they are.
const RENAMED_TOLD: usize = 100;

/// Says on standard error what is not in a file, or not as it was.
pub(super) fn tell(path: &Path, format: &Format, written: &Written) {
    let (path, format) = (shown(&path.display().to_string()), format.name());
    if written.left_out > 0 {
        eprintln!(
            "nvmed: {path}: {} left out, which {format} cannot say",
            counted(written.left_out, "request")
        );
    }
    if written.joined_devices > 1 {
        eprintln!(
            "nvmed: {path}: {} are one in it, since {format} has none",
            counted(written.joined_devices, "device")
        );
    }
    let renamed = written.renamed.len();
    if renamed > 0 {
        eprintln!(
            "nvmed: {path}: {} renamed, since {format} cannot say the name:",
            counted(renamed as u64, "device")
        );
    }
    for (name, label) in written.renamed.iter().take(RENAMED_TOLD) {
        eprintln!("  {} is {}", shown(name), shown(label));
    }
    if renamed > RENAMED_TOLD {
        eprintln!("  and {} more", renamed - RENAMED_TOLD);
    }
}

/// Says on standard error what of a trace was not used.
pub(super) fn report(path: &Path, source: &Source) {
    report_counts(path, source.counts(), source.malformed());
}

/// The same, of what was counted.
pub(super) fn report_counts(path: &Path, counts: Counts, malformed: &[MalformedLine]) {
    unpaired(path, &counts.unpaired);
    let path = shown(&path.display().to_string());
    if let Some(said) = malformed_lines(counts) {
        eprintln!("nvmed: {path}: {said}:");
        for line in malformed {
            eprintln!("  {line}");
        }
        let more = counts.malformed - malformed.len() as u64;
        if more > 0 {
            eprintln!("  and {more} more");
        }
    }
}

/// How many lines were malformed, if any was.
fn malformed_lines(counts: Counts) -> Option<String> {
    let late = if counts.late > 0 { format!(", {} of them late", counts.late) } else { String::new() };
    let malformed = counted(counts.malformed, "line");
    (counts.malformed > 0).then(|| format!("{malformed} malformed, of {}{late}", counts.lines))
}

/// What of a trace was not used, a sentence each, for a page.
pub(super) fn unused(counts: Counts) -> Vec<String> {
    unpaired_said(&counts.unpaired).chain(malformed_lines(counts)).collect()
}

/// Says on standard error that a drive, or each of a sweep, is given the requests of all devices of a trace.
pub(super) fn tell_devices(path: &Path, devices: u64) {
    if devices > 1 {
        let path = shown(&path.display().to_string());
        eprintln!("nvmed: {path}: its {devices} devices become one; --device NAME takes one of them");
    }
}

/// Says on standard error what of a trace of events has no partner.
pub(super) fn unpaired(path: &Path, unpaired: &Unpaired) {
    let path = shown(&path.display().to_string());
    unpaired_said(unpaired).for_each(|said| eprintln!("nvmed: {path}: {said}"));
}

fn unpaired_said(unpaired: &Unpaired) -> impl Iterator<Item = String> {
    let all = [
        (unpaired.completions, "completion", "left out, whose issue was not seen"),
        (unpaired.arrivals, "arrival", "left out of what was not issued"),
        (unpaired.unfinished, "request", "of which no completion was seen"),
        (unpaired.without_arrival, "request", "whose arrival was not seen: arrived when issued"),
        (unpaired.beside_lost, "event", "left out, since others beside them were lost"),
    ];
    let there = all.into_iter().filter(|(count, ..)| *count > 0);
    there.map(|(count, noun, what)| format!("{} {what}", counted(count, noun)))
}
