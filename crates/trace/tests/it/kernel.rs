//! Requests of events: the same whether the kernel's pages or blkparse's text tell them, and what cannot be known.

use crate::block_layer::{BlockLayer, Said, page, pages, requests, text, trace};
use crate::scratch::{Scratch, read, write};
use nvmed_trace::KernelEvent::{Answer, Complete, Issue, Queue, Split};
use nvmed_trace::{Op, Request, Unpaired};

/// Operation, offset, bytes and the three times.
type Plain = (Op, u64, u64, u64, u64, u64);

fn plain(requests: &[Request]) -> Vec<Plain> {
    let of = |one: &Request| {
        let (start, finish) = (one.start_ns.unwrap_or(0), one.finish_ns.unwrap_or(0));
        (one.op, one.offset, one.bytes, one.arrival_ns, start, finish)
    };
    sorted(requests.iter().map(of).collect())
}

fn sorted(mut requests: Vec<Plain>) -> Vec<Plain> {
    requests.sort_by_key(|one| (one.3, one.1, one.4));
    requests
}

/// Both are the same; else where they begin to differ.
fn assert_same(found: &[Plain], truth: &[Plain], what: &str) {
    for (found, truth) in found.iter().zip(truth) {
        assert_eq!(found, truth, "{what}");
    }
    assert_eq!(found.len(), truth.len(), "{what}");
}

/// Whether another one of its place and length is open while it is.
fn has_a_twin(one: &Request, all: &[Request]) -> bool {
    let of = |request: &Request| (request.op, request.offset, request.bytes);
    let is_open = |other: &&Request| {
        other.arrival_ns < one.finish_ns.unwrap() && one.arrival_ns < other.finish_ns.unwrap()
    };
    all.iter().filter(is_open).filter(|other| of(other) == of(one)).count() > 1
}

#[test]
fn what_the_block_layer_did_is_told_by_its_events_and_by_what_is_written_of_them() {
    let scratch = Scratch::new();
    for seed in 0..60 {
        let layer = BlockLayer::run(seed, 300);
        let truth = sorted(layer.truth.clone());
        let pages = pages(&layer.said);
        let mut recorded = trace(&pages);
        let found = requests(&mut recorded);
        assert_same(&plain(&found), &truth, &format!("pages of seed {seed}"));
        assert!(found.is_sorted_by_key(|request| request.arrival_ns), "seed {seed}");
        assert_eq!(recorded.counts().unpaired, Unpaired::default(), "seed {seed}");
        let (source, imported) = read(&scratch.file("text", text(&layer.said)));
        assert_same(&plain(&imported), &truth, &format!("text of seed {seed}"));
        assert_eq!((source.counts().unpaired.total(), source.counts().malformed), (0, 0), "seed {seed}");
        // Merged ones may have the place and length of another that waits: who arrived first is not written down.
        let found: Vec<Request> = found.iter().filter(|one| !has_a_twin(one, &found)).copied().collect();
        assert!(found.len() > truth.len() / 2, "seed {seed}");
        let truth = plain(&found);
        for format in ["blkparse", "blktrace"] {
            let path = scratch.path(format);
            assert_eq!(write(&path, format, &found, recorded.names()), 0);
            let (source, again) = read(&path);
            assert_same(&plain(&again), &truth, &format!("{format} of seed {seed}"));
            assert_eq!(source.counts().unpaired.total(), 0, "{format} of seed {seed}");
            let process = |request: &Request| source.names().processes.name(request.process).to_owned();
            let before = |request: &Request| recorded.names().processes.name(request.process).to_owned();
            assert!(again.iter().map(process).eq(found.iter().map(before)), "{format} of seed {seed}");
        }
    }
}

/// Requests of pages of one processor, and what has no partner.
fn recorded(events: &[Said]) -> (Vec<Plain>, Unpaired) {
    let pages = [page(events, false)];
    let mut trace = trace(&pages);
    (plain(&requests(&mut trace)), trace.counts().unpaired)
}

fn read_at(time_ns: u64, event: nvmed_trace::KernelEvent, sectors: (u64, u64)) -> Said {
    Said::new(time_ns, event, Op::Read, sectors)
}

