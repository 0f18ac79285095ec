use super::{OF_ROWS, OF_SOCKETS, SPECIAL};
use std::collections::BTreeMap;

/// What is done with every system call that has no row: `NUMBER NAME | hooked`, or another word and why.
const TABLE: &str = include_str!("../../syscalls.txt");
/// The kernel's own list, of the machine that runs the test.
const HEADER: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";

/// Numbers that are answered and not counted: no file calls, or none below `wrap_dir` that could succeed.
const UNCOUNTED: &[&str] = &[
    // Waits, sockets, messages.
    "SYS_poll",
    "SYS_ppoll",
    "SYS_select",
    "SYS_epoll_ctl",
    "SYS_connect",
    "SYS_bind",
    "SYS_sendto",
    "SYS_getsockname",
    "SYS_getpeername",
    "SYS_sendmsg",
    "SYS_sendmmsg",
    "SYS_recvmsg",
    "SYS_recvmmsg",
    // Pipes, and many descriptors at once.
    "SYS_tee",
    "SYS_vmsplice",
    "SYS_close_range",
    // The process: its memory, its programs, its children, where it is.
    "SYS_mprotect",
    "SYS_execve",
    "SYS_execveat",
    "SYS_vfork",
    "SYS_umask",
    "SYS_getcwd",
    // Refused.
    "SYS_name_to_handle_at",
    "SYS_inotify_add_watch",
    "SYS_fanotify_mark",
    "SYS_mount",
    "SYS_umount2",
    "SYS_chroot",
    "SYS_pivot_root",
    "SYS_swapon",
    "SYS_swapoff",
    "SYS_acct",
    "SYS_quotactl",
    "SYS_open_tree",
    "SYS_move_mount",
    "SYS_fspick",
    "SYS_mount_setattr",
];

/// What a row says of its number, if it has one: the number's name, and whether it is counted.
struct Row {
    number: &'static [(&'static str, i64)],
    counted: &'static [bool],
}

macro_rules! listed {
    (@none) => {
        false
    };
    (@$($shape:tt)+) => {
        true
    };
    ($($module:ident { $(
        $function:ident: $($gate:ident [$($name:ident)+] $takes:literal)? $(($($shape:tt)+))?
            $(@$about:ident $number:ident ($($word:literal),*))?;
    )* })*) => {
        const ROWS: &[Row] = &[$($( Row {
            number: &[$((stringify!($number), libc::$number))?],
            counted: &[$(listed!(@$($shape)+))?],
        } ),*),*];
    };
}
rows!(listed);

fn table() -> BTreeMap<i64, (&'static str, &'static str)> {
    let line = |line: &'static str| {
        let (number, rest) = line.split_once(' ').expect("a number and a name");
        let (name, what) = rest.split_once(" | ").expect("a name and what is done");
        (number.parse().expect("a number"), (name, what))
    };
    TABLE.lines().map(line).collect()
}

#[test]
fn the_table_says_what_is_done_with_what_has_no_row() {
    let routed = || SPECIAL.iter().chain(OF_SOCKETS).copied();
    let all = || OF_ROWS.iter().map(|(number, _)| *number).chain(routed());
    let table = table();
    for number in all() {
        assert_eq!(all().filter(|&other| other == number).count(), 1, "{number} is dispatched once");
    }
    for (number, _) in OF_ROWS {
        assert!(!table.contains_key(number), "{number} has a row: not in syscalls.txt");
    }
    for number in routed() {
        assert!(table.contains_key(&number), "{number} is dispatched, and not in syscalls.txt");
    }
    for (number, (name, what)) in &table {
        assert_eq!(*what == "hooked", routed().any(|routed| routed == *number), "{name}: {what}");
    }
}

#[test]
fn a_number_that_is_answered_is_counted() {
    for row in ROWS {
        let [(name, _)] = row.number else { continue };
        let counted = row.counted == [true];
        assert_eq!(!counted, UNCOUNTED.contains(name), "{name}: counted: {counted}");
    }
}

#[test]
fn every_call_of_the_kernel_is_in_the_table_or_has_a_row() {
    let Ok(header) = std::fs::read_to_string(HEADER) else {
        eprintln!("SKIPPED: no {HEADER}; install linux-libc-dev to run this test");
        return;
    };
    let mut known: BTreeMap<i64, &str> =
        table().into_iter().map(|(number, (name, _))| (number, name)).collect();
    for (name, number) in ROWS.iter().flat_map(|row| row.number) {
        known.insert(*number, name.trim_start_matches("SYS_"));
    }
    let calls: Vec<(&str, i64)> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '))
        .filter_map(|(name, number)| Some((name, number.trim().parse().ok()?)))
        .collect();
    assert!(calls.len() > 300, "{} calls in {HEADER}", calls.len());
    for (name, number) in calls {
        assert_eq!(known.get(&number), Some(&name), "{number} in rows.rs or syscalls.txt");
    }
}
