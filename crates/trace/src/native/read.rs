//! Requests out of Parquet, in batches of rows.

use super::column::{Batch, NO_NAME, Names, Numbers};
use super::footer::{self, Groups};
use super::order::{self, BeforeAll};
use super::pages::Chunks;
use super::{
    ARRIVAL, COLUMN_UNITS, DEVICE, FINISH, FLAGS, MAGIC, OFFSET, OP, PROCESS, PROVENANCE_KEY, SIZE, START,
    UNIT_KEY, VERSION, VERSION_KEY, WAITED,
};
use crate::codec::{Decoder, Malformed};
use crate::intake::{Intake, Stop};
use crate::provenance::Provenance;
use crate::request::{Flags, Op, Request};
use parquet::basic::Type;
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, RowGroupMetaData};
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
/// Which of them is the arrival.
const ARRIVAL_NEEDED: usize = 3;

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
        return Err(broken("a Parquet file cannot be read from a pipe; save it first"));
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
    let chunks = Arc::new(Chunks { file: Arc::new(file), len });
    let (metadata, groups) = guarded(|| footer::open(&chunks, at - footer, footer).map_err(failed))?;
    known(&metadata)?;
    let columns = Columns::of(metadata.schema_descr())?;
    let told: Vec<usize> = columns.device.into_iter().chain([columns.needed[ARRIVAL_NEEDED]]).collect();
    let groups = groups.with_statistics_of(&told);
    let before_all = survey(&groups, &columns, metadata.num_rows())?;
    Ok(Box::new(Reader {
        chunks,
        metadata,
        columns,
        groups,
        next_piece: 0,
        piece: Vec::new().into_iter(),
        before_all,
        next_group: 0,
        group: None,
        floor_ns: 0,
        latest_ns: 0,
    }))
}

/// Looks at the descriptions of all row groups, the last one first: whether they are whole, and have as many rows as
/// the file claims. Returns which of them arrive before all behind them.
fn survey(groups: &Groups, columns: &Columns, claimed: i64) -> Result<Vec<bool>, Stop> {
    let mut before_all = BeforeAll::default();
    let mut rows = Some(0u64);
    for piece in (0..groups.pieces()).rev() {
        for group in guarded(|| groups.piece(piece).map_err(failed))?.iter().rev() {
            before_all.take(group, columns.needed[ARRIVAL_NEEDED]);
            let more = u64::try_from(group.num_rows()).ok();
            rows = rows.zip(more).and_then(|(rows, more)| rows.checked_add(more));
        }
    }
    if rows.is_none_or(|rows| i64::try_from(rows) != Ok(claimed)) {
        return Err(broken(format!(
            "broken Parquet: it claims {claimed} rows, and its row groups another number"
        )));
    }
    Ok(before_all.finish())
}

