//! The native format, and files that say they are of it.

use crate::scratch::{Scratch, read, said, write};
use nvmed_trace::{Catalogue, Format, Op, Options, Provenance, Request, Sink};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

fn requests(count: u64) -> (Catalogue, Vec<Request>) {
    let mut names = Catalogue::default();
    let devices = ["b", "a"].map(|name| names.devices.number(name).unwrap());
    let request = |number: u64| Request {
        device: devices[(number % 2) as usize],
        finish_ns: (!number.is_multiple_of(3)).then_some(number * 1000 + 500),
        ..Request::new(
            if number.is_multiple_of(5) { Op::Write } else { Op::Read },
            number * 37 % 1000 * 4096,
            4096,
            number * 1000,
        )
    };
    (names, (0..count).map(request).collect())
}

#[test]
fn a_file_says_where_it_comes_from() {
    let scratch = Scratch::new();
    let (names, requests) = requests(10);
    let mut provenance = Provenance::default();
    provenance.set("command", "rm -r /\nx=\u{1b}[2J ü");
    provenance.set("lost_events", "0");
    for format in ["parquet", "csv"] {
        let path = scratch.path(format);
        let mut sink = Sink::create(&path, Format::named(format).unwrap()).unwrap();
        requests.iter().for_each(|request| sink.write(request, &names).unwrap());
        sink.come_from(&provenance);
        sink.finish(&names).unwrap();
        let (source, found) = read(&path);
        assert_eq!(found.len(), 10);
        let kept = if format == "parquet" { provenance.clone() } else { Provenance::default() };
        assert_eq!(source.provenance(), kept, "{format}");
    }
}

#[test]
fn rows_are_sorted_by_device_and_time_and_read_by_time() {
    let scratch = Scratch::new();
    let (names, requests) = requests(200_000);
    let path = scratch.path("t");
    write(&path, "parquet", &requests, &names);
    let (source, found) = read(&path);
    assert_eq!(found.len(), requests.len());
    let wrong = found.iter().zip(&requests).find(|(found, wanted)| {
        let name = source.names().devices.name(found.device);
        name != names.devices.name(wanted.device) || Request { device: wanted.device, ..**found } != **wanted
    });
    assert_eq!(wrong, None, "each batch of rows is put in the order of arrivals again");
    let file = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    assert_eq!(file.num_row_groups(), 4);
    let group = file.metadata().row_group(0);
    let sorted: Vec<_> = group.sorting_columns().unwrap().iter().map(|column| column.column_idx).collect();
    assert_eq!((sorted, group.num_rows()), (vec![0, 5], 65_536));
    let mut rows = file.get_row_iter(None).unwrap().take(65_536).map(Result::unwrap);
    let devices: Vec<String> =
        rows.by_ref().map(|row| row.get_column_iter().next().unwrap().1.to_string()).collect();
    assert!(devices.is_sorted(), "by device first");
    let version = file.metadata().file_metadata().key_value_metadata().unwrap();
    let told = |key: &str| version.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
    assert_eq!(told("nvmed.trace"), Some("1"));
    for (column, unit) in [
        ("offset_bytes", "bytes"),
        ("size_bytes", "bytes"),
        ("arrival_ns", "ns"),
        ("start_ns", "ns"),
        ("finish_ns", "ns"),
    ] {
        assert_eq!(told(&format!("nvmed.unit.{column}")), Some(unit), "{column}");
    }
}

/// A file of another tool.
fn foreign(path: &Path, schema: &str, columns: &[Vec<i64>]) {
    says(path, schema, columns, None);
}

/// One that says something of itself.
fn says(path: &Path, schema: &str, columns: &[Vec<i64>], pair: Option<(&str, &str)>) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let pair = pair.map(|(key, value)| vec![KeyValue::new(key.to_owned(), value.to_owned())]);
    let properties = Arc::new(WriterProperties::builder().set_key_value_metadata(pair).build());
    let mut file = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    let mut group = file.next_row_group().unwrap();
    for values in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(values, None, None).unwrap();
        column.close().unwrap();
    }
    if let Some(mut column) = group.next_column().unwrap() {
        let ops: Vec<_> = ["read", "chew", "write"].map(ByteArray::from).to_vec();
        column.typed::<ByteArrayType>().write_batch(&ops, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    file.close().unwrap();
}

#[test]
fn other_tools_files_are_read_if_they_have_the_columns() {
    let scratch = Scratch::new();
    let path = scratch.path("t");
    let schema = "message m { required int64 arrival_ns; required int64 more; required int64 size_bytes;
                  required int64 offset_bytes; required binary op (UTF8); }";
    foreign(&path, schema, &[vec![5, 6, 7], vec![0; 3], vec![512, 512, 1024], vec![0, 0, -1]]);
    let (source, found) = read(&path);
    assert_eq!(found, [Request::new(Op::Read, 0, 512, 5)]);
    let shown: Vec<String> = source.malformed().iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["2: its operation is not known", "3: its offset is not a number in range"]);
}

/// The columns of a foreign file that a request needs.
const NEEDED: &str =
    "message m { required int64 arrival_ns; required int64 size_bytes; required int64 offset_bytes;
                  required binary op (UTF8); }";

