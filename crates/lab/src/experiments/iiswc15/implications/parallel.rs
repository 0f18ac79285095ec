//! Implication 1: parallelism in the device, queues before it, and a second device beside it.

use super::{
    LARGE_BYTES, MATTERS, PLANES, SMALL_BYTES, Served, Trace, Tried, changed, largest_ratio, less_percent,
    mean_ms, median_ratio, serve,
};
use crate::advice::{Advice, Evidence, Judgement};
use crate::error::LabError;
use crate::experiment::Effort;
use nvmed_dice::Dice;
use nvmed_flash::{ArrayProfile, Profile, Rate};
use nvmed_trace::Request;

/// Commands that a device with a queue works on at once: of eMMC 5.1 (JESD84-B51).
const QUEUE: u32 = 32;
/// How much slower a card is in all it does: the paper measured "roughly triple".
const SLOWER: u64 = 3;
/// Bytes of an extent of offsets that is on one device.
const EXTENT_BYTES: u64 = 1 << 20;
/// Quarters of the extents that are on the second device.
const QUARTERS: [u64; 2] = [1, 2];

/// Columns of the table of responses.
const ONE: usize = 0;
const EIGHT: usize = 3;
const FOUR_CHANNELS: usize = 4;
const QUEUED: usize = 5;
const CARD: usize = 6;
const EQUAL: usize = 9;
const RESPONSES: [&str; 10] = [
    "1 plane ms",
    "2 planes ms",
    "4 planes ms",
    "8 planes ms",
    "8, 4 channels ms",
    "8, 32 commands ms",
    "1/4 on card ms",
    "1/2 on card ms",
    "1/4 on equal ms",
    "1/2 on equal ms",
];
/// Columns of the table of work.
const WORK: [&str; 8] = [
    "paper waits %",
    "waits %",
    "works %",
    "of it several %",
    "small 1 ms",
    "small 8 ms",
    "large 1 ms",
    "large 8 ms",
];
const WAITED: usize = 0;
const WAITS: usize = 1;
const WORKS: usize = 2;
const SEVERAL: usize = 3;
const SMALL: [usize; 2] = [4, 5];
const LARGE: [usize; 2] = [6, 7];

/// Devices that the traces are given to.
struct Devices {
    planes: [Profile; 4],
    four_channels: Profile,
    queued: Profile,
    card: Profile,
}

impl Devices {
    fn new(effort: &Effort) -> Result<Self, LabError> {
        let of = |planes| changed(effort, "emmc", planes, |_| ());
        let spread = |array: &mut ArrayProfile| {
            (array.channels, array.dies) = (2 * array.channels, array.dies / 2);
        };
        Ok(Self {
            planes: [of(1)?, of(2)?, of(4)?, of(PLANES)?],
            four_channels: changed(effort, "emmc", PLANES, spread)?,
            queued: Profile { commands: QUEUE, ..of(PLANES)? },
            card: changed(effort, "emmc", PLANES, slow_down)?,
        })
    }
}

fn slow_down(array: &mut ArrayProfile) {
    let slow = |rate: Rate| Rate { ns: rate.ns * SLOWER, ..rate };
    for rate in [&mut array.bus_in, &mut array.bus_out, &mut array.link_in, &mut array.link_out] {
        *rate = slow(*rate);
    }
    for kind in &mut array.blocks {
        kind.read_ns.iter_mut().chain(&mut kind.program_ns).for_each(|ns| *ns *= SLOWER);
        kind.erase_ns *= SLOWER;
    }
}

/// Whether a request goes to the second device.
fn is_second(request: &Request, quarters: u64) -> bool {
    Dice::of(&[request.offset / EXTENT_BYTES]).roll(4) < quarters
}

/// Mean response of a trace on two devices, which work at the same time.
fn on_two(first: &Profile, second: &Profile, quarters: u64, trace: &Trace) -> Result<f64, LabError> {
    let (there, here): (Vec<Request>, Vec<Request>) =
        trace.requests.iter().partition(|request| is_second(request, quarters));
    let mut all = serve(first, false, &here)?.requests;
    all.extend(serve(second, false, &there)?.requests);
    Ok(mean_ms(&all, |_| true))
}

fn is_small(request: &Request) -> bool {
    request.bytes <= SMALL_BYTES
}

fn is_large(request: &Request) -> bool {
    request.bytes > LARGE_BYTES
}

/// Percent of the requests that arrive while one before them is not done.
fn waiting(requests: &[Request]) -> f64 {
    let (mut busy_until, mut waiting) = (0, 0_u32);
    for request in requests {
        waiting += u32::from(request.arrival_ns < busy_until);
        busy_until = busy_until.max(request.finish_ns.unwrap_or(0));
    }
    100.0 * f64::from(waiting) / requests.len() as f64
}

