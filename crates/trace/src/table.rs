//! Summaries as a table for people, side by side.

use crate::row::Cell;
use crate::{Characteristic, Part, Percentiles, Summary, TimeClass};
use std::fmt::Write as _;

/// Limits of the distributions in a table, in ms: those of Figures 5 and 6.
const LIMITS_MS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
/// Width of a table, that of a terminal at least: parts stand beside each other as far as they fit, the others below.
const WIDTH: usize = 80;
/// Width of what a line is about.
const HEAD: usize = 26;

/// The value of a line, of a part.
type Value<'a> = &'a dyn Fn(&Part) -> Option<f64>;

/// The parts of some summaries, beside each other.
#[must_use]
pub fn table(parts: &[&Part]) -> String {
    let lines = lines(parts);
    let widths: Vec<usize> =
        (0..parts.len()).map(|at| lines.iter().map(|line| width(&line.1[at])).max().unwrap_or(0)).collect();
    let mut text = String::new();
    let mut begin = 0;
    while begin < parts.len() {
        let ends = widths[begin..].iter().scan(HEAD, |end, width| {
            *end += 2 + width;
            Some(*end)
        });
        let columns = begin..begin + ends.take_while(|&end| end <= WIDTH).count().max(1);
        begin = columns.end;
        if !text.is_empty() {
            text.push('\n');
        }
        for (head, values) in &lines {
            let values = &values[columns.clone()];
            if values.iter().all(String::is_empty) {
                continue;
            }
            let _ = write!(text, "{head:HEAD$}");
            for (value, &width) in values.iter().zip(&widths[columns.clone()]) {
                let _ = write!(text, "  {value:>width$}");
            }
            text.push('\n');
        }
    }
    text
}

/// A text that a stranger may have written (a name of a device, a process or a file), for a terminal: nothing of it
/// moves the cursor or changes a colour. A name that is empty is a dash.
#[must_use]
pub fn shown(text: &str) -> String {
    let text: String = text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Some of them.
fn all_shown(texts: &[String]) -> String {
    texts.iter().map(|text| shown(text)).collect::<Vec<_>>().join(", ")
}

/// The number of characters, as it takes place on a screen.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// Lines of a table: what each is about, and a value for each part.
fn lines(parts: &[&Part]) -> Vec<(String, Vec<String>)> {
    let mut lines = Vec::new();
    let mut line = |head: String, value: Value<'_>| {
        lines.push((head, parts.iter().map(|part| value(part).map_or_else(String::new, number)).collect()));
    };
    for cell in Cell::ALL {
        line(cell.title().to_owned(), &|part| part.row.get(cell));
    }
    line("temporal error points".to_owned(), &|part| {
        Some(part.temporal_locality_error_points).filter(|&error| error > 0.0)
    });
    for class in 0..8 {
        line(format!("size ≤ {} KiB %", 4 << class), &|part| size_share(part, class));
    }
    for (what, times) in [("response", response as fn(&Part) -> &[TimeClass]), ("gap", gaps)] {
        for limit_ms in LIMITS_MS {
            line(format!("{what} ≤ {limit_ms} ms %"), &|part| time_share(times(part), limit_ms));
        }
    }
    for class in 0..13 {
        line(format!("read MiB/s ≤ {} KiB", 4 << class), &|part| part.sizes[class].read_mib_per_s);
        line(format!("write MiB/s ≤ {} KiB", 4 << class), &|part| part.sizes[class].write_mib_per_s);
    }
    percentiles(&mut line);
    more(&mut line);
    let names = parts.iter().map(|part| shown(&part.row.name)).collect();
    lines.insert(0, (String::new(), names));
    lines
}

