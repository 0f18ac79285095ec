//! Each format: what is written is read again, as far as the format can say it, and is told from all others.

use crate::scratch::{Scratch, format, read, rest, said, write};
use nvmed_trace::{Catalogue, FORMATS, Flags, Op, Options, Request, Sink, Source};
use std::collections::BTreeSet;

/// Nanoseconds of a day in 2014.
const DAY_NS: u64 = 1_398_406_382_756_832_267;

/// A trace with all that a request can have: two devices, three processes, equal times, requests under way together,
/// unfinished ones.
fn sample() -> (Catalogue, Vec<Request>) {
    let mut names = Catalogue::default();
    let devices = ["8,0", "8,16"].map(|name| names.devices.number(name).unwrap());
    let processes = ["sh", "kworker/u65:0", "a b"].map(|name| names.processes.number(name).unwrap());
    let mut requests = Vec::new();
    for number in 0..200u64 {
        let at = DAY_NS + number / 3 * 1_234_567;
        let op = [Op::Write, Op::Read, Op::Write, Op::Discard, Op::Flush][(number % 5) as usize];
        let (offset, bytes) =
            if op == Op::Flush { (0, 0) } else { (number % 7 * 40_960, 4096 * (number % 9 + 1)) };
        // The completion of a later request in the same place would be taken for its own.
        let is_done = number % 50 != 13;
        let offset = if is_done { offset } else { offset + (number << 30) };
        requests.push(Request {
            device: devices[(number % 2) as usize],
            process: processes[(number % 3) as usize],
            start_ns: Some(at + 1_001),
            finish_ns: is_done.then_some(at + 2_000_002 + number % 4 * 100),
            waited: Some(number.is_multiple_of(3)),
            flags: if number.is_multiple_of(4) { Flags::SYNC.and(Flags::FUA) } else { Flags::default() },
            ..Request::new(op, offset, bytes, at)
        });
    }
    (names, requests)
}

/// A request with the names of its device and process in place of their numbers.
type Named = (String, String, Request);

fn named(names: &Catalogue, requests: &[Request]) -> Vec<Named> {
    let name = |request: &Request| {
        let (device, process) = (names.devices.name(request.device), names.processes.name(request.process));
        (device.to_owned(), process.to_owned(), Request { device: 0, process: 0, ..*request })
    };
    requests.iter().map(name).collect()
}

/// What a format keeps of a request; none if it cannot say it.
fn kept(format: &str, (device, process, request): &Named) -> Option<Named> {
    let us = |ns: u64| ns / 1000 * 1000;
    let is_read_or_write = matches!(request.op, Op::Read | Op::Write);
    let plain = Request::new(request.op, request.offset, request.bytes, request.arrival_ns);
    let number = if device == "8,0" { "1" } else { "2" };
    match format {
        "parquet" | "csv" => Some((device.clone(), process.clone(), *request)),
        // Nor do they say that it waited.
        "blktrace" | "blkparse" => {
            Some((device.clone(), process.clone(), Request { waited: None, ..*request }))
        }
        "fio" => {
            Some((device.clone(), String::new(), Request { arrival_ns: us(request.arrival_ns), ..plain }))
        }
        "blkreplay" => (request.op != Op::Flush).then(|| (String::new(), String::new(), plain)),
        _ if !is_read_or_write => None,
        "biotracer" => request
            .finish_ns
            .map(|_| (String::new(), String::new(), Request { flags: Flags::default(), ..*request })),
        "msr" => request.finish_ns.map(|finish| {
            let [arrival_ns, finish] = [request.arrival_ns, finish].map(|ns| ns / 100 * 100);
            let request = Request { arrival_ns, finish_ns: Some(finish), ..plain };
            (format!("{}.{number}", device.replace(',', "_")), String::new(), request)
        }),
        "alibaba" => {
            Some((number.to_owned(), String::new(), Request { arrival_ns: us(request.arrival_ns), ..plain }))
        }
        "tencent" | "spc" | "disksim" | "mqsim" => Some((number.to_owned(), String::new(), plain)),
        other => panic!("{other} has no row here"),
    }
}

