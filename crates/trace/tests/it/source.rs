//! What every trace has in common: its order, its malformed lines, its end; and files of traces.

use crate::scratch::{Scratch, format, read, rest, said, write};
use nvmed_trace::{Catalogue, Malformed, Op, Options, Request, Sink, Source, Tolerance};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

const FIO: &str = "fio version 3 iolog\n";

fn lines(times_us: impl IntoIterator<Item = u64>) -> String {
    let line = |us| format!("{us} d read 0 512\n");
    FIO.to_owned() + &times_us.into_iter().map(line).collect::<String>()
}

#[test]
fn lines_are_put_in_order_within_a_window_and_no_further() {
    let scratch = Scratch::new();
    // The first one comes 65,536 lines late, which is in time.
    let (source, found) = read(&scratch.file("a", lines((1..=65_536).chain([0]).chain(65_537..200_000))));
    assert!(found.is_sorted_by_key(|request| request.arrival_ns) && found.len() == 200_000);
    assert_eq!(source.counts().late, 0);
    // As late as that the window has gone on.
    let (source, found) = read(&scratch.file("b", lines((1..=131_072).chain([0]).chain(131_073..200_000))));
    assert!(found.is_sorted_by_key(|request| request.arrival_ns) && found.len() == 199_999);
    assert_eq!((source.counts().late, source.counts().malformed), (1, 1));
    let late = &source.malformed()[0];
    assert_eq!((late.number, late.reason), (131_074, Malformed::Late));
}

#[test]
fn another_device_is_in_its_own_order() {
    let scratch = Scratch::new();
    let one: String = (100_000..300_000u64).map(|us| format!("{us} a read 0 512\n")).collect();
    let other: String = (0..10u64).map(|us| format!("{us} b read 0 512\n")).collect();
    let (source, found) = read(&scratch.file("t", format!("{FIO}{one}{other}")));
    assert_eq!((source.counts().late, found.len()), (0, 200_010));
}

#[test]
fn malformed_lines_are_counted_and_shown_and_too_many_stop() {
    let scratch = Scratch::new();
    let bad = "7 d chew 0 512\n8 d read 0 0\n9 d read x 1\n10 d read 0 99999999999\n11 d write\n\
               12 d read 72057594037927935 2\n\x1b[31m\n";
    let good = lines(0..1000);
    let path = scratch.file("t", good.clone() + bad);
    let (source, found) = read(&path);
    assert_eq!((found.len(), source.counts().malformed, source.counts().lines), (1000, 7, 1008));
    let shown: Vec<String> = source.malformed().iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "1002: its operation is not known: 7 d chew 0 512",
            "1003: it has no bytes: 8 d read 0 0",
            "1004: its offset is not a number in range: 9 d read x 1",
            "1005: 99999999999 bytes are more than a request has (4 GiB): 10 d read 0 99999999999",
            "1006: it has no offset: 11 d write",
            "1007: it ends beyond 2^56 bytes: 12 d read 72057594037927935 2",
            "1008: its time is not a number in range: [31m",
        ]
    );
    let options = |tolerance| Options { tolerance, ..Options::default() };
    let few = said(&path, &options(Tolerance::Lines(6)));
    assert!(
        few.contains(
            "7 of the first 1008 lines are malformed `fio`, the first one is 1002: its operation is not"
        ),
        "{few}"
    );
    // One in a hundred is borne, and so are a hundred.
    let many = scratch.file("many", lines(0..10_100) + &"x\n".repeat(102));
    assert_eq!(read(&many).0.counts().malformed, 102);
    let hundred = scratch.file("hundred", lines(0..500) + &"x\n".repeat(100));
    assert_eq!(read(&hundred).0.counts().malformed, 100);
    let more = scratch.file("more", lines(0..500) + &"x\n".repeat(101));
    assert!(said(&more, &Options::default()).contains("101 of the first 602 lines are malformed"));
    let mut all = Source::open(&more, &options(Tolerance::Lines(u64::MAX))).unwrap();
    assert_eq!(rest(&mut all).unwrap().len(), 500);
}