#[test]
fn another_version_and_other_units_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.path("t");
    let columns = [vec![5, 6, 7], vec![512; 3], vec![0; 3]];
    for (key, value, words) in [
        ("nvmed.trace", "2", "t: Parquet of nvmed, version 2; this program reads version 1"),
        ("nvmed.unit.arrival_ns", "us", "t: its column `arrival_ns` is in us, which is not ns"),
    ] {
        says(&path, NEEDED, &columns, Some((key, value)));
        let said = said(&path, &Options::default());
        assert!(said.ends_with(words), "{said}");
    }
    for (key, value) in [("nvmed.trace", "1"), ("nvmed.unit.arrival_ns", "ns"), ("pandas", "2")] {
        says(&path, NEEDED, &columns, Some((key, value)));
        assert_eq!(read(&path).1.len(), 2, "{key} {value}");
    }
}

#[test]
fn a_foreign_schema_names_what_is_missing() {
    let scratch = Scratch::new();
    let path = scratch.path("t");
    foreign(&path, "message m { required int64 ts; required int64 size_bytes; }", &[vec![1], vec![1]]);
    let words = said(&path, &Options::default());
    assert!(
        words.ends_with("Parquet, but no trace of nvmed: no column `op`, `offset_bytes`, `arrival_ns`"),
        "{words}"
    );
    foreign(&path, "message m { required int64 op; }", &[vec![1]]);
    assert!(said(&path, &Options::default()).ends_with("its column `op` is INT64, not BYTE_ARRAY"));
}

#[test]
fn a_file_that_is_cut_or_claims_too_much_is_a_line() {
    let scratch = Scratch::new();
    let (names, requests) = requests(3000);
    let path = scratch.path("t");
    write(&path, "parquet", &requests, &names);
    let bytes = std::fs::read(&path).unwrap();
    for end in [4, 11, 100, bytes.len() / 2, bytes.len() - 9, bytes.len() - 1] {
        let words = said(&scratch.file("cut", &bytes[..end]), &Options::default());
        assert!(words.contains("Parquet that is cut off"), "{end}: {words}");
    }
    // 3,000 rows, zigzag and 7 bits a byte, become 10^12, wherever the description says it.
    let varint = |mut number: u64| {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    };
    let footer =
        bytes.len() - 8 - u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let (few, many) = (varint(6000), varint(2_000_000_000_000));
    let mut claims = bytes[footer..bytes.len() - 8].to_vec();
    let mut at = 0;
    let mut replaced = 0;
    while at + few.len() < claims.len() {
        if claims[at] == 0x16 && claims[at + 1..].starts_with(&few) {
            claims.splice(at + 1..at + 1 + few.len(), many.iter().copied());
            replaced += 1;
        }
        at += 1;
    }
    assert!(
        replaced >= 12,
        "the file, the row group and ten columns say how many rows there are: {replaced}"
    );
    let size = (claims.len() as u32).to_le_bytes();
    let file = [&bytes[..footer], &claims, &size, b"PAR1"].concat();
    let words = said(&scratch.file("many", file), &Options::default());
    assert!(
        words.contains("row group 1: broken Parquet: a column has fewer rows than its row group claims"),
        "{words}"
    );
}

#[test]
fn a_description_of_many_row_groups_is_read_in_pieces() {
    const GROUPS: i64 = 1000;
    let scratch = Scratch::new();
    let path = scratch.path("t");
    let schema = Arc::new(parse_message_type(NEEDED).unwrap());
    let mut file = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap();
    // Neighbours are the wrong way round, so that what a group says of its arrivals must be that group's.
    for number in (0..GROUPS).map(|number| number ^ 1) {
        let mut group = file.next_row_group().unwrap();
        for value in [number * 10, 512, number * 4096] {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(&[value], None, None).unwrap();
            column.close().unwrap();
        }
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from("read")], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    let description = file.close().unwrap();
    assert_eq!(description.row_groups().len(), GROUPS as usize);
    let bytes = std::fs::read(&path).unwrap();
    let size = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap());
    assert!(size > 3 * (64 << 10), "more than three pieces: {size}");
    let (_, found) = read(&path);
    let request = |number: u64| Request::new(Op::Read, number * 4096, 512, number * 10);
    assert!(found.into_iter().eq((0..GROUPS as u64).map(request)));
}

#[test]
fn a_description_that_takes_too_much_is_a_line() {
    let scratch = Scratch::new();
    let path = scratch.path("t");
    let columns = [vec![5, 6, 7], vec![512; 3], vec![0; 3]];
    let of_bytes = |bytes: usize| {
        says(&path, NEEDED, &columns, Some(("pandas", &"x".repeat(bytes))));
        said(&path, &Options::default())
    };
    assert!(of_bytes(1 << 20).contains("its columns and its notes take more than 1 MiB"));
    let wide: String = (0..16_000).map(|number| format!("required int64 column_{number}; ")).collect();
    let columns: Vec<Vec<i64>> = (0..16_003).map(|_| vec![5, 512, 0]).collect();
    says(&path, &NEEDED.replace("required binary", &(wide + "required binary")), &columns, None);
    let words = said(&path, &Options::default());
    assert!(words.contains("the description of row group 1 takes more than 1 MiB"), "{words}");
}
