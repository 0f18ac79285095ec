//! `nvmed trace`: block traces, recorded, shown, converted, analysed, synthesised, simulated, swept and replayed.

mod analyse;
pub mod arguments;
mod record;
mod replay;
mod simulate;
mod sweep;
mod synthesise;

use crate::failure::{Failure, Status};
use crate::output::Output;
use arguments::{Convert, Reading, Show, TraceCommand};
use nvmed_trace::{
    Counts, FORMATS, Flags, MalformedLine, Options, Request, Sink, Source, TraceError, Unpaired,
};
use std::path::Path;

pub(crate) use replay::make_calls;

/// Lists formats; records, shows, converts, analyses, synthesises, simulates, sweeps or replays a trace.
///
/// # Errors
/// A trace cannot be read or written.
pub fn trace(command: &TraceCommand) -> Result<(), Failure> {
    match command {
        TraceCommand::Record(arguments) => record::run(arguments),
        TraceCommand::Formats => formats(),
        TraceCommand::Show(arguments) => show(arguments),
        TraceCommand::Convert(arguments) => convert(arguments),
        TraceCommand::Analyse(arguments) => analyse::run(arguments),
        TraceCommand::Synthesise(arguments) => synthesise::run(arguments),
        TraceCommand::Simulate(arguments) => simulate::run(arguments),
        TraceCommand::Sweep(arguments) => sweep::run(arguments),
        TraceCommand::Replay(arguments) => replay::run(arguments),
    }
}

fn failure(error: TraceError) -> Failure {
    let status = if matches!(error, TraceError::OnlyRead(_)) { Status::Usage } else { Status::Failed };
    Failure::new(status, error.to_string())
}

fn open(path: &Path, reading: &Reading) -> Result<Source, Failure> {
    let options = Options { format: reading.format, tolerance: reading.malformed.unwrap_or_default() };
    Source::open(path, &options).map_err(failure)
}

fn formats() -> Result<(), Failure> {
    let mut out = Output::new();
    out.text(&format!("{:<14} {:<5} {:<4} {:<52} what\n", "name", "in", "out", "times"))?;
    for format in &FORMATS {
        let read = if format.has_calls() { "calls" } else { "yes" };
        let written = if format.is_written() { "yes" } else { "no" };
        let (name, times, what) = (format.name(), format.times(), format.what());
        out.text(&format!("{name:<14} {read:<5} {written:<4} {times:<52} {what}\n"))?;
    }
    out.finish()
}

fn show(arguments: &Show) -> Result<(), Failure> {
    let mut source = open(&arguments.file, &arguments.reading)?;
    let mut out = Output::new();
    out.text("arrival_s\tstart_us\tfinish_us\top\toffset\tbytes\tdevice\tprocess\tflags\n")?;
    let (mut first_ns, mut last_ns) = (u64::MAX, 0);
    while let Some(request) = source.next().map_err(failure)? {
        if source.counts().requests <= arguments.rows {
            out.text(&row(&request, &source))?;
        }
        first_ns = first_ns.min(request.arrival_ns);
        last_ns = last_ns.max(request.finish_ns.unwrap_or(request.arrival_ns));
    }
    let counts = source.counts();
    let duration_s = last_ns.saturating_sub(first_ns) as f64 / 1e9;
    out.text(&format!(
        "{}: {}: {} in {duration_s:.3} s, {}, {}\n",
        arguments.file.display(),
        source.format().name(),
        counted(counts.requests, "request"),
        // One that has no name is one.
        counted((source.names().devices.count() as u64 - 1).max(1), "device"),
        counted(source.names().processes.count() as u64 - 1, "named process"),
    ))?;
    out.finish()?;
    report(&arguments.file, &source);
    Ok(())
}

