//! Parquet as other tools write it: every encoding that is read, rows without values, and claims about the order.

use crate::scratch::{Scratch, read, said};
use nvmed_dice::Dice;
use nvmed_trace::{Op, Options, Request};
use parquet::basic::Encoding;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Every column may be without a value, as most tools write it.
const SCHEMA: &str = "message m { optional binary device (UTF8); optional binary op (UTF8);
    optional int64 offset_bytes; optional int64 size_bytes; optional int64 arrival_ns; optional int64 start_ns;
    optional int64 finish_ns; optional boolean waited; optional int32 flags; }";

fn column<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[Option<T::T>]) {
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<T::T> = values.iter().flatten().cloned().collect();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(&values, Some(&levels), None).unwrap();
    column.close().unwrap();
}

fn written(path: &Path, groups: &[&[(String, Request)]], properties: WriterPropertiesBuilder) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties.build())).unwrap();
    for rows in groups {
        let mut group = file.next_row_group().unwrap();
        let numbers = |of: fn(&Request) -> u64| -> Vec<Option<i64>> {
            rows.iter().map(|(_, row)| Some(of(row) as i64)).collect()
        };
        let device =
            |(name, _): &(String, Request)| (!name.is_empty()).then(|| ByteArray::from(name.as_str()));
        column::<ByteArrayType>(&mut group, &rows.iter().map(device).collect::<Vec<_>>());
        let ops: Vec<_> = rows.iter().map(|(_, row)| Some(ByteArray::from(row.op.name()))).collect();
        column::<ByteArrayType>(&mut group, &ops);
        column::<Int64Type>(&mut group, &numbers(|row| row.offset));
        column::<Int64Type>(&mut group, &numbers(|row| row.bytes));
        column::<Int64Type>(&mut group, &numbers(|row| row.arrival_ns));
        for time in [|row: &Request| row.start_ns, |row: &Request| row.finish_ns] {
            let times: Vec<_> = rows.iter().map(|(_, row)| time(row).map(|time| time as i64)).collect();
            column::<Int64Type>(&mut group, &times);
        }
        column::<BoolType>(&mut group, &rows.iter().map(|(_, row)| row.waited).collect::<Vec<_>>());
        let flags: Vec<_> =
            rows.iter().map(|(_, row)| (row.flags.0 > 0).then_some(row.flags.0 as i32)).collect();
        column::<Int32Type>(&mut group, &flags);
        group.close().unwrap();
    }
    file.close().unwrap();
}

/// Rows of every kind: runs of equal values and of none, and values of few bits and of many.
fn rows(count: u64) -> Vec<(String, Request)> {
    let mut dice = Dice::new(11);
    let (mut rows, mut arrival_ns) = (Vec::new(), 1u64 << 60);
    for number in 0..count {
        let bits = dice.roll(40);
        arrival_ns += 1 + dice.roll(1 << bits);
        let is_even = number / 700 % 2 == 0;
        let start_ns = (is_even || dice.chance(50)).then(|| arrival_ns + dice.roll(1 << 20));
        let offset = if is_even { number * 4096 } else { dice.roll(1 << 55) };
        let mut request = Request {
            start_ns,
            finish_ns: start_ns
                .filter(|_| dice.chance(70))
                .map(|start_ns| start_ns + dice.roll(if is_even { 1 << 33 } else { 1 << 62 })),
            waited: (!is_even || dice.chance(30)).then(|| dice.chance(40)),
            ..Request::new(Op::ALL[dice.roll(3) as usize], offset, 512 << dice.roll(12), arrival_ns)
        };
        request.flags.0 = if is_even { 0 } else { dice.roll(1 << 32) as u32 };
        let name = if dice.chance(10) { String::new() } else { format!("device {}", dice.roll(300)) };
        rows.push((name, request));
    }
    rows
}

/// Whether a file has these rows, in their order.
fn has(path: &Path, rows: &[(String, Request)]) -> bool {
    let (source, found) = read(path);
    let wrong = found.iter().zip(rows).position(|(found, (name, wanted))| {
        source.names().devices.name(found.device) != name || Request { device: 0, ..*found } != *wanted
    });
    if let Some(at) = wrong {
        println!("row {at}: {:?} instead of {:?}", found[at], rows[at]);
    }
    wrong.is_none() && found.len() == rows.len()
}

#[test]
fn every_encoding_has_the_same_rows() {
    let scratch = Scratch::new();
    let path = scratch.path("t");
    let rows = rows(30_000);
    let numbers = ["offset_bytes", "size_bytes", "arrival_ns", "start_ns", "finish_ns", "flags"];
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for (has_dictionary, encoding) in
            [(true, None), (false, Some(Encoding::PLAIN)), (false, Some(Encoding::DELTA_BINARY_PACKED))]
        {
            // Pages end within the batches in which rows are read; a dictionary that grows too large ends as well.
            let mut properties = WriterProperties::builder()
                .set_writer_version(version)
                .set_dictionary_enabled(has_dictionary)
                .set_dictionary_page_size_limit(4_000)
                .set_data_page_row_count_limit(777)
                .set_write_batch_size(100);
            if let Some(encoding) = encoding {
                for name in numbers {
                    properties = properties.set_column_encoding(ColumnPath::from(name), encoding);
                }
            }
            for name in ["device", "op"] {
                properties = properties.set_column_encoding(ColumnPath::from(name), Encoding::PLAIN);
            }
            written(&path, &[&rows[..20_001], &rows[20_001..]], properties);
            assert!(has(&path, &rows), "{version:?} {has_dictionary} {encoding:?}");
        }
    }
}

#[test]
fn groups_that_overlap_are_put_in_order() {
    let scratch = Scratch::new();
    let path = scratch.path("t");
    let rows = rows(9_000);
    let sorted = vec![SortingColumn { column_idx: 4, descending: false, nulls_first: false }];
    let properties = || WriterProperties::builder().set_sorting_columns(Some(sorted.clone()));
    // The second group lies within the first, and the third is behind both.
    let first = [&rows[..2_000], &rows[5_000..6_000]].concat();
    written(&path, &[&first, &rows[2_000..5_000], &rows[6_000..]], properties());
    assert!(has(&path, &rows));
    // Each says that it is sorted; the second one is not.
    let mut second = rows[3_000..].to_vec();
    second.swap(10, 5_000);
    written(&path, &[&rows[..3_000], &second], properties());
    let words = said(&path, &Options::default());
    assert!(words.ends_with("its rows are not in the order that it claims"), "{words}");
    // Without the claim, it is put in order.
    written(&path, &[&rows[..3_000], &second], WriterProperties::builder());
    assert!(has(&path, &rows));
}
