//! One small trace whose every number was found by hand.

use crate::scratch::{Scratch, read};
use nvmed_trace::{Analysis, Cell, Names, Op, Part, Request, Summary, TimeClass};

const KIB: u64 = 1024;
const MS: u64 = 1_000_000;

/// Six reads and writes, a Discard that the last one waits for, and a Flush that ends the trace. Offsets and sizes in
/// KiB and times in ms: arrival, start, finish.
fn requests() -> Vec<Request> {
    let table = [
        (Op::Write, 0, 8, 0, 1, 3),
        (Op::Read, 8, 4, 2, 3, 4),
        (Op::Write, 0, 4, 10, 10, 12),
        (Op::Read, 4, 16, 30, 31, 35),
        (Op::Write, 1024, 12, 35, 35, 36),
        (Op::Discard, 0, 4, 36, 36, 40),
        (Op::Read, 1024, 8, 39, 40, 44),
        (Op::Flush, 0, 0, 50, 50, 60),
    ];
    let requests = table.map(|(op, offset, size, arrival, start, finish)| Request {
        // The two at 1 MiB begin 512 bytes behind it: no multiple of 4 KiB.
        offset: offset * KIB + if offset == 1024 { 512 } else { 0 },
        start_ns: Some(start * MS),
        finish_ns: Some(finish * MS),
        ..Request::new(op, 0, size * KIB, arrival * MS)
    });
    requests.into()
}

fn summary() -> Summary {
    let mut analysis = Analysis::default().with_reuse();
    requests().iter().for_each(|request| analysis.push(request));
    analysis.finish()
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-9 * right.abs().max(1.0)
}

#[test]
fn each_column_is_the_one_by_hand() {
    let cells = [
        (Cell::Data, 52.0),
        (Cell::Requests, 6.0),
        (Cell::Max, 16.0),
        (Cell::Mean, 52.0 / 6.0),
        (Cell::MeanRead, 28.0 / 3.0),
        (Cell::MeanWrite, 8.0),
        (Cell::WriteRequests, 50.0),
        (Cell::WriteBytes, 100.0 * 24.0 / 52.0),
        (Cell::Duration, 0.060),
        (Cell::Arrival, 100.0),
        (Cell::Access, 52.0 / 0.060),
        // The second arrives before the first has finished, the last before the Discard has.
        (Cell::NoWait, 100.0 * 4.0 / 6.0),
        (Cell::Service, 14.0 / 6.0),
        (Cell::Response, 18.0 / 6.0),
        (Cell::Spatial, 100.0 * 2.0 / 6.0),
        (Cell::Temporal, 100.0 * 2.0 / 6.0),
        (Cell::SinglePage, 100.0 * 2.0 / 6.0),
        (Cell::LongGaps, 20.0),
    ];
    let summary = summary();
    for part in [&summary.all, &summary.devices[0]] {
        for (cell, value) in cells {
            let found = part.row.get(cell);
            assert!(found.is_some_and(|found| near(found, value)), "{cell:?}: {found:?}, not {value}");
        }
        assert_eq!((part.discards, part.flushes, part.granule_bytes), (1, 1, 512));
        assert_eq!((part.first_offset_bytes, part.end_offset_bytes), (0, (1024 + 12) * KIB + 512));
    }
    assert_eq!((summary.devices.len(), summary.processes.len()), (1, 0));
}

#[test]
fn each_distribution_is_the_one_by_hand() {
    let part = summary().all;
    let classes = |classes: &[TimeClass]| -> Vec<(f64, u64)> {
        classes.iter().map(|class| (class.at_most_ms.expect("all are short"), class.requests)).collect()
    };
    assert_eq!(classes(&part.response), [(1.0, 1), (2.0, 2), (4.0, 1), (8.0, 2)]);
    assert_eq!(classes(&part.gaps), [(2.0, 1), (4.0, 1), (8.0, 2), (32.0, 1)]);
    // 6 ms before the third, 18 before the fourth, none before the fifth.
    assert_eq!(classes(&part.idle), [(2f64.powi(-10), 1), (8.0, 1), (32.0, 1)]);
    // The two of 4 KiB arrive 2 ms and 8 ms after another one, and take 1 and 2 ms.
    assert_eq!(classes(&part.service_after_gap), [(2.0, 1), (8.0, 1)]);
    assert_eq!(part.service_after_gap.iter().map(|class| class.mean_ms).collect::<Vec<_>>(), [1.0, 2.0]);
    let sizes = part.sizes.iter().take(4).map(|class| (class.reads, class.writes));
    assert_eq!(sizes.collect::<Vec<_>>(), [(1, 1), (1, 1), (1, 1), (0, 0)]);
    let of_16 = part.sizes[2];
    assert_eq!((of_16.read_bytes, of_16.write_bytes), (16 * KIB, 12 * KIB));
    // 16 KiB in 4 ms, 12 KiB in 1 ms.
    assert_eq!((of_16.read_mib_per_s, of_16.write_mib_per_s), (Some(3.90625), Some(11.71875)));
}

