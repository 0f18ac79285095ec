//! Bytes of strangers: no reader panics, and what it holds is bounded.

use crate::scratch::{Scratch, rest, write};
use nvmed_trace::{
    Catalogue, FORMATS, Flags, Format, KernelEvent, KernelLayout, KernelTrace, Op, Options, Request, Source,
    Tolerance,
};
use proptest::prelude::*;
use std::sync::LazyLock;

/// Reads bytes as every format, and as what they are taken for.
fn use_it(scratch: &Scratch, bytes: &[u8]) {
    use_as(scratch, bytes, FORMATS.iter().map(Some).chain([None]));
}

fn use_as(scratch: &Scratch, bytes: &[u8], formats: impl IntoIterator<Item = Option<&'static Format>>) {
    let path = scratch.file("t", bytes);
    for format in formats {
        let options = Options { format, tolerance: Tolerance::Lines(u64::MAX) };
        // An error is an answer; what is a request is one.
        if let Ok(mut source) = Source::open(&path, &options)
            && let Ok(requests) = rest(&mut source)
        {
            assert!(requests.iter().all(|request| request.checked().is_ok()));
            assert!(source.counts().lines >= source.counts().malformed);
        }
    }
}

/// A good trace in each format, to be damaged.
fn good(format: &str) -> Vec<u8> {
    let scratch = Scratch::new();
    let mut names = Catalogue::default();
    let device = names.devices.number("8,0").unwrap();
    let process = names.processes.number("sh").unwrap();
    let request = |number: u64| Request {
        device,
        process,
        start_ns: Some(number * 10 + 1),
        finish_ns: Some(number * 10 + 35),
        waited: Some(number.is_multiple_of(2)),
        flags: Flags::SYNC,
        ..Request::new(
            if number.is_multiple_of(3) { Op::Read } else { Op::Write },
            number % 5 * 4096,
            4096,
            number * 10,
        )
    };
    let requests: Vec<Request> = (0..60).map(request).collect();
    write(&scratch.path("t"), format, &requests, &names);
    std::fs::read(scratch.path("t")).unwrap()
}

static GOOD_PARQUET: LazyLock<Vec<u8>> = LazyLock::new(|| good("parquet"));

fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[0-9]{1,20}",
        "[0-9]{1,4}\\.[0-9]{1,12}",
        "[A-Za-z,;\"\\[\\]+/ -]{1,6}",
        Just("18446744073709551615".to_owned()),
        Just("8,0".to_owned()),
        Just("+".to_owned()),
        Just("R".to_owned()),
        Just("W".to_owned()),
        Just("D".to_owned()),
        Just("C".to_owned()),
        Just("Q".to_owned()),
        Just("X".to_owned()),
        Just("/".to_owned()),
    ];
    let separator = prop_oneof![Just(" "), Just(","), Just(" ; "), Just("\t")];
    let line =
        (prop::collection::vec(word, 0..11), separator).prop_map(|(words, separator)| words.join(separator));
    let first = prop_oneof![
        Just(String::new()),
        Just("fio version 2 iolog".to_owned()),
        Just("fio version 3 iolog".to_owned()),
        Just("arrival_ns,op,offset_bytes,size_bytes".to_owned()),
    ];
    (first, prop::collection::vec(line, 0..20))
        .prop_map(|(first, lines)| format!("{first}\n{}", lines.join("\n")))
}

/// Bytes of which some are letters of operations.
fn letter() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0u8), Just(8), Just(b'W'), Just(b'R'), Just(b'S'), any::<u8>()]
}

proptest! {
    // Each case is read as every format.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn fuzz_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        use_it(&Scratch::new(), &bytes);
    }

    #[test]
    fn fuzz_words(text in words()) {
        use_it(&Scratch::new(), text.as_bytes());
    }

    #[test]
    fn fuzz_damaged_traces(
        which in 0..14usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        is_cut in prop::bool::weighted(0.2),
    ) {
        let written: Vec<_> = FORMATS.iter().filter(|format| format.is_written()).collect();
        let mut bytes = good(written[which % written.len()].name());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        use_it(&Scratch::new(), &bytes);
    }

    /// The native format alone: its description and its pages are taken apart by another crate.
    #[test]
    fn fuzz_damaged_parquet(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        from_end in any::<bool>(),
    ) {
        let mut bytes = GOOD_PARQUET.clone();
        for (at, byte) in changes {
            // Half of the cases are about the description, which is at the end.
            let room = if from_end { 700.min(bytes.len() - 12) } else { bytes.len() - 12 };
            let at = bytes.len() - 9 - at.index(room);
            bytes[at] = byte;
        }
        use_as(&Scratch::new(), &bytes, [None]);
    }

    /// What a kernel says of its events, and pages of them, some of which are damaged.
    #[test]
    fn fuzz_kernel_pages(
        places in prop::collection::vec(prop_oneof![8 => 0..70usize, 1 => Just(usize::MAX)], 8),
        records in prop::collection::vec((1..20u32, 0..6u8, prop::collection::vec(letter(), 0..76)), 0..40),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let fields = [("dev", 4), ("sector", 8), ("nr_sector", 4), ("rwbs[10]", 10), ("comm[16]", places[5])];
        let fields = [&fields[..], &[("new_sector", 8), ("error", 4)]].concat();
        let fields = fields.iter().zip(&places).map(|((name, size), offset)| {
            format!("\tfield:char {name};\toffset:{offset};\tsize:{size};\tsigned:0;\n")
        });
        let mut layout = KernelLayout::default();
        for (number, (event, _)) in KernelEvent::ALL.into_iter().enumerate() {
            let text = format!("ID: {number}\nformat:\n{}", fields.clone().collect::<String>());
            layout.add(event, &text).unwrap();
        }
        // A page has its time, how many bytes of events follow, and of each how many words it has.
        let mut pages = Vec::new();
        for records in records.chunks(8) {
            let mut events: Vec<u8> = Vec::new();
            for (words, id, bytes) in records {
                let mut record = vec![*id, 0];
                record.extend(bytes);
                record.resize(4 * *words as usize, 0);
                events.extend((7 << 5 | words).to_ne_bytes());
                events.extend(record);
            }
            let mut page = [1000u64.to_ne_bytes(), (events.len() as u64).to_ne_bytes()].concat();
            page.extend(events);
            page.resize(1024, 0xff);
            pages.extend(page);
        }
        for (at, byte) in changes.into_iter().filter(|_| !records.is_empty()) {
            let at = at.index(pages.len());
            pages[at] = byte;
        }
        let mut trace = KernelTrace::new(layout, vec![&pages[..], &pages[pages.len() / 2..]], 1024);
        while let Some(request) = trace.next().unwrap() {
            assert!(request.checked().is_ok());
        }
    }
}

proptest! {
    /// Events in any order, of few places and lengths, so that they meet.
    #[test]
    fn fuzz_events(events in prop::collection::vec(
        (0..6usize, prop::sample::select(vec!["R", "W", "D", "FF"]), 0..6u64, 0..6u64, 0..50u64, 0..3i32), 0..200,
    )) {
        let mut text = String::new();
        for (number, (what, op, from, count, time, error)) in events.into_iter().enumerate() {
            let action = ["Q", "I", "D", "C", "R", "X"][what];
            let sign = if action == "X" { '/' } else { '+' };
            let end = if op == "FF" { String::new() } else { format!("{from} {sign} {count} ") };
            text += &format!("8,{} 0 {number} 0.{time:09} 1 {action} {op} {end}[{}]\n", number % 2, error - 1);
        }
        use_as(&Scratch::new(), text.as_bytes(), [Format::named("blkparse")]);
    }
}
