//! Files that are mapped where they lie, on memory that keeps its bytes: what a program sees is what it sees on the
//! host, and no mapping of one file shows another's bytes.

use crate::support::Bench;
use std::path::Path;
use std::process::Command;

const TESTS: &str = "two_of_one\ngrowth_and_cuts\nstores\nprotections\nmoves\nown_pages\nchildren\nthreads\n";

fn script() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/maps.py").display().to_string()
}

#[test]
fn files_that_change_while_they_are_mapped_are_those_of_the_host() {
    let Some(bench) = Bench::in_place("flush=process", &["python3"]) else { return };
    let host = bench.host().join("host");
    std::fs::create_dir(&host).expect("a directory of the host");
    let plain = Command::new("python3").arg(script()).arg(&host).arg("host").output().expect("it starts");
    assert!(plain.status.success(), "{plain:?}");
    assert_eq!(bench.ok(&["python3", &script(), &bench.path(""), "ours"]), TESTS);
    bench.fsck();
}

/// The mappings are of the medium, and none of it is to be stored to that the program has not asked to store to.
#[test]
fn a_file_is_mapped_where_it_lies() {
    let Some(bench) = Bench::in_place("flush=host", &["python3"]) else { return };
    let look = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b'a' * 300000)
written = mmap.mmap(fd, 300000)
read = mmap.mmap(fd, 300000, prot=mmap.PROT_READ)
written[200000:200006] = b'stored'
assert read[200000:200006] == os.pread(fd, 6, 200000) == b'stored'
written.flush()
os.fsync(fd)
sizes = []
for line in open('/proc/self/maps'):
    span, access, _, _, _, *name = line.split()
    start, end = (int(number, 16) for number in span.split('-'))
    if name and name[0].endswith('disk.img') and end - start <= 303104:
        sizes.append((access, end - start))
print(sorted(sizes))
";
    let wanted = "[('r--s', 303104), ('rw-s', 303104)]\n";
    assert_eq!(bench.ok(&["python3", "-c", look, &bench.path("file")]), wanted);
    let read = "import sys; print(open(sys.argv[1], 'rb').read()[199999:200007])";
    assert_eq!(bench.ok(&["python3", "-c", read, &bench.path("file")]), "b'astoreda'\n");
    bench.fsck();
}

/// A child that outlives its parent's mount has files mapped: nobody else is given their blocks meanwhile.
#[test]
fn a_medium_is_busy_while_a_child_has_files_of_it_mapped() {
    let Some(bench) = Bench::in_place("flush=process", &["python3", "cat"]) else { return };
    let leave = "
import ctypes, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b'a' * 300000)
memory = mmap.mmap(fd, 300000)
os.mkfifo(sys.argv[2])
if os.fork() == 0:
    os.close(1)
    os.close(2)
    go_on = open(sys.argv[2], 'rb').read()
    memory[5:9] = b'late'
    os._exit(0)
";
    let fifo = bench.host().join("fifo").display().to_string();
    bench.ok(&["python3", "-c", leave, &bench.path("file"), &fifo]);
    let refused = bench.run(&["cat", &bench.path("file")]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("still has files on it mapped"), "{told}");
    // Opening the other end waits for the child, and closing it has the child go on.
    drop(std::fs::OpenOptions::new().write(true).open(&fifo).expect("the child reads"));
    let mut answer = bench.run(&["cat", &bench.path("file")]);
    while !answer.status.success() {
        answer = bench.run(&["cat", &bench.path("file")]);
    }
    assert_eq!(&answer.stdout[..12], b"aaaaalateaaa");
    bench.fsck();
}

/// LMDB maps a gigabyte over a file that grows by pwrite below it; SQLite reads by maps, and shares one of its WAL.
#[test]
fn databases_work_on_maps() {
    if let Some(bench) = Bench::in_place("flush=process", &["mdb_load", "mdb_stat", "mdb_dump", "python3"]) {
        let dump = bench.host().join("dump");
        let entries =
            (0..3000u64).map(|number| format!(" {number:016x}\n {:064x}\n", number * 2_654_435_761));
        let head =
            "VERSION=3\nformat=bytevalue\ntype=btree\nmapsize=1073741824\nmaxreaders=126\nHEADER=END\n";
        std::fs::write(&dump, format!("{head}{}DATA=END\n", entries.collect::<String>())).expect("a file");
        bench.ok(&["python3", "-c", "import os, sys; os.mkdir(sys.argv[1])", &bench.path("env")]);
        bench.ok(&["mdb_load", "-f", &dump.display().to_string(), &bench.path("env")]);
        assert!(bench.ok(&["mdb_stat", &bench.path("env")]).contains("Entries: 3000\n"));
        let back = bench.ok(&["mdb_dump", &bench.path("env")]);
        let [wanted, found] = [std::fs::read_to_string(&dump).expect("text"), back].map(|text| {
            text.lines().filter(|line| line.starts_with(' ')).map(str::to_owned).collect::<Vec<_>>()
        });
        assert!(wanted == found, "{} of {} entries", found.len(), wanted.len());
        bench.fsck();
    }
    let Some(bench) = Bench::in_place("flush=host", &["sqlite3"]) else { return };
    let (ours, host) = (bench.path("a.db"), bench.host().join("a.db").display().to_string());
    for mode in ["WAL", "DELETE", "TRUNCATE"] {
        let script = format!(
            "PRAGMA journal_mode={mode}; PRAGMA mmap_size=268435456; CREATE TABLE IF NOT EXISTS t(v TEXT);\n\
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1500)\n\
             INSERT INTO t SELECT hex(zeroblob(i % 300)) FROM n; DELETE FROM t WHERE rowid % 3 = 0; VACUUM;\n\
             SELECT count(*), sum(length(v)) FROM t; PRAGMA integrity_check;\n"
        );
        assert_eq!(bench.ok(&["sqlite3", &ours, &script]), bench.ok(&["sqlite3", &host, &script]), "{mode}");
    }
    bench.fsck();
}