/// Refuses what says of itself that it is another version of this format, or has other units.
fn known(metadata: &FileMetaData) -> Result<(), Stop> {
    for pair in metadata.key_value_metadata().into_iter().flatten() {
        let value = pair.value.as_deref().unwrap_or_default();
        if pair.key == VERSION_KEY && value != VERSION {
            return Err(broken(format!(
                "Parquet of nvmed, version {}; this program reads version {VERSION}",
                value.escape_default()
            )));
        }
        let Some(column) = pair.key.strip_prefix(UNIT_KEY) else { continue };
        let unit = COLUMN_UNITS.iter().find(|(name, _)| *name == column);
        if let Some((_, unit)) = unit.filter(|(_, unit)| *unit != value) {
            let value = value.escape_default();
            return Err(broken(format!("its column `{column}` is in {value}, which is not {unit}")));
        }
    }
    Ok(())
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

/// A row group that is being read.
struct Group {
    left: u64,
    /// Whether its rows say that they are in the order of their arrivals.
    is_in_order: bool,
    /// Whether what comes behind it says that it arrives no earlier.
    is_before_all: bool,
    op: Names,
    offset: Numbers,
    size: Numbers,
    arrival: Numbers,
    device: Option<Names>,
    process: Option<Names>,
    start: Option<Numbers>,
    finish: Option<Numbers>,
    waited: Option<Numbers>,
    flags: Option<Numbers>,
}

impl Group {
    fn open(
        chunks: &Arc<Chunks>,
        group: &RowGroupMetaData,
        columns: &Columns,
        is_before_all: bool,
    ) -> Result<Self, ParquetError> {
        let names = |at: Option<usize>| at.map(|at| Names::open(chunks, group, at)).transpose();
        let numbers = |at: Option<usize>| at.map(|at| Numbers::open(chunks, group, at)).transpose();
        let [op, offset, size, arrival] = columns.needed;
        Ok(Self {
            // That there are not less than none was seen when the file was opened.
            left: u64::try_from(group.num_rows()).unwrap_or(0),
            is_in_order: order::is_in_order(group, arrival, columns.device),
            is_before_all,
            op: Names::open(chunks, group, op)?,
            offset: Numbers::open(chunks, group, offset)?,
            size: Numbers::open(chunks, group, size)?,
            arrival: Numbers::open(chunks, group, arrival)?,
            device: names(columns.device)?,
            process: names(columns.process)?,
            start: numbers(columns.start)?,
            finish: numbers(columns.finish)?,
            waited: numbers(columns.waited)?,
            flags: numbers(columns.flags)?,
        })
    }

    fn read(&mut self, rows: usize, intake: &mut Intake) -> Result<(), ParquetError> {
        self.op.read(rows, &mut op)?;
        for numbers in [&mut self.offset, &mut self.size, &mut self.arrival] {
            numbers.read(rows)?;
        }
        let more = [&mut self.start, &mut self.finish, &mut self.waited, &mut self.flags];
        more.into_iter().flatten().try_for_each(|numbers| numbers.read(rows))?;
        let text = String::from_utf8_lossy;
        if let Some(names) = &mut self.device {
            names.read(rows, &mut |name| intake.device(&text(name)).ok())?;
        }
        match &mut self.process {
            Some(names) => names.read(rows, &mut |name| intake.process(&text(name)).ok()),
            None => Ok(()),
        }
    }

    /// What was read of so many rows.
    fn batch(&self, rows: usize) -> Rows<'_> {
        Rows {
            op: self.op.batch(rows),
            offset: self.offset.batch(rows),
            size: self.size.batch(rows),
            arrival: self.arrival.batch(rows),
            device: self.device.as_ref().map(|names| names.batch(rows)),
            process: self.process.as_ref().map(|names| names.batch(rows)),
            start: self.start.as_ref().map(|numbers| numbers.batch(rows)),
            finish: self.finish.as_ref().map(|numbers| numbers.batch(rows)),
            waited: self.waited.as_ref().map(|numbers| numbers.batch(rows)),
            flags: self.flags.as_ref().map(|numbers| numbers.batch(rows)),
        }
    }
}

/// Rows that were read together.
struct Rows<'a> {
    op: Batch<'a, u32>,
    offset: Batch<'a, i64>,
    size: Batch<'a, i64>,
    arrival: Batch<'a, i64>,
    device: Option<Batch<'a, u32>>,
    process: Option<Batch<'a, u32>>,
    start: Option<Batch<'a, i64>>,
    finish: Option<Batch<'a, i64>>,
    waited: Option<Batch<'a, i64>>,
    flags: Option<Batch<'a, i64>>,
}

impl Rows<'_> {
    /// The request of a row.
    #[inline]
    fn request(&self, row: usize) -> Result<Request, Malformed> {
        let op = match self.op.get(row) {
            Some(op) => *Op::ALL.get(op as usize).ok_or(Malformed::Op)?,
            None => return Err(Malformed::Missing("operation")),
        };
        Ok(Request {
            device: name(self.device, row)?,
            process: name(self.process, row)?,
            start_ns: time(self.start, row, "start")?,
            finish_ns: time(self.finish, row, "finish")?,
            waited: self.waited.and_then(|waited| waited.get(row)).map(|waited| waited != 0),
            flags: Flags(self.flags.and_then(|flags| flags.get(row)).unwrap_or(0) as u32),
            ..Request::new(
                op,
                natural(self.offset.get(row), "offset")?,
                natural(self.size.get(row), "size")?,
                natural(self.arrival.get(row), "arrival")?,
            )
        })
    }
}

