//! `nvmed trace`: block traces, recorded, shown, converted, analysed, synthesised, simulated, swept and replayed.

mod analyse;
pub mod arguments;
mod files;
mod record;
mod replay;
mod simulate;
mod spare;
mod sweep;
mod synthesise;

use crate::failure::Failure;
use crate::output::Output;
use arguments::{Convert, Show, TraceCommand};
use files::{counted, failure, open, report, tell};
use nvmed_trace::{FORMATS, Flags, Request, Sink, Source, shown};

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
    for (key, value) in source.provenance().iter() {
        out.text(&format!("{path}: {}: {}\n", shown(key), shown(value)))?;
    }
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
    sink.come_from(&source.provenance());
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
