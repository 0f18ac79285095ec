//! Pages of a Parquet file that a stranger wrote: what they claim is held against limits before it is believed.

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Largest page, unpacked: writers make them of 1 MiB, some of a whole row group.
const PAGE_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a page's header that are read together.
const HEADER_BYTES: usize = 512;
/// Bytes that the two sizes at the beginning of a header have at most: two fields of 32 bits.
const SIZES_BYTES: u64 = 12;
/// Head of a field of Thrift's compact protocol: a 32-bit integer whose number follows the one before.
const NEXT_I32: u8 = 0x15;

/// A file that cannot be read any further.
pub(super) fn broken<T>(what: &str) -> Result<T> {
    Err(ParquetError::General(what.to_owned()))
}

/// A file that is read at several places in turn.
#[derive(Debug)]
pub(super) struct Chunks {
    pub(super) file: Arc<File>,
    pub(super) len: u64,
}

impl Chunks {
    /// Reads from a place on.
    pub(super) fn at(&self, offset: u64) -> At {
        At { file: Arc::clone(&self.file), offset }
    }

    /// The bytes from one on. How many they are was held against a limit.
    pub(super) fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>> {
        let mut read = vec![0; bytes as usize];
        self.file.read_exact_at(&mut read, at)?;
        Ok(read)
    }
}

/// Reads from a place on.
#[derive(Debug)]
pub(super) struct At {
    file: Arc<File>,
    offset: u64,
}

impl Read for At {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<At>;

    /// Where a page begins; its header says how large it is.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut sizes = Vec::new();
        self.at(start).take(SIZES_BYTES).read_to_end(&mut sizes)?;
        match unpacked_bytes(&sizes) {
            Some(bytes) if bytes <= PAGE_BYTES_MAX => {
                Ok(BufReader::with_capacity(HEADER_BYTES, self.at(start)))
            }
            Some(bytes) => broken(&format!("a page of {bytes} bytes, more than 32 MiB")),
            None => broken("a page without a header"),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return broken("a page that ends behind the file");
        }
        Ok(self.read(start, length as u64)?.into())
    }
}

/// The size of a page when it is unpacked: the second field of its header, after the page's type. Every writer has them
/// in this order (parquet.thrift, `PageHeader`), since the compact protocol counts fields up.
fn unpacked_bytes(header: &[u8]) -> Option<u64> {
    let mut bytes = header.iter().copied();
    let mut field = || {
        (bytes.next()? == NEXT_I32).then_some(())?;
        let mut number = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = bytes.next()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                // Zigzag: an odd number is negative.
                return number.is_multiple_of(2).then_some(number / 2);
            }
        }
        None
    };
    field()?;
    field()
}

/// Pages of a column. What the reader behind would believe, and panic or run out of memory, goes no further than here.
pub(super) struct Pages {
    pages: SerializedPageReader<Chunks>,
    column: Type,
    has_dictionary: bool,
}

impl Pages {
    /// Those of a chunk, which must be in the file.
    pub(super) fn new(chunks: &Arc<Chunks>, chunk: &ColumnChunkMetaData, rows: usize) -> Result<Self> {
        let start = chunk.dictionary_page_offset().unwrap_or(i64::MAX).min(chunk.data_page_offset());
        let end = start.checked_add(chunk.compressed_size());
        let is_inside =
            start >= 0 && chunk.compressed_size() >= 0 && end.is_some_and(|end| end as u64 <= chunks.len);
        if !is_inside {
            return broken("a column that is not in the file");
        }
        let pages = SerializedPageReader::new(Arc::clone(chunks), chunk, rows, None)?;
        Ok(Self { pages, column: chunk.column_type(), has_dictionary: false })
    }
}

/// Fewest bytes of a value in a dictionary.
fn value_bytes(column: Type) -> usize {
    match column {
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
        Type::INT64 | Type::DOUBLE => 8,
        _ => 1,
    }
}

impl Pages {
    fn is_read(&self, encoding: Encoding) -> bool {
        match encoding {
            Encoding::PLAIN => true,
            Encoding::RLE => self.column == Type::BOOLEAN,
            Encoding::DELTA_BINARY_PACKED => matches!(self.column, Type::INT32 | Type::INT64),
            // The lengths of packed texts are believed before there is one.
            _ => false,
        }
    }

    fn checked(&mut self, page: &Page) -> Result<()> {
        let (encoding, levels, levels_bytes) = match page {
            Page::DictionaryPage { buf, num_values, encoding, .. } => {
                // There is room for all of them before anybody looks at the first one.
                if *num_values as usize > buf.len() / value_bytes(self.column) {
                    return broken("a dictionary with more values than bytes");
                }
                self.has_dictionary = true;
                return if is_dictionary(*encoding) || *encoding == Encoding::PLAIN {
                    Ok(())
                } else {
                    unread(*encoding)
                };
            }
            Page::DataPage { encoding, def_level_encoding, .. } => (*encoding, *def_level_encoding, 0),
            Page::DataPageV2 { encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
                (*encoding, Encoding::RLE, u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len))
            }
        };
        match () {
            () if levels_bytes > page.buffer().len() as u64 => {
                broken("a page whose levels are longer than it")
            }
            () if levels != Encoding::RLE => unread(levels),
            () if is_dictionary(encoding) && self.column == Type::BOOLEAN => unread(encoding),
            () if is_dictionary(encoding) && !self.has_dictionary => {
                broken("a page of a dictionary that is not there")
            }
            () if is_dictionary(encoding) || self.is_read(encoding) => Ok(()),
            () => unread(encoding),
        }
    }
}

fn is_dictionary(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY)
}

fn unread(encoding: Encoding) -> Result<()> {
    broken(&format!("values encoded as {encoding} are not read here"))
}

impl Pages {
    /// The next one; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.as_ref().map_or(Ok(()), |page| self.checked(page))?;
        Ok(page)
    }
}