/// An operation as its number, by its name.
fn op(name: &[u8]) -> Option<u32> {
    Op::ALL.iter().position(|op| op.name().as_bytes() == name).map(|number| number as u32)
}

#[inline]
fn natural(number: Option<i64>, what: &'static str) -> Result<u64, Malformed> {
    u64::try_from(number.ok_or(Malformed::Missing(what))?).map_err(|_| Malformed::Number(what))
}

#[inline]
fn time(times: Option<Batch<'_, i64>>, row: usize, what: &'static str) -> Result<Option<u64>, Malformed> {
    let time = times.and_then(|times| times.get(row));
    time.map(|time| natural(Some(time), what)).transpose()
}

#[inline]
fn name(names: Option<Batch<'_, u32>>, row: usize) -> Result<u32, Malformed> {
    match names.and_then(|names| names.get(row)) {
        Some(NO_NAME) => Err(Malformed::Names),
        Some(number) => Ok(number),
        None => Ok(0),
    }
}

/// What is wrong, and in which row group, from 1.
fn of_group(stop: Stop, number: usize) -> Stop {
    match stop {
        Stop::Broken(what) => Stop::Broken(format!("row group {number}: {what}")),
        stop => stop,
    }
}

struct Reader {
    chunks: Arc<Chunks>,
    metadata: FileMetaData,
    columns: Columns,
    groups: Groups,
    /// Row groups whose turn comes, and the piece of the description behind them.
    piece: std::vec::IntoIter<RowGroupMetaData>,
    next_piece: usize,
    /// Of each row group, whether it arrives before those behind it.
    before_all: Vec<bool>,
    next_group: usize,
    group: Option<Group>,
    /// What comes arrives no earlier, the file says.
    floor_ns: u64,
    /// The latest arrival.
    latest_ns: u64,
}

impl Decoder for Reader {
    fn provenance(&self) -> Provenance {
        let mut provenance = Provenance::default();
        for pair in self.metadata.key_value_metadata().into_iter().flatten() {
            if let (Some(key), Some(value)) = (pair.key.strip_prefix(PROVENANCE_KEY), &pair.value) {
                provenance.set(key, value);
            }
        }
        provenance
    }

    fn step(&mut self, intake: &mut Intake) -> Result<bool, Stop> {
        let Some(group) = self.group.as_mut().filter(|group| group.left > 0) else { return self.open_next() };
        let rows = group.left.min(BATCH_ROWS as u64) as usize;
        let number = self.next_group;
        guarded(|| group.read(rows, intake).map_err(failed)).map_err(|stop| of_group(stop, number))?;
        group.left -= rows as u64;
        let batch = group.batch(rows);
        for row in 0..rows {
            intake.read();
            match batch.request(row).and_then(|request| intake.push(request).map(|()| request.arrival_ns)) {
                Ok(arrival_ns) if arrival_ns < self.floor_ns => {
                    return Err(broken("broken Parquet: its rows are not in the order that it claims"));
                }
                Ok(arrival_ns) => self.latest_ns = self.latest_ns.max(arrival_ns),
                Err(reason) => intake.malformed(reason, "")?,
            }
        }
        if group.is_before_all && (group.is_in_order || group.left == 0) {
            self.floor_ns = self.latest_ns;
            intake.complete();
        }
        Ok(true)
    }
}

impl Reader {
    /// Opens the next row group; false when there is none.
    fn open_next(&mut self) -> Result<bool, Stop> {
        if self.piece.len() == 0 {
            self.piece = guarded(|| self.groups.piece(self.next_piece).map_err(failed))?.into_iter();
            self.next_piece += 1;
        }
        let Some(next) = self.piece.next() else { return Ok(false) };
        let is_before_all = self.before_all.get(self.next_group).is_some_and(|before_all| *before_all);
        self.next_group += 1;
        let group =
            guarded(|| Group::open(&self.chunks, &next, &self.columns, is_before_all).map_err(failed));
        self.group = Some(group.map_err(|stop| of_group(stop, self.next_group))?);
        Ok(true)
    }
}