/// A request as a line: start and finish from its arrival on.
fn row(request: &Request, source: &Source) -> String {
    let arrival = request.arrival_ns;
    let after = |time: Option<u64>| time.map_or("-".to_owned(), |time| us(time - arrival));
    let names = source.names();
    let (device, process) =
        (plain(names.devices.name(request.device)), plain(names.processes.name(request.process)));
    format!(
        "{}.{:09}\t{}\t{}\t{}\t{}\t{}\t{device}\t{process}\t{}\n",
        arrival / 1_000_000_000,
        arrival % 1_000_000_000,
        after(request.start_ns),
        after(request.finish_ns),
        request.op.name(),
        request.offset,
        request.bytes,
        flags(request),
    )
}

/// `1 line`, `2 lines`, `3 processes`.
fn counted(count: u64, noun: &str) -> String {
    let ending = match (count, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{ending}")
}

fn us(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// A name that a stranger gave, for a terminal.
fn plain(name: &str) -> String {
    let name: String = name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}

fn flags(request: &Request) -> String {
    let all = [
        (request.flags.has(Flags::FUA), "fua"),
        (request.flags.has(Flags::SYNC), "sync"),
        (request.flags.has(Flags::META), "meta"),
        (request.flags.has(Flags::AHEAD), "ahead"),
        (request.waited == Some(true), "waited"),
        (request.waited == Some(false), "no-wait"),
    ];
    let said: Vec<&str> = all.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    if said.is_empty() { "-".to_owned() } else { said.join(",") }
}

fn convert(arguments: &Convert) -> Result<(), Failure> {
    let mut source = open(&arguments.from, &arguments.reading)?;
    let mut sink = Sink::create(&arguments.to, arguments.to_format).map_err(failure)?;
    while let Some(request) = source.next().map_err(failure)? {
        sink.write(&request, source.names()).map_err(failure)?;
    }
    let left_out = sink.finish(source.names()).map_err(failure)?;
    let (from, to) = (source.format().name(), arguments.to_format.name());
    let written = counted(source.counts().requests - left_out, "request");
    eprintln!("nvmed: {}: {written}, {from} to {to}", arguments.to.display());
    if left_out > 0 {
        let left_out = counted(left_out, "request");
        eprintln!("nvmed: {}: {left_out} left out, which {to} cannot say", arguments.to.display());
    }
    report(&arguments.from, &source);
    Ok(())
}

/// Says on standard error what of a trace was not used.
fn report(path: &Path, source: &Source) {
    report_counts(path, source.counts(), source.malformed());
}

/// The same, of what was counted.
fn report_counts(path: &Path, counts: Counts, malformed: &[MalformedLine]) {
    unpaired(path, &counts.unpaired);
    let path = path.display();
    if counts.malformed > 0 {
        let late = if counts.late > 0 { format!(", {} of them late", counts.late) } else { String::new() };
        eprintln!(
            "nvmed: {path}: {} malformed, of {}{late}:",
            counted(counts.malformed, "line"),
            counts.lines
        );
        for line in malformed {
            eprintln!("  {line}");
        }
        let more = counts.malformed - malformed.len() as u64;
        if more > 0 {
            eprintln!("  and {more} more");
        }
    }
}

/// Says on standard error what of a trace of events has no partner.
fn unpaired(path: &Path, unpaired: &Unpaired) {
    let all = [
        (unpaired.completions, "completion", "left out, whose issue was not seen"),
        (unpaired.arrivals, "arrival", "left out of what was not issued"),
        (unpaired.unfinished, "request", "of which no completion was seen"),
        (unpaired.without_arrival, "request", "whose arrival was not seen: arrived when issued"),
        (unpaired.beside_lost, "event", "left out, since others beside them were lost"),
    ];
    for (count, noun, what) in all.into_iter().filter(|(count, ..)| *count > 0) {
        eprintln!("nvmed: {}: {} {what}", path.display(), counted(count, noun));
    }
}

/// Writes a text, which is there when it is whole.
fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| {
        // It may never have been made.
        let _ = std::fs::remove_file(&part);
        Failure::new(Status::Failed, format!("{}: {error}", path.display()))
    })
}