#[test]
fn a_long_line_is_passed_over() {
    let scratch = Scratch::new();
    let text = lines(0..100) + &"y".repeat(3 << 20) + "\n" + "100 d read 0 512";
    let (source, found) = read(&scratch.file("t", text));
    assert_eq!((found.len(), source.counts().malformed), (101, 1), "the last line has no end");
    assert_eq!(source.malformed()[0].reason, Malformed::Long);
}

#[test]
fn what_is_no_trace_is_said_in_a_line() {
    let scratch = Scratch::new();
    let none = Options::default();
    assert!(said(&scratch.file("empty", ""), &none).ends_with("empty: there is no request in it"));
    for (name, text) in [
        ("book", "hello world\nthis is a book\n"),
        ("blank", "\n\n"),
        ("numbers", "1 2 3\n4 5 6\n"),
        ("huge", "0.1 ; 18446744073709551615 ; 8 ; W ; 0 ; 0\n"),
        ("mqsim", "1 0 99999999999999999 99999999999 1\n"),
        ("negative", "-1 0 8 8 1\n-2 0 8 8 1\n"),
        ("mixed", "938513000 4 264719034 16 0\nhello\nworld\n"),
    ] {
        let said = said(&scratch.file(name, text), &none);
        assert!(said.contains("this is not a trace in a known format (parquet, blktrace"), "{said}");
    }
    assert!(said(&scratch.path("gone"), &none).ends_with("gone: No such file or directory (os error 2)"));
    assert!(said(&scratch.path("."), &none).ends_with("is a directory"));
    let calls = said(&scratch.file("calls", "1 0 open /a O_WRONLY|O_CREAT 36\n1 0 write 36 4\n"), &none);
    assert!(calls.contains("`mobigen` has calls on files, not requests to a device"), "{calls}");
    let record =
        "# nvmed run\n# time_ns\n5\t1\t1\tread\t#1\t-\t0\t10\t10\t99\n9\t1\t1\tread\t#1\t-\t0\t10\t10\t99\n";
    assert!(said(&scratch.file("record", record), &none).contains("`record` has calls on files"));
    let forced = Options { format: Some(format("msr")), ..none };
    let text = "hello\n".repeat(3);
    let forced = said(&scratch.file("forced", &text), &forced);
    let words = "3 of the first 3 lines are malformed `msr`, the first one is 1: it is not a line or a record of this \
                 format: hello";
    assert!(forced.ends_with(words), "{forced}");
}

#[test]
fn what_gzip_packed_is_unpacked_by_its_content() {
    let scratch = Scratch::new();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(lines(0..1000).as_bytes()).unwrap();
    let bytes = packed.finish().unwrap();
    let (source, found) = read(&scratch.file("plain.txt", &bytes));
    assert_eq!((source.format().name(), found.len()), ("fio", 1000));
    let cut = said(&scratch.file("cut", &bytes[..bytes.len() / 2]), &Options::default());
    let after = |said: &str| -> u64 {
        let number =
            said.split_once(": after line ").and_then(|(_, rest)| rest.split(':').next()?.parse().ok());
        number.unwrap_or_else(|| panic!("{said}"))
    };
    assert!((1..1001).contains(&after(&cut)) && cut.contains("gzip has packed is cut off"), "{cut}");
    // All lines are whole; what follows is packed by nobody.
    let more =
        said(&scratch.file("more", [&bytes[..], b"xxxxxxxxxxxxxxxxxxxx"].concat()), &Options::default());
    assert!(after(&more) == 1001 && more.contains("gzip has packed is damaged"), "{more}");
}

