//! Columns of a row group, read in batches of rows: numbers and names as slices, without a value by itself for each.

use super::bits::{Delta, Hybrid, Torn};
use super::pages::{Chunks, Pages, broken};
use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::Page;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use std::sync::Arc;

/// Bytes of a length before what it is about.
const LENGTH_BYTES: usize = 4;
/// What a name is that cannot be one.
pub(super) const NO_NAME: u32 = u32::MAX;
/// What a name in a dictionary is that no row has used yet.
const NOT_ASKED: u32 = u32::MAX - 1;
/// Names that are remembered with their numbers, in places that their bytes choose.
const REMEMBERED: usize = 64;

impl From<Torn> for ParquetError {
    fn from(_: Torn) -> Self {
        Self::General("a page has fewer values than it claims".to_owned())
    }
}

/// The bytes of a length and then as many; and those behind them.
fn with_length(bytes: &Bytes) -> std::result::Result<(Bytes, usize), Torn> {
    let length = bytes.first_chunk::<LENGTH_BYTES>().ok_or(Torn)?;
    let end = (u32::from_le_bytes(*length) as usize).checked_add(LENGTH_BYTES).ok_or(Torn)?;
    if end > bytes.len() { Err(Torn) } else { Ok((bytes.slice(LENGTH_BYTES..end), end)) }
}

/// Values of a page.
#[derive(Debug)]
enum Values {
    /// One after another, from this byte on.
    Plain(Bytes, usize),
    Differences(Delta),
    /// Numbers of values in the dictionary, or single bits.
    Places(Hybrid),
}

/// What comes next in a column.
enum Next {
    Dictionary(Bytes, usize),
    Values,
}

/// A column of any type: its pages, and which rows have a value.
struct Column {
    pages: Pages,
    column: Type,
    is_optional: bool,
    levels: Hybrid,
    values: Values,
    /// Rows of the page that were not read yet.
    left: usize,
    /// Which rows of the batch have a value.
    has: Vec<bool>,
}

impl Column {
    fn open(chunks: &Arc<Chunks>, group: &RowGroupMetaData, at: usize) -> Result<Self> {
        let Some(chunk) = group.columns().get(at) else { return broken("a row group without a column") };
        let Ok(rows) = usize::try_from(group.num_rows()) else {
            return broken("a row group of less than no rows");
        };
        Ok(Self {
            pages: Pages::new(chunks, chunk, rows)?,
            column: chunk.column_type(),
            is_optional: chunk.column_descr().max_def_level() > 0,
            levels: Hybrid::default(),
            values: Values::Plain(Bytes::new(), 0),
            left: 0,
            has: Vec::new(),
        })
    }

    fn next_page(&mut self) -> Result<Next> {
        let Some(page) = self.pages.next()? else {
            return broken("a column has fewer rows than its row group claims");
        };
        let (bytes, count, encoding) = match page {
            Page::DictionaryPage { buf, num_values, .. } => {
                return Ok(Next::Dictionary(buf, num_values as usize));
            }
            Page::DataPage { mut buf, num_values, encoding, .. } => {
                if self.is_optional {
                    let (levels, end) = with_length(&buf)?;
                    self.levels = Hybrid::new(levels, 1)?;
                    buf = buf.slice(end..);
                }
                (buf, num_values, encoding)
            }
            Page::DataPageV2 {
                buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, ..
            } => {
                // That they are in the page was checked with it.
                let first = rep_levels_byte_len as usize;
                let end = first + def_levels_byte_len as usize;
                if self.is_optional {
                    self.levels = Hybrid::new(buf.slice(first..end), 1)?;
                }
                (buf.slice(end..), num_values, encoding)
            }
        };
        self.left = count as usize;
        self.values = self.values_of(bytes, encoding)?;
        Ok(Next::Values)
    }

    fn values_of(&self, bytes: Bytes, encoding: Encoding) -> Result<Values> {
        Ok(match encoding {
            Encoding::PLAIN if self.column == Type::BOOLEAN => Values::Places(Hybrid::bits(bytes)),
            Encoding::PLAIN => Values::Plain(bytes, 0),
            Encoding::RLE => Values::Places(Hybrid::new(with_length(&bytes)?.0, 1)?),
            Encoding::DELTA_BINARY_PACKED => Values::Differences(Delta::new(bytes)?),
            // Numbers of values in the dictionary, below the bits of each. A page without values may have no bytes.
            _ => match bytes.first() {
                Some(&width) => Values::Places(Hybrid::new(bytes.slice(1..), u32::from(width))?),
                None => Values::Places(Hybrid::default()),
            },
        })
    }

