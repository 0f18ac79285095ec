//! Implication 2: garbage collection while the device is idle.

use super::{PLANES, Served, Trace, Tried, changed, mean_ms, prepared, serve};
use crate::advice::{Advice, Evidence, Judgement};
use crate::error::LabError;
use crate::experiment::Effort;
use crate::samples::Samples;
use nvmed_flash::{ArrayProfile, Medium, Profile};
use nvmed_trace::{Op, Request};

/// Pauses that the paper takes for long enough to collect in.
const PAUSE_NS: u64 = 200_000_000;
/// A request that takes longer than on a new drive by more than this stalls: Table V's erase.
const STALL_NS: u64 = 3_800_000;

/// After how long without a command a device collects; it never does at 0.
const DELAYS_NS: [u64; 4] = [0, PAUSE_NS, 2_000_000_000, 20_000_000_000];
/// A device may collect for so long before the trace begins.
const NIGHT_NS: u64 = 3_600_000_000_000;

const RESPONSES: [&str; 9] =
    ["new ms", "must ms", "0.2 s ms", "2 s ms", "20 s ms", "WAF must", "WAF 0.2 s", "WAF 2 s", "WAF 20 s"];
const STALLS: [&str; 6] = ["idle %", "pauses", "must %", "0.2 s %", "2 s %", "20 s %"];
const NEW: usize = 0;
/// Columns of the first delay; the others follow.
const RESPONSE: usize = 1;
const WAF: usize = 5;
const IDLE: usize = 0;
const PAUSES: usize = 1;
const STALL: usize = 2;

/// A used drive that was let alone for a night, and then given the trace.
fn after_a_night(profile: &Profile, requests: &[Request]) -> Result<Served, LabError> {
    let mut simulation = prepared(profile, true, requests)?;
    let begin_ns = requests.first().map_or(0, |first| first.arrival_ns);
    for time in [begin_ns, begin_ns + NIGHT_NS] {
        simulation.push(&Request::new(Op::Flush, 0, 0, time), &mut |_| ());
        simulation.settle(&mut |_| ());
    }
    let before = simulation.so_far();
    let later = |request: &Request| Request { arrival_ns: request.arrival_ns + NIGHT_NS, ..*request };
    let mut done = Vec::with_capacity(requests.len());
    requests.iter().for_each(|request| simulation.push(&later(request), &mut |request| done.push(request)));
    let mut simulated = simulation.finish(&mut |request| done.push(request));
    simulated.counts = simulated.counts.since(before.counts);
    Ok(Served { requests: done, simulated })
}

/// Share of the time without a request, and how many pauses of [`PAUSE_NS`] there are.
fn idle_of(requests: &[Request]) -> (f64, f64) {
    let Some(first) = requests.first() else { return (f64::NAN, 0.0) };
    let (mut busy_until, mut idle_ns, mut pauses) = (first.arrival_ns, 0, 0_u32);
    for request in requests {
        let pause_ns = request.arrival_ns.saturating_sub(busy_until);
        idle_ns += pause_ns;
        pauses += u32::from(pause_ns >= PAUSE_NS);
        busy_until = busy_until.max(request.finish_ns.unwrap_or(request.arrival_ns));
    }
    (100.0 * idle_ns as f64 / (busy_until - first.arrival_ns) as f64, f64::from(pauses))
}

/// Percent of the requests that stall.
fn stalls(used: &Served, new: &Served) -> f64 {
    let stalled = used.requests.iter().zip(&new.requests).filter(|(used, new)| {
        let response_ns = |request: &Request| request.response_ns().unwrap_or(0);
        response_ns(used) > response_ns(new) + STALL_NS
    });
    100.0 * stalled.count() as f64 / used.requests.len() as f64
}

/// Seconds in which a used drive collects one block, alone, in one plane: its valid units are programmed one by one.
fn collection_s(profile: &Profile, must: &Served) -> f64 {
    let Medium::Array(array) = &profile.medium else { return f64::NAN };
    let [kind, ..] = &array.blocks[..] else { return f64::NAN };
    let counts = must.simulated.counts;
    let moved = counts.moved_units as f64 / counts.erases as f64;
    (moved * kind.program_ns[0] as f64 + kind.erase_ns as f64) / 1e9
}

