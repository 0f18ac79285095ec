//! Real traces, where there are any: they are not in the repository.

use crate::scratch::{Scratch, read, rest, write};
use nvmed_trace::{Analysis, Cell, Options, Request, Source};
use std::path::PathBuf;

/// A file of the directory that NVMED_TRACES names.
fn real(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("NVMED_TRACES").map(|directory| PathBuf::from(directory).join(name));
    let path = path.filter(|path| path.exists());
    if path.is_none() {
        println!("SKIPPED: {name}: NVMED_TRACES names no directory with real traces");
    }
    path
}

#[test]
fn real_traces_are_read_whole() {
    let wanted = [
        ("nexus5_log106_Messaging.head48.biotracer.txt", "biotracer", 48),
        ("blkreplay_linux-mysql.load.gz", "blkreplay", 0),
        ("blkreplay_windows-mssql.load.gz", "blkreplay", 0),
        ("blkreplay_windows-shared-server.load.gz", "blkreplay", 0),
        ("mqsim_tpcc-small.trace", "mqsim", 0),
        ("wiscsee_blkparse-output.txt", "blkparse", 673),
        ("wiscsee_sqlitewal_update.txt", "wiscsee", 0),
    ];
    for (name, format, count) in wanted {
        let Some(path) = real(name) else { continue };
        let (source, found) = read(&path);
        let counts = source.counts();
        println!("{name}: {counts:?}, {} devices", source.names().devices.count() - 1);
        assert_eq!(source.format().name(), format, "{name}");
        assert_eq!((counts.malformed, counts.late), (0, 0), "{name}: {:?}", source.malformed());
        assert!(count == 0 || found.len() == count, "{name}: {}", found.len());
        assert!(found.is_sorted_by_key(|request| request.arrival_ns));
        // The same through the native format.
        let scratch = Scratch::new();
        write(&scratch.path("t"), "parquet", &found, source.names());
        println!("{name}: {} bytes as Parquet", scratch.path("t").metadata().unwrap().len());
        let key = |one: &Request| (one.arrival_ns, one.offset, one.bytes, one.op as u8, one.finish_ns);
        let (mut one, mut other) = (found, read(&scratch.path("t")).1);
        one.sort_by_key(key);
        other.sort_by_key(key);
        assert!(one.iter().map(key).eq(other.iter().map(key)), "{name}");
    }
}

#[test]
fn the_sample_of_the_paper_is_cleaned() {
    let Some(path) = real("nexus5_log106_Messaging.head48.biotracer.txt") else { return };
    let (_, found) = read(&path);
    assert!(found.iter().all(|one| one.bytes % 4096 == 0 && one.finish_ns.is_some() && one.waited.is_some()));
    assert_eq!((found[2].bytes, found[2].arrival_ns), (8192, 1_398_406_382_762_147_944));
}

/// By the paper's definitions, counted by hand: 44 have the flag that they did not wait, 14 begin where the one before
/// ends (as recorded and as cleaned: none that was cleaned has such a successor), 14 where one before began.
#[test]
fn the_sample_of_the_paper_is_analysed_by_its_definitions() {
    let Some(path) = real("nexus5_log106_Messaging.head48.biotracer.txt") else { return };
    let (_, found) = read(&path);
    let mut analysis = Analysis::default();
    found.iter().for_each(|request| analysis.push(request));
    let row = analysis.finish().all.row;
    let of_48 = |cell| row.get(cell).map(|share| (share * 48.0 / 100.0 * 1e6).round() / 1e6);
    assert_eq!(row.get(Cell::Requests), Some(48.0));
    assert_eq!(of_48(Cell::Spatial), Some(14.0));
    assert_eq!(of_48(Cell::Temporal), Some(14.0));
    assert_eq!(of_48(Cell::NoWait), Some(44.0));
    assert_eq!(found.iter().filter(|request| request.waited == Some(false)).count(), 44);
}

#[test]
fn calls_are_no_requests() {
    let Some(path) = real("mobigen.out.facebook") else { return };
    let said = Source::open(&path, &Options::default()).and_then(|mut source| rest(&mut source)).unwrap_err();
    assert!(said.to_string().contains("`mobigen` has calls on files"), "{said}");
}