#[test]
fn overlapping_requests_keep_their_own_times() {
    let events = [
        read_at(1, Queue, (0, 16)),
        read_at(2, Queue, (8, 8)),
        read_at(3, Issue, (0, 16)),
        read_at(4, Issue, (8, 8)),
        read_at(9, Complete, (0, 16)),
        read_at(30, Complete, (8, 8)),
    ];
    let wanted = vec![(Op::Read, 0, 8192, 1, 3, 9), (Op::Read, 4096, 4096, 2, 4, 30)];
    assert_eq!(recorded(&events), (wanted.clone(), Unpaired::default()));
    let (_, found) = read(&Scratch::new().file("t", text(&events)));
    assert_eq!(plain(&found), wanted);
}

#[test]
fn what_lies_within_an_issue_and_does_not_tile_it_is_no_part_of_it() {
    let (found, unpaired) = recorded(&[
        // 0+8 was queued before the recording began: nothing tells when.
        read_at(2, Queue, (8, 8)),
        read_at(3, Issue, (0, 16)),
        read_at(5, Complete, (0, 16)),
        // It was a part of that. It must not make this one 5 ns older.
        read_at(7, Queue, (8, 8)),
        read_at(8, Issue, (8, 8)),
        read_at(9, Complete, (8, 8)),
    ]);
    assert_eq!(found, [(Op::Read, 0, 8192, 3, 3, 5), (Op::Read, 4096, 4096, 7, 8, 9)]);
    assert_eq!((unpaired.without_arrival, unpaired.arrivals, unpaired.total()), (1, 1, 2));
}

#[test]
fn what_a_device_does_not_take_as_requests_has_no_start() {
    // Device mapper, md and zram answer what is queued; 0+16 became two.
    let (found, unpaired) = recorded(&[
        read_at(1, Queue, (0, 16)),
        read_at(2, Split, (0, 8)),
        read_at(5, Answer, (8, 8)),
        read_at(6, Answer, (0, 8)),
    ]);
    assert_eq!(found, [(Op::Read, 0, 4096, 1, 0, 6), (Op::Read, 4096, 4096, 1, 0, 5)]);
    assert_eq!(unpaired, Unpaired::default());
}

#[test]
fn what_is_refused_and_asked_again_arrives_when_it_is_asked_again() {
    let eagain = Said { error: -11, ..read_at(3, Answer, (8, 8)) };
    let (found, unpaired) = recorded(&[
        read_at(1, Issue, (0, 8)),
        read_at(2, Queue, (8, 8)),
        eagain,
        read_at(4, Complete, (0, 8)),
        read_at(10, Queue, (8, 8)),
        read_at(11, Issue, (8, 8)),
        read_at(12, Complete, (8, 8)),
    ]);
    assert_eq!(found, [(Op::Read, 0, 4096, 1, 1, 4), (Op::Read, 4096, 4096, 10, 11, 12)]);
    assert_eq!(unpaired, Unpaired::default());
}

#[test]
fn a_flush_of_the_device_is_for_all_that_wait() {
    let flush = |time_ns, event| Said::new(time_ns, event, Op::Flush, (0, 0));
    let (found, unpaired) = recorded(&[
        flush(1, Queue),
        flush(2, Queue),
        flush(3, Issue),
        flush(4, Queue),
        flush(5, Complete),
        flush(6, Issue),
        flush(8, Complete),
        // Before a write the kernel flushes of its own accord.
        flush(9, Issue),
        flush(10, Complete),
        // The end of that write, which carries nothing.
        Said::new(11, Complete, Op::Write, (64, 0)),
    ]);
    let flushes = [(1, 3, 5), (4, 6, 8), (9, 9, 10)].map(|(a, s, f)| (Op::Flush, 0, 0, a, s, f));
    assert_eq!((found, unpaired), (flushes.to_vec(), Unpaired::default()));
}

