//! Requests into Parquet.

use super::{
    ARRIVAL, COLUMN_UNITS, FINISH, OFFSET, PROVENANCE_KEY, SIZE, START, UNIT_KEY, VERSION, VERSION_KEY,
};
use crate::codec::{Encoder, Output};
use crate::intake::WINDOW;
use crate::labels::Labels;
use crate::provenance::Provenance;
use crate::request::{Catalogue, Names, Op, Request};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Rows of a row group. Each is sorted by itself, and a reader puts as many in the order of their arrivals.
const GROUP_ROWS: usize = WINDOW;
/// The columns, in the order in which they are written.
const SCHEMA: &str = "message nvmed_trace {
    required binary device (UTF8); required binary process (UTF8); required binary op (UTF8);
    required int64 offset_bytes; required int64 size_bytes;
    required int64 arrival_ns; optional int64 start_ns; optional int64 finish_ns;
    optional boolean waited; required int32 flags;
}";
/// Columns by which the rows of a group are sorted: device, arrival.
const SORTED_BY: [i32; 2] = [0, 5];

pub(crate) struct Writer {
    file: SerializedFileWriter<Output>,
    rows: Vec<Request>,
    provenance: Provenance,
}

/// What the host said, if it is that.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

/// Begins a file.
pub(crate) fn create(out: Output) -> io::Result<Box<dyn Encoder + Send>> {
    let schema = parse_message_type(SCHEMA).map_err(failed)?;
    let sorting =
        SORTED_BY.map(|column_idx| SortingColumn { column_idx, descending: false, nulls_first: false });
    let version = KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_owned());
    let units =
        COLUMN_UNITS.map(|(column, unit)| KeyValue::new(format!("{UNIT_KEY}{column}"), unit.to_owned()));
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("nvmed".to_owned())
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_sorting_columns(Some(sorting.to_vec()))
        .set_key_value_metadata(Some(std::iter::once(version).chain(units).collect()));
    // Times and places are near the ones before them, and hardly one is there twice.
    for column in [OFFSET, ARRIVAL, START, FINISH] {
        let path = ColumnPath::from(column);
        properties = properties.set_column_dictionary_enabled(path.clone(), false);
        properties = properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    properties = properties.set_column_dictionary_enabled(ColumnPath::from(SIZE), true);
    let file =
        SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build())).map_err(failed)?;
    Ok(Box::new(Writer { file, rows: Vec::with_capacity(GROUP_ROWS), provenance: Provenance::default() }))
}

impl Encoder for Writer {
    fn write(&mut self, request: &Request, names: &Catalogue, _labels: &mut Labels) -> io::Result<bool> {
        self.rows.push(*request);
        if self.rows.len() == GROUP_ROWS {
            self.group(names).map_err(failed)?;
        }
        Ok(true)
    }

    fn come_from(&mut self, provenance: &Provenance) {
        self.provenance = provenance.clone();
    }

    fn finish(mut self: Box<Self>, names: &Catalogue, _labels: &mut Labels) -> io::Result<File> {
        if !self.rows.is_empty() {
            self.group(names).map_err(failed)?;
        }
        for (key, value) in self.provenance.iter() {
            let pair = KeyValue::new(format!("{PROVENANCE_KEY}{key}"), value.to_owned());
            self.file.append_key_value_metadata(pair);
        }
        let out = self.file.into_inner().map_err(failed)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Output>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.expect("the schema has as many columns as are written");
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

impl Writer {
    fn group(&mut self, names: &Catalogue) -> Result<(), ParquetError> {
        let devices = &names.devices;
        let of = |request: &Request| (devices.name(request.device), request.arrival_ns);
        self.rows.sort_by(|one, other| of(one).cmp(&of(other)));
        let mut group = self.file.next_row_group()?;
        let rows = &self.rows;
        let plain = |of: fn(&Request) -> u64| rows.iter().map(|row| of(row) as i64).collect::<Vec<_>>();
        column::<ByteArrayType>(&mut group, &texts(rows, devices, |row| row.device), None)?;
        column::<ByteArrayType>(&mut group, &texts(rows, &names.processes, |row| row.process), None)?;
        let ops = Op::ALL.map(|op| ByteArray::from(op.name()));
        let ops: Vec<ByteArray> = rows.iter().map(|row| ops[row.op as usize].clone()).collect();
        column::<ByteArrayType>(&mut group, &ops, None)?;
        column::<Int64Type>(&mut group, &plain(|row| row.offset), None)?;
        column::<Int64Type>(&mut group, &plain(|row| row.bytes), None)?;
        column::<Int64Type>(&mut group, &plain(|row| row.arrival_ns), None)?;
        for time in [|row: &Request| row.start_ns, |row: &Request| row.finish_ns] {
            let levels: Vec<i16> = rows.iter().map(|row| i16::from(time(row).is_some())).collect();
            let times: Vec<i64> = rows.iter().filter_map(time).map(|time| time as i64).collect();
            column::<Int64Type>(&mut group, &times, Some(&levels))?;
        }
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.waited.is_some())).collect();
        let waited: Vec<bool> = rows.iter().filter_map(|row| row.waited).collect();
        column::<BoolType>(&mut group, &waited, Some(&levels))?;
        let flags: Vec<i32> = rows.iter().map(|row| row.flags.0 as i32).collect();
        column::<Int32Type>(&mut group, &flags, None)?;
        group.close()?;
        self.rows.clear();
        Ok(())
    }
}

/// A name of each row: equal ones share their bytes.
fn texts(rows: &[Request], names: &Names, number: fn(&Request) -> u32) -> Vec<ByteArray> {
    let mut known: Vec<Option<ByteArray>> = vec![None; names.count()];
    let text = |row| {
        let number = number(row);
        let Some(known) = known.get_mut(number as usize) else { return ByteArray::from(names.name(number)) };
        known.get_or_insert_with(|| ByteArray::from(names.name(number))).clone()
    };
    rows.iter().map(text).collect()
}
