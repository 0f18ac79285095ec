//! `nvmed top` and `nvmed stats`, `nvmed run --stats --summary --record`: what a user sees of a run.

use crate::scratch::Scratch;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

/// A shell that has written a file below `dir` and waits; it ends with its standard input.
fn writer(scratch: &Scratch, run: &[&str]) -> Child {
    begin(scratch, run, "echo hello >store/f; cat store/f; cat >>store/f; echo ended")
}

/// Runs a script of the shell, which says hello.
fn begin(scratch: &Scratch, run: &[&str], script: &str) -> Child {
    let mut command = scratch.nvmed(run.iter().copied());
    command.args(["--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hello\n");
    child
}

fn end(mut child: Child) -> String {
    child.stdin.take().unwrap().write_all(b"more\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {errors}", output.status);
    errors
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn count(statistics: &serde_json::Value, call: &str) -> u64 {
    let calls = statistics["calls"].as_array().unwrap();
    let row = calls.iter().find(|row| row["call"] == call);
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

#[test]
fn a_shared_run_is_found_by_its_process_and_tells_what_it_does() {
    let scratch = Scratch::with_device("64M");
    let child = writer(&scratch, &["run", "--shared", "-D", "d.img", "-d", "store"]);
    let pid = child.id().to_string();
    let told = json(&scratch.ok(["stats", "--json", &pid]));
    assert!(count(&told, "open") >= 2 && count(&told, "write") >= 1, "{told}");
    assert!(told["device"].as_str().unwrap().contains("d.img"), "{told}");
    assert_eq!(told["cache"]["bytes"], 64 << 20, "{told}");
    let sessions = told["sessions"].as_array().unwrap();
    assert!(sessions.iter().any(|one| one["command"] == "sh") && sessions.len() <= 3, "{told}");
    let text = scratch.ok(["top", "--once", "--interval", "0.1", &pid]);
    assert!(text.starts_with("nvmed top process") && text.contains("COMMAND"), "{text}");
    assert!(text.lines().any(|line| line.contains(" sh ")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("posted opens ")), "{text}");
    let text = scratch.ok(["stats", &pid]);
    assert!(text.contains("calls of the server: ") && text.contains("messages (adopt "), "{text}");
    end(child);
}

#[test]
fn runs_are_named_by_their_programs() {
    let (one, other) = (Scratch::with_device("64M"), Scratch::new());
    let shared = writer(&one, &["run", "--shared", "-D", "d.img", "-d", "store"]);
    std::fs::create_dir(other.path("store")).unwrap();
    let hosted = writer(&other, &["run", "--filesystem", "host", "-d", "store", "--summary"]);
    let another = Scratch::with_device("64M");
    let second = writer(&another, &["run", "--shared", "-D", "d.img", "-d", "store"]);
    for pid in [shared.id(), hosted.id()] {
        let text = one.ok(["top", "--once", "--interval", "0.1", &pid.to_string()]);
        assert!(text.lines().next().unwrap().contains("(sh -c echo hello >store/f; "), "{text}");
    }
    // Other tests may run something too; these are several in any case.
    one.fails(["top", "--once"], 1, " (sh -c echo hello >store/f; cat store/f; cat >>store/f; echo ");
    for child in [shared, hosted, second] {
        end(child);
    }
}

#[test]
fn a_run_on_the_host_is_counted_recorded_and_summed_up() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("store")).unwrap();
    let run = ["run", "--filesystem", "host", "-d", "store", "--stats", "s", "--summary", "--record", "r"];
    let child = writer(&scratch, &run);
    let pid = child.id().to_string();
    let told = json(&scratch.ok(["stats", "--json", &pid]));
    assert!(count(&told, "open") >= 2 && count(&told, "write") == 1, "{told}");
    let text = scratch.ok(["stats", &pid]);
    assert!(text.contains("has no server") && text.contains("\nopen "), "{text}");
    let summary = end(child);
    assert!(summary.contains("file calls took") && summary.contains(" write\n"), "{summary}");
    assert_eq!(std::fs::read_to_string(scratch.path("store/f")).unwrap(), "hello\nmore\n");
    let lines: Vec<_> = std::fs::read_to_string(scratch.path("s")).unwrap().lines().map(json).collect();
    assert_eq!(
        (&lines[0]["filesystem"], &lines[0]["records_lost"]),
        (&"host".into(), &0.into()),
        "{lines:?}"
    );
    let write = lines.iter().find(|line| line["call"] == "write").unwrap();
    assert_eq!((&write["count"], &write["bytes"]), (&2.into(), &11.into()), "{write}");
    let records = std::fs::read_to_string(scratch.path("r")).unwrap();
    let lines = records.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split('\t').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 14), "{records}");
    let opened = rows.iter().filter(|row| row[3] == "open" && row[5] == "\"store/f\"").count();
    assert_eq!(opened, 3, "{records}");
}

