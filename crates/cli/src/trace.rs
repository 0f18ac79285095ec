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
use crate::paths::Paths;
use arguments::{Convert, Show, TraceCommand};
use files::{counted, failure, open, report, tell};
use nvmed_trace::{FORMATS, Flags, Request, Sink, Source, shown};
use std::io::IsTerminal;

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
    out.text(&format!("{:<13} {:<5} {:<4} what, and its times\n", "name", "in", "out"))?;
    for format in &FORMATS {
        let read = if format.has_calls() { "calls" } else { "yes" };
        let written = if format.is_written() { "yes" } else { "no" };
        let (name, times, what) = (format.name(), format.times(), format.what());
        out.text(&format!("{name:<13} {read:<5} {written:<4} {what}\n{:24} {times}\n", ""))?;
    }
    out.finish()
}

fn show(arguments: &Show) -> Result<(), Failure> {
    let mut source = open(&arguments.file, &arguments.reading)?;
    let mut out = Output::new();
    let mut lines = Lines { aligned: std::io::stdout().is_terminal(), ..Lines::default() };
    let (mut first_ns, mut last_ns, mut rows) = (u64::MAX, 0, 0);
    let mut has_more = false;
    while let Some(request) = source.next().map_err(failure)? {
        if rows == arguments.rows {
            has_more = true;
            break;
        }
        if rows == 0 {
            lines.push(TITLES.map(str::to_owned), &mut out)?;
        }
        rows += 1;
        lines.push(row(&request, &source), &mut out)?;
        first_ns = first_ns.min(request.arrival_ns);
        last_ns = last_ns.max(request.finish_ns.unwrap_or(request.arrival_ns));
    }
    lines.end(&mut out)?;
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

/// The columns of a request.
const TITLES: [&str; 9] =
    ["arrival_s", "wait_us", "response_us", "op", "offset", "bytes", "device", "process", "flags"];
/// Lines that are aligned together: a screen and more, so that no trace is held.
const ALIGNED_LINES: usize = 256;

/// Lines of requests: aligned on a terminal, else with tabs, for programs.
#[derive(Default)]
struct Lines {
    aligned: bool,
    held: Vec<[String; TITLES.len()]>,
}

impl Lines {
    fn push(&mut self, line: [String; TITLES.len()], out: &mut Output) -> Result<(), Failure> {
        if !self.aligned {
            return out.text(&(line.join("\t") + "\n"));
        }
        self.held.push(line);
        if self.held.len() == ALIGNED_LINES { self.end(out) } else { Ok(()) }
    }

    /// Writes what is held.
    fn end(&mut self, out: &mut Output) -> Result<(), Failure> {
        let length = |cell: &String| cell.chars().count();
        let width = |column: usize| self.held.iter().map(|line| length(&line[column])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
        for line in self.held.drain(..) {
            let mut text = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                // Numbers end, and words begin, one below the other.
                text += &match column {
                    0..=2 | 4 | 5 => format!("{cell:>width$} "),
                    _ => format!("{cell:<width$} "),
                };
            }
            out.text(&format!("{}\n", text.trim_end()))?;
        }
        Ok(())
    }
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
fn row(request: &Request, source: &Source) -> [String; TITLES.len()] {
    let arrival = request.arrival_ns;
    let after = |time: Option<u64>| time.map_or("-".to_owned(), |time| us(time - arrival));
    let names = source.names();
    [
        format!("{}.{:09}", arrival / 1_000_000_000, arrival % 1_000_000_000),
        after(request.start_ns),
        after(request.finish_ns),
        request.op.name().to_owned(),
        request.offset.to_string(),
        request.bytes.to_string(),
        shown(names.devices.name(request.device)),
        shown(names.processes.name(request.process)),
        flags(request),
    ]
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
    let paths = Paths::default().reads_trace(&arguments.from).writes(Some(&arguments.to), "OUT");
    paths.check("trace convert")?;
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
