//! sqlite3, unmodified, in every journal mode.

use crate::support::Bench;

const MODES: [&str; 5] = ["DELETE", "TRUNCATE", "PERSIST", "WAL", "MEMORY"];

fn work(mode: &str, extra: &str) -> String {
    format!(
        "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL; {extra}\n\
         CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);\n\
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1200)\n\
         INSERT INTO t SELECT i, hex(zeroblob(i % 300)) FROM n;\n\
         CREATE INDEX by_v ON t(v);\n\
         BEGIN; DELETE FROM t WHERE id % 7 = 0; ROLLBACK;\n\
         DELETE FROM t WHERE id % 5 = 0;\n\
         UPDATE t SET v = v || 'x' WHERE id % 3 = 0;\n\
         SELECT count(*), sum(length(v)) FROM t;\n\
         PRAGMA integrity_check;\n"
    )
}

/// The same statements give the same answers as on the host, and the database is whole afterwards.
#[test]
fn every_journal_mode_with_and_without_mmap() {
    for mode in MODES {
        for extra in
            ["", "PRAGMA mmap_size=268435456;", "PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=10;"]
        {
            let Some(bench) = Bench::new("", &["sqlite3"]) else { return };
            let host = bench.host().join("host.db").display().to_string();
            let (script, ours) = (work(mode, extra), bench.path("a.db"));
            let wanted = bench.ok(&["sqlite3", &host, &script]);
            assert_eq!(bench.ok(&["sqlite3", &ours, &script]), wanted, "{mode} {extra}");
            let again =
                "PRAGMA integrity_check; SELECT count(*), sum(length(v)) FROM t; PRAGMA journal_mode;";
            assert_eq!(
                bench.ok(&["sqlite3", &ours, again]),
                bench.ok(&["sqlite3", &host, again]),
                "{mode} {extra}"
            );
            bench.fsck();
        }
    }
}

#[test]
fn backup_vacuum_import_and_output() {
    let Some(bench) = Bench::new("", &["sqlite3"]) else { return };
    let (ours, copy) = (bench.path("a.db"), bench.path("copy.db"));
    let csv = bench.path("in.csv");
    let rows: String = (0..2000).map(|row| format!("{row},name {row}\n")).collect();
    let on_host = bench.host().join("in.csv");
    std::fs::write(&on_host, &rows).expect("a file");
    bench.ok(&["cp", on_host.to_str().unwrap(), &csv]);
    let (output, dump) = (bench.path("out.txt"), bench.path("dump.sql"));
    bench.ok(&[
        "sqlite3",
        &ours,
        "CREATE TABLE t(id INTEGER, name TEXT);",
        ".mode csv",
        &format!(".import {csv} t"),
        &format!(".output {output}"),
        "SELECT count(*) FROM t;",
        ".output",
        "DELETE FROM t WHERE id % 2;",
        "VACUUM;",
        &format!(".backup {copy}"),
        &format!(".output {dump}"),
        ".dump",
    ]);
    assert_eq!(bench.ok(&["cat", &output]), "2000\n");
    assert_eq!(bench.ok(&["sqlite3", &copy, "PRAGMA integrity_check; SELECT count(*) FROM t"]), "ok\n1000\n");
    assert!(bench.ok(&["tail", "-n", "1", &dump]).starts_with("COMMIT"));
    bench.fsck();
}

/// Two connections of one process, as threads of a server have: locks between them are the real ones.
#[test]
fn two_connections_in_one_process_exclude_each_other() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = "
import sqlite3, sys, threading
for mode in ('DELETE', 'WAL'):
    path = sys.argv[1] + mode
    first = sqlite3.connect(path, isolation_level=None, timeout=0)
    second = sqlite3.connect(path, isolation_level=None, timeout=0)
    first.execute('PRAGMA journal_mode=' + mode); first.execute('CREATE TABLE t(x)')
    first.execute('BEGIN IMMEDIATE'); first.execute('INSERT INTO t VALUES(1)')
    try: second.execute('BEGIN IMMEDIATE'); raise SystemExit('two writers at once')
    except sqlite3.OperationalError as error: assert 'locked' in str(error)
    assert second.execute('SELECT count(*) FROM t').fetchone()[0] == 0
    first.execute('COMMIT')
    assert second.execute('SELECT count(*) FROM t').fetchone()[0] == 1
    def work(number):
        db = sqlite3.connect(path, timeout=60)
        for turn in range(50):
            with db: db.execute('INSERT INTO t VALUES(?)', (number * 1000 + turn,))
    workers = [threading.Thread(target=work, args=[n]) for n in range(3)]
    [w.start() for w in workers]; [w.join() for w in workers]
    assert first.execute('SELECT count(*) FROM t').fetchone()[0] == 151
    assert first.execute('PRAGMA integrity_check').fetchone()[0] == 'ok'
";
    bench.ok(&["python3", "-c", script, &bench.path("db")]);
    bench.fsck();
}