#[test]
fn a_run_tells_what_its_processes_asked_the_server_for_and_what_not_when_they_have_ended() {
    let scratch = Scratch::with_device("64M");
    let asks = "echo hello >store/f
        for child in 1 2 3; do (i=0; while [ $i -lt 100 ]; do test -f store/f; i=$((i + 1)); done); done
        (for i in 1 2 3 4 5 6 7 8 9; do echo line; done) >store/g";
    let run =
        ["run", "--shared", "-D", "d.img", "-d", "store", "--stats", "s", "--summary", "--", "sh", "-c"];
    let ran = scratch.run(run.into_iter().chain([asks]));
    assert_eq!(ran.status, 0, "{}", ran.err);
    let lines: Vec<_> = std::fs::read_to_string(scratch.path("s")).unwrap().lines().map(json).collect();
    let told = lines.iter().find(|line| line["spared"].is_object()).unwrap();
    let of = |what: &str| told["spared"][what].as_u64().unwrap();
    let asked: u64 =
        lines.iter().filter(|line| line["call"] == "stat").map(|line| line["count"].as_u64().unwrap()).sum();
    // Of each child the first ones, before it has a shelf, are round trips.
    assert!(asked >= 300 && of("names") >= 300 - 3 * 8, "{told}");
    assert!(of("names") + told["round_trips"].as_u64().unwrap() >= asked, "{told}");
    // The shell, three children that ask for a shelf, and the one that writes.
    let messages = &told["messages"];
    assert_eq!((&messages["hello"], &messages["shelf"]), (&5.into(), &3.into()), "{told}");
    for words in ["calls of the server: ", " names and statuses, ", "posted: "] {
        assert!(ran.err.contains(words), "{}", ran.err);
    }
}

#[test]
fn who_is_not_there_is_said() {
    let scratch = Scratch::new();
    scratch.fails(["stats", "4294967295"], 1, "uses no server");
    scratch.fails(["top", "--once", "/no/such/socket"], 1, "/no/such/socket: no server is running there");
    let here = scratch.path("");
    let here = here.to_str().unwrap().trim_end_matches('/');
    scratch.fails(
        ["stats", here],
        1,
        "a directory, and no server's socket; a mount of `nvmed mount` has no counts",
    );
    scratch.fails(["stats", "neither"], 2, "no process and no socket");
}

/// A process that has outlived its run names a server that has ended.
#[test]
fn what_a_dead_run_has_left_over_is_told() {
    let scratch = Scratch::with_device("64M");
    // Once it has said so it asks nothing of the server, and outlives it.
    let mut child =
        begin(&scratch, &["run", "--shared", "-D", "d.img", "-d", "store"], "echo hello; read line");
    let pid = child.id();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let below: Vec<u32> = list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    let shell = below.iter().find(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sh\0"))
    });
    let shell = shell.expect("the program").to_string();
    // The run and its server die, the program stays: it waits for its input.
    let input = child.stdin.take();
    child.kill().unwrap();
    child.wait().unwrap();
    let dead = std::time::Instant::now();
    loop {
        let ran = scratch.run(["stats", &shell]);
        assert!(dead.elapsed().as_secs() < 20, "the server is still there: {}", ran.out);
        if ran.status == 0 {
            continue;
        }
        let told = format!("the server of process {shell} (sh -c echo hello");
        assert!(ran.status == 1 && ran.err.contains(&told), "{}", ran.err);
        assert!(ran.err.contains("has ended: its run is over"), "{}", ran.err);
        break;
    }
    drop(input);
}