    /// Learns which of some rows of the page have a value; how many have.
    fn present(&mut self, first: usize, count: usize) -> Result<usize> {
        self.left -= count;
        self.has.resize(first + count, true);
        if !self.is_optional {
            return Ok(count);
        }
        let has = &mut self.has[first..];
        self.levels.fill(has, |level| level == 1)?;
        Ok(has.iter().filter(|has| **has).count())
    }
}

/// Moves the first values of some rows to the rows that have one.
fn spread<T: Copy>(values: &mut [T], has: &[bool], mut present: usize) {
    for row in (0..values.len()).rev() {
        if present == row + 1 {
            // All rows up to here have one.
            return;
        }
        if has[row] {
            present -= 1;
            values[row] = values[present];
        }
    }
}

/// What a batch of rows has in a column: for each whether there is a value, and it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch<'a, T> {
    has: &'a [bool],
    values: &'a [T],
}

impl<T: Copy> Batch<'_, T> {
    /// The value of a row, if it has one.
    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<T> {
        self.has[row].then(|| self.values[row])
    }
}

/// A column of numbers, or of bits as numbers.
pub(super) struct Numbers {
    column: Column,
    dictionary: Vec<i64>,
    values: Vec<i64>,
}

impl Numbers {
    /// The column of a row group.
    pub(super) fn open(chunks: &Arc<Chunks>, group: &RowGroupMetaData, at: usize) -> Result<Self> {
        Ok(Self { column: Column::open(chunks, group, at)?, dictionary: Vec::new(), values: Vec::new() })
    }

    /// Reads so many rows.
    pub(super) fn read(&mut self, rows: usize) -> Result<()> {
        let Self { column, dictionary, values } = self;
        column.has.clear();
        values.resize(rows, 0);
        let mut done = 0;
        while done < rows {
            if column.left == 0 {
                if let Next::Dictionary(bytes, count) = column.next_page()? {
                    *dictionary = plain_numbers(column.column, &bytes, count)?;
                }
                continue;
            }
            let count = column.left.min(rows - done);
            let present = column.present(done, count)?;
            let of_page = &mut values[done..done + count];
            let now = &mut of_page[..present];
            match &mut column.values {
                Values::Plain(bytes, at) => plain(column.column, bytes, at, now)?,
                // Numbers of 32 bits are right in their lower half.
                Values::Differences(delta) => delta.fill(now)?,
                Values::Places(places) if column.column == Type::BOOLEAN => places.fill(now, i64::from)?,
                Values::Places(places) => {
                    let mut is_known = true;
                    places.fill(now, |place| {
                        let value = dictionary.get(place as usize);
                        is_known &= value.is_some();
                        value.copied().unwrap_or(0)
                    })?;
                    if !is_known {
                        return broken("a value that is not in its dictionary");
                    }
                }
            }
            spread(of_page, &column.has[done..], present);
            done += count;
        }
        Ok(())
    }

    /// The values of a batch of so many rows.
    pub(super) fn batch(&self, rows: usize) -> Batch<'_, i64> {
        Batch { has: &self.column.has[..rows], values: &self.values[..rows] }
    }
}

fn number_bytes(column: Type) -> usize {
    if column == Type::INT32 { 4 } else { 8 }
}

/// Plain numbers from a byte on.
fn plain(column: Type, bytes: &[u8], at: &mut usize, out: &mut [i64]) -> std::result::Result<(), Torn> {
    let end = *at + out.len() * number_bytes(column);
    let now = bytes.get(*at..end).ok_or(Torn)?;
    *at = end;
    if column == Type::INT32 {
        for (place, number) in out.iter_mut().zip(now.as_chunks().0) {
            *place = i64::from(i32::from_le_bytes(*number));
        }
    } else {
        for (place, number) in out.iter_mut().zip(now.as_chunks().0) {
            *place = i64::from_le_bytes(*number);
        }
    }
    Ok(())
}

/// A dictionary of numbers. That it has bytes enough was checked with its page.
fn plain_numbers(column: Type, bytes: &[u8], count: usize) -> Result<Vec<i64>> {
    let mut numbers = vec![0; count.min(bytes.len() / number_bytes(column))];
    plain(column, bytes, &mut 0, &mut numbers)?;
    Ok(numbers)
}