#[test]
fn nothing_is_paired_across_lost_events() {
    let on = |processor, said| Said { processor, ..said };
    let processor = |number, before: &[Said], behind: &[Said]| {
        let own = |events: &[Said]| -> Vec<Said> { events.iter().map(|said| on(number, *said)).collect() };
        [page(&own(before), false), page(&own(behind), number == 0)].concat()
    };
    // The first processor loses what happened between 20 and 100 ns: that 0+8 was done, and came again.
    let first = processor(
        0,
        &[read_at(1, Queue, (0, 8)), read_at(10, Queue, (64, 8)), read_at(20, Issue, (64, 8))],
        &[
            // 64+8 was issued before, 128+8 arrived before; 8+8 is all there.
            read_at(100, Complete, (64, 8)),
            read_at(101, Issue, (128, 8)),
            read_at(102, Complete, (128, 8)),
            read_at(103, Queue, (8, 8)),
            read_at(104, Issue, (8, 8)),
            read_at(105, Complete, (8, 8)),
        ],
    );
    let second = processor(
        1,
        &[
            read_at(2, Issue, (0, 8)),
            read_at(3, Queue, (256, 8)),
            read_at(4, Issue, (256, 8)),
            read_at(5, Complete, (256, 8)),
        ],
        // Of that time nothing can be told.
        &[read_at(50, Issue, (8, 8)), read_at(60, Complete, (8, 8)), read_at(110, Complete, (0, 8))],
    );
    let pages = [first, second];
    let mut trace = trace(&pages);
    let found = plain(&requests(&mut trace));
    assert_eq!(found, [(Op::Read, 256 * 512, 4096, 3, 4, 5), (Op::Read, 4096, 4096, 103, 104, 105)]);
    let counts = trace.counts();
    // Open were 0+8 and 64+8; two events between; 128+8 without its arrival; two completions are nobody's.
    assert_eq!((counts.holes, counts.unpaired.beside_lost, counts.unpaired.completions), (1, 5, 2));
    assert_eq!(counts.unpaired.total(), 7);
}

#[test]
fn a_request_that_is_still_under_way_has_no_finish() {
    let (found, unpaired) = recorded(&[
        read_at(1, Queue, (0, 8)),
        read_at(2, Issue, (0, 8)),
        read_at(3, Queue, (8, 8)),
        read_at(4, Issue, (8, 8)),
        read_at(5, Complete, (8, 8)),
        read_at(6, Queue, (16, 8)),
    ]);
    assert_eq!(found, [(Op::Read, 0, 4096, 1, 2, 0), (Op::Read, 4096, 4096, 3, 4, 5)]);
    assert_eq!((unpaired.unfinished, unpaired.arrivals, unpaired.total()), (1, 1, 2));
}

#[test]
fn what_would_go_back_in_time_is_left_out_where_lines_are_in_order() {
    let scratch = Scratch::new();
    let mut names = nvmed_trace::Catalogue::default();
    let device = names.devices.number("8,0").unwrap();
    let request = |at: u64| Request {
        device,
        start_ns: Some(at + 1000),
        finish_ns: Some(at + 2000),
        ..Request::new(Op::Read, at * 512, 512, at)
    };
    // The fourth arrives before the third, which is written by then as fio's; the fifth before a line of all.
    let all = [10_000, 20_000, 30_000, 29_000, 5_000, 40_000].map(request);
    for (format, left_out) in [("fio", 2), ("blkparse", 1), ("blktrace", 1)] {
        let path = scratch.path(format);
        assert_eq!(write(&path, format, &all, &names), left_out, "{format}");
        let (source, found) = read(&path);
        assert_eq!((found.len() as u64, source.counts().unpaired.total()), (6 - left_out, 0), "{format}");
    }
    let text = std::fs::read_to_string(scratch.path("blkparse")).unwrap();
    let times = text.lines().map(|line| line.split_whitespace().nth(3).unwrap());
    assert!(times.is_sorted(), "{text}");
}

#[test]
fn what_is_too_late_is_counted_and_shown_as_malformed() {
    let scratch = Scratch::new();
    let event =
        |ns: u64, what: char| format!("8,0 0 1 {}.{:09} 1 {what} R {ns} + 8 [a]\n", ns / 1_000_000_000, ns);
    let mut text: String = (1..=200_000u64).map(|ns| event(ns * 2, 'D') + &event(ns * 2, 'C')).collect();
    text += &(event(1, 'D') + &event(1, 'C'));
    let (source, found) = read(&scratch.file("t", text));
    let counts = source.counts();
    assert_eq!((found.len(), counts.late, counts.malformed), (200_000, 1, 1));
    assert_eq!(source.malformed()[0].reason, nvmed_trace::Malformed::Late);
}
