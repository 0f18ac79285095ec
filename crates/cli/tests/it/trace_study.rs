//! `nvmed trace analyse` and `synthesise`: from a row of the paper to a trace and back.

use crate::scratch::Scratch;
use serde_json::Value;

#[test]
fn a_row_becomes_a_trace_and_a_row_again() {
    let scratch = Scratch::new();
    let ran = scratch.run(["trace", "synthesise", "Facebook", "--seed", "3", "-o", "a"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, "nvmed: a: 3897 requests like Facebook\n"));
    let ran =
        scratch.run(["trace", "synthesise", "--like", "a", "-o", "b", "--to", "csv", "--footprint", "0.5"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, "nvmed: b: 3897 requests like a\n"));
    let found: Value = serde_json::from_str(&scratch.ok(["trace", "analyse", "a", "b", "--json", "--reuse"]))
        .expect("it is JSON");
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        let trace = &found["traces"][at];
        assert_eq!((&trace["all"]["name"], &trace["all"]["requests"]), (&name.into(), &3897.0.into()));
        let response = trace["all"]["mean_response_ms"].as_f64().expect("it is told");
        assert!((response / 4.08 - 1.0).abs() < 0.02, "{response}");
        assert_eq!(trace["reuse"]["sampled_pct"], 100.0);
    }
    assert_eq!(found["characteristics"][2]["claims"][0]["found"], 2);
    let table = scratch.ok(["trace", "analyse", "a", "b"]);
    assert_eq!(
        table.lines().next().map(|line| line.split_whitespace().collect::<Vec<_>>()),
        Some(vec!["a", "b"])
    );
    let line = table.lines().find(|line| line.starts_with("requests "));
    assert_eq!(
        line.map(|line| line.split_whitespace().collect::<Vec<_>>()),
        Some(vec!["requests", "3897", "3897"])
    );
    assert!(table.contains("\nCharacteristic 6, times between arrivals are long: holds\n"), "{table}");
}

#[test]
fn what_cannot_be_synthesised_leaves_no_file() {
    let scratch = Scratch::new();
    let ran = scratch.run(["trace", "synthesise", "Chess", "-o", "a"]);
    assert!(
        ran.status == 2 && ran.err.contains("no row is called Chess; there are Idle, CallIn"),
        "{}",
        ran.err
    );
    let ran = scratch.run(["trace", "synthesise", "Movie", "-o", "a", "--rate", "1000"]);
    assert!(ran.status == 1 && ran.err.contains("Movie: services take 10.18"), "{}", ran.err);
    let ran = scratch.run(["trace", "synthesise", "Movie", "-o", "a", "--footprint", "0.00001"]);
    assert!(ran.status == 1 && ran.err.contains("a larger footprint"), "{}", ran.err);
    let ran = scratch.run(["trace", "synthesise", "Movie", "-o", "a", "--rate", "-1"]);
    assert_eq!(ran.status, 2, "{}", ran.err);
    let ran = scratch.run(["trace", "analyse", "a"]);
    assert_eq!((ran.status, ran.err.lines().count()), (1, 1), "{}", ran.err);
    assert!(!scratch.path("a").exists());
}

#[test]
fn a_trace_is_shown_on_a_page_and_given_to_drives() {
    let scratch = Scratch::new();
    scratch.ok(["trace", "synthesise", "Messaging", "-o", "a"]);
    scratch.ok(["trace", "analyse", "a", "--html", "a.html"]);
    let page = std::fs::read_to_string(scratch.path("a.html")).unwrap();
    assert!(page.contains("<title>Trace: a</title>") && page.contains("</html>") && !page.contains("http"));
    scratch.fails(["trace", "analyse", "a", "--html", "none/a.html"], 1, "none/a.html: No such file");
    let drives = ["--profile", "emmc", "--profile", "emmc-8ps", "--profile", "emmc-hps"];
    let simulate = |more: &[&str]| scratch.ok([&["trace", "simulate", "a"], &drives[..], more].concat());
    let found: Value = serde_json::from_str(&simulate(&["--json"])).expect("it is JSON");
    let of = |drive: usize, what: &str| found["drives"][drive][what].as_f64().expect("it is told");
    assert!((0..3).all(|drive| of(drive, "requests") > 5000.0 && of(drive, "erases") == 0.0));
    // Pages of 8 KiB that are half filled take room; with small ones beside them, none is.
    assert!(of(1, "space_utilisation_pct") < 85.0 && of(2, "space_utilisation_pct") > 99.9);
    assert!(of(2, "programs") < of(0, "programs") && of(2, "programs") == of(1, "programs"));
    assert_eq!(simulate(&["--json"]), simulate(&["--json"]), "it is the same each time");
    // The requests with the times of a drive are a trace again.
    scratch.ok(["trace", "simulate", "a", "--profile", "emmc-hps", "-o", "b", "--to", "blkparse"]);
    let again: Value = serde_json::from_str(&scratch.ok(["trace", "analyse", "b", "--json"])).expect("JSON");
    let response = again["traces"][0]["all"]["mean_response_ms"].as_f64().expect("it is told");
    assert!((response - of(2, "mean_response_ms")).abs() < 1e-6, "{response}");
    scratch.fails(["trace", "simulate", "a", "--profile", "chess"], 2, "no profile is called `chess`");
}
