//! The page of an analysis, with and without a browser.

#[path = "../../../chart/tests/it/browser.rs"]
mod browser;
#[path = "../../examples/made_up.rs"]
#[allow(dead_code, reason = "the example's own main")]
mod made_up;
#[path = "../../../chart/tests/it/markup.rs"]
mod markup;

use nvmed_report::{Swept, SweptTrace, Traced, report, sweep};
use nvmed_trace::{Analysis, Op, Provenance, Request, Timeline};

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    for count in [0, 1, 3, 12] {
        let page = made_up::page(count);
        assert_eq!(markup::faults(&page), Vec::<String>::new());
        assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert(29)&lt;/script&gt;"));
    }
}

#[test]
fn figures_stand_in_their_tables() {
    let (summary, timeline) = made_up::phone(1, 500, true);
    let mut provenance = Provenance::default();
    provenance.set("command", "grep <a> b");
    let summary = summary.come_from(provenance);
    let page = report(&[Traced { summary: &summary, timeline: Some(&timeline), remarks: &[] }]);
    assert!(page.contains("<td>command</td><td>grep &lt;a&gt; b</td>"));
    let requests: u64 = summary.all.sizes.iter().map(|class| class.reads + class.writes).sum();
    assert_eq!(requests, 500);
    for part in ["<td>500</td>", "Sizes", "Timing and locality", "Waiting and service", "Reads beside writes"]
    {
        assert!(page.contains(part), "no {part}");
    }
    assert!(page.contains(&format!("{} flushes besides.", summary.all.flushes)));
    let table =
        page.split("<h2>Percentiles of times</h2>").nth(1).and_then(|rest| rest.split("</table>").next());
    let table = table.expect("there is a table of percentiles");
    let longest =
        summary.all.latencies.and_then(|latencies| latencies.waiting.reads).expect("times are known");
    assert_eq!(table.matches("<tr>").count(), 10, "{table}");
    assert!(table.contains(&format!("<td>{:.2}</td></tr>", longest.max_ms)), "{table}");
    let writes = page.split("data-name=\"writes\"").nth(1).and_then(|rest| rest.split("data-y=\"").nth(1));
    assert!(writes.is_some_and(|values| values.starts_with('-')), "writes do not go down");
    for part in
        ["Bursts", "Working set", "Reuse distance", "Over time", "Devices", "Processes", "Distributions"]
    {
        assert!(page.contains(&format!("<h2>{part}</h2>")), "no {part}");
    }
}

/// The values of a line of a chart, as the script is told them.
fn values(chart: &str, line: &str, axis: &str) -> Vec<f64> {
    let group = chart.split(&format!("data-name=\"{line}\"")).nth(1).unwrap_or_default();
    let text = group.split(&format!("data-{axis}=\"")).nth(1).and_then(|rest| rest.split('"').next());
    text.unwrap_or_default().split(' ').filter_map(|value| value.parse().ok()).collect()
}

#[test]
fn queue_depth_has_its_course() {
    let request = |device, arrival_ns, finish_ns| Request {
        device,
        finish_ns: Some(finish_ns),
        ..Request::new(Op::Write, 0, 4096, arrival_ns)
    };
    let page = |requests: &[Request]| {
        let (mut analysis, mut timeline) = (Analysis::default(), Timeline::default());
        for request in requests {
            analysis.push(request);
            timeline.push(request);
        }
        let mut devices = nvmed_trace::Names::default();
        ["<a>", "b"].iter().for_each(|name| _ = devices.number(name));
        let summary = analysis.finish().named("t", &devices, &devices);
        report(&[Traced {
            summary: &summary,
            timeline: Some(&timeline),
            remarks: &["3 lines < all".to_owned()],
        }])
    };
    let chart = |page: &str, title: &str| {
        let rest = page.split(&format!("<figcaption>{title}</figcaption>")).nth(1).map(str::to_owned);
        rest.and_then(|rest| rest.split("</figure>").next().map(str::to_owned)).unwrap_or_default()
    };
    // Four at once, which are done one after another: the last bin is half as long.
    let ends = [1024, 2048, 3072, 3584];
    let requests = ends.map(|end| request(1, 0, end));
    let one = page(&requests);
    let depth = chart(&one, "Queue depth");
    assert_eq!(values(&depth, "mean", "y"), [4., 4., 3., 3., 2., 2., 1., 1.], "{one}");
    assert_eq!(values(&depth, "most", "x").last(), Some(&3584.0));
    assert!(one.contains("t: 3 lines &lt; all."), "what else is to be said is not there");
    // Of several devices each is a line.
    let several = page(&[&requests[..], &[request(2, 512, 1024)]].concat());
    let depth = chart(&several, "Queue depth, most");
    assert_eq!(values(&depth, "&lt;a&gt;", "y")[0], 4.0);
    assert_eq!(values(&depth, "b", "y"), [1.0, 1.0, 0.0, 0.0], "what is done leaves nothing");
    assert_eq!(markup::faults(&several), Vec::<String>::new());
    let devices = several.split("<h2>Devices</h2>").nth(1).unwrap_or_default();
    assert!(devices.contains("utilisation %") && devices.contains("depth p99"), "{devices}");
}