#[test]
fn what_is_written_is_read_again() {
    let scratch = Scratch::new();
    let (names, requests) = sample();
    let all = named(&names, &requests);
    let mut seen = 0;
    for format in FORMATS.iter().filter(|format| format.is_written() && format.name() != "oraclegeneral") {
        let name = format.name();
        let path = scratch.path(name);
        let left_out = write(&path, name, &requests, &names);
        let (source, found) = read(&path);
        assert_eq!(source.format().name(), name, "told from the others");
        let mut wanted: Vec<Named> = all.iter().filter_map(|request| kept(name, request)).collect();
        assert_eq!(left_out as usize, requests.len() - wanted.len(), "{name}");
        let mut found = named(source.names(), &found);
        if name == "parquet" {
            // Rows of one time lie by device.
            wanted.sort_by_key(|(device, _, request)| (request.arrival_ns, device.clone()));
            found.sort_by_key(|(device, _, request)| (request.arrival_ns, device.clone()));
        }
        for (found, wanted) in found.iter().zip(&wanted) {
            assert_eq!(found, wanted, "{name}");
        }
        assert_eq!((found.len(), source.counts().malformed), (wanted.len(), 0), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 13);
    assert_eq!(scratch.names().len(), 13, "nothing lies beside the traces: {:?}", scratch.names());
}

#[test]
fn objects_are_read_by_their_places() {
    let scratch = Scratch::new();
    let names = Catalogue::default();
    let at = |s: u64| 5_000_000_000 + s * 1_000_000_000;
    let requests = [
        Request::new(Op::Write, 8192, 8192, at(0)),
        Request::new(Op::Discard, 8192, 8192, at(1)),
        Request::new(Op::Read, 12_288, 100, at(1)),
        Request::new(Op::Read, 8192, 4096, at(2)),
    ];
    let path = scratch.path("o");
    assert_eq!(write(&path, "oraclegeneral", &requests, &names), 1, "a discard is no access");
    let (source, found) = read(&path);
    assert_eq!(source.format().name(), "oraclegeneral");
    let read = |offset, s| Request::new(Op::Read, offset, 4096, at(s));
    assert_eq!(found, [read(8192, 0), read(12_288, 0), read(12_288, 1), read(8192, 2)]);
    // Record 0 is accessed again by record 3, and 1 by 2.
    let bytes = std::fs::read(&path).unwrap();
    let next: Vec<i64> =
        bytes.chunks(24).map(|record| i64::from_le_bytes(record[16..].try_into().unwrap())).collect();
    assert_eq!(next, [3, 2, -1, -1]);
}

const BLKPARSE: &str = "  8,33   4        1     0.000000000  3922  D   N 0 (00 ..) [kworker/u65:0]\n\
                    8,33  30        1     0.001368096  5025  D   R 8 + 8 [systemd-udevd]\n\
                    8,34  30        1     0.001368096  5025  D  WS 8 + 8 [x y]\n\
                    8,33  30        1     0.001368099  5025  C   R 8 + 8 [0]\n\
                    8,33  30        1     0.001368100  5025  D   D 8 + 8 [0]\n\
                    CPU0 (8,33):\n Reads Queued:           0,        0KiB\n";

/// Operation, offset, bytes and arrival.
type Plain = (Op, u64, u64, u64);

/// What a format is recognised by, and what it says.
const SAMPLES: [(&str, &str, &[Plain]); 12] = [
    (
        "blkreplay",
        "a notice; of two\nstart ; sector; length ; op ; x ; y\n  0.5 ; 16 ; 8 ; W ; 0.0 ; 0.0\n\
             1.0 ; 1 ; 2 ; R ; 0.0 ; 0.0\n",
        &[(Op::Write, 8192, 4096, 500_000_000), (Op::Read, 512, 1024, 1_000_000_000)],
    ),
    (
        "mqsim",
        "938513000 4 264719034 16 0\n938828000 3 8 16 1\n",
        &[(Op::Write, 264_719_034 * 512, 8192, 938_513_000), (Op::Read, 4096, 8192, 938_828_000)],
    ),
    (
        "disksim",
        // What has no point is milliseconds, too.
        "0.5 4 8 16 0\n1 3 8 16 1\n1.5 3 8 16 1\n",
        &[
            (Op::Write, 4096, 8192, 500_000),
            (Op::Read, 4096, 8192, 1_000_000),
            (Op::Read, 4096, 8192, 1_500_000),
        ],
    ),
    (
        "biotracer",
        "4220896\t\t8\t\t4096\t\t5\t\t1.5\t\t1.6\t\t1.7\t\t1.8\n8\t17\t8704\t4\t1.5\t1.6\t1.7\t1.8\n",
        &[(Op::Write, 4_220_896 * 512, 4096, 1_500_000_000), (Op::Read, 4096, 8192, 1_500_000_000)],
    ),
    (
        "blkparse",
        BLKPARSE,
        &[
            (Op::Read, 4096, 4096, 1_368_096),
            (Op::Write, 4096, 4096, 1_368_096),
            (Op::Discard, 4096, 4096, 1_368_100),
        ],
    ),
    (
        "wiscsee",
        "39949 D read 299008 4096 0.000000100 0 False\n0 C read 299008 4096 0.1 0.1 False\n",
        &[(Op::Read, 299_008, 4096, 100)],
    ),
    (
        "spc",
        "0,303567,3584,w,0.000000\n1,303574,512,R,0.5\n",
        &[(Op::Write, 303_567 * 512, 3584, 0), (Op::Read, 303_574 * 512, 512, 500_000_000)],
    ),
    (
        "alibaba",
        "419,W,13792,4096,1577808000000004\n725,R,4096,8192,1577808000000046\n",
        &[
            (Op::Write, 13_792, 4096, 1_577_808_000_000_004_000),
            (Op::Read, 4096, 8192, 1_577_808_000_000_046_000),
        ],
    ),
    (
        "tencent",
        "1538323200,12910952,128,0,1063\n1538323200,6338688,8,1,1627\n",
        &[
            (Op::Read, 12_910_952 * 512, 65_536, 1_538_323_200_000_000_000),
            (Op::Write, 6_338_688 * 512, 4096, 1_538_323_200_000_000_000),
        ],
    ),
    (
        "msr",
        "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
             128166372016382155,usr,0,Write,2517696512,4096,703\n",
        &[
            (Op::Read, 7_014_609_920, 24_576, 1_172_163_600_306_162_900),
            (Op::Write, 2_517_696_512, 4096, 1_172_163_601_638_215_500),
        ],
    ),
    (
        "fio",
        "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x write 0 4096\n/dev/x wait 250 0\n\
             /dev/x trim 4096 8192\n/dev/x close\n",
        &[(Op::Write, 0, 4096, 0), (Op::Discard, 4096, 8192, 250_000)],
    ),
    (
        "csv",
        "proces,device,rw_flag,sector,size(sectors),timestamp(s)\n<...>,8:0,WS,8,16,0.5\na,8:0,RA,8,1,0.75\n",
        &[(Op::Write, 4096, 8192, 500_000_000), (Op::Read, 4096, 512, 750_000_000)],
    ),
];

#[test]
fn samples_are_told_apart_and_read() {
    let scratch = Scratch::new();
    for (name, text, wanted) in SAMPLES {
        let path = scratch.file(name, text);
        let (source, found) = read(&path);
        assert_eq!(source.format().name(), name);
        let plain = found.iter().map(|one| (one.op, one.offset, one.bytes, one.arrival_ns));
        assert_eq!(plain.collect::<Vec<_>>(), wanted, "{name}");
        assert_eq!(source.counts().malformed, 0, "{name}: {:?}", source.malformed());
    }
}

#[test]
fn flags_and_stamps_are_those_of_the_formats() {
    let scratch = Scratch::new();
    let (_, found) = read(&scratch.file("b", "8\t17\t8704\t5\t1.5\t1.6\t1.700000001\t1.8\n"));
    assert_eq!((found[0].start_ns, found[0].finish_ns), (Some(1_700_000_001), Some(1_800_000_000)));
    assert_eq!((found[0].waited, found[0].service_ns()), (Some(false), Some(99_999_999)));
    let (source, found) = read(&scratch.file("m", "128166372003061629,usr,3,Read,0,512,41286\n"));
    assert_eq!(source.names().devices.name(found[0].device), "usr.3");
    assert_eq!(found[0].response_ns(), Some(4_128_600));
    let (_, found) = read(&scratch.file("r", "0.5 ; 16 ; 8 ;RA ; 0.0 ; 0.0\n"));
    assert_eq!((found[0].op, found[0].flags), (Op::Read, Flags::AHEAD));
    let (source, found) = read(&scratch.file(
        "p",
        "8,0 1 1 1.0 7 Q FWFSM 8 + 8 [jbd2/sda1-8]\n8,0 1 2 1.1 7 Q FWS [x]\n8,0 1 3 1.2 0 C FWS 0 [0]\n",
    ));
    assert_eq!(source.names().processes.name(found[0].process), "jbd2/sda1-8");
    assert_eq!((found[0].op, found[0].flags), (Op::Write, Flags::FUA.and(Flags::SYNC).and(Flags::META)));
    assert_eq!((found[1].op, found[1].response_ns()), (Op::Flush, Some(100_000_000)));
}

#[test]
fn whole_milliseconds_are_read_as_they_are_named() {
    let scratch = Scratch::new();
    let path = scratch.file("t", "1 0 8 8 0\n2 0 16 8 0\n");
    for (name, unit_ns) in [("disksim", 1_000_000), ("mqsim", 1)] {
        let options = Options { format: Some(format(name)), ..Options::default() };
        let found = rest(&mut Source::open(&path, &options).unwrap()).unwrap();
        assert_eq!(
            found.iter().map(|one| one.arrival_ns).collect::<Vec<_>>(),
            [unit_ns, 2 * unit_ns],
            "{name}"
        );
    }
    // Nanoseconds have no point: the line is counted, and not read as something else.
    let options = Options { format: Some(format("mqsim")), ..Options::default() };
    let mut source = Source::open(&scratch.file("p", "1 0 8 8 0\n1.5 0 16 8 0\n"), &options).unwrap();
    assert_eq!((rest(&mut source).unwrap().len(), source.counts().malformed), (1, 1));
}

#[test]
fn values_are_between_commas_semicolons_or_tabs_and_may_follow_a_byte_order_mark() {
    let scratch = Scratch::new();
    for separator in [",", ";", "\t"] {
        let lines =
            [["arrival_ns", "op", "offset_bytes", "size_bytes", "device"], ["5", "read", "512", "1024", "a"]];
        let text = lines.map(|line| line.join(separator)).join("\r\n");
        let (source, found) = read(&scratch.file("t", format!("\u{feff}{text}\n")));
        assert_eq!((source.format().name(), source.counts().malformed), ("csv", 0), "{separator:?}");
        assert_eq!(found, [Request { device: 1, ..Request::new(Op::Read, 512, 1024, 5) }], "{separator:?}");
    }
    let (source, found) = read(&scratch.file("a", "\u{feff}419,W,13792,4096,1577808000000004\n"));
    assert_eq!((source.names().devices.name(found[0].device), source.counts().malformed), ("419", 0));
}

#[test]
fn what_others_have_packed_is_named() {
    let scratch = Scratch::new();
    for (bytes, words) in [
        (&b"\x28\xb5\x2f\xfd\x04\x00"[..], "t: it is packed by zstd: unpack it first (zstd -d)"),
        (b"\xfd7zXZ\x00\x00", "t: it is packed by xz: unpack it first (xz -d)"),
    ] {
        assert!(said(&scratch.file("t", bytes), &Options::default()).ends_with(words));
    }
}

/// Names that look alike to formats of numbers, of words, of hosts, and of pairs.
const ALIKE: [&str; 16] = [
    "2",
    "x",
    "02",
    "a b",
    "a_b",
    "",
    "device",
    "0,2",
    "8,16",
    "4096,0",
    "0,1048576",
    "host.3",
    "host",
    "a,b.1",
    "a_b.1",
    "b\nc",
];

#[test]
fn devices_stay_apart_in_every_format_that_has_any() {
    let scratch = Scratch::new();
    let mut names = Catalogue::default();
    let numbers = ALIKE.map(|name| names.devices.number(name).unwrap());
    let requests: Vec<Request> = (0..2u64)
        .flat_map(|round| numbers.iter().enumerate().map(move |(at, device)| (round, at as u64, *device)))
        .map(|(round, at, device)| Request {
            device,
            start_ns: Some((round * 100 + at) * 1_000_000),
            finish_ns: Some((round * 100 + at) * 1_000_000 + 500_000),
            // Which device it is can be told by its offset.
            ..Request::new(Op::Read, at * 4096, 4096, (round * 100 + at) * 1_000_000)
        })
        .collect();
    for format in FORMATS.iter().filter(|format| format.is_written() && format.name() != "oraclegeneral") {
        let path = scratch.path(format.name());
        let mut sink = Sink::create(&path, format).unwrap();
        requests.iter().for_each(|request| sink.write(request, &names).unwrap());
        let written = sink.finish(&names).unwrap();
        let (source, found) = read(&path);
        assert_eq!(found.len(), requests.len(), "{format:?}");
        if matches!(format.name(), "biotracer" | "blkreplay") {
            assert_eq!(
                (written.joined_devices, written.renamed.len()),
                (ALIKE.len() as u64, 0),
                "{format:?}"
            );
            continue;
        }
        assert_eq!(written.joined_devices, 0, "{format:?}");
        let called = |request: &Request| source.names().devices.name(request.device).to_owned();
        let found: BTreeSet<(u64, String)> = found.iter().map(|one| (one.offset, called(one))).collect();
        assert_eq!(found.len(), ALIKE.len(), "{format:?}: a device has one name: {found:?}");
        let all: BTreeSet<&String> = found.iter().map(|(_, name)| name).collect();
        assert_eq!(all.len(), ALIKE.len(), "{format:?}: no two have the same: {found:?}");
        for (offset, name) in &found {
            let wanted = ALIKE[(offset / 4096) as usize];
            let renamed = written.renamed.iter().any(|(from, to)| from == wanted && to == name);
            assert!(
                renamed || wanted == name || wanted.is_empty(),
                "{format:?}: {wanted} is {name}, and not told"
            );
        }
    }
}

/// fio waits for the difference of two times: none may be before the one above it.
#[test]
fn fio_opens_and_closes_each_file_in_time() {
    let scratch = Scratch::new();
    let mut names = Catalogue::default();
    let device = names.devices.number("a b").unwrap();
    let request = Request { device, ..Request::new(Op::Discard, 4096, 512, 7_999) };
    write(
        &scratch.path("t"),
        "fio",
        &[request, Request { arrival_ns: 9_000, op: Op::Write, ..request }],
        &names,
    );
    let text = std::fs::read_to_string(scratch.path("t")).unwrap();
    let wanted = "fio version 3 iolog\n7 a_b add\n7 a_b open\n7 a_b trim 4096 512\n9 a_b write 4096 512\n9 a_b close\n";
    assert_eq!(text, wanted);
}

#[test]
fn every_format_has_a_name_of_its_own() {
    for (number, one) in FORMATS.iter().enumerate() {
        assert!(std::ptr::eq(format(one.name()), one), "{number}: {}", one.name());
        assert!(!one.what().is_empty() && !one.times().is_empty());
    }
}