pub(super) fn tried(effort: &Effort, traces: &[Trace]) -> Result<Tried, LabError> {
    let delayed = |delay_ns: u64| {
        changed(effort, "emmc", PLANES, |array: &mut ArrayProfile| {
            array.translation.iter_mut().for_each(|translation| match delay_ns {
                0 => translation.gc_idle_blocks = 0,
                _ => translation.idle_ns = delay_ns,
            });
        })
    };
    let mut devices = Vec::new();
    for delay_ns in DELAYS_NS {
        devices.push(delayed(delay_ns)?);
    }
    let delays = DELAYS_NS.len();
    let mut responses = Evidence::new("Mean response of a used drive, and write amplification", &RESPONSES)
        .with_medians(NEW..RESPONSE + delays);
    let mut stalled = Evidence::new("Idle time, and requests that stall", &STALLS)
        .with_medians(STALL..STALL + delays)
        .drawing(STALL, None);
    let mut blocks_s = Samples::default();
    for trace in traces {
        let new = serve(&devices[0], false, &trace.requests)?;
        let mut used = Vec::new();
        for device in &devices {
            used.push(after_a_night(device, &trace.requests)?);
        }
        let (idle_percent, pauses) = idle_of(&new.requests);
        let mean = |served: &Served| mean_ms(&served.requests, |_| true);
        let block_s = collection_s(&devices[0], &used[0]);
        if block_s.is_finite() {
            blocks_s.push(block_s);
        }
        let stalls = used.iter().map(|used| stalls(used, &new));
        stalled.push(&trace.name, [idle_percent, pauses].into_iter().chain(stalls));
        let waf = used.iter().map(|used| used.simulated.counts.amplification());
        responses.push(&trace.name, [mean(&new)].into_iter().chain(used.iter().map(mean)).chain(waf));
    }
    Ok(advised(responses, stalled, blocks_s.median()))
}

fn advised(mut responses: Evidence, stalled: Evidence, block_s: f64) -> Tried {
    let all = |of: &Evidence, first: usize| {
        (first..first + DELAYS_NS.len()).map(|column| of.median(column)).collect::<Vec<_>>()
    };
    let (stalls, means, waf) = (all(&stalled, STALL), all(&responses, RESPONSE), all(&responses, WAF));
    let best = (0..DELAYS_NS.len()).min_by(|&a, &b| means[a].total_cmp(&means[b])).unwrap_or(0);
    responses = responses.drawing(RESPONSE + best.max(1), Some(RESPONSE));
    let hides = stalls[1..].iter().any(|idle| *idle <= stalls[0] / 2.0);
    let is_enough = block_s * 1e9 <= PAUSE_NS as f64;
    let idle = match best {
        0 => "Collect when it must be, not in each pause".to_owned(),
        _ => format!("Collect after {} s without a request", DELAYS_NS[best] as f64 / 1e9),
    };
    let then = if is_enough {
        "a pause of 200 ms is enough for a block."
    } else {
        "in steps that a request can interrupt: a block takes longer than a pause."
    };
    let numbers = |of: &[f64]| of.iter().map(|one| format!("{one:.2}")).collect::<Vec<_>>().join(", ");
    let advice = Advice {
        name: "implication 2: idle-time collection".to_owned(),
        paper: "pauses of 200 ms are long enough for a collection, so collections that run before free blocks are \
            few are not perceived"
            .to_owned(),
        judgement: Judgement::of(&[hides, is_enough]),
        advice: format!("{idle}, {then}"),
        found: format!(
            "Medians of 25 traces: the drive is idle for {:.1} % of the time, with {:.0} pauses of 200 ms a trace; \
             to collect a block takes {block_s:.2} s; when it collects only when it must, and also after 0.2, 2 \
             and 20 s without a request, {} % of the requests stall, and the response is {} ms ({:.2} on a new \
             drive), write amplification {}",
            stalled.median(IDLE),
            stalled.median(PAUSES),
            numbers(&stalls),
            numbers(&means),
            responses.median(NEW),
            numbers(&waf),
        ),
        departs: "the paper takes a collection for shorter than a pause; of Table V's blocks with 1,024 pages a full \
            used drive moves most, each with a program of 1.385 ms, and a block that was begun is finished; what long \
            delays save is put off, and a night pays for it: 12 blocks of each plane are 384 MiB"
            .to_owned(),
        evidence: vec![responses, stalled],
    };
    Tried { advice, compared: (RESPONSE + best, RESPONSE, "ms") }
}
