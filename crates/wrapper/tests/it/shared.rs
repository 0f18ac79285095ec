//! Several processes of one run: what fork, exec and programs together see of a shared mount.

use crate::support::Bench;

/// Runs a shell script in our directory.
fn script(bench: &Bench, shell: &str, text: &str) -> String {
    bench.ok_shared(&[shell, "-c", &format!("cd {} && {text}", bench.path(""))])
}

#[test]
fn a_shell_pipes_redirects_and_goes_on() {
    for shell in ["bash", "dash"] {
        let Some(bench) = Bench::new("", &[shell]) else { return };
        let issue = "echo a >f; sort <f >g; { cat g; printf b; } >>f; cat f";
        assert_eq!(script(&bench, shell, issue), "a\na\nb", "{shell}");
        assert_eq!(script(&bench, shell, "echo x > h; cat h"), "x\n");
        let pipes = "for n in 3 1 2; do echo $n; done | sort | tee sorted | tail -n 1; cat sorted | wc -l";
        assert_eq!(script(&bench, shell, pipes), "3\n3\n", "{shell}");
        let subshells = "(cd / && pwd); (mkdir -p d && cd d && echo in > f && pwd); pwd; cat d/f; \
                         x=$(cat d/f); echo got $x; exec 3>out; (echo one >&3); echo two >&3; cat out";
        let here = bench.path("").trim_end_matches('/').to_owned();
        let want = format!("/\n{here}/d\n{here}\nin\ngot in\none\ntwo\n");
        assert_eq!(script(&bench, shell, subshells), want, "{shell}");
        let jobs = "for n in 1 2 3 4; do (echo $n > job$n; echo $n >> all) & done; wait; cat job?; sort all";
        assert_eq!(script(&bench, shell, jobs), "1\n2\n3\n4\n1\n2\n3\n4\n", "{shell}");
        let here_document = "cat > doc <<END\nline\nEND\ncat doc; read -r l < doc; echo $l; set -C; (echo x > doc) \
         2>/dev/null || echo kept";
        assert_eq!(script(&bench, shell, here_document), "line\nline\nkept\n", "{shell}");
        bench.fsck();
    }
}

#[test]
fn what_a_run_leaves_the_next_one_finds() {
    let Some(bench) = Bench::new("", &["bash", "cat"]) else { return };
    script(&bench, "bash", "mkdir -p a/b; echo kept > a/b/c; (echo by a child > a/d)");
    assert_eq!(script(&bench, "bash", "cat a/b/c a/d"), "kept\nby a child\n");
    // A private mount sees the same.
    assert_eq!(bench.ok(&["cat", &bench.path("a/b/c")]), "kept\n");
    bench.fsck();
}

#[test]
fn make_builds_a_program_with_two_jobs() {
    let Some(bench) = Bench::new("", &["bash", "make", "cc"]) else { return };
    let sources = "mkdir p && cd p && \
         for n in 1 2 3 4; do echo \"int f$n(void) { return $n; }\" > f$n.c; done && \
         echo 'int f1(void), f2(void), f3(void), f4(void); int main(void) { return f1()+f2()+f3()+f4(); }' > m.c && \
         printf 'O = m.o f1.o f2.o f3.o f4.o\\nprog: $(O)\\n\\tcc -o $@ $(O)\\n%%.o: %%.c\\n\\tcc -c -o $@ $<\\n' > \
         Makefile";
    script(&bench, "bash", sources);
    let built = script(&bench, "bash", "cd p && make -s -j2 && make -q && cp prog /dev/stdout");
    assert!(built.contains("ELF"), "a program: {} bytes", built.len());
    bench.fsck();
}

macro_rules! scripts {
    ($($name:ident $function:literal;)*) => { $(
        #[test]
        fn $name() {
            let Some(bench) = Bench::new("", &["python3"]) else { return };
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/shared.py");
            let here = bench.path("");
            bench.ok_shared(&["python3", file, $function, here.trim_end_matches('/')]);
            bench.fsck();
        }
    )* };
}
scripts! {
    a_forked_child_shares_the_offset "offset";
    a_forked_child_has_a_descriptor_table_of_its_own "table";
    a_forked_child_is_in_the_same_directory "directory";
    children_of_children_write "grandchildren";
    children_of_a_process_that_has_nothing_open_write "untouched";
    appends_of_several_processes_are_whole "appends";
    flock_is_the_descriptions "flocks";
    record_locks_are_the_processs "record_locks";
    two_processes_map_one_file "maps";
    a_mapping_becomes_writable_later "protections";
    a_file_is_made_with_all_the_bits_of_its_mode "modes";
    a_program_inherits_hundreds_of_open_files "many";
    flags_that_one_process_sets_another_one_sees "flags";
    descriptors_that_the_program_did_not_open_are_not_there "sight";
    a_program_learns_how_its_descriptors_were_named "named";
    a_mapped_file_grows "growing";
    a_fork_waits_for_no_other_thread "threads";
    descriptors_go_along_over_exec_unless_closed "descriptors";
    a_pool_of_python_processes_writes "pool";
    a_child_on_a_terminal_writes "terminal";
    a_daemon_goes_on "daemon";
    a_process_that_gives_up_its_rights_has_none "identity";
}

#[test]
fn a_child_made_below_libc_fails_loudly_and_changes_nothing() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/shared.py");
    let output = bench.run_shared(&["python3", file, "raw", bench.path("").trim_end_matches('/')]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors.lines().count(), 1, "one line: {errors}");
    assert!(errors.contains("made from process") && errors.contains("below libc"), "{errors}");
    bench.fsck();
}
