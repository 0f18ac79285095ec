//! Records: what has changed in flash, for whoever keeps it (docs/spec/flash.md, "Records").
//!
//! A drive whose owner keeps records writes one for each program, erase and deallocation, in the order in which they
//! took effect. A unit of a program that was out of date when the program ended is recorded as none: so the last record
//! of a logical unit says where it is.

/// The words of the records that were not taken yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    words: Vec<u32>,
    pub kept: bool,
}

/// First word of a record: kind (8 bits) and count (24 bits).
const SHIFT: u32 = 24;
const PROGRAM: u32 = 1;
const ERASE: u32 = 2;
const DEALLOCATE: u32 = 3;
const OPEN: u32 = 4;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// These logical units were programmed from a physical one on; `NONE` where a unit is not valid.
    Program { first: u32, units: &'a [u32] },
    /// A block was erased, or retired instead.
    Erase { block: u32, retired: bool },
    /// A free block is programmed from now on, by a stream.
    Open { block: u32, stream: usize },
    /// Logical units are nowhere.
    Deallocate { first: u32, count: u32 },
}

impl Records {
    /// Begins the record of a program.
    #[inline]
    pub fn program(&mut self, first: u32, units: u32) {
        if self.kept {
            self.words.extend([PROGRAM << SHIFT | units, first]);
        }
    }

    /// The next unit of the program whose record was begun.
    #[inline]
    pub fn unit(&mut self, unit: u32) {
        if self.kept {
            self.words.push(unit);
        }
    }

    pub fn open(&mut self, block: u32, stream: usize) {
        if self.kept {
            self.words.extend([OPEN << SHIFT | stream as u32, block]);
        }
    }

    pub fn erase(&mut self, block: u32, retired: bool) {
        if self.kept {
            self.words.extend([ERASE << SHIFT | u32::from(retired), block]);
        }
    }

    pub fn deallocate(&mut self, first: u64, count: u64) {
        if self.kept && count > 0 {
            self.words.extend([DEALLOCATE << SHIFT, first as u32, count as u32]);
        }
    }

    pub fn words(&self) -> &[u32] {
        &self.words
    }

    pub fn clear(&mut self) {
        self.words.clear();
    }
}

impl Record<'_> {
    /// Takes the next record off `words`; `None` at their end, or where they say nothing.
    pub fn take<'a>(words: &mut &'a [u32]) -> Option<Record<'a>> {
        let (&head, rest) = words.split_first()?;
        let count = (head & ((1 << SHIFT) - 1)) as usize;
        let (record, len) = match head >> SHIFT {
            PROGRAM => (Record::Program { first: *rest.first()?, units: rest.get(1..1 + count)? }, 1 + count),
            ERASE => (Record::Erase { block: *rest.first()?, retired: count != 0 }, 1),
            OPEN => (Record::Open { block: *rest.first()?, stream: count }, 1),
            DEALLOCATE => (Record::Deallocate { first: *rest.first()?, count: *rest.get(1)? }, 2),
            _ => return None,
        };
        *words = &rest[len..];
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::{Record, Records};

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut records = Records { kept: true, ..Records::default() };
        records.program(40, 2);
        records.unit(7);
        records.unit(u32::MAX);
        records.erase(3, true);
        records.open(3, 1);
        records.deallocate(5, 6);
        let mut words = records.words();
        let program = Record::Program { first: 40, units: &[7, u32::MAX] };
        assert_eq!(Record::take(&mut words), Some(program));
        assert_eq!(Record::take(&mut words), Some(Record::Erase { block: 3, retired: true }));
        assert_eq!(Record::take(&mut words), Some(Record::Open { block: 3, stream: 1 }));
        assert_eq!(Record::take(&mut words), Some(Record::Deallocate { first: 5, count: 6 }));
        assert_eq!(Record::take(&mut words), None);
        let mut torn = &records.words()[..3];
        assert_eq!(Record::take(&mut torn), None, "a program without its last unit");
    }
}
