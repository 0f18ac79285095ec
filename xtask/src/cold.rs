//! `cargo xtask cold CRATE`: what a dependency adds to a cold build, in processor time of the compiler.
//!
//! The default build is made from nothing in a directory of its own, with this program before each run of the compiler,
//! which notes what the run took. The dependency's part is that of the packages that nobody else needs; the time that
//! other builds take beside it does not count.

use crate::gate;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Names the file of notes, where this program is run before the compiler.
const NOTES: &str = "XTASK_COLD_NOTES";
/// A tick of the times in `/proc/self/stat`, in seconds.
const TICK_S: f64 = 0.01;

/// Runs the compiler, where Cargo has put this program before it.
pub fn before_compiler(arguments: &[String]) -> Option<ExitCode> {
    let notes = std::env::var_os(NOTES)?;
    let (compiler, arguments) = arguments.split_first()?;
    let status = Command::new(compiler).args(arguments).status();
    // Without a package it is a question about the compiler.
    if let Ok(package) = std::env::var("CARGO_PKG_NAME") {
        let line = format!("{package} {}\n", children_ticks());
        let mut file = OpenOptions::new().create(true).append(true).open(notes).ok()?;
        file.write_all(line.as_bytes()).ok()?;
    }
    let code = status.ok().and_then(|status| status.code()).unwrap_or(1);
    Some(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Processor time of the children that have ended.
fn children_ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name come the state and the rest: cutime and cstime are fields 16 and 17.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(13).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Builds, and prints both times.
pub fn run(name: &str) -> ExitCode {
    let root = gate::root();
    match measure(&root, name) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cold: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(root: &Path, name: &str) -> Result<String, String> {
    let own = only_for(&tree(root)?, name);
    if !own.contains(name) {
        return Err(format!("no crate of the default build depends on `{name}`"));
    }
    let target = root.join("target/cold");
    let removed = || match std::fs::remove_dir_all(&target) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{target:?}: {error}")),
        _ => Ok(()),
    };
    removed()?;
    std::fs::create_dir_all(&target).map_err(|error| format!("{target:?}: {error}"))?;
    let notes = target.join("notes");
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(root).args(["build", "--locked"]).env("RUSTC_WRAPPER", this).env(NOTES, &notes);
    // Cargo has told it to this program.
    build.env_remove("CARGO_PKG_NAME");
    let is_built =
        build.env("CARGO_TARGET_DIR", &target).status().map_err(|error| error.to_string())?.success();
    let text = std::fs::read_to_string(&notes).unwrap_or_default();
    removed()?;
    if !is_built {
        return Err("the build has failed".to_owned());
    }
    let spent = text.lines().filter_map(|line| line.split_once(' '));
    let spent: Vec<(&str, f64)> = spent
        .filter_map(|(package, ticks)| Some((package, ticks.parse::<u64>().ok()? as f64 * TICK_S)))
        .collect();
    let all: f64 = spent.iter().map(|(_, seconds)| seconds).sum();
    let with: f64 = spent.iter().filter(|(package, _)| own.contains(*package)).map(|(_, s)| s).sum();
    Ok(format!(
        "cold build: {all:.0} s of processor time, {:.0} s without {name} (it adds {:.0} %); only {name} needs: {}",
        all - with,
        100.0 * with / (all - with),
        own.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    ))
}

/// The packages of the default build, each below what depends on it, with its depth before it.
fn tree(root: &Path) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["tree", "--locked", "--edges", "normal,build", "--no-dedupe"]);
    let out = command.args(["--prefix", "depth"]).output().map_err(|error| error.to_string())?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The packages that are nowhere but below this one, and itself.
fn only_for(tree: &str, name: &str) -> BTreeSet<String> {
    let (mut below, mut elsewhere) = (BTreeSet::new(), BTreeSet::new());
    let mut begun = None;
    for line in tree.lines() {
        let digits = line.len() - line.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        let (Ok(depth), Some(package)) =
            (line[..digits].parse::<usize>(), line[digits..].split_whitespace().next())
        else {
            continue;
        };
        if begun.is_some_and(|begun| depth <= begun) {
            begun = None;
        }
        if begun.is_none() && package == name {
            begun = Some(depth);
        }
        if begun.is_some() { &mut below } else { &mut elsewhere }.insert(package.to_owned());
    }
    below.difference(&elsewhere).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_need_too_is_not_a_crates_own() {
        let tree =
            "0app v1\n1big v2\n2small v1\n2shared v1\n1other v1\n2shared v1\n\n0tool v1\n1big v2\n2small v1";
        let own: Vec<_> = only_for(tree, "big").into_iter().collect();
        assert_eq!(own, ["big", "small"]);
        assert!(only_for(tree, "none").is_empty());
    }
}
