//! `nvmed kv`: what is put is there, in a file and on a device, and what is wrong is said.

use crate::scratch::{Ran, Scratch};
use std::io::Write;
use std::process::Stdio;

fn store() -> Scratch {
    let scratch = Scratch::new();
    scratch.ok(["kv", "format", "s.kv", "--size", "16M"]);
    scratch
}

fn with_input(scratch: &Scratch, arguments: &[&str], input: &[u8]) -> Ran {
    let mut command = scratch.nvmed(arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Ran::from(child.wait_with_output().unwrap())
}

#[test]
fn what_is_put_is_there_until_it_is_removed() {
    for name in ["s.kv", "virtual:d.img", "virtual:d4.img?lba=4096"] {
        let scratch = Scratch::new();
        scratch.ok(["kv", "format", name, "--size", "16M"]);
        scratch.ok(["kv", "put", name, "a\\x00b", "x y"]);
        scratch.ok(["kv", "put", name, "c", ""]);
        assert_eq!(scratch.ok(["kv", "get", name, "a\\x00b", "c"]), "x y\n\n", "{name}");
        assert_eq!(scratch.ok(["kv", "get", name, "--hex", "610062"]), "782079\n");
        assert_eq!(scratch.ok(["kv", "scan", name]), "a\\x00b\tx y\nc\t\n");
        assert_eq!(scratch.ok(["kv", "check", name]), format!("{name}: clean, 2 records\n"));
        scratch.ok(["kv", "del", name, "c", "never"]);
        scratch.fails(["kv", "get", name, "c"], 1, "no key `c`");
        assert_eq!(scratch.ok(["kv", "scan", name, "--count"]), "1\n");
    }
}

#[test]
fn a_scan_has_ends_a_direction_and_a_limit() {
    let scratch = store();
    let lines: String = ["a", "ab", "b", "ba", "bb", "c"].map(|key| format!("{key}\t1\n")).concat();
    let put = with_input(&scratch, &["kv", "put", "s.kv", "--batch", "--atomic", "4"], lines.as_bytes());
    assert_eq!(put.status, 0, "{}", put.err);
    let scan = |more: &[&str]| {
        let out = scratch.ok(["kv", "scan", "s.kv", "--keys"].iter().chain(more));
        out.lines().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(scan(&[]), "a ab b ba bb c");
    assert_eq!(scan(&["--from", "ab", "--to", "bb"]), "ab b ba");
    assert_eq!(scan(&["--from", "ab", "--to", "bb", "--reverse"]), "ba b ab");
    assert_eq!(scan(&["--prefix", "b"]), "b ba bb");
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "c bb");
    assert_eq!(scan(&["--limit", "0"]), "");
    assert_eq!(scan(&["--from", "c", "--to", "a"]), "");
    scratch.ok(["kv", "del", "s.kv", "--range", "ab", "bb"]);
    assert_eq!(scan(&[]), "a bb c");
    let json = scratch.ok(["kv", "scan", "s.kv", "--format", "json", "--limit", "1"]);
    assert_eq!(json, "{\"key\":\"a\",\"value\":\"1\"}\n");
}

#[test]
fn what_is_wrong_is_said() {
    let scratch = store();
    scratch.fails(["kv", "get", "none.kv", "a"], 4, "`nvmed kv format none.kv --size 256M` makes it");
    scratch.fails(["kv", "format", "s.kv"], 4, "holds an nvmed key-value store; --force overwrites it");
    scratch.fails(["kv", "put", "s.kv", "a\\q", "1"], 2, "key `a\\q` is not text");
    scratch.fails(["kv", "del", "s.kv", "--range", "b", "a"], 2, "FROM is not below TO");
    scratch.file("text", "dear diary");
    assert_ne!(scratch.run(["kv", "get", "text", "a"]).status, 0);
    scratch.fails(["kv", "format", "text", "--size", "16M"], 4, "--force overwrites it");
    let put = with_input(&scratch, &["kv", "put", "s.kv", "--batch"], b"a\t1\nb\n");
    assert_eq!(put.status, 2);
    assert!(put.err.contains("line 2 has no tab"), "{}", put.err);
    let long = vec![b'v'; nvmed_kv::VALUE_BYTES_MAX + 1];
    let put = with_input(&scratch, &["kv", "put", "s.kv", "a", "--value-from", "-"], &long);
    assert_eq!(put.status, 2, "{}", put.err);
}

#[test]
fn a_store_can_be_made_with_its_first_key() {
    let scratch = Scratch::new();
    scratch.ok(["kv", "put", "new.kv", "a", "1", "--create", "--size", "16M"]);
    scratch.ok(["kv", "put", "new.kv", "b", "2", "--create", "--size", "16M"]);
    assert_eq!(scratch.ok(["kv", "scan", "new.kv"]), "a\t1\nb\t2\n");
}

#[test]
fn damage_is_found() {
    let scratch = store();
    let lines: String = (0..2000).map(|number| format!("key{number:05}\t{number}\n")).collect();
    with_input(&scratch, &["kv", "put", "s.kv", "--batch"], lines.as_bytes());
    let path = scratch.path("s.kv");
    let mut bytes = std::fs::read(&path).unwrap();
    let node = bytes.chunks(4096).rposition(|block| block.windows(8).any(|part| part == b"key01999"));
    bytes[node.unwrap() * 4096 + 2000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let check = scratch.run(["kv", "check", "s.kv"]);
    // In a block of the tree it is damage; in the log, which ends there, it is not.
    assert!(
        check.status == 1 && check.out.contains("damaged") || check.out.contains("clean"),
        "{}",
        check.out
    );
}

#[test]
fn a_measurement_in_simulated_time_repeats() {
    let scratch = Scratch::new();
    for device in
        ["virtual:?media=dram,size=64M,profile=slc,clock=virtual", "nvm:?size=64M,profile=nand,buffer=1M"]
    {
        let run = || scratch.ok(["kv", "bench", device, "--pairs", "500", "--json"]);
        assert_eq!(run(), run());
        scratch.fails(["kv", "bench", device, "--threads", "2"], 2, "take --threads 1");
    }
}

#[test]
fn a_measurement_checks_what_it_reads() {
    let scratch = Scratch::new();
    let device = "virtual:?media=dram,size=64M";
    let out =
        scratch.ok(["kv", "bench", device, "--pairs", "2000", "--threads", "3", "--value-bytes", "100"]);
    assert!(out.starts_with("put 2000 pairs of 32+100 bytes, 3 threads"), "{out}");
    assert!(out.lines().nth(1).unwrap().starts_with("get 2000 pairs"), "{out}");
    scratch.ok(["kv", "put", "b.kv", "mine", "1", "--create", "--size", "32M"]);
    let json = scratch.ok(["kv", "bench", "b.kv", "--pairs", "500", "--batch", "50", "--json"]);
    assert!(
        json.starts_with("{\"store\":\"b.kv\",\"threads\":1,") && json.contains("\"get\":{\"pairs\":500,"),
        "{json}"
    );
    assert_eq!(scratch.ok(["kv", "scan", "b.kv"]), "mine\t1\n", "it removes what it put");
}
