//! Pages as a browser sees them, and without one.

mod browser;
#[path = "../../examples/gallery.rs"]
#[allow(dead_code, reason = "the example's own main")]
mod gallery;
mod markup;

#[test]
fn every_tag_is_closed_and_nothing_comes_from_elsewhere() {
    let page = gallery::page();
    assert_eq!(markup::faults(&page), Vec::<String>::new());
    assert!(page.contains("&lt;script&gt;alert(&quot;&#39;&amp;&quot;)&lt;/script&gt;"));
}

#[test]
fn what_is_wrong_with_a_page_is_seen() {
    for (page, want) in [
        ("<p><b>a</p>", "</p> closes <b>"),
        ("<p>a", "<p> is not closed"),
        ("<p class=a>", "<p class=a>: an attribute without quotes"),
        ("<script>if (a < b) c();</script><img src=\"x\">", "src="),
        ("<a href=\"http://a\">b</a>", "http"),
        ("<style>a { background: url(x) }</style>", "url("),
        ("<p>NaN %</p>", "NaN"),
    ] {
        let faults = markup::faults(page);
        assert!(faults.iter().any(|fault| fault.contains(want)), "{page}: {faults:?}");
    }
}

#[test]
fn the_charts_answer_and_nothing_is_cut_at_any_width() {
    if let Some(faults) = browser::faults("chart-gallery", &gallery::page()) {
        assert_eq!(faults, Vec::<String>::new());
    }
}

#[test]
fn a_page_that_is_too_wide_is_seen_by_the_browser() {
    let page = gallery::page().replace("<h1>", "<div style=\"width: 1700px\">wide</div><h1>");
    if let Some(faults) = browser::faults("chart-wide", &page) {
        assert!(faults.len() == 3 && faults.iter().all(|fault| fault.contains("is 1")), "{faults:?}");
    }
}