#[test]
fn what_the_paper_does_not_have_is_the_one_by_hand() {
    let summary = summary();
    let Part { waiting, depth, interference, burstiness, working_set, .. } = &summary.devices[0];
    let waiting = waiting.expect("times are known");
    let found = [waiting.mean_ms, waiting.max_ms, waiting.share_of_response_pct, waiting.response_max_ms];
    let values = [4.0 / 6.0, 1.0, 100.0 * 4.0 / 18.0, 5.0];
    assert!(found.iter().zip(values).all(|(&found, value)| near(found, value)), "{waiting:?}");
    assert!(near(waiting.mean_in_service, 14.0 / 60.0) && near(waiting.mean_in_system, 0.3));
    // In service from 1 to 4, 10 to 12, 31 to 44 and 50 to 60 ms. The second and the last but one find one there.
    let depth = depth.expect("times are known");
    assert!(depth.utilisation_pct.is_some_and(|busy| near(busy, 100.0 * 28.0 / 60.0)), "{depth:?}");
    assert_eq!((depth.p50, depth.p90, depth.max), (1, 2, 2));
    let reads = interference.expect("there are reads");
    assert!(near(reads.reads_beside_write_pct, 100.0 / 3.0));
    assert_eq!((reads.beside_response_ms, reads.beside_mean_kib), (Some(2.0), Some(4.0)));
    assert_eq!((reads.alone_response_ms, reads.alone_mean_kib), (Some(5.0), Some(12.0)));
    // Windows of 10 ms have 2, 1, 0, 3, 0 and 0 arrivals: the mean is 1, that of the squares 14/6.
    assert_eq!((burstiness.len(), burstiness[0].window_ms, burstiness[0].peak_to_mean), (1, 10, 3.0));
    assert!(near(burstiness[0].dispersion, 14.0 / 6.0 - 1.0), "{burstiness:?}");
    // Units 0 to 4, and 256 to 259.
    let working_set = working_set.as_ref().expect("of a device");
    assert_eq!((working_set.distinct_kib, working_set.not_counted_kib), (36, 0));
    assert_eq!((working_set.windows[1].max_kib, working_set.windows[1].window_s), (36, 60));
    // Units 0 1, 2, 0, 1 2 3 4, 256 257 258 259, 256 257 258: 15 touches. 0 comes again after 2 others, then 1 and 2
    // after 2 others each, 256 to 258 after 3 others each.
    let reuse = summary.reuse.expect("it was asked for");
    assert_eq!((reuse.touches, reuse.hits.len()), (15, 3));
    let hits: Vec<(u64, f64)> = reuse.hits.iter().map(|at| (at.cache_kib, at.hit_pct)).collect();
    assert_eq!(hits, [(4, 0.0), (8, 0.0), (16, 40.0)]);
    assert!(near(reuse.first_pct, 60.0));
}

/// Fourteen requests of one device as BIOtracer writes them: first sector, sectors, bytes, flags (1 a write, 4 it did
/// not wait), arrival, fetched, start, finish. The second and the last but one have a sector more, for a header.
const RECORDED: &str = "\
0\t8\t4096\t5\t1000.000\t1000.000\t1000.000\t1000.001
8\t17\t8704\t5\t1000.002\t1000.002\t1000.002\t1000.004
24\t8\t4096\t4\t1000.005\t1000.005\t1000.005\t1000.006
0\t8\t4096\t5\t1000.010\t1000.010\t1000.010\t1000.012
1000\t64\t32768\t1\t1000.011\t1000.012\t1000.012\t1000.020
1064\t64\t32768\t1\t1000.012\t1000.020\t1000.020\t1000.026
24\t8\t4096\t4\t1000.030\t1000.030\t1000.030\t1000.031
0\t8\t4096\t5\t1000.060\t1000.060\t1000.060\t1000.064
2000\t256\t131072\t4\t1000.080\t1000.080\t1000.080\t1000.090
2256\t256\t131072\t0\t1000.085\t1000.090\t1000.090\t1000.100
2000\t8\t4096\t5\t1000.100\t1000.100\t1000.100\t1000.101
1000\t8\t4096\t5\t1000.140\t1000.140\t1000.140\t1000.143
1008\t9\t4608\t5\t1000.145\t1000.145\t1000.145\t1000.147
8\t8\t4096\t1\t1000.146\t1000.147\t1000.147\t1000.150
";

