//! What a host does, as bytes tell it.

/// Bytes of an input, and zeroes behind its end.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// The next one.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// A number below `limit`, by the next one.
    pub fn below(&mut self, limit: u8) -> usize {
        usize::from(self.byte() % limit)
    }
}
