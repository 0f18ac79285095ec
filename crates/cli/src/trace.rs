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
    Counts, FORMATS, Flags, Format, MalformedLine, Options, OutputFile, Request, Sink, Source, TraceError,
    Unpaired, Written, shown,
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
    Failure::new(status, shown(&error.to_string()))
}

fn open(path: &Path, reading: &Reading) -> Result<Source, Failure> {
    let options = Options { format: reading.format, tolerance: reading.malformed.unwrap_or_default() };
    let source = Source::open(place(path), &options).map_err(failure)?;
    Ok(source.selecting(&reading.selection()))
}

/// Where a file is: `-` is standard input.
fn place(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("/dev/stdin") } else { path }
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
    out.text("arrival_s\twait_us\tresponse_us\top\toffset\tbytes\tdevice\tprocess\tflags\n")?;
    let (mut first_ns, mut last_ns, mut rows) = (u64::MAX, 0, 0);
    let mut has_more = false;
    while let Some(request) = source.next().map_err(failure)? {
        if rows == arguments.rows {
            has_more = true;
            break;
        }
        rows += 1;
        out.text(&row(&request, &source))?;
        first_ns = first_ns.min(request.arrival_ns);
        last_ns = last_ns.max(request.finish_ns.unwrap_or(request.arrival_ns));
    }
    let what = if has_more {
        match rows {
            1 => "the first request; there are more".to_owned(),
            _ => format!("the first {rows} requests; there are more"),
        }
    } else {
        whole(&source, rows, last_ns.saturating_sub(first_ns))
    };
    let path = shown(&arguments.file.display().to_string());
    out.text(&format!("{path}: {}: {what}\n", source.format().name()))?;
    out.finish()?;
    report(&arguments.file, &source);
    Ok(())
}

/// What there is of a trace that was read to its end.
fn whole(source: &Source, requests: u64, duration_ns: u64) -> String {
    let (devices, processes) = (source.names().devices.count(), source.names().processes.count());
    let mut text = format!(
        "{} in {:.3} s, {}",
        counted(requests, "request"),
        duration_ns as f64 / 1e9,
        // One that has no name is one.
        counted((devices as u64 - 1).max(1), "device")
    );
    if processes > 1 {
        text += &format!(", {}", counted(processes as u64 - 1, "named process"));
    }
    text
}

/// A request as a line: how long it waited for its start, and how long for its finish.
fn row(request: &Request, source: &Source) -> String {
    let arrival = request.arrival_ns;
    let after = |time: Option<u64>| time.map_or("-".to_owned(), |time| us(time - arrival));
    let names = source.names();
    let (device, process) =
        (shown(names.devices.name(request.device)), shown(names.processes.name(request.process)));
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
    let done = sink.finish(source.names()).map_err(failure)?;
    let (from, to) = (source.format().name(), arguments.to_format.name());
    let written = counted(source.counts().requests - done.left_out, "request");
    eprintln!("nvmed: {}: {written}, {from} to {to}", shown(&arguments.to.display().to_string()));
    tell(&arguments.to, arguments.to_format, &done);
    report(&arguments.from, &source);
    Ok(())
}

/// Devices whose other names are told; of more, how many they are.
const RENAMED_TOLD: usize = 100;

/// Says on standard error what is not in a file, or not as it was.
fn tell(path: &Path, format: &Format, written: &Written) {
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
fn report(path: &Path, source: &Source) {
    report_counts(path, source.counts(), source.malformed());
}

/// The same, of what was counted.
fn report_counts(path: &Path, counts: Counts, malformed: &[MalformedLine]) {
    unpaired(path, &counts.unpaired);
    let path = shown(&path.display().to_string());
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
    OutputFile::write(path, text.as_bytes())
        .map_err(|error| Failure::new(Status::Failed, format!("{}: {error}", path.display())))
}