/// A column of names as numbers, which a room above gives.
pub(super) struct Names {
    column: Column,
    /// Where each value is in the bytes of the dictionary, and the number that it was given.
    dictionary: Vec<(u32, u32, u32)>,
    dictionary_bytes: Bytes,
    /// A name comes again and again, and to look it up among all takes longer than to read the rest of its row.
    remembered: Vec<(Vec<u8>, u32)>,
    numbers: Vec<u32>,
}

impl Names {
    /// The column of a row group.
    pub(super) fn open(chunks: &Arc<Chunks>, group: &RowGroupMetaData, at: usize) -> Result<Self> {
        Ok(Self {
            column: Column::open(chunks, group, at)?,
            dictionary: Vec::new(),
            dictionary_bytes: Bytes::new(),
            remembered: Vec::new(),
            numbers: Vec::new(),
        })
    }

    /// Reads so many rows. A name gets the number that `number` gives, or [`NO_NAME`].
    pub(super) fn read(&mut self, rows: usize, number: &mut dyn FnMut(&[u8]) -> Option<u32>) -> Result<()> {
        self.column.has.clear();
        self.numbers.resize(rows, 0);
        let mut done = 0;
        while done < rows {
            if self.column.left == 0 {
                if let Next::Dictionary(bytes, count) = self.column.next_page()? {
                    self.learn(bytes, count)?;
                }
                continue;
            }
            let count = self.column.left.min(rows - done);
            let present = self.column.present(done, count)?;
            let Self { column, dictionary, dictionary_bytes, remembered, numbers } = self;
            let of_page = &mut numbers[done..done + count];
            let now = &mut of_page[..present];
            match &mut column.values {
                Values::Differences(_) => return broken("names as differences"),
                Values::Plain(bytes, at) => {
                    for place in now {
                        *place = remember(remembered, plain_name(bytes, at)?, number);
                    }
                }
                Values::Places(places) => {
                    let mut is_known = true;
                    places.fill(now, |place| match dictionary.get_mut(place as usize) {
                        Some((first, end, known)) => {
                            if *known == NOT_ASKED {
                                let name = &dictionary_bytes[*first as usize..*end as usize];
                                *known = number(name).unwrap_or(NO_NAME);
                            }
                            *known
                        }
                        None => {
                            is_known = false;
                            NO_NAME
                        }
                    })?;
                    if !is_known {
                        return broken("a value that is not in its dictionary");
                    }
                }
            }
            spread(of_page, &column.has[done..], present);
            done += count;
        }
        Ok(())
    }

    /// Takes a dictionary.
    fn learn(&mut self, bytes: Bytes, count: usize) -> Result<()> {
        self.dictionary.clear();
        let mut at = 0;
        for _ in 0..count {
            let end = plain_name(&bytes, &mut at).map(|name| (at - name.len(), at))?;
            self.dictionary.push((end.0 as u32, end.1 as u32, NOT_ASKED));
        }
        self.dictionary_bytes = bytes;
        Ok(())
    }

    /// The numbers of the names of a batch of so many rows.
    pub(super) fn batch(&self, rows: usize) -> Batch<'_, u32> {
        Batch { has: &self.column.has[..rows], values: &self.numbers[..rows] }
    }
}

/// A name with its length before it, from a byte on.
fn plain_name<'a>(bytes: &'a [u8], at: &mut usize) -> std::result::Result<&'a [u8], Torn> {
    let rest = bytes.get(*at..).ok_or(Torn)?;
    let length = u32::from_le_bytes(*rest.first_chunk().ok_or(Torn)?) as usize;
    let name = rest[LENGTH_BYTES..].get(..length).ok_or(Torn)?;
    *at += LENGTH_BYTES + length;
    Ok(name)
}

fn remember(
    remembered: &mut Vec<(Vec<u8>, u32)>,
    name: &[u8],
    number: &mut dyn FnMut(&[u8]) -> Option<u32>,
) -> u32 {
    if remembered.is_empty() {
        remembered.resize(REMEMBERED, (Vec::new(), NOT_ASKED));
    }
    // Names of one trace differ at their ends, as `8,0` and `8,16` do.
    let mixed =
        name.iter().rev().take(8).fold(name.len(), |mixed, byte| mixed.wrapping_mul(31) ^ usize::from(*byte));
    let place = &mut remembered[mixed % REMEMBERED];
    if place.1 == NOT_ASKED || place.0 != name {
        place.0.clear();
        place.0.extend_from_slice(name);
        place.1 = number(name).unwrap_or(NO_NAME);
    }
    place.1
}
