//! First in, first out: lists through a table whose entries name their successors.

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// An entry that can be in one list.
pub(crate) trait Linked {
    fn next(&mut self) -> &mut u32;
}

/// A list of entries of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl Fifo {
    #[inline]
    pub fn is_empty(self) -> bool {
        self.head == NONE
    }

    /// The first entry.
    #[inline]
    pub fn head(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    #[inline]
    pub fn push<T: Linked>(&mut self, table: &mut [T], entry: u32) {
        *table[entry as usize].next() = NONE;
        if self.head == NONE {
            self.head = entry;
        } else {
            *table[self.tail as usize].next() = entry;
        }
        self.tail = entry;
    }

    /// Takes an entry out, which follows `before` ([`NONE`] of the first one).
    pub fn remove<T: Linked>(&mut self, table: &mut [T], before: u32, entry: u32) {
        let after = *table[entry as usize].next();
        match before {
            NONE => self.head = after,
            before => *table[before as usize].next() = after,
        }
        if self.tail == entry {
            self.tail = before;
        }
    }

    #[inline]
    pub fn pop<T: Linked>(&mut self, table: &mut [T]) -> Option<u32> {
        let entry = self.head()?;
        self.head = *table[entry as usize].next();
        Some(entry)
    }
}