#[test]
fn tables_iii_and_iv_are_those_by_hand() {
    let cells = [
        // 4 + 8 + 4 + 4 + 32 + 32 + 4 + 4 + 128 + 128 + 4 + 4 + 4 + 4 KiB.
        (Cell::Data, 364.0),
        (Cell::Requests, 14.0),
        (Cell::Max, 128.0),
        (Cell::Mean, 364.0 / 14.0),
        // Requests 3, 7, 9 and 10: 4 + 4 + 128 + 128.
        (Cell::MeanRead, 264.0 / 4.0),
        (Cell::MeanWrite, 100.0 / 10.0),
        (Cell::WriteRequests, 100.0 * 10.0 / 14.0),
        (Cell::WriteBytes, 100.0 * 100.0 / 364.0),
        // From 1000.000 to 1000.150.
        (Cell::Duration, 0.150),
        (Cell::Arrival, 14.0 / 0.150),
        (Cell::Access, 364.0 / 0.150),
        // 5, 6, 10 and 14 arrive before the one before them has finished; 11 when 10 does.
        (Cell::NoWait, 100.0 * 10.0 / 14.0),
        // 1 + 2 + 1 + 2 + 8 + 6 + 1 + 4 + 10 + 10 + 1 + 3 + 2 + 3 ms.
        (Cell::Service, 54.0 / 14.0),
        // 5 waits for 1 ms, 6 for 8, 10 for 5, 14 for 1.
        (Cell::Response, (54.0 + 15.0) / 14.0),
        // 2 (at 8, behind 0 + 8), 3 (at 24, behind 8 + 16: the header is none of the data), 6, 10 and 13.
        (Cell::Spatial, 100.0 * 5.0 / 14.0),
        // 4 and 8 (at 0), 7 (24), 11 (2000), 12 (1000), 14 (8).
        (Cell::Temporal, 100.0 * 6.0 / 14.0),
        // 1, 3, 4, 7, 8, 11, 12, 13 (without its header) and 14.
        (Cell::SinglePage, 100.0 * 9.0 / 14.0),
        // Of 2, 3, 5, 1, 1, 18, 30, 20, 5, 15, 40, 5 and 1 ms.
        (Cell::LongGaps, 100.0 * 4.0 / 13.0),
    ];
    let scratch = Scratch::new();
    let (source, found) = read(&scratch.file("t", RECORDED));
    assert_eq!((source.format().name(), source.counts().malformed), ("biotracer", 0));
    let mut analysis = Analysis::default();
    found.iter().for_each(|request| analysis.push(request));
    let row = analysis.finish().all.row;
    for cell in Cell::ALL {
        let wanted = cells.iter().find(|(wanted, _)| *wanted == cell).map(|(_, value)| *value);
        let wanted = wanted.expect("each cell has a value by hand");
        assert!(
            row.get(cell).is_some_and(|found| near(found, wanted)),
            "{cell:?}: {:?}, not {wanted}",
            row.get(cell)
        );
    }
    // What the recorder says of waiting is what the times say.
    assert_eq!(found.iter().filter(|request| request.waited == Some(true)).count(), 4);
}

#[test]
fn processes_beyond_the_bound_are_together() {
    let mut analysis = Analysis::default();
    for process in 1..=5000 {
        analysis.push(&Request { process, ..Request::new(Op::Read, 0, 4096, u64::from(process)) });
    }
    let mut processes = Names::default();
    (1..=5000).for_each(|number| assert_eq!(processes.number(&format!("p{number}")), Some(number)));
    let summary = analysis.finish().named("t", &Names::default(), &processes);
    let last = summary.processes.last().expect("there are some");
    assert_eq!((last.row.name.as_str(), last.row.get(Cell::Requests)), ("other processes", Some(905.0)));
    assert_eq!((summary.processes.len(), summary.of_other_processes()), (4096, 905));
    let sum: f64 = summary.processes.iter().filter_map(|part| part.row.get(Cell::Requests)).sum();
    assert_eq!(sum, 5000.0);
    let remarks = nvmed_trace::remarks(&summary);
    assert!(remarks.contains("905 requests are of processes beyond the first 4,095"), "{remarks}");
}

#[test]
fn what_is_found_of_one_device_is_found_of_all() {
    let summary = summary();
    assert_eq!(summary.all.burstiness.len(), summary.devices[0].burstiness.len());
    assert!(!summary.all.burstiness.is_empty() && summary.all.working_set.is_some());
}

#[test]
fn parts_have_the_names_of_the_source() {
    let (mut devices, mut processes) = (Names::default(), Names::default());
    assert_eq!(
        (devices.number("sda"), processes.number("a"), processes.number("b")),
        (Some(1), Some(1), Some(2))
    );
    let mut analysis = Analysis::default();
    for (device, process) in [(0, 0), (1, 2)] {
        analysis.push(&Request { device, process, ..Request::new(Op::Read, 0, 4096, 0) });
    }
    let summary = analysis.finish().named("trace", &devices, &processes);
    let names = |parts: &[Part]| parts.iter().map(|part| part.row.name.clone()).collect::<Vec<_>>();
    assert_eq!(summary.all.row.name, "trace");
    assert_eq!(
        (names(&summary.devices), names(&summary.processes)),
        (vec!["device 0".into(), "sda".into()], vec!["b".into()])
    );
}

#[test]
fn nothing_is_told_of_nothing() {
    let summary = Analysis::default().finish();
    assert_eq!((summary.devices.len(), summary.all.row.get(Cell::Requests)), (0, Some(0.0)));
    assert_eq!((summary.all.row.get(Cell::Mean), summary.all.row.get(Cell::NoWait)), (None, None));
    let text = serde_json::to_string(&summary).expect("it is plain data");
    assert!(text.contains("\"mean_kib\":null"), "{text}");
}