#[test]
fn files_of_processors_are_joined_by_time() {
    let scratch = Scratch::new();
    let mut names = Catalogue::default();
    let device = names.devices.number("8,0").unwrap();
    let request = |number: u64| Request {
        device,
        start_ns: Some(number * 100 + 10),
        finish_ns: Some(number * 100 + 50),
        ..Request::new(Op::Read, number * 4096, 4096, number * 100)
    };
    let all: Vec<Request> = (0..100).map(request).collect();
    let of = |rest| all.iter().filter(|one| one.offset / 4096 % 2 == rest).copied().collect::<Vec<_>>();
    write(&scratch.path("sda.blktrace.0"), "blktrace", &of(0), &names);
    write(&scratch.path("sda.blktrace.11"), "blktrace", &of(1), &names);
    scratch.file("sda.blktrace.x", "none of them");
    let (_, joined) = read(&scratch.path("sda"));
    assert_eq!(joined, all);
    let (_, one) = read(&scratch.path("sda.blktrace.11"));
    assert_eq!(one, of(1));
    // Numbers of records are of their own file.
    let whole = std::fs::read(scratch.path("sda.blktrace.11")).unwrap();
    scratch.file("sda.blktrace.11", [&whole[..48 * 3], &[7; 48]].concat());
    let broken = said(&scratch.path("sda"), &Options::default());
    assert!(broken.ends_with("record 4 of sda.blktrace.11 is none of blktrace, version 7"), "{broken}");
}

#[test]
fn a_binary_trace_of_the_other_byte_order_is_the_same() {
    let scratch = Scratch::new();
    let mut names = Catalogue::default();
    let device = names.devices.number("8,33").unwrap();
    let process = names.processes.number("sh").unwrap();
    let request = Request {
        device,
        process,
        start_ns: Some(7),
        finish_ns: Some(9),
        ..Request::new(Op::Write, 4096, 512, 5)
    };
    let path = scratch.path("t");
    write(&path, "blktrace", &[request], &names);
    let bytes = std::fs::read(&path).unwrap();
    let mut other = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let record = &bytes[at..at + 48];
        let mut from = 0;
        for width in [4, 4, 8, 8, 4, 4, 4, 4, 4, 2, 2] {
            other.extend(record[from..from + width].iter().rev());
            from += width;
        }
        let data = usize::from(u16::from_ne_bytes([record[46], record[47]]));
        other.extend(&bytes[at + 48..at + 48 + data]);
        at += 48 + data;
    }
    let (source, found) = read(&scratch.file("other", &other));
    assert_eq!(found, [request]);
    assert_eq!(source.names().processes.name(found[0].process), "sh");
    // A file that ends within a record says so.
    let (source, found) = read(&scratch.file("cut", &other[..other.len() - 1]));
    assert_eq!((found.len(), source.malformed()[0].reason), (1, Malformed::Cut));
    assert_eq!(source.malformed()[0].text, "record 4 of cut");
    // What follows a record that is none cannot be found.
    let broken = said(&scratch.file("broken", [&other[..], &[7; 60]].concat()), &Options::default());
    assert!(broken.ends_with("record 5 of broken is none of blktrace, version 7"), "{broken}");
}

#[test]
fn events_are_paired_by_device_place_and_operation() {
    let scratch = Scratch::new();
    let text = "8,0 0 1 0.000000001 1 Q R 8 + 8 [a]\n\
                8,0 0 2 0.000000002 1 Q W 8 + 8 [a]\n\
                8,1 0 3 0.000000003 1 Q R 8 + 8 [a]\n\
                8,0 0 4 0.000000004 1 Q R 8 + 8 [a]\n\
                8,0 0 5 0.000000010 1 D W 8 + 8 [a]\n\
                8,0 0 6 0.000000011 1 D R 8 + 8 [a]\n\
                8,0 0 7 0.000000020 1 C R 8 + 8 [0]\n\
                8,0 0 8 0.000000021 1 D R 8 + 8 [a]\n\
                8,0 0 9 0.000000022 1 C R 8 + 8 [0]\n\
                8,0 0 10 0.000000023 1 C R 8 + 8 [0]\n\
                8,0 0 11 0.000000024 1 C W 16 + 8 [0]\n\
                8,0 0 12 0.000000030 1 C W 8 + 8 [0]\n";
    let (source, found) = read(&scratch.file("t", text));
    let plain: Vec<_> =
        found.iter().map(|one| (one.op, one.arrival_ns, one.start_ns, one.finish_ns)).collect();
    assert_eq!(
        plain,
        [
            (Op::Read, 1, Some(11), Some(20)),
            (Op::Write, 2, Some(10), Some(30)),
            (Op::Read, 3, None, None),
            (Op::Read, 4, Some(21), Some(22)),
        ]
    );
    // A completion too many, one of another place, and a request that is never completed.
    let unpaired = source.counts().unpaired;
    assert_eq!((unpaired.completions, unpaired.unfinished, unpaired.total()), (2, 1, 3));
}

