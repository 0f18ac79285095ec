//! Requests out of Parquet, in batches of rows.

use super::pages::{Chunks, Pages};
use super::{ARRIVAL, DEVICE, FINISH, FLAGS, MAGIC, OFFSET, OP, PROCESS, SIZE, START, WAITED};
use crate::codec::{Decoder, Malformed};
use crate::intake::{Intake, Stop};
use crate::request::{Flags, Op, Request};
use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::schema::types::SchemaDescriptor;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Rows that are read together.
const BATCH_ROWS: usize = 4096;
/// Largest description of a file: 3 * 10^9 rows of ours have one of 64 MiB.
const FOOTER_BYTES_MAX: u64 = 64 << 20;
/// What is behind the description: its size, and the magic.
const TAIL_BYTES: usize = 8;
/// Columns without which there is no request.
const NEEDED: [&str; 4] = [OP, OFFSET, SIZE, ARRIVAL];

/// Whether a file begins as Parquet does.
pub(crate) fn begins(head: &[u8]) -> bool {
    head.starts_with(&MAGIC)
}

fn broken(what: impl Into<String>) -> Stop {
    Stop::Broken(what.into())
}

fn failed(error: ParquetError) -> Stop {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Stop::Io(*error),
            Err(error) => broken(format!("broken Parquet: {error}")),
        },
        ParquetError::General(what) | ParquetError::EOF(what) | ParquetError::NYI(what) => {
            broken(format!("broken Parquet: {}", what.lines().next().unwrap_or_default()))
        }
        error => broken(format!("broken Parquet: {error}")),
    }
}

/// What is done with bytes of a stranger in the Parquet crate, which panics on some that are broken (version 60.1: on
/// lengths whose sum overflows, on runs that end within a value): the file is given up then.
fn guarded<T>(of_strangers: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(of_strangers))
        .unwrap_or_else(|_| Err(broken("broken Parquet: its parts contradict each other")))
}

/// Opens a file: reads what it says of itself.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Decoder + Send>, Stop> {
    // To open a pipe once more would wait for another writer.
    if !path.metadata()?.is_file() {
        return Err(broken("Parquet is read here and there, and this is no plain file: give it a name"));
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut tail = [0; TAIL_BYTES];
    let at = len.checked_sub(TAIL_BYTES as u64).ok_or_else(|| broken("Parquet that is cut off"))?;
    file.read_exact_at(&mut tail, at)?;
    let [size @ .., _, _, _, _] = tail;
    let footer = u64::from(u32::from_le_bytes(size));
    if tail[4..] != MAGIC || footer > at {
        return Err(broken("Parquet that is cut off: its description, which is at the end, is not there"));
    }
    if footer > FOOTER_BYTES_MAX {
        return Err(broken(format!("Parquet with a description of {footer} bytes, more than 64 MiB")));
    }
    let metadata = guarded(|| ParquetMetaDataReader::new().parse_and_finish(&file).map_err(failed))?;
    let columns = Columns::of(metadata.file_metadata().schema_descr())?;
    let rows = metadata.row_groups().iter().map(RowGroupMetaData::num_rows);
    let rows = rows.map(|rows| u64::try_from(rows).ok()).try_fold(0u64, |sum, rows| sum.checked_add(rows?));
    let claimed = metadata.file_metadata().num_rows();
    if rows.is_none_or(|rows| i64::try_from(rows) != Ok(claimed)) {
        return Err(broken(format!(
            "broken Parquet: it claims {claimed} rows, and its row groups another number"
        )));
    }
    let chunks = Arc::new(Chunks { file: Arc::new(file), len });
    Ok(Box::new(Reader { chunks, metadata, columns, next_group: 0, group: None }))
}

/// Where the columns are.
struct Columns {
    needed: [usize; 4],
    device: Option<usize>,
    process: Option<usize>,
    start: Option<usize>,
    finish: Option<usize>,
    waited: Option<usize>,
    flags: Option<usize>,
}

