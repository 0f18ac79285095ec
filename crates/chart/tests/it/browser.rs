//! A page in headless Chromium, at the widths of a phone, a window and a screen.

use std::fmt::Write;
use std::process::Command;

/// Widths that a page is looked at with, in pixels.
const WIDTHS: [u32; 3] = [400, 800, 1600];
/// What looks at it, in the page around the frames.
const LOOK: &str = include_str!("look.js");
/// The names that the browser has.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What is wrong with a page; `None`, and a line that says so, without a browser.
pub fn faults(name: &str, page: &str) -> Option<Vec<String>> {
    let found = |name: &&&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let Some(browser) = NAMES.iter().find(found) else {
        eprintln!("SKIPPED: no chromium on this machine; install it to look at pages with it");
        return None;
    };
    let home = std::env::temp_dir().join(format!("nvmed-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a temporary directory");
    let around = home.join("around.html");
    std::fs::write(&around, frames(page)).expect("a temporary file");
    let profile = format!("--user-data-dir={}", home.join("profile").display());
    let arguments =
        ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"];
    let output = Command::new(browser).args(arguments).arg(profile).arg(&around).output();
    std::fs::remove_dir_all(&home).ok();
    let output = output.expect("the browser has just told its version");
    let dom = String::from_utf8_lossy(&output.stdout);
    let told = dom.split("<pre>").nth(1).and_then(|rest| rest.split("</pre>").next());
    let told =
        told.unwrap_or_else(|| panic!("{browser} says nothing: {}", String::from_utf8_lossy(&output.stderr)));
    let mut lines = told.lines();
    let plots = page.matches("<svg class=\"plot\"").count() * WIDTHS.len();
    assert!(
        plots > 0 && lines.next() == Some(&format!("looked at {plots} plots")),
        "{plots} and not: {told}"
    );
    Some(lines.map(str::to_owned).collect())
}

/// A page with the page in a frame of each width.
fn frames(page: &str) -> String {
    let source = page.replace('&', "&amp;").replace('"', "&quot;");
    let mut out = "<!DOCTYPE html><meta charset=\"utf-8\">".to_owned();
    for width in WIDTHS {
        let _ = write!(out, "<iframe width=\"{width}\" height=\"900\" srcdoc=\"{source}\"></iframe>");
    }
    out + "<script>" + LOOK + "</script>"
}