fn work(trace: &Trace, one: &Served, eight: &Served) -> [f64; 8] {
    let requests = &eight.requests;
    let percent = |part: f64, whole: f64| 100.0 * part / whole;
    let begin = requests.first().map_or(0, |first| first.arrival_ns);
    let end = requests.iter().filter_map(|one| one.finish_ns).max().unwrap_or(begin);
    let activity = eight.simulated.activity;
    [
        waiting(&trace.requests),
        waiting(requests),
        percent(activity.plane_ns as f64, (end - begin) as f64 * f64::from(PLANES)),
        percent(activity.several_ns as f64, activity.any_ns as f64),
        mean_ms(&one.requests, is_small),
        mean_ms(requests, is_small),
        mean_ms(&one.requests, is_large),
        mean_ms(requests, is_large),
    ]
}

pub(super) fn tried(effort: &Effort, traces: &[Trace]) -> Result<Tried, LabError> {
    let devices = Devices::new(effort)?;
    let mut responses =
        Evidence::new("Mean response", &RESPONSES).with_medians(0..RESPONSES.len()).drawing(EIGHT, Some(ONE));
    let mut works =
        Evidence::new("Waiting, work of 8 planes, and response by size", &WORK).drawing(SEVERAL, None);
    for trace in traces {
        let mut row = Vec::new();
        let mut ends = Vec::new();
        for device in devices.planes.iter().chain([&devices.four_channels, &devices.queued]) {
            let served = serve(device, false, &trace.requests)?;
            row.push(mean_ms(&served.requests, |_| true));
            if [ONE, EIGHT].contains(&(row.len() - 1)) {
                ends.push(served);
            }
        }
        let eight = &devices.planes[EIGHT];
        for second in [&devices.card, eight] {
            for quarters in QUARTERS {
                row.push(on_two(eight, second, quarters, trace)?);
            }
        }
        responses.push(&trace.name, row);
        if let [one, eight] = &ends[..] {
            works.push(&trace.name, work(trace, one, eight));
        }
    }
    Ok(Tried { advice: advice(responses, works), compared: (EIGHT, ONE, "ms") })
}

fn advice(responses: Evidence, works: Evidence) -> Advice {
    let over_eight = |column| median_ratio(&responses, column, EIGHT);
    let (queue, channels) = (over_eight(QUEUED), over_eight(FOUR_CHANNELS));
    let (card, equal) = (over_eight(CARD), over_eight(EQUAL));
    let large = median_ratio(&works, LARGE[1], LARGE[0]);
    let small = median_ratio(&works, SMALL[1], SMALL[0]);
    let queue_helps = queue < 1.0 - MATTERS;
    let (worst_card, card_at_worst) = largest_ratio(&responses, CARD, EIGHT);
    let (best_card, eight_at_best) = largest_ratio(&responses, EIGHT, CARD);
    let (queue_trace, _) = largest_ratio(&responses, EIGHT, QUEUED);
    let judgement =
        Judgement::of(&[!queue_helps, card > 1.0 - MATTERS, equal > 1.0 - MATTERS, large < 1.0 - MATTERS]);
    Advice {
        name: "implication 1: parallelism".to_owned(),
        paper: "few requests arrive at once, so parallel queues and an external card do not help and a card may \
            harm; large requests would gain from more channels"
            .to_owned(),
        judgement,
        advice: format!(
            "Build planes that one request uses; {} a command queue, and keep a slower card for what is not in a \
             hurry.",
            if queue_helps { "add" } else { "do without" }
        ),
        found: format!(
            "Medians of 25 traces: {:.0} % of the requests find others before them ({:.0} % in the traces), planes \
             work {:.2} % of the time, and in {:.0} % of that more than one; 8 planes take {:.0} % less than one \
             ({:.0} % for requests above 64 KiB, {:.0} % up to 4 KiB); 4 channels take {:.1} % less than 2; 32 \
             commands at once {:.1} % less than one (most in {queue_trace}); a quarter of the data on a card makes \
             responses {card:.2} times as long ({worst_card}: {card_at_worst:.2}, {best_card}: {:.2}), \
             half of it on an equal device \
             {equal:.2} times",
            works.median(WAITS),
            works.median(WAITED),
            works.median(WORKS),
            works.median(SEVERAL),
            less_percent(median_ratio(&responses, EIGHT, ONE), 1.0),
            less_percent(large, 1.0),
            less_percent(small, 1.0),
            less_percent(channels, 1.0),
            less_percent(queue, 1.0),
            1.0 / eight_at_best,
        ),
        departs: "what waits, waits in bursts (Table IV: responses are longer than services), and in these a queue \
            and a second device have something to do; most requests are alone, as the paper says; a card's own \
            behaviour beyond the factor of three is not modelled"
            .to_owned(),
        evidence: vec![responses, works],
    }
}
