//! FIFOs and sockets that have their names in our file system: what programs do with them is the kernel's.

use crate::support::Bench;

/// In a shared run; whatever waits for ever is a failure.
fn shared(bench: &Bench, words: &[&str]) -> String {
    bench.ok_shared(&[&["timeout", "60"], words].concat())
}

fn private(bench: &Bench, words: &[&str]) -> String {
    bench.ok(&[&["timeout", "60"], words].concat())
}

/// Runs a function of a script of ours, each in a file system of its own.
fn python(script: &str, function: &str, mounts: &[fn(&Bench, &[&str]) -> String]) {
    for mount in mounts {
        let Some(bench) = Bench::new("", &["python3"]) else { return };
        let file = format!("{}/tests/scripts/{script}.py", env!("CARGO_MANIFEST_DIR"));
        let here = bench.path("");
        print!("{}", mount(&bench, &["python3", "-B", &file, function, here.trim_end_matches('/')]));
        bench.fsck();
    }
}

macro_rules! scripts {
    ($($name:ident $script:literal $function:literal $mounts:expr;)*) => { $(
        #[test]
        fn $name() {
            python($script, $function, $mounts);
        }
    )* };
}
scripts! {
    a_fifo_opens_as_its_flags_say "pipes" "flags" &[private, shared];
    a_fifo_keeps_its_pipe_under_all_its_names "pipes" "names" &[private, shared];
    threads_meet_at_a_fifo "pipes" "threads" &[private, shared];
    a_fifo_is_waited_for_as_a_pipe "pipes" "readiness" &[private, shared];
    a_signal_ends_the_wait_for_the_other_end "pipes" "interrupted" &[private, shared];
    what_is_gone_takes_no_descriptor "pipes" "leaves_nothing" &[private, shared];
    processes_meet_at_a_fifo "pipes" "processes" &[shared];
    a_fifo_is_its_owners_to_permit "pipes" "permission" &[shared];
    a_bound_socket_has_a_name "sockets" "names" &[private, shared];
    datagrams_go_to_paths_and_back "sockets" "datagrams" &[private, shared];
    processes_meet_at_a_socket "sockets" "processes" &[shared];
    a_socket_is_its_owners_to_permit "sockets" "permission" &[shared];
    who_is_somebody_else_elsewhere_binds "sockets" "mapped" &[shared];
    a_socket_in_anothers_place_is_not_bound "sockets" "replaced" &[shared];
}

#[test]
fn shells_meet_at_a_fifo() {
    for shell in ["bash", "dash"] {
        let Some(bench) = Bench::new("", &[shell, "cat"]) else { return };
        let text =
            format!("cd {} && mkfifo p && {{ cat <p & }} && echo hi >p; wait; ls -l p", bench.path(""));
        let said = shared(&bench, &[shell, "-c", &text]);
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("hi"), "{shell}");
        assert!(lines.next().is_some_and(|line| line.starts_with('p')), "{shell}: {said}");
        let text = format!(
            "cd {} && mkfifo q && {{ sort -n <q >sorted & }} && exec 3>q && for n in 3 1 2; do echo $n >&3; done; \
             exec 3>&-; wait; cat sorted",
            bench.path("")
        );
        assert_eq!(shared(&bench, &[shell, "-c", &text]), "1\n2\n3\n", "{shell}");
        bench.fsck();
    }
}
