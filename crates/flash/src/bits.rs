//! A set of small numbers, given back in their order.

#[derive(Clone, Debug)]
pub(crate) struct Bits(Box<[u64]>);

impl Bits {
    /// Room for numbers below `count`.
    pub fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)].into())
    }

    #[inline]
    pub fn set(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Takes the least.
    #[inline]
    pub fn take(&mut self) -> Option<usize> {
        let (at, word) = self.0.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(at * 64 + bit)
    }
}
