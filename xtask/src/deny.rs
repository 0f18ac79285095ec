//! Licences, bans and sources of the dependency tree, by `cargo-deny`; advisories when their database
//! can be reached.

use crate::gate::Found;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version that is installed when there is none; a newer one on the path is used as it is.
const VERSION: &str = "0.20.2";

/// Checks the tree against `deny.toml`.
#[must_use]
pub fn check(root: &Path) -> Found {
    let mut found = Found::default();
    let Some(program) = program() else {
        found.wrong.push(format!("cargo-deny {VERSION} could not be installed; see the lines above"));
        return found;
    };
    let run = |args: &[&str], quiet: bool| {
        let mut command = Command::new(&program);
        command.current_dir(root).args(args);
        if quiet {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command.status().is_ok_and(|status| status.success())
    };
    if !run(&["--locked", "check", "licenses", "bans", "sources"], false) {
        found.wrong.push("a dependency breaks deny.toml; see the lines above".to_owned());
    }
    if !run(&["--locked", "fetch", "db"], true) {
        let what = "advisories of dependencies: their database cannot be reached from here";
        println!("SKIPPED: {what}");
        found.skipped.push(what.to_owned());
        return found;
    }
    if !run(&["--locked", "check", "--disable-fetch", "advisories"], false) {
        found.wrong.push("a dependency has a known fault; see the lines above".to_owned());
    }
    found
}

/// `cargo-deny` on the path or in Cargo's home, else installed there.
fn program() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let places = ["cargo-deny".into(), home.join("bin/cargo-deny")];
    if let Some(found) = places.iter().find(|place| runs(place)) {
        return Some(found.clone());
    }
    println!("cargo-deny is missing: cargo install --locked cargo-deny@{VERSION} (a minute or two, once)");
    // Unoptimised: it takes a quarter of the time to build and still checks the tree in a second.
    let status = Command::new("cargo")
        .args(["install", "--quiet", "--locked", "--debug", &format!("cargo-deny@{VERSION}")])
        .env_remove("CARGO_TARGET_DIR")
        .status();
    let place = home.join("bin/cargo-deny");
    (status.is_ok_and(|status| status.success()) && runs(&place)).then_some(place)
}

fn runs(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    output.is_ok_and(|status| status.success())
}
