use super::{DESCRIPTORS, OF_SOCKETS, PATHS, SPECIAL};
use std::collections::BTreeMap;

/// What is done with every system call: `NUMBER NAME | hooked`, or another word and why.
const TABLE: &str = include_str!("../../syscalls.txt");
/// The kernel's own list, of the machine that runs the test.
const HEADER: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";

fn table() -> BTreeMap<i64, (&'static str, &'static str)> {
    let line = |line: &'static str| {
        let (number, rest) = line.split_once(' ').expect("a number and a name");
        let (name, what) = rest.split_once(" | ").expect("a name and what is done");
        (number.parse().expect("a number"), (name, what))
    };
    TABLE.lines().map(line).collect()
}

#[test]
fn the_table_says_what_the_dispatch_does() {
    let routed = || DESCRIPTORS.iter().chain(PATHS).chain(SPECIAL).chain(OF_SOCKETS).copied();
    let table = table();
    for number in routed() {
        let found = table.get(&number);
        assert!(
            found.is_some_and(|(_, what)| *what == "hooked"),
            "{number} is dispatched; the table: {found:?}"
        );
        assert_eq!(routed().filter(|&other| other == number).count(), 1, "{number} is dispatched once");
    }
    for (number, (name, what)) in &table {
        assert_eq!(*what == "hooked", routed().any(|routed| routed == *number), "{name}: {what}");
    }
}

#[test]
fn every_call_of_the_kernel_is_in_the_table() {
    let Ok(header) = std::fs::read_to_string(HEADER) else {
        eprintln!("SKIPPED: no {HEADER}; install linux-libc-dev to run this test");
        return;
    };
    let table = table();
    let calls: Vec<(&str, i64)> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '))
        .filter_map(|(name, number)| Some((name, number.trim().parse().ok()?)))
        .collect();
    assert!(calls.len() > 300, "{} calls in {HEADER}", calls.len());
    for (name, number) in calls {
        assert_eq!(table.get(&number).map(|(name, _)| *name), Some(name), "{number} in syscalls.txt");
    }
}
