//! The description at the end of a Parquet file, of which only a piece is held at a time: that of all row groups grows
//! with the file.
//!
//! The description is one value of Thrift's compact protocol. It is gone through once, to find where the row groups
//! are in it. What is not about them is read whole; the row groups are read in pieces, when their turn comes.
//!
//! Source: parquet.thrift, `FileMetaData`; Apache Thrift, "Thrift compact protocol encoding".

use super::pages::{At, Chunks, broken};
use parquet::errors::Result;
use parquet::file::metadata::{
    FileMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy, RowGroupMetaData,
};
use std::io::{self, BufRead, BufReader, Read, Take};
use std::sync::Arc;

/// Bytes that are read together.
const BUFFER_BYTES: usize = 16 << 10;
/// Bytes of a piece that are enough: some 40 row groups of ours, which take ten times as much when they are read.
const PIECE_BYTES: u64 = 64 << 10;
/// Largest description of a row group (some 10,000 columns), and of all that is not about row groups.
const PART_BYTES_MAX: u64 = 1 << 20;
/// Values within each other that are gone into: those of the format are five deep.
const DEPTH_MAX: u32 = 32;
/// The field of `FileMetaData` that lists the row groups.
const ROW_GROUPS: i64 = 4;
/// The head of a list of structures of which there are none, and of one whose length follows.
const EMPTY_LIST: u8 = 0x0c;
const LONG_LIST: u8 = 0xfc;
/// A description without a schema that goes on with its row groups: version 1, no rows.
const BEFORE_GROUPS: [u8; 5] = [0x15, 2, 0x26, 0, 0x19];
/// The end of a structure.
const STOP: u8 = 0;

/// Row groups that follow each other in the description.
#[derive(Debug)]
struct Piece {
    /// Its first byte in the file.
    at: u64,
    bytes: u64,
    groups: u64,
}

/// The row groups of a file.
pub(super) struct Groups {
    chunks: Arc<Chunks>,
    options: ParquetMetaDataOptions,
    pieces: Vec<Piece>,
}

/// Reads the description, which has so many bytes from this one on: what is not about row groups, and where these are.
pub(super) fn open(chunks: &Arc<Chunks>, at: u64, bytes: u64) -> Result<(FileMetaData, Groups)> {
    let mut walk = Walk { input: BufReader::with_capacity(BUFFER_BYTES, chunks.at(at).take(bytes)), at };
    let mut pieces = Vec::new();
    let (mut list, mut last) = ((at + bytes)..(at + bytes), 0);
    while let Some((number, kind)) = walk.field(&mut last)? {
        if (number, kind) == (ROW_GROUPS, Kind::List) && pieces.is_empty() {
            let begin = walk.at;
            pieces = walk.groups()?;
            list = begin..walk.at;
        } else {
            walk.skip(kind, 0)?;
        }
    }
    let end = walk.at;
    let (before, behind) = (list.start.min(end) - at, end.saturating_sub(list.end));
    if before + behind > PART_BYTES_MAX {
        return broken("its columns and its notes take more than 1 MiB");
    }
    let mut head = chunks.read(at, before)?;
    if !list.is_empty() {
        head.push(EMPTY_LIST);
        head.extend(chunks.read(list.end, behind)?);
    }
    let metadata = ParquetMetaDataReader::decode_metadata(&head)?;
    let options = ParquetMetaDataOptions::new().with_schema(metadata.file_metadata().schema_descr_ptr());
    let groups = Groups { chunks: Arc::clone(chunks), options, pieces };
    Ok((metadata.file_metadata().clone(), groups))
}

impl Groups {
    /// Leaves the statistics of all other columns unread.
    pub(super) fn with_statistics_of(mut self, columns: &[usize]) -> Self {
        self.options.set_column_stats_policy(ParquetStatisticsPolicy::skip_except(columns));
        self
    }

    /// How many pieces they are in.
    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// The row groups of a piece; none behind the last one.
    pub(super) fn piece(&self, number: usize) -> Result<Vec<RowGroupMetaData>> {
        let Some(piece) = self.pieces.get(number) else { return Ok(Vec::new()) };
        let mut bytes = BEFORE_GROUPS.to_vec();
        bytes.push(LONG_LIST);
        push_varint(&mut bytes, piece.groups);
        bytes.extend(self.chunks.read(piece.at, piece.bytes)?);
        bytes.push(STOP);
        let read = ParquetMetaDataReader::decode_metadata_with_options(&bytes, Some(&self.options))?;
        Ok(read.into_builder().take_row_groups())
    }
}