impl Columns {
    fn of(schema: &SchemaDescriptor) -> Result<Self, Stop> {
        let find = |name: &str, of: Type| {
            let at = schema.columns().iter().position(|column| column.path().string() == name);
            match at.map(|at| (at, &schema.columns()[at])) {
                None => Ok(None),
                Some((_, column)) if column.physical_type() != of => {
                    Err(broken(format!("its column `{name}` is {}, not {of}", column.physical_type())))
                }
                Some((_, column)) if column.max_rep_level() > 0 || column.max_def_level() > 1 => {
                    Err(broken(format!("its column `{name}` has more than a value a row")))
                }
                Some((at, _)) => Ok(Some(at)),
            }
        };
        let types = [Type::BYTE_ARRAY, Type::INT64, Type::INT64, Type::INT64];
        let mut needed = [0; 4];
        let mut missing = Vec::new();
        for ((name, of), needed) in NEEDED.iter().zip(types).zip(&mut needed) {
            match find(name, of)? {
                Some(at) => *needed = at,
                None => missing.push(format!("`{name}`")),
            }
        }
        if !missing.is_empty() {
            return Err(broken(format!("Parquet, but no trace of nvmed: no column {}", missing.join(", "))));
        }
        Ok(Self {
            needed,
            device: find(DEVICE, Type::BYTE_ARRAY)?,
            process: find(PROCESS, Type::BYTE_ARRAY)?,
            start: find(START, Type::INT64)?,
            finish: find(FINISH, Type::INT64)?,
            waited: find(WAITED, Type::BOOLEAN)?,
            flags: find(FLAGS, Type::INT32)?,
        })
    }
}

/// A column of a row group, read in batches.
struct Column<T: DataType> {
    reader: ColumnReaderImpl<T>,
    is_optional: bool,
    values: Vec<T::T>,
    levels: Vec<i16>,
    /// Which value comes next.
    at: usize,
}

impl<T: DataType> Column<T> {
    fn open(chunks: &Arc<Chunks>, group: &RowGroupMetaData, at: usize) -> Result<Self, Stop> {
        let chunk = group.columns().get(at).ok_or_else(|| broken("a row group without a column"))?;
        let rows =
            usize::try_from(group.num_rows()).map_err(|_| broken("a row group of less than no rows"))?;
        let pages = Pages::new(chunks, chunk, rows).map_err(failed)?;
        let descriptor = chunk.column_descr_ptr();
        let is_optional = descriptor.max_def_level() > 0;
        let reader = ColumnReaderImpl::<T>::new(descriptor, Box::new(pages));
        Ok(Self { reader, is_optional, values: Vec::new(), levels: Vec::new(), at: 0 })
    }

    /// Reads so many rows.
    fn read(&mut self, rows: usize) -> Result<(), Stop> {
        self.values.clear();
        self.levels.clear();
        self.at = 0;
        let levels = self.is_optional.then_some(&mut self.levels);
        let (read, ..) = self.reader.read_records(rows, levels, None, &mut self.values).map_err(failed)?;
        if read == rows {
            Ok(())
        } else {
            Err(broken("broken Parquet: a column has fewer rows than its row group claims"))
        }
    }

    /// The value of a row, if it has one.
    fn next(&mut self, row: usize) -> Option<&T::T> {
        if self.is_optional && self.levels.get(row) != Some(&1) {
            return None;
        }
        self.at += 1;
        self.values.get(self.at - 1)
    }
}

/// Names that are remembered with their numbers, in places that their bytes choose.
const NAMES_REMEMBERED: usize = 64;

/// A column of names.
struct NameColumn {
    column: Column<ByteArrayType>,
    /// A name comes again and again, and to look it up among all takes longer than to read the rest of its row.
    remembered: Vec<(Vec<u8>, u32)>,
}

/// A row group that is being read.
struct Group {
    left: u64,
    op: Column<ByteArrayType>,
    offset: Column<Int64Type>,
    size: Column<Int64Type>,
    arrival: Column<Int64Type>,
    device: Option<NameColumn>,
    process: Option<NameColumn>,
    start: Option<Column<Int64Type>>,
    finish: Option<Column<Int64Type>>,
    waited: Option<Column<BoolType>>,
    flags: Option<Column<Int32Type>>,
}

impl Group {
    fn open(chunks: &Arc<Chunks>, group: &RowGroupMetaData, columns: &Columns) -> Result<Self, Stop> {
        fn some<T: DataType>(
            chunks: &Arc<Chunks>,
            group: &RowGroupMetaData,
            at: Option<usize>,
        ) -> Result<Option<Column<T>>, Stop> {
            at.map(|at| Column::open(chunks, group, at)).transpose()
        }
        let names = |at| -> Result<Option<NameColumn>, Stop> {
            Ok(some(chunks, group, at)?
                .map(|column| NameColumn { column, remembered: vec![(Vec::new(), 0); NAMES_REMEMBERED] }))
        };
        let [op, offset, size, arrival] = columns.needed;
        Ok(Self {
            left: u64::try_from(group.num_rows()).map_err(|_| broken("a row group of less than no rows"))?,
            op: Column::open(chunks, group, op)?,
            offset: Column::open(chunks, group, offset)?,
            size: Column::open(chunks, group, size)?,
            arrival: Column::open(chunks, group, arrival)?,
            device: names(columns.device)?,
            process: names(columns.process)?,
            start: some(chunks, group, columns.start)?,
            finish: some(chunks, group, columns.finish)?,
            waited: some(chunks, group, columns.waited)?,
            flags: some(chunks, group, columns.flags)?,
        })
    }
}

