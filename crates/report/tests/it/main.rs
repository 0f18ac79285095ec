//! The page of an analysis, with and without a browser.

#[path = "../../../chart/tests/it/browser.rs"]
mod browser;
#[path = "../../examples/made_up.rs"]
#[allow(dead_code, reason = "the example's own main")]
mod made_up;
#[path = "../../../chart/tests/it/markup.rs"]
mod markup;

use nvmed_report::{Traced, report};
use nvmed_trace::Analysis;

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
    let page = report(&[Traced { summary: &summary, timeline: Some(&timeline) }]);
    let requests: u64 = summary.all.sizes.iter().map(|class| class.reads + class.writes).sum();
    assert_eq!(requests, 500);
    for part in ["<td>500</td>", "Sizes", "Timing and locality", "Waiting and service", "Reads beside writes"]
    {
        assert!(page.contains(part), "no {part}");
    }
    assert!(page.contains(&format!("{} flushes besides.", summary.all.flushes)));
    let writes = page.split("data-name=\"writes\"").nth(1).and_then(|rest| rest.split("data-y=\"").nth(1));
    assert!(writes.is_some_and(|values| values.starts_with('-')), "writes do not go down");
    for part in
        ["Bursts", "Working set", "Reuse distance", "Over time", "Devices", "Processes", "Distributions"]
    {
        assert!(page.contains(&format!("<h2>{part}</h2>")), "no {part}");
    }
}

#[test]
fn what_a_trace_does_not_tell_is_not_shown() {
    let (summary, _) = made_up::phone(1, 500, false);
    let page = report(&[Traced { summary: &summary, timeline: None }]);
    for part in ["Waiting and service", "Reads beside writes", "Over time", "Response times", "Throughput"] {
        assert!(
            !page.contains(&format!("<h2>{part}")) && !page.contains(&format!("<figcaption>{part}")),
            "{part}"
        );
    }
    let (summary, timeline) = made_up::phone(1, 0, true);
    let page = report(&[Traced { summary: &summary, timeline: Some(&timeline) }]);
    for part in ["Over time", "Reuse distance", "Working set", "Bursts", "Distributions"] {
        assert!(!page.contains(&format!("<h2>{part}")), "{part}");
    }
    let nothing = Analysis::default().finish();
    let empty = report(&[Traced { summary: &nothing, timeline: None }]);
    assert_eq!(markup::faults(&empty), Vec::<String>::new());
    assert_eq!(markup::faults(&report(&[])), Vec::<String>::new());
}

#[test]
fn the_page_answers_and_nothing_is_cut_at_any_width() {
    for count in [1, 8] {
        if let Some(faults) = browser::faults("report", &made_up::page(count)) {
            assert_eq!(faults, Vec::<String>::new());
        }
    }
}