/// A number of 7 bits a byte, the lowest first.
fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A type of the compact protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A truth: as a field it is in the head, in a list it has a byte.
    Bool,
    /// A number of 7 bits a byte.
    Varint,
    /// So many bytes.
    Bytes(u64),
    /// A length and as many bytes.
    Binary,
    List,
    Map,
    Struct,
}

impl Kind {
    fn of(code: u8) -> Result<Self> {
        Ok(match code {
            1 | 2 => Self::Bool,
            3 => Self::Bytes(1),
            4..=6 => Self::Varint,
            7 => Self::Bytes(8),
            8 => Self::Binary,
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Bytes(16),
            _ => return torn(),
        })
    }
}

fn torn<T>() -> Result<T> {
    broken("its description contradicts itself")
}

/// Goes through a description.
struct Walk {
    input: BufReader<Take<At>>,
    /// The next byte of the file.
    at: u64,
}

impl Walk {
    fn byte(&mut self) -> Result<u8> {
        let Some(&byte) = self.input.fill_buf()?.first() else { return torn() };
        self.input.consume(1);
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        torn()
    }

    fn pass(&mut self, bytes: u64) -> Result<()> {
        let passed = io::copy(&mut (&mut self.input).take(bytes), &mut io::sink())?;
        self.at += passed;
        if passed == bytes { Ok(()) } else { torn() }
    }

    /// The number and the type of the next field of a structure; none at its end. `last` is the number of the last one.
    fn field(&mut self, last: &mut i64) -> Result<Option<(i64, Kind)>> {
        let head = self.byte()?;
        if head == STOP {
            return Ok(None);
        }
        *last = match i64::from(head >> 4) {
            0 => {
                let number = self.varint()?;
                (number >> 1) as i64 ^ -((number & 1) as i64)
            }
            more => last.wrapping_add(more),
        };
        Ok(Some((*last, Kind::of(head & 0x0f)?)))
    }

    /// The length of a list, and what is in it.
    fn list(&mut self) -> Result<(u64, Kind)> {
        let head = self.byte()?;
        let length = match head >> 4 {
            15 => self.varint()?,
            length => u64::from(length),
        };
        Ok((length, Kind::of(head & 0x0f)?))
    }

    /// Passes over the value of a field. Each value in another one takes a byte at least, so that what a list claims
    /// ends with the bytes.
    fn skip(&mut self, kind: Kind, depth: u32) -> Result<()> {
        if depth == DEPTH_MAX {
            return torn();
        }
        match kind {
            Kind::Bool => Ok(()),
            Kind::Varint => self.varint().map(drop),
            Kind::Bytes(bytes) => self.pass(bytes),
            Kind::Binary => {
                let bytes = self.varint()?;
                self.pass(bytes)
            }
            Kind::List => {
                let (length, kind) = self.list()?;
                (0..length).try_for_each(|_| self.skip_element(kind, depth + 1))
            }
            Kind::Map => {
                let length = self.varint()?;
                if length == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                let (key, value) = (Kind::of(kinds >> 4)?, Kind::of(kinds & 0x0f)?);
                (0..length).try_for_each(|_| {
                    self.skip_element(key, depth + 1)?;
                    self.skip_element(value, depth + 1)
                })
            }
            Kind::Struct => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
        }
    }

    fn skip_element(&mut self, kind: Kind, depth: u32) -> Result<()> {
        self.skip(if kind == Kind::Bool { Kind::Bytes(1) } else { kind }, depth)
    }

    /// Passes over a list of row groups, and tells its pieces.
    fn groups(&mut self) -> Result<Vec<Piece>> {
        let (length, kind) = self.list()?;
        if kind != Kind::Struct {
            return torn();
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for number in 1..=length {
            let at = self.at;
            self.skip_element(kind, 0)?;
            let bytes = self.at - at;
            if bytes > PART_BYTES_MAX {
                return broken(&format!("the description of row group {number} takes more than 1 MiB"));
            }
            match pieces.last_mut().filter(|piece| piece.bytes + bytes <= PIECE_BYTES) {
                Some(piece) => {
                    piece.bytes += bytes;
                    piece.groups += 1;
                }
                None => pieces.push(Piece { at, bytes, groups: 1 }),
            }
        }
        Ok(pieces)
    }
}