#[test]
fn what_a_trace_does_not_tell_is_not_shown() {
    let (summary, _) = made_up::phone(1, 500, false);
    let page = report(&[Traced { summary: &summary, timeline: None, remarks: &[] }]);
    let absent =
        ["Waiting and service", "Percentiles", "Reads beside writes", "Over time", "Response times", "Where"];
    for part in absent.into_iter().chain(["Throughput"]) {
        assert!(
            !page.contains(&format!("<h2>{part}")) && !page.contains(&format!("<figcaption>{part}")),
            "{part}"
        );
    }
    let (summary, timeline) = made_up::phone(1, 0, true);
    let page = report(&[Traced { summary: &summary, timeline: Some(&timeline), remarks: &[] }]);
    for part in ["Over time", "Reuse distance", "Working set", "Bursts", "Distributions"] {
        assert!(!page.contains(&format!("<h2>{part}")), "{part}");
    }
    let nothing = Analysis::default().finish();
    let empty = report(&[Traced { summary: &nothing, timeline: None, remarks: &[] }]);
    assert_eq!(markup::faults(&empty), Vec::<String>::new());
    assert_eq!(markup::faults(&report(&[])), Vec::<String>::new());
}

#[test]
fn no_figure_of_a_page_is_infinite_or_none() {
    // Requests of no extent in time, and none that reads or writes.
    let discard = |number: u64| Request::new(Op::Discard, number << 20, 1 << 20, number * 1_000_000_000);
    let at_once = |number: u64| Request::new(Op::Read, number << 20, 4096, 7);
    for request in [&discard as &dyn Fn(u64) -> Request, &at_once] {
        for count in [1, 4] {
            let (mut analysis, mut timeline) = (Analysis::default().with_reuse(), Timeline::default());
            for request in (0..count).map(request) {
                analysis.push(&request);
                timeline.push(&request);
            }
            let summary = analysis.finish();
            let page = report(&[Traced { summary: &summary, timeline: Some(&timeline), remarks: &[] }]);
            let body =
                page.split("<h1").nth(1).unwrap_or_default().split("<script").next().unwrap_or_default();
            let words = body.split(|letter: char| !letter.is_alphanumeric());
            let odd: Vec<&str> = words.filter(|word| ["inf", "NaN"].contains(word)).collect();
            assert!(odd.is_empty() && body.contains("</table>"), "{odd:?} on the page of {:?}", request(0));
        }
    }
}

#[test]
fn the_page_answers_and_nothing_is_cut_at_any_width() {
    for count in [1, 8] {
        if let Some(faults) = browser::faults("report", &made_up::page(count)) {
            assert_eq!(faults, Vec::<String>::new());
        }
    }
}

/// A grid of three page sizes and nine channels on two traces, with names that must be escaped.
fn swept() -> String {
    let axes = ["pages <KiB>", "channels"].map(str::to_owned);
    let grid: Vec<[String; 2]> = (0..27)
        .map(|at| [["4", "8", "<script>alert(1)</script>"][at / 9].to_owned(), (at % 9 + 1).to_string()])
        .collect();
    let trace = |name, scale: f64| {
        let drive = |(at, places)| Swept {
            places,
            response_ns: scale / (1.0 + (at % 9) as f64),
            p99_ns: (scale < 1e9).then_some(7_000_000),
            space_percent: 100.0 - 9.0 * (at / 9) as f64,
            amplification: 1.5,
            erases: at as u64,
            is_on_front: at % 9 == 8,
        };
        SweptTrace {
            name,
            drives: grid.iter().enumerate().map(|(at, places)| drive((at, &places[..]))).collect(),
        }
    };
    sweep("A sweep of <b>", &axes, &[trace("Music & film", 1e6), trace("All traces", 1e9)])
}

#[test]
fn the_page_of_a_sweep_is_whole_and_has_its_front() {
    let page = swept();
    assert_eq!(markup::faults(&page), Vec::<String>::new());
    assert_eq!((page.matches(">●</td>").count(), page.matches("Pareto front").count()), (6, 2));
    for part in [
        "<td>111.11 us</td>",
        "p99 response",
        "pages &lt;KiB&gt; 8, channels 3",
        "<td>91.0 %</td>",
        "Music &amp; film",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    // The axis with most values that colours are enough for.
    assert!(page.contains(">pages &lt;KiB&gt; 4</span>") && !page.contains(">channels 3</span>"));
    let alone = Swept {
        places: &[],
        response_ns: 5.0,
        p99_ns: None,
        space_percent: 100.0,
        amplification: 1.0,
        erases: 0,
        is_on_front: true,
    };
    let page = sweep("one", &[], &[SweptTrace { name: "a", drives: vec![alone] }]);
    assert_eq!(markup::faults(&page), Vec::<String>::new());
    assert!(page.contains(">the base</th>") && !page.contains("p99"));
}

#[test]
fn the_page_of_a_sweep_answers_and_nothing_is_cut_at_any_width() {
    if let Some(faults) = browser::faults("report-sweep", &swept()) {
        assert_eq!(faults, Vec::<String>::new());
    }
}