/// What shares of the times do not pass, a line for each.
fn percentiles(line: &mut dyn FnMut(String, Value<'_>)) {
    let kinds = [("response", 3), ("service", 1), ("waiting", 1)];
    for (at, (what, sides)) in kinds.into_iter().enumerate() {
        // Reads and writes apart only where it matters most: JSON and the page have all of it.
        for (side, of) in ["", "read ", "write "].into_iter().enumerate().take(sides) {
            for (which, name) in Percentiles::NAMES.into_iter().enumerate() {
                line(format!("{of}{what} {name} ms"), &|part| {
                    let (.., percentiles) = part.latencies?.each()[3 * at + side];
                    Some(percentiles?.values_ms()[which])
                });
            }
        }
    }
}

/// What the paper does not have.
fn more(line: &mut dyn FnMut(String, Value<'_>)) {
    let count = |number: u64| Some(number as f64).filter(|&number| number > 0.0);
    line("discards".to_owned(), &|part| count(part.discards));
    line("flushes".to_owned(), &|part| count(part.flushes));
    line("waiting ms".to_owned(), &|part| Some(part.waiting?.mean_ms));
    line("waiting % of response".to_owned(), &|part| Some(part.waiting?.share_of_response_pct));
    line("longest response ms".to_owned(), &|part| Some(part.waiting?.response_max_ms));
    line("utilisation %".to_owned(), &|part| part.depth?.utilisation_pct);
    line("mean number in service".to_owned(), &|part| Some(part.waiting?.mean_in_service));
    line("mean number in system".to_owned(), &|part| Some(part.waiting?.mean_in_system));
    line("queue depth p50".to_owned(), &|part| Some(part.depth?.p50 as f64));
    line("queue depth p90".to_owned(), &|part| Some(part.depth?.p90 as f64));
    line("queue depth p99".to_owned(), &|part| Some(part.depth?.p99 as f64));
    line("queue depth max".to_owned(), &|part| Some(part.depth?.max as f64));
    line("reads beside writes %".to_owned(), &|part| Some(part.interference?.reads_beside_write_pct));
    line("  their response ms".to_owned(), &|part| part.interference?.beside_response_ms);
    line("  other reads' ms".to_owned(), &|part| part.interference?.alone_response_ms);
    for (at, window) in ["10 ms", "100 ms", "1 s", "10 s", "100 s"].into_iter().enumerate() {
        line(format!("dispersion in {window}"), &|part| Some(part.burstiness.get(at)?.dispersion));
        line(format!("peak to mean in {window}"), &|part| Some(part.burstiness.get(at)?.peak_to_mean));
    }
    line("touched KiB".to_owned(), &|part| Some(part.working_set.as_ref()?.distinct_kib as f64));
    line("  not counted KiB".to_owned(), &|part| count(part.working_set.as_ref()?.not_counted_kib));
    for (at, window) in ["an hour", "a minute"].into_iter().enumerate() {
        line(format!("  KiB {window}, mean"), &|part| {
            Some(part.working_set.as_ref()?.windows.get(at)?.mean_kib)
        });
        line(format!("  KiB {window}, most"), &|part| {
            Some(part.working_set.as_ref()?.windows.get(at)?.max_kib as f64)
        });
    }
}

fn response(part: &Part) -> &[TimeClass] {
    &part.response
}

fn gaps(part: &Part) -> &[TimeClass] {
    &part.gaps
}

/// The share of the requests up to a class of sizes.
fn size_share(part: &Part, class: usize) -> Option<f64> {
    let count =
        |classes: &[crate::SizeClass]| classes.iter().map(|class| class.reads + class.writes).sum::<u64>();
    let all = count(&part.sizes);
    (all > 0).then(|| 100.0 * count(&part.sizes[..=class]) as f64 / all as f64)
}

/// The share of the requests up to a time.
fn time_share(classes: &[TimeClass], limit_ms: f64) -> Option<f64> {
    let all: u64 = classes.iter().map(|class| class.requests).sum();
    let within = classes.iter().filter(|class| class.at_most_ms.is_some_and(|at_most| at_most <= limit_ms));
    (all > 0).then(|| 100.0 * within.map(|class| class.requests).sum::<u64>() as f64 / all as f64)
}

/// A number with as many digits as say something.
fn number(value: f64) -> String {
    let whole = (value - value.round()).abs() < 1e-9;
    match value.abs() {
        _ if whole => format!("{value:.0}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The reuse distances of a summary, and what it could not take in: nothing when there is neither.
#[must_use]
pub fn remarks(summary: &Summary) -> String {
    let mut text = String::new();
    if let Some(reuse) = &summary.reuse {
        let _ =
            writeln!(text, "Hits of a cache that evicts the least recently used 4 KiB, before all devices:");
        for at in &reuse.hits {
            let _ = writeln!(text, "  {:>14} KiB  {:6.2} %", at.cache_kib, at.hit_pct);
        }
        let _ = writeln!(
            text,
            "  {:.2} % of {} touches are the first of their 4 KiB",
            reuse.first_pct, reuse.touches
        );
        if reuse.sampled_pct < 100.0 {
            let (share, error) = (reuse.sampled_pct, reuse.error_points);
            let _ = writeln!(
                text,
                "  from a sample of {share:.3} % of the units; standard error {error:.2} points"
            );
        }
    }
    if summary.out_of_order > 0 {
        let _ = writeln!(text, "{} requests are earlier than one before them", summary.out_of_order);
    }
    let others = summary.of_other_processes();
    if others > 0 {
        let _ = writeln!(text, "{others} requests are of processes beyond the first 4,095: other processes");
    }
    if summary.left_out > 0 {
        let _ = writeln!(text, "{} requests of more than 65,536 devices are left out", summary.left_out);
    }
    text
}

/// The verdicts alone, in a line.
#[must_use]
pub fn verdicts(all: &[Characteristic]) -> String {
    let said = |one: &Characteristic| format!("{} {}", one.number, one.verdict.words());
    let said = all.iter().map(said).collect::<Vec<_>>().join("; ");
    format!("The six characteristics of smartphone applications (IISWC'15):\n  {said}\n")
}

/// The characteristics, with what is behind each verdict.
#[must_use]
pub fn characteristics(all: &[Characteristic]) -> String {
    let mut text = String::new();
    for characteristic in all {
        let (which, says) = (characteristic.number, characteristic.says);
        let _ = writeln!(text, "Characteristic {which}, {says}: {}", characteristic.verdict.words());
        for claim in &characteristic.claims {
            let (found, told, said) = (claim.found, claim.told, claim.said_of_18);
            let _ = write!(text, "  {}: {} of {told} (the paper: {said} of 18)", claim.says, found);
            if let Some((least, most)) = claim.range {
                let _ = write!(text, ", {} to {}", number(least), number(most));
            }
            let _ = write!(text, ": {}", claim.verdict.words());
            for (what, names) in [("; not", &claim.exceptions), ("; at the limit", &claim.at_limit)] {
                if !names.is_empty() {
                    let _ = write!(text, "{what} {}", all_shown(names));
                }
            }
            text.push('\n');
        }
        for remark in &characteristic.remarks {
            let _ = writeln!(text, "  {}", shown(remark));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Analysis, Op, Request};

    #[test]
    fn traces_stand_side_by_side() {
        let trace = |bytes: u64| {
            let mut analysis = Analysis::default();
            (0..4).for_each(|at| analysis.push(&Request::new(Op::Write, at * 65_536, bytes, at * 1_500_000)));
            analysis.finish()
        };
        let (small, large) = (trace(4096), trace(12_288));
        let text = table(&[&small.all, &large.all]);
        let line = |head: &str| {
            let found = text
                .lines()
                .find(|line| line.starts_with(head))
                .map(|line| line[head.len()..].split_whitespace());
            found.map(|words| words.collect::<Vec<_>>()).unwrap_or_default()
        };
        assert_eq!(line("data KiB"), ["16", "48"]);
        assert_eq!(line("size ≤ 4 KiB %"), ["100", "0"]);
        assert_eq!(line("gap ≤ 2 ms %"), ["100", "100"]);
        assert_eq!(line("gap ≤ 1 ms %"), ["0", "0"]);
        let mut request = Request { start_ns: Some(10_000), ..Request::new(Op::Write, 0, 4096, 0) };
        let mut analysis = Analysis::default();
        for finish_ns in [1_010_000, 3_010_000] {
            request.finish_ns = Some(finish_ns);
            analysis.push(&request);
        }
        let timed = table(&[&analysis.finish().all]);
        let has = |said: &str| timed.lines().any(|line| line.split_whitespace().eq(said.split_whitespace()));
        assert!(has("service max ms 3") && has("write response max ms 3.01"), "{timed}");
        assert!(!timed.contains("read response p50") && !timed.contains("write service"), "{timed}");
        // What no trace tells has no line.
        assert!(!text.contains("service") && !text.contains("mean read"), "{text}");
        // What does not fit beside the others stands below them, and what fits nowhere all the same.
        let many = table(&[&small.all; 20]);
        assert!(many.lines().all(|line| width(line) <= WIDTH), "{many}");
        let blocks = many.lines().filter(|line| line.starts_with("data KiB"));
        assert_eq!(blocks.flat_map(|line| line.split_whitespace().skip(2)).collect::<Vec<_>>(), ["16"; 20]);
        let mut long = small.all.clone();
        long.row.name = "n".repeat(200);
        assert_eq!(table(&[&long, &small.all]).matches("data KiB").count(), 2);
    }

    #[test]
    fn names_of_strangers_do_not_reach_a_terminal_as_they_are() {
        let mut analysis = Analysis::default();
        (0..3).for_each(|at| analysis.push(&Request::new(Op::Write, at * 65_536, 4096, at * 1_500_000)));
        let mut summary = analysis.finish();
        summary.all.row.name = "a\x1b[2J\nb".to_owned();
        let all = Characteristic::all(std::slice::from_ref(&summary.all.row));
        for text in [table(&[&summary.all]), characteristics(&all)] {
            assert!(!text.contains('\x1b') && text.contains("a?[2J?b"), "{text:?}");
        }
    }

    #[test]
    fn a_verdict_says_what_it_stands_on() {
        let rows: Vec<_> = crate::Row::published().into_iter().take(18).collect();
        let text = characteristics(&Characteristic::all(&rows));
        assert!(text.contains("9 of 18 (the paper: 10 of 18), 82 to 98: open, by rounding; not "), "{text}");
        assert!(
            text.contains("; not Booting, Movie, Music") && text.contains("; at the limit Installing\n"),
            "{text}"
        );
    }
}