#[test]
fn a_request_is_what_the_device_was_given() {
    let scratch = Scratch::new();
    // 8+8 is merged behind 0+8: one request, that arrived with the first; 100+20 becomes two.
    let text = "8,0 0 1 0.000000001 1 Q W 0 + 8 [a]\n\
                8,0 0 2 0.000000002 1 Q W 8 + 8 [a]\n\
                8,0 0 3 0.000000003 1 M W 8 + 8 [a]\n\
                8,0 0 4 0.000000004 1 D W 0 + 16 [a]\n\
                8,0 0 5 0.000000005 1 Q W 100 + 20 [a]\n\
                8,0 0 6 0.000000006 1 X W 100 / 116 [a]\n\
                8,0 0 7 0.000000007 1 D W 100 + 16 [a]\n\
                8,0 0 8 0.000000008 1 D W 116 + 4 [a]\n\
                8,0 0 9 0.000000009 1 C W 0 + 16 [0]\n\
                8,0 0 10 0.000000010 1 C W 116 + 4 [0]\n\
                8,0 0 11 0.000000011 1 R W 100 + 16 [0]\n\
                8,0 0 12 0.000000012 1 D W 100 + 16 [0]\n\
                8,0 0 13 0.000000013 1 C W 100 + 16 [0]\n";
    let (source, found) = read(&scratch.file("t", text));
    let plain: Vec<_> = found
        .iter()
        .map(|one| (one.offset / 512, one.bytes / 512, one.arrival_ns, one.start_ns, one.finish_ns))
        .collect();
    assert_eq!(
        plain,
        [(0, 16, 1, Some(4), Some(9)), (100, 16, 5, Some(12), Some(13)), (116, 4, 5, Some(8), Some(10)),]
    );
    assert_eq!(source.counts().unpaired.total(), 0);
}

#[test]
fn an_unfinished_trace_leaves_what_was_there() {
    let scratch = Scratch::new();
    let names = Catalogue::default();
    let path = scratch.file("t", "old");
    let mut sink = Sink::create(&path, format("csv")).unwrap();
    sink.write(&Request::new(Op::Read, 0, 512, 0), &names).unwrap();
    // Nothing is left of who is killed now.
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    match std::fs::File::options().write(true).custom_flags(flags).open(scratch.path(".")) {
        Ok(_) => assert_eq!(scratch.names(), ["t"]),
        Err(error) => println!("SKIPPED: this file system has no files without a name: {error}"),
    }
    drop(sink);
    assert_eq!((std::fs::read(&path).unwrap(), scratch.names()), (b"old".to_vec(), vec!["t".to_owned()]));
    let error = Sink::create(&scratch.path("none/t"), format("csv")).unwrap_err().to_string();
    assert!(
        error.ends_with("none/t: No such file or directory (os error 2); nothing was left there"),
        "{error}"
    );
    let error = Sink::create(&path, format("wiscsee")).unwrap_err().to_string();
    assert_eq!(error, "`wiscsee` is a format that is only read");
}

#[test]
fn a_device_without_room_is_a_line() {
    let (scratch, names) = (Scratch::new(), Catalogue::default());
    let full = scratch.full();
    // Much is refused while it is written, little when it is finished.
    for (name, count) in
        ["csv", "parquet", "blktrace", "fio"].into_iter().flat_map(|name| [(name, 1), (name, 200_000)])
    {
        let mut sink = Sink::create(&full, format(name)).unwrap();
        let request = |number: u64| Request::new(Op::Read, number * 512, 512, number);
        let written = (0..count).try_for_each(|number| sink.write(&request(number), &names));
        let error = written.and_then(|()| sink.finish(&names).map(|_| ())).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("{}: No space left on device (os error 28); nothing was left there", full.display()),
            "{name}, {count} requests"
        );
    }
}
