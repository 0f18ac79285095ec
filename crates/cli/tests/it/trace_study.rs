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
