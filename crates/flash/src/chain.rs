//! Lists through a table whose entries name both neighbours, so that any entry can be taken out.

use crate::fifo::NONE;

/// Neighbours in a [`Chain`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub before: u32,
    pub after: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { before: NONE, after: NONE }
    }
}

/// An entry of a table that can be in one list of each side.
pub(crate) trait Chained {
    fn links(&mut self, side: usize) -> &mut Links;
}

/// A list of entries. An entry is in one list of each side at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub side: usize,
    pub head: u32,
    pub tail: u32,
    pub len: u32,
}

impl Chain {
    pub fn new(side: usize) -> Self {
        Self { side, head: NONE, tail: NONE, len: 0 }
    }

    pub fn push<T: Chained>(&mut self, table: &mut [T], entry: u32) {
        *table[entry as usize].links(self.side) = Links { before: self.tail, after: NONE };
        match self.tail {
            NONE => self.head = entry,
            tail => table[tail as usize].links(self.side).after = entry,
        }
        self.tail = entry;
        self.len += 1;
    }

    pub fn remove<T: Chained>(&mut self, table: &mut [T], entry: u32) {
        let Links { before, after } = *table[entry as usize].links(self.side);
        match before {
            NONE => self.head = after,
            before => table[before as usize].links(self.side).after = after,
        }
        match after {
            NONE => self.tail = before,
            after => table[after as usize].links(self.side).before = before,
        }
        self.len -= 1;
    }

    pub fn first(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

#[cfg(test)]
impl Chain {
    /// What is in the list, by number; checks that its links fit each other.
    pub fn listed<T: Chained + Clone>(&self, table: &[T]) -> Vec<u32> {
        let mut table = table.to_vec();
        let (mut listed, mut before, mut entry) = (Vec::new(), NONE, self.head);
        while entry != NONE {
            let links = *table[entry as usize].links(self.side);
            assert_eq!(links.before, before, "a list is torn");
            listed.push(entry);
            (before, entry) = (entry, links.after);
        }
        assert_eq!((self.tail, self.len as usize), (before, listed.len()), "a list's end");
        listed.sort_unstable();
        listed
    }
}
