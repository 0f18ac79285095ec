//! The flash model beside MQSim (Tavakkol et al., FAST'18): the marginal cost of a flash command, of one trace.
//!
//! Both replay the trace once and twenty times; what nineteen more replays cost, over the flash commands that they
//! make, leaves out what it takes to begin. MQSim is not part of this repository: `NVMED_MQSIM` names its directory,
//! built.

use crate::flash::{Bench, operations, row};
use crate::row::{Contender, Goal, Row};
use nvmed_flash::{ArrayProfile, BlockKind, Command, Kind, Rate, TranslationProfile, Wear};
use nvmed_lab::machine::thread_cpu_ns;
use nvmed_lab::samples::Samples;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The row's name.
pub const NAME: &str = "flash.mqsim";
const VARIABLE: &str = "NVMED_MQSIM";
const TRACE: &str = "traces/tpcc-small.trace";
const RELAYS: u64 = 20;
const ROUNDS: usize = 5;
/// Of MQSim's `ssdconfig.xml` as it comes.
const PAGE_BYTES: u64 = 8192;

/// A request of the trace, in nanoseconds and bytes.
#[derive(Clone, Copy)]
struct Request {
    time: u64,
    command: Command,
}

/// Ours beside MQSim's.
pub fn measure() -> Result<Vec<Row>, String> {
    let Some(dir) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        println!("SKIPPED: {NAME}: {VARIABLE} does not name the directory of a built MQSim");
        return Ok(Vec::new());
    };
    let requests = requests(&dir.join(TRACE))?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let mut commands = (0, 0);
    for _ in 0..ROUNDS {
        let (once, often) = (replay(&requests, 1)?, replay(&requests, RELAYS)?);
        commands.0 = often.0 - once.0;
        ours.push((often.1 - once.1) as f64 / commands.0 as f64);
        let (once, often) = (mqsim(&dir, 1)?, mqsim(&dir, RELAYS)?);
        commands.1 = often.0 - once.0;
        theirs.push((often.1 - once.1) as f64 / commands.1 as f64);
    }
    let conditions = format!(
        "{TRACE}, 8 channels of 4 chips of 2 dies of 2 planes, pages of 8 KiB, no cache; replayed {RELAYS} times less \
         once; {} flash commands of ours, {} of MQSim's; processor time; {ROUNDS} rounds",
        commands.0, commands.1
    );
    let mut row = row(NAME, "ns a flash command", "flash model", ours, Goal::Ratio(0.1), conditions);
    row.rival = Some(Contender { name: "MQSim".to_owned(), samples: theirs });
    Ok(vec![row])
}

/// The requests of a trace: `ns device sector sectors type`, where 1 is a read.
fn requests(path: &Path) -> Result<Vec<Request>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let request = |line: &str| {
        let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let &[time, _, sector, sectors, kind] = &numbers[..] else { return None };
        let kind = if kind == 1 { Kind::Read } else { Kind::Write { fua: false } };
        Some(Request {
            time,
            command: Command { kind, start: sector * 512, bytes: sectors * 512, urgent: false },
        })
    };
    text.lines().map(|line| request(line).ok_or_else(|| format!("{}: `{line}`", path.display()))).collect()
}

/// Replays a trace so many times; flash commands, and the processor's nanoseconds.
fn replay(requests: &[Request], times: u64) -> Result<(u64, u64), String> {
    let array = drive();
    let pages = array.capacity_bytes / PAGE_BYTES;
    let mut bench = Bench::new(array)?;
    // As MQSim does: what a trace reads was written before.
    for request in requests.iter().filter(|request| request.command.kind == Kind::Read) {
        arrive(
            &mut bench,
            0,
            Command { kind: Kind::Write { fua: false }, ..whole_pages(request.command, pages) },
        )?;
    }
    finish(&mut bench);
    let (before, begin) = (operations(bench.flash.counts()), thread_cpu_ns());
    let (first, span) = (bench.flash.now(), requests.last().map_or(0, |last| last.time));
    for relay in 0..times {
        for request in requests {
            arrive(&mut bench, first + relay * span + request.time, whole_pages(request.command, pages))?;
        }
    }
    finish(&mut bench);
    Ok((operations(bench.flash.counts()) - before, thread_cpu_ns() - begin))
}

fn arrive(bench: &mut Bench, time: u64, command: Command) -> Result<(), String> {
    while bench.flash.advance(time).is_some() {}
    while !bench.flash.takes(false) {
        let _ = bench.flash.advance(u64::MAX).ok_or("a command did not complete")?;
    }
    let _ = bench.flash.arrive(time, &command);
    Ok(())
}