impl Group {
    fn read(&mut self, rows: usize) -> Result<(), Stop> {
        fn some<T: DataType>(column: &mut Option<Column<T>>, rows: usize) -> Result<(), Stop> {
            column.as_mut().map_or(Ok(()), |column| column.read(rows))
        }
        self.op.read(rows)?;
        self.offset.read(rows)?;
        self.size.read(rows)?;
        self.arrival.read(rows)?;
        for names in [&mut self.device, &mut self.process].into_iter().flatten() {
            names.column.read(rows)?;
        }
        some(&mut self.start, rows)?;
        some(&mut self.finish, rows)?;
        some(&mut self.waited, rows)?;
        some(&mut self.flags, rows)
    }

    /// The request of a row. Every column is asked, so that all stay in step.
    fn request(&mut self, row: usize, intake: &mut Intake) -> Result<Request, Malformed> {
        let op = op(self.op.next(row));
        let [offset, bytes, arrival_ns] =
            [(&mut self.offset, "offset"), (&mut self.size, "size"), (&mut self.arrival, "arrival")]
                .map(|(column, what)| natural(column.next(row), what));
        let device = name(&mut self.device, row, |name| intake.device(name));
        let process = name(&mut self.process, row, |name| intake.process(name));
        let [start_ns, finish_ns] =
            [(&mut self.start, "start"), (&mut self.finish, "finish")].map(|(column, what)| {
                let time = column.as_mut().and_then(|column| column.next(row));
                time.map(|time| natural(Some(time), what)).transpose()
            });
        let waited = self.waited.as_mut().and_then(|column| column.next(row)).copied();
        let flags = self.flags.as_mut().and_then(|column| column.next(row)).copied().unwrap_or(0);
        Ok(Request {
            device: device?,
            process: process?,
            start_ns: start_ns?,
            finish_ns: finish_ns?,
            waited,
            flags: Flags(flags as u32),
            ..Request::new(op?, offset?, bytes?, arrival_ns?)
        })
    }
}

fn op(text: Option<&ByteArray>) -> Result<Op, Malformed> {
    match text.ok_or(Malformed::Missing("operation"))?.data() {
        b"read" => Ok(Op::Read),
        b"write" => Ok(Op::Write),
        b"discard" => Ok(Op::Discard),
        b"flush" => Ok(Op::Flush),
        _ => Err(Malformed::Op),
    }
}

fn natural(number: Option<&i64>, what: &'static str) -> Result<u64, Malformed> {
    u64::try_from(*number.ok_or(Malformed::Missing(what))?).map_err(|_| Malformed::Number(what))
}

fn name(
    names: &mut Option<NameColumn>,
    row: usize,
    mut number: impl FnMut(&str) -> Result<u32, Malformed>,
) -> Result<u32, Malformed> {
    let Some(names) = names else { return Ok(0) };
    let Some(name) = names.column.next(row) else { return Ok(0) };
    let name = name.data();
    // Names of one trace differ at their ends, as `8,0` and `8,16` do.
    let mixed =
        name.iter().rev().take(8).fold(name.len(), |mixed, byte| mixed.wrapping_mul(31) ^ usize::from(*byte));
    let place = &mut names.remembered[mixed % NAMES_REMEMBERED];
    if place.0 != name {
        let found = number(&String::from_utf8_lossy(name))?;
        place.0.clear();
        place.0.extend_from_slice(name);
        place.1 = found;
    }
    Ok(place.1)
}

struct Reader {
    chunks: Arc<Chunks>,
    metadata: ParquetMetaData,
    columns: Columns,
    next_group: usize,
    group: Option<Group>,
}

impl Decoder for Reader {
    fn step(&mut self, intake: &mut Intake) -> Result<bool, Stop> {
        let Some(group) = self.group.as_mut().filter(|group| group.left > 0) else {
            let Some(next) = self.metadata.row_groups().get(self.next_group) else { return Ok(false) };
            self.group = Some(guarded(|| Group::open(&self.chunks, next, &self.columns))?);
            self.next_group += 1;
            return Ok(true);
        };
        let rows = group.left.min(BATCH_ROWS as u64) as usize;
        guarded(|| group.read(rows))?;
        group.left -= rows as u64;
        for row in 0..rows {
            intake.read();
            let taken = group.request(row, intake).and_then(|request| intake.push(request));
            if let Err(reason) = taken {
                intake.malformed(reason, "")?;
            }
        }
        Ok(true)
    }
}