fn finish(bench: &mut Bench) {
    while bench.flash.advance(u64::MAX).is_some() {}
}

/// As MQSim does: what lies beyond the drive comes round. A page is read or programmed whole.
fn whole_pages(command: Command, pages: u64) -> Command {
    let (first, end) = (command.start / PAGE_BYTES, (command.start + command.bytes).div_ceil(PAGE_BYTES));
    let at = first % pages;
    Command { start: at * PAGE_BYTES, bytes: (end - first).min(pages - at) * PAGE_BYTES, ..command }
}

fn drive() -> ArrayProfile {
    ArrayProfile {
        capacity_bytes: 64 * 1900 * 256 * PAGE_BYTES / 10 * 9,
        channels: 8,
        chips: 4,
        dies: 2,
        planes: 2,
        bus_out: Rate::per_second(333_000_000),
        bus_in: Rate::per_second(333_000_000),
        link_out: Rate::per_second(4_000_000_000),
        link_in: Rate::per_second(4_000_000_000),
        blocks: vec![BlockKind {
            per_plane: 1900,
            page_bytes: PAGE_BYTES,
            pages: 256,
            read_ns: vec![75_000],
            program_ns: vec![750_000],
            erase_ns: 3_800_000,
            ..BlockKind::default()
        }],
        translation: Some(TranslationProfile {
            buffer_bytes: 0,
            wear: Wear::Off,
            ..TranslationProfile::default()
        }),
        ..ArrayProfile::default()
    }
}

/// MQSim's replay of so many times; flash commands, and the processor's nanoseconds.
fn mqsim(dir: &Path, times: u64) -> Result<(u64, u64), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", dir.display());
    let scenario = dir.join(format!("nvmed-{times}.xml"));
    let list = |count: u32| (0..count).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
    let mut text =
        String::from("<?xml version=\"1.0\" encoding=\"us-ascii\"?>\n<MQSim_IO_Scenarios><IO_Scenario>\n");
    text.push_str("<IO_Flow_Parameter_Set_Trace_Based>\n");
    for (name, value) in [
        ("Priority_Class", "HIGH".to_owned()),
        ("Device_Level_Data_Caching_Mode", "TURNED_OFF".to_owned()),
        ("Channel_IDs", list(8)),
        ("Chip_IDs", list(4)),
        ("Die_IDs", list(2)),
        ("Plane_IDs", list(2)),
        ("Initial_Occupancy_Percentage", "0".to_owned()),
        ("File_Path", TRACE.to_owned()),
        ("Percentage_To_Be_Executed", "100".to_owned()),
        ("Relay_Count", times.to_string()),
        ("Time_Unit", "NANOSECOND".to_owned()),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "<{name}>{value}</{name}>");
    }
    text.push_str("</IO_Flow_Parameter_Set_Trace_Based></IO_Scenario></MQSim_IO_Scenarios>\n");
    std::fs::write(&scenario, text).map_err(fail)?;
    let before = children_cpu_ns()?;
    let output = std::process::Command::new(dir.join("MQSim"))
        .args(["-i", "ssdconfig.xml", "-w"])
        .arg(&scenario)
        .current_dir(dir)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(fail)?;
    let cpu_ns = children_cpu_ns()? - before;
    let result = dir.join(format!("nvmed-{times}_scenario_1.xml"));
    let found = std::fs::read_to_string(&result).map_err(|error| {
        format!("{}: {error}; MQSim said: {}", result.display(), String::from_utf8_lossy(&output.stdout))
    })?;
    // A multi-plane command of two planes is two page operations.
    let commands =
        [("Read", 1), ("Multiplane_Read", 1), ("Program", 1), ("Multiplane_Program", 1), ("Erase", 1)]
            .map(|(kind, each)| each * attribute(&found, &format!("Issued_Flash_{kind}_CMD")));
    Ok((commands.iter().sum(), cpu_ns))
}

/// A number in MQSim's results.
fn attribute(text: &str, name: &str) -> u64 {
    let behind = text.split(&format!("{name}=\"")).nth(1);
    behind.and_then(|text| text.split('"').next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Processor time of the children that have ended, in steps of a clock tick.
pub(crate) fn children_cpu_ns() -> Result<u64, String> {
    const TICK_NS: u64 = 10_000_000;
    let text = std::fs::read_to_string("/proc/self/stat").map_err(|error| error.to_string())?;
    // Behind the name come the state and the rest: cutime and cstime are fields 16 and 17.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = fields.get(13..15).into_iter().flatten().map_while(|field| field.parse::<u64>().ok());
    Ok(ticks.sum::<u64>() * TICK_NS)
}
